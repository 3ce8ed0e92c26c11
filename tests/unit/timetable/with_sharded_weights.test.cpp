// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using kind = pp::pass_kind;

//! An entry of a row, and the label of its visit.
struct entry {
  pp::pass what;
  double start;
  double end;

  [[nodiscard]] std::vector<int> label() const { return {what.stage, what.microbatch, what.chunk}; }
};

std::vector<entry> row_of(pp::timetable_view table, int row) {
  std::vector<entry> result;
  for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i)
    result.push_back({table.passes[i], table.starts[i], table.ends[i]});
  return result;
}

bool multiplies(kind of) {
  return of == kind::forward || of == kind::checkpointed_forward || of == kind::recompute ||
         of == kind::offloaded_forward || of == kind::backward || of == kind::backward_input;
}
bool adds_gradient(kind of) {
  return of == kind::backward || of == kind::backward_input || of == kind::backward_weight;
}

//! What a device gathers and scatters, and the most that it holds.
struct counted {
  int gathers = 0;
  int scatters = 0;
};

//! Replays a device on its own terms: what is gathered is used, each use waits for its gather, each
//! pass stands in a visit, what is collected is scattered once, and all is given back.
counted replay(pp::timetable_view table, int device) {
  counted result;
  int const devices = table.over.extents.devices;
  std::map<std::vector<int>, double> gathered[2]; // by label: when the gather ends
  std::map<std::vector<int>, double> asked[2];
  std::map<int, int> open;
  std::map<int, int> collecting;
  std::map<std::vector<int>, double> complete;
  std::map<std::vector<int>, double> begun;
  auto const network = row_of(table, (table.over.declared->engines - 1) * devices + device);
  auto const compute = row_of(table, device);
  double free_from = 0;
  for (entry const& one : network) {
    CHECK(one.start >= free_from);
    free_from = one.end;
    if (one.what.kind == kind::scatter_gradients) {
      ++result.scatters;
      continue;
    }
    ++result.gathers;
    int const again = one.what.kind == kind::gather_weights_again ? 1 : 0;
    CHECK(gathered[again].emplace(one.label(), one.end).second);
  }
  auto remaining = gathered[0].size() + gathered[1].size();
  for (entry const& one : compute) {
    auto const of = one.what.kind;
    if (multiplies(of))
      CHECK(open[one.what.stage] > 0);
    if (adds_gradient(of))
      CHECK(collecting[one.what.stage] > 0);
    int const again = of == kind::use_weights_again || of == kind::request_weights_again ||
                          of == kind::release_weights_again
                        ? 1
                        : 0;
    switch (of) {
    case kind::request_weights:
    case kind::request_weights_again: asked[again][one.label()] = one.end; break;
    case kind::use_weights:
    case kind::use_weights_again:
      CHECK(gathered[again].count(one.label()) == 1);
      CHECK(one.start >= gathered[again][one.label()]);
      ++open[one.what.stage];
      break;
    case kind::release_weights:
    case kind::release_weights_again:
      --open[one.what.stage];
      --remaining;
      break;
    case kind::collect_gradients:
      CHECK(begun.emplace(one.label(), one.start).second);
      ++collecting[one.what.stage];
      break;
    case kind::request_scatter:
      --collecting[one.what.stage];
      complete[one.label()] = one.end;
      break;
    default: break;
    }
  }
  for (entry const& one : network)
    if (one.what.kind == kind::scatter_gradients) {
      CHECK(complete.count(one.label()) == 1);
      CHECK(one.start >= complete[one.label()]);
      complete.erase(one.label());
    } else {
      int const again = one.what.kind == kind::gather_weights_again ? 1 : 0;
      CHECK(asked[again].count(one.label()) == 1);
      CHECK(one.start >= asked[again][one.label()]);
    }
  CHECK(complete.empty());
  CHECK(remaining == 0);
  for (auto const& [stage, count] : open)
    CHECK(count == 0);
  for (auto const& [stage, count] : collecting)
    CHECK(count == 0);
  return result;
}

