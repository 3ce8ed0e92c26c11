// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Loops on the host in several versions for processors with wider registers, and the
//! product of matrices in tiles of registers.
//!
//! Every number is a sum to which one term after the other is added, in an order that only the
//! place of the number decides. A tile keeps some of these sums in registers and changes no order:
//! the bits are those of the plain loop of its version. Versions differ from each other only as
//! fused multiplication and addition does.

#include <pipe/config.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

//! @brief exp(x) for an x that is at most a little above 0.
//!
//! For float a short polynomial to about seven digits that compilers turn into vector code:
//! comparisons are made on bits, because those of floats are branches where they may trap.
template <class Real>
[[nodiscard, gnu::always_inline]] inline Real exponential(Real x) {
  if constexpr (std::is_same_v<Real, float>) {
    constexpr auto lowest = std::bit_cast<std::uint32_t>(-87.0f); // exp of less is no number
    constexpr float rounder = 12582912; // 1.5 * 2^23 leaves the nearest integer in the low bits
    auto const bits = std::bit_cast<std::uint32_t>(x);
    auto const power = std::bit_cast<float>(bits < lowest ? bits : lowest); // negatives go down
    float const shifted = power * 1.44269504f + rounder;
    float const n = shifted - rounder;
    float const r = (power - n * 0.693145752f) - n * 1.42860677e-6f; // ln 2 in two parts
    float const high = 0.0416666667f + r * (0.00833333333f + r * 0.00138888889f);
    float const tail = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * high)));
    auto const two_to_n = (std::bit_cast<std::uint32_t>(shifted) << 23) + (127u << 23);
    return tail * std::bit_cast<float>(two_to_n);
  } else {
    return std::exp(x);
  }
}

//! @brief A version of the loops: which instructions they are made of.
class vector_version {
public:
  //! @brief All versions, the lowest first.
  enum kind : std::uint8_t {
    plain,     //!< what the flags of the build allow, 128 bits without any
    x86_64_v3, //!< AVX2 and FMA, 256 bits
    x86_64_v4, //!< AVX-512, 512 bits
  };

  //! @brief One version. @param of that this processor has
  constexpr vector_version(kind of) : kind_(of) {} // NOLINT(google-explicit-constructor)

  //! @brief The highest version of this processor.
  [[nodiscard]] static vector_version highest() noexcept {
#ifdef PIPELINING_X86_64_V3
    if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
        __builtin_cpu_supports("bmi2") != 0) {
      bool const wide =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
        __builtin_cpu_supports("avx512vl") != 0;
      return wide ? x86_64_v4 : x86_64_v3;
    }
#endif
    return plain;
  }

  //! @brief A version by its name. @throws std::invalid_argument where this processor has none of
  //! that name
  [[nodiscard]] static vector_version named(std::string_view name) {
    for (auto const each : {plain, x86_64_v3, x86_64_v4}) {
      if (each <= highest() && name == vector_version(each).name()) {
        return each;
      }
    }
    throw std::invalid_argument(
      "vector_version: this processor has no version '" + std::string(name.substr(0, 40)) +
      "' of the vector loops; choose plain" + (highest() >= x86_64_v3 ? ", x86-64-v3" : "") +
      (highest() >= x86_64_v4 ? ", x86-64-v4" : ""));
  }

  //! @brief The version that this process uses: the highest, or the one that PIPELINING_VECTORS
  //! names. Asks once.
  //! @throws std::invalid_argument as named
  [[nodiscard]] static vector_version of_process() {
    static vector_version const chosen = [] {
      char const* const name = std::getenv("PIPELINING_VECTORS");
      return name == nullptr ? highest() : named(name);
    }();
    return chosen;
  }

  //! @brief plain, x86-64-v3 or x86-64-v4.
  [[nodiscard]] constexpr char const* name() const {
    return kind_ == x86_64_v4 ? "x86-64-v4" : kind_ == x86_64_v3 ? "x86-64-v3" : "plain";
  }

  //! @brief For comparison.
  constexpr operator kind() const {
    return kind_;
  } // NOLINT(google-explicit-constructor)

  //! @brief Calls work(bytes), compiled for this version. @param work lambda of which all that
  //! matters is inlined; bytes is the width of a register, a std::integral_constant
  template <class Work>
  void run(Work const& work) const {
#ifdef PIPELINING_X86_64_V3
    if (kind_ == x86_64_v4) {
      return run_on_v4(work);
    }
    if (kind_ == x86_64_v3) {
      return run_on_v3(work);
    }
#endif
    work(std::integral_constant<int, bytes_of_build>());
  }

