// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Totals that the host needs to decide about a step of the optimizer. Header for
//! pipelining::cuda::step_decisions.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3::cuda::detail {

//! Brings the rows of the totals of one device to its host, which decides with `accepts`
//! whether the stages step and whether the iteration before was right.
//!
//! The rows are copied to pinned memory on the stream of passes, behind what brings them, and an
//! event tells when they have come; all stages of the device decide with one copy. Until then the
//! host enqueues nothing more for this device, since a GPU cannot take back what is enqueued, but
//! all that comes before has been: the forward passes of the next iteration run while the rows
//! travel. So a decision costs the way to the host and back, where the device has nothing left to
//! do meanwhile. Other devices go on.
class step_decisions {
public:
  //! @pre the device's GPU is current. @param work a plan that steps early or validates.
  step_decisions(plan_view const& work, int device)
      : bytes_(work.layout(device, slot_class::totals).bytes *
               work.layout(device, slot_class::totals).count),
        rows_(bytes_) {}

  //! Before an iteration. @param carried rows that its totals are to hold, or none.
  //! @param on the stream of passes.
  void begin(rooms::arena const& slots, std::span<std::byte const> carried, cudaStream_t on) {
    asked_ = rooms::subject::pass;
    wrong_ = false;
    if (carried.empty())
      return;
    std::copy(carried.begin(), carried.end(), rows_.data());
    totals const all = slots.all_totals();
    auto const stride = static_cast<std::size_t>(all.stride);
    check(cudaMemcpy2DAsync(slots.memory + slots.place({.of = slot_class::totals, .index = 0}),
                            stride,
                            rows_.data(),
                            stride,
                            static_cast<std::size_t>(all.bytes), // what follows in a row is a guard
                            static_cast<std::size_t>(all.rows),
                            cudaMemcpyHostToDevice,
                            on),
          "cudaMemcpy2DAsync");
  }
  //! True for items that need the rows on the host.
  [[nodiscard]] static bool decides(item const& step) noexcept {
    return step.what == operation::run &&
           (step.about == rooms::subject::early_update || step.about == rooms::subject::validation);
  }
  //! True when the rows have been asked for.
  [[nodiscard]] bool asked(rooms::subject about) const noexcept { return asked_ == about; }
  //! Asks for them. @pre the stream waits for what brings the rows to the device.
  void ask(rooms::arena const& slots, rooms::subject about, cudaStream_t on) {
    asked_ = about;
    totals const all = slots.all_totals();
    check(cudaMemcpyAsync(
            rows_.data(), all.data, static_cast<std::size_t>(bytes_), cudaMemcpyDeviceToHost, on),
          "cudaMemcpyAsync");
    come_.record(on);
    // Who steps early steps with the rows of the devices so far; the others are to be zeros.
    for (int stage = 0; about == rooms::subject::early_update && stage < all.rows; ++stage)
      if (device_of(slots.work, stage) > slots.device)
        check(
          cudaMemsetAsync(slots.memory + slots.place({.of = slot_class::totals, .index = stage}),
                          0,
                          static_cast<std::size_t>(all.bytes),
                          on),
          "cudaMemsetAsync");
  }
  //! True when they have come. @throws error when the device reports one.
  [[nodiscard]] bool come() const { return come_.happened(); }
  //! The rows of all stages. @pre they have come.
  [[nodiscard]] std::byte const* rows() const noexcept { return rows_.data(); }

  //! A stage has found that the step before was wrong, and has made it right.
  void find_wrong() noexcept { wrong_ = true; }
  //! True when a stage has found that: the iteration begins again.
  [[nodiscard]] bool wrong() const noexcept { return wrong_; }

private:
  std::int64_t bytes_; // of all rows
  pinned_memory rows_;
  event come_;
  rooms::subject asked_ =
    rooms::subject::pass; // what the rows were asked for last; a pass asks for none
  bool wrong_ = false;
};

} // namespace pipelining::inline v0_3::cuda::detail
