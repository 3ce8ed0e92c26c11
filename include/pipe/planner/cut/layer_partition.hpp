// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layers of unequal times in stages, and on devices. Header for pipelining::balanced_layers
//! and balanced_devices.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/cut/least_cut.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Times of one layer.
struct layer_cost {
  double forward = 1;         //!< of the forward pass
  double backward_input = 1;  //!< of the gradient of its input
  double backward_weight = 1; //!< of the gradient of its weights

  //! Of all its passes.
  [[nodiscard]] constexpr double sum() const noexcept {
    return forward + backward_input + backward_weight;
  }
  //! Adds the passes of another one.
  constexpr layer_cost& operator+=(layer_cost const& other) noexcept {
    forward += other.forward;
    backward_input += other.backward_input;
    backward_weight += other.backward_weight;
    return *this;
  }
};

//! @brief Times that the ends of a pipeline have besides layers.
struct layer_ends {
  layer_cost first{0, 0, 0}; //!< of the embedding, on the first stage
  layer_cost last{0, 0, 0};  //!< of the output layer and the loss, on the last stage
};

namespace detail {

inline void check_layers(std::span<layer_cost const> layers) {
  for (layer_cost const& layer : layers)
    if (!(layer.forward >= 0 && layer.backward_input >= 0 && layer.backward_weight >= 0))
      throw std::invalid_argument(
        "layer partition: the time of a layer must be a number that is not negative");
}

inline void check_cut(std::span<layer_cost const> layers,
                      int stages,
                      std::span<double const> speeds,
                      layer_ends const& ends) {
  if (stages < 1)
    throw std::invalid_argument("layer partition: there must be at least one stage, not " +
                                std::to_string(stages));
  check_layers(layers);
  check_layers(std::array{ends.first, ends.last});
  if (!speeds.empty() && (speeds.size() != static_cast<std::size_t>(stages) ||
                          !std::all_of(speeds.begin(), speeds.end(), [](double speed) {
                            return speed > 0 && speed <= std::numeric_limits<double>::max();
                          })))
    throw std::invalid_argument("layer partition: give one speed above 0 for every stage");
}

} // namespace detail

//! @brief The cut whose slowest stage is fastest; of those with the same slowest stage the one with
//! the least sum of squares, which is the most even. A stage may have no layer: one that has the
//! output layer only, or any where stages are more than layers.
//! @param speeds [stages] how fast the device of each stage is, in any unit; empty: all the same.
//! @param ends what the first and the last stage have besides layers.
//! @return [stages] layers of each stage, 0 allowed.
//! @throws std::invalid_argument without stages, for a bad time or speeds that are not one above 0
//! for each stage.
//! @complexity O(stages L^2) for L layers.
//! @source own derivation: dynamic programming over the end of each stage, twice.
[[nodiscard]] inline std::vector<int> balanced_layers(std::span<layer_cost const> layers,
                                                      int stages,
                                                      std::span<double const> speeds = {},
                                                      layer_ends const& ends = {}) {
  detail::check_cut(layers, stages, speeds, ends);
  std::vector<double> before{0};
  for (layer_cost const& each : layers)
    before.push_back(before.back() + each.sum());
  auto const time_of = [&](int begin, int end) {
    double const alone =
      before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(begin)];
    return [&, alone](int stage) {
      double const work =
        alone + (stage == 0 ? ends.first.sum() : 0) + (stage + 1 == stages ? ends.last.sum() : 0);
      return speeds.empty() ? work : work / speeds[static_cast<std::size_t>(stage)];
    };
  };
  int const count = static_cast<int>(layers.size());
  double const most = detail::least_cut(count, stages, 0, time_of, detail::slower).cost;
  auto const squares = [most](double rest, double time) {
    return time > most * (1 + 1e-12) ? std::numeric_limits<double>::infinity() : rest + time * time;
  };
  return detail::least_cut(count, stages, 0, time_of, squares).lengths;
}

