// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Adds up the parts of the shards of a stage, each of which is a rank.

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

#include "../all_reduce.hpp"
#include "patient_wait.hpp"

namespace gpt {

//! Sums over the ranks of a communicator, which make the same ones in the same order. A sum has two
//! ends, between which a rank does something else; at most two are under way.
class shard_sums {
public:
  shard_sums(MPI_Comm shards, patient_wait wait) : shards_(shards), wait_(wait) {
    MPI_Comm_size(shards, &ranks_);
    MPI_Comm_rank(shards, &own_);
  }

  //! Hands in this rank's part of the next sum. Returns which one it is.
  std::size_t begin(std::vector<float> const& part) {
    one_sum& here = under_way_[next_ % under_way_.size()];
    here.parts.resize(part.size() * static_cast<std::size_t>(ranks_));
    std::copy(part.begin(), part.end(), part_of(here, own_).begin());
    int const code = MPI_Iallgather(MPI_IN_PLACE,
                                    0,
                                    MPI_DATATYPE_NULL,
                                    here.parts.data(),
                                    static_cast<int>(part.size()),
                                    MPI_FLOAT,
                                    shards_,
                                    &here.request);
    if (code != MPI_SUCCESS) {
      throw std::runtime_error("MPI could not begin to add up the parts of shards");
    }
    return next_++;
  }

  //! Waits for the parts of all ranks, and adds them up in the order of the ranks: the bits of what
  //! MPI_Iallreduce gives depend on its choice of an algorithm.
  void end(std::size_t which, std::vector<float>& sum) {
    one_sum& here = under_way_[which % under_way_.size()];
    wait_(here.request);
    std::vector<std::span<float>> parts;
    for (int rank = 0; rank < ranks_; ++rank) {
      parts.push_back(part_of(here, rank));
    }
    add_parts(parts, sum);
  }

private:
  struct one_sum {
    std::vector<float> parts{}; // [ranks, numbers of a part]
    MPI_Request request = MPI_REQUEST_NULL;
  };
  [[nodiscard]] std::span<float> part_of(one_sum& of, int rank) const {
    auto const count = of.parts.size() / static_cast<std::size_t>(ranks_);
    return std::span(of.parts).subspan(static_cast<std::size_t>(rank) * count, count);
  }

  MPI_Comm shards_;
  patient_wait wait_;
  int ranks_ = 1;
  int own_ = 0;
  std::array<one_sum, 2> under_way_;
  std::size_t next_ = 0;
};

} // namespace gpt
