// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/thread_workers.hpp>

#include "tools/timetable/files.hpp"
#include "tools/timetable/make.hpp"
#include "tools/timetable/markdown_table.hpp"
#include "tools/timetable/progress_line.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

//! Schedules of one pipeline, and what became of them.
struct group {
  std::vector<pp::device_orders> starts;
  any_cost cost = pp::uniform_cost{};
  pp::uniform_cost mean;    //!< of one stage and chunk
  int limit = 0;            //!< chunks of activations
  std::vector<double> room; //!< in place of that: bytes, by device
  pp::stage_memory memory;  //!< and those of the stages
  std::string best_name;    //!< of the starts that keep the limit
  double best_start = HUGE_VAL;
  pp::found_order found; //!< the best start, until it is searched
  bool searched = false;
  pp::found_order current; //!< where the search is; it may have begun anew since the best
  std::int64_t length = 0; //!< moves of its next look
  int idle = most_idle;    //!< looks in a row that found nothing shorter

  static constexpr int most_idle = 2; //!< until it begins anew

  [[nodiscard]] pp::shape const& extents() const { return starts.front().over.extents; }
  [[nodiscard]] bool has_order() const { return !found.table.passes.empty(); }
};

std::string describe(pp::shape const& extents) {
  std::string text;
  if (extents.where == pp::placement::bidirectional) {
    text = "from both ends";
  } else {
    pp::append(
      text, extents.stages_per_device, extents.stages_per_device == 1 ? " stage" : " stages");
    if (extents.where == pp::placement::wave)
      text += extents.stages_per_device == 2 ? " in a V" : " in waves";
  }
  if (extents.chunks > 1)
    pp::append(text, ", ", extents.chunks, " chunks");
  return text;
}

bool keeps_limit(group const& mine, pp::timetable_view table) {
  if (mine.room.empty())
    return pp::peak_activations(table).numerator <= mine.limit; // in chunks
  std::vector<double> const held = pp::device_bytes(table, mine.memory);
  return std::equal(held.begin(), held.end(), mine.room.begin(), std::less_equal<>());
}

//! A schedule with what a device may hold: in bytes, or the least that has extents.
schedule_choice limited_choice(command const& asked, std::string const& name) {
  schedule_choice choice = choice_for(asked.choice, name);
  if (!has(find_schedule(name).takes, option::memory_limit))
    return choice;
  choice.memory_limit = asked.search.room.empty() ? asked.search.memory : asked.choice.devices;
  pp::shape const extents = arrange(choice);
  if (asked.search.room.empty())
    choice.memory_limit = asked.search.memory * extents.stages_per_device;
  give_room(asked, extents, choice);
  return choice;
}

//! Enters a schedule into the group of its pipeline.
void add_start(std::vector<group>& groups,
               command const& asked,
               std::string const& name,
               std::optional<pp::shape> const& wanted) {
  schedule_choice const choice = limited_choice(asked, name);
  pp::shape const extents = arrange(choice);
  if (wanted && extents != *wanted)
    return;
  if (extents.where == pp::placement::custom) // what is found becomes a type with a named one
    throw std::invalid_argument(name + " places its stages itself");
  check_size(extents, asked.format);
  double const pieces = pieces_of_share(extents);
  pp::uniform_cost mean{asked.cost.forward / pieces,
                        asked.cost.backward_input / pieces,
                        asked.cost.backward_weight / pieces,
                        asked.cost.communication};
  any_cost cost = mean;
  if (asked.measured) {
    pp::cost_table const costs = costs_of_stages(asked, extents);
    mean = mean_of(costs, extents);
    cost = costs;
  }
  pp::device_orders orders = plain_orders(choice, cost);
  if (orders.over.declared != pp::training)
    return;
  bool const halves =
    std::any_of(orders.passes.begin(), orders.passes.end(), [](pp::pass const& p) {
      return p.kind == pp::pass_kind::backward_input;
    });
  if (halves && asked.search.whole_backward)
    return;
  auto const same = std::find_if(groups.begin(), groups.end(), [&orders](group const& each) {
    return each.extents() == orders.over.extents &&
           each.starts.front().over.holders == orders.over.holders &&
           each.starts.front().over.first_units == orders.over.first_units;
  });
  group& mine = same != groups.end() ? *same : groups.emplace_back();
  mine.cost = cost;
  mine.mean = mean;
  mine.limit = static_cast<int>(asked.search.memory * pieces_of_share(extents) + 1e-9);
  mine.room = asked.search.room;
  if (!mine.room.empty())
    mine.memory = pp::memory_for(*asked.measured, extents);
  mine.starts.push_back(orders);
  // Made as the schedule is, with pairs and whole backward passes.
  pp::dynamic_timetable table = pp::simulate(std::move(orders), cost);
  if (double const time = pp::detail::time_of(table, asked.search.goal);
      keeps_limit(mine, table) && time < mine.best_start) {
    mine.best_start = time;
    mine.best_name = name;
    mine.found = {std::move(table), time, 0, time, 0};
  }
}