private:
#if defined(__AVX512F__)
  static constexpr int bytes_of_build = 64;
#elif defined(__AVX2__)
  static constexpr int bytes_of_build = 32;
#else
  static constexpr int bytes_of_build = 16;
#endif

#ifdef PIPELINING_X86_64_V3
  template <class Work>
  PIPELINING_X86_64_V3 static void run_on_v3(Work const& work) {
    work(std::integral_constant<int, 32>());
  }
  template <class Work>
  PIPELINING_X86_64_V4 static void run_on_v4(Work const& work) {
    work(std::integral_constant<int, 64>());
  }
#endif

  kind kind_;
};

namespace detail {

inline constexpr int register_rows = 6; //!< of a tile of registers

//! Numbers of one register, at any place in memory.
template <class Number, int Bytes>
struct vector_register {
  typedef Number type __attribute__((vector_size(Bytes), aligned(alignof(Number)), may_alias));
  static constexpr std::int64_t lanes = Bytes / static_cast<int>(sizeof(Number));
};

//! Rows of numbers in memory, `stride` numbers from one to the next.
template <class Number>
struct strided_rows {
  Number* data;
  std::int64_t stride;

  //! From another row and column on.
  [[nodiscard, gnu::always_inline]] strided_rows from(std::int64_t row, std::int64_t column) const {
    return {data + row * stride + column, stride};
  }
};

//! Where a product finds its factors: that of row r and term i is data[r * row + i * term].
template <class Number>
struct factor_view {
  Number const* data;
  std::int64_t row;
  std::int64_t term;
  std::int64_t tile = 0; //!< from the first row of a tile to that of the next
};

//! Rows of the other matrix, and how many of later ones to fetch in the time of a tile.
template <class Number>
struct panel_view {
  strided_rows<Number const> used;
  strided_rows<Number const> ahead;
  std::int64_t ahead_of_tile;
};

//! to [Rows, Vectors registers] += from [Rows, inner] other [inner, Vectors registers]: all sums
//! stay in registers. Adjacent: from.row is 1, which saves registers for addresses.
template <int Bytes, int Rows, int Vectors, bool Adjacent, class Number>
[[gnu::always_inline]] inline void add_tile(strided_rows<Number> to,
                                            factor_view<Number> from,
                                            strided_rows<Number const> other,
                                            std::int64_t inner) {
  using vector = typename vector_register<Number, Bytes>::type;
  constexpr auto lanes = vector_register<Number, Bytes>::lanes;
  auto const from_row = Adjacent ? 1 : from.row;
  vector sum[static_cast<unsigned>(Rows)][static_cast<unsigned>(Vectors)];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = *reinterpret_cast<vector const*>(to.data + r * to.stride + v * lanes);
    }
  }
  for (std::int64_t i = 0; i < inner; ++i) {
    vector row[static_cast<unsigned>(Vectors)];
    for (int v = 0; v < Vectors; ++v) {
      row[v] = *reinterpret_cast<vector const*>(other.data + i * other.stride + v * lanes);
    }
    for (int r = 0; r < Rows; ++r) {
      Number const factor = from.data[r * from_row + i * from.term];
      for (int v = 0; v < Vectors; ++v) {
        sum[r][v] += factor * row[v];
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      *reinterpret_cast<vector*>(to.data + r * to.stride + v * lanes) = sum[r][v];
    }
  }
}

