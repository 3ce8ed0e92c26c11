// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A shard of a stage as the library calls it: its passes meet those of the other shards for
//! sums inside, and braided passes hide each other's sums. How the shards reach each other, on
//! threads or as processes, is a parameter.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tensor_shard.hpp"

namespace gpt {

//! Sums of a device in a step.
struct sum_counts {
  std::int64_t made = 0;
  std::int64_t exposed = 0; //!< waited for with nothing done since they were begun
  //! Passes all of whose sums were exposed.
  std::int64_t exposed_passes = 0;
};

//! A device of the pipeline of one shard.
//! @tparam Sums of the parts of the same device in the pipelines of all shards. A sum has two ends:
//! `begin(part)` returns which one it is, `end(number, sum)` waits for it. At most two are under
//! way.
template <class Sums>
struct shard_device {
  host::device_work<float> work_space{};
  Sums sums{};
  std::int64_t work = 0; //!< pieces of passes so far
  sum_counts counts{};
};

//! A pass of a shard as part of a program: in pieces, each with the wait for the sum before it.
template <class Sums>
class woven_pass {
public:
  woven_pass(stage_shard& shard,
             shard_device<Sums>& at,
             pp::pass_kind kind,
             pp::composite_half const& given,
             std::vector<std::byte>& room)
      : shard_(&shard), at_(&at) {
    now_.kind = kind;
    now_.where = given.where;
    now_.added = kind == pp::pass_kind::backward ? room.data() : given.where.weight_input.data;
    out_ = given.out.as<float>().data();
    shard.begin(now_, given.in.as<float>().data());
  }

  //! One piece: what waits for the last sum, then the next step up to its sum, which begins.
  //! Returns false when that was all.
  bool advance() {
    if (under_way_) {
      if (at_->work == work_)
        ++exposed_; // nobody has done anything meanwhile
      at_->sums.end(number_, sum_);
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
      number_ = at_->sums.begin(now_.part);
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
  shard_device<Sums>* at_;
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
template <class Sums>
class tensor_stage : public stage_shard {
public:
  static constexpr bool takes_chunks = true;

  //! @param at must outlive this
  tensor_stage(model_size const& size,
               layer_range const& layers,
               std::int64_t microbatches,
               std::uint64_t seed,
               shard_of_stage which,
               shard_device<Sums>& at)
      : stage_shard(size, layers, microbatches, seed, which, at.work_space), at_(&at),
        room_(static_cast<std::size_t>(bytes(pp::slot_class::weight_input, {}))) {}

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
  //! Two passes of the device in turn, piece by piece: each runs while the sum of the other is
  //! made.
  void braid(pp::pass_kind kind,
             pp::composite_half const& given,
             pp::pass_kind other_kind,
             pp::composite_half const& other_half,
             tensor_stage& other) {
    woven_pass first(*this, *at_, kind, given, room_);
    woven_pass second(other, *other.at_, other_kind, other_half, other.room_);
    for (bool one = true, two = true; one || two;) {
      one = one && first.advance();
      two = two && second.advance();
    }
  }

private:
  void alone(pp::pass_kind kind, pp::composite_half const& given) {
    woven_pass now(*this, *at_, kind, given, room_);
    while (now.advance()) {
    }
  }

  shard_device<Sums>* at_;
  std::vector<std::byte> room_; // of a fused backward pass
};

//! Bytes of slots: messages, which are whole on every shard, and what a shard keeps.
struct shard_sizes {
  model_size size;
  std::vector<layer_range> stages;
  shard_of_stage which;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    step_cut const whole(1, cut_sequence(size.sequence, 1));
    return stage_bytes<host_machine<float>>(
      size, size_of_shard(size, which), stages[maker.stage], whole, of, {});
  }
};

//! The microbatches in the order in which a stage adds up the gradients of its weights.
//! @throws std::invalid_argument where those of inputs do not come in the order of microbatches
[[nodiscard]] inline std::vector<int> weight_order(pp::timetable_view table, int stage) {
  std::vector<int> order;
  int inputs = 0;
  for (int i = 0; i < table.size(); ++i) {
    pp::pass const& what = table.passes[i];
    if (what.stage != stage || what.kind == pp::pass_kind::forward)
      continue;
    if (what.kind != pp::pass_kind::backward_weight && what.microbatch != inputs++) {
      throw std::invalid_argument(
        "--tensor wants gradients of inputs in the order of microbatches, "
        "which this schedule has not");
    }
    if (what.kind != pp::pass_kind::backward_input)
      order.push_back(what.microbatch);
  }
  return order;
}

//! The sum of the parts of all members, in their order, so that its bits do not depend on who comes
//! first.
//! @param part of each, as long as the sum
template <class Parts>
void add_parts(Parts const& parts, std::vector<float>& sum) {
  sum.assign(parts.front().begin(), parts.front().end());
  for (std::size_t member = 1; member < parts.size(); ++member)
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += parts[member][i];
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
        stage.push_back(
          {stage_shard(size, layers, microbatches_, seed, which, work_), own_slots(microbatches_)});
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
    own_slots slots;
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
      auto const where = each.slots.at(each.shard, unit{m, 0});
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
      add_parts(parts, sum_);
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
