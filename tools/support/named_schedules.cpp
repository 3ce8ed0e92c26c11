// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How to add a schedule: see the top of named_schedules.hpp.
#include "named_schedules.hpp"

#include <pipe/planner/search/v_auto.hpp>
#include <pipe/planner/search/v_continuous.hpp>
#include <pipe/schedule/bit_pipe.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/slice_v.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/schedule/zero_bubble_interleaved.hpp>
#include <pipe/schedule/zero_bubble_v.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "made_schedules.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! Calls `use` with the schedule, or with the one that a variant of schedules holds.
template <class Schedule, class Use>
auto with(Schedule const& one, Use use) {
  if constexpr (pp::schedule<Schedule>)
    return use(one);
  else
    return std::visit(use, one);
}

//! The chunks of the microbatches in turn, from the first again where the list is shorter.
struct repeated_chunks {
  std::vector<int> of;

  [[nodiscard]] int operator()(int microbatch) const {
    return of[static_cast<std::size_t>(microbatch) % of.size()];
  }
};

//! Where a schedule has its stages, if it places them itself.
template <class Make>
constexpr auto placing() -> int (*)(schedule_choice const&, pp::shape const&, int, int) {
  if constexpr (pp::places_stages<std::invoke_result_t<Make, schedule_choice const&>>)
    return [](schedule_choice const& choice, pp::shape const& extents, int stage, int route) {
      return Make{}(choice).device_of(extents, stage, route);
    };
  return nullptr;
}

//! The traits of a row that the rest of it tells.
void find_traits(named_schedule& row) {
  schedule_traits& traits = row.traits;
  schedule_choice one;
  traits.over_chunks =
    has(row.takes, option::chunks) && row.needs == option::none && row.arrange(one).chunks > 1;
  one.devices = 2; // a size that every schedule can have
  one.microbatches = 8;
  pp::shape const extents = row.arrange(one);
  traits.two_copies = extents.where == pp::placement::bidirectional;
  traits.stages_per_device = extents.stages_per_device;
  traits.chunks = extents.chunks;
  traits.limit_in_value =
    has(row.takes, option::memory_limit) && traits.type.find("{limit}") == std::string_view::npos;
  traits.any_pairs = has(row.takes, option::unfused) && !has(row.takes, option::pair_cost);
}

template <class Make>
named_schedule named(std::string_view name,
                     std::string_view line,
                     option takes,
                     Make,
                     schedule_traits traits = {},
                     option needs = option::none) {
  using made = std::invoke_result_t<Make, schedule_choice const&>;
  named_schedule row{
    name,
    line,
    takes,
    needs,
    [](schedule_choice const& choice) {
      return with(Make{}(choice), [&choice](auto const& schedule) -> pp::shape {
        return schedule.arrange(choice.devices, choice.microbatches);
      });
    },
    [](schedule_choice const& choice, any_cost const& cost) {
      return with(Make{}(choice), [&](auto const& schedule) {
        return pp::make_orders(schedule, {choice.devices, choice.microbatches}, cost);
      });
    },
    placing<Make>(),
    std::move(traits)};
  row.traits.weights_travel = std::is_same_v<made, pp::WeiPipe>;
  row.traits.stages_go_one_way = std::is_same_v<made, pp::RoundPipe<>>;
  find_traits(row);
  return row;
}

//! The adapters that the table of systems shows of one schedule of each kind: all but those that
//! need a schedule of their own, or have nothing there to hide loads behind.
std::vector<adapter> in_turn() {
  std::vector<adapter> all;
  for (named_adapter const& each : named_adapters)
    if (each.which != adapter::weights_on_host && each.which != adapter::attention_exchange)
      all.push_back(each.which);
  return all;
}

//! One of two types, for schedules that have an option in their type.
template <class Yes, class No>
std::variant<Yes, No> either(bool condition) {
  if (condition)
    return Yes{};
  return No{};
}

