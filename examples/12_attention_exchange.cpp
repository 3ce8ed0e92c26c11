// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: of the chunks of a long sequence the later ones attend to more keys, so devices
// that run different chunks wait for each other. `SlimPipeExchange` has them take over attention of
// each other inside passes: queries and old keys go one way, outputs and log-sum-exps come back.
// How to run: build/release/bin/12_attention_exchange
// Expected output: a table of times, the loss, and: 0 of N gradients differ from one device
#include <pipe/pipe.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "gpt/compiled_layers.hpp"
#include "gpt/papers/attention_exchange.hpp"
#include "gpt/single_device.hpp"

namespace pp = pipelining;

namespace {

constexpr int devices = 4;
constexpr int microbatches = 4;
constexpr int chunks = 8;
constexpr int steps = 8;
gpt::model_size const size{.layers = 4, .width = 32, .heads = 4, .key_heads = 4, .sequence = 64};

// [snippet schedule]
// Eight chunks, one layer on each device, and what the plan of the exchange gives away at most.
pp::SlimPipeExchange<chunks> const exchanging{{}, pp::attention_exchange{.most = 0}};
// [snippet schedule]

//! What the exchange gains where attention takes `longer` times as long as the rest of a layer.
void compare_times(double longer) {
  pp::SlimPipe<chunks> const plain;
  pp::pipeline_size const at{devices, microbatches};
  // Of one chunk on a layer: what does not grow, and attention to the keys of one chunk.
  pp::uniform_cost const linear{.forward = 1, .backward_input = 1, .backward_weight = 1};
  double const attention = longer / (chunks / 2.0);
  pp::attention_cost const alone{
    linear, attention, 2.5 * attention, plain.arrange(devices, microbatches)};
  pp::attention_part_cost<pp::SlimPipeExchange<chunks>> const together{
    exchanging, exchanging.arrange(devices, microbatches), linear, attention, 2.5 * attention};
  double const without = pp::makespan(pp::make_timetable(plain, at, alone));
  double const with = pp::makespan(pp::make_timetable(exchanging, at, together));
  double const work = microbatches * chunks * (3 + 3.5 * longer);
  std::printf("%12.2f %12.3f %12.3f\n", longer, without / work, with / work);
}

gpt::batch draw(std::mt19937_64& random) {
  std::vector<std::uint8_t> text;
  while (text.size() < 4096)
    for (char const letter : "twinkle twinkle little star how i wonder what you are ")
      text.push_back(static_cast<std::uint8_t>(letter));
  return gpt::random_batch(text, microbatches, size.sequence, random);
}

//! Trains in a pipeline and on one device, and counts the gradients that differ in any bit.
template <class Schedule>
std::size_t train(Schedule const& schedule) {
  pp::pipeline_size const at{devices, microbatches};
  gpt::exchange_schedule const stages{{chunks, 1}, schedule.exchange};
  auto const table = pp::make_timetable(schedule, at);
  gpt::exchanged_pipeline model(size, stages, table, 1);
  gpt::exchanged_pipeline alone(size, stages, gpt::on_one_device(table), 1);
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
  std::printf("loss %.3f\n%zu of %zu gradients differ from one device\n", loss, differ, compared);
  return differ;
}

} // namespace

int main() {
  std::printf("attention over the rest of a layer; time over the work of a device\n"
              "%12s %12s %12s\n",
              "attention",
              "without",
              "exchanged");
  for (double const longer : {0.5, 1.0, 2.0, 4.0, 8.0})
    compare_times(longer);
  return train(exchanging) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
