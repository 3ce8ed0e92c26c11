// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <examples/gpt/plot.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

struct box {
  double left, right, top, bottom;
};

struct point {
  double x, y;
};

double attribute(std::string const& element, std::string const& name) {
  auto const at = element.find(" " + name + "=\"");
  REQUIRE(at != element.npos);
  return std::strtod(element.c_str() + at + name.size() + 3, nullptr);
}

//! Where the words inside and next to the plot stand, at 13 pixels and 0.6 of that for a letter.
std::vector<box> labels(std::string const& svg) {
  std::vector<box> all;
  for (auto at = svg.find("<text x="); at != svg.npos; at = svg.find("<text x=", at + 1)) {
    std::string const element = svg.substr(at, svg.find("</text>", at) - at);
    double const x = attribute(element, "x");
    double const y = attribute(element, "y");
    double const wide = 0.6 * 13 * static_cast<double>(element.size() - element.find('>') - 1);
    bool const end = element.find("\"end\"") != element.npos;
    bool const middle = element.find("\"middle\"") != element.npos;
    double const left = end ? x - wide : middle ? x - wide / 2 : x;
    all.push_back({left, left + wide, y - 10, y + 3});
  }
  return all;
}

std::vector<point> curve(std::string const& svg) {
  auto at = svg.find("points=\"") + 8;
  std::vector<point> all;
  while (svg[at] != '"') {
    char* end = nullptr;
    double const x = std::strtod(svg.c_str() + at, &end);
    double const y = std::strtod(end + 1, &end);
    all.push_back({x, y});
    at = static_cast<std::size_t>(end - svg.c_str()) + 1;
  }
  return all;
}

bool touches(box const& of, point a, point b) {
  for (int i = 0; i <= 200; ++i) {
    double const x = a.x + (b.x - a.x) * i / 200;
    double const y = a.y + (b.y - a.y) * i / 200;
    if (x > of.left && x < of.right && y > of.top && y < of.bottom) {
      return true;
    }
  }
  return false;
}

void check(std::vector<double> const& losses, double unigram) {
  std::string const svg = gpt::loss_plot(losses, unigram, "a title");
  auto const words = labels(svg);
  auto const points = curve(svg);
  REQUIRE(points.size() == losses.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    CHECK((words[i].left >= 0 && words[i].right <= attribute(svg, "width")));
    for (std::size_t k = 0; k < points.size(); ++k) {
      CHECK_FALSE(touches(words[i], points[k == 0 ? 0 : k - 1], points[k]));
    }
    for (std::size_t other = 0; other < i; ++other) {
      bool const apart = words[i].right <= words[other].left ||
                         words[other].right <= words[i].left ||
                         words[i].bottom <= words[other].top || words[other].bottom <= words[i].top;
      CAPTURE(svg);
      CHECK(apart);
    }
  }
}

} // namespace

TEST_CASE("labels of the loss plot lie on no curve and on no other label") {
  std::vector<double> falling;
  std::vector<double> noisy;
  std::mt19937 random(3);
  for (int step = 0; step < 80; ++step) {
    falling.push_back(2.1 + 3.4 * std::exp(-step / 12.0));
    noisy.push_back(3 + 0.5 * std::uniform_real_distribution<double>(-1, 1)(random));
  }
  check(falling, 3.05);
  check(falling, falling.back());
  check(falling, falling.back() + 0.03);
  check(falling, falling.back() - 0.03);
  check(noisy, 3);
  check({5.5}, 3);
  check({5.5}, 5.5);
  check({2, 3, 4}, 4.2);
}
