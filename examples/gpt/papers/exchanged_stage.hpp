// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT on SlimPipeExchange: devices take over attention of each other. A stage is a part
//! of a layer for one chunk of sequences.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "../slot_sizes.hpp"

namespace gpt {

using exchange_schedule = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

//! What a chunk's attention to some keys gives, or to all.
template <class Machine>
struct attention_state {
  using attended = typename Machine::attended;
  using number = typename Machine::number;

  attended* output;    //!< [tokens, heads, head dim]
  number* log_sum_exp; //!< [heads, tokens]

  attention_state(attended* numbers, number* sums) : output(numbers), log_sum_exp(sums) {}
  attention_state(placing& in, tensor_extents const& of)
      : output(in.take<attended>(of.wide())),
        log_sum_exp(in.take<number>(of.size.heads * of.tokens)) {}

  [[nodiscard]] attention_tensors<attended, number> with(attended const* query,
                                                         attended const* key_value) const {
    return {query, key_value, output, log_sum_exp};
  }
};
//! What goes back to attention.
template <class Machine>
struct merged_message {
  typename Machine::attended* gradient; //!< of the output of all keys, [tokens, heads, head dim]
  attention_state<Machine> merged;      //!< of these

  merged_message(placing& in, tensor_extents const& of)
      : gradient(in.take<typename Machine::attended>(of.wide())), merged(in, of) {}
};
//! What goes from there to the projection of the same chunk.
template <class Machine>
struct gradients_message {
  typename Machine::attended* query;   //!< [tokens, heads, head dim]
  typename Machine::number* key_value; //!< [tokens, 2, key heads, head dim]

  gradients_message(placing& in, tensor_extents const& of)
      : query(in.take<typename Machine::attended>(of.wide())),
        key_value(in.take<typename Machine::number>(of.keys())) {}
};

//! What attention keeps of a unit, to keys that stay or to keys that were sent.
template <class Machine>
struct attending_kept {
  typename Machine::attended* query;     //!< [tokens, heads, head dim]
  typename Machine::attended* key_value; //!< [given, 2, key heads, head dim]

  attending_kept(placing& in, tensor_extents const& of, std::int64_t given)
      : query(in.take<typename Machine::attended>(of.wide())),
        key_value(in.take<typename Machine::attended>(given * 2 * of.size.key_width())) {}
};
//! What the part after attention keeps: attention's output is merged of two states.
template <class Machine>
struct following_kept : stage_kept<Machine> {
  typename Machine::number* log_sum_exp;

  following_kept(placing& in, tensor_extents const& of, layer_range const& held)
      : stage_kept<Machine>(in, of, held),
        log_sum_exp(in.take<typename Machine::number>(of.size.heads * of.tokens)) {}

  [[nodiscard]] attention_state<Machine> merged() const { return {this->output, log_sum_exp}; }
};

//! What of its layer a stage has.
[[nodiscard]] inline layer_part part_of(pp::exchange_stage const& of) {
  return of.part == pp::layer_part::projection        ? layer_part::before_attention
         : of.part == pp::layer_part::after_attention ? layer_part::after_attention
                                                      : layer_part::attention;
}
//! Whether it is attention that its device takes over for another one.
[[nodiscard]] inline bool is_taken(pp::exchange_stage const& of) {
  return of.part == pp::layer_part::taken_attention;
}

//! How stages cut the work of a step, each with a part of a layer for one chunk of sequences; and
//! bytes of the slots that their plan needs, see buffer_sizes of the library.
template <class Machine>
struct exchanged_slot_sizes {
  model_size size;
  exchange_schedule schedule;
  pp::shape extents;
  step_cut cut;

  exchanged_slot_sizes(model_size const& of, exchange_schedule const& with, pp::shape const& over)
      : size(of), schedule(with), extents(over),
        cut(over.microbatches, cut_sequence(of.sequence, with.inner.chunks)) {}

