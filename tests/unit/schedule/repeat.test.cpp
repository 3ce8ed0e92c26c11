// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

//! Slots for which an activation of a stage lives, from its forward pass to what frees it.
int lifespan(pp::building_block const& block, int stage) {
  return block.freed(stage) - block.forward(stage);
}

//! Activations that no device exceeds, whatever the order in the interval: the sum over its
//! stages of ceil(lifespan / interval).
//! @source Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, section 3.
int peak_bound(pp::building_block const& block) {
  int most = 0;
  for (int device = 0; device < block.extents.devices; ++device) {
    int bound = 0;
    pp::detail::for_each_stage(block, device, [&](int stage) {
      bound += (lifespan(block, stage) + block.interval - 1) / block.interval;
    });
    most = bound > most ? bound : most;
  }
  return most;
}

// Near misses: each lacks one thing.
struct without_arrange {
  static void order(pp::shape const&, int, pp::row_writer&) {}
};
struct without_order {
  static pp::shape arrange(int, int) { return {}; }
};
struct arranges_a_number {
  static int arrange(int, int) { return 1; }
  static void order(pp::shape const&, int, pp::row_writer&) {}
};
struct not_a_copy {
  not_a_copy() = default;
  not_a_copy(not_a_copy const&) = delete;
  not_a_copy& operator=(not_a_copy const&) = delete;
  static pp::shape arrange(int, int) { return {}; }
  static void order(pp::shape const&, int, pp::row_writer&) {}
};
struct without_latency {
  static double duration(pp::pass const&) { return 1; }
};
struct block_without_layout {
  int stages_per_device = 1;
  bool fused = false;
};
static_assert(pp::schedule<pp::OneFOneB> && pp::detail::orders_device<pp::OneFOneB>);
static_assert(!pp::detail::generates_rows<pp::OneFOneB> && pp::detail::generates_rows<pp::VHalf>);
static_assert(!pp::detail::arranges<without_arrange> && !pp::schedule<without_arrange>);
static_assert(pp::detail::arranges<without_order> && !pp::schedule<without_order>);
static_assert(!pp::detail::arranges<arranges_a_number> && !pp::schedule<not_a_copy>);
static_assert(!pp::cost_model<without_latency> && pp::cost_model<pp::uniform_cost>);
static_assert(!pp::detail::repeatable_block<block_without_layout> &&
              pp::detail::repeatable_block<pp::strides<3>>);
static_assert(pp::detail::stage_placement<pp::waves> &&
              !pp::detail::stage_placement<block_without_layout>);

struct costs {
  static constexpr pp::uniform_cost value{10, 12, 8, 1};
};

// The most activations that are alive on a device at once, by counting slot after slot.
int counted_peak(pp::building_block const& block) {
  int most = 0;
  for (int device = 0; device < block.extents.devices; ++device)
    for (int slot = 0; slot < block.interval; ++slot) {
      int alive = 0;
      for (int stage = 0; stage < block.extents.stages(); ++stage)
        for (int at = block.forward(stage); at < block.freed(stage); ++at)
          if (block.device(stage) == device)
            alive += at % block.interval == slot ? 1 : 0;
      most = std::max(most, alive);
    }
  return most;
}

template <int Legs>
void check_block(pp::strides<Legs> const& own, pp::shape const& extents) {
  std::vector<int> slots(static_cast<std::size_t>(3 * extents.stages()));
  pp::building_block block{.extents = extents, .slots = slots.data()};
  own.lay_out(block);
  CHECK(pp::detail::peak_of(block) == counted_peak(block));
  CHECK(pp::detail::peak_of(block) <= peak_bound(block));
}

