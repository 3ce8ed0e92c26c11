// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A flow that is a constant is refused with the sentences of tests/unit/flow/flow.test.cpp.
// clang-format off
// case 1: expected-error {{names a pool that flows do not have; pools are the numbers of slot_class, without tied_gradient, copied_gradient and totals}}
// case 2: expected-error {{two effects on one datum are only for memory to work in, which a kind makes or adds to, and then frees; leave one of them out, or change their order}}
// case 3: expected-error {{has an effect on a datum that does not exist; data are numbered from 0 on in the order in which they are declared}}
// case 4: expected-error {{only a datum that is there once per microbatch is added to; write makes, or make the datum per::microbatch}}
// clang-format on
#include <pipe/flow/declare.hpp>

namespace pp = pipelining;
using pp::does;

#ifndef FAIL_CASE
#define FAIL_CASE 0
#endif

constexpr pp::flow declared = pp::declare(
  {{.word = "made", .pool = FAIL_CASE == 1 ? 200 : 0, .wanted = true}},
  {{pp::pass_kind::forward,
    pp::declare_kind('F',
                     "forward",
                     pp::engine::compute,
                     pp::stage_call::perform,
                     {{FAIL_CASE == 4 ? does::adds_to : does::makes, FAIL_CASE == 3 ? 7 : 0},
                      {FAIL_CASE == 2 ? does::makes : does::frees, 0}})}});

int main() {
  return declared.rows;
}
