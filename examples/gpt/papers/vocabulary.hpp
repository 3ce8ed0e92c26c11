// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT with its vocabulary in shards: every device has a part of the embedding and of
//! the output layer. The same pieces run in a pipeline, or on one device one after the other.

#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../system.hpp"
#include "vocabulary_piece.hpp"

namespace gpt {

//! Numbers of what a piece makes for others or keeps, per token.
[[nodiscard]] inline std::int64_t
numbers_per_token(model_size const& size, sharded_cut const& cut, int piece, pp::slot_class of) {
  bool const ends = piece >= cut.shards + cut.stages;
  if (of == pp::slot_class::logits || of == pp::slot_class::activation)
    return sharded_piece::kept_numbers(size, cut, piece, 1);
  if (of == pp::slot_class::statistics)
    return statistics_width;
  if (of == pp::slot_class::input_gradient && ends && cut.barriers == 1)
    return 2 * size.width + statistics_width;
  return of == pp::slot_class::output || of == pp::slot_class::input_gradient ? size.width : 0;
}

struct sharded_stage : sharded_piece {
  static constexpr bool takes_chunks = true;
  using sharded_piece::sharded_piece;

  void forward(pp::context const& where, pp::input, pp::output y) {
    sharded_piece::forward(unit_of(where),
                           read(where),
                           y.as<float>().data(),
                           where.outputs.size() > 1 ? where.outputs[1].as<float>().data() : nullptr,
                           kept_of(where));
  }
  void backward(pp::context const& where, pp::input, pp::output dx) {
    sharded_piece::backward(unit_of(where), read(where), dx.as<float>().data(), kept_of(where));
  }
  void backward_input(pp::context const& where, pp::input, pp::output dx) {
    sharded_piece::backward_input(
      unit_of(where), read(where), dx.as<float>().data(), kept_of(where));
  }
  //! Of a shard of the output layer with one barrier all that is left of its backward.
  void backward_weight(pp::context const& where) {
    if (where.inputs.empty())
      sharded_piece::backward_weight(unit_of(where));
    else
      sharded_piece::backward(unit_of(where), read(where), nullptr, kept_of(where));
  }

private:
  [[nodiscard]] inputs read(pp::context const& where) {
    from_.clear();
    for (auto const& one : where.inputs)
      from_.push_back(one.as<float>().data());
    return from_;
  }

  std::vector<float const*> from_;
};

//! Bytes of messages and of what pieces keep.
struct piece_sizes {
  model_size size;
  sharded_cut cut;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    return cut.step.range({maker.microbatch, maker.chunk}).count() *
           numbers_per_token(size, cut, maker.stage, of) * static_cast<std::int64_t>(sizeof(float));
  }
};

//! Such a model on the threads of this process.
class sharded_pipeline {
public:
  //! @param table of a with_vocabulary schedule
  sharded_pipeline(model_size const& size,
                   pp::timetable_view table,
                   int barriers,
                   std::uint64_t seed)
      : memories_(static_cast<std::size_t>(table.over.extents.devices)),
        sizes_{size, cut_around(size, table, barriers)}, plan_(pp::lower(table, sizes_)) {
    for (int number = 0; number < table.over.extents.stages(); ++number) {
      stages_.emplace_back(size,
                           number,
                           sizes_.cut,
                           seed,
                           memories_[static_cast<std::size_t>(pp::device_of(table, number))]);
    }
    runner_ = std::make_unique<pp::thread_runner<std::vector<sharded_stage>>>(plan_, stages_);
  }

  double step(batch const& pieces) {
    for (auto& each : stages_)
      each.set_batch(pieces);
    runner_->step();
    return stages_.back().loss();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : stages_)
      each.update(optimizer, step);
  }
  [[nodiscard]] std::vector<sharded_stage>& stages() { return stages_; }
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_->trace(); }

  [[nodiscard]] pp::plan_view plan() const { return plan_.view(); }
  [[nodiscard]] piece_sizes const& sizes() const { return sizes_; }
  //! The most bytes that a device has kept between passes so far, and in slots in the last step.
  [[nodiscard]] std::size_t peak_bytes() const {
    std::size_t most = 0;
    auto const ran = trace();
    for (std::size_t device = 0; device < memories_.size(); ++device) {
      std::int64_t in_slots = 0;
      for (auto const of : {pp::slot_class::activation, pp::slot_class::logits})
        in_slots += slot_use_of(plan(), ran, sizes_, static_cast<int>(device), of).measured;
      most =
        std::max(most, memories_[device].pool.peak_bytes() + static_cast<std::size_t>(in_slots));
    }
    return most;
  }

private:
  std::vector<device_memory<float>> memories_; // by device
  piece_sizes sizes_;
  pp::plan plan_;
  std::vector<sharded_stage> stages_;
  std::unique_ptr<pp::thread_runner<std::vector<sharded_stage>>> runner_;
};

