// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief SlimPipe with attention that other devices take over. Header for
//! pipelining::SlimPipeExchange.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/attention_exchange.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/slim_pipe.hpp>

#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The parts of a layer that SlimPipeExchange runs one by one.
enum class layer_part : std::uint8_t {
  projection,      //!< query, keys and values of a chunk
  attention,       //!< to the keys that stay here: causal, the oldest ones left out
  taken_attention, //!< to the oldest keys, unmasked, where another device may run it
  after_attention  //!< merges both, and what follows attention
};

//! @brief A stage of SlimPipeExchange: a part of a layer, for one chunk of sequences.
struct exchange_stage {
  layer_part part = layer_part::projection; //!< which part
  int layer = 0;                            //!< of which layer, from 0
  int chunk = 0;                            //!< for which chunk, from 0
  int taken = 0; //!< key chunks, the oldest ones, that go to `taken_attention`, maybe none

  friend constexpr bool operator==(exchange_stage const&, exchange_stage const&) = default;
};

//! @brief SlimPipe in which devices exchange attention inside passes, as attention_exchange plans
//! it: queries and old keys go to the peer, its (O, log-sum-exp) come back and are merged.
//!
//! A graph of stages says it all; messages, proof and run follow from it. A layer of the model (one
//! per stage of SlimPipe, V on each device) has four stages for each of the C chunks: `projection`
//! reads the layer before; `attention` reads it and the `attention` of the chunk before, since keys
//! and values of the sequence stay on their device; `taken_attention` reads the projections of its
//! chunk and of the oldest chunks; `after_attention` reads these three.
//!
//! Passes of SlimPipe are written part by part: projection, what the device takes over, attention,
//! what follows, and backward the reverse. So two passes meet: the peer waits for the projection,
//! and what follows attention for the peer. The paper has no exchange where some device has no pass
//! of that kind to run, at both ends of a step; here devices then take over attention between their
//! passes, where they would be idle.
//!
//! Forward and backward pass of a stage are on one device, which keeps the queries and keys that it
//! was sent (the paper sends them again). Gradients of old keys wait on the device of their layer
//! for the backward pass of their chunk. What is split, merged and added up, and in which order,
//! follows from the stages: no order and no device changes a bit. `taken_attention` of no keys has
//! nothing to do. For timetables that the program makes.
//!
//! @tparam Chunks C, or `dynamic`. @tparam StagesPerDevice V, layers on a device, or `dynamic`.
//! @throws std::invalid_argument from `arrange` as SlimPipe.
//! @complexity O(P^2) per pass.
//! @source Li et al., "SlimPipe", 2025 (arXiv:2504.14519), and its repository, kwai/Megatron-Kwai;
//! parts of layers as stages, and the exchange at both ends of a step, are our own.
template <int Chunks = dynamic, int StagesPerDevice = 1>
struct SlimPipeExchange {
  SlimPipe<Chunks, StagesPerDevice> inner{}; //!< whose order it is, with a stage for each layer
  attention_exchange exchange{};             //!< the plan

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    shape const within = inner.arrange(devices, microbatches);
    check_extents(within); // so that the product below fits an int
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = parts * within.chunks * within.stages_per_device,
            .where = placement::custom};
  }
  //! What a stage is.
  [[nodiscard]] constexpr exchange_stage stage_at(shape const& extents, int stage) const {
    int const chunks = inner.chunks;
    exchange_stage result{
      static_cast<layer_part>(stage / chunks % parts), stage / (parts * chunks), stage % chunks, 0};
    pass const forward = row_writer::make(pass_kind::forward, result.layer, 0, result.chunk);
    int const given = -exchange.steady(inside(extents), forward).chunks;
    result.taken = given > 0 ? given : 0;
    return result;
  }
  //! The number of a stage.
  [[nodiscard]] constexpr int stage_of(layer_part part, int layer, int chunk) const noexcept {
    return (layer * parts + static_cast<int>(part)) * inner.chunks + chunk;
  }
  //! Layers as stages of SlimPipe; taken attention where the plan has it.
  [[nodiscard]] constexpr int device_of(shape const& extents, int stage, int) const {
    exchange_stage const what = stage_at(extents, stage);
    if (what.part != layer_part::taken_attention)
      return what.layer % extents.devices;
    pass const forward = row_writer::make(pass_kind::forward, what.layer, 0, what.chunk);
    detail::exchanged_keys const planned = exchange.steady(inside(extents), forward);
    return what.taken > 0 ? planned.peer : what.layer % extents.devices;
  }
  //! Who reads what; of taken attention, its own projection first, then those of the oldest chunks.
  [[nodiscard]] std::vector<stage_edge> edges_of(shape const& extents) const {
    std::vector<stage_edge> edges;
    using enum layer_part;
    for (int layer = 0; layer < stages(inside(extents)); ++layer)
      for (int chunk = 0; chunk < inner.chunks; ++chunk) {
        int const projected = stage_of(projection, layer, chunk);
        int const attends = stage_of(attention, layer, chunk);
        int const taken = stage_of(taken_attention, layer, chunk);
        int const ends = stage_of(after_attention, layer, chunk);
        if (layer > 0)
          edges.push_back({stage_of(after_attention, layer - 1, chunk), projected});
        edges.push_back({projected, attends});
        if (chunk > 0)
          edges.push_back({stage_of(attention, layer, chunk - 1), attends});
        edges.push_back({projected, taken});
        for (int old = 0; old < stage_at(extents, taken).taken; ++old)
          edges.push_back({stage_of(projection, layer, old), taken});
        for (int const part : {projected, attends, taken})
          edges.push_back({part, ends});
      }
    return edges;
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    shape const within = inside(extents);
    part_writer writer{this, &within, device, &out};
    // Devices take turns at the same time, from the first of the first device to the last of the
    // last: at its turns before and behind its own passes, a device only takes over attention.
    int const after = extents.devices - 1 - device;
    int const all = within.stages_per_device * units(within);
    int const ahead = within.stages_per_device * within.chunks + 2 * after - 1;
    for (int number = -device; number - ahead < all + device; ++number) {
      if (number < all + after)
        writer.turn(pass_kind::forward, number);
      if (number - ahead >= -after)
        writer.turn(pass_kind::backward, number - ahead);
    }
  }
  //! The extents of SlimPipe.
  [[nodiscard]] constexpr shape inside(shape const& extents) const {
    return inner.arrange(extents.devices, extents.microbatches);
  }

