// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/search/sequence_groups.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

namespace pp = pipelining;

namespace {

//! The time of the slowest group by the paper's formula; infinite where a device holds too much.
double slowest(std::vector<int> const& lengths,
               std::vector<int> const& sizes,
               std::vector<int> const& group_of,
               pp::group_work const& work,
               double memory) {
  double most = 0;
  for (std::size_t group = 0; group < sizes.size(); ++group) {
    double const n = sizes[group];
    double time = 0;
    double bytes = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      double const s = lengths[i];
      if (group_of[i] != static_cast<int>(group))
        continue;
      time += (work.quadratic * s * s + work.linear * s) / n;
      time += work.exchange * s * (n - 1) / (n * n);
      bytes += work.memory * s / n;
    }
    if (bytes > memory * (1 + 1e-12))
      return HUGE_VAL;
    most = std::max(most, time);
  }
  return most;
}

//! The least of all group sizes in any order and all distributions.
double least_of_all(std::vector<int> const& lengths,
                    int devices,
                    pp::group_work const& work,
                    double memory) {
  double least = HUGE_VAL;
  std::vector<int> sizes;
  std::function<void(int)> const choose = [&](int left) {
    if (left > 0) {
      for (int size : {1, 2, 4, 8})
        if (size <= left) {
          sizes.push_back(size);
          choose(left - size);
          sizes.pop_back();
        }
      return;
    }
    std::vector<int> group_of(lengths.size(), 0);
    for (;;) {
      least = std::min(least, slowest(lengths, sizes, group_of, work, memory));
      std::size_t i = 0;
      while (i < group_of.size() && ++group_of[i] == static_cast<int>(sizes.size()))
        group_of[i++] = 0;
      if (i == group_of.size())
        return;
    }
  };
  choose(devices);
  return least;
}

} // namespace

TEST_CASE("groups are the best of all sizes and distributions") {
  std::mt19937 random(4);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    CAPTURE(round);
    int const devices = 1 + static_cast<int>(random() % 6);
    std::vector<int> lengths;
    for (int i = 0; i < 1 + static_cast<int>(random() % 5); ++i)
      lengths.push_back(1 + static_cast<int>(random() % 40) * (random() % 4 == 0 ? 5 : 1));
    pp::group_work const work{.quadratic = 0.01 * static_cast<double>(random() % 3),
                              .linear = 1,
                              .exchange = 0.5 * static_cast<double>(random() % 4),
                              .memory = random() % 3 == 0 ? 0.0 : 1.0};
    double const memory = random() % 2 == 0 ? 1e9 : 20 + static_cast<double>(random() % 60);
    double const least = least_of_all(lengths, devices, work, memory);
    pp::sequence_groups const found = pp::best_sequence_groups(lengths, devices, work, memory);
    CHECK(found.optimal);
    if (least == HUGE_VAL) {
      ++refused;
      CHECK(found.time == HUGE_VAL);
      continue;
    }
    CHECK(found.time == doctest::Approx(least).epsilon(1e-12));
    CHECK(slowest(lengths, found.sizes, found.group_of, work, memory) ==
          doctest::Approx(least).epsilon(1e-12));
    CHECK(std::accumulate(found.sizes.begin(), found.sizes.end(), 0) == devices);
    // With hardly any steps the result fits, and the bound holds.
    pp::sequence_groups const quick = pp::best_sequence_groups(lengths, devices, work, memory, 8);
    CHECK(quick.bound <= least * (1 + 1e-12));
    if (quick.time < HUGE_VAL) {
      CHECK(quick.time >= least * (1 - 1e-12));
      CHECK(slowest(lengths, quick.sizes, quick.group_of, work, memory) ==
            doctest::Approx(quick.time).epsilon(1e-12));
    }
  }
  CHECK(refused > 0);
  CHECK(refused < 400);
}

TEST_CASE("many sequences on many devices come near the bound") {
  std::mt19937 random(8);
  std::vector<int> lengths;
  for (int i = 0; i < 200; ++i)
    lengths.push_back(i % 40 == 0 ? 65536 : 512 + static_cast<int>(random() % 8192));
  pp::group_work const work{.quadratic = 1e-4, .linear = 1, .exchange = 0.3, .memory = 1};
  pp::sequence_groups const found = pp::best_sequence_groups(lengths, 32, work, 60000, 100000);
  CHECK(found.time <= 1.1 * found.bound);
  CHECK(slowest(lengths, found.sizes, found.group_of, work, 60000) ==
        doctest::Approx(found.time).epsilon(1e-12));
  // One size for all, as without groups of unequal size, is slower.
  for (int size = 2; size <= 32; size *= 2) {
    std::vector<int> const sizes(static_cast<std::size_t>(32 / size), size);
    std::vector<int> group_of(lengths.size());
    for (std::size_t i = 0; i < lengths.size(); ++i)
      group_of[i] = static_cast<int>(i % sizes.size());
    CHECK(found.time < slowest(lengths, sizes, group_of, work, 1e9));
  }
}

TEST_CASE("groups of nothing are refused") {
  std::vector<int> const none;
  std::vector<int> const bad{3, 0};
  CHECK_THROWS_WITH(pp::best_sequence_groups(none, 4, pp::group_work{}),
                    doctest::Contains("at least one sequence"));
  CHECK_THROWS_WITH(pp::best_sequence_groups(bad, 4, pp::group_work{}),
                    doctest::Contains("sequence 1 must"));
}
