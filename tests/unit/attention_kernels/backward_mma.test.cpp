// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "problem.hpp"

namespace {

using namespace kernel_tests;

//! Tile sizes, as query_gradient_shape and key_gradient_shape have them.
struct shape {
  int dim, queries, keys_a_step, keys, queries_a_step, key_threads, parts;
  unsigned query_shared() const {
    return static_cast<unsigned>((2 * queries + 4 * keys_a_step) * dim * 2 + queries * 4);
  }
  unsigned key_shared() const {
    return static_cast<unsigned>((2 * keys + 4 * queries_a_step) * dim * 2 + queries_a_step * 16);
  }
};
constexpr shape for_64{64, 128, 32, 128, 32, 128, 1};
constexpr shape for_128{128, 64, 64, 128, 32, 256, 1};
constexpr shape for_64_scored{64, 128, 32, 128, 16, 128, 1};
constexpr shape for_128_scored{128, 64, 64, 128, 16, 256, 1};
constexpr shape for_256_scored{256, 64, 32, 64, 16, 128, 2};

struct machine {
  ptx::memory where;
  ptx::module code{text_of("kernels.sm_80"), where};
};

machine& the_machine() {
  static machine one;
  return one;
}

template <class Call>
void run_backward(char const* name, shape const& tile, Call const& call, ptx::options const& how) {
  auto& code = the_machine().code;
  auto const& p = call.p;
  auto const query_blocks =
    static_cast<unsigned>((p.query_length + tile.queries - 1) / tile.queries * p.heads * p.batch);
  auto const first = ptx::launch_with(code,
                                      std::string("query_gradient_") + name,
                                      {query_blocks},
                                      {128},
                                      tile.query_shared(),
                                      how,
                                      call);
  REQUIRE_MESSAGE(first.clean(), first.text());
  auto const key_blocks =
    static_cast<unsigned>((p.key_length + tile.keys - 1) / tile.keys * p.key_heads * p.batch);
  if (key_blocks != 0) {
    auto const second = ptx::launch_with(code,
                                         std::string("key_gradient_") + name,
                                         {key_blocks, static_cast<unsigned>(tile.parts)},
                                         {static_cast<unsigned>(tile.key_threads)},
                                         tile.key_shared(),
                                         how,
                                         call);
    REQUIRE_MESSAGE(second.clean(), second.text());
  }
}

template <class Element, class Mask, class Score>
void check_backward(char const* name,
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
  backward_problem<Element> problem(the_machine().where, s, seed);
  auto const exactly = reference_of(problem, m, f);
  run_backward(name, tile, problem.backward_call(m, f), how);
  CHECK(gradient_error(problem, exactly) <= 1);
}

} // namespace

