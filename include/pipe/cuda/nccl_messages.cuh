// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages through NCCL. Header for pipelining::cuda::nccl_messages.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cuda/checked_messages.cuh>
#include <pipe/cuda/communicators.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl_error.cuh>
#include <pipe/cuda/nccl_options.cuh>
#include <pipe/cuda/rank_wait.cuh>
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! The lanes of one plan on one rank: the communicators for their messages.
struct message_lanes {
  plan const& work;                    //!< the plan
  message_checks* checks = nullptr;    //!< makes and compares headers; null where there are none
  std::vector<communicator*> all = {}; //!< of the plan
  std::vector<communicator*> by_lane = {}; //!< [lanes]

  //! True for one end of a broadcast of NCCL. Messages with headers go one by one.
  [[nodiscard]] bool spreads(item const& step) const {
    return checks == nullptr && step.what != operation::run && rooms::is_broadcast(work, step);
  }
  //! The communicator of messages between a device and a peer, in one direction.
  [[nodiscard]] communicator& carrying(int device, bool sends, int peer) const {
    std::int64_t const key = sends ? work.key(device, peer) : work.key(peer, device);
    std::size_t at = 0;
    while (all[at]->members().key != key)
      ++at;
    return *all[at];
  }
};

//! The communicators of one rank: made and connected in rounds before the first step, ended
//! together. Plans share communicators with the same members and the same name by the policy.
//!
//! No call of NCCL blocks the host: after each comes a wait with a deadline, which another rank's
//! failure ends, too. Calls that end communicators do block; a communicator_guard makes them.
template <class Store, class Clock>
class nccl_messages {
public:
  using wait_type = rank_wait<Store, Clock>;    //!< How this waits for other ranks.
  using guard_type = communicator_guard<Clock>; //!< Ends communicators.

  //! @param device the rank. @param waiting outlives this.
  nccl_messages(int device, wait_type const& waiting) : device_(device), waiting_(waiting) {}

  //! Makes the communicators of a plan that there are not yet, in the order that all ranks
  //! share; the lowest member makes the id of each and hands it out through the store.
  //! @param number of the plan among those that the runner has taken.
  void make(nccl_options const& options, message_lanes& lanes, int number) {
    std::vector<communicator*> fresh;
    for (communicator_members& each : communicators_of(lanes.work)) {
      if (!each.has(device_))
        continue;
      communicator* known = made_for(each);
      if (known == nullptr) {
        std::string label = options.name + "/communicator/" + std::to_string(each.key) +
                            (number == 0 ? "" : " of plan " + std::to_string(number));
        all_.push_back(std::make_unique<communicator>(std::move(each), std::move(label)));
        fresh.push_back(known = all_.back().get());
      }
      lanes.all.push_back(known);
    }
    if (!guard_ && (!all_.empty() || !options.communicators.empty())) {
      // Later than the rank itself ends a step, if it is not in a call that does not return.
      guard_ =
        std::make_unique<guard_type>(options.gpu,
                                     detail::both(options.deadline, options.abort_deadline / 4),
                                     options.abort_deadline);
      for (registered_communicator const& each : options.communicators)
        guard_->add(each.handle, true);
    }
    // All ids at once, so that nobody waits for one that is made after another communicator.
    for (communicator const* each : fresh)
      if (each->members().devices.front() == device_)
        publish_id(each->label());
    for (communicator* each : fresh) {
      int const first = each->members().devices.front();
      waiting_.now = {"waits for rank " + std::to_string(first) + " to name communicator " +
                        std::to_string(each->members().key),
                      {first}};
      ncclUniqueId const id = read_id(each->label());
      waiting_.now = together("makes communicator ", *each);
      {
        typename guard_type::use const held(*guard_);
        each->join(id, device_, options.max_blocks);
        each->put_under_guard(guard_->add(each->get(), false));
      }
      settle(*each, "ncclCommInitRankConfig");
    }
    lanes.by_lane.assign(static_cast<std::size_t>(lanes.work.lanes_of(device_)), nullptr);
    for (item const& step : lanes.work.program_of(device_))
      if (step.what != operation::run)
        lanes.by_lane[lane_of(step)] =
          &lanes.carrying(device_, step.what == operation::send, lanes.work.message_of(step).peer);
  }

