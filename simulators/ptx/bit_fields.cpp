// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Bit fields, permutations, three-input logic, counting.
#include <algorithm>

#include "operations.hpp"

namespace ptx {

bool decode_bit_fields(decoder& d);

namespace {

struct count_ones {
  template <class T>
  u32 operator()(T a) const {
    return static_cast<u32>(std::popcount(a));
  }
};
struct leading_zeros {
  template <class T>
  u32 operator()(T a) const {
    return static_cast<u32>(std::countl_zero(a));
  }
};
struct reversed {
  template <class T>
  T operator()(T a) const {
    T out = 0;
    for (unsigned k = 0; k < 8 * sizeof(T); ++k) {
      out |= (a >> k & 1) << (8 * sizeof(T) - 1 - k);
    }
    return out;
  }
};

template <class F, class R32, class R64>
handler by_width(type t) {
  return size_of(t) == 8 ? unary<R64, u64, F> : unary<R32, u32, F>;
}

// Position of the most significant bit that differs from the sign; flags 1: as a shift amount.
void find_top(warp& w, instruction const& i, u32 mask) {
  bool const wide = size_of(i.t) == 8;
  auto* d = w.lanes<u32>(i.op[0]);
  for_lanes(mask, [&](int l) {
    u64 v = wide ? w.lanes<u64>(i.op[1])[l] : w.lanes<u32>(i.op[1])[l];
    u64 const all = wide ? ~u64{0} : 0xffffffffU;
    if (is_signed(i.t) && (v >> (wide ? 63 : 31) & 1) != 0) {
      v = ~v & all;
    }
    u32 const top = v == 0 ? 0xffffffffU : 63 - static_cast<u32>(std::countl_zero(v));
    d[l] = i.flags != 0 && v != 0 ? (wide ? 63 : 31) - top : top;
  });
}

void extract(warp& w, instruction const& i, u32 mask) {
  bool const wide = size_of(i.t) == 8;
  u32 const bits = wide ? 64 : 32;
  for_lanes(mask, [&](int l) {
    u64 const a = wide ? w.lanes<u64>(i.op[1])[l] : w.lanes<u32>(i.op[1])[l];
    u32 const from = w.lanes<u32>(i.op[2])[l] & 255;
    u32 const length = w.lanes<u32>(i.op[3])[l] & 255;
    u64 const sign_position = std::min(from + length - 1, bits - 1);
    bool const sign = is_signed(i.t) && length != 0 && (a >> sign_position & 1) != 0;
    u64 out = sign ? ~u64{0} : 0;
    for (u32 k = 0; k < length && k < bits; ++k) {
      u64 const bit = from + k < bits ? a >> (from + k) & 1 : u64{sign};
      out = (out & ~(u64{1} << k)) | bit << k;
    }
    if (wide) {
      w.lanes<u64>(i.op[0])[l] = out;
    } else {
      w.lanes<u32>(i.op[0])[l] = static_cast<u32>(out);
    }
  });
}

void insert(warp& w, instruction const& i, u32 mask) {
  bool const wide = size_of(i.t) == 8;
  u32 const bits = wide ? 64 : 32;
  for_lanes(mask, [&](int l) {
    auto const value = [&](int k) {
      return wide ? w.lanes<u64>(i.op[k])[l] : u64{w.lanes<u32>(i.op[k])[l]};
    };
    u64 const a = value(1);
    u64 out = value(2);
    u32 const from = w.lanes<u32>(i.op[3])[l] & 255;
    u32 const length = w.lanes<u32>(i.op[4])[l] & 255;
    for (u32 k = 0; k < length && from + k < bits; ++k) {
      out = (out & ~(u64{1} << (from + k))) | (a >> k & 1) << (from + k);
    }
    if (wide) {
      w.lanes<u64>(i.op[0])[l] = out;
    } else {
      w.lanes<u32>(i.op[0])[l] = static_cast<u32>(out);
    }
  });
}

void three_input(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<u32>(i.op[1]);
  auto const* b = w.lanes<u32>(i.op[2]);
  auto const* c = w.lanes<u32>(i.op[3]);
  u32 const table = static_cast<u32>(i.immediate);
  for_lanes(mask, [&](int l) {
    u32 out = 0;
    for (u32 row = 0; row < 8; ++row) {
      if ((table >> row & 1) != 0) {
        out |= ((row & 4) != 0 ? a[l] : ~a[l]) & ((row & 2) != 0 ? b[l] : ~b[l]) &
               ((row & 1) != 0 ? c[l] : ~c[l]);
      }
    }
    d[l] = out;
  });
}

// mode: 0 default, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16
u32 permute_selector(u8 mode, u32 c) {
  static constexpr u16 tables[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543},
                                       {0x5670, 0x6701, 0x7012, 0x0123},
                                       {0x0000, 0x1111, 0x2222, 0x3333},
                                       {0x3210, 0x3211, 0x3222, 0x3333},
                                       {0x0000, 0x1110, 0x2210, 0x3210},
                                       {0x1010, 0x3232, 0x1010, 0x3232}};
  return mode == 0 ? c : tables[mode - 1][c & 3];
}

void permute(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<u32>(i.op[1]);
  auto const* b = w.lanes<u32>(i.op[2]);
  auto const* c = w.lanes<u32>(i.op[3]);
  for_lanes(mask, [&](int l) {
    u64 const bytes = u64{b[l]} << 32 | a[l];
    u32 const selector = permute_selector(i.mode, c[l]);
    u32 out = 0;
    for (u32 k = 0; k < 4; ++k) {
      u32 const pick = selector >> (4 * k) & 15;
      u32 const byte = static_cast<u32>(bytes >> (8 * (pick & 7)) & 255);
      bool const sign = i.mode == 0 && (pick & 8) != 0;
      out |= (sign ? ((byte & 128) != 0 ? 255U : 0U) : byte) << (8 * k);
    }
    d[l] = out;
  });
}

// flags: 1 right, 2 clamp
void funnel(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<u32>(i.op[1]);
  auto const* b = w.lanes<u32>(i.op[2]);
  auto const* c = w.lanes<u32>(i.op[3]);
  for_lanes(mask, [&](int l) {
    u32 const n = (i.flags & 2) != 0 ? std::min(c[l], 32U) : c[l] & 31;
    u64 const both = u64{b[l]} << 32 | a[l];
    d[l] = static_cast<u32>((i.flags & 1) != 0 ? both >> n : both << n >> 32);
  });
}

bool decode_lop3(decoder& d) {
  auto const& s = d.at();
  if (s.has("BOOL") || s.operands.size() != 5) {
    return false;
  }
  d.now().immediate = std::strtol(s.operands[4].c_str(), nullptr, 0);
  d.destination(s.operands[0], type::b32);
  for (std::size_t k = 1; k < 4; ++k) {
    d.operand(s.operands[k], type::b32);
  }
  return finish(d, three_input);
}

bool decode_prmt(decoder& d) {
  static constexpr char const* modes[] = {"", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  for (u8 k = 1; k < 7; ++k) {
    d.now().mode = d.at().has(modes[k]) ? k : d.now().mode;
  }
  plain_operands(d, type::b32, type::b32);
  return finish(d, permute);
}

} // namespace

bool decode_bit_fields(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  type const t = d.now().t;
  if (name == "popc" || name == "clz") {
    plain_operands(d, type::b32, t);
    return finish(
      d, name == "popc" ? by_width<count_ones, u32, u32>(t) : by_width<leading_zeros, u32, u32>(t));
  }
  if (name == "brev") {
    plain_operands(d, t, t);
    return finish(d, by_width<reversed, u32, u64>(t));
  }
  if (name == "bfind") {
    d.now().flags = s.has("shiftamt") ? 1 : 0;
    plain_operands(d, type::b32, t);
    return finish(d, find_top);
  }
  if (name == "bfe" || name == "bfi") {
    std::size_t const values = name == "bfe" ? 1 : 2;
    d.destination(s.operands.at(0), t);
    for (std::size_t k = 1; k < s.operands.size(); ++k) {
      d.operand(s.operands[k], k <= values ? t : type::b32);
    }
    return finish(d, name == "bfe" ? extract : insert);
  }
  if (name == "lop3") {
    return decode_lop3(d);
  }
  if (name == "prmt") {
    return decode_prmt(d);
  }
  if (name == "shf") {
    d.now().flags = static_cast<u8>((s.has("r") ? 1 : 0) | (s.has("clamp") ? 2 : 0));
    plain_operands(d, type::b32, type::b32);
    return finish(d, funnel);
  }
  return false;
}

} // namespace ptx
