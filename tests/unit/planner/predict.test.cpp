// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/model/gpu.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/transformer.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace pp = pipelining;

TEST_CASE("bytes of a stage follow from what it holds") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  pp::training_setup const setup{.sequence = 4096, .tensor = 8};
  std::vector<int> const whole{4096};
  pp::stage_bytes const inner = pp::prediction{model, setup}.bytes({.layers = 4}, whole);
  // By hand: 4 layers of 12 x 4096^2 parameters over 8 GPUs, at 2, 4 and 12 bytes.
  CHECK(inner.weights == 4LL * 12 * 4096 * 4096 / 8 * 2);
  CHECK(inner.gradients == 2 * inner.weights);
  CHECK(inner.optimizer == 6 * inner.weights);
  CHECK(inner.activation == 4LL * 4096 * (32 * 4096 + 4 * 32) / 8);
  CHECK(inner.message == 2LL * 4096 * 4096 / 8);
  CHECK(inner.logits == 0);
  CHECK(inner.carried == 0);
  pp::stage_bytes const last =
    pp::prediction{model, setup}.bytes({.layers = 4, .output = true}, whole);
  CHECK(last.weights == inner.weights + 2LL * 51200 * 4096 / 8);
  CHECK(last.logits == 6LL * 4096 * 51200 / 8);
  pp::training_setup sharded = setup;
  sharded.data = 4;
  CHECK(pp::prediction{model, sharded}.bytes({.layers = 4}, whole).optimizer ==
        inner.optimizer / 4);
  // Three of four shards come from elsewhere: at 2 bytes gathered, at 4 scattered.
  pp::gpu network;
  network.network_gb_per_s = 50;
  double const gathered = 0.75 * static_cast<double>(inner.weights) / 50e9;
  CHECK(pp::prediction{{}, sharded, network}.sharding_seconds(
          inner, pp::pass_kind::gather_weights) == doctest::Approx(gathered));
  CHECK(pp::prediction{{}, sharded, network}.sharding_seconds(
          inner, pp::pass_kind::scatter_gradients) == doctest::Approx(2 * gathered));
  CHECK(pp::prediction{{}, setup, network}.sharding_seconds(inner, pp::pass_kind::gather_weights) ==
        0);
  network.host_gb_per_s = 25; // whole ones, over another link
  CHECK(pp::prediction{{}, {}, network}.loading_seconds(inner, pp::pass_kind::gather_weights) ==
        doctest::Approx(2 * gathered / 0.75));
  CHECK(pp::prediction{{}, {}, network}.loading_seconds(inner, pp::pass_kind::scatter_gradients) ==
        doctest::Approx(4 * gathered / 0.75));
  std::vector<int> const halves{2048, 2048};
  CHECK(pp::prediction{model, setup}.bytes({.layers = 4}, halves).carried ==
        2LL * 4 * 4 * 4096 * 4096 / 8);
}

