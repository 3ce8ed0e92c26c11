// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief How well steps on threads keep to their plan: stages that sleep for the time of a pass,
//! so that a few cores run any number of devices. Prints the planned makespan, the median of the
//! measured ones, and their ratio. The order that ran is verified.

#include <pipe/plan/lower.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using pipelining::registry::names;

namespace pp = pipelining;

constexpr pp::pipeline_size size{4, 16};
constexpr double pass_seconds = 0.02; // of a forward pass of a device's share of the model
constexpr int steps = 5;

//! Sleeps for most of a pass and watches the clock at its end, since a sleeper wakes late.
void wait_for(std::chrono::duration<double> pass) {
  constexpr std::chrono::microseconds watched{200};
  auto const end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(pass);
  std::this_thread::sleep_until(end - watched);
  while (std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
}

struct sleeping_stage {
  static constexpr bool takes_chunks = true;
  std::chrono::duration<double> pass{};

  void forward(pp::context const&, pp::input, pp::output) { wait_for(pass); }
  void backward(pp::context const&, pp::input, pp::output) { wait_for(2 * pass); }
  void backward_input(pp::context const&, pp::input, pp::output) { wait_for(pass); }
  void backward_weight(pp::context const&) { wait_for(pass); }
};

template <class Schedule>
void measure(char const* name, Schedule const& schedule) {
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  double const time = pass_seconds / extents.stages_per_device / extents.chunks;
  pp::dynamic_timetable const table =
    pp::make_timetable(schedule, size, pp::uniform_cost{time, time, time});
  std::vector<sleeping_stage> stages(static_cast<std::size_t>(extents.stages()),
                                     {std::chrono::duration<double>(time)});
  pp::thread_runner runner(pp::lower(table), stages);
  runner.step(); // the first one starts threads
  std::vector<double> measured;
  for (int step = 0; step < steps; ++step) {
    runner.step();
    auto const ran = runner.trace();
    if (!pp::verify(ran))
      throw std::logic_error("plan_and_reality: what ran is no timetable");
    measured.push_back(pp::makespan(ran));
  }
  std::sort(measured.begin(), measured.end());
  double const median = measured[measured.size() / 2];
  std::printf("{\"schedule\": \"%s\", \"planned\": %.6f, \"measured\": %.6f, \"ratio\": %.5f}\n",
              name,
              pp::makespan(table),
              median,
              median / pp::makespan(table));
}

} // namespace

int main() {
  try {
    measure(names::one_f_one_b.data(), pp::OneFOneB{});
    measure("interleaved, V = 2", pp::Interleaved<2>{});
    measure(names::zero_bubble_h1.data(), pp::ZeroBubbleH1{});
    measure(names::v_half.data(), pp::VHalf{});
    measure("seq1f1b, C = 2", pp::Seq1F1B<2>{});
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
