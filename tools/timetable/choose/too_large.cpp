// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Candidates of `timetable choose` whose memory is known without times, as too large or as one that
// fits: they are simulated only where a line of the text names them.
#include "choose.hpp"

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

//! Memory of the device with the least room, as a share of the largest.
struct memory_range {
  double least = 0;
  double most = 0;
};

//! Bytes that a device holds more at most where shards put turns off by some intervals: those of
//! activations whose last passes start in this time, one after the other.
//! @param bytes of stages, with shards
double put_off(candidate const& one,
               pp::pipeline_view const& over,
               int device,
               std::vector<pp::stage_bytes> const& bytes,
               pp::cost_table const& cost) {
  int const shards = one.extents.devices;
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  std::vector<double> work(static_cast<std::size_t>(shards));
  double longest = 0;
  double most = 0;   // bytes of an activation
  double faster = 0; // bytes in a second
  for (int stage = 0; stage < over.extents.stages(); ++stage)
    for (std::size_t chunk = 0; chunk < shares.size(); ++chunk) {
      auto const time = [&](pp::pass_kind kind) {
        return cost.duration(
          pp::row_writer::make(kind, shards + stage, 0, static_cast<int>(chunk)));
      };
      double const forward = time(pp::pass_kind::forward);
      double const input = time(pp::pass_kind::backward_input);
      double const weight = time(pp::pass_kind::backward_weight);
      double const fused = time(pp::pass_kind::backward);
      int const holder = pp::device_of(over, stage);
      work[static_cast<std::size_t>(holder)] += forward + std::max(input + weight, fused);
      longest = std::max({longest, forward, input, weight, fused});
      double const held =
        shares[chunk] *
        static_cast<double>(bytes[static_cast<std::size_t>(shards + stage)].activation);
      if (holder != device || held <= 0)
        continue;
      most = std::max(most, held);
      faster = std::max(faster, held / std::min(weight, fused));
    }
  // A pass of no time counts for a thousandth of the longest there.
  double const interval =
    *std::max_element(work.begin(), work.end()) +
    3 * over.extents.stages_per_device * longest / 1024 * static_cast<double>(shares.size());
  int const barriers = one.choice.adapted == adapter::vocabulary_1 ? 1 : 2;
  return barriers * interval / static_cast<double>(shares.size()) * faster + most;
}

//! All of it without shards, else at least all but what passes of shards hold, and at most with
//! what is put off and a set of logits.
memory_range memory_of(choose_command const& asked,
                       candidate const& one,
                       pp::device_orders const& orders,
                       pp::cost_table const& cost) {
  std::vector<pp::stage_bytes> const bytes =
    bytes_of(asked, content_of(asked, one), one.chunk_lengths);
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  double const widest = *std::max_element(shares.begin(), shares.end());
  int const shards = one.choice.has_shards() ? asked.devices : 0; // on either side
  pp::timetable_view const table{
    .over = orders.over, .passes = orders.passes.data(), .offsets = orders.offsets.data()};
  auto const of = [&bytes](int stage) -> pp::stage_bytes const& {
    return bytes[static_cast<std::size_t>(stage)];
  };
  auto const resident = [&](int stage) { return static_cast<double>(of(stage).resident()); };
  memory_range most;
  for (int device = 0; device < asked.devices; ++device) {
    double held =
      pp::peak_slot_bytes(table, device, pp::slot_class::activation, [&](pp::pass const& what) {
        return static_cast<double>(of(what.stage + shards).activation) * shares[what.chunk];
      });
    int const stages = orders.over.extents.stages();
    for (int stage = 0; stage < stages; ++stage)
      held += copies_on(table, stage, device) * resident(shards + stage);
    double more = 0;
    if (shards > 0) {
      int const output = shards + stages + device;
      held += resident(device) + resident(output);
      more = widest * static_cast<double>(of(device).activation + of(output).activation);
      if (one.choice.adapted != adapter::vocabulary_interlaced)
        more += put_off(one, orders.over, device, bytes, cost);
    }
    most.least = std::max(most.least, asked.gigabytes_of(device, held));
    most.most = std::max(most.most, asked.gigabytes_of(device, held + more));
  }
  constexpr double rounding = 1e-9; // of sums of bytes
  return {most.least * (1 - rounding), most.most * (1 + rounding)};
}

