// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Costs as a file. Header for pipelining::cut_costs, write_costs, read_costs and costs_for.
//!
//! The file is one JSON object; docs/timetable.md shows it.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/model/flat_json.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief The times of a model that is cut into stages, its sequences into chunks.
struct cut_costs {
  int stages = 1;   //!< S, equal shares of the layers
  int chunks = 1;   //!< C, equal shares of a sequence
  cost_table times; //!< of that cut, in one unit; runners measure seconds
};

namespace detail {

//! A kind of pass in a file of costs.
struct kind_in_file {
  pass_kind kind;
  char const* name;
  bool needed; //!< those that every step has
};

inline constexpr kind_in_file kinds_in_file[] = {
  {pass_kind::forward, "forward", true},
  {pass_kind::backward_input, "backward_input", true},
  {pass_kind::backward_weight, "backward_weight", true},
  {pass_kind::recompute, "recompute", false},
  {pass_kind::copy_out, "copy_out", false},
  {pass_kind::copy_in, "copy_in", false},
  {pass_kind::embed, "embed", false},
  {pass_kind::logits, "logits", false},
  {pass_kind::logits_gradient, "logits_gradient", false},
  {pass_kind::embed_gradient, "embed_gradient", false}};

inline constexpr char const* format_of_costs = "pipelining_costs";
inline constexpr char const* message_of_costs = "communication";

//! The extents of a cut, for a table of its times.
[[nodiscard]] inline shape extents_of_cut(int stages, int chunks) {
  shape const extents{.devices = stages, .chunks = chunks};
  check_extents(extents);
  return extents;
}

//! Every number with as many digits as bring it back.
inline void append_time(std::string& out, double time) {
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, time).ptr);
}

[[noreturn]] inline void
refuse_costs(flat_json const& file, std::string const& name, std::string const& what) {
  throw std::invalid_argument("costs, line " + std::to_string(file.line_of(name)) + ": '" +
                              name.substr(0, 60) + "' " + what);
}

//! The number of a member that must be there.
[[nodiscard]] inline double number_in_costs(flat_json const& file, std::string const& name) {
  if (!file.names().contains(name))
    throw std::invalid_argument("costs: '" + name +
                                "' is missing; write the file anew by write_costs");
  auto const found = file.numbers().find(name);
  if (found == file.numbers().end() || !(found->second >= 0))
    refuse_costs(file, name, "must be a number that is not negative");
  return found->second;
}

//! The times of a kind, [stage][chunk], where the file has them.
[[nodiscard]] inline std::vector<std::vector<double>> times_in_costs(flat_json const& file,
                                                                     kind_in_file const& kind) {
  std::vector<std::vector<double>> rows;
  if (file.names().contains(kind.name))
    rows = file.rows(kind.name);
  else if (kind.needed)
    throw std::invalid_argument(std::string("costs: '") + kind.name +
                                "' is missing; write the file anew by write_costs, from whole "
                                "steps of training");
  else
    return rows;
  if (rows.empty() || rows.front().empty())
    refuse_costs(file, kind.name, "is empty; it needs a list per stage, with a time per chunk");
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    if (rows[stage].size() != rows.front().size())
      refuse_costs(file,
                   kind.name,
                   "has another number of times for stage " + std::to_string(stage) + " (" +
                     std::to_string(rows[stage].size()) + ") than for stage 0 (" +
                     std::to_string(rows.front().size()) + "); every stage needs one per chunk");
    for (double const time : rows[stage])
      if (!(time >= 0))
        refuse_costs(file, kind.name, "has a negative time for stage " + std::to_string(stage));
  }
  return rows;
}

inline void check_names_in_costs(flat_json const& file) {
  for (auto const& [name, place] : file.names()) {
    bool known = name == format_of_costs || name == message_of_costs;
    for (kind_in_file const& kind : kinds_in_file)
      known = known || name == kind.name;
    if (!known)
      refuse_costs(file,
                   name,
                   "is no entry of a file of costs; those are pipelining_costs, communication, "
                   "forward, backward_input, backward_weight, recompute, copy_out and copy_in");
  }
  if (!file.names().contains(format_of_costs))
    throw std::invalid_argument("costs: this is no file of costs, since 'pipelining_costs' is "
                                "missing; write one by write_costs");
  if (number_in_costs(file, format_of_costs) != 1)
    refuse_costs(file, format_of_costs, "must be 1, the only format so far");
}

//! The part of piece `piece` of `pieces` equal ones that lies in piece `other` of `others`.
[[nodiscard]] constexpr double
part_inside(std::int64_t piece, std::int64_t pieces, std::int64_t other, std::int64_t others) {
  std::int64_t const begin = std::max(piece * others, other * pieces);
  std::int64_t const end = std::min((piece + 1) * others, (other + 1) * pieces);
  return static_cast<double>(std::max<std::int64_t>(end - begin, 0)) / static_cast<double>(others);
}

} // namespace detail

