// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Moves, selections and bit operations.
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

// Time passes with every look at it, so that a kernel which waits for it comes to an end.
void move_global_timer(warp& w, instruction const& i, u32 mask) {
  run_state& run = *w.home->launch;
  run.out.counts.nanoseconds += 32;
  u64 const time = run.how.global_time + run.out.counts.nanoseconds;
  for_lanes(mask, [&](int l) {
    if (i.t == type::b64) {
      w.lanes<u64>(i.op[0])[l] = time;
    } else {
      w.lanes<u32>(i.op[0])[l] = static_cast<u32>(i.mode == 1 ? time >> 32 : time);
    }
  });
  ++run.progress;
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
  case 1: return type::b8;
  case 2: return type::b16;
  case 4: return type::b32;
  default: return type::b64;
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
  if (from.starts_with("%globaltimer")) {
    d.now().t = size_of(t) == 8 ? type::b64 : type::b32;
    d.now().mode = from.ends_with("_hi") ? 1 : 0;
    return finish(d, move_global_timer);
  }
  if (from.starts_with("%clock")) {
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
bool decode_comparison(decoder& d, bool to_predicate);

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
    return decode_comparison(d, name == "setp");
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
