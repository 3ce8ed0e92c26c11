// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Every access of a kernel to memory goes through these functions.

#include <string>

#include "machine.hpp"

namespace ptx {

//! @brief How bytes are touched.
struct touch {
  bool read = false;
  bool write = false;
  bool strong = false;
};

//! @brief The address that operand `k` (counted among address operands) has in a lane.
u64 address_of(warp& w, instruction const& i, unsigned k, int lane);

//! @brief Finds the bytes of an address after bounds and alignment checks.
//! @throws stop
region locate(warp& w,
              instruction const& i,
              int lane,
              space where,
              u64 address,
              u32 bytes,
              u32 alignment,
              bool write);

//! @brief Checks initialisation and races of a thread's own access, then records it.
void note(warp& w, instruction const& i, int lane, region const& r, u32 bytes, touch how);
//! @brief The same for an access by an asynchronous agent, issued by `lane` with knowledge `known`.
void note_as(warp& w,
             instruction const& i,
             int lane,
             region const& r,
             u32 bytes,
             touch how,
             access const& who);

//! @brief "shared+0x10", "global 0x7f..." for messages.
std::string spell(block const& b, space where, u64 address);
std::string spell(block const& b, region const& r);

//! @brief The access record of a thread.
access thread_access(warp& w, int lane);

//! @name Edges of happens-before
//! @{
//! @brief The lanes publish what they know into `into`; later accesses are not covered.
void release(warp& w, u32 mask, clock_pointer& into);
//! @brief The lanes learn `from`.
void acquire(warp& w, u32 mask, clock_pointer const& from);
//! @brief The lanes learn that an actor's accesses up to `clock` are complete.
void acquire_actor(warp& w, u32 mask, u32 actor, u32 clock);
//! @brief What every lane of the mask knows.
clock_pointer common_knowledge(warp& w, u32 mask);
//! @brief fence.proxy.async
void proxy_fence(warp& w, u32 mask);
//! @brief membar, fence.acq_rel, fence.sc
void memory_fence(warp& w, u32 mask);
//! @brief Synchronisation of a strong access to `address`.
void strong_access(warp& w, int lane, u64 address, touch how, bool acquires, bool releases);
//! @}

} // namespace ptx
