// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The buffers that a device keeps between passes, and the count of their bytes.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model.hpp"

namespace gpt {

template <class Number>
class activation_pool;

template <class Number>
struct give_back {
  activation_pool<Number>* pool = nullptr;
  std::size_t count = 0;

  void operator()(Number* numbers) const noexcept { pool->take_back(numbers, count); }
};
//! Numbers borrowed from a pool; they go back when the block goes.
template <class Number>
using block = std::unique_ptr<Number[], give_back<Number>>;

//! All that a device keeps from one pass to a later one: activations, keys and values, gradients
//! that wait for their weights. Blocks that were given back are lent again, so a warm step
//! allocates nothing. Used by the thread of one device only.
template <class Number>
class activation_pool {
public:
  [[nodiscard]] block<Number> take(std::int64_t wanted) {
    auto const count = static_cast<std::size_t>(wanted);
    auto& spare = spare_[count];
    std::unique_ptr<Number[]> numbers;
    if (spare.empty()) {
      numbers = std::make_unique<Number[]>(count);
      spare.reserve(++owned_[count]); // so that giving back never allocates
    } else {
      numbers = std::move(spare.back());
      spare.pop_back();
    }
    live_ += count * sizeof(Number);
    return {numbers.release(), {this, count}};
  }
  void take_back(Number* numbers, std::size_t count) noexcept {
    live_ -= count * sizeof(Number);
    spare_.find(count)->second.emplace_back(numbers);
  }

  //! Where to keep so many numbers.
  //! @param given there, where the caller has a place for them; null: in a block that `lent`
  //! becomes
  [[nodiscard]] Number* place(std::int64_t count, Number* given, block<Number>& lent) {
    if (given != nullptr)
      return given;
    lent = take(count);
    return lent.get();
  }

  //! To be called at the end of every pass: what is lent now is what is kept between passes.
  void end_of_pass() { peak_ = live_ > peak_ ? live_ : peak_; }

  [[nodiscard]] std::size_t live_bytes() const { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const { return peak_; }

private:
  std::map<std::size_t, std::vector<std::unique_ptr<Number[]>>> spare_;
  std::map<std::size_t, std::size_t> owned_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
};

//! Scratch that all layers of a device share; nothing in it survives a pass.
template <class Number>
struct scratch {
  std::vector<Number> numbers;
  std::vector<Number> more_numbers;
  pipelining::attention::workspace<pipelining::attention::accumulate_t<Number>> attention_space;

  //! Zeros that are valid until the next call of the same name.
  [[nodiscard]] Number* zeros(std::int64_t count) {
    numbers.assign(static_cast<std::size_t>(count), Number{0});
    return numbers.data();
  }
  [[nodiscard]] Number* more_zeros(std::int64_t count) {
    more_numbers.assign(static_cast<std::size_t>(count), Number{0});
    return more_numbers.data();
  }
};

//! What the stages of one device share. Belongs to the device's thread.
template <class Number>
struct device_memory {
  activation_pool<Number> pool;
  scratch<Number> space;
};

//! Where a layer works: at a chunk of a microbatch.
template <class Number>
struct place_of_unit {
  std::size_t microbatch;
  std::size_t unit; //!< chunks of all microbatches, counted one after the other
  chunk_range chunk;
  Number* kept; //!< where forward keeps what backward needs; null: in a buffer of the pool
  device_memory<Number>* memory;

  [[nodiscard]] std::int64_t tokens() const { return chunk.count(); }
};

//! Numbers of what a part of a layer keeps and adds, see part_place.
struct part_numbers {
  std::int64_t kept = 0;
  std::int64_t added = 0;
};

//! Where a part of a layer works: on so many tokens, with what it keeps of them.
template <class Number>
struct part_place {
  std::int64_t tokens;
  Number* kept;  //!< from forward to the end of backward
  Number* added; //!< from the gradient of the input to those of weights
  scratch<Number>* space;
};

} // namespace gpt
