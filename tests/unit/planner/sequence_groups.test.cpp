// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/sequence_groups.hpp>

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

//! FlexSP's terms: attention and the rest of the work are shared by the group, which
//! exchanges what heads and tokens need (four all-to-alls of a layer forward, four backward).
//! @source Wang et al., FlexSP (arXiv:2412.01523); Jacobs et al., DeepSpeed Ulysses
//! (arXiv:2309.14509).
struct group_work {
  double quadratic = 0; //!< time of a pair of tokens, on one device
  double linear = 1;    //!< time of a token, on one device
  double exchange = 0;  //!< time to send all that a token exchanges from one device to another
  double memory = 0;    //!< bytes of a token

  //! The time that a group of so many devices takes for a sequence.
  [[nodiscard]] constexpr double time(int tokens, int size) const noexcept {
    double const s = tokens;
    // Each device has its share of the tokens and sends all but its own part of it.
    return (quadratic * s * s + linear * s) / size + exchange * s / size * (size - 1) / size;
  }
  //! What each of them holds of it.
  [[nodiscard]] constexpr double bytes(int tokens, int size) const noexcept {
    return memory * tokens / size;
  }
};
static_assert(pp::group_cost<group_work>);

//! Time and bytes of a sequence by the paper's formula.
struct paper {
  group_work work;

  [[nodiscard]] double time(int tokens, int size) const {
    double const s = tokens;
    double const n = size;
    return (work.quadratic * s * s + work.linear * s) / n + work.exchange * s * (n - 1) / (n * n);
  }
  [[nodiscard]] double bytes(int tokens, int size) const {
    return work.memory * tokens / static_cast<double>(size);
  }
};

//! All sequences take as long, and as much as they are long: what ends together is not as full.
struct same_time {
  [[nodiscard]] double time(int, int size) const { return size; }
  [[nodiscard]] double bytes(int tokens, int) const { return tokens; }
};

//! The time of the slowest group; infinite where a device holds too much.
template <class Cost>
double slowest(std::vector<int> const& lengths,
               std::vector<int> const& sizes,
               std::vector<int> const& group_of,
               Cost const& cost,
               double memory) {
  double most = 0;
  for (std::size_t group = 0; group < sizes.size(); ++group) {
    double time = 0;
    double bytes = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      if (group_of[i] == static_cast<int>(group)) {
        time += cost.time(lengths[i], sizes[group]);
        bytes += cost.bytes(lengths[i], sizes[group]);
      }
    if (bytes > memory * (1 + 1e-12))
      return HUGE_VAL;
    most = std::max(most, time);
  }
  return most;
}

//! The least of all group sizes in any order and all distributions.
template <class Cost>
double least_of_all(std::vector<int> const& lengths, int devices, Cost const& cost, double memory) {
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
      least = std::min(least, slowest(lengths, sizes, group_of, cost, memory));
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

//! Compares with all that is possible. @return whether something fits
template <class Cost, class Check>
bool compare(std::vector<int> const& lengths,
             int devices,
             Cost const& cost,
             Check const& check,
             double memory) {
  double const least = least_of_all(lengths, devices, check, memory);
  pp::sequence_groups const found = pp::sequence_groups::best(lengths, devices, cost, memory);
  CHECK(found.optimal);
  // With hardly any steps the result fits, the bound holds, and so does what is called optimal.
  for (int const steps : {1, 2, 8, 30}) {
    pp::sequence_groups const quick =
      pp::sequence_groups::best(lengths, devices, cost, memory, steps);
    CHECK(quick.bound <= least * (1 + 1e-12));
    CHECK(quick.time >= least * (1 - 1e-12));
    if (quick.optimal)
      CHECK(quick.time <= least * (1 + 1e-12));
    if (quick.time < HUGE_VAL)
      CHECK(slowest(lengths, quick.sizes, quick.group_of, check, memory) ==
            doctest::Approx(quick.time).epsilon(1e-12));
  }
  if (least == HUGE_VAL) {
    CHECK(found.time == HUGE_VAL);
    return false;
  }
  CHECK(found.time == doctest::Approx(least).epsilon(1e-12));
  CHECK(slowest(lengths, found.sizes, found.group_of, check, memory) ==
        doctest::Approx(least).epsilon(1e-12));
  CHECK(std::accumulate(found.sizes.begin(), found.sizes.end(), 0) == devices);
  return true;
}

} // namespace

