// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model under WeiPipe: microbatches stay on their device, weights travel as messages.

#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "../system.hpp"

namespace gpt {

//! What all devices share: the groups of layers with their parameters, where these lie between
//! steps. The first microbatch takes weights from there, the last one puts gradients there.
struct groups_at_home {
  host::device_work<float> work;
  std::vector<host_stage<float>> of;
  std::vector<std::int64_t> numbers; //!< of the parameters of each

  groups_at_home(model_size const& size,
                 std::vector<layer_range> const& groups,
                 step_cut const& cut,
                 std::uint64_t seed)
      : numbers(parameter_counts(size, groups)) {
    for (layer_range const& layers : groups)
      of.emplace_back(size, layers, cut, seed, work);
  }
  //! Weights of a group; with gradients, those after them.
  void send(std::size_t group, bool with_gradients, float* to) {
    to = copy_out(of[group], &parameter<float>::value, to);
    if (with_gradients)
      copy_out(of[group], &parameter<float>::gradient, to);
  }
  void receive_gradients(std::size_t group, float const* from) {
    copy_in(of[group], &parameter<float>::gradient, from);
  }
};

//! A device: each of its microbatches is a stage of the timetable, and a chunk a group. It has the
//! layers of every group without their weights, and room for what passes work with.
//! @tparam Home where parameters lie between steps: it has `numbers`, `send` and
//! `receive_gradients`, as `groups_at_home` does.
template <class Home>
class visited_device {
public:
  static constexpr bool takes_chunks = true;

  visited_device(model_size const& size,
                 std::vector<layer_range> const& groups,
                 step_cut const& cut,
                 Home& home)
      : home_(&home), numbers_(static_cast<std::size_t>(size.sequence * size.width)) {
    std::int64_t largest = 0;
    std::int64_t transposes = 0;
    for (layer_range const& layers : groups) {
      groups_.emplace_back(size, layers, cut, 0, work_);
      groups_.back().shard(0);
      largest = std::max(largest, groups_.back().gradient_numbers());
      transposes =
        std::max(transposes, groups_.back().weight_numbers() - groups_.back().gradient_numbers());
    }
    weights_.resize(static_cast<std::size_t>(2 * largest));
    transposes_.resize(static_cast<std::size_t>(transposes));
  }
  visited_device(visited_device const&) = delete;
  visited_device& operator=(visited_device const&) = delete;

  void set_batch(batch const& pieces) {
    sent_ = 0;
    for (auto& group : groups_)
      group.set_batch(pieces);
  }
  void forward(pp::context const& where, pp::input in, pp::output out) {
    auto& group = arrived(where, in, out, false);
    group.run_half(pp::pass_kind::forward,
                   {of_microbatch(where), read(where.state), message_in(numbers_)});
    if (!where.last_chunk())
      std::copy(numbers_.begin(), numbers_.end(), where.state.as<float>().begin());
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    auto& group = arrived(where, in, out, true);
    group.refresh_matrices();
    group.run_half(pp::pass_kind::backward,
                   {of_microbatch(where), read(where.state_gradient), message_in(numbers_)});
    if (!where.first_chunk())
      std::copy(numbers_.begin(), numbers_.end(), where.state_gradient.as<float>().begin());
    if (out.slot < 0) {
      auto const index = static_cast<std::size_t>(where.chunk);
      home_->receive_gradients(index, weights_.data() + home_->numbers[index]);
    }
  }

  [[nodiscard]] std::span<float const> losses() const {
    auto const& last = groups_.back();
    return {last.losses(), static_cast<std::size_t>(last.loss_count())};
  }
  //! Bytes of weights and gradients that it has handed on in this step.
  [[nodiscard]] std::int64_t sent_bytes() const { return sent_; }

private:
  //! A pass as stages know it: each stage of the timetable is a microbatch, and a chunk a group.
  static pp::context of_microbatch(pp::context where) {
    where.microbatch = where.stage;
    where.chunk = 0;
    return where;
  }
  //! The group with the weights that have come, which are where they will be sent from, with their
  //! gradients for a backward pass.
  host_stage<float>& arrived(pp::context const& where, pp::input in, pp::output out, bool back) {
    auto const index = static_cast<std::size_t>(where.chunk);
    auto const count = home_->numbers[index];
    float* const here = out.slot < 0 ? weights_.data() : out.as<float>().data();
    if (in.slot < 0)
      home_->send(index, back, here);
    else
      std::copy_n(in.as<float>().data(), back ? 2 * count : count, here);
    if (out.slot >= 0 && where.extents.devices > 1)
      sent_ += (back ? 2 : 1) * count * static_cast<std::int64_t>(sizeof(float));
    groups_[index].use(here, transposes_.data());
    if (back)
      groups_[index].add_gradients_to(here + count);
    return groups_[index];
  }

  Home* home_;
  host::device_work<float> work_;
  std::vector<host_stage<float>> groups_;
  std::vector<float> weights_;    // of the last microbatch, which sends to nobody
  std::vector<float> transposes_; // of the matrices of one group
  std::vector<float> numbers_;    // of tokens
  std::int64_t sent_ = 0;
};

//! Bytes of messages, which are weights, and of what stays.
struct travelling_sizes {
  model_size size;
  std::vector<layer_range> groups;
  std::vector<std::int64_t> numbers; //!< of the parameters of each

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    std::int64_t count = size.sequence * size.width; // what a group hands to the next one
    if (of == pp::slot_class::output)
      count = numbers[maker.chunk];
    else if (of == pp::slot_class::input_gradient)
      count = 2 * numbers[maker.chunk];
    else if (of == pp::slot_class::activation)
      return stage_bytes<host_machine<float>>(
        size, size, groups[maker.chunk], {1, cut_sequence(size.sequence, 1)}, of, {});
    return count * static_cast<std::int64_t>(sizeof(float));
  }
};

