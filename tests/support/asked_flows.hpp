// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Flows that users asked for, each with what its passes read: a kind on the network in the
//! smallest flow, tokens that the last stage hands to the first, and pipelines of which one has
//! lost a device.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <tests/support/flow_interpreter.hpp>
#include <tests/support/random_flows.hpp>
#include <tests/support/replicas.hpp>
#include <utility>
#include <vector>

namespace support::asked {

namespace pp = pipelining;
using pp::does, pp::of_stage, pp::slot_class;

constexpr pp::datum lies(pp::flow_word const& word, slot_class in) {
  return {.word = word, .pool = static_cast<std::uint8_t>(in), .wanted = true};
}
constexpr pp::datum goes(pp::flow_word const& word, slot_class from, slot_class to) {
  pp::datum result = lies(word, from);
  result.arrives_in = static_cast<std::uint8_t>(to);
  return result;
}
constexpr pp::kind_of_pass kind(char letter,
                                pp::flow_word const& word,
                                std::initializer_list<pp::effect> effects,
                                pp::engine on = pp::engine::compute) {
  return pp::declare_kind(letter, word, on, pp::stage_call::perform, effects);
}
enum data : std::uint8_t { output, gradient, weights, kept, routed, handed_on };
inline constexpr pp::datum all_data[] = {
  goes("output", slot_class::output, slot_class::received_input),
  goes("gradient", slot_class::input_gradient, slot_class::received_gradient),
  {.word = "weight gradient", .lives = pp::residence::nowhere, .wanted = true},
  lies("kept", slot_class::activation),
  lies("routed", slot_class::weight_input),
  {.word = "handed on", .lives = pp::residence::nowhere, .wanted = true}};

//! @brief Forward, a kind on the network that hands on, backward. The network frees its input, or
//! reads it, and backward frees it after that.
//! @param marks whether the network makes something that every unit has
constexpr pp::flow on_network(bool frees, bool marks) {
  pp::kind_of_pass kinds[] = {
    kind('A',
         "attend",
         {{does::reads, output, of_stage::before}, {does::makes, kept}, {does::makes, routed}}),
    kind('D',
         "dispatch",
         {{frees ? does::frees : does::reads, routed}, {does::makes, output}},
         pp::engine::network),
    kind('B',
         "backward",
         {{does::reads, gradient, of_stage::after},
          {does::frees, kept},
          {does::makes, gradient},
          {does::makes, weights}})};
  if (!frees)
    kinds[2].effects[kinds[2].effect_count++] = {does::frees, routed};
  if (marks)
    kinds[1].effects[kinds[1].effect_count++] = {does::makes, handed_on};
  return pp::declare(std::span(all_data).first(marks ? 6 : 5), kinds);
}

//! @brief All forward passes, then all backward passes.
template <bool Frees>
struct network_last {
  static constexpr pp::flow declared = on_network(Frees, !Frees);

  [[nodiscard]] static pp::shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches};
  }
  template <class Cost, class Rows>
  static void generate(pp::shape const& extents, Cost const&, Rows&& rows) {
    for (int device = 0; device < extents.devices; ++device)
      for (int k = 0; k < 3; ++k)
        for (int m = 0; m < extents.microbatches; ++m)
          rows[static_cast<unsigned>(device + (k == 1 ? extents.devices : 0))].push(
            pp::row_writer::make(static_cast<pp::pass_kind>(k), device, m));
  }
};

//! @brief Tokens, one a chunk: the last stage hands what it has made to the first one for the next.
struct decode {
  static constexpr pp::flow declared =
    pp::declare({goes("output", slot_class::output, slot_class::received_input)},
                {{pp::pass_kind::forward,
                  kind('F', "forward", {{does::reads, 0, of_stage::before}, {does::makes, 0}})}});
  int tokens = 1;

  [[nodiscard]] pp::shape arrange(int devices, int groups) const {
    return {.devices = devices, .microbatches = groups, .chunks = tokens + 1};
  }
  static void order(pp::shape const& extents, int device, pp::row_writer& out) {
    for (int step = 0; step < extents.chunks; ++step)
      for (int group = 0; group < extents.microbatches; ++group)
        out.forward(device, group, step);
  }
  [[nodiscard]] static edge_list edges_of(pp::shape const& extents) {
    edge_list ring;
    for (int stage = 0; stage + 1 < extents.stages(); ++stage)
      ring.push_back({stage, stage + 1, pp::of_unit::same});
    ring.push_back({extents.stages() - 1, 0, pp::of_unit::previous});
    return ring;
  }
};

//! @brief Pipelines next to each other, with the halves of backward passes as kinds of their own.
struct rerouted : replicas {
  static constexpr pp::flow declared = pp::declare(
    {all_data[output],
     all_data[gradient],
     all_data[weights],
     all_data[kept],
     lies("kept for weights", slot_class::weight_input)},
    {{pp::pass_kind::forward,
      kind('F',
           "forward",
           {{does::reads, output, of_stage::before}, {does::makes, kept}, {does::makes, output}})},
     {pp::pass_kind::backward_input,
      kind('I',
           "input",
           {{does::reads, gradient, of_stage::after},
            {does::reads, kept},
            {does::makes, gradient},
            {does::makes, routed}})},
     {pp::pass_kind::backward_weight,
      kind('W', "weights", {{does::frees, kept}, {does::frees, routed}, {does::makes, weights}})}});
};

//! @brief A plan with what its passes read, and what it is.
struct asked_plan {
  std::string name;
  interpreted_plan of;
};

template <class Schedule>
asked_plan plan_of(std::string name, Schedule const& how, int devices, int microbatches) {
  auto const table = pp::make_timetable(how, {devices, microbatches}, pp::uniform_cost{});
  edge_list edges;
  if constexpr (requires { how.edges_of(table.over.extents); })
    edges = how.edges_of(table.over.extents);
  return {std::move(name), {pp::lower(table, eight_bytes{}), interpret(table, edges)}};
}

//! @brief All of them on four devices, which processes can be.
inline std::vector<asked_plan> plans() {
  std::vector<asked_plan> all;
  all.push_back(plan_of("the network frees", network_last<true>{}, 4, 5));
  all.push_back(plan_of("the network reads", network_last<false>{}, 4, 5));
  all.push_back(plan_of("tokens go around", decode{6}, 4, 8));
  for (int const lost : {-1, 0, 1})
    all.push_back(plan_of("lost " + std::to_string(lost), rerouted{{2, 2, lost}}, 4, 10));
  return all;
}

} // namespace support::asked
