// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What flows through which devices: extents, flow, placement, chunks and stage graph of one
//! pipeline.
//! Header for pipelining::pipeline and pipelining::pipeline_view.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3 {

struct pipeline;

//! @brief A pipeline as functions look at it. Owns nothing: a `pipeline` does, or a constant of the
//! compiler. Cheap to copy.
struct pipeline_view {
  shape extents{};                  //!< P, M, C, V and the placement
  flow const* declared = &training; //!< what passes do
  //! For a custom placement: the device of every stage, route after route, [routes][S].
  std::uint16_t const* holders = nullptr;
  //! For microbatches of unequal numbers of chunks: the first unit of each, [M + 1].
  int const* first_units = nullptr;
  //! For stages that are no chain: the table of their edges.
  int const* edges = nullptr;

  //! The same with tables of its own.
  [[nodiscard]] pipeline copy() const;
  //! Units that flow through the pipeline: chunks of microbatches.
  [[nodiscard]] constexpr int units() const noexcept { return first_unit(extents.microbatches); }
  //! The first unit of a microbatch; of number M, the number of units.
  [[nodiscard]] constexpr int first_unit(int microbatch) const noexcept {
    return first_units == nullptr ? microbatch * extents.chunks : first_units[microbatch];
  }
  //! The chunks of a microbatch.
  [[nodiscard]] constexpr int chunks_of(int microbatch) const noexcept {
    return first_units == nullptr ? extents.chunks
                                  : first_units[microbatch + 1] - first_units[microbatch];
  }
  //! The number of the unit of a pass.
  [[nodiscard]] constexpr int unit_of(pass const& what) const noexcept {
    return first_unit(what.microbatch) + what.chunk;
  }
  //! The edges between its stages.
  [[nodiscard]] constexpr detail::stage_graph graph() const noexcept {
    return {edges, extents.stages()};
  }
  //! True for a stage of a group, such as a shard of a vocabulary.
  [[nodiscard]] constexpr bool in_group(int stage) const noexcept {
    return edges != nullptr && graph().edges(stage, detail::group_step) > 0;
  }
  //! True when kind, stage, microbatch and chunk of a pass exist, and its kind runs on such stages.
  [[nodiscard]] constexpr bool contains(pass const& what) const noexcept {
    return declared->has(what.kind) && what.stage < extents.stages() &&
           what.microbatch < extents.microbatches && what.chunk < chunks_of(what.microbatch) &&
           (*declared)[what.kind].in_groups == (edges != nullptr && in_group(what.stage));
  }
  //! Lines: rows of the flow, by stages, by routes.
  [[nodiscard]] constexpr int lines() const noexcept {
    return declared->rows * extents.stages() * extents.routes();
  }
  //! The links of a pass: lines that it waits for and makes.
  [[nodiscard]] constexpr detail::kind_links const& links_of(pass const& what) const noexcept;
  //! The number of values of `pass_index`.
  [[nodiscard]] constexpr int pass_indices() const noexcept {
    return declared->rows * extents.stages() * units();
  }
  //! Rows of passes of all devices: one per device for each engine of the flow, engine after
  //! engine.
  [[nodiscard]] constexpr int row_count() const noexcept {
    return extents.devices * declared->engines;
  }
  //! The row that a pass stands in.
  [[nodiscard]] constexpr int row_of(pass const& what) const noexcept;
};

namespace detail {

//! A flow, copied as bytes. Compilers write the fields of a constant one by one, at every place.
[[nodiscard]] inline flow copied(flow const& declared) noexcept {
  return declared;
}

//! The most stages that read what one stage makes: 1 for a chain.
[[nodiscard]] constexpr int graph_width(pipeline_view const& over) noexcept {
  return over.edges == nullptr ? 1 : over.edges[0] < 0 ? -over.edges[0] : over.edges[0];
}

} // namespace detail

