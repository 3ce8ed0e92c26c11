// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model in float, compiled once for all backends, by layers.cpp, as fast as it can be:
//! what else a program has need not wait for an optimiser.

#include "stage.hpp"

namespace gpt {

extern template class linear<float>;
extern template class layer_norm<float>;
extern template void gelu(float const*, float*, std::int64_t);
extern template void gelu_backward(float*, float const*, std::int64_t);
extern template class embedding<float>;
extern template class head<float>;
extern template class before_attention<float>;
extern template class attention_part<float>;
extern template class after_attention<float>;
extern template class mlp<float>;
extern template class stage<float>;
extern template void adamw::update(parameter<float>&, std::int64_t) const;

} // namespace gpt
