// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT on SlimPipeExchange: devices take over attention of each other. The same pieces
//! run in a pipeline, or on one device one after the other.

#include <pipe/attention/merge.hpp>
#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../system.hpp"
#include "exchange_schedule.hpp"
#include "tools/support/exchange_on_one_device.hpp"

namespace gpt {

//! A layer on the device that has its weights, with the keys and values of its sequences. The first
//! has the embedding, too, and the last the head.
struct exchanged_layer {
  using number = float;

  before_attention<float> before;
  after_attention<float> after;
  model_ends<float> ends;
  std::vector<std::vector<float>> key_value; //!< [microbatch], of the sequence
  std::vector<std::vector<float>> key_value_gradient;

  exchanged_layer(model_size const& size,
                  std::uint64_t seed,
                  std::int64_t layer,
                  std::int64_t microbatches,
                  std::int64_t chunks)
      : before(size, seed, layer), after(size, seed, layer),
        ends(size,
             {layer, layer + 1, layer == 0, layer + 1 == size.layers},
             seed,
             microbatches,
             microbatches * chunks),
        key_value(
          static_cast<std::size_t>(microbatches),
          std::vector<float>(static_cast<std::size_t>(size.sequence * 2 * size.key_width()))),
        key_value_gradient(key_value) {}

  template <class Visit>
  void for_each_parameter(Visit visit) {
    ends.for_each_parameter(visit, [&] {
      before.for_each_parameter(visit);
      after.for_each_parameter(visit);
    });
  }
  void refresh() {
    auto const each = [](linear<float>& matrix) { matrix.refresh(); };
    before.for_each_matrix(each);
    after.for_each_matrix(each);
    if (ends.last != nullptr)
      each(ends.last->out);
  }
};

//! What lies in a slot, in numbers, one part behind the other.
//!
//! From a projection: x, query, keys and values. From attention: its output and log-sum-exp. Back
//! go the gradients of these, to each reader those of what it has made; to attention, behind that
//! of its output, the merged output and log-sum-exp.
struct exchanged_sizes : exchange_cut {
  using exchange_cut::exchange_cut;

  [[nodiscard]] std::int64_t narrow(pp::exchange_stage const& of) const {
    return tokens(of) * size.width;
  }
  [[nodiscard]] std::int64_t keys(std::int64_t count) const { return count * 2 * size.key_width(); }
  [[nodiscard]] std::int64_t state(pp::exchange_stage const& of) const {
    return tokens(of) * (size.width + size.heads);
  }

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    return numbers(of == pp::slot_class::activation, stage(maker.stage)) *
           static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker, int reader) const {
    if (of != pp::slot_class::input_gradient)
      return bytes(of, maker);
    return gradient_numbers(stage(maker.stage), stage(reader)) *
           static_cast<std::int64_t>(sizeof(float));
  }

private:
  [[nodiscard]] std::int64_t numbers(bool kept, pp::exchange_stage const& of) const {
    auto const attends = attention_part<float>::kept_numbers(size, tokens(of));
    switch (of.part) {
    case pp::layer_part::projection:
      return kept ? before_attention<float>::kept_numbers(size, tokens(of))
                  : 2 * narrow(of) + keys(tokens(of));
    case pp::layer_part::attention: return kept ? attends : state(of);
    case pp::layer_part::taken_attention:
      return kept ? attends + keys(given(of).count()) : state(of);
    case pp::layer_part::after_attention:
      return kept ? state(of) + after_attention<float>::kept_numbers(size, tokens(of)) : narrow(of);
    }
    return 0;
  }
  [[nodiscard]] std::int64_t gradient_numbers(pp::exchange_stage const& from,
                                              pp::exchange_stage const& to) const {
    switch (from.part) {
    case pp::layer_part::projection: return narrow(from);
    case pp::layer_part::attention:
      return to.part == from.part ? 0 : narrow(from) + keys(tokens(from));
    case pp::layer_part::taken_attention:
      return to.chunk == from.chunk ? narrow(from) : keys(tokens(to));
    case pp::layer_part::after_attention:
      return to.part == pp::layer_part::projection ? narrow(from) : narrow(from) + state(from);
    }
    return 0;
  }
};

//! What all pieces of a model share.
struct exchanged_model {
  exchanged_sizes sizes;
  attention_part<float> attention;
  std::vector<exchanged_layer> layers;
  std::vector<device_memory<float>> memories; //!< by device
  batch const* pieces = nullptr;
};

//! A part of a layer for one chunk of sequences, as the library calls it.
struct exchanged_piece {
  static constexpr bool takes_chunks = true;
  pp::exchange_stage what;
  exchanged_model* model;

