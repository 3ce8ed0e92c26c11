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
  step_cut cut;
  host::device_work<float> between_steps;
  std::vector<host_stage<float>> layers;
  std::vector<std::vector<float>> inputs; //!< [M x layers][tokens, width]

  model_on_host(model_size const& size, std::int64_t microbatches, std::uint64_t seed)
      : cut(microbatches, cut_sequence(size.sequence, 1)),
        inputs(static_cast<std::size_t>(microbatches * size.layers),
               std::vector<float>(static_cast<std::size_t>(size.sequence * size.width))) {
    for (layer_range const& layer : cut_layers(size.layers, size.layers))
      layers.emplace_back(size, layer, cut, seed, between_steps);
  }
  [[nodiscard]] std::vector<float>& input(std::int64_t microbatch, std::size_t layer) {
    return inputs[static_cast<std::size_t>(microbatch) * layers.size() + layer];
  }
};

//! Some layers, as one stage of RoundPipe: forward alone, or forward again and back. The last layer
//! only has the latter, so that the stage with it gets its input from the stage before.
class loaded_stage {
public:
  loaded_stage(model_size const& size,
               model_on_host& host,
               host::device_work<float>& work,
               layer_range const& held)
      : host_(&host), held_(held), slots_(static_cast<std::size_t>(held.last - held.first)) {
    auto const each_layer = cut_layers(size.layers, size.layers);
    for (auto layer = held.first; layer < held.last; ++layer) {
      pieces_.emplace_back(size, each_layer[static_cast<std::size_t>(layer)], host.cut, 0, work);
      pieces_.back().shard(0);
    }
    for (auto& each : between_)
      each.resize(static_cast<std::size_t>(size.sequence * size.width));
  }

  void set_batch(batch const& pieces) {
    for (auto& piece : pieces_)
      piece.set_batch(pieces);
  }
  [[nodiscard]] double loss() const { return pieces_.back().loss(); }

  void run_half(pp::pass_kind kind, pp::composite_half const& given, int) {
    auto const& [where, in, out] = given;
    kind == pp::pass_kind::forward ? forward(where, in, out) : backward(where, in, out);
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
  void forward(pp::context const& where, pp::input in, pp::output out) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (in.data != nullptr) // the first piece embeds
        std::copy_n(in.as<float>().data(),
                    between_[0].size(),
                    host_->input(where.microbatch, first() + i).begin());
      in = forward(where, i, in, i + 1 < pieces_.size() ? between(i) : out);
    }
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    auto x = held_.ends ? in : read(message_in(host_->input(where.microbatch, first())));
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      x = forward(where, i, x, between(i));
    for (std::size_t i = pieces_.size(); i-- > 0;) { // the head does not read its input
      auto const dx = i == 0 && out.slot >= 0 ? out : between(i);
      pieces_[i].run_half(pp::pass_kind::backward, {slots(where, i), in, dx});
      in = read(dx);
    }
  }

  //! What goes from a piece to the next one, or back.
  [[nodiscard]] pp::output between(std::size_t piece) { return message_in(between_[piece % 2]); }
  [[nodiscard]] pp::context slots(pp::context const& where, std::size_t piece) {
    return slots_[piece].at(pieces_[piece], unit{where.microbatch, 0});
  }
  [[nodiscard]] std::size_t first() const { return static_cast<std::size_t>(held_.first); }
  //! One piece. Returns what it has handed on.
  pp::input
  forward(pp::context const& where, std::size_t piece, pp::input const& x, pp::output const& y) {
    pieces_[piece].run_half(pp::pass_kind::forward, {slots(where, piece), x, y});
    return read(y);
  }
  template <class Visit>
  void each_with_home(Visit visit) {
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      visit(pieces_[i], host_->layers[first() + i]);
  }

  model_on_host* host_;
  layer_range held_;
  std::vector<own_slots> slots_;          // of each layer
  std::vector<host_stage<float>> pieces_; // a layer each
  std::vector<float> between_[2];         // what goes from piece to piece
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

//! The layers of every stage of a list, those that go forward first.
[[nodiscard]] inline std::vector<layer_range> layers_of(model_size const& size,
                                                        pp::round_stages const& list) {
  std::vector<layer_range> stages;
  auto const put = [&](std::int64_t first, std::int64_t last) {
    stages.push_back({first, last, first == 0, last == size.layers});
  };
  std::int64_t at = 0;
  for (int const run : list.forward) {
    put(at, at + run);
    at += run;
  }
  at = size.layers;
  for (int const run : list.backward) {
    put(at - run, at);
    at -= run;
  }
  return stages;
}

//! What the slots of such stages take: messages, and the weights and gradients of a stage.
[[nodiscard]] inline sizes_of_plan round_slots(model_size const& size,
                                               pp::round_stages const& list) {
  struct round_sizes {
    std::int64_t message;
    std::vector<gathered_bytes> stages{};

    [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
      return of == pp::slot_class::weights          ? stages[maker.stage].weights
             : of == pp::slot_class::full_gradients ? stages[maker.stage].gradients
             : of == pp::slot_class::output         ? message
                                                    : 0;
    }
  };
  return [=](pp::timetable_view, auto const&) {
    round_sizes sizes{size.sequence * size.width * static_cast<std::int64_t>(sizeof(float))};
    for (layer_range const& held : layers_of(size, list))
      sizes.stages.push_back(gathered_on_host(size, held));
    return plan_sizes(std::move(sizes), gathered_pools);
  };
}

//! The model on the threads of this process, one per device, none of which owns any part of it.
class round_model : public model_on_host, public model_on_threads<copies_of<loaded_stage>> {
public:
  //! @param table of RoundPipe over this list, with its weights in with_sharded_weights
  round_model(model_size const& size,
              pp::round_stages const& list,
              pp::timetable_view table,
              std::uint64_t seed)
      : model_on_host(size, table.over.extents.microbatches, seed),
        model_on_threads(
          table,
          whole_lengths(size, table),
          {round_slots(size, list)},
          [&](auto& shared) {
            auto const held = layers_of(size, list);
            return make_by_way<loaded_stage>(table, {}, [&](std::size_t, int stage, int device) {
              return std::make_unique<loaded_stage>(size,
                                                    *this,
                                                    shared[static_cast<std::size_t>(device)],
                                                    held[static_cast<std::size_t>(stage)]);
            });
          }),
        turns_(list.forward.size()) {}

  double step(batch const& pieces) {
    for_each_stage([&](std::size_t, loaded_stage& stage) { stage.set_batch(pieces); });
    run_plan();
    return ways().front()[turns_]->loss();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& layer : layers)
      layer.update(optimizer, step);
  }
  [[nodiscard]] std::vector<host_stage<float>>& stages() { return layers; }

private:
  std::size_t turns_; // the first stage that goes back
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
  static single_device one_device(options const& o, pp::timetable_view) {
    return {o.size, 1, cut_whole(o.lengths), seed_of(o)};
  }
};

} // namespace gpt
