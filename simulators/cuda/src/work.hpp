// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What calls that enqueue work or wait for it share: legality, capture, synchronisation.

#include "call.hpp"

namespace standin::detail {

//! @brief The stream of a call, or why the call must fail.
struct target {
  stream* on = nullptr;
  cudaError_t code = cudaSuccess;
};
//! @brief Checks a stream that work is to be enqueued on.
target work_stream(model& m, cudaStream_t handle);
//! @brief Enqueues, or adds a node when the stream is captured.
void submit_work(model& m, stream& on, operation_ptr const& op);
graph_node* add_node(stream& on, operation_ptr const& op);

//! @brief Fails calls that must not be made while the stream is captured, and spoils the capture.
cudaError_t forbid_in_capture(stream& on);
//! @brief Fails calls that are unsafe while somebody captures, as the capture modes say.
cudaError_t unsafe_in_capture(model& m);

//! @brief The host has seen that the operation is finished.
void observe(model& m, operation const& op);
//! @brief Error of a call that waited on this device and found success or not.
cudaError_t after_wait(model& m, int device, bool reached);
cudaError_t wait_for_device(model& m, int device, char const* function);
//! @brief Checks that a range does not run over the end of its allocation.
bool inside(model& m, void const* begin, std::size_t bytes, std::string const& function);

} // namespace standin::detail
