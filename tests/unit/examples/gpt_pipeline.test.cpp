// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/slice_v.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <examples/gpt/clipped_stage.hpp>
#include <examples/gpt/host/pipeline.hpp>
#include <examples/gpt/single_device.hpp>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tests/support/gpt_bits.hpp>
#include <tuple>
#include <utility>
#include <vector>

using namespace gpt;

namespace {

constexpr pp::uniform_cost costs{.copy_out = 0.2, .copy_in = 0.2};

model_size const six_layers{.layers = 6, .width = 8, .heads = 4, .key_heads = 2, .sequence = 21};

batch some_batch(std::int64_t microbatches) {
  return support::some_batch(microbatches, six_layers.sequence);
}

//! Largest peak of a device.
std::size_t peak(pipelined_model& model) {
  auto const peaks = model.peak_bytes();
  return *std::max_element(peaks.begin(), peaks.end());
}

bool table_offloads(pp::timetable_view table) {
  return std::any_of(table.passes, table.passes + table.size(), [](pp::pass const& what) {
    return what.kind == pp::pass_kind::copy_out;
  });
}

//! What was in use has been planned. Each device copies, if any does.
void check_slots(std::vector<device_row> const& rows, pp::timetable_view table, bool offloads) {
  REQUIRE(rows.size() == (offloads ? 4 : 0)); // planned and measured, on the device and on the host
  for (int device = 0; offloads && device < table.over.extents.devices; ++device) {
    auto const bytes = [&](std::size_t row) {
      return rows[row].numbers.at(static_cast<std::size_t>(device));
    };
    CHECK(bytes(1) <= bytes(0));
    CHECK(bytes(3) <= bytes(2));
    CHECK(bytes(1) > 0);
    bool const copies =
      table.row_size(device) > 0 && table.row_size(table.over.extents.devices + device) > 0;
    CHECK((bytes(3) > 0) == copies);
    CHECK((bytes(2) > 0) == copies);
  }
}

//! What one device trains, once for all schedules of the same microbatches.
//! @param halves as single_device has it
support::two_steps const&
trained_alone(std::vector<std::int64_t> const& lengths, bool from_last, bool halves) {
  static std::map<std::tuple<std::vector<std::int64_t>, bool, bool>, support::two_steps> known;
  auto& found = known[{lengths, from_last, halves}];
  if (found.losses.empty()) {
    single_device plain(six_layers, 1, cut_whole(lengths).back_from_last(from_last), 9, halves);
    found = support::train(plain, some_batch(static_cast<std::int64_t>(lengths.size())));
  }
  return found;
}

//! Trains a few steps and compares all bits on the way. Returns the peak in bytes. Of a timetable,
//! so that it compiles once for all schedules.
std::size_t check_trained(pp::dynamic_timetable const& table, int microbatches) {
  auto const lengths = lengths_of(six_layers, table);
  pipelined_model model(six_layers, table, lengths, 9);
  bool const halves = table.over.extents.where == pp::placement::bidirectional;
  support::check_same_bits(support::train(model, some_batch(microbatches)),
                           trained_alone(lengths, adds_from_last(table), halves));
  CHECK(model.trace().passes.size() == table.passes.size());
  check_slots(model.slots(), table, table_offloads(table));
  return peak(model);
}
template <class Schedule>
std::size_t check_schedule(Schedule const& schedule, int devices, int microbatches) {
  return check_trained(pp::make_timetable(schedule, {devices, microbatches}, costs), microbatches);
}

} // namespace

TEST_CASE("gradients on threads are those of one device, bit for bit, step after step" *
          doctest::test_suite("threads")) {
  auto const fused = check_schedule(pp::OneFOneB{}, 3, 7);
  CHECK(check_schedule(pp::GPipe{}, 3, 7) > 2 * fused);
  CHECK(check_schedule(pp::Seq1F1B<pp::dynamic>{.chunks = 5}, 3, 7) < fused * 2 / 3);
  check_schedule(pp::Seq1F1B<pp::dynamic>{.chunks = 7}, 2, 1); // uneven chunks, fewer than devices
  check_schedule(pp::ZeroBubbleH1{}, 3, 7);
  check_schedule(pp::OneFOneB{}, 8, 3); // stages without layers
}

