// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scalar instructions against computations of the host that share no code with the interpreter.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "fixture.hpp"

using fixture::array;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

namespace {

std::vector<u32> numbers(unsigned seed, std::size_t n) {
  std::mt19937 random(seed);
  std::vector<u32> out{0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 31, 32, 0x00010000};
  while (out.size() < n) {
    out.push_back(static_cast<u32>(random()) >> random() % 32);
  }
  std::shuffle(out.begin(), out.end(), random);
  return out;
}

u32 bit(u32 v, u32 k) {
  return k < 32 ? v >> k & 1 : 0;
}

u32 permuted(u32 x, u32 y, u32 selector) {
  unsigned char bytes[8];
  std::memcpy(bytes, &x, 4);
  std::memcpy(bytes + 4, &y, 4);
  u32 out = 0;
  for (u32 k = 0; k < 4; ++k) {
    u32 const nibble = selector >> (4 * k) & 15;
    u32 const byte = bytes[nibble % 8];
    out |= (nibble < 8 ? byte : byte >= 128 ? 255U : 0U) << (8 * k);
  }
  return out;
}

u32 dot(u32 x, u32 y, u32 z) {
  for (int k = 0; k < 4; ++k) {
    z += static_cast<u32>(static_cast<std::int8_t>(x >> (8 * k)) *
                          static_cast<std::int8_t>(y >> (8 * k)));
  }
  return z;
}

u32 field(u32 x, u32 from, u32 length, bool is_signed) {
  u32 out = 0;
  for (u32 k = 0; k < 32; ++k) {
    u32 const sign_at = std::min(from + length - 1, 31U);
    u32 const fill = is_signed && length != 0 ? bit(x, sign_at) : 0;
    out |= (k < length && from + k < 32 ? bit(x, from + k) : fill) << k;
  }
  return out;
}

u32 inserted(u32 x, u32 into, u32 from, u32 length) {
  for (u32 k = 0; k < length && from + k < 32; ++k) {
    into = (into & ~(1U << (from + k))) | bit(x, k) << (from + k);
  }
  return into;
}

u32 select_bits(u32 x, u32 y, u32 z) { // truth table 0xe2
  u32 out = 0;
  for (u32 k = 0; k < 32; ++k) {
    out |= (0xe2U >> (bit(x, k) * 4 + bit(y, k) * 2 + bit(z, k)) & 1) << k;
  }
  return out;
}

u32 high_of_product(u64 a, u64 b) { // bits 96 ... 127 of the product, by schoolbook
  u64 const mask = 0xffffffff;
  u64 const low = (a & mask) * (b & mask);
  u64 const m1 = (a >> 32) * (b & mask) + (low >> 32);
  u64 const m2 = (a & mask) * (b >> 32) + (m1 & mask);
  return static_cast<u32>(((a >> 32) * (b >> 32) + (m1 >> 32) + (m2 >> 32)) >> 32);
}

// Exact values of 16-bit floats, by definition.
double value_of(u32 bits, int mantissa, int bias) {
  int const exponent = static_cast<int>((bits & 0x7fff) >> mantissa);
  int const fraction = static_cast<int>(bits & ((1U << mantissa) - 1));
  double const magnitude = exponent == 0
                             ? std::ldexp(fraction, 1 - bias - mantissa)
                             : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest pattern by search; ties to the even one. The first value beyond the largest finite
// one stands for infinity.
u32 nearest(double x, int mantissa, int bias, bool toward_zero = false) {
  u32 const sign = std::signbit(x) ? 0x8000 : 0;
  double const m = std::fabs(x);
  u32 const infinity = static_cast<u32>(mantissa == 10 ? 0x7c00 : 0x7f80);
  if (std::isnan(x)) {
    return 0x7fff;
  }
  if (std::isinf(x)) {
    return sign | infinity;
  }
  u32 low = 0;
  u32 high = infinity;
  while (high - low > 1) {
    u32 const middle = (low + high) / 2;
    (value_of(middle, mantissa, bias) <= m ? low : high) = middle;
  }
  if (toward_zero) {
    return sign | low;
  }
  double const below = m - value_of(low, mantissa, bias);
  double const above = value_of(high, mantissa, bias) - m;
  return sign | (below < above ? low : above < below ? high : low % 2 == 0 ? low : high);
}
u32 nearest_f16(double x) {
  return nearest(x, 10, 15);
}
u32 nearest_bf16(double x) {
  return nearest(x, 7, 127);
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<u32>(a) == std::bit_cast<u32>(b);
}

std::vector<float> awkward_floats() {
  std::mt19937 random(7);
  std::vector<float> out{0.0F,       -0.0F,    1.0F,      65504.0F,  65519.0F,   65520.0F,
                         65536.0F,   0x1p-14F, 0x1p-24F,  0x1p-25F,  0x1.8p-25F, 0x1p-133F,
                         0x1p-134F,  1e-45F,   3.4e38F,   0x1.01p0F, 0x1.03p0F,  0x1.002p0F,
                         0x1.006p0F, INFINITY, -INFINITY, NAN};
  while (out.size() < 2000) {
    u32 bits = static_cast<u32>(random());
    if (random() % 2 == 0) { // the range of f16, often at a tie
      bits = (bits & 0x80000000U) | (static_cast<u32>(100 + random() % 45) << 23) |
             (static_cast<u32>(random()) & 0x7ff000U);
    }
    out.push_back(std::bit_cast<float>(bits));
  }
  return out;
}

} // namespace

TEST_CASE("integer instructions") {
  fixture::machine m("scalar.sm_80");
  std::size_t const n = 256;
  array<u32> a(m, numbers(1, n)), b(m, numbers(2, n)), c(m, numbers(3, n));
  array<u32> out(m, n * 40);
  auto const r = m.run("integers", {1}, {256}, a.data(), b.data(), c.data(), out.data(), 256);
  REQUIRE_MESSAGE(r.clean(), r.text());
  auto const s = [](u32 v) { return static_cast<s64>(static_cast<s32>(v)); };
  using column = std::function<u64(u32, u32, u32)>;
  std::vector<column> const columns{
    [](u32 x, u32 y, u32) { return x + y; },
    [](u32 x, u32 y, u32) { return x - y; },
    [](u32 x, u32 y, u32 z) { return u64{x} * y + z; },
    [](u32 x, u32 y, u32) { return u64{x} * y >> 32; },
    [&](u32 x, u32 y, u32) { return static_cast<u64>(s(x) * s(y)) >> 32; },
    [](u32 x, u32 y, u32) { return x / (y | 1); },
    [&](u32 x, u32 y, u32) { return static_cast<u64>(s(x) / s(y | 1)); },
    [](u32 x, u32 y, u32) { return x % (y | 1); },
    [&](u32 x, u32 y, u32) { return static_cast<u64>(s(x) % s(y | 1)); },
    [&](u32 x, u32 y, u32) { return s(x) < s(y) ? x : y; },
    [](u32 x, u32 y, u32) { return x > y ? x : y; },
    [](u32 x, u32, u32) {
      u32 k = 0;
      for (; x != 0; x &= x - 1)
        ++k;
      return k;
    },
    [](u32 x, u32, u32) {
      u32 k = 0;
      while (k < 32 && bit(x, 31 - k) == 0)
        ++k;
      return k;
    },
    [](u32 x, u32, u32) {
      u32 v = 0;
      for (u32 k = 0; k < 32; ++k)
        v |= bit(x, k) << (31 - k);
      return v;
    },
    permuted,
    [](u32 x, u32 y, u32 z) { return (u64{y} << 32 | x) << (z % 32) >> 32; },
    [](u32 x, u32 y, u32 z) { return (u64{y} << 32 | x) >> std::min(z, 32U); },
    [&](u32 x, u32 y, u32 z) { return (x > y ? x - y : y - x) + z; },
    dot,
    [](u32 x, u32 y, u32 z) { return field(x, y & 31, z & 31, false); },
    [](u32 x, u32 y, u32 z) { return field(x, y & 31, z & 31, true); },
    [](u32 x, u32 y, u32 z) { return inserted(x, z, y & 31, z & 15); },
    select_bits,
    [](u32 x, u32, u32) {
      return x == 0 ? 0xffffffffU : static_cast<u32>(std::floor(std::log2(double{x + 0.0})));
    },
    [](u32 x, u32 y, u32 z) { return high_of_product(u64{x} << 32 | y, u64{z} << 32 | x); },
    [](u32 x, u32 y, u32 z) { return (u64{x} << 32 | y) / (z | 1); },
    [](u32 x, u32 y, u32 z) {
      u64 const v = u64{x} << 32 | y;
      u64 const fill = (x >> 31) != 0 && (z & 63) != 0 ? ~u64{0} << (64 - (z & 63)) : 0;
      return v >> (z & 63) | fill;
    },
    [](u32 x, u32 y, u32) {
      return static_cast<u64>(s64{static_cast<std::int16_t>(x)} * static_cast<std::int16_t>(y));
    },
  };
  for (std::size_t k = 0; k < columns.size(); ++k) {
    for (std::size_t t = 0; t < n; ++t) {
      CAPTURE(k);
      CAPTURE(a[t]);
      CAPTURE(b[t]);
      CAPTURE(c[t]);
      REQUIRE(out[k * n + t] == static_cast<u32>(columns[k](a[t], b[t], c[t])));
    }
  }
}

TEST_CASE("floating-point instructions") {
  fixture::machine m("scalar.sm_80");
  std::size_t const n = 512;
  auto values = awkward_floats();
  std::vector<float> x(values.begin(), values.begin() + n);
  std::vector<float> y(values.end() - n, values.end());
  std::vector<float> z(values.begin() + 600, values.begin() + 600 + n);
  array<float> a(m, x), b(m, y), c(m, z), out(m, n * 20);
  auto const r = m.run("floats", {1}, {512}, a.data(), b.data(), c.data(), out.data(), 512);
  REQUIRE_MESSAGE(r.clean(), r.text());
  auto const number = [](float p, float q) { return std::isnan(p) ? q : p; };
  using column = std::function<double(float, float, float)>;
  // A double holds every exact product and rounds to float once more without harm for +, *, /,
  // sqrt.
  std::vector<column> const columns{
    [](float p, float q, float) { return static_cast<double>(p) + q; },
    [](float p, float q, float) { return static_cast<double>(p) * q; },
    [](float p, float q, float s) { return std::fma(p, q, s); },
    [](float p, float q, float) { return static_cast<double>(p) / q; },
    [](float p, float, float) { return std::sqrt(static_cast<double>(p)); },
    [](float p, float, float) { return 1.0 / p; },
    [&](float p, float q, float) {
      return p < q ? p : q < p ? q : p == q ? (std::signbit(p) ? p : q) : number(p, q);
    },
    [&](float p, float q, float) {
      return p > q ? p : q > p ? q : p == q ? (std::signbit(p) ? q : p) : number(p, q);
    },
    [](float p, float, float) { return std::fabs(p); },
  };
  for (std::size_t k = 0; k < columns.size(); ++k) {
    for (std::size_t t = 0; t < n; ++t) {
      CAPTURE(k);
      CAPTURE(x[t]);
      CAPTURE(y[t]);
      REQUIRE(same(out[k * n + t], static_cast<float>(columns[k](x[t], y[t], z[t]))));
    }
  }
  auto const close = [](float got, double want) {
    return same(got, static_cast<float>(want)) || std::fabs(got - want) <= std::fabs(want) * 1e-6;
  };
  for (std::size_t t = 0; t < n; ++t) {
    double const v = x[t];
    double const flushed = std::fabs(v) < 0x1p-126 ? 0.0 : v;
    double const power = std::exp2(flushed);
    CHECK(close(out[9 * n + t], std::fabs(power) < 0x1p-126 ? 0.0 : power));
    CHECK(close(out[10 * n + t], std::log2(v)));
    CHECK(close(out[11 * n + t], 1 / std::sqrt(v)));
    CHECK(close(out[12 * n + t], std::tanh(v)));
    double const sum = static_cast<float>(v + y[t]);
    CHECK(out[13 * n + t] == static_cast<float>(std::isnan(sum) || sum < 0 ? 0
                                                : sum > 1                  ? 1
                                                                           : sum));
    CHECK(out[15 * n + t] == (x[t] < y[t] ? 1.0F : 0.0F));
    CHECK(out[16 * n + t] == (!(x[t] >= y[t]) ? 1.0F : 0.0F));
  }
}

TEST_CASE("conversions to 16-bit floats round to the nearest or to zero") {
  fixture::machine m("scalar.sm_90a");
  auto const values = awkward_floats();
  std::size_t const n = values.size();
  array<float> a(m, values);
  array<u32> out(m, n * 7);
  auto const r = m.run("to_halves",
                       {static_cast<unsigned>(n + 127) / 128},
                       {128},
                       a.data(),
                       out.data(),
                       static_cast<int>(n));
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (std::size_t t = 0; t < n; ++t) {
    double const x = values[t];
    CAPTURE(values[t]);
    u32 const f16 = nearest_f16(x);
    u32 const bf16 = nearest_bf16(x);
    CHECK(out[t] == f16);
    CHECK(out[n + t] == nearest(x, 10, 15, true));
    CHECK(out[2 * n + t] == bf16);
    CHECK(out[3 * n + t] == nearest(x, 7, 127, true));
    CHECK(out[4 * n + t] == (f16 << 16 | nearest_f16(-x)));
    CHECK(out[5 * n + t] == (bf16 << 16 | nearest_bf16(-x)));
    auto const positive = [](double v) { return std::isnan(v) || v > 0 ? v : 0.0; };
    CHECK(out[6 * n + t] == (nearest_bf16(positive(x)) << 16 | nearest_bf16(positive(-x))));
  }
}

TEST_CASE("all 16-bit floats become the right float") {
  fixture::machine m("scalar.sm_90a");
  array<float> out(m, 2 * 65536);
  auto const r = m.run("from_halves", {256}, {256}, out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (u32 bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00) != 0x7c00) {
      REQUIRE(out[bits] == static_cast<float>(value_of(bits, 10, 15)));
    } else {
      REQUIRE(((bits & 0x3ff) == 0 ? std::isinf(out[bits]) : std::isnan(out[bits])));
    }
    REQUIRE(same(out[65536 + bits], std::bit_cast<float>(bits << 16)));
  }
}

