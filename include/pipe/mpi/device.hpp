// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One MPI process's side of the executor loop, and its waits. Header for
//! pipelining::detail::mpi_device.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/host_passes.hpp>

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The words of MPI for an error code.
[[nodiscard]] inline std::string mpi_words(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  (void)MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

//! Waits in which a dead peer, another rank's failure and the deadline all end the wait.
template <class Clock>
struct mpi_wait {
  basic_store<Clock>& line;
  std::chrono::nanoseconds deadline;
  typename Clock::time_point next_look{};
  std::atomic<unsigned> pulse = 0; // looks so far: a sign of life for the watchdog

  //! Looks at the store, but at most once in a millisecond.
  //! @throws run_stop when some rank has failed.
  void look(typename Clock::time_point now) {
    if (now < next_look)
      return;
    next_look = now + std::chrono::milliseconds(1);
    pulse.store(pulse.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (auto reason = line.failure())
      throw run_stop{std::move(*reason), failure_cause::told};
  }

  //! Tests a request until it is done: eagerly for a millisecond, then with short sleeps.
  //! @return an MPI error code, or nothing when the deadline has passed.
  //! @throws run_stop when some rank has failed.
  std::optional<int> wait(MPI_Request& request, MPI_Status& status) {
    int done = 0;
    if (int const code = MPI_Test(&request, &done, &status); done != 0 || code != MPI_SUCCESS)
      return code;
    auto const start = Clock::now();
    for (countdown<Clock> left(deadline, start);;) {
      if (int const code = MPI_Test(&request, &done, &status); done != 0 || code != MPI_SUCCESS)
        return code;
      auto const now = Clock::now();
      look(now);
      if (left.is_over(now))
        return std::nullopt;
      if (now - start < std::chrono::milliseconds(1))
        std::this_thread::yield();
      else
        Clock::sleep_for(std::chrono::microseconds(50));
    }
  }
};

//! The memory of a rank, shared by its plans. Memory that MPI may still write to is left to MPI.
struct mpi_memory {
  std::unique_ptr<host_memory> device = std::make_unique<host_memory>();
  std::unique_ptr<host_memory> host = std::make_unique<host_memory>();
  bool moved = false; //!< and stages have not been told yet

  //! @pre no message is under way.
  void reserve(std::int64_t device_bytes, std::int64_t host_bytes) {
    moved = device->reserve(device_bytes) || moved;
    device->touch();
    moved = host->reserve(host_bytes) || moved;
    host->touch();
  }
  void leave_to_mpi() noexcept {
    (void)device.release();
    (void)host.release();
  }
  [[nodiscard]] static std::byte* data(std::unique_ptr<host_memory> const& of) noexcept {
    return of ? of->data() : nullptr;
  }
};

//! The device of one MPI process: passes run on the calling thread, messages are MPI's.
//!
//! Both ends of a message give it the tag of its place in the sequence between the two devices, so
//! programs that differ stall instead of mixing up their messages, and so do the plans of a runner.
//! The messages of a lane count as complete in the order of the lane, as the waits of a plan
//! presume.
template <class Stages, class Clock = polling_clock>
class mpi_device {
public:
  //! @param channel a communicator only for this runner, whose errors are returned.
  //! @param memory that the plans of the runner share; it grows here if need be, and must outlive
  //! this. @pre no message is under way.
  //! @param number of the plan in its runner.
  //! @param guarded as mpi_options::guarded.
  //! @throws std::length_error for a message that is too large for MPI.
  mpi_device(plan const& work,
             Stages& stages,
             int device,
             mpi_wait<Clock>& patience,
             MPI_Comm channel,
             mpi_memory& memory,
             int number = 0,
             bool guarded = false)
      : work_(work), stages_(&stages), device_(device), patience_(&patience), channel_(channel),
        guard_(guarded ? guard_bytes : 0), number_(number), memory_(&memory), passes_(work, device),
        requests_(work.program_of(device).size(), MPI_REQUEST_NULL) {
    for (item const& step : steps())
      if (bytes_of(step) > std::numeric_limits<int>::max())
        throw std::length_error("run: MPI counts a message in an int, and a message of " +
                                std::to_string(bytes_of(step)) +
                                " bytes is more; cut microbatches or chunks smaller (rank " +
                                std::to_string(device) + ": " + name(step) + ")");
    memory.reserve(arena{work, device, nullptr, nullptr, guard_}.bytes(),
                   work.host_bytes_of(device));
  }
  mpi_device(mpi_device const&) = delete;
  mpi_device& operator=(mpi_device const&) = delete;

  //! Takes back the receives that are still open. Where MPI may still use the memory, it is
  //! left to MPI.
  ~mpi_device() {
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      MPI_Request& request = requests_[i];
      if (request == MPI_REQUEST_NULL)
        continue;
      int done = 0;
      if (finalized == 0) {
        if (steps()[i].what == operation::receive)
          (void)MPI_Cancel(&request);
        (void)MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      }
      if (done == 0)
        memory_->leave_to_mpi();
    }
  }

  //! Before a step.
  //! @param other_before another plan has used the memory, or nobody yet.
  void begin(bool other_before) {
    if (other_before)
      passes_.lie_in(slots());
    step_start_ = Clock::now();
    at_.store(nothing, std::memory_order_relaxed);
    awaited_ = nothing;
    passes_.begin();
  }

  //! True when a validation has found that the iteration must begin again.
  [[nodiscard]] bool begins_again() const noexcept { return passes_.begins_again(); }

  //! Waits until an earlier item is complete.
  void wait_for(int index, item const&) {
    item const& earlier = steps()[static_cast<std::size_t>(index)];
    if (earlier.what != operation::run)
      complete_lane(earlier.lane, index);
    passes_.wait_for(*this, index);
  }

  //! Runs a pass or a hook, or begins it.
  void run(int index, item const& step) { passes_.run(*this, index, step); }

  //! Runs a composite pass, where its stages can.
  [[nodiscard]] bool run_together(int first, std::span<item const> pair) {
    return passes_.run_together(*this, first, pair);
  }

  //! The times of the passes of the last step, in seconds since it began.
  [[nodiscard]] host_passes const& passes() const noexcept { return passes_; }
  [[nodiscard]] Stages& stages() noexcept { return *stages_; }
  [[nodiscard]] double seconds() const { return seconds(Clock::now()); }
  double enter(int index) {
    auto const now = Clock::now();
    patience_->look(now);
    at_.store(index, std::memory_order_relaxed);
    return seconds(now);
  }
  //! The slots in the memory of this rank.
  [[nodiscard]] arena slots() const noexcept {
    return {
      work_, device_, mpi_memory::data(memory_->device), mpi_memory::data(memory_->host), guard_};
  }

  //! Starts the messages of one group.
  void post(int first, std::span<item const> group) {
    (void)enter(first);
    if (relays(group.front()))
      complete_lane(group.front().lane, first - 1);
    // Receives first: a message that finds its receive needs no buffer in between.
    for (operation const direction : {operation::receive, operation::send})
      for (std::size_t i = 0; i < group.size(); ++i)
        if (group[i].what == direction)
          post_one(first + static_cast<int>(i), group[i]);
  }

  //! Waits until all passes and messages are complete.
  void finish() {
    for (int lane = 0; lane < work_.lanes_of(device_); ++lane)
      complete_lane(lane, static_cast<int>(steps().size()) - 1);
    passes_.finish(*this);
    at_.store(static_cast<int>(steps().size()), std::memory_order_relaxed);
  }

  //! Finishes what stages have begun in a step that has failed.
  void abandon() noexcept { passes_.abandon(*this, at_); }

  //! Where this rank was when its step ended early: item, last pass, and whom it waited for.
  [[nodiscard]] rank_standing standing() const {
    std::string text = "was at ";
    std::vector<int> waits_for;
    int const at = at_.load(std::memory_order_relaxed);
    if (at == nothing)
      text += "the start of its program";
    else if (static_cast<std::size_t>(at) >= steps().size())
      text += "the end of its program";
    else
      text += position(at);
    int last = std::min(at, static_cast<int>(steps().size()) - 1);
    while (last >= 0 && steps()[static_cast<std::size_t>(last)].what != operation::run)
      --last;
    text += last < 0 ? ", before its first pass" : ", its last pass was " + pass_at(last);
    if (awaited_ != nothing) {
      waits_for.push_back(work_.message_of(steps()[static_cast<std::size_t>(awaited_)]).peer);
      text += ", and it waited for rank " + std::to_string(waits_for.back()) + " to complete " +
              place(awaited_);
    }
    return {text, waits_for};
  }

  //! The pass that is running, with its position. Any thread may ask.
  [[nodiscard]] std::string running() const {
    int const at = at_.load(std::memory_order_relaxed);
    if (at == nothing || static_cast<std::size_t>(at) >= steps().size())
      return at == nothing ? "the start of its program" : "the end of its program";
    return pass_at(at) + " (" + position(at) + ")";
  }

private:
  [[nodiscard]] std::span<item const> steps() const { return work_.program_of(device_); }
  [[nodiscard]] double seconds(typename Clock::time_point when) const {
    return std::chrono::duration<double>(when - step_start_).count();
  }
  [[nodiscard]] std::int64_t bytes_of(item const& step) const {
    return step.what == operation::run ? 0 : work_.uses_of(step)[0].bytes;
  }
  [[nodiscard]] std::string name(item const& step) const { return describe(step, work_); }
  [[nodiscard]] std::string pass_at(int index) const {
    return "the " + describe_subject(steps()[static_cast<std::size_t>(index)], work_);
  }
  [[nodiscard]] std::string position(int index) const {
    return "item " + std::to_string(index) + " of " + std::to_string(steps().size()) +
           (number_ == 0 ? "" : " of plan " + std::to_string(number_));
  }
  [[nodiscard]] std::string place(int index) const {
    return position(index) + ": " + name(steps()[static_cast<std::size_t>(index)]);
  }

  void post_one(int index, item const& step) {
    if (step.what == operation::receive)
      passes_.guards().before(step);
    buffer const memory = slots().message(step);
    int const count = static_cast<int>(bytes_of(step));
    // Every MPI has tags up to 32767. Ranks that run different plans wait for each other until the
    // deadline, rather than take each other's messages.
    int const peer = work_.message_of(step).peer;
    int const tag = number_ % 8 * 4096 + work_.message_of(step).sequence % 4096;
    MPI_Request& request = requests_[static_cast<std::size_t>(index)];
    int const code = step.what == operation::send
                       ? MPI_Isend(memory.data, count, MPI_BYTE, peer, tag, channel_, &request)
                       : MPI_Irecv(memory.data, count, MPI_BYTE, peer, tag, channel_, &request);
    if (code != MPI_SUCCESS)
      stop(index, code);
  }

  void complete_lane(int lane, int last) {
    int& known = passes_.completed(lane);
    for (int i = known + 1; i <= last; ++i) {
      item const& message = steps()[static_cast<std::size_t>(i)];
      if (message.what != operation::run && message.lane == lane)
        complete(i, message);
    }
    known = std::max(known, last);
  }

  void complete(int index, item const& message) {
    MPI_Request& request = requests_[static_cast<std::size_t>(index)];
    if (request == MPI_REQUEST_NULL)
      return;
    awaited_ = index;
    MPI_Status status{};
    std::optional<int> const code = patience_->wait(request, status);
    if (!code)
      throw run_stop{"no progress before the deadline: rank " + std::to_string(device_) + " " +
                       standing().text,
                     failure_cause::deadline};
    if (*code != MPI_SUCCESS)
      stop(index, *code);
    int bytes = 0;
    if (message.what == operation::receive &&
        (MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS || bytes != bytes_of(message)))
      throw run_stop{"rank " + std::to_string(device_) + " got " + std::to_string(bytes) +
                       " bytes instead of " + std::to_string(bytes_of(message)) + " from rank " +
                       std::to_string(work_.message_of(message).peer) + " in " + place(index) +
                       "; do all ranks have the same sizes?",
                     failure_cause::own};
    awaited_ = nothing;
  }

  //! A message failed. When a process has died, the store says so within moments; else MPI's own
  //! words are the reason.
  [[noreturn]] void stop(int index, int code) {
    if (auto reason = first_failure<Clock>(patience_->line, std::chrono::seconds(1)))
      throw run_stop{std::move(*reason), failure_cause::told};
    throw run_stop{"rank " + std::to_string(device_) + ": MPI failed in " + place(index) + ": " +
                     mpi_words(code),
                   failure_cause::library};
  }

  plan const& work_;
  Stages* stages_;
  int device_;
  mpi_wait<Clock>* patience_;
  MPI_Comm channel_;
  std::int64_t guard_;
  int number_;
  mpi_memory* memory_;
  host_passes passes_;
  typename Clock::time_point step_start_{};
  std::vector<MPI_Request> requests_; // [items]
  std::atomic<int> at_ = nothing;     // the item that was started last
  int awaited_ = nothing;             // the message that is waited for
};

} // namespace pipelining::inline v0_3::detail
