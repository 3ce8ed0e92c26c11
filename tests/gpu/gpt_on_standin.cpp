// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The backends cuda and nccl of the GPT on the stand-in, where ranks are threads: WORLD_SIZE of
// them, or two. What the stand-in has found follows the report.
#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/store_server.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <examples/gpt/backend.hpp>
#include <examples/gpt/compiled_layers.hpp>
#include <examples/gpt/cuda/on_cuda.hpp>
#include <examples/gpt/cuda/on_nccl.hpp>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace pp = pipelining;

int with_findings(int status) {
  auto const found = standin::summary();
  std::fputs(found.c_str(), stderr);
  return found.empty() ? status : 1;
}

//! With less room for cuBLAS than a GPU wants: the stand-in fills all memory.
gpt::gpu_options options_here(std::vector<std::string_view> const& words, int ranks = 0) {
  auto chosen = gpt::read_gpu_options(words, ranks);
  chosen.workspace_bytes = 256;
  return chosen;
}

} // namespace

int gpt::run_on_cuda(std::vector<std::string_view> const& words) {
  standin::configure({.execution = standin::order::random, .seed = 2});
  return with_findings(train_on_cuda<standin::clock>(options_here(words)));
}

int gpt::run_on_nccl(std::vector<std::string_view> const& words) {
  char const* const size = std::getenv("WORLD_SIZE");
  int const ranks = size == nullptr ? 2 : std::atoi(size);
  auto const chosen = options_here(words, ranks);
  standin::configure({.execution = standin::order::random, .seed = 2});
  pp::store_server server{pp::store_address{}};
  std::vector<int> statuses(static_cast<std::size_t>(ranks), 1);
  auto const ended = standin::run_ranks(ranks, [&](int rank) {
    pp::launch_environment const here{
      .rank = rank, .size = ranks, .local_rank = rank, .port = server.port()};
    pp::store_address address;
    address.port = server.port();
    pp::basic_store<standin::clock> line(address, rank, chosen.deadline);
    statuses[static_cast<std::size_t>(rank)] = train_on_rank(chosen, here, line);
  });
  for (auto const& each : ended) {
    if (each.threw) {
      throw std::runtime_error(each.what);
    }
  }
  return with_findings(*std::max_element(statuses.begin(), statuses.end()));
}