//! The same for `count` columns that fill no tile: by way of a copy of the rows.
template <int Bytes, int Rows, int Vectors, bool Adjacent, class Number>
[[gnu::always_inline]] inline void add_tile(strided_rows<Number> to,
                                            factor_view<Number> from,
                                            strided_rows<Number const> other,
                                            std::int64_t inner,
                                            std::int64_t count) {
  constexpr auto width = Vectors * vector_register<Number, Bytes>::lanes;
  if (count == width) {
    add_tile<Bytes, Rows, Vectors, Adjacent>(to, from, other, inner);
    return;
  }
  Number copy[Rows * width] = {};
  for (int r = 0; r < Rows; ++r) {
    for (std::int64_t n = 0; n < count; ++n) {
      copy[r * width + n] = to.data[r * to.stride + n];
    }
  }
  add_tile<Bytes, Rows, Vectors, Adjacent>(strided_rows<Number>{copy, width}, from, other, inner);
  for (int r = 0; r < Rows; ++r) {
    for (std::int64_t n = 0; n < count; ++n) {
      to.data[r * to.stride + n] = copy[r * width + n];
    }
  }
}

//! Asks for the lines of some rows of Width numbers. Near is the first cache, else the second.
template <std::int64_t Width, bool Near, class Number>
[[gnu::always_inline]] inline void fetch(strided_rows<Number> from, std::int64_t rows) {
  constexpr auto line = static_cast<std::int64_t>(64 / sizeof(Number));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < Width; n += line) {
      __builtin_prefetch(from.data + r * from.stride + n, 0, Near ? 3 : 2);
    }
  }
}

//! A tile of Rows rows, if so many are left after whole tiles; moves on to the next.
template <int Bytes, int Rows, int Vectors, bool Adjacent, class Number>
[[gnu::always_inline]] inline void add_rest(strided_rows<Number>& to,
                                            factor_view<Number>& from,
                                            strided_rows<Number const> other,
                                            std::int64_t rows,
                                            std::int64_t inner,
                                            std::int64_t count) {
  if ((rows & Rows) != 0) {
    add_tile<Bytes, Rows, Vectors, Adjacent>(to, from, other, inner, count);
    to = to.from(Rows, 0);
    from.data += Rows * from.row;
  }
}

//! A column of tiles, register_rows high and at the end less. While one is made, the sums of the
//! next and rows ahead come nearer. No lambda, as compilers that do not optimise would leave it out
//! of the version.
template <int Bytes, int Vectors, bool Adjacent, class Number>
[[gnu::always_inline]] inline void add_tiles(strided_rows<Number> to,
                                             factor_view<Number> from,
                                             panel_view<Number> other,
                                             std::int64_t rows,
                                             std::int64_t inner,
                                             std::int64_t count) {
  constexpr auto width = Vectors * vector_register<Number, Bytes>::lanes;
  for (; rows >= register_rows; rows -= register_rows) {
    if (rows >= 2 * register_rows && count == width) {
      fetch<width, true>(to.from(register_rows, 0), register_rows);
    }
    fetch<width, false>(other.ahead, other.ahead_of_tile);
    other.ahead = other.ahead.from(other.ahead_of_tile, 0);
    add_tile<Bytes, register_rows, Vectors, Adjacent>(to, from, other.used, inner, count);
    to = to.from(register_rows, 0);
    from.data += from.tile;
  }
  add_rest<Bytes, 4, Vectors, Adjacent>(to, from, other.used, rows, inner, count);
  add_rest<Bytes, 2, Vectors, Adjacent>(to, from, other.used, rows, inner, count);
  add_rest<Bytes, 1, Vectors, Adjacent>(to, from, other.used, rows, inner, count);
}

