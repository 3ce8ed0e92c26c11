// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What passes of chunks with pieces of several sequences take.

#include <iterator>

#include "choose.hpp"

namespace examples {

//! Tokens of each sequence as it is laid out, padding among them.
[[nodiscard]] inline std::vector<int> laid_out(choose_command const& asked,
                                               std::span<pp::packed_microbatch const> all) {
  std::vector<int> tokens(std::max<std::size_t>(1, asked.lengths.size()));
  for (pp::packed_microbatch const& microbatch : all)
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      for (pp::sequence_piece const& piece : chunk)
        tokens[static_cast<std::size_t>(piece.sequence)] += piece.tokens;
  return tokens;
}

//! Predictions for a piece: pictures are spread over the tokens of its sequence.
//! @param tokens of each sequence
[[nodiscard]] inline pp::prediction
predicted_for(pp::prediction of, pp::sequence_piece const& piece, std::span<int const> tokens) {
  of.setup.sequence = tokens[static_cast<std::size_t>(piece.sequence)];
  return of;
}

//! Measured times of whole sequences, and what pieces of them take: as much of it as is predicted.
//! A file with one time for all is of the longest sequence.
class measured_sequences {
public:
  measured_sequences(choose_command const& asked, candidate one)
      : devices_(asked.devices), lengths_(asked.lengths),
        longest_(*std::max_element(lengths_.begin(), lengths_.end())),
        cost_(of_whole(asked, one, longest_)) {}

  //! @param seconds that are predicted: `seconds(piece, length)`, of a sequence of that length
  [[nodiscard]] double operator()(pp::pass_kind kind,
                                  std::size_t stage,
                                  pp::sequence_piece const& piece,
                                  auto const& seconds) const {
    auto const number = static_cast<std::size_t>(piece.sequence);
    int const length = cost_.microbatches() > 1 ? lengths_[number] : longest_;
    double const whole = seconds(pp::sequence_piece{piece.sequence, 0, length}, length);
    double const share =
      whole > 0 ? seconds(piece, 0) / whole : static_cast<double>(piece.tokens) / length;
    return share * cost_.duration(pp::row_writer::make(
                     kind, static_cast<int>(stage), cost_.microbatches() > 1 ? piece.sequence : 0));
  }
  //! Of a message of so many tokens.
  [[nodiscard]] double message_seconds(int from, int to, std::int64_t tokens) const {
    std::span<double const> const links = cost_.links();
    double const whole = pp::detail::message_time(
      links.empty() ? nullptr : links.data(), devices_, cost_.latency(), from, to);
    return whole * static_cast<double>(tokens) / longest_;
  }

private:
  static pp::cost_table of_whole(choose_command const& asked, candidate& one, int longest) {
    one.extents.microbatches = static_cast<int>(asked.lengths.size());
    one.extents.chunks = 1;
    one.chunk_lengths = {longest};
    return costs_of(asked, one);
  }

  int devices_;
  std::span<int const> lengths_;
  int longest_;
  pp::cost_table cost_;
};

//! The times of chunks of packed pieces, and of messages: those of the widest chunk.
class packed_model {
public:
  packed_model(choose_command const& asked, candidate const& one, packing const& microbatches) {
    std::vector<pp::stage_content> const content = content_of(asked, one);
    stages_ = content.size();
    tokens_ = laid_out(asked, microbatches);
    if (asked.measured)
      measured_.emplace(asked, one);
    std::vector<std::vector<int>> holders(stages_, {0});
    if (asked.gpus.size() > 1)
      for (std::size_t stage = 0; stage < stages_; ++stage)
        holders[stage] = pp::holders_of({one.extents}, static_cast<int>(stage));
    std::int64_t widest = 0; // in tokens of a plain message
    for (pp::packed_microbatch const& microbatch : microbatches) {
      first_units_.push_back(units_);
      for (std::vector<pp::sequence_piece> const& chunk : microbatch) {
        ++units_;
        for (std::size_t stage = 0; stage < stages_; ++stage) {
          for (pp::pass_kind const kind : kinds)
            add(asked, content, stage, holders[stage], kind, chunk);
          std::int64_t sent = 0;
          for (pp::sequence_piece const& piece : chunk)
            sent += predicted_for(asked.predicted(), piece, tokens_)
                      .widest_message({&content[stage], 1}, piece.tokens);
          widest = std::max(widest, sent);
        }
      }
    }
    for (int from = 0; from < asked.devices; ++from)
      for (int to = 0; to < asked.devices; ++to) {
        links_.push_back(measured_ ? measured_->message_seconds(from, to, widest)
                                   : seconds_between(asked, from, to, widest));
        latency_ = from == to ? latency_ : std::max(latency_, links_.back());
      }
    measured_.reset();
  }

