// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables as the command line asks for them, made and written.

#include "command_line.hpp"

namespace examples {

//! A timetable, what it was timed with, and its chunks where their lengths matter.
struct made_table {
  std::string name;
  pp::dynamic_timetable table;
  pp::uniform_cost cost; //!< of chunks of unequal work the mean
  any_cost model;        //!< of every stage and chunk
  std::vector<int> chunk_lengths = {};
  std::vector<double> chunk_shares = {};
  bool frozen = false; //!< some stages go forward only
  //! What runs, where weights travel; `table` shows its groups of layers as stages.
  std::optional<pp::dynamic_timetable> travelling = {};

  //! What the passes of `to_run` take under other mean costs; none: as `model`, in their ratio.
  std::function<any_cost(pp::uniform_cost const&)> model_of = {};

  [[nodiscard]] pp::timetable_view to_run() const {
    return travelling ? travelling->view() : table.view();
  }
  [[nodiscard]] pp::timetable_caption about() const {
    return {name, cost, chunk_shares, chunk_lengths};
  }
};

//! @throws usage_error where a timetable would not fit in memory, or a picture in a viewer.
void check_size(pp::shape const& extents, std::string const& format);

//! The timetable that is asked for, from a file or by name.
[[nodiscard]] made_table make(command const& asked);

//! The timetable of another schedule, with the options of the command that it has, and costs that
//! give a device the same work for a microbatch.
//! @param work times of the share of the model that a device has, for a whole microbatch.
[[nodiscard]] made_table
make_like(command const& asked, std::string const& name, pp::uniform_cost const& work);

//! The times of a device's share of the model for a whole microbatch.
[[nodiscard]] pp::uniform_cost work_of_share(made_table const& made);

//! The passes of the busiest device, which no order of them takes less than.
//! @param hidden without exchanges, which another order may hide
[[nodiscard]] double busiest_work(pp::timetable_view table, any_cost const& hidden);

//! What no order with this placement and memory can beat; 0 where nothing is known.
[[nodiscard]] pp::time_bounds bounds_of(made_table const& made);

//! What the writers of the library append to. A file is made with the first of it, so that none is
//! left of what was refused.
struct standard_output {
  std::string file = ""; //!< empty: standard output

  void append(std::string_view text);
};

//! Writes a timetable in the format that is asked for.
void write(standard_output& out, command const& asked, made_table const& made);

//! The first line of a report on many schedules: the size of the pipeline and the costs.
[[nodiscard]] std::string describe_setting(command const& asked);

//! The options of a choice that another schedule has.
[[nodiscard]] schedule_choice choice_for(schedule_choice const& choice, std::string const& name);

//! Gives a choice the bytes of devices and of stages, where the command has some.
void give_room(command const& asked, pp::shape const& extents, schedule_choice& choice);

//! How often the work of a device's share on a microbatch is cut: stages of a device, the mean,
//! times the chunks.
[[nodiscard]] double pieces_of_share(pp::shape const& extents);

} // namespace examples
