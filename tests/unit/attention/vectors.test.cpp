// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/host/vectors.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using pipelining::attention::add_product;
using pipelining::attention::vector_version;

std::vector<vector_version> versions_here() {
  std::vector<vector_version> all;
  for (auto const each :
       {vector_version::plain, vector_version::x86_64_v3, vector_version::x86_64_v4})
    if (each <= vector_version::highest())
      all.emplace_back(each);
  return all;
}

//! A product and what it has to become: with each term rounded before it is added, and without.
template <class Number>
struct product_case {
  std::int64_t rows, inner, columns;
  std::int64_t to_stride, from_row, from_term, other_stride;
  bool last_first; // terms go backward through `from` and `other`
  std::vector<Number> to, from, other, rounded, fused;

  product_case(std::int64_t r,
               std::int64_t i,
               std::int64_t c,
               std::int64_t gap,
               bool across,
               bool backward,
               std::mt19937& random)
      : rows(r), inner(i), columns(c), to_stride(c + gap), from_row(across ? 1 : i + gap),
        from_term(across ? r + gap : 1), other_stride(c + 2 * gap), last_first(backward) {
    std::normal_distribution<double> some;
    auto const filled = [&](std::int64_t count) {
      std::vector<Number> numbers(static_cast<std::size_t>(count));
      for (auto& each : numbers)
        each = static_cast<Number>(some(random));
      return numbers;
    };
    // As short as can be, so that an AddressSanitizer sees what is read after the end.
    to = filled(rows * to_stride);
    from = filled((rows - 1) * from_row + (inner > 0 ? (inner - 1) * from_term : 0) + 1);
    other = filled(inner > 0 ? (inner - 1) * other_stride + columns : 0);
    rounded = fused = to;
    for (std::int64_t x = 0; x < inner; ++x)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t n = 0; n < columns; ++n) {
          auto const term = backward ? inner - 1 - x : x;
          auto const at = static_cast<std::size_t>(row * to_stride + n);
          Number const a = from[static_cast<std::size_t>(row * from_row + term * from_term)];
          Number const b = other[static_cast<std::size_t>(term * other_stride + n)];
          fused[at] = std::fma(a, b, fused[at]);
          Number const volatile product = a * b; // volatile: the compiler fuses nothing
          rounded[at] = rounded[at] + product;
        }
  }

  //! Rows [begin, end), columns [left, right) and terms [first, last) of the product.
  void add(vector_version version,
           std::int64_t begin,
           std::int64_t end,
           std::int64_t left,
           std::int64_t right,
           std::int64_t first,
           std::int64_t last) {
    auto const start = inner == 0 ? 0 : last_first ? inner - 1 - first : first;
    auto const sign = last_first ? -1 : 1;
    add_product<Number>(
      version,
      {to.data() + begin * to_stride + left, to_stride},
      {from.data() + begin * from_row + start * from_term, from_row, sign * from_term},
      {other.data() + start * other_stride + left, sign * other_stride},
      end - begin,
      last - first,
      right - left);
  }

  [[nodiscard]] bool equals(std::vector<Number> const& expected) const {
    return std::memcmp(to.data(), expected.data(), to.size() * sizeof(Number)) == 0;
  }
};

//! Which of the two a version has made so far; a version makes one of them, always.
struct kinds_seen {
  int rounded = 0;
  int fused = 0;
  int others = 0;

  template <class Number>
  void count(product_case<Number> const& each) {
    bool const plain = each.equals(each.rounded);
    bool const sharp = each.equals(each.fused);
    rounded += plain && !sharp ? 1 : 0;
    fused += sharp && !plain ? 1 : 0;
    others += plain || sharp ? 0 : 1;
  }
  void check() const {
    CHECK(others == 0);
    CHECK((rounded == 0) != (fused == 0));
  }
};

