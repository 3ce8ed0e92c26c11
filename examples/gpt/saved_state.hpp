// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The state of training as named tensors: checkpoints have these, so that another number of
//! devices, stages or shards can go on from them.

#include <pipe/cluster/tensor_checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "parameter.hpp"
#include "tensor_parts.hpp"

namespace gpt {

namespace pp = pipelining;

//! Adds the values of a stage and both averages of the optimizer to the tensors of a checkpoint.
//! @param stage must stay where it is while these are in use
template <class Stage>
void add_tensors(std::vector<pp::state_tensor>& tensors, Stage& stage) {
  auto const parts = stage.parts();
  std::size_t next = 0;
  stage.for_each_parameter([&](parameter<float>& p) {
    auto const& part = parts.at(next++);
    auto const add = [&](char const* kind, std::vector<float>& numbers) {
      tensors.push_back(pp::tensor_of(part.name + kind, numbers, part.shape));
      tensors.back().whole = part.whole;
      tensors.back().first = part.first;
    };
    add(".value", p.value);
    add(".mean", p.mean);
    add(".square", p.square);
  });
  if (next != parts.size()) {
    throw std::logic_error("a stage has other parameters than parts_of names");
  }
}

//! The state of a generator as numbers.
[[nodiscard]] inline std::vector<std::uint64_t> numbers_of(std::mt19937_64 const& random) {
  std::stringstream text;
  text << random;
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t number = 0; text >> number;) {
    numbers.push_back(number);
  }
  return numbers;
}
inline void set_numbers(std::mt19937_64& random, std::vector<std::uint64_t> const& numbers) {
  std::stringstream text;
  for (std::uint64_t const number : numbers) {
    text << number << ' ';
  }
  text >> random;
}

} // namespace gpt
