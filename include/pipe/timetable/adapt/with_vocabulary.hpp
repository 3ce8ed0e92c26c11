// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule with a vocabulary in shards around its stages. Header for
//! pipelining::with_vocabulary.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A row of such an order around 1F1B. Passes of each kind go by microbatch; those after the last
//! are left out.
struct vocabulary_row {
  int devices;
  int microbatches;
  int device;
  row_writer& out;
  int counts[flow::most_kinds]{}; //!< passes so far

  [[nodiscard]] int count(pass_kind kind) const { return counts[index_of(kind)]; }
  [[nodiscard]] int left(pass_kind kind) const { return microbatches - count(kind); }
  //! The next pass of each of some kinds, so many times.
  void push(std::initializer_list<pass_kind> kinds, int times = 1) {
    for (int i = 0; i < times; ++i)
      for (pass_kind const kind : kinds) {
        bool const inside = kind == pass_kind::forward || kind == pass_kind::backward;
        bool const last = kind == pass_kind::logits || kind == pass_kind::logits_gradient;
        int const stage = (inside ? 1 : last ? 2 : 0) * devices + device;
        if (left(kind) > 0)
          out.push(row_writer::make(kind, stage, counts[index_of(kind)]++));
      }
  }
};

//! Where `logits` stand on a device in the published order around 1F1B.
struct logits_place {
  bool after_forward = false; //!< after forward passes, else after backward passes
  int ahead = 0;              //!< steps of them before the first backward pass
};

//! Finds the places on all devices, such that `logits` of one microbatch are as near to each other
//! as the passes between allow.
//! @param places [P], as they are by default
void place_logits(logits_place* places, int devices, cost_model auto const& cost) {
  double forward = 0;
  double backward = 0;
  for (int stage = devices; stage < 2 * devices; ++stage) {
    forward += cost.duration(row_writer::make(pass_kind::forward, stage, 0)) / devices;
    backward += cost.duration(row_writer::make(pass_kind::backward, stage, 0)) / devices;
  }
  double offset = 0;
  for (int device = devices - 1; device-- > 0;) {
    logits_place const& next = places[device + 1];
    if (next.after_forward)
      offset += backward - forward;
    else if (offset - forward >= -backward)
      offset -= forward;
    else
      places[device].after_forward = true;
    places[device].ahead = next.ahead + (next.after_forward ? 0 : 1);
  }
}

//! Writes the published order around 1F1B on one device. A step is the gradients of the last
//! logits, then the next logits: one set of logits at a time. With one barrier nobody waits for the
//! last gradients of all, which come at the end.
//! @param first steps ahead of device 0
inline void
write_vocabulary_1f1b(vocabulary_row row, logits_place const& here, int first, int barriers) {
  using enum pass_kind;
  bool const two = barriers == 2;
  int const due = first + barriers - 1;
  int steps = 1; // of logits, and with two barriers that of the last gradients
  auto const step = [&](bool embeds, bool returns) { // passes of the embedding, if they are due
    embeds = embeds && steps >= due;
    returns = returns && steps >= due + 2;
    if (row.left(logits_gradient) > 0 && (two || row.left(logits) > 0)) {
      ++steps;
      row.push({logits_gradient, logits});
    }
    row.push({embed}, embeds ? 1 : 0);
    row.push({embed_gradient}, returns ? 1 : 0);
  };
  int const warm_up = std::min(row.devices - row.device, row.microbatches);
  row.push({embed}, std::min(row.devices, row.microbatches) - warm_up + 1);
  row.push({embed, forward}, warm_up);
  row.push({logits});
  row.push({embed}, two ? 1 : 0);
  row.push({forward});
  if (two) {
    step(false, false);
    row.push({forward});
  }
  for (int i = 0; i < here.ahead; ++i)
    step(true, false);
  while (row.left(forward) > 0) {
    row.push({backward});
    if (!here.after_forward)
      step(true, true);
    row.push({forward});
    if (here.after_forward)
      step(true, true);
  }
  while (row.left(backward) > 0) {
    row.push({backward});
    step(false, true);
  }
  row.push({embed_gradient}, row.left(embed_gradient));
  row.push({logits_gradient}, row.left(logits_gradient));
}

