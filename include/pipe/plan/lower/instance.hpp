// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The instances of the data of a flow: one per unit of a stage, or one per microbatch. What
//! the colouring of slots and their proof share.

#include <pipe/core/flow.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/plan/item.hpp>

namespace pipelining::inline v0_1 {
namespace detail {

//! Where an instance of a datum is on a device.
struct held_datum {
  int slot = nothing;
  int pool = 0;
  int maker = nothing; //!< the item that made it, or that received it
  int reads = 0;       //!< reads that are still to come, of what other stages read
};

//! The maker of what has none yet, but whose readers have been counted.
inline constexpr int made_by_reader = -2;

//! The number of values of `instance_index`.
[[nodiscard]] constexpr int instance_indices(pipeline const& over) noexcept {
  return over.declared->data_count * stages(over.extents) * units(over);
}

//! @param unit of a datum per microbatch: the microbatch
[[nodiscard]] constexpr int
instance_index(pipeline const& over, int of, int stage, int unit) noexcept {
  return (of * stages(over.extents) + stage) * units(over) + unit;
}

//! The number of the instance that a pass is about.
[[nodiscard]] constexpr int
unit_of(pipeline const& over, datum const& of, pass const& work) noexcept {
  return of.instance == per::microbatch ? work.microbatch : unit_of(over, work);
}

//! The stage whose datum an effect is about; it may not exist.
[[nodiscard]] constexpr int stage_of_effect(effect const& one, pass const& work) noexcept {
  return work.stage + (one.stage == of_stage::before ? -1 : one.stage == of_stage::after ? 1 : 0);
}

//! True for the chunk that comes first in an order.
[[nodiscard]] constexpr bool
opens(pipeline const& over, chunk_order order, pass const& work) noexcept {
  return work.chunk == (order == chunk_order::ascending ? 0 : chunks_of(over, work.microbatch) - 1);
}

//! True for the pass of a microbatch that comes last of its kind.
[[nodiscard]] constexpr bool
closes(pipeline const& over, kind_of_pass const& kind, pass const& work) noexcept {
  for (int e = 0; e < kind.effect_count; ++e)
    if (kind.effects[e].what == does::adds_to)
      return opens(over,
                   kind.effects[e].order == chunk_order::ascending ? chunk_order::descending
                                                                   : chunk_order::ascending,
                   work);
  return true;
}

//! True when a kind frees what it makes: memory to work in.
[[nodiscard]] constexpr bool frees_itself(kind_of_pass const& kind, int of) noexcept {
  bool makes = false;
  bool frees = false;
  for (int e = 0; e < kind.effect_count; ++e) {
    makes = makes || (kind.effects[e].of == of && kind.effects[e].what == does::makes);
    frees = frees || (kind.effects[e].of == of && kind.effects[e].what == does::frees);
  }
  return makes && frees;
}

} // namespace detail
} // namespace pipelining::inline v0_1