//! How often a device turns to another stage, by the passes that `counts` counts.
template <class Counts>
int runs(std::vector<entry> const& row, Counts const& counts) {
  int result = 0;
  int stage = -1;
  for (entry const& one : row)
    if (counts(one.what.kind) && one.what.stage != stage) {
      ++result;
      stage = one.what.stage;
    }
  return result;
}

//! How often the rule of PyTorch gathers, by its own words: before a pass, stages that are not
//! among the next `resident` different ones of the row go, and that of the pass comes where it is
//! not there.
int gathers_of_torch(std::vector<entry> const& row, int resident) {
  std::vector<int> stages;
  for (entry const& one : row)
    if (multiplies(one.what.kind))
      stages.push_back(one.what.stage);
  int result = 0;
  std::set<int> active;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    std::set<int> next;
    for (std::size_t k = i; k < stages.size() && next.size() < static_cast<std::size_t>(resident);
         ++k)
      next.insert(stages[k]);
    for (auto one = active.begin(); one != active.end();)
      one = next.count(*one) == 0 ? active.erase(one) : std::next(one);
    result += active.insert(stages[i]).second ? 1 : 0;
  }
  return result;
}

//! How often a device turns to the gradients of another stage; those of weights alone belong to
//! what has been begun.
int gradient_runs(std::vector<entry> const& row) {
  int result = 0;
  int stage = -1;
  std::map<int, bool> seen;
  for (entry const& one : row)
    if (adds_gradient(one.what.kind)) {
      bool const turns = one.what.stage != stage && one.what.kind != kind::backward_weight;
      result += turns || !seen[one.what.stage] ? 1 : 0;
      seen[one.what.stage] = true;
      stage = one.what.stage;
    }
  return result;
}

std::mt19937 generator(20231);

//! A quarter of a whole number, so that sums are exact.
double quarters(int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(generator) / 4.0;
}
pp::uniform_cost random_cost() {
  return {.forward = quarters(1, 9),
          .backward_input = quarters(1, 9),
          .backward_weight = quarters(1, 9),
          .communication = quarters(0, 3),
          .gather = quarters(0, 12),
          .scatter = quarters(0, 12)};
}

template <class Schedule>
pp::with_sharded_weights<Schedule> sharded(Schedule const& inner) {
  return {inner, {}};
}

template <class Schedule>
void check_schedule(Schedule const& inner, pp::pipeline_size size) {
  CAPTURE(size.devices);
  CAPTURE(size.microbatches);
  auto const cost = random_cost();
  auto free = cost;
  free.gather = free.scatter = 0;
  auto const plain = pp::make_timetable(inner, size, cost);
  pp::reshard const rules[] = {{.prefetch = 0, .resident = 1},
                               {},
                               {.resident = 3},
                               {.resident = 4, .prefetch_step = 1},
                               {.prefetch = 0},
                               {.scatter_once = true, .prefetch = 3},
                               {.after_backward = false},
                               pp::reshard::gathered_once()};
  for (pp::reshard const& rule : rules) {
    pp::with_sharded_weights<Schedule> const adapted{inner, rule};
    auto const table = pp::make_timetable(adapted, size, cost);
    auto const at_once = pp::make_timetable(adapted, size, free);
    CHECK(pp::makespan(table) >= pp::makespan(plain));
    for (int device = 0; device < size.devices; ++device) {
      auto const passes = row_of(plain, device);
      auto const gathers = replay(table, device);
      std::vector<entry> left = row_of(at_once, device);
      left.erase(std::remove_if(left.begin(),
                                left.end(),
                                [&](entry const& one) {
                                  return pp::detail::stands_between(
                                           at_once.over.declared[one.what.kind]) &&
                                         one.what.kind != kind::copy_request;
                                }),
                 left.end());
      REQUIRE(left.size() == passes.size());
      for (std::size_t i = 0; i < left.size(); ++i) {
        CHECK(left[i].what == passes[i].what);
        CHECK(left[i].start == passes[i].start);
        CHECK(left[i].end == passes[i].end);
      }
      bool const pairs = std::any_of(
        passes.begin(), passes.end(), [](entry const& one) { return one.what.overlapped; });
      if (pairs || passes.empty())
        continue;
      int const peak = pp::detail::peak_chunks(table, device, pp::slot_class::weights);
      if (rule.after_forward && rule.after_backward) {
        int const resident = std::max(rule.resident, rule.prefetch_on(device) + 1);
        CHECK(gathers.gathers == gathers_of_torch(passes, resident));
        CHECK(peak <= resident);
        if (resident == rule.prefetch + 1)
          CHECK(pp::detail::peak_chunks(at_once, device, pp::slot_class::weights) ==
                std::min(gathers.gathers, resident));
        if (resident == 1)
          CHECK(gathers.gathers == runs(passes, multiplies));
      }
      if (!rule.after_forward && !rule.after_backward)
        CHECK(peak == gathers.gathers);
      if (!rule.scatter_once)
        CHECK(gathers.scatters == gradient_runs(passes));
    }
  }
}

