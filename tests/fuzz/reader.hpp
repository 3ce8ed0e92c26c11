// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the fuzzers share: readers by name, and what a refusal must look like.

#include <pipe/flow/quote.hpp>
#include <pipe/flow/quote.hpp>

#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <string_view>

namespace fuzz {

//! A reader. It takes any text, and ends the process where something is wrong.
struct reader {
  std::string_view name;
  void (*read)(std::string_view text);
};

//! The readers of this program.
std::span<reader const> readers();

//! Ends the process, which a fuzzer takes for a crash.
[[noreturn]] inline void fail(std::string const& what) {
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

inline void check(bool holds, std::string_view what) {
  if (!holds)
    fail(std::string(what));
}

//! Ends the process unless a terminal can show the text: UTF-8 without control characters.
inline void check_sentence(std::string_view text) {
  bool good = !text.empty() && text.size() < 8192 && pipelining::detail::is_utf8(text);
  for (char const letter : text)
    good = good && (static_cast<unsigned char>(letter) >= 0x20 || letter == '\n');
  if (!good)
    fail("this is no sentence: " + pipelining::detail::json_text(text));
}

//! Calls a reader. @return whether it takes what it reads; else it says why in a sentence.
//! All other exceptions end the process.
template <class Refusal, class Read>
bool takes(Read const& read) {
  try {
    read();
    return true;
  } catch (Refusal const& refusal) {
    check_sentence(refusal.what());
    return false;
  }
}

} // namespace fuzz
