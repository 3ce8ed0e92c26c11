// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One walk over the units of a device, from which the closed-form schedules of the 1F1B
//! family are cut. Header for pipelining::detail::Walk and pipelining::detail::unit_walk.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

namespace detail {

//! The direction of a walk: forward passes take stages and chunks first to last, backward passes
//! last to first.
enum class direction : std::uint8_t { forward, backward };

//! How microbatches are cut into groups: first `larger` groups of `size` + 1, then groups of
//! `size`, the last of which has what is left.
struct microbatch_groups {
  int size = 1;   //!< microbatches of a group
  int larger = 0; //!< groups with one more
};

//! Groups whose sizes differ by at most one, the larger ones first.
//! @param groups how many, 1 ... M.
[[nodiscard]] constexpr microbatch_groups even_groups(int microbatches, int groups) noexcept {
  return {.size = microbatches / groups, .larger = microbatches % groups};
}

//! Visits every unit on every stage of one device of a looped pipeline, one per step.
//!
//! Microbatches are cut into groups, and so may their chunks be. The groups of microbatches follow
//! each other, in them those of chunks; in these the stages of the device do, on a stage the
//! microbatches, in a microbatch the chunks. Microbatches always ascend; stages and chunks ascend
//! on forward walks and descend on backward walks.
//!
//! @complexity O(1) per step, without divisions.
class unit_walk {
public:
  //! @param cut the groups. @param chunk_group chunks of a group; 0 stands for all.
  //! @pre extents.where is looped, chunk_group divides the chunks.
  constexpr unit_walk(shape const& extents,
                      int device,
                      direction way,
                      microbatch_groups const& cut,
                      int chunk_group) noexcept
      : stages_(
          way, device, device + (extents.stages_per_device - 1) * extents.devices, extents.devices),
        chunks_(way, 0, extents.chunks - 1, 1),
        chunk_group_(chunk_group > 0 ? chunk_group : extents.chunks), cut_(cut),
        microbatches_(extents.microbatches), stage_(stages_.first) {
    enter_next_group();
  }
  //! The pass of this kind on the unit; goes to the next unit.
  [[nodiscard]] constexpr pass take(pass_kind kind) noexcept {
    // The way that most passes take, without a further call: compilers come here for every pass.
    pass const what{kind,
                    false,
                    static_cast<std::uint16_t>(stage_),
                    static_cast<std::uint16_t>(microbatch_),
                    static_cast<std::uint16_t>(chunk_)};
    if (chunk_ != last_chunk_)
      chunk_ += chunks_.step;
    else
      enter_next_microbatch();
    return what;
  }

private:
  //! Numbers from the first to the last, up on forward walks and down on backward walks.
  struct range {
    int first;
    int last;
    int step;

    constexpr range(direction way, int least, int most, int apart) noexcept
        : first(way == direction::forward ? least : most),
          last(way == direction::forward ? most : least),
          step(way == direction::forward ? apart : -apart) {}
  };

  constexpr void enter_next_microbatch() noexcept {
    chunk_ = first_chunk_;
    if (++microbatch_ != group_end_)
      return;
    microbatch_ = group_begin_;
    if (stage_ != stages_.last) {
      stage_ += stages_.step;
      return;
    }
    stage_ = stages_.first;
    if (last_chunk_ != chunks_.last)
      enter_chunks(last_chunk_ + chunks_.step);
    else
      enter_next_group();
  }
  constexpr void enter_next_group() noexcept {
    microbatch_ = group_begin_ = group_end_;
    group_end_ = std::min(group_end_ + cut_.size + (cut_.larger-- > 0 ? 1 : 0), microbatches_);
    enter_chunks(chunks_.first);
  }
  constexpr void enter_chunks(int first) noexcept {
    chunk_ = first_chunk_ = first;
    last_chunk_ = first + (chunk_group_ - 1) * chunks_.step;
  }

  range stages_;
  range chunks_; // of a microbatch
  int chunk_group_;
  microbatch_groups cut_; // larger: still to come
  int microbatches_;
  int stage_;
  int microbatch_ = 0;
  int chunk_ = 0;
  int first_chunk_ = 0; // of a group
  int last_chunk_ = 0;
  int group_begin_ = 0;
  int group_end_ = 0;
};

//! The numbers of a walk that its name settles.
struct walk {
  static constexpr int fused = -1; //!< the lag of a backward pass in one piece

