// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every planted mistake must be seen: by a finding of the interpreter or by a wrong number.
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "problem.hpp"

namespace {

using namespace kernel_tests;
using element = __nv_bfloat16;

constexpr std::size_t forward_shared = (128 + 3 * 64) * 64 * 2;
constexpr std::size_t query_gradient_shared = (2 * 128 + 4 * 32) * 64 * 2 + 128 * 4;
constexpr std::size_t key_gradient_shared = (2 * 128 + 4 * 32) * 64 * 2 + 32 * 16;

//! What is wrong with a launch, or nothing.
std::string finding(ptx::result const& r) {
  if (!r.clean()) {
    return r.reports.front().text;
  }
  return r.counts.bank_conflicts != 0 ? "matrix loads collide in banks" : "";
}

std::string
forward_verdict(ptx::memory& where, ptx::module& code, sizes const& s, ptx::options how) {
  forward_problem<element> problem(where, s, 21);
  auto const r = ptx::launch_with(code,
                                  "forward_64",
                                  {forward_blocks(problem.p, 128)},
                                  {128},
                                  forward_shared,
                                  how,
                                  problem.call(at::causal{}, at::plain{}));
  if (auto const found = finding(r); !found.empty()) {
    return found;
  }
  auto const errors = errors_of(problem, at::causal{});
  if (!(errors.output <= 1)) {
    return "wrong numbers in O";
  }
  return errors.lse <= 1 ? "" : "wrong log-sum-exp";
}

std::string
backward_verdict(ptx::memory& where, ptx::module& code, sizes const& s, ptx::options how) {
  backward_problem<element> problem(where, s, 22);
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  auto const call = problem.backward_call(at::causal{}, at::plain{});
  auto const first = ptx::launch_with(code,
                                      "query_gradient_64",
                                      {forward_blocks(problem.p, 128)},
                                      {128},
                                      query_gradient_shared,
                                      how,
                                      call);
  if (auto const found = finding(first); !found.empty()) {
    return found;
  }
  auto const key_blocks = static_cast<unsigned>((s.keys + 127) / 128 * s.key_heads * s.batch);
  auto const second =
    ptx::launch_with(code, "key_gradient_64", {key_blocks}, {128}, key_gradient_shared, how, call);
  if (auto const found = finding(second); !found.empty()) {
    return found;
  }
  auto const wrong = [](auto const& mine, exact const& other) {
    return !(relative_error(mine.numbers(), other.numbers) <= 2 * rounding<element>);
  };
  return wrong(problem.query_gradient, exactly.query)   ? "wrong numbers in dQ"
         : wrong(problem.key_gradient, exactly.key)     ? "wrong numbers in dK"
         : wrong(problem.value_gradient, exactly.value) ? "wrong numbers in dV"
                                                        : "";
}

//! The first thing that is wrong with a build of the kernels, or nothing.
std::string verdict(std::string const& file) {
  sizes const small[] = {
    {.queries = 70, .query_offset = 61, .keys = 131, .heads = 2, .key_heads = 1},
    {.queries = 40, .query_offset = 90, .keys = 70, .heads = 4, .key_heads = 2},
    {.queries = 128, .query_offset = 90, .keys = 70}, // whole in queries, ragged in keys
    {.queries = 3, .keys = 0},
  };
  ptx::memory where;
  ptx::module code(text_of(file), where);
  for (auto const order : {ptx::order::forward, ptx::order::reverse}) {
    for (auto const& s : small) {
      ptx::options const how{.warps = order};
      if (auto const found = forward_verdict(where, code, s, how); !found.empty()) {
        return "forward: " + found;
      }
      if (s.keys != 0) {
        if (auto const found = backward_verdict(where, code, s, how); !found.empty()) {
          return "backward: " + found;
        }
      }
    }
  }
  return "";
}

} // namespace

TEST_CASE("mutants: the kernels as they are pass everything that mistakes are held to") {
  CHECK(verdict("mutants/none") == "");
}

TEST_CASE("mutants: every planted mistake is seen") {
  std::istringstream names(PIPELINING_MUTANTS);
  std::string name;
  int seen = 0;
  while (std::getline(names, name, ' ')) {
    auto const found = verdict("mutants/" + name);
    CHECK_MESSAGE(!found.empty(), name, " is not seen");
    std::string const who = found.substr(0, 180);
    MESSAGE(name, ": ", who);
    seen += found.empty() ? 0 : 1;
  }
  CHECK(seen >= 15);
}