//! Writes the published interlaced order on one device: `logits` and their gradients are one step,
//! which all devices take at the same time, since the exchange of statistics inside it joins them.
inline void write_interlaced_1f1b(vocabulary_row row) {
  using enum pass_kind;
  int const devices = row.devices;
  int const after = devices - 1 - row.device;                  // devices after this one
  int const first_steps = std::min(devices, row.microbatches); // of device 0 before its first B
  // The embedding is due when device 0 has its forward passes of the warm-up after it, and its
  // first backward passes.
  auto const step = [&] {
    row.push({logits, logits_gradient});
    row.push({embed}, row.count(logits) >= first_steps ? 1 : 0);
    row.push({embed_gradient}, row.count(logits) >= first_steps + 2 - devices % 2 ? 1 : 0);
  };
  int const warm_up = std::min(devices * 3 / 2 - row.device, row.microbatches);
  int const steps = std::min(after + 1, row.microbatches);
  row.push({embed}, row.device + 1);
  row.push({embed, forward}, warm_up);
  for (int i = 0; i < steps; ++i)
    step();
  for (int i = steps + after / 2; i < warm_up; ++i) {
    row.push({backward});
    step();
  }
  bool const backward_first = after % 2 == 0;
  while (row.left(forward) > 0) {
    row.push({backward_first ? backward : forward, backward_first ? forward : backward});
    step();
  }
  while (row.left(backward) > 0) {
    row.push({backward});
    if (row.left(logits) > 0)
      step();
    else
      row.push({embed_gradient});
  }
  row.push({embed_gradient}, row.left(embed_gradient));
}

//! A cost model for the stages inside the shards, in which every pass takes some time, so that what
//! waits for another starts later.
template <cost_model Cost>
struct cost_inside {
  Cost const& of;
  int shards;
  double least = 0; //!< that a pass takes

  [[nodiscard]] double duration(pass what) const {
    what.stage = static_cast<std::uint16_t>(what.stage + shards);
    return std::max(of.duration(what), least);
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return links_of(of); }
};

//! A schedule by itself, both halves of its composite passes apart.
template <class Schedule, cost_model Cost>
[[nodiscard]] dynamic_timetable
timed_alone(Schedule const& inner, shape const& extents, cost_inside<Cost> cost) {
  device_orders orders = make_orders(inner, {extents.devices, extents.microbatches}, cost);
  double longest = 0;
  for (pass& what : orders.passes) {
    what.overlapped = false;
    longest = std::max(longest, cost.duration(what));
  }
  cost.least = longest > 0 ? longest / 1024 : 1;
  return simulate(std::move(orders), cost);
}

//! A pass and when its turn is.
struct timed_pass {
  double time;
  int rank; // among equal times
  pass what;
};

