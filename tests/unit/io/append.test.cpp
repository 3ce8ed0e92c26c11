// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/io/append.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
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
