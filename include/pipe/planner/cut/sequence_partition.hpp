// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sequences in chunks: of one length cut, of many lengths packed. Header for
//! pipelining::balanced_partition, fastest_partition, chunk_costs, shortest_slices and
//! chunk_sequences.
//!
//! Attention makes a later token dearer than an earlier one. Chunks of equal length then differ in
//! work, a light forward pass stands next to a heavy backward pass in every round, and Seq1F1B can
//! be slower than 1F1B. Chunks of equal work bring its bubble back.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/cut/least_cut.hpp>
#include <pipe/planner/model/peak_bytes.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The time of a chunk: `time(kind, length, prefix)` of `length` tokens that follow `prefix`
//! earlier ones, for the kinds forward, backward_input and backward_weight, on one stage.
template <class Time>
concept chunk_time = requires(Time const time, pass_kind kind, int tokens) {
  { time(kind, tokens, tokens) } -> std::convertible_to<double>;
};

//! @brief Work of a stage on the tokens of a sequence with causal attention, in any one unit.
//!
//! The forward pass of tokens b ... e - 1 takes linear (e - b) + quadratic (e^2 - b^2) / 2.
struct sequence_work {
  double linear = 1;    //!< forward, per token: everything but attention
  double quadratic = 0; //!< forward, per token and token before it: attention
  //! Backward over forward work, without attention: one half for the input, one for the weights.
  double backward_linear = 2;
  //! Backward over forward work of attention, all for the input: five products of matrices against
  //! two.
  double backward_quadratic = 2.5;

  //! @brief The work of a sequence of `tokens` whose attention takes `ratio` times the forward work
  //! of all else; about tokens / (12 x hidden size) for a plain transformer with causal attention.
  [[nodiscard]] static constexpr sequence_work of_attention(double ratio, int tokens) noexcept {
    return {.linear = 1, .quadratic = 2 * ratio / tokens};
  }

  //! @brief The work of a chunk. @param length tokens of the chunk. @param prefix tokens before it.
  [[nodiscard]] constexpr double operator()(pass_kind kind, int length, int prefix) const noexcept {
    double const alone = linear * length;
    double const attention = quadratic * length * (prefix + 0.5 * length);
    kind_of_pass const& what = detail::kinds_of_training[kind];
    if (what.in_groups)
      return linear * length; // whatever shard that is of
    if (what.on != engine::compute || detail::stands_between(what))
      return 0; // the tokens say nothing of copies, nor of what moves weights
    switch (what.is) {
    case role::forward:
    case role::again: return alone + attention;
    case role::backward: return backward_linear * alone + backward_quadratic * attention;
    case role::input: return 0.5 * backward_linear * alone + backward_quadratic * attention;
    case role::weights: return 0.5 * backward_linear * alone;
    default: return 0;
    }
  }
};

static_assert(chunk_time<sequence_work>);

namespace detail {

//! Newton's iteration from above falls until it has converged; constexpr, unlike std::sqrt.
[[nodiscard]] constexpr double square_root(double value) noexcept {
  double root = value > 1 ? value : 1;
  for (double next = 0.5 * (root + value / root); next < root; next = 0.5 * (root + value / root))
    root = next;
  return root;
}

constexpr void check_partition(int tokens, int chunks, int alignment) {
  if (tokens < 1 || chunks < 1 || alignment < 1)
    throw std::invalid_argument(
      "sequence partition: tokens, chunks and alignment must be at least 1");
  if ((tokens - 1) / alignment + 1 < chunks)
    throw std::invalid_argument(
      "sequence partition: the sequence is too short to give every chunk a token at this "
      "alignment; choose fewer chunks or a smaller alignment");
}

//! Cuts at the multiples of `alignment` nearest to `boundary(j)`, j = 1 ... C - 1, such that no
//! chunk is empty: [C] tokens of each chunk.
[[nodiscard]] constexpr std::vector<int>
cut_at(int tokens, int chunks, int alignment, auto const& boundary) {
  check_partition(tokens, chunks, alignment);
  std::vector<int> lengths;
  int const steps = (tokens - 1) / alignment + 1;
  int before = 0;
  for (int j = 1; j < chunks; ++j) {
    int cut = static_cast<int>(boundary(j) / alignment + 0.5);
    cut = cut > before ? cut : before + 1;
    cut = cut < steps - (chunks - j) ? cut : steps - (chunks - j);
    lengths.push_back((cut - before) * alignment);
    before = cut;
  }
  lengths.push_back(tokens - before * alignment);
  return lengths;
}

} // namespace detail

//! @brief Chunks of equal length, as near as the alignment allows.
//! @param alignment all chunks but the last are multiples of it.
//! @return [C] tokens of each chunk.
//! @throws std::invalid_argument when a chunk would be empty.
[[nodiscard]] constexpr std::vector<int> even_partition(int tokens, int chunks, int alignment = 1) {
  return detail::cut_at(tokens, chunks, alignment, [=](int j) {
    return static_cast<double>(tokens) / static_cast<double>(chunks) * j;
  });
}

