// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The most bytes that the devices of a timetable hold at once.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>

namespace pipelining::inline v0_3 {

namespace detail {

//! True for a forward pass that frees its own activation: another kind brings it back.
[[nodiscard]] constexpr bool is_checkpointed(flow const& declared, pass_kind kind) noexcept {
  kind_of_pass const& of = declared[kind];
  int const pool = static_cast<int>(activation_class(declared, kind));
  return of.is == role::forward && std::any_of(of.begin(), of.end(), [&](effect const& one) {
           return one.what == does::frees && declared.data[one.of].pool == pool;
         });
}

} // namespace detail

//! @brief The most bytes that a device holds at once in a pool of slots, as the flow says which
//! pass takes and which gives back: of `slot_class::activation` in training from the start of a
//! forward pass to the end of `backward` or `backward_weight`; of `slot_class::host_activation`
//! from the start of a copy out to the end of the copy in; of `slot_class::weights` the whole
//! weights that are gathered at once, of `slot_class::full_gradients` the gradients that are not
//! scattered yet.
//! @param bytes_of `bytes_of(pass)`: the bytes in the slot of this pass.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] double
peak_slot_bytes(timetable_view table, int device, slot_class of, auto const& bytes_of) {
  return detail::peak_of<double>(table, device, of, bytes_of);
}

//! @brief The most bytes of inputs that a device keeps at once for passes that are recomputed: from
//! the start of a checkpointed forward pass to the end of its recomputation. 0 without such passes.
//! @param bytes_of `bytes_of(pass)`: the input of the unit and stage of this pass.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] double peak_kept_input_bytes(timetable_view table, int device, auto const& bytes_of) {
  flow const& declared = *table.over.declared;
  if (declared.kind_with(role::again) == flow::no_kind)
    return 0;
  return detail::peak_by<double>(table, device, [&](pass const& what, bool ends) -> double {
    if (ends)
      return declared[what.kind].calls == stage_call::recompute ? -bytes_of(what) : 0;
    return detail::is_checkpointed(declared, what.kind) ? bytes_of(what) : 0;
  });
}

//! @brief The memory of one unit of one stage on a device, in bytes.
struct unit_bytes {
  double activation = 0; //!< all that backward reads
  double kept = 0;  //!< of it what a checkpointed forward pass keeps, the stage's input included
  double moved = 0; //!< of it what copies take to the host
};

//! @brief The most bytes of activations that a device holds at once where some are recomputed or
//! moved in part. A checkpointed forward pass holds the whole activation while it runs, and `kept`
//! of it afterwards. `recompute` brings the rest back. A copy takes `moved` of it to the host and
//! back.
//! @param bytes_of `bytes_of(pass)` gives the unit_bytes of the unit and stage of this pass.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] double peak_device_bytes(timetable_view table, int device, auto const& bytes_of) {
  return detail::peak_by<double>(table, device, [&](pass const& what, bool ends) -> double {
    unit_bytes const of = bytes_of(what);
    kind_of_pass const& kind = (*table.over.declared)[what.kind];
    if (kind.in_groups || detail::stands_between(kind))
      return 0;
    switch (kind.is) {
    case role::forward:
      return !ends                                                      ? of.activation
             : detail::is_checkpointed(*table.over.declared, what.kind) ? of.kept - of.activation
                                                                        : 0;
    case role::again: return ends || kind.on != engine::compute ? 0 : of.activation - of.kept;
    case role::copy:
      return kind.on == engine::copy_out ? (ends ? -of.moved : 0) : (ends ? 0 : of.moved);
    case role::backward:
    case role::weights: return ends ? -of.activation : 0;
    default: return 0;
    }
  });
}

} // namespace pipelining::inline v0_3
