// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT on SlimPipeExchange, on a GPU: devices take over attention of each other. A stage
//! is a part of a layer for one chunk of sequences. See attention_exchange.hpp.

#include <pipe/attention/merge.cuh>
#include <pipe/cuda/handles.cuh>

#include <thrust/fill.h>
#include <thrust/transform.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "helix_stage.cuh"

namespace gpt::on_gpu {

//! What a chunk's attention to some keys gives, or to all.
struct attention_state {
  bfloat16* output;   //!< [tokens, heads, head dim]
  float* log_sum_exp; //!< [heads, tokens]

  attention_state(placing& in, model_size const& size, std::int64_t tokens)
      : output(in.take<bfloat16>(tokens * size.width)),
        log_sum_exp(in.take<float>(size.heads * tokens)) {}

  [[nodiscard]] attention_tensors<bfloat16, float> with(bfloat16 const* query,
                                                        bfloat16 const* key_value) const {
    return {query, key_value, output, log_sum_exp};
  }
};
struct state_message {
  placing in;
  attention_state state;

  state_message(std::byte* memory, model_size const& size, std::int64_t tokens)
      : in(memory, 1), state(in, size, tokens) {}
};
//! What goes back to attention.
struct merged_message {
  placing in;
  bfloat16* gradient;     //!< of the output of all keys, [tokens, heads, head dim]
  attention_state merged; //!< of these

  merged_message(std::byte* memory, model_size const& size, std::int64_t tokens)
      : in(memory, 1), gradient(in.take<bfloat16>(tokens * size.width)), merged(in, size, tokens) {}
};
//! What goes from there to the projection of the same chunk.
struct gradients_message {
  placing in;
  bfloat16* query;  //!< [tokens, heads, head dim]
  float* key_value; //!< [tokens, 2, key heads, head dim]

  gradients_message(std::byte* memory, model_size const& size, std::int64_t tokens)
      : in(memory, 1), query(in.take<bfloat16>(tokens * size.width)),
        key_value(in.take<float>(tokens * 2 * size.key_width())) {}
};

//! What attention keeps of a unit, to keys that stay or to keys that were sent.
struct attending_kept {
  bfloat16* query;     //!< [tokens, heads, head dim]
  bfloat16* key_value; //!< [given, 2, key heads, head dim]

  attending_kept(placing& in, model_size const& size, std::int64_t tokens, std::int64_t given)
      : query(in.take<bfloat16>(tokens * size.width)),
        key_value(in.take<bfloat16>(given * 2 * size.key_width())) {}
};
//! What the part behind attention keeps, with the head where it ends the model.
template <class Element>
struct following_kept {
  attention_state merged;
  after_kept<Element> after;
  normalised head{};

  following_kept(placing& in, model_size const& size, bool ends, std::int64_t tokens)
      : merged(in, size, tokens), after(in, size, size, tokens) {
    if (ends)
      head = head_pass<Element>::keep(in, size, tokens);
  }
};
//! What its backward uses for the gradients of weights.
template <class Element>
struct following_gradients {
  after_gradients<Element> after;
  Element* logits = nullptr; //!< [tokens, vocabulary]

