// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage with its optimizer: gradients are clipped by their global norm, steps are left
//! out where a gradient is not finite, and a step that was taken early can be undone.

#include <pipe/config.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "parameter.hpp"

namespace gpt {

//! What every stage tells all others at the end of an iteration.
struct gradient_row {
  double squared_norm = 0;
  double not_finite = 0;
};

struct clipping {
  adamw optimizer{};
  double largest_norm = 1; //!< of all gradients together
  bool early = false;      //!< steps may have to be undone
};

//! Steps of the optimizer so far.
struct step_counts {
  std::int64_t taken = 0;
  std::int64_t clipped = 0;
  std::int64_t left_out = 0;
};

//! What clipping has done in a run.
struct clipping_report {
  std::int64_t clipped = 0;
  std::int64_t left_out = 0;
  std::int64_t rolled_back = 0; //!< steps of a stage that had come too early
  long corrected = 0;           //!< steps that some stage had to roll back, or to make up for
  long repeated = 0;            //!< iterations that began again
  std::uint64_t weights = 0;    //!< a hash of all weights
};

//! What the rows of all stages, or of some, come to.
struct clipped_step {
  bool finite = true;
  double coefficient = 1; //!< of the gradients

  PIPELINING_HOST_DEVICE clipped_step(double largest_norm, pp::totals const& all) {
    gradient_row sum;
    for (int stage = 0; stage < all.rows; ++stage) {
      auto const& row = *reinterpret_cast<gradient_row const*>(all.data + stage * all.stride);
      sum.squared_norm += row.squared_norm;
      sum.not_finite += row.not_finite;
    }
    finite = sum.not_finite == 0;
    double const wanted = largest_norm / (std::sqrt(sum.squared_norm) + 1e-6);
    coefficient = wanted < 1 ? wanted : 1;
  }
  PIPELINING_HOST_DEVICE void count(step_counts& steps) const {
    steps.taken += finite ? 1 : 0;
    steps.clipped += finite && coefficient < 1 ? 1 : 0;
    steps.left_out += finite ? 0 : 1;
  }
  //! A norm only grows when rows join it, so what these rows do not accept, more will not.
  [[nodiscard]] bool accepts() const { return finite && coefficient == 1; }
};

template <class Stage>
[[nodiscard]] gradient_row row_of(Stage& stage) {
  gradient_row row;
  stage.for_each_parameter([&row](auto const& p) {
    for (auto const x : p.gradient) {
      double const wide = static_cast<double>(x);
      row.squared_norm += std::isfinite(wide) ? wide * wide : 0;
      row.not_finite = std::isfinite(wide) ? row.not_finite : 1;
    }
  });
  return row;
}

//! The optimizer's step of a stage, or none.
//! @param taken steps before this one
template <class Stage>
void take_step(Stage& stage, clipping const& how, clipped_step const& found, std::int64_t taken) {
  stage.for_each_parameter([&](auto& p) {
    for (auto& x : p.gradient)
      x = found.finite ? x * static_cast<float>(found.coefficient) : 0;
    if (found.finite)
      how.optimizer.update(p, taken);
  });
  stage.refresh();
}

//! What clipping has of a stage on the host, next to its parameters.
template <class Number>
struct clipped_optimizer {
  clipping const* how = nullptr;
  step_counts counts{};
  std::int64_t rolled_back = 0;

  template <class Stage>
  void step(Stage& stage, pp::totals const& all) {
    clipped_step const found(how->largest_norm, all);
    if (how->early) { // to compute backwards what the optimizer did would round
      std::size_t next = 0;
      stage.for_each_parameter([&](auto const& p) {
        if (next == copies_.size())
          copies_.push_back(p);
        else
          copies_[next] = p;
        ++next;
      });
    }
    before_ = counts;
    take_step(stage, *how, found, counts.taken);
    found.count(counts);
  }
  //! Forward passes that have run since then leave nothing that their repetition does not write
  //! anew.
  template <class Stage>
  void roll_back(Stage& stage) {
    std::size_t next = 0;
    stage.for_each_parameter([&](auto& p) { std::swap(p, copies_[next++]); });
    counts = before_;
    ++rolled_back;
    stage.refresh();
  }

private:
  std::vector<parameter<Number>> copies_{}; // of all, before the last step
  step_counts before_{};
};

//! Copies of a stage as the library calls them, with the hooks of the optimizer next to their
//! passes. Each copy steps by itself.
//! @tparam Copies a `copies_of`
template <class Copies>
struct clipped_stage : Copies {
  static constexpr std::int64_t totals_bytes = sizeof(gradient_row);

  explicit clipped_stage(Copies passes) : Copies(std::move(passes)) {}

  //! @param chosen must outlive this
  void set_clipping(clipping const& chosen) {
    how_ = &chosen;
    for (auto* const each : this->of)
      if (each != nullptr)
        each->set_clipping(chosen);
  }

  void contribute(pp::context const& where, pp::output out) {
    this->join_replicas(where);
    this->at(where).contribute(where, out);
  }
  //! Of rows on the host.
  [[nodiscard]] bool accepts(pp::context const&, pp::totals const& all) const {
    return clipped_step(how_->largest_norm, all).accepts();
  }
  void optimizer_step(pp::context const& where, pp::totals const& all) {
    this->at(where).optimizer_step(where, all);
  }
  void roll_back(pp::context const& where, bool stepped) {
    if (stepped)
      this->at(where).roll_back(where);
  }
  //! Nothing: `optimizer_step` leaves gradients of zero.
  void begin_iteration(pp::context const&) {}

private:
  clipping const* how_ = nullptr;
};

//! The norm is that of the stages' rows in their order. Copies have the gradients of their stages
//! and step likewise. Returns how many steps were taken.
template <class Stage>
std::int64_t take_clipped_step(std::vector<Stage>& stages,
                               clipping const& how,
                               std::int64_t taken,
                               std::type_identity_t<std::span<Stage>> copies = {}) {
  std::vector<gradient_row> rows;
  for (auto& each : stages)
    rows.push_back(row_of(each));
  auto const bytes = static_cast<std::int64_t>(sizeof(gradient_row));
  clipped_step const found(
    how.largest_norm,
    {reinterpret_cast<std::byte const*>(rows.data()), bytes, bytes, static_cast<int>(rows.size())});
  for (auto& each : stages)
    take_step(each, how, found, taken);
  for (auto& each : copies)
    take_step(each, how, found, taken);
  return taken + (found.finite ? 1 : 0);
}

} // namespace gpt
