// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "compiled_layers.hpp"

namespace gpt {

template class linear<float>;
template class layer_norm<float>;
template void gelu(float const*, float*, std::int64_t);
template void gelu_backward(float*, float const*, std::int64_t);
template class embedding<float>;
template class head<float>;
template class before_attention<float>;
template class attention_part<float>;
template class after_attention<float>;
template class mlp<float>;
template class stage<float>;
template void adamw::update(parameter<float>&, std::int64_t) const;

} // namespace gpt
