// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans on the CUDA devices of one process. Header for pipelining::cuda::stream_runner.

#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/enqueuing_place.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/graph_launcher.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/shared_device.cuh>
#include <pipe/cuda/stream_plan.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/polling.hpp>
#include <pipe/run/watchdog.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::cuda {

//! @brief Options of a runner on streams: how the devices of one process run a plan.
struct stream_options {
  //! The CUDA device of every device of the plan; empty: all on device 0, side by side on streams
  //! of their own.
  std::vector<int> gpus{};
  //! Launch the whole iteration as one CUDA graph, captured at the first step after `warm_up` eager
  //! ones.
  bool graph = false;
  int warm_up = 2; //!< eager steps before the graph
  //! Name passes and messages for profilers: ranges of NVTX. Costs nothing where none listens.
  bool ranges = true;
  //! A report of a failure names the item at which every device stood. That takes an event for
  //! every pass and every group of messages, and as many nodes in a graph.
  bool watched = true;
  //! The checked mode, for debugging: guards around every slot of a GPU, compared when a step has
  //! ended, and poison (not a number) in slots before their first write, which must be gone from
  //! the end of every output after its pass. Accesses through null buffers are found only on the
  //! host: thread_options::guarded. Costs memory and time; a step allocates.
  bool guarded = false;
  //! Two events more for every pass, so that `stream_runner::trace` tells when it began and ended.
  bool timed = false;
  //! Items of the plan that may be on the streams of a GPU before the host waits for the first of
  //! them; devices of the plan on one GPU share it, and each may have two. The queue of a GPU holds
  //! about a thousand launches, and a host that finds it full sits in a call that nothing but the
  //! end of the process ends: choose it so that as many items launch fewer kernels. 0: any number.
  int run_ahead = 64;
  //! The longest that one iteration may take. A pass or a hook has as long on the host: one that
  //! has not returned by then ends the process with run_error::hung_status, since it runs on the
  //! caller's own thread. Time in which the process was suspended does not count (countdown).
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
};

//! @brief Runs plans on streams: several devices of one process, or several virtual devices on
//! one.
//!
//! Training, evaluation, another number of microbatches: each is a plan. All plans of a runner
//! share its streams and its memory, which is as large as the largest of them wants; `step` says
//! which one runs.
//!
//! One thread enqueues everything in one order that all devices' programs are parts of. Before the
//! end of the iteration the host waits only for items `stream_options::run_ahead` places back, so
//! that it does not meet a full queue of a GPU. A graph is launched by a thread next to it, which
//! is abandoned where the launch does not return before the deadline. Streams, events and memory
//! are made once, what the plan keeps on the host is pinned; a step allocates nothing.
//!
//! Plans of `lower_post_validated` run with `post_validated_steps`, without a graph: the host
//! decides in the middle of an iteration, when the rows of the totals have come to it
//! (step_decisions). While one device waits for that the host goes on with the others.
//!
//! A stage enqueues on the stream of its context only, does not synchronise and allocates nothing
//! on the device. One that throws ends the step; the next step starts afresh. After a deadline or
//! an error of CUDA the runner is of no more use; what a device still works on is then never freed,
//! since freeing would wait for it.
//!
//! A thread next to the caller's watches steps, where the clock is the machine's
//! (run_error::hung_status).
template <class Stages, class Clock = detail::rooms::polling_clock>
class stream_runner {
public:
  //! @param work the plan that `step()` runs. @param stages must outlive the runner.
  //! @throws std::invalid_argument when the stages do not suit the plan; error when CUDA does.
  stream_runner(plan work, Stages& stages, stream_options options = {})
      : stages_(stages), options_(std::move(options)), machine_(std::make_unique<machinery>()),
        watchdog_(
          options_.deadline, place_.pulse, [] {}, [this] { return sentence_of_hang(); }) {
    auto const devices = static_cast<std::size_t>(work.over.extents.devices);
    check_plan(work);
    if (options_.gpus.empty())
      options_.gpus.assign(devices, 0);
    if (options_.gpus.size() != devices)
      throw std::invalid_argument("cuda: the plan has " + std::to_string(devices) +
                                  " devices, but " + std::to_string(options_.gpus.size()) +
                                  " CUDA devices were named");
    for (int const gpu : options_.gpus)
      machine_->devices.push_back(std::make_unique<detail::shared_device>(gpu));
    {
      current_device const scope(options_.gpus.front()); // it is recorded on streams of that GPU
      machine_->iteration_end.emplace();
    }
    if (options_.graph)
      launcher_ = std::make_unique<detail::graph_launcher<Clock>>(options_.gpus.front());
    machine_->plans.push_back(made(std::move(work)));
  }
  stream_runner(stream_runner const&) = delete;
  stream_runner& operator=(stream_runner const&) = delete;
  ~stream_runner() {
    if (stuck_)
      (void)machine_.release();
  }

