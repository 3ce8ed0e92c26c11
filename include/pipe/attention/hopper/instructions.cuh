// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Instructions of sm_90a other than the products: mbarriers, tensor copies, fences,
//! registers.

#include <pipe/config.hpp>

#include <cuda.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! Gives up where the block's shared memory does not begin at a multiple of 1024 bytes, as its
//! declaration asks: swizzled tiles would trade places otherwise.
__device__ inline void check_alignment(std::uint32_t start) {
  asm volatile("" : "+r"(start)); // else the compiler believes the declaration
  if (start % 1024 != 0) {
    __trap();
  }
}

//! Makes a barrier that turns over when so many threads have arrived and all bytes are there.
__device__ inline void begin_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

//! Shows new barriers to the copy engine.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

//! One arrival of a warp, once all its lanes are done.
__device__ inline void arrive_warp(std::uint32_t barrier, bool is_first_lane) {
  __syncwarp();
  if (is_first_lane) {
    arrive(barrier);
  }
}

//! One arrival, and so many bytes that copies have to bring before the barrier turns over.
__device__ inline void arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

//! Waits until the barrier has turned over from the phase of this parity. A barrier that was just
//! made counts as turned over from parity 1.
__device__ inline void wait_for(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred there;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
               "@there bra done;\n"
               "bra again;\n"
               "done:\n"
               "}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

//! Brings tensor maps near before the first copy asks for them.
template <class... Map>
__device__ __forceinline__ void await_copies_by(Map const&... map) {
  (..., [](Map const& of) { asm volatile("prefetch.tensormap [%0];" ::"l"(&of) : "memory"); }(map));
}

//! Where a tile lies in a tensor map of tiled_tensor.
struct tile_place {
  int position;
  int head;
  int batch;
};

//! Elements of a row that one copy of a tile takes: all of a head, or a panel of 64 where heads are
//! not whole panels, see tiled_tensor.
template <int Dim>
inline constexpr int columns_of_copy = Dim % 64 == 0 ? Dim : 64;

//! Starts to copy a tile of Rows rows of a head from memory to shared memory; zeros where the
//! tensor has ended.
template <int Dim, int Rows>
__device__ __forceinline__ void
load_tile(std::uint32_t to, CUtensorMap const& from, tile_place at, std::uint32_t barrier) {
#pragma unroll
  for (int column = 0; column < Dim; column += columns_of_copy<Dim>) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%7, %4, %3, %5, %6}], [%2];" ::"r"(to + column * Rows * 2),
                 "l"(&from),
                 "r"(barrier),
                 "r"(0),
                 "r"(at.position),
                 "r"(at.head),
                 "r"(at.batch),
                 "r"(column)
                 : "memory");
  }
}

//! Starts to copy a tile of Rows rows from shared memory to memory; leaves what lies outside the
//! tensor alone.
template <int Dim, int Rows>
__device__ __forceinline__ void
store_tile(CUtensorMap const& to, tile_place at, std::uint32_t from) {
#pragma unroll
  for (int column = 0; column < Dim; column += columns_of_copy<Dim>) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
                 "[%0, {%6, %3, %2, %4, %5}], [%1];" ::"l"(&to),
                 "r"(from + column * Rows * 2),
                 "r"(0),
                 "r"(at.position),
                 "r"(at.head),
                 "r"(at.batch),
                 "r"(column)
                 : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

//! Waits until the stores of this thread no longer need their shared memory.
__device__ inline void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

//! Waits until the stores of this thread are over.
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

//! Shows what this thread did with ordinary instructions to copies and products that follow.
__device__ inline void show_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers: 0 is __syncthreads, 1 ... 3 the warpgroups', 4 ... 6 the turns', 7 all
// consumers'. Names are
// literals where a warpgroup's own branch takes them, so that ptxas counts them.

//! Meets the 128 threads of a consumer, 0 ... 2.
__device__ inline void meet_warpgroup(int consumer) {
  if (consumer == 0) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
  } else if (consumer == 1) {
    asm volatile("bar.sync 2, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 3, 128;" ::: "memory");
  }
}

//! Meets the 256 threads of both consumers.
__device__ inline void meet_consumers() {
  asm volatile("bar.sync 7, 256;" ::: "memory");
}

//! Waits for the turn of a consumer to start products: until another has handed it on.
__device__ inline void wait_for_turn(int consumer) {
  asm volatile("bar.sync %0, 256;" ::"r"(4 + consumer) : "memory");
}

//! Hands the turn to a consumer; does not wait.
__device__ inline void give_turn(int consumer) {
  asm volatile("bar.arrive %0, 256;" ::"r"(4 + consumer) : "memory");
}

template <int Registers>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

} // namespace pipelining::inline v0_3::attention::detail