namespace detail {

//! The number of ways to cut `layers` into `stages`, some of them empty, at most `most`.
[[nodiscard]] constexpr std::int64_t
cuts(std::int64_t layers, std::int64_t stages, std::int64_t most) noexcept {
  std::int64_t count = 1;
  for (std::int64_t i = 1; i < stages; ++i) {
    count = count * (layers + i) / i; // binomial coefficients all the way
    if (count > most)
      return most;
  }
  return count;
}

//! The next cut in lexicographic order; false after the last.
inline bool next_cut(std::vector<int>& cut) {
  std::size_t last = cut.size() - 1;
  while (last > 0 && cut[last] == 0)
    --last;
  if (last == 0)
    return false;
  ++cut[last - 1];
  int const rest = std::exchange(cut[last], 0);
  cut.back() = rest - 1;
  return true;
}

//! Tries all cuts where there are at most `most_cuts`; else the one to start from, and then single
//! layers that go to a neighbouring stage, as long as one helps.
//! @param look_at takes a cut and says whether it is the best so far. @param start makes a cut.
//! @return whether all were tried
template <class LookAt, class Start>
bool try_cuts(
  int layers, int stages, std::int64_t most_cuts, LookAt const& look_at, Start const& start) {
  if (cuts(layers, stages, most_cuts + 1) <= most_cuts) {
    std::vector<int> cut(static_cast<std::size_t>(stages));
    cut.back() = layers;
    do
      look_at(cut);
    while (next_cut(cut));
    return true;
  }
  std::vector<int> best = start();
  look_at(best);
  for (bool better = true; better;) {
    better = false;
    std::vector<int> const from = best;
    for (std::size_t i = 0; i + 1 < from.size(); ++i)
      for (int const move : {-1, 1}) {
        std::vector<int> cut = from;
        cut[i] += move;
        cut[i + 1] -= move;
        if (cut[i] >= 0 && cut[i + 1] >= 0 && look_at(cut)) {
          best = cut;
          better = true;
        }
      }
  }
  return false;
}

} // namespace detail

//! @brief The devices that hold a stage: two where microbatches go both ways, else one.
[[nodiscard]] inline std::vector<int> holders_of(pipeline_view const& over, int stage) {
  std::vector<int> devices{device_of(over, stage, 0)};
  if (int const other = device_of(over, stage, over.extents.microbatches - 1);
      other != devices.front())
    devices.push_back(other);
  return devices;
}

namespace detail {

//! Cuts of layers, judged by what every device has to do.
class device_cut {
public:
  //! @param speeds [S], or empty
  device_cut(std::span<layer_cost const> layers,
             pipeline_view const& over,
             std::span<double const> speeds,
             layer_ends const& ends)
      : speeds_(speeds.begin(), speeds.end()), before_{0}, devices_(over.extents.devices) {
    auto const count = static_cast<std::size_t>(over.extents.stages());
    speeds_.resize(count, 1);
    ends_.resize(count);
    ends_.front() += ends.first.sum();
    ends_.back() += ends.last.sum();
    for (layer_cost const& each : layers)
      before_.push_back(before_.back() + each.sum());
    for (int stage = 0; stage < over.extents.stages(); ++stage)
      holders_.push_back(holders_of(over, stage));
  }

  //! True when no device has a second stage.
  [[nodiscard]] bool one_each() const {
    std::vector<bool> has(static_cast<std::size_t>(devices_));
    for (std::vector<int> const& each : holders_) {
      if (each.size() > 1 || has[static_cast<std::size_t>(each.front())])
        return false;
      has[static_cast<std::size_t>(each.front())] = true;
    }
    return true;
  }
  //! True when all layers take the same time.
  [[nodiscard]] bool equal_layers() const {
    for (std::size_t i = 2; i < before_.size(); ++i)
      if (std::abs(before_[i] - before_[i - 1] - before_[1]) > tolerance * before_.back())
        return false;
    return true;
  }
  //! The best cut of as many layers that all take the mean time: each layer goes to the device that
  //! is ready first with it, the first of those, and there to such a stage.
  [[nodiscard]] std::vector<int> of_equal_layers() const {
    std::size_t const layers = before_.size() - 1;
    double const time = before_.back() > 0 ? before_.back() / static_cast<double>(layers) : 1;
    std::vector<int> cut(holders_.size());
    std::vector<double> work = works(cut);
    std::vector<double> load = loads(work);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      std::size_t best = 0;
      candidate first;
      for (std::size_t stage = 0; stage < cut.size(); ++stage) {
        double const more = time / speeds_[stage];
        candidate now{
          0, *std::min_element(holders_[stage].begin(), holders_[stage].end()), work[stage] + more};
        for (int const device : holders_[stage])
          now.device_ready =
            std::max(now.device_ready, load[static_cast<std::size_t>(device)] + share(stage, more));
        if (stage == 0 || now.before(first)) {
          best = stage;
          first = now;
        }
      }
      ++cut[best];
      double const more = time / speeds_[best];
      work[best] += more;
      for (int const device : holders_[best])
        load[static_cast<std::size_t>(device)] += share(best, more);
    }
    return cut;
  }
  //! Takes layers from the slowest device, each to the stage where it helps most, while that helps.
  void relieve(std::vector<int>& cut) const {
    std::pair<double, double> now = worth(cut);
    for (bool better = true; better;) {
      better = false;
      std::vector<double> const load = loads(works(cut));
      double const most = *std::max_element(load.begin(), load.end());
      std::vector<int> best = cut;
      for (std::size_t from = 0; from < cut.size(); ++from) {
        if (cut[from] == 0 ||
            std::none_of(holders_[from].begin(), holders_[from].end(), [&](int d) {
              return load[static_cast<std::size_t>(d)] >= most * (1 - tolerance);
            }))
          continue;
        for (std::size_t to = 0; to < cut.size(); ++to) {
          std::vector<int> moved = cut;
          --moved[from];
          ++moved[to];
          if (std::pair<double, double> const then = worth(moved); is_less(then, now)) {
            now = then;
            best = std::move(moved);
            better = true;
          }
        }
      }
      cut = std::move(best);
    }
  }

private:
  static constexpr double tolerance = 1e-9;

