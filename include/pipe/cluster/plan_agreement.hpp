// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checks that all ranks of a run have the same plan, and are of the same run. Header for
//! pipelining::agree_on_plan and pipelining::agree_on_text.

#include <pipe/cluster/run_text.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

namespace detail {

//! The end of a sentence about a difference between ranks.
inline constexpr char const* same_program = "; start all ranks with the same program and options";

//! The first difference between the summaries of two plans as a sentence: "devices 0 and 2
//! disagree: microbatches 16 vs 12". Of hashes it says only what they are of.
//! @param ones, others lines of `plan_summary`
//! @return an empty text when there is none.
[[nodiscard]] inline std::string
first_difference(int one, std::string_view ones, int other, std::string_view others) {
  std::string_view mine;
  std::string_view theirs;
  while (mine == theirs && !ones.empty()) {
    mine = take_line(ones);
    theirs = take_line(others);
  }
  if (mine == theirs)
    return {};
  std::string_view const key = key_of(mine);
  std::string const who =
    "devices " + std::to_string(one) + " and " + std::to_string(other) + " disagree";
  auto const value = [&key](std::string_view line) {
    return printable(line.substr(std::min(key.size() + 1, line.size())));
  };
  return value(mine).starts_with('#')
           ? who + " on " + std::string(key)
           : who + ": " + std::string(key) + ' ' + value(mine) + " vs " + value(theirs);
}

//! Checks that a plan can share the stages and ranks of a runner.
//! @param who the first word of the sentence about ranks
//! @throws std::invalid_argument with one sentence.
inline void check_addition(plan const& first, plan const& added, char const* who) {
  check_addition(first, added);
  if (!same_stages(first, added))
    throw std::invalid_argument(std::string(who) +
                                ": the plans of a runner keep each stage on the same rank, but "
                                "this one places them elsewhere; make another runner for it");
}

//! Compares the plan of this rank with the plan of rank 0, through the store.
//! @param elements the user's word for the types of the elements in messages, such as "bf16".
//! @param name tells the comparisons of one store apart.
//! @throws std::runtime_error that names the first difference, or as the store's get does.
template <run_store Store>
void agree_on_plan(Store& line,
                   plan const& work,
                   int rank,
                   std::string_view elements,
                   std::string const& name,
                   std::chrono::nanoseconds deadline) {
  std::string const mine = summarise(work, elements).lines;
  if (rank == 0) {
    line.set(name + "/plan", mine);
    return;
  }
  std::string const theirs = line.get(name + "/plan", deadline);
  if (!theirs.starts_with("version="))
    throw std::runtime_error("rank 0 has another version of the library");
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
  std::string const mine = "pipelining=" + detail::version_text() + '\n' + std::string(about);
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
