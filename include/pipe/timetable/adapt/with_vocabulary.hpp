// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule with a vocabulary in shards around its stages. Header for
//! pipelining::with_vocabulary.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A row of such an order. Passes of each kind go by microbatch; those after the last are left
//! out.
class vocabulary_row {
public:
  vocabulary_row(shape const& extents, int device, row_writer& row)
      : devices_(extents.devices), microbatches_(extents.microbatches), device_(device), row_(row) {
  }

  void embed() { push(pass_kind::embed, 0, embedded); }
  void embed_gradient() { push(pass_kind::embed_gradient, 0, returned); }
  void forward() { push(pass_kind::forward, 1, forwards); }
  void backward() { push(pass_kind::backward, 1, backwards); }
  void logits() { push(pass_kind::logits, 2, made); }
  void logits_gradient() { push(pass_kind::logits_gradient, 2, gradients); }

  // How many there are so far.
  int embedded = 0;
  int forwards = 0;
  int made = 0; // logits
  int gradients = 0;
  int backwards = 0;
  int returned = 0;

private:
  void push(pass_kind kind, int stage_of_device, int& count) {
    if (count < microbatches_)
      row_.push(row_writer::make(kind, stage_of_device * devices_ + device_, count++));
  }

  int devices_;
  int microbatches_;
  int device_;
  row_writer& row_;
};

//! The published order around 1F1B, row by row.
class vocabulary_1f1b {
public:
  vocabulary_1f1b(shape const& extents, cost_model auto const& cost, int barriers)
      : devices_(extents.devices), microbatches_(extents.microbatches), further_(barriers - 1),
        behind_forward_(static_cast<std::size_t>(devices_)),
        steps_ahead_(static_cast<std::size_t>(devices_)) {
    double forward = 0;
    double backward = 0;
    for (int stage = devices_; stage < 2 * devices_; ++stage) {
      forward += cost.duration(row_writer::make(pass_kind::forward, stage, 0)) / devices_;
      backward += cost.duration(row_writer::make(pass_kind::backward, stage, 0)) / devices_;
    }
    place_logits(forward, backward);
  }

  void write(vocabulary_row row, int device) const {
    auto const at = static_cast<std::size_t>(device);
    int const warm_up = std::min(devices_ - device, microbatches_);
    for (int i = 0; i < std::min(devices_, microbatches_) - warm_up + 1; ++i)
      row.embed();
    for (int i = 0; i < warm_up; ++i) {
      row.embed();
      row.forward();
    }
    row.logits();
    int steps = 1; // of logits, and with two barriers that of the last gradients
    if (further_ == 1)
      row.embed();
    row.forward();
    if (further_ == 1) {
      step(row, steps);
      row.forward();
    }
    for (int i = 0; i < steps_ahead_[at]; ++i)
      step_with_ends(row, steps, true, false);
    bool const behind_forward = behind_forward_[at] != 0;
    while (row.forwards < microbatches_) {
      row.backward();
      if (!behind_forward)
        step_with_ends(row, steps, true, true);
      row.forward();
      if (behind_forward)
        step_with_ends(row, steps, true, true);
    }
    while (row.backwards < microbatches_) {
      row.backward();
      step_with_ends(row, steps, false, true);
    }
    while (row.returned < microbatches_)
      row.embed_gradient();
    while (row.gradients < microbatches_)
      row.logits_gradient();
  }

private:
  //! Where `logits` stand on every device: after the backward passes, or after the forward
  //! passes; such that those of one microbatch are as near to each other as the passes between
  //! allow.
  void place_logits(double forward, double backward) {
    double offset = 0;
    bool next_behind_backward = true; // the device above one after forward passes
    for (int device = devices_ - 2; device >= 0; --device) {
      auto const at = static_cast<std::size_t>(device);
      if (behind_forward_[at + 1] != 0) {
        offset += backward - forward;
        next_behind_backward = true;
      } else {
        next_behind_backward = offset - forward >= -backward;
        offset -= next_behind_backward ? forward : 0;
      }
      behind_forward_[at] = next_behind_backward ? 0 : 1;
      bool const same = behind_forward_[at + 1] != 0 && behind_forward_[at] == 0;
      steps_ahead_[at] = steps_ahead_[at + 1] + (same ? 0 : 1);
    }
  }
  //! The gradients of the last logits, then the next logits: one set of logits at a time. With one
  //! barrier nobody waits for the last gradients of all, which come at the end.
  void step(vocabulary_row& row, int& steps) const {
    if (row.gradients == microbatches_ || (further_ == 0 && row.made == microbatches_))
      return;
    ++steps;
    row.logits_gradient();
    row.logits();
  }
  //! With the passes of the embedding that are due.
  void step_with_ends(vocabulary_row& row, int& steps, bool embeds, bool returns) const {
    embeds = embeds && steps >= steps_ahead_[0] + further_;
    returns = returns && steps >= steps_ahead_[0] + 2 + further_;
    step(row, steps);
    if (embeds)
      row.embed();
    if (returns)
      row.embed_gradient();
  }

