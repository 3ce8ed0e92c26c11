// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layers cut at their attention, as HelixPipe has them: attention alone, and what lies
//! between the attention of two layers. For whole sequences.
//!
//! Between them go the residual x [tokens, width] and behind it query [tokens, width], keys and
//! values [tokens, 2, key heads, head dim], or attention's output [tokens, width]; back the
//! gradients of the same.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../layer.hpp"

namespace gpt {

//! What follows the attention of a layer and comes before that of the next, one of which is missing
//! at the ends of the model.
template <class Number>
class around_attention {
public:
  using place = place_of_unit<Number>;

  around_attention(model_size const& size, std::uint64_t seed, layer_range const& layers)
      : size_(size) {
    if (!layers.embeds)
      after_ = std::make_unique<after_attention<Number>>(size, seed, layers.first - 1);
    if (!layers.ends)
      before_ = std::make_unique<before_attention<Number>>(size, seed, layers.first);
  }

  [[nodiscard]] static std::int64_t
  kept_numbers(model_size const& size, layer_range const& layers, std::int64_t tokens) {
    return (layers.embeds
              ? 0
              : tokens * size.width + after_attention<Number>::kept_numbers(size, tokens)) +
           (layers.ends ? 0 : before_attention<Number>::kept_numbers(size, tokens));
  }

  //! @param in what comes from attention: its output is read here
  //! @param out what goes to the next one: begins with the residual, which is updated
  void forward(place const& at, Number const* in, Number* out) {
    auto& u = units_[at.unit];
    auto const narrow = at.tokens() * size_.width;
    lay_out(u, at, at.memory->pool.place(own_numbers(at.tokens()), at.kept, u.kept));
    if (after_ != nullptr) {
      std::copy_n(in + narrow, narrow, u.output); // for the gradient of the projection
      after_->forward(u.output, out, u.after);
    }
    if (before_ != nullptr)
      before_->forward(out, out + narrow, out + 2 * narrow, u.before);
  }
  void forget(std::size_t unit) { units_[unit].kept.reset(); }
  void set_work(std::vector<std::int64_t> const&, std::int64_t units) {
    units_.resize(static_cast<std::size_t>(units));
  }

  //! @param dy the gradient of out, whose residual's part dx begins with. @param dx becomes that of
  //! in
  void backward_input(place const& at, Number const* dy, Number* dx) {
    auto& u = units_[at.unit];
    auto const narrow = at.tokens() * size_.width;
    auto const given = narrow + at.tokens() * 2 * size_.key_width();
    auto const by_after = after_attention<Number>::added_numbers(size_, at.tokens());
    u.added = at.memory->pool.take(by_after + given);
    lay_out(u, at, at.kept != nullptr ? at.kept : u.kept.get());
    u.after.added = u.added.get() + given;
    if (before_ != nullptr) {
      std::copy_n(dy + narrow, given, u.before.added);
      before_->add_backward_input(u.before.added, u.before.added + narrow, dx, u.before);
    }
    if (after_ != nullptr) {
      after_->backward_input(dx, u.after);
      std::fill_n(dx + narrow, narrow, Number{0});
      after_->add_output_gradient(dx + narrow, u.after);
    }
  }

  //! Adds what a unit gives to the gradients of the matrices, and lets go of the unit.
  void backward_weight(place const& at) {
    auto& u = units_[at.unit];
    auto const narrow = at.tokens() * size_.width;
    if (before_ != nullptr)
      before_->add_backward_weight(u.before.added, u.before.added + narrow, u.before);
    if (after_ != nullptr)
      after_->add_backward_weight(u.output, u.after);
    u.kept.reset();
    u.added.reset();
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (after_ != nullptr)
      after_->for_each_parameter(visit);
    if (before_ != nullptr)
      before_->for_each_parameter(visit);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    if (after_ != nullptr)
      after_->for_each_matrix(visit);
    if (before_ != nullptr)
      before_->for_each_matrix(visit);
  }

private:
  struct unit_state {
    block<Number> kept;  //!< attention's output, after, before; or where the caller has said
    block<Number> added; //!< gradients of query, keys and values, then what `after` adds
    Number* output;
    part_place<Number> after;
    part_place<Number> before;
  };
  [[nodiscard]] std::int64_t own_numbers(std::int64_t tokens) const {
    return kept_numbers(
      size_, {1, 1, after_ == nullptr, before_ == nullptr, layer_part::around_attention}, tokens);
  }
  void lay_out(unit_state& u, place const& at, Number* kept) const {
    auto const tokens = at.tokens();
    Number* const added = u.added.get();
    Number* const before =
      kept + own_numbers(tokens) - before_attention<Number>::kept_numbers(size_, tokens);
    u.output = kept;
    u.after = {tokens, kept + tokens * size_.width, nullptr, &at.memory->space};
    u.before = {tokens, before, added, &at.memory->space};
  }

  model_size size_;
  std::unique_ptr<after_attention<Number>> after_;
  std::unique_ptr<before_attention<Number>> before_;
  std::vector<unit_state> units_; // by microbatch, then chunk
};

//! The attention of a layer without what is around it. It has no weights, so that each device may
//! have one of its own, for some of the microbatches.
template <class Number>
class lone_attention {
public:
  using place = place_of_unit<Number>;

  explicit lone_attention(model_size const& size) : size_(size), attention_(size) {}

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return attention_part<Number>::kept_numbers(size, tokens) + tokens * 2 * size.key_width();
  }

  //! @param out gets attention's output behind the residual
  void forward(place const& at, Number const* in, Number* out) {
    auto const tokens = at.tokens();
    auto& u = units_[at.unit];
    u.at = at.memory->pool.place(kept_numbers(size_, tokens), at.kept, u.kept);
    auto const narrow = tokens * size_.width;
    std::copy_n(in + narrow, narrow, u.at);
    std::copy_n(in + 2 * narrow, tokens * 2 * size_.key_width(), key_value(u, tokens));
    attention_.forward({at.chunk, at.chunk, key_value(u, tokens), u.at, &at.memory->space});
    std::copy_n(attention_.output(u.at, tokens), narrow, out + narrow);
  }
  void forget(std::size_t unit) { units_[unit].kept.reset(); }
  void set_work(std::vector<std::int64_t> const&, std::int64_t units) {
    units_.resize(static_cast<std::size_t>(units));
  }

  //! @param dy the gradient of out. @param dx that of in, but for the residual
  void backward_input(place const& at, Number const* dy, Number* dx) {
    auto const tokens = at.tokens();
    auto& u = units_[at.unit];
    if (at.kept != nullptr)
      u.at = at.kept;
    auto const narrow = tokens * size_.width;
    std::fill_n(dx + narrow, narrow + tokens * 2 * size_.key_width(), Number{0});
    attention_.backward({at.chunk, at.chunk, key_value(u, tokens), u.at, &at.memory->space},
                        {dy + narrow, dx + narrow, dx + 2 * narrow});
  }
  void backward_weight(place const& at) { forget(at.unit); }

  template <class Visit>
  void for_each_parameter(Visit) {}
  template <class Visit>
  void for_each_matrix(Visit) {}

private:
  struct unit_state {
    block<Number> kept;
    Number* at; //!< in kept, or where the caller has said: what attention keeps, keys and values
  };
  [[nodiscard]] Number* key_value(unit_state const& u, std::int64_t tokens) const {
    return u.at + attention_part<Number>::kept_numbers(size_, tokens);
  }

  model_size size_;
  attention_part<Number> attention_;
  std::vector<unit_state> units_; // by microbatch, then chunk
};

} // namespace gpt
