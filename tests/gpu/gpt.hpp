// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the tests of the GPT on a GPU ask of the object that nvcc makes.

#include <cstdint>
#include <vector>

namespace gpt_tests {

//! @brief Numbers of one token after the other and what the functions of numbers.cuh make of them.
struct row_problem {
  std::int64_t tokens = 0, width = 0;
  std::vector<float> x{}, gain{}, dy{}; //!< [tokens, width], [width], [tokens, width]
  std::vector<std::uint8_t> text{};     //!< [tokens]
  std::vector<float> logits{};          //!< [tokens, 256]
};
struct row_answers {
  std::vector<float> normal{}, scaled{}, rounded{}, norm_dx{}, gain_gradient{};
  std::vector<float> gelu{}, gelu_dx{};
  std::vector<float> embedded{}, byte_gradient{}, position_gradient{};
  std::vector<float> losses{}, logits_gradient{};
};
//! @param share of the losses, whose gradient is asked for
row_answers rows_on_gpu(row_problem const& of, float share);

//! @brief The three products of a linear layer: y [tokens, outputs], dx [tokens, inputs] added to
//! ones, dw [inputs, outputs] added to ones.
struct product_problem {
  std::int64_t tokens = 0, inputs = 0, outputs = 0;
  std::vector<float> x{}, weight{}, dy{};
  bool bf16 = false;
};
struct product_answers {
  std::vector<float> y{}, dx{}, dw{};
};
product_answers products_on_gpu(product_problem const& of);

//! @brief Values of a tensor after some steps of AdamW with the same gradient; after them, the
//! same as products in bf16 read them.
std::vector<float>
adamw_on_gpu(std::vector<float> const& value, std::vector<float> const& gradient, int steps);

} // namespace gpt_tests
