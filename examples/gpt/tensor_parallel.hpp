// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with stages in shards (tensor parallel): one pipeline of threads per shard, whose
//! passes meet for sums inside. Braided passes hide each other's sums. The same shards run on one
//! device, one after the other.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/model/device_memory.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "all_reduce.hpp"
#include "model.hpp"
#include "stage.hpp"
#include "stage_shard.hpp"
#include "text.hpp"

namespace gpt {

namespace pp = pipelining;

//! Sums of a device in a step.
struct sum_counts {
  std::int64_t made = 0;
  std::int64_t exposed = 0; //!< waited for with nothing done since they were begun
  //! Passes all of whose sums were exposed.
  std::int64_t exposed_passes = 0;
};

//! A device of the pipeline of one shard.
struct shard_device {
  device_memory<float> memory;
  all_reduce_group* group = nullptr; //!< with the same device in the other pipelines
  std::size_t member = 0;
  std::int64_t work = 0; //!< pieces of passes so far
  sum_counts counts;
};

//! A pass of a shard as part of a program: in pieces, each with the wait for the sum before it.
class woven_pass {
public:
  woven_pass(stage_shard& shard,
             shard_device& at,
             pp::pass_kind kind,
             pp::composite_half const& half,
             std::vector<float>& room)
      : shard_(&shard), at_(&at) {
    now_.kind = kind;
    now_.microbatch = half.where.microbatch;
    now_.kept = half.where.activation.as<float>().data();
    now_.added =
      kind == pp::pass_kind::backward ? room.data() : half.where.weight_input.as<float>().data();
    out_ = half.out.as<float>().data();
    shard.begin(now_, half.in.as<float>().data());
  }

  // [snippet weave]
  //! One piece: what waits for the last sum, then the next step up to its sum, which begins.
  //! Returns false when that was all.
  bool advance() {
    if (under_way_) {
      if (at_->work == work_) {
        ++exposed_; // nobody has done anything meanwhile
      }
      at_->group->end(number_, sum_);
      shard_->join(now_, next_ - 1, sum_);
      under_way_ = false;
    }
    if (next_ == shard_->steps()) {
      finish();
      return false;
    }
    shard_->compute(now_, next_);
    ++at_->work;
    if (now_.kind != pp::pass_kind::backward_weight) {
      number_ = at_->group->begin(at_->member, now_.part);
      work_ = at_->work;
      under_way_ = true;
    }
    if (now_.kind == pp::pass_kind::backward) {
      shard_->add_weights(now_, next_); // which its own sum waits for
      ++at_->work;
    }
    ++next_;
    return true;
  }
  // [snippet weave]

private:
  void finish() {
    shard_->end(now_, out_);
    ++at_->work;
    bool const sums = now_.kind != pp::pass_kind::backward_weight;
    at_->counts.made += sums ? shard_->steps() : 0;
    at_->counts.exposed += exposed_;
    at_->counts.exposed_passes += sums && exposed_ == shard_->steps() && exposed_ > 0 ? 1 : 0;
  }

  stage_shard* shard_;
  shard_device* at_;
  shard_pass now_;
  float* out_;
  std::int64_t next_ = 0;
  bool under_way_ = false;
  std::size_t number_ = 0; // of the sum under way
  std::int64_t work_ = 0;  // when it began
  std::int64_t exposed_ = 0;
  std::vector<float> sum_;
};

//! A stage of the pipeline of one shard, as the library calls it.
struct tensor_stage {
  stage_shard shard;
  shard_device* at;
  std::vector<float> room; //!< of a fused backward pass

  void forward(pp::context const& where, pp::input x, pp::output y) {
    alone(pp::pass_kind::forward, {where, x, y});
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    alone(pp::pass_kind::backward, {where, dy, dx});
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    alone(pp::pass_kind::backward_input, {where, dy, dx});
  }
  void backward_weight(pp::context const& where) {
    alone(pp::pass_kind::backward_weight, {where, {}, {}});
  }
  // [snippet braid]
  //! Two passes of the device in turn, piece by piece: each runs while the sum of the other is
  //! made.
  void braid(pp::pass_kind kind,
             pp::composite_half const& half,
             pp::pass_kind other_kind,
             pp::composite_half const& other_half,
             tensor_stage& other) {
    woven_pass first(shard, *at, kind, half, room);
    woven_pass second(other.shard, *other.at, other_kind, other_half, other.room);
    for (bool one = true, two = true; one || two;) {
      one = one && first.advance();
      two = two && second.advance();
    }
  }
  // [snippet braid]

private:
  void alone(pp::pass_kind kind, pp::composite_half const& half) {
    woven_pass pass(shard, *at, kind, half, room);
    while (pass.advance()) {
    }
  }
};

//! Bytes of slots: messages, which are whole on every shard, and what a shard keeps.
struct shard_sizes {
  model_size size;
  std::vector<layer_range> stages;
  shard_of_stage which;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    layer_range const& layers = stages[maker.stage];
    std::int64_t numbers = 0;
    if (of == pp::slot_class::activation) {
      numbers = stage_shard::kept_numbers(size, layers, which);
    } else if (of == pp::slot_class::weight_input) {
      numbers = stage_shard::added_numbers(size, layers, which);
    } else if (of == pp::slot_class::output || of == pp::slot_class::input_gradient) {
      numbers = size.sequence * size.width;
    }
    return numbers * static_cast<std::int64_t>(sizeof(float));
  }
};