  following_gradients(placing& in, model_size const& size, bool ends, std::int64_t tokens)
      : after(in, size, size, tokens) {
    if (ends)
      logits = in.take<Element>(tokens * vocabulary);
  }
};

//! Bytes of the slots that the plan of such stages needs; see buffer_sizes of the library.
template <class Element>
struct exchanged_slot_sizes : exchange_cut {
  using exchange_cut::exchange_cut;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    auto const from = stage(maker.stage);
    switch (of) {
    case pp::slot_class::activation: return kept(from);
    case pp::slot_class::weight_input: return between(from);
    default: return sent(from);
    }
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker, int reader) const {
    return of == pp::slot_class::input_gradient ? sent_back(stage(maker.stage), stage(reader))
                                                : bytes(of, maker);
  }

private:
  using part = pp::layer_part;
  [[nodiscard]] bool ends(pp::exchange_stage const& of) const {
    return of.layer + 1 == size.layers;
  }
  [[nodiscard]] std::int64_t kept(pp::exchange_stage const& of) const {
    placing all;
    switch (of.part) {
    case part::projection: (void)head_pass<Element>::keep(all, size, tokens(of)); break; // a norm
    case part::attention: (void)attending_kept(all, size, tokens(of), 0); break;
    case part::taken_attention:
      (void)attending_kept(all, size, tokens(of), given(of).count());
      break;
    case part::after_attention:
      (void)following_kept<Element>(all, size, ends(of), tokens(of));
      break;
    }
    return all.bytes();
  }
  [[nodiscard]] std::int64_t between(pp::exchange_stage const& of) const {
    placing all;
    if (of.part == part::projection)
      (void)before_gradients<Element>(all, size, tokens(of));
    else if (of.part == part::after_attention)
      (void)following_gradients<Element>(all, size, ends(of), tokens(of));
    return all.bytes();
  }
  [[nodiscard]] std::int64_t residual(pp::exchange_stage const& of) const {
    return tokens(of) * size.width * static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] std::int64_t sent(pp::exchange_stage const& from) const {
    switch (from.part) {
    case part::projection:
      return message_to_attention<bfloat16>(nullptr, size, tokens(from)).in.bytes();
    case part::after_attention: return residual(from);
    default: return state_message(nullptr, size, tokens(from)).in.bytes();
    }
  }
  [[nodiscard]] std::int64_t sent_back(pp::exchange_stage const& from,
                                       pp::exchange_stage const& to) const {
    auto const half = static_cast<std::int64_t>(sizeof(bfloat16));
    switch (from.part) {
    case part::projection: return residual(from);
    case part::attention:
      return to.part == from.part ? 0 : gradients_message(nullptr, size, tokens(from)).in.bytes();
    case part::taken_attention:
      return to.chunk == from.chunk
               ? tokens(from) * size.width * half
               : tokens(to) * 2 * size.key_width() * static_cast<std::int64_t>(sizeof(float));
    case part::after_attention:
      return to.part == part::projection ? residual(from)
                                         : merged_message(nullptr, size, tokens(from)).in.bytes();
    }
    return 0;
  }
};

//! A layer on the device that has its weights, with the keys and values of its sequences: all of
//! its parts but attention that another device takes over.
template <class Element>
class exchanged_layer : public stage<Element> {
public:
  //! @param host the same layer on the host, whose weights this one begins with
  template <class Host>
  exchanged_layer(Host& host, stage_start<Element> const& with)
      : stage<Element>(host, with),
        key_value_(numbers() * static_cast<std::int64_t>(sizeof(bfloat16))),
        key_value_gradient_(numbers() * static_cast<std::int64_t>(sizeof(float))) {}

  void project(pp::context const& where, int chunk) {
    pass const p = at(where, chunk);
    message_to_attention<bfloat16> const to(where.outputs[0].data, this->size_, p.tokens);
    if (this->held_.embeds)
      this->embed(p, to.residual);
    else
      copy(to.residual, floats_at(where.inputs[0]), narrow(p), p.stream);
    before(p).forward(to.query, to.key_value, to.residual);
    copy_bytes(key_value(p) + p.chunk.begin * width_of_keys(),
               to.key_value,
               static_cast<std::size_t>(keys(p)) * sizeof(bfloat16),
               p.stream);
  }
  void project_backward(pp::context const& where, int chunk) {
    pass const p = at(where, chunk);
    auto const& space = p.work->scratch();
    // From attention, taken attention, what follows, and the taken attention of later chunks.
    gradients_message const stay(read_alone(where.inputs[0]), this->size_, p.tokens);
    auto const* const taken = reinterpret_cast<bfloat16 const*>(where.inputs[1].data);
    placing in(p.work->between());
    before_gradients<Element> const made(in, this->size_, p.tokens);
    thrust::transform(on(p.stream),
                      stay.query,
                      stay.query + narrow(p),
                      taken,
                      made.query,
                      [] __device__(bfloat16 a, bfloat16 b) {
                        return static_cast<Element>(static_cast<float>(a) + static_cast<float>(b));
                      });
    float* const sum = space.key_value_gradient;
    copy(sum, stay.key_value, keys(p), p.stream);
    for (std::size_t later = 3; later < where.inputs.size(); ++later)
      add(sum, floats_at(where.inputs[later]), keys(p), p.stream);
    convert(made.key_value, sum, keys(p), p.stream);
    bool const embeds = this->held_.embeds;
    float* const dx = embeds ? space.residual : this->floats(where.outputs[0]);
    copy(dx, floats_at(where.inputs[2]), narrow(p), p.stream);
    before(p).add_backward_input(dx, made);
    before(p).add_backward_weight(made);
    if (embeds)
      this->embed_backward(p, dx);
  }

