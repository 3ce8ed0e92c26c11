// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/continuous_offsets.hpp>
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

namespace pp = pipelining;

namespace {

int length_of(pp::detail::grid_times const& times, int at) {
  return at < 2 ? times.forward : at < 4 ? times.backward_input : times.backward_weight;
}

// Activations of a device, counted step by step over one interval of the steady state.
int counted_peak(pp::detail::continuous_block const& block,
                 pp::detail::grid_times const& times,
                 int device) {
  int most = 0;
  int const far = 100 * block.interval;
  for (int now = far; now < far + block.interval; ++now) {
    int live = 0;
    for (int microbatch = 0; microbatch * block.interval <= now; ++microbatch)
      for (int stage = 0; stage < 2; ++stage) {
        int const begin = block.start(device, stage) + microbatch * block.interval;
        int const weight = stage == 0 ? pp::detail::leg::weight_up : pp::detail::leg::weight_down;
        int const end =
          block.start(device, weight) + times.backward_weight + microbatch * block.interval;
        live += begin <= now && now < end ? 1 : 0;
      }
    most = std::max(most, live);
  }
  return most;
}

void check_block(pp::detail::continuous_block const& block, pp::detail::grid_times const& times) {
  int const last = block.devices - 1;
  int peak = 0;
  for (int device = 0; device <= last; ++device) {
    for (int a = 0; a < pp::detail::leg::count; ++a)
      for (int b = 0; b < pp::detail::leg::count; ++b) {
        int const ahead = (block.start(device, b) - block.start(device, a)) % block.interval;
        CHECK((a == b || (ahead < 0 ? ahead + block.interval : ahead) >= length_of(times, a)));
      }
    auto const follows = [&](int from, int a, int to, int b) {
      int const latency = from == to ? 0 : times.latency;
      CHECK(block.start(to, b) >= block.start(from, a) + length_of(times, a) + latency);
    };
    using namespace pp::detail::leg;
    if (device < last) {
      follows(device, forward_down, device + 1, forward_down);
      follows(device + 1, forward_up, device, forward_up);
      follows(device, backward_down, device + 1, backward_down);
      follows(device + 1, backward_up, device, backward_up);
    }
    follows(device, backward_down, device, weight_down);
    follows(device, backward_up, device, weight_up);
    peak = std::max(peak, counted_peak(block, times, device));
  }
  using namespace pp::detail::leg;
  CHECK(block.start(last, forward_up) >= block.start(last, forward_down) + times.forward);
  CHECK(block.start(0, backward_down) >= block.start(0, forward_up) + times.forward);
  CHECK(block.start(last, backward_up) >= block.start(last, backward_down) + times.backward_input);
  CHECK(peak == block.peak);
}

int shortest_interval(int devices, pp::detail::grid_times const& times, int limit) {
  for (int interval = times.busy();; ++interval) {
    auto const block = pp::detail::plan_continuous_block(devices, times, interval);
    if (!block.starts.empty() && block.peak <= limit)
      return interval;
  }
}

} // namespace

TEST_CASE("continuous blocks keep dependencies, devices and their own figure of memory") {
  for (pp::detail::grid_times const& times : {pp::detail::grid_times{1, 1, 1, 0},
                                              pp::detail::grid_times{3, 4, 2, 0},
                                              pp::detail::grid_times{4, 3, 2, 1}})
    for (int devices = 1; devices <= 6; ++devices)
      for (int interval = times.busy() - 1; interval <= times.busy() + 3; ++interval) {
        CAPTURE(devices);
        CAPTURE(interval);
        auto const block = pp::detail::plan_continuous_block(devices, times, interval);
        CHECK(block.starts.empty() == (interval < times.busy()));
        if (!block.starts.empty())
          check_block(block, times);
      }
}

TEST_CASE("the shortest intervals under a limit are those of an exhaustive search") {
  // Found by trying all phases of all devices on the same grid.
  CHECK(shortest_interval(3, {1, 1, 1}, 4) == 6);
  CHECK(shortest_interval(4, {1, 1, 1}, 4) == 6);
  CHECK(shortest_interval(2, {5, 6, 4}, 4) == 30);
  CHECK(shortest_interval(3, {5, 6, 4}, 4) == 30);
  CHECK(shortest_interval(4, {5, 6, 4}, 4) == 34);
  CHECK(shortest_interval(4, {5, 6, 4}, 5) == 33);
}

TEST_CASE("a continuous block shortens long runs near the least memory") {
  pp::uniform_cost const cost{10, 12, 8};
  pp::pipeline_size const size{4, 32};
  auto const slots = pp::make_timetable(pp::VAuto<>{.memory_limit = 4}, size, cost);
  auto const continuous = pp::make_timetable(pp::VContinuous{.memory_limit = 4}, size, cost);
  CHECK(pp::span_of(continuous) < pp::span_of(slots));
  CHECK(pp::peak_activations(continuous) <= pp::ratio{4, 1});
}

TEST_CASE("continuous blocks refuse what cannot be") {
  CHECK_THROWS_WITH_AS(static_cast<void>(pp::detail::plan_continuous_block(0, {1, 1, 1}, 6)),
                       doctest::Contains("at least one device"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    static_cast<void>(pp::make_timetable(pp::VContinuous{.memory_limit = 1}, {4, 8})),
    doctest::Contains("at least 2 activations"),
    std::invalid_argument);
}
