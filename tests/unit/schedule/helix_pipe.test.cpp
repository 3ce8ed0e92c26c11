// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>

namespace pp = pipelining;

namespace {

constexpr auto compiled_helix_pipe = pp::timetable<pp::HelixPipe<2, 1>, 3, 6>;
static_assert(pp::verify(compiled_helix_pipe));
static_assert(pp::timetable_view(compiled_helix_pipe).over.extents.stages() == 13);

//! Times by stage: N_0 takes pre, the last N post, the others both; backward `ratio` times as long.
struct helix_times {
  double pre, post, attention, ratio, message = 0;
  int stages = 3;

  [[nodiscard]] double duration(pp::pass const& what) const {
    double const forward = what.stage % 2 == 1        ? attention
                           : what.stage == 0          ? pre
                           : what.stage + 1 == stages ? post
                                                      : pre + post;
    return what.kind == pp::pass_kind::backward ? ratio * forward : forward;
  }
  [[nodiscard]] double latency() const { return message; }
};

struct size {
  int devices, layers, folds, loops;

  [[nodiscard]] pp::dynamic_timetable timetable(helix_times cost) const {
    cost.stages = 2 * layers + 1;
    return pp::make_timetable(
      pp::HelixPipe<>{layers / devices, folds}, {devices, devices * folds * loops}, cost);
  }
};

//! The most passes of stages of a parity that a device holds at once.
int peak(pp::timetable_view table, int device, int parity) {
  int held = 0;
  int most = 0;
  for (pp::pass const& what : table.row(device))
    if (what.stage % 2 == parity) {
      held += what.kind == pp::pass_kind::forward ? 1 : -1;
      most = std::max(most, held);
    }
  return most;
}

} // namespace

TEST_CASE("HelixPipe has the figures of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/helix.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    size of{};
    helix_times cost{};
    double makespan = 0;
    double span = 0;
    double busy = 0;
    in >> of.devices >> of.layers >> of.folds >> of.loops >> cost.pre >> cost.post >>
      cost.attention >> cost.message >> makespan >> span >> busy;
    cost.ratio = 2;
    auto const table = of.timetable(cost);
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::span_of(table) == span);
    for (int parity : {0, 1})
      for (int device = 0; device < of.devices; ++device) {
        int expected = 0;
        in >> expected;
        CHECK(peak(table, device, parity) == expected);
        CHECK(pp::busy(table, device) == busy);
      }
    CHECK(in);
  }
}

TEST_CASE("HelixPipe's bubble does not depend on attention, layers or loops at random times") {
  std::mt19937 random(20250701);
  auto const eighths = [&](unsigned least, unsigned most) { // whose sums are exact
    return static_cast<double>(least + random() % (most - least + 1)) / 8;
  };
  for (int devices = 1; devices <= 8; ++devices)
    for (int layers_per_device = 1; layers_per_device <= 3; ++layers_per_device)
      for (int loops = 1; loops <= 3; ++loops) {
        size const of{devices, devices * layers_per_device, 1, loops};
        helix_times cost{eighths(1, 64), eighths(1, 64), eighths(0, 256), 1 + eighths(0, 16)};
        CAPTURE(devices);
        CAPTURE(layers_per_device);
        CAPTURE(loops);
        CAPTURE(cost.attention);
        double const both = (1 + cost.ratio) * (cost.pre + cost.post);
        auto const bubble = [&](helix_times const& times) {
          auto const table = of.timetable(times);
          for (int device = 0; device < devices; ++device)
            CHECK(pp::busy(table, device) == pp::busy(table, 0));
          return pp::makespan(table) - pp::busy(table, 0);
        };
        CHECK(bubble(cost) == (devices - 1) * both);
        // Messages that are short compared with every pass.
        cost.message = 1.0 / 128;
        int const turns = loops * layers_per_device;
        int const messages = devices == 1   ? 0
                             : devices == 2 ? 4 * turns
                                            : 4 * (devices * turns - 1);
        CHECK(bubble(cost) == (devices - 1) * both + messages * cost.message);
      }
}

TEST_CASE("further folds of HelixPipe hide messages for a larger bubble") {
  std::mt19937 random(20250702);
  for (int devices = 2; devices <= 8; ++devices)
    for (int folds = 2; folds <= 3; ++folds)
      for (int trial = 0; trial < 6; ++trial) {
        size const of{devices, devices * (1 + trial % 2), folds, 1 + trial % 3};
        double const pre = static_cast<double>(1 + random() % 64) / 8;
        double const post = static_cast<double>(1 + random() % 64) / 8;
        double const attention = (pre + post) * static_cast<double>(8 + random() % 17) / 8;
        helix_times cost{pre, post, attention, 2};
        auto const table = of.timetable(cost);
        double const bubble =
          (pp::makespan(table) - pp::busy(table, 0)) / (1 + cost.ratio) / (pre + post);
        CAPTURE(devices);
        CAPTURE(folds);
        CHECK(bubble >= folds * (devices - 3) + 2 - 1e-9);
        CHECK(bubble <= folds * (devices - 2) + 1 + 1e-9);
        cost.message = (pre + post) / 64;
        double const waits = pp::makespan(of.timetable(cost)) - pp::makespan(table);
        CHECK(waits <= 10 * cost.message + 1e-9);
      }
}

