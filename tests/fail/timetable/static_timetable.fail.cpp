// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{timetable: a pass waits for ever: the order of passes is circular}}
// case 1: expected-error {{timetable_breaks<.*waits_for_ever, misplaced, .*device<0>, .*entry<2>, .*backward>, .*stage<0>, .*microbatch<0>}}
// case 2: expected-error {{timetable: a pass is on a device that does not hold its stage}}
// case 2: expected-error {{timetable_breaks<.*wrong_device.*device<1>}}
// case 3: expected-error {{timetable: a pass is missing}}
// case 3: expected-error {{timetable_breaks<.*missing_pass}}
// case 4: expected-error {{timetable: a pass names a stage, microbatch or chunk that the pipeline does not have}}
// case 4: expected-error {{timetable_breaks<.*unknown_pass.*device<1>.*entry<0>.*stage<7>}}
// case 5: expected-error {{timetable: an overlapped pass does not follow the other half of its pair}}
// case 5: expected-error {{timetable_breaks<.*lone_half.*device<1>.*entry<0>}}
// case 6: expected-error {{timetable: a pass stands twice}}
// case 6: expected-error {{timetable_breaks<.*repeated_pass.*device<1>.*entry<1>}}
// case 7: expected-error {{timetable: the kinds of passes of a unit do not go together}}
// case 7: expected-error {{timetable_breaks<.*wrong_kinds}}
// case 8: expected-error {{timetable: a pass starts before the pass before it on the same device has ended}}
// case 9: expected-error {{timetable: a pass starts before a pass that it depends on has ended and arrived}}
// case 10: expected-error {{timetable: a device holds more activations than the limit allows}}
// case 11: expected-error {{timetable: the compiler makes timetables of stages in a chain; make those of a stage graph with make_timetable}}
// case 12: expected-error {{timetable: a pass stands where what it needs of its stage is not there}}
// case 12: expected-error {{timetable_breaks<.*not_there, misplaced, .*device<0>, .*entry<0>, .*forward>}}
// case 13: expected-error {{timetable: a device has more passes than its stages can have: each unit has one forward and one backward}}
// case 13: expected-error {{timetable_breaks<.*too_many_passes, misplaced, .*device<1>, .*entry<12>, .*backward>, .*stage<1>, .*microbatch<3>}}
// case 13: expected-error {{(?s)\A([^\n]*\n){1,30}\Z}}
// clang-format on
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>

namespace pp = pipelining;

struct misplaced {
#if FAIL_CASE == 7
  static constexpr pp::flow const& declared = pp::detail::frugal_training<>;
#elif FAIL_CASE == 12
  static constexpr pp::flow declared =
    pp::detail::shard_weights(pp::training); // and nothing is gathered
#endif
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
#elif FAIL_CASE == 4
    out.passes[0].stage = 7;
#elif FAIL_CASE == 5
    out.passes[0].overlapped = true;
#elif FAIL_CASE == 6
    out.passes[1] = out.passes[0];
#elif FAIL_CASE == 13
    for (int again = 0; again < 20; ++again)
      out.backward(1, 3);
#elif FAIL_CASE == 7
    out.passes[out.count] = out.passes[0]; // asks for what has not been copied
    out.passes[out.count++].kind = pp::pass_kind::copy_request;
#endif
  }
};

constexpr auto table = pp::timetable<misplaced, 2, 4>;

// What only times given from outside, or a limit, can break.
#if FAIL_CASE == 8
template struct pp::detail::
  diagnosis<pp::report{pp::report::rule::overlaps, 0, 1, {}, {}}, misplaced, 2, 4>;
#elif FAIL_CASE == 9
template struct pp::detail::
  diagnosis<pp::report{pp::report::rule::before_dependency, 0, 1, {}, {}}, misplaced, 2, 4>;
#elif FAIL_CASE == 10
template struct pp::detail::
  diagnosis<pp::report{pp::report::rule::over_memory, 0, 1, {}, {}}, misplaced, 2, 4>;
#elif FAIL_CASE == 11
constexpr auto graph = pp::timetable<pp::with_stage_graph<pp::OneFOneB>, 2, 4>;
#endif

int main() {
  return pp::verify(table) ? 0 : 1;
}
