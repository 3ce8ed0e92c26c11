// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Instructions of a warp against the layouts that the PTX manual gives element by element.
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>

#include "fixture.hpp"

using fixture::array;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

namespace {

std::vector<u32> random_words(unsigned seed, std::size_t n) {
  std::mt19937 random(seed);
  std::vector<u32> out(n);
  for (auto& v : out) {
    v = static_cast<u32>(random());
  }
  return out;
}

// Small integers are exact in every format, so sums are exact too.
using fixture::matrix;
using fixture::small_matrix;

u32 bits_of(char const* format, int v) {
  u32 const f = std::bit_cast<u32>(static_cast<float>(v));
  if (format == std::string("tf32")) {
    return f | 0x1234; // bits that tf32 does not look at
  }
  if (format == std::string("bf16")) {
    return f >> 16;
  }
  return v == 0 ? 0 : (f >> 16 & 0x8000) | (((f >> 23 & 255) - 112) << 10) | (f >> 13 & 1023);
}

// Element i of a lane's fragment, in the words of the PTX manual (16-bit formats).
struct place {
  std::size_t row, column;
};
place a_place(u32 lane, u32 i) {
  u32 const group = lane >> 2, in_group = lane % 4;
  bool const upper = i < 2 || (i >= 4 && i < 6);
  return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
place b_place(u32 lane, u32 i) {
  return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2};
}
place c_place(u32 lane, u32 i) {
  return {(lane >> 2) + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)};
}

void check_product(fixture::machine& m, char const* kernel, char const* format, std::size_t depth) {
  auto const a = small_matrix(1, 16, depth);
  auto const b = small_matrix(2, depth, 8);
  auto const c = small_matrix(3, 16, 8);
  bool const single = format == std::string("tf32");
  u32 const a_count = static_cast<u32>(16 * depth / 32);
  u32 const b_count = static_cast<u32>(8 * depth / 32);
  u32 const per_register = single ? 1 : 2;
  std::vector<u32> ra(a_count / per_register * 32), rb(b_count / per_register * 32);
  std::vector<float> rc(128);
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < a_count; ++i) { // m16n8k8 tf32: a0 (g, t), a1 (g+8, t), a2 (g, t+4), a3
      place const p =
        single ? place{(lane >> 2) + (i % 2) * 8, lane % 4 + (i / 2) * 4} : a_place(lane, i);
      ra[i / per_register * 32 + lane] |= bits_of(format, a[p.row][p.column])
                                          << (single ? 0 : i % 2 * 16);
    }
    for (u32 i = 0; i < b_count; ++i) {
      place const p = single ? place{lane % 4 + i * 4, lane >> 2} : b_place(lane, i);
      rb[i / per_register * 32 + lane] |= bits_of(format, b[p.row][p.column])
                                          << (single ? 0 : i % 2 * 16);
    }
    for (u32 i = 0; i < 4; ++i) {
      rc[i * 32 + lane] = static_cast<float>(c[c_place(lane, i).row][c_place(lane, i).column]);
    }
  }
  array<u32> da(m, ra), db(m, rb);
  array<float> dc(m, rc), d(m, 128);
  auto const r = m.run(kernel, {1}, {32}, da.data(), db.data(), dc.data(), d.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  CHECK(r.counts.matrix_flops == 2 * 16 * 8 * depth);
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < 4; ++i) {
      place const p = c_place(lane, i);
      int want = c[p.row][p.column];
      for (std::size_t k = 0; k < depth; ++k) {
        want += a[p.row][k] * b[k][p.column];
      }
      REQUIRE(d[i * 32 + lane] == static_cast<float>(want));
    }
  }
}

} // namespace

