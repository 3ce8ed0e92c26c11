// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The arguments of a stage functor. Header for pipelining::context, pipelining::input,
//! pipelining::output, pipelining::totals, pipelining::buffer_of and pipelining::composite_half.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3 {

//! @brief A buffer of the plan: its slot number and, where the size functions gave it bytes, its
//! memory.
//!
//! A stage that keeps its own arrays indexes them by `slot`; at most `plan.layout(device,
//! class).count` are in use.
struct buffer {
  int slot = -1;             //!< its number in its class; -1: there is none
  std::byte* data = nullptr; //!< the first byte, null where the plan has no sizes
  std::int64_t bytes = 0;    //!< of the slot

  //! @brief The memory as elements of type T; bytes that fill no whole element are left out.
  template <class T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(bytes) / sizeof(T)};
  }
};

//! @brief The input of a pass: the activation of the stage before it or the gradient of the stage
//! after it. Empty, with slot -1, where there is no such stage.
struct input {
  int slot = -1;                   //!< its number in its class; -1: there is none
  std::byte const* data = nullptr; //!< the first byte, null where the plan has no sizes
  std::int64_t bytes = 0;          //!< of the message

  //! @brief The memory as elements of type T.
  template <class T>
  [[nodiscard]] std::span<T const> as() const noexcept {
    return {reinterpret_cast<T const*>(data), static_cast<std::size_t>(bytes) / sizeof(T)};
  }
};

//! @brief The output of a pass: its activation or its gradient. Empty, with slot -1, where no stage
//! reads it.
using output = buffer;

//! @brief The rows of numbers that the stages have contributed, the same bits on every device. Row
//! s belongs to stage s.
struct totals {
  std::byte const* data = nullptr; //!< the first byte of row 0
  std::int64_t bytes = 0;          //!< of a row
  std::int64_t stride = 0;         //!< bytes from one row to the next, at least those of a row
  int rows = 0;                    //!< as many as there are stages

  //! @brief The row of a stage as elements of type T.
  template <class T>
  [[nodiscard]] std::span<T const> row(int stage) const noexcept {
    return {reinterpret_cast<T const*>(data + stage * stride),
            static_cast<std::size_t>(bytes) / sizeof(T)};
  }
};

//! @brief The pass that a stage functor is to compute, and the buffers that live longer than it.
struct context {
  int device = 0;        //!< the device of the plan that runs it
  int stage = 0;         //!< the stage, in forward order
  int microbatch = 0;    //!< the microbatch, from 0
  int chunk = 0;         //!< the chunk of its sequence, from 0
  buffer activation{};   //!< kept from the forward pass to the end of its backward
  buffer weight_input{}; //!< kept from backward_input to backward_weight
  buffer state{}; //!< with chunks: keys and values of the microbatch, from its first chunk on
  buffer state_gradient{}; //!< with chunks: their gradients, from the last chunk's backward on
  void* stream =
    nullptr; //!< the CUDA stream to enqueue on; null where the pass runs on the calling thread
  //! `forward` is asked for again, to fill the activation; what it counts has been counted, and
  //! nobody reads its output.
  bool recomputing = false;
  shape extents{};         //!< of the plan: M is `extents.microbatches`, S is `extents.stages()`
  int chunks = 1;          //!< of the sequence of this microbatch
  bool evaluating = false; //!< the plan has no backward passes: nothing will be asked for again
  //! Where stages are no chain: the table of their edges.
  int const* edges = nullptr;
  //! The inputs of the pass: one from each stage before it (forward) or after it (backward), in the
  //! order of the edges. In flows of one's own, all data that `place_of` puts there, in the order
  //! of the effects; a datum that this stage does not have has slot -1. The first one is also the
  //! input that the pass is handed. Valid during the call.
  std::span<input const> inputs{};
  //! The outputs of the pass, likewise: its activation, or a gradient for each stage before it. The
  //! first one is also the output that the pass is handed. Valid during the call.
  std::span<output const> outputs{};
  //! `finish_pass`: the step has failed. Nobody reads what the pass makes, and other devices may
  //! not do their part any more.
  bool abandoned = false;

