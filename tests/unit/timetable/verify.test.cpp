// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

namespace pp = pipelining;

namespace {

// P = 2, M = 2: device 0 runs F0 F1 B0 B1, device 1 runs F0 B0 F1 B1.
pp::dynamic_timetable sound() {
  return pp::make_timetable<pp::OneFOneB>({2, 2}, pp::uniform_cost{1, 1, 1, 0.5});
}

} // namespace

TEST_CASE("a sound timetable keeps every rule, and its times are those of a hand calculation") {
  auto const table = sound();
  CHECK(pp::verify(table));
  double const starts[] = {0, 1, 5, 8, 1.5, 2.5, 4.5, 5.5};
  for (int i = 0; i < 8; ++i)
    CHECK(table.starts[static_cast<std::size_t>(i)] == starts[i]);
}

TEST_CASE("each rule is found, with its passes") {
  auto table = sound();
  SUBCASE("unknown pass") {
    table.passes[0].microbatch = 2;
    CHECK(pp::verify(table).broken == pp::report::rule::unknown_pass);
  }
  SUBCASE("wrong device") {
    table.passes[0].stage = 1;
    pp::report const verdict = pp::verify(table);
    CHECK(verdict.broken == pp::report::rule::wrong_device);
    CHECK(pp::describe(verdict, table.over) ==
          "timetable: a pass is on a device that does not hold its stage (device 0, entry 0: "
          "forward of stage 1, microbatch 0)");
  }
  SUBCASE("lone half") {
    table.passes[0].overlapped = true;
    CHECK(pp::verify(table).broken == pp::report::rule::lone_half);
    table.passes[0].overlapped = false;
    table.passes[1].overlapped = true; // two forward passes at once, but not timed as a pair
    CHECK(pp::verify(table).broken == pp::report::rule::overlaps);
  }
  SUBCASE("repeated") {
    table.passes[1].microbatch = 0;
    pp::report const verdict = pp::verify(table);
    CHECK(verdict.broken == pp::report::rule::repeated_pass);
    CHECK(verdict.entry == 1);
  }
  SUBCASE("a half beside the whole") {
    table.passes[2].kind = pp::pass_kind::backward_weight;
    table.passes[2].microbatch = 1;
    CHECK(pp::verify(table).broken == pp::report::rule::repeated_pass);
  }
  SUBCASE("missing weight gradient") {
    table.passes[2].kind = pp::pass_kind::backward_input;
    pp::report const verdict = pp::verify(table);
    CHECK(verdict.broken == pp::report::rule::missing_pass);
    CHECK(verdict.what == pp::row_writer::make(pp::pass_kind::backward_weight, 0, 0));
  }
  SUBCASE("waits for ever") {
    table.starts[3] = table.ends[3] = pp::detail::never;
    CHECK(pp::verify(table).broken == pp::report::rule::waits_for_ever);
  }
  SUBCASE("overlaps") {
    table.starts[1] = 0.5;
    pp::report const verdict = pp::verify(table);
    CHECK(verdict.broken == pp::report::rule::overlaps);
    CHECK(verdict.other == table.passes[0]);
  }
  SUBCASE("before its message") {
    table.starts[4] = 1;
    pp::report const verdict = pp::verify(table);
    CHECK(verdict.broken == pp::report::rule::before_dependency);
    CHECK(verdict.device == 1);
    CHECK(verdict.other == table.passes[0]);
  }
  SUBCASE("over memory") {
    CHECK(pp::verify(table, 2));
    pp::report const verdict = pp::verify(table, 1);
    CHECK(verdict.broken == pp::report::rule::over_memory);
    CHECK(verdict.held == 2);
    CHECK(verdict.entry == 1);
  }
}

TEST_CASE("the bubble rate is measured on the span") {
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 8}, pp::uniform_cost{10, 12, 8});
  CHECK(pp::busy(table, 2) == 8 * 30);
  CHECK(pp::bubble_rate(table) == doctest::Approx(3.0 / 11));
}