template <int Legs, class Placement>
void check_everywhere(pp::strides<Legs> own) {
  for (int devices = 1; devices <= 8; ++devices)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int const microbatches : {1, 3, 2 * devices + 1}) {
        pp::Repeat<pp::strides<Legs>, Placement, pp::dynamic> const plan{.chunks = chunks,
                                                                         .block = own};
        auto const extents = plan.arrange(devices, microbatches);
        check_block(own, extents);
        std::vector<int> slots(static_cast<std::size_t>(3 * extents.stages()));
        pp::building_block block{.extents = extents, .slots = slots.data()};
        own.lay_out(block);
        // make_timetable verifies every rule
        for (pp::uniform_cost const& cost : {pp::uniform_cost{}, pp::uniform_cost{10, 12, 8, 1}}) {
          auto const table = pp::make_timetable(plan, {devices, microbatches}, cost);
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) <=
                  peak_bound(block) + Legs * (chunks - 1));
        }
      }
}

} // namespace

TEST_CASE("blocks of one to four legs, looped and to and fro, keep every rule and their memory") {
  int const fit = pp::first_fit;
  check_everywhere<1, pp::loops>({.stride = {1, 2}, .gap = {0, fit}});
  check_everywhere<2, pp::loops>({.stride = {1, 1, 1, 1}, .gap = {0, fit, fit, fit}});
  check_everywhere<2, pp::waves>({.stride = {2, 1, 2, 1}, .gap = {0, 2, 0, 1}});
  check_everywhere<2, pp::waves>({.fused = true, .stride = {1, 1, 0, 0}, .gap = {0, 1, 0, 2}});
  check_everywhere<3, pp::waves>(
    {.interval = 10, .stride = {0, 0, 0, 0, 0, 0}, .gap = {0, fit, fit, fit, fit, fit}});
  check_everywhere<4, pp::waves>({.interval = 14,
                                  .stride = {0, 0, 0, 0, 0, 0, 0, 0},
                                  .gap = {0, fit, fit, fit, fit, fit, fit, fit}});
}

TEST_CASE("a block of one leg with its backward pass in one piece has the figures of 1F1B") {
  pp::strides<1> const own{.fused = true, .stride = {1, 2}, .gap = {0, pp::first_fit}};
  for (int devices = 1; devices <= 8; ++devices)
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      pp::pipeline_size const size{devices, microbatches};
      auto const block =
        pp::make_timetable(pp::Repeat<pp::strides<1>, pp::loops>{.block = own}, size);
      auto const plain = pp::make_timetable<pp::OneFOneB>(size);
      CHECK(pp::span_of(block) == pp::span_of(plain));
      CHECK(pp::peak_activations(block) == pp::peak_activations(plain));
    }
}

TEST_CASE("a list of devices that says what a name says gives the same timetable") {
  int const fit = pp::first_fit;
  pp::strides<2> const block{.stride = {0, 0, 0, 0}, .gap = {0, fit, fit, fit}};
  for (int devices = 1; devices <= 6; ++devices) {
    pp::placed_by_list looped;
    pp::placed_by_list wave;
    for (int stage = 0; stage < 2 * devices; ++stage) {
      looped.devices.push_back(stage % devices);
      wave.devices.push_back(stage < devices ? stage : 2 * devices - 1 - stage);
    }
    pp::pipeline_size const size{devices, 2 * devices + 1};
    pp::uniform_cost const cost{10, 12, 8, 1};
    using listed = pp::Repeat<pp::strides<2>, pp::placed_by_list>;
    auto const by_list = pp::make_timetable(listed{.block = block, .where = wave}, size, cost);
    auto const by_name = pp::make_timetable(pp::Repeat<pp::strides<2>>{.block = block}, size, cost);
    CHECK(by_list.passes == by_name.passes);
    CHECK(by_list.starts == by_name.starts);
    // Devices are asked in another order, so that the sweeps may end in another row of passes.
    auto const ring = pp::make_timetable(listed{.block = block, .where = looped}, size, cost);
    auto const named =
      pp::make_timetable(pp::Repeat<pp::strides<2>, pp::loops>{.block = block}, size, cost);
    CHECK(pp::span_of(ring) == pp::span_of(named));
    CHECK(pp::peak_activations(ring) == pp::peak_activations(named));
  }
}

