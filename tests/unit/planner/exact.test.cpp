// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/exact.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! A second solver that shares nothing with the first: breadth-first over all moments, one unit of
//! time after the other. Every microbatch has its name, and any may go first on any device, but
//! where there is recomputation, with which none overtakes another.
class brute_force {
public:
  struct problem {
    int devices, microbatches, stages_per_device;
    bool wave;
    int forward, input, weight, latency, cap, copy;
    int again = -1; // of a recomputation; negative: there are none
    int whole = 1;  // units of an activation
    int kept = 0;   // units of its input
  };

  explicit brute_force(problem const& given)
      : p(given), stages(given.devices * given.stages_per_device) {}

  //! @return the least makespan, -1 when there is none within `most`
  int least(int most) {
    std::set<moment> now{moment(static_cast<std::size_t>(stages * p.microbatches * 5), waits)};
    for (int time = 0; time <= most; ++time) {
      std::set<moment> next;
      for (moment const& at : now) {
        if (finished(at))
          return time;
        begin_on(at, 0, next);
      }
      now.swap(next);
    }
    return -1;
  }

private:
  // Of every (stage, microbatch): F, I, W, the copy and the recomputation. A step waits, runs (time
  // left), or has ended, for how long as far as a message may still travel. A copy has four more
  // states. A recomputation is of a forward pass that keeps its input alone: it is bare until then.
  using moment = std::vector<signed char>;
  static constexpr signed char waits = 100;
  static constexpr signed char out_done = 50;
  static constexpr signed char in_running = 60;
  static constexpr signed char bare = 50;

  [[nodiscard]] std::size_t slot(int what, int stage, int microbatch) const {
    return static_cast<std::size_t>((what * stages + stage) * p.microbatches + microbatch);
  }
  [[nodiscard]] int device_of(int stage) const {
    int const position = stage % p.devices;
    return p.wave && stage / p.devices % 2 == 1 ? p.devices - 1 - position : position;
  }
  [[nodiscard]] int length(int what) const {
    return what == 0 ? p.forward : what == 1 ? p.input : p.weight;
  }
  //! Ended at least `ago` units of time before.
  static bool ended(signed char state, int ago = 0) { return state <= -ago && state <= 0; }
  static bool running(signed char state) { return state > 0 && state < out_done; }

  bool finished(moment const& at) const {
    for (int stage = 0; stage < stages; ++stage)
      for (int m = 0; m < p.microbatches; ++m)
        if (!ended(at[slot(2, stage, m)]))
          return false;
    return true;
  }
  int held(moment const& at, int device) const {
    int units = 0;
    for (int stage = 0; stage < stages; ++stage)
      for (int m = 0; m < p.microbatches; ++m)
        if (device_of(stage) == device && at[slot(0, stage, m)] != waits &&
            !ended(at[slot(2, stage, m)]) && at[slot(3, stage, m)] != out_done)
          units += at[slot(4, stage, m)] == bare ? p.kept : p.whole;
    return units;
  }
  bool there(moment const& at, int stage, int m) const {
    signed char const copy = at[slot(3, stage, m)];
    signed char const again = at[slot(4, stage, m)];
    return ended(at[slot(0, stage, m)]) && (copy == waits || ended(copy)) &&
           (again == waits || ended(again));
  }
  bool may_begin(moment const& at, int what, int stage, int m, bool light = false) const {
    if (at[slot(what, stage, m)] != waits)
      return false;
    if (p.again >= 0 && m > 0 && at[slot(what, stage, m - 1)] == waits)
      return false;
    auto const away = [&](int other) {
      return device_of(stage) == device_of(other) ? 0 : p.latency;
    };
    if (what == 0)
      return (stage == 0 || ended(at[slot(0, stage - 1, m)], away(stage - 1))) &&
             held(at, device_of(stage)) + (light ? p.kept : p.whole) <= p.cap;
    if (what == 1)
      return there(at, stage, m) &&
             (stage + 1 == stages || ended(at[slot(1, stage + 1, m)], away(stage + 1)));
    return ended(at[slot(1, stage, m)]);
  }
  bool busy(moment const& at, int device, bool lane) const {
    for (int stage = 0; stage < stages; ++stage)
      for (int m = 0; m < p.microbatches; ++m) {
        if (device_of(stage) != device)
          continue;
        signed char const copy = at[slot(3, stage, m)];
        if (lane && (running(copy) || (copy > out_done && copy != waits)))
          return true;
        for (int what = 0; what < 3 && !lane; ++what)
          if (running(at[slot(what, stage, m)]))
            return true;
        if (!lane && running(at[slot(4, stage, m)]))
          return true;
      }
    return false;
  }

