// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The simulation's walk of the library's launches visits as many tiles as the kernels multiply in
// the PTX interpreter, in grids of as many blocks.
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simulators/whole_gpu/work.hpp"
#include "tests/unit/attention_hopper/hopper_problem.hpp"

namespace {

using namespace hopper_tests;

machine& the_machine() {
  static machine one(text_of("kernels.sm_90a"));
  return one;
}

sizes sizes_of(whole_gpu::call const& c) {
  return {.batch = c.batch,
          .queries = c.queries,
          .query_offset = c.keys - c.queries,
          .keys = c.keys,
          .heads = c.heads,
          .key_heads = c.key_heads,
          .dim = c.dim,
          .value_dim = c.value_dim()};
}

whole_gpu::work walk(whole_gpu::call c, whole_gpu::way which, std::int64_t multiprocessors = 132) {
  c.which = which;
  return whole_gpu::work_of(c, {multiprocessors, 50 << 20});
}

//! Operations of a tile's products, as the interpreter counts them.
std::uint64_t multiplied(std::int64_t queries, std::int64_t keys, std::int64_t dims) {
  return static_cast<std::uint64_t>(2 * queries * keys * dims);
}

void check_forward(whole_gpu::call const& c, char const* name, shape const& tile) {
  CAPTURE(name);
  forward_problem<__nv_bfloat16> const problem(the_machine().where, sizes_of(c), 1);
  auto const work = walk(c, whole_gpu::way::forward, 3);
  auto const queries = 64 * tile.consumers;
  auto const pieces = (c.queries + queries - 1) / queries * c.heads * c.batch;
  CHECK(static_cast<std::int64_t>(work.pieces.size()) == pieces);
  CHECK(work.blocks == std::min<std::int64_t>(pieces, 3));
  auto const blocks = static_cast<unsigned>(work.blocks);
  auto const got =
    the_machine().launch(name, tile, problem.call(at::causal{}, at::plain{}), blocks, {});
  REQUIRE_MESSAGE(got.clean(), got.text());
  CHECK(!the_machine().is_count_left);
  CHECK(got.counts.matrix_flops ==
        work.visits.size() * multiplied(64 * tile.consumers, tile.keys, c.dim + c.value_dim()));
  CHECK(static_cast<unsigned>(work.shared_bytes) == tile.shared(problem.p));
}

void check_backward(whole_gpu::call const& c, char const* name) {
  CAPTURE(name);
  backward_problem<__nv_bfloat16> problem(the_machine().where, sizes_of(c), 2);
  reference_of(problem, at::causal{}, at::plain{}); // what forward would have left
  auto const kept = walk(c, whole_gpu::way::kept);
  the_machine().parts = kept.group_parts;
  the_machine().cut = kept.step_cut;
  auto const got =
    the_machine().launch_backward(name, problem.backward_call(at::causal{}, at::plain{}));
  REQUIRE_MESSAGE(got.clean(), got.text());
  auto const tile = multiplied(
    backward_shape::step(c.dim), backward_shape::keys(c.dim), 3 * c.dim + 2 * c.value_dim());
  for (auto const which : {whole_gpu::way::kept, whole_gpu::way::free}) {
    auto const work = walk(c, which);
    CHECK(got.counts.matrix_flops == work.visits.size() * tile);
    CHECK(work.group_parts == c.heads / c.key_heads); // few blocks: one for each head
    CHECK(work.step_cut == the_machine().cut);
    auto const keys = backward_shape::keys(c.dim);
    auto const steps = (c.queries + backward_shape::step(c.dim) - 1) / backward_shape::step(c.dim);
    auto const ranges = work.step_cut == 0 ? 1 : (steps + work.step_cut - 1) / work.step_cut;
    auto const pieces = (c.keys + keys - 1) / keys * c.heads * c.batch * ranges;
    CHECK(work.blocks == std::min<std::int64_t>(pieces, 132));
    CHECK(static_cast<std::int64_t>(work.pieces.size()) <= pieces); // some see no step
    CHECK(static_cast<unsigned>(work.shared_bytes) == backward_shape::shared(problem.p));
  }
}

} // namespace

TEST_CASE("whole GPU: the walk visits the tiles that kernels multiply") {
  for (auto const& [batch, heads, key_heads, queries, keys] :
       {std::array<std::int64_t, 5>{1, 1, 1, 384, 384}, {1, 2, 1, 200, 450}, {2, 2, 2, 130, 300}}) {
    whole_gpu::call c;
    c.batch = batch;
    c.heads = heads;
    c.key_heads = key_heads;
    c.queries = queries;
    c.keys = keys;
    CAPTURE(queries);
    c.dim = 64;
    check_forward(c, "forward_64", {128, 4, 3});
    check_backward(c, "64");
    c.dim = 128;
    check_forward(c, "forward_128", {128, 2});
    check_backward(c, "128");
    c.dim = 256;
    check_forward(c, "forward_256", {80, 2});
    check_backward(c, "256");
    c.dim = 192;
    check_forward(c, "forward_192_128", {128, 2});
    check_backward(c, "192_128");
  }
}

TEST_CASE("whole GPU: pieces of a chunk of few heads visit each step of each tile once") {
  whole_gpu::call c;
  c.heads = 8;
  c.key_heads = 1;
  c.queries = 2048;
  c.keys = 8192;
  auto const work = walk(c, whole_gpu::way::free);
  // Of 64 tiles 30 in two parts and three ranges of steps; then a piece for each query head.
  CHECK(work.pieces.size() == 30 * 2 * 3 + 34 * 8);
  CHECK(work.blocks == 132);
  std::set<std::pair<int, int>> seen; // a tile, a step of a query head
  for (auto const& piece : work.pieces) {
    for (auto n = piece.begin; n < piece.end; ++n) {
      seen.emplace(piece.own, work.visits[static_cast<std::size_t>(n)].object);
    }
  }
  CHECK(seen.size() == work.visits.size());
  CHECK(seen.size() == 8 * (48 * 32 + 2 * (1 + 16) * 16 / 2)); // 48 tiles see 32 steps, 16 fewer
}

TEST_CASE(
  "whole GPU: blocks that ask in any order do each piece once, first piece first, and leave "
  "the count at 0") {
  whole_gpu::call c;
  c.heads = c.key_heads = 3;
  c.queries = c.keys = 1000;
  auto const work = walk(c, whole_gpu::way::forward, 5);
  std::vector<int> expected(work.pieces.size());
  std::iota(expected.begin(), expected.end(), 0);
  std::mt19937 random(1);
  for (int launch = 0; launch < 2; ++launch) {
    std::vector<std::pair<int, int>> asking; // a block, its last piece
    for (int block = 0; block < work.blocks; ++block) {
      asking.emplace_back(block, -1);
    }
    std::vector<int> done;
    while (!asking.empty()) {
      auto const at = asking.begin() + static_cast<std::ptrdiff_t>(random() % asking.size());
      at->second = work.next(at->first, at->second);
      if (at->second < static_cast<int>(work.pieces.size())) {
        done.push_back(at->second);
      } else {
        asking.erase(at);
      }
    }
    CHECK(done == expected);
  }
}
