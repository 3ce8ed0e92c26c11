// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/shades.hpp>
#include <pipe/flow/training.hpp>

#include <doctest/doctest.h>

#include <string_view>

namespace pp = pipelining;

namespace {

int brightness(pp::detail::colour c) {
  return c.red + c.green + c.blue;
}

} // namespace

TEST_CASE("chunks and stages of a device go from light to dark, stages first") {
  for (pp::pass_kind const kind : {pp::pass_kind::forward,
                                   pp::pass_kind::backward,
                                   pp::pass_kind::backward_input,
                                   pp::pass_kind::backward_weight}) {
    for (int local_count = 1; local_count <= 4; ++local_count) {
      for (int chunks = 1; chunks <= 8; ++chunks) {
        int before = 3 * 256;
        for (int shade = 0; shade < local_count * chunks; ++shade) {
          pp::detail::colour const now = pp::detail::shade(
            pp::training[kind], shade / chunks, local_count, shade % chunks, chunks);
          CAPTURE(local_count);
          CAPTURE(chunks);
          CHECK(brightness(now) < before);
          before = brightness(now);
        }
      }
    }
  }
}

TEST_CASE("colours in digits, and the text that is legible on them") {
  CHECK(std::string_view(pp::detail::hexadecimal({0, 171, 255}).data()) == "#00abff");
  CHECK(pp::detail::text_is_light_on({0, 0, 0}));
  CHECK(pp::detail::text_is_light_on({120, 50, 0}));
  CHECK_FALSE(pp::detail::text_is_light_on({255, 255, 255}));
  CHECK_FALSE(
    pp::detail::text_is_light_on(pp::detail::plain_colour(pp::training[pp::pass_kind::forward])));
}
