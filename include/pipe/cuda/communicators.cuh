// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The NCCL communicators of a plan. Header for pipelining::cuda::communicator and
//! pipelining::cuda::communicators_of.

#include <pipe/cuda/nccl_error.cuh>
#include <pipe/plan/connect.hpp>
#include <pipe/plan/plan.hpp>

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {
namespace cuda {

//! @brief The devices that share one communicator.
struct communicator_members {
  std::int64_t key = 0;
  std::vector<int> devices{}; //!< ascending; the place in it is the rank in the communicator

  [[nodiscard]] bool has(int device) const noexcept {
    return std::binary_search(devices.begin(), devices.end(), device);
  }
  [[nodiscard]] int rank_of(int device) const noexcept {
    return static_cast<int>(std::lower_bound(devices.begin(), devices.end(), device) -
                            devices.begin());
  }
};

//! @brief All communicators of a plan, by ascending key: the one order in which all ranks make
//! them. Making one waits for its members, so two orders could wait for each other.
//! @complexity O(E log E) for E pairs of devices, times the members of a communicator.
[[nodiscard]] inline std::vector<communicator_members> communicators_of(plan_view const& work) {
  std::vector<communicator_members> all;
  auto const add = [&all, &work](int from, int to) {
    std::int64_t const key = work.key(from, to);
    auto place = std::lower_bound(
      all.begin(), all.end(), key, [](auto const& each, auto wanted) { return each.key < wanted; });
    if (place == all.end() || place->key != key)
      place = all.insert(place, {key});
    for (int const device : {from, to})
      if (!place->has(device))
        place->devices.insert(
          std::upper_bound(place->devices.begin(), place->devices.end(), device), device);
  };
  for (device_pair const& pair : device_pairs(work)) {
    if (pair.up)
      add(pair.one, pair.other);
    if (pair.down)
      add(pair.other, pair.one);
  }
  return all;
}

//! @brief One rank's end of a communicator. Its calls do not block: each is followed by `settle`.
//! The destructor aborts.
class communicator {
public:
  //! @param label names the communicator in what NCCL logs.
  explicit communicator(communicator_members members, std::string label)
      : members_(std::move(members)), label_(std::move(label)) {}
  communicator(communicator&& other) noexcept
      : members_(std::move(other.members_)), label_(std::move(other.label_)),
        handle_(std::exchange(other.handle_, nullptr)) {}
  communicator(communicator const&) = delete;
  communicator& operator=(communicator const&) = delete;
  communicator& operator=(communicator&&) = delete;
  ~communicator() { abort(); }

  //! @brief Begins to join the others. @pre this stays where it is: NCCL keeps the label.
  //! @param max_blocks blocks of a kernel of NCCL at most; 0 leaves it to NCCL.
  void join(ncclUniqueId const& id, int device, int max_blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;
    config.commName = label_.c_str();
    if (max_blocks > 0)
      config.maxCTAs = max_blocks;
    check(
      ncclCommInitRankConfig(
        &handle_, static_cast<int>(members_.devices.size()), id, members_.rank_of(device), &config),
      "ncclCommInitRankConfig");
  }

  //! @brief True when the last call is complete; asks without waiting.
  //! @throws nccl_error when the communicator is broken.
  [[nodiscard]] bool settled(char const* call) const {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(handle_, &state), "ncclCommGetAsyncError");
    check(state, call);
    return state == ncclSuccess;
  }

  void begin_finalize() { check(ncclCommFinalize(handle_), "ncclCommFinalize"); }
  void destroy() { check(ncclCommDestroy(std::exchange(handle_, nullptr)), "ncclCommDestroy"); }
  //! @brief Ends the kernels of this rank's end, whatever they wait for. No graph with them may
  //! exist.
  void abort() noexcept {
    if (handle_ != nullptr)
      (void)ncclCommAbort(std::exchange(handle_, nullptr));
  }

  [[nodiscard]] ncclComm_t get() const noexcept { return handle_; }
  [[nodiscard]] communicator_members const& members() const noexcept { return members_; }

private:
  communicator_members members_;
  std::string label_;
  ncclComm_t handle_ = nullptr;
};

} // namespace cuda
} // namespace pipelining::inline v0_1
