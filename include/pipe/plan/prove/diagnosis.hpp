// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Turns the verdict on a plan into a compile error that names the rule, the items and the
//! circle.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/budget.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/static_proof.hpp>
#include <pipe/timetable/diagnosis.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace pipelining::inline v0_3::detail {

// These types exist for their names: compilers print the arguments of the template that holds a
// failed static_assert.
template <int>
struct item_number;
template <class Device, class Item, operation What, class... Pass>
struct stands_at;
struct no_other;
template <subject>
struct about;
template <subject About, pass_kind>
struct doing {
  using type = about<About>;
};
template <pass_kind Kind>
struct doing<subject::pass, Kind> {
  using type = runs<Kind>;
};
template <class...>
struct circle;
template <slot_class>
struct in_class;
template <int>
struct slots;
template <std::int64_t>
struct bytes;
template <std::int64_t>
struct memory_limit;

template <plan_rule Broken, class Plan, class Where, class Other, class Circle>
struct plan_breaks {
  static_assert(Broken != plan_rule::waits_forward,
                "plan: an item waits for an item that does not come before it");
  static_assert(Broken != plan_rule::bad_group,
                "plan: a group of messages is not the same at both ends");
  static_assert(Broken != plan_rule::wrong_lane,
                "plan: a message is not in the line of its communicator");
  static_assert(Broken != plan_rule::unmatched,
                "plan: a message is not sent once and received once");
  static_assert(Broken != plan_rule::sizes_differ,
                "plan: the two ends of a message disagree on its size");
  static_assert(Broken != plan_rule::fifo_differs,
                "plan: the two ends of an edge disagree on the order of its messages");
  static_assert(Broken != plan_rule::circular, "plan: devices wait for each other in a circle");
  static_assert(Broken != plan_rule::wrong_passes,
                "plan: a pass does not run exactly once on the device of its stage");
  static_assert(Broken != plan_rule::slots_overlap,
                "plan: slots of an arena overlap or are too small for what they hold");
  static_assert(Broken != plan_rule::not_there,
                "plan: a pass runs where what it needs of its stage is not there");
  static_assert(Broken != plan_rule::wrong_content,
                "plan: a step reads a slot that holds something else");
  static_assert(Broken != plan_rule::unordered,
                "plan: a step may start before an item that it depends on is complete");
  static_assert(Broken != plan_rule::incomplete,
                "plan: a step uses gradients that are not complete when it runs");
  static_assert(
    Broken != plan_rule::not_validated,
    "plan: the optimizer's step of an iteration is not validated before what depends on it");
};

//! An item of a plan as a type, to be read in a message.
template <class Planned, int Device, int Item>
struct item_named {
  static constexpr operation what = [] {
    auto const steps = Planned::view.program_of(Device);
    auto const at = static_cast<std::size_t>(Item);
    return at < steps.size() ? steps[at].what : operation::run;
  }();
  static constexpr pass work = [] {
    auto const steps = Planned::view.program_of(Device);
    auto const at = static_cast<std::size_t>(Item);
    return at < steps.size() ? steps[at].work : pass{};
  }();
  static constexpr subject about = [] {
    auto const steps = Planned::view.program_of(Device);
    auto const at = static_cast<std::size_t>(Item);
    return at < steps.size() ? steps[at].about : subject::pass;
  }();
  using type = stands_at<device<Device>,
                         item_number<Item>,
                         what,
                         typename doing<about, work.kind>::type,
                         stage<work.stage>,
                         microbatch<work.microbatch>,
                         chunk<work.chunk>>;
};
template <class Planned, int Device>
struct item_named<Planned, Device, nothing> { // a pass that no device runs
  static constexpr pass work = static_proof<Planned>::value.what;
  using type = stands_at<device<Device>,
                         item_number<nothing>,
                         operation::run,
                         typename doing<static_proof<Planned>::value.about, work.kind>::type,
                         stage<work.stage>,
                         microbatch<work.microbatch>,
                         chunk<work.chunk>>;
};
template <class Planned, int Item>
struct item_named<Planned, nothing, Item> {
  using type = no_other;
};
template <class Planned>
struct item_named<Planned, nothing, nothing> {
  using type = no_other;
};

template <class Planned, bool Circular>
struct circle_named {
  using type = circle<>;
};
template <class Planned>
struct circle_named<Planned, true> {
  using proved = static_proof<Planned>;

  template <int... Index>
  static circle<
    typename item_named<Planned, proved::circle.of[Index], proved::circle.items[Index]>::type...>
    name(std::integer_sequence<int, Index...>);
  using type = decltype(name(std::make_integer_sequence<int, proved::circle.count>{}));
};

//! Turns the verdict on a plan into a compile error that names the rule, the items and the circle.
template <class Planned, bool Proven = static_cast<bool>(static_proof<Planned>::value)>
struct plan_diagnosis {};
template <class Planned>
struct plan_diagnosis<Planned, false>
    : plan_breaks<
        static_proof<Planned>::value.broken,
        Planned,
        typename item_named<Planned,
                            static_proof<Planned>::value.device,
                            static_proof<Planned>::value.item_index>::type,
        typename item_named<Planned,
                            static_proof<Planned>::value.other_device,
                            static_proof<Planned>::value.other_item>::type,
        typename circle_named<Planned,
                              static_proof<Planned>::value.broken == plan_rule::circular>::type> {};

template <bool Fits, class Plan, class...>
struct plan_over_budget {
  static_assert(Fits, "plan: an arena is over the memory limit");
};

//! Turns a plan that does not fit into a compile error that names the class and the pass of its
//! peak.
template <class Planned, std::int64_t Limit>
struct budget_diagnosis {
  static constexpr over_budget found = find_over_budget(Planned::view, Limit);
  static constexpr plan_over_budget<found.fits(),
                                    Planned,
                                    device<found.device>,
                                    memory_limit<Limit>,
                                    bytes<found.arena_bytes>,
                                    in_class<found.largest>,
                                    slots<found.slots>,
                                    bytes<found.slot_bytes>,
                                    runs<found.peak.kind>,
                                    stage<found.peak.stage>,
                                    microbatch<found.peak.microbatch>,
                                    chunk<found.peak.chunk>>
    verdict{};
};

} // namespace pipelining::inline v0_3::detail
