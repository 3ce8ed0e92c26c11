// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Hopper instructions against layouts written down element by element: core matrices of 8 rows by
// 16 bytes, and swizzles as "16-byte chunk number xor row".
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>

#include "fixture.hpp"
#include "simulators/ptx/tensor_map.hpp"

using fixture::array;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

using fixture::matrix;
using fixture::small_matrix;

u16 brain(int v) {
  return static_cast<u16>(std::bit_cast<u32>(static_cast<float>(v)) >> 16);
}
u16 half(int v) {
  u32 const f = std::bit_cast<u32>(static_cast<float>(v));
  return static_cast<u16>(
    v == 0 ? 0 : (f >> 16 & 0x8000) | (((f >> 23 & 255) - 112) << 10) | (f >> 13 & 1023));
}

// By how much the chunks of row r are exchanged.
u32 pattern(u32 span, u32 r) {
  return span == 128 ? r % 8 : span == 64 ? r / 2 % 4 : span == 32 ? r / 4 % 2 : 0;
}

// A tile in shared memory and its descriptor. `inner` counts along the contiguous direction.
struct tile {
  u32 start = 0, leading = 0, stride = 0, span = 16;
  bool transposed = false;

  u32 byte(u32 mn, u32 k) const {
    if (span == 16) {
      u32 const chunk = transposed ? mn / 8 * stride + k / 8 * leading + k % 8 * 16
                                   : mn / 8 * stride + k / 8 * leading + mn % 8 * 16;
      return start + chunk + (transposed ? mn : k) % 8 * 2;
    }
    u32 const row = transposed ? k : mn;
    u32 const inner = transposed ? mn : k;
    u32 const panel = inner * 2 / span;
    u32 const chunk = inner * 2 % span / 16 ^ pattern(span, row);
    return start + panel * leading + row / 8 * stride + row % 8 * span + chunk * 16 + inner % 8 * 2;
  }
  u64 descriptor() const {
    u64 const layout = span == 128 ? 1 : span == 64 ? 2 : span == 32 ? 3 : 0;
    return u64{start >> 4} | u64{leading >> 4} << 16 | u64{stride >> 4} << 32 | layout << 62;
  }
};

std::vector<u16> image(std::size_t bytes) {
  return std::vector<u16>(bytes / 2, 0x7fc0);
}

void check_product(fixture::machine& m, tile const& a, tile const& b) {
  auto const x = small_matrix(1, 64, 16);
  auto const y = small_matrix(2, 16, 32);
  auto const z = small_matrix(3, 64, 32);
  auto bits = image(16384);
  for (u32 k = 0; k < 16; ++k) {
    for (u32 i = 0; i < 64; ++i) {
      bits[a.byte(i, k) / 2] = brain(x[i][k]);
    }
    for (u32 i = 0; i < 32; ++i) {
      bits[b.byte(i, k) / 2] = brain(y[k][i]);
    }
  }
  // Accumulator i of thread t, as the manual's figure for D has it.
  auto const row = [](u32 t, u32 i) { return t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8; };
  auto const column = [](u32 t, u32 i) { return i / 4 * 8 + t % 4 * 2 + i % 2; };
  std::vector<float> c(16 * 128);
  for (u32 t = 0; t < 128; ++t) {
    for (u32 i = 0; i < 16; ++i) {
      c[i * 128 + t] = static_cast<float>(z[row(t, i)][column(t, i)]);
    }
  }
  array<u16> in(m, bits);
  array<float> dc(m, c), out(m, 16 * 128);
  m.dynamic_shared = 16384;
  std::string const kernel =
    std::string("product_") + (a.transposed ? "t" : "n") + (b.transposed ? "t" : "n");
  auto const r = m.run(kernel.c_str(),
                       {1},
                       {128},
                       in.data(),
                       1024,
                       a.descriptor(),
                       b.descriptor(),
                       dc.data(),
                       out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (u32 t = 0; t < 128; ++t) {
    for (u32 i = 0; i < 16; ++i) {
      int want = z[row(t, i)][column(t, i)];
      for (std::size_t k = 0; k < 16; ++k) {
        want += x[row(t, i)][k] * y[k][column(t, i)];
      }
      REQUIRE(out[i * 128 + t] == static_cast<float>(want));
    }
  }
}

struct alignas(64) opaque_map {
  unsigned char bytes[128];
};

struct tensor {
  std::uint64_t size[3];
  std::uint64_t stride[2];
  std::uint32_t box[3];
};

opaque_map
encoded(void* base, tensor const& t, unsigned element, unsigned swizzle, ptx::number kind) {
  ptx::tensor_map map;
  ptx::tile_shape shape{3, element, kind, base, t.size, t.stride, t.box, nullptr, swizzle, false};
  REQUIRE(ptx::encode_tiled(map, shape).empty());
  opaque_map out{};
  std::memcpy(out.bytes, &map, sizeof map);
  return out;
}

template <class... Arguments>
ptx::result run_with_map(fixture::machine& m,
                         char const* kernel,
                         unsigned threads,
                         opaque_map const& map,
                         Arguments... rest) {
  opaque_map copy = map;
  void* pointers[] = {&copy, &rest...};
  return ptx::launch(m.code, kernel, {1}, {threads}, m.dynamic_shared, pointers, m.how);
}

} // namespace

