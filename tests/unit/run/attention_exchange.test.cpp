// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Attention that other devices take over, on threads: layers of real attention, whose gradients are
// those of whole sequences on one device in double, and bit by bit those of one device with the
// same splits and merges, under every policy.
#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/merge.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <tests/support/attention_reference.hpp>
#include <tests/support/exchange_on_one_device.hpp>
#include <vector>

namespace pp = pipelining;
namespace attention = pipelining::attention;

namespace {

using schedule_type = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;
using numbers = std::vector<double>;

constexpr std::int64_t tokens = 3; // of a chunk
constexpr std::int64_t heads = 2;
constexpr std::int64_t key_heads = 1;
constexpr std::int64_t head_dim = 4;
constexpr std::int64_t width = heads * head_dim;
constexpr std::int64_t key_width = key_heads * head_dim;

std::size_t size_of(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

//! y += x w for x [rows, in], w [in, out].
void add_product(double const* x,
                 double const* w,
                 double* y,
                 std::int64_t rows,
                 std::int64_t in,
                 std::int64_t out) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < in; ++i)
      for (std::int64_t o = 0; o < out; ++o)
        y[r * out + o] += x[r * in + i] * w[i * out + o];
}
//! The gradients of the same: dx += dy w^T, dw += x^T dy.
void add_gradients(double const* x,
                   double const* w,
                   double const* dy,
                   double* dx,
                   double* dw,
                   std::int64_t rows,
                   std::int64_t in,
                   std::int64_t out) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < in; ++i)
      for (std::int64_t o = 0; o < out; ++o) {
        dx[r * in + i] += dy[r * out + o] * w[i * out + o];
        dw[i * out + o] += x[r * in + i] * dy[r * out + o];
      }
}

//! The weights of a layer y = x + attention(x Wq, x Wk, x Wv) Wo, or their gradients.
struct layer_weights {
  numbers query = numbers(size_of(width, width));
  numbers key = numbers(size_of(width, key_width));
  numbers value = numbers(size_of(width, key_width));
  numbers output = numbers(size_of(width, width));

  friend bool operator==(layer_weights const&, layer_weights const&) = default;
};

//! A layer, where its weights are, with the keys and values of each microbatch.
struct layer {
  layer_weights weights;
  layer_weights gradients;
  std::vector<numbers> keys; // [microbatch]
  std::vector<numbers> values;
  std::vector<numbers> key_gradients;
  std::vector<numbers> value_gradients;
};

double token(int microbatch, std::int64_t number) {
  return std::sin(1.7 * static_cast<double>(number) + 3.1 * microbatch);
}
double target(int microbatch, std::int64_t number) {
  return std::cos(0.9 * static_cast<double>(number) - microbatch);
}

attention::parameters call(std::int64_t query_chunk,
                           std::int64_t key_chunk,
                           std::int64_t key_chunks,
                           std::int64_t length) {
  return {.query_length = length,
          .query_offset = query_chunk * tokens,
          .key_length = key_chunks * tokens,
          .key_offset = key_chunk * tokens,
          .heads = heads,
          .key_heads = key_heads,
          .head_dim = head_dim};
}
template <class Number>
auto rows(Number* data, std::int64_t length) {
  return attention::dense_tensor(data, 1, length, heads, head_dim);
}
template <class Number>
auto key_rows(Number* data, std::int64_t length) {
  return attention::dense_tensor(data, 1, length, key_heads, head_dim);
}
template <class Number>
auto statistics(Number* data, std::int64_t length) {
  return attention::dense_rows(data, 1, heads, length);
}

// What lies in slots, one part after the other.
constexpr std::int64_t narrow = tokens * width; // of a chunk: queries, outputs, x
constexpr std::int64_t small = tokens * key_width;
constexpr std::int64_t sums = tokens * heads;

