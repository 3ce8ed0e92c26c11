// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A layer of the GPT, and the end of the model, on any machine: what comes before
//! attention, attention, what follows, for one chunk at a time; norm, linear and cross-entropy.
//!
//! Of a stage in shards a layer has some heads and some of the hidden numbers: the sizes of these
//! are `own`, and own width is what the shard's heads have together. A part keeps nothing of a
//! unit: what its backward needs lies in the slots of the plan.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

#include <cstdint>
#include <type_traits>

#include "memory.hpp"

namespace gpt {

namespace attention = pipelining::attention;

//! What attention reads and gives. It reads keys and values of what is seen.
template <class Element, class Sum>
struct attention_tensors {
  Element const* query;
  Element const* key_value;
  Element* output;
  Sum* log_sum_exp; //!< [heads, tokens]
};
//! The gradients of these. Those of keys and values grow, for all that is seen.
template <class Element, class Sum>
struct attention_gradients {
  Element const* output;
  Element* query;
  Sum* key_value;
};

//! A chunk that attends to some tokens, and how its tensors lie: queries [tokens, heads, head dim],
//! keys and values [seen, 2, key heads, head dim].
struct attending {
  model_size size;
  chunk_range chunk;
  chunk_range seen;

  [[nodiscard]] attention::parameters parameters() const {
    attention::parameters p;
    p.query_length = chunk.count();
    p.query_offset = chunk.begin;
    p.key_length = seen.count();
    p.key_offset = seen.begin;
    p.heads = size.heads;
    p.key_heads = size.key_heads;
    p.head_dim = size.head_dim();
    return p;
  }
  template <class Element, class Sum>
  [[nodiscard]] attention::forward_tensors<Element>
  forward_tensors(attention_tensors<Element, Sum> const& of) const {
    return {queries(of.query),
            keys(of.key_value),
            keys(of.key_value + size.key_width()),
            queries(of.output),
            rows(of.log_sum_exp)};
  }
  template <class Element, class Sum>
  [[nodiscard]] attention::backward_tensors<Element>
  backward_tensors(attention_tensors<Element, Sum> const& of,
                   attention_gradients<Element, Sum> const& to) const {
    return {queries(of.query),
            keys(of.key_value),
            keys(of.key_value + size.key_width()),
            queries<Element const>(of.output),
            rows<Sum const>(of.log_sum_exp),
            queries(to.output),
            queries(to.query),
            keys(to.key_value),
            keys(to.key_value + size.key_width())};
  }

private:
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> queries(Element* data) const {
    return attention::dense_tensor(data, 1, chunk.count(), size.heads, size.head_dim());
  }
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> keys(Element* data) const {
    auto view = attention::dense_tensor(data, 1, seen.count(), size.key_heads, size.head_dim());
    view.length_stride = 2 * size.key_width();
    return view;
  }
  template <class Element>
  [[nodiscard]] attention::row_view<Element> rows(Element* data) const {
    return attention::dense_rows(data, 1, size.heads, chunk.count());
  }
};

//! What attention keeps of a unit from forward to the end of its backward.
template <class Machine>
struct attention_kept {
  using attended = typename Machine::attended;
  using number = typename Machine::number;

  attended* query;     //!< [tokens, heads, head dim]
  attended* output;    //!< the same of attention
  number* log_sum_exp; //!< [heads, tokens]
  attended* key_value; //!< of whole sequences, [tokens, 2, key heads, head dim]

  attention_kept(placing& in, tensor_extents const& of)
      : query(in.take<attended>(of.queries())), output(in.take<attended>(of.queries())),
        log_sum_exp(in.take<number>(of.own.heads * of.tokens)),
        key_value(of.whole_sequence ? in.take<attended>(of.keys()) : nullptr) {}

  [[nodiscard]] attention_tensors<attended, number> with(attended const* keys_and_values) const {
    return {query, keys_and_values, output, log_sum_exp};
  }
};
//! What the MLP keeps.
template <class Machine>
struct mlp_kept {
  normalised<typename Machine::number> norm;
  typename Machine::number* inner;  //!< [tokens, hidden], before GELU
  typename Machine::element* outer; //!< [tokens, hidden], after GELU

  mlp_kept(placing& in, tensor_extents const& of)
      : norm(in, of), inner(in.take<typename Machine::number>(of.hidden())),
        outer(in.take<typename Machine::element>(of.hidden())) {}
};

//! Room for gradients: that of numbers which backward_input alone reads, or, for other types, new.
template <class Element, class T>
[[nodiscard]] Element* take_gradient(placing& in, T* old, std::int64_t count) {
  if constexpr (std::is_same_v<Element, T>)
    return old;
  else
    return in.take<Element>(count);
}

//! What backward_input has for backward_weight: the gradients of what products have written, before
//! attention, ...
template <class Machine>
struct before_gradients {
  using element = typename Machine::element;

