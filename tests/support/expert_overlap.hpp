// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Megatron-Core's combined 1F1B of layers with experts as a flow of one's own: dispatch and
//! combine are on the network, next to attention and experts of another microbatch.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <algorithm>
#include <initializer_list>
#include <tests/support/flow_interpreter.hpp>
#include <tests/support/random_flows.hpp>

namespace support::overlap {

namespace pp = pipelining;
using pp::does, pp::of_stage, pp::role;

constexpr pp::datum lies(pp::flow_word const& word, pp::slot_class in, bool wanted = true) {
  return {.word = word, .pool = static_cast<std::uint8_t>(in), .wanted = wanted};
}
constexpr pp::datum goes(pp::flow_word const& word, pp::slot_class from, pp::slot_class to) {
  pp::datum result = lies(word, from);
  result.arrives_in = static_cast<std::uint8_t>(to);
  return result;
}
enum data : std::uint8_t {
  output,
  gradient,
  attention_weights,
  expert_weights,
  kept,
  routed,
  dispatched,
  mixed,
  mixed_back,
  dispatched_back,
  routed_back,
  expert_input,
  attention_input
};
inline constexpr pp::datum all_data[] = {
  goes("output", pp::slot_class::output, pp::slot_class::received_input),
  goes("gradient", pp::slot_class::input_gradient, pp::slot_class::received_gradient),
  {.word = "attention weights", .lives = pp::residence::nowhere, .wanted = true},
  {.word = "expert weights", .lives = pp::residence::nowhere, .wanted = true},
  lies("kept", pp::slot_class::activation),
  lies("routed", pp::slot_class::activation, false),
  lies("dispatched", pp::slot_class::activation),
  lies("mixed", pp::slot_class::activation),
  lies("mixed back", pp::slot_class::weight_input),
  lies("dispatched back", pp::slot_class::weight_input),
  lies("routed back", pp::slot_class::weight_input),
  lies("expert input", pp::slot_class::weight_input, false),
  lies("attention input", pp::slot_class::weight_input, false)};

constexpr pp::kind_of_pass
kind(char letter, pp::flow_word const& word, role is, std::initializer_list<pp::effect> effects) {
  auto const on = is == role::communicate ? pp::engine::network : pp::engine::compute;
  return pp::declare_kind(letter, word, on, pp::stage_call::perform, effects).with_role(is);
}
inline constexpr pp::kind_of_pass all_kinds[] = {
  kind('A',
       "attend",
       role::forward,
       {{does::reads, output, of_stage::before}, {does::makes, kept}, {does::makes, routed}}),
  kind('D', "dispatch", role::communicate, {{does::frees, routed}, {does::makes, dispatched}}),
  kind('E', "experts", role::forward, {{does::reads, dispatched}, {does::makes, mixed}}),
  kind('C', "combine", role::communicate, {{does::frees, mixed}, {does::makes, output}}),
  kind('c',
       "combine back",
       role::communicate,
       {{does::reads, gradient, of_stage::after}, {does::makes, mixed_back}}),
  kind('e',
       "experts back",
       role::input,
       {{does::frees, mixed_back}, {does::makes, dispatched_back}, {does::makes, expert_input}}),
  kind('w',
       "expert sums",
       role::weights,
       {{does::frees, dispatched}, {does::frees, expert_input}, {does::makes, expert_weights}}),
  kind('d',
       "dispatch back",
       role::communicate,
       {{does::frees, dispatched_back}, {does::makes, routed_back}}),
  kind('a',
       "attend back",
       role::input,
       {{does::reads, kept},
        {does::frees, routed_back},
        {does::makes, gradient},
        {does::makes, attention_input}}),
  kind('v',
       "attention sums",
       role::weights,
       {{does::frees, kept}, {does::frees, attention_input}, {does::makes, attention_weights}})};
inline constexpr pp::flow expert_flow = pp::declare(all_data, all_kinds);

//! @brief The order. `merged`: forward passes of a layer next to backward passes of another one.
struct combined {
  static constexpr pp::flow const& declared = expert_flow;
  int layers = 1; //!< of each device
  bool merged = true;

  [[nodiscard]] pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = layers,
            .where = pp::placement::custom};
  }
  [[nodiscard]] int device_of(pp::shape const&, int stage, int) const { return stage / layers; }

  template <class Cost, class Rows>
  void generate(pp::shape const& extents, Cost const&, Rows&& rows) const {
    int const count = extents.microbatches;
    for (int device = 0; device < extents.devices; ++device) {
      auto const push = [&](char const* letters, int layer, int microbatch) {
        for (; *letters != 0; ++letters)
          for (unsigned k = 0; k < std::size(all_kinds); ++k)
            if (all_kinds[k].letter == *letters) {
              bool const beside = all_kinds[k].on == pp::engine::network;
              rows[static_cast<unsigned>(device + (beside ? extents.devices : 0))].push(
                pp::row_writer::make(
                  static_cast<pp::pass_kind>(k), device * layers + layer, microbatch));
            }
      };
      int const ahead = std::min(count, extents.devices - device);
      for (int m = 0; m < ahead; ++m)
        for (int layer = 0; layer < layers; ++layer)
          push("ADEC", layer, m);
      for (int m = ahead; m < count; ++m) {
        for (int layer = 0; layer < layers; ++layer) {
          int const other = layers - 1 - layer;
          if (!merged) {
            push("ADEC", layer, m);
            continue;
          }
          push("c", other, m - ahead);
          push("A", layer, m);
          push("e", other, m - ahead);
          push("D", layer, m);
          push("wd", other, m - ahead);
          push("EC", layer, m);
          push("av", other, m - ahead);
        }
        for (int layer = layers; !merged && layer-- > 0;)
          push("cewdav", layer, m - ahead);
      }
      for (int m = count - ahead; m < count; ++m)
        for (int layer = layers; layer-- > 0;)
          push("cewdav", layer, m);
    }
  }
};

//! @brief Times of attention, of a message of the experts, and of experts.
struct times {
  double attention = 4, dispatch = 2, experts = 4, between = 0;
  [[nodiscard]] double duration(pp::pass const& what) const {
    switch (all_kinds[static_cast<unsigned>(what.kind)].letter) {
    case 'A':
    case 'a': return attention;
    case 'v': return attention / 2;
    case 'E':
    case 'e':
    case 'w': return experts;
    default: return dispatch;
    }
  }
  [[nodiscard]] double latency() const { return between; }
};

//! @brief A plan, and what its passes read.
inline interpreted_plan interpreted(combined const& how, int devices, int microbatches) {
  auto const table = pp::make_timetable(how, {devices, microbatches}, times{});
  edge_list edges;
  for (int to = 1; to < devices * how.layers; ++to)
    edges.push_back({to - 1, to, pp::of_unit::same});
  return {pp::lower(table, eight_bytes{}), interpret(table, edges)};
}

} // namespace support::overlap
