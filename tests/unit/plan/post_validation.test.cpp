// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The two chains of an optimizer's step that is validated in the iteration that follows.
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/rendezvous_machine.hpp"

namespace pp = pipelining;
using pp::detail::subject;

namespace {

constexpr pp::uniform_sizes with_totals{.message = 64, .tied_bytes = 1000, .totals_bytes = 12};

//! The items of a device about one subject, as their numbers in its program.
std::vector<int> about(pp::plan const& work, int device, subject what) {
  std::vector<int> found;
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].about == what)
      found.push_back(static_cast<int>(i));
  return found;
}

//! The rule in the words of the reference: what runs before the validation is a forward pass of the
//! first chunk of layers on its device.
void check_early_passes(pp::plan const& work) {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    int lowest = 0;
    while (pp::device_of(work, lowest) != device)
      ++lowest;
    int const first = about(work, device, subject::validation).front();
    for (int i = 0; i < first; ++i) {
      pp::item const& step = work.program_of(device)[static_cast<std::size_t>(i)];
      if (step.what == pp::operation::run) {
        CHECK(step.work.kind == pp::pass_kind::forward);
        CHECK(step.work.stage == lowest);
      }
    }
  }
}

template <class Policy>
void check_sound_steps(pp::timetable_view table, bool drain_in_all_orders) {
  auto const plans = pp::lower_post_validated<Policy>(table, with_totals); // each is proven
  CHECK(pp::prove(plans.first, plans.steady));
  CHECK(pp::prove(plans.steady, plans.steady));
  CHECK(pp::prove(plans.steady, plans.last));
  CHECK(pp::prove(plans.first, plans.last));
  CHECK(pp::prove(plans.last, plans.first));
  auto const at_once = pp::lower<Policy>(table, with_totals);
  CHECK(pp::prove(plans.last, at_once));
  CHECK(pp::prove(at_once, plans.first));
  CHECK(pp::prove(plans.first, at_once).broken == pp::proof::rule::not_validated);
  CHECK(pp::prove(plans.steady, plans.first).broken == pp::proof::rule::not_validated);
  CHECK(pp::prove(at_once, plans.steady).broken == pp::proof::rule::not_validated);
  check_early_passes(plans.steady);
  if (!drain_in_all_orders)
    return;
  for (pp::plan const* work : {&plans.first, &plans.steady, &plans.last}) {
    auto const row = support::messages_of(*work);
    CHECK(support::rendezvous_machine(row).run() == support::outcome::drains);
    CHECK(support::mirrored(row));
  }
}

template <class Schedule>
void check_steps() {
  for (int devices = 1; devices <= 4; ++devices)
    for (int const microbatches : {1, 2, 5}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      auto const table = pp::make_timetable<Schedule>({devices, microbatches});
      bool const few = devices <= 3 && microbatches == 1;
      check_sound_steps<pp::communicators::per_pair>(table, few);
      check_sound_steps<pp::communicators::per_edge>(table, few);
      check_sound_steps<pp::communicators::one>(table, few);
    }
}

} // namespace

TEST_CASE("plans that validate afterwards are proven, one after the other too") {
  check_steps<pp::OneFOneB>();
  check_steps<pp::Interleaved<3>>();
  check_steps<pp::VHalf>();
  check_steps<pp::ZeroBubbleH2>();
  check_steps<pp::Seq1F1B<2>>();
}

TEST_CASE("rows go down the devices, and back across the seam before the first backward pass") {
  auto const table = pp::make_timetable<pp::ZeroBubbleH2>({3, 6});
  auto const plans = pp::lower_post_validated(table, pp::uniform_sizes{.totals_bytes = 12});
  auto const words = [](pp::plan const& work, int device) {
    std::vector<std::string> lines;
    for (pp::item const& step : work.program_of(device))
      if (step.about != subject::pass)
        lines.push_back(pp::describe(step, work));
    return lines;
  };
  CHECK(words(plans.steady, 1) ==
        std::vector<std::string>{"receive the totals of all stages from device 2",
                                 "send the totals of all stages to device 0",
                                 "run the validation of the optimizer step of stage 1",
                                 "receive the totals of stage 0 from device 0",
                                 "run the totals of stage 1",
                                 "send the totals of stages 0 to 1 to device 2",
                                 "run the early optimizer step of stage 1"});
  CHECK(words(plans.last, 2) ==
        std::vector<std::string>{"send the totals of all stages to device 1",
                                 "run the validation of the optimizer step of stage 2"});
  // Device r has run its 2 (P - r) - 1 warm-up passes by then.
  for (int device = 0; device < 3; ++device) {
    int passes = 0;
    int const first = about(plans.steady, device, subject::validation).front();
    for (int i = 0; i < first; ++i)
      passes +=
        plans.steady.program_of(device)[static_cast<std::size_t>(i)].what == pp::operation::run ? 1
                                                                                                : 0;
    CHECK(passes == 2 * (3 - device) - 1);
  }
  // What the others have sent by then arrives even where the iteration begins again.
  int arrive = 0;
  int taken = 0;
  int const behind = pp::detail::behind_validation(plans.steady, 1);
  auto const steps = plans.steady.program_of(1);
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (pp::detail::arrives_early(plans.steady, 1, steps[i]))
      ++(static_cast<int>(i) < behind ? taken : arrive);
  CHECK(taken + arrive == 5 + 1); // of device 0's passes, and the rows of device 2
  CHECK(taken >= 3 + 1);
  CHECK(arrive > 0);
}

