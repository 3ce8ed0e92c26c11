// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief cvt in its forms for integers, floats and pairs of 16-bit floats.
#include <algorithm>
#include <limits>

#include "operations.hpp"

namespace ptx {

namespace {

enum : u8 { ftz = 1, saturate = 2, relu = 4, to_integer = 8 };
// instruction::wide here: bit 0 destination register, bit 1 source register has 64 bits

u64 read(warp& w, instruction const& i, int lane) {
  return (i.wide & 2) != 0 ? w.lanes<u64>(i.op[1])[lane] : w.lanes<u32>(i.op[1])[lane];
}
void write(warp& w, instruction const& i, int lane, u64 v) {
  if ((i.wide & 1) != 0) {
    w.lanes<u64>(i.op[0])[lane] = v;
  } else {
    w.lanes<u32>(i.op[0])[lane] = static_cast<u32>(v);
  }
}

// The low bits of `v` as a signed or unsigned number of `bytes` bytes, extended to 64 bits.
u64 extended(u64 v, std::size_t bytes, bool with_sign) {
  unsigned const shift = static_cast<unsigned>(64 - 8 * bytes);
  return with_sign ? static_cast<u64>(static_cast<s64>(v << shift) >> shift) : v << shift >> shift;
}

double float_value(u64 v, type t) {
  switch (t) {
  case type::f16: return to_float(half{static_cast<u16>(v)});
  case type::bf16: return to_float(bfloat{static_cast<u16>(v)});
  case type::f32: return std::bit_cast<float>(static_cast<u32>(v));
  default: return std::bit_cast<double>(v);
  }
}

double rounded(double v, rounding how) {
  switch (how) {
  case rounding::nearest_even: return std::nearbyint(v);
  case rounding::zero: return std::trunc(v);
  case rounding::down: return std::floor(v);
  case rounding::up: return std::ceil(v);
  default: return std::round(v);
  }
}

u64 float_bits(double v, type t, rounding how, u8 flags) {
  if ((flags & saturate) != 0) {
    v = v > 0 ? std::min(v, 1.0) : 0.0;
  }
  if ((flags & relu) != 0 && !std::isnan(v)) {
    v = v > 0 ? v : 0.0;
  }
  switch (t) {
  case type::f16: return to_half(v, how).bits;
  case type::bf16: return to_bfloat(v, how).bits;
  case type::f64: return std::bit_cast<u64>(v);
  default: {
    float const f = to_single(v, how);
    return std::bit_cast<u32>((flags & ftz) != 0 ? flush(f) : f);
  }
  }
}

// Out of range goes to the nearest end; NaN to 0, or to 2^63 for 64-bit results.
u64 integer_of(double v, type t, rounding how) {
  std::size_t const bytes = size_of(t);
  if (std::isnan(v)) {
    return bytes == 8 ? u64{1} << 63 : 0;
  }
  v = rounded(v, how);
  double const top = std::ldexp(1.0, static_cast<int>(8 * bytes) - (is_signed(t) ? 1 : 0));
  if (is_signed(t)) {
    s64 const most = static_cast<s64>(~u64{0} >> (65 - 8 * bytes));
    return static_cast<u64>(v >= top ? most : v < -top ? -most - 1 : static_cast<s64>(v));
  }
  return v >= top ? ~u64{0} >> (64 - 8 * bytes) : v <= 0 ? 0 : static_cast<u64>(v);
}

u64 integer_to_float(u64 v, bool with_sign, type t, rounding how) {
  if (how == rounding::nearest_even && t == type::f32) {
    return std::bit_cast<u32>(with_sign ? static_cast<float>(static_cast<s64>(v))
                                        : static_cast<float>(v));
  }
  if (how == rounding::nearest_even && t == type::f64) {
    return std::bit_cast<u64>(with_sign ? static_cast<double>(static_cast<s64>(v))
                                        : static_cast<double>(v));
  }
  // 32-bit integers are exact in double; longer ones lose only bits that no 16-bit float sees
  // except through stickiness, which add_to_odd keeps.
  bool const negative = with_sign && static_cast<s64>(v) < 0;
  u64 const magnitude = negative ? 0 - v : v;
  double const sum = add_to_odd(std::ldexp(static_cast<double>(magnitude >> 32), 32),
                                static_cast<double>(magnitude & 0xffffffffU));
  return float_bits(negative ? -sum : sum, t, how, 0);
}

u64 saturated_integer(u64 v, bool from_signed, type t) {
  unsigned const bits = static_cast<unsigned>(8 * size_of(t));
  u64 const most = ~u64{0} >> (64 - bits + (is_signed(t) ? 1 : 0));
  bool const negative = from_signed && static_cast<s64>(v) < 0;
  if (!negative) {
    return std::min(v, most);
  }
  return is_signed(t) ? static_cast<u64>(std::max(static_cast<s64>(v), -static_cast<s64>(most) - 1))
                      : 0;
}

rounding rounding_of(instruction const& i) {
  return static_cast<rounding>(i.mode);
}

void convert_any(warp& w, instruction const& i, u32 mask) {
  bool const to_float_type = is_float(i.t);
  bool const from_float_type = is_float(i.t2);
  for_lanes(mask, [&](int l) {
    u64 const raw = read(w, i, l);
    if (from_float_type) {
      double v = float_value(raw, i.t2);
      if ((i.flags & ftz) != 0 && i.t2 == type::f32) {
        v = flush(static_cast<float>(v));
      }
      if (to_float_type) {
        v = (i.flags & to_integer) != 0 ? rounded(v, rounding_of(i)) : v;
        write(w, i, l, float_bits(v, i.t, rounding_of(i), i.flags));
      } else {
        write(w, i, l, integer_of(v, i.t, rounding_of(i)));
      }
      return;
    }
    u64 const v = extended(raw, size_of(i.t2), is_signed(i.t2));
    if (to_float_type) {
      write(w, i, l, integer_to_float(v, is_signed(i.t2), i.t, rounding_of(i)));
    } else if ((i.flags & saturate) != 0) {
      write(w, i, l, saturated_integer(v, is_signed(i.t2), i.t));
    } else {
      write(w, i, l, extended(v, size_of(i.t), is_signed(i.t)));
    }
  });
}

// The usual pack of two floats; the first operand becomes the upper half.
template <class T, T (*Convert)(double, rounding)>
void convert_pair(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<float>(i.op[1]);
  auto const* b = w.lanes<float>(i.op[2]);
  for_lanes(mask, [&](int l) {
    auto const one = [&](u32 bits) {
      float v = get<float>(bits);
      v = (i.flags & relu) != 0 && !(v > 0) && !std::isnan(v) ? 0.0F : v;
      return u32{put<T>(Convert(v, rounding_of(i)))};
    };
    d[l] = one(a[l]) << 16 | one(b[l]);
  });
}

void convert_pair_bf16(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<float>(i.op[1]);
  auto const* b = w.lanes<float>(i.op[2]);
  auto const one = [](u32 v) {
    return (v & 0x7fffffffU) > 0x7f800000U ? 0x7fffU : (v + 0x7fffU + (v >> 16 & 1)) >> 16;
  };
  for_lanes(mask, [&](int l) { d[l] = one(a[l]) << 16 | one(b[l]); });
}

void convert_tf32(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<u32>(i.op[1]);
  bool const away = rounding_of(i) == rounding::nearest_away;
  for_lanes(mask, [&](int l) {
    bool const special = (a[l] & 0x7f800000U) == 0x7f800000U;
    u32 const increment = away ? 0x1000U : 0xfffU + (a[l] >> 13 & 1);
    d[l] = special ? a[l] : (a[l] + increment) & 0xffffe000U;
  });
}

void read_modifiers(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  i.flags = static_cast<u8>((s.has("ftz") ? ftz : 0) | (s.has("sat") ? saturate : 0) |
                            (s.has("relu") ? relu : 0));
  struct row {
    char const* name;
    rounding how;
  };
  static constexpr row rows[] = {
    {"rn", rounding::nearest_even},
    {"rz", rounding::zero},
    {"rm", rounding::down},
    {"rp", rounding::up},
    {"rna", rounding::nearest_away},
    {"rni", rounding::nearest_even},
    {"rzi", rounding::zero},
    {"rmi", rounding::down},
    {"rpi", rounding::up},
  };
  for (auto const& r : rows) {
    if (s.has(r.name)) {
      i.mode = static_cast<u8>(r.how);
      i.flags =
        static_cast<u8>(i.flags | (std::string_view(r.name).ends_with('i') ? to_integer : 0));
    }
  }
}

bool decode_pair(decoder& d) {
  instruction& i = d.now();
  d.destination(d.at().operands.at(0), type::b32);
  d.operand(d.at().operands.at(1), type::f32);
  d.operand(d.at().operands.at(2), type::f32);
  if (i.t == type::f16x2) {
    return finish(d, convert_pair<half, to_half>);
  }
  bool const simple = i.mode == 0 && i.flags == 0;
  return finish(d, simple ? convert_pair_bf16 : convert_pair<bfloat, to_bfloat>);
}

} // namespace

bool decode_convert(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if (s.parts[0] != "cvt" || s.has("pack") || s.parts.size() < 3) {
    return false;
  }
  i.t2 = i.t;
  i.t = type_of(s.parts[s.parts.size() - 2]);
  if (i.t == type::none || i.t2 == type::none) {
    return false;
  }
  read_modifiers(d);
  if ((i.t == type::f16x2 || i.t == type::bf16x2) && i.t2 == type::f32) {
    return decode_pair(d);
  }
  auto const wide = [&](std::string const& text, type t) {
    type const r = d.register_type(text);
    return size_of(r == type::none ? t : r) == 8;
  };
  i.wide =
    static_cast<u8>((wide(s.operands.at(0), i.t) ? 1 : 0) | (wide(s.operands.at(1), i.t2) ? 2 : 0));
  d.destination(s.operands[0], i.t);
  d.operand(s.operands[1], i.t2);
  if (i.t == type::tf32) {
    return finish(d, convert_tf32);
  }
  if (size_of(i.t) > 8 || i.t == type::f16x2 || i.t2 == type::f16x2 || i.t == type::bf16x2) {
    return false;
  }
  return finish(d, convert_any);
}

} // namespace ptx
