// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief SlimPipe, and the exchange of attention between its devices. Header for
//! pipelining::SlimPipe, attention_exchange and SlimPipeExchange.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief SlimPipe: sequences are cut into C >= P chunks, and a device keeps little more than one
//! microbatch.
//!
//! Groups of G chunks, G the least divisor of C that is at least P, pass all V stages of a device
//! before the next group does; backward passes come in the exact reverse inside a microbatch, and
//! microbatches in order. Device d begins with C V + 2 (P - 1 - d) forward passes, then backward
//! and forward passes take turns. V = 1 is EagerSeq1F1B.
//!
//! With F and B the times of one chunk on one stage, all chunks alike, the bubble is (P - 1)(F + B)
//! on span and makespan, whatever M. Device d holds 1 + 2 (P - 1 - d) / (C V) microbatches' share
//! of its stages, and no more than M. A latency c of at most F and at most B adds 2 c ((P - 1) + (V
//! - 1) C) where G = P, whatever M. Else the chunks of a group beyond P are time to travel: 2 c (P
//! - 1) and (V - 1) C / G times max(0, P c - (G - P) F) + max(0, P c - (G - P) B).
//!
//! Later chunks attend to more keys: what devices do about that is the attention_exchange.
//!
//! @tparam Chunks C, or `dynamic`. @tparam StagesPerDevice V, or `dynamic`.
//! @throws std::invalid_argument from `arrange` for fewer chunks than devices, and for no stages.
//! @complexity O(1) per pass.
//! @source Li et al., "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for Long-Context
//! LLM Training", 2025 (arXiv:2504.14519), and its repository, kwai/Megatron-Kwai, which wants
//! M C V to be at least C V + 2 (P - 1). Fewer microbatches run here: all forward passes first. The
//! wait for messages where G > P is what our tests find.
template <int Chunks = dynamic, int StagesPerDevice = 1>
struct SlimPipe {
  static_assert(Chunks == dynamic || Chunks >= 1, "SlimPipe: a sequence has at least one chunk");
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "SlimPipe: a device holds at least one stage");

  detail::parameter<Chunks> chunks{};                        //!< C
  detail::parameter<StagesPerDevice, 1> stages_per_device{}; //!< V

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (chunks < devices)
      throw std::invalid_argument("SlimPipe: " + std::to_string(chunks) +
                                  " chunks are too few for " + std::to_string(devices) +
                                  " devices: cut sequences into at least as many chunks as there "
                                  "are devices, or take Seq1F1B");
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = chunks,
            .stages_per_device = stages_per_device};
  }
  static constexpr void order(shape const& extents, int device, row_writer& out) {
    detail::Walk<detail::walk{}, 1, 1, 1, 2, 0, dynamic> const rows{.chunk_group =
                                                                      chunk_group(extents)};
    rows.order(extents, device, out);
  }
  //! G, the chunks of one microbatch that pass all stages of a device before others do.
  [[nodiscard]] static constexpr int chunk_group(shape const& extents) noexcept {
    int size = extents.devices;
    while (extents.chunks % size != 0)
      ++size;
    return size;
  }
};

namespace detail {

//! The attention that a pass takes over from another device, or gives away.
struct exchanged_keys {
  int peer = 0;   //!< the other device; the own one where nothing is exchanged
  int chunks = 0; //!< oldest key chunks taken over, negative: given away

  friend constexpr bool operator==(exchanged_keys const&, exchanged_keys const&) = default;
};

} // namespace detail

//! @brief The plan by which the devices of SlimPipe even out the attention of passes that run at
//! the same time: those of later chunks of a sequence have more keys.
//!
//! When device r runs unit u of its CV units of a microbatch, device i runs unit u + r - i. Of the
//! P passes the one with the k-th fewest whole key chunks is paired with that of the k-th most. If
//! their numbers differ by n, the shorter takes over the attention of the longer one's queries on
//! its oldest n / 2 key chunks, rounded down: a device never has more than one key chunk more than
//! its peer. Backward passes of the same chunks are paired likewise.
//!
//! A value; entries follow from the extents, so every device knows the plan of all others.
//!
//! @source Li et al., "SlimPipe", 2025 (arXiv:2504.14519), and its repository, kwai/Megatron-Kwai.
struct attention_exchange {
  int most = 0; //!< key chunks that a pass takes over or gives away; 0 stands for no limit

