// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage as the library knows it, where several places run its passes.

#include <pipe/flow/shape.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <vector>

namespace gpt {

namespace pp = pipelining;

//! For each way that microbatches take through the devices the stage that is there.
template <class Stage>
struct copies_of {
  static constexpr bool takes_chunks = true;
  pp::shape extents;
  std::vector<Stage*> of; //!< by route; null in another process

  void forward(pp::context const& where, pp::input x, pp::output y) {
    at(where).forward(where, x, y);
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    at(where).backward(where, dy, dx);
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    at(where).backward_input(where, dy, dx);
  }
  void backward_weight(pp::context const& where) { at(where).backward_weight(where); }

protected:
  [[nodiscard]] std::size_t route(pp::context const& where) const {
    return static_cast<std::size_t>(extents.route_of(where.microbatch));
  }
  [[nodiscard]] Stage& at(pp::context const& where) const { return *of[route(where)]; }
};

} // namespace gpt
