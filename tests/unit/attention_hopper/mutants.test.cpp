// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Kernels broken on purpose (mutants.py) have to be found out.
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hopper_problem.hpp"
#include "tests/unit/attention_kernels/functors.hpp"

namespace {

using namespace hopper_tests;

constexpr std::int32_t no_window = 1 << 20;

//! Keys and head dim of a trial; the answers of those that are alike are found once.
using which_trial = std::pair<std::int64_t, std::int64_t>;

//! A call on one kernel, and what is wrong with its numbers, or nothing.
struct trial {
  sizes s;
  unsigned blocks;
  ptx::options how;
  std::int32_t cut = 0;            // steps of a piece, in backward
  std::int32_t before = no_window; // keys that a head sees
  std::int32_t cut_tiles = at::detail::query_sums{}.cut_tiles;
};

std::string off(char const* what, double error) {
  return "numbers: " + std::string(what) + " is " + std::to_string(error) +
         " times as far off as allowed";
}

std::string finding(ptx::result const& result) {
  return result.clean() ? "" : result.reports.front().text;
}

std::string of_forward(machine& m, trial const& t) {
  m.section = t.blocks > 1 ? 3 : 0;
  if (t.blocks > 1) { // to the bit
    forward_problem<__nv_bfloat16> one(m.where, {.queries = 1, .keys = 1, .dim = t.s.dim}, 20);
    auto const result = m.launch("forward_" + std::to_string(t.s.dim),
                                 t.s.dim == 64 ? shape{128, 4, 3} : shape{80, 2},
                                 one.call(at::causal{}, at::plain{}),
                                 1,
                                 {});
    if (!result.clean() || one.output.numbers() != one.value.numbers()) {
      return result.clean() ? "numbers: O is not the value of the only key" : finding(result);
    }
  }
  forward_problem<__nv_bfloat16> problem(m.where, t.s, 1);
  auto const tile = t.s.dim == 64 ? shape{128, 4, 3} : shape{80, 2};
  spread_logits(problem, tile.keys);
  auto const call = problem.call(at::causal{}, at::plain{});
  auto const result = m.launch("forward_" + std::to_string(t.s.dim), tile, call, t.blocks, t.how);
  if (!result.clean()) {
    return finding(result);
  }
  static std::map<which_trial, forward_answers> known;
  auto const [answers, is_new] = known.try_emplace({t.s.keys, t.s.dim});
  if (is_new) {
    answers->second = answers_of(problem, at::causal{}, at::plain{});
  }
  auto const got = errors_of(problem, answers->second);
  return !(got.output <= 1) ? off("O", got.output)
         : !(got.lse <= 1)  ? off("the log-sum-exp", got.lse)
         : m.is_count_left  ? "the count of pieces is not 0 again"
                            : "";
}

//! Sets O and the log-sum-exp as reference_of does; pushes logits down in one of the trials.
template <class Mask>
gradients const&
prepare(backward_problem<__nv_bfloat16>& problem, trial const& t, Mask const& mask) {
  static std::map<which_trial, backward_answers> known;
  if (t.blocks == 1) {
    push_logits_down(problem);
  }
  return known_reference_of(known, {t.s.keys, t.s.dim}, problem, mask, at::plain{});
}

//! @param seen sums of the trial before this one
//! @param name of the kernel
//! @param mask that it was compiled for
template <class Mask>
std::string of_backward(
  machine& m, std::string const& name, trial const& t, Mask const& mask, std::vector<float>& seen) {
  m.parts = t.blocks > 1 && t.how.warps == ptx::order::shuffled ? 2 : 1;
  m.section = t.blocks > 1 ? 3 : 0;
  m.staying = std::max(3u, t.blocks);
  m.cut = t.cut;
  m.cut_tiles = t.cut_tiles;
  backward_problem<__nv_bfloat16> problem(m.where, t.s, 1);
  auto exactly = prepare(problem, t, mask);
  if (t.blocks > 1) { // adds to a dQ
    problem.p.from = at::carry::in;
    problem.query_gradient.set(problem.query.numbers());
    auto const before = problem.query_gradient.numbers();
    std::transform(before.begin(),
                   before.end(),
                   exactly.query.numbers.begin(),
                   exactly.query.numbers.begin(),
                   std::plus<>{});
  }
  auto const result = m.launch_backward(name, problem.backward_call(mask, at::plain{}), t.how);
  if (!result.clean()) {
    return finding(result);
  }
  auto const of_query = gradient_error<__nv_bfloat16>(problem.query_gradient, exactly.query);
  auto const of_key = gradient_error<__nv_bfloat16>(problem.key_gradient, exactly.key);
  auto const of_value = gradient_error<__nv_bfloat16>(problem.value_gradient, exactly.value);
  auto sums = m.sums;
  if (m.parts > 1) { // which add to dK and dV in an order
    for (auto const* of : {&problem.key_gradient, &problem.value_gradient}) {
      for (auto const x : of->numbers()) {
        sums.push_back(static_cast<float>(x));
      }
    }
  }
  if (name.ends_with("_free")) {
    sums.clear(); // any order will do
  }
  auto const before = std::exchange(seen, std::move(sums));
  return !(of_query <= 1)   ? off("dQ", of_query)
         : !(of_key <= 1)   ? off("dK", of_key)
         : !(of_value <= 1) ? off("dV", of_value)
         : before.size() == seen.size() && before != seen
           ? "bits: a gradient depends on the order of blocks"
           : "";
}

//! Why a kernel is wrong; empty where nothing was found.
//! @param name that backward has
std::string verdict(std::string const& text,
                    std::string const& kernel,
                    std::string const& name,
                    std::int64_t dim) {
  // More tiles than stages, a ragged last one that the mask does not touch, two pieces of work; and
  // heads of a group, ragged queries, the edge of the mask, blocks with unequal work.
  sizes const deep = dim == 64
                       ? sizes{.queries = 200, .query_offset = 1000, .keys = 700}
                       : sizes{.queries = 140, .query_offset = 1000, .keys = 230, .dim = dim};
  sizes const wide{.batch = 2,
                   .queries = kernel == "FORWARD" && dim == 64 ? 200 : 130, // two tiles, or steps
                   .query_offset = 40,
                   .keys = 150,
                   .key_offset = 20,
                   .heads = 4,
                   .key_heads = 2,
                   .dim = dim};
  // Pieces without a step before others and after them, queries that see nothing, heads that see
  // other steps than their neighbours.
  sizes const stairs{.queries = 430, .keys = 302, .key_offset = 128, .heads = 2, .key_heads = 1};
  // Steps whose first tile of keys is not that of the call, and whose last one rounds them.
  sizes const late{
    .queries = 130, .query_offset = 300, .keys = 430, .heads = 2, .key_heads = 1, .dim = 80};
  std::vector<float> seen;
  auto const run = [&](machine& m, trial const& t) {
    return kernel == "FORWARD" ? of_forward(m, t)
           : dim == 64         ? of_backward(m, name, t, window_of_head{t.before}, seen)
           : dim == 80         ? of_backward(m, name, t, at::sliding_window{t.before, 0}, seen)
                               : of_backward(m, name, t, at::causal{}, seen);
  };
  ptx::options const shuffled{.warps = ptx::order::shuffled, .seed = 1};
  auto together = shuffled;
  together.together = true;
  std::vector<trial> trials{{deep, 1, {.warps = ptx::order::forward, .seed = 1}},
                            {wide, 3, {.warps = ptx::order::reverse, .seed = 1}},
                            {wide, 3, shuffled}};
  if (kernel != "FORWARD") { // several tiles of keys add to a dQ
    trials.insert(trials.begin() + 1, {deep, 1, together});
    // Where blocks run together, turns are close.
    trials.push_back({wide, 6, shuffled});
    if (dim != 256) { // who adds first to a dQ
      trials.push_back({wide, 3, together});
    }
    if (dim == 64) {
      // Parts in another order, before what takes longest; the other head dims share that code.
      trials.insert(trials.begin() + 3,
                    {{stairs, 3, together, 1, 70},
                     {stairs, 3, {.warps = ptx::order::reverse, .seed = 1}, 1, 70},
                     {stairs, 3, shuffled, 1, 70, 1}});
    } else if (dim == 80) {
      trials.push_back({late, 3, together, 0, 70});
    }
  }
  try {
    machine m(text);
    for (auto& t : trials) {
      t.how.stops = true;
      if (auto const why = run(m, t); why != "") {
        return why;
      }
    }
  } catch (ptx::unsupported const& e) {
    return e.what();
  }
  return "";
}

} // namespace

TEST_CASE("hopper mutants: every broken kernel is found out, the whole ones are not") {
  std::ifstream list(std::string(PIPELINING_PTX_DIRECTORY) + "/mutants.txt");
  std::map<std::string, int> count;
  std::int64_t dim = 0;
  for (std::string kernel, name; list >> kernel >> dim >> name;) {
    ++count[kernel + std::to_string(dim)];
    auto const of_kernel = std::to_string(dim) + (kernel == "FREE" ? "_free" : "");
    auto const why = verdict(text_of("mutants/" + name), kernel, of_kernel, dim);
    std::printf("%-44s %s\n", name.c_str(), why.substr(0, 150).c_str());
    if (name.starts_with("whole_")) {
      CHECK(why == "");
    } else {
      CHECK_MESSAGE(why != "", "the mutant ", name, " is not found out");
    }
  }
  CHECK(count.size() == 5);
  for (auto const& of_kernel : count) {
    CHECK_MESSAGE(of_kernel.second >= 5, of_kernel.first);
  }
}
