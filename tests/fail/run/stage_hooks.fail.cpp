// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{run: the stage has a member gradients_ready, but it would never be called; declare it as gradients_ready\(pipelining::context const&\)}}
// case 2: expected-error {{run: the stage has a member tied_gradient or add_tied, but they would never be called; declare both}}
// case 3: expected-error {{run: the stage has a member contribute, but it would never be called; declare it as contribute\(pipelining::context const&, pipelining::output\)}}
// case 4: expected-error {{run: the stage has a member optimizer_step, but it would never be called; declare it as optimizer_step\(pipelining::context const&, pipelining::totals const&\)}}
// case 5: expected-error {{run: a stage needs forward\(pipelining::context const&, pipelining::input, pipelining::output\)}}
// case 6: expected-error {{run: a stage needs backward\(context const&, input, output\), or both backward_input\(context const&, input, output\) and backward_weight\(context const&\)}}
// case 7: expected-error {{run: a stage needs backward\(context const&, input, output\), or both}}
// case 8: expected-error {{run: the stage has a member recompute, but it would never be called; declare it as recompute\(pipelining::context const&, pipelining::input\)}}
// case 9: expected-error {{run: the stage has a member gather_weights or use_weights, but they would never be called; declare both}}
// case 10: expected-error {{run: the stage has a member collect_gradients or scatter_gradients, but they would never be called; declare both}}
// case 11: expected-error {{run: the stage has a member accepts, roll_back or begin_iteration, but they would never be called; declare all next to optimizer_step}}
// case 12: expected-error {{run: the stage has a member tied_gradient or add_tied, but they would never be called; declare both}}
// case 13: expected-error {{run: the stage has a member gather_weights or use_weights, but they would never be called; declare both}}
// case 14: expected-error {{run: the stage has a member accepts, roll_back or begin_iteration, but they would never be called; declare all next to optimizer_step}}
// case 15: expected-error {{run: the stage has a member contribute, but it would never be called; declare it as contribute}}
// case 16: expected-error {{run: the stage has a member accepts, roll_back or begin_iteration, but they would never be called; declare all next to optimizer_step}}
// case 17: expected-error {{run: the stage has a member accepts, roll_back or begin_iteration, but they would never be called; declare all next to optimizer_step}}
// case 18: expected-error {{run: the stage has a member memory_moved, but it would never be called; declare it as memory_moved\(pipelining::context const&\)}}
// case 19: expected-error {{run: the stage has a member begin_pass or finish_pass, but they would never be called; declare both}}
// case 20: expected-error {{run: the stage has a member begin_pass or finish_pass, but they would never be called; declare both}}
// clang-format on
#include <pipe/run/stage.hpp>

namespace pp = pipelining;

// What a base class brings is a hook like the stage's own.
struct layer {
#if FAIL_CASE == 15
  static bool contribute(pp::context const&, pp::totals const&, float*) {
    return true;
  }
#endif
};

struct block final : layer {
#if FAIL_CASE == 5
  void forward(pp::input, pp::output) {}
#else
  void forward(pp::context const&, pp::input, pp::output) {}
#endif
#if FAIL_CASE == 7
  void backward_input(pp::context const&, pp::input, pp::output) {}
#elif FAIL_CASE == 6
  void backward(pp::context const&, pp::input) {}
#else
  void backward(pp::context const&, pp::input, pp::output) {}
#endif
#if FAIL_CASE == 1
  void gradients_ready(pp::context const&, pp::output) {}
#elif FAIL_CASE == 2
  void add_tied(pp::context const&, pp::input, pp::input) {}
#elif FAIL_CASE == 3
  void contribute(pp::context const&, pp::input) {}
#elif FAIL_CASE == 4
  void optimizer_step(pp::context, pp::totals&) {}
#elif FAIL_CASE == 12
  void tied_gradient(pp::context const&, pp::input) {}
#elif FAIL_CASE == 13
  void gather_weights(int) {}
  void use_weights(pp::context&) {}
#elif FAIL_CASE == 14
  void roll_back(pp::context const&) {}
#elif FAIL_CASE == 8
  void recompute(pp::context const&) {}
#elif FAIL_CASE == 9
  void gather_weights(pp::context const&, pp::output) {}
#elif FAIL_CASE == 10
  void collect_gradients(pp::context const&, pp::output) {}
  void scatter_gradients(pp::context const&, pp::output) {}
#elif FAIL_CASE == 11
  void optimizer_step(pp::context const&, pp::totals const&) {}
  bool accepts(pp::context const&, pp::totals const&) {
    return true;
  }
  void begin_iteration(pp::context const&) {}
#elif FAIL_CASE == 16
  void optimizer_step(pp::context const&, pp::totals const&) {}
  bool accepts(pp::context const&, pp::totals const&) {
    return true;
  }
  void roll_back(pp::context const&, bool) {}
#elif FAIL_CASE == 17
  void begin_iteration(pp::context const&) {}
#elif FAIL_CASE == 18
  void memory_moved(pp::context const&, int) {}
#elif FAIL_CASE == 19
  bool begin_pass(pp::pass_kind, pp::context const&, pp::input, pp::output) {
    return true;
  }
#elif FAIL_CASE == 20
  void begin_pass(pp::pass_kind, pp::context const&, pp::input, pp::output) {}
  void finish_pass(pp::pass_kind, pp::context const&, pp::input, pp::output) {}
#elif FAIL_CASE != 15
  bool begin_pass(pp::pass_kind, pp::context const&, pp::input, pp::output) {
    return true;
  }
  void finish_pass(pp::pass_kind, pp::context const&, pp::input, pp::output) {}
  void memory_moved(pp::context const&) {}
  void recompute(pp::context const&, pp::input) {}
  void gradients_ready(pp::context const&) {}
  void contribute(pp::context const&, pp::output) {}
  void optimizer_step(pp::context const&, pp::totals const&) {}
  void gather_weights(pp::context const&, pp::output) {}
  void use_weights(pp::context const&, pp::input) {}
  void collect_gradients(pp::context const&, pp::output) {}
  void scatter_gradients(pp::context const&, pp::input) {}
  bool accepts(pp::context const&, pp::totals const&) {
    return true;
  }
  void roll_back(pp::context const&, bool) {}
  void begin_iteration(pp::context const&) {}
#endif
};

static_assert(pp::detail::check_stage<block>::good);