TEST_CASE("layers without experts and frozen ones are counted as they are") {
  pp::transformer const model = pp::transformer::named("deepseek-v3");
  pp::training_setup const setup{.sequence = 4096, .expert = 8};
  std::vector<int> const layers{2, 4, 55};
  std::vector<int> const whole{4096};
  auto const content = pp::stage_content::of_layers(layers, model.dense_layers, 3);
  CHECK(content[0] == pp::stage_content{.layers = 2, .embedding = true, .dense = 2, .frozen = 2});
  CHECK(content[1] == pp::stage_content{.layers = 4, .dense = 1, .frozen = 1});
  CHECK(content[2] == pp::stage_content{.layers = 55, .output = true});
  // By hand: a dense layer has three matrices of 7168 x 18432, the others 32 + 1 of 256 experts.
  std::int64_t const attention = model.attention_parameters();
  std::int64_t const dense = attention + 3LL * 7168 * 18432;
  std::int64_t const mixed = attention + 33 * 3LL * 7168 * 2048 + 7168LL * 256;
  std::int64_t const embedding = 7168LL * 129280;
  pp::stage_bytes const first = pp::prediction{model, setup}.bytes(content[0], whole);
  CHECK(first.weights == 2 * (2 * dense + embedding));
  CHECK(first.gradients + first.optimizer + first.activation == 0);
  pp::stage_bytes const second = pp::prediction{model, setup}.bytes(content[1], whole);
  CHECK(second.weights == 2 * (dense + 3 * mixed));
  CHECK(second.gradients == 4 * 3 * mixed);
  CHECK(second.optimizer == 12 * 3 * mixed);
  CHECK(second.activation == 3 * model.activation_bytes(4096));
  pp::stage_bytes const trained =
    pp::prediction{model, setup}.bytes({.layers = 2, .dense = 2}, whole);
  CHECK(trained.gradients == 4 * 2 * dense);
  CHECK(trained.activation == 2 * model.dense_shape().activation_bytes(4096));
  auto const seconds = [&](pp::stage_content const& of, pp::pass_kind kind) {
    return pp::prediction{model, setup, pp::gpu::named("h100"), {}}.pass_seconds(
      of, kind, {4096, 0});
  };
  for (pp::pass_kind const kind :
       {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight}) {
    bool const forward = kind == pp::pass_kind::forward;
    double const layer = seconds({.layers = 1}, kind);
    double const plain = seconds({.layers = 1, .dense = 1}, kind);
    CHECK(plain < layer); // 18,432 in place of 9 x 2,048, and no messages
    CHECK(seconds({.layers = 4, .dense = 1}, kind) == doctest::Approx(plain + 3 * layer));
    CHECK(seconds(content[0], kind) == doctest::Approx(forward ? 2 * plain : 0));
    CHECK(seconds(content[1], kind) == doctest::Approx(forward ? plain + 3 * layer : 3 * layer));
  }
}

TEST_CASE("parts of layers are whole layers together") {
  for (char const* const name : {"gpt-7b", "llama-70b", "mixtral-8x7b"}) {
    CAPTURE(name);
    pp::transformer const model = pp::transformer::named(name);
    pp::gpu const on = pp::gpu::named("h100");
    pp::efficiency const reached{0.5, 0.25, 0.75};
    pp::training_setup const setup{.sequence = 4096, .tensor = 8};
    std::vector<int> const halves{2048, 2048};
    auto const parts = pp::stage_content::of_parts(6);
    std::vector<int> const layers{6};
    pp::stage_content const whole{6, true, true};
    REQUIRE(parts.size() == 13);
    for (pp::pass_kind const kind :
         {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight}) {
      auto const seconds = [&](pp::stage_content const& of) {
        return pp::prediction{model, setup, on, reached}.pass_seconds(of, kind, {2048, 2048});
      };
      double sum = 0;
      for (pp::stage_content const& each : parts)
        sum += seconds(each);
      CHECK(sum == doctest::Approx(seconds(whole)));
    }
    pp::stage_bytes sum;
    for (pp::stage_content const& each : parts) {
      pp::stage_bytes const of = pp::prediction{model, setup}.bytes(each, halves);
      sum.activation += of.activation;
      sum.weights += of.weights;
      sum.optimizer += of.optimizer;
      sum.carried += of.carried;
      sum.logits += of.logits;
      CHECK((of.weights == 0) == (each.attentions > 0));
    }
    pp::stage_bytes const all = pp::prediction{model, setup}.bytes(whole, halves);
    CHECK(sum.weights == all.weights);
    CHECK(sum.optimizer == all.optimizer);
    CHECK(sum.carried == all.carried);
    CHECK(sum.logits == all.logits);
    // The output of attention lies on both sides of a message.
    std::int64_t const copies = 6LL * 2 * 4096 * model.hidden / 8;
    CHECK(sum.activation == all.activation + copies);
  }
}

TEST_CASE("messages between parts of layers are those of HelixPipe") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  pp::training_setup const setup{.sequence = 4096, .sequences = 2, .tensor = 8};
  std::int64_t const width = 2LL * 2 * 4096 * 4096 / 8; // bf16 of all tokens
  auto const parts = pp::stage_content::of_parts(2);
  for (std::size_t stage = 0; stage + 1 < parts.size(); ++stage)
    CHECK(pp::prediction{model, setup}.sent_bytes(parts[stage], 4096) ==
          (stage % 2 == 0 ? 4 : 2) * width);
  CHECK(pp::prediction{model, setup}.sent_bytes({.layers = 3}, 4096) == width);
  // The longest of them counts.
  pp::gpu const on = pp::gpu::named("h100");
  pp::shape const extents{.devices = 5, .microbatches = 2};
  std::vector<int> const whole{4096};
  pp::cost_table const cost =
    pp::prediction{model, setup, on, {1, 1, 1}}.costs(extents, parts, whole);
  CHECK(cost.latency() ==
        doctest::Approx(4 * static_cast<double>(width) / (on.network_gb_per_s * 1e9)));
}

