// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sums over the shards of a stage, its copies or its replicas, or over all of a pipeline,
//! on GPUs of their own by NCCL.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cuda/nccl.cuh>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "gpu_stage.hpp"

namespace gpt {

//! The communicator of a group of ranks. A run that fails has aborted it, so that only `close` ends
//! it.
class rank_sums {
public:
  //! Collective among the ranks of the group; of one alone there is nothing to add up.
  //! @pre the GPU of this rank is current
  //! @param name of the start, new for each
  template <class Clock>
  rank_sums(pp::rank_group const& group,
            pp::basic_store<Clock>& line,
            std::string const& name,
            std::chrono::nanoseconds deadline) {
    if (group.ranks.size() == 1)
      return;
    std::string const key = name + '/' + group.name;
    ncclUniqueId id{};
    if (group.index == 0) {
      pp::cuda::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      line.set(key, std::string(id.internal, sizeof id.internal));
    } else {
      std::string const text = line.get(key, deadline);
      std::copy_n(text.begin(), std::min(text.size(), sizeof id.internal), id.internal);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = most_blocks;
    auto const ranks = static_cast<int>(group.ranks.size());
    pp::cuda::check(ncclCommInitRankConfig(&communicator_, ranks, id, group.index, &config),
                    "ncclCommInitRankConfig");
  }
  rank_sums(rank_sums const&) = delete;
  rank_sums& operator=(rank_sums const&) = delete;

  [[nodiscard]] bool has_others() const { return communicator_ != nullptr; }
  //! Adds numbers up over the group, as work of a stream. @pre has_others()
  template <class Number>
  void add_up(Number* numbers, std::int64_t count, cudaStream_t stream) const {
    static_assert(std::is_same_v<Number, float> || std::is_same_v<Number, double>);
    constexpr auto type = std::is_same_v<Number, float> ? ncclFloat : ncclDouble;
    auto const size = static_cast<std::size_t>(count);
    pp::cuda::check(ncclAllReduce(numbers, numbers, size, type, ncclSum, communicator_, stream),
                    "ncclAllReduce");
  }
  //! The same as a function, which this must outlive; empty where there are no others.
  template <class Number = float>
  [[nodiscard]] sum_of<Number> function() const {
    if (!has_others())
      return {};
    return [this](Number* numbers, std::int64_t count, cudaStream_t stream) {
      add_up(numbers, count, stream);
    };
  }
  //! The weights of stages in pieces, of which each rank of the group has one. This must outlive
  //! it.
  //! @param number of this rank. @param of ranks
  [[nodiscard]] weight_group weights(int number, int of) const {
    weight_group all{.number = number, .of = of};
    if (has_others()) {
      all.gather = [this](void const* mine, void* to, std::int64_t bytes, cudaStream_t stream) {
        auto const size = static_cast<std::size_t>(bytes);
        pp::cuda::check(ncclAllGather(mine, to, size, ncclUint8, communicator_, stream),
                        "ncclAllGather");
      };
      all.scatter =
        [this](float const* from, float* mine, std::int64_t count, cudaStream_t stream) {
          auto const size = static_cast<std::size_t>(count);
          pp::cuda::check(
            ncclReduceScatter(from, mine, size, ncclFloat, ncclSum, communicator_, stream),
            "ncclReduceScatter");
        };
      all.sum = function();
    }
    return all;
  }
  //! What runners must know of: kernels of theirs wait next to those of this group.
  void tell(pp::cuda::nccl_options& over) const {
    if (has_others())
      over.communicators.push_back({communicator_, most_blocks});
  }
  void close() {
    if (has_others()) {
      pp::cuda::check(ncclCommDestroy(communicator_), "ncclCommDestroy");
      communicator_ = nullptr;
    }
  }

private:
  static constexpr int most_blocks = 4;

  ncclComm_t communicator_ = nullptr;
};

struct sums_of_rank {
  rank_sums shards;
  rank_sums copies;
  rank_sums replicas;
  rank_sums rows; //!< over its pipeline, with all shards

  void tell(pp::cuda::nccl_options& over) const {
    for (rank_sums const* const each : {&shards, &copies, &replicas, &rows})
      each->tell(over);
  }
  void close() {
    for (rank_sums* const each : {&shards, &copies, &replicas, &rows})
      each->close();
  }
};

} // namespace gpt