template <class Schedule>
void check_sizes(Schedule const& inner) {
  for (int const devices : {1, 2, 4})
    for (int const rounds : {1, 2})
      check_schedule(inner, {devices, rounds * devices});
}

} // namespace

TEST_CASE("the weights of every schedule are there where passes need them, and nowhere else") {
  check_sizes(pp::GPipe{});
  check_sizes(pp::OneFOneB{});
  check_sizes(pp::BreadthFirst<3>{});
  check_sizes(pp::Interleaved<2>{});
  check_sizes(pp::Interleaved<3>{});
  check_sizes(pp::Seq1F1B<3>{});
  check_sizes(pp::Seq1F1BInterleaved<2, 3>{});
  check_sizes(pp::ZeroBubbleH1{});
  check_sizes(pp::detail::SweptZeroBubbleV{});
  check_sizes(pp::detail::SweptVHalf{});
  check_sizes(pp::Hanayo<2>{});
  check_sizes(pp::detail::SweptChronosPipe{});
  check_sizes(pp::with_recompute<pp::Interleaved<2>>{});
  check_sizes(pp::with_offload<pp::OneFOneB>{});
  for (int const devices : {2, 4})
    for (int const microbatches : {1, 2}) {
      check_schedule(pp::DualPipe{}, {devices, 2 * devices * microbatches});
      check_schedule(pp::Chimera{}, {devices, devices * microbatches});
      check_schedule(pp::BitPipe{}, {devices, devices * microbatches});
      check_schedule(pp::STP{}, {devices, 3 * devices * microbatches});
    }
}

TEST_CASE("one stage on a device: one gather, one scatter, and so much later") {
  auto const check = [](auto const& inner, pp::pipeline_size size) {
    auto const cost = random_cost();
    auto const plain = pp::make_timetable(inner, size, cost);
    auto const table = pp::make_timetable(sharded(inner), size, cost);
    for (int device = 0; device < size.devices; ++device) {
      auto const found = replay(table, device);
      CHECK(found.gathers == 1);
      CHECK(found.scatters == 1);
      CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::full_gradients) == 1);
    }
    CHECK(pp::makespan(table) == pp::makespan(plain) + cost.gather + cost.scatter);
  };
  for (int devices = 1; devices <= 6; ++devices)
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      check(pp::GPipe{}, {devices, microbatches});
      check(pp::OneFOneB{}, {devices, microbatches});
      check(pp::Seq1F1B<3>{}, {devices, microbatches});
      check(pp::ZeroBubbleH1{}, {devices, microbatches});
      check(pp::ZeroBubbleH2{}, {devices, microbatches});
    }
}

