// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Measured costs of a cut, for other cuts and as a file. Header for pipelining::cut_costs,
//! costs_for, write_costs and read_costs.
//!
//! The file is one JSON object; docs/timetable.md shows it.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/limits.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/model/flat_json.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/planner/model/stage_memory.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The times of a model that is cut into stages, its sequences into chunks.
struct cut_costs {
  int stages = 1;   //!< S, equal shares of the layers
  int chunks = 1;   //!< C, equal shares of a sequence
  cost_table times; //!< of that cut, in one unit, perhaps by microbatch; runners measure seconds
  std::vector<detail::measured_link> links{}; //!< where messages between devices were told apart
  double message_bytes = 0;                   //!< of a message of one chunk, for `links`
  bool in_seconds = false;                    //!< whether the file says a unit, read as seconds
  stage_memory memory{};                      //!< of that cut, where it is known
};

namespace detail {

//! The part of piece `piece` of `pieces` equal ones that lies in piece `other` of `others`.
[[nodiscard]] constexpr double
part_inside(std::int64_t piece, std::int64_t pieces, std::int64_t other, std::int64_t others) {
  std::int64_t const begin = std::max(piece * others, other * pieces);
  std::int64_t const end = std::min((piece + 1) * others, (other + 1) * pieces);
  return static_cast<double>(std::max<std::int64_t>(end - begin, 0)) / static_cast<double>(others);
}

//! The sum over the old stages and chunks that lie in a new one, each by its part.
//! @param of `of(stage, chunk)` of the old cut
[[nodiscard]] double
sum_of_parts(auto const& measured, shape const& extents, int stage, int chunk, auto const& of) {
  int const new_stages = extents.stages();
  auto const first = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>(std::int64_t{piece} * old_pieces / pieces);
  };
  auto const behind_last = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>((std::int64_t{piece + 1} * old_pieces + pieces - 1) / pieces);
  };
  double sum = 0;
  for (int s = first(stage, measured.stages, new_stages);
       s < behind_last(stage, measured.stages, new_stages);
       ++s)
    for (int c = first(chunk, measured.chunks, extents.chunks);
         c < behind_last(chunk, measured.chunks, extents.chunks);
         ++c)
      sum += of(s, c) * part_inside(s, measured.stages, stage, new_stages) *
             part_inside(c, measured.chunks, chunk, extents.chunks);
  return sum;
}

} // namespace detail

//! @brief The costs of the same model in another cut, such as another schedule has: times are
//! spread evenly over the layers of a stage and the tokens of a chunk.
//!
//! Exact where the new stages and chunks consist of whole old ones, but for the constant part of a
//! pass. Finer ones take equal shares, whatever they hold. A message of a chunk has its share of
//! the bytes. Its time is the time of its link, where that was measured, else of the median
//! message.
//! @throws std::invalid_argument where microbatches have times of their own and the pipeline has
//! another number of them.
//! @complexity O(S + S') (C + C') B for the old and the new numbers of stages and chunks, and B
//! microbatches with times of their own
//! @source own derivation
[[nodiscard]] inline cost_table costs_for(cut_costs const& measured, shape const& extents) {
  int const own_times = measured.times.microbatches();
  if (own_times > 1 && own_times != extents.microbatches)
    throw std::invalid_argument("costs: the file has the times of " + std::to_string(own_times) +
                                " microbatches one by one, and this pipeline has " +
                                std::to_string(extents.microbatches));
  cost_table result =
    measured.times.reshaped(extents, measured.times.latency(), [&](pass const& what) {
      return detail::sum_of_parts(measured, extents, what.stage, what.chunk, [&](int s, int c) {
        return measured.times.duration(row_writer::make(what.kind, s, what.microbatch, c));
      });
    });
  for (detail::measured_link const& link : measured.links)
    if (link.from < extents.devices && link.to < extents.devices)
      result.set_link(link.from,
                      link.to,
                      link.seconds(measured.message_bytes * measured.chunks / extents.chunks));
  return result;
}

