// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief setp and set.
#include "operations.hpp"

namespace ptx {

bool decode_comparison(decoder& d, bool to_predicate);

namespace {

enum comparison : u8 { eq, ne, lt, le, gt, ge, num, is_nan };
enum : u8 { unordered = 16 };

template <class T>
bool compares(u8 mode, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) {
      return (mode & unordered) != 0 || (mode & 15) == is_nan;
    }
  }
  switch (mode & 15) {
  case eq: return a == b;
  case ne: return a != b;
  case lt: return a < b;
  case le: return a <= b;
  case gt: return a > b;
  case ge: return a >= b;
  case num: return true;
  default: return false;
  }
}

template <class T>
auto comparable(T v) {
  if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat>) {
    return to_float(v);
  } else {
    return v;
  }
}

template <class T>
u32 compare(warp& w, s32 first, s32 second, u8 mode, u32 mask) {
  auto const* a = w.lanes<T>(first);
  auto const* b = w.lanes<T>(second);
  u32 out = 0;
  for_lanes(mask, [&](int l) {
    out |= static_cast<u32>(compares(mode, comparable(get<T>(a[l])), comparable(get<T>(b[l]))))
           << l;
  });
  return out;
}

// flags: 0 none, 1 and, 2 or, 3 xor with predicate op[4]; 8: that predicate negated
template <class T>
void set_predicate(warp& w, instruction const& i, u32 mask) {
  u32 const result = compare<T>(w, i.op[2], i.op[3], i.mode, mask);
  u32 const with = i.flags == 0         ? 0
                   : (i.flags & 8) != 0 ? ~w.predicate(i.op[4])
                                        : w.predicate(i.op[4]);
  auto const combined = [&](u32 v) {
    switch (i.flags & 7) {
    case 1: return v & with;
    case 2: return v | with;
    case 3: return v ^ with;
    default: return v;
    }
  };
  auto const store = [&](s32 to, u32 v) {
    u32& p = w.predicate(to);
    p = (p & ~mask) | (v & mask);
  };
  store(i.op[0], combined(result));
  store(i.op[1], combined(~result));
}

// set.CmpOp.dtype.stype; t2 is the source type here
template <class T>
void set_value(warp& w, instruction const& i, u32 mask) {
  u32 const result = compare<T>(w, i.op[1], i.op[2], i.mode, mask);
  auto* d = w.lanes<u32>(i.op[0]);
  u32 const one = i.t == type::f32 ? std::bit_cast<u32>(1.0F) : 0xffffffffU;
  for_lanes(mask, [&](int l) { d[l] = (result >> l & 1) != 0 ? one : 0; });
}

template <template <class> class Pick>
handler comparison_handler(type t) {
  switch (t) {
  case type::f16: return Pick<half>::run;
  case type::bf16: return Pick<bfloat>::run;
  case type::f32: return Pick<float>::run;
  case type::f64: return Pick<double>::run;
  default: return integer_handler<Pick>(t);
  }
}
template <class T>
struct predicate_pick {
  static void run(warp& w, instruction const& i, u32 m) { set_predicate<T>(w, i, m); }
};
template <class T>
struct value_pick {
  static void run(warp& w, instruction const& i, u32 m) { set_value<T>(w, i, m); }
};

bool comparison_mode(std::string const& text, bool floating, u8& mode) {
  static constexpr char const* names[] = {"eq", "ne", "lt", "le", "gt", "ge", "num", "nan"};
  static constexpr char const* unsigned_names[] = {"lo", "ls", "hi", "hs"};
  for (u8 k = 0; k < 8; ++k) {
    if (text == names[k]) {
      mode = k;
      return true;
    }
    if (floating && text == std::string(names[k]) + "u") {
      mode = k | unordered;
      return true;
    }
  }
  for (u8 k = 0; k < 4; ++k) {
    if (text == unsigned_names[k]) {
      mode = static_cast<u8>(lt + k);
      return true;
    }
  }
  return false;
}

} // namespace

bool decode_comparison(decoder& d, bool to_predicate) {
  auto const& s = d.at();
  instruction& i = d.now();
  type const from = i.t;
  if (!comparison_mode(s.parts.at(1), is_float(from), i.mode)) {
    d.refuse("the comparison is not known");
  }
  if (!to_predicate) {
    i.t = type_of(s.parts.at(s.parts.size() - 2));
    i.t2 = from;
    d.destination(s.operands.at(0), i.t);
    d.operand(s.operands.at(1), from);
    d.operand(s.operands.at(2), from);
    if (size_of(i.t) != 4 || s.operands.size() > 3) {
      return false;
    }
    return finish(d, comparison_handler<value_pick>(from));
  }
  auto const targets = split(s.operands.at(0), '|');
  d.destination(targets.at(0), type::pred);
  d.destination(targets.size() > 1 ? targets[1] : "_", type::pred);
  d.operand(s.operands.at(1), from);
  d.operand(s.operands.at(2), from);
  if (s.operands.size() > 3) {
    i.flags = s.has("and") ? 1 : s.has("or") ? 2 : 3;
    i.flags = static_cast<u8>(i.flags | (d.predicate(s.operands[3]) ? 8 : 0));
  }
  return finish(d, comparison_handler<predicate_pick>(from));
}

} // namespace ptx
