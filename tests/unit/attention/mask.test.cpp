// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/mask.hpp>
#include <pipe/attention/packed_mask.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "problem.hpp"

namespace at = pipelining::attention;

namespace {

//! The only true answer for a tile, by asking every pair.
template <class Mask>
at::tile_cover by_brute_force(Mask const& mask, at::tile_position t) {
  bool any = false;
  bool all = true;
  for (auto q = t.query_begin; q < t.query_end; ++q) {
    for (auto k = t.key_begin; k < t.key_end; ++k) {
      bool const kept = mask.keep({t.batch, t.head, q, k});
      any = any || kept;
      all = all && kept;
    }
  }
  return !any ? at::tile_cover::skip : all ? at::tile_cover::full : at::tile_cover::partial;
}

//! Compares answers on many tiles. Exact masks must agree; others may answer partial.
template <class Mask>
void check_tiles(Mask const& mask, bool exact, std::int32_t positions, unsigned seed) {
  std::mt19937 random(seed);
  auto const below = [&](std::int32_t n) {
    return std::uniform_int_distribution<std::int32_t>(0, n)(random);
  };
  int skipped = 0;
  int full = 0;
  for (int round = 0; round < 3000; ++round) {
    auto const q = below(positions - 1);
    auto const k = below(positions - 1);
    at::tile_position const tile{below(1),
                                 below(2),
                                 q,
                                 q + 1 + below(std::min(9, positions - q - 1)),
                                 k,
                                 k + 1 + below(std::min(9, positions - k - 1))};
    auto const truth = by_brute_force(mask, tile);
    auto const answer = at::cover(mask, tile);
    REQUIRE((answer == truth || (!exact && answer == at::tile_cover::partial)));
    skipped += answer == at::tile_cover::skip;
    full += answer == at::tile_cover::full;
  }
  CHECK(skipped + full > 300); // the answers must also be worth something
}

//! Holds ranges against every pair: they have all that is kept, and where the mask is one band
//! nothing else at either end.
template <at::band_mask Mask>
void check_ranges(Mask const& mask, bool exact, std::int32_t positions, unsigned seed) {
  std::mt19937 random(seed);
  auto const below = [&](std::int32_t n) {
    return std::uniform_int_distribution<std::int32_t>(0, n)(random);
  };
  auto const check = [&](at::position_range range, at::position_range all, auto const& any_kept) {
    REQUIRE(range.begin >= all.begin);
    REQUIRE(range.end <= all.end);
    at::position_range kept{all.end, all.begin};
    for (auto n = all.begin; n < all.end; ++n) {
      if (any_kept(n)) {
        kept = {std::min(kept.begin, n), n + 1};
      }
    }
    if (kept.begin < kept.end) {
      REQUIRE(range.begin <= kept.begin);
      REQUIRE(range.end >= kept.end);
    }
    if (exact) {
      REQUIRE((kept.begin < kept.end ? range.begin == kept.begin && range.end == kept.end
                                     : range.begin >= range.end));
    }
  };
  // Blocks wait for tiles that are not skipped, and visit those that reach into the range.
  auto const check_tile =
    [&](at::tile_position tile, at::position_range range, std::int32_t first) {
      if (at::cover(mask, tile) != at::tile_cover::skip) {
        REQUIRE(range.begin / 4 <= first / 4);
        REQUIRE((range.end + 3) / 4 > first / 4);
      }
    };
  for (int round = 0; round < 2000; ++round) {
    auto const some = below(positions - 1);
    auto const some_end = some + 1 + below(std::min(9, positions - some - 1));
    auto const begin = below(positions - 1);
    auto const end = begin + 1 + below(positions - begin - 1);
    auto const batch = below(1);
    at::tile_position const keys{batch, 0, some, some_end, begin, end};
    check(mask.keys_seen(keys), {begin, end}, [&](std::int32_t k) {
      return by_brute_force(mask, {batch, 0, some, some_end, k, k + 1}) != at::tile_cover::skip;
    });
    at::tile_position const queries{batch, 0, begin, end, some, some_end};
    check(mask.queries_seeing(queries), {begin, end}, [&](std::int32_t q) {
      return by_brute_force(mask, {batch, 0, q, q + 1, some, some_end}) != at::tile_cover::skip;
    });
    for (std::int32_t first = 0; first < positions; first += 4) {
      auto const seen = mask.keys_seen({batch, 0, some, some_end, 0, positions});
      check_tile({batch, 0, some, some_end, first, first + 4}, seen, first);
      auto const seeing = mask.queries_seeing({batch, 0, 0, positions, some, some_end});
      check_tile({batch, 0, first, first + 4, some, some_end}, seeing, first);
    }
  }
}

} // namespace

