// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Weights that travel from device to device, where activations stay. Header for
//! pipelining::WeiPipe.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {
namespace detail {

//! The data of `travelling_weights`, numbered.
enum travelling_datum : std::uint8_t {
  forward_weights,
  backward_weights, // with their gradients
  activation_of_group,
  group_output,
  group_output_gradient
};

[[nodiscard]] constexpr datum
travelling_datum_in(flow_word const& word, slot_class made, slot_class arrives) {
  return {.word = word,
          .pool = static_cast<std::uint8_t>(made),
          .arrives_in = static_cast<std::uint8_t>(arrives),
          .wanted = true};
}
//! A datum that stays with a microbatch from one group of layers to the next.
[[nodiscard]] constexpr datum passed_on(flow_word const& word, slot_class pool) {
  datum result = travelling_datum_in(word, pool, pool);
  result.instance = datum::per::microbatch;
  result.wanted = false;
  result.only_chunked = true;
  return result;
}

//! The flow in which weights travel and activations stay: what is a stage elsewhere is a
//! microbatch, and what is a chunk there is a group of layers.
//!
//! A forward pass reads the weights of its group from the microbatch before, keeps an activation,
//! and makes the weights for the microbatch after. A backward pass reads weights and gradients of
//! its group from the microbatch before (in training it would be the stage after), and makes the
//! same for the one after. The output of a group lies in `context::state` for the next group, its
//! gradient in `context::state_gradient`. Pools are those of training: weights on their way
//! forward are an `output`, those on their way backward with their gradients an `input_gradient`.
//! A member of a template is worked out only where it is used.
template <bool Used = true>
struct travelling_weights {
  //! Weights flow, activations stay.
  static constexpr flow declared = [] {
    return declare(
      {travelling_datum_in("weights", slot_class::output, slot_class::received_input),
       travelling_datum_in(
         "weights and gradients", slot_class::input_gradient, slot_class::received_gradient),
       travelling_datum_in("activation", slot_class::activation, slot_class::activation),
       passed_on("output of a group", slot_class::sequence),
       passed_on("gradient of an output", slot_class::sequence_gradient)},
      {{pass_kind::forward,
        declare_kind(pass_kind::forward,
                     engine::compute,
                     stage_call::forward,
                     {{does::reads, forward_weights, of_stage::before},
                      {does::makes, activation_of_group},
                      {does::adds_to, group_output, of_stage::own, effect::chunk_order::ascending},
                      {does::makes, forward_weights}})},
       {pass_kind::backward,
        declare_kind(
          pass_kind::backward,
          engine::compute,
          stage_call::backward,
          {{does::reads, backward_weights, of_stage::before},
           {does::frees, activation_of_group},
           {does::frees, group_output},
           {does::adds_to, group_output_gradient, of_stage::own, effect::chunk_order::descending},
           {does::frees, group_output_gradient},
           {does::makes, backward_weights}})}});
  }();
};

} // namespace detail

//! @brief WeiPipe: microbatches stay on their device, and the weights of P groups of layers travel
//! round a ring of devices, for long sequences, whose activations are larger than weights.
//!
//! Microbatch q is on device q mod P, and there are M/P rounds. Each device takes its microbatch of
//! a round through all groups, g = 0 ... P - 1, then in turn backward of this one, group P - 1 - i,
//! and forward of the next, group i. Device r starts r passes late: a pass gets the weights of its
//! group from the microbatch before, on device r - 1. There are two copies, one for forward and one
//! for backward passes; gradients travel with the second and are added to. In the timetable
//! microbatches are stages and groups are chunks, see `travelling_weights`.
//!
//! With free messages the bubble is (P - 1) max(f, B) of the makespan, f and B the times of a
//! group. Every device keeps the activations of P groups of one microbatch at its peak. A device
//! sends the weights and the gradients of the whole model once for each of its microbatches, in
//! weights of a group 3P, whatever the length of the sequences is; a 1F1B pipeline sends two
//! activations. The first microbatch takes its weights from where they lie between steps, the last
//! one leaves the sums of gradients there. The paper spreads both over the devices and moves them
//! to the first and from the last; that is no part of the timetable, and stages have no hooks for
//! complete gradients.
//!
//! @throws std::invalid_argument from `arrange` when M is no multiple of P.
//! @complexity O(1) per pass.
//! @source Lin et al., "WeiPipe: Weight Pipeline Parallelism for Communication-Effective
//! Long-Context Large Model Training", PPoPP 2025, and its repository, wuhouming/TawPipe
//! (weipipe.py).
struct WeiPipe : detail::travelling_weights<> {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (devices > 0 && microbatches % devices != 0)
      throw std::invalid_argument("WeiPipe: each device has a microbatch in every round, so the "
                                  "number of microbatches must be a multiple of the " +
                                  std::to_string(devices) + " devices, not " +
                                  std::to_string(microbatches));
    return {.devices = devices,
            .chunks = devices,
            .stages_per_device = microbatches / (devices > 0 ? devices : 1)};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const groups = extents.chunks;
    int const rounds = extents.stages_per_device;
    for (int group = 0; group < groups; ++group)
      out.forward(device, 0, group);
    for (int round = 0; round < rounds; ++round)
      for (int i = 0; i < groups; ++i) {
        out.backward(device + round * extents.devices, 0, groups - 1 - i);
        if (round + 1 < rounds)
          out.forward(device + (round + 1) * extents.devices, 0, i);
      }
  }
};

} // namespace pipelining::inline v0_3
