// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Lowering done by the compiler, a constant per slice of passes or per device.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/constants.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/device_plan.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/lower/scratch.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/timetable/static_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! Passes or items that one constant evaluation of a plan works through: an item takes more steps
//! than a pass of a timetable.
inline constexpr int plan_slice = 1536;

//! The global order of passes.
template <class Timed>
struct static_global_order {
  static constexpr timetable_view table = Timed::view;
  static constexpr int rows = table.rows();
  static constexpr int total = table.size();
  static constexpr int slices = total / plan_slice + 1;

  struct state {
    array_of<int, total> order;
    array_of<bool, pass_indices(table.over())> emitted;
    array_of<int, rows> next;
    array_of<double, rows> key;
    array_of<int, rows> heap;
    array_of<bool, rows> waiting;
    int heap_count;
    int count;
  };
  [[nodiscard]] static constexpr state start() { return go_on({}, nothing); }
  [[nodiscard]] static constexpr state go_on(state own, int step) {
    order_merge work{table,
                     own.order,
                     own.emitted,
                     own.next,
                     own.key,
                     own.heap,
                     own.waiting,
                     own.heap_count,
                     own.count};
    if (step == nothing)
      begin(work);
    else
      advance(work, plan_slice);
    own.heap_count = work.heap_count;
    own.count = work.count;
    return own;
  }
  static constexpr state const& value = after<static_global_order, slices>;
};

//! The global order of passes and messages.
template <class Timed, bool Slots>
struct static_events {
  static constexpr timetable_view table = Timed::view;
  static constexpr int total = table.size();
  static constexpr int slices = total / plan_slice + 1;

  struct state {
    array_of<event, 2 * total> events;
    int next;
    int written;
  };
  [[nodiscard]] static constexpr state start() { return {}; }
  [[nodiscard]] static constexpr state go_on(state own, int) {
    message_placement work{table,
                           static_global_order<Timed>::value.order,
                           total,
                           Slots,
                           own.events,
                           own.next,
                           own.written};
    advance(work, plan_slice);
    own.next = work.next;
    own.written = work.written;
    return own;
  }
  static constexpr state const& value = after<static_events, slices>;
};

//! The global order with the steps that follow complete gradients, where the sizes ask for any.
template <class Timed, bool Slots, bool Tied, bool Totals>
struct static_hooks {
  static constexpr timetable_view table = Timed::view;
  static constexpr auto const& before = static_events<Timed, Slots>::value;
  static_assert(routes(table.extents) == 1,
                "plan: tied weights and totals need one copy of every stage, but this placement "
                "keeps two; add up their gradients in gradients_ready, and step the optimizer "
                "after the iteration");

  struct state {
    array_of<event, before.written + hook_capacity(table.extents)> events;
    int written;
    int messages;
  };
  static constexpr state value = [] {
    state own{};
    hook_placement work{table, Tied, Totals, before.events, before.written, own.events};
    place_hooks(work);
    own.written = work.written;
    own.messages = work.messages;
    return own;
  }();
};
template <class Timed, bool Slots>
struct static_hooks<Timed, Slots, false, false> {
  static constexpr auto const& value = static_events<Timed, Slots>::value;
};
template <class Timed, class Policy, class Sizes>
using whole_static_order = static_hooks<Timed,
                                        Policy::duplex_groups,
                                        (tied_bytes(Sizes::value) > 0),
                                        (totals_bytes(Sizes::value) > 0)>;

template <class Timed>
inline constexpr data_uses static_uses{Timed::view.over()};

//! The items of one device.
template <class Timed, class Policy, class Sizes, int Device>
struct static_device {
  static constexpr timetable_view table = Timed::view;
  static constexpr int devices = table.extents.devices;
  static constexpr bool hooks = tied_bytes(Sizes::value) + totals_bytes(Sizes::value) > 0;
  using events = whole_static_order<Timed, Policy, Sizes>;

  static constexpr int count = [] {
    int sum = 0;
    for (int i = 0; i < events::value.written; ++i) {
      event const& what = events::value.events[i];
      sum += what.device == Device || what.to == Device ? 1 : 0;
    }
    return sum;
  }();
  static constexpr int length = count > 0 ? count : 1;
  static constexpr bool timed = table.declared->engines > 1;
  static constexpr int timed_length = timed ? length : 1;

  struct placed {
    array_of<item, length> items;
    array_of<int, length> positions_at_peer;
    array_of<double, timed_length> starts;
    array_of<double, timed_length> ends;