TEST_CASE("plans of one timetable have fingerprints of their own") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 3});
  auto const plans = pp::lower_post_validated(table, with_totals);
  auto const at_once = pp::lower(table, with_totals);
  std::vector<pp::fingerprint> all;
  for (pp::plan const* work : {&at_once, &plans.first, &plans.steady, &plans.last})
    all.push_back(pp::fingerprint::of(*work));
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      CHECK_FALSE(all[i] == all[k]);
}

TEST_CASE("without totals nothing can be validated, nor where a placement keeps two copies") {
  CHECK_THROWS_WITH_AS(
    (void)pp::lower_post_validated(pp::make_timetable<pp::OneFOneB>({2, 3}),
                                   pp::detail::no_sizes{}),
    "plan: a step of the optimizer is validated by the totals, but the sizes have no totals_bytes; "
    "set them to the bytes of a stage's row",
    std::invalid_argument);
  CHECK_THROWS_AS((void)pp::lower_post_validated(pp::make_timetable(pp::DualPipe<>{}, {2, 4}),
                                                 pp::uniform_sizes{.totals_bytes = 8}),
                  std::invalid_argument);
}

TEST_CASE("what a validation must not be is found") {
  auto plans = pp::lower_post_validated<pp::communicators::per_edge>(
    pp::make_timetable<pp::OneFOneB>({3, 4}), with_totals);
  pp::plan& work = plans.steady;
  REQUIRE(pp::prove(work));
  auto const first_of = [&work](int device) {
    return work.items.begin() + work.offsets[static_cast<std::size_t>(device)];
  };
  auto const find = [&](int device, subject what) {
    return first_of(device) + about(work, device, what).front();
  };
  SUBCASE("a device that does not roll back") {
    for (pp::item& step : work.items)
      step.wait_count = 0; // which count on items that move
    work.items.erase(find(1, subject::validation));
    for (std::size_t d = 2; d < work.offsets.size(); ++d)
      --work.offsets[d];
    CHECK(pp::describe(pp::prove(work), work)
            .find("(device 1: validation of the optimizer step of stage 1)") != std::string::npos);
  }
  SUBCASE("a device that hands the rows on before it has them") {
    auto const rows = find(1, subject::spread);
    REQUIRE(rows->what == pp::operation::receive);
    std::rotate(rows, rows + 1, rows + 2);
    rows->wait_count = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_content);
  }
  SUBCASE("a device that validates before it has the rows") {
    find(0, subject::validation)->wait_count = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::unordered);
  }
  SUBCASE("a device that validates behind its first backward pass") {
    auto const validation = find(2, subject::validation);
    REQUIRE(validation[1].work.kind == pp::pass_kind::backward);
    std::swap(validation[0], validation[1]);
    CHECK(pp::prove(work).broken == pp::proof::rule::not_validated);
  }
  SUBCASE("a device that steps with rows that it does not have yet") {
    find(2, subject::early_update)->wait_count = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::unordered);
  }
  SUBCASE("rows in the order of the other chain") {
    // Device 1 sends its row back to device 0, as where all step at once.
    find(1, subject::contribution)->work.stage = 2;
    CHECK_FALSE(pp::prove(work));
  }
  SUBCASE("a plan that says it finds nothing to validate") {
    work.validation = pp::step_validation::next;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_passes);
  }
  SUBCASE("a plan of the last validation that has a pass") {
    plans.first.validation = pp::step_validation::last;
    CHECK(pp::prove(plans.first).broken == pp::proof::rule::wrong_passes);
  }
}
