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

} // namespace

TEST_CASE("shared memory: a missing barrier is a race") {
  fixture::machine m("checks.sm_80");
  array<float> in(m, ramp(200));
  array<float> out(m, 2);
  auto const good = m.run("sum_good", {2}, {128}, in.data(), out.data(), 200);
  CHECK_MESSAGE(good.clean(), good.text());
  CHECK(out[0] == 128 * 129 / 2);
  CHECK(out[0] + out[1] == 200 * 201 / 2);
  auto const bad = m.run("sum_without_barrier", {2}, {128}, in.data(), out.data(), 200);
  CHECK(reported(bad,
                 fault::race,
                 {"sum_without_barrier", "4 bytes at shared+0x80", "without being ordered after"}));
}

TEST_CASE("global memory: bounds, initialisation and what was touched") {
  fixture::machine m("checks.sm_80");
  array<float> x(m, ramp(100));
  array<float> raw(m, 4);
  auto const good = m.run("scale", {4}, {32}, x.data(), 100, 2.0F);
  CHECK_MESSAGE(good.clean(), good.text());
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
}
