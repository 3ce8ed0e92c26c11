// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A piece of the GPT whose vocabulary is in shards, on a GPU: a shard of the embedding or
//! of the output layer, with the softmax over logits of which each shard has a part, or the layers
//! of a stage. See vocabulary_piece.hpp.

#include <thrust/tabulate.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>

#include "../cuda/stage.cuh"

namespace gpt::on_gpu {

//! What several shards tell, where kernels find it.
struct told_by_shards {
  static constexpr int most = 64; //!< as many as a run has devices
  float const* of[most];
  int count;
};
//! @param skipped numbers before what is meant
[[nodiscard]] inline told_by_shards told_by(std::span<pp::input const> shards,
                                            std::int64_t skipped = 0) {
  if (shards.size() > told_by_shards::most)
    throw std::invalid_argument("the example on GPUs has 64 shards of the vocabulary at most");
  told_by_shards all{{}, static_cast<int>(shards.size())};
  for (std::size_t i = 0; i < shards.size(); ++i)
    all.of[i] = shards[i].as<float>().data() + skipped;
  return all;
}

//! to = the sum of what all give, in their order.
inline void add_up(float* to, told_by_shards const& from, std::int64_t count, cudaStream_t stream) {
  thrust::tabulate(on(stream), to, to + count, [=] __device__(std::int64_t i) {
    float sum = from.of[0][i];
    for (int shard = 1; shard < from.count; ++shard)
      sum += from.of[shard][i];
    return sum;
  });
}

//! x = the rows of the bytes that the shard has, zeros for others, [tokens, width].
inline void
look_up(float* x, float const* table, byte_range bytes, std::uint8_t const* text, token_rows rows) {
  thrust::tabulate(on(rows.stream), x, x + rows.count(), [=] __device__(std::int64_t i) {
    std::int64_t const byte = text[i / rows.width];
    return byte >= bytes.first && byte < bytes.last
             ? table[(byte - bytes.first) * rows.width + i % rows.width]
             : 0.0f;
  });
}

//! Logits [tokens, bytes] of a shard, and what comes next in the text.
struct logits_of_shard {
  float const* logits;
  byte_range bytes;
  std::uint8_t const* next_bytes;
  std::int64_t tokens;
  cudaStream_t stream;
};

//! Statistics [tokens, 3].
inline void make_statistics(float* statistics, logits_of_shard const& of) {
  auto const count = of.bytes.count();
  for_each_token(of.tokens, of.stream, [=] __device__(std::int64_t token, row_reduction & over) {
    float const* const row = of.logits + token * count;
    auto const seen = detail::look_at_logits(row, count, over);
    if (threadIdx.x == 0) {
      std::int64_t const next = of.next_bytes[token];
      float* const told = statistics + statistics_width * token;
      told[0] = seen.most;
      told[1] = seen.sum;
      told[2] = next >= of.bytes.first && next < of.bytes.last ? row[next - of.bytes.first] : 0.0f;
    }
  });
}

namespace detail {
//! Of a token, the statistics of all shards in one.
__device__ inline token_statistics join(told_by_shards const& shards, std::int64_t token) {
  token_statistics all{shards.of[0][statistics_width * token], 0, 0};
  for (int shard = 1; shard < shards.count; ++shard) {
    float const largest = shards.of[shard][statistics_width * token];
    all.largest = all.largest < largest ? largest : all.largest;
  }
  for (int shard = 0; shard < shards.count; ++shard) {
    float const* const one = shards.of[shard] + statistics_width * token;
    all.sum += one[1] * expf(one[0] - all.largest);
    all.next += one[2];
  }
  return all;
}
} // namespace detail

//! The losses of tokens, and the gradient of a shard's logits for `share` times their sum.
template <class Element>
void cross_entropy_of_shards(float* losses,
                             Element* gradient,
                             logits_of_shard const& of,
                             told_by_shards const& statistics,
                             float share) {
  auto const count = of.bytes.count();
  for_each_token(of.tokens, of.stream, [=] __device__(std::int64_t token, row_reduction&) {
    auto const all = detail::join(statistics, token);
    float const* const row = of.logits + token * count;
    for (std::int64_t v = threadIdx.x; v < count; v += row_threads) {
      float const hit = v + of.bytes.first == of.next_bytes[token] ? share : 0.0f;
      gradient[token * count + v] =
        static_cast<Element>(expf(row[v] - all.largest) / all.sum * share - hit);
    }
    if (threadIdx.x == 0)
      losses[token] = logf(all.sum) + all.largest - all.next;
  });
}

// With one barrier a shard tells the gradient of its input before it knows what others know:
// [tokens, width] sums of exp(logit - largest) times columns, [tokens, width] columns of the next
// bytes, and [tokens, 3] statistics.

//! exp(logit - largest) of a shard.
template <class Element>
void make_exponentials(Element* to, float const* statistics, logits_of_shard const& of) {
  auto const* const logits = of.logits;
  auto const count = of.bytes.count();
  thrust::tabulate(on(of.stream), to, to + of.tokens * count, [=] __device__(std::int64_t i) {
    return static_cast<Element>(expf(logits[i] - statistics[statistics_width * (i / count)]));
  });
}
//! The columns of the next bytes that the shard has, zeros for others, [tokens, width].
inline void
next_columns(float* to, float const* columns, logits_of_shard const& of, token_rows rows) {
  auto const bytes = of.bytes;
  auto const* const next_bytes = of.next_bytes;
  auto const count = bytes.count();
  thrust::tabulate(on(rows.stream), to, to + rows.count(), [=] __device__(std::int64_t i) {
    std::int64_t const next = next_bytes[i / rows.width];
    return next >= bytes.first && next < bytes.last
             ? columns[(i % rows.width) * count + next - bytes.first]
             : 0.0f;
  });
}
//! The gradient of the input of all shards, from what each has told.
inline void join_gradients(float* dx, told_by_shards const& told, float share, token_rows rows) {
  auto statistics = told;
  for (int shard = 0; shard < told.count; ++shard)
    statistics.of[shard] += 2 * rows.tokens * rows.width;
  thrust::tabulate(on(rows.stream), dx, dx + rows.count(), [=] __device__(std::int64_t i) {
    auto const token = i / rows.width;
    auto const all = detail::join(statistics, token);
    float sum = 0;
    for (int shard = 0; shard < told.count; ++shard) {
      float const scale =
        expf(statistics.of[shard][statistics_width * token] - all.largest) / all.sum;
      sum += share * (scale * told.of[shard][i] - told.of[shard][rows.tokens * rows.width + i]);
    }
    return sum;
  });
}

struct piece_of_model {
  enum class kind : std::uint8_t { rows, layers, columns };
  kind is;
  layer_range held;           //!< rows embed and columns end; layers do neither
  byte_range bytes{};         //!< of a shard
  bool has_positions = false; //!< the first layers
  bool normalises = false;    //!< the last ones

