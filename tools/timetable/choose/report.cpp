// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What `timetable choose` prints.
#include "choose.hpp"

namespace examples {
namespace {

bool is_v(candidate const& one) {
  return one.extents.where == pp::placement::wave;
}

} // namespace

bool surely_fits(choose_command const& asked, candidate const& one) {
  pp::band const band = asked.predicted().memory_band(one.extents.chunks, is_v(one));
  return one.gigabytes * band.most <= asked.memory_gb;
}

namespace {

//! The first words of a sentence: "tied weights and totals need one copy of every stage".
std::string in_short(std::string sentence) {
  if (std::size_t const colon = sentence.find(": "); colon != sentence.npos)
    sentence.erase(0, colon + 2);
  sentence.resize(std::min(sentence.find_first_of(",;("), sentence.size()));
  sentence.resize(sentence.find_last_not_of(' ') + 1);
  return sentence;
}

//! Always the same number of decimals, at the right of a column, a blank from the one before.
std::string cell(double value, int count, std::size_t width) {
  std::string const text = decimals(value, count);
  return std::string(width > text.size() ? width - text.size() : 1, ' ') + text;
}

std::string per_cent(double share) {
  return rounded(100 * share, 1) + " %";
}

double tokens_per_second(choose_command const& asked, candidate const& one) {
  return asked.tokens() / one.seconds / asked.devices / asked.setup.tensor;
}

//! What published runs of a candidate's kind held over the count; nothing where none is published.
std::optional<pp::band> band_of(choose_command const& asked, candidate const& one) {
  if (is_apart(one.choice) || !one.groups.empty() || one.choice.adapted != adapter::none)
    return std::nullopt;
  return asked.predicted().memory_band(one.extents.chunks, is_v(one));
}

//! How sure the pick is to fit, and the fastest one that is.
void append_doubt(std::string& out,
                  choose_command const& asked,
                  candidates const& found,
                  candidate const& pick) {
  if (surely_fits(asked, pick))
    return;
  candidate const* sure = nullptr;
  for (candidate const& each : found.all)
    if (each.cannot.empty() && surely_fits(asked, each) &&
        (sure == nullptr || each.ranked < sure->ranked))
      sure = &each;
  out += "; not sure to fit ";
  if (sure == nullptr) {
    out += "(nothing is)";
    return;
  }
  out += "(sure: " + sure->label + ", " + rounded(sure->gigabytes, 1) + " GB, " +
         per_cent(sure->ranked / pick.ranked - 1) + " slower)";
}

void append_heading(std::string& out, choose_command const& asked) {
  pp::transformer const& model = asked.model;
  pp::append(out, asked.model_name, ": ", model.layers, " layers, hidden ", model.hidden);
  if (model.experts > 0)
    pp::append(out, ", ", model.experts_per_token, " of ", model.experts, " experts");
  if (model.modules > 0)
    pp::append(
      out, ", ", model.modules, model.modules == 1 ? " module" : " modules", " for further tokens");
  if (model.encoder.layers > 0)
    pp::append(out, ", ", model.encoder.layers, " layers of an encoder");
  pp::append(
    out, ", ", rounded(static_cast<double>(model.parameters()) / 1e9, 2), "e9 parameters\n");
  pp::append(out, asked.devices, " devices of ", asked.setup.tensor, " x ", asked.gpu_name);
  if (asked.lengths.empty())
    pp::append(out,
               ", ",
               asked.microbatches,
               " microbatches of ",
               asked.setup.sequences,
               " x ",
               asked.setup.sequence,
               " tokens, ");
  else
    pp::append(out,
               ", ",
               asked.lengths.size(),
               " sequences, ",
               static_cast<std::int64_t>(asked.tokens()),
               " tokens, the longest ",
               asked.setup.sequence,
               ", ");
  pp::append(out, rounded(asked.memory_gb, 3), " GB per GPU\n");
  if (asked.gpus.size() > 1 && !asked.capped)
    out +=
      "GPUs differ: memory is that of the one with the least room, as a share of the largest\n";
  if (asked.measured) {
    pp::append(out, "measured: times from ", asked.cost_file, ", of ", asked.measured->stages);
    pp::append(out, " stages and ", asked.measured->chunks, " chunks\n");
    return;
  }
  pp::append(out, "assumed: ", rounded(asked.gpu(0).peak_tflops, 1));
  for (std::size_t i = 1; i < asked.gpus.size(); ++i)
    pp::append(out, ", ", rounded(asked.gpus[i].peak_tflops, 1));
  pp::append(out, " TFLOPS at ");
  pp::append(out, rounded(asked.reached.linear, 3), " in layers (published: 0.61 to 0.64), ");
  pp::append(out, rounded(asked.reached.vocabulary, 3), " in the output layer (0.31 to 0.48), ");
  pp::append(out, rounded(asked.reached.attention, 3), " in attention (nothing published);\n");
  out += "         published figures are of A100";
  out += asked.gpu_name == "a100" ? "\n" : ", none of " + asked.gpu_name + "\n";
}

//! Rows of the table, the fastest first: one candidate, or several whose orders are the same.
std::vector<std::vector<std::size_t>> rows_of(candidates const& found, std::size_t pick) {
  std::vector<std::size_t> order(found.all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return found.all[a].ranked < found.all[b].ranked;
  });
  std::vector<std::vector<std::size_t>> rows;
  auto const same = [&found](std::size_t a, std::size_t b) {
    candidate const& one = found.all[a];
    candidate const& other = found.all[b];
    return one.order != 0 && one.order == other.order && one.layers == other.layers &&
           one.extents == other.extents && one.gigabytes == other.gigabytes &&
           one.seconds == other.seconds && one.cannot.empty() == other.cannot.empty();
  };
  for (std::size_t const i : order) {
    auto row = rows.rbegin(); // as fast ones stand next to each other
    while (row != rows.rend() && found.all[row->front()].ranked == found.all[i].ranked &&
           !same(row->front(), i))
      ++row;
    if (row == rows.rend() || found.all[row->front()].ranked != found.all[i].ranked)
      rows.push_back({i});
    else
      row->insert(i == pick ? row->begin() : row->end(), i);
  }
  return rows;
}

//! The pick and the three next best of what fits, with what of the faster ones cannot be run; or
//! all.
void append_table(std::string& out,
                  choose_command const& asked,
                  candidates const& found,
                  pp::memory_choice const& choice,
                  std::vector<std::size_t> const& best) {
  constexpr std::size_t most_rows = 4;
  constexpr std::size_t most_refused = 3;
  std::vector<std::vector<std::size_t>> const rows = rows_of(found, *choice.pick);
  std::vector<std::pair<std::vector<std::size_t>, std::string>> shown;
  std::size_t width = 8;
  std::size_t fit = 0;
  std::size_t refused = 0;
  std::size_t left_out = 0;
  std::size_t too_large = 0;
  for (std::vector<std::size_t> const& row : rows) {
    candidate const& one = found.all[row.front()];
    bool const fits = one.gigabytes <= asked.memory_gb;
    bool const runs = one.cannot.empty();
    too_large += fits ? 0 : row.size();
    bool const show =
      asked.all || row.front() == *choice.pick ||
      (fits && runs && one.ranked >= found.all[*choice.pick].ranked * 0.999 && fit < most_rows) ||
      (fits && !runs && fit == 0 && refused < most_refused);
    if (!show) {
      left_out += fits && runs ? row.size() : 0;
      continue;
    }
    (runs ? fit : refused) += fits ? 1 : 0;
    std::string name;
    for (std::size_t const i : row)
      name += (name.empty() ? "" : " = ") + found.all[i].label;
    width = std::max(width, name.size());
    shown.push_back({row, std::move(name)});
  }
  std::string head = "schedule";
  head.resize(width, ' ');
  out += "\n  " + head + "    time s" + (asked.jitter > 0 ? "     95 %" : "") +
         "   gap %  bubble %  memory GB  tokens/s/GPU\n";
  for (auto& [row, name] : shown) {
    candidate const& one = found.all[row.front()];
    bool const frontier =
      std::find_first_of(row.begin(), row.end(), best.begin(), best.end()) != row.end();
    name.resize(width, ' ');
    out += row.front() == *choice.pick ? "> " : frontier ? "* " : "  ";
    out += name + cell(one.seconds, 3, 10);
    if (asked.jitter > 0)
      out += cell(one.ranked, 3, 9);
    out += cell(std::max(0.0, 100 * (one.seconds / one.bound - 1)), 1, 8) +
           cell(100 * one.bubble, 1, 10);
    out += cell(one.gigabytes, 1, 11) + cell(tokens_per_second(asked, one), 0, 14);
    out += !one.cannot.empty()                ? "  " + in_short(one.cannot) + "\n"
           : one.gigabytes <= asked.memory_gb ? "\n"
                                              : "  too large\n";
  }
  pp::append(out,
             "> the pick, * nothing is faster with less memory; gap: to the time that no order");
  pp::append(out, " of this placement and memory can beat\n");
  if (left_out > 0)
    pp::append(out, left_out, " more fit and are left out; --all shows them, and the frontier\n");
  if (too_large > 0)
    pp::append(out, too_large, " of ", found.all.size(), " do not fit\n");
}

//! Memory upwards, time to the right: one line per point of the frontier.
void append_frontier(std::string& out,
                     candidates const& found,
                     pp::memory_choice const& choice,
                     std::vector<std::size_t> const& best) {
  constexpr double columns = 48;
  double slowest = 0;
  for (std::size_t const i : best)
    slowest = std::max(slowest, found.all[i].ranked);
  out += "\nthe frontier, least memory first:\n";
  for (std::size_t const i : best) {
    candidate const& one = found.all[i];
    auto const length = static_cast<std::size_t>(columns * one.ranked / slowest);
    out += cell(one.gigabytes, 1, 8) + " GB |" + std::string(length, '#') +
           std::string(static_cast<std::size_t>(columns) - length, ' ') + "| " +
           rounded(one.ranked, 3) + " s  " + one.label + (i == choice.pick ? "  <" : "") + "\n";
  }
}

//! "16 8x2, 32": of each microbatch.
void append_groups(std::string& out, candidate const& pick) {
  out += "GPUs of the groups, microbatch by microbatch:";
  for (std::size_t m = 0; m < pick.groups.size(); ++m) {
    std::vector<gpu_group> const& groups = pick.groups[m];
    out += m > 0 ? "," : "";
    for (std::size_t i = 0, next = 0; i < groups.size(); i = next) {
      while (next < groups.size() && groups[next].gpus == groups[i].gpus)
        ++next;
      pp::append(out, " ", groups[i].gpus);
      if (next - i > 1)
        pp::append(out, "x", next - i);
    }
  }
  out += "; --format json has the sequences of each";
}

void append_layers(std::string& out, choose_command const& asked, candidate const& pick) {
  if (!pick.groups.empty())
    return append_groups(out, pick);
  if (std::count(pick.layers.begin(), pick.layers.end(), 0) ==
      static_cast<std::ptrdiff_t>(pick.layers.size())) {
    out += "layers are cut at their attention";
    return;
  }
  pp::append(out, "layers of the stages:");
  for (int const layers : pick.layers)
    pp::append(out, " ", layers);
  if (std::string const layout = layout_of(asked, pick); !layout.empty())
    pp::append(out, ", as a layout ", layout);
}

//! The pick, and how it stands to what else fits.
void append_pick(std::string& out,
                 choose_command const& asked,
                 candidates const& found,
                 candidate const& pick) {
  std::size_t fit = 0;
  std::size_t equal = 0;
  double fastest = pick.ranked;
  candidate const* second = nullptr;
  for (candidate const& each : found.all)
    if (each.gigabytes <= asked.memory_gb && each.cannot.empty())
      fastest = std::min(fastest, each.ranked);
  for (candidate const& each : found.all) {
    if (each.gigabytes > asked.memory_gb || !each.cannot.empty())
      continue;
    ++fit;
    bool const same = &each == &pick || (each.order == pick.order && each.seconds == pick.seconds &&
                                         each.layers == pick.layers);
    if (&each != &pick && each.ranked <= fastest * (1 + pp::memory_choice::equal))
      ++equal;
    else if (!same && (second == nullptr || each.ranked < second->ranked))
      second = &each;
  }
  pp::append(out, "\npick: ", pick.label, ", the fastest of ", fit, " that fit");
  if (equal > 0)
    pp::append(out, ", with the least memory of ", equal + 1, " as fast within 0.1 %");
  if (second != nullptr)
    pp::append(out, "; next is ", second->label, ", ");
  if (second != nullptr)
    out += per_cent(second->ranked / pick.ranked - 1) + " slower";
  out += "\n";
  out += std::string(pick.groups.empty() ? "no order of its placement and memory is"
                                         : "no groups for its microbatches are") +
         " more than " + per_cent(std::max(0.0, 1 - pick.bound / pick.seconds)) + " faster\n";
  if (pick.any_bound > 0)
    out += std::string(asked.keeps_cut() ? "no order of these stages"
                                         : "no cut, no placement and no order of the layers") +
           " on these devices is more than " +
           per_cent(std::max(0.0, 1 - pick.any_bound / pick.seconds)) + " faster\n";
}

//! Devices, layers and chunks of the pick.
void append_cut(std::string& out, choose_command const& asked, candidate const& pick) {
  if (!pick.places.empty()) {
    pp::append(out, "devices at the places of the pipeline:");
    for (int const device : pick.places)
      pp::append(out, " ", device);
    out += "\n";
  }
  append_layers(out, asked, pick);
  if (pick.chunk_lengths.size() > 1 && !asked.lengths.empty())
    pp::append(out, "; at most ", pick.chunk_lengths.front(), " tokens of a chunk");
  else if (pick.chunk_lengths.size() > 1) {
    pp::append(out, "; tokens of the chunks:");
    for (int const tokens : pick.chunk_lengths)
      pp::append(out, " ", tokens);
  }
  out += "\n";
  if (inner_modules(asked, pick).empty())
    return;
  std::vector<pp::stage_content> const content = content_of(asked, pick);
  out += "stages 0";
  for (std::size_t stage = 1; stage < content.size(); ++stage)
    if (content[stage].modules > 0 || (asked.model.tied && content[stage].output))
      pp::append(out, ", ", stage);
  out += " have the embedding: add up their gradients of it after each step, the plan does not\n";
}

//! What is known of the memory that it takes.
void append_memory(std::string& out,
                   choose_command const& asked,
                   candidates const& found,
                   candidate const& pick) {
  out += "memory: " + rounded(pick.gigabytes, 1) + " GB counted; ";
  if (std::optional<pp::band> const band = band_of(asked, pick))
    out += "published runs of its kind held " + rounded(band->least, 2) + " to " +
           rounded(band->most, 2) + " of the count, here " +
           rounded(pick.gigabytes * band->least, 1) + " to " +
           rounded(pick.gigabytes * band->most, 1) + " GB";
  else if (is_apart(pick.choice) || !pick.groups.empty())
    out += "of runs of its kind no memory is published";
  else if (pick.choice.has_shards())
    out += "of runs with a vocabulary in shards no memory is published";
  else
    out += "of runs that recompute or copy to the host nothing comparable is published";
  append_doubt(out, asked, found, pick);
  out += "\n";
  if (pick.host_gigabytes > 0)
    out += "on the host: " + rounded(pick.host_gigabytes, 1) + " GB for each GPU\n";
}

//! What chunks are good for.
//! @pre the pick has some
void append_chunks(std::string& out,
                   choose_command const& asked,
                   candidates const& found,
                   candidate const& pick) {
  if (!asked.measured)
    out += "chunks: published runs with 4 reached 0.88 to 0.93 of the predicted speed\n";
  candidate const* whole = nullptr;
  for (candidate const& each : found.all)
    if (each.gigabytes <= asked.memory_gb && each.extents.chunks == 1 && each.cannot.empty() &&
        each.choice.adapted != adapter::attention_exchange &&
        (whole == nullptr || each.ranked < whole->ranked))
      whole = &each;
  if (whole != nullptr)
    out += "with whole sequences: " + whole->label + ", " +
           per_cent(whole->ranked / pick.ranked - 1) + " slower by prediction, " +
           rounded(whole->gigabytes, 1) + " GB\n";
}

void append_reasons(std::string& out,
                    choose_command const& asked,
                    candidates const& found,
                    pp::memory_choice const& choice) {
  candidate const& pick = found.all[*choice.pick];
  append_pick(out, asked, found, pick);
  append_cut(out, asked, pick);
  append_memory(out, asked, found, pick);
  if (!asked.measured && asked.lengths.empty())
    out += "time: 74 % of 105 published runs took within 15 % of the prediction\n";
  if (pick.extents.chunks > 1)
    append_chunks(out, asked, found, pick);
  if (choice.faster) {
    candidate const& faster = found.all[*choice.faster];
    double const more = faster.gigabytes - asked.memory_gb;
    double const gain = 1 - faster.ranked / pick.ranked;
    out += "more memory: " + rounded(more, 1) + " GB more would buy " + per_cent(gain) + ", with " +
           faster.label + ": " + rounded(100 * gain / std::max(more, 1e-3), 2) + " % per GB\n";
  } else {
    out += "more memory buys nothing here\n";
  }
  candidate const& least = found.all[*choice.least];
  out += "least memory: " + rounded(least.gigabytes, 1) + " GB, with " + least.label + ", " +
         per_cent(least.ranked / pick.ranked - 1) + " slower\n";
}

//! A list of JSON behind what stands before it.
template <class Values, class Add>
void append_json_list(std::string& out,
                      std::string_view before,
                      Values const& values,
                      Add const& add) {
  pp::append(out, before, "[");
  for (std::size_t i = 0; i < values.size(); ++i) {
    out += i > 0 ? ", " : "";
    add(values[i]);
  }
  out += "]";
}

template <class Value>
void append_json_list(std::string& out, std::string_view before, std::vector<Value> const& values) {
  append_json_list(out, before, values, [&out](Value value) { pp::append(out, value); });
}

std::string json_of(choose_command const& asked,
                    candidates const& found,
                    pp::memory_choice const& choice,
                    std::vector<std::size_t> const& best) {
  std::string out = "{\"model\": \"";
  for (char const c : asked.model_name)
    out += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '_' : c;
  pp::append(out, "\", \"devices\": ", asked.devices, ", \"microbatches\": ", asked.microbatches);
  pp::append(out, ", \"memory_gb\": ", asked.memory_gb);
  pp::append(out, ", \"pick\": ", *choice.pick);
  append_json_list(out, ",\n \"frontier\": ", best);
  out += ",\n \"candidates\": [";
  for (std::size_t i = 0; i < found.all.size(); ++i) {
    candidate const& one = found.all[i];
    pp::append(out, i > 0 ? ",\n  " : "\n  ", "{\"schedule\": \"", one.label, "\"");
    pp::append(out, ", \"seconds\": ", one.seconds, ", \"ranked\": ", one.ranked);
    pp::append(out, ", \"bound\": ", one.bound, ", \"bubble_rate\": ", one.bubble);
    if (one.any_bound > 0)
      pp::append(out, ", \"any_bound\": ", one.any_bound);
    if (!one.places.empty())
      append_json_list(out, ", \"places\": ", one.places);
    if (!one.cannot.empty()) {
      out += ", \"cannot\": ";
      pp::append_quoted(out, one.cannot);
    }
    pp::append(out, ", \"memory_gb\": ", one.gigabytes);
    if (std::optional<pp::band> const band = band_of(asked, one))
      pp::append(out,
                 ", \"memory_least_gb\": ",
                 one.gigabytes * band->least,
                 ", \"memory_most_gb\": ",
                 one.gigabytes * band->most);
    append_json_list(out, ", \"layers\": ", one.layers);
    if (std::string const layout = layout_of(asked, one); !layout.empty())
      pp::append(out, ", \"layout\": \"", layout, "\"");
    append_json_list(out, ", \"chunk_lengths\": ", one.chunk_lengths);
    if (!one.groups.empty())
      append_json_list(
        out, ", \"groups\": ", one.groups, [&out](std::vector<gpu_group> const& groups) {
          append_json_list(out, "", groups, [&out](gpu_group const& group) {
            append_json_list(out,
                             "{\"gpus\": " + std::to_string(group.gpus) + ", \"sequences\": ",
                             group.sequences);
            out += "}";
          });
        });
    out += "}";
  }
  return out + "]}\n";
}

//! A candidate in the picture; the pick and the frontier have their names next to them.
void append_point(
  std::string& out, candidate const& one, double x, double y, bool chosen, bool front) {
  pp::append(out, "<circle cx=\"", rounded(x, 1), "\" cy=\"", rounded(y, 1), "\" r=\"");
  pp::append(out, chosen ? 6 : 4, "\" fill=\"");
  pp::append(out, chosen ? "#b03030" : front ? "#3060a0" : "#b0b0b0", "\"><title>");
  pp::append_xml(out, one.label);
  pp::append(out, ": ", rounded(one.ranked, 3), " s, ", rounded(one.gigabytes, 1));
  pp::append(out, " GB</title></circle>\n");
  if (!front && !chosen)
    return;
  pp::append(out, "<text x=\"", rounded(x + 8, 1), "\" y=\"", rounded(y - 6, 1), "\">");
  pp::append_xml(out, one.label);
  pp::append(out, "</text>\n");
}

std::string svg_of(choose_command const& asked,
                   candidates const& found,
                   pp::memory_choice const& choice,
                   std::vector<std::size_t> const& best) {
  constexpr double width = 860;
  constexpr double height = 420;
  constexpr double left = 70;
  constexpr double top = 40;
  double most_memory = asked.memory_gb;
  double least_time = found.all.front().ranked;
  double most_time = 0;
  for (candidate const& each : found.all) {
    most_memory = std::max(most_memory, each.gigabytes);
    least_time = std::min(least_time, each.ranked);
    most_time = std::max(most_time, each.ranked);
  }
  double const range = std::max(most_time - least_time, 1e-3 * most_time);
  auto const x = [&](double memory) { return left + width * memory / most_memory; };
  auto const y = [&](double time) { return top + height * (most_time - time) / range; };
  std::string out;
  pp::append(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"540\"");
  pp::append(out, " font-family=\"sans-serif\" font-size=\"12\">\n");
  pp::append(out, "<rect width=\"1000\" height=\"540\" fill=\"white\"/>\n<text x=\"70\" y=\"24\"");
  pp::append(out, " font-size=\"15\">");
  pp::append_xml(out, asked.model_name);
  pp::append(out, ": memory of a GPU in GB and time of a step in seconds</text>\n");
  auto const line = [&](double x1, double y1, double x2, double y2, char const* style) {
    pp::append(out, "<line x1=\"", rounded(x1, 1), "\" y1=\"", rounded(y1, 1), "\" x2=\"");
    pp::append(out, rounded(x2, 1), "\" y2=\"", rounded(y2, 1), "\" ", style, "/>\n");
  };
  line(left, top + height, left + width, top + height, "stroke=\"black\"");
  line(left, top, left, top + height, "stroke=\"black\"");
  line(x(asked.memory_gb),
       top,
       x(asked.memory_gb),
       top + height,
       "stroke=\"#b03030\" stroke-dasharray=\"4 3\"");
  for (int tick = 0; tick <= 4; ++tick) {
    double const memory = most_memory * tick / 4;
    double const time = least_time + range * tick / 4;
    pp::append(out, "<text x=\"", rounded(x(memory), 1), "\" y=\"480\" text-anchor=\"middle\">");
    pp::append(out, rounded(memory, 1), "</text>\n<text x=\"62\" y=\"", rounded(y(time) + 4, 1));
    pp::append(out, "\" text-anchor=\"end\">", rounded(time, 2), "</text>\n");
  }
  for (std::size_t k = 0; k + 1 < best.size(); ++k) {
    candidate const& a = found.all[best[k]];
    candidate const& b = found.all[best[k + 1]];
    line(x(a.gigabytes), y(a.ranked), x(b.gigabytes), y(b.ranked), "stroke=\"#3060a0\"");
  }
  for (std::size_t i = 0; i < found.all.size(); ++i) {
    candidate const& one = found.all[i];
    bool const chosen = i == choice.pick;
    bool const front = std::find(best.begin(), best.end(), i) != best.end();
    append_point(out, one, x(one.gigabytes), y(one.ranked), chosen, front);
  }
  return out + "</svg>\n";
}

} // namespace

