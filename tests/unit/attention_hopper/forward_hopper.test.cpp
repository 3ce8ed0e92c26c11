// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "hopper_problem.hpp"

namespace {

using namespace hopper_tests;

constexpr shape for_64{128, 4, 3};
constexpr shape for_64_scored{128, 4};
constexpr shape for_128{128, 2};
constexpr shape for_128_scored{64, 4};
constexpr shape for_256{80, 2};
constexpr shape for_256_scored{64, 2};
constexpr shape for_96{96, 3, 3}; // and for 80 and 112
constexpr shape for_192{128, 2};
constexpr shape for_192_scored{64, 2};

machine& the_machine() {
  static machine one(text_of("kernels.sm_90a"));
  return one;
}

template <class Element, class Mask, class Score>
void check_forward(char const* name,
                   shape const& tile,
                   sizes const& s,
                   Mask const& m,
                   Score const& f,
                   unsigned seed,
                   unsigned blocks = 1,
                   ptx::options const& how = {}) {
  CAPTURE(name);
  CAPTURE(seed);
  CAPTURE(s.queries);
  CAPTURE(s.query_offset);
  CAPTURE(s.keys);
  auto& on = the_machine();
  forward_problem<Element> const problem(on.where, s, seed);
  auto const got = forward_outcome(on, name, tile, problem, m, f, blocks, how);
  REQUIRE_MESSAGE(got.result.clean(), got.result.text());
  CHECK(got.output <= 1);
  CHECK(got.lse <= 1);
}

} // namespace

TEST_CASE("hopper forward: chunks of any length, at any offset, match the double reference") {
  unsigned seed = 0;
  for (auto const& chunk : random_chunks(1, 4, 200, 200)) {
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
    check_forward<__nv_bfloat16>(
      "forward_128",
      for_128,
      {.queries = queries, .query_offset = before, .keys = queries + before, .dim = 128},
      at::causal{},
      at::plain{},
      seed);
    check_forward<__nv_bfloat16>(
      "forward_256",
      for_256,
      {.queries = queries, .query_offset = before, .keys = queries + before, .dim = 256},
      at::causal{},
      at::plain{},
      seed);
  }
}

TEST_CASE("hopper forward: heads that are not whole panels, and values that are narrower") {
  table<std::int32_t> const first(the_machine().where, three_documents());
  at::both<at::sliding_window, at::document> const some{{70, 3}, {first.data(), 0}};
  unsigned seed = 50;
  for (auto const& [queries, before] : random_chunks(7, 3, 200, 200)) {
    sizes s{.queries = queries, .query_offset = before, .keys = queries + before, .dim = 80};
    check_forward<__nv_bfloat16>("forward_80", for_96, s, at::causal{}, at::plain{}, ++seed);
    s.dim = 112;
    check_forward<__half>("forward_112", for_96, s, at::causal{}, at::plain{}, ++seed);
    s.dim = 192;
    s.value_dim = 128;
    check_forward<__nv_bfloat16>("forward_192_128", for_192, s, at::causal{}, at::plain{}, ++seed);
    s = {.queries = std::min<std::int64_t>(queries, 60),
         .query_offset = 140,
         .keys = 200,
         .heads = 2,
         .key_heads = 1,
         .dim = 192,
         .value_dim = 128};
    check_forward<__half>("forward_192_128_cap", for_192_scored, s, some, at::soft_cap{5}, ++seed);
    s.dim = 96;
    s.value_dim = 0;
    check_forward<__half>("forward_96_cap", for_128_scored, s, some, at::soft_cap{5}, ++seed);
  }
}

TEST_CASE("hopper forward: whole tiles take the path without questions") {
  check_forward<__half>("forward_128_half",
                        for_128,
                        {.queries = 128, .keys = 384, .dim = 128},
                        at::full{},
                        at::plain{},
                        5);
  check_forward<__nv_bfloat16>("forward_64",
                               for_64,
                               {.queries = 192, .query_offset = 640, .keys = 832},
                               at::causal{},
                               at::plain{},
                               6);
  check_forward<__nv_bfloat16>("forward_256",
                               for_256,
                               {.queries = 128, .query_offset = 400, .keys = 400, .dim = 256},
                               at::causal{},
                               at::plain{},
                               6);
}

