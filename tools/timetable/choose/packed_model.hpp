// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What passes of chunks with pieces of several sequences take.

#include <pipe/planner/cut/layered_model.hpp>
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/planner/model/predict.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "choose.hpp"

namespace examples {

using packing = std::vector<pipelining::packed_microbatch>;

//! The times of chunks of packed pieces, and of messages: those of the longest chunk.
class packed_model {
public:
  packed_model(choose_command const& asked, candidate const& one, packing const& microbatches) {
    std::vector<pipelining::stage_content> const content = content_of(asked, one);
    stages_ = content.size();
    std::vector<std::vector<int>> holders(stages_, {0});
    if (asked.gpus.size() > 1)
      for (std::size_t stage = 0; stage < stages_; ++stage)
        holders[stage] = pipelining::holders_of({one.extents}, static_cast<int>(stage));
    for (pipelining::packed_microbatch const& microbatch : microbatches) {
      first_units_.push_back(units_);
      for (std::vector<pipelining::sequence_piece> const& chunk : microbatch) {
        ++units_;
        for (std::size_t stage = 0; stage < stages_; ++stage)
          for (pipelining::pass_kind const kind : kinds)
            add(asked, content[stage], holders[stage], kind, chunk);
      }
    }
    std::int64_t const longest =
      asked.predicted().widest_message(content, one.chunk_lengths.front());
    for (int from = 0; from < asked.devices; ++from)
      for (int to = 0; to < asked.devices; ++to) {
        links_.push_back(seconds_between(asked, from, to, longest));
        latency_ = from == to ? latency_ : std::max(latency_, links_.back());
      }
  }

  [[nodiscard]] double duration(pipelining::pass const& what) const {
    switch (what.kind) {
    case pipelining::pass_kind::forward:
    case pipelining::pass_kind::checkpointed_forward:
    case pipelining::pass_kind::recompute: return seconds_.at(index(what, 0));
    case pipelining::pass_kind::backward_input: return seconds_.at(index(what, 1));
    case pipelining::pass_kind::backward_weight: return seconds_.at(index(what, 2));
    case pipelining::pass_kind::backward:
      return seconds_.at(index(what, 1)) - exchanges_.at(index(what, 1)) +
             std::max(seconds_.at(index(what, 2)), exchanges_.at(index(what, 1)));
    default: return 0;
    }
  }
  //! Of two passes whose layers alternate.
  [[nodiscard]] double pair_duration(pipelining::pass const& first,
                                     pipelining::pass const& second) const {
    auto const exchanges = [this](pipelining::pass const& what) {
      return what.kind == pipelining::pass_kind::backward
               ? 0
               : exchanges_.at(index(what, row_of(what.kind)));
    };
    return pipelining::detail::braid_time(duration(first) - exchanges(first),
                                          exchanges(first),
                                          duration(second) - exchanges(second),
                                          exchanges(second));
  }
  //! The same with all exchanges hidden, as no order does better.
  [[nodiscard]] packed_model without_exchanges() const {
    packed_model result = *this;
    for (std::size_t i = 0; i < seconds_.size(); ++i)
      result.seconds_[i] -= exchanges_[i];
    std::fill(result.exchanges_.begin(), result.exchanges_.end(), 0.0);
    return result;
  }
  //! Of this time, exchanges with other GPUs that another pass may hide.
  [[nodiscard]] double exchanges(pipelining::pass const& what) const {
    return exchanges_.at(index(what, row_of(what.kind)));
  }
  [[nodiscard]] double latency() const noexcept { return latency_; }
  [[nodiscard]] std::span<double const> links() const noexcept { return links_; }

private:
  static constexpr pipelining::pass_kind kinds[] = {pipelining::pass_kind::forward,
                                                    pipelining::pass_kind::backward_input,
                                                    pipelining::pass_kind::backward_weight};

  //! A pass of a chunk on a stage, on the slower device where it has two.
  void add(choose_command const& asked,
           pipelining::stage_content const& stage,
           std::vector<int> const& holders,
           pipelining::pass_kind kind,
           std::vector<pipelining::sequence_piece> const& chunk) {
    seconds_.push_back(0);
    exchanges_.push_back(0);
    for (int const device : holders) {
      pipelining::prediction const on = asked.predicted(asked.gpu(device));
      double seconds = 0;
      double exchanges = 0;
      for (pipelining::sequence_piece const& piece : chunk) {
        exchanges += on.exchange_seconds(stage, kind, piece.tokens);
        seconds += on.pass_seconds(stage, kind, {piece.tokens, piece.offset});
      }
      if (seconds >= seconds_.back()) {
        seconds_.back() = seconds;
        exchanges_.back() = exchanges;
      }
    }
  }
  [[nodiscard]] std::size_t index(pipelining::pass const& what, std::size_t kind) const {
    std::size_t const unit = first_units_.at(what.microbatch) + what.chunk;
    return (unit * stages_ + what.stage) * std::size(kinds) + kind;
  }
  [[nodiscard]] static std::size_t row_of(pipelining::pass_kind kind) {
    return kind == pipelining::pass_kind::backward_weight  ? 2
           : kind == pipelining::pass_kind::backward_input ? 1
                                                           : 0;
  }

  std::vector<std::size_t> first_units_; // [M]
  std::size_t units_ = 0;
  std::size_t stages_ = 0;
  std::vector<double> seconds_;   // [units][S][kinds]
  std::vector<double> exchanges_; // of these
  std::vector<double> links_;
  double latency_ = 0;
};

//! Microbatches of sequences of unequal length, and their times.
struct packed_pipeline {
  packing microbatches;
  packed_model cost;
};

} // namespace examples
