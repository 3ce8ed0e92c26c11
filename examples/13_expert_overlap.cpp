// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: a flow of your own. Layers with experts send tokens to other devices and back
// while their device computes. How to run: build/release/bin/13_expert_overlap
// Expected output: a timetable with two rows for each device, and what it computes
#include <pipe/pipe.hpp>
#include <pipe/view.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

namespace pp = pipelining;
using enum pp::does;
using enum pp::engine;
using enum pp::role;
using pp::of_stage;

// clang-format off
// [snippet data]
constexpr std::uint8_t pool(pp::slot_class of) { return static_cast<std::uint8_t>(of); }
constexpr auto kept = pool(pp::slot_class::activation);
constexpr auto back = pool(pp::slot_class::weight_input);

constexpr pp::datum own(pp::flow_word const& word, std::uint8_t in, bool wanted = true) {
  return {.word = word, .pool = in, .wanted = wanted};
}
enum data : std::uint8_t {
  output, gradient, attention_weights, expert_weights,
  attention_kept, routed, dispatched, mixed,
  mixed_gradient, dispatched_gradient, routed_gradient, expert_input, attention_input
};
constexpr pp::datum all_data[] = {
  {.word = "output", .pool = pool(pp::slot_class::output),
   .arrives_in = pool(pp::slot_class::received_input), .wanted = true},
  {.word = "gradient", .pool = pool(pp::slot_class::input_gradient),
   .arrives_in = pool(pp::slot_class::received_gradient), .wanted = true},
  {.word = "attention weights", .lives = pp::residence::nowhere, .wanted = true},
  {.word = "expert weights", .lives = pp::residence::nowhere, .wanted = true},
  own("attention kept", kept), own("routed", kept, false), own("dispatched", kept),
  own("mixed", kept), own("mixed gradient", back), own("dispatched gradient", back),
  own("routed gradient", back), own("expert input", back, false),
  own("attention input", back, false)};
// [snippet data]

constexpr pp::kind_of_pass of(char letter, pp::flow_word const& word, pp::role is,
                              std::initializer_list<pp::effect> effects) {
  auto const on = is == communicate ? network : compute;
  return pp::declare_kind(letter, word, on, pp::stage_call::perform, effects).with_role(is);
}
constexpr pp::kind_of_pass all_kinds[] = {
  // [snippet kinds]
  of('A', "attention", forward,
    {{reads, output, of_stage::before}, {makes, attention_kept}, {makes, routed}}),
  of('D', "dispatch", communicate, {{frees, routed}, {makes, dispatched}}),
  of('E', "experts", forward, {{reads, dispatched}, {makes, mixed}}),
  of('C', "combine", communicate, {{frees, mixed}, {makes, output}}),
  // [snippet kinds]
  of('K', "combine back", communicate,
    {{reads, gradient, of_stage::after}, {makes, mixed_gradient}}),
  of('M', "experts back", input,
    {{frees, mixed_gradient}, {makes, dispatched_gradient}, {makes, expert_input}}),
  of('W', "expert gradients", weights,
    {{frees, dispatched}, {frees, expert_input}, {makes, expert_weights}}),
  of('J', "dispatch back", communicate, {{frees, dispatched_gradient}, {makes, routed_gradient}}),
  of('B', "attention back", input, {{reads, attention_kept}, {frees, routed_gradient},
    {makes, gradient}, {makes, attention_input}}),
  of('V', "attention gradients", weights,
    {{frees, attention_kept}, {frees, attention_input}, {makes, attention_weights}})};
constexpr pp::flow expert_training = pp::declare(all_data, all_kinds);
constexpr auto named = [](pp::flow_word const& word) { return expert_training.kind_named(word); };
constexpr auto attention = named("attention"), dispatch = named("dispatch"),
  experts = named("experts"), combine = named("combine"), combine_back = named("combine back"),
  experts_back = named("experts back"), expert_gradients = named("expert gradients"),
  dispatch_back = named("dispatch back"), attention_back = named("attention back"),
  attention_gradients = named("attention gradients");
constexpr auto way_back = {combine_back, experts_back, expert_gradients, dispatch_back,
                           attention_back, attention_gradients};
// clang-format on

