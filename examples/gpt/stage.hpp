// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage, on any machine: consecutive layers of the GPT, with the embedding on the first
//! and the loss on the last; or, where layers are cut at their attention, as HelixPipe has them,
//! attention alone, or what lies between the attention of two layers. All that it keeps of a unit
//! lies in the slots of the plan.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "layer.hpp"
#include "parameter.hpp"
#include "text.hpp"

namespace gpt {

//! What goes to attention that another device may run, with T = attended; or the gradients of that,
//! as products read them. Stages of whole layers hand the residual on alone.
template <class Machine, class T>
struct message_to_attention {
  typename Machine::number* residual; //!< [tokens, width]
  T* query;                           //!< [tokens, heads, head dim]
  T* key_value;                       //!< [tokens, 2, key heads, head dim]

  message_to_attention(placing& in, tensor_extents const& of)
      : residual(in.take<typename Machine::number>(of.wide())), query(in.take<T>(of.queries())),
        key_value(in.take<T>(of.keys())) {}
};
//! What comes from it, or the gradients of that.
template <class Machine>
struct message_from_attention {
  typename Machine::number* residual; //!< [tokens, width]
  typename Machine::attended* output; //!< [tokens, heads, head dim]

  message_from_attention(placing& in, tensor_extents const& of)
      : residual(in.take<typename Machine::number>(of.wide())),
        output(in.take<typename Machine::attended>(of.queries())) {}
};

//! What a stage keeps of a unit from forward to the end of its backward.
template <class Machine>
struct stage_kept {
  typename Machine::attended* output = nullptr; //!< of the attention before `after`
  std::optional<mlp_kept<Machine>> after{};
  std::vector<layer_kept<Machine>> layers;
  normalised<typename Machine::number>
    norm{}; //!< of the head, or before the attention that follows

  stage_kept(placing& in, tensor_extents const& of, layer_range const& held) {
    if (held.follows_attention()) {
      output = in.take<typename Machine::attended>(of.wide());
      after.emplace(in, of);
    }
    for (auto layer = held.first; layer < held.last; ++layer)
      layers.emplace_back(in, of);
    if (held.ends || held.precedes_attention())
      norm = {in, of};
  }
};

//! What its backward_input makes for its backward_weight.
template <class Machine>
struct stage_gradients {
  std::optional<after_gradients<Machine>> after{};
  std::vector<layer_gradients<Machine>> layers;
  std::optional<before_gradients<Machine>> before{};
  typename Machine::element* logits = nullptr; //!< [tokens, vocabulary]

