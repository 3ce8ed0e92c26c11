// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Floating-point arithmetic and special functions.
#include "operations.hpp"

namespace ptx {

namespace {

enum : u8 { ftz = 1, saturate = 2, relu = 4, propagate_nan = 8 };

template <class T>
T finished(T value, u8 flags) {
  if ((flags & saturate) != 0) {
    value = value > T{0} ? (value < T{1} ? value : T{1}) : T{0};
  }
  if ((flags & relu) != 0) {
    value = value > T{0} ? value : (std::isnan(value) ? value : T{0});
  }
  if constexpr (std::is_same_v<T, float>) {
    return (flags & ftz) != 0 ? flush(value) : value;
  }
  return value;
}

// How a storage type computes: halves in double, rounded once at the end.
template <class T>
struct arithmetic {
  using wide = T;
  static T in(T v, u8 flags) {
    if constexpr (std::is_same_v<T, float>) {
      return (flags & ftz) != 0 ? flush(v) : v;
    }
    return v;
  }
  static T out(T v, u8 flags) { return finished(v, flags); }
};
template <>
struct arithmetic<half> {
  using wide = double;
  static double in(half v, u8) { return to_float(v); }
  static half out(double v, u8 flags) { return to_half(finished(v, flags)); }
};
template <>
struct arithmetic<bfloat> {
  using wide = double;
  static double in(bfloat v, u8) { return to_float(v); }
  static bfloat out(double v, u8 flags) { return to_bfloat(finished(v, flags)); }
};

struct plus {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct minus {
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct times {
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct quotient {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
// min and max order -0 below +0 and prefer the number to a NaN.
struct smaller {
  template <class T>
  T operator()(T a, T b) const {
    if (std::isnan(a) || std::isnan(b)) {
      return std::isnan(a) ? b : a;
    }
    return a < b || (a == b && std::signbit(a)) ? a : b;
  }
};
struct larger {
  template <class T>
  T operator()(T a, T b) const {
    if (std::isnan(a) || std::isnan(b)) {
      return std::isnan(a) ? b : a;
    }
    return a > b || (a == b && !std::signbit(a)) ? a : b;
  }
};
struct fused {
  float operator()(float a, float b, float c) const { return std::fma(a, b, c); }
  double operator()(double a, double b, double c) const { return std::fma(a, b, c); }
};
struct fused_halves { // the product is exact in double
  double operator()(double a, double b, double c) const { return add_to_odd(a * b, c); }
};
struct sum_halves {
  double operator()(double a, double b) const { return add_to_odd(a, b); }
};
struct difference_halves {
  double operator()(double a, double b) const { return add_to_odd(a, -b); }
};
struct absolute {
  template <class T>
  T operator()(T a) const {
    return std::fabs(a);
  }
};
struct negative {
  template <class T>
  T operator()(T a) const {
    return -a;
  }
};
struct root {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct reciprocal {
  template <class T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct reciprocal_root {
  float operator()(float a) const { return static_cast<float>(1.0 / std::sqrt(double{a})); }
  double operator()(double a) const { return 1.0 / std::sqrt(a); }
};
struct power_of_two {
  template <class T>
  T operator()(T a) const {
    return std::exp2(a);
  }
};
struct logarithm {
  template <class T>
  T operator()(T a) const {
    return std::log2(a);
  }
};
struct sine {
  template <class T>
  T operator()(T a) const {
    return std::sin(a);
  }
};
struct cosine {
  template <class T>
  T operator()(T a) const {
    return std::cos(a);
  }
};
struct tangent {
  template <class T>
  T operator()(T a) const {
    return std::tanh(a);
  }
};

template <class F, class... A>
auto with_nan(u8 flags, A... a) {
  if ((flags & propagate_nan) != 0 && (std::isnan(a) || ...)) {
    return decltype(F{}(a...))(NAN);
  }
  return F{}(a...);
}

template <class T, class F, int Arity>
void compute(warp& w, instruction const& i, u32 mask) {
  using rule = arithmetic<T>;
  auto* d = w.lanes<T>(i.op[0]);
  auto const* a = w.lanes<T>(i.op[1]);
  auto const* b = w.lanes<T>(i.op[Arity > 1 ? 2 : 1]);
  auto const* c = w.lanes<T>(i.op[Arity > 2 ? 3 : 1]);
  u8 const flags = i.flags;
  for_lanes(mask, [&](int l) {
    auto const x = rule::in(get<T>(a[l]), flags);
    if constexpr (Arity == 1) {
      d[l] = put<T>(rule::out(F{}(x), flags));
    } else if constexpr (Arity == 2) {
      d[l] = put<T>(rule::out(with_nan<F>(flags, x, rule::in(get<T>(b[l]), flags)), flags));
    } else {
      auto const y = rule::in(get<T>(b[l]), flags);
      d[l] = put<T>(rule::out(F{}(x, y, rule::in(get<T>(c[l]), flags)), flags));
    }
  });
}

// The packed types: both halves of a 32-bit register.
template <class T, class F, int Arity>
void compute_pair(warp& w, instruction const& i, u32 mask) {
  using rule = arithmetic<T>;
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<u32>(i.op[1]);
  auto const* b = w.lanes<u32>(i.op[Arity > 1 ? 2 : 1]);
  auto const* c = w.lanes<u32>(i.op[Arity > 2 ? 3 : 1]);
  for_lanes(mask, [&](int l) {
    u32 packed = 0;
    for (int shift = 0; shift < 32; shift += 16) {
      auto const part = [&](u32 v) { return rule::in(get<T>(v >> shift), i.flags); };
      double r = 0;
      if constexpr (Arity == 1) {
        r = F{}(part(a[l]));
      } else if constexpr (Arity == 2) {
        r = with_nan<F>(i.flags, part(a[l]), part(b[l]));
      } else {
        r = F{}(part(a[l]), part(b[l]), part(c[l]));
      }
      packed |= put<T>(rule::out(r, i.flags)) << shift;
    }
    d[l] = packed;
  });
}

// f32 with a directed rounding: exact or sticky in double, rounded at the end. mode: 0 add, 1 sub,
// 2 mul, 3 fma; immediate: rounding
void directed(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<float>(i.op[0]);
  for_lanes(mask, [&](int l) {
    auto const in = [&](int k) {
      return double{arithmetic<float>::in(get<float>(w.lanes<float>(i.op[k])[l]), i.flags)};
    };
    double const v = i.mode == 0   ? add_to_odd(in(1), in(2))
                     : i.mode == 1 ? add_to_odd(in(1), -in(2))
                     : i.mode == 2 ? in(1) * in(2)
                                   : add_to_odd(in(1) * in(2), in(3));
    d[l] = put<float>(finished(to_single(v, static_cast<rounding>(i.immediate)), i.flags));
  });
}

bool decode_directed(decoder& d) {
  static constexpr char const* names[] = {"add", "sub", "mul", "fma"};
  auto const& s = d.at();
  for (u8 k = 0; k < 4; ++k) {
    if (s.parts[0] == names[k] && d.now().t == type::f32) {
      d.now().mode = k;
      d.now().immediate = static_cast<s64>(s.has("rz")   ? rounding::zero
                                           : s.has("rm") ? rounding::down
                                                         : rounding::up);
      plain_operands(d, type::f32, type::f32);
      return finish(d, directed);
    }
  }
  return false;
}

template <class F, class Halves, int Arity>
handler float_handler(type t) {
  switch (t) {
  case type::f32: return compute<float, F, Arity>;
  case type::f64: return compute<double, F, Arity>;
  case type::f16: return compute<half, Halves, Arity>;
  case type::bf16: return compute<bfloat, Halves, Arity>;
  case type::f16x2: return compute_pair<half, Halves, Arity>;
  case type::bf16x2: return compute_pair<bfloat, Halves, Arity>;
  default: return nullptr;
  }
}

void copy_sign(warp& w, instruction const& i, u32 mask) {
  if (i.t == type::f32) {
    auto* d = w.lanes<float>(i.op[0]);
    auto const* a = w.lanes<float>(i.op[1]);
    auto const* b = w.lanes<float>(i.op[2]);
    for_lanes(mask, [&](int l) { d[l] = (a[l] & 0x80000000U) | (b[l] & 0x7fffffffU); });
  } else {
    auto* d = w.lanes<double>(i.op[0]);
    auto const* a = w.lanes<double>(i.op[1]);
    auto const* b = w.lanes<double>(i.op[2]);
    u64 const sign = u64{1} << 63;
    for_lanes(mask, [&](int l) { d[l] = (a[l] & sign) | (b[l] & ~sign); });
  }
}

// testp.<property>: 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal
template <class T>
void test_property(warp& w, instruction const& i, u32 mask) {
  auto const* a = w.lanes<T>(i.op[1]);
  u32& p = w.predicate(i.op[0]);
  for_lanes(mask, [&](int l) {
    T const v = get<T>(a[l]);
    bool const answers[] = {std::isfinite(v),
                            std::isinf(v),
                            !std::isnan(v),
                            std::isnan(v),
                            std::isnormal(v),
                            std::fpclassify(v) == FP_SUBNORMAL};
    u32 const bit = 1U << l;
    p = answers[i.mode] ? p | bit : p & ~bit;
  });
}

bool decode_test(decoder& d) {
  static constexpr char const* names[] = {
    "finite", "infinite", "number", "notanumber", "normal", "subnormal"};
  d.predicate(d.at().operands.at(0));
  d.operand(d.at().operands.at(1), d.now().t);
  for (u8 k = 0; k < 6; ++k) {
    if (d.at().parts.at(1) == names[k]) {
      d.now().mode = k;
      return finish(d, d.now().t == type::f64 ? test_property<double> : test_property<float>);
    }
  }
  return false;
}

} // namespace

bool decode_float(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  type const t = d.now().t;
  if (!is_float(t)) {
    return false;
  }
  if (s.has("xorsign") || s.has("oob")) {
    return false;
  }
  if (name == "testp") {
    return decode_test(d);
  }
  d.now().flags = static_cast<u8>((s.has("ftz") ? ftz : 0) | (s.has("sat") ? saturate : 0) |
                                  (s.has("relu") ? relu : 0) | (s.has("NaN") ? propagate_nan : 0));
  if (s.has("rz") || s.has("rm") || s.has("rp")) {
    return decode_directed(d);
  }
  struct row {
    char const* name;
    handler (*pick)(type);
  };
  static constexpr row rows[] = {
    {"add", float_handler<plus, sum_halves, 2>},
    {"sub", float_handler<minus, difference_halves, 2>},
    {"mul", float_handler<times, times, 2>},
    {"div", float_handler<quotient, quotient, 2>},
    {"min", float_handler<smaller, smaller, 2>},
    {"max", float_handler<larger, larger, 2>},
    {"fma", float_handler<fused, fused_halves, 3>},
    {"mad", float_handler<fused, fused_halves, 3>},
    {"abs", float_handler<absolute, absolute, 1>},
    {"neg", float_handler<negative, negative, 1>},
    {"sqrt", float_handler<root, root, 1>},
    {"rcp", float_handler<reciprocal, reciprocal, 1>},
    {"rsqrt", float_handler<reciprocal_root, reciprocal_root, 1>},
    {"ex2", float_handler<power_of_two, power_of_two, 1>},
    {"lg2", float_handler<logarithm, logarithm, 1>},
    {"sin", float_handler<sine, sine, 1>},
    {"cos", float_handler<cosine, cosine, 1>},
    {"tanh", float_handler<tangent, tangent, 1>},
    {"copysign", [](type k) { return k == type::f32 || k == type::f64 ? copy_sign : nullptr; }},
  };
  for (auto const& r : rows) {
    if (name == r.name) {
      plain_operands(d, t, t);
      return finish(d, r.pick(t));
    }
  }
  return false;
}

} // namespace ptx
