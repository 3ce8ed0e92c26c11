// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps that follow when gradients are complete, in the global order: the exchange of a
//! tied weight's gradients, totals, the optimizer. Devices validate the step before in it.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief True when a stage is one of the two that share a tied weight. A pipeline of one stage
//! shares nothing.
[[nodiscard]] constexpr bool holds_tied(shape const& extents, int stage) noexcept {
  int const last = extents.stages() - 1;
  return last > 0 && (stage == 0 || stage == last);
}

//! @brief Places the steps that follow complete gradients into the global order of passes and
//! messages.
//!
//! Copies of a stage add up their gradients as soon as all of them are complete, then tied ends,
//! then come totals. The gradient of a tied weight is handed over and sent as soon as its stage is
//! complete, so that the last stage's travels while earlier stages still run. Totals come after
//! all passes: rows go from device to device towards device 0, which completes its gradients last,
//! then all of them back. Last come the steps of the optimizer. With early steps rows go to the
//! last device, and come back in the plan that follows.
class hook_placement {
public:
  //! @param table what the plan is made of
  //! @param to says which steps it has, and counts messages that no pass makes
  //! @param events the global order of passes and messages
  hook_placement(timetable_view const& table, plan& to, std::vector<event> const& events)
      : table_(table), over_(table.over), to_(to), events_(events),
        device_count_(over_.extents.devices), stage_count_(over_.extents.stages()),
        adds_copies_(!to.evaluates && over_.extents.routes() > 1),
        ties_(to.tied_bytes > 0 && stage_count_ > 1),
        unvalidated_(validates(to.validation) ? device_count_ : 0) {}

  //! The order with these steps. @complexity O(n + P S) for n events.
  //! @throws std::invalid_argument where no pass completes gradients that they follow.
  [[nodiscard]] std::vector<event> run() {
    placed_.reserve(events_.size());
    owned<due_stage> due(stage_count_);
    int const due_count = find_due(due);
    int next = 0;
    for (std::size_t i = 0; i <= events_.size(); ++i) {
      for (; next < due_count && due[next].at <= i; ++next)
        follow(due[next].stage);
      if (i < events_.size())
        push_event(i);
    }
    if (ties_ && adds_copies_)
      tie_copies();
    validate_down_to(0);
    if (to_.totals_bytes > 0 && to_.validation != step_validation::last)
      push_totals();
    return std::move(placed_);
  }

private:
  //! The pass of an event; of a message, the one that makes it.
  [[nodiscard]] pass const& pass_of(event const& what) const noexcept {
    return table_.passes[what.entry];
  }
  //! A stage with steps of its own, and the event before which they go.
  struct due_stage {
    std::size_t at;
    int stage;
  };
  //! Finds the stages with steps of their own once the gradients of all of their copies are
  //! complete, in the order in which they are.
  //! @param due [S], of which it fills some @return how many
  [[nodiscard]] int find_due(due_stage* due) const {
    owned<std::size_t> last(stage_count_, events_.size());
    owned<bool> const complete(stage_count_ * device_count_, false);
    for (std::size_t i = 0; i < events_.size(); ++i)
      if (pass const& done = pass_of(events_[i]);
          events_[i].to == nothing && completes_gradients(*over_.declared, done.kind)) {
        last[done.stage] = i;
        complete[done.stage * device_count_ + events_[i].device] = true;
      }
    check_completed(complete);
    int count = 0;
    for (std::size_t i = 0; i < events_.size() && (adds_copies_ || ties_); ++i)
      if (int const stage = pass_of(events_[i]).stage;
          last[stage] == i &&
          (adds_copies_ ? copies_of(over_, stage) > 1 : holds_tied(over_.extents, stage)))
        due[count++] = {place_after(i), stage};
    return count;
  }
  //! Whether every copy of every stage, or of those that share a weight, has a pass that completes
  //! its gradients.
  //! @param complete [S][P], those that have
  void check_completed(bool const* complete) const {
    bool const all = adds_copies_ || (to_.totals_bytes > 0 && !to_.evaluates &&
                                      to_.validation != step_validation::last);
    for (int stage = 0; stage < stage_count_; ++stage)
      for_each_copy(over_, stage, [&](int device, int) {
        if (complete[stage * device_count_ + device] || goes_forward_only(over_, stage) ||
            !(all || (ties_ && holds_tied(over_.extents, stage))))
          return;
        throw std::invalid_argument(
          all
            ? "plan: totals_bytes is for a row of every stage once its gradients are complete, but "
              "no pass completes those of stage " +
                std::to_string(stage) + "; leave it out, and add up totals after the iteration"
            : "plan: tied weights need a pass that completes the gradients of each end, but none "
              "completes those of stage " +
                std::to_string(stage) +
                "; leave tied_bytes out, and add up both gradients after the iteration");
      });
  }
  //! The event before which the steps of a stage go: between passes, once what the last passes of
  //! its gradients made is on its way, since other devices wait for that.
  //! @param completing the event that runs the last of them
  [[nodiscard]] std::size_t place_after(std::size_t completing) const noexcept {
    bool const sends = adds_copies_ || !stays_on_device(over_, pass_of(events_[completing]));
    std::size_t at = completing + 1;
    while (at < events_.size() && (events_[at].to != nothing || pass_of(events_[at]).overlapped ||
                                   (sends && events_[at - 1].to == nothing)))
      ++at;
    return at;
  }