//! The same for factors of either kind.
template <int Bytes, int Vectors, class Number>
[[gnu::always_inline]] inline void add_tiles(strided_rows<Number> to,
                                             factor_view<Number> const& from,
                                             panel_view<Number> const& other,
                                             std::int64_t rows,
                                             std::int64_t inner,
                                             std::int64_t count) {
  if (from.row == 1) {
    add_tiles<Bytes, Vectors, true>(to, from, other, rows, inner, count);
  } else {
    add_tiles<Bytes, Vectors, false>(to, from, other, rows, inner, count);
  }
}

inline constexpr int packed_rows = 8; //!< numbers of a tile and a term when packed, some unused

//! Copies factors [rows, terms], with the rows next to each other, to [tiles, terms, packed_rows].
template <class Number>
[[gnu::always_inline]] inline void
pack_factors(factor_view<Number> from, std::int64_t rows, std::int64_t terms, Number* to) {
  using eight = typename vector_register<Number, packed_rows * sizeof(Number)>::type;
  for (std::int64_t r = 0; r < rows; r += 2 * register_rows) { // two tiles: a line of the cache
    Number* first = to + r / register_rows * terms * packed_rows;
    Number* const end = first + terms * packed_rows;
    Number const* source = from.data + r;
    if (rows - r >= register_rows + packed_rows) {
      for (; first != end; first += packed_rows, source += from.term) {
        *reinterpret_cast<eight*>(first) = *reinterpret_cast<eight const*>(source);
        *reinterpret_cast<eight*>(first + terms * packed_rows) =
          *reinterpret_cast<eight const*>(source + register_rows);
      }
    } else {
      for (; first != end; first += packed_rows, source += from.term) {
        for (std::int64_t x = 0; x < 2 * register_rows && r + x < rows; ++x) {
          first[x < register_rows ? x : x - register_rows + terms * packed_rows] = source[x];
        }
      }
    }
  }
}

//! Copies `count` columns of some rows, and zeros after them, to rows of Width numbers.
template <std::int64_t Width, class Number>
[[gnu::always_inline]] inline void
pack_columns(strided_rows<Number const> from, std::int64_t rows, std::int64_t count, Number* to) {
  for (std::int64_t i = 0; i < rows; ++i, from.data += from.stride, to += Width) {
    if (count == Width) {
      for (std::int64_t n = 0; n < Width; ++n) {
        to[n] = from.data[n];
      }
    } else {
      for (std::int64_t n = 0; n < Width; ++n) {
        to[n] = n < count ? from.data[n] : Number{0};
      }
    }
  }
}

//! How the product is cut for one width of registers.
template <int Bytes, class Number>
struct product_cut {
  static constexpr std::int64_t lanes = vector_register<Number, Bytes>::lanes;
  static constexpr int vectors = Bytes == 64 ? 4 : 2; // six rows of them leave some registers
  static constexpr std::int64_t width = vectors * lanes;
  static constexpr std::int64_t size = sizeof(Number);
  //! Terms whose columns stay in the first cache.
  static constexpr std::int64_t depth = std::min<std::int64_t>(32768 / (width * size), 256);
  //! Rows and terms whose factors stay in the second cache, where they lie and when packed.
  static constexpr std::int64_t rows = 43 * register_rows;
  static constexpr std::int64_t terms = 2048 / size;
  static constexpr std::int64_t rows_when_packed = 22 * register_rows;
  static constexpr std::int64_t terms_when_packed = 1024 / size;
};

