// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The identity of a plan. Header for pipelining::fingerprint.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

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
  [[nodiscard]] static constexpr fingerprint of(plan_view work,
                                                std::string_view elements = {}) noexcept;

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
  constexpr void add(std::int64_t value) noexcept {
    auto const word = static_cast<std::uint64_t>(value);
    state.high = mix(state.high + 0x9e3779b97f4a7c15u + word);
    state.low = mix((state.low ^ word) * 0xff51afd7ed558ccdu + 1);
  }
  constexpr void add(std::string_view text) noexcept {
    add(static_cast<std::int64_t>(text.size()));
    for (char const c : text)
      add(static_cast<std::int64_t>(static_cast<unsigned char>(c)));
  }
  constexpr void add(pass const& what) noexcept {
    add(static_cast<std::int64_t>(what.kind));
    add(what.overlapped ? 1 : 0);
    add(what.stage);
    add(what.microbatch);
    add(what.chunk);
  }
  constexpr void add(use const& one) noexcept {
    add(static_cast<std::int64_t>(one.of));
    add(one.index);
  }
};

//! The facts of a plan that all devices must share, in the order in which differences are
//! told.
enum class summary_field : int {
  version,
  policy,
  policy_end,
  elements,
  elements_middle,
  elements_end,
  devices,
  microbatches,
  chunks,
  stage_count,
  placement,
  evaluates,
  passes,
  messages,
  order_of_passes,
  order_of_messages,
  sizes_of_messages,
  arena_bytes,
  slots_and_waits,
  fingerprint_high,
  fingerprint_low
};
inline constexpr int summary_fields = 21; //!< Words of a summary.

//! The facts of a plan that devices compare before the first step. Its words of 64 bits can
//! be sent as they are.
struct plan_summary {
  std::uint64_t words[detail::summary_fields]{}; //!< by summary_field

  //! One word.
  [[nodiscard]] constexpr std::uint64_t& operator[](detail::summary_field at) noexcept {
    return words[static_cast<int>(at)];
  }
  //! One word.
  [[nodiscard]] constexpr std::uint64_t const& operator[](detail::summary_field at) const noexcept {
    return words[static_cast<int>(at)];
  }
  friend constexpr bool operator==(plan_summary const&, plan_summary const&) = default;
};

//! Packs text into words, the first character in the lowest byte. Characters without room are only
//! in the fingerprint.
constexpr void pack(std::uint64_t* words, std::size_t count, std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size() && i < 8 * count; ++i)
    words[i / 8] |= static_cast<std::uint64_t>(static_cast<unsigned char>(text[i])) << i % 8 * 8;
}

//! The hashes of the parts of a plan.
struct plan_hashes {
  hasher passes;
  hasher messages;
  hasher sizes;
  hasher slots;
};

//! Adds what a step uses: the first that it reads and fills, what it keeps, then the rest.
constexpr void add_uses(hasher& slots, plan_view work, item const& step) noexcept {
  using enum slot_place;
  for (slot_place const list : {inputs, outputs})
    slots.add(work.use_at(list, step));
  slots.add(step.lane);
  for (slot_place const kept : {activation, weight_input, state, state_gradient})
    slots.add(work.use_at(kept, step).index);
  for (slot_place const list : {inputs, outputs})
    for (bool first = true; use const& one : work.uses_of(step))
      if (one.at == list && !std::exchange(first, false))
        slots.add(one);
}

//! @param group the number of the group of a message among those of its device
constexpr void
add_item(plan_hashes& hashes, plan_view work, int device, item const& step, int group) noexcept {
  bool const message = step.what != operation::run;
  hasher& order = message ? hashes.messages : hashes.passes;
  message_end const end = message ? work.message_of(step) : message_end{};
  order.add(device);
  order.add(static_cast<std::int64_t>(step.what));
  order.add(step.work);
  if (step.about != subject::pass)
    for (int const number : {static_cast<int>(step.about), end.number, rows_of(work, step)})
      order.add(number);
  if (work.over.edges != nullptr)
    order.add(end.number);
  if (message) {
    order.add(end.peer);
    order.add(group);
    order.add(end.sequence);
    if (end.exchange != nothing)
      order.add(end.exchange);
    order.add(step.what == operation::send ? work.key(device, end.peer)
                                           : work.key(end.peer, device));
    for (use const& carried : work.uses_of(step))
      hashes.sizes.add(carried.bytes);
  }
  add_uses(hashes.slots, work, step);
  hashes.slots.add(step.wait_count);
  for (int const wait : work.waits_of(step))
    hashes.slots.add(wait);
}

