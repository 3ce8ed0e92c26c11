// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage: consecutive layers of the GPT, with the embedding on the first and the loss on
//! the last.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "embedding.hpp"
#include "papers/helix.hpp"
#include "text.hpp"

namespace gpt {

//! The unit of a pass, as the library tells it.
[[nodiscard]] inline unit unit_of(pp::context const& where) {
  return {where.microbatch, where.chunk};
}
//! Where forward keeps what backward needs; null where the plan has no slots for that.
[[nodiscard]] inline float* kept_of(pp::context const& where) {
  return where.activation.as<float>().data();
}

//! Every parameter of a stage in as many pieces as there are shards, with their gradients and the
//! averages of the optimizer. A real group has each shard on a device of its own; here all lie in
//! this process, and whole weights exist while they are gathered alone.
template <class Number>
class weight_shards {
public:
  //! Takes a parameter apart; what is left of it has a size alone.
  void take(parameter<Number>& whole, std::int64_t shards) {
    auto const count = static_cast<std::int64_t>(whole.value.size());
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      auto const piece = piece_of(count, shard, shards);
      pieces_.emplace_back(piece.count(), Number{0}, whole.decays);
      std::copy_n(whole.value.begin() + piece.begin, piece.count(), pieces_.back().value.begin());
    }
    numbers_ += count;
    whole = parameter<Number>(0, Number{0}, whole.decays);
  }

  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  [[nodiscard]] std::int64_t numbers() const { return numbers_; }

  //! Writes whole weights, one parameter behind the other.
  void gather(Number* to) const {
    for (auto const& piece : pieces_)
      to = std::copy(piece.value.begin(), piece.value.end(), to);
  }
  //! Adds whole gradients, laid out in the same way, to those of the shards.
  void scatter(Number const* from) {
    for (auto& piece : pieces_)
      for (auto& x : piece.gradient)
        x += *from++;
  }

  //! What the pieces are. @param parameters those that were taken
  [[nodiscard]] std::vector<tensor_part>
  pieces_of(std::vector<tensor_part> const& parameters) const {
    auto const shards = static_cast<std::int64_t>(pieces_.size() / parameters.size());
    return gpt::pieces_of(parameters, shards, {0, shards});
  }

  template <class Visit>
  void for_each_piece(Visit& visit) {
    for (auto& piece : pieces_)
      visit(piece);
  }

private:
  std::vector<parameter<Number>> pieces_; // parameter by parameter, shard by shard
  std::int64_t numbers_ = 0;
};

//! One layer. It knows no schedule: units come as the stage calls.
template <class Number>
class transformer_block {
public:
  using place = place_of_unit<Number>;

  transformer_block(model_size const& size, std::uint64_t seed, std::int64_t layer)
      : size_(size), before_(size, seed, layer), attention_(size), after_(size, seed, layer) {}

  //! Between steps: tokens of every microbatch, and chunks of all of them.
  void set_work(std::vector<std::int64_t> const& lengths, std::int64_t units) {
    lengths_ = lengths;
    sequences_.resize(lengths_.size());
    units_.resize(static_cast<std::size_t>(units));
  }

