// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "compiled_layers.hpp"

namespace gpt {

namespace host {
template struct matrix_pass<float>;
template void apply_gain(float*, float const*, float const*, token_rows);
template void layer_norm_forward(float*, normalised<float>, float const*, float const*, token_rows);
template void
layer_norm_backward(float*, float*, float const*, normalised<float>, float const*, token_rows);
template void gelu_forward(float*, float const*, std::int64_t, stream);
template void gelu_backward(float*, float const*, float const*, std::int64_t, stream);
template void cross_entropy_forward(float*, float*, std::uint8_t const*, std::int64_t, stream);
template void
cross_entropy_backward(float*, float*, std::uint8_t const*, float, std::int64_t, stream);
template void
attend(attending const&, attention_tensors<float, float> const&, device_work<float>&, stream);
template void attend_backward(attending const&,
                              attention_tensors<float, float> const&,
                              attention_gradients<float, float> const&,
                              device_work<float>&,
                              stream);
} // namespace host
template class stage<host_machine<float>>;
template class trained_on_host<stage<host_machine<float>>>;
template void adamw::update(parameter<float>&, std::int64_t) const;

} // namespace gpt
