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

//! A part of a layer for one chunk of sequences in every stage.
struct exchange_cut {
  model_size size;
  exchange_schedule schedule;
  pp::shape extents;
  std::vector<chunk_range> chunks;

  exchange_cut(model_size const& of, exchange_schedule const& with, pp::shape const& over)
      : size(of), schedule(with), extents(over),
        chunks(cut_sequence(of.sequence, with.inner.chunks)) {}

  [[nodiscard]] pp::exchange_stage stage(int number) const {
    return schedule.stage_at(extents, number);
  }
  [[nodiscard]] chunk_range range(int chunk) const {
    return chunks[static_cast<std::size_t>(chunk)];
  }
  //! The oldest tokens, whose keys are given away.
  [[nodiscard]] chunk_range given(pp::exchange_stage const& of) const {
    return {0, range(of.taken).begin};
  }
  [[nodiscard]] std::int64_t tokens(pp::exchange_stage const& of) const {
    return range(of.chunk).count();
  }
  [[nodiscard]] tensor_extents tensors(pp::exchange_stage const& of) const {
    return {size, size, tokens(of)};
  }
  [[nodiscard]] layer_range held(std::int64_t layer) const {
    return {layer, layer + 1, layer == 0, layer + 1 == size.layers};
  }
  //! What a stage before or after attention has of it.
  [[nodiscard]] layer_range held(pp::exchange_stage const& of) const {
    return held(of.layer).of_layer(of.part == pp::layer_part::projection
                                     ? layer_part::before_attention
                                     : layer_part::after_attention);
  }
};

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

//! Bytes of the slots that the plan of such stages needs; see buffer_sizes of the library.
template <class Machine>
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

  //! Of a layer on the device that has its weights.
  [[nodiscard]] stage_start<Machine> start(layer_range const& held,
                                           typename Machine::work& work) const {
    return {size, held, step_cut(extents.microbatches, chunks), &work};
  }

private:
  using part = pp::layer_part;
  using number = typename Machine::number;
  using attended = typename Machine::attended;
  [[nodiscard]] std::int64_t kept(pp::exchange_stage const& of) const {
    using attends = attending_kept<Machine>;
    switch (of.part) {
    case part::projection: return bytes_of<Machine, stage_kept<Machine>>(tensors(of), held(of));
    case part::attention: return bytes_of<Machine, attends>(tensors(of), 0);
    case part::taken_attention: return bytes_of<Machine, attends>(tensors(of), given(of).count());
    case part::after_attention:
      return bytes_of<Machine, following_kept<Machine>>(tensors(of), held(of));
    }
    return 0;
  }
  [[nodiscard]] std::int64_t between(pp::exchange_stage const& of) const {
    if (of.part != part::projection && of.part != part::after_attention)
      return 0;
    auto const kept = put_in<Machine, stage_kept<Machine>>(nullptr, tensors(of), held(of));
    return bytes_of<Machine, stage_gradients<Machine>>(tensors(of), held(of), kept);
  }
  [[nodiscard]] std::int64_t residual(pp::exchange_stage const& of) const {
    return tokens(of) * size.width * static_cast<std::int64_t>(sizeof(number));
  }
  [[nodiscard]] std::int64_t sent(pp::exchange_stage const& from) const {
    switch (from.part) {
    case part::projection:
      return bytes_of<gpt::message, message_to_attention<Machine, attended>>(tensors(from));
    case part::after_attention: return residual(from);
    default: return bytes_of<gpt::message, attention_state<Machine>>(tensors(from));
    }
  }
  [[nodiscard]] std::int64_t sent_back(pp::exchange_stage const& from,
                                       pp::exchange_stage const& to) const {
    auto const half = static_cast<std::int64_t>(sizeof(attended));
    switch (from.part) {
    case part::projection: return residual(from);
    case part::attention:
      return to.part == from.part
               ? 0
               : bytes_of<gpt::message, gradients_message<Machine>>(tensors(from));
    case part::taken_attention:
      return to.chunk == from.chunk
               ? tokens(from) * size.width * half
               : tokens(to) * 2 * size.key_width() * static_cast<std::int64_t>(sizeof(number));
    case part::after_attention:
      return to.part == part::projection
               ? residual(from)
               : bytes_of<gpt::message, merged_message<Machine>>(tensors(from));
    }
    return 0;
  }
};

