// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stages that devices take in turn, with weights that lie on the host. Header for
//! pipelining::RoundPipe.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_3 {
namespace detail {

//! The data of `round_training`, numbered.
enum round_datum : std::uint8_t { handed_on, round_gradient, round_working };

inline constexpr effect reads_stage_before{does::reads, handed_on, of_stage::before};

} // namespace detail

//! @brief Training as one chain of stages: some that go forward, after them those that go back.
//!
//! Every pass reads what the stage before has made for the microbatch, an output or a gradient, and
//! makes the same for the stage after. A backward pass computes the forward pass of its layers
//! again from an input that a forward stage has put on the host, in memory of the user, and has
//! `context::activation` to work in. The first backward stage has that input from the stage before
//! it.
inline constexpr flow round_training =
  declare({detail::data_of_training.data[detail::made_output],
           {"weight_gradient", 0, 0, residence::nowhere, datum::per::unit, true},
           detail::in_pool_of(detail::kept_activation, "working_activation")},
          {{pass_kind::forward,
            declare_kind(pass_kind::forward,
                         engine::compute,
                         stage_call::forward,
                         {detail::reads_stage_before, {does::makes, detail::handed_on}})},
           {pass_kind::backward,
            declare_kind(pass_kind::backward,
                         engine::compute,
                         stage_call::backward,
                         {detail::reads_stage_before,
                          {does::makes, detail::round_working},
                          {does::frees, detail::round_working},
                          {does::makes, detail::handed_on},
                          {does::makes, detail::round_gradient}})}});

//! @brief RoundPipe: devices own no stages. A list of stages, those of the forward passes and then
//! those of the backward passes, is dealt out in turn; all weights lie on the host and those of a
//! stage are on a device while it runs.
//!
//! Stage n of the list is on device n mod P, which takes all microbatches through it and then goes
//! on with stage n + P. A backward stage computes its forward passes again, so it has fewer layers
//! than a forward stage; the first backward stage has the last layers, which no forward stage has.
//! `round_stages::best` cuts layers so.
//!
//! With stages that all take t and free messages the makespan of S stages is
//! (k max(M, P) + r + M) t with S - 1 = k P + r, r < P: for M >= P a bubble of (P - 1) t where P
//! divides S, and up to M t more where it does not; for M = P it is (S + P - 1) t whatever S is. A
//! device keeps the activation of one microbatch of one stage, and that only while it runs.
//!
//! `with_sharded_weights<RoundPipe<...>>` loads the weights of a stage while the one before it
//! runs, and takes gradients back, on the engine `network`: `gather_weights` of a stage copies from
//! the host. A device then has room for the weights of two stages. As long as M passes take no less
//! than a load and an unload, both add to the makespan once: the first load and the last unload.
//!
//! @tparam Forward stages that go forward, 0 where the first backward stage has all layers, or
//! `dynamic`. @tparam Backward stages that go back, or `dynamic`.
//! @throws std::invalid_argument from `arrange` for less than one backward stage, or fewer than P
//! in all.
//! @complexity O(1) per pass.
//! @source "RoundPipe", 2026 (arXiv:2604.27085), and its repository, ITcarrot/RoundPipe. Where the
//! inputs of backward stages lie, and the law for any S, are own.
template <int Forward = dynamic, int Backward = dynamic>
struct RoundPipe {
  static_assert((Forward == dynamic || Forward >= 0) && (Backward == dynamic || Backward >= 1),
                "RoundPipe: there is at least one backward stage");
  static constexpr flow declared = round_training; //!< one chain, forward and back

  detail::parameter<Forward, 1> forward_stages{};   //!< S_f
  detail::parameter<Backward, 3> backward_stages{}; //!< S_b

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (forward_stages < 0 || backward_stages < 1 || forward_stages > 65535 ||
        backward_stages > 65535 || forward_stages + backward_stages < devices)
      throw std::invalid_argument("RoundPipe: there is at least one backward stage, at "
                                  "most 65535 of each, and in all no fewer than devices");
    int const stages = forward_stages + backward_stages;
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = stages / (devices > 0 ? devices : 1),
            .where = placement::custom,
            .extra_stages = stages % (devices > 0 ? devices : 1)};
  }
  //! Dealt out in turn.
  [[nodiscard]] constexpr int device_of(shape const& extents, int stage, int) const {
    return stage % extents.devices;
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    for (int stage = device; stage < extents.stages(); stage += extents.devices)
      for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
        if (stage < forward_stages)
          out.forward(stage, microbatch);
        else
          out.backward(stage, microbatch);
  }
};

} // namespace pipelining::inline v0_3
