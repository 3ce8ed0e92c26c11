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
  int stages = 1;                             //!< S, equal shares of the layers
  int chunks = 1;                             //!< C, equal shares of a sequence
  cost_table times;                           //!< of that cut, in one unit; runners measure seconds
  std::vector<detail::measured_link> links{}; //!< where messages between devices were told apart
  double message_bytes = 0;                   //!< of a message of one chunk, for `links`
};

namespace detail {

//! The part of piece `piece` of `pieces` equal ones that lies in piece `other` of `others`.
[[nodiscard]] constexpr double
part_inside(std::int64_t piece, std::int64_t pieces, std::int64_t other, std::int64_t others) {
  std::int64_t const begin = std::max(piece * others, other * pieces);
  std::int64_t const end = std::min((piece + 1) * others, (other + 1) * pieces);
  return static_cast<double>(std::max<std::int64_t>(end - begin, 0)) / static_cast<double>(others);
}

} // namespace detail

//! @brief The costs of the same model in another cut, such as another schedule has: times are
//! spread evenly over the layers of a stage and the tokens of a chunk.
//!
//! Exact where the new stages and chunks consist of whole old ones, but for the constant part of a
//! pass. Finer ones take equal shares, whatever they hold. A message of a chunk has its share of
//! the bytes. Its time is the time of its link, where that was measured, else of the median
//! message.
//! @complexity O(S + S') (C + C') for the old and the new numbers of stages and chunks
//! @source own derivation
[[nodiscard]] inline cost_table costs_for(cut_costs const& measured, shape const& extents) {
  cost_table result = measured.times.reshaped(extents, measured.times.latency());
  for (detail::measured_link const& link : measured.links)
    if (link.from < extents.devices && link.to < extents.devices)
      result.set_link(link.from,
                      link.to,
                      link.seconds(measured.message_bytes * measured.chunks / extents.chunks));
  int const new_stages = stages(extents);
  auto const first = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>(std::int64_t{piece} * old_pieces / pieces);
  };
  auto const behind_last = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>((std::int64_t{piece + 1} * old_pieces + pieces - 1) / pieces);
  };
  for (int stage = 0; stage < new_stages; ++stage)
    for (int chunk = 0; chunk < extents.chunks; ++chunk)
      for (timed_kind const& one : measured.times.kinds()) {
        double time = 0;
        for (int s = first(stage, measured.stages, new_stages);
             s < behind_last(stage, measured.stages, new_stages);
             ++s)
          for (int c = first(chunk, measured.chunks, extents.chunks);
               c < behind_last(chunk, measured.chunks, extents.chunks);
               ++c)
            time += measured.times.duration(row_writer::make(one.kind, s, 0, c)) *
                    detail::part_inside(s, measured.stages, stage, new_stages) *
                    detail::part_inside(c, measured.chunks, chunk, extents.chunks);
        result.set(one.kind, stage, chunk, time);
      }
  return result;
}

namespace detail {

inline constexpr char const* format_of_costs = "pipelining_costs";
inline constexpr char const* message_of_costs = "communication";
inline constexpr char const* links_of_costs = "links";
inline constexpr char const* bytes_of_costs = "message_bytes";

//! The extents of a cut, for a table of its times.
[[nodiscard]] inline shape extents_of_cut(int stages, int chunks) {
  shape const extents{.devices = stages, .chunks = chunks};
  check_extents(extents);
  return extents;
}

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

[[noreturn]] inline void
refuse_costs(flat_json const& file, std::string const& name, std::string const& what) {
  throw std::invalid_argument("costs, line " + std::to_string(file.line_of(name)) + ": " +
                              quote(name) + ' ' + what);
}

//! The number of a member that must be there.
[[nodiscard]] inline double
number_in_costs(flat_json const& file, std::string const& name, number_range const& range) {
  if (!file.names().contains(name))
    throw std::invalid_argument("costs: '" + name +
                                "' is missing; write the file anew by write_costs");
  auto const found = file.numbers().find(name);
  if (found == file.numbers().end() || !range.contains(found->second))
    refuse_costs(file, name, std::string("must be a number, ") + range.words);
  return found->second;
}

//! The times of a kind, [stage][chunk], where the file has them.
[[nodiscard]] inline std::vector<std::vector<double>> times_in_costs(flat_json const& file,
                                                                     timed_kind const& kind) {
  std::vector<std::vector<double>> rows;
  char const* const name = kind.word.c_str();
  if (file.names().contains(name))
    rows = file.rows(name);
  else if (kind.needed)
    throw std::invalid_argument(std::string("costs: '") + name +
                                "' is missing; write the file anew by write_costs, from whole "
                                "steps of training");
  else
    return rows;
  if (rows.empty() || rows.front().empty())
    refuse_costs(file, name, "is empty; it needs a list per stage, with a time per chunk");
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    if (rows[stage].size() != rows.front().size())
      refuse_costs(file,
                   name,
                   "has another number of times for stage " + std::to_string(stage) + " (" +
                     std::to_string(rows[stage].size()) + ") than for stage 0 (" +
                     std::to_string(rows.front().size()) + "); every stage needs one per chunk");
    for (std::size_t chunk = 0; chunk < rows[stage].size(); ++chunk)
      if (!time_range.contains(rows[stage][chunk]))
        refuse_costs(file,
                     name,
                     "has a time for stage " + std::to_string(stage) + ", chunk " +
                       std::to_string(chunk) + " that is not " + time_range.words);
  }
  return rows;
}

