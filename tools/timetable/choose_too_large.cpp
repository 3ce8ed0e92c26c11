// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Candidates of `timetable choose` that are too large whatever their times: they are simulated only
// where a line of the text names them.
#include <pipe/planner/model/peak_bytes.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "choose.hpp"
#include "tools/support/ahead.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! The order of the stages alone: without shards around them, which put backward passes off, so
//! that devices hold no less with them.
pp::device_orders const&
order_alone(schedule_choice choice, pp::cost_table const& cost, made_orders& made) {
  if (!choice.has_shards())
    return made.get(choice, cost);
  choice.adapted = adapter::none;
  any_cost const all(cost);
  return made.get(choice, pp::detail::cost_inside<any_cost>{all, choice.devices});
}

//! Memory of the device with the least room where its stages have this order: all of it without
//! shards, else all but what passes of shards hold.
double gigabytes_alone(choose_command const& asked,
                       candidate const& one,
                       pp::device_orders const& orders) {
  std::vector<pp::stage_bytes> const bytes =
    bytes_of(asked, content_of(asked, one), one.chunk_lengths);
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  int const shards = one.choice.has_shards() ? asked.devices : 0; // on either side
  pp::timetable_view const table{
    .over = orders.over, .passes = orders.passes.data(), .offsets = orders.offsets.data()};
  auto const resident = [&](int stage) {
    return static_cast<double>(bytes[static_cast<std::size_t>(stage)].resident());
  };
  double most = 0;
  for (int device = 0; device < asked.devices; ++device) {
    double held =
      pp::peak_slot_bytes(table, device, pp::slot_class::activation, [&](pp::pass const& what) {
        std::size_t const stage = what.stage + static_cast<std::size_t>(shards);
        return static_cast<double>(bytes[stage].activation) * shares[what.chunk];
      });
    int const stages = orders.over.extents.stages();
    for (int stage = 0; stage < stages; ++stage)
      held += copies_on(table, stage, device) * resident(shards + stage);
    if (shards > 0)
      held += resident(device) + resident(shards + stages + device);
    most = std::max(most, asked.gigabytes_of(device, held));
  }
  return most * (1 - 1e-9); // sums of bytes are rounded
}

//! Whether `too_large` knows the memory of a choice without times.
bool is_simple(choose_command const& asked, schedule_choice const& choice) {
  return asked.frozen == 0 && !is_apart(choice) &&
         (choice.adapted == adapter::none || choice.has_shards());
}

} // namespace

std::optional<candidate>
too_large(choose_command const& asked, schedule_choice const& choice, made_orders& made) {
  if (!is_simple(asked, choice))
    return std::nullopt;
  candidate one = without_layers(asked, choice);
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  pp::pipeline const over = arrange_pipeline(choice);
  one.judged = false;
  one.gigabytes = one.bound = HUGE_VAL;
  for (std::vector<int> const& cut : cuts_of(asked, one)) {
    one.layers = cut;
    pp::cost_table const cost = costs_of(asked, one);
    if (cost.microbatches() > 1) // whose orders are not kept
      return std::nullopt;
    pp::device_orders const& orders = order_alone(choice, cost, made);
    one.gigabytes = std::min(one.gigabytes, gigabytes_alone(asked, one, orders));
    if (one.gigabytes <= asked.memory_gb)
      return std::nullopt;
    double const least =
      pp::least_times(over, cost.without_exchanges(), {.chunk_shares = shares}).makespan.least();
    one.bound = std::min(one.bound, least * (1 - 1e-9));
  }
  one.seconds = one.ranked = one.bound;
  return one;
}

bool judge_too_large(choose_command const& asked, candidates& found) {
  auto const matters = [&](candidate const& one) {
    if (one.judged || !one.cannot.empty())
      return false;
    if (one.choice.swept)
      return may_be_shown(asked, one, found);
    named_so_far const now(asked, found, &one);
    bool const makes_room = one.choice.adapted == adapter::none;
    return (one.bound < now.fastest && (makes_room || one.gigabytes <= now.next)) ||
           (one.bound < now.sure && surely_fits(asked, one));
  };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < found.all.size(); ++i)
    if (matters(found.all[i]))
      order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return found.all[i].gigabytes; });
  std::vector<schedule_choice> choices;
  for (std::size_t const i : order)
    choices.push_back(found.all[i].choice);
  take_in_order(
    order.size(),
    ahead_of(asked, 1),
    [&](std::size_t k) { return matters(found.all[order[k]]); },
    [&](std::size_t k) { return evaluate_swept(asked, choices[k], *found.orders); },
    [&](std::size_t k, std::future<evaluated> made) {
      add_candidate(asked, made.get(), found);
      found.all[order[k]] = std::move(found.all.back());
      found.all.pop_back();
    });
  return !order.empty();
}

} // namespace examples
