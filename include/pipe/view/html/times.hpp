// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What passes take, by the sliders of the interactive page. Used by <pipe/view/html.hpp>.

#include <pipe/flow/pass.hpp>
#include <pipe/timetable/cost.hpp>

#include <array>
#include <compare>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! A time of `uniform_cost` that a reader of a page may change.
struct page_slider {
  std::string_view key;  //!< in the data of the page
  std::string_view word; //!< beside the slider
  std::string_view title;
  double uniform_cost::*time;
};

//! The times that passes are made of.
inline constexpr page_slider pass_sliders[] = {
  {"F", "F", "a forward pass", &uniform_cost::forward},
  {"I", "I", "a backward pass for the input", &uniform_cost::backward_input},
  {"W", "W", "a backward pass for the weights", &uniform_cost::backward_weight},
  {"R", "recompute", "a recomputation", &uniform_cost::recompute},
  {"O", "copy out", "a copy to the host", &uniform_cost::copy_out},
  {"L", "copy in", "a copy from the host", &uniform_cost::copy_in},
  {"A", "gather", "a gather of weights", &uniform_cost::gather},
  {"Z", "scatter", "a scatter of gradients", &uniform_cost::scatter},
  {"E", "embed", "a shard of the embedding", &uniform_cost::embed},
  {"S", "logits", "a shard of the logits", &uniform_cost::logits},
  {"T", "logits' gradient", "the gradients of such a shard", &uniform_cost::logits_gradient},
  {"G",
   "embed's gradient",
   "the gradients of a shard of the embedding",
   &uniform_cost::embed_gradient},
};
inline constexpr std::size_t pass_slider_count = std::size(pass_sliders);

//! Those that passes share: exchanges inside them, pairs, and what is between them.
inline constexpr page_slider other_sliders[] = {
  {"all_reduce",
   "all-reduce",
   "the exchanges of a tensor parallel group in a pass",
   &uniform_cost::all_reduce},
  {"pair", "pair", "an overlapped pair of passes", &uniform_cost::overlapped_pair},
  {"broadcast", "broadcast", "a broadcast to all shards", &uniform_cost::broadcast},
  {"reduce", "reduce", "a reduction over all shards", &uniform_cost::reduce},
  {"latency", "message", "a message", &uniform_cost::communication},
};

//! The time of a pass: `always`, and so much of the value of each slider. Exchanges inside it are
//! hidden behind a part of it, of which `hides` is as much of each slider.
struct pass_time {
  double always = 0;
  std::array<double, pass_slider_count> takes{};
  double exchanges = 0;
  std::array<double, pass_slider_count> hides{};

  friend auto operator<=>(pass_time const&, pass_time const&) = default;
};

//! Costs of nothing.
[[nodiscard]] inline uniform_cost no_time() {
  uniform_cost result;
  for (page_slider const& each : pass_sliders)
    result.*each.time = 0;
  return result;
}

//! Finds the times of passes by asking a cost model once for each slider alone.
template <class Model>
class time_probe {
public:
  //! @param model_of `model_of(uniform_cost)`: the cost model for these times
  template <class ModelOf>
  time_probe(ModelOf const& model_of, bool exchanges) : none_(model_of(no_time())) {
    for (bool const loaded : {false, true}) {
      if (loaded && !exchanges)
        continue;
      uniform_cost base = no_time();
      base.all_reduce = loaded ? load : 0;
      if (loaded)
        loaded_.push_back(model_of(base));
      for (page_slider const& each : pass_sliders) {
        uniform_cost one = base;
        one.*each.time = 1;
        (loaded ? loaded_ : ones_).push_back(model_of(one));
      }
    }
  }
  [[nodiscard]] pass_time of(pass const& what) const {
    pass_time result;
    result.always = none_.duration(what);
    for (std::size_t i = 0; i < pass_slider_count; ++i)
      result.takes[i] = ones_[i].duration(what) - result.always;
    if (loaded_.empty())
      return result;
    double const added = loaded_[0].duration(what) - result.always; // with nothing to hide it
    result.exchanges = added / load;
    for (std::size_t i = 0; i < pass_slider_count; ++i) {
      double const hidden = result.always + result.takes[i] + added - loaded_[i + 1].duration(what);
      result.hides[i] = hidden > 1e-9 ? hidden : 0; // else what sums were rounded by
    }
    return result;
  }

private:
  static constexpr double load = 1024; // of exchanges: more than what hides them takes
  Model none_;
  std::vector<Model> ones_;
  std::vector<Model> loaded_;
};

} // namespace pipelining::inline v0_3::detail
