// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Schedules and cost models, as concepts. Header for pipelining::schedule, row_writer,
//! cost_model and parameter.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace pipelining::inline v0_3 {

//! @brief Stands for a schedule parameter that is known only at run time: `Seq1F1B<dynamic>{.chunks
//! = c}`.
inline constexpr int dynamic = -1;

namespace detail {

//! A parameter of a schedule type: in the type alone where the type gives it, so that no
//! value can contradict it; stored where the type says `dynamic`.
//!
//! @tparam Default what a stored parameter is until it is set.
template <int Value, int Default = dynamic, class Number = int>
struct parameter {
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  constexpr operator Number() const noexcept { return Value; } //!< the one in the type
};
//! A parameter that is set when the program runs.
template <int Default, class Number>
struct parameter<dynamic, Default, Number> {
  Number value = Default; //!< the number

  constexpr parameter() noexcept = default;
  //! Any number; schedules refuse those that they cannot have.
  constexpr parameter(Number given) noexcept // NOLINT(google-explicit-constructor)
      : value(given) {}
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  constexpr operator Number() const noexcept { return value; } //!< the one that is set
};

} // namespace detail

//! @brief Appends the passes of one device, in the order in which it runs them.
//!
//! Writes into storage of the caller, which holds one pass more than the capacity. That one tells
//! which pass was too many; passes after it are not kept.
struct row_writer {
  pass* passes = nullptr; //!< where passes go, in storage of the caller
  int capacity = 0;       //!< the most passes that the row can have
  int count = 0;          //!< passes written so far; above the capacity where there are too many

  //! Appends a pass.
  constexpr void push(pass const& what) {
    if (count <= capacity)
      passes[count++] = what;
  }
  //! @brief Room for the next `number` passes, all of which the caller writes.
  //! @throws std::length_error where the row has no such room.
  [[nodiscard]] constexpr pass* append(int number) {
    if (number > capacity - count)
      throw std::length_error("row_writer: a device has more passes than its stages can have");
    count += number;
    return passes + (count - number);
  }
  //! Appends the forward pass of a unit.
  constexpr void forward(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::forward, stage, microbatch, chunk));
  }
  //! Appends the fused backward pass of a unit.
  constexpr void backward(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::backward, stage, microbatch, chunk));
  }
  //! Appends the half of a backward pass that computes the gradient of the input.
  constexpr void backward_input(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::backward_input, stage, microbatch, chunk));
  }
  //! Appends the half of a backward pass that computes the gradient of the weights.
  constexpr void backward_weight(int stage, int microbatch, int chunk = 0) {
    push(make(pass_kind::backward_weight, stage, microbatch, chunk));
  }

  //! A pass from its parts.
  [[nodiscard]] static constexpr pass
  make(pass_kind kind, int stage, int microbatch, int chunk = 0) noexcept {
    return {kind,
            false,
            static_cast<std::uint16_t>(stage),
            static_cast<std::uint16_t>(microbatch),
            static_cast<std::uint16_t>(chunk)};
  }
};

namespace detail {

//! A value: it can be copied and assigned. std::copyable asks for more steps of the compiler, 10 ms
//! for each type.
template <class Value>
concept copyable = std::is_copy_constructible_v<Value> && std::is_copy_assignable_v<Value>;

//! Any type with the extents of its pipeline: which placement, how many stages per device,
//! how many chunks.
//! @throws arrange throws std::invalid_argument when the schedule has a precondition that the
//! extents miss.
template <class Schedule>
concept arranges = copyable<Schedule> &&
  requires(Schedule const schedule, int devices, int microbatches) {
  { schedule.arrange(devices, microbatches) } -> std::same_as<shape>;
};

//! A schedule in closed form: its order on a device follows from the extents alone, without looking
//! at other devices.
template <class Schedule>
concept orders_device = requires(Schedule const schedule, shape const extents, row_writer out) {
  schedule.order(extents, 0, out);
};

} // namespace detail

