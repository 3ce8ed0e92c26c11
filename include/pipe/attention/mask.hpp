// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Keys that a query sees: the mask concept, the usual masks, and their answers for whole
//! tiles.

#include <pipe/config.hpp>

#include <concepts>
#include <cstdint>

namespace pipelining::inline v0_3::attention {

//! @brief One (query, key) pair, by positions in the sequence, for one head of one sequence.
struct pair_position {
  std::int32_t batch; //!< the sequence
  std::int32_t head;  //!< query head
  std::int32_t query; //!< position of the query
  std::int32_t key;   //!< position of the key
};

//! @brief All pairs of queries [query_begin, query_end) and keys [key_begin, key_end); never empty.
struct tile_position {
  std::int32_t batch;       //!< the sequence
  std::int32_t head;        //!< query head
  std::int32_t query_begin; //!< position of the first query
  std::int32_t query_end;   //!< one after the last query
  std::int32_t key_begin;   //!< position of the first key
  std::int32_t key_end;     //!< one after the last key
};

//! @brief The cover of a tile by a mask.
enum class tile_cover : std::uint8_t {
  skip,    //!< no pair is kept: the tile costs nothing
  partial, //!< unknown or mixed: every pair is asked
  full,    //!< every pair is kept: no pair is asked
};

//! @brief A mask says for each pair whether the query sees the key.
template <class Mask>
concept mask = requires(Mask const& m, pair_position at) {
  { m.keep(at) } -> std::convertible_to<bool>;
};

//! @brief A mask that also answers for tiles. Skip and full must be true; partial is always
//! allowed.
template <class Mask>
concept tile_mask = mask<Mask> && requires(Mask const& m, tile_position at) {
  { m.cover(at) } -> std::convertible_to<tile_cover>;
};

//! @brief Positions [begin, end); none where end is not above begin.
struct position_range {
  std::int32_t begin; //!< first position
  std::int32_t end;   //!< one after the last
};

namespace detail {

//! Positions [begin, end), as far as they are among others.
template <class Position>
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
positions_within(Position begin, Position end, position_range all) {
  return {begin > all.begin ? static_cast<std::int32_t>(begin) : all.begin,
          end < all.end ? static_cast<std::int32_t>(end) : all.end};
}

} // namespace detail

//! @brief A mask that also says which keys of a tile its queries see at most, and which queries
//! its keys. The tiles that it does not skip follow each other without a gap, along keys and along
//! queries, and reach into the range: a tile outside of it is one that `cover` skips, since blocks
//! wait for each other's tiles by what it says.
//! The tile is as long as the call, in the asked direction; ranges lie within.
template <class Mask>
concept band_mask = tile_mask<Mask> && requires(Mask const& m, tile_position at) {
  { m.keys_seen(at) } -> std::same_as<position_range>;
  { m.queries_seeing(at) } -> std::same_as<position_range>;
};

//! @brief The answer of any mask for a tile; a mask without one gets every pair asked.
template <mask Mask>
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(Mask const& m, tile_position at) {
  if constexpr (tile_mask<Mask>) {
    return m.cover(at);
  } else {
    return tile_cover::partial;
  }
}

//! @brief Every query sees every key.
struct full {
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool keep(pair_position) const { return true; }
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(tile_position) const {
    return tile_cover::full;
  }
  //! All keys.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range keys_seen(tile_position at) const {
    return {at.key_begin, at.key_end};
  }
  //! All queries.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  queries_seeing(tile_position at) const {
    return {at.query_begin, at.query_end};
  }
};

//! @brief A query sees keys from `before` positions before it to `after` positions after it.
struct sliding_window {
  std::int32_t before = 0; //!< earlier positions that a query sees
  std::int32_t after = 0;  //!< positions ahead of the query that it sees

  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool keep(pair_position at) const {
    auto const ahead = at.key - at.query; // positions are never negative, so 32 bits do
    return ahead >= -before && ahead <= after;
  }

  //! A tile holds every difference key - query between its two corners, so the answer is exact.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(tile_position at) const {
    auto const least = std::int64_t{at.key_begin} - (std::int64_t{at.query_end} - 1);
    auto const most = std::int64_t{at.key_end} - 1 - at.query_begin;
    if (most < -std::int64_t{before} || least > after) {
      return tile_cover::skip;
    }
    return least >= -std::int64_t{before} && most <= after ? tile_cover::full : tile_cover::partial;
  }
  //! Keys from `before` before the first query to `after` after the last.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range keys_seen(tile_position at) const {
    return detail::positions_within(std::int64_t{at.query_begin} - before,
                                    std::int64_t{at.query_end} + after,
                                    {at.key_begin, at.key_end});
  }
  //! Queries from `after` before the first key to `before` after the last.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  queries_seeing(tile_position at) const {
    return detail::positions_within(std::int64_t{at.key_begin} - after,
                                    std::int64_t{at.key_end} + before,
                                    {at.query_begin, at.query_end});
  }
};