//! Bytes of slots: the projection gives x, query, keys and values; attention its output and
//! log-sum-exp. Back go gradients of these, to each reader those of what it has made; to attention,
//! after that of its output, the merged output and log-sum-exp.
struct sizes_of {
  schedule_type schedule;
  pp::shape extents;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& what) const {
    pp::exchange_stage const stage = schedule.stage_at(extents, what.stage);
    bool const kept = of == pp::slot_class::activation;
    using enum pp::layer_part;
    switch (stage.part) {
    case projection: return 8 * (kept ? narrow : 2 * narrow + 2 * small);
    case attention: return 8 * (kept ? narrow : narrow + sums);
    case taken_attention: return 8 * (kept ? narrow + 2 * small * stage.taken : narrow + sums);
    case after_attention: return 8 * (kept ? narrow + sums : narrow);
    }
    return 0;
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& what, int reader) const {
    if (of != pp::slot_class::input_gradient)
      return bytes(of, what);
    pp::exchange_stage const from = schedule.stage_at(extents, what.stage);
    pp::exchange_stage const to = schedule.stage_at(extents, reader);
    using enum pp::layer_part;
    switch (from.part) {
    case projection: return 8 * narrow;
    case attention: return to.part == attention ? 0 : 8 * (narrow + 2 * small);
    case taken_attention: return 8 * (to.chunk == from.chunk ? narrow : 2 * small);
    case after_attention: return 8 * (to.part == projection ? narrow : 2 * narrow + sums);
    }
    return 0;
  }
};

//! A part of a layer, for one chunk of sequences.
struct stage {
  static constexpr bool takes_chunks = true;
  pp::exchange_stage what;
  layer* of = nullptr;
  double* loss = nullptr; // the model's output, for the last layer
  int chunks = 1;         // of a sequence

  void forward(pp::context const& where, pp::input, pp::output) const {
    double* const out = where.outputs.empty() ? nullptr : where.outputs[0].as<double>().data();
    double* const kept = where.activation.as<double>().data();
    auto const in = [&](std::size_t k) { return where.inputs[k].as<double const>().data(); };
    auto const m = static_cast<std::size_t>(where.microbatch);
    switch (what.part) {
    case pp::layer_part::projection: {
      for (std::int64_t i = 0; i < narrow; ++i)
        kept[i] = what.layer > 0 ? in(0)[i] : token(where.microbatch, what.chunk * narrow + i);
      std::fill_n(out, 2 * narrow + 2 * small, 0.0);
      std::copy_n(kept, narrow, out);
      double* const keys = out + 2 * narrow;
      add_product(kept, of->weights.query.data(), out + narrow, tokens, width, width);
      add_product(kept, of->weights.key.data(), keys, tokens, width, key_width);
      add_product(kept, of->weights.value.data(), keys + small, tokens, width, key_width);
      std::copy_n(keys, small, of->keys[m].data() + what.chunk * small);
      std::copy_n(keys + small, small, of->values[m].data() + what.chunk * small);
      return;
    }
    case pp::layer_part::attention: {
      std::copy_n(in(0) + narrow, narrow, kept);
      auto const p = call(what.chunk, what.taken, what.chunk + 1 - what.taken, tokens);
      attention::forward<double, double>(
        p,
        {rows<double const>(kept, tokens),
         key_rows<double const>(of->keys[m].data() + what.taken * small, p.key_length),
         key_rows<double const>(of->values[m].data() + what.taken * small, p.key_length),
         rows(out, tokens),
         statistics(out + narrow, tokens)});
      return;
    }
    case pp::layer_part::taken_attention: {
      if (what.taken == 0) {
        std::fill_n(out, narrow, 0.0);
        std::fill_n(out + narrow, sums, -std::numeric_limits<double>::infinity());
        return;
      }
      std::copy_n(in(0) + narrow, narrow, kept);
      double* const keys = kept + narrow;
      double* const values = keys + what.taken * small;
      for (int old = 0; old < what.taken; ++old) {
        double const* const given = in(static_cast<std::size_t>(old) + 1) + 2 * narrow;
        std::copy_n(given, small, keys + old * small);
        std::copy_n(given + small, small, values + old * small);
      }
      auto const p = call(what.chunk, 0, what.taken, tokens);
      attention::forward<double, double>(p,
                                         {rows<double const>(kept, tokens),
                                          key_rows<double const>(keys, p.key_length),
                                          key_rows<double const>(values, p.key_length),
                                          rows(out, tokens),
                                          statistics(out + narrow, tokens)},
                                         attention::full{});
      return;
    }
    case pp::layer_part::after_attention: {
      std::copy_n(in(1), narrow + sums, kept);
      attention::merge(rows(kept, tokens),
                       statistics(kept + narrow, tokens),
                       rows(in(2), tokens),
                       statistics(in(2) + narrow, tokens));
      numbers y(in(0), in(0) + narrow);
      add_product(kept, of->weights.output.data(), y.data(), tokens, width, width);
      if (out != nullptr)
        std::copy(y.begin(), y.end(), out);
      else
        std::copy(y.begin(), y.end(), loss + unit(where) * narrow);
      return;
    }
    }
  }

