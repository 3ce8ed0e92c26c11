// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/shape.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/search/frontier.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"
#include "progress_line.hpp"
#include "tools/support/chart.hpp"
#include "tools/support/split_words.hpp"
#include "verbs.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

struct blocks_command {
  int devices = 8;
  std::string format = "text";
  pp::block_options how{.longest_interval = 2};
};

template <int Most>
int whole(std::string_view option, std::string_view word) {
  std::optional<int> const value = number_in<int>(word);
  if (!value || *value < 1 || *value > Most)
    throw usage_error(std::string(option) + " wants a whole number from 1 to " +
                      std::to_string(Most) + ", not '" + std::string(word) + "'");
  return *value;
}

word_list block_formats(verbs) {
  return {"text", "json", "svg", "cpp"};
}

constexpr option_reader<blocks_command> block_options[] = {
  {"--devices",
   "P",
   verbs::blocks,
   "devices of the pipeline; default 8",
   set<whole<256>, &blocks_command::devices>},
  {"--legs",
   "N",
   verbs::blocks,
   "the most walks over the devices that a block has, 1 to 6",
   set<whole<pp::most_block_legs>, &blocks_command::how, &pp::block_options::most_legs>},
  {"--chunks",
   "C[,C...]",
   verbs::blocks,
   "chunks of a sequence, a table for each; default 1",
   [](blocks_command& c, std::string_view option, std::string_view word) {
     c.how.chunks.clear();
     for (std::string_view const part : split_at_commas(word))
       c.how.chunks.push_back(whole<64>(option, part));
     std::sort(c.how.chunks.begin(), c.how.chunks.end());
   }},
  {"--format",
   "FORMAT",
   verbs::blocks,
   "text (default), json, svg, or cpp: the blocks as C++ types",
   [](blocks_command& c, std::string_view option, std::string_view word) {
     c.format = one_of(option, word, block_formats(verbs::blocks));
   },
   block_formats},
  json_option<blocks_command>(verbs::blocks),
};

blocks_command read(std::span<char const* const> words) {
  blocks_command asked;
  no_names(verbs::blocks, read_options<blocks_command>(block_options, verbs::blocks, asked, words));
  return asked;
}

//! A share of the memory that 1F1B takes, which is P microbatches of a device's stages.
struct memory_share {
  int of = 1;
  int parts = 1;
};
constexpr memory_share memory_shares[] = {
  {1, 6}, {1, 5}, {1, 4}, {1, 3}, {3, 8}, {1, 2}, {5, 8}, {3, 4}, {1, 1}};

//! The least bubble among blocks of so many legs and chunks within a share of the memory, or null.
pp::block_choice const*
best_within(std::vector<pp::block_choice> const& all, int legs, int chunks, double memory) {
  pp::block_choice const* best = nullptr;
  for (pp::block_choice const& each : all)
    if (each.legs == legs && each.chunks == chunks && each.memory <= memory + 1e-9 &&
        (best == nullptr || each.bubble < best->bubble))
      best = &each;
  return best;
}

std::string per_cent(double part) {
  return decimals(100 * part, 1) + " %";
}

std::string block_table(blocks_command const& asked, std::vector<pp::block_choice> const& all) {
  std::string out;
  for (int const chunks : asked.how.chunks) {
    pp::append(out, out.empty() ? "" : "\n", "The least bubble of ", asked.devices, " devices, ");
    pp::append(out, chunks, chunks == 1 ? " chunk" : " chunks");
    out += ", by memory as a share of 1F1B's and by legs, which are messages:\n\n| memory |";
    for (int legs = 1; legs <= asked.how.most_legs; ++legs)
      pp::append(out, " ", legs, " |");
    out += "\n| --- |";
    for (int legs = 1; legs <= asked.how.most_legs; ++legs)
      out += " --- |";
    out += "\n";
    for (memory_share const& share : memory_shares) {
      double const memory = static_cast<double>(asked.devices) * share.of / share.parts;
      std::string row;
      bool any = false;
      for (int legs = 1; legs <= asked.how.most_legs; ++legs) {
        pp::block_choice const* best = best_within(all, legs, chunks, memory);
        any = any || best != nullptr;
        row += best == nullptr ? " |" : " " + per_cent(best->bubble) + " |";
      }
      if (any)
        pp::append(out, "| ", share.of, share.parts == 1 ? "" : "/" + std::to_string(share.parts)),
          pp::append(out, " |", row, "\n");
    }
  }
  return out;
}