  //! @param given tokens whose keys are given away, the oldest ones
  void attend(pp::context const& where, int chunk, std::int64_t given) {
    pass const p = at(where, chunk);
    message_to_attention<bfloat16> const from(read_alone(where.inputs[0]), this->size_, p.tokens);
    state_message const to(where.outputs[0].data, this->size_, p.tokens);
    bfloat16* const query = query_of(p);
    copy_bytes(query, from.query, static_cast<std::size_t>(narrow(p)) * sizeof(bfloat16), p.stream);
    attention_call(this->size_, p.chunk, {given, p.chunk.end})
      .forward(to.state.with(query, key_value(p) + given * width_of_keys()), p.stream);
  }
  void attend_backward(pp::context const& where, int chunk, std::int64_t given) {
    pass const p = at(where, chunk);
    merged_message const from(read_alone(where.inputs[0]), this->size_, p.tokens);
    gradients_message const to(where.outputs[0].data, this->size_, p.tokens);
    float* const gradient = key_value_gradient(p);
    if (p.chunk.end == this->size_.sequence) // the last chunk comes first
      clear(gradient, p.chunk.end * width_of_keys(), p.stream);
    attention_call(this->size_, p.chunk, {given, p.chunk.end})
      .backward(from.merged.with(query_of(p), key_value(p) + given * width_of_keys()),
                attention_gradients<bfloat16, float>{
                  from.gradient, to.query, gradient + given * width_of_keys()},
                p.work->scratch().of_attention,
                p.stream);
    copy(to.key_value, gradient + p.chunk.begin * width_of_keys(), keys(p), p.stream);
  }

  void follow(pp::context const& where, int chunk) {
    pass const p = at(where, chunk);
    auto const kept = following(p);
    auto const& size = this->size_;
    state_message const stay(read_alone(where.inputs[1]), size, p.tokens);
    state_message const taken(read_alone(where.inputs[2]), size, p.tokens);
    copy_state(p, kept.merged, stay.state);
    with_head_dim(size.head_dim(), [&](auto dim) {
      auto const output = [&](auto* of) {
        return attention::dense_tensor(of, 1, p.tokens, size.heads, size.head_dim());
      };
      attention::merge_on_device<dim.value, bfloat16>(
        output(kept.merged.output),
        attention::dense_rows(kept.merged.log_sum_exp, 1, size.heads, p.tokens),
        output(static_cast<bfloat16 const*>(taken.state.output)),
        attention::dense_rows<float const>(taken.state.log_sum_exp, 1, size.heads, p.tokens),
        p.stream);
    });
    bool const ends = this->held_.ends;
    float* const y = ends ? p.work->scratch().residual : this->floats(where.outputs[0]);
    copy(y, floats_at(where.inputs[0]), narrow(p), p.stream); // begins with the residual
    after(p, kept).forward(y);
    if (ends)
      this->at_head(p, kept.head).forward(this->losses_of(p), y);
  }
  void follow_backward(pp::context const& where, int chunk) {
    pass const p = at(where, chunk);
    auto const kept = following(p);
    bool const ends = this->held_.ends;
    placing in(p.work->between());
    following_gradients<Element> const made(in, this->size_, ends, p.tokens);
    float* const dx = this->floats(where.outputs[0]);
    if (ends)
      this->at_head(p, kept.head).backward_input(dx, made.logits, this->share());
    else
      copy(dx, floats_at(where.inputs[0]), narrow(p), p.stream);
    merged_message const to(where.outputs[1].data, this->size_, p.tokens);
    after(p, kept).backward_input(dx, to.gradient, made.after);
    copy_state(p, to.merged, kept.merged);
    copy_bytes(where.outputs[2].data,
               where.outputs[1].data,
               static_cast<std::size_t>(to.in.bytes()),
               p.stream);
    if (ends)
      this->at_head(p, kept.head).backward_weight(made.logits);
    after(p, kept).add_backward_weight(made.after);
  }

private:
  using pass = typename stage<Element>::pass;