private:
  static constexpr int parts = 4;

  //! Writes the passes of a device part by part.
  struct part_writer {
    SlimPipeExchange const* schedule;
    shape const* within;
    int device;
    row_writer* out;

    //! The `number`-th pass of a kind, and what the device takes over then.
    constexpr void turn(pass_kind kind, int number) {
      pass const own = attention_exchange::numbered(*within, kind, device, number);
      detail::exchanged_keys const planned = schedule->exchange.steady(*within, own);
      int const other = attention_exchange::beside(kind, number, device, planned.peer);
      bool const takes = planned.chunks > 0 && exists(other);
      pass const taken = attention_exchange::numbered(*within, kind, planned.peer, other);
      using enum layer_part;
      if (!exists(number)) {
        if (takes)
          push(taken_attention, taken);
        return;
      }
      bool const is_forward = kind == pass_kind::forward;
      push(is_forward ? projection : after_attention, own);
      if (takes && is_forward)
        push(taken_attention, taken);
      push(attention, own);
      if (planned.chunks >= 0)
        push(taken_attention, own); // of no keys
      if (takes && !is_forward)
        push(taken_attention, taken);
      push(is_forward ? after_attention : projection, own);
    }

  private:
    [[nodiscard]] constexpr bool exists(int number) const noexcept {
      return number >= 0 && number < within->stages_per_device * units(*within);
    }
    constexpr void push(layer_part part, pass const& whose) {
      out->push(row_writer::make(
        whose.kind, schedule->stage_of(part, whose.stage, whose.chunk), whose.microbatch));
    }
  };
};

} // namespace pipelining::inline v0_3
