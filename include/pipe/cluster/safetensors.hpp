// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The header of a safetensors file, written and read strictly. Header for
//! pipelining::detail::safetensors_header.

#include <pipe/flow/json_cursor.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/plan/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief One tensor of a safetensors file.
struct safetensor {
  std::string name{};
  std::string dtype{};               //!< as the format calls it: "F32", "BF16", "U8"
  std::vector<std::int64_t> shape{}; //!< empty: one number
  std::int64_t begin = 0;            //!< [bytes] of its numbers, from the end of the header on
  std::int64_t end = 0;              //!< [bytes] likewise, one beyond the last

  friend bool operator==(safetensor const&, safetensor const&) = default;
};

//! @brief The header of a safetensors file, which stands before the numbers.
struct safetensors_header {
  std::vector<safetensor> tensors{};             //!< in the order of their numbers
  std::map<std::string, std::string> metadata{}; //!< the texts under `__metadata__`
  std::int64_t bytes = 0;                        //!< where the numbers begin in the file

  friend bool operator==(safetensors_header const&, safetensors_header const&) = default;
};

//! The format's limit of the JSON text [bytes].
inline constexpr std::int64_t largest_safetensors_header = 100'000'000;

//! Bytes of a tensor; nothing where they are more than a file can have.
//! @pre no extent is negative.
[[nodiscard]] inline std::optional<std::int64_t>
bytes_of_tensor(std::string_view dtype, std::vector<std::int64_t> const& shape) noexcept {
  std::int64_t count = bytes_of_dtype(dtype);
  for (std::int64_t const extent : shape) {
    if (extent != 0 && count > std::numeric_limits<std::int64_t>::max() / extent)
      return std::nullopt;
    count *= extent;
  }
  return count;
}

//! One tensor of the header; its members come in any order.
[[nodiscard]] inline safetensor read_safetensor(json_cursor<std::runtime_error>& at,
                                                std::string const& name) {
  safetensor tensor{.name = name};
  std::vector<std::int64_t> offsets;
  int members = 0;
  at.object([&](std::string const& member) {
    ++members;
    if (member == "dtype")
      tensor.dtype = at.text();
    else if (member == "shape")
      at.list([&] { tensor.shape.push_back(at.number()); });
    else if (member == "data_offsets")
      at.list([&] { offsets.push_back(at.number()); });
    else
      at.fail("tensor " + json_text(name) + " has an unknown member " + json_text(member));
  });
  if (members != 3)
    at.fail("tensor " + json_text(name) + " wants dtype, shape and data_offsets");
  if (offsets.size() != 2)
    at.fail("tensor " + json_text(name) + " wants two data_offsets");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  return tensor;
}

//! Holds the tensors, in the order of their numbers, against the bytes that the file has for them.
//! @return what is wrong; an empty text where nothing is.
[[nodiscard]] inline std::string wrong_with(std::vector<safetensor> const& tensors,
                                            std::int64_t data_bytes) {
  std::int64_t behind = 0;
  for (safetensor const& each : tensors) {
    std::string const who = "tensor " + json_text(each.name);
    if (bytes_of_dtype(each.dtype) == 0)
      return who + " has the unknown dtype " + json_text(each.dtype);
    if (each.end < each.begin)
      return who + " ends before it begins";
    auto const bytes = bytes_of_tensor(each.dtype, each.shape);
    if (!bytes || *bytes != each.end - each.begin)
      return who + " has " + std::to_string(each.end - each.begin) + " bytes, but its shape " +
             list_of(each.shape) + " of " + each.dtype + " has " +
             (bytes ? std::to_string(*bytes) : "more than a file can have");
    if (each.begin != behind)
      return who + " begins at byte " + std::to_string(each.begin) + ", but the one before it " +
             (each.begin < behind ? "overlaps it and ends at " : "leaves a gap and ends at ") +
             std::to_string(behind);
    behind = each.end;
  }
  if (behind != data_bytes)
    return "its tensors have " + std::to_string(behind) + " bytes, but the file has " +
           std::to_string(data_bytes) + " for them";
  return {};
}

//! The length before the JSON text, eight bytes, the lowest first.
[[nodiscard]] inline std::uint64_t length_before_json(std::string_view bytes) noexcept {
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  return length;
}

//! @brief Lays tensors out after each other: wide numbers first, so that all are aligned, and
//! tensors of one width by name. Sets `begin` and `end`.
//! @throws std::invalid_argument for an unknown dtype, a negative extent, a name that stands twice,
//! is `__metadata__` or not UTF-8, and more bytes than a file can have.
//! @source the order of the safetensors library, https://github.com/huggingface/safetensors
inline void lay_out(std::vector<safetensor>& tensors) {
  auto const refuse = [](std::string const& name, std::string const& what) {
    throw std::invalid_argument("safetensors: tensor " + json_text(name) + ' ' + what);
  };
  std::sort(tensors.begin(), tensors.end(), [](safetensor const& a, safetensor const& b) {
    int const one = bytes_of_dtype(a.dtype);
    int const other = bytes_of_dtype(b.dtype);
    return one != other ? one > other : a.name < b.name;
  });
  std::map<std::string_view, int> names{{"__metadata__", 1}};
  std::int64_t behind = 0;
  for (safetensor& each : tensors) {
    if (bytes_of_dtype(each.dtype) == 0)
      refuse(each.name, "has the unknown dtype " + json_text(each.dtype));
    if (!is_utf8(each.name))
      refuse(each.name, "has a name that is not UTF-8");
    if (names[each.name]++ != 0)
      refuse(each.name, "has a name that is taken");
    if (std::any_of(each.shape.begin(), each.shape.end(), [](std::int64_t e) { return e < 0; }))
      refuse(each.name, "has a negative extent");
    auto const bytes = bytes_of_tensor(each.dtype, each.shape);
    if (!bytes || *bytes > std::numeric_limits<std::int64_t>::max() - behind)
      refuse(each.name, "has more bytes than a file can have");
    each.begin = behind;
    behind = each.end = behind + *bytes;
  }
}

