// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times that differ from stage to stage and from chunk to chunk. Header for
//! pipelining::cost_table.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Whether all kinds of a flow are kinds of training.
[[nodiscard]] constexpr bool is_of_training(flow const& declared) noexcept {
  for (int kind = 0; kind < declared.kind_count; ++kind)
    if (declared.kinds[kind].exists() &&
        !(declared.kinds[kind].word == kinds_of_training.kinds[kind].word))
      return false;
  return true;
}

//! The kinds of the passes of a unit on a stage whose backward pass is split: forward, input and
//! weights.
[[nodiscard]] constexpr std::array<pass_kind, 3> split_kinds(flow const& declared) noexcept {
  return {declared.kind_with(role::forward),
          declared.kind_with(role::input),
          declared.kind_with(role::weights)};
}

} // namespace detail

//! @brief One time per kind, stage and chunk: what a measurement gives. Or one for each microbatch
//! besides, see `by_microbatch`.
//!
//! Kinds that call the same of a stage on the same engine share their times: forward passes of all
//! kinds, and both gathers. A fused `backward` takes the sum of its halves. Marks take no time.
class cost_table {
public:
  //! A kind that a cost_table has times of, or the first of several that take the same time.
  struct timed_kind {
    pass_kind kind; //!< its number in the flow
    role is;        //!< what it is for
    bool in_groups; //!< it runs on stages of groups
    bool needed;    //!< no step goes without it
    flow_word word; //!< what files call it
  };

  //! @brief Every pass of training takes what `base` says, until `set` says otherwise.
  //! @complexity O(S C) time and memory.
  cost_table(shape const& extents, uniform_cost const& base)
      : cost_table(detail::kinds_of_training, extents, base) {}

  //! @brief The same of the passes of a flow.
  cost_table(flow const& of, shape const& extents, uniform_cost const& base)
      : devices_(extents.devices), chunks_(extents.chunks), base_(base), stages_(extents.stages()) {
    row_of_.fill(no_time);
    flow const& declared = detail::is_of_training(of) ? detail::kinds_of_training : of;
    bool const split = declared.kind_with(role::input) != flow::no_kind &&
                       declared.kind_with(role::weights) != flow::no_kind;
    for (bool const in_groups : {false, true})
      for (int kind = 0; kind < declared.kind_count; ++kind)
        if (kind_of_pass const& one = declared.kinds[kind];
            one.exists() && one.in_groups == in_groups)
          add(declared, static_cast<pass_kind>(kind), split);
    if (split) {
      input_row_ = row_of_[static_cast<std::size_t>(declared.kind_with(role::input))];
      weight_row_ = row_of_[static_cast<std::size_t>(declared.kind_with(role::weights))];
    }
  }

