// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A stage that does not fit a schedule is refused in a sentence that says what to give it.
// clang-format off
// case 1: expected-error {{fits: the schedule splits the backward pass; give the stage backward_input\(context const&, input, output\) and backward_weight\(context const&\)}}
// case 1: expected-error {{(?s)\A((?!error:).)*(error:((?!error:).)*){1,2}\Z}}
// case 2: expected-error {{fits: the schedule has backward passes in one piece; give the stage backward\(context const&, input, output\)}}
// case 3: expected-error {{fits: the schedule has forward passes; give the stage forward\(pipelining::context const&, pipelining::input, pipelining::output\)}}
// case 4: expected-error {{fits: the schedule has passes of a flow of its own; give the stage perform\(pass_kind, context const&, input, output\)}}
// case 5: expected-error {{fits: the schedule cuts sequences into chunks; let every pass of the stage do only the chunk of its context, and declare static constexpr bool takes_chunks = true}}
// case 5: expected-error {{(?s)\A((?!error:).)*(error:((?!error:).)*){1,2}\Z}}
// clang-format on
#include <pipe/pipe.hpp>

#include <cstdint>

namespace pp = pipelining;

struct whole {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};
struct halves {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward_input(pp::context const&, pp::input, pp::output) {}
  void backward_weight(pp::context const&) {}
};
struct back_only {
  void backward(pp::context const&, pp::input, pp::output) {}
};
// A flow of one kind, which only goes forward.
constexpr pp::datum all_data[] = {
  {.word = "output",
   .pool = static_cast<std::uint8_t>(pp::slot_class::output),
   .arrives_in = static_cast<std::uint8_t>(pp::slot_class::received_input),
   .wanted = true}};
constexpr pp::kind_of_pass all_kinds[] = {
  pp::declare_kind('F',
                   "step",
                   pp::engine::compute,
                   pp::stage_call::perform,
                   {{pp::does::reads, 0, pp::of_stage::before}, {pp::does::makes, 0}})};
struct own_kind {
  static constexpr pp::flow declared = pp::declare(all_data, all_kinds);
  static constexpr pp::shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches};
  }
  static constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) {
    for (int m = 0; m < extents.microbatches; ++m)
      out.push(pp::row_writer::make(declared.kind_named("step"), device, m));
  }
};

#if FAIL_CASE == 1
static_assert(pp::check_fits<pp::VHalf, whole>);
#elif FAIL_CASE == 2
static_assert(pp::check_fits<pp::OneFOneB, halves>);
#elif FAIL_CASE == 3
static_assert(pp::check_fits<pp::OneFOneB, back_only>);
#elif FAIL_CASE == 4
static_assert(pp::check_fits<own_kind, whole>);
#elif FAIL_CASE == 5
static_assert(pp::check_fits<pp::Seq1F1B<4>, whole>);
#else
static_assert(pp::check_fits<pp::OneFOneB, whole> && pp::check_fits<pp::VHalf, halves>);
#endif

int main() {}
