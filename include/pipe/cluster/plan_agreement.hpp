// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checks that all ranks of a run have the same plan, and are of the same run. Header for
//! pipelining::agree_on_plan and pipelining::agree_on_text.

#include <pipe/cluster/run_text.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/plan/difference.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/version.hpp>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

namespace detail {

//! The end of a sentence about a difference between ranks.
inline constexpr char const* same_program = "; start all ranks with the same program and options";

//! The version of the library as a line.
[[nodiscard]] inline std::string version_line() {
  return "pipelining=" + std::to_string(PIPELINING_VERSION_MAJOR) + '.' +
         std::to_string(PIPELINING_VERSION_MINOR) + '.' + std::to_string(PIPELINING_VERSION_PATCH) +
         '\n';
}

//! Compares the plan of this rank with the plan of rank 0, through the store.
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
    throw std::runtime_error(difference + same_program);
}

} // namespace detail

//! @brief Compares a text of this rank, and the version of the library, with rank 0.
//!
//! Rank 0 waits for nobody. Where all must have agreed before they go on, a barrier follows.
//! @param about all that must be the same, as lines `key=value`: options, model, seed, data.
//! @param name tells the comparisons of one store apart.
//! @throws std::runtime_error that names the first difference with both values and both ranks, or
//! as the store's get does.
template <run_store Store>
void agree_on_text(Store& line,
                   std::string_view about,
                   int rank,
                   std::string const& name,
                   std::chrono::nanoseconds deadline) {
  std::string const mine = detail::version_line().append(about);
  if (rank == 0) {
    line.set(name + "/about", mine);
    return;
  }
  std::string const difference = detail::differing_lines(
    "rank 0", line.get(name + "/about", deadline), "rank " + std::to_string(rank), mine);
  if (!difference.empty())
    throw std::runtime_error(difference + detail::same_program);
}

} // namespace pipelining::inline v0_3
