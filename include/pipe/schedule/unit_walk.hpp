// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The order in which closed-form schedules visit the units of a device. Header for
//! pipelining::unit_walk.

#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstdint>

namespace pipelining::inline v0_1 {

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

  [[nodiscard]] constexpr int stage() const noexcept { return stage_; }
  [[nodiscard]] constexpr int microbatch() const noexcept { return microbatch_; }
  [[nodiscard]] constexpr int chunk() const noexcept { return chunk_; }

  //! @brief The pass of this kind on the unit; goes to the next unit.
  [[nodiscard]] constexpr pass take(pass_kind kind) noexcept {
    pass const what{kind,
                    false,
                    static_cast<std::uint16_t>(stage_),
                    static_cast<std::uint16_t>(microbatch_),
                    static_cast<std::uint16_t>(chunk_)};
    next();
    return what;
  }

  //! @brief Goes to the next unit; after the last one the walk must not be asked any more.
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

private:
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

namespace detail {

//! Forward passes of the warm-up, then one forward and one backward in turn, then what is left.
constexpr void one_forward_one_backward(
  shape const& extents, int device, int warm_up, int groups, row_writer& out) {
  int const all = extents.stages_per_device * units(extents);
  int const before = std::min(warm_up, all);
  unit_walk forward(extents, device, direction::forward, groups);
  unit_walk backward(extents, device, direction::backward, groups);
  pass* at = out.append(2 * all);
  for (int i = 0; i < before; ++i)
    *at++ = forward.take(pass_kind::forward);
  for (int i = 0; i < all; ++i) {
    if (before + i < all)
      *at++ = forward.take(pass_kind::forward);
    *at++ = backward.take(pass_kind::backward);
  }
}

//! The same with split backward passes; every backward_weight comes `lag` units after its
//! backward_input.
constexpr void one_forward_split_backward(
  shape const& extents, int device, int warm_up, int lag, row_writer& out) {
  int const all = extents.stages_per_device * units(extents);
  int const before = std::min(warm_up, all);
  int const behind = std::min(lag, all);
  unit_walk forward(extents, device, direction::forward);
  unit_walk input(extents, device, direction::backward);
  unit_walk weight(extents, device, direction::backward);
  pass* at = out.append(3 * all);
  for (int i = 0; i < before; ++i)
    *at++ = forward.take(pass_kind::forward);
  for (int i = 0; i < all; ++i) {
    if (before + i < all)
      *at++ = forward.take(pass_kind::forward);
    *at++ = input.take(pass_kind::backward_input);
    if (i >= behind)
      *at++ = weight.take(pass_kind::backward_weight);
  }
  for (int i = 0; i < behind; ++i)
    *at++ = weight.take(pass_kind::backward_weight);
}

} // namespace detail
} // namespace pipelining::inline v0_1
