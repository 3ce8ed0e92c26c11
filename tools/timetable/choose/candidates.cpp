// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which schedules `timetable choose` tries, and what each would take.
#include <future>
#include <thread>

#include "choose.hpp"
#include "search.hpp"
#include "tools/support/ahead.hpp"
#include "tools/timetable/progress_line.hpp"

namespace examples {
namespace {

//! A cost model whose passes vary: every pass of a sample by its own factor, the same for all
//! schedules.
class varying_cost {
public:
  //! @param fused whether the flow has passes of both halves, which vary each by itself
  varying_cost(any_cost const& base, double deviation, std::uint64_t sample, bool fused)
      : base_(base), deviation_(deviation), sample_(sample), fused_(fused) {}

  [[nodiscard]] double duration(pp::pass const& what) const {
    if (!fused_ || what.kind != pp::pass_kind::backward)
      return base_.duration(what) * factor(what);
    pp::pass half = what;
    half.kind = pp::pass_kind::backward_weight;
    double const weight = base_.duration(half);
    double const later = weight * factor(half);
    half.kind = pp::pass_kind::backward_input;
    return (base_.duration(what) - weight) * factor(half) + later;
  }
  //! What a pair saves varies as its passes do.
  [[nodiscard]] double pair_duration(pp::pass const& first, pp::pass const& second) const {
    double const apart = base_.duration(first) + base_.duration(second);
    return apart > 0
             ? base_.pair_duration(first, second) / apart * (duration(first) + duration(second))
             : 0;
  }
  [[nodiscard]] double latency() const { return base_.latency(); }
  [[nodiscard]] std::span<double const> links() const noexcept { return base_.links(); }

private:
  [[nodiscard]] double factor(pp::pass const& what) const {
    std::uint64_t const name = static_cast<std::uint64_t>(what.kind) << 48 |
                               static_cast<std::uint64_t>(what.stage) << 32 |
                               static_cast<std::uint64_t>(what.microbatch) << 16 | what.chunk;
    // The sum of four uniform numbers is near enough to a normal one: variance 1/3.
    double sum = -2;
    for (std::uint64_t i = 0; i < 4; ++i)
      sum += static_cast<double>(mix(name * 4 + i + sample_ * 0x9e3779b97f4a7c15) >> 11) /
             static_cast<double>(std::uint64_t{1} << 53);
    return std::max(0.1, 1 + deviation_ * sum * std::sqrt(3.0));
  }
  static std::uint64_t mix(std::uint64_t x) noexcept {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  any_cost const& base_;
  double deviation_;
  std::uint64_t sample_;
  bool fused_;
};

constexpr int samples = 40;

double percentile_95(pp::dynamic_timetable const& table, any_cost const& cost, double jitter) {
  std::vector<double> times;
  bool const fused = pp::detail::is_of_training(table.over.declared);
  for (int sample = 0; sample < samples; ++sample) {
    pp::device_orders const orders{table.over, table.passes, table.offsets};
    times.push_back(pp::makespan(pp::simulate(
      orders, varying_cost(cost, jitter, static_cast<std::uint64_t>(sample) + 1, fused))));
  }
  std::sort(times.begin(), times.end());
  return times[samples * 95 / 100];
}

std::string plain_type_of(schedule_choice const& c) {
  // A searched one has no name, and bytes of devices no type.
  std::string const type = c.name.empty() || !c.room.empty() ? "" : written_type(c);
  return type.empty() ? type : "pipelining::" + type;
}

} // namespace

std::string type_of(schedule_choice const& c) {
  std::string const plain = plain_type_of(c);
  if (plain.empty() || c.adapted == adapter::none)
    return plain;
  switch (c.adapted) {
  case adapter::recompute:
    return "pipelining::with_recompute<" + plain + ", pipelining::recompute::where_it_frees>";
  case adapter::offload: return "pipelining::with_offload<" + plain + ">";
  case adapter::sharded_weights: return "pipelining::with_sharded_weights<" + plain + ">";
  case adapter::weights_on_host:
    return "pipelining::with_sharded_weights<" + plain + ", pipelining::weights_on_host>";
  case adapter::vocabulary_1: return "pipelining::with_vocabulary<" + plain + ", 1>";
  case adapter::vocabulary_interlaced:
    return "pipelining::with_vocabulary<" + plain + ", pipelining::interlaced>";
  default: return "pipelining::with_vocabulary<" + plain + ">";
  }
}

namespace {

//! Copies that a run without them has not measured take the link to the host.
void add_copies(choose_command const& asked, candidate const& one, pp::cost_table& cost) {
  std::vector<pp::stage_content> const content = content_of(asked, one);
  for (int stage = 0; stage < one.extents.stages(); ++stage)
    for (int chunk = 0; chunk < one.extents.chunks; ++chunk)
      for (pp::pass_kind const kind : {pp::pass_kind::copy_out, pp::pass_kind::copy_in})
        if (!(cost.duration(pp::row_writer::make(kind, stage, 0, chunk)) > 0))
          cost.set(
            kind,
            stage,
            chunk,
            asked.predicted().copy_seconds(content[static_cast<std::size_t>(stage)],
                                           one.chunk_lengths[static_cast<std::size_t>(chunk)]));
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

} // namespace

std::string label_of(schedule_choice const& c) {
  std::string text = c.name;
  for (named_option const& each : named_option::all())
    if (each.number != nullptr && each.which != option::keep && each.given(c))
      pp::append(text, " ", each.name, " ", *(c.*each.number));
  if (c.memory_limit)
    pp::append(text, " --memory-limit ", static_cast<int>(*c.memory_limit));
  bool const alike = std::equal(c.room.begin() + !c.room.empty(), c.room.end(), c.room.begin());
  for (std::size_t d = 0; d < (alike ? std::min<std::size_t>(1, c.room.size()) : c.room.size());
       ++d)
    text += (d == 0 ? " --memory " : ",") + rounded(c.room[d] / 1e9, 3) + "GB";
  text += c.eager ? " --eager" : "";
  if (c.frozen > 0)
    text += " --frozen " + std::to_string(c.frozen);
  if (!c.adapted_stages.empty())
    text += " --on-stages " + write_stage_numbers(c.adapted_stages);
  schedule_choice const usual;
  if (c.resident != usual.resident)
    text += " --resident " + std::to_string(c.resident);
  if (c.prefetch != usual.prefetch)
    text += " --prefetch " + std::to_string(c.prefetch);
  return in_adapter(text, c.adapted);
}

namespace {

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
  result.times =
    of.times.reshaped({.devices = result.stages, .chunks = of.chunks}, of.times.latency());
  int part = 0;
  for (int stage = 0; stage < result.stages; ++stage) {
    bool const last = stage + 1 == result.stages;
    int const end = last ? of.stages
                         : part + layers[static_cast<std::size_t>(stage)] +
                             (stage == 0 ? 1 : 0); // with the embedding
    for (; part < end; ++part)
      for (pp::cost_table::timed_kind const& timed : of.times.kinds())
        for (int i = 0; i < of.times.microbatches(); ++i)
          for (int chunk = 0; chunk < of.chunks; ++chunk) {
            pp::pass const into = pp::row_writer::make(timed.kind, stage, i, chunk);
            pp::pass from = into;
            from.stage = static_cast<decltype(from.stage)>(part);
            bool const goes = part > asked.frozen || asked.frozen == 0 ||
                              pp::detail::training_kind(timed.kind).is == pp::role::forward;
            if (goes)
              result.times.set(into, result.times.duration(into) + of.times.duration(from));
          }
  }
  return result;
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

std::vector<int> cut_sequence(choose_command const& asked, int chunks) {
  int const tokens = static_cast<int>(asked.setup.sequence);
  if (chunks == 1)
    return {tokens};
  if (asked.measured)
    return pp::even_partition(tokens, chunks);
  pp::token_range const all{tokens, 0};
  double const linear =
    pp::detail::of_layers(asked.model,
                          asked.model.layers,
                          asked.model.dense_layers,
                          [&](pp::transformer const& of) { return of.linear_flops(all); }) /
      asked.reached.linear +
    asked.model.vocabulary_flops(all) / asked.reached.vocabulary;
  double const attention = asked.model.attention_flops(pp::pass_kind::forward, all) /
                           asked.reached.attention * asked.model.layers;
  int const alignment = tokens >= 128 * chunks * 4 ? 128 : 1;
  return pp::balanced_partition(
    tokens, chunks, pp::sequence_work::of_attention(attention / linear, tokens), alignment);
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

void count_memory(choose_command const& asked, pp::timetable_view table, candidate& one) {
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  std::vector<pp::stage_bytes> const bytes =
    bytes_of(asked, content_of(asked, one), one.chunk_lengths);
  bool const moves = table.offsets[asked.devices] != table.offsets[table.rows()];
  one.device_gigabytes.clear();
  for (int device = 0; device < asked.devices; ++device) {
    auto const activation = [&](pp::pass const& what) {
      return static_cast<double>(bytes[what.stage].activation) * shares[what.chunk];
    };
    double held = pp::peak_slot_bytes(table, device, pp::slot_class::activation, activation);
    double on_host =
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
    for (int stage = 0; stage < one.extents.stages(); ++stage) {
      int const copies = copies_on(table, stage, device);
      pp::stage_bytes of = bytes[static_cast<std::size_t>(stage)];
      if (one.choice.shards_weights()) {
        of.weights = (of.weights + asked.setup.data - 1) / asked.setup.data;
        of.gradients = (of.gradients + asked.setup.data - 1) / asked.setup.data;
      }
      if (one.choice.adapted == adapter::weights_on_host &&
          pp::weights_on_host{}.leaves(one.extents, stage) && copies > 0) {
        on_host += static_cast<double>(of.weights + of.gradients + of.optimizer);
        of.weights = of.gradients = of.optimizer = 0;
      }
      held += copies * static_cast<double>(of.resident());
    }
    if (one.choice.gathers_weights())
      held += pp::peak_slot_bytes(table,
                                  device,
                                  pp::slot_class::weights,
                                  [&](pp::pass const& what) {
                                    return static_cast<double>(bytes[what.stage].weights);
                                  }) +
              pp::peak_slot_bytes(
                table, device, pp::slot_class::full_gradients, [&](pp::pass const& what) {
                  return static_cast<double>(bytes[what.stage].gradients);
                });
    one.host_gigabytes = std::max(one.host_gigabytes, on_host / 1e9);
    one.device_gigabytes.push_back(asked.gigabytes_of(device, held));
    one.gigabytes = std::max(one.gigabytes, one.device_gigabytes.back());
  }
}

void measure_time(choose_command const& asked,
                  pp::dynamic_timetable const& table,
                  any_cost const& cost,
                  candidate& one) {
  one.seconds = pp::makespan(table);
  one.bubble = pp::bubble_rate(table);
  one.ranked = asked.jitter > 0 ? percentile_95(table, cost, asked.jitter) : one.seconds;
  one.latency = cost.latency();
}

void measure(choose_command const& asked,
             pp::dynamic_timetable const& table,
             pp::cost_table const& cost,
             candidate& one) {
  measure_time(asked, table, cost, one);
  count_memory(asked, table, one);
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  pp::time_bounds::options options{.chunk_shares = shares};
  if (!one.choice.swept) // a search may hold more, but for its own limit
    options.memory_limit = 0;
  else if (one.choice.memory_limit && !one.choice.has_shards())
    options.memory_limit = *one.choice.memory_limit;
  for (int device = 0; device < asked.devices && !one.choice.swept; ++device)
    options.memory_limit =
      std::max(options.memory_limit, pp::peak_activations(table, device, shares) * (1 + 1e-12));
  if (one.choice.adapted == adapter::recompute &&
      !find_schedule(one.choice.name).traits.cuts_layers)
    options.relief =
      std::any_of(table.passes.begin(),
                  table.passes.end(),
                  [](pp::pass const& what) { return what.kind == pp::pass_kind::forward; })
        ? pp::memory_relief::recompute
        : pp::memory_relief::recompute_all;
  if (one.choice.adapted == adapter::offload)
    options.relief = pp::memory_relief::copy;
  if (one.choice.frozen > 0) { // paths of frozen stages are not known
    for (int device = 0; device < asked.devices; ++device)
      one.bound = std::max(one.bound, pp::busy(table, device));
    return;
  }
  // What waits for exchanges in one order hides them in another.
  pp::cost_table const hidden = cost.without_exchanges();
  one.bound = pp::least_times(table.over, hidden, options).makespan.least();
}

int frozen_stages(choose_command const& asked, std::vector<int> const& layers) {
  int before = 0;
  int count = 0;
  if (asked.frozen > 0)
    while (count + 1 < static_cast<int>(layers.size()) &&
           (before += layers[static_cast<std::size_t>(count)]) <= asked.frozen)
      ++count;
  return count;
}

candidate without_layers(choose_command const& asked, schedule_choice const& choice) {
  candidate one;
  one.choice = choice;
  one.label = label_of(choice);
  one.type = type_of(choice);
  one.extents = arrange(choice);
  one.chunk_lengths = cut_sequence(asked, one.extents.chunks);
  return one;
}

std::vector<std::vector<int>> cuts_of(choose_command const& asked, candidate const& one) {
  pp::shape const inside = extents_inside(one.choice);
  std::vector<std::vector<int>> cuts;
  if (!find_schedule(one.choice.name).traits.cuts_layers)
    cuts = cuts_of_layers(asked, inside, one.choice.has_shards());
  else if (inside.stages() != 2 * asked.model.layers + 1)
    throw std::invalid_argument("a device has two stages for each of its layers, so "
                                "--stages-per-device must be twice the layers over the devices");
  else
    cuts.emplace_back(static_cast<std::size_t>(inside.stages())); // has parts of layers
  if (asked.frozen > 0)                                           // another cut has other passes
    cuts.resize(1);
  return cuts;
}

void check_copies(schedule_choice const& choice, pp::timetable_view table) {
  auto const devices = table.over.extents.devices;
  if (choice.adapted == adapter::offload && table.offsets[devices] == table.offsets[2 * devices])
    throw std::invalid_argument("no activation idles for as long as its copies take");
}

namespace {

//! With its layers as they are.
evaluated evaluate_whole(choose_command const& asked,
                         schedule_choice const& choice,
                         made_orders& made,
                         std::vector<int> const& cut) {
  named_schedule const& schedule = find_schedule(choice.name);
  if (schedule.traits.weights_travel || schedule.traits.stages_go_one_way ||
      choice.adapted == adapter::attention_exchange)
    return evaluate_apart(asked, choice);
  candidate const plain = without_layers(asked, choice);
  return with_best_cut(
    asked,
    cut.empty() ? cuts_of(asked, plain) : std::vector<std::vector<int>>{cut},
    [&](std::vector<int> const& layers) {
      candidate one = plain;
      one.layers = layers;
      one.choice.frozen = frozen_stages(asked, layers);
      if (one.choice.frozen > 0) {
        one.label = label_of(one.choice);
        one.type.clear(); // the type of a schedule says nothing of frozen stages
      }
      give_bytes(asked, one);
      pp::cost_table const cost = costs_of(asked, one);
      // Orders are kept by the times of the first microbatch.
      made_orders* const kept = cost.microbatches() > 1 ? nullptr : &made;
      pp::dynamic_timetable table = make_named_timetable(one.choice, cost, kept, false);
      check_copies(choice, table);
      measure(asked, table, cost, one);
      return evaluated{std::move(one), std::move(table)};
    },
    [&](candidate const& one) { return costs_of(asked, one); },
    [&](pp::timetable_view table, candidate& one) { count_memory(asked, table, one); });
}

} // namespace

evaluated evaluate(choose_command const& asked,
                   schedule_choice const& choice,
                   made_orders& made,
                   std::vector<int> const& cut) {
  evaluated whole = evaluate_whole(asked, choice, made, cut);
  if (!asked.experts) {
    whole.what.order = hash_of(whole.table);
    return whole;
  }
  any_cost const cost = costs_of(asked, whole.what);
  packing const alike{{{{0, 0, static_cast<int>(asked.setup.sequence)}}}};
  return cut_at_experts(asked, std::move(whole), cost, alike);
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

namespace {

pp::cost_table predicted(choose_command const& asked, candidate const& one, pp::gpu const& on) {
  std::vector<pp::stage_content> const content = content_of(asked, one);
  if (one.choice.has_shards())
    return asked.predicted(on).costs_of_shards(
      one.extents, content, one.chunk_lengths, one.choice.adapted == adapter::vocabulary_1 ? 1 : 2);
  return asked.predicted(on).costs(one.extents, content, one.chunk_lengths);
}

} // namespace

double seconds_between(choose_command const& asked, int from, int to, std::int64_t tokens) {
  auto const seconds = [&](pp::gpu on, bool same) {
    if (!same)
      on.link_gb_per_s = on.network_gb_per_s;
    return asked.predicted(on).message_seconds(from, to, tokens);
  };
  bool const same = asked.gpu(from) == asked.gpu(to);
  return std::max(seconds(asked.gpu(from), same), seconds(asked.gpu(to), same));
}

namespace {

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
  for (int from = 0; from < asked.devices; ++from)
    for (int to = 0; to < asked.devices; ++to)
      if (from != to)
        cost.set_link(from, to, seconds_between(asked, from, to, longest));
  return cost;
}

} // namespace

pp::cost_table costs_of(choose_command const& asked, candidate const& one) {
  pp::cost_table cost = costs_of_passes(asked, one);
  if (one.choice.gathers_weights())
    add_sharding(asked, one, cost);
  return cost;
}

namespace {

//! True where devices hold several stages one after the other: passes of those before the last hide
//! the loads of its weights.
bool is_looped(schedule_choice choice) {
  choice.adapted = adapter::none;
  try {
    pp::shape const extents = arrange(choice);
    return extents.where == pp::placement::looped && extents.stages_per_device > 1;
  } catch (std::invalid_argument const&) {
    return false; // it says so where it stands alone
  }
}

//! Weights in shards may stay as long as there is room, up to all of a device, and be gathered as
//! far ahead as those that stay have slots.
void add_residencies(std::vector<schedule_choice>& calls) {
  std::vector<schedule_choice> more;
  for (schedule_choice call : calls)
    for (int const held =
           call.adapted == adapter::sharded_weights ? call.stages_per_device.value_or(1) : 1;
         call.resident < held;) {
      ++call.resident;
      call.prefetch = 1;
      more.push_back(call);
      call.prefetch = call.resident - 1;
      more.push_back(call);
    }
  calls.insert(calls.end(), more.begin(), more.end());
}

} // namespace

bool is_apart(schedule_choice const& choice) {
  if (choice.name.empty()) // a searched one
    return false;
  named_schedule const& schedule = find_schedule(choice.name);
  return schedule.traits.cuts_layers || schedule.traits.weights_travel ||
         schedule.traits.stages_go_one_way || choice.adapted == adapter::attention_exchange;
}

std::vector<schedule_choice> calls_apart(named_schedule const& schedule,
                                         choose_command const& asked) {
  schedule_choice call;
  call.name = std::string(schedule.name);
  call.devices = asked.devices;
  call.microbatches = asked.microbatches;
  int const layers_of_device = asked.model.layers / asked.devices;
  if (schedule.traits.weights_travel)
    return {call};
  if (schedule.traits.stages_go_one_way) {
    call.adapted = adapter::sharded_weights; // which lie on the host
    return {call};
  }
  if (schedule.traits.cuts_layers) {
    call.stages_per_device = 2 * layers_of_device;
    if (asked.microbatches % (2 * asked.devices) == 0)
      call.group = 2; // the paper's, which hides messages
    std::vector<schedule_choice> calls{call, call};
    calls.back().adapted = adapter::recompute; // but for attention
    return calls;
  }
  call.stages_per_device = layers_of_device; // a stage is a layer
  call.adapted = adapter::attention_exchange;
  return schedule.traits.exchanges_attention ? std::vector{call} : std::vector<schedule_choice>{};
}

bool is_wanted(named_schedule const& schedule, choose_command const& asked) {
  std::vector<std::string> const& names = asked.schedules;
  return names.empty() || std::find(names.begin(), names.end(), schedule.name) != names.end();
}

namespace {

//! Every call with each of the values of one more option.
template <class Value, class Set>
void vary(std::vector<schedule_choice>& calls, std::vector<Value> const& values, Set const& set) {
  std::vector<schedule_choice> more;
  for (schedule_choice const& call : calls)
    for (auto const& value : values) {
      more.push_back(call);
      set(more.back(), value);
    }
  calls = std::move(more);
}

//! Limits of memory to search under, in activations of a stage.
std::vector<int> memory_limits(named_schedule const& schedule, int devices) {
  int const p = devices;
  std::vector<int> values{p, p + p / 2, 2 * p};
  if (schedule.traits.stages_per_device > 1) // the devices of a V hold two stages each
    values = {std::max(2, 2 * ((p + 4) / 3)), p + p / 3, 2 * p - p / 3, 2 * p};
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

//! Calls with the values of all options that a schedule has.
void vary_options(named_schedule const& schedule,
                  choose_command const& asked,
                  std::vector<schedule_choice>& calls) {
  if (has(schedule.takes, option::chunks)) {
    bool const over_chunks = schedule.traits.over_chunks;
    std::vector<std::optional<int>> values;
    if (!over_chunks)
      values.push_back(std::nullopt);
    for (int const chunks : {2, 4, 8})
      if ((over_chunks || chunks < 8) && asked.setup.sequence / chunks >= 64)
        values.push_back(chunks);
    vary(calls, values, [](schedule_choice& c, std::optional<int> value) { c.chunks = value; });
  }
  if (has(schedule.takes, option::stages_per_device)) {
    std::vector<int> values;
    int const given = static_cast<int>(asked.layout.size()) / asked.devices;
    for (int const count : given > 0 ? std::vector<int>{given} : std::vector<int>{1, 2, 4})
      if ((count > 1 || schedule.traits.two_copies) &&
          std::int64_t{count} * asked.devices <= asked.parts() + 2) // with both ends
        values.push_back(count);
    vary(calls, values, [](schedule_choice& c, int value) { c.stages_per_device = value; });
  }
  if (has(schedule.takes, option::group) && !has(schedule.takes, option::stages_per_device))
    vary(calls, std::vector<int>{2, 4}, [](schedule_choice& c, int value) { c.group = value; });
  if (has(schedule.takes, option::eager))
    vary(calls, std::vector<bool>{false, true}, [](schedule_choice& c, bool value) {
      c.eager = value;
    });
  if (has(schedule.takes, option::memory_limit)) {
    vary(calls, memory_limits(schedule, asked.devices), [](schedule_choice& c, int value) {
      c.memory_limit = value;
    });
    // These searches take longest; with chunks, the blocks that they start from do as well.
    std::erase_if(calls, [](schedule_choice const& c) { return c.chunks.has_value(); });
  }
}

//! Calls in all adapters that the command can have.
void vary_adapters(choose_command const& asked, std::vector<schedule_choice>& calls) {
  std::vector<adapter> adapters{adapter::none, adapter::recompute, adapter::offload};
  // Costs from a file do not know shards.
  if (!asked.measured && asked.layout.empty() && asked.devices > 1)
    adapters.insert(adapters.end(),
                    {adapter::vocabulary_1, adapter::vocabulary_2, adapter::vocabulary_interlaced});
  if (asked.setup.data > 1)
    adapters.push_back(adapter::sharded_weights);
  adapters.push_back(adapter::weights_on_host);
  vary(calls, adapters, [](schedule_choice& c, adapter value) { c.adapted = value; });
  std::erase_if(calls, [](schedule_choice const& c) {
    return c.adapted == adapter::weights_on_host && !is_looped(c);
  });
  add_residencies(calls);
}

} // namespace

std::vector<schedule_choice> calls_of(named_schedule const& schedule, choose_command const& asked) {
  if (has(schedule.takes, option::keep) || !is_wanted(schedule, asked))
    return {}; // the first are for sequences of unequal length; here they are of one
  // No type is written down of these, and costs are predicted alone.
  bool const apart = !asked.measured && asked.layout.empty() && asked.gpus.size() == 1 &&
                     asked.lengths.empty() && asked.format != "header" &&
                     asked.model.dense_layers == 0 && asked.frozen == 0 &&
                     asked.parts() == asked.model.layers && asked.model.layers >= asked.devices;
  std::vector<schedule_choice> const others =
    apart ? calls_apart(schedule, asked) : std::vector<schedule_choice>{};
  if (schedule.traits.cuts_layers || schedule.traits.weights_travel ||
      schedule.traits.stages_go_one_way)
    return others;
  schedule_choice base;
  base.name = std::string(schedule.name);
  base.devices = asked.devices;
  base.microbatches = asked.microbatches;
  std::vector<schedule_choice> calls{base};
  vary_options(schedule, asked, calls);
  vary_adapters(asked, calls);
  if (has(schedule.takes, option::memory_limit) && schedule.traits.stages_per_device == 1 &&
      asked.lengths.empty() && asked.format != "header") { // whose type cannot have bytes
    calls.push_back(base);
    for (int device = 0; device < asked.devices; ++device)
      calls.back().room.push_back(asked.room_gb(device) * 1e9);
  }
  if (schedule.traits.sees_recomputation) // next to nothing is held before it
    for (int const limit : {1, 2}) {
      base.memory_limit = limit;
      base.adapted = adapter::recompute;
      if (limit < asked.devices)
        calls.push_back(base);
    }
  calls.insert(calls.end(), others.begin(), others.end());
  return calls;
}

namespace {

//! Whether few rows are shown, so that most orders need no search.
bool shows_few(choose_command const& asked) {
  return asked.format == "text" && !asked.all && !asked.search && asked.jitter == 0;
}

} // namespace

named_so_far::named_so_far(choose_command const& asked,
                           candidates const& found,
                           candidate const* but) {
  std::vector<double> times;
  auto const counts = [&](candidate const& one) {
    return one.judged && one.cannot.empty() && &one != but;
  };
  for (candidate const& each : found.all) {
    if (!counts(each))
      continue;
    least = std::min(least, each.gigabytes);
    if (surely_fits(asked, each))
      sure = std::min(sure, each.seconds);
    if (each.gigabytes > asked.memory_gb)
      continue;
    times.push_back(each.seconds);
    if (!each.choice.swept && each.extents.chunks == 1)
      whole = std::min(whole, each.seconds);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  if (!times.empty())
    fastest = times.front();
  if (times.size() >= 4)
    fourth = std::max(times[3], fastest * (1 + pp::memory_choice::equal));
  for (candidate const& each : found.all)
    if (counts(each) && each.gigabytes > asked.memory_gb && each.seconds < fastest)
      next = std::min(next, each.gigabytes);
}

bool may_be_shown(choose_command const& asked, candidate const& one, candidates const& found) {
  // Searches have saved 29 % of an order between shards, 18 % of others.
  double const most_gain = one.choice.has_shards() ? 0.3 : 0.2;
  candidate smaller = one;
  smaller.gigabytes *= 1 - most_gain; // of memory, too
  named_so_far const named(asked, found, &one);
  double const least = std::max(one.bound, one.seconds * (1 - most_gain));
  if (smaller.gigabytes <= asked.memory_gb &&
      (least <= named.fourth || (one.extents.chunks == 1 && least < named.whole)))
    return true;
  bool const makes_room = least < named.fastest && one.choice.adapted == adapter::none;
  bool const more_memory = least < named.fastest && smaller.gigabytes < named.next;
  bool const surest = surely_fits(asked, smaller) && least < named.sure;
  return (makes_room || more_memory || surest || smaller.gigabytes <= named.least) &&
         std::none_of(found.all.begin(), found.all.end(), [&](candidate const& each) {
           return each.judged && each.cannot.empty() && &each != &one &&
                  each.gigabytes <= one.gigabytes && each.seconds <= least;
         });
}

std::size_t ahead_of(choose_command const& asked, unsigned each) {
  unsigned const threads =
    asked.threads > 0 ? static_cast<unsigned>(asked.threads) : std::thread::hardware_concurrency();
  return threads > 1 ? each * threads : 0;
}

evaluated evaluate_swept(choose_command const& asked, schedule_choice choice, made_orders& orders) {
  if (choice.swept)
    try {
      return evaluate(asked, choice, orders);
    } catch (std::invalid_argument const&) {
      choice.swept = false;
    }
  return evaluate(asked, choice, orders);
}

namespace {

//! Searches for the orders that sweeps have made, as far as that can change what is shown.
//! @return whether there was one
bool search_orders(choose_command const& asked, progress_line& line, candidates& found) {
  std::vector<std::size_t> swept;
  for (std::size_t i = 0; i < found.all.size(); ++i)
    if (found.all[i].judged && found.all[i].choice.swept && found.all[i].cannot.empty())
      swept.push_back(i);
  std::ranges::stable_sort(swept, {}, [&](std::size_t i) { return found.all[i].seconds; });
  int const before = found.searched;
  std::vector<schedule_choice> choices;
  for (std::size_t const i : swept) {
    choices.push_back(found.all[i].choice);
    choices.back().swept = false;
  }
  take_in_order(
    swept.size(),
    ahead_of(asked, 2),
    [&](std::size_t k) { return may_be_shown(asked, found.all[swept[k]], found); },
    [&](std::size_t k) { return evaluate(asked, choices[k], *found.orders); },
    [&](std::size_t k, std::future<evaluated> made) {
      ++found.searched;
      candidate& old = found.all[swept[k]];
      line.say("searching for the order of " + old.label);
      try {
        evaluated const anew = made.get();
        add_candidate(asked, anew, found);
        found.all[swept[k]] = std::move(found.all.back());
        found.all.pop_back();
      } catch (std::invalid_argument const& error) { // activations idle for too short in it
        old.choice.swept = false;
        old.cannot = error.what();
      }
    });
  return found.searched > before;
}

//! The stages of the devices that have not enough memory, one more of each: what its first stage
//! keeps waits longest.
//! @return whether there was one
bool add_short_stages(choose_command const& asked, candidate const& one, std::vector<int>& stages) {
  std::size_t const before = stages.size();
  for (int device = 0; device < asked.devices; ++device) {
    if (one.device_gigabytes[static_cast<std::size_t>(device)] <= asked.memory_gb)
      continue;
    for (int stage = 0; stage < one.extents.stages(); ++stage) {
      std::vector<int> const holders = pp::holders_of({one.extents}, stage);
      if (std::find(holders.begin(), holders.end(), device) != holders.end() &&
          std::find(stages.begin(), stages.end(), stage) == stages.end()) {
        stages.push_back(stage);
        break;
      }
    }
  }
  std::sort(stages.begin(), stages.end());
  return stages.size() > before;
}

//! Recomputation or copies to the host only on the stages of devices that lack memory, stage by
//! stage as far as that is needed.
//! @param plain without the adapter, too large @param which the adapter
void add_relieved(choose_command const& asked,
                  candidate plain,
                  adapter which,
                  evaluate_again const& evaluate,
                  candidates& found) {
  std::vector<int> stages;
  schedule_choice choice = plain.choice;
  choice.adapted = which;
  while (plain.gigabytes > asked.memory_gb && add_short_stages(asked, plain, stages)) {
    if (static_cast<int>(stages.size()) == plain.extents.stages())
      return; // which stands in the table
    choice.adapted_stages = stages;
    evaluated made = evaluate(plain, choice, {});
    plain = made.what;
    if (plain.gigabytes <= asked.memory_gb)
      add_candidate(asked, made, found);
  }
}

} // namespace

void add_relieved(choose_command const& asked,
                  evaluate_again const& evaluate,
                  std::function<void(std::string const&)> const& say,
                  candidates& found) {
  std::vector<std::size_t> order(found.all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&found](std::size_t i) { return found.all[i].seconds; });
  for (std::size_t const i : order) {
    candidate const plain = found.all[i];
    schedule_choice const& choice = plain.choice;
    if (choice.adapted != adapter::none || choice.swept || !plain.groups.empty() ||
        is_apart(choice) || !plain.cannot.empty() || plain.gigabytes <= asked.memory_gb ||
        plain.seconds >= found.fastest || find_schedule(choice.name).traits.places_stages)
      continue;
    say("making room on the devices that lack it, " + plain.label);
    for (adapter const which : {adapter::recompute, adapter::offload})
      try {
        add_relieved(asked, plain, which, evaluate, found);
      } catch (std::invalid_argument const&) {
        // It has no such adapter, or no activation idles for long enough.
      }
  }
}

namespace {

//! Evaluates a choice, or says only whether it fits.
evaluated
evaluate_first(choose_command const& asked, schedule_choice const& choice, made_orders& orders) {
  try {
    if (!asked.experts) // whose orders have other passes
      if (std::optional<candidate> one = without_times(asked, choice, orders))
        return {std::move(*one), {}};
  } catch (std::invalid_argument const&) {
    // It says so again, or another order of its schedule can have its adapter.
  }
  return evaluate_swept(asked, choice, orders);
}

} // namespace

candidates evaluate_all(choose_command const& asked) {
  std::vector<schedule_choice> calls;
  for (named_schedule const& schedule : named_schedules())
    for (schedule_choice const& call : calls_of(schedule, asked)) {
      calls.push_back(call);
      calls.back().swept = schedule.traits.sweeps && shows_few(asked);
    }
  if (shows_few(asked)) // schedules by themselves take least, and are a first answer
    std::ranges::stable_sort(
      calls, {}, [](auto const& one) { return one.adapted != adapter::none; });
  candidates result;
  std::vector<choose_start> starts;
  made_orders& orders = *result.orders;
  std::string best; // an answer before the end
  progress_line line(HUGE_VAL, 0.4);
  take_in_order(
    calls.size(),
    ahead_of(asked, 12),
    [](std::size_t) { return true; },
    [&](std::size_t i) {
      return shows_few(asked) ? evaluate_first(asked, calls[i], orders)
                              : evaluate(asked, calls[i], orders);
    },
    [&](std::size_t i, std::future<evaluated> coming) {
      line.say(std::to_string(i) + " of " + std::to_string(calls.size()) + ", " + best +
               label_of(calls[i]));
      try {
        evaluated made = coming.get();
        add_candidate(asked, made, result);
        candidate const& last = result.all.back();
        if (last.ranked == result.fastest)
          best = "fastest so far " + last.label + ", " + rounded(last.ranked, 3) + " s, now ";
        if (asked.search && last.cannot.empty() && calls[i].adapted == adapter::none &&
            !is_apart(calls[i]) && made.table.over.declared == pp::training)
          starts.push_back({result.all.size() - 1,
                            {std::move(made.table.over),
                             std::move(made.table.passes),
                             std::move(made.table.offsets)}});
      } catch (std::invalid_argument const& error) {
        result.refused.push_back(label_of(calls[i]) + ": " + error.what());
      }
    });
  if (shows_few(asked))
    do
      while (!asked.experts && judge_named(asked, result)) {
      }
    while (search_orders(asked, line, result));
  evaluate_again const again =
    [&](candidate const&, schedule_choice const& choice, std::vector<int> const& cut) {
      return evaluate(asked, choice, orders, cut);
    };
  add_relieved(
    asked, again, [&line](std::string const& text) { line.say(text); }, result);
  line.end();
  if (!starts.empty())
    add_searched(asked, starts, result);
  if (asked.search && asked.experts)
    add_searched_experts(asked, again, result);
  return result;
}

} // namespace examples
