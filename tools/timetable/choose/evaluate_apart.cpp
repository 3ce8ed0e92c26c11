// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What schedules would take whose weights do not stay on a device, or whose stages are parts of
// layers for each chunk: docs/systems.md has the derivation.
#include "choose.hpp"
#include "tools/timetable/make.hpp"

namespace examples {
namespace {

using contents = std::vector<pp::stage_content>;

//! A candidate but for what its timetable says.
candidate begin(choose_command const& asked, schedule_choice choice) {
  if (asked.measured || asked.gpus.size() > 1)
    throw std::invalid_argument("its costs are predicted alone, for GPUs of one kind");
  candidate one;
  one.label = label_of({choice});
  one.choice = std::move(choice);
  one.chunk_lengths = {static_cast<int>(asked.setup.sequence)};
  return one;
}

//! Messages of so many bytes on every link.
void set_messages(choose_command const& asked, double bytes, pp::cost_table& cost) {
  pp::gpu const& on = asked.gpu(0);
  set_links(cost, asked.devices, [&](int from, int to) {
    return bytes / 1e9 /
           (asked.predicted(on).in_one_machine(from, to) ? on.link_gb_per_s : on.network_gb_per_s);
  });
}

//! The timetable of a candidate, with its times. @param hidden the cost without exchanges
pp::dynamic_timetable
timed(choose_command const& asked, any_cost const& cost, any_cost const& hidden, candidate& one) {
  pp::dynamic_timetable table = make_named_timetable(one.choice, cost, nullptr, false);
  measure_time(asked, table, cost, one);
  one.bound = busiest_work(table, hidden);
  return table;
}

//! Gigabytes of the fullest device. @param held `held(device)`, in bytes
double fullest(choose_command const& asked, auto const& held) {
  double most = 0;
  for (int device = 0; device < asked.devices; ++device)
    most = std::max(most, held(device) / 1e9);
  return most;
}

//! Slots where weights travel, with them or with them and their gradients as messages.
struct group_sizes {
  std::vector<pp::stage_bytes> groups;

