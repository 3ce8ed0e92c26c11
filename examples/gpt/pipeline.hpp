// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library: timetable, plan, threads.

#include <pipe/core/shape.hpp>
#include <pipe/model/device_memory.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model.hpp"
#include "stage.hpp"
#include "text.hpp"

namespace gpt {

namespace pp = pipelining;

//! A stage as the library calls it: contexts become units, bytes become floats.
struct pipeline_stage : stage<float> {
  using stage<float>::stage;

  void forward(pp::context const& where, pp::input x, pp::output y) {
    auto const run = where.recomputing ? &stage<float>::recompute : &stage<float>::forward;
    (this->*run)(unit_of(where), x.as<float>().data(), y.as<float>().data(), kept_of(where));
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    stage<float>::backward(
      unit_of(where), dy.as<float>().data(), dx.as<float>().data(), kept_of(where));
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    stage<float>::backward_input(
      unit_of(where), dy.as<float>().data(), dx.as<float>().data(), kept_of(where));
  }
  void backward_weight(pp::context const& where) { stage<float>::backward_weight(unit_of(where)); }

private:
  [[nodiscard]] static unit unit_of(pp::context const& where) {
    return {where.microbatch, where.chunk};
  }
  //! Null where the plan has no slots for what stages keep.
  [[nodiscard]] static float* kept_of(pp::context const& where) {
    return where.activation.as<float>().data();
  }
};

//! Bytes of the messages between stages, and of activations where the library moves them. What
//! stages keep beside, they keep in buffers of their own.
struct slot_sizes {
  model_size size;
  step_cut cut;
  std::vector<layer_range> moved{}; //!< the layers of every stage; empty: activations stay

  slot_sizes(model_size const& of, step_cut how, pp::timetable_view table)
      : size(of), cut(std::move(how)) {
    if (std::any_of(table.passes, table.passes + table.size(), [](pp::pass const& what) {
          return what.kind == pp::pass_kind::offloaded_forward;
        })) {
      moved = cut_layers(of.layers, pp::stages(table.extents));
    }
  }

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    auto const tokens = cut.range({maker.microbatch, maker.chunk}).count();
    std::int64_t numbers = 0;
    if (of == pp::slot_class::output || of == pp::slot_class::input_gradient) {
      numbers = tokens * size.width;
    } else if (of == pp::slot_class::activation && !moved.empty()) {
      numbers = kept_numbers(size, moved[maker.stage], tokens);
    }
    return numbers * static_cast<std::int64_t>(sizeof(float));
  }
};

//! Activations of a device that lie in slots, in bytes: what the plan reserves, and the most that
//! were in use at once when it ran.
struct slot_bytes {
  std::int64_t planned = 0;
  std::int64_t measured = 0;
  std::int64_t planned_on_host = 0;
  std::int64_t measured_on_host = 0;
};

//! @param ran when each pass of a step ran
[[nodiscard]] inline std::vector<slot_bytes>
slot_bytes_of(pp::plan_view work, pp::timetable_view ran, slot_sizes const& sizes) {
  auto const bytes = [&sizes](pp::pass const& what) {
    return static_cast<double>(sizes.bytes(pp::slot_class::activation, what));
  };
  std::vector<slot_bytes> all;
  for (int device = 0; device < work.extents.devices; ++device) {
    auto const& layout = work.layout(device, pp::slot_class::activation);
    all.push_back({layout.count * layout.bytes,
                   static_cast<std::int64_t>(pp::peak_activation_bytes(ran, device, bytes)),
                   work.host_bytes == nullptr ? 0 : work.host_bytes[device],
                   static_cast<std::int64_t>(pp::peak_host_bytes(ran, device, bytes))});
  }
  return all;
}

//! Tokens of the sequence of each microbatch: the longest have all, the others as many as their
//! chunks.
[[nodiscard]] inline std::vector<std::int64_t> lengths_of(model_size const& size,
                                                          pp::timetable_view table) {
  auto const whole = cut_sequence(size.sequence, table.extents.chunks);
  std::vector<std::int64_t> lengths;
  for (int m = 0; m < table.extents.microbatches; ++m) {
    auto const chunks = static_cast<std::size_t>(pp::chunks_of(table.over(), m));
    lengths.push_back(whole[chunks - 1].end);
  }
  return lengths;
}

//! How one device without chunks cuts sequences of these lengths.
[[nodiscard]] inline step_cut cut_whole(std::vector<std::int64_t> const& lengths) {
  std::vector<std::vector<chunk_range>> chunks;
  for (auto const length : lengths) {
    chunks.push_back(cut_sequence(length, 1));
  }
  return step_cut(std::move(chunks));
}

