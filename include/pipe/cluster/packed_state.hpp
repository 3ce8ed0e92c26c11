// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Numbers as bytes and back, by one function for both ways. Header for
//! pipelining::state_packer and pipelining::state_unpacker.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Types that are packed as their bytes: a copy of the bytes is a copy of the object; no pointers.
template <class T>
concept packable = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

// A record is the size of an element, how many there are, and their bytes, all as this machine has
// them.
struct record_header {
  std::uint64_t element = 0;
  std::uint64_t count = 0;
};

} // namespace detail

//! @brief Appends the arguments of each call to its bytes.
//!
//! A function that is called with it, and hands it all that a program has to remember, reads the
//! same back when it is called with a state_unpacker: the two cannot come apart.
class state_packer {
public:
  //! Numbers of one type.
  template <detail::packable T>
  void operator()(std::vector<T> const& numbers) {
    put(std::span<T const>(numbers));
  }
  //! One number, or a struct of numbers.
  template <detail::packable T>
  void operator()(T const& number) {
    put(std::span<T const>(&number, 1));
  }
  //! Text.
  void operator()(std::string const& text) { put(std::span<char const>(text)); }

  //! @brief The bytes that were packed so far.
  [[nodiscard]] std::string const& bytes() const noexcept { return bytes_; }

private:
  template <class T>
  void put(std::span<T const> numbers) {
    detail::record_header const header{sizeof(T), numbers.size()};
    bytes_.append(reinterpret_cast<char const*>(&header), sizeof header);
    bytes_.append(reinterpret_cast<char const*>(numbers.data()), numbers.size_bytes());
  }

  std::string bytes_;
};

//! @brief Takes out the values that a state_packer has put in, in the same order.
class state_unpacker {
public:
  //! @param bytes must outlive the object.
  explicit state_unpacker(std::string_view bytes) noexcept : rest_(bytes) {}

  //! @brief Fills numbers of which the program knows how many there are: a vector that is not
  //! empty. An empty one gets as many as there are.
  //! @throws std::runtime_error where something else was packed here.
  template <detail::packable T>
  void operator()(std::vector<T>& numbers) {
    std::size_t const count = next<T>();
    if (!numbers.empty() && numbers.size() != count)
      throw std::runtime_error("state: " + std::to_string(count) +
                               " numbers were packed where this program has " +
                               std::to_string(numbers.size()) + "; is it of another model?");
    numbers.resize(count);
    take(numbers.data(), count);
  }
  //! @brief One number, or a struct of numbers. @throws as above.
  template <detail::packable T>
  void operator()(T& number) {
    if (std::size_t const count = next<T>(); count != 1)
      throw std::runtime_error("state: " + std::to_string(count) +
                               " numbers were packed where this program has one");
    take(&number, 1);
  }
  //! @brief Text. @throws as above.
  void operator()(std::string& text) {
    text.resize(next<char>());
    take(text.data(), text.size());
  }

  //! @brief Says that all was taken. @throws std::runtime_error where something is left.
  void end() const {
    if (!rest_.empty())
      throw std::runtime_error("state: " + std::to_string(rest_.size()) +
                               " bytes were packed that this program does not know");
  }

private:
  //! How many elements come next.
  template <class T>
  [[nodiscard]] std::size_t next() {
    detail::record_header header;
    if (rest_.size() < sizeof header)
      throw std::runtime_error("state: it ends where this program has more; is it of another one?");
    std::memcpy(&header, rest_.data(), sizeof header);
    rest_.remove_prefix(sizeof header);
    if (header.element != sizeof(T))
      throw std::runtime_error("state: elements of " + std::to_string(header.element) +
                               " bytes were packed where this program has " +
                               std::to_string(sizeof(T)));
    if (header.count > rest_.size() / sizeof(T))
      throw std::runtime_error("state: it ends within its numbers");
    return header.count;
  }
  template <class T>
  void take(T* to, std::size_t count) {
    if (count != 0)
      std::memcpy(static_cast<void*>(to), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
  }

  std::string_view rest_;
};

} // namespace pipelining::inline v0_3
