// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

//! Numbers between commas.
std::string joined(auto const& list) {
  std::string text;
  for (std::size_t i = 0; i < list.size(); ++i)
    pp::append(text, i > 0 ? ", " : "", list[i]);
  return text;
}

//! A constant array of a header.
void append_list(std::string& out, char const* type, char const* name, auto const& list) {
  pp::append(out, "inline constexpr ", type, " ", name, "[] = {", joined(list), "};\n");
}

//! With the chunks of each microbatch where the type does not say them.
std::string packed_value(candidate const& pick, std::string const& otherwise) {
  if (pick.choice.chunk_counts.empty())
    return otherwise;
  std::string const value = "schedule{{{" + joined(pick.choice.chunk_counts) + "}}";
  return value + (pick.choice.keep ? ", " + std::to_string(*pick.choice.keep) : "") + "}";
}

//! The most that a chunk takes of any stage: a plan with one size per class has room for all.
pp::stage_bytes most_of_chunk(choose_command const& asked, candidate const& pick, int longest) {
  pp::training_setup chunk = asked.setup;
  chunk.sequence = longest;
  pp::stage_bytes most;
  for (pp::stage_content const& content : content_of(asked, pick)) {
    pp::stage_bytes const bytes =
      pp::prediction{asked.model, chunk}.bytes(content, pick.chunk_lengths);
    most.activation = std::max(most.activation, bytes.activation);
    most.message = std::max(most.message, bytes.message);
    most.logits = std::max(most.logits, bytes.logits);
  }
  return most;
}

//! What each chunk of each microbatch has.
void append_pieces(std::string& out, std::vector<pp::packed_microbatch> const& microbatches) {
  std::vector<int> first_chunks;
  std::string pieces; // {sequence, offset, tokens}
  std::string first_pieces = "0";
  int chunks = 0;
  int count = 0;
  for (pp::packed_microbatch const& microbatch : microbatches) {
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
}

//! The times of the passes of every chunk on every stage.
void append_seconds(std::string& out,
                    candidate const& pick,
                    packing const& microbatches,
                    pp::cost_table const& cost) {
  int const stages = pick.extents.stages();
  pp::append(out, "inline constexpr int stages = ", stages, ";\n//! [chunks][stages]\n");
  for (pp::pass_kind const kind : {pp::pass_kind::forward,
                                   pp::pass_kind::backward,
                                   pp::pass_kind::backward_input,
                                   pp::pass_kind::backward_weight}) {
    std::vector<double> seconds;
    std::vector<double> exchanges;
    for (std::size_t m = 0; m < microbatches.size(); ++m)
      for (std::size_t chunk = 0; chunk < microbatches[m].size(); ++chunk)
        for (int stage = 0; stage < stages; ++stage) {
          pp::pass const what =
            pp::row_writer::make(kind, stage, static_cast<int>(m), static_cast<int>(chunk));
          seconds.push_back(cost.duration(what));
          exchanges.push_back(cost.exchanges(what));
        }
    std::string const name = pp::training.word(kind);
    append_list(out, "double", (name + "_seconds").c_str(), seconds);
    append_list(out, "double", (name + "_exchange_seconds").c_str(), exchanges);
  }
}

//! Up to the time of a message.
constexpr char packed_times[] =
  R"cpp(//! The predicted times, in seconds, of every chunk of every microbatch.
struct times {
  [[nodiscard]] double duration(pipelining::pass const& what) const {
    switch (what.kind) {
    case pipelining::pass_kind::forward:
    case pipelining::pass_kind::checkpointed_forward:
    case pipelining::pass_kind::recompute: return forward_seconds[index(what)];
    case pipelining::pass_kind::backward: return backward_seconds[index(what)];
    case pipelining::pass_kind::backward_input: return backward_input_seconds[index(what)];
    case pipelining::pass_kind::backward_weight: return backward_weight_seconds[index(what)];
    default: return 0;
    }
  }
  //! Of two passes whose exchanges hide one after the other.
  [[nodiscard]] double pair_duration(pipelining::pass const& first,
                                     pipelining::pass const& second) const {
    return pipelining::detail::braid_time(duration(first) - exchanges(first), exchanges(first),
                                          duration(second) - exchanges(second), exchanges(second));
  }
  [[nodiscard]] double latency() const { return )cpp";
//! Up to the end.
constexpr char behind_packed_times[] = R"cpp(; }
  [[nodiscard]] std::span<double const> links() const { return link_seconds; }

private:
  [[nodiscard]] static int index(pipelining::pass const& what) {
    return (first_chunks[what.microbatch] + what.chunk) * stages + what.stage;
  }
  [[nodiscard]] static double exchanges(pipelining::pass const& what) {
    switch (what.kind) {
    case pipelining::pass_kind::forward: return forward_exchange_seconds[index(what)];
    case pipelining::pass_kind::backward_input:
      return backward_input_exchange_seconds[index(what)];
    default: return 0;
    }
  }
};

)cpp";

