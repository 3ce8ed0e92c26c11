// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pipelines side by side as one plan, and one that has lost a device: its microbatches visit the
// other pipelines for the stage that is gone.
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/replicas.hpp>
#include <tests/support/sizes.hpp>
#include <vector>

namespace pp = pipelining;

using support::replicas;

namespace {

double span_of(replicas const& how, int microbatches) {
  return pp::makespan(pp::make_timetable(
    how, {how.pipelines * how.depth, how.pipelines * microbatches}, pp::uniform_cost{}));
}

} // namespace

TEST_CASE("pipelines side by side are one plan, and one goes on without a device") {
  CHECK(span_of({3, 4}, 6) <= 27); // 1F1B takes 27
  CHECK(span_of({3, 4, 2}, 6) <= 30);
  CHECK(span_of({4, 8, 2}, 16) <= 69);
}

TEST_CASE("the plan of 64 devices, one of them gone, is proven and soon there") {
  auto const table = pp::make_timetable(replicas{8, 8, 2}, {64, 128}, pp::uniform_cost{});
  pp::plan work;
  double best = HUGE_VAL; // seconds of the processor, so that others cannot make it late
  for (int round = 0; round < 5; ++round) {
    std::clock_t const begun = std::clock();
    work = pp::lower(table, support::words);
    best = std::min(best, static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC);
  }
  MESSAGE("planned in " << 1e3 * best << " ms");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  double const most = 1;
#elif defined(__has_feature)
  bool const sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
  double const most = sanitized ? 1 : 0.05;
#else
  double const most = 0.05;
#endif
  CHECK(best < most);
  CHECK(pp::prove(work));
  CHECK(work.program_of(2).empty());
}

TEST_CASE(
  "every pipeline adds to the gradients of its own copy; their sums are those of one device") {
  for (int const lost : {-1, 0, 1, 3}) {
    CAPTURE(lost);
    replicas const how{3, 4, lost};
    auto const table = pp::make_timetable(how, {12, 18}, pp::uniform_cost{});
    CHECK(pp::verify(table));
    // A copy of each stage for each device: stage s of device d.
    std::vector<std::vector<support::arithmetic_stage>> copies(
      12, std::vector<support::arithmetic_stage>(4));
    for (auto& of_device : copies)
      for (std::size_t s = 0; s < of_device.size(); ++s)
        of_device[s] = {.weight = s + 3, .chunks = 1};
    struct copy_of_stage {
      std::vector<std::vector<support::arithmetic_stage>>* copies;
      std::size_t stage;
      support::arithmetic_stage& at(pp::context const& where) const {
        return (*copies)[static_cast<std::size_t>(where.device)][stage];
      }
      void forward(pp::context const& where, pp::input in, pp::output out) const {
        at(where).forward(where, in, out);
      }
      void backward_input(pp::context const& where, pp::input in, pp::output out) const {
        at(where).backward_input(where, in, out);
      }
      void backward_weight(pp::context const& where) const { at(where).backward_weight(where); }
    };
    std::vector<copy_of_stage> model;
    for (std::size_t s = 0; s < 4; ++s)
      model.push_back({&copies, s});
    pp::thread_runner runner(pp::lower(table, support::words), model);
    runner.step();
    auto const expected = support::run_sequentially(4, 18, 1);
    for (std::size_t s = 0; s < 4; ++s) {
      std::uint64_t sum = 0;
      for (auto const& of_device : copies)
        sum += of_device[s].gradient;
      CHECK(sum == expected.gradients[s]);
    }
    if (lost >= 0)
      for (support::arithmetic_stage const& one : copies[static_cast<std::size_t>(lost)])
        CHECK(one.gradient == 0);
  }
}