TEST_CASE("wgmma: both operands row by row, all swizzles") {
  fixture::machine m("hopper.sm_90a");
  check_product(m, {0, 1024, 128, 16, false}, {4096, 512, 128, 16, false});
  check_product(m, {0, 128, 256, 16, false}, {4096, 128, 256, 16, false});
  for (u32 const span : {32U, 64U, 128U}) {
    check_product(m, {0, 16, 8 * span, span, false}, {8192, 16, 8 * span, span, false});
  }
}

TEST_CASE("wgmma: a step along k moves the start of a swizzled tile by 32 bytes") {
  fixture::machine m("hopper.sm_90a");
  auto const stepped = [&](u32 steps) {
    tile whole_a{0, 16, 1024, 128, false};
    tile whole_b{8192, 16, 1024, 128, false};
    auto const x = small_matrix(4, 64, 16);
    auto const y = small_matrix(5, 32, 16);
    auto bits = image(16384);
    for (u32 k = 0; k < 16; ++k) {
      for (u32 i = 0; i < 64; ++i) {
        bits[whole_a.byte(i, k + 16 * steps) / 2] = brain(x[i][k]);
      }
      for (u32 i = 0; i < 32; ++i) {
        bits[whole_b.byte(i, k + 16 * steps) / 2] = brain(y[i][k]);
      }
    }
    array<u16> in(m, bits);
    array<float> c(m, std::vector<float>(2048, 0.0F)), out(m, 2048);
    m.dynamic_shared = 16384;
    whole_a.start += 32 * steps;
    whole_b.start += 32 * steps;
    auto const r = m.run("product_nn",
                         {1},
                         {128},
                         in.data(),
                         1024,
                         whole_a.descriptor(),
                         whole_b.descriptor(),
                         c.data(),
                         out.data());
    REQUIRE_MESSAGE(r.clean(), r.text());
    int want = 0;
    for (std::size_t k = 0; k < 16; ++k) {
      want += x[37][k] * y[13][k]; // row 37 = warp 2, group 5; column 13 = register 4 + 1, lane 2
    }
    CHECK(out[5 * 128 + 64 + 5 * 4 + 2] == static_cast<float>(want));
  };
  for (u32 const steps : {0U, 1U, 2U, 3U}) {
    stepped(steps);
  }
}

TEST_CASE("wgmma: operands column by column, all swizzles") {
  fixture::machine m("hopper.sm_90a");
  for (u32 const span : {32U, 64U, 128U}) {
    tile const row_a{0, 16, 8 * span, span, false};
    tile const row_b{8192, 16, 8 * span, span, false};
    // Panels of span / 2 elements; 16 columns are two groups of eight.
    tile const column_a{0, 16 * span, 8 * span, span, true};
    tile const column_b{8192, 16 * span, 8 * span, span, true};
    check_product(m, column_a, row_b);
    check_product(m, row_a, column_b);
    check_product(m, column_a, column_b);
  }
  check_product(m, {0, 128, 256, 16, true}, {8192, 1024, 128, 16, true});
}

