// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches of the kernels for Hopper in the PTX interpreter, held against double.

#include <pipe/attention/hopper/tensor_map.cuh>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/reference.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "tests/simulators/ptx/tensor_map.hpp"
#include "tests/unit/attention_kernels/problem.hpp"

namespace hopper_tests {

using namespace kernel_tests;

//! The four tensor maps, laid out as hopper_forward_maps; that header is for nvcc alone.
struct maps {
  CUtensorMap query, key, value, output;
};

//! The tensor maps of backward, laid out as hopper_backward_maps.
struct backward_maps {
  CUtensorMap query_tile, output_gradient_tile, query_gradient_tile, key_step, value_step, key_tile,
    value_tile, query_step, output_gradient_step;
};

//! What the driver would make of a tensor.
template <class Element>
CUtensorMap encoded(at::tensor_view<Element> const& view, std::uint32_t rows) {
  auto const tensor = at::describe_tensor("a tensor", view, rows);
  ptx::tile_shape shape;
  shape.rank = at::tiled_tensor::rank;
  shape.element_bytes = 2;
  shape.elements = std::is_same_v<Element, __half> ? ptx::number::f16 : ptx::number::bf16;
  shape.base = tensor.base;
  shape.size = tensor.size;
  shape.stride = tensor.stride;
  shape.box = tensor.box;
  shape.swizzle_bytes = 128;
  ptx::tensor_map map;
  REQUIRE(ptx::encode_tiled(map, shape) == "");
  CUtensorMap out{};
  std::memcpy(&out, &map, sizeof map);
  return out;
}

//! Tile sizes, as hopper_forward_shape has them.
struct shape {
  int keys, stages, consumers = 2;
  unsigned threads() const { return static_cast<unsigned>(128 * (1 + consumers)); }
  unsigned shared(std::int64_t dim) const {
    return static_cast<unsigned>((64 * consumers + 2 * stages * keys) * dim * 2 +
                                 8 * (2 + 4 * stages) + 4 * stages);
  }
};

//! Rows of a step of the two backward kernels, as hopper_query_gradient_shape and
//! hopper_key_gradient_shape have them.
struct gradient_shape {
  std::uint32_t keys, queries;
  static unsigned shared(std::int64_t dim, std::uint32_t step) {
    unsigned const stages = dim * step == 128 * 128 ? 2 : 4;
    return static_cast<unsigned>(4 * 64 * dim * 2 + stages * (2 * step * dim * 2 + 8 * step) +
                                 8 * (2 + 2 * stages) + 8 * stages);
  }
};

//! Launches of one kernel module.
struct machine {
  explicit machine(std::string const& text) : code(text, where) {}
  ptx::memory where;
  ptx::module code;

  template <class Call>
  ptx::result launch(std::string const& name,
                     shape const& tile,
                     Call const& call,
                     unsigned blocks,
                     ptx::options const& how,
                     void* splits = nullptr) {
    maps all{encoded(call.t.query, 64),
             encoded(call.t.key, static_cast<std::uint32_t>(tile.keys)),
             encoded(call.t.value, static_cast<std::uint32_t>(tile.keys)),
             encoded(call.t.output, 64)};
    Call argument = call;
    void* arguments[] = {&all, &argument, splits};
    return ptx::launch(
      code, name, {blocks}, {tile.threads()}, tile.shared(call.p.head_dim), arguments, how);
  }

  //! One backward kernel.
  //! @param step rows of a step of this kernel
  template <class Call>
  ptx::result launch_gradient(std::string const& name,
                              gradient_shape const& tile,
                              std::uint32_t step,
                              Call const& call,
                              unsigned blocks,
                              ptx::options const& how) {
    auto const& t = call.t;
    backward_maps all{encoded(t.query, 64),
                      encoded(t.output_gradient, 64),
                      encoded(t.query_gradient, 64),
                      encoded(t.key, tile.keys),
                      encoded(t.value, tile.keys),
                      encoded(t.key, 64),
                      encoded(t.value, 64),
                      encoded(t.query, tile.queries),
                      encoded(t.output_gradient, tile.queries)};
    Call argument = call;
    void* arguments[] = {&all, &argument};
    auto const shared = gradient_shape::shared(call.p.head_dim, step);
    return ptx::launch(code, name, {blocks}, {384}, shared, arguments, how);
  }

  //! Both backward kernels, or the first that is not clean.
  template <class Call>
  ptx::result launch_backward(std::string const& name,
                              gradient_shape const& tile,
                              Call const& call,
                              unsigned blocks,
                              ptx::options const& how) {
    auto first = launch_gradient("query_gradient_" + name, tile, tile.keys, call, blocks, how);
    return first.clean()
             ? launch_gradient("key_gradient_" + name, tile, tile.queries, call, blocks, how)
             : first;
  }
};

//! Makes all logits about -98, whose powers are no float once the sign is turned: what a tile holds
//! beyond the last key may not count as a logit of 0.
template <class Element>
void push_logits_down(backward_problem<Element>& problem) {
  auto const set = [](tensor<Element>& of, float first) {
    auto numbers = of.numbers();
    for (std::size_t n = 0; n < numbers.size(); n += static_cast<std::size_t>(of.view.dim)) {
      numbers[n] = first;
    }
    of.set(numbers);
  };
  set(problem.query, 784);
  set(problem.key, -1); // small, since dQ sums it with weights whose roundings do not cancel
}

//! What a launch did: its reports, and how far its numbers are from the double reference.
struct outcome {
  ptx::result result;
  double output = 0; //!< largest error over the error allowed
  double lse = 0;
  bool right() const { return result.clean() && output <= 1 && lse <= 1; }
};

//! Runs one forward call and holds it against the double reference.
template <class Element, class Mask, class Score>
outcome forward_outcome(machine& m,
                        std::string const& name,
                        shape const& tile,
                        sizes const& s,
                        Mask const& mask,
                        Score const& score,
                        unsigned seed,
                        unsigned blocks,
                        ptx::options const& how) {
  forward_problem<Element> problem(m.where, s, seed);
  outcome out;
  out.result = m.launch(name, tile, problem.call(mask, score), blocks, how);
  auto const errors = errors_of(problem, mask, score);
  out.output = errors.output;
  out.lse = errors.lse;
  return out;
}

} // namespace hopper_tests
