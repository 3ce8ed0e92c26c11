// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/unit/view/pytorch_refusal.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using io_tests::refusal;

bool begins(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

} // namespace

TEST_CASE("a file becomes the order of its devices") {
  pp::pytorch_schedule const file = pp::read_pytorch_csv("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n");
  CHECK(file.orders.over.extents.devices == 2);
  CHECK(file.orders.over.extents.microbatches == 2);
  CHECK(file.orders.over.extents.where == pp::placement::looped);
  CHECK(file.orders.passes == pp::make_orders(pp::OneFOneB{}, {2, 2}).passes);
  CHECK(file.orders.offsets == pp::make_orders(pp::OneFOneB{}, {2, 2}).offsets);
  CHECK(file.cells == std::vector<int>{1, 2, 4, 5, 2, 3, 4, 5});
  CHECK_FALSE(file.has_messages);
}

TEST_CASE("what spreadsheets and hands leave in a file does no harm") {
  pp::pytorch_schedule const file =
    pp::read_pytorch_csv("\xef\xbb\xbf 0UNSHARD, 0F0 ,,\t0I0,0W0,0REDUCE_GRAD,0RESHARD,,\r\n\r\n");
  CHECK(file.orders.passes.size() == 3);
  CHECK(file.skipped == 3);
  CHECK(file.cells == std::vector<int>{2, 4, 5});
}

TEST_CASE("placements are inferred") {
  auto const where = [](std::string_view text) {
    pp::pytorch_schedule const file = pp::read_pytorch_csv(text);
    CHECK(pp::verify(pp::make_timetable(file)));
    return file.orders.over.extents.where;
  };
  CHECK(where("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n") == pp::placement::looped);
  CHECK(where("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n") == pp::placement::wave);
  CHECK(where("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n") == pp::placement::custom);
  CHECK(where("1F0,1B0\n0F0,0B0\n") == pp::placement::custom);
  CHECK(where("0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n") == pp::placement::custom);
  auto const uneven =
    pp::make_timetable(pp::read_pytorch_csv("0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n"));
  CHECK(pp::makespan(uneven) == 12);
  CHECK(uneven.over.holders == std::vector<std::uint16_t>{0, 0, 0, 1});
}

TEST_CASE("every schedule that PyTorch prints loads, is judged, and comes back as it was") {
  std::ifstream golden("golden/pytorch_csv/orders.txt");
  REQUIRE(golden);
  std::string line;
  int checked = 0;
  int refused = 0;
  while (std::getline(golden, line)) {
    if (line[0] == '#')
      continue;
    CAPTURE(line);
    std::istringstream heading(line);
    std::string kind;
    std::string name;
    int devices = 0;
    int per_device = 0;
    int microbatches = 0;
    double peak = 0;
    double span = 0;
    double makespan = 0;
    heading >> kind >> name >> devices >> per_device >> microbatches >> peak >> span >> makespan;
    REQUIRE(heading);
    std::string text;
    for (int device = 0; device < devices && std::getline(golden, line); ++device)
      text += line + "\n";
    if (kind == "invalid") {
      CHECK(begins(refusal(text), "PyTorch CSV: the forward pass of stage "));
      ++refused;
      continue;
    }
    pp::pytorch_schedule const file = pp::read_pytorch_csv(text);
    auto const table = pp::make_timetable(file, pp::uniform_cost{10, 12, 8, 1});
    CHECK(table.over.extents.stages_per_device == per_device);
    CHECK(table.over.extents.microbatches == microbatches);
    if (makespan > 0) {
      CHECK(pp::peak_activations(table) == pp::ratio{static_cast<int>(peak), 1});
      CHECK(pp::span_of(table) == span);
      CHECK(pp::makespan(table) == makespan);
    }
    for (pp::pytorch_content const content :
         {pp::pytorch_content::passes, pp::pytorch_content::passes_and_messages}) {
      std::string written;
      pp::write_pytorch_csv(written, table, content);
      pp::pytorch_schedule const again = pp::read_pytorch_csv(written);
      CHECK(again.orders.passes == file.orders.passes);
      CHECK(again.orders.offsets == file.orders.offsets);
      CHECK(again.orders.over.holders == file.orders.over.holders);
      CHECK(again.orders.over.extents.where == file.orders.over.extents.where);
      CHECK(again.has_messages ==
            (content == pp::pytorch_content::passes_and_messages && devices > 1));
      std::string twice;
      pp::write_pytorch_csv(twice, pp::make_timetable(again), content);
      CHECK(twice == written);
    }
    ++checked;
  }
  CHECK(checked == 56);
  CHECK(refused == 5);
}

TEST_CASE("a bad file is refused with line, cell and reason") {
  CHECK(refusal("") == "PyTorch CSV: the file is empty; it needs one line per device");
  CHECK(refusal("\r\n \n") == "PyTorch CSV: the file is empty; it needs one line per device");
  CHECK(begins(refusal("0F0,0X0\n"), "PyTorch CSV, line 1, cell 2: '0X0' is not an action; an"));
  for (std::string_view const cell : {"F0",
                                      "0F",
                                      "0F-1",
                                      "-1F0",
                                      "0f0",
                                      "0F0F0",
                                      "0 F0",
                                      "0F65535",
                                      "65535F0",
                                      "99999999999F0",
                                      "0SEND_X0",
                                      "0UNSHARD0x",
                                      "\"0F0\"",
                                      "0F0.0",
                                      "0SEND_F",
                                      "W",
                                      "0"}) {
    CAPTURE(cell);
    CHECK(begins(refusal("0F0," + std::string(cell)), "PyTorch CSV, line 1, cell 2: "));
    CHECK(refusal("0F0," + std::string(cell)).find(" is not an action; an action is") !=
          std::string::npos);
  }
  CHECK(refusal("0F0,0B0\n,,\n1F0,1B0\n") ==
        "PyTorch CSV, line 2, cell 1: the line has no pass; every line is one device with one "
        "stage or more");
  CHECK(refusal("0F0,0B0,1F0,1B0\n1F1,1B1\n") ==
        "PyTorch CSV, line 2, cell 1: stage 1 is on this device, but also on that of line 1, "
        "cell 3");
  CHECK(refusal("0F0,0B0\n2F0,2B0,3F0,3B0\n") ==
        "PyTorch CSV: stage 1 has no passes, but stage 3 has");
}

