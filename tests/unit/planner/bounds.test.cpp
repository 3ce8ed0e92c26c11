// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! Times that differ by kind, stage, chunk and microbatch, or uniform ones: one type for both,
//! since every schedule compiles for every type of cost.
struct rough_cost {
  std::vector<double> factors; //!< none: uniform
  pp::uniform_cost uniform{.communication = 0.5};

  explicit rough_cost(pp::uniform_cost const& times) : uniform(times) {}
  explicit rough_cost(unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 997; ++i)
      factors.push_back(0.5 + static_cast<double>(random() % 1000) / 500);
  }
  [[nodiscard]] double duration(pp::pass const& what) const {
    if (factors.empty())
      return uniform.duration(what);
    if (what.kind == pp::pass_kind::backward) {
      pp::pass half = what;
      half.kind = pp::pass_kind::backward_input;
      double const input = duration(half);
      half.kind = pp::pass_kind::backward_weight;
      return input + duration(half);
    }
    auto const number = (static_cast<unsigned>(what.kind) * 31u + what.stage) * 17u +
                        what.chunk * 7u + what.microbatch / 3u * 101u;
    return factors[number % factors.size()];
  }
  [[nodiscard]] double latency() const { return uniform.latency(); }
};

template <class Cost>
void check_table(pp::dynamic_timetable const& table,
                 Cost const& cost,
                 bool pairs = false,
                 std::vector<double> const& shares = {}) {
  double peak = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    peak = std::max(peak,
                    shares.empty() ? pp::peak_activations(table, device).to_double()
                                   : pp::peak_activations(table, device, shares));
  for (bool const limited : {false, true}) {
    pp::time_bounds::options options{.chunk_shares = shares, .pairs = pairs};
    if (limited)
      options.memory_limit = peak + 1e-9;
    pp::time_bounds const bounds = pp::least_times(table.over, cost, options);
    CHECK(bounds.span.least() <= pp::span_of(table) * (1 + 1e-12));
    CHECK(bounds.makespan.least() <= pp::makespan(table) * (1 + 1e-12));
    CHECK(bounds.span.least() <= bounds.makespan.least() * (1 + 1e-12));
    CHECK(bounds.span.work > 0);
  }
}

void check_all(int devices, int microbatches, rough_cost const& cost) {
  pp::pipeline_size const size{devices, microbatches};
  auto const check = [&]<class Schedule>(Schedule const& schedule) {
    CAPTURE(doctest::toString<Schedule>());
    check_table(pp::make_timetable(schedule, size, cost), cost);
  };
  check(pp::GPipe{});
  check(pp::OneFOneB{});
  check(pp::EagerOneFOneB{});
  check(pp::Grouped<2>{});
  check(pp::Interleaved<2>{});
  check(pp::BreadthFirst<3>{});
  check(pp::Seq1F1B<3>{});
  check(pp::Seq1F1BInterleaved<>{.stages_per_device = 2, .chunks = 2});
  check(pp::ZeroBubbleH1{});
  check(pp::ZeroBubbleH2{});
  check(pp::ZeroBubbleInterleaved<2>{});
  check(pp::ZeroBubbleAuto<>{.memory_limit = devices});
  check(pp::detail::SweptVMin{});
  check(pp::detail::SweptVHalf{});
  check(pp::detail::SweptVZeroBubble{});
  check(pp::detail::SweptZeroBubbleV{});
  if (devices == 4) { // searches are long
    check(pp::VMin{});
    check(pp::VHalf{});
    check(pp::VZeroBubble{});
    check(pp::OneFOneBV{});
    check(pp::ZeroBubbleV{});
  }
  if (microbatches % 2 == 0 && devices % 2 == 0 && microbatches >= 2 * devices) {
    check(pp::DualPipe<pp::pairs::in_turn>{});
    check(pp::DualPipeV<pp::pairs::in_turn>{});
  }
}

//! The shortest of all orders of a few jobs on devices, each after those it needs: every order is
//! gone through by the starts of its jobs. Knows nothing of stages, flows and links.
class all_orders {
public:
  struct need {
    int job;
    double wait;
  };
  struct job {
    int device;
    double time;
    std::vector<need> needs = {};
    bool takes = false; //!< room on its device
    int frees = -1;     //!< the room that this job took, when this one ends
  };

