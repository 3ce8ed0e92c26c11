// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A piece of the GPT whose vocabulary is in shards: a shard at either end, or the layers of
//! a stage; how the model is cut, what the shards tell each other, and what they make of it.
//!
//! A machine gives `tabulate`, all numbers of a list by their index, and `for_each_part`, a
//! function of tokens, each of which some threads may share.

#include <pipe/config.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../slot_sizes.hpp"

namespace gpt {

//! How the model is cut: P shards of the embedding, then the stages of layers, then P shards of the
//! output layer, as with_vocabulary numbers them.
struct sharded_cut {
  std::int64_t shards = 1;
  std::int64_t stages = 1; //!< of layers
  int barriers = 2;        //!< those of with_vocabulary
  step_cut step;
};

//! How a timetable of a with_vocabulary schedule cuts the model.
[[nodiscard]] inline sharded_cut
cut_around(model_size const& size, pp::timetable_view table, int barriers) {
  int const shards = table.over.extents.devices;
  return {shards,
          table.over.extents.stages() - 2 * shards,
          barriers,
          cut_for(table, whole_lengths(size, table))};
}

//! What several shards tell, where kernels find it, too.
struct told_by_shards {
  static constexpr int most = 64; //!< as many as a run has devices
  float const* of[most];
  int count;
};
[[nodiscard]] inline told_by_shards told_by(std::span<pp::input const> shards) {
  if (shards.size() > told_by_shards::most)
    throw std::invalid_argument("the example has 64 shards of the vocabulary at most");
  told_by_shards all{{}, static_cast<int>(shards.size())};
  for (std::size_t i = 0; i < shards.size(); ++i)
    all.of[i] = shards[i].as<float>().data();
  return all;
}

//! Logits [tokens, bytes] of a shard, and what comes next in the text.
template <class Stream>
struct logits_of_shard {
  float const* logits;
  chunk_range bytes;
  std::uint8_t const* next_bytes;
  std::int64_t tokens;
  Stream on;
};

//! to = the sum of what all give, in their order.
template <class Stream>
void add_up(float* to, told_by_shards const& from, std::int64_t count, Stream on) {
  tabulate(to, count, on, [=] PIPELINING_HOST_DEVICE(std::int64_t i) {
    float sum = from.of[0][i];
    for (int shard = 1; shard < from.count; ++shard)
      sum += from.of[shard][i];
    return sum;
  });
}
//! x = the rows of the bytes that the shard has, zeros for others, [tokens, width].
template <class Stream>
void look_up(float* x,
             float const* table,
             chunk_range bytes,
             std::uint8_t const* text,
             token_rows<Stream> rows) {
  tabulate(x, rows.count(), rows.stream, [=] PIPELINING_HOST_DEVICE(std::int64_t i) {
    std::int64_t const byte = text[i / rows.width];
    return byte >= bytes.begin && byte < bytes.end
             ? table[(byte - bytes.begin) * rows.width + i % rows.width]
             : 0.0F;
  });
}

//! Of a token, the statistics of all shards in one.
[[nodiscard]] PIPELINING_HOST_DEVICE inline token_statistics join(told_by_shards const& shards,
                                                                  std::int64_t token) {
  token_statistics all{shards.of[0][statistics_width * token], 0, 0};
  for (int shard = 1; shard < shards.count; ++shard) {
    float const largest = shards.of[shard][statistics_width * token];
    all.largest = all.largest < largest ? largest : all.largest;
  }
  for (int shard = 0; shard < shards.count; ++shard) {
    float const* const one = shards.of[shard] + statistics_width * token;
    all.sum += one[1] * std::exp(one[0] - all.largest);
    all.next += one[2];
  }
  return all;
}

// With one barrier a shard tells the gradient of its input before it knows what others know:
// [tokens, width] sums of exp(logit - largest) times columns, [tokens, width] columns of the next
// bytes, and [tokens, 3] statistics.

//! exp(logit - largest) of a shard.
template <class Element, class Stream>
void make_exponentials(Element* to, float const* statistics, logits_of_shard<Stream> const& of) {
  auto const* const logits = of.logits;
  auto const count = of.bytes.end - of.bytes.begin;
  tabulate(to, of.tokens * count, of.on, [=] PIPELINING_HOST_DEVICE(std::int64_t i) {
    return static_cast<Element>(std::exp(logits[i] - statistics[statistics_width * (i / count)]));
  });
}
//! The columns of the next bytes that the shard has, zeros for others, [tokens, width].
template <class Stream>
void next_columns(float* to,
                  float const* columns,
                  logits_of_shard<Stream> const& of,
                  token_rows<Stream> rows) {
  auto const bytes = of.bytes;
  auto const* const next_bytes = of.next_bytes;
  tabulate(to, rows.count(), rows.stream, [=] PIPELINING_HOST_DEVICE(std::int64_t i) {
    std::int64_t const next = next_bytes[i / rows.width];
    return next >= bytes.begin && next < bytes.end
             ? columns[(i % rows.width) * (bytes.end - bytes.begin) + next - bytes.begin]
             : 0.0F;
  });
}
//! The gradient of the input of all shards, from what each has told.
template <class Stream>
void join_gradients(float* dx, told_by_shards const& told, float share, token_rows<Stream> rows) {
  auto statistics = told;
  for (int shard = 0; shard < told.count; ++shard)
    statistics.of[shard] += 2 * rows.count();
  auto const count = rows.count();
  for_each_part(rows, [=] PIPELINING_HOST_DEVICE(std::int64_t token, int first, int stride) {
    auto const all = join(statistics, token);
    for (std::int64_t i = token * rows.width + first; i < (token + 1) * rows.width; i += stride) {
      float sum = 0;
      for (int shard = 0; shard < told.count; ++shard) {
        float const largest = statistics.of[shard][statistics_width * token];
        float const scale = std::exp(largest - all.largest) / all.sum;
        sum += share * (scale * told.of[shard][i] - told.of[shard][count + i]);
      }
      dx[i] = sum;
    }
  });
}

//! A piece of the model: a shard at either end, or layers between.
struct piece_of_model {
  enum class kind : std::uint8_t { rows, layers, columns };
  kind is;
  layer_range held;           //!< rows embed and columns end; layers do neither
  chunk_range bytes{};        //!< of a shard
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
      auto const shard = is == kind::rows ? which : which - cut.shards - cut.stages;
      bytes = cut_sequence(vocabulary, cut.shards)[static_cast<std::size_t>(shard)];
    }
  }
  //! Weights that stand before those of the layers.
  [[nodiscard]] std::size_t weights_before() const {
    return is != kind::layers || has_positions ? 1 : 0;
  }
  [[nodiscard]] std::vector<tensor_part> parts(model_size const& size) const {
    if (is == kind::rows)
      return {bytes_part(size, bytes)};
    if (is == kind::columns)
      return {out_part(size, bytes)};
    auto all = parts_of(size, held);
    if (has_positions)
      all.insert(all.begin(), positions_part(size));
    if (normalises)
      all.push_back(norm_part(size));
    return all;
  }
};

