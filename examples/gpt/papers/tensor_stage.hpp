// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A shard of a stage that is cut tensor-parallel, on the host. Its passes go in steps, half
//! a layer each, with a sum over all shards after each step; braided passes hide each other's sums.
//! How the shards reach each other, on threads or as processes, is a parameter.
//!
//! Every pass of a half ends with a part of [tokens, width] numbers: the sum over all shards is
//! what the whole half gives. A norm is whole on all shards, and gets the same gradient there.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../host/host_stage.hpp"
#include "../stages.hpp"

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
class stage_shard : public trained_on_host<stage<host_machine<float>>> {
public:
  stage_shard(model_size const& size,
              layer_range const& layers,
              std::int64_t microbatches,
              std::uint64_t seed,
              shard_of_stage which,
              host::device_work<float>& work)
      : trained_on_host<stage<host_machine<float>>>(
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
  //! What a fused backward pass does next to a step.
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
  struct under_way : back {
    under_way(stage_shard const& shard, shard_pass const& now)
        : back(shard, shard.stage::begin(now.where, 0), now.added) {}
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

//! Sums of a device in a step.
struct sum_counts {
  std::int64_t made = 0;
  std::int64_t exposed = 0; //!< waited for with nothing done since they were begun
  //! Passes all of whose sums were exposed.
  std::int64_t exposed_passes = 0;
};

//! A device of the pipeline of one shard. It adds up parts with the same device in the pipelines of
//! all shards. A sum has two ends, and at most two are under way.
struct shard_device {
  std::function<std::size_t(std::vector<float> const&)> begin_sum{}; //!< returns which one it is
  std::function<void(std::size_t, std::vector<float>&)> end_sum{};   //!< waits for it
  host::device_work<float> work_space{};
  std::int64_t work = 0; //!< pieces of passes so far
  sum_counts counts{};
};

//! A pass of a shard as part of a program: in pieces, each with the wait for the sum before it.
class woven_pass {
public:
  woven_pass(stage_shard& shard,
             shard_device& at,
             pp::pass_kind kind,
             pp::composite_half const& given,
             std::vector<std::byte>& room)
      : shard_(&shard), at_(&at) {
    now_.kind = kind;
    now_.where = given.where;
    now_.added = kind == pp::pass_kind::backward ? room.data() : given.where.weight_input.data;
    out_ = given.out.as<float>().data();
    shard.begin(now_, given.in.as<float>().data());
  }

  //! One piece: what waits for the last sum, then the next step up to its sum, which begins.
  //! Returns false when that was all.
  bool advance() {
    if (under_way_) {
      if (at_->work == work_)
        ++exposed_; // nobody has done anything meanwhile
      at_->end_sum(number_, sum_);
      shard_->join(now_, next_ - 1, sum_);
      under_way_ = false;
    }
    if (next_ == shard_->steps()) {
      finish();
      return false;
    }
    shard_->compute(now_, next_);
    ++at_->work;
    if (now_.kind != pp::pass_kind::backward_weight) {
      number_ = at_->begin_sum(now_.part);
      work_ = at_->work;
      under_way_ = true;
    }
    if (now_.kind == pp::pass_kind::backward) {
      shard_->add_weights(now_, next_); // which its own sum waits for
      ++at_->work;
    }
    ++next_;
    return true;
  }

private:
  void finish() {
    shard_->end(now_, out_);
    ++at_->work;
    bool const sums = now_.kind != pp::pass_kind::backward_weight;
    at_->counts.made += sums ? shard_->steps() : 0;
    at_->counts.exposed += exposed_;
    at_->counts.exposed_passes += sums && exposed_ == shard_->steps() && exposed_ > 0 ? 1 : 0;
  }

  stage_shard* shard_;
  shard_device* at_;
  shard_pass now_;
  float* out_;
  std::int64_t next_ = 0;
  bool under_way_ = false;
  std::size_t number_ = 0; // of the sum under way
  std::int64_t work_ = 0;  // when it began
  std::int64_t exposed_ = 0;
  std::vector<float> sum_;
};

//! A stage of the pipeline of one shard, as the library calls it.
class tensor_stage : public stage_shard {
public:
  //! @param at must outlive this
  tensor_stage(model_size const& size,
               layer_range const& layers,
               std::int64_t microbatches,
               std::uint64_t seed,
               shard_of_stage which,
               shard_device& at)
      : stage_shard(size, layers, microbatches, seed, which, at.work_space), at_(&at),
        room_(static_cast<std::size_t>(bytes(pp::slot_class::weight_input, {}))) {}

  //! A pass with nothing next to it.
  void run_half(pp::pass_kind kind, pp::composite_half const& given, int) {
    woven_pass now(*this, *at_, kind, given, room_);
    while (now.advance()) {
    }
  }
  //! Two passes of the device in turn, piece by piece: each runs while the sum of the other is
  //! made.
  void braid(pp::pass_kind kind,
             pp::composite_half const& given,
             pp::pass_kind other_kind,
             pp::composite_half const& other_half,
             tensor_stage& other) {
    woven_pass first(*this, *at_, kind, given, room_);
    woven_pass second(other, *other.at_, other_kind, other_half, other.room_);
    for (bool one = true, two = true; one || two;) {
      one = one && first.advance();
      two = two && second.advance();
    }
  }

private:
  shard_device* at_;
  std::vector<std::byte> room_; // of a fused backward pass
};

//! What the slots of such stages take: messages are whole on every shard.
[[nodiscard]] inline sizes_of_plan shard_slots(model_size const& size, shard_of_stage which) {
  return [=](pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    static constexpr named_pool shown[] = {{"activations", pp::slot_class::activation},
                                           {"for weights", pp::slot_class::weight_input}};
    stage_slot_sizes<host_machine<float>> sizes{
      size,
      cut_for(table, lengths),
      cut_layers(size.layers, table.over.extents.stages()),
      size_of_shard(size, which)};
    return plan_sizes(std::move(sizes), shown);
  };
}

//! A shard of every stage, or of those of a device.
//! @param devices all, or the only one
[[nodiscard]] inline stages_by_way<tensor_stage> make_shards(model_size const& size,
                                                             shard_of_stage which,
                                                             pp::timetable_view table,
                                                             std::uint64_t seed,
                                                             std::span<shard_device> devices,
                                                             std::optional<int> only = {}) {
  auto const held = cut_layers(size.layers, table.over.extents.stages());
  return make_by_way<tensor_stage>(table, only, [&](std::size_t, int number, int device) {
    return std::make_unique<tensor_stage>(size,
                                          held[static_cast<std::size_t>(number)],
                                          table.over.extents.microbatches,
                                          seed,
                                          which,
                                          devices[only ? 0 : static_cast<std::size_t>(device)]);
  });
}

} // namespace gpt
