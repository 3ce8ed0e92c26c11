// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Planned and measured passes for ui.perfetto.dev and chrome://tracing. Header for
//! pipelining::write_trace.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/json.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief A pass that has run: on which device, from when to when.
struct measured_pass {
  int device = 0;   //!< where it ran
  pass what;        //!< what ran
  double start = 0; //!< in the unit of the user, like `end`
  double end = 0;   //!< when it ended
};

//! @brief How a trace is drawn.
struct trace_options {
  double planned_unit = 1000;     //!< microseconds of one unit of planned time
  double measured_unit = 1000000; //!< microseconds of one unit of measured time; seconds by default
  bool arrows = false;            //!< an arrow from every pass to the one on another device that
                                  //!< waits for its message, planned and measured
  bool memory = false;            //!< counters of every device: activations and weight inputs, in
                                  //!< whole microbatches of one stage
};

namespace detail {

inline constexpr int planned_process = 1;
inline constexpr int measured_process = 2;

//! Writes the events of a trace with the commas between them.
template <text_sink Sink>
struct trace_writer {
  Sink& out;
  bool any = false;
  int arrows = 0; // that are complete

  //! Begins an event with what these parts are.
  template <class... Part>
  void begin(Part const&... parts) {
    append(out, any ? ",\n" : "\n", parts...);
    any = true;
  }

