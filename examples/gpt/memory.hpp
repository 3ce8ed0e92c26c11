// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How tensors lie in memory: those that a stage keeps in the slots of a plan, and scratch
//! in which nothing survives a pass.
//!
//! What stages do is written once, for a machine: the host (host/machine.hpp) or a GPU
//! (cuda/machine.cuh). It names the types of numbers: `number`, of the residual, all sums, and what
//! is trained; `element`, which products multiply; and `attended`, which attention reads. Functions
//! of its namespace do the arithmetic, as work of a `stream`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "model.hpp"

namespace gpt {

//! Puts tensors of several types one after the other. Without memory it only counts.
class placing {
public:
  //! @param multiple of bytes at which tensors begin; 1: without gaps, as messages are
  explicit placing(std::byte* memory, std::int64_t multiple)
      : memory_(memory), multiple_(multiple) {}

  template <class T>
  [[nodiscard]] T* take(std::int64_t count) {
    std::byte* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    auto const bytes = count * static_cast<std::int64_t>(sizeof(T));
    bytes_ += (bytes + multiple_ - 1) / multiple_ * multiple_;
    return reinterpret_cast<T*>(at);
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; } //!< taken so far

private:
  std::byte* memory_;
  std::int64_t multiple_;
  std::int64_t bytes_ = 0;
};
//! Tensors of a machine, as they lie in slots.
template <class Machine>
[[nodiscard]] placing slot_of(std::byte* memory = nullptr) {
  return placing(memory, Machine::alignment);
}

//! Tensors, made of a placing and of what they are of, in a slot.
template <class Machine, class Tensors, class... Of>
[[nodiscard]] Tensors put_in(std::byte* memory, Of const&... of) {
  auto in = slot_of<Machine>(memory);
  return Tensors(in, of...);
}
//! The bytes of such a slot.
template <class Machine, class Tensors, class... Of>
[[nodiscard]] std::int64_t bytes_of(Of const&... of) {
  auto all = slot_of<Machine>();
  (void)Tensors(all, of...);
  return all.bytes();
}

//! A message, which has no gaps, in place of the slots of a machine.
struct message {
  static constexpr std::int64_t alignment = 1;
};

//! Tokens of so many numbers each, and the stream that works on them.
template <class Stream>
struct token_rows {
  std::int64_t tokens;
  std::int64_t width;
  Stream stream;

  [[nodiscard]] std::int64_t count() const { return tokens * width; }
};

//! What tensors of a stage are of: some tokens of the model, or of a shard.
struct tensor_extents {
  model_size size;
  model_size own; //!< the shard's share of heads and hidden numbers
  std::int64_t tokens;
  bool whole_sequence = true; //!< else a chunk, whose keys and values lie with those of others

  [[nodiscard]] std::int64_t wide() const { return tokens * size.width; }
  [[nodiscard]] std::int64_t queries() const { return tokens * own.width; }
  [[nodiscard]] std::int64_t keys() const { return tokens * 2 * own.key_width(); }
  [[nodiscard]] std::int64_t hidden() const { return tokens * own.hidden(); }
};

//! What layer norm keeps of its tokens for backward.
template <class Number>
struct normalised {
  Number* normal = nullptr;  //!< [tokens, width]
  Number* inverse = nullptr; //!< [tokens], one over the deviation

  normalised() = default;
  normalised(Number* numbers, Number* deviations) : normal(numbers), inverse(deviations) {}
  normalised(placing& in, tensor_extents const& of)
      : normal(in.take<Number>(of.wide())), inverse(in.take<Number>(of.tokens)) {}
};

//! Whether a product takes the place of what was there or is added to it.
enum class product_goes : std::uint8_t { instead, added };

//! What passes of so many tokens may write over.
template <class Machine>
struct scratch_tensors {
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  typename Machine::element* scaled; //!< [tokens, width], what a product reads
  number* wide;                      //!< [tokens, the widest result of a product]
  number* narrow;                    //!< [tokens, width]
  number* residual;           //!< [tokens, width], where a stage has no message to write it to
  attended* output_gradient;  //!< [tokens, width], of attention
  attended* query_gradient;   //!< [tokens, width]
  number* key_value_gradient; //!< [sequence, 2, key heads, head dim], where the plan carries none
  number* of_attention;       //!< what else its backward needs

  scratch_tensors() = default;
  scratch_tensors(placing& in, model_size const& size, std::int64_t tokens)
      : scaled(in.take<typename Machine::element>(tokens * size.width)),
        wide(in.take<number>(tokens * std::max({size.hidden(), vocabulary, 2 * size.key_width()}))),
        narrow(in.take<number>(tokens * size.width)),
        residual(in.take<number>(tokens * size.width)),
        output_gradient(in.take<attended>(tokens * size.width)),
        query_gradient(in.take<attended>(tokens * size.width)),
        key_value_gradient(in.take<number>(size.sequence * 2 * size.key_width())),
        of_attention(in.take<number>(Machine::attention_scratch(size, tokens))) {}
};

//! Where a part works, and on how many tokens.
template <class Machine>
struct part_pass {
  using number = typename Machine::number;
  using weight = typename Machine::weight;

  model_size size;
  model_size own; //!< the shard's share of heads and hidden numbers
  std::int64_t tokens;
  typename Machine::work* work;
  typename Machine::stream stream;

  [[nodiscard]] scratch_tensors<Machine> const& space() const { return work->scratch(); }
  [[nodiscard]] auto rows() const {
    return token_rows<typename Machine::stream>{tokens, size.width, stream};
  }
  [[nodiscard]] auto matrix(weight& of, std::int64_t inputs, std::int64_t outputs) const {
    return work->matrix(of, tokens, inputs, outputs);
  }
  //! Of numbers [tokens, width], of which each shard has a part, their sum.
  void add_shards(number* numbers) const {
    if (work->sum)
      work->sum(numbers, rows().count(), stream);
  }
  //! Calls product(to), which adds numbers there, [tokens, width], for x; of shards, for their sum.
  template <class Product>
  void add_to(number* x, Product product) const {
    if (!work->sum)
      return product(x);
    number* const part = space().narrow;
    clear(part, rows().count(), stream);
    product(part);
    add_shards(part);
    add(x, part, rows().count(), stream);
  }
  //! Adds to dx, and to the gradient of the gain. @param gradient of what the norm gives
  void
  norm_backward(number* dx, number const* gradient, weight& gain, normalised<number> kept) const {
    layer_norm_backward(dx, gain.gradients(), gradient, kept, gain.values(), rows());
  }
  //! What the norm gives again, in `scaled`.
  [[nodiscard]] auto* scale_again(normalised<number> kept, weight& gain) const {
    apply_gain(space().scaled, kept.normal, gain.values(), rows());
    return space().scaled;
  }
  //! Calls product(where its numbers go), and rounds these to the type of `to`.
  template <class T, class Product>
  void rounded(T* to, std::int64_t count, number* room, Product product) const {
    if constexpr (std::is_same_v<T, number>) {
      product(to);
    } else {
      product(room);
      convert(to, room, count, stream);
    }
  }
};

} // namespace gpt
