// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/view/append.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "choose.hpp"
#include "packed_model.hpp"

namespace pp = pipelining;

namespace examples {

void append_packed(std::string& out,
                   choose_command const& asked,
                   candidate const& pick,
                   std::string const& value) {
  packed_model const& cost = pick.packed->cost;
  int const stages = pp::stages(pick.extents);
  std::vector<int> first_chunks;
  std::string pieces; // {sequence, offset, tokens}
  std::string first_pieces = "0";
  int chunks = 0;
  int count = 0;
  for (pp::packed_microbatch const& microbatch : pick.packed->microbatches) {
    first_chunks.push_back(chunks);
    for (std::vector<pp::sequence_piece> const& chunk : microbatch) {
      ++chunks;
      for (pp::sequence_piece const& piece : chunk) {
        pp::append(pieces, count++ > 0 ? ", {" : "{", piece.sequence, ", ", piece.offset);
        pp::append(pieces, ", ", piece.tokens, "}");
      }
      pp::append(first_pieces, ", ", count);
    }
  }
  out += "//! Number of the first chunk of each microbatch, among those of all.\n";
  append_list(out, "int", "first_chunks", first_chunks);
  out += "//! Pieces of sequences: sequence, tokens of it before, tokens. Chunk i has those from\n"
         "//! first_pieces[i] to first_pieces[i + 1].\n";
  pp::append(out, "inline constexpr pipelining::sequence_piece pieces[] = {", pieces, "};\n");
  pp::append(out, "inline constexpr int first_pieces[] = {", first_pieces, "};\n");
  pp::append(out, "inline constexpr int stages = ", stages, ";\n//! [chunks][stages]\n");
  for (pp::pass_kind const kind : {pp::pass_kind::forward,
                                   pp::pass_kind::backward,
                                   pp::pass_kind::backward_input,
                                   pp::pass_kind::backward_weight}) {
    std::vector<double> seconds;
    std::vector<double> exchanges;
    for (std::size_t m = 0; m < first_chunks.size(); ++m)
      for (std::size_t chunk = 0; chunk < pick.packed->microbatches[m].size(); ++chunk)
        for (int stage = 0; stage < stages; ++stage) {
          pp::pass const what =
            pp::row_writer::make(kind, stage, static_cast<int>(m), static_cast<int>(chunk));
          seconds.push_back(cost.duration(what));
          exchanges.push_back(kind == pp::pass_kind::backward ? 0 : cost.exchanges(what));
        }
    std::string const name = pp::word(pp::training, kind);
    append_list(out, "double", (name + "_seconds").c_str(), seconds);
    append_list(out, "double", (name + "_exchange_seconds").c_str(), exchanges);
  }
  append_list(out, "double", "link_seconds", cost.links());
  int const longest = pick.chunk_lengths.front();
  pp::training_setup chunk = asked.setup;
  chunk.sequence = longest;
  std::int64_t activation = 0;
  std::int64_t message = 0;
  for (pp::stage_content const& content : content_of(pick)) {
    pp::stage_bytes const bytes =
      pp::predict_bytes(asked.model, chunk, content, std::vector<int>{longest});
    activation = std::max(activation, bytes.activation);
    message = std::max(message, bytes.message);
  }
  pp::append(out, "//! Of the stage and chunk that need the most.\n");
  pp::append(out, "inline constexpr pipelining::uniform_sizes sizes{.message = ", message);
  pp::append(out, ", .activation = ", activation, "};\n\n");
  pp::append(
    out,
    "//! The predicted times, in seconds, of every chunk of every microbatch.\n"
    "struct times {\n"
    "  [[nodiscard]] double duration(pipelining::pass const& what) const {\n"
    "    switch (what.kind) {\n"
    "    case pipelining::pass_kind::forward:\n"
    "    case pipelining::pass_kind::checkpointed_forward:\n"
    "    case pipelining::pass_kind::recompute: return forward_seconds[index(what)];\n"
    "    case pipelining::pass_kind::backward: return backward_seconds[index(what)];\n"
    "    case pipelining::pass_kind::backward_input: return backward_input_seconds[index(what)];\n"
    "    case pipelining::pass_kind::backward_weight: return "
    "backward_weight_seconds[index(what)];\n"
    "    default: return 0;\n"
    "    }\n"
    "  }\n"
    "  //! Of two passes whose exchanges hide behind each other.\n"
    "  [[nodiscard]] double pair_duration(pipelining::pass const& first,\n"
    "                                     pipelining::pass const& second) const {\n"
    "    return pipelining::detail::braid_time(duration(first) - exchanges(first), "
    "exchanges(first),\n"
    "                                          duration(second) - exchanges(second), "
    "exchanges(second));\n"
    "  }\n"
    "  [[nodiscard]] double latency() const { return ",
    cost.latency(),
    "; }\n"
    "  [[nodiscard]] std::span<double const> links() const { return link_seconds; }\n\n"
    "private:\n"
    "  [[nodiscard]] static int index(pipelining::pass const& what) {\n"
    "    return (first_chunks[what.microbatch] + what.chunk) * stages + what.stage;\n"
    "  }\n"
    "  [[nodiscard]] static double exchanges(pipelining::pass const& what) {\n"
    "    switch (what.kind) {\n"
    "    case pipelining::pass_kind::forward: return forward_exchange_seconds[index(what)];\n"
    "    case pipelining::pass_kind::backward_input:\n"
    "      return backward_input_exchange_seconds[index(what)];\n"
    "    default: return 0;\n"
    "    }\n"
    "  }\n"
    "};\n\n"
    "//! The verified timetable, in seconds.\n"
    "inline pipelining::dynamic_timetable timetable() {\n"
    "  return pipelining::make_timetable(",
    value,
    ", {devices, microbatches}, times{});\n"
    "}\n\n"
    "//! The plan, proven free of deadlock.\n"
    "inline pipelining::plan plan() { return pipelining::lower(timetable(), sizes); }\n\n"
    "} // namespace chosen\n");
}

} // namespace examples
