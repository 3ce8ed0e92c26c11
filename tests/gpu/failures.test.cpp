// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What goes wrong on the GPU is told, in bounded time. A GPU that has trapped is of no more use to
// its process, so every case runs in a process of its own.
#include <pipe/schedule/one_f_one_b.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/cuda/schedules.hpp>
#include <tests/gpu/machine.hpp>
#include <tests/gpu/streams.hpp>
#include <vector>

namespace {

named_plan one_f_one_b() {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 3, 4);
  return plans[0];
}

bool has(std::string const& text, char const* part) {
  return text.find(part) != std::string::npos;
}

constexpr char const* after_failure =
  "cuda: an earlier step has failed, and nothing can run after it";

void check_trap(bool graph) {
  machine::begin();
  auto const result = run_on_gpu({.work = one_f_one_b().work,
                                  .graph = graph,
                                  .trouble = mishap::traps,
                                  .troubled_stage = 1,
                                  .troubled_step = graph ? 1 : 0});
  std::string const& told = result.failures.at(graph ? 1 : 0);
  CAPTURE(told);
  CHECK(told.find("cuda: ") == 0);
  CHECK(has(told, "cudaErrorLaunchFailure"));
  CHECK(result.failures.at(2) == after_failure);
  CHECK(result.gradients.empty());
  // The model has found the trap, and after it no deadlock and nothing else.
  std::string const found = machine::findings();
  CAPTURE(found);
  CHECK(std::count(found.begin(), found.end(), '\n') == (machine::on_model() ? 1 : 0));
  CHECK(found.find(machine::on_model() ? "kernel error: " : "") == 0);
}

} // namespace

TEST_CASE("a kernel that traps ends the step, and all later ones") {
  check_trap(false);
}

TEST_CASE("a kernel that traps in a graph ends the step, and all later ones") {
  check_trap(true);
}

TEST_CASE("a stage that throws ends the step; the next one starts afresh") {
  named_plan const plan = one_f_one_b();
  for (int const step : {0, 1}) { // in an eager step, and while the graph is captured
    machine::begin();
    auto const result = run_on_gpu({.work = plan.work,
                                    .graph = true,
                                    .steps = 4,
                                    .trouble = mishap::throws,
                                    .troubled_stage = 1,
                                    .troubled_step = step});
    auto const failed = static_cast<std::size_t>(step);
    CHECK(result.failures[failed].find("cuda: device 1 failed when it was to run the forward of "
                                       "stage 1, microbatch 1") == 0);
    CHECK(has(result.failures[failed], ": loss is not a number"));
    CHECK(result.failures[3] == "");
    auto const good = static_cast<std::uint64_t>(3 - step);
    for (std::size_t s = 0; s < plan.expected.gradients.size(); ++s)
      CHECK(result.gradients[s] == good * plan.expected.gradients[s]);
    CHECK(machine::findings() == "");
  }
}

TEST_CASE("a kernel that does not end is told at the deadline, with device and pass") {
  if (machine::on_model())
    return; // kernels of the model end before the host goes on; tests/cuda stalls them instead
  // Not in the first step: loading a kernel at its first launch may wait for the one that hangs.
  auto const result = run_on_gpu({.work = one_f_one_b().work,
                                  .trouble = mishap::hangs,
                                  .troubled_stage = 1,
                                  .troubled_step = 1,
                                  .deadline = std::chrono::milliseconds(300)});
  CHECK(result.failures.at(0) == "");
  std::string const& told = result.failures.at(1);
  CAPTURE(told);
  CHECK(told.find("cuda: the iteration has not ended before its deadline\n") == 0);
  CHECK(has(told, "device 1 has not ended item 4 of 24: run the forward of stage 1, microbatch 1"));
  CHECK(result.failures.at(2) == after_failure);
}
