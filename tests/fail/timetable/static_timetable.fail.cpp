// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{timetable: a pass waits for ever: the order of passes is circular}}
// case 1: expected-error {{timetable_breaks<.*waits_for_ever, misplaced, .*device<0>, .*entry<2>, .*backward>, .*stage<0>, .*microbatch<0>}}
// case 2: expected-error {{timetable: a pass is on a device that does not hold its stage}}
// case 2: expected-error {{timetable_breaks<.*wrong_device.*device<1>}}
// case 3: expected-error {{timetable: a pass is missing}}
// case 3: expected-error {{timetable_breaks<.*missing_pass}}
// clang-format on
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/static_timetable.hpp>

namespace pp = pipelining;

struct misplaced {
  static constexpr pp::shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches};
  }
  static constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) {
    pp::OneFOneB{}.order(extents, device, out);
    if (device != 1)
      return;
#if FAIL_CASE == 1
    pp::pass const first = out.passes[0];
    out.passes[0] = out.passes[1];
    out.passes[1] = first;
#elif FAIL_CASE == 2
    out.passes[0].stage = 0;
#elif FAIL_CASE == 3
    --out.count;
#endif
  }
};

constexpr auto table = pp::timetable<misplaced, 2, 4>;

int main() {
  return pp::verify(table) ? 0 : 1;
}
