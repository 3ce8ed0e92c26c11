// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The proof of a plan done by the compiler, a constant per device or per slice of items.

#include <pipe/core/array_of.hpp>
#include <pipe/core/constants.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/plan/lower/scratch.hpp>
#include <pipe/plan/lower/static_lowering.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/device_checks.hpp>
#include <pipe/plan/prove/drain.hpp>
#include <pipe/plan/prove/messages.hpp>
#include <pipe/plan/prove/steps.hpp>
#include <pipe/timetable/static_timetable.hpp>

namespace pipelining::inline v0_2::detail {

//! The verdict on a plan, some devices or items per constant.
//! @tparam Planned a type whose member `view` is the plan.
template <class Planned>
struct static_proof {
  static constexpr plan_view work = Planned::view;
  static constexpr int devices = work.extents.devices;
  static constexpr int indices = message_indices(work);
  static constexpr int unit_total = unit_indices(work.over());
  static constexpr data_uses uses{work.over()};

  //! What the devices enter one after the other.
  struct state {
    array_of<int, indices> sender;
    array_of<int, indices> receiver_of;
    array_of<flow_set, unit_total> kinds;
    array_of<unsigned char, other_step_count * stages(work.extents)> others;
    proof messages;
    proof passes;
  };
  [[nodiscard]] static constexpr state start() {
    state own{};
    for (int i = 0; i < indices; ++i)
      own.sender[i] = own.receiver_of[i] = nothing;
    return own;
  }
  [[nodiscard]] static constexpr state go_on(state own, int device) {
    if (own.messages)
      own.messages = enter_messages(work, device, {own.sender, own.receiver_of});
    if (own.passes)
      own.passes = enter_passes(work, device, {own.kinds, own.others});
    return own;
  }
  template <class Proof>
  static constexpr state const& entered = after<Proof, devices>;
  template <class Proof>
  static constexpr proof missing = [] {
    state own = entered<Proof>;
    return find_missing(work, {own.kinds, own.others});
  }();

  //! What is checked device by device, a constant each.
  template <device_check What, int Device>
  static constexpr proof checked = [] {
    device_space space{};
    return check_device(work, uses, What, Device, space);
  }();
  template <device_check What>
  static constexpr proof
    all = first_failing(each<devices>([](auto device) { return checked<What, device.value>; }));

  //! Whether both ends of a device's messages fit together.
  template <class Proof, int Device>
  static constexpr proof matched = [] {
    state own = entered<Proof>;
    return check_messages(work, Device, {own.sender, own.receiver_of});
  }();
  template <class Proof>
  static constexpr proof
    match = first_failing(each<devices>([](auto device) { return matched<Proof, device.value>; }));

  //! Zero buffering, a slice of items per constant.
  struct draining {
    static constexpr int slices =
      work.offsets[devices] / plan_slice + 2; // one more to see that nothing moves

    struct state {
      array_of<int, devices> at;
      array_of<int, devices> stack;
      array_of<bool, devices> queued;
      int depth;
    };
    [[nodiscard]] static constexpr state start() {
      state own{};
      plan_drain run{work, own.at, own.stack, own.queued};
      begin(run);
      own.depth = run.depth;
      return own;
    }
    [[nodiscard]] static constexpr state go_on(state own, int) {
      plan_drain run{work, own.at, own.stack, own.queued, own.depth};
      advance(run, plan_slice);
      own.depth = run.depth;
      return own;
    }
  };
  //! The devices of the circle in which nothing moves any more, and where they stand.
  struct circle_list {
    array_of<int, devices> of;
    array_of<int, devices> items;
    int count;
  };
  template <class Draining>
  static constexpr circle_list circle_after = [] {
    typename Draining::state own = after<Draining, Draining::slices>;
    plan_drain const run{work, own.at, own.stack, own.queued, own.depth};
    circle_list result{};
    result.count = find_circle(run, result.of);
    for (int i = 0; i < result.count; ++i)
      result.items[i] = own.at[result.of[i]];
    return result;
  }();
  static constexpr circle_list circle = circle_after<draining>;

  //! What drains without exchanges has met at both ends of every message.
  static constexpr bool asks_messages =
    !all<device_check::sequences> || circle.count > 0 || work.edges != nullptr;

  [[nodiscard]] static constexpr proof judge() {
    if constexpr (!all<device_check::form>)
      return all<device_check::form>;
    else if constexpr (!all<device_check::exchanges>)
      return all<device_check::exchanges>;
    else if constexpr (!all<device_check::lanes>)
      return all<device_check::lanes>;
    else if constexpr (!entered<static_proof>.messages)
      return entered<static_proof>.messages;
    else if constexpr (asks_messages && !match<static_proof>)
      return match<static_proof>;
    else if constexpr (!all<device_check::sequences>)
      return all<device_check::sequences>;
    else if constexpr (circle.count > 0)
      return {plan_rule::circular, circle.of[0], circle.items[0]};
    else if constexpr (!entered<static_proof>.passes)
      return entered<static_proof>.passes;
    else if constexpr (!missing<static_proof>)
      return missing<static_proof>;
    else if constexpr (!all<device_check::layout>)
      return all<device_check::layout>;
    else
      return all<device_check::slots>;
  }
  static constexpr proof value = with_passes(judge(), work);
};

} // namespace pipelining::inline v0_2::detail
