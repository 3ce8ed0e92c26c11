// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: to invent a schedule, have it checked, measured, proven and drawn.
// How to run: build/release/bin/02_own_schedule > halves.svg
// Expected output: the picture on standard output, the figures on standard error
#include <pipe/pipe.hpp>
#include <pipe/view.hpp>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace pp = pipelining;

// [snippet schedule]
// Two halves: all forward passes of half of the microbatches, then their backward passes, then the
// other half.
struct Halves {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    if (microbatches % 2 != 0)
      throw std::invalid_argument("Halves: the number of microbatches must be even");
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    int const half = extents.microbatches / 2;
    for (int first = 0; first < extents.microbatches; first += half) {
      for (int m = first; m < first + half; ++m)
        out.forward(device, m);
      for (int m = first; m < first + half; ++m)
        out.backward(device, m);
    }
  }
};
static_assert(pp::verify(
  pp::timetable<Halves, 4, 8>)); // a broken order does not compile; the error names the pass
// [snippet schedule]

int main() {
  pp::uniform_cost const cost{
    .forward = 10, .backward_input = 12, .backward_weight = 8, .communication = 1};
  auto const table = pp::make_timetable<Halves>({4, 8}, cost);
  pp::plan const plan = pp::lower(table); // throws, with the cycle, if it could deadlock
  std::fprintf(stderr,
               "bubble %.1f %%, at most %d microbatches in flight, %d messages\n",
               100 * pp::bubble_rate(table),
               pp::peak_activation_chunks(table, 0),
               static_cast<int>(plan.items.size() - table.passes.size()) / 2);
  std::string picture;
  pp::write_svg(picture, table, {.schedule = "halves", .cost = cost});
  std::fputs(picture.c_str(), stdout);
  return pp::peak_activation_chunks(table, 0) == 4 ? 0 : 1;
}
