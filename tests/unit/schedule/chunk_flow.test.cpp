// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/training_flows.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/random_counts.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! "4,2+2": a microbatch of one chunk of four tokens, and one of two chunks of two.
std::vector<pp::packed_microbatch> read_tokens(std::istream& in) {
  std::vector<pp::packed_microbatch> microbatches(1);
  std::string word;
  in >> word;
  std::istringstream tokens(word);
  int offset = 0;
  for (int count = 0; tokens >> count; tokens.ignore()) {
    int const sequence = static_cast<int>(microbatches.size()) - 1;
    microbatches.back().push_back({{sequence, offset, count}});
    offset += count;
    if (tokens.peek() == ',') {
      microbatches.emplace_back();
      offset = 0;
    }
  }
  return microbatches;
}

//! A forward pass takes as long as it has tokens, a backward pass twice that.
constexpr pp::sequence_work by_tokens{};

} // namespace

TEST_CASE("ChunkFlow has the figures of the golden file, of which four are published") {
  for (std::string const& line : support::golden_lines("golden/families/chunk_flow.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    int devices = 0;
    int keep = 0;
    double bubble = 0;
    double makespan = 0;
    double span = 0;
    double busy = 0;
    in >> devices >> keep >> bubble >> makespan >> span >> busy;
    auto const microbatches = read_tokens(in);
    auto const counts = pp::counts_of(microbatches);
    auto const table = pp::make_timetable(pp::ChunkFlow<>{{counts}, keep},
                                          {devices, static_cast<int>(counts.size())},
                                          pp::packed_cost(microbatches, by_tokens));
    CHECK(pp::bubble_rate(table) == doctest::Approx(bubble).epsilon(1e-6));
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::span_of(table) == span);
    for (int device = 0; device < devices; ++device) {
      int peak = 0;
      in >> peak;
      CHECK(pp::busy(table, device) == busy);
      CHECK(pp::peak_tokens(table, device, microbatches) == peak);
    }
  }
}

TEST_CASE("ChunkFlow keeps its bounds and is proven under every policy, for random counts") {
  std::mt19937 random(2503);
  for (int trial = 0; trial < 300; ++trial) {
    int const devices = static_cast<int>(1 + random() % 7);
    int const keep = static_cast<int>(1 + random() % 5);
    auto const counts = support::random_counts(random, 9, 6);
    int const most = *std::max_element(counts.begin(), counts.end());
    pp::pipeline_size const size{devices, static_cast<int>(counts.size())};
    auto const table = pp::make_timetable(pp::ChunkFlow<>{{counts}, keep}, size, {3, 4, 2, 0.5});
    for (int device = 0; device < devices; ++device) {
      int under_way = 0;
      std::map<int, int> kept; // by microbatch
      for (pp::pass const& what : table.view().row(device)) {
        bool const forward = what.kind != pp::pass_kind::backward;
        under_way += what.kind == pp::pass_kind::recompute ? 0 : forward ? 1 : -1;
        if (what.kind != pp::pass_kind::checkpointed_forward)
          kept[what.microbatch] += forward ? 1 : -1;
        CHECK(under_way <= most + devices - 1 - device);
        CHECK(kept[what.microbatch] <= keep);
      }
      CHECK(pp::peak_activation_chunks(table, device) <= most + devices - 1 - device);
    }
    if (trial % 10 == 0) { // lower throws when the proof fails
      (void)pp::lower<pp::communicators::one>(table);
      (void)pp::lower<pp::communicators::per_pair>(table);
      (void)pp::lower<pp::communicators::per_edge>(table);
    }
  }
}

TEST_CASE("ChunkFlow over equal counts that keeps all chunks is Seq1F1B") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int microbatches = 1; microbatches <= 10; ++microbatches)
      for (int chunks = 1; chunks <= 6; ++chunks)
        CHECK(pp::make_timetable(pp::ChunkFlow<pp::detail::equal_chunks<>>{{chunks}, chunks},
                                 {devices, microbatches})
                .passes ==
              pp::make_timetable(pp::Seq1F1B<>{.chunks = chunks}, {devices, microbatches}).passes);
}

namespace {

//! ChunkFlow with something planted into the rows of one device.
struct planted {
  enum class bug { none, recomputed_upwards, not_recomputed, kept_and_recomputed };
  static constexpr pp::flow declared = pp::detail::frugal_training<>;
  pp::ChunkFlow<> of;
  bug what;

  [[nodiscard]] pp::shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  [[nodiscard]] int chunks_of(pp::shape const& extents, int microbatch) const {
    return of.chunks_of(extents, microbatch);
  }
  void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    of.order(extents, device, out);
    pp::pass* const end = out.passes + out.count;
    auto const is = [](pp::pass_kind kind) {
      return [kind](pp::pass const& one) { return one.kind == kind; };
    };
    pp::pass* const first = std::find_if(out.passes, end, is(pp::pass_kind::recompute));
    if (device != 1 || what == bug::none)
      return;
    if (what == bug::recomputed_upwards) { // two chunks change places, as in the paper's listing
      pp::pass* const next = std::find_if(first + 1, end, is(pp::pass_kind::recompute));
      REQUIRE(next != end);
      std::swap(first[0], next[0]);
      std::swap(first[1], next[1]);
    } else if (what == bug::not_recomputed) {
      std::rotate(first, first + 1, end);
      --out.count;
    } else
      std::find_if(out.passes, end, is(pp::pass_kind::checkpointed_forward))->kind =
        pp::pass_kind::forward;
  }
};

} // namespace

TEST_CASE("orders that lose gradients of keys and values, or an activation, are found") {
  pp::ChunkFlow<> const right{{{1, 4, 2}}, 1};
  CHECK(pp::verify(pp::make_timetable(planted{right, planted::bug::none}, {3, 3})));
  for (auto const bug : {planted::bug::recomputed_upwards,
                         planted::bug::not_recomputed,
                         planted::bug::kept_and_recomputed})
    CHECK_THROWS_AS((void)pp::make_timetable(planted{right, bug}, {3, 3}), std::invalid_argument);
}

TEST_CASE("ChunkFlow is made by the compiler, and refuses to keep nothing") {
  constexpr auto table = pp::timetable<pp::ChunkFlow<pp::fixed_chunks<1, 1, 2>, 1>, 4, 3>;
  static_assert(pp::verify(table));
  CHECK(pp::makespan(table) ==
        pp::makespan(pp::make_timetable(pp::ChunkFlow<>{{{1, 1, 2}}, 1}, {4, 3})));
  CHECK_THROWS_WITH((void)pp::make_timetable(pp::ChunkFlow<>{{{1, 1}}, 0}, {2, 2}),
                    "ChunkFlow: a microbatch keeps at least one chunk, whose backward pass comes "
                    "next");
}
