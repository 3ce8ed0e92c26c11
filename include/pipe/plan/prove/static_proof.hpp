// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The proof of a plan done by the compiler, a constant per device or per slice of items.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/constants.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/lower/scratch.hpp>
#include <pipe/plan/lower/static_lowering.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/prove/device_checks.hpp>
#include <pipe/plan/prove/drain.hpp>
#include <pipe/plan/prove/messages.hpp>
#include <pipe/plan/prove/steps.hpp>
#include <pipe/timetable/static_timetable.hpp>

namespace pipelining::inline v0_3::detail {

//! The verdict on a plan, some devices or items per constant.
//! @tparam Planned a type whose member `view` is the plan.
template <class Planned>
struct static_proof {
  static constexpr plan_view work = Planned::view;
  static constexpr int devices = work.extents.devices;
  static constexpr int indices = message_indices(work);
  static constexpr int unit_total = unit_indices(work.over());
  static constexpr data_uses uses{work.over()};

  //! The ends of the messages of all devices.
  struct entered_ends {
    array_of<int, indices> sender{};
    array_of<int, indices> receiver{};
    proof twice{};

    constexpr entered_ends() {
      for (int i = 0; i < indices; ++i)
        sender[i] = receiver[i] = nothing;
      for (int device = 0; device < devices && twice; ++device)
        twice = enter_messages(work, device, {sender, receiver});
    }
  };
  template <class Ends>
  static constexpr Ends ends{};
  template <class Ends>
  static constexpr proof match = [] {
    Ends own = ends<Ends>;
    return check_all_messages(work, {own.sender, own.receiver});
  }();

  //! What all devices run.
  struct entered_steps {
    array_of<flow_set, unit_total> kinds{};
    array_of<unsigned char, other_step_count * stages(work.extents)> others{};
    proof twice{};
    proof missing{};

    constexpr entered_steps() {
      for (int device = 0; device < devices && twice; ++device)
        twice = enter_passes(work, device, {kinds, others});
      missing = find_missing(work, {kinds, others});
    }
  };
  template <class Steps>
  static constexpr Steps ran{};

  //! What is checked device by device, a constant each.
  template <device_check What, int Device>
  static constexpr proof checked = [] {
    device_space space{};
    return check_device(work, uses, What, Device, space);
  }();
  template <device_check What>
  static constexpr proof
    all = first_failing(each<devices>([](auto device) { return checked<What, device.value>; }));

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
    [[nodiscard]] static constexpr state start() { return go_on({}, nothing); }
    [[nodiscard]] static constexpr state go_on(state own, int step) {
      plan_drain run{work, own.at, own.stack, own.queued, own.depth};
      if (step == nothing)
        begin(run);
      else
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
    else if constexpr (!ends<entered_ends>.twice)
      return ends<entered_ends>.twice;
    else if constexpr (asks_messages && !match<entered_ends>)
      return match<entered_ends>;
    else if constexpr (!all<device_check::sequences>)
      return all<device_check::sequences>;
    else if constexpr (circle.count > 0)
      return {plan_rule::circular, circle.of[0], circle.items[0]};
    else if constexpr (!ran<entered_steps>.twice)
      return ran<entered_steps>.twice;
    else if constexpr (!ran<entered_steps>.missing)
      return ran<entered_steps>.missing;
    else if constexpr (!all<device_check::layout>)
      return all<device_check::layout>;
    else
      return all<device_check::slots>;
  }
  static constexpr proof value = with_passes(judge(), work);
};

} // namespace pipelining::inline v0_3::detail
