// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The GPT on a GPU against the GPT on the host, and schedules against each other, bit for bit.
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <examples/gpt/clipped_stage.hpp>
#include <examples/gpt/cuda/gpu_model.hpp>
#include <examples/gpt/host/arithmetic.hpp>
#include <examples/gpt/papers/exchanged_stage.hpp>
#include <examples/gpt/papers/vocabulary.hpp>
#include <examples/gpt/single_device.hpp>
#include <examples/gpt/system.hpp>
#include <examples/gpt/text.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <tests/gpu/gpt.hpp>
#include <tests/gpu/machine.hpp>
#include <tests/support/exchange_on_one_device.hpp>
#include <tests/support/gpt_vocabulary.hpp>
#include <vector>

namespace {

namespace pp = pipelining;

std::vector<float> random_numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& x : numbers)
    x = normal(random);
  return numbers;
}

std::vector<double> doubles(std::vector<float> const& from) {
  return {from.begin(), from.end()};
}

double apart(std::vector<float> const& mine, std::vector<double> const& right) {
  REQUIRE(mine.size() == right.size());
  double most = 0;
  for (std::size_t i = 0; i < right.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(mine[i]) - right[i]));
  return most;
}

//! Small on the stand-in, where every instruction of a kernel is interpreted.
gpt::model_size size() {
  return machine::on_model()
           ? gpt::model_size{.layers = 4, .width = 64, .heads = 1, .key_heads = 1, .sequence = 8}
           : gpt::model_size{
               .layers = 4, .width = 256, .heads = 4, .key_heads = 2, .sequence = 200};
}
int microbatches() {
  return machine::on_model() ? 2 : 8;
}

gpt::batch random_pieces() {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> byte(0, 20); // few, so that they come again
  gpt::batch pieces{size().sequence, {}};
  for (std::int64_t i = 0; i < microbatches() * (size().sequence + 1); ++i)
    pieces.bytes.push_back(static_cast<std::uint8_t>(11 * byte(random)));
  return pieces;
}

constexpr std::uint64_t seed = 7;

std::vector<std::int64_t> lengths(pp::timetable_view table) {
  return gpt::whole_lengths(size(), table);
}

struct training_result {
  std::vector<double> losses{};   //!< of each step
  std::vector<float> gradients{}; //!< of the last one, in the order of the layers
  std::vector<float> values{};    //!< at the end
  std::int64_t clipped = 0;       //!< steps
};

//! Two steps of a model, and the optimizer between them.
template <class Model>
std::vector<double> losses_of(Model& model) {
  gpt::adamw optimizer;
  optimizer.warm_up = 1;
  std::vector<double> losses{model.step(random_pieces())};
  model.update(optimizer, 0);
  losses.push_back(model.step(random_pieces()));
  return losses;
}

training_result train_on_host() {
  gpt::single_device model(
    size(), 1, {microbatches(), gpt::cut_sequence(size().sequence, 1)}, seed);
  auto const losses = losses_of(model);
  return {losses, gradients_of(model), {}};
}

//! @param bf16 what products multiply, and attention in any case
void check_close(training_result const& found, training_result const& host, bool bf16) {
  REQUIRE(found.losses.size() == host.losses.size());
  for (std::size_t step = 0; step < host.losses.size(); ++step)
    CHECK(found.losses[step] == doctest::Approx(host.losses[step]).epsilon(bf16 ? 2e-3 : 5e-4));
  REQUIRE(found.gradients.size() == host.gradients.size());
  CHECK(gpt::relative_error(found.gradients, host.gradients) < (bf16 ? 0.02 : 0.01));
}

template <class Schedule>
pp::dynamic_timetable table(Schedule const& schedule, int devices) {
  return pp::make_timetable(schedule, {devices, microbatches()});
}

training_result train(pp::timetable_view table, gpt::gpu_run how) {
  machine::begin();
  if (machine::on_model())
    how.workspace_bytes = 256;
  auto model = gpt::on_virtual_devices<machine::clock>(size(), table, lengths(table), seed, how);
  auto const losses = losses_of(model);
  training_result result{losses, model.gradients(), model.values()};
  CHECK(machine::findings() == "");
  return result;
}

} // namespace

