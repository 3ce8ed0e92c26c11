// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model under RoundPipe: parameters lie on the host, and those of a stage are in a slot
//! of a device while it runs.

#include <pipe/planner/cut/round_stages.hpp>
#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../system.hpp"

namespace gpt {

//! What lies on the host: the layers with their parameters, each with the end of the model next to
//! it; and what goes into each layer, of every microbatch.
struct model_on_host {
  host::device_work<float> work;
  std::vector<host_stage<float>> layers;
  std::vector<std::vector<float>> inputs; //!< [M x layers][tokens, width]

  [[nodiscard]] std::vector<float>& input(std::int64_t microbatch, std::size_t layer) {
    return inputs[static_cast<std::size_t>(microbatch) * layers.size() + layer];
  }
};

//! What the stages of a device share, with slots for the layers of one.
struct lent_device {
  host::device_work<float> work{};
  std::vector<own_slots> slots{};
};

//! Some layers, as one stage of RoundPipe: forward alone, or forward again and back.
class loaded_stage {
public:
  struct span {
    std::int64_t first;
    std::int64_t last;
    bool turns; //!< the first that goes back: its input comes from the stage before
  };

  loaded_stage(
    model_size const& size, step_cut const& step, model_on_host& host, lent_device& device, span of)
      : host_(&host), device_(&device), first_(static_cast<std::size_t>(of.first)),
        turns_(of.turns) {
    auto const each_layer = cut_layers(size.layers, size.layers);
    for (auto layer = of.first; layer < of.last; ++layer) {
      pieces_.emplace_back(size, each_layer[static_cast<std::size_t>(layer)], step, 0, device.work);
      pieces_.back().shard(0);
    }
    device.slots.resize(std::max(device.slots.size(), pieces_.size()));
    for (auto& each : between_)
      each.resize(static_cast<std::size_t>(size.sequence * size.width));
  }

  void set_batch(batch const& pieces) {
    for (auto& piece : pieces_)
      piece.set_batch(pieces);
  }
  [[nodiscard]] std::vector<host_stage<float>> const& pieces() const { return pieces_; }
  [[nodiscard]] double loss() const { return pieces_.back().loss(); }

  void forward(pp::context const& where, pp::input in, pp::output out) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (in.data != nullptr) // the first piece embeds
        std::copy_n(in.as<float>().data(),
                    between_[0].size(),
                    host_->input(where.microbatch, first_ + i).begin());
      in = forward(where, i, in, i + 1 < pieces_.size() ? between(i) : out);
    }
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    auto x = turns_ ? in : read(message_in(host_->input(where.microbatch, first_)));
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      x = forward(where, i, x, between(i));
    for (std::size_t i = pieces_.size(); i-- > 0;) { // the head does not read its input
      auto const dx = i == 0 && out.slot >= 0 ? out : between(i);
      pieces_[i].run_half(pp::pass_kind::backward, {slots(where, i), in, dx});
      in = read(dx);
    }
  }

  void gather_weights(pp::context const&, pp::output out) {
    float* to = out.as<float>().data();
    each_with_home([&](host_stage<float>& piece, host_stage<float>& home) {
      copy_out(home, &parameter<float>::value, to);
      piece.use(to);
      piece.refresh_matrices();
      to += piece.weight_numbers();
    });
  }
  void use_weights(pp::context const&, pp::input) {} // where they have been gathered to
  void collect_gradients(pp::context const&, pp::output out) {
    float* to = out.as<float>().data();
    for (auto& piece : pieces_) {
      piece.collect(to);
      to += piece.gradient_numbers();
    }
  }
  void scatter_gradients(pp::context const&, pp::input in) {
    float const* from = in.as<float>().data();
    each_with_home([&](host_stage<float>&, host_stage<float>& home) {
      home.for_each_parameter([&](parameter<float>& p) {
        for (auto& x : p.gradient)
          x += *from++;
      });
    });
  }

private:
  //! What goes from a piece to the next one, or back.
  [[nodiscard]] pp::output between(std::size_t piece) { return message_in(between_[piece % 2]); }
  [[nodiscard]] pp::context slots(pp::context const& where, std::size_t piece) {
    return device_->slots[piece].at(pieces_[piece], unit{where.microbatch, 0});
  }
  //! One piece. Returns what it has handed on.
  pp::input
  forward(pp::context const& where, std::size_t piece, pp::input const& x, pp::output const& y) {
    pieces_[piece].run_half(pp::pass_kind::forward, {slots(where, piece), x, y});
    return read(y);
  }
  template <class Visit>
  void each_with_home(Visit visit) {
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      visit(pieces_[i], host_->layers[first_ + i]);
  }

  model_on_host* host_;
  lent_device* device_;
  std::size_t first_; // layer
  bool turns_;
  std::vector<host_stage<float>> pieces_; // a layer each
  std::vector<float> between_[2];         // what goes from piece to piece
};

//! Bytes of messages, and of the weights and gradients of a stage.
struct round_sizes {
  std::int64_t message = 0;
  std::vector<std::int64_t> weights; //!< by stage
  std::vector<std::int64_t> gradients;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    return of == pp::slot_class::weights          ? weights[maker.stage]
           : of == pp::slot_class::full_gradients ? gradients[maker.stage]
           : of == pp::slot_class::output         ? message
                                                  : 0;
  }
};

//! The list of stages that takes least, where layers are equal.
[[nodiscard]] inline pp::round_stages best_list(model_size const& size, std::int64_t devices) {
  return pp::round_stages::best(std::vector<pp::layer_cost>(static_cast<std::size_t>(size.layers)),
                                static_cast<int>(devices));
}

