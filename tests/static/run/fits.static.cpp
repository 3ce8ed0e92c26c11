// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/pipe.hpp>

namespace pp = pipelining;

namespace {

struct whole {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};
struct halves {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward_input(pp::context const&, pp::input, pp::output) {}
  void backward_weight(pp::context const&) {}
};
struct chunked : whole {
  static constexpr bool takes_chunks = true;
};
struct unchunked : whole {
  static constexpr bool takes_chunks = false;
};
struct both : whole {
  void backward_input(pp::context const&, pp::input, pp::output) {}
  void backward_weight(pp::context const&) {}
};

static_assert(pp::fits<pp::OneFOneB, whole> && !pp::fits<pp::OneFOneB, halves>);
static_assert(!pp::fits<pp::VHalf, whole> && pp::fits<pp::VHalf, halves>);
static_assert(pp::fits<pp::OneFOneB, both> && pp::fits<pp::VHalf, both>);
static_assert(!pp::fits<pp::DualPipe<>, whole, 4, 8> &&
              pp::fits<pp::DualPipe<>, both, 4, 8>); // both kinds
// A stage that does not say that it takes chunks would do whole sequences.
static_assert(!pp::fits<pp::Seq1F1B<4>, whole> && pp::fits<pp::Seq1F1B<1>, whole>);
static_assert(pp::fits<pp::Seq1F1B<4>, chunked> && !pp::fits<pp::Seq1F1BZeroBubbleH1<4>, chunked>);
static_assert(!pp::detail::takes_chunks<unchunked> && pp::detail::takes_chunks<chunked>);
static_assert(pp::check_fits<pp::OneFOneB, whole> && pp::check_fits<pp::Seq1F1B<4>, chunked>);
static_assert(pp::fits<pp::OneFOneB, whole, 2, 2>);
// Adapters are schedules: what is recomputed is asked for by forward.
static_assert(pp::fits<pp::with_recompute<pp::OneFOneB, pp::recompute::all>, whole>);

} // namespace