  //! @brief Takes a further plan, which `step(number)` runs.
  //!
  //! Between steps that have ended: memory grows here where the plan wants more, and then buffers
  //! lie elsewhere than before, and graphs are captured anew; `totals` and `trace` are gone.
  //! @return its number, 1 for the first one that is added.
  //! @throws std::invalid_argument when the plan has other numbers of devices or stages than the
  //! first one, has a stage on another GPU, or as the constructor does; run_error after a failure.
  plan_number add(plan work) { return put(std::move(work), machine_->plans.size()); }

  //! @brief As `thread_runner::replace`.
  plan_number replace(plan_number which, plan work) {
    detail::rooms::check_number(which, machine_->plans.size());
    return put(std::move(work), static_cast<std::size_t>(which.index));
  }

  //! @brief As `thread_runner::reserve`. @pre all steps have ended. @throws error when CUDA does.
  void reserve(plan const& later) {
    reserve([&](int device) { return later.arena_bytes_of(device); },
            [&](int device) { return later.host_bytes_of(device); });
  }
  //! @brief The same by numbers of bytes.
  void reserve(std::int64_t bytes, std::int64_t host_bytes = 0) {
    reserve([&](int) { return bytes; }, [&](int) { return host_bytes; });
  }

  //! @brief Runs every pass of a plan once and waits for its end.
  //! @param which of the plans; the first one unless told otherwise.
  //! @throws run_error past the deadline, when CUDA reports an error, or when a stage throws while
  //! it enqueues (its exception is nested); std::invalid_argument for a number that `add` has not
  //! given, and for a plan that validates a step of the optimizer that was not taken early, or
  //! leaves one without.
  void step(plan_number which = {}) {
    refuse_after_failure();
    begin(which);
    run_iteration();
    check_guards();
    ++now_->steps;
  }

  //! @brief Enqueues one iteration without waiting for its end; the stream to wait on is
  //! `origin()`.
  //! @throws as `step` does.
  void launch(plan_number which = {}) {
    begin(which);
    watch const watched(watchdog_);
    launch_iteration();
  }

  //! @brief As `thread_runner::begins_again`.
  [[nodiscard]] bool begins_again() const { return now_ != nullptr && now_->begins_again(); }

  //! @brief The stream on which an iteration starts and ends: the compute stream of device 0.
  [[nodiscard]] cudaStream_t origin() const noexcept {
    return machine_->devices.front()->stream_at(0);
  }

  //! @brief The rows of the totals of the last step, if its plan has any, else none: a copy on the
  //! host, which is there until the next call.
  //! @pre the step has ended. @throws error when CUDA does.
  [[nodiscard]] pipelining::totals totals() {
    if (now_ == nullptr || stuck_)
      return {};
    bool const at_end = detail::rooms::steps_early(now_->lowered.validation);
    int const device = at_end ? now_->lowered.over.extents.devices - 1 : 0;
    detail::device_board const& board = now_->boards[static_cast<std::size_t>(device)];
    current_device const scope(board.gpu());
    return detail::rows_on_host(
      board.slots(now_->lowered, device).all_totals(), board.compute(), rows_);
  }

