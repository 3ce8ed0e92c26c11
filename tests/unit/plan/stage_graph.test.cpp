// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans of stages that are no chain: messages counted by hand, and plans broken in every place.
#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <tests/support/sizes.hpp>
#include <tests/support/spoiled_plans.hpp>
#include <tests/support/stage_graphs.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using support::words;

template <class Schedule>
pp::dynamic_timetable
on_graph(Schedule const& schedule, pp::pipeline_size size, support::edge_list const& edges) {
  return pp::make_timetable(
    pp::with_stage_graph<Schedule>{schedule, edges}, size, pp::uniform_cost{.communication = 0.25});
}

// An activation goes to every other device that reads it, once; a gradient to each stage that made
// an input elsewhere.
int messages_by_hand(pp::timetable_view const& table, support::edge_list const& edges) {
  int count = 0;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage) {
    int const home = pp::device_of(table, stage);
    std::set<int> readers;
    for (int const to : support::after(edges, stage))
      if (pp::device_of(table, to) != home)
        readers.insert(pp::device_of(table, to));
    count += static_cast<int>(readers.size());
    for (int const from : support::before(edges, stage))
      count += pp::device_of(table, from) != home ? 1 : 0;
  }
  return count * table.over.units();
}

int sends_of(pp::plan const& work) {
  int count = 0;
  for (pp::item const& step : work.items)
    count += step.what == pp::operation::send ? 1 : 0;
  return count;
}

template <class Policy, class Schedule>
void check_plans(Schedule const& schedule, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int const devices : {1, 2, 3, 6})
    for (int const microbatches : {2, 6}) {
      pp::shape const extents = schedule.arrange(devices, microbatches);
      auto const edges = support::draw_graph(extents.stages(), random);
      auto const table = on_graph(schedule, {devices, microbatches}, edges);
      pp::plan const work = pp::lower<Policy>(table, words); // throws where it is not proven
      CHECK(sends_of(work) == messages_by_hand(table, edges));
    }
}

template <class Schedule>
void check_policies(Schedule const& schedule, std::uint32_t seed) {
  check_plans<pp::communicators::per_pair>(schedule, seed);
  check_plans<pp::communicators::per_edge>(schedule, seed);
  check_plans<pp::communicators::one>(schedule, seed);
}

// Sizes by reader: what an encoder gets back is as large as what it has sent.
struct own_sizes {
  [[nodiscard]] static std::int64_t made_by(int stage) { return 256 * (stage + 1); }
  [[nodiscard]] std::int64_t bytes(pp::slot_class, pp::pass const& what) const {
    return made_by(what.stage);
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class, pp::pass const&, int reader) const {
    return made_by(reader);
  }
};

} // namespace

TEST_CASE_TEMPLATE("plans of graphs are proven, and have the messages that edges want",
                   Schedule,
                   pp::GPipe,
                   pp::OneFOneB,
                   pp::Seq1F1B<2>,
                   pp::ZeroBubbleH1,
                   pp::detail::SweptVHalf,
                   pp::with_recompute<pp::OneFOneB>) {
  check_policies(Schedule{}, 1);
}

TEST_CASE("copies to the host go with graphs") {
  support::edge_list const edges{{0, 2}, {1, 2}, {2, 3}, {1, 3}};
  pp::with_offload<pp::with_stage_graph<pp::OneFOneB>> const schedule{{{}, edges}, {}};
  auto const table = pp::make_timetable(
    schedule, {4, 8}, pp::uniform_cost{.communication = 0.25, .copy_out = 0.3, .copy_in = 0.3});
  pp::plan const work = pp::lower(table, words);
  CHECK(work.host_bytes[0] > 0);
  CHECK(sends_of(work) == 8 * 8);
}

TEST_CASE("no wait of a plan of a graph can be left out") {
  std::mt19937 random(7);
  int left_out = 0;
  for (int round = 0; round < 12; ++round) {
    auto const edges = support::draw_graph(5, random);
    auto const table = on_graph(pp::OneFOneB{}, {5, 4}, edges);
    pp::plan const whole = pp::lower<pp::communicators::per_edge>(table, words);
    left_out += support::leave_out_waits(whole);
  }
  CHECK(left_out > 500);
}

TEST_CASE("a step that reads or writes the slot of another neighbour is found") {
  support::edge_list const edges{{0, 2}, {1, 2}, {2, 3}, {1, 3}};
  pp::plan const whole = pp::lower(on_graph(pp::OneFOneB{}, {4, 4}, edges), words);
  int swapped = 0;
  for (std::size_t i = 0; i < whole.items.size(); ++i) {
    swapped += support::swap_uses(whole, i);
    pp::plan broken = whole;
    if (auto const read = support::uses_at(broken, whole.items[i], pp::detail::slot_place::inputs);
        read.size() > 1) {
      std::swap(*read[0], *read[1]);
      CHECK(pp::detail::summarise(broken) != pp::detail::summarise(whole));
    }
  }
  CHECK(swapped == 4 * 5); // two decoders read two activations each, encoder 1 two gradients, and
                           // each decoder makes two
}

TEST_CASE("a message for a reader that does not exist, or for another one, is found") {
  support::edge_list const edges{{0, 2}, {1, 2}, {2, 3}, {1, 3}};
  pp::plan const whole = pp::lower(on_graph(pp::OneFOneB{}, {4, 4}, edges), words);
  for (std::size_t i = 0; i < whole.items.size(); ++i) {
    if (whole.items[i].what == pp::operation::run)
      continue;
    for (int const number : {-1, whole.message_of(whole.items[i]).number + 1, 2, 1000}) {
      pp::plan broken = whole;
      support::message_of(broken, broken.items[i]).number = number;
      CHECK(!pp::prove(broken));
    }
  }
}

TEST_CASE("sizes may look at the reader") {
  support::edge_list const edges{{0, 2}, {1, 2}, {2, 3}, {1, 3}};
  pp::plan const work = pp::lower(on_graph(pp::OneFOneB{}, {4, 2}, edges), own_sizes{});
  pp::plan const& view = work;
  int gradients = 0;
  for (int device = 0; device < 4; ++device)
    for (pp::item const& step : view.program_of(device)) {
      if (step.what != pp::operation::send)
        continue;
      bool const forward = step.work.kind == pp::pass_kind::forward;
      int const reader =
        pp::detail::reader_of(view.over, step.work, view.message_of(step).number).stage;
      CHECK(view.uses_of(step)[0].bytes == own_sizes::made_by(forward ? step.work.stage : reader));
      gradients += forward ? 0 : 1;
    }
  CHECK(gradients == 2 * 4);
}
