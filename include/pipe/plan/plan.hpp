// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable lowered for execution, and its steps in words. Header for pipelining::plan
//! and pipelining::step_validation.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Where a plan with totals validates the step of the optimizer.
//!
//! At once: all rows reach all stages before any steps, so every device waits for the last one.
//! Afterwards: rows go from device 0 to the last one; each device steps as soon as it has the rows
//! of the devices before it, and begins the next iteration. There all rows come back, from the last
//! device to device 0, before its first pass that is no forward pass of its lowest stage. Where
//! they tell that the step was wrong, stages roll back, step anew, and the iteration begins again.
//! @source Qi et al. 2024, Zero Bubble Pipeline Parallelism, section 4 and appendix C
enum class step_validation : std::uint8_t {
  at_once, //!< in the iteration itself
  next,    //!< in the plan that follows; this one finds nothing to validate: the first iteration
  both,    //!< the step of the plan before, and this one's in the plan that follows: all others
  last     //!< the step of the plan before, and nothing else: no passes
};

namespace detail {

//! True where stages step before they have all rows.
[[nodiscard]] constexpr bool steps_early(step_validation when) noexcept {
  return when == step_validation::next || when == step_validation::both;
}

//! True where the step of the plan before is validated.
[[nodiscard]] constexpr bool validates(step_validation when) noexcept {
  return when == step_validation::both || when == step_validation::last;
}

//! Where the slots of one class lie in the arena of a device.
struct slot_layout {
  int count = 0;           //!< slots, the most that are in use at once
  int peak_item = nothing; //!< the item of the device that is the first to need all of them
  std::int64_t bytes = 0;  //!< of one slot, a multiple of the alignment
  std::int64_t offset = 0; //!< of slot 0 in the arena
  std::int64_t asked = 0;  //!< the most bytes of one slot that the sizes ask for

  friend constexpr bool operator==(slot_layout const&, slot_layout const&) = default;
};

//! The key of the communicator that carries messages from one device to another.
using communicator_key = std::int64_t (*)(int from, int to);

} // namespace detail

//! @brief Everything that is decided before the first step: programs, slots, waits and one arena
//! layout per device.
struct plan {
  pipeline over{};                        //!< the pipeline that it is of, with its table of holders
  char const* policy = "";                //!< the name of the communication policy
  detail::communicator_key key = nullptr; //!< messages with equal keys share a communicator
  bool duplex_groups = true;              //!< groups may hold messages of both directions
  bool evaluates = false;                 //!< forward passes only
  std::int64_t tied_bytes = 0;            //!< of the gradient of a tied weight; 0: none is tied
  std::int64_t totals_bytes = 0;          //!< of a stage's row of the totals; 0: no totals
  int other_messages = 0;                 //!< messages that no pass makes
  std::vector<item> items{};              //!< row after row, each in its order
  std::vector<int> offsets{};             //!< [P + 1], where a device's items begin
  std::vector<int> waits{}; //!< what items wait for, item after item: numbers on their device
  std::vector<use> uses{};  //!< of slots, item after item
  std::vector<detail::message_end> messages{};           //!< their ends, item after item
  std::vector<int> lanes{};                              //!< [P], lanes of each device
  std::vector<detail::slot_layout> layouts{};            //!< [P][slot_classes]
  std::vector<std::int64_t> arena_bytes{};               //!< [P]
  std::vector<std::int64_t> host_bytes{};                //!< [P], of the arenas on the host
  step_validation validation = step_validation::at_once; //!< of the step of the optimizer
  //! The numbers of the exchanges that messages are part of, the same at all of their ends; empty
  //! where none is. An exchange is one step of all devices that take part.
  std::vector<int> exchanges{};