  //! @brief The passes of the last step with their measured start and end by events, in seconds
  //! since the start of the step. Each GPU has a clock of its own; all begin with the step, to
  //! within the time in which a GPU hears of another's event.
  //! @pre the step has ended. @throws std::logic_error without stream_options::timed or before the
  //! first step; error when CUDA does.
  [[nodiscard]] dynamic_timetable trace() {
    if (!options_.timed || now_ == nullptr || now_->steps == 0)
      throw std::logic_error("cuda: there is no trace; set stream_options::timed and run a step");
    return detail::rooms::trace_of(now_->lowered, [&](int device, std::size_t item, bool end) {
      detail::device_board& board = now_->boards[static_cast<std::size_t>(device)];
      detail::device_board& first = now_->boards.front();
      detail::pass_times const& clock = *(board.gpu() == first.gpu() ? first : board).times();
      return board.times()->seconds(item, end, clock);
    });
  }

  //! @brief Pairs of GPUs without access to each other: the host copies what they send.
  [[nodiscard]] std::vector<std::pair<int, int>> const& through_host() const noexcept {
    return machine_->through_host;
  }

private:
  using enqueuing_device = detail::stream_device<Stages, detail::peer_copies>;

  // Everything of CUDA. Destroyed from the end: no graph outlives what it uses.
  struct machinery {
    std::vector<std::unique_ptr<detail::shared_device>> devices; // [P]
    std::optional<detail::event> iteration_end;
    std::vector<std::pair<int, int>> through_host;
    std::vector<std::unique_ptr<detail::stream_plan>> plans;
  };

  using watch = typename detail::rooms::watchdog_for<Clock>::watch;

  void begin(plan_number which) {
    check_turn(which);
    now_ = machine_->plans[static_cast<std::size_t>(which.index)].get();
    left_ = detail::rooms::countdown<Clock>(options_.deadline);
    end_recorded_ = false;
  }

  //! Launches an iteration and waits for its end.
  void run_iteration() {
    watch const watched(watchdog_);
    try {
      launch_iteration();
    } catch (...) {
      // What was enqueued before ends by itself, and touches the stages' memory until then.
      if (!stuck_)
        wait_for_end();
      throw;
    }
    wait_for_end();
  }

  template <class Bytes, class HostBytes>
  void reserve(Bytes bytes, HostBytes host_bytes) {
    refuse_after_failure();
    now_ = nullptr;
    int number = 0;
    for (auto const& each : machine_->devices) {
      each->reserve(bytes(number), host_bytes(number));
      ++number;
      if (each->moved) // what is in graphs moves
        for (auto const& made : machine_->plans)
          made->iteration = graph();
    }
  }

  void launch_iteration() {
    int number = 0;
    for (auto const& each : machine_->devices) {
      if (std::exchange(each->moved, false))
        detail::rooms::tell_moved(stages_, now_->lowered, number);
      ++number;
    }
    if (options_.graph && now_->steps >= options_.warm_up) {
      if (!now_->iteration)
        now_->iteration = detail::captured(origin(), [this] { enqueue(true); });
      for (detail::device_board& board : now_->boards)
        board.restart();
      launch_graph();
    } else {
      enqueue(false);
    }
    if (now_->lowered.validation != step_validation::at_once)
      carried_.take(
        now_->boards.back().slots(now_->lowered, now_->lowered.over.extents.devices - 1),
        begins_again());
  }

  void refuse_after_failure() const {
    if (stuck_)
      throw run_error("cuda: an earlier step has failed, and nothing can run after it", nothing);
  }

  void check_turn(plan_number which) const {
    detail::rooms::check_number(which, machine_->plans.size());
    carried_.check(machine_->plans[static_cast<std::size_t>(which.index)]->lowered);
  }
  void check_plan(plan const& work) const {
    detail::rooms::check_stages(work, stages_);
    if (options_.graph)
      detail::refuse_validation(work);
  }

