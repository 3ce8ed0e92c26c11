// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <stdexcept>
#include <string>
#include <tests/support/sizes.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! The most slots of a class that hold something at once on a device, from first write to last use:
//! by the definition, entry by entry. What is sent counts through the next pass of the device.
int peak_overlap(pp::plan const& view, int device, pp::slot_class of) {
  auto const steps = view.program_of(device);
  int const count = static_cast<int>(steps.size());
  auto const at = [&](int i) -> pp::item const& { return steps[static_cast<std::size_t>(i)]; };
  auto const first_of_pair = [&](int i) { return at(i).work.overlapped ? i - 1 : i; };
  auto const last_of_pair = [&](int i) {
    return i + 1 < count && at(i + 1).what == pp::operation::run && at(i + 1).work.overlapped
             ? i + 1
             : i;
  };
  auto const uses = [&](pp::item const& step, int index) {
    auto const all = view.uses_of(step);
    return std::any_of(all.begin(), all.end(), [=](pp::use const& one) {
      return one.of == of && one.index == index;
    });
  };
  // What a slot holds: the message, or the unit, or the microbatch of a stage.
  auto const content = [&](pp::item const& step, int index) {
    pp::pass what = step.work;
    if (of == pp::slot_class::sequence || of == pp::slot_class::sequence_gradient)
      what.chunk = 0;
    pp::use const read = view.use_at(pp::detail::slot_place::inputs, step);
    bool const reads = step.what == pp::operation::run && read.of == of && read.index == index;
    if (reads)
      what.stage = static_cast<std::uint16_t>(what.kind == pp::pass_kind::forward ? what.stage - 1
                                                                                  : what.stage + 1);
    return std::vector<int>{what.stage, what.microbatch, what.chunk};
  };
  std::vector<int> change(static_cast<std::size_t>(count) + 1);
  for (int index = 0; index < view.layout(device, of).count; ++index)
    for (int i = 0; i < count;) {
      if (!uses(at(i), index)) {
        ++i;
        continue;
      }
      int last = i;
      for (int k = i;
           k < count && (!uses(at(k), index) || content(at(k), index) == content(at(i), index));
           ++k)
        last = uses(at(k), index) ? k : last;
      int held_until = at(last).what == pp::operation::run ? last_of_pair(last) : last;
      if (at(last).what == pp::operation::send)
        while (held_until < count && at(held_until).what != pp::operation::run)
          ++held_until;
      if (at(last).what == pp::operation::send && held_until < count)
        held_until = last_of_pair(held_until);
      ++change[static_cast<std::size_t>(first_of_pair(i))];
      --change[static_cast<std::size_t>(std::min(held_until + 1, count))];
      i = last + 1;
    }
  int held = 0;
  int peak = 0;
  for (int const step : change) {
    held += step;
    peak = std::max(peak, held);
  }
  return peak;
}

template <class Policy>
void check_plan(pp::timetable_view table) {
  // lower proves what it makes, or throws.
  pp::plan const work = pp::lower<Policy>(table, pp::uniform_sizes{.message = 10});
  pp::plan const& view = work;
  int crossing = 0;
  for (int i = 0; i < table.size(); ++i)
    crossing +=
      pp::detail::receiver(pp::timetable_view(table).over, table.passes[i]) != pp::nothing ? 1 : 0;
  CHECK(static_cast<int>(work.items.size()) == table.size() + 2 * crossing);
  for (int device = 0; device < table.over.extents.devices; ++device) {
    CHECK(view.layout(device, pp::slot_class::activation).count ==
          pp::peak_activation_chunks(table, device));
    std::vector<pp::pass> ran;
    for (pp::item const& step : view.program_of(device))
      if (step.what == pp::operation::run)
        ran.push_back(step.work);
    for (int of = 0; of < pp::detail::slot_classes; ++of) {
      auto const in_class = static_cast<pp::slot_class>(of);
      CHECK(view.layout(device, in_class).count == peak_overlap(view, device, in_class));
    }
    auto const row = table.row(device);
    CHECK(std::equal(ran.begin(), ran.end(), row.begin(), row.end()));
  }
}

} // namespace

