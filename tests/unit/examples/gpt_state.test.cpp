// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <examples/gpt/host/pipeline.hpp>
#include <examples/gpt/papers/tensor_stage.hpp>
#include <examples/gpt/papers/vocabulary.hpp>
#include <examples/gpt/saved_state.hpp>
#include <examples/gpt/single_device.hpp>
#include <memory>
#include <string>
#include <tests/support/gpt_bits.hpp>
#include <tests/support/temporary_folder.hpp>
#include <type_traits>
#include <vector>

using namespace gpt;

namespace {

model_size const twelve_layers{.layers = 12, .width = 8, .heads = 4, .key_heads = 4, .sequence = 9};
constexpr int state_microbatches = 12;

//! Values and both averages of the optimizer.
template <class Stage>
void append_state(std::vector<float>& all, Stage& stage) {
  stage.for_each_parameter([&](parameter<float> const& p) {
    for (auto const* numbers : {&p.value, &p.mean, &p.square})
      all.insert(all.end(), numbers->begin(), numbers->end());
  });
}
template <class Model>
std::vector<float> state_of(Model& model) {
  std::vector<float> all;
  append_state(all, model);
  return all;
}

//! Stages, of any kind, as a model that is saved, or goes on.
template <class Stage>
struct some_stages {
  std::vector<Stage*> of{};

  [[nodiscard]] static constexpr bool counts_steps() { return false; }
  template <class Visit>
  void for_each_stage(Visit visit) {
    for (std::size_t i = 0; i < of.size(); ++i)
      visit(i, *of[i]);
  }
};
//! Those of a device of a pipeline.
some_stages<pipeline_stage>
on_device(pipelined_model& model, pp::timetable_view table, int device) {
  some_stages<pipeline_stage> found;
  model.for_each_stage([&](std::size_t number, pipeline_stage& stage) {
    if (pp::device_of(table, static_cast<int>(number)) == device)
      found.of.push_back(&stage);
  });
  return found;
}
template <class Model>
void save_state(Model model, pp::checkpoint_place const& place, std::int64_t step) {
  model_state const state(model);
  state.save(place, step);
}
template <class Model>
void load_state(Model model, pp::checkpoint_place const& place, std::int64_t step) {
  model_state state(model);
  (void)pp::load_tensors(place, step, state.tensors());
  state.use();
}

//! Goes on after three steps, with what four devices have saved; `plain` is what one device has.
template <class Schedule>
void check_goes_on(std::string const& folder,
                   int devices,
                   std::vector<float> const& expected,
                   double next_loss,
                   batch const& pieces) {
  auto const table = pp::make_timetable(Schedule{}, {devices, state_microbatches});
  pipelined_model model(
    twelve_layers, table, lengths_of(twelve_layers, table), 77); // of other numbers
  for (int device = 0; device < devices; ++device)
    load_state(
      on_device(model, table, device), {folder, "rank-" + std::to_string(device), {}, {}}, 3);
  CHECK(differences(state_of(model), expected) == 0);
  CHECK(model.step(pieces) == next_loss);
}

} // namespace

TEST_CASE("saved by four devices, the state of training goes on in three and six, bit for bit" *
          doctest::test_suite("threads")) {
  auto const table = pp::make_timetable(pp::OneFOneB{}, {4, state_microbatches});
  auto const lengths = lengths_of(twelve_layers, table);
  auto const pieces = support::some_batch(state_microbatches, twelve_layers.sequence);
  pipelined_model model(twelve_layers, table, lengths, 9);
  single_device plain(twelve_layers, 1, cut_whole(lengths), 9);
  adamw const optimizer{};
  for (std::int64_t step = 0; step < 3; ++step) {
    (void)model.step(pieces);
    (void)plain.step(pieces);
    model.update(optimizer, step);
    plain.update(optimizer, step);
  }
  support::temporary_folder const there("state");
  for (int device = 0; device < 4; ++device)
    save_state(
      on_device(model, table, device), {there.path(), "rank-" + std::to_string(device), {}, {}}, 3);
  auto const expected = state_of(plain);
  double const next_loss = plain.step(pieces);
  check_goes_on<pp::OneFOneB>(there.path(), 3, expected, next_loss, pieces);
  check_goes_on<pp::Interleaved<2>>(there.path(), 3, expected, next_loss, pieces);
  check_goes_on<pp::OneFOneB>(there.path(), 6, expected, next_loss, pieces);
  check_goes_on<pp::Interleaved<2>>(there.path(), 6, expected, next_loss, pieces);
  check_goes_on<pp::OneFOneB>(there.path(), 1, expected, next_loss, pieces);
}