//! The links, where the file has them: [from, to, seconds, seconds per byte] each.
[[nodiscard]] inline std::vector<measured_link> links_in_costs(flat_json const& file) {
  std::vector<measured_link> links;
  if (!file.names().contains(links_of_costs))
    return links;
  for (std::vector<double> const& row : file.rows(links_of_costs)) {
    auto const is_device = [](double number) {
      return number >= 0 && number <= 65535 && number == static_cast<int>(number);
    };
    if (row.size() != 4 || !is_device(row[0]) || !is_device(row[1]) || row[0] == row[1] ||
        !time_range.contains(row[2]) || !byte_time_range.contains(row[3]))
      refuse_costs(file,
                   links_of_costs,
                   "needs of every link two different devices, the seconds of an empty message (" +
                     std::string(time_range.words) + ") and those of a byte (" +
                     byte_time_range.words + "); link " + std::to_string(links.size()) +
                     " has others");
    links.push_back({static_cast<int>(row[0]), static_cast<int>(row[1]), row[2], row[3]});
  }
  return links;
}

//! The entries that a file of costs may have besides its format.
[[nodiscard]] inline std::string list_entries(std::span<timed_kind const> kinds) {
  std::string text;
  for (char const* const name : {message_of_costs, links_of_costs, bytes_of_costs})
    text += std::string(", ") + name;
  for (timed_kind const& kind : kinds)
    text += std::string(&kind == &kinds.back() ? " and " : ", ") + kind.word.c_str();
  return text;
}

inline void check_names_in_costs(flat_json const& file, std::span<timed_kind const> kinds) {
  for (auto const& [name, place] : file.names()) {
    bool known = name == format_of_costs || name == message_of_costs || name == links_of_costs ||
                 name == bytes_of_costs;
    for (timed_kind const& kind : kinds)
      known = known || name == kind.word.c_str();
    if (!known)
      refuse_costs(file,
                   name,
                   std::string("is no entry of a file of costs; those are ") + format_of_costs +
                     list_entries(kinds));
  }
  if (!file.names().contains(format_of_costs))
    throw std::invalid_argument("costs: this is no file of costs, since 'pipelining_costs' is "
                                "missing; write one by write_costs");
  auto const format = file.numbers().find(format_of_costs);
  if (format == file.numbers().end() || format->second != 1)
    refuse_costs(file, format_of_costs, "must be 1, the only format so far");
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

inline void
append_links(std::string& out, std::span<measured_link const> links, double message_bytes) {
  out += std::string(",\n\"") + bytes_of_costs + "\": ";
  append_cost(out, message_bytes, byte_range);
  out += std::string(",\n\"") + links_of_costs + "\": [";
  for (std::size_t i = 0; i < links.size(); ++i) {
    out += (i == 0 ? "\n[" : ",\n[") + std::to_string(links[i].from) + ", " +
           std::to_string(links[i].to) + ", ";
    append_cost(out, links[i].latency);
    out += ", ";
    append_cost(out, links[i].seconds_per_byte, byte_time_range);
    out += "]";
  }
  out += "]";
}

} // namespace detail

