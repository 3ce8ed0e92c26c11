// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stages that have every member which plans call, and five plans that call them all: for
//! tests of calls that never return.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace support {

//! Does not return.
[[noreturn]] inline void hang() {
  for (;;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

//! The same of a stage, and says on a line when it began: nanoseconds of steady_clock and the
//! stage.
[[noreturn]] inline void hang_in(int stage) {
  std::printf("hangs %lld %d\n",
              static_cast<long long>(std::chrono::steady_clock::now().time_since_epoch().count()),
              stage);
  std::fflush(stdout);
  hang();
}

//! A member that plans call, and the words for it in the sentence of a step that fails there, which
//! the number of the stage follows.
struct stage_member {
  std::string_view name;
  std::string_view words;
};

inline constexpr stage_member stage_members[] = {
  {"forward", "forward of stage "},
  {"recompute", "recompute of stage "},
  {"backward", "backward of stage "},
  {"backward_input", "of stage "},
  {"backward_weight", "of stage "},
  {"forward_backward", "of stage "}, // a pair is named by the pass that stands first in the row
  {"gather_weights", "of stage "},
  {"use_weights", "of stage "},
  {"collect_gradients", "of stage "},
  {"scatter_gradients", "of stage "},
  {"gradients_ready", "of stage "}, // is named by the pass that it follows
  {"copied_gradient", "gradient of a copy of stage "},
  {"add_copies", "addition of the gradients of all copies of stage "},
  {"tied_gradient", "tied gradient of stage "},
  {"add_tied", "addition of the tied gradients on stage "},
  {"contribute", "totals of stage "},
  {"optimizer_step", "optimizer step of stage "},
  {"accepts", "optimizer step of stage "},
  {"roll_back", "validation of the optimizer step of stage "},
  {"begin_iteration", "validation of the optimizer step of stage "}};

//! @return nothing where there is no such member
inline stage_member const* find_member(std::string_view name) {
  for (stage_member const& each : stage_members)
    if (each.name == name)
      return &each;
  return nullptr;
}

//! A stage that tells its observer of every call, `visit(context, name)`, and asks it to fill its
//! row of the totals with bytes that are not zero, `fill(context, output)`.
template <class Observer>
struct observed_stage {
  static constexpr bool takes_chunks = true;
  Observer* observer = nullptr;

  void forward(pipelining::context const& at, pipelining::input, pipelining::output) {
    observer->visit(at, "forward");
  }
  void recompute(pipelining::context const& at, pipelining::input) {
    observer->visit(at, "recompute");
  }
  void backward(pipelining::context const& at, pipelining::input, pipelining::output) {
    observer->visit(at, "backward");
  }
  void backward_input(pipelining::context const& at, pipelining::input, pipelining::output) {
    observer->visit(at, "backward_input");
  }
  void backward_weight(pipelining::context const& at) { observer->visit(at, "backward_weight"); }
  void forward_backward(pipelining::composite_half const& forward,
                        pipelining::composite_half const&,
                        observed_stage&) {
    observer->visit(forward.where, "forward_backward");
  }
  void gather_weights(pipelining::context const& at, pipelining::output) {
    observer->visit(at, "gather_weights");
  }
  void use_weights(pipelining::context const& at, pipelining::input) {
    observer->visit(at, "use_weights");
  }
  void collect_gradients(pipelining::context const& at, pipelining::output) {
    observer->visit(at, "collect_gradients");
  }
  void scatter_gradients(pipelining::context const& at, pipelining::input) {
    observer->visit(at, "scatter_gradients");
  }
  void gradients_ready(pipelining::context const& at) { observer->visit(at, "gradients_ready"); }
  void copied_gradient(pipelining::context const& at, pipelining::output) {
    observer->visit(at, "copied_gradient");
  }
  void add_copies(pipelining::context const& at, pipelining::totals const&) {
    observer->visit(at, "add_copies");
  }
  void tied_gradient(pipelining::context const& at, pipelining::output) {
    observer->visit(at, "tied_gradient");
  }
  void add_tied(pipelining::context const& at, pipelining::input, pipelining::input) {
    observer->visit(at, "add_tied");
  }
  void contribute(pipelining::context const& at, pipelining::output out) {
    observer->visit(at, "contribute");
    observer->fill(at, out);
  }
  void optimizer_step(pipelining::context const& at, pipelining::totals const&) {
    observer->visit(at, "optimizer_step");
  }
  //! Accepts the rows of a part of the stages, not those of all: so each iteration begins again.
  bool accepts(pipelining::context const& at, pipelining::totals const& all) {
    observer->visit(at, "accepts");
    int filled = 0;
    for (int row = 0; row < all.rows; ++row)
      filled += all.row<std::uint8_t>(row)[0] != 0 ? 1 : 0;
    return filled < all.rows;
  }
  void roll_back(pipelining::context const& at, bool) { observer->visit(at, "roll_back"); }
  void begin_iteration(pipelining::context const& at) { observer->visit(at, "begin_iteration"); }
};

inline constexpr std::string_view every_call_names[] = {
  "recompute", "validated", "v_shape", "copies", "sharded"};

//! Plans that call members: one, or those of a loop whose steps are validated afterwards.
struct calling_plans {
  pipelining::plan first{};
  std::optional<pipelining::detail::post_validated_plans> validated{};
};

//! The plans of a name, on two devices.
inline calling_plans plans_that_call(std::string_view name) {
  namespace pp = pipelining;
  constexpr pp::uniform_sizes sizes{.message = 8,
                                    .activation = 8,
                                    .weight_input = 8,
                                    .tied_bytes = 8,
                                    .totals_bytes = 8,
                                    .copied_gradient = 8};
  if (name == "recompute")
    return {pp::lower(pp::make_timetable<pp::with_recompute<pp::OneFOneB>>({2, 2}), sizes)};
  if (name == "v_shape")
    return {pp::lower(pp::make_timetable<pp::VHalf>({2, 2}), sizes)};
  if (name == "sharded")
    return {
      pp::lower(pp::make_timetable<pp::with_sharded_weights<pp::Interleaved<2>>>({2, 2}), sizes)};
  if (name == "copies")
    return {pp::lower(pp::make_timetable<pp::DualPipe<>>({2, 4}), sizes)};
  if (name != "validated")
    throw std::invalid_argument("there are no such plans");
  auto plans = pp::lower_post_validated(pp::make_timetable<pp::ZeroBubbleH1>({2, 2}), sizes);
  pp::plan first = plans.first;
  return {std::move(first), std::move(plans)};
}

//! Two steps with plans of which the runner has the first.
template <class Runner>
void make_two_steps(Runner& runner, calling_plans plans) {
  if (!plans.validated) {
    runner.step();
    runner.step();
    return;
  }
  pipelining::post_validated_steps<Runner> steps(runner);
  auto const numbers = steps.add(std::move(*plans.validated));
  steps.step(numbers);
  steps.step(numbers);
}

} // namespace support