std::vector<group> make_groups(command const& asked, progress_line& line) {
  std::vector<group> groups;
  std::string refusal;
  std::optional<pp::shape> wanted; // all, without a schedule to be like
  if (!asked.search.like.empty())
    wanted = arrange(limited_choice(asked, asked.search.like));
  for (named_schedule const& schedule : named_schedules())
    try {
      line.say("making " + std::string(schedule.name));
      add_start(groups, asked, std::string(schedule.name), wanted);
    } catch (std::invalid_argument const& error) {
      refusal = error.what(); // this schedule cannot have these extents or this limit
    }
  // What holds less than one microbatch can hold nothing.
  std::erase_if(groups, [](group const& each) { return each.room.empty() && each.limit < 1; });
  if (groups.empty())
    throw usage_error("search: no schedule has these extents: " + refusal);
  return groups;
}

//! The shortest order of a small pipeline, if that can be proven; else its bound.
void prove(group& one) {
  constexpr std::size_t most_states = std::size_t{1} << 18; // about a second
  pp::exact_order order;
  try {
    order = pp::shortest_order(
      one.extents(), one.cost, {.memory_limit = one.limit, .most_states = most_states});
  } catch (std::invalid_argument const&) {
    return; // it is too large, or its times are no multiples of a thousandth
  }
  one.found.bound = std::max(one.found.bound, std::min(order.bound, one.found.time));
  if (!order.optimal || order.makespan >= one.found.time * (1 - 1e-9))
    return;
  one.found.table = pp::simulate(order.passes(one.extents()), one.cost);
  one.found.time = pp::makespan(one.found.table);
}

//! Searches in turn where something may be left to find, ever longer.
class alternation {
public:
  alternation(std::vector<group>& groups, command const& asked, progress_line& line)
      : groups_(groups), asked_(asked), line_(line) {}

  void run() {
    std::stable_sort(groups_.begin(), groups_.end(), [](group const& a, group const& b) {
      return a.best_start < b.best_start;
    });
    for (group& each : groups_)
      if (line_.time_left())
        (void)look(each, true, std::max<std::int64_t>(20000, 40 * passes_of(each)), 0);
    if (asked_.search.goal == pp::search_goal::makespan && !asked_.search.whole_backward)
      for (group& each : groups_)
        if (line_.time_left() && each.has_order() && each.room.empty() && !each.found.proven() &&
            each.found.bound < best()) {
          line_.say(describe(each.extents()) + ": proving");
          prove(each);
        }
    // Where nothing keeps the limit there is nothing to say.
    std::erase_if(groups_, [](group const& each) { return each.searched && !each.has_order(); });
    for (std::uint64_t round = 1; !groups_.empty() && !ended(); ++round) {
      std::vector<group*> open = open_groups();
      if (open.empty())
        return;
      // Two rounds of three go to the best.
      std::size_t const turn = round % 3 == 0 ? (round / 3) % open.size() : 0;
      go_on(*open[turn], round);
    }
  }
  [[nodiscard]] std::int64_t moves() const noexcept { return moves_; }
  //! Why the last pipeline that was refused was.
  [[nodiscard]] std::string const& reason() const noexcept { return reason_; }

private:
  static std::int64_t passes_of(group const& each) {
    return static_cast<std::int64_t>(each.starts.front().passes.size());
  }
  [[nodiscard]] bool ended() const {
    return !line_.time_left() || (asked_.search.moves > 0 && moves_ >= asked_.search.moves);
  }
  [[nodiscard]] double best() const {
    double least = HUGE_VAL;
    for (group const& each : groups_)
      if (each.has_order())
        least = std::min(least, each.found.time);
    return least;
  }
  //! Those that may become the best, the best of them first.
  std::vector<group*> open_groups() {
    std::vector<group*> open;
    for (group& each : groups_)
      if (each.has_order() && !each.found.proven() && each.found.bound < best() * (1 - 1e-9))
        open.push_back(&each);
    std::stable_sort(open.begin(), open.end(), [](group const* a, group const* b) {
      return a->found.time < b->found.time;
    });
    return open;
  }

