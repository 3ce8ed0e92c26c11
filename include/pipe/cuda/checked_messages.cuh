// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages between GPUs whose headers are compared. Header for
//! pipelining::cuda::message_checks.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

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

[[nodiscard]] inline std::string hexadecimal(std::uint64_t value) {
  char digits[16]{};
  return "0x" + std::string(digits, std::to_chars(digits, digits + sizeof digits, value, 16).ptr);
}

//! The headers of all messages of one device, made before and compared after each message
//! on its own stream; findings are read once per step.
class message_checks {
public:
  //! A message that was not the one expected.
  struct mismatch {
    int item_index;   //!< the receiving item
    std::string text; //!< a sentence for the report
  };

  //! @pre the device's GPU is current.
  //! @throws std::invalid_argument without kernels.
  message_checks(plan const& work, int device, detail::checking_kernels kernels)
      : work_(work), device_(device), kernels_(kernels), place_(work.program_of(device).size()),
        memory_(bytes_for(std::max(count_messages(), 1))),
        verdicts_(static_cast<std::int64_t>(verdict_bytes())) {
    if (kernels.check == nullptr)
      throw std::invalid_argument("nccl: messages are checked by kernels; compile what makes the "
                                  "runner with nvcc, or leave nccl_options::checked off");
    // Loading a kernel at its first launch may wait for a message that waits for the kernel.
    cudaFuncAttributes loaded{};
    for (void const* kernel : {kernels.count_step, kernels.seal, kernels.check})
      check(cudaFuncGetAttributes(&loaded, kernel), "cudaFuncGetAttributes");
  }

  //! Begins a step. All uses of headers come after this.
  void begin(cudaStream_t on) {
    auto* step = reinterpret_cast<std::uint64_t*>(memory_.data());
    void* arguments[] = {&step};
    launch(kernels_.count_step, 1, arguments, on);
  }
  //! Ends a step: the host gets to know the findings. All uses of headers come before.
  void end(cudaStream_t on) {
    check(
      cudaMemcpyAsync(verdicts_.data(), verdict(0), verdict_bytes(), cudaMemcpyDeviceToHost, on),
      "cudaMemcpyAsync");
  }

  //! Makes the header of a message to send.
  void seal(int item_index, rooms::arena const& slots, cudaStream_t on) {
    look_at(kernels_.seal, item_index, slots, on);
  }
  //! Compares a message and its header with the message that this device expects.
  void compare(int item_index, rooms::arena const& slots, cudaStream_t on) {
    look_at(kernels_.check, item_index, slots, on);
  }
  //! Where the header of an item's message lies on the device.
  [[nodiscard]] std::byte* header_of(int item_index) const noexcept {
    return reinterpret_cast<std::byte*>(header(place_of(item_index)));
  }

  //! The first message in the order of the program that was not as expected in a step that
  //! has ended.
  [[nodiscard]] std::optional<mismatch> first_mismatch() const {
    auto const* found = reinterpret_cast<message_verdict const*>(verdicts_.data());
    int const items = static_cast<int>(place_.size());
    for (int i = 0; i < items; ++i)
      if (step_at(i).what == operation::receive && found[place_of(i)].wrong != 0)
        return mismatch{i, in_words(step_at(i), found[place_of(i)])};
    return std::nullopt;
  }

private:
  [[nodiscard]] item const& step_at(int item_index) const noexcept {
    return work_.program_of(device_)[static_cast<std::size_t>(item_index)];
  }
  [[nodiscard]] int place_of(int item_index) const noexcept {
    return place_[static_cast<std::size_t>(item_index)];
  }
  int count_messages() {
    for (std::size_t i = 0; i < place_.size(); ++i)
      if (work_.program_of(device_)[i].what != operation::run)
        place_[i] = messages_++;
    return messages_;
  }

