// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The identity of a plan. Header for pipelining::fingerprint.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/version.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief 128 bits that differ when plans do. The same for a plan on all compilers and machines.
struct fingerprint {
  std::uint64_t high = 0; //!< the upper 64 bits
  std::uint64_t low = 0;  //!< the lower 64 bits

  //! @brief The fingerprint of a plan: of its order, policy, sizes, element types and the version
  //! of the library.
  //! @param elements the user's word for the types of the elements in messages, such as "bf16": a
  //! plan knows bytes only.
  //! @complexity O(n) for all items and waits.
  [[nodiscard]] static fingerprint of(plan const& work, std::string_view elements = {});

  friend constexpr bool operator==(fingerprint const&, fingerprint const&) = default;
};

namespace detail {

//! Two 64-bit states, each mixed by a finaliser with full avalanche. Not against forgery.
//! @source the finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
//! generators", OOPSLA 2014.
struct hasher {
  fingerprint state{0x9e3779b97f4a7c15u, 0xd1b54a32d192ed03u};

  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t word) noexcept {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
  }
  constexpr void add(std::string_view text) noexcept {
    add(text.size());
    for (char const c : text)
      add(static_cast<unsigned char>(c));
  }
  //! Adds whole numbers and enumerators.
  constexpr void add(auto... numbers) noexcept {
    (add_word(static_cast<std::uint64_t>(static_cast<std::int64_t>(numbers))), ...);
  }

private:
  constexpr void add_word(std::uint64_t word) noexcept {
    state.high = mix(state.high + 0x9e3779b97f4a7c15u + word);
    state.low = mix((state.low ^ word) * 0xff51afd7ed558ccdu + 1);
  }
};

//! The facts of a plan that devices compare before the first step.
struct plan_summary {
  //! `key=value` in the order in which differences are told. Hashes begin with '#': they say
  //! nothing to people.
  std::string lines{};
  fingerprint print{}; //!< of all of them

  friend bool operator==(plan_summary const&, plan_summary const&) = default;
};

//! The hashes of the parts of a plan.
struct plan_hashes {
  hasher passes;
  hasher messages;
  hasher sizes;
  hasher slots;
};

//! @param group the number of the group of a message among those of its device
inline void
add_item(plan_hashes& hashes, plan const& work, int device, item const& step, int group) noexcept {
  bool const message = step.what != operation::run;
  hasher& order = message ? hashes.messages : hashes.passes;
  message_end const end = message ? work.message_of(step) : message_end{};
  pass const& what = step.work;
  order.add(device, step.what, what.kind, what.overlapped, what.stage, what.microbatch, what.chunk);
  if (step.about != subject::pass)
    order.add(step.about, end.number, rows_of(work, step));
  if (!work.over.edges.empty())
    order.add(end.number);
  if (message) {
    order.add(end.peer, group, end.sequence);
    if (int const exchange = work.exchange_at(step); exchange != nothing)
      order.add(exchange);
    order.add(step.what == operation::send ? work.key(device, end.peer)
                                           : work.key(end.peer, device));
    for (use const& carried : work.uses_of(step))
      hashes.sizes.add(carried.bytes);
  }
  hashes.slots.add(step.lane);
  for (use const& one : work.uses_of(step))
    hashes.slots.add(one.of, one.at, one.index);
  hashes.slots.add(step.wait_count);
  for (int const wait : work.waits_of(step))
    hashes.slots.add(wait);
}

//! Adds the slots and the arena of a device.
inline void add_memory(plan_hashes& hashes, plan const& work, int device) noexcept {
  for (int of = 0; of < slot_classes; ++of) {
    slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
    if (layout.count != 0)
      hashes.slots.add(of, layout.count, layout.bytes, layout.offset);
  }
  hashes.slots.add(work.arena_bytes_of(device));
}

//! Adds which device holds which stage, and the stage graph.
constexpr void add_places(plan_hashes& hashes, pipeline_view const& over) noexcept {
  int const stage_count = over.extents.stages();
  for (int stage = 0; stage < stage_count; ++stage)
    for (int route = 0; route < over.extents.routes(); ++route)
      hashes.passes.add(device_of(over, stage, microbatch_of(over.extents, route)));
  for (int i = 0; i < over.graph().size(); ++i)
    hashes.passes.add(over.edges[i]);
}

//! The version of the library.
[[nodiscard]] inline std::string version_text() {
  return std::to_string(PIPELINING_VERSION_MAJOR) + '.' + std::to_string(PIPELINING_VERSION_MINOR) +
         '.' + std::to_string(PIPELINING_VERSION_PATCH);
}

//! Summarises a plan.
//!
//! @param elements the user's word for the types of the elements in messages, such as "bf16": a
//! plan knows bytes only.
//! @complexity O(n) for all items and waits.
[[nodiscard]] inline plan_summary summarise(plan const& work, std::string_view elements = {}) {
  constexpr char const* placements[] = {"looped", "wave", "bidirectional", "custom"};
  shape const& extents = work.over.extents;
  plan_hashes hashes;
  std::int64_t largest_arena = 0;
  int sent = 0;
  int passes = 0;
  for (int device = 0; device < extents.devices; ++device) {
    int group = nothing;
    for (item const& step : work.program_of(device)) {
      group += step.what != operation::run && !step.joins ? 1 : 0;
      add_item(hashes, work, device, step, group);
      sent += step.what == operation::send ? 1 : 0;
      passes += step.what == operation::run && step.about == subject::pass ? 1 : 0;
    }
    add_memory(hashes, work, device);
    largest_arena = std::max(largest_arena, work.arena_bytes_of(device));
  }
  add_places(hashes, work.over);
  plan_summary result;
  auto const add = [&result](char const* key, std::string_view value) {
    result.lines.append(key).append("=").append(value).append("\n");
  };
  auto const count = [&add](char const* key, std::int64_t number) {
    add(key, std::to_string(number));
  };
  auto const hash = [&add](char const* key, hasher const& part) {
    add(key, '#' + std::to_string(part.state.high));
  };
  add("version", version_text());
  add("policy", work.policy);
  add("elements", quote(elements));
  count("devices", extents.devices);
  count("microbatches", extents.microbatches);
  count("chunks", extents.chunks);
  count("stages", extents.stages());
  add("placement", placements[static_cast<int>(extents.where)]);
  add("evaluation", work.evaluates ? "yes" : "no");
  count("validation", static_cast<int>(work.validation));
  count("passes", passes);
  count("messages", sent);
  hash("the order of passes", hashes.passes);
  hash("the order of messages", hashes.messages);
  hash("the sizes of messages", hashes.sizes);
  count("bytes of the largest arena", largest_arena);
  hash("slots and waits", hashes.slots);
  hasher all;
  all.add(elements);
  all.add(std::string_view(result.lines));
  for (hasher const& part : {hashes.passes, hashes.messages, hashes.sizes, hashes.slots})
    all.add(part.state.low);
  result.print = all.state;
  hash("the fingerprint", all);
  return result;
}

} // namespace detail

inline fingerprint fingerprint::of(plan const& work, std::string_view elements) {
  return detail::summarise(work, elements).print;
}

} // namespace pipelining::inline v0_3