//! A block of the product whose factors stay in the second cache: all columns.
template <int Bytes, class Number>
[[gnu::always_inline]] inline void add_block(strided_rows<Number> to,
                                             factor_view<Number> const& from,
                                             strided_rows<Number const> other,
                                             std::int64_t rows,
                                             std::int64_t inner,
                                             std::int64_t columns) {
  using cut = product_cut<Bytes, Number>;
  alignas(64) Number panel[cut::depth * cut::width];
  bool const apart = other.stride > 128 || other.stride < -128;
  for (std::int64_t n = 0; n < columns; n += cut::width) {
    auto const count = std::min(columns - n, cut::width);
    for (std::int64_t i = 0; i < inner; i += cut::depth) {
      auto const terms = std::min(inner - i, cut::depth);
      panel_view<Number> with{other.from(i, n), other, 0};
      bool const goes_on = i + cut::depth < inner;
      if (i + 2 * cut::depth <= inner || (!goes_on && n + 2 * cut::width <= columns)) {
        auto const next = goes_on ? i + cut::depth : 0;
        with.ahead = other.from(next, goes_on ? n : n + cut::width);
        with.ahead_of_tile = std::min(inner - next, cut::depth) * register_rows / rows;
      }
      if (count % cut::lanes != 0 || count == 3 * cut::lanes ||
          (rows > 2 * register_rows && apart)) {
        pack_columns<cut::width>(with.used, terms, count, panel);
        with.used = {panel, cut::width};
      }
      factor_view<Number> const factors{from.data + i * from.term, from.row, from.term, from.tile};
      if (count <= cut::lanes) {
        add_tiles<Bytes, 1>(to.from(0, n), factors, with, rows, terms, count);
      } else if (cut::vectors == 2 || count <= 2 * cut::lanes) {
        add_tiles<Bytes, 2>(to.from(0, n), factors, with, rows, terms, count);
      } else {
        add_tiles<Bytes, cut::vectors>(to.from(0, n), factors, with, rows, terms, count);
      }
    }
  }
}

//! The product for one width of registers.
template <int Bytes, class Number>
[[gnu::always_inline]] inline void add_product_in(strided_rows<Number> to,
                                                  factor_view<Number> from,
                                                  strided_rows<Number const> other,
                                                  std::int64_t rows,
                                                  std::int64_t inner,
                                                  std::int64_t columns) {
  using cut = product_cut<Bytes, Number>;
  alignas(64)
    Number packed[cut::rows_when_packed / register_rows * packed_rows * cut::terms_when_packed];
  // Terms far from each other share places of the caches.
  bool const packs =
    from.row == 1 && (from.term >= 512 || from.term <= -512) && columns >= 4 * cut::width;
  auto const most_rows = packs ? cut::rows_when_packed : cut::rows;
  auto const most_terms = packs ? cut::terms_when_packed : cut::terms;
  for (std::int64_t i = 0; i < inner; i += most_terms) {
    auto const terms = std::min(inner - i, most_terms);
    for (std::int64_t r = 0; r < rows; r += most_rows) {
      auto const some = std::min(rows - r, most_rows);
      factor_view<Number> factors{
        from.data + r * from.row + i * from.term, from.row, from.term, register_rows * from.row};
      if (packs) {
        pack_factors(factors, some, terms, packed);
        factors = {packed, 1, packed_rows, terms * packed_rows};
      }
      add_block<Bytes>(to.from(r, 0), factors, other.from(i, 0), some, terms, columns);
    }
  }
}

} // namespace detail

//! @brief to [rows, columns] += from [rows, inner] other [inner, columns], one term after the other
//! for each number, so that any cut of rows, columns or terms gives the same bits.
//!
//! @param to    its first number, and numbers from row to row; `other` likewise
//! @param from  its first factor, and factors from row to row and from term to term. Strides may be
//! negative
//! @complexity O(rows * inner * columns) time, no allocation, up to 208 KiB of the stack
template <class Number>
void add_product(vector_version version,
                 detail::strided_rows<Number> to,
                 detail::factor_view<Number> from,
                 detail::strided_rows<Number const> other,
                 std::int64_t rows,
                 std::int64_t inner,
                 std::int64_t columns) {
  version.run(
    [=](auto bytes) { detail::add_product_in<bytes()>(to, from, other, rows, inner, columns); });
}

} // namespace pipelining::inline v0_3::attention
