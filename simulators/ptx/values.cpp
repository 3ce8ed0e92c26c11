// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "values.hpp"

#include <array>
#include <utility>

namespace ptx {

namespace {

struct type_row {
  std::string_view name;
  type value;
  u8 bytes;
};
constexpr std::array<type_row, 21> type_rows{{
  {"pred", type::pred, 1},   {"b8", type::b8, 1},      {"b16", type::b16, 2},
  {"b32", type::b32, 4},     {"b64", type::b64, 8},    {"b128", type::b128, 16},
  {"u8", type::uint8, 1},    {"u16", type::uint16, 2}, {"u32", type::uint32, 4},
  {"u64", type::uint64, 8},  {"s8", type::int8, 1},    {"s16", type::int16, 2},
  {"s32", type::int32, 4},   {"s64", type::int64, 8},  {"f16", type::f16, 2},
  {"f16x2", type::f16x2, 4}, {"bf16", type::bf16, 2},  {"bf16x2", type::bf16x2, 4},
  {"f32", type::f32, 4},     {"f64", type::f64, 8},    {"tf32", type::tf32, 4},
}};

} // namespace

type type_of(std::string_view name) {
  for (auto const& row : type_rows) {
    if (row.name == name) {
      return row.value;
    }
  }
  return type::none;
}

std::size_t size_of(type t) {
  for (auto const& row : type_rows) {
    if (row.value == t) {
      return row.bytes;
    }
  }
  return 0;
}

bool is_signed(type t) {
  return t == type::int8 || t == type::int16 || t == type::int32 || t == type::int64;
}

bool is_float(type t) {
  return t >= type::f16;
}

float to_float(half h) {
  int const exponent = h.bits >> 10 & 31;
  int const mantissa = h.bits & 1023;
  float const sign = (h.bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return mantissa == 0 ? sign * INFINITY : std::bit_cast<float>(0x7fffffffU);
  }
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25));
}

u16 round_to_16(
  double value, int mantissa, int minimum_exponent, int maximum_exponent, rounding how) {
  if (std::isnan(value)) {
    return 0x7fff;
  }
  bool const negative = std::signbit(value);
  auto const sign = static_cast<u16>(negative ? 0x8000 : 0);
  auto const infinity = static_cast<u16>((maximum_exponent - minimum_exponent + 2) << mantissa);
  double const magnitude = std::fabs(value);
  if (std::isinf(value)) {
    return static_cast<u16>(sign | infinity);
  }
  int exponent = magnitude == 0 ? minimum_exponent : std::ilogb(magnitude);
  exponent = exponent < minimum_exponent ? minimum_exponent : exponent;
  double const scaled = std::ldexp(magnitude, mantissa - exponent); // in units of the last place
  double const whole = std::floor(scaled);
  double const rest = scaled - whole;
  bool const odd = std::fmod(whole, 2.0) != 0;
  bool const up = how == rounding::nearest_even   ? rest > 0.5 || (rest == 0.5 && odd)
                  : how == rounding::nearest_away ? rest >= 0.5
                  : how == rounding::up           ? rest > 0 && !negative
                  : how == rounding::down         ? rest > 0 && negative
                                                  : false;
  auto units = static_cast<int>(whole) + (up ? 1 : 0);
  int const base = (exponent - minimum_exponent) << mantissa; // a carry moves to the next exponent
  int const bits = units + base;
  if (bits >= infinity) {
    bool const stays = how == rounding::zero || (how == rounding::up && negative) ||
                       (how == rounding::down && !negative);
    return static_cast<u16>(sign | (stays ? infinity - 1 : infinity));
  }
  return static_cast<u16>(sign | bits);
}

half to_half(double value, rounding how) {
  return {round_to_16(value, 10, -14, 15, how)};
}

bfloat to_bfloat(double value, rounding how) {
  return {round_to_16(value, 7, -126, 127, how)};
}

double add_to_odd(double a, double b) {
  double const sum = a + b;
  double const part = sum - a;
  double const error = (a - (sum - part)) + (b - part);
  if (error == 0 || !std::isfinite(sum) || (std::bit_cast<u64>(sum) & 1) != 0) {
    return sum;
  }
  return std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}

float to_single(double v, rounding how) {
  auto f = static_cast<float>(v);
  bool const toward_zero = how == rounding::zero && std::fabs(double{f}) > std::fabs(v);
  if (how == rounding::down ? f > v : how == rounding::up ? f < v : toward_zero) {
    f = std::nextafterf(f,
                        how == rounding::up     ? INFINITY
                        : how == rounding::zero ? 0.0F
                                                : -INFINITY);
  }
  return f;
}

} // namespace ptx