  //! A pass of one of the stages of this layer.
  [[nodiscard]] pass at(pp::context const& where, int chunk) const {
    unit const of{where.microbatch, chunk};
    auto const range = this->cut_.range(of);
    auto const stream = static_cast<cudaStream_t>(where.stream);
    this->work_[0]->products.use(stream);
    return {&where, of, range, range.count(), stream, this->work_[0]};
  }
  static float const* floats_at(pp::input const& in) {
    return reinterpret_cast<float const*>(in.data);
  }
  [[nodiscard]] std::int64_t narrow(pass const& p) const { return p.tokens * this->size_.width; }
  [[nodiscard]] std::int64_t width_of_keys() const { return 2 * this->size_.key_width(); }
  [[nodiscard]] std::int64_t keys(pass const& p) const { return p.tokens * width_of_keys(); }

  //! Keys and values of all sequences.
  [[nodiscard]] std::int64_t numbers() const {
    return this->cut_.microbatches() * this->size_.sequence * width_of_keys();
  }
  [[nodiscard]] std::int64_t begin_of(pass const& p) const {
    return p.of.microbatch * this->size_.sequence * width_of_keys();
  }
  [[nodiscard]] bfloat16* key_value(pass const& p) const {
    return reinterpret_cast<bfloat16*>(key_value_.data()) + begin_of(p);
  }
  [[nodiscard]] float* key_value_gradient(pass const& p) const {
    return reinterpret_cast<float*>(key_value_gradient_.data()) + begin_of(p);
  }

  [[nodiscard]] bfloat16* query_of(pass const& p) const {
    placing in(p.where->activation.data);
    return attending_kept(in, this->size_, p.tokens, 0).query;
  }
  [[nodiscard]] following_kept<Element> following(pass const& p) const {
    placing in(p.where->activation.data);
    return {in, this->size_, this->held_.ends, p.tokens};
  }
  void copy_state(pass const& p, attention_state const& to, attention_state const& from) const {
    copy_bytes(
      to.output, from.output, static_cast<std::size_t>(narrow(p)) * sizeof(bfloat16), p.stream);
    copy(to.log_sum_exp, from.log_sum_exp, this->size_.heads * p.tokens, p.stream);
  }

  [[nodiscard]] before_attention_pass<Element> before(pass const& p) {
    placing in(p.where->activation.data);
    auto* const w = this->weights_.data() + this->before_;
    return {this->part(p), w[0], w[1], w[2], head_pass<Element>::keep(in, this->size_, p.tokens)};
  }
  [[nodiscard]] after_attention_pass<Element> after(pass const& p,
                                                    following_kept<Element> const& kept) {
    auto* const w = this->weights_.data() + this->before_ + 3;
    return {this->part(p), w[0], w[1], w[2], w[3], kept.after, kept.merged.output};
  }

  cuda::device_memory key_value_;          // [microbatches, sequence, 2, key heads, head dim]
  cuda::device_memory key_value_gradient_; // of the same shape, in float
};

//! A stage as the library calls it. That of the first projection of a layer stands for the layer's
//! weights, too.
template <class Element>
class exchanged_stage {
public:
  //! @param layer null where attention is taken over, which wants nothing of it
  //! @param work of the device that runs the stage
  exchanged_stage(exchanged_slot_sizes<Element> sizes,
                  int number,
                  std::shared_ptr<exchanged_layer<Element>> layer,
                  device_work<Element>& work)
      : sizes_(std::move(sizes)), what_(sizes_.stage(number)), layer_(std::move(layer)),
        work_(&work) {}

  [[nodiscard]] pp::context const& begin(pp::context const& where, int) { return where; }
  void forward(pp::context const& where, pp::input, pp::output) {
    using enum pp::layer_part;
    switch (what_.part) {
    case projection: return layer_->project(where, what_.chunk);
    case attention: return layer_->attend(where, what_.chunk, given().count());
    case taken_attention: return take(where);
    case after_attention: return layer_->follow(where, what_.chunk);
    }
  }
  //! Both halves of a backward pass.
  void input_half(pp::context const& where, pp::input, pp::output, std::byte*) {
    using enum pp::layer_part;
    switch (what_.part) {
    case projection: return layer_->project_backward(where, what_.chunk);
    case attention: return layer_->attend_backward(where, what_.chunk, given().count());
    case taken_attention: return take_backward(where);
    case after_attention: return layer_->follow_backward(where, what_.chunk);
    }
  }
  void weight_half(pp::context const&, std::byte*) {}
  [[nodiscard]] static std::byte* between(pp::context const&) { return nullptr; }

