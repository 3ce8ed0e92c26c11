// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How long passes and messages take. Header for pipelining::uniform_cost.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

namespace detail {

//! The time of two passes whose layers alternate: neither is done before its own computation and
//! exchanges are, which come in turn, and a device computes, or exchanges, for one of them at once.
[[nodiscard]] constexpr double
braid_time(double computes, double exchanges, double other, double other_exchanges) noexcept {
  return std::max(std::max(computes + other, exchanges + other_exchanges),
                  std::max(computes + exchanges, other + other_exchanges));
}

} // namespace detail

//! @brief One time per kind, the same on every stage and for every chunk. The default is the
//! papers' unit cost.
//!
//! A fused `backward` takes `backward_input + backward_weight`; forward passes of all kinds take
//! `forward`. Kinds of one's own take the time of their role. Times are of one pass of one stage
//! (of one chunk where there are chunks), in any one unit.
struct uniform_cost {
  double forward = 1;         //!< of a stage, or of a chunk of it
  double backward_input = 1;  //!< only the gradient of the input
  double backward_weight = 1; //!< only the gradient of the weights
  double communication = 0;   //!< from the end of a pass to its reader
  //! Time of an overlapped pair of two passes; negative: the sum of the two.
  double overlapped_pair = -1;
  double recompute = -1;      //!< negative: as long as `forward`
  double copy_out = 0;        //!< of an activation to the host
  double copy_in = 0;         //!< of an activation from the host
  double gather = 0;          //!< of the shards of a stage's weights
  double scatter = 0;         //!< of a stage's gradients into shards
  double embed = 1;           //!< of a shard of the embedding
  double logits = 1;          //!< of a shard of the output layer
  double logits_gradient = 1; //!< of such a shard
  double embed_gradient = 1;  //!< of a shard of the embedding
  //! From the end of a pass to all stages of a group; negative: as messages to other devices.
  double broadcast = -1;
  //! From the last of the passes of all stages of a group to who reads them; negative: likewise.
  double reduce = -1;
  //! Time of the exchanges of a tensor parallel group that a pass with nothing to hide them adds: a
  //! forward pass, a recomputation or a `backward_input` by itself. A fused `backward` hides them
  //! under the gradient of the weights, an overlapped pair each under the other pass; a longer
  //! exchange is exposed.
  double all_reduce = 0;

  //! The time of a pass of training.
  [[nodiscard]] constexpr double duration(pass const& what) const noexcept {
    return duration(detail::kinds_of_training, what);
  }
  // One switch and no further call: the compiler comes here for every pass.
  //! The time of a pass by the role of its kind.
  [[nodiscard]] constexpr double duration(flow const& declared, pass const& what) const noexcept {
    kind_of_pass const& kind = declared.kinds[static_cast<int>(what.kind)];
    if (kind.in_groups)
      return shard_duration(kind);
    switch (kind.is) {
    case role::forward: return forward + all_reduce;
    case role::backward:
      return backward_input + (all_reduce > backward_weight ? all_reduce : backward_weight);
    case role::input: return backward_input + all_reduce;
    case role::weights: return backward_weight;
    case role::again:
      return kind.on != engine::compute || kind.calls != stage_call::recompute
               ? moving_duration(kind)
               : (recompute < 0 ? forward : recompute) + all_reduce;
    case role::copy: return kind.on == engine::copy_in ? copy_in : copy_out;
    case role::communicate: return moving_duration(kind);
    case role::mark: return 0;
    }
    return 0;
  }
  //! The same where the exchanges of a tensor parallel group are hidden.
  [[nodiscard]] constexpr double hidden_duration(flow const& declared,
                                                 pass const& what) const noexcept {
    uniform_cost hidden = *this;
    if (exposed(declared[what.kind]) > 0)
      hidden.all_reduce = 0;
    return hidden.duration(declared, what);
  }
  [[nodiscard]] constexpr double latency() const noexcept { return communication; }
  [[nodiscard]] constexpr detail::group_times groups() const noexcept {
    return {broadcast, reduce};
  }
  //! The time of an overlapped pair of passes of a flow.
  [[nodiscard]] constexpr double
  pair_duration(flow const& declared, pass const& first, pass const& second) const noexcept {
    return overlapped_pair < 0 ? detail::braid_time(hidden_duration(declared, first),
                                                    exposed(declared[first.kind]),
                                                    hidden_duration(declared, second),
                                                    exposed(declared[second.kind]))
                               : overlapped_pair;
  }
  //! Time that a pass of a kind takes longer when it runs by itself.
  [[nodiscard]] constexpr double exposed(kind_of_pass const& kind) const noexcept {
    bool const waits =
      !kind.in_groups && kind.on == engine::compute && !detail::stands_between(kind) &&
      (kind.is == role::forward || kind.is == role::again || kind.is == role::input);
    return waits ? all_reduce : 0;
  }

private:
  //! Of shards of a vocabulary: those of the embedding read no stage before them or read one after
  //! them, those of the output layer read one before them or each other.
  [[nodiscard]] constexpr double shard_duration(kind_of_pass const& kind) const noexcept {
    for (effect const& one : kind)
      switch (one.stage) {
      case of_stage::before: return logits;
      case of_stage::after: return embed_gradient;
      case of_stage::group: return logits_gradient;
      case of_stage::own: break;
      }
    return embed;
  }
  //! Of what moves weights or their gradients; none for marks.
  [[nodiscard]] constexpr double moving_duration(kind_of_pass const& kind) const noexcept {
    return kind.on == engine::compute                    ? 0
           : kind.calls == stage_call::scatter_gradients ? scatter
                                                         : gather;
  }
};

