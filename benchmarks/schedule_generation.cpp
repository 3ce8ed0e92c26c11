// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief What it takes to make a plan, part by part: the order, its times, its verification, and
//! the plan with its own verification and its proof, on one core and on all. In nanoseconds per
//! pass of processor time, so that a busy machine does little harm, but for all cores; the best of
//! several runs. Every timetable is verified, and every plan proven, before its figures are
//! printed. Next to them the most memory that was taken at once, in bytes per pass, counted by the
//! allocation functions in the same runs.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/run/thread_workers.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <malloc.h>
#include <new>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using pipelining::registry::names;

//! Bytes that are taken, and the most that were.
struct heap_use {
  std::atomic<std::size_t> now = 0;
  std::atomic<std::size_t> most = 0;
};
heap_use heap;

} // namespace

void* operator new(std::size_t size) {
  void* const result = std::malloc(size > 0 ? size : 1);
  if (result == nullptr)
    throw std::bad_alloc();
  std::size_t const now = heap.now += malloc_usable_size(result);
  if (now > heap.most)
    heap.most = now; // threads allocate next to nothing at once
  return result;
}
void operator delete(void* memory) noexcept {
  heap.now -= memory == nullptr ? 0 : malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace {

constexpr char const* usage =
  "usage: schedule_generation [DEVICES MICROBATCHES] [--json]   default 64 512\n"
  "       schedule_generation large [DEVICES MICROBATCHES] [--json]\n"
  "large: closed forms, once, without plans; default 1024 8192\n";

//! Seconds.
struct timing {
  std::size_t passes = 0;
  double order = 1e9;
  double simulation = 1e9;
  double verification = 1e9;
  double lowering = 1e9;     //!< with verification and proof
  double side_by_side = 1e9; //!< the same on all cores, by the clock on the wall
  double proof = 1e9;
  std::size_t table_bytes = 0; //!< the most at once, for order, times and verification
  std::size_t plan_bytes = 0;  //!< the most at once for the plan with its proof, and the timetable
  bool valid = true;
};

//! What one run takes.
struct asked {
  pp::pipeline_size size{64, 512};
  int runs = 9;
  bool plans = true;
};

//! Seconds since the last call.
class stopwatch {
public:
  double lap() {
    std::clock_t const now = std::clock();
    return static_cast<double>(now - std::exchange(start_, now)) / CLOCKS_PER_SEC;
  }

private:
  std::clock_t start_ = std::clock();
};

//! Lowers on all cores, in runs of their own: two plans at once would not be in the same caches.
//! Threads wait for the next plan, as in a program that plans again and again. A virtual machine
//! may give its second core only after a while of work, so runs go on for half a second.
void measure_side_by_side(pp::timetable_view table, timing& best) {
  pp::plan const alone = pp::lower(table);
  pp::thread_workers const workers;
  std::chrono::duration<double> all{};
  while (all.count() < 0.5) {
    auto const begin = std::chrono::steady_clock::now();
    pp::plan const work = pp::lower(table, {}, {}, workers);
    std::chrono::duration<double> const wall = std::chrono::steady_clock::now() - begin;
    all += wall;
    best.side_by_side = std::min(best.side_by_side, wall.count());
    best.valid = best.valid && work.items == alone.items && work.waits == alone.waits;
  }
}

template <pp::schedule Schedule>
timing measure(Schedule const& plan, asked const& what, pp::uniform_cost const& cost = {}) {
  timing best;
  auto const keep = [](double& least, double now) { least = std::min(least, now); };
  for (int run = 0; run < what.runs; ++run) {
    std::size_t const before = heap.now;
    heap.most = before;
    stopwatch watch;
    pp::device_orders orders = pp::make_orders(plan, what.size, cost);
    keep(best.order, watch.lap());
    best.passes = orders.passes.size();
    pp::dynamic_timetable const table = pp::simulate(std::move(orders), cost);
    keep(best.simulation, watch.lap());
    best.valid = best.valid && pp::verify(table);
    keep(best.verification, watch.lap());
    best.table_bytes = heap.most - before;
    if (!what.plans)
      continue;
    pp::plan const work = pp::lower(table);
    keep(best.lowering, watch.lap());
    best.plan_bytes = heap.most - before;
    best.valid = best.valid && pp::prove(work);
    keep(best.proof, watch.lap());
  }
  if (what.plans)
    measure_side_by_side(pp::simulate(pp::make_orders(plan, what.size, cost), cost), best);
  return best;
}

struct row {
  char const* name;
  timing (*run)(asked const&);
  bool closed_form = true; //!< takes part in the large run
};

row const rows[] = {
  {names::gpipe.data(), [](asked const& what) { return measure(pp::GPipe{}, what); }},
  {names::one_f_one_b.data(), [](asked const& what) { return measure(pp::OneFOneB{}, what); }},
  {names::eager_one_f_one_b.data(),
   [](asked const& what) { return measure(pp::EagerOneFOneB{}, what); }},
  {"kfkb, groups of 2", [](asked const& what) { return measure(pp::Grouped<2>{}, what); }},
  {"interleaved, V = 2", [](asked const& what) { return measure(pp::Interleaved<2>{}, what); }},
  {"breadth-first, V = 2", [](asked const& what) { return measure(pp::BreadthFirst<2>{}, what); }},
  {"seq1f1b, C = 4", [](asked const& what) { return measure(pp::Seq1F1B<4>{}, what); }},
  {"seq1f1b-interleaved, V = 2, C = 4",
   [](asked const& what) { return measure(pp::Seq1F1BInterleaved<2, 4>{}, what); },
   false},
  {"seq1f1b-zb-h2, C = 4",
   [](asked const& what) { return measure(pp::Seq1F1BZeroBubbleH2<4>{}, what); }},
  {names::zero_bubble_h1.data(),
   [](asked const& what) { return measure(pp::ZeroBubbleH1{}, what); }},
  {names::zero_bubble_h2.data(),
   [](asked const& what) { return measure(pp::ZeroBubbleH2{}, what); }},
  {"zb-interleaved, V = 2",
   [](asked const& what) { return measure(pp::ZeroBubbleInterleaved<2>{}, what); }},
  {"zb-auto, limit 2P, unit costs",
   [](asked const& what) { return measure(pp::ZeroBubbleAuto<2>{}, what); },
   false},
  {"zb-auto, limit P, 10/12/8, latency 1",
   [](asked const& what) {
     return measure(pp::ZeroBubbleAuto<1>{}, what, {10, 12, 8, 1}); // needs every policy
   },
   false},
  {"v-half, unit costs", [](asked const& what) { return measure(pp::VHalf{}, what); }, false},
  {"v-half, 10/12/8, latency 1",
   [](asked const& what) {
     return measure(pp::VHalf{}, what, {10, 12, 8, 1});
   },
   false},
  {"v-auto, limit 1.5 P, 10/12/8, latency 1",
   [](asked const& what) {
     return measure(pp::VAuto<>{.memory_limit = 1.5 * what.size.devices}, what, {10, 12, 8, 1});
   },
   false},
  {"zb-v, unit costs", [](asked const& what) { return measure(pp::ZeroBubbleV{}, what); }, false},
  {names::dual_pipe_v.data(), [](asked const& what) { return measure(pp::DualPipeV<>{}, what); }},
};

void print(row const& one, timing const& best, bool json) {
  auto const each = [&best](double seconds) {
    return seconds / static_cast<double>(best.passes) * 1e9;
  };
  double const figures[] = {each(best.order),
                            each(best.simulation),
                            each(best.verification),
                            each(best.lowering),
                            each(best.proof),
                            each(best.side_by_side)};
  bool const plans = best.lowering < 1e9;
  auto const bytes = [&best](std::size_t all) {
    return static_cast<double>(all) / static_cast<double>(best.passes);
  };
  double const seconds = best.order + best.simulation + (plans ? best.lowering : best.verification);
  if (json) {
    std::printf("{\"schedule\": \"%s\", \"passes\": %zu, \"order\": %.2f, \"simulate\": %.2f, "
                "\"verify\": %.2f, ",
                one.name,
                best.passes,
                figures[0],
                figures[1],
                figures[2]);
    if (plans)
      std::printf("\"lower\": %.2f, \"prove\": %.2f, \"side_by_side\": %.2f, \"cores\": %d, "
                  "\"plan_bytes\": %.1f, ",
                  figures[3],
                  figures[4],
                  figures[5],
                  pp::thread_workers().count(),
                  bytes(best.plan_bytes));
    std::printf("\"table_bytes\": %.1f, \"seconds\": %.6f, \"valid\": %s}\n",
                bytes(best.table_bytes),
                seconds,
                best.valid ? "true" : "false");
    return;
  }
  std::printf("%-38s %10zu", one.name, best.passes);
  for (int i = 0; i < (plans ? 6 : 3); ++i)
    std::printf(" %9.1f", figures[i]);
  std::printf(" %9.1f", bytes(plans ? best.plan_bytes : best.table_bytes));
  std::printf(" %9.4f%s\n", seconds, best.valid ? "" : "  NOT VALID");
}

} // namespace

int main(int count, char** words) {
  std::vector<char const*> given(words + 1, words + count);
  bool const json = !given.empty() && std::strcmp(given.back(), "--json") == 0;
  if (json)
    given.pop_back();
  asked what;
  if (!given.empty() && std::strcmp(given.front(), "large") == 0) {
    what = {.size = {1024, 8192}, .runs = 1, .plans = false};
    given.erase(given.begin());
  }
  if (given.size() == 2)
    what.size = {std::atoi(given[0]), std::atoi(given[1])};
  if (given.size() % 2 != 0 || given.size() > 2 || what.size.devices < 1 ||
      what.size.microbatches < 1) {
    std::fputs(usage, stderr);
    return 2;
  }
  if (!json) {
    std::printf("P = %d, M = %d; nanoseconds and most bytes at once per pass, and seconds of all\n",
                what.size.devices,
                what.size.microbatches);
    std::printf("%-38s %10s %9s %9s %9s", "schedule", "passes", "order", "simulate", "verify");
    std::printf(
      "%s %9s %9s\n", what.plans ? "     lower its proof all cores" : "", "bytes", "seconds");
  }
  // What a run has freed is at hand for the next, as in a program that plans again and again. Else
  // glibc gives it back to the system, and takes it anew page by page: large blocks always, others
  // until some row has asked for larger ones.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  bool all_valid = true;
  for (row const& one : rows) {
    if (!what.plans && !one.closed_form)
      continue;
    timing const best = one.run(what);
    print(one, best, json);
    all_valid = all_valid && best.valid;
  }
  return all_valid ? 0 : 1;
}
