// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main of tests that need a GPU. Without one they end with 77, so that nobody takes them for
// passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <tests/gpu/machine.hpp>

namespace {

constexpr int skipped = 77;
bool something_skipped = false;

} // namespace

void machine::skip(std::string const& sentence) {
  std::printf("skipped: %s\n", sentence.c_str());
  something_skipped = true;
}

int main(int count, char** words) {
  if (std::string const why = machine::obstacle(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return skipped;
  }
  int const code = doctest::Context(count, words).run();
  return code == 0 && something_skipped ? skipped : code;
}