//! Timetable and plan of a schedule by these times.
void append_plan(std::string& out, std::string const& value, std::string_view times) {
  out += "//! The verified timetable, in seconds.\n"
         "inline pipelining::dynamic_timetable timetable() {\n";
  pp::append(out, "  return pipelining::make_timetable(", value, ", {devices, microbatches}, ");
  pp::append(out, times, ");\n}\n\n");
  out += "//! The plan, proven free of deadlock.\n"
         "inline pipelining::plan plan() { return pipelining::lower(timetable(), sizes); }\n\n"
         "} // namespace chosen\n";
}

//! Sizes of slots: of the stage and chunk that need the most.
void append_sizes(std::string& out, choose_command const& asked, candidate const& pick) {
  bool const shards = pick.choice.has_shards();
  int const longest = *std::max_element(pick.chunk_lengths.begin(), pick.chunk_lengths.end());
  pp::stage_bytes const most = most_of_chunk(asked, pick, longest);
  pp::append(out, "//! Of the stage and chunk that need the most.\n");
  if (shards) {
    // Three numbers of single precision for each hidden state.
    std::int64_t const statistics =
      std::int64_t{12} * longest * asked.setup.sequences * (1 + asked.model.modules);
    pp::append(out,
               "struct shard_sizes : pipelining::uniform_sizes {\n"
               "  [[nodiscard]] constexpr std::int64_t bytes(pipelining::slot_class of,\n"
               "                                             pipelining::pass const& what) const "
               "noexcept {\n"
               "    return of == pipelining::slot_class::logits       ? ",
               most.logits,
               "\n           : of == pipelining::slot_class::statistics ? ",
               statistics,
               "\n                                                      : uniform_sizes::bytes(of, "
               "what);\n  }\n};\n");
  }
  pp::append(out,
             "inline constexpr ",
             shards ? "shard_sizes sizes{{.message = "
                    : "pipelining::uniform_sizes sizes{.message = ",
             most.message);
  pp::append(out, ", .activation = ", most.activation, shards ? "}};\n\n" : "};\n\n");
}

//! The rest of a header for sequences of unequal length, after its type: what each chunk has, what
//! its passes take, timetable and plan.
//! @param value the schedule
void append_packed(std::string& out,
                   choose_command const& asked,
                   candidate const& pick,
                   std::string const& value) {
  packing const microbatches = microbatches_of(*pick.sequences, pick.extents.chunks);
  pp::cost_table const cost = costs_of(asked, pick);
  append_pieces(out, microbatches);
  append_seconds(out, pick, microbatches, cost);
  std::vector<double> links(cost.links().begin(), cost.links().end());
  links.resize(std::max<std::size_t>(1, links.size())); // an array of one device has one, too
  append_list(out, "double", "link_seconds", links);
  append_sizes(out, asked, pick);
  pp::append(out, packed_times, cost.latency(), behind_packed_times);
  append_plan(out, value, "times{}");
}

//! The schedule as a value.
std::string value_of(schedule_choice const& pick) {
  std::string inner = "{}";
  if (!pick.name.empty() && find_schedule(pick.name).traits.limit_in_value)
    inner =
      "{.memory_limit = " + std::to_string(static_cast<int>(pick.memory_limit.value_or(0))) + "}";
  if (pick.adapted == adapter::none)
    return "schedule" + inner;
  std::string more;
  if (!pick.adapted_stages.empty())
    more = pick.adapted == adapter::recompute ? ", {adapted_stages}" : ", {.only = adapted_stages}";
  if (pick.adapted == adapter::sharded_weights)
    pp::append(more, ", {.prefetch = ", pick.prefetch, ", .resident = ", pick.resident, "}");
  return "schedule{" + (more.empty() && inner == "{}" ? "" : inner) + more + "}";
}

//! The times of passes by stage and chunk.
//! @return the text that sets them in a table of costs
std::string append_times(std::string& out, candidate const& pick, pp::cost_table const& cost) {
  bool const adapted = pick.choice.adapted != adapter::none;
  bool const shards = pick.choice.has_shards();
  std::string set; // of the kinds that the schedule has
  for (pp::pass_kind const kind : {pp::pass_kind::forward,
                                   pp::pass_kind::backward_input,
                                   pp::pass_kind::backward_weight,
                                   pp::pass_kind::recompute,
                                   pp::pass_kind::copy_out,
                                   pp::pass_kind::copy_in,
                                   pp::pass_kind::gather_weights,
                                   pp::pass_kind::scatter_gradients,
                                   pp::pass_kind::logits,
                                   pp::pass_kind::logits_gradient,
                                   pp::pass_kind::embed,
                                   pp::pass_kind::embed_gradient}) {
    pp::cost_table::timed_kind const& timed =
      cost.kinds()[static_cast<std::size_t>(cost.number_of(kind))];
    bool const weights_move = timed.is == pp::role::communicate;
    bool const frugal = timed.is == pp::role::again || timed.is == pp::role::copy;
    if (timed.in_groups ? !shards
        : weights_move  ? !pick.choice.gathers_weights()
                        : frugal && (!adapted || shards))
      continue;
    std::string const name = timed.word.c_str();
    std::vector<double> times; // [stage, chunk]
    for (int stage = 0; stage < pick.extents.stages(); ++stage)
      for (int chunk = 0; chunk < pick.extents.chunks; ++chunk)
        times.push_back(cost.duration(pp::row_writer::make(kind, stage, 0, chunk)));
    auto const add = [&](std::string const& list, char const* member) {
      append_list(out, "double", (name + list).c_str(), times);
      pp::append(set, "      table.", member, "(pipelining::pass_kind::", name);
      pp::append(set, ", stage, chunk, ", name, list, "[i]);\n");
    };
    add("_seconds", "set");
    for (int i = 0; i < static_cast<int>(times.size()); ++i)
      times[static_cast<std::size_t>(i)] = cost.exchanges(
        pp::row_writer::make(kind, i / pick.extents.chunks, 0, i % pick.extents.chunks));
    if (*std::max_element(times.begin(), times.end()) > 0)
      add("_exchange_seconds", "set_exchanges");
  }
  return set;
}

