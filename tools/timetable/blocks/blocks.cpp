// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/support/chart.hpp"
#include "tools/timetable/progress_line.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

struct blocks_command {
  verbs verb = verbs::blocks;
  int devices = 8;
  std::string format = "text";
  pp::block_choice::options how{.longest_interval = 2};
};

word_list block_formats(verbs) {
  return {"text", "json", "svg", "cpp"};
}

constexpr option_reader<blocks_command> block_options[] = {
  {{"--devices P", verbs::blocks},
   "devices of the pipeline; default 8",
   set<count_of<256>, &blocks_command::devices>},
  {{"--legs N", verbs::blocks},
   "the most walks over the devices that a block has, 1 to 6",
   set<count_of<pp::block_choice::most_legs>,
       &blocks_command::how,
       &pp::block_choice::options::most_legs>},
  {{"--chunks C[,C...]", verbs::blocks},
   "chunks of a sequence, a table for each; default 1",
   [](blocks_command& c, std::string_view option, std::string_view word) {
     c.how.chunks.clear();
     for (std::string_view const part : split_at_commas(word))
       c.how.chunks.push_back(count_of<64>(option, part));
     std::sort(c.how.chunks.begin(), c.how.chunks.end());
   }},
  {{"--format FORMAT", verbs::blocks},
   "text (default), json, svg, or cpp: the blocks as C++ types",
   set_one_of<block_formats, &blocks_command::format>,
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
    pp::append(stride, leg > 0 ? ", " : "", block.stride_of(leg));
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
    pp::append(out, decimals(each.least_memory(asked.devices), 3), "; bubble ");
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

//! Where the chart of blocks has its corners, and which marks stand for legs and chunks.
struct block_chart {
  static constexpr char const* colours[] = {
    "#999999", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};
  static constexpr char const* dashes[] = {"", "7 4", "2 3", "9 3 2 3"};
  static constexpr double left = 62, right = 640, top = 44, bottom = 400, highest = 0.4;

  int devices;

  [[nodiscard]] double x_of(double memory) const {
    return left + (right - left) * memory / devices;
  }
  [[nodiscard]] static double y_of(double bubble) {
    return bottom - (bottom - top) * bubble / highest;
  }
  [[nodiscard]] std::string point(double memory, double bubble) const {
    return decimals(x_of(memory), 1) + "," + decimals(y_of(bubble), 1) + " ";
  }
};

//! The title, both axes, and the third of 1F1B's memory.
std::string axes_of(block_chart const& on) {
  auto const devices = std::to_string(on.devices);
  std::string svg = text_at(on.left,
                            24,
                            "start",
                            "#222",
                            "building blocks on " + devices +
                              " devices: the least bubble for the memory, by legs and chunks");
  for (int tenth = 0; tenth <= 4; ++tenth) {
    double const y = on.y_of(0.1 * tenth);
    svg += line_from(on.left, y, on.right, y, "stroke=\"#ddd\"");
    svg += text_at(on.left - 8, y + 4, "end", "#555", per_cent(0.1 * tenth));
  }
  double const step = std::max(1.0, round_step(on.devices, 8));
  for (double memory = 0; memory <= on.devices + 1e-9; memory += step) {
    double const x = on.x_of(memory);
    svg += line_from(x, on.bottom, x, on.bottom + 5, "stroke=\"#888\"");
    svg += text_at(x, on.bottom + 20, "middle", "#555", decimals(memory, 0));
  }
  svg += text_at((on.left + on.right) / 2,
                 on.bottom + 42,
                 "middle",
                 "#555",
                 "microbatches of all stages that a device holds (1F1B: " + devices + ")");
  double const third = on.x_of(on.devices / 3.0);
  svg += line_from(third, on.top, third, on.bottom, "stroke=\"#c44\" stroke-dasharray=\"6 4\"");
  return svg + text_at(third + 4, on.top + 12, "start", "#c44", "P/3");
}

//! The least bubbles of blocks of so many legs and chunks, as steps: with less memory than that of
//! a block, the one before is the best. Empty where there is none.
std::string
steps_of(block_chart const& on, std::vector<pp::block_choice> const& all, int legs, int chunks) {
  std::vector<pp::choice_point> line;
  for (pp::block_choice const& each : all)
    if (each.legs == legs && each.chunks == chunks && each.bubble < on.highest)
      line.push_back({each.memory, each.bubble});
  std::string points;
  double least = on.highest;
  for (std::size_t const which : pp::frontier(line)) {
    if (!points.empty())
      points += on.point(line[which].memory, least);
    least = line[which].time;
    points += on.point(line[which].memory, least);
  }
  return points.empty() ? points
                        : points + decimals(on.right, 1) + "," + decimals(on.y_of(least), 1);
}

//! A line of the legend: a stroke, and a number of things in its colour.
std::string
legend_of(double y, char const* colour, std::string const& dash, int count, char const* thing) {
  double const x = block_chart::right;
  std::string const words = std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
  std::string const stroke = "stroke=\"" + std::string(colour) + "\" stroke-width=\"2\"" + dash;
  return text_at(x + 60, y, "start", colour, words) +
         line_from(x + 20, y - 4, x + 52, y - 4, stroke.c_str());
}

//! Bubble over memory: a colour for each number of legs, a dash for each number of chunks.
std::string chart_of(blocks_command const& asked, std::vector<pp::block_choice> const& all) {
  block_chart const on{asked.devices};
  auto const& chunks = asked.how.chunks;
  std::string svg = begin_chart(780, 460) + axes_of(on);
  double legend = on.top + 12;
  for (int legs = 1; legs <= asked.how.most_legs; ++legs, legend += 20) {
    char const* const colour = on.colours[legs - 1];
    std::string const stroke = "stroke=\"" + std::string(colour) + "\"";
    svg += legend_of(legend, colour, "", legs, "leg");
    for (std::size_t i = 0; i < chunks.size(); ++i)
      if (auto const points = steps_of(on, all, legs, chunks[i]); !points.empty())
        svg += "<polyline fill=\"none\" " + stroke + " stroke-width=\"1.6\" stroke-dasharray=\"" +
               on.dashes[i % 4] + "\" points=\"" + points + "\"/>\n";
  }
  legend += 10;
  for (std::size_t i = 0; i < chunks.size(); ++i, legend += 20)
    svg += legend_of(legend,
                     "#222",
                     std::string(" stroke-dasharray=\"") + on.dashes[i % 4] + "\"",
                     chunks[i],
                     "chunk");
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
