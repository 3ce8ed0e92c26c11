// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the test of the hooks asks of the object that nvcc makes.

#include <pipe/plan/plan.hpp>

#include <string>
#include <tests/support/training.hpp>
#include <vector>

//! A plan that the runner is given between two steps.
struct given_plan {
  pipelining::plan work{};
  int before_step = 0;
  int instead_of = -1; //!< the number of another; -1: a further one
};

struct training_case {
  pipelining::plan work{};
  std::vector<given_plan> given{}; //!< further ones
  std::vector<int> turns{};        //!< the number of the plan of each step; empty: the first one
  bool reserved = false;           //!< memory of all plans, before the first step
  bool early = false;  //!< plans 0, 1 and 2 step early and validate; `finish` now and then
  bool zeroed = false; //!< by the program, before each early step and at the end
  bool graph = false;
  bool one_message_stream = false; //!< of ranks
  bool checked = false;            //!< of ranks
  bool ranges = false;
  int replicas = 1;        //!< of ranks, 1 or 2
  int steps = 9;           //!< the first of them eager
  int freeze_after = -1;   //!< the step after which nothing may be set up any more
  std::vector<int> gpus{}; //!< of streams
};

struct training_result {
  std::vector<support::trained> stages{}; //!< [replicas][stages]
  std::vector<support::trained> copies{}; //!< [replicas][stages], the second ones
  std::vector<float> announced{};   //!< [replicas][stages], gradients told to be complete last
  std::vector<int> announcements{}; //!< [replicas][stages], how often the host told so
  int pairs = 0;                    //!< composite passes that the host has enqueued as one
  int rolled_back = 0;              //!< steps of stages that were undone
  int made_up = 0;                  //!< steps of stages that came late
  int moves = 0;                    //!< of memory under stages that have seen it
  long repeated = 0;                //!< iterations that began again
  //! [steps][stages], the totals after each step; of ranks, those of rank 0.
  std::vector<std::vector<support::training_row>> rows{};
  std::string failure{};
  std::string findings{};         //!< of the stand-in after the last step
  int passes_after_reduction = 0; //!< enqueued after the first reduction of their step, all ranks
};

//! @brief Trains the small model on streams, or with one rank per device and replica.
training_result train_on_streams(training_case const& what);
training_result train_on_ranks(training_case const& what);
