// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <examples/gpt/papers/host_weights.hpp>
#include <examples/gpt/papers/weight_travel.hpp>
#include <examples/gpt/single_device.hpp>
#include <examples/gpt/slot_sizes.hpp>
#include <stdexcept>
#include <tests/support/gpt_bits.hpp>
#include <vector>

using namespace gpt;

namespace {

//! Trains two steps with a model and on one device, and compares all bits on the way.
template <class Model>
void check_bits(Model& model, model_size const& size, int microbatches) {
  auto const pieces = support::some_batch(microbatches, size.sequence);
  single_device plain(size, 1, step_cut(microbatches, cut_sequence(size.sequence, 1)), 9);
  support::check_same_bits(support::train(model, pieces), support::train(plain, pieces));
  CHECK(pp::verify(model.trace()));
}

} // namespace

TEST_CASE("weights that travel leave the bits of one device, and send what was planned") {
  model_size const size{.layers = 3, .width = 8, .heads = 4, .key_heads = 2, .sequence = 13};
  for (int devices = 1; devices <= 4; ++devices) { // with four, a group without layers
    for (int rounds = 1; rounds <= 2; ++rounds) {
      CAPTURE(devices);
      CAPTURE(rounds);
      int const microbatches = devices * rounds;
      auto const table = pp::make_timetable<pp::WeiPipe>({devices, microbatches});
      travelling_model model(size, table, 9);
      check_bits(model, size, microbatches);
      auto const numbers = static_cast<std::int64_t>(gradients_of(model).size());
      auto const rows = model.rows(); // activations, then weights sent, planned and measured each
      for (int device = 0; device < devices; ++device) {
        auto const of = [&](int row) {
          return rows[static_cast<std::size_t>(row)].numbers[static_cast<std::size_t>(device)];
        };
        CHECK(of(3) == of(2));
        // Three times the model for each microbatch but the last, which has nobody to send to.
        int const senders = devices == 1 ? 0 : rounds - (device == devices - 1 ? 1 : 0);
        CHECK(of(2) == 3 * senders * numbers * 4);
        CHECK(of(1) > 0);
        CHECK(of(1) <= of(0));
      }
    }
  }
}

namespace {

void check_list(model_size const& size, pp::round_stages const& list, int devices) {
  int const microbatches = devices + 1;
  auto const table = pp::make_timetable(
    pp::with_sharded_weights<pp::RoundPipe<>>{
      {static_cast<int>(list.forward.size()), static_cast<int>(list.backward.size())}},
    {devices, microbatches});
  round_model model(size, list, table, 9);
  check_bits(model, size, microbatches);
  auto const ran = model.trace();
  auto const sizes = round_slots(size, list)(table, {});
  auto const plan = pp::lower(table, sizes);
  for (int device = 0; device < devices; ++device) {
    for (pp::slot_class const of : {pp::slot_class::weights, pp::slot_class::full_gradients}) {
      auto const use = slot_use_of(plan, ran, sizes, device, of);
      CHECK((use.measured > 0 || of == pp::slot_class::full_gradients)); // some only go forward
      CHECK(use.measured <= use.planned);
      CHECK(plan.layout(device, of).count <= 2);
    }
  }
}

} // namespace

TEST_CASE(
  "weights that are loaded from the host leave the bits of one device, two stages at a time") {
  for (int layers : {2, 5}) {
    for (int devices = 1; devices <= 3; ++devices) {
      CAPTURE(layers);
      CAPTURE(devices);
      model_size const size{
        .layers = layers, .width = 8, .heads = 4, .key_heads = 2, .sequence = 13};
      auto const list = best_list(size, devices);
      CHECK(list.stages() >= layers);
      check_list(size, list, devices);
    }
  }
}

TEST_CASE("stages of RoundPipe are as many as asked for, some of several layers") {
  model_size const size{.layers = 7, .width = 8, .heads = 4, .key_heads = 2, .sequence = 13};
  auto const list = even_list(size, 3, 4);
  CHECK(list.backward == std::vector<int>{2, 2, 2, 1}); // from the last layer back
  CHECK(list.forward == std::vector<int>{2, 2, 1});     // all but the first of these
  check_list(size, list, 2);
  check_list(size, even_list(size, 1, 2), 3);
  CHECK(even_list(size, 6, 7).forward.size() == 6);
  CHECK_THROWS_WITH_AS((void)even_list(size, 7, 7),
                       "RoundPipe: 7 layers are at most as many stages that go back, and all but "
                       "those of the first of these, 6, at most as many that go forward; ask for "
                       "fewer than 7 forward and 7 back, or for more --layers",
                       std::invalid_argument);
  CHECK_THROWS_AS((void)even_list(size, 1, 8), std::invalid_argument);
}
