// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose_lengths.hpp"

#include <pipe/io/append.hpp>
#include <pipe/model/device_memory.hpp>
#include <pipe/search/bounds.hpp>
#include <pipe/search/chunk_sequences.hpp>
#include <pipe/search/layered_model.hpp>
#include <pipe/timetable/metrics.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "choose_groups.hpp"
#include "command_line.hpp"
#include "files.hpp"
#include "progress_line.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

using packing = std::vector<pp::packed_microbatch>;

constexpr std::size_t most_sequences = 4096;

//! The times of chunks of packed pieces, and of messages: those of the longest chunk.
class packed_model {
public:
  packed_model(choose_command const& asked, candidate const& one, packing const& microbatches) {
    std::vector<pp::stage_content> const content = content_of(one);
    for (pp::packed_microbatch const& microbatch : microbatches) {
      first_units_.push_back(units_);
      for (std::vector<pp::sequence_piece> const& chunk : microbatch) {
        ++units_;
        for (pp::stage_content const& stage : content)
          for (pp::pass_kind const kind : kinds) {
            double seconds = 0;
            double exchanges = 0;
            for (pp::sequence_piece const& piece : chunk) {
              exchanges += pp::exchange_seconds(
                asked.model, asked.setup, asked.gpu(0), stage, kind, piece.tokens);
              seconds += pp::pass_seconds(asked.model,
                                          asked.setup,
                                          asked.gpu(0),
                                          asked.reached,
                                          stage,
                                          kind,
                                          {piece.tokens, piece.offset});
            }
            seconds_.push_back(seconds);
            exchanges_.push_back(exchanges);
          }
      }
    }
    stages_ = content.size();
    int const longest = one.chunk_lengths.front();
    for (int from = 0; from < asked.devices; ++from)
      for (int to = 0; to < asked.devices; ++to) {
        links_.push_back(
          pp::message_seconds(asked.model, asked.setup, asked.gpu(0), from, to, longest));
        latency_ = from == to ? latency_ : std::max(latency_, links_.back());
      }
  }

