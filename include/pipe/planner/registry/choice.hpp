// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Choice of a schedule by name, size, options and adapter.

#include <pipe/config.hpp>

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::registry {

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
};

//! All adapters with a name.
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

//! Name of a schedule in an adapter, as reports have it: "1f1b with offload"; itself in none.
[[nodiscard]] inline std::string in_adapter(std::string schedule, adapter which) {
  for (named_adapter const& each : named_adapters)
    if (each.which == which)
      schedule.append(" with ").append(each.name);
  return schedule;
}

//! True where the vocabulary is in shards.
[[nodiscard]] constexpr bool has_shards(adapter which) noexcept {
  return has(adapter::vocabulary_1 | adapter::vocabulary_2 | adapter::vocabulary_interlaced, which);
}
//! True where weights are in shards.
[[nodiscard]] constexpr bool shards_weights(adapter which) noexcept {
  return has(adapter::sharded_weights | adapter::gathered_once, which);
}
//! True where passes of some stages wait until their weights have come.
[[nodiscard]] constexpr bool gathers_weights(adapter which) noexcept {
  return shards_weights(which) || which == adapter::weights_on_host;
}
//! True where activations move to the host and back.
[[nodiscard]] constexpr bool moves_activations(adapter which) noexcept {
  return has(adapter::offload | adapter::offload_half | adapter::offload_chunks, which);
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
  bool eager = false;                   //!< option::eager
  bool unfused = false;                 //!< option::unfused
  adapter adapted = adapter::none;      //!< one adapter
  int offloaded_stages = 0;             //!< of offload: the first stages of a device; 0: all
  bool scatter_once = false; //!< of sharded weights: whole gradients stay until a stage's last pass
  int resident = 2;          //!< of sharded weights: stages whose weights stay
  int prefetch = 1;          //!< of sharded weights: stages ahead that are gathered
  int frozen = 0;            //!< the first stages have nothing to train: see with_frozen_stages

  //! True if all members are equal.
  friend bool operator==(schedule_choice const&, schedule_choice const&) = default;
};

//! An option by the name that it has on command lines.
struct named_option {
  option which;     //!< the option
  char const* name; //!< its word
  //! True if a choice has it.
  bool (*given)(schedule_choice const&);
};

//! All options with a name.
inline constexpr named_option named_options[] = {
  {option::chunks, "--chunks", [](schedule_choice const& c) { return c.chunks.has_value(); }},
  {option::stages_per_device,
   "--stages-per-device",
   [](schedule_choice const& c) { return c.stages_per_device.has_value(); }},
  {option::group, "--group", [](schedule_choice const& c) { return c.group.has_value(); }},
  {option::forwards, "--forwards", [](schedule_choice const& c) { return c.forwards.has_value(); }},
  {option::chunk_counts,
   "--chunk-counts",
   [](schedule_choice const& c) { return !c.chunk_counts.empty(); }},
  {option::keep, "--keep", [](schedule_choice const& c) { return c.keep.has_value(); }},
  {option::forward_stages,
   "--forward-stages",
   [](schedule_choice const& c) { return c.forward_stages.has_value(); }},
  {option::backward_stages,
   "--backward-stages",
   [](schedule_choice const& c) { return c.backward_stages.has_value(); }},
  {option::memory_limit,
   "--memory-limit",
   [](schedule_choice const& c) { return c.memory_limit.has_value(); }},
  {option::eager, "--eager", [](schedule_choice const& c) { return c.eager; }},
  {option::unfused, "--unfused", [](schedule_choice const& c) { return c.unfused; }},
  // A part of the cost, not of the choice; the command line knows whether it was given.
  {option::pair_cost, "--pair-cost", [](schedule_choice const&) { return false; }},
};

//! The options of a set as one writes them: "--chunks, --eager".
[[nodiscard]] inline std::string option_names(option all) {
  std::string text;
  for (named_option const& each : named_options)
    if (has(all, each.which))
      text.append(text.empty() ? "" : ", ").append(each.name);
  return text;
}

} // namespace pipelining::inline v0_3::registry
