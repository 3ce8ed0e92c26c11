// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "make.hpp"

#include "files.hpp"
#include "patience.hpp"

namespace examples {
namespace {

//! Timetables beyond this take more memory than a small machine has, pictures more than a viewer.
constexpr std::int64_t most_passes = std::int64_t{1} << 25;
constexpr std::int64_t most_cells = std::int64_t{1} << 19;
constexpr std::int64_t most_drawn = std::int64_t{1} << 17;
constexpr std::int64_t most_events = std::int64_t{1} << 21;
constexpr std::int64_t most_planned = std::int64_t{1} << 21;

//! The times of the work of one token and of one pair of tokens, forward and backward together, for
//! times of whole passes: what chunks of equal time are cut by.
pp::sequence_work work_to_cut(pp::uniform_cost const& cost, double ratio, int tokens) {
  double const backward = 1 + 2.5 * ratio;
  return {.linear =
            cost.forward / (1 + ratio) + cost.backward_input / backward + cost.backward_weight,
          .quadratic = 2 * ratio *
                       (cost.forward / (1 + ratio) + 2.5 * cost.backward_input / backward) / tokens,
          .backward_linear = 0,
          .backward_quadratic = 0};
}

pp::dynamic_timetable
make_in_time(command const& asked, schedule_choice const& choice, any_cost const& cost) {
  return with_patience<pp::dynamic_timetable>(choice.name, asked.limit_seconds, [choice, cost] {
    return make_named_timetable(choice, cost);
  });
}

//! The times of `times` of `pieces` equal parts of the work.
pp::uniform_cost part_of(pp::uniform_cost const& work, double times, double pieces) {
  auto const part = [&](double time) { return time < 0 ? time : time * times / pieces; };
  pp::uniform_cost result{part(work.forward),
                          part(work.backward_input),
                          part(work.backward_weight),
                          work.communication,
                          part(work.overlapped_pair)};
  result.all_reduce = part(work.all_reduce);
  return result;
}

//! The costs of a file or a layout, for one pipeline.
void take_measured(made_table& made, command const& asked, pp::shape const& extents) {
  pp::cost_table const costs = costs_of_stages(asked, extents);
  made.cost = mean_of(costs, extents);
  made.model = costs;
}

//! What passes of a choice take.
//! @param mean of a chunk on a stage. @param of the same by stage and chunk, as far as it is known
any_cost model_for(command const& asked,
                   schedule_choice const& choice,
                   std::vector<int> const& chunk_lengths,
                   pp::uniform_cost const& mean,
                   any_cost const& of) {
  if (choice.adapted == adapter::attention_exchange)
    return cost_by_parts(choice, mean, asked.attention_ratio.value());
  any_cost model = of;
  if (!chunk_lengths.empty())
    model = pp::chunk_costs(
      shown_extents(choice),
      chunk_lengths,
      pp::sequence_work::of_attention(asked.attention_ratio.value(), asked.tokens.value()),
      mean);
  return find_schedule(choice.name).traits.stages_go_one_way ? cost_by_layers(choice, model)
                                                             : model;
}

//! The same for all mean costs that one may ask for.
std::function<any_cost(pp::uniform_cost const&)>
models_of(command const& asked, schedule_choice const& choice, made_table const& made) {
  return [asked, choice, lengths = made.chunk_lengths, mean = made.cost, usual = made.model](
           pp::uniform_cost const& now) -> any_cost {
    any_cost of = now;
    if (asked.measured)
      of =
        pp::scaled_cost<any_cost>{pp::costs_for(*asked.measured, shown_extents(choice)), mean, now};
    any_cost const model =
      cost_in_adapter(choice, model_for(asked, choice, lengths, now, of), usual);
    return find_schedule(choice.name).traits.weights_travel ? cost_by_groups(model) : model;
  };
}

//! The timetable of a schedule for mean times, or for those of a file; where tokens are given, with
//! chunks of equal work or of equal length.
made_table
make_named(command const& asked, schedule_choice const& choice, pp::uniform_cost const& cost) {
  pp::shape const extents = shown_extents(choice);
  check_size(extents, asked.format);
  made_table made{in_adapter(choice.name, choice.adapted), {}, cost, cost};
  made.frozen = choice.frozen > 0;
  if (made.frozen)
    made.name += ", " + std::to_string(choice.frozen) + " stages frozen";
  if (asked.measured)
    take_measured(made, asked, extents);
  named_schedule const& schedule = find_schedule(choice.name);
  if (asked.tokens && has(schedule.takes, option::chunks) &&
      choice.adapted != adapter::attention_exchange) {
    int const tokens = asked.tokens.value();
    made.chunk_lengths =
      asked.even ? pp::even_partition(tokens, extents.chunks)
                 : pp::balanced_partition(tokens,
                                          extents.chunks,
                                          work_to_cut(cost, asked.attention_ratio.value(), tokens));
    made.chunk_shares = pp::token_shares(made.chunk_lengths);
  }
  made.model = model_for(asked, choice, made.chunk_lengths, made.cost, made.model);
  made.model_of = models_of(asked, choice, made);
  if (!schedule.traits.weights_travel) {
    made.table = make_in_time(asked, choice, made.model);
    return made;
  }
  made.travelling = make_in_time(asked, choice, cost_by_groups(made.model));
  made.table = by_groups(*made.travelling);
  return made;
}

//! Within the bytes of devices.
made_table make_within(command const& asked) {
  schedule_choice choice = asked.choice;
  choice.memory_limit = choice.devices; // for its extents, which no limit changes
  pp::shape const extents = arrange(choice);
  choice.memory_limit.reset();
  give_room(asked, extents, choice);
  made_table made = make_named(asked, choice, asked.cost);
  std::vector<double> const held = pp::device_bytes(made.table, choice.memory);
  for (std::size_t device = 0; device < held.size(); ++device)
    if (held[device] > choice.room[device])
      throw usage_error("--memory: device " + std::to_string(device) + " would hold " +
                        rounded(held[device] / 1e9, 3) + " GB, and has " +
                        rounded(choice.room[device] / 1e9, 3) + " GB");
  return made;
}

} // namespace

void check_size(pp::shape const& extents, std::string const& format) {
  std::int64_t const count = pp::pipeline_view{extents}.pass_indices();
  struct bound {
    std::int64_t most;
    char const* what;
    char const* limit;
  };
  auto const check = [count](bound const& of) {
    if (count > of.most)
      throw usage_error(of.what + std::to_string(count) + of.limit + std::to_string(of.most));
  };
  check({most_passes, "this timetable would have up to ", " passes; made here are at most "});
  if (format == "calls" || format == "memory")
    check(
      {most_planned, "a plan of up to ", " passes is too large for a table; planned are at most "});
  if (format == "svg")
    check({most_cells, "a picture of up to ", " passes opens in no viewer; drawn are at most "});
  if (format == "html")
    check({most_drawn, "a page of up to ", " passes is too slow to look at; drawn are at most "});
  if (format == "trace")
    check({most_events, "a trace of up to ", " passes opens in no viewer; written are at most "});
}

void give_room(command const& asked, pp::shape const& extents, schedule_choice& choice) {
  choice.room = asked.search.room;
  if (!choice.room.empty())
    choice.memory = pp::memory_for(*asked.measured, extents);
}

double pieces_of_share(pp::shape const& extents) {
  return static_cast<double>(extents.stages()) / extents.devices * extents.chunks;
}

pp::uniform_cost work_of_share(made_table const& made) {
  double const pieces = pieces_of_share(made.table.over.extents);
  return part_of(made.cost, pieces, 1);
}

double busiest_work(pp::timetable_view table, any_cost const& hidden) {
  double most = 0;
  for (int row = 0; row < table.rows(); ++row) {
    double work = 0;
    for (pp::pass const& what : table.row(row))
      work += hidden.duration(what);
    most = std::max(most, work);
  }
  return most;
}

pp::time_bounds bounds_of(made_table const& made) {
  pp::timetable_view const table = made.table;
  if (made.frozen ||
      pp::detail::stages_go_one_way(*table.over.declared)) { // their paths are not known
    pp::time_bound const busiest{.work = busiest_work(table, made.model)};
    return {busiest, busiest};
  }
  // What waits for an all-reduce in one order hides it in another.
  pp::uniform_cost hidden = made.cost;
  hidden.all_reduce = 0;
  bool const exposed = made.cost.all_reduce > 0;
  if (exposed && !made.chunk_shares.empty())
    return {};
  // Pairs may take less time than their sum.
  pp::time_bounds::options options{.chunk_shares = made.chunk_shares,
                                   .pairs = made.cost.overlapped_pair >= 0};
  // Beyond this the paths of memory take seconds; the bounds without a limit are fast.
  constexpr std::int64_t most_units = 1024;
  pp::flow const& declared = *table.over.declared;
  bool const plain =
    !declared[pp::pass_kind::recompute].exists() && !declared[pp::pass_kind::copy_out].exists();
  bool const small =
    std::int64_t{table.over.extents.stages()} * table.over.extents.chunks <= most_units;
  // What chunks of unequal sequences take is not known here.
  if (plain && small && table.over.first_units == nullptr) {
    double peak = 0;
    for (int device = 0; device < table.over.extents.devices; ++device)
      peak = std::max(peak, pp::peak_activations(table, device, made.about()));
    options.memory_limit = peak * (1 + 1e-12);
  }
  return pp::least_times(table.over, exposed ? any_cost(hidden) : made.model, options);
}

std::string describe_setting(command const& asked) {
  // A time as it was given; means have more digits than anybody reads.
  auto const time = [&asked](double value) {
    std::string text;
    if (asked.measured)
      pp::append_significant(text, value, 4);
    else
      pp::append(text, value);
    return text;
  };
  std::string text;
  pp::append(
    text, asked.choice.devices, " devices, ", asked.choice.microbatches, " microbatches; ");
  if (!asked.layout.text.empty())
    pp::append(text, "layout ", pp::write_layout(asked.layout.stages));
  if (asked.measured)
    pp::append(
      text, asked.layout.text.empty() ? "costs from " + asked.cost_file : "", ", in the mean ");
  pp::append(text, "a device's share of the model takes forward ", time(asked.cost.forward));
  pp::append(text, ", backward_input ", time(asked.cost.backward_input));
  pp::append(text, ", backward_weight ", time(asked.cost.backward_weight));
  pp::append(text, "; a message takes ", time(asked.cost.communication), "\n");
  return text;
}

schedule_choice choice_for(schedule_choice const& choice, std::string const& name) {
  option const takes = find_schedule(name).takes;
  schedule_choice result;
  result.name = name;
  result.devices = choice.devices;
  result.microbatches = choice.microbatches;
  for (named_option const& each : named_option::all())
    if (each.number != nullptr && has(takes, each.which))
      result.*each.number = choice.*each.number;
  if (has(takes, option::chunk_counts))
    result.chunk_counts = choice.chunk_counts;
  if (has(takes, option::memory_limit))
    result.memory_limit = choice.memory_limit;
  result.eager = choice.eager && has(takes, option::eager);
  result.unfused = choice.unfused && has(takes, option::unfused);
  return result;
}

made_table make_like(command const& asked, std::string const& name, pp::uniform_cost const& work) {
  schedule_choice const choice = choice_for(asked.choice, name);
  double const pieces = pieces_of_share(shown_extents(choice));
  return make_named(asked, choice, part_of(work, 1, pieces));
}

made_table make(command const& asked) {
  if (asked.choice.name != "csv")
    return asked.search.room.empty() ? make_named(asked, asked.choice, asked.cost)
                                     : make_within(asked);
  pp::pytorch_schedule const file = pp::read_pytorch_csv(read_file(asked.file));
  check_size(file.orders.over.extents, asked.format);
  made_table made{in_adapter("csv", asked.choice.adapted), {}, asked.cost, asked.cost};
  if (asked.measured)
    take_measured(made, asked, file.orders.over.extents);
  else
    made.model_of = [](pp::uniform_cost const& now) { return now; };
  made.table = pp::make_timetable(file, made.model);
  if (asked.choice.adapted != adapter::none)
    made.table = make_adapted_timetable(file.orders, asked.choice, made.model);
  return made;
}

} // namespace examples