  //! Numbers that forward keeps of a unit for its backward, but for keys and values.
  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return before_attention<Number>::kept_numbers(size, tokens) +
           attention_part<Number>::kept_numbers(size, tokens) +
           after_attention<Number>::kept_numbers(size, tokens);
  }

  //! x [tokens, width] becomes the layer's output. Keys and values join those of earlier chunks.
  //! `kept` is for the rest, [kept_numbers].
  void forward(place const& at, Number const*, Number* x) {
    auto& memory = *at.memory;
    auto& sequence = sequences_[at.microbatch];
    if (sequence.key_value == nullptr)
      sequence.key_value = memory.pool.take(lengths_[at.microbatch] * key_value_width());
    auto& u = units_[at.unit];
    lay_out(u, at, memory.pool.place(kept_numbers(size_, at.tokens()), at.kept, u.kept));
    Number* const key_value = sequence.key_value.get();
    before_.forward(x, u.attention, key_value + at.chunk.begin * key_value_width(), u.before);
    attention_.forward({at.chunk, {0, at.chunk.end}, key_value, u.attention, &memory.space});
    after_.forward(attention_.output(u.attention, at.tokens()), x, u.after);
  }

  //! Lets go of what forward has kept of a unit, but for its keys and values; forward again, in any
  //! order, brings it back.
  void forget(std::size_t unit) { units_[unit].kept.reset(); }

  //! dx [tokens, width] holds the gradient of the output and becomes that of the input. Keeps what
  //! backward_weight needs; adds to the gradients of the gains, which are too small to keep for.
  //! What forward has kept may lie elsewhere than then, where it is not in a buffer of the pool.
  void backward_input(place const& at, Number const*, Number* dx) {
    auto& u = units_[at.unit];
    if (at.kept != nullptr)
      lay_out(u, at, at.kept);
    auto const after_added = after_attention<Number>::added_numbers(size_, at.tokens());
    u.added = at.memory->pool.take(after_added + at.tokens() * key_value_width());
    u.after.added = u.added.get();
    u.key_gradient = u.after.added + after_added;
    after_.backward_input(dx, u.after);
    attention_backward(at, u);
    before_.add_backward_input(u.attention, u.key_gradient, dx, u.before);
  }

  //! Adds what a unit gives to the gradients of the matrices, and lets go of the unit.
  void backward_weight(place const& at) {
    auto& u = units_[at.unit];
    before_.add_backward_weight(u.attention, u.key_gradient, u.before);
    after_.add_backward_weight(attention_.output(u.attention, at.tokens()), u.after);
    u.kept.reset();
    u.added.reset();
  }

  //! Calls visit(parameter) for each parameter, in one fixed order.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    before_.for_each_parameter(visit);
    after_.for_each_parameter(visit);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    before_.for_each_matrix(visit);
    after_.for_each_matrix(visit);
  }

private:
  //! What a layer keeps of a sequence while any of its chunks is under way.
  struct sequence_state {
    block<Number> key_value;          //!< [sequence, 2, key heads, head dim]: the cache
    block<Number> key_value_gradient; //!< the same shape: carried from later chunks to earlier ones
  };
  //! What it keeps of a unit, part by part.
  struct unit_state {
    block<Number> kept;  //!< from forward to backward_weight
    block<Number> added; //!< from backward_input to backward_weight

    part_place<Number> before;
    part_place<Number> after;
    Number* attention;    //!< kept; backward_input replaces the query in it by its gradient
    Number* key_gradient; //!< added, [tokens, 2, key heads, head dim]
  };

  [[nodiscard]] std::int64_t key_value_width() const { return 2 * size_.key_width(); }

  void lay_out(unit_state& u, place const& at, Number* kept) const {
    u.attention = kept + before_attention<Number>::kept_numbers(size_, at.tokens());
    auto* const after = u.attention + attention_part<Number>::kept_numbers(size_, at.tokens());
    u.before = {at.tokens(), kept, nullptr, &at.memory->space};
    u.after = {at.tokens(), after, u.added.get(), &at.memory->space};
  }

  //! From the gradient of the projection's output to those of the query, the keys and the values.
  void attention_backward(place const& at, unit_state& u) {
    auto& memory = *at.memory;
    auto& sequence = sequences_[at.microbatch];
    auto const tokens = at.tokens();
    if (sequence.key_value_gradient == nullptr) { // the last chunk comes first
      auto const count = lengths_[at.microbatch] * key_value_width();
      sequence.key_value_gradient = memory.pool.take(count);
      std::fill_n(sequence.key_value_gradient.get(), count, Number{0});
    }
    Number* const carried = sequence.key_value_gradient.get();
    Number* const output_gradient = memory.space.zeros(2 * tokens * size_.width);
    Number* const query_gradient = output_gradient + tokens * size_.width;
    after_.add_output_gradient(output_gradient, u.after);
    Number const* const key_value = sequence.key_value.get();
    attention_.backward({at.chunk, {0, at.chunk.end}, key_value, u.attention, &memory.space},
                        {output_gradient, query_gradient, carried});
    std::copy_n(query_gradient, tokens * size_.width, u.attention);
    std::copy_n(carried + at.chunk.begin * key_value_width(),
                tokens * key_value_width(),
                u.key_gradient); // final: later chunks have added theirs before
    if (at.chunk.begin == 0) {
      sequence.key_value.reset();
      sequence.key_value_gradient.reset();
    }
  }

  model_size size_;
  before_attention<Number> before_;
  attention_part<Number> attention_;
  after_attention<Number> after_;
  std::vector<std::int64_t> lengths_; // by microbatch
  std::vector<sequence_state> sequences_;
  std::vector<unit_state> units_;
};

