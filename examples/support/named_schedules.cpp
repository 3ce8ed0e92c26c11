// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How to add a schedule: see the top of named_schedules.hpp.
#include "named_schedules.hpp"

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
#include <pipe/schedule/slim_pipe_exchange.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/schedule/with_recompute.hpp>
#include <pipe/schedule/with_sharded_weights.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/schedule/zero_bubble_interleaved.hpp>
#include <pipe/schedule/zero_bubble_v.hpp>
#include <pipe/search/offload_rules.hpp>
#include <pipe/search/v_auto.hpp>
#include <pipe/search/v_continuous.hpp>
#include <pipe/search/with_offload.hpp>
#include <pipe/search/with_vocabulary.hpp>
#include <pipe/timetable/attention_cost.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/partial_cost.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "made_orders.hpp"

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

//! One of two types, for schedules that have an option in their type.
template <class Yes, class No>
std::variant<Yes, No> either(bool condition) {
  if (condition)
    return Yes{};
  return No{};
}

pp::SlimPipe<pp::dynamic, pp::dynamic> slim_pipe_of(schedule_choice const& c) {
  return {.chunks = c.chunks.value_or(c.devices),
          .stages_per_device = c.stages_per_device.value_or(2)};
}

using slim_pipe_exchange = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

//! With a layer in every stage that goes back: P of them have the forward passes of all layers but
//! the last in equal time, where a backward pass takes twice a forward pass.
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

