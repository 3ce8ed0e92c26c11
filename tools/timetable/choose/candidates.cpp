// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What each schedule that `timetable choose` tries would take.
#include <future>
#include <thread>

#include "choose.hpp"
#include "tools/support/ahead.hpp"
#include "tools/timetable/make.hpp"

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
      sum += pp::detail::random_numbers{name * 4 + i + sample_ * 0x9e3779b97f4a7c15}.fraction();
    return std::max(0.1, 1 + deviation_ * sum * std::sqrt(3.0));
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
    times.push_back(pp::makespan(
      pp::simulate(orders, varying_cost(cost, jitter, static_cast<std::uint64_t>(sample), fused))));
  }
  std::sort(times.begin(), times.end());
  return times[samples * 95 / 100];
}

//! The first stages that have frozen layers only, or no layers after these.
int frozen_stages(choose_command const& asked, std::vector<int> const& layers) {
  int before = 0;
  int count = 0;
  if (asked.frozen > 0)
    while (count + 1 < static_cast<int>(layers.size()) &&
           (before += layers[static_cast<std::size_t>(count)]) <= asked.frozen)
      ++count;
  return count;
}

//! A candidate with these layers.
//! @throws std::invalid_argument where it is to have copies to the host, but has none.
evaluated with_layers(choose_command const& asked,
                      candidate one,
                      std::vector<int> const& layers,
                      made_orders& made) {
  one.layers = layers;
  one.choice.frozen = frozen_stages(asked, layers);
  if (one.choice.frozen > 0)
    one.label = label_of({one.choice, one.sequences});
  give_bytes(asked, one);
  pp::cost_table const cost = costs_of(asked, one);
  // Orders are kept by the times of the first microbatch.
  made_orders* const kept = cost.microbatches() > 1 ? nullptr : &made;
  pp::dynamic_timetable table = make_named_timetable(one.choice, cost, kept, false);
  int const devices = table.over.extents.devices;
  if (one.choice.adapted == adapter::offload &&
      table.offsets[static_cast<std::size_t>(devices)] ==
        table.offsets[static_cast<std::size_t>(2 * devices)])
    throw std::invalid_argument("no activation idles for as long as its copies take");
  measure(asked, table, cost, one);
  return {std::move(one), std::move(table)};
}

//! With its layers as they are: the best of some cuts. Cuts after the first are made in full only
//! where the order of the first is better with them.
evaluated evaluate_whole(choose_command const& asked,
                         trial const& what,
                         made_orders& made,
                         std::vector<int> const& given) {
  named_schedule const& schedule = find_schedule(what.choice.name);
  if (schedule.traits.weights_travel || schedule.traits.stages_go_one_way ||
      what.choice.adapted == adapter::attention_exchange)
    return evaluate_apart(asked, what.choice);
  candidate const plain = without_layers(asked, what);
  std::vector<std::vector<int>> cuts{given};
  if (given.empty())
    cuts = cuts_of(asked, plain);
  evaluated best = with_layers(asked, plain, cuts.front(), made);
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    bool const fits = best.what.gigabytes <= asked.memory_gb;
    if (best.what.choice.swept && fits)
      break; // the search looks at them
    candidate other = best.what;
    other.layers = cuts[i];
    pp::dynamic_timetable const again =
      pp::simulate(pp::device_orders{best.table.over, best.table.passes, best.table.offsets},
                   costs_of(asked, other));
    other.seconds = pp::makespan(again);
    if (fits && other.seconds >= best.what.seconds)
      continue;
    count_memory(asked, again, other);
    if (!is_better_cut(asked, other, best.what))
      continue;
    evaluated anew = with_layers(asked, plain, cuts[i], made);
    if (is_better_cut(asked, anew.what, best.what))
      best = std::move(anew);
  }
  return best;
}

//! Whether few rows are shown, so that most orders need no search.
bool shows_few(choose_command const& asked) {
  return asked.format == "text" && asked.lengths.empty() && !asked.all && !asked.search &&
         asked.jitter == 0;
}

//! How many candidates are begun before their turn: so many for each thread.
std::size_t ahead_of(choose_command const& asked, unsigned each) {
  unsigned const threads =
    asked.threads > 0 ? static_cast<unsigned>(asked.threads) : std::thread::hardware_concurrency();
  return threads > 1 ? each * threads : 0;
}

//! An answer before the end.
std::string so_far(candidates const& found) {
  for (candidate const& each : found.all)
    if (each.ranked == found.fastest)
      return "fastest so far " + each.label + ", " + rounded(each.ranked, 3) + " s, now ";
  return "";
}

