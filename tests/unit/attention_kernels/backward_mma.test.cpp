// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace {

using namespace kernel_tests;

//! As backward_shape has it.
backward_tile tile_of(std::int64_t dim) {
  int const keys = dim > 128 ? 64 : 128;
  auto const step = at::detail::queries_of_step(at::kernel_family::portable, dim);
  auto const row = (dim + 63) / 64 * 64; // elements from one row to the next
  auto const value_row = dim == 192 ? 128 : row;
  auto const wide = (keys + 2 * step) * row + ((dim == 64 ? keys : 0) + step) * value_row;
  return {keys,
          dim == 64 || dim > 128 ? 128u : 256u,
          static_cast<unsigned>(wide * 2 + keys * 64 * 2 + 2 * step * 8 + 4 * 16 + 32)};
}

struct machine {
  ptx::memory where;
  ptx::module code{text_of("kernels.sm_80"), where};
  std::vector<float> sums; // of dQ, after the last launch
};

machine& the_machine() {
  static machine one;
  return one;
}

template <class Call>
void run_backward(char const* name, Call const& call, ptx::options const& how) {
  auto& m = the_machine();
  auto const result = launch_backward(m.where,
                                      m.code,
                                      at::kernel_family::portable,
                                      name,
                                      tile_of(call.p.head_dim),
                                      call,
                                      how,
                                      m.sums);
  REQUIRE_MESSAGE(result.clean(), result.text());
}

template <class Element, class Mask, class Score>
void check_backward(char const* name,
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
  run_backward(name, problem.backward_call(m, f), how);
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
      {.queries = queries, .query_offset = before, .keys = queries + before},
      at::causal{},
      at::plain{},
      seed);
    check_backward<__nv_bfloat16>("128",
                                  {.queries = queries / 2 + 1,
                                   .query_offset = before,
                                   .keys = queries / 2 + before,
                                   .dim = 128},
                                  at::causal{},
                                  at::plain{},
                                  seed);
  }
}

TEST_CASE("backward: head dims that are no power of two, and values that are narrower") {
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  unsigned seed = 50;
  for (auto const& [queries, before] : random_chunks(8, 2, 150, 90)) {
    sizes s{.queries = queries, .query_offset = before, .keys = queries + before, .dim = 80};
    check_backward<__nv_bfloat16>("80", s, at::causal{}, at::plain{}, ++seed);
    s.dim = 112;
    check_backward<__half>("112", s, at::causal{}, at::plain{}, ++seed);
    s.dim = 96;
    s.heads = 2;
    check_backward<__half>("96_own", s, speckled{}, bent{}, ++seed);
    s.dim = 192;
    s.value_dim = 128;
    check_backward<__nv_bfloat16>("192_128", s, at::causal{}, at::plain{}, ++seed);
    s.queries = std::min<std::int64_t>(queries, 60);
    s.query_offset = 140;
    s.keys = 200;
    check_backward<__half>("192_128_cap",
                           s,
                           at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                           at::soft_cap{5},
                           ++seed);
  }
}

TEST_CASE("backward: whole tiles take the path without questions") {
  check_backward<__nv_bfloat16>(
    "64", {.queries = 128, .query_offset = 128, .keys = 256}, at::causal{}, at::plain{}, 5);
  check_backward<__nv_bfloat16>("128",
                                {.queries = 64, .query_offset = 128, .keys = 192, .dim = 128},
                                at::causal{},
                                at::plain{},
                                6);
}

