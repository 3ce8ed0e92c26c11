// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Planned and measured passes for ui.perfetto.dev and chrome://tracing. Header for
//! pipelining::write_trace.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/io/append.hpp>
#include <pipe/io/details.hpp>
#include <pipe/io/json.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief A pass that has run: on which device, from when to when.
struct measured_pass {
  int device = 0;
  pass what;
  double start = 0; //!< in the unit of the user, like `end`
  double end = 0;
};

//! @brief How a trace is drawn.
struct trace_options {
  double planned_unit = 1000;     //!< microseconds of one unit of planned time
  double measured_unit = 1000000; //!< microseconds of one unit of measured time; seconds by default
  bool arrows = false;            //!< an arrow from every pass to the one on another device that
                                  //!< waits for its message
};

namespace detail {

inline constexpr int planned_process = 1;
inline constexpr int measured_process = 2;

//! Writes the events of a trace with the commas between them.
template <text_sink Sink>
struct trace_writer {
  Sink& out;
  bool any = false;

  void begin_event() {
    append(out, any ? ",\n" : "\n");
    any = true;
  }

  void name_process(int process, std::string_view name, int devices) {
    begin_event();
    append(
      out, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", process, ",\"args\":{\"name\":");
    append_quoted(out, name);
    append(out, "}}");
    for (int device = 0; device < devices; ++device) {
      begin_event();
      append(out, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":", process, ",\"tid\":", device);
      append(out, ",\"args\":{\"name\":\"device ", device, "\"}}");
      begin_event();
      append(out, "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":", process);
      append(out, ",\"tid\":", device, ",\"args\":{\"sort_index\":", device, "}}");
    }
  }

  void write_pass(int process, measured_pass const& ran, double unit, bool with_chunk) {
    char const kind[] = {letter(ran.what.kind), '\0'};
    begin_event();
    append(out, "{\"ph\":\"X\",\"name\":\"", kind, ran.what.microbatch);
    if (with_chunk)
      append(out, ".", ran.what.chunk);
    append(out, "\",\"cat\":\"", word(ran.what.kind), "\",\"pid\":", process);
    append(out, ",\"tid\":", ran.device, ",\"ts\":", ran.start * unit);
    append(out, ",\"dur\":", (ran.end - ran.start) * unit, ",\"args\":{\"stage\":");
    append(out, ran.what.stage, ",\"microbatch\":", ran.what.microbatch);
    append(out, ",\"chunk\":", ran.what.chunk, "}}");
  }

  //! One end of an arrow: "s" where it starts, "f" where it ends.
  void write_arrow(char const* phase, int number, int device, double time) {
    begin_event();
    append(out, "{\"ph\":\"", phase, "\",\"name\":\"message\",\"cat\":\"message\",\"id\":", number);
    append(out, ",\"pid\":", planned_process, ",\"tid\":", device, ",\"ts\":", time);
    append(out, phase[0] == 'f' ? ",\"bp\":\"e\"}" : "}");
  }
};

//! Arrows between devices. They start and end in the middle of the passes, where viewers find them
//! for certain.
template <text_sink Sink>
void write_arrows(trace_writer<Sink>& trace, timetable_view table, double unit) {
  std::vector<int> entries(static_cast<std::size_t>(pass_indices(table.extents)), -1);
  for (int i = 0; i < table.size(); ++i)
    entries[static_cast<std::size_t>(pass_index(table.extents, table.passes[i]))] = i;
  int number = 0;
  for (int device = 0; device < table.extents.devices; ++device) {
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
      dependency_list const needed = dependencies(table.extents, table.passes[i]);
      for (int k = 0; k < needed.count; ++k) {
        int const from = device_of(table.extents, needed.stage[k], table.passes[i].microbatch);
        int const entry = entries[static_cast<std::size_t>(needed.index[k])];
        if (from == device || entry < 0)
          continue;
        trace.write_arrow("s", number, from, (table.starts[entry] + table.ends[entry]) / 2 * unit);
        trace.write_arrow("f", number, device, (table.starts[i] + table.ends[i]) / 2 * unit);
        ++number;
      }
    }
  }
}

} // namespace detail

//! @brief Writes planned passes and, where there are any, measured ones as two processes with one
//! track per device, as a JSON object of trace events.
//!
//! @param measured the passes that ran, in any order.
//! @complexity O(n) for n passes.
//! @source the Trace Event Format of Chromium, which Perfetto reads.
template <text_sink Sink>
void write_trace(Sink& out,
                 timetable_view table,
                 timetable_details const& about,
                 std::span<measured_pass const> measured = {},
                 trace_options const& options = {}) {
  bool const with_chunk = table.extents.chunks > 1;
  append(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  detail::trace_writer<Sink> trace{out};
  std::string name(about.schedule);
  name += ", planned";
  trace.name_process(detail::planned_process, name, table.extents.devices);
  for (int device = 0; device < table.extents.devices; ++device)
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
      trace.write_pass(detail::planned_process,
                       {device, table.passes[i], table.starts[i], table.ends[i]},
                       options.planned_unit,
                       with_chunk);
  if (options.arrows)
    detail::write_arrows(trace, table, options.planned_unit);
  if (!measured.empty()) {
    name.resize(about.schedule.size());
    name += ", measured";
    trace.name_process(detail::measured_process, name, table.extents.devices);
    for (measured_pass const& ran : measured)
      trace.write_pass(detail::measured_process, ran, options.measured_unit, with_chunk);
  }
  append(out, "\n]}\n");
}

} // namespace pipelining::inline v0_1