TEST_CASE("groups are the best of all sizes and distributions") {
  std::mt19937 random(4);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    CAPTURE(round);
    int const devices = 1 + static_cast<int>(random() % 6);
    std::vector<int> lengths;
    for (int i = 0; i < 1 + static_cast<int>(random() % 5); ++i)
      lengths.push_back(1 + static_cast<int>(random() % 40) * (random() % 4 == 0 ? 5 : 1));
    group_work const work{.quadratic = 0.01 * static_cast<double>(random() % 3),
                          .linear = 1,
                          .exchange = 0.5 * static_cast<double>(random() % 4),
                          .memory = random() % 3 == 0 ? 0.0 : 1.0};
    double const memory = random() % 2 == 0 ? 1e9 : 20 + static_cast<double>(random() % 60);
    refused += compare(lengths, devices, work, paper{work}, memory) ? 0 : 1;
  }
  CHECK(refused > 0);
  CHECK(refused < 400);
}

TEST_CASE("groups are the best where many are nearly as good") {
  std::mt19937 random(5);
  for (int round = 0; round < 150; ++round) {
    CAPTURE(round);
    std::vector<int> lengths;
    for (int i = 0; i < 5 + round % 2; ++i)
      lengths.push_back(3'000'000 + static_cast<int>(random() % 20));
    // The exchange makes a device for itself the best group.
    group_work const work{.linear = 1, .exchange = 4, .memory = 1};
    compare(lengths, 2 + round % 2, work, paper{work}, 1e9);
    lengths.resize(6, 3'000'007); // three on each device, near the bound
    compare(lengths, 2, work, paper{work}, 1e9);
    // Room for three on a device, and hardly for all.
    std::vector<int> small;
    for (int i = 0; i < 6; ++i)
      small.push_back(1 + static_cast<int>(random() % 9));
    int const sum = std::accumulate(small.begin(), small.end(), 0);
    compare(small, 2, same_time{}, same_time{}, (sum + 1) / 2);
    compare(small, 3, same_time{}, same_time{}, (sum + 2) / 3);
  }
}

TEST_CASE("a bound that is met is enough, and memory may be filled to the last byte") {
  group_work const work{.linear = 1, .exchange = 4, .memory = 1};
  std::vector<int> const pair{60, 60};
  pp::sequence_groups const full = pp::sequence_groups::best(pair, 2, work, 60, 2);
  CHECK(full.optimal);
  CHECK(full.time == 60);
  CHECK(full.bound == 60);
  // Not all sums of powers were looked at, and need not be.
  CHECK(pp::sequence_groups::best(pair, 4, group_work{}, 60, 1).optimal);
  // But where the bound is not met, sums and distributions that were not looked at may be better.
  std::vector<int> const one_long{100, 1, 1, 1};
  CHECK(!pp::sequence_groups::best(one_long, 2, group_work{.exchange = 0.1}, 1e9, 2).optimal);
  std::vector<int> const two{100, 1};
  CHECK(!pp::sequence_groups::best(two, 4, group_work{.exchange = 0.1}, 1e9, 1).optimal);
  std::vector<int> const one{100};
  // On one device alone nothing of it fits: the bound is of groups of two.
  CHECK(pp::sequence_groups::best(one, 4, work, 50, 2).bound <= 150);
}

TEST_CASE("a large group beside many small ones is found where sums are too many to try") {
  // Of 256 there are 692,004 sums, and those with small groups come last.
  std::vector<int> lengths(448, 1000);
  lengths.push_back(64000);
  group_work const work{.linear = 1, .exchange = 0.5, .memory = 1};
  pp::sequence_groups const found = pp::sequence_groups::best(lengths, 256, work, 2000, 1000);
  // The long one takes 2000 and 968.75 on 32 devices, and less memory than that has no group.
  CHECK(found.sizes.front() == 32);
  CHECK(found.time == doctest::Approx(2968.75));
}

TEST_CASE("many sequences on many devices come near the bound") {
  std::mt19937 random(8);
  std::vector<int> lengths;
  for (int i = 0; i < 200; ++i)
    lengths.push_back(i % 40 == 0 ? 65536 : 512 + static_cast<int>(random() % 8192));
  group_work const work{.quadratic = 1e-4, .linear = 1, .exchange = 0.3, .memory = 1};
  pp::sequence_groups const found = pp::sequence_groups::best(lengths, 32, work, 60000, 100000);
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
  CHECK_THROWS_WITH(pp::sequence_groups::best(none, 4, group_work{}),
                    doctest::Contains("at least one sequence"));
  CHECK_THROWS_WITH(pp::sequence_groups::best(bad, 4, group_work{}),
                    doctest::Contains("sequence 1 must"));
}