  [[nodiscard]] std::int64_t bytes(pp::slot_class which, pp::pass const& what) const {
    pp::stage_bytes const& group = groups[what.chunk];
    return which == pp::slot_class::activation       ? group.activation
           : which == pp::slot_class::output         ? group.weights
           : which == pp::slot_class::input_gradient ? group.weights + group.gradients
                                                     : group.message;
  }
};

//! A message carries weights of a group of layers, or these and their gradients.
evaluated evaluate_travel(choose_command const& asked, schedule_choice const& choice) {
  candidate one = begin(asked, choice);
  one.extents = shown_extents(choice);
  part_times const parts = times_of_parts(asked, asked.gpu(0));
  one.layers = pp::balanced_layers(parts.layers, asked.devices, {}, {.last = parts.output});
  contents const content = pp::stage_content::of_layers(one.layers);
  std::vector<pp::stage_bytes> const bytes = bytes_of(asked, content, one.chunk_lengths);
  pp::cost_table cost = asked.predicted().costs(one.extents, content, one.chunk_lengths);
  std::int64_t widest = 0;
  for (pp::stage_bytes const& each : bytes)
    widest = std::max(widest, each.weights + each.gradients);
  set_messages(asked, static_cast<double>(widest), cost);
  any_cost const by_groups = cost_by_groups(cost);
  pp::dynamic_timetable table =
    timed(asked, by_groups, cost_by_groups(cost.without_exchanges()), one);
  group_sizes const sizes{bytes};
  pp::plan const work = pp::lower<pp::communicators::per_pair>(table, sizes);
  one.gigabytes = fullest(asked, [&](int device) {
    auto const at = static_cast<std::size_t>(device);
    return static_cast<double>(work.arena_bytes[at] + bytes[at].optimizer + bytes.back().logits);
  });
  auto const sent = [sizes](pp::pass const& maker, pp::detail::product_reader const&) {
    bool const forward = maker.kind == pp::pass_kind::forward;
    return static_cast<double>(
      sizes.bytes(forward ? pp::slot_class::output : pp::slot_class::input_gradient, maker));
  };
  return {std::move(one), std::move(table), sent};
}

//! Stages whose weights come from the host, as long as half of the memory holds one.
pp::round_stages cut_for_host(choose_command const& asked) {
  part_times parts = times_of_parts(asked, asked.gpu(0));
  std::vector<pp::layer_cost>& layers = parts.layers;
  layers.back() += parts.output; // its stages go back over the same layers, and one has both
  std::vector<double> sizes;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    pp::stage_bytes const of =
      asked.predicted().bytes({.embedding = i == 0, .output = i + 1 == layers.size()},
                              std::vector<int>{static_cast<int>(asked.setup.sequence)});
    sizes.push_back(static_cast<double>(of.weights + of.gradients));
  }
  // A layer that is too large is a stage alone, and then the memory says so.
  double const largest = *std::max_element(sizes.begin(), sizes.end());
  return pp::round_stages::best(
    layers,
    asked.devices,
    {.bytes = sizes, .most_bytes = std::max(asked.memory_gb * 1e9 / 2, largest)});
}

//! What stages of a cut hold: those that go forward, then those that go back.
contents contents_of(pp::round_stages const& cut) {
  contents content;
  for (std::size_t i = 0; i < cut.forward.size(); ++i)
    content.push_back({.layers = cut.forward[i], .embedding = i == 0});
  for (std::size_t i = 0; i < cut.backward.size(); ++i)
    content.push_back(
      {.layers = cut.backward[i], .embedding = i + 1 == cut.backward.size(), .output = i == 0});
  return content;
}

//! Weights and gradients of a stage cross the link to the host, where all else is.
evaluated evaluate_on_host(choose_command const& asked, schedule_choice choice) {
  pp::round_stages const cut = cut_for_host(asked);
  choice.forward_stages = static_cast<int>(cut.forward.size());
  choice.backward_stages = static_cast<int>(cut.backward.size());
  candidate one = begin(asked, choice);
  one.extents = arrange(choice);
  contents const content = contents_of(cut);
  for (pp::stage_content const& each : content)
    one.layers.push_back(each.layers);
  std::vector<pp::stage_bytes> const bytes = bytes_of(asked, content, one.chunk_lengths);
  pp::cost_table cost = asked.predicted().costs(one.extents, content, one.chunk_lengths);
  double const link = asked.gpu(0).host_gb_per_s * 1e9;
  double on_host = 0;
  for (int stage = 0; stage < one.extents.stages(); ++stage) {
    pp::stage_bytes const& of = bytes[static_cast<std::size_t>(stage)];
    double const again =
      cost.duration(pp::row_writer::make(pp::pass_kind::forward, stage, 0)) +
      cost.duration(pp::row_writer::make(pp::pass_kind::backward_input, stage, 0));
    cost.set(pp::pass_kind::backward_input, stage, 0, again);
    cost.set(pp::pass_kind::gather_weights, stage, 0, static_cast<double>(of.weights) / link);
    cost.set(pp::pass_kind::scatter_gradients, stage, 0, static_cast<double>(of.gradients) / link);
    if (stage >= *choice.forward_stages)
      on_host += static_cast<double>(of.weights + of.gradients + of.optimizer);
    if (stage > *choice.forward_stages) // the input that a stage going forward has left
      on_host += static_cast<double>(of.message) * asked.microbatches;
  }
  one.host_gigabytes = on_host / asked.devices / 1e9;
  pp::dynamic_timetable table = timed(asked, cost, cost.without_exchanges(), one);
  int const first = *choice.forward_stages; // that goes back, which has the logits
  one.gigabytes = fullest(asked, [&](int device) {
    double const kept =
      pp::peak_slot_bytes(table, device, pp::slot_class::activation, [&](pp::pass const& what) {
        return static_cast<double>(bytes[what.stage].activation);
      });
    double const logits = device == first % asked.devices
                            ? static_cast<double>(bytes[static_cast<std::size_t>(first)].logits)
                            : 0;
    return gathered_at_once(table, device, bytes) + kept + logits;
  });
  return {std::move(one), std::move(table), {}};
}

using slim_pipe_exchange = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

//! What a part of a layer on a chunk holds: the last layer ends with the output layer.
pp::stage_content content_of_part(choose_command const& asked, pp::exchange_stage const& part) {
  pp::stage_content result{.layers = 0};
  result.embedding = part.layer == 0 && part.part == pp::layer_part::projection;
  result.output =
    part.layer + 1 == asked.model.layers && part.part == pp::layer_part::after_attention;
  switch (part.part) {
  case pp::layer_part::projection: result.projections = 1; break;
  case pp::layer_part::after_attention: result.remainders = 1; break;
  default: result.attentions = 1;
  }
  return result;
}

//! Bytes of a chunk on a layer: queries, or as much; keys and values; a number for each head.
struct exchanged_bytes {
  double hidden;
  double query;
  double keys;
  double statistics;
};

exchanged_bytes exchanged_of(choose_command const& asked, std::int64_t tokens) {
  std::int64_t const all = asked.setup.sequences * tokens;
  auto const share = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / asked.setup.tensor;
  };
  double const hidden = share(asked.model.message_bytes(all));
  double const query = share(asked.model.attended_message_bytes(all)) - hidden;
  double const keys = share(asked.model.key_value_bytes(all));
  double const activation = share(asked.model.attention_activation_bytes(all));
  return {hidden, query, keys, activation - 2 * query - keys};
}