  //! @param room that each device has
  all_orders(std::vector<job> const& jobs, int devices, int room)
      : jobs_(jobs), room_(room), start_(jobs.size(), -1),
        free_(static_cast<std::size_t>(devices)) {}

  //! The least makespan, `most` where all take as long.
  [[nodiscard]] double least(double most) {
    least_ = most;
    go(0, 0, 0);
    return least_;
  }

private:
  void go(std::size_t begun, double last, double end) {
    if (end >= least_)
      return;
    if (begun == jobs_.size()) {
      least_ = end;
      return;
    }
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      job const& one = jobs_[i];
      if (start_[i] >= 0)
        continue;
      auto const d = static_cast<std::size_t>(one.device);
      double start = free_[d];
      bool ready = true;
      for (need const& each : one.needs) {
        auto const n = static_cast<std::size_t>(each.job);
        ready = ready && start_[n] >= 0;
        start = std::max(start, ready ? start_[n] + jobs_[n].time + each.wait : 0);
      }
      if (!ready || (one.takes && !find_room(one.device, start)) || start < last)
        continue;
      double const before = free_[d];
      start_[i] = start;
      free_[d] = start + one.time;
      go(begun + 1, start, std::max(end, free_[d]));
      free_[d] = before;
      start_[i] = -1;
    }
  }
  //! Moves a start to when there is room. @return whether there ever is, of what has begun
  bool find_room(int device, double& start) const {
    int held = 0;
    std::vector<double> ends;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      held += jobs_[i].device == device && jobs_[i].takes && start_[i] >= 0 ? 1 : 0;
      if (jobs_[i].device == device && jobs_[i].frees >= 0 && start_[i] >= 0)
        ends.push_back(start_[i] + jobs_[i].time);
    }
    std::sort(ends.begin(), ends.end());
    auto const wanted = static_cast<std::size_t>(std::max(0, held + 1 - room_));
    if (wanted > ends.size())
      return false;
    start = wanted == 0 ? start : std::max(start, ends[wanted - 1]);
    return true;
  }

  std::vector<job> const& jobs_;
  int room_;
  std::vector<double> start_;
  std::vector<double> free_;
  double least_ = 0;
};

//! The passes of a graph of stages with split backward passes.
std::vector<all_orders::job> jobs_of(int stages,
                                     std::vector<pp::stage_edge> const& edges,
                                     std::vector<int> const& device,
                                     int microbatches,
                                     rough_cost const& cost) {
  std::vector<all_orders::job> jobs;
  auto const number = [&](int row, int stage, int m) { return (m * 3 + row) * stages + stage; };
  constexpr pp::pass_kind kinds[] = {
    pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight};
  for (int m = 0; m < microbatches; ++m)
    for (int row = 0; row < 3; ++row)
      for (int stage = 0; stage < stages; ++stage) {
        int const here = device[static_cast<std::size_t>(stage)];
        all_orders::job one{here, cost.duration(pp::row_writer::make(kinds[row], stage, m))};
        auto const wait = [&](int other) {
          return device[static_cast<std::size_t>(other)] == here ? 0 : cost.latency();
        };
        if (row > 0)
          one.needs.push_back({number(row - 1, stage, m), 0});
        for (pp::stage_edge const& edge : edges) {
          if (row == 0 && edge.to == stage)
            one.needs.push_back({number(0, edge.from, m), wait(edge.from)});
          if (row == 1 && edge.from == stage)
            one.needs.push_back({number(1, edge.to, m), wait(edge.to)});
        }
        one.takes = row == 0;
        one.frees = row == 2 ? number(0, stage, m) : -1;
        jobs.push_back(one);
      }
  return jobs;
}

} // namespace