    [[nodiscard]] constexpr item_times times() const noexcept {
      return timed ? item_times{starts, ends} : item_times{};
    }
  };
  static constexpr placed program_of = [] {
    placed result{};
    array_of<int, devices> written{};
    for (int i = 0; i < events::value.written; ++i) {
      event const& what = events::value.events[i];
      int const at = written[Device];
      if (what.device == Device || what.to == Device) {
        int const peer = what.device == Device ? what.to : what.device;
        make_item(table, what, Device, result.items[at]);
        result.positions_at_peer[at] = peer == nothing ? 0 : written[peer];
        if (timed) {
          result.starts[at] = table.starts[what.entry];
          result.ends[at] = table.ends[what.entry];
        }
      }
      ++written[what.device];
      if (what.to != nothing)
        ++written[what.to];
    }
    return result;
  }();

  struct lowered {
    array_of<item, length> items;
    array_of<int, most_waits(table.over()) * length> waits;
    array_of<slot_layout, slot_classes> layouts;
    lowered_device sums;
  };
  static constexpr lowered value = [] {
    lowered result{};
    for (int i = 0; i < count; ++i)
      result.items[i] = program_of.items[i];
    program work{result.items, count};
    scratch<held_datum> held(static_uses<Timed>.instances(), {});
    lowering_space space;
    result.sums = lower_device<Policy>({static_uses<Timed>, false, held.data, 0, hooks},
                                       work,
                                       Device,
                                       program_of.positions_at_peer,
                                       program_of.times(),
                                       space,
                                       Sizes::value,
                                       result.layouts,
                                       result.waits);
    return result;
  }();
};

//! The whole plan in flat arrays.
template <class Timed, class Policy, class Sizes>
struct static_lowering {
  static constexpr shape extents = Timed::view.extents;
  static constexpr int devices = extents.devices;

  struct device_view {
    item const* items;
    int count;
    int const* waits;
    slot_layout const* layouts;
    lowered_device const* sums;
  };
  static constexpr auto all = each<devices>([](auto number) {
    using own = static_device<Timed, Policy, Sizes, number.value>;
    return device_view{
      own::value.items, own::count, own::value.waits, own::value.layouts, &own::value.sums};
  });

  struct totals {
    int items = 0;
    int waits = 0;
  };
  static constexpr totals total = [] {
    totals sum;
    for (device_view const& device : all.of) {
      sum.items += device.count;
      sum.waits += device.sums->waits;
    }
    return sum;
  }();

  struct flat {
    array_of<item, total.items> items;
    array_of<int, total.waits + 1> waits;
    array_of<int, devices + 1> offsets;
    array_of<int, devices> lanes;
    array_of<slot_layout, devices * slot_classes> layouts;
    array_of<std::int64_t, devices> arena_bytes;
    array_of<std::int64_t, devices> host_bytes;
  };
  static constexpr flat value = [] {
    flat result{};
    int waits = 0;
    for (int d = 0; d < devices; ++d) {
      device_view const& device = all.of[d];
      int const first = result.offsets[d];
      for (int i = 0; i < device.count; ++i) {
        result.items[first + i] = device.items[i];
        result.items[first + i].first_wait += waits;
      }
      for (int i = 0; i < device.sums->waits; ++i)
        result.waits[waits + i] = device.waits[i];
      for (int of = 0; of < slot_classes; ++of)
        result.layouts[d * slot_classes + of] = device.layouts[of];
      waits += device.sums->waits;
      result.lanes[d] = device.sums->lanes;
      result.arena_bytes[d] = device.sums->arenas.device;
      result.host_bytes[d] = device.sums->arenas.host;
      result.offsets[d + 1] = first + device.count;
    }
    return result;
  }();
  static constexpr int other_messages = [] {
    if constexpr (tied_bytes(Sizes::value) + totals_bytes(Sizes::value) > 0)
      return whole_static_order<Timed, Policy, Sizes>::value.messages;
    else
      return 0;
  }();
  static constexpr plan_view view{extents,
                                  Policy::name,
                                  &Policy::key,
                                  Policy::duplex_groups,
                                  false,
                                  value.items,
                                  value.offsets,
                                  value.waits,
                                  value.lanes,
                                  value.layouts,
                                  value.arena_bytes,
                                  tied_bytes(Sizes::value),
                                  totals_bytes(Sizes::value),
                                  other_messages,
                                  value.host_bytes,
                                  Timed::view.declared,
                                  Timed::view.holders,
                                  Timed::view.first_units};
};

} // namespace pipelining::inline v0_3::detail