//! @brief The questions that a generated schedule may ask of a cost model.
//!
//! `duration(pass)` is the time of a pass, where the model has it `duration(flow, pass)` that of a
//! pass of this flow, `latency()` the time that a message takes between two
//! devices (it occupies neither). All times are in one unit of the user's choice. Where messages
//! differ, `links()` gives a time for each pair of devices, and the latency is
//! what schedules take for all of them while they order passes.
template <class Cost>
concept cost_model = requires(Cost const cost, pass const what) {
  { cost.duration(what) } -> std::convertible_to<double>;
  { cost.latency() } -> std::convertible_to<double>;
};

namespace detail {

[[nodiscard]] constexpr bool is_time(double time) noexcept {
  return time >= 0 && time <= std::numeric_limits<double>::max();
}

//! The time of a pass of a flow.
[[nodiscard]] constexpr double
time_of(cost_model auto const& cost, flow const& declared, pass const& what) {
  if constexpr (requires { cost.duration(declared, what); })
    return cost.duration(declared, what);
  else
    return cost.duration(what);
}
//! The same. @throws std::invalid_argument for one that is negative or not finite.
[[nodiscard]] constexpr double
checked_duration(cost_model auto const& cost, flow const& declared, pass const& what) {
  double const time = time_of(cost, declared, what);
  if (!is_time(time))
    throw std::invalid_argument(std::string("cost model: the time of ") + declared.word(what.kind) +
                                " on stage " + std::to_string(what.stage) + " for chunk " +
                                std::to_string(what.chunk) +
                                " must be a finite number and not negative");
  return time;
}

//! The latency. @throws std::invalid_argument for one that is negative or not finite.
[[nodiscard]] constexpr double checked_latency(cost_model auto const& cost) {
  double const time = cost.latency();
  require(is_time(time), "cost model: the latency must be a finite number and not negative");
  return time;
}

struct no_cost {
  [[nodiscard]] static constexpr double duration(pass const&) noexcept { return 1; }
  [[nodiscard]] static constexpr double latency() noexcept { return 0; }
};
//! A schedule that orders all devices together and may look at the costs: `generate(extents, cost,
//! rows)`, where `rows[d]` is the row_writer of device d; for a flow with several engines
//! `rows[e P + d]` is that of engine row e of device d.
template <class Schedule>
concept generates_rows = requires(Schedule const schedule, shape const extents, row_writer* rows) {
  schedule.generate(extents, no_cost{}, rows);
};

//! The flow that a schedule orders passes of: its static member `declared`, else `training`.
template <class Schedule>
[[nodiscard]] constexpr flow const& flow_of() noexcept {
  if constexpr (requires { Schedule::declared; })
    return Schedule::declared;
  else
    return training;
}

//! A schedule made of another, its member `of`. Placement and chunks are those of the other,
//! and the edges too where it gives none itself.
template <class Schedule>
concept adapts_schedule = arranges<Schedule> && requires(Schedule const schedule) {
  requires arranges<std::remove_cvref_t<decltype(schedule.of)>>;
};

//! The schedule at the bottom of adapters, which places the stages.
template <class Schedule>
[[nodiscard]] constexpr auto const& adapted(Schedule const& plan) noexcept {
  if constexpr (adapts_schedule<Schedule>)
    return adapted(plan.of);
  else
    return plan;
}

//! The type of that schedule.
template <class Schedule>
using adapted_type = std::remove_cvref_t<decltype(adapted(std::declval<Schedule const&>()))>;

//! A schedule with a placement of its own: `device_of(shape, stage, route)` says where each
//! stage is, and `arrange` gives `placement::custom` and the number of routes.
template <class Schedule>
concept places_stages = requires(Schedule const schedule, shape const extents) {
  { schedule.device_of(extents, 0, 0) } -> std::convertible_to<int>;
};

//! A schedule of microbatches of unequal numbers of chunks: `chunks_of(shape, microbatch)`;
//! the extents name the largest number.
template <class Schedule>
concept counts_chunks = requires(Schedule const schedule, shape const extents) {
  { schedule.chunks_of(extents, 0) } -> std::convertible_to<int>;
};

//! A schedule for stages that are no chain: `edges_of(shape)` gives a range of `stage_edge`,
//! and `groups_of(shape)`, where stages share out work, one of `stage_group`. For timetables that
//! the program makes.
template <class Schedule>
concept joins_stages = requires(Schedule const schedule, shape const extents) {
  { *std::begin(schedule.edges_of(extents)) } -> std::convertible_to<stage_edge>;
};

} // namespace detail