TEST_CASE("no order of a graph of stages beats the bounds") {
  struct {
    int devices;
    int per_device;
    std::vector<pp::stage_edge> edges;
    int microbatches;
  } const graphs[] = {
    {3, 1, {{0, 2}, {1, 2}}, 2},                 // two encoders
    {3, 1, {{0, 1}, {0, 2}}, 2},                 // two heads
    {3, 1, {{0, 1}, {1, 2}, {0, 2}}, 2},         // a skip
    {2, 2, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}, 1}, // two encoders and a skip, two on a device
    {2, 1, {}, 2},                               // nothing reads anything
    {1, 3, {{0, 2}, {1, 2}}, 1},
    {4, 1, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}, 1},
  };
  int met = 0;
  int memory_matters = 0;
  int all = 0;
  for (auto const& graph : graphs)
    for (unsigned seed = 1; seed <= 4; ++seed)
      for (int const room : {graph.per_device, 100}) {
        CAPTURE(seed);
        CAPTURE(room);
        rough_cost const cost(seed);
        pp::shape const extents{.devices = graph.devices,
                                .microbatches = graph.microbatches,
                                .stages_per_device = graph.per_device};
        std::vector<int> device;
        for (int stage = 0; stage < extents.stages(); ++stage)
          device.push_back(pp::device_of(extents, stage));
        std::vector<all_orders::job> const jobs =
          jobs_of(extents.stages(), graph.edges, device, graph.microbatches, cost);
        double const least = all_orders(jobs, graph.devices, room).least(1000);
        REQUIRE(least < 1000);
        std::vector<int> const edges = pp::detail::edge_table(graph.edges, extents.stages());
        pp::pipeline_view over{extents};
        over.edges = edges.data();
        pp::time_bounds const bounds =
          pp::least_times(over, cost, {.memory_limit = static_cast<double>(room)});
        CHECK(bounds.makespan.least() <= least * (1 + 1e-12));
        CHECK(bounds.makespan.least() >= 0.6 * least);
        met += bounds.makespan.least() >= least * (1 - 1e-12) ? 1 : 0;
        memory_matters += bounds.makespan.reason() == std::string("memory") ? 1 : 0;
        ++all;
      }
  CHECK(met >= all * 3 / 4);
  CHECK(memory_matters >= 8);
}

TEST_CASE("no order of stages between shards of a vocabulary beats the bounds") {
  int met = 0;
  int all = 0;
  for (int const devices : {1, 2})
    for (int const barriers : {1, 2})
      for (int const microbatches : {1, 2})
        for (double const logits : {0.5, 2.0, 5.0}) {
          if (devices * microbatches > 2)
            continue; // all orders are too many
          CAPTURE(devices);
          CAPTURE(barriers);
          CAPTURE(microbatches);
          CAPTURE(logits);
          pp::uniform_cost cost{2, 3, 1, 0.5};
          cost.logits = logits;
          cost.logits_gradient = 1.5;
          cost.embed = 0.75;
          cost.embed_gradient = 0.25;
          cost.broadcast = 0.25;
          cost.reduce = 0.125;
          // Of each microbatch: embed, F, logits, their gradients, I, W, embed_gradient.
          enum row { embed, forward, scores, scored, input, weight, embedded, rows };
          double const times[rows] = {0.75, 2, logits, 1.5, 3, 1, 0.25};
          std::vector<all_orders::job> jobs;
          for (int m = 0; m < microbatches; ++m)
            for (int row = 0; row < rows; ++row)
              for (int d = 0; d < devices; ++d) {
                auto const number = [&](int other, int at) {
                  return (m * rows + other) * devices + at;
                };
                all_orders::job one{d, times[row]};
                auto const wait_for_all = [&](int other) {
                  for (int shard = 0; shard < devices; ++shard)
                    one.needs.push_back({number(other, shard), cost.reduce});
                };
                if (row == forward && d == 0)
                  wait_for_all(embed);
                if (row == forward && d > 0)
                  one.needs.push_back({number(forward, d - 1), cost.communication});
                if (row == scores)
                  one.needs.push_back({number(forward, devices - 1), cost.broadcast});
                if (row == scored)
                  wait_for_all(scores);
                if (row == input && d + 1 < devices)
                  one.needs.push_back({number(input, d + 1), cost.communication});
                if (row == input && d + 1 == devices)
                  wait_for_all(barriers == 1 ? scores : scored);
                if (row == input)
                  one.needs.push_back({number(forward, d), 0});
                if (row == weight)
                  one.needs.push_back({number(input, d), 0});
                if (row == embedded)
                  one.needs.push_back({number(input, 0), cost.broadcast});
                jobs.push_back(one);
              }
          auto const check = [&](auto const& schedule) {
            pp::dynamic_timetable const table =
              pp::make_timetable(schedule, {devices, microbatches}, cost);
            double const made = pp::makespan(table);
            double const least = all_orders(jobs, devices, 100).least(made * (1 + 1e-12));
            double const bound = pp::least_times(table.over, cost).makespan.least();
            CHECK(bound <= least * (1 + 1e-12));
            CHECK(bound >= 0.7 * least);
            met += bound >= least * (1 - 1e-12) ? 1 : 0;
            ++all;
          };
          if (barriers == 1)
            check(pp::with_vocabulary<pp::ZeroBubbleH1, 1>{});
          else
            check(pp::with_vocabulary<pp::ZeroBubbleH1, 2>{});
        }
  CHECK(met >= all / 2);
}