  //! @brief The lanes of a device.
  [[nodiscard]] int lanes_of(int device) const noexcept { return lanes.data()[device]; }
  //! @brief The streams of a device: one that computes, one for each lane, one for each engine that
  //! copies.
  [[nodiscard]] int streams(int device) const noexcept {
    return lanes_of(device) + over.declared.engines;
  }
  //! @brief Bytes of a device's arena.
  [[nodiscard]] std::int64_t arena_bytes_of(int device) const noexcept {
    return arena_bytes.data()[device];
  }
  //! @brief Bytes of a device's arena on the host.
  [[nodiscard]] std::int64_t host_bytes_of(int device) const noexcept {
    return host_bytes.empty() ? 0 : host_bytes.data()[device];
  }
  //! @brief The program of one device.
  [[nodiscard]] std::span<item const> program_of(int device) const noexcept {
    int const* const first = offsets.data() + device;
    return {items.data() + first[0], static_cast<std::size_t>(first[1] - first[0])};
  }
  //! The items of the device that an item waits for.
  [[nodiscard]] std::span<int const> waits_of(item const& step) const noexcept {
    return {waits.data() + step.first_wait, step.wait_count};
  }
  //! The slots that an item uses.
  [[nodiscard]] std::span<use const> uses_of(item const& step) const noexcept {
    return {uses.data() + step.first_use, step.use_count};
  }
  //! The slot that an item is handed in a place, the first one of a list; `nothing` where there is
  //! none.
  [[nodiscard]] use use_at(detail::slot_place place, item const& step) const noexcept {
    for (use const& one : uses_of(step))
      if (one.at == place)
        return one;
    return {};
  }
  //! The message of an item that sends or receives.
  [[nodiscard]] detail::message_end const& message_of(item const& step) const noexcept {
    return messages.data()[step.message];
  }
  //! The exchange that the message of an item is part of, or `nothing`.
  [[nodiscard]] int exchange_at(item const& step) const noexcept {
    auto const at = static_cast<std::size_t>(step.message);
    return at < exchanges.size() ? exchanges.data()[at] : nothing;
  }
  //! The layout of the slots of a class.
  [[nodiscard]] detail::slot_layout const& layout(int device, slot_class of) const noexcept {
    return layouts.data()[device * detail::slot_classes + static_cast<int>(of)];
  }
};

namespace detail {

//! True for a plan with steps that follow complete gradients.
[[nodiscard]] constexpr bool has_hooks(auto const& work) noexcept {
  return work.tied_bytes + work.totals_bytes > 0;
}

//! The rows of totals or of copies that a step is about, which has one use; else 0, as where that
//! use does not exist.
[[nodiscard]] inline int rows_of(plan const& work, item const& step) noexcept {
  bool const some = step.about == subject::add_copies ||
                    (step.about != subject::pass && class_of(step.about) == slot_class::totals);
  auto const at = static_cast<std::size_t>(step.first_use);
  return some && step.use_count > 0 && at < work.uses.size() ? work.uses[at].count : 0;
}

//! The number of values of `message_index`.
[[nodiscard]] inline int message_indices(plan const& work) noexcept {
  pipeline_view const over = work.over;
  return over.pass_indices() * graph_width(over) + work.other_messages;
}

//! A dense number for a message, the same at both of its ends. Inlined: proofs ask at every end.
//! @param over the pipeline of the plan @param step one of them
[[nodiscard, gnu::always_inline]] inline int
message_index(plan const& work, pipeline_view const& over, item const& step) noexcept {
  int const maker = step.about == subject::pass ? pass_index(over, step.work) : over.pass_indices();
  return maker * graph_width(over) + work.message_of(step).number;
}

} // namespace detail

//! @brief The device that holds `stage` for `microbatch` in a plan.
[[nodiscard]] inline int device_of(plan const& work, int stage, int microbatch = 0) noexcept {
  return device_of(work.over, stage, microbatch);
}

namespace detail {

//! The item after the last validation of a device. The items before it may have to run
//! again. 0 where the device never validates.
//! @complexity O(n) for n items of the device.
[[nodiscard]] inline int behind_validation(plan const& work, int device) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = steps.size(); validates(work.validation) && i > 0; --i)
    if (steps[i - 1].about == subject::validation)
      return static_cast<int>(i);
  return 0;
}

//! The messages that a device sends to another before it validates.
//! @complexity O(n) for n items of the device.
[[nodiscard]] inline int sent_early(plan const& work, int from, int to) noexcept {
  item const* const steps = work.program_of(from).data();
  int const end = behind_validation(work, from);
  int sent = 0;
  for (int i = 0; i < end; ++i)
    sent += steps[i].what == operation::send && work.message_of(steps[i]).peer == to ? 1 : 0;
  return sent;
}