TEST_CASE("products of a linear layer are the sums in double") {
  for (bool const bf16 : {false, true}) {
    CAPTURE(bf16);
    machine::begin();
    gpt_tests::product_problem p{
      5, 7, 6, random_numbers(35, 1), random_numbers(42, 2), random_numbers(30, 3), bf16};
    auto const found = gpt_tests::products_on_gpu(p);
    CHECK(machine::findings() == "");
    auto const at = [](std::int64_t row, std::int64_t column, std::int64_t columns) {
      return static_cast<std::size_t>(row * columns + column);
    };
    std::vector<double> y(30), dx(35, 1), dw(42, 1);
    for (std::int64_t t = 0; t < p.tokens; ++t)
      for (std::int64_t i = 0; i < p.inputs; ++i)
        for (std::int64_t o = 0; o < p.outputs; ++o) {
          double const x = p.x[at(t, i, p.inputs)], w = p.weight[at(i, o, p.outputs)];
          double const dy = p.dy[at(t, o, p.outputs)];
          y[at(t, o, p.outputs)] += x * w;
          dx[at(t, i, p.inputs)] += dy * w;
          dw[at(i, o, p.outputs)] += x * dy;
        }
    double const allowed = bf16 ? 0.1 : 1e-5; // operands of some units, rounded by 2^-9
    CHECK(apart(found.y, y) < allowed);
    CHECK(apart(found.dx, dx) < allowed);
    CHECK(apart(found.dw, dw) < allowed);
  }
}

TEST_CASE("what comes token by token is what the layers of the host give in double") {
  machine::begin();
  // More numbers than a block has threads, and no multiple of anything.
  gpt_tests::row_problem p;
  p.tokens = 5;
  p.width = 131;
  auto const tokens = static_cast<std::size_t>(p.tokens);
  p.x = random_numbers(p.tokens * p.width, 1);
  p.gain = random_numbers(p.width, 2);
  p.dy = random_numbers(p.tokens * p.width, 3);
  p.text = {9, 255, 9, 0, 9};
  p.logits = random_numbers(p.tokens * gpt::vocabulary, 4);
  auto const found = gpt_tests::rows_on_gpu(p, 0.25f);
  CHECK(machine::findings() == "");

  namespace host = gpt::host;
  host::token_rows const rows{p.tokens, p.width, {}};
  std::vector<double> const gain = doubles(p.gain);
  std::vector<double> of_gain = gain;
  std::vector<double> const x = doubles(p.x), dy = doubles(p.dy);
  std::vector<double> normal(x.size()), inverse(tokens), scaled(x.size()), dx = x;
  gpt::normalised<double> const kept{normal.data(), inverse.data()};
  host::layer_norm_forward(scaled.data(), kept, x.data(), gain.data(), rows);
  host::layer_norm_backward(dx.data(), of_gain.data(), dy.data(), kept, gain.data(), rows);
  CHECK(apart(found.normal, normal) < 1e-5);
  CHECK(apart(found.scaled, scaled) < 1e-5);
  CHECK(apart(found.rounded, scaled) < 0.04);
  CHECK(apart(found.norm_dx, dx) < 1e-5);
  CHECK(apart(found.gain_gradient, of_gain) < 1e-5);

  std::vector<double> y(x.size()), slope(x.size());
  host::gelu_forward(y.data(), x.data(), rows.count(), {});
  host::gelu_backward(slope.data(), x.data(), dy.data(), rows.count(), {});
  CHECK(apart(found.gelu, y) < 1e-6);
  CHECK(apart(found.gelu_dx, slope) < 1e-5);

  std::vector<double> bytes(static_cast<std::size_t>(gpt::vocabulary * p.width));
  std::vector<double> positions(x.size()), embedded(x.size());
  embedding_backward(bytes.data(), positions.data(), dy.data(), p.text.data(), rows);
  CHECK(apart(found.byte_gradient, bytes) < 1e-6);
  CHECK(apart(found.position_gradient, positions) < 1e-6);
  // Any numbers will do.
  host::embedding_forward(embedded.data(), bytes.data(), positions.data(), p.text.data(), rows);
  CHECK(apart(found.embedded, embedded) < 1e-6);

  std::vector<double> losses, gradient;
  for (std::size_t t = 0; t < tokens; ++t) {
    auto const row = doubles({p.logits.begin() + static_cast<std::ptrdiff_t>(t * 256),
                              p.logits.begin() + static_cast<std::ptrdiff_t>(t * 256 + 256)});
    double sum = 0;
    for (double const logit : row)
      sum += std::exp(logit);
    losses.push_back(std::log(sum) - row[p.text[t]]);
    for (std::size_t v = 0; v < row.size(); ++v)
      gradient.push_back(0.25 * (std::exp(row[v]) / sum - (v == p.text[t] ? 1 : 0)));
  }
  CHECK(apart(found.losses, losses) < 1e-5);
  CHECK(apart(found.logits_gradient, gradient) < 1e-6);
}