TEST_CASE("no schedule between shards of a vocabulary beats the bounds") {
  for (int const devices : {2, 3, 4})
    for (int const microbatches : {2, 8}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      pp::uniform_cost cost{10, 12, 8, 1};
      cost.logits = 4;
      cost.broadcast = 2;
      auto const check = [&](auto const& schedule) {
        pp::dynamic_timetable const table =
          pp::make_timetable(schedule, {devices, microbatches}, cost);
        check_table(table, cost);
        // It is more than the stages between the shards take.
        double const inside =
          pp::least_times({schedule.inside(table.over.extents)}, cost).makespan.least();
        CHECK(pp::least_times(table.over, cost).makespan.least() > inside);
      };
      check(pp::with_vocabulary<pp::OneFOneB, 1>{});
      check(pp::with_vocabulary<pp::OneFOneB, 2>{});
      check(pp::with_vocabulary<pp::OneFOneB, pp::interlaced>{});
      check(pp::with_vocabulary<pp::ZeroBubbleH1>{});
      check(pp::with_vocabulary<pp::detail::SweptVHalf>{});
      check(pp::with_vocabulary<pp::Seq1F1B<2>>{});
    }
}

TEST_CASE("a graph of stages that is a chain has the bounds of a chain") {
  rough_cost const cost(11);
  for (int const per_device : {1, 2})
    for (int const chunks : {1, 3})
      for (double const limit : {3.0, 1e9}) {
        pp::shape const extents{
          .devices = 3, .microbatches = 5, .chunks = chunks, .stages_per_device = per_device};
        std::vector<pp::stage_edge> edges;
        for (int stage = 1; stage < extents.stages(); ++stage)
          edges.push_back({stage - 1, stage});
        std::vector<int> const table = pp::detail::edge_table(edges, extents.stages());
        pp::pipeline_view over{extents};
        over.edges = table.data();
        pp::time_bounds const chain = pp::least_times({extents}, cost, {.memory_limit = limit});
        pp::time_bounds const graph = pp::least_times(over, cost, {.memory_limit = limit});
        for (auto const which : {&pp::time_bounds::span, &pp::time_bounds::makespan})
          for (auto const what :
               {&pp::time_bound::path, &pp::time_bound::work, &pp::time_bound::memory})
            CHECK(chain.*which.*what == graph.*which.*what);
      }
}

TEST_CASE("no schedule beats the bounds") {
  for (int devices : {1, 3, 4})
    for (int microbatches : {1, 3, 8}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      check_all(devices, microbatches, rough_cost({1, 1, 1, 0}));
      check_all(devices, microbatches, rough_cost({10, 12, 8, 3}));
      check_all(devices, microbatches, rough_cost({1, 3, 0, 0.25}));
      check_all(devices, microbatches, rough_cost(7u + static_cast<unsigned>(devices)));
    }
}

