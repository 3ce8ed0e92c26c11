// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a timetable holds at most, in bytes. Header for pipelining::peak_activation_bytes,
//! peak_kept_input_bytes and peak_host_bytes.

#include <pipe/core/pass.hpp>
#include <pipe/core/training.hpp>
#include <pipe/timetable/pool_effect.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_2 {

//! @brief The most bytes of activations that a device holds at once, as the flow says which pass
//! takes and which gives back: in training from the start of a forward pass to the end of
//! `backward` or `backward_weight`.
//! @param bytes_of `bytes_of(pass)`: the activation of the unit and stage of this pass.
//! @complexity O(n) for the n passes of the device.
template <class BytesOf>
[[nodiscard]] double
peak_activation_bytes(timetable_view table, int device, BytesOf const& bytes_of) {
  return detail::peak_of<double>(table, device, slot_class::activation, bytes_of);
}

//! @brief The most bytes of inputs that a device keeps at once for passes that are recomputed: from
//! the start of a checkpointed forward pass to the end of its recomputation. 0 without such passes.
//! @param bytes_of `bytes_of(pass)`: the input of the unit and stage of this pass.
//! @complexity O(n) for the n passes of the device.
template <class BytesOf>
[[nodiscard]] double
peak_kept_input_bytes(timetable_view table, int device, BytesOf const& bytes_of) {
  double held = 0;
  double peak = 0;
  for (pass const& what : table.row(device)) {
    if (what.kind == pass_kind::checkpointed_forward)
      held += static_cast<double>(bytes_of(what));
    peak = held > peak ? held : peak;
    if (what.kind == pass_kind::recompute)
      held -= static_cast<double>(bytes_of(what));
  }
  return peak;
}

//! @brief The most bytes of activations that a device has on the host at once: from the start of
//! the copy out to the end of the copy in. 0 without copies.
//! @param bytes_of as for `peak_activation_bytes`.
//! @complexity O(n) for the n passes of the device.
template <class BytesOf>
[[nodiscard]] double peak_host_bytes(timetable_view table, int device, BytesOf const& bytes_of) {
  return detail::peak_of<double>(table, device, slot_class::host_activation, bytes_of);
}

} // namespace pipelining::inline v0_2
