// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tiles of the host implementation: packing, the one inner loop, and the reusable
//! workspace.
//!
//! Every number is summed in an order that depends on positions alone, never on where a chunk
//! begins or how long it is. That is why n chunks equal one chunk bit for bit on the host:
//! key tiles start at multiples of tile_keys and are padded with zeros to full width; dK and dV
//! receive one query after the other, the last query first.

#include <pipe/attention/host/vectors.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/score.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3::attention {

//! @brief Scratch memory of the host implementation; keep one per thread and a warm call allocates
//! nothing.
template <class Real>
class workspace {
public:
  //! @brief Scratch of `count` numbers with unspecified values; earlier scratch becomes invalid.
  [[nodiscard]] Real* reserve(std::int64_t count) {
    if (memory_.size() < static_cast<std::size_t>(count)) {
      memory_.resize(static_cast<std::size_t>(count));
    }
    return memory_.data();
  }

private:
  std::vector<Real> memory_;
};

namespace detail {

inline constexpr std::int64_t tile_rows = 64;  //!< (query, head) rows of a tile
inline constexpr std::int64_t tile_keys = 64;  //!< keys of a tile
inline constexpr std::int64_t some_blocks = 4; //!< of rows, for which keys are packed once

template <class Real>
inline constexpr Real no_logit = -std::numeric_limits<Real>::infinity();

//! exp(logit - most) for a logit that is at most a little above most; no_logit gives exactly 0. NaN
//! stays NaN.
template <class Real>
[[nodiscard, gnu::always_inline]] inline Real weight_of(Real logit, Real most) {
  if constexpr (std::is_same_v<Real, float>) {
    auto const nothing = std::bit_cast<std::uint32_t>(no_logit<float>);
    auto const some = static_cast<std::uint32_t>(std::bit_cast<std::uint32_t>(logit) != nothing);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(exponential(logit - most)) * some);
  } else {
    return logit == no_logit<Real> ? Real{0} : std::exp(logit - most);
  }
}

//! A part of a scratch: the pointer that shall have it, its numbers, and the blocks that have one
//! each; 1: they share it.
template <class Real>
struct scratch_part {
  Real** at;
  std::int64_t count;
  std::int64_t blocks = 1;
};

//! Lays parts of a scratch next to each other, and points at those of one block.
template <class Real>
void place_parts(workspace<Real>& space,
                 std::int64_t block,
                 std::initializer_list<scratch_part<Real>> parts) {
  std::int64_t count = 0;
  for (auto const& part : parts) {
    count += part.count * part.blocks;
  }
  Real* next = space.reserve(count);
  for (auto const& part : parts) {
    *part.at = next + block % part.blocks * part.count;
    next += part.count * part.blocks;
  }
}

//! Some rows of one sequence that share a key head. Row r is query r / group, head r % group of the
//! group. Scratch has the rows of a tile last first.
struct row_block {
  std::int64_t batch;
  std::int64_t key_head;
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
  //! How many tiles the rows fill.
  [[nodiscard]] std::int64_t blocks() const { return (count() + tile_rows - 1) / tile_rows; }
  //! Rows of one tile, the last tile first.
  [[nodiscard]] row_block block(std::int64_t k) const {
    auto const to = end - k * tile_rows;
    return {batch, key_head, std::max(to - tile_rows, begin), to};
  }
};

//! Index of a query, and its head.
struct row_place {
  std::int64_t query;
  std::int64_t head;
};

//! Place of a row of a tile. @param local where scratch has it
[[nodiscard]] inline row_place
place_of(parameters const& p, row_block const& rows, std::int64_t local) {
  auto const r = rows.end - 1 - local;
  return {r / p.group(), rows.key_head * p.group() + r % p.group()};
}

//! Keys [begin, end) of a tile, by index into the key tensor.
struct key_block {
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

//! to [rows, columns] += transposed(from [inner, rows]) other [inner, columns]; sums of a wider
//! type than the factors take the plain loop.
template <class Sum, class Real>
void add_across(vector_version version,
                strided_rows<Sum> to,
                strided_rows<Real const> from,
                Real const* other,
                std::int64_t rows,
                std::int64_t inner,
                std::int64_t columns) {
  if constexpr (std::is_same_v<Sum, Real>) {
    add_product<Real>(
      version, to, {from.data, 1, from.stride}, {other, columns}, rows, inner, columns);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < inner; ++i) {
        Sum const factor = from.data[i * from.stride + r];
        for (std::int64_t x = 0; x < columns; ++x) {
          to.data[r * to.stride + x] += factor * other[i * columns + x];
        }
      }
    }
  }
}

