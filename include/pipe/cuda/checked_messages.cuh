// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages between GPUs whose headers are compared. Header for
//! pipelining::cuda::message_checks.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/message_header.cuh>
#include <pipe/plan/describe.hpp>
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
  message_checks(plan_view const& work, int device, detail::checking_kernels kernels)
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

  plan_view work_;
  int device_;
  detail::checking_kernels kernels_;
  std::vector<int> place_; // [items]; of messages, their number
  int messages_ = 0;
  device_memory memory_;
  pinned_memory verdicts_;
};

} // namespace pipelining::inline v0_3::cuda::detail
