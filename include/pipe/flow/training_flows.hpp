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

//! A kind that a flow gets from another one: without its letter where a kind of the flow has that.
[[nodiscard]] constexpr kind_of_pass lettered(flow const& declared, kind_of_pass kind) noexcept {
  if (std::ranges::count(declared.kinds, kind.letter, &kind_of_pass::letter) > 0)
    kind.letter = '\0';
  return kind;
}

//! Declares what sharded weights add to a flow.
class weight_shards {
public:
  constexpr weight_shards(flow const& of, int later, engine moves) : later_(later), moves_(moves) {
    for (int i = 0; i < of.data_count; ++i)
      add(of.data[i]);
    for (int i = 0; i < flow::most_kinds; ++i)
      flow_.kinds[i] = of.kinds[i];
    flow_.kind_count = std::max(of.kind_count, index_of(pass_kind::keep_weights) + later + 1);
  }
  [[nodiscard]] constexpr flow run() {
    std::uint8_t const in_use = add_visits("", pass_kind::request_weights);
    add_visits("_again", pass_kind::request_weights_again);
    std::uint8_t const collecting = add_gradients();
    add_kept();
    for (kind_of_pass& kind : flow_.kinds) {
      if (!kind.exists() || kind.in_groups)
        continue;
      if (reads_weights(kind))
        add(kind, {does::needs, in_use});
      if (touches_gradients(flow_, static_cast<pass_kind>(&kind - flow_.kinds)))
        add(kind, {does::needs, collecting});
    }
    resolve(flow_);
    return flow_;
  }

private:
  constexpr std::uint8_t add(datum const& one) {
    if (flow_.data_count == flow::most_data)
      throw std::invalid_argument("shard_weights: the flow has too many data");
    flow_.data[flow_.data_count] = one;
    return static_cast<std::uint8_t>(flow_.data_count++);
  }
  constexpr void add(kind_of_pass& to, effect const& one) {
    if (to.effect_count == kind_of_pass::most_effects)
      throw std::invalid_argument("shard_weights: a kind of the flow has too many effects");
    to.effects[to.effect_count++] = one;
  }
  constexpr void add(pass_kind named, std::initializer_list<effect> effects) {
    kind_of_pass& kind = flow_.kinds[index_of(named) + later_];
    if (kind.exists())
      throw std::invalid_argument("shard_weights: the weights of the flow are sharded already");
    kind = lettered(flow_, training_kind(named));
    kind.on = kind.on == engine::compute ? engine::compute : moves_;
    for (effect const& one : effects)
      add(kind, one);
  }
  //! A datum of a pool whose slots, if any, are of a class.
  [[nodiscard]] static constexpr datum
  datum_in(slot_class of, flow_word const& word, residence lives) noexcept {
    return {word, pool(of), pool(of), lives};
  }

  //! The four kinds of a visit. @return what passes need: that weights are in use
  constexpr std::uint8_t add_visits(char const* end, pass_kind first) {
    constexpr residence nowhere = residence::nowhere;
    constexpr slot_class weights = slot_class::weights;
    auto const named = [end](char const* word) { return flow_word::of(word, end); };
    std::uint8_t const asked = add(datum_in(weights, named("weights_request"), nowhere));
    std::uint8_t const whole = add(datum_in(weights, named("weights"), residence::device));
    flow_.data[asked].pool = 0; // only what is in use counts as being there
    std::uint8_t const in_use = add(datum_in(weights, named("weights_in_use"), nowhere));
    std::uint8_t const done = add({named("weights_released"), 0, 0, nowhere});
    auto const at = [first](int number) {
      return static_cast<pass_kind>(index_of(first) + number);
    };
    add(at(0), {{does::makes, asked}});
    add(at(1), {{does::reads, asked}, {does::makes, whole}});
    add(at(2), {{does::reads, whole}, {does::makes, in_use}});
    add(at(3), {{does::frees, whole}, {does::frees, in_use}, {does::makes, done}});
    return in_use;
  }

  //! The three kinds that collect gradients and scatter them. @return what passes need: that
  //! gradients are being collected
  constexpr std::uint8_t add_gradients() {
    constexpr residence nowhere = residence::nowhere;
    constexpr slot_class gradients = slot_class::full_gradients;
    std::uint8_t const whole = add(datum_in(gradients, "full_gradients", residence::device));
    std::uint8_t const collecting = add(datum_in(gradients, "gradients_collected", nowhere));
    std::uint8_t const asked = add({"scatter_request", 0, 0, nowhere});
    std::uint8_t const scattered = add({"scattered_gradients", 0, 0, nowhere});
    add(pass_kind::collect_gradients, {{does::makes, whole}, {does::makes, collecting}});
    add(pass_kind::request_scatter, {{does::frees, collecting}, {does::makes, asked}});
    add(pass_kind::scatter_gradients,
        {{does::frees, whole}, {does::reads, asked}, {does::makes, scattered}});
    return collecting;
  }

  //! The kind that says of a stage that its weights and gradients are there throughout.
  constexpr void add_kept() {
    constexpr residence nowhere = residence::nowhere;
    std::uint8_t const weights = add(datum_in(slot_class::weights, "weights_kept", nowhere));
    std::uint8_t const sums = add(datum_in(slot_class::full_gradients, "gradients_kept", nowhere));
    add(pass_kind::keep_weights, {{does::makes, weights}, {does::makes, sums}});
  }

  flow flow_;
  int later_;
  engine moves_;
};

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
  return weight_shards(of, later, moves).run();
}

//! Training in less memory. A forward pass may keep only its input, and `recompute` brings
//! the activation back. Or its activation goes to the host (`copy_out`) and comes back (`copy_in`),
//! by engines that work next to the compute engine. A copy back would start as soon as the copy
//! there has ended, which would save nothing: it waits for a `copy_request`, which takes no time
//! and stands among the passes.
//!
//! The input of a stage stays in its slot until it has been read for the last time, so keeping it
//! costs no copy.
inline constexpr flow frugal_training = [] {
  datum const further[]{in_pool_of(kept_activation, "working_activation"),
                        in_pool_of(made_output, "repeated_output"),
                        in_pool_of(kept_activation, "leaving_activation"),
                        {"host_activation",
                         pool(slot_class::host_activation),
                         pool(slot_class::host_activation),
                         residence::host},
                        {"request", 0, 0, residence::nowhere}};
  return declared_with(with_kinds({pass_kind::forward,
                                   pass_kind::backward,
                                   pass_kind::backward_input,
                                   pass_kind::backward_weight,
                                   pass_kind::checkpointed_forward,
                                   pass_kind::recompute,
                                   pass_kind::offloaded_forward,
                                   pass_kind::copy_out,
                                   pass_kind::copy_in,
                                   pass_kind::copy_request}),
                       further);
}();

[[nodiscard]] constexpr flow declare_vocabulary_training(int barriers) {
  datum const further[]{
    {"logits", pool(slot_class::logits), pool(slot_class::logits)},
    {"statistics", pool(slot_class::statistics), pool(slot_class::received_statistics)}};
  flow result = with_kinds({pass_kind::forward,
                            pass_kind::backward,
                            pass_kind::backward_input,
                            pass_kind::backward_weight,
                            pass_kind::embed,
                            pass_kind::logits,
                            pass_kind::logits_gradient,
                            pass_kind::embed_gradient});
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

//! Training with sharded weights; other flows of training are made by `shard_weights`, too.
inline constexpr flow sharded_training = shard_weights(training);

} // namespace pipelining::inline v0_3::detail
