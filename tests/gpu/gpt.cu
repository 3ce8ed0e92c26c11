// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The stages of examples/gpt/cuda are in this source, too: nvcc takes longer to read the headers
// than to compile the rest. They come first, as they stand alone.
#include <examples/gpt/cuda/gpu_stage.cu>
// The parts of the GPT there, one by one. The same object runs on the stand-in.
#include <pipe/cuda/handles.cuh>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <examples/gpt/cuda/matrix_products.cuh>
#include <examples/gpt/cuda/numbers.cuh>
#include <examples/gpt/cuda/trained.cuh>
#include <examples/gpt/layer.hpp>
#include <tests/gpu/gpt.hpp>
#include <vector>

namespace pp = pipelining;
namespace on_gpu = gpt::on_gpu;

namespace {

//! Numbers on the GPU for as long as the object lives.
template <class T>
class numbers {
public:
  explicit numbers(std::size_t count)
      : count_(count), memory_(static_cast<std::int64_t>(count * sizeof(T))) {}
  explicit numbers(std::vector<T> const& from) : numbers(from.size()) {
    pp::cuda::check(
      cudaMemcpy(memory_.data(), from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] std::vector<T> get() const {
    std::vector<T> result(count_);
    pp::cuda::check(
      cudaMemcpy(result.data(), memory_.data(), count_ * sizeof(T), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
    return result;
  }

private:
  std::size_t count_;
  pp::cuda::device_memory memory_;
};

std::vector<float> as_floats(std::vector<__nv_bfloat16> const& from) {
  std::vector<float> result;
  for (auto const x : from)
    result.push_back(__bfloat162float(x));
  return result;
}

template <class Element>
numbers<Element> rounded(std::vector<float> const& from) {
  numbers<float> const given(from);
  numbers<Element> result(from.size());
  on_gpu::convert(
    result.data(), given.data(), static_cast<std::int64_t>(from.size()), cudaStream_t{});
  pp::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return result;
}

template <class Element>
gpt_tests::product_answers multiply(gpt_tests::product_problem const& of) {
  auto const x = rounded<Element>(of.x);
  auto const weight = rounded<Element>(of.weight);
  auto const dy = rounded<Element>(of.dy);
  numbers<float> const y(of.dy.size());
  numbers<float> const dx(std::vector<float>(of.x.size(), 1.0f));
  numbers<float> const dw(std::vector<float>(of.weight.size(), 1.0f));
  pp::cuda::stream const stream;
  on_gpu::matrix_products products(std::int64_t{16} << 10); // enough for cuBLAS to fail nowhere
  products.use(stream.get());
  on_gpu::matrix_pass<Element> const matrix{
    products, weight.data(), dw.data(), of.tokens, of.inputs, of.outputs};
  matrix.forward(y.data(), x.data());
  matrix.backward_input(dx.data(), dy.data(), gpt::product_goes::added);
  matrix.backward_weight(x.data(), dy.data());
  pp::cuda::check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  return {y.get(), dx.get(), dw.get()};
}

} // namespace

gpt_tests::row_answers gpt_tests::rows_on_gpu(row_problem const& of, float share) {
  auto const tokens = of.tokens;
  auto const width = of.width;
  auto const count = static_cast<std::size_t>(tokens * width);
  numbers<float> const x(of.x), gain(of.gain), dy(of.dy), logits(of.logits);
  numbers<std::uint8_t> const text(of.text);
  numbers<float> const normal(count), inverse(static_cast<std::size_t>(tokens)), scaled(count);
  numbers<__nv_bfloat16> const round(count);
  numbers<float> const norm_dx(of.x), gain_gradient(of.gain); // which grow
  numbers<float> const gelu(count), gelu_dx(count), embedded(count);
  numbers<float> const byte_gradient(static_cast<std::size_t>(gpt::vocabulary * width));
  numbers<float> const position_gradient(count), losses(static_cast<std::size_t>(tokens));
  numbers<float> const logits_gradient(of.logits.size());
  pp::cuda::stream const own;
  cudaStream_t const on = own.get();
  on_gpu::token_rows const rows{tokens, width, on};
  on_gpu::normalised const kept{normal.data(), inverse.data()};
  on_gpu::layer_norm_forward(scaled.data(), kept, x.data(), gain.data(), rows);
  on_gpu::apply_gain(round.data(), normal.data(), gain.data(), rows);
  on_gpu::layer_norm_backward(
    norm_dx.data(), gain_gradient.data(), dy.data(), kept, gain.data(), rows);
  on_gpu::gelu_forward(gelu.data(), x.data(), tokens * width, on);
  on_gpu::gelu_backward(gelu_dx.data(), x.data(), dy.data(), tokens * width, on);
  embedding_backward(byte_gradient.data(), position_gradient.data(), dy.data(), text.data(), rows);
  on_gpu::embedding_forward(
    embedded.data(), byte_gradient.data(), position_gradient.data(), text.data(), rows);
  on_gpu::cross_entropy_forward(losses.data(), logits.data(), text.data(), tokens, on);
  on_gpu::cross_entropy_backward(
    logits_gradient.data(), logits.data(), text.data(), share, tokens, on);
  pp::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
  return {normal.get(),
          scaled.get(),
          as_floats(round.get()),
          norm_dx.get(),
          gain_gradient.get(),
          gelu.get(),
          gelu_dx.get(),
          embedded.get(),
          byte_gradient.get(),
          position_gradient.get(),
          losses.get(),
          logits_gradient.get()};
}

gpt_tests::product_answers gpt_tests::products_on_gpu(product_problem const& of) {
  return of.bf16 ? multiply<__nv_bfloat16>(of) : multiply<float>(of);
}

std::vector<float> gpt_tests::adamw_on_gpu(std::vector<float> const& value,
                                           std::vector<float> const& gradient,
                                           int steps) {
  gpt::parameter<float> host(static_cast<std::int64_t>(value.size()), 0.0f, true);
  host.value = value;
  on_gpu::trained<__nv_bfloat16> weight(host);
  pp::cuda::stream const on;
  for (int step = 0; step < steps; ++step) {
    pp::cuda::check(cudaMemcpyAsync(weight.gradients(),
                                    gradient.data(),
                                    gradient.size() * sizeof(float),
                                    cudaMemcpyHostToDevice,
                                    on.get()),
                    "cudaMemcpyAsync");
    weight.update(gpt::adamw{}, step, on.get());
  }
  pp::cuda::check(cudaStreamSynchronize(on.get()), "cudaStreamSynchronize");
  auto result = on_gpu::fetch(weight.values(), weight.count());
  std::vector<__nv_bfloat16> operand(value.size());
  pp::cuda::check(
    cudaMemcpy(operand.data(), weight.operand(), operand.size() * 2, cudaMemcpyDeviceToHost),
    "cudaMemcpy");
  for (float const x : as_floats(operand)) // after the values, what products read
    result.push_back(x);
  return result;
}