std::vector<named_schedule> const& schedules() {
  static std::vector<named_schedule> const all{
    named("gpipe",
          "GPipe: all forward passes, then all backward passes; over chunks TeraPipe",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::GPipeChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          },
          {.type = "GPipe", .type_asked = "GPipeChunked<{chunks}>"}),
    named("1f1b",
          "one forward, one backward in turn (PipeDream-Flush)",
          option::none,
          [](schedule_choice const&) { return pp::OneFOneB{}; },
          {.type = "OneFOneB", .shown_with = in_turn()}),
    named("eager-1f1b",
          "1F1B with twice the warm-up, which hides messages",
          option::none,
          [](schedule_choice const&) { return pp::EagerOneFOneB{}; },
          {.type = "EagerOneFOneB"}),
    named("kfkb",
          "kFkB of Ada-Grouper: K forward, K backward in turn; groups of 2",
          option::group,
          [](schedule_choice const& c) {
            return pp::Grouped<pp::dynamic>{.group = c.group.value_or(2)};
          },
          {.type = "Grouped<{group}>"}),
    named(
      "interleaved",
      "Megatron's interleaved 1F1B; 2 stages per device, groups of P",
      option::stages_per_device | option::group,
      [](schedule_choice const& c) {
        return pp::Interleaved<pp::dynamic>{.stages_per_device = c.stages_per_device.value_or(2),
                                            .group = c.group.value_or(0)};
      },
      {.type = "Interleaved<{stages}>", .shown_with = {adapter::offload, adapter::offload_half}}),
    named("chronos",
          "ChronosPipe: two looped stages per device, three quarters of the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::ChronosPipeChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          },
          {.type = "ChronosPipeChunked<{chunks}>",
           .shown_with = {adapter::recompute_first, adapter::weights_on_host}}),
    named("hanayo",
          "Hanayo: down the devices and up again, two stages per device for each wave; 4 of them",
          option::stages_per_device,
          [](schedule_choice const& c) {
            int const held = c.stages_per_device.value_or(4);
            if (held % 2 != 0)
              throw std::invalid_argument("hanayo: a device has two stages for each wave, so "
                                          "--stages-per-device must be even, not " +
                                          std::to_string(held));
            return pp::Hanayo<>{.waves = held / 2};
          },
          {.type = "Hanayo<{waves}>"}),
    named("breadth-first",
          "all microbatches stage by stage, then back in reverse; 2 stages per device",
          option::stages_per_device,
          [](schedule_choice const& c) {
            return pp::BreadthFirst<pp::dynamic>{.stages_per_device =
                                                   c.stages_per_device.value_or(2)};
          },
          {.type = "BreadthFirst<{stages}>",
           .sums_in_order = false,
           .shown_with = {adapter::sharded_weights, adapter::gathered_once}}),
    named("helix",
          "HelixPipe: attention on other devices than its layer; 2 stages per device, groups of 1",
          option::stages_per_device | option::group,
          [](schedule_choice const& c) {
            int const held = c.stages_per_device.value_or(2);
            if (held % 2 != 0)
              throw std::invalid_argument("helix: a device has two stages for each layer, so "
                                          "--stages-per-device must be even, not " +
                                          std::to_string(held));
            return pp::HelixPipe<>{.layers_per_device = held / 2, .folds = c.group.value_or(1)};
          },
          {.sums_in_order = false, .cuts_layers = true}),
    named("wei-pipe",
          "WeiPipe: microbatches stay on their device, weights and their gradients travel; M a "
          "multiple of P",
          option::none,
          [](schedule_choice const&) { return pp::WeiPipe{}; }),
    named("round-pipe",
          "RoundPipe: devices take stages in turn, weights lie on the host; P forward, 3 P back",
          option::forward_stages | option::backward_stages,
          [](schedule_choice const& c) { return round_pipe_of(c); }),
    named("seq1f1b",
          "Seq1F1B: 1F1B over chunks of sequences; 4 chunks",
          option::chunks | option::eager,
          [](schedule_choice const& c) -> std::variant<pp::Seq1F1B<>, pp::EagerSeq1F1B<>> {
            int const chunks = c.chunks.value_or(4);
            if (c.eager)
              return pp::EagerSeq1F1B<>{.chunks = chunks};
            return pp::Seq1F1B<>{.chunks = chunks};
          },
          {.type = "Seq1F1B<{chunks}>",
           .type_asked = "EagerSeq1F1B<{chunks}>",
           .shown_with = in_turn()}),
    named("seq1f1b-interleaved",
          "interleaved 1F1B over chunks of sequences; 4 chunks, 2 stages per device",
          option::chunks | option::stages_per_device | option::group,
          [](schedule_choice const& c) {
            return pp::Seq1F1BInterleaved<>{.stages_per_device = c.stages_per_device.value_or(2),
                                            .chunks = c.chunks.value_or(4),
                                            .group = c.group.value_or(0)};
          },
          {.type = "Seq1F1BInterleaved<{stages}, {chunks}>"}),
    named("seq1f1b-zb-interleaved",
          "Seq1F1B with the split backward of ZB-H1 on interleaved stages; 4 chunks, 2 stages per "
          "device",
          option::chunks | option::stages_per_device,
          [](schedule_choice const& c) {
            return pp::Seq1F1BZeroBubbleInterleaved<>{
              .stages_per_device = c.stages_per_device.value_or(2), .chunks = c.chunks.value_or(4)};
          },
          {.type = "Seq1F1BZeroBubbleInterleaved<{stages}, {chunks}>"}),
    named("seq1f1b-zb-h1",
          "Seq1F1B with the split backward of ZB-H1, the activations of Seq1F1B; 4 chunks",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::Seq1F1BZeroBubbleH1<>{.chunks = c.chunks.value_or(4)};
          },
          {.type = "Seq1F1BZeroBubbleH1<{chunks}>"}),
    named("seq1f1b-zb-h2",
          "Seq1F1B with the split backward of ZB-H2, no bubble on the span; 4 chunks",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::Seq1F1BZeroBubbleH2<>{.chunks = c.chunks.value_or(4)};
          },
          {.type = "Seq1F1BZeroBubbleH2<{chunks}>"}),
    named("svpp",
          "SVPP of MEPipe: chunks and split backward; 4 chunks, 2 stages per device",
          option::chunks | option::stages_per_device | option::forwards,
          [](schedule_choice const& c) {
            return pp::SVPP<>{.stages_per_device = c.stages_per_device.value_or(2),
                              .chunks = c.chunks.value_or(4),
                              .forwards = c.forwards.value_or(0)};
          },
          {.type = "SVPP<{stages}, {chunks}>"}),
    named("slice-v",
          "SliceV: two stages per device in a V over chunks, no bubble on the span; 4 chunks",
          option::chunks | option::chunk_counts,
          [](schedule_choice const& c)
            -> std::variant<pp::SliceV<>, pp::RaggedSliceV<repeated_chunks>> {
            if (!c.chunk_counts.empty())
              return pp::RaggedSliceV<repeated_chunks>{{c.chunk_counts}};
            return pp::SliceV<>{{c.chunks.value_or(4)}};
          },
          {.type = "SliceV<{chunks}>", .type_asked = "RaggedSliceV<pipelining::listed_chunks>"}),
    named("slimpipe",
          "SlimPipe: little more than one microbatch on a device; P chunks, 2 stages per device",
          option::chunks | option::stages_per_device,
          [](schedule_choice const& c) { return slim_pipe_of(c); },
          {.type = "SlimPipe<{chunks}, {stages}>", .exchanges_attention = true}),
    named("chunkflow",
          "ChunkFlow: 1F1B over sequences of unequal numbers of chunks; 4 chunks each, all kept",
          option::chunks | option::chunk_counts | option::keep,
          [](schedule_choice const& c)
            -> std::variant<pp::ChunkFlow<pp::equal_chunks<>>, pp::ChunkFlow<repeated_chunks>> {
            int const chunks = c.chunks.value_or(4);
            if (!c.chunk_counts.empty())
              return pp::ChunkFlow<repeated_chunks>{
                .counts = {c.chunk_counts},
                .keep = c.keep.value_or(std::numeric_limits<std::uint16_t>::max())};
            return pp::ChunkFlow<pp::equal_chunks<>>{.counts = {chunks},
                                                     .keep = c.keep.value_or(chunks)};
          },
          {.type_asked = "ChunkFlow<>"}),
    named("zb-h1",
          "ZB-H1: split backward, the activations of 1F1B and as many weight inputs",
          option::none,
          [](schedule_choice const&) { return pp::ZeroBubbleH1{}; },
          {.type = "ZeroBubbleH1", .shown_with = {adapter::vocabulary_1, adapter::vocabulary_2}}),
    named("zb-h2",
          "ZB-H2: split backward, about twice of both, no bubble on the span",
          option::none,
          [](schedule_choice const&) { return pp::ZeroBubbleH2{}; },
          {.type = "ZeroBubbleH2"}),
    named("zb-interleaved",
          "ZB-H1 over interleaved stages; 2 stages per device",
          option::stages_per_device,
          [](schedule_choice const& c) {
            return pp::ZeroBubbleInterleaved<pp::dynamic>{.stages_per_device =
                                                            c.stages_per_device.value_or(2)};
          },
          {.type = "ZeroBubbleInterleaved<{stages}>"}),
    named("zb-auto",
          "split backward, ordered for the costs under a memory limit; P microbatches (ZB-1P)",
          option::memory_limit,
          [](schedule_choice const& c) {
            return pp::ZeroBubbleAuto<pp::dynamic>{
              .memory_limit = static_cast<int>(c.memory_limit.value_or(c.devices))};
          },
          {.type = "ZeroBubbleAuto<>"}),
    named("v-min",
          "two stages per device in a V, a third of the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::VMinChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          },
          {.type = "VShape<pipelining::v_min_offsets, {chunks}>"}),
    named("v-half",
          "two stages per device in a V, half the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::VShape<pp::v_half_offsets, pp::dynamic>{.chunks = c.chunks.value_or(1)};
          },
          {.type = "VShape<pipelining::v_half_offsets, {chunks}>", .shown_with = in_turn()}),
    named("v-zb",
          "two stages per device in a V, the activations of 1F1B, no bubble on the span",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::VShape<pp::v_zero_bubble_offsets, pp::dynamic>{.chunks =
                                                                        c.chunks.value_or(1)};
          },
          {.type = "VShape<pipelining::v_zero_bubble_offsets, {chunks}>"}),
    named("v-1f1b",
          "1F1B on a V, backward in one piece, two thirds of the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::OneFOneBVChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          },
          {.type = "OneFOneBVChunked<{chunks}>"}),
    named(
      "v-auto",
      "the shortest V shape whose devices hold at most X activations of a stage",
      option::chunks | option::memory_limit,
      [](schedule_choice const& c) {
        return pp::VAuto<pp::dynamic, pp::dynamic>{.memory_limit = c.memory_limit.value_or(0),
                                                   .chunks = c.chunks.value_or(1)};
      },
      {.type = "VAuto<{limit}, {chunks}>"},
      option::memory_limit),
    named(
      "v-continuous",
      "v-auto with a start from a block in real times, for tight limits; takes longer",
      option::chunks | option::memory_limit,
      [](schedule_choice const& c) {
        return pp::VContinuous{.memory_limit = c.memory_limit.value_or(0),
                               .chunks = c.chunks.value_or(1)};
      },
      {.type = "VContinuous"},
      option::memory_limit),
    named("zb-v",
          "ZB-V: the hand-made zero-bubble order on a V, improved for the costs",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::ZeroBubbleVChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          },
          {.type = "ZeroBubbleVChunked<{chunks}>"}),
    named(
      "chimera",
      "Chimera: microbatches from both ends, each way in the other's bubble; 1 stage per device",
      option::stages_per_device,
      [](schedule_choice const& c) {
        return pp::ChimeraWaves<>{.stages_per_device = c.stages_per_device.value_or(1)};
      },
      {.type = "ChimeraWaves<{stages}>", .sums_in_order = false}),
    named("bitpipe",
          "BitPipe: microbatches from both ends of a V, for as many microbatches as devices",
          option::none,
          [](schedule_choice const&) { return pp::BitPipe{}; },
          {.type = "BitPipe", .sums_in_order = false}),
    named("dualpipe",
          "DualPipe: microbatches from both ends, forward beside backward",
          option::unfused | option::pair_cost,
          [](schedule_choice const& c) {
            return either<pp::DualPipe<pp::pairs::in_turn>, pp::DualPipe<pp::pairs::overlapped>>(
              c.unfused);
          },
          {.type = "DualPipe<>", .sums_in_order = false}),
    named("dualpipe-v",
          "DualPipe folded into a V, weights held once",
          option::unfused | option::pair_cost,
          [](schedule_choice const& c) {
            return either<pp::DualPipeV<pp::pairs::in_turn>, pp::DualPipeV<pp::pairs::overlapped>>(
              c.unfused);
          },
          {.type = "DualPipeV<>"}),
    named("stp",
          "STP: a V of braids that hide all-reduces; at least 3 P - 1 microbatches",
          option::unfused,
          [](schedule_choice const& c) {
            return either<pp::STP<pp::pairs::in_turn>, pp::STP<pp::pairs::overlapped>>(c.unfused);
          },
          {.type = "STP<>", .sums_in_order = false}),
  };
  return all;
}

