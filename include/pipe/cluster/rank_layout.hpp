// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tasks of the ranks of a run, where pipelines have replicas and stages have shards.
//! Header for pipelining::rank_layout.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The three ways in which ranks share the work, as numbers of places in an order.
enum class rank_axis : std::uint8_t {
  tensor,  //!< shards of one stage: they work on the same microbatch
  data,    //!< replicas of one stage: each has microbatches of its own
  pipeline //!< devices of one plan
};

//! @brief The place of one rank in a layout.
struct rank_place {
  int device = 0;  //!< of the plan, below P: the rank that its runner knows
  int replica = 0; //!< which copy of the pipeline, below D
  int shard = 0;   //!< which share of the device's stages, below T

  friend constexpr bool operator==(rank_place const&, rank_place const&) = default;
};

//! @brief The layout of the ranks of a run: P devices times D replicas times T shards.
//!
//! The numbers of neighbours on the first axis differ by one. Launchers put consecutive ranks on
//! one machine, so the axis with the most to say comes first: tensor, then data, then pipeline.
struct rank_layout {
  int devices = 1;  //!< P, of one pipeline
  int replicas = 1; //!< D, of every pipeline
  int shards = 1;   //!< T, of every stage
  //! Every axis once, the fastest first.
  std::array<rank_axis, 3> order = {rank_axis::tensor, rank_axis::data, rank_axis::pipeline};

  friend constexpr bool operator==(rank_layout const&, rank_layout const&) = default;
};

//! @brief The ranks that differ only in one coordinate: a pipeline, the replicas of a device, or
//! the shards of one.
struct rank_group {
  int number = 0;           //!< among the groups of its axis, in the order of their lowest ranks
  int index = 0;            //!< of the rank that was asked for, in `ranks`
  std::string name{};       //!< "pipeline 2": tells stores, runners and communicators apart
  std::vector<int> ranks{}; //!< [P, D or T] in the whole run, ascending
};

namespace detail {

//! The word for one group of an axis.
[[nodiscard]] constexpr char const* word_for(rank_axis axis) {
  return axis == rank_axis::pipeline ? "pipeline" : axis == rank_axis::data ? "data" : "tensor";
}

[[nodiscard]] constexpr int extent_of(rank_layout const& layout, rank_axis axis) {
  return axis == rank_axis::pipeline ? layout.devices
         : axis == rank_axis::data   ? layout.replicas
                                     : layout.shards;
}

template <class Place>
[[nodiscard]] constexpr auto& coordinate(Place& place, rank_axis axis) {
  return axis == rank_axis::pipeline ? place.device
         : axis == rank_axis::data   ? place.replica
                                     : place.shard;
}

} // namespace detail

//! @brief A layout as lines `key=value`, for texts that ranks and checkpoints compare.
[[nodiscard]] inline std::string lines_of(rank_layout const& layout) {
  std::string order;
  for (rank_axis const axis : layout.order)
    order.append(order.empty() ? "" : ",").append(detail::word_for(axis));
  return "devices=" + std::to_string(layout.devices) +
         "\nreplicas=" + std::to_string(layout.replicas) +
         "\nshards=" + std::to_string(layout.shards) + "\naxes=" + order + '\n';
}

//! @brief The number of ranks of a layout.
//! @throws std::invalid_argument for extents below one, for more ranks than an int counts, and
//! where the order does not name every axis once.
[[nodiscard]] constexpr int ranks_of(rank_layout const& layout) {
  std::int64_t count = 1;
  unsigned seen = 0;
  for (rank_axis const axis : layout.order) {
    if (axis > rank_axis::pipeline)
      throw std::invalid_argument("layout: the order has an axis that does not exist");
    if (detail::extent_of(layout, axis) < 1)
      throw std::invalid_argument(std::string("layout: the ") + detail::word_for(axis) +
                                  " axis has " + std::to_string(detail::extent_of(layout, axis)) +
                                  " ranks; it must have at least one");
    seen |= 1U << static_cast<unsigned>(axis);
    count *= detail::extent_of(layout, axis);
    if (count > std::numeric_limits<int>::max())
      throw std::invalid_argument("layout: more ranks than an int counts");
  }
  if (seen != 7)
    throw std::invalid_argument("layout: the order must name tensor, data and pipeline once each");
  return static_cast<int>(count);
}

