// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How long passes and messages take. Header for pipelining::uniform_cost.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

//! The same for so many devices. @throws std::invalid_argument for times that are none of these, or
//! that are negative or not finite.
template <cost_model Cost>
[[nodiscard]] constexpr std::span<double const> checked_links(Cost const& cost, int devices) {
  std::span<double const> const links = links_of(cost);
  auto const count = static_cast<std::size_t>(devices);
  if (!links.empty() && links.size() != count * count)
    throw std::invalid_argument("cost model: links need one time for each pair of devices");
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
template <cost_model Cost>
constexpr void check_cost(pipeline_view const& over, Cost const& cost) {
  (void)checked_latency(cost);
  (void)checked_links(cost, over.extents.devices);
  group_times const groups = groups_of(cost);
  for (double const time : {groups.broadcast, groups.reduce})
    if (!(time < 0) && !is_time(time))
      throw std::invalid_argument("cost model: the times of a broadcast and of a reduce must be "
                                  "finite numbers, or negative for those of messages");
  for (int kind = 0; kind < most_kinds; ++kind)
    for (int stage = 0; stage < stages(over.extents); ++stage)
      for (int chunk = 0; chunk < chunks_of(over, 0); ++chunk) {
        pass const what{static_cast<pass_kind>(kind),
                        false,
                        static_cast<std::uint16_t>(stage),
                        0,
                        static_cast<std::uint16_t>(chunk)};
        if ((*over.declared)[what.kind].exists())
          (void)checked_duration(cost, what);
      }
}

} // namespace detail

//! @brief One time per kind, the same on every stage and for every chunk. The default is the
//! papers' unit cost.
//!
//! A fused `backward` takes `backward_input + backward_weight`; forward passes of all kinds take
//! `forward`. Times are of one pass of one stage (of one chunk where there are chunks), in any one
//! unit.
struct uniform_cost {
  double forward = 1;         //!< of a stage, or of a chunk of it
  double backward_input = 1;  //!< the gradient of the input alone
  double backward_weight = 1; //!< the gradient of the weights alone
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
  //! What the exchanges of a tensor parallel group add to a pass that has nothing to hide them
  //! behind: a forward pass, a recomputation or `backward_input` alone. A fused `backward` hides
  //! them behind the gradient of the weights, an overlapped pair each behind the other pass; what
  //! is longer than that is exposed.
  double all_reduce = 0;

  // One switch and no further call: the compiler comes here for every pass.
  [[nodiscard]] constexpr double duration(pass const& what) const noexcept {
    switch (what.kind) {
    case pass_kind::forward:
    case pass_kind::checkpointed_forward:
    case pass_kind::offloaded_forward: return forward + all_reduce;
    case pass_kind::backward:
      return backward_input + (all_reduce > backward_weight ? all_reduce : backward_weight);
    case pass_kind::backward_input: return backward_input + all_reduce;
    case pass_kind::backward_weight: return backward_weight;
    case pass_kind::recompute: return (recompute < 0 ? forward : recompute) + all_reduce;
    case pass_kind::copy_out: return copy_out;
    case pass_kind::copy_in: return copy_in;
    case pass_kind::gather_weights:
    case pass_kind::gather_weights_again: return gather;
    case pass_kind::scatter_gradients: return scatter;
    case pass_kind::embed: return embed;
    case pass_kind::logits: return logits;
    case pass_kind::logits_gradient: return logits_gradient;
    case pass_kind::embed_gradient: return embed_gradient;
    default: return 0; // stands between passes
    }
  }
  //! The same where the exchanges of a tensor parallel group are hidden.
  [[nodiscard]] constexpr double hidden_duration(pass const& what) const noexcept {
    uniform_cost hidden = *this;
    if (exposed(what.kind) > 0)
      hidden.all_reduce = 0;
    return hidden.duration(what);
  }
  [[nodiscard]] constexpr double latency() const noexcept { return communication; }
  [[nodiscard]] constexpr group_times groups() const noexcept { return {broadcast, reduce}; }
  [[nodiscard]] constexpr double pair_duration(pass const& first,
                                               pass const& second) const noexcept {
    return overlapped_pair < 0 ? detail::braid_time(hidden_duration(first),
                                                    exposed(first.kind),
                                                    hidden_duration(second),
                                                    exposed(second.kind))
                               : overlapped_pair;
  }
  //! What a pass of a kind takes longer when it runs alone.
  [[nodiscard]] constexpr double exposed(pass_kind kind) const noexcept {
    bool const waits = kind == pass_kind::forward || kind == pass_kind::checkpointed_forward ||
                       kind == pass_kind::offloaded_forward || kind == pass_kind::recompute ||
                       kind == pass_kind::backward_input;
    return waits ? all_reduce : 0;
  }
};

static_assert(cost_model<uniform_cost>);

//! @brief The time of an overlapped pair: what the cost model says of pairs, else the sum of the
//! two passes.
template <cost_model Cost>
[[nodiscard]] constexpr double
pair_duration(Cost const& cost, pass const& first, pass const& second) {
  if constexpr (requires { cost.pair_duration(first, second); })
    return cost.pair_duration(first, second);
  else
    return cost.duration(first) + cost.duration(second);
}

//! @brief The times between a group and other stages: what the cost model says, else those of
//! messages.
template <cost_model Cost>
[[nodiscard]] constexpr group_times groups_of(Cost const& cost) {
  if constexpr (requires { cost.groups(); })
    return cost.groups();
  else
    return {};
}

//! @brief The times of messages by sender and receiver, [P x P]: what the cost model says, else
//! none, and all take its latency.
template <cost_model Cost>
[[nodiscard]] constexpr std::span<double const> links_of(Cost const& cost) {
  if constexpr (requires { cost.links(); })
    return cost.links();
  else
    return {};
}

} // namespace pipelining::inline v0_3
