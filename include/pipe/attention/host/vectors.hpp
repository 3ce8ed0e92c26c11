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

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

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

//! Where a product finds its factors: that of row r and term i is data[r * row + i * term].
template <class Number>
struct factor_view {
  Number const* data;
  std::int64_t row;
  std::int64_t term;
};

//! to [Rows, Vectors registers] += from [Rows, inner] other [inner, Vectors registers]: all sums
//! stay in registers.
template <int Bytes, int Rows, int Vectors, class Number>
[[gnu::always_inline]] inline void add_tile(Number* to,
                                            std::int64_t to_stride,
                                            factor_view<Number> from,
                                            Number const* other,
                                            std::int64_t other_stride,
                                            std::int64_t inner) {
  using vector = typename vector_register<Number, Bytes>::type;
  constexpr auto lanes = vector_register<Number, Bytes>::lanes;
  vector sum[static_cast<unsigned>(Rows)][static_cast<unsigned>(Vectors)];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = *reinterpret_cast<vector const*>(to + r * to_stride + v * lanes);
    }
  }
  for (std::int64_t i = 0; i < inner; ++i) {
    vector row[static_cast<unsigned>(Vectors)];
    for (int v = 0; v < Vectors; ++v) {
      row[v] = *reinterpret_cast<vector const*>(other + i * other_stride + v * lanes);
    }
    for (int r = 0; r < Rows; ++r) {
      Number const factor = from.data[r * from.row + i * from.term];
      for (int v = 0; v < Vectors; ++v) {
        sum[r][v] += factor * row[v];
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      *reinterpret_cast<vector*>(to + r * to_stride + v * lanes) = sum[r][v];
    }
  }
}

//! The same for `count` columns that fill no tile: by way of a copy of the rows.
template <int Bytes, int Rows, int Vectors, class Number>
[[gnu::always_inline]] inline void add_tile(Number* to,
                                            std::int64_t to_stride,
                                            factor_view<Number> from,
                                            Number const* other,
                                            std::int64_t other_stride,
                                            std::int64_t inner,
                                            std::int64_t count) {
  constexpr auto width = Vectors * vector_register<Number, Bytes>::lanes;
  if (count == width) {
    add_tile<Bytes, Rows, Vectors>(to, to_stride, from, other, other_stride, inner);
    return;
  }
  Number copy[Rows * width] = {};
  for (int r = 0; r < Rows; ++r) {
    for (std::int64_t n = 0; n < count; ++n) {
      copy[r * width + n] = to[r * to_stride + n];
    }
  }
  add_tile<Bytes, Rows, Vectors>(copy, width, from, other, other_stride, inner);
  for (int r = 0; r < Rows; ++r) {
    for (std::int64_t n = 0; n < count; ++n) {
      to[r * to_stride + n] = copy[r * width + n];
    }
  }
}

//! A column of tiles, register_rows high and at the end less. No lambda, as compilers that do not
//! optimise would leave it out of the version.
template <int Bytes, int Vectors, class Number>
[[gnu::always_inline]] inline void add_tiles(Number* to,
                                             std::int64_t to_stride,
                                             factor_view<Number> from,
                                             std::int64_t from_tile,
                                             Number const* other,
                                             std::int64_t other_stride,
                                             std::int64_t rows,
                                             std::int64_t inner,
                                             std::int64_t count) {
  for (; rows >= register_rows; rows -= register_rows) {
    add_tile<Bytes, register_rows, Vectors>(to, to_stride, from, other, other_stride, inner, count);
    to += register_rows * to_stride;
    from.data += from_tile;
  }
  if ((rows & 4) != 0) {
    add_tile<Bytes, 4, Vectors>(to, to_stride, from, other, other_stride, inner, count);
    to += 4 * to_stride;
    from.data += 4 * from.row;
  }
  if ((rows & 2) != 0) {
    add_tile<Bytes, 2, Vectors>(to, to_stride, from, other, other_stride, inner, count);
    to += 2 * to_stride;
    from.data += 2 * from.row;
  }
  if ((rows & 1) != 0) {
    add_tile<Bytes, 1, Vectors>(to, to_stride, from, other, other_stride, inner, count);
  }
}

//! Copies factors [rows, terms] to [tiles, terms, register_rows].
template <class Number>
[[gnu::always_inline]] inline void
pack_factors(factor_view<Number> from, std::int64_t rows, std::int64_t terms, Number* to) {
  for (std::int64_t i = 0; i < terms; ++i) {
    Number const* const source = from.data + i * from.term;
    std::int64_t r = 0;
    for (; r + register_rows <= rows; r += register_rows) {
      for (int x = 0; x < register_rows; ++x) {
        to[r * terms + i * register_rows + x] = source[(r + x) * from.row];
      }
    }
    for (int x = 0; r + x < rows; ++x) {
      to[r * terms + i * register_rows + x] = source[(r + x) * from.row];
    }
  }
}