TEST_CASE("breadth-first gathers once for each stage and direction, and hides all but the ends") {
  int hidden = 0;
  for (int devices = 1; devices <= 5; ++devices)
    for (int held = 1; held <= 4; ++held)
      for (int microbatches = 1; microbatches <= 8; ++microbatches) {
        auto const cost = random_cost();
        pp::pipeline_size const size{devices, microbatches};
        pp::BreadthFirst<> const inner{held};
        auto const plain = pp::make_timetable(inner, size, cost);
        auto const table = pp::make_timetable(sharded(inner), size, cost);
        for (int device = 0; device < devices; ++device) {
          auto const found = replay(table, device);
          CHECK(found.gathers == std::max(1, 2 * held - 2));
          CHECK(found.scatters == held);
        }
        double const later = pp::makespan(table) - pp::makespan(plain);
        CHECK(later >= cost.gather + cost.scatter);
        double const backward = cost.backward_input + cost.backward_weight;
        bool const fits = microbatches * cost.forward >= cost.gather &&
                          microbatches * backward >= cost.gather + cost.scatter;
        if (fits || held == 1) {
          CHECK(later == cost.gather + cost.scatter);
          hidden += held > 1 ? 1 : 0;
        }
      }
  CHECK(hidden > 50);
}

TEST_CASE("weights stay as long as there is room: the counts of PyTorch, and no time is lost") {
  // Gathers of the first and of the last device, and the makespan, by another program that lowers
  // orders as PyTorch 2.15 does.
  struct published {
    int devices, held, microbatches;
    double gather;
    int resident, first, last;
    double makespan;
  };
  published const rows[] = {{4, 4, 16, 1, 2, 20, 20, 202},
                            {4, 4, 16, 1, 3, 15, 13, 202},
                            {4, 4, 16, 1, 4, 4, 4, 202},
                            {4, 2, 16, 1.5, 2, 2, 2, 106.5}};
  for (published const& one : rows) {
    pp::uniform_cost const cost{.gather = one.gather, .scatter = 0};
    pp::pipeline_size const size{one.devices, one.microbatches};
    pp::Interleaved<> const inner{one.held};
    auto const made = [&](pp::reshard const& rule) {
      return pp::make_timetable(
        pp::with_sharded_weights<pp::Interleaved<>>{inner, rule}, size, cost);
    };
    auto const released = made({.resident = 1});
    for (int const step : {0, 1}) {
      auto const table = made({.resident = one.resident, .prefetch_step = step});
      CHECK(replay(table, 0).gathers == one.first);
      CHECK(replay(table, one.devices - 1).gathers == one.last);
      CHECK(pp::makespan(table) == one.makespan);
      CHECK(pp::makespan(table) <= pp::makespan(released));
      for (int device = 0; device < one.devices; ++device)
        CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::weights) <= one.resident);
    }
  }
}

TEST_CASE("interleaved pays for every turn to another stage, or to one that is not resident") {
  for (int devices = 2; devices <= 5; ++devices)
    for (int held = 2; held <= 4; ++held)
      for (int const rounds : {1, 2, 4}) {
        int const count = rounds * devices * held; // passes of a device, each way
        auto const with = [&](pp::reshard const& rule) {
          return pp::make_timetable(pp::with_sharded_weights<pp::Interleaved<>>{{held}, rule},
                                    {devices, rounds * devices},
                                    random_cost());
        };
        auto const alone = with({.prefetch = 0, .resident = 1});
        auto const in_pairs = with({});
        for (int device = 0; device < devices; ++device) {
          // Narayanan et al. 2021: forward pass k is of the device's stage k / P mod V.
          int const ahead = std::min(count, 2 * (devices - device - 1) + (held - 1) * devices);
          int turns = 0;
          int turns_to_a_third = 0;
          int stage = -1;
          int before = -1;
          auto const visit = [&](int next) {
            turns += next != stage ? 1 : 0;
            turns_to_a_third += next != stage && next != before ? 1 : 0;
            before = next != stage ? stage : before;
            stage = next;
          };
          int backward = 0;
          for (int forward = 0; forward < count; ++forward) {
            visit(forward / devices % held);
            if (forward >= ahead)
              visit(held - 1 - backward++ / devices % held);
          }
          for (; backward < count; ++backward)
            visit(held - 1 - backward / devices % held);
          CHECK(replay(alone, device).gathers == turns);
          CHECK(replay(in_pairs, device).gathers == turns_to_a_third);
        }
      }
}

