// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The NCCL group of a thread: what was called since ncclGroupStart.

#include "work.hpp"

namespace standin::detail {

struct grouped_call {
  communicator* comm = nullptr;
  stream* on = nullptr;
  part item{};
};

struct nccl_group {
  std::uint64_t epoch = 0;
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<grouped_call> calls{};
  std::vector<communicator*> starting{}; //!< communicators whose creation ends with the group
  std::vector<communicator*> ending{};   //!< those whose abort or destruction does
};

//! @brief The group of the calling thread.
nccl_group& current_group(model& m);
//! @brief What ncclGroupEnd does; calls outside a group are groups of one.
ncclResult_t end_group(model& m);
//! @brief The part of ncclCommAbort and ncclCommDestroy that waits, whatever `blocking` says.
ncclResult_t end_together(model& m, std::vector<communicator*> const& comms);
std::string part_name(part const& p);
char const* part_function(part_kind kind);
std::size_t size_of(ncclDataType_t type);

//! @brief Why a communicator cannot be used now; ncclSuccess if it can.
ncclResult_t usable(model& m, ncclComm_t handle, communicator*& out);

} // namespace standin::detail
