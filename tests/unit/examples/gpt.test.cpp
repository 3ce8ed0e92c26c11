// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <examples/gpt/host/host_stage.hpp>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

using namespace gpt;

namespace {

//! A whole GPT on one device, run sequentially: all stages forward, then all backward.
template <class Number>
struct sequential {
  step_cut cut;
  host::device_work<Number> work;
  std::vector<host_stage<Number>> stages;
  std::vector<std::vector<own_slots>> slots; // of stages, by microbatch
  std::vector<std::vector<Number>> between;  // activations between stages, then gradients

  sequential(model_size const& size, std::int64_t count, step_cut how, std::uint64_t seed = 3)
      : cut(std::move(how)),
        between(static_cast<std::size_t>(count + 1),
                std::vector<Number>(static_cast<std::size_t>(size.sequence * size.width))) {
    for (auto const& layers : cut_layers(size.layers, count)) {
      stages.emplace_back(size, layers, cut, seed, work);
      slots.emplace_back(static_cast<std::size_t>(cut.microbatches()));
    }
  }

  [[nodiscard]] pp::context at(std::size_t s, unit u) {
    return slots[s][static_cast<std::size_t>(u.microbatch)].at(stages[s], u);
  }
  //! @param from, to of messages
  void run(pp::pass_kind kind, std::size_t s, unit u, std::size_t from, std::size_t to) {
    stages[s].run_half(kind, {at(s, u), read(message_in(between[from])), message_in(between[to])});
  }
  void forward(unit u) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      run(pp::pass_kind::forward, s, u, s, s + 1);
    }
  }
  void backward(unit u) {
    for (std::size_t s = stages.size(); s-- > 0;) {
      run(pp::pass_kind::backward, s, u, s + 1, s);
    }
  }
  void backward_in_halves(unit u) {
    for (std::size_t s = stages.size(); s-- > 0;) {
      run(pp::pass_kind::backward_input, s, u, s + 1, s);
    }
  }
  //! One microbatch after the other.
  double step(batch const& pieces) {
    for (auto& s : stages) {
      s.set_batch(pieces);
    }
    for (std::int64_t m = 0; m < cut.microbatches(); ++m) {
      auto const chunks = cut.chunks(m);
      for (std::int64_t c = 0; c < chunks; ++c) {
        forward({m, c});
      }
      for (std::int64_t c = chunks; c-- > 0;) {
        backward({m, c});
      }
    }
    return stages.back().loss();
  }
  std::vector<Number> gradients() {
    std::vector<Number> all;
    for (auto& s : stages) {
      s.for_each_parameter(
        [&](parameter<Number>& p) { all.insert(all.end(), p.gradient.begin(), p.gradient.end()); });
    }
    return all;
  }
};

batch some_batch(std::int64_t microbatches, std::int64_t sequence, unsigned seed = 7) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 500; ++i) {
    text.push_back(static_cast<std::uint8_t>("the pipeline "[i * i % 13]));
  }
  return random_batch(text, microbatches, sequence, random);
}

template <class Number>
std::size_t different_bits(std::vector<Number> const& a, std::vector<Number> const& b) {
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t n = 0; n < std::min(a.size(), b.size()); ++n) {
    count += std::memcmp(&a[n], &b[n], sizeof(Number)) != 0 ? 1u : 0u;
  }
  return count;
}

model_size const tiny{.layers = 2, .width = 8, .heads = 4, .key_heads = 2, .sequence = 6};

} // namespace

TEST_CASE("finite differences confirm the gradients of the whole GPT") {
  // Two stages, two microbatches, chunks of 1, 3 and 2 tokens: everything that can go wrong.
  sequential<double> model(tiny, 2, {2, {{0, 1}, {1, 4}, {4, 6}}});
  auto const pieces = some_batch(2, 6);
  model.step(pieces);
  auto const gradients = model.gradients();
  std::size_t at = 0;
  std::size_t checked = 0;
  double largest = 0;
  for (auto& s : model.stages) {
    s.for_each_parameter([&](parameter<double>& p) {
      // A dozen entries of each tensor, those with the largest gradients among them.
      auto const stride = std::max<std::size_t>(1, p.value.size() / 12);
      for (std::size_t i = 0; i < p.value.size(); ++i) {
        double const claimed = gradients[at + i];
        if (i % stride != 0 && std::abs(claimed) < 0.02) {
          continue;
        }
        double const step = 1e-5;
        double const before = p.value[i];
        auto const loss_at = [&](double value) {
          p.value[i] = value;
          s.refresh();
          sequential<double>& m = model;
          for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
            for (std::int64_t c = 0; c < 3; ++c) {
              m.forward({microbatch, c});
            }
          }
          return m.stages.back().loss();
        };
        double const slope = (loss_at(before + step) - loss_at(before - step)) / (2 * step);
        loss_at(before);
        REQUIRE(std::abs(claimed - slope) < 1e-9 + 1e-6 * std::abs(slope));
        largest = std::max(largest, std::abs(slope));
        ++checked;
      }
      at += p.value.size();
    });
  }
  CHECK(at == gradients.size());
  CHECK(checked > 200);
  CHECK(largest > 0.05);
}

