// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Declarations of the registry: rows, their traits, and timetables of schedules by name.
//!
//! Functions here are templates, so that a program compiles the schedules where it wants to. A
//! small program includes `registry.hpp`. A larger one includes only this header in most of its
//! sources, and instantiates the functions that it uses in one source with `registry.hpp`, as
//! tools/support/compiled_registry.cpp does.
//!
//! `Rows` says whose schedules: those of the library, or a type of your own with a tuple `rows`.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_kinds.hpp>
#include <pipe/planner/registry/choice.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <concepts>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::registry {

//! A cost model of any type behind one type, so that every schedule is compiled once.
class any_cost {
public:
  //! Holds a copy of a cost model.
  template <class Cost>
  requires(cost_model<Cost> && !std::same_as<Cost, any_cost>)
    any_cost(Cost const& cost) // NOLINT(google-explicit-constructor): any cost model will do
      : duration_([cost](pass const& what) { return double{cost.duration(what)}; }),
        pair_([cost](pass const& first, pass const& second) {
          return pipelining::pair_duration(cost, first, second);
        }),
        latency_(cost.latency()), groups_(groups_of(cost)),
        links_(links_of(cost).begin(), links_of(cost).end()) {}

  //! Time of a pass.
  [[nodiscard]] double duration(pass const& what) const { return duration_(what); }
  //! Time of a message.
  [[nodiscard]] double latency() const noexcept { return latency_; }
  //! Times of exchanges of all devices.
  [[nodiscard]] group_times groups() const noexcept { return groups_; }
  //! Times of messages by connection.
  [[nodiscard]] std::span<double const> links() const noexcept { return links_; }
  //! Time of two passes side by side.
  [[nodiscard]] double pair_duration(pass const& first, pass const& second) const {
    return pair_(first, second);
  }

private:
  std::function<double(pass const&)> duration_;
  std::function<double(pass const&, pass const&)> pair_;
  double latency_;
  group_times groups_;
  std::vector<double> links_;
};

//! What programs ask of a schedule besides its options. The first ones stand in its row, `named`
//! finds the others from the rest of the row.
struct schedule_traits {
  //! Its C++ type in namespace pipelining; {chunks}, {stages}, {waves}, {group} and {limit} stand
  //! for numbers of a choice. Empty: nobody writes it down.
  std::string_view type = {};
  //! The same with eager, unequal chunks, or chunks that it has only when asked; empty: no other.
  std::string_view type_asked = {};
  //! Its gradients have the bits of a plain loop over microbatches, in all sizes: see
  //! `sums_in_order`.
  bool sums_in_order = true;
  //! Its stages are parts of layers, attention and what is around it: they want two stages per
  //! device for each layer.
  bool cuts_layers = false;
  //! Its devices can take over attention of each other: see `adapter::attention_exchange`.
  bool exchanges_attention = false;
  //! In which adapters the table of systems shows it, besides none.
  adapter shown_with = adapter::none;

  //! Stages of its timetables are microbatches and their chunks groups of layers: see `by_groups`.
  bool weights_travel = false;
  //! Its stages go one way each and have unequal numbers of layers: see `cost_by_layers`.
  bool stages_go_one_way = false;
  //! It places its stages itself, where no placement with a name has them.
  bool places_stages = false;
  //! It has chunks without being asked.
  bool over_chunks = false;
  //! Two devices hold each stage, and half of the microbatches go the other way.
  bool two_copies = false;
  //! Stages of a device where nobody asks for another number.
  int stages_per_device = 1;
  //! Chunks where nobody asks for another number; those that exchange attention have as many as
  //! devices.
  int chunks = 1;
  //! Its limit of memory is a member, and no part of its type.
  bool limit_in_value = false;
  //! A device has an even number of its stages: two for each layer or wave.
  bool even_stages = false;
  //! It runs on even numbers of devices only.
  bool even_devices = false;
  //! Some of its backward passes are two halves, on two devices and with three microbatches or
  //! more.
  bool splits_backward = false;
  //! Its order is searched for the costs: other costs, other orders.
  bool searched = false;
  //! Some passes run side by side, a forward with a backward pass.
  bool overlaps_pairs = false;
  //! Any two passes may run side by side, and not only a forward with a backward pass.
  bool any_pairs = false;
  //! It has another order where activations are recomputed.
  bool sees_recomputation = false;
};

//! One schedule with a name.
struct named_schedule {
  std::string_view name;       //!< its word on command lines
  std::string_view line;       //!< what it is, its defaults
  option takes = option::none; //!< the options that it has
  option needs = option::none; //!< the options without which it cannot be made
  schedule_traits traits;      //!< what else programs ask
};

struct published_schedules;

//! All schedules, in the order in which people should read about them.
template <class Rows = published_schedules>
[[nodiscard]] std::span<named_schedule const> named_schedules();

//! The schedule of a name.
//! @throws std::invalid_argument that names the nearest ones when there is none.
template <class Rows = published_schedules>
[[nodiscard]] auto find_schedule(std::string_view name) -> named_schedule const&;

