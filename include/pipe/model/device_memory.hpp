// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a timetable holds at most, in bytes. Header for pipelining::peak_activation_bytes.

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

} // namespace pipelining::inline v0_2