//! @brief The bytes of the same model in another cut, spread as times are. Empty lists stay empty.
//! @complexity as of `costs_for`
[[nodiscard]] inline stage_memory memory_for(cut_costs const& measured, shape const& extents) {
  stage_memory result;
  shape const whole{.devices = extents.stages()};
  auto const spread =
    [&](std::vector<double> const& from, std::vector<double>& to, shape const& over, int chunks) {
      for (int stage = 0; !from.empty() && stage < extents.stages(); ++stage)
        for (int chunk = 0; chunk < over.chunks; ++chunk)
          to.push_back(detail::sum_of_parts(measured, over, stage, chunk, [&](int s, int c) {
            return c < chunks ? from[static_cast<std::size_t>(s * chunks + c)] : 0;
          }));
    };
  spread(measured.memory.activation, result.activation, extents, measured.chunks);
  spread(measured.memory.weight_input, result.weight_input, extents, measured.chunks);
  spread(measured.memory.resident, result.resident, whole, 1);
  return result;
}

namespace detail {

inline constexpr char const* format_of_costs = "pipelining_costs";
inline constexpr char const* message_of_costs = "communication";
inline constexpr char const* links_of_costs = "links";
inline constexpr char const* bytes_of_costs = "message_bytes";
inline constexpr char const* unit_of_costs = "unit";
inline constexpr char const* microbatches_of_costs = "microbatches";

//! A list of bytes by stage, and where it is kept.
struct named_bytes {
  char const* name;
  std::vector<double> stage_memory::*list;
  bool by_chunk; //!< else one number per stage
};
inline constexpr named_bytes memory_of_costs[] = {
  {"activation_bytes", &stage_memory::activation, true},
  {"weight_input_bytes", &stage_memory::weight_input, true},
  {"resident_bytes", &stage_memory::resident, false}};

//! A unit of time.
struct time_unit {
  char const* name;
  double in_second; //!< so many are a second
};
inline constexpr time_unit time_units[] = {{"s", 1}, {"ms", 1e3}, {"us", 1e6}, {"ns", 1e9}};

//! Every number with as many digits as bring it back. A number below the range is noise of a
//! measurement, and 0.
//! @throws std::invalid_argument for a number that `read_costs` would refuse.
inline void append_cost(std::string& out, double number, number_range const& range = time_range) {
  if (number > 0 && number < range.least)
    number = 0;
  if (!range.contains(number))
    throw std::invalid_argument(std::string("write_costs: times must be ") + range.words +
                                "; choose a unit in which they are");
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

//! The times of the links of a table, of messages of whatever size they are.
[[nodiscard]] inline std::vector<measured_link> links_of_table(cost_table const& costs,
                                                               int devices) {
  std::vector<measured_link> result;
  for (int i = 0; i < static_cast<int>(costs.links().size()); ++i)
    if (i / devices != i % devices)
      result.push_back({i / devices, i % devices, costs.links()[static_cast<std::size_t>(i)], 0});
  return result;
}

//! Appends a list of lists of `columns` numbers each; nothing where there are none.
inline void append_rows(
  std::string& out, std::string_view name, int count, int columns, auto const& append_number) {
  for (int i = 0; i < count; ++i) {
    if (i == 0)
      out.append(",\n\"").append(name).append("\": [");
    out += i % columns > 0 ? ", " : i > 0 ? "],\n[" : "\n[";
    append_number(i);
  }
  out += count > 0 ? "]]" : "";
}

inline void append_links(std::string& out, cut_costs const& costs) {
  if (costs.links.empty())
    return;
  out.append(",\n\"").append(bytes_of_costs).append("\": ");
  append_cost(out, costs.message_bytes, byte_range);
  append_rows(out, links_of_costs, 4 * static_cast<int>(costs.links.size()), 4, [&](int i) {
    measured_link const& link = costs.links[static_cast<std::size_t>(i / 4)];
    double const numbers[] = {1.0 * link.from, 1.0 * link.to, link.latency, link.seconds_per_byte};
    append_cost(out, numbers[i % 4], i % 4 == 3 ? byte_time_range : time_range);
  });
}

//! Appends the times of a kind, [stage][microbatch][chunk], but where it takes none and need not.
inline void
append_times(std::string& out, cut_costs const& costs, cost_table::timed_kind const& kind) {
  std::string rows;
  bool any = kind.needed;
  int const columns = costs.times.microbatches() * costs.chunks;
  append_rows(rows, kind.word.c_str(), costs.stages * columns, columns, [&](int i) {
    int const column = i % columns;
    double const time = costs.times.duration(
      row_writer::make(kind.kind, i / columns, column / costs.chunks, column % costs.chunks));
    append_cost(rows, time);
    any = any || time > 0;
  });
  out += any ? rows : "";
}

} // namespace detail

//! @brief Costs as the text of a file, all that `read_costs` reads: the time of every kind on every
//! stage for every chunk, perhaps of every microbatch, and of a message, bytes of stages, the unit.
//! Kinds that take no time are left out.
//! @throws std::out_of_range where the costs are of fewer stages or chunks, std::invalid_argument
//! where a time is beyond `time_range`. Shorter ones are written as 0.
//! @complexity O(S C) for each microbatch with times of its own
[[nodiscard]] inline std::string write_costs(cut_costs const& costs) {
  std::string out = "{\"pipelining_costs\": 1,\n";
  if (costs.in_seconds)
    out += "\"unit\": \"s\",\n";
  if (costs.times.microbatches() > 1)
    out += "\"microbatches\": " + std::to_string(costs.times.microbatches()) + ",\n";
  out += "\"communication\": ";
  detail::append_cost(out, costs.times.latency());
  detail::append_links(out, costs);
  for (cost_table::timed_kind const& kind : costs.times.kinds())
    detail::append_times(out, costs, kind);
  for (detail::named_bytes const& each : detail::memory_of_costs) {
    std::vector<double> const& all = costs.memory.*each.list;
    int const columns = each.by_chunk ? costs.chunks : 1;
    detail::append_rows(out, each.name, static_cast<int>(all.size()), columns, [&](int i) {
      detail::append_cost(out, all[static_cast<std::size_t>(i)], detail::byte_range);
    });
  }
  return out + "}\n";
}

//! @brief The same of costs as a runner gives them.
//! @param links as `fit_links` gives them; none: the links of the cost table, where it has any.
//! @param message_bytes of a message of one chunk: what the time per byte of links is of.
//! @param extents of the pipeline that the costs are of, for example of the step that `costs_of`
//! has read.
[[nodiscard]] inline std::string write_costs(shape const& extents,
                                             cost_table const& costs,
                                             std::span<detail::measured_link const> links = {},
                                             double message_bytes = 0) {
  return write_costs({.stages = extents.stages(),
                      .chunks = extents.chunks,
                      .times = costs,
                      .links = links.empty()
                                 ? detail::links_of_table(costs, extents.devices)
                                 : std::vector<detail::measured_link>(links.begin(), links.end()),
                      .message_bytes = message_bytes});
}

namespace detail {

//! A file of costs while it is read.
class cost_reader {
public:
  //! @param of the flow whose kinds the file has
  cost_reader(std::string_view json, flow const& of) : file_(json), none_(of, {}, {}), flow_(of) {}

