// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What stages of a candidate hold, what their passes take, and what devices hold of them.
#include "choose.hpp"

namespace examples {
namespace {

//! Copies that a run without them has not measured take the link to the host.
void add_copies(choose_command const& asked, candidate const& one, pp::cost_table& cost) {
  std::vector<pp::stage_content> const content = content_of(asked, one);
  auto const add = [&](int stage, int chunk, pp::token_range tokens) {
    for (pp::pass_kind const kind : {pp::pass_kind::copy_out, pp::pass_kind::copy_in})
      if (!(cost.duration(pp::row_writer::make(kind, stage, 0, chunk)) > 0))
        cost.set(
          kind,
          stage,
          chunk,
          asked.predicted().copy_seconds(content[static_cast<std::size_t>(stage)], tokens.length));
  };
  pp::detail::for_each_part(one.extents, one.chunk_lengths, add);
}

//! Weights and gradients of a stage cross the network of its replicas, or come from the host.
void add_sharding(choose_command const& asked, candidate const& one, pp::cost_table& cost) {
  std::vector<pp::stage_content> const content = content_of(asked, one);
  for (int stage = 0; stage < one.extents.stages(); ++stage) {
    pp::stage_bytes const bytes =
      asked.predicted().bytes(content[static_cast<std::size_t>(stage)], one.chunk_lengths);
    for (int chunk = 0; chunk < one.extents.chunks; ++chunk)
      for (pp::pass_kind const kind :
           {pp::pass_kind::gather_weights, pp::pass_kind::scatter_gradients})
        cost.set(kind,
                 stage,
                 chunk,
                 one.choice.adapted == adapter::weights_on_host
                   ? asked.predicted().loading_seconds(bytes, kind)
                   : asked.predicted().sharding_seconds(bytes, kind));
  }
}

//! The extents of the stages between shards, or of all.
pp::shape extents_inside(schedule_choice choice) {
  if (choice.has_shards())
    choice.adapted = adapter::none;
  return arrange(choice);
}

//! The same as they were measured, of a mean microbatch.
part_times measured_parts(pp::cut_costs const& measured) {
  std::vector<pp::layer_cost> all;
  int const units = measured.times.microbatches();
  for (int part = 0; part < measured.stages; ++part) {
    auto const time = [&](pp::role is) {
      double sum = 0;
      for (int i = 0; i < units; ++i)
        for (int chunk = 0; chunk < measured.chunks; ++chunk)
          sum += measured.times.duration(
            pp::row_writer::make(pp::training.kind_with(is), part, i, chunk));
      return sum / units;
    };
    all.push_back({time(pp::role::forward), time(pp::role::input), time(pp::role::weights)});
  }
  return {{all.begin() + 1, all.end() - 1}, all.back(), all.front()};
}

//! The measured times of parts as those of stages with these layers. Frozen parts go forward only.
pp::cut_costs
cut_parts(pp::cut_costs const& of, std::span<int const> layers, choose_command const& asked) {
  pp::cut_costs result = of;
  result.stages = static_cast<int>(layers.size());
  result.memory = {};
  std::vector<int> first{0, 1}; // part of each stage: the first one has the embedding, too
  for (int const count : layers.first(layers.size() - 1)) {
    first.back() += count;
    first.push_back(first.back());
  }
  first.back() = of.stages;
  pp::shape const extents{.devices = result.stages, .chunks = of.chunks};
  result.times = of.times.reshaped(extents, of.times.latency(), [&](pp::pass what) {
    bool const forward = pp::detail::kinds_of_training[what.kind].is == pp::role::forward;
    std::size_t const stage = what.stage;
    double sum = 0;
    for (int part = first[stage]; part < first[stage + 1]; ++part)
      if (part > asked.frozen || asked.frozen == 0 || forward) {
        what.stage = static_cast<decltype(what.stage)>(part);
        sum += of.times.duration(what);
      }
    return sum;
  });
  return result;
}

//! Chunks of equal work, where a layer's attention grows with what lies before.
std::vector<int> cut_sequence(choose_command const& asked, int chunks) {
  int const tokens = static_cast<int>(asked.setup.sequence);
  if (chunks == 1)
    return {tokens};
  if (asked.measured)
    return pp::even_partition(tokens, chunks);
  double const linear =
    asked.model.of_layers(asked.model.layers,
                          asked.model.dense_layers,
                          [=](pp::transformer const& of) { return of.linear_flops(tokens); }) /
      asked.reached.linear +
    asked.model.vocabulary_flops(tokens) / asked.reached.vocabulary;
  double const attention = asked.model.attention_flops(pp::pass_kind::forward, {tokens, 0}) /
                           asked.reached.attention * asked.model.layers;
  int const alignment = tokens >= 128 * chunks * 4 ? 128 : 1;
  return pp::balanced_partition(
    tokens, chunks, pp::sequence_work::of_attention(attention / linear, tokens), alignment);
}

pp::cost_table predicted(choose_command const& asked, candidate const& one, pp::gpu const& on) {
  std::vector<pp::stage_content> const content = content_of(asked, one);
  if (one.choice.has_shards())
    return asked.predicted(on).costs_of_shards(
      one.extents, content, one.chunk_lengths, one.choice.adapted == adapter::vocabulary_1 ? 1 : 2);
  return asked.predicted(on).costs(one.extents, content, one.chunk_lengths);
}

//! The devices of a stage, of one between shards or of a shard: shard d of either end is on device
//! d.
std::vector<int> holders_in(candidate const& one, int stage) {
  if (!one.choice.has_shards())
    return pp::holders_of({one.extents}, stage);
  pp::shape const inside = extents_inside(one.choice);
  int const chain = stage - inside.devices;
  return chain < 0                 ? std::vector{stage}
         : chain < inside.stages() ? pp::holders_of({inside}, chain)
                                   : std::vector{chain - inside.stages()};
}

//! The times of passes and copies, and of messages.
pp::cost_table costs_of_passes(choose_command const& asked, candidate const& one) {
  if (asked.measured) {
    pp::cost_table cost =
      asked.measures_parts()
        ? pp::costs_for(cut_parts(*asked.measured, one.layers, asked), one.extents)
        : pp::costs_for(*asked.measured, one.extents);
    add_copies(asked, one, cost);
    return cost;
  }
  if (asked.gpus.size() == 1)
    return predicted(asked, one, asked.gpu(0));
  // Every stage as its own device runs it; where it has two, as the slower one does.
  std::vector<pp::cost_table> of_device;
  for (int device = 0; device < asked.devices; ++device)
    of_device.push_back(predicted(asked, one, asked.gpu(device)));
  pp::cost_table cost = of_device.front();
  for (int stage = 0; stage < one.extents.stages(); ++stage)
    for (pp::cost_table::timed_kind const& timed : cost.kinds())
      for (int chunk = 0; chunk < one.extents.chunks; ++chunk) {
        pp::pass const what = pp::row_writer::make(timed.kind, stage, 0, chunk);
        double slowest = 0;
        double exchanges = 0;
        for (int const device : holders_in(one, stage))
          if (pp::cost_table const& here = of_device[static_cast<std::size_t>(device)];
              here.duration(what) >= slowest) {
            slowest = here.duration(what);
            exchanges = here.exchanges(what);
          }
        cost.set(timed.kind, stage, chunk, slowest);
        cost.set_exchanges(timed.kind, stage, chunk, exchanges);
      }
  std::int64_t const longest = asked.predicted().widest_message(
    content_of(asked, one), *std::max_element(one.chunk_lengths.begin(), one.chunk_lengths.end()));
  set_links(cost, asked.devices, [&](int from, int to) {
    return seconds_between(asked, from, to, longest);
  });
  return cost;
}

} // namespace

part_times times_of_parts(choose_command const& asked, pp::gpu const& on, bool exchanges) {
  if (asked.measures_parts())
    return measured_parts(*asked.measured);
  pp::token_range const all{asked.setup.sequence, 0};
  auto const cost = [&](pp::stage_content const& content) {
    auto const time = [&](pp::pass_kind kind) {
      double const alone = asked.predicted(on).pass_seconds(content, kind, all);
      return exchanges ? alone
                       : alone - asked.predicted(on).exchange_seconds(content, kind, all.length);
    };
    return pp::layer_cost{time(pp::pass_kind::forward),
                          time(pp::pass_kind::backward_input),
                          time(pp::pass_kind::backward_weight)};
  };
  std::vector<int> const alone(static_cast<std::size_t>(asked.parts()), 1);
  std::vector<pp::layer_cost> layers;
  for (pp::stage_content each : asked.contents(alone)) {
    each.embedding = each.output = false;
    layers.push_back(cost(each));
  }
  return {std::move(layers), cost({.layers = 0, .output = true})};
}

std::vector<std::vector<int>>
cuts_of_layers(choose_command const& asked, pp::shape const& extents, bool shards) {
  int const stages = extents.stages();
  if (!asked.layout.empty()) {
    if (shards)
      throw std::invalid_argument("the layout has embedding and output layer in a stage, not in "
                                  "shards");
    int const given = static_cast<int>(asked.layout.size());
    if (stages != given)
      throw std::invalid_argument("it has " + std::to_string(stages) + " stages, the layout has " +
                                  std::to_string(given));
    return {asked.layout};
  }
  if (asked.measures_shares() && stages > asked.parts())
    throw std::invalid_argument("it has more stages than the model has layers, and measured times "
                                "do not say what a stage without a layer takes");
  if (asked.measures_shares())
    return {pp::even_partition(asked.parts(), stages)};
  std::vector<double> speeds;
  for (int stage = 0; stage < stages; ++stage) {
    speeds.push_back(HUGE_VAL);
    for (int const device : pp::holders_of({extents}, stage))
      speeds.back() = std::min(speeds.back(), asked.gpu(device).peak_tflops);
  }
  part_times parts = times_of_parts(asked, asked.gpu(0));
  pp::layer_ends ends{.first = parts.embedding};
  if (!shards)
    ends.last = parts.output;
  int const staying = staying_modules(asked, shards);
  for (int i = 0; i < staying; ++i) {
    ends.last += parts.layers.back();
    parts.layers.pop_back();
  }
  std::vector<std::vector<int>> cuts{pp::balanced_devices(parts.layers, {extents}, speeds, ends),
                                     pp::balanced_layers(parts.layers, stages, speeds, ends)};
  if (cuts.front() == cuts.back())
    cuts.pop_back();
  for (std::vector<int>& each : cuts)
    each.back() += staying;
  return cuts;
}

bool is_better_cut(choose_command const& asked, candidate const& one, candidate const& other) {
  bool const fits = one.gigabytes <= asked.memory_gb;
  if (fits != (other.gigabytes <= asked.memory_gb))
    return fits;
  constexpr double rounding = 1e-9;
  return fits ? one.seconds < other.seconds * (1 - rounding)
              : one.gigabytes < other.gigabytes * (1 - rounding);
}

std::vector<std::vector<int>> cuts_of(choose_command const& all, candidate const& one) {
  choose_command asked = all;
  if (one.sequences) { // those of a mean microbatch
    asked = sized_for(all, *one.sequences);
    std::size_t const pictures = all.lengths.size() * static_cast<std::size_t>(all.setup.pictures);
    asked.setup.pictures =
      static_cast<int>(std::max<std::size_t>(1, pictures / one.sequences->whole.size()));
  }
  pp::shape const inside = extents_inside(one.choice);
  std::vector<std::vector<int>> cuts;
  if (!find_schedule(one.choice.name).traits.cuts_layers)
    cuts = cuts_of_layers(asked, inside, one.choice.has_shards());
  else if (inside.stages() != 2 * asked.model.layers + 1)
    throw std::invalid_argument("a device has two stages for each of its layers, so "
                                "--stages-per-device must be twice the layers over the devices");
  else
    cuts.emplace_back(static_cast<std::size_t>(inside.stages())); // has parts of layers
  // Another cut has other passes.
  if (asked.frozen > 0 || (asked.experts && one.sequences))
    cuts.resize(1);
  return cuts;
}

std::vector<int>
chunk_lengths_of(choose_command const& asked, packed_sequences const* sequences, int chunks) {
  if (sequences == nullptr)
    return cut_sequence(asked, chunks);
  int longest = 0;
  for (pp::packed_microbatch const& microbatch : microbatches_of(*sequences, chunks))
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      longest = std::max(longest, tokens_of(chunk));
  return std::vector<int>(static_cast<std::size_t>(chunks), longest);
}

std::vector<pp::stage_content> content_of(choose_command const& asked, candidate const& one) {
  bool const named = !one.choice.name.empty(); // searched ones have no name
  if (named && find_schedule(one.choice.name).traits.cuts_layers)
    return pp::stage_content::of_parts(one.extents.stages() / 2);
  pp::transformer const& model = asked.model;
  return one.choice.has_shards() ? pp::stage_content::of_shards(one.layers,
                                                                one.extents.devices,
                                                                model.dense_layers,
                                                                model.encoder.layers,
                                                                model.modules)
                                 : asked.contents(one.layers);
}

std::vector<int> inner_modules(choose_command const& asked, candidate const& one) {
  std::vector<int> result;
  if (asked.model.modules == 0 || !one.groups.empty() || one.choice.has_shards())
    return result;
  std::vector<pp::stage_content> const content = content_of(asked, one);
  for (std::size_t stage = 1; stage + 1 < content.size(); ++stage)
    if (content[stage].modules > 0)
      result.push_back(static_cast<int>(stage));
  return result;
}

std::string layout_of(choose_command const& asked, candidate const& one) {
  if (is_apart(one.choice) || !one.groups.empty())
    return {};
  std::vector<std::string> stages;
  for (pp::stage_content const& each : asked.contents(one.layers))
    stages.push_back(std::string(static_cast<std::size_t>(each.encoders), 'e') +
                     std::string(static_cast<std::size_t>(each.layers), 't') +
                     std::string(static_cast<std::size_t>(each.modules), 'm'));
  if (!one.choice.has_shards()) { // else every device has a part of both ends
    stages.front() = 'E' + stages.front();
    stages.back() += 'L';
  }
  return pp::write_layout(stages);
}

double seconds_between(choose_command const& asked, int from, int to, std::int64_t tokens) {
  auto const seconds = [&](pp::gpu on, bool same) {
    if (!same)
      on.link_gb_per_s = on.network_gb_per_s;
    return asked.predicted(on).message_seconds(from, to, tokens);
  };
  bool const same = asked.gpu(from) == asked.gpu(to);
  return std::max(seconds(asked.gpu(from), same), seconds(asked.gpu(to), same));
}

pp::cost_table costs_of(choose_command const& asked, candidate const& one) {
  pp::cost_table cost = one.sequences ? packed_costs(asked, one) : costs_of_passes(asked, one);
  if (one.choice.gathers_weights())
    add_sharding(asked, one, cost);
  return cost;
}

std::vector<pp::stage_bytes> bytes_of(choose_command const& asked,
                                      std::vector<pp::stage_content> const& content,
                                      std::vector<int> const& chunk_lengths) {
  std::vector<pp::stage_bytes> result;
  for (pp::stage_content const& each : content)
    result.push_back(asked.predicted().bytes(each, chunk_lengths));
  return result;
}

void give_bytes(choose_command const& asked, candidate& one) {
  if (one.choice.room.empty())
    return;
  pp::stage_memory& memory = one.choice.memory = {};
  for (pp::stage_bytes const& each : bytes_of(asked, content_of(asked, one), one.chunk_lengths)) {
    memory.activation.push_back(static_cast<double>(each.activation));
    memory.resident.push_back(static_cast<double>(each.resident()));
  }
}

int copies_on(pp::timetable_view table, int stage, int device) {
  pp::shape const& extents = table.over.extents;
  bool const first_way = pp::device_of(table, stage, 0) == device;
  bool const other_way = extents.where == pp::placement::bidirectional &&
                         pp::device_of(table, stage, extents.microbatches - 1) == device;
  return first_way + other_way;
}

void count_devices(choose_command const& asked,
                   candidate& one,
                   std::function<held_at_once(int device)> const& of) {
  one.gigabytes = one.host_gigabytes = 0;
  one.device_gigabytes.clear();
  for (int device = 0; device < asked.devices; ++device) {
    held_at_once const held = of(device);
    one.host_gigabytes = std::max(one.host_gigabytes, held.on_host / 1e9);
    one.device_gigabytes.push_back(asked.gigabytes_of(device, held.bytes));
    one.gigabytes = std::max(one.gigabytes, one.device_gigabytes.back());
  }
}

held_at_once resident_on(choose_command const& asked,
                         candidate const& one,
                         pp::timetable_view table,
                         std::vector<pp::stage_bytes> const& bytes,
                         int device) {
  held_at_once result;
  for (int stage = 0; stage < one.extents.stages(); ++stage) {
    int const copies = copies_on(table, stage, device);
    pp::stage_bytes of = bytes[static_cast<std::size_t>(stage)];
    if (one.choice.shards_weights()) {
      of.weights = (of.weights + asked.setup.data - 1) / asked.setup.data;
      of.gradients = (of.gradients + asked.setup.data - 1) / asked.setup.data;
    }
    if (one.choice.adapted == adapter::weights_on_host &&
        pp::weights_on_host{}.leaves(one.extents, stage) && copies > 0) {
      result.on_host += static_cast<double>(of.weights + of.gradients + of.optimizer);
      of.weights = of.gradients = of.optimizer = 0;
    }
    result.bytes += copies * static_cast<double>(of.resident());
  }
  return result;
}

double
gathered_at_once(pp::timetable_view table, int device, std::vector<pp::stage_bytes> const& bytes) {
  auto const peak = [&](pp::slot_class of, std::int64_t pp::stage_bytes::*part) {
    return pp::peak_slot_bytes(table, device, of, [&](pp::pass const& what) {
      return static_cast<double>(bytes[what.stage].*part);
    });
  };
  return peak(pp::slot_class::weights, &pp::stage_bytes::weights) +
         peak(pp::slot_class::full_gradients, &pp::stage_bytes::gradients);
}

void count_memory(choose_command const& asked, pp::timetable_view table, candidate& one) {
  if (one.sequences)
    return count_packed_memory(asked, table, one);
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  std::vector<pp::stage_bytes> const bytes =
    bytes_of(asked, content_of(asked, one), one.chunk_lengths);
  bool const moves = table.offsets[asked.devices] != table.offsets[table.rows()];
  count_devices(asked, one, [&](int device) {
    auto const activation = [&](pp::pass const& what) {
      return static_cast<double>(bytes[what.stage].activation) * shares[what.chunk];
    };
    double held = pp::peak_slot_bytes(table, device, pp::slot_class::activation, activation);
    double const on_host =
      moves ? pp::peak_slot_bytes(table, device, pp::slot_class::host_activation, activation) : 0;
    held += pp::peak_kept_input_bytes(table, device, [&](pp::pass const& what) {
      // The first stage keeps tokens, others what the stage before has sent; and keys and values
      // for the chunks that come later, which travel as their gradients do.
      double const later =
        one.extents.chunks > 1 ? static_cast<double>(bytes[what.stage].carried) / 2 : 0;
      return shares[what.chunk] *
             (later + (what.stage == 0
                         ? 0
                         : static_cast<double>(bytes[what.stage - std::size_t{1}].message)));
    });
    held_at_once const there = resident_on(asked, one, table, bytes, device);
    if (one.choice.gathers_weights())
      held += gathered_at_once(table, device, bytes);
    return held_at_once{held + there.bytes, on_host + there.on_host};
  });
}

} // namespace examples