//! Copies `count` columns of some rows, and zeros after them, to rows of Width numbers.
template <std::int64_t Width, class Number>
[[gnu::always_inline]] inline void pack_columns(
  Number const* from, std::int64_t stride, std::int64_t rows, std::int64_t count, Number* to) {
  for (std::int64_t i = 0; i < rows; ++i, from += stride, to += Width) {
    if (count == Width) {
      for (std::int64_t n = 0; n < Width; ++n) {
        to[n] = from[n];
      }
    } else {
      for (std::int64_t n = 0; n < Width; ++n) {
        to[n] = n < count ? from[n] : Number{0};
      }
    }
  }
}

//! The product for one width of registers.
template <int Bytes, class Number>
[[gnu::always_inline]] inline void add_product_in(Number* to,
                                                  std::int64_t to_stride,
                                                  factor_view<Number> from,
                                                  Number const* other,
                                                  std::int64_t other_stride,
                                                  std::int64_t rows,
                                                  std::int64_t inner,
                                                  std::int64_t columns) {
  constexpr int vectors = Bytes == 64 ? 4 : 2; // six rows of them leave some registers
  constexpr auto lanes = vector_register<Number, Bytes>::lanes;
  constexpr auto width = vectors * lanes;
  constexpr std::int64_t height = 43 * register_rows; // rows whose factors stay in the second cache
  constexpr std::int64_t depth =
    4096 / width < 256 ? 4096 / width : 256; // terms whose columns stay in the first
  constexpr std::int64_t packed_depth = 128;
  alignas(64) Number panel[depth * width];
  alignas(64) Number packed[packed_depth * height];
  // Rows far from each other share places of the caches.
  bool const packs =
    from.row == 1 && (from.term >= 256 || from.term <= -256) && columns >= 4 * width;
  auto const most = packs && depth > packed_depth ? packed_depth : depth;
  for (std::int64_t i = 0; i < inner; i += most) {
    auto const terms = inner - i < most ? inner - i : most;
    for (std::int64_t r = 0; r < rows; r += height) {
      auto const some = rows - r < height ? rows - r : height;
      factor_view<Number> factors{from.data + r * from.row + i * from.term, from.row, from.term};
      auto tile = register_rows * from.row;
      if (packs) {
        pack_factors(factors, some, terms, packed);
        factors = {packed, 1, register_rows};
        tile = register_rows * terms;
      }
      for (std::int64_t n = 0; n < columns; n += width) {
        auto const count = columns - n < width ? columns - n : width;
        Number const* columns_used = other + i * other_stride + n;
        auto stride = other_stride;
        if (count < width || (some > 2 * register_rows && (stride >= 128 || stride <= -128))) {
          pack_columns<width>(columns_used, stride, terms, count, panel);
          columns_used = panel;
          stride = width;
        }
        Number* const sums = to + r * to_stride + n;
        if (vectors == 4 && count <= lanes) {
          add_tiles<Bytes, 1>(
            sums, to_stride, factors, tile, columns_used, stride, some, terms, count);
        } else {
          add_tiles<Bytes, vectors>(
            sums, to_stride, factors, tile, columns_used, stride, some, terms, count);
        }
      }
    }
  }
}

} // namespace detail

//! @brief to [rows, columns] += from [rows, inner] other [inner, columns], one term after the other
//! for each number, so that any cut of rows, columns or terms gives the same bits.
//!
//! The factor of row r and term i is from[r * from_row + i * from_term]; other strides are from row
//! to row. Strides may be negative.
//!
//! @complexity O(rows * inner * columns) time, no allocation
template <class Number>
void add_product(vector_version version,
                 Number* to,
                 std::int64_t to_stride,
                 Number const* from,
                 std::int64_t from_row,
                 std::int64_t from_term,
                 Number const* other,
                 std::int64_t other_stride,
                 std::int64_t rows,
                 std::int64_t inner,
                 std::int64_t columns) {
  version.run([=](auto bytes) {
    detail::add_product_in<bytes()>(to,
                                    to_stride,
                                    detail::factor_view<Number>{from, from_row, from_term},
                                    other,
                                    other_stride,
                                    rows,
                                    inner,
                                    columns);
  });
}

} // namespace pipelining::inline v0_3::attention
