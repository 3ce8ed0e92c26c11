// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "published_vocabulary.hpp"
#include "tools/timetable/markdown_table.hpp"
#include "tools/timetable/progress_line.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

using pp::registry::names;
using namespace std::string_view_literals;

//! A run of "Zero Bubble Pipeline Parallelism", table 5: times of its passes, and rates of its
//! bubbles.
struct profiled_run {
  char const* model;
  pp::pipeline_size size;
  pp::uniform_cost cost;
  double rates[5]; // 1F1B, ZB-H1, ZB-H2, ZB-1p, ZB-2p

  [[nodiscard]] std::string name() const {
    return text_of(model, ", ", size.devices, ", ", size.microbatches);
  }
};
constexpr profiled_run profiled_runs[] = {
  {"1.5B", {8, 24}, {18.522, 18.086, 9.337, 0.601}, {.2431, .1585, .1083, .1585, .0433}},
  {"1.5B", {8, 32}, {18.513, 18.086, 9.331, 0.626}, {.1985, .1242, .0837, .1242, .0039}},
  {"1.5B", {8, 64}, {18.546, 18.097, 9.321, 0.762}, {.1240, .0674, .0444, .0674, .0026}},
  {"6.2B", {8, 24}, {29.718, 29.444, 19.927, 0.527}, {.2347, .1323, .0698, .1323, .0029}},
  {"6.2B", {8, 32}, {29.802, 29.428, 19.530, 0.577}, {.1898, .1045, .0559, .1045, .0022}},
  {"6.2B", {8, 64}, {29.935, 29.621, 19.388, 0.535}, {.1091, .0554, .0294, .0554, .0010}},
  {"14.6B", {16, 48}, {11.347, 11.248, 8.132, 0.377}, {.2552, .1397, .0672, .1397, .0066}},
  {"14.6B", {16, 64}, {11.307, 11.254, 8.101, 0.379}, {.2082, .1088, .0516, .1088, .0054}},
  {"14.6B", {16, 128}, {11.325, 11.308, 8.109, 0.378}, {.1251, .0576, .0266, .0576, .0028}},
  {"28.3B", {32, 96}, {10.419, 10.207, 7.715, 0.408}, {.2646, .1421, .0641, .1421, .0038}},
  {"28.3B", {32, 128}, {10.408, 10.204, 7.703, 0.408}, {.2168, .1106, .0490, .1106, .0029}},
  {"28.3B", {32, 256}, {10.402, 10.248, 7.698, 0.460}, {.1352, .0594, .0257, .0594, .0018}}};

noted_table zero_bubble() {
  std::vector<table_line> rows{{"model, P, M"}};
  for (char const* const name : {"1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"})
    for (char const* const what : {"", " ours", " difference"})
      rows[0].push_back(std::string(name) + what);
  int exact = 0;
  int all = 0;
  for (profiled_run const& each : profiled_runs) {
    pp::pipeline_size const size = each.size;
    pp::dynamic_timetable const tables[] = {
      pp::make_timetable<pp::OneFOneB>(size, each.cost),
      pp::make_timetable<pp::ZeroBubbleH1>(size, each.cost),
      pp::make_timetable<pp::ZeroBubbleH2>(size, each.cost),
      pp::make_timetable(
        pp::ZeroBubbleAuto<pp::dynamic>{.memory_limit = size.devices}, size, each.cost),
      pp::make_timetable(
        pp::ZeroBubbleAuto<pp::dynamic>{.memory_limit = 2 * size.devices}, size, each.cost)};
    table_line row{each.name()};
    for (std::size_t i = 0; i < 5; ++i) {
      double const ours = std::round(pp::bubble_rate(tables[i]) * 1e4) / 1e4;
      compare(row, each.rates[i], ours, 4);
      if (i < 3) {
        ++all;
        exact += std::abs(ours - each.rates[i]) < 1e-9 ? 1 : 0;
      }
    }
    rows.push_back(row);
  }
  return {rows,
          text_of(exact, " of the ", all) +
            " values of 1F1B, ZB-H1 and ZB-H2 are equal to four decimals."};
}