TEST_CASE("conversions between float and integer") {
  fixture::machine m("scalar.sm_80");
  std::vector<float> values{0.5F,        1.5F,          2.5F,          -0.5F,     -1.5F,
                            -2.5F,       2147483520.0F, 2147483648.0F, 3e9F,      -3e9F,
                            5e9F,        NAN,           INFINITY,      -INFINITY, 1e-40F,
                            0.99999994F, 8388609.0F,    16777217.0F,   -7.0F,     123456789.0F};
  std::size_t const n = values.size();
  array<float> a(m, values);
  array<s32> out(m, n * 8);
  auto const r = m.run("to_integers", {1}, {32}, a.data(), out.data(), static_cast<int>(n));
  REQUIRE_MESSAGE(r.clean(), r.text());
  auto const cut = [](double v, double low, double high) {
    return std::isnan(v) ? 0 : static_cast<s64>(std::min(std::max(v, low), high));
  };
  for (std::size_t t = 0; t < n; ++t) {
    double const x = values[t];
    CAPTURE(x);
    double const half_even =
      std::fabs(x - std::trunc(x)) == 0.5 ? 2 * std::round(x / 2) : std::round(x);
    CHECK(out[t] == cut(half_even, -0x1p31, 0x1p31 - 1));
    CHECK(out[n + t] == cut(std::trunc(x), -0x1p31, 0x1p31 - 1));
    CHECK(out[2 * n + t] == cut(std::floor(x), -0x1p31, 0x1p31 - 1));
    CHECK(out[3 * n + t] == cut(std::ceil(x), -0x1p31, 0x1p31 - 1));
    CHECK(static_cast<u32>(out[4 * n + t]) == cut(std::trunc(x), 0, 0x1p32 - 1));
    auto const whole = std::bit_cast<s32>(values[t]);
    CHECK(std::bit_cast<float>(out[5 * n + t]) == static_cast<float>(whole));
    double const toward_zero = std::fabs(std::bit_cast<float>(out[6 * n + t]));
    CHECK(toward_zero <= std::fabs(static_cast<double>(whole)));
    CHECK(std::nextafterf(static_cast<float>(toward_zero), INFINITY) >
          std::fabs(static_cast<double>(whole)));
  }
}

