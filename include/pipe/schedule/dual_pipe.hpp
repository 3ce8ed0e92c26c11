// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Forward and backward passes that share a device at the same time. Header for
//! pipelining::DualPipe and pipelining::DualPipeV.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief How DualPipe runs the forward and the backward pass that it puts side by side.
enum class pairs : std::uint8_t {
  overlapped, //!< as one composite pass, which takes the time that the cost model gives the pair
  in_turn     //!< one after the other; the forward pass sends its output as soon as it has ended
};

namespace detail {

//! Microbatches that a device takes in one phase: those of one direction, or on one side of a V.
struct dual_pipe_phase {
  int stage;
  int first;   //!< the first microbatch
  int present; //!< how many microbatches there are
  int forwards = 0;
  int backwards = 0;
  int weights = 0;
};

//! Writes passes of both phases, those of each kind in the order of their microbatches. What a
//! phase does not have is left out.
struct paired_passes {
  bool overlap; //!< pairs as composite passes
  dual_pipe_phase of[2];
  row_writer* out;

  //! The next pass of a kind. @return whether there is one
  constexpr bool push(pass_kind kind, int phase, bool with_last = false) {
    dual_pipe_phase& own = of[phase];
    int const number = kind == pass_kind::forward           ? own.forwards++
                       : kind == pass_kind::backward_weight ? own.weights++
                                                            : own.backwards++;
    if (number >= own.present)
      return false;
    pass what = row_writer::make(kind, own.stage, own.first + number);
    what.overlapped = with_last;
    out->push(what);
    return true;
  }
  constexpr void pair(
    pass_kind first, int first_phase, pass_kind second, int second_phase, bool may_overlap = true) {
    bool const both = push(first, first_phase);
    push(second, second_phase, both && overlap && may_overlap);
  }
};

//! Writes the eight steps of DualPipe on one device.
//!
//! The steps are those of at least two microbatches per rank and phase. Where there are fewer, the
//! passes of the others are left out; what remains keeps its order, so nothing new can wait for
//! ever.
struct dual_pipe_writer {
  int rank;          //!< distance from the end where phase 0 enters
  int ranks;         //!< ranks that a microbatch passes until it reaches the middle
  paired_passes row; //!< phase 0 reaches this device first

  constexpr void write() {
    int const outer = ranks - 1 - rank;
    int const turns = std::max({row.of[0].present, row.of[1].present, 2 * ranks});
    for (int i = 0; i < 2 * outer; ++i)
      row.push(pass_kind::forward, 0);
    for (int i = 0; i <= rank; ++i) {
      row.push(pass_kind::forward, 0);
      row.push(pass_kind::forward, 1);
    }
    for (int i = 0; i < outer; ++i) {
      row.of[1].weights = row.of[1].backwards;
      row.push(pass_kind::backward_input, 1);
      row.push(pass_kind::backward_weight, 1);
      row.push(pass_kind::forward, 1);
    }
    for (int i = 0; i < turns - 2 * ranks + rank + 1; ++i) {
      // In the middle the first backward pass needs the forward pass right before it.
      row.pair(pass_kind::forward, 0, pass_kind::backward, 1, i > 0 || outer > 0);
      row.pair(pass_kind::forward, 1, pass_kind::backward, 0);
    }
    for (int i = 0; i < outer; ++i) {
      row.push(pass_kind::backward, 1);
      row.pair(pass_kind::forward, 1, pass_kind::backward, 0);
    }
    drain(outer);
  }

private:
  //! The last backward passes: the second half of them is split, and the gradients of the weights
  //! fill the waits at the end.
  constexpr void drain(int outer) {
    for (int i = 0; i <= rank; ++i)
      row.push(pass_kind::backward, i % 2 == 0 ? 1 : 0);
    row.of[0].weights = row.of[0].backwards;
    row.of[1].weights = row.of[1].backwards;
    for (int i = rank + 1; i < 2 * (rank + 1); ++i)
      row.push(pass_kind::backward_input, i % 2 == 0 ? 1 : 0);
    for (int i = 0; i < ranks; ++i) {
      row.push(pass_kind::backward_weight, i <= rank && (rank + 1 + i) % 2 == 0 ? 1 : 0);
      if (i < outer)
        row.push(pass_kind::backward_input, 0);
    }
  }
};

} // namespace detail

//! @brief DualPipe: microbatches enter at both ends of the pipeline, every device holds two stages
//! of the model, and in steady state a forward pass of one direction shares the device with a
//! backward pass of the other.
//!
//! Microbatches below M/2 enter at device 0, the others at device P - 1. The weights are held
//! twice. With F = I = W = 1, pairs of time X, no latency, and an even M >= 2P, the bubble is
//! (P/2 - 1)(X + B - 3W), B = I + W; with other costs that is an upper bound. In turn, pairs leave
//! half of it: (P/2 - 1)(F + I - W). Peak P + 1 activations of one stage on every device. Smaller
//! or odd M give valid orders with a larger bubble.
//!
//! @tparam How pairs as composite passes or in turn.
//! @pre P is even.
//! @complexity O(1) per pass.
//! @source DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv:2412.19437), section 3.2.1, figure 5.
template <pairs How = pairs::overlapped>
struct DualPipe {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (devices % 2 != 0)
      throw std::invalid_argument(
        "DualPipe: the number of devices must be even, because device d and device P - 1 - d "
        "hold the same two stages; DualPipeV takes any number");
    return {.devices = devices, .microbatches = microbatches, .where = placement::bidirectional};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const mirrored = extents.devices - 1 - device;
    int const half = extents.microbatches / 2;
    detail::dual_pipe_phase const from_start{device, 0, half};
    detail::dual_pipe_phase const from_end{mirrored, half, extents.microbatches - half};
    bool const first_half = device < mirrored;
    detail::dual_pipe_writer steps{
      first_half ? device : mirrored,
      extents.devices / 2,
      {How == pairs::overlapped,
       {first_half ? from_start : from_end, first_half ? from_end : from_start},
       &out}};
    steps.write();
  }
};

//! @brief DualPipe with its two halves folded into a V: device d holds the stages d and 2P - 1 - d,
//! every microbatch enters and leaves at device 0, and the weights are held once.
//!
//! With F = I = W = 1 (of one stage), pairs of time X, no latency and M >= 2P, the bubble is
//! (P - 1)(X + B - 3W), B = I + W; with other costs that is an upper bound. In turn, pairs leave
//! (P - 1)(F + I - W). Peak 2P + 1 activations of one stage. Smaller M give valid orders with a
//! larger bubble. Any P >= 1, M >= 1.
//!
//! @tparam How pairs as composite passes or in turn.
//! @complexity O(1) per pass.
//! @source deepseek-ai/DualPipe, dualpipev.py; Sea AI Lab, "DualPipe could be better without the
//! Dual" (2025).
template <pairs How = pairs::overlapped>
struct DualPipeV {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = 2,
            .where = placement::wave};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::dual_pipe_writer steps{device,
                                   extents.devices,
                                   {How == pairs::overlapped,
                                    {{device, 0, extents.microbatches},
                                     {2 * extents.devices - 1 - device, 0, extents.microbatches}},
                                    &out}};
    steps.write();
  }
};

} // namespace pipelining::inline v0_3