//! Adds the slots and the arena of a device.
constexpr void add_memory(plan_hashes& hashes, plan_view work, int device) noexcept {
  for (int of = 0; of < slot_classes; ++of) {
    slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
    if (layout.count == 0)
      continue;
    hashes.slots.add(of);
    for (std::int64_t const number : {std::int64_t{layout.count}, layout.bytes, layout.offset})
      hashes.slots.add(number);
  }
  hashes.slots.add(work.arena_bytes[device]);
}

//! Adds which device holds which stage, and the stage graph.
constexpr void add_places(plan_hashes& hashes, pipeline_view const& over) noexcept {
  int const stage_count = over.extents.stages();
  for (int stage = 0; stage < stage_count; ++stage)
    for (int route = 0; route < over.extents.routes(); ++route)
      hashes.passes.add(holder_of(over, route * over.declared->rows * stage_count + stage));
  int const edges = over.edges == nullptr ? 0 : table_size(over.edges, stage_count);
  for (int i = 0; i < edges; ++i)
    hashes.passes.add(over.edges[i]);
}

//! Summarises a plan.
//!
//! @param elements the user's word for the types of the elements in messages, such as "bf16": a
//! plan knows bytes only. Told in full up to 24 characters.
//! @complexity O(n) for all items and waits.
[[nodiscard]] constexpr plan_summary summarise(plan_view work,
                                               std::string_view elements = {}) noexcept {
  using field = summary_field;
  plan_summary result;
  auto const set = [&result](field at, std::int64_t value) {
    result[at] = static_cast<std::uint64_t>(value);
  };
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
    if (work.arena_bytes[device] > largest_arena)
      largest_arena = work.arena_bytes[device];
  }
  add_places(hashes, work.over);
  set(field::version,
      PIPELINING_VERSION_MAJOR * 1000000 + PIPELINING_VERSION_MINOR * 1000 +
        PIPELINING_VERSION_PATCH);
  pack(&result[field::policy], 2, work.policy);
  pack(&result[field::elements], 3, elements);
  set(field::devices, extents.devices);
  set(field::microbatches, extents.microbatches);
  set(field::chunks, extents.chunks);
  set(field::stage_count, extents.stages());
  set(field::placement, static_cast<std::int64_t>(extents.where));
  set(field::evaluates, (work.evaluates ? 1 : 0) + 2 * static_cast<int>(work.validation));
  set(field::passes, passes);
  set(field::messages, sent);
  result[field::order_of_passes] = hashes.passes.state.high;
  result[field::order_of_messages] = hashes.messages.state.high;
  result[field::sizes_of_messages] = hashes.sizes.state.high;
  set(field::arena_bytes, largest_arena);
  result[field::slots_and_waits] = hashes.slots.state.high;
  hasher all;
  all.add(elements);
  all.add(std::string_view(work.policy));
  for (int at = 0; at < static_cast<int>(field::fingerprint_high); ++at)
    all.add(static_cast<std::int64_t>(result.words[at]));
  for (hasher const& part : {hashes.passes, hashes.messages, hashes.sizes, hashes.slots})
    all.add(static_cast<std::int64_t>(part.state.low));
  result[field::fingerprint_high] = all.state.high;
  result[field::fingerprint_low] = all.state.low;
  return result;
}

//! The fingerprint of a plan that has been summarised.
[[nodiscard]] constexpr fingerprint fingerprint_in(plan_summary const& summary) noexcept {
  return {summary[summary_field::fingerprint_high], summary[summary_field::fingerprint_low]};
}

} // namespace detail

constexpr fingerprint fingerprint::of(plan_view work, std::string_view elements) noexcept {
  return detail::fingerprint_in(detail::summarise(work, elements));
}

} // namespace pipelining::inline v0_3
