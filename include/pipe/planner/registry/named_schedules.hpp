// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Schedules by name: choices, the traits that programs ask for, and the orders that were
//! made. Header for pipelining::registry::schedule_choice, named_schedule and made_orders.
//!
//! Functions here are templates, so that a program compiles the schedules where it wants to. A
//! small program includes `registry.hpp`. A larger one includes only this header in most of its
//! sources, and instantiates the functions that it uses in one source with `registry.hpp`, as
//! tools/support/compiled_registry.cpp does.
//!
//! `Rows` says whose schedules: the ones of the library, or a type of your own with a tuple `rows`.

#include <pipe/config.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/model/stage_memory.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::registry {

namespace detail {

//! Insertions, deletions, replacements and swaps of neighbours that make one text the other.
inline std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      bool const same = a[i - 1] == b[j - 1];
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + !same});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

} // namespace detail

//! A word of the user in quotes for one line of a message.
[[nodiscard]] inline std::string quoted(std::string_view word) {
  return pipelining::detail::quote(word);
}

//! Names that look like `name`, nearest first, at most three.
[[nodiscard]] inline std::string near_names(std::string_view name,
                                            std::span<std::string_view const> all) {
  std::vector<std::pair<std::size_t, std::string_view>> found;
  if (name.size() > 64)
    return {};
  std::string lower(name);
  for (char& c : lower)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  name = lower;
  for (std::string_view const other : all) {
    std::size_t const shorter = std::min(name.size(), other.size());
    bool const begins_alike = shorter >= 3 && name.substr(0, shorter) == other.substr(0, shorter);
    std::size_t const distance = detail::edits(name, other);
    if (begins_alike || (distance < shorter && distance <= std::max<std::size_t>(2, shorter / 3)))
      found.emplace_back(distance, other);
  }
  pipelining::detail::sort_stably(found,
                                  [](auto const& a, auto const& b) { return a.first < b.first; });
  found.resize(std::min<std::size_t>(found.size(), 3));
  std::string text;
  for (auto const& each : found)
    text.append(text.empty() ? "" : &each == &found.back() ? " or " : ", ").append(each.second);
  return text;
}

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
  forward_stages = 1024, //!< --forward-stages N, stages that only go forward
  backward_stages = 2048 //!< --backward-stages N, stages that go back
};

//! Adapters that any schedule can be wrapped in. Values are bits.
enum class adapter : unsigned {
  none = 0,
  recompute = 1,       //!< with_recompute: forward passes keep only their input
  recompute_first = 2, //!< with_recompute of the first stage of every device
  offload = 4,         //!< with_offload: activations wait on the host
  offload_half = 8,    //!< with_offload of the half that idles longest
  offload_chunks = 16, //!< with_offload of what hides while the next chunk goes forward
  vocabulary_1 = 32,   //!< with_vocabulary<Schedule, 1>: the vocabulary in shards, one barrier
  vocabulary_2 = 64,   //!< with_vocabulary<Schedule, 2>
  vocabulary_interlaced = 128, //!< with_vocabulary<Schedule, interlaced>
  sharded_weights = 256,       //!< with_sharded_weights: gathered for every visit of a stage
  gathered_once = 512,         //!< with_sharded_weights, gathered once
  weights_on_host = 1024,      //!< weights of the last stage of every device come from the host
  attention_exchange = 2048    //!< SlimPipeExchange: devices take over attention of each other
};