std::string choose_report(choose_command const& asked, candidates& found) {
  if (found.all.empty())
    throw usage_error("choose: no schedule takes these sizes; the first refusal is " +
                      (found.refused.empty() ? std::string("missing") : found.refused.front()));
  improve_cuts(asked, found);
  pp::memory_choice const choice = choose_lowered(asked, found);
  std::vector<pp::choice_point> const points = points_of(found);
  if (!std::isfinite(points[*choice.least].time))
    throw usage_error("choose: no schedule can run that; the first says: " +
                      found.all.front().cannot);
  if (!choice.pick) {
    candidate const& least = found.all[*choice.least];
    throw usage_error("choose: nothing fits " +
                      rounded(asked.memory_gb, asked.memory_gb < 1 ? 6 : 2) +
                      " GB per GPU; the least is " + rounded(least.gigabytes, 1) + " GB, with " +
                      least.label + ": take that much, more devices or more tensor parallelism");
  }
  std::vector<std::size_t> const best = pp::frontier(points);
  if (asked.format == "json")
    return json_of(asked, found, choice, best);
  if (asked.format == "svg")
    return svg_of(asked, found, choice, best);
  if (asked.format == "header")
    return choose_header(asked, found.all[*choice.pick]);
  std::string out;
  append_heading(out, asked);
  append_table(out, asked, found, choice, best);
  if (asked.all)
    append_frontier(out, found, choice, best);
  append_reasons(out, asked, found, choice);
  return out;
}

void choose(std::span<char const* const> words) {
  choose_command const asked = read_choose_command(verbs::choose, words);
  candidates found = asked.lengths.empty() ? evaluate_all(asked) : evaluate_lengths(asked);
  std::string const text = choose_report(asked, found);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

} // namespace examples
