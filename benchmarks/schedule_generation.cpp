// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints how fast timetables are made, in millions of passes per second: the order alone, its
// simulation, its verification. Times are processor times, so that a busy machine does little harm.
// Every timetable is verified before its figures are printed.
//
//   schedule_generation         P = 64, M = 512, the best of several runs
//   schedule_generation large   closed forms at P = 1024, M = 8192, one run, with the sum of
//   seconds
//
// A new family adds its lines to `rows`. To build:
//
//   cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DPIPELINING_BUILD_BENCHMARKS=ON
//   cmake --build build/bench --target schedule_generation
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/schedule/zero_bubble_interleaved.hpp>
#include <pipe/search/v_auto.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

namespace pp = pipelining;

namespace {

struct timing {
  std::size_t passes = 0;
  double order = 0; //!< seconds
  double simulation = 0;
  double verification = 0;
  bool valid = false;
};

double seconds_since(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

template <pp::schedule Schedule>
timing measure(Schedule const& plan, pp::pipeline_size size, pp::uniform_cost const& cost = {}) {
  timing result;
  auto start = std::clock();
  pp::device_orders orders = pp::make_orders(plan, size, cost);
  result.order = seconds_since(start);
  result.passes = orders.passes.size();
  start = std::clock();
  pp::dynamic_timetable const table = pp::simulate(std::move(orders), cost);
  result.simulation = seconds_since(start);
  start = std::clock();
  result.valid = static_cast<bool>(pp::verify(table));
  result.verification = seconds_since(start);
  return result;
}

struct row {
  char const* name;
  timing (*run)(pp::pipeline_size);
  bool closed_form = true; //!< takes part in the large run
};

row const rows[] = {
  {"gpipe", [](pp::pipeline_size size) { return measure(pp::GPipe{}, size); }},
  {"1f1b", [](pp::pipeline_size size) { return measure(pp::OneFOneB{}, size); }},
  {"eager-1f1b", [](pp::pipeline_size size) { return measure(pp::EagerOneFOneB{}, size); }},
  {"kfkb, groups of 2", [](pp::pipeline_size size) { return measure(pp::Grouped<2>{}, size); }},
  {"interleaved, V = 2",
   [](pp::pipeline_size size) { return measure(pp::Interleaved<2>{}, size); }},
  {"breadth-first, V = 2",
   [](pp::pipeline_size size) { return measure(pp::BreadthFirst<2>{}, size); }},
  {"seq1f1b, C = 4", [](pp::pipeline_size size) { return measure(pp::Seq1F1B<4>{}, size); }},
  {"seq1f1b-interleaved, V = 2, C = 4",
   [](pp::pipeline_size size) { return measure(pp::Seq1F1BInterleaved<2, 4>{}, size); },
   false},
  {"seq1f1b-zb-h2, C = 4",
   [](pp::pipeline_size size) { return measure(pp::Seq1F1BZeroBubbleH2<4>{}, size); }},
  {"zb-h1", [](pp::pipeline_size size) { return measure(pp::ZeroBubbleH1{}, size); }},
  {"zb-h2", [](pp::pipeline_size size) { return measure(pp::ZeroBubbleH2{}, size); }},
  {"zb-interleaved, V = 2",
   [](pp::pipeline_size size) { return measure(pp::ZeroBubbleInterleaved<2>{}, size); }},
  {"zb-auto, limit 2P, unit costs",
   [](pp::pipeline_size size) { return measure(pp::ZeroBubbleAuto<2>{}, size); },
   false},
  {"zb-auto, limit P, 10/12/8, latency 1",
   [](pp::pipeline_size size) {
     return measure(pp::ZeroBubbleAuto<1>{}, size, {10, 12, 8, 1}); // needs every policy
   },
   false},
  {"v-half, unit costs", [](pp::pipeline_size size) { return measure(pp::VHalf{}, size); }, false},
  {"v-half, 10/12/8, latency 1",
   [](pp::pipeline_size size) {
     return measure(pp::VHalf{}, size, {10, 12, 8, 1});
   },
   false},
  {"v-auto, limit 1.5 P, 10/12/8, latency 1",
   [](pp::pipeline_size size) {
     return measure(pp::VAuto<>{.memory_limit = 1.5 * size.devices}, size, {10, 12, 8, 1});
   },
   false},
  {"dualpipe-v", [](pp::pipeline_size size) { return measure(pp::DualPipeV<>{}, size); }},
};

timing best_of(row const& one, pp::pipeline_size size, int runs) {
  timing best = one.run(size);
  for (int run = 1; run < runs; ++run) {
    timing const next = one.run(size);
    best.order = std::min(best.order, next.order);
    best.simulation = std::min(best.simulation, next.simulation);
    best.verification = std::min(best.verification, next.verification);
    best.valid = best.valid && next.valid;
  }
  return best;
}

} // namespace

int main(int count, char** words) {
  bool const large = count == 2 && std::strcmp(words[1], "large") == 0;
  if (count > 1 && !large) {
    std::fprintf(stderr, "usage: schedule_generation [large]\n");
    return 2;
  }
  pp::pipeline_size const size = large ? pp::pipeline_size{1024, 8192} : pp::pipeline_size{64, 512};
  std::printf("P = %d, M = %d; millions of passes per second\n", size.devices, size.microbatches);
  std::printf(
    "%-38s %10s %9s %9s %9s %9s\n", "schedule", "passes", "order", "simulate", "verify", "seconds");
  bool all_valid = true;
  for (row const& one : rows) {
    if (large && !one.closed_form)
      continue;
    timing const best = best_of(one, size, large ? 1 : 9);
    auto const rate = [&best](double seconds) {
      return static_cast<double>(best.passes) / seconds * 1e-6;
    };
    std::printf("%-38s %10zu %9.1f %9.1f %9.1f %9.3f%s\n",
                one.name,
                best.passes,
                rate(best.order),
                rate(best.simulation),
                rate(best.verification),
                best.order + best.simulation + best.verification,
                best.valid ? "" : "  NOT VALID");
    all_valid = all_valid && best.valid;
  }
  return all_valid ? 0 : 1;
}
