// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Graphs of ggml whose ends lie in memory of others, such as slots of a plan.

#include <cstddef>
#include <cstdint>
#include <ggml-cpu.h>
#include <ggml.h>
#include <memory>
#include <stdexcept>
#include <vector>

namespace example {

//! A graph that is made once and run often, on the calling thread.
class graph {
public:
  graph() : memory_(ggml_init({std::size_t{1} << 17, nullptr, false}), ggml_free) {
    nodes_ = ggml_new_graph_custom(in(), 16, false);
  }
  ggml_context* in() const { return memory_.get(); }
  //! A matrix that lies there.
  ggml_tensor* at(float const* where, int width, int height) const {
    ggml_set_no_alloc(in(), true);
    ggml_tensor* const leaf = ggml_new_tensor_2d(in(), GGML_TYPE_F32, width, height);
    ggml_set_no_alloc(in(), false);
    leaf->data = const_cast<float*>(where);
    return leaf;
  }
  //! Has the graph leave a node there.
  ggml_tensor* end(ggml_tensor* node, float* where) const {
    node->data = where;
    ggml_build_forward_expand(nodes_, node);
    return node;
  }
  void run() {
    ggml_cplan plan = ggml_graph_plan(nodes_, 1, nullptr);
    work_.resize(plan.work_size);
    plan.work_data = work_.data();
    if (ggml_graph_compute(nodes_, &plan) != GGML_STATUS_SUCCESS)
      throw std::runtime_error("ggml cannot run a graph");
  }

private:
  std::unique_ptr<ggml_context, decltype(&ggml_free)> memory_;
  ggml_cgraph* nodes_;
  std::vector<std::uint8_t> work_{};
};

} // namespace example