//! The schedule, with a layer as a stage and chunks of equal length.
//! @throws std::invalid_argument where the model has other numbers of these
slim_pipe_exchange exchange_for(choose_command const& asked, schedule_choice const& choice) {
  slim_pipe_exchange const made{{.chunks = choice.chunks.value_or(asked.devices),
                                 .stages_per_device = choice.stages_per_device.value_or(2)},
                                {}};
  pp::shape const inside = made.inside(arrange(choice));
  if (inside.stages() != asked.model.layers)
    throw std::invalid_argument("a stage of it is a layer, and there are " +
                                std::to_string(inside.stages()) + " of them for " +
                                std::to_string(asked.model.layers) + " layers");
  if (asked.setup.sequence % inside.chunks != 0)
    throw std::invalid_argument("its chunks are of equal length");
  return made;
}

//! Enters the times of a stage.
void set_times(choose_command const& asked,
               pp::exchange_stage const& part,
               int stage,
               std::int64_t tokens,
               pp::cost_table& cost) {
  pp::stage_content const content = content_of_part(asked, part);
  // In key chunks; a chunk attends to half of its own.
  double const keys =
    part.part == pp::layer_part::attention ? part.chunk + 0.5 - part.taken : part.taken;
  double const times = content.attentions > 0 ? 2 * keys : 1;
  pp::gpu const& on = asked.gpu(0);
  for (pp::pass_kind const kind :
       {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight}) {
    double const once = asked.predicted(on).pass_seconds(content, kind, {tokens, 0});
    cost.set(kind, stage, 0, once * times);
    cost.set_exchanges(kind, stage, 0, asked.predicted(on).exchange_seconds(content, kind, tokens));
  }
}

//! Bytes of a stage while a unit is on it, and those that its device has all the time.
struct held_bytes {
  double kept;
  double resident;
};

held_bytes held_by(choose_command const& asked,
                   pp::exchange_stage const& part,
                   std::int64_t tokens,
                   int chunks,
                   exchanged_bytes const& of) {
  pp::training_setup chunk = asked.setup;
  chunk.sequence = tokens;
  pp::stage_bytes const bytes = pp::prediction{asked.model, chunk}.bytes(
    content_of_part(asked, part), std::vector{static_cast<int>(tokens)});
  auto const activation = static_cast<double>(bytes.activation);
  if (part.part == pp::layer_part::taken_attention)
    return {part.taken == 0 ? 0 : activation + (part.taken - 1) * of.keys, 0};
  if (part.chunk != 0)
    return {activation, 0};
  bool const attends = part.part == pp::layer_part::attention;
  // Gradients of keys travel between chunks.
  return {activation, static_cast<double>(bytes.resident()) + (attends ? 2 * of.keys * chunks : 0)};
}

evaluated evaluate_exchange(choose_command const& asked, schedule_choice const& choice) {
  candidate one = begin(asked, choice);
  slim_pipe_exchange const made = exchange_for(asked, choice);
  one.extents = arrange(choice);
  int const chunks = made.inside(one.extents).chunks;
  auto const tokens = asked.setup.sequence / chunks;
  exchanged_bytes const of = exchanged_of(asked, tokens);
  pp::cost_table cost(one.extents, {});
  std::vector<double> kept; // of a part
  std::vector<double> resident(static_cast<std::size_t>(asked.devices));
  for (int stage = 0; stage < one.extents.stages(); ++stage) {
    pp::exchange_stage const part = made.stage_at(one.extents, stage);
    set_times(asked, part, stage, tokens, cost);
    held_bytes const held = held_by(asked, part, tokens, chunks, of);
    kept.push_back(held.kept);
    resident[static_cast<std::size_t>(part.layer % asked.devices)] += held.resident;
  }
  set_messages(asked, 2 * of.query + of.statistics, cost);
  pp::dynamic_timetable table = timed(asked, cost, cost.without_exchanges(), one);
  one.gigabytes = fullest(asked, [&](int device) {
    return resident[static_cast<std::size_t>(device)] +
           pp::peak_slot_bytes(table,
                               device,
                               pp::slot_class::activation,
                               [&kept](pp::pass const& what) { return kept[what.stage]; });
  });
  auto const sent = [=, extents = one.extents](pp::pass const& maker,
                                               pp::detail::product_reader const& reader) {
    pp::exchange_stage const from = made.stage_at(extents, maker.stage);
    pp::exchange_stage const to = made.stage_at(extents, reader.stage);
    bool const forward = maker.kind == pp::pass_kind::forward;
    pp::exchange_stage const& taken = forward ? to : from;
    if (taken.part == pp::layer_part::taken_attention) // queries, or old keys; back, gradients
      return from.chunk == to.chunk ? of.query : of.keys;
    if (from.part == pp::layer_part::taken_attention || to.part == pp::layer_part::taken_attention)
      return (forward ? of.query : 2 * of.query) + of.statistics;
    return of.hidden;
  };
  return {std::move(one), std::move(table), sent};
}

} // namespace

evaluated evaluate_apart(choose_command const& asked, schedule_choice const& choice) {
  if (choice.adapted == adapter::attention_exchange)
    return evaluate_exchange(asked, choice);
  return find_schedule(choice.name).traits.weights_travel ? evaluate_travel(asked, choice)
                                                          : evaluate_on_host(asked, choice);
}

} // namespace examples