namespace {

//! Three stages on each of two devices, with a fault planted into the rows of device 0.
template <class Rule = pp::reshard>
pp::report verdict_with(void (*plant)(std::vector<pp::pass>& compute,
                                      std::vector<pp::pass>& network),
                        Rule const& rule = {}) {
  auto orders =
    pp::make_orders(pp::with_sharded_weights<pp::BreadthFirst<3>, Rule>{{}, rule}, {2, 4});
  std::vector<pp::pass> rows[4];
  for (std::size_t row = 0; row < 4; ++row)
    rows[row].assign(orders.passes.begin() + orders.offsets[row],
                     orders.passes.begin() + orders.offsets[row + 1]);
  plant(rows[0], rows[2]);
  orders.passes.clear();
  orders.offsets = {0};
  for (auto const& row : rows) {
    orders.passes.insert(orders.passes.end(), row.begin(), row.end());
    orders.offsets.push_back(static_cast<int>(orders.passes.size()));
  }
  return pp::verify(pp::simulate(orders, pp::uniform_cost{.gather = 1, .scatter = 1}));
}

void move_before(std::vector<pp::pass>& row, kind moved, kind before) {
  auto const from =
    std::find_if(row.begin(), row.end(), [&](auto const& p) { return p.kind == moved; });
  auto to = from;
  while (to->kind != before)
    --to;
  std::rotate(to, from, from + 1);
}
void erase_first(std::vector<pp::pass>& row, kind erased) {
  row.erase(std::find_if(row.begin(), row.end(), [&](auto const& p) { return p.kind == erased; }));
}

} // namespace

TEST_CASE("weights of deep stages on the host: what the other stages hide costs nothing") {
  int hidden = 0;
  int paid = 0;
  auto const check = [&](auto const& inner, pp::pipeline_size size, int held) {
    auto const cost = random_cost();
    pp::with_sharded_weights<std::decay_t<decltype(inner)>, pp::weights_on_host> const adapted{
      inner, {}};
    auto const plain = pp::make_timetable(inner, size, cost);
    auto const table = pp::make_timetable(adapted, size, cost);
    int const stages = (held - 1) * size.devices;
    double const message = size.devices > 1 ? cost.communication : 0;
    double const before = stages * (cost.forward + message);
    double const behind = stages * (cost.backward_input + cost.backward_weight + message);
    double const later = pp::makespan(table) - pp::makespan(plain);
    double const exposed =
      std::max(cost.gather - before, 0.0) + std::max(cost.scatter - behind, 0.0);
    CHECK(later >= 0);
    CHECK(later <= exposed);
    hidden += exposed == 0 ? 1 : 0;
    paid += exposed > 0 && later == exposed ? 1 : 0;
    for (int device = 0; device < size.devices; ++device) {
      int loads = 0;
      int kept = 0;
      for (int const row : {device, size.devices + device})
        for (entry const& one : row_of(table, row)) {
          bool const deep = one.what.stage >= (held - 1) * size.devices;
          bool const travels =
            one.what.kind == kind::gather_weights || one.what.kind == kind::scatter_gradients;
          loads += travels && deep ? 1 : 0;
          CHECK((!travels || deep));
          kept += one.what.kind == kind::keep_weights ? 1 : 0;
          CHECK((one.what.kind != kind::keep_weights || (!deep && one.start == 0)));
        }
      CHECK(loads == 2);
      CHECK(kept == held - 1);
      CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::weights) == 1);
      CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::full_gradients) == 1);
    }
  };
  for (int devices = 1; devices <= 5; ++devices)
    for (int const rounds : {1, 2, 3}) {
      pp::pipeline_size const size{devices, rounds * devices};
      check(pp::detail::SweptChronosPipe{}, size, 2);
      check(pp::Interleaved<2>{}, size, 2);
      check(pp::Interleaved<3>{}, size, 3);
      check(pp::BreadthFirst<2>{}, size, 2);
      check(pp::OneFOneB{}, size, 1);
    }
  CHECK(hidden > 20);
  CHECK(paid > 20);
}

