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

//! Numbers borrowed from a pool; they go back when the block goes.
template <class Number>
class block {
public:
  block() = default;
  block(block&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), numbers_(std::move(other.numbers_)),
        count_(std::exchange(other.count_, 0)) {}
  block& operator=(block&& other) noexcept {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    numbers_ = std::move(other.numbers_);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }
  ~block() { release(); }

  [[nodiscard]] Number* data() const { return numbers_.get(); }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  void release() noexcept;

private:
  friend class activation_pool<Number>;
  activation_pool<Number>* pool_ = nullptr;
  std::unique_ptr<Number[]> numbers_;
  std::size_t count_ = 0;
};

//! All that a device keeps from one pass to a later one: activations, keys and values, gradients
//! that wait for their weights. Blocks that were given back are lent again, so a warm step
//! allocates nothing. Used by the thread of one device only.
template <class Number>
class activation_pool {
public:
  [[nodiscard]] block<Number> take(std::int64_t count) {
    block<Number> lent;
    lent.pool_ = this;
    lent.count_ = static_cast<std::size_t>(count);
    auto& spare = spare_[lent.count_];
    if (spare.empty()) {
      lent.numbers_ = std::make_unique<Number[]>(lent.count_);
      spare.reserve(++owned_[lent.count_]); // so that giving back never allocates
    } else {
      lent.numbers_ = std::move(spare.back());
      spare.pop_back();
    }
    live_ += lent.count_ * sizeof(Number);
    return lent;
  }

  //! Where to keep so many numbers.
  //! @param given there, where the caller has a place for them; null: in a block that `lent`
  //! becomes
  [[nodiscard]] Number* place(std::int64_t count, Number* given, block<Number>& lent) {
    if (given != nullptr)
      return given;
    lent = take(count);
    return lent.data();
  }

  //! To be called at the end of every pass: what is lent now is what is kept between passes.
  void end_of_pass() { peak_ = live_ > peak_ ? live_ : peak_; }

  [[nodiscard]] std::size_t live_bytes() const { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const { return peak_; }

private:
  friend class block<Number>;
  std::map<std::size_t, std::vector<std::unique_ptr<Number[]>>> spare_;
  std::map<std::size_t, std::size_t> owned_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
};

template <class Number>
void block<Number>::release() noexcept {
  if (pool_ != nullptr) {
    pool_->live_ -= count_ * sizeof(Number);
    pool_->spare_.find(count_)->second.push_back(std::move(numbers_));
    pool_ = nullptr;
    count_ = 0;
  }
}

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

//! Where a part of a layer works: on so many tokens, with what it keeps of them.
template <class Number>
struct part_place {
  std::int64_t tokens;
  Number* kept;  //!< from forward to the end of backward
  Number* added; //!< from the gradient of the input to those of weights
  scratch<Number>* space;
};

} // namespace gpt
