// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief loss.svg: the loss of every step, next to the unigram entropy of the text.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tools/support/chart.hpp"

namespace gpt {

//! A plot of losses in nats per byte, as SVG.
//! @pre losses is not empty; `title` holds nothing that XML reserves
[[nodiscard]] inline std::string
loss_plot(std::vector<double> const& losses, double unigram, std::string const& title) {
  using examples::decimals;
  using examples::line_from;
  using examples::round_step;
  using examples::text_at;
  double const left = 62, right = 700, top = 44, bottom = 370;
  double const low = std::min(unigram, *std::min_element(losses.begin(), losses.end()));
  double const high = std::max(unigram, *std::max_element(losses.begin(), losses.end()));
  double const tick = round_step(std::max(high - low, 0.1), 6);
  double const floor = tick * std::floor(low / tick);
  double const ceiling = std::max(tick * std::ceil(high / tick), floor + tick);
  auto const count = static_cast<double>(losses.size());
  auto const x_of = [&](double step) {
    return left + (right - left) * (count > 1 ? step / (count - 1) : 0.5);
  };
  auto const y_of = [&](double loss) {
    return bottom - (bottom - top) * (loss - floor) / (ceiling - floor);
  };

  std::string svg = examples::begin_chart(820, 420);
  svg += text_at(left, 24, "start", "#222", title);
  for (double loss = floor; loss < ceiling + tick / 2; loss += tick) {
    svg += line_from(left, y_of(loss), right, y_of(loss), "stroke=\"#ddd\"");
    svg += text_at(left - 8, y_of(loss) + 4, "end", "#555", decimals(loss, tick < 0.1 ? 2 : 1));
  }
  double const stride = std::max(1.0, round_step(count, 8));
  for (double step = 0; step < count; step += stride) {
    svg += line_from(x_of(step), bottom, x_of(step), bottom + 5, "stroke=\"#888\"");
    svg += text_at(x_of(step), bottom + 20, "middle", "#555", decimals(step, 0));
  }
  svg += text_at((left + right) / 2, bottom + 40, "middle", "#555", "step");
  svg += std::string("<text transform=\"translate(18 ") + decimals((top + bottom) / 2, 0) +
         ") rotate(-90)\" text-anchor=\"middle\" fill=\"#555\">loss, nats per byte</text>\n";
  svg += line_from(
    left, y_of(unigram), right, y_of(unigram), "stroke=\"#c44\" stroke-dasharray=\"6 4\"");
  // Words stand next to the ends of their lines, where no curve is, and apart from each other.
  double const last = y_of(losses.back());
  double entropy = y_of(unigram);
  double const least = 38; // between the middle of two lines of words and that of one
  if (std::abs(entropy - last) < least) {
    bool const below = entropy >= last ? last + least < bottom : last - least < top;
    entropy = below ? last + least : last - least;
  }
  svg += text_at(right + 8, entropy - 4, "start", "#c44", "unigram");
  svg += text_at(right + 8, entropy + 12, "start", "#c44", "entropy " + decimals(unigram, 3));
  svg += "<polyline fill=\"none\" stroke=\"#2462a8\" stroke-width=\"2\" points=\"";
  for (std::size_t step = 0; step < losses.size(); ++step) {
    svg +=
      decimals(x_of(static_cast<double>(step)), 1) + ',' + decimals(y_of(losses[step]), 1) + ' ';
  }
  svg += "\"/>\n";
  double const end = count > 1 ? right : x_of(0);
  svg += text_at(end + 8, last + 4, "start", "#2462a8", "loss " + decimals(losses.back(), 3));
  return svg + "</svg>\n";
}

} // namespace gpt
