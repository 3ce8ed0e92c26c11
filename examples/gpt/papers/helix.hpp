// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layers cut at their attention, as HelixPipe has them: attention alone, which any device
//! may run since it has no weights, and what lies between the attention of two layers. For whole
//! sequences.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../stage.hpp"

namespace gpt {

//! What goes to attention, with T = attended; or the gradients of that, as products read them.
template <class Machine, class T>
struct message_to_attention {
  typename Machine::number* residual; //!< [tokens, width]
  T* query;                           //!< [tokens, heads, head dim]
  T* key_value;                       //!< [tokens, 2, key heads, head dim]

  message_to_attention(placing& in, model_size const& size, std::int64_t tokens)
      : residual(in.take<typename Machine::number>(tokens * size.width)),
        query(in.take<T>(tokens * size.width)),
        key_value(in.take<T>(tokens * 2 * size.key_width())) {}
};
//! What comes from it, or the gradients of that.
template <class Machine>
struct message_from_attention {
  typename Machine::number* residual; //!< [tokens, width]
  typename Machine::attended* output; //!< [tokens, heads, head dim]

  message_from_attention(placing& in, model_size const& size, std::int64_t tokens)
      : residual(in.take<typename Machine::number>(tokens * size.width)),
        output(in.take<typename Machine::attended>(tokens * size.width)) {}
};

//! What is kept around attention. Before the first layer and behind the last one a part is missing.
template <class Machine>
struct around_kept {
  typename Machine::attended* output = nullptr; //!< of attention
  std::optional<mlp_kept<Machine>> after{};
  normalised<typename Machine::number> norm; //!< of the head, or before attention

  around_kept(placing& in, model_size const& size, layer_range const& held, std::int64_t tokens) {
    if (!held.embeds) {
      output = in.take<typename Machine::attended>(tokens * size.width);
      after.emplace(in, size, size, tokens);
    }
    norm = {in, size, tokens};
  }
};
//! What backward_input leaves for backward_weight around attention.
template <class Machine>
struct around_gradients {
  std::optional<after_gradients<Machine>> after{};
  std::optional<before_gradients<Machine>> before{};
  typename Machine::element* logits = nullptr; //!< [tokens, vocabulary]

  around_gradients(placing& in,
                   model_size const& size,
                   layer_range const& held,
                   std::int64_t tokens,
                   around_kept<Machine> const& kept) {
    if (!held.embeds)
      after.emplace(in, size, size, tokens, *kept.after);
    if (held.ends)
      logits = in.take<typename Machine::element>(tokens * vocabulary);
    else
      before.emplace(in, size, tokens);
  }
};

//! Bytes of the slots of a stage of whole layers, or of what layers cut at their attention have
//! instead.
template <class Machine>
[[nodiscard]] std::int64_t part_bytes(model_size const& size,
                                      model_size const& own,
                                      layer_range const& held,
                                      step_cut const& cut,
                                      pp::slot_class of,
                                      unit which) {
  using to_attention = message_to_attention<Machine, typename Machine::attended>;
  using to_attention_gradient = message_to_attention<Machine, typename Machine::element>;
  using from_attention = message_from_attention<Machine>;
  if (held.part == layer_part::whole)
    return stage_bytes<Machine>(size, own, held, cut, of, which);
  auto const tokens = cut.range(which).count();
  bool const attends = held.part == layer_part::attention;
  using around = around_kept<Machine>;
  using enum pp::slot_class;
  switch (of) {
  case activation:
  case host_activation:
    return attends ? bytes_of<Machine, attention_kept<Machine>>(size, tokens, true)
                   : bytes_of<Machine, around>(size, held, tokens);
  case weight_input:
    return attends ? 0
                   : bytes_of<Machine, around_gradients<Machine>>(
                       size, held, tokens, put_in<Machine, around>(nullptr, size, held, tokens));
  case output:
    return attends ? message_bytes<from_attention>(size, tokens)
                   : message_bytes<to_attention>(size, tokens);
  case input_gradient:
    return attends ? message_bytes<to_attention_gradient>(size, tokens)
                   : message_bytes<from_attention>(size, tokens);
  default: return 0;
  }
}

//! A stage as the library calls it, of whole layers or of what layers cut at their attention have
//! instead.
template <class Machine>
class part_stage : public stage<Machine> {
public:
  using stage<Machine>::stage;

  using number = typename Machine::number;
  using attended = typename Machine::attended;
  using pass = typename stage<Machine>::pass;

  void forward(pass const& p, pp::input in, pp::output out) {
    switch (this->held_.part) {
    case layer_part::whole: return stage<Machine>::forward(p, in, out);
    case layer_part::attention: return attention_forward(p, in, out);
    case layer_part::around_attention: return around_forward(p, in, out);
    }
  }
  void input_half(pass const& p, pp::input in, pp::output out, std::byte* between) {
    switch (this->held_.part) {
    case layer_part::whole: return stage<Machine>::input_half(p, in, out, between);
    case layer_part::attention: return attention_backward(p, in, out); // of some microbatches
    case layer_part::around_attention: return around_backward(p, in, out, between);
    }
  }
  void weight_half(pass const& p, std::byte* between) {
    auto const& held = this->held_;
    if (held.part == layer_part::whole)
      return stage<Machine>::weight_half(p, between);
    if (held.part == layer_part::attention)
      return;
    this->weight_order_.check(p.of, this->cut_, "backward_weight");
    auto const kept = around_of(p);
    auto const made = around_gradients_of(p, kept, between);
    if (held.ends)
      this->at_head(p, kept.norm).backward_weight(made.logits);
    else
      before(p, kept).add_backward_weight(*made.before);
    if (!held.embeds)
      after(p, kept).add_backward_weight(*made.after);
  }
  [[nodiscard]] std::byte* between(pass const& p) const {
    return p.work->between(bytes(pp::slot_class::weight_input, p.of));
  }
  //! Of a slot for the unit.
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, unit which) const {
    return part_bytes<Machine>(this->size_, this->own_, this->held_, this->cut_, of, which);
  }

private:
  using to_attention = message_to_attention<Machine, attended>;
  using to_attention_gradient = message_to_attention<Machine, typename Machine::element>;
  using from_attention = message_from_attention<Machine>;

