// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The place of the thread that enqueues, for a watchdog. Header for
//! pipelining::cuda::detail::enqueuing_place.

#include <pipe/cuda/error.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <atomic>
#include <cstddef>
#include <string>

namespace pipelining::inline v0_3::cuda::detail {

//! Notes of one thread as it enqueues, for a watchdog: relaxed stores, nothing else.
struct enqueuing_place {
  std::atomic<unsigned> pulse = 0;   // a sign of life: the thread is in the library
  std::atomic<int> device = nothing; // of the plan
  std::atomic<int> item = nothing;   // of its program, while a stage or a transport has it

  //! An item of a device goes to the stage or transport that enqueues it.
  void enter(int of, int at) noexcept {
    device.store(of, std::memory_order_relaxed);
    item.store(at, std::memory_order_relaxed);
    beat();
  }
  //! The call is back, or the thread waits and asks a GPU.
  void leave() noexcept {
    item.store(nothing, std::memory_order_relaxed);
    beat();
  }

  //! The call that the thread is in: "the forward of stage 1, microbatch 0 (item 3 of 40)".
  [[nodiscard]] std::string in_words(plan const& work) const {
    int const of = device.load(std::memory_order_relaxed);
    int const at = item.load(std::memory_order_relaxed);
    if (of == nothing || at == nothing)
      return "a call of CUDA between two items";
    auto const items = work.program_of(of);
    item_type const& step = items[static_cast<std::size_t>(at)];
    return (step.what == operation::run ? "the " + rooms::describe_subject(step, work)
                                        : "a call to " + describe(step, work)) +
           " (item " + std::to_string(at) + " of " + std::to_string(items.size()) + ")";
  }

private:
  using item_type = pipelining::item;

  void beat() noexcept {
    pulse.store(pulse.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

} // namespace pipelining::inline v0_3::cuda::detail