  //! The number of stages before this one (step -1) or after it (1).
  [[nodiscard]] constexpr int neighbours(int step) const noexcept {
    return detail::stage_graph{edges, extents.stages()}.neighbours({stage, chunk, chunks}, step);
  }
  //! A pass that has no input of another one: it reads the data.
  [[nodiscard]] constexpr bool first_stage() const noexcept { return neighbours(-1) == 0; }
  //! A pass whose output nobody reads: it makes the loss.
  [[nodiscard]] constexpr bool last_stage() const noexcept { return neighbours(1) == 0; }
  //! The first chunk of its sequence: forward passes begin with it.
  [[nodiscard]] constexpr bool first_chunk() const noexcept { return chunk == 0; }
  //! The last chunk of its sequence: backward passes begin with it.
  [[nodiscard]] constexpr bool last_chunk() const noexcept { return chunk + 1 == chunks; }
  //! The factor of a microbatch's loss that makes gradients of the mean over all microbatches:
  //! 1 / M. Only the loss stage multiplies by it.
  [[nodiscard]] constexpr double microbatch_share() const noexcept {
    return 1.0 / extents.microbatches;
  }
  //! The buffer that a pass is handed for a datum, in flows of one's own; without a slot where the
  //! datum is not there on its stage. A pass must not write what it only reads.
  //! @param whose the stage of the datum, as in the effect. @param number which of several
  //! neighbours
  //! @pre the kind has such an effect
  //! @complexity O(effects^2).
  [[nodiscard]] constexpr buffer buffer_of(flow const& declared,
                                           pass_kind kind,
                                           int datum,
                                           of_stage whose = of_stage::own,
                                           int number = 0) const noexcept;
};

namespace detail {

//! A member of a context that hands a pass what it keeps, and its name.
struct kept_member {
  buffer context::*of;
  char const* name;
};
inline constexpr kept_member kept_members[] = {{&context::activation, "activation"},
                                               {&context::weight_input, "weight_input"},
                                               {&context::state, "state"},
                                               {&context::state_gradient, "state_gradient"}};

//! True for a place of what a pass keeps: it is handed the whole slot.
[[nodiscard]] constexpr bool is_kept(slot_place at) noexcept {
  return at != slot_place::none && at != slot_place::inputs && at != slot_place::outputs;
}
//! The member of such a place.
[[nodiscard]] constexpr kept_member const& member_of(slot_place at) noexcept {
  return kept_members[static_cast<int>(at) - static_cast<int>(slot_place::activation)];
}

//! How many slots a pass is handed for one of its effects on its stage.
[[nodiscard]] constexpr int
instances_of(flow const& declared, effect const& one, context const& where) noexcept {
  datum const& of = declared.data[one.of];
  int const step = one.stage == of_stage::own
                     ? to_readers(where.edges, declared.reader_step[one.of])
                     : step_to(one.stage);
  int const all = step == 0 ? 1 : where.neighbours(step);
  bool const each = one.stage != of_stage::own || of.instance == datum::per::reader;
  return of.only_chunked && where.extents.chunks == 1 ? 0 : each || all == 0 ? all : 1;
}

} // namespace detail

constexpr buffer context::buffer_of(
  flow const& declared, pass_kind kind, int datum, of_stage whose, int number) const noexcept {
  kind_of_pass const& of = declared[kind];
  int wanted = 0;
  while (of.effects[wanted].of != datum || of.effects[wanted].stage != whose)
    ++wanted;
  if (number >= detail::instances_of(declared, of.effects[wanted], *this))
    return {};
  auto const& places = declared.places[detail::index_of(kind)];
  detail::slot_place const place = places[wanted];
  if (detail::is_kept(place))
    return this->*detail::member_of(place).of;
  if (place == detail::slot_place::none)
    return {};
  for (int i = 0; i < wanted; ++i)
    if (places[i] == place && detail::first_on_datum(of, i) == i)
      number += detail::instances_of(declared, of.effects[i], *this);
  auto const at = static_cast<std::size_t>(number);
  if (place == detail::slot_place::outputs)
    return at < outputs.size() ? outputs[at] : buffer{};
  if (at >= inputs.size())
    return {};
  input const& read = inputs[at];
  return {read.slot, const_cast<std::byte*>(read.data), read.bytes};
}

//! @brief One half of a composite pass, as `forward_backward` and `braid` are handed it.
struct composite_half {
  context where; //!< which pass it is, and its buffers
  input in;      //!< what it reads
  output out;    //!< what it writes
};

} // namespace pipelining::inline v0_3