  //! All that the engines from `engine` on may begin now, and what is a unit of time later.
  void begin_on(moment const& at, int engine, std::set<moment>& next) const {
    if (engine == 2 * p.devices) {
      next.insert(later(at));
      return;
    }
    bool const lane = engine >= p.devices;
    int const device = engine % p.devices;
    begin_on(at, engine + 1, next);
    if (busy(at, device, lane) || (lane && p.copy < 0))
      return;
    for (int stage = 0; stage < stages; ++stage)
      for (int m = 0; m < p.microbatches; ++m) {
        if (device_of(stage) != device)
          continue;
        moment begun = at;
        for (int what = 0; what < 3 && !lane; ++what)
          if (may_begin(at, what, stage, m)) {
            begun[slot(what, stage, m)] = static_cast<signed char>(length(what));
            begin_on(begun, engine + 1, next);
            begun = at;
          }
        signed char& again = begun[slot(4, stage, m)];
        if (!lane && p.again >= 0 && may_begin(at, 0, stage, m, true)) {
          begun[slot(0, stage, m)] = static_cast<signed char>(p.forward);
          again = bare;
          begin_on(begun, engine + 1, next);
          begun = at;
        }
        if (!lane && again == bare && ended(at[slot(0, stage, m)]) &&
            held(at, device) + p.whole - p.kept <= p.cap) {
          again = static_cast<signed char>(p.again);
          begin_on(begun, engine + 1, next);
          begun = at;
        }
        signed char& copy = begun[slot(3, stage, m)];
        if (lane && copy == waits && there(at, stage, m) && at[slot(1, stage, m)] == waits) {
          copy = static_cast<signed char>(p.copy);
          begin_on(begun, engine + 1, next);
        } else if (lane && copy == out_done && held(at, device) + p.whole <= p.cap) {
          copy = static_cast<signed char>(in_running + p.copy);
          begin_on(begun, engine + 1, next);
        }
      }
  }
  moment later(moment at) const {
    for (std::size_t i = 0; i < at.size(); ++i) {
      bool const copy = i >= slot(3, 0, 0) && i < slot(4, 0, 0);
      signed char& state = at[i];
      if (state == waits || (copy && (state == out_done || state <= 0)) ||
          (i >= slot(4, 0, 0) && (state == bare || state <= 0)))
        continue;
      if (state > in_running) {
        --state;
        state = state == in_running ? static_cast<signed char>(0) : state;
      } else if (state > 0) {
        --state;
        if (copy && state == 0)
          state = out_done;
      } else if (state > -p.latency) {
        --state;
      }
    }
    return at;
  }

  problem p;
  int stages;
};

bool everything() {
  return std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
}

