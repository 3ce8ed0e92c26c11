// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <variant>

#include "gpu_model.hpp"
#include "pipelined_model.cuh"

namespace gpt {

std::string missing_gpu() {
  int devices = 0;
  cudaError_t const code = cudaGetDeviceCount(&devices);
  return code == cudaSuccess && devices > 0
           ? ""
           : std::string("there is no GPU here: ") +
               (code == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(code));
}

struct gpu_model::either {
  std::variant<std::unique_ptr<on_gpu::pipelined_model<float, model_clock>>,
               std::unique_ptr<on_gpu::pipelined_model<__nv_bfloat16, model_clock>>>
    of;
};

gpu_model::gpu_model(model_size const& size,
                     pipelining::timetable_view table,
                     step_cut const& cut,
                     std::uint64_t seed,
                     gpu_run const& how)
    : model_(std::make_unique<either>()) {
  if (how.numbers == operands::bf16) {
    model_->of = std::make_unique<on_gpu::pipelined_model<__nv_bfloat16, model_clock>>(
      size, table, cut, seed, how);
  } else {
    model_->of =
      std::make_unique<on_gpu::pipelined_model<float, model_clock>>(size, table, cut, seed, how);
  }
}
gpu_model::~gpu_model() = default;

double gpu_model::step(batch const& pieces) {
  return std::visit([&](auto& model) { return model->step(pieces); }, model_->of);
}
void gpu_model::update(adamw const& optimizer, std::int64_t step) {
  std::visit([&](auto& model) { model->update(optimizer, step); }, model_->of);
}
pipelining::dynamic_timetable gpu_model::trace() {
  return std::visit([](auto& model) { return model->trace(); }, model_->of);
}
std::vector<float> gpu_model::gradients() const {
  return std::visit([](auto const& model) { return gradients_of(*model); }, model_->of);
}
std::vector<float> gpu_model::values() const {
  return std::visit([](auto const& model) { return values_of(*model); }, model_->of);
}

} // namespace gpt
