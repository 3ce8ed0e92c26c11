// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages that are several tensors. Header for pipelining::message_layout.

#include <pipe/plan/dtype.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Where each tensor of a message lies in its bytes. They follow each other in the order in
//! which they are given, each at a multiple of `alignment`.
//!
//! `bytes()` goes into the sizes of a plan; a stage asks for the memory of a tensor in the input or
//! output that a pass is handed, by number or by name. A message without tensors, or with other
//! contents, needs no layout: its bytes are those of the plan.
class message_layout {
public:
  //! One tensor of a message.
  struct tensor {
    std::string name{};                  //!< such as "hidden"
    std::string dtype{};                 //!< as safetensors calls it: "F32", "BF16", "I64"
    std::vector<std::int64_t> shape{};   //!< empty: one number
    std::vector<std::int64_t> strides{}; //!< [axes], in numbers; empty: row by row, without gaps
  };

  //! Of each tensor, in bytes: oneDNN, ggml and vector units ask for as much.
  static constexpr std::int64_t alignment = 64;

  message_layout() = default; //!< of no tensors
  //! @throws std::invalid_argument for an unknown dtype, a name that stands twice, a negative
  //! extent or stride, strides of another number of axes, or more bytes than 2^62.
  explicit message_layout(std::vector<tensor> tensors)
      : tensors_(std::move(tensors)), offsets_(tensors_.size()) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      check(tensors_[i]);
      offsets_[i] = (bytes_ + alignment - 1) / alignment * alignment;
      bytes_ = sum(offsets_[i], extent_of(tensors_[i]), tensors_[i]);
    }
  }

  //! @brief Bytes of the message.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  //! @brief The tensors, by number.
  [[nodiscard]] std::vector<tensor> const& tensors() const noexcept { return tensors_; }
  //! @brief Bytes before a one. @throws std::out_of_range
  [[nodiscard]] std::int64_t offset(std::size_t number) const { return offsets_.at(number); }

  //! @brief The number of a one. @throws std::invalid_argument that says which there are.
  [[nodiscard]] std::size_t number(std::string_view name) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i].name == name)
        return i;
    throw std::invalid_argument("run: the message has no tensor " + std::string(name) +
                                "; it has " + describe());
  }

  //! @brief The numbers of a tensor in an output, from its first to its last, gaps among them;
  //! none where there is no memory, as on the last stage.
  //! @throws std::invalid_argument where numbers of the tensor are not as wide as T, or the memory
  //! has too few bytes.
  template <class T>
  [[nodiscard]] std::span<T> of(buffer const& memory, std::size_t number) const {
    return view<T>(memory.data, memory.bytes, number);
  }
  //! @brief The same in an input.
  template <class T>
  [[nodiscard]] std::span<T const> of(input const& memory, std::size_t number) const {
    return view<T const>(memory.data, memory.bytes, number);
  }
  //! @brief The same by name.
  template <class T, class Memory>
  [[nodiscard]] auto of(Memory const& memory, std::string_view name) const {
    return of<T>(memory, number(name));
  }

  //! @brief Writes the addresses of all tensors, for functions in C: null where there is no memory.
  //! @param into [tensors]
  //! @throws std::invalid_argument where the memory has too few bytes.
  void pointers(buffer const& memory, void** into) const {
    write_pointers(memory.data, memory.bytes, into);
  }
  //! @brief The same of an input.
  void pointers(input const& memory, void const** into) const {
    write_pointers(memory.data, memory.bytes, into);
  }

  //! @brief The layout in words, such as "hidden F32[4,8], mask U8[4]". Ranks that put it into
  //! `mpi_options::about` find out before the first step where theirs differ.
  [[nodiscard]] std::string describe() const {
    std::string text;
    for (tensor const& each : tensors_) {
      text +=
        (text.empty() ? "" : ", ") + each.name + ' ' + each.dtype + detail::list_of(each.shape);
      if (!each.strides.empty())
        text += " by " + detail::list_of(each.strides);
    }
    return text.empty() ? "none" : text;
  }

private:
  static constexpr std::int64_t most_bytes = std::int64_t{1} << 62;

  [[noreturn]] static void refuse(tensor const& one, char const* why) {
    throw std::invalid_argument("run: tensor " + one.name + " of a message " + why);
  }
  static std::int64_t sum(std::int64_t a, std::int64_t b, tensor const& one) {
    if (b > most_bytes - a)
      refuse(one, "has more than 2^62 bytes; are its shape and strides right?");
    return a + b;
  }

  void check(tensor const& one) const {
    if (detail::bytes_of_dtype(one.dtype) == 0)
      refuse(one, "has no dtype that safetensors knows; name one such as F32, BF16 or I64");
    if (number_of_same(one.name) != 1)
      refuse(one, "has a name that stands twice; give each its own");
    if (!one.strides.empty() && one.strides.size() != one.shape.size())
      refuse(one, "has not as many strides as axes; give one for each, or none");
    for (auto const* const each : {&one.shape, &one.strides})
      for (std::int64_t const number : *each)
        if (number < 0)
          refuse(one, "has a negative extent or stride");
  }
  [[nodiscard]] int number_of_same(std::string_view name) const {
    int count = 0;
    for (tensor const& each : tensors_)
      count += each.name == name ? 1 : 0;
    return count;
  }

  //! Bytes from the first number to the end of the last one.
  static std::int64_t extent_of(tensor const& one) {
    std::int64_t last = 0;
    std::int64_t stride = 1;
    for (std::size_t axis = one.shape.size(); axis-- > 0;) {
      std::int64_t const extent = one.shape[axis];
      if (extent == 0)
        return 0;
      std::int64_t const step = one.strides.empty() ? stride : one.strides[axis];
      if (step > most_bytes / 16 / extent)
        return most_bytes + 1;
      last = sum(last, (extent - 1) * step, one);
      stride = step * extent;
    }
    int const width = detail::bytes_of_dtype(one.dtype);
    return last >= most_bytes / width ? most_bytes + 1 : (last + 1) * width;
  }

  template <class Bytes>
  void check_room(Bytes* data, std::int64_t bytes) const {
    if (data != nullptr && bytes < bytes_)
      throw std::invalid_argument("run: a message of " + std::to_string(bytes) +
                                  " bytes has no room for the " + std::to_string(bytes_) + " of " +
                                  describe() + "; lower the plan with message_layout::bytes()");
  }
  template <class Bytes, class Pointer>
  void write_pointers(Bytes* data, std::int64_t bytes, Pointer* into) const {
    check_room(data, bytes);
    for (std::size_t i = 0; i < offsets_.size(); ++i)
      into[i] = data == nullptr ? nullptr : data + offsets_[i];
  }
  template <class T, class Bytes>
  [[nodiscard]] std::span<T> view(Bytes* data, std::int64_t bytes, std::size_t number) const {
    check_room(data, bytes);
    tensor const& one = tensors_.at(number);
    if (sizeof(T) != static_cast<std::size_t>(detail::bytes_of_dtype(one.dtype)))
      refuse(one, "was asked for as numbers of another width than its dtype has");
    if (data == nullptr)
      return {};
    return {reinterpret_cast<T*>(data + offsets_[number]),
            static_cast<std::size_t>(extent_of(one)) / sizeof(T)};
  }

  std::vector<tensor> tensors_{};
  std::vector<std::int64_t> offsets_{};
  std::int64_t bytes_ = 0;
};

} // namespace pipelining::inline v0_3
