// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with all shards of its stages on one device, without plan, runner or braids: what
//! pipelines of shards are held against.

#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <examples/gpt/papers/tensor_stage.hpp>
#include <vector>

namespace gpt {

//! The microbatches in the order in which a stage adds up the gradients of its weights.
[[nodiscard]] inline std::vector<int> weight_order(pp::timetable_view table, int stage) {
  std::vector<int> order;
  for (int i = 0; i < table.size(); ++i)
    if (pp::pass const& what = table.passes[i];
        what.stage == stage &&
        (what.kind == pp::pass_kind::backward || what.kind == pp::pass_kind::backward_weight))
      order.push_back(what.microbatch);
  return order;
}

//! One microbatch after the other through all stages and back to the gradients of inputs; then
//! those of weights, in the order of the schedule. No threads, no messages, no braids.
class tensor_device {
public:
  //! @param table says how stages are cut and in which order each adds up the gradients of its
  //! weights
  tensor_device(model_size const& size,
                pp::timetable_view table,
                std::int64_t shards,
                std::uint64_t seed)
      : size_(size), microbatches_(table.over.extents.microbatches) {
    for (auto const& layers : cut_model(size, table.over.extents)) {
      orders_.push_back(weight_order(table, static_cast<int>(orders_.size())));
      auto& stage = stages_.emplace_back();
      for (std::int64_t number = 0; number < shards; ++number) {
        shard_of_stage const which{number, shards};
        stage.push_back({stage_shard(size, layers, microbatches_, seed, which, work_),
                         std::vector<own_slots>(static_cast<std::size_t>(microbatches_))});
      }
    }
  }

  double step(batch const& pieces) {
    using enum pp::pass_kind;
    for_each_shard([&](stage_shard& shard) { shard.set_batch(pieces); });
    std::vector<float> between(static_cast<std::size_t>(size_.sequence * size_.width));
    for (std::int64_t m = 0; m < microbatches_; ++m) {
      for (auto& stage : stages_)
        run(stage, forward, m, between);
      for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage)
        run(*stage, backward_input, m, between);
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      for (int const m : orders_[s])
        run(stages_[s], backward_weight, m, between);
    return stages_.back().front().shard.loss();
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for_each_shard([&](stage_shard& shard) { shard.update(optimizer, step); });
  }
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (std::size_t number = 0; number < stages_.front().size(); ++number)
      for (auto& stage : stages_)
        stage[number].shard.for_each_parameter(visit);
  }

  [[nodiscard]] stage_shard& shard(int stage, int number) {
    return stages_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(number)].shard;
  }

private:
  struct part {
    stage_shard shard;
    std::vector<own_slots> slots; // by microbatch
  };

  template <class Visit>
  void for_each_shard(Visit visit) {
    for (auto& stage : stages_)
      for (part& each : stage)
        visit(each.shard);
  }

  //! A pass of all shards of a stage. @param numbers what it reads, then what it writes
  void
  run(std::vector<part>& stage, pp::pass_kind kind, std::int64_t m, std::vector<float>& numbers) {
    std::vector<shard_pass> passes;
    for (part& each : stage) {
      auto const where = each.slots[static_cast<std::size_t>(m)].at(each.shard, unit{m, 0});
      passes.push_back({kind, where, where.weight_input.data});
      each.shard.begin(passes.back(), numbers.data());
    }
    for (std::int64_t step = 0; step < stage.front().shard.steps(); ++step) {
      std::vector<std::vector<float>> parts;
      for (std::size_t i = 0; i < stage.size(); ++i) {
        stage[i].shard.compute(passes[i], step);
        parts.push_back(passes[i].part);
      }
      if (kind == pp::pass_kind::backward_weight)
        continue;
      sum_.clear();
      for (auto const& each : parts)
        add_to(sum_, each);
      for (std::size_t i = 0; i < stage.size(); ++i)
        stage[i].shard.join(passes[i], step, sum_);
    }
    for (std::size_t i = 0; i < stage.size(); ++i)
      stage[i].shard.end(passes[i], numbers.data());
  }

  model_size size_;
  std::int64_t microbatches_;
  host::device_work<float> work_;
  std::vector<std::vector<int>> orders_; // by stage
  std::vector<std::vector<part>> stages_;
  std::vector<float> sum_;
};

} // namespace gpt
