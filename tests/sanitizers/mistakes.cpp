// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One deliberate mistake per argument, each of which one sanitizer must report.
#include <climits>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>

int main(int count, char** arguments) {
  std::string_view const mistake = count == 2 ? arguments[1] : "";
  if (mistake == "use_after_free") {
    auto owner = std::make_unique<int>(count);
    int volatile* const dangling = owner.get();
    owner.reset();
    return *dangling;
  }
  if (mistake == "leak") {
    int* volatile lost = new int{count};
    lost = nullptr;
    return lost == nullptr ? 0 : 1;
  }
  if (mistake == "signed_overflow") {
    int volatile largest = INT_MAX;
    return largest + count;
  }
  if (mistake == "data_race") {
    int shared = 0;
    std::thread other{[&shared] { shared = 1; }};
    shared = 2;
    other.join();
    return shared;
  }
  std::fprintf(stderr, "usage: %s use_after_free|leak|signed_overflow|data_race\n", arguments[0]);
  return 2;
}