//! Numbers that the layers of a stage keep of so many tokens between forward and backward, but, of
//! whole ones, for keys and values.
[[nodiscard]] inline std::int64_t
kept_by_layers(model_size const& size, layer_range const& layers, std::int64_t tokens) {
  switch (layers.part) {
  case layer_part::attention: return lone_attention<float>::kept_numbers(size, tokens);
  case layer_part::around_attention:
    return around_attention<float>::kept_numbers(size, layers, tokens);
  case layer_part::whole: break;
  }
  return (layers.last - layers.first) * transformer_block<float>::kept_numbers(size, tokens);
}
//! The same with the head.
[[nodiscard]] inline std::int64_t
kept_numbers(model_size const& size, layer_range const& layers, std::int64_t tokens) {
  return kept_by_layers(size, layers, tokens) +
         (layers.ends ? head<float>::kept_numbers(size, tokens) : 0);
}

//! A stage of the model. Passes are called by whoever runs the schedule; a stage only demands that
//! chunks go forward in order, and backward in the order of gradient_order.
//!
//! What forward keeps of a unit lies in `kept`, [kept_numbers], where the caller gives such memory:
//! then the caller may move it between passes. Else it lies in a buffer of the device's pool.
template <class Number>
class stage {
public:
  using number = Number;

  stage(model_size const& size,
        layer_range layers,
        step_cut cut,
        std::uint64_t seed,
        device_memory<Number>& memory)
      : size_(size), layers_(layers), cut_(std::move(cut)), memory_(&memory),
        ends_(size, layers, seed, cut_.microbatches(), cut_.units()) {
    gpt::check(size);
    for (auto layer = layers.first; layer < layers.last; ++layer)
      parts_.emplace_back(transformer_block<Number>(size, seed, layer));
    if (layers.part == layer_part::attention)
      parts_.emplace_back(lone_attention<Number>(size));
    else if (layers.part == layer_part::around_attention)
      parts_.emplace_back(around_attention<Number>(size, seed, layers));
    set_cut(cut_);
  }

  //! Between steps: how the work of the next one is cut.
  void set_cut(step_cut cut) {
    cut_ = std::move(cut);
    each_part([&](auto& part) { part.set_work(cut_.lengths(), cut_.units()); });
    if (ends_.last != nullptr) {
      ends_.last->set_units(cut_.units());
      ends_.losses.assign(static_cast<std::size_t>(cut_.microbatches() * size_.sequence),
                          Number{0});
    }
  }

  void set_batch(batch const& pieces) { batch_ = &pieces; }

  //! Forward of one unit. x is not read by the first stage, y not written by the last. Both have
  //! `handed_on` numbers for each token.
  void forward(unit u, Number const* x, Number* y, Number* kept = nullptr) {
    all_layers(u, x, y, kept);
    if (!cut_.keeps(u)) {
      each_part([&](auto& part) { part.forget(cut_.index(u)); });
      if (ends_.last != nullptr)
        ends_.last->forget(cut_.index(u));
    }
    memory_->pool.end_of_pass();
  }

  //! Brings back what forward of the unit has not kept, from the same x; what is written to y has
  //! been written before.
  void recompute(unit u, Number const* x, Number* y, Number* kept = nullptr) {
    all_layers(u, x, y, kept);
    memory_->pool.end_of_pass();
  }

  //! Backward of one unit up to the gradient of its input. dy is not read by the last stage, dx not
  //! written by the first.
  void backward_input(unit u, Number const* dy, Number* dx, Number* kept = nullptr) {
    input_half(u, dy, dx, kept);
    memory_->pool.end_of_pass();
  }

  //! The other half: adds to the gradients of the matrices. What forward has kept still lies where
  //! it was in the first half.
  void backward_weight(unit u) {
    weight_half(u);
    memory_->pool.end_of_pass();
  }

