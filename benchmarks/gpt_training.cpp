// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Tokens a second of a training step of the GPT, as JSON lines: on one thread without a
//! pipeline, and in pipelines of two devices on threads. The best of several steps, optimizer
//! included. Of a pipeline also how many times one thread its order allows, with passes that take
//! as long as on one thread.

#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "examples/gpt/host/pipeline.hpp"
#include "examples/gpt/model.hpp"
#include "examples/gpt/parameter.hpp"
#include "examples/gpt/single_device.hpp"
#include "examples/gpt/text.hpp"

namespace {

using pipelining::registry::names;

namespace pp = pipelining;

struct run {
  gpt::model_size size;
  int microbatches;
  bool in_pipelines; //!< with two devices, too
};

//! Sizes for a laptop, from mostly overhead to mostly arithmetic.
constexpr std::array<run, 4> runs{{{{16, 64, 4, 4, 128}, 16, true},
                                   {{8, 256, 8, 8, 128}, 8, true},
                                   {{4, 512, 8, 8, 256}, 2, false},
                                   {{4, 512, 8, 8, 1024}, 1, false}}};
constexpr int steps = 7;

//! Random bytes: what is learned does not matter.
gpt::batch pieces_of(run const& each) {
  std::mt19937_64 random(1);
  std::vector<std::uint8_t> bytes(1 << 16);
  for (auto& byte : bytes) {
    byte = static_cast<std::uint8_t>(32 + random() % 90);
  }
  return gpt::random_batch(bytes, each.microbatches, each.size.sequence, random);
}

//! Seconds of all passes of each kind and stage of a step: of one thread, by processor time, the
//! least of several steps.
std::map<std::pair<pp::pass_kind, int>, double> times_of_passes(run const& each, int stages) {
  gpt::single_device model(each.size,
                           static_cast<std::size_t>(stages),
                           {each.microbatches, gpt::cut_sequence(each.size.sequence, 1)},
                           1);
  auto const pieces = pieces_of(each);
  std::map<std::pair<pp::pass_kind, int>, double> least;
  for (int step = 0; step < steps; ++step) {
    std::map<std::pair<pp::pass_kind, int>, double> sums;
    (void)model.step(pieces, [&](pp::pass_kind kind, std::size_t stage, gpt::unit, auto work) {
      std::clock_t const start = std::clock();
      work();
      sums[{kind, static_cast<int>(stage)}] +=
        static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    });
    for (auto const& [what, time] : sums)
      least[what] = step == 0 ? time : std::min(least[what], time);
  }
  return least;
}

//! How many times one thread an order allows.
template <class Schedule>
double most_of(run const& each, Schedule const& schedule) {
  pp::pipeline_size const size{.devices = 2, .microbatches = each.microbatches};
  pp::shape const extents = pp::make_timetable(schedule, size).over.extents;
  pp::cost_table cost(extents, {});
  double work = 0;
  for (auto const& [what, time] : times_of_passes(each, extents.stages())) {
    cost.set(what.first, what.second, 0, time / each.microbatches);
    work += time;
  }
  return work / pp::makespan(pp::make_timetable(schedule, size, cost));
}

//! Prints the best of a model's steps.
//! @param most times one thread that it could be
template <class Model>
void measure(run const& each, char const* schedule, int devices, Model& model, double most = 1) {
  auto const pieces = pieces_of(each);
  double best = 1e9;
  for (int step = 0; step < steps; ++step) {
    auto const start = std::chrono::steady_clock::now();
    (void)model.step(pieces);
    model.update(gpt::adamw{}, step);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  std::printf("{\"schedule\": \"%s\", \"devices\": %d, \"layers\": %d, \"width\": %d, \"heads\": "
              "%d, \"sequence\": %d, \"microbatches\": %d, \"most\": %.3f, \"tokens\": %.1f}\n",
              schedule,
              devices,
              static_cast<int>(each.size.layers),
              static_cast<int>(each.size.width),
              static_cast<int>(each.size.heads),
              static_cast<int>(each.size.sequence),
              each.microbatches,
              most,
              static_cast<double>(each.microbatches * each.size.sequence) / best);
  std::fflush(stdout);
}

template <class Schedule>
void measure_pipeline(run const& each, char const* name, Schedule schedule) {
  double const most = most_of(each, schedule); // before the pipeline has threads
  auto const table =
    pp::make_timetable(schedule, {.devices = 2, .microbatches = each.microbatches});
  std::vector<std::int64_t> const lengths(static_cast<std::size_t>(each.microbatches),
                                          each.size.sequence);
  gpt::pipelined_model model(each.size, table, lengths, 1);
  measure(each, name, 2, model, most);
}

} // namespace

int main() {
  for (auto const& each : runs) {
    gpt::single_device model(
      each.size, 1, {each.microbatches, gpt::cut_sequence(each.size.sequence, 1)}, 1);
    measure(each, "", 1, model);
    if (each.in_pipelines) {
      measure_pipeline(each, names::one_f_one_b.data(), pp::OneFOneB{});
      measure_pipeline(each, "interleaved, V = 2", pp::Interleaved<2>{});
      measure_pipeline(each, names::zero_bubble_h1.data(), pp::ZeroBubbleH1{});
    }
  }
}
