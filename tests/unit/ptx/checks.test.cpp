// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every checker finds its planted bug and is silent on the correct twin.
#include <numeric>

#include "fixture.hpp"

using fixture::array;
using fixture::reported;
using ptx::fault;

namespace {

std::vector<float> ramp(int n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 1.0F);
  return v;
}

using fixture::whole;

void check_clean(ptx::result const& r) {
  CHECK_MESSAGE(r.clean(), r.text());
}

} // namespace

TEST_CASE("shared memory: a missing barrier is a race") {
  fixture::machine m("checks.sm_80");
  array<float> in(m, ramp(200));
  array<float> out(m, 2);
  check_clean(m.run("sum_good", {2}, {128}, in.data(), out.data(), 200));
  CHECK(out[0] == 128 * 129 / 2);
  CHECK(out[0] + out[1] == 200 * 201 / 2);
  auto const bad = m.run("sum_without_barrier", {2}, {128}, in.data(), out.data(), 200);
  CHECK(reported(bad,
                 fault::race,
                 {"kernel sum_without_barrier, block (0,0,0), thread (",
                  "PTX line ",
                  "checks.cu:",
                  "4 bytes at shared+0x80",
                  "without being ordered after thread ("}));
  m.how.stops = true;
  auto const first = m.run("sum_without_barrier", {2}, {128}, in.data(), out.data(), 200);
  CHECK(first.reports.size() == 1);
  CHECK(first.reports.front().text == bad.reports.front().text);
  CHECK(first.writes.empty());
  m.how.races = false;
  check_clean(m.run("sum_without_barrier", {2}, {128}, in.data(), out.data(), 200));
}

TEST_CASE("shared memory: bytes of one word belong to different threads") {
  fixture::machine m("checks.sm_80");
  array<unsigned char> out(m, 32);
  check_clean(m.run("neighbours_good", {1}, {32}, out.data()));
  CHECK(out[6] == 7);
  CHECK(reported(m.run("neighbours_without_syncwarp", {1}, {32}, out.data()),
                 fault::race,
                 {"reads 1 byte at shared+0x1", "thread (1,0,0), which wrote it"}));
}

TEST_CASE("cp.async: waiting and sharing are two things") {
  fixture::machine m("checks.sm_80");
  array<int> in(m, whole(256)), out(m, 64);
  check_clean(m.run("copy_good", {1}, {64}, in.data(), out.data()));
  CHECK(out[3] == 252);
  CHECK(reported(m.run("copy_not_waited_for", {1}, {64}, in.data(), out.data()),
                 fault::in_flight,
                 {"reads 4 bytes at shared+", "asynchronous copy", "has not been waited for"}));
  CHECK(out[3] == -1); // the target is poisoned
  auto const unshared = m.run("copy_without_barrier", {1}, {64}, in.data(), out.data());
  CHECK_FALSE(unshared.clean());
  CHECK(unshared.text().find("shared+") != std::string::npos);
}

TEST_CASE("global memory: bounds, initialisation and what was touched") {
  fixture::machine m("checks.sm_80");
  array<float> x(m, ramp(100));
  array<float> raw(m, 4);
  auto const good = m.run("scale", {4}, {32}, x.data(), 100, 2.0F);
  check_clean(good);
  CHECK(x[99] == 200);
  auto const begin = reinterpret_cast<std::uintptr_t>(x.data());
  CHECK(good.reads == std::vector<ptx::range>{{begin, begin + 400}});
  CHECK(good.writes == std::vector<ptx::range>{{begin, begin + 400}});
  auto const past = m.run("scale", {4}, {32}, x.data(), 101, 2.0F);
  CHECK(reported(
    past,
    fault::bounds,
    {"block (3,0,0), thread (4,0,0)", "lies in no allocation", "400 bytes after its start"}));
  auto const uninitialised = m.run("scale", {1}, {32}, raw.data(), 4, 2.0F);
  CHECK(reported(uninitialised, fault::uninitialised, {"reads 4 bytes at global address"}));
  m.how.initialisation = false;
  check_clean(m.run("scale", {1}, {32}, raw.data(), 4, 2.0F));
}

TEST_CASE("alignment, shared bounds, uninitialised shared and local memory") {
  fixture::machine m("checks.sm_80");
  array<char> bytes(m, 256);
  array<int> out(m, 32);
  CHECK(reported(m.run("misaligned", {1}, {32}, bytes.data()),
                 fault::alignment,
                 {"thread (1,0,0)", "accesses 4 bytes", "no multiple of 4"}));
  m.dynamic_shared = 256;
  check_clean(m.run("shared_bounds", {1}, {32}, out.data(), 32));
  CHECK(
    reported(m.run("shared_bounds", {1}, {32}, out.data(), 33),
             fault::bounds,
             {"thread (31,0,0)", "writes 4 bytes at shared+0x100", "256 bytes of shared memory"}));
  check_clean(m.run("shared_uninitialised", {1}, {32}, out.data(), 32));
  CHECK(reported(m.run("shared_uninitialised", {1}, {32}, out.data(), 31),
                 fault::uninitialised,
                 {"thread (0,0,0)", "reads 4 bytes at shared+0x7c, which nobody has written"}));
  check_clean(m.run("local_uninitialised", {1}, {8}, out.data(), 8));
  CHECK(reported(m.run("local_uninitialised", {1}, {8}, out.data(), 7),
                 fault::uninitialised,
                 {"thread (7,0,0)", "at local+0x1c"}));
  check_clean(m.run("local_bounds", {1}, {8}, out.data(), 0));
  CHECK(reported(m.run("local_bounds", {1}, {8}, out.data(), 1),
                 fault::bounds,
                 {"thread (7,0,0)", "reads 4 bytes at local+0x20", "32 bytes of local memory"}));
}