TEST_CASE("wgmma: a from registers") {
  fixture::machine m("hopper.sm_90a");
  auto const x = small_matrix(6, 64, 16);
  auto const y = small_matrix(7, 16, 32);
  tile const b{0, 16, 512, 64, false};
  auto bits = image(16384);
  for (u32 k = 0; k < 16; ++k) {
    for (u32 i = 0; i < 32; ++i) {
      bits[b.byte(i, k) / 2] = half(y[k][i]);
    }
  }
  std::vector<u32> fragments(4 * 128);
  for (u32 t = 0; t < 128; ++t) {
    for (u32 i = 0; i < 8; ++i) {
      u32 const row = t / 32 * 16 + t % 32 / 4 + (i / 2 % 2) * 8;
      u32 const k = t % 4 * 2 + i % 2 + i / 4 * 8;
      fragments[i / 2 * 128 + t] |= u32{half(x[row][k])} << (i % 2 * 16);
    }
  }
  array<u16> in(m, bits);
  array<u32> a(m, fragments);
  array<float> out(m, 2048);
  m.dynamic_shared = 16384;
  auto const r =
    m.run("product_registers", {1}, {128}, in.data(), 1024, a.data(), b.descriptor(), out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (u32 t = 0; t < 128; ++t) {
    for (u32 i = 0; i < 16; ++i) {
      int want = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        want +=
          x[t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8][k] * y[k][i / 4 * 8 + t % 4 * 2 + i % 2];
      }
      REQUIRE(out[i * 128 + t] == static_cast<float>(want));
    }
  }
}

TEST_CASE("tensor copies place rows by swizzle and fill what lies outside with zeros") {
  fixture::machine m("hopper.sm_90a");
  std::vector<u16> values(80 * 20 * 3);
  for (std::size_t k = 0; k < values.size(); ++k) {
    values[k] = static_cast<u16>(k * 7 + 1);
  }
  array<u16> data(m, values);
  for (u32 const span : {0U, 32U, 64U, 128U}) {
    u32 const inner = span == 0 ? 24 : span / 2;
    tensor const t{{70, 20, 3}, {160, 160 * 20}, {inner, 8, 2}}; // 70 of 80 columns belong to it
    auto const map = encoded(data.data(), t, 2, span, ptx::number::bf16);
    u32 const words = inner * 8 * 2 / 2;
    array<u32> out(m, words);
    m.dynamic_shared = words * 4 + 16;
    for (auto const& c : {std::array{0, 0, 0}, std::array{40, 15, 2}, std::array{-5, -3, -1}}) {
      auto const r = run_with_map(
        m, "tensor_load", 64, map, out.data(), static_cast<int>(words), c[0], c[1], c[2]);
      REQUIRE_MESSAGE(r.clean(), r.text());
      CHECK(r.counts.copied_bytes == words * 4);
      for (u32 row = 0; row < 16; ++row) {
        for (u32 k = 0; k < inner; ++k) {
          int const x = c[0] + static_cast<int>(k), y = c[1] + static_cast<int>(row % 8),
                    z = c[2] + static_cast<int>(row / 8);
          bool const inside = x >= 0 && x < 70 && y >= 0 && y < 20 && z >= 0 && z < 3;
          u32 const want = inside ? values[static_cast<std::size_t>((z * 20 + y) * 80 + x)] : 0;
          u32 const chunk = k / 8 ^ pattern(span, row);
          u32 const at = (row * inner * 2 + chunk * 16) / 2 + k % 8;
          REQUIRE((out[at / 2] >> (at % 2 * 16) & 0xffff) == want);
        }
      }
    }
  }
}

TEST_CASE("tensor stores leave what lies outside alone; reductions add") {
  fixture::machine m("hopper.sm_90a");
  tensor const t{{40, 6, 2}, {192, 192 * 6}, {32, 4, 1}}; // 4-byte elements, 48 per row
  std::vector<u32> words(32 * 4);
  for (std::size_t k = 0; k < words.size(); ++k) {
    words[k] = std::bit_cast<u32>(static_cast<float>(k + 1));
  }
  array<u32> in(m, words);
  m.dynamic_shared = 1024;
  for (char const* kernel : {"tensor_store", "tensor_add"}) {
    array<float> data(m, std::vector<float>(48 * 6 * 2, 0.5F));
    auto const map = encoded(data.data(), t, 4, 128, ptx::number::f32);
    auto const r = run_with_map(m, kernel, 32, map, in.data(), 128, 20, 4, 1);
    REQUIRE_MESSAGE(r.clean(), r.text());
    for (u32 z = 0; z < 2; ++z) {
      for (u32 y = 0; y < 6; ++y) {
        for (u32 x = 0; x < 48; ++x) {
          bool const written = z == 1 && y >= 4 && x >= 20 && x < 40;
          u32 const row = y - 4, k = x - 20; // row of the box
          float const value = static_cast<float>(row * 32 + ((k / 4 ^ row % 8) * 4 + k % 4) + 1);
          float const want = !written                              ? 0.5F
                             : kernel == std::string("tensor_add") ? value + 0.5F
                                                                   : value;
          REQUIRE(data[(z * 6 + y) * 48 + x] == want);
        }
      }
    }
  }
}

