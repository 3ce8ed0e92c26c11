// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose.hpp"

namespace examples {
namespace {

//! Buffers of some size, and what the model and the user need besides. Shards of a tied vocabulary
//! lie on one device, so that no gradient of theirs travels.
pp::uniform_sizes sizes_for(choose_command const& asked, candidate const& one) {
  bool tied = (asked.model.tied || asked.tied) && !one.choice.has_shards();
  if (asked.model.modules > 0) // theirs is that of the first stage, unless frozen
    tied = inner_modules(asked, one).empty() &&
           (tied || (asked.frozen == 0 && content_of(asked, one).back().modules > 0));
  return {
    .message = 8, .activation = 8, .tied_bytes = tied ? 8 : 0, .totals_bytes = asked.clip ? 8 : 0};
}

//! Why a timetable has no plan; empty where it has.
std::string reason_of(pp::timetable_view table, pp::uniform_sizes const& sizes) {
  if (pp::report const verdict = pp::verify(table); !verdict)
    return pp::describe(verdict, table);
  try {
    (void)pp::lower(table, sizes);
    return {};
  } catch (std::exception const& error) { // a plan that cannot be proven is none, either
    return error.what();
  }
}

//! The same of a candidate. What is drawn of layers that do not stay is not what runs.
std::string reason_of(choose_command const& asked, candidate const& one, pp::timetable_view table) {
  if (asked.clip && !inner_modules(asked, one).empty())
    return "inner stages share the embedding, and no plan adds up their gradients before the "
           "totals; leave --clip out, or give a --layout with m in the first or last stage";
  pp::uniform_sizes const sizes = sizes_for(asked, one);
  if (!is_apart(one.choice))
    return reason_of(table, sizes);
  return reason_of(make_named_timetable(one.choice, pp::uniform_cost{}), sizes);
}

//! A choice of the same flow and placement has the same, with modules where they are.
std::string kind_of(choose_command const& asked, candidate const& one) {
  schedule_choice const& choice = one.choice;
  return in_adapter(choice.name, choice.adapted) + " " +
         std::to_string(choice.stages_per_device.value_or(0)) + " " +
         std::to_string(choice.frozen) + " " + std::to_string(sizes_for(asked, one).tied_bytes) +
         " " + std::to_string(inner_modules(asked, one).size());
}

//! A hash of the passes of every row.
std::uint64_t hash_of(pp::dynamic_timetable const& table) {
  pp::detail::hasher hash;
  for (pp::pass const& each : table.passes)
    hash.add(static_cast<std::int64_t>(each.kind) << 48 ^ std::int64_t{each.overlapped} << 56 ^
             std::int64_t{each.stage} << 32 ^ std::int64_t{each.microbatch} << 16 ^ each.chunk);
  for (int const each : table.offsets)
    hash.add(each);
  return hash.state.low;
}

constexpr std::int64_t most_kept = 2'000'000;      // passes of timetables, 64 MB
constexpr std::int64_t most_simulated = 4'000'000; // passes, well below a second

//! The layers of the stages of a candidate with which it takes least, as single layers move: in the
//! order that it has, or where its schedule searches, in the order that it finds.
//! @param looks how many simulations it may take; counts down
std::vector<int>
moved_layers(choose_command const& asked, candidate one, made_orders& made, std::int64_t& looks) {
  constexpr std::int64_t of_search = 400'000; // passes simulated in the same time, about
  pp::device_orders const orders{one.table->over, one.table->passes, one.table->offsets};
  bool const searches = has(find_schedule(one.choice.name).takes, option::memory_limit);
  double best = one.seconds;
  auto const is_better = [&best](double time) { return time < best * (1 - 1e-9); };
  // With the layers as they are now; a bound on it where no order can be better than the best.
  auto const time_now = [&] {
    pp::cost_table const cost = costs_of(asked, one);
    --looks;
    if (!searches)
      return pp::makespan(pp::simulate(orders, cost));
    double const bound = pp::least_times(orders.over, cost.without_exchanges()).makespan.least();
    if (!is_better(bound))
      return bound;
    give_bytes(asked, one);
    looks -= of_search / static_cast<std::int64_t>(orders.passes.size());
    try {
      return pp::makespan(make_named_timetable(one.choice, cost, &made, false));
    } catch (std::invalid_argument const&) {
      return HUGE_VAL; // no order of these stages keeps to the bytes of the devices
    }
  };
  auto const helps = [&](std::vector<int> const&) {
    double const time = time_now();
    bool const better = is_better(time);
    best = better ? time : best;
    return better;
  };
  int const stages = static_cast<int>(one.layers.size());
  int const reach = stages <= 8 ? stages : 1; // of a layer
  int const staying = staying_modules(asked, one.choice.has_shards());
  auto const may_look = [&looks] { return looks > 0; };
  while (may_look() && move_layers(one.layers, reach, staying, may_look, helps)) {
  }
  return one.layers;
}

//! What a choice has beyond the name of its schedule: an adapter is more than any options.
int extras_of(schedule_choice const& choice) {
  constexpr int more_than_options = 100;
  int count = choice.adapted == adapter::none ? 0 : more_than_options;
  for (named_option const& each : named_option::all())
    count += each.given(choice) ? 1 : 0;
  return count;
}

} // namespace

bool needs_more(choose_command const& asked) {
  return asked.model.tied || asked.tied || asked.clip || asked.experts || asked.frozen > 0 ||
         asked.model.modules > 0;
}

void add_candidate(choose_command const& asked, evaluated const& made, candidates& found) {
  candidate one = made.what;
  if (!one.judged) {
    found.all.push_back(std::move(one));
    return;
  }
  ++found.simulated;
  one.order = hash_of(made.table);
  if (one.groups.empty() && one.cannot.empty() && needs_more(asked)) {
    std::string const kind = kind_of(asked, one);
    auto known = found.known.find(kind);
    if (known == found.known.end())
      known = found.known.emplace(kind, reason_of(asked, one, made.table)).first;
    one.cannot = known->second;
  }
  bool const fits = one.groups.empty() && one.cannot.empty() && !one.choice.swept &&
                    one.gigabytes <= asked.memory_gb;
  auto const passes = static_cast<std::int64_t>(made.table.passes.size());
  bool const near = fits && one.ranked <= found.fastest * (1 + pp::memory_choice::equal);
  if (near || (fits && found.kept_passes + passes <= most_kept)) {
    one.table = std::make_shared<pp::dynamic_timetable const>(made.table);
    found.kept_passes += passes;
  }
  if (near)
    found.fastest = std::min(found.fastest, one.ranked);
  found.all.push_back(std::move(one));
}

void improve_cuts(choose_command const& asked, candidates& found) {
  if (asked.keeps_cut() || asked.experts || !asked.lengths.empty())
    return;
  auto const has_schedule = [](candidate const& one) {
    return one.table && !one.own_order && one.places.empty() && !is_apart(one.choice);
  };
  std::int64_t left = most_simulated;
  made_orders& orders = *found.orders;
  for (std::size_t const i : numbers_of(found, has_schedule, &candidate::seconds)) {
    candidate& one = found.all[i];
    auto const passes = static_cast<std::int64_t>(one.table->passes.size());
    std::int64_t looks = left / passes;
    std::int64_t const before = looks;
    std::vector<int> const cut = moved_layers(asked, one, orders, looks);
    left -= (before - looks) * passes;
    if (cut == one.layers)
      continue;
    try {
      evaluated anew = evaluate(asked, {one.choice}, orders, cut);
      if (!is_better_cut(asked, anew.what, one))
        continue;
      anew.what.any_bound = one.any_bound;
      anew.what.order = hash_of(anew.table);
      anew.what.table = std::make_shared<pp::dynamic_timetable const>(std::move(anew.table));
      one = std::move(anew.what);
    } catch (std::invalid_argument const&) {
      // With this cut no activation idles for as long as its copies take.
    }
  }
}

std::vector<pp::choice_point> points_of(candidates const& found) {
  std::vector<pp::choice_point> points;
  for (candidate const& each : found.all)
    points.push_back(each.cannot.empty()
                       ? pp::choice_point{each.gigabytes, each.ranked, extras_of(each.choice)}
                       : pp::choice_point{HUGE_VAL, HUGE_VAL});
  return points;
}

pp::memory_choice choose_lowered(choose_command const& asked, candidates& found) {
  for (;;) {
    (void)judge_named(asked, found);
    pp::memory_choice const choice = pp::memory_choice::within(points_of(found), asked.memory_gb);
    if (!choice.pick)
      return choice;
    candidate& pick = found.all[*choice.pick];
    if (!pick.table) // groups of GPUs have no pipeline
      return choice;
    pick.cannot = reason_of(asked, pick, *pick.table);
    if (pick.cannot.empty())
      return choice;
  }
}

} // namespace examples