template <class Number>
void check_all_sizes(vector_version version) {
  CAPTURE(std::string(version.name()));
  std::mt19937 random(11);
  kinds_seen seen;
  auto const add = [&](std::int64_t rows,
                       std::int64_t inner,
                       std::int64_t columns,
                       int variant,
                       std::int64_t gap = 0) {
    CAPTURE(rows);
    CAPTURE(inner);
    CAPTURE(columns);
    CAPTURE(variant);
    product_case<Number> each(
      rows, inner, columns, gap + variant % 3, (variant & 1) != 0, (variant & 2) != 0, random);
    each.add(version, 0, rows, 0, columns, 0, inner);
    int const before = seen.others;
    seen.count(each);
    REQUIRE(seen.others == before);
  };
  for (std::int64_t rows = 1; rows <= 13; ++rows) // every remainder of the rows of a tile
    for (std::int64_t columns = 1; columns <= 67; ++columns) // and of its columns
      add(rows, 1 + (rows * columns) % 5, columns, static_cast<int>(rows + columns));
  for (std::int64_t const inner : {0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 257, 513}) // terms
    for (int variant = 0; variant < 4; ++variant)
      add(7, inner, 35, variant);
  add(263, 131, 35, 2); // more rows than a block has
  // Terms so far from each other, and so many columns, that the factors are copied first.
  add(147, 5, 259, 3, 512);
  add(13, 259, 259, 1, 512);
  seen.check();
}

} // namespace

TEST_CASE("tiles of every size have the bits of one addition after the other") {
  for (auto const version : versions_here()) {
    check_all_sizes<float>(version);
    check_all_sizes<double>(version);
  }
}

TEST_CASE(
  "tiles of registers that this processor may lack have the same bits, made of smaller ones") {
  std::mt19937 random(5);
  kinds_seen seen;
  for (std::int64_t rows = 1; rows <= 13; ++rows)
    for (std::int64_t const columns : {1, 15, 16, 17, 33, 63, 64, 65, 131}) {
      CAPTURE(rows);
      CAPTURE(columns);
      product_case<float> each(
        rows, 1 + rows * 11, columns, columns % 3, rows % 2 != 0, false, random);
      pipelining::attention::detail::add_product_in<64, float>(
        {each.to.data(), each.to_stride},
        {each.from.data(), each.from_row, each.from_term},
        {each.other.data(), each.other_stride},
        each.rows,
        each.inner,
        each.columns);
      int const before = seen.others;
      seen.count(each);
      REQUIRE(seen.others == before);
    }
  seen.check();
}

TEST_CASE("any cut of rows, columns and terms gives the same bits") {
  std::mt19937 random(3);
  for (auto const version : versions_here()) {
    CAPTURE(std::string(version.name()));
    for (int variant = 0; variant < 4; ++variant) {
      product_case<float> whole(
        19, 140, 150, variant % 3, (variant & 1) != 0, (variant & 2) != 0, random);
      auto cut = whole;
      whole.add(version, 0, 19, 0, 150, 0, 140);
      for (auto const& [first, last] : {std::pair{0, 11}, {11, 12}, {12, 130}, {130, 140}})
        for (auto const& [begin, end] : {std::pair{3, 19}, {0, 3}})
          for (auto const& [left, right] : {std::pair{0, 1}, {1, 90}, {90, 150}})
            cut.add(version, begin, end, left, right, first, last);
      CHECK(cut.equals(whole.to));
    }
  }
}

TEST_CASE("a version is chosen by its name, and only one that the processor has") {
  for (auto const each : versions_here())
    CHECK(vector_version::named(each.name()) == each);
  for (std::string_view const name : {"", "x86-64-v2", "plain ", "avx"}) {
    CAPTURE(name);
    CHECK_THROWS_AS((void)vector_version::named(name), std::invalid_argument);
  }
  if (vector_version::highest() < vector_version::x86_64_v4)
    CHECK_THROWS_AS((void)vector_version::named("x86-64-v4"), std::invalid_argument);
  CHECK(vector_version::of_process() <= vector_version::highest());
}