TEST_CASE("every timetable lowers to a proven plan under every policy") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int const microbatches : {1, 2, 3, 5, 8, 13}) {
      auto const gpipe = pp::make_timetable<pp::GPipe>({devices, microbatches});
      check_plan<pp::communicators::one>(gpipe);
      check_plan<pp::communicators::per_pair>(gpipe);
      check_plan<pp::communicators::per_edge>(gpipe);
      auto const one =
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}, pp::uniform_cost{3, 4, 2, 0.25});
      check_plan<pp::communicators::one>(one);
      check_plan<pp::communicators::per_pair>(one);
      check_plan<pp::communicators::per_edge>(one);
      for (int const chunks : {2, 3}) {
        auto const sequence =
          pp::make_timetable(pp::Seq1F1B<>{.chunks = chunks}, {devices, microbatches});
        check_plan<pp::communicators::per_pair>(sequence);
      }
    }
}

TEST_CASE("a pass that takes no time changes nothing about the order") {
  check_plan<pp::communicators::per_pair>(
    pp::make_timetable<pp::OneFOneB>({5, 9}, pp::uniform_cost{0, 0, 0, 0}));
  // It ends when the pass that it waits for ends, yet they are not of one time slot.
  check_plan<pp::communicators::per_pair>(
    pp::make_timetable<pp::OneFOneB>({5, 9}, pp::uniform_cost{1, 0, 0, 0}));
}

TEST_CASE("composite passes take the slots of both halves before either gives any back") {
  for (int devices = 2; devices <= 6; devices += 2)
    check_plan<pp::communicators::per_pair>(
      pp::make_timetable<pp::DualPipe<>>({devices, 3 * devices + 2}));
  check_plan<pp::communicators::per_edge>(pp::make_timetable<pp::DualPipeV<>>({4, 10}));
}

TEST_CASE("no wait can be dropped") {
  auto const check = [](pp::plan work) {
    for (pp::item& step : work.items)
      for (int const only : work.waits_of(step)) {
        // The wait is replaced by another of the same item, or by one that says nothing.
        pp::plan without = work;
        auto& changed = without.items[static_cast<std::size_t>(&step - work.items.data())];
        int* const first = without.waits.data() + step.first_wait;
        std::remove(first, first + step.wait_count, only);
        --changed.wait_count;
        CHECK(pp::prove(without).broken == pp::proof::rule::unordered);
      }
  };
  check(pp::lower<pp::communicators::one>(pp::make_timetable<pp::OneFOneB>({4, 6})));
  check(pp::lower<pp::communicators::per_pair>(pp::make_timetable<pp::Seq1F1B<2>>({3, 5})));
  check(pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::ZeroBubbleH1>({4, 7})));
  check(pp::lower(pp::make_timetable<pp::DualPipeV<>>({3, 8})));
}

TEST_CASE("an evaluation runs the forward passes and keeps nothing") {
  for (int const chunks : {1, 3}) {
    auto const table = pp::make_timetable(pp::Seq1F1B<>{.chunks = chunks}, {4, 5});
    pp::plan const work = pp::lower_evaluation(table, pp::uniform_sizes{.message = 10});
    int passes = 0;
    for (pp::item const& step : work.items)
      passes += step.what == pp::operation::run && step.work.kind == pp::pass_kind::forward ? 1 : 0;
    CHECK(passes == 4 * 5 * chunks);
    CHECK(work.items.size() == static_cast<std::size_t>((4 + 2 * 3) * 5 * chunks));
    for (int device = 0; device < 4; ++device) {
      CHECK(work.layout(device, pp::slot_class::activation).count == 1);
      CHECK(work.layout(device, pp::slot_class::sequence).count == (chunks > 1 ? 1 : 0));
      CHECK(work.layout(device, pp::slot_class::received_gradient).count == 0);
    }
  }
}

