// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Groups of devices that share sequences of unequal length. Header for
//! pipelining::group_cost and sequence_groups.

#include <pipe/flow/sort_stably.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The cost of a sequence on a group of devices that share its tokens: `time(tokens, size)`,
//! and `bytes(tokens, size)` on each of them.
template <class Cost>
concept group_cost = requires(Cost const cost, int tokens, int size) {
  { cost.time(tokens, size) } -> std::convertible_to<double>;
  { cost.bytes(tokens, size) } -> std::convertible_to<double>;
};

//! @brief Groups of devices, and the sequences that each has.
struct sequence_groups {
  std::vector<int> sizes;    //!< [groups] devices of each, powers of 2, largest first
  std::vector<int> group_of; //!< [sequences] the group that has each
  double time = std::numeric_limits<double>::infinity(); //!< of the slowest; infinite: nothing fits
  double bound = 0;     //!< no groups and no distribution take less
  bool optimal = false; //!< whether none takes less, or, without any that fits, none fits

  //! @brief The groups of devices, each a power of 2 large and all devices in one, and the
  //! distribution of sequences over them whose slowest group is fastest.
  //!
  //! Tries all sums of powers of 2 where there are at most `most_steps`, else sums of one or two
  //! sizes and as many others, distributes longest first, and then searches all distributions
  //! within `most_steps` steps: where these are enough the result is optimal, else `bound` says how
  //! far it may be. The bound: a sequence takes its time on the best size for it, and all of them
  //! the devices' time that they need at least.
  //!
  //! @param lengths tokens of each sequence, at least one sequence. @param devices at least 1.
  //! @param memory bytes that a device may hold.
  //! @return `time` infinite where nothing was found that fits.
  //! @throws std::invalid_argument without sequences or devices, or for a length below 1.
  //! @complexity O(D n) for each of the sums, D devices and n sequences; exponential within the
  //! steps.
  //! @source own derivation for the problem of Wang et al., FlexSP (arXiv:2412.01523).
  template <group_cost Cost>
  [[nodiscard]] static sequence_groups best(std::span<int const> lengths,
                                            int devices,
                                            Cost const& cost,
                                            double memory = std::numeric_limits<double>::infinity(),
                                            std::int64_t most_steps = std::int64_t{1} << 20);
};

namespace detail {

//! A group, and what its sequences take; of a single sequence, what it takes in such a group.
struct group_load {
  int size;
  double time = 0;
  double bytes = 0;

  friend bool operator==(group_load const&, group_load const&) = default;
};

//! Distributes sequences over groups of given sizes: branch and bound, longest first.
class group_search {
public:
  //! @param order sequences, longest first. @param best the groups to improve.
  //! @param devices of all groups.
  group_search(std::span<int const> lengths,
               std::span<int const> order,
               int devices,
               group_cost auto const& cost,
               double memory,
               sequence_groups& best)
      : order_(order), sizes_(static_cast<int>(std::bit_width(static_cast<unsigned>(devices)))),
        memory_(memory * (1 + 1e-12)), best_(best), group_of_(order.size()) {
    for (int const tokens : lengths)
      for (int size = 1; size <= devices; size *= 2)
        needs_.push_back({size, cost.time(tokens, size), cost.bytes(tokens, size)});
  }

  //! Gives every sequence to the group that then ends first, of the groups with room for it.
  void first_fit(std::vector<int> const& sizes) {
    begin(sizes);
    for (int const sequence : order_) {
      group_load* chosen = nullptr;
      double least = std::numeric_limits<double>::infinity();
      for (group_load& group : groups_)
        if (double const end = group.time + need(sequence, group).time;
            fits(sequence, group) && end < least) {
          chosen = &group;
          least = end;
        }
      if (chosen == nullptr)
        return;
      put(sequence, *chosen);
    }
    keep();
  }
  //! All distributions but those that cannot be better. @return whether `steps` were enough
  bool all(std::vector<int> const& sizes, std::int64_t& steps) {
    begin(sizes);
    return place(0, steps);
  }

private:
  void begin(std::vector<int> const& sizes) {
    groups_.clear();
    for (int const size : sizes)
      groups_.push_back({size});
  }
  [[nodiscard]] group_load const& need(int sequence, group_load const& in) const {
    return needs_[static_cast<std::size_t>(sequence * sizes_ +
                                           std::countr_zero(static_cast<unsigned>(in.size)))];
  }
  [[nodiscard]] bool fits(int sequence, group_load const& in) const {
    return in.bytes + need(sequence, in).bytes <= memory_;
  }
  void put(int sequence, group_load& in) {
    in.time += need(sequence, in).time;
    in.bytes += need(sequence, in).bytes;
    group_of_[static_cast<std::size_t>(sequence)] = static_cast<int>(&in - groups_.data());
  }
  void keep() {
    double const slowest = std::ranges::max(groups_, {}, &group_load::time).time;
    if (!(slowest < best_.time))
      return;
    best_.time = slowest;
    best_.sizes.clear();
    for (group_load const& group : groups_)
      best_.sizes.push_back(group.size);
    best_.group_of = group_of_;
  }
  bool place(std::size_t next, std::int64_t& steps) {
    if (next == order_.size()) {
      keep();
      return true;
    }
    if (--steps < 0)
      return false;
    int const sequence = order_[next];
    bool complete = true;
    for (group_load& group : groups_) {
      group_load const before = group;
      bool const has_twin = std::find(groups_.data(), &group, before) != &group;
      if (has_twin || !fits(sequence, group) ||
          before.time + need(sequence, group).time >= best_.time * (1 - 1e-12))
        continue;
      put(sequence, group);
      complete = place(next + 1, steps) && complete;
      group = before;
    }
    return complete;
  }

