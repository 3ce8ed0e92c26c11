// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with stages in shards (tensor parallel): one pipeline of threads per shard, with
//! sums over a few threads that go on with other work while they are made.

#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/run/thread_workers.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../system.hpp"
#include "tensor_stage.hpp"

namespace gpt {

//! Members that make the same sums in the same order, each on a thread. A sum has two ends, like
//! one on a network: between them a member does something else.
class all_reduce_group {
public:
  explicit all_reduce_group(std::size_t members) : next_(members, 0) {}

  //! Hands in a member's part of its next sum.
  //! @return which sum it is
  std::size_t begin(std::size_t member, std::vector<float> const& part) {
    std::scoped_lock const lock(mutex_);
    std::size_t const number = next_[member]++;
    round& here = under_way_[number];
    here.parts.resize(next_.size());
    here.parts[member] = part;
    ++here.come;
    changed_.notify_all();
    return number;
  }

  //! Waits for the parts of all members and writes their sum.
  void end(std::size_t number, std::vector<float>& sum) {
    std::unique_lock lock(mutex_);
    round& here = under_way_[number];
    changed_.wait(lock, [&] { return aborted_ || here.come == next_.size(); });
    if (aborted_)
      throw std::runtime_error("another shard of the stage has failed");
    sum.clear();
    for (auto const& part : here.parts)
      add_to(sum, part);
    if (++here.left == next_.size())
      under_way_.erase(number);
  }

  //! A member is gone: whoever waits, or will wait, throws.
  void abort() {
    std::scoped_lock const lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

private:
  struct round {
    std::vector<std::vector<float>> parts{}; // by member
    std::size_t come = 0;
    std::size_t left = 0;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  std::vector<std::size_t> next_;          // sum, by member
  std::map<std::size_t, round> under_way_; // by number of the sum
};

//! Such a model on the threads of this process: a pipeline for each shard.
class tensor_pipeline {
public:
  //! @param table without chunks, with one copy of every stage
  tensor_pipeline(model_size const& size,
                  pp::timetable_view table,
                  std::int64_t shards,
                  std::uint64_t seed) {
    auto const devices = static_cast<std::size_t>(table.over.extents.devices);
    for (std::size_t device = 0; device < devices; ++device)
      groups_.push_back(std::make_unique<all_reduce_group>(static_cast<std::size_t>(shards)));
    for (std::int64_t number = 0; number < shards; ++number) {
      auto& own = *devices_.emplace_back(std::make_unique<shard_devices>(devices));
      for (std::size_t device = 0; device < devices; ++device) {
        auto& group = *groups_[device];
        own[device].begin_sum = [&group, number](std::vector<float> const& part) {
          return group.begin(static_cast<std::size_t>(number), part);
        };
        own[device].end_sum = [&group](std::size_t which, std::vector<float>& sum) {
          group.end(which, sum);
        };
      }
      shard_of_stage const which{number, shards};
      pipelines_.push_back(
        std::make_unique<pipeline_of_shard>(make_shards(size, which, table, seed, own),
                                            table,
                                            whole_lengths(size, table),
                                            plan_maker{shard_slots(size, which)},
                                            [](copies_of<tensor_stage> all, int) { return all; }));
    }
  }

  double step(batch const& pieces) {
    for (auto& each : pipelines_)
      each->for_each_stage([&](std::size_t, tensor_stage& one) { one.set_batch(pieces); });
    for (auto& each : devices_)
      for (auto& device : *each)
        device.counts = {};
    pp::thread_workers().run(static_cast<int>(pipelines_.size()), [this](int shard) {
      try {
        pipelines_[static_cast<std::size_t>(shard)]->run_plan();
      } catch (...) {
        for (auto& group : groups_)
          group->abort();
        throw;
      }
    });
    return pipelines_.front()->ways().front().back()->loss();
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : pipelines_)
      each->for_each_stage([&](std::size_t, tensor_stage& one) { one.update(optimizer, step); });
  }

  //! When each pass of the first shard ran in the last step, in seconds; and its slots.
  [[nodiscard]] pp::dynamic_timetable trace() const { return pipelines_.front()->trace(); }
  [[nodiscard]] std::vector<device_row> slots() const { return pipelines_.front()->slots(); }
  //! By device, of a shard in the last step.
  [[nodiscard]] std::vector<sum_counts> counts() const {
    std::vector<sum_counts> all;
    for (auto const& device : *devices_.front())
      all.push_back(device.counts);
    return all;
  }
  //! A shard of a stage.
  [[nodiscard]] stage_shard& shard(int of, int number) {
    auto const& all = pipelines_[static_cast<std::size_t>(number)]->ways().front();
    return *all[static_cast<std::size_t>(of)];
  }
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (auto& each : pipelines_)
      each->for_each_stage([&](std::size_t, tensor_stage& one) { one.for_each_parameter(visit); });
  }

private:
  using called = copies_of<tensor_stage>;
  using pipeline_of_shard = model_in_stages<called, pp::thread_runner<std::vector<called>>>;
  using shard_devices = std::vector<shard_device>;