  //! A stage that a layer may go to.
  struct candidate {
    double device_ready = 0;
    int device = 0; // early ones have less to wait for, in the first and the last microbatches
    double stage_ready = 0;

    [[nodiscard]] bool before(candidate const& other) const {
      if (std::abs(device_ready - other.device_ready) > tolerance * other.device_ready)
        return device_ready < other.device_ready;
      return device != other.device ? device < other.device
                                    : stage_ready < other.stage_ready * (1 - tolerance);
    }
  };

  [[nodiscard]] static bool is_less(std::pair<double, double> const& one,
                                    std::pair<double, double> const& other) {
    if (std::abs(one.first - other.first) > tolerance * other.first)
      return one.first < other.first;
    return one.second < other.second * (1 - tolerance);
  }
  //! Of the work of a stage, what each of its devices has.
  [[nodiscard]] double share(std::size_t stage, double work) const {
    return work / static_cast<double>(holders_[stage].size());
  }
  [[nodiscard]] std::vector<double> works(std::vector<int> const& cut) const {
    std::vector<double> result;
    std::size_t layer = 0;
    for (std::size_t stage = 0; stage < cut.size(); ++stage) {
      std::size_t const end = layer + static_cast<std::size_t>(cut[stage]);
      result.push_back((ends_[stage] + before_[end] - before_[layer]) / speeds_[stage]);
      layer = end;
    }
    return result;
  }
  [[nodiscard]] std::vector<double> loads(std::vector<double> const& work) const {
    std::vector<double> result(static_cast<std::size_t>(devices_));
    for (std::size_t stage = 0; stage < work.size(); ++stage)
      for (int const device : holders_[stage])
        result[static_cast<std::size_t>(device)] += share(stage, work[stage]);
    return result;
  }
  //! The slowest device, and the squares of all.
  [[nodiscard]] std::pair<double, double> worth(std::vector<int> const& cut) const {
    std::pair<double, double> result{0, 0};
    for (double const each : loads(works(cut))) {
      result.first = std::max(result.first, each);
      result.second += each * each;
    }
    return result;
  }

  std::vector<double> speeds_; // [S]
  std::vector<double> ends_;   // [S]
  std::vector<double> before_; // [L + 1]
  std::vector<std::vector<int>> holders_;
  int devices_;
};

} // namespace detail

//! @brief A cut whose slowest device is as fast as it can be, where devices have several stages.
//!
//! The least time for layers that take equal times, or one stage per device; else near it. A stage
//! that two devices hold counts half on each. Stages of a device are as even as they can be.
//!
//! @param speeds [S] how fast the device of each stage is, in any unit; empty: all the same.
//! @param ends what the first and the last stage have besides layers.
//! @return [S] layers of each stage, 0 allowed.
//! @throws std::invalid_argument as `balanced_layers` does.
//! @complexity O(S L) for equal layers, O(S L^2) for one stage per device, else O(S^3) a move
//! each
//! @source own derivation
[[nodiscard]] inline std::vector<int> balanced_devices(std::span<layer_cost const> layers,
                                                       pipeline_view const& over,
                                                       std::span<double const> speeds = {},
                                                       layer_ends const& ends = {}) {
  detail::check_cut(layers, over.extents.stages(), speeds, ends);
  detail::device_cut const work(layers, over, speeds, ends);
  if (work.one_each())
    return balanced_layers(layers, over.extents.stages(), speeds, ends);
  std::vector<int> cut = work.of_equal_layers();
  if (!work.equal_layers())
    work.relieve(cut);
  return cut;
}

} // namespace pipelining::inline v0_3