TEST_CASE("published memory lies in the band of the prediction") {
  // Figure of Seq1F1B, 2.7B, eight devices, no tensor parallelism, 1F1B: 51.4 and 74.3 GB on the
  // device that holds the most, for 16k and 24k tokens.
  pp::transformer const model = pp::transformer::named("gpt-2.7b");
  double const published[][2] = {{16384, 51.4}, {24576, 74.3}};
  for (auto const& [sequence, gigabytes] : published) {
    pp::training_setup const setup{.sequence = static_cast<int>(sequence), .data = 1};
    std::vector<int> const whole{static_cast<int>(sequence)};
    pp::stage_bytes const first =
      pp::prediction{model, setup}.bytes({.layers = 4, .embedding = true}, whole);
    double const predicted =
      (static_cast<double>(first.resident()) + 8.0 * static_cast<double>(first.activation)) / 1e9;
    pp::band const band = pp::prediction{{}, {.tensor = 1}}.memory_band(1, false);
    CAPTURE(predicted);
    CHECK(gigabytes > predicted * band.least);
    CHECK(gigabytes < predicted * band.most);
  }
}

TEST_CASE("times of passes are operations over the rate, and exchanges") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  pp::gpu const h100 = pp::gpu::named("h100");
  pp::efficiency const perfect{1, 1, 1};
  pp::shape const extents{.devices = 4, .microbatches = 2, .chunks = 2};
  std::vector<int> const layers{8, 8, 8, 8};
  std::vector<int> const lengths{3000, 1096};
  auto const content = pp::stage_content::of_layers(layers);
  pp::training_setup setup{.sequence = 4096};
  pp::cost_table const cost =
    pp::prediction{model, setup, h100, perfect}.costs(extents, content, lengths);
  auto const seconds = [&cost](pp::pass_kind kind, int stage, int chunk) {
    return cost.duration(
      {kind, false, static_cast<std::uint16_t>(stage), 0, static_cast<std::uint16_t>(chunk)});
  };
  CHECK(
    seconds(pp::pass_kind::forward, 1, 1) ==
    doctest::Approx(
      8 * (model.linear_flops(1096) + model.attention_flops(pp::pass_kind::forward, {1096, 3000})) /
      (989 * 1e12)));
  CHECK(seconds(pp::pass_kind::forward, 3, 1) - seconds(pp::pass_kind::forward, 1, 1) ==
        doctest::Approx(2.0 * 1096 * 4096 * 51200 / (989 * 1e12)));
  CHECK(seconds(pp::pass_kind::backward, 0, 0) ==
        doctest::Approx(seconds(pp::pass_kind::backward_input, 0, 0) +
                        seconds(pp::pass_kind::backward_weight, 0, 0)));
  CHECK(cost.latency() == doctest::Approx(2.0 * 3000 * 4096 / 450e9));
  // Tensor parallelism over 8 GPUs puts neighbours into different machines, and exchanges.
  setup.tensor = 8;
  pp::cost_table const shared =
    pp::prediction{model, setup, h100, perfect}.costs(extents, content, lengths);
  CHECK(shared.latency() == doctest::Approx(2.0 * 3000 * 4096 / 8 / 50e9));
  double const exchange = 8 * 2 * 2.0 * 7 / 8 * (2.0 * 3000 * 4096) / 450e9;
  CHECK(shared.duration({}) ==
        doctest::Approx(seconds(pp::pass_kind::forward, 0, 0) / 8 + exchange));
  auto const shared_pass = [](pp::pass_kind kind) { return pp::row_writer::make(kind, 0, 0); };
  for (pp::pass_kind const kind :
       {pp::pass_kind::forward, pp::pass_kind::recompute, pp::pass_kind::backward_input})
    CHECK(shared.exchanges(shared_pass(kind)) == doctest::Approx(exchange));
  CHECK(shared.exchanges(shared_pass(pp::pass_kind::backward_weight)) == 0);
  CHECK(shared.duration(shared_pass(pp::pass_kind::backward)) ==
        doctest::Approx(seconds(pp::pass_kind::backward_input, 0, 0) / 8 +
                        std::max(seconds(pp::pass_kind::backward_weight, 0, 0) / 8, exchange)));
  CHECK(cost.exchanges(shared_pass(pp::pass_kind::forward)) == 0);
}