//! Searches for the orders that sweeps have made, as far as that can change what is shown.
//! @return whether there was one
bool search_orders(choose_command const& asked, progress_line& line, candidates& found) {
  std::vector<std::size_t> const swept = numbers_of(
    found,
    [](candidate const& one) { return one.judged && one.choice.swept && one.cannot.empty(); },
    &candidate::seconds);
  std::string const best = so_far(found);
  int const searched = evaluate_anew(
    asked,
    swept,
    [&](candidate const& one) { return may_be_shown(asked, one, found); },
    [&](trial one) {
      line.say(best + "searching for the order of " + label_of(one));
      one.choice.swept = false;
      return evaluate(asked, one, *found.orders);
    },
    found);
  found.searched += searched;
  return searched > 0;
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
void add_relieved(choose_command const& asked, candidate plain, adapter which, candidates& found) {
  std::vector<int> stages;
  schedule_choice choice = plain.choice;
  choice.adapted = which;
  while (plain.gigabytes > asked.memory_gb && add_short_stages(asked, plain, stages)) {
    if (static_cast<int>(stages.size()) == plain.extents.stages())
      return; // which stands in the table
    choice.adapted_stages = stages;
    evaluated const made = evaluate(asked, {choice, plain.sequences}, *found.orders);
    plain = made.what;
    if (plain.gigabytes <= asked.memory_gb)
      add_candidate(asked, made, found);
  }
}

//! The same for all candidates that are faster than all that fit, where only some devices lack
//! memory.
void add_relieved(choose_command const& asked, progress_line& line, candidates& found) {
  auto const every = [](candidate const&) { return true; };
  for (std::size_t const i : numbers_of(found, every, &candidate::seconds)) {
    candidate const plain = found.all[i];
    schedule_choice const& choice = plain.choice;
    if (choice.adapted != adapter::none || choice.swept || !plain.groups.empty() ||
        is_apart(choice) || !plain.cannot.empty() || plain.gigabytes <= asked.memory_gb ||
        plain.seconds >= found.fastest || find_schedule(choice.name).traits.places_stages)
      continue;
    line.say("making room on the devices that lack it, " + plain.label);
    for (adapter const which : {adapter::recompute, adapter::offload})
      try {
        add_relieved(asked, plain, which, found);
      } catch (std::invalid_argument const&) {
        // It has no such adapter, or no activation idles for long enough.
      }
  }
}

//! Evaluates a trial, or says only whether it fits.
evaluated evaluate_first(choose_command const& asked, trial const& one, made_orders& orders) {
  try {
    if (!asked.experts) // whose orders have other passes
      if (std::optional<candidate> known = without_times(asked, one.choice, orders))
        return {std::move(*known), {}};
  } catch (std::invalid_argument const&) {
    // It says so again, or another order of its schedule can have its adapter.
  }
  return evaluate_swept(asked, one, orders);
}

//! What there is to look at for sequences of one length.
std::vector<trial> trials_of(choose_command const& asked) {
  std::vector<trial> trials;
  for (named_schedule const& schedule : named_schedules())
    for (schedule_choice const& call : calls_of(schedule, asked)) {
      trials.push_back({call});
      trials.back().choice.swept = schedule.traits.sweeps && shows_few(asked);
    }
  if (shows_few(asked)) // schedules by themselves take least, and are a first answer
    std::ranges::stable_sort(
      trials, {}, [](trial const& one) { return one.choice.adapted != adapter::none; });
  return trials;
}

//! Searches from these orders; of several packings, from those of the one whose best is fastest.
void search_from(choose_command const& asked, std::vector<choose_start> starts, candidates& found) {
  auto const of = [&](choose_start const& start) -> candidate const& {
    return found.all[start.candidate];
  };
  candidate const* best = nullptr;
  for (choose_start const& each : starts)
    if (of(each).gigabytes <= asked.memory_gb &&
        (best == nullptr || of(each).seconds < best->seconds))
      best = &of(each);
  if (!asked.lengths.empty())
    std::erase_if(starts, [&](choose_start const& each) {
      return best == nullptr || of(each).sequences->whole != best->sequences->whole;
    });
  if (!starts.empty())
    add_searched(asked, starts, found);
}

} // namespace

void measure_time(choose_command const& asked,
                  pp::dynamic_timetable const& table,
                  any_cost const& cost,
                  candidate& one) {
  one.seconds = pp::makespan(table);
  one.bubble = pp::bubble_rate(table);
  one.ranked = asked.jitter > 0 ? percentile_95(table, cost, asked.jitter) : one.seconds;
}

void measure(choose_command const& asked,
             pp::dynamic_timetable const& table,
             pp::cost_table const& cost,
             candidate& one) {
  measure_time(asked, table, cost, one);
  count_memory(asked, table, one);
  // What waits for exchanges in one order hides them in another.
  pp::cost_table const hidden = cost.without_exchanges();
  if (one.sequences) {
    one.bound = one.choice.frozen > 0
                  ? busiest_work(table, hidden)
                  : pp::least_times(table.over, hidden, {.pairs = true}).makespan.least();
    return;
  }
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
  one.bound = pp::least_times(table.over, hidden, options).makespan.least();
}