TEST_CASE("backward: grouped heads, batches and a slice of the keys") {
  check_backward<__nv_bfloat16>("64",
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

TEST_CASE("backward: logits far below 0 beside the end of the keys") {
  backward_problem<__nv_bfloat16> problem(
    the_machine().where, {.queries = 70, .query_offset = 200, .keys = 140}, 7);
  push_logits_down(problem);
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  run_backward("64", problem.backward_call(at::causal{}, at::plain{}), {});
  CHECK(gradient_error(problem, exactly) <= 1);
}

TEST_CASE("backward: queries that see nothing get 0 and give nothing") {
  check_backward<__nv_bfloat16>("64",
                                {.queries = 20, .query_offset = 5, .keys = 30, .key_offset = 15},
                                at::causal{},
                                at::plain{},
                                8);
  check_backward<__nv_bfloat16>("64", {.queries = 3, .keys = 0}, at::causal{}, at::plain{}, 9);
}

TEST_CASE("backward: masks and scores, also a user's own") {
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  check_backward<__half>("128_cap",
                         {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .dim = 128},
                         at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                         at::soft_cap{5},
                         10);
  check_backward<__half>(
    "64_own",
    {.queries = 70, .query_offset = 9, .keys = 100, .heads = 2, .key_heads = 1},
    speckled{},
    bent{},
    11);
  table<float> const slopes(where, {0.5f, 0.0625f});
  check_backward<__nv_bfloat16>(
    "256_alibi",
    {.queries = 40, .query_offset = 50, .keys = 90, .heads = 2, .dim = 256},
    at::causal{},
    at::alibi{slopes.data()},
    12);
}

TEST_CASE("backward: scores know where they are also in tiles of which every pair is kept") {
  table<float> const slopes(the_machine().where, {0.5f, 0.0625f});
  check_backward<__nv_bfloat16>(
    "256_alibi",
    {.queries = 70, .query_offset = 60, .keys = 130, .heads = 2, .dim = 256},
    at::causal{},
    at::alibi{slopes.data()},
    17);
}

namespace {

//! All gradients of one call, and the sums before dQ was rounded, by a kernel, blocks one after the
//! other and then together.
std::vector<std::vector<double>>
runs_of(char const* name, std::int64_t dim, std::int64_t value_dim = 0) {
  sizes const s{.queries = 140,
                .query_offset = 260,
                .keys = 400,
                .heads = 2,
                .key_heads = 1,
                .dim = dim,
                .value_dim = value_dim};
  std::vector<std::vector<double>> seen;
  for (auto const& how :
       {ptx::options{},
        ptx::options{.warps = ptx::order::reverse},
        ptx::options{.warps = ptx::order::shuffled, .seed = 4, .together = true},
        ptx::options{.warps = ptx::order::shuffled, .seed = 5, .together = true}}) {
    backward_problem<__nv_bfloat16> problem(the_machine().where, s, 13);
    reference_of(problem, at::causal{}, at::plain{});
    run_backward(name, problem.backward_call(at::causal{}, at::plain{}), how);
    auto all = all_gradients(problem);
    all.insert(all.end(), the_machine().sums.begin(), the_machine().sums.end());
    seen.push_back(std::move(all));
  }
  return seen;
}

} // namespace

TEST_CASE("backward: where dQ has an order, that of blocks and warps changes no bit") {
  for (auto const& seen :
       {runs_of("64", 64), runs_of("128", 128), runs_of("80", 80), runs_of("192_128", 192, 128)}) {
    for (auto const& one : seen) {
      CHECK(one == seen.front());
    }
  }
  auto const freely = runs_of("64_free", 64); // else the test would see nothing
  CHECK((freely[2] != freely[0] || freely[3] != freely[0]));
}

TEST_CASE("backward: without an order dQ is as close, dK and dV have the same bits") {
  for (auto const& [kept, free, dim, value_dim] :
       {std::tuple{"128", "128_free", 128, 0}, std::tuple{"192_128", "192_128_free", 192, 128}}) {
    sizes const s{
      .queries = 140, .query_offset = 260, .keys = 400, .dim = dim, .value_dim = value_dim};
    check_backward<__nv_bfloat16>(free, s, at::causal{}, at::plain{}, 16);
    std::vector<std::vector<double>> seen;
    for (auto const* name : {kept, free}) {
      backward_problem<__nv_bfloat16> problem(the_machine().where, s, 13);
      reference_of(problem, at::causal{}, at::plain{});
      run_backward(name, problem.backward_call(at::causal{}, at::plain{}), {});
      seen.push_back(problem.key_gradient.numbers());
      seen.push_back(problem.value_gradient.numbers());
    }
    CHECK(seen[0] == seen[2]);
    CHECK(seen[1] == seen[3]);
  }
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
    run_backward("64", call, {});
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
    run_backward("64", call, {});
  }
  CHECK(gradient_error(problem, exactly) <= 1);
}