TEST_CASE("messages within a machine are fast, between machines slow") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  pp::gpu const h100 = pp::gpu::named("h100");
  pp::shape const extents{.devices = 8, .microbatches = 2};
  std::vector<int> const layers(8, 4);
  std::vector<int> const lengths{4096};
  pp::cost_table const cost =
    pp::prediction{model, {.sequence = 4096, .tensor = 2}, h100, {}}.costs(
      extents, pp::stage_content::of_layers(layers), lengths);
  double const bytes = 2.0 * 4096 * 4096 / 2;
  REQUIRE(cost.links().size() == 64);
  CHECK(cost.links()[0 * 8 + 1] == doctest::Approx(bytes / 450e9));
  CHECK(cost.links()[2 * 8 + 3] == doctest::Approx(bytes / 450e9));
  CHECK(cost.links()[3 * 8 + 4] == doctest::Approx(bytes / 50e9)); // GPUs 6 and 7, GPUs 8 and 9
  CHECK(cost.links()[4 * 8 + 3] == doctest::Approx(bytes / 50e9));
  CHECK(cost.latency() == doctest::Approx(bytes / 50e9));
  // A device as large as a machine has no neighbour in it.
  CHECK(pp::prediction{model, {.sequence = 4096, .tensor = 8}, h100, {}}
          .costs(extents, pp::stage_content::of_layers(layers), lengths)
          .links()
          .empty());
}

TEST_CASE("shards of a vocabulary share its products and its bytes") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  pp::gpu const h100 = pp::gpu::named("h100");
  pp::efficiency const perfect{1, 1, 1};
  pp::training_setup const setup{.sequence = 4096};
  std::vector<int> const layers{16, 16};
  std::vector<int> const lengths{4096};
  std::vector<pp::stage_content> const content = pp::stage_content::of_shards(layers, 2);
  REQUIRE(content.size() == 6);
  for (int const barriers : {1, 2}) {
    pp::shape const extents = barriers == 1 ? pp::with_vocabulary<pp::OneFOneB, 1>{}.arrange(2, 4)
                                            : pp::with_vocabulary<pp::OneFOneB, 2>{}.arrange(2, 4);
    pp::cost_table const cost = pp::prediction{model, setup, h100, perfect}.costs_of_shards(
      extents, content, lengths, barriers);
    auto const seconds = [&cost](pp::pass_kind kind, int stage) {
      return cost.duration(pp::row_writer::make(kind, stage, 0));
    };
    double const product = 2.0 * 4096 * 4096 * 51200 / 2 / (989 * 1e12); // half of the rows
    CHECK(seconds(pp::pass_kind::logits, 4) == doctest::Approx(product * (barriers == 1 ? 2 : 1)));
    CHECK(seconds(pp::pass_kind::logits_gradient, 5) ==
          doctest::Approx(product * (barriers == 1 ? 1 : 2)));
    CHECK(seconds(pp::pass_kind::embed, 0) == 0);
    CHECK(cost.groups().broadcast == doctest::Approx(cost.latency())); // to one other device
    // All three products of the whole output layer, shared by two.
    std::vector<int> const plain{16, 16};
    pp::cost_table const whole = pp::prediction{model, setup, h100, perfect}.costs(
      {.devices = 2, .microbatches = 4}, pp::stage_content::of_layers(plain), lengths);
    double all = 0;
    double sharded = 0;
    for (int device = 0; device < 2; ++device) {
      for (pp::pass_kind const kind : {pp::pass_kind::forward, pp::pass_kind::backward}) {
        all += whole.duration(pp::row_writer::make(kind, device, 0));
        sharded += seconds(kind, 2 + device);
      }
      sharded += seconds(pp::pass_kind::logits, 4 + device) +
                 seconds(pp::pass_kind::logits_gradient, 4 + device);
    }
    CHECK(sharded == doctest::Approx(all));
  }
  std::int64_t whole = 0;
  std::int64_t shards = 0;
  for (pp::stage_content const& each : pp::stage_content::of_layers(layers))
    whole += pp::prediction{model, setup}.bytes(each, lengths).weights;
  for (pp::stage_content const& each : content)
    shards += pp::prediction{model, setup}.bytes(each, lengths).weights;
  CHECK(shards == whole);
  CHECK(pp::prediction{model, setup}.bytes(content.back(), lengths).logits ==
        model.logits_bytes(4096) / 2);
}

