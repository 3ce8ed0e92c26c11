// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A flow in which weights travel and activations stay (WeiPipe): what is a stage elsewhere is a
// microbatch here, and what is a chunk there is a group of layers. A microbatch gets the weights of
// each group from the one before it, on the device before it; on the way back their gradients
// travel with them.
#include <pipe/core/declare.hpp>
#include <pipe/core/slot_class.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using pp::chunk_order;
using pp::does;
using pp::of_stage;

enum : std::uint8_t { weights, gradients, kept, passed_on, passed_back };

constexpr std::uint8_t pool(pp::slot_class of) {
  return static_cast<std::uint8_t>(of);
}

constexpr pp::flow travelling_weights = pp::declare(
  {{.word = "weights",
    .pool = pool(pp::slot_class::output),
    .arrives_in = pool(pp::slot_class::received_input),
    .wanted = true},
   {.word = "weights and gradients",
    .pool = pool(pp::slot_class::input_gradient),
    .arrives_in = pool(pp::slot_class::received_gradient),
    .wanted = true},
   {.word = "activation",
    .pool = pool(pp::slot_class::activation),
    .arrives_in = pool(pp::slot_class::activation),
    .wanted = true},
   {.word = "output",
    .pool = pool(pp::slot_class::sequence),
    .arrives_in = pool(pp::slot_class::sequence),
    .instance = pp::per::microbatch,
    .only_chunked = true},
   {.word = "output gradient",
    .pool = pool(pp::slot_class::sequence_gradient),
    .arrives_in = pool(pp::slot_class::sequence_gradient),
    .instance = pp::per::microbatch,
    .only_chunked = true}},
  {{pp::pass_kind::forward,
    pp::declare_kind('F',
                     "forward",
                     pp::engine::compute,
                     pp::stage_call::forward,
                     {{does::reads, weights, of_stage::before},
                      {does::makes, kept},
                      {does::adds_to, passed_on, of_stage::own, chunk_order::ascending},
                      {does::makes, weights}})},
   {pp::pass_kind::backward,
    pp::declare_kind('B',
                     "backward",
                     pp::engine::compute,
                     pp::stage_call::backward,
                     {{does::reads, gradients, of_stage::before},
                      {does::frees, kept},
                      {does::frees, passed_on},
                      {does::adds_to, passed_back, of_stage::own, chunk_order::descending},
                      {does::frees, passed_back},
                      {does::makes, gradients}})}});

//! Each device takes a microbatch of each round, forward one group after the other and then, in
//! turn, backward of this one and forward of the next.
struct wei_pipe {
  static constexpr pp::flow declared = travelling_weights;
  int rounds = 1;

  [[nodiscard]] pp::shape arrange(int devices, int) const {
    return {.devices = devices, .chunks = devices, .stages_per_device = rounds};
  }
  void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    int const groups = extents.chunks;
    for (int group = 0; group < groups; ++group)
      out.forward(device, 0, group);
    for (int round = 0; round < rounds; ++round)
      for (int i = 0; i < groups; ++i) {
        out.backward(device + round * extents.devices, 0, groups - 1 - i);
        if (round + 1 < rounds)
          out.forward(device + (round + 1) * extents.devices, 0, i);
      }
  }
};

std::uint64_t own_weight(int group) {
  return 2 * static_cast<std::uint64_t>(group) + 3;
}
std::uint64_t own_input(int microbatch) {
  return static_cast<std::uint64_t>(microbatch) + 7;
}

//! A microbatch: y = w x, modulo 2^64, for each group. The first has the weights, the last is left
//! with the gradients.
struct microbatch {
  std::vector<std::uint64_t>* result = nullptr;

  static std::uint64_t& word(pp::buffer const& memory) { return memory.as<std::uint64_t>()[0]; }

