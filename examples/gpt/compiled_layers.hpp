// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model in float, compiled once for all backends, by layers.cpp, as fast as it can be:
//! what else a program has need not wait for an optimiser.

#include "host/host_stage.hpp"

namespace gpt {

namespace host {
extern template struct matrix_pass<float>;
extern template void apply_gain(float*, float const*, float const*, token_rows);
extern template void
layer_norm_forward(float*, normalised<float>, float const*, float const*, token_rows);
extern template void
layer_norm_backward(float*, float*, float const*, normalised<float>, float const*, token_rows);
extern template void gelu_forward(float*, float const*, std::int64_t, stream);
extern template void gelu_backward(float*, float const*, float const*, std::int64_t, stream);
extern template void
cross_entropy_forward(float*, float*, std::uint8_t const*, std::int64_t, stream);
extern template void
cross_entropy_backward(float*, float*, std::uint8_t const*, float, std::int64_t, stream);
extern template void
attend(attending const&, attention_tensors<float, float> const&, device_work<float>&, stream);
extern template void attend_backward(attending const&,
                                     attention_tensors<float, float> const&,
                                     attention_gradients<float, float> const&,
                                     device_work<float>&,
                                     stream);
} // namespace host
extern template class stage<host_machine<float>>;
extern template class trained_on_host<stage<host_machine<float>>>;
extern template void adamw::update(parameter<float>&, std::int64_t) const;

} // namespace gpt
