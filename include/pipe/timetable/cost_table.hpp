// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times that differ from stage to stage and from chunk to chunk. Header for
//! pipelining::cost_table.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The kinds that a cost_table has times of: `backward` is the sum of its halves, forward
//! passes of all kinds take the time of `forward`, and both gathers that of `gather_weights`.
inline constexpr pass_kind timed_kinds[] = {pass_kind::forward,
                                            pass_kind::backward_input,
                                            pass_kind::backward_weight,
                                            pass_kind::recompute,
                                            pass_kind::copy_out,
                                            pass_kind::copy_in,
                                            pass_kind::gather_weights,
                                            pass_kind::scatter_gradients,
                                            pass_kind::embed,
                                            pass_kind::logits,
                                            pass_kind::logits_gradient,
                                            pass_kind::embed_gradient};

//! @brief One time per kind, stage and chunk: what a measurement gives.
class cost_table {
public:
  //! @brief Every pass takes what `base` says, until `set` says otherwise.
  //! @complexity O(S C) time and memory.
  cost_table(shape const& extents, uniform_cost const& base)
      : devices_(extents.devices), chunks_(extents.chunks), base_(base), stages_(stages(extents)) {
    auto const of_kind = static_cast<std::size_t>(stages_) * static_cast<std::size_t>(chunks_);
    for (pass_kind const kind : timed_kinds) {
      times_.insert(times_.end(), of_kind, base.duration({kind}));
      exchanges_.insert(exchanges_.end(), of_kind, base.exposed(kind));
    }
  }

  //! @brief Sets the time of one kind on one stage for one chunk. Forward passes of all kinds take
  //! what is set for `forward`.
  //! @throws std::out_of_range when stage or chunk do not exist, std::invalid_argument for a
  //! time that is negative or not finite, or for the
  //!         fused `backward`, whose time is the sum of its halves.
  void set(pass_kind kind, int stage, int chunk, double time) {
    if (kind == pass_kind::backward)
      throw std::invalid_argument(
        "cost_table::set: a fused backward takes the sum of backward_input and "
        "backward_weight; set those two");
    if (!(time >= 0 && time <= std::numeric_limits<double>::max()))
      throw std::invalid_argument("cost_table::set: a time must be finite and not negative");
    times_.at(index(kind, stage, chunk)) = time;
  }

  //! @brief Sets how much of the time of a pass that runs alone are exchanges of a tensor parallel
  //! group: `uniform_cost::all_reduce` of one kind, stage and chunk.
  //! @throws std::out_of_range as `set` does, std::invalid_argument for a time that is negative or
  //! longer than the pass.
  void set_exchanges(pass_kind kind, int stage, int chunk, double time) {
    std::size_t const at = index(kind, stage, chunk);
    if (!(time >= 0 && time <= times_.at(at)))
      throw std::invalid_argument("cost_table::set_exchanges: exchanges are a part of the time of "
                                  "a pass, so they are not negative and take no longer than it");
    exchanges_[at] = time;
  }
  //! @brief How much of the time of a pass that runs alone are such exchanges; of a fused
  //! `backward`, what it does not hide itself is none that others could.
  [[nodiscard]] double exchanges(pass const& what) const {
    return stands_between(what.kind) || what.kind == pass_kind::backward
             ? 0
             : exchanges_[index(what.kind, what.stage, what.chunk)];
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

  //! @brief Multiplies the times of one kind by one factor per chunk, on all stages.
  //! @param factors one factor per chunk; 1 keeps the time.
  void scale_chunks(pass_kind kind, std::vector<double> const& factors) {
    for (int stage = 0; stage < stages_; ++stage)
      for (int chunk = 0; chunk < chunks_; ++chunk)
        times_.at(index(kind, stage, chunk)) *= factors.at(static_cast<std::size_t>(chunk));
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
  void set_groups(group_times const& times) noexcept {
    base_.broadcast = times.broadcast;
    base_.reduce = times.reduce;
  }

  [[nodiscard]] double duration(pass const& what) const {
    if (stands_between(what.kind))
      return 0;
    if (what.kind != pass_kind::backward)
      return times_[index(what.kind, what.stage, what.chunk)];
    std::size_t const input = index(pass_kind::backward_input, what.stage, what.chunk);
    double const weight = times_[index(pass_kind::backward_weight, what.stage, what.chunk)];
    return std::max(times_[input] - exchanges_[input], 0.0) + std::max(weight, exchanges_[input]);
  }
  [[nodiscard]] double latency() const noexcept { return base_.communication; }
  [[nodiscard]] group_times groups() const noexcept { return base_.groups(); }
  [[nodiscard]] std::span<double const> links() const noexcept { return links_; }
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
  [[nodiscard]] std::size_t index(pass_kind kind, int stage, int chunk) const {
    if (stage < 0 || stage >= stages_ || chunk < 0 || chunk >= chunks_)
      throw std::out_of_range("cost_table: no such stage or chunk in this table");
    if (kind == pass_kind::gather_weights_again)
      kind = pass_kind::gather_weights;
    int row = 0; // that of all forward passes
    for (int i = 1; i < static_cast<int>(std::size(timed_kinds)); ++i)
      row = timed_kinds[i] == kind ? i : row;
    return static_cast<std::size_t>((row * stages_ + stage) * chunks_ + chunk);
  }

  int devices_;
  int chunks_;
  uniform_cost base_;
  int stages_;
  std::vector<double> times_;
  std::vector<double> exchanges_; // of times_, what something else can hide
  std::vector<double> links_;
};

static_assert(cost_model<cost_table>);

} // namespace pipelining::inline v0_3