//! The type of a block, as one writes it.
std::string type_of(pp::block_choice const& block) {
  std::string stride;
  std::string gap;
  for (int leg = 0; leg < 2 * block.legs; ++leg) {
    pp::append(stride, leg > 0 ? ", " : "", pp::stride_of(block, leg));
    gap += leg > 0 ? ", pipelining::first_fit" : "0";
  }
  std::string out;
  pp::append(out, "pipelining::Repeat<pipelining::fixed_block<pipelining::strides<", block.legs);
  pp::append(
    out, ">{\n  .interval = ", block.interval, ",\n  .stride = {", stride, "},\n  .gap = {");
  pp::append(out, gap, "}}>,\n  pipelining::");
  pp::append(out, block.where == pp::placement::wave ? "waves" : "loops", ", ", block.chunks, ">");
  return out;
}

std::string types_of(blocks_command const& asked, std::vector<pp::block_choice> const& all) {
  std::string out = "#include <pipe/schedule/block/building_block.hpp>\n#include "
                    "<pipe/schedule/block/repeat.hpp>\n";
  int number = 0;
  for (pp::block_choice const& each : pp::block_frontier(all, asked.devices)) {
    pp::append(
      out, "\n// ", decimals(each.memory, 3), " of ", asked.devices, " microbatches, at least ");
    pp::append(out, decimals(pp::least_block_memory(each, asked.devices), 3), "; bubble ");
    pp::append(out, per_cent(each.bubble), "\nusing block_", ++number, " = ", type_of(each), ";\n");
  }
  return out;
}

//! Of each number of legs and of chunks, the blocks that are best for their memory.
std::string json_of(blocks_command const& asked, std::vector<pp::block_choice> const& all) {
  std::string out = "[";
  for (int const chunks : asked.how.chunks)
    for (int legs = 1; legs <= asked.how.most_legs; ++legs) {
      std::vector<pp::block_choice> alike;
      for (pp::block_choice const& each : all)
        if (each.legs == legs && each.chunks == chunks)
          alike.push_back(each);
      for (pp::block_choice const& each : pp::block_frontier(alike, asked.devices)) {
        pp::append(out, out.size() == 1 ? "\n" : ",\n", "{\"legs\":", legs, ",\"chunks\":", chunks);
        pp::append(out, ",\"memory\":", each.memory, ",\"bubble_rate\":", each.bubble);
        pp::append(out, ",\"type\":");
        pp::append_quoted(out, type_of(each));
        out += "}";
      }
    }
  return out + "\n]\n";
}