  element* query;     //!< [tokens, width]
  element* key_value; //!< [tokens, 2, key heads, head dim]

  before_gradients(placing& in, tensor_extents const& of)
      : query(in.take<element>(of.queries())), key_value(in.take<element>(of.keys())) {}
  before_gradients(placing& in, tensor_extents const& of, attention_kept<Machine> const& kept)
      : query(take_gradient<element>(in, kept.query, of.queries())),
        key_value(of.whole_sequence ? take_gradient<element>(in, kept.key_value, of.keys())
                                    : in.take<element>(of.keys())) {}
};
//! ... of the projection, and in the MLP.
template <class Machine>
struct after_gradients {
  using element = typename Machine::element;

  element* projection; //!< [tokens, width]
  element* inner;      //!< [tokens, hidden]
  element* down;       //!< [tokens, width]

  after_gradients(placing& in, tensor_extents const& of, mlp_kept<Machine> const& kept)
      : projection(in.take<element>(of.wide())),
        inner(take_gradient<element>(in, kept.inner, of.hidden())),
        down(in.take<element>(of.wide())) {}
};

//! Norm, query, keys and values, at work on one chunk.
template <class Machine>
struct before_attention_pass {
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  part_pass<Machine> at;
  typename Machine::weight *gain, *query_weight, *key_value_weight;
  normalised<number> kept;

  //! @param first of three weights, one after the other
  before_attention_pass(part_pass<Machine> const& where,
                        typename Machine::weight* first,
                        normalised<number> norm)
      : at(where), gain(first), query_weight(first + 1), key_value_weight(first + 2), kept(norm) {}

  //! Of x [tokens, width] writes query [tokens, width] and key_value [tokens, 2, key heads, head
  //! dim].
  void forward(attended* query, attended* key_value, number const* x) const {
    auto const& space = at.space();
    layer_norm_forward(space.scaled, kept, x, gain->values(), at.rows());
    at.rounded(query, at.tokens * at.own.width, space.wide, [&](number* to) {
      queries().forward(to, space.scaled);
    });
    at.rounded(key_value, at.tokens * 2 * at.own.key_width(), space.wide, [&](number* to) {
      keys().forward(to, space.scaled);
    });
  }
  //! Writes the gradient of what the norm gives; of shards, the sum of all of that is wanted.
  void backward_products(number* normal_gradient, before_gradients<Machine> const& made) const {
    queries().backward_input(normal_gradient, made.query);
    keys().backward_input(normal_gradient, made.key_value, product_goes::added);
  }
  //! Adds to dx [tokens, width], and to the gradient of the gain.
  void add_backward_input(number* dx, before_gradients<Machine> const& made) const {
    backward_products(at.space().narrow, made);
    at.add_shards(at.space().narrow);
    join(dx, at.space().narrow);
  }
  //! @param normal_gradient of what the norm gives
  void join(number* dx, number const* normal_gradient) const {
    at.norm_backward(dx, normal_gradient, *gain, kept);
  }
  void add_backward_weight(before_gradients<Machine> const& made) const {
    auto const* const scaled = at.scale_again(kept, *gain);
    queries().backward_weight(scaled, made.query);
    keys().backward_weight(scaled, made.key_value);
  }

private:
  [[nodiscard]] auto queries() const {
    return at.matrix(*query_weight, at.size.width, at.own.width);
  }
  [[nodiscard]] auto keys() const {
    return at.matrix(*key_value_weight, at.size.width, 2 * at.own.key_width());
  }
};

//! The MLP at work on one chunk.
template <class Machine>
struct mlp_pass {
  using number = typename Machine::number;

  part_pass<Machine> at;
  typename Machine::weight *gain, *up, *down;
  mlp_kept<Machine> kept;