  void forward(pp::context const& where, pp::input, pp::output) const {
    float* const kept = kept_of(where);
    switch (what.part) {
    case pp::layer_part::projection: return project(where, kept, out(where));
    case pp::layer_part::attention: return attend(where, kept, out(where));
    case pp::layer_part::taken_attention: return attend_taken(where, kept, out(where));
    case pp::layer_part::after_attention: return end_layer(where, kept, out(where));
    }
  }

  void backward(pp::context const& where, pp::input, pp::output) const {
    float* const kept = kept_of(where);
    switch (what.part) {
    case pp::layer_part::after_attention: return end_layer_backward(where, kept);
    case pp::layer_part::attention: return attend_own_backward(where);
    case pp::layer_part::taken_attention: return attend_taken_backward(where, kept);
    case pp::layer_part::projection: return project_backward(where, kept);
    }
  }

private:
  void project(pp::context const& where, float* kept, float* out) const {
    if (layer().ends.first != nullptr)
      layer().ends.first->forward(bytes(where), chunk(), out);
    else
      std::copy_n(in(where, 0), narrow(), out);
    float* const key_value = out + 2 * narrow();
    layer().before.forward(out, out + narrow(), key_value, place(where, kept));
    std::copy_n(
      key_value, keys(chunk()), layer().key_value[unit(where)].data() + keys({0, chunk().begin}));
  }
  void attend(pp::context const& where, float* kept, float* out) const {
    std::copy_n(in(where, 0) + narrow(), narrow(), kept);
    float const* const seen = layer().key_value[unit(where)].data() + keys(given());
    model->attention.forward({chunk(), stays(), seen, kept, &memory(where).space});
    hand_on(kept, out);
  }
  void attend_taken(pp::context const& where, float* kept, float* out) const {
    if (what.taken == 0) {
      std::fill_n(out, narrow(), 0.0F);
      std::fill(
        out + narrow(), out + model->sizes.state(what), -std::numeric_limits<float>::infinity());
      return;
    }
    std::copy_n(in(where, 0) + narrow(), narrow(), kept);
    for (int old = 0; old < what.taken; ++old) {
      auto const of = model->sizes.range(old);
      std::copy_n(in(where, static_cast<std::size_t>(old) + 1) +
                    2 * of.count() * model->sizes.size.width,
                  keys(of),
                  old_keys(kept) + keys({0, of.begin}));
    }
    model->attention.forward({chunk(), given(), old_keys(kept), kept, &memory(where).space});
    hand_on(kept, out);
  }
  void end_layer(pp::context const& where, float* kept, float* out) const {
    std::copy_n(in(where, 1), model->sizes.state(what), kept);
    merge(kept, in(where, 2));
    std::vector<float> y(in(where, 0), in(where, 0) + narrow());
    layer().after.forward(kept, y.data(), place(where, after_kept(kept)));
    if (layer().ends.last == nullptr) {
      std::copy(y.begin(), y.end(), out);
      return;
    }
    float* const losses =
      layer().ends.losses.data() + where.microbatch * model->sizes.size.sequence + chunk().begin;
    layer().ends.last->forward(at_head(where), next_bytes(where), y.data(), losses);
  }
  void end_layer_backward(pp::context const& where, float* kept) const {
    float* const dx = out(where);
    if (layer().ends.last == nullptr)
      std::copy_n(in(where, 0), narrow(), dx);
    else
      start_backward(where, dx);
    std::vector<float> added(static_cast<std::size_t>(
      after_attention<float>::added_numbers(model->sizes.size, chunk().count())));
    auto const at = place(where, after_kept(kept), added.data());
    layer().after.backward_input(dx, at);
    std::fill_n(out(where, 1), narrow(), 0.0F);
    layer().after.add_output_gradient(out(where, 1), at);
    std::copy_n(kept, model->sizes.state(what), out(where, 1) + narrow());
    std::copy_n(out(where, 1), narrow() + model->sizes.state(what), out(where, 2));
    layer().after.add_backward_weight(kept, at);
  }
  void attend_own_backward(pp::context const& where) const {
    auto& gradient = layer().key_value_gradient[unit(where)];
    if (chunk().end == model->sizes.size.sequence)
      std::fill(gradient.begin(), gradient.end(), 0.0F);
    attend_backward(where,
                    stays(),
                    layer().key_value[unit(where)].data() + keys(given()),
                    gradient.data() + keys(given()));
    std::copy_n(gradient.data() + keys({0, chunk().begin}), keys(chunk()), out(where) + narrow());
  }
  void attend_taken_backward(pp::context const& where, float* kept) const {
    if (what.taken == 0) {
      std::fill_n(out(where), narrow(), 0.0F);
      return;
    }
    std::vector<float> gradient(static_cast<std::size_t>(keys(given())));
    attend_backward(where, given(), old_keys(kept), gradient.data());
    for (int old = 0; old < what.taken; ++old) {
      auto const of = model->sizes.range(old);
      std::copy_n(gradient.data() + keys({0, of.begin}),
                  keys(of),
                  out(where, static_cast<std::size_t>(old) + 1));
    }
  }
  void project_backward(pp::context const& where, float* kept) const {
    // From attention, taken attention, output, and the taken attention of later chunks.
    std::vector<float> query(in(where, 0), in(where, 0) + narrow());
    std::vector<float> key_value(in(where, 0) + narrow(), in(where, 0) + narrow() + keys(chunk()));
    std::vector<float> dx(in(where, 2), in(where, 2) + narrow());
    for (std::size_t i = 0; i < query.size(); ++i)
      query[i] += in(where, 1)[i];
    for (std::size_t later = 3; later < where.inputs.size(); ++later)
      for (std::size_t i = 0; i < key_value.size(); ++i)
        key_value[i] += in(where, later)[i];
    auto& before = layer().before;
    before.add_backward_input(query.data(), key_value.data(), dx.data(), place(where, kept));
    before.add_backward_weight(query.data(), key_value.data(), place(where, kept));
    if (layer().ends.first != nullptr)
      layer().ends.first->backward(bytes(where), chunk(), dx.data());
    else
      std::copy(dx.begin(), dx.end(), out(where));
  }