TEST_CASE("backward: chunks of any length, at any offset, match the double reference") {
  unsigned seed = 0;
  for (auto const& chunk : random_chunks(2, 3, 150, 90)) {
    auto const queries = chunk.first;
    auto const before = chunk.second;
    ++seed;
    check_backward<__nv_bfloat16>(
      "64",
      for_64,
      {.queries = queries, .query_offset = before, .keys = queries + before},
      at::causal{},
      at::plain{},
      seed);
    check_backward<__nv_bfloat16>("128",
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

TEST_CASE("backward: whole tiles take the path without questions") {
  check_backward<__nv_bfloat16>(
    "64", for_64, {.queries = 128, .query_offset = 128, .keys = 256}, at::causal{}, at::plain{}, 5);
  check_backward<__nv_bfloat16>("128",
                                for_128,
                                {.queries = 64, .query_offset = 128, .keys = 192, .dim = 128},
                                at::causal{},
                                at::plain{},
                                6);
}

TEST_CASE("backward: grouped heads, batches and a slice of the keys") {
  check_backward<__nv_bfloat16>("64",
                                for_64,
                                {.batch = 2,
                                 .queries = 37,
                                 .query_offset = 40,
                                 .keys = 50,
                                 .key_offset = 20,
                                 .heads = 6,
                                 .key_heads = 2},
                                at::causal{},
                                at::plain{},
                                7);
}

TEST_CASE("backward: queries that see nothing get 0 and give nothing") {
  check_backward<__nv_bfloat16>("64",
                                for_64,
                                {.queries = 20, .query_offset = 5, .keys = 30, .key_offset = 15},
                                at::causal{},
                                at::plain{},
                                8);
  check_backward<__nv_bfloat16>(
    "64", for_64, {.queries = 3, .keys = 0}, at::causal{}, at::plain{}, 9);
}

TEST_CASE("backward: masks and scores, also a user's own") {
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  check_backward<__half>("128_cap",
                         for_128_scored,
                         {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .dim = 128},
                         at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                         at::soft_cap{5},
                         10);
  check_backward<__half>(
    "64_own",
    for_64_scored,
    {.queries = 70, .query_offset = 9, .keys = 100, .heads = 2, .key_heads = 1},
    speckled{},
    bent{},
    11);
  table<float> const slopes(where, {0.5f, 0.0625f});
  check_backward<__nv_bfloat16>(
    "256_alibi",
    for_256_scored,
    {.queries = 40, .query_offset = 50, .keys = 90, .heads = 2, .dim = 256},
    at::causal{},
    at::alibi{slopes.data()},
    12);
}

TEST_CASE("backward: the order of warps changes no bit") {
  sizes const s{.queries = 50, .query_offset = 60, .keys = 110, .heads = 2, .key_heads = 1};
  std::vector<std::vector<double>> seen;
  for (auto const order : {ptx::order::forward, ptx::order::reverse, ptx::order::shuffled}) {
    backward_problem<__nv_bfloat16> problem(the_machine().where, s, 13);
    reference_of(problem, at::causal{}, at::plain{});
    run_backward(
      "64", for_64, problem.backward_call(at::causal{}, at::plain{}), {.warps = order, .seed = 4});
    seen.push_back(all_gradients(problem));
  }
  CHECK(seen[0] == seen[1]);
  CHECK(seen[0] == seen[2]);
}

TEST_CASE("backward: dK and dV of chunks in reverse add up to those of the whole sequence") {
  sizes const whole{.queries = 100, .keys = 100};
  backward_problem<__nv_bfloat16> problem(the_machine().where, whole, 14);
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  for (auto const& [begin, end] : {std::pair{63, 100}, std::pair{7, 63}, std::pair{0, 7}}) {
    auto call = problem.backward_call(at::causal{}, at::plain{});
    call.p.query_offset = begin;
    call.p.query_length = end - begin;
    call.p.key_length = end;
    for (auto* view : {&call.t.query, &call.t.output, &call.t.output_gradient}) {
      view->data += begin * view->length_stride;
    }
    call.t.query_gradient.data += begin * call.t.query_gradient.length_stride;
    call.t.log_sum_exp.data += begin;
    call.mean.data += begin;
    run_backward("64", for_64, call, {});
  }
  CHECK(gradient_error(problem, exactly) <= 1);
}

TEST_CASE("backward: dQ of slices of the keys adds up") {
  sizes const whole{.queries = 40, .query_offset = 80, .keys = 120};
  backward_problem<__nv_bfloat16> problem(the_machine().where, whole, 15);
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  for (auto const& [begin, end] : {std::pair{0, 77}, std::pair{77, 120}}) {
    auto call = problem.backward_call(at::causal{}, at::plain{});
    call.p.key_offset = begin;
    call.p.key_length = end - begin;
    call.p.from = begin == 0 ? at::carry::none : at::carry::in;
    call.t.key.data += begin * call.t.key.length_stride;
    call.t.value.data += begin * call.t.value.length_stride;
    call.t.key_gradient.data += begin * call.t.key_gradient.length_stride;
    call.t.value_gradient.data += begin * call.t.value_gradient.length_stride;
    run_backward("64", for_64, call, {});
  }
  CHECK(gradient_error(problem, exactly) <= 1);
}