  [[nodiscard]] cut_costs read() {
    check_names();
    if (file_.has(unit_of_costs))
      in_unit_ = unit();
    constexpr number_range counts{1, 65535, false, "a whole number from 1 to 65535"};
    double const own_times =
      file_.has(microbatches_of_costs) ? number(microbatches_of_costs, counts) : 1;
    int const microbatches = static_cast<int>(own_times);
    if (own_times != microbatches)
      refuse(microbatches_of_costs, std::string("must be ") + counts.words);
    double const message = number(message_of_costs, time_range) / in_unit_;
    first_ = times_of(none_.kinds().front());
    std::size_t const columns = first_.front().size();
    if (columns % static_cast<std::size_t>(microbatches) != 0)
      refuse(first_name(),
             "has " + std::to_string(columns) +
               " times for stage 0, which must be a multiple of the " +
               std::to_string(microbatches) + " microbatches");
    std::size_t const chunks = columns / static_cast<std::size_t>(microbatches);
    if (first_.size() > 65535 || chunks > 65535)
      refuse(first_name(), "has more than 65535 stages or chunks");
    shape const extents{.devices = static_cast<int>(first_.size()),
                        .chunks = static_cast<int>(chunks)};
    check_extents(extents);
    cut_costs result{extents.devices,
                     extents.chunks,
                     cost_table(flow_, extents, {0, 0, 0, message}).by_microbatch(microbatches),
                     links()};
    if (!result.links.empty())
      result.message_bytes = number(bytes_of_costs, byte_range);
    result.in_seconds = file_.has(unit_of_costs);
    for (named_bytes const& each : memory_of_costs)
      if (file_.has(each.name))
        result.memory.*each.list = bytes_of(each, each.by_chunk ? chunks : 1);
    if (!(set_times(extents.chunks, result.times) > 0))
      refuse(first_name(), "and the backward passes take no time; measure again");
    return result;
  }

private:
  [[noreturn]] void refuse(std::string const& name, std::string const& what) const {
    throw std::invalid_argument("costs, line " + std::to_string(file_.line_of(name)) + ": " +
                                quote(name) + ' ' + what);
  }
  [[noreturn]] static void miss(std::string const& name, std::string const& more = "") {
    throw std::invalid_argument("costs: '" + name +
                                "' is missing; write the file anew by write_costs" + more);
  }
  [[nodiscard]] std::string first_name() const { return none_.kinds().front().word.c_str(); }

