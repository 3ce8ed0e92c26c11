// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <set>
#include <tuple>

#include "tools/timetable/choose/choose.hpp"
#include "tools/timetable/markdown_table.hpp"
#include "tools/timetable/progress_line.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

//! Whether a schedule stands in the table with an adapter. One that would be another row once more
//! does not.
bool stands_with(choose_command const& asked, schedule_choice const& call, adapter which) {
  schedule_choice adapted = call;
  adapted.adapted = which;
  if (adapted.shards_weights() && asked.setup.data == 1)
    return false; // nobody to share them with
  if (!has(find_schedule(call.name).traits.shown_with, which))
    return false;
  pp::shape const extents = arrange(call);
  return !(which == adapter::recompute_first && extents.stages_per_device == 1) &&
         !(which == adapter::offload_chunks && extents.chunks == 1);
}

//! The calls of the table: every schedule as the table of docs/schedules.md has it.
std::vector<schedule_choice> calls_of_table(choose_command const& asked) {
  std::vector<schedule_choice> calls;
  for (named_schedule const& each : named_schedules()) {
    schedule_choice call = plain_call(each, asked);
    if (each.traits.over_chunks)
      call.chunks = 4;
    if (has(each.takes, option::memory_limit)) // of a stage, and a V has two on a device
      call.memory_limit =
        each.traits.stages_per_device == 1 ? asked.devices : asked.devices * 3 / 2;
    if (int const given = static_cast<int>(asked.layout.size()) / asked.devices;
        given > 1 && has(each.takes, option::stages_per_device))
      call.stages_per_device = given;
    if (!is_apart(call))
      calls.push_back(call);
    // TeraPipe
    if (has(each.takes, option::chunks) && !each.traits.over_chunks &&
        each.traits.stages_per_device == 1) {
      calls.push_back(call);
      calls.back().chunks = 4;
    }
    for (named_adapter const& one : named_adapter::all())
      if (stands_with(asked, call, one.which)) {
        calls.push_back(call);
        calls.back().adapted = one.which;
      }
    if (asked.layout.empty())
      for (schedule_choice const& apart : calls_apart(each, asked))
        calls.push_back(apart);
  }
  return calls;
}

//! What travels, of all devices together.
struct traffic {
  double messages = 0;
  double gigabytes = 0;
  double exchanges = 0; //!< that a whole group of stages takes part in
};

traffic traffic_of(choose_command const& asked, evaluated const& made) {
  candidate const& one = made.what;
  pp::timetable_view const table = made.table;
  // Of a chunk: an activation or a gradient, or three numbers of each token.
  std::vector<double> const shares = pp::token_shares(one.chunk_lengths);
  std::vector<pp::stage_content> const content =
    made.sent ? std::vector<pp::stage_content>{} : content_of(asked, one);
  auto const sent = [&](pp::pass const& maker, pp::detail::product_reader const& reader) {
    if (made.sent)
      return made.sent(maker, reader);
    int const before = std::min<int>(maker.stage, reader.stage); // gradients are as large
    return shares[maker.chunk] *
           static_cast<double>(asked.predicted().sent_bytes(
             content[static_cast<std::size_t>(before)], asked.setup.sequence));
  };
  double const of_token = 3.0 * sizeof(float) * asked.setup.sequences;
  pp::pipeline_view const over = table.over;
  traffic sum;
  std::set<std::tuple<int, bool, bool, int>>
    exchanged; // datum, made or read by a group, first or last, unit
  for (int i = 0; i < table.size(); ++i) {
    pp::pass const& maker = table.passes[i];
    int const readers = pp::detail::readers(over, maker);
    for (int number = 0; number < readers; ++number) {
      pp::detail::product_reader const reader = pp::detail::reader_of(over, maker, number);
      bool const made_by_group = over.in_group(maker.stage);
      if (made_by_group || over.in_group(reader.stage))
        exchanged.insert({reader.product,
                          made_by_group,
                          maker.stage + reader.stage < over.extents.stages(),
                          over.unit_of(maker)});
      if (pp::detail::receiver(over, maker, number) == pp::detail::kind_links::none)
        continue;
      sum.messages += 1;
      bool const statistics = over.declared->data[reader.product].pool ==
                              static_cast<std::uint8_t>(pp::slot_class::statistics);
      sum.gigabytes +=
        (statistics ? of_token * one.chunk_lengths[maker.chunk] : sent(maker, reader)) / 1e9;
    }
  }
  sum.exchanges = static_cast<double>(exchanged.size());
  return sum;
}

constexpr figure_column system_columns[] = {{"time s", "seconds"},
                                            {"bubble", "bubble_rate"},
                                            {"device GB", "device_gb"},
                                            {"host GB", "host_gb"},
                                            {"messages", "messages"},
                                            {"GB sent", "sent_gb"},
                                            {"exchanges", "exchanges"}};

figure_row row_of(choose_command const& asked, schedule_choice const& call, made_orders& orders) {
  evaluated const made = evaluate(asked, {call}, orders);
  candidate const& one = made.what;
  traffic const sum = traffic_of(asked, made);
  double const bubble = pp::figures_of(made.table, {}).makespan_bubble_rate;
  auto const fixed = [](double value, int digits) {
    return figure(value, decimals(value, digits));
  };
  return {one.label,
          {fixed(one.seconds, 2),
           figure(bubble, per_cent(bubble)),
           fixed(one.gigabytes, 1),
           fixed(one.host_gigabytes, 1),
           fixed(sum.messages / asked.microbatches, 1),
           fixed(sum.gigabytes / asked.microbatches, 2),
           fixed(sum.exchanges / asked.microbatches, 1)}};
}

std::string text_of(std::vector<figure_row> const& rows, std::vector<figure_row> const& refused) {
  std::string out = rows.empty() ? "" : markdown_of(system_columns, rows);
  for (figure_row const& each : refused)
    pp::append(out, "\n`", each.schedule, "` is not in the table: ", each.problem, ".\n");
  return out;
}

std::string json_of(std::vector<figure_row> const& rows, std::vector<figure_row> const& refused) {
  return "{\"systems\":[" + json_of(system_columns, rows) + "],\n\"refused\":[" +
         json_of(system_columns, refused) + "]}\n";
}

} // namespace

void systems(std::span<char const* const> words) {
  choose_command const asked = read_choose_command(verbs::systems, words);
  std::vector<figure_row> rows;
  std::vector<figure_row> refused;
  made_orders made;
  progress_line line(HUGE_VAL);
  for (schedule_choice const& call : calls_of_table(asked)) {
    line.say("making " + label_of({call}));
    try {
      rows.push_back(row_of(asked, call, made));
    } catch (std::invalid_argument const& error) {
      refused.push_back({label_of({call}), {}, error.what()});
    }
  }
  line.end();
  std::string const out = asked.format == "json" ? json_of(rows, refused) : text_of(rows, refused);
  std::fwrite(out.data(), 1, out.size(), stdout);
}

} // namespace examples
