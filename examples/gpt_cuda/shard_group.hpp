// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The shards of a stage, each on a GPU of its own, and sums over them by NCCL.

#include <pipe/cuda/nccl.cuh>
#include <pipe/run/rank_layout.hpp>
#include <pipe/run/store.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu_run.hpp"

namespace gpt {

namespace pp = pipelining;

//! The communicator of the shards of one device of the pipeline. A run that fails has aborted it,
//! so that only `close` ends it.
class shard_group {
public:
  //! Collective among the shards. @pre the GPU of this rank is current
  //! @param group of the axis of shards. @param name of the start, new for each
  template <class Clock>
  shard_group(pp::rank_group const& group,
              pp::basic_store<Clock>& line,
              std::string const& name,
              std::chrono::nanoseconds deadline)
      : shard_{group.index, static_cast<std::int64_t>(group.ranks.size())} {
    if (shard_.of == 1) {
      return;
    }
    std::string const key = name + '/' + group.name;
    ncclUniqueId id{};
    if (shard_.number == 0) {
      pp::cuda::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      line.set(key, std::string(id.internal, sizeof id.internal));
    } else {
      std::string const text = line.get(key, deadline);
      std::copy_n(text.begin(), std::min(text.size(), sizeof id.internal), id.internal);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = most_blocks;
    pp::cuda::check(
      ncclCommInitRankConfig(
        &communicator_, static_cast<int>(shard_.of), id, static_cast<int>(shard_.number), &config),
      "ncclCommInitRankConfig");
  }
  shard_group(shard_group const&) = delete;
  shard_group& operator=(shard_group const&) = delete;

  //! @param how gets the shard and the sum
  void tell(gpu_run& how) const {
    how.shard = shard_;
    if (communicator_ != nullptr) {
      how.sum = [on = communicator_](float* numbers, std::int64_t count, cudaStream_t stream) {
        pp::cuda::check(
          ncclAllReduce(
            numbers, numbers, static_cast<std::size_t>(count), ncclFloat, ncclSum, on, stream),
          "ncclAllReduce");
      };
    }
  }
  //! What runners must know of: kernels of theirs wait beside those of this group.
  void tell(pp::cuda::nccl_ranks& over) const {
    if (communicator_ != nullptr) {
      over.communicators.push_back({communicator_, most_blocks});
    }
  }
  //! Collective, behind the ends of the runners.
  void close() {
    if (communicator_ != nullptr) {
      pp::cuda::check(ncclCommDestroy(communicator_), "ncclCommDestroy");
      communicator_ = nullptr;
    }
  }

private:
  static constexpr int most_blocks = 4;

  shard_of_stage shard_;
  ncclComm_t communicator_ = nullptr;
};

} // namespace gpt
