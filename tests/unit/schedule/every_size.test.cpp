// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every schedule type with every parameter: P up to 12, M up to 30, V up to 4, C up to 6. The full
// range takes some minutes; PIPELINING_TEST_EVERYTHING=1 in the environment asks for it, else some
// sizes stand for all.
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/planner/search/v_continuous.hpp>
#include <pipe/schedule/bit_pipe.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/slice_v.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/schedule/zero_bubble_interleaved.hpp>
#include <pipe/schedule/zero_bubble_v.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <vector>

namespace pp = pipelining;

namespace {

bool all_sizes() {
  return std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
}

// Counts what it verifies and says so at the end.
class sweep {
public:
  explicit sweep(pp::uniform_cost const& cost = {10, 12, 8, 1}) : cost_(cost) {}
  ~sweep() { MESSAGE(tables_ << " timetables of " << passes_ << " passes verified"); }
  sweep(sweep const&) = delete;
  sweep& operator=(sweep const&) = delete;

  // Calls `body(size)` for every size.
  template <class Body>
  void sizes(Body const& body) {
    bool const all = all_sizes();
    for (int devices = 1; devices <= 12; ++devices)
      for (int microbatches = 1; microbatches <= 30; ++microbatches)
        if (all || (stands_for_all(devices) && stands_for_all(microbatches)))
          body(pp::pipeline_size{devices, microbatches});
  }
  template <class Schedule>
  void verify(Schedule const& schedule, pp::pipeline_size size) {
    ++tables_;
    try { // make_timetable throws when verify finds a broken rule
      passes_ += pp::make_timetable(schedule, size, cost_).view().size();
    } catch (std::exception const& broken) {
      FAIL(broken.what() << " at P = " << size.devices << ", M = " << size.microbatches);
    }
  }

private:
  static bool stands_for_all(int extent) {
    return extent <= 3 || extent == 5 || extent == 8 || extent == 12 || extent == 30;
  }

  pp::uniform_cost cost_;
  int tables_ = 0;
  long passes_ = 0;
};

// All group sizes, or those around the corners.
std::vector<int> groups(pp::pipeline_size size) {
  std::vector<int> result;
  for (int group = 0; group <= size.microbatches + 1; ++group)
    if (all_sizes() || group <= 2 || std::abs(group - size.devices) <= 1 ||
        group >= size.microbatches)
      result.push_back(group);
  return result;
}

constexpr int most_stages = 4;
constexpr int most_chunks = 6;

} // namespace

TEST_CASE("every size of the schedules with one stage per device") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    all.verify(pp::GPipe{}, size);
    all.verify(pp::OneFOneB{}, size);
    all.verify(pp::EagerOneFOneB{}, size);
    all.verify(pp::ZeroBubbleH1{}, size);
    all.verify(pp::ZeroBubbleH2{}, size);
    all.verify(pp::WeiPipe{}, {size.devices, size.devices * size.microbatches});
    for (int const group : groups(size))
      all.verify(pp::Grouped<>{std::max(group, 1)}, size);
    for (int chunks = 1; chunks <= most_chunks; ++chunks) {
      all.verify(pp::Seq1F1B<>{chunks}, size);
      all.verify(pp::EagerSeq1F1B<>{chunks}, size);
      all.verify(pp::Seq1F1BZeroBubbleH1<>{chunks}, size);
      all.verify(pp::Seq1F1BZeroBubbleH2<>{chunks}, size);
    }
  });
}

TEST_CASE("every size of the schedules with several stages per device") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    for (int held = 1; held <= most_stages; ++held) {
      all.verify(pp::BreadthFirst<>{held}, size);
      all.verify(pp::Hanayo<>{held}, size);
      for (int const folds : {1, 2, 3})
        all.verify(pp::HelixPipe<>{held, folds}, size);
      all.verify(pp::ZeroBubbleInterleaved<>{held}, size);
      for (int const stagger : {1, 2})
        for (int const group : groups(size))
          all.verify(pp::Interleaved<>{held, group, stagger}, size);
    }
  });
}

TEST_CASE("every size of interleaved stages with chunks") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    for (int held = 1; held <= most_stages; ++held)
      for (int chunks = 1; chunks <= most_chunks; ++chunks) {
        if (!all_sizes() && (held + chunks + size.devices) % 3 != 0)
          continue;
        all.verify(pp::Seq1F1BZeroBubbleInterleaved<>{held, chunks}, size);
        all.verify(pp::SVPP<>{held, chunks}, size);
        for (int more = 0; more < size.devices; more += 3)
          all.verify(pp::SVPP<>{held, chunks, held * chunks + more}, size);
        for (int const stagger : {1, 2})
          for (int const group : groups(size))
            all.verify(pp::Seq1F1BInterleaved<>{held, chunks, group, stagger}, size);
      }
  });
}

