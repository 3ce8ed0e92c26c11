// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RoundPipe: orders and times as published, laws over ranges, loads next to passes, and the cut of
// layers against all cuts.
#include <pipe/flow/flow.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/planner/cut/round_stages.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using loaded = pp::with_sharded_weights<pp::RoundPipe<>>;

//! Every stage takes 1, whichever way it goes.
constexpr pp::uniform_cost unit{1, 0.5, 0.5};

constexpr auto compiled_round_pipe = pp::timetable<pp::RoundPipe<2, 5>, 3, 4>;
static_assert(pp::verify(compiled_round_pipe));

//! The time of the slowest of these runs.
double slowest(std::vector<double> const& times, std::vector<int> const& runs, bool from_back) {
  double most = 0;
  auto at = from_back ? times.size() : 0;
  for (int const count : runs) {
    double sum = 0;
    for (int i = 0; i < count; ++i)
      sum += from_back ? times[--at] : times[at++];
    most = std::max(most, sum);
  }
  return most;
}

//! Calls `use` with every way to cut so many layers into runs.
void for_each_cut(int layers, std::function<void(std::vector<int> const&)> const& use) {
  for (unsigned cuts = 0; cuts < (1u << static_cast<unsigned>(std::max(layers - 1, 0))); ++cuts) {
    std::vector<int> runs(layers > 0 ? 1 : 0, 1);
    for (int i = 1; i < layers; ++i)
      if ((cuts >> static_cast<unsigned>(i - 1) & 1u) != 0)
        runs.push_back(1);
      else
        ++runs.back();
    use(runs);
  }
}

//! What lies on the host: weights and gradients of all layers, and inputs that are kept.
struct host_memory {
  std::vector<std::uint64_t> weights;
  std::vector<std::uint64_t> gradients;
  std::vector<std::vector<std::uint64_t>> inputs; // [M][L]
};

std::uint64_t own_input(int microbatch) {
  return static_cast<std::uint64_t>(microbatch) + 7;
}

//! A stage with layers y = w x, modulo 2^64, and half the square of the output as loss. Its weights
//! are in the slot that they were loaded into, its gradients in another.
struct host_stage {
  host_memory* host = nullptr;
  int first = 0;
  int last = 0;       // after
  bool turns = false; // the first backward stage
  std::uint64_t const* weights = nullptr;
  std::uint64_t* gradients = nullptr;

  static std::uint64_t received(pp::context const& where, pp::input in) {
    return in.slot < 0 ? own_input(where.microbatch) : in.as<std::uint64_t>()[0];
  }
  void forward(pp::context const& where, pp::input in, pp::output out) const {
    std::uint64_t x = received(where, in);
    for (int layer = first; layer < last; ++layer) {
      host->inputs[at(where.microbatch)][at(layer)] = x;
      x *= weights[layer - first];
    }
    out.as<std::uint64_t>()[0] = x;
  }
  void backward(pp::context const& where, pp::input in, pp::output out) const {
    std::uint64_t* const kept = where.activation.as<std::uint64_t>().data();
    std::uint64_t const got = received(where, in);
    std::uint64_t x = turns ? got : host->inputs[at(where.microbatch)][at(first)];
    for (int layer = first; layer < last; ++layer) {
      kept[layer - first] = x;
      x *= weights[layer - first];
    }
    std::uint64_t back = turns ? x : got;
    for (int layer = last; layer-- > first;) {
      gradients[layer - first] += back * kept[layer - first];
      back *= weights[layer - first];
    }
    if (out.slot >= 0)
      out.as<std::uint64_t>()[0] = back;
  }
  void gather_weights(pp::context const&, pp::output out) const {
    std::copy(
      host->weights.begin() + first, host->weights.begin() + last, out.as<std::uint64_t>().begin());
  }
  void use_weights(pp::context const&, pp::input in) { weights = in.as<std::uint64_t>().data(); }
  void collect_gradients(pp::context const&, pp::output out) {
    gradients = out.as<std::uint64_t>().data();
    std::fill_n(gradients, last - first, 0);
  }
  void scatter_gradients(pp::context const&, pp::input in) const {
    for (int layer = first; layer < last; ++layer)
      host->gradients[at(layer)] += in.as<std::uint64_t>()[static_cast<std::size_t>(layer - first)];
  }

private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
};

//! The gradients of all layers, one microbatch after the other.
std::vector<std::uint64_t> on_one_device(std::vector<std::uint64_t> const& weights,
                                         int microbatches) {
  std::vector<std::uint64_t> gradients(weights.size());
  for (int m = 0; m < microbatches; ++m) {
    std::vector<std::uint64_t> x{own_input(m)};
    for (std::uint64_t const weight : weights)
      x.push_back(x.back() * weight);
    std::uint64_t back = x.back();
    for (std::size_t layer = weights.size(); layer-- > 0;) {
      gradients[layer] += back * x[layer];
      back *= weights[layer];
    }
  }
  return gradients;
}

} // namespace

