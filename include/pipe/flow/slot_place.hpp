// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where a pass is handed the slot of a datum. Header for pipelining::slot_place.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/slot_class.hpp>

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief The member of a context that hands a pass the slot of a datum: one of those that stay, or
//! the list of what it reads or of what it fills.
enum class slot_place : std::uint8_t {
  none, //!< the datum lies in no slot
  activation,
  weight_input,
  state,
  state_gradient,
  inputs,
  outputs
};

namespace detail {

//! The step from a pass's own stage to those of which an effect is about a datum.
[[nodiscard]] constexpr int step_to(of_stage whose) noexcept {
  return whose == of_stage::before  ? -1
         : whose == of_stage::after ? 1
         : whose == of_stage::group ? beside
                                    : 0;
}
//! The step back: from the stage that makes a datum to those that read it.
[[nodiscard]] constexpr int step_back(of_stage whose) noexcept {
  return whose == of_stage::group ? beside : -step_to(whose);
}

//! Whether an effect brings a datum to life, on the first chunk at least.
[[nodiscard]] constexpr bool brings(effect const& one) noexcept {
  return one.what == does::makes || one.what == does::adds_to;
}

//! Whether a pass that does this has the slot of the datum.
[[nodiscard]] constexpr bool has_slot(does what) noexcept {
  return what < does::needs;
}

//! Whether the library moves a slot, next to the compute engine. A kind of the compute engine that
//! calls no stage merely stands between passes.
[[nodiscard]] constexpr bool is_copy(kind_of_pass const& of) noexcept {
  return of.calls == stage_call::copy && of.on != engine::compute;
}

//! The member that hands out slots of a pool of what stays; else `none`.
[[nodiscard]] constexpr slot_place member_of(slot_class pool) noexcept {
  switch (pool) {
  case slot_class::activation:
  case slot_class::logits: return slot_place::activation;
  case slot_class::weight_input: return slot_place::weight_input;
  case slot_class::sequence: return slot_place::state;
  case slot_class::sequence_gradient: return slot_place::state_gradient;
  default: return slot_place::none;
  }
}

} // namespace detail

//! @brief The class of the slot that a kind of pass has as its activation.
[[nodiscard]] constexpr slot_class activation_class(flow const& declared,
                                                    kind_of_pass const& of) noexcept {
  for (int i = 0; of.in_groups && i < of.effect_count; ++i)
    if (declared.data[of.effects[i].of].pool == static_cast<int>(slot_class::logits))
      return slot_class::logits;
  return slot_class::activation;
}
//! @brief The same by the number of the kind.
[[nodiscard]] constexpr slot_class activation_class(flow const& declared, pass_kind kind) noexcept {
  return activation_class(declared, declared[kind]);
}

//! @brief The member of a context that hands a pass the slot of one of its effects.
//!
//! The first datum of each pool of what stays has a member of its own. All others stand in `inputs`
//! or, where the pass brings them to life, in `outputs`, in the order of the effects; what is not
//! there on a stage takes no place. A copy has one of each.
//! @pre 0 <= number < of.effect_count, and the data of all effects exist
//! @complexity O(effects).
[[nodiscard]] constexpr slot_place
place_of(flow const& declared, kind_of_pass const& of, int number) noexcept {
  effect const& one = of.effects[number];
  datum const& about = declared.data[one.of];
  if (about.lives == residence::nowhere || !detail::has_slot(one.what))
    return slot_place::none;
  for (int i = 0; i < number; ++i) // memory to work in: where it is made
    if (of.effects[i].of == one.of && of.effects[i].stage == one.stage &&
        detail::brings(of.effects[i]))
      return place_of(declared, of, i);
  auto const pool = static_cast<slot_class>(about.pool);
  slot_place const member = detail::member_of(pool);
  bool stays = one.stage == of_stage::own && member != slot_place::none && !detail::is_copy(of) &&
               (member != slot_place::activation || pool == activation_class(declared, of));
  for (int i = 0; i < number && stays; ++i)
    stays = place_of(declared, of, i) != member;
  return stays ? member : detail::brings(one) ? slot_place::outputs : slot_place::inputs;
}

} // namespace pipelining::inline v0_3