TEST_CASE("sequences of unequal length, and chunks that are recomputed, change no bit" *
          doctest::test_suite("threads")) {
  std::vector<int> const counts{1, 1, 4, 1, 3, 4};
  auto const all = check_schedule(pp::ChunkFlow<>{{counts}, 4}, 3, 6);
  CHECK(check_schedule(pp::ChunkFlow<>{{counts}, 1}, 3, 6) < all);
  check_schedule(pp::ChunkFlow<>{{{2, 5, 5, 1}}, 2}, 4, 4);
  check_schedule(pp::RaggedSliceV<pp::listed_chunks>{{counts}}, 3, 6);
  check_schedule(pp::SVPP<2, 3>{}, 3, 4);
  check_schedule(pp::SVPP<2, 3, 6>{}, 3, 4);
}

TEST_CASE("activations that wait on the host, or are recomputed, change no bit" *
          doctest::test_suite("threads")) {
  auto const kept = check_schedule(pp::OneFOneB{}, 4, 8);
  CHECK(check_schedule(pp::with_offload<pp::OneFOneB>{}, 4, 8) < kept);
  CHECK(check_schedule(pp::with_recompute<pp::OneFOneB>{}, 4, 8) < kept);
}

TEST_CASE("so it is with chunks, several stages on a device and split passes") {
  CHECK(check_schedule(pp::with_offload<pp::GPipe>{}, 3, 7) < check_schedule(pp::GPipe{}, 3, 7));
  check_schedule(pp::with_offload<pp::Seq1F1B<pp::dynamic>>{{.chunks = 5}}, 3, 7);
  check_schedule(pp::with_offload<pp::Interleaved<2>>{}, 3, 6);
  check_schedule(pp::with_offload<pp::detail::SweptVHalf>{}, 3, 7);
  check_schedule(pp::with_offload<pp::ZeroBubbleH1>{}, 3, 7);
  check_schedule(pp::with_recompute<pp::Seq1F1B<pp::dynamic>>{{.chunks = 5}}, 3, 7);
  check_schedule(pp::with_recompute<pp::ZeroBubbleH1>{}, 3, 7);
}

TEST_CASE("stages that recompute beside stages that keep all change no bit") {
  auto const plain = check_schedule(pp::detail::SweptChronosPipe{}, 4, 8);
  auto const first = check_schedule(
    pp::with_recompute<pp::detail::SweptChronosPipe, pp::recompute::first_stages>{}, 4, 8);
  auto const all = check_schedule(pp::with_recompute<pp::detail::SweptChronosPipe>{}, 4, 8);
  CHECK(first < plain);
  CHECK(all < first);
  check_schedule(pp::with_recompute<pp::OneFOneB, pp::recompute::all_but_last>{}, 3, 7);
  check_schedule(pp::with_recompute<pp::BitPipe>{}, 2, 4);
  check_schedule(pp::Hanayo<2>{}, 2, 5);
}

TEST_CASE("two copies of every stage have the bits of one device that adds up two halves" *
          doctest::test_suite("threads")) {
  check_schedule(pp::Chimera{}, 2, 5);
  check_schedule(pp::Chimera{}, 4, 1); // nothing for the first copies
}

TEST_CASE("so they have where waves, or both directions at once, give the passes another order") {
  check_schedule(pp::Chimera{}, 4, 8);
  check_schedule(pp::ChimeraWaves<2>{}, 2, 7);
  check_schedule(pp::BitPipe{}, 4, 4);
  check_schedule(pp::BitPipe{}, 2, 6);
  check_schedule(pp::DualPipe<>{}, 4, 8);
  check_schedule(pp::DualPipe<pp::pairs::in_turn>{}, 2, 5);
}