  //! @brief The same times, of which each microbatch has its own from here on.
  //! @param count microbatches, at least 1. @pre the table is of all microbatches alike
  //! @complexity O(S C count) time and memory
  [[nodiscard]] cost_table by_microbatch(int count) const {
    cost_table result = *this;
    result.microbatches_ = count;
    auto const chunks = static_cast<std::size_t>(chunks_);
    auto const repeated = [&](std::vector<double> const& of) {
      std::vector<double> all(of.size() * static_cast<std::size_t>(count));
      double* next = all.data();
      for (std::size_t at = 0; at < of.size(); at += chunks)
        for (int i = 0; i < count; ++i)
          for (std::size_t chunk = 0; chunk < chunks; ++chunk)
            *next++ = of[at + chunk];
      return all;
    };
    result.times_ = repeated(times_);
    result.exchanges_ = repeated(exchanges_);
    return result;
  }
  //! @brief The microbatches that have times of their own; 1: all take the same.
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }

  //! @brief A table of the same kinds for other extents, with as many microbatches.
  //! @param time `time(pass)`: the time of each pass
  [[nodiscard]] cost_table reshaped(shape const& extents, double latency, auto const& time) const {
    cost_table result = *this;
    result.devices_ = extents.devices;
    result.chunks_ = extents.chunks;
    result.stages_ = extents.stages();
    result.base_ = {.communication = latency};
    result.links_.clear();
    result.times_.assign(result.place(static_cast<int>(kinds_.size()), pass{}), 0.0);
    result.exchanges_ = result.times_;
    for (timed_kind const& one : kinds_)
      for (int stage = 0; stage < result.stages_; ++stage)
        for (int microbatch = 0; microbatch < microbatches_; ++microbatch)
          for (int chunk = 0; chunk < result.chunks_; ++chunk) {
            pass const what = row_writer::make(one.kind, stage, microbatch, chunk);
            result.set(what, time(what));
          }
    return result;
  }

  //! @brief The kinds that have times of their own: first those outside groups, each by number.
  [[nodiscard]] std::vector<timed_kind> const& kinds() const noexcept { return kinds_; }
  //! @brief The number there of a kind, or of the one whose time it takes; negative for marks, for
  //! kinds of no pass, and for a fused `backward`.
  [[nodiscard]] int number_of(pass_kind kind) const noexcept {
    int const row =
      detail::index_of(kind) < flow::most_kinds ? row_of_[static_cast<std::size_t>(kind)] : no_time;
    return row < of_halves ? row : -1;
  }
  //! @brief True for a fused `backward`.
  [[nodiscard]] bool takes_halves(pass_kind kind) const noexcept {
    return detail::index_of(kind) < flow::most_kinds &&
           row_of_[static_cast<std::size_t>(kind)] == of_halves;
  }

  //! @brief Sets the time of one kind on one stage for one chunk of all microbatches. Forward
  //! passes of all kinds take what is set for `forward`.
  //! @throws std::out_of_range when stage or chunk do not exist, std::invalid_argument for a
  //! time that is negative or not finite, or for the
  //!         fused `backward`, whose time is the sum of its halves.
  void set(pass_kind kind, int stage, int chunk, double time) {
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch)
      set(row_writer::make(kind, stage, microbatch, chunk), time);
  }
  //! @brief The same for the microbatch of a pass; for all where none has times of its own.
  void set(pass const& what, double time) {
    if (takes_halves(what.kind))
      throw std::invalid_argument(
        "cost_table::set: a fused backward takes the sum of backward_input and "
        "backward_weight; set those two");
    if (!(time >= 0 && time <= std::numeric_limits<double>::max()))
      throw std::invalid_argument("cost_table::set: a time must be finite and not negative");
    times_.at(index(what)) = time;
  }
  //! @brief The same of all kinds with a role that run outside groups and take time.
  void set(role is, int stage, int chunk, double time) {
    for (timed_kind const& one : kinds_)
      if (one.is == is && !one.in_groups)
        set(one.kind, stage, chunk, time);
  }

  //! @brief Sets how much of the time of a pass by itself are exchanges of a tensor parallel
  //! group: `uniform_cost::all_reduce` of one kind, stage and chunk.
  //! @throws std::out_of_range as `set` does, std::invalid_argument for a time that is negative or
  //! longer than the pass.
  void set_exchanges(pass_kind kind, int stage, int chunk, double time) {
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch)
      set_exchanges(row_writer::make(kind, stage, microbatch, chunk), time);
  }
  //! @brief The same for the microbatch of a pass; for all where none has times of its own.
  void set_exchanges(pass const& what, double time) {
    std::size_t const at = index(what);
    if (!(time >= 0 && time <= times_.at(at)))
      throw std::invalid_argument("cost_table::set_exchanges: exchanges are a part of the time "
                                  "of a pass, so they are not negative and take no longer than it");
    exchanges_[at] = time;
  }
  //! @brief The same of all kinds with a role that run outside groups and take time.
  void set_exchanges(role is, int stage, int chunk, double time) {
    for (timed_kind const& one : kinds_)
      if (one.is == is && !one.in_groups)
        set_exchanges(one.kind, stage, chunk, time);
  }
  //! @brief How much of the time of a pass by itself are such exchanges; of a fused
  //! `backward`, what it does not hide itself is none that others could.
  [[nodiscard]] double exchanges(pass const& what) const {
    return number_of(what.kind) < 0 ? 0 : exchanges_[index(what)];
  }
  //! @brief The same table with all exchanges hidden: no order takes less than under these times.
  [[nodiscard]] cost_table without_exchanges() const {
    cost_table result = *this;
    result.base_.all_reduce = 0;
    for (std::size_t i = 0; i < times_.size(); ++i)
      result.times_[i] = std::max(times_[i] - exchanges_[i], 0.0);
    std::fill(result.exchanges_.begin(), result.exchanges_.end(), 0.0);
    return result;
  }

  //! @brief Sets the time of messages from one device to another; the others take
  //! `uniform_cost::communication`.
  //! @throws std::out_of_range when a device does not exist or both are the same,
  //! std::invalid_argument for a time that is negative or not finite.
  void set_link(int from, int to, double time) {
    if (from < 0 || from >= devices_ || to < 0 || to >= devices_ || from == to)
      throw std::out_of_range("cost_table::set_link: no messages go from device " +
                              std::to_string(from) + " to device " + std::to_string(to));
    if (!detail::is_time(time))
      throw std::invalid_argument("cost_table::set_link: a time must be finite and not negative");
    auto const count = static_cast<std::size_t>(devices_);
    if (links_.empty())
      links_.assign(count * count, base_.communication);
    links_[static_cast<std::size_t>(from) * count + static_cast<std::size_t>(to)] = time;
  }

  //! @brief Sets the times between groups of stages and others.
  void set_groups(detail::group_times const& times) noexcept {
    base_.broadcast = times.broadcast;
    base_.reduce = times.reduce;
  }

  [[nodiscard]] double duration(pass const& what) const {
    int const row = detail::index_of(what.kind) < flow::most_kinds
                      ? row_of_[static_cast<std::size_t>(what.kind)]
                      : no_time;
    if (row != of_halves)
      return row == no_time ? 0 : times_[place(row, what)];
    std::size_t const input = place(input_row_, what);
    double const weight = times_[place(weight_row_, what)];
    return std::max(times_[input] - exchanges_[input], 0.0) + std::max(weight, exchanges_[input]);
  }
  [[nodiscard]] double latency() const noexcept { return base_.communication; }
  [[nodiscard]] detail::group_times groups() const noexcept { return base_.groups(); }
  [[nodiscard]] std::span<double const> links() const noexcept {
    return {links_.data(), links_.size()};
  }
  [[nodiscard]] double pair_duration(pass const& first, pass const& second) const {
    auto const computes = [this](pass const& what) {
      return std::max(duration(what) - exchanges(what), 0.0);
    };
    return base_.overlapped_pair < 0
             ? detail::braid_time(
                 computes(first), exchanges(first), computes(second), exchanges(second))
             : base_.overlapped_pair;
  }