TEST_CASE("packed 16-bit arithmetic rounds once") {
  fixture::machine m("scalar.sm_90a");
  std::size_t const n = 256;
  std::mt19937 random(11);
  auto const pairs = [&](bool brain) {
    std::vector<u32> out;
    while (out.size() < n) {
      auto const one = [&] {
        double const v = std::ldexp(static_cast<double>(random() % 4096) - 2048,
                                    static_cast<int>(random() % 12) - 10);
        return brain ? nearest_bf16(v) : nearest_f16(v);
      };
      out.push_back(one() << 16 | one());
    }
    return out;
  };
  array<u32> out(m, n * 5);
  for (bool const brain : {false, true}) {
    array<u32> a(m, pairs(brain)), b(m, pairs(brain)), c(m, pairs(brain));
    auto const r =
      m.run("half_arithmetic", {1}, {256}, a.data(), b.data(), c.data(), out.data(), 256);
    REQUIRE_MESSAGE(r.clean(), r.text());
    for (std::size_t t = 0; t < n; ++t) {
      for (u32 shift = 0; shift < 32; shift += 16) {
        auto const got = [&](std::size_t k) { return out[k * n + t] >> shift & 0xffff; };
        auto const in = [&](array<u32> const& v) {
          return brain ? value_of(v[t] >> shift & 0xffff, 7, 127)
                       : value_of(v[t] >> shift & 0xffff, 10, 15);
        };
        double const x = in(a), y = in(b), z = in(c);
        if (brain) {
          CHECK(got(3) == nearest_bf16(x * y + z + 0.0));
          CHECK(value_of(got(4), 7, 127) == std::max(x, y));
        } else {
          CHECK(value_of(got(0), 10, 15) == value_of(nearest_f16(x + y), 10, 15));
          CHECK(value_of(got(1), 10, 15) == value_of(nearest_f16(x * y), 10, 15));
          CHECK(value_of(got(2), 10, 15) == value_of(nearest_f16(x * y + z), 10, 15));
        }
      }
    }
  }
}