//! Bubble over memory: a colour for each number of legs, a dash for each number of chunks.
std::string chart_of(blocks_command const& asked, std::vector<pp::block_choice> const& all) {
  constexpr char const* colours[] = {
    "#999999", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};
  constexpr char const* dashes[] = {"", "7 4", "2 3", "9 3 2 3"};
  double const left = 62, right = 640, top = 44, bottom = 400, highest = 0.4;
  auto const x_of = [&](double memory) { return left + (right - left) * memory / asked.devices; };
  auto const y_of = [&](double bubble) { return bottom - (bottom - top) * bubble / highest; };
  std::string svg = begin_chart(780, 460);
  svg += text_at(left,
                 24,
                 "start",
                 "#222",
                 "building blocks on " + std::to_string(asked.devices) +
                   " devices: the least bubble for the memory, by legs and chunks");
  for (int tenth = 0; tenth <= 4; ++tenth) {
    svg += line_from(left, y_of(0.1 * tenth), right, y_of(0.1 * tenth), "stroke=\"#ddd\"");
    svg += text_at(left - 8, y_of(0.1 * tenth) + 4, "end", "#555", per_cent(0.1 * tenth));
  }
  double const step = std::max(1.0, round_step(asked.devices, 8));
  for (double memory = 0; memory <= asked.devices + 1e-9; memory += step) {
    svg += line_from(x_of(memory), bottom, x_of(memory), bottom + 5, "stroke=\"#888\"");
    svg += text_at(x_of(memory), bottom + 20, "middle", "#555", decimals(memory, 0));
  }
  svg += text_at(
    (left + right) / 2,
    bottom + 42,
    "middle",
    "#555",
    "microbatches of all stages that a device holds (1F1B: " + std::to_string(asked.devices) + ")");
  double const third = x_of(asked.devices / 3.0);
  svg += line_from(third, top, third, bottom, "stroke=\"#c44\" stroke-dasharray=\"6 4\"");
  svg += text_at(third + 4, top + 12, "start", "#c44", "P/3");
  double legend = top + 12;
  for (int legs = 1; legs <= asked.how.most_legs; ++legs) {
    char const* const colour = colours[legs - 1];
    svg += text_at(
      right + 60, legend, "start", colour, std::to_string(legs) + (legs == 1 ? " leg" : " legs"));
    svg += line_from(right + 20,
                     legend - 4,
                     right + 52,
                     legend - 4,
                     ("stroke=\"" + std::string(colour) + "\" stroke-width=\"2\"").c_str());
    legend += 20;
    for (std::size_t i = 0; i < asked.how.chunks.size(); ++i) {
      std::vector<pp::choice_point> line;
      for (pp::block_choice const& each : all)
        if (each.legs == legs && each.chunks == asked.how.chunks[i] && each.bubble < highest)
          line.push_back({each.memory, each.bubble});
      std::string points;
      double least = highest;
      for (std::size_t const which : pp::frontier(line)) {
        if (!points.empty()) // a step: with less than its memory the one before is the best
          points += decimals(x_of(line[which].memory), 1) + "," + decimals(y_of(least), 1) + " ";
        least = line[which].time;
        points += decimals(x_of(line[which].memory), 1) + "," + decimals(y_of(least), 1) + " ";
      }
      if (!points.empty())
        svg += "<polyline fill=\"none\" stroke=\"" + std::string(colour) +
               "\" stroke-width=\"1.6\" stroke-dasharray=\"" + dashes[i % 4] + "\" points=\"" +
               points + decimals(right, 1) + "," + decimals(y_of(least), 1) + "\"/>\n";
    }
  }
  legend += 10;
  for (std::size_t i = 0; i < asked.how.chunks.size(); ++i, legend += 20) {
    int const chunks = asked.how.chunks[i];
    svg += line_from(
      right + 20,
      legend - 4,
      right + 52,
      legend - 4,
      (std::string("stroke=\"#222\" stroke-width=\"2\" stroke-dasharray=\"") + dashes[i % 4] + "\"")
        .c_str());
    svg += text_at(right + 60,
                   legend,
                   "start",
                   "#222",
                   std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks"));
  }
  return svg + "</svg>\n";
}

} // namespace

std::vector<offered_option> blocks_options(verbs one) {
  return offered<blocks_command>(block_options, one);
}

void blocks(std::span<char const* const> words) {
  blocks_command const asked = read(words);
  constexpr double for_ever = 1e9;
  progress_line line(for_ever);
  std::vector<pp::block_choice> all;
  pp::for_each_block(asked.devices, asked.how, [&](pp::block_choice const& each) {
    all.push_back(each);
    line.say(std::to_string(all.size()) + " blocks, " + std::to_string(each.legs) + " legs");
  });
  line.end();
  std::string const out = asked.format == "svg"    ? chart_of(asked, all)
                          : asked.format == "cpp"  ? types_of(asked, all)
                          : asked.format == "json" ? json_of(asked, all)
                                                   : block_table(asked, all);
  std::fwrite(out.data(), 1, out.size(), stdout);
}

} // namespace examples
