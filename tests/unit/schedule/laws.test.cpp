// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The closed forms of the docstrings at random costs and latencies, quarters that doubles hold
// exactly, each under the conditions that its docstring states and no others.
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace pp = pipelining;

namespace {

// One random pipeline. Letters as in docs/glossary.md; c is the latency, G a group.
struct sample {
  int P, M, V, C, G;
  double F, I, W, c;

  explicit sample(std::mt19937& random) {
    auto const between = [&random](int least, int most) {
      return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
    };
    P = between(1, 9);
    M = between(1, 30);
    V = between(1, 4);
    C = between(1, 5);
    G = between(1, 6);
    F = between(1, 96) / 4.0;
    I = between(1, 96) / 4.0;
    W = between(1, 96) / 4.0;
    if (between(0, 1) == 0) // half of the laws want short gradients of weights
      W = between(1, static_cast<int>(4 * std::min(F, I))) / 4.0;
    c = between(0, 2) == 0 ? 0 : between(0, 48) / 4.0;
  }
  [[nodiscard]] double B() const { return I + W; }
  [[nodiscard]] double all() const { return F + I + W; }

  // Idle time on the span and on the makespan.
  struct idle {
    double span;
    double makespan;
  };
  template <class Schedule>
  [[nodiscard]] idle bubble(Schedule const& schedule) const {
    auto const table = pp::make_timetable(schedule, {P, M}, pp::uniform_cost{F, I, W, c});
    double const busy =
      table.over.extents.units() * table.over.extents.stages() / table.over.extents.devices * all();
    return {pp::span_of(table) - busy, pp::makespan(table) - busy};
  }
};

// Calls `law(sample)` for many samples; a law returns false where its conditions do not hold.
template <class Law>
void check_law(Law const& law) {
  std::mt19937 random(20);
  int held = 0;
  for (int i = 0; i < 4000; ++i) {
    sample const at(random);
    held += law(at) ? 1 : 0;
  }
  CHECK(held >= 300); // the conditions must not hide the law
}

void same(sample const& at, double found, double expected) {
  INFO("P = " << at.P << ", M = " << at.M << ", V = " << at.V << ", C = " << at.C
              << ", G = " << at.G << ", F = " << at.F << ", I = " << at.I << ", W = " << at.W
              << ", c = " << at.c);
  CHECK(found == expected);
}

} // namespace

TEST_CASE("law of GPipe: (P - 1)(F + B + 2c)") {
  check_law([](sample const& at) {
    same(at, at.bubble(pp::GPipe{}).span, (at.P - 1) * (at.all() + 2 * at.c));
    return true;
  });
}

TEST_CASE("law of 1F1B and Seq1F1B: (P - 1)(F + B) without latency") {
  check_law([](sample const& at) {
    if (at.c > 0)
      return false;
    same(at, at.bubble(pp::OneFOneB{}).span, (at.P - 1) * at.all());
    same(at, at.bubble(pp::Seq1F1B<>{.chunks = at.C}).span, (at.P - 1) * at.all());
    return true;
  });
}

TEST_CASE("law of Seq1F1B with latency where P divides M C") {
  check_law([](sample const& at) {
    int const units = at.M * at.C;
    if (units % at.P != 0)
      return false;
    int const waits = (at.P - 1) * (units / at.P) + at.P - 1 - at.C + at.C / at.P;
    same(
      at, at.bubble(pp::Seq1F1B<>{.chunks = at.C}).span, (at.P - 1) * at.all() + 2 * at.c * waits);
    return true;
  });
}

TEST_CASE("law of the eager schedules: (P - 1)(F + B + 2c) while 2c <= F + B") {
  check_law([](sample const& at) {
    if (2 * at.c > at.all())
      return false;
    double const expected = (at.P - 1) * (at.all() + 2 * at.c);
    same(at, at.bubble(pp::EagerOneFOneB{}).span, expected);
    same(at, at.bubble(pp::EagerSeq1F1B<>{.chunks = at.C}).span, expected);
    return true;
  });
}

TEST_CASE("law of kFkB where K divides M and 2c <= (K - 1)(F + B)") {
  check_law([](sample const& at) {
    if (at.M % at.G != 0 || 2 * at.c > (at.G - 1) * at.all())
      return false;
    same(at, at.bubble(pp::Grouped<>{at.G}).span, (at.P - 1) * (at.all() + 2 * at.c));
    return true;
  });
}

TEST_CASE("law of breadth-first") {
  check_law([](sample const& at) {
    double expected = (at.P - 1) * (at.all() + 2 * at.c);
    if (at.P > 1)
      expected += (at.V - 1) * (std::max(0.0, (at.P - at.M) * at.F + at.P * at.c) +
                                std::max(0.0, (at.P - at.M) * at.B() + at.P * at.c));
    same(at, at.bubble(pp::BreadthFirst<>{at.V}).span, expected);
    return true;
  });
}