//! The microbatches in the order in which a stage adds up the gradients of its weights.
//! @throws std::invalid_argument where those of inputs do not come in the order of microbatches
[[nodiscard]] inline std::vector<int> weight_order(pp::timetable_view table, int stage) {
  std::vector<int> order;
  int inputs = 0;
  for (int i = 0; i < table.size(); ++i) {
    pp::pass const& what = table.passes[i];
    if (what.stage != stage || what.kind == pp::pass_kind::forward) {
      continue;
    }
    if (what.kind != pp::pass_kind::backward_weight && what.microbatch != inputs++) {
      throw std::invalid_argument(
        "--tensor wants gradients of inputs in the order of microbatches, "
        "which this schedule has not");
    }
    if (what.kind != pp::pass_kind::backward_input) {
      order.push_back(what.microbatch);
    }
  }
  return order;
}

//! Such a model on the threads of this process: a pipeline for each shard.
class tensor_pipeline {
public:
  //! @param table without chunks, with one copy of every stage
  tensor_pipeline(model_size const& size,
                  pp::timetable_view table,
                  std::int64_t shards,
                  std::uint64_t seed)
      : sizes_{size, cut_model(size, table.extents), {0, shards}},
        plan_(std::make_shared<pp::plan const>(pp::lower(table, sizes_))) {
    auto const devices = static_cast<std::size_t>(table.extents.devices);
    for (std::size_t device = 0; device < devices; ++device) {
      groups_.push_back(std::make_unique<all_reduce_group>(static_cast<std::size_t>(shards)));
    }
    for (std::int64_t number = 0; number < shards; ++number) {
      auto& one = *pipelines_.emplace_back(std::make_unique<pipeline_of_shard>());
      one.devices = std::vector<shard_device>(devices);
      for (std::size_t device = 0; device < devices; ++device) {
        one.devices[device].group = groups_[device].get();
        one.devices[device].member = static_cast<std::size_t>(number);
      }
      for (auto const& layers : sizes_.stages) {
        auto const stage = static_cast<int>(one.stages.size());
        auto& at = one.devices[static_cast<std::size_t>(pp::device_of(table, stage))];
        shard_of_stage const which{number, shards};
        one.stages.push_back(
          {stage_shard(size, layers, table.extents.microbatches, seed, which, at.memory), &at, {}});
        one.stages.back().room.resize(
          static_cast<std::size_t>(stage_shard::added_numbers(size, layers, which)));
      }
      one.runner =
        std::make_unique<pp::thread_runner<std::vector<tensor_stage>>>(*plan_, one.stages);
    }
  }

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss.
  double step(batch const& pieces) {
    std::vector<std::thread> others;
    std::vector<std::exception_ptr> failed(pipelines_.size());
    for (auto& each : pipelines_) {
      for (auto& stage : each->stages) {
        stage.shard.set_batch(pieces);
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
    return pipelines_.front()->stages.back().shard.loss();
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : pipelines_) {
      for (auto& stage : each->stages) {
        stage.shard.update(optimizer, step);
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
        stage.shard.for_each_parameter(visit);
      }
    }
  }

private:
  struct pipeline_of_shard {
    std::vector<shard_device> devices;
    std::vector<tensor_stage> stages;
    std::unique_ptr<pp::thread_runner<std::vector<tensor_stage>>> runner;
  };

  shard_sizes sizes_;
  std::shared_ptr<pp::plan const> plan_;
  std::vector<std::unique_ptr<all_reduce_group>> groups_; // by device
  std::vector<std::unique_ptr<pipeline_of_shard>> pipelines_;
};

} // namespace gpt
