// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/view/append.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "choose.hpp"
#include "options.hpp"
#include "search.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! With the chunks of each microbatch where the type does not say them.
std::string packed_value(candidate const& pick, std::string const& otherwise) {
  std::vector<int> const& counts = pick.choice.chunk_counts;
  if (counts.empty())
    return otherwise;
  std::string value = "schedule{{{";
  for (std::size_t i = 0; i < counts.size(); ++i)
    pp::append(value, i > 0 ? ", " : "", counts[i]);
  value += "}}";
  if (pick.choice.keep)
    pp::append(value, ", ", *pick.choice.keep);
  return value + "}";
}

} // namespace

std::string choose_header(choose_command const& asked, candidate const& pick) {
  std::string const& type = pick.type;
  bool const adapted = pick.choice.adapted != adapter::none;
  std::string value = "schedule{}";
  if (!pick.choice.name.empty() && find_schedule(pick.choice.name).traits.limit_in_value) {
    value =
      "{.memory_limit = " + std::to_string(static_cast<int>(pick.choice.memory_limit.value_or(0))) +
      "}";
    value = adapted ? "schedule{" + value + "}" : "schedule" + value;
  }
  if (pick.choice.adapted == adapter::sharded_weights) {
    value = value == "schedule{}" ? "schedule{{}" : value.substr(0, value.size() - 1);
    pp::append(value, ", {.prefetch = ", pick.choice.prefetch);
    pp::append(value, ", .resident = ", pick.choice.resident, "}}");
  }
  bool const shards = has_shards(pick.choice.adapted);
  if (type.empty() && !pick.own_order)
    throw usage_error("choose: " + pick.label + " has no C++ type to write down");
  if (!pick.places.empty())
    throw usage_error("choose: the format header knows no devices in another order than --gpu has "
                      "them; give them as the text report says");
  int const stages = pp::stages(pick.extents);
  std::string out = "// The schedule that `timetable choose` picked: " + pick.label + ".\n";
  out += "#pragma once\n\n#include <pipe/pipe.hpp>\n#include <pipe/planner.hpp>\n\n";
  out +=
    pick.own_order ? "#include <stdexcept>\n\nnamespace chosen {\n\n" : "namespace chosen {\n\n";
  if (pick.own_order) {
    append_order_type(out, *pick.own_order, "choose");
  } else {
    pp::append(out, "using schedule = ", type, ";\n");
    pp::append(out, "inline constexpr int devices = ", asked.devices, ";\n");
    pp::append(out, "inline constexpr int microbatches = ", pick.choice.microbatches, ";\n");
  }
  append_list(out, "int", "layers_per_stage", pick.layers);
  if (std::string const layout = layout_of(pick); !layout.empty()) {
    pp::append(out, "// Of each stage: E the embedding, t a layer, L the output layer.\n");
    pp::append(out, "inline constexpr char layout[] = \"", layout, "\";\n");
  }
  if (pick.packed) {
    append_packed(out, asked, pick, pick.own_order ? "schedule{}" : packed_value(pick, value));
    return out;
  }
  append_list(out, "int", "chunk_lengths", pick.chunk_lengths);
  pp::cost_table const cost = costs_of(asked, pick);
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
    char const* const name =
      cost.kinds()[static_cast<std::size_t>(cost.number_of(kind))].word.c_str();
    bool const frugal = kind == pp::pass_kind::recompute || kind == pp::pass_kind::copy_out ||
                        kind == pp::pass_kind::copy_in;
    bool const of_shard = kind == pp::pass_kind::logits || kind == pp::pass_kind::logits_gradient ||
                          kind == pp::pass_kind::embed || kind == pp::pass_kind::embed_gradient;
    bool const gathers =
      kind == pp::pass_kind::gather_weights || kind == pp::pass_kind::scatter_gradients;
    if ((frugal && (!adapted || shards)) || (of_shard && !shards) ||
        (gathers && !gathers_weights(pick.choice.adapted)))
      continue;
    std::vector<double> times; // [stage, chunk]
    for (int stage = 0; stage < stages; ++stage)
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
  pp::append(out, "inline constexpr double message_seconds = ", cost.latency(), ";\n");
  std::vector<double> const links(cost.links().begin(), cost.links().end());
  if (!links.empty())
    append_list(out, "double", "link_seconds", links);
  // The largest of each: a plan with one size per class has room for all.
  std::int64_t activation = 0;
  std::int64_t message = 0;
  std::int64_t logits = 0;
  int const longest = *std::max_element(pick.chunk_lengths.begin(), pick.chunk_lengths.end());
  for (pp::stage_content const& content : content_of(pick)) {
    pp::training_setup chunk = asked.setup;
    chunk.sequence = longest;
    pp::stage_bytes const bytes =
      pp::predict_bytes(asked.model, chunk, content, pick.chunk_lengths);
    activation = std::max(activation, bytes.activation);
    message = std::max(message, bytes.message);
    logits = std::max(logits, bytes.logits);
  }
  pp::append(out, "//! Of the stage and chunk that need the most.\n");
  if (shards) {
    // Three numbers of single precision for each token.
    std::int64_t const statistics = std::int64_t{12} * longest * asked.setup.sequences;
    pp::append(out,
               "struct shard_sizes : pipelining::uniform_sizes {\n"
               "  [[nodiscard]] constexpr std::int64_t bytes(pipelining::slot_class of,\n"
               "                                             pipelining::pass const& what) const "
               "noexcept {\n"
               "    return of == pipelining::slot_class::logits       ? ",
               logits,
               "\n           : of == pipelining::slot_class::statistics ? ",
               statistics,
               "\n                                                      : uniform_sizes::bytes(of, "
               "what);\n  }\n};\n");
  }
  pp::append(out,
             "inline constexpr ",
             shards ? "shard_sizes sizes{{.message = "
                    : "pipelining::uniform_sizes sizes{.message = ",
             message);
  pp::append(out, ", .activation = ", activation, shards ? "}};\n\n" : "};\n\n");
  std::string const set_links =
    links.empty() ? ""
                  : "  for (int from = 0; from < devices; ++from)\n"
                    "    for (int to = 0; to < devices; ++to)\n"
                    "      if (from != to)\n"
                    "        table.set_link(from, to, link_seconds[from * devices + to]);\n";
  std::string set_groups;
  if (shards)
    pp::append(set_groups,
               "  table.set_groups({",
               cost.groups().broadcast,
               ", ",
               cost.groups().reduce,
               "});\n");
  out += "//! The predicted times, in seconds.\n"
         "inline pipelining::cost_table costs() {\n"
         "  pipelining::shape const extents = " +
         value +
         ".arrange(devices, microbatches);\n"
         "  pipelining::cost_table table(extents, {.communication = message_seconds});\n" +
         set_links + set_groups +
         "  for (int stage = 0; stage < pipelining::stages(extents); ++stage)\n"
         "    for (int chunk = 0; chunk < extents.chunks; ++chunk) {\n"
         "      int const i = stage * extents.chunks + chunk;\n" +
         set +
         "    }\n"
         "  return table;\n"
         "}\n\n"
         "//! The verified timetable, in seconds.\n"
         "inline pipelining::dynamic_timetable timetable() {\n"
         "  return pipelining::make_timetable(" +
         value +
         ", {devices, microbatches}, costs());\n"
         "}\n\n"
         "//! The plan, proven free of deadlock.\n"
         "inline pipelining::plan plan() { return pipelining::lower(timetable(), sizes); }\n\n"
         "} // namespace chosen\n";
  return out;
}

} // namespace examples
