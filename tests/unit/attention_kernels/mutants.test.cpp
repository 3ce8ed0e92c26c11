// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every planted mistake must be seen: by a finding of the interpreter or by a wrong number.
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace {

using namespace kernel_tests;
using element = __nv_bfloat16;

constexpr std::size_t forward_shared = (128 + 3 * 64) * 64 * 2 + 32;
constexpr std::size_t compact_shared = (128 + 2 * 64) * 64 * 2 + 32;
constexpr unsigned backward_shared = (2 * 128 + 3 * 64) * 64 * 2 + 128 * 64 * 2 + 2 * 64 * 8 + 96;

//! What is wrong with a launch, or nothing.
std::string finding(ptx::result const& r) {
  if (!r.clean()) {
    return r.reports.front().text;
  }
  return r.counts.bank_conflicts != 0 ? "matrix loads collide in banks" : "";
}

std::string forward_verdict(ptx::memory& where,
                            ptx::module& code,
                            char const* name,
                            std::size_t shared,
                            sizes const& s,
                            ptx::options how) {
  forward_problem<element> problem(where, s, 21);
  auto const r = ptx::launch_with(code,
                                  name,
                                  {forward_blocks(problem.p, 128)},
                                  {128},
                                  shared,
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

//! @param seen sums of dQ of the same call before this one, if any
std::string backward_verdict(ptx::memory& where,
                             ptx::module& code,
                             sizes const& s,
                             ptx::options how,
                             std::vector<float>& seen) {
  backward_problem<element> problem(where, s, 22);
  if (s.query_offset > s.keys) { // all keys are seen: what lies next to them must not be
    push_logits_down(problem);
  }
  auto const exactly = reference_of(problem, at::causal{}, at::plain{});
  std::vector<float> sums;
  auto const result = launch_backward(where,
                                      code,
                                      at::kernel_family::portable,
                                      "64",
                                      {128, 128, backward_shared},
                                      problem.backward_call(at::causal{}, at::plain{}),
                                      how,
                                      sums);
  if (auto const found = finding(result); !found.empty()) {
    return found;
  }
  auto const before = std::exchange(seen, sums);
  if (!before.empty() && before != sums) {
    return "dQ depends on the order of blocks";
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
    {.queries = 70, .query_offset = 200, .keys = 140},
    {.queries = 3, .keys = 0},
  };
  ptx::memory where;
  ptx::module code(text_of(file), where);
  for (auto const& s : small) {
    std::vector<float> seen;
    for (auto const order : {ptx::order::forward, ptx::order::reverse}) {
      ptx::options const how{.warps = order};
      for (auto const& [name, shared] : {std::pair{"forward_64", forward_shared},
                                         std::pair{"forward_64_compact", compact_shared}}) {
        auto const found = forward_verdict(where, code, name, shared, s, how);
        if (!found.empty()) {
          return std::string(name) + ": " + found;
        }
      }
      if (s.keys != 0) {
        if (auto const found = backward_verdict(where, code, s, how, seen); !found.empty()) {
          return "backward: " + found;
        }
      }
    }
  }
  // Several tiles of keys add to a dQ, in more steps than there are places, side by side.
  std::vector<float> seen;
  for (unsigned const seed : {1u, 2u}) {
    ptx::options const how{.warps = ptx::order::shuffled, .seed = seed, .together = true};
    sizes const s{.queries = 330, .query_offset = 100, .keys = 390};
    if (auto const found = backward_verdict(where, code, s, how, seen); !found.empty()) {
      return "backward: " + found;
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
  CHECK(seen >= 45);
}
