// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/wait.h>
#include <tests/support/arithmetic_stage.hpp>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::uniform_sizes roomy_words{
  .message = 24, .activation = 40, .weight_input = 8, .sequence = 8, .sequence_gradient = 8};

//! What a stage does wrong, in every pass of its kind on microbatch 1.
enum class mistake {
  none,
  beyond_output,
  before_output,
  far_padding,
  beyond_activation,
  beyond_weight_input,
  beyond_input_gradient,
  half_output,
  no_output,
  kept_pointer
};

struct careless_stage : support::arithmetic_stage {
  mistake makes = mistake::none;
  std::byte* kept = nullptr;

  static void touch(std::byte* byte) { *byte ^= std::byte{0x55}; }

  void forward(pp::context const& where, pp::input in, pp::output out) {
    bool const now = where.microbatch == 1;
    if (now && makes == mistake::no_output)
      return;
    if (now && makes == mistake::half_output) {
      std::fill_n(out.data, 8, std::byte{1});
      return;
    }
    arithmetic_stage::forward(where, in, out);
    if (now && makes == mistake::beyond_output)
      touch(out.data + out.bytes);
    if (now && makes == mistake::before_output)
      touch(out.data - 1);
    if (now && makes == mistake::far_padding)
      touch(out.data + 300);
    if (now && makes == mistake::beyond_activation)
      touch(where.activation.data + where.activation.bytes);
    if (where.microbatch == 0)
      kept = where.activation.data;
  }
  void backward_input(pp::context const& where, pp::input in, pp::output out) {
    arithmetic_stage::backward_input(where, in, out);
    if (where.microbatch == 1 && makes == mistake::beyond_weight_input)
      touch(where.weight_input.data + where.weight_input.bytes);
    if (where.microbatch == 1 && makes == mistake::beyond_input_gradient)
      touch(out.data + out.bytes + 7);
  }
  void backward_weight(pp::context const& where) {
    arithmetic_stage::backward_weight(where);
    if (where.microbatch == 5 && makes == mistake::kept_pointer)
      touch(kept - 1);
  }
};

//! The failure of a step in which stage 1 of 3 makes a mistake.
std::string failure_of(mistake makes, bool guarded = true) {
  auto const table = pp::make_timetable<pp::ZeroBubbleH1>({3, 6});
  std::vector<careless_stage> model(3);
  model[1].makes = makes;
  pp::thread_runner runner(pp::lower(table, roomy_words), model, {.guarded = guarded});
  try {
    runner.step();
    runner.step();
  } catch (pp::run_error const& error) {
    return error.what();
  }
  return "none";
}

} // namespace

TEST_CASE("a stage that writes beside its buffers is named, with the buffer and the place") {
  CHECK(failure_of(mistake::none) == "none");
  std::string const where =
    "run: device 1 failed in the forward of stage 1, microbatch 1: the stage "
    "has written ";
  std::string const ends = "; data, bytes and as<T>() say where it ends";
  CHECK(failure_of(mistake::beyond_output) ==
        where + "beyond the 24 bytes of its output, first at byte 24" + ends);
  CHECK(failure_of(mistake::before_output) ==
        where + "1 bytes in front of the 24 bytes of its output");
  CHECK(failure_of(mistake::far_padding) ==
        where + "beyond the 24 bytes of its output, first at byte 300" + ends);
  CHECK(failure_of(mistake::beyond_activation) ==
        where + "beyond the 40 bytes of its activation, first at byte 40" + ends);
  std::string const back =
    "run: device 1 failed in the backward_input of stage 1, microbatch 1: the "
    "stage has written ";
  CHECK(failure_of(mistake::beyond_weight_input) ==
        back + "beyond the 8 bytes of its weight_input, first at byte 8" + ends);
  CHECK(failure_of(mistake::beyond_input_gradient) ==
        back + "beyond the 24 bytes of its output, first at byte 31" + ends);
}

TEST_CASE("an output that is not written to its end is an error") {
  std::string const where =
    "run: device 1 failed in the forward of stage 1, microbatch 1: the stage "
    "has written ";
  CHECK(failure_of(mistake::half_output) ==
        where +
          "only the first 8 bytes of its output of 24 bytes, all of which the next stage reads");
  CHECK(failure_of(mistake::no_output) ==
        where + "nothing into its output of 24 bytes, all of which the next stage reads");
  CHECK(failure_of(mistake::no_output, false) == "none");
}