TEST_CASE("no schedule beats the bounds with pairs or with uneven chunks") {
  for (double const pair : {3.0, 2.0, 1.5, 0.5}) {
    pp::uniform_cost cost{1, 1, 1, 0.25};
    cost.overlapped_pair = pair;
    CAPTURE(pair);
    check_table(pp::make_timetable<pp::DualPipe<>>({4, 12}, cost), cost, true);
    check_table(pp::make_timetable<pp::DualPipeV<>>({4, 12}, cost), cost, true);
  }
  pp::sequence_work const work = pp::sequence_work::of_attention(2, 1000);
  for (bool const even : {false, true}) {
    std::vector<int> const lengths =
      even ? pp::even_partition(1000, 4) : pp::balanced_partition(1000, 4, work);
    std::vector<double> const shares = pp::token_shares(lengths);
    pp::shape const extents{.devices = 4, .microbatches = 8, .chunks = 4};
    pp::cost_table const cost = pp::chunk_costs(extents, lengths, work, 0.1);
    check_table(pp::make_timetable<pp::Seq1F1B<4>>({4, 8}, cost), cost, false, shares);
    check_table(pp::make_timetable<pp::Seq1F1BZeroBubbleH2<4>>({4, 8}, cost), cost, false, shares);
  }
}

TEST_CASE("bounds are met where theory says so") {
  for (int devices : {2, 4, 8})
    for (int microbatches : {8, 16, 40}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      pp::uniform_cost const unit;
      // Zero bubble: nothing but work on the busiest device, and its way there for the makespan.
      pp::dynamic_timetable const h2 =
        pp::make_timetable<pp::ZeroBubbleH2>({devices, std::max(microbatches, 2 * devices)}, unit);
      pp::time_bounds const free = pp::least_times(h2.over, unit);
      CHECK(free.span.least() == pp::span_of(h2));
      CHECK(free.makespan.work == 3.0 * h2.over.extents.microbatches + devices - 1);
      // One microbatch alone is a path.
      pp::shape one{.devices = devices, .microbatches = 1};
      CHECK(pp::least_times({one}, unit).makespan.least() == 2.0 * devices + 1);
      // One activation at a time: one microbatch after the other, on the first device.
      pp::shape const all{.devices = devices, .microbatches = microbatches};
      pp::time_bounds const tight = pp::least_times({all}, unit, {.memory_limit = 1});
      CHECK(tight.makespan.memory == microbatches * (2.0 * devices + 1));
      CHECK(std::string(tight.makespan.reason()) == "memory");
    }
}

TEST_CASE("bounds are below proven optima and near them") {
  int met = 0;
  int all = 0;
  for (std::string const& line : support::golden_lines("golden/search/optimal_offload.txt")) {
    std::istringstream in(line);
    pp::shape extents;
    pp::uniform_cost cost;
    double cap = 0;
    std::string copy;
    char mark = 0;
    double makespan = 0;
    in >> extents.devices >> extents.microbatches >> cost.forward >> mark >> cost.backward_input >>
      mark >> cost.backward_weight >> cap >> copy >> mark >> makespan;
    REQUIRE(!in.fail());
    CAPTURE(line);
    if (copy != "-")
      cost.copy_out = cost.copy_in = std::stod(copy);
    pp::pipeline_view const over{extents,
                                 copy == "-" ? &pp::training : &pp::detail::frugal_training<>};
    pp::time_bounds const bounds =
      pp::least_times(over, cost, {.memory_limit = cap, .relief = pp::memory_relief::copy});
    CHECK(bounds.makespan.least() <= makespan);
    CHECK(bounds.makespan.least() >= pp::least_times({extents}, cost).makespan.least());
    met += bounds.makespan.least() == makespan ? 1 : 0;
    ++all;
  }
  CHECK(met >= all * 2 / 3);
}