//! @brief The bytes before the numbers: eight of the length, and the JSON text, filled up with
//! blanks to a multiple of eight.
//! @pre tensors as `lay_out` leaves them.
//! @throws std::invalid_argument where the text is over the format's limit of 100,000,000 bytes.
[[nodiscard]] inline std::string
safetensors_head(std::vector<safetensor> const& tensors,
                 std::map<std::string, std::string> const& metadata = {}) {
  std::string json = "{";
  if (!metadata.empty()) {
    for (auto const& [key, value] : metadata)
      json.append(json.size() == 1 ? "\"__metadata__\":{" : ",")
        .append(json_text(key) + ':' + json_text(value));
    json += '}';
  }
  for (safetensor const& each : tensors)
    json.append(json.size() == 1 ? "" : ",")
      .append(json_text(each.name))
      .append(":{\"dtype\":" + json_text(each.dtype))
      .append(",\"shape\":" + list_of(each.shape))
      .append(",\"data_offsets\":" + list_of({each.begin, each.end}) + '}');
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (static_cast<std::int64_t>(json.size()) > largest_safetensors_header)
    throw std::invalid_argument("safetensors: a header of " + std::to_string(json.size()) +
                                " bytes is over the limit of the format, 100000000");
  std::string head;
  for (std::uint64_t length = json.size(), i = 0; i < 8; ++i, length >>= 8)
    head += static_cast<char>(length & 0xff);
  return head + json;
}

//! @brief The number of bytes that `read_safetensors_head` wants of a file.
//! @param file names it in errors. @param first its first eight bytes; fewer where it is shorter.
//! @param file_bytes [bytes] its size.
//! @throws std::runtime_error where the length that stands there cannot be that of a header.
[[nodiscard]] inline std::int64_t
safetensors_head_bytes(std::string const& file, std::string_view first, std::int64_t file_bytes) {
  if (first.size() < 8 || file_bytes < 8)
    throw std::runtime_error(file + ": the file is too short to have the length of a header");
  std::uint64_t const length = length_before_json(first);
  if (length > static_cast<std::uint64_t>(largest_safetensors_header))
    throw std::runtime_error(file + ": a header of " + std::to_string(length) +
                             " bytes is over the limit of the format, 100000000");
  if (length > static_cast<std::uint64_t>(file_bytes - 8))
    throw std::runtime_error(file + ": the header has " + std::to_string(length) +
                             " bytes, but the file ends after " + std::to_string(file_bytes - 8));
  return 8 + static_cast<std::int64_t>(length);
}

//! @brief Reads the header of a safetensors file.
//! @param file names it in errors. @param head its first bytes, `safetensors_head_bytes` of them.
//! @param file_bytes [bytes] its size.
//! @throws std::runtime_error with the file, the tensor and what is wrong: no JSON, a member that
//! is unknown, missing or stands twice, an unknown dtype, bytes that the shape does not have,
//! numbers that overlap, leave a gap, or end elsewhere than the file.
//! @source the format, https://github.com/huggingface/safetensors
[[nodiscard]] inline safetensors_header
read_safetensors_head(std::string const& file, std::string_view head, std::int64_t file_bytes) {
  safetensors_header found{.bytes = safetensors_head_bytes(file, head.substr(0, 8), file_bytes)};
  if (static_cast<std::int64_t>(head.size()) < found.bytes)
    throw std::runtime_error(file + ": the header ends early");
  head = head.substr(8, static_cast<std::size_t>(found.bytes - 8));
  if (!head.starts_with('{'))
    throw std::runtime_error(file + ": the header does not begin with '{'");
  std::string const before = file + ": the header is not as the format asks: ";
  json_cursor<std::runtime_error> at(head, before);
  at.object([&](std::string const& name) {
    if (name == "__metadata__")
      at.object([&](std::string const& key) { found.metadata.emplace(key, at.text()); });
    else
      found.tensors.push_back(detail::read_safetensor(at, name));
  });
  at.end();
  std::sort(
    found.tensors.begin(), found.tensors.end(), [](safetensor const& a, safetensor const& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
  if (std::string const wrong = wrong_with(found.tensors, file_bytes - found.bytes); !wrong.empty())
    throw std::runtime_error(file + ": " + wrong);
  return found;
}

} // namespace pipelining::inline v0_3::detail
