// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Rows of the registry: the schedules of the library by name.
//!
//! A schedule is added here, after its header:
//!
//!   named("interleaved", "Megatron's interleaved 1F1B; 2 stages per device, groups of P",
//!         option::stages_per_device | option::group,
//!         detail::options_over(Interleaved<dynamic>{.stages_per_device = 2, .group = 0}),
//!         {.type = "Interleaved<{stages}>"}),
//!
//! A function makes the schedule from a choice. The schedule may be any type with the concept
//! `schedule`, or a variant of them. Defaults of options belong into the line of text, too.
//! After the function stand the traits that no other part of the row tells, and then the options
//! without which the schedule cannot be made. All else follows from the row: the command line,
//! --list, --help, errors, the tests over all names. Programs ask for a trait where they mean one,
//! and not for a name.

#include <pipe/planner/registry/adapters.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/search/v_auto.hpp>
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
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/slice_v.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

namespace pipelining::inline v0_3::registry {
namespace detail {

//! The chunks of the microbatches in turn, from the first again where the list is shorter.
struct repeated_chunks {
  std::vector<int> of;

  [[nodiscard]] int operator()(int microbatch) const {
    return of[static_cast<std::size_t>(microbatch) % of.size()];
  }
};

//! The adapters that the table of systems shows of one schedule of each kind: all but those that
//! need a schedule of their own, or have nothing there to hide loads under.
inline constexpr adapter usual_adapters =
  adapter::recompute | adapter::recompute_first | adapter::offload | adapter::offload_half |
  adapter::offload_chunks | adapter::vocabulary_1 | adapter::vocabulary_2 |
  adapter::vocabulary_interlaced | adapter::sharded_weights | adapter::gathered_once;

//! Makes a schedule with the options of a choice, and with the usual ones where it does not say.
template <class Schedule>
constexpr auto options_over(Schedule const& usual) {
  return [usual](schedule_choice const& c) {
    Schedule made = usual;
    if constexpr (requires { made.chunks = 1; })
      made.chunks = c.chunks.value_or(usual.chunks);
    if constexpr (requires { made.stages_per_device = 1; })
      made.stages_per_device = c.stages_per_device.value_or(usual.stages_per_device);
    if constexpr (requires { made.group = 1; })
      made.group = c.group.value_or(usual.group);
    if constexpr (requires { made.forwards = 1; })
      made.forwards = c.forwards.value_or(usual.forwards);
    if constexpr (requires { made.memory_limit = 1.0; })
      made.memory_limit = c.memory_limit.value_or(usual.memory_limit);
    return made;
  };
}

//! A schedule whose type says how pairs of passes run.
template <template <pairs> class Schedule>
std::variant<Schedule<pairs::in_turn>, Schedule<pairs::overlapped>>
in_pairs(schedule_choice const& c) {
  if (c.unfused)
    return Schedule<pairs::in_turn>{};
  return Schedule<pairs::overlapped>{};
}

//! Half the stages of a device, which come in twos. @throws std::invalid_argument where they do not
inline int halves_of_stages(schedule_choice const& c, int usual, char const* of_two) {
  int const held = c.stages_per_device.value_or(usual);
  if (held % 2 != 0)
    throw std::invalid_argument(c.name + ": a device has two stages for each " + of_two +
                                ", so --stages-per-device must be even, not " +
                                std::to_string(held));
  return held / 2;
}

//! A row of a registry: the facts about a schedule, and how it is made.
template <class Make>
struct named_row {
  named_schedule about; //!< traits that only the whole row tells are found later
  Make make;            //!< from a choice to a schedule, or to a variant of schedules
};

} // namespace detail

//! Makes a row: see the top of the file.
template <class Make>
[[nodiscard]] constexpr detail::named_row<Make> named(std::string_view name,
                                                      std::string_view line,
                                                      option takes,
                                                      Make make,
                                                      schedule_traits traits = {},
                                                      option needs = option::none) {
  using made = std::invoke_result_t<Make const&, schedule_choice const&>;
  traits.weights_travel = std::is_same_v<made, WeiPipe>;
  traits.stages_go_one_way = std::is_same_v<made, RoundPipe<>>;
  traits.places_stages = pipelining::detail::places_stages<made>;
  traits.sweeps = requires(made one) {
    one.how;
  };
  traits.sees_recomputation = pipelining::detail::orders_for_recomputation<made>;
  return {{name, line, takes, needs, traits}, make};
}

//! Schedules of the library.
struct published_schedules {
  //! Rows of the schedules, in the order in which people should read about them.
  static constexpr std::tuple rows{
    named(names::gpipe,
          "GPipe: all forward passes, then all backward passes; over chunks TeraPipe",
          option::chunks,
          detail::options_over(GPipeChunked<dynamic>{.chunks = 1}),
          {.type = "GPipe", .type_asked = "GPipeChunked<{chunks}>"}),
    named(names::one_f_one_b,
          "one forward, one backward in turn (PipeDream-Flush)",
          option::none,
          detail::options_over(OneFOneB{}),
          {.type = "OneFOneB", .shown_with = detail::usual_adapters}),
    named(names::eager_one_f_one_b,
          "1F1B with twice the warm-up, which hides messages",
          option::none,
          detail::options_over(EagerOneFOneB{}),
          {.type = "EagerOneFOneB"}),
    named("kfkb",
          "kFkB of Ada-Grouper: K forward, K backward in turn; groups of 2",
          option::group,
          detail::options_over(Grouped<dynamic>{.group = 2}),
          {.type = "Grouped<{group}>"}),
    named(
      names::interleaved,
      "Megatron's interleaved 1F1B; 2 stages per device, groups of P",
      option::stages_per_device | option::group,
      detail::options_over(Interleaved<dynamic>{.stages_per_device = 2, .group = 0}),
      {.type = "Interleaved<{stages}>", .shown_with = adapter::offload | adapter::offload_half}),
    named("chronos",
          "ChronosPipe: two looped stages per device, three quarters of the activations of 1F1B",
          option::chunks,
          detail::options_over(ChronosPipeChunked<dynamic>{.chunks = 1}),
          {.type = "ChronosPipeChunked<{chunks}>",
           .shown_with = adapter::recompute_first | adapter::weights_on_host}),
    named("hanayo",
          "Hanayo: down the devices and up again, two stages per device for each wave; 4 of them",
          option::stages_per_device,
          [](schedule_choice const& c) {
            return Hanayo<>{.waves = detail::halves_of_stages(c, 4, "wave")};
          },
          {.type = "Hanayo<{waves}>"}),
    named(names::breadth_first,
          "all microbatches stage by stage, then back in reverse; 2 stages per device",
          option::stages_per_device,
          detail::options_over(BreadthFirst<dynamic>{.stages_per_device = 2}),
          {.type = "BreadthFirst<{stages}>",
           .sums_in_order = false,
           .shown_with = adapter::sharded_weights | adapter::gathered_once}),
    named("helix",
          "HelixPipe: attention on other devices than its layer; 2 stages per device, groups of 1",
          option::stages_per_device | option::group,
          [](schedule_choice const& c) {
            return HelixPipe<>{.layers_per_device = detail::halves_of_stages(c, 2, "layer"),
                               .folds = c.group.value_or(1)};
          },
          {.sums_in_order = false, .cuts_layers = true}),
    named("wei-pipe",
          "WeiPipe: microbatches stay on their device, weights and their gradients travel; M a "
          "multiple of P",
          option::none,
          detail::options_over(WeiPipe{})),
    named("round-pipe",
          "RoundPipe: devices take stages in turn, weights lie on the host; P forward, 3 P back",
          option::forward_stages | option::backward_stages,
          detail::round_pipe_of),
    named(names::seq1f1b,
          "Seq1F1B: 1F1B over chunks of sequences; 4 chunks",
          option::chunks | option::eager,
          [](schedule_choice const& c) -> std::variant<Seq1F1B<>, EagerSeq1F1B<>> {
            int const chunks = c.chunks.value_or(4);
            if (c.eager)
              return EagerSeq1F1B<>{.chunks = chunks};
            return Seq1F1B<>{.chunks = chunks};
          },
          {.type = "Seq1F1B<{chunks}>",
           .type_asked = "EagerSeq1F1B<{chunks}>",
           .shown_with = detail::usual_adapters}),
    named(
      "seq1f1b-interleaved",
      "interleaved 1F1B over chunks of sequences; 4 chunks, 2 stages per device",
      option::chunks | option::stages_per_device | option::group,
      detail::options_over(Seq1F1BInterleaved<>{.stages_per_device = 2, .chunks = 4, .group = 0}),
      {.type = "Seq1F1BInterleaved<{stages}, {chunks}>"}),
    named("seq1f1b-zb-interleaved",
          "Seq1F1B with the split backward of ZB-H1 on interleaved stages; 4 chunks, 2 stages per "
          "device",
          option::chunks | option::stages_per_device,
          detail::options_over(Seq1F1BZeroBubbleInterleaved<>{.stages_per_device = 2, .chunks = 4}),
          {.type = "Seq1F1BZeroBubbleInterleaved<{stages}, {chunks}>"}),
    named("seq1f1b-zb-h1",
          "Seq1F1B with the split backward of ZB-H1, the activations of Seq1F1B; 4 chunks",
          option::chunks,
          detail::options_over(Seq1F1BZeroBubbleH1<>{.chunks = 4}),
          {.type = "Seq1F1BZeroBubbleH1<{chunks}>"}),
    named("seq1f1b-zb-h2",
          "Seq1F1B with the split backward of ZB-H2, no bubble on the span; 4 chunks",
          option::chunks,
          detail::options_over(Seq1F1BZeroBubbleH2<>{.chunks = 4}),
          {.type = "Seq1F1BZeroBubbleH2<{chunks}>"}),
    named("svpp",
          "SVPP of MEPipe: chunks and split backward; 4 chunks, 2 stages per device",
          option::chunks | option::stages_per_device | option::forwards,
          detail::options_over(SVPP<>{.stages_per_device = 2, .chunks = 4, .forwards = 0}),
          {.type = "SVPP<{stages}, {chunks}>"}),
    named("slice-v",
          "SliceV: two stages per device in a V over chunks, no bubble on the span; 4 chunks",
          option::chunks | option::chunk_counts,
          [](schedule_choice const& c)
            -> std::variant<SliceV<>, RaggedSliceV<detail::repeated_chunks>> {
            if (!c.chunk_counts.empty())
              return RaggedSliceV<detail::repeated_chunks>{{c.chunk_counts}};
            return SliceV<>{{c.chunks.value_or(4)}};
          },
          {.type = "SliceV<{chunks}>", .type_asked = "RaggedSliceV<pipelining::listed_chunks>"}),
    named("slimpipe",
          "SlimPipe: little more than one microbatch on a device; P chunks, 2 stages per device",
          option::chunks | option::stages_per_device,
          detail::slim_pipe_of,
          {.type = "SlimPipe<{chunks}, {stages}>", .exchanges_attention = true}),
    named(
      names::chunk_flow,
      "ChunkFlow: 1F1B over sequences of unequal numbers of chunks; 4 chunks each, all kept",
      option::chunks | option::chunk_counts | option::keep,
      [](schedule_choice const& c) -> std::variant<ChunkFlow<pipelining::detail::equal_chunks<>>,
                                                   ChunkFlow<detail::repeated_chunks>> {
        int const chunks = c.chunks.value_or(4);
        if (!c.chunk_counts.empty())
          return ChunkFlow<detail::repeated_chunks>{
            .counts = {c.chunk_counts},
            .keep = c.keep.value_or(std::numeric_limits<std::uint16_t>::max())};
        return ChunkFlow<pipelining::detail::equal_chunks<>>{.counts = {chunks},
                                                             .keep = c.keep.value_or(chunks)};
      },
      {.type_asked = "ChunkFlow<>"}),
    named(names::zero_bubble_h1,
          "ZB-H1: split backward, the activations of 1F1B and as many weight inputs",
          option::none,
          detail::options_over(ZeroBubbleH1{}),
          {.type = "ZeroBubbleH1", .shown_with = adapter::vocabulary_1 | adapter::vocabulary_2}),
    named(names::zero_bubble_h2,
          "ZB-H2: split backward, about twice of both, no bubble on the span",
          option::none,
          detail::options_over(ZeroBubbleH2{}),
          {.type = "ZeroBubbleH2"}),
    named("zb-interleaved",
          "ZB-H1 over interleaved stages; 2 stages per device",
          option::stages_per_device,
          detail::options_over(ZeroBubbleInterleaved<dynamic>{.stages_per_device = 2}),
          {.type = "ZeroBubbleInterleaved<{stages}>"}),
    named(names::zero_bubble_auto,
          "split backward, ordered for the costs under a memory limit; P microbatches (ZB-1P)",
          option::memory_limit,
          [](schedule_choice const& c) {
            return ZeroBubbleAuto<dynamic>{.memory_limit =
                                             static_cast<int>(c.memory_limit.value_or(c.devices))};
          },
          {.type = "ZeroBubbleAuto<>"}),
    named(names::v_min,
          "two stages per device in a V, (P+4)/3 activations where 1F1B holds P",
          option::chunks,
          detail::options_over(VMinChunked<dynamic>{.chunks = 1}),
          {.type = "VMinChunked<{chunks}>"}),
    named(names::v_half,
          "two stages per device in a V, (P+2)/2 activations where 1F1B holds P",
          option::chunks,
          detail::options_over(VShape<v_half_offsets, dynamic>{.chunks = 1}),
          {.type = "VShape<pipelining::v_half_offsets, {chunks}>",
           .shown_with = detail::usual_adapters}),
    named(names::v_zero_bubble,
          "two stages per device in a V, the activations of 1F1B, no bubble on the span",
          option::chunks,
          detail::options_over(VShape<v_zero_bubble_offsets, dynamic>{.chunks = 1}),
          {.type = "VShape<pipelining::v_zero_bubble_offsets, {chunks}>"}),
    named("v-1f1b",
          "1F1B on a V, backward in one piece, two thirds of the activations of 1F1B",
          option::chunks,
          detail::options_over(OneFOneBVChunked<dynamic>{.chunks = 1}),
          {.type = "OneFOneBVChunked<{chunks}>"}),
    named(names::v_auto,
          "the shortest V shape whose devices hold at most X activations of a stage",
          option::chunks | option::memory_limit,
          detail::options_over(VAuto<dynamic, dynamic>{.memory_limit = 0, .chunks = 1}),
          {.type = "VAuto<{limit}, {chunks}>"},
          option::memory_limit),
    named("v-continuous",
          "v-auto with a start from a block in real times, for tight limits; takes longer",
          option::chunks | option::memory_limit,
          detail::options_over(VContinuous{.memory_limit = 0, .chunks = 1}),
          {.type = "VContinuous", .swept_like = "v-auto"},
          option::memory_limit),
    named("zb-v",
          "ZB-V: the hand-made zero-bubble order on a V, improved for the costs",
          option::chunks,
          detail::options_over(ZeroBubbleVChunked<dynamic>{.chunks = 1}),
          {.type = "ZeroBubbleVChunked<{chunks}>"}),
    named(
      "chimera",
      "Chimera: microbatches from both ends, each way in the other's bubble; 1 stage per device",
      option::stages_per_device,
      detail::options_over(ChimeraWaves<>{.stages_per_device = 1}),
      {.type = "ChimeraWaves<{stages}>", .sums_in_order = false}),
    named("bitpipe",
          "BitPipe: microbatches from both ends of a V, for as many microbatches as devices",
          option::none,
          detail::options_over(BitPipe{}),
          {.type = "BitPipe", .sums_in_order = false}),
    named(names::dual_pipe,
          "DualPipe: microbatches from both ends, forward next to backward",
          option::unfused | option::pair_cost,
          detail::in_pairs<DualPipe>,
          {.type = "DualPipe<>", .sums_in_order = false}),
    named(names::dual_pipe_v,
          "DualPipe folded into a V, weights held once",
          option::unfused | option::pair_cost,
          detail::in_pairs<DualPipeV>,
          {.type = "DualPipeV<>"}),
    named("stp",
          "STP: a V of braids that hide all-reduces; at least 3 P - 1 microbatches",
          option::unfused,
          detail::in_pairs<STP>,
          {.type = "STP<>", .sums_in_order = false})};
};

} // namespace pipelining::inline v0_3::registry