  void backward(pp::context const& where, pp::input, pp::output) const {
    double* const kept = where.activation.as<double>().data();
    auto const in = [&](std::size_t k) { return where.inputs[k].as<double const>().data(); };
    auto const out = [&](std::size_t k) { return where.outputs[k].as<double>().data(); };
    auto const m = static_cast<std::size_t>(where.microbatch);
    switch (what.part) {
    case pp::layer_part::after_attention: {
      numbers dy(static_cast<std::size_t>(narrow));
      for (std::int64_t i = 0; i < narrow; ++i)
        dy[static_cast<std::size_t>(i)] =
          loss == nullptr
            ? in(0)[i]
            : loss[unit(where) * narrow + i] - target(where.microbatch, what.chunk * narrow + i);
      numbers merged(static_cast<std::size_t>(narrow));
      add_gradients(kept,
                    of->weights.output.data(),
                    dy.data(),
                    merged.data(),
                    of->gradients.output.data(),
                    tokens,
                    width,
                    width);
      std::copy(dy.begin(), dy.end(), out(0));
      for (std::size_t const part : {1u, 2u}) {
        std::copy(merged.begin(), merged.end(), out(part));
        std::copy_n(kept, narrow + sums, out(part) + narrow);
      }
      return;
    }
    case pp::layer_part::attention: {
      if (what.chunk + 1 == chunks) {
        std::fill(of->key_gradients[m].begin(), of->key_gradients[m].end(), 0.0);
        std::fill(of->value_gradients[m].begin(), of->value_gradients[m].end(), 0.0);
      }
      double* const keys = of->key_gradients[m].data();
      double* const values = of->value_gradients[m].data();
      std::int64_t const first = what.taken * small;
      auto const p = call(what.chunk, what.taken, what.chunk + 1 - what.taken, tokens);
      add_attention_gradients(p,
                              attention::causal{},
                              kept,
                              of->keys[m].data() + first,
                              of->values[m].data() + first,
                              in(0),
                              {out(0), keys + first, values + first});
      std::copy_n(keys + what.chunk * small, small, out(0) + narrow);
      std::copy_n(values + what.chunk * small, small, out(0) + narrow + small);
      return;
    }
    case pp::layer_part::taken_attention: {
      std::fill_n(out(0), narrow, 0.0);
      if (what.taken == 0)
        return;
      numbers keys(static_cast<std::size_t>(what.taken * small));
      numbers values(keys.size());
      auto const p = call(what.chunk, 0, what.taken, tokens);
      add_attention_gradients(p,
                              attention::full{},
                              kept,
                              kept + narrow,
                              kept + narrow + what.taken * small,
                              in(0),
                              {out(0), keys.data(), values.data()});
      for (int old = 0; old < what.taken; ++old) {
        double* const to = out(static_cast<std::size_t>(old) + 1);
        std::copy_n(keys.data() + old * small, small, to);
        std::copy_n(values.data() + old * small, small, to + small);
      }
      return;
    }
    case pp::layer_part::projection: {
      // From attention, taken attention, output, and the taken attention of later chunks.
      numbers query(in(0), in(0) + narrow);
      numbers keys(in(0) + narrow, in(0) + narrow + 2 * small);
      for (std::size_t i = 0; i < query.size(); ++i)
        query[i] += in(1)[i];
      for (std::size_t later = 3; later < where.inputs.size(); ++later)
        for (std::size_t i = 0; i < keys.size(); ++i)
          keys[i] += in(later)[i];
      numbers dx(in(2), in(2) + narrow);
      layer_weights& sum = of->gradients;
      auto const add = [&](numbers const& w, double const* dy, numbers& dw, std::int64_t columns) {
        add_gradients(kept, w.data(), dy, dx.data(), dw.data(), tokens, width, columns);
      };
      add(of->weights.query, query.data(), sum.query, width);
      add(of->weights.key, keys.data(), sum.key, key_width);
      add(of->weights.value, keys.data() + small, sum.value, key_width);
      if (!where.outputs.empty())
        std::copy(dx.begin(), dx.end(), out(0));
      return;
    }
    }
  }

private:
  [[nodiscard]] std::int64_t unit(pp::context const& where) const {
    return static_cast<std::int64_t>(where.microbatch) * chunks + what.chunk;
  }
  struct gradients_of_call {
    double* query;
    double* keys;
    double* values;
  };
  //! @param back the gradient of the merged output, the merged output, and the log-sum-exp of all
  //! keys
  template <class Mask>
  static void add_attention_gradients(attention::parameters const& p,
                                      Mask const& mask,
                                      double const* query,
                                      double const* keys,
                                      double const* values,
                                      double const* back,
                                      gradients_of_call const& to) {
    attention::backward<double, double, double>(p,
                                                {rows(query, tokens),
                                                 key_rows(keys, p.key_length),
                                                 key_rows(values, p.key_length),
                                                 rows(back + narrow, tokens),
                                                 statistics(back + 2 * narrow, tokens),
                                                 rows(back, tokens),
                                                 rows(to.query, tokens),
                                                 key_rows(to.keys, p.key_length),
                                                 key_rows(to.values, p.key_length)},
                                                mask);
  }
};