//! Union of two sets of options.
[[nodiscard]] constexpr option operator|(option a, option b) noexcept {
  return static_cast<option>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
//! Union of two sets of adapters.
[[nodiscard]] constexpr adapter operator|(adapter a, adapter b) noexcept {
  return static_cast<adapter>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
//! True if a set of options, or of adapters, has one of `some`.
template <class Bits>
requires(std::same_as<Bits, option> || std::same_as<Bits, adapter>)
  [[nodiscard]] constexpr bool has(Bits all, Bits some) noexcept {
  return (static_cast<unsigned>(all) & static_cast<unsigned>(some)) != 0;
}

//! An adapter by the name that options have for it.
struct named_adapter {
  std::string_view name; //!< its word in options and reports
  adapter which;         //!< the adapter
  std::string_view line; //!< what it does

  //! All adapters with a name.
  [[nodiscard]] static std::span<named_adapter const> all() noexcept;
};

inline std::span<named_adapter const> named_adapter::all() noexcept {
  static constexpr named_adapter each[] = {
    {"recompute", adapter::recompute, "forward passes keep their input alone"},
    {"recompute-first", adapter::recompute_first, "those of the first stage of every device"},
    {"offload", adapter::offload, "activations wait on the host"},
    {"offload-half", adapter::offload_half, "half of them, those that idle longest"},
    {"offload-chunks",
     adapter::offload_chunks,
     "of every chunk but the last what moves under the forward pass of the next"},
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
  return each;
}

//! Name of a schedule in an adapter, as reports have it: "1f1b with offload"; itself in none.
[[nodiscard]] inline std::string in_adapter(std::string schedule, adapter which) {
  for (named_adapter const& each : named_adapter::all())
    if (each.which == which)
      schedule.append(" with ").append(each.name);
  return schedule;
}

//! Schedule, size, options and adapter, as a program is told them at run time.
struct schedule_choice {
  std::string name;                     //!< of a row of the registry
  int devices = 1;                      //!< P
  int microbatches = 1;                 //!< M
  std::optional<int> chunks;            //!< option::chunks
  std::optional<int> stages_per_device; //!< option::stages_per_device
  std::optional<int> group;             //!< option::group
  std::optional<int> forwards;          //!< option::forwards
  std::vector<int> chunk_counts;        //!< option::chunk_counts; empty: not given
  std::optional<int> keep;              //!< option::keep
  std::optional<int> forward_stages;    //!< option::forward_stages
  std::optional<int> backward_stages;   //!< option::backward_stages
  std::optional<double> memory_limit;   //!< option::memory_limit
  std::vector<double> room;             //!< [P] in place of that: bytes; empty: not given
  stage_memory memory;                  //!< and those of the stages and chunks
  bool eager = false;                   //!< option::eager
  bool unfused = false;                 //!< option::unfused
  adapter adapted = adapter::none;      //!< one adapter
  int offloaded_stages = 0;             //!< of offload: the first stages of a device; 0: all
  std::vector<int> adapted_stages;      //!< of recompute and offload: only these stages; empty: all
  bool scatter_once = false; //!< of sharded weights: whole gradients stay until a stage's last pass
  int resident = 2;          //!< of sharded weights: stages whose weights stay
  int prefetch = 1;          //!< of sharded weights: stages ahead that are gathered
  int frozen = 0;            //!< the first stages have nothing to train: see with_frozen_stages
  bool swept = false;        //!< five sweeps where the schedule would search for its order

  //! True where the vocabulary is in shards.
  [[nodiscard]] bool has_shards() const noexcept {
    return has(adapter::vocabulary_1 | adapter::vocabulary_2 | adapter::vocabulary_interlaced,
               adapted);
  }
  //! True where weights are in shards.
  [[nodiscard]] bool shards_weights() const noexcept {
    return has(adapter::sharded_weights | adapter::gathered_once, adapted);
  }
  //! True where passes of some stages wait until their weights have come.
  [[nodiscard]] bool gathers_weights() const noexcept {
    return shards_weights() || adapted == adapter::weights_on_host;
  }
  //! True where activations move to the host and back.
  [[nodiscard]] bool moves_activations() const noexcept {
    return has(adapter::offload | adapter::offload_half | adapter::offload_chunks, adapted);
  }

  //! True if all members are equal.
  friend bool operator==(schedule_choice const&, schedule_choice const&) = default;
};

//! @brief An option with its word.
struct named_option {
  option which;                                          //!< the option
  char const* name;                                      //!< its word
  std::optional<int> schedule_choice::*number = nullptr; //!< of those that are a number

  //! True when a choice has the option. `pair_cost` is of a cost, so a choice never has it.
  [[nodiscard]] bool given(schedule_choice const& choice) const {
    switch (which) {
    case option::chunk_counts: return !choice.chunk_counts.empty();
    case option::memory_limit: return choice.memory_limit.has_value() || !choice.room.empty();
    case option::eager: return choice.eager;
    case option::unfused: return choice.unfused;
    default: return number != nullptr && (choice.*number).has_value();
    }
  }

  //! All options, in the order of their names in messages.
  [[nodiscard]] static std::span<named_option const> all() noexcept;
  //! The options of a set as one writes them: "--chunks, --eager".
  [[nodiscard]] static std::string list(option some);
};

inline std::span<named_option const> named_option::all() noexcept {
  static constexpr named_option each[] = {
    {option::chunks, "--chunks", &schedule_choice::chunks},
    {option::stages_per_device, "--stages-per-device", &schedule_choice::stages_per_device},
    {option::group, "--group", &schedule_choice::group},
    {option::forwards, "--forwards", &schedule_choice::forwards},
    {option::chunk_counts, "--chunk-counts"},
    {option::keep, "--keep", &schedule_choice::keep},
    {option::forward_stages, "--forward-stages", &schedule_choice::forward_stages},
    {option::backward_stages, "--backward-stages", &schedule_choice::backward_stages},
    {option::memory_limit, "--memory-limit"},
    {option::eager, "--eager"},
    {option::unfused, "--unfused"},
    {option::pair_cost, "--pair-cost"},
  };
  return each;
}

inline std::string named_option::list(option some) {
  std::string text;
  for (named_option const& each : all())
    if (has(some, each.which))
      text.append(text.empty() ? "" : ", ").append(each.name);
  return text;
}

//! A cost model of any type in one type, so that every schedule is compiled once.
class any_cost {
public:
  //! Holds a copy of a cost model.
  template <class Cost>
  requires(cost_model<Cost> && !std::same_as<Cost, any_cost>)
    any_cost(Cost const& cost) // NOLINT(google-explicit-constructor): any cost model will do
      : duration_([cost](pass const& what) { return double{cost.duration(what)}; }),
        pair_([cost](pass const& first, pass const& second) {
          return pipelining::detail::pair_duration(
            cost, pipelining::detail::kinds_of_training, first, second);
        }),
        latency_(cost.latency()), groups_(pipelining::detail::groups_of(cost)),
        links_(pipelining::detail::links_of(cost).begin(),
               pipelining::detail::links_of(cost).end()) {}

  //! Time of a pass.
  [[nodiscard]] double duration(pass const& what) const { return duration_(what); }
  //! Time of a message.
  [[nodiscard]] double latency() const noexcept { return latency_; }
  //! Times of exchanges of all devices.
  [[nodiscard]] pipelining::detail::group_times groups() const noexcept { return groups_; }
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
  pipelining::detail::group_times groups_;
  std::vector<double> links_;
};

//! The traits of a schedule that programs ask for besides its options. The first ones stand in its
//! row, the others are found from the rest of the row.
struct schedule_traits {
  //! The C++ type in namespace pipelining; {chunks}, {stages}, {waves}, {group} and {limit} stand
  //! for numbers of a choice. Empty: nobody writes it down.
  std::string_view type = {};
  //! The same with eager, unequal chunks, or chunks that it has only when asked; empty: no other.
  std::string_view type_asked = {};
  //! True when gradients have the bits of a plain loop over microbatches, in all sizes: see
  //! `sums_in_order`.
  bool sums_in_order = true;
  //! True when stages are parts of layers: attention, or the rest of a layer. Such a schedule wants
  //! two stages per device for each layer.
  bool cuts_layers = false;
  //! True when devices can take over attention of each other: see `adapter::attention_exchange`.
  bool exchanges_attention = false;
  //! The schedule that has the same order where the search is left out. Empty: itself.
  std::string_view swept_like = {};
  //! The adapters with which the table of systems shows the schedule, besides none.
  adapter shown_with = adapter::none;

  //! Stages of its timetables are microbatches and their chunks groups of layers: see `by_groups`.
  bool weights_travel = false;
  //! True when stages go one way each and have unequal numbers of layers: see `cost_by_layers`.
  bool stages_go_one_way = false;
  //! True when the schedule places its stages itself, where no placement with a name has them.
  bool places_stages = false;
  //! True when the schedule has chunks even where nobody asks for them.
  bool over_chunks = false;
  //! Two devices hold each stage, and half of the microbatches go the other way.
  bool two_copies = false;
  //! Stages of a device where nobody asks for another number.
  int stages_per_device = 1;
  //! Chunks where nobody asks for another number. Schedules that exchange attention have as many as
  //! devices.
  int chunks = 1;
  //! True when the limit of memory is a member, and no part of the type.
  bool limit_in_value = false;
  //! A device has an even number of its stages: two for each layer or wave.
  bool even_stages = false;
  //! True when the number of devices must be even.
  bool even_devices = false;
  //! True when the order is searched for the costs: other costs, other orders.
  bool searched = false;
  //! Any two passes may run side by side, and not only a forward with a backward pass.
  bool any_pairs = false;
  //! True when the search can be left out: see `schedule_choice::swept`.
  bool sweeps = false;
  //! True when there is another order where activations are recomputed.
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

//! Names of rows that programs ask for by themselves: one that is misspelt does not compile.
struct names {
  static constexpr std::string_view gpipe = "gpipe";                  //!< GPipe
  static constexpr std::string_view one_f_one_b = "1f1b";             //!< 1F1B
  static constexpr std::string_view eager_one_f_one_b = "eager-1f1b"; //!< eager 1F1B
  static constexpr std::string_view interleaved = "interleaved";      //!< interleaved 1F1B
  static constexpr std::string_view breadth_first = "breadth-first";  //!< breadth-first
  static constexpr std::string_view seq1f1b = "seq1f1b";              //!< Seq1F1B
  static constexpr std::string_view chunk_flow = "chunkflow";         //!< ChunkFlow
  static constexpr std::string_view zero_bubble_h1 = "zb-h1";         //!< ZB-H1
  static constexpr std::string_view zero_bubble_h2 = "zb-h2";         //!< ZB-H2
  static constexpr std::string_view zero_bubble_auto = "zb-auto";     //!< ZB searched for
  static constexpr std::string_view v_min = "v-min";                  //!< V-Min
  static constexpr std::string_view v_half = "v-half";                //!< V-Half
  static constexpr std::string_view v_zero_bubble = "v-zb";           //!< V-ZB
  static constexpr std::string_view v_auto = "v-auto";                //!< a V searched for
  static constexpr std::string_view dual_pipe = "dualpipe";           //!< DualPipe
  static constexpr std::string_view dual_pipe_v = "dualpipe-v";       //!< DualPipeV
};

struct published_schedules;

//! All schedules, in the order in which people should read about them.
template <class Rows = published_schedules>
[[nodiscard]] std::span<named_schedule const> named_schedules();

//! The schedule of a name.
//! @throws std::invalid_argument that names the nearest ones when there is none.
template <class Rows = published_schedules>
[[nodiscard]] auto find_schedule(std::string_view name) -> named_schedule const&;

//! The C++ type of a choice without its adapter; empty where nobody writes it down.
template <class Rows = published_schedules>
[[nodiscard]] std::string written_type(schedule_choice const& choice);

//! The extents of the pipeline of a choice. A cost per stage or chunk must know them first.
//! @throws std::invalid_argument for an unknown name, an option that the schedule does not have or
//!         lacks, or extents that it cannot have.
template <class Rows = published_schedules>
[[nodiscard]] shape arrange(schedule_choice const& choice);

//! The pipeline of a choice in its adapter, without orders.
//! @pre its stages stay on their devices. @throws std::invalid_argument as `arrange` does
template <class Rows = published_schedules>
[[nodiscard]] pipeline arrange_pipeline(schedule_choice const& choice);

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
//! @param mean of a chunk on a stage. @param ratio forward work of attention over the rest of the
//! work.
template <class Rows = published_schedules>
[[nodiscard]] any_cost
cost_by_parts(schedule_choice const& choice, uniform_cost const& mean, double ratio);

//! Costs of a choice in its adapter: with offload-chunks, recomputes and copies are of as much of
//! an activation as hides under the next forward pass.
//! @param whole of whole activations. @param usual those under which that is found out
template <class Rows = published_schedules>
[[nodiscard]] any_cost
cost_in_adapter(schedule_choice const& choice, any_cost const& whole, any_cost const& usual);

namespace detail {

//! The times that a schedule of training can ask of a cost model.
inline std::vector<double> times_of(shape const& extents, any_cost const& cost) {
  pipelining::detail::group_times const groups = cost.groups();
  std::vector<double> times{cost.latency(), groups.broadcast, groups.reduce};
  times.insert(times.end(), cost.links().begin(), cost.links().end());
  for (role const is : {role::forward, role::backward, role::input, role::weights, role::again})
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        times.push_back(cost.duration(
          row_writer::make(pipelining::detail::kinds_of_training.kind_with(is), stage, 0, chunk)));
  return times;
}

} // namespace detail

//! Orders of schedules without their adapters, by the times that they were asked for. Searched
//! schedules take seconds, and most adapters do not change their times.
class made_orders {
public:
  //! The orders of a choice without the passes of its adapter.
  //! @pre the times of passes are the same for all microbatches
  //! @throws as `make_named_timetable` does
  template <class Rows = published_schedules>
  [[nodiscard]] device_orders const& get(schedule_choice choice, any_cost const& cost) {
    if (choice.adapted != adapter::recompute ||
        !find_schedule<Rows>(choice.name).traits.sees_recomputation) {
      choice.adapted = adapter::none;
      choice.adapted_stages.clear();
    }
    choice.frozen = 0; // whose passes are left out
    if (std::string_view const like = find_schedule<Rows>(choice.name).traits.swept_like;
        choice.swept && !like.empty())
      choice.name = like;
    made& one = entry(choice, detail::times_of(arrange<Rows>(choice), cost));
    std::call_once(one.once, [&] { one.orders = plain_orders<Rows>(choice, cost); });
    return one.orders;
  }

private:
  struct made {
    schedule_choice choice;
    std::vector<double> times{}; // all that the orders depend on
    device_orders orders{};
    std::once_flag once{};
  };

  made& entry(schedule_choice const& choice, std::vector<double> times) {
    std::lock_guard const lock(adding_);
    for (made& each : all_)
      if (each.choice == choice && each.times == times)
        return each;
    made& added = all_.emplace_back();
    added.choice = choice;
    added.times = std::move(times);
    return added;
  }

  std::mutex adding_;
  std::deque<made> all_; // who has been given one keeps it
};

//! The verified timetable of a choice.
//! @param made orders to look in first; null: none are kept
//! @param verifies false: only times are looked at, for one of many candidates
//! @throws std::invalid_argument as `arrange` does.
template <class Rows = published_schedules>
[[nodiscard]] dynamic_timetable make_named_timetable(schedule_choice const& choice,
                                                     any_cost const& cost,
                                                     made_orders* made = nullptr,
                                                     bool verifies = true);

//! The verified timetable of an order that was read, in the adapter of a choice.
//! @pre there is an adapter; the order is verified
//! @throws std::invalid_argument where the order cannot be in that adapter
template <class Rows = published_schedules>
[[nodiscard]] dynamic_timetable make_adapted_timetable(device_orders const& read,
                                                       schedule_choice const& choice,
                                                       any_cost const& cost);

} // namespace pipelining::inline v0_3::registry