static_assert(cost_model<uniform_cost>);

namespace detail {

//! The time of an overlapped pair: what the cost model says of pairs, else the sum of the
//! two passes.
[[nodiscard]] constexpr double pair_duration(cost_model auto const& cost,
                                             flow const& declared,
                                             pass const& first,
                                             pass const& second) {
  if constexpr (requires { cost.pair_duration(declared, first, second); })
    return cost.pair_duration(declared, first, second);
  else if constexpr (requires { cost.pair_duration(first, second); })
    return cost.pair_duration(first, second);
  else
    return time_of(cost, declared, first) + time_of(cost, declared, second);
}

//! The times between a group and other stages: what the cost model says, else those of
//! messages.
[[nodiscard]] constexpr group_times groups_of(cost_model auto const& cost) {
  if constexpr (requires { cost.groups(); })
    return cost.groups();
  else
    return {};
}

//! The times of messages by sender and receiver, [P x P]: what the cost model says, else
//! none (null), and all take its latency.
[[nodiscard]] constexpr std::span<double const> links_of(cost_model auto const& cost) {
  if constexpr (requires { cost.links(); })
    if (std::span<double const> const links = cost.links(); !links.empty())
      return links;
  return {};
}

//! The time of a message from one device to another under a cost model.
[[nodiscard]] constexpr double
message_time(cost_model auto const& cost, int devices, int from, int to) {
  return message_time(links_of(cost).data(), devices, cost.latency(), from, to);
}

//! The times of messages between so many devices. @throws std::invalid_argument for times that are
//! none of these, or that are negative or not finite.
[[nodiscard]] constexpr std::span<double const> checked_links(cost_model auto const& cost,
                                                              int devices) {
  std::span<double const> const links = links_of(cost);
  auto const count = static_cast<std::size_t>(devices);
  require(links.empty() || links.size() == count * count,
          "cost model: links need one time for each pair of devices");
  for (std::size_t i = 0; i < links.size(); ++i)
    if (i % (count + 1) != 0 && !is_time(links[i]))
      throw std::invalid_argument(
        "cost model: the time of messages from device " + std::to_string(i / count) +
        " to device " + std::to_string(i % count) + " must be a finite number and not negative");
  return links;
}

//! Checks the times of a cost model once, before anything is ordered by them: of every kind
//! on every stage for every chunk of the first microbatch, and of messages.
//! @throws std::invalid_argument with one sentence that names the first that is negative or not
//! finite.
//! @complexity O(S C)
constexpr void check_cost(pipeline_view const& over, cost_model auto const& cost) {
  (void)checked_latency(cost);
  (void)checked_links(cost, over.extents.devices);
  group_times const groups = groups_of(cost);
  for (double const time : {groups.broadcast, groups.reduce})
    require(time < 0 || is_time(time),
            "cost model: the times of a broadcast and of a reduce must be finite numbers, or "
            "negative for those of messages");
  for (int kind = 0; kind < over.declared->kind_count; ++kind)
    for (int stage = 0; stage < over.extents.stages(); ++stage)
      for (int chunk = 0; chunk < over.chunks_of(0); ++chunk) {
        pass const what = row_writer::make(static_cast<pass_kind>(kind), stage, 0, chunk);
        if ((*over.declared)[what.kind].exists())
          (void)checked_duration(cost, *over.declared, what);
      }
}

} // namespace detail

} // namespace pipelining::inline v0_3
