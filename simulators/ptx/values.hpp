// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Fundamental types of PTX, the 16-bit floats, and how values sit in register slots.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

// clang-format off
enum class type : u8 {
  none, pred, b8, b16, b32, b64, b128, uint8, uint16, uint32, uint64, int8, int16, int32, int64,
  f16, f16x2, bf16, bf16x2, f32, f64, tf32
};
// clang-format on

//! @brief How PTX spells a type, and its size.
struct type_facts {
  std::string_view name{};
  u8 bytes = 0;
};
//! @brief Of every type, in the order of the enumerators.
inline constexpr type_facts types[] = {
  {},          {"pred", 1}, {"b8", 1},    {"b16", 2},  {"b32", 4},    {"b64", 8}, {"b128", 16},
  {"u8", 1},   {"u16", 2},  {"u32", 4},   {"u64", 8},  {"s8", 1},     {"s16", 2}, {"s32", 4},
  {"s64", 8},  {"f16", 2},  {"f16x2", 4}, {"bf16", 2}, {"bf16x2", 4}, {"f32", 4}, {"f64", 8},
  {"tf32", 4},
};

//! @brief type::none if `name` is no type.
type type_of(std::string_view name);
constexpr std::size_t size_of(type t) {
  return types[static_cast<u8>(t)].bytes;
}
static_assert(size_of(type::int64) == 8 && types[static_cast<u8>(type::tf32)].name == "tf32");
bool is_signed(type t);
bool is_float(type t);

//! @brief IEEE binary16 and bfloat16 as bits.
struct half {
  u16 bits;
};
struct bfloat {
  u16 bits;
};

enum class rounding : u8 { nearest_even, zero, down, up, nearest_away };

float to_float(half h);
inline float to_float(bfloat b) {
  return std::bit_cast<float>(u32{b.bits} << 16);
}
//! @brief Rounds a double to a format with `mantissa` explicit bits and the given exponent range.
//! @return the bits of the rounded value; NaN becomes the canonical NaN 0x7fff
u16 round_to_16(
  double value, int mantissa, int minimum_exponent, int maximum_exponent, rounding how);
half to_half(double value, rounding how = rounding::nearest_even);
bfloat to_bfloat(double value, rounding how = rounding::nearest_even);
//! @brief a + b with the inexact case forced to an odd last bit, so that rounding the result again
//! to a shorter format gives the correctly rounded sum.
double add_to_odd(double a, double b);

//! @brief Rounds a double to float; exact for doubles from add_to_odd.
float to_single(double v, rounding how);

inline float flush(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}

//! @brief 64-bit values use 64-bit slots, everything else 32-bit slots.
template <class T>
using slot_of = std::conditional_t<sizeof(T) == 8, u64, u32>;

template <class T>
T get(slot_of<T> slot) {
  if constexpr (sizeof(T) == 8 || sizeof(T) == 4) {
    return std::bit_cast<T>(slot);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<T>(static_cast<u16>(slot));
  } else {
    return std::bit_cast<T>(static_cast<u8>(slot));
  }
}

template <class T>
slot_of<T> put(T value) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<u64>(value);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<u32>(value);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<u16>(value);
  } else {
    return std::bit_cast<u8>(value);
  }
}

//! @brief Calls f(lane) for every lane of the mask, ascending.
template <class Function>
inline void for_lanes(u32 mask, Function f) {
  if (mask == 0xffffffffU) {
    for (int lane = 0; lane < 32; ++lane) {
      f(lane);
    }
  } else {
    for (; mask != 0; mask &= mask - 1) {
      f(std::countr_zero(mask));
    }
  }
}

} // namespace ptx
