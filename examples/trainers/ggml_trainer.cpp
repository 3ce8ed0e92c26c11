// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: how an engine of graphs becomes a stage. A graph of ggml is made once for the
// slots that it reads and writes, and made anew when memory has moved. How to run:
// build/release/bin/ggml_trainer
#include <pipe/pipe.hpp>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <ggml.h>
#include <map>
#include <utility>
#include <vector>

#include "ggml_graph.hpp"

namespace pp = pipelining;
using example::graph;

namespace {

constexpr int width = 32, rows = 16, devices = 4, microbatches = 8, more = 20, steps = 6;
constexpr std::size_t numbers = std::size_t{rows} * width;
// An activation is two tensors: what a stage reads, and what it makes of it.
pp::message_layout const kept(std::vector<pp::message_layout::tensor>{{"x", "F32", {rows, width}},
                                                                      {"y", "F32", {rows, width}}});

// y = tanh(x W)
struct stage {
  explicit stage(int number) : weight(std::size_t{width} * width), gradient(weight.size()) {
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] =
        static_cast<float>((7 * i + 13 * i * i + static_cast<std::size_t>(number)) % 31) / 62 -
        0.25F;
  }

  void forward(pp::context const& at, pp::input in, pp::output out) {
    float* const x = kept.of<float>(at.activation, "x").data();
    float* const y = kept.of<float>(at.activation, "y").data();
    for (std::size_t i = 0; i < numbers; ++i)
      x[i] = at.first_stage()
               ? static_cast<float>((i + static_cast<std::size_t>(at.microbatch)) % 13) / 13
               : in.as<float>()[i];
    run({x, y}, [&](graph const& g) {
      g.end(ggml_tanh(g.in(), ggml_mul_mat(g.in(), matrix(g), g.at(x, width, rows))), y);
    });
    if (!at.last_stage())
      std::memcpy(out.data, y, numbers * sizeof(float));
    for (std::size_t i = 0; at.last_stage() && i < numbers; ++i)
      loss +=
        (y[i] - 0.25F) * (y[i] - 0.25F) / (2.0F * static_cast<float>(at.extents.microbatches));
  }
  void backward_input(pp::context const& at, pp::input in, pp::output out) {
    float const* const y = kept.of<float>(at.activation, "y").data();
    float* const dz = at.weight_input.as<float>().data();
    float* const dx = out.as<float>().data(); // null on the first stage
    for (std::size_t i = 0; at.last_stage() && i < numbers; ++i)
      dz[i] = (y[i] - 0.25F) / static_cast<float>(at.extents.microbatches);
    float const* const dy = at.last_stage() ? dz : in.as<float>().data();
    run({y, dy, dz, dx}, [&](graph const& g) {
      ggml_tensor* const from = g.at(dy, width, rows);
      auto* const down = g.end(
        ggml_sub(g.in(), from, ggml_mul(g.in(), from, ggml_sqr(g.in(), g.at(y, width, rows)))), dz);
      auto* const turned = ggml_cont(g.in(), ggml_transpose(g.in(), matrix(g)));
      if (dx != nullptr)
        g.end(ggml_mul_mat(g.in(), turned, down), dx);
    });
  }
  void backward_weight(pp::context const& at) {
    float const* const x = kept.of<float>(at.activation, "x").data();
    float const* const dz = at.weight_input.as<float>().data();
    run({x, dz}, [&](graph const& g) {
      auto* const sum = g.at(gradient.data(), width, width);
      g.end(ggml_add_inplace(
              g.in(), sum, ggml_out_prod(g.in(), g.at(x, width, rows), g.at(dz, width, rows))),
            gradient.data());
    });
  }
  void memory_moved(pp::context const&) { graphs.clear(); } // of memory that is gone

  void step() {
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] -= 0.001F * std::exchange(gradient[i], 0.0F);
  }
  ggml_tensor* matrix(graph const& g) const { return g.at(weight.data(), width, width); }
  // Makes the graph for these places, if there is none yet.
  void run(std::vector<float const*> const& places, std::function<void(graph const&)> const& make) {
    auto const [found, fresh] = graphs.try_emplace(places);
    if (fresh)
      make(found->second);
    found->second.run();
  }

  std::vector<float> weight, gradient;
  std::map<std::vector<float const*>, graph> graphs{};
  float loss = 0;
};

// The losses of all steps, and the weights at the end.
std::vector<float> train(int on) {
  std::vector<stage> layers;
  for (int i = 0; i < 2 * devices; ++i)
    layers.emplace_back(i);
  auto const plan = [on](int count) {
    pp::ZeroBubbleInterleaved<pp::dynamic> const schedule{.stages_per_device = {2 * devices / on}};
    constexpr auto bytes = numbers * sizeof(float);
    return pp::lower(
      pp::make_timetable(schedule, {on, count}),
      pp::uniform_sizes{.message = bytes, .activation = kept.bytes(), .weight_input = bytes});
  };
  pp::thread_runner runner(plan(microbatches), layers);
  std::vector<float> all;
  pp::plan_number now{};
  for (int step = 0; step < steps; ++step) {
    if (step == steps / 2)
      now = runner.add(plan(more)); // wants more memory
    runner.step(now);
    all.push_back(std::exchange(layers.back().loss, 0.0F));
    for (stage& each : layers)
      each.step();
  }
  for (stage const& each : layers)
    all.insert(all.end(), each.weight.begin(), each.weight.end());
  return all;
}

} // namespace

int main() {
  auto const one = train(1), four = train(devices);
  auto const* const bits = one == four ? "the bits of one" : "OTHER BITS than one";
  std::printf("loss %.4f to %.4f, %d devices have %s\n", four[0], four[steps - 1], devices, bits);
  return one == four && four[steps - 1] < four[0] / 2 ? 0 : 1;
}