//! @brief A query sees itself and all keys before it.
struct causal {
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool keep(pair_position at) const {
    return at.key <= at.query;
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(tile_position at) const {
    if (at.key_begin > at.query_end - 1) {
      return tile_cover::skip;
    }
    return at.key_end - 1 <= at.query_begin ? tile_cover::full : tile_cover::partial;
  }
  //! Keys up to the last query.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range keys_seen(tile_position at) const {
    return detail::positions_within(at.key_begin, at.query_end, {at.key_begin, at.key_end});
  }
  //! Queries from the first key on.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  queries_seeing(tile_position at) const {
    return detail::positions_within(at.key_begin, at.query_end, {at.query_begin, at.query_end});
  }
};

//! @brief A query sees the keys of its own document, for sequences packed from several documents.
struct document {
  //! First position of the document that each position belongs to: [batch, all positions], never
  //! falling along a sequence. The memory is the caller's, on the side (host, GPU) of the call.
  std::int32_t const* first = nullptr;
  std::int64_t batch_stride = 0; //!< elements from one sequence to the next; 0 shares one table

  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool keep(pair_position at) const {
    return start(at.batch, at.query) == start(at.batch, at.key);
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(tile_position at) const {
    auto const query_first = start(at.batch, at.query_begin);
    auto const query_last = start(at.batch, at.query_end - 1);
    auto const key_first = start(at.batch, at.key_begin);
    auto const key_last = start(at.batch, at.key_end - 1);
    if (query_last < key_first || key_last < query_first) {
      return tile_cover::skip;
    }
    bool const one = query_first == query_last && key_first == key_last && query_first == key_first;
    return one ? tile_cover::full : tile_cover::partial;
  }
  //! Keys of the documents of all queries. Reads the table 2 + log2(keys after the queries) times.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range keys_seen(tile_position at) const {
    return documents_of(at.batch, {at.query_begin, at.query_end}, {at.key_begin, at.key_end});
  }
  //! Queries of the documents of all keys, likewise.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  queries_seeing(tile_position at) const {
    return documents_of(at.batch, {at.key_begin, at.key_end}, {at.query_begin, at.query_end});
  }

private:
  //! Positions of `all` in the documents of some positions.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  documents_of(std::int32_t batch, position_range some, position_range all) const {
    auto const begin = start(batch, some.begin);
    auto const last = start(batch, some.end - 1);
    auto in = all.begin > some.end ? all.begin : some.end; // from here on, in the last document?
    auto out = all.end;                                    // not in it
    while (in < out) {
      auto const middle = in + (out - in) / 2;
      if (start(batch, middle) == last) {
        in = middle + 1;
      } else {
        out = middle;
      }
    }
    return detail::positions_within(begin, out, all);
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr std::int32_t start(std::int32_t batch,
                                                                    std::int32_t position) const {
    return first[batch * batch_stride + position];
  }
};

//! @brief A query sees the keys that both masks keep, as in both<causal, document>.
template <mask First, mask Second>
struct both {
  First one;  //!< a key must pass this mask
  Second two; //!< and this one

  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool keep(pair_position at) const {
    return one.keep(at) && two.keep(at);
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr tile_cover cover(tile_position at) const {
    auto const a = attention::cover(one, at);
    auto const b = attention::cover(two, at);
    if (a == tile_cover::skip || b == tile_cover::skip) {
      return tile_cover::skip;
    }
    return a == tile_cover::full && b == tile_cover::full ? tile_cover::full : tile_cover::partial;
  }
  //! Keys in the ranges of both masks; the second is asked within that of the first.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  keys_seen(tile_position at) const requires band_mask<First> && band_mask<Second> {
    auto const range = one.keys_seen(at);
    at.key_begin = range.begin;
    at.key_end = range.end;
    return range.begin < range.end ? two.keys_seen(at) : range;
  }
  //! Queries in the ranges of both masks, likewise.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr position_range
  queries_seeing(tile_position at) const requires band_mask<First> && band_mask<Second> {
    auto const range = one.queries_seeing(at);
    at.query_begin = range.begin;
    at.query_end = range.end;
    return range.begin < range.end ? two.queries_seeing(at) : range;
  }
};

namespace detail {

//! Where the keys end that a query sees.
struct end_of_keys {
  bool is_beyond_query = false; //!< after its own position, which it sees
  bool follows_query = false;   //!< soon after: queries far from each other end at other keys
};

template <class Mask>
[[nodiscard]] constexpr end_of_keys end_seen(Mask const&) {
  return {};
}
[[nodiscard]] constexpr end_of_keys end_seen(full const&) {
  return {true, false};
}
[[nodiscard]] constexpr end_of_keys end_seen(document const&) {
  return {true, false};
}
[[nodiscard]] constexpr end_of_keys end_seen(causal const&) {
  return {true, true};
}
[[nodiscard]] constexpr end_of_keys end_seen(sliding_window const& m) {
  return {m.before >= 0 && m.after >= 0, true};
}
template <mask First, mask Second>
[[nodiscard]] constexpr end_of_keys end_seen(both<First, Second> const& m) {
  auto const a = end_seen(m.one);
  auto const b = end_seen(m.two);
  return {a.is_beyond_query && b.is_beyond_query, a.follows_query || b.follows_query};
}

} // namespace detail

} // namespace pipelining::inline v0_3::attention
