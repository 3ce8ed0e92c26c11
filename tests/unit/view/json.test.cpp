// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/json.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace pp = pipelining;

// That real parsers read it, and that the figures are right, is checked in tests/examples.
TEST_CASE("the object has its keys in the order of the contract") {
  std::string text;
  pp::uniform_cost const cost{2, 1, 0.5, 0};
  pp::write_json(text, pp::make_timetable<pp::OneFOneB>({1, 1}, cost), {"1F1B", cost, {}, {}});
  CHECK(text == R"({"schedule":"1F1B",
"devices":1,"stages":1,"microbatches":1,"chunks":1,
"cost":{"forward":2,"backward_input":1,"backward_weight":0.5,"communication":0},
"chunk_shares":[1],
"makespan":3.5,"span":3.5,"bubble_rate":0,"makespan_bubble_rate":0,
"peak_activations":[1],
"peak_weight_inputs":[0],
"passes":[
[
{"kind":"F","stage":0,"microbatch":0,"chunk":0,"start":0,"end":2},
{"kind":"B","stage":0,"microbatch":0,"chunk":0,"start":2,"end":3.5}]]}
)");
}

TEST_CASE("unequal chunks weigh in peak activations") {
  std::string text;
  double const shares[] = {0.75, 0.25};
  pp::write_json(text, pp::make_timetable<pp::Seq1F1B<2>>({2, 2}), {"Seq1F1B", {}, shares, {}});
  CHECK(text.find("\"chunk_shares\":[0.75,0.25]") != text.npos);
  // Device 0 has 3 forward passes before its first backward: 0.75 + 0.25 + 0.75.
  CHECK(text.find("\"peak_activations\":[1.75,") != text.npos);
}

TEST_CASE("what stands next to the passes stands after them") {
  auto const text_of = [](pp::dynamic_timetable const& table) {
    std::string text;
    pp::write_json(text, table, {"any", {}, {}, {}});
    return text.substr(text.find("\"passes\""));
  };
  using sharded = pp::with_sharded_weights<pp::OneFOneB>;
  pp::uniform_cost const cost{.copy_out = 1, .copy_in = 1};
  auto const copied = text_of(pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {3, 4}, cost));
  auto const out = copied.find("]],\n\"copy_out\":[\n[\n{\"kind\":\"O\",\"stage\":0,");
  CHECK(out != copied.npos);
  CHECK(copied.find("]],\n\"copy_in\":[\n[\n{\"kind\":\"L\",", out) != copied.npos);
  CHECK(copied.find("network") == copied.npos);
  CHECK(text_of(pp::make_timetable(sharded{}, {1, 2})).find("]],\n\"network\":[\n[\n{") !=
        copied.npos);
  // Nothing is copied, though the flow has copies.
  CHECK(text_of(pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, {1, 2})).find("copy") ==
        copied.npos);
}

TEST_CASE("names are quoted as JSON wants") {
  std::string text;
  pp::append_quoted(text, std::string_view("a\"b\\c\n\x01 d", 9));
  CHECK(text == R"("a\"b\\c\u000a\u0001 d")");
}