//! How much sooner the next iteration of ZB-2p can begin where it validates the optimizer's step.
noted_table post_validation() {
  std::vector<table_line> rows{cells_of("| model, P, M | iteration with a barrier | validated in "
                                        "the next | faster by % published | ours | difference |")};
  for (profiled_run const& each : profiled_runs) {
    auto const table = pp::make_timetable(
      pp::ZeroBubbleAuto<pp::dynamic>{.memory_limit = 2 * each.size.devices}, each.size, each.cost);
    double const barrier = pp::makespan(table);
    double const validated = pp::post_validated_period(table);
    table_line row{each.name()};
    for (double const time : {barrier, validated}) {
      std::string text;
      pp::append_significant(text, time, 4);
      row.push_back(text);
    }
    compare(row, 8, 100 * (barrier / validated - 1), 1);
    rows.push_back(row);
  }
  return {rows};
}

//! From the start of the first pass of a microbatch on a stage to the end of its last, at most.
double longest_life(pp::timetable_view table, int microbatch) {
  std::vector<double> first(static_cast<std::size_t>(table.over.extents.stages()), HUGE_VAL);
  std::vector<double> last(first.size(), 0);
  for (int i = 0; i < table.size(); ++i)
    if (table.passes[i].microbatch == microbatch) {
      std::size_t const stage = table.passes[i].stage;
      first[stage] = std::min(first[stage], table.starts[i]);
      last[stage] = std::max(last[stage], table.ends[i]);
    }
  double longest = 0;
  for (std::size_t stage = 0; stage < first.size(); ++stage)
    longest = std::max(longest, last[stage] - first[stage]);
  return longest;
}

noted_table controllable_memory() {
  std::vector<table_line> rows{
    cells_of("| block | P | longest life published | ours | difference | peak published | ours | "
             "difference | bubble published | ours | difference |")};
  for (int const p : {8, 16, 32}) {
    pp::pipeline_size const size{p, 4 * p};
    double const whole = (p - 1.0) / (size.microbatches + p - 1);
    // Two stages of a V are one of 1F1B: a pass takes half as long.
    auto const add =
      [&](char const* name, auto const& schedule, double life, double peak, double bubble) {
        pp::dynamic_timetable const table = pp::make_timetable(schedule, size);
        int const held = table.over.extents.stages_per_device;
        table_line row{name, std::to_string(p)};
        compare(row, life, longest_life(table, 2 * p), 0);
        compare(row, peak, pp::peak_activations(table).to_double() / held, 2);
        compare(row, bubble, pp::bubble_rate(table), 4);
        rows.push_back(row);
      };
    add("1F1B", pp::OneFOneB{}, 3.0 * p, p, whole);
    add("V-Min", pp::VMin{}, 4.0 * p, (p + 4) / 3, whole * 2 / 3);
    add("V-Half", pp::VHalf{}, 6.0 * p, (p + 2) / 2, whole / 2);
    add("V-ZB", pp::VShape<pp::v_zero_bubble_offsets>{}, 12.0 * p - 2, p, 0);
  }
  return {rows};
}

noted_table pareto() {
  std::vector<table_line> rows{
    {"limit / P", std::string(names::zero_bubble_auto), std::string(names::v_auto)}};
  pp::pipeline_size const size{8, 32};
  for (int limit = 6; limit <= 16; ++limit) { // stages of a V; two are one of zb-auto
    table_line row{decimals(limit / 16.0, 3)};
    pp::uniform_cost const linear{2, 2, 2};
    row.push_back(
      limit % 2 != 0
        ? ""
        : decimals(pp::bubble_rate(pp::make_timetable(
                     pp::ZeroBubbleAuto<pp::dynamic>{.memory_limit = limit / 2}, size, linear)),
                   4));
    row.push_back(decimals(pp::bubble_rate(pp::make_timetable(
                             pp::VAuto<pp::dynamic>{.memory_limit = double(limit)}, size)),
                           4));
    rows.push_back(row);
  }
  return {rows};
}

//! What the device holds that holds the most.
double gigabytes(auto const& schedule,
                 pp::transformer const& model,
                 pp::training_setup const& setup,
                 int devices,
                 std::vector<int> const& lengths) {
  pp::pipeline_size const size{devices, 4 * devices};
  pp::dynamic_timetable const table = pp::make_timetable(schedule, size);
  std::vector<int> const layers(static_cast<std::size_t>(table.over.extents.stages()),
                                model.layers / table.over.extents.stages());
  pp::stage_memory memory;
  for (pp::stage_content const& content : pp::stage_content::of_layers(layers)) {
    pp::stage_bytes const bytes = pp::prediction{model, setup}.bytes(content, lengths);
    memory.resident.push_back(static_cast<double>(bytes.resident()));
    for (double const share : pp::token_shares(lengths))
      memory.activation.push_back(static_cast<double>(bytes.activation) * share);
  }
  std::vector<double> const held = pp::device_bytes(table, memory);
  return *std::max_element(held.begin(), held.end()) / 1e9;
}

