// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layers cut at their attention, as HelixPipe has them, on a GPU: attention alone, which
//! any device may run since it has no weights, and what lies between the attention of two layers.
//! For whole sequences. See helix.hpp.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "../cuda/stage.cuh"

namespace gpt::on_gpu {

//! A message that has come, which is read alone.
[[nodiscard]] inline std::byte* read_alone(pp::input const& in) {
  return const_cast<std::byte*>(in.data);
}

//! What goes to attention, with T = bfloat16; or the gradients of that, as products read them.
template <class T>
struct message_to_attention {
  placing in;
  float* residual; //!< [tokens, width]
  T* query;        //!< [tokens, heads, head dim]
  T* key_value;    //!< [tokens, 2, key heads, head dim]

  message_to_attention(std::byte* memory, model_size const& size, std::int64_t tokens)
      : in(memory, 1), residual(in.take<float>(tokens * size.width)),
        query(in.take<T>(tokens * size.width)),
        key_value(in.take<T>(tokens * 2 * size.key_width())) {}
};
//! What comes from it, or the gradients of that.
struct message_from_attention {
  placing in;
  float* residual;  //!< [tokens, width]
  bfloat16* output; //!< [tokens, heads, head dim]

  message_from_attention(std::byte* memory, model_size const& size, std::int64_t tokens)
      : in(memory, 1), residual(in.take<float>(tokens * size.width)),
        output(in.take<bfloat16>(tokens * size.width)) {}
};

//! What attention alone keeps of a unit.
struct lone_attention_kept {
  attention_kept attention;
  bfloat16* key_value; //!< [tokens, 2, key heads, head dim]

  lone_attention_kept(placing& in, model_size const& size, std::int64_t tokens)
      : attention(in, size, tokens), key_value(in.take<bfloat16>(tokens * 2 * size.key_width())) {}
};
//! What is kept around attention. Before the first layer and behind the last one a part is missing.
template <class Element>
struct around_kept {
  bfloat16* output = nullptr; //!< of attention
  std::optional<after_kept<Element>> after{};
  normalised before{};
  normalised head{};

  around_kept(placing& in, model_size const& size, layer_range const& held, std::int64_t tokens) {
    if (!held.embeds) {
      output = in.take<bfloat16>(tokens * size.width);
      after.emplace(in, size, size, tokens);
    }
    auto& norm = held.ends ? head : before;
    norm = {in.take<float>(tokens * size.width), in.take<float>(tokens)};
  }
};
//! What backward_input leaves for backward_weight around attention.
template <class Element>
struct around_gradients {
  std::optional<after_gradients<Element>> after{};
  std::optional<before_gradients<Element>> before{};
  Element* logits = nullptr; //!< [tokens, vocabulary]

  around_gradients(placing& in,
                   model_size const& size,
                   layer_range const& held,
                   std::int64_t tokens) {
    if (!held.embeds)
      after.emplace(in, size, size, tokens);
    if (held.ends)
      logits = in.take<Element>(tokens * vocabulary);
    else
      before.emplace(in, size, tokens);
  }
};

//! Bytes of the slots that the plan of such stages needs; see buffer_sizes of the library.
template <class Element>
struct helix_slot_sizes {
  model_size size;
  step_cut cut;
  std::vector<layer_range> stages; //!< what each holds

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    auto const& held = stages[maker.stage];
    auto const tokens = cut.range({maker.microbatch, maker.chunk}).count();
    bool const attends = held.part == layer_part::attention;
    placing all;
    switch (of) {
    case pp::slot_class::activation:
    case pp::slot_class::host_activation:
      if (attends)
        (void)lone_attention_kept(all, size, tokens);
      else
        (void)around_kept<Element>(all, size, held, tokens);
      break;
    case pp::slot_class::weight_input:
      if (!attends)
        (void)around_gradients<Element>(all, size, held, tokens);
      break;
    case pp::slot_class::output:
      return attends ? message_from_attention(nullptr, size, tokens).in.bytes()
                     : message_to_attention<bfloat16>(nullptr, size, tokens).in.bytes();
    case pp::slot_class::input_gradient:
      return attends ? message_to_attention<Element>(nullptr, size, tokens).in.bytes()
                     : message_from_attention(nullptr, size, tokens).in.bytes();
    default: break;
    }
    return all.bytes();
  }
};

//! A stage as the library calls it.
template <class Element>
class helix_stage : public stage<Element> {
public:
  using stage<Element>::stage;

  using pass = typename stage<Element>::pass;