  [[nodiscard]] exchanged_layer& layer() const {
    return model->layers[static_cast<std::size_t>(what.layer)];
  }
  [[nodiscard]] device_memory<float>& memory(pp::context const& where) const {
    return model->memories[static_cast<std::size_t>(where.device)];
  }
  [[nodiscard]] static std::size_t unit(pp::context const& where) {
    return static_cast<std::size_t>(where.microbatch);
  }
  [[nodiscard]] part_place<float>
  place(pp::context const& where, float* kept, float* added = nullptr) const {
    return {chunk().count(), kept, added, &memory(where).space};
  }
  [[nodiscard]] place_of_unit<float> at_head(pp::context const& where) const {
    auto const chunks = unit(where) * model->sizes.chunks.size();
    auto const number = chunks + static_cast<std::size_t>(what.chunk);
    return {unit(where), number, chunk(), nullptr, &memory(where)};
  }
  [[nodiscard]] std::uint8_t const* next_bytes(pp::context const& where) const {
    return bytes(where) + chunk().begin + 1;
  }
  [[nodiscard]] std::uint8_t const* bytes(pp::context const& where) const {
    return model->pieces->microbatch(where.microbatch);
  }
  [[nodiscard]] static float const* in(pp::context const& where, std::size_t k) {
    return where.inputs[k].as<float>().data();
  }
  //! Null for the last layer, which hands nothing on.
  [[nodiscard]] static float* out(pp::context const& where, std::size_t k = 0) {
    return k < where.outputs.size() ? where.outputs[k].as<float>().data() : nullptr;
  }
  [[nodiscard]] std::int64_t narrow() const { return model->sizes.narrow(what); }
  [[nodiscard]] chunk_range chunk() const { return model->sizes.range(what.chunk); }
  [[nodiscard]] chunk_range given() const { return model->sizes.given(what); }
  [[nodiscard]] chunk_range stays() const { return {given().end, chunk().end}; }
  [[nodiscard]] std::int64_t keys(chunk_range of) const { return model->sizes.keys(of.count()); }

  //! What follows attention keeps it behind the merged state.
  [[nodiscard]] float* after_kept(float* kept) const { return kept + model->sizes.state(what); }
  //! Keys and values that another device has sent, behind what attention keeps.
  [[nodiscard]] float* old_keys(float* kept) const {
    return kept + attention_part<float>::kept_numbers(model->sizes.size, chunk().count());
  }
  void hand_on(float* kept, float* out) const {
    std::copy_n(model->attention.output(kept, chunk().count()), model->sizes.state(what), out);
  }
  void merge(float* into, float const* other) const {
    auto const& size = model->sizes.size;
    auto const tokens = chunk().count();
    attention::merge(attention::dense_tensor(into, 1, tokens, size.heads, size.head_dim()),
                     attention::dense_rows(into + narrow(), 1, size.heads, tokens),
                     attention::dense_tensor(other, 1, tokens, size.heads, size.head_dim()),
                     attention::dense_rows(other + narrow(), 1, size.heads, tokens));
  }
  void start_backward(pp::context const& where, float* dx) const {
    auto const all = where.extents.microbatches * model->sizes.size.sequence;
    auto& head = *layer().ends.last;
    auto const at = at_head(where);
    head.backward_input(at, next_bytes(where), 1.0F / static_cast<float>(all), dx);
    head.backward_weight(at);
    memory(where).pool.end_of_pass();
  }
  //! Writes the gradient of the query to the first output, and adds those of keys and values.
  void attend_backward(pp::context const& where,
                       chunk_range seen,
                       float const* key_value,
                       float* key_value_gradient) const {
    float* const kept = kept_of(where);
    std::copy_n(in(where, 0) + narrow(),
                model->sizes.state(what),
                model->attention.output(kept, chunk().count()));
    std::fill_n(out(where), narrow(), 0.0F);
    model->attention.backward({chunk(), seen, key_value, kept, &memory(where).space},
                              {in(where, 0), out(where), key_value_gradient});
  }
};

