// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/sequence_partition.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/random_counts.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! Microbatches as the golden file writes them.
std::string text_of(std::vector<pp::packed_microbatch> const& microbatches) {
  std::string text;
  for (auto const& microbatch : microbatches) {
    text += text.empty() ? "" : " |";
    for (auto const& chunk : microbatch) {
      char before = ' ';
      for (pp::sequence_piece const& piece : chunk) {
        text += (text.empty() ? "" : std::string(1, before)) + std::to_string(piece.sequence) +
                "." + std::to_string(piece.offset) + "." + std::to_string(piece.tokens);
        before = '+';
      }
    }
  }
  return text;
}

//! The fewest bins that hold all of some lengths, by trying everything.
int fewest_bins(std::vector<int> lengths, int size) {
  std::sort(lengths.rbegin(), lengths.rend());
  int best = static_cast<int>(lengths.size());
  std::vector<int> room;
  std::function<void(std::size_t)> const place = [&](std::size_t next) {
    if (static_cast<int>(room.size()) >= best && next < lengths.size())
      return;
    if (next == lengths.size()) {
      best = std::min(best, static_cast<int>(room.size()));
      return;
    }
    for (std::size_t bin = 0; bin < room.size(); ++bin)
      if (room[bin] >= lengths[next]) {
        room[bin] -= lengths[next];
        place(next + 1);
        room[bin] += lengths[next];
      }
    room.push_back(size - lengths[next]);
    place(next + 1);
    room.pop_back();
  };
  place(0);
  return best;
}

} // namespace

TEST_CASE("sequences become the chunks of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/chunk_sequences.txt")) {
    std::istringstream in(line);
    int size = 0;
    in >> size;
    auto const lengths = support::read_counts(in);
    CHECK(text_of(pp::chunk_sequences(lengths, size)) == line.substr(line.find(": ") + 2));
  }
}

TEST_CASE("every token is in one chunk, chunks are not too long, and they are few") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    int const size = static_cast<int>(1 + random() % 12);
    auto const lengths = support::random_counts(random, 9, 16);
    auto const microbatches = pp::chunk_sequences(lengths, size);
    std::map<int, int> seen; // tokens so far, by sequence
    int packed = 0;
    for (auto const& microbatch : microbatches) {
      packed += microbatch.size() == 1 ? 1 : 0;
      for (auto const& chunk : microbatch) {
        int tokens = 0;
        for (pp::sequence_piece const& piece : chunk) {
          CHECK(piece.offset == seen[piece.sequence]);
          seen[piece.sequence] += piece.tokens;
          tokens += piece.tokens;
        }
        CHECK(tokens >= 1);
        CHECK(tokens <= size);
      }
    }
    std::vector<int> whole;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      CHECK(seen[static_cast<int>(i)] == lengths[i]);
      if (lengths[i] <= size)
        whole.push_back(lengths[i]);
    }
    int const fewest = whole.empty() ? 0 : fewest_bins(whole, size);
    CHECK(packed >= fewest);
    CHECK(9 * packed <= 11 * fewest + 6);
  }
  CHECK_THROWS_WITH((void)pp::chunk_sequences(std::vector{3, 0}, 4),
                    "chunk_sequences: sequence 1 must have at least one token");
  CHECK_THROWS_WITH((void)pp::chunk_sequences(std::vector{3}, 0),
                    "chunk_sequences: a chunk must have room for at least one token");
}

TEST_CASE("a packed chunk takes the times of its pieces, each behind its own prefix") {
  std::vector<pp::packed_microbatch> const microbatches{{{{0, 0, 3}, {1, 0, 1}}},
                                                        {{{2, 0, 4}}, {{2, 4, 2}}}};
  pp::packed_cost const cost(microbatches, pp::sequence_work{.linear = 1, .quadratic = 2}, 0.5);
  auto const forward = [](int microbatch, int chunk) {
    return pp::row_writer::make(pp::pass_kind::forward, 0, microbatch, chunk);
  };
  CHECK(cost.duration(forward(0, 0)) == 3 + 9 + 1 + 1);
  CHECK(cost.duration(forward(1, 0)) == 4 + 16);
  CHECK(cost.duration(forward(1, 1)) == 2 + (36 - 16));
  CHECK(cost.latency() == 0.5);
}
