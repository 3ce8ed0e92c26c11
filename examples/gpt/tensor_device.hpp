// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief All shards of all stages on one device, one after the other: what a tensor-parallel
//! pipeline is held against.

#include <pipe/flow/pass.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "all_reduce.hpp"
#include "model.hpp"
#include "stage_shard.hpp"
#include "tensor_stage.hpp"
#include "text.hpp"

namespace gpt {

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
        auto& one = stage.emplace_back(
          part{stage_shard(size, layers, microbatches_, seed, which, memory_), {}, {}});
        for (std::int64_t m = 0; m < microbatches_; ++m) {
          one.kept.emplace_back(
            static_cast<std::size_t>(stage_shard::kept_numbers(size, layers, which)));
          one.added.emplace_back(
            static_cast<std::size_t>(stage_shard::added_numbers(size, layers, which)));
        }
      }
    }
  }

  double step(batch const& pieces) {
    using enum pp::pass_kind;
    for_each_shard([&](stage_shard& shard) { shard.set_batch(pieces); });
    std::vector<float> between(static_cast<std::size_t>(size_.sequence * size_.width));
    for (std::int64_t m = 0; m < microbatches_; ++m) {
      for (auto& stage : stages_) {
        run(stage, forward, m, between);
      }
      for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
        run(*stage, backward_input, m, between);
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (int const m : orders_[s]) {
        run(stages_[s], backward_weight, m, between);
      }
    }
    return stages_.back().front().shard.loss();
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for_each_shard([&](stage_shard& shard) { shard.update(optimizer, step); });
  }
  //! Calls visit(parameter) for all of all shards, shard by shard.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (std::size_t number = 0; number < stages_.front().size(); ++number) {
      for (auto& stage : stages_) {
        stage[number].shard.for_each_parameter(visit);
      }
    }
  }

  [[nodiscard]] stage_shard& shard(int stage, int number) {
    return stages_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(number)].shard;
  }

private:
  struct part {
    stage_shard shard;
    std::vector<std::vector<float>> kept;  // by microbatch
    std::vector<std::vector<float>> added; // by microbatch
  };

  template <class Visit>
  void for_each_shard(Visit visit) {
    for (auto& stage : stages_) {
      for (part& each : stage) {
        visit(each.shard);
      }
    }
  }

  //! A pass of all shards of a stage. @param numbers what it reads, then what it writes
  void
  run(std::vector<part>& stage, pp::pass_kind kind, std::int64_t m, std::vector<float>& numbers) {
    std::vector<shard_pass> passes;
    for (part& each : stage) {
      auto const at = static_cast<std::size_t>(m);
      passes.push_back({kind, m, each.kept[at].data(), each.added[at].data()});
      each.shard.begin(passes.back(), numbers.data());
    }
    for (std::int64_t step = 0; step < stage.front().shard.steps(); ++step) {
      std::vector<std::vector<float>> parts;
      for (std::size_t i = 0; i < stage.size(); ++i) {
        stage[i].shard.compute(passes[i], step);
        parts.push_back(passes[i].part);
      }
      if (kind == pp::pass_kind::backward_weight) {
        continue;
      }
      add_parts(parts, sum_);
      for (std::size_t i = 0; i < stage.size(); ++i) {
        stage[i].shard.join(passes[i], step, sum_);
      }
    }
    for (std::size_t i = 0; i < stage.size(); ++i) {
      stage[i].shard.end(passes[i], numbers.data());
    }
  }

  model_size size_;
  std::int64_t microbatches_;
  device_memory<float> memory_;
  std::vector<std::vector<int>> orders_; // by stage
  std::vector<std::vector<part>> stages_;
  std::vector<float> sum_;
};

} // namespace gpt
