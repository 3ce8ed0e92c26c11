// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Cuts and packs sequences of unequal length into chunks. Header for
//! pipelining::chunk_sequences, counts_of, packed_cost and peak_tokens.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/timetable/pool_effect.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Consecutive tokens of a sequence.
struct sequence_piece {
  int sequence = 0; //!< its number
  int offset = 0;   //!< tokens of it before
  int tokens = 0;   //!< how long it is

  friend constexpr bool operator==(sequence_piece const&, sequence_piece const&) = default;
};

//! @brief The chunks of a microbatch, each of one piece of a long sequence or of whole short ones.
using packed_microbatch = std::vector<std::vector<sequence_piece>>;

//! @brief Microbatches of chunks of at most `size` tokens: sequences that are longer are cut from
//! the front, one microbatch each, in order; the others are packed before them, a microbatch of one
//! chunk each.
//!
//! Packs by first fit, longest first, those of one length by number: at most 11/9 of the fewest
//! possible chunks and one more.
//!
//! @param lengths tokens of each sequence. @param size the most tokens of a chunk.
//! @throws std::invalid_argument when a length or the size is below 1.
//! @complexity O(n log n + n b) for n sequences and b packed chunks.
//! @source Yuan et al., "Efficient Long Context Fine-tuning with Chunk Flow" (arXiv:2503.02356),
//! which searches for the number of chunks; first fit decreasing in its place is our choice.
[[nodiscard]] inline std::vector<packed_microbatch> chunk_sequences(std::span<int const> lengths,
                                                                    int size) {
  if (size < 1)
    throw std::invalid_argument("chunk_sequences: a chunk must have room for at least one token");
  std::vector<int> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), 0);
  auto const length = [&](int sequence) { return lengths[static_cast<std::size_t>(sequence)]; };
  for (int const sequence : by_length)
    if (length(sequence) < 1)
      throw std::invalid_argument("chunk_sequences: sequence " + std::to_string(sequence) +
                                  " must have at least one token");
  detail::sort_stably(by_length, [&](int a, int b) { return length(a) > length(b); });
  std::vector<packed_microbatch> all;
  std::vector<int> room; // of each packed chunk
  for (int const sequence : by_length) {
    int const tokens = length(sequence);
    if (tokens > size)
      continue;
    auto const found =
      std::find_if(room.begin(), room.end(), [&](int left) { return left >= tokens; });
    auto const at = static_cast<std::size_t>(found - room.begin());
    if (found == room.end()) {
      room.push_back(size);
      all.push_back({{}});
    }
    room[at] -= tokens;
    all[at].front().push_back({sequence, 0, tokens});
  }
  for (int sequence = 0; std::cmp_less(sequence, lengths.size()); ++sequence) {
    if (length(sequence) <= size)
      continue;
    packed_microbatch& pieces = all.emplace_back();
    for (int offset = 0; offset < length(sequence); offset += size)
      pieces.push_back({{sequence, offset, std::min(size, length(sequence) - offset)}});
  }
  return all;
}

//! @brief How many chunks each microbatch has, as `listed_chunks` takes it.
[[nodiscard]] inline std::vector<int> counts_of(std::span<packed_microbatch const> microbatches) {
  std::vector<int> counts;
  for (packed_microbatch const& each : microbatches)
    counts.push_back(static_cast<int>(each.size()));
  return counts;
}

//! @brief The times of packed chunks, the same on every stage: those of their pieces together. A
//! piece attends to its own sequence alone.
//! @tparam Time the time of a piece for its length and the tokens of its sequence before it.
template <chunk_time Time>
class packed_cost {
public:
  //! @param latency time of a message between two devices.
  packed_cost(std::vector<packed_microbatch> microbatches, Time time, double latency = 0)
      : microbatches_(std::move(microbatches)), time_(std::move(time)), latency_(latency) {}

  [[nodiscard]] double duration(pass const& what) const {
    double sum = 0;
    for (sequence_piece const& piece : microbatches_.at(what.microbatch).at(what.chunk))
      sum += time_(what.kind, piece.tokens, piece.offset);
    return sum;
  }
  [[nodiscard]] double latency() const noexcept { return latency_; }

private:
  std::vector<packed_microbatch> microbatches_;
  Time time_;
  double latency_;
};

//! @brief The most tokens whose activations a device keeps for later passes at once. What a
//! checkpointed forward pass works with while it runs is not among them.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] inline int
peak_tokens(timetable_view table, int device, std::span<packed_microbatch const> microbatches) {
  return detail::peak_of<int>(table, device, slot_class::activation, [&](pass const& what) {
    int tokens = 0;
    if (detail::is_checkpointed(*table.over.declared, what.kind))
      return tokens;
    for (sequence_piece const& piece : microbatches[what.microbatch][what.chunk])
      tokens += piece.tokens;
    return tokens;
  });
}

} // namespace pipelining::inline v0_3