  void backward(unit u, Number const* dy, Number* dx, Number* kept = nullptr) {
    input_half(u, dy, dx, kept);
    weight_half(u);
    memory_->pool.end_of_pass();
  }

  [[nodiscard]] double loss() const {
    return ends_.sum_of_losses() / static_cast<double>(cut_.tokens());
  }
  //! Of each token, [microbatches, sequence].
  [[nodiscard]] std::vector<Number> const& losses() const { return ends_.losses; }

  //! Calls visit(parameter) for each parameter, in the order of the layers; where they are in
  //! shards, for each piece.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (shards_.empty())
      for_each_whole_parameter(visit);
    else
      shards_.for_each_piece(visit);
  }

  //! What these are in the whole model. A piece of a shard is one of the numbers behind each other,
  //! under a name of its own.
  [[nodiscard]] std::vector<tensor_part> parts() const {
    auto const whole = parts_of(size_, layers_);
    return shards_.empty() ? whole : shards_.pieces_of(whole);
  }

  //! Takes the parameters apart. From now on passes need weights that have been gathered, and
  //! memory for gradients. No shards: the parameters are elsewhere.
  void shard(std::int64_t shards) {
    for_each_matrix([this](linear<Number>& matrix) { transposes_ += matrix.numbers(); });
    for_each_whole_parameter([&](parameter<Number>& p) {
      sizes_.push_back(static_cast<std::int64_t>(p.value.size()));
      shards_.take(p, shards);
    });
  }
  //! Numbers of whole weights, transposed matrices among them, and of whole gradients.
  [[nodiscard]] std::int64_t weight_numbers() const { return shards_.numbers() + transposes_; }
  [[nodiscard]] std::int64_t gradient_numbers() const { return shards_.numbers(); }

  void gather(Number* to) {
    shards_.gather(to);
    use(to);
    refresh_matrices();
  }
  //! Passes read weights from here, and transposed matrices behind them.
  void use(Number* weights) { use(weights, weights + shards_.numbers()); }
  //! The same with the transposed matrices elsewhere.
  void use(Number* weights, Number* transposes) {
    std::size_t next = 0;
    for_each_whole_parameter([&](parameter<Number>& p) {
      p.value_elsewhere = weights;
      weights += sizes_[next++];
    });
    for_each_matrix([&](linear<Number>& matrix) {
      matrix.put_transpose(transposes);
      transposes += matrix.numbers();
    });
  }
  //! To be called before backward passes, when others than these weights have been used.
  void refresh_matrices() {
    for_each_matrix([](linear<Number>& matrix) { matrix.refresh(); });
  }
  //! Passes add their gradients here, [gradient_numbers].
  void collect(Number* to) {
    std::fill_n(to, gradient_numbers(), Number{0});
    add_gradients_to(to);
  }
  //! The same to what is there.
  void add_gradients_to(Number* to) {
    std::size_t next = 0;
    for_each_whole_parameter([&](parameter<Number>& p) {
      p.gradient_elsewhere = to;
      to += sizes_[next++];
    });
  }
  //! Adds whole gradients to those of the shards.
  void scatter(Number const* from) { shards_.scatter(from); }

  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<Number>& p) { optimizer.update(p, step); });
    refresh();
  }

  void refresh() {
    if (shards_.empty())
      refresh_matrices(); // else when they have been gathered
  }

