// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "on_nccl.hpp"

#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/store_server.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "../backend.hpp"
#include "../compiled_layers.hpp"

int gpt::run_on_nccl(std::vector<std::string_view> const& words) {
  int rank = 0;
  try {
    auto const here = pp::read_launch_environment();
    rank = here.rank;
    auto const chosen = read_gpu_options(words, here.size);
    if (auto const status = ends_at_once(chosen.common, rank == 0))
      return *status;
    example::keep_termination_for_later();
    // Ranks find each other through a small server in rank 0. It tells all of them what has failed.
    auto const address = pp::store_address_of(here);
    std::optional<pp::store_server> server;
    if (rank == 0)
      server.emplace(address);
    pp::store line(address, rank, chosen.deadline);
    return train_on_rank(chosen, here, line);
  } catch (std::invalid_argument const&) {
    throw;
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "gpt, rank %d: %s\n", rank, failure.what());
    std::fflush(stderr);
    std::_Exit(1); // destructors could wait for what never ends
  }
}