//! A layer on the device that has its weights, with the keys and values of its sequences: all of
//! its parts but attention that another device takes over.
template <class Machine>
class exchanged_layer : public stage<Machine> {
public:
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  exchanged_layer(std::uint64_t seed, stage_start<Machine> const& with)
      : stage<Machine>(parts_of(with.size, with.held), seed, of_layer(with)),
        key_value_(cached() * static_cast<std::int64_t>(sizeof(attended))),
        key_value_gradient_(cached() * static_cast<std::int64_t>(sizeof(number))) {}

  void project(pp::context const& where, int chunk) {
    pass const p = at(where, chunk, layer_part::before_attention);
    this->forward(p, first_input(p), where.outputs[0]);
    auto const to = this->template message<to_attention>(p, where.outputs[0].data);
    copy(key_value(p) + p.chunk.begin * width_of_keys(), to.key_value, keys(p), p.on);
  }
  void project_backward(pp::context const& where, int chunk) {
    pass const p = at(where, chunk, layer_part::before_attention);
    back const now(*this, p, this->between(p));
    auto const& made = *now.made.before;
    // From attention, taken attention, what follows, and the taken attention of later chunks.
    auto const stay =
      this->template message<gradients_message<Machine>>(p, only_read(where.inputs[0]));
    auto const* const taken = reinterpret_cast<attended const*>(where.inputs[1].data);
    add_up(made.query, stay.query, taken, narrow(p), p.on);
    number* const sum = p.work->scratch().key_value_gradient;
    copy(sum, stay.key_value, keys(p), p.on);
    for (std::size_t later = 3; later < where.inputs.size(); ++later)
      add(sum, this->numbers(where.inputs[later]), keys(p), p.on);
    convert(made.key_value, sum, keys(p), p.on);
    this->run_input_half(now, where.inputs[2], first_output(p));
    this->run_weight_half(now);
  }

  //! @param given tokens whose keys are given away, the oldest ones
  void attend_own(pp::context const& where, int chunk, std::int64_t given) {
    pass const p = at(where, chunk, layer_part::attention);
    auto const from = this->template message<to_attention>(p, only_read(where.inputs[0]));
    auto const to = this->template message<attention_state<Machine>>(p, where.outputs[0].data);
    attended* const query = query_of(p);
    copy(query, from.query, narrow(p), p.on);
    attend(attending{this->size_, p.chunk, {given, p.chunk.end}},
           to.with(query, key_value(p) + given * width_of_keys()),
           *p.work,
           p.on);
  }
  void attend_own_backward(pp::context const& where, int chunk, std::int64_t given) {
    pass const p = at(where, chunk, layer_part::attention);
    auto const from =
      this->template message<merged_message<Machine>>(p, only_read(where.inputs[0]));
    auto const to = this->template message<gradients_message<Machine>>(p, where.outputs[0].data);
    number* const gradient = key_value_gradient(p);
    if (p.chunk.end == this->size_.sequence) // the last chunk comes first
      clear(gradient, p.chunk.end * width_of_keys(), p.on);
    attend_backward(attending{this->size_, p.chunk, {given, p.chunk.end}},
                    from.merged.with(query_of(p), key_value(p) + given * width_of_keys()),
                    attention_gradients<attended, number>{
                      from.gradient, to.query, gradient + given * width_of_keys()},
                    *p.work,
                    p.on);
    copy(to.key_value, gradient + p.chunk.begin * width_of_keys(), keys(p), p.on);
  }

  void follow(pp::context const& where, int chunk) {
    pass const p = at(where, chunk, layer_part::after_attention);
    auto const kept = following(p);
    auto const stay =
      this->template message<attention_state<Machine>>(p, only_read(where.inputs[1]));
    auto const taken =
      this->template message<attention_state<Machine>>(p, only_read(where.inputs[2]));
    copy_state(p, kept.merged(), stay);
    merge(
      kept.output, kept.log_sum_exp, taken.output, taken.log_sum_exp, this->size_, p.tokens, p.on);
    this->forward(p, where.inputs[0], first_output(p)); // begins with the residual
  }
  void follow_backward(pp::context const& where, int chunk) {
    pass const p = at(where, chunk, layer_part::after_attention);
    back const now(*this, p, this->between(p));
    auto const to = this->template message<merged_message<Machine>>(p, where.outputs[1].data);
    this->run_input_half(now, first_input(p), where.outputs[0], to.gradient);
    copy_state(p, to.merged, following(p).merged());
    copy(where.outputs[2].data,
         where.outputs[1].data,
         bytes_of<gpt::message, merged_message<Machine>>(this->extents(p)),
         p.on);
    this->run_weight_half(now);
  }

private:
  using pass = typename stage<Machine>::pass;
  using back = typename stage<Machine>::back;
  using to_attention = typename stage<Machine>::to_attention;

