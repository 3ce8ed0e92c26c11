// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/svg.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <tests/support/text.hpp>

namespace pp = pipelining;

namespace {

std::string picture(pp::timetable_view table, std::string_view name = "name") {
  std::string text;
  pp::write_svg(text, table, {name, {}, {}, {}});
  return text;
}

using support::count;

} // namespace

// That XML parsers read it is checked in tests/examples.
TEST_CASE("a cell per pass, its microbatch as a number where it is legible") {
  std::string const text = picture(pp::make_timetable<pp::OneFOneB>({3, 4}));
  CHECK(count(text, "<title>") == 3 * 4 * 2);
  CHECK(count(text, ">3</text>") == 3 * 2 + 1); // and once as a peak
  CHECK(text.find("backward of stage 2, microbatch 1: 6 to 8") != text.npos);
  CHECK(text.find("bubble 33.3 % of the span, 33.3 % of the makespan; peak activations 3, weight "
                  "inputs 0, in microbatches of one stage; makespan 18") != text.npos);
}

TEST_CASE("numbers that would not be legible are left out, and the width is bounded") {
  std::string const text = picture(pp::make_timetable<pp::GPipe>({2, 1000}));
  CHECK(count(text, ">999</text>") == 0);
  CHECK(count(text, " width=\"2066\"") == 1);
}

TEST_CASE("a picture grows beyond its width by up to a half where that makes numbers legible") {
  // 177 units of time and two digits, at least 12 pixels each.
  std::string const text = picture(pp::make_timetable<pp::OneFOneB>({8, 52}));
  CHECK(count(text, ">51</text>") == 16);
  CHECK(count(picture(pp::make_timetable<pp::OneFOneB>({8, 65})), ">51</text>") == 16);
  CHECK(count(picture(pp::make_timetable<pp::OneFOneB>({8, 80})), ">51</text>") == 8);
}

TEST_CASE("peaks of several stages per device are also given for all of them") {
  std::string const text = picture(pp::make_timetable<pp::DualPipeV<>>({2, 8}));
  CHECK(text.find("peak activations 5 (2.5 of all stages of a device), weight inputs 2 (1 of all "
                  "stages of a device), in microbatches of one stage") != text.npos);
}

TEST_CASE("a number is left out of the cells that are too narrow for it alone") {
  std::string const text =
    picture(pp::make_timetable<pp::GPipe>({1, 100}, pp::uniform_cost{1, 5, 5, 0}));
  CHECK(count(text, ">99</text>") == 1);
}

TEST_CASE("what XML reserves is escaped") {
  std::string const text = picture(pp::make_timetable<pp::GPipe>({1, 1}), "<&>\"\x07");
  CHECK(text.find(">&lt;&amp;&gt;&quot;: 1 device, 1 microbatch</text>") != text.npos);
}

TEST_CASE("an overlapped pair shares its time as two halves of a cell") {
  auto table = pp::make_timetable<pp::GPipe>({1, 2});
  // F0, then F1 next to B0, then B1.
  table.passes = {{pp::pass_kind::forward, false, 0, 0, 0},
                  {pp::pass_kind::forward, false, 0, 1, 0},
                  {pp::pass_kind::backward, true, 0, 0, 0},
                  {pp::pass_kind::backward, false, 0, 1, 0}};
  table.starts = {0, 1, 1, 4};
  table.ends = {1, 4, 4, 6};
  std::string const text = picture(table);
  CHECK(count(text, " height=\"30\"") == 3); // the row and the two whole cells
  CHECK(count(text, " height=\"15\"") == 1);
  CHECK(count(text, " height=\"14.2\"") == 1);
  CHECK(count(text, " y=\"74\" width=\"109.2\" height=\"14.2\"") == 1);
  CHECK(count(text, " y=\"89\" width=\"109.2\" height=\"15\"") == 1);
}

TEST_CASE("engines that copy have thinner rows below their device") {
  pp::uniform_cost const cost{.copy_out = 0.5, .copy_in = 0.5};
  auto const table = pp::make_timetable<pp::with_offload<pp::OneFOneB>>({4, 8}, cost);
  std::string const text = picture(table);
  CHECK(count(text, ">copy out</text>") == 4);
  CHECK(count(text, ">copy in</text>") == 4);
  int requests = 0;
  for (pp::pass const& what : table.passes)
    requests += what.kind == pp::pass_kind::copy_request ? 1 : 0;
  CHECK(requests > 0);
  CHECK(count(text, "<title>") == static_cast<int>(table.passes.size()) - requests);
  CHECK(count(picture(pp::make_timetable<pp::OneFOneB>({4, 8})), "copy") == 0);
  // Devices are two rows of half the height further apart: at 74, 142, ...
  CHECK(count(text, " x=\"84\" y=\"142\"") == 1);
}

TEST_CASE("passes that take no time have no cell") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 2}, pp::uniform_cost{0, 1, 1, 0});
  CHECK(count(picture(table), "<title>") == 4);
}

TEST_CASE("times that vanish are drawn as none") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 2}, pp::uniform_cost{0, 0, 1e-320});
  std::string const text = picture(table);
  CHECK(text.find("inf") == text.npos);
  CHECK(text.find("nan") == text.npos);
}