  //! Searches on from where it is, longer where nothing shorter was found. Begins anew where that
  //! was in vain twice: an order that does not get shorter may be far from the best.
  void go_on(group& each, std::uint64_t round) {
    bool const anew = each.idle >= group::most_idle;
    if (anew)
      each.length = 1200 * passes_of(each);
    std::optional<pp::found_order> found = look(each, anew, each.length, round);
    if (!found)
      return;
    bool const shorter = anew || found->time < each.current.time;
    each.idle = shorter ? 0 : each.idle + 1;
    if (!shorter)
      each.length = std::min(2 * each.length, 4800 * passes_of(each));
    each.current = std::move(*found);
  }

  //! Searches anew, from the orders of all schedules and own ones, or on from where it is.
  //! @return what was found; nothing where nothing keeps the limit, or did in this time
  std::optional<pp::found_order>
  look(group& each, bool anew, std::int64_t moves, std::uint64_t round) {
    pp::found_order::options options{.memory_limit =
                                       each.room.empty() ? each.limit : pp::detail::unlimited,
                                     .room = each.room,
                                     .memory = each.memory,
                                     .goal = asked_.search.goal,
                                     .split_backward = !asked_.search.whole_backward,
                                     .seed = asked_.search.seed + 1000 * round,
                                     .most_moves = moves,
                                     .own_starts = anew};
    if (asked_.search.moves > 0)
      options.most_moves = std::min(moves, std::max<std::int64_t>(1, asked_.search.moves - moves_));
    std::string const where = describe(each.extents());
    double const others = best();
    std::vector<pp::device_orders> current;
    if (pp::dynamic_timetable const& at = each.current.table; !anew)
      current.push_back({at.over, at.passes, at.offsets});
    try {
      pp::found_order found =
        pp::search_order(std::span<pp::device_orders const>(anew ? each.starts : current),
                         each.cost,
                         options,
                         [&](pp::found_order::progress const& at) {
                           std::string text = where;
                           pp::append(text, ": ", moves_ + at.moves, " moves");
                           if (double const least = std::min(at.best, others); least < HUGE_VAL)
                             text += ", best " + rounded(least, 3);
                           line_.say(text);
                           return line_.time_left();
                         });
      moves_ += found.moves;
      found.bound = std::max(found.bound, each.found.bound);
      if (!each.searched || found.time < each.found.time)
        each.found = found;
      each.searched = true;
      return found;
    } catch (std::invalid_argument const& error) {
      each.searched = line_.time_left();
      reason_ = error.what();
      return {};
    }
  }

  std::vector<group>& groups_;
  command const& asked_;
  progress_line& line_;
  std::int64_t moves_ = 0;
  std::string reason_;
};

std::string shown(double value) {
  return rounded(value, value < 1 ? 6 : 3); // measured ones are in seconds
}