  stage_gradients(placing& in,
                  tensor_extents const& of,
                  layer_range const& held,
                  stage_kept<Machine> const& kept) {
    if (kept.after)
      after.emplace(in, of, *kept.after);
    for (auto const& layer : kept.layers)
      layers.emplace_back(in, of, layer);
    if (held.precedes_attention())
      before.emplace(in, of);
    if (held.ends)
      logits = in.take<typename Machine::element>(of.tokens * vocabulary);
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

//! Bytes of the slots of a stage; see buffer_sizes of the library.
//! @param own of a shard's heads
template <class Machine>
[[nodiscard]] std::int64_t stage_bytes(model_size const& size,
                                       model_size const& own,
                                       layer_range const& held,
                                       step_cut const& cut,
                                       pp::slot_class of,
                                       unit which) {
  tensor_extents const all_of{
    size, own, cut.range(which).count(), cut.chunks(which.microbatch) == 1};
  using number = typename Machine::number;
  using kept = stage_kept<Machine>;
  using from_attention = message_from_attention<Machine>;
  using enum pp::slot_class;
  bool const attends = held.part == layer_part::attention;
  auto all = slot_of<Machine>();
  switch (of) {
  case activation:
  case host_activation:
    return attends ? bytes_of<Machine, attention_kept<Machine>>(all_of)
                   : bytes_of<Machine, kept>(all_of, held);
  case weight_input:
    return attends ? 0
                   : bytes_of<Machine, stage_gradients<Machine>>(
                       all_of, held, put_in<Machine, kept>(nullptr, all_of, held));
  case output:
    if (held.precedes_attention())
      return bytes_of<gpt::message, message_to_attention<Machine, typename Machine::attended>>(
        all_of);
    if (attends)
      return bytes_of<gpt::message, from_attention>(all_of);
    break;
  case input_gradient:
    if (held.follows_attention())
      return bytes_of<gpt::message, from_attention>(all_of);
    if (attends)
      return bytes_of<gpt::message, message_to_attention<Machine, typename Machine::element>>(
        all_of);
    break;
  case sequence:
    (void)sequence_caches<typename Machine::attended>(all, own, held, cut.tokens(which.microbatch));
    return all.bytes();
  case sequence_gradient:
    (void)sequence_caches<number>(all, own, held, cut.tokens(which.microbatch));
    return all.bytes();
  default: break;
  }
  (void)all.template take<number>(all_of.wide()); // of messages, the residual
  return all.bytes();
}

template <class Machine>
struct stage_start {
  model_size size;
  layer_range held;
  step_cut cut;
  typename Machine::work* work;
  model_size own = size; //!< the shard's share of heads and hidden numbers
  int replicas = 1;      //!< of the pipeline, with other microbatches
  //! For passes that run next to others of the device; null: none do.
  typename Machine::work* beside = nullptr;
  //! Weights that stand before those of the layers, and before those that follow attention.
  std::size_t before = (held.embeds ? 2 : 0) + (held.follows_attention() ? 4 : 0);
  std::size_t after = 0;
};

//! A message that has come, which is only read.
[[nodiscard]] inline std::byte* only_read(pp::input const& in) {
  return const_cast<std::byte*>(in.data);
}

//! A stage as the library calls it. Forward passes come chunk by chunk, backward passes in the
//! order of gradient_order.
template <class Machine>
class stage {
public:
  using number = typename Machine::number;
  using attended = typename Machine::attended;
  using weight = typename Machine::weight;
  using stream = typename Machine::stream;

  //! @param parts of the model that are its weights
  stage(std::vector<tensor_part> parts, std::uint64_t seed, stage_start<Machine> const& with)
      : size_(with.size), own_(with.own), held_(with.held), cut_(with.cut),
        replicas_(with.replicas), before_(with.before),
        after_(with.after), work_{with.work, with.beside}, parts_(std::move(parts)),
        text_(held_.embeds || held_.ends ? cut_.microbatches() * (size_.sequence + 1) : 0),
        losses_(loss_count() * static_cast<std::int64_t>(sizeof(number))) {
    for (tensor_part const& part : parts_)
      weights_.emplace_back(start_of<number>(part, seed));
  }

  //! Puts the bytes to learn from where passes read them, as work of this stream.
  //! @param text [microbatches, sequence + 1]
  void set_text(std::vector<std::uint8_t> const& text, stream on) {
    if (held_.ends) // what is after a short sequence, or of the other copy, counts as nothing
      clear(losses(), loss_count(), on);
    if (!held_.embeds && !held_.ends)
      return;
    if (static_cast<std::int64_t>(text.size()) != cut_.microbatches() * (size_.sequence + 1))
      throw std::logic_error("a batch has other sequences than the model");
    Machine::copy_text(text_.data(), text, on);
  }

  struct pass {
    pp::context const* where;
    unit of;
    chunk_range chunk;
    std::int64_t tokens;
    stream on;
    typename Machine::work* work;
    layer_range held; //!< all that the stage has, or a part of it
  };
  //! @param half of a composite pass: 0, and 1 for the pass that runs next to it
  [[nodiscard]] pass begin(pp::context const& where, int half) const {
    return begin(where, unit{where.microbatch, where.chunk}, half);
  }
  void forward(pass const& p, pp::input in, pp::output out) {
    if (held_.part == layer_part::attention)
      return attention_forward(p, in, out);
    auto const kept = kept_of(p);
    number* const x = p.held.ends ? p.work->scratch().residual : numbers(out);
    if (p.held.embeds)
      embed(p, x);
    else
      copy_rows(p, x, numbers(in), size_.width);
    if (kept.after) {
      if (p.held.part == layer_part::around_attention) // else its output has been merged there
        copy_rows(p, kept.output, message<from_attention>(p, only_read(in)).output, size_.width);
      at_after(p, kept).forward(x);
    }
    layers_forward(p, kept, x);
    if (p.held.ends)
      return at_head(p, kept.norm).forward(losses_of(p), x);
    if (p.held.precedes_attention()) {
      auto const to = message<to_attention>(p, out.data);
      at_before(p, kept).forward(to.query, to.key_value, x);
    }
  }

  // The halves of a backward pass. `between` is memory for what the first has for the second.

  void input_half(pass const& p, pp::input in, pp::output out, std::byte* between) {
    if (held_.part == layer_part::attention)
      return attention_backward(p, in, out); // of some microbatches
    input_order_.check(p.of, cut_, "backward_input");
    back const now(*this, p, between);
    if (now.made.before) {
      auto const from = message<to_attention_gradient>(p, only_read(in));
      copy_rows(p, now.made.before->query, from.query, size_.width);
      copy_rows(p, now.made.before->key_value, from.key_value, 2 * size_.key_width());
    }
    run_input_half(
      now, in, out, now.made.after ? message<from_attention>(p, out.data).output : nullptr);
  }
  void weight_half(pass const& p, std::byte* between) {
    if (held_.part == layer_part::attention)
      return;
    if (own_.width == size_.width) // shards add up in the order of their table, whatever it is
      weight_order_.check(p.of, cut_, "backward_weight");
    run_weight_half(back(*this, p, between));
  }
  //! Memory of the device between the halves of one backward pass.
  [[nodiscard]] std::byte* between(pass const& p) const {
    return p.work->between(
      stage_bytes<Machine>(size_, own_, p.held, cut_, pp::slot_class::weight_input, p.of));
  }
  //! Of a slot for the unit.
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, unit which) const {
    return stage_bytes<Machine>(size_, own_, held_, cut_, of, which);
  }

  void set_cut(step_cut cut) { cut_ = std::move(cut); }
  [[nodiscard]] step_cut const& cut() const { return cut_; }

  //! What its weights are in the whole model.
  [[nodiscard]] std::vector<tensor_part> const& parts() const { return parts_; }
  //! In the order of the layers.
  [[nodiscard]] std::vector<weight>& weights() { return weights_; }
  [[nodiscard]] std::vector<weight> const& weights() const { return weights_; }
  //! Whether of that weight a shard has a part alone: gains and the ends of the model are whole.
  [[nodiscard]] bool is_cut(std::size_t which) const {
    auto const of_layers = static_cast<std::size_t>(held_.last - held_.first) * weights_of_layer;
    auto const in_layer = (which - before_) % weights_of_layer;
    return which >= before_ && which < before_ + of_layers && in_layer != 0 && in_layer != 4;
  }
  //! The sum of the losses of all tokens. @pre the step has ended. 0 but on the last stage
  [[nodiscard]] double loss_sum() const {
    return held_.ends ? Machine::sum(losses(), loss_count()) : 0.0;
  }
  //! [microbatches, sequence] on the last stage, else none.
  [[nodiscard]] number* losses() const { return reinterpret_cast<number*>(losses_.data()); }
  [[nodiscard]] std::int64_t loss_count() const {
    return held_.ends ? cut_.microbatches() * size_.sequence : 0;
  }

protected:
  using to_attention = message_to_attention<Machine, attended>;
  using to_attention_gradient = message_to_attention<Machine, typename Machine::element>;
  using from_attention = message_from_attention<Machine>;

  template <class Message>
  [[nodiscard]] Message message(pass const& p, std::byte* memory) const {
    return put_in<gpt::message, Message>(memory, extents(p));
  }
  //! Rows of the tokens of a chunk.
  template <class T>
  void copy_rows(pass const& p, T* to, T const* from, std::int64_t width) const {
    copy(to, from, p.tokens * width, p.on);
  }

  //! A pass of a unit that the context does not tell.
  [[nodiscard]] pass begin(pp::context const& where, unit of, int half = 0) const {
    auto const chunk = cut_.range(of);
    auto const on = Machine::stream_of(where);
    auto* const work = work_[half];
    work->begin(size_, chunk.count(), on);
    return {&where, of, chunk, chunk.count(), on, work, held_};
  }

  //! A backward pass, with what its stage has kept and what it makes.
  struct back {
    pass p;
    stage_kept<Machine> kept;
    stage_gradients<Machine> made;

    back(stage const& of, pass const& at, std::byte* between)
        : p(at), kept(of.kept_of(p)), made(of.gradients_of(p, kept, between)) {}
  };
  //! What follows when the gradients of query, keys and values are made, if it has these.
  //! @param of_output where the gradient of attention's output goes
  void
  run_input_half(back const& now, pp::input in, pp::output out, attended* of_output = nullptr) {
    auto const& [p, kept, made] = now;
    number* const dx = p.held.embeds ? p.work->scratch().residual : numbers(out);
    if (p.held.ends)
      at_head(p, kept.norm).backward_input(dx, made.logits, share());
    else
      copy_rows(p, dx, numbers(in), size_.width);
    if (made.before)
      at_before(p, kept).add_backward_input(dx, *made.before);
    layers_backward_input(now, dx);
    if (p.held.embeds)
      embed_backward(p, dx);
    else if (made.after)
      at_after(p, kept).backward_input(dx, of_output, *made.after);
  }
  void run_weight_half(back const& now) {
    auto const& [p, kept, made] = now;
    for (std::size_t i = 0; i < kept.layers.size(); ++i) // what has come last may still be near
      at_layer(i, p, kept).backward_weight(made.layers[i]);
    if (made.before)
      at_before(p, kept).add_backward_weight(*made.before);
    if (p.held.ends)
      at_head(p, kept.norm).backward_weight(made.logits);
    if (made.after)
      at_after(p, kept).add_backward_weight(*made.after);
  }
  // Attention alone, for whole sequences: it has no weights, so that any device may run it.

  void attention_forward(pass const& p, pp::input in, pp::output out) const {
    auto const from = message<to_attention>(p, only_read(in));
    auto const to = message<from_attention>(p, out.data);
    auto const kept = attention_of(p);
    copy_rows(p, to.residual, from.residual, size_.width);
    copy_rows(p, kept.query, from.query, size_.width);
    copy_rows(p, kept.key_value, from.key_value, 2 * size_.key_width());
    attend(attending{size_, p.chunk, p.chunk}, kept.with(kept.key_value), *p.work, p.on);
    copy_rows(p, to.output, kept.output, size_.width);
  }
  void attention_backward(pass const& p, pp::input in, pp::output out) const {
    auto const& space = p.work->scratch();
    auto const keys = p.tokens * 2 * size_.key_width();
    auto const from = message<from_attention>(p, only_read(in));
    auto const to = message<to_attention_gradient>(p, out.data);
    auto const kept = attention_of(p);
    copy_rows(p, to.residual, from.residual, size_.width);
    clear(space.key_value_gradient, keys, p.on);
    attend_backward(attending{size_, p.chunk, p.chunk},
                    kept.with(kept.key_value),
                    attention_gradients<attended, number>{
                      from.output, space.query_gradient, space.key_value_gradient},
                    *p.work,
                    p.on);
    convert(to.query, space.query_gradient, p.tokens * size_.width, p.on);
    convert(to.key_value, space.key_value_gradient, keys, p.on);
  }
  [[nodiscard]] attention_kept<Machine> attention_of(pass const& p) const {
    return put_in<Machine, attention_kept<Machine>>(p.where->activation.data, extents(p));
  }

  //! The residual x becomes the output of the last layer.
  void layers_forward(pass const& p, stage_kept<Machine> const& kept, number* x) {
    auto const caches = caches_of(p, kept);
    for (std::size_t i = 0; i < kept.layers.size(); ++i)
      at_layer(i, p, kept).forward(x, caches[i]);
  }
  //! The gradient dx of that becomes the one of the input of the first layer.
  void layers_backward_input(back const& now, number* dx) {
    auto const& [p, kept, made] = now;
    auto const caches = caches_of(p, kept);
    auto const carried = carried_of(p);
    for (std::size_t i = kept.layers.size(); i-- > 0;) {
      if (p.chunk.end == cut_.tokens(p.of.microbatch)) // the last chunk comes first
        clear(carried[i], p.chunk.end * 2 * own_.key_width(), p.on);
      at_layer(i, p, kept).backward_input(dx, made.layers[i], caches[i], carried[i]);
    }
  }

  [[nodiscard]] tensor_extents extents(pass const& p) const {
    return {size_, own_, p.tokens, cut_.chunks(p.of.microbatch) == 1};
  }
  [[nodiscard]] stage_kept<Machine> kept_of(pass const& p) const {
    return put_in<Machine, stage_kept<Machine>>(p.where->activation.data, extents(p), p.held);
  }
  [[nodiscard]] stage_gradients<Machine>
  gradients_of(pass const& p, stage_kept<Machine> const& kept, std::byte* memory) const {
    return put_in<Machine, stage_gradients<Machine>>(memory, extents(p), p.held, kept);
  }
  //! Keys and values of the sequence, layer by layer.
  [[nodiscard]] std::vector<attended*> caches_of(pass const& p,
                                                 stage_kept<Machine> const& kept) const {
    if (cut_.chunks(p.of.microbatch) > 1) {
      auto in = slot_of<Machine>(p.where->state.data);
      return sequence_caches<attended>(in, own_, p.held, cut_.tokens(p.of.microbatch));
    }
    std::vector<attended*> caches;
    for (auto const& layer : kept.layers)
      caches.push_back(layer.attention.key_value);
    return caches;
  }
  //! Their gradients: what one layer after the other uses, or what later chunks have left.
  [[nodiscard]] std::vector<number*> carried_of(pass const& p) const {
    if (cut_.chunks(p.of.microbatch) == 1) {
      return std::vector<number*>(static_cast<std::size_t>(p.held.last - p.held.first),
                                  p.work->scratch().key_value_gradient);
    }
    auto in = slot_of<Machine>(p.where->state_gradient.data);
    return sequence_caches<number>(in, own_, p.held, cut_.tokens(p.of.microbatch));
  }

  [[nodiscard]] token_rows<stream> rows(pass const& p) const {
    return {p.tokens, size_.width, p.on};
  }
  [[nodiscard]] part_pass<Machine> part(pass const& p) const {
    return {size_, own_, p.tokens, p.work, p.on};
  }
  [[nodiscard]] layer_pass<Machine>
  at_layer(std::size_t index, pass const& p, stage_kept<Machine> const& kept) {
    auto* const first = &weights_[before_ + index * weights_of_layer];
    return {part(p), first, p.chunk, kept.layers[index]};
  }
  //! What follows the attention of the layer before, and what precedes that of the next one.
  [[nodiscard]] after_attention_pass<Machine> at_after(pass const& p,
                                                       stage_kept<Machine> const& kept) {
    return {part(p), weights_.data() + after_, *kept.after, kept.output};
  }
  [[nodiscard]] before_attention_pass<Machine> at_before(pass const& p,
                                                         stage_kept<Machine> const& kept) {
    return {part(p), weights_.data() + before_, kept.norm};
  }
  [[nodiscard]] head_pass<Machine> at_head(pass const& p, normalised<number> kept) {
    auto* const last = weights_.data() + weights_.size();
    return {part(p), last - 2, last - 1, text_of(p) + 1, kept};
  }
  [[nodiscard]] number* losses_of(pass const& p) const {
    return losses() + p.of.microbatch * size_.sequence + p.chunk.begin;
  }

  //! x [tokens, width] = what the bytes of the chunk are embedded as.
  void embed(pass const& p, number* x) {
    embedding_forward(x,
                      weights_[0].values(),
                      weights_[1].values() + p.chunk.begin * size_.width,
                      text_of(p),
                      rows(p));
  }
  void embed_backward(pass const& p, number const* dx) {
    embedding_backward(weights_[0].gradients(),
                       weights_[1].gradients() + p.chunk.begin * size_.width,
                       dx,
                       text_of(p),
                       rows(p));
  }

  //! Of a token in the mean loss.
  [[nodiscard]] number share() const {
    return number{1} / static_cast<number>(cut_.tokens() * replicas_);
  }
  //! The bytes of the chunk, and after them the next one.
  [[nodiscard]] std::uint8_t const* text_of(pass const& p) const {
    return reinterpret_cast<std::uint8_t const*>(text_.data()) +
           p.of.microbatch * (size_.sequence + 1) + p.chunk.begin;
  }
  static number* numbers(pp::output const& memory) {
    return reinterpret_cast<number*>(memory.data);
  }
  static number const* numbers(pp::input const& memory) {
    return reinterpret_cast<number const*>(memory.data);
  }

  static constexpr std::size_t weights_of_layer = 7;

  model_size size_;
  model_size own_; // the shard's share of heads and hidden numbers
  layer_range held_;
  step_cut cut_;
  int replicas_;
  std::size_t before_;              // weights before those of the layers
  std::size_t after_;               // and before those that follow attention
  typename Machine::work* work_[2]; // of the device, and of what runs next to its passes
  std::vector<tensor_part> parts_;
  std::vector<weight> weights_;
  typename Machine::memory text_;   // [microbatches, sequence + 1]
  typename Machine::memory losses_; // [microbatches, sequence]
  gradient_order input_order_;
  gradient_order weight_order_;
};

//! Runs a pass, or one half of a composite one, on the stream of its context, with memory of its
//! own.
template <class Stage>
void run_half(Stage& stage, pp::pass_kind kind, pp::composite_half const& given, int half = 0) {
  using enum pp::pass_kind;
  auto const& p = stage.begin(given.where, half);
  std::byte* between = given.where.weight_input.data;
  switch (kind) {
  case forward: return stage.forward(p, given.in, given.out);
  case backward_input: return stage.input_half(p, given.in, given.out, between);
  case backward_weight: return stage.weight_half(p, between);
  case backward: // with memory that the device has for this
    between = stage.between(p);
    stage.input_half(p, given.in, given.out, between);
    return stage.weight_half(p, between);
  default: throw std::logic_error("a composite pass has halves that stages of the GPT lack");
  }
}

} // namespace gpt