  //! @brief Keys that a pass exchanges wherever devices that run at the same time can: also in
  //! units whose peer has no pass at that time, at both ends of a step.
  //! @pre extents are those of SlimPipe. @complexity O(P^2)
  [[nodiscard]] constexpr detail::exchanged_keys steady(shape const& extents,
                                                        pass const& what) const {
    int const own = what.stage % extents.devices;
    int const unit = unit_of(extents, what);
    detail::owned<int> keys(extents.devices); // whole key chunks of each device
    int shorter = 0;                          // passes with fewer
    for (int device = 0; device < extents.devices; ++device) {
      keys[device] = chunk_of(extents, unit + own - device);
      shorter += keys[device] < what.chunk ? 1 : 0;
    }
    for (int peer = 0; peer < extents.devices; ++peer) {
      int longer = 0; // passes with more keys than the peer's
      for (int device = 0; device < extents.devices; ++device)
        longer += keys[device] > keys[peer] ? 1 : 0;
      if (longer == shorter) {
        int const half = (keys[peer] - what.chunk) / 2;
        int const limit = most > 0 ? most : extents.chunks;
        int const chunks = half > limit ? limit : half < -limit ? -limit : half;
        return chunks == 0 ? detail::exchanged_keys{own, 0} : detail::exchanged_keys{peer, chunks};
      }
    }
    throw std::invalid_argument("attention_exchange: the extents are not those of SlimPipe");
  }

  //! @brief Keys that a forward or backward pass exchanges: none in units during which some device
  //! has no pass of that kind to run.
  //! @pre extents are those of SlimPipe. @complexity O(P^2)
  [[nodiscard]] constexpr detail::exchanged_keys of(shape const& extents, pass const& what) const {
    int const at = turn_of(extents, what);
    int const all = extents.microbatches * extents.stages_per_device * extents.chunks;
    return at >= extents.devices - 1 && at < all
             ? steady(extents, what)
             : detail::exchanged_keys{what.stage % extents.devices, 0};
  }

  //! @brief The pass that a device runs as its `number`-th of a kind: forward passes are numbered
  //! from the first on, and so are backward passes. Numbers of no pass, below 0 and after the
  //! last, give stage and chunk of one, and microbatch 0: `steady` does not look at it.
  //! @pre extents are those of SlimPipe. @complexity O(C)
  [[nodiscard]] static constexpr pass
  numbered(shape const& extents, pass_kind kind, int device, int number) noexcept {
    int const all = extents.stages_per_device * extents.chunks;
    int const unit = kind == pass_kind::forward ? number : -1 - number;
    int const local = (unit % all + all) % all / SlimPipe<>::chunk_group(extents);
    bool const exists = number >= 0 && number / all < extents.microbatches;
    return row_writer::make(kind,
                            local % extents.stages_per_device * extents.devices + device,
                            exists ? number / all : 0,
                            chunk_of(extents, unit));
  }
  //! @brief The number of the pass that one device runs while another runs its `number`-th.
  [[nodiscard]] static constexpr int
  beside(pass_kind kind, int number, int device, int other) noexcept {
    return kind == pass_kind::forward ? number + device - other : number + other - device;
  }

private:
  //! How many passes of its kind the first device to run that kind has done when a device runs
  //! `what`: that is the same for all that run at the same time.
  [[nodiscard]] static constexpr int turn_of(shape const& extents, pass const& what) noexcept {
    int const own = what.stage % extents.devices;
    int const all = extents.stages_per_device * extents.chunks;
    int const unit = unit_of(extents, what);
    return what.microbatch * all + (what.kind == pass_kind::forward
                                      ? unit + own
                                      : all - 1 - unit + extents.devices - 1 - own);
  }
  //! The number of a unit, in the order of forward passes of a device.
  [[nodiscard]] static constexpr int unit_of(shape const& extents, pass const& what) noexcept {
    int const size = SlimPipe<>::chunk_group(extents);
    int const local = what.stage / extents.devices;
    return (what.chunk / size * extents.stages_per_device + local) * size + what.chunk % size;
  }
  //! Chunk of a unit; units of the microbatches before and after have the same.
  [[nodiscard]] static constexpr int chunk_of(shape const& extents, int unit) noexcept {
    int const size = SlimPipe<>::chunk_group(extents);
    int const all = extents.stages_per_device * extents.chunks;
    int const within = (unit % all + all) % all;
    return within / (extents.stages_per_device * size) * size + within % size;
  }
};

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
    detail::check_extents(within); // so that the product below fits an int
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = parts * within.chunks * within.stages_per_device,
            .where = placement::custom};
  }
  //! The part of the exchange that a stage is.
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
  //! Edges from makers to readers; of taken attention the stage's own projection first, then those
  //! of the oldest chunks.
  [[nodiscard]] std::vector<stage_edge> edges_of(shape const& extents) const {
    std::vector<stage_edge> edges;
    using enum layer_part;
    for (int layer = 0; layer < inside(extents).stages(); ++layer)
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
    // last: at its turns before and after its own passes, a device only takes over attention.
    int const after = extents.devices - 1 - device;
    int const all = within.stages_per_device * within.units();
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
      return number >= 0 && number < within->stages_per_device * within->units();
    }
    constexpr void push(layer_part part, pass const& whose) {
      out->push(row_writer::make(
        whose.kind, schedule->stage_of(part, whose.stage, whose.chunk), whose.microbatch));
    }
  };
};

} // namespace pipelining::inline v0_3