//! @brief A pipeline that owns its tables. Orders, timetables and plans hold one by value.
struct pipeline {
  shape extents{};                          //!< P, M, C, V and the placement
  flow declared = detail::copied(training); //!< what passes do
  std::vector<std::uint16_t> holders{};     //!< of a custom placement: [routes][S], else empty
  std::vector<int> first_units{};           //!< of unequal numbers of chunks: [M + 1], else empty
  std::vector<int> edges{}; //!< of stages that are no chain: `edge_table`, else empty

  //! The same as functions look at it, valid as long as this is.
  [[nodiscard]] pipeline_view view() const noexcept {
    return {.extents = extents,
            .declared = &declared,
            .holders = holders.empty() ? nullptr : holders.data(),
            .first_units = first_units.empty() ? nullptr : first_units.data(),
            .edges = edges.empty() ? nullptr : edges.data()};
  }
  //! As `view`.
  operator pipeline_view() const noexcept { return view(); } // NOLINT(google-explicit-constructor)
};

inline pipeline pipeline_view::copy() const {
  pipeline result{.extents = extents, .declared = *declared};
  auto const copy_to = [](auto& table, auto const* values, int count) {
    table = {values, values + count};
  };
  if (holders != nullptr)
    copy_to(result.holders, holders, extents.stages() * extents.routes());
  if (first_units != nullptr)
    copy_to(result.first_units, first_units, extents.microbatches + 1);
  copy_to(result.edges, edges, graph().size());
  return result;
}

//! @brief The device that holds `stage` for `microbatch`.
[[nodiscard]] constexpr int
device_of(pipeline_view const& over, int stage, int microbatch = 0) noexcept {
  if (over.holders == nullptr)
    return device_of(over.extents, stage, microbatch);
  return over.holders[over.extents.route_of(microbatch) * over.extents.stages() + stage];
}

//! @brief The device that runs `what`.
[[nodiscard]] constexpr int device_of(pipeline_view const& over, pass const& what) noexcept {
  return device_of(over, what.stage, what.microbatch);
}

