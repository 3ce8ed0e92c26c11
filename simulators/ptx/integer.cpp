// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Integer arithmetic.
#include <limits>

#include "operations.hpp"

namespace ptx {

namespace {

__extension__ using signed128 = __int128;
__extension__ using unsigned128 = unsigned __int128;
// Arithmetic wraps: done in unsigned 64 bits and cut.
template <class T>
constexpr T cut(u64 value) {
  return static_cast<T>(value);
}
template <class T>
constexpr u64 wide(T value) {
  return static_cast<u64>(static_cast<s64>(value));
}
template <class T>
using twice = std::conditional_t<
  sizeof(T) == 2,
  std::conditional_t<std::is_signed_v<T>, s32, u32>,
  std::conditional_t<sizeof(T) == 4,
                     std::conditional_t<std::is_signed_v<T>, s64, u64>,
                     std::conditional_t<std::is_signed_v<T>, signed128, unsigned128>>>;

struct plus {
  template <class T>
  T operator()(T a, T b) const {
    return cut<T>(wide(a) + wide(b));
  }
};
struct minus {
  template <class T>
  T operator()(T a, T b) const {
    return cut<T>(wide(a) - wide(b));
  }
};
struct times {
  template <class T>
  T operator()(T a, T b) const {
    return cut<T>(wide(a) * wide(b));
  }
};
struct times_high {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<twice<T>>(a) * static_cast<twice<T>>(b) >> (8 * sizeof(T)));
  }
};
// Division by zero gives an unspecified value on hardware; all ones is what GPUs return.
struct quotient {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) {
      return static_cast<T>(-1);
    }
    return std::is_signed_v<T> && b == static_cast<T>(-1) ? cut<T>(0 - wide(a))
                                                          : static_cast<T>(a / b);
  }
};
struct remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) {
      return a;
    }
    return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
  }
};
struct smaller {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct larger {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct absolute {
  template <class T>
  T operator()(T a) const {
    return a < 0 ? cut<T>(0 - wide(a)) : a;
  }
};
struct negated {
  template <class T>
  T operator()(T a) const {
    return cut<T>(0 - wide(a));
  }
};
struct times_plus {
  template <class T>
  T operator()(T a, T b, T c) const {
    return cut<T>(wide(a) * wide(b) + wide(c));
  }
};
struct times_high_plus {
  template <class T>
  T operator()(T a, T b, T c) const {
    return cut<T>(wide(times_high{}(a, b)) + wide(c));
  }
};
struct distance_plus {
  template <class T>
  T operator()(T a, T b, T c) const {
    return cut<T>((a < b ? wide(b) - wide(a) : wide(a) - wide(b)) + wide(c));
  }
};
template <class T>
struct widening_product {
  twice<T> operator()(T a, T b) const {
    return static_cast<twice<T>>(static_cast<twice<T>>(a) * static_cast<twice<T>>(b));
  }
};
template <class T>
struct widening_product_plus {
  twice<T> operator()(T a, T b, twice<T> c) const { return plus{}(widening_product<T>{}(a, b), c); }
};

template <class F>
struct two {
  template <class T>
  struct of {
    static void run(warp& w, instruction const& i, u32 m) { binary<T, T, T, F>(w, i, m); }
  };
};
template <class F>
struct three {
  template <class T>
  struct of {
    static void run(warp& w, instruction const& i, u32 m) { ternary<T, T, T, F>(w, i, m); }
  };
};
template <class F>
struct one {
  template <class T>
  struct of {
    static void run(warp& w, instruction const& i, u32 m) { unary<T, T, F>(w, i, m); }
  };
};
template <class T>
struct wide_product_handler {
  static void run(warp& w, instruction const& i, u32 m) {
    if constexpr (sizeof(T) < 8) {
      binary<twice<T>, T, T, widening_product<T>>(w, i, m);
    }
  }
};
template <class T>
struct wide_product_plus_handler {
  static void run(warp& w, instruction const& i, u32 m) {
    if constexpr (sizeof(T) < 8) {
      ternary<twice<T>, T, twice<T>, widening_product_plus<T>>(w, i, m);
    }
  }
};

struct saturating_plus {
  s32 operator()(s32 a, s32 b) const {
    s64 const sum = s64{a} + b;
    return static_cast<s32>(sum < INT32_MIN ? INT32_MIN : sum > INT32_MAX ? INT32_MAX : sum);
  }
};

// Four (or two) products of bytes with a 32-bit sum; flags: 1 a signed, 2 b signed.
void dot_bytes(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<u32>(i.op[1]);
  auto const* b = w.lanes<u32>(i.op[2]);
  auto const* c = w.lanes<u32>(i.op[3]);
  auto const byte = [](u32 v, int k, bool is_signed) {
    u32 const raw = v >> (8 * k) & 255;
    return is_signed ? static_cast<s32>(static_cast<s8>(raw)) : static_cast<s32>(raw);
  };
  for_lanes(mask, [&](int l) {
    u32 sum = c[l];
    for (int k = 0; k < 4; ++k) {
      sum +=
        static_cast<u32>(byte(a[l], k, (i.flags & 1) != 0) * byte(b[l], k, (i.flags & 2) != 0));
    }
    d[l] = sum;
  });
}

type doubled(type t) {
  switch (t) {
  case type::uint16: return type::uint32;
  case type::int16: return type::int32;
  case type::uint32: return type::uint64;
  case type::int32: return type::int64;
  default: return type::none;
  }
}

bool decode_product(decoder& d, bool with_sum) {
  auto const& s = d.at();
  type const t = d.now().t;
  if (s.has("wide")) {
    type const to = doubled(t);
    if (to == type::none) {
      d.refuse("the operation is not known for this type");
    }
    d.destination(s.operands.at(0), to);
    d.operand(s.operands.at(1), t);
    d.operand(s.operands.at(2), t);
    if (with_sum) {
      d.operand(s.operands.at(3), to);
    }
    return finish(d,
                  with_sum ? integer_handler<wide_product_plus_handler>(t)
                           : integer_handler<wide_product_handler>(t));
  }
  if (s.has("24") || s.has("sat")) {
    return false;
  }
  plain_operands(d, t, t);
  bool const high = s.has("hi");
  if (with_sum) {
    return finish(d,
                  high ? integer_handler<three<times_high_plus>::of>(t)
                       : integer_handler<three<times_plus>::of>(t));
  }
  return finish(
    d, high ? integer_handler<two<times_high>::of>(t) : integer_handler<two<times>::of>(t));
}

} // namespace

bool decode_integer(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  type const t = d.now().t;
  if (name == "dp4a") {
    plain_operands(d, type::b32, type::b32);
    d.now().flags =
      static_cast<u8>((s.parts.at(1) == "s32" ? 1 : 0) | (s.parts.at(2) == "s32" ? 2 : 0));
    return finish(d, dot_bytes);
  }
  if (is_float(t) || t == type::none || t == type::pred) {
    return false;
  }
  if (name == "mul" || name == "mad") {
    return decode_product(d, name == "mad");
  }
  if ((name == "add" || name == "sub") && s.has("sat")) {
    if (name == "sub" || t != type::int32) {
      return false;
    }
    plain_operands(d, t, t);
    return finish(d, binary<s32, s32, s32, saturating_plus>);
  }
  struct row {
    char const* name;
    handler (*pick)(type);
  };
  static constexpr row rows[] = {
    {"add", integer_handler<two<plus>::of>},
    {"sub", integer_handler<two<minus>::of>},
    {"div", integer_handler<two<quotient>::of>},
    {"rem", integer_handler<two<remainder>::of>},
    {"min", integer_handler<two<smaller>::of>},
    {"max", integer_handler<two<larger>::of>},
    {"abs", integer_handler<one<absolute>::of>},
    {"neg", integer_handler<one<negated>::of>},
    {"sad", integer_handler<three<distance_plus>::of>},
  };
  for (auto const& r : rows) {
    if (name == r.name && s.parts.size() == 2) {
      plain_operands(d, t, t);
      return finish(d, r.pick(t));
    }
  }
  return false;
}

} // namespace ptx
