// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose_header.hpp"

#include <pipe/io/append.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "command_line.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

template <class List>
void append_list(std::string& out, char const* type, char const* name, List const& list) {
  pp::append(out, "inline constexpr ", type, " ", name, "[] = {");
  for (std::size_t i = 0; i < list.size(); ++i)
    pp::append(out, i > 0 ? ", " : "", list[i]);
  pp::append(out, "};\n");
}

} // namespace

std::string choose_header(choose_command const& asked, candidate const& pick) {
  std::string type = pick.type;
  std::string value = "schedule{}";
  if (pick.choice.name == "zb-auto") {
    type = "pipelining::ZeroBubbleAuto<>";
    value = "schedule{.memory_limit = " +
            std::to_string(static_cast<int>(pick.choice.memory_limit.value_or(0))) + "}";
  } else if (pick.choice.name == "v-continuous") {
    type = "pipelining::VContinuous";
    value = "schedule{.memory_limit = " +
            std::to_string(static_cast<int>(pick.choice.memory_limit.value_or(0))) + "}";
  }
  bool const adapted = pick.choice.adapted != adapter::none;
  if (type.empty())
    throw usage_error("choose: " + pick.label + " has no C++ type to write down");
  pp::cost_table const cost = costs_of(asked, pick);
  int const stages = pp::stages(pick.extents);
  std::string out = "// The schedule that `timetable choose` picked: " + pick.label + ".\n";
  out += "#pragma once\n\n#include <pipe/pipe.hpp>\n\nnamespace chosen {\n\n";
  pp::append(out, "using schedule = ", type, ";\n");
  pp::append(out, "inline constexpr int devices = ", asked.devices, ";\n");
  pp::append(out, "inline constexpr int microbatches = ", asked.microbatches, ";\n");
  append_list(out, "int", "layers_per_stage", pick.layers);
  append_list(out, "int", "chunk_lengths", pick.chunk_lengths);
  constexpr struct {
    pp::pass_kind kind;
    char const* name;
  } kinds[] = {{pp::pass_kind::forward, "forward"},
               {pp::pass_kind::backward_input, "backward_input"},
               {pp::pass_kind::backward_weight, "backward_weight"},
               {pp::pass_kind::recompute, "recompute"},
               {pp::pass_kind::copy_out, "copy_out"},
               {pp::pass_kind::copy_in, "copy_in"}};
  std::string set; // of the kinds that the schedule has
  for (auto const& [kind, name] : kinds) {
    bool const extra = kind == pp::pass_kind::recompute || kind == pp::pass_kind::copy_out ||
                       kind == pp::pass_kind::copy_in;
    if (extra && !adapted)
      continue;
    std::vector<double> times; // [stage, chunk]
    for (int stage = 0; stage < stages; ++stage)
      for (int chunk = 0; chunk < pick.extents.chunks; ++chunk)
        times.push_back(cost.duration(pp::row_writer::make(kind, stage, 0, chunk)));
    append_list(out, "double", (std::string(name) + "_seconds").c_str(), times);
    pp::append(set, "      table.set(pipelining::pass_kind::", name, ", stage, chunk, ", name);
    set += "_seconds[i]);\n";
  }
  pp::append(out, "inline constexpr double message_seconds = ", cost.latency(), ";\n");
  // The largest of each: a plan with one size per class has room for all.
  std::int64_t activation = 0;
  std::int64_t message = 0;
  int const longest = *std::max_element(pick.chunk_lengths.begin(), pick.chunk_lengths.end());
  for (pp::stage_content const& content : pp::stage_contents(pick.layers)) {
    pp::training_setup chunk = asked.setup;
    chunk.sequence = longest;
    pp::stage_bytes const bytes =
      pp::predict_bytes(asked.model, chunk, content, pick.chunk_lengths);
    activation = std::max(activation, bytes.activation);
    message = std::max(message, bytes.message);
  }
  pp::append(out, "//! Of the stage and chunk that need the most.\n");
  pp::append(out, "inline constexpr pipelining::uniform_sizes sizes{.message = ", message);
  pp::append(out, ", .activation = ", activation, "};\n\n");
  out += "//! The predicted times, in seconds.\n"
         "inline pipelining::cost_table costs() {\n"
         "  pipelining::shape const extents = " +
         value +
         ".arrange(devices, microbatches);\n"
         "  pipelining::cost_table table(extents, {.communication = message_seconds});\n"
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