  static stage_start<Machine> of_layer(stage_start<Machine> with) {
    with.after = with.before + 3;
    return with;
  }
  //! A pass of one of the stages of this layer.
  [[nodiscard]] pass at(pp::context const& where, int chunk, layer_part part) const {
    auto p = this->begin(where, unit{where.microbatch, chunk});
    p.held = this->held_.of_layer(part);
    return p;
  }
  //! None at an end of the model.
  [[nodiscard]] static pp::input first_input(pass const& p) {
    return p.where->inputs.empty() ? pp::input() : p.where->inputs[0];
  }
  [[nodiscard]] static pp::output first_output(pass const& p) {
    return p.where->outputs.empty() ? pp::output() : p.where->outputs[0];
  }
  [[nodiscard]] std::int64_t narrow(pass const& p) const { return p.tokens * this->size_.width; }
  [[nodiscard]] std::int64_t width_of_keys() const { return 2 * this->size_.key_width(); }
  [[nodiscard]] std::int64_t keys(pass const& p) const { return p.tokens * width_of_keys(); }

  //! Keys and values of all sequences.
  [[nodiscard]] std::int64_t cached() const {
    return this->cut_.microbatches() * this->size_.sequence * width_of_keys();
  }
  [[nodiscard]] std::int64_t begin_of(pass const& p) const {
    return p.of.microbatch * this->size_.sequence * width_of_keys();
  }
  [[nodiscard]] attended* key_value(pass const& p) const {
    return reinterpret_cast<attended*>(key_value_.data()) + begin_of(p);
  }
  [[nodiscard]] number* key_value_gradient(pass const& p) const {
    return reinterpret_cast<number*>(key_value_gradient_.data()) + begin_of(p);
  }