TEST_CASE("linear bulk copies load, store and add") {
  fixture::machine m("hopper.sm_90a");
  std::vector<float> values(64);
  for (std::size_t k = 0; k < 64; ++k) {
    values[k] = static_cast<float>(k);
  }
  array<float> in(m, values), copy(m, 64), sum(m, std::vector<float>(64, 100.0F));
  m.dynamic_shared = 256 + 16;
  auto const r = m.run("bulk", {1}, {32}, in.data(), copy.data(), sum.data(), 256);
  REQUIRE_MESSAGE(r.clean(), r.text());
  for (std::size_t k = 0; k < 64; ++k) {
    CHECK(copy[k] == values[k]);
    CHECK(sum[k] == values[k] + 100);
  }
  auto const odd = m.run("bulk", {1}, {32}, in.data(), copy.data(), sum.data(), 248);
  CHECK(fixture::reported(odd, ptx::fault::alignment, {"multiples of 16"}));
}

TEST_CASE("mbarriers hand a ring of slots back and forth in every order of warps") {
  fixture::machine m("hopper.sm_90a");
  std::vector<int> values{5, -3, 8, 1, 12, -7, 9};
  array<int> in(m, values), out(m, 32);
  m.dynamic_shared = 128;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    m.how.warps = seed == 0   ? ptx::order::forward
                  : seed == 1 ? ptx::order::reverse
                              : ptx::order::shuffled;
    m.how.seed = seed;
    auto const r = m.run("ring", {1}, {64}, in.data(), out.data(), 7);
    REQUIRE_MESSAGE(r.clean(), r.text());
    for (std::size_t t = 0; t < 32; ++t) {
      CHECK(out[t] == 25 * static_cast<int>(t));
    }
  }
}

TEST_CASE("stmatrix writes the rows that ldmatrix reads; elect names one lane") {
  fixture::machine m("hopper.sm_90a");
  std::vector<u32> words(128);
  std::mt19937 random(9);
  for (auto& v : words) {
    v = static_cast<u32>(random());
  }
  array<u32> in(m, words), out(m, 48 * 4), who(m, 32);
  m.dynamic_shared = 1024;
  auto const r = m.run("store_matrix", {1}, {32}, in.data(), out.data());
  REQUIRE_MESSAGE(r.clean(), r.text());
  auto const fragment = [&](u32 k, u32 row, u32 column) {
    return words[k * 32 + row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
  };
  auto const stored = [&](u32 row, u32 column) {
    return out[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
  };
  for (u32 k = 0; k < 4; ++k) {
    for (u32 j = 0; j < 8; ++j) {
      for (u32 column = 0; column < 8; ++column) {
        CHECK(stored((8 * k + j) * 5 % 32, column) == fragment(k, j, column));
        if (k < 2) {
          CHECK(stored(32 + 8 * k + j, column) == fragment(k, column, j));
        }
      }
    }
  }
  REQUIRE(m.run("leader", {1}, {32}, who.data()).clean());
  CHECK(who[0] == 1);
  CHECK(std::count(who.values().begin() + 1, who.values().end(), 0U) == 31);
}

TEST_CASE("tensor maps that hardware would refuse are refused") {
  alignas(16) static float data[64];
  std::uint64_t const size[2] = {16, 4}, stride[1] = {64};
  std::uint32_t const box[2] = {16, 4};
  ptx::tensor_map map;
  ptx::tile_shape good{2, 4, ptx::number::f32, data, size, stride, box, nullptr, 64, false};
  CHECK(ptx::encode_tiled(map, good).empty());
  auto bad = good;
  bad.swizzle_bytes = 32;
  CHECK(ptx::encode_tiled(map, bad) == "the inner box size must not exceed the swizzle span");
  bad = good;
  bad.base = reinterpret_cast<char*>(data) + 4;
  CHECK(ptx::encode_tiled(map, bad) == "the global address must be a multiple of 16");
  bad = good;
  std::uint64_t const odd[1] = {72};
  bad.stride = odd;
  CHECK(ptx::encode_tiled(map, bad) ==
        "the stride of dimension 1 must be a multiple of 16 bytes below 2^40");
  bad = good;
  std::uint32_t const large[2] = {16, 257};
  bad.box = large;
  CHECK(ptx::encode_tiled(map, bad) == "the box size of dimension 1 must be 1 ... 256");
}