TEST_CASE("RoundPipe's makespan follows from the number of stages, whichever way they go") {
  for (int devices = 1; devices <= 6; ++devices)
    for (int microbatches = 1; microbatches <= 13; ++microbatches)
      for (int stages = devices; stages <= 3 * devices + 1; ++stages) {
        CAPTURE(devices);
        CAPTURE(microbatches);
        CAPTURE(stages);
        int const forward = stages / 4;
        pp::RoundPipe<> const schedule{forward, stages - forward};
        auto const table = pp::make_timetable(schedule, {devices, microbatches}, unit);
        double const makespan = pp::makespan(table);
        CHECK(makespan == (stages - 1) / devices * std::max(microbatches, devices) +
                            (stages - 1) % devices + microbatches);
        if (stages % devices == 0 && microbatches >= devices)
          CHECK(makespan == stages / devices * microbatches + devices - 1);
        if (microbatches == devices)
          CHECK(makespan == stages + devices - 1);
        for (int device = 0; device < devices; ++device) // while the pass runs
          CHECK((pp::peak_activation_chunks(table, device) == 1) ==
                ((stages - 1 - device) / devices * devices + device >= forward));
      }
}

TEST_CASE("loads and unloads hide behind the passes of the stages beside them") {
  for (int devices = 1; devices <= 5; ++devices)
    for (int rounds = 1; rounds <= 4; ++rounds)
      for (double const load : {0.0, 0.5, 2.0}) {
        int const microbatches = devices + 4;
        int const stages = devices * rounds;
        CAPTURE(devices);
        CAPTURE(rounds);
        CAPTURE(load);
        pp::uniform_cost cost = unit;
        cost.gather = load;
        cost.scatter = load / 2;
        auto const table = pp::make_timetable(
          loaded{{stages / 4, stages - stages / 4}}, {devices, microbatches}, cost);
        CHECK(pp::makespan(table) ==
              doctest::Approx(rounds * microbatches + devices - 1 + 1.5 * load));
        for (int device = 0; device < devices; ++device)
          CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::weights) <= 2);
      }
}

TEST_CASE("RoundPipe refuses fewer stages than devices") {
  CHECK_THROWS_WITH_AS((void)pp::make_timetable(pp::RoundPipe<>{1, 2}, {4, 4}),
                       "RoundPipe: there is at least one backward stage, at most 65535 of each, "
                       "and in all no fewer than devices",
                       std::invalid_argument);
  CHECK_THROWS_AS((void)pp::make_timetable(pp::RoundPipe<>{4, 0}, {4, 4}), std::invalid_argument);
  CHECK_NOTHROW((void)pp::make_timetable(pp::RoundPipe<>{0, 4}, {4, 4}));
}

TEST_CASE("what is for stages that go forward and back refuses those that go one way") {
  CHECK(pp::detail::stages_go_one_way(pp::round_training));
  CHECK(pp::detail::stages_go_one_way(loaded::declared));
  for (pp::flow const& declared : {pp::training, pp::WeiPipe::declared})
    CHECK_FALSE(pp::detail::stages_go_one_way(declared));
  auto const table = pp::make_timetable(pp::RoundPipe<>{2, 5}, {3, 4}, unit);
  CHECK_THROWS_WITH_AS((void)pp::least_times(table.over, unit),
                       "least_times: every stage must go forward and back; here some go one way",
                       std::invalid_argument);
  std::string file;
  CHECK_THROWS_WITH_AS(
    pp::write_pytorch_csv(file, table),
    "write_pytorch_csv: PyTorch's stages go forward and back: they hand activations to the stage "
    "after them and gradients to the one before, which this flow does not",
    std::invalid_argument);
  CHECK(file.empty());
}

TEST_CASE("plans of RoundPipe are proven under all policies, and no wait can be left out") {
  int dropped = 0;
  auto const prove = [&dropped](pp::plan const& work, bool drop) {
    CHECK(pp::prove(work));
    for (std::size_t i = 0; drop && i < work.items.size(); ++i)
      for (int k = 0; k < work.items[i].wait_count; ++k) {
        pp::plan bad = work;
        pp::item& step = bad.items[i];
        int* const first = bad.waits.data() + step.first_wait;
        std::swap(first[k], first[step.wait_count - 1]);
        --step.wait_count;
        CHECK_FALSE(pp::prove(bad));
        ++dropped;
      }
  };
  for (int devices = 1; devices <= 4; ++devices)
    for (int stages = devices; stages <= 2 * devices + 1; ++stages) {
      pp::RoundPipe<> const schedule{stages / 4, stages - stages / 4};
      pp::pipeline_size const size{devices, 4};
      for (pp::dynamic_timetable const& table :
           {pp::make_timetable(schedule, size), pp::make_timetable(loaded{schedule}, size)}) {
        bool const drop = devices == 3 && stages == 7;
        prove(pp::lower<pp::communicators::one>(table), false);
        prove(pp::lower<pp::communicators::per_pair>(table), drop);
        prove(pp::lower<pp::communicators::per_edge>(table), false);
      }
    }
  CHECK(dropped > 100);
}

