// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Is a timetable that was written as a file of PyTorch's read back?

#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>

namespace io_tests {

inline constexpr pipelining::uniform_cost times{3, 2, 1, 0.5};

//! Writes a table with and without messages, reads both, and compares. Returns what was read.
//! @pre it has nothing that the format leaves out, such as recomputation
inline pipelining::pytorch_schedule check_round_trip(pipelining::dynamic_timetable const& table,
                                                     pipelining::uniform_cost const& cost = times) {
  namespace pp = pipelining;
  pp::pytorch_schedule file;
  for (auto const& [content, release] :
       {std::pair{pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_10},
        std::pair{pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_15},
        std::pair{pp::pytorch_content::passes, pp::pytorch_release::v2_15}}) {
    std::string text;
    pp::write_pytorch_csv(text, table, content, release);
    CAPTURE(text);
    file = pp::read_pytorch_csv(text);
    CHECK(file.orders.passes == table.passes);
    CHECK(file.orders.offsets == table.offsets);
    REQUIRE(file.orders.over.extents.stages() == table.over.extents.stages());
    for (int stage = 0; stage < table.over.extents.stages(); ++stage)
      CHECK(pp::device_of(file.orders.over, stage) == pp::device_of(table.over, stage));
    auto const again = pp::make_timetable(file, cost);
    CHECK(again.starts == table.starts);
    CHECK(again.ends == table.ends);
    std::string twice;
    pp::write_pytorch_csv(twice, again, content, release);
    CHECK(twice == text);
  }
  return file;
}

} // namespace io_tests