struct option_name {
  option which;
  char const* name;
  bool (*given)(schedule_choice const&);
};

constexpr option_name option_list[] = {
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

} // namespace

pp::SlimPipe<pp::dynamic, pp::dynamic> slim_pipe_of(schedule_choice const& c) {
  return {.chunks = c.chunks.value_or(c.devices),
          .stages_per_device = c.stages_per_device.value_or(2)};
}

pp::RoundPipe<> round_pipe_of(schedule_choice const& c) {
  pp::RoundPipe<> const made{.forward_stages = c.forward_stages.value_or(c.devices),
                             .backward_stages = c.backward_stages.value_or(3 * c.devices)};
  if (made.forward_stages >= made.backward_stages)
    throw std::invalid_argument("round-pipe: " + std::to_string(made.backward_stages) +
                                " stages that go back have a layer each, and those that go forward "
                                "share all but the last, so at most " +
                                std::to_string(made.backward_stages - 1) + " go forward, not " +
                                std::to_string(made.forward_stages));
  return made;
}

std::span<named_schedule const> named_schedules() {
  return schedules();
}

std::string written_type(schedule_choice const& choice) {
  named_schedule const& schedule = find_schedule(choice.name);
  schedule_traits const& traits = schedule.traits;
  bool const asked = choice.eager || !choice.chunk_counts.empty() ||
                     (choice.chunks.has_value() && !traits.over_chunks);
  std::string type(asked && !traits.type_asked.empty() ? traits.type_asked : traits.type);
  if (type.find('{') == std::string::npos)
    return type;
  // A type can be written of any size, also of one that the schedule refuses: nothing is arranged.
  int const chunks =
    choice.chunks.value_or(traits.exchanges_attention ? choice.devices : traits.chunks);
  int const stages = choice.stages_per_device.value_or(traits.stages_per_device);
  struct {
    std::string_view word;
    int number;
  } const numbers[] = {{"{chunks}", chunks},
                       {"{stages}", stages},
                       {"{waves}", stages / 2},
                       {"{group}", choice.group.value_or(2)},
                       {"{limit}", static_cast<int>(choice.memory_limit.value_or(0))}};
  for (auto const& each : numbers)
    if (std::size_t const at = type.find(each.word); at != std::string::npos)
      type.replace(at, each.word.size(), std::to_string(each.number));
  return type;
}

