// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What most tests of the stand-in with several ranks start from.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "standin.hpp"

//! @brief One rank's device, streams, communicators and buffers.
struct rank_resources {
  //! @param ids one communicator of all ranks is made per id
  rank_resources(int rank_number,
                 int ranks,
                 std::vector<ncclUniqueId> const& ids,
                 int streams = 2,
                 int buffers = 4,
                 std::size_t bytes_each = 256)
      : rank(rank_number), bytes(bytes_each) {
    cudaSetDevice(rank);
    comm.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      ncclCommInitRank(&comm[i], ranks, ids[i], rank);
    on.resize(static_cast<std::size_t>(streams));
    for (cudaStream_t& s : on)
      cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    buffer.resize(static_cast<std::size_t>(buffers));
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      void* memory = nullptr;
      cudaMalloc(&memory, bytes);
      buffer[i] = static_cast<unsigned char*>(memory);
      cudaMemsetAsync(buffer[i], 16 * rank + static_cast<int>(i), bytes, on[0]);
    }
    cudaStreamSynchronize(on[0]);
  }
  [[nodiscard]] ncclResult_t
  send(std::size_t from, int peer, std::size_t stream = 0, std::size_t lane = 0) const {
    return ncclSend(buffer[from], bytes, ncclUint8, peer, comm[lane], on[stream]);
  }
  [[nodiscard]] ncclResult_t
  receive(std::size_t to, int peer, std::size_t stream = 0, std::size_t lane = 0) const {
    return ncclRecv(buffer[to], bytes, ncclUint8, peer, comm[lane], on[stream]);
  }
  int rank;
  std::size_t bytes;
  std::vector<ncclComm_t> comm{};
  std::vector<cudaStream_t> on{};
  std::vector<unsigned char*> buffer{};
};

inline std::vector<ncclUniqueId> unique_ids(int count) {
  std::vector<ncclUniqueId> ids(static_cast<std::size_t>(count));
  for (ncclUniqueId& id : ids)
    ncclGetUniqueId(&id);
  return ids;
}

//! @brief Runs body(resources) on every rank of a fresh machine.
template <class Body>
std::vector<standin::outcome>
on_ranks(standin::configuration how, int ranks, int communicators, Body body) {
  standin::configure(std::move(how));
  auto const ids = unique_ids(communicators);
  return standin::run_ranks(ranks, [&](int rank) {
    rank_resources mine(rank, ranks, ids);
    body(mine);
  });
}

//! @brief True if some waiter of a deadlock report contains all the words.
inline bool somebody_waits(std::vector<std::string> const& words) {
  for (standin::report const& r : standin::reports())
    for (std::string const& line : r.waits)
      if (std::all_of(words.begin(), words.end(), [&](std::string const& w) {
            return line.find(w) != std::string::npos;
          }))
        return true;
  return false;
}
