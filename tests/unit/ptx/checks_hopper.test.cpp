// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Planted bugs of asynchronous kernels; bug 0 of every kernel is the correct twin.
#include <numeric>

#include "fixture.hpp"

using fixture::array;
using fixture::reported;
using ptx::fault;

namespace {

using fixture::whole;

void for_orders(fixture::machine& m, auto f) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    m.how.warps = seed == 0   ? ptx::order::forward
                  : seed == 1 ? ptx::order::reverse
                              : ptx::order::shuffled;
    m.how.seed = seed;
    f();
  }
}

} // namespace

TEST_CASE("bulk loads and the mbarrier they complete on, in every order") {
  fixture::machine m("checks_hopper.sm_90a");
  array<int> in(m, whole(64)), out(m, 64);
  m.dynamic_shared = 1024;
  for_orders(m, [&] {
    auto const run = [&](int bug) {
      return m.run("bulk_load", {1}, {64}, in.data(), out.data(), bug);
    };
    auto const good = run(0);
    CHECK_MESSAGE(good.clean(), good.text());
    CHECK(out[63] == 63);
    CHECK(
      reported(run(1), fault::in_flight, {"reads 4 bytes at shared+", "has not been waited for"}));
    CHECK(reported(run(2), fault::in_flight, {"has not been waited for"}));
    CHECK(reported(run(3), fault::deadlock, {"mbarrier.try_wait"}));
    CHECK_FALSE(run(4).clean());
    CHECK(reported(run(5), fault::in_flight, {"reads 4 bytes", "has not been waited for"}));
  });
}

TEST_CASE("bulk stores: proxy fence, barrier, reuse of the source, end of the block") {
  fixture::machine m("checks_hopper.sm_90a");
  array<int> out(m, 64);
  m.dynamic_shared = 1024;
  for_orders(m, [&] {
    auto const run = [&](int bug) { return m.run("bulk_store", {1}, {64}, out.data(), bug); };
    auto const good = run(0);
    CHECK_MESSAGE(good.clean(), good.text());
    CHECK(out[0] == 0);
    CHECK(out[63] == 63);
    CHECK(reported(run(1),
                   fault::proxy,
                   {"reads 256 bytes at shared+0x0 through the async proxy", "fence.proxy.async"}));
    CHECK_FALSE(run(2).clean());
    CHECK(reported(
      run(3), fault::race, {"writes 4 bytes at shared+0x0", "a bulk copy, which read it"}));
    CHECK(reported(run(4), fault::in_flight, {"still in flight when the block ends"}));
    auto const late = run(5);
    CHECK_MESSAGE(late.clean(), late.text());
  });
}

TEST_CASE("a slot is freed when all lanes have read it, and filled when it is free") {
  fixture::machine m("checks_hopper.sm_90a");
  array<int> in(m, whole(128)), out(m, 32);
  m.dynamic_shared = 1024;
  for_orders(m, [&] {
    auto const run = [&](int bug) {
      return m.run("slot", {1}, {64}, in.data(), out.data(), 4, bug);
    };
    auto const good = run(0);
    CHECK_MESSAGE(good.clean(), good.text());
    CHECK(out[1] == 1 + 33 + 65 + 97);
    CHECK(reported(
      run(1), fault::race, {"cp.async.bulk", "writes 128 bytes at shared+0x0", "which read it"}));
    CHECK_FALSE(run(2).clean());
  });
}

TEST_CASE("wgmma: what must happen before it and what must wait for it") {
  fixture::machine m("checks_hopper.sm_90a");
  array<float> out(m, 128);
  m.dynamic_shared = 4096;
  auto const good = m.run("product_0", {1}, {128}, out.data());
  CHECK_MESSAGE(good.clean(), good.text());
  CHECK(out[77] == 64.0F);
  auto const run = [&](char const* kernel) { return m.run(kernel, {1}, {128}, out.data()); };
  CHECK(reported(run("product_1"), fault::proxy, {"wgmma.mma_async", "fence.proxy.async"}));
  CHECK_FALSE(run("product_2").clean());
  CHECK(reported(run("product_3"), fault::invalid, {"before any wgmma.fence"}));
  CHECK(reported(run("product_4"), fault::in_flight, {"touches an accumulator"}));
  CHECK(reported(run("product_5"), fault::race, {"st.", "a wgmma of warp", "which read it"}));
}

TEST_CASE("mbarriers that are none, or get too many arrivals") {
  fixture::machine m("checks_hopper.sm_90a");
  m.dynamic_shared = 64;
  CHECK(reported(m.run("no_mbarrier", {1}, {32}),
                 fault::barrier,
                 {"shared+0x0 as an mbarrier", "none has been initialised"}));
  CHECK(reported(m.run("too_many_arrivals", {1}, {32}),
                 fault::barrier,
                 {"arrives 21 times", "20 more arrivals"}));
}