  //! The layer, where this stage stands for its weights; else null.
  [[nodiscard]] exchanged_layer<Element>* leading() const {
    bool const leads = what_.part == pp::layer_part::projection && what_.chunk == 0;
    return leads ? layer_.get() : nullptr;
  }
  [[nodiscard]] double loss_sum() const { return layer_ == nullptr ? 0.0 : layer_->loss_sum(); }

private:
  [[nodiscard]] chunk_range chunk() const { return sizes_.range(what_.chunk); }
  [[nodiscard]] chunk_range given() const { return sizes_.given(what_); }
  [[nodiscard]] std::int64_t narrow() const { return chunk().count() * sizes_.size.width; }
  [[nodiscard]] std::int64_t keys(std::int64_t tokens) const {
    return tokens * 2 * sizes_.size.key_width();
  }
  [[nodiscard]] attending_kept kept(pp::context const& where) const {
    placing in(where.activation.data);
    return {in, sizes_.size, chunk().count(), given().count()};
  }
  //! All given keys lie before the chunk, so that a causal mask keeps them.
  [[nodiscard]] attention_call call() const { return {sizes_.size, chunk(), given()}; }

  //! Inputs are the projections of this chunk and of the oldest ones.
  void take(pp::context const& where) const {
    auto const stream = static_cast<cudaStream_t>(where.stream);
    state_message const to(where.outputs[0].data, sizes_.size, chunk().count());
    auto const bytes = static_cast<std::size_t>(narrow()) * sizeof(bfloat16);
    if (what_.taken == 0) {
      clear(to.state.output, narrow(), stream);
      thrust::fill_n(on(stream),
                     to.state.log_sum_exp,
                     sizes_.size.heads * chunk().count(),
                     -std::numeric_limits<float>::infinity());
      return;
    }
    auto const mine = kept(where);
    auto const projected = [&](std::size_t input, std::int64_t tokens) {
      return message_to_attention<bfloat16>(read_alone(where.inputs[input]), sizes_.size, tokens);
    };
    copy_bytes(mine.query, projected(0, chunk().count()).query, bytes, stream);
    for (int old = 0; old < what_.taken; ++old) {
      auto const of = sizes_.range(old);
      copy_bytes(mine.key_value + keys(of.begin),
                 projected(static_cast<std::size_t>(old) + 1, of.count()).key_value,
                 static_cast<std::size_t>(keys(of.count())) * sizeof(bfloat16),
                 stream);
    }
    call().forward(to.state.with(mine.query, mine.key_value), stream);
  }
  void take_backward(pp::context const& where) const {
    auto const stream = static_cast<cudaStream_t>(where.stream);
    auto* const query_gradient = reinterpret_cast<bfloat16*>(where.outputs[0].data);
    if (what_.taken == 0)
      return clear(query_gradient, narrow(), stream);
    auto const mine = kept(where);
    merged_message const from(read_alone(where.inputs[0]), sizes_.size, chunk().count());
    float* const gradient = work_->scratch().key_value_gradient;
    clear(gradient, keys(given().count()), stream);
    call().backward(from.merged.with(mine.query, mine.key_value),
                    attention_gradients<bfloat16, float>{from.gradient, query_gradient, gradient},
                    work_->scratch().of_attention,
                    stream);
    for (int old = 0; old < what_.taken; ++old) {
      auto const of = sizes_.range(old);
      copy(reinterpret_cast<float*>(where.outputs[static_cast<std::size_t>(old) + 1].data),
           gradient + keys(of.begin),
           keys(of.count()),
           stream);
    }
  }

  exchanged_slot_sizes<Element> sizes_;
  pp::exchange_stage what_;
  std::shared_ptr<exchanged_layer<Element>> layer_;
  device_work<Element>* work_;
};

} // namespace gpt::on_gpu