  plan_number put(plan work, std::size_t at) {
    refuse_after_failure();
    plan const& first = machine_->plans.front()->lowered;
    detail::rooms::check_addition(first, work);
    for (int stage = 0; stage < first.over.extents.stages(); ++stage)
      if (gpu_of(first, stage) != gpu_of(work, stage))
        throw std::invalid_argument("cuda: the plans of a runner keep each stage on the same GPU, "
                                    "but this one places stage " +
                                    std::to_string(stage) +
                                    " elsewhere; make another runner for it");
    check_plan(work);
    now_ = nullptr;
    if (detail::outgrows(work, machine_->plans)) // what is in graphs moves
      for (auto const& each : machine_->plans)
        each->iteration = graph();
    auto added = made(std::move(work));
    if (at == machine_->plans.size())
      machine_->plans.emplace_back();
    machine_->plans[at] = std::move(added);
    return {static_cast<int>(at)};
  }

  [[nodiscard]] int gpu_of(plan const& work, int stage) const {
    return options_.gpus[static_cast<std::size_t>(device_of(work, stage))];
  }

  [[nodiscard]] std::unique_ptr<detail::stream_plan> made(plan work) {
    auto result = std::make_unique<detail::stream_plan>(
      std::move(work), machine_->devices, detail::board_options_of(options_, false));
    auto& known = machine_->through_host;
    for (auto const& pair : result->transport->through_host())
      if (std::find(known.begin(), known.end(), pair) == known.end())
        known.push_back(pair);
    return result;
  }

  //! Enqueues all items. Also where a stage throws, the origin ends after all enqueued work.
  void enqueue(bool captured) {
    detail::stream_plan& work = *now_;
    work.begin(carried_.hand_on(work.lowered), captured);
    current_device current(work.boards.front().gpu());
    auto const go = [&](int device) { enqueue_next(device, captured, current); };
    if (work.lowered.validation == step_validation::at_once)
      std::for_each(work.order.begin(), work.order.end(), go);
    else
      enqueue_as_known(current, go);
    work.gather();
  }

  //! Enqueues what a device is at.
  void enqueue_next(int device, bool captured, current_device& current) {
    detail::stream_plan& work = *now_;
    auto const d = static_cast<std::size_t>(device);
    detail::device_board& board = work.boards[d];
    if (!captured)
      wait_until([&] { return board.has_room_for(work.position[d]); });
    try {
      current.change_to(board.gpu());
      enqueuing_device own = on_streams(device);
      (void)left_.is_over(); // a look in time
      place_.enter(device, work.position[d]);
      work.position[d] = detail::rooms::execute_item(
        work.lowered, work.lowered.program_of(device), work.position[d], own);
      place_.leave();
    } catch (error const&) {
      stuck_ = true;
      raise(device);
    } catch (...) {
      work.gather();
      raise(device);
    }
  }

  //! The same order, but for devices at an item about which the host does not know enough: the
  //! others go on.
  template <class Go>
  void enqueue_as_known(current_device& current, Go go) {
    detail::stream_plan& work = *now_;
    detail::rooms::plan_walk walk(work.lowered);
    auto const knows = [&](int device) {
      auto const d = static_cast<std::size_t>(device);
      current.change_to(work.boards[d].gpu());
      enqueuing_device own = on_streams(device);
      return own.knows_enough_for(
        work.lowered.program_of(device)[static_cast<std::size_t>(work.position[d])]);
    };
    auto const go_on = [&](int device) {
      go(device);
      work.leave_out(device);
      walk.move_to(device, work.position[static_cast<std::size_t>(device)]);
    };
    while (walk.first_standing() != nothing)
      wait_until([&] { return detail::take_turns(work.lowered, walk, knows, go_on); });
  }

  [[nodiscard]] enqueuing_device on_streams(int device) {
    return {now_->lowered,
            device,
            now_->boards[static_cast<std::size_t>(device)],
            stages_,
            *now_->transport};
  }

