// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: embedding and output layer need not be on the first and the last device. Cut by
// vocabulary into a shard per device they are as much work for all, and `with_vocabulary` puts
// their passes into any schedule.
// How to run: build/release/bin/11_vocabulary
// Expected output: for each schedule its loss, and: 0 of N gradients differ from one device
#include <pipe/pipe.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "gpt/compiled_layers.hpp"
#include "gpt/papers/vocabulary.hpp"
#include "gpt/single_device.hpp"

namespace pp = pipelining;

namespace {

constexpr int devices = 4;
constexpr int microbatches = 8;
constexpr int steps = 8;
gpt::model_size const size{.layers = 8, .width = 32, .heads = 4, .key_heads = 4, .sequence = 48};

//! Learns the first line of a nursery rhyme by heart.
gpt::batch draw(std::mt19937_64& random) {
  std::vector<std::uint8_t> text;
  while (text.size() < 4096)
    for (char const letter : "twinkle twinkle little star how i wonder what you are ")
      text.push_back(static_cast<std::uint8_t>(letter));
  return gpt::random_batch(text, microbatches, size.sequence, random);
}

//! Parameters of the device that has most. @param at gives a stage
template <class At>
std::size_t most_parameters(At at, pp::timetable_view table) {
  std::vector<std::size_t> held(devices);
  for (int s = 0; s < table.over.extents.stages(); ++s)
    at(static_cast<std::size_t>(s)).for_each_parameter([&](gpt::parameter<float>& p) {
      held[static_cast<std::size_t>(pp::device_of(table, s))] += p.value.size();
    });
  return *std::max_element(held.begin(), held.end());
}

//! Trains in a pipeline and on one device, and counts the gradients that differ in any bit.
template <int Barriers, class Schedule>
std::size_t train(char const* name, Schedule const& inner) {
  // [snippet schedule]
  // Two stages more on every device: a shard of the embedding and one of the output layer.
  auto const table =
    pp::make_timetable(pp::with_vocabulary<Schedule, Barriers>{inner}, {devices, microbatches});
  // [snippet schedule]
  gpt::sharded_pipeline model(size, Barriers, table, 1);
  gpt::sharded_pipeline alone(size, Barriers, gpt::on_one_device(table), 1);
  std::mt19937_64 random(1);
  std::size_t differ = 0;
  std::size_t compared = 0;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    auto const pieces = draw(random);
    loss = model.step(pieces);
    (void)alone.step(pieces);
    auto const here = gpt::gradients_of(model);
    auto const there = gpt::gradients_of(alone);
    for (std::size_t i = 0; i < here.size(); ++i)
      differ += std::memcmp(&here[i], &there[i], sizeof here[i]) == 0 ? 0 : 1;
    compared += here.size();
    model.update(gpt::adamw{}, step);
    alone.update(gpt::adamw{}, step);
  }
  auto const peaks = model.peak_bytes();
  std::printf("%s, %s: loss %.3f; at most %zu parameters and %zu kept bytes on a device\n"
              "  %zu of %zu gradients differ from one device\n",
              name,
              Barriers == pp::interlaced ? "interlaced"
              : Barriers == 1            ? "1 barrier"
                                         : "2 barriers",
              loss,
              most_parameters(
                [&](std::size_t s) -> auto& { return *model.ways().front()[s]; }, table),
              *std::max_element(peaks.begin(), peaks.end()),
              differ,
              compared);
  return differ;
}

} // namespace

int main() {
  auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
  gpt::pipelined_model whole(size, table, std::vector(microbatches, size.sequence), 1);
  std::mt19937_64 random(1);
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    loss = whole.step(draw(random));
    whole.update(gpt::adamw{}, step);
  }
  auto const peaks = whole.peak_bytes();
  std::printf(
    "1F1B, vocabulary in one piece: loss %.3f; at most %zu parameters and %zu kept bytes\n",
    loss,
    most_parameters(
      [&](std::size_t s) -> auto& { return *whole.ways().front()[s]; }, table),
    *std::max_element(peaks.begin(), peaks.end()));
  std::size_t const differ = train<1>("1F1B", pp::OneFOneB{}) + train<2>("1F1B", pp::OneFOneB{}) +
                             train<2>("Seq1F1B", pp::Seq1F1B<3>{}) +
                             train<2>("V-Half", pp::VHalf{}) +
                             train<pp::interlaced>("V-Half", pp::VHalf{});
  return differ == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