//! A model of one layer for each stage of SlimPipe, and a functor for each of its parts.
struct model {
  std::vector<layer> layers;
  std::vector<stage> stages;
  numbers output; // [microbatch, chunk, token, width]

  model(schedule_type const& schedule, pp::shape const& extents) {
    std::mt19937 random(2026);
    int const chunks = schedule.inner.chunks;
    std::size_t const all = static_cast<std::size_t>(chunks * small);
    auto const count = static_cast<std::size_t>(extents.microbatches);
    layers.resize(static_cast<std::size_t>(schedule.inside(extents).stages()));
    for (layer& one : layers) {
      for (numbers* const w :
           {&one.weights.query, &one.weights.key, &one.weights.value, &one.weights.output})
        for (double& x : *w)
          x = (static_cast<double>(random() % 2001) - 1000) / 2000;
      one.keys = one.values = one.key_gradients = one.value_gradients =
        std::vector<numbers>(count, numbers(all));
    }
    output.resize(count * static_cast<std::size_t>(chunks * narrow));
    for (int s = 0; s < extents.stages(); ++s) {
      pp::exchange_stage const what = schedule.stage_at(extents, s);
      bool const last = what.layer + 1 == static_cast<int>(layers.size());
      stages.push_back({what,
                        &layers[static_cast<std::size_t>(what.layer)],
                        last ? output.data() : nullptr,
                        chunks});
    }
  }
  model(model const&) = delete;
  model& operator=(model const&) = delete;

  [[nodiscard]] std::vector<layer_weights> gradients() const {
    std::vector<layer_weights> all;
    for (layer const& one : layers)
      all.push_back(one.gradients);
    return all;
  }
};

struct result {
  numbers output;
  std::vector<layer_weights> gradients;

  friend bool operator==(result const&, result const&) = default;
};

template <class Policy, class Schedule>
result train(Schedule const& schedule, pp::pipeline_size size) {
  auto const table = pp::make_timetable(schedule, size);
  model of(schedule, table.over.extents);
  pp::thread_runner runner(
    pp::lower<Policy>(table, sizes_of{schedule, table.over.extents}), of.stages, {.guarded = true});
  runner.step();
  CHECK(pp::verify(runner.trace()));
  return {of.output, of.gradients()};
}

