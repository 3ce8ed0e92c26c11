// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Parts of charts, as SVG.

#include <cmath>
#include <string>

#include "decimals.hpp"

namespace examples {

//! 1, 2 or 5 times a power of ten, so that about `ticks` of them fill the range.
[[nodiscard]] inline double round_step(double range, double ticks) {
  double const rough = range / ticks;
  double const power = std::pow(10.0, std::floor(std::log10(rough)));
  double const digit = rough / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

//! The element that all others stand in, on white; a chart ends with "</svg>".
[[nodiscard]] inline std::string begin_chart(int width, int height) {
  std::string const size[] = {std::to_string(width), std::to_string(height)};
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size[0] + "\" height=\"" + size[1] +
         "\" viewBox=\"0 0 " + size[0] + " " + size[1] +
         "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
}

[[nodiscard]] inline std::string
text_at(double x, double y, char const* anchor, char const* colour, std::string const& words) {
  return std::string("<text x=\"") + decimals(x, 1) + "\" y=\"" + decimals(y, 1) +
         "\" text-anchor=\"" + anchor + "\" fill=\"" + colour + "\">" + words + "</text>\n";
}

[[nodiscard]] inline std::string
line_from(double x1, double y1, double x2, double y2, char const* style) {
  return std::string("<line x1=\"") + decimals(x1, 1) + "\" y1=\"" + decimals(y1, 1) + "\" x2=\"" +
         decimals(x2, 1) + "\" y2=\"" + decimals(y2, 1) + "\" " + style + "/>\n";
}

} // namespace examples
