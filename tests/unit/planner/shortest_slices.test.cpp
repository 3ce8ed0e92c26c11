// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/sequence_partition.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/random_counts.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! When the last slice leaves the last stage: a slice enters a stage when it has left the one
//! before and the slice before it has left this one.
template <class Time>
double time_through(std::vector<int> const& slices, int stages, Time const& time) {
  std::vector<double> left(static_cast<std::size_t>(stages), 0.0);
  int prefix = 0;
  for (int const length : slices) {
    double end = 0;
    for (double& last : left)
      last = end = std::max(end, last) + time(length, prefix);
    prefix += length;
  }
  return left.back();
}

//! "14899/200" or "91".
double number(std::istream& in) {
  std::string word;
  in >> word;
  auto const slash = word.find('/');
  return slash == std::string::npos
           ? std::stod(word)
           : std::stod(word.substr(0, slash)) / std::stod(word.substr(slash + 1));
}

} // namespace

TEST_CASE("slices take the least time of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/slices.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    int tokens = 0;
    int grain = 0;
    int stages = 0;
    in >> tokens >> grain >> stages;
    double const fixed = number(in);
    double const per_token = number(in);
    double const attention = number(in);
    double const total = number(in);
    auto const time = [=](int length, int prefix) {
      return fixed + per_token * length + attention * length * (2 * prefix + length) / 8192;
    };
    auto const golden = support::read_counts(in);
    auto const slices = pp::shortest_slices(tokens, stages, time, grain);
    CHECK(std::accumulate(slices.begin(), slices.end(), 0) == tokens);
    CHECK(time_through(slices, stages, time) == doctest::Approx(total).epsilon(1e-12));
    CHECK(time_through(golden, stages, time) == doctest::Approx(total).epsilon(1e-12));
    for (int const length : slices)
      CHECK(length % grain == 0);
  }
}

TEST_CASE("no other slices are faster, for any times") {
  std::mt19937 random(2102);
  for (int trial = 0; trial < 120; ++trial) {
    int const alignment = static_cast<int>(1 + random() % 3);
    int const steps = static_cast<int>(1 + random() % 9);
    int const tokens =
      steps * alignment - static_cast<int>(random() % static_cast<unsigned>(alignment));
    int const stages = static_cast<int>(1 + random() % 6);
    std::vector<double> table(1024);
    for (double& each : table)
      each = static_cast<double>(random() % 40) / 8; // any, and exact in sums
    auto const time = [&](int length, int prefix) {
      return table[static_cast<std::size_t>(prefix * 32 + length)];
    };
    double best = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 1U << (steps - 1); ++cuts) {
      std::vector<int> slices{0};
      for (int step = 0; step < steps; ++step) {
        slices.back() += std::min(alignment, tokens - step * alignment);
        if (step + 1 < steps && (cuts >> step & 1U) != 0)
          slices.push_back(0);
      }
      best = std::min(best, time_through(slices, stages, time));
    }
    auto const slices = pp::shortest_slices(tokens, stages, time, alignment);
    CHECK(std::accumulate(slices.begin(), slices.end(), 0) == tokens);
    CHECK(time_through(slices, stages, time) == best);
  }
}

TEST_CASE("what cannot be cut is refused with a sentence") {
  auto const time = [](int length, int) { return static_cast<double>(length); };
  CHECK_THROWS_WITH((void)pp::shortest_slices(0, 2, time),
                    "shortest_slices: tokens, stages and alignment must be at least 1");
  CHECK_THROWS_WITH(
    (void)pp::shortest_slices(4, 2, [](int, int) { return -1.0; }),
    "shortest_slices: the time of a slice must be a finite number and not negative");
}
