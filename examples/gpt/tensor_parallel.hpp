// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with stages in shards (tensor parallel): one pipeline of threads per shard.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "all_reduce.hpp"
#include "model.hpp"
#include "stage_shard.hpp"
#include "tensor_stage.hpp"
#include "text.hpp"

namespace gpt {

namespace pp = pipelining;

//! Such a model on the threads of this process: a pipeline for each shard.
class tensor_pipeline {
public:
  //! @param table without chunks, with one copy of every stage
  tensor_pipeline(model_size const& size,
                  pp::timetable_view table,
                  std::int64_t shards,
                  std::uint64_t seed)
      : sizes_{size, cut_model(size, table.over.extents), {0, shards}},
        plan_(std::make_shared<pp::plan const>(pp::lower(table, sizes_))) {
    auto const devices = static_cast<std::size_t>(table.over.extents.devices);
    for (std::size_t device = 0; device < devices; ++device) {
      groups_.push_back(std::make_unique<all_reduce_group>(static_cast<std::size_t>(shards)));
    }
    for (std::int64_t number = 0; number < shards; ++number) {
      auto& one = *pipelines_.emplace_back(std::make_unique<pipeline_of_shard>());
      one.devices = std::vector<shard_device<group_member>>(devices);
      for (std::size_t device = 0; device < devices; ++device) {
        one.devices[device].sums = {groups_[device].get(), static_cast<std::size_t>(number)};
      }
      for (auto const& layers : sizes_.stages) {
        auto const stage = static_cast<int>(one.stages.size());
        auto& at = one.devices[static_cast<std::size_t>(pp::device_of(table, stage))];
        one.stages.emplace_back(
          size, layers, table.over.extents.microbatches, seed, shard_of_stage{number, shards}, at);
      }
      one.runner =
        std::make_unique<pp::thread_runner<std::vector<called_stage>>>(*plan_, one.stages);
    }
  }

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss.
  double step(batch const& pieces) {
    std::vector<std::thread> others;
    std::vector<std::exception_ptr> failed(pipelines_.size());
    for (auto& each : pipelines_) {
      for (auto& stage : each->stages) {
        stage.set_batch(pieces);
      }
      for (auto& device : each->devices) {
        device.counts = {};
      }
    }
    for (std::size_t i = 0; i < pipelines_.size(); ++i) {
      others.emplace_back([this, i, &failed] {
        try {
          pipelines_[i]->runner->step();
        } catch (...) {
          failed[i] = std::current_exception();
          for (auto& group : groups_) {
            group->abort();
          }
        }
      });
    }
    for (auto& each : others) {
      each.join();
    }
    for (auto const& each : failed) {
      if (each != nullptr) {
        std::rethrow_exception(each);
      }
    }
    return pipelines_.front()->stages.back().loss();
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : pipelines_) {
      for (auto& stage : each->stages) {
        stage.update(optimizer, step);
      }
    }
  }

  //! When each pass of the first shard ran in the last step, in seconds.
  [[nodiscard]] pp::dynamic_timetable trace() const { return pipelines_.front()->runner->trace(); }
  [[nodiscard]] pp::plan_view plan() const { return plan_->view(); }
  [[nodiscard]] shard_sizes const& sizes() const { return sizes_; }
  //! By device, of a shard in the last step.
  [[nodiscard]] std::vector<sum_counts> counts() const {
    std::vector<sum_counts> all;
    for (auto const& device : pipelines_.front()->devices) {
      all.push_back(device.counts);
    }
    return all;
  }
  //! Calls visit(parameter) for all of all shards, shard by shard.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (auto& each : pipelines_) {
      for (auto& stage : each->stages) {
        stage.for_each_parameter(visit);
      }
    }
  }

private:
  using called_stage = tensor_stage<group_member>;

  struct pipeline_of_shard {
    std::vector<shard_device<group_member>> devices;
    std::vector<called_stage> stages;
    std::unique_ptr<pp::thread_runner<std::vector<called_stage>>> runner;
  };

  shard_sizes sizes_;
  std::shared_ptr<pp::plan const> plan_;
  std::vector<std::unique_ptr<all_reduce_group>> groups_; // by device
  std::vector<std::unique_ptr<pipeline_of_shard>> pipelines_;
};

} // namespace gpt
