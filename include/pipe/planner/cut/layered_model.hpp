// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A model as layers, and the devices that it may be cut onto. Header for
//! pipelining::detail::layer_load, device_power, arrangement, layered_model, layered_devices and
//! least_of_cuts.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/planner/model/stage_memory.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The load of one layer on a device of speed 1.
struct layer_load {
  layer_cost time;       //!< of one microbatch
  double activation = 0; //!< bytes of one microbatch, from its forward to its last backward pass
  double resident = 0;   //!< bytes that are always there: weights, gradients, the optimizer's
};

//! The speed and the memory of one device.
struct device_power {
  double speed = 1;                                        //!< times are divided by it
  double memory = std::numeric_limits<double>::infinity(); //!< bytes

  friend constexpr bool operator==(device_power const&, device_power const&) = default;
};

} // namespace detail

//! @brief The layers of each stage, and the device at each place of the pipeline.
struct arrangement {
  std::vector<int> cut;    //!< [S] layers of each stage, 0 allowed
  std::vector<int> places; //!< [P] the device at each place, a permutation

  friend bool operator==(arrangement const&, arrangement const&) = default;
};

//! @brief The questions that a search over arrangements asks of a model on its devices.
//!
//! `layers()` is the number of layers. `equal_devices()` is true when all devices are alike.
//! `costs` gives the times of an arrangement. `excess` gives the bytes beyond the memory of the
//! device that has the most too many, 0 where all fits. `start` gives a cut to begin with.
//! `least_time` is a makespan that no arrangement and no order can beat.
template <class Model>
concept layered_model = requires(Model const& model,
                                 pipeline_view const& over,
                                 arrangement const& how,
                                 timetable_view table) {
  { model.layers() } -> std::convertible_to<int>;
  { model.equal_devices() } -> std::convertible_to<bool>;
  { model.start(over, how.places) } -> std::convertible_to<std::vector<int>>;
  { model.costs(over, how) } -> cost_model;
  { model.excess(table, how) } -> std::convertible_to<double>;
  { model.least_time(over) } -> std::convertible_to<double>;
};

//! @brief No cut, no placement and no order of these layers on these devices takes less: each
//! device that has layers does its share of all work at best, and none begins before the layers
//! that come before it and one layer for each such device before it are through.
//! @param layers at least one part that a stage has whole: an output layer is one of its own.
//! @param speeds [P] above 0. @param latency of a message.
//! @param over any placement; where sequences are chunked, nothing waits for whole layers.
//! @complexity O(L + P log P)
//! @source own derivation
[[nodiscard]] inline double least_of_cuts(std::span<layer_cost const> layers,
                                          std::vector<double> speeds,
                                          double latency,
                                          pipeline_view const& over) {
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  double work = 0;
  double path = 0;
  double largest = 0;
  for (layer_cost const& each : layers) {
    work += each.sum();
    path += each.forward + each.backward_input;
    largest = std::max(largest, each.sum());
  }
  shape const& extents = over.extents;
  bool const whole = extents.chunks == 1;
  double const times = extents.microbatches;
  double power = 0;
  double waiting = 0; // what the devices could have done before their first pass
  double before = 0;  // the least time until the device that is reached next has its first input
  std::size_t const ways = extents.where == placement::bidirectional ? 2 : 1;
  double bound = std::numeric_limits<double>::infinity();
  // The fastest devices have layers, as many of them as is best.
  std::size_t const most = ways == 1 ? std::min(speeds.size(), layers.size()) : speeds.size();
  for (std::size_t place = 0; place < most; place += ways) {
    std::size_t const end = std::min(place + ways, speeds.size());
    for (std::size_t i = place; i < end; ++i) {
      power += speeds[i];
      waiting += whole ? speeds[i] * before : 0;
      bound = std::min(bound, (times * work + waiting) / power);
    }
    // From both ends any layer may be the first of a device, so that only messages are sure.
    before += latency + (ways == 1 ? layers[place].forward / speeds.front() : 0);
  }
  // A layer that two devices hold does half of its work on each.
  bound = std::max(bound, times * largest / speeds.front() / static_cast<double>(ways));
  return whole
           ? std::max(bound,
                      path / speeds.front() + 2 * latency * static_cast<double>(speeds.size() - 1))
           : bound;
}