//! Checks the steps of an order one by one: every step once, nothing overlaps, everything waits for
//! what it needs, no device holds more than the limit.
void check_steps(pp::shape const& extents,
                 pp::uniform_cost const& cost,
                 pp::exact_order::options const& options,
                 pp::exact_order const& order) {
  std::map<std::pair<pp::detail::exact_kind, std::pair<int, int>>, pp::detail::exact_step> found;
  double last = 0;
  auto const lane = [](pp::detail::exact_kind kind) {
    return kind == pp::detail::exact_kind::copy_in || kind == pp::detail::exact_kind::copy_out;
  };
  for (pp::detail::exact_step const& step : order.steps) {
    pp::detail::exact_kind const kind = step.kind == pp::detail::exact_kind::light_forward
                                          ? pp::detail::exact_kind::forward
                                          : step.kind;
    CHECK(found.emplace(std::pair(kind, std::pair(step.stage, step.microbatch)), step).second);
    CHECK(step.device == pp::device_of(extents, step.stage));
    last = std::max(last, step.end);
    for (pp::detail::exact_step const& other : order.steps)
      if (&other != &step && other.device == step.device && lane(other.kind) == lane(step.kind))
        CHECK((other.end <= step.start || step.end <= other.start));
  }
  CHECK(last == doctest::Approx(order.makespan));
  int const all = extents.stages();
  std::vector<std::vector<std::pair<double, int>>> changes(
    static_cast<std::size_t>(extents.devices));
  for (int stage = 0; stage < all; ++stage)
    for (int m = 0; m < extents.microbatches; ++m) {
      auto const at = [&](pp::detail::exact_kind kind, int s) { return found.at({kind, {s, m}}); };
      auto const has = [&](pp::detail::exact_kind kind) {
        return found.count({kind, {stage, m}}) > 0;
      };
      auto const away = [&](int other) {
        return pp::device_of(extents, other) == pp::device_of(extents, stage) ? 0
                                                                              : cost.communication;
      };
      pp::detail::exact_step const f = at(pp::detail::exact_kind::forward, stage);
      pp::detail::exact_step const i = at(pp::detail::exact_kind::backward_input, stage);
      pp::detail::exact_step const w = at(pp::detail::exact_kind::backward_weight, stage);
      CHECK(f.end <= i.start);
      CHECK(i.end <= w.start);
      CHECK(f.end - f.start == doctest::Approx(cost.forward));
      CHECK(i.end - i.start == doctest::Approx(cost.backward_input));
      CHECK(w.end - w.start == doctest::Approx(cost.backward_weight));
      if (stage > 0)
        CHECK(at(pp::detail::exact_kind::forward, stage - 1).end + away(stage - 1) <= f.start);
      if (stage + 1 < all)
        CHECK(at(pp::detail::exact_kind::backward_input, stage + 1).end + away(stage + 1) <=
              i.start);
      auto& here = changes[static_cast<std::size_t>(f.device)];
      bool const light = f.kind == pp::detail::exact_kind::light_forward;
      CHECK(light == has(pp::detail::exact_kind::recompute));
      here.emplace_back(f.start, light ? options.input_units : options.activation_units);
      here.emplace_back(w.end, -options.activation_units);
      if (light) {
        pp::detail::exact_step const r = at(pp::detail::exact_kind::recompute, stage);
        CHECK(f.end <= r.start);
        CHECK(r.end <= i.start);
        here.emplace_back(r.start, options.activation_units - options.input_units);
      }
      CHECK(has(pp::detail::exact_kind::copy_in) == has(pp::detail::exact_kind::copy_out));
      if (has(pp::detail::exact_kind::copy_out)) {
        pp::detail::exact_step const out = at(pp::detail::exact_kind::copy_out, stage);
        pp::detail::exact_step const in = at(pp::detail::exact_kind::copy_in, stage);
        CHECK(f.end <= out.start);
        CHECK(out.end <= in.start);
        CHECK(in.end <= i.start);
        here.emplace_back(out.end, -options.activation_units);
        here.emplace_back(in.start, options.activation_units);
      }
    }
  for (auto& device : changes) {
    std::sort(device.begin(), device.end()); // at one time, what is freed comes first
    int units = 0;
    for (auto const& [time, change] : device) {
      units += change;
      CHECK(units <= options.memory_limit);
    }
  }
}

struct golden_case {
  pp::shape extents;
  pp::uniform_cost cost;
  pp::exact_order::options options;
  double makespan = 0;
};

golden_case read(std::string const& line) {
  std::istringstream in(line);
  golden_case g;
  char slash = 0;
  std::string copy;
  in >> g.extents.devices >> g.extents.microbatches >> g.cost.forward >> slash >>
    g.cost.backward_input >> slash >> g.cost.backward_weight >> g.options.memory_limit >> copy >>
    slash >> g.makespan;
  REQUIRE(!in.fail());
  g.options.copy = copy == "-" ? -1 : std::stod(copy);
  return g;
}

} // namespace

TEST_CASE("orders are as short as the proven ones") {
  // Proofs that take this program longer than a few seconds are for thorough runs.
  int proven = 0;
  for (std::string const& line : support::golden_lines("golden/search/optimal_offload.txt")) {
    CAPTURE(line);
    golden_case g = read(line);
    g.options.most_states = std::size_t{1} << (everything() ? 20 : 14);
    pp::exact_order const order = pp::shortest_order(g.extents, g.cost, g.options);
    CHECK(order.bound <= g.makespan);
    CHECK(order.makespan >= g.makespan);
    if (!order.optimal) {
      CHECK(!everything());
      continue;
    }
    ++proven;
    CHECK(order.makespan == g.makespan);
    CHECK(order.bound == g.makespan);
    check_steps(g.extents, g.cost, g.options, order);
  }
  CHECK(proven >= 57);
}