//! Eight numbers of a row, in every version: the order of a sum shall be the same in all.
template <class Real>
using eight_keys = typename vector_register<Real, 8 * sizeof(Real)>::type;

//! Sum of a full row of a tile, in one fixed order.
template <class Real>
[[nodiscard, gnu::always_inline]] inline Real sum_of_keys(Real const* row) {
  eight_keys<Real> part = {};
  for (std::int64_t j = 0; j < tile_keys; j += 8) {
    part += *reinterpret_cast<eight_keys<Real> const*>(row + j);
  }
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

//! Largest of a full row of a tile and of one more number, by halves: each step must wait.
template <class Real>
[[gnu::always_inline, nodiscard]] inline Real largest_of_keys(Real const* row, Real more) {
  constexpr int eights = tile_keys / 8;
  eight_keys<Real> most[eights];
  for (int i = 0; i < eights; ++i) {
    most[i] = *reinterpret_cast<eight_keys<Real> const*>(row + i * 8);
  }
  for (int half = eights / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      most[i] = most[i + half] > most[i] ? most[i + half] : most[i];
    }
  }
  Real lane[8];
  for (int i = 0; i < 8; ++i) {
    lane[i] = most[0][i];
  }
  for (int half = 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
    }
  }
  return lane[0] > more ? lane[0] : more;
}

//! Copies rows of a query-shaped tensor, times factor, to [rows, dim].
template <class Element, class Real>
void pack_rows(parameters const& p,
               tensor_view<Element const> const& from,
               row_block const& rows,
               Real factor,
               Real* to) {
  for (std::int64_t local = 0; local < rows.count(); ++local) {
    auto const [query, head] = place_of(p, rows, local);
    Element const* const source = from.row(rows.batch, query, head);
    for (std::int64_t d = 0; d < from.dim; ++d) {
      to[local * from.dim + d] = factor * static_cast<Real>(source[d]);
    }
  }
}

//! Copies the keys of a tile to [tile_keys, dim].
template <class Element, class Real>
void pack_keys(tensor_view<Element const> const& from,
               row_block const& rows,
               key_block const& keys,
               Real* to) {
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    Element const* const source = from.row(rows.batch, j, rows.key_head);
    for (std::int64_t d = 0; d < from.dim; ++d) {
      *to++ = static_cast<Real>(source[d]);
    }
  }
}

//! Copies the keys of a tile to [dim, tile_keys], with zeros where the tile has no key. Some dims
//! of all keys at a time, so that what is written stays in the cache.
template <class Element, class Real>
void pack_keys_across(tensor_view<Element const> const& from,
                      row_block const& rows,
                      key_block const& keys,
                      Real* to) {
  constexpr std::int64_t dims = 8;
  for (std::int64_t begin = 0; begin < from.dim; begin += dims) {
    auto const end = begin + dims < from.dim ? begin + dims : from.dim;
    for (std::int64_t j = 0; j < keys.count(); ++j) {
      Element const* const source = from.row(rows.batch, keys.begin + j, rows.key_head);
      for (std::int64_t d = begin; d < end; ++d) {
        to[d * tile_keys + j] = static_cast<Real>(source[d]);
      }
    }
    for (std::int64_t d = begin; d < end; ++d) {
      for (std::int64_t j = keys.count(); j < tile_keys; ++j) {
        to[d * tile_keys + j] = 0;
      }
    }
  }
}

//! The mask's answer for all heads of a tile together.
template <mask Mask>
[[nodiscard]] tile_cover
cover_of(parameters const& p, Mask const& m, row_block const& rows, key_block const& keys) {
  bool all_skip = true;
  bool all_full = true;
  for (std::int64_t g = 0; g < p.group(); ++g) {
    auto const answer = attention::cover(
      m,
      tile_position{static_cast<std::int32_t>(rows.batch),
                    static_cast<std::int32_t>(rows.key_head * p.group() + g),
                    static_cast<std::int32_t>(p.query_offset + rows.begin / p.group()),
                    static_cast<std::int32_t>(p.query_offset + (rows.end - 1) / p.group() + 1),
                    static_cast<std::int32_t>(p.key_offset + keys.begin),
                    static_cast<std::int32_t>(p.key_offset + keys.end)});
    all_skip = all_skip && answer == tile_cover::skip;
    all_full = all_full && answer == tile_cover::full;
  }
  return all_skip ? tile_cover::skip : all_full ? tile_cover::full : tile_cover::partial;
}

