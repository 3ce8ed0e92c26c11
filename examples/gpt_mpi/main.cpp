// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "../gpt/backend.hpp"
#include "../support/split_words.hpp"

int main(int count, char** words) {
  return gpt::run_on_mpi(examples::split_words(count, words));
}
