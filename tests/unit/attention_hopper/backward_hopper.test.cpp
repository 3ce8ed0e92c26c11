// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hopper_problem.hpp"

namespace {

using namespace hopper_tests;

machine& the_machine() {
  static machine one(text_of("kernels.sm_90a"));
  return one;
}

template <class Element, class Mask, class Score>
void check_backward(
  char const* name, sizes const& s, Mask const& m, Score const& f, unsigned seed) {
  CAPTURE(name);
  CAPTURE(seed);
  CAPTURE(s.queries);
  CAPTURE(s.query_offset);
  CAPTURE(s.keys);
  backward_problem<Element> problem(the_machine().where, s, seed);
  static std::map<std::tuple<std::string, sizes, unsigned>, backward_answers> known;
  std::string const all(name);
  auto const& exactly =
    known_reference_of(known, {all.substr(0, all.find("_free")), s, seed}, problem, m, f);
  auto const call = problem.backward_call(m, f);
  auto const result = the_machine().launch_backward(name, call);
  REQUIRE_MESSAGE(result.clean(), result.text());
  CHECK(gradient_error(problem, exactly) <= 1);
}

} // namespace

TEST_CASE("hopper backward: chunks of any length, at any offset, match the double reference") {
  unsigned seed = 0;
  for (auto const& chunk : random_chunks(3, 3, 200, 200)) {
    auto const queries = chunk.first;
    auto const before = chunk.second;
    ++seed;
    check_backward<__nv_bfloat16>(
      "64",
      {.queries = queries, .query_offset = before, .keys = queries + before},
      at::causal{},
      at::plain{},
      seed);
    check_backward<__nv_bfloat16>(
      "128",
      {.queries = queries, .query_offset = before, .keys = queries + before, .dim = 128},
      at::causal{},
      at::plain{},
      seed);
    check_backward<__nv_bfloat16>(
      "256",
      {.queries = queries, .query_offset = before, .keys = queries + before, .dim = 256},
      at::causal{},
      at::plain{},
      seed);
  }
}

TEST_CASE("hopper backward: heads that are not whole panels, and values that are narrower") {
  table<std::int32_t> const first(the_machine().where, three_documents());
  at::both<at::sliding_window, at::document> const some{{70, 3}, {first.data(), 0}};
  unsigned seed = 50;
  for (auto const& [queries, before] : random_chunks(8, 2, 200, 200)) {
    sizes s{.queries = queries, .query_offset = before, .keys = queries + before, .dim = 80};
    check_backward<__nv_bfloat16>("80", s, at::causal{}, at::plain{}, ++seed);
    s.dim = 112;
    check_backward<__half>("112", s, at::causal{}, at::plain{}, ++seed);
    s.dim = 192;
    s.value_dim = 128;
    check_backward<__nv_bfloat16>("192_128", s, at::causal{}, at::plain{}, ++seed);
  }
  sizes masked{
    .queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .key_heads = 1, .dim = 96};
  check_backward<__half>("96_cap", masked, some, at::soft_cap{5}, ++seed);
  masked.dim = 192;
  masked.value_dim = 128;
  check_backward<__half>("192_128_cap", masked, some, at::soft_cap{5}, ++seed);
}

TEST_CASE("hopper backward: whole tiles take the path without questions") {
  // More steps than stages, in both kernels; the second has keys of the past alone.
  check_backward<__nv_bfloat16>(
    "64", {.queries = 384, .query_offset = 640, .keys = 640}, at::causal{}, at::plain{}, 5);
  check_backward<__nv_bfloat16>("128",
                                {.queries = 384, .query_offset = 384, .keys = 384, .dim = 128},
                                at::causal{},
                                at::plain{},
                                6);
  check_backward<__nv_bfloat16>("256",
                                {.queries = 256, .query_offset = 128, .keys = 128, .dim = 256},
                                at::causal{},
                                at::plain{},
                                6);
}