  int devices_;
  int microbatches_;
  int further_;                      // barriers after the first
  std::vector<char> behind_forward_; // by device
  std::vector<int> steps_ahead_;     // by device: of logits before the first backward
};

//! The published interlaced order: `logits` and their gradients are one step, which all devices
//! take at the same time, since the exchange of statistics inside it joins them.
class interlaced_1f1b {
public:
  explicit interlaced_1f1b(shape const& extents)
      : devices_(extents.devices), microbatches_(extents.microbatches),
        first_steps_(std::min(devices_, microbatches_)) {}

  void write(vocabulary_row row, int device) const {
    int const warm_up = std::min(devices_ * 3 / 2 - device, microbatches_);
    int const steps = std::min(devices_ - device, microbatches_);
    int const waiting = std::max(0, warm_up - steps - (devices_ - device - 1) / 2);
    for (int i = 0; i <= device; ++i)
      row.embed();
    for (int i = 0; i < warm_up; ++i) {
      row.embed();
      row.forward();
    }
    for (int i = 0; i < steps; ++i)
      step(row);
    for (int i = 0; i < waiting; ++i) {
      row.backward();
      step(row);
    }
    bool const forward_first = (devices_ - device) % 2 == 0;
    while (row.forwards < microbatches_) {
      if (forward_first)
        row.forward();
      row.backward();
      if (!forward_first)
        row.forward();
      step(row);
    }
    while (row.backwards < microbatches_) {
      row.backward();
      if (row.made < microbatches_)
        step(row);
      else
        row.embed_gradient();
    }
    while (row.returned < microbatches_)
      row.embed_gradient();
  }

private:
  //! With the passes of the embedding that are due: when the first device has its forward passes of
  //! the warm-up after it, and its first backward passes.
  void step(vocabulary_row& row) const {
    row.logits();
    row.logits_gradient();
    if (row.made >= first_steps_)
      row.embed();
    if (row.made >= first_steps_ + 2 - devices_ % 2)
      row.embed_gradient();
  }

  int devices_;
  int microbatches_;
  int first_steps_; // of the first device before its first backward pass
};

void write_vocabulary_1f1b(shape const& extents,
                           cost_model auto const& cost,
                           int barriers,
                           row_writer* rows) {
  vocabulary_1f1b const published(extents, cost, barriers);
  interlaced_1f1b const interlaced(extents);
  for (int device = 0; device < extents.devices; ++device) {
    vocabulary_row const row(extents, device, rows[device]);
    if (barriers == 0)
      interlaced.write(row, device);
    else
      published.write(row, device);
  }
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

//! The work of a unit on the device that has most.
[[nodiscard]] inline double interval_of(timetable_view const& table) {
  double most = 0;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double work = 0;
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
      work += table.ends[i] - table.starts[i];
    most = std::max(most, work / table.over.units());
  }
  return most;
}

//! The starts or the ends of a timetable, by the number of the pass.
[[nodiscard]] inline std::vector<double> by_pass(timetable_view const& table, double const* times) {
  std::vector<double> result(static_cast<std::size_t>(table.over.pass_indices()));
  for (int i = 0; i < table.size(); ++i)
    result[static_cast<std::size_t>(pass_index(table.over, table.passes[i]))] = times[i];
  return result;
}

//! A pass and when its turn is. No two of a row are equal.
struct timed_pass {
  double time;
  int rank;   // among equal times
  int number; // among equal ranks
  pass what;

