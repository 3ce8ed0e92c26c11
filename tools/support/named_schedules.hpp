// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Schedules by name, for programs that learn the name from their command line.
//!
//! The library's schedules are types; a program that is told "v-half" at run time needs the way
//! from the name to the type. It is compiled once, in named_schedules.cpp, for all examples. To add
//! a schedule, add its header and one entry to `named_schedules` there:
//!
//!   named("interleaved", "Megatron's interleaved 1F1B; 2 stages per device, groups of P",
//!         option::stages_per_device | option::group,
//!         [](schedule_choice const& c) {
//!           return pp::Interleaved<pp::dynamic>{.stages_per_device =
//!           c.stages_per_device.value_or(2),
//!                                               .group = c.group.value_or(c.devices)};
//!         },
//!         {.type = "Interleaved<{stages}>"}),
//!
//! The function returns the schedule, which may be any type with the concept `schedule`; defaults
//! of options are the `value_or` in it and belong into the line of text. Behind the function stand
//! the traits that no other part of the row tells, and then the options without which the schedule
//! cannot be made. Everything else (the command line, --list, --help, errors, the tests over all
//! names) follows from the entry. Programs ask for a trait where they mean one, and not for a name.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

//! Options that only some schedules have. Values are bits.
enum class option : unsigned {
  none = 0,
  chunks = 1,            //!< --chunks C
  stages_per_device = 2, //!< --stages-per-device V
  group = 4,             //!< --group N
  memory_limit = 8,      //!< --memory-limit X, in whole microbatches of one stage
  eager = 16,            //!< --eager
  unfused = 32,          //!< --unfused
  pair_cost = 64,        //!< --pair-cost T, for schedules with overlapped pairs
  forwards = 128,        //!< --forwards N, before the first backward pass of a device
  chunk_counts = 256,    //!< --chunk-counts C,C,..., of the microbatches, repeated
  keep = 512,            //!< --keep K, chunks whose activations a microbatch keeps
  forward_stages = 1024, //!< --forward-stages N, stages that go forward alone
  backward_stages = 2048 //!< --backward-stages N, stages that go back
};
[[nodiscard]] constexpr option operator|(option a, option b) noexcept {
  return static_cast<option>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr bool has(option all, option one) noexcept {
  return (static_cast<unsigned>(all) & static_cast<unsigned>(one)) != 0;
}

//! What any schedule can be wrapped in.
enum class adapter {
  none,
  recompute,             //!< with_recompute: forward passes keep their input alone
  recompute_first,       //!< the same of the first stage of every device
  offload,               //!< with_offload: activations wait on the host
  offload_half,          //!< half of them, those that idle longest
  offload_chunks,        //!< of every chunk but the last what hides behind the next one
  vocabulary_1,          //!< with_vocabulary<Schedule, 1>: the vocabulary in shards, one barrier
  vocabulary_2,          //!< with_vocabulary<Schedule, 2>
  vocabulary_interlaced, //!< with_vocabulary<Schedule, interlaced>
  sharded_weights,       //!< with_sharded_weights: gathered for every visit of a stage
  gathered_once,         //!< the same, gathered once
  weights_on_host,       //!< those of the last stage of every device come from the host
  attention_exchange     //!< SlimPipeExchange: devices take over attention of each other
};

//! An adapter by the name that options have for it.
struct named_adapter {
  std::string_view name;
  adapter which;
  std::string_view line; //!< what it does
};

//! All of them.
inline constexpr named_adapter named_adapters[] = {
  {"recompute", adapter::recompute, "forward passes keep their input alone"},
  {"recompute-first", adapter::recompute_first, "those of the first stage of every device"},
  {"offload", adapter::offload, "activations wait on the host"},
  {"offload-half", adapter::offload_half, "half of them, those that idle longest"},
  {"offload-chunks",
   adapter::offload_chunks,
   "of every chunk but the last what moves behind the forward pass of the next"},
  {"vocabulary-1", adapter::vocabulary_1, "the vocabulary in a shard per device, one barrier"},
  {"vocabulary-2", adapter::vocabulary_2, "the same with two barriers"},
  {"vocabulary-interlaced",
   adapter::vocabulary_interlaced,
   "the same, where all devices do the output layer of a microbatch at once"},
  {"sharded-weights",
   adapter::sharded_weights,
   "weights gathered for every visit of a stage (ZeRO-3)"},
  {"gathered-once", adapter::gathered_once, "weights gathered once and kept (ZeRO-2)"},
  {"weights-on-host",
   adapter::weights_on_host,
   "those of the last stage of every device wait on the host between iterations"},
  {"attention-exchange",
   adapter::attention_exchange,
   "slimpipe alone: devices take over attention of each other"},
};

//! How reports name a schedule in an adapter: "1f1b with offload"; itself in none.
[[nodiscard]] inline std::string in_adapter(std::string schedule, adapter which) {
  for (named_adapter const& each : named_adapters)
    if (each.which == which)
      schedule.append(" with ").append(each.name);
  return schedule;
}

[[nodiscard]] constexpr bool has_shards(adapter which) noexcept {
  return which == adapter::vocabulary_1 || which == adapter::vocabulary_2 ||
         which == adapter::vocabulary_interlaced;
}

[[nodiscard]] constexpr bool shards_weights(adapter which) noexcept {
  return which == adapter::sharded_weights || which == adapter::gathered_once;
}

//! True where passes of some stages wait until their weights have come.
[[nodiscard]] constexpr bool gathers_weights(adapter which) noexcept {
  return shards_weights(which) || which == adapter::weights_on_host;
}

[[nodiscard]] constexpr bool moves_activations(adapter which) noexcept {
  return which == adapter::offload || which == adapter::offload_half ||
         which == adapter::offload_chunks;
}

//! Which schedule, how large, and with which of its options.
struct schedule_choice {
  std::string name;
  int devices = 1;
  int microbatches = 1;
  std::optional<int> chunks;
  std::optional<int> stages_per_device;
  std::optional<int> group;
  std::optional<int> forwards;
  std::vector<int> chunk_counts; //!< empty: not given
  std::optional<int> keep;
  std::optional<int> forward_stages;
  std::optional<int> backward_stages;
  std::optional<double> memory_limit;
  bool eager = false;
  bool unfused = false;
  adapter adapted = adapter::none;
  int offloaded_stages = 0;  //!< of offload: the first stages of a device; 0: all
  bool scatter_once = false; //!< of sharded weights: whole gradients stay until a stage's last pass
  int resident = 2;          //!< of sharded weights: stages whose weights stay
  int prefetch = 1;          //!< of sharded weights: stages ahead that are gathered

  friend bool operator==(schedule_choice const&, schedule_choice const&) = default;
};

//! A cost model of any type behind one type, so that every schedule is compiled once.
class any_cost {
public:
  template <class Cost>
  requires(pipelining::cost_model<Cost> && !std::same_as<Cost, any_cost>)
    any_cost(Cost const& cost) // NOLINT(google-explicit-constructor): any cost model will do
      : duration_([cost](pipelining::pass const& what) { return double{cost.duration(what)}; }),
        pair_([cost](pipelining::pass const& first, pipelining::pass const& second) {
          return pipelining::pair_duration(cost, first, second);
        }),
        latency_(cost.latency()), groups_(pipelining::groups_of(cost)),
        links_(pipelining::links_of(cost).begin(), pipelining::links_of(cost).end()) {}

  [[nodiscard]] double duration(pipelining::pass const& what) const { return duration_(what); }
  [[nodiscard]] double latency() const noexcept { return latency_; }
  [[nodiscard]] pipelining::group_times groups() const noexcept { return groups_; }
  [[nodiscard]] std::span<double const> links() const noexcept { return links_; }
  [[nodiscard]] double pair_duration(pipelining::pass const& first,
                                     pipelining::pass const& second) const {
    return pair_(first, second);
  }

private:
  std::function<double(pipelining::pass const&)> duration_;
  std::function<double(pipelining::pass const&, pipelining::pass const&)> pair_;
  double latency_;
  pipelining::group_times groups_;
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
  std::vector<adapter> shown_with = {};

  //! Stages of its timetables are microbatches and their chunks groups of layers: see `by_groups`.
  bool weights_travel = false;
  //! Its stages go one way each and have unequal numbers of layers: see `cost_by_layers`.
  bool stages_go_one_way = false;
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
  //! Any two passes may run side by side, and not a forward beside a backward pass alone.
  bool any_pairs = false;
};

//! One schedule with a name.
struct named_schedule {
  std::string_view name;
  std::string_view line;       //!< what it is, its defaults
  option takes = option::none; //!< the options that it has
  option needs = option::none; //!< those without which it cannot be made
  pipelining::shape (*arrange)(schedule_choice const&) = nullptr;
  pipelining::device_orders (*orders)(schedule_choice const&, any_cost const&) = nullptr;
  //! The device of a stage on a route; null where the placement has a name.
  int (*device_of)(schedule_choice const&, pipelining::shape const&, int, int) = nullptr;
  schedule_traits traits;
};

//! All of them, in the order in which people should read about them.
[[nodiscard]] std::span<named_schedule const> named_schedules();

//! The schedule of a name.
//! @throws std::invalid_argument that names the nearest ones when there is none.
[[nodiscard]] named_schedule const& find_schedule(std::string_view name);

//! A word of the user in quotes for one line of a message: cut short, without control characters.
[[nodiscard]] std::string quoted(std::string_view word);

//! The C++ type of a choice without its adapter; empty where nobody writes it down.
[[nodiscard]] std::string written_type(schedule_choice const& choice);

//! The options of a set as one writes them: "--chunks, --eager".
[[nodiscard]] std::string option_names(option all);

//! Names that look like `name`, nearest first, at most three.
[[nodiscard]] std::string near_names(std::string_view name, std::span<std::string_view const> all);

//! How the pipeline of a choice is laid out: what a cost per stage or chunk must know first.
//! @throws std::invalid_argument for an unknown name, an option that the schedule does not have or
//!         lacks, or extents that it cannot have.
[[nodiscard]] pipelining::shape arrange(schedule_choice const& choice);

//! The extents that costs are given for: where weights travel, groups of layers are stages; where
//! stages go one way, layers are.
[[nodiscard]] pipelining::shape shown_extents(schedule_choice const& choice);

//! A timetable of weights that travel as one of training, with groups of layers as stages, each of
//! them on the device of the microbatch: for pictures, figures and bounds, not to be run.
[[nodiscard]] pipelining::dynamic_timetable by_groups(pipelining::dynamic_timetable table);

//! Costs of groups of layers and microbatches, for the passes of weights that travel.
[[nodiscard]] any_cost cost_by_groups(any_cost const& cost);

//! Costs of layers, for the passes of stages that go one way. A stage that goes back has one layer
//! and runs it forward again; those that go forward have equal shares of all layers but the last.
[[nodiscard]] any_cost cost_by_layers(schedule_choice const& choice, any_cost const& cost);

//! Costs of parts of layers, for slimpipe whose devices take over attention of each other: the same
//! work as chunks of equal length have without that.
//! @param mean of a chunk on a stage. @param ratio forward work of attention over that of all else.
[[nodiscard]] any_cost
cost_by_parts(schedule_choice const& choice, pipelining::uniform_cost const& mean, double ratio);

//! Costs of a choice in its adapter: with offload-chunks, recomputes and copies are of as much of
//! an activation as hides behind the next forward pass.
//! @param whole of whole activations. @param usual those under which that is found out
[[nodiscard]] any_cost
cost_in_adapter(schedule_choice const& choice, any_cost const& whole, any_cost const& usual);

class made_orders;

//! The verified timetable of a choice.
//! @param made orders to look in first; null: none are kept
//! @throws std::invalid_argument as `arrange` does.
[[nodiscard]] pipelining::dynamic_timetable make_named_timetable(schedule_choice const& choice,
                                                                 any_cost const& cost,
                                                                 made_orders* made = nullptr);

//! The verified timetable of an order that was read, in the adapter of a choice.
//! @pre there is an adapter; the order is verified
//! @throws std::invalid_argument where the order cannot be in that adapter
[[nodiscard]] pipelining::dynamic_timetable make_adapted_timetable(
  pipelining::device_orders const& read, schedule_choice const& choice, any_cost const& cost);

} // namespace examples