  int reach = 1;   //!< forward passes by which the warm-up of a device exceeds that of the next
  int lag = fused; //!< on device d, units times d from backward_input to backward_weight
  bool remainder_last = false; //!< the last group has what is left, instead of groups of even sizes
};

//! 1F1B and what grows out of it: forward passes of the warm-up, then one forward and one
//! backward pass in turn, then what is left. Every named type of the family is one setting of these
//! numbers, which its type gives or the program sets.
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
//! With `remainder_last`, groups have the wished size and the last one what is left: the first
//! groups, and so the memory, are not larger for it. With fewer forward passes, groups and warm-up
//! shrink to them, and gradients of weights lag only as far as no device holds more chunks.
//!
//! @complexity O(1) per pass.
//! @source Narayanan et al., SC 2021, section 2.2 (groups), Qi et al., ICLR 2024 (lag), Sun et al.,
//! NAACL 2025 (chunks); the setting that joins them, and groups of any size, are our own.
template <walk Rule,
          int StagesPerDevice = 1,
          int Chunks = 1,
          int Group = 0,
          int Stagger = Rule.reach,
          int Forwards = 0,
          int ChunkGroup = 0>
struct Walk {
  static_assert((StagesPerDevice == dynamic || StagesPerDevice >= 1) &&
                  (Chunks == dynamic || Chunks >= 1),
                "interleaved stages: a device holds at least one stage, a sequence one chunk");
  static_assert(
    (Group == dynamic || Group >= 0) && (Stagger == dynamic || Stagger == 1 || Stagger == 2),
    "interleaved stages: a group has at least one microbatch, and the stagger is 1 or 2");
  static_assert(Forwards == dynamic || Forwards == 0 || Forwards >= StagesPerDevice * Chunks,
                "interleaved stages: the first backward pass wants all chunks on all stages");

  parameter<StagesPerDevice> stages_per_device{}; //!< V
  parameter<Chunks> chunks{};                     //!< C
  parameter<Group, 0> group{};                    //!< the wished N; 0: the smallest without waits
  parameter<Stagger, 2> stagger{};                //!< as walk::reach
  parameter<Forwards, 0> forwards{}; //!< the most forward passes of a device before its first
                                     //!< backward pass, and the most chunks of one stage that it
                                     //!< holds; 0: no limit
  parameter<ChunkGroup, 0> chunk_group{}; //!< of one microbatch, chunks that pass all stages of a
                                          //!< device before others do: a divisor of C, at least P,
                                          //!< for groups of one microbatch; 0: all

  //! @throws std::invalid_argument for a parameter out of range.
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    require(stages_per_device >= 1, "interleaved stages: a device holds at least one stage");
    require(group >= 0,
            "interleaved stages: a group has at least one microbatch; 0 stands for the smallest "
            "group without waits");
    require(
      stagger >= 1 && stagger <= 2 && Rule.lag >= walk::fused && Rule.lag <= 2,
      "interleaved stages: the stagger is 1 (least memory) or 2 (messages have time to travel), "
      "and gradients of weights lag by at most 2 units per device");
    if (chunk_group < 0 || (chunk_group > 0 && chunks % chunk_group != 0))
      throw std::invalid_argument("interleaved stages: a group of " + std::to_string(chunk_group) +
                                  " chunks must divide the " + std::to_string(chunks) +
                                  " of a sequence; 0 stands for all of them");
    if (forwards < 0 || (forwards > 0 && forwards / stages_per_device < chunks))
      throw std::invalid_argument(
        "interleaved stages: " + std::to_string(forwards) +
        " forward passes before the first backward pass of a device are too few: it wants all "
        "chunks of a microbatch on all stages of the device, " +
        std::to_string(std::int64_t{stages_per_device} * chunks) + "; 0 stands for no limit");
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = chunks,
            .stages_per_device = stages_per_device};
  }

  constexpr void order(shape const& extents, int device, row_writer& out) const {
    microbatch_groups const groups = groups_of(extents);
    int const smallest = groups.size * extents.chunks;
    int const largest = (groups.size + (groups.larger > 0 ? 1 : 0)) * extents.chunks;
    int const all = extents.stages_per_device * extents.units();
    int const first = (extents.stages_per_device - 1) * largest + extents.chunks - 1;
    int const most = forwards;
    int const room = most > 0 ? most : std::numeric_limits<int>::max();
    int const apart =
      std::min({stagger * (extents.devices - 1 - device), 2 * smallest, room - first - 1});
    int const ahead = std::min(first + apart, all);
    constexpr bool split = Rule.lag != walk::fused;
    int const behind = split ? std::min({Rule.lag * device, all, room - ahead - 1}) : all;
    unit_walk forward(extents, device, direction::forward, groups, chunk_group);
    unit_walk backward(extents, device, direction::backward, groups, chunk_group);
    unit_walk weight(extents, device, direction::backward, groups, chunk_group);
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
  [[nodiscard]] constexpr microbatch_groups groups_of(shape const& extents) const noexcept {
    int const all = extents.microbatches;
    int const held = extents.stages_per_device;
    if (held == 1 && group == 0)
      return even_groups(all, 1); // there are no rounds to wait for
    int const wished = group;
    int const least = (extents.devices + extents.chunks - 1) / extents.chunks;
    int size = std::min(wished > 0 ? wished : least, all);
    if (forwards > 0 &&
        held > 1) // the first backward pass has (V - 1) N C + C forward passes before
      size = std::min(size, (forwards / extents.chunks - 1) / (held - 1));
    if (Rule.remainder_last)
      return {.size = size};
    int const groups = (all + size - 1) / size;
    if (size < least || all / groups >= least)
      return even_groups(all, groups);
    return even_groups(all, std::max(all / least, 1));
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3
