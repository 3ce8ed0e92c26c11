// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a run ends with: prediction next to measurement, all schedules next to one device,
//! files.

#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/trace.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/pipeline.hpp"
#include "plot.hpp"
#include "prediction.hpp"
#include "training.hpp"

namespace gpt {

//! The schedules that are checked against one device at the end of every run.
inline constexpr std::string_view checked_schedules[] = {registry::names::gpipe,
                                                         registry::names::one_f_one_b,
                                                         registry::names::seq1f1b,
                                                         registry::names::v_min,
                                                         registry::names::v_half,
                                                         registry::names::v_zero_bubble};

//! What the order is made for: it does not depend on the machine.
inline constexpr pp::uniform_cost unit_costs{
  .copy_out = 0.25, .copy_in = 0.25, .gather = 0.25, .scatter = 0.25};

//! A schedule as the library's tools choose it.
//! @param name of a schedule; `name_of(o)` for the chosen one with its options
inline registry::schedule_choice choice_of(options const& o, std::string const& name) {
  registry::schedule_choice choice;
  if (name == name_of(o)) {
    choice = o.own;
    auto const& traits = registry::find_schedule(o.schedule).traits;
    bool const exchanges =
      traits.exchanges_attention && choice.adapted == registry::adapter::attention_exchange;
    if (!choice.stages_per_device &&
        (traits.cuts_layers || exchanges)) // a stage is a layer, or half
      choice.stages_per_device =
        (exchanges ? 1 : 2) *
        static_cast<int>(std::max(o.size.layers / o.devices, std::int64_t{1}));
    choice.scatter_once = true; // sums of parts would have other bits
  }
  choice.name = name == name_of(o) ? o.schedule : name;
  choice.devices = static_cast<int>(o.devices);
  choice.microbatches = static_cast<int>(o.microbatches);
  return choice;
}

//! The verified timetable of a schedule with unit costs.
//! @param name as of choice_of
//! @throws std::invalid_argument where there is none, or the model cannot be cut that way
inline pp::dynamic_timetable timetable_of(options const& o, std::string const& name) {
  auto const choice = choice_of(o, name);
  (void)registry::arrange(choice); // refuses what no backend runs
  if (registry::find_schedule(choice.name).traits.stages_go_one_way ||
      choice.adapted == registry::adapter::attention_exchange) {
    throw std::invalid_argument(name +
                                " wants --backend threads: its stages are not layers that go "
                                "forward and back on one device");
  }
  auto table = registry::make_named_timetable(choice, unit_costs);
  check_order(table, name);
  (void)cut_model(o.size, table.over.extents); // refuses other layers than the schedule is for
  // Refuses more chunks than tokens; the lengths follow from the chosen schedule.
  (void)cut_for(table, o.lengths.empty() ? lengths_of(o.size, table) : o.lengths);
  return table;
}

inline std::string megabytes(std::size_t bytes) {
  return examples::decimals(static_cast<double>(bytes) / 1e6, 2) + " MB";
}

inline std::size_t largest(std::vector<std::size_t> const& numbers) {
  return *std::max_element(numbers.begin(), numbers.end());
}

//! Peak activations of the fullest device, in the longest microbatch on a device's whole share of
//! the model.
inline double peak_share(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
  auto const [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  double peak = pp::peak_activations(table).to_double();
  if (*shortest != *longest) { // chunks count their tokens
    auto const cut = cut_for(table, lengths);
    std::vector<pp::packed_microbatch> microbatches(lengths.size());
    for (int m = 0; m < table.over.extents.microbatches; ++m) {
      for (int c = 0; c < cut.chunks(m); ++c) {
        auto const range = cut.range({m, c});
        microbatches[static_cast<std::size_t>(m)].push_back(
          {{m, static_cast<int>(range.begin), static_cast<int>(range.count())}});
      }
    }
    int tokens = 0;
    for (int device = 0; device < table.over.extents.devices; ++device)
      tokens = std::max(tokens, pp::peak_tokens(table, device, microbatches));
    peak = static_cast<double>(tokens) / static_cast<double>(*longest);
  }
  return peak / table.over.extents.stages_per_device;
}

//! What a run has for its devices.
struct places_of_run {
  int count = 1;
  char const* one = "core";
  char const* all = "cores of this machine";
};

//! Threads of all programs that run at this moment, besides the one that asks; 0 where Linux does
//! not say.
inline int others_that_run() {
  std::ifstream in("/proc/loadavg");
  double load = 0;
  int running = 0;
  for (int i = 0; i < 3; ++i)
    in >> load;
  return in >> running ? std::max(running - 1, 0) : 0;
}

//! Why one would want the pipeline: all passes in turn next to it, and what stood in its way.
inline void report_gain(training const& run,
                        pp::timetable_view own,
                        pp::timetable_view shared,
                        places_of_run const& places) {
  double const in_turn = own.over.extents.devices * pp::span_of(own) * (1 - pp::bubble_rate(own));
  std::printf(
    "  all passes in turn on one %s:             step %.1f ms; the pipeline is %.2f times "
    "as fast\n  with a %s for every device, %.2f times here by prediction, %.2f times as "
    "measured\n",
    places.one,
    1e3 * in_turn,
    in_turn / pp::makespan(own),
    places.one,
    in_turn / pp::makespan(shared),
    in_turn / run.step_seconds);
  if (run.step_seconds > 1.3 * pp::makespan(shared))
    std::printf(
      "  the machine was busy: steps took %.1f times what was predicted, and %d threads of "
      "others run now;\n  measure again when it is idle\n",
      run.step_seconds / pp::makespan(shared),
      others_that_run());
}

//! Prediction next to measurement, for the schedule that was trained with.
inline void report_time(options const& o,
                        training const& run,
                        pp::timetable_view own,
                        pp::timetable_view shared,
                        places_of_run const& places) {
  std::printf("\n%s, prediction and measurement (means of all steps but the first three)\n",
              name_of(o).c_str());
  std::printf("  predicted from the times of single passes, a %s for every device: "
              "step %.1f ms, bubble %.1f %%\n",
              places.one,
              1e3 * pp::makespan(own),
              100 * pp::bubble_rate(own));
  std::printf("  predicted for the %d %s:  step %.1f ms\n",
              places.count,
              places.all,
              1e3 * pp::makespan(shared));
  std::printf("  measured:                                  step %.1f ms\n",
              1e3 * run.step_seconds);
  report_gain(run, own, shared, places);
  std::printf("  idle share of the step   ");
  for (int device = 0; device < own.over.extents.devices; ++device)
    std::printf(" device %d", device);
  auto const row = [&](std::string const& name, auto idle_of) {
    std::printf("\n    %-23s", name.c_str());
    for (int device = 0; device < own.over.extents.devices; ++device)
      std::printf("%7.0f %%", 100 * idle_of(device));
  };
  row("a " + std::string(places.one) + " for each",
      [&](int device) { return idle_share(own, device); });
  row("predicted here", [&](int device) { return idle_share(shared, device); });
  row("measured", [&](int device) { return run.idle[static_cast<std::size_t>(device)]; });
  std::printf("\n");
}

inline void report_clipping(options const& o, clipping_report const& found, std::size_t steps) {
  std::printf(
    "gradients clipped to a norm of %g in %lld of %zu steps, left out in %lld; weights %016llx\n",
    o.clip,
    static_cast<long long>(found.clipped),
    steps,
    static_cast<long long>(found.left_out),
    static_cast<unsigned long long>(found.weights));
  if (o.post_validation) {
    std::printf(
      "%ld early steps were wrong: stages rolled back %lld times, %ld iterations began again\n",
      found.corrected,
      static_cast<long long>(found.rolled_back),
      found.repeated);
  }
}

inline void print_device_rows(char const* corner,
                              std::vector<device_row> const& rows,
                              double unit,
                              int decimals) {
  std::printf("\n  %-25s", corner);
  for (std::size_t device = 0; device < rows.front().numbers.size(); ++device)
    std::printf(" device %zu", device);
  for (device_row const& each : rows) {
    std::printf("\n    %-23s", each.name.c_str());
    for (auto const number : each.numbers)
      std::printf("%9.*f", decimals, static_cast<double>(number) / unit);
  }
  std::printf("\n");
}

//! Bytes of slots, planned next to measured. @param what lies in them
inline void
report_in_slots(options const& o, std::string const& what, std::vector<device_row> const& rows) {
  std::printf("\n%s (%s): what the plan reserves, and the most that was in use in the last step",
              what.c_str(),
              name_of(o).c_str());
  print_device_rows("kB", rows, 1e3, 1);
}
//! The same where the schedule moves activations or gathers weights.
inline void report_slots(options const& o, std::vector<device_row> const& rows) {
  bool const weights = o.own.gathers_weights();
  if (!rows.empty())
    report_in_slots(
      o, weights ? "Whole weights and gradients in slots" : "Activations in slots", rows);
}

//! Bytes that stages keep between passes, where that is all that their devices keep, as it is of
//! layers cut at their attention and of pipelines that enter at both ends: at the peak of the plan,
//! next to what was measured.
inline void
report_kept(options const& o, pp::timetable_view table, std::vector<std::size_t> const& measured) {
  bool const all = table.over.extents.where == pp::placement::custom ||
                   table.over.extents.where == pp::placement::bidirectional;
  if (!all || o.own.adapted != registry::adapter::none)
    return;
  std::printf("\nActivations kept between passes (%s), planned and measured", name_of(o).c_str());
  slot_sizes const sizes(o.size, cut_for(table, o.lengths), table);
  auto const planned = peaks_of(table, sizes);
  print_device_rows("kB",
                    {{"planned", {planned.begin(), planned.end()}},
                     {"measured", {measured.begin(), measured.end()}}},
                    1e3,
                    3);
}

struct checked {
  std::string name;
  int chunks = 1;
  double predicted = 0;      //!< peak, in microbatches on a device's share
  std::size_t peak = 0;      //!< bytes of the fullest device
  std::size_t different = 0; //!< gradients whose bits differ from those of one device
};

//! The gradients of one step on one device, without pipeline or chunks.
//! @param halves whether those of the two halves of the microbatches are added up on their own
//! @param from_last whether those of the last microbatch come first
inline std::vector<float> gradients_of_one_device(options const& o,
                                                  batch const& pieces,
                                                  bool halves = false,
                                                  bool from_last = false) {
  single_device device(
    o.size, 1, cut_whole(o.lengths).back_from_last(from_last), seed_of(o), halves);
  device.step(pieces);
  return gradients_of(device);
}

//! Runs one step of a schedule from the first weights and compares its gradients bit for bit.
//! @param whole those of one device
inline checked check_schedule(options const& o,
                              std::string const& name,
                              batch const& pieces,
                              std::vector<float> const& whole) {
  auto const table = timetable_of(o, name);
  bool const halves = table.over.extents.where == pp::placement::bidirectional;
  bool const from_last = adds_from_last(table);
  auto const expected =
    halves || from_last ? gradients_of_one_device(o, pieces, halves, from_last) : whole;
  pipelined_model model(o.size, table, o.lengths, seed_of(o));
  model.step(pieces);
  auto const gradients = gradients_of(model);
  return {name,
          table.over.extents.chunks,
          peak_share(table, o.lengths),
          largest(model.peak_bytes()),
          differences(gradients, expected)};
}

//! The timetables of the sizes of iterations that take turns, that of `table` first.
inline std::vector<sized_table> tables_of_sizes(options o, pp::dynamic_timetable const& table) {
  std::vector<sized_table> sizes{{table, lengths_of(o.size, table)}};
  o.lengths.clear(); // they are those of the first
  for (auto const& counts : o.further_counts) {
    o.own.chunk_counts = counts;
    auto const further = timetable_of(o, name_of(o));
    sizes.push_back({further, lengths_of(o.size, further)});
  }
  return sizes;
}

//! Runs two rounds of all sizes on one pipeline, with steps of the optimizer between, and counts
//! the gradients whose bits differ from those of one device. Returns false where any does.
inline bool report_sizes(options const& o,
                         text_to_learn const& text,
                         std::vector<sized_table> const& sizes,
                         training const& run) {
  if (sizes.size() == 1)
    return true;
  auto const seed = seed_of(o);
  batches all(o, text, 2);
  bool const from_last = adds_from_last(sizes.front().table);
  auto const whole = [&](sized_table const& one) {
    return cut_whole(one.lengths).back_from_last(from_last);
  };
  pipelined_model model(o.size, sizes.front().table, sizes.front().lengths, seed);
  single_device plain(o.size, 1, whole(sizes.front()), seed);
  adamw const optimizer{};
  std::size_t different = 0;
  for (std::size_t step = 0; step < 2 * sizes.size(); ++step) {
    auto const& now = sizes[step % sizes.size()];
    auto const pieces = all.next();
    model.use(now.table, now.lengths);
    plain.set_cut(whole(now));
    model.step(pieces);
    plain.step(pieces);
    different += differences(gradients_of(model), gradients_of(plain));
    model.update(optimizer, static_cast<std::int64_t>(step));
    plain.update(optimizer, static_cast<std::int64_t>(step));
  }
  std::printf("\niterations of %zu sizes: %ld plans made, %ld times one was there; two rounds of "
              "all sizes held against one device: %zu gradients differ\n",
              sizes.size(),
              run.plans_made,
              run.plans_reused,
              different);
  return different == 0;
}

//! One step of each schedule of the report, and of the chosen one.
inline std::vector<checked>
check_schedules(options const& o, batch const& pieces, std::vector<float> const& expected) {
  std::vector<std::string> names(std::begin(checked_schedules), std::end(checked_schedules));
  if (std::find(names.begin(), names.end(), name_of(o)) == names.end())
    names.push_back(name_of(o));
  std::vector<checked> all;
  for (auto const& name : names)
    all.push_back(check_schedule(o, name, pieces, expected));
  return all;
}

//! Compares all schedules with one device. Returns false where a gradient differs.
inline bool report_schedules(options const& o, text_to_learn const& text, training const& run) {
  auto const pieces = batches(o, text, 1).next();
  auto const expected = gradients_of_one_device(o, pieces);
  auto const all = check_schedules(o, pieces, expected);
  auto const is_fused = [](checked const& each) {
    return each.name == registry::names::one_f_one_b;
  };
  auto const& fused = *std::find_if(all.begin(), all.end(), is_fused);
  std::size_t width = 10;
  for (auto const& each : all)
    width = std::max(width, each.name.size());
  std::printf("\nActivations kept between passes (%s, fullest device): %s; the same model under "
              "1F1B: %s\n",
              name_of(o).c_str(),
              megabytes(largest(run.peaks)).c_str(),
              megabytes(fused.peak).c_str());
  std::printf("\nOne step of every schedule: %lld devices, %lld microbatches, %zu gradients, held "
              "against one device without pipeline or chunks\n",
              static_cast<long long>(o.devices),
              static_cast<long long>(o.microbatches),
              expected.size());
  std::printf("  %-*s %6s  %22s  %26s  %17s\n",
              static_cast<int>(width),
              "schedule",
              "chunks",
              "planned peak, of 1F1B",
              "measured peak, of 1F1B",
              "gradients differ");
  bool good = true;
  for (auto const& each : all) {
    std::printf("  %-*s %6d  %12.3g  %6.1f %%  %15s  %7.1f %%  %17zu\n",
                static_cast<int>(width),
                each.name.c_str(),
                each.chunks,
                each.predicted,
                100 * each.predicted / fused.predicted,
                megabytes(each.peak).c_str(),
                100 * static_cast<double>(each.peak) / static_cast<double>(fused.peak),
                each.different);
    good = good && each.different == 0;
  }
  std::printf(
    "  planned peak: microbatches on a device's share of the model; measured peak: bytes of "
    "real buffers,\n  with the gradients that wait for backward_weight or for an earlier "
    "chunk, which plans do not count\n  schedules that enter at both ends keep two copies of every "
    "stage, each with the gradients of half of the\n  microbatches: one device adds both halves up "
    "likewise; where stages begin with the last microbatch, it does, too\n");
  return good;
}

inline void write_file(std::string const& path, std::string const& content) {
  if (auto const why = example::why_not_opened(path); !why.empty())
    throw std::runtime_error("cannot write " + path + ": " + why);
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file)
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

[[nodiscard]] inline std::vector<pp::timetable_view>
views_of(std::vector<pp::dynamic_timetable> const& tables) {
  return {tables.begin(), tables.end()};
}

inline void write_cost_file(options const& o, training const& run) {
  auto const steps = views_of(run.traces);
  // Messages have about one size here: what links take is a latency.
  auto const links = pp::fit_links(pp::message_samples(steps, [](pp::pass const&) { return 0; }));
  write_file(o.costs, pp::write_costs(steps.front().over.extents, pp::costs_of(steps), links));
  std::printf("\nwrote the measured costs into %s; plan again with them: timetable compare "
              "--devices %lld --microbatches %lld --cost %s\n",
              o.costs.c_str(),
              static_cast<long long>(o.devices),
              static_cast<long long>(o.microbatches),
              o.costs.c_str());
}

[[nodiscard]] inline std::string title_of(options const& o) {
  return "GPT on " + std::to_string(o.devices) + " devices, " + name_of(o) + ", " +
         std::to_string(tokens_of(o)) + " bytes per step";
}

//! What files show.
struct shown_run {
  options const& o;
  text_to_learn const& text;
  training const& run;
  pp::timetable_view plan;
};

inline void write_pictures(shown_run const& of) {
  auto const& [o, text, run, plan] = of;
  auto const name = name_of(o);
  std::string picture;
  pp::write_svg(picture, plan, {name, unit_costs, {}});
  write_file(o.output + "/timetable.svg", picture);
  write_file(o.output + "/loss.svg",
             loss_plot(run.losses, unigram_entropy(text.bytes), title_of(o)));
}

//! Plan, losses, and when the passes of the last step ran: of systems without costs of stages.
inline void write_run(shown_run const& of, pp::timetable_view ran) {
  write_pictures(of);
  auto const name = name_of(of.o);
  std::string trace;
  pp::write_trace(trace, ran, {name, unit_costs, {}}, {}, {.planned_unit = 1e6, .memory = true});
  write_file(of.o.output + "/trace.json", trace);
  std::printf("\nwrote into %s: timetable.svg, loss.svg and trace.json (for ui.perfetto.dev), with "
              "the times that were measured\n",
              of.o.output.c_str());
}

inline void report_plain(text_to_learn const& text, training const& run) {
  std::printf("loss %.3f nats per byte, unigram entropy %.3f\nmeasured: step %.1f ms\n",
              run.losses.back(),
              unigram_entropy(text.bytes),
              1e3 * run.step_seconds);
}

inline void
write_files(shown_run const& of, pp::timetable_view own_cores, pp::cost_table const& cost) {
  auto const& [o, text, run, plan] = of;
  write_pictures(of);
  auto const name = name_of(o);
  if (!o.costs.empty())
    write_cost_file(o, run);
  pp::timetable_view const last = run.traces.back();
  int const devices = last.over.extents.devices;
  std::vector<pp::measured_pass> measured;
  auto const add_rows = [&](int first, int end) {
    for (int row = first; row < end; ++row)
      for (int i = last.offsets[row]; i < last.offsets[row + 1]; ++i)
        measured.push_back({row % devices, last.passes[i], last.starts[i], last.ends[i]});
  };
  add_rows(0, devices);
  std::string trace;
  pp::write_trace(trace,
                  own_cores,
                  {name, unit_costs, {}},
                  measured,
                  {.planned_unit = 1e6, .arrows = true, .memory = true});
  write_file(o.output + "/trace.json", trace);
  auto const milliseconds = in_unit(cost, plan.over.extents, 1e3);
  pp::timetable_caption const in_milliseconds{
    name, mean_of(milliseconds, plan.over.extents), {}, {}};
  auto line = pp::make_html_timeline(own_cores, in_milliseconds, milliseconds);
  add_rows(devices, last.rows());
  line.measured = measured;
  line.measured_unit = 1e3;
  std::string page;
  pp::write_html(page, std::span(&line, 1), {title_of(o), "ms", false});
  write_file(o.output + "/timeline.html", page);
  std::printf(
    "\nwrote into %s: timeline.html (planned and measured, to zoom into), timetable.svg, loss.svg "
    "and trace.json (for ui.perfetto.dev)\n",
    o.output.c_str());
  std::printf("\nnext:\n"
              "  scripts/demo --schedule v-half    # another schedule; --help has all options\n"
              "  scripts/timetable compare --devices %d --microbatches %d\n"
              "  scripts/timetable choose --model llama3-8b --gpu h100 --sequence 8192 --devices 8 "
              "--microbatches 32\n",
              devices,
              last.over.extents.microbatches);
}

} // namespace gpt
