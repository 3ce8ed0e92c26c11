// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief ldmatrix, stmatrix, movmatrix and mma.sync.
#include <cstring>
#include <span>

#include "access.hpp"
#include "operations.hpp"

namespace ptx {

namespace {

using row = std::array<u16, 8>;

// Row r of matrix m lies where lane 8 m + r points to.
region matrix_row(warp& w, instruction const& i, int lane, bool write) {
  u64 const address = address_of(w, i, 0, lane);
  region const r = locate(w, i, lane, space::shared, address, 16, 16, write);
  note(w, i, lane, r, 16, {.read = !write, .write = write});
  return r;
}

// Extra passes over shared memory: eight rows fit in one if they differ in bits 4 ... 6.
void count_conflicts(warp& w, u32 banks) {
  w.home->launch->out.counts.bank_conflicts += static_cast<u64>(8 - std::popcount(banks));
}

void load_matrix(warp& w, instruction const& i, u32) {
  std::array<std::array<u32, 32>, 4> out{};
  for (int m = 0; m < i.count; ++m) {
    std::array<row, 8> rows{};
    u32 banks = 0;
    for (int r = 0; r < 8; ++r) {
      region const from = matrix_row(w, i, 8 * m + r, false);
      banks |= 1U << (from.offset / 16 % 8);
      std::memcpy(rows[static_cast<std::size_t>(r)].data(), from.data, 16);
    }
    count_conflicts(w, banks);
    for (unsigned l = 0; l < 32; ++l) {
      unsigned const g = l / 4;
      unsigned const c = l % 4 * 2;
      u32 const low = i.mode != 0 ? rows[c][g] : rows[g][c];
      u32 const high = i.mode != 0 ? rows[c + 1][g] : rows[g][c + 1];
      out[static_cast<std::size_t>(m)][l] = low | high << 16;
    }
  }
  for (int m = 0; m < i.count; ++m) {
    std::memcpy(w.lanes<u32>(i.op[m]), out[static_cast<std::size_t>(m)].data(), 128);
  }
}

void store_matrix(warp& w, instruction const& i, u32) {
  for (int m = 0; m < i.count; ++m) {
    auto const* from = w.lanes<u32>(i.op[1 + m]);
    std::array<row, 8> rows{};
    for (unsigned l = 0; l < 32; ++l) {
      unsigned const g = l / 4;
      unsigned const c = l % 4 * 2;
      auto const low = static_cast<u16>(from[l]);
      auto const high = static_cast<u16>(from[l] >> 16);
      (i.mode != 0 ? rows[c][g] : rows[g][c]) = low;
      (i.mode != 0 ? rows[c + 1][g] : rows[g][c + 1]) = high;
    }
    u32 banks = 0;
    for (int r = 0; r < 8; ++r) {
      region const to = matrix_row(w, i, 8 * m + r, true);
      banks |= 1U << (to.offset / 16 % 8);
      std::memcpy(to.data, rows[static_cast<std::size_t>(r)].data(), 16);
    }
    count_conflicts(w, banks);
  }
}

void transpose_matrix(warp& w, instruction const& i, u32) {
  std::array<row, 8> rows{};
  auto const* a = w.lanes<u32>(i.op[1]);
  for (unsigned l = 0; l < 32; ++l) {
    rows[l / 4][l % 4 * 2] = static_cast<u16>(a[l]);
    rows[l / 4][l % 4 * 2 + 1] = static_cast<u16>(a[l] >> 16);
  }
  auto* d = w.lanes<u32>(i.op[0]);
  for (unsigned l = 0; l < 32; ++l) {
    d[l] = rows[l % 4 * 2][l / 4] | u32{rows[l % 4 * 2 + 1][l / 4]} << 16;
  }
}

// ---- mma

using vector8 = float __attribute__((vector_size(32)));

float element(type t, u32 packed, int k) {
  auto const bits = static_cast<u16>(packed >> (16 * k));
  return t == type::bf16 ? to_float(bfloat{bits}) : to_float(half{bits});
}

// Products of 16-bit floats are exact in float; sums round once per product, in order of k.
struct tile {
  std::array<std::array<float, 16>, 16> a;
  std::array<vector8, 16> b;
  std::array<vector8, 16> c;
};

void multiply(tile& t, int depth) {
  for (std::size_t m = 0; m < 16; ++m) {
    vector8 sum = t.c[m];
    for (std::size_t k = 0; k < static_cast<std::size_t>(depth); ++k) {
      sum += t.a[m][k] * t.b[k];
    }
    t.c[m] = sum;
  }
}

// op: d (4), a (depth / 4), b (depth / 8), c (4); 16-bit inputs, float accumulators.
template <int Depth>
void multiply_16bit(warp& w, instruction const& i, u32) {
  constexpr int a_registers = Depth / 4;
  constexpr int b_registers = Depth / 8;
  tile t;
  s32 const* const a = i.op + 4;
  s32 const* const b = a + a_registers;
  s32 const* const c = b + b_registers;
  for (unsigned l = 0; l < 32; ++l) {
    unsigned const g = l / 4;
    unsigned const q = l % 4 * 2;
    for (unsigned r = 0; r < a_registers; ++r) {
      u32 const v = w.lanes<u32>(a[r])[l];
      auto& line = t.a[g + (r & 1) * 8];
      line[q + (r >> 1) * 8] = element(i.t, v, 0);
      line[q + (r >> 1) * 8 + 1] = element(i.t, v, 1);
    }
    for (unsigned r = 0; r < b_registers; ++r) {
      u32 const v = w.lanes<u32>(b[r])[l];
      t.b[q + r * 8][g] = element(i.t, v, 0);
      t.b[q + r * 8 + 1][g] = element(i.t, v, 1);
    }
    for (unsigned r = 0; r < 4; ++r) {
      t.c[g + (r >> 1) * 8][q + (r & 1)] = get<float>(w.lanes<float>(c[r])[l]);
    }
  }
  multiply(t, Depth);
  for (unsigned l = 0; l < 32; ++l) {
    for (unsigned r = 0; r < 4; ++r) {
      w.lanes<float>(i.op[r])[l] = put<float>(t.c[l / 4 + (r >> 1) * 8][l % 4 * 2 + (r & 1)]);
    }
  }
  w.home->launch->out.counts.matrix_flops += 2 * 16 * 8 * Depth;
}

// tf32: one element per register; the low 13 bits are ignored.
template <int Depth>
void multiply_tf32(warp& w, instruction const& i, u32) {
  constexpr int a_registers = Depth / 2;
  constexpr int b_registers = Depth / 4;
  tile t;
  s32 const* const a = i.op + 4;
  s32 const* const b = a + a_registers;
  s32 const* const c = b + b_registers;
  auto const value = [&](s32 at, unsigned l) {
    return get<float>(w.lanes<u32>(at)[l] & 0xffffe000U);
  };
  for (unsigned l = 0; l < 32; ++l) {
    unsigned const g = l / 4;
    unsigned const q = l % 4;
    for (unsigned r = 0; r < a_registers; ++r) {
      t.a[g + (r & 1) * 8][q + (r >> 1) * 4] = value(a[r], l);
    }
    for (unsigned r = 0; r < b_registers; ++r) {
      t.b[q + r * 4][g] = value(b[r], l);
    }
    for (unsigned r = 0; r < 4; ++r) {
      t.c[g + (r >> 1) * 8][q * 2 + (r & 1)] = get<float>(w.lanes<float>(c[r])[l]);
    }
  }
  multiply(t, Depth);
  for (unsigned l = 0; l < 32; ++l) {
    for (unsigned r = 0; r < 4; ++r) {
      w.lanes<float>(i.op[r])[l] = put<float>(t.c[l / 4 + (r >> 1) * 8][l % 4 * 2 + (r & 1)]);
    }
  }
  w.home->launch->out.counts.matrix_flops += 2 * 16 * 8 * Depth;
}

bool decode_mma(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  auto const types =
    s.parts.size() >= 4 ? std::span(s.parts).last(4) : std::span<std::string const>();
  bool const ok = s.parts.size() == 10 && s.has("row") && s.has("col") && types[0] == "f32" &&
                  types[1] == types[2] && types[3] == "f32";
  if (!ok) {
    return false;
  }
  for (std::size_t k = 0; k < 4; ++k) {
    d.list(s.operands.at(k), type::b32, k == 0);
  }
  i.t = type_of(types[1]);
  i.kind = flow::aligned;
  if (i.t == type::bf16 || i.t == type::f16) {
    return finish(d,
                  s.has("m16n8k16")  ? multiply_16bit<16>
                  : s.has("m16n8k8") ? multiply_16bit<8>
                                     : nullptr);
  }
  return i.t == type::tf32 && finish(d,
                                     s.has("m16n8k8")   ? multiply_tf32<8>
                                     : s.has("m16n8k4") ? multiply_tf32<4>
                                                        : nullptr);
}

} // namespace

bool decode_matrix(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if (s.parts[0] == "mma") {
    return decode_mma(d);
  }
  i.mode = s.has("trans") ? 1 : 0;
  if (s.parts[0] == "movmatrix") {
    i.kind = flow::aligned;
    plain_operands(d, type::b32, type::b32);
    return finish(d, transpose_matrix);
  }
  bool const loads = s.parts[0] == "ldmatrix";
  if ((!loads && s.parts[0] != "stmatrix") || !s.has("m8n8") || !s.has("b16")) {
    return false;
  }
  i.kind = flow::aligned;
  if (loads) {
    i.count = static_cast<u8>(d.list(s.operands.at(0), type::b32, true));
    d.address(s.operands.at(1));
    return finish(d, load_matrix);
  }
  d.address(s.operands.at(0));
  i.count = static_cast<u8>(d.list(s.operands.at(1), type::b32, false));
  return finish(d, store_matrix);
}

} // namespace ptx