TEST_CASE("lanes and warps that part at the wrong place") {
  fixture::machine m("checks.sm_80");
  array<int> out(m, 64);
  check_clean(m.run("part_of_a_warp", {1}, {32}, out.data(), 32));
  CHECK(reported(m.run("part_of_a_warp", {1}, {32}, out.data(), 30),
                 fault::divergence,
                 {"shfl.sync", "together"}));
  check_clean(m.run("barrier_in_a_branch", {1}, {64}, out.data(), 64));
  CHECK(reported(m.run("barrier_in_a_branch", {1}, {64}, out.data(), 40),
                 fault::divergence,
                 {"bar.sync", "thread (", "together"}));
  check_clean(m.run("early_exit", {1}, {64}, out.data(), 32));
}

TEST_CASE("barriers that nobody completes are deadlocks with names and places") {
  fixture::machine m("checks.sm_80");
  array<int> out(m, 64);
  check_clean(m.run("named_barrier", {1}, {64}, out.data(), 64));
  CHECK(reported(
    m.run("named_barrier", {1}, {64}, out.data(), 96),
    fault::deadlock,
    {"nobody can go on", "warp 0 waits at PTX line ", "barrier 3, 64 of 96 threads arrived"}));
  CHECK(reported(m.run("named_barrier", {1}, {64}, out.data(), 40),
                 fault::barrier,
                 {"no multiple of the warp size"}));
  array<int> flag(m, std::vector<int>{0});
  for (auto const warps : {ptx::order::forward, ptx::order::shuffled}) {
    m.how.warps = warps;
    auto const r = m.run("waits_for_ever", {1}, {32}, flag.data());
    CHECK(reported(r, fault::deadlock, {"warp 0 spins at PTX line"}));
    CHECK(r.counts.warp_instructions < 1000); // whoever looks in vain lets others go first
  }
}

TEST_CASE("blocks that talk through global memory need fences on both sides") {
  fixture::machine m("checks.sm_80");
  array<int> data(m, 1), out(m, 1);
  for (int const fences : {3, 2, 1, 0}) {
    array<int> flag(m, std::vector<int>{0});
    auto const r = m.run("handshake", {2}, {1}, data.data(), flag.data(), out.data(), fences);
    CHECK(out[0] == 42);
    if (fences == 3) {
      check_clean(r);
    } else {
      CHECK(reported(r, fault::race, {"block (0,0,0)", "of block number 1, which wrote it"}));
    }
  }
  array<int> flag(m, std::vector<int>{0});
  check_clean(m.run("release_acquire", {2}, {1}, data.data(), flag.data(), out.data()));
  CHECK(out[0] == 7);
}

TEST_CASE("a lane that releases for its warp has to wait for the others") {
  fixture::machine m("checks.sm_80");
  array<int> data(m, 32), out(m, 32);
  for (bool const waits : {true, false}) {
    array<int> flag(m, std::vector<int>{0});
    auto const r =
      m.run("release_by_one_lane", {2}, {32}, data.data(), flag.data(), out.data(), waits);
    if (waits) {
      check_clean(r);
    } else {
      CHECK(reported(r, fault::race, {"block (0,0,0)", "of block number 1, which wrote it"}));
    }
  }
}

TEST_CASE("global memory: duplicate stores and stores beside atomics are races") {
  fixture::machine m("checks.sm_80");
  array<int> out(m, std::vector<int>{0});
  check_clean(m.run("same_place", {1}, {1}, out.data()));
  CHECK(reported(m.run("same_place", {1}, {2}, out.data()),
                 fault::race,
                 {"thread (1,0,0)", "thread (0,0,0), which wrote it"}));
  CHECK(reported(m.run("same_place", {2}, {1}, out.data()),
                 fault::race,
                 {"block (1,0,0)", "of block number 0"}));
  CHECK(reported(m.run("plain_and_atomic", {1}, {2}, out.data()), fault::race, {"which wrote it"}));
}

TEST_CASE("module variables, traps, unknown names and unknown instructions") {
  fixture::machine m("checks.sm_80");
  array<int> out(m, whole(8));
  CHECK(reported(m.run("gives_up", {1}, {8}, out.data()), fault::trap, {"thread (3,0,0)"}));
  check_clean(m.run("variables", {1}, {8}, out.data()));
  CHECK(out[2] == 5);
  auto const counter = m.code.find_variable("counter");
  REQUIRE(counter.bytes == 4);
  CHECK(*static_cast<int*>(counter.address) == 18);
  CHECK(m.code.find_variable("table").bytes == 16);
  CHECK(m.code.find_variable("none").address == nullptr);
  CHECK(m.code.facts("handshake").parameter_bytes == std::vector<std::size_t>{8, 8, 8, 4});
  CHECK_THROWS_WITH_AS(
    m.run("nothing", {1}, {1}), "the module has no kernel named nothing", ptx::unsupported);
  CHECK_THROWS_WITH_AS(
    m.run("unknown", {1}, {1}, out.data()), doctest::Contains("`made.up.b32 "), ptx::unsupported);
  CHECK(
    reported(m.run("scale", {1}, {1025}, out.data(), 0, 1.0F), fault::invalid, {"1025 threads"}));
}

TEST_CASE("the same seed gives the same run, another order another one") {
  fixture::machine m("checks.sm_80");
  array<float> in(m, ramp(200));
  array<float> out(m, 2);
  m.how.warps = ptx::order::shuffled;
  auto const first = [&](std::uint64_t seed) {
    m.how.seed = seed;
    return m.run("sum_without_barrier", {2}, {128}, in.data(), out.data(), 200).text();
  };
  CHECK(first(1) == first(1));
  CHECK_FALSE(first(1).empty());
}
