// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/parameters.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

#include "problem.hpp"

using namespace attention_tests;

namespace {

//! The sentence that a forward call is refused with, or nothing.
template <class Change>
std::string refusal(Change change) {
  problem<float> p({.queries = 4, .query_offset = 0, .keys = 4, .heads = 4, .key_heads = 2});
  auto parameters = p.chunk(0, 4, 4);
  auto views = p.forward_views(0, 4, 4);
  change(parameters, views);
  try {
    at::forward(parameters, views);
  } catch (std::invalid_argument const& error) {
    for (auto const x : p.lse) {
      REQUIRE(x == 0); // refused before any work
    }
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("wrong shapes are refused with one sentence, before any work") {
  CHECK(refusal([](auto&, auto&) {}).empty());
  CHECK(
    refusal([](auto& p, auto&) { p.key_heads = 3; }) ==
    "attention: 4 heads cannot share 3 key heads evenly; heads must be a multiple of key heads");
  CHECK(refusal([](auto& p, auto&) { p.query_length = 5; }) ==
        "attention: query is [1, 4, 4, 4], but the parameters ask for [batch, length, heads, dim] "
        "= [1, 5, 4, 4]");
  CHECK(refusal([](auto&, auto& t) { t.value.data = nullptr; }) ==
        "attention: value has no data (null pointer)");
  CHECK(refusal([](auto&, auto& t) { t.key.head_stride = 2; }) ==
        "attention: key has head stride 2, so heads of dim 4 would overlap");
  CHECK(refusal([](auto&, auto& t) { t.log_sum_exp.heads = 2; }) ==
        "attention: log-sum-exp is [1, 2, 4], but the parameters ask for [batch, heads, query "
        "length] = [1, 4, 4]");
  CHECK(refusal([](auto& p, auto&) { p.query_offset = -1; }) ==
        "attention: query offset is -1, but must be at least 0");
  CHECK(refusal([](auto& p, auto&) { p.head_dim = 0; }) ==
        "attention: head dim is 0, but must be at least 1");
  CHECK(refusal([](auto& p, auto&) { p.value_dim = -1; }) ==
        "attention: value dim is -1, but must be at least 0");
  CHECK(refusal([](auto& p, auto&) { p.value_dim = 5; }) ==
        "attention: value is [1, 4, 2, 4], but the parameters ask for [batch, length, heads, dim] "
        "= [1, 4, 2, 5]");
  CHECK(refusal([](auto& p, auto&) { p.query_offset = 0x7ffffffc; }) ==
        "attention: positions must stay below 2147483647");
  CHECK(refusal([](auto& p, auto&) { p.scale = std::nan(""); }).find("; got nan") !=
        std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.scale = -0.5; }) ==
        "attention: scale must be a finite number above 0, or 0 for 1 / sqrt(head dim); got "
        "-0.500000");
}

TEST_CASE("backward checks its gradients too") {
  problem<float> p({.queries = 4, .query_offset = 0, .keys = 4});
  auto views = p.backward_views(0, 4, 4);
  views.key_gradient.length = 3;
  CHECK_THROWS_WITH_AS(at::backward(p.chunk(0, 4, 4), views),
                       "attention: key gradient is [1, 3, 1, 4], but the parameters ask for "
                       "[batch, length, heads, dim] = [1, 4, 1, 4]",
                       std::invalid_argument);
}

TEST_CASE("scale stands for one over the root of the head dim unless it is given") {
  at::parameters p;
  p.head_dim = 16;
  CHECK(p.effective_scale() == 0.25);
  p.value_dim = 64; // has no part in it
  CHECK(p.effective_scale() == 0.25);
  p.scale = 3;
  CHECK(p.effective_scale() == 3);
}