//! The same pieces on one device, one unit after the other.
class sharded_device {
public:
  sharded_device(model_size const& size, sharded_cut const& cut, std::uint64_t seed)
      : size_(size), cut_(cut) {
    for (std::int64_t number = 0; number < 2 * cut.shards + cut.stages; ++number) {
      pieces_.emplace_back(size, number, cut, seed, memory_);
      made_.emplace_back(static_cast<std::size_t>(size.sequence * 2 * (size.width + 2)));
      given_.emplace_back(made_.back().size());
    }
  }

  double step(batch const& pieces) {
    for (auto& each : pieces_)
      each.set_batch(pieces);
    for (std::int64_t m = 0; m < cut_.step.microbatches(); ++m) {
      auto const chunks = cut_.step.chunks(m);
      std::vector<std::vector<std::vector<float>>> gradients(static_cast<std::size_t>(chunks));
      for (std::int64_t c = 0; c < chunks; ++c) {
        forward({m, c});
        gradients[static_cast<std::size_t>(c)] = given_; // of the shards of the output layer
      }
      for (std::int64_t c = chunks; c-- > 0;) {
        given_ = gradients[static_cast<std::size_t>(c)];
        backward({m, c});
      }
    }
    return pieces_.back().loss();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : pieces_)
      each.update(optimizer, step);
  }
  [[nodiscard]] std::vector<sharded_piece>& stages() { return pieces_; }
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (auto& each : pieces_)
      each.for_each_parameter(visit);
  }

private:
  using pointers = std::vector<float const*>;
  [[nodiscard]] static pointers
  some(std::vector<std::vector<float>> const& of, std::int64_t first, std::int64_t count) {
    pointers result;
    for (std::int64_t i = first; i < first + count; ++i)
      result.push_back(of[static_cast<std::size_t>(i)].data());
    return result;
  }
  void forward(unit u) {
    std::int64_t const behind = cut_.shards + cut_.stages;
    for (std::int64_t i = 0; i < behind + cut_.shards; ++i) {
      auto const at = static_cast<std::size_t>(i);
      pointers const from = i < cut_.shards    ? pointers{}
                            : i == cut_.shards ? some(made_, 0, cut_.shards)
                                               : some(made_, std::min(i, behind) - 1, 1);
      bool const early = i >= behind && cut_.barriers == 1;
      pieces_[at].forward(u, from, made_[at].data(), early ? given_[at].data() : nullptr);
    }
    for (std::int64_t i = behind; i < behind + cut_.shards; ++i) {
      auto const at = static_cast<std::size_t>(i);
      pieces_[at].backward(
        u, some(made_, behind, cut_.shards), cut_.barriers != 1 ? given_[at].data() : nullptr);
    }
  }
  void backward(unit u) {
    std::int64_t const behind = cut_.shards + cut_.stages;
    for (std::int64_t i = behind; i-- > 0;) {
      auto const at = static_cast<std::size_t>(i);
      pieces_[at].backward(u,
                           i + 1 == behind   ? some(given_, behind, cut_.shards)
                           : i < cut_.shards ? some(given_, cut_.shards, 1)
                                             : some(given_, i + 1, 1),
                           given_[at].data());
    }
  }

  model_size size_;
  sharded_cut cut_;
  device_memory<float> memory_;
  std::vector<sharded_piece> pieces_;
  std::vector<std::vector<float>> made_;  // by piece
  std::vector<std::vector<float>> given_; // by piece: gradients of their inputs
};

//! Of the chosen adapter, as with_vocabulary has them.
[[nodiscard]] inline int barriers_of(options const& o) {
  return o.own.adapted == registry::adapter::vocabulary_1   ? 1
         : o.own.adapted == registry::adapter::vocabulary_2 ? 2
                                                            : pp::interlaced;
}

//! The vocabulary in shards; see system.hpp.
struct vocabulary_system {
  static constexpr char const* one_device_has = " that has all shards";
  static constexpr char const* in_slots =
    "Activations of layers and logits of the output layer's shards in slots";
  static constexpr named_pool pools[] = {{"activations", pp::slot_class::activation},
                                         {"logits", pp::slot_class::logits}};

  //! @throws std::invalid_argument where there are none, or an option does not go with these
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "the vocabulary in shards (--with vocabulary-...)");
    auto table = registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
    if (table.view().over.first_units != nullptr || adds_from_last(table)) {
      throw std::invalid_argument("the vocabulary in shards wants sequences of equal length, whose "
                                  "gradients add up from the first microbatch on, as those of " +
                                  o.schedule + " do not");
    }
    check_order(table, name_of(o));
    (void)cut_around(o.size, table, barriers_of(o)); // refuses more chunks than tokens
    return table;
  }
  static sharded_pipeline pipeline(options const& o, pp::timetable_view table) {
    return {o.size, table, barriers_of(o), seed_of(o)};
  }
  static sharded_device one_device(options const& o, pp::timetable_view table) {
    return {o.size, cut_around(o.size, table, barriers_of(o)), seed_of(o)};
  }
};

} // namespace gpt