private:
  //! Layers, or what layers cut at their attention have instead.
  using layer_or_part =
    std::variant<transformer_block<Number>, lone_attention<Number>, around_attention<Number>>;

  template <class Visit>
  void each_part(Visit visit) {
    for (auto& each : parts_)
      std::visit(visit, each);
  }
  template <class Visit>
  void for_each_whole_parameter(Visit visit) {
    ends_.for_each_parameter(
      visit, [&] { each_part([&](auto& part) { part.for_each_parameter(visit); }); });
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    each_part([&](auto& part) { part.for_each_matrix(visit); });
    if (ends_.last != nullptr)
      visit(ends_.last->out);
  }

  //! Attention that is no layer has no weights, and any order.
  [[nodiscard]] bool is_ordered() const { return layers_.part != layer_part::attention; }
  //! Of the part of a whole layer, or of the head behind all layers, in the memory that the caller
  //! has given.
  [[nodiscard]] place_of_unit<Number> place_of(unit u, Number* kept, std::size_t layer = 0) const {
    auto const chunk = cut_.range(u);
    auto const before = static_cast<std::int64_t>(layer);
    auto const first = layer == parts_.size()
                         ? kept_by_layers(size_, layers_, chunk.count())
                         : before * transformer_block<Number>::kept_numbers(size_, chunk.count());
    return {static_cast<std::size_t>(u.microbatch),
            cut_.index(u),
            chunk,
            kept == nullptr ? nullptr : kept + first,
            memory_};
  }
  [[nodiscard]] std::uint8_t const* next_bytes(unit u) const {
    return batch_->microbatch(u.microbatch) + cut_.range(u).begin + 1;
  }

  void all_layers(unit u, Number const* x, Number* y, Number* kept) {
    auto const chunk = cut_.range(u);
    if (ends_.last != nullptr) {
      last_.resize(static_cast<std::size_t>(chunk.count() * size_.width));
      y = last_.data();
    }
    if (ends_.first != nullptr)
      ends_.first->forward(batch_->microbatch(u.microbatch), chunk, y);
    else
      std::copy_n(x, chunk.count() * size_.width, y);
    for (std::size_t i = 0; i < parts_.size(); ++i)
      std::visit([&](auto& each) { each.forward(place_of(u, kept, i), x, y); }, parts_[i]);
    if (ends_.last != nullptr) {
      Number* const losses = ends_.losses.data() + u.microbatch * size_.sequence + chunk.begin;
      ends_.last->forward(place_of(u, kept, parts_.size()), next_bytes(u), y, losses);
    }
  }

  void input_half(unit u, Number const* dy, Number* dx, Number* kept) {
    if (is_ordered())
      input_order_.check(u, cut_, "backward_input");
    auto const chunk = cut_.range(u);
    if (ends_.first != nullptr) {
      first_.resize(static_cast<std::size_t>(chunk.count() * size_.width));
      dx = first_.data();
    }
    auto const share = Number{1} / static_cast<Number>(cut_.tokens());
    if (ends_.last != nullptr)
      ends_.last->backward_input(place_of(u, kept, parts_.size()), next_bytes(u), share, dx);
    else
      std::copy_n(dy, chunk.count() * size_.width, dx);
    for (std::size_t i = parts_.size(); i-- > 0;)
      std::visit([&](auto& each) { each.backward_input(place_of(u, kept, i), dy, dx); }, parts_[i]);
    if (ends_.first != nullptr)
      ends_.first->backward(batch_->microbatch(u.microbatch), chunk, dx);
  }

  void weight_half(unit u) {
    if (is_ordered())
      weight_order_.check(u, cut_, "backward_weight");
    auto const at = place_of(u, nullptr);
    if (ends_.last != nullptr)
      ends_.last->backward_weight(at);
    for (auto each = parts_.rbegin(); each != parts_.rend(); ++each)
      std::visit([&](auto& one) { one.backward_weight(at); }, *each);
  }

  model_size size_;
  layer_range layers_;
  step_cut cut_;
  device_memory<Number>* memory_;
  batch const* batch_ = nullptr;
  model_ends<Number> ends_;
  std::vector<layer_or_part> parts_;
  std::vector<Number> first_; // the embedding's dx
  std::vector<Number> last_;  // the head's x
  gradient_order input_order_;
  gradient_order weight_order_;
  weight_shards<Number> shards_;    // empty: parameters are whole
  std::vector<std::int64_t> sizes_; // of the parameters, where they are in shards
  std::int64_t transposes_ = 0;     // numbers of all matrices
};

//! Adds up the gradients of two copies of some stages: both have the sum then. No copies, no sum.
template <class Stage>
void add_copies(std::vector<Stage>& stages, std::vector<Stage>& copies) {
  using number = typename Stage::number;
  for (std::size_t s = 0; s < copies.size(); ++s) {
    std::vector<parameter<number>*> mine;
    stages[s].for_each_parameter([&](parameter<number>& p) { mine.push_back(&p); });
    std::size_t next = 0;
    copies[s].for_each_parameter([&](parameter<number>& theirs) {
      auto& sum = mine[next++]->gradient;
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += theirs.gradient[i];
      theirs.gradient = sum;
    });
  }
}

} // namespace gpt