TEST_CASE("gradients of weights that are loaded from the host are those of one device") {
  for (int devices = 1; devices <= 4; ++devices)
    for (int count = 3; count <= 9; count += 2) {
      CAPTURE(devices);
      CAPTURE(count);
      host_memory host;
      for (int layer = 0; layer < count; ++layer)
        host.weights.push_back(static_cast<std::uint64_t>(layer) * 2 + 3);
      int const microbatches = devices + 2;
      host.gradients.resize(host.weights.size());
      host.inputs.assign(static_cast<std::size_t>(microbatches),
                         std::vector<std::uint64_t>(host.weights.size()));
      std::vector<pp::layer_cost> const layers(host.weights.size(), {1, 1, 1});
      auto const cut = pp::round_stages::best(layers, devices);
      if (cut.stages() < devices)
        continue;
      std::vector<host_stage> model;
      int at = 0;
      for (int const run : cut.forward) {
        model.push_back({&host, at, at + run});
        at += run;
      }
      at = count;
      for (int const run : cut.backward) {
        model.push_back({&host, at - run, at, at == count});
        at -= run;
      }
      pp::RoundPipe<> const schedule{static_cast<int>(cut.forward.size()),
                                     static_cast<int>(cut.backward.size())};
      auto const table = pp::make_timetable(loaded{schedule}, {devices, microbatches});
      pp::uniform_sizes const sizes{.message = 8 * count, .activation = 8 * count};
      pp::thread_runner runner(pp::lower(table, sizes), model);
      runner.step();
      CHECK(host.gradients == on_one_device(host.weights, microbatches));
      CHECK(pp::verify(runner.trace()));
    }
}

TEST_CASE("a pass of RoundPipe on a wrong device, too early, lost or twice is found") {
  auto const good = pp::make_timetable(pp::RoundPipe<>{2, 5}, {3, 4}, unit);
  int rejected = 0;
  for (std::size_t i = 0; i < good.passes.size(); ++i) {
    auto other = good;
    other.passes[i].stage = static_cast<std::uint16_t>((other.passes[i].stage + 1) % 7);
    CHECK_FALSE(pp::verify(other));
    auto twice = good;
    twice.passes[i].microbatch = static_cast<std::uint16_t>((twice.passes[i].microbatch + 1) % 4);
    CHECK_FALSE(pp::verify(twice));
    if (good.starts[i] == 0)
      continue;
    auto early = good;
    early.starts[i] -= 0.5;
    early.ends[i] -= 0.5;
    CHECK_FALSE(pp::verify(early));
    ++rejected;
  }
  CHECK(rejected > 20);
}

TEST_CASE("the cut of RoundPipe is the best of all cuts") {
  std::mt19937 random(20260401);
  for (int trial = 0; trial < 120; ++trial) {
    int const count = 1 + trial % 7;
    int const devices = 1 + static_cast<int>(random() % 5);
    std::vector<pp::layer_cost> layers;
    std::vector<double> forward;
    std::vector<double> backward;
    for (int i = 0; i < count; ++i) {
      auto const draw = [&] { return static_cast<double>(1 + random() % 8) / 8; };
      layers.push_back({draw(), draw(), draw()});
      forward.push_back(layers.back().forward);
      backward.push_back(layers.back().sum());
    }
    double least = std::numeric_limits<double>::infinity();
    for_each_cut(count, [&](std::vector<int> const& back) {
      for_each_cut(count - back.front(), [&](std::vector<int> const& ahead) {
        double const time = std::max(slowest(backward, back, true), slowest(forward, ahead, false));
        least = std::min(
          least, std::max(static_cast<double>(back.size() + ahead.size()), double(devices)) * time);
      });
    });
    auto const found = pp::round_stages::best(
      layers, devices, {.most_ratio = std::numeric_limits<double>::infinity()});
    CAPTURE(trial);
    CHECK(found.total == least);
    CHECK(slowest(backward, found.backward, true) <= found.time);
    CHECK(slowest(forward, found.forward, false) <= found.time);
    // The paper's candidates are among these.
    auto const published = pp::round_stages::best(layers, devices);
    CHECK(published.total >= least);
    CHECK(published.time <= 1.1 * *std::max_element(backward.begin(), backward.end()));
  }
}

TEST_CASE("stages of RoundPipe hold what half of a device's memory holds") {
  std::vector<pp::layer_cost> const layers(6, {1, 1, 1});
  std::vector<double> const bytes(6, 10);
  auto const found =
    pp::round_stages::best(layers, 2, {.bytes = bytes, .most_bytes = 20, .most_ratio = 10});
  for (std::vector<int> const* const runs : {&found.forward, &found.backward})
    for (int const run : *runs)
      CHECK(run <= 2);
  CHECK(pp::round_stages::best(layers, 2).forward ==
        std::vector<int>{2, 3}); // packed from the back
  CHECK(pp::round_stages::best(layers, 2).backward == std::vector<int>(6, 1));
  CHECK_THROWS_WITH_AS(
    (void)pp::round_stages::best(layers, 2, {.bytes = bytes, .most_bytes = 9}),
    "round stages: the weights of one layer do not fit; a device holds those of two stages at once",
    std::invalid_argument);
  CHECK_THROWS_AS((void)pp::round_stages::best({}, 2), std::invalid_argument);
}
