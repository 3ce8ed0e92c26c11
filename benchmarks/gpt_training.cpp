// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Tokens a second of a training step of the GPT, as JSON lines: on one thread without a
//! pipeline, and in pipelines of two devices on threads. The best of several steps, optimizer
//! included.

#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
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

//! Prints the best of a model's steps.
template <class Model>
void measure(run const& each, char const* schedule, int devices, Model& model) {
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
              "%d, \"sequence\": %d, \"microbatches\": %d, \"tokens\": %.1f}\n",
              schedule,
              devices,
              static_cast<int>(each.size.layers),
              static_cast<int>(each.size.width),
              static_cast<int>(each.size.heads),
              static_cast<int>(each.size.sequence),
              each.microbatches,
              static_cast<double>(each.microbatches * each.size.sequence) / best);
  std::fflush(stdout);
}

template <class Schedule>
void measure_pipeline(run const& each, char const* name, Schedule schedule) {
  auto const table =
    pp::make_timetable(schedule, {.devices = 2, .microbatches = each.microbatches});
  std::vector<std::int64_t> const lengths(static_cast<std::size_t>(each.microbatches),
                                          each.size.sequence);
  gpt::pipelined_model model(each.size, table, lengths, 1);
  measure(each, name, 2, model);
}

} // namespace

int main() {
  for (auto const& each : runs) {
    gpt::single_device<float> model(
      each.size, 1, {each.microbatches, gpt::cut_sequence(each.size.sequence, 1)}, 1);
    measure(each, "", 1, model);
    if (each.in_pipelines) {
      measure_pipeline(each, names::one_f_one_b.data(), pp::OneFOneB{});
      measure_pipeline(each, "interleaved, V = 2", pp::Interleaved<2>{});
      measure_pipeline(each, names::zero_bubble_h1.data(), pp::ZeroBubbleH1{});
    }
  }
}