  //! Refuses names that a file of costs does not have.
  void check_names() const {
    std::vector<std::string> known{format_of_costs,
                                   message_of_costs,
                                   links_of_costs,
                                   bytes_of_costs,
                                   unit_of_costs,
                                   microbatches_of_costs};
    for (named_bytes const& each : memory_of_costs)
      known.push_back(each.name);
    for (cost_table::timed_kind const& kind : none_.kinds())
      known.push_back(kind.word.c_str());
    std::string text = "is no entry of a file of costs; those are ";
    for (std::string const& each : known)
      text += (&each == &known.front() ? "" : &each == &known.back() ? " and " : ", ") + each;
    for (auto const& [name, place] : file_.names())
      if (std::find(known.begin(), known.end(), name) == known.end())
        refuse(name, text);
    if (!file_.has(format_of_costs))
      throw std::invalid_argument("costs: this is no file of costs, since 'pipelining_costs' is "
                                  "missing; write one by write_costs");
    if (file_.number(format_of_costs) != 1)
      refuse(format_of_costs, "must be 1, the only format so far");
  }
  //! How many of the file's units of time are a second.
  [[nodiscard]] double unit() const {
    for (time_unit const& each : time_units)
      if (file_.word(unit_of_costs) == each.name)
        return each.in_second;
    refuse(unit_of_costs, "must be \"s\", \"ms\", \"us\" or \"ns\"");
  }
  //! The number of a member that must be there.
  [[nodiscard]] double number(std::string const& name, number_range const& range) const {
    if (!file_.has(name))
      miss(name);
    double const value = file_.number(name);
    if (!range.contains(value))
      refuse(name, std::string("must be a number, ") + range.words);
    return value;
  }

  //! Bytes of stages and chunks, one after the other.
  //! @param count numbers of a stage
  [[nodiscard]] std::vector<double> bytes_of(named_bytes const& of, std::size_t count) const {
    std::vector<double> all;
    std::vector<std::vector<double>> const rows = file_.rows(of.name);
    for (std::vector<double> const& row : rows)
      for (double const bytes : row) {
        all.push_back(bytes);
        if (row.size() != count || !byte_range.contains(bytes))
          all.clear(); // and never as long as is wanted again
      }
    if (rows.size() != first_.size() || all.size() != first_.size() * count)
      refuse(of.name,
             "needs a list for each of " + std::to_string(first_.size()) + " stages, with " +
               std::to_string(count) + " numbers of bytes, " + byte_range.words);
    return all;
  }

