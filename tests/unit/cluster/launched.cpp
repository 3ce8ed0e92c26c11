// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One process of a launched run, which uses no MPI: it finds the others as programs over NCCL do,
// says who it is, and leaves; or says in one sentence why it cannot.
#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/store.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>

namespace pp = pipelining;

int main() {
  try {
    pp::launch_environment const here = pp::read_launch_environment();
    pp::store_address const address = pp::store_address_of(here);
    std::optional<pp::store_server> server;
    if (here.rank == 0)
      server.emplace(address);
    auto const patience = std::chrono::seconds(20);
    pp::store line(address, here.rank, patience);
    line.barrier("met", here.size, patience);
    std::printf("rank %d of %d, number %d on its machine, by %s, has met the others\n",
                here.rank,
                here.size,
                here.local_rank,
                here.launcher);
    std::fflush(stdout);
    line.barrier("said", here.size, patience);
    return 0;
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "launched: %s\n", failure.what());
    return 1;
  }
}
