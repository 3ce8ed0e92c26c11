// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Moves, comparisons, selections and bit operations.
#include <algorithm>

#include "operations.hpp"

namespace ptx {

namespace {

// ---- moves

template <class T>
void move(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<T>(i.op[0]);
  auto const* a = w.lanes<T>(i.op[1]);
  for_lanes(mask, [&](int l) { d[l] = a[l]; });
}

void move_predicate(warp& w, instruction const& i, u32 mask) {
  u32& d = w.predicate(i.op[0]);
  d = (d & ~mask) | (w.predicate(i.op[1]) & mask);
}

// A clock that advances with the instructions of the launch.
void move_clock(warp& w, instruction const& i, u32 mask) {
  u64 const ticks = w.home->launch->out.counts.warp_instructions;
  for_lanes(mask, [&](int l) {
    if (i.t == type::b64) {
      w.lanes<u64>(i.op[0])[l] = ticks;
    } else {
      w.lanes<u32>(i.op[0])[l] = static_cast<u32>(ticks);
    }
  });
  ++w.home->launch->progress;
}

// Parts of 8, 16, 32 or 64 bits and the whole; the whole comes first in op.
u64 slot(warp& w, s32 offset, std::size_t bytes, int lane) {
  return bytes == 8 ? w.lanes<u64>(offset)[lane] : w.lanes<u32>(offset)[lane];
}
void set_slot(warp& w, s32 offset, std::size_t bytes, int lane, u64 v) {
  if (bytes == 8) {
    w.lanes<u64>(offset)[lane] = v;
  } else {
    w.lanes<u32>(offset)[lane] = static_cast<u32>(v);
  }
}
void pack(warp& w, instruction const& i, u32 mask) {
  std::size_t const whole = size_of(i.t);
  std::size_t const part = whole / i.count;
  u64 const keep = part == 8 ? ~u64{0} : (u64{1} << (8 * part)) - 1;
  for_lanes(mask, [&](int l) {
    u64 v = 0;
    for (unsigned k = 0; k < i.count; ++k) {
      v |= (slot(w, i.op[1 + k], part, l) & keep) << (8 * part * k);
    }
    set_slot(w, i.op[0], whole, l, v);
  });
}
void unpack(warp& w, instruction const& i, u32 mask) {
  std::size_t const whole = size_of(i.t);
  std::size_t const part = whole / i.count;
  u64 const keep = part == 8 ? ~u64{0} : (u64{1} << (8 * part)) - 1;
  for_lanes(mask, [&](int l) {
    u64 const v = slot(w, i.op[0], whole, l);
    for (unsigned k = 0; k < i.count; ++k) {
      set_slot(w, i.op[1 + k], part, l, v >> (8 * part * k) & keep);
    }
  });
}

type part_type(type t, unsigned count) {
  switch (size_of(t) / count) {
  case 1:
    return type::b8;
  case 2:
    return type::b16;
  case 4:
    return type::b32;
  default:
    return type::b64;
  }
}

bool decode_move(decoder& d) {
  auto const& s = d.at();
  type const t = d.now().t;
  auto const& to = s.operands.at(0);
  auto const& from = s.operands.at(1);
  if (t == type::pred) {
    d.destination(to, t);
    d.predicate(from);
    return finish(d, move_predicate);
  }
  if (size_of(t) > 8) {
    return false;
  }
  if (to[0] == '{' || from[0] == '{') {
    bool const packs = from[0] == '{';
    if (packs) {
      d.destination(to, t);
    } else {
      d.operand(from, t);
    }
    auto const& parts = packs ? from : to;
    auto const count = static_cast<unsigned>(std::count(parts.begin(), parts.end(), ',') + 1);
    d.list(parts, part_type(t, count), !packs);
    d.now().count = static_cast<u8>(count);
    return finish(d, packs ? pack : unpack);
  }
  d.destination(to, t);
  if (from.starts_with("%clock") || from.starts_with("%globaltimer")) {
    d.now().t = size_of(t) == 8 ? type::b64 : type::b32;
    return finish(d, move_clock);
  }
  d.operand(from, t);
  return finish(d, size_of(t) == 8 ? move<u64> : move<u32>);
}

// cvta: mode 1 shared, 2 local; flags 1: generic to the space
void convert_address(warp& w, instruction const& i, u32 mask) {
  u64 const window = i.mode == 1 ? shared_window : i.mode == 2 ? local_window : 0;
  for_lanes(mask, [&](int l) {
    u64 const a = slot(w, i.op[1], size_of(i.t), l);
    set_slot(w, i.op[0], size_of(i.t), l, i.flags != 0 ? a - window : a + window);
  });
}

void is_space(warp& w, instruction const& i, u32 mask) {
  u32& p = w.predicate(i.op[0]);
  for_lanes(mask, [&](int l) {
    u64 const a = w.lanes<u64>(i.op[1])[l];
    u8 const where = a >= local_window ? 2 : a >= shared_window ? 1 : 0;
    p = where == i.mode ? p | 1U << l : p & ~(1U << l);
  });
}

u8 window_of(statement const& s) {
  return s.has("shared") || s.has("shared::cta") || s.has("shared::cluster") ? 1
         : s.has("local")                                                    ? 2
                                                                             : 0;
}

// ---- comparisons

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
  case eq:
    return a == b;
  case ne:
    return a != b;
  case lt:
    return a < b;
  case le:
    return a <= b;
  case gt:
    return a > b;
  case ge:
    return a >= b;
  case num:
    return true;
  default:
    return false;
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
    case 1:
      return v & with;
    case 2:
      return v | with;
    case 3:
      return v ^ with;
    default:
      return v;
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
  case type::f16:
    return Pick<half>::run;
  case type::bf16:
    return Pick<bfloat>::run;
  case type::f32:
    return Pick<float>::run;
  case type::f64:
    return Pick<double>::run;
  default:
    return integer_handler<Pick>(t);
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

bool decode_set(decoder& d, bool to_predicate) {
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

template <class T>
void select(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<T>(i.op[0]);
  auto const* a = w.lanes<T>(i.op[1]);
  auto const* b = w.lanes<T>(i.op[2]);
  u32 const p = w.predicate(i.op[3]);
  for_lanes(mask, [&](int l) { d[l] = (p >> l & 1) != 0 ? a[l] : b[l]; });
}

// ---- bits

struct both {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct either {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct differs {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct complement {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct is_zero {
  template <class T>
  T operator()(T a) const {
    return a == 0;
  }
};
struct shift_left {
  template <class T>
  T operator()(T a, u32 n) const {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<u64>(a) << n);
  }
};
struct shift_right {
  template <class T>
  T operator()(T a, u32 n) const {
    u32 const most = 8 * sizeof(T) - 1;
    if (n > most) {
      return std::is_signed_v<T> ? static_cast<T>(a >> most) : T{0};
    }
    return static_cast<T>(a >> n);
  }
};
template <class F>
struct two {
  template <class T>
  struct of {
    static void run(warp& w, instruction const& i, u32 m) { binary<T, T, T, F>(w, i, m); }
  };
};
template <class F>
struct one {
  template <class T>
  struct of {
    static void run(warp& w, instruction const& i, u32 m) { unary<T, T, F>(w, i, m); }
  };
};
template <class F>
struct shift {
  template <class T>
  struct of {
    static void run(warp& w, instruction const& i, u32 m) { binary<T, T, u32, F>(w, i, m); }
  };
};

// mode: 0 and, 1 or, 2 xor, 3 not
void predicate_logic(warp& w, instruction const& i, u32 mask) {
  u32 const a = w.predicate(i.op[1]);
  u32 const b = w.predicate(i.op[i.mode == 3 ? 1 : 2]);
  u32 const v = i.mode == 0 ? a & b : i.mode == 1 ? a | b : i.mode == 2 ? a ^ b : ~a;
  u32& d = w.predicate(i.op[0]);
  d = (d & ~mask) | (v & mask);
}

bool decode_bits(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  type const t = d.now().t;
  static constexpr char const* names[] = {"and", "or", "xor", "not"};
  for (u8 k = 0; k < 4; ++k) {
    if (name == names[k] && t == type::pred) {
      d.now().mode = k;
      d.destination(s.operands.at(0), t);
      for (std::size_t q = 1; q < s.operands.size(); ++q) {
        d.predicate(s.operands[q]);
      }
      return finish(d, predicate_logic);
    }
  }
  struct row {
    char const* name;
    handler (*pick)(type);
    bool shifts;
  };
  static constexpr row rows[] = {
    {"and", integer_handler<two<both>::of>, false},
    {"or", integer_handler<two<either>::of>, false},
    {"xor", integer_handler<two<differs>::of>, false},
    {"not", integer_handler<one<complement>::of>, false},
    {"cnot", integer_handler<one<is_zero>::of>, false},
    {"shl", integer_handler<shift<shift_left>::of>, true},
    {"shr", integer_handler<shift<shift_right>::of>, true},
  };
  for (auto const& r : rows) {
    if (name == r.name) {
      d.destination(s.operands.at(0), t);
      d.operand(s.operands.at(1), t);
      if (s.operands.size() > 2) {
        d.operand(s.operands[2], r.shifts ? type::b32 : t);
      }
      return finish(d, r.pick(t));
    }
  }
  return false;
}

} // namespace

bool decode_bit_fields(decoder& d);

bool decode_logic(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  type const t = d.now().t;
  if (name == "mov") {
    return decode_move(d);
  }
  if (name == "cvta") {
    d.now().mode = window_of(s);
    d.now().flags = s.has("to") ? 1 : 0;
    plain_operands(d, t, t);
    return finish(d, convert_address);
  }
  if (name == "isspacep") {
    d.now().mode = window_of(s);
    d.destination(s.operands.at(0), type::pred);
    d.operand(s.operands.at(1), type::b64);
    return finish(d, is_space);
  }
  if (name == "setp" || name == "set") {
    return decode_set(d, name == "setp");
  }
  if (name == "selp") {
    d.destination(s.operands.at(0), t);
    d.operand(s.operands.at(1), t);
    d.operand(s.operands.at(2), t);
    d.predicate(s.operands.at(3));
    return finish(d, size_of(t) == 8 ? select<u64> : select<u32>);
  }
  return decode_bits(d) || decode_bit_fields(d);
}

} // namespace ptx