TEST_CASE("blocks on any list of devices keep every rule and their memory") {
  int const fit = pp::first_fit;
  pp::strides<3> const block{.stride = {0, 0, 0, 0, 0, 0}, .gap = {0, fit, fit, fit, fit, fit}};
  for (int devices = 2; devices <= 4; ++devices) {
    std::vector<int> leg(static_cast<std::size_t>(devices));
    std::iota(leg.begin(), leg.end(), 0);
    std::vector<int> second = leg;
    do { // any order in the second leg, the order turned round in the third
      pp::placed_by_list list{leg};
      list.devices.insert(list.devices.end(), second.begin(), second.end());
      list.devices.insert(list.devices.end(), second.rbegin(), second.rend());
      pp::Repeat<pp::strides<3>, pp::placed_by_list, pp::dynamic> const plan{
        .chunks = 2, .block = block, .where = list};
      auto const extents = plan.arrange(devices, 2 * devices);
      std::vector<int> slots(static_cast<std::size_t>(3 * extents.stages()));
      pp::building_block made{
        .extents = extents, .slots = slots.data(), .holders = list.devices.data()};
      block.lay_out(made);
      CHECK(pp::detail::peak_of(made) == counted_peak(made));
      CHECK(pp::detail::peak_of(made) <= peak_bound(made));
      auto const table =
        pp::make_timetable(plan, {devices, 2 * devices}, pp::uniform_cost{3, 4, 2, 1});
      for (int device = 0; device < devices; ++device)
        CHECK(pp::peak_activation_chunks(table, device) <= peak_bound(made) + 3);
      for (int stage = 0; stage < extents.stages(); ++stage)
        CHECK(pp::device_of(table.over, stage) == list.devices[static_cast<std::size_t>(stage)]);
    } while (std::next_permutation(second.begin(), second.end()));
  }
}

TEST_CASE("the compiler takes a list of devices too, and one that does not fit is refused") {
  int const fit = pp::first_fit;
  static constexpr pp::strides<2> legs{.stride = {1, 1, 1, 1}, .gap = {0, fit, fit, fit}};
  using crossed = pp::Repeat<pp::fixed_block<legs>, pp::placed_on<0, 1, 2, 1, 0, 2>>;
  constexpr auto table = pp::timetable<crossed, 3, 6, costs>;
  static_assert(pp::verify(table));
  static_assert(pp::device_of(table.view.over, 3) == 1);
  auto const made = pp::make_timetable<crossed>({3, 6}, costs::value);
  CHECK(pp::span_of(made) == pp::span_of(table));
  CHECK_THROWS_WITH_AS(static_cast<void>(pp::make_timetable<crossed>({2, 6})),
                       "block: the list of devices has 6 entries, but 2 devices with 2 legs have 4 "
                       "stages; give each a "
                       "device",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    (pp::make_timetable<pp::Repeat<pp::fixed_block<legs>, pp::placed_on<0, 1, 2, 0>>>({2, 6})),
    "shape: device_of gives stage 2 to device 2, but there are 2 devices",
    std::invalid_argument);
}

TEST_CASE("four legs hold less than the V at a smaller bubble") {
  int const fit = pp::first_fit;
  pp::Repeat<pp::strides<4>> const w{
    .block = {.stride = {1, 1, 1, 1, 1, 1, 1, 1}, .gap = {0, fit, fit, fit, fit, fit, fit, fit}}};
  auto const longer = pp::make_timetable(w, {8, 32});
  auto const v = pp::make_timetable<pp::VMin>({8, 32});
  CHECK(pp::peak_activations(longer) == pp::ratio{14, 1}); // 3.5 shares of a device, 4 of the V
  CHECK(pp::peak_activations(v) == pp::ratio{8, 1});
  CHECK(pp::bubble_rate(longer) < pp::bubble_rate(v));
}