  [[nodiscard]] double duration(pp::pass const& what) const {
    switch (what.kind) {
    case pp::pass_kind::forward:
    case pp::pass_kind::checkpointed_forward:
    case pp::pass_kind::recompute: return seconds_.at(index(what, 0));
    case pp::pass_kind::backward_input: return seconds_.at(index(what, 1));
    case pp::pass_kind::backward_weight: return seconds_.at(index(what, 2));
    case pp::pass_kind::backward:
      return seconds_.at(index(what, 1)) - exchanges_.at(index(what, 1)) +
             std::max(seconds_.at(index(what, 2)), exchanges_.at(index(what, 1)));
    default: return 0;
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
  [[nodiscard]] double latency() const noexcept { return latency_; }
  [[nodiscard]] std::span<double const> links() const noexcept { return links_; }

private:
  static constexpr pp::pass_kind kinds[] = {
    pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight};

  [[nodiscard]] std::size_t index(pp::pass const& what, std::size_t kind) const {
    std::size_t const unit = first_units_.at(what.microbatch) + what.chunk;
    return (unit * stages_ + what.stage) * std::size(kinds) + kind;
  }
  [[nodiscard]] static std::size_t row_of(pp::pass_kind kind) {
    return kind == pp::pass_kind::backward_weight  ? 2
           : kind == pp::pass_kind::backward_input ? 1
                                                   : 0;
  }

  std::vector<std::size_t> first_units_; // [M]
  std::size_t units_ = 0;
  std::size_t stages_ = 0;
  std::vector<double> seconds_; // [units][S][kinds]
  std::vector<double> exchanges_; // of these
  std::vector<double> links_;
  double latency_ = 0;
};

int tokens_of(std::vector<pp::sequence_piece> const& chunk) {
  int tokens = 0;
  for (pp::sequence_piece const& piece : chunk)
    tokens += piece.tokens;
  return tokens;
}

//! Every microbatch cut into as many chunks of about as many tokens each.
packing cut_microbatches(packing const& whole, int chunks) {
  packing result;
  for (pp::packed_microbatch const& microbatch : whole) {
    std::vector<pp::sequence_piece> pieces;
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      pieces.insert(pieces.end(), chunk.begin(), chunk.end());
    int const all = tokens_of(pieces);
    if (all < chunks)
      throw std::invalid_argument("a microbatch has fewer tokens than chunks");
    pp::packed_microbatch& cut = result.emplace_back();
    std::size_t at = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      auto const share = [&](int c) { return static_cast<int>(std::int64_t{all} * c / chunks); };
      int room = share(chunk + 1) - share(chunk);
      for (cut.emplace_back(); room > 0;) {
        pp::sequence_piece& from = pieces[at];
        int const taken = std::min(room, from.tokens);
        cut.back().push_back({from.sequence, from.offset, taken});
        from.offset += taken;
        from.tokens -= taken;
        room -= taken;
        at += from.tokens == 0 ? 1 : 0;
      }
    }
  }
  return result;
}

//! Fills in what a timetable takes.
void measure_packed(choose_command const& asked,
                    packing const& microbatches,
                    pp::dynamic_timetable const& table,
                    packed_model const& cost,
                    candidate& one) {
  one.seconds = one.ranked = pp::makespan(table);
  one.bubble = pp::bubble_rate(table);
  one.latency = cost.latency();
  one.bound =
    pp::least_times(table.over(), cost.without_exchanges(), {.pairs = true}).makespan.least();
  std::vector<pp::stage_content> const content = content_of(one);
  std::vector<double> resident;
  // Gradients of keys and values travel between the chunks of one sequence at a time.
  for (pp::stage_content const& stage : content)
    resident.push_back(static_cast<double>(
      pp::predict_bytes(asked.model, asked.setup, stage, one.chunk_lengths).resident()));
  double const tensor = asked.setup.tensor;
  for (int device = 0; device < asked.devices; ++device) {
    double held = pp::peak_device_bytes(table, device, [&](pp::pass const& what) {
      int const tokens = tokens_of(microbatches[what.microbatch][what.chunk]);
      int const layers = content[what.stage].layers;
      auto const part = [&](std::int64_t bytes) { return static_cast<double>(bytes) / tensor; };
      // A chunk that is recomputed keeps its input, and keys and values for those behind it.
      return pp::unit_bytes{layers * part(pp::activation_bytes(asked.model, tokens)),
                            part(pp::input_bytes(asked.model, tokens)) +
                              layers * part(pp::key_value_bytes(asked.model, tokens)),
                            0};
    });
    for (int stage = 0; stage < pp::stages(one.extents); ++stage)
      for (int const holder : pp::holders_of(table.over(), stage))
        held += holder == device ? resident[static_cast<std::size_t>(stage)] : 0;
    one.gigabytes = std::max(one.gigabytes, held / 1e9);
  }
}

//! All that is tried, and what becomes of it.
class length_trials {
public:
  explicit length_trials(choose_command const& asked) : asked_(asked) {}

  //! @param how what the microbatches are, for people
  void add(schedule_choice choice, packing const& whole, std::string const& how) {
    choice.devices = asked_.devices;
    choice.microbatches = static_cast<int>(whole.size());
    candidate one;
    one.choice = choice;
    one.label = label_of(choice) + ", " + how;
    say(one.label);
    try {
      one.extents = arrange(choice);
      if (pp::stages(one.extents) > asked_.model.layers)
        throw std::invalid_argument("it has more stages than the model has layers");
      bool const given = !choice.chunk_counts.empty() || one.extents.chunks == 1;
      packing const cut = given ? whole : cut_microbatches(whole, one.extents.chunks);
      choose_command sized = asked_;
      int longest = 0;
      sized.setup.sequence = 0;
      for (pp::packed_microbatch const& microbatch : cut) {
        int tokens = 0;
        for (std::vector<pp::sequence_piece> const& chunk : microbatch) {
          tokens += tokens_of(chunk);
          longest = std::max(longest, tokens_of(chunk));
        }
        sized.setup.sequence = std::max<std::int64_t>(sized.setup.sequence, tokens);
      }
      one.layers = cut_layers(sized, one.extents, false);
      one.chunk_lengths.assign(static_cast<std::size_t>(one.extents.chunks), longest);
      packed_model const cost(sized, one, cut);
      pp::dynamic_timetable const table = make_named_timetable(choice, cost);
      measure_packed(sized, cut, table, cost, one);
      result_.all.push_back(std::move(one));
    } catch (std::invalid_argument const& error) {
      result_.refused.push_back(one.label + ": " + error.what());
    }
  }
  //! Groups of GPUs in place of a pipeline.
  void add_groups(std::vector<sequence_numbers> const& microbatches) {
    std::string const label = groups_label(microbatches.size());
    say(label);
    try {
      result_.all.push_back(evaluate_groups(asked_, microbatches));
    } catch (std::invalid_argument const& error) {
      result_.refused.push_back(label + ": " + error.what());
    }
  }
  [[nodiscard]] candidates end() {
    line_.end();
    return std::move(result_);
  }

private:
  void say(std::string const& label) {
    line_.say(std::to_string(result_.all.size() + result_.refused.size()) + " so far, " + label);
  }