//! @brief Chunks of equal work, forward and backward together.
//!
//! Chunk j ends at the multiple of `alignment` nearest to s = (-a + sqrt(a^2 + 2 q j T / C)) / q,
//! where a s + q s^2 / 2 is the work of the first s tokens and T the work of all.
//!
//! @param alignment all chunks but the last are multiples of it.
//! @return [C] tokens of each chunk.
//! @throws std::invalid_argument when a chunk would be empty, or for work that is not positive.
//! @complexity O(C).
//! @source Sun et al., "Seq1F1B", NAACL 2025 (arXiv:2406.03488), computation-wise partition; the
//! closed form and the backward weights are an own derivation.
[[nodiscard]] constexpr std::vector<int>
balanced_partition(int tokens, int chunks, sequence_work const& work, int alignment = 1) {
  detail::check_partition(tokens, chunks, alignment);
  double const a = work.linear * (1 + work.backward_linear);
  double const q = work.quadratic * (1 + work.backward_quadratic);
  double const all = (a + 0.5 * q * tokens) * tokens;
  constexpr double most = std::numeric_limits<double>::max();
  if (!(a >= 0 && q >= 0 && all > 0 && all <= most && a * a + 2 * q * all <= most))
    throw std::invalid_argument(
      "sequence partition: the work of a token must be positive and finite");
  return detail::cut_at(tokens, chunks, alignment, [=](int j) {
    double const part = all * j / chunks;
    return 2 * part / (a + detail::square_root(a * a + 2 * q * part));
  });
}

//! @brief The partition whose slowest chunk is fastest, forward and backward together, for any
//! times, such as measured ones.
//!
//! Exact over all cuts at multiples of `alignment`, whatever the times: they need not grow with
//! length or prefix, so noise and steps of a kernel's tiles do no harm.
//!
//! @param time time of a chunk for its length and prefix; asked at most n^2 / 2 times, n = tokens /
//! alignment.
//! @param alignment all chunks but the last are multiples of it.
//! @return [C] tokens of each chunk.
//! @throws std::invalid_argument when a chunk would be empty, or for a time that is not finite or
//! negative.
//! @complexity O(C n^2) time, O(C n) memory.
//! @source own derivation: dynamic programming over the end of each chunk.
[[nodiscard]] std::vector<int>
fastest_partition(int tokens, int chunks, chunk_time auto const& time, int alignment = 1) {
  detail::check_partition(tokens, chunks, alignment);
  int const steps = (tokens - 1) / alignment + 1;
  auto const token = [=](int step) { return step == steps ? tokens : step * alignment; };
  auto const work_of = [&](int begin, int end) {
    double total = 0;
    for (pass_kind const kind : detail::split_kinds(training))
      total += time(kind, token(end) - token(begin), token(begin));
    if (!(total >= 0 && total <= std::numeric_limits<double>::max()))
      throw std::invalid_argument(
        "sequence partition: the time of a chunk must be a finite number and not negative");
    return [total](int) { return total; };
  };
  std::vector<int> lengths = detail::least_cut(steps, chunks, 1, work_of, detail::slower).lengths;
  for (int begin = 0; int& length : lengths) {
    int const end = begin + length;
    length = token(end) - token(begin);
    begin = end;
  }
  return lengths;
}

//! @brief The times of uneven chunks, the same on every stage.
//! @param lengths [C] tokens of each chunk. @param time time of a chunk for its length and prefix.
//! @param latency time of a message between two devices.
//! @throws std::invalid_argument when there is not one positive length per chunk, or a time is not
//! a number or negative.
[[nodiscard]] cost_table chunk_costs(shape const& extents,
                                     std::span<int const> lengths,
                                     chunk_time auto const& time,
                                     double latency = 0) {
  if (lengths.size() != static_cast<std::size_t>(extents.chunks))
    throw std::invalid_argument("chunk_costs: give one length per chunk");
  cost_table table(extents, {.communication = latency});
  int prefix = 0;
  for (int chunk = 0; chunk < extents.chunks; ++chunk) {
    int const length = lengths[static_cast<std::size_t>(chunk)];
    if (length < 1)
      throw std::invalid_argument("chunk_costs: a chunk has at least one token");
    for (pass_kind const kind : detail::split_kinds(training)) {
      double const duration = time(kind, length, prefix);
      for (int stage = 0; stage < extents.stages(); ++stage)
        table.set(kind, stage, chunk, duration);
    }
    prefix += length;
  }
  return table;
}

