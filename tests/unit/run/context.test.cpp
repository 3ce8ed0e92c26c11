// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a pass is told of the pipeline that it is part of.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <vector>

namespace pp = pipelining;

namespace {

struct asking_stage {
  static constexpr bool takes_chunks = true;
  std::set<std::array<bool, 4>> ends{}; // first stage, last stage, first chunk, last chunk
  int passes = 0;

  void forward(pp::context const& where, pp::input, pp::output) { look(where); }
  void backward(pp::context const& where, pp::input, pp::output) { look(where); }

  void look(pp::context const& where) {
    CHECK(where.extents.microbatches == 5);
    CHECK(where.extents.devices == 3);
    CHECK(where.extents.stages() == 3);
    CHECK(where.chunks == 2);
    CHECK(where.microbatch_share() == 0.2);
    CHECK(where.last_chunk() == (where.chunk == 1));
    CHECK(where.first_chunk() == (where.chunk == 0));
    CHECK(where.first_stage() == (where.stage == 0));
    CHECK(where.last_stage() == (where.stage == 2));
    ++passes;
  }
};

} // namespace

TEST_CASE("a pass knows how many microbatches, stages and chunks there are") {
  std::vector<asking_stage> model(3);
  auto const table = pp::make_timetable<pp::Seq1F1B<2>>({3, 5});
  pp::run(pp::lower(table), model);
  for (asking_stage const& stage : model)
    CHECK(stage.passes == 20);
  struct evaluated_stage : asking_stage {
    void forward(pp::context const& where, pp::input, pp::output) {
      CHECK(where.evaluating);
      look(where);
    }
  };
  std::vector<evaluated_stage> evaluated(3);
  pp::run(pp::lower_evaluation(table), evaluated);
  CHECK(evaluated[1].passes == 10);
}

namespace {

//! As a schedule that cuts long sequences into more chunks.
struct uneven {
  [[nodiscard]] constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .chunks = 3};
  }
  [[nodiscard]] constexpr int chunks_of(pp::shape const&, int microbatch) const {
    return 1 + microbatch % 3;
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    for (int m = 0; m < extents.microbatches; ++m)
      for (int c = 0; c < chunks_of(extents, m); ++c)
        out.forward(device, m, c);
    for (int m = 0; m < extents.microbatches; ++m)
      for (int c = chunks_of(extents, m); c-- > 0;)
        out.backward(device, m, c);
  }
};

struct chunk_stage {
  static constexpr bool takes_chunks = true;
  void forward(pp::context const& where, pp::input, pp::output) { look(where); }
  void backward(pp::context const& where, pp::input, pp::output) { look(where); }
  void look(pp::context const& where) const {
    CHECK(where.chunks == 1 + where.microbatch % 3);
    CHECK(where.last_chunk() == (where.chunk == where.microbatch % 3));
  }
};

} // namespace

TEST_CASE("the last chunk is that of the microbatch") {
  std::vector<chunk_stage> model(2);
  pp::run(pp::lower(pp::make_timetable<uneven>({2, 6})), model);
}
