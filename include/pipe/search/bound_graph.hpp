// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The passes of one microbatch as a graph, for bounds. Header for
//! pipelining::detail::microbatch_graph.

#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pipelining::inline v0_2 {
namespace detail {

//! What bounds presume of the orders that they are for.
struct bound_case {
  std::span<double const> weights = {}; //!< of activations: by chunk, by unit, or equal
  bool pairs = false;
  bool limited = false; //!< there is a memory limit
  bool recomputes = false;
  bool recomputes_all = false;
  bool copies = false;
};

//! The graph of the passes of one microbatch: forward passes by stage and chunk, then gradients of
//! the input from the last stage and chunk to the first, then gradients of the weights. Every pass
//! waits for passes before it in this numbering.
template <class Cost>
class microbatch_graph {
public:
  microbatch_graph(pipeline const& over, Cost const& cost, int microbatch, bound_case const& of)
      : over_(over), extents_(over.extents), microbatch_(microbatch), latency_(cost.latency()),
        links_(links_of(cost)) {
    extents_.chunks = chunks_of(over, microbatch);
    width_ = static_cast<std::size_t>(stages(extents_)) * static_cast<std::size_t>(extents_.chunks);
    times_.resize(3 * width_);
    again_.resize(width_);
    for (int stage = 0; stage < stages(extents_); ++stage)
      for (int chunk = 0; chunk < extents_.chunks; ++chunk) {
        for (int row = 0; row < 3; ++row)
          times_[at(row, stage, chunk)] = cost.duration(pass_of(row, stage, chunk));
        if (of.recomputes_all)
          again_[at(0, stage, chunk)] =
            cost.duration(row_writer::make(pass_kind::recompute, stage, microbatch, chunk));
      }
    if (of.pairs)
      fit_pairs(cost);
  }

  //! The chunks of this microbatch.
  [[nodiscard]] int chunks() const noexcept { return extents_.chunks; }
  //! The time of the recomputation that comes before a gradient of the input; 0 without.
  [[nodiscard]] double again(int stage, int chunk) const noexcept {
    return again_[at(0, stage, chunk)];
  }

  [[nodiscard]] std::size_t at(int row, int stage, int chunk) const noexcept {
    auto const unit = static_cast<std::size_t>(stage) * static_cast<std::size_t>(extents_.chunks) +
                      static_cast<std::size_t>(chunk);
    return row == 0   ? unit
           : row == 1 ? 2 * width_ - 1 - unit // backwards
                      : 2 * width_ + unit;
  }
  [[nodiscard]] std::size_t size() const noexcept { return 3 * width_; }
  [[nodiscard]] double time(std::size_t node) const noexcept { return times_[node]; }
  [[nodiscard]] int device(int stage) const noexcept {
    return device_of(over_, stage, microbatch_);
  }

  //! The longest paths from the start of `from`, or from no pass in particular, to the starts of
  //! all; negative where there is none.
  void starts_from(std::size_t from, bool anywhere, std::vector<double>& start) const {
    start.assign(size(), anywhere ? 0.0 : -1.0);
    if (!anywhere)
      start[from] = 0;
    each_edge([&](std::size_t before, std::size_t after, double latency) {
      if (start[before] >= 0)
        start[after] = std::max(start[after], start[before] + times_[before] + latency);
    });
  }
  //! The longest paths from the ends of all passes to the end of any pass on `only`, or anywhere
  //! where that is negative.
  void tails_to(int only, std::vector<double>& tail) const {
    tail.assign(size(), -1.0);
    for (int row = 0; row < 3; ++row)
      for (int stage = 0; stage < stages(extents_); ++stage)
        for (int chunk = 0; chunk < extents_.chunks; ++chunk)
          if (only < 0 || device(stage) == only)
            tail[at(row, stage, chunk)] = 0;
    each_edge_backwards([&](std::size_t before, std::size_t after, double latency) {
      if (tail[after] >= 0)
        tail[before] = std::max(tail[before], latency + times_[after] + tail[after]);
    });
  }

  [[nodiscard]] bool same_times(Cost const& cost, int microbatch, bound_case const& of) const {
    if (chunks_of(over_, microbatch) != extents_.chunks)
      return false;
    for (int stage = 0; stage < stages(extents_); ++stage)
      for (int chunk = 0; chunk < extents_.chunks; ++chunk) {
        if (weight(of, chunk) != weight(of, microbatch, chunk))
          return false;
        for (int row = 0; row < (of.recomputes_all ? 4 : 3); ++row) {
          pass what = pass_of(row, stage, chunk);
          double const mine = cost.duration(what);
          what.microbatch = static_cast<std::uint16_t>(microbatch);
          if (cost.duration(what) != mine)
            return false;
        }
      }
    return true;
  }

