// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Headers of messages, and the kernels that make and compare them. Header for
//! pipelining::cuda::message_header.

#include <pipe/config.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::cuda::detail {

//! The words of a message_header, in the order in which they are compared.
enum class header_field : std::uint8_t {
  magic, //!< the same in every header: what follows is one
  step,  //!< of this runner, from 1
  sender,
  receiver,
  sequence, //!< as in the item
  bytes,
  checksum
};
inline constexpr int header_fields = 7; //!< Words of a header.

//! The header that travels after a checked message: names the message, and has the checksum of
//! its bytes as they were sent.
struct message_header {
  std::uint64_t words[header_fields]; //!< by header_field
};

//! The receiver's findings about a message of the last step.
struct message_verdict {
  std::uint64_t wrong;    //!< 1 + the first header_field that differs; 0: none
  std::uint64_t expected; //!< the word that the receiver expected
  std::uint64_t found;    //!< the word that came
};

//! One end of a message, as kernels see it.
struct checked_message {
  std::byte const* data;     //!< the message, in its slot
  message_header* header;    //!< travels after it
  message_verdict* verdict;  //!< where the receiver writes what it found
  std::uint64_t const* step; //!< the number of the step, counted on the GPU
  message_header known;      //!< without step and checksum
};

inline constexpr std::uint64_t header_magic = 0x7069706568656164; // "pipehead"
inline constexpr int checking_threads = 512;

//! The kernels of this translation unit; null pointers where no compiler for CUDA reads it.
struct checking_kernels {
  void const* count_step = nullptr;
  void const* seal = nullptr;
  void const* check = nullptr;
};

#if defined(__CUDACC__)

//! The sum over all words, each mixed with its place, does not depend on the number of threads. The
//! mixing is one to one, so a message in which one word has changed has another sum for certain.
//! @source the finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
//! generators", OOPSLA 2014.
__device__ inline std::uint64_t mixed_word(std::uint64_t word, std::int64_t place) {
  word += static_cast<std::uint64_t>(place + 1) * 0x9e3779b97f4a7c15U;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9U;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebU;
  return word ^ (word >> 31);
}

__device__ inline std::uint64_t
word_of_bytes(std::byte const* data, std::int64_t place, std::int64_t bytes) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8 && 8 * place + i < bytes; ++i)
    word |= static_cast<std::uint64_t>(data[8 * place + i]) << 8 * i;
  return word;
}

//! Of one block with a power of two of threads; the result is thread 0's.
__device__ inline std::uint64_t checksum(std::byte const* data, std::int64_t bytes) {
  __shared__ std::uint64_t sums[checking_threads];
  int const thread = static_cast<int>(threadIdx.x);
  bool const aligned = reinterpret_cast<std::uintptr_t>(data) % 8 == 0;
  std::int64_t const whole = aligned ? bytes / 8 : 0;
  auto const* const words = reinterpret_cast<std::uint64_t const*>(data);
  std::uint64_t sum = 0;
  std::int64_t place = thread;
#pragma unroll 4
  for (; place < whole; place += blockDim.x)
    sum += mixed_word(words[place], place);
  for (; 8 * place < bytes; place += blockDim.x)
    sum += mixed_word(word_of_bytes(data, place, bytes), place);
  sums[thread] = sum;
  __syncthreads();
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    if (thread < half)
      sums[thread] += sums[thread + half];
    __syncthreads();
  }
  return sums[0];
}

__device__ inline message_header header_of(checked_message const& m) {
  message_header made = m.known;
  made.words[static_cast<int>(header_field::step)] = *m.step;
  made.words[static_cast<int>(header_field::checksum)] = checksum(
    m.data, static_cast<std::int64_t>(m.known.words[static_cast<int>(header_field::bytes)]));
  return made;
}

// A counter on the device, since the arguments of a kernel in a graph never change.
static __global__ void count_step_kernel(std::uint64_t* step) {
  ++*step;
}

static __global__ void seal_kernel(checked_message m) {
  message_header const made = header_of(m);
  if (threadIdx.x == 0)
    *m.header = made;
}

static __global__ void check_kernel(checked_message m) {
  message_header const expected = header_of(m);
  if (threadIdx.x != 0)
    return;
  message_verdict verdict{};
  for (int field = header_fields - 1; field >= 0; --field)
    if (expected.words[field] != m.header->words[field])
      verdict = {
        static_cast<std::uint64_t>(field) + 1, expected.words[field], m.header->words[field]};
  *m.verdict = verdict;
}

static inline checking_kernels kernels_for_checks() {
  return {reinterpret_cast<void const*>(&count_step_kernel),
          reinterpret_cast<void const*>(&seal_kernel),
          reinterpret_cast<void const*>(&check_kernel)};
}
#else
static inline checking_kernels kernels_for_checks() {
  return {};
}
#endif

} // namespace pipelining::inline v0_3::cuda::detail
