// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What chunks with pieces of several sequences take, and what devices hold of them.
#include "choose.hpp"

namespace examples {
namespace {

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

//! The measured times of stages for whole sequences.
pp::cost_table times_of_whole(choose_command const& asked, candidate one) {
  one.sequences = nullptr;
  one.extents.microbatches = static_cast<int>(asked.lengths.size());
  one.extents.chunks = 1;
  one.chunk_lengths = {static_cast<int>(asked.setup.sequence)};
  return costs_of(asked, one);
}

//! A table in which only messages take time: `seconds(from, to)`.
pp::cost_table
with_links(choose_command const& asked, pp::shape const& extents, auto const& seconds) {
  double latency = 0;
  for (int from = 0; from < asked.devices; ++from)
    for (int to = 0; to < asked.devices; ++to)
      latency = from == to ? latency : std::max(latency, seconds(from, to));
  pp::cost_table result(extents, {0, 0, 0, latency});
  set_links(result, asked.devices, seconds);
  return result;
}

//! In tokens of a plain message.
std::int64_t widest_message(choose_command const& asked,
                            packing const& microbatches,
                            std::vector<pp::stage_content> const& content) {
  std::vector<int> const tokens = laid_out(asked, microbatches);
  std::int64_t widest = 0;
  for (pp::packed_microbatch const& microbatch : microbatches)
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      for (pp::stage_content const& stage : content) {
        std::int64_t sent = 0;
        for (pp::sequence_piece const& piece : chunk)
          sent += predicted_for(asked.predicted(), piece, tokens)
                    .widest_message({&stage, 1}, piece.tokens);
        widest = std::max(widest, sent);
      }
  return widest;
}

//! The time of a pass, and of this its exchanges with other GPUs, which another pass may hide.
struct chunk_time {
  double seconds = 0;
  double exchanges = 0;
};

//! A kind, and another one that takes as long.
constexpr std::pair<pp::pass_kind, pp::pass_kind> packed_kinds[] = {
  {pp::pass_kind::forward, pp::pass_kind::recompute},
  {pp::pass_kind::backward_input, pp::pass_kind::backward_input},
  {pp::pass_kind::backward_weight, pp::pass_kind::backward_weight},
  {pp::pass_kind::copy_out, pp::pass_kind::copy_in}};

} // namespace

pp::sequence_piece measured_sequences::whole(pp::sequence_piece const& piece) const {
  return {piece.sequence,
          0,
          cost_.microbatches() > 1 ? lengths_[static_cast<std::size_t>(piece.sequence)] : longest_};
}

double measured_sequences::operator()(pp::pass_kind kind,
                                      int stage,
                                      pp::sequence_piece const& piece,
                                      double predicted,
                                      double predicted_whole) const {
  double const share = predicted_whole > 0
                         ? predicted / predicted_whole
                         : static_cast<double>(piece.tokens) / whole(piece).tokens;
  return share * cost_.duration(pp::row_writer::make(
                   kind, stage, cost_.microbatches() > 1 ? piece.sequence : 0));
}

double measured_sequences::message_seconds(int from, int to, std::int64_t tokens) const {
  double const seconds = pp::detail::message_time(cost_, devices_, from, to);
  return seconds * static_cast<double>(tokens) / longest_;
}

int tokens_of(std::vector<pp::sequence_piece> const& chunk) {
  return std::accumulate(
    chunk.begin(), chunk.end(), 0, [](int sum, pp::sequence_piece const& piece) {
      return sum + piece.tokens;
    });
}

packing microbatches_of(packed_sequences const& sequences, int chunks) {
  bool const given = std::ranges::any_of(
    sequences.whole, [](pp::packed_microbatch const& each) { return each.size() > 1; });
  return given || chunks == 1 ? sequences.whole : cut_microbatches(sequences.whole, chunks);
}

choose_command sized_for(choose_command const& asked, packed_sequences const& sequences) {
  choose_command sized = asked;
  sized.setup.sequence = 0;
  for (pp::packed_microbatch const& microbatch : sequences.whole) {
    std::int64_t tokens = 0;
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      tokens += tokens_of(chunk);
    sized.setup.sequence = std::max(sized.setup.sequence, tokens);
  }
  return sized;
}

std::vector<int> laid_out(choose_command const& asked,
                          std::span<pp::packed_microbatch const> microbatches) {
  std::vector<int> tokens(std::max<std::size_t>(1, asked.lengths.size()));
  for (pp::packed_microbatch const& microbatch : microbatches)
    for (std::vector<pp::sequence_piece> const& chunk : microbatch)
      for (pp::sequence_piece const& piece : chunk)
        tokens[static_cast<std::size_t>(piece.sequence)] += piece.tokens;
  return tokens;
}

pp::prediction
predicted_for(pp::prediction of, pp::sequence_piece const& piece, std::span<int const> tokens) {
  of.setup.sequence = tokens[static_cast<std::size_t>(piece.sequence)];
  return of;
}

pp::cost_table packed_costs(choose_command const& asked, candidate const& one) {
  packing const microbatches = microbatches_of(*one.sequences, one.extents.chunks);
  std::vector<pp::stage_content> const content = content_of(asked, one);
  std::vector<int> const tokens = laid_out(asked, microbatches);
  std::optional<measured_sequences> measured; // in place of what is predicted
  if (asked.measured)
    measured.emplace(asked, times_of_whole(asked, one));
  // On the slower device of a stage that has two.
  auto const time_of = [&](pp::pass const& what, std::vector<pp::sequence_piece> const& chunk) {
    pp::stage_content const& stage = content[what.stage];
    bool const copies = what.kind == pp::pass_kind::copy_out;
    chunk_time slowest;
    for (int const device :
         asked.gpus.size() > 1 ? pp::holders_of({one.extents}, what.stage) : std::vector<int>{0}) {
      pp::prediction const on = asked.predicted(asked.gpu(device));
      auto const predicted = [&](pp::sequence_piece const& piece, pp::prediction const& of) {
        return copies ? of.copy_seconds(stage, piece.tokens)
                      : of.pass_seconds(stage, what.kind, {piece.tokens, piece.offset});
      };
      chunk_time here;
      for (pp::sequence_piece const& piece : chunk) {
        pp::prediction of = predicted_for(on, piece, tokens);
        double const alone = predicted(piece, of);
        if (measured) {
          pp::sequence_piece const whole = measured->whole(piece);
          of.setup.sequence = whole.tokens;
          here.seconds += (*measured)(what.kind, what.stage, piece, alone, predicted(whole, of));
        } else {
          here.seconds += alone;
          here.exchanges += copies ? 0 : of.exchange_seconds(stage, what.kind, piece.tokens);
        }
      }
      slowest = here.seconds >= slowest.seconds ? here : slowest;
    }
    return slowest;
  };
  std::int64_t const widest = widest_message(asked, microbatches, content);
  pp::cost_table result = with_links(asked, one.extents, [&](int from, int to) {
                            return measured ? measured->message_seconds(from, to, widest)
                                            : seconds_between(asked, from, to, widest);
                          }).by_microbatch(one.extents.microbatches);
  for (std::size_t m = 0; m < microbatches.size(); ++m)
    for (std::size_t chunk = 0; chunk < microbatches[m].size(); ++chunk)
      for (int stage = 0; stage < one.extents.stages(); ++stage)
        for (auto const& [kind, other] : packed_kinds) {
          auto what =
            pp::row_writer::make(kind, stage, static_cast<int>(m), static_cast<int>(chunk));
          chunk_time const time = time_of(what, microbatches[m][chunk]);
          for (pp::pass_kind const each : {kind, other}) {
            what.kind = each;
            result.set(what, time.seconds);
            result.set_exchanges(what, time.exchanges);
          }
        }
  return result;
}

void count_packed_memory(choose_command const& asked, pp::timetable_view table, candidate& one) {
  packing const microbatches = microbatches_of(*one.sequences, one.extents.chunks);
  std::vector<pp::stage_content> const content = content_of(asked, one);
  std::vector<int> const lengths = laid_out(asked, microbatches);
  // Gradients of keys and values travel between the chunks of one sequence at a time.
  std::vector<pp::stage_bytes> const resident =
    bytes_of(sized_for(asked, *one.sequences), content, one.chunk_lengths);
  auto const of_unit = [&](pp::pass const& what) {
    pp::stage_content const& stage = content[what.stage];
    // A chunk that is recomputed keeps its input, and keys and values for those after it.
    int const read_again = one.extents.chunks > 1 ? stage.layers + stage.modules : 0;
    double all = 0;
    double kept = 0;
    for (pp::sequence_piece const& piece : microbatches[what.microbatch][what.chunk]) {
      pp::prediction const on = predicted_for(asked.predicted(), piece, lengths);
      auto const part = [&](std::int64_t bytes) {
        return static_cast<double>(bytes) / asked.setup.tensor;
      };
      all += part(on.kept_bytes(stage, piece.tokens));
      kept += read_again * part(asked.model.key_value_bytes(piece.tokens));
      if (what.stage > 0) // else it is tokens, which take next to nothing
        kept +=
          static_cast<double>(on.sent_bytes(content[what.stage - std::size_t{1}], piece.tokens));
    }
    return pp::unit_bytes{all, kept, all};
  };
  count_devices(asked, one, [&](int device) {
    double held = pp::peak_device_bytes(table, device, of_unit);
    for (int stage = 0; stage < one.extents.stages(); ++stage)
      for (int const holder : pp::holders_of(table.over, stage))
        if (holder == device)
          held += static_cast<double>(resident[static_cast<std::size_t>(stage)].resident());
    return held_at_once{
      held,
      pp::peak_slot_bytes(
        table, device, pp::slot_class::host_activation, [&](pp::pass const& what) {
          return of_unit(what).moved;
        })};
  });
}

} // namespace examples