  [[nodiscard]] pp::exchange_stage stage(int which) const {
    return schedule.stage_at(extents, which);
  }
  //! The layer of a stage, with its weights where the device has these.
  [[nodiscard]] layer_range held(pp::exchange_stage const& of) const {
    std::int64_t const layer = of.layer;
    if (is_taken(of))
      return {layer, layer};
    return {layer, layer + 1, layer == 0, layer + 1 == size.layers};
  }
  //! @param reader the stage that reads it
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker, int reader = 0) const {
    auto const from = stage(maker.stage);
    switch (of) {
    case pp::slot_class::activation: return kept(from);
    case pp::slot_class::weight_input: return between(from);
    case pp::slot_class::input_gradient: return sent_back(from, stage(reader));
    default: return sent(from);
    }
  }

private:
  using part = pp::layer_part;
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  [[nodiscard]] tensor_extents tensors(pp::exchange_stage const& of) const {
    return {size, size, cut.range({0, of.chunk}).count()};
  }
  [[nodiscard]] layer_range part_held(pp::exchange_stage const& of) const {
    return held(of).of_layer(part_of(of));
  }
  [[nodiscard]] std::int64_t kept(pp::exchange_stage const& of) const {
    using attends = attending_kept<Machine>;
    auto const all = tensors(of);
    switch (of.part) {
    case part::projection: return bytes_of<Machine, stage_kept<Machine>>(all, part_held(of));
    case part::after_attention:
      return bytes_of<Machine, following_kept<Machine>>(all, part_held(of));
    default:
      return bytes_of<Machine, attends>(all, is_taken(of) ? cut.range({0, of.taken}).begin : 0);
    }
  }
  [[nodiscard]] std::int64_t between(pp::exchange_stage const& of) const {
    if (part_of(of) == layer_part::attention)
      return 0;
    auto const kept = put_in<Machine, stage_kept<Machine>>(nullptr, tensors(of), part_held(of));
    return bytes_of<Machine, stage_gradients<Machine>>(tensors(of), part_held(of), kept);
  }
  template <class T>
  [[nodiscard]] static std::int64_t bytes_of_numbers(std::int64_t count) {
    return count * static_cast<std::int64_t>(sizeof(T));
  }
  [[nodiscard]] std::int64_t sent(pp::exchange_stage const& from) const {
    auto const all = tensors(from);
    switch (from.part) {
    case part::projection:
      return bytes_of<gpt::message, message_to_attention<Machine, attended>>(all);
    case part::after_attention: return bytes_of_numbers<number>(all.wide());
    default: return bytes_of<gpt::message, attention_state<Machine>>(all);
    }
  }
  [[nodiscard]] std::int64_t sent_back(pp::exchange_stage const& from,
                                       pp::exchange_stage const& to) const {
    auto const all = tensors(from);
    switch (from.part) {
    case part::attention:
      return to.part == from.part ? 0 : bytes_of<gpt::message, gradients_message<Machine>>(all);
    case part::taken_attention:
      return to.chunk == from.chunk ? bytes_of_numbers<attended>(all.wide())
                                    : bytes_of_numbers<number>(tensors(to).keys());
    case part::after_attention:
      if (to.part != part::projection)
        return bytes_of<gpt::message, merged_message<Machine>>(all);
      [[fallthrough]];
    default: return bytes_of_numbers<number>(all.wide()); // the residual
    }
  }
};

//! A layer on the device that has its weights, with the keys and values of its sequences: all of
//! its parts but attention that another device takes over. There it has this alone.
template <class Machine>
class exchanged_layer : public stage<Machine> {
public:
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  exchanged_layer(std::uint64_t seed, stage_start<Machine> const& with)
      : stage<Machine>(parts_of(with.size, with.held), seed, of_layer(with)),
        key_value_(cached() * static_cast<std::int64_t>(sizeof(attended))),
        key_value_gradient_(cached() * static_cast<std::int64_t>(sizeof(number))) {}

  void run(pp::context const& where, pp::exchange_stage const& what) {
    pass const p = at(where, what);
    switch (part_of(what)) {
    case layer_part::before_attention: return project(p);
    case layer_part::after_attention: return follow(p);
    default: return attend_for(p, what);
    }
  }
  //! Both halves of the backward pass.
  void run_back(pp::context const& where, pp::exchange_stage const& what) {
    pass const p = at(where, what);
    switch (part_of(what)) {
    case layer_part::before_attention: return project_backward(p);
    case layer_part::after_attention: return follow_backward(p);
    default: return attend_for_backward(p, what);
    }
  }

private:
  using pass = typename stage<Machine>::pass;
  using back = typename stage<Machine>::back;
  using to_attention = typename stage<Machine>::to_attention;
  using state = attention_state<Machine>;
  using gradients = gradients_message<Machine>;
  using merged = merged_message<Machine>;

