// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One walk over the units of a device, from which the closed-form schedules of the 1F1B
//! family are cut. Header for pipelining::walk and pipelining::unit_walk.

#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_2 {

//! @brief Which way a walk goes: forward passes take stages and chunks first to last, backward
//! passes last to first.
enum class direction : std::uint8_t { forward, backward };

//! @brief Visits every unit on every stage of one device of a looped pipeline, one per step.
//!
//! Microbatches are cut into groups whose sizes differ by at most one, the larger ones first. The
//! groups follow each other; in a group the stages of the device do, on a stage the microbatches,
//! in a microbatch the chunks. Microbatches always ascend; stages and chunks ascend on forward
//! walks and descend on backward walks.
//!
//! @complexity O(1) per step, without divisions.
class unit_walk {
public:
  //! @param groups number of groups, 1 ... M.
  //! @pre extents.where is looped.
  constexpr unit_walk(shape const& extents, int device, direction way, int groups = 1) noexcept
      : first_stage_(way == direction::forward ? device : last_stage(extents, device)),
        last_stage_(way == direction::forward ? last_stage(extents, device) : device),
        stage_step_(way == direction::forward ? extents.devices : -extents.devices),
        first_chunk_(way == direction::forward ? 0 : extents.chunks - 1),
        last_chunk_(way == direction::forward ? extents.chunks - 1 : 0),
        chunk_step_(way == direction::forward ? 1 : -1),
        smaller_group_(extents.microbatches / groups),
        larger_groups_(extents.microbatches % groups), stage_(first_stage_), chunk_(first_chunk_) {
    enter_next_group();
  }

  //! @brief The pass of this kind on the unit; goes to the next unit.
  [[nodiscard]] constexpr pass take(pass_kind kind) noexcept {
    pass const what = row_writer::make(kind, stage_, microbatch_, chunk_);
    next();
    return what;
  }

private:
  constexpr void next() noexcept {
    if (chunk_ != last_chunk_) {
      chunk_ += chunk_step_;
      return;
    }
    chunk_ = first_chunk_;
    ++microbatch_;
    if (microbatch_ != group_end_)
      return;
    if (stage_ != last_stage_) {
      stage_ += stage_step_;
      microbatch_ = group_begin_;
      return;
    }
    stage_ = first_stage_;
    enter_next_group();
  }

  [[nodiscard]] static constexpr int last_stage(shape const& extents, int device) noexcept {
    return device + (extents.stages_per_device - 1) * extents.devices;
  }
  constexpr void enter_next_group() noexcept {
    group_begin_ = group_end_;
    group_end_ += smaller_group_ + (larger_groups_ > 0 ? 1 : 0);
    --larger_groups_;
    microbatch_ = group_begin_;
  }

  int first_stage_;
  int last_stage_;
  int stage_step_;
  int first_chunk_;
  int last_chunk_;
  int chunk_step_;
  int smaller_group_;
  int larger_groups_; // still to come
  int group_begin_ = 0;
  int group_end_ = 0;
  int stage_;
  int microbatch_ = 0;
  int chunk_;
};

//! @brief 1F1B and what grows out of it: forward passes of the warm-up, then one forward and one
//! backward pass in turn, then what is left. A schedule itself; every named type of the family is
//! one setting of these numbers.
//!
//! Device d begins with (V - 1) N C + C - 1 + reach (P - 1 - d) forward passes, N being the
//! largest group: the first backward pass needs all chunks of its microbatch on all stages.
//!
//! A stage of the next round can follow without waiting when a group has at least P units, hence
//! groups of at least ceil(P / C) microbatches: as many groups as the wished size asks for, fewer
//! where the rest of the division would make one too small. Only a wish below ceil(P / C) is taken
//! at its word; it bounds how far devices can be apart, since with more than two groups between the
//! first and the last one their first passes would wait for each other in a circle.
//!
//! @complexity O(1) per pass.
//! @source Narayanan et al., SC 2021, section 2.2 (groups), Qi et al., ICLR 2024 (lag), Sun et al.,
//! NAACL 2025 (chunks); the setting that joins them, and groups of any size, are our own.
struct walk {
  static constexpr int fused = -1; //!< the lag of a backward pass in one piece