  piece_of_model(model_size const& size, sharded_cut const& cut, std::int64_t which)
      : is(which < cut.shards                ? kind::rows
           : which < cut.shards + cut.stages ? kind::layers
                                             : kind::columns) {
    if (is == kind::layers) {
      held = cut_layers(size.layers, cut.stages)[static_cast<std::size_t>(which - cut.shards)];
      has_positions = std::exchange(held.embeds, false);
      normalises = std::exchange(held.ends, false);
    } else {
      held = {0, 0, is == kind::rows, is == kind::columns};
      bytes =
        bytes_of_shard(is == kind::rows ? which : which - cut.shards - cut.stages, cut.shards);
    }
  }
  [[nodiscard]] std::size_t weights_before() const {
    return is != kind::layers || has_positions ? 1 : 0;
  }
};

//! What a shard of the output layer keeps.
template <class Element>
struct columns_kept {
  Element* input; //!< [tokens, width]
  float* logits;  //!< [tokens, bytes]

  columns_kept(placing& in, model_size const& size, byte_range bytes, std::int64_t tokens)
      : input(in.take<Element>(tokens * size.width)),
        logits(in.take<float>(tokens * bytes.count())) {}
};

//! Bytes of the slots that the plan of such pieces needs; see buffer_sizes of the library.
template <class Element>
class sharded_slot_sizes {
public:
  sharded_slot_sizes(model_size const& of, sharded_cut how) : size_(of), cut_(std::move(how)) {}

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    piece_of_model const piece(size_, cut_, maker.stage);
    bool const is_layers = piece.is == piece_of_model::kind::layers;
    bool const is_columns = piece.is == piece_of_model::kind::columns;
    auto const tokens = cut_.step.range({maker.microbatch, maker.chunk}).count();
    auto const sequence = cut_.step.tokens(maker.microbatch);
    placing all;
    switch (of) {
    case pp::slot_class::activation:
    case pp::slot_class::logits:
      if (is_layers) {
        (void)stage_kept<Element>(
          all, size_, size_, piece.held, tokens, cut_.step.chunks(maker.microbatch) == 1);
        if (piece.normalises)
          (void)head_pass<Element>::keep(all, size_, tokens);
      } else if (is_columns) {
        (void)columns_kept<Element>(all, size_, piece.bytes, tokens);
      }
      break;
    case pp::slot_class::weight_input:
      if (is_layers)
        (void)stage_gradients<Element>(all, size_, size_, piece.held, tokens);
      break;
    case pp::slot_class::sequence:
      (void)sequence_caches<bfloat16>(all, size_, piece.held, sequence);
      break;
    case pp::slot_class::sequence_gradient:
      (void)sequence_caches<float>(all, size_, piece.held, sequence);
      break;
    case pp::slot_class::statistics: return message_bytes(tokens * statistics_width);
    case pp::slot_class::input_gradient:
      return message_bytes(tokens * (is_columns && cut_.barriers == 1
                                       ? 2 * size_.width + statistics_width
                                       : size_.width));
    default: return message_bytes(tokens * size_.width); // activations
    }
    return all.bytes();
  }

private:
  //! Those of whole numbers, all of which passes write.
  [[nodiscard]] static std::int64_t message_bytes(std::int64_t numbers) {
    return numbers * static_cast<std::int64_t>(sizeof(float));
  }