namespace detail {

//! @brief A microbatch that has a stage on a device, or -1 where the device has no copy of it.
//! @complexity O(routes)
[[nodiscard]] constexpr int
microbatch_on(pipeline_view const& over, int stage, int device) noexcept {
  shape const& extents = over.extents;
  for (int route = 0; route < extents.routes() && route < extents.microbatches; ++route) {
    int const microbatch = microbatch_of(extents, route);
    if (device_of(over, stage, microbatch) == device)
      return microbatch;
  }
  return -1;
}

//! @brief Calls `visit(device, microbatch)` for every copy of a stage, in the order of devices:
//! each takes other microbatches, such as this one, and adds up their gradients.
template <class Visit>
constexpr void for_each_copy(pipeline_view const& over, int stage, Visit visit) {
  if (over.extents.routes() == 1)
    return visit(device_of(over, stage), 0);
  for (int device = 0; device < over.extents.devices; ++device)
    if (int const microbatch = microbatch_on(over, stage, device); microbatch >= 0)
      visit(device, microbatch);
}

//! @brief The copies of a stage on the devices below one; on all: 1 where microbatches take one
//! way.
[[nodiscard]] constexpr int
copies_below(pipeline_view const& over, int stage, int device) noexcept {
  int count = 0;
  for_each_copy(over, stage, [&](int at, int) { count += at < device ? 1 : 0; });
  return count;
}
//! @brief All of them.
[[nodiscard]] constexpr int copies_of(pipeline_view const& over, int stage) noexcept {
  return copies_below(over, stage, over.extents.devices);
}
//! @brief The most copies that a stage can have.
[[nodiscard]] constexpr int most_copies(shape const& extents) noexcept {
  return extents.routes() < extents.devices ? extents.routes() : extents.devices;
}

//! The unit of a pass in its graph.
[[nodiscard]] constexpr stage_unit unit_in_graph(pipeline_view const& over,
                                                 pass const& of) noexcept {
  return {of.stage, of.chunk, over.chunks_of(of.microbatch)};
}
//! Where a pass of a graph stands: `has_before` + `has_after`. By itself, so that what chains do
//! stays small enough to be inlined.
[[nodiscard, gnu::noinline]] constexpr int position_in_graph(pipeline_view const& over,
                                                             pass const& what) noexcept {
  return over.edges[0] < 0 ? over.graph().position(unit_in_graph(over, what))
                           : *over.graph().first(what.stage, 0) & (has_before | has_after);
}
[[nodiscard, gnu::noinline]] constexpr int
neighbours_across(pipeline_view const& over, pass const& of, int step) noexcept {
  return over.graph().neighbours(unit_in_graph(over, of), step);
}
[[nodiscard, gnu::noinline]] constexpr stage_neighbour
neighbour_across(pipeline_view const& over, pass const& of, int step, int number) noexcept {
  return over.graph().neighbour(unit_in_graph(over, of), step, number);
}
//! How many units of other stages are before (step -1), after (step +1) or `group_step` a pass.
[[nodiscard]] constexpr int
neighbours(pipeline_view const& over, pass const& of, int step) noexcept {
  return over.graph().names_chunks() ? neighbours_across(over, of, step)
                                     : over.graph().edges(of.stage, step);
}
//! One of them. @pre 0 <= number < neighbours(over, of, step)
[[nodiscard]] constexpr stage_neighbour
neighbour(pipeline_view const& over, pass const& of, int step, int number) noexcept {
  if (over.graph().names_chunks())
    return neighbour_across(over, of, step, number);
  stage_neighbour result = over.graph().edge(of.stage, step, number);
  result.chunk = of.chunk;
  return result;
}

//! @brief True for a stage without weights to train that has none before it: it has only forward
//! passes, which keep nothing, and takes no gradient.
[[nodiscard]] constexpr bool goes_forward_only(pipeline_view const& over, int stage) noexcept {
  return over.edges != nullptr && (*over.graph().first(stage, 0) & only_forward) != 0;
}
//! Whether passes of a kind are wanted on a stage at all.
[[nodiscard]] constexpr bool
is_wanted(pipeline_view const& over, pass_kind kind, int stage) noexcept {
  return !goes_forward_only(over, stage) || (*over.declared)[kind].calls == stage_call::forward;
}
//! Whether every unit of a stage must have what a row is of.
[[nodiscard]] constexpr bool wants(pipeline_view const& over, int row, int stage) noexcept {
  flow const& declared = *over.declared;
  if (!goes_forward_only(over, stage))
    return declared.wanted[row];
  for (int of = 0; of < declared.data_count; ++of)
    if (declared.row_of[of] == row && declared.data[of].wanted && declared.reader_step[of] == 1)
      return true;
  return false;
}
//! True for a pass that a device may run before it knows whether the step of the optimizer
//! was right: a forward pass of its lowest stage, which needs nothing of this iteration but such
//! passes, and can run again.
[[nodiscard]] constexpr bool
may_run_again(pipeline_view const& over, int device, pass const& what) noexcept {
  if ((*over.declared)[what.kind].calls != stage_call::forward)
    return false;
  for (int stage = 0; stage < what.stage; ++stage)
    if (device_of(over, stage) == device)
      return false;
  return true;
}
//! A copy with the holders of all stages in a table, which walks over many passes read without a
//! division.
[[nodiscard]] inline pipeline with_holders(pipeline_view const& of) {
  pipeline result = of.copy();
  auto const count = static_cast<std::size_t>(of.extents.routes() * of.extents.stages());
  result.holders = std::vector<std::uint16_t>(count);
  std::uint16_t* next = result.holders.data();
  for (int route = 0; route < of.extents.routes(); ++route)
    for (int stage = 0; stage < of.extents.stages(); ++stage)
      *next++ = static_cast<std::uint16_t>(device_of(of, stage, microbatch_of(of.extents, route)));
  return result;
}

} // namespace detail

