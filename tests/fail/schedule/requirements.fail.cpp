// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A type that nearly is a schedule is told what it misses, and nothing else.
// clang-format off
// case 1: expected-error {{schedule: a const member `shape arrange\(int devices, int microbatches\)` is missing}}
// case 1: expected-error {{(?s)\A((?!error:).)*error:((?!error:).)*\Z}}
// case 2: expected-error {{schedule: `arrange` must return a pipelining::shape}}
// case 2: expected-error {{(?s)\A((?!error:).)*error:((?!error:).)*\Z}}
// case 3: expected-error {{schedule: the order of passes is missing}}
// case 3: expected-error {{(?s)\A((?!error:).)*error:((?!error:).)*\Z}}
// case 4: expected-error {{schedule: a schedule is a value; this type cannot be copied and assigned}}
// case 4: expected-error {{(?s)\A((?!error:).)*error:((?!error:).)*\Z}}
// case 5: expected-error {{schedule: the order of passes is missing}}
// case 5: expected-error {{(?s)\A((?!error:).)*error:((?!error:).)*\Z}}
// clang-format on
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

namespace pp = pipelining;

struct nearly {
#if FAIL_CASE == 1
  static constexpr pp::shape arrange(int devices) {
    return {.devices = devices};
  }
#elif FAIL_CASE == 2
  static constexpr int arrange(int devices, int microbatches) {
    return devices * microbatches;
  }
#else
  static constexpr pp::shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches};
  }
#endif
#if FAIL_CASE == 4
  nearly() = default;
  nearly(nearly const&) = delete;
#endif
#if FAIL_CASE == 3 || FAIL_CASE == 5 // changes itself
  void order(pp::shape const& extents, int device, pp::row_writer& out) {
    pp::OneFOneB{}.order(extents, device, out);
  }
#else
  static constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) {
    pp::OneFOneB{}.order(extents, device, out);
  }
#endif
};

#if FAIL_CASE == 5
int main() {
  return pp::make_timetable(nearly{}, {2, 4}).passes.empty() ? 1 : 0;
}
#else
constexpr auto& table = pp::timetable<nearly, 2, 4>;

int main() {
  return pp::verify(table) ? 0 : 1;
}
#endif