//! @brief Costs as the text of a file: the time of every kind on every stage for every chunk, and
//! of a message. Kinds that take no time are left out.
//! @param extents of the pipeline that the costs are of, for example of the step that `costs_of`
//! has read.
//! @throws std::out_of_range where the costs are of fewer stages or chunks.
//! @complexity O(S C)
[[nodiscard]] inline std::string write_costs(shape const& extents, cost_table const& costs) {
  std::string out = "{\"pipelining_costs\": 1,\n\"communication\": ";
  detail::append_time(out, costs.latency());
  for (detail::kind_in_file const& kind : detail::kinds_in_file) {
    std::string rows;
    bool any = kind.needed;
    for (int stage = 0; stage < stages(extents); ++stage) {
      rows += stage == 0 ? "\n[" : ",\n[";
      for (int chunk = 0; chunk < extents.chunks; ++chunk) {
        double const time = costs.duration(row_writer::make(kind.kind, stage, 0, chunk));
        rows += chunk == 0 ? "" : ", ";
        detail::append_time(rows, time);
        any = any || time > 0;
      }
      rows += "]";
    }
    if (any)
      out += std::string(",\n\"") + kind.name + "\": [" + rows + "]";
  }
  return out + "}\n";
}

//! @brief The costs of a file. A recomputation takes as long as a forward pass where the file does
//! not say how long.
//! @throws std::invalid_argument with one sentence that names line and entry, and says what is
//! wanted.
//! @complexity O(n) for n characters
[[nodiscard]] inline cut_costs read_costs(std::string_view json) {
  detail::flat_json const file(json);
  detail::check_names_in_costs(file);
  double const message = detail::number_in_costs(file, detail::message_of_costs);
  std::vector<std::vector<double>> const forward =
    detail::times_in_costs(file, detail::kinds_in_file[0]);
  std::size_t const most = 65535;
  if (forward.size() > most || forward.front().size() > most)
    detail::refuse_costs(file, "forward", "has more than 65535 stages or chunks");
  int const stage_count = static_cast<int>(forward.size());
  int const chunk_count = static_cast<int>(forward.front().size());
  cut_costs result{
    stage_count,
    chunk_count,
    cost_table(detail::extents_of_cut(stage_count, chunk_count), {0, 0, 0, message})};
  double work = 0;
  for (detail::kind_in_file const& kind : detail::kinds_in_file) {
    std::vector<std::vector<double>> rows = detail::times_in_costs(file, kind);
    if (rows.empty() && kind.kind == pass_kind::recompute)
      rows = forward;
    if (rows.empty())
      continue;
    if (rows.size() != forward.size() || rows.front().size() != forward.front().size())
      detail::refuse_costs(file,
                           kind.name,
                           "is of " + std::to_string(rows.size()) + " x " +
                             std::to_string(rows.front().size()) +
                             " stages and chunks, 'forward' of " + std::to_string(stage_count) +
                             " x " + std::to_string(chunk_count) + "; all are of the same cut");
    for (int stage = 0; stage < stage_count; ++stage)
      for (int chunk = 0; chunk < chunk_count; ++chunk) {
        double const time = rows[static_cast<std::size_t>(stage)][static_cast<std::size_t>(chunk)];
        result.times.set(kind.kind, stage, chunk, time);
        work += kind.needed ? time : 0;
      }
  }
  if (!(work > 0 && work <= std::numeric_limits<double>::max()))
    detail::refuse_costs(file, "forward", "and the backward passes take no time; measure again");
  return result;
}

//! @brief The costs of the same model in another cut, such as another schedule has: times are
//! spread evenly over the layers of a stage and the tokens of a chunk.
//!
//! Exact where the new stages and chunks consist of whole old ones, but for what a pass costs by
//! itself. Finer ones take equal shares, whatever they hold. A message takes as long as before.
//! @complexity O(S + S') (C + C') for the old and the new numbers of stages and chunks
//! @source own derivation
[[nodiscard]] inline cost_table costs_for(cut_costs const& measured, shape const& extents) {
  cost_table result(extents, {0, 0, 0, measured.times.latency()});
  int const new_stages = stages(extents);
  auto const first = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>(std::int64_t{piece} * old_pieces / pieces);
  };
  auto const behind_last = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>((std::int64_t{piece + 1} * old_pieces + pieces - 1) / pieces);
  };
  for (int stage = 0; stage < new_stages; ++stage)
    for (int chunk = 0; chunk < extents.chunks; ++chunk)
      for (detail::kind_in_file const& kind : detail::kinds_in_file) {
        double time = 0;
        for (int s = first(stage, measured.stages, new_stages);
             s < behind_last(stage, measured.stages, new_stages);
             ++s)
          for (int c = first(chunk, measured.chunks, extents.chunks);
               c < behind_last(chunk, measured.chunks, extents.chunks);
               ++c)
            time += measured.times.duration(row_writer::make(kind.kind, s, 0, c)) *
                    detail::part_inside(s, measured.stages, stage, new_stages) *
                    detail::part_inside(c, measured.chunks, chunk, extents.chunks);
        result.set(kind.kind, stage, chunk, time);
      }
  return result;
}

} // namespace pipelining::inline v0_2