//! What a piece keeps: its layers and the norm after the last ones, or a shard of the output layer.
template <class Machine>
struct piece_kept {
  stage_kept<Machine> layers;
  normalised<typename Machine::number> norm{};
  typename Machine::element* input = nullptr; //!< [tokens, width]
  typename Machine::number* logits = nullptr; //!< [tokens, bytes]

  piece_kept(placing& in, tensor_extents const& of, piece_of_model const& piece)
      : layers(in, of, piece.is == piece_of_model::kind::layers ? piece.held : layer_range{}) {
    if (piece.normalises)
      norm = {in, of};
    if (piece.is == piece_of_model::kind::columns) {
      input = in.take<typename Machine::element>(of.wide());
      logits = in.take<typename Machine::number>(of.tokens * piece.bytes.count());
    }
  }
};

//! Bytes of the slots that the plan of such pieces needs; see buffer_sizes of the library.
template <class Machine>
struct sharded_slot_sizes {
  model_size size;
  sharded_cut cut;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    using enum piece_of_model::kind;
    piece_of_model const piece(size, cut, maker.stage);
    unit const which{maker.microbatch, maker.chunk};
    tensor_extents const all{
      size, size, cut.step.range(which).count(), cut.step.chunks(which.microbatch) == 1};
    bool const early = piece.is == columns && cut.barriers == 1;
    switch (of) {
    case pp::slot_class::statistics: return message_bytes(all.tokens * statistics_width);
    case pp::slot_class::output: return message_bytes(all.wide());
    case pp::slot_class::input_gradient:
      return message_bytes(early ? 2 * all.wide() + all.tokens * statistics_width : all.wide());
    case pp::slot_class::logits:
    case pp::slot_class::activation: return bytes_of<Machine, piece_kept<Machine>>(all, piece);
    default:
      return piece.is == layers ? stage_bytes<Machine>(size, size, piece.held, cut.step, of, which)
                                : 0;
    }
  }

private:
  //! Those of whole numbers, all of which passes write.
  [[nodiscard]] static std::int64_t message_bytes(std::int64_t numbers) {
    return numbers * static_cast<std::int64_t>(sizeof(float));
  }
};

//! A piece as the library calls it. What it reads of several others comes in their order.
template <class Machine>
class sharded_stage : public stage<Machine> {
public:
  using number = typename Machine::number;
  using element = typename Machine::element;
  using pass = typename stage<Machine>::pass;

  //! @param with all but what it holds
  sharded_stage(piece_of_model const& piece,
                std::uint64_t seed,
                stage_start<Machine> with,
                bool early)
      : stage<Machine>(piece.parts(with.size), seed, of_piece(with, piece)), piece_(piece),
        early_(early) {}

