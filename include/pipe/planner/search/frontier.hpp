// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Choices that nothing beats in both memory and time, of schedules and of building blocks.
//! Header for pipelining::frontier, memory_choice, for_each_block and block_frontier.

#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief One thing to choose: how much memory it takes, and how much time.
struct choice_point {
  double memory = 0; //!< what it takes of memory
  double time = 0;   //!< what it takes of time
  int extras = 0;    //!< how far it is from a plain schedule: options and adapters
};

//! @brief The points that no other point beats in both, by memory; the first of equal ones.
//! @return positions in `points`; times fall along them.
//! @complexity O(n log n)
[[nodiscard]] inline std::vector<std::size_t> frontier(std::span<choice_point const> points) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [points](std::size_t a, std::size_t b) {
    if (points[a].memory != points[b].memory)
      return points[a].memory < points[b].memory;
    return points[a].time != points[b].time ? points[a].time < points[b].time : a < b;
  });
  std::vector<std::size_t> result;
  for (std::size_t const each : order)
    if (result.empty() || points[each].time < points[result.back()].time)
      result.push_back(each);
  return result;
}

//! @brief The pick under a limit, and what lies next to it on the frontier.
struct memory_choice {
  //! Times that differ by this share are equal: no prediction is as good.
  static constexpr double equal = 1e-3;

  std::optional<std::size_t> pick; //!< the best that fits, as `within` says
  std::optional<std::size_t>
    faster;                         //!< the next faster one, with the least memory beyond the limit
  std::optional<std::size_t> least; //!< the one with the least memory of all

  //! @brief Chooses from all points under a limit. Of those as fast as the fastest, within
  //! `equal`, the pick has the least memory; of equal ones, the fewest extras; then the least time;
  //! then it is the first.
  //! @complexity O(n log n)
  [[nodiscard]] static memory_choice within(std::span<choice_point const> points, double limit) {
    memory_choice result;
    double fastest = 0;
    for (std::size_t const each : frontier(points)) {
      if (!result.least)
        result.least = each;
      if (points[each].memory <= limit)
        fastest = points[each].time;
      else if (!result.faster)
        result.faster = each;
    }
    auto const better = [](choice_point const& a, choice_point const& b) {
      constexpr double rounding = 1e-9; // of sums of bytes
      return a.memory < b.memory * (1 - rounding) ||
             (a.memory <= b.memory * (1 + rounding) &&
              std::pair(a.extras, a.time) < std::pair(b.extras, b.time));
    };
    for (std::size_t i = 0; i < points.size(); ++i)
      if (points[i].memory <= limit && points[i].time <= fastest * (1 + equal) &&
          (!result.pick || better(points[i], points[*result.pick])))
        result.pick = i;
    return result;
  }
};

//! @brief A building block: the numbers that lay it out, and the figures of its order.
//!
//! Backward passes are split. Gaps between legs are the first that fit.
struct block_choice {
  static constexpr int most_legs = 6; //!< legs of the longest blocks that are tried

  //! @brief The range of the blocks that are tried.
  struct options {
    int most_legs = block_choice::most_legs; //!< 1 to that
    std::vector<int> chunks{1};              //!< chunks of a sequence
    int longest_stride = 2;                  //!< slots between neighbours of a leg, at the most
    double longest_interval = 1.5;           //!< over the shortest, 3 slots per leg
    int microbatches = 0;                    //!< of the timetables; 0: four per device
  };

  int legs = 1;                          //!< stages of a device
  placement where = placement::looped;   //!< looped, or to and fro: wave
  int chunks = 1;                        //!< of a sequence
  int interval = 3;                      //!< slots from one unit to the next
  std::array<int, 4> stride{1, 1, 1, 1}; //!< of even and odd forward legs, of even and odd backward
                                         //!< legs; 0: each pass as soon as it fits
  double memory = 0; //!< the most that a device holds, in microbatches of all its stages
  double bubble = 0; //!< of the reordered timetable, on the span

  //! @brief The stride of one of its 2 V legs, forward legs first.
  [[nodiscard]] constexpr int stride_of(int leg) const noexcept {
    bool const forward = leg < legs;
    int const number = forward ? leg : leg - legs;
    return stride[static_cast<std::size_t>(number % 2 + (forward ? 0 : 2))];
  }
  //! @brief The memory below which no block of this interval goes, in the mean over devices, in
  //! microbatches of all stages of a device, at equal times and without latency: ((S + 2) / T + C -
  //! 1) / C.
  //! @source own derivation, see docs/explanation/v_shapes.md
  [[nodiscard]] constexpr double least_memory(int devices) const noexcept {
    return ((legs * devices + 2.0) / interval + chunks - 1) / chunks;
  }

  friend bool operator==(block_choice const&, block_choice const&) = default;
};

