// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/model/device_memory.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <examples/gpt/host_weights.hpp>
#include <examples/gpt/single_device.hpp>
#include <examples/gpt/weight_travel.hpp>
#include <tests/support/gpt_bits.hpp>

using namespace gpt;

namespace {

//! Trains two steps with a model and on one device, and compares all bits on the way.
template <class Model>
void check_bits(Model& model, model_size const& size, int microbatches) {
  auto const pieces = support::some_batch(microbatches, size.sequence);
  single_device<float> plain(size, 1, step_cut(microbatches, cut_sequence(size.sequence, 1)), 9);
  support::check_same_bits(model, plain, pieces);
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
      travelling_model model(size, devices, microbatches, 9);
      check_bits(model, size, microbatches);
      auto const numbers = static_cast<std::int64_t>(gradients_of(model.stages()).size());
      for (int device = 0; device < devices; ++device) {
        travelled_bytes const one = model.bytes()[static_cast<std::size_t>(device)];
        CHECK(one.measured_sent == one.planned_sent);
        // Three times the model for each microbatch but the last, which has nobody to send to.
        int const senders = devices == 1 ? 0 : rounds - (device == devices - 1 ? 1 : 0);
        CHECK(one.planned_sent == 3 * senders * numbers * 4);
        CHECK(one.measured_activations > 0);
        CHECK(one.measured_activations <= one.planned_activations);
      }
    }
  }
}

TEST_CASE(
  "weights that are loaded from the host leave the bits of one device, two stages at a time") {
  for (int layers : {2, 5}) {
    for (int devices = 1; devices <= 3; ++devices) {
      CAPTURE(layers);
      CAPTURE(devices);
      model_size const size{
        .layers = layers, .width = 8, .heads = 4, .key_heads = 2, .sequence = 13};
      int const microbatches = devices + 1;
      round_model model(size, devices, microbatches, 9);
      CHECK(model.list().stages() >= layers);
      check_bits(model, size, microbatches);
      auto const ran = model.trace();
      for (int device = 0; device < devices; ++device) {
        for (pp::slot_class const of : {pp::slot_class::weights, pp::slot_class::full_gradients}) {
          auto const& slots = model.plan().view().layout(device, of);
          auto const measured = pp::peak_slot_bytes(ran, device, of, [&](pp::pass const& what) {
            return static_cast<double>(model.sizes().bytes(of, what));
          });
          CHECK((measured > 0 || of == pp::slot_class::full_gradients)); // some only go forward
          CHECK(measured <= static_cast<double>(slots.count * slots.bytes));
          CHECK(slots.count <= 2);
        }
      }
    }
  }
}