TEST_CASE("orders are as short as those of a brute force over all names and moments") {
  struct {
    int devices, microbatches, stages_per_device;
    bool wave;
    int forward, input, weight, latency, cap, copy;
    int known = 0; // what the brute force finds, where it takes long
  } const cases[] = {
    {1, 3, 1, false, 1, 2, 1, 0, 1, -1},
    {1, 3, 1, false, 2, 1, 1, 0, 2, 1},
    {2, 2, 1, false, 1, 1, 1, 0, 1, -1},
    {2, 2, 1, false, 1, 1, 1, 0, 1, 1},
    {2, 3, 1, false, 1, 1, 1, 0, 1, 1},
    {2, 3, 1, false, 2, 1, 1, 0, 1, 1},
    {2, 3, 1, false, 1, 1, 1, 0, 2, -1},
    {2, 3, 1, false, 1, 2, 1, 1, 2, -1},
    {2, 3, 1, false, 1, 2, 2, 1, 1, 1},
    {2, 2, 1, false, 1, 1, 2, 2, 1, 1},
    {3, 2, 1, false, 1, 1, 1, 0, 1, 1},
    {3, 2, 1, false, 1, 2, 1, 1, 1, -1},
    {1, 2, 2, true, 1, 1, 1, 0, 2, -1},
    {2, 2, 2, true, 1, 1, 1, 0, 2, -1},
    {2, 2, 2, true, 2, 1, 1, 1, 3, -1},
    {2, 2, 2, false, 1, 1, 1, 0, 3, -1},
    {2, 3, 1, false, 1, 1, 1, 0, 1, 2},
    {2, 3, 1, false, 1, 1, 1, 0, 2, 1},
    // Where a bound or a limit that is a little too strong loses the shortest order:
    {2, 2, 2, true, 1, 1, 1, 1, 2, 2, 20},
    {2, 2, 2, false, 2, 3, 2, 2, 3, -1, 50},
    {2, 2, 1, false, 3, 1, 1, 2, 1, 2, 18},
  };
  for (auto const& c : cases) {
    CAPTURE(c.devices);
    CAPTURE(c.microbatches);
    CAPTURE(c.cap);
    CAPTURE(c.copy);
    CAPTURE(c.latency);
    brute_force oracle({c.devices,
                        c.microbatches,
                        c.stages_per_device,
                        c.wave,
                        c.forward,
                        c.input,
                        c.weight,
                        c.latency,
                        c.cap,
                        c.copy});
    pp::shape const extents{.devices = c.devices,
                            .microbatches = c.microbatches,
                            .stages_per_device = c.stages_per_device,
                            .where = c.wave ? pp::placement::wave : pp::placement::looped};
    pp::uniform_cost const cost{static_cast<double>(c.forward),
                                static_cast<double>(c.input),
                                static_cast<double>(c.weight),
                                static_cast<double>(c.latency)};
    pp::exact_order::options options{.memory_limit = c.cap};
    options.copy = c.copy;
    pp::exact_order const order = pp::shortest_order(extents, cost, options);
    CHECK(order.optimal);
    CHECK(order.makespan == (c.known > 0 && !everything() ? c.known : oracle.least(200)));
    check_steps(extents, cost, options, order);
  }
}

TEST_CASE("rules that go a little too far would lose these orders") {
  // Least makespans by a search that decided on every copy and knew a state again only at equal
  // times; a brute force takes too long.
  struct {
    int devices, microbatches, stages_per_device;
    bool wave;
    pp::uniform_cost cost;
    int cap;
    double copy, least;
  } const cases[] = {
    {2, 3, 2, true, {1, 2, 1, 1}, 2, 5, 42},   // a copy of which less is left serves for another
    {4, 3, 1, false, {2, 3, 3}, 2, 4, 37},     // only of the same activation
    {2, 3, 2, false, {2, 2, 3, 3}, 3, 5, 53},  // and where the same is on the host
    {2, 3, 2, false, {1, 4, 3, 2}, 3, -1, 72}, // steps that end sooner, not a little later
    {2, 3, 1, false, {2, 2, 1, 3}, 2, 6, 27}   // a copy out that runs need not begin again
  };
  for (auto const& c : cases) {
    CAPTURE(c.least);
    pp::shape const extents{.devices = c.devices,
                            .microbatches = c.microbatches,
                            .stages_per_device = c.stages_per_device,
                            .where = c.wave ? pp::placement::wave : pp::placement::looped};
    pp::exact_order::options const options{.memory_limit = c.cap, .copy = c.copy};
    pp::exact_order const order = pp::shortest_order(extents, c.cost, options);
    CHECK(order.optimal);
    CHECK(order.makespan == c.least);
    check_steps(extents, c.cost, options, order);
  }
}