std::string report_of(command const& asked, std::vector<group> const& groups, group const& best) {
  std::string out = describe_setting(asked);
  if (asked.search.room.empty())
    pp::append(
      out, "a device holds at most ", asked.search.memory, " microbatches of its share\n\n");
  else
    pp::append(out, "a device holds at most ", asked.search.room_text, "\n\n");
  std::vector<std::vector<std::string>> rows{
    {"pipeline", "best schedule", "its", "found", "no order takes less than"}};
  rows[0][2] += asked.search.goal == pp::search_goal::span ? " span" : " makespan";
  for (group const& each : groups)
    rows.push_back({describe(each.extents()),
                    each.best_name.empty() ? "none fits" : each.best_name,
                    each.best_name.empty() ? "" : shown(each.best_start),
                    each.searched ? shown(each.found.time) : "no time to search",
                    each.searched ? shown(each.found.bound) : "unknown"});
  out += aligned(rows, 2);
  pp::append(out, "\nfound: ", describe(best.extents()), ", ", shown(best.found.time));
  double least = best.found.bound; // 0 where a pipeline was not searched
  for (group const& each : groups)
    least = std::min(least, each.found.bound);
  double const first =
    std::min_element(groups.begin(), groups.end(), [](group const& a, group const& b) {
      return a.best_start < b.best_start;
    })->best_start;
  if (first < HUGE_VAL && best.found.time < first * (1 - 1e-9))
    pp::append(out, ", ", shown(100 * (1 - best.found.time / first)), " % below the best schedule");
  if (best.found.time <= least * (1 + 1e-9))
    out += "; proven, no order on any of these pipelines takes less";
  else if (least > 0)
    pp::append(
      out, "; at most ", shown(100 * (best.found.time / least - 1)), " % above what is possible");
  return out + "\n\n";
}

//! The words that give the same order anywhere.
std::string call_of(command const& asked, std::int64_t moves) {
  pp::uniform_cost const& given = asked.layout.text.empty() ? asked.cost : asked.layout.layer;
  std::string out = "timetable search --devices ";
  pp::append(out, asked.choice.devices, " --microbatches ", asked.choice.microbatches);
  pp::append(out, " --memory ", asked.search.room_text);
  if (asked.search.room.empty())
    pp::append(out, asked.search.memory);
  pp::append(out, " --cost ", asked.cost_file);
  if (asked.cost_file.empty()) {
    pp::append(out, given.forward, ",", given.backward_input, ",", given.backward_weight);
    pp::append(out, ",", given.communication);
  }
  if (stage_layout const& layout = asked.layout; !layout.text.empty()) {
    pp::append(out, " --layout \"", layout.text, "\" --parts ", layout.embedding);
    pp::append(out, ",", layout.module, ",", layout.output);
  }
  pp::append(out, " --seed ", asked.search.seed, " --moves ", moves);
  if (asked.search.goal == pp::search_goal::span)
    out += " --goal span";
  if (asked.search.whole_backward)
    out += " --whole-backward";
  if (!asked.search.like.empty())
    out += " --like " + asked.search.like;
  return out;
}

//! In the order of `placement`; search and choose have none without a name.
constexpr char const* placements[] = {"looped", "wave", "bidirectional"};

//! The order as a C++ type, with its plan.
//! @param call the words that it follows from
std::string header_of(std::string const& call, group const& found) {
  std::string out = "// An order that `timetable search` found";
  pp::append(out, ": ", call, ".\n");
  out +=
    "#pragma once\n\n#include <pipe/pipe.hpp>\n\n#include <stdexcept>\n\nnamespace found {\n\n";
  append_order_type(out, found.found.table);
  pp::uniform_cost const& cost = found.mean;
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
  pp::append(out, ", pipelining::placement::", placements[static_cast<int>(extents.where)], "};\n");
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

void search(std::span<char const* const> words) {
  command const asked = read_command_line(verbs::search, words);
  progress_line line(asked.search.moves > 0 ? 1e9 : asked.search.seconds);
  std::vector<group> groups = make_groups(asked, line);
  alternation turns(groups, asked, line);
  turns.run();
  line.end();
  auto const by_time = [](group const& a, group const& b) {
    return a.has_order() && (!b.has_order() || a.found.time < b.found.time);
  };
  if (groups.empty())
    throw usage_error("search: no order keeps the memory limit; " +
                      (asked.search.room.empty()
                         ? "a microbatch of a device's share takes --memory 1"
                         : turns.reason()));
  group const& best = *std::min_element(groups.begin(), groups.end(), by_time);
  if (!best.has_order())
    throw usage_error("search: no order that keeps the memory limit was found in this time; allow "
                      "more --seconds or --memory");
  static_cast<void>(
    pp::lower(best.found.table, asked.sizes, {}, pp::thread_workers())); // proves it
  standard_output out{asked.output};
  if (asked.format == "header")
    return out.append(header_of(call_of(asked, std::max<std::int64_t>(1, turns.moves())), best));
  if (asked.format == "text")
    out.append(report_of(asked, groups, best));
  write(out, asked, {"search", best.found.table, best.mean, best.cost});
}

} // namespace examples