//! No order with shards takes less where each has one set of logits at a time: the gradients of a
//! unit wait for the logits of all devices and come before those of the next unit.
double least_of_exchanges(candidate const& one, pp::cost_table const& cost) {
  double least = HUGE_VAL;
  int const devices = one.extents.devices;
  for (int stage = one.extents.stages() - devices; stage < one.extents.stages(); ++stage)
    for (int logits = 0; logits < one.extents.chunks; ++logits)
      for (int gradient = 0; gradient < one.extents.chunks; ++gradient)
        least =
          std::min(least,
                   cost.duration(pp::row_writer::make(pp::pass_kind::logits, stage, 0, logits)) +
                     cost.duration(
                       pp::row_writer::make(pp::pass_kind::logits_gradient, stage, 0, gradient)));
  return (least + std::max(0.0, cost.groups().reduce)) * one.extents.units();
}

//! Whether `without_times` knows the memory of a choice without times.
bool is_simple(choose_command const& asked, schedule_choice const& choice) {
  return asked.frozen == 0 && !is_apart(choice) && choice.room.empty() &&
         (choice.adapted == adapter::none || choice.has_shards());
}

} // namespace

std::optional<candidate>
without_times(choose_command const& asked, schedule_choice const& choice, made_orders& made) {
  if (!is_simple(asked, choice))
    return std::nullopt;
  // The published order around 1F1B holds more than its alone.
  bool const may_fit = choice.has_shards() && !needs_more(asked) && asked.devices > 1 &&
                       choice.name != names::one_f_one_b;
  candidate one = without_layers(asked, {choice});
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  pp::pipeline const over = arrange_pipeline(choice);
  one.judged = false;
  one.gigabytes = one.bound = HUGE_VAL;
  double most = 0;
  for (std::vector<int> const& cut : cuts_of(asked, one)) {
    one.layers = cut;
    pp::cost_table const cost = costs_of(asked, one);
    if (cost.microbatches() > 1) // whose orders are not kept
      return std::nullopt;
    memory_range const held = memory_of(asked, one, order_alone(choice, cost, made), cost);
    one.gigabytes = std::min(one.gigabytes, held.least);
    most = std::max(most, held.most);
    if (one.gigabytes <= asked.memory_gb && !(may_fit && most <= asked.memory_gb))
      return std::nullopt;
    double least =
      pp::least_times(over, cost.without_exchanges(), {.chunk_shares = shares}).makespan.least();
    if (may_fit)
      least = std::max(least, least_of_exchanges(one, cost));
    one.bound = std::min(one.bound, least * (1 - 1e-9));
  }
  if (one.gigabytes <= asked.memory_gb && most > asked.memory_gb)
    return std::nullopt; // one cut fits, another one does not
  one.seconds = one.ranked = one.bound;
  return one;
}

bool judge_named(choose_command const& asked, candidates& found) {
  auto const matters = [&](candidate const& one) {
    if (one.judged || !one.cannot.empty())
      return false;
    if (one.choice.swept)
      return may_be_shown(asked, one, found);
    named_so_far const now(asked, found, &one);
    if (one.gigabytes <= asked.memory_gb &&
        (one.bound <= now.fourth || one.gigabytes <= now.least ||
         (one.extents.chunks == 1 && one.bound < now.whole)))
      return true;
    bool const makes_room = one.choice.adapted == adapter::none;
    return (one.bound < now.fastest && (makes_room || one.gigabytes <= now.next)) ||
           (one.bound < now.sure && surely_fits(asked, one));
  };
  std::vector<std::size_t> const order = numbers_of(found, matters, [&](candidate const& one) {
    return std::pair(one.gigabytes > asked.memory_gb ? one.gigabytes : 0, one.bound);
  });
  auto const evaluate = [&](trial const& one) { return evaluate_swept(asked, one, *found.orders); };
  evaluate_anew(asked, order, matters, evaluate, found);
  return !order.empty();
}

} // namespace examples