// [snippet schedule]
// 1F1B with one more microbatch ahead: the forward pass of a layer runs with the backward pass of
// another one, and while one of them computes the other one is on the network.
struct ExpertOverlap {
  static constexpr pp::flow const& declared = expert_training;
  int layers = 2; // of each device, a stage each
  pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = layers,
            .where = pp::placement::custom};
  }
  int device_of(pp::shape const&, int stage, int) const { return stage / layers; }

  template <class Cost, class Rows>
  void generate(pp::shape const& extents, Cost const&, Rows&& rows) const {
    for (int device = 0; device < extents.devices; ++device) {
      auto const push = [&](std::initializer_list<pp::pass_kind> kinds, int layer, int microbatch) {
        for (pp::pass_kind const kind : kinds) {
          int const row = device + (declared[kind].on == network ? extents.devices : 0);
          rows[static_cast<unsigned>(row)].push(
            pp::row_writer::make(kind, device * layers + layer, microbatch));
        }
      };
      int const ahead = std::min(extents.microbatches, extents.devices - device);
      for (int m = 0; m < ahead; ++m)
        for (int layer = 0; layer < layers; ++layer)
          push({attention, dispatch, experts, combine}, layer, m);
      for (int m = ahead; m < extents.microbatches; ++m)
        for (int layer = 0; layer < layers; ++layer) {
          int const other = layers - 1 - layer;
          push({combine_back}, other, m - ahead);
          push({attention}, layer, m);
          push({experts_back}, other, m - ahead);
          push({dispatch}, layer, m);
          push({expert_gradients, dispatch_back}, other, m - ahead);
          push({experts, combine}, layer, m);
          push({attention_back, attention_gradients}, other, m - ahead);
        }
      for (int m = extents.microbatches - ahead; m < extents.microbatches; ++m)
        for (int layer = layers - 1; layer >= 0; --layer)
          push(way_back, layer, m);
    }
  }
};

struct layer_times {
  double duration(pp::pass const& what) const {
    return what.kind == attention_gradients || expert_training[what.kind].on == network ? 2 : 4;
  }
  double latency() const { return 1; }
};
// [snippet schedule]

// [snippet stage]
// A layer y = e (a x). Its experts are here, too, so that dispatch and combine merely copy.
struct layer {
  double attention_weight, expert_weight;
  double attention_gradient = 0, expert_gradient = 0;
  friend bool operator==(layer const&, layer const&) = default;

  void perform(pp::pass_kind kind, pp::context const& at, pp::input in, pp::output) {
    auto const value = [&](data of) -> double& {
      return at.buffer_of(expert_training, kind, of).as<double>()[0];
    };
    double const given = in.data != nullptr ? in.as<double>()[0] : at.microbatch + 1.0;
    if (kind == attention)
      value(routed) = attention_weight * (value(attention_kept) = given);
    else if (kind == dispatch)
      value(dispatched) = value(routed);
    else if (kind == experts)
      value(mixed) = expert_weight * value(dispatched);
    else if (kind == combine && !at.last_stage())
      value(output) = value(mixed);
    else if (kind == combine_back)
      value(mixed_gradient) = at.last_stage() ? 1 : given;
    else if (kind == experts_back)
      value(dispatched_gradient) = expert_weight * (value(expert_input) = value(mixed_gradient));
    else if (kind == expert_gradients)
      expert_gradient += value(dispatched) * value(expert_input);
    else if (kind == dispatch_back)
      value(routed_gradient) = value(dispatched_gradient);
    else if (kind == attention_gradients)
      attention_gradient += value(attention_kept) * value(attention_input);
    else if (kind == attention_back && !at.first_stage())
      value(gradient) = attention_weight * (value(attention_input) = value(routed_gradient));
    else if (kind == attention_back)
      value(attention_input) = value(routed_gradient);
  }
};
// [snippet stage]

int main() {
  auto const table = pp::make_timetable(ExpertOverlap{}, {4, 8}, layer_times{});
  std::string text;
  pp::write_text(text, table, {.schedule = "expert overlap"});
  std::printf("%s\n%g, with a plan that is proven\n", text.c_str(), pp::makespan(table));
  std::vector<layer> model;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    model.push_back({1.0 + stage, 2.0 - stage / 8.0});
  std::vector<layer> alone = model;
  pp::thread_runner runner(
    pp::lower(table, pp::uniform_sizes{.message = 8, .activation = 8, .weight_input = 8}), model);
  runner.step();
  // The same on one device: all layers forward, and back.
  for (int m = 0; m < table.over.extents.microbatches; ++m) {
    std::vector<double> inputs{m + 1.0};
    for (layer const& one : alone)
      inputs.push_back(one.expert_weight * (one.attention_weight * inputs.back()));
    double slope = 1;
    for (auto i = alone.size(); i-- > 0; slope *= alone[i].attention_weight) {
      alone[i].expert_gradient += alone[i].attention_weight * inputs[i] * slope;
      alone[i].attention_gradient += inputs[i] * (slope *= alone[i].expert_weight);
    }
  }
  std::printf("gradients %s those of one device\n", model == alone ? "equal" : "differ from");
  return model == alone && pp::makespan(table) == 748 ? 0 : 1;
}
