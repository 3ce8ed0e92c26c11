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

template <class Make>
named_schedule named(
  std::string_view name, std::string_view line, option takes, Make, option needs = option::none) {
  return {name,
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
          std::is_same_v<std::invoke_result_t<Make, schedule_choice const&>, pp::WeiPipe>,
          std::is_same_v<std::invoke_result_t<Make, schedule_choice const&>, pp::RoundPipe<>>};
}

//! A schedule whose gradients add up in another order than in a plain loop.
named_schedule summed_otherwise(named_schedule one) {
  one.sums_in_order = false;
  return one;
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
          }),
    named("1f1b",
          "one forward, one backward in turn (PipeDream-Flush)",
          option::none,
          [](schedule_choice const&) { return pp::OneFOneB{}; }),
    named("eager-1f1b",
          "1F1B with twice the warm-up, which hides messages",
          option::none,
          [](schedule_choice const&) { return pp::EagerOneFOneB{}; }),
    named("kfkb",
          "kFkB of Ada-Grouper: K forward, K backward in turn; groups of 2",
          option::group,
          [](schedule_choice const& c) {
            return pp::Grouped<pp::dynamic>{.group = c.group.value_or(2)};
          }),
    named("interleaved",
          "Megatron's interleaved 1F1B; 2 stages per device, groups of P",
          option::stages_per_device | option::group,
          [](schedule_choice const& c) {
            return pp::Interleaved<pp::dynamic>{
              .stages_per_device = c.stages_per_device.value_or(2), .group = c.group.value_or(0)};
          }),
    named("chronos",
          "ChronosPipe: two looped stages per device, three quarters of the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::ChronosPipeChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          }),
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
          }),
    summed_otherwise(named(
      "breadth-first",
      "all microbatches stage by stage, then back in reverse; 2 stages per device",
      option::stages_per_device,
      [](schedule_choice const& c) {
        return pp::BreadthFirst<pp::dynamic>{.stages_per_device = c.stages_per_device.value_or(2)};
      })),
    summed_otherwise(named(
      "helix",
      "HelixPipe: attention on other devices than its layer; 2 stages per device, groups of 1",
      option::stages_per_device | option::group,
      [](schedule_choice const& c) {
        int const held = c.stages_per_device.value_or(2);
        if (held % 2 != 0)
          throw std::invalid_argument("helix: a device has two stages for each layer, so "
                                      "--stages-per-device must be even, not " +
                                      std::to_string(held));
        return pp::HelixPipe<>{.layers_per_device = held / 2, .folds = c.group.value_or(1)};
      })),
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
          }),
    named("seq1f1b-interleaved",
          "interleaved 1F1B over chunks of sequences; 4 chunks, 2 stages per device",
          option::chunks | option::stages_per_device | option::group,
          [](schedule_choice const& c) {
            return pp::Seq1F1BInterleaved<>{.stages_per_device = c.stages_per_device.value_or(2),
                                            .chunks = c.chunks.value_or(4),
                                            .group = c.group.value_or(0)};
          }),
    named("seq1f1b-zb-interleaved",
          "Seq1F1B with the split backward of ZB-H1 on interleaved stages; 4 chunks, 2 stages per "
          "device",
          option::chunks | option::stages_per_device,
          [](schedule_choice const& c) {
            return pp::Seq1F1BZeroBubbleInterleaved<>{
              .stages_per_device = c.stages_per_device.value_or(2), .chunks = c.chunks.value_or(4)};
          }),
    named("seq1f1b-zb-h1",
          "Seq1F1B with the split backward of ZB-H1, the activations of Seq1F1B; 4 chunks",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::Seq1F1BZeroBubbleH1<>{.chunks = c.chunks.value_or(4)};
          }),
    named("seq1f1b-zb-h2",
          "Seq1F1B with the split backward of ZB-H2, no bubble on the span; 4 chunks",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::Seq1F1BZeroBubbleH2<>{.chunks = c.chunks.value_or(4)};
          }),
    named("svpp",
          "SVPP of MEPipe: chunks and split backward; 4 chunks, 2 stages per device",
          option::chunks | option::stages_per_device | option::forwards,
          [](schedule_choice const& c) {
            return pp::SVPP<>{.stages_per_device = c.stages_per_device.value_or(2),
                              .chunks = c.chunks.value_or(4),
                              .forwards = c.forwards.value_or(0)};
          }),
    named("slice-v",
          "SliceV: two stages per device in a V over chunks, no bubble on the span; 4 chunks",
          option::chunks | option::chunk_counts,
          [](schedule_choice const& c)
            -> std::variant<pp::SliceV<>, pp::RaggedSliceV<repeated_chunks>> {
            if (!c.chunk_counts.empty())
              return pp::RaggedSliceV<repeated_chunks>{{c.chunk_counts}};
            return pp::SliceV<>{{c.chunks.value_or(4)}};
          }),
    named("slimpipe",
          "SlimPipe: little more than one microbatch on a device; P chunks, 2 stages per device",
          option::chunks | option::stages_per_device,
          [](schedule_choice const& c) { return slim_pipe_of(c); }),
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
          }),
    named("zb-h1",
          "ZB-H1: split backward, the activations of 1F1B and as many weight inputs",
          option::none,
          [](schedule_choice const&) { return pp::ZeroBubbleH1{}; }),
    named("zb-h2",
          "ZB-H2: split backward, about twice of both, no bubble on the span",
          option::none,
          [](schedule_choice const&) { return pp::ZeroBubbleH2{}; }),
    named("zb-interleaved",
          "ZB-H1 over interleaved stages; 2 stages per device",
          option::stages_per_device,
          [](schedule_choice const& c) {
            return pp::ZeroBubbleInterleaved<pp::dynamic>{.stages_per_device =
                                                            c.stages_per_device.value_or(2)};
          }),
    named("zb-auto",
          "split backward, ordered for the costs under a memory limit; P microbatches (ZB-1P)",
          option::memory_limit,
          [](schedule_choice const& c) {
            return pp::ZeroBubbleAuto<pp::dynamic>{
              .memory_limit = static_cast<int>(c.memory_limit.value_or(c.devices))};
          }),
    named("v-min",
          "two stages per device in a V, a third of the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::VMinChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          }),
    named("v-half",
          "two stages per device in a V, half the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::VShape<pp::v_half_offsets, pp::dynamic>{.chunks = c.chunks.value_or(1)};
          }),
    named("v-zb",
          "two stages per device in a V, the activations of 1F1B, no bubble on the span",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::VShape<pp::v_zero_bubble_offsets, pp::dynamic>{.chunks =
                                                                        c.chunks.value_or(1)};
          }),
    named("v-1f1b",
          "1F1B on a V, backward in one piece, two thirds of the activations of 1F1B",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::OneFOneBVChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          }),
    named(
      "v-auto",
      "the shortest V shape whose devices hold at most X activations of a stage",
      option::chunks | option::memory_limit,
      [](schedule_choice const& c) {
        return pp::VAuto<pp::dynamic, pp::dynamic>{.memory_limit = c.memory_limit.value_or(0),
                                                   .chunks = c.chunks.value_or(1)};
      },
      option::memory_limit),
    named(
      "v-continuous",
      "v-auto with a start from a block in real times, for tight limits; takes longer",
      option::chunks | option::memory_limit,
      [](schedule_choice const& c) {
        return pp::VContinuous{.memory_limit = c.memory_limit.value_or(0),
                               .chunks = c.chunks.value_or(1)};
      },
      option::memory_limit),
    named("zb-v",
          "ZB-V: the hand-made zero-bubble order on a V, improved for the costs",
          option::chunks,
          [](schedule_choice const& c) {
            return pp::ZeroBubbleVChunked<pp::dynamic>{.chunks = c.chunks.value_or(1)};
          }),
    summed_otherwise(named(
      "chimera",
      "Chimera: microbatches from both ends, each way in the other's bubble; 1 stage per device",
      option::stages_per_device,
      [](schedule_choice const& c) {
        return pp::ChimeraWaves<>{.stages_per_device = c.stages_per_device.value_or(1)};
      })),
    summed_otherwise(
      named("bitpipe",
            "BitPipe: microbatches from both ends of a V, for as many microbatches as devices",
            option::none,
            [](schedule_choice const&) { return pp::BitPipe{}; })),
    summed_otherwise(
      named("dualpipe",
            "DualPipe: microbatches from both ends, forward beside backward",
            option::unfused | option::pair_cost,
            [](schedule_choice const& c) {
              return either<pp::DualPipe<pp::pairs::in_turn>, pp::DualPipe<pp::pairs::overlapped>>(
                c.unfused);
            })),
    named("dualpipe-v",
          "DualPipe folded into a V, weights held once",
          option::unfused | option::pair_cost,
          [](schedule_choice const& c) {
            return either<pp::DualPipeV<pp::pairs::in_turn>, pp::DualPipeV<pp::pairs::overlapped>>(
              c.unfused);
          }),
    summed_otherwise(
      named("stp",
            "STP: a V of braids that hide all-reduces; at least 3 P - 1 microbatches",
            option::unfused,
            [](schedule_choice const& c) {
              return either<pp::STP<pp::pairs::in_turn>, pp::STP<pp::pairs::overlapped>>(c.unfused);
            })),
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

bool is_over_chunks(named_schedule const& schedule) {
  schedule_choice one;
  one.name = schedule.name;
  return has(schedule.takes, option::chunks) && schedule.needs == option::none &&
         schedule.arrange(one).chunks > 1;
}

bool cuts_layers(named_schedule const& schedule) {
  return schedule.name == "helix";
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
  if (choice.adapted == adapter::attention_exchange && schedule.name != "slimpipe")
    throw std::invalid_argument(
      "attention-exchange is for slimpipe alone, whose devices run as many "
      "chunks at the same time as there are devices, and not for " +
      std::string(schedule.name));
  if (choice.adapted != adapter::none && schedule.weights_travel)
    throw std::invalid_argument(std::string(schedule.name) +
                                " goes into no adapter: what its devices keep is one microbatch, "
                                "and its weights are messages");
  if (choice.adapted != adapter::none && schedule.stages_go_one_way &&
      !shards_weights(choice.adapted))
    throw std::invalid_argument(std::string(schedule.name) +
                                " goes into sharded-weights and gathered-once alone, which load "
                                "weights from the host: its devices keep no activations, and the "
                                "vocabulary is in its stages");
}

} // namespace examples