TEST_CASE("AdamW moves values as on the host, and rounds what products read") {
  machine::begin();
  gpt::parameter<double> host(300, 0.0, true);
  auto const value = random_numbers(300, 1);
  auto const gradient = random_numbers(300, 2);
  host.value = doubles(value);
  for (int step = 0; step < 3; ++step) {
    host.gradient = doubles(gradient);
    gpt::adamw{}.update(host, step);
  }
  auto const found = gpt_tests::adamw_on_gpu(value, gradient, 3);
  CHECK(machine::findings() == "");
  REQUIRE(found.size() == 600);
  CHECK(apart({found.begin(), found.begin() + 300}, host.value) < 1e-6);
  CHECK(apart({found.begin() + 300, found.end()}, host.value) < 0.01);
}

TEST_CASE("losses and gradients are those of the host, and bits do not depend on the schedule") {
  struct choice {
    std::string name;
    pp::dynamic_timetable table;
    bool with_graph; //!< on the stand-in: as a graph, not eagerly
    bool in_bf16;    //!< on the stand-in, too
  };
  // Gradients that are scattered once have the bits of one sum. With one stage resident, weights
  // come again.
  pp::with_sharded_weights<pp::Interleaved<2>> const in_shards{
    {}, {.scatter_once = true, .prefetch = 0, .resident = 1}};
  // One device runs fused passes; others split them, or have several stages on a device.
  std::vector<choice> const all{
    {"1F1B, one device", table(pp::OneFOneB{}, 1), false, true},
    {"1F1B", table(pp::OneFOneB{}, 2), true, true},
    {"Interleaved", table(pp::Interleaved<2>{}, 2), false, false},
    {"ZB-H1", table(pp::ZeroBubbleH1{}, 2), true, false},
    {"V-Half", table(pp::detail::SweptVHalf{}, 2), false, false},
    {"recompute", table(pp::with_recompute<pp::OneFOneB>{}, 2), true, false},
    {"offload", table(pp::with_offload<pp::OneFOneB>{}, 2), true, false},
    {"sharded weights", table(in_shards, 2), true, true}};
  auto const host = train_on_host();
  for (bool const bf16 : {false, true}) {
    training_result first;
    for (choice const& each : all)
      for (bool const graph : {false, true}) {
        // The stand-in runs each schedule once, and with bf16 one eagerly and one as a graph.
        if (machine::on_model() && (graph != each.with_graph || (bf16 && !each.in_bf16)))
          continue;
        CAPTURE(each.name);
        CAPTURE(bf16);
        CAPTURE(graph);
        auto const result =
          train(each.table,
                {.numbers = bf16 ? gpt::operands::bf16 : gpt::operands::float32, .graph = graph});
        if (first.values.empty())
          first = result;
        CHECK(result.losses == first.losses);
        CHECK(gpt::differences(result.gradients, first.gradients) == 0);
        CHECK(gpt::differences(result.values, first.values) == 0);
      }
    CAPTURE(bf16);
    check_close(first, host, bf16);
  }
}

