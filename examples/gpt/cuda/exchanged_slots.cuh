// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What parts of layers send each other and keep on a GPU, where devices take over attention
//! of each other.

#include <pipe/flow/shape.hpp>
#include <pipe/flow/slot_class.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../exchange_schedule.hpp"
#include "../model.hpp"
#include "attention_call.cuh"
#include "device_work.cuh"
#include "head.cuh"
#include "helix_stage.cuh"
#include "layer_parts.cuh"
#include "numbers.cuh"

namespace gpt::on_gpu {

//! What a chunk's attention to some keys gives, or to all.
struct attention_state {
  bfloat16* output;   //!< [tokens, heads, head dim]
  float* log_sum_exp; //!< [heads, tokens]

  attention_state(placing& in, model_size const& size, std::int64_t tokens)
      : output(in.take<bfloat16>(tokens * size.width)),
        log_sum_exp(in.take<float>(size.heads * tokens)) {}
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
struct attention_gradients {
  placing in;
  bfloat16* query;  //!< [tokens, heads, head dim]
  float* key_value; //!< [tokens, 2, key heads, head dim]

  attention_gradients(std::byte* memory, model_size const& size, std::int64_t tokens)
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
    if (ends) {
      head = head_pass<Element>::keep(in, size, tokens);
    }
  }
};
//! What its backward uses for the gradients of weights.
template <class Element>
struct following_gradients {
  after_gradients<Element> after;
  Element* logits = nullptr; //!< [tokens, vocabulary]

  following_gradients(placing& in, model_size const& size, bool ends, std::int64_t tokens)
      : after(in, size, size, tokens) {
    if (ends) {
      logits = in.take<Element>(tokens * vocabulary);
    }
  }
};

//! Bytes of the slots that the plan of such stages needs; see buffer_sizes of the library.
template <class Element>
struct exchanged_slot_sizes {
  model_size size;
  exchange_schedule schedule;
  pp::shape extents;
  std::vector<chunk_range> chunks;

  [[nodiscard]] chunk_range range(int chunk) const {
    return chunks[static_cast<std::size_t>(chunk)];
  }
  //! The oldest tokens, whose keys are given away.
  [[nodiscard]] chunk_range given(pp::exchange_stage const& of) const {
    return {0, range(of.taken).begin};
  }
  [[nodiscard]] pp::exchange_stage stage(int number) const {
    return schedule.stage_at(extents, number);
  }

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
  [[nodiscard]] std::int64_t tokens(pp::exchange_stage const& of) const {
    return range(of.chunk).count();
  }
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
    if (of.part == part::projection) {
      (void)before_gradients<Element>(all, size, tokens(of));
    } else if (of.part == part::after_attention) {
      (void)following_gradients<Element>(all, size, ends(of), tokens(of));
    }
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
      return to.part == from.part ? 0 : attention_gradients(nullptr, size, tokens(from)).in.bytes();
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

} // namespace gpt::on_gpu
