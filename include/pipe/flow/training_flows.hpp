// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flows that add to training. Header for
//! pipelining::detail::frugal_training.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

namespace pipelining::inline v0_3::detail {

//! A datum that takes the slots of another.
[[nodiscard]] constexpr datum in_pool_of(training_datum of, flow_word const& word) noexcept {
  datum result = data_of_training.data[of];
  result.word = word;
  result.wanted = false;
  return result;
}

//! True for the kinds that multiply with the weights of their stage: all but the gradient of
//! weights.
[[nodiscard]] constexpr bool reads_weights(kind_of_pass const& kind) noexcept {
  return kind.on == engine::compute && !stands_between(kind) && kind.is <= role::again &&
         kind.is != role::weights;
}

//! True for the kinds that may add to the gradients of whole weights. A gradient of an input comes
//! with those of gains and of an embedding.
[[nodiscard]] constexpr bool touches_gradients(flow const& declared, pass_kind kind) noexcept {
  return declared.adds_gradients(kind) || declared[kind].is == role::input;
}

//! True where forward and backward passes make the same, so that a stage has one of them: a chain
//! of stages that go forward and, after them, others that go back.
[[nodiscard]] constexpr bool stages_go_one_way(flow const& of) noexcept {
  pass_kind const forward = of.kind_with(role::forward);
  pass_kind const backward = of.kind_with(role::backward);
  if (forward == flow::no_kind || backward == flow::no_kind)
    return false;
  for (int row = 0; row < of.rows; ++row)
    if (of.wanted[row] && holds(of.makers[row], index_of(forward)) &&
        holds(of.makers[row], index_of(backward)))
      return true;
  return false;
}

//! A kind that a flow gets from another one: without its letter where a kind of the flow has that.
[[nodiscard]] constexpr kind_of_pass lettered(flow const& declared, kind_of_pass kind) noexcept {
  for (kind_of_pass const& other : declared.kinds)
    if (other.letter == kind.letter)
      kind.letter = '\0';
  return kind;
}

//! Lets passes of a flow need whole weights, and memory for whole gradients: data in their pools
//! that lie nowhere.
constexpr void need_whole(flow& of, std::uint8_t weights, std::uint8_t gradients) {
  auto const need = [](kind_of_pass& kind, std::uint8_t datum) {
    require(kind.effect_count < kind_of_pass::most_effects,
            kind,
            "has no room for what sharded weights add to its effects; split it into two kinds");
    kind.effects[kind.effect_count++] = {does::needs, datum};
  };
  for (int kind = 0; kind < of.kind_count; ++kind) {
    kind_of_pass& one = of.kinds[kind];
    if (one.exists() && !one.in_groups && reads_weights(one))
      need(one, weights);
    if (one.exists() && !one.in_groups && touches_gradients(of, static_cast<pass_kind>(kind)))
      need(one, gradients);
  }
}

//! A flow of training whose weights lie in shards. The whole weights of a stage are gathered for a
//! *visit*, a run of passes of the stage on its device, and released after it. Whole gradients are
//! collected over a run of passes and scattered after it.
//!
//! Among the passes are marks that take no time. `request_weights` lets a gather begin,
//! `use_weights` waits for it and opens the visit, `release_weights` closes it. `collect_gradients`
//! takes memory for whole gradients, `request_scatter` says that they are complete.
//! `gather_weights` and `scatter_gradients` run on the engine `network`. All carry the unit of the
//! pass that opens the visit. A backward pass may have the unit of a forward pass, hence the kinds
//! `_again`. Passes that multiply with weights are inside of visits of their stage; passes that add
//! to weight gradients are where these are collected; or both come after the `keep_weights` of
//! their stage, whose weights never leave the device.
//!
//! @param later by how much the numbers of these kinds are larger than in `pass_kind`
//! @param moves the engine of gathers and scatters
//! @throws std::invalid_argument (in the compiler: no constant) for a flow that has them already,
//! or has no room for them.
//! @source Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023.
[[nodiscard]] constexpr flow
shard_weights(flow const& of, int later = 0, engine moves = engine::network) {
  using enum does;
  using enum slot_class;
  flow result;
  for (int one = 0; one < of.data_count; ++one)
    result.data[one] = of.data[one];
  for (int kind = 0; kind < of.kind_count; ++kind)
    result.kinds[kind] = of.kinds[kind];
  result.data_count = of.data_count;
  result.kind_count = of.kind_count;
  std::array<datum, 14> data{};
  int count = 0;
  auto const add =
    [&](flow_word const& word, slot_class in = {}, residence lives = residence::nowhere) {
      data[static_cast<std::size_t>(count)] = {word, pool(in), pool(in), lives};
      return static_cast<std::uint8_t>(of.data_count + count++);
    };
  int number = index_of(pass_kind::request_weights);
  auto const add_next = [&](std::initializer_list<effect> effects) { // kind of training
    kind_of_pass& kind = result.kinds[number + later];
    if (kind.exists())
      throw std::invalid_argument("shard_weights: the weights of the flow are sharded already");
    kind = lettered(result, kinds_of_training.kinds[number++]);
    kind.on = kind.on == engine::compute ? engine::compute : moves;
    kind.effect_count = 0;
    for (effect const& one : effects)
      kind.effects[kind.effect_count++] = one;
  };
  std::uint8_t in_use[2]{};
  for (int again = 0; again < 2; ++again) {
    auto const named = [&](char const* word) {
      return flow_word::of(word, again > 0 ? "_again" : "");
    };
    std::uint8_t const asked = add(named("weights_request"));
    std::uint8_t const whole = add(named("weights"), weights, residence::device);
    std::uint8_t const used = in_use[again] = add(named("weights_in_use"), weights);
    add_next({{makes, asked}});
    add_next({{reads, asked}, {makes, whole}});
    add_next({{reads, whole}, {makes, used}});
    add_next({{frees, whole}, {frees, used}, {makes, add(named("weights_released"))}});
  }
  std::uint8_t const whole = add("full_gradients", full_gradients, residence::device);
  std::uint8_t const collected = add("gradients_collected", full_gradients);
  std::uint8_t const asked = add("scatter_request");
  add_next({{makes, whole}, {makes, collected}});
  add_next({{frees, collected}, {makes, asked}});
  add_next({{frees, whole}, {reads, asked}, {makes, add("scattered_gradients")}});
  std::uint8_t const kept = add("weights_kept", weights);
  add_next({{makes, kept}, {makes, add("gradients_kept", full_gradients)}});
  need_whole(result, in_use[0], collected);
  result.kind_count = std::max(of.kind_count, number + later);
  return declared_with(result, data);
}

//! The same of a flow that is declared, worked out once for all schedules of it.
template <flow const& Of>
inline constexpr flow sharded_flow = shard_weights(Of);

//! Training in less memory. A forward pass may keep only its input, and `recompute` brings
//! the activation back. Or its activation goes to the host (`copy_out`) and comes back (`copy_in`),
//! by engines that work next to the compute engine. A copy back would start as soon as the copy
//! there has ended, which would save nothing: it waits for a `copy_request`, which takes no time
//! and stands among the passes.
//!
//! The input of a stage stays in its slot until it has been read for the last time, so keeping it
//! costs no copy. A template, so that only sources that use the flow work it out, once.
//! @tparam Used true; in a template it names a parameter, `(sizeof(Schedule) > 0)`.
template <bool Used = true>
inline constexpr flow frugal_training = [] {
  datum const further[]{in_pool_of(kept_activation, "working_activation"),
                        in_pool_of(made_output, "repeated_output"),
                        in_pool_of(kept_activation, "leaving_activation"),
                        {"host_activation",
                         pool(slot_class::host_activation),
                         pool(slot_class::host_activation),
                         residence::host},
                        {"request", 0, 0, residence::nowhere}};
  using enum pass_kind;
  return declared_with(
    with_kinds(
      {checkpointed_forward, recompute, offloaded_forward, copy_out, copy_in, copy_request}),
    further);
}();

[[nodiscard]] constexpr flow declare_vocabulary_training(int barriers) {
  datum const further[]{
    {"logits", pool(slot_class::logits), pool(slot_class::logits)},
    {"statistics", pool(slot_class::statistics), pool(slot_class::received_statistics)}};
  flow result = with_kinds(
    {pass_kind::embed, pass_kind::logits, pass_kind::logits_gradient, pass_kind::embed_gradient});
  result.data[made_gradient].instance = datum::per::unit; // all readers get the same
  if (barriers == 1) { // the gradient of the input comes before the statistics are exchanged
    kind_of_pass& logits = result.kinds[index_of(pass_kind::logits)];
    kind_of_pass& gradient = result.kinds[index_of(pass_kind::logits_gradient)];
    logits.effects[logits.effect_count++] = makes_gradient;
    gradient.effects[--gradient.effect_count] = {};
    gradient.calls = stage_call::backward_weight;
    gradient.is = role::weights;
  }
  return declared_with(result, further);
}

//! Training with the embedding and the output layer cut by vocabulary into one shard per
//! device. The shards at each end are a group of stages.
//!
//! `embed` looks up the rows of its shard; the first stage sums what all shards give. `logits`
//! multiplies the output of the last stage with the rows of its shard, and makes statistics that
//! all shards read before their `logits_gradient`. With two barriers that makes the gradient of the
//! last stage's output, too. With one, `logits` has made it already, but for a factor that
//! follows from the statistics, and `logits_gradient` may come late. `embed_gradient` adds to the
//! rows of its shard.
//!
//! @tparam Barriers 1 or 2.
//! @source Yeung et al., "Balancing Pipeline Parallelism with Vocabulary Parallelism", 2024,
//! sections 4 and 5.
template <int Barriers>
requires(Barriers == 1 ||
         Barriers ==
           2) inline constexpr flow vocabulary_training = declare_vocabulary_training(Barriers);

} // namespace pipelining::inline v0_3::detail