  choose_command const& asked_;
  candidates result_;
  progress_line line_{HUGE_VAL};
};

} // namespace

std::vector<int> read_lengths(std::string_view option, std::string_view word) {
  bool const given = word.find_first_not_of("0123456789x,") == std::string_view::npos;
  std::string text(word);
  if (!given)
    try {
      text = read_file(text);
    } catch (usage_error const& error) {
      throw usage_error(std::string(option) +
                        " wants lengths of sequences, such as 1024x20,32768, or a file of them; " +
                        error.what());
    }
  std::vector<int> lengths;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find_first_of(", \t\r\n", at), text.size());
    std::string_view const each = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (each.empty())
      continue;
    int parts[2] = {0, 1};
    std::size_t const by = std::min(each.find('x'), each.size());
    bool good = true;
    for (std::size_t i = 0; i < (by < each.size() ? 2u : 1u); ++i) {
      std::string_view const digits = i == 0 ? each.substr(0, by) : each.substr(by + 1);
      auto const [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), parts[i]);
      good = good && error == std::errc() && last == digits.data() + digits.size() &&
             parts[i] >= 1 && parts[i] <= 1 << 24;
    }
    if (!good)
      throw usage_error(std::string(option) +
                        " wants lengths of sequences, LENGTH or LENGTHxCOUNT, not " + quoted(each));
    if (lengths.size() + static_cast<std::size_t>(parts[1]) > most_sequences)
      throw usage_error(std::string(option) + " has more than " + std::to_string(most_sequences) +
                        " sequences; give those of one step");
    lengths.insert(lengths.end(), static_cast<std::size_t>(parts[1]), parts[0]);
  }
  if (lengths.empty())
    throw usage_error(std::string(option) + " has no lengths; give some, such as 1024x20,32768");
  return lengths;
}

candidates evaluate_lengths(choose_command const& asked) {
  std::vector<int> const& lengths = asked.lengths;
  int const longest = *std::max_element(lengths.begin(), lengths.end());
  packing padded;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    padded.push_back({{{static_cast<int>(i), 0, longest}}});
  packing const packed = pp::chunk_sequences(lengths, longest);
  length_trials trials(asked);
  for (named_schedule const& schedule : named_schedules())
    for (schedule_choice const& call : calls_of(schedule, asked)) {
      if (call.adapted != adapter::none)
        continue;
      trials.add(call, padded, "padded to " + std::to_string(longest));
      if (packed.size() < padded.size())
        trials.add(call, packed, "packed to " + std::to_string(longest));
    }
  for (int parts = 1; parts <= 64 && longest / parts >= 64; parts *= 2) {
    int const size = (longest + parts - 1) / parts;
    packing const chunks = pp::chunk_sequences(lengths, size);
    schedule_choice choice;
    choice.chunk_counts = pp::counts_of(chunks);
    std::string const how = "chunks of " + std::to_string(size);
    choice.name = "slice-v";
    trials.add(choice, chunks, how);
    choice.name = "chunkflow";
    for (int keep = 1; keep <= parts; keep *= 2) {
      choice.keep = keep;
      trials.add(choice, chunks, how + ", " + std::to_string(keep) + " kept");
    }
  }
  for (std::vector<sequence_numbers> const& microbatches : like_microbatches(lengths))
    trials.add_groups(microbatches);
  return trials.end();
}

} // namespace examples
