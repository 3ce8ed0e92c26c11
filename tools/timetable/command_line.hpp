// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The command line of the timetable tool: what it says, read strictly, and which options go
//! together.

#include "library.hpp"

namespace examples {

//! What `timetable search` is told in addition to the pipeline.
struct search_command {
  double memory = 0;        //!< microbatches of a device's share of the model
  std::vector<double> room; //!< in place of that: bytes, of each device or one for all
  std::string room_text;    //!< as it was given
  double seconds = 10;
  std::int64_t moves = 0; //!< the most; 0 for as many as the seconds allow
  std::uint64_t seed = 1;
  pp::search_goal goal = pp::search_goal::makespan;
  bool whole_backward = false; //!< none is split
  std::string like;            //!< the schedule on whose placement to search; empty for all
};

//! The parts of stages, and what they take.
struct stage_layout {
  std::string text;                //!< as it was given; empty: none was
  std::vector<std::string> stages; //!< [S] letters
  double embedding = 0;            //!< times of a layer that an E takes
  double module = 1;               //!< an m
  double output = 1;               //!< an L
  pp::uniform_cost layer;          //!< what a layer takes
};

//! What the user asked for.
struct command {
  verbs verb = verbs::timetable;
  schedule_choice choice;
  std::string file; //!< where the schedule "csv" comes from
  pp::uniform_cost cost;
  std::string cost_file; //!< where `measured` is from
  stage_layout layout;
  //! Of --cost FILE or of --layout. `cost` is then the mean of a device's share of the model.
  std::optional<pp::cut_costs> measured;
  std::optional<int> tokens;
  std::optional<double> attention_ratio;
  bool even = false; //!< chunks of equal length instead of equal work
  std::string format = "text";
  std::string against;         //!< the second schedule of the format html
  std::string torch = "2.15";  //!< of the format pytorch-comms
  double limit_seconds = 0;    //!< bound of a search, 0 for none
  std::string policy = "pair"; //!< which messages share a communicator, of the format calls
  pp::uniform_sizes sizes;     //!< of the formats calls, memory and html
  bool sizes_given = false;
  search_command search;
  std::string output; //!< a file; empty: standard output
  int width = 0;      //!< columns of text, 0 for those of the terminal
  int iterations = 0; //!< in a row, to be told how long they take; 0: nothing is said
};

//! @param verb timetable, csv, compare, search or gaps
//! @param words those after the verb
//! @throws usage_error
[[nodiscard]] command read_command_line(verbs verb, std::span<char const* const> words);

//! The options of one of these verbs.
[[nodiscard]] std::vector<offered_option> command_options(verbs one);

//! Checks what was read against each other, and completes costs by what else was given.
//! @throws usage_error
void check(command& result, read_words const& read);

} // namespace examples