  // The number of the step, then verdicts, then headers.
  static std::int64_t bytes_for(int messages) {
    return 8 + messages * std::int64_t{sizeof(message_verdict) + sizeof(message_header)};
  }
  [[nodiscard]] std::size_t verdict_bytes() const noexcept {
    return static_cast<std::size_t>(std::max(messages_, 1)) * sizeof(message_verdict);
  }
  [[nodiscard]] message_verdict* verdict(int place) const noexcept {
    return reinterpret_cast<message_verdict*>(memory_.data() + 8) + place;
  }
  [[nodiscard]] message_header* header(int place) const noexcept {
    return reinterpret_cast<message_header*>(verdict(messages_)) + place;
  }

  void look_at(void const* kernel, int item_index, rooms::arena const& slots, cudaStream_t on) {
    item const& step = step_at(item_index);
    buffer const data = slots.message(step);
    bool const sends = step.what == operation::send;
    rooms::message_end const& end = work_.message_of(step);
    auto const word = [](auto value) { return static_cast<std::uint64_t>(value); };
    checked_message m{data.data,
                      header(place_of(item_index)),
                      verdict(place_of(item_index)),
                      reinterpret_cast<std::uint64_t const*>(memory_.data()),
                      {{detail::header_magic,
                        0,
                        word(sends ? device_ : end.peer),
                        word(sends ? end.peer : device_),
                        word(end.sequence),
                        word(data.bytes),
                        0}}};
    int threads = 1;
    while (threads < detail::checking_threads && 8 * threads < data.bytes)
      threads *= 2;
    void* arguments[] = {&m};
    launch(kernel, threads, arguments, on);
  }
  static void launch(void const* kernel, int threads, void** arguments, cudaStream_t on) {
    check(cudaLaunchKernel(kernel, dim3(1), dim3(static_cast<unsigned>(threads)), arguments, 0, on),
          "cudaLaunchKernel");
  }

  [[nodiscard]] std::string named(item const& step) const {
    return (step.about == rooms::subject::pass ? "what comes of the " : "the ") +
           rooms::describe_subject(step, work_);
  }
  //! The message of that number between the same two devices, if there is one.
  [[nodiscard]] std::string sent_as(item const& expected, std::uint64_t sequence) const {
    for (item const& step : work_.program_of(device_))
      if (step.what == operation::receive &&
          work_.message_of(step).peer == work_.message_of(expected).peer &&
          static_cast<std::uint64_t>(work_.message_of(step).sequence) == sequence)
        return ", with " + named(step);
    return {};
  }
  [[nodiscard]] std::string in_words(item const& step, message_verdict const& seen) const {
    std::string const what = "the message with " + named(step) + " from rank " +
                             std::to_string(work_.message_of(step).peer);
    std::string const expected = std::to_string(seen.expected);
    std::string const found = std::to_string(seen.found);
    switch (static_cast<header_field>(seen.wrong - 1)) {
    case header_field::magic: return what + " arrived without its header, or with a broken one";
    case header_field::step:
      return what + " is another one: expected it of step " + expected + ", found it of step " +
             found;
    case header_field::sender:
      return what + " is another one: expected a message of rank " + expected + ", found one of " +
             found;
    case header_field::receiver:
      return what + " is another one: expected a message to rank " + expected + ", found one to " +
             found;
    case header_field::sequence:
      return what + " is another one: expected message " + expected +
             " between these ranks, found message " + found + sent_as(step, seen.found);
    case header_field::bytes:
      return what + " is another one: expected " + expected + " bytes, found " + found;
    case header_field::checksum: break;
    }
    return what + " arrived corrupted: the checksum of its " +
           std::to_string(work_.uses_of(step)[0].bytes) + " bytes is " +
           detail::hexadecimal(seen.expected) + ", but was " + detail::hexadecimal(seen.found) +
           " when it was sent";
  }

  plan const& work_;
  int device_;
  detail::checking_kernels kernels_;
  std::vector<int> place_; // [items]; of messages, their number
  int messages_ = 0;
  device_memory memory_;
  pinned_memory verdicts_;
};

} // namespace pipelining::inline v0_3::cuda::detail
