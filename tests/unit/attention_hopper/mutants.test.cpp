// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Kernels broken on purpose (mutants.py) have to be found out.
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "hopper_problem.hpp"

namespace {

using namespace hopper_tests;

//! Why the kernel is wrong; empty where nothing was found.
std::string verdict(std::string const& text) {
  struct trial {
    sizes s;
    unsigned blocks;
    ptx::order warps;
  };
  // More tiles than stages, a ragged last one that the mask does not touch, two pieces of work; and
  // heads of a group, ragged queries, the edge of the mask, blocks with unequal work.
  sizes const deep{.queries = 150, .query_offset = 1000, .keys = 700};
  sizes const wide{.batch = 2,
                   .queries = 130,
                   .query_offset = 40,
                   .keys = 150,
                   .key_offset = 20,
                   .heads = 4,
                   .key_heads = 2};
  try {
    machine m(text);
    for (auto const& t : {trial{deep, 1, ptx::order::forward},
                          trial{wide, 3, ptx::order::reverse},
                          trial{wide, 3, ptx::order::shuffled}}) {
      auto const got = forward_outcome<__nv_bfloat16>(m,
                                                      "forward_64",
                                                      {128, 4},
                                                      t.s,
                                                      at::causal{},
                                                      at::plain{},
                                                      1,
                                                      t.blocks,
                                                      {.warps = t.warps, .seed = 1});
      if (!got.result.clean()) {
        return got.result.reports.front().text;
      }
      if (!got.right()) {
        return "numbers: O is " + std::to_string(got.output) +
               " times as far off as allowed, the log-sum-exp " + std::to_string(got.lse);
      }
    }
  } catch (ptx::unsupported const& e) {
    return e.what();
  }
  return "";
}

} // namespace

TEST_CASE("hopper forward: every broken kernel is found out, the whole one is not") {
  CHECK(verdict(text_of("kernels.sm_90a")) == "");
  std::ifstream list(std::string(PIPELINING_PTX_DIRECTORY) + "/mutants.txt");
  std::size_t count = 0;
  for (std::string name; std::getline(list, name); ++count) {
    auto const why = verdict(text_of("mutants/" + name));
    std::printf("%-44s %s\n", name.c_str(), why.substr(0, 150).c_str());
    CHECK_MESSAGE(why != "", "the mutant ", name, " is not found out");
  }
  CHECK(count >= 15);
}
