// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Is a timetable that was written as CSV or JSON read back?

#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/json.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace support {

//! @brief Writes a table, reads it, and compares. Returns what was read.
inline pipelining::dynamic_timetable check_csv(pipelining::dynamic_timetable const& table) {
  namespace pp = pipelining;
  std::string text;
  pp::write_csv(text, table);
  CAPTURE(text);
  pp::dynamic_timetable const read = pp::read_csv(text, table.over.declared);
  pp::shape const& extents = table.over.extents;
  REQUIRE(read.over.extents.stages() == extents.stages());
  REQUIRE(read.over.extents.microbatches == extents.microbatches);
  for (int stage = 0; stage < extents.stages(); ++stage)
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch) {
      CHECK(pp::device_of(read.over.view(), stage, microbatch) ==
            pp::device_of(table.over.view(), stage, microbatch));
      CHECK(read.over.view().chunks_of(microbatch) == table.over.view().chunks_of(microbatch));
    }
  CHECK(read.passes == table.passes);
  CHECK(read.starts == table.starts);
  CHECK(read.ends == table.ends);
  if (read.over.extents.devices == extents.devices) // the last ones may have no pass
    CHECK(read.offsets == table.offsets);
  std::string again;
  pp::write_csv(again, read);
  CHECK(again == text);
  if (pp::makespan(table) > 0) { // else JSON has no share of idle time
    std::string json;
    pp::write_json(json, table, {.schedule = "passes\":[\n{\"kind\""});
    pp::dynamic_timetable const same = pp::read_json(json, table.over.declared);
    CHECK(same.passes == read.passes);
    CHECK(same.starts == read.starts);
    CHECK(same.ends == read.ends);
    CHECK(same.offsets == read.offsets);
    CHECK(same.over.extents == read.over.extents);
    CHECK(same.over.holders == read.over.holders);
  }
  return read;
}

} // namespace support
