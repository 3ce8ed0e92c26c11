// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The launcher for Hopper on the stand-in for the CUDA runtime: tensor maps as the driver makes
// them, and refusals.
#include "launch.hpp"

#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/work_order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "simulators/cuda/standin.hpp"
#include "tests/support/attention_call.hpp"

namespace {

using namespace hopper_tests;
using namespace device_tests;

at::kernel_choice launch_backward_of(attention_call& c,
                                     at::parameters const& p,
                                     at::backward_tensors<__nv_bfloat16> const& t,
                                     cudaStream_t stream) {
  return launch_backward(p, t, c.scratch.data(), c.scratch_count(), stream);
}

constexpr at::kernel_choice on_hopper{at::kernel_family::hopper, at::choice_reason::all_there};

} // namespace

TEST_CASE("hopper launch: forward on a stream gives the numbers of the double reference") {
  standin::configure({});
  attention_call c;
  attention_answers const expected(c);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  CHECK(launch_forward(c.p, c.forward(), stream) == on_hopper);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 1);
  c.output.fetch();
  CHECK(apart(c.output.numbers(), expected.output) < 0.03); // two roundings of the largest |v|
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("hopper launch: backward on a stream gives the numbers of the double reference") {
  standin::configure({});
  attention_call c;
  attention_answers const expected(c);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  launch_forward(c.p, c.forward(), stream);
  CHECK(launch_backward_of(c, c.p, c.backward(), stream) == on_hopper);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 3); // the last blocks that add to dQ round it
  check_gradients(c, expected);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("hopper launch: keys are cut where a chunk alone does not fill the GPU") {
  auto const parts = [](std::int64_t work, std::int64_t tiles) {
    return at::detail::choose_key_splits(work, tiles, 132);
  };
  CHECK(parts(132, 64) == 1); // one full round
  CHECK(parts(106, 64) == 1); // four fifths of one
  CHECK(parts(66, 64) == 2);  // two parts fill it
  CHECK(parts(64, 64) == 2);
  CHECK(parts(32, 64) == 4);
  CHECK(parts(32, 4) == 1); // the merge would cost more
  CHECK(parts(96, 32) == 1);
  CHECK(parts(1, 1024) == 114); // nine tiles each
  CHECK(parts(32, 1) == 1);
  CHECK(parts(0, 8) == 1);
  CHECK(parts(160, 256) == 4); // 61, 81, 91, 97 % of the rounds
  CHECK(parts(192, 256) == 2); // 73, 97 %
  CHECK(parts(192, 31) == 1);  // of few tiles
  CHECK(parts(256, 256) == 1); // 97 %
}

namespace {

struct tile {
  static constexpr int queries = 128, keys = 128;
};

} // namespace

TEST_CASE("hopper launch: keys are cut for the multiprocessors that other kernels leave") {
  at::parameters const chunk{
    .query_length = 2048, .key_length = 32768, .heads = 32, .key_heads = 8, .head_dim = 128};
  auto const parts = [&](std::int64_t held) {
    return at::detail::choose_key_splits<tile>(chunk, 132, held);
  };
  CHECK(parts(0) == 1);   // 512 pieces: 97 % of four rounds
  CHECK(parts(4) == 1);   // four full rounds
  CHECK(parts(8) == 4);   // 83 % of five rounds, 97 % of 17
  CHECK(parts(16) == 2);  // 88 %, 98 % of nine
  CHECK(parts(132) == 1); // as if one were left
}

namespace {

at::parameters
square(std::int64_t batch, std::int64_t heads, std::int64_t key_heads, std::int64_t tokens) {
  return {.batch = batch,
          .query_length = tokens,
          .key_length = tokens,
          .heads = heads,
          .key_heads = key_heads,
          .head_dim = 128};
}

} // namespace