//! Position of a row of a tile against the first key of a tile. @param local where scratch has it
[[nodiscard]] inline pair_position
first_pair(parameters const& p, row_block const& rows, std::int64_t local, key_block const& keys) {
  auto const [query, head] = place_of(p, rows, local);
  return {static_cast<std::int32_t>(rows.batch),
          static_cast<std::int32_t>(head),
          static_cast<std::int32_t>(p.query_offset + query),
          static_cast<std::int32_t>(p.key_offset + keys.begin)};
}

//! Turns the products of one row into logits; unseen keys and padding get no_logit.
template <mask Mask, score Score, class Real>
void logits_of_row(vector_version version,
                   Mask const& m,
                   Score const& f,
                   tile_cover covered,
                   pair_position at,
                   key_block const& keys,
                   Real const* product,
                   Real* logit) {
  auto const count = keys.count();
  auto const first = at.key;
  if constexpr (std::is_same_v<Score, plain>) {
    version.run([=, &m](auto) {
      Real row[tile_keys]; // the compiler need not ask whether product and logit are the same
      std::copy_n(product, tile_keys, row);
      pair_position pair = at;
      for (std::int64_t j = 0; j < count; ++j) {
        pair.key = first + static_cast<std::int32_t>(j);
        row[j] = covered == tile_cover::full || m.keep(pair) ? row[j] : no_logit<Real>;
      }
      std::copy_n(row, tile_keys, logit);
    });
  } else {
    for (std::int64_t j = 0; j < count; ++j) {
      at.key = first + static_cast<std::int32_t>(j);
      logit[j] =
        covered == tile_cover::full || m.keep(at) ? f.value(product[j], at) : no_logit<Real>;
    }
  }
  for (std::int64_t j = count; j < tile_keys; ++j) {
    logit[j] = no_logit<Real>;
  }
}

//! True when logits_of_row would change nothing.
template <score Score>
[[nodiscard]] bool products_are_logits(tile_cover covered, key_block const& keys) {
  return std::is_same_v<Score, plain> && covered == tile_cover::full && keys.count() == tile_keys;
}

//! Walks all tiles of a call: some tiles of rows at a time, the last rows of a head first, through
//! all keys, which are packed once for all of them.
//! @param pass has p, m and a type scratch, and start(rows, scratch), pack(rows, keys, scratch),
//! visit(rows, keys, cover, scratch) and finish(rows, scratch)
template <class Pass, class Real>
void walk_tiles(Pass const& pass, workspace<Real>& space) {
  auto const& p = pass.p;
  auto const scratch = [&](std::int64_t k) { return typename Pass::scratch(space, p, k); };
  auto const walk = [&](row_block const& rows) {
    for (std::int64_t k = 0; k < rows.blocks(); ++k) {
      pass.start(rows.block(k), scratch(k));
    }
    for (std::int64_t j = 0; j < p.key_length; j += tile_keys) {
      key_block const keys{j, std::min(j + tile_keys, p.key_length)};
      bool packed = false;
      for (std::int64_t k = 0; k < rows.blocks(); ++k) {
        auto const covered = cover_of(p, pass.m, rows.block(k), keys);
        if (covered != tile_cover::skip) {
          if (!packed) {
            pass.pack(rows, keys, scratch(k));
            packed = true;
          }
          pass.visit(rows.block(k), keys, covered, scratch(k));
        }
      }
    }
    for (std::int64_t k = 0; k < rows.blocks(); ++k) {
      pass.finish(rows.block(k), scratch(k));
    }
  };
  constexpr auto some_rows = some_blocks * tile_rows;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t kv = 0; kv < p.key_heads; ++kv) {
      for (std::int64_t end = p.query_length * p.group(); end > 0; end -= some_rows) {
        walk({b, kv, std::max<std::int64_t>(end - some_rows, 0), end});
      }
    }
  }
}

} // namespace detail

} // namespace pipelining::inline v0_3::attention