TEST_CASE("weights of several stages on the host come one after the other, or all") {
  for (int count = 0; count <= 4; ++count) {
    pp::with_sharded_weights<pp::Interleaved<3>, pp::weights_on_host> const adapted{
      {}, {.count = count}};
    auto const table = pp::make_timetable(adapted, {2, 4}, pp::uniform_cost{.gather = 1});
    for (int device = 0; device < 2; ++device)
      CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::weights) == std::min(count, 3));
  }
}

TEST_CASE("planted faults in visits are found") {
  CHECK(verdict_with([](auto&, auto&) {}));
  CHECK(verdict_with([](auto&, auto& network) {
          erase_first(network, kind::gather_weights);
        }).broken == pp::report::rule::wrong_kinds);
  CHECK(verdict_with([](auto& compute, auto&) {
          move_before(compute, kind::release_weights, kind::forward);
        }).broken == pp::report::rule::not_there);
  CHECK(verdict_with([](auto& compute, auto&) {
          move_before(compute, kind::request_scatter, kind::backward);
        }).broken == pp::report::rule::not_there);
  CHECK(verdict_with([](auto&, auto& network) { network.push_back(network.front()); }).broken ==
        pp::report::rule::repeated_pass);
  CHECK(verdict_with([](auto& compute, auto&) {
          erase_first(compute, kind::use_weights);
        }).broken == pp::report::rule::wrong_kinds);
  CHECK(verdict_with([](auto&, auto& network) {
          erase_first(network, kind::scatter_gradients);
        }).broken == pp::report::rule::wrong_kinds);
  CHECK(verdict_with([](auto& compute, auto& network) {
          // A whole visit is missing.
          erase_first(compute, kind::request_weights);
          erase_first(compute, kind::use_weights);
          erase_first(compute, kind::release_weights);
          erase_first(network, kind::gather_weights);
        }).broken == pp::report::rule::not_there);
  CHECK(verdict_with([](auto&, auto& network) { std::swap(network[3], network[2]); }).broken ==
        pp::report::rule::waits_for_ever);
  pp::weights_on_host const on_host;
  CHECK(verdict_with([](auto&, auto&) {}, on_host));
  CHECK(
    verdict_with([](auto& compute, auto&) { erase_first(compute, kind::keep_weights); }, on_host)
      .broken == pp::report::rule::not_there);
  CHECK(verdict_with([](auto& compute, auto&) { compute.push_back(compute.front()); }, on_host)
          .broken == pp::report::rule::repeated_pass);
  CHECK(verdict_with(
          [](auto& compute, auto&) {
            std::iter_swap(compute.begin(), // after the first pass of its stage
                           std::find_if(compute.begin(), compute.end(), [](auto const& p) {
                             return p.kind == kind::forward;
                           }));
          },
          on_host)
          .broken == pp::report::rule::not_there);
}

TEST_CASE("weights cannot be gathered a negative number of stages ahead, or sharded twice") {
  pp::with_sharded_weights<pp::GPipe> const backwards{{}, {.prefetch = -1}};
  CHECK_THROWS_WITH_AS(
    (void)pp::make_timetable(backwards, {2, 2}),
    "with_sharded_weights: weights cannot be gathered a negative number of stages ahead",
    std::invalid_argument);
  pp::with_sharded_weights<pp::GPipe> const nowhere{{}, {.resident = 0}};
  CHECK_THROWS_WITH_AS(
    (void)pp::make_timetable(nowhere, {2, 2}),
    "with_sharded_weights: the stage of a pass is resident; let resident be 1 or more",
    std::invalid_argument);
  CHECK_THROWS_AS((void)pp::detail::shard_weights(pp::detail::shard_weights(pp::training)),
                  std::invalid_argument);
}