  static stage_start<Machine> of_layer(stage_start<Machine> with) {
    with.after = with.before + 3;
    return with;
  }
  //! A pass of one of the stages of this layer.
  [[nodiscard]] pass at(pp::context const& where, pp::exchange_stage const& what) const {
    auto p = this->begin(where, unit{where.microbatch, what.chunk});
    p.held = this->held_.of_layer(part_of(what));
    return p;
  }
  //! None at an end of the model.
  [[nodiscard]] static pp::input first_input(pass const& p) {
    return p.where->inputs.empty() ? pp::input() : p.where->inputs[0];
  }
  [[nodiscard]] static pp::output first_output(pass const& p) {
    return p.where->outputs.empty() ? pp::output() : p.where->outputs[0];
  }
  template <class Message>
  [[nodiscard]] Message came(pass const& p, std::size_t input) const {
    return this->template message<Message>(p, only_read(p.where->inputs[input]));
  }
  template <class Message>
  [[nodiscard]] Message goes(pass const& p, std::size_t output) const {
    return this->template message<Message>(p, p.where->outputs[output].data);
  }
  [[nodiscard]] std::int64_t narrow(pass const& p) const { return p.tokens * this->size_.width; }
  [[nodiscard]] std::int64_t keys(std::int64_t tokens) const {
    return tokens * 2 * this->size_.key_width();
  }
  [[nodiscard]] std::int64_t keys(pass const& p) const { return keys(p.tokens); }

  //! Keys and values of all sequences, where attention is at home.
  [[nodiscard]] std::int64_t cached() const {
    return (this->held_.last - this->held_.first) * this->cut_.microbatches() *
           keys(this->size_.sequence);
  }
  template <class T>
  [[nodiscard]] T* of_sequence(pass const& p, typename Machine::memory const& all) const {
    return reinterpret_cast<T*>(all.data()) + p.of.microbatch * keys(this->size_.sequence);
  }
  [[nodiscard]] attended* key_value(pass const& p) const {
    return of_sequence<attended>(p, key_value_);
  }
  [[nodiscard]] following_kept<Machine> following(pass const& p) const {
    return put_in<Machine, following_kept<Machine>>(
      p.where->activation.data, this->extents(p), p.held);
  }
  void copy_state(pass const& p, state const& to, state const& from) const {
    copy(to.output, from.output, narrow(p), p.on);
    copy(to.log_sum_exp, from.log_sum_exp, this->size_.heads * p.tokens, p.on);
  }

  void project(pass const& p) {
    this->forward(p, first_input(p), p.where->outputs[0]);
    copy(key_value(p) + keys(p.chunk.begin), goes<to_attention>(p, 0).key_value, keys(p), p.on);
  }
  void project_backward(pass const& p) {
    auto const& inputs = p.where->inputs;
    back const now(*this, p, this->between(p));
    auto const& made = *now.made.before;
    // From attention, taken attention, what follows, and the taken attention of later chunks.
    auto const stay = came<gradients>(p, 0);
    auto const* const taken = reinterpret_cast<attended const*>(inputs[1].data);
    add_up(made.query, stay.query, taken, narrow(p), p.on);
    number* const sum = p.work->scratch().key_value_gradient;
    copy(sum, stay.key_value, keys(p), p.on);
    for (std::size_t later = 3; later < inputs.size(); ++later)
      add(sum, this->numbers(inputs[later]), keys(p), p.on);
    convert(made.key_value, sum, keys(p), p.on);
    this->run_input_half(now, inputs[2], first_output(p));
    this->run_weight_half(now);
  }

