// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches of the kernels for Hopper in the PTX interpreter, held against double.

#include <pipe/attention/hopper/tensor_map.cuh>
#include <pipe/attention/key_splits.hpp>

#include <cstring>
#include <string>
#include <tests/support/attention_reference.hpp>
#include <utility>
#include <vector>

#include "simulators/ptx/tensor_map.hpp"
#include "tests/unit/attention_kernels/problem.hpp"

namespace hopper_tests {

using namespace kernel_tests;

//! The four tensor maps, laid out as hopper_forward_maps; that header is for nvcc alone.
struct maps {
  CUtensorMap query, key, value, output;
};

//! The tensor maps of backward, laid out as hopper_backward_maps.
struct backward_maps {
  CUtensorMap key, value, query, output_gradient;
};

//! What the driver would make of a tensor.
template <class Element>
CUtensorMap encoded(at::tensor_view<Element> const& view, std::uint32_t rows) {
  auto const tensor = at::detail::describe_tensor(view, rows);
  ptx::tile_shape shape;
  shape.rank = at::detail::tiled_tensor::rank;
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

//! In which order blocks take pieces, laid out as detail::piece_order.
struct piece_order {
  std::uint32_t* taken;
  std::int32_t heads;
};

//! Tile sizes, as hopper_forward_shape has them.
struct shape {
  int keys, stages, consumers = 2;
  unsigned threads() const { return static_cast<unsigned>(128 * (1 + consumers)); }
  //! Of a call: rows lie whole panels apart.
  unsigned shared(at::parameters const& p) const {
    auto const row = [](std::int64_t dim) { return (dim + 63) / 64 * 128; };
    auto const output = 64 * consumers * row(p.dim_of_values());
    auto const rest = (64 * consumers + stages * keys) * row(p.head_dim) +
                      stages * keys * row(p.dim_of_values()) + 8 * (3 + 4 * stages) + 4 * stages +
                      4 * 10;
    // Outputs of whole panels have a place of their own where there is room.
    bool const apart = p.dim_of_values() % 64 == 0 && rest + output <= 227 * 1024;
    return static_cast<unsigned>(apart ? rest + output : rest);
  }
};

//! Tile sizes of backward, as hopper_backward_shape has them.
struct backward_shape {
  static int keys(std::int64_t dim) { return dim > 128 ? 64 : 128; }
  static int step(std::int64_t dim) { return dim == 64 ? 128 : 64; }
  static unsigned shared(at::parameters const& p) {
    auto const dim = p.head_dim;
    int const stages = dim == 256 ? 2 : 3;
    // Bytes of a query and a dO, or of a key and a value: whole panels.
    auto const rows = (dim + 63) / 64 * 128 + (p.dim_of_values() + 63) / 64 * 128;
    int const gradients = dim > 128 ? 2 : 1; // next to them the weights
    auto const of_step = step(dim) * rows + 2 * step(dim) * 4;
    return static_cast<unsigned>(keys(dim) * rows + stages * of_step +
                                 2 * gradients * keys(dim) * step(dim) * 2 + 8 * (3 + 3 * stages) +
                                 20 * stages + 2 * 40);
  }
};

//! Launches of one kernel module.
struct machine {
  explicit machine(std::string const& text) : code(text, where) {}
  ptx::memory where;
  ptx::module code;
  std::int32_t section = 0;   // heads that are worked on together; 0: all
  bool is_count_left = false; // of pieces, after the last forward
  std::int32_t parts = 1;     // of the heads of a group, in backward
  std::int32_t cut = 0;       // steps of a piece of work there; 0: all
  std::int32_t cut_tiles = at::detail::query_sums{}.cut_tiles;
  unsigned staying = 3;    // blocks of backward
  std::vector<float> sums; // of dQ, after the last backward: it rounds away in which order they are

  //! Blocks take pieces one by one; where `blocks` is 0 there is one for each piece.
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
    auto const heads = static_cast<std::int32_t>(call.p.batch * call.p.heads);
    auto const queries = 64 * tile.consumers;
    auto const pieces =
      (static_cast<std::int32_t>(call.p.query_length) + queries - 1) / queries * heads;
    std::uint32_t taken = 0;
    where.add(&taken, sizeof taken, true, "the count of pieces");
    piece_order order{blocks == 0 ? nullptr : &taken, section == 0 ? heads : section};
    void* arguments[] = {&all, &argument, &order, splits};
    auto result = ptx::launch(code,
                              name,
                              {blocks == 0 ? static_cast<unsigned>(pieces) : blocks},
                              {tile.threads()},
                              tile.shared(call.p),
                              arguments,
                              how);
    where.remove(&taken);
    is_count_left = taken != 0;
    return result;
  }

  template <class Call>
  ptx::result
  launch_backward(std::string const& name, Call const& call, ptx::options const& how = {}) {
    auto const& t = call.t;
    auto const dim = call.p.head_dim;
    auto const step = static_cast<std::uint32_t>(backward_shape::step(dim));
    backward_maps all{encoded(t.key, 64),
                      encoded(t.value, 64),
                      encoded(t.query, step),
                      encoded(t.output_gradient, step)};
    return kernel_tests::launch_backward(
      where,
      code,
      at::kernel_family::hopper,
      name,
      {backward_shape::keys(dim), 384, backward_shape::shared(call.p)},
      call,
      how,
      sums,
      &all,
      {parts, section, cut, cut_tiles, staying});
  }
};

//! What a launch did: its reports, and how far its numbers are from the double reference.
struct outcome {
  ptx::result result;
  double output = 0; //!< largest error over the error allowed
  double lse = 0;
  bool is_count_left = false;
  bool right() const { return !is_count_left && result.clean() && output <= 1 && lse <= 1; }
};

//! Lets the logits of tiles differ: from one visited tile to the next, last first, those of some
//! rows grow and those of others fall, by less and by far more than a base of the softmax follows.
template <class Element>
void spread_logits(forward_problem<Element>& problem, std::int64_t keys_of_tile) {
  auto const set = [](tensor<Element>& of, auto const& number) {
    auto numbers = of.numbers();
    auto const dim = static_cast<std::size_t>(of.view.dim);
    auto const heads = static_cast<std::size_t>(of.view.heads);
    auto const length = static_cast<std::size_t>(of.view.length);
    for (std::size_t n = 0; n < numbers.size(); n += dim) {
      numbers[n] = number(static_cast<std::int64_t>(n / dim / heads % length));
    }
    of.set(numbers);
  };
  // Of rows in turn; rows of every other warp are alike.
  double const share[] = {1, -1, 0, 1.0 / 8};
  set(problem.query, [&](std::int64_t row) {
    return std::sqrt(static_cast<double>(problem.p.head_dim)) * share[row / 16 % 2 * (row % 4)];
  });
  double const level[] = {-60, -98, -94, 40, 20, 90}; // of tiles, in the order of visits
  auto const tiles = (problem.p.key_length + keys_of_tile - 1) / keys_of_tile;
  set(problem.key, [&](std::int64_t key) { return level[(tiles - 1 - key / keys_of_tile) % 6]; });
}

//! Runs one forward call and holds it against the double reference.
template <class Element, class Mask, class Score>
outcome forward_outcome(machine& m,
                        std::string const& name,
                        shape const& tile,
                        forward_problem<Element> const& problem,
                        Mask const& mask,
                        Score const& score,
                        unsigned blocks,
                        ptx::options const& how) {
  outcome out;
  out.result = m.launch(name, tile, problem.call(mask, score), blocks, how);
  out.is_count_left = m.is_count_left;
  auto const errors = errors_of(problem, mask, score);
  out.output = errors.output;
  out.lse = errors.lse;
  return out;
}

} // namespace hopper_tests
