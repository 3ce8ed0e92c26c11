// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layouts of stages in the letters of Megatron-Core. Header for pipelining::read_layout and
//! write_layout.

#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {
namespace detail {

//! A layout while it is read: its letters and bars without repetitions.
class layout_reader {
public:
  explicit layout_reader(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] != ',')
        left_.push_back({text[i], i});
  }

  [[nodiscard]] std::vector<std::string> read() {
    while (at_ < left_.size())
      read_one();
    std::vector<std::string> stages(1);
    bool output = false;
    bool begun = false; // the layers after those of the encoder
    for (auto const& [letter, place] : all_) {
      if (letter == '|') {
        stages.emplace_back();
        continue;
      }
      output = output || letter == 'L';
      begun = begun || (letter != 'E' && letter != 'e');
      if ((letter == 'E' && &letter != &all_.front().first) || (output && letter != 'L') ||
          (begun && letter == 'e'))
        refuse(place,
               std::string("'") + letter + "' stands too late; E is the first part, " +
                 (letter == 'e' ? "an encoder's e come next" : "L the last"));
      stages.back() += letter;
    }
    return stages;
  }

private:
  static constexpr std::string_view letters = "EetmL";
  static constexpr std::size_t most = 1 << 16;

  [[noreturn]] static void refuse(std::size_t place, std::string const& why) {
    throw std::invalid_argument("layout, character " + std::to_string(place + 1) + ": " + why);
  }
  [[nodiscard]] bool next_is(char what) const {
    return at_ < left_.size() && left_[at_].first == what;
  }
  //! A letter, a bar or a pair of parentheses, as often as a number after it says.
  void read_one() {
    std::size_t const begin = all_.size();
    auto const [what, place] = left_[at_++];
    if (what == '(') {
      while (!next_is(')')) {
        if (at_ == left_.size() || next_is('('))
          refuse(place, "this parenthesis is not closed before the next one, or at all");
        read_one();
      }
      ++at_;
      if (all_.size() == begin)
        refuse(place, "there is nothing between the parentheses");
      if (!next_is('*'))
        refuse(place, "say after the parentheses how often it stands there: (tt|)*4");
    } else if (what == '|' || letters.find(what) != letters.npos) {
      if (all_.size() == most)
        refuse(place, "a layout has at most " + std::to_string(most) + " letters and bars");
      all_.push_back({what, place});
    } else {
      refuse(place,
             "E, e, t, m, L, a bar, parentheses and *N after one of them are known, not '" +
               printable({&what, 1}) + "'");
    }
    if (next_is('*'))
      repeat(begin);
  }
  void repeat(std::size_t begin) {
    std::size_t const place = left_[at_++].second;
    std::string digits;
    for (; at_ < left_.size() && left_[at_].first >= '0' && left_[at_].first <= '9'; ++at_)
      digits += left_[at_].first;
    std::size_t times = 0;
    auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), times);
    std::size_t const length = all_.size() - begin;
    if (error != std::errc() || times == 0 || times > most || begin + times * length > most)
      refuse(place,
             "a number from 1 must follow, for at most " + std::to_string(most) +
               " letters and bars in all");
    for (std::size_t i = length; i < times * length; ++i)
      all_.push_back(all_[begin + i % length]);
  }

  std::vector<std::pair<char, std::size_t>> left_; //!< characters and their places
  std::vector<std::pair<char, std::size_t>> all_;
  std::size_t at_ = 0;
};

//! The letters of a stage: "ttL", "t*4".
[[nodiscard]] inline std::string short_letters(std::string_view stage) {
  std::string out;
  for (std::size_t i = 0, next = 0; i < stage.size(); i = next) {
    next = std::min(stage.find_first_not_of(stage[i], i), stage.size());
    out +=
      next - i > 2 ? stage[i] + ("*" + std::to_string(next - i)) : std::string(next - i, stage[i]);
  }
  return out;
}

} // namespace detail

//! @brief The parts of every stage of a Megatron layout, as `--pipeline-model-parallel-layout` has
//! them: "Et*3|(tt|)*29,m|L".
//!
//! E is the embedding, t a layer, m a module for further tokens (MTP), L an output layer with its
//! loss; a bar ends a stage, which may be empty. E stands once and first, L after all others. `x*N`
//! and `(...)*N` stand for repetitions, commas for nothing. Megatron-LM has no letter for a layer
//! of an encoder: here it is e, after E and before all others.
//! @return [S] the letters of each stage, without repetitions
//! @throws std::invalid_argument with one sentence that names the character
[[nodiscard]] inline std::vector<std::string> read_layout(std::string_view text) {
  return detail::layout_reader(text).read();
}

//! @brief The layout of stages with these letters, with repetitions where they make it shorter.
//! `read_layout` gives the same stages.
//! @complexity O(S) for S stages
[[nodiscard]] inline std::string write_layout(std::span<std::string const> stages) {
  std::vector<std::string> pieces;
  for (std::string const& each : stages)
    pieces.push_back(detail::short_letters(each) + "|");
  pieces.back().pop_back(); // no bar after the last stage
  std::string out;
  for (std::size_t at = 0; at < pieces.size();) {
    std::size_t best = 1;
    std::size_t times = 1;
    std::size_t saved = 0;
    constexpr std::size_t longest = 8; // stages that are repeated together
    std::string unit;
    for (std::size_t length = 1; length <= longest && at + 2 * length <= pieces.size(); ++length) {
      unit += pieces[at + length - 1];
      std::size_t same = length;
      while (at + same < pieces.size() && pieces[at + same] == pieces[at + same - length])
        ++same;
      std::size_t const count = same / length;
      std::size_t const written = unit.size() + 3 + std::to_string(count).size();
      if (count * unit.size() > written + saved) {
        saved = count * unit.size() - written;
        best = length;
        times = count;
      }
    }
    unit.clear();
    for (std::size_t i = 0; i < best; ++i)
      unit += pieces[at + i];
    out += times > 1 ? "(" + unit + ")*" + std::to_string(times) : unit;
    at += best * times;
  }
  return out;
}

} // namespace pipelining::inline v0_3