//! @brief The times of uneven chunks, scaled so that each kind's mean over the chunks is the time
//! of `mean`: a sequence takes C times `mean`, however it is cut.
//! @param lengths [C] tokens of each chunk. @throws std::invalid_argument as above.
[[nodiscard]] inline cost_table chunk_costs(shape const& extents,
                                            std::span<int const> lengths,
                                            sequence_work const& work,
                                            uniform_cost const& mean) {
  int const tokens = std::accumulate(lengths.begin(), lengths.end(), 0);
  auto const scaled = [&](pass_kind kind, int length, int prefix) {
    pass what;
    what.kind = kind;
    double const all = work(kind, tokens, 0);
    double const share =
      all > 0 ? work(kind, length, prefix) / all : static_cast<double>(length) / tokens;
    return mean.duration(what) * share * static_cast<double>(lengths.size());
  };
  return chunk_costs(extents, lengths, scaled, mean.communication);
}

//! @brief The share of each chunk in the tokens of its sequence, as `peak_activations` takes it.
//! @param lengths [C] tokens of each chunk.
[[nodiscard]] inline std::vector<double> token_shares(std::span<int const> lengths) {
  double const tokens = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  std::vector<double> shares;
  for (int const length : lengths)
    shares.push_back(length / tokens);
  return shares;
}

//! @brief Slices of a sequence that one after the other pass `stages` stages, as in GPipe, in the
//! least time: the least sum of all t plus (stages - 1) times the largest t. How many slices there
//! are is part of the answer: many are nearly equal and short, few have less of what each slice
//! costs.
//!
//! Exact over all cuts at multiples of `alignment`, whatever the times.
//!
//! @param time `time(length, prefix)` of a slice of `length` tokens after `prefix` earlier ones on
//! one stage; asked once for each of n (n + 1) / 2 slices, n = tokens / alignment.
//! @param alignment all slices but the last are multiples of it.
//! @return the tokens of each slice, first to last.
//! @throws std::invalid_argument for tokens, stages or an alignment below 1, or for a time that is
//! not finite or negative.
//! @complexity O(n^2) for each of the at most n^2 / 2 different times below the answer's largest
//! one, O(n^2) memory.
//! @source Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language
//! Models", ICML 2021 (arXiv:2102.07988), section 3.3: for every largest time a shortest sum by
//! dynamic programming; all times are tried, without the paper's tolerance.
template <class Time>
requires requires(Time const time, int tokens) {
  { time(tokens, tokens) } -> std::convertible_to<double>;
}
[[nodiscard]] std::vector<int>
shortest_slices(int tokens, int stages, Time const& time, int alignment = 1) {
  if (tokens < 1 || stages < 1 || alignment < 1)
    throw std::invalid_argument("shortest_slices: tokens, stages and alignment must be at least 1");
  int const steps = (tokens - 1) / alignment + 1;
  auto const token = [=](int step) { return step == steps ? tokens : step * alignment; };
  auto const width = static_cast<std::size_t>(steps) + 1;
  std::vector<double> times(width * width); // [begin, end)
  auto const at = [&](int begin, int end) -> double& {
    return times[static_cast<std::size_t>(begin) * width + static_cast<std::size_t>(end)];
  };
  std::vector<double> largest; // candidates
  for (int begin = 0; begin < steps; ++begin)
    for (int end = begin + 1; end <= steps; ++end) {
      double const one = time(token(end) - token(begin), token(begin));
      if (!(one >= 0 && one <= std::numeric_limits<double>::max()))
        throw std::invalid_argument(
          "shortest_slices: the time of a slice must be a finite number and not negative");
      at(begin, end) = one;
      largest.push_back(one);
    }
  std::sort(largest.begin(), largest.end());
  largest.erase(std::unique(largest.begin(), largest.end()), largest.end());

  double best = std::numeric_limits<double>::infinity();
  std::vector<int> begins(width);
  std::vector<int> best_begins;
  std::vector<double> sums(width);
  for (double const most : largest) {
    if ((stages - 1) * most >= best)
      break; // all that follow are longer
    sums[0] = 0;
    for (int end = 1; end <= steps; ++end) {
      double& sum = sums[static_cast<std::size_t>(end)];
      sum = std::numeric_limits<double>::infinity();
      for (int begin = 0; begin < end; ++begin) {
        double const with = sums[static_cast<std::size_t>(begin)] + at(begin, end);
        if (at(begin, end) <= most && with < sum) {
          sum = with;
          begins[static_cast<std::size_t>(end)] = begin;
        }
      }
    }
    double const total = sums.back() + (stages - 1) * most;
    if (total < best) {
      best = total;
      best_begins = begins;
    }
  }
  std::vector<int> lengths;
  for (int end = steps; end > 0; end = best_begins[static_cast<std::size_t>(end)])
    lengths.push_back(token(end) - token(best_begins[static_cast<std::size_t>(end)]));
  std::reverse(lengths.begin(), lengths.end());
  return lengths;
}

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
//! Packs by first fit, longest first, sequences of one length by number: at most 11/9 of the fewest
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

//! @brief The times of packed chunks, the same on every stage: the sum over their pieces. A
//! piece attends to its own sequence only.
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

//! @brief The most tokens whose activations a device keeps for later passes at once. Activations
//! that a checkpointed forward pass drops at its end do not count.
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