  [[nodiscard]] friend bool operator<(timed_pass const& one, timed_pass const& other) noexcept {
    return one.time != other.time   ? one.time < other.time
           : one.rank != other.rank ? one.rank < other.rank
                                    : one.number < other.number;
  }
};

//! When the shards of the output layer have their turns: for every unit `logits`, when the last
//! forward pass of the schedule has ended, and their gradients, an interval later or before the
//! next logits, so that a shard holds one set of logits; or at once, where no barrier is between.
class logits_turns {
public:
  //! @param made the ends of the last forward passes, by unit
  //! @param interval 0: at once
  logits_turns(std::vector<double> made, double interval)
      : interval_(interval), made_(std::move(made)), sorted_(made_) {
    std::sort(sorted_.begin(), sorted_.end());
  }
  [[nodiscard]] double logits(std::size_t unit) const { return made_[unit]; }
  [[nodiscard]] double gradient(std::size_t unit) const {
    double const latest = made_[unit] + interval_;
    auto const next = std::upper_bound(sorted_.begin(), sorted_.end(), made_[unit]);
    return next == sorted_.end() ? latest : std::min(*next, latest);
  }

private:
  double interval_;
  std::vector<double> made_;
  std::vector<double> sorted_;
};

//! The order around any other schedule. Every pass gets a turn: those of the schedule when they
//! would run by itself, but those that are not forward `barriers` intervals later, which is after
//! the gradients of the logits that they wait for; `embed` an interval before the first forward
//! pass reads it, `embed_gradient` an interval after the last backward pass. What waits for another
//! has a later turn, so rows in the order of turns never wait in a circle.
//! @source own derivation
template <class Schedule, cost_model Cost>
void write_vocabulary_rows(
  Schedule const& inner, shape const& within, Cost const& cost, int barriers, row_writer* rows) {
  int const shards = within.devices;
  dynamic_timetable const alone = timed_alone(inner, within, cost_inside<Cost>{cost, shards});
  timetable_view const table = alone;
  double const interval = interval_of(table);
  std::vector<double> const starts = by_pass(table, table.starts);
  std::vector<double> const ends = by_pass(table, table.ends);
  // The passes of a stage stand one unit after the other.
  auto const of_stage = [&](std::vector<double> const& times, pass_kind kind, int stage) {
    auto const first = times.begin() + pass_index(table.over, row_writer::make(kind, stage, 0));
    return std::vector<double>(first, first + within.units());
  };
  std::vector<double> const read = of_stage(starts, pass_kind::forward, 0);
  std::vector<double> const returned = of_stage(ends, pass_kind::backward, 0);
  logits_turns const turns(of_stage(ends, pass_kind::forward, within.stages() - 1),
                           barriers == 0 ? 0 : interval);
  std::vector<timed_pass> row;
  auto const add = [&row](double time, int rank, pass const& what) {
    row.push_back({time, rank, static_cast<int>(row.size()), what});
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
    for (std::size_t unit = 0; unit < read.size(); ++unit) {
      auto const number = static_cast<int>(unit);
      auto const of_unit = [&](pass_kind kind, int stage) {
        return row_writer::make(kind, stage, number / within.chunks, number % within.chunks);
      };
      add(read[unit] - interval, 0, of_unit(pass_kind::embed, device));
      add(turns.logits(unit), 2, of_unit(pass_kind::logits, output));
      add(turns.gradient(unit), barriers == 0 ? 2 : 1, of_unit(pass_kind::logits_gradient, output));
      add(
        returned[unit] + (barriers + 1) * interval, 0, of_unit(pass_kind::embed_gradient, device));
    }
    std::sort(row.begin(), row.end());
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
    if constexpr (std::is_same_v<Schedule, OneFOneB>)
      detail::write_vocabulary_1f1b(extents, cost, Barriers, rows);
    else
      detail::write_vocabulary_rows(inner, inside(extents), cost, Barriers, rows);
  }

  //! The extents of the schedule inside.
  [[nodiscard]] constexpr shape inside(shape const& extents) const {
    return inner.arrange(extents.devices, extents.microbatches);
  }
};

} // namespace pipelining::inline v0_3