  //! The memory of the activation of a chunk.
  [[nodiscard]] double weight(bound_case const& of, int chunk) const {
    return weight(of, microbatch_, chunk);
  }

private:
  [[nodiscard]] double weight(bound_case const& of, int microbatch, int chunk) const {
    if (of.weights.empty())
      return 1.0 / extents_.chunks;
    bool const by_chunk = over_.first_units == nullptr &&
                          of.weights.size() == static_cast<std::size_t>(extents_.chunks);
    int const at = by_chunk ? chunk : first_unit(over_, microbatch) + chunk;
    return of.weights[static_cast<std::size_t>(at)];
  }
  [[nodiscard]] pass pass_of(int row, int stage, int chunk) const noexcept {
    constexpr pass_kind kinds[] = {pass_kind::forward,
                                   pass_kind::backward_input,
                                   pass_kind::backward_weight,
                                   pass_kind::recompute};
    return row_writer::make(kinds[row], stage, microbatch_, chunk);
  }

  //! Shortens all passes by one factor, such that the two of a pair fit one behind the other into
  //! the time of the pair: what bounds them then bounds orders with pairs.
  void fit_pairs(Cost const& cost) {
    double factor = 1;
    for (int stage = 0; stage < stages(extents_); ++stage)
      for (int chunk = 0; chunk < extents_.chunks; ++chunk)
        for (int other = 0; other < stages(extents_); ++other)
          for (int beside = 0; beside < extents_.chunks; ++beside)
            for (pass_kind const kind : {pass_kind::backward, pass_kind::backward_input}) {
              pass const forward = pass_of(0, stage, chunk);
              pass const backward = row_writer::make(kind, other, microbatch_, beside);
              double const sum = cost.duration(forward) + cost.duration(backward);
              if (sum > 0)
                factor = std::min(factor, pair_duration(cost, forward, backward) / sum);
            }
    for (std::vector<double>* const times : {&times_, &again_})
      for (double& each : *times)
        each *= factor;
  }

  //! Calls `use(before, after, latency)` for every edge, those into a pass before those out of it.
  template <class Use>
  void each_edge(Use const& use) const {
    int const all = stages(extents_);
    int const chunks = extents_.chunks;
    for (int stage = 0; stage < all; ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk) {
        if (stage > 0)
          use(at(0, stage - 1, chunk), at(0, stage, chunk), between(stage - 1, stage));
        if (chunk > 0)
          use(at(0, stage, chunk - 1), at(0, stage, chunk), 0.0);
      }
    for (int stage = all - 1; stage >= 0; --stage)
      for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        use(at(0, stage, chunk), at(1, stage, chunk), again(stage, chunk));
        if (stage + 1 < all)
          use(at(1, stage + 1, chunk), at(1, stage, chunk), between(stage + 1, stage));
        if (chunk + 1 < chunks)
          use(at(1, stage, chunk + 1), at(1, stage, chunk), 0.0);
        use(at(1, stage, chunk), at(2, stage, chunk), 0.0);
      }
  }
  template <class Use>
  void each_edge_backwards(Use const& use) const {
    int const all = stages(extents_);
    int const chunks = extents_.chunks;
    for (int stage = 0; stage < all; ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk) {
        use(at(1, stage, chunk), at(2, stage, chunk), 0.0);
        if (stage > 0)
          use(at(1, stage, chunk), at(1, stage - 1, chunk), between(stage, stage - 1));
        if (chunk > 0)
          use(at(1, stage, chunk), at(1, stage, chunk - 1), 0.0);
      }
    for (int stage = all - 1; stage >= 0; --stage)
      for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        use(at(0, stage, chunk), at(1, stage, chunk), again(stage, chunk));
        if (stage + 1 < all)
          use(at(0, stage, chunk), at(0, stage + 1, chunk), between(stage, stage + 1));
        if (chunk + 1 < chunks)
          use(at(0, stage, chunk), at(0, stage, chunk + 1), 0.0);
      }
  }
  [[nodiscard]] double between(int a, int b) const noexcept {
    return message_time(
      links_.empty() ? nullptr : links_.data(), extents_.devices, latency_, device(a), device(b));
  }

  pipeline over_;
  shape extents_;
  int microbatch_;
  double latency_;
  std::span<double const> links_;
  std::size_t width_ = 0;
  std::vector<double> times_;
  std::vector<double> again_; // of recomputations, by forward pass
};

} // namespace detail
} // namespace pipelining::inline v0_2