TEST_CASE("no proven order with recomputation or copies beats the bounds under a limit") {
  int memory_matters = 0;
  for (int devices = 1; devices <= 3; ++devices)
    for (int microbatches = 2; microbatches <= (devices < 3 ? 4 : 2); ++microbatches)
      for (int limit = 1; limit <= 2; ++limit)
        for (double const extra : {0.5, 1.0, 2.0}) {
          pp::shape const extents{.devices = devices, .microbatches = microbatches};
          pp::uniform_cost cost{2, 3, 1, 0.5};
          cost.recompute = 2 * extra;
          cost.copy_out = cost.copy_in = extra;
          CAPTURE(devices);
          CAPTURE(microbatches);
          CAPTURE(limit);
          CAPTURE(extra);
          // What recomputation keeps takes no memory here, as for the bounds.
          pp::exact_order const again = pp::shortest_order(
            extents, cost, {.memory_limit = limit, .input_units = 0, .recompute = extra});
          pp::exact_order const moved =
            pp::shortest_order(extents, cost, {.memory_limit = limit, .copy = extra});
          REQUIRE((again.optimal && moved.optimal));
          auto const bound = [&](pp::memory_relief relief) {
            return pp::least_times(pp::pipeline_view{extents, &pp::detail::frugal_training<>},
                                   cost,
                                   {.memory_limit = 1.0 * limit, .relief = relief})
              .makespan.least();
          };
          double const recomputing = bound(pp::memory_relief::recompute);
          double const offloading = bound(pp::memory_relief::copy);
          CHECK(bound(pp::memory_relief::any) <= std::min(recomputing, offloading) + 1e-9);
          double const plain = pp::least_times({extents}, cost).makespan.least();
          CHECK(recomputing <= again.makespan + 1e-9);
          CHECK(offloading <= moved.makespan + 1e-9);
          memory_matters += (recomputing > plain) + (offloading > plain);
        }
  CHECK(memory_matters >= 8);
}

TEST_CASE("no schedule with recomputation beats the bounds, which count what is recomputed") {
  for (int devices : {1, 3, 4})
    for (int microbatches : {1, 5, 8}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      pp::uniform_cost cost{10, 12, 8, 3};
      cost.recompute = 9;
      auto const check = [&](auto const& schedule) {
        pp::dynamic_timetable const table =
          pp::make_timetable(schedule, {devices, microbatches}, cost);
        double peak = 0;
        for (int device = 0; device < devices; ++device)
          peak = std::max(peak, pp::peak_activations(table, device).to_double());
        for (pp::memory_relief const relief : {pp::memory_relief::any,
                                               pp::memory_relief::recompute,
                                               pp::memory_relief::recompute_all})
          for (double const limit : {peak + 1e-9, 1e9}) {
            pp::time_bounds const bounds =
              pp::least_times(table.over, cost, {.memory_limit = limit, .relief = relief});
            CHECK(bounds.span.least() <= pp::span_of(table) * (1 + 1e-12));
            CHECK(bounds.makespan.least() <= pp::makespan(table) * (1 + 1e-12));
          }
        pp::time_bounds const all =
          pp::least_times(table.over, cost, {.relief = pp::memory_relief::recompute_all});
        CHECK(all.span.work >= microbatches * table.over.extents.stages_per_device * (39.0) - 1e-9);
      };
      check(pp::with_recompute<pp::OneFOneB>{});
      check(pp::with_recompute<pp::GPipe>{});
      check(pp::with_recompute<pp::ZeroBubbleH1>{});
      check(pp::with_recompute<pp::Interleaved<2>>{});
      // Where all of M (2 f + b) + (P - 1)(f + b) is work of one device or its way there and back,
      // nothing is left: with one device, and with one microbatch.
      if (devices > 1)
        continue;
      pp::dynamic_timetable const alone =
        pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, {1, microbatches}, cost);
      CHECK(pp::least_times(alone.over, cost, {.relief = pp::memory_relief::recompute_all})
              .makespan.least() == doctest::Approx(pp::makespan(alone)));
    }
}

