// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flow of training. Header for pipelining::training.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/training_kinds.hpp>

namespace pipelining::inline v0_3 {

//! @brief Training: a forward pass per unit and stage, and its backward, whole or in two halves.
inline constexpr flow training =
  detail::resolved({detail::output_datum,
                    detail::gradient_datum,
                    detail::weight_gradient_datum,
                    detail::activation_datum,
                    detail::weight_input_datum,
                    detail::sequence_datum,
                    detail::sequence_gradient_datum},
                   {{pass_kind::forward, detail::forward_kind},
                    {pass_kind::backward, detail::backward_kind},
                    {pass_kind::backward_input, detail::backward_input_kind},
                    {pass_kind::backward_weight, detail::backward_weight_kind}});

} // namespace pipelining::inline v0_3