TEST_CASE("recomputation repeats the forward pass, copies take the link to the host") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  pp::gpu const h100 = pp::gpu::named("h100");
  pp::shape const extents{.devices = 4, .microbatches = 2, .chunks = 2};
  std::vector<int> const layers{8, 8, 8, 8};
  std::vector<int> const lengths{3000, 1096};
  pp::cost_table const cost =
    pp::prediction{model, {.sequence = 4096, .tensor = 8}, h100, {}}.costs(
      extents, pp::stage_content::of_layers(layers), lengths);
  auto const seconds = [&cost](pp::pass_kind kind, int stage, int chunk) {
    return cost.duration(pp::row_writer::make(kind, stage, 0, chunk));
  };
  for (int stage = 0; stage < 4; ++stage)
    for (int chunk = 0; chunk < 2; ++chunk) {
      CHECK(seconds(pp::pass_kind::recompute, stage, chunk) ==
            seconds(pp::pass_kind::forward, stage, chunk));
      // By hand: 8 layers of 32 hidden + 4 heads bytes per token, shared by 8 GPUs, at 50 GB/s.
      double const copy = lengths[static_cast<std::size_t>(chunk)] * (32.0 * 4096 + 4 * 32) / 50e9;
      CHECK(seconds(pp::pass_kind::copy_out, stage, chunk) == doctest::Approx(copy));
      CHECK(seconds(pp::pass_kind::copy_in, stage, chunk) == doctest::Approx(copy));
    }
}

TEST_CASE("setups that do not fit the model are refused") {
  pp::transformer const model = pp::transformer::named("gpt-7b");
  CHECK_THROWS_WITH((pp::training_setup{.sequence = 1, .tensor = 5}.check(model)),
                    doctest::Contains("heads"));
  CHECK_THROWS_WITH((pp::training_setup{.sequence = 0}.check(model)),
                    doctest::Contains("at least 1"));
  CHECK_THROWS_WITH((pp::training_setup{.sequence = 1, .expert = 2}.check(model)),
                    doctest::Contains("experts"));
  CHECK_THROWS_WITH(pp::gpu::named("h300"), doctest::Contains("h100"));
  CHECK_THROWS_WITH(pp::detail::check_gpu({.peak_tflops = 0}),
                    "gpu: peak_tflops must be between 1e-6 and 1e9");
  CHECK_THROWS_WITH(pp::detail::check_gpu({.network_gb_per_s = 1e308}),
                    "gpu: network_gb_per_s must be between 1e-6 and 1e9");
  CHECK_THROWS_WITH(pp::detail::check_gpu({.memory_gb = 1e-290}),
                    "gpu: memory_gb must be between 1e-6 and 1e9");
  CHECK_THROWS_WITH(pp::detail::check_gpu({.gpus_per_machine = 0}),
                    "gpu: gpus_per_machine must be at least 1");
  CHECK_THROWS_WITH(
    (pp::training_setup{.sequence = std::int64_t{1} << 40, .sequences = 4096}.check(model)),
    "training_setup: a microbatch that keeps more than 1e18 bytes is not counted; "
    "give shorter sequences or fewer of them");
}

