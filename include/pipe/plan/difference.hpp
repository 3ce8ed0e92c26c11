// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Do all devices run the same plan, and if not, where do they differ? Header for
//! pipelining::detail::first_difference.

#include <pipe/plan/fingerprint.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pipelining::inline v0_3::detail {

[[nodiscard]] inline std::string unpack(std::uint64_t const* words, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < 8 * count; ++i)
    if (char const c = static_cast<char>(words[i / 8] >> i % 8 * 8 & 0xff); c != 0)
      text += c;
  return text;
}

//! The word of a field.
[[nodiscard]] constexpr char const* word(summary_field at) noexcept {
  switch (at) {
  case summary_field::version: return "version";
  case summary_field::policy:
  case summary_field::policy_end: return "policy";
  case summary_field::elements:
  case summary_field::elements_middle:
  case summary_field::elements_end: return "elements";
  case summary_field::devices: return "devices";
  case summary_field::microbatches: return "microbatches";
  case summary_field::chunks: return "chunks";
  case summary_field::stage_count: return "stages";
  case summary_field::placement: return "placement";
  case summary_field::evaluates: return "evaluation";
  case summary_field::passes: return "passes";
  case summary_field::messages: return "messages";
  case summary_field::order_of_passes: return "the order of passes";
  case summary_field::order_of_messages: return "the order of messages";
  case summary_field::sizes_of_messages: return "the sizes of messages";
  case summary_field::arena_bytes: return "bytes of the largest arena";
  case summary_field::slots_and_waits: return "slots and waits";
  default: return "the fingerprint";
  }
}

//! The value of a field in words, empty for hashes, which say nothing to people.
[[nodiscard]] inline std::string value_of(plan_summary const& of, summary_field at) {
  std::uint64_t const number = of[at];
  switch (at) {
  case summary_field::version:
    return std::to_string(number / 1000000) + "." + std::to_string(number / 1000 % 1000) + "." +
           std::to_string(number % 1000);
  case summary_field::policy:
  case summary_field::policy_end: return unpack(&of[summary_field::policy], 2);
  case summary_field::elements:
  case summary_field::elements_middle:
  case summary_field::elements_end: return "'" + unpack(&of[summary_field::elements], 3) + "'";
  case summary_field::placement: {
    constexpr char const* placements[] = {"looped", "wave", "bidirectional", "custom"};
    return number < 4 ? placements[number] : "unknown";
  }
  case summary_field::evaluates: return number != 0 ? "yes" : "no";
  case summary_field::order_of_passes:
  case summary_field::order_of_messages:
  case summary_field::sizes_of_messages:
  case summary_field::slots_and_waits:
  case summary_field::fingerprint_high:
  case summary_field::fingerprint_low: return {};
  default: return std::to_string(number);
  }
}

//! The first difference between the summaries of two devices as a sentence: "devices 0 and 2
//! disagree: microbatches 16 vs 12".
//! @return an empty text when there is none.
[[nodiscard]] inline std::string
first_difference(int one, plan_summary const& ones, int other, plan_summary const& others) {
  int first = 0;
  while (first < summary_fields && ones.words[first] == others.words[first])
    ++first;
  if (first == summary_fields)
    return {};
  auto const at = static_cast<summary_field>(first);
  std::string const who =
    "devices " + std::to_string(one) + " and " + std::to_string(other) + " disagree";
  std::string const value = value_of(ones, at);
  if (value.empty())
    return who + " on " + detail::word(at);
  return who + ": " + detail::word(at) + " " + value + " vs " + value_of(others, at);
}

} // namespace pipelining::inline v0_3::detail