//! @brief A pipeline schedule: a small value that knows its extents and the order of passes on
//! every device.
template <class Schedule>
concept schedule = detail::arranges<Schedule> &&
  (detail::orders_device<Schedule> || detail::generates_rows<Schedule>);

namespace detail {

//! Each requirement of the concept `schedule` in a sentence. To be named where one is missing.
template <class Schedule>
struct schedule_requirements {
  static constexpr bool arranges = requires(Schedule const plan, int number) {
    plan.arrange(number, number);
  };

  static_assert(copyable<Schedule>,
                "schedule: a schedule is a value; this type cannot be copied and assigned. Keep "
                "only its parameters in it");
  static_assert(arranges,
                "schedule: a const member `shape arrange(int devices, int microbatches)` is "
                "missing. It gives the extents: placement, stages per device, chunks");
  static_assert(!arranges || pipelining::detail::arranges<Schedule> || !copyable<Schedule>,
                "schedule: `arrange` must return a pipelining::shape");
  static_assert(orders_device<Schedule> || generates_rows<Schedule>,
                "schedule: the order of passes is missing. Write a const member `void order(shape "
                "const& extents, int device, row_writer& out)` where it follows from the extents, "
                "or `void generate(shape const& extents, auto const& cost, row_writer* rows)` "
                "where devices are ordered together or costs matter");
};

//! How many entries the table of a schedule's own placement has, or of its own numbers of chunks.
template <class Schedule>
[[nodiscard]] constexpr int holder_count(shape const& extents) noexcept {
  return places_stages<adapted_type<Schedule>> ? extents.stages() * extents.routes() : 0;
}
template <class Schedule>
[[nodiscard]] constexpr int first_unit_count(shape const& extents) noexcept {
  return counts_chunks<adapted_type<Schedule>> ? extents.microbatches + 1 : 0;
}

//! Writes where stages are, [routes][S], and where the units of microbatches begin, [M + 1], where
//! the schedule says so itself.
//! @throws std::invalid_argument for a device that there is not, and a number of chunks that cannot
//! be.
template <class Schedule>
constexpr void
write_tables(Schedule const& plan, shape const& extents, std::uint16_t* holders, int* first_units) {
  constexpr bool places = places_stages<adapted_type<Schedule>>;
  require(!places || extents.where == placement::custom,
          "shape: a schedule with device_of places its stages itself; its arrange must give "
          "placement::custom");
  require(places || extents.where != placement::custom,
          "shape: a schedule with placement::custom needs a member device_of(shape, stage, route) "
          "that says where each stage is");
  if constexpr (places)
    for (int i = 0; i < holder_count<Schedule>(extents); ++i) {
      int const stage = i % extents.stages();
      int const device = adapted(plan).device_of(extents, stage, i / extents.stages());
      if (device < 0 || device >= extents.devices)
        throw std::invalid_argument("shape: device_of gives stage " + std::to_string(stage) +
                                    " to device " + std::to_string(device) + ", but there are " +
                                    std::to_string(extents.devices) + " devices");
      holders[i] = static_cast<std::uint16_t>(device);
    }
  if constexpr (counts_chunks<adapted_type<Schedule>>)
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch) {
      int const chunks = adapted(plan).chunks_of(extents, microbatch);
      if (chunks < 1 || chunks > extents.chunks)
        throw std::invalid_argument("shape: chunks_of gives microbatch " +
                                    std::to_string(microbatch) + " " + std::to_string(chunks) +
                                    " chunks; there must be 1 to shape::chunks, " +
                                    std::to_string(extents.chunks));
      first_units[microbatch + 1] = first_units[microbatch] + chunks;
    }
}

} // namespace detail

} // namespace pipelining::inline v0_3
