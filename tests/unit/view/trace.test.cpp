// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/trace.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tests/support/text.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using support::count;

} // namespace

// That JSON parsers read it is checked in tests/examples.
TEST_CASE("planned and measured passes are two processes with one track per device") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 3});
  pp::measured_pass const ran[] = {{1, {pp::pass_kind::backward, false, 1, 2, 0}, 0.5, 0.75}};
  std::string text;
  pp::write_trace(text, table, {"1F1B", {}, {}, {}}, ran);
  CHECK(count(text, "\"ph\":\"X\"") == 12 + 1);
  CHECK(count(text, "\"process_name\"") == 2);
  CHECK(count(text, "\"thread_name\"") == 4);
  CHECK(count(text, "{\"name\":\"1F1B, planned\"}") == 1);
  CHECK(text.find("{\"ph\":\"X\",\"name\":\"B2\",\"cat\":\"backward\",\"pid\":2,\"tid\":1,"
                  "\"ts\":500000,\"dur\":250000,\"args\":{\"stage\":1,\"microbatch\":2,"
                  "\"chunk\":0}}") != text.npos);
}

TEST_CASE("what has run gets arrows and counters of its own") {
  auto const table = pp::make_timetable<pp::ZeroBubbleH1>({2, 1});
  // Every pass half a second later than planned, in another order.
  std::vector<pp::measured_pass> ran;
  for (int device = 1; device >= 0; --device)
    for (int i = table.offsets[static_cast<std::size_t>(device)];
         i < table.offsets[static_cast<std::size_t>(device) + 1];
         ++i) {
      auto const entry = static_cast<std::size_t>(i);
      ran.push_back(
        {device, table.passes[entry], table.starts[entry] + 0.5, table.ends[entry] + 0.5});
    }
  std::string text;
  pp::write_trace(text, table, {"zb", {}, {}, {}}, ran, {.arrows = true, .memory = true});
  CHECK(count(text, "\"ph\":\"s\"") == 4);
  // F0 crosses from device 0, where it ran from 0.5 to 1.5, to device 1.
  CHECK(text.find("\"pid\":2,\"tid\":0,\"ts\":1000000}") != text.npos);
  // Device 1: F0 from 1.5, I0 from 2.5, W0 from 3.5 to 4.5.
  for (char const* const each :
       {"\"ts\":1500000,\"args\":{\"activations\":1,\"weight inputs\":0}}",
        "\"ts\":2500000,\"args\":{\"activations\":1,\"weight inputs\":1}}",
        "\"ts\":4500000,\"args\":{\"activations\":0,\"weight inputs\":0}}"})
    CHECK(text.find(std::string("{\"ph\":\"C\",\"name\":\"kept on device 1\",\"pid\":2,") + each) !=
          text.npos);
}

//! What the counters of each device say of activations, in the order of the trace.
std::vector<std::vector<double>> counted(pp::dynamic_timetable const& table) {
  std::string text;
  pp::write_trace(text, table, {"any", {}, {}, {}}, {}, {.memory = true});
  std::vector<std::vector<double>> result(static_cast<std::size_t>(table.over.extents.devices));
  for (std::size_t device = 0; device < result.size(); ++device) {
    std::string const name = "\"kept on device " + std::to_string(device) + "\"";
    std::string const before = "\"activations\":";
    for (std::size_t at = 0; (at = text.find(name, at)) != text.npos; ++at)
      result[device].push_back(std::stod(text.substr(text.find(before, at) + before.size())));
  }
  return result;
}

TEST_CASE("counters of activations hold what the flow takes and gives back") {
  pp::uniform_cost copies;
  copies.copy_out = copies.copy_in = 0.25;
  for (pp::dynamic_timetable const& table :
       {pp::make_timetable<pp::OneFOneB>({3, 5}),
        pp::make_timetable<pp::ZeroBubbleH1>({3, 5}),
        pp::make_timetable<pp::with_recompute<pp::OneFOneB>>({3, 5}),
        pp::make_timetable<pp::with_recompute<pp::OneFOneB, pp::recompute::all_but_last>>({3, 5}),
        pp::make_timetable<pp::with_offload<pp::OneFOneB>>({3, 5}, copies)}) {
    auto const all = counted(table);
    for (int device = 0; device < 3; ++device) {
      auto const& here = all[static_cast<std::size_t>(device)];
      REQUIRE(!here.empty());
      CHECK(*std::min_element(here.begin(), here.end()) == 0);
      CHECK(*std::max_element(here.begin(), here.end()) ==
            pp::peak_activations(table, device).to_double());
      CHECK(here.back() == 0);
    }
  }
}

TEST_CASE("arrows join the passes that a message joins") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 3});
  std::string text;
  pp::write_trace(text, table, {"1F1B", {}, {}, {}}, {}, {.arrows = true});
  // Each of 3 microbatches crosses forwards and backwards once.
  CHECK(count(text, "\"ph\":\"s\"") == 6);
  CHECK(count(text, "\"ph\":\"f\"") == 6);
  // F0 of device 0 runs from 0 to 1, of device 1 from 1 to 2.
  CHECK(text.find("{\"ph\":\"s\",\"name\":\"message\",\"cat\":\"message\",\"id\":3,\"pid\":1,"
                  "\"tid\":0,\"ts\":500}") != text.npos);
  CHECK(text.find("\"id\":3,\"pid\":1,\"tid\":1,\"ts\":1500,\"bp\":\"e\"}") != text.npos);
}

TEST_CASE("arrows come from every datum that a pass makes") {
  // With one barrier a shard of the logits makes the gradient of the last stage, too. On two
  // devices messages go to F of the first stage, F and B of the last, a shard of the logits, both
  // gradients of logits, B of the first stage and a shard of the embedding.
  auto const table = pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 1>>({2, 1});
  std::string text;
  pp::write_trace(text, table, {"any", {}, {}, {}}, {}, {.arrows = true});
  CHECK(count(text, "\"ph\":\"s\"") == 8);
}

TEST_CASE("what has run of a flow with several engines has a row for each") {
  auto const table =
    pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, pp::pipeline_size{2, 3});
  std::vector<pp::measured_pass> ran;
  for (int i = 0; i < table.view().size(); ++i) {
    auto const at = static_cast<std::size_t>(i);
    ran.push_back(
      {pp::device_of(table, table.passes[at]), table.passes[at], table.starts[at], table.ends[at]});
  }
  pp::dynamic_timetable const measured = pp::detail::measured_table(table, ran);
  REQUIRE(measured.offsets == table.offsets);
  CHECK(measured.starts == table.starts);
  std::string text;
  pp::write_trace(text, table, {"recompute", {}, {}, {}}, ran, {.arrows = true, .memory = true});
  CHECK(count(text, "\"ph\":\"s\"") == 2 * 6); // planned and measured
}