  //! @param y [tokens, width], to which the MLP of x, or a shard's part of it, is added
  void forward(number const* x, number* y) const {
    auto const& space = at.space();
    layer_norm_forward(space.scaled, kept.norm, x, gain->values(), at.rows());
    upwards().forward(kept.inner, space.scaled);
    gelu_forward(kept.outer, kept.inner, at.tokens * at.own.hidden(), at.stream);
    downwards().forward(y, kept.outer, product_goes::added);
  }
  //! Writes the gradient of what the norm gives; of shards, the sum of all of that is wanted.
  //! @param dy the gradient of what the layer hands on
  void backward_products(number const* dy,
                         number* normal_gradient,
                         after_gradients<Machine> const& made) const {
    auto const& space = at.space();
    convert(made.down, dy, at.rows().count(), at.stream);
    downwards().backward_input(space.wide, made.down);
    gelu_backward(made.inner, kept.inner, space.wide, at.tokens * at.own.hidden(), at.stream);
    upwards().backward_input(normal_gradient, made.inner);
  }
  void join(number* dx, number const* normal_gradient) const {
    at.norm_backward(dx, normal_gradient, *gain, kept.norm);
  }
  void add_backward_weight(after_gradients<Machine> const& made) const {
    upwards().backward_weight(at.scale_again(kept.norm, *gain), made.inner);
    downwards().backward_weight(kept.outer, made.down);
  }

private:
  [[nodiscard]] auto upwards() const { return at.matrix(*up, at.size.width, at.own.hidden()); }
  [[nodiscard]] auto downwards() const { return at.matrix(*down, at.own.hidden(), at.size.width); }
};

//! The projection of attention's output onto the residual, at work on one chunk.
template <class Machine>
struct projection_pass {
  using number = typename Machine::number;
  using attended = typename Machine::attended;
  using element = typename Machine::element;

  part_pass<Machine> at;
  typename Machine::weight* weight;
  attended const* output; //!< of attention, [tokens, width]

  //! Adds to x [tokens, width].
  void forward(number* x) const { product().forward(x, operand(), product_goes::added); }
  //! @param made becomes dx, as products read it. @param gradient of attention's output
  void backward_input(number const* dx, element* made, attended* gradient) const {
    convert(made, dx, at.rows().count(), at.stream);
    at.rounded(gradient, at.tokens * at.own.width, at.space().narrow, [&](number* to) {
      product().backward_input(to, made);
    });
  }
  void add_backward_weight(element const* made) const {
    product().backward_weight(operand(), made);
  }

private:
  [[nodiscard]] auto product() const { return at.matrix(*weight, at.own.width, at.size.width); }
  //! Attention's output as products read it.
  [[nodiscard]] element const* operand() const {
    if constexpr (std::is_same_v<element, attended>) {
      return output;
    } else {
      convert(at.space().scaled, output, at.tokens * at.own.width, at.stream);
      return at.space().scaled;
    }
  }
};

//! The projection and the MLP after it, at work on one chunk.
template <class Machine>
struct after_attention_pass {
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  part_pass<Machine> at;
  projection_pass<Machine> projection;
  mlp_pass<Machine> mlp;

  //! @param first of four weights, one after the other. @param output of attention
  after_attention_pass(part_pass<Machine> const& where,
                       typename Machine::weight* first,
                       mlp_kept<Machine> const& kept,
                       attended const* output)
      : at(where),
        projection{where, first, output}, mlp{where, first + 1, first + 2, first + 3, kept} {}

  //! x [tokens, width], the residual, becomes the layer's output.
  void forward(number* x) const {
    at.add_to(x, [&](number* to) { projection.forward(to); });
    at.add_to(x, [&](number* to) { mlp.forward(x, to); });
  }
  //! dx [tokens, width], the gradient of the layer's output, becomes that of the residual. The
  //! gradient of the gain grows too.
  //! @param output_gradient of attention's output
  void backward_input(number* dx,
                      attended* output_gradient,
                      after_gradients<Machine> const& made) const {
    number* const normal_gradient = at.space().narrow;
    mlp.backward_products(dx, normal_gradient, made);
    at.add_shards(normal_gradient);
    mlp.join(dx, normal_gradient);
    projection.backward_input(dx, made.projection, output_gradient);
  }
  void add_backward_weight(after_gradients<Machine> const& made) const {
    projection.add_backward_weight(made.projection);
    mlp.add_backward_weight(made);
  }
};

//! What a layer keeps of a unit from forward to the end of its backward.
template <class Machine>
struct layer_kept {
  normalised<typename Machine::number> first; //!< before attention
  attention_kept<Machine> attention;
  mlp_kept<Machine> after;

  layer_kept(placing& in, tensor_extents const& of)
      : first(in, of), attention(in, of), after(in, of) {}
};

//! What backward_input makes for backward_weight: the gradients of what products have written.
template <class Machine>
struct layer_gradients {
  before_gradients<Machine> before;
  after_gradients<Machine> after;

  layer_gradients(placing& in, tensor_extents const& of, layer_kept<Machine> const& kept)
      : before(in, of, kept.attention), after(in, of, kept.after) {}
};

//! A layer at work on one chunk.
template <class Machine>
class layer_pass {
public:
  using number = typename Machine::number;
  using attended = typename Machine::attended;