TEST_CASE("modules for further tokens and layers of an encoder are parts of stages") {
  pp::transformer model = pp::transformer::named("gpt-7b");
  model.modules = 2;
  model.encoder = {.layers = 3, .hidden = 1024, .heads = 16, .ffn = 4096, .tokens = 576};
  pp::training_setup const setup{.sequence = 4096, .sequences = 2, .tensor = 8, .pictures = 5};
  std::vector<int> const whole{4096};
  std::vector<int> const parts{2, 2, 31, 1, 1}; // 3 of the encoder, 32 layers, 2 modules
  auto const content = pp::stage_content::of_layers(parts, 0, 2, 3, 2);
  CHECK(content[0] ==
        pp::stage_content{
          .layers = 0, .embedding = true, .frozen = 2, .encoders = 2, .pictures = true});
  CHECK(content[1] == pp::stage_content{.layers = 1, .encoders = 1});
  CHECK(content[2] == pp::stage_content{.layers = 31});
  CHECK(content[3] == pp::stage_content{.layers = 0, .modules = 1, .states = 2});
  CHECK(content[4] == pp::stage_content{.layers = 0, .output = true, .modules = 1});
  // By hand: h = 4096, a layer has 12 h^2 parameters, a module 2 h^2 more and the embedding.
  std::int64_t const h = 4096;
  std::int64_t const layer = 12 * h * h;
  std::int64_t const embedding = 51200 * h;
  std::int64_t const picture_layer = 12LL * 1024 * 1024;
  std::vector<std::int64_t> const parameters{2 * picture_layer + embedding,
                                             picture_layer + layer,
                                             31 * layer,
                                             layer + 2 * h * h + embedding,
                                             layer + 2 * h * h + 2 * embedding};
  std::int64_t const kept = 2LL * 4096 * (32 * h + 4 * 32); // of a layer, one microbatch
  std::int64_t const of_pictures = 2LL * 5 * 576 * (32 * 1024 + 4 * 16);
  std::vector<std::int64_t> const activations{0, // frozen
                                              of_pictures + kept,
                                              31 * kept,
                                              kept + 2LL * 4096 * 8 * h,
                                              kept + 2LL * 4096 * 8 * h};
  std::int64_t const state = 2LL * 4096 * 2 * h;
  std::int64_t const encoded = 2LL * 5 * 576 * 2 * 1024;
  std::vector<std::int64_t> const messages{state + encoded, state, state, 2 * state, state};
  for (std::size_t stage = 0; stage < content.size(); ++stage) {
    CAPTURE(stage);
    pp::stage_bytes const bytes = pp::prediction{model, setup}.bytes(content[stage], whole);
    CHECK(bytes.weights == 2 * parameters[stage] / 8);
    CHECK(bytes.gradients == (stage == 0 ? 0 : 4 * parameters[stage] / 8));
    CHECK(bytes.activation == activations[stage] / 8);
    CHECK(bytes.message == messages[stage] / 8);
    CHECK(bytes.logits == (stage == 4 ? 3 * 6LL * 2 * 4096 * 51200 / 8 : 0));
    CHECK(pp::prediction{model, setup, pp::gpu::named("h100")}.copy_seconds(content[stage], 4096) ==
          doctest::Approx(static_cast<double>(activations[stage]) / 8 /
                          (pp::gpu::named("h100").host_gb_per_s * 1e9)));
  }
  CHECK(model.parameters() ==
        32 * layer + 2 * (layer + 2 * h * h) + 2 * embedding + 3 * picture_layer);
  model.tied = true; // the output layer is the embedding that its modules read
  CHECK(pp::prediction{model, setup}.bytes(content[4], whole).weights ==
        2 * (layer + 2 * h * h + embedding) / 8);
  // Times of the arithmetic at a rate of 1e12 in all, without exchanges.
  pp::gpu on = pp::gpu::named("h100");
  on.peak_tflops = 1;
  pp::training_setup alone = setup;
  alone.tensor = 1;
  auto const seconds = [&](pp::stage_content const& of, pp::pass_kind kind, int tokens = 4096) {
    return pp::prediction{model, alone, on, {1, 1, 1}}.pass_seconds(of, kind, {tokens, 0}) * 1e12;
  };
  double const tokens = 2.0 * 4096;
  double const scores = 2.0 * 2 * h * tokens * 4096 / 2; // causal
  double const forward = 2 * tokens * static_cast<double>(layer) + scores;
  double const joining = 2 * tokens * 2.0 * h * h;
  double const output = 2 * tokens * static_cast<double>(embedding);
  double const pictures = 2.0 * 5 * 576;
  double const encoder =
    2 * pictures * static_cast<double>(picture_layer) + 2.0 * 2 * 1024 * pictures * 576;
  CHECK(seconds(content[0], pp::pass_kind::forward) == doctest::Approx(2 * encoder));
  CHECK(seconds(content[0], pp::pass_kind::backward_input) == 0);
  CHECK(seconds(content[1], pp::pass_kind::forward) == doctest::Approx(encoder + forward));
  CHECK(seconds(content[1], pp::pass_kind::backward_weight) ==
        doctest::Approx(2 * pictures * static_cast<double>(picture_layer) + forward - scores));
  CHECK(seconds(content[3], pp::pass_kind::forward) == doctest::Approx(forward + joining));
  CHECK(seconds(content[3], pp::pass_kind::backward_input) ==
        doctest::Approx(forward + joining + 1.5 * scores));
  CHECK(seconds(content[4], pp::pass_kind::forward) ==
        doctest::Approx(forward + joining + 3 * output));
  // Pictures are spread evenly over a sequence.
  CHECK(seconds({.layers = 0, .encoders = 2}, pp::pass_kind::forward, 1024) ==
        doctest::Approx(encoder / 2));
  CHECK(
    pp::prediction{model, setup, on}.exchange_seconds(content[0], pp::pass_kind::forward, 4096) ==
    doctest::Approx(2 * 4.0 * 7 / 8 * static_cast<double>(encoded) / (on.link_gb_per_s * 1e9)));
  CHECK(
    pp::prediction{model, setup, on}.exchange_seconds(content[3], pp::pass_kind::forward, 4096) ==
    doctest::Approx(4.0 * 7 / 8 * static_cast<double>(state) / (on.link_gb_per_s * 1e9)));
}

