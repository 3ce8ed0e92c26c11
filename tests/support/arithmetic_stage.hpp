// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage whose numbers depend on every message, activation and order of passes, for tests
//! of executors.

#include <pipe/run/context.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace support {

//! @brief The 64-bit numbers of a message are mixed with the stage, so that a lost, swapped or
//! stale message changes
//!        the result. Weight gradients are a sum over units that does not depend on their order.
struct arithmetic_stage {
  static constexpr bool takes_chunks = true;
  std::uint64_t weight = 1;
  std::uint64_t gradient = 0;
  std::uint64_t losses = 0;
  int calls = 0;

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    a ^= b + 0x9e3779b97f4a7c15U + (a << 6U) + (a >> 2U);
    return a * 0xbf58476d1ce4e5b9U;
  }
  static std::uint64_t unit(pipelining::context const& where) {
    return mix(static_cast<std::uint64_t>(where.microbatch) + 1,
               static_cast<std::uint64_t>(where.chunk) + 1);
  }
  static std::uint64_t& word(pipelining::buffer const& memory) {
    return *memory.as<std::uint64_t>().data();
  }

  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    ++calls;
    std::uint64_t const x = in.slot < 0 ? unit(where) : in.as<std::uint64_t>()[0];
    word(where.activation) = x;
    std::uint64_t y = mix(x, weight);
    if (where.state.slot >= 0) {
      if (where.chunk == 0)
        word(where.state) = unit(where);
      y = mix(y, word(where.state));
      word(where.state) = mix(word(where.state), x);
    }
    if (out.slot >= 0)
      for (std::uint64_t& element : out.as<std::uint64_t>())
        element = y;
    else
      losses += y;
  }
  void
  backward_input(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    ++calls;
    std::uint64_t const dy =
      in.slot < 0 ? mix(word(where.activation), 7) : in.as<std::uint64_t>()[0];
    word(where.weight_input) = dy;
    backward_of(where, dy, out);
  }
  void backward_weight(pipelining::context const& where) {
    ++calls;
    gradient += mix(word(where.weight_input), word(where.activation));
  }
  void backward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    ++calls;
    std::uint64_t const dy =
      in.slot < 0 ? mix(word(where.activation), 7) : in.as<std::uint64_t>()[0];
    backward_of(where, dy, out);
    gradient += mix(dy, word(where.activation));
  }

private:
  void
  backward_of(pipelining::context const& where, std::uint64_t dy, pipelining::output out) const {
    std::uint64_t dx = mix(dy, weight ^ word(where.activation));
    if (where.state_gradient.slot >= 0) {
      std::uint64_t& carry = word(where.state_gradient);
      bool const turns = carried_chunks(where) == 0;
      if (turns)
        carry = 0x1234;
      dx = mix(dx, carry);
      carry = mix(carry, dy);
    }
    if (out.slot >= 0)
      for (std::uint64_t& element : out.as<std::uint64_t>())
        element = dx;
  }
  //! The last chunk opens the carry; a stage does not know the number of chunks, so the test tells
  //! it.
  [[nodiscard]] int carried_chunks(pipelining::context const& where) const {
    return chunks - 1 - where.chunk;
  }

public:
  int chunks = 1;
};

//! @brief Does not come back from `forward` until it is released.
struct stalling_stage : arithmetic_stage {
  std::atomic<bool>* release = nullptr;
  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    while (release != nullptr && !release->load())
      std::this_thread::yield();
    arithmetic_stage::forward(where, in, out);
  }
};

//! @brief What one device computes, microbatch after microbatch: the reference of every executor.
struct sequential_result {
  std::vector<std::uint64_t> gradients; // [stages]
  std::uint64_t losses = 0;
};

//! @param from_before backward passes read of the stage before, as where weights travel.
inline sequential_result
run_sequentially(int stages, int microbatches, int chunks, bool from_before = false) {
  std::vector<arithmetic_stage> model(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    model[static_cast<std::size_t>(s)].weight = static_cast<std::uint64_t>(s) + 3;
    model[static_cast<std::size_t>(s)].chunks = chunks;
  }
  auto const size = static_cast<std::size_t>(stages);
  std::vector<std::uint64_t> activation(size * static_cast<std::size_t>(chunks));
  std::vector<std::uint64_t> state(size);
  std::vector<std::uint64_t> carry(size);
  auto memory = [](std::uint64_t& word) {
    return pipelining::buffer{0, reinterpret_cast<std::byte*>(&word), 8};
  };
  for (int m = 0; m < microbatches; ++m) {
    auto where = [&](std::size_t s, int c) {
      pipelining::context result{0, static_cast<int>(s), m, c, {}, {}, {}, {}, nullptr};
      result.activation = memory(activation[static_cast<std::size_t>(c) * size + s]);
      if (chunks > 1)
        result.state = memory(state[s]);
      if (chunks > 1)
        result.state_gradient = memory(carry[s]);
      return result;
    };
    std::uint64_t between = 0;
    std::uint64_t made = 0;
    auto read = [&](bool exists) {
      return exists ? pipelining::input{0, reinterpret_cast<std::byte const*>(&between), 8}
                    : pipelining::input{};
    };
    for (int c = 0; c < chunks; ++c)
      for (std::size_t s = 0; s < size; ++s) {
        model[s].forward(
          where(s, c), read(s > 0), s + 1 < size ? memory(made) : pipelining::output{});
        between = made;
      }
    for (int c = chunks - 1; c >= 0; --c)
      for (std::size_t turn = 0; turn < size; ++turn) {
        std::size_t const s = from_before ? turn : size - 1 - turn;
        model[s].backward(
          where(s, c), read(turn > 0), turn + 1 < size ? memory(made) : pipelining::output{});
        between = made;
      }
  }
  sequential_result result;
  for (arithmetic_stage const& stage : model)
    result.gradients.push_back(stage.gradient);
  result.losses = model.back().losses;
  return result;
}

} // namespace support