namespace {

//! The model in shards, or pieces, each of which starts with its share of the same numbers.
struct cut_model_of {
  host::device_work<float> work{};
  std::vector<std::unique_ptr<host_stage<float>>> whole{};
  std::vector<std::unique_ptr<stage_shard>> shards{};
  std::vector<std::unique_ptr<sharded_piece>> pieces{};

  //! Calls visit(part) for each.
  template <class Visit>
  void each(Visit visit) {
    for (auto& part : whole)
      visit(*part);
    for (auto& part : shards)
      visit(*part);
    for (auto& part : pieces)
      visit(*part);
  }
  //! Averages that tell the numbers of a parameter apart, as its values do.
  void fill_averages() {
    each([](auto& part) {
      part.for_each_parameter([](parameter<float>& p) {
        for (std::size_t i = 0; i < p.value.size(); ++i) {
          p.mean[i] = 2 * p.value[i] + 1;
          p.square[i] = 3 * p.value[i] - 1;
        }
      });
    });
  }
  [[nodiscard]] std::vector<float> state() {
    std::vector<float> all;
    each([&](auto& part) { append_state(all, part); });
    return all;
  }
};

model_size const model_to_cut{.layers = 6, .width = 8, .heads = 4, .key_heads = 4, .sequence = 9};
std::vector<chunk_range> const one_chunk = cut_sequence(model_to_cut.sequence, 1);

std::unique_ptr<cut_model_of> in_stages(std::int64_t stages, std::uint64_t seed) {
  auto made = std::make_unique<cut_model_of>();
  for (auto const& layers : cut_layers(model_to_cut.layers, stages))
    made->whole.push_back(std::make_unique<host_stage<float>>(
      model_to_cut, layers, step_cut(1, one_chunk), seed, made->work));
  return made;
}
std::unique_ptr<cut_model_of> at_attention(std::uint64_t seed) {
  auto made = std::make_unique<cut_model_of>();
  for (auto const& layers : cut_at_attention(model_to_cut.layers))
    made->whole.push_back(std::make_unique<host_stage<float>>(
      model_to_cut, layers, step_cut(1, one_chunk), seed, made->work));
  return made;
}
std::unique_ptr<cut_model_of> in_shards(std::int64_t shards, std::uint64_t seed) {
  auto made = std::make_unique<cut_model_of>();
  for (auto const& layers : cut_layers(model_to_cut.layers, 2))
    for (std::int64_t number = 0; number < shards; ++number)
      made->shards.push_back(std::make_unique<stage_shard>(
        model_to_cut, layers, 1, seed, shard_of_stage{number, shards}, made->work));
  return made;
}
std::unique_ptr<cut_model_of> in_pieces(std::int64_t shards, std::uint64_t seed) {
  auto made = std::make_unique<cut_model_of>();
  sharded_cut const cut{shards, 3, 2, step_cut(1, one_chunk)};
  for (std::int64_t which = 0; which < 2 * shards + cut.stages; ++which)
    made->pieces.push_back(
      std::make_unique<sharded_piece>(model_to_cut, which, cut, seed, made->work));
  return made;
}

//! By number of a way to cut the model.
std::unique_ptr<cut_model_of> model_in(int way, std::uint64_t seed) {
  switch (way) {
  case 0: return in_stages(1, seed);
  case 1: return in_stages(5, seed);
  case 2: return at_attention(seed);
  case 3: return in_shards(2, seed);
  case 4: return in_shards(4, seed);
  case 5: return in_pieces(1, seed);
  default: return in_pieces(3, seed);
  }
}
constexpr int ways = 7;

} // namespace

TEST_CASE("stages, shards of stages and pieces of the vocabulary load what any of them has saved") {
  std::vector<std::vector<float>> expected;
  for (int way = 0; way < ways; ++way) {
    auto const model = model_in(way, 9);
    model->fill_averages();
    expected.push_back(model->state());
  }
  for (int before = 0; before < ways; ++before) {
    support::temporary_folder const there("state");
    auto const saved = model_in(before, 9);
    saved->fill_averages();
    int owner = 0;
    saved->each([&](auto& part) {
      save_state(some_stages<std::remove_reference_t<decltype(part)>>{{&part}},
                 {there.path(), std::to_string(owner++), {}, {}},
                 1);
    });
    for (int after = 0; after < ways; ++after) {
      CAPTURE(before);
      CAPTURE(after);
      auto const loaded = model_in(after, 77);
      loaded->each([&](auto& part) {
        load_state(some_stages<std::remove_reference_t<decltype(part)>>{{&part}},
                   {there.path(), "reader", {}, {}},
                   1);
      });
      CHECK(differences(loaded->state(), expected[static_cast<std::size_t>(after)]) == 0);
    }
  }
}