std::vector<named_schedule> const& schedules() {
  static std::vector<named_schedule> const all{
    named("gpipe",
          "GPipe: all forward passes, then all backward passes",
          option::none,
          [](schedule_choice const&) { return pp::GPipe{}; }),
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
    named("breadth-first",
          "all microbatches stage by stage, then back in reverse; 2 stages per device",
          option::stages_per_device,
          [](schedule_choice const& c) {
            return pp::BreadthFirst<pp::dynamic>{.stages_per_device =
                                                   c.stages_per_device.value_or(2)};
          }),
    named(
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
      }),
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
    named(
      "chimera",
      "Chimera: microbatches from both ends, each way in the other's bubble; 1 stage per device",
      option::stages_per_device,
      [](schedule_choice const& c) {
        return pp::ChimeraWaves<>{.stages_per_device = c.stages_per_device.value_or(1)};
      }),
    named("bitpipe",
          "BitPipe: microbatches from both ends of a V, for as many microbatches as devices",
          option::none,
          [](schedule_choice const&) { return pp::BitPipe{}; }),
    named("dualpipe",
          "DualPipe: microbatches from both ends, forward beside backward",
          option::unfused | option::pair_cost,
          [](schedule_choice const& c) {
            return either<pp::DualPipe<pp::pairs::in_turn>, pp::DualPipe<pp::pairs::overlapped>>(
              c.unfused);
          }),
    named("dualpipe-v",
          "DualPipe folded into a V, weights held once",
          option::unfused | option::pair_cost,
          [](schedule_choice const& c) {
            return either<pp::DualPipeV<pp::pairs::in_turn>, pp::DualPipeV<pp::pairs::overlapped>>(
              c.unfused);
          }),
    named("stp",
          "STP: a V of braids that hide all-reduces; at least 3 P - 1 microbatches",
          option::unfused,
          [](schedule_choice const& c) {
            return either<pp::STP<pp::pairs::in_turn>, pp::STP<pp::pairs::overlapped>>(c.unfused);
          }),
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
    throw std::invalid_argument(std::string(schedule.name) +
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

//! The orders of a choice without its adapter.
pp::device_orders
plain_orders(schedule_choice const& choice, any_cost const& cost, made_orders* made) {
  return made == nullptr ? find_schedule(choice.name).orders(choice, cost)
                         : made->get(choice, cost);
}

//! A schedule of any name as one type, so that adapters are compiled once.
struct schedule_of_name {
  schedule_choice const* choice = nullptr;
  made_orders* made = nullptr;

  [[nodiscard]] pp::shape arrange(int, int) const {
    return find_schedule(choice->name).arrange(*choice);
  }
  template <pp::cost_model Cost>
  void generate(pp::shape const&, Cost const& cost, pp::row_writer* rows) const {
    pp::device_orders const orders = plain_orders(*choice, cost, made);
    for (int device = 0; device < choice->devices; ++device)
      for (int i = orders.offsets[static_cast<std::size_t>(device)];
           i < orders.offsets[static_cast<std::size_t>(device) + 1];
           ++i)
        rows[device].push(orders.passes[static_cast<std::size_t>(i)]);
  }
};

//! The same for schedules that place their stages themselves.
struct placed_schedule_of_name : schedule_of_name {
  [[nodiscard]] int device_of(pp::shape const& extents, int stage, int route) const {
    return find_schedule(choice->name).device_of(*choice, extents, stage, route);
  }
};

//! And for those whose stages go one way.
struct one_way_schedule_of_name : placed_schedule_of_name {
  static constexpr pp::flow declared = pp::round_training;
};

//! Calls `use` with a schedule whose weights are in shards, as the choice says.
template <class Named, class Use>
auto with_shared_weights(Named const& named, schedule_choice const& choice, Use use) {
  return use(pp::with_sharded_weights<Named>{named,
                                             choice.adapted == adapter::gathered_once
                                               ? pp::gathered_once
                                               : pp::reshard{.scatter_once = choice.scatter_once}});
}

//! Calls `use` with a schedule in the adapter of a choice for less memory.
//! @pre it is one of these
template <class Named, class Use>
auto with_less_memory(Named const& named, schedule_choice const& choice, Use use) {
  switch (choice.adapted) {
  case adapter::recompute:
    if (cuts_layers(find_schedule(choice.name))) // as in the paper
      return use(pp::with_recompute<Named, pp::recompute_around_attention>{named, {}});
    return use(pp::with_recompute<Named>{named, {}});
  case adapter::recompute_first:
    return use(pp::with_recompute<Named, pp::recompute_first_stages>{named, {}});
  case adapter::offload_chunks: return use(pp::with_offload<Named, pp::offload_chunks>{named, {}});
  case adapter::weights_on_host:
    return use(pp::with_sharded_weights<Named, pp::weights_on_host>{named, {}});
  case adapter::sharded_weights:
  case adapter::gathered_once: return with_shared_weights(named, choice, use);
  default: break;
  }
  pp::offload_in_slots rule;
  if (choice.adapted == adapter::offload_half)
    rule = pp::offload_half;
  rule.stages = choice.offloaded_stages;
  return use(pp::with_offload<Named>{named, rule});
}

//! Calls `use` with the schedule of a choice in its adapter.
//! @pre there is one
template <class Use>
auto with_adapted(schedule_choice const& choice, Use use, made_orders* made = nullptr) {
  if (choice.adapted == adapter::attention_exchange)
    return use(slim_pipe_exchange{slim_pipe_of(choice), {}});
  schedule_of_name const named{&choice, made};
  if (find_schedule(choice.name).stages_go_one_way)
    return with_shared_weights(one_way_schedule_of_name{{named}}, choice, use);
  if (!has_shards(choice.adapted))
    return find_schedule(choice.name).device_of == nullptr
             ? with_less_memory(named, choice, use)
             : with_less_memory(placed_schedule_of_name{named}, choice, use);
  auto const with_shards = [&]<int Barriers>(std::integral_constant<int, Barriers>) {
    return choice.name == "1f1b" // has an order of its own
             ? use(pp::with_vocabulary<pp::OneFOneB, Barriers>{})
             : use(pp::with_vocabulary<schedule_of_name, Barriers>{named});
  };
  switch (choice.adapted) {
  case adapter::vocabulary_interlaced:
    return with_shards(std::integral_constant<int, pp::interlaced>{});
  case adapter::vocabulary_1: return with_shards(std::integral_constant<int, 1>{});
  default: return with_shards(std::integral_constant<int, 2>{});
  }
}

pp::device_orders
orders_of(schedule_choice const& choice, any_cost const& cost, made_orders* made) {
  if (choice.adapted == adapter::none)
    return plain_orders(choice, cost, made);
  return with_adapted(
    choice,
    [&](auto const& schedule) {
      return pp::make_orders(schedule, {choice.devices, choice.microbatches}, cost);
    },
    made);
}

//! With groups of layers as stages, where microbatches were; all on the device of the microbatch.
pp::shape groups_as_stages(pp::shape const& extents) {
  return {.devices = extents.devices,
          .microbatches = pp::stages(extents),
          .where = pp::placement::custom,
          .custom_routes = extents.devices};
}

//! With layers as stages.
pp::shape layers_as_stages(schedule_choice const& choice) {
  int const layers = round_pipe_of(choice).backward_stages;
  return {.devices = choice.devices,
          .microbatches = choice.microbatches,
          .stages_per_device = layers / choice.devices,
          .where = pp::placement::custom,
          .extra_stages = layers % choice.devices};
}

struct layer_sums {
  any_cost of;
  int forward_stages;
  int layers;

  //! The first of the layers of a stage that goes forward: behind the last one, the last layer.
  [[nodiscard]] int first_layer(int stage) const { return stage * (layers - 1) / forward_stages; }
  [[nodiscard]] double duration(pp::pass const& what) const {
    auto const time = [&](pp::pass_kind kind, int layer) {
      return of.duration(pp::row_writer::make(kind, layer, what.microbatch));
    };
    if (what.stage >= forward_stages) {
      int const layer = forward_stages + layers - 1 - what.stage;
      bool const again = what.kind == pp::pass_kind::backward;
      return time(what.kind, layer) + (again ? time(pp::pass_kind::forward, layer) : 0);
    }
    double sum = 0;
    for (int layer = first_layer(what.stage); layer < first_layer(what.stage + 1); ++layer)
      sum += time(what.kind, layer);
    return sum;
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return of.links(); }
};

struct group_cost {
  any_cost of;

  [[nodiscard]] double duration(pp::pass const& what) const {
    return of.duration(pp::row_writer::make(what.kind, what.chunk, what.stage));
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return of.links(); }
};

//! Insertions, deletions, replacements and swaps of neighbours that make one text the other.
std::size_t edits(std::string_view a, std::string_view b) {
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

} // namespace

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

std::string quoted(std::string_view word) {
  std::string text = "'" + std::string(word.substr(0, 60)) + (word.size() > 60 ? "...'" : "'");
  std::replace_if(
    text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return text;
}

std::string option_names(option all) {
  std::string text;
  for (option_name const& each : option_list)
    if (has(all, each.which))
      text += (text.empty() ? "" : ", ") + std::string(each.name);
  return text;
}

std::string near_names(std::string_view name, std::span<std::string_view const> all) {
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
    std::size_t const distance = edits(name, other);
    if (begins_alike || (distance < shorter && distance <= std::max<std::size_t>(2, shorter / 3)))
      found.emplace_back(distance, other);
  }
  std::stable_sort(
    found.begin(), found.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
  std::string text;
  for (std::size_t i = 0; i < found.size() && i < 3; ++i)
    text += (i == 0                                            ? ""
             : i + 1 == std::min<std::size_t>(found.size(), 3) ? " or "
                                                               : ", ") +
            std::string(found[i].second);
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

pp::shape arrange(schedule_choice const& choice) {
  named_schedule const& schedule = find_schedule(choice.name);
  check_options(schedule, choice);
  pp::check_extents({.devices = choice.devices, .microbatches = choice.microbatches});
  pp::shape const extents =
    choice.adapted == adapter::none
      ? schedule.arrange(choice)
      : with_adapted(choice, [&choice](auto const& adapted) -> pp::shape {
          return adapted.arrange(choice.devices, choice.microbatches);
        });
  pp::check_extents(extents);
  return extents;
}

pp::shape shown_extents(schedule_choice const& choice) {
  pp::shape const extents = arrange(choice);
  named_schedule const& schedule = find_schedule(choice.name);
  return schedule.weights_travel      ? groups_as_stages(extents)
         : schedule.stages_go_one_way ? layers_as_stages(choice)
                                      : extents;
}

pp::dynamic_timetable by_groups(pp::dynamic_timetable table) {
  table.extents = groups_as_stages(table.extents);
  for (pp::pass& each : table.passes)
    each = pp::row_writer::make(each.kind, each.chunk, each.stage);
  table.tables = {};
  for (int i = 0; i < table.extents.devices * table.extents.devices; ++i)
    table.tables.holders.push_back(static_cast<std::uint16_t>(i / table.extents.devices));
  return table;
}

any_cost cost_by_groups(any_cost const& cost) {
  return group_cost{cost};
}

any_cost cost_by_layers(schedule_choice const& choice, any_cost const& cost) {
  pp::RoundPipe<> const made = round_pipe_of(choice);
  return layer_sums{cost, made.forward_stages, made.backward_stages};
}

any_cost cost_by_parts(schedule_choice const& choice, pp::uniform_cost const& mean, double ratio) {
  slim_pipe_exchange const made{slim_pipe_of(choice), {}};
  pp::shape const extents = arrange(choice);
  double const keys = made.inside(extents).chunks / 2.0; // of a chunk, the mean
  pp::uniform_cost linear = mean;
  linear.forward /= 1 + ratio;
  linear.backward_input /= 1 + 2.5 * ratio;
  return pp::attention_part_cost<slim_pipe_exchange>{made,
                                                     extents,
                                                     linear,
                                                     (mean.forward - linear.forward) / keys,
                                                     (mean.backward_input - linear.backward_input) /
                                                       keys};
}

any_cost
cost_in_adapter(schedule_choice const& choice, any_cost const& whole, any_cost const& usual) {
  if (choice.adapted != adapter::offload_chunks)
    return whole;
  using share = pp::hidden_share<any_cost>;
  return pp::partial_cost<any_cost, share>{whole, share{usual, arrange(choice).chunks}};
}

pp::dynamic_timetable
make_named_timetable(schedule_choice const& choice, any_cost const& whole, made_orders* made) {
  any_cost const cost = cost_in_adapter(choice, whole, whole);
  pp::dynamic_timetable table = pp::simulate(orders_of(choice, cost, made), cost);
  if (pp::report const verdict = pp::verify(table); !verdict)
    throw std::invalid_argument(pp::describe(verdict, table.extents.chunks > 1));
  return table;
}

} // namespace examples