TEST_CASE(
  "hopper forward: bases of the softmax follow logits up, and down where nothing is summed") {
  auto const check = [](char const* name, shape const& tile, auto& problem, auto const& mask) {
    CAPTURE(name);
    spread_logits(problem, tile.keys);
    auto const got = forward_outcome(the_machine(), name, tile, problem, mask, at::plain{}, 1, {});
    REQUIRE_MESSAGE(got.result.clean(), got.result.text());
    CHECK(got.output <= 1);
    CHECK(got.lse <= 1);
  };
  auto& where = the_machine().where;
  forward_problem<__nv_bfloat16> narrow(
    where, {.queries = 200, .query_offset = 560, .keys = 760}, 17);
  check("forward_64", for_64, narrow, at::causal{});
  forward_problem<__half> usual(where, {.queries = 70, .keys = 720, .dim = 128}, 18);
  check("forward_128_half", for_128, usual, at::full{});
  forward_problem<__nv_bfloat16> wide(
    where, {.queries = 70, .query_offset = 410, .keys = 480, .dim = 256}, 19);
  check("forward_256", for_256, wide, at::causal{});
}

TEST_CASE("hopper forward: blocks that stay take all work in any number") {
  // Two sequences, four heads over two, two tiles of queries: sixteen pieces.
  sizes const s{.batch = 2,
                .queries = 194,
                .query_offset = 40,
                .keys = 150,
                .key_offset = 20,
                .heads = 4,
                .key_heads = 2};
  for (unsigned const blocks : {0U, 1U, 3U, 20U}) {
    for (std::int32_t const section : {0, 2, 6}) {
      the_machine().section = section;
      check_forward<__nv_bfloat16>("forward_64", for_64, s, at::causal{}, at::plain{}, 7, blocks);
      CHECK(!the_machine().is_count_left);
    }
  }
  the_machine().section = 0;
}

TEST_CASE("hopper forward: a query that sees one key gets its value to the bit") {
  auto const check = [](char const* name, shape const& tile, std::int64_t dim) {
    CAPTURE(name);
    forward_problem<__nv_bfloat16> problem(
      the_machine().where, {.queries = 1, .keys = 1, .dim = dim}, 20);
    auto const got =
      forward_outcome(the_machine(), name, tile, problem, at::causal{}, at::plain{}, 1, {});
    REQUIRE_MESSAGE(got.result.clean(), got.result.text());
    CHECK(problem.output.numbers() == problem.value.numbers());
  };
  check("forward_64", for_64, 64);
  check("forward_128", for_128, 128);
  check("forward_256", for_256, 256);
}

TEST_CASE("hopper forward: queries that see nothing give 0 and -infinity") {
  check_forward<__nv_bfloat16>("forward_64",
                               for_64,
                               {.queries = 20, .query_offset = 5, .keys = 30, .key_offset = 15},
                               at::causal{},
                               at::plain{},
                               8);
  check_forward<__nv_bfloat16>(
    "forward_64", for_64, {.queries = 3, .keys = 0, .heads = 2}, at::causal{}, at::plain{}, 9);
}

TEST_CASE("hopper forward: masks and scores, also a user's own") {
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  for (auto const& [queries, before] : {std::pair{200, 0}, std::pair{60, 140}}) {
    check_forward<__nv_bfloat16>(
      "forward_128_document",
      for_128,
      {.queries = queries, .query_offset = before, .keys = 200, .heads = 2, .dim = 128},
      at::both<at::causal, at::document>{{}, {first.data(), 0}},
      at::plain{},
      21);
  }
  check_forward<__half>("forward_128_cap",
                        for_128_scored,
                        {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .dim = 128},
                        at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                        at::soft_cap{5},
                        10);
  check_forward<__half>(
    "forward_256_cap",
    for_256_scored,
    {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .key_heads = 1, .dim = 256},
    at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
    at::soft_cap{5},
    12);
  check_forward<__half>("forward_64_own",
                        for_64_scored,
                        {.queries = 70, .query_offset = 9, .keys = 200, .heads = 2, .key_heads = 1},
                        speckled{},
                        bent{},
                        11,
                        2);
}

TEST_CASE("hopper forward: the order of warps and of copies changes nothing") {
  for (auto const order : {ptx::order::reverse, ptx::order::shuffled}) {
    check_forward<__nv_bfloat16>("forward_128",
                                 for_128,
                                 {.queries = 140, .query_offset = 200, .keys = 340, .dim = 128},
                                 at::causal{},
                                 at::plain{},
                                 13,
                                 1,
                                 {.warps = order, .seed = 3});
  }
}

