// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace {

using namespace kernel_tests;

//! Tile sizes, as forward_shape has them; that header is for nvcc alone.
struct shape {
  int dim, queries, keys; // dim: elements from one row to the next
  int value_dim = dim;
  int places = 2; // of tiles of values
  unsigned shared() const {
    return static_cast<unsigned>(((queries + keys) * dim + places * keys * value_dim) * 2 + 32);
  }
};
constexpr shape for_64{64, 128, 64};
constexpr shape for_128{128, 128, 48};
constexpr shape for_128_scored{128, 64, 64};
constexpr shape for_256{256, 64, 32};
constexpr shape for_96{128, 128, 64}; // and for 80: rows lie 128 elements apart
constexpr shape for_192{192, 128, 48, 128};
constexpr shape for_192_scored{192, 64, 64, 128};
constexpr shape compact_128{128, 128, 32, 128, 1}; // and for 80
constexpr shape compact_128_scored{128, 64, 64, 128, 1};
constexpr shape compact_192_scored{192, 64, 32, 128, 1};
constexpr shape compact_256{256, 64, 16, 256, 1};

struct machine {
  ptx::memory where;
  ptx::module code{text_of("kernels.sm_80"), where};
};

machine& the_machine() {
  static machine one;
  return one;
}

//! Runs a kernel and holds O and the log-sum-exp against the double reference.
template <class Element, class Mask, class Score>
void check_forward(char const* name,
                   shape const& tile,
                   sizes const& s,
                   Mask const& m,
                   Score const& f,
                   unsigned seed,
                   ptx::options const& how = {}) {
  CAPTURE(name);
  CAPTURE(seed);
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  auto& [where, code] = the_machine();
  forward_problem<Element> problem(where, s, seed);
  auto const call = problem.call(m, f);
  auto const result = ptx::launch_with(
    code, name, {forward_blocks(problem.p, tile.queries)}, {128}, tile.shared(), how, call);
  REQUIRE_MESSAGE(result.clean(), result.text());

  auto const errors = errors_of(problem, m, f);
  CHECK(errors.output <= 1);
  CHECK(errors.lse <= 1);
}

} // namespace

TEST_CASE("forward: chunks of any length, at any offset, match the double reference") {
  unsigned seed = 0;
  for (auto const& chunk : random_chunks(1, 4, 150, 90)) {
    auto const queries = chunk.first;
    auto const before = chunk.second;
    ++seed;
    check_forward<__nv_bfloat16>(
      "forward_64",
      for_64,
      {.queries = queries, .query_offset = before, .keys = queries + before},
      at::causal{},
      at::plain{},
      seed);
    check_forward<__nv_bfloat16>("forward_128",
                                 for_128,
                                 {.queries = queries / 2 + 1,
                                  .query_offset = before,
                                  .keys = queries / 2 + before,
                                  .dim = 128},
                                 at::causal{},
                                 at::plain{},
                                 seed);
  }
}

TEST_CASE("forward: whole tiles take the path without questions") {
  check_forward<__half>(
    "forward_64_half", for_64, {.queries = 128, .keys = 128}, at::full{}, at::plain{}, 5);
  check_forward<__nv_bfloat16>("forward_128",
                               for_128,
                               {.queries = 128, .query_offset = 96, .keys = 224, .dim = 128},
                               at::causal{},
                               at::plain{},
                               6);
  check_forward<__half>("forward_128_full",
                        for_128,
                        {.queries = 128, .keys = 96, .dim = 128},
                        at::full{},
                        at::plain{},
                        5);
}

TEST_CASE("forward: grouped heads, batches and a slice of the keys") {
  check_forward<__nv_bfloat16>("forward_64",
                               for_64,
                               {.batch = 2,
                                .queries = 17,
                                .query_offset = 40,
                                .keys = 30,
                                .key_offset = 20,
                                .heads = 4,
                                .key_heads = 2},
                               at::causal{},
                               at::plain{},
                               7);
}