double attention_ratio(pp::transformer const& model, int tokens) {
  return model.attention_flops(pp::pass_kind::forward, {tokens, 0}) / model.linear_flops(tokens);
}
std::vector<int> four_chunks(pp::transformer const& model, int tokens) {
  return pp::balanced_partition(
    tokens, 4, pp::sequence_work::of_attention(attention_ratio(model, tokens), tokens), 128);
}

noted_table seq1f1b_memory() {
  struct {
    char const* model;
    int devices;
    int tensor;
    int kilotokens;
    double bars[3]; // 1F1B, interleaved, Seq1F1B; 0: out of memory
  } const published[] = {{"gpt-2.7b", 8, 1, 16, {51.4, 71.0, 29.8}},
                         {"gpt-2.7b", 8, 1, 24, {74.3, 0, 41.5}},
                         {"gpt-2.7b", 8, 1, 32, {0, 0, 53.1}},
                         {"gpt-7b", 4, 8, 32, {28.0, 34.2, 18.9}},
                         {"gpt-7b", 4, 8, 64, {51.4, 62.9, 34.3}},
                         {"gpt-7b", 4, 8, 128, {0, 0, 69.8}},
                         {"gpt-13b", 4, 8, 32, {44.2, 53.2, 29.7}},
                         {"gpt-13b", 4, 8, 48, {64.3, 76.4, 42.4}},
                         {"gpt-13b", 4, 8, 64, {66.8, 0, 51.6}},
                         {"gpt-30b", 8, 8, 32, {71.4, 0, 37.6}},
                         {"gpt-30b", 8, 8, 48, {0, 0, 54.7}},
                         {"gpt-30b", 8, 8, 64, {0, 0, 67.5}}};
  std::vector<table_line> rows{{"model, P x T, tokens"}};
  for (std::string_view const name : {"1F1B"sv, names::interleaved, "Seq1F1B"sv})
    for (char const* const what : {" GB", " ours", " difference"})
      rows[0].push_back(std::string(name) + what);
  int within = 0;
  int all = 0;
  for (auto const& each : published) {
    pp::transformer const model = pp::transformer::named(each.model);
    int const tokens = each.kilotokens * 1024;
    pp::training_setup const setup{.sequence = tokens, .tensor = each.tensor};
    double const ours[] = {
      gigabytes(pp::OneFOneB{}, model, setup, each.devices, {tokens}),
      gigabytes(pp::Interleaved<2>{}, model, setup, each.devices, {tokens}),
      gigabytes(pp::Seq1F1B<4>{}, model, setup, each.devices, four_chunks(model, tokens))};
    table_line row{text_of(each.model, ", ", each.devices, " x ", each.tensor, ", ") +
                   text_of(each.kilotokens, " k")};
    for (std::size_t i = 0; i < 3; ++i) {
      bool const ran = each.bars[i] > 0;
      row.push_back(ran ? decimals(each.bars[i], 1) : "out of memory");
      row.push_back(decimals(ours[i], 1));
      row.push_back(ran ? decimals(100 * (ours[i] / each.bars[i] - 1), 0) + " %" : "");
      pp::band const band =
        pp::prediction{{}, {.tensor = each.tensor}}.memory_band(i == 2 ? 4 : 1, false);
      all += ran ? 1 : 0;
      within += each.bars[i] >= ours[i] * band.least && each.bars[i] <= ours[i] * band.most ? 1 : 0;
    }
    rows.push_back(row);
  }
  return {rows, text_of(within, " of the ", all, " values lie in the band that `choose` prints.")};
}

//! Seconds of an iteration of that model on four stages of eight A100s each.
double seconds_of(auto const& schedule,
                  pp::transformer const& model,
                  int microbatches,
                  std::vector<int> const& lengths) {
  pp::pipeline_size const size{4, microbatches};
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  int const count = extents.stages();
  std::vector<int> const layers(static_cast<std::size_t>(count), model.layers / count);
  pp::training_setup const setup{.sequence = std::accumulate(lengths.begin(), lengths.end(), 0),
                                 .tensor = 8};
  pp::cost_table const cost =
    pp::prediction{model, setup, pp::gpu::named("a100"), {0.6, 0.6, 0.6}}.costs(
      extents, pp::stage_content::of_layers(layers), lengths);
  return pp::makespan(pp::make_timetable(schedule, size, cost));
}