  void forward(pp::context const& where, pp::input in, pp::output out) const {
    std::uint64_t const weight = in.slot < 0 ? own_weight(where.chunk) : in.as<std::uint64_t>()[0];
    if (where.first_chunk())
      word(where.state) = own_input(where.stage);
    word(where.activation) = word(where.state);
    word(where.state) *= weight;
    if (out.slot >= 0)
      word(out) = weight;
  }
  void backward(pp::context const& where, pp::input in, pp::output out) const {
    std::uint64_t const weight = in.slot < 0 ? own_weight(where.chunk) : in.as<std::uint64_t>()[0];
    std::uint64_t gradient = in.slot < 0 ? 0 : in.as<std::uint64_t>()[1];
    if (where.last_chunk())
      word(where.state_gradient) = word(where.state); // of half the square of the output
    gradient += word(where.state_gradient) * word(where.activation);
    word(where.state_gradient) *= weight;
    if (out.slot >= 0) {
      out.as<std::uint64_t>()[0] = weight;
      out.as<std::uint64_t>()[1] = gradient;
    } else {
      (*result)[static_cast<std::size_t>(where.chunk)] = gradient;
    }
  }
};

//! The same, one microbatch after the other.
std::vector<std::uint64_t> on_one_device(int groups, int microbatches) {
  std::vector<std::uint64_t> gradients_of(static_cast<std::size_t>(groups));
  for (int m = 0; m < microbatches; ++m) {
    std::vector<std::uint64_t> inputs{own_input(m)};
    for (int group = 0; group < groups; ++group)
      inputs.push_back(inputs.back() * own_weight(group));
    std::uint64_t back = inputs.back();
    for (int group = groups; group-- > 0;) {
      gradients_of[static_cast<std::size_t>(group)] +=
        back * inputs[static_cast<std::size_t>(group)];
      back *= own_weight(group);
    }
  }
  return gradients_of;
}

} // namespace

TEST_CASE("weights that travel have the published times and orders") {
  for (std::string const& line : support::golden_lines("golden/families/wei_pipe.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    int devices = 0;
    int rounds = 0;
    double forward = 0;
    double backward = 0;
    double message = 0;
    double makespan = 0;
    double span = 0;
    in >> devices >> rounds >> forward >> backward >> message >> makespan >> span;
    pp::uniform_cost const cost{forward, backward / 2, backward / 2, message};
    auto const table = pp::make_timetable(wei_pipe{rounds}, {devices, 1}, cost);
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::span_of(table) == span);
    for (int device = 0; device < devices; ++device) {
      int peak = 0;
      in >> peak;
      CHECK(pp::peak_activation_chunks(table, device) == peak);
    }
    CHECK(in);
  }
  for (std::string const& line : support::golden_lines("golden/families/wei_pipe_orders.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    int devices = 0;
    int rounds = 0;
    int device = 0;
    in >> devices >> rounds >> device;
    auto const table = pp::make_timetable(wei_pipe{rounds}, {devices, 1});
    CHECK(support::row_text(table, device, true) == line.substr(line.find(": ") + 2));
  }
}

TEST_CASE("gradients that travel with their weights are those of one device") {
  for (int devices = 2; devices <= 5; ++devices)
    for (int rounds = 1; rounds <= 3; ++rounds) {
      auto const table = pp::make_timetable(wei_pipe{rounds}, {devices, 1});
      pp::uniform_sizes const sizes{
        .message = 16, .activation = 8, .sequence = 8, .sequence_gradient = 8};
      CHECK(pp::prove(pp::lower<pp::one_communicator>(table, sizes)));
      CHECK(pp::prove(pp::lower<pp::communicator_per_edge>(table, sizes)));
      std::vector<std::uint64_t> got(static_cast<std::size_t>(devices));
      std::vector<microbatch> model(static_cast<std::size_t>(devices * rounds), microbatch{&got});
      pp::thread_runner runner(pp::lower(table, sizes), model);
      runner.step();
      CHECK(got == on_one_device(devices, devices * rounds));
      CHECK(pp::verify(runner.trace()));
    }
}

TEST_CASE("weights that are used before they arrive are found") {
  auto const good = pp::make_timetable(wei_pipe{2}, {3, 1}, pp::uniform_cost{1, 1, 1, 0.5});
  int found = 0;
  for (std::size_t i = 0; i < good.passes.size(); ++i) {
    if (good.passes[i].stage == 0)
      continue;
    auto early = good;
    auto const at = static_cast<std::size_t>(early.offsets[0]);
    early.starts[i] = early.starts[at];
    early.ends[i] = early.starts[i] + (good.ends[i] - good.starts[i]);
    CHECK_FALSE(pp::verify(early));
    ++found;
  }
  CHECK(found > 20);
}