  std::span<int const> order_;
  int sizes_;                     // that groups may have: powers of two
  std::vector<group_load> needs_; // [sequences][sizes]
  double memory_;
  sequence_groups& best_;
  std::vector<group_load> groups_;
  std::vector<int> group_of_;
};

//! Calls `with` for groups of one size, then for some groups of one size next to others of a
//! smaller one. `each_sum_of_powers` comes to these last. At most `most` of them.
void each_plain_sum(int devices, std::int64_t most, auto const& with) {
  auto const give = [&](int count, int larger, int smaller) {
    int const rest = devices - count * larger;
    if (rest % smaller != 0 || most-- <= 0)
      return;
    std::vector<int> sizes(static_cast<std::size_t>(count), larger);
    sizes.insert(sizes.end(), static_cast<std::size_t>(rest / smaller), smaller);
    with(sizes);
  };
  for (int size = 1; size <= devices; size *= 2)
    give(0, size, size);
  for (int smaller = 1; smaller <= devices; smaller *= 2)
    for (int larger = 2 * smaller; larger <= devices; larger *= 2)
      for (int count = 1; count <= (devices - 1) / larger; count *= 2)
        give(count, larger, smaller);
}

//! Calls `with` for the ways to write a number as a sum of powers of 2, largest first, at most
//! `most` of them. @return whether these were all
bool each_sum_of_powers(int devices, std::int64_t most, auto const& with) {
  std::vector<int> sizes;
  auto const go = [&](auto const& self, int left, int largest) -> bool {
    if (left == 0) {
      if (--most < 0)
        return false;
      with(sizes);
      return true;
    }
    for (int size = largest; size >= 1; size /= 2) {
      if (size > left)
        continue;
      sizes.push_back(size);
      bool const went = self(self, left - size, size);
      sizes.pop_back();
      if (!went)
        return false;
    }
    return true;
  };
  int largest = 1;
  while (largest <= devices / 2)
    largest *= 2;
  return go(go, devices, largest);
}

} // namespace detail

template <group_cost Cost>
sequence_groups sequence_groups::best(std::span<int const> lengths,
                                      int devices,
                                      Cost const& cost,
                                      double memory,
                                      std::int64_t most_steps) {
  if (lengths.empty() || devices < 1)
    throw std::invalid_argument(
      "sequence_groups: give at least one sequence and at least one device");
  std::vector<int> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  auto const length = [&](int sequence) { return lengths[static_cast<std::size_t>(sequence)]; };
  detail::sort_stably(order, [&](int a, int b) { return length(a) > length(b); });
  sequence_groups found;
  double area = 0;
  for (int const sequence : order) {
    if (length(sequence) < 1)
      throw std::invalid_argument("sequence_groups: sequence " + std::to_string(sequence) +
                                  " must have at least one token");
    double fastest = std::numeric_limits<double>::infinity();
    double cheapest = fastest;
    for (int size = 1; size <= devices; size *= 2)
      if (cost.bytes(length(sequence), size) <= memory * (1 + 1e-12)) {
        fastest = std::min(fastest, double{cost.time(length(sequence), size)});
        cheapest = std::min(cheapest, size * double{cost.time(length(sequence), size)});
      }
    area += cheapest;
    found.bound = std::max(found.bound, fastest);
  }
  found.bound = std::max(found.bound, area / devices);
  detail::group_search search(lengths, order, devices, cost, memory, found);
  detail::each_plain_sum(
    devices, most_steps, [&](std::vector<int> const& some) { search.first_fit(some); });
  std::vector<std::vector<int>> sums;
  bool complete = detail::each_sum_of_powers(
    devices, std::max<std::int64_t>(most_steps, 1), [&](std::vector<int> const& some) {
      sums.push_back(some);
      search.first_fit(some);
    });
  for (std::vector<int> const& sizes : sums)
    if (found.time > found.bound * (1 + 1e-12))
      complete = search.all(sizes, most_steps) && complete;
  found.optimal = complete || found.time <= found.bound * (1 + 1e-12);
  if (complete)
    found.bound = found.time;
  return found;
}

} // namespace pipelining::inline v0_3