  template <class Message>
  [[nodiscard]] Message message(pass const& p, std::byte* memory) const {
    return in_message<Message>(memory, this->size_, p.tokens);
  }
  template <class T>
  void pass_on(pass const& p, T* to, T const* from, std::int64_t width) const {
    copy(to, from, p.tokens * width, p.on);
  }

  void attention_forward(pass const& p, pp::input in, pp::output out) const {
    auto const& size = this->size_;
    auto const from = message<to_attention>(p, only_read(in));
    auto const to = message<from_attention>(p, out.data);
    auto const kept = attention_of(p);
    pass_on(p, to.residual, from.residual, size.width);
    pass_on(p, kept.query, from.query, size.width);
    pass_on(p, kept.key_value, from.key_value, 2 * size.key_width());
    attend(attending{size, p.chunk, p.chunk}, kept.with(kept.key_value), *p.work, p.on);
    pass_on(p, to.output, kept.output, size.width);
  }
  void attention_backward(pass const& p, pp::input in, pp::output out) const {
    auto const& size = this->size_;
    auto const& space = p.work->scratch();
    auto const keys = p.tokens * 2 * size.key_width();
    auto const from = message<from_attention>(p, only_read(in));
    auto const to = message<to_attention_gradient>(p, out.data);
    auto const kept = attention_of(p);
    pass_on(p, to.residual, from.residual, size.width);
    clear(space.key_value_gradient, keys, p.on);
    attend_backward(attending{size, p.chunk, p.chunk},
                    kept.with(kept.key_value),
                    attention_gradients<attended, number>{
                      from.output, space.query_gradient, space.key_value_gradient},
                    *p.work,
                    p.on);
    convert(to.query, space.query_gradient, p.tokens * size.width, p.on);
    convert(to.key_value, space.key_value_gradient, keys, p.on);
  }

  void around_forward(pass const& p, pp::input in, pp::output out) {
    auto const& held = this->held_;
    auto const kept = around_of(p);
    auto const to = message<to_attention>(p, out.data);
    number* const x = held.ends ? p.work->scratch().residual : to.residual;
    if (held.embeds) {
      this->embed(p, x);
    } else {
      auto const from = message<from_attention>(p, only_read(in));
      pass_on(p, x, from.residual, this->size_.width);
      pass_on(p, kept.output, from.output, this->size_.width);
      after(p, kept).forward(x);
    }
    if (held.ends)
      this->at_head(p, kept.norm).forward(this->losses_of(p), x);
    else
      before(p, kept).forward(to.query, to.key_value, x);
  }
  void around_backward(pass const& p, pp::input in, pp::output out, std::byte* between) {
    this->input_order_.check(p.of, this->cut_, "backward_input");
    auto const& held = this->held_;
    auto const& size = this->size_;
    auto const kept = around_of(p);
    auto const made = around_gradients_of(p, kept, between);
    auto const to = message<from_attention>(p, out.data);
    number* const dx = held.embeds ? p.work->scratch().residual : to.residual;
    if (held.ends) {
      this->at_head(p, kept.norm).backward_input(dx, made.logits, this->share());
    } else {
      auto const from = message<to_attention_gradient>(p, only_read(in));
      pass_on(p, dx, from.residual, size.width);
      pass_on(p, made.before->query, from.query, size.width);
      pass_on(p, made.before->key_value, from.key_value, 2 * size.key_width());
      before(p, kept).add_backward_input(dx, *made.before);
    }
    if (held.embeds)
      this->embed_backward(p, dx);
    else
      after(p, kept).backward_input(dx, to.output, *made.after);
  }

  [[nodiscard]] attention_kept<Machine> attention_of(pass const& p) const {
    return put_in<Machine, attention_kept<Machine>>(
      p.where->activation.data, this->size_, p.tokens, true);
  }
  [[nodiscard]] around_kept<Machine> around_of(pass const& p) const {
    return put_in<Machine, around_kept<Machine>>(
      p.where->activation.data, this->size_, this->held_, p.tokens);
  }
  [[nodiscard]] around_gradients<Machine>
  around_gradients_of(pass const& p, around_kept<Machine> const& kept, std::byte* memory) const {
    return put_in<Machine, around_gradients<Machine>>(
      memory, this->size_, this->held_, p.tokens, kept);
  }

  [[nodiscard]] after_attention_pass<Machine> after(pass const& p,
                                                    around_kept<Machine> const& kept) {
    return {this->part(p), this->weights_.data(), *kept.after, kept.output};
  }
  [[nodiscard]] before_attention_pass<Machine> before(pass const& p,
                                                      around_kept<Machine> const& kept) {
    return {this->part(p), this->weights_.data() + (this->held_.embeds ? 2 : 4), kept.norm};
  }
};

} // namespace gpt