TEST_CASE("modules next to a vocabulary in shards get embeddings with the hidden states") {
  pp::transformer model = pp::transformer::named("gpt-7b");
  model.modules = 2;
  model.encoder = {.layers = 3, .hidden = 1024, .heads = 16, .ffn = 4096, .tokens = 576};
  pp::training_setup const setup{.sequence = 4096, .pictures = 5};
  std::vector<int> const whole{4096};
  std::vector<int> const parts{2, 2, 31, 1, 1}; // 3 of the encoder, 32 layers, 2 modules
  auto const content = pp::stage_content::of_shards(parts, 5, 0, 3, 2);
  REQUIRE(content.size() == 15);
  // Before the first layer the embedded text is what modules read; the output layer reads 3 states.
  std::int64_t const state = 2LL * 4096 * 4096;
  std::int64_t const encoded = 5LL * 576 * 2 * 1024;
  std::vector<std::int64_t> const messages{
    state + encoded, 2 * state, 2 * state, 3 * state, 3 * state};
  std::int64_t weights = 0;
  for (std::size_t stage = 0; stage < content.size(); ++stage) {
    CAPTURE(stage);
    pp::stage_bytes const bytes = pp::prediction{model, setup}.bytes(content[stage], whole);
    CHECK(bytes.message == (stage < 5 || stage >= 10 ? state : messages[stage - 5]));
    CHECK(bytes.logits == (stage < 10 ? 0 : 3 * 6LL * 4096 * 51200 / 5));
    weights += bytes.weights;
  }
  CHECK(weights == 2 * model.parameters()); // no copy of the embedding
  CHECK(content[8] == pp::stage_content{.layers = 0, .shards = 5, .modules = 1, .states = 3});
  pp::gpu on = pp::gpu::named("h100");
  on.peak_tflops = 1;
  pp::shape const extents = pp::with_vocabulary<pp::OneFOneB, 2>{}.arrange(5, 4);
  pp::cost_table const cost =
    pp::prediction{model, setup, on, {1, 1, 1}}.costs_of_shards(extents, content, whole, 2);
  // Three hidden states of each token go through a fifth of the rows.
  CHECK(cost.duration(pp::row_writer::make(pp::pass_kind::logits, 10, 0)) ==
        doctest::Approx(3 * 2.0 * 4096 * 4096 * 51200 / 5 / 1e12));
  CHECK(cost.latency() == doctest::Approx(3 * static_cast<double>(state) / 450e9));
}