  model_size size_;
  sharded_cut cut_;
};

//! A piece as the library calls it. What it reads of several others comes in their order.
template <class Element>
class sharded_stage : public stage<Element> {
public:
  //! @param host the same piece on the host, whose weights this one begins with
  template <class Host>
  sharded_stage(Host& host,
                stage_start<Element> const& with,
                piece_of_model const& piece,
                bool early)
      : stage<Element>(host, with), piece_(piece), early_(early) {}

  using pass = typename stage<Element>::pass;

  void forward(pass const& p, pp::input, pp::output out) {
    using enum piece_of_model::kind;
    float* const y = this->floats(out);
    switch (piece_.is) {
    case rows:
      return look_up(y, this->weights_[0].value(), piece_.bytes, this->text_of(p), this->rows(p));
    case layers: return run_layers(p, y);
    case columns: return make_logits(p, y);
    }
  }
  void input_half(pass const& p, pp::input, pp::output out, std::byte* between) {
    using enum piece_of_model::kind;
    switch (piece_.is) {
    case rows:
      return rows_backward(this->weights_[0].gradient(),
                           piece_.bytes,
                           p.where->inputs[0].template as<float>().data(),
                           this->text_of(p),
                           this->rows(p));
    case layers: return layers_input_half(p, this->floats(out), this->gradients_of(p, between));
    case columns: return finish_logits(p, this->floats(out));
    }
  }
  //! Of a shard of the output layer with one barrier all that is left of its backward.
  void weight_half(pass const& p, std::byte* between) {
    if (piece_.is == piece_of_model::kind::layers)
      stage<Element>::weight_half(p, between);
    else if (early_ && piece_.is == piece_of_model::kind::columns)
      finish_logits(p, nullptr);
  }

private:
  [[nodiscard]] std::int64_t numbers(pass const& p) const { return p.tokens * this->size_.width; }
  [[nodiscard]] float* positions(pass const& p, float* of) const {
    return of + p.chunk.begin * this->size_.width;
  }
  //! Of the norm, behind what the layers keep.
  [[nodiscard]] normalised norm_of(pass const& p) const {
    placing in(p.where->activation.data);
    (void)stage_kept<Element>(
      in, this->size_, this->size_, piece_.held, p.tokens, this->cut_.chunks(p.of.microbatch) == 1);
    return head_pass<Element>::keep(in, this->size_, p.tokens);
  }