TEST_CASE("stages that go back alone have no evaluation, and a sentence says so") {
  std::string const sentence =
    "plan: an evaluation takes all stages forward, but in this flow some go back alone, with the "
    "forward pass of their layers inside; evaluate with a plan of the whole timetable and leave "
    "its gradients alone, or with a schedule whose stages go both ways";
  for (pp::dynamic_timetable const& table :
       {pp::make_timetable(pp::RoundPipe<0, 2>{}, {2, 4}),
        pp::make_timetable(pp::RoundPipe<2, 6>{}, {4, 8}),
        pp::make_timetable(pp::with_sharded_weights<pp::RoundPipe<1, 2>>{}, {2, 4})})
    CHECK_THROWS_WITH_AS(
      (void)pp::lower_evaluation(table), sentence.c_str(), std::invalid_argument);
}

TEST_CASE("an arena over the limit is refused, with the class and the pass of its peak") {
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 8});
  pp::uniform_sizes const sizes{.message = 256, .activation = 4096};
  std::int64_t const needed = pp::lower(table, sizes).arena_bytes[0];
  CHECK_NOTHROW(pp::lower(table, sizes, {.memory_limit = needed}));
  try {
    (void)pp::lower(table, sizes, {.memory_limit = needed - 1});
    FAIL("it fits");
  } catch (std::length_error const& error) {
    CHECK(std::string(error.what()) ==
          "plan: an arena is over the memory limit (device 0: " + std::to_string(needed) + " of " +
            std::to_string(needed - 1) +
            " bytes; most of it for class activation, 4 slots of 4096 bytes, first in use together "
            "at the forward of stage 0, microbatch 3)");
  }
}

TEST_CASE("one device needs no messages") {
  pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({1, 4}));
  CHECK(work.items.size() == 8);
  CHECK(work.waits.empty());
  CHECK(work.lanes[0] == 0);
}

TEST_CASE("arenas hold every class at the size that its largest pass needs") {
  struct ragged {
    static std::int64_t bytes(pp::slot_class of, pp::pass const& what) {
      return of == pp::slot_class::activation ? 1000 * (what.microbatch + 1) : 10;
    }
  };
  pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({2, 3}), ragged{});
  pp::detail::slot_layout const& kept = work.layout(0, pp::slot_class::activation);
  CHECK(kept.count == 2);
  CHECK(kept.bytes == 3072); // 3000 rounded up
  pp::detail::slot_layout const& sent = work.layout(0, pp::slot_class::output);
  CHECK(sent.bytes == 256);
  CHECK(sent.offset == 2 * 3072);
  CHECK(work.arena_bytes[0] ==
        2 * 3072 + 256 * (sent.count + work.layout(0, pp::slot_class::received_gradient).count));
  for (pp::item const& step : work.items)
    if (step.what == pp::operation::send)
      CHECK(work.uses_of(step)[0].bytes == 10);
}

TEST_CASE("a broken timetable is not lowered") {
  auto table = pp::make_timetable<pp::OneFOneB>({2, 3});
  std::swap(table.passes[0], table.passes[1]);
  CHECK_THROWS_AS(pp::lower(table), std::invalid_argument);
}

namespace {
// Groups may hold both directions, but the directions are two communicators.
struct duplex_over_edges : pp::communicators::per_edge {
  static constexpr bool duplex_groups = true;
};
} // namespace

TEST_CASE("a policy with groups of both directions and a communicator for each can be lowered") {
  for (int microbatches = 1; microbatches <= 8; ++microbatches)
    CHECK(pp::prove(pp::lower<duplex_over_edges>(
      pp::make_timetable<pp::OneFOneB>({4, microbatches}, pp::uniform_cost{1, 0.5, 0.5, 0}))));
}

TEST_CASE("sizes that are negative or whose sums overflow are refused with a sentence") {
  auto const table = pp::make_timetable<pp::GPipe>({2, 4});
  CHECK_THROWS_WITH_AS(
    pp::lower(table, pp::uniform_sizes{.activation = 1LL << 62}, {.memory_limit = 1 << 20}),
    doctest::Contains("over the memory limit"),
    std::length_error);
  CHECK_THROWS_WITH_AS(pp::lower(table, pp::uniform_sizes{.activation = 1LL << 62}),
                       doctest::Contains("over the memory limit"),
                       std::length_error);
  CHECK_THROWS_WITH_AS(
    pp::lower(table, pp::uniform_sizes{.activation = -8}),
    "plan: the sizes give -8 bytes for class activation on device 0; a size must "
    "not be negative",
    std::invalid_argument);
}