  std::vector<std::unique_ptr<all_reduce_group>> groups_; // by device
  std::vector<std::unique_ptr<shard_devices>> devices_;   // by shard
  std::vector<std::unique_ptr<pipeline_of_shard>> pipelines_;
};

//! Passes of a device that have sums and nothing next to these: forward passes and gradients of
//! inputs that are in no braid.
[[nodiscard]] inline std::int64_t passes_alone(pp::timetable_view table, int device) {
  std::int64_t count = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pp::pass const& what = table.passes[i];
    bool const braided =
      what.overlapped || (i + 1 < table.offsets[device + 1] && table.passes[i + 1].overlapped);
    bool const sums =
      what.kind == pp::pass_kind::forward || what.kind == pp::pass_kind::backward_input;
    count += sums && !braided ? 1 : 0;
  }
  return count;
}

//! Tensor parallelism; see system.hpp.
struct tensor_system {
  static constexpr char const* one_device_has = " that has all shards";

  //! @throws std::invalid_argument where stages cannot be in shards, or an option does not go with
  //! these
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "tensor parallelism (--tensor)");
    auto const refuse = [](std::string const& why) {
      throw std::invalid_argument("stages in shards (--tensor) " + why);
    };
    if (o.own.adapted != registry::adapter::none)
      refuse("go into no adapter; leave --with out");
    auto const shards = shards_of_stages(o);
    if (o.size.key_heads % shards != 0) {
      refuse("want the heads of keys and values, " + std::to_string(o.size.key_heads) +
             ", to be a multiple of the " + std::to_string(shards) + " shards");
    }
    auto table = registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
    auto const& named = registry::find_schedule(o.schedule);
    pp::pipeline_view const over = table.over;
    if (named.traits.weights_travel || over.extents.chunks > 1 || over.first_units != nullptr ||
        over.holders != nullptr || over.extents.routes() > 1) {
      refuse("want a schedule over whole sequences with one copy of every stage, which " +
             o.schedule + " is not; take stp, 1f1b or a V shape");
    }
    if (adds_from_last(table) || !adds_as_one_device(table, false)) {
      throw std::invalid_argument("--tensor wants gradients of inputs in the order of "
                                  "microbatches, which this schedule has not");
    }
    return table;
  }
  static tensor_pipeline pipeline(options const& o, pp::timetable_view table) {
    return {o.size, table, shards_of_stages(o), seed_of(o)};
  }
  static tensor_pipeline one_device(options const& o, pp::timetable_view table) {
    return pipeline(o, on_one_device(table, false)); // weights add up as in the schedule
  }
  static void report(options const& o, pp::timetable_view, tensor_pipeline const& model) {
    report_shard(o, model.slots(), model.trace(), model.counts());
  }
  //! @param ran when each pass of a step ran. @param counts by device
  static void report_shard(options const& o,
                           std::vector<device_row> const& slots,
                           pp::timetable_view const& ran,
                           std::span<sum_counts const> counts) {
    report_in_slots(o, "Slots of a shard of " + std::to_string(shards_of_stages(o)), slots);
    std::printf("\nSums over the shards in a step; exposed: waited for with nothing done beside");
    auto const row = [&counts](char const* name, std::int64_t sum_counts::*number) {
      device_row all{name, {}};
      for (sum_counts const& of_device : counts)
        all.numbers.push_back(of_device.*number);
      return all;
    };
    std::vector<std::int64_t> alone; // passes all of whose sums are exposed
    for (int device = 0; device < ran.over.extents.devices; ++device)
      alone.push_back(passes_alone(ran, device));
    print_device_rows("",
                      {row("sums", &sum_counts::made),
                       row("exposed", &sum_counts::exposed),
                       {"passes alone, planned", std::move(alone)},
                       row("passes alone, measured", &sum_counts::exposed_passes)},
                      1,
                      0);
  }
};

} // namespace gpt
