// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief What a trainer in PyTorch's C++ front end has besides layers, inside stages: modules with
//! two inputs and outputs, views into slots, autocast, a GradScaler, dropout under recomputation
//! and a state_dict in a checkpoint. Held against a plain loop, bit for bit.

#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/pipe.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <torch/torch.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "masked_block.hpp"
#include "masked_stage.hpp"

namespace pp = pipelining;
using namespace example;

namespace {

constexpr int steps = 8, half = 4;

std::vector<masked_stage> cut(int stages, bool recomputes) {
  auto const all = make_blocks();
  std::vector<masked_stage> model(static_cast<std::size_t>(stages));
  for (std::size_t i = 0; i < all.size(); ++i) {
    masked_stage& each = model[i * model.size() / all.size()];
    each.first = each.blocks.empty() ? static_cast<int>(i) : each.first;
    each.recomputes = recomputes;
    each.blocks.push_back(all[i]);
  }
  return model;
}

// A state_dict: names of the whole model, and the memory of the tensors. The scale goes with it.
std::vector<pp::state_tensor> state_of(std::vector<masked_stage>& model) {
  std::vector<pp::state_tensor> all{
    {"scale", "F32", {}, std::as_writable_bytes(std::span(&model[0].scale, 1))}};
  for (masked_stage& each : model)
    for (std::size_t i = 0; i < each.blocks.size(); ++i)
      for (auto const& one : each.blocks[i]->named_parameters())
        all.push_back(
          {"blocks." + std::to_string(each.first + static_cast<int>(i)) + '.' + one.key(),
           "F32",
           one.value().sizes().vec(),
           std::as_writable_bytes(std::span(one.value().data_ptr<float>(),
                                            static_cast<std::size_t>(one.value().numel())))});
  return all;
}

template <class Schedule>
void run(Schedule const& schedule,
         int devices,
         bool recomputes,
         int begin,
         pp::checkpoint_place const& files,
         outcome& found) {
  auto const table = pp::make_timetable(schedule, {devices, microbatches});
  auto model = cut(table.over.extents.stages(), recomputes);
  if (begin > 0)
    pp::load_tensors(files, begin, state_of(model));
  pp::uniform_sizes const sizes{
    .message = forth.bytes(), .activation = forth.bytes(), .totals_bytes = sizeof(row)};
  pp::thread_runner runner(pp::lower(table, sizes), model, {.on_start = [](int, int) {
                             at::set_num_threads(1);
                             use_autocast(); // of this thread
                           }});
  for (int step = begin; step < begin + half; ++step) {
    for (masked_stage& each : model) {
      each.step = step;
      each.scale = model[0].scale;
    }
    runner.step();
    pp::totals const all = runner.totals();
    found.losses.push_back(all.template row<row>(all.rows - 1)[0].loss);
  }
  found.skipped += model[0].skipped;
  pp::save_tensors(files, begin + half, state_of(model));
  for (masked_stage const& each : model)
    for (auto const& one : each.parameters())
      found.weights.push_back(one.detach().clone());
}

} // namespace

int main() {
  at::set_num_threads(1);
  auto const expected = train_alone(microbatches, steps);
  std::string const folder = std::filesystem::temp_directory_path().string() +
                             "/libtorch_features-" + std::to_string(::getpid());
  pp::checkpoint_place const files{folder, "rank-0", "model=masked blocks\n"};
  outcome found;
  run(pp::with_recompute<pp::OneFOneB>{}, 2, true, 0, files, found);
  found.weights.clear();
  run(pp::Interleaved<2>{}, 2, false, half, files, found); // other stages go on
  std::filesystem::remove_all(folder);
  bool equal =
    found.losses == expected.losses && found.skipped == expected.skipped && found.skipped > 0;
  for (std::size_t i = 0; i < expected.weights.size(); ++i)
    equal = equal && torch::equal(found.weights[i], expected.weights[i]);
  std::printf("loss %.4f to %.4f, %d steps left out, %s\n",
              found.losses.front(),
              found.losses.back(),
              found.skipped,
              equal ? "the bits of a plain loop" : "OTHER BITS than a plain loop");
  return equal && found.losses.back() < found.losses[0] ? 0 : 1;
}