TEST_CASE("every device keeps what its layers keep of all microbatches") {
  for (int devices = 1; devices <= 6; ++devices)
    for (int folds = 1; folds <= 2; ++folds)
      for (int loops = 1; loops <= 2; ++loops) {
        size const of{devices, 2 * devices, folds, loops};
        auto const table = of.timetable({1, 1, 1, 2});
        int const share = 2 * devices * folds * loops; // M L / P
        for (int device = 0; device < devices; ++device) {
          CHECK(peak(table, device, 1) == share);
          CHECK(peak(table, device, 0) == share + (device == 0 ? devices * folds * loops : 0));
        }
      }
}

TEST_CASE("HelixPipe refuses to have no layers") {
  CHECK_THROWS_WITH(
    (void)pp::make_timetable(pp::HelixPipe<>{0, 1}, {2, 2}),
    "HelixPipe: a device holds 1 to 32767 layers, and there are 1 to 65535 / P folds");
}

TEST_CASE("attention sends its output and the residual, and gets query, keys and values with it") {
  auto const table = pp::make_timetable(pp::HelixPipe<>{2}, {4, 8});
  pp::pipeline_view const over = table.over;
  int from_attention = 0;
  int to_attention = 0;
  for (pp::pass const& what : table.passes)
    if (what.kind == pp::pass_kind::forward &&
        pp::detail::receiver(over, what) != pp::detail::kind_links::none)
      ++(what.stage % 2 == 1 ? from_attention : to_attention);
  // Of each layer and microbatch, but for the offset that is at home.
  CHECK(to_attention == 8 * 8 * 3 / 4);
  CHECK(from_attention == 8 * 8 * 3 / 4);
}

TEST_CASE("plans of HelixPipe are proven under all policies, with what is recomputed") {
  for (int devices = 1; devices <= 5; ++devices)
    for (int folds : {1, 2})
      for (int microbatches : {1, 2 * devices, 2 * devices * folds + 1}) {
        pp::HelixPipe<> const plain{1 + devices % 2, folds};
        auto const prove = [](pp::dynamic_timetable const& table) {
          CHECK(pp::prove(pp::lower<pp::communicators::one>(table)));
          CHECK(pp::prove(pp::lower<pp::communicators::per_pair>(table)));
          CHECK(pp::prove(pp::lower<pp::communicators::per_edge>(table)));
        };
        prove(pp::make_timetable(plain, {devices, microbatches}));
        auto const frugal = pp::make_timetable(
          pp::with_recompute<pp::HelixPipe<>, pp::recompute_around_attention>{plain},
          {devices, microbatches});
        prove(frugal);
        for (pp::pass const& what : frugal.passes) {
          CHECK((what.kind == pp::pass_kind::forward) <= (what.stage % 2 == 1));
          CHECK((what.kind == pp::pass_kind::recompute) <= (what.stage % 2 == 0));
        }
      }
}

TEST_CASE("a pass of HelixPipe on a wrong device, too early, lost or twice is found") {
  auto const good = pp::make_timetable(pp::HelixPipe<>{2, 2}, {3, 12}, pp::uniform_cost{1, 1, 1});
  REQUIRE(pp::verify(good));
  int rejected = 0;
  auto const check = [&rejected](pp::dynamic_timetable const& bad) {
    CHECK_FALSE(pp::verify(bad));
    ++rejected;
  };
  for (std::size_t i = 0; i < good.passes.size(); i += 7) {
    auto other = good; // the microbatch of another offset: another device, or run twice
    other.passes[i].microbatch = static_cast<std::uint16_t>((other.passes[i].microbatch + 2) % 12);
    check(other);
    auto early = good;
    early.starts[i] -= 0.5;
    early.ends[i] -= 0.5;
    if (early.starts[i] >= 0 && !pp::verify(early))
      ++rejected;
    auto stage = good; // attention of the layer next to it
    stage.passes[i].stage = static_cast<std::uint16_t>((stage.passes[i].stage + 2) % 13);
    check(stage);
  }
  for (std::size_t device = 0; device < 3; ++device) {
    auto lost = good;
    auto const at = static_cast<std::ptrdiff_t>(lost.offsets[device]) + 3;
    lost.passes.erase(lost.passes.begin() + at);
    lost.starts.erase(lost.starts.begin() + at);
    lost.ends.erase(lost.ends.begin() + at);
    for (std::size_t behind = device + 1; behind <= 3; ++behind)
      --lost.offsets[behind];
    check(lost);
  }
  CHECK(rejected > 100);
}

TEST_CASE("the placement of the stages is the published one") {
  auto const table = pp::make_timetable(pp::HelixPipe<>{2, 2}, {4, 16});
  CHECK(table.over.extents.stages() == 17);
  for (int microbatch = 0; microbatch < 16; ++microbatch)
    for (int layer = 0; layer < 8; ++layer) {
      CHECK(pp::device_of(table, 2 * layer, microbatch) == layer % 4);
      CHECK(pp::device_of(table, 2 * layer + 1, microbatch) ==
            (layer + 1 + microbatch / 2 % 4) % 4);
    }
  CHECK(pp::device_of(table, 16, 3) == 0);
}
