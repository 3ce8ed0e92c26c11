// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief That all ranks of a run have the same plan. Header for pipelining::agree_on_plan.

#include <pipe/plan/plan.hpp>
#include <pipe/plan/report/difference.hpp>
#include <pipe/plan/report/fingerprint.hpp>
#include <pipe/run/store.hpp>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_2 {

//! @brief Compares the plan of this rank with that of rank 0, through the store.
//! @param elements the user's word for the types of the elements in messages, such as "bf16".
//! @param name tells the comparisons of one store apart.
//! @throws std::runtime_error that names the first difference, or as the store's get does.
template <run_store Store>
void agree_on_plan(Store& line,
                   plan_view const& work,
                   int rank,
                   std::string_view elements,
                   std::string const& name,
                   std::chrono::nanoseconds deadline) {
  plan_summary const mine = summarise(work, elements);
  if (rank == 0) {
    line.set(name + "/plan",
             std::string(reinterpret_cast<char const*>(mine.words), sizeof mine.words));
    return;
  }
  std::string const text = line.get(name + "/plan", deadline);
  plan_summary theirs;
  if (text.size() != sizeof theirs.words)
    throw std::runtime_error("rank 0 has another version of the library");
  std::memcpy(theirs.words, text.data(), sizeof theirs.words);
  std::string const difference = first_difference(0, theirs, rank, mine);
  if (!difference.empty())
    throw std::runtime_error(difference + "; start all ranks with the same program and options");
}

} // namespace pipelining::inline v0_2