  //! The keys that attention reads: those of the oldest chunks, which are given away, or the rest.
  struct seen_keys {
    attending of;
    attended* query;     //!< [tokens, heads, head dim]
    attended* key_value; //!< of the first that is seen
  };
  [[nodiscard]] seen_keys seen(pass const& p, pp::exchange_stage const& what) const {
    bool const taken = is_taken(what);
    auto const given = range(p, what.taken).begin;
    auto const kept = put_in<Machine, attending_kept<Machine>>(
      p.where->activation.data, this->extents(p), taken ? given : 0);
    // All given keys lie before the chunk, so that a causal mask keeps them.
    chunk_range const of = taken ? chunk_range{0, given} : chunk_range{given, p.chunk.end};
    return {
      {this->size_, p.chunk, of}, kept.query, taken ? kept.key_value : key_value(p) + keys(given)};
  }
  [[nodiscard]] chunk_range range(pass const& p, int chunk) const {
    return this->cut_.range({p.of.microbatch, chunk});
  }
  //! Inputs are the projections of this chunk and, of taken attention, of the oldest ones.
  void attend_for(pass const& p, pp::exchange_stage const& what) const {
    auto const to = goes<state>(p, 0);
    if (is_taken(what) && what.taken == 0) {
      clear(to.output, narrow(p), p.on);
      return fill(to.log_sum_exp,
                  this->size_.heads * p.tokens,
                  -std::numeric_limits<number>::infinity(),
                  p.on);
    }
    auto const with = seen(p, what);
    copy(with.query, came<to_attention>(p, 0).query, narrow(p), p.on);
    for (int old = 0; is_taken(what) && old < what.taken; ++old) {
      auto const of = range(p, old);
      auto const from = put_in<gpt::message, to_attention>(
        only_read(p.where->inputs[static_cast<std::size_t>(old) + 1]),
        tensor_extents{this->size_, this->size_, of.count()});
      copy(with.key_value + keys(of.begin), from.key_value, keys(of.count()), p.on);
    }
    attend(with.of, to.with(with.query, with.key_value), *p.work, p.on);
  }
  void attend_for_backward(pass const& p, pp::exchange_stage const& what) const {
    bool const taken = is_taken(what);
    auto const to = goes<gradients>(p, 0); // of taken attention that of the query alone
    if (taken && what.taken == 0)
      return clear(to.query, narrow(p), p.on);
    auto const with = seen(p, what);
    auto const from = came<merged>(p, 0);
    number* const gradient =
      taken ? p.work->scratch().key_value_gradient : of_sequence<number>(p, key_value_gradient_);
    if (taken || p.chunk.end == this->size_.sequence) // the last chunk comes first
      clear(gradient, keys(with.of.seen.end), p.on);
    attend_backward(with.of,
                    from.merged.with(with.query, with.key_value),
                    attention_gradients<attended, number>{
                      from.gradient, to.query, gradient + keys(with.of.seen.begin)},
                    *p.work,
                    p.on);
    if (!taken)
      return copy(to.key_value, gradient + keys(p.chunk.begin), keys(p), p.on);
    for (int old = 0; old < what.taken; ++old) {
      auto const of = range(p, old);
      auto const& out = p.where->outputs[static_cast<std::size_t>(old) + 1];
      copy(reinterpret_cast<number*>(out.data), gradient + keys(of.begin), keys(of.count()), p.on);
    }
  }

  void follow(pass const& p) {
    auto const kept = following(p);
    auto const taken = came<state>(p, 2);
    copy_state(p, kept.merged(), came<state>(p, 1));
    merge(
      kept.output, kept.log_sum_exp, taken.output, taken.log_sum_exp, this->size_, p.tokens, p.on);
    this->forward(p, p.where->inputs[0], first_output(p)); // begins with the residual
  }
  void follow_backward(pass const& p) {
    auto const& outputs = p.where->outputs;
    back const now(*this, p, this->between(p));
    auto const to = goes<merged>(p, 1);
    this->run_input_half(now, first_input(p), outputs[0], to.gradient);
    copy_state(p, to.merged, following(p).merged());
    copy(outputs[2].data, outputs[1].data, bytes_of<gpt::message, merged>(this->extents(p)), p.on);
    this->run_weight_half(now);
  }

  typename Machine::memory key_value_;          // [microbatches, sequence, 2, key heads, head dim]
  typename Machine::memory key_value_gradient_; // of the same shape
};

//! A stage as the library calls it. That of the first projection of a layer stands for the layer's
//! weights, too.
//! @tparam Layer an `exchanged_layer`, perhaps as trainers call it
template <class Machine, class Layer = exchanged_layer<Machine>>
class exchanged_stage {
public:
  using number = typename Machine::number;

  exchanged_stage(pp::exchange_stage const& what, std::shared_ptr<Layer> layer)
      : what_(what), layer_(std::move(layer)) {}

  [[nodiscard]] pp::context const& begin(pp::context const& where, int) { return where; }
  void forward(pp::context const& where, pp::input, pp::output) { layer_->run(where, what_); }
  //! Both halves of a backward pass.
  void input_half(pp::context const& where, pp::input, pp::output, std::byte*) {
    layer_->run_back(where, what_);
  }
  void weight_half(pp::context const&, std::byte*) {}
  [[nodiscard]] static std::byte* between(pp::context const&) { return nullptr; }

  //! The layer, where this stage stands for its weights; else null.
  [[nodiscard]] Layer* leading() const {
    bool const leads = what_.part == pp::layer_part::projection && what_.chunk == 0;
    return leads ? layer_.get() : nullptr;
  }
  [[nodiscard]] double loss_sum() const { return layer_->loss_sum(); }
  //! The mean. @pre the stage is of the last layer
  [[nodiscard]] double loss() const {
    return loss_sum() / static_cast<double>(layer_->cut().tokens());
  }

private:
  pp::exchange_stage what_;
  std::shared_ptr<Layer> layer_;
};

} // namespace gpt
