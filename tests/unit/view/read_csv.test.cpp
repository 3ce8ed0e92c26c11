// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What write_csv writes comes back: flows by chance on placements by chance, and what is no such
// file is refused in a sentence.
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/view/csv.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <tests/support/csv_round_trip.hpp>
#include <tests/support/random_flows.hpp>

namespace pp = pipelining;

namespace {

std::string const heading = "device,kind,stage,microbatch,chunk,start,end\n";

std::string refused_csv(std::string const& rows) {
  try {
    (void)pp::read_csv(rows);
  } catch (std::invalid_argument const& refused) {
    return refused.what();
  }
  return {};
}

} // namespace

TEST_CASE("flows by chance come back from their file") {
  int read = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    support::dice chance(seed);
    try {
      support::random_pipeline const made(chance);
      support::check_csv(made.timetable(chance));
      ++read;
    } catch (std::logic_error const&) { // refused, or more passes than the rows can have
    }
  }
  CHECK(read > 100);
}

TEST_CASE("extents, ways of microbatches, halves and chunks come back") {
  auto const both = support::check_csv(pp::make_timetable(pp::DualPipe<>{}, {4, 8}));
  CHECK(both.over.extents.where == pp::placement::bidirectional);
  auto const list = support::check_csv(pp::make_timetable<pp::RoundPipe<2, 5>>({4, 3}));
  CHECK(list.over.extents == pp::RoundPipe<2, 5>{}.arrange(4, 3));
  std::vector<int> const counts{1, 3, 2};
  auto const sequences =
    support::check_csv(pp::make_timetable(pp::ChunkFlow<pp::listed_chunks, 2>{{counts}}, {2, 3}));
  CHECK(sequences.over.first_units == std::vector<int>{0, 1, 4, 6});
}

TEST_CASE("what is no such file is refused with its line") {
  CHECK(refused_csv("") == "CSV: line 1 is not the heading that write_csv writes");
  CHECK(refused_csv(heading + "0,F,0,0,0,0\n") ==
        "CSV: line 2 does not have seven fields: it goes on, or ends, after '0'");
  CHECK(refused_csv(heading + "0,F,0,0,0,0,1,2\n").find("line 2 does not have seven fields") !=
        std::string::npos);
  CHECK(refused_csv(heading + "0,F,0,0,0,0,1\n0,?,0,0,0,1,2\n") ==
        "CSV: line 3 names the kind '?', which the flow does not have");
  CHECK(refused_csv(heading + "0,\"F,0\",0,0,0,0,1\n") ==
        "CSV: line 2 names the kind 'F,0', which the flow does not have");
  CHECK(refused_csv(heading + "0,F,0,0,0,zero,1\n") ==
        "CSV: line 2 has 'zero' where a number is wanted");
  for (char const* const number : {"-1", "65536", "0.5", "nan"})
    CHECK(refused_csv(heading + "0,F," + number + ",0,0,0,1\n").find("line 2 has") !=
          std::string::npos);
  CHECK(refused_csv(heading) == "timetable file: there is no pass");
  CHECK(refused_csv(heading + "0,F,65535,65535,0,0,1\n") ==
        "timetable file: there are fewer passes than stages times microbatches");
  CHECK(refused_csv(heading + "0,F,0,0,0,0,1\n0,B,0,0,0,0,1\n0,F,1,1,0,0,1\n0,B,1,1,0,0,1\n") ==
        "timetable file: a microbatch has no pass on one of the stages 0 to 1");
  CHECK(refused_csv(heading + "0,F,0,0,0,0,1\n1,B,0,0,0,0,1\n") ==
        "timetable file: a stage has passes of one microbatch on two devices");
}

TEST_CASE("passes of JSON that are none are refused") {
  auto const refused = [](std::string const& text) -> std::string {
    try {
      (void)pp::read_json(text);
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
    return {};
  };
  std::string const pass =
    "{\"kind\":\"F\",\"stage\":0,\"microbatch\":0,\"chunk\":0,\"start\":0,\"end\":1}";
  auto const of = [](std::string const& passes) { return "{\"passes\":[[" + passes + "]]}"; };
  CHECK(refused(of(pass)).empty());
  CHECK(
    refused(
      of("\n{ \"end\" : 1.0,\n\"start\": 0e1, \"kind\": \"\\u0046\", \"chunk\": 0, \"stage\": 0,"
         " \"microbatch\": 0 }"))
      .empty()); // as other programs write it
  CHECK(refused("{}") == "timetable file: there is no pass");
  CHECK(refused("") == "JSON: an object in braces is wanted, at line 1, character 1");
  CHECK(refused(of("{\"kind\":\"F\"}")) == "JSON: pass 1 has '' where a number is wanted");
  CHECK(refused(of("{\"king\":\"F\"}")) ==
        "JSON: a pass has no member 'king', at line 1, character 21");
}