  //! Messages that no pass makes have numbers of their own.
  void push(event what) {
    what.number = what.to == nothing ? 0 : to_.other_messages++;
    placed_.push_back(what);
  }
  //! The step of a copy of a stage, or its message to a device.
  //! @param microbatch takes the copy
  void push_copy(subject about, int stage, int microbatch = 0, int to = nothing) {
    push({.entry = microbatch,
          .device = device_of(over_, stage, microbatch),
          .to = to,
          .about = about,
          .stage = stage});
  }
  //! The step of each copy of a stage.
  void push_copies(subject about, int stage) {
    for_each_copy(over_, stage, [&](int, int microbatch) { push_copy(about, stage, microbatch); });
  }
  //! The step of each stage of a device, where stages have one copy.
  void push_stages(subject about, int device) {
    for (int stage = 0; stage < stage_count_; ++stage)
      if (device_of(over_, stage) == device)
        push_copy(about, stage);
  }

  //! Validates the step before on all devices down to one, from the last one on: each hands the
  //! rows on, then looks at them.
  void validate_down_to(int device) {
    for (; unvalidated_ > device; --unvalidated_) {
      int const next = unvalidated_ - 1;
      if (next > 0)
        push({.device = next, .to = next - 1, .about = subject::spread});
      push_stages(subject::validation, next);
    }
  }
  //! Validates the receiver of a message if the sender has validated.
  void validate_receiver(int from, int to) {
    if (from >= unvalidated_)
      validate_down_to(to);
  }
  //! Takes an event over; a device validates before it runs what cannot run again. The halves of a
  //! composite pass stay together.
  void push_event(std::size_t index) {
    auto const overlaps = [this](std::size_t at) {
      return at < events_.size() && events_[at].to == nothing && pass_of(events_[at]).overlapped;
    };
    event const& what = events_[index];
    if (what.to != nothing)
      validate_receiver(what.device, what.to);
    else if (overlaps(index) || overlaps(index + 1) ||
             !may_run_again(over_, what.device, pass_of(what)))
      validate_down_to(what.device);
    placed_.push_back(what);
  }

  //! The steps of a stage once its gradients are complete.
  void follow(int stage) {
    if (adds_copies_)
      return add_copies(stage);
    push_copies(subject::tied_gradient, stage);
    send_tied(stage);
    if (std::exchange(has_one_end_, true))
      add_tied(stage);
  }
  //! Every copy of a stage hands its gradients over, all get all, and add them up.
  void add_copies(int stage) {
    push_copies(subject::copied_gradient, stage);
    for_each_copy(over_, stage, [&](int low, int low_microbatch) {
      for_each_copy(over_, stage, [&](int high, int high_microbatch) {
        if (low >= high)
          return;
        push_copy(subject::copied_gradient, stage, low_microbatch, high);
        push_copy(subject::copied_gradient, stage, high_microbatch, low);
      });
    });
    push_copies(subject::add_copies, stage);
  }
  //! Sends an end of a tied weight to every device that has only the other one.
  void send_tied(int stage) {
    for_each_copy(over_, stage_count_ - 1 - stage, [&](int device, int microbatch) {
      if (microbatch_on(over_, stage, device) >= 0)
        return;
      validate_receiver(device_of(over_, stage, microbatch), device);
      push_copy(subject::tied_gradient, stage, microbatch, device);
    });
  }
  //! Adds both ends of a tied weight, first on the stage of one of them.
  void add_tied(int stage) {
    push_copies(subject::add_tied, stage);
    push_copies(subject::add_tied, stage_count_ - 1 - stage);
  }
  //! The steps of a tied weight where its stages have copies, which have been added up.
  void tie_copies() {
    int const ends[2]{0, stage_count_ - 1};
    for (int const end : ends)
      push_copies(subject::tied_gradient, end);
    for (int const end : ends)
      send_tied(end);
    add_tied(0);
  }

  //! Sends the rows that a device has come by on the way from the first or the last one, a message
  //! for each run of stages.
  void push_rows(int from, int to) {
    auto const has = [&](int stage) {
      int const device = device_of(over_, stage);
      return from < to ? device <= from : device >= from;
    };
    for (int stage = 0; stage < stage_count_; ++stage) {
      int const start = stage;
      while (stage < stage_count_ && has(stage))
        ++stage;
      if (int const rows = stage - start; rows > 0)
        push({.device = from, .to = to, .about = subject::gather, .stage = start, .rows = rows});
    }
  }
  //! Rows go to device 0, then all of them to all devices, which step. With early steps rows go to
  //! the last device; each steps once it has the rows of the devices before it.
  void push_totals() {
    bool const early = steps_early(to_.validation);
    for (int i = 0; i < device_count_; ++i) {
      int const device = early ? i : device_count_ - 1 - i;
      push_stages(subject::contribution, device);
      if (i + 1 < device_count_)
        push_rows(device, early ? device + 1 : device - 1);
      if (early)
        push_stages(subject::early_update, device);
    }
    if (early)
      return;
    for (int device = 0; device + 1 < device_count_; ++device)
      push({.device = device, .to = device + 1, .about = subject::spread});
    for (int stage = 0; stage < stage_count_ && !to_.evaluates; ++stage)
      push_copies(subject::update, stage);
  }

  timetable_view table_;
  pipeline_view over_;
  plan& to_;
  std::vector<event> const& events_;
  int device_count_;
  int stage_count_;
  bool adds_copies_; // the gradients of copies of stages
  bool ties_;
  int unvalidated_;          // devices, from device 0 on, that have not validated the step before
  bool has_one_end_ = false; // of a tied weight
  std::vector<event> placed_;
};

} // namespace pipelining::inline v0_3::detail
