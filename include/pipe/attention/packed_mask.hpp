// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The mask of sequences that are packed one after the other, with lengths of their own for
//! queries and keys.

#include <pipe/attention/mask.hpp>
#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

//! @brief A query sees the keys of its own sequence. Sequence s has the queries from queries[s] to
//! before queries[s + 1] and the keys from keys[s] to before keys[s + 1], as cu_seqlens say it.
//!
//! @pre tables begin with 0, never fall, and end with the number of queries and of keys. They are
//! the caller's, on the side (host, GPU) of the call, and all sequences of a batch share them.
//! @complexity log2(count) reads of a table for each pair or tile that is asked
struct packed {
  std::int32_t const* queries = nullptr; //!< [count + 1], first queries, and their number
  std::int32_t const* keys = nullptr;    //!< [count + 1], first keys, and their number
  std::int32_t count = 0;                //!< sequences, at least one; each may be empty
  //! The last query of a sequence sees all its keys, and each query one less than the next.
  bool causal = false;

  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool keep(pair_position at) const {
    auto const seen = keys_of({at.query, at.query + 1});
    return at.key >= seen.begin && at.key < seen.end;
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(tile_position at) const {
    auto const first = keys_of({at.query_begin, at.query_begin + 1});
    auto const last = keys_of({at.query_end - 1, at.query_end});
    if (at.key_end <= first.begin || at.key_begin >= last.end) {
      return tile_cover::skip;
    }
    bool const whole =
      first.begin == last.begin && at.key_begin >= first.begin && at.key_end <= first.end;
    return whole ? tile_cover::full : tile_cover::partial;
  }
  //! Keys from the first of the first query's sequence to the last that the last query sees.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range keys_seen(tile_position at) const {
    auto const [begin, end] = keys_of({at.query_begin, at.query_end});
    return detail::positions_within(begin, end, {at.key_begin, at.key_end});
  }
  //! Queries from the first that sees the first key, or a later one, to the last of the last key's
  //! sequence.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  queries_seeing(tile_position at) const {
    auto const first = sequence_of(keys, at.key_begin);
    auto const last = sequence_of(keys, at.key_end - 1);
    auto begin = queries[first];
    if (causal) {
      auto const late = queries[first + 1] - (keys[first + 1] - at.key_begin);
      begin = late > begin ? late : begin;
    }
    return detail::positions_within(begin, queries[last + 1], {at.query_begin, at.query_end});
  }

private:
  //! The last sequence that begins at or before a position: the one that has it.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr std::int32_t
  sequence_of(std::int32_t const* starts, std::int32_t position) const {
    std::int32_t in = 0;
    std::int32_t out = count;
    while (out - in > 1) {
      auto const middle = in + (out - in) / 2;
      if (starts[middle] <= position) {
        in = middle;
      } else {
        out = middle;
      }
    }
    return in;
  }
  //! Keys from the first that any of some queries sees to the last, neither falling with them.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range keys_of(position_range some) const {
    auto const last = sequence_of(queries, some.end - 1);
    auto const first = some.begin >= queries[last] ? last : sequence_of(queries, some.begin);
    auto end = keys[last + 1];
    if (causal) {
      end -= queries[last + 1] - some.end;
      end = end > keys[last] ? end : keys[last];
    }
    return {keys[first], end};
  }
};

} // namespace pipelining::inline v0_3::attention