noted_table seq1f1b_speed() {
  std::string_view const called[] = {"1F1B", names::interleaved, "Seq1F1B", "interleaved Seq1F1B"};
  struct {
    int kilotokens;
    int microbatches;
    double teraflops[4]; // as named; 0: out of memory
  } const published[] = {{32, 8, {99.7, 109.6, 110.6, 97.7}},
                         {32, 16, {114.5, 116.5, 115.3, 95.6}},
                         {64, 8, {107.5, 120.0, 124.6, 117.8}},
                         {64, 16, {124.0, 128.7, 123.1, 118.0}},
                         {128, 8, {0, 0, 136.7, 135.1}},
                         {128, 16, {0, 0, 142.1, 136.6}}};
  std::vector<table_line> rows{cells_of("| tokens, M | schedule | TFLOPS | over | TFLOPS | speed "
                                        "published | ours | difference | published over ours |")};
  pp::transformer const model = pp::transformer::named("gpt-7b");
  for (auto const& each : published) {
    int const tokens = each.kilotokens * 1024;
    auto const time = [&](auto const& schedule, std::vector<int> const& lengths) {
      return seconds_of(schedule, model, each.microbatches, lengths);
    };
    std::vector<int> const chunks = four_chunks(model, tokens);
    double const times[] = {time(pp::OneFOneB{}, {tokens}),
                            time(pp::Interleaved<2>{}, {tokens}),
                            time(pp::Seq1F1B<4>{}, chunks),
                            time(pp::Seq1F1BInterleaved<2, 4>{}, chunks)};
    std::size_t const over = each.teraflops[0] > 0 ? 0 : 2;
    for (std::size_t i = over + 1; i < 4; ++i) {
      double const ratio = each.teraflops[i] / each.teraflops[over];
      double const ours = times[over] / times[i];
      rows.push_back({text_of(each.kilotokens, " k, ", each.microbatches),
                      std::string(called[i]),
                      decimals(each.teraflops[i], 1),
                      std::string(called[over]),
                      decimals(each.teraflops[over], 1),
                      decimals(ratio, 3),
                      decimals(ours, 3),
                      decimals(ours - ratio, 3),
                      decimals(ratio / ours, 2)});
    }
  }
  return {rows};
}

noted_table dual_pipe() {
  std::vector<table_line> rows{
    cells_of("| schedule | stages, M | F, I, W, F&B | bubble by formula | ours | difference | peak "
             "by formula | ours | difference |")};
  struct {
    char const* text;
    pp::uniform_cost cost;
  } const costs[] = {{"1, 1, 1, 3", {1, 1, 1, 0, 3}},
                     {"10, 10, 10, 24", {10, 10, 10, 0, 24}},
                     {"10, 12, 8, 24", {10, 12, 8, 0, 24}}};
  for (int const stages : {4, 8, 16})
    for (auto const& each : costs) {
      pp::uniform_cost const& c = each.cost;
      double const backward = c.backward_input + c.backward_weight;
      double const formula =
        (stages / 2 - 1) * (c.overlapped_pair + backward - 3 * c.backward_weight);
      auto const add = [&](char const* name, pp::timetable_view table) {
        double busy = HUGE_VAL;
        for (int device = 0; device < table.over.extents.devices; ++device)
          busy = std::min(busy, pp::busy(table, device));
        table_line row{name, text_of(stages, ", ", table.over.extents.microbatches), each.text};
        compare(row, formula, pp::makespan(table) - busy, 0);
        compare(row, stages + 1, pp::peak_activations(table).to_double(), 0);
        rows.push_back(row);
      };
      add("DualPipe", pp::make_timetable(pp::DualPipe<>{}, {stages, 2 * stages + 2}, c));
      add("DualPipeV", pp::make_timetable(pp::DualPipeV<>{}, {stages / 2, stages + 1}, c));
    }
  return {rows};
}