  before_attention_pass<Machine> before;
  after_attention_pass<Machine> after;

  //! @param first of seven weights, one after the other
  layer_pass(part_pass<Machine> const& at,
             typename Machine::weight* first,
             chunk_range chunk,
             layer_kept<Machine> const& kept)
      : before(at, first, kept.first),
        after(at, first + 3, kept.after, kept.attention.output), attends_{at.own,
                                                                          chunk,
                                                                          {0, chunk.end}},
        kept_(kept.attention), at_(at) {}

  //! x [tokens, width], the residual, becomes the layer's output.
  //! @param key_value [sequence, 2, key heads, head dim]: those of the chunk join those before
  void forward(number* x, attended* key_value) const {
    attention_forward(x, key_value);
    after.forward(x);
  }
  //! Up to attention's output.
  void attention_forward(number const* x, attended* key_value) const {
    before.forward(kept_.query, key_value + attends_.chunk.begin * keys(), x);
    attend(attends_, kept_.with(key_value), *at_.work, at_.stream);
  }

  //! dx [tokens, width], the gradient of the output, becomes that of the input. The gradients of
  //! the gains grow too.
  //! @param made for backward_weight
  //! @param carried shaped as key_value: what later chunks have added to it joins this chunk's
  void backward_input(number* dx,
                      layer_gradients<Machine> const& made,
                      attended const* key_value,
                      number* carried) const {
    after.backward_input(dx, at_.space().output_gradient, made.after);
    attention_backward(made.before, key_value, carried);
    before.add_backward_input(dx, made.before);
  }
  //! From the gradient of attention's output, in scratch, to those of query, keys and values.
  void attention_backward(before_gradients<Machine> const& made,
                          attended const* key_value,
                          number* carried) const {
    auto const& space = at_.space();
    attend_backward(
      attends_,
      kept_.with(key_value),
      attention_gradients<attended, number>{space.output_gradient, space.query_gradient, carried},
      *at_.work,
      at_.stream);
    convert(made.query, space.query_gradient, at_.tokens * at_.own.width, at_.stream);
    convert(
      made.key_value, carried + attends_.chunk.begin * keys(), at_.tokens * keys(), at_.stream);
  }

  void backward_weight(layer_gradients<Machine> const& made) const {
    before.add_backward_weight(made.before);
    after.add_backward_weight(made.after);
  }

private:
  [[nodiscard]] std::int64_t keys() const { return 2 * at_.own.key_width(); }

  attending attends_;
  attention_kept<Machine> kept_;
  part_pass<Machine> at_;
};

//! Adds to the gradients of both embeddings. @param position_gradients of the first token on
template <class Number, class Stream>
void embedding_backward(Number* byte_gradients,
                        Number* position_gradients,
                        Number const* dx,
                        std::uint8_t const* text,
                        token_rows<Stream> rows) {
  rows_backward(byte_gradients, {0, vocabulary}, dx, text, rows);
  add(position_gradients, dx, rows.count(), rows.stream);
}

//! The head at work on one chunk. It keeps its normalised input, and from backward_input to
//! backward_weight the gradient of the logits, [tokens, vocabulary]; logits are made anew.
template <class Machine>
struct head_pass {
  using number = typename Machine::number;
  using element = typename Machine::element;

  part_pass<Machine> at;
  typename Machine::weight *gain, *out;
  std::uint8_t const* next_bytes;
  normalised<number> kept;

  //! Writes the loss of each token, in nats.
  void forward(number* losses, number const* x) const {
    auto const& space = at.space();
    layer_norm_forward(space.scaled, kept, x, gain->values(), at.rows());
    logits().forward(space.wide, space.scaled);
    cross_entropy_forward(losses, space.wide, next_bytes, at.tokens, at.stream);
  }
  //! dx = the gradient of the input for `share` times the sum of the losses.
  void backward_input(number* dx, element* logits_gradient, number share) const {
    auto const& space = at.space();
    logits().forward(space.wide, at.scale_again(kept, *gain));
    cross_entropy_backward(logits_gradient, space.wide, next_bytes, share, at.tokens, at.stream);
    logits().backward_input(space.narrow, logits_gradient);
    clear(dx, at.rows().count(), at.stream);
    at.norm_backward(dx, space.narrow, *gain, kept);
  }
  void backward_weight(element const* logits_gradient) const {
    logits().backward_weight(at.scale_again(kept, *gain), logits_gradient);
  }

private:
  [[nodiscard]] auto logits() const { return at.matrix(*out, at.size.width, vocabulary); }
};

} // namespace gpt