namespace detail {

//! The numbers of such a block.
//! @tparam Legs choice.legs
template <int Legs>
[[nodiscard]] constexpr strides<Legs> strides_of(block_choice const& choice) noexcept {
  strides<Legs> result{.interval = choice.interval};
  for (int leg = 0; leg < 2 * Legs; ++leg) {
    result.stride[leg] = choice.stride_of(leg);
    result.gap[leg] = leg == 0 ? 0 : first_fit;
  }
  return result;
}

//! How often a microbatch crosses from device to device, forwards; backwards as often.
[[nodiscard]] constexpr int crossings(block_choice const& choice, int devices) noexcept {
  int const turns = choice.legs - 1; // of a wave, which stay on their device
  return choice.legs * devices - 1 - (choice.where == placement::wave ? turns : 0);
}

//! Lays a block out and orders it. False where it cannot be laid out.
template <int Legs, class Placement>
bool measure_block(block_choice& choice, int devices, int microbatches) {
  Repeat<strides<Legs>, Placement, dynamic> const plan{.chunks = choice.chunks,
                                                       .block = strides_of<Legs>(choice)};
  try {
    auto const table = make_timetable(plan, {devices, microbatches});
    ratio const peak = peak_activations(table);
    choice.memory =
      static_cast<double>(peak.numerator) / (static_cast<double>(peak.denominator) * Legs);
    choice.bubble = bubble_rate(table);
    return true;
  } catch (std::invalid_argument const&) {
    return false;
  }
}

//! Strides of even and odd legs, forwards and backwards: number 0 has none, and loops have no odd
//! legs.
[[nodiscard]] constexpr bool strides_numbered(block_choice& choice, int number, int longest) {
  int rest = number - 1;
  for (int& stride : choice.stride) {
    stride = number == 0 ? 0 : 1 + rest % longest;
    rest /= longest;
  }
  bool const alike = choice.stride[0] == choice.stride[1] && choice.stride[2] == choice.stride[3];
  return choice.where == placement::wave || alike;
}

template <int Legs, class Placement, class Visit>
void for_each_block_of(placement where,
                       int devices,
                       block_choice::options const& how,
                       Visit& visit) {
  int const longest = how.longest_stride;
  int const shortest = 3 * Legs;
  for (int interval = shortest; interval <= shortest * how.longest_interval; ++interval)
    for (int number = 0; number <= longest * longest * longest * longest; ++number) {
      block_choice choice{.legs = Legs, .where = where, .interval = interval};
      if (!strides_numbered(choice, number, longest))
        continue;
      for (int const chunks : how.chunks) {
        choice.chunks = chunks;
        int const microbatches = how.microbatches > 0 ? how.microbatches : 4 * devices;
        if (!measure_block<Legs, Placement>(choice, devices, microbatches))
          break; // chunks do not change what can be laid out
        visit(std::as_const(choice));
      }
    }
}

template <int Legs, class Visit>
void for_each_block_up_to(int devices, block_choice::options const& how, Visit& visit) {
  if constexpr (Legs > 1)
    for_each_block_up_to<Legs - 1>(devices, how, visit);
  if (Legs > how.most_legs)
    return;
  for_each_block_of<Legs, loops>(placement::looped, devices, how, visit);
  if constexpr (Legs > 1)
    for_each_block_of<Legs, waves>(placement::wave, devices, how, visit);
}

} // namespace detail

//! @brief Lays out and orders blocks of 1 ... `most_legs` legs, looped and to and fro, of all
//! intervals, strides and numbers of chunks that the options name, at equal times; calls
//! `visit(block_choice)` with each that can be laid out.
//! @throws std::invalid_argument for options that are out of range; what `visit` throws.
//! @complexity one timetable per block, some 25 ns per pass and sweep.
void for_each_block(int devices, block_choice::options const& how, auto visit) {
  if (devices < 1 || how.most_legs < 1 || how.most_legs > block_choice::most_legs ||
      how.longest_stride < 1 || !(how.longest_interval >= 1 && how.longest_interval <= 16) ||
      std::any_of(how.chunks.begin(), how.chunks.end(), [](int chunks) { return chunks < 1; }))
    throw std::invalid_argument(
      "for_each_block: blocks have at least one device, 1 to 6 legs, strides and chunks of at "
      "least 1, and intervals of 1 to 16 times the shortest");
  detail::for_each_block_up_to<block_choice::most_legs>(devices, how, visit);
}

//! @brief The blocks that no other with as many chunks, or fewer, beats in memory, bubble and
//! crossings at once; the first of equal ones. By chunks, then crossings, then memory.
//! @complexity O(n k) for n blocks of which k are left.
[[nodiscard]] inline std::vector<block_choice> block_frontier(std::vector<block_choice> all,
                                                              int devices) {
  auto const no_worse = [devices](block_choice const& a, block_choice const& b) {
    return a.chunks <= b.chunks && detail::crossings(a, devices) <= detail::crossings(b, devices) &&
           a.memory <= b.memory && a.bubble <= b.bubble;
  };
  detail::sort_stably(all, [devices](block_choice const& a, block_choice const& b) {
    if (a.chunks != b.chunks)
      return a.chunks < b.chunks;
    if (int const x = detail::crossings(a, devices), y = detail::crossings(b, devices); x != y)
      return x < y;
    return a.memory != b.memory ? a.memory < b.memory : a.bubble < b.bubble;
  });
  std::vector<block_choice> result; // whatever beats a block stands before it
  for (block_choice const& each : all)
    if (std::none_of(result.begin(), result.end(), [&](block_choice const& better) {
          return no_worse(better, each);
        }))
      result.push_back(each);
  return result;
}

} // namespace pipelining::inline v0_3