  [[nodiscard]] double duration(pp::pass const& what) const {
    switch (what.kind) {
    case pp::pass_kind::backward:
      return seconds_.at(index(what, 1)) - exchanges_.at(index(what, 1)) +
             std::max(seconds_.at(index(what, 2)), exchanges_.at(index(what, 1)));
    case pp::pass_kind::copy_request: return 0;
    default: return seconds_.at(index(what, row_of(what.kind)));
    }
  }
  //! Of two passes whose layers alternate.
  [[nodiscard]] double pair_duration(pp::pass const& first, pp::pass const& second) const {
    auto const exchanges = [this](pp::pass const& what) {
      return what.kind == pp::pass_kind::backward ? 0
                                                  : exchanges_.at(index(what, row_of(what.kind)));
    };
    return pp::detail::braid_time(duration(first) - exchanges(first),
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
  [[nodiscard]] double exchanges(pp::pass const& what) const {
    return exchanges_.at(index(what, row_of(what.kind)));
  }
  [[nodiscard]] double latency() const noexcept { return latency_; }
  [[nodiscard]] std::span<double const> links() const noexcept { return links_; }

private:
  static constexpr pp::pass_kind kinds[] = {pp::pass_kind::forward,
                                            pp::pass_kind::backward_input,
                                            pp::pass_kind::backward_weight,
                                            pp::pass_kind::copy_out};

  //! A pass of a chunk on a stage, on the slower device where it has two.
  void add(choose_command const& asked,
           std::vector<pp::stage_content> const& content,
           std::size_t stage,
           std::vector<int> const& holders,
           pp::pass_kind kind,
           std::vector<pp::sequence_piece> const& chunk) {
    seconds_.push_back(0);
    exchanges_.push_back(0);
    for (int const device : holders) {
      pp::prediction const on = asked.predicted(asked.gpu(device));
      auto const predicted = [&](pp::sequence_piece const& piece, int length) {
        pp::prediction of = predicted_for(on, piece, tokens_);
        of.setup.sequence = length > 0 ? length : of.setup.sequence;
        return kind == pp::pass_kind::copy_out
                 ? of.copy_seconds(content[stage], piece.tokens)
                 : of.pass_seconds(content[stage], kind, {piece.tokens, piece.offset});
      };
      double seconds = 0;
      double exchanges = 0;
      for (pp::sequence_piece const& piece : chunk) {
        if (measured_) {
          seconds += (*measured_)(kind, stage, piece, predicted);
          continue;
        }
        seconds += predicted(piece, 0);
        if (kind != pp::pass_kind::copy_out)
          exchanges +=
            predicted_for(on, piece, tokens_).exchange_seconds(content[stage], kind, piece.tokens);
      }
      if (seconds >= seconds_.back()) {
        seconds_.back() = seconds;
        exchanges_.back() = exchanges;
      }
    }
  }
  [[nodiscard]] std::size_t index(pp::pass const& what, std::size_t kind) const {
    std::size_t const unit = first_units_.at(what.microbatch) + what.chunk;
    return (unit * stages_ + what.stage) * std::size(kinds) + kind;
  }
  [[nodiscard]] static std::size_t row_of(pp::pass_kind kind) {
    bool const copies = kind == pp::pass_kind::copy_out || kind == pp::pass_kind::copy_in;
    return copies                                   ? 3
           : kind == pp::pass_kind::backward_weight ? 2
           : kind == pp::pass_kind::backward_input  ? 1
                                                    : 0;
  }

  std::optional<measured_sequences> measured_; // while it is made
  std::vector<int> tokens_;                    // of each sequence
  std::vector<std::size_t> first_units_;       // [M]
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