  [[nodiscard]] attended* query_of(pass const& p) const {
    return put_in<Machine, attending_kept<Machine>>(p.where->activation.data, this->extents(p), 0)
      .query;
  }
  [[nodiscard]] following_kept<Machine> following(pass const& p) const {
    return put_in<Machine, following_kept<Machine>>(
      p.where->activation.data, this->extents(p), p.held);
  }
  void copy_state(pass const& p,
                  attention_state<Machine> const& to,
                  attention_state<Machine> const& from) const {
    copy(to.output, from.output, narrow(p), p.on);
    copy(to.log_sum_exp, from.log_sum_exp, this->size_.heads * p.tokens, p.on);
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
  using attended = typename Machine::attended;

  //! @param layer null where attention is taken over, which wants nothing of it
  //! @param work of the device that runs the stage
  exchanged_stage(exchanged_slot_sizes<Machine> sizes,
                  int which,
                  std::shared_ptr<Layer> layer,
                  typename Machine::work& work)
      : sizes_(std::move(sizes)), what_(sizes_.stage(which)), layer_(std::move(layer)),
        work_(&work) {}

  [[nodiscard]] pp::context const& begin(pp::context const& where, int) { return where; }
  void forward(pp::context const& where, pp::input, pp::output) {
    using enum pp::layer_part;
    switch (what_.part) {
    case projection: return layer_->project(where, what_.chunk);
    case attention: return layer_->attend_own(where, what_.chunk, given().count());
    case taken_attention: return take(where);
    case after_attention: return layer_->follow(where, what_.chunk);
    }
  }
  //! Both halves of a backward pass.
  void input_half(pp::context const& where, pp::input, pp::output, std::byte*) {
    using enum pp::layer_part;
    switch (what_.part) {
    case projection: return layer_->project_backward(where, what_.chunk);
    case attention: return layer_->attend_own_backward(where, what_.chunk, given().count());
    case taken_attention: return take_backward(where);
    case after_attention: return layer_->follow_backward(where, what_.chunk);
    }
  }
  void weight_half(pp::context const&, std::byte*) {}
  [[nodiscard]] static std::byte* between(pp::context const&) { return nullptr; }

  //! The layer, where this stage stands for its weights; else null.
  [[nodiscard]] Layer* leading() const {
    bool const leads = what_.part == pp::layer_part::projection && what_.chunk == 0;
    return leads ? layer_.get() : nullptr;
  }
  [[nodiscard]] double loss_sum() const { return layer_ == nullptr ? 0.0 : layer_->loss_sum(); }
  //! The mean. @pre the stage is of the last layer
  [[nodiscard]] double loss() const {
    return loss_sum() / static_cast<double>(layer_->cut().tokens());
  }

private:
  [[nodiscard]] chunk_range chunk() const { return sizes_.range(what_.chunk); }
  [[nodiscard]] chunk_range given() const { return sizes_.given(what_); }
  [[nodiscard]] std::int64_t narrow() const { return chunk().count() * sizes_.size.width; }
  [[nodiscard]] std::int64_t keys(std::int64_t tokens) const {
    return tokens * 2 * sizes_.size.key_width();
  }
  [[nodiscard]] attending_kept<Machine> kept(pp::context const& where) const {
    return put_in<Machine, attending_kept<Machine>>(
      where.activation.data, sizes_.tensors(what_), given().count());
  }
  //! All given keys lie before the chunk, so that a causal mask keeps them.
  [[nodiscard]] attending call() const { return {sizes_.size, chunk(), given()}; }

  auto begin_work(pp::context const& where) const {
    auto const on = Machine::stream_of(where);
    work_->begin(sizes_.size, chunk().count(), on);
    return on;
  }
  //! Inputs are the projections of this chunk and of the oldest ones.
  void take(pp::context const& where) const {
    auto const on = begin_work(where);
    auto const to =
      put_in<gpt::message, attention_state<Machine>>(where.outputs[0].data, sizes_.tensors(what_));
    if (what_.taken == 0) {
      clear(to.output, narrow(), on);
      fill(to.log_sum_exp,
           sizes_.size.heads * chunk().count(),
           -std::numeric_limits<number>::infinity(),
           on);
      return;
    }
    auto const mine = kept(where);
    auto const projected = [&](std::size_t input, std::int64_t tokens) {
      return put_in<gpt::message, message_to_attention<Machine, attended>>(
        only_read(where.inputs[input]), tensor_extents{sizes_.size, sizes_.size, tokens});
    };
    copy(mine.query, projected(0, chunk().count()).query, narrow(), on);
    for (int old = 0; old < what_.taken; ++old) {
      auto const of = sizes_.range(old);
      copy(mine.key_value + keys(of.begin),
           projected(static_cast<std::size_t>(old) + 1, of.count()).key_value,
           keys(of.count()),
           on);
    }
    attend(call(), to.with(mine.query, mine.key_value), *work_, on);
  }
  void take_backward(pp::context const& where) const {
    auto const on = begin_work(where);
    auto* const query_gradient = reinterpret_cast<attended*>(where.outputs[0].data);
    if (what_.taken == 0)
      return clear(query_gradient, narrow(), on);
    auto const mine = kept(where);
    auto const from = put_in<gpt::message, merged_message<Machine>>(only_read(where.inputs[0]),
                                                                    sizes_.tensors(what_));
    number* const gradient = work_->scratch().key_value_gradient;
    clear(gradient, keys(given().count()), on);
    attend_backward(call(),
                    from.merged.with(mine.query, mine.key_value),
                    attention_gradients<attended, number>{from.gradient, query_gradient, gradient},
                    *work_,
                    on);
    for (int old = 0; old < what_.taken; ++old) {
      auto const of = sizes_.range(old);
      copy(reinterpret_cast<number*>(where.outputs[static_cast<std::size_t>(old) + 1].data),
           gradient + keys(of.begin),
           keys(of.count()),
           on);
    }
  }

  exchanged_slot_sizes<Machine> sizes_;
  pp::exchange_stage what_;
  std::shared_ptr<Layer> layer_;
  typename Machine::work* work_;
};

} // namespace gpt