TEST_CASE("masks with closed forms answer for tiles exactly") {
  check_tiles(at::full{}, true, 40, 1);
  check_tiles(at::causal{}, true, 40, 2);
  for (std::int32_t before = 0; before < 12; before += 3) {
    for (std::int32_t after = 0; after < 12; after += 4) {
      check_tiles(at::sliding_window{before, after}, true, 40, 3);
    }
  }
}

TEST_CASE("ranges of bands end where the first and the last kept pair lie") {
  check_ranges(at::full{}, true, 40, 1);
  check_ranges(at::causal{}, true, 40, 2);
  for (std::int32_t before = 0; before < 12; before += 3) {
    for (std::int32_t after = 0; after < 12; after += 4) {
      check_ranges(at::sliding_window{before, after}, true, 40, 3);
    }
  }
  check_ranges(at::sliding_window{2147483647, 2147483647}, true, 40, 4);
}

TEST_CASE("document and combined masks never answer wrongly") {
  std::vector<std::int32_t> first(2 * 40);
  std::mt19937 random(5);
  for (std::size_t b = 0; b < 2; ++b) {
    std::int32_t start = 0;
    for (std::int32_t i = 0; i < 40; ++i) {
      start = std::uniform_int_distribution<int>(0, 6)(random) == 0 ? i : start;
      first[b * 40 + static_cast<std::size_t>(i)] = start;
    }
  }
  at::document const documents{first.data(), 40};
  check_tiles(documents, false, 40, 6);
  check_tiles(at::both<at::causal, at::document>{{}, documents}, false, 40, 7);
  check_tiles(at::both<at::causal, at::sliding_window>{{}, {5, 3}}, false, 40, 8);
  check_ranges(documents, true, 40, 9);
  check_ranges(at::both<at::causal, at::document>{{}, documents}, true, 40, 10);
  check_ranges(at::both<at::document, at::sliding_window>{documents, {5, 3}}, true, 40, 11);
  static_assert(!at::band_mask<at::both<at::causal, attention_tests::speckled>>);
}

TEST_CASE("packed sequences keep what their lengths say, and never answer wrongly") {
  std::mt19937 random(12);
  for (int round = 0; round < 30; ++round) {
    // Both tables end at 40, after sequences of any lengths, also none.
    auto const table = [&](int count) {
      std::vector<std::int32_t> starts{0, 40};
      for (int n = 1; n < count; ++n) {
        starts.push_back(std::uniform_int_distribution<int>(0, 40)(random));
      }
      std::sort(starts.begin(), starts.end());
      return starts;
    };
    int const count = 1 + round % 7;
    auto const queries = table(count);
    auto const keys = table(count);
    for (bool const causal : {false, true}) {
      at::packed const mask{queries.data(), keys.data(), count, causal};
      for (std::size_t s = 0; s < static_cast<std::size_t>(count); ++s) {
        for (auto q = queries[s]; q < queries[s + 1]; ++q) {
          auto const after = queries[s + 1] - 1 - q; // queries of the sequence
          for (std::int32_t k = 0; k < 40; ++k) {
            bool const kept =
              k >= keys[s] && k < keys[s + 1] && (!causal || keys[s + 1] - 1 - k >= after);
            REQUIRE(mask.keep({0, 0, q, k}) == kept);
          }
        }
      }
      check_tiles(mask, false, 40, 13);
      check_ranges(mask, false, 40, 14);
    }
  }
}

TEST_CASE("a mask without an answer for tiles is asked pair by pair") {
  CHECK(at::cover(attention_tests::speckled{}, {0, 0, 0, 4, 0, 4}) == at::tile_cover::partial);
  static_assert(at::mask<attention_tests::speckled> && !at::tile_mask<attention_tests::speckled>);
  static_assert(at::tile_mask<at::causal> && !at::mask<int>);
}

TEST_CASE("masks mean what their names say") {
  static_assert(at::causal{}.keep({0, 0, 3, 3}) && !at::causal{}.keep({0, 0, 3, 4}));
  static_assert(at::sliding_window{2, 0}.keep({0, 0, 5, 3}));
  static_assert(!at::sliding_window{2, 0}.keep({0, 0, 5, 2}));
  static_assert(!at::sliding_window{2, 0}.keep({0, 0, 5, 6}));
  static_assert(at::sliding_window{2, 1}.keep({0, 0, 5, 6}));
}
