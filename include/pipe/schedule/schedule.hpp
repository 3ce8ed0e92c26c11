// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a schedule is. Header for the concept pipelining::schedule and for
//! pipelining::row_writer.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>

#include <concepts>
#include <stdexcept>

namespace pipelining::inline v0_1 {

//! @brief Stands for a schedule parameter that is known only at run time: `Seq1F1B<dynamic>{.chunks
//! = c}`.
inline constexpr int dynamic = -1;

//! @brief Appends the passes of one device, in the order in which it runs them.
//!
//! Writes into storage of the caller, which holds at least `row_capacity(shape)` passes.
struct row_writer {
  pass* passes = nullptr;
  int capacity = 0;
  int count = 0;

  constexpr void push(pass const& what) {
    if (count == capacity)
      refuse();
    passes[count] = what;
    ++count;
  }
  //! @brief Room for the next `number` passes, all of which the caller writes.
  [[nodiscard]] constexpr pass* append(int number) {
    if (number > capacity - count)
      refuse();
    count += number;
    return passes + (count - number);
  }
  constexpr void forward(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::forward, stage, microbatch, chunk));
  }
  constexpr void backward(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::backward, stage, microbatch, chunk));
  }
  constexpr void backward_input(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::backward_input, stage, microbatch, chunk));
  }
  constexpr void backward_weight(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::backward_weight, stage, microbatch, chunk));
  }

  [[noreturn]] static void refuse() { //!< throws std::length_error: the row is full
    throw std::length_error(
      "row_writer: the schedule gives a device more passes than its stages can have; "
      "each unit has one forward and one backward, or one forward and the two halves");
  }
  [[nodiscard]] static constexpr pass
  make(pass_kind kind, int stage, int microbatch, int chunk = 0) noexcept {
    return {kind,
            false,
            static_cast<std::uint16_t>(stage),
            static_cast<std::uint16_t>(microbatch),
            static_cast<std::uint16_t>(chunk)};
  }
};

//! @brief Any type with the extents of its pipeline: which placement, how many stages per device,
//! how many chunks.
//! @throws arrange throws std::invalid_argument when the schedule has a precondition that the
//! extents miss.
template <class Schedule>
concept arranges = std::copyable<Schedule> &&
  requires(Schedule const schedule, int devices, int microbatches) {
  { schedule.arrange(devices, microbatches) } -> std::same_as<shape>;
};

//! @brief A schedule whose order on a device follows from the extents alone, without looking at
//! other devices.
template <class Schedule>
concept closed_form_schedule = arranges<Schedule> &&
  requires(Schedule const schedule, shape const extents, int device, row_writer out) {
  schedule.order(extents, device, out);
};

//! @brief What a generated schedule may ask of a cost model.
//!
//! `duration(pass)` is the time of a pass, `latency()` the time that a message takes between two
//! devices (it occupies neither). All times are in one unit of the user's choice.
template <class Cost>
concept cost_model = requires(Cost const cost, pass const what) {
  { cost.duration(what) } -> std::convertible_to<double>;
  { cost.latency() } -> std::convertible_to<double>;
};

namespace detail {
struct no_cost {
  [[nodiscard]] static constexpr double duration(pass const&) noexcept { return 1; }
  [[nodiscard]] static constexpr double latency() noexcept { return 0; }
};
} // namespace detail

//! @brief A schedule that orders all devices together and may look at the costs: `generate(extents,
//! cost, rows)`,
//!        where `rows[d]` is the row_writer of device d.
template <class Schedule>
concept generated_schedule = arranges<Schedule> &&
  requires(Schedule const schedule, shape const extents, row_writer* rows) {
  schedule.generate(extents, detail::no_cost{}, rows);
};

//! @brief A generated schedule that the compiler makes in several constant evaluations, whose steps
//! compilers limit one by one: `slices<P, M, Cost>` has a `state`, `start()`, `go_on(state, step)`
//! for `count` steps, and `write_row(state, device, row_writer&)`. It gives the same rows as
//! `generate`.
template <class Schedule, int Devices, int Microbatches, class Cost>
concept sliced_schedule = generated_schedule<Schedule> &&
  requires(typename Schedule::template slices<Devices, Microbatches, Cost>::state state,
           row_writer out) {
  Schedule::template slices<Devices, Microbatches, Cost>::write_row(state, 0, out);
};

//! @brief A pipeline schedule: a small value that knows its extents and the order of passes on
//! every device.
template <class Schedule>
concept schedule = closed_form_schedule<Schedule> || generated_schedule<Schedule>;

} // namespace pipelining::inline v0_1