  void forward(pass const& p, pp::input in, pp::output out) {
    attends() ? attend(p, in, out) : around_forward(p, in, out);
  }
  void input_half(pass const& p, pp::input in, pp::output out, std::byte* between) {
    if (attends()) // of some of the microbatches
      return attend_backward(p, in, out);
    this->input_order_.check(p.of, this->cut_, "backward_input");
    auto const& held = this->held_;
    auto const& size = this->size_;
    auto const kept = around_of(p);
    auto const made = gradients_of(p, between);
    auto const to = message<from_attention>(p, out);
    float* const dx = held.embeds ? p.work->scratch().residual : to.residual;
    if (held.ends) {
      this->at_head(p, kept.head).backward_input(dx, made.logits, this->share());
    } else {
      auto const from = message<to_attention_gradient>(p, in);
      pass_on(p, dx, from.residual);
      pass_on(p, made.before->query, from.query, size.width);
      pass_on(p, made.before->key_value, from.key_value, 2 * size.key_width());
      before(p, kept).add_backward_input(dx, *made.before);
    }
    if (held.embeds)
      this->embed_backward(p, dx);
    else
      after(p, kept).backward_input(dx, to.output, *made.after);
  }
  void weight_half(pass const& p, std::byte* between) {
    if (attends())
      return;
    this->weight_order_.check(p.of, this->cut_, "backward_weight");
    auto const& held = this->held_;
    auto const kept = around_of(p);
    auto const made = gradients_of(p, between);
    if (held.ends)
      this->at_head(p, kept.head).backward_weight(made.logits);
    else
      before(p, kept).add_backward_weight(*made.before);
    if (!held.embeds)
      after(p, kept).add_backward_weight(*made.after);
  }

private:
  using to_attention = message_to_attention<bfloat16>;
  using to_attention_gradient = message_to_attention<Element>;
  using from_attention = message_from_attention;

  [[nodiscard]] bool attends() const { return this->held_.part == layer_part::attention; }
  template <class Message>
  [[nodiscard]] Message message(pass const& p, pp::input const& in) const {
    return {read_alone(in), this->size_, p.tokens};
  }
  template <class Message>
  [[nodiscard]] Message message(pass const& p, pp::output const& out) const {
    return {out.data, this->size_, p.tokens};
  }
  void pass_on(pass const& p, float* to, float const* residual) const {
    copy(to, residual, p.tokens * this->size_.width, p.stream);
  }
  template <class T>
  void pass_on(pass const& p, T* to, T const* from, std::int64_t width) const {
    copy_bytes(to, from, static_cast<std::size_t>(p.tokens * width) * sizeof(T), p.stream);
  }

  void attend(pass const& p, pp::input in, pp::output out) const {
    auto const& size = this->size_;
    auto const from = message<to_attention>(p, in);
    auto const to = message<from_attention>(p, out);
    auto const kept = attention_of(p);
    pass_on(p, to.residual, from.residual);
    pass_on(p, kept.attention.query, from.query, size.width);
    pass_on(p, kept.key_value, from.key_value, 2 * size.key_width());
    attention_call(size, p.chunk).forward(kept.attention.with(kept.key_value), p.stream);
    pass_on(p, to.output, kept.attention.output, size.width);
  }
  void attend_backward(pass const& p, pp::input in, pp::output out) const {
    auto const& size = this->size_;
    auto const& space = p.work->scratch();
    auto const keys = p.tokens * 2 * size.key_width();
    auto const from = message<from_attention>(p, in);
    auto const to = message<to_attention_gradient>(p, out);
    auto const kept = attention_of(p);
    pass_on(p, to.residual, from.residual);
    clear(space.key_value_gradient, keys, p.stream);
    attention_call(size, p.chunk)
      .backward(kept.attention.with(kept.key_value),
                attention_gradients<bfloat16, float>{
                  from.output, space.query_gradient, space.key_value_gradient},
                space.of_attention,
                p.stream);
    convert(to.query, space.query_gradient, p.tokens * size.width, p.stream);
    convert(to.key_value, space.key_value_gradient, keys, p.stream);
  }

  void around_forward(pass const& p, pp::input in, pp::output out) {
    auto const& held = this->held_;
    auto const kept = around_of(p);
    auto const to = message<to_attention>(p, out);
    float* const x = held.ends ? p.work->scratch().residual : to.residual;
    if (held.embeds) {
      this->embed(p, x);
    } else {
      auto const from = message<from_attention>(p, in);
      pass_on(p, x, from.residual);
      pass_on(p, kept.output, from.output, this->size_.width);
      after(p, kept).forward(x);
    }
    if (held.ends)
      this->at_head(p, kept.head).forward(this->losses_of(p), x);
    else
      before(p, kept).forward(to.query, to.key_value, x);
  }
  [[nodiscard]] lone_attention_kept attention_of(pass const& p) const {
    placing in(p.where->activation.data);
    return {in, this->size_, p.tokens};
  }
  [[nodiscard]] around_kept<Element> around_of(pass const& p) const {
    placing in(p.where->activation.data);
    return {in, this->size_, this->held_, p.tokens};
  }
  [[nodiscard]] around_gradients<Element> gradients_of(pass const& p, std::byte* memory) const {
    placing in(memory);
    return {in, this->size_, this->held_, p.tokens};
  }

  [[nodiscard]] after_attention_pass<Element> after(pass const& p,
                                                    around_kept<Element> const& kept) {
    auto* const w = this->weights_.data();
    return {this->part(p), w[0], w[1], w[2], w[3], *kept.after, kept.output};
  }
  [[nodiscard]] before_attention_pass<Element> before(pass const& p,
                                                      around_kept<Element> const& kept) {
    auto* const w = this->weights_.data() + (this->held_.embeds ? 2 : 4);
    return {this->part(p), w[0], w[1], w[2], kept.before};
  }
};

} // namespace gpt::on_gpu