TEST_CASE("forward: queries that see nothing give 0 and -infinity") {
  check_forward<__nv_bfloat16>("forward_64",
                               for_64,
                               {.queries = 20, .query_offset = 5, .keys = 30, .key_offset = 15},
                               at::causal{},
                               at::plain{},
                               8);
  check_forward<__nv_bfloat16>(
    "forward_64", for_64, {.queries = 3, .keys = 0}, at::causal{}, at::plain{}, 9);
}

TEST_CASE("forward: masks and scores, also a user's own") {
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  check_forward<__half>("forward_128_cap",
                        for_128_scored,
                        {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .dim = 128},
                        at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                        at::soft_cap{5},
                        10);
  check_forward<__half>("forward_64_own",
                        for_64,
                        {.queries = 70, .query_offset = 9, .keys = 100, .heads = 2, .key_heads = 1},
                        speckled{},
                        bent{},
                        11);
  table<float> const slopes(where, {0.5f, 0.0625f});
  check_forward<__nv_bfloat16>(
    "forward_256_alibi",
    for_256,
    {.queries = 40, .query_offset = 50, .keys = 90, .heads = 2, .dim = 256},
    at::causal{},
    at::alibi{slopes.data()},
    12);
}

TEST_CASE("forward: head dims that are no power of two, and values that are narrower") {
  unsigned seed = 50;
  for (auto const& [queries, before] : random_chunks(7, 3, 150, 90)) {
    sizes s{.queries = queries, .query_offset = before, .keys = queries + before, .dim = 80};
    check_forward<__nv_bfloat16>("forward_80", for_96, s, at::causal{}, at::plain{}, ++seed);
    s.dim = 112;
    check_forward<__half>("forward_112", for_128, s, at::causal{}, at::plain{}, ++seed);
    s.dim = 96;
    s.heads = 2;
    check_forward<__half>(
      "forward_96_cap", for_128_scored, s, at::causal{}, at::soft_cap{5}, ++seed);
    s.dim = 192;
    s.value_dim = 128;
    check_forward<__nv_bfloat16>("forward_192_128", for_192, s, at::causal{}, at::plain{}, ++seed);
    check_forward<__half>("forward_192_128_own", for_192_scored, s, speckled{}, bent{}, ++seed);
  }
}

TEST_CASE("forward: compact blocks fit twice into 100 KiB, and give the same") {
  for (auto const& tile : {compact_128, compact_128_scored, compact_192_scored, compact_256}) {
    CHECK(2 * (tile.shared() + 1024) <= 100 * 1024);
  }
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  table<float> const slopes(where, {0.5f, 0.0625f});
  unsigned seed = 70;
  for (auto const& [queries, before] : random_chunks(8, 2, 150, 90)) {
    sizes s{.queries = queries, .query_offset = before, .keys = queries + before, .dim = 128};
    check_forward<__nv_bfloat16>(
      "forward_128_compact", compact_128, s, at::causal{}, at::plain{}, ++seed);
    s.dim = 80;
    check_forward<__nv_bfloat16>(
      "forward_80_compact", compact_128, s, at::causal{}, at::plain{}, ++seed);
    s.dim = 256;
    s.heads = 2;
    check_forward<__nv_bfloat16>(
      "forward_256_alibi_compact", compact_256, s, at::causal{}, at::alibi{slopes.data()}, ++seed);
    s.dim = 192;
    s.value_dim = 128;
    check_forward<__half>(
      "forward_192_128_own_compact", compact_192_scored, s, speckled{}, bent{}, ++seed);
  }
  check_forward<__half>("forward_128_cap_compact",
                        compact_128_scored,
                        {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .dim = 128},
                        at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                        at::soft_cap{5},
                        ++seed);
  check_forward<__nv_bfloat16>("forward_128_compact",
                               compact_128,
                               {.queries = 3, .keys = 0, .dim = 128},
                               at::causal{},
                               at::plain{},
                               ++seed);
}