//! The order around any other schedule. Every pass gets a turn: those of the schedule when they
//! would run by itself, but those that are not forward `barriers` intervals later, which is after
//! the gradients of the logits that they wait for; an interval is the work of a unit on the device
//! that has most. `logits` have their turn when the last forward pass has ended, their gradients an
//! interval later or before the next logits, so that a shard holds one set of logits, or at once
//! where no barrier is between; `embed` an interval before the first forward pass reads it,
//! `embed_gradient` an interval after the last backward pass. What waits for another has a later
//! turn, so rows in the order of turns never wait in a circle.
//! @source own derivation
template <class Schedule, cost_model Cost>
void write_vocabulary_rows(
  Schedule const& inner, shape const& within, Cost const& cost, int barriers, row_writer* rows) {
  int const shards = within.devices;
  dynamic_timetable const alone = timed_alone(inner, within, cost_inside<Cost>{cost, shards});
  timetable_view const table = alone;
  double interval = 0;
  for (int device = 0; device < shards; ++device)
    interval = std::max(interval, busy(table, device) / within.units());
  // Entries of the passes of a stage, which stand one unit after the other.
  std::vector<int> const entries = entries_of(table);
  auto const of_stage = [&](pass_kind kind, int stage) {
    return entries.data() + pass_index(table.over, row_writer::make(kind, stage, 0));
  };
  int const* const first = of_stage(pass_kind::forward, 0);
  int const* const last = of_stage(pass_kind::forward, within.stages() - 1);
  int const* const returned = of_stage(pass_kind::backward, 0);
  owned_list<double> made; // when `logits` have their turns
  for (int unit = 0; unit < within.units(); ++unit)
    made.push_back(table.ends[last[unit]]);
  sort_stably(made, [](double a, double b) { return a < b; });
  owned_list<timed_pass> row;
  auto const add = [&row](double time, int rank, pass const& what) {
    row.push_back({time, rank, what});
  };
  for (int device = 0; device < shards; ++device) {
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
      pass what = table.passes[i];
      bool const forward = what.kind == pass_kind::forward;
      double const time = table.starts[i] + (forward ? 0 : barriers * interval);
      what.stage = static_cast<std::uint16_t>(what.stage + shards);
      add(time, 3, what);
    }
    int const output = shards + within.stages() + device;
    for (int unit = 0; unit < within.units(); ++unit) {
      auto const of_unit = [&](pass_kind kind, int stage) {
        return row_writer::make(kind, stage, unit / within.chunks, unit % within.chunks);
      };
      double const turn = table.ends[last[unit]];
      double const* const next = std::upper_bound(made.begin(), made.end(), turn);
      double const later = barriers == 0 ? turn : turn + interval;
      add(table.starts[first[unit]] - interval, 0, of_unit(pass_kind::embed, device));
      add(turn, 2, of_unit(pass_kind::logits, output));
      add(next == made.end() ? later : std::min(*next, later),
          barriers == 0 ? 2 : 1,
          of_unit(pass_kind::logits_gradient, output));
      add(table.ends[returned[unit]] + (barriers + 1) * interval,
          0,
          of_unit(pass_kind::embed_gradient, device));
    }
    sort_stably(row, [](timed_pass const& a, timed_pass const& b) {
      return a.time != b.time ? a.time < b.time : a.rank < b.rank;
    });
    for (timed_pass const& each : row)
      rows[device].push(each.what);
    row.clear();
  }
}

} // namespace detail

//! @brief In place of a number of barriers: on every device `logits` and their gradients stand
//! together, so nothing hides the exchange of statistics between them, and all devices begin the
//! gradients of a microbatch at the same time.
inline constexpr int interlaced = 0;