  void run_layers(pass const& p, float* y) {
    float* const x = piece_.normalises ? p.work->scratch().residual : y;
    add_up(x, told_by(p.where->inputs), numbers(p), p.stream);
    if (piece_.has_positions)
      add(x, positions(p, this->weights_[0].value()), numbers(p), p.stream);
    this->layers_forward(p, this->kept_of(p), x);
    if (piece_.normalises) {
      layer_norm_forward(y, norm_of(p), x, this->weights_.back().value(), this->rows(p));
    }
  }
  void layers_input_half(pass const& p, float* dx, stage_gradients<Element> const& made) {
    this->input_order_.check(p.of, this->cut_, "backward_input");
    auto const told = told_by(p.where->inputs);
    float* const dy = piece_.normalises ? p.work->scratch().residual : dx;
    if (piece_.normalises && early_)
      join_gradients(dy, told, this->share(), this->rows(p));
    else
      add_up(dy, told, numbers(p), p.stream);
    if (piece_.normalises) {
      auto& gain = this->weights_.back();
      clear(dx, numbers(p), p.stream);
      layer_norm_backward(dx, gain.gradient(), dy, norm_of(p), gain.value(), this->rows(p));
    }
    this->layers_backward_input(p, this->kept_of(p), dx, made);
    if (piece_.has_positions)
      add(positions(p, this->weights_[0].gradient()), dx, numbers(p), p.stream);
  }

  [[nodiscard]] columns_kept<Element> columns_of(pass const& p) const {
    placing in(p.where->activation.data);
    return {in, this->size_, piece_.bytes, p.tokens};
  }
  [[nodiscard]] logits_of_shard logits_of(pass const& p, columns_kept<Element> const& kept) const {
    return {kept.logits, piece_.bytes, this->text_of(p) + 1, p.tokens, p.stream};
  }
  [[nodiscard]] matrix_pass<Element> product(pass const& p) {
    return this->part(p).matrix(this->weights_[0], this->size_.width, piece_.bytes.count());
  }
  void make_logits(pass const& p, float* statistics) {
    auto const kept = columns_of(p);
    convert(kept.input, p.where->inputs[0].template as<float>().data(), numbers(p), p.stream);
    product(p).forward(kept.logits, kept.input);
    make_statistics(statistics, logits_of(p, kept));
    if (early_) {
      float* const early = this->floats(p.where->outputs[1]);
      auto* const exponentials = wide_elements(p);
      make_exponentials(exponentials, statistics, logits_of(p, kept));
      product(p).backward_input(early, exponentials);
      next_columns(
        early + numbers(p), this->weights_[0].value(), logits_of(p, kept), this->rows(p));
      copy(early + 2 * numbers(p), statistics, p.tokens * statistics_width, p.stream);
    }
  }
  //! @param dx null where it has been told
  void finish_logits(pass const& p, float* dx) {
    auto const kept = columns_of(p);
    auto* const gradient = wide_elements(p);
    cross_entropy_of_shards(
      this->losses_of(p), gradient, logits_of(p, kept), told_by(p.where->inputs), this->share());
    if (dx != nullptr)
      product(p).backward_input(dx, gradient);
    product(p).backward_weight(kept.input, gradient);
  }
  //! Scratch for [tokens, bytes].
  [[nodiscard]] static Element* wide_elements(pass const& p) {
    return reinterpret_cast<Element*>(p.work->scratch().wide);
  }

  piece_of_model piece_;
  bool early_; // one barrier
};

} // namespace gpt::on_gpu