TEST_CASE("hopper launch: heads are worked on together as far as the L2 has room") {
  constexpr std::int64_t cache = 50 << 20;
  auto const forward = [&](at::parameters const& p) {
    return at::detail::heads_together(p, 132, cache);
  };
  CHECK(forward(square(4, 32, 32, 8192)) == 4);   // seven of 4 MiB fit 31.25: 32 sections
  CHECK(forward(square(1, 64, 64, 8192)) == 64);  // two blocks read the same keys at a time
  CHECK(forward(square(4, 32, 32, 2048)) == 16);  // 31 fit: eight sections
  CHECK(forward(square(4, 32, 32, 256)) == 128);  // all fit
  CHECK(forward(square(2, 288, 72, 65536)) == 4); // not one fits: one, with the heads that share it
  auto const backward = [&](at::parameters const& p, at::query_order order) {
    return at::detail::key_heads_together(p, order, 132, cache);
  };
  CHECK(backward(square(1, 16, 16, 8192), at::query_order::kept) == 2); // 8 MiB each, in 31.25
  CHECK(backward(square(1, 16, 16, 8192), at::query_order::free) == 16);
  CHECK(backward(square(4, 32, 32, 8192), at::query_order::free) == 2);
  CHECK(backward(square(1, 16, 16, 131072), at::query_order::kept) == 1);
  CHECK(backward(square(4, 32, 32, 2048), at::query_order::kept) == 8);  // 15 fit
  CHECK(backward(square(1, 18, 18, 2048), at::query_order::kept) == 18); // in 37.5
}

TEST_CASE("hopper launch: in a kept order sections fill the GPU") {
  auto const section = [](at::parameters const& p, at::query_order order = at::query_order::kept) {
    at::detail::query_sums sums;
    sums.steps = static_cast<int>(at::detail::query_sums::steps_of(p, at::kernel_family::hopper));
    at::detail::share_work(sums, p, order, {128, 64}, 132, 50 << 20);
    return sums.section;
  };
  CHECK(section(square(1, 16, 16, 8192)) == 8);  // two fit
  CHECK(section(square(1, 24, 24, 16384)) == 6); // one fits, and three sections would be odd
  CHECK(section(square(1, 12, 12, 16384)) == 6);
  CHECK(section(square(1, 32, 8, 8192)) == 8);   // one fits
  CHECK(section(square(1, 20, 20, 1024)) == 20); // all fit
  CHECK(section(square(8, 16, 16, 2048)) == 16); // eight fit, and 16 give 256 blocks
  CHECK(section(square(1, 90, 90, 2048)) == 15);
  CHECK(section(square(1, 22, 22, 16384)) ==
        8); // no section of five to eight is one of an even number
  CHECK(section(square(1, 3, 3, 65536)) == 3);
  CHECK(section(square(4, 32, 32, 8192), at::query_order::free) == 2);
  CHECK(section(square(4, 32, 32, 16384), at::query_order::free) == 1);
}

namespace {

struct odd_keys {
  [[nodiscard]] bool keep(at::pair_position at) const { return at.key % 2 == 1; }
};

//! Tiles of keys of 128, of a call with some offsets, that a step of 64 queries sees: the last one;
//! or -1.
template <class Mask>
int last_tile(at::parameters const& p, Mask const& m, std::int64_t step) {
  auto const query = p.query_offset + 64 * step;
  auto const query_end = std::min(query + 64, p.query_offset + p.query_length);
  int last = -1;
  for (std::int64_t key = 0; key < p.key_length; key += 128) {
    at::tile_position const tile{
      0,
      0,
      static_cast<std::int32_t>(query),
      static_cast<std::int32_t>(query_end),
      static_cast<std::int32_t>(p.key_offset + key),
      static_cast<std::int32_t>(p.key_offset + std::min(key + 128, p.key_length))};
    last = at::cover(m, tile) == at::tile_cover::skip ? last : static_cast<int>(key / 128);
  }
  return last;
}

//! Whether blocks of a call round its dQ; then each step has a last tile, none before that of the
//! step before.
template <class Mask>
bool rounds(at::parameters const& p, Mask const& m) {
  bool const answer = at::detail::rounds_sums(p, m);
  for (std::int64_t step = 0, last = 0; answer && 64 * step < p.query_length; ++step) {
    CHECK(last_tile(p, m, step) >= last);
    last = last_tile(p, m, step);
  }
  return answer;
}

} // namespace