TEST_CASE("hopper backward: heads of a group come in turn, several blocks add to a dQ") {
  sizes const s{.batch = 2,
                .queries = 130,
                .query_offset = 40,
                .keys = 150,
                .key_offset = 20,
                .heads = 4,
                .key_heads = 2};
  for (auto const* name : {"64", "64_free"}) {
    check_backward<__nv_bfloat16>(name, s, at::causal{}, at::plain{}, 7);
  }
  check_backward<__nv_bfloat16>("128",
                                {.queries = 70,
                                 .query_offset = 40,
                                 .keys = 50,
                                 .key_offset = 20,
                                 .heads = 6,
                                 .key_heads = 2,
                                 .dim = 128},
                                at::causal{},
                                at::plain{},
                                7);
  for (auto const* name : {"256", "256_free"}) {
    check_backward<__nv_bfloat16>(name,
                                  {.queries = 70,
                                   .query_offset = 40,
                                   .keys = 80,
                                   .key_offset = 20,
                                   .heads = 4,
                                   .key_heads = 2,
                                   .dim = 256},
                                  at::causal{},
                                  at::plain{},
                                  7);
  }
}

TEST_CASE("hopper backward: parts of a group, and sections of heads, give the same numbers") {
  sizes const s{.batch = 2,
                .queries = 130,
                .query_offset = 40,
                .keys = 150,
                .key_offset = 20,
                .heads = 6,
                .key_heads = 2};
  auto& m = the_machine();
  for (auto const& [name, dim] :
       {std::pair{"64", 64}, std::pair{"64_free", 64}, std::pair{"256", 256}}) {
    for (auto const& [parts, section] : {std::pair{2, 0}, std::pair{3, 1}, std::pair{1, 3}}) {
      m.parts = parts;
      m.section = section;
      auto of = s;
      of.dim = dim;
      check_backward<__nv_bfloat16>(name, of, at::causal{}, at::plain{}, 7);
    }
  }
  m.parts = 1;
  m.section = 0;
}

TEST_CASE("hopper backward: ranges of steps, of which a tile sees some, give the same numbers") {
  table<std::int32_t> const first(the_machine().where, three_documents());
  auto& m = the_machine();
  auto const all = m.cut_tiles;
  for (auto const& [parts, cut, cut_tiles] :
       {std::tuple{1, 1, all}, {2, 2, all}, {1, 3, all}, {1, 1, 1}, {1, 2, 2}}) {
    m.parts = parts;
    m.cut = cut;
    m.cut_tiles = cut_tiles;
    for (auto const* name : {"64", "64_free"}) { // the first step sees no key
      check_backward<__nv_bfloat16>(
        name,
        {.queries = 430, .keys = 302, .key_offset = 128, .heads = 2, .key_heads = 1},
        at::causal{},
        at::plain{},
        7);
    }
    check_backward<__nv_bfloat16>("128_document",
                                  {.queries = 200, .keys = 200, .heads = 2, .dim = 128},
                                  at::both<at::causal, at::document>{{}, {first.data(), 0}},
                                  at::plain{},
                                  21);
    check_backward<__nv_bfloat16>( // heads see other steps, and a tile no last ones
      "64_heads",
      {.queries = 700, .keys = 700, .heads = 2, .key_heads = 1},
      window_of_head{100},
      at::plain{},
      8);
    check_backward<__half>("64_own", // whose mask does not say which steps a tile sees
                           {.queries = 270, .query_offset = 9, .keys = 279, .heads = 2},
                           speckled{},
                           bent{},
                           11);
  }
  m.parts = 1;
  m.cut = 0;
  m.cut_tiles = all;
}

TEST_CASE("hopper backward: logits far below 0 beside the end of the keys") {
  backward_problem<__nv_bfloat16> problem(
    the_machine().where, {.queries = 70, .query_offset = 200, .keys = 140}, 7);
  push_logits_down(problem);
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  auto const call = problem.backward_call(at::causal{}, at::plain{});
  auto const result = the_machine().launch_backward("64", call);
  REQUIRE_MESSAGE(result.clean(), result.text());
  CHECK(gradient_error(problem, exactly) <= 1);
}

