// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/run/affinity.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace pp = pipelining;

namespace {

using cores = std::vector<int>;
using by_node = std::vector<cores>;

//! Its passes see where they run, and where a thread runs that they start.
struct placed_stage {
  cores own{};
  cores of_started_thread{};
  void forward(pp::context const&, pp::input, pp::output) {
    own = pp::detail::usable_cores();
    std::thread([this] { of_started_thread = pp::detail::usable_cores(); }).join();
  }
  void backward(pp::context const&, pp::input, pp::output) {}
};

cores consecutive(int first, int count) {
  cores result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

} // namespace

TEST_CASE("devices and the threads that they start run on their share of the cores") {
  auto const usable = pp::detail::usable_cores();
  for (int const devices : {1, 2, 3}) {
    std::vector<placed_stage> model(static_cast<std::size_t>(devices));
    pp::run(pp::lower(pp::make_timetable<pp::OneFOneB>({devices, 2})),
            model,
            {.on_start = pp::pin_in_turn()});
    auto const shares = pp::detail::divide_cores(pp::detail::usable_cores_by_node(), devices);
    for (std::size_t d = 0; d < model.size(); ++d) {
      CHECK(model[d].own == shares[d]);
      CHECK(model[d].of_started_thread == shares[d]);
    }
    if (devices == 1)
      CHECK(model[0].own == usable);
  }
  CHECK(pp::detail::usable_cores() == usable); // the caller stays where it was
}

TEST_CASE("cores are divided by node, as evenly as they can be") {
  struct row {
    by_node nodes;
    int devices;
    by_node expected;
  };
  auto const from = consecutive;
  by_node const one{from(0, 8)};
  by_node const two{from(0, 8), from(8, 8)};
  by_node const mixed{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7}}; // threads of a core far apart
  for (row const& each : {
         row{one, 1, {from(0, 8)}},
         row{one, 2, {from(0, 4), from(4, 4)}},
         row{one, 3, {from(0, 2), from(2, 3), from(5, 3)}},
         row{one, 8, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}},
         row{one, 10, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {0}, {1}}},
         row{two, 1, {from(0, 16)}},
         row{two, 2, {from(0, 8), from(8, 8)}},
         row{two, 3, {from(0, 4), from(4, 4), from(8, 8)}}, // none runs on both nodes
         row{two, 4, {from(0, 4), from(4, 4), from(8, 4), from(12, 4)}},
         row{mixed, 3, {{0, 1, 2, 3}, {8, 9, 10, 11}, {4, 5, 6, 7}}},
         row{{{0}, from(1, 7)}, 2, {from(1, 3), from(4, 4)}}, // one core is no share
         row{{{5}, {6}, {7}}, 2, {{5}, {6, 7}}},              // whole nodes
         row{{}, 2, {{}, {}}},
       }) {
    CAPTURE(each.devices);
    CHECK(pp::detail::divide_cores(each.nodes, each.devices) == each.expected);
  }
}

TEST_CASE("a device has a share, and no core is shared while there are enough") {
  for (int first = 1; first <= 9; ++first)
    for (int second = 1; second <= 9; ++second)
      for (int devices = 1; devices <= first + second; ++devices) {
        auto const shares =
          pp::detail::divide_cores({consecutive(0, first), consecutive(first, second)}, devices);
        cores all;
        for (auto const& share : shares) {
          CHECK(!share.empty());
          if (devices > 1) // on one node
            CHECK((share.front() < first) == (share.back() < first));
          all.insert(all.end(), share.begin(), share.end());
        }
        CHECK(std::is_sorted(all.begin(), all.end()));
        CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
      }
}

TEST_CASE("lists of cores are read as Linux writes them") {
  CHECK(pp::detail::read_core_list("0-3,8,10-11\n") == cores{0, 1, 2, 3, 8, 10, 11});
  CHECK(pp::detail::read_core_list("5") == cores{5});
  CHECK(pp::detail::read_core_list("\n").empty());
  CHECK(pp::detail::read_core_list("").empty());
  CHECK(pp::detail::read_core_list("0-999999999").size() == CPU_SETSIZE);
  CHECK(pp::detail::read_core_list("2-1,4").size() == 1);
}

TEST_CASE("nodes are those of the system, as far as their cores may be used") {
  auto const usable = pp::detail::usable_cores();
  CHECK(pp::detail::usable_cores_by_node("/there/is/none") == by_node{usable});

  auto const folder =
    std::filesystem::temp_directory_path() / ("pipelining_nodes_" + std::to_string(::getpid()));
  auto const write = [&](char const* name, std::string const& text) {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text << '\n';
  };
  write("online", "0,2-3");
  write("node0/cpulist", "1022-1023");
  write("node2/cpulist", std::to_string(usable.back()));
  write("node3/cpulist", ""); // memory alone
  by_node expected{{usable.back()}, usable};
  expected[1].pop_back();
  if (expected[1].empty())
    expected.pop_back();
  CHECK(pp::detail::usable_cores_by_node(folder.string()) == expected);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a core that is not there is refused") {
  CHECK_THROWS_WITH_AS(pp::detail::pin_to_cores({-1}),
                       "run: cannot keep a thread on core -1; usable_cores() lists those that this "
                       "process may use",
                       std::runtime_error);
  CHECK_THROWS_WITH_AS(pp::detail::pin_to_cores({1022, 1023}),
                       "run: cannot keep a thread on cores 1022, 1023; usable_cores() lists those "
                       "that this process may use",
                       std::runtime_error);
}