//! True for a message to a device that comes even where the iteration begins again: its
//! sender has not validated yet when it sends it.
//! @complexity O(n) for n items of the sender.
[[nodiscard]] inline bool arrives_early(plan const& work, int device, item const& step) noexcept {
  return step.what == operation::receive &&
         work.message_of(step).sequence < sent_early(work, work.message_of(step).peer, device);
}

//! The slots that a step uses that is not about a pass. They are given, not taken: both ends of a
//! message use the same.
//! @param rows of totals that a message gathers
[[nodiscard]] constexpr use
given_use(pipeline_view const& over, item const& step, int rows) noexcept {
  int const stage = step.work.stage;
  bool const fills =
    step.what == operation::receive || (step.what == operation::run && hands_over(step.about));
  auto const some = [&](int first, int count) -> use {
    return {class_of(step.about),
            fills ? slot_place::outputs : slot_place::inputs,
            static_cast<std::uint16_t>(count),
            first};
  };
  switch (step.about) {
  case subject::copied_gradient:
    return some(copies_below(over, stage, device_of(over, step.work)), 1);
  case subject::add_copies: return some(0, copies_of(over, stage));
  case subject::tied_gradient: return some(stage == 0 ? 0 : 1, 1);
  case subject::add_tied: return some(0, 2);
  case subject::contribution: return some(stage, 1);
  case subject::gather: return some(stage, rows);
  default: return some(0, over.extents.stages());
  }
}

//! @brief The number of values of `exchange_of`.
[[nodiscard]] constexpr int exchange_indices(pipeline_view const& over) noexcept {
  return over.pass_indices() * over.declared->data_count;
}

//! @brief A dense number for the exchange that the message for a reader of `maker` is part of, or
//! `nothing` where neither end is a stage of a group.
//!
//! An exchange is all messages that carry one datum of one unit between a group of stages and those
//! before or after it, or within the group: a broadcast to the group, a gather from it, or an
//! all-gather.
//! @pre reader_of(over, maker, number).stage is a stage.
[[nodiscard]] constexpr int
exchange_of(pipeline_view const& over, pass const& maker, int number) noexcept {
  if (over.edges == nullptr)
    return nothing;
  product_reader const reader = reader_of(over, maker, number);
  pass first = maker; // that names it
  if (over.in_group(maker.stage))
    first.stage = static_cast<std::uint16_t>(over.graph().edge(maker.stage, group_step, 0).stage);
  else if (!over.in_group(reader.stage))
    return nothing;
  return pass_index(over, first) * over.declared->data_count + reader.product;
}

//! The subject of a step in words: "forward of stage 1, microbatch 0" or "totals of stage 2".
[[nodiscard]] inline std::string describe_subject(item const& step, plan const& work) {
  std::string const stage = " stage " + std::to_string(step.work.stage);
  switch (step.about) {
  case subject::pass: return describe(step.work, work.over);
  case subject::copied_gradient: return "gradient of a copy of" + stage;
  case subject::add_copies: return "addition of the gradients of all copies of" + stage;
  case subject::tied_gradient: return "tied gradient of" + stage;
  case subject::add_tied: return "addition of the tied gradients on" + stage;
  case subject::contribution: return "totals of" + stage;
  case subject::gather: {
    int const rows = rows_of(work, step);
    return rows == 1 ? "totals of" + stage
                     : "totals of stages " + std::to_string(step.work.stage) + " to " +
                         std::to_string(step.work.stage + rows - 1);
  }
  case subject::spread: return "totals of all stages";
  case subject::update: return "optimizer step of" + stage;
  case subject::early_update: return "early optimizer step of" + stage;
  case subject::validation: return "validation of the optimizer step of" + stage;
  }
  return "unknown step";
}

} // namespace detail

//! @brief A step in words: "send what comes of the forward of stage 1, microbatch 0 to device 2".
[[nodiscard]] inline std::string describe(item const& step, plan const& work) {
  bool const runs = step.what == operation::run;
  std::string text = detail::word(step.what);
  text += runs || step.about != detail::subject::pass ? " " : " what comes of ";
  text += "the " + detail::describe_subject(step, work);
  if (!runs && static_cast<std::size_t>(step.message) < work.messages.size())
    text += (step.what == operation::send ? " to device " : " from device ") +
            std::to_string(work.message_of(step).peer);
  return text;
}

} // namespace pipelining::inline v0_3