namespace {

//! Unequal numbers of chunks, the longest last of three.
struct uneven_chunks {
  int most;

  [[nodiscard]] int operator()(int microbatch) const {
    return microbatch % 3 == 2 ? most : 1 + microbatch % most;
  }
};

} // namespace

TEST_CASE("every size of ChunkFlow") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    for (int chunks = 1; chunks <= most_chunks; ++chunks)
      for (int const keep : {1, 2, most_chunks})
        all.verify(pp::ChunkFlow<uneven_chunks>{{chunks}, keep}, size);
  });
}

TEST_CASE("every size of SliceV") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    for (int chunks = 1; chunks <= most_chunks; ++chunks)
      if (size.microbatches * chunks >= 2 * (size.devices - 1) + chunks) // it refuses fewer
        all.verify(pp::SliceV<>{{chunks}}, size);
  });
}

TEST_CASE("every size of SlimPipe") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    for (int held = 1; held <= 3; ++held)
      for (int const more : {0, 1, 4})
        all.verify(pp::SlimPipe<pp::dynamic, pp::dynamic>{size.devices + more, held}, size);
  });
}

TEST_CASE("every size of Chimera, BitPipe, DualPipe and DualPipeV") {
  for (double const pair : {-1.0, 24.0}) {
    sweep all({10, 12, 8, 1, pair});
    all.sizes([&](pp::pipeline_size size) {
      if (size.devices % 2 == 0) {
        for (int held = 1; held <= most_stages; ++held)
          all.verify(pp::ChimeraWaves<>{held}, size);
        all.verify(pp::BitPipe{}, size);
        all.verify(pp::DualPipe<>{}, size);
        all.verify(pp::DualPipe<pp::pairs::in_turn>{}, size);
      }
      all.verify(pp::DualPipeV<>{}, size);
      all.verify(pp::DualPipeV<pp::pairs::in_turn>{}, size);
    });
  }
}

TEST_CASE("every size of STP") {
  sweep all({10, 12, 8, 1});
  all.sizes([&](pp::pipeline_size size) {
    if (size.microbatches < 3 * size.devices - 1) // it refuses fewer
      return;
    all.verify(pp::STP<>{}, size);
    all.verify(pp::STP<pp::pairs::in_turn>{}, size);
  });
}

TEST_CASE("every size of the automatic zero-bubble scheduler") {
  sweep all;
  all.sizes([&](pp::pipeline_size size) {
    for (int limit = 1; limit <= 2 * size.devices + 1; ++limit)
      for (double const kept : {1.0, 0.5})
        all.verify(pp::ZeroBubbleAuto<>{limit, kept}, size);
  });
}

TEST_CASE("every size of V shapes with unit costs") {
  sweep all(pp::uniform_cost{});
  all.sizes([&](pp::pipeline_size size) {
    for (int chunks = 1; chunks <= most_chunks; ++chunks) {
      all.verify(pp::VMinChunked<pp::dynamic>{chunks}, size);
      all.verify(pp::VShape<pp::v_half_offsets, pp::dynamic>{chunks}, size);
      all.verify(pp::VShape<pp::v_zero_bubble_offsets, pp::dynamic>{chunks}, size);
      all.verify(pp::ZeroBubbleVChunked<pp::dynamic>{chunks}, size);
      all.verify(pp::OneFOneBVChunked<pp::dynamic>{chunks}, size);
      all.verify(pp::ChronosPipeChunked<pp::dynamic>{chunks}, size);
    }
  });
}

TEST_CASE("every size of the V shapes that are searched for") {
  if (!all_sizes())
    return; // v_shape.test.cpp and v_continuous.test.cpp search at some sizes
  sweep all(pp::uniform_cost{});
  all.sizes([&](pp::pipeline_size size) {
    if (size.microbatches % 3 != 0 && size.microbatches > 4)
      return; // a search each, up to a tenth of a second
    for (int const limit : {2, size.devices, 3 * size.devices / 2, 2 * size.devices})
      for (int const chunks : {1, 2, most_chunks}) {
        double const most = std::max(limit, 2);
        all.verify(pp::VAuto<pp::dynamic, pp::dynamic>{most, chunks}, size);
        if (limit >= size.devices)
          all.verify(pp::VContinuous{most, chunks}, size);
      }
  });
}