  //! Exchanges a few bytes over every edge of a plan in both of its directions that no plan
  //! before has had, in the rounds of the plan: NCCL connects at the first use of a peer, and that
  //! must not happen inside a step.
  void connect(message_lanes const& lanes, cudaStream_t on) {
    // Not of this scope: freeing memory waits for the messages that use it, also for those that
    // never end because a rank has failed.
    few_bytes_.emplace(2 * first_bytes);
    event arrived;
    auto const arrive = [&](char const* what) {
      arrived.record(on);
      waiting_.wait(what, [&] {
        look();
        return arrived.happened();
      });
    };
    for (rooms::device_pair const& pair : rooms::connect_rounds(lanes.work)) {
      if (pair.one != device_ && pair.other != device_)
        continue;
      bool const lower = pair.one == device_;
      int const peer = lower ? pair.other : pair.one;
      auto const carrying = [&](bool sends) -> communicator& {
        return lanes.carrying(device_, sends, peer);
      };
      waiting_.now = {"connects to rank " + std::to_string(peer), {peer}};
      bool const sends = (lower ? pair.up : pair.down) && carrying(true).is_new_to(peer, true);
      bool const receives = (lower ? pair.down : pair.up) && carrying(false).is_new_to(peer, false);
      if (sends && receives && &carrying(true) == &carrying(false)) {
        first_use(carrying(true), peer, true, true, on);
      } else {
        // The lower device's direction first, at both ends.
        for (bool const upward : {true, false})
          if (bool const mine = upward == lower; mine ? sends : receives)
            first_use(carrying(mine), peer, mine, !mine, on);
      }
      arrive("the first message between two ranks");
    }
    for (item const& step : lanes.work.program_of(device_))
      if (lanes.spreads(step)) {
        communicator& its = *lanes.by_lane[lane_of(step)];
        if (its.is_new_to(everyone, true)) {
          waiting_.now = together("connects communicator ", its);
          first_broadcast(its, on);
          arrive("the first broadcast");
        }
        break;
      }
    few_bytes_.reset();
  }

  //! From now on, messages are those of a plan.
  void carry(message_lanes const& lanes) noexcept { lanes_ = &lanes; }
  //! Enqueues the messages of a group as one group of NCCL on the stream of its lane, each
  //! with its header after it if it has one; or as one broadcast, if they are one.
  template <class Device>
  void post(Device& own, int first, std::span<item const> group) {
    message_lanes const& lanes = *lanes_;
    message_checks* const checks = lanes.checks;
    communicator& lane = *lanes.by_lane[lane_of(group.front())];
    cudaStream_t const on = own.board.stream_for(group.front());
    bool const spread = lanes.spreads(group.front());
    if (spread)
      group = group.first(1);
    bool const several = group.size() > 1 || checks != nullptr;
    if (checks != nullptr)
      for_each_message(
        operation::send, first, group, [&](int index) { checks->seal(index, own.slots(), on); });
    start(lane, several, [&] {
      for (item const& step : group) {
        enqueue(lane, lanes.work, step, spread, own.slots().message(step), on);
        if (checks != nullptr) {
          int const index = first + static_cast<int>(&step - group.data());
          buffer const header{nothing, checks->header_of(index), sizeof(message_header)};
          enqueue(lane, lanes.work, step, false, header, on);
        }
      }
    });
    settle(lane, "a group of messages");
    if (checks != nullptr)
      for_each_message(operation::receive, first, group, [&](int index) {
        checks->compare(index, own.slots(), on);
      });
    for (std::size_t k = 0; k < group.size(); ++k)
      own.board.complete(first + static_cast<int>(k), on);
  }

  //! Throws when a communicator has found an error since the last call, or is being ended.
  void look() {
    for (auto const& each : all_)
      (void)settled(*each, "a message");
  }
  //! True when no call is in progress, whether it has failed or not.
  [[nodiscard]] bool quiet() {
    bool all = true;
    for (auto const& each : all_)
      try {
        all = settled(*each, "a message") && all;
      } catch (nccl_error const&) { // then it is in progress no more
      }
    return all;
  }
  //! The other members of the communicators that have found an error.
  [[nodiscard]] std::vector<int> const& suspects() const noexcept { return suspects_; }

  //! Ends all communicators. @pre no graph with them exists, and all ranks have ended their
  //! last step.
  void close() {
    for (auto const& each : all_)
      start(*each, false, [&] { each->begin_finalize(); });
    for (auto const& each : all_) {
      waiting_.now = together("ends communicator ", *each);
      settle(*each, "ncclCommFinalize");
    }
    if (guard_ && !guard_->destroy(waiting_.deadline))
      throw detail::too_late("ncclCommDestroy");
    if (guard_)
      check(guard_->result(), "ncclCommDestroy");
    all_.clear();
  }

  //! Ends all communicators, whatever their kernels wait for. @pre no graph with them
  //! exists.
  //! @return false when they have not ended in time.
  [[nodiscard]] bool abort(std::chrono::nanoseconds patience) {
    return !guard_ || guard_->abort(patience);
  }
  //! Begins what `abort` does, while a graph with them is in its launch.
  void start_abort() {
    if (guard_)
      guard_->start_abort();
  }
  //! From now until `disarm` they are aborted soon after the deadline of a step, also while
  //! the rank sits in a call that does not return. @param now of the clock.
  void arm(typename Clock::time_point now) {
    if (guard_)
      guard_->arm(now);
  }
  //! The step has ended in time.
  void disarm() noexcept {
    if (guard_)
      guard_->disarm();
  }
  //! @throws detail::run_stop when the guard has begun to end the communicators.
  void check_guard() const {
    if (guard_ && guard_->ending())
      throw detail::too_late("the iteration");
  }

private:
  static constexpr std::int64_t first_bytes = 256;
  static constexpr int everyone = nothing; // the peer of a broadcast