private:
  static constexpr std::uint8_t no_time = 255;   // marks, and kinds that are none
  static constexpr std::uint8_t of_halves = 254; // the sum of two others

  [[nodiscard]] static constexpr bool take_the_same(kind_of_pass const& one,
                                                    kind_of_pass const& other) noexcept {
    return !one.in_groups && !other.in_groups && one.calls != stage_call::perform &&
           one.calls == other.calls && one.on == other.on;
  }
  //! Steps of training have the passes of a unit; those of a flow of one's own all of its kinds.
  [[nodiscard]] static constexpr bool is_needed(kind_of_pass const& one) noexcept {
    return one.calls == stage_call::perform ||
           (!one.in_groups &&
            (one.is == role::forward || one.is == role::input || one.is == role::weights));
  }
  void add(flow const& declared, pass_kind kind, bool split) {
    kind_of_pass const& one = declared[kind];
    std::uint8_t& row = row_of_[static_cast<std::size_t>(kind)];
    if (detail::stands_between(one))
      return;
    if (split && one.is == role::backward && !one.in_groups) {
      row = of_halves;
      return;
    }
    row = 0;
    while (row < kinds_.size() && !take_the_same(declared[kinds_[row].kind], one))
      ++row;
    if (row < kinds_.size())
      return;
    kinds_.push_back({kind, one.is, one.in_groups, is_needed(one), one.word});
    auto const of_kind = static_cast<std::size_t>(stages_) * static_cast<std::size_t>(chunks_);
    auto const time = base_.duration(declared, {kind});
    auto const exchange = base_.exposed(one);
    for (std::size_t i = 0; i < of_kind; ++i) {
      times_.push_back(time);
      exchanges_.push_back(exchange);
    }
  }

  //! @pre the kind has times of its own
  [[nodiscard]] std::size_t index(pass const& what) const {
    if (number_of(what.kind) < 0)
      throw std::out_of_range("cost_table: no pass of this kind takes time in this table");
    return place(number_of(what.kind), what);
  }
  [[nodiscard]] std::size_t place(int row, pass const& what) const {
    int const microbatch = microbatches_ == 1 ? 0 : what.microbatch;
    if (what.stage >= stages_ || microbatch >= microbatches_ || what.chunk >= chunks_)
      throw std::out_of_range("cost_table: no such stage, microbatch or chunk in this table");
    return (static_cast<std::size_t>(row * stages_ + what.stage) *
              static_cast<std::size_t>(microbatches_) +
            static_cast<std::size_t>(microbatch)) *
             static_cast<std::size_t>(chunks_) +
           what.chunk;
  }

  int devices_;
  int chunks_;
  int microbatches_ = 1; // with times of their own
  uniform_cost base_;
  int stages_;
  std::vector<timed_kind> kinds_;
  std::array<std::uint8_t, flow::most_kinds> row_of_{}; // filled with `no_time` first
  int input_row_ = 0;                                   // of the two halves of a fused backward
  int weight_row_ = 0;
  std::vector<double> times_;
  std::vector<double> exchanges_; // of times_, what something else can hide
  std::vector<double> links_;
};

static_assert(cost_model<cost_table>);

} // namespace pipelining::inline v0_3
