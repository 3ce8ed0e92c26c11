// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// All ranks run all test cases, in the same order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <mpi.h>

#include <doctest/doctest.h>

int main(int count, char** words) {
  int provided = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &provided);
  doctest::Context context(count, words);
  int const status = context.run();
  int worst = status;
  MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}