namespace {

void check_clipped_steps(pp::dynamic_timetable const& table, int microbatches, bool halves) {
  auto const lengths = lengths_of(six_layers, table);
  clipping const how{.largest_norm = 2};
  clipped_model model(six_layers, table, lengths, 9);
  model.set_clipping(how);
  single_device device(
    six_layers, cut_model(six_layers, table.over.extents), cut_for(table, lengths), 9, halves);
  std::int64_t taken = 0;
  for (int step = 0; step < 6; ++step) {
    auto const pieces = some_batch(microbatches);
    CHECK(model.step(pieces) == device.step(pieces));
    taken = take_clipped_step(device.stages(), how, taken, device.copies());
    CHECK(differences(weights_of(model), weights_of(device)) == 0);
  }
  CHECK(model.called().front().counts().taken == taken);
  CHECK(model.called().front().counts().clipped > 0);
}
template <class Schedule>
void check_clipped(Schedule const& schedule, int devices, int microbatches, bool halves) {
  check_clipped_steps(
    pp::make_timetable(schedule, {devices, microbatches}, costs), microbatches, halves);
}

} // namespace

TEST_CASE("clipped steps in the iteration have the bits of one device, also with two copies" *
          doctest::test_suite("threads")) {
  check_clipped(pp::OneFOneB{}, 3, 4, false);
  check_clipped(pp::DualPipe<>{}, 2, 4, true);
}

TEST_CASE("so they have on more devices, and with other orders of the copies") {
  check_clipped(pp::DualPipe<>{}, 4, 8, true);
  check_clipped(pp::Chimera{}, 2, 4, true);
  check_clipped(pp::BitPipe{}, 2, 4, true);
  check_clipped(pp::HelixPipe<>{3}, 2, 4, false);
}

TEST_CASE("attention on other devices than the weights of its layer changes no bit" *
          doctest::test_suite("threads")) {
  check_schedule(pp::HelixPipe<>{2}, 3, 6);
}

TEST_CASE("so it is on any number of devices, and with less kept") {
  using helix = pp::HelixPipe<>;
  for (int const devices : {1, 2, 3, 6})
    for (int const microbatches : {1, devices, 2 * devices + 1})
      check_schedule(helix{6 / devices}, devices, microbatches);
  check_schedule(helix{3, 2}, 2, 8);
  check_schedule(helix{2, 2}, 3, 13);
  auto const all = check_schedule(helix{2}, 3, 6);
  auto const around =
    check_schedule(pp::with_recompute<helix, pp::recompute_around_attention>{{2}}, 3, 6);
  CHECK(around < all);
  CHECK(check_schedule(pp::with_recompute<helix>{{2}}, 3, 6) < around);
  CHECK(check_schedule(pp::with_offload<helix>{{2}}, 3, 6) < all);
  CHECK_THROWS_WITH(check_schedule(helix{1}, 3, 6),
                    "the schedule cuts 3 layers at their attention, but the model has 6; choose "
                    "--layers, a multiple of --devices");
}

TEST_CASE("devices with attention of other layers keep what was planned, to the byte") {
  for (auto const& schedule : {pp::HelixPipe<>{2}, pp::HelixPipe<>{2, 2}}) {
    auto const table = pp::make_timetable(schedule, {3, 12}, costs);
    auto const lengths = lengths_of(six_layers, table);
    pipelined_model model(six_layers, table, lengths, 9);
    model.step(some_batch(12));
    slot_sizes const sizes(six_layers, cut_for(table, lengths), table);
    for (int device = 0; device < 3; ++device) {
      CHECK(static_cast<double>(model.peak_bytes()[static_cast<std::size_t>(device)]) ==
            kept_at_peak(table, device, sizes));
    }
  }
}

TEST_CASE("stages may begin with the last microbatch, as one device then does") {
  check_schedule(pp::BreadthFirst<2>{}, 3, 7);
  auto const cut = cut_whole(std::vector<std::int64_t>(8, six_layers.sequence));
  single_device up(six_layers, 1, cut, 9);
  single_device down(six_layers, 1, cut.back_from_last(), 9);
  auto const pieces = some_batch(8);
  CHECK(up.step(pieces) == down.step(pieces));
  auto const one = gradients_of(up);
  auto const other = gradients_of(down);
  CHECK(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) != 0);
}

