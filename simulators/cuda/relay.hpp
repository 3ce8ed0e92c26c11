// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A small but complete user of CUDA and NCCL: microbatches flow down a chain of ranks.

#include <nccl.h>

#include <vector>

//! @brief A bug to plant.
enum class mistake {
  none,
  compute_before_arrival,  //!< the kernel does not wait for the receive
  send_before_compute,     //!< the send does not wait for the kernel
  receive_too_early,       //!< the receive overwrites a slot the kernel may still read
  compute_overwrites_sent, //!< the kernel overwrites a slot that may still be sent
  too_many_elements,       //!< the kernel runs over the end of its slot
  half_initialised,        //!< the input is only half copied
  wrong_count,             //!< one send is an element short
  send_first,              //!< one rank sends before it receives
  read_on_host_too_early,  //!< the host does not wait for the result
  freed_too_early,         //!< a slot is freed while another device may still read it
  last                     //!< number of mistakes
};

struct relay_options {
  int ranks = 3;
  int microbatches = 5;
  int elements = 100;
  bool graph = false; //!< capture the relay and launch it twice
  mistake planted = mistake::none;
};

//! @brief Runs one rank.
//! @param result on the last rank: elements of all microbatches
//! @return 0, or the code of the first call that failed
int run_relay(relay_options const& how, int rank, ncclUniqueId id, std::vector<float>& result);
