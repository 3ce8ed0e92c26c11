// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// clang-format off
// case 1: expected-error {{attention::backward: the running dK and dV must be float or wider, because they are rounded once per query}}
// case 2: expected-error {{no_mask}}
// case 2: expected-error {{m\.keep\(at\)}}
// case 3: expected-error {{no_score}}
// case 3: expected-error {{f\.derivative\(s, s, at\)}}
// clang-format on
#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

namespace at = pipelining::attention;

struct no_mask {
#if FAIL_CASE == 2
#else
  bool keep(at::pair_position) const {
    return true;
  }
#endif
};
struct no_score {
  double value(double s, at::pair_position) const { return s; }
#if FAIL_CASE == 3
#else
  double derivative(double, double, at::pair_position) const {
    return 1;
  }
#endif
};
#if FAIL_CASE == 1
using running = signed char; // in place of an 8-bit float
#else
using running = float;
#endif

void calls(at::parameters const& p,
           at::forward_tensors<float> const& forward,
           at::backward_tensors<float, float, running> const& backward) {
  at::forward(p, forward, no_mask{}, no_score{});
  at::backward(p, backward, no_mask{}, no_score{});
}