std::string option_names(option all) {
  std::string text;
  for (option_name const& each : option_list)
    if (has(all, each.which))
      text += (text.empty() ? "" : ", ") + std::string(each.name);
  return text;
}

named_schedule const& find_schedule(std::string_view name) {
  std::vector<std::string_view> names;
  for (named_schedule const& each : schedules()) {
    if (each.name == name)
      return each;
    names.push_back(each.name);
  }
  std::string const near = near_names(name, names);
  throw std::invalid_argument("there is no schedule " + quoted(name) +
                              (near.empty() ? "" : "; did you mean " + near + "?"));
}

void check_options(named_schedule const& schedule, schedule_choice const& choice) {
  for (option_name const& each : option_list) {
    // One chunk is what a schedule without chunks has.
    bool const harmless = each.which == option::chunks && choice.chunks == 1;
    bool const given = each.given(choice);
    if (given && !has(schedule.takes, each.which) && !harmless)
      throw std::invalid_argument(std::string(schedule.name) + " does not have the option " +
                                  each.name);
    if (!given && has(schedule.needs, each.which))
      throw std::invalid_argument(std::string(schedule.name) + " needs the option " + each.name);
  }
  if (choice.adapted != adapter::none &&
      (has(schedule.takes, option::keep) || !choice.chunk_counts.empty()))
    throw std::invalid_argument(
      std::string(schedule.name) +
      " with unequal numbers of chunks, or with recomputation of its own, "
      "goes into no adapter");
  if (choice.adapted == adapter::attention_exchange && !schedule.traits.exchanges_attention)
    throw std::invalid_argument(
      "attention-exchange is for slimpipe alone, whose devices run as many "
      "chunks at the same time as there are devices, and not for " +
      std::string(schedule.name));
  if (choice.adapted != adapter::none && schedule.traits.weights_travel)
    throw std::invalid_argument(std::string(schedule.name) +
                                " goes into no adapter: what its devices keep is one microbatch, "
                                "and its weights are messages");
  if (choice.adapted != adapter::none && schedule.traits.stages_go_one_way &&
      !shards_weights(choice.adapted))
    throw std::invalid_argument(std::string(schedule.name) +
                                " goes into sharded-weights and gathered-once alone, which load "
                                "weights from the host: its devices keep no activations, and the "
                                "vocabulary is in its stages");
}

} // namespace examples