TEST_CASE("hopper forward: shared memory that begins at an odd place stops the kernel") {
  auto text = text_of("kernels.sm_90a");
  std::string const aligned = ".extern .shared .align 1024";
  auto const declared = text.find(aligned);
  REQUIRE(declared != std::string::npos);
  text.replace(declared, aligned.size(), ".extern .shared .align 16");
  auto const body = text.find("\n{", text.find(".visible .entry forward_64("));
  text.insert(body + 2, "\n.shared .align 16 .b8 before[16];");
  machine m(text);
  forward_problem<__nv_bfloat16> problem(m.where, {.queries = 8, .keys = 8}, 16);
  auto const result =
    m.launch("forward_64", for_64, problem.call(at::causal{}, at::plain{}), 1, {});
  REQUIRE(!result.clean());
  CHECK_MESSAGE(result.reports.front().kind == ptx::fault::trap, result.text());
}

TEST_CASE("hopper forward: goes on from the (O, log-sum-exp) of other keys") {
  auto& m = the_machine();
  sizes const all{.queries = 50, .query_offset = 80, .keys = 130};
  forward_problem<__nv_bfloat16> problem(m.where, all, 14);
  for (int const cut : {0, 77}) { // the first slice may hold no key at all
    auto call = problem.call(at::causal{}, at::plain{});
    call.p.key_length = call.t.key.length = call.t.value.length = cut;
    auto const first = m.launch("forward_64", for_64, call, 1, {});
    REQUIRE_MESSAGE(first.clean(), first.text());
    call.p.key_length = call.t.key.length = call.t.value.length = 130 - cut;
    call.p.key_offset = cut;
    call.p.from = at::carry::in;
    call.t.key.data += cut * call.t.key.length_stride;
    call.t.value.data += cut * call.t.value.length_stride;
    auto const second = m.launch("forward_64", for_64, call, 1, {});
    REQUIRE_MESSAGE(second.clean(), second.text());
    auto const errors = errors_of(problem, at::causal{});
    CHECK(errors.output <= 2); // O is rounded twice
    CHECK(errors.lse <= 1);
  }
}

TEST_CASE("hopper forward: parts of the keys, merged, are all keys") {
  auto& m = the_machine();
  // Five tiles of keys in three parts; in seven parts two hold no tile.
  sizes const all{.batch = 2,
                  .queries = 140,
                  .query_offset = 420,
                  .keys = 560,
                  .heads = 2,
                  .key_heads = 1,
                  .dim = 128};
  for (std::int32_t const parts : {3, 7}) {
    forward_problem<__nv_bfloat16> problem(m.where, all, 15);
    auto call = problem.call(at::causal{}, at::plain{});
    auto const count = static_cast<std::size_t>(parts * 2 * 2 * 140);
    std::vector<float> outputs(count * 128);
    std::vector<float> sums(count);
    m.where.add(outputs.data(), outputs.size() * sizeof(float));
    m.where.add(sums.data(), sums.size() * sizeof(float));
    at::detail::key_splits splits{outputs.data(), sums.data(), parts};
    auto const first = m.launch("forward_128_split", for_128, call, 5, {}, &splits);
    REQUIRE_MESSAGE(first.clean(), first.text());
    auto const second =
      ptx::launch_with(m.code, "merge_128", {2 * 2 * 140 / 4}, {128}, 0, {}, call, splits);
    REQUIRE_MESSAGE(second.clean(), second.text());
    auto const errors = errors_of(problem, at::causal{});
    CHECK(errors.output <= 1);
    CHECK(errors.lse <= 1);
    // The same keys once more, with what is there carried in: O stays, sums double.
    auto const before = problem.lse.numbers();
    call.p.from = at::carry::in;
    auto const third =
      ptx::launch_with(m.code, "merge_128", {2 * 2 * 140 / 4}, {128}, 0, {}, call, splits);
    REQUIRE_MESSAGE(third.clean(), third.text());
    auto const after = problem.lse.numbers();
    for (std::size_t n = 0; n < after.size(); ++n) {
      REQUIRE(std::abs(after[n] - before[n] - std::log(2.0)) < 1e-5);
    }
    m.where.remove(outputs.data());
    m.where.remove(sums.data());
  }
}