//! The list of so many stages, which have equal numbers of layers as far as these go.
//! @throws std::invalid_argument for stages without layers
[[nodiscard]] inline pp::round_stages
even_list(model_size const& size, std::int64_t forward, std::int64_t backward) {
  auto const runs = [](std::int64_t layers, std::int64_t stages) {
    std::vector<int> all;
    for (layer_range const& each : cut_layers(layers, stages))
      all.push_back(static_cast<int>(each.last - each.first));
    return all;
  };
  pp::round_stages list{{}, runs(size.layers, backward)};
  auto const rest = size.layers - list.backward.front();
  if (backward > size.layers || forward > rest) {
    throw std::invalid_argument("RoundPipe: " + std::to_string(size.layers) +
                                " layers are at most as many stages that go "
                                "back, and all but those of the first of these, " +
                                std::to_string(rest) +
                                ", at most as many that go forward; ask for fewer than " +
                                std::to_string(forward) + " forward and " +
                                std::to_string(backward) + " back, or for more --layers");
  }
  list.forward = runs(rest, forward);
  return list;
}

//! The model on the threads of this process, one per device, none of which owns any part of it.
class round_model {
public:
  //! @param table of RoundPipe over this list, with its weights in with_sharded_weights
  round_model(model_size const& size,
              pp::round_stages list,
              pp::timetable_view table,
              std::uint64_t seed)
      : cut_(table.over.extents.microbatches, cut_sequence(size.sequence, 1)),
        list_(std::move(list)), devices_(static_cast<std::size_t>(table.over.extents.devices)) {
    make_stages(size, seed);
    sizes_.message = size.sequence * size.width * bytes_of_number;
    for (auto const& each : stages_) {
      auto& weights = sizes_.weights.emplace_back(0);
      auto& gradients = sizes_.gradients.emplace_back(0);
      for (auto const& piece : each.pieces()) {
        weights += piece.weight_numbers() * bytes_of_number; // with transposed matrices
        gradients += piece.gradient_numbers() * bytes_of_number;
      }
    }
    plan_ = pp::lower(table, sizes_);
    runner_ = std::make_unique<pp::thread_runner<std::vector<loaded_stage>>>(plan_, stages_);
  }

  double step(batch const& pieces) {
    for (auto& stage : stages_)
      stage.set_batch(pieces);
    runner_->step();
    return stages_[list_.forward.size()].loss();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& layer : host_.layers)
      layer.update(optimizer, step);
  }
  [[nodiscard]] std::vector<host_stage<float>>& stages() { return host_.layers; }
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_->trace(); }
  [[nodiscard]] std::vector<device_row> slots() const {
    return pool_rows(plan_, trace(), sizes_, gathered_pools);
  }
  [[nodiscard]] pp::plan const& plan() const { return plan_; }
  [[nodiscard]] round_sizes const& sizes() const { return sizes_; }

private:
  static constexpr std::int64_t bytes_of_number = sizeof(float);

  void make_stages(model_size const& size, std::uint64_t seed) {
    for (auto const& layer : cut_layers(size.layers, size.layers))
      host_.layers.emplace_back(size, layer, cut_, seed, host_.work);
    host_.inputs.assign(static_cast<std::size_t>(cut_.microbatches() * size.layers),
                        std::vector<float>(static_cast<std::size_t>(size.sequence * size.width)));
    auto const put = [&](loaded_stage::span of) {
      auto& device = devices_[stages_.size() % devices_.size()];
      stages_.emplace_back(size, cut_, host_, device, of);
    };
    std::int64_t at = 0;
    for (int const run : list_.forward) {
      put({at, at + run, false});
      at += run;
    }
    at = size.layers;
    for (int const run : list_.backward) {
      put({at - run, at, at == size.layers});
      at -= run;
    }
  }

  step_cut cut_;
  pp::round_stages list_;
  model_on_host host_;
  std::vector<lent_device> devices_;
  std::vector<loaded_stage> stages_;
  round_sizes sizes_;
  pp::plan plan_;
  std::unique_ptr<pp::thread_runner<std::vector<loaded_stage>>> runner_;
};

//! RoundPipe: devices take stages in turn; see system.hpp.
struct round_system {
  static constexpr char const* one_device_has = "";
  static constexpr char const* in_slots = "Weights and gradients loaded from the host";

  //! As many stages as asked for; those that are not, as in the list that takes least.
  static pp::round_stages list(options const& o) {
    auto best = best_list(o.size, o.devices);
    if (!o.own.forward_stages && !o.own.backward_stages)
      return best;
    auto const given = [](std::optional<int> asked, auto const& runs) {
      return asked.value_or(static_cast<int>(runs.size()));
    };
    return even_list(o.size,
                     given(o.own.forward_stages, best.forward),
                     given(o.own.backward_stages, best.backward));
  }
  //! @throws std::invalid_argument for options that it does not have
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, o.schedule);
    auto choice = choice_of(o, name_of(o));
    auto const stages = list(o);
    choice.forward_stages = static_cast<int>(stages.forward.size());
    choice.backward_stages = static_cast<int>(stages.backward.size());
    return registry::make_named_timetable(choice, unit_costs);
  }
  static round_model pipeline(options const& o, pp::timetable_view table) {
    return {o.size, list(o), table, seed_of(o)};
  }
  static single_device<float> one_device(options const& o, pp::timetable_view) {
    return {o.size, 1, cut_whole(o.lengths), seed_of(o)};
  }
};

} // namespace gpt