noted_table chunk_flow() {
  struct {
    char const* name;
    std::vector<int> lengths;
    int size; // of a chunk
    double published;
  } const examples[] = {{"1F1B, lengths 4, 1, 2, 1", {4, 1, 2, 1}, 0, 57.14},
                        {"1F1B, equal lengths", {2, 2, 2, 2}, 0, 42.86},
                        {"chunks of 2, K = 2", {4, 1, 2, 1}, 2, 47.83},
                        {"chunks of 4", {4, 1, 2, 1}, 4, 60.00}};
  std::vector<table_line> rows{
    cells_of("| example | published % | ours | difference | makespan |")};
  for (auto const& each : examples) {
    std::vector<pp::packed_microbatch> microbatches;
    if (each.size > 0)
      microbatches = pp::chunk_sequences(each.lengths, each.size);
    else // a sequence is a chunk, as it is
      for (int const length : each.lengths)
        microbatches.push_back({{{static_cast<int>(microbatches.size()), 0, length}}});
    pp::dynamic_timetable const table =
      pp::make_timetable(pp::ChunkFlow<>{{pp::counts_of(microbatches)}, 2},
                         {4, static_cast<int>(microbatches.size())},
                         pp::packed_cost(microbatches, pp::sequence_work{}));
    table_line row{each.name};
    compare(row, each.published, 100 * (1 - pp::busy(table, 0) / pp::makespan(table)), 2);
    row.push_back(decimals(pp::makespan(table), 0));
    rows.push_back(row);
  }
  return {rows};
}

noted_table vocabulary() {
  std::vector<table_line> rows{cells_of(
    "| vocabulary | layers | P, M | sequence, tokens | published s | ours | difference % |")};
  for (published_run const& run : published_runs) {
    double const milliseconds = pp::makespan(timetable_of(run)) / 1000;
    rows.push_back({run.of.barriers == in_one_piece     ? "in one piece"
                    : run.of.barriers == pp::interlaced ? "in shards, interlaced"
                    : run.of.barriers == 1              ? "in shards, one barrier"
                                                        : "in shards, two barriers",
                    run.of.layers,
                    text_of(run.size.devices, ", ", run.size.microbatches),
                    text_of(run.sequence, ", ", run.of.vocabulary),
                    decimals(run.of.milliseconds / 1000, 3),
                    decimals(milliseconds / 1000, 3),
                    decimals(100 * (milliseconds / run.of.milliseconds - 1), 1)});
  }
  return {rows};
}

struct table_name {
  std::string_view name;
  noted_table (*make)();
};

constexpr table_name tables[] = {{"zero-bubble", zero_bubble},
                                 {"post-validation", post_validation},
                                 {"controllable-memory", controllable_memory},
                                 {"controllable-memory-limits", pareto},
                                 {"seq1f1b-memory", seq1f1b_memory},
                                 {"seq1f1b-speed", seq1f1b_speed},
                                 {names::dual_pipe, dual_pipe},
                                 {names::chunk_flow, chunk_flow},
                                 {"vocabulary", vocabulary},
                                 {"closed-forms", closed_forms}};

struct reproduce_command {
  verbs verb = verbs::reproduce;
  std::string format = "text";
};

word_list paper_formats(verbs) {
  return {"text", "json"};
}

constexpr option_reader<reproduce_command> paper_options[] = {
  {{"--format FORMAT", verbs::reproduce},
   "text (default): Markdown; or json",
   set_one_of<paper_formats, &reproduce_command::format>,
   paper_formats},
  json_option<reproduce_command>(verbs::reproduce),
};

} // namespace

std::vector<offered_option> reproduce_options(verbs one) {
  return offered<reproduce_command>(paper_options, one);
}

word_list published_tables() {
  return names_in(tables);
}

void reproduce(std::span<char const* const> words) {
  reproduce_command asked;
  read_words const read =
    read_options<reproduce_command>(paper_options, verbs::reproduce, asked, words);
  for (table_name const& each : tables)
    if (read.names.size() == 1 && each.name == read.names[0]) {
      progress_line line(HUGE_VAL, "making the table " + std::string(each.name));
      noted_table const made = each.make();
      line.end();
      std::string const text =
        asked.format == "json"
          ? json_of(made)
          : (made.note.empty() ? "" : made.note + "\n\n") + table_of(made.rows);
      std::fwrite(text.data(), 1, text.size(), stdout);
      return;
    }
  std::string known;
  for (table_name const& each : tables)
    known.append(known.empty() ? "" : ", ").append(each.name);
  throw usage_error("reproduce wants the name of one table: " + known);
}

} // namespace examples