TEST_CASE("shuffles, votes, matches and reductions") {
  fixture::machine m("warp.sm_80");
  auto const v = random_words(5, 32);
  array<u32> in(m, v), out(m, 32 * 15);
  auto const r = m.run("exchange", {1}, {32}, in.data(), out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (u32 l = 0; l < 32; ++l) {
    auto const got = [&](u32 k) { return out[k * 32 + l]; };
    CHECK(got(0) == v[(l * 7 + 3) % 32]);
    CHECK(got(1) == v[l < 3 ? l : l - 3]);
    CHECK(got(2) == v[l + 5 > 31 ? l : l + 5]);
    CHECK(got(3) == v[l ^ 9]);
    CHECK(got(4) == v[l / 8 * 8 + 11 % 8]);
    CHECK(got(5) == v[l % 8 < 2 ? l : l - 2]);
    CHECK(got(6) == v[l % 16 + 3 > 15 ? l : l + 3]);
    u32 ballot = 0, match = 0, sum = 0, exclusive = 0;
    auto least = static_cast<std::int32_t>(v[0]);
    for (u32 k = 0; k < 32; ++k) {
      ballot |= static_cast<u32>(v[k] % 3 == 0) << k;
      match |= static_cast<u32>(v[k] % 4 == v[l] % 4) << k;
      sum += v[k];
      exclusive ^= v[k];
      least = std::min(least, static_cast<std::int32_t>(v[k]));
    }
    CHECK(got(7) == ballot);
    CHECK(got(8) == 1);
    CHECK(got(9) == 0);
    CHECK(got(10) == match);
    CHECK(got(11) == sum);
    CHECK(got(12) == static_cast<u32>(least));
    CHECK(got(13) == exclusive);
    CHECK(got(14) == v[l % 2 == 0 ? l ^ 2 : l ^ 4]);
  }
}

TEST_CASE("ldmatrix gives each lane its pair, transposed or not") {
  fixture::machine m("warp.sm_80");
  auto const words = random_words(6, 128);
  array<u32> out(m, 256);
  fixture::array<u32> in(m, words);
  auto const r = m.run("load_matrix", {1}, {32}, in.data(), out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  auto const element = [&](u32 row, u32 column) {
    return words[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
  };
  for (u32 l = 0; l < 32; ++l) {
    for (u32 k = 0; k < 4; ++k) { // row j of matrix k is where lane 8 k + j points
      auto const plain = [&](u32 j, u32 column) { return element((8 * k + j) * 5 % 32, column); };
      auto const turned = [&](u32 j, u32 column) { return element((8 * k + j) * 3 % 32, column); };
      CHECK(out[k * 32 + l] == (plain(l / 4, l % 4 * 2) | plain(l / 4, l % 4 * 2 + 1) << 16));
      CHECK(out[(4 + k) * 32 + l] ==
            (turned(l % 4 * 2, l / 4) | turned(l % 4 * 2 + 1, l / 4) << 16));
    }
  }
}

TEST_CASE("mma multiplies the matrices that the fragments hold") {
  fixture::machine m("warp.sm_80");
  check_product(m, "multiply_bf16_k16", "bf16", 16);
  check_product(m, "multiply_f16_k16", "f16", 16);
  check_product(m, "multiply_bf16_k8", "bf16", 8);
  check_product(m, "multiply_tf32_k8", "tf32", 8);
}

TEST_CASE("atomics lose no update and are no races") {
  fixture::machine m("warp.sm_80");
  for (auto const order : {ptx::order::forward, ptx::order::reverse, ptx::order::shuffled}) {
    m.how.warps = order;
    array<u32> words(m, std::vector<u32>(8, 0));
    array<float> floats(m, std::vector<float>(1, 0.0F));
    array<u32> tickets(m, 192);
    auto const r = m.run("atomics", {2}, {96}, words.data(), floats.data(), tickets.data());
    REQUIRE_MESSAGE(r.clean(), r.text());
    CHECK(words[0] == 192);
    CHECK(words[1] == 100);
    CHECK(static_cast<int>(words[2]) == 50 - 191);
    CHECK(words[3] == 0);
    CHECK(words[4] == 192 % 7);
    CHECK(floats[0] == 96.0F);
    CHECK(words[6] == 1023);
    std::vector<u32> sorted(tickets.values().begin(), tickets.values().end());
    std::sort(sorted.begin(), sorted.end());
    std::vector<u32> all(192);
    std::iota(all.begin(), all.end(), 0U);
    CHECK(sorted == all);
  }
}

TEST_CASE("lanes that part meet again") {
  fixture::machine m("warp.sm_80");
  std::vector<int> trips(32);
  std::iota(trips.begin(), trips.end(), 0);
  array<int> in(m, trips), out(m, 32);
  auto const r = m.run("divergent", {1}, {32}, in.data(), out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  std::vector<int> sums(32);
  int many = 0;
  for (int t = 0; t < 32; ++t) {
    int& sum = sums[static_cast<std::size_t>(t)];
    for (int k = 0; k < t && sum <= 500; ++k) {
      sum += k % 3 == t % 3 ? 0 : t * ((k + t) % 8);
    }
    many += sum > 100 ? 1 : 0;
  }
  for (std::size_t t = 0; t < 32; ++t) {
    CHECK(out[t] == sums[t] + many * 10000);
  }
}

TEST_CASE("device functions are called, assertions fail by name") {
  fixture::machine m("warp.sm_80");
  array<int> out(m, 32);
  array<double> powers(m, 32);
  auto const r = m.run("calls", {1}, {32}, out.data(), powers.data(), 32);
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (int t = 0; t < 32; ++t) {
    int steps = 0;
    for (int x = t + 1; x != 1; ++steps) {
      x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    }
    auto const i = static_cast<std::size_t>(t);
    CHECK(out[i] == steps);
    CHECK(powers[i] == doctest::Approx(std::pow(t, 1.5)).epsilon(1e-14));
  }
  auto const failed = m.run("calls", {1}, {32}, out.data(), powers.data(), 31);
  CHECK(
    fixture::reported(failed,
                      ptx::fault::trap,
                      {"thread (31,0,0)", "warp.cu:", "an assertion of the kernel does not hold"}));
}
