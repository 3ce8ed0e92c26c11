// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage with its optimizer: gradients are clipped by their global norm, steps are left
//! out where a gradient is not finite, and a step that was taken early can be undone.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "host/host_stage.hpp"

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

  clipped_step(clipping const& how, pp::totals const& all) {
    gradient_row sum;
    for (int stage = 0; stage < all.rows; ++stage) {
      auto const& row = all.row<gradient_row>(stage)[0];
      sum.squared_norm += row.squared_norm;
      sum.not_finite += row.not_finite;
    }
    finite = sum.not_finite == 0;
    double const wanted = how.largest_norm / (std::sqrt(sum.squared_norm) + 1e-6);
    coefficient = wanted < 1 ? wanted : 1;
  }
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

//! A stage as the library calls it, with the hooks of the optimizer next to its passes.
//! @tparam Stage has the passes, for each parameter `for_each_parameter`, and `join_replicas`,
//! after which gradients are those of the whole batch.
template <class Stage>
struct clipped_stage : Stage {
  static constexpr std::int64_t totals_bytes = sizeof(gradient_row);

  explicit clipped_stage(Stage passes) : Stage(std::move(passes)) {}

  //! @param chosen must outlive this
  void set_clipping(clipping const& chosen) { how_ = &chosen; }

  void contribute(pp::context const&, pp::output out) {
    this->join_replicas();
    out.as<gradient_row>()[0] = row_of(static_cast<Stage&>(*this));
  }

  //! A norm only grows when rows join it, so what these rows do not accept, more will not.
  [[nodiscard]] bool accepts(pp::context const&, pp::totals const& all) const {
    clipped_step const found(*how_, all);
    return found.finite && found.coefficient == 1;
  }

  void optimizer_step(pp::context const&, pp::totals const& all) {
    clipped_step const found(*how_, all);
    if (how_->early)
      keep_copy();
    last_counts_ = counts_;
    counts_.clipped += found.finite && found.coefficient < 1 ? 1 : 0;
    counts_.left_out += found.finite ? 0 : 1;
    take_step(static_cast<Stage&>(*this), *how_, found, counts_.taken);
    counts_.taken += found.finite ? 1 : 0;
  }

  //! Forward passes that have run since then leave nothing that their repetition does not write
  //! anew.
  void roll_back(pp::context const&, bool stepped) {
    if (!stepped)
      return;
    std::size_t next = 0;
    this->for_each_parameter([&](auto& p) { std::swap(p, copies_[next++]); });
    counts_ = last_counts_;
    ++rolled_back_;
    this->refresh();
  }

  //! Nothing: `optimizer_step` leaves gradients of zero.
  void begin_iteration(pp::context const&) {}

  [[nodiscard]] step_counts const& counts() const { return counts_; }
  //! @pre no step is still to be validated
  void set_counts(step_counts const& counts) { counts_ = counts; }
  [[nodiscard]] std::int64_t rolled_back() const { return rolled_back_; }

private:
  //! To compute backwards what the optimizer did would round.
  void keep_copy() {
    std::size_t next = 0;
    this->for_each_parameter([&](auto const& p) {
      if (next == copies_.size())
        copies_.push_back(p);
      else
        copies_[next] = p;
      ++next;
    });
  }

  clipping const* how_ = nullptr;
  std::vector<parameter<float>> copies_; // of all, before the last step
  step_counts counts_;
  step_counts last_counts_;
  std::int64_t rolled_back_ = 0;
};

//! The norm is that of the stages' rows in their order. Copies have the gradients of their stages
//! and step likewise. Returns how many steps were taken.
inline std::int64_t take_clipped_step(std::vector<host_stage<float>>& stages,
                                      clipping const& how,
                                      std::int64_t taken,
                                      std::span<host_stage<float>> copies = {}) {
  std::vector<gradient_row> rows;
  for (auto& each : stages)
    rows.push_back(row_of(each));
  auto const bytes = static_cast<std::int64_t>(sizeof(gradient_row));
  clipped_step const found(
    how,
    {reinterpret_cast<std::byte const*>(rows.data()), bytes, bytes, static_cast<int>(rows.size())});
  for (auto& each : stages)
    take_step(each, how, found, taken);
  for (auto& each : copies)
    take_step(each, how, found, taken);
  return taken + (found.finite ? 1 : 0);
}

} // namespace gpt