TEST_CASE(
  "weights on the host give the gradients of those on GPUs, and step on the host as there") {
  auto const step = [](pp::timetable_view table, gpt::weights_home home) {
    machine::begin();
    gpt::gpu_run how{.numbers = gpt::operands::bf16, .guarded = true, .home = home};
    if (machine::on_model())
      how.workspace_bytes = 256;
    auto model = gpt::on_virtual_devices<machine::clock>(size(), table, lengths(table), seed, how);
    training_result result{{model.step(random_pieces())}, model.gradients()};
    model.update({}, 0);
    result.values = model.values();
    CHECK(machine::findings() == "");
    return result;
  };
  using on_host = pp::with_sharded_weights<pp::Interleaved<2>, pp::weights_on_host>;
  auto const kept = step(table(pp::OneFOneB{}, 2), gpt::weights_home::shards);
  auto const loaded = step(table(on_host{}, 2), gpt::weights_home::host);
  CHECK(loaded.losses == kept.losses);
  CHECK(gpt::differences(loaded.gradients, kept.gradients) == 0);
  REQUIRE(loaded.values.size() == kept.values.size());
  double most = 0; // the host rounds otherwise
  for (std::size_t i = 0; i < kept.values.size(); ++i)
    most = std::max(most, static_cast<double>(std::abs(loaded.values[i] - kept.values[i])));
  CHECK(most < 1e-7); // where a step is 4e-4
}

TEST_CASE("chunks of sequences give those gradients too, whatever the schedule") {
  auto const host = train_on_host();
  training_result first;
  for (int const devices : {1, 2})
    for (bool const graph : {false, true}) {
      if (machine::on_model() && graph != (devices == 2))
        continue;
      CAPTURE(devices);
      CAPTURE(graph);
      auto const chosen =
        devices == 1 ? table(pp::Seq1F1B<2>{}, 1) : table(pp::with_recompute<pp::Seq1F1B<2>>{}, 2);
      auto const result = train(chosen, {.graph = graph, .guarded = true});
      if (first.values.empty())
        first = result;
      CHECK(result.losses == first.losses);
      CHECK(gpt::differences(result.gradients, first.gradients) == 0);
      CHECK(gpt::differences(result.values, first.values) == 0);
    }
  check_close(first, host, false);
}

TEST_CASE("layers cut at their attention give the bits of whole layers, on one device or several, "
          "where all add up from the last microbatch") {
  struct choice {
    std::string name;
    pp::dynamic_timetable table;
    bool graph, bf16;
  };
  std::vector<choice> all{{"whole layers", table(pp::BreadthFirst<2>{}, 1), false, false},
                          {"HelixPipe", table(pp::HelixPipe<2>{}, 2), true, false}};
  if (!machine::on_model()) // there one more of each would take seconds
    for (bool const bf16 : {false, true})
      for (bool const graph : {false, true}) {
        all.push_back({"whole layers", table(pp::BreadthFirst<2>{}, 1), graph, bf16});
        all.push_back({"HelixPipe, one device", table(pp::HelixPipe<4>{}, 1), graph, bf16});
        all.push_back({"HelixPipe", table(pp::HelixPipe<1>{}, 4), graph, bf16});
        all.push_back({"recompute", table(pp::with_recompute<pp::HelixPipe<2>>{}, 2), graph, bf16});
      }
  auto const host = train_on_host();
  training_result first[2]; // in bf16 or not
  for (choice const& each : all) {
    CAPTURE(each.name);
    CAPTURE(each.graph);
    CAPTURE(each.bf16);
    auto const result = train(each.table,
                              {.numbers = each.bf16 ? gpt::operands::bf16 : gpt::operands::float32,
                               .graph = each.graph,
                               .guarded = true});
    auto& whole = first[each.bf16 ? 1 : 0];
    if (whole.values.empty())
      whole = result;
    CHECK(result.losses == whole.losses);
    CHECK(gpt::differences(result.gradients, whole.gradients) == 0);
    CHECK(gpt::differences(result.values, whole.values) == 0);
    check_close(result, host, each.bf16);
  }
}

TEST_CASE("devices that take over attention of each other give the bits of one device that splits "
          "it alike") {
  auto const host = train_on_host();
  for (int const devices : {2, 4}) {
    if (machine::on_model() && devices == 4)
      continue;
    gpt::exchange_schedule const exchange{{4, 4 / devices}, {}};
    auto const several = table(exchange, devices);
    auto const alone =
      table(support::exchange_on_one_device<gpt::exchange_schedule>{exchange}, devices);
    for (bool const bf16 : {false, true}) {
      if (machine::on_model() && bf16)
        continue;
      training_result first;
      for (auto const* each : {&alone, &several})
        for (bool const graph : {false, true}) {
          if (machine::on_model() && graph != (each == &several))
            continue;
          CAPTURE(devices);
          CAPTURE(bf16);
          CAPTURE(graph);
          auto const result = train(*each,
                                    {.numbers = bf16 ? gpt::operands::bf16 : gpt::operands::float32,
                                     .graph = graph,
                                     .guarded = true,
                                     .exchange = exchange});
          if (first.values.empty())
            first = result;
          CHECK(result.losses == first.losses);
          CHECK(gpt::differences(result.gradients, first.gradients) == 0);
          CHECK(gpt::differences(result.values, first.values) == 0);
        }
      check_close(first, host, bf16);
    }
  }
}

