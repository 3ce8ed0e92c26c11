// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/view/append.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pp = pipelining;

namespace {

std::string shortest(double value) {
  std::string text;
  pp::append_number(text, value);
  return text;
}

std::string rounded(double value, int decimals) {
  std::string text;
  pp::append_rounded(text, value, decimals);
  return text;
}

} // namespace

TEST_CASE("numbers are the shortest that read back equal") {
  CHECK(shortest(0.1) == "0.1");
  CHECK(shortest(3) == "3");
  CHECK(shortest(-500000) == "-500000");
  CHECK(shortest(1e15) == "1000000000000000");
  CHECK(shortest(1e16) == "1e+16");
  CHECK(shortest(0.00001) == "0.00001");
  CHECK(shortest(0.000001) == "1e-06");
  CHECK(shortest(0.1 + 0.2) == "0.30000000000000004");
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) {
    double const value =
      std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 130);
    CHECK(std::strtod(shortest(value).c_str(), nullptr) == value);
  }
}

TEST_CASE("rounded numbers have no zeros behind them and no negative zero") {
  CHECK(rounded(27.2727, 2) == "27.27");
  CHECK(rounded(27.999, 2) == "28");
  CHECK(rounded(100, 0) == "100");
  CHECK(rounded(100, 3) == "100");
  CHECK(rounded(-0.001, 2) == "0");
  CHECK(rounded(1e300, 2).size() == 301);
}

TEST_CASE("figures of a column have all their digits, however large they are") {
  auto const fixed = [](double value, int decimals) {
    std::string text;
    pp::append_fixed(text, value, decimals);
    return text;
  };
  CHECK(fixed(27.2727, 2) == "27.27");
  CHECK(fixed(100, 3) == "100.000");
  CHECK(fixed(-0.001, 2) == "0.00");
  CHECK(fixed(-0.001, 3) == "-0.001");
  CHECK(fixed(5e-324, 17) == "0.00000000000000000");
  double const largest = std::numeric_limits<double>::max();
  CHECK(fixed(-largest, 17).size() == 1 + 309 + 1 + 17);
  CHECK(std::strtod(fixed(1e290, 3).c_str(), nullptr) == 1e290);
}

TEST_CASE("general figures have an exponent where their digits do not reach the point") {
  auto const general = [](double value, int digits) {
    std::string text;
    pp::append_general(text, value, digits);
    return text;
  };
  CHECK(general(206158430208.0, 3) == "2.06e+11");
  CHECK(general(1e8, 1) == "1e+08");
  CHECK(general(12.5, 6) == "12.5");
}

TEST_CASE("what is not finite is refused, whichever way it is written") {
  for (double const value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    std::string text;
    CHECK_THROWS_AS(pp::append_number(text, value), std::invalid_argument);
    CHECK_THROWS_AS(pp::append_fixed(text, value, 1), std::invalid_argument);
    CHECK_THROWS_AS(pp::append_rounded(text, value, 1), std::invalid_argument);
    CHECK_THROWS_AS(pp::append_general(text, value, 1), std::invalid_argument);
    CHECK_THROWS_AS(pp::append_significant(text, value, 1), std::invalid_argument);
    CHECK_THROWS_WITH(pp::append(text, 1, value),
                      "text: a number that is not finite cannot be written; what it was made of is "
                      "too large or divided by 0");
    CHECK(text == "1");
  }
}

TEST_CASE("texts and numbers follow each other") {
  std::string text;
  std::string_view const view = "b";
  pp::append(text, "a", view, std::string("c"), 1, std::uint16_t{2}, -3, 0.5);
  CHECK(text == "abc12-30.5");
}

TEST_CASE("figures for people have so many digits, and all before the point") {
  auto const text = [](double value, int digits) {
    std::string out;
    pp::append_significant(out, value, digits);
    return out;
  };
  CHECK(text(1.0 / 3, 4) == "0.3333");
  CHECK(text(2.0 / 3, 3) == "0.667");
  CHECK(text(0.001234567, 3) == "0.00123");
  CHECK(text(-12.3456, 4) == "-12.35");
  CHECK(text(12345.678, 4) == "12346");
  CHECK(text(9.99996, 4) == "10");
  CHECK(text(0.25, 4) == "0.25");
  CHECK(text(0, 4) == "0");
  CHECK(text(100, 1) == "100");
  CHECK(text(1.23456e-7, 3) == "1.23e-07");
}
