// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief SlimPipe with attention that other devices take over. Header for
//! pipelining::SlimPipeExchange.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/core/stage_graph.hpp>
#include <pipe/schedule/attention_exchange.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/slim_pipe.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief The parts of a layer that SlimPipeExchange runs one by one.
enum class layer_part : std::uint8_t {
  projection,      //!< query, keys and values of a chunk
  attention,       //!< to the keys that stay here: causal, the oldest ones left out
  taken_attention, //!< to the oldest keys, unmasked, where another device may run it
  output           //!< merges both, and what follows attention
};

//! @brief A stage of SlimPipeExchange: a part of a layer, for one chunk of sequences.
struct exchange_stage {
  layer_part part = layer_part::projection;
  int layer = 0;
  int chunk = 0;
  int taken = 0; //!< oldest key chunks of this chunk that go to `taken_attention`, maybe none

  friend constexpr bool operator==(exchange_stage const&, exchange_stage const&) = default;
};

//! @brief SlimPipe in which devices exchange attention inside passes, as attention_exchange plans
//! it: queries and old keys go to the peer, its (O, log-sum-exp) come back and are merged.
//!
//! A graph of stages says it all, and messages, proof and run follow from it. A layer of the model
//! (one per stage of SlimPipe, V on each device) has four stages for each of the C chunks:
//! `projection` reads the layer before; `attention` reads it and the `attention` of the chunk
//! before, on whose device the keys and values of the sequence lie; `taken_attention` reads the
//! projections of its chunk and of the oldest chunks; `output` reads projection, attention, taken
//! attention. The order of SlimPipe is written part by part: a device runs projection, what it
//! takes over, attention, output, and backward the reverse, so that a peer waits as little as can
//! be. That is a meeting of two passes: the one that gives waits in `output` for the other.
//!
//! Forward and backward passes of a stage are on one device, which keeps what it was sent. So a
//! chunk's attention is taken over where the plan has it in both directions, a little less often
//! than in the paper, which sends keys again for the backward pass; else `taken_attention` runs on
//! the own device, with the same sums. Gradients of keys wait on the device of their layer for the
//! backward pass of their chunk.
//!
//! No order gives other bits: what is split, merged and added up, and in which order, follows from
//! the stages. For timetables that the program makes. Peak and chunks of SlimPipe, counted in
//! stages; `taken_attention` of no keys has nothing to do.
//!
//! @tparam Chunks C, or `dynamic`. @tparam StagesPerDevice V, layers on a device, or `dynamic`.
//! @throws std::invalid_argument from `arrange` as SlimPipe.
//! @complexity O(P^2) per pass.
//! @source Li et al., "SlimPipe", 2025 (arXiv:2504.14519), section on attention context exchange,
//! and its repository, kwai/Megatron-Kwai; parts of layers as stages are our own.
template <int Chunks = dynamic, int StagesPerDevice = 1>
struct SlimPipeExchange {
  SlimPipe<Chunks, StagesPerDevice> inner{}; //!< whose order it is, with a stage for each layer
  attention_exchange exchange{};             //!< the plan

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    shape const within = inner.arrange(devices, microbatches);
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = parts * within.chunks * within.stages_per_device,
            .where = placement::custom,
            .custom_routes = microbatches};
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
  //! Layers as stages of SlimPipe; taken attention where the plan has it for a microbatch.
  [[nodiscard]] constexpr int device_of(shape const& extents, int stage, int route) const {
    exchange_stage const what = stage_at(extents, stage);
    shape const within = inside(extents);
    int const own = what.layer % extents.devices;
    if (what.part != layer_part::taken_attention || what.taken == 0)
      return own;
    pass const forward = row_writer::make(pass_kind::forward, what.layer, route, what.chunk);
    pass const backward = row_writer::make(pass_kind::backward, what.layer, route, what.chunk);
    bool const both =
      exchange.of(within, forward).chunks != 0 && exchange.of(within, backward).chunks != 0;
    return both ? exchange.of(within, forward).peer : own;
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
        int const ends = stage_of(output, layer, chunk);
        if (layer > 0)
          edges.push_back({stage_of(output, layer - 1, chunk), projected});
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
  void order(shape const& extents, int device, row_writer& out) const {
    shape const within = inside(extents);
    std::vector<pass> passes(static_cast<std::size_t>(row_capacity(within)));
    row_writer row{passes.data(), static_cast<int>(passes.size())};
    inner.order(within, device, row);
    for (int i = 0; i < row.count; ++i)
      write(extents, within, row.passes[i], device, out);
  }
  //! The extents of SlimPipe.
  [[nodiscard]] constexpr shape inside(shape const& extents) const {
    return inner.arrange(extents.devices, extents.microbatches);
  }

private:
  static constexpr int parts = 4;

  //! A pass of SlimPipe, part by part, with what it takes over.
  constexpr void write(shape const& extents,
                       shape const& within,
                       pass const& what,
                       int device,
                       row_writer& out) const {
    using enum layer_part;
    auto const push = [&](layer_part part, pass const& whose) {
      out.push(
        row_writer::make(what.kind, stage_of(part, whose.stage, whose.chunk), whose.microbatch));
    };
    auto const take = [&](pass const& whose) {
      int const stage = stage_of(taken_attention, whose.stage, whose.chunk);
      if (device_of(extents, stage, whose.microbatch) == device)
        push(taken_attention, whose);
    };
    exchanged_keys const taken = exchange.of(within, what);
    auto const take_over = [&] {
      if (taken.chunks > 0)
        take(attention_exchange::beside(within, what, taken.peer));
    };
    if (what.kind == pass_kind::forward) {
      push(projection, what);
      take_over();
      push(attention, what);
      take(what);
      push(output, what);
    } else {
      push(output, what);
      take(what);
      push(attention, what);
      take_over();
      push(projection, what);
    }
  }
};

} // namespace pipelining::inline v0_2