  void forward(pass const& p, pp::input, pp::output out) {
    using enum piece_of_model::kind;
    number* const y = this->numbers(out);
    switch (piece_.is) {
    case rows:
      return look_up(y, this->weights_[0].values(), piece_.bytes, this->text_of(p), this->rows(p));
    case layers: return run_layers(p, y);
    case columns: return make_logits(p, y);
    }
  }
  void input_half(pass const& p, pp::input, pp::output out, std::byte* between) {
    using enum piece_of_model::kind;
    switch (piece_.is) {
    case rows:
      return rows_backward(this->weights_[0].gradients(),
                           piece_.bytes,
                           p.where->inputs[0].template as<number>().data(),
                           this->text_of(p),
                           this->rows(p));
    case layers: return layers_input_half(p, this->numbers(out), between);
    case columns: return finish_logits(p, this->numbers(out));
    }
  }
  //! Of a shard of the output layer with one barrier all that is left of its backward.
  void weight_half(pass const& p, std::byte* between) {
    if (piece_.is == piece_of_model::kind::layers)
      stage<Machine>::weight_half(p, between);
    else if (early_ && piece_.is == piece_of_model::kind::columns)
      finish_logits(p, nullptr);
  }

private:
  static stage_start<Machine> of_piece(stage_start<Machine> with, piece_of_model const& piece) {
    with.held = piece.held;
    with.before = piece.weights_before();
    return with;
  }
  [[nodiscard]] std::int64_t count(pass const& p) const { return p.tokens * this->size_.width; }
  template <class T>
  [[nodiscard]] T* positions(pass const& p, T* of) const {
    return of + p.chunk.begin * this->size_.width;
  }
  [[nodiscard]] piece_kept<Machine> kept(pass const& p) const {
    return put_in<Machine, piece_kept<Machine>>(p.where->activation.data, this->extents(p), piece_);
  }

  void run_layers(pass const& p, number* y) {
    number* const x = piece_.normalises ? p.work->scratch().residual : y;
    add_up(x, told_by(p.where->inputs), count(p), p.on);
    if (piece_.has_positions)
      add(x, positions(p, this->weights_[0].values()), count(p), p.on);
    this->layers_forward(p, this->kept_of(p), x);
    if (piece_.normalises)
      layer_norm_forward(y, kept(p).norm, x, this->weights_.back().values(), this->rows(p));
  }
  void layers_input_half(pass const& p, number* dx, std::byte* between) {
    this->input_order_.check(p.of, this->cut_, "backward_input");
    auto const told = told_by(p.where->inputs);
    number* const dy = piece_.normalises ? p.work->scratch().residual : dx;
    if (piece_.normalises && early_)
      join_gradients(dy, told, this->share(), this->rows(p));
    else
      add_up(dy, told, count(p), p.on);
    if (piece_.normalises) {
      auto& gain = this->weights_.back();
      clear(dx, count(p), p.on);
      layer_norm_backward(dx, gain.gradients(), dy, kept(p).norm, gain.values(), this->rows(p));
    }
    this->layers_backward_input({*this, p, between}, dx);
    if (piece_.has_positions)
      add(positions(p, this->weights_[0].gradients()), dx, count(p), p.on);
  }

  [[nodiscard]] auto logits_of(pass const& p) const {
    return logits_of_shard<typename Machine::stream>{
      kept(p).logits, piece_.bytes, this->text_of(p) + 1, p.tokens, p.on};
  }
  [[nodiscard]] auto product(pass const& p) {
    return this->part(p).matrix(this->weights_[0], this->size_.width, piece_.bytes.count());
  }
  void make_logits(pass const& p, number* statistics) {
    auto const of = kept(p);
    auto const logits = logits_of(p);
    convert(of.input, p.where->inputs[0].template as<number>().data(), count(p), p.on);
    product(p).forward(of.logits, of.input);
    make_statistics(statistics, logits);
    if (early_) {
      number* const early = this->numbers(p.where->outputs[1]);
      auto* const exponentials = wide_elements(p);
      make_exponentials(exponentials, statistics, logits);
      product(p).backward_input(early, exponentials);
      next_columns(early + count(p), this->weights_[0].values(), logits, this->rows(p));
      copy(early + 2 * count(p), statistics, p.tokens * statistics_width, p.on);
    }
  }
  //! @param dx null where it has been told
  void finish_logits(pass const& p, number* dx) {
    auto* const gradient = wide_elements(p);
    cross_entropy_of_shards(
      this->losses_of(p), gradient, logits_of(p), told_by(p.where->inputs), this->share());
    if (dx != nullptr)
      product(p).backward_input(dx, gradient);
    product(p).backward_weight(kept(p).input, gradient);
  }
  //! Scratch for [tokens, bytes].
  [[nodiscard]] static element* wide_elements(pass const& p) {
    return reinterpret_cast<element*>(p.work->scratch().wide);
  }

  piece_of_model piece_;
  bool early_; // one barrier
};

} // namespace gpt