//! @brief The layout of a run: as many replicas as its ranks make.
//! @param ranks of the whole run, as the launcher says. @param devices P. @param shards T.
//! @throws std::invalid_argument where `ranks` is no multiple of P times T.
[[nodiscard]] constexpr rank_layout layout_of(int ranks, int devices, int shards = 1) {
  rank_layout layout{.devices = devices, .replicas = 1, .shards = shards};
  int const least = ranks_of(layout);
  if (ranks < 1 || ranks % least != 0)
    throw std::invalid_argument(
      "layout: " + std::to_string(ranks) + " ranks cannot be replicas of a pipeline of " +
      std::to_string(devices) + " devices" +
      (shards == 1 ? std::string() : " with " + std::to_string(shards) + " shards each") +
      "; start a multiple of " + std::to_string(least) + " ranks");
  layout.replicas = ranks / least;
  return layout;
}

//! @brief The place of a rank of the whole run.
//! @throws std::out_of_range for a rank that the layout has not, std::invalid_argument as ranks_of.
[[nodiscard]] constexpr rank_place place_of(rank_layout const& layout, int rank) {
  int const count = ranks_of(layout);
  if (rank < 0 || rank >= count)
    throw std::out_of_range("layout: there is no rank " + std::to_string(rank) + " among " +
                            std::to_string(count));
  rank_place place;
  for (rank_axis const axis : layout.order) {
    detail::coordinate(place, axis) = rank % detail::extent_of(layout, axis);
    rank /= detail::extent_of(layout, axis);
  }
  return place;
}

//! @brief The rank of the whole run that is at a place: the inverse of place_of.
//! @throws std::out_of_range for a place that the layout has not, std::invalid_argument as
//! ranks_of.
[[nodiscard]] constexpr int rank_of(rank_layout const& layout, rank_place const& place) {
  (void)ranks_of(layout);
  int rank = 0;
  int stride = 1;
  for (rank_axis const axis : layout.order) {
    int const at = detail::coordinate(place, axis);
    int const extent = detail::extent_of(layout, axis);
    if (at < 0 || at >= extent)
      throw std::out_of_range(std::string("layout: there is no number ") + std::to_string(at) +
                              " on the " + detail::word_for(axis) + " axis, which has " +
                              std::to_string(extent));
    rank += at * stride;
    stride *= extent;
  }
  return rank;
}

//! @brief The number of groups of an axis: all ranks, divided by the ranks of one group.
//! @throws std::invalid_argument as ranks_of.
[[nodiscard]] constexpr int groups_of(rank_layout const& layout, rank_axis axis) {
  return ranks_of(layout) / detail::extent_of(layout, axis);
}

//! @brief The group along an axis to which a rank belongs.
//!
//! `number` and `index` are colour and key of MPI_Comm_split; `ranks` of a pipeline are
//! nccl_options::world_ranks; `name` tells runners (mpi_options::name) and the keys of a store
//! apart.
//! @throws as place_of. @complexity O(members)
[[nodiscard]] inline rank_group group_of(rank_layout const& layout, rank_axis axis, int rank) {
  rank_place place = place_of(layout, rank);
  rank_group group;
  group.index = detail::coordinate(place, axis);
  int stride = 1;
  for (rank_axis const other : layout.order) {
    if (other == axis)
      continue;
    group.number += detail::coordinate(place, other) * stride;
    stride *= detail::extent_of(layout, other);
  }
  group.name = std::string(detail::word_for(axis)) + ' ' + std::to_string(group.number);
  group.ranks.reserve(static_cast<std::size_t>(detail::extent_of(layout, axis)));
  for (int& at = detail::coordinate(place, axis) = 0; at < detail::extent_of(layout, axis); ++at)
    group.ranks.push_back(rank_of(layout, place));
  return group;
}

} // namespace pipelining::inline v0_3
