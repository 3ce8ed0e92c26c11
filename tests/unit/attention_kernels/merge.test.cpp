// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/merge.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "problem.hpp"

namespace {

using namespace kernel_tests;
using element = __nv_bfloat16;

//! merge_call of merge.cuh, which is for nvcc alone.
struct merge_call {
  at::tensor_view<element> output;
  at::row_view<float> lse;
  at::tensor_view<element const> other_output;
  at::row_view<float const> other_lse;
};

struct state {
  tensor<element> output;
  rows lse;
  state(ptx::memory& where, std::int64_t length, std::int64_t dim, unsigned seed)
      : output(where, 2, length, 3, dim), lse(where, 2, 3, length) {
    std::mt19937 random(seed);
    output.fill(random);
    std::normal_distribution<float> normal(0, 3);
    for (auto& x : lse.memory()) {
      x = random() % 5 == 0 ? -std::numeric_limits<float>::infinity() : normal(random);
    }
    lse.mark();
  }
};

} // namespace

TEST_CASE("merge: the kernel does what the host does in double, also with empty states") {
  ptx::memory where;
  ptx::module code(text_of("merge_kernel.sm_80"), where);
  for (int const dim : {64, 256}) {
    for (int const length : {1, 7, 19}) {
      CAPTURE(dim);
      CAPTURE(length);
      state one(where, length, dim, 1);
      state other(where, length, dim, 2);
      auto output = exact_of(one.output);
      auto lse = one.lse.numbers();
      auto other_output = exact_of(other.output);
      auto other_lse = other.lse.numbers();
      at::merge(output.view(),
                at::dense_rows(lse.data(), 2, 3, length),
                other_output.view(),
                at::dense_rows<double const>(other_lse.data(), 2, 3, length));
      auto const rows_of_block = 128 / (dim / 8);
      auto const result = ptx::launch_with(
        code,
        "merge_" + std::to_string(dim),
        {static_cast<unsigned>((6 * length + rows_of_block - 1) / rows_of_block)},
        {128},
        0,
        {},
        merge_call{one.output.view, one.lse.view, other.output.view, other.lse.view});
      REQUIRE_MESSAGE(result.clean(), result.text());
      // Inputs are exact; O is rounded once, the log-sum-exp comes from float exp and log.
      CHECK(apart(one.output.numbers(), output.numbers) <=
            rounding<element> * largest(output.numbers));
      CHECK(apart(one.lse.numbers(), lse) <= 1e-5);
    }
  }
}