//! Costs, timetable and plan.
//! @param value the schedule @param set what sets times in a table of costs
void append_functions(std::string& out,
                      std::string const& value,
                      std::string const& set,
                      pp::cost_table const& cost) {
  std::string const set_links =
    cost.links().empty() ? ""
                         : "  for (int from = 0; from < devices; ++from)\n"
                           "    for (int to = 0; to < devices; ++to)\n"
                           "      if (from != to)\n"
                           "        table.set_link(from, to, link_seconds[from * devices + to]);\n";
  std::string set_groups;
  if (auto const [broadcast, reduce] = cost.groups(); broadcast >= 0)
    pp::append(set_groups, "  table.set_groups({", broadcast, ", ", reduce, "});\n");
  out += "//! The predicted times, in seconds.\n"
         "inline pipelining::cost_table costs() {\n"
         "  pipelining::shape const extents = " +
         value +
         ".arrange(devices, microbatches);\n"
         "  pipelining::cost_table table(extents, {.communication = message_seconds});\n" +
         set_links + set_groups +
         "  for (int stage = 0; stage < extents.stages(); ++stage)\n"
         "    for (int chunk = 0; chunk < extents.chunks; ++chunk) {\n"
         "      int const i = stage * extents.chunks + chunk;\n" +
         set +
         "    }\n"
         "  return table;\n"
         "}\n\n";
  append_plan(out, value, "costs()");
}

} // namespace

std::string choose_header(choose_command const& asked, candidate const& pick) {
  std::string const type = pick.own_order ? "" : type_of(pick.choice);
  std::string const value = value_of(pick.choice);
  if (type.empty() && !pick.own_order)
    throw usage_error("choose: " + pick.label + " has no C++ type to write down");
  if (asked.measured && asked.measured->times.microbatches() > 1)
    throw usage_error("choose: the format header has one time for all microbatches; read the file "
                      "of costs with read_costs and costs_for in place of it");
  if (!pick.places.empty())
    throw usage_error("choose: the format header knows no devices in another order than --gpu has "
                      "them; give them as the text report says");
  std::string out = "// The schedule that `timetable choose` picked: " + pick.label + ".\n";
  out += "#pragma once\n\n#include <pipe/pipe.hpp>\n#include <pipe/planner.hpp>\n\n";
  out +=
    pick.own_order ? "#include <stdexcept>\n\nnamespace chosen {\n\n" : "namespace chosen {\n\n";
  if (pick.own_order) {
    append_order_type(out, *pick.own_order);
  } else {
    pp::append(out, "using schedule = ", type, ";\n");
    pp::append(out, "inline constexpr int devices = ", asked.devices, ";\n");
    pp::append(out, "inline constexpr int microbatches = ", pick.choice.microbatches, ";\n");
  }
  append_list(out, "int", "layers_per_stage", pick.layers);
  if (!pick.choice.adapted_stages.empty())
    append_list(out, "int", "adapted_stages", pick.choice.adapted_stages);
  if (std::string const layout = layout_of(asked, pick); !layout.empty()) {
    pp::append(out,
               "// Of each stage: E the embedding, t a layer, m a module,\n"
               "// e a layer of an encoder, L the output layer.\n");
    pp::append(out, "inline constexpr char layout[] = \"", layout, "\";\n");
  }
  if (pick.sequences) {
    append_packed(out, asked, pick, pick.own_order ? "schedule{}" : packed_value(pick, value));
    return out;
  }
  append_list(out, "int", "chunk_lengths", pick.chunk_lengths);
  pp::cost_table const cost = costs_of(asked, pick);
  std::string const set = append_times(out, pick, cost);
  pp::append(out, "inline constexpr double message_seconds = ", cost.latency(), ";\n");
  if (!cost.links().empty())
    append_list(out, "double", "link_seconds", cost.links());
  append_sizes(out, asked, pick);
  append_functions(out, value, set, cost);
  return out;
}

} // namespace examples