TEST_CASE("orders of pipelines drawn at random are as short as those of a brute force") {
  std::mt19937 random(2024);
  auto const draw = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  int memory_matters = 0;
  for (int i = 0; i < (everything() ? 1000 : 40); ++i) {
    int const devices = draw(1, 2);
    int const stages_per_device = devices == 1 && draw(0, 3) == 0 ? 2 : 1;
    int const microbatches = draw(2, devices * stages_per_device > 1 ? 2 : 3);
    bool const copies = draw(0, 1) == 1;
    bool const recomputes = stages_per_device == 1 && draw(0, 2) == 0;
    brute_force::problem p{devices,
                           microbatches,
                           stages_per_device,
                           draw(0, 1) == 1,
                           draw(1, 2),
                           draw(1, 2),
                           draw(1, 2),
                           draw(0, 1),
                           0,
                           copies ? draw(1, 3) : -1};
    p.whole = draw(1, 3);
    p.kept = recomputes ? draw(0, p.whole) : 0;
    p.again = recomputes ? p.forward * draw(1, 2) : -1;
    p.cap = p.whole * (copies || recomputes ? 1 : stages_per_device) + draw(0, p.whole);
    CAPTURE(i);
    pp::shape const extents{.devices = devices,
                            .microbatches = microbatches,
                            .stages_per_device = stages_per_device,
                            .where = p.wave ? pp::placement::wave : pp::placement::looped};
    pp::uniform_cost const cost{1.0 * p.forward, 1.0 * p.input, 1.0 * p.weight, 1.0 * p.latency};
    pp::exact_order::options options{
      .memory_limit = p.cap, .activation_units = p.whole, .input_units = p.kept};
    options.copy = p.copy;
    if (recomputes)
      options.recompute = 1.0 * p.again / p.forward;
    pp::exact_order const order = pp::shortest_order(extents, cost, options);
    CHECK(order.optimal);
    CHECK(order.makespan == brute_force(p).least(400));
    check_steps(extents, cost, options, order);
    memory_matters += pp::shortest_order(extents, cost).makespan < order.makespan ? 1 : 0;
  }
  CHECK(memory_matters >= 15);
}

// CP-SAT proves the same.
TEST_CASE("no order of a V of two devices that hold four activations takes less than 214") {
  pp::shape const extents{
    .devices = 2, .microbatches = 4, .stages_per_device = 2, .where = pp::placement::wave};
  pp::exact_order const order =
    pp::shortest_order(extents, pp::uniform_cost{10, 10, 5, 1}, {.memory_limit = 4});
  CHECK(order.optimal);
  CHECK(order.makespan == 214);
}

TEST_CASE("orders with recomputation are as short as those of a brute force") {
  struct {
    int devices, microbatches, forward, input, weight, latency, cap, copy, again, whole, kept;
    int known = 0; // what the brute force finds, where it takes long
  } const cases[] = {
    {1, 3, 1, 1, 1, 0, 2, -1, 1, 2, 1},
    {2, 2, 1, 1, 1, 0, 2, -1, 1, 2, 1},
    {2, 3, 1, 1, 1, 0, 3, -1, 1, 2, 1},
    {2, 3, 1, 1, 1, 0, 2, -1, 1, 2, 0},
    {2, 3, 1, 2, 1, 1, 3, -1, 2, 2, 1, 20},
    {2, 3, 2, 1, 1, 0, 4, -1, 1, 3, 1, 15},
    {3, 2, 1, 1, 1, 0, 2, -1, 1, 2, 1},
    {2, 2, 1, 1, 1, 0, 2, 1, 1, 2, 1},
    {2, 3, 1, 1, 1, 0, 3, 1, 1, 2, 1, 12},
    {2, 3, 1, 1, 1, 1, 1, 2, 1, 1, 0, 13},
    // Where a bound or a limit that is a little too strong loses the shortest order:
    {2, 4, 1, 2, 1, 0, 3, -1, 2, 1, 0, 17},
    {2, 3, 1, 3, 1, 2, 4, 2, 1, 3, 1, 24},
    {3, 2, 2, 1, 1, 2, 3, 2, 3, 3, 0, 22},
  };
  int shorter = 0;
  for (auto const& c : cases) {
    CAPTURE(c.devices);
    CAPTURE(c.microbatches);
    CAPTURE(c.cap);
    CAPTURE(c.copy);
    CAPTURE(c.whole);
    brute_force oracle({c.devices,
                        c.microbatches,
                        1,
                        false,
                        c.forward,
                        c.input,
                        c.weight,
                        c.latency,
                        c.cap,
                        c.copy,
                        c.again,
                        c.whole,
                        c.kept});
    pp::shape const extents{.devices = c.devices, .microbatches = c.microbatches};
    pp::uniform_cost const cost{static_cast<double>(c.forward),
                                static_cast<double>(c.input),
                                static_cast<double>(c.weight),
                                static_cast<double>(c.latency)};
    pp::exact_order::options options{
      .memory_limit = c.cap, .activation_units = c.whole, .input_units = c.kept};
    double const without = pp::shortest_order(extents, cost, options).makespan;
    options.copy = c.copy;
    options.recompute = static_cast<double>(c.again) / c.forward;
    pp::exact_order const order = pp::shortest_order(extents, cost, options);
    CHECK(order.optimal);
    CHECK(order.makespan == (c.known > 0 && !everything() ? c.known : oracle.least(200)));
    check_steps(extents, cost, options, order);
    shorter += order.makespan < without ? 1 : 0;
  }
  CHECK(shorter >= 6);
}

