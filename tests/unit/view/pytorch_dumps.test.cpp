// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/support/text.hpp>
#include <tests/unit/view/pytorch_refusal.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! One file of torch, and what its name says.
struct dump {
  std::string version;
  std::string content;
  std::string schedule;
  int devices = 0;
  int stages = 0;
  int microbatches = 0;
  std::string text;
};

std::vector<dump> read_dumps() {
  std::ifstream golden("golden/pytorch_csv/dumps.txt");
  REQUIRE(golden);
  std::vector<dump> all;
  for (std::string line; std::getline(golden, line);) {
    if (line.substr(0, 5) == "dump ") {
      dump next;
      std::istringstream(line.substr(5)) >> next.version >> next.content >> next.schedule >>
        next.devices >> next.stages >> next.microbatches;
      all.push_back(next);
    } else if (line[0] != '#') {
      all.back().text += line + "\n";
    }
  }
  return all;
}

using support::count;

using io_tests::refusal;

//! Messages that cross devices: every microbatch at every boundary between stages on different
//! devices, forwards and backwards.
int crossings(pp::shape const& extents) {
  int boundaries = 0;
  for (int stage = 0; stage + 1 < extents.stages(); ++stage)
    boundaries += pp::device_of(extents, stage) != pp::device_of(extents, stage + 1) ? 1 : 0;
  return 2 * boundaries * extents.microbatches;
}

} // namespace

TEST_CASE("every file that torch 2.14 and 2.15 write is read, but for those in which it errs") {
  int refused = 0;
  int with_messages = 0;
  for (dump const& each : read_dumps()) {
    std::string const name = each.schedule + " " + std::to_string(each.devices) + " of " +
                             each.version + " " + each.content;
    CAPTURE(name);
    // Its prints of 1F1B begin with microbatch 1 on the last device.
    if (each.schedule == "1F1B" && each.devices > 1) {
      CHECK(refusal(each.text).find(" is missing; the file has stages 0 to ") != std::string::npos);
      ++refused;
      continue;
    }
    pp::pytorch_schedule const file = pp::read_pytorch_csv(each.text);
    auto const table = pp::make_timetable(file);
    CHECK(table.over.extents.devices == each.devices);
    CHECK(table.over.extents.stages() == each.stages);
    CHECK(table.over.extents.microbatches == each.microbatches);
    CHECK(file.has_messages == (each.content == "comms" && each.devices > 1));
    if (!file.has_messages)
      continue;
    ++with_messages;
    CHECK(count(each.text, "WAIT_SEND") ==
          (each.version == "2.15" ? crossings(table.over.extents) : 0));
    CHECK(count(each.text, "RECV_") == crossings(table.over.extents));
    // What is written for that version waits as often, and is proven as well.
    std::string written;
    pp::write_pytorch_csv(written,
                          table,
                          pp::pytorch_content::passes_and_messages,
                          each.version == "2.15" ? pp::pytorch_release::v2_15
                                                 : pp::pytorch_release::v2_10);
    CHECK(pp::read_pytorch_csv(written).orders.passes == file.orders.passes);
    for (char const* const part : {"WAIT_SEND_F", "WAIT_SEND_B", "REDUCE_GRAD", "WAIT_REDUCE"})
      CHECK(count(written, part) == count(each.text, part));
  }
  CHECK(refused == 6);
  CHECK(with_messages == 27);
}

TEST_CASE("a file that waits for sends waits for each, behind it") {
  std::string const second = "\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
  CHECK(refusal("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD" + second)
          .empty());
  CHECK(
    refusal("0F0,0SEND_F0,0RECV_B0,0B0" + second) ==
    "PyTorch CSV, line 1, cell 2: 0SEND_F0 has no 0WAIT_SEND_F0, but other messages of the file "
    "have; torch 2.15 wants one for each");
  CHECK(refusal("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0" + second) ==
        "PyTorch CSV, line 1, cell 2: 0WAIT_SEND_F0 does not stand after 0SEND_F0 on the same "
        "device");
  CHECK(refusal("0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0" + second) ==
        "PyTorch CSV, line 1, cell 4: 0WAIT_SEND_F0 stands twice, first in line 1, cell 3");
  CHECK(refusal("0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_B0,0RECV_B0,0B0" + second) ==
        "PyTorch CSV, line 1, cell 4: 0WAIT_SEND_B0 does not stand after 0SEND_B0 on the same "
        "device");
}

TEST_CASE("messages that devices cannot exchange in the order of the file are refused") {
  CHECK(
    refusal("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
    "PyTorch CSV, line 1, cell 2: 0RECV_B0 waits for ever for 1SEND_B0 (line 2, cell 4), before "
    "which 1RECV_F0 (line 2, cell 1) waits as well; the devices must be able to exchange their "
    "messages one by one, in the order of the file");
  // Both send first.
  CHECK(refusal("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n") != "");
  CHECK(refusal("0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
                "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n") == "");
}
