// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mutate.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace fuzz {
namespace {

using pieces = std::vector<std::string>;

constexpr std::array<std::string_view, 36> extremes = {"0",
                                                       "-0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "0.5",
                                                       "3",
                                                       "7",
                                                       "255",
                                                       "1024",
                                                       "32767",
                                                       "32768",
                                                       "65534",
                                                       "65535",
                                                       "65536",
                                                       "16777216",
                                                       "16777217",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967295",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "1e308",
                                                       "-1e308",
                                                       "1e-290",
                                                       "1e290",
                                                       "1e400",
                                                       "1e-12",
                                                       "1e-13",
                                                       "1e12",
                                                       "1e13",
                                                       "nan",
                                                       "inf",
                                                       "4503599627370497"};

bool is_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '.' ||
         letter == '-';
}

//! Texts in quotes, words and numbers, and all other characters by themselves.
pieces split(std::string_view text) {
  pieces result;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    end = at + 1;
    if (text[at] == '"') {
      end = std::min(text.find('"', at + 1), text.size() - 1) + 1;
    } else if (is_word(text[at])) {
      while (end < text.size() && is_word(text[end]))
        ++end;
    }
    result.emplace_back(text.substr(at, end - at));
  }
  return result;
}

//! The text at which a list of pieces is damaged, and chance.
class damage {
public:
  damage(std::string_view text, unsigned seed) : all_(split(text)), chance_(seed + 1) {}

  std::string after(int damages) {
    for (; damages > 0; --damages)
      one();
    std::string text;
    for (std::string const& piece : all_)
      text += piece;
    return text;
  }
  std::size_t below(std::size_t count) { return (chance_() >> 4U) % count; }

private:
  //! A piece that is a word, or any.
  std::size_t any_word() {
    std::size_t const begin = below(all_.size());
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (std::size_t const at = (begin + i) % all_.size();
          is_word(all_[at].front()) || all_[at].size() > 1)
        return at;
    return begin;
  }
  //! Digits in a word, replaced by an extreme or a small number.
  void renumber(std::string& word) {
    std::size_t begin = std::min(word.find_first_of("0123456789"), word.size());
    if (below(2) == 0) // the last ones
      for (begin = word.size();
           begin > 0 && std::isdigit(static_cast<unsigned char>(word[begin - 1])) != 0;)
        --begin;
    std::size_t const end = std::min(word.find_first_not_of("0123456789", begin), word.size());
    std::string const number =
      below(2) == 0 ? std::to_string(below(6)) : std::string(extremes[below(extremes.size())]);
    word.replace(begin, end - begin, number);
  }
  //! The letters of a word, replaced by those of another one.
  static void reletter(std::string& word, std::string const& other) {
    auto const letters = [](std::string const& of) {
      std::size_t const begin = std::min(of.find_first_not_of("0123456789"), of.size());
      return std::pair{begin, of.find_last_not_of("0123456789") + 1 - begin};
    };
    auto const [begin, count] = letters(word);
    auto const [from, length] = letters(other);
    if (begin < word.size() && from < other.size())
      word.replace(begin, count, other.substr(from, length));
  }
  //! One beyond the last piece of a line, or of a few pieces.
  std::size_t end_of(std::size_t begin) {
    if (below(2) == 0)
      return std::min(begin + 1 + below(6), all_.size());
    auto const line =
      std::find(all_.begin() + static_cast<std::ptrdiff_t>(begin), all_.end(), "\n");
    return std::min(static_cast<std::size_t>(line - all_.begin()) + 1, all_.size());
  }
  void one() {
    if (all_.empty()) {
      all_.emplace_back(extremes[below(extremes.size())]);
      return;
    }
    std::size_t const at = any_word();
    std::size_t const other = any_word();
    auto const place = all_.begin() + static_cast<std::ptrdiff_t>(at);
    auto const end = all_.begin() + static_cast<std::ptrdiff_t>(end_of(at));
    switch (below(10)) {
    case 0: std::swap(all_[at], all_[other]); return;
    case 1: all_[at] = std::string(all_[other]); return;
    case 2: [[fallthrough]];
    case 3: renumber(all_[at]); return;
    case 4: reletter(all_[at], all_[other]); return;
    case 5: all_.erase(place, end); return;
    case 6: { // a part stands twice
      pieces const part(place, end);
      all_.insert(end, part.begin(), part.end());
      return;
    }
    case 7: { // a part stands elsewhere as well
      pieces const part(place, end);
      all_.insert(all_.begin() + static_cast<std::ptrdiff_t>(below(all_.size() + 1)),
                  part.begin(),
                  part.end());
      return;
    }
    case 8: { // a character that is no word
      std::size_t const any = below(all_.size());
      all_[any] = std::string(1, "{}[]()\",:;|\n*=/\\ -#\t\x1b\xff"[below(22)]);
      return;
    }
    default: all_[at].insert(below(all_[at].size() + 1), 1, "0123456789eE.-FBIWtmL"[below(21)]);
    }
  }

  pieces all_;
  std::minstd_rand chance_;
};

} // namespace

std::string mutate(std::string_view text, unsigned seed) {
  damage done(text, seed);
  return done.after(1 + static_cast<int>(done.below(3)));
}

} // namespace fuzz