//! @brief A schedule around whose stages stand the shards of an embedding and of an output layer,
//! one of each on every device, so that no device has the whole vocabulary.
//!
//! With P devices and V stages of the schedule on each, stages 0 ... P - 1 are the shards of the
//! embedding (stage d on device d), P ... P + P V - 1 those of the schedule, and the P after them
//! the shards of the output layer. The first stage of the schedule reads all shards of the
//! embedding, and its gradient goes to all of them; all shards of the output layer read the last
//! stage's output, and it reads the gradients of them all. Between `logits` and `logits_gradient`
//! the shards exchange statistics. See `vocabulary_training` for what the passes do.
//!
//! Around OneFOneB the order is the published one: peak min(P - d + Barriers, M) activations of the
//! schedule's stages on device d and one set of logits. Where passes of shards and their exchanges
//! take no time and F <= B, the bubble is (P - 1)(F + B), that of 1F1B; with two barriers it is up
//! to F more unless B is F or 2 F. The published `interlaced` order has peak min(floor(3P/2) - d,
//! M) and, with F <= B and M >= floor(3P/2) - 1, the same bubble whatever the passes of the
//! output's shards take.
//!
//! Around any other schedule of `training`, backward passes are put off by as many units as there
//! are barriers; a device holds one set of logits, and V Barriers activations more than without
//! shards; no order is promised. Interlaced, activations stay as many as they were, and around
//! ZeroBubbleH1 and VHalf with F = I = W so does the bubble.
//!
//! For timetables that the program makes.
//!
//! @tparam Schedule a schedule of `training` with a looped or a wave placement. @tparam Barriers 2,
//! or 1: then the statistics travel with the gradients of the output (more work, one exchange less
//! to wait for); or `interlaced`, with the flow of 2.
//! @throws arrange throws std::invalid_argument for other placements.
//! @complexity O(log n) per pass of a device that has n, on top of the schedule's.
//! @source Yeung et al., "Balancing Pipeline Parallelism with Vocabulary Parallelism", 2024
//! (arXiv:2411.05288), sections 4 and 5 and its artifact. Interlaced: Lin et al., "nnScaler", OSDI
//! 2024, as in that artifact; where M < floor(3P/2) its devices look up fewer embeddings before
//! their first forward pass, for which others wait; here as many as otherwise. Around other
//! schedules: own derivation.
template <schedule Schedule, int Barriers = 2>
requires(Barriers >= 0 && Barriers <= 2) struct with_vocabulary {
  static constexpr flow declared = detail::vocabulary_training<(Barriers == 1 ? 1 : 2)>;
  static_assert(detail::flow_of<Schedule>() == training,
                "with_vocabulary: the schedule inside must be one of training; recomputation and "
                "copies to the host do not go with shards");
  static_assert(!detail::counts_chunks<Schedule> && !detail::joins_stages<Schedule>,
                "with_vocabulary: the schedule inside must have a chain of stages and as many "
                "chunks in every microbatch");

  Schedule inner{}; //!< whose stages the shards stand around

  //! The extents: two stages more on every device.
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    shape extents = inner.arrange(devices, microbatches);
    if (extents.where != placement::looped && extents.where != placement::wave)
      throw std::invalid_argument("with_vocabulary: shards stand around stages that are looped or "
                                  "in waves, but this schedule keeps two copies of every stage or "
                                  "places them itself");
    extents.where = placement::custom;
    extents.stages_per_device += 2;
    return extents;
  }
  //! Shard d of either end on device d, other stages where the schedule has them.
  [[nodiscard]] constexpr int device_of(shape const& extents, int stage, int) const {
    shape const within = inside(extents);
    int const chain = stage - extents.devices;
    if (chain < 0)
      return stage;
    return chain < within.stages() ? pipelining::device_of(within, chain) : chain - within.stages();
  }
  //! Shards of the embedding to the first stage, stage to stage, the last stage to shards of the
  //! output layer.
  [[nodiscard]] std::vector<stage_edge> edges_of(shape const& extents) const {
    int const first = extents.devices;
    int const behind = first + inside(extents).stages();
    std::vector<stage_edge> edges;
    for (int shard = 0; shard < extents.devices; ++shard)
      edges.push_back({shard, first, of_unit::same});
    for (int stage = first; stage + 1 < behind; ++stage)
      edges.push_back({stage, stage + 1, of_unit::same});
    for (int shard = 0; shard < extents.devices; ++shard)
      edges.push_back({behind - 1, behind + shard, of_unit::same});
    return edges;
  }
  //! The shards of each end.
  [[nodiscard]] std::vector<stage_group> groups_of(shape const& extents) const {
    return {{0, extents.devices}, {extents.devices + inside(extents).stages(), extents.devices}};
  }
  //! The orders of all devices.
  void generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    if constexpr (std::is_same_v<Schedule, OneFOneB>) {
      detail::owned<detail::logits_place> places(extents.devices, {});
      detail::place_logits(places, extents.devices, cost);
      for (int device = 0; device < extents.devices; ++device) {
        detail::vocabulary_row const row{
          extents.devices, extents.microbatches, device, rows[device]};
        if (Barriers == interlaced)
          detail::write_interlaced_1f1b(row);
        else
          detail::write_vocabulary_1f1b(row, places[device], places[0].ahead, Barriers);
      }
    } else {
      detail::write_vocabulary_rows(inner, inside(extents), cost, Barriers, rows);
    }
  }
  //! The extents of the schedule inside.
  [[nodiscard]] constexpr shape inside(shape const& extents) const {
    return inner.arrange(extents.devices, extents.microbatches);
  }
};

} // namespace pipelining::inline v0_3