TEST_CASE("no block at full throughput holds less than a third of P on average") {
  // Live activations are the sum of lifespans over the interval; every pass takes a slot.
  int const fit = pp::first_fit;
  for (int devices = 2; devices <= 32; ++devices) {
    pp::strides<4> const own{.interval = 14,
                             .stride = {0, 0, 0, 0, 0, 0, 0, 0},
                             .gap = {0, fit, fit, fit, fit, fit, fit, fit}};
    pp::shape const extents = pp::waves::arrange(devices, 1, 1, 4);
    std::vector<int> slots(static_cast<std::size_t>(3 * extents.stages()));
    pp::building_block block{.extents = extents, .slots = slots.data()};
    own.lay_out(block);
    int lived = 0;
    for (int stage = 0; stage < extents.stages(); ++stage)
      lived += lifespan(block, stage);
    int const all = extents.stages();
    CHECK(lived >= all * (all + 2)); // the sum of 2 (S - s) + 1
    CHECK(pp::detail::peak_of(block) * devices * block.interval >= lived);
  }
}

TEST_CASE("a type that sweeps gives one answer, in the compiler and in the program") {
  constexpr auto fixed = pp::timetable<pp::detail::SweptVHalf, 4, 9, costs>;
  auto const table = pp::make_timetable<pp::detail::SweptVHalf>({4, 9}, costs::value);
  CHECK(std::equal(table.passes.begin(), table.passes.end(), fixed.view.passes));
  // The search finds a shorter one.
  CHECK(pp::span_of(pp::make_timetable<pp::VHalf>({4, 9}, costs::value)) <= pp::span_of(table));
  CHECK(pp::make_timetable(pp::detail::SweptVAuto<6>{}, {4, 9}).passes ==
        pp::make_timetable(pp::detail::SweptVAuto<pp::dynamic>{.memory_limit = 6}, {4, 9}).passes);
}

TEST_CASE("times that cannot be are refused with their entry, tiny ones are times like others") {
  double const none = std::numeric_limits<double>::quiet_NaN();
  double const ever = std::numeric_limits<double>::infinity();
  for (double const bad : {none, ever, -1.0}) {
    pp::uniform_cost const cost{1, bad, 1};
    CHECK_THROWS_WITH(pp::make_orders(pp::ZeroBubbleAuto<>{4}, {4, 8}, cost),
                      doctest::Contains("cost model: the time of backward"));
    CHECK_THROWS_WITH(pp::make_orders(pp::VShape<pp::v_half_offsets>{}, {4, 8}, cost),
                      doctest::Contains("must be a finite number and not negative"));
    CHECK_THROWS_WITH(
      pp::make_orders(pp::ZeroBubbleAuto<>{4}, {4, 8}, pp::uniform_cost{1, 1, 1, bad}),
      "cost model: the latency must be a finite number and not negative");
  }
  CHECK_THROWS_WITH(pp::make_orders(pp::ZeroBubbleAuto<>{4}, {4, 8}, pp::uniform_cost{1e308}),
                    "cost model: the times of all passes together are too large");
  for (double const tiny : {1e-300, 5e-324})
    CHECK(pp::make_orders(pp::VHalf{}, {4, 8}, pp::uniform_cost{tiny, tiny, tiny}).passes ==
          pp::make_orders(pp::VHalf{}, {4, 8}).passes);
}

TEST_CASE("offsets that overflow are refused, long intervals take bounded effort") {
  using too_far = pp::VShape<pp::offsets{.forward_down = 1 << 30}>;
  CHECK_THROWS_WITH(pp::make_orders(too_far{}, {64, 16}), doctest::Contains("none above 4096"));
  using unhurried = pp::VShape<pp::offsets{.interval = 512}>;
  CHECK(pp::verify(pp::make_timetable<unhurried>({8, 16})));
  CHECK(pp::verify(pp::make_timetable(pp::VAuto<>{1000}, {256, 10})));
}