  //! The communicator with these members and this key, if there is one.
  [[nodiscard]] communicator* made_for(communicator_members const& wanted) const {
    for (auto const& each : all_)
      if (each->members().key == wanted.key && each->members().devices == wanted.devices)
        return each.get();
    return nullptr;
  }

  //! The standing of this rank in a call that all members of a communicator make together.
  [[nodiscard]] rooms::rank_standing together(char const* what, communicator const& one) const {
    rooms::rank_standing doing{what + std::to_string(one.members().key) + " with rank", {}};
    for (int const member : one.members().devices)
      if (member != device_) {
        doing.text += (doing.waits_for.empty() ? " " : ", ") + std::to_string(member);
        doing.waits_for.push_back(member);
      }
    return doing;
  }

  void publish_id(std::string const& key) {
    ncclUniqueId id{};
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    waiting_.line.set(key, std::string(id.internal, sizeof id.internal));
  }
  ncclUniqueId read_id(std::string const& key) {
    ncclUniqueId id{};
    std::string const text = waiting_.line.get(key, waiting_.deadline);
    if (text.size() != sizeof id.internal)
      throw detail::run_stop{"the store holds no id of NCCL under '" + key + "'"};
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    return id;
  }

  //! Makes calls for a communicator, which are in progress until they are found settled.
  //! @param several they are one group of NCCL.
  template <class Calls>
  void start(communicator const& one, bool several, Calls calls) {
    watch(one, [&] {
      typename guard_type::use const held(*guard_);
      guard_->entry_at(one.place()).settled = false;
      if (!several)
        return calls();
      check(ncclGroupStart(), "ncclGroupStart");
      try {
        calls();
      } catch (...) {
        (void)ncclGroupEnd(); // leaves no open group in this thread
        throw;
      }
      check(ncclGroupEnd(), "ncclGroupEnd");
    });
  }
  void settle(communicator const& one, char const* call) {
    waiting_.wait(call, [&] { return settled(one, call); });
  }
  [[nodiscard]] bool settled(communicator const& one, char const* call) {
    bool done = false;
    watch(one, [&] {
      typename guard_type::use const held(*guard_);
      done = one.settled(call);
      guard_->entry_at(one.place()).settled = done;
    });
    return done;
  }
  //! Makes calls for a communicator. An error of NCCL may mean that another member has ended.
  template <class Calls>
  void watch(communicator const& one, Calls calls) {
    try {
      calls();
    } catch (nccl_error const&) {
      suspects_ = together("", one).waits_for;
      throw;
    }
  }

  [[nodiscard]] static std::size_t lane_of(item const& step) {
    return static_cast<std::size_t>(step.lane);
  }
  //! @param spread as one end of a broadcast.
  void enqueue(communicator const& lane,
               plan const& work,
               item const& step,
               bool spread,
               buffer const& memory,
               cudaStream_t on) const {
    bool const sends = step.what == operation::send;
    int const other = work.message_of(step).peer;
    auto const count = static_cast<std::size_t>(memory.bytes);
    std::byte* const data = memory.data;
    int const peer = lane.members().rank_of(spread && sends ? device_ : other);
    if (spread)
      check(ncclBroadcast(data, data, count, ncclUint8, peer, lane.get(), on), "ncclBroadcast");
    else if (sends)
      check(ncclSend(data, count, ncclUint8, peer, lane.get(), on), "ncclSend");
    else
      check(ncclRecv(data, count, ncclUint8, peer, lane.get(), on), "ncclRecv");
  }
  template <class Calls>
  static void
  for_each_message(operation what, int first, std::span<item const> group, Calls calls) {
    for (std::size_t k = 0; k < group.size(); ++k)
      if (group[k].what == what)
        calls(first + static_cast<int>(k));
  }

  void first_use(communicator const& lane, int peer, bool sends, bool receives, cudaStream_t on) {
    int const other = lane.members().rank_of(peer);
    std::byte* const data = few_bytes_->data();
    start(lane, true, [&] {
      if (sends)
        check(ncclSend(data, first_bytes, ncclUint8, other, lane.get(), on), "ncclSend");
      if (receives)
        check(ncclRecv(data + first_bytes, first_bytes, ncclUint8, other, lane.get(), on),
              "ncclRecv");
    });
    settle(lane, "the first use of a peer");
  }

  void first_broadcast(communicator const& lane, cudaStream_t on) {
    std::byte* const data = few_bytes_->data();
    start(lane, false, [&] {
      check(ncclBroadcast(data, data, first_bytes, ncclUint8, 0, lane.get(), on), "ncclBroadcast");
    });
    settle(lane, "the first broadcast");
  }

  int device_;
  wait_type const& waiting_;
  message_lanes const* lanes_ = nullptr; // of the iteration
  std::vector<std::unique_ptr<communicator>> all_;
  std::unique_ptr<guard_type> guard_; // none where there are no communicators
  std::vector<int> suspects_;
  std::optional<device_memory> few_bytes_;
};

} // namespace pipelining::inline v0_3::cuda::detail
