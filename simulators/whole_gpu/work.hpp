// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The work of one attention kernel, as the simulation of a whole GPU walks it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace whole_gpu {

//! @brief Which kernel: backward adds to dQ in a kept order or as blocks come.
enum class way : std::uint8_t { forward, kept, free };

//! @brief Which keys a query sees: all; itself and those before; these from so many positions on;
//! these in its document of so many tokens, in a pack.
enum class mask_kind : std::uint8_t { full, causal, window, documents };

//! @brief A call of attention; its queries are the last of all tokens.
struct call {
  std::string name;           //!< one word
  way which = way::forward;   //!< the kernel
  int dim = 128;              //!< of a head
  std::int64_t batch = 1;     //!< sequences
  std::int64_t heads = 1;     //!< of queries
  std::int64_t key_heads = 1; //!< of keys and values
  std::int64_t queries = 0;   //!< of a sequence
  std::int64_t keys = 0;      //!< of a sequence, at least as many
  mask_kind mask = mask_kind::causal;
  std::int64_t extent = 0; //!< of a window or of a document, in tokens
  int held = 0;            //!< multiprocessors that another kernel holds all the time
  int said = 0;            //!< how many the call says are held

  //! @brief Elements of a value.
  [[nodiscard]] int value_dim() const { return dim == 192 ? 128 : dim; }
};

//! @brief One pass of the loop over tiles.
struct visit {
  std::int32_t object = 0;  //!< what it reads: a tile of keys with its values, or queries with dO
  std::int32_t before = -1; //!< the visit whose sums have to be there before its own; -1: none
  bool masked = false;      //!< each pair is asked for
  bool clears = false;      //!< sets its sums to 0 first
};

//! @brief What a block does between two questions for more.
struct piece {
  std::int64_t begin = 0;   //!< first visit
  std::int64_t end = 0;     //!< one after the last
  std::int32_t own = 0;     //!< its tile of queries, or of keys and values
  std::int32_t result = 0;  //!< where it writes
  std::int32_t before = -1; //!< the piece whose results come first; -1: none
  std::int32_t rounded =
    0; //!< sums that are complete after it, and that it rounds to half of their bytes
};

//! @brief Bytes of one object of each kind.
struct object_bytes {
  std::int64_t visited = 0; //!< read in each visit
  std::int64_t summed = 0;  //!< added to in each visit; 0: nothing
  std::int64_t own = 0;     //!< read once in a piece
  std::int64_t result = 0;  //!< written at the end of a piece
};

//! @brief When a block asks for its next piece: once results have left; before; or before, and its
//! first products run while they leave.
enum class handover : std::uint8_t { late, early, overlapped };

//! @brief A kernel's pieces in their order, and the figures of its launch.
struct work {
  std::vector<visit> visits;
  std::vector<piece> pieces;
  object_bytes bytes;
  std::int32_t visited_objects = 0;     //!< as many are numbered in visits
  std::int32_t own_objects = 0;         //!< as many are numbered in piece::own
  std::int32_t result_objects = 0;      //!< as many are numbered in piece::result
  bool adds_results = false;            //!< results are added to memory, not written
  handover next_asked = handover::late; //!< of forward
  //! A block brings what its next piece reads while results leave.
  bool brings_early = false;
  bool starts_at_0 = true; //!< sums do; else some visits clear them
  bool is_rounded = false; //!< pieces round sums, no kernel after them
  //! Slices of a result: a piece adds each after the piece before has added the same one.
  int result_slices = 1;
  int blocks = 0;         //!< of the launch
  int resident = 1;       //!< blocks of a multiprocessor at a time
  int stages = 1;         //!< visits that are on the way
  int shared_bytes = 0;   //!< of a block
  std::int64_t asked = 0; //!< tiles that the mask was asked about
  int key_parts = 1;      //!< parts that keys are cut into
  int group_parts = 1;    //!< parts that the heads of a group are cut into
  int step_cut = 0;       //!< steps of a piece at most; 0: all
  int heads_together = 0; //!< heads that are worked on together
  //! The piece that a block does after piece `last`, -1 before its first; none: at least as many as
  //! there are. It counts, so work is simulated once.
  std::function<int(int block, int last)> next;
};

//! @brief What decides a launch.
struct gpu {
  std::int64_t multiprocessors = 132;
  std::int64_t cache_bytes = 0; //!< of the L2, as the runtime reports it
};

//! @brief The library's own launch, order and tiles of a call.
//! @throws std::invalid_argument for a head dim without kernels
[[nodiscard]] work work_of(call const& of, gpu const& on);

//! @brief The same of all head dims but 128, in a source of its own.
[[nodiscard]] work work_of_other_dims(call const& of, gpu const& on);

//! @brief A block of a portable kernel on a GPU.
struct portable_block {
  std::string name;
  int shared_bytes = 0;
  int threads = 0;
  int resident = 1; //!< blocks of a multiprocessor at a time
};

//! @brief Of each head dim, forward and backward, on multiprocessors with 100 and with 164 KiB of
//! shared memory.
[[nodiscard]] std::vector<portable_block> portable_blocks();

//! @brief FlashAttention-3's order of the same call, for full and causal masks; see peer.cpp.
[[nodiscard]] work peer_work_of(call const& of, gpu const& on);

} // namespace whole_gpu
