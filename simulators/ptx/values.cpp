// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "values.hpp"

#include <algorithm>
#include <utility>

namespace ptx {

type type_of(std::string_view name) {
  auto const found = std::find_if(
    std::begin(types), std::end(types), [&](type_facts const& of) { return of.name == name; });
  return found == std::end(types) ? type::none : static_cast<type>(found - std::begin(types));
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
