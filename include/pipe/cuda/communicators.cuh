// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The NCCL communicators of a plan. Header for pipelining::cuda::communicator and
//! pipelining::cuda::communicators_of.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/nccl_error.cuh>
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/plan.hpp>

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::cuda {

namespace detail {

//! The devices that share one communicator.
struct communicator_members {
  std::int64_t key = 0;       //!< what the policy calls it
  int number = 0;             //!< among all, in the order in which they are made
  std::vector<int> devices{}; //!< ascending; the place in it is the rank in the communicator

  //! Whether a device is one of them.
  [[nodiscard]] bool has(int device) const noexcept {
    return std::binary_search(devices.begin(), devices.end(), device);
  }
  //! The rank of a device in the communicator. @pre has(device)
  [[nodiscard]] int rank_of(int device) const noexcept {
    return static_cast<int>(std::lower_bound(devices.begin(), devices.end(), device) -
                            devices.begin());
  }
};

//! All communicators of a plan, in the one order in which all ranks make them: making one
//! waits for its members, so two orders could wait for each other.
//!
//! The order is that of connect_rounds, so that a rank waits for as many communicators before its
//! own as it has neighbours, not for one of every rank before it.
//! @complexity O(E log E) for E pairs of devices, times the members of a communicator.
[[nodiscard]] inline std::vector<communicator_members> communicators_of(plan_view const& work) {
  std::vector<communicator_members> all; // by key
  auto const add = [&all, &work](int from, int to) {
    std::int64_t const key = work.key(from, to);
    auto place = std::lower_bound(
      all.begin(), all.end(), key, [](auto const& each, auto wanted) { return each.key < wanted; });
    if (place == all.end() || place->key != key)
      place = all.insert(place, {key, static_cast<int>(all.size())});
    for (int const device : {from, to})
      if (!place->has(device))
        place->devices.insert(
          std::upper_bound(place->devices.begin(), place->devices.end(), device), device);
  };
  for (rooms::device_pair const& pair : rooms::connect_rounds(work)) {
    if (pair.up)
      add(pair.one, pair.other);
    if (pair.down)
      add(pair.other, pair.one);
  }
  std::sort(
    all.begin(), all.end(), [](auto const& a, auto const& b) { return a.number < b.number; });
  return all;
}

} // namespace detail

//! @brief One rank's end of a communicator. Its calls do not block: each is followed by asking
//! `settled`. A communicator_guard ends it.
class communicator {
public:
  //! @param label names the communicator in what NCCL logs.
  explicit communicator(detail::communicator_members members, std::string label)
      : members_(std::move(members)), label_(std::move(label)) {}
  communicator(communicator const&) = delete;
  communicator& operator=(communicator const&) = delete;
  ~communicator() = default;

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

  //! Starts to flush it; `settle` waits for the end.
  void begin_finalize() { check(ncclCommFinalize(handle_), "ncclCommFinalize"); }

  [[nodiscard]] ncclComm_t get() const noexcept { return handle_; }
  //! The name of the communicator in the log of NCCL.
  [[nodiscard]] std::string const& label() const noexcept { return label_; }
  //! The devices that share it.
  [[nodiscard]] detail::communicator_members const& members() const noexcept { return members_; }
  //! @brief True when messages have not gone to a peer, or come from it, before; they have then.
  [[nodiscard]] bool is_new_to(int peer, bool sends) {
    std::pair const use(peer, sends);
    if (std::find(used_.begin(), used_.end(), use) != used_.end())
      return false;
    used_.push_back(use);
    return true;
  }
  //! @brief The communicator's place under guard.
  [[nodiscard]] std::size_t place() const noexcept { return place_; }
  //! Notes that place.
  void put_under_guard(std::size_t place) noexcept { place_ = place; }

private:
  detail::communicator_members members_;
  std::string label_;
  ncclComm_t handle_ = nullptr;
  std::size_t place_ = 0;
  std::vector<std::pair<int, bool>> used_; // peers, and whether it sends to them
};

} // namespace pipelining::inline v0_3::cuda