TEST_CASE("mathematical functions as nvcc expands them") {
  fixture::machine m("scalar.sm_80");
  std::vector<float> values{
    0.0F, 1.0F, -1.0F, 0.5F, 3.0F, -7.25F, 20.0F, -30.0F, 88.0F, -87.0F, 1e-6F, 40000.0F};
  for (float x = -5.1F; x < 5.0F; x += 0.37F) {
    values.push_back(x);
  }
  std::size_t const n = values.size();
  array<float> a(m, values), out(m, n * 10);
  auto const r = m.run("library", {1}, {64}, a.data(), out.data(), static_cast<int>(n));
  REQUIRE_MESSAGE(r.clean(), r.text());
  std::vector<std::function<double(double)>> const columns{
    [](double x) { return std::exp(x); },
    [](double x) { return std::log(std::fabs(x)); },
    [](double x) { return std::tanh(x); },
    [](double x) { return std::sin(x); },
    [](double x) { return std::pow(std::fabs(x), 1.5); },
    [](double x) { return std::erf(x); },
    [](double x) { return std::expm1(x); },
    [](double x) { return std::exp(x); },
    [](double x) { return std::exp(x); },
    [](double x) { return std::fmod(x, double{0.7F}); },
  };
  for (std::size_t k = 0; k < columns.size(); ++k) {
    for (std::size_t t = 0; t < n; ++t) {
      CAPTURE(k);
      CAPTURE(values[t]);
      auto const want = static_cast<float>(columns[k](values[t]));
      // A few units in the last place; __expf scales its argument first and loses with its size.
      double const factor = k == 7 ? 1e-7 * (4 + std::fabs(values[t])) : 5e-7;
      bool const near = same(out[k * n + t], want) ||
                        std::fabs(out[k * n + t] - want) <= factor * std::fabs(want) + 1e-37;
      CHECK(near);
    }
  }
}