TEST_CASE("hopper launch: blocks round dQ where each step has a last tile of keys, and none many") {
  std::vector<std::int32_t> first(900);
  for (std::size_t n = 0; n < first.size(); ++n) {
    first[n] = static_cast<std::int32_t>(n < 300 ? 0 : n < 310 ? 300 : 310);
  }
  at::document const documents{first.data(), 0};
  for (at::parameters p :
       {at::parameters{.query_length = 700, .key_length = 700},
        at::parameters{.query_length = 130, .query_offset = 570, .key_length = 700},
        at::parameters{.query_length = 1, .query_offset = 40, .key_length = 41},
        at::parameters{
          .query_length = 300, .query_offset = 400, .key_length = 500, .key_offset = 300}}) {
    CHECK(rounds(p, at::causal{}));
    CHECK(rounds(p, at::sliding_window{70, 3}));
    CHECK(rounds(p, at::both<at::causal, at::document>{{}, documents}));
    CHECK(rounds(p, at::both<at::document, at::sliding_window>{documents, {0, 0}}));
    CHECK(!rounds(p, at::full{}));                 // the last tile would round all
    CHECK(!rounds(p, documents));                  // or that of a document
    CHECK(!rounds(p, at::sliding_window{70, -1})); // the first query sees nothing
    CHECK(!rounds(p, odd_keys{}));                 // nothing is known
    auto outside = p;                              // the last query is not among the keys
    outside.key_length = p.query_offset + p.query_length - p.key_offset - 1;
    CHECK(!rounds(outside, at::causal{}));
    outside = p; // nor the first one
    outside.key_offset = p.query_offset + 1;
    CHECK(!rounds(outside, at::causal{}));
  }
}

