// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/mpi/mpi.hpp>

#include <mpi.h>

int main() {
  int initialized = 1;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized == 0 &&
             sizeof(pipelining::mpi_store) > 0
           ? 0
           : 1;
}
