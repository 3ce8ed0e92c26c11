// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A shard of a stage that is cut tensor-parallel, on the host. Its passes go in steps, half
//! a layer each, with a sum over all shards after each step: whoever runs them can do something
//! else meanwhile.
//!
//! Every pass of a half ends with a part of [tokens, width] numbers: the sum over all shards is
//! what the whole half gives. A norm is whole on all shards, and gets the same gradient there.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../host/host_stage.hpp"

namespace gpt {

//! A pass of a shard that is under way.
struct shard_pass {
  pp::pass_kind kind{};
  pp::context where{};          //!< with the slots of the unit
  std::byte* added = nullptr;   //!< from the gradients of inputs to those of weights
  std::vector<float> numbers{}; //!< [tokens, width]: activation, or gradient
  std::vector<float> part{};    //!< [tokens, width]: this shard's part of the next sum
};

//! A shard of consecutive layers, for whole sequences. Embedding and head are whole on all shards
//! of a stage that has them.
class stage_shard : public called_on_host<stage<host_machine<float>>> {
public:
  stage_shard(model_size const& size,
              layer_range const& layers,
              std::int64_t microbatches,
              std::uint64_t seed,
              shard_of_stage which,
              host::device_work<float>& work)
      : called_on_host<stage<host_machine<float>>>(
          parts_of(size, layers, which),
          seed,
          {size,
           layers,
           step_cut(microbatches, cut_sequence(size.sequence, 1)),
           &work,
           size_of_shard(size, which)}) {}

  [[nodiscard]] std::int64_t steps() const { return 2 * (held_.last - held_.first); }

  //! @param in activation or gradient [tokens, width]; not read where there is none
  void begin(shard_pass& now, float const* in) {
    using enum pp::pass_kind;
    if (now.kind == backward_weight)
      return;
    under_way const at(*this, now);
    auto const count = static_cast<std::size_t>(rows(at.p).count());
    now.numbers.resize(count);
    now.part.resize(count);
    if (now.kind == forward && held_.embeds)
      stage::embed(at.p, now.numbers.data());
    else if (now.kind != forward && held_.ends)
      at_head(at.p, at.kept.norm).backward_input(now.numbers.data(), at.made.logits, share());
    else
      std::copy_n(in, count, now.numbers.begin());
  }

  //! A step up to its sum: `part` is what this shard gives to it. Of gradients of weights all of
  //! it.
  void compute(shard_pass& now, std::int64_t step) {
    using enum pp::pass_kind;
    if (now.kind == backward_weight)
      return add_weights(now, step);
    half_layer const half(*this, now, step);
    auto const& layer = half.layer;
    float const* const x = now.numbers.data();
    float* const part = now.part.data();
    std::fill(now.part.begin(), now.part.end(), 0.0F);
    auto const& space = half.at.p.work->scratch();
    if (now.kind == forward && half.is_mlp) {
      layer.after.mlp.forward(x, part);
    } else if (now.kind == forward) {
      layer.attention_forward(x, half.key_value());
      layer.after.projection.forward(part);
    } else if (half.is_mlp) {
      layer.after.mlp.backward_products(x, part, half.made().after);
    } else {
      layer.after.projection.backward_input(x, half.made().after.projection, space.output_gradient);
      clear(space.key_value_gradient, half.at.p.tokens * 2 * own_.key_width(), half.at.p.on);
      layer.attention_backward(half.made().before, half.key_value(), space.key_value_gradient);
      layer.before.backward_products(part, half.made().before);
    }
  }
  void join(shard_pass& now, std::int64_t step, std::vector<float> const& sum) {
    if (now.kind == pp::pass_kind::forward)
      return host::add(now.numbers.data(), sum.data(), std::ssize(sum), {});
    half_layer const half(*this, now, step);
    if (half.is_mlp)
      half.layer.after.mlp.join(now.numbers.data(), sum.data());
    else
      half.layer.before.join(now.numbers.data(), sum.data());
  }
  //! What a fused backward pass does beside a step.
  void add_weights(shard_pass& now, std::int64_t step) {
    half_layer const half(*this, now, step);
    if (half.is_mlp)
      return half.layer.after.mlp.add_backward_weight(half.made().after);
    half.layer.after.projection.add_backward_weight(half.made().after.projection);
    half.layer.before.add_backward_weight(half.made().before);
  }

  //! @param out not written where there is none
  void end(shard_pass& now, float* out) {
    using enum pp::pass_kind;
    under_way const at(*this, now);
    if (held_.ends && (now.kind == backward || now.kind == backward_weight))
      at_head(at.p, at.kept.norm).backward_weight(at.made.logits);
    if (now.kind == backward_weight)
      return;
    if (now.kind == forward && held_.ends)
      at_head(at.p, at.kept.norm).forward(losses_of(at.p), now.numbers.data());
    else if (now.kind != forward && held_.embeds)
      embed_backward(at.p, now.numbers.data());
    else
      std::copy(now.numbers.begin(), now.numbers.end(), out);
  }

private:
  struct under_way {
    pass p;
    stage_kept<host_machine<float>> kept;
    stage_gradients<host_machine<float>> made;

    under_way(stage_shard const& shard, shard_pass const& now)
        : p(shard.stage::begin(now.where, 0)), kept(shard.kept_of(p)),
          made(shard.gradients_of(p, kept, now.added)) {}
  };
  //! The half layer of a step: backwards from the last one.
  struct half_layer {
    under_way at;
    std::size_t number;
    bool is_mlp;
    layer_pass<host_machine<float>> layer;

    half_layer(stage_shard& shard, shard_pass const& now, std::int64_t step)
        : half_layer(
            shard, now, now.kind == pp::pass_kind::forward ? step : shard.steps() - 1 - step, 0) {}
    half_layer(stage_shard& shard, shard_pass const& now, std::int64_t number_of, int)
        : at(shard, now), number(static_cast<std::size_t>(number_of / 2)),
          is_mlp(number_of % 2 == 1), layer(shard.at_layer(number, at.p, at.kept)) {}
    [[nodiscard]] layer_gradients<host_machine<float>> const& made() const {
      return at.made.layers[number];
    }
    [[nodiscard]] float* key_value() const { return at.kept.layers[number].attention.key_value; }
  };
};

} // namespace gpt