//! Calls `use` with the schedule of a choice, a value of its own type, and returns the result: the
//! same type for all schedules. Not for adapters. Compiles `use` for every schedule.
//! @throws std::invalid_argument for an unknown name.
template <class Rows = published_schedules, class Use>
auto with_schedule(schedule_choice const& choice, Use use);

//! The C++ type of a choice without its adapter; empty where nobody writes it down.
template <class Rows = published_schedules>
[[nodiscard]] std::string written_type(schedule_choice const& choice);

//! How the pipeline of a choice is laid out: what a cost per stage or chunk must know first.
//! @throws std::invalid_argument for an unknown name, an option that the schedule does not have or
//!         lacks, or extents that it cannot have.
template <class Rows = published_schedules>
[[nodiscard]] shape arrange(schedule_choice const& choice);

//! The smallest number of microbatches that a choice can have, with its devices and options; none
//! where no number up to four times the devices will do.
template <class Rows = published_schedules>
[[nodiscard]] std::optional<int> least_microbatches(schedule_choice choice);

//! The extents that costs are given for: where weights travel, groups of layers are stages; where
//! stages go one way, layers are.
template <class Rows = published_schedules>
[[nodiscard]] shape shown_extents(schedule_choice const& choice);

//! The orders of a choice without its adapter.
template <class Rows = published_schedules>
[[nodiscard]] device_orders plain_orders(schedule_choice const& choice, any_cost const& cost);

//! Costs of parts of layers, for slimpipe whose devices take over attention of each other: the same
//! work as chunks of equal length have without that.
//! @param mean of a chunk on a stage. @param ratio forward work of attention over that of all else.
template <class Rows = published_schedules>
[[nodiscard]] any_cost
cost_by_parts(schedule_choice const& choice, uniform_cost const& mean, double ratio);

//! Costs of a choice in its adapter: with offload-chunks, recomputes and copies are of as much of
//! an activation as hides behind the next forward pass.
//! @param whole of whole activations. @param usual those under which that is found out
template <class Rows = published_schedules>
[[nodiscard]] any_cost
cost_in_adapter(schedule_choice const& choice, any_cost const& whole, any_cost const& usual);

namespace detail {

//! What a schedule of training can ask a cost model.
inline std::vector<double> times_of(shape const& extents, any_cost const& cost) {
  group_times const groups = cost.groups();
  std::vector<double> times{cost.latency(), groups.broadcast, groups.reduce};
  times.insert(times.end(), cost.links().begin(), cost.links().end());
  for (role const is : {role::forward, role::backward, role::input, role::weights, role::again})
    for (int stage = 0; stage < stages(extents); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        times.push_back(cost.duration(
          row_writer::make(kind_with(pipelining::detail::kinds_of_training, is), stage, 0, chunk)));
  return times;
}

} // namespace detail

//! Orders of schedules without their adapters, by the times that they were asked for. Searched
//! schedules take seconds, and most adapters leave them the times that they have alone.
class made_orders {
public:
  //! The orders of a choice without the passes of its adapter.
  //! @pre the times of passes are the same for all microbatches
  //! @throws as `make_named_timetable` does
  template <class Rows = published_schedules>
  [[nodiscard]] device_orders const& get(schedule_choice choice, any_cost const& cost) {
    if (choice.adapted != adapter::recompute ||
        !find_schedule<Rows>(choice.name).traits.sees_recomputation)
      choice.adapted = adapter::none;
    choice.frozen = 0; // whose passes are left out
    std::vector<double> times = detail::times_of(arrange<Rows>(choice), cost);
    auto const found = std::find_if(all_.begin(), all_.end(), [&](made const& each) {
      return each.choice == choice && each.times == times;
    });
    if (found != all_.end())
      return found->orders;
    device_orders orders = plain_orders<Rows>(choice, cost);
    return all_.emplace_back(made{std::move(choice), std::move(times), std::move(orders)}).orders;
  }

private:
  struct made {
    schedule_choice choice;
    std::vector<double> times; // all that the orders depend on
    device_orders orders;
  };
  std::deque<made> all_; // who has been given one keeps it
};

//! The verified timetable of a choice.
//! @param made orders to look in first; null: none are kept
//! @throws std::invalid_argument as `arrange` does.
template <class Rows = published_schedules>
[[nodiscard]] dynamic_timetable make_named_timetable(schedule_choice const& choice,
                                                     any_cost const& cost,
                                                     made_orders* made = nullptr);

//! The verified timetable of an order that was read, in the adapter of a choice.
//! @pre there is an adapter; the order is verified
//! @throws std::invalid_argument where the order cannot be in that adapter
template <class Rows = published_schedules>
[[nodiscard]] dynamic_timetable make_adapted_timetable(device_orders const& read,
                                                       schedule_choice const& choice,
                                                       any_cost const& cost);

} // namespace pipelining::inline v0_3::registry