TEST_CASE("forward: the order of warps changes nothing") {
  for (auto const order : {ptx::order::reverse, ptx::order::shuffled}) {
    for (auto const& [name, tile] :
         {std::pair{"forward_128", for_128}, std::pair{"forward_128_compact", compact_128}}) {
      check_forward<__nv_bfloat16>(name,
                                   tile,
                                   {.queries = 90, .query_offset = 60, .keys = 150, .dim = 128},
                                   at::causal{},
                                   at::plain{},
                                   13,
                                   {.warps = order, .seed = 3});
    }
  }
}

namespace {

//! Runs forward_NAME_split and merge_NAME with so many parts of 260 keys.
void check_parts(std::string const& name, shape const& tile, std::int64_t dim, std::int32_t parts) {
  CAPTURE(name);
  CAPTURE(parts);
  auto& [where, code] = the_machine();
  sizes const all{.batch = 2,
                  .queries = 40,
                  .query_offset = 220,
                  .keys = 260,
                  .heads = 2,
                  .key_heads = 1,
                  .dim = dim};
  forward_problem<__nv_bfloat16> problem(where, all, 15);
  auto call = problem.call(at::causal{}, at::plain{});
  std::vector<float> scratch(
    static_cast<std::size_t>(at::detail::key_splits::scratch(problem.p, parts)));
  where.add(scratch.data(), scratch.size() * sizeof(float));
  auto const splits = at::detail::key_splits::in(scratch.data(), problem.p, parts);
  auto const blocks = forward_blocks(problem.p, tile.queries) * static_cast<unsigned>(parts);
  auto const first = ptx::launch_with(
    code, "forward_" + name + "_split", {blocks}, {128}, tile.shared(), {}, call, splits);
  REQUIRE_MESSAGE(first.clean(), first.text());
  auto const second = ptx::launch_with(code, "merge_" + name, {40}, {128}, 0, {}, call, splits);
  REQUIRE_MESSAGE(second.clean(), second.text());
  auto const errors = errors_of(problem, at::causal{});
  CHECK(errors.output <= 1);
  CHECK(errors.lse <= 1);
  where.remove(scratch.data());
}

} // namespace

TEST_CASE("forward: parts of the keys, merged, are all keys") {
  check_parts("128", for_128, 128, 4); // six tiles of keys
  check_parts("128", for_128, 128, 9); // three parts hold no tile
  check_parts("80", for_96, 80, 3);    // lanes of the merge have nothing to do
  check_parts("80_compact", compact_128, 80, 3);
}

TEST_CASE("forward: goes on from the (O, log-sum-exp) of other keys") {
  auto& [where, code] = the_machine();
  sizes const all{.queries = 50, .query_offset = 80, .keys = 130};
  forward_problem<__nv_bfloat16> problem(where, all, 14);
  for (int const cut : {0, 77}) { // the first slice may hold no key at all
    auto call = problem.call(at::causal{}, at::plain{});
    call.p.key_length = cut;
    ptx::options const how;
    auto const first = ptx::launch_with(code, "forward_64", {1}, {128}, for_64.shared(), how, call);
    REQUIRE_MESSAGE(first.clean(), first.text());
    call.p.key_length = 130 - cut;
    call.p.key_offset = cut;
    call.p.from = at::carry::in;
    call.t.key.data += cut * call.t.key.length_stride;
    call.t.value.data += cut * call.t.value.length_stride;
    auto const second =
      ptx::launch_with(code, "forward_64", {1}, {128}, for_64.shared(), how, call);
    REQUIRE_MESSAGE(second.clean(), second.text());
    auto const errors = errors_of(problem, at::causal{});
    CHECK(errors.output <= 2); // O is rounded twice
    CHECK(errors.lse <= 1);
  }
}
