// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/run/affinity.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

struct placed_stage {
  std::vector<int> cores{};
  void forward(pp::context const&, pp::input, pp::output) { cores = pp::usable_cores(); }
  void backward(pp::context const&, pp::input, pp::output) {}
};

} // namespace

TEST_CASE("devices run on one core each, round and round") {
  auto const usable = pp::usable_cores();
  REQUIRE(!usable.empty());
  std::vector<placed_stage> model(3);
  pp::run(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 2})),
          model,
          {.on_start = pp::pin_in_turn()});
  for (std::size_t d = 0; d < 3; ++d)
    CHECK(model[d].cores == std::vector<int>{usable[d % usable.size()]});
  CHECK(pp::usable_cores() == usable); // the caller stays where it was
}

TEST_CASE("a core that is not there is refused") {
  CHECK_THROWS_WITH_AS(pp::pin_to_core(-1),
                       "run: cannot keep a thread on core -1; usable_cores() lists those that this "
                       "process may use",
                       std::runtime_error);
}
