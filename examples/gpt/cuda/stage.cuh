// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage on a GPU: consecutive layers of the GPT, with the embedding on the first and the
//! loss on the last. All that it keeps of a unit lies in the slots of the plan.

#include <pipe/cuda/handles.cuh>

#include <thrust/execution_policy.h>
#include <thrust/reduce.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "layer.cuh"

namespace gpt::on_gpu {

//! What a stage keeps of a unit from forward to the end of its backward.
template <class Element>
struct stage_kept {
  std::vector<layer_kept<Element>> layers;
  std::vector<bfloat16*>
    key_values; //!< of a sequence in one chunk, else empty: see sequence_caches
  normalised head;

  stage_kept(placing& in,
             model_size const& size,
             model_size const& own,
             layer_range const& held,
             std::int64_t tokens,
             bool whole_sequence) {
    for (auto layer = held.first; layer < held.last; ++layer) {
      layers.emplace_back(in, size, own, tokens);
      if (whole_sequence)
        key_values.push_back(in.take<bfloat16>(tokens * 2 * own.key_width()));
    }
    if (held.ends)
      head = head_pass<Element>::keep(in, size, tokens);
  }
};

//! What its backward_input makes for its backward_weight.
template <class Element>
struct stage_gradients {
  std::vector<layer_gradients<Element>> layers;
  Element* logits = nullptr; //!< [tokens, vocabulary]

  stage_gradients(placing& in,
                  model_size const& size,
                  model_size const& own,
                  layer_range const& held,
                  std::int64_t tokens) {
    for (auto layer = held.first; layer < held.last; ++layer)
      layers.emplace_back(in, size, own, tokens);
    if (held.ends)
      logits = in.take<Element>(tokens * vocabulary);
  }
};

//! What it has of a sequence in chunks, layer by layer: keys and values, or their gradients.
template <class T>
[[nodiscard]] std::vector<T*>
sequence_caches(placing& in, model_size const& own, layer_range const& held, std::int64_t tokens) {
  std::vector<T*> caches;
  for (auto layer = held.first; layer < held.last; ++layer)
    caches.push_back(in.take<T>(tokens * 2 * own.key_width()));
  return caches;
}

//! Bytes of the slots that the plan of such stages needs; see buffer_sizes of the library.
template <class Element>
struct slot_sizes {
  model_size size;
  model_size own; //!< of a shard's heads
  step_cut cut;
  std::vector<layer_range> stages; //!< what each holds

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    auto const& held = stages[maker.stage];
    auto const tokens = cut.range({maker.microbatch, maker.chunk}).count();
    auto const sequence = cut.tokens(maker.microbatch);
    placing all;
    switch (of) {
    case pp::slot_class::activation:
    case pp::slot_class::host_activation:
      (void)stage_kept<Element>(all, size, own, held, tokens, cut.chunks(maker.microbatch) == 1);
      break;
    case pp::slot_class::weight_input:
      (void)stage_gradients<Element>(all, size, own, held, tokens);
      break;
    case pp::slot_class::sequence: (void)sequence_caches<bfloat16>(all, own, held, sequence); break;
    case pp::slot_class::sequence_gradient:
      (void)sequence_caches<float>(all, own, held, sequence);
      break;
    default: (void)all.take<float>(tokens * size.width); break; // messages
    }
    return all.bytes();
  }
};

template <class Element>
struct stage_start {
  model_size size;
  model_size own; //!< the shard's share of heads and hidden numbers
  layer_range held;
  step_cut cut;
  int replicas; //!< of the pipeline, with other microbatches
  device_work<Element>* work;
  device_work<Element>* beside; //!< for passes that run beside others of the device; null: none do
  std::size_t before;           //!< weights that stand before those of the layers
};

//! A stage as the library calls it. Forward passes come chunk by chunk, backward passes in the
//! order of gradient_order.
template <class Element>
class stage {
public:
  //! @param host the same stage, or shard of it, on the host, whose weights this one begins with
  template <class Host>
  stage(Host& host, stage_start<Element> const& with)
      : size_(with.size), own_(with.own), held_(with.held), cut_(with.cut),
        replicas_(with.replicas), before_(with.before), work_{with.work, with.beside},
        text_(held_.embeds || held_.ends ? cut_.microbatches() * (size_.sequence + 1) : 0),
        losses_(loss_count() * static_cast<std::int64_t>(sizeof(float))) {
    host.for_each_parameter([this](parameter<float>& p) { weights_.emplace_back(p); });
  }

