// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/schedule/slice_v.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tests/support/random_counts.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using ragged = pp::RaggedSliceV<pp::listed_chunks>;

static_assert(pp::detail::counts_chunks<ragged> && !pp::detail::counts_chunks<pp::SliceV<4>>);

//! One device counts the chunks of microbatches otherwise than the others.
struct counts_of_its_own {
  ragged of;
  ragged planted;

  [[nodiscard]] pp::shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  [[nodiscard]] int chunks_of(pp::shape const& extents, int microbatch) const {
    return of.chunks_of(extents, microbatch);
  }
  void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    (device == 1 ? planted : of).order(extents, device, out);
  }
};

pp::pipeline_size size_of(int devices, std::vector<int> const& counts) {
  return {devices, static_cast<int>(counts.size())};
}

} // namespace

TEST_CASE("SliceV's bubble and peaks follow their laws at random counts and times") {
  std::mt19937 random(2026);
  int held = 0;
  for (int devices = 1; devices <= 12; ++devices)
    for (int trial = 0; trial < 60; ++trial) {
      std::vector<int> const counts = support::random_counts(random, 12, 7);
      int const most = *std::max_element(counts.begin(), counts.end());
      int const all = std::accumulate(counts.begin(), counts.end(), 0);
      if (all < 2 * (devices - 1) + most)
        continue;
      ++held;
      double times[3];
      for (double& time : times)
        time = static_cast<double>(1 + random() % 64) / 8;
      std::sort(times, times + 3);
      if (trial % 4 == 0)
        times[0] = times[2] = times[1];
      auto const [weight, forward, input] = times;
      auto const table = pp::make_timetable(
        ragged{{counts}}, size_of(devices, counts), pp::uniform_cost{forward, input, weight});
      CAPTURE(devices);
      CAPTURE(all);
      CAPTURE(most);
      double const work = 2 * all * (forward + input + weight);
      CHECK(pp::span_of(table) - work == 2 * (devices - 1) * (input - weight));
      CHECK(pp::makespan(table) - work == (devices - 1) * std::max(2 * (input - weight), input));
      for (int device = 0; device < devices; ++device) {
        CHECK(pp::peak_activation_chunks(table, device) == 2 * (most + devices - 1));
        CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::weight_input) ==
              2 * (most + device));
      }
    }
  CHECK(held > 300);
}

TEST_CASE("SliceV runs as soon as there are chunks enough, and refuses fewer") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int chunks = 1; chunks <= 6; ++chunks)
      for (int microbatches = 1; microbatches <= 16; ++microbatches) {
        pp::SliceV<> const schedule{{chunks}};
        pp::pipeline_size const size{devices, microbatches};
        if (microbatches * chunks < 2 * (devices - 1) + chunks)
          CHECK_THROWS_AS((void)pp::make_timetable(schedule, size), std::invalid_argument);
        else
          CHECK(pp::verify(pp::make_timetable(schedule, size, {2, 3, 1, 0.5})));
      }
  CHECK_THROWS_WITH((void)pp::make_timetable(ragged{{{4, 1}}}, {3, 2}),
                    "SliceV: 5 chunks of all microbatches are too few: 3 devices need at least 8, "
                    "two for each device but the last and as many as the longest microbatch has; "
                    "give it more microbatches or cut them into more chunks");
  CHECK_THROWS_WITH((void)pp::make_timetable(ragged{{{4, 4}}}, {2, 3}),
                    "chunk counts: there are 2 counts and none for microbatch 2; give one per "
                    "microbatch");
  CHECK_THROWS_WITH((void)pp::make_timetable(pp::SliceV<>{}, {2, 3}),
                    "shape: the number of chunks must be at least 1");
  CHECK_THROWS_WITH((void)pp::make_timetable(ragged{{{4, 0, 4, 4}}}, {2, 4}),
                    "shape: chunks_of gives microbatch 1 0 chunks; there must be 1 to "
                    "shape::chunks, 4");
}

TEST_CASE("plans of microbatches of unequal length are proven under every policy") {
  std::mt19937 random(12);
  for (int devices = 1; devices <= 6; ++devices)
    for (int trial = 0; trial < 6; ++trial) {
      std::vector<int> counts = support::random_counts(random, 6, 4);
      counts.insert(counts.end(), static_cast<std::size_t>(devices), 2);
      auto const table = pp::make_timetable(ragged{{counts}}, size_of(devices, counts));
      // lower throws when the proof fails.
      (void)pp::lower<pp::communicators::one>(table);
      (void)pp::lower<pp::communicators::per_pair>(table);
      (void)pp::lower<pp::communicators::per_edge>(table);
    }
}

TEST_CASE("a device that counts chunks otherwise than the others is found") {
  std::vector<int> const counts{4, 2, 3, 4};
  CHECK(
    pp::verify(pp::make_timetable(counts_of_its_own{{{counts}}, {{counts}}}, size_of(3, counts))));
  for (std::vector<int> const& planted : {std::vector<int>{4, 3, 2, 4}, {2, 4, 3, 4}, {4, 2, 4, 3}})
    CHECK_THROWS_AS(
      (void)pp::make_timetable(counts_of_its_own{{{counts}}, {{planted}}}, size_of(3, counts)),
      std::invalid_argument);
}

TEST_CASE("the compiler makes the same timetable of unequal counts") {
  constexpr auto unequal = pp::timetable<pp::RaggedSliceV<pp::fixed_chunks<4, 8, 4>>, 4, 3>;
  static_assert(pp::verify(unequal));
  static_assert(pp::makespan(unequal) == 99);
  auto const listed = pp::make_timetable(ragged{{{4, 8, 4}}}, {4, 3});
  CHECK(std::equal(listed.passes.begin(), listed.passes.end(), unequal.view.passes));
}