TEST_CASE("chunks, stages and the split backward leave no trace in the gradients") {
  model_size const size{.layers = 4, .width = 24, .heads = 3, .key_heads = 3, .sequence = 90};
  auto const pieces = some_batch(3, 90);
  sequential<float> whole(size, 1, {3, cut_sequence(90, 1)});
  auto const loss = whole.step(pieces);
  auto const expected = whole.gradients();
  CHECK(loss == doctest::Approx(5.5).epsilon(0.2)); // about ln 256 before training

  SUBCASE("stages") {
    sequential<float> cut(size, 3, {3, cut_sequence(90, 1)});
    CHECK(cut.step(pieces) == loss);
    CHECK(different_bits(cut.gradients(), expected) == 0);
  }
  SUBCASE("chunks, even and uneven") {
    for (auto const& chunks : {cut_sequence(90, 4),
                               cut_sequence(90, 7),
                               std::vector<chunk_range>{{0, 1}, {1, 66}, {66, 67}, {67, 90}}}) {
      sequential<float> cut(size, 2, {3, chunks});
      CHECK(cut.step(pieces) == loss);
      CHECK(different_bits(cut.gradients(), expected) == 0);
    }
  }
  SUBCASE("all forward first, weights last") {
    sequential<float> cut(size, 4, {3, cut_sequence(90, 2)});
    for (auto& s : cut.stages) {
      s.set_batch(pieces);
    }
    for (std::int64_t m = 0; m < 3; ++m) {
      cut.forward({m, 0});
      cut.forward({m, 1});
    }
    for (std::int64_t m = 0; m < 3; ++m) {
      cut.backward_in_halves({m, 1});
      cut.backward_in_halves({m, 0});
    }
    for (std::size_t s = 0; s < cut.stages.size(); ++s) {
      for (std::int64_t m = 0; m < 3; ++m) {
        cut.run(pp::pass_kind::backward_weight, s, {m, 1}, s + 1, s);
        cut.run(pp::pass_kind::backward_weight, s, {m, 0}, s + 1, s);
      }
    }
    CHECK(cut.stages.back().loss() == loss);
    CHECK(different_bits(cut.gradients(), expected) == 0);
  }
}

TEST_CASE("gradients out of order are refused") {
  sequential<float> model(tiny, 1, {2, cut_sequence(6, 2)});
  auto const pieces = some_batch(2, 6);
  model.stages[0].set_batch(pieces);
  model.forward({0, 0});
  model.forward({0, 1});
  CHECK_THROWS_WITH_AS(model.backward({0, 0}),
                       "backward_input of microbatch 0, chunk 0 came out of order; gradients add "
                       "up by microbatch, last chunk first",
                       std::logic_error);
}

TEST_CASE("the bytes kept are those of the tensors") {
  model_size const size{.layers = 1, .width = 8, .heads = 2, .key_heads = 1, .sequence = 12};
  step_cut const cut(4, cut_sequence(12, 1));
  step_cut const chunks(4, cut_sequence(12, 3));
  auto const held = cut_layers(1, 2); // the second stage is the head alone
  auto const bytes = [&](std::size_t stage, step_cut const& how, pp::slot_class of) {
    return stage_bytes<host_machine<float>>(size, size, held[stage], how, of, {0, 0});
  };
  // Per token: 12 widths, two norms, two log-sum-exp, one key and one value head; head: one width
  // and one norm.
  using enum pp::slot_class;
  CHECK(bytes(0, cut, activation) == 12 * (12 * 8 + 2 + 2 + 2 * 4) * 4);
  CHECK(bytes(1, cut, activation) == 12 * (8 + 1) * 4);
  // Keys and values of chunks lie with those of their sequence.
  CHECK(bytes(0, chunks, activation) == 4 * (12 * 8 + 2 + 2) * 4);
  CHECK(bytes(0, chunks, sequence) == 12 * 2 * 4 * 4);
  CHECK(bytes(0, chunks, sequence_gradient) == 12 * 2 * 4 * 4);
  // For weights: the gradient of the layer's output and of the residual; of the head that of the
  // logits. Those of keys and values take their place, but in chunks, which others still read.
  CHECK(bytes(0, cut, weight_input) == 12 * 2 * 8 * 4);
  CHECK(bytes(0, chunks, weight_input) == 4 * (2 * 8 + 2 * 4) * 4);
  CHECK(bytes(1, cut, weight_input) == 12 * 256 * 4);
}