TEST_CASE("recomputation is used where memory is short, and only there") {
  pp::shape const extents{.devices = 3, .microbatches = 4};
  pp::uniform_cost const cost{1, 1, 1, 0};
  // Four units are one activation; its input is one unit. One activation and two inputs fit.
  pp::exact_order::options options{.memory_limit = 6, .activation_units = 4, .input_units = 1};
  double const without = pp::shortest_order(extents, cost, options).makespan;
  options.recompute = 1;
  pp::exact_order const with = pp::shortest_order(extents, cost, options);
  CHECK(with.optimal);
  CHECK(with.makespan < without);
  check_steps(extents, cost, options, with);
  CHECK(with.bound == with.makespan);
  // With room for everything it would only take time.
  options.memory_limit = 16;
  pp::exact_order const roomy = pp::shortest_order(extents, cost, options);
  options.recompute = -1;
  CHECK(roomy.makespan == pp::shortest_order(extents, cost, options).makespan);
}

TEST_CASE("orders are timetables that keep the limit, and no schedule is shorter") {
  for (int devices = 2; devices <= 4; ++devices)
    for (int microbatches = 2; microbatches <= 6; microbatches += 2)
      for (pp::uniform_cost const& cost :
           {pp::uniform_cost{1, 1, 1, 0}, pp::uniform_cost{10, 12, 8, 1}}) {
        CAPTURE(devices);
        CAPTURE(microbatches);
        pp::pipeline_size const size{devices, microbatches};
        auto const check = [&](auto const& schedule) {
          pp::dynamic_timetable const table = pp::make_timetable(schedule, size, cost);
          int peak = 0;
          for (int device = 0; device < devices; ++device)
            peak = std::max(peak, pp::peak_activation_chunks(table, device));
          pp::exact_order const order = pp::shortest_order(
            table.over.extents, cost, {.memory_limit = peak, .most_states = 100000});
          CHECK(order.bound <= pp::makespan(table) + 1e-9);
          if (!order.optimal)
            return;
          pp::dynamic_timetable const best = pp::simulate(order.passes(table.over.extents), cost);
          CHECK(bool(pp::verify(best, peak)));
          CHECK(pp::makespan(best) == doctest::Approx(order.makespan));
        };
        check(pp::GPipe{});
        check(pp::OneFOneB{});
        check(pp::ZeroBubbleH1{});
        check(pp::ZeroBubbleH2{});
        check(pp::ZeroBubbleAuto<>{.memory_limit = devices});
      }
}

TEST_CASE("pipelines that are too large, or do not fit, are refused") {
  pp::uniform_cost const cost;
  auto const message = [&](pp::shape const& extents, pp::exact_order::options const& options) {
    try {
      static_cast<void>(pp::shortest_order(extents, cost, options));
    } catch (std::invalid_argument const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message({.devices = 5, .microbatches = 2}, {}).find("at most 4") != std::string::npos);
  CHECK(message({.devices = 2, .microbatches = 2, .stages_per_device = 2}, {.memory_limit = 1})
          .find("memory limit") != std::string::npos);
  CHECK(message({.devices = 2, .microbatches = 2}, {.input_units = 2}).find("unit") !=
        std::string::npos);
  pp::exact_order const stopped =
    pp::shortest_order(pp::shape{.devices = 4, .microbatches = 5},
                       cost,
                       {.memory_limit = 2, .copy = 0.5, .most_states = 10});
  CHECK(!stopped.optimal);
  CHECK(stopped.steps.empty());
  CHECK(stopped.bound > 0);
}
