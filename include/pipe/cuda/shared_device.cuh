// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Streams and memory that the plans of a runner share on one device. Header for
//! pipelining::cuda::shared_device.

#include <pipe/cuda/handles.cuh>
#include <pipe/plan/plan.hpp>
#include <pipe/run/context.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! The streams of one device, and memory that is as large as the largest of its plans wants.
//!
//! Stream 0 runs passes. The streams after it carry messages and copies, which go first: the device
//! at the other end waits for them. Slots on the host lie in pinned memory, so that copies
//! keep neither the host nor other streams waiting.
class shared_device {
public:
  //! Memory that was there has moved, and stages have not been told yet.
  bool moved = false;

  //! @param gpu the CUDA device to make everything on.
  explicit shared_device(int gpu) : gpu_(gpu) {
    current_device const scope(gpu);
    check(cudaDeviceGetStreamPriorityRange(&least_, &greatest_),
          "cudaDeviceGetStreamPriorityRange");
    streams_.emplace_back(least_);
  }

  //! The number of the CUDA device.
  [[nodiscard]] int gpu() const noexcept { return gpu_; }
  //! A stream by number; 0 runs the passes. @pre there are as many.
  [[nodiscard]] cudaStream_t stream_at(std::size_t index) const noexcept {
    return streams_[index].get();
  }
  //! The stream of second halves of composite passes. @pre reserve_beside
  [[nodiscard]] cudaStream_t beside() const noexcept { return beside_->get(); }
  //! How many there are, but for that one.
  [[nodiscard]] std::size_t streams() const noexcept { return streams_.size(); }
  //! The memory on the device; null where nobody has asked for any.
  [[nodiscard]] std::byte* memory() const noexcept { return memory_ ? memory_->data() : nullptr; }
  //! The memory on the host.
  [[nodiscard]] std::byte* host_memory() const noexcept { return host_ ? host_->data() : nullptr; }

  //! Makes streams until there are so many.
  void reserve_streams(std::size_t count) {
    current_device const scope(gpu_);
    while (streams_.size() < count)
      streams_.emplace_back(greatest_);
  }
  //! Makes the stream of second halves of composite passes, if there is none.
  void reserve_beside() {
    current_device const scope(gpu_);
    if (!beside_)
      beside_.emplace(least_);
  }
  //! Makes room for that many bytes. Where they are more than before, the memory moves, and its
  //! contents are lost.
  //! @pre nothing that uses it is on a stream. @throws error when there is no more memory; there is
  //! as much as before then.
  void reserve(std::int64_t device_bytes, std::int64_t host_bytes) {
    current_device const scope(gpu_);
    moved = grow(memory_, bytes_, device_bytes) || moved;
    moved = grow(host_, host_bytes_, host_bytes) || moved;
  }

private:
  template <class Memory>
  static bool grow(std::optional<Memory>& memory, std::int64_t& has, std::int64_t wanted) {
    if (wanted <= has)
      return false;
    bool const moves = memory.has_value();
    memory.reset(); // both might not fit
    try {
      memory.emplace(wanted);
    } catch (error const&) {
      memory.emplace(has);
      throw;
    }
    has = wanted;
    return moves;
  }

  int gpu_;
  int least_ = 0; // priority
  int greatest_ = 0;
  std::vector<stream> streams_;
  std::optional<stream> beside_;
  std::optional<device_memory> memory_;
  std::optional<pinned_memory> host_;
  std::int64_t bytes_ = 0;
  std::int64_t host_bytes_ = 0;
};

//! True when a plan wants more memory on some device than each of the others, so that theirs
//! may move. The same answer on all ranks.
//! @param others pointers to what holds a plan, `lowered`.
template <class Plans>
[[nodiscard]] bool outgrows(plan const& added, Plans const& others) {
  for (int device = 0; device < added.over.extents.devices; ++device) {
    std::int64_t most = 0;
    std::int64_t most_on_host = 0;
    for (auto const& each : others) {
      if (each->lowered.arena_bytes_of(device) > most)
        most = each->lowered.arena_bytes_of(device);
      if (each->lowered.host_bytes_of(device) > most_on_host)
        most_on_host = each->lowered.host_bytes_of(device);
    }
    if (added.arena_bytes_of(device) > most || added.host_bytes_of(device) > most_on_host)
      return true;
  }
  return false;
}

//! The rows of the totals of a device, copied to the host.
//! @pre what writes them has ended. @param on a stream of the device. @param into memory that lives
//! as long as they are read.
inline totals rows_on_host(totals const& rows, cudaStream_t on, std::vector<std::byte>& into) {
  into.resize(static_cast<std::size_t>(rows.rows * rows.stride));
  if (into.empty())
    return {};
  check(cudaMemcpyAsync(into.data(), rows.data, into.size(), cudaMemcpyDeviceToHost, on),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
  return {into.data(), rows.bytes, rows.stride, rows.rows};
}

} // namespace pipelining::inline v0_3::cuda::detail