TEST_CASE("directed rounding brackets the exact result as tightly as floats can") {
  fixture::machine m("scalar.sm_80");
  std::mt19937 random(21);
  std::size_t const n = 256;
  auto const some = [&] {
    std::vector<float> v(n);
    for (auto& x : v) {
      x = std::ldexp(static_cast<float>(static_cast<int>(random() % 33554432) - 16777216),
                     static_cast<int>(random() % 40) - 30);
    }
    return v;
  };
  auto const x = some(), y = some(), z = some();
  array<float> a(m, x), b(m, y), c(m, z), out(m, n * 5);
  auto const r = m.run("directed", {1}, {256}, a.data(), b.data(), c.data(), out.data(), 256);
  REQUIRE_MESSAGE(r.clean(), r.text());
  using exact = long double; // 64 bits hold every sum and product here or are sticky enough
  for (std::size_t t = 0; t < n; ++t) {
    exact const sum = exact{x[t]} + y[t];
    exact const product = exact{x[t]} * y[t];
    auto const below = [](float got, exact want) {
      return got <= want && std::nextafterf(got, INFINITY) > want;
    };
    auto const above = [](float got, exact want) {
      return got >= want && std::nextafterf(got, -INFINITY) < want;
    };
    CHECK(below(out[t], sum));
    CHECK(above(out[n + t], sum));
    CHECK((product >= 0 ? below(out[2 * n + t], product) : above(out[2 * n + t], product)));
    CHECK(below(out[3 * n + t], product + z[t]));
    CHECK(above(out[4 * n + t], product + z[t]));
  }
}
