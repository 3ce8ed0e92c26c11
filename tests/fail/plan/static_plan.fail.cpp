// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{plan: a group of messages is not the same at both ends}}
// case 1: expected-error {{plan_breaks<.*bad_group, .*stands_at<.*device<0>, .*item_number<[0-9]+>, .*receive, .*backward>, .*stage<1>, .*microbatch<1>}}
// case 2: expected-error {{plan: devices wait for each other in a circle}}
// case 2: expected-error {{plan_breaks<.*circular, .*circle<.*stands_at<.*device<0>, .*item_number<3>, .*send, .*forward.*stage<0>, .*microbatch<1>.*stands_at<.*device<1>, .*item_number<3>, .*send, .*backward.*stage<1>, .*microbatch<0>}}
// case 3: expected-error {{plan: an arena is over the memory limit}}
// case 3: expected-error {{plan_over_budget<.*device<0>.*memory_limit<2047.*bytes<2048.*activation.*slots<2>.*bytes<1024.*forward.*stage<0>.*microbatch<1>}}
// clang-format on
#include <pipe/plan/static_plan.hpp>
#include <pipe/schedule/one_f_one_b.hpp>

namespace pp = pipelining;

// A plan of 1F1B with a mistake: a group in two places, or device 1 sends its gradient before it takes
// the activation that device 0 wants to send first.
struct mistaken {
  using sound = pp::detail::static_lowering<pp::detail::timed<pp::OneFOneB, 2, 2, pp::unit_cost>,
                                            pp::communicator_per_edge,
                                            pp::unsized>;
  struct changed {
    pp::item items[sound::total.items];
  };
  static constexpr changed value = [] {
    changed result{};
    for (int i = 0; i < sound::total.items; ++i)
      result.items[i] = sound::value.items[i];
#if FAIL_CASE == 2
    int receive = sound::value.offsets[1] + 1;
    while (result.items[receive].what != pp::operation::receive)
      ++receive;
    for (; result.items[receive].what != pp::operation::send; ++receive) {
      pp::item const moved = result.items[receive];
      result.items[receive] = result.items[receive + 1];
      result.items[receive + 1] = moved;
      if (result.items[receive].what == pp::operation::send)
        break;
    }
    for (pp::item& step : result.items)
      step.wait_count = 0;
#elif FAIL_CASE == 1
    // The last message of device 0 claims to start with its first.
    int last = sound::value.offsets[1] - 1;
    while (result.items[last].what == pp::operation::run)
      --last;
    result.items[last].group = 0;
#endif
    return result;
  }();
  static constexpr pp::plan_view view = [] {
    pp::plan_view result = sound::view;
    result.items = value.items;
    return result;
  }();
};

struct kept {
  static constexpr pp::uniform_sizes value{.activation = 1000};
};

constexpr pp::detail::plan_diagnosis<mistaken> second{};
#if FAIL_CASE == 3
constexpr auto third =
  pp::lower_static<pp::communicator_per_pair, kept, 2047>(pp::timetable<pp::OneFOneB, 2, 4>);
#else
constexpr auto third =
  pp::lower_static<pp::communicator_per_pair, kept, 2048>(pp::timetable<pp::OneFOneB, 2, 4>);
#endif

int main() {
  (void)second;
  return pp::prove(third) ? 0 : 1;
}
