// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief wgmma.mma_async with 16-bit inputs and float accumulators.
//!
//! Each warp of the warpgroup computes its own 16 rows, when it waits for the group: a shared tile
//! or a register of A that changes too early shows in the numbers. Accumulators are off limits
//! until then.
#include <cstring>

#include "access.hpp"
#include "operations.hpp"
#include "step.hpp"

namespace ptx {

namespace {

enum : u8 { registers_a = 1, transposed_a = 2, transposed_b = 4, negated_a = 8, negated_b = 16 };

// A shared-memory matrix descriptor of sm_90.
struct descriptor {
  u32 start = 0;
  u32 leading = 0; // byte offsets
  u32 stride = 0;
  u32 span = 0; // bytes of the swizzle, 16 without
  u32 base = 0;
};

descriptor decoded(u64 d) {
  static constexpr u32 spans[] = {16, 128, 64, 32};
  return {static_cast<u32>(d & 0x3fff) << 4,
          static_cast<u32>(d >> 16 & 0x3fff) << 4,
          static_cast<u32>(d >> 32 & 0x3fff) << 4,
          spans[d >> 62],
          static_cast<u32>(d >> 49 & 7)};
}

u32 swizzled(u32 address, u32 span) {
  u32 const bits = span == 128 ? 0x70 : span == 64 ? 0x30 : span == 32 ? 0x10 : 0;
  return address ^ (address >> 3 & bits);
}

// Address of the 16 bytes that hold k ... k+7 of row `mn` (rows of k are contiguous).
u32 chunk_k_major(descriptor const& d, u32 mn, u32 k) {
  u32 const across = d.span == 16 ? k / 8 * d.leading : k * 2;
  return swizzled(d.start + mn / 8 * d.stride + mn % 8 * d.span + across, d.span);
}

// Address of the 16 bytes that hold mn ... mn+7 of column `k` (columns are contiguous).
u32 chunk_mn_major(descriptor const& d, u32 mn, u32 k) {
  if (d.span == 16) {
    return d.start + mn / 8 * d.stride + k / 8 * d.leading + k % 8 * 16;
  }
  u32 const bytes = mn * 2;
  return swizzled(d.start + bytes / d.span * d.leading + bytes % d.span + k / 8 * d.stride +
                    k % 8 * d.span,
                  d.span);
}

// Calls f(mn, k, address) for the 16-byte chunks of rows [first, first + rows) and 16 columns.
template <class Function>
void for_chunks(descriptor const& d, bool transposed, u32 first, u32 rows, Function f) {
  if (transposed) {
    for (u32 k = 0; k < 16; ++k) {
      for (u32 mn = first; mn < first + rows; mn += 8) {
        f(mn, k, chunk_mn_major(d, mn, k));
      }
    }
  } else {
    for (u32 mn = first; mn < first + rows; ++mn) {
      f(mn, 0U, chunk_k_major(d, mn, 0));
      f(mn, 8U, chunk_k_major(d, mn, 8));
    }
  }
}

float element(type t, u16 bits) {
  return t == type::bf16 ? to_float(bfloat{bits}) : to_float(half{bits});
}

// Places the eight elements of a chunk by store(mn, k, value).
template <class Store>
void spread(std::byte const* from, type t, bool transposed, u32 mn, u32 k, Store store) {
  std::array<u16, 8> bits{};
  std::memcpy(bits.data(), from, 16);
  for (u32 e = 0; e < 8; ++e) {
    store(transposed ? mn + e : mn, transposed ? k : k + e, element(t, bits[e]));
  }
}

// Checks the reads of one operand, as done by the warp's matrix unit.
void note_operand(warp& w,
                  instruction const& i,
                  descriptor const& d,
                  bool transposed,
                  u32 first,
                  u32 rows,
                  access const& who) {
  if (d.base != 0) {
    fail(w, i, 0, fault::invalid, "has a descriptor with a base offset, which is not known here");
  }
  for_chunks(d, transposed, first, rows, [&](u32, u32, u32 address) {
    region const r = locate(w, i, 0, space::shared, address, 16, 16, false);
    note_as(w, i, 0, r, 16, {.read = true}, who);
  });
}

// op: accumulators, a (4 registers or descriptor), b descriptor, predicate
s32 const* a_operand(instruction const& i) {
  return i.op + i.count;
}
s32 const* b_operand(instruction const& i) {
  return a_operand(i) + ((i.flags & registers_a) != 0 ? 4 : 1);
}

void uniform(warp& w, instruction const& i, s32 at) {
  auto const* v = w.lanes<u64>(at);
  for (int l = 1; l < 32; ++l) {
    if (v[l] != v[0]) {
      fail(w, i, l, fault::divergence, "has a matrix descriptor that differs between lanes");
    }
  }
}

void issue(warp& w, instruction const& i, u32 mask) {
  if (!w.matrix_fenced) {
    fail(w, i, 0, fault::invalid, "comes before any wgmma.fence");
  }
  run_state& run = *w.home->launch;
  u32 const columns = i.count * 2U;
  matrix_job job;
  job.by = &i;
  uniform(w, i, *b_operand(i));
  job.b_descriptor = w.lanes<u64>(*b_operand(i))[0];
  job.accumulate = (w.predicate(b_operand(i)[1]) & 1) != 0;
  auto const known = common_knowledge(w, mask);
  access who;
  who.who = who.issuer = w.home->actor(w.home->matrix_actor(w));
  who.now = run.clock;
  who.known = known.get();
  who.asynchronous = true;
  if ((i.flags & registers_a) == 0) {
    uniform(w, i, *a_operand(i));
    job.a_descriptor = w.lanes<u64>(*a_operand(i))[0];
    note_operand(
      w, i, decoded(job.a_descriptor), (i.flags & transposed_a) != 0, w.index % 4 * 16, 16, who);
  }
  note_operand(w, i, decoded(job.b_descriptor), (i.flags & transposed_b) != 0, 0, columns, who);
  for (unsigned k = 0; k < i.count; ++k) {
    ++w.busy[i.op[k]];
  }
  job.clock = run.clock++;
  w.open_jobs.push_back(std::move(job));
}

using vector8 = float __attribute__((vector_size(32)));

struct operands {
  std::array<std::array<float, 16>, 16> a;   // [m][k]
  std::array<std::array<vector8, 32>, 16> b; // [k][n / 8]
};

void read_a(warp& w, matrix_job const& job, operands& o) {
  instruction const& i = *job.by;
  float const sign = (i.flags & negated_a) != 0 ? -1.0F : 1.0F;
  if ((i.flags & registers_a) != 0) {
    for (unsigned l = 0; l < 32; ++l) {
      for (unsigned r = 0; r < 4; ++r) {
        u32 const v = w.lanes<u32>(a_operand(i)[r])[l];
        auto& row = o.a[l / 4 + (r & 1) * 8];
        unsigned const k = l % 4 * 2 + (r >> 1) * 8;
        row[k] = sign * element(i.t, static_cast<u16>(v));
        row[k + 1] = sign * element(i.t, static_cast<u16>(v >> 16));
      }
    }
    return;
  }
  bool const transposed = (i.flags & transposed_a) != 0;
  u32 const first = w.index % 4 * 16;
  for_chunks(decoded(job.a_descriptor), transposed, first, 16, [&](u32 mn, u32 k, u32 address) {
    spread(w.home->shared + (address - shared_base),
           i.t,
           transposed,
           mn,
           k,
           [&](u32 m, u32 kk, float v) { o.a[m - first][kk] = sign * v; });
  });
}

void read_b(warp& w, matrix_job const& job, operands& o, u32 columns) {
  instruction const& i = *job.by;
  float const sign = (i.flags & negated_b) != 0 ? -1.0F : 1.0F;
  bool const transposed = (i.flags & transposed_b) != 0;
  for_chunks(decoded(job.b_descriptor), transposed, 0, columns, [&](u32 mn, u32 k, u32 address) {
    spread(w.home->shared + (address - shared_base),
           i.t,
           transposed,
           mn,
           k,
           [&](u32 n, u32 kk, float v) { o.b[kk][n / 8][n % 8] = sign * v; });
  });
}

void compute(warp& w, matrix_job const& job) {
  instruction const& i = *job.by;
  u32 const groups = i.count / 4U;
  operands o;
  read_a(w, job, o);
  read_b(w, job, o, groups * 8);
  for (u32 n = 0; n < groups; ++n) {
    std::array<vector8, 16> c{};
    for (unsigned r = 0; r < 4 && job.accumulate; ++r) {
      auto const* from = w.lanes<float>(i.op[4 * n + r]);
      for (unsigned l = 0; l < 32; ++l) {
        c[l / 4 + (r >> 1) * 8][l % 4 * 2 + (r & 1)] = get<float>(from[l]);
      }
    }
    for (std::size_t m = 0; m < 16; m += 4) { // four sums that do not wait for each other
      for (std::size_t k = 0; k < 16; ++k) {
        for (std::size_t row = m; row < m + 4; ++row) {
          c[row] += o.a[row][k] * o.b[k][n];
        }
      }
    }
    for (unsigned r = 0; r < 4; ++r) {
      auto* to = w.lanes<float>(i.op[4 * n + r]);
      for (unsigned l = 0; l < 32; ++l) {
        to[l] = put<float>(c[l / 4 + (r >> 1) * 8][l % 4 * 2 + (r & 1)]);
      }
    }
  }
  w.home->launch->out.counts.matrix_flops += 2ULL * 16 * 16 * 8 * groups;
}

void fence(warp& w, instruction const&, u32) {
  w.matrix_fenced = true;
}

void commit(warp& w, instruction const&, u32) {
  w.job_groups.push_back(std::move(w.open_jobs));
  w.open_jobs.clear();
}

void wait_group(warp& w, instruction const& i, u32 mask) {
  u32 finished = 0;
  while (w.job_groups.size() > static_cast<std::size_t>(i.immediate)) {
    for (auto const& job : w.job_groups.front()) {
      compute(w, job);
      for (unsigned k = 0; k < job.by->count; ++k) {
        if (auto const at = w.busy.find(job.by->op[k]); --at->second == 0) {
          w.busy.erase(at);
        }
      }
      finished = job.clock;
    }
    w.job_groups.erase(w.job_groups.begin());
  }
  if (finished != 0) {
    acquire_actor(w, mask, w.home->matrix_actor(w), finished);
  }
}

bool literal_flag(decoder& d, std::size_t k) {
  return d.at().operands.size() > k && d.at().operands[k] != "0";
}

bool decode_multiply(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  bool const known = s.parts.size() == 8 && s.parts[5] == "f32" && s.parts[6] == s.parts[7] &&
                     (s.parts[6] == "bf16" || s.parts[6] == "f16") && s.parts[4].ends_with("k16");
  if (!known) {
    return false;
  }
  i.t = type_of(s.parts[6]);
  i.count = static_cast<u8>(d.list(s.operands.at(0), type::f32, true));
  if (s.parts[4] != "m64n" + std::to_string(i.count * 2) + "k16" || i.count % 4 != 0) {
    d.refuse("the number of accumulators does not fit the shape");
  }
  bool const from_registers = s.operands.at(1)[0] == '{';
  d.list(s.operands[1], from_registers ? type::b32 : type::b64, false);
  d.operand(s.operands.at(2), type::b64);
  if (d.predicate(s.operands.at(3))) {
    d.refuse("a negated scale-d is not known");
  }
  std::size_t const b_flag = from_registers ? 6 : 7;
  i.flags = static_cast<u8>((from_registers ? registers_a : 0) |
                            (!from_registers && literal_flag(d, 6) ? transposed_a : 0) |
                            (literal_flag(d, b_flag) ? transposed_b : 0) |
                            (s.operands.size() > 4 && s.operands[4] == "-1" ? negated_a : 0) |
                            (s.operands.size() > 5 && s.operands[5] == "-1" ? negated_b : 0));
  return finish(d, issue);
}

} // namespace

void check_busy(warp& w, instruction const& i) {
  if (i.run == issue) {
    return;
  }
  for (unsigned k = 0; k < i.operand_count; ++k) {
    if (w.busy.contains(i.op[k])) {
      fail(w,
           i,
           0,
           fault::in_flight,
           "touches an accumulator of a wgmma that has not been waited for");
    }
  }
}

bool decode_wgmma(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if (s.parts[0] != "wgmma") {
    return false;
  }
  d.target().uses_async_proxy = true;
  i.kind = flow::aligned;
  if (s.parts.at(1) == "fence") {
    return finish(d, fence);
  }
  if (s.parts[1] == "commit_group") {
    return finish(d, commit);
  }
  if (s.parts[1] == "wait_group") {
    i.immediate = std::strtol(s.operands.at(0).c_str(), nullptr, 0);
    return finish(d, wait_group);
  }
  return s.parts[1] == "mma_async" && decode_multiply(d);
}

} // namespace ptx
