// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A trainer in C that knows of no pipelines has the bits of its own loop under every schedule whose
// gradients add up in order: through evaluations, a cache of plans, a checkpoint and another life,
// with clipping and early steps.
#include <pipe/run/threads.hpp>

#include <doctest/doctest.h>

#include <iostream>
#include <tests/support/foreign_trainer.hpp>
#include <tests/support/temporary_folder.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;
namespace foreign = support::foreign;

namespace {

foreign::result on_threads(foreign::program what) {
  support::temporary_folder const folder("trainer");
  what.folder = folder.path();
  return foreign::train(
    what,
    [](pp::plan work, std::vector<foreign::stage*>& model, auto run) {
      pp::thread_runner runner(std::move(work), model);
      run(runner, -1);
    },
    [] {});
}

foreign::result expected_of(foreign::program const& what) {
  int const stages = what.table(8).over.extents.stages();
  return foreign::train_alone(
    [&](int microbatches) { return what.table(microbatches).over; }, stages, what.clip, what.early);
}

} // namespace

TEST_CASE("a trainer in C has its own bits under every schedule with sums in order") {
  long corrected = 0;
  int count = 0;
  for (auto const& choice : foreign::schedules())
    for (bool const early : {false, true})
      for (float const clip : {1e6F, 0.75F, 0.1F}) {
        CAPTURE(choice.name);
        CAPTURE(early);
        CAPTURE(clip);
        foreign::program const what{choice, clip, early, {}};
        auto const expected = expected_of(what);
        auto const found = on_threads(what);
        CHECK(found.losses == expected.losses);
        CHECK(found.evaluations == expected.evaluations);
        CHECK(found.state == expected.state);
        CHECK((clip < 1e6F || found.corrected == 0));
        corrected += found.corrected;
        ++count;
      }
  CHECK(count >= 6 * 18);
  CHECK(corrected > 0);
}
