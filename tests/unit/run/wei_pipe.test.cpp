// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// WeiPipe: orders and times as published, laws over ranges, and gradients of a run with weights
// that travel.
#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

std::uint64_t own_weight(int group) {
  return 2 * static_cast<std::uint64_t>(group) + 3;
}
std::uint64_t own_input(int microbatch) {
  return static_cast<std::uint64_t>(microbatch) + 7;
}

//! A microbatch: y = w x, modulo 2^64, for each group. The first has the weights, the last is left
//! with the gradients.
struct microbatch {
  static constexpr bool takes_chunks = true;
  std::vector<std::uint64_t>* result = nullptr;
  std::vector<std::uint64_t>* outputs = nullptr;

  static std::uint64_t& word(pp::buffer const& memory) { return memory.as<std::uint64_t>()[0]; }

  void forward(pp::context const& where, pp::input in, pp::output out) const {
    std::uint64_t const weight = in.slot < 0 ? own_weight(where.chunk) : in.as<std::uint64_t>()[0];
    if (where.first_chunk())
      word(where.state) = own_input(where.stage);
    word(where.activation) = word(where.state);
    word(where.state) *= weight;
    if (outputs != nullptr && where.last_chunk())
      (*outputs)[static_cast<std::size_t>(where.stage)] = word(where.state);
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

TEST_CASE("gradients that travel with their weights are those of one device") {
  for (int devices = 2; devices <= 5; ++devices)
    for (int rounds = 1; rounds <= 3; ++rounds) {
      auto const table = pp::make_timetable<pp::WeiPipe>({devices, devices * rounds});
      pp::uniform_sizes const sizes{
        .message = 16, .activation = 8, .sequence = 8, .sequence_gradient = 8};
      CHECK(pp::prove(pp::lower<pp::communicators::one>(table, sizes)));
      CHECK(pp::prove(pp::lower<pp::communicators::per_edge>(table, sizes)));
      std::vector<std::uint64_t> got(static_cast<std::size_t>(devices));
      std::vector<microbatch> model(static_cast<std::size_t>(devices * rounds), microbatch{&got});
      pp::thread_runner runner(pp::lower(table, sizes), model);
      runner.step();
      CHECK(got == on_one_device(devices, devices * rounds));
      CHECK(pp::verify(runner.trace()));
    }
}

TEST_CASE("weights travel through an evaluation between steps, too") {
  for (int devices = 2; devices <= 4; ++devices)
    for (int rounds = 1; rounds <= 3; ++rounds) {
      int const microbatches = devices * rounds;
      auto const table = pp::make_timetable<pp::WeiPipe>({devices, microbatches});
      pp::uniform_sizes const sizes{
        .message = 16, .activation = 8, .sequence = 8, .sequence_gradient = 8};
      std::vector<std::uint64_t> gradients(static_cast<std::size_t>(devices));
      std::vector<std::uint64_t> outputs(static_cast<std::size_t>(microbatches));
      std::vector<microbatch> model(outputs.size(), microbatch{&gradients, &outputs});
      pp::thread_runner runner(pp::lower(table, sizes), model);
      pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table, sizes));
      for (int turn = 0; turn < 2; ++turn) {
        std::fill(outputs.begin(), outputs.end(), std::uint64_t{0});
        runner.step(evaluation);
        for (int m = 0; m < microbatches; ++m) {
          std::uint64_t wanted = own_input(m);
          for (int group = 0; group < devices; ++group)
            wanted *= own_weight(group);
          CHECK(outputs[static_cast<std::size_t>(m)] == wanted);
        }
        runner.step();
        CHECK(gradients == on_one_device(devices, microbatches));
      }
    }
}

TEST_CASE(
  "WeiPipe's bubble is that of one slot per device, and every device keeps one microbatch") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int rounds = 1; rounds <= 4; ++rounds)
      for (double const forward : {1.0, 2.0, 3.5})
        for (double const backward : {1.0, 2.0, 5.0}) {
          CAPTURE(devices);
          CAPTURE(rounds);
          CAPTURE(forward);
          CAPTURE(backward);
          auto const table = pp::make_timetable<pp::WeiPipe>(
            {devices, devices * rounds}, pp::uniform_cost{forward, backward / 2, backward / 2});
          double const work = devices * rounds * (forward + backward);
          CHECK(pp::makespan(table) == work + (devices - 1) * std::max(forward, backward));
          for (int device = 0; device < devices; ++device) {
            CHECK(pp::busy(table, device) == work);
            CHECK(pp::peak_activation_chunks(table, device) == devices);
          }
        }
}

TEST_CASE("a device of WeiPipe sends weights and gradients of every group for each microbatch") {
  for (int devices = 2; devices <= 6; ++devices)
    for (int rounds = 1; rounds <= 3; ++rounds) {
      auto const table = pp::make_timetable<pp::WeiPipe>({devices, devices * rounds});
      std::vector<int> sent(static_cast<std::size_t>(devices)); // in weights of a group
      for (pp::pass const& what : table.passes)
        if (pp::detail::receiver(table.over, what) != pp::detail::kind_links::none)
          sent[static_cast<std::size_t>(pp::device_of(table, what))] +=
            what.kind == pp::pass_kind::forward ? 1 : 2;
      for (int device = 0; device < devices; ++device) // the last microbatch sends to nobody
        CHECK(sent[static_cast<std::size_t>(device)] ==
              3 * devices * (rounds - (device == devices - 1 ? 1 : 0)));
    }
}

TEST_CASE("WeiPipe refuses rounds in which a device has no microbatch") {
  CHECK_THROWS_WITH_AS(
    (void)pp::make_timetable<pp::WeiPipe>({4, 6}),
    "WeiPipe: each device has a microbatch in every round, so the number of microbatches must be "
    "a multiple of the 4 devices, not 6",
    std::invalid_argument);
  CHECK_NOTHROW((void)pp::make_timetable<pp::WeiPipe>({1, 5}));
}

TEST_CASE("the plan of WeiPipe is known to the compiler") {
  constexpr auto compiled = pp::timetable<pp::WeiPipe, 3, 6>;
  static_assert(pp::verify(compiled));
  CHECK(pp::makespan(compiled) == pp::makespan(pp::make_timetable<pp::WeiPipe>({3, 6})));
}

TEST_CASE("no wait of a plan of WeiPipe can be left out") {
  pp::plan const good = pp::lower(pp::make_timetable<pp::WeiPipe>({3, 6}),
                                  pp::uniform_sizes{.message = 16, .activation = 8});
  int found = 0;
  for (std::size_t i = 0; i < good.items.size(); ++i)
    for (int k = 0; k < good.items[i].wait_count; ++k) {
      pp::plan bad = good;
      pp::item& step = bad.items[i];
      int* const first = bad.waits.data() + step.first_wait;
      std::swap(first[k], first[step.wait_count - 1]);
      --step.wait_count;
      CHECK_FALSE(pp::prove(bad));
      ++found;
    }
  CHECK(found > 60);
}

TEST_CASE("weights that are used before they arrive are found") {
  auto const good = pp::make_timetable<pp::WeiPipe>({3, 6}, pp::uniform_cost{1, 1, 1, 0.5});
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