TEST_CASE("law of ZB-H1: latency adds 4 (P - 1) c while 2c <= W") {
  check_law([](sample const& at) {
    bool const enough = at.c > 0 ? at.M >= 2 * at.P && 2 * at.c <= at.W : at.M >= at.P;
    if (!enough || at.W > at.F || at.W > at.I)
      return false;
    auto const found = at.bubble(pp::ZeroBubbleH1{});
    same(at, found.span, (at.P - 1) * (at.F + at.I - at.W + 4 * at.c));
    same(at, found.makespan, found.span);
    return true;
  });
}

TEST_CASE("beyond 2c = W the bubble of ZB-H1 grows with M") {
  double before = 0;
  for (int const microbatches : {8, 16, 32, 64}) {
    auto const table =
      pp::make_timetable<pp::ZeroBubbleH1>({4, microbatches}, pp::uniform_cost{1, 1, 1, 0.75});
    double const bubble = pp::span_of(table) - 3 * microbatches;
    CHECK(bubble > before);
    before = bubble;
  }
}

TEST_CASE("law of Seq1F1B-ZB-H1") {
  check_law([](sample const& at) {
    int const units = at.M * at.C;
    bool const enough =
      at.c > 0 ? units >= 2 * at.P + at.C - 1 && 2 * at.c <= at.W : units >= at.P + at.C - 1;
    if (!enough || at.W > at.F || at.W > at.I)
      return false;
    auto const found = at.bubble(pp::Seq1F1BZeroBubbleH1<>{.chunks = at.C});
    same(at, found.span, (at.P - 1) * (at.F + at.I - at.W + 4 * at.c));
    same(at, found.makespan, found.span);
    return true;
  });
}

TEST_CASE("law of ZB-H2 and Seq1F1B-ZB-H2 while c <= W <= F <= I") {
  check_law([](sample const& at) {
    if (at.W > at.F || at.F > at.I || at.c > at.W || at.M * at.C < 2 * at.P + at.C - 2)
      return false;
    double const bubble = (at.P - 1) * (at.F + at.I + 2 * at.c - 2 * at.W);
    double const first_input = (at.P - 1) * (at.F + at.c);
    auto const chunked = at.bubble(pp::Seq1F1BZeroBubbleH2<>{.chunks = at.C});
    same(at, chunked.span, std::max(0.0, bubble));
    same(at, chunked.makespan, std::max(bubble, first_input));
    if (at.M < 2 * at.P - 1)
      return true;
    auto const whole = at.bubble(pp::ZeroBubbleH2{});
    same(at, whole.span, std::max(0.0, bubble));
    same(at, whole.makespan, std::max(bubble, first_input));
    return true;
  });
}

TEST_CASE("law of the interleaved schedules without latency") {
  check_law([](sample const& at) {
    if (at.c > 0)
      return false;
    int const units = at.M * at.C;
    int const short_of = (at.V - 1) * std::max(0, at.P - at.M);
    int const chunks_short_of = (at.V - 1) * std::max(0, at.P - units);
    same(at,
         at.bubble(pp::Interleaved<>{.stages_per_device = at.V}).span,
         (at.P - 1 + short_of) * at.all());
    same(at,
         at.bubble(pp::Seq1F1BInterleaved<>{.stages_per_device = at.V, .chunks = at.C}).span,
         (at.P - 1 + chunks_short_of) * at.all());
    return true;
  });
}

TEST_CASE("law of the interleaved schedules with a latency of at most F and B") {
  check_law([](sample const& at) {
    if (at.c > at.F || at.c > at.B())
      return false;
    if (at.P == 1) { // nothing to send
      same(at, at.bubble(pp::Interleaved<>{.stages_per_device = at.V}).span, 0);
      return true;
    }
    if (at.V == 1)
      return false;
    double const expected = (at.P - 1) * at.all() + 2 * at.c * (at.V * at.P - 1);
    bool const even = at.M % at.P == 0;
    if (even) {
      same(at, at.bubble(pp::Interleaved<>{.stages_per_device = at.V}).span, expected);
      int const waits = at.V * at.P + at.P - 3 + (at.P - 1) * at.V * (at.M / at.P - 1);
      same(at,
           at.bubble(pp::Interleaved<>{.stages_per_device = at.V, .group = 0, .stagger = 1}).span,
           (at.P - 1) * at.all() + 2 * at.c * waits);
    }
    if (at.P % at.C == 0 && at.M % (at.P / at.C) == 0)
      same(at,
           at.bubble(pp::Seq1F1BInterleaved<>{.stages_per_device = at.V, .chunks = at.C}).span,
           expected);
    return true;
  });
}

TEST_CASE("law of split backward passes on interleaved stages, with and without chunks") {
  check_law([](sample const& at) {
    if (at.c > 0 || at.W > at.F || at.W > at.I || at.M * at.C < at.P + at.C - 1)
      return false;
    double const expected = (at.P - 1) * (at.F + at.I - at.W);
    auto const chunked =
      at.bubble(pp::Seq1F1BZeroBubbleInterleaved<>{.stages_per_device = at.V, .chunks = at.C});
    same(at, chunked.span, expected);
    same(at, chunked.makespan, expected);
    if (at.M >= at.P)
      same(at, at.bubble(pp::ZeroBubbleInterleaved<>{.stages_per_device = at.V}).span, expected);
    return true;
  });
}
