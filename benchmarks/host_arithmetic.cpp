// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Arithmetic of one core, as JSON lines: its peak and its memory, products of matrices,
//! attention and AdamW. Seconds are processor time of the thread, the best of several runs.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>
#include <pipe/attention/host/vectors.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <random>
#include <vector>

#include "examples/gpt/host/arithmetic.hpp"
#include "examples/gpt/parameter.hpp"

namespace {

namespace at = pipelining::attention;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double best_seconds(int runs, Work const& work) {
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    double const start = processor_seconds();
    work();
    best = std::min(best, processor_seconds() - start);
  }
  return best;
}

//! The upper half of a float, rounded to nearest even.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  bfloat16(float x) { // NOLINT(google-explicit-constructor)
    auto const all = std::bit_cast<std::uint32_t>(x);
    bits = static_cast<std::uint16_t>((all + 0x7fffu + (all >> 16 & 1u)) >> 16);
  }
  operator float() const { // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

template <class Number = float>
std::vector<Number> random_numbers(std::int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Number> all(static_cast<std::size_t>(count));
  for (auto& each : all)
    each = normal(random);
  return all;
}

//! GFLOP/s of chains that wait for nothing but themselves. A processor's clock goes down and up
//! with the work of all its cores: it is asked next to each measurement.
double measure_peak() {
  constexpr std::int64_t steps = 500'000;
  float kept = 0;
  double rate = 0;
  at::vector_version::of_process().run([&](auto bytes) {
    constexpr int chains = 10;
    using vector = typename at::detail::vector_register<float, bytes()>::type;
    double const seconds = best_seconds(5, [&] {
      vector sum[chains];
      for (int c = 0; c < chains; ++c)
        sum[c] = vector{} + static_cast<float>(c + 2); // compilers make one of equal ones
      for (std::int64_t i = 0; i < steps; ++i)
        for (auto& each : sum)
          each = each * 0.999F + 0.001F;
      for (auto const& each : sum)
        kept += each[0];
    });
    rate = 2e-9 * steps * chains * (bytes() / 4) / seconds;
  });
  return kept < 0 ? 0 : rate;
}

void measure_product(std::int64_t tokens, std::int64_t inner, std::int64_t columns) {
  auto const x = random_numbers(tokens * inner);
  auto const w = random_numbers(inner * columns);
  std::vector<float> y(static_cast<std::size_t>(tokens * columns));
  std::vector<float> gradient(w.size());
  double const peak_before = measure_peak();
  namespace attention = pipelining::attention;
  double const forward = best_seconds(15, [&] {
    attention::add_product<float>(gpt::vectors(),
                                  {y.data(), columns},
                                  {x.data(), inner, 1},
                                  {w.data(), columns},
                                  tokens,
                                  inner,
                                  columns);
  });
  double const backward = best_seconds(15, [&] { // transposed(x) times y, last token first
    attention::add_product<float>(gpt::vectors(),
                                  {gradient.data(), columns},
                                  {x.data() + (tokens - 1) * inner, 1, -inner},
                                  {y.data() + (tokens - 1) * columns, -columns},
                                  inner,
                                  tokens,
                                  columns);
  });
  double const work = 2e-9 * static_cast<double>(tokens * inner * columns);
  std::printf("{\"what\": \"product\", \"shape\": \"%lld x %lld x %lld\", \"forward\": %.1f, "
              "\"backward\": %.1f, \"peak\": %.1f}\n",
              static_cast<long long>(tokens),
              static_cast<long long>(inner),
              static_cast<long long>(columns),
              work / forward,
              work / backward,
              std::max(peak_before, measure_peak()));
}

template <class Element>
void measure_attention(std::int64_t dim, std::int64_t length, char const* elements) {
  constexpr std::int64_t heads = 2;
  auto const query = random_numbers<Element>(heads * length * dim);
  std::vector<Element> output(query.size()), dq(query.size());
  std::vector<float> dk(query.size()), dv(query.size());
  std::vector<float> statistics(static_cast<std::size_t>(heads * length));
  at::parameters p;
  p.query_length = p.key_length = length;
  p.heads = p.key_heads = heads;
  p.head_dim = dim;
  auto const view = [&](auto* data) { return at::dense_tensor(data, 1, length, heads, dim); };
  auto const read = [&](std::vector<Element> const& of) { return view(of.data()); };
  double const peak_before = measure_peak();
  double const forward = best_seconds(3, [&] {
    at::forward(p,
                at::forward_tensors<Element>{read(query),
                                             read(query),
                                             read(query),
                                             view(output.data()),
                                             at::dense_rows(statistics.data(), 1, heads, length)});
  });
  double const backward = best_seconds(3, [&] {
    at::backward(p,
                 at::backward_tensors<Element>{
                   read(query),
                   read(query),
                   read(query),
                   read(output),
                   at::dense_rows<float const>(statistics.data(), 1, heads, length),
                   read(query),
                   view(dq.data()),
                   view(dk.data()),
                   view(dv.data())});
  });
  double const pairs = static_cast<double>(heads * length * length) / 2; // causal
  double const work = 2e-9 * pairs * static_cast<double>(dim);
  std::printf("{\"what\": \"attention\", \"shape\": \"D %lld, T %lld%s\", \"forward\": %.1f, "
              "\"backward\": %.1f, \"peak\": %.1f}\n",
              static_cast<long long>(dim),
              static_cast<long long>(length),
              elements,
              2 * work / forward,
              5 * work / backward,
              std::max(peak_before, measure_peak()));
}

//! AdamW next to a loop that only reads and writes the same four arrays. GB/s.
void measure_optimizer() {
  constexpr std::int64_t count = 8'000'000;
  gpt::parameter<float> p(count, 0.5F, true);
  gpt::adamw const optimizer;
  double const update = best_seconds(7, [&] { optimizer.update(p, 3); });
  double const copy = best_seconds(7, [&] {
    gpt::vectors().run(
      [a = p.value.data(), b = p.gradient.data(), c = p.mean.data(), d = p.square.data()](auto) {
        for (std::int64_t i = 0; i < count; ++i) {
          a[i] += 1;
          b[i] += 1;
          c[i] += 1;
          d[i] += 1;
        }
      });
  });
  double const bytes = 32e-9 * count;
  std::printf(
    "{\"what\": \"adamw\", \"rate\": %.2f, \"memory\": %.2f}\n", bytes / update, bytes / copy);
}

} // namespace

int main() {
  std::printf("{\"what\": \"core\", \"version\": \"%s\", \"peak\": %.1f}\n",
              gpt::vectors().name(),
              measure_peak());
  for (auto const& [tokens, inner, columns] : {std::array<std::int64_t, 3>{128, 64, 256},
                                               {128, 256, 256},
                                               {128, 256, 1024},
                                               {256, 512, 2048},
                                               {256, 2048, 512}})
    measure_product(tokens, inner, columns);
  for (std::int64_t const dim : {64, 128})
    for (std::int64_t const length : {512, 1024, 2048, 4096}) {
      measure_attention<float>(dim, length, "");
      measure_attention<bfloat16>(dim, length, ", bfloat16");
    }
  measure_optimizer();
}