TEST_CASE("training lowers the loss below the unigram entropy") {
  model_size const size{.layers = 2, .width = 24, .heads = 3, .key_heads = 3, .sequence = 26};
  sequential<float> model(size, 2, {4, cut_sequence(26, 2)});
  adamw const optimizer{.peak_rate = 1e-2, .warm_up = 3, .steps = 40};
  double loss = 0;
  for (std::int64_t step = 0; step < 40; ++step) {
    auto const pieces = some_batch(4, 26, static_cast<unsigned>(step));
    loss = model.step(pieces);
    for (auto& s : model.stages) {
      s.update(optimizer, step);
    }
  }
  auto const pieces = some_batch(4, 26);
  CHECK(unigram_entropy(pieces.bytes) > 1.5);
  CHECK(loss < 1);
}

TEST_CASE("the unigram entropy of known texts") {
  CHECK(unigram_entropy({'a', 'a', 'a'}) == 0);
  CHECK(unigram_entropy({'a', 'b', 'a', 'b'}) == doctest::Approx(std::log(2.0)));
  std::vector<std::uint8_t> all;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<std::uint8_t>(byte));
  }
  CHECK(unigram_entropy(all) == doctest::Approx(std::log(256.0)));
}

TEST_CASE("loops over all tokens give the bits of loops over some, whatever the tail") {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  constexpr std::int64_t width = 37;
  constexpr std::int64_t tokens = 11;
  std::vector<float> x(width * tokens);
  std::vector<float> dy(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(random);
    dy[i] = normal(random);
  }
  std::vector<float> const gain(width, 1);
  struct results {
    std::vector<float> normal, inverse, scaled, dx, gain_gradient, outer, slope;
    bool operator==(results const&) const = default;
  };
  auto const compute = [&](std::vector<std::int64_t> const& ends) {
    std::vector<float> const zeros(x.size());
    std::vector<float> const none(width);
    results r{zeros, std::vector<float>(tokens), zeros, zeros, none, zeros, x};
    for (std::size_t i = ends.size() - 1; i > 0; --i) { // the last tokens first, as in backward
      auto const begin = ends[i - 1];
      auto const count = ends[i] - begin;
      auto const at = begin * width;
      host::token_rows const rows{count, width, {}};
      normalised<float> const kept{r.normal.data() + at, r.inverse.data() + begin};
      host::layer_norm_forward(r.scaled.data() + at, kept, x.data() + at, gain.data(), rows);
      host::layer_norm_backward(
        r.dx.data() + at, r.gain_gradient.data(), dy.data() + at, kept, gain.data(), rows);
      host::gelu_forward(r.outer.data() + at, x.data() + at, count * width, {});
      auto* const slope = r.slope.data() + at;
      host::gelu_backward(slope, slope, dy.data() + at, count * width, {});
    }
    return r;
  };
  auto const whole = compute({0, tokens});
  auto const cut = compute({0, 1, 2, 6, tokens});
  CHECK(cut == whole);
  CHECK(cut.gain_gradient == whole.gain_gradient);
  for (std::size_t t = 0; t < tokens; ++t) {
    double mean = 0;
    double square = 0;
    for (std::size_t d = 0; d < width; ++d) {
      mean += double(whole.normal[t * width + d]) / width;
      square += double(whole.normal[t * width + d]) * whole.normal[t * width + d] / width;
    }
    CHECK(std::abs(mean) < 1e-6);
    CHECK(std::abs(square - 1) < 1e-4);
  }
}

TEST_CASE("a transpose of sides that no block divides") {
  std::vector<int> from(19 * 37);
  std::iota(from.begin(), from.end(), 0);
  std::vector<int> to(from.size(), -1);
  transpose(from.data(), to.data(), 19, 37);
  for (std::size_t r = 0; r < 19; ++r) {
    for (std::size_t c = 0; c < 37; ++c) {
      CHECK(to[c * 19 + r] == from[r * 37 + c]);
    }
  }
}

TEST_CASE("a sigmoid of about seven digits") {
  for (float x = -100; x < 100; x += 0.0317f) {
    CHECK(static_cast<double>(sigmoid(x)) ==
          doctest::Approx(1 / (1 + std::exp(-static_cast<double>(x)))).epsilon(3e-7));
  }
}

TEST_CASE(
  "losses of about seven digits, and probabilities beside them, however far logits lie apart") {
  for (double const scale : {0.1, 3.0, 40.0}) {
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal(0.0, scale);
    std::vector<float> logits(2 * vocabulary);
    for (float& each : logits)
      each = static_cast<float>(normal(random));
    std::vector<double> exact(logits.begin(), logits.end());
    std::uint8_t const next[] = {7, 255};
    float losses[2];
    double exact_losses[2];
    host::cross_entropy_forward(losses, logits.data(), next, 2, {});
    host::cross_entropy_forward(exact_losses, exact.data(), next, 2, {});
    for (std::size_t token = 0; token < 2; ++token)
      CHECK(static_cast<double>(losses[token]) ==
            doctest::Approx(exact_losses[token]).epsilon(1e-6));
    for (std::size_t i = 0; i < exact.size(); ++i)
      CHECK(std::abs(static_cast<double>(logits[i]) - exact[i]) < 1e-6);
  }
}