  //! Puts the bytes to learn from where passes read them, as work of this stream.
  //! @param text [microbatches, sequence + 1]
  void set_text(std::vector<std::uint8_t> const& text, cudaStream_t stream) {
    if (held_.ends) // what is behind a short sequence, or of the other copy, counts as nothing
      clear(losses(), loss_count(), stream);
    if (text_.data() != nullptr) {
      cuda::check(
        cudaMemcpyAsync(text_.data(), text.data(), text.size(), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
    }
  }

  struct pass {
    pp::context const* where;
    unit of;
    chunk_range chunk;
    std::int64_t tokens;
    cudaStream_t stream;
    device_work<Element>* work;
  };
  //! @param half of a composite pass: 1 where another pass of the device runs beside it, which is 0
  [[nodiscard]] pass begin(pp::context const& where, int half) {
    unit const of{where.microbatch, where.chunk};
    auto const chunk = cut_.range(of);
    auto const stream = static_cast<cudaStream_t>(where.stream);
    auto* const work = work_[half];
    work->products.use(stream);
    return {&where, of, chunk, chunk.count(), stream, work};
  }
  void forward(pass const& p, pp::input in, pp::output out) {
    auto const kept = kept_of(p);
    float* const x = held_.ends ? p.work->scratch().residual : floats(out);
    if (held_.embeds)
      embed(p, x);
    else
      copy(x, floats(in), p.tokens * size_.width, p.stream);
    layers_forward(p, kept, x);
    if (held_.ends)
      at_head(p, kept.head).forward(losses_of(p), x);
  }
  //! Memory of the device between the halves of one backward pass.
  [[nodiscard]] static std::byte* between(pass const& p) { return p.work->between(); }

  // The halves of a backward pass. `between` is memory for what the first has for the second.

  void input_half(pass const& p, pp::input in, pp::output out, std::byte* between) {
    input_order_.check(p.of, cut_, "backward_input");
    auto const kept = kept_of(p);
    auto const made = gradients_of(p, between);
    float* const dx = held_.embeds ? p.work->scratch().residual : floats(out);
    if (held_.ends)
      at_head(p, kept.head).backward_input(dx, made.logits, share());
    else
      copy(dx, floats(in), p.tokens * size_.width, p.stream);
    layers_backward_input(p, kept, dx, made);
    if (held_.embeds)
      embed_backward(p, dx);
  }
  void weight_half(pass const& p, std::byte* between) {
    if (own_.width == size_.width) // shards add up in the order of their table, whatever it is
      weight_order_.check(p.of, cut_, "backward_weight");
    auto const kept = kept_of(p);
    auto const made = gradients_of(p, between);
    if (held_.ends)
      at_head(p, kept.head).backward_weight(made.logits);
    for (std::size_t i = kept.layers.size(); i-- > 0;)
      at_layer(i, p, kept).backward_weight(made.layers[i]);
  }

  void set_cut(step_cut cut) { cut_ = std::move(cut); }

  //! The optimizer of clipped gradients. See clipped_optimizer.
  //! @param first of the shards of the stage: the norm has what is whole on all of them from it
  void set_clipping(clipping const& how, bool first) {
    clipped_.emplace(how);
    counts_whole_ = first;
    for (auto& weight : weights_)
      if (how.early)
        weight.make_room_for_copy();
  }
  void contribute(pp::output row, cudaStream_t stream) {
    std::size_t const begin = before_;
    auto const end =
      begin + static_cast<std::size_t>(held_.last - held_.first) * layer_weights<Element>::count;
    auto const is_whole = [&](std::size_t i) {
      return i < begin || i >= end ||
             layer_weights<Element>::is_gain((i - begin) % layer_weights<Element>::count);
    };
    clipped_->contribute(
      weights_, [&](std::size_t i) { return counts_whole_ || !is_whole(i); }, row.data, stream);
  }
  void optimizer_step(pp::totals const& all, cudaStream_t stream) {
    clipped_->step(weights_, all, stream);
  }
  void roll_back(cudaStream_t stream) { clipped_->roll_back(weights_, stream); }
  [[nodiscard]] step_counts counts() const { return clipped_->counts(); }

  //! Calls with(bytes), tensor by tensor, of what the next step depends on, and puts it back.
  //! @pre nothing is under way
  template <class Visit>
  void exchange(Visit const& with) {
    for (auto& weight : weights_)
      weight.exchange(with);
    if (clipped_)
      clipped_->exchange(with);
  }

  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    for (auto& weight : weights_)
      weight.update(optimizer, step, stream);
  }

  //! In the order of the layers, as the stage on the host has them.
  [[nodiscard]] std::vector<trained<Element>> const& weights() const { return weights_; }
  //! The sum of the losses of all tokens. @pre the step has ended. 0 but on the last stage
  [[nodiscard]] double loss_sum() const {
    return held_.ends ? thrust::reduce(thrust::cuda::par, losses(), losses() + loss_count(), 0.0)
                      : 0.0;
  }
  //! [microbatches, sequence] on the last stage, else none.
  [[nodiscard]] float* losses() const { return reinterpret_cast<float*>(losses_.data()); }
  [[nodiscard]] std::int64_t loss_count() const {
    return held_.ends ? cut_.microbatches() * size_.sequence : 0;
  }

protected:
  //! The residual x becomes the output of the last layer.
  void layers_forward(pass const& p, stage_kept<Element> const& kept, float* x) {
    auto const caches = caches_of(p, kept);
    for (std::size_t i = 0; i < kept.layers.size(); ++i)
      at_layer(i, p, kept).forward(x, caches[i]);
  }
  //! The gradient dx of that becomes the one of the input of the first layer.
  void layers_backward_input(pass const& p,
                             stage_kept<Element> const& kept,
                             float* dx,
                             stage_gradients<Element> const& made) {
    auto const caches = caches_of(p, kept);
    auto const carried = carried_of(p);
    for (std::size_t i = kept.layers.size(); i-- > 0;) {
      if (p.chunk.end == cut_.tokens(p.of.microbatch)) // the last chunk comes first
        clear(carried[i], p.chunk.end * 2 * own_.key_width(), p.stream);
      at_layer(i, p, kept).backward_input(dx, made.layers[i], caches[i], carried[i]);
    }
  }

  [[nodiscard]] stage_kept<Element> kept_of(pass const& p) const {
    placing in(p.where->activation.data);
    return {in, size_, own_, held_, p.tokens, cut_.chunks(p.of.microbatch) == 1};
  }
  [[nodiscard]] stage_gradients<Element> gradients_of(pass const& p, std::byte* memory) const {
    placing in(memory);
    return {in, size_, own_, held_, p.tokens};
  }
  //! Keys and values of the sequence, layer by layer.
  [[nodiscard]] std::vector<bfloat16*> caches_of(pass const& p,
                                                 stage_kept<Element> const& kept) const {
    if (cut_.chunks(p.of.microbatch) == 1)
      return kept.key_values;
    placing in(p.where->state.data);
    return sequence_caches<bfloat16>(in, own_, held_, cut_.tokens(p.of.microbatch));
  }
  //! Their gradients: what one layer after the other uses, or what later chunks have left.
  [[nodiscard]] std::vector<float*> carried_of(pass const& p) const {
    if (cut_.chunks(p.of.microbatch) == 1) {
      return std::vector<float*>(static_cast<std::size_t>(held_.last - held_.first),
                                 p.work->scratch().key_value_gradient);
    }
    placing in(p.where->state_gradient.data);
    return sequence_caches<float>(in, own_, held_, cut_.tokens(p.of.microbatch));
  }

  [[nodiscard]] token_rows rows(pass const& p) const { return {p.tokens, size_.width, p.stream}; }
  [[nodiscard]] part_pass<Element> part(pass const& p) const {
    return {size_, own_, p.tokens, p.work, p.stream};
  }
  [[nodiscard]] layer_pass<Element>
  at_layer(std::size_t index, pass const& p, stage_kept<Element> const& kept) {
    auto* const w = &weights_[before_ + index * layer_weights<Element>::count];
    return {part(p), {w[0], w[1], w[2], w[3], w[4], w[5], w[6]}, p.chunk, kept.layers[index]};
  }
  [[nodiscard]] head_pass<Element> at_head(pass const& p, normalised kept) {
    auto const last = weights_.size();
    return {part(p), weights_[last - 2], weights_[last - 1], text_of(p) + 1, kept};
  }
  [[nodiscard]] float* losses_of(pass const& p) const {
    return losses() + p.of.microbatch * size_.sequence + p.chunk.begin;
  }

  //! x [tokens, width] = what the bytes of the chunk are embedded as.
  void embed(pass const& p, float* x) {
    embedding_forward(x,
                      weights_[0].value(),
                      weights_[1].value() + p.chunk.begin * size_.width,
                      text_of(p),
                      rows(p));
  }
  void embed_backward(pass const& p, float const* dx) {
    embedding_backward(weights_[0].gradient(),
                       weights_[1].gradient() + p.chunk.begin * size_.width,
                       dx,
                       text_of(p),
                       rows(p));
  }

  //! Of a token in the mean loss.
  [[nodiscard]] float share() const { return 1.0f / static_cast<float>(cut_.tokens() * replicas_); }
  //! The bytes of the chunk, and behind them the next one.
  [[nodiscard]] std::uint8_t const* text_of(pass const& p) const {
    return reinterpret_cast<std::uint8_t const*>(text_.data()) +
           p.of.microbatch * (size_.sequence + 1) + p.chunk.begin;
  }
  static float* floats(pp::output const& memory) { return reinterpret_cast<float*>(memory.data); }
  static float const* floats(pp::input const& memory) {
    return reinterpret_cast<float const*>(memory.data);
  }

  model_size size_;
  model_size own_; // the shard's share of heads and hidden numbers
  layer_range held_;
  step_cut cut_;
  int replicas_;
  std::size_t before_;            // weights before those of the layers
  device_work<Element>* work_[2]; // of the device, and of what runs beside its passes
  std::vector<trained<Element>> weights_;
  std::optional<clipped_optimizer> clipped_{};
  bool counts_whole_ = true;
  cuda::device_memory text_;   // [microbatches, sequence + 1]
  cuda::device_memory losses_; // [microbatches, sequence]
  gradient_order input_order_;
  gradient_order weight_order_;
};

} // namespace gpt::on_gpu