TEST_CASE("two halves, added up, are not the sum of one") {
  // Else the comparison above would not see a gradient that went to the wrong copy.
  auto const cut = cut_whole(std::vector<std::int64_t>(8, six_layers.sequence));
  single_device halves(six_layers, 1, cut, 9, true);
  single_device whole(six_layers, 1, cut, 9);
  auto const pieces = some_batch(8);
  CHECK(halves.step(pieces) == doctest::Approx(whole.step(pieces)));
  auto const got = gradients_of(halves);
  auto const expected = gradients_of(whole);
  CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0);
}

namespace {

//! Spoils the gradients of its last stage in some steps: one is not finite, others are large.
struct spoiled_stage : stage_copies {
  int announced = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): it is the same stage
  spoiled_stage(stage_copies passes) : stage_copies(std::move(passes)) {}

  void gradients_ready(pp::context const& where) {
    int const step = announced++;
    if (!where.last_stage() || (step != 3 && step != 7 && step != 8)) {
      return;
    }
    of.front()->for_each_parameter([step](auto& p) { // there is one copy
      p.gradient.front() = step == 3 ? std::numeric_limits<float>::infinity() : 50.0F;
    });
  }
};
using spoiled_model = basic_pipelined_model<clipped_stage<spoiled_stage>>;

void check_corrected(pp::dynamic_timetable const& table, int microbatches) {
  auto const lengths = lengths_of(six_layers, table);
  clipping const how{.largest_norm = 2};
  clipping const early{.largest_norm = 2, .early = true};
  spoiled_model at_once(six_layers, table, lengths, 9);
  spoiled_model afterwards(six_layers, table, lengths, 9, true);
  at_once.set_clipping(how);
  afterwards.set_clipping(early);
  for (int step = 0; step < 12; ++step) {
    auto const pieces = some_batch(microbatches);
    CHECK(at_once.step(pieces) == afterwards.step(pieces)); // every bit of the loss
    if (step != 6 && step != 11) {
      continue;
    }
    afterwards.finish();
    CHECK(weights_of(at_once) == weights_of(afterwards));
  }
  auto const& counts = at_once.called().front().counts();
  CHECK(counts.left_out == 1);
  CHECK(counts.clipped >= 2);
  CHECK(afterwards.early_steps().corrected() == counts.clipped + counts.left_out);
  CHECK(afterwards.called().front().rolled_back() >= 3); // which the last device has told it
  CHECK(afterwards.called().back().rolled_back() == 0);  // it has known at once
}
template <class Schedule>
void check_early_steps(Schedule const& schedule, int devices, int microbatches) {
  check_corrected(pp::make_timetable(schedule, {devices, microbatches}, costs), microbatches);
}

} // namespace

TEST_CASE("steps that are validated afterwards train to the same losses and weights" *
          doctest::test_suite("threads")) {
  check_early_steps(pp::OneFOneB{}, 3, 5);
}

TEST_CASE("so they do with split passes, chunks, and several stages on a device") {
  check_early_steps(pp::ZeroBubbleH2{}, 3, 6);
  check_early_steps(pp::Seq1F1B<3>{}, 2, 4);
  check_early_steps(pp::Interleaved<2>{}, 3, 6);
}

namespace {

//! Iterations of several sizes, in turn, on a pipeline and on one device that sees every sequence
//! whole.
template <class MakeSchedule>
void check_sizes(MakeSchedule make_schedule, int devices) {
  std::vector<std::vector<int>> const sizes{
    {1, 1, 4, 1, 3, 4}, {2, 5, 1, 1, 1, 3}, {1, 1, 1, 1, 1, 1}, {7, 1, 2, 2, 1, 1}};
  std::vector<pp::dynamic_timetable> tables;
  std::vector<std::vector<std::int64_t>> lengths;
  for (auto const& counts : sizes) {
    tables.push_back(pp::make_timetable(make_schedule(counts), {devices, 6}, costs));
    lengths.push_back(lengths_of(six_layers, tables.back()));
  }
  pipelined_model model(six_layers, tables[0], lengths[0], 9);
  single_device plain(six_layers, 1, cut_whole(lengths[0]), 9);
  adamw const optimizer{};
  for (std::int64_t step = 0; step < 10; ++step) {
    auto const at = static_cast<std::size_t>(step * step % 5 % 4); // 0 1 0 0 1, again and again
    auto const now = step == 7 ? 2 : step == 8 ? 3 : at;
    auto const pieces = some_batch(6);
    model.use(tables[now], lengths[now]);
    plain.set_cut(cut_whole(lengths[now]));
    CHECK(model.step(pieces) == plain.step(pieces));
    auto const got = gradients_of(model);
    auto const expected = gradients_of(plain);
    REQUIRE(got.size() == expected.size());
    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
    CHECK(model.trace().passes.size() == tables[now].passes.size());
    model.update(optimizer, step);
    plain.update(optimizer, step);
  }
  CHECK(model.plans().made() == 4);
  CHECK(model.plans().reused() == 10 - 3);
}

} // namespace

