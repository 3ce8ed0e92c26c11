// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/csv.hpp>

#include <doctest/doctest.h>

#include <string>

namespace pp = pipelining;

TEST_CASE("one line per pass, device after device") {
  std::string text;
  pp::write_csv(text,
                pp::make_timetable<pp::Seq1F1B<2>>({2, 1}, pp::uniform_cost{1, 0.5, 0.5, 0.25}));
  // Device 1 gets chunk c at c + 1.25 and runs both before the first backward.
  CHECK(text == "device,kind,stage,microbatch,chunk,start,end\n"
                "0,F,0,0,0,0,1\n"
                "0,F,0,0,1,1,2\n"
                "0,B,0,0,1,4.5,5.5\n"
                "0,B,0,0,0,5.5,6.5\n"
                "1,F,1,0,0,1.25,2.25\n"
                "1,F,1,0,1,2.25,3.25\n"
                "1,B,1,0,1,3.25,4.25\n"
                "1,B,1,0,0,4.25,5.25\n");
}
