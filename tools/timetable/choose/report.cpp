// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What `timetable choose` prints.
#include "choose.hpp"

namespace examples {
namespace {

bool is_v(candidate const& one) {
  return one.extents.where == pp::placement::wave;
}

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

//! As it stands in a sentence.
std::string percentage(double share) {
  return rounded(100 * share, 1) + " %";
}

//! What published runs of a candidate's kind held over the count; nothing where none is published.
std::optional<pp::band> band_of(choose_command const& asked, candidate const& one) {
  if (is_apart(one.choice) || !one.groups.empty() || one.choice.adapted != adapter::none)
    return std::nullopt;
  return asked.predicted().memory_band(one.extents.chunks, is_v(one));
}

//! What there is to report.
struct reported {
  choose_command const& asked;
  candidates const& found;
  pp::memory_choice const& choice;
  std::vector<std::size_t> best = pp::frontier(points_of(found));

  [[nodiscard]] candidate const& pick() const { return found.all[*choice.pick]; }
  [[nodiscard]] bool fits(candidate const& one) const { return one.gigabytes <= asked.memory_gb; }
  [[nodiscard]] bool is_best(std::size_t i) const {
    return std::find(best.begin(), best.end(), i) != best.end();
  }
  //! Of those that can be run, or null.
  [[nodiscard]] candidate const* fastest(auto const& wanted) const {
    candidate const* result = nullptr;
    for (candidate const& each : found.all)
      if (each.cannot.empty() && wanted(each) &&
          (result == nullptr || each.ranked < result->ranked))
        result = &each;
    return result;
  }
  //! How much slower than the pick.
  [[nodiscard]] std::string slower(candidate const& one) const {
    return percentage(one.ranked / pick().ranked - 1) + " slower";
  }
};

//! How sure the pick is to fit, and the fastest one that is.
void append_doubt(std::string& out, reported const& all) {
  if (surely_fits(all.asked, all.pick()))
    return;
  candidate const* const sure =
    all.fastest([&](candidate const& each) { return surely_fits(all.asked, each); });
  out += "; not sure to fit ";
  out += sure == nullptr ? "(nothing is)"
                         : "(sure: " + sure->label + ", " + rounded(sure->gigabytes, 1) + " GB, " +
                             all.slower(*sure) + ")";
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
    pp::append(out, ", ", asked.microbatches, " microbatches of ", asked.setup.sequences, " x ");
  else
    pp::append(
      out, ", ", asked.lengths.size(), " sequences, ", asked.tokens(), " tokens, the longest ");
  pp::append(out, asked.setup.sequence, asked.lengths.empty() ? " tokens, " : ", ");
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
std::vector<std::vector<std::size_t>> rows_of(reported const& all) {
  std::vector<candidate> const& found = all.found.all;
  std::vector<std::vector<std::size_t>> rows;
  auto const same = [&](std::size_t a, std::size_t b) {
    candidate const& one = found[a];
    candidate const& other = found[b];
    return one.order != 0 && one.order == other.order && one.layers == other.layers &&
           one.extents == other.extents && one.gigabytes == other.gigabytes &&
           one.seconds == other.seconds && one.cannot.empty() == other.cannot.empty();
  };
  auto const every = [](candidate const&) { return true; };
  for (std::size_t const i : numbers_of(all.found, every, &candidate::ranked)) {
    auto row = rows.rbegin(); // as fast ones stand next to each other
    while (row != rows.rend() && found[row->front()].ranked == found[i].ranked &&
           !same(row->front(), i))
      ++row;
    if (row == rows.rend() || found[row->front()].ranked != found[i].ranked)
      rows.push_back({i});
    else
      row->insert(i == all.choice.pick ? row->begin() : row->end(), i);
  }
  return rows;
}

//! The pick and the three next best of what fits, with what of the faster ones cannot be run; or
//! all.
void append_table(std::string& out, reported const& all) {
  constexpr std::size_t most_rows = 4;
  constexpr std::size_t most_refused = 3;
  std::vector<std::pair<std::vector<std::size_t>, std::string>> shown;
  std::size_t width = 8;
  std::size_t fit = 0;
  std::size_t refused = 0;
  std::size_t left_out = 0;
  std::size_t too_large = 0;
  for (std::vector<std::size_t> const& row : rows_of(all)) {
    candidate const& one = all.found.all[row.front()];
    bool const fits = all.fits(one);
    bool const runs = one.cannot.empty();
    too_large += fits ? 0 : row.size();
    bool const show =
      all.asked.all || row.front() == *all.choice.pick ||
      (fits && runs && one.ranked >= all.pick().ranked * 0.999 && fit < most_rows) ||
      (fits && !runs && fit == 0 && refused < most_refused);
    if (!show) {
      left_out += fits && runs ? row.size() : 0;
      continue;
    }
    (runs ? fit : refused) += fits ? 1 : 0;
    std::string name;
    for (std::size_t const i : row)
      name += (name.empty() ? "" : " = ") + all.found.all[i].label;
    width = std::max(width, name.size());
    shown.push_back({row, std::move(name)});
  }
  bool const varies = all.asked.jitter > 0;
  std::string head = "schedule";
  head.resize(width, ' ');
  out += "\n  " + head + "    time s" + (varies ? "     95 %" : "") +
         "   gap %  bubble %  memory GB  tokens/s/GPU\n";
  for (auto& [row, name] : shown) {
    candidate const& one = all.found.all[row.front()];
    bool const best = std::ranges::any_of(row, [&](std::size_t i) { return all.is_best(i); });
    double const tokens_per_second =
      all.asked.tokens() / one.seconds / all.asked.devices / all.asked.setup.tensor;
    name.resize(width, ' ');
    out += row.front() == *all.choice.pick ? "> " : best ? "* " : "  ";
    out += name + cell(one.seconds, 3, 10) + (varies ? cell(one.ranked, 3, 9) : "") +
           cell(std::max(0.0, 100 * (one.seconds / one.bound - 1)), 1, 8) +
           cell(100 * one.bubble, 1, 10) + cell(one.gigabytes, 1, 11) +
           cell(tokens_per_second, 0, 14);
    out += !one.cannot.empty() ? "  " + in_short(one.cannot) + "\n"
           : all.fits(one)     ? "\n"
                               : "  too large\n";
  }
  out += "> the pick, * nothing is faster with less memory; gap: to the time that no order of this "
         "placement and memory can beat\n";
  if (left_out > 0)
    pp::append(out, left_out, " more fit and are left out; --all shows them, and the frontier\n");
  if (too_large > 0)
    pp::append(out, too_large, " of ", all.found.all.size(), " do not fit\n");
}

//! Memory upwards, time to the right: one line per point of the frontier.
void append_frontier(std::string& out, reported const& all) {
  constexpr double columns = 48;
  double slowest = 0;
  for (std::size_t const i : all.best)
    slowest = std::max(slowest, all.found.all[i].ranked);
  out += "\nthe frontier, least memory first:\n";
  for (std::size_t const i : all.best) {
    candidate const& one = all.found.all[i];
    auto const length = static_cast<std::size_t>(columns * one.ranked / slowest);
    out += cell(one.gigabytes, 1, 8) + " GB |" + std::string(length, '#') +
           std::string(static_cast<std::size_t>(columns) - length, ' ') + "| " +
           rounded(one.ranked, 3) + " s  " + one.label + (i == all.choice.pick ? "  <" : "") + "\n";
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

//! Numbers, each after a blank.
void append_numbers(std::string& out, std::string_view before, std::vector<int> const& numbers) {
  out += before;
  for (int const each : numbers)
    pp::append(out, " ", each);
}

void append_layers(std::string& out, choose_command const& asked, candidate const& pick) {
  if (!pick.groups.empty())
    return append_groups(out, pick);
  if (std::ranges::all_of(pick.layers, [](int layers) { return layers == 0; })) {
    out += "layers are cut at their attention";
    return;
  }
  append_numbers(out, "layers of the stages:", pick.layers);
  if (std::string const layout = layout_of(asked, pick); !layout.empty())
    pp::append(out, ", as a layout ", layout);
}

//! The pick, and how it stands to what else fits.
void append_pick(std::string& out, reported const& all) {
  candidate const& pick = all.pick();
  double const fastest = all.fastest([&](candidate const& each) { return all.fits(each); })->ranked;
  std::size_t fit = 0;
  std::size_t equal = 0;
  auto const is_equal = [&](candidate const& each) {
    return &each != &pick && each.ranked <= fastest * (1 + pp::memory_choice::equal);
  };
  for (candidate const& each : all.found.all)
    if (all.fits(each) && each.cannot.empty()) {
      ++fit;
      equal += is_equal(each) ? 1 : 0;
    }
  candidate const* const second = all.fastest([&](candidate const& each) {
    return all.fits(each) && !is_equal(each) && &each != &pick &&
           !(each.order == pick.order && each.seconds == pick.seconds &&
             each.layers == pick.layers);
  });
  pp::append(out, "\npick: ", pick.label, ", the fastest of ", fit, " that fit");
  if (equal > 0)
    pp::append(out, ", with the least memory of ", equal + 1, " as fast within 0.1 %");
  if (second != nullptr)
    pp::append(out, "; next is ", second->label, ", ", all.slower(*second));
  auto const beaten = [&](double bound) {
    return " more than " + percentage(std::max(0.0, 1 - bound / pick.seconds)) + " faster\n";
  };
  out += pick.groups.empty() ? "\nno order of its placement and memory is"
                             : "\nno groups for its microbatches are";
  out += beaten(pick.bound);
  if (pick.any_bound > 0)
    out += std::string(all.asked.keeps_cut() ? "no order of these stages"
                                             : "no cut, no placement and no order of the layers") +
           " on these devices is" + beaten(pick.any_bound);
}

//! Devices, layers and chunks of the pick.
void append_cut(std::string& out, choose_command const& asked, candidate const& pick) {
  if (!pick.places.empty()) {
    append_numbers(out, "devices at the places of the pipeline:", pick.places);
    out += "\n";
  }
  append_layers(out, asked, pick);
  if (pick.chunk_lengths.size() > 1 && !asked.lengths.empty())
    pp::append(out, "; at most ", pick.chunk_lengths.front(), " tokens of a chunk");
  else if (pick.chunk_lengths.size() > 1)
    append_numbers(out, "; tokens of the chunks:", pick.chunk_lengths);
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
void append_memory(std::string& out, reported const& all) {
  candidate const& pick = all.pick();
  out += "memory: " + rounded(pick.gigabytes, 1) + " GB counted; ";
  if (std::optional<pp::band> const band = band_of(all.asked, pick))
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
  append_doubt(out, all);
  out += "\n";
  if (pick.host_gigabytes > 0)
    out += "on the host: " + rounded(pick.host_gigabytes, 1) + " GB for each GPU\n";
}

//! What chunks are good for.
//! @pre the pick has some
void append_chunks(std::string& out, reported const& all) {
  if (!all.asked.measured)
    out += "chunks: published runs with 4 reached 0.88 to 0.93 of the predicted speed\n";
  candidate const* const whole = all.fastest([&](candidate const& each) {
    return all.fits(each) && each.extents.chunks == 1 &&
           each.choice.adapted != adapter::attention_exchange;
  });
  if (whole != nullptr)
    out += "with whole sequences: " + whole->label + ", " + all.slower(*whole) +
           " by prediction, " + rounded(whole->gigabytes, 1) + " GB\n";
}

void append_reasons(std::string& out, reported const& all) {
  candidate const& pick = all.pick();
  append_pick(out, all);
  append_cut(out, all.asked, pick);
  append_memory(out, all);
  if (!all.asked.measured && all.asked.lengths.empty())
    out += "time: 74 % of 105 published runs took within 15 % of the prediction\n";
  if (pick.extents.chunks > 1)
    append_chunks(out, all);
  if (all.choice.faster) {
    candidate const& faster = all.found.all[*all.choice.faster];
    double const more = faster.gigabytes - all.asked.memory_gb;
    double const gain = 1 - faster.ranked / pick.ranked;
    out += "more memory: " + rounded(more, 1) + " GB more would buy " + percentage(gain) +
           ", with " + faster.label + ": " + rounded(100 * gain / std::max(more, 1e-3), 2) +
           " % per GB\n";
  } else {
    out += "more memory buys nothing here\n";
  }
  candidate const& least = all.found.all[*all.choice.least];
  out += "least memory: " + rounded(least.gigabytes, 1) + " GB, with " + least.label + ", " +
         all.slower(least) + "\n";
}

//! A number, a list or a group as JSON.
std::string as_json(auto const& value) {
  return text_of(value);
}
std::string as_json(gpu_group const& group);
template <class Value>
std::string as_json(std::vector<Value> const& values) {
  std::string out = "[";
  for (Value const& each : values)
    out += (out.size() > 1 ? ", " : "") + as_json(each);
  return out + "]";
}
std::string as_json(gpu_group const& group) {
  return text_of("{\"gpus\": ", group.gpus, ", \"sequences\": ", as_json(group.sequences), "}");
}

std::string json_of(reported const& all) {
  choose_command const& asked = all.asked;
  std::string out = "{\"model\": \"";
  for (char const c : asked.model_name)
    out += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '_' : c;
  pp::append(out, "\", \"devices\": ", asked.devices, ", \"microbatches\": ", asked.microbatches);
  pp::append(out, ", \"memory_gb\": ", asked.memory_gb, ", \"pick\": ", *all.choice.pick);
  out += ",\n \"frontier\": " + as_json(all.best);
  out += ",\n \"candidates\": [";
  for (candidate const& one : all.found.all) {
    out += &one == all.found.all.data() ? "\n  " : ",\n  ";
    pp::append(out, "{\"schedule\": \"", one.label, "\"");
    pp::append(out, ", \"seconds\": ", one.seconds, ", \"ranked\": ", one.ranked);
    pp::append(out, ", \"bound\": ", one.bound, ", \"bubble_rate\": ", one.bubble);
    if (one.any_bound > 0)
      pp::append(out, ", \"any_bound\": ", one.any_bound);
    if (!one.places.empty())
      out += ", \"places\": " + as_json(one.places);
    if (!one.cannot.empty()) {
      out += ", \"cannot\": ";
      pp::append_quoted(out, one.cannot);
    }
    pp::append(out, ", \"memory_gb\": ", one.gigabytes);
    if (std::optional<pp::band> const band = band_of(asked, one)) {
      pp::append(out, ", \"memory_least_gb\": ", one.gigabytes * band->least);
      pp::append(out, ", \"memory_most_gb\": ", one.gigabytes * band->most);
    }
    out += ", \"layers\": " + as_json(one.layers);
    if (std::string const layout = layout_of(asked, one); !layout.empty())
      pp::append(out, ", \"layout\": \"", layout, "\"");
    out += ", \"chunk_lengths\": " + as_json(one.chunk_lengths);
    if (!one.groups.empty())
      out += ", \"groups\": " + as_json(one.groups);
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

std::string svg_of(reported const& all) {
  constexpr double left = 70, top = 40, right = left + 860, bottom = top + 420;
  std::vector<candidate> const& found = all.found.all;
  double most_memory = all.asked.memory_gb;
  double least_time = found.front().ranked;
  double most_time = 0;
  for (candidate const& each : found) {
    most_memory = std::max(most_memory, each.gigabytes);
    least_time = std::min(least_time, each.ranked);
    most_time = std::max(most_time, each.ranked);
  }
  double const range = std::max(most_time - least_time, 1e-3 * most_time);
  auto const x = [&](double memory) { return left + (right - left) * memory / most_memory; };
  auto const y = [&](double time) { return top + (bottom - top) * (most_time - time) / range; };
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"540\" "
                    "font-family=\"sans-serif\" font-size=\"12\">\n"
                    "<rect width=\"1000\" height=\"540\" fill=\"white\"/>\n"
                    "<text x=\"70\" y=\"24\" font-size=\"15\">";
  pp::append_xml(out, all.asked.model_name);
  out += ": memory of a GPU in GB and time of a step in seconds</text>\n";
  auto const line = [&](double x1, double y1, double x2, double y2, char const* style) {
    pp::append(out, "<line x1=\"", rounded(x1, 1), "\" y1=\"", rounded(y1, 1), "\" x2=\"");
    pp::append(out, rounded(x2, 1), "\" y2=\"", rounded(y2, 1), "\" ", style, "/>\n");
  };
  line(left, bottom, right, bottom, "stroke=\"black\"");
  line(left, top, left, bottom, "stroke=\"black\"");
  double const limit = x(all.asked.memory_gb);
  line(limit, top, limit, bottom, "stroke=\"#b03030\" stroke-dasharray=\"4 3\"");
  for (int tick = 0; tick <= 4; ++tick) {
    double const memory = most_memory * tick / 4;
    double const time = least_time + range * tick / 4;
    pp::append(out, "<text x=\"", rounded(x(memory), 1), "\" y=\"480\" text-anchor=\"middle\">");
    pp::append(out, rounded(memory, 1), "</text>\n<text x=\"62\" y=\"", rounded(y(time) + 4, 1));
    pp::append(out, "\" text-anchor=\"end\">", rounded(time, 2), "</text>\n");
  }
  for (std::size_t k = 0; k + 1 < all.best.size(); ++k) {
    candidate const& a = found[all.best[k]];
    candidate const& b = found[all.best[k + 1]];
    line(x(a.gigabytes), y(a.ranked), x(b.gigabytes), y(b.ranked), "stroke=\"#3060a0\"");
  }
  for (std::size_t i = 0; i < found.size(); ++i)
    append_point(out,
                 found[i],
                 x(found[i].gigabytes),
                 y(found[i].ranked),
                 i == all.choice.pick,
                 all.is_best(i));
  return out + "</svg>\n";
}

} // namespace

bool surely_fits(choose_command const& asked, candidate const& one) {
  pp::band const band = asked.predicted().memory_band(one.extents.chunks, is_v(one));
  return one.gigabytes * band.most <= asked.memory_gb;
}

std::string choose_report(choose_command const& asked, candidates& found) {
  if (found.all.empty())
    throw usage_error("choose: no schedule takes these sizes; the first refusal is " +
                      (found.refused.empty() ? std::string("missing") : found.refused.front()));
  improve_cuts(asked, found);
  pp::memory_choice const choice = choose_lowered(asked, found);
  candidate const& least = found.all[*choice.least];
  if (!least.cannot.empty())
    throw usage_error("choose: no schedule can run that; the first says: " +
                      found.all.front().cannot);
  if (!choice.pick)
    throw usage_error("choose: nothing fits " +
                      rounded(asked.memory_gb, asked.memory_gb < 1 ? 6 : 2) +
                      " GB per GPU; the least is " + rounded(least.gigabytes, 1) + " GB, with " +
                      least.label + ": take that much, more devices or more tensor parallelism");
  reported const all{asked, found, choice};
  if (asked.format == "json")
    return json_of(all);
  if (asked.format == "svg")
    return svg_of(all);
  if (asked.format == "header")
    return choose_header(asked, all.pick());
  std::string out;
  append_heading(out, asked);
  append_table(out, all);
  if (asked.all)
    append_frontier(out, all);
  append_reasons(out, all);
  return out;
}

void choose(std::span<char const* const> words) {
  choose_command const asked = read_choose_command(verbs::choose, words);
  candidates found = evaluate_all(asked);
  std::string const text = choose_report(asked, found);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

} // namespace examples