//! How a timetable cuts the work of a step.
[[nodiscard]] inline step_cut cut_for(pp::timetable_view table,
                                      std::vector<std::int64_t> const& lengths) {
  std::vector<std::vector<chunk_range>> chunks;
  for (int m = 0; m < table.extents.microbatches; ++m) {
    chunks.push_back(
      cut_sequence(lengths[static_cast<std::size_t>(m)], pp::chunks_of(table.over(), m)));
  }
  step_cut cut(std::move(chunks));
  for (int i = 0; i < table.size(); ++i) {
    if (table.passes[i].kind == pp::pass_kind::checkpointed_forward) {
      cut.recompute({table.passes[i].microbatch, table.passes[i].chunk});
    }
  }
  return cut;
}

//! @throws std::invalid_argument for pipelines that keep two copies of each stage
inline void check_one_copy(pp::shape const& extents) {
  if (extents.where == pp::placement::bidirectional) {
    throw std::invalid_argument(
      "schedules that enter at both ends keep two copies of each stage, whose gradients would have "
      "to be added up; the example has one copy: take dualpipe-v, which folds them");
  }
}

//! Stages add gradients up in the order of microbatches, last chunk first, as one device does:
//! other sums would have other bits.
//! @throws std::invalid_argument for a timetable whose backward passes come in another order
inline void check_order(pp::timetable_view table, std::string const& name) {
  auto const stages = static_cast<std::size_t>(pp::stages(table.extents));
  // [2, S]: how many units have had their gradients of inputs, and of weights.
  std::vector<int> done(2 * stages, 0);
  for (int i = 0; i < table.size(); ++i) {
    pp::pass const& what = table.passes[i];
    int const chunks = pp::chunks_of(table.over(), what.microbatch);
    int const unit = pp::first_unit(table.over(), what.microbatch) + chunks - 1 - what.chunk;
    for (bool const weights : {false, true}) {
      pp::pass_kind const half =
        weights ? pp::pass_kind::backward_weight : pp::pass_kind::backward_input;
      bool const counts = what.kind == pp::pass_kind::backward || what.kind == half;
      if (counts && done[(weights ? stages : 0) + what.stage]++ != unit) {
        throw std::invalid_argument(name +
                                    " adds up the gradients of microbatches in another order than "
                                    "one device, with which the example compares every bit");
      }
    }
  }
}

//! A model in stages on the threads of this process, one per device of the timetable.
class pipelined_model {
public:
  //! @param lengths tokens of the sequence of each microbatch
  //! @throws std::invalid_argument for a timetable that keeps two copies of each stage
  pipelined_model(model_size const& size,
                  pp::timetable_view table,
                  std::vector<std::int64_t> const& lengths,
                  std::uint64_t seed)
      : memories_(static_cast<std::size_t>(table.extents.devices)),
        stages_(make_stages(size, table, cut_for(table, lengths), seed, memories_)),
        sizes_(size, cut_for(table, lengths), table), plan_(pp::lower(table, sizes_)),
        runner_(plan_, stages_) {}

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss.
  double step(batch const& pieces) {
    for (auto& each : stages_) {
      each.set_batch(pieces);
    }
    runner_.step();
    return stages_.back().loss();
  }

  //! One step of the optimizer on every stage.
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : stages_) {
      each.update(optimizer, step);
    }
  }

  [[nodiscard]] std::vector<pipeline_stage>& stages() { return stages_; }

  //! When each pass of the last step ran, in seconds.
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_.trace(); }

  //! What of each device lay in slots in the last step.
  [[nodiscard]] std::vector<slot_bytes> slots() const {
    return slot_bytes_of(plan_, runner_.trace(), sizes_);
  }

  //! The most bytes that each device has kept between passes so far, and in slots in the last step.
  [[nodiscard]] std::vector<std::size_t> peak_bytes() const {
    std::vector<std::size_t> peaks;
    auto const in_slots = slots();
    for (auto const& memory : memories_) {
      peaks.push_back(memory.pool.peak_bytes() +
                      static_cast<std::size_t>(in_slots[peaks.size()].measured));
    }
    return peaks;
  }

private:
  static std::vector<pipeline_stage> make_stages(model_size const& size,
                                                 pp::timetable_view table,
                                                 step_cut const& cut,
                                                 std::uint64_t seed,
                                                 std::vector<device_memory<float>>& memories) {
    pp::shape const& extents = table.extents;
    check_one_copy(extents);
    std::vector<pipeline_stage> stages;
    for (auto const& layers : cut_layers(size.layers, pp::stages(extents))) {
      auto const device = pp::device_of(extents, static_cast<int>(stages.size()));
      stages.emplace_back(size, layers, cut, seed, memories[static_cast<std::size_t>(device)]);
    }
    return stages;
  }

  std::vector<device_memory<float>> memories_; // by device
  std::vector<pipeline_stage> stages_;
  slot_sizes sizes_;
  pp::plan plan_;
  pp::thread_runner<std::vector<pipeline_stage>> runner_;
};

} // namespace gpt
