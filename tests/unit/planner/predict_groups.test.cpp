// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Groups of GPUs that share sequences: against the model on one GPU, tensor parallelism, and sums
// by hand.
#include <pipe/planner/cut/sequence_groups.hpp>
#include <pipe/planner/model/predict.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace pp = pipelining;

static_assert(pp::group_cost<pp::grouped_gpus>);

namespace {

pp::gpu const card{100, 80, 300, 25, 24, 8};

//! What three passes of the whole model take on one GPU.
double alone(pp::transformer const& model, int tokens) {
  double sum = 0;
  for (pp::pass_kind const kind :
       {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
    sum += pp::prediction{model, {.sequence = tokens}, card, {}}.pass_seconds(
      {model.layers, true, true}, kind, {tokens, 0});
  return sum;
}

} // namespace

TEST_CASE("a group shares the work and exchanges heads for tokens") {
  pp::transformer const model = pp::transformer::named("gpt-7b"); // 32 layers and heads of 128
  pp::grouped_gpus const groups{model, card, {}, 64};
  CHECK(groups.time(4096, 1) == doctest::Approx(alone(model, 4096)));
  for (int const size : {2, 4, 8, 16}) {
    // Of query, keys, values and output each GPU has a part of the tokens, and keeps 1/size of
    // that.
    double const sent = 4 * 2.0 * 4096 * 4096 / size * (size - 1) / size;
    double const in_machine = sent * (std::min(size, 8) - 1) / (size - 1) / 300e9;
    double const to_others = sent * std::max(0, size - 8) / (size - 1) / 25e9;
    CHECK(groups.time(4096, size) ==
          doctest::Approx(alone(model, 4096) / size + 2 * 32 * std::max(in_machine, to_others)));
  }
}

TEST_CASE("heads of keys and values are repeated in groups larger than they are many") {
  pp::transformer model = pp::transformer::named("llama-70b"); // 64 heads, 8 of keys and values
  pp::gpu wide = card;
  wide.gpus_per_machine = 64;
  auto const exchange = [&](int kv_heads, int size) {
    pp::transformer other = model;
    other.kv_heads = kv_heads;
    pp::grouped_gpus const groups{other, wide, {}, 64};
    pp::gpu endless = wide;
    endless.link_gb_per_s = 1e300;
    return groups.time(8192, size) - pp::grouped_gpus{other, endless, {}, 64}.time(8192, size);
  };
  CHECK(exchange(8, 8) < exchange(64, 8));
  CHECK(exchange(8, 64) == doctest::Approx(exchange(64, 64)));
  CHECK(exchange(8, 16) == doctest::Approx(exchange(16, 16)));
}

TEST_CASE("memory of groups is what one GPU would hold, shared") {
  pp::transformer const model = pp::transformer::named("gpt-1.3b");
  pp::grouped_gpus const groups{model, card, {}, 16, 2};
  pp::stage_bytes const whole = pp::prediction{model, {.sequence = 1000}}.bytes(
    {model.layers, true, true}, std::vector<int>{1000});
  for (int const size : {1, 2, 16})
    CHECK(groups.bytes(1000, size) ==
          doctest::Approx(static_cast<double>(whole.activation + whole.logits) / size));
  CHECK(std::isinf(groups.bytes(1000, 32))); // 16 heads
  double const layer = 12.0 * 2048 * 2048;
  double const embedding = 2048.0 * 51200;
  CHECK(groups.resident_bytes() ==
        doctest::Approx(18 * (24 * layer + 2 * embedding) / 32 + 8 * embedding));
}

TEST_CASE("weights cross the network once for each machine") {
  pp::transformer const model = pp::transformer::named("gpt-1.3b");
  double const all = 8.0 * static_cast<double>(model.parameters());
  CHECK(pp::grouped_gpus{model, card, {}, 1}.gather_seconds() == 0);
  CHECK(pp::grouped_gpus{model, card, {}, 4}.gather_seconds() ==
        doctest::Approx(all * 3 / 4 / 300e9));
  // Four machines: three quarters come from others, through eight adapters.
  CHECK(pp::grouped_gpus{model, card, {}, 32}.gather_seconds() ==
        doctest::Approx(all * 3 / 4 / 8 / 25e9));
  CHECK(pp::grouped_gpus{model, card, {}, 8, 4}.gather_seconds() ==
        pp::grouped_gpus{model, card, {}, 32}.gather_seconds());
}
