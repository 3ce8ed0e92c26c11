// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The order that a search has found as a C++ type.
#include <pipe/flow/training.hpp>
#include <pipe/view/append.hpp>

#include "search.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

char const* word_of(pp::placement where) {
  switch (where) {
  case pp::placement::looped: return "looped";
  case pp::placement::wave: return "wave";
  case pp::placement::bidirectional: return "bidirectional";
  case pp::placement::custom: break; // search and choose have none
  }
  return "";
}

} // namespace

void append_order_type(std::string& out, pp::dynamic_timetable const& table) {
  pp::shape const& extents = table.over.extents;
  pp::append(out, "inline constexpr int devices = ", extents.devices, ";\n");
  pp::append(out, "inline constexpr int microbatches = ", extents.microbatches, ";\n\n");
  out += "namespace detail {\n"
         "//! A letter of the kind, then stage, microbatch and chunk in a base of 64 from '0' on.\n"
         "inline constexpr char const* rows[] = {\n";
  auto const append_digits = [&out](int value) {
    out += static_cast<char>('0' + value / 64 / 64);
    out += static_cast<char>('0' + value / 64 % 64);
    out += static_cast<char>('0' + value % 64);
  };
  for (int device = 0; device < extents.devices; ++device) {
    out += "  R\"(";
    for (pp::pass const& what : pp::timetable_view(table).row(device)) {
      out += table.over.declared.letter(what.kind);
      append_digits(what.stage);
      append_digits(what.microbatch);
      append_digits(what.chunk);
    }
    out += device + 1 < extents.devices ? ")\",\n" : ")\"};\n";
  }
  out += "} // namespace detail\n\n"
         "//! A schedule for these devices and microbatches.\n"
         "struct schedule {\n"
         "  [[nodiscard]] static constexpr pipelining::shape arrange(int p, int m) {\n"
         "    if (p != devices || m != microbatches)\n"
         "      throw std::invalid_argument(\"this order was searched for ";
  pp::append(out, extents.devices, " devices and ", extents.microbatches, " microbatches; \"\n");
  out += "                                  \"search another one for others\");\n";
  pp::append(out, "    return {p, m, ", extents.chunks, ", ", extents.stages_per_device);
  pp::append(out, ", pipelining::placement::", word_of(extents.where), "};\n");
  out += "  }\n"
         "  static constexpr void\n"
         "  order(pipelining::shape const&, int device, pipelining::row_writer& row) {\n"
         "    auto const number = [](char const* at) {\n"
         "      return ((at[0] - '0') * 64 + (at[1] - '0')) * 64 + (at[2] - '0');\n"
         "    };\n"
         "    for (char const* at = detail::rows[device]; *at != '\\0'; at += 10) {\n"
         "      using pipelining::pass_kind;\n"
         "      pass_kind const kind = *at == 'F'   ? pass_kind::forward\n"
         "                             : *at == 'B' ? pass_kind::backward\n"
         "                             : *at == 'I' ? pass_kind::backward_input\n"
         "                                          : pass_kind::backward_weight;\n"
         "      row.push(row.make(kind, number(at + 1), number(at + 4), number(at + 7)));\n"
         "    }\n"
         "  }\n"
         "};\n"
         "static_assert(pipelining::schedule<schedule>);\n\n";
}

std::string search_header(searched const& found) {
  std::string out = "// An order that `timetable search` found";
  pp::append(out, found.call.empty() ? "" : ": " + found.call, ".\n");
  out +=
    "#pragma once\n\n#include <pipe/pipe.hpp>\n\n#include <stdexcept>\n\nnamespace found {\n\n";
  append_order_type(out, found.made.table);
  pp::uniform_cost const& cost = found.made.cost;
  pp::append(out, "//! The times it was searched for, of one stage (and chunk) in the mean.\n");
  pp::append(out, "inline constexpr pipelining::uniform_cost cost{", cost.forward, ", ");
  pp::append(
    out, cost.backward_input, ", ", cost.backward_weight, ", ", cost.communication, "};\n\n");
  out += "//! The verified timetable.\n"
         "inline pipelining::dynamic_timetable timetable() {\n"
         "  return pipelining::make_timetable<schedule>({devices, microbatches}, cost);\n"
         "}\n\n"
         "//! The plan, proven free of deadlock.\n"
         "inline pipelining::plan plan(pipelining::uniform_sizes const& sizes) {\n"
         "  return pipelining::lower(timetable(), sizes);\n"
         "}\n\n"
         "} // namespace found\n";
  return out;
}

} // namespace examples
