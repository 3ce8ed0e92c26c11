// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Vocabularies in shards, on threads: gradients equal to one unit after the other on one device,
// under every policy, with guards around all slots.
#include <pipe/plan/lower.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <random>
#include <tests/support/sizes.hpp>
#include <tests/support/vocabulary_stages.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

template <class Policy, int Barriers, class Schedule>
void check_gradients(Schedule const& schedule, pp::pipeline_size size, std::mt19937& random) {
  auto const table = pp::make_timetable(pp::with_vocabulary<Schedule, Barriers>{schedule}, size);
  std::vector<std::uint64_t> weights;
  std::vector<support::vocabulary_stage> model(
    static_cast<std::size_t>(table.over.extents.stages()));
  for (auto& stage : model) {
    stage.barriers = Barriers;
    weights.push_back(stage.weight = random() | 1u);
  }
  pp::thread_runner runner(
    pp::lower<Policy>(table, support::single_words), model, {.guarded = true});
  int const steps = 2;
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const expected = support::vocabulary_gradients(weights,
                                                      static_cast<std::size_t>(size.devices),
                                                      size.microbatches,
                                                      table.over.extents.chunks,
                                                      Barriers);
  for (std::size_t s = 0; s < model.size(); ++s)
    CHECK(model[s].gradient == steps * expected[s]);
  CHECK(pp::verify(runner.trace()));
}

template <class Schedule>
void check_sizes(Schedule const& schedule, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int const devices : {1, 2, 3, 4})
    for (int const microbatches : {2, 8}) {
      pp::pipeline_size const size{devices, microbatches};
      CAPTURE(devices);
      CAPTURE(microbatches);
      check_gradients<pp::communicators::per_pair, 1>(schedule, size, random);
      check_gradients<pp::communicators::per_pair, 2>(schedule, size, random);
      check_gradients<pp::communicators::per_edge, 2>(schedule, size, random);
      check_gradients<pp::communicators::one, 1>(schedule, size, random);
      check_gradients<pp::communicators::per_pair, pp::interlaced>(schedule, size, random);
      check_gradients<pp::communicators::exchanges_at_once, pp::interlaced>(schedule, size, random);
      check_gradients<pp::communicators::exchanges_at_once, 1>(schedule, size, random);
    }
}

} // namespace

TEST_CASE_TEMPLATE("a model with its vocabulary in shards has the gradients of one device",
                   Schedule,
                   pp::OneFOneB,
                   pp::GPipe,
                   pp::Seq1F1B<2>,
                   pp::ZeroBubbleH1,
                   pp::Interleaved<2>,
                   pp::detail::SweptVHalf) {
  check_sizes(Schedule{}, 1);
}