candidate without_layers(choose_command const& asked, trial const& what) {
  candidate one;
  one.choice = what.choice;
  one.sequences = what.sequences;
  one.label = label_of(what);
  one.extents = arrange(what.choice);
  one.chunk_lengths = chunk_lengths_of(asked, one.sequences.get(), one.extents.chunks);
  return one;
}

evaluated evaluate(choose_command const& asked,
                   trial const& what,
                   made_orders& made,
                   std::vector<int> const& cut) {
  evaluated whole = evaluate_whole(asked, what, made, cut);
  if (!asked.experts)
    return whole;
  any_cost const cost = costs_of(asked, whole.what);
  if (what.sequences)
    return cut_at_experts(sized_for(asked, *what.sequences),
                          std::move(whole),
                          cost,
                          microbatches_of(*what.sequences, whole.what.extents.chunks));
  packing const alike{{{{0, 0, static_cast<int>(asked.setup.sequence)}}}};
  return cut_at_experts(asked, std::move(whole), cost, alike);
}

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

int evaluate_anew(choose_command const& asked,
                  std::span<std::size_t const> numbers,
                  std::function<bool(candidate const&)> const& wanted,
                  std::function<evaluated(trial const&)> const& evaluate,
                  candidates& found) {
  int count = 0;
  std::vector<trial> trials;
  for (std::size_t const i : numbers)
    trials.push_back({found.all[i].choice, found.all[i].sequences});
  take_in_order(
    numbers.size(),
    ahead_of(asked, 2),
    [&](std::size_t k) { return wanted(found.all[numbers[k]]); },
    [&](std::size_t k) { return evaluate(trials[k]); },
    [&](std::size_t k, std::future<evaluated> made) {
      ++count;
      try {
        add_candidate(asked, made.get(), found);
        found.all[numbers[k]] = std::move(found.all.back());
        found.all.pop_back();
      } catch (std::invalid_argument const& error) { // activations idle for too short in it
        found.all[numbers[k]].choice.swept = false;
        found.all[numbers[k]].cannot = error.what();
      }
    });
  return count;
}

evaluated evaluate_swept(choose_command const& asked, trial one, made_orders& orders) {
  if (one.choice.swept)
    try {
      return evaluate(asked, one, orders);
    } catch (std::invalid_argument const&) {
      one.choice.swept = false;
    }
  return evaluate(asked, one, orders);
}

candidates evaluate_all(choose_command const& asked) {
  std::vector<trial> const trials =
    asked.lengths.empty() ? trials_of(asked) : trials_of_lengths(asked);
  candidates result;
  std::vector<choose_start> starts;
  made_orders& orders = *result.orders;
  std::vector<std::size_t> longest; // a layer is a stage of it, and a device has a chunk
  for (std::size_t i = 0; i < trials.size(); ++i)
    if (trials[i].choice.adapted == adapter::attention_exchange)
      longest.push_back(i);
  progress_line line(HUGE_VAL, 0.4);
  take_in_order(
    trials.size(),
    ahead_of(asked, 12),
    [](std::size_t) { return true; },
    [&](std::size_t i) {
      return shows_few(asked) ? evaluate_first(asked, trials[i], orders)
                              : evaluate(asked, trials[i], orders);
    },
    [&](std::size_t i, std::future<evaluated> coming) {
      std::string const label = label_of(trials[i]);
      line.say(std::to_string(i) + " of " + std::to_string(trials.size()) + ", " + so_far(result) +
               label);
      try {
        evaluated made = coming.get();
        add_candidate(asked, made, result);
        candidate const& last = result.all.back();
        if (asked.search && last.cannot.empty() && last.choice.adapted == adapter::none &&
            !is_apart(last.choice) && made.table.over.declared == pp::training)
          starts.push_back({result.all.size() - 1,
                            {std::move(made.table.over),
                             std::move(made.table.passes),
                             std::move(made.table.offsets)}});
      } catch (std::invalid_argument const& error) {
        result.refused.push_back(label + ": " + error.what());
      }
    },
    longest);
  if (!asked.lengths.empty())
    add_groups(asked, line, result);
  if (shows_few(asked))
    do
      while (!asked.experts && judge_named(asked, result)) {
      }
    while (search_orders(asked, line, result));
  add_relieved(asked, line, result);
  line.end();
  search_from(asked, std::move(starts), result);
  if (asked.search && asked.experts)
    add_searched_experts(asked, result);
  return result;
}

} // namespace examples