//! How WeiPipe cuts a model into as many groups of layers as devices, and runs it.
struct travelling_plan {
  std::vector<layer_range> groups;
  step_cut cut; //!< microbatches are stages of the timetable
  travelling_sizes sizes;
  pp::plan plan;

  travelling_plan(model_size const& size, pp::timetable_view table)
      : groups(cut_layers(size.layers, table.over.extents.devices)),
        cut(table.over.extents.stages(), cut_sequence(size.sequence, 1)),
        sizes{size, groups, parameter_counts(size, groups)}, plan(pp::lower(table, sizes)) {}
};

//! Bytes of what stays and what travels, by device: planned, and measured in the last step.
//! @param ran when each pass of a step ran. @param sent what each device has handed on in it
[[nodiscard]] inline std::vector<device_row> travel_rows(travelling_plan const& of,
                                                         pp::timetable_view ran,
                                                         std::vector<std::int64_t> const& sent) {
  using enum pp::slot_class;
  pp::plan const& work = of.plan;
  static constexpr named_pool stays[] = {{"activations", activation}};
  auto rows = pool_rows(work, ran, of.sizes, stays);
  device_row planned{"weights sent, planned", {}};
  device_row slots{"slots for weights", {}}; // on their way
  for (int device = 0; device < ran.over.extents.devices; ++device) {
    auto& bytes = planned.numbers.emplace_back(0);
    for (pp::item const& step : work.program_of(device))
      bytes += step.what == pp::operation::send ? work.uses_of(step)[0].bytes : 0;
    auto& taken = slots.numbers.emplace_back(0);
    for (auto const pool : {received_input, output, received_gradient, input_gradient})
      taken += work.layout(device, pool).count * work.layout(device, pool).bytes;
  }
  rows.insert(rows.end(), {planned, {"weights sent, measured", sent}, slots});
  return rows;
}

//! The model on the threads of this process, one per device.
class travelling_model {
public:
  travelling_model(model_size const& size, pp::timetable_view table, std::uint64_t seed)
      : with_(size, table), home_(size, with_.groups, with_.cut, seed) {
    int const devices = table.over.extents.devices;
    for (int device = 0; device < devices; ++device) {
      auto const seen = with_.cut.seen_in_turn(device, devices);
      devices_.push_back(std::make_unique<device_of_threads>(size, with_.groups, seen, home_));
    }
    for (int m = 0; m < table.over.extents.stages(); ++m)
      microbatches_.push_back(devices_[static_cast<std::size_t>(m % devices)].get());
    runner_ = std::make_unique<runner>(with_.plan, microbatches_);
  }

  double step(batch const& pieces) {
    for (auto& each : devices_)
      each->set_batch(pieces);
    runner_->step();
    double sum = 0; // in the order of one device
    for (std::int64_t i = 0; i < with_.cut.tokens(); ++i) {
      auto const device = i / with_.sizes.size.sequence % std::ssize(devices_);
      sum += static_cast<double>(
        devices_[static_cast<std::size_t>(device)]->losses()[static_cast<std::size_t>(i)]);
    }
    return sum / static_cast<double>(with_.cut.tokens());
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& group : home_.of)
      group.update(optimizer, step);
  }
  [[nodiscard]] std::vector<host_stage<float>>& stages() { return home_.of; }
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_->trace(); }

  //! What stays and what travels.
  [[nodiscard]] std::vector<device_row> rows() const {
    std::vector<std::int64_t> sent;
    for (auto const& each : devices_)
      sent.push_back(each->sent_bytes());
    return travel_rows(with_, trace(), sent);
  }

private:
  using device_of_threads = visited_device<groups_at_home>;
  using runner = pp::thread_runner<std::vector<device_of_threads*>>;

  travelling_plan with_;
  groups_at_home home_;
  std::vector<std::unique_ptr<device_of_threads>> devices_;
  std::vector<device_of_threads*> microbatches_; // where each is
  std::unique_ptr<runner> runner_;
};

inline void report_travelled(options const& o, std::vector<device_row> const& rows) {
  std::printf("\nWhat stays and what travels (%s), planned, and measured in the last step",
              name_of(o).c_str());
  print_device_rows("kB", rows, 1e3, 1);
  std::printf("  sent: weights forward, and weights and gradients backward, of the whole model "
              "for each microbatch but the last\n");
}

//! WeiPipe: no stages on devices; see system.hpp.
struct travelling_system {
  static constexpr char const* one_device_has = "";

  //! @throws std::invalid_argument for options that it does not have
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, o.schedule);
    return registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
  }
  static travelling_model pipeline(options const& o, pp::timetable_view table) {
    return {o.size, table, seed_of(o)};
  }
  static single_device one_device(options const& o, pp::timetable_view) {
    return {o.size, 1, cut_whole(o.lengths), seed_of(o)};
  }
  static void report(options const& o, pp::timetable_view, travelling_model const& model) {
    report_travelled(o, model.rows());
  }
};

} // namespace gpt