TEST_CASE("no order over sequences of unequal length beats the bounds") {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<int> lengths;
    for (int i = 0; i < 9; ++i)
      lengths.push_back(1 + static_cast<int>(random() % (i % 4 == 0 ? 900 : 150)));
    std::vector<pp::packed_microbatch> const packed = pp::chunk_sequences(lengths, 200);
    auto const time = [](pp::pass_kind kind, int tokens, int before) {
      double const forward = tokens * (1 + 0.002 * (before + tokens / 2.0));
      return kind == pp::pass_kind::backward ? 2 * forward : forward;
    };
    pp::packed_cost const cost(packed, time, 10);
    std::vector<double> tokens;
    for (pp::packed_microbatch const& each : packed)
      for (auto const& chunk : each) {
        tokens.push_back(0);
        for (pp::sequence_piece const& piece : chunk)
          tokens.back() += piece.tokens;
      }
    pp::listed_chunks const counts{pp::counts_of(packed)};
    int const devices = 2 + static_cast<int>(random() % 3);
    for (int const keep : {1, 2, 100}) {
      CAPTURE(round);
      CAPTURE(keep);
      pp::dynamic_timetable const table =
        pp::make_timetable(pp::ChunkFlow<pp::listed_chunks>{.counts = counts, .keep = keep},
                           {devices, static_cast<int>(packed.size())},
                           cost);
      double peak = 0;
      for (int device = 0; device < devices; ++device)
        peak = std::max(peak, 1.0 * pp::peak_tokens(table, device, packed));
      pp::time_bounds const free = pp::least_times(table.over, cost);
      pp::time_bounds const tight = pp::least_times(
        table.over,
        cost,
        {.memory_limit = peak, .chunk_shares = tokens, .relief = pp::memory_relief::recompute});
      for (pp::time_bounds const& bounds : {free, tight}) {
        CHECK(bounds.span.least() <= pp::span_of(table) * (1 + 1e-12));
        CHECK(bounds.makespan.least() <= pp::makespan(table) * (1 + 1e-12));
        CHECK(bounds.makespan.least() >= 0.4 * pp::makespan(table));
      }
    }
  }
}

TEST_CASE("unequal numbers of chunks that are equal have the bounds of equal ones") {
  rough_cost const cost(3);
  pp::listed_chunks const counts{std::vector<int>(6, 3)};
  pp::shape const extents{.devices = 4, .microbatches = 6, .chunks = 3};
  std::vector<int> const first{0, 3, 6, 9, 12, 15, 18};
  std::vector<double> const weights(18, 1.0 / 3);
  pp::pipeline_view const listed{extents, &pp::training, nullptr, first.data()};
  for (double const limit : {1.0, 2.0, 4.0}) {
    pp::time_bounds const equal = pp::least_times({extents}, cost, {.memory_limit = limit});
    pp::time_bounds const unequal =
      pp::least_times(listed, cost, {.memory_limit = limit, .chunk_shares = weights});
    CHECK(equal.makespan.least() == doctest::Approx(unequal.makespan.least()));
    CHECK(equal.span.memory == doctest::Approx(unequal.span.memory));
  }
}

TEST_CASE("bounds refuse what cannot be") {
  pp::shape const extents{.devices = 2, .microbatches = 2, .chunks = 2};
  std::vector<double> const one_share{1.0};
  CHECK_THROWS_WITH(pp::least_times({extents}, pp::uniform_cost{}, {.memory_limit = 0.25}),
                    doctest::Contains("nothing runs"));
  CHECK_THROWS_WITH(pp::least_times({extents}, pp::uniform_cost{}, {.memory_limit = 0}),
                    doctest::Contains("above 0"));
  CHECK_THROWS_WITH(pp::least_times({extents}, pp::uniform_cost{}, {.chunk_shares = one_share}),
                    doctest::Contains("one share per chunk"));
  std::vector<int> const first{0, 1, 3};
  pp::pipeline_view const unequal{extents, &pp::training, nullptr, first.data()};
  CHECK_THROWS_WITH((void)pp::least_times(unequal, pp::uniform_cost{}, {.memory_limit = 1}),
                    doctest::Contains("give what each unit takes"));
  CHECK_THROWS_WITH((void)pp::least_times(unequal, pp::uniform_cost{}, {.chunk_shares = one_share}),
                    doctest::Contains("give what each unit takes"));
  CHECK_THROWS_WITH((void)pp::least_times(
                      {extents}, pp::uniform_cost{}, {.relief = pp::memory_relief::recompute_all}),
                    doctest::Contains("a flow without recomputation"));
  // Its bound would count backward passes that frozen stages do not have.
  pp::with_frozen_stages<pp::OneFOneB> const frozen{{}, {0}};
  CHECK_THROWS_WITH(
    (void)pp::least_times(pp::make_timetable(frozen, {2, 2}).over, pp::uniform_cost{}),
    doctest::Contains("here some go one way"));
  CHECK_THROWS_AS(pp::least_times({{.devices = 0}}, pp::uniform_cost{}), std::invalid_argument);
}