namespace {

constexpr pp::datum sum_named(char const* word, pp::slot_class pool) {
  return {.word = pp::flow_word::of(word),
          .pool = static_cast<std::uint8_t>(pool),
          .arrives_in = static_cast<std::uint8_t>(pool),
          .instance = pp::datum::per::microbatch};
}
constexpr pp::datum mark_named(char const* word) {
  return {.word = pp::flow_word::of(word), .lives = pp::residence::nowhere, .wanted = true};
}
constexpr pp::kind_of_pass
kind_on(char const* word, pp::engine on, std::initializer_list<pp::effect> effects) {
  return pp::declare_kind(pp::flow_word::of(word), on, pp::stage_call::perform, effects);
}
enum : std::uint8_t { a_sum, added, was_read, freed, another_sum };
// A sum that either of two engines adds to and a third one reads.
constexpr pp::flow summing = [] {
  using enum pp::does;
  pp::datum const data[] = {sum_named("sum", pp::slot_class::sequence),
                            mark_named("added"),
                            mark_named("read"),
                            mark_named("freed"),
                            sum_named("another", pp::slot_class::sequence_gradient)};
  pp::kind_of_pass const kinds[] = {
    kind_on("add", pp::engine::compute, {{adds_to, a_sum}, {makes, added}}),
    kind_on("read", pp::engine::network, {{reads, a_sum}, {makes, was_read}}),
    kind_on("free",
            pp::engine::compute,
            {{adds_to, another_sum},
             {frees, another_sum},
             {frees, a_sum},
             {reads, was_read},
             {makes, freed}}),
    kind_on("add beside", pp::engine::copy_out, {{adds_to, a_sum}, {makes, added}})};
  return pp::declare(data, kinds);
}();
struct summing_order {
  static constexpr pp::flow declared = summing;
  bool in_turn = false; // chunks are added by both engines in turn

  [[nodiscard]] static pp::shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches, .chunks = 4};
  }
  template <class Cost, class Rows>
  void generate(pp::shape const& extents, Cost const&, Rows&& rows) const {
    auto const push = [&](int row, int kind, int chunk) {
      rows[row].push(pp::row_writer::make(static_cast<pp::pass_kind>(kind), 0, 0, chunk));
    };
    for (int chunk = 0; chunk < extents.chunks; ++chunk) {
      bool const beside = in_turn && chunk % 2 == 1;
      push(beside ? 1 : 0, beside ? 3 : 0, chunk);
      push(2, 1, chunk);
    }
    for (int chunk = 0; chunk < extents.chunks; ++chunk)
      push(0, 2, chunk);
  }
};

} // namespace

TEST_CASE("all that use a sum do so in turn, on whichever engines") {
  for (bool const in_turn : {false, true}) {
    pp::plan work = pp::lower(pp::make_timetable(summing_order{in_turn}, {1, 1}), support::words);
    auto const steps = work.program_of(0);
    std::vector<std::set<int>> behind(steps.size()); // what has ended when a step starts
    int last_on[4] = {-1, -1, -1, -1};
    for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
      auto const at = static_cast<std::size_t>(i);
      std::vector<int> waits(work.waits_of(steps[at]).begin(), work.waits_of(steps[at]).end());
      waits.push_back(last_on[steps[at].stream()]);
      last_on[steps[at].stream()] = i;
      for (int const wait : waits)
        if (wait >= 0) {
          behind[at].insert(wait);
          behind[at].insert(behind[static_cast<std::size_t>(wait)].begin(),
                            behind[static_cast<std::size_t>(wait)].end());
        }
      CHECK(static_cast<int>(behind[at].size()) == i); // all steps use the sum
    }
    for (pp::item& step : work.items) { // no wait of them can be left out
      auto const count = std::exchange(step.wait_count, std::uint16_t{0});
      CHECK((count == 0 || !pp::prove(work)));
      step.wait_count = count;
    }
    CHECK(pp::prove(work));
  }
}
