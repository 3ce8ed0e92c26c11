// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

TEST_CASE("every stage has one device and every device its number of stages") {
  for (pp::placement const where : {pp::placement::looped, pp::placement::wave})
    for (int devices = 1; devices <= 7; ++devices)
      for (int local = 1; local <= 4; ++local) {
        pp::shape const extents{
          .devices = devices, .microbatches = 2, .stages_per_device = local, .where = where};
        std::vector<int> held(static_cast<std::size_t>(devices));
        for (int stage = 0; stage < extents.stages(); ++stage)
          ++held[static_cast<std::size_t>(pp::device_of(extents, stage))];
        for (int const count : held)
          CHECK(count == local);
        for (int device = 0; device < devices; ++device)
          for (int k = 0; k < local; ++k)
            CHECK(pp::device_of(extents, extents.stage_of(device, k)) == device);
      }
}

TEST_CASE("a wave of two legs is a V: the turn stays on one device") {
  pp::shape const extents{.devices = 4, .stages_per_device = 2, .where = pp::placement::wave};
  int const expected[] = {0, 1, 2, 3, 3, 2, 1, 0};
  for (int stage = 0; stage < 8; ++stage)
    CHECK(pp::device_of(extents, stage) == expected[stage]);
}

TEST_CASE("the two directions of a bidirectional pipeline mirror each other") {
  pp::shape const extents{.devices = 4, .microbatches = 8, .where = pp::placement::bidirectional};
  CHECK(pp::device_of(extents, 1, 3) == 1);
  CHECK(pp::device_of(extents, 1, 4) == 2);
  CHECK(pp::detail::row_capacity(pp::pipeline_view{extents}) == 3 * 2 * 4);
}

TEST_CASE("a custom placement may have any number of stages") {
  pp::shape const extents{
    .devices = 4, .stages_per_device = 2, .where = pp::placement::custom, .extra_stages = 1};
  CHECK(extents.stages() == 9);
  CHECK_NOTHROW(pp::detail::check_extents(extents));
  std::uint16_t const holders[] = {0, 1, 2, 3, 0, 1, 2, 3, 3};
  pp::pipeline_view const over{extents, &pp::training, holders};
  CHECK(pp::detail::row_capacity(over) == 3 * pp::training.rows); // three stages, one microbatch
}

TEST_CASE("the room of a row counts the microbatches of a route alone") {
  pp::shape const extents{
    .devices = 2, .microbatches = 7, .where = pp::placement::custom, .custom_routes = 2};
  std::uint16_t const holders[] = {0, 1, 1, 0};
  CHECK(pp::detail::row_capacity({extents, &pp::training, holders}) == 2 * 4 * pp::training.rows);
}

TEST_CASE("pass_at undoes pass_index") {
  pp::pipeline_view const over{
    {.devices = 3, .microbatches = 4, .chunks = 5, .stages_per_device = 2}};
  for (int index = 0; index < over.pass_indices(); ++index)
    CHECK(pp::detail::pass_index(over, pp::detail::pass_at(over, index)) == index);
}

TEST_CASE("extents that make no pipeline are named") {
  CHECK_THROWS_WITH_AS(pp::detail::check_extents({.devices = 0}),
                       "shape: the number of devices must be at least 1",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(pp::detail::check_extents({.microbatches = -3}),
                       "shape: the number of microbatches must be at least 1",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(pp::detail::check_extents({.chunks = 0}),
                       "shape: the number of chunks must be at least 1",
                       std::invalid_argument);
  CHECK_THROWS_AS(pp::detail::check_extents({.devices = 1000, .stages_per_device = 1000}),
                  std::invalid_argument);
  CHECK_THROWS_AS(pp::detail::check_extents({.devices = 60000, .microbatches = 60000}),
                  std::invalid_argument);
  char const* const extra = "shape: more or fewer stages than P V are for placement::custom, "
                            "whose table says where they are";
  CHECK_THROWS_WITH_AS(
    pp::detail::check_extents({.devices = 2, .extra_stages = 1}), extra, std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    pp::detail::check_extents({.devices = 2, .extra_stages = -1}), extra, std::invalid_argument);
  CHECK_NOTHROW(
    pp::detail::check_extents({.devices = 2, .where = pp::placement::custom, .extra_stages = -1}));
  for (int const none : {-2, -3, -2'000'000'000})
    CHECK_THROWS_WITH_AS(pp::detail::check_extents(
                           {.devices = 2, .where = pp::placement::custom, .extra_stages = none}),
                         "shape: fewer stages than P V leave none; keep one at least",
                         std::invalid_argument);
  CHECK_THROWS_AS(pp::detail::check_extents(
                    {.devices = 60000, .where = pp::placement::custom, .extra_stages = 6000}),
                  std::invalid_argument);
  CHECK_THROWS_WITH_AS(pp::detail::check_extents({.chunks = 65536}),
                       "shape: at most 65535 chunks are supported",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(pp::detail::check_extents({.microbatches = 65536}),
                       "shape: at most 65535 microbatches are supported",
                       std::invalid_argument);
  CHECK_NOTHROW(pp::detail::check_extents({.devices = 1024, .microbatches = 8192}));
}