  int stages_per_device = 1;
  int chunks = 1;
  int group = 0;   //!< the wished N; 0 stands for the smallest group without waits, ceil(P / C)
  int reach = 1;   //!< forward passes by which the warm-up of a device exceeds that of the next
  int lag = fused; //!< on device d, units times d from backward_input to backward_weight

  //! @throws std::invalid_argument for a parameter out of range.
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (stages_per_device < 1)
      throw std::invalid_argument("interleaved stages: a device holds at least one stage");
    if (group < 0)
      throw std::invalid_argument("interleaved stages: a group has at least one microbatch; 0 "
                                  "stands for the smallest group without waits");
    if (reach < 1 || reach > 2 || lag < fused || lag > 2)
      throw std::invalid_argument(
        "interleaved stages: the stagger is 1 (least memory) or 2 (messages have time to travel), "
        "and gradients of weights lag by at most 2 units per device");
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = chunks,
            .stages_per_device = stages_per_device};
  }

  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const groups = groups_of(extents);
    int const smallest = extents.microbatches / groups * extents.chunks;
    int const largest = (extents.microbatches + groups - 1) / groups * extents.chunks;
    int const all = extents.stages_per_device * units(extents);
    int const apart = std::min(reach * (extents.devices - 1 - device), 2 * smallest);
    int const ahead =
      std::min((extents.stages_per_device - 1) * largest + extents.chunks - 1 + apart, all);
    bool const split = lag != fused;
    int const behind = split ? std::min(lag * device, all) : all;
    unit_walk forward(extents, device, direction::forward, groups);
    unit_walk backward(extents, device, direction::backward, groups);
    unit_walk weight(extents, device, direction::backward, groups);
    pass* at = out.append((split ? 3 : 2) * all);
    for (int i = 0; i < ahead; ++i)
      *at++ = forward.take(pass_kind::forward);
    for (int i = 0; i < all; ++i) {
      if (ahead + i < all)
        *at++ = forward.take(pass_kind::forward);
      *at++ = backward.take(split ? pass_kind::backward_input : pass_kind::backward);
      if (i >= behind)
        *at++ = weight.take(pass_kind::backward_weight);
    }
    for (int i = 0; split && i < behind; ++i)
      *at++ = weight.take(pass_kind::backward_weight);
  }

private:
  [[nodiscard]] constexpr int groups_of(shape const& extents) const noexcept {
    if (extents.stages_per_device == 1 && group == 0)
      return 1; // there are no rounds to wait for
    int const least = (extents.devices + extents.chunks - 1) / extents.chunks;
    int const size = std::min(group > 0 ? group : least, extents.microbatches);
    int const groups = (extents.microbatches + size - 1) / size;
    if (size < least || extents.microbatches / groups >= least)
      return groups;
    return std::max(extents.microbatches / least, 1);
  }
};

//! @brief The schedule of a walk on one stage per device, over whole sequences or chunks.
template <walk Rule, int Chunks = 1>
struct Walk {
  static_assert(Chunks == dynamic || Chunks >= 1, "Seq1F1B: a sequence has at least one chunk");

  parameter<Chunks> chunks{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .chunks = chunks};
  }
  static constexpr void order(shape const& extents, int device, row_writer& out) {
    Rule.order(extents, device, out);
  }
};

//! @brief The schedule of a walk on several stages per device.
template <walk Rule, int StagesPerDevice, int Chunks>
struct LoopedWalk {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "interleaved stages: a device holds at least one stage");
  static_assert(Chunks == dynamic || Chunks >= 1, "Seq1F1B: a sequence has at least one chunk");

  parameter<StagesPerDevice> stages_per_device{};
  parameter<Chunks> chunks{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return walk{.stages_per_device = stages_per_device, .chunks = chunks}.arrange(devices,
                                                                                  microbatches);
  }
  static constexpr void order(shape const& extents, int device, row_writer& out) {
    Rule.order(extents, device, out);
  }
};

} // namespace pipelining::inline v0_2