  void name_process(int process, std::string_view name, int devices) {
    begin("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", process);
    append(out, ",\"args\":{\"name\":", json_text(name), "}}");
    for (int device = 0; device < devices; ++device) {
      begin("{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":", process, ",\"tid\":", device);
      append(out, ",\"args\":{\"name\":\"device ", device, "\"}}");
      begin("{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":", process);
      append(out, ",\"tid\":", device, ",\"args\":{\"sort_index\":", device, "}}");
    }
  }

  void write_pass(int process, measured_pass const& ran, double unit, pipeline_view const& over) {
    std::string name = detail::sign(*over.declared, ran.what.kind).c_str();
    append_number(name, ran.what.microbatch);
    if (over.extents.chunks > 1)
      append(name, ".", ran.what.chunk);
    begin("{\"ph\":\"X\",\"name\":", json_text(name));
    append(out, ",\"cat\":", json_text(over.declared->word(ran.what.kind)), ",\"pid\":", process);
    append(out, ",\"tid\":", ran.device, ",\"ts\":", ran.start * unit);
    append(out, ",\"dur\":", (ran.end - ran.start) * unit, ",\"args\":{\"stage\":");
    append(out, ran.what.stage, ",\"microbatch\":", ran.what.microbatch);
    append(out, ",\"chunk\":", ran.what.chunk, "}}");
  }

  //! One end of the next arrow: "s" where it starts, "f" where it ends.
  void write_arrow(char const* phase, int process, int device, double time) {
    begin("{\"ph\":\"", phase, "\",\"name\":\"message\",\"cat\":\"message\",\"id\":", arrows);
    append(out, ",\"pid\":", process, ",\"tid\":", device, ",\"ts\":", time);
    append(out, phase[0] == 'f' ? ",\"bp\":\"e\"}" : "}");
  }

  void write_counter(int process, int device, double time, double activations, double inputs) {
    begin("{\"ph\":\"C\",\"name\":\"kept on device ", device, "\",\"pid\":", process);
    append(out, ",\"ts\":", time, ",\"args\":{\"activations\":", activations);
    append(out, ",\"weight inputs\":", inputs, "}}");
  }
};

//! The measured pass of each entry of a table; null where there is none.
[[nodiscard]] inline std::vector<measured_pass const*>
measured_entries(timetable_view table, std::span<measured_pass const> measured) {
  std::vector<measured_pass const*> result(static_cast<std::size_t>(table.size()));
  std::vector<int> const entries = entries_of(table);
  for (measured_pass const& ran : measured)
    if (table.over.contains(ran.what))
      if (int const entry = entries[static_cast<std::size_t>(pass_index(table.over, ran.what))];
          entry >= 0)
        result[static_cast<std::size_t>(entry)] = &ran;
  return result;
}

//! The measured times of a table's entries; entries that were not measured have `never`.
[[nodiscard]] inline dynamic_timetable measured_table(timetable_view table,
                                                      std::span<measured_pass const> measured) {
  auto const size = static_cast<std::size_t>(table.size());
  dynamic_timetable result{.over = table.over.copy(),
                           .passes = {table.passes, table.passes + size},
                           .offsets = {table.offsets, table.offsets + table.rows() + 1}};
  for (measured_pass const* const ran : measured_entries(table, measured)) {
    result.starts.push_back(ran == nullptr ? never : ran->start);
    result.ends.push_back(ran == nullptr ? never : ran->end);
  }
  return result;
}

//! Arrows between devices. They start and end in the middle of the passes, where viewers find them
//! for certain.
template <text_sink Sink>
void write_arrows(trace_writer<Sink>& trace, timetable_view table, int process, double unit) {
  auto const end = [&](char const* phase, int entry) {
    double const middle = (table.starts[entry] + table.ends[entry]) / 2;
    trace.write_arrow(phase, process, device_of(table, table.passes[entry]), middle * unit);
  };
  std::vector<std::vector<int>> const makers = makers_of(table);
  for (int i = 0; i < table.offsets[table.over.extents.devices]; ++i)
    for (int const maker : makers[static_cast<std::size_t>(i)])
      if (device_of(table, table.passes[maker]) != device_of(table, table.passes[i]) &&
          table.ends[maker] >= 0 && table.ends[i] >= 0) {
        end("s", maker);
        end("f", i);
        ++trace.arrows;
      }
}

//! Writes the activations and weight inputs that each device keeps, whenever they change: passes
//! take slots at their start and give them back at their end, as their flow says.
template <text_sink Sink>
void write_counters(trace_writer<Sink>& trace,
                    timetable_view table,
                    timetable_caption const& about,
                    int process,
                    double unit) {
  flow const& declared = *table.over.declared;
  pool_effect const pools[] = {{declared, slot_class::activation},
                               {declared, slot_class::weight_input}};
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double held[2]{};
    walk_device(table, device, [&](row_walk const& at) {
      bool changed = false;
      for (int i = at.first; i < at.last; ++i)
        for (std::size_t pool = 0; pool < 2; ++pool) {
          int const change = pools[pool].change(table.over, table.passes[i], at.running);
          held[pool] += change * chunk_share(table, about, table.passes[i].chunk);
          changed = changed || change != 0;
        }
      double const time = at.running ? table.ends[at.last - 1] : table.starts[at.first];
      if (changed && time >= 0)
        trace.write_counter(process, device, time * unit, held[0], held[1]);
    });
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
                 timetable_caption const& about,
                 std::span<measured_pass const> measured = {},
                 trace_options const& options = {}) {
  pipeline_view const& over = table.over;
  append(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  detail::trace_writer<Sink> trace{out};
  std::string name(about.schedule);
  name += ", planned";
  trace.name_process(detail::planned_process, name, table.over.extents.devices);
  for (int device = 0; device < table.over.extents.devices; ++device)
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
      trace.write_pass(detail::planned_process,
                       {device, table.passes[i], table.starts[i], table.ends[i]},
                       options.planned_unit,
                       over);
  auto const extras = [&](timetable_view of, int process, double unit) {
    if (options.arrows)
      detail::write_arrows(trace, of, process, unit);
    if (options.memory)
      detail::write_counters(trace, of, about, process, unit);
  };
  extras(table, detail::planned_process, options.planned_unit);
  if (!measured.empty()) {
    name.resize(about.schedule.size());
    name += ", measured";
    trace.name_process(detail::measured_process, name, table.over.extents.devices);
    for (measured_pass const& ran : measured)
      trace.write_pass(detail::measured_process, ran, options.measured_unit, over);
    if (options.arrows || options.memory)
      extras(
        detail::measured_table(table, measured), detail::measured_process, options.measured_unit);
  }
  append(out, "\n]}\n");
}

} // namespace pipelining::inline v0_3
