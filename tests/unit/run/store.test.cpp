// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/store.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {
constexpr auto patience = std::chrono::seconds(20);
} // namespace

TEST_CASE("ranks exchange values, meet at barriers, and all learn the first failure") {
  pp::store_server server({});
  pp::store_address const address{.port = server.port()};
  std::vector<std::string> values(3);
  std::vector<std::string> failures(3);
  auto const process = [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    pp::store line(address, rank, patience);
    line.set("id/" + std::to_string(rank), std::string("binary\0value", 12) + std::to_string(rank));
    line.barrier("ready", 3, patience);
    values[r] = line.get("id/" + std::to_string((rank + 1) % 3), patience);
    line.set("done/" + std::to_string(rank), "");
    if (rank == 1) {
      for (int const other : {0, 2})
        (void)line.get("done/" + std::to_string(other), patience);
      line.abort("rank 1: the loss is not a number");
    }
    while (!line.failure())
      std::this_thread::yield();
    failures[r] = *line.failure();
  };
  std::thread first(process, 0);
  std::thread second(process, 1);
  process(2);
  first.join();
  second.join();
  CHECK(values[0] == std::string("binary\0value1", 13));
  CHECK(values[2] == std::string("binary\0value0", 13));
  for (std::string const& failure : failures)
    CHECK(failure == "rank 1: the loss is not a number");
}

TEST_CASE("a process that ends without a goodbye is a failure, one with a goodbye is not") {
  pp::store_server server({});
  pp::store_address const address{.port = server.port()};
  pp::store stays(address, 0, patience);
  { pp::store leaves(address, 1, patience); }
  stays.set("key", "value");
  CHECK(stays.get("key", patience) == "value");
  CHECK_FALSE(stays.failure());
  {
    // What the kernel does for a killed process: the connection closes, nothing was said.
    pp::connection killed = pp::connect_to<pp::polling_clock>("127.0.0.1", server.port(), patience);
    killed.write(pp::detail::frame('H', std::string(pp::detail::store_magic) + "/pipelining", "2"));
  }
  while (!stays.failure())
    std::this_thread::yield();
  CHECK(*stays.failure() == "the process of rank 2 has ended");
  CHECK_THROWS_WITH_AS((void)stays.get("never", patience),
                       "store: while rank 0 waited for 'never': the process of rank 2 has ended",
                       std::runtime_error);
}

TEST_CASE("a deadline ends a wait, and a stranger is turned away") {
  pp::store_server server({.job = "mine"});
  pp::store line({.port = server.port(), .job = "mine"}, 3, patience);
  CHECK_THROWS_WITH_AS(
    (void)line.get("nobody", std::chrono::milliseconds(5)),
    "store: rank 3 has waited for 'nobody' beyond its deadline; is every rank running?",
    std::runtime_error);
  pp::store stranger({.port = server.port(), .job = "yours"}, 0, patience);
  while (!stranger.failure())
    std::this_thread::yield();
  CHECK(*stranger.failure() == "this store serves another job");
}
