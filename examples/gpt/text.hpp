// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The text to learn: loading it, its unigram entropy, and batches of random pieces of it.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "tools/support/file_doors.hpp"

namespace gpt {

//! The bytes of a file.
//! @throws std::runtime_error where it cannot be read
[[nodiscard]] inline std::vector<std::uint8_t> load_text(std::string const& path) {
  auto const refuse = [&path](std::string const& reason) {
    throw std::runtime_error("cannot read any text from " + path + ": " + reason);
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    refuse("it is a folder");
  auto const text = example::bytes_of_file(
    path, std::size_t{64} << 20, "it has more than 64 MiB; a piece of it will do", refuse);
  if (text.empty())
    refuse("it is empty");
  return {text.begin(), text.end()};
}

struct text_to_learn {
  std::string path;
  std::vector<std::uint8_t> bytes;
};

//! The text of that path, or of the first file that exists: a licence that every Debian machine
//! has, or the repository's README.
//! @param readme where that is
//! @throws std::runtime_error where there is none
[[nodiscard]] inline text_to_learn find_text(std::string const& path, std::string const& readme) {
  for (auto const& candidate : {path, std::string("/usr/share/common-licenses/GPL-3"), readme})
    if (!path.empty() || std::filesystem::is_regular_file(candidate))
      return {candidate, load_text(candidate)};
  throw std::runtime_error("no default text on this machine; name one with --text FILE");
}

//! Mean surprise of a byte, in nats, to someone who knows only how often each byte occurs. A model
//! whose loss is below has learnt something about order.
[[nodiscard]] inline double unigram_entropy(std::vector<std::uint8_t> const& text) {
  std::array<double, 256> counts{};
  for (auto const byte : text)
    counts[byte] += 1;
  double entropy = 0;
  for (double const count : counts) {
    double const share = count / static_cast<double>(text.size());
    entropy -= count > 0 ? share * std::log(share) : 0;
  }
  return entropy;
}

//! The microbatches of one step: one sequence each, with the byte that follows it.
struct batch {
  std::int64_t sequence = 0;
  std::vector<std::uint8_t> bytes; //!< [microbatches, sequence + 1]
};

//! The microbatches of one replica, of `count` each.
[[nodiscard]] inline batch share_of(batch const& all, std::int64_t replica, std::int64_t count) {
  auto const length = static_cast<std::ptrdiff_t>(count * (all.sequence + 1));
  auto const from = all.bytes.begin() + replica * length;
  return {all.sequence, {from, from + length}};
}

//! Random pieces of the text.
//! @throws std::invalid_argument where the text is shorter than one piece
[[nodiscard]] inline batch random_batch(std::vector<std::uint8_t> const& text,
                                        std::int64_t microbatches,
                                        std::int64_t sequence,
                                        std::mt19937_64& random) {
  auto const size = static_cast<std::int64_t>(text.size());
  if (size < sequence + 1) {
    throw std::invalid_argument("the text has " + std::to_string(size) +
                                " bytes, but one sequence and the byte after it need " +
                                std::to_string(sequence + 1));
  }
  batch pieces{sequence, {}};
  for (std::int64_t m = 0; m < microbatches; ++m) {
    std::uniform_int_distribution<std::int64_t> start(0, size - sequence - 1);
    auto const from = text.begin() + start(random);
    pieces.bytes.insert(pieces.bytes.end(), from, from + sequence + 1);
  }
  return pieces;
}

} // namespace gpt
