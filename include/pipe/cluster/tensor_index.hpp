// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The index of a file of tensors: their names, with checksums. Header for
//! pipelining::detail::tensor_index.

#include <pipe/flow/json_cursor.hpp>
#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Part of a tensor: its numbers from `first` on, `shape` of them, row by row. Both have as many
//! axes as the tensor.
struct tensor_box {
  std::vector<std::int64_t> first{};
  std::vector<std::int64_t> shape{};

  friend bool operator==(tensor_box const&, tensor_box const&) = default;
};

//! The fault of a box of a tensor of this shape; empty where it lies in it.
[[nodiscard]] inline std::string wrong_with(tensor_box const& box,
                                            std::vector<std::int64_t> const& whole) {
  if (box.first.size() != whole.size() || box.shape.size() != whole.size())
    return "has not as many axes as the whole of it";
  for (std::size_t axis = 0; axis < whole.size(); ++axis)
    if (box.first[axis] < 0 || box.shape[axis] < 0 ||
        box.shape[axis] > whole[axis] - box.first[axis])
      return "goes beyond the whole of it on axis " + std::to_string(axis);
  return {};
}

[[nodiscard]] inline std::int64_t numbers_of(tensor_box const& box) noexcept {
  std::int64_t count = 1;
  for (std::int64_t const extent : box.shape)
    count *= extent;
  return count;
}

//! The common part of two boxes of one tensor; an extent is zero where they miss each other.
[[nodiscard]] inline tensor_box common_of(tensor_box const& a, tensor_box const& b) {
  tensor_box common = a;
  for (std::size_t axis = 0; axis < a.shape.size(); ++axis) {
    common.first[axis] = std::max(a.first[axis], b.first[axis]);
    std::int64_t const end = std::min(a.first[axis] + a.shape[axis], b.first[axis] + b.shape[axis]);
    common.shape[axis] = std::max(end - common.first[axis], std::int64_t{0});
  }
  return common;
}

//! Where a number of the tensor lies in a box [numbers].
//! @param at [axes] in the tensor; inside the box.
[[nodiscard]] inline std::int64_t offset_in(tensor_box const& box,
                                            std::vector<std::int64_t> const& at) noexcept {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < at.size(); ++axis)
    offset = offset * box.shape[axis] + at[axis] - box.first[axis];
  return offset;
}

//! Copies the common part of two boxes of one tensor.
//! @param width [bytes] of a number. @param source, target all bytes of `from` and of `to`.
//! @complexity O(bytes copied), in one piece for each row that they have in common.
inline void copy_common(tensor_box const& from,
                        std::span<std::byte const> source,
                        tensor_box const& to,
                        std::span<std::byte> target,
                        std::int64_t width) {
  tensor_box const common = common_of(from, to);
  if (numbers_of(common) == 0)
    return;
  std::size_t const axes = common.shape.size();
  auto const row = static_cast<std::size_t>(width * (axes == 0 ? 1 : common.shape.back()));
  std::vector<std::int64_t> at = common.first;
  for (bool more = true; more;) {
    std::memcpy(
      target.data() + width * offset_in(to, at), source.data() + width * offset_in(from, at), row);
    more = false;
    for (std::size_t axis = axes - (axes == 0 ? 0 : 1); axis-- > 0 && !more;) {
      more = ++at[axis] < common.first[axis] + common.shape[axis];
      if (!more)
        at[axis] = common.first[axis];
    }
  }
}

//! Tables for eight bytes at once: `[k][byte]` is the sum of that byte with k zeros after it.
using crc_tables = std::array<std::array<std::uint32_t, 256>, 8>;

[[nodiscard]] constexpr crc_tables make_crc_tables() noexcept {
  crc_tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit)
      sum = (sum & 1) != 0 ? sum >> 1 ^ 0xedb88320U : sum >> 1;
    tables[0][byte] = sum;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::uint32_t const before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  return tables;
}

//! CRC-32 of some bytes, as zlib, gzip and PNG have it: it finds every error within 32 bits in a
//! row, and `zlib.crc32` of Python's library computes the same.
//! @source ISO 3309, polynomial 0x04C11DB7 with the lowest bit first
[[nodiscard]] inline std::uint32_t crc32_of(std::string_view bytes) noexcept {
  static constexpr crc_tables tables = make_crc_tables();
  std::uint32_t sum = 0xffffffffU;
  auto const byte = [&](std::size_t at) -> std::uint32_t {
    return static_cast<unsigned char>(bytes[at]);
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint32_t const low =
      sum ^ (byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24);
    sum = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^
          tables[4][low >> 24] ^ tables[3][byte(at + 4)] ^ tables[2][byte(at + 5)] ^
          tables[1][byte(at + 6)] ^ tables[0][byte(at + 7)];
  }
  for (; at < bytes.size(); ++at)
    sum = sum >> 8 ^ tables[0][(sum ^ byte(at)) & 0xff];
  return ~sum;
}

//! A checksum as eight hexadecimal digits.
[[nodiscard]] inline std::string checksum_text(std::uint32_t sum) {
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4)
    text += "0123456789abcdef"[sum >> shift & 0xf];
  return text;
}

//! The index of a file of tensors: the file's size and checksums.
struct tensor_index {
  std::string file{};                        //!< its name, without a folder
  std::int64_t bytes = 0;                    //!< of all tensors in it
  std::string head_sum{};                    //!< checksum of all bytes before its numbers
  std::map<std::string, std::string> sums{}; //!< of the numbers of each tensor

  friend bool operator==(tensor_index const&, tensor_index const&) = default;
};

//! The text before the checksum of an index. The checksum is of all bytes up to here.
inline constexpr std::string_view before_index_sum = ",\n\"checksum\":";

//! An index as text: `metadata` and `weight_map` as in the indices of Hugging Face's library, and
//! checksums.
[[nodiscard]] inline std::string index_text(tensor_index const& index) {
  std::string text = "{\"metadata\":{\"total_size\":" + std::to_string(index.bytes) +
                     ",\"file\":" + json_text(index.file) +
                     ",\"head_checksum\":" + json_text(index.head_sum) + "},\n\"weight_map\":{";
  std::string sums;
  for (auto const& [name, sum] : index.sums) {
    char const* const between = sums.empty() ? "\n" : ",\n";
    text.append(between).append(json_text(name) + ':' + json_text(index.file));
    sums.append(between).append(json_text(name) + ':' + json_text(sum));
  }
  text.append("},\n\"checksums\":{").append(sums);
  text.append("}").append(before_index_sum);
  return text + json_text(checksum_text(crc32_of(text))) + "}\n";
}

//! Reads a text of `index_text`, and nothing else.
//! @throws std::runtime_error where it is torn or changed.
[[nodiscard]] inline tensor_index read_index(std::string_view text) {
  tensor_index index;
  json_cursor<std::runtime_error> at(text);
  at.object([&](std::string const& part) {
    if (part == "checksum")
      (void)at.text();
    else
      at.object([&](std::string const& name) {
        if (part == "checksums")
          index.sums.emplace(name, at.text());
        else if (part == "metadata" && name == "total_size")
          index.bytes = at.number();
        else if (part == "metadata" && name == "file")
          index.file = at.text();
        else if (part == "metadata" && name == "head_checksum")
          index.head_sum = at.text();
        else
          (void)at.text();
      });
  });
  at.end();
  // All that was not looked at, and its checksum, must be as it is written.
  if (index_text(index) != text)
    at.fail("it is not as it was written: its checksum is of another text");
  return index;
}

} // namespace pipelining::inline v0_3::detail