//! The same by whole sequences and the attention of the reference.
result reference(schedule_type const& schedule, pp::pipeline_size size) {
  model of(schedule, schedule.arrange(size.devices, size.microbatches));
  std::int64_t const length = tokens * schedule.inner.chunks;
  std::size_t const wide = size_of(length, width);
  std::size_t const thin = size_of(length, key_width);
  auto p = call(0, 0, schedule.inner.chunks, length);
  for (int m = 0; m < size.microbatches; ++m) {
    struct kept_layer {
      numbers x, query, keys, values, output, log_sum_exp;
    };
    std::vector<kept_layer> kept;
    numbers x(wide);
    for (std::size_t i = 0; i < wide; ++i)
      x[i] = token(m, static_cast<std::int64_t>(i));
    for (layer const& one : of.layers) {
      kept_layer k{x, numbers(wide), numbers(thin), numbers(thin), numbers(wide), {}};
      k.log_sum_exp.resize(size_of(heads, length));
      add_product(x.data(), one.weights.query.data(), k.query.data(), length, width, width);
      add_product(x.data(), one.weights.key.data(), k.keys.data(), length, width, key_width);
      add_product(x.data(), one.weights.value.data(), k.values.data(), length, width, key_width);
      attention::reference_forward(p,
                                   {rows<double const>(k.query.data(), length),
                                    key_rows<double const>(k.keys.data(), length),
                                    key_rows<double const>(k.values.data(), length),
                                    rows(k.output.data(), length),
                                    statistics(k.log_sum_exp.data(), length)});
      add_product(k.output.data(), one.weights.output.data(), x.data(), length, width, width);
      kept.push_back(std::move(k));
    }
    std::copy(x.begin(), x.end(), of.output.begin() + static_cast<std::ptrdiff_t>(m * wide));
    numbers dy(wide);
    for (std::size_t i = 0; i < wide; ++i)
      dy[i] = x[i] - target(m, static_cast<std::int64_t>(i));
    for (std::size_t l = of.layers.size(); l-- > 0;) {
      layer_weights const& w = of.layers[l].weights;
      layer_weights& sum = of.layers[l].gradients;
      kept_layer const& k = kept[l];
      numbers merged(wide), query(wide), keys(thin), values(thin);
      add_gradients(k.output.data(),
                    w.output.data(),
                    dy.data(),
                    merged.data(),
                    sum.output.data(),
                    length,
                    width,
                    width);
      attention::reference_backward(p,
                                    {rows<double const>(k.query.data(), length),
                                     key_rows<double const>(k.keys.data(), length),
                                     key_rows<double const>(k.values.data(), length),
                                     rows<double const>(k.output.data(), length),
                                     statistics<double const>(k.log_sum_exp.data(), length),
                                     rows<double const>(merged.data(), length),
                                     rows(query.data(), length),
                                     key_rows(keys.data(), length),
                                     key_rows(values.data(), length)});
      add_gradients(k.x.data(),
                    w.query.data(),
                    query.data(),
                    dy.data(),
                    sum.query.data(),
                    length,
                    width,
                    width);
      add_gradients(
        k.x.data(), w.key.data(), keys.data(), dy.data(), sum.key.data(), length, width, key_width);
      add_gradients(k.x.data(),
                    w.value.data(),
                    values.data(),
                    dy.data(),
                    sum.value.data(),
                    length,
                    width,
                    key_width);
    }
  }
  return {of.output, of.gradients()};
}

//! The largest difference, over the largest of the wanted numbers.
double difference(numbers const& got, numbers const& wanted) {
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    most = std::max(most, std::abs(got[i] - wanted[i]));
    largest = std::max(largest, std::abs(wanted[i]));
  }
  return got.size() == wanted.size() && largest > 0 ? most / largest : 1;
}

void check(schedule_type const& schedule, pp::pipeline_size size) {
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  int given = 0; // to other devices
  for (int m = 0; m < size.microbatches; ++m)
    for (int s = 0; s < extents.stages(); ++s)
      given +=
        schedule.device_of(extents, s, m) != schedule.stage_at(extents, s).layer % size.devices ? 1
                                                                                                : 0;
  CHECK(given > 0);
  result const got = train<pp::communicators::one>(schedule, size);
  CHECK(train<pp::communicators::one>(schedule, size) == got);
  CHECK(train<pp::communicators::per_pair>(schedule, size) == got);
  CHECK(train<pp::communicators::per_edge>(schedule, size) == got);
  CHECK(train<pp::communicators::one>(support::exchange_on_one_device<schedule_type>{schedule},
                                      size) == got);
  result const wanted = reference(schedule, size);
  CHECK(difference(got.output, wanted.output) < 1e-13);
  for (std::size_t l = 0; l < wanted.gradients.size(); ++l) {
    CHECK(difference(got.gradients[l].query, wanted.gradients[l].query) < 1e-12);
    CHECK(difference(got.gradients[l].key, wanted.gradients[l].key) < 1e-12);
    CHECK(difference(got.gradients[l].value, wanted.gradients[l].value) < 1e-12);
    CHECK(difference(got.gradients[l].output, wanted.gradients[l].output) < 1e-12);
  }
}

} // namespace

TEST_CASE("attention that devices take over gives the gradients of one device, bit by bit") {
  check({{4, 1}, {}}, {2, 3});
  check({{8, 1}, {}}, {4, 3});
  check({{4, 2}, {}}, {4, 2});
  check({{6, 1}, {1}}, {3, 2}); // no more than one key chunk
}