constexpr detail::kind_links const& pipeline_view::links_of(pass const& what) const noexcept {
  int const after = edges != nullptr ? detail::position_in_graph(*this, what) / detail::has_after
                    : what.stage + 1 < extents.stages() ? 1
                                                        : 0;
  return declared->links[detail::index_of(what.kind)][after];
}

constexpr int pipeline_view::row_of(pass const& what) const noexcept {
  int const on = static_cast<int>((*declared)[what.kind].on);
  return declared->engine_row[on] * extents.devices + device_of(*this, what);
}

namespace detail {

//! A dense number for what a pass makes: kinds that make the same row (`backward` and
//! `backward_input`) share one, since a unit has one of them.
//! @param row one of those that it makes
[[nodiscard]] constexpr int
pass_index(pipeline_view const& over, pass const& what, int row) noexcept {
  return (row * over.extents.stages() + what.stage) * over.units() + over.unit_of(what);
}
//! The same of the first row, which names the pass.
[[nodiscard]] constexpr int pass_index(pipeline_view const& over, pass const& what) noexcept {
  return pass_index(over, what, over.links_of(what).made[0]);
}

//! The kind that a row is named after.
[[nodiscard]] constexpr pass_kind namer_of(flow const& declared, int row) noexcept {
  for (int kind = 0; kind < declared.kind_count; ++kind)
    if (declared.kinds[kind].exists() && declared.links[kind][0].made[0] == row)
      return static_cast<pass_kind>(kind);
  return pass_kind{};
}

//! The same for a stage: of the kinds that run on it, the first that reads a stage before or
//! after it, else its group, else nobody.
[[nodiscard]] constexpr pass_kind namer_of(pipeline_view const& over, int row, int stage) noexcept {
  pass_kind best = namer_of(*over.declared, row);
  int rank = 0;
  for (int kind = 0; kind < over.declared->kind_count; ++kind) {
    pass const what{static_cast<pass_kind>(kind), false, static_cast<std::uint16_t>(stage), 0, 0};
    if (!over.contains(what) || over.links_of(what).made[0] != row)
      continue;
    kind_links const& links = over.links_of(what);
    bool const reads =
      links.input != kind_links::none && over.graph().edges(stage, links.input_step) > 0;
    int const found = !reads ? 1 : links.input_step == group_step ? 2 : 3;
    best = found > rank ? what.kind : best;
    rank = found > rank ? found : rank;
  }
  return best;
}

//! The pass of a number; the row of input gradients gives `backward`.
//! @pre 0 <= index < pass_indices(over)
[[nodiscard]] constexpr pass pass_at(pipeline_view const& over, int index) noexcept {
  int const unit = index % over.units();
  int const row_and_stage = index / over.units();
  int const stage_count = over.extents.stages();
  int microbatch = over.first_units == nullptr ? unit / over.extents.chunks : 0;
  while (unit >= over.first_unit(microbatch + 1))
    ++microbatch;
  return {namer_of(over, row_and_stage / stage_count, row_and_stage % stage_count),
          false,
          static_cast<std::uint16_t>(row_and_stage % stage_count),
          static_cast<std::uint16_t>(microbatch),
          static_cast<std::uint16_t>(unit - over.first_unit(microbatch))};
}

//! The most passes that one row can have.
[[nodiscard]] constexpr int row_capacity(pipeline_view const& over) {
  shape const& extents = over.extents;
  owned<int> const held(extents.devices, 0); // stages of routes
  int most = 0;
  for (int i = 0; i < extents.stages() * extents.routes(); ++i) {
    int const microbatch = microbatch_of(extents, i / extents.stages());
    most = std::max(most, ++held[device_of(over, i % extents.stages(), microbatch)]);
  }
  int const per_route = (extents.microbatches - 1) / extents.routes() + 1;
  return over.declared->rows * most * std::min(over.units(), per_route * extents.chunks);
}
} // namespace detail

} // namespace pipelining::inline v0_3
