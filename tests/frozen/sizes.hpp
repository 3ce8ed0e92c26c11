// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The thirty sizes at which schedules are frozen, the times of their passes and messages,
//! and the sizes of their buffers. All times are multiples of 1/8, so that sums of them are exact
//! in any order.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tests/support/canonical_text.hpp>
#include <vector>

namespace frozen {

//! How long everything takes.
enum class times {
  unit,   //!< the papers' unit cost
  plain,  //!< unlike times of kinds, messages take a little
  uneven, //!< by stage and chunk, too; messages by their ends; groups have times of their own
  late    //!< as plain, and messages take longer than passes
};

//! One size. Options that a schedule does not have are left out of its choice; so are those of 0.
struct size {
  int devices;
  int microbatches;
  times cost = times::unit;
  int chunks = 0;
  int stages_per_device = 0;
  int group = 0;
  double limit = 1; //!< of activations, in microbatches of one stage for each device
  int forwards = 0;
  int keep = 0;
  bool uneven_chunks = false; //!< chunk counts 3, 1, 2 in turn
  bool other_way = false;     //!< eager, unfused, and more stages that go forward
};

inline constexpr std::array<size, 30> sizes{{
  {.devices = 1, .microbatches = 1},
  {.devices = 1, .microbatches = 4, .cost = times::plain, .chunks = 2, .stages_per_device = 2},
  {.devices = 1, .microbatches = 5, .cost = times::uneven, .chunks = 3, .limit = 3, .keep = 2},
  {.devices = 2, .microbatches = 1, .cost = times::plain},
  {.devices = 2, .microbatches = 2, .stages_per_device = 2, .limit = 2},
  {.devices = 2, .microbatches = 4, .cost = times::uneven, .other_way = true},
  {.devices = 2, .microbatches = 6, .cost = times::plain, .chunks = 2, .uneven_chunks = true},
  {.devices = 2, .microbatches = 7, .cost = times::late, .chunks = 3, .stages_per_device = 4},
  {.devices = 2, .microbatches = 12, .cost = times::uneven, .group = 2, .limit = 1.5},
  {.devices = 3, .microbatches = 3, .cost = times::unit, .chunks = 1, .limit = 2},
  {.devices = 3, .microbatches = 4, .cost = times::uneven, .chunks = 2, .stages_per_device = 1},
  {.devices = 3, .microbatches = 9, .cost = times::plain, .chunks = 3, .group = 3, .keep = 1},
  {.devices = 3, .microbatches = 11, .cost = times::late, .stages_per_device = 2, .limit = 2},
  {.devices = 4, .microbatches = 1, .cost = times::unit, .chunks = 5},
  {.devices = 4, .microbatches = 4, .cost = times::plain, .chunks = 1, .limit = 1.25},
  {.devices = 4, .microbatches = 4, .cost = times::uneven, .chunks = 4, .stages_per_device = 2},
  {.devices = 4, .microbatches = 8, .cost = times::unit, .other_way = true},
  {.devices = 4, .microbatches = 8, .cost = times::uneven, .chunks = 2, .uneven_chunks = true},
  {.devices = 4, .microbatches = 11, .cost = times::plain, .chunks = 2, .stages_per_device = 4},
  {.devices = 4, .microbatches = 16, .cost = times::late, .chunks = 1, .group = 4, .limit = 2},
  {.devices = 4, .microbatches = 19, .cost = times::uneven, .stages_per_device = 2, .limit = 1.5},
  {.devices = 5, .microbatches = 5, .cost = times::plain, .chunks = 2, .keep = 1},
  {.devices = 5, .microbatches = 15, .cost = times::uneven, .chunks = 1, .other_way = true},
  {.devices = 6, .microbatches = 6, .cost = times::late, .chunks = 2, .stages_per_device = 2},
  {.devices = 6, .microbatches = 12, .cost = times::plain, .chunks = 1, .forwards = 9},
  {.devices = 6, .microbatches = 11, .cost = times::uneven, .chunks = 1, .limit = 1.5},
  {.devices = 7, .microbatches = 7, .cost = times::plain, .chunks = 1, .group = 5},
  {.devices = 8, .microbatches = 8, .cost = times::uneven, .chunks = 2, .limit = 2},
  {.devices = 8, .microbatches = 9, .cost = times::plain, .stages_per_device = 2, .limit = 1.5},
  {.devices = 8, .microbatches = 16, .cost = times::uneven, .chunks = 1, .limit = 1},
}};

//! The choice of a schedule at a size.
[[nodiscard]] inline pipelining::registry::schedule_choice
choice_of(pipelining::registry::named_schedule const& schedule,
          pipelining::registry::adapter adapted,
          size const& at) {
  using pipelining::registry::option;
  pipelining::registry::schedule_choice one;
  one.name = schedule.name;
  one.devices = at.devices;
  one.microbatches = at.microbatches;
  one.adapted = adapted;
  auto const takes = [&schedule](option which, auto value) {
    return has(schedule.takes, which) && value != 0;
  };
  if (takes(option::chunk_counts, at.uneven_chunks ? 1 : 0))
    one.chunk_counts = {3, 1, 2};
  else if (takes(option::chunks, at.chunks))
    one.chunks = at.chunks;
  if (takes(option::stages_per_device, at.stages_per_device))
    one.stages_per_device = at.stages_per_device;
  if (takes(option::group, at.group))
    one.group = at.group;
  if (takes(option::memory_limit, at.limit))
    one.memory_limit = at.limit * at.devices;
  if (takes(option::forwards, at.forwards))
    one.forwards = at.forwards;
  if (takes(option::keep, at.keep))
    one.keep = at.keep;
  one.eager = at.other_way && has(schedule.takes, option::eager);
  one.unfused = at.other_way && has(schedule.takes, option::unfused);
  if (at.other_way && has(schedule.takes, option::forward_stages)) {
    one.forward_stages = at.devices + 1;
    one.backward_stages = 2 * at.devices + 1;
  }
  return one;
}

//! Times by the words of kinds.
class cost {
public:
  explicit cost(size const& at) : kind_(at.cost) {
    struct named {
      std::string_view word;
      double time;
    };
    // Eighths of a forward pass; what stands between passes takes no time.
    constexpr named all[] = {{"forward", 8},
                             {"backward", 17},
                             {"backward_input", 10},
                             {"backward_weight", 7},
                             {"checkpointed_forward", 8},
                             {"recompute", 8},
                             {"offloaded_forward", 8},
                             {"copy_out", 2},
                             {"copy_in", 3},
                             {"embed", 2},
                             {"logits", 5},
                             {"logits_gradient", 4},
                             {"embed_gradient", 3},
                             {"gather_weights", 3},
                             {"gather_weights_again", 3},
                             {"scatter_gradients", 5}};
    constexpr named unit[] = {{"forward", 8},
                              {"backward", 16},
                              {"backward_input", 8},
                              {"backward_weight", 8},
                              {"checkpointed_forward", 8},
                              {"recompute", 8},
                              {"offloaded_forward", 8},
                              {"embed", 8},
                              {"logits", 8},
                              {"logits_gradient", 8},
                              {"embed_gradient", 8}};
    std::span<named const> const table =
      kind_ == times::unit ? std::span<named const>(unit) : std::span<named const>(all);
    for (int kind = 0; kind < pipelining::flow::most_kinds; ++kind)
      for (named const& each : table)
        if (each.word ==
            pipelining::detail::kinds_of_training.word(static_cast<pipelining::pass_kind>(kind)))
          times_[static_cast<std::size_t>(kind)] = each.time / 8;
    if (kind_ == times::uneven)
      for (int from = 0; from < at.devices; ++from)
        for (int to = 0; to < at.devices; ++to)
          links_.push_back(((from * 3 + to * 5) % 4 + 1) / 8.0);
  }
  [[nodiscard]] double duration(pipelining::pass const& what) const {
    double const time = times_[static_cast<std::size_t>(pipelining::detail::index_of(what.kind))];
    return kind_ == times::uneven && time > 0 ? time + (what.stage * 5 + what.chunk * 3) % 7 / 8.0
                                              : time;
  }
  [[nodiscard]] double pair_duration(pipelining::pass const& first,
                                     pipelining::pass const& second) const {
    double const times[] = {duration(first), duration(second)};
    return kind_ == times::uneven ? std::max(times[0], times[1]) + 0.5 : times[0] + times[1];
  }
  [[nodiscard]] double latency() const {
    return kind_ == times::unit ? 0 : kind_ == times::late ? 3 : 0.25;
  }
  [[nodiscard]] std::span<double const> links() const { return links_; }
  [[nodiscard]] pipelining::detail::group_times groups() const {
    return kind_ == times::uneven ? pipelining::detail::group_times{0.5, 0.75}
                                  : pipelining::detail::group_times{};
  }

private:
  times kind_;
  std::array<double, pipelining::flow::most_kinds> times_{};
  std::vector<double> links_;
};

//! Bytes by the word of a pool, by stage and chunk; of gradients by their reader, too.
struct buffer_bytes {
  std::array<std::int64_t, pipelining::detail::slot_classes> base{};
  std::int64_t tied_bytes = 0;
  std::int64_t totals_bytes = 0;

  buffer_bytes() {
    for (int of = 0; of < pipelining::detail::slot_classes; ++of)
      base[static_cast<std::size_t>(of)] = static_cast<std::int64_t>(
        256 *
        (1 +
         support::hash_of(pipelining::detail::word(static_cast<pipelining::slot_class>(of))) % 13));
  }
  [[nodiscard]] std::int64_t bytes_of(pipelining::slot_class of, int stage, int chunk) const {
    return base[static_cast<std::size_t>(of)] + 256 * (stage % 5) - 40 * (chunk % 3);
  }
  [[nodiscard]] std::int64_t bytes(pipelining::slot_class of, pipelining::pass const& what) const {
    return bytes_of(of, what.stage, what.chunk);
  }
  [[nodiscard]] std::int64_t
  bytes(pipelining::slot_class of, pipelining::pass const& what, int reader) const {
    return bytes_of(of, reader, what.chunk);
  }
};

} // namespace frozen