  //! Nothing is asked of the GPUs until the launch has returned.
  void launch_graph() {
    now_->position.assign(now_->position.size(), 0);
    launcher_->begin(now_->iteration, origin(), *machine_->iteration_end);
    wait_until([&] { return launcher_->idle(); });
    launcher_->check();
    end_recorded_ = true;
    for (std::size_t d = 0; d < now_->position.size(); ++d)
      now_->position[d] = static_cast<int>(now_->lowered.program_of(static_cast<int>(d)).size());
  }

  void check_guards() {
    for (std::size_t d = 0; d < now_->boards.size(); ++d) {
      detail::device_board& board = now_->boards[d];
      if (board.guards() == nullptr)
        continue;
      current_device const scope(board.gpu());
      try {
        board.guards()->check_all(board.compute());
      } catch (guard_error const& found) {
        throw run_error(std::string("cuda: ") + found.what(), static_cast<int>(d));
      }
    }
  }

  void wait_for_end() {
    wait_until([&] {
      if (!end_recorded_)
        machine_->iteration_end->record(origin());
      end_recorded_ = true;
      return machine_->iteration_end->happened();
    });
  }

  //! Polls until `done()`. Fails past the deadline, and when a GPU reports an error.
  template <class Done>
  void wait_until(Done done) {
    try {
      if (detail::rooms::poll_until<Clock>(left_, done, [&] {
            place_.leave();
            now_->look();
          }))
        return;
    } catch (error const& cause) {
      stuck_ = true;
      int const first = now_->first_unfinished();
      std::throw_with_nested(run_error(
        std::string("cuda: the iteration has failed: ") + cause.what() + standings(), first));
    }
    fail_at_deadline();
  }

  //! Nests what is being thrown in an error that names device and pass.
  [[noreturn]] void raise(int device) const {
    int const at = now_->position[static_cast<std::size_t>(device)];
    std::throw_with_nested(run_error("cuda: device " + std::to_string(device) +
                                       " failed when it was to " + now_->in_words(device, at) +
                                       ": " + detail::rooms::words_of_exception(),
                                     device));
  }

  [[noreturn]] void fail_at_deadline() {
    stuck_ = true;
    throw run_error("cuda: the iteration has not ended before its deadline" + standings(),
                    now_->first_unfinished());
  }

  //! For the watchdog, when an item has not come back.
  [[nodiscard]] std::string sentence_of_hang() const {
    int const device = place_.device.load(std::memory_order_relaxed);
    return "cuda: no progress before the deadline: device " + std::to_string(std::max(device, 0)) +
           " is not back from " + place_.in_words(now_->lowered);
  }

  [[nodiscard]] std::string standings() const {
    std::string text;
    if (launcher_ && !launcher_->idle())
      text = "\n  the launch of its graph has not returned: the GPU has not begun it, or takes no "
             "more of it";
    text += now_->standings();
    if (text.empty())
      text = options_.watched ? "\n  all devices have ended all items"
                              : "\n  where devices stand is not watched";
    for (auto const& [one, other] : through_host())
      text += "\n  messages between GPUs " + std::to_string(one) + " and " + std::to_string(other) +
              " go through the host: they have no access to each other";
    return text;
  }

  Stages& stages_;
  stream_options options_;
  std::unique_ptr<machinery> machine_;
  std::unique_ptr<detail::graph_launcher<Clock>> launcher_; // none where there are no graphs
  detail::rooms::carried_totals carried_;
  detail::stream_plan* now_ = nullptr; // the plan of the last step
  std::vector<std::byte> rows_;        // of the totals, for who asks
  // For all waits of the iteration together.
  detail::rooms::countdown<Clock> left_{std::chrono::nanoseconds::zero(),
                                        typename Clock::time_point()};
  bool end_recorded_ = false; // after all of the iteration
  bool stuck_ = false;
  detail::enqueuing_place place_;
  detail::rooms::watchdog_for<Clock> watchdog_; // the first to end
};

} // namespace pipelining::inline v0_3::cuda