//! @brief Costs as the text of a file: the time of every kind on every stage for every chunk, and
//! of a message. Kinds that take no time are left out.
//! @param links as `fit_links` gives them; none: the links of the cost table, where it has any.
//! @param message_bytes of a message of one chunk: what the time per byte of links is of.
//! @param extents of the pipeline that the costs are of, for example of the step that `costs_of`
//! has read.
//! @throws std::out_of_range where the costs are of fewer stages or chunks, std::invalid_argument
//! where a time is beyond `time_range`. Shorter ones are written as 0.
//! @complexity O(S C)
[[nodiscard]] inline std::string write_costs(shape const& extents,
                                             cost_table const& costs,
                                             std::span<detail::measured_link const> links = {},
                                             double message_bytes = 0) {
  std::string out = "{\"pipelining_costs\": 1,\n\"communication\": ";
  detail::append_cost(out, costs.latency());
  std::vector<detail::measured_link> const known =
    links.empty() ? detail::links_of_table(costs, extents.devices)
                  : std::vector<detail::measured_link>(links.begin(), links.end());
  if (!known.empty())
    detail::append_links(out, known, message_bytes);
  for (timed_kind const& kind : costs.kinds()) {
    std::string rows;
    bool any = kind.needed;
    for (int stage = 0; stage < stages(extents); ++stage) {
      rows += stage == 0 ? "\n[" : ",\n[";
      for (int chunk = 0; chunk < extents.chunks; ++chunk) {
        double const time = costs.duration(row_writer::make(kind.kind, stage, 0, chunk));
        rows += chunk == 0 ? "" : ", ";
        detail::append_cost(rows, time);
        any = any || time > 0;
      }
      rows += "]";
    }
    if (any)
      out += std::string(",\n\"") + kind.word.c_str() + "\": [" + rows + "]";
  }
  return out + "}\n";
}

namespace detail {

//! The times of all kinds of a file. @param first those of the first kind of the table
//! @return what the kinds that each step needs take together
inline double
set_times(flat_json const& file, std::vector<std::vector<double>> const& first, cost_table& times) {
  double work = 0;
  std::string const named(times.kinds().front().word.c_str());
  for (timed_kind const& kind : times.kinds()) {
    std::vector<std::vector<double>> rows = times_in_costs(file, kind);
    if (rows.empty() && kind.is == role::again)
      rows = first;
    if (rows.empty())
      continue;
    if (rows.size() != first.size() || rows.front().size() != first.front().size())
      refuse_costs(file,
                   kind.word.c_str(),
                   "is of " + std::to_string(rows.size()) + " x " +
                     std::to_string(rows.front().size()) + " stages and chunks, '" + named +
                     "' of " + std::to_string(first.size()) + " x " +
                     std::to_string(first.front().size()) + "; all are of the same cut");
    for (std::size_t stage = 0; stage < rows.size(); ++stage)
      for (std::size_t chunk = 0; chunk < rows[stage].size(); ++chunk) {
        double const time = rows[stage][chunk];
        times.set(kind.kind, static_cast<int>(stage), static_cast<int>(chunk), time);
        work += kind.needed ? time : 0;
      }
  }
  return work;
}

} // namespace detail

//! @brief The costs of a file. A recomputation takes as long as a forward pass where the file does
//! not say how long.
//! @param of the flow whose kinds the file has, by their words.
//! @throws std::invalid_argument with one sentence that names line and entry, and says what is
//! wanted.
//! @complexity O(n) for n characters
[[nodiscard]] inline cut_costs read_costs(std::string_view json, flow const& of = training) {
  detail::flat_json const file(json);
  cost_table const none(of, {}, {});
  detail::check_names_in_costs(file, none.kinds());
  double const message = detail::number_in_costs(file, detail::message_of_costs, time_range);
  timed_kind const& first = none.kinds().front();
  std::vector<std::vector<double>> const rows = detail::times_in_costs(file, first);
  std::size_t const most = 65535;
  if (rows.size() > most || rows.front().size() > most)
    detail::refuse_costs(file, first.word.c_str(), "has more than 65535 stages or chunks");
  int const stage_count = static_cast<int>(rows.size());
  int const chunk_count = static_cast<int>(rows.front().size());
  cut_costs result{
    stage_count,
    chunk_count,
    cost_table(of, detail::extents_of_cut(stage_count, chunk_count), {0, 0, 0, message}),
    detail::links_in_costs(file)};
  if (!result.links.empty())
    result.message_bytes = detail::number_in_costs(file, detail::bytes_of_costs, byte_range);
  if (!(detail::set_times(file, rows, result.times) > 0))
    detail::refuse_costs(
      file, first.word.c_str(), "and the backward passes take no time; measure again");
  return result;
}

} // namespace pipelining::inline v0_3
