// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "../backend.hpp"
#include "tools/support/split_words.hpp"
#include "tools/support/termination.hpp"

int main(int count, char** words) {
  example::report_files_beyond_limits();
  return gpt::run_on_mpi(examples::split_words(count, words));
}