TEST_CASE("hopper backward: queries that see nothing get 0 and give nothing") {
  check_backward<__nv_bfloat16>("64",
                                {.queries = 20, .query_offset = 5, .keys = 30, .key_offset = 15},
                                at::causal{},
                                at::plain{},
                                8);
  check_backward<__nv_bfloat16>(
    "64", {.queries = 3, .keys = 0, .heads = 2}, at::causal{}, at::plain{}, 9);
  // Keys that nobody sees, next to some that are seen: two tiles without work of three.
  check_backward<__nv_bfloat16>(
    "64", {.queries = 20, .query_offset = 60, .keys = 300}, at::causal{}, at::plain{}, 9);
}

TEST_CASE("hopper backward: masks and scores, also a user's own") {
  auto& where = the_machine().where;
  table<std::int32_t> const first(where, three_documents());
  for (auto const& [queries, before] : {std::pair{200, 0}, std::pair{60, 140}}) {
    check_backward<__nv_bfloat16>(
      "128_document",
      {.queries = queries, .query_offset = before, .keys = 200, .heads = 2, .dim = 128},
      at::both<at::causal, at::document>{{}, {first.data(), 0}},
      at::plain{},
      21);
  }
  check_backward<__half>("128_cap",
                         {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .dim = 128},
                         at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
                         at::soft_cap{5},
                         10);
  check_backward<__half>(
    "256_cap",
    {.queries = 60, .query_offset = 140, .keys = 200, .heads = 2, .key_heads = 1, .dim = 256},
    at::both<at::sliding_window, at::document>{{70, 3}, {first.data(), 0}},
    at::soft_cap{5},
    12);
  check_backward<__half>(
    "64_own",
    {.queries = 70, .query_offset = 9, .keys = 200, .heads = 2, .key_heads = 1},
    speckled{},
    bent{},
    11);
}

namespace {

//! All gradients of one call, and the sums before dQ was rounded, by a kernel, blocks one after the
//! other and then together.
std::vector<std::vector<double>>
runs_of(char const* name, std::int64_t dim, std::int64_t value_dim = 0) {
  bool const wide = dim > 128; // four tiles of keys in any case
  std::int64_t const keys = wide ? 210 : 500;
  sizes const s{.queries = wide ? 70 : 140,
                .query_offset = keys - (wide ? 70 : 140),
                .keys = keys,
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
    static std::map<sizes, forward_answers> known;
    auto const [forward, is_new] = known.try_emplace(s);
    if (is_new) {
      forward->second = answers_of(problem, at::causal{}, at::plain{});
    }
    set_outputs(problem, forward->second);
    auto const result =
      the_machine().launch_backward(name, problem.backward_call(at::causal{}, at::plain{}), how);
    REQUIRE_MESSAGE(result.clean(), result.text());
    auto all = all_gradients(problem);
    all.insert(all.end(), the_machine().sums.begin(), the_machine().sums.end());
    seen.push_back(std::move(all));
  }
  return seen;
}

} // namespace

TEST_CASE(
  "hopper backward: where dQ has an order, that of blocks, warps and copies changes no bit") {
  auto const check = [](char const* name, std::int64_t dim, std::int64_t value_dim = 0) {
    CAPTURE(name);
    for (auto const seen = runs_of(name, dim, value_dim); auto const& one : seen) {
      CHECK(one == seen.front());
    }
  };
  check("64", 64);
  check("80", 80);
  check("128", 128);
  check("256", 256);
  check("192_128", 192, 128);
  // dK and dV are sums over the parts of a group.
  the_machine().parts = 2;
  check("64", 64);
  check("256", 256);
  check("192_128", 192, 128);
  the_machine().cut = 1;
  check("64", 64);
  check("256", 256);
  the_machine().parts = 1;
  auto const all = std::exchange(the_machine().cut_tiles, 2); // of four
  check("64", 64);
  check("256", 256);
  the_machine().cut_tiles = all;
  the_machine().cut = 0;
  for (auto const& [name, dim] : {std::pair{"80_free", 80}, std::pair{"256_free", 256}}) {
    for (int const cut : {0, 1}) { // all steps have the sums of all tiles when they are rounded
      the_machine().cut = cut;
      runs_of(name, dim);
    }
    the_machine().cut = 0;
  }
  auto const freely = runs_of("64_free", 64); // else the test would see nothing
  CHECK((freely[2] != freely[0] || freely[3] != freely[0]));
}