TEST_CASE("pairs are one forward and one backward pass") {
  CHECK(refusal("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n").empty());
  CHECK(pp::makespan(pp::make_timetable(pp::read_pytorch_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"),
                                        pp::uniform_cost{1, 1, 1, 0, 2.5})) == 1 + 2.5 + 2);
  CHECK(pp::read_pytorch_csv("0F0,( 0B0 ; 0F1 )OVERLAP_F_B,0B1\n").orders.passes ==
        pp::read_pytorch_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n").orders.passes);
  for (std::string_view const cell : {"(0F1;0B0)",
                                      "(0F1;0B0)OVERLAP",
                                      "(0F1)OVERLAP_F_B",
                                      "(0F1;0B0;0B1)OVERLAP_F_B",
                                      "(0F1;0B0OVERLAP_F_B",
                                      "()OVERLAP_F_B"}) {
    CAPTURE(cell);
    CHECK(refusal("0F0," + std::string(cell)).find("is not a pair; a pair looks like") !=
          std::string::npos);
  }
  CHECK(begins(refusal("0F0,(0F1;0F2)OVERLAP_F_B"),
               "PyTorch CSV, line 1, cell 2: '(0F1;0F2)OVERLAP_F_B' must pair one forward pass"));
  CHECK(begins(refusal("0F0,0I0,(0F1;0W0)OVERLAP_F_B"), "PyTorch CSV, line 1, cell 3: "));
}

TEST_CASE("an order that breaks a rule is refused with the place of the pass") {
  CHECK(refusal("0F0,0B0,,0B0\n") ==
        "PyTorch CSV, line 1, cell 4: timetable: a pass stands twice (device 0, entry 2: backward "
        "of stage 0, microbatch 0; in conflict with backward of stage 0, microbatch 0)");
  CHECK(begins(refusal("0F0,0B0,0F1,0I1\n"), "PyTorch CSV: timetable: a pass is missing"));
  CHECK(begins(refusal("0F0,0B0\n,1B0,1F0\n"),
               "PyTorch CSV, line 1, cell 2: timetable: a pass waits for ever"));
}

TEST_CASE("numbers cost no more memory than the file has passes") {
  CHECK(refusal("0F0,0B0\n1F0,1B65000\n") ==
        "PyTorch CSV: the forward pass of stage 0, microbatch 1 is missing; the file has stages 0 "
        "to 1 and microbatches 0 to 65000");
  CHECK(refusal("60000F0,60000F60000\n") ==
        "PyTorch CSV: stage 0 has no passes, but stage 60000 has");
}

TEST_CASE("messages must be complete and on the right side of their passes") {
  std::string const lines[] = {"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"};
  CHECK(refusal(lines[0] + "\n" + lines[1]).empty());
  auto const with_second = [&](std::string const& line) { return refusal(lines[0] + "\n" + line); };
  CHECK(with_second("1RECV_F0,1F0,1B0") ==
        "PyTorch CSV, line 2, cell 3: the output of 1B0 goes to another device, but 1SEND_B0 is "
        "missing");
  CHECK(with_second("1F0,1B0,1SEND_B0") ==
        "PyTorch CSV, line 1, cell 1: the output of 0F0 goes to another device, but 1RECV_F0 is "
        "missing");
  CHECK(with_second("1RECV_F0,1F0,1SEND_B0,1B0") ==
        "PyTorch CSV, line 2, cell 3: 1SEND_B0 stands before the pass that makes what it sends");
  CHECK(with_second("1F0,1RECV_F0,1B0,1SEND_B0") ==
        "PyTorch CSV, line 2, cell 2: 1RECV_F0 stands after the pass that needs what it receives");
  CHECK(with_second("1RECV_F0,1RECV_F0,1F0,1B0,1SEND_B0") ==
        "PyTorch CSV, line 2, cell 2: 1RECV_F0 stands twice, first in line 2, cell 1");
  CHECK(with_second("1RECV_F0,1F0,1SEND_F0,1B0,1SEND_B0") ==
        "PyTorch CSV, line 2, cell 3: 1SEND_F0 is not needed: there is no such neighbour");
  CHECK(with_second("1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1") ==
        "PyTorch CSV, line 2, cell 5: 1RECV_F1 belongs to no pass of this file");
  CHECK(with_second("1RECV_F0,1F0,1B0,1SEND_B0,0RECV_B0") ==
        "PyTorch CSV, line 2, cell 5: 0RECV_B0 stands twice, first in line 1, cell 3");
  CHECK(refusal("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0") ==
        "PyTorch CSV, line 1, cell 2: 0SEND_F0 is not needed: both stages are on this device");
  CHECK(refusal("0F0,0B0,0RECV_B0,1SEND_B0,0SEND_F0\n1RECV_F0,1F0,1B0") ==
        "PyTorch CSV, line 1, cell 3: 0RECV_B0 stands after the pass that needs what it receives");
}
