// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: how an engine with memory objects and threads of its own becomes a stage:
// oneDNN's memory objects look into the slots of the plan. How to run:
// build/release/bin/onednn_trainer
#include <pipe/pipe.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pp = pipelining;
using dnnl::algorithm, dnnl::memory, dnnl::prop_kind;

namespace {

constexpr int width = 64, rows = 16, devices = 4, microbatches = 8, steps = 5;
constexpr std::size_t numbers = std::size_t{rows} * width;
constexpr std::size_t bytes = numbers * sizeof(float);

memory::desc matrix(int height) {
  return {{height, width}, memory::data_type::f32, memory::format_tag::ab};
}

// [snippet stage]
// y = tanh(x W). Each stage has an engine and a stream: a device runs one pass at a time.
struct stage {
  stage(int number, std::vector<float> const& data)
      : data_(&data), weight_(std::size_t{width} * width), gradient_(weight_.size()),
        sum_(weight_.size()) {
    auto seed = static_cast<unsigned>(number);
    for (float& weight : weight_) {
      seed = seed * 1664525U + 1013904223U; // Numerical Recipes, 1992, section 7.1
      weight = (static_cast<float>(seed >> 8) / 16777216.0F - 0.5F) / 2;
    }
    auto const x = matrix(rows), w = matrix(width);
    dnnl::inner_product_forward::primitive_desc const product(
      {prop_kind::forward_training, x, w, x}, engine_);
    dnnl::eltwise_forward::primitive_desc const tanh(
      {prop_kind::forward_training, algorithm::eltwise_tanh, x, 0}, engine_);
    product_ = dnnl::inner_product_forward(product);
    product_back_ = dnnl::inner_product_backward_data({{x, w, x}, engine_, product});
    product_weights_ = dnnl::inner_product_backward_weights({{x, w, x}, engine_, product});
    tanh_ = dnnl::eltwise_forward(tanh);
    tanh_back_ = dnnl::eltwise_backward({{algorithm::eltwise_tanh, x, x, 0}, engine_, tanh});
  }

  // Keeps its input, the product and, on the last stage, the gradient of the loss.
  void forward(pp::context const& at, pp::input in, pp::output out) {
    float* const kept = at.activation.as<float>().data();
    auto const first = static_cast<std::size_t>(at.microbatch) * numbers;
    std::memcpy(kept, at.first_stage() ? &(*data_)[first] : in.as<float>().data(), bytes);
    run(product_,
        {{DNNL_ARG_SRC, view(kept)},
         {DNNL_ARG_WEIGHTS, weights()},
         {DNNL_ARG_DST, view(kept + numbers)}});
    float* const y = at.last_stage() ? kept + 2 * numbers : out.as<float>().data();
    run(tanh_, {{DNNL_ARG_SRC, view(kept + numbers)}, {DNNL_ARG_DST, view(y)}});
    for (std::size_t i = 0; at.last_stage() && i < numbers; ++i) {
      y[i] -= 0.25F; // what the model should answer
      loss += y[i] * y[i] / (2.0F * microbatches);
      y[i] /= microbatches;
    }
  }
  void backward_input(pp::context const& at, pp::input in, pp::output out) {
    float* const kept = at.activation.as<float>().data();
    float* const dz = at.weight_input.as<float>().data();
    run(tanh_back_,
        {{DNNL_ARG_SRC, view(kept + numbers)},
         {DNNL_ARG_DIFF_DST, view(at.last_stage() ? kept + 2 * numbers : in.as<float>().data())},
         {DNNL_ARG_DIFF_SRC, view(dz)}});
    if (!at.first_stage())
      run(product_back_,
          {{DNNL_ARG_DIFF_DST, view(dz)},
           {DNNL_ARG_WEIGHTS, weights()},
           {DNNL_ARG_DIFF_SRC, view(out.as<float>().data())}});
  }
  void backward_weight(pp::context const& at) {
    run(product_weights_,
        {{DNNL_ARG_SRC, view(at.activation.as<float>().data())},
         {DNNL_ARG_DIFF_DST, view(at.weight_input.as<float>().data())},
         {DNNL_ARG_DIFF_WEIGHTS, memory(matrix(width), engine_, sum_.data())}});
    for (std::size_t i = 0; i < sum_.size(); ++i)
      gradient_[i] += sum_[i];
  }
  // [snippet stage]

  void step() {
    for (std::size_t i = 0; i < weight_.size(); ++i)
      weight_[i] -= 0.0005F * gradient_[i];
    std::fill(gradient_.begin(), gradient_.end(), 0.0F);
  }
  std::vector<float> const& weight() const { return weight_; }
  float loss = 0;
  memory view(float const* of) { return {matrix(rows), engine_, const_cast<float*>(of)}; }
  memory weights() { return {matrix(width), engine_, weight_.data()}; }
  template <class Primitive>
  void run(Primitive const& what, std::unordered_map<int, memory> const& with) {
    what.execute(stream_, with);
    stream_.wait();
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::inner_product_forward product_;
  dnnl::inner_product_backward_data product_back_;
  dnnl::inner_product_backward_weights product_weights_;
  dnnl::eltwise_forward tanh_;
  dnnl::eltwise_backward tanh_back_;
  std::vector<float> const* data_;
  std::vector<float> weight_, gradient_, sum_;
};

// The losses of all steps, and the weights at the end.
std::vector<float> train(int on, std::vector<float> const& data) {
  std::vector<std::unique_ptr<stage>> layers;
  for (int i = 0; i < 2 * devices; ++i)
    layers.push_back(std::make_unique<stage>(i, data));
  pp::ZeroBubbleInterleaved<pp::dynamic> const schedule{.stages_per_device = {2 * devices / on}};
  pp::thread_runner runner(
    pp::lower(pp::make_timetable(schedule, {on, microbatches}),
              pp::uniform_sizes{.message = bytes, .activation = 3 * bytes, .weight_input = bytes}),
    layers);
  std::vector<float> all;
  for (int step = 0; step < steps; ++step) {
    runner.step();
    all.push_back(std::exchange(layers.back()->loss, 0.0F));
    for (auto const& each : layers)
      each->step();
  }
  for (auto const& each : layers)
    all.insert(all.end(), each->weight().begin(), each->weight().end());
  return all;
}
} // namespace

int main() {
  std::vector<float> data(microbatches * numbers);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<float>(i % 13) / 13;
  auto const one = train(1, data), four = train(devices, data);
  auto const* const bits = one == four ? "the bits of one" : "OTHER BITS than one";
  std::printf("loss %.4f to %.4f, %d devices have %s\n", four[0], four[steps - 1], devices, bits);
  return one == four && four[steps - 1] < four[0] / 2 ? 0 : 1;
}
