// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{run: the stage has a member gradients_ready, but it would never be called; declare it as gradients_ready\(pipelining::context const&\)}}
// case 2: expected-error {{run: the stage has a member tied_gradient or add_tied, but they would never be called; declare both}}
// case 3: expected-error {{run: the stage has a member contribute, but it would never be called; declare it as contribute\(pipelining::context const&, pipelining::output\)}}
// case 4: expected-error {{run: the stage has a member optimizer_step, but it would never be called; declare it as optimizer_step\(pipelining::context const&, pipelining::totals const&\)}}
// clang-format on
#include <pipe/run/stage.hpp>

namespace pp = pipelining;

struct block {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
#if FAIL_CASE == 1
  void gradients_ready() {}
#elif FAIL_CASE == 2
  void add_tied(pp::context const&, pp::input, pp::input) {}
#elif FAIL_CASE == 3
  void contribute(pp::context const&, pp::input) {}
#elif FAIL_CASE == 4
  void optimizer_step(pp::totals const&) {}
#else
  void gradients_ready(pp::context const&) {}
  void contribute(pp::context const&, pp::output) {}
  void optimizer_step(pp::context const&, pp::totals const&) {}
#endif
};

static_assert(pp::detail::check_stage<block>::good);