TEST_CASE("a pointer that was kept is found when a pass or the step ends") {
  CHECK(failure_of(mistake::kept_pointer).find("run: device 1 failed in the ") == 0);
}

namespace {

//! Notes the first word of each buffer that it is the first to write.
struct curious_stage {
  static constexpr bool takes_chunks = true;
  bool poisoned = true;
  int looks = 0;

  void look(pp::buffer const& memory) {
    for (float const each : memory.as<float>())
      poisoned = poisoned && std::isnan(each);
    looks += memory.bytes > 0 ? 1 : 0;
    std::fill_n(memory.data, memory.bytes, std::byte{0});
  }
  void forward(pp::context const& where, pp::input, pp::output out) {
    look(where.activation);
    look(out);
    if (where.chunk == 0)
      look(where.state);
  }
  void backward(pp::context const& where, pp::input, pp::output out) {
    look(out);
    if (where.chunk == 1)
      look(where.state_gradient);
  }
};

} // namespace

TEST_CASE("slots that nobody has written yet are not numbers") {
  auto const table = pp::make_timetable<pp::Seq1F1B<2>>({2, 3});
  std::vector<curious_stage> model(2);
  pp::thread_runner runner(pp::lower(table, roomy_words), model, {.guarded = true});
  for (int step = 0; step < 2; ++step)
    runner.step();
  for (curious_stage const& stage : model) {
    CHECK(stage.poisoned);
    CHECK(stage.looks == 2 * (6 + 6 + 3 + 3)); // each stage has one kind of output
  }
}

TEST_CASE("guards leave the places of slots aligned, and do not overlap") {
  auto const table = pp::make_timetable<pp::ZeroBubbleH1>({3, 6});
  pp::plan const plan = pp::lower(
    table,
    pp::uniform_sizes{
      .message = 24, .activation = 300, .weight_input = 8, .tied_bytes = 4, .totals_bytes = 12});
  for (int device = 0; device < 3; ++device) {
    pp::detail::arena const slots{plan, device, nullptr, nullptr, pp::detail::guard_bytes};
    std::vector<std::pair<std::int64_t, std::int64_t>> places;
    for (int of = 0; of < pp::detail::slot_classes; ++of) {
      auto const& layout = plan.layout(device, static_cast<pp::slot_class>(of));
      bool const rows = static_cast<pp::slot_class>(of) == pp::slot_class::totals;
      for (int index = 0; layout.bytes > 0 && index < (rows ? 1 : layout.count); ++index) {
        auto const start = slots.place({.of = static_cast<pp::slot_class>(of), .index = index});
        places.emplace_back(start, start + layout.bytes * (rows ? layout.count : 1));
      }
    }
    std::sort(places.begin(), places.end());
    CHECK(places.size() > 6);
    std::int64_t end = 0;
    for (auto const& [start, stop] : places) {
      CHECK(start == end + pp::detail::guard_bytes);
      CHECK(start % pp::detail::slot_alignment == 0);
      end = stop;
    }
    CHECK(slots.bytes() == end + pp::detail::guard_bytes);
  }
}

namespace {

struct blind_stage : support::arithmetic_stage {
  void forward(pp::context const& where, pp::input in, pp::output out) {
    arithmetic_stage::forward(where, in, out);
    *reinterpret_cast<std::uint64_t volatile*>(out.data) = 7; // also where there is none
  }
};

} // namespace

TEST_CASE("writing an output that is null says which pass it was before it ends the process") {
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  pid_t const child = ::fork();
  if (child == 0) {
    (void)::dup2(ends[1], STDERR_FILENO);
    (void)std::signal(SIGSEGV, SIG_DFL); // not the test framework's, and not an earlier runner's
    std::vector<blind_stage> model(2);
    pp::run(
      pp::lower(pp::make_timetable<pp::OneFOneB>({2, 2}), roomy_words), model, {.guarded = true});
    std::_Exit(0);
  }
  (void)::close(ends[1]);
  std::string text;
  char bytes[512];
  for (ssize_t count = 1; count > 0;) {
    count = ::read(ends[0], bytes, sizeof bytes);
    text.append(bytes, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  (void)::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CAPTURE(text);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
  CHECK(
    text.find("run: device 1 has touched a null pointer in the forward of stage 1, microbatch 0; "
              "this pass has no\n  output: the last stage has none, or its size is 0; slot is "
              "-1 there\n") == 0);
}
