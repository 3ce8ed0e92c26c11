// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/safetensors.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/cluster/tensor_index.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/support/temporary_folder.hpp>
#include <vector>

#include "file_readers.hpp"
#include "reader.hpp"

namespace pp = pipelining;

namespace fuzz {
namespace {

constexpr std::int64_t step = 7;

//! A place in a folder of its own, in memory where the machine has such a one.
pp::checkpoint_place const& place() {
  static support::temporary_folder const folder("pipelining-fuzz");
  static pp::checkpoint_place const made{
    folder.path(), "rank-0", "model=x\nseed=1\n", {.devices = 1}};
  return made;
}

void write_file(std::string const& ending, std::string_view bytes) {
  std::ofstream(place().folder + "/rank-0.step-7" + ending, std::ios::binary | std::ios::trunc)
    << bytes;
}

//! Takes the part of an input before a mark.
std::string_view part_before(std::string_view& input, std::string_view mark) {
  std::size_t const end = std::min(input.find(mark), input.size());
  std::string_view const part = input.substr(0, end);
  input.remove_prefix(std::min(end + mark.size(), input.size()));
  return part;
}

//! The length of a header, and it.
std::string with_length(std::string_view json) {
  std::string head;
  for (std::uint64_t length = json.size(), i = 0; i < 8; ++i, length >>= 8)
    head += static_cast<char>(length & 0xff);
  return head.append(json);
}

//! An index that fits the file, where it has a header.
std::string fitting_index(std::string const& head, std::string_view numbers) {
  pp::detail::tensor_index index;
  index.file = "rank-0.step-7.safetensors";
  index.bytes = static_cast<std::int64_t>(numbers.size());
  index.head_sum = pp::detail::checksum_text(pp::detail::crc32_of(head));
  try {
    auto const file_bytes = static_cast<std::int64_t>(head.size() + numbers.size());
    for (auto const& each : pp::detail::read_safetensors_head("f", head, file_bytes).tensors)
      index.sums[each.name] = pp::detail::checksum_text(pp::detail::crc32_of(numbers.substr(
        static_cast<std::size_t>(each.begin), static_cast<std::size_t>(each.end - each.begin))));
  } catch (std::runtime_error const&) { // the reader says why
  }
  return pp::detail::index_text(index);
}

//! The header alone: what is read is written and read again.
void read_header(std::string const& head, std::int64_t file_bytes) {
  pp::detail::safetensors_header header;
  if (!takes<std::runtime_error>(
        [&] { header = pp::detail::read_safetensors_head("f", head, file_bytes); }))
    return;
  std::int64_t behind = 0;
  for (auto const& each : header.tensors) {
    check(each.begin == behind && each.end >= behind, "tensors overlap");
    behind = each.end;
  }
  check(header.bytes + behind == file_bytes, "tensors end elsewhere than their file");
  std::string const again = pp::detail::safetensors_head(header.tensors, header.metadata);
  auto const found =
    pp::detail::read_safetensors_head("f", again, static_cast<std::int64_t>(again.size()) + behind);
  check(found.tensors == header.tensors && found.metadata == header.metadata,
        "a header that was written is read as another one");
}

} // namespace

void read_tensor_files(std::string_view text) {
  bool const raw = part_before(text, "\n") != "sums";
  std::string const head = with_length(part_before(text, "---\n"));
  std::string_view const index = part_before(text, "---\n");
  read_header(head, static_cast<std::int64_t>(head.size() + text.size()));
  write_file(".safetensors", head + std::string(text));
  write_file(".index.json", raw ? std::string(index) : fitting_index(head, text));
  std::vector<float> wide(6, -1);
  std::vector<std::uint8_t> narrow(4, 9);
  std::vector<pp::state_tensor> wanted{pp::tensor_of("wide", wide, {2, 3}),
                                       pp::tensor_of("narrow", narrow)};
  wanted[1].whole = {8};
  wanted[1].first = {2};
  bool const good =
    takes<std::runtime_error>([&] { (void)pp::load_tensors(place(), step, wanted); });
  check(good || (wide == std::vector<float>(6, -1) && narrow == std::vector<std::uint8_t>(4, 9)),
        "numbers are overwritten by a file that is refused");
  (void)takes<std::runtime_error>([&] {
    check(pp::checkpoints_of(place(), wanted).empty() != good, "a step is whole and is not");
  });
}

} // namespace fuzz