//! A GPT of as many layers as the schedule has stages, on the threads of this process.
//! @tparam Policy of the plan
template <class Policy = pp::communicators::one>
class exchanged_pipeline {
public:
  //! @param table of this schedule, or of all its stages on one device
  exchanged_pipeline(model_size const& size,
                     exchange_schedule const& schedule,
                     pp::timetable_view table,
                     std::uint64_t seed)
      : model_{
          exchanged_sizes(size, schedule, table.over.extents),
          attention_part<float>(size),
          {},
          std::vector<device_memory<float>>(static_cast<std::size_t>(table.over.extents.devices))} {
    auto const microbatches = table.over.extents.microbatches;
    for (std::int64_t layer = 0; layer < size.layers; ++layer)
      model_.layers.emplace_back(size, seed, layer, microbatches, schedule.inner.chunks);
    for (int stage = 0; stage < table.over.extents.stages(); ++stage)
      pieces_.push_back({schedule.stage_at(table.over.extents, stage), &model_});
    plan_ = pp::lower<Policy>(table, model_.sizes);
    runner_ = std::make_unique<pp::thread_runner<std::vector<exchanged_piece>>>(plan_, pieces_);
  }
  exchanged_pipeline(exchanged_pipeline const&) = delete;
  exchanged_pipeline& operator=(exchanged_pipeline const&) = delete;

  double step(batch const& pieces) {
    model_.pieces = &pieces;
    runner_->step();
    auto const& ends = model_.layers.back().ends;
    return ends.sum_of_losses() / static_cast<double>(ends.losses.size());
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& layer : model_.layers) {
      layer.for_each_parameter([&](parameter<float>& p) { optimizer.update(p, step); });
      layer.refresh();
    }
  }
  [[nodiscard]] std::vector<exchanged_layer>& stages() { return model_.layers; }
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_->trace(); }
  [[nodiscard]] pp::plan_view plan() const { return plan_.view(); }
  [[nodiscard]] exchanged_sizes const& sizes() const { return model_.sizes; }

private:
  exchanged_model model_;
  std::vector<exchanged_piece> pieces_;
  pp::plan plan_;
  std::unique_ptr<pp::thread_runner<std::vector<exchanged_piece>>> runner_;
};

//! SlimPipe's exchange of attention; see system.hpp.
struct exchange_system {
  static constexpr char const* one_device_has = " that splits attention alike";
  static constexpr char const* in_slots =
    "Activations, with queries and keys of other devices, in slots";
  static constexpr named_pool pools[] = {{"activations", pp::slot_class::activation}};

  //! A stage is a layer.
  static registry::schedule_choice choice(options const& o) {
    auto result = choice_of(o, name_of(o));
    (void)registry::arrange(result); // refuses other schedules than slimpipe
    if (!result.stages_per_device) {
      result.stages_per_device =
        static_cast<int>(std::max(o.size.layers / o.devices, std::int64_t{1}));
    }
    return result;
  }
  static exchange_schedule schedule(options const& o) {
    auto const chosen = choice(o);
    return {{chosen.chunks.value_or(chosen.devices), *chosen.stages_per_device}, {}};
  }
  //! @throws std::invalid_argument where layers are no stages, or an option does not go with it
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "the exchange of attention");
    auto table = registry::make_named_timetable(choice(o), unit_costs);
    auto const layers = schedule(o).inside(table.over.extents).stages();
    if (layers != o.size.layers) {
      throw std::invalid_argument("the exchange of attention has a layer in every stage, " +
                                  std::to_string(layers) + " of them, but the model has " +
                                  std::to_string(o.size.layers) +
                                  "; choose --layers, a multiple of --devices");
    }
    return table;
  }
  static exchanged_pipeline<> pipeline(options const& o, pp::timetable_view table) {
    return {o.size, schedule(o), table, seed_of(o)};
  }
  //! The stages of a timetable on its first device, with the microbatches of o.lengths.
  static pp::dynamic_timetable on_one_device(options const& o, pp::timetable_view table) {
    examples::exchange_on_one_device<exchange_schedule> const alone{schedule(o)};
    return pp::make_timetable(alone,
                              {table.over.extents.devices, static_cast<int>(o.lengths.size())});
  }
  static exchanged_pipeline<> one_device(options const& o, pp::timetable_view table) {
    return {o.size, schedule(o), on_one_device(o, table), seed_of(o)};
  }
};

} // namespace gpt