  //! The links, where the file has them: [from, to, seconds, seconds per byte] each.
  [[nodiscard]] std::vector<measured_link> links() const {
    std::vector<measured_link> result;
    if (!file_.has(links_of_costs))
      return result;
    for (std::vector<double> const& row : file_.rows(links_of_costs)) {
      auto const is_device = [](double number) {
        return number >= 0 && number <= 65535 && number == static_cast<int>(number);
      };
      if (row.size() != 4 || !is_device(row[0]) || !is_device(row[1]) || row[0] == row[1] ||
          !time_range.contains(row[2] / in_unit_) || !byte_time_range.contains(row[3] / in_unit_))
        refuse(links_of_costs,
               "needs of every link two different devices, the seconds of an empty message (" +
                 std::string(time_range.words) + ") and those of a byte (" + byte_time_range.words +
                 "); link " + std::to_string(result.size()) + " has others");
      result.push_back(
        {static_cast<int>(row[0]), static_cast<int>(row[1]), row[2] / in_unit_, row[3] / in_unit_});
    }
    return result;
  }

  //! The times of a kind, [stage][microbatch][chunk], where the file has them.
  [[nodiscard]] std::vector<std::vector<double>>
  times_of(cost_table::timed_kind const& kind) const {
    std::string const name = kind.word.c_str();
    if (!file_.has(name) && kind.needed)
      miss(name, ", from whole steps of training");
    if (!file_.has(name))
      return {};
    std::vector<std::vector<double>> rows = file_.rows(name);
    if (rows.empty() || rows.front().empty())
      refuse(name, "is empty; it needs a list per stage, with a time per chunk");
    for (std::size_t stage = 0; stage < rows.size(); ++stage) {
      if (rows[stage].size() != rows.front().size())
        refuse(name,
               "has another number of times for stage " + std::to_string(stage) + " (" +
                 std::to_string(rows[stage].size()) + ") than for stage 0 (" +
                 std::to_string(rows.front().size()) + "); every stage needs one per chunk");
      for (std::size_t chunk = 0; chunk < rows[stage].size(); ++chunk) {
        rows[stage][chunk] /= in_unit_;
        if (!time_range.contains(rows[stage][chunk]))
          refuse(name,
                 "has a time for stage " + std::to_string(stage) + ", chunk " +
                   std::to_string(chunk) + " that is not " + time_range.words);
      }
    }
    return rows;
  }

  //! The times of all kinds. @return what the kinds that each step needs take together
  [[nodiscard]] double set_times(int chunks, cost_table& times) const {
    double work = 0;
    for (cost_table::timed_kind const& kind : times.kinds()) {
      std::vector<std::vector<double>> rows = times_of(kind);
      if (rows.empty() && kind.is == role::again)
        rows = first_;
      if (rows.empty())
        continue;
      if (rows.size() != first_.size() || rows.front().size() != first_.front().size())
        refuse(kind.word.c_str(),
               "is of " + std::to_string(rows.size()) + " x " +
                 std::to_string(rows.front().size()) + " stages and chunks, '" + first_name() +
                 "' of " + std::to_string(first_.size()) + " x " +
                 std::to_string(first_.front().size()) + "; all are of the same cut");
      for (std::size_t stage = 0; stage < rows.size(); ++stage)
        for (int i = 0; double const time : rows[stage]) {
          times.set(row_writer::make(kind.kind, static_cast<int>(stage), i / chunks, i % chunks),
                    time);
          work += kind.needed ? time : 0;
          ++i;
        }
    }
    return work;
  }

  flat_json file_;
  cost_table none_; // of the kinds
  flow const& flow_;
  double in_unit_ = 1;                       // so many of the file's units of time are one of ours
  std::vector<std::vector<double>> first_{}; // times of the first kind
};

} // namespace detail

//! @brief The costs of a file. A recomputation takes as long as a forward pass where the file does
//! not say how long.
//! @param of the flow whose kinds the file has, by their words.
//! @throws std::invalid_argument with one sentence that names line and entry, and says what is
//! wanted.
//! @complexity O(n) for n characters
[[nodiscard]] inline cut_costs read_costs(std::string_view json, flow const& of = training) {
  return detail::cost_reader(json, of).read();
}

} // namespace pipelining::inline v0_3