TEST_CASE(
  "shards of the vocabulary give the gradients of those of the host, whatever the schedule") {
  auto const pieces = random_pieces();
  auto const step = [&](pp::timetable_view table, int barriers, bool graph, bool bf16) {
    machine::begin();
    gpt::gpu_run how{.numbers = bf16 ? gpt::operands::bf16 : gpt::operands::float32,
                     .graph = graph,
                     .guarded = true,
                     .barriers = barriers};
    if (machine::on_model())
      how.workspace_bytes = 256;
    auto model = gpt::on_virtual_devices<machine::clock>(size(), table, lengths(table), seed, how);
    double const loss = model.step(pieces);
    training_result result{{loss}, model.gradients()};
    CHECK(machine::findings() == "");
    return result;
  };
  auto const two = table(pp::with_vocabulary<pp::OneFOneB, 2>{}, 2);
  gpt::sharded_device host(size(), gpt::cut_around(size(), two, 2), seed);
  training_result expected{{host.step(pieces)}, gpt::gradients_of(host)};
  auto const first = step(two, 2, false, false);
  check_close(first, expected, false);
  auto const again = step(table(pp::with_vocabulary<pp::ZeroBubbleH1, 0>{}, 2), 0, true, false);
  CHECK(again.losses == first.losses);
  CHECK(gpt::differences(again.gradients, first.gradients) == 0);
  // One barrier makes the gradient of the input before it knows all statistics: other bits.
  check_close(
    step(table(pp::with_vocabulary<pp::OneFOneB, 1>{}, 2), 1, false, true), expected, true);
  check_close(
    step(table(pp::with_vocabulary<pp::Seq1F1B<2>, 1>{}, 2), 1, false, false), expected, false);
}

TEST_CASE(
  "clipped steps are those of the host, whatever the schedule, validated at once or later") {
  gpt::adamw optimizer;
  optimizer.warm_up = 1;
  optimizer.steps = 2;
  auto const on_host = [] {
    return gpt::single_device(
      size(), 2, {microbatches(), gpt::cut_sequence(size().sequence, 1)}, seed);
  };
  auto first_step = on_host();
  first_step.step(random_pieces());
  double const of_first = gpt::row_of(first_step.stages().front()).squared_norm;
  double const of_last = gpt::row_of(first_step.stages().back()).squared_norm;
  // More than the first stage alone has, so that its early step is rolled back; or more than all.
  double const between = std::sqrt(of_first + of_last / 2);
  for (double const norm : {between, 1e6}) {
    CAPTURE(norm);
    bool const clips = norm == between;
    gpt::clipping how{optimizer, norm, false};
    auto host = on_host();
    training_result expected;
    std::int64_t taken = 0;
    for (int step = 0; step < 2; ++step) {
      expected.losses.push_back(host.step(random_pieces()));
      taken = gpt::take_clipped_step(host.stages(), how, taken);
    }
    expected.values = weights_of(host);

    struct choice {
      std::string name;
      pp::dynamic_timetable table;
      gpt::gpu_run run;
      bool early;
    };
    std::vector<choice> const all{
      {"1F1B as a graph", table(pp::OneFOneB{}, 2), {.graph = true}, false},
      {"ZB-H1", table(pp::ZeroBubbleH1{}, 2), {}, false},
      {"1F1B, validated later", table(pp::OneFOneB{}, 2), {.guarded = true}, true}};
    training_result first;
    for (choice const& each : all) {
      if (machine::on_model() && !clips && !each.early)
        continue; // what the first ones show, AdamW without a norm does
      CAPTURE(each.name);
      how.early = each.early;
      machine::begin();
      auto run = each.run;
      run.clip = &how;
      if (machine::on_model())
        run.workspace_bytes = 256;
      auto model = gpt::on_virtual_devices<machine::clock, gpt::clipped_gpu_stage>(
        size(), each.table, lengths(each.table), seed, run);
      training_result found;
      for (int step = 0; step < 2; ++step)
        found.losses.push_back(model.step(random_pieces()));
      model.finish();
      found.values = model.values();
      auto const done = model.clipping_done();
      CHECK(machine::findings() == "");
      CHECK((done.clipped > 0) == clips);
      CHECK(done.left_out == 0);
      CHECK((done.rolled_back > 0) == (each.early && clips));
      if (first.values.empty())
        first = found;
      CHECK(found.losses == first.losses);
      CHECK(gpt::differences(found.values, first.values) == 0);
    }
    for (std::size_t step = 0; step < 2; ++step)
      CHECK(first.losses[step] == doctest::Approx(expected.losses[step]).epsilon(2e-3));
    CHECK(gpt::relative_error(first.values, expected.values) < 0.03);
  }
}