TEST_CASE("chunk counts and lengths that change from iteration to iteration change no bit" *
          doctest::test_suite("threads")) {
  check_sizes([](std::vector<int> const& counts) { return pp::ChunkFlow<>{{counts}, 2}; }, 3);
  check_sizes(
    [](std::vector<int> const& counts) { return pp::RaggedSliceV<pp::listed_chunks>{{counts}}; },
    2);
}

TEST_CASE(
  "steps are validated across iterations of other sizes, and plans give others their place" *
  doctest::test_suite("threads")) {
  model_size const small{.layers = 3, .width = 8, .heads = 2, .key_heads = 2, .sequence = 12};
  clipping const how{.largest_norm = 1.5};
  clipping const early{.largest_norm = 1.5, .early = true};
  auto const table_of = [](int counts) {
    return pp::make_timetable(
      pp::RaggedSliceV<pp::listed_chunks>{{{1 + counts, 1, 2, 1}}}, {2, 4}, costs);
  };
  auto const first = table_of(0);
  clipped_model at_once(small, first, lengths_of(small, first), 9);
  clipped_model afterwards(small, first, lengths_of(small, first), 9, true);
  at_once.set_clipping(how);
  afterwards.set_clipping(early);
  for (int step = 0; step < 24; ++step) {
    auto const table = table_of(step % 11); // more than are kept
    auto const pieces = support::some_batch(4, small.sequence);
    for (auto* model : {&at_once, &afterwards}) {
      model->use(table, lengths_of(small, table));
    }
    CHECK(at_once.step(pieces) == afterwards.step(pieces));
  }
  afterwards.finish();
  CHECK(weights_of(at_once) == weights_of(afterwards));
  CHECK(afterwards.early_steps().repeated() > 0);
  CHECK(afterwards.plans().dropped() > 0);
}

namespace {

//! Sizes of slots that count how often plans ask for them.
sizes_of_plan counting_slots(long& asked) {
  return [&asked, slots = host_slots(six_layers, clipped_copies::totals_bytes)](
           pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    plan_sizes sizes = slots(table, lengths);
    sizes.bytes_for = [&asked, bytes = sizes.bytes_for](auto... what) {
      ++asked;
      return bytes(what...);
    };
    return sizes;
  };
}

} // namespace

TEST_CASE("with early steps every plan of a size is made once") {
  auto const table_of = [](std::vector<int> const& counts) {
    return pp::make_timetable(pp::RaggedSliceV<pp::listed_chunks>{{counts}}, {2, 4}, costs);
  };
  long asked = 0;
  auto const slots = counting_slots(asked);
  auto const asked_by = [&](auto work) {
    asked = 0;
    work();
    return asked;
  };
  auto const table = table_of({2, 1, 2, 1});
  auto const lengths = lengths_of(six_layers, table);
  std::optional<model_on_threads<clipped_copies>> model;
  long const once = asked_by([&] { (void)pp::lower_post_validated(table, slots(table, lengths)); });
  CHECK(once > 0);
  CHECK(asked_by([&] {
          model.emplace(table, lengths, plan_maker{slots, true}, [&](auto& shared) {
            return make_host_stages(six_layers, table, lengths, 9, shared);
          });
        }) == once);
  auto const other = table_of({1, 3, 1, 1});
  auto const others = lengths_of(six_layers, other);
  CHECK(asked_by([&] { model->use(other, others); }) ==
        asked_by([&] { (void)pp::lower_post_validated(other, slots(other, others)); }));
}