TEST_CASE("hopper backward: without an order dQ is as close, dK and dV have the same bits") {
  sizes const s{.queries = 140, .query_offset = 260, .keys = 400, .dim = 128};
  check_backward<__nv_bfloat16>("128_free", s, at::causal{}, at::plain{}, 16);
  auto narrow = s;
  narrow.dim = 80;
  check_backward<__nv_bfloat16>("80_free", narrow, at::causal{}, at::plain{}, 16);
  narrow.dim = 192;
  narrow.value_dim = 128;
  check_backward<__nv_bfloat16>("192_128_free", narrow, at::causal{}, at::plain{}, 16);
  std::vector<std::vector<double>> seen;
  for (auto const* name : {"128", "128_free"}) {
    backward_problem<__nv_bfloat16> problem(the_machine().where, s, 13);
    reference_of(problem, at::causal{}, at::plain{});
    auto const result =
      the_machine().launch_backward(name, problem.backward_call(at::causal{}, at::plain{}));
    REQUIRE_MESSAGE(result.clean(), result.text());
    seen.push_back(problem.key_gradient.numbers());
    seen.push_back(problem.value_gradient.numbers());
  }
  CHECK(seen[0] == seen[2]);
  CHECK(seen[1] == seen[3]);
}

TEST_CASE("hopper backward: dK and dV of chunks in reverse add up to those of the whole sequence") {
  for (auto const& [name, dim] : {std::pair{"64", 64}, std::pair{"256", 256}}) {
    sizes const whole{.queries = 230, .keys = 230, .dim = dim};
    backward_problem<__nv_bfloat16> problem(the_machine().where, whole, 14);
    auto const exactly = reference_of(problem, at::causal{}, at::plain{});
    for (auto const& [begin, end] : {std::pair{133, 230}, std::pair{7, 133}, std::pair{0, 7}}) {
      auto call = problem.backward_call(at::causal{}, at::plain{});
      call.p.query_offset = begin;
      call.p.query_length = end - begin;
      call.p.key_length = end;
      for (auto* view : {&call.t.query, &call.t.output, &call.t.output_gradient}) {
        view->data += begin * view->length_stride;
        view->length = end - begin;
      }
      call.t.query_gradient.data += begin * call.t.query_gradient.length_stride;
      call.t.query_gradient.length = end - begin;
      call.t.log_sum_exp.data += begin;
      call.mean.data += begin;
      for (auto* view : {&call.t.key, &call.t.value}) {
        view->length = end;
      }
      auto const result = the_machine().launch_backward(name, call);
      REQUIRE_MESSAGE(result.clean(), result.text());
    }
    CHECK(gradient_error(problem, exactly) <= 1);
  }
}

TEST_CASE("hopper backward: dQ of slices of the keys adds up") {
  sizes const whole{.queries = 40, .query_offset = 80, .keys = 120};
  backward_problem<__nv_bfloat16> problem(the_machine().where, whole, 15);
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  for (auto const& [begin, end] : {std::pair{0, 0}, std::pair{0, 77}, std::pair{77, 120}}) {
    auto call = problem.backward_call(at::causal{}, at::plain{});
    call.p.key_offset = begin;
    call.p.key_length = end - begin;
    call.p.from = end == 0 ? at::carry::none : at::carry::in; // the first slice holds no key
    for (auto* view : {&call.t.key, &call.t.value}) {
      view->data += begin * view->length_stride;
      view->length = end - begin;
    }
    call.t.key_gradient.data += begin * call.t.key_gradient.length_stride;
    call.t.value_gradient.data += begin * call.t.value_gradient.length_stride;
    auto const result = the_machine().launch_backward("64", call);
    REQUIRE_MESSAGE(result.clean(), result.text());
  }
  CHECK(gradient_error(problem, exactly) <= 1);
}
