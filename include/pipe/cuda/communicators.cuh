// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The NCCL communicators of a plan, and the thread that ends them whatever the rank waits
//! for. Header for pipelining::cuda::communicator and pipelining::cuda::communicator_guard.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/nccl_error.cuh>
#include <pipe/cuda/rank_wait.cuh>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/polling.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::cuda {

namespace detail {

//! The devices that share one communicator.
struct communicator_members {
  std::int64_t key = 0;       //!< what the policy calls it
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
//! @complexity O(E C) for E pairs of devices and C communicators.
[[nodiscard]] inline std::vector<communicator_members> communicators_of(plan const& work) {
  std::vector<communicator_members> all;
  auto const add = [&all, &work](int from, int to) {
    std::int64_t const key = work.key(from, to);
    auto place =
      std::find_if(all.begin(), all.end(), [key](auto const& each) { return each.key == key; });
    if (place == all.end())
      place = all.insert(place, communicator_members{key});
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

namespace pipelining::inline v0_3::cuda::detail {

//! A thread that ends the communicators of a rank, all together in one group of NCCL: when
//! the rank asks, or when a step is late and the rank says nothing.
//!
//! ncclCommAbort and ncclCommDestroy wait for the communicator's own stream, and so for all that
//! stands before its last kernel: a kernel of another communicator, or a pass that never ends. One
//! after the other they could wait for ever, and in a group too where a pass does. So they are
//! called next to the thread that enqueues, which waits for them with a deadline and leaves them
//! to themselves past it. That thread itself may sit in a launch that finds the queue of its GPU
//! full; the guard ends what the queue waits for.
//!
//! One of the two threads uses the communicators at a time: the rank while a `use` lives, the guard
//! from its first call on. A rank that stays in a call of NCCL for long beyond its deadline loses
//! its turn.
template <class Clock>
class communicator_guard {
  struct shared;

public:
  //! One communicator of the rank.
  struct entry {
    ncclComm_t handle; //!< not null
    bool foreign;      //!< the user's: aborted with the others, but not destroyed
    bool settled;      //!< no call of it is in progress
  };

  //! The rank's right to call NCCL, while the object lives.
  class use {
  public:
    //! @throws detail::run_stop when the guard has begun to end the communicators.
    explicit use(communicator_guard const& of) : of_(*of.shared_) {
      turn free = turn::nobody;
      if (!of_.holder.compare_exchange_strong(free, turn::rank))
        throw detail::too_late("the iteration");
    }
    use(use const&) = delete;
    use& operator=(use const&) = delete;
    ~use() {
      turn mine = turn::rank;
      (void)of_.holder.compare_exchange_strong(mine, turn::nobody);
    }

  private:
    shared& of_;
  };

  //! @param gpu of the rank. @param limit from `arm` on, after which the guard aborts.
  //! @param patience how long the end of the communicators may take where nobody asks for it, and a
  //! call of NCCL that the rank is in then.
  //! @throws std::system_error when the machine gives no thread.
  communicator_guard(int gpu, std::chrono::nanoseconds limit, std::chrono::nanoseconds patience)
      : shared_(std::make_shared<shared>()) {
    shared_->gpu = gpu;
    shared_->limit = limit;
    shared_->patience = patience;
    thread_ = Clock::start([all = shared_] { serve(*all); });
  }
  communicator_guard(communicator_guard const&) = delete;
  communicator_guard& operator=(communicator_guard const&) = delete;
  ~communicator_guard() {
    if (!thread_.joinable())
      return;
    if (!shared_->entries.empty()) {
      (void)end(wish::abort, shared_->patience); // which joins it, or leaves it
      return;
    }
    ask(wish::leave);
    thread_.join();
  }

  //! Takes a communicator under guard. @pre a `use` lives, or the guard was never armed.
  //! @return its place, for `entry_at`.
  std::size_t add(ncclComm_t handle, bool foreign) {
    shared_->entries.push_back({handle, foreign, foreign}); // the rank is joining its own
    return shared_->entries.size() - 1;
  }
  //! The communicator at that place. @pre a `use` lives.
  [[nodiscard]] entry& entry_at(std::size_t place) const { return shared_->entries[place]; }

  //! From now until `disarm` the guard aborts once its limit is over, of the time in which
  //! this process runs, unless it is armed anew. @param now of the clock.
  void arm(typename Clock::time_point now) {
    shared_->armed = now;
    // It looks once in a slice while steps follow each other, so that arming wakes nobody.
    if (shared_->idle)
      shared_->bell.ring();
  }
  //! The guard is to do nothing until it is armed again.
  void disarm() noexcept { shared_->armed = disarmed; }
  //! True once the guard has aborted, or has been asked to.
  [[nodiscard]] bool ending() const noexcept { return shared_->holder == turn::guard; }

  //! Begins what `abort` does, and does not wait for it: a graph with them may be in its
  //! launch, and is to be destroyed when their kernels have let that return.
  void start_abort() { ask(wish::abort); }
  //! Aborts all communicators. No graph with them may exist any more.
  //! @return false when they have not ended in time; their thread is abandoned then, and what it
  //! uses must live on.
  [[nodiscard]] bool abort(std::chrono::nanoseconds patience) { return end(wish::abort, patience); }
  //! Destroys all communicators but the user's. @return as `abort`.
  [[nodiscard]] bool destroy(std::chrono::nanoseconds patience) {
    return end(wish::destroy, patience);
  }
  //! The result of the first call that failed. @pre `abort` or `destroy` is true.
  [[nodiscard]] ncclResult_t result() const noexcept { return shared_->result; }

private:
  enum class turn { nobody, rank, guard };
  enum class wish { nothing, abort, destroy, leave };
  static constexpr auto disarmed = Clock::time_point::max();

  // Of both threads; the last of them frees it.
  struct shared {
    int gpu = 0;
    std::chrono::nanoseconds limit{};
    std::chrono::nanoseconds patience{};
    std::atomic<turn> holder{turn::nobody};
    std::vector<entry> entries{}; // of the holder
    std::atomic<typename Clock::time_point> armed{disarmed};
    std::atomic<bool> idle{false}; // it sleeps until somebody rings
    std::atomic<wish> wished{wish::nothing};
    std::atomic<bool> ended{false};
    ncclResult_t result = ncclSuccess;
    typename Clock::doorbell bell{};
  };

  void ask(wish what) {
    shared_->wished = what;
    shared_->bell.ring();
  }

  bool end(wish what, std::chrono::nanoseconds patience) {
    if (!thread_.joinable())
      return shared_->ended; // asked before
    rooms::countdown<Clock> left(patience);
    ask(what);
    bool const in_time = rooms::poll_until<Clock>(left, [this] { return shared_->ended.load(); });
    if (in_time)
      thread_.join();
    else
      thread_.detach();
    return in_time;
  }

  static void serve(shared& all) {
    auto seen = disarmed;
    rooms::countdown<Clock> left(all.limit);
    for (;;) {
      all.idle = true; // before it looks: who arms it later rings
      auto const armed = all.armed.load();
      all.idle = armed == disarmed;
      if (armed != std::exchange(seen, armed) && armed != disarmed)
        left = rooms::countdown<Clock>(all.limit, armed);
      wish const wished = all.wished;
      if (wished == wish::leave)
        return;
      if (wished == wish::nothing && (armed == disarmed || !left.is_over())) {
        all.bell.wait_until(armed == disarmed ? disarmed : Clock::now() + left.slice());
        continue;
      }
      if (wished == wish::nothing && all.armed.load() != armed)
        continue;
      take_over(all);
      all.result = carry_out(all, wished == wish::destroy);
      all.ended = true;
      return;
    }
  }

  //! Waits until the rank is in no call of NCCL; one that has not returned for so long never will.
  static void take_over(shared& all) {
    rooms::countdown<Clock> left(all.patience);
    (void)rooms::poll_until<Clock>(left, [&] {
      turn free = turn::nobody;
      return all.holder.compare_exchange_strong(free, turn::guard);
    });
    all.holder = turn::guard;
  }

  static ncclResult_t carry_out(shared& all, bool destroys) {
    // A thread begins on GPU 0, and NCCL goes back to where a thread was.
    (void)cudaSetDevice(all.gpu);
    // An abort joins the thread that carries out the communicator's calls, which may wait in a
    // launch for kernels of the others.
    rooms::sort_stably(all.entries,
                       [](entry const& a, entry const& b) { return a.settled && !b.settled; });
    ncclResult_t first = ncclSuccess;
    auto const note = [&first](ncclResult_t code) {
      if (first == ncclSuccess && code != ncclInProgress)
        first = code;
    };
    note(ncclGroupStart());
    for (entry const& each : all.entries)
      if (!destroys)
        note(ncclCommAbort(each.handle));
      else if (!each.foreign)
        note(ncclCommDestroy(each.handle));
    note(ncclGroupEnd());
    return first;
  }

  std::shared_ptr<shared> shared_;
  typename Clock::thread thread_;
};

} // namespace pipelining::inline v0_3::cuda::detail