TEST_CASE("hopper launch: few blocks share heads and steps, so that each multiprocessor has two") {
  auto order = at::query_order::kept;
  std::int32_t cut_tiles = 0;
  auto const shares = [&](at::parameters p, int part_of_keys = 1) {
    p.query_length /= part_of_keys;
    p.query_offset = p.key_length - p.query_length;
    at::detail::query_sums sums;
    sums.steps = static_cast<int>(at::detail::query_sums::steps_of(p, at::kernel_family::hopper));
    at::detail::share_work(sums, p, order, {128, 64}, 132, 50 << 20);
    cut_tiles = sums.cut_tiles;
    return std::pair{sums.parts, sums.cut};
  };
  using pair = std::pair<std::int32_t, std::int32_t>;
  // 16 tiles of 32, 30, 28 ... steps, of eight heads: 16.5 for each multiprocessor.
  CHECK(shares(square(1, 8, 1, 2048)) == pair{8, 18});
  CHECK(shares(square(1, 4, 4, 2048)) == pair{1, 10});
  CHECK(shares(square(1, 16, 2, 2048)) == pair{4, 17}); // two heads a piece
  CHECK(shares(square(1, 16, 16, 2048)) == pair{1, 0}); // 256 pieces of 33 steps on average
  CHECK(shares(square(1, 8, 1, 8192)) == pair{8, 0});   // 256 pieces would be long
  CHECK(shares(square(1, 32, 8, 2048)) == pair{2, 0});
  // Steps of two heads a piece fit the L2, of more they do not, however long.
  CHECK(shares(square(1, 32, 8, 8192)) == pair{2, 0});
  CHECK(shares(square(1, 32, 8, 32768)) == pair{2, 0});
  CHECK(shares(square(1, 40, 8, 16384)) == pair{5, 0}); // a half of five is none
  CHECK(shares(square(1, 8, 1, 16384)) == pair{4, 0});
  CHECK(shares(square(1, 12, 2, 8192)) == pair{6, 0}); // not 384 pieces: three rounds
  CHECK(shares(square(4, 32, 32, 8192)) == pair{1, 0});
  CHECK(shares(square(1, 32, 8, 8192), 4) == pair{2, 0});   // a chunk: 512 blocks are too few
  CHECK(shares(square(1, 64, 8, 32768), 16) == pair{1, 0}); // 2048
  CHECK(shares(square(1, 12, 1, 32768), 4) == pair{3, 0});  // 256: three give 768
  CHECK(shares(square(1, 12, 1, 16384), 4) == pair{6, 0});  // 128: 5.2 would do, not share 12 heads
  CHECK(shares(square(1, 8, 1, 0)) == pair{1, 0});
  order = at::query_order::free;
  CHECK(shares(square(1, 16, 2, 2048)) == pair{8, 0}); // a head a piece: 32 steps at most, of 68
  CHECK(shares(square(1, 8, 1, 2048)) == pair{8, 18});
  CHECK(shares(square(1, 8, 1, 8192)) == pair{4, 0});
  // Chunks of few heads: pieces of four heads, of 44 % of the steps of a multiprocessor at most.
  CHECK(shares(square(1, 8, 1, 8192), 4) == pair{2, 12});
  CHECK(cut_tiles == 30);
  CHECK(shares(square(1, 16, 2, 16384), 8) == pair{2, 0});
  order = at::query_order::kept; // two heads, and all whole rounds
  CHECK(shares(square(1, 8, 1, 8192), 4) == pair{4, 0});
  CHECK(cut_tiles == 33);
  CHECK(shares(square(1, 8, 1, 16384), 8) == pair{4, 0});
  CHECK(cut_tiles == 99);
  order = at::query_order::free;
  CHECK(shares(square(1, 32, 8, 8192), 4) == pair{2, 0}); // four to a key head
}

TEST_CASE("hopper launch: no keys, no queries") {
  standin::configure({});
  attention_call c;
  auto p = c.p;
  auto t = c.forward();
  p.key_length = t.key.length = t.value.length = 0;
  t.key.data = t.value.data = nullptr;
  launch_forward(p, t, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  c.output.fetch();
  auto const mine = c.output.numbers();
  CHECK(std::all_of(mine.begin(), mine.end(), [](double x) { return x == 0; }));
  auto b = c.backward(); // dQ = 0 and dO . O: the kernels before and after the sums
  for (auto* view : {&b.key, &b.value}) {
    view->length = 0;
    view->data = nullptr;
  }
  b.key_gradient.length = b.value_gradient.length = 0;
  launch_backward_of(c, p, b, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 3);
  c.query_gradient.fetch();
  auto const gradients = c.query_gradient.numbers();
  CHECK(std::all_of(gradients.begin(), gradients.end(), [](double x) { return x == 0; }));
  p.query_length = t.query.length = t.output.length = t.log_sum_exp.length = 0;
  launch_forward(p, t, nullptr);
  CHECK(standin::counters().kernels == 3);
}

TEST_CASE("hopper launch: what the kernels cannot do is refused in one sentence") {
  standin::configure({});
  attention_call c;
  auto const refused = [&](at::backward_tensors<__nv_bfloat16> const& b) {
    return sentence_of([&] { launch_backward_of(c, c.p, b, nullptr); });
  };
  auto b = c.backward();
  b.output_gradient.data += 1;
  CHECK(refused(b).find("output gradient does not begin at a multiple of 16 bytes") !=
        std::string::npos);
  b = c.backward();
  b.key_gradient.length = 69;
  CHECK(refused(b) ==
        "attention: key gradient is [2, 69, 2, 64], but the parameters ask for [batch, "
        "length, heads, dim] = [2, 70, 2, 64]");
  CHECK(standin::counters().kernels == 0);
}