TEST_CASE("two copies of a stage add up what both halves of the batch give on their own, and their "
          "gradients count once in the norm") {
  auto const pieces = random_pieces();
  auto const step = [](pp::timetable_view table, gpt::batch const& of, gpt::gpu_run how) {
    machine::begin();
    if (machine::on_model())
      how.workspace_bytes = 256;
    auto model = gpt::on_virtual_devices<machine::clock>(size(), table, lengths(table), seed, how);
    double const loss = model.step(of);
    training_result result{{loss}, model.gradients()};
    if (how.clip != nullptr) {
      model.update({}, 0);
      result.clipped = model.clipping_done().clipped;
      result.values = model.values();
    }
    CHECK(machine::findings() == "");
    return result;
  };
  int const half = microbatches() / 2;
  auto const plain = pp::make_timetable(pp::OneFOneB{}, {1, half});
  auto const first = step(plain, gpt::share_of(pieces, 0, half), {.replicas = 2});
  auto const second = step(plain, gpt::share_of(pieces, 1, half), {.replicas = 2});
  std::vector<float> sums;
  double squares = 0;
  for (int copy = 0; copy < 2; ++copy) // which have the same
    for (std::size_t i = 0; i < first.gradients.size(); ++i)
      sums.push_back(first.gradients[i] + second.gradients[i]);
  for (std::size_t i = 0; i < first.gradients.size(); ++i)
    squares += static_cast<double>(sums[i]) * static_cast<double>(sums[i]);
  for (bool const clips : {true, false}) {
    CAPTURE(clips);
    gpt::clipping const how{{}, (clips ? 0.9999 : 1.0001) * std::sqrt(squares), false};
    auto const both = step(table(pp::Chimera{}, 2), pieces, {.graph = clips, .clip = &how});
    CHECK(both.losses[0] == doctest::Approx((first.losses[0] + second.losses[0]) / 2));
    CHECK(gpt::differences(both.gradients, sums) == 0);
    CHECK(both.clipped == (clips ? 1 : 0));
    auto const middle = both.values.begin() + static_cast<std::ptrdiff_t>(first.gradients.size());
    CHECK(std::equal(both.values.begin(), middle, middle, both.values.end()));
  }
}

TEST_CASE("what the stages lack is refused in one sentence") {
  machine::begin();
  auto const sentence_of = [](pp::timetable_view table, gpt::model_size const& of) {
    try {
      auto const model = gpt::on_virtual_devices<machine::clock>(of, table, lengths(table), seed);
    } catch (std::invalid_argument const& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  auto thin = size();
  thin.heads = thin.key_heads = thin.width / 32;
  CHECK(
    sentence_of(table(pp::OneFOneB{}, 1), thin)
      .find("a head of this model has 32 elements, but the kernels of the example are built for "
            "64 and 128") != std::string::npos);
  auto const plain = table(pp::OneFOneB{}, 2);
  pp::timetable_view strange = plain;
  pp::flow own = *strange.over.declared;
  own.kinds[pp::detail::index_of(pp::pass_kind::forward)].calls = pp::stage_call::perform;
  strange.over.declared = &own;
  CHECK(sentence_of(strange, size())
          .find("has no pass that is called forward; choose a schedule of whole layers, whose "
                "passes are forward and backward, with recomputation, offload and gathered "
                "weights") != std::string::npos);
}
