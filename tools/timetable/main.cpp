// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints the timetable of a schedule as text, picture, page or file. `timetable --help` says how.
#include "verbs.hpp"

int main(int count, char** words) {
  return examples::timetable({words + (count > 0 ? 1 : 0), words + count});
}