//! @brief Layers whose loads are known one by one, on devices that differ in speed and memory: a
//! `layered_model`. Chunks of a sequence are equal parts of it.
class layered_devices {
public:
  //! @param latency time of a message between two devices.
  //! @throws std::invalid_argument without layers or devices, or for numbers that cannot be.
  layered_devices(std::vector<detail::layer_load> layers,
                  std::vector<detail::device_power> devices,
                  double latency = 0)
      : loads_(std::move(layers)), devices_(std::move(devices)), latency_(latency) {
    for (detail::layer_load const& each : loads_) {
      if (!(each.activation >= 0 && each.resident >= 0))
        throw std::invalid_argument("layered_devices: the bytes of a layer must not be negative");
      times_.push_back(each.time);
    }
    if (loads_.empty() || devices_.empty())
      throw std::invalid_argument("layered_devices: give at least one layer and one device");
    detail::check_layers(times_);
    for (detail::device_power const& each : devices_)
      if (!(each.speed > 0 && each.speed <= std::numeric_limits<double>::max() && each.memory > 0))
        throw std::invalid_argument(
          "layered_devices: a device must have a speed and a memory above 0");
  }

  //! How many layers there are.
  [[nodiscard]] int layers() const noexcept { return static_cast<int>(loads_.size()); }
  //! True when all devices are alike.
  [[nodiscard]] bool equal_devices() const {
    return std::all_of(devices_.begin(), devices_.end(), [this](detail::device_power const& each) {
      return each == devices_.front();
    });
  }
  //! Layers of each stage, [S], balanced over the devices by their speeds.
  [[nodiscard]] std::vector<int> start(pipeline_view const& over,
                                       std::vector<int> const& places) const {
    return balanced_devices(times_, over, speeds(over, places));
  }
  //! The times of the stages of an arrangement.
  [[nodiscard]] cost_table costs(pipeline_view const& over, arrangement const& how) const {
    std::vector<double> const speed = speeds(over, how.places);
    cost_table table(over.extents, {.communication = latency_});
    std::size_t layer = 0;
    for (int stage = 0; stage < over.extents.stages(); ++stage) {
      auto const s = static_cast<std::size_t>(stage);
      layer_cost all{0, 0, 0};
      for (int i = 0; i < how.cut[s]; ++i, ++layer)
        all += times_[layer];
      double const part = speed[s] * over.extents.chunks;
      for (int chunk = 0; chunk < over.extents.chunks; ++chunk) {
        table.set(role::forward, stage, chunk, all.forward / part);
        table.set(role::input, stage, chunk, all.backward_input / part);
        table.set(role::weights, stage, chunk, all.backward_weight / part);
      }
    }
    return table;
  }
  //! The most bytes that a device holds beyond its memory; not above 0 where all fits.
  [[nodiscard]] double excess(timetable_view table, arrangement const& how) const {
    int const chunks = table.over.extents.chunks;
    stage_memory memory;
    auto layer = loads_.begin();
    for (int const count : how.cut) {
      detail::layer_load all;
      for (int i = 0; i < count; ++i, ++layer) {
        all.activation += layer->activation / chunks;
        all.resident += layer->resident;
      }
      memory.activation.insert(
        memory.activation.end(), static_cast<std::size_t>(chunks), all.activation);
      memory.resident.push_back(all.resident);
    }
    double most = 0;
    int device = 0;
    for (double const held : device_bytes(table, memory))
      most = std::max(most, held - device_at(how.places, device++).memory);
    return most;
  }
  //! A makespan that no cut, placement and order goes below.
  [[nodiscard]] double least_time(pipeline_view const& over) const {
    std::vector<double> all;
    for (detail::device_power const& each : devices_)
      all.push_back(each.speed);
    return least_of_cuts(times_, all, latency_, over);
  }

private:
  [[nodiscard]] detail::device_power const& device_at(std::vector<int> const& places,
                                                      int place) const {
    return devices_.at(static_cast<std::size_t>(places.at(static_cast<std::size_t>(place))));
  }
  //! Of every stage; of its slower device where it has two.
  [[nodiscard]] std::vector<double> speeds(pipeline_view const& over,
                                           std::vector<int> const& places) const {
    std::vector<double> result;
    for (int stage = 0; stage < over.extents.stages(); ++stage) {
      result.push_back(std::numeric_limits<double>::max());
      for (int const device : holders_of(over, stage))
        result.back() = std::min(result.back(), device_at(places, device).speed);
    }
    return result;
  }

  std::vector<detail::layer_load> loads_;
  std::vector<layer_cost> times_;
  std::vector<detail::device_power> devices_;
  double latency_;
};

static_assert(layered_model<layered_devices>);

} // namespace pipelining::inline v0_3
