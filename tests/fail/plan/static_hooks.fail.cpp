// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{plan: tied weights and totals need one copy of every stage, but this placement keeps two; add up their gradients in gradients_ready, and step the optimizer after the iteration}}
// case 2: expected-error {{plan: a step uses gradients that are not complete when it runs}}
// case 2: expected-error {{plan_breaks<.*incomplete, .*early.*stands_at<.*device<0>, .*run, .*about<.*tied_gradient>, .*stage<0>}}
// clang-format on
#include <pipe/plan/static_plan.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>

namespace pp = pipelining;

struct with_totals {
#if FAIL_CASE == 1
  static constexpr pp::uniform_sizes value{.totals_bytes = 8};
#else
  static constexpr pp::uniform_sizes value{};
#endif
};
constexpr auto two_copies = pp::lower_static<pp::communicator_per_pair, with_totals>(
  pp::timetable<pp::DualPipe<>, 2, 4>);

struct tied {
  static constexpr pp::uniform_sizes value{.tied_bytes = 8};
};

// The last stage hands its tied gradient over before the last pass that adds to it.
struct early {
  using sound = pp::detail::static_lowering<pp::detail::timed<pp::OneFOneB, 2, 2, pp::unit_cost>,
                                            pp::communicator_per_pair,
                                            tied>;
  struct changed {
    pp::item items[sound::total.items];
  };
  static constexpr changed value = [] {
    changed result{};
    for (int i = 0; i < sound::total.items; ++i) {
      result.items[i] = sound::value.items[i];
#if FAIL_CASE == 2
      result.items[i].completes_stage = false;
#endif
    }
    return result;
  }();
  static constexpr pp::plan_view view = [] {
    pp::plan_view result = sound::view;
    result.items = value.items;
    return result;
  }();
};
constexpr pp::detail::plan_diagnosis<early> second{};

int main() {
  (void)second;
  return pp::prove(two_copies) ? 0 : 1;
}
