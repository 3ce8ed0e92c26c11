// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "../gpt/backend.hpp"
#include "../support/split_words.hpp"
#include "../support/termination.hpp"

int main(int count, char** words) {
  example::report_files_beyond_limits();
  return gpt::run_on_mpi(examples::split_words(count, words));
}
