// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How a timetable cuts the work of a step, and the bytes that come of it: messages, slots,
//! what is kept, planned and measured.

#include <pipe/planner/model/peak_bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host/machine.hpp"
#include "stage.hpp"

namespace gpt {

//! A pool of slots, by the name that reports have for it.
struct named_pool {
  char const* name;
  pp::slot_class of;
};

//! Bytes of the slots that a plan needs, for stages of any kind; see buffer_sizes of the library.
struct plan_sizes {
  std::int64_t totals_bytes = 0;       //!< of a stage's row
  std::span<named_pool const> pools{}; //!< what reports tell of
  std::function<std::int64_t(pp::slot_class, pp::pass const&, int)> bytes_for{};

  //! @param of sizes of one kind of stages; some depend on the stage that reads, too
  template <class Sizes>
  plan_sizes(Sizes of, std::span<named_pool const> shown, std::int64_t totals = 0)
      : totals_bytes(totals), pools(shown) {
    bytes_for = [of = std::move(of)](pp::slot_class pool, pp::pass const& maker, int reader) {
      if constexpr (requires { of.bytes(pool, maker, reader); })
        return of.bytes(pool, maker, reader);
      else
        return of.bytes(pool, maker);
    };
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    return bytes_for(of, maker, maker.stage);
  }
  //! @param reader the stage that reads it
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker, int reader) const {
    return bytes_for(of, maker, reader);
  }
};
//! Makes them for a timetable and the lengths of sequences.
using sizes_of_plan =
  std::function<plan_sizes(pp::timetable_view, std::vector<std::int64_t> const&)>;

//! Slots of a pool of a device, in bytes.
struct slot_use {
  std::int64_t planned = 0;  //!< what the plan reserves
  std::int64_t measured = 0; //!< the most that was in use at once
};

//! @param ran when each pass of a step ran. @param sizes of the plan: `bytes(pool, pass)`
template <class Sizes>
[[nodiscard]] slot_use slot_use_of(
  pp::plan const& work, pp::timetable_view ran, Sizes const& sizes, int device, pp::slot_class of) {
  bool const on_host = of == pp::slot_class::host_activation;
  auto const bytes = [&](pp::pass const& what) {
    return static_cast<double>(sizes.bytes(on_host ? pp::slot_class::activation : of, what));
  };
  return {on_host ? work.host_bytes_of(device)
                  : work.layout(device, of).count * work.layout(device, of).bytes,
          static_cast<std::int64_t>(pp::peak_slot_bytes(ran, device, of, bytes))};
}

//! A row of a table of bytes or counts, a column for each device.
struct device_row {
  std::string name;
  std::vector<std::int64_t> numbers;
};

//! Bytes of slots by device, planned next to measured. See `slot_use_of`.
template <class Sizes>
[[nodiscard]] std::vector<device_row> pool_rows(pp::plan const& work,
                                                pp::timetable_view const& ran,
                                                Sizes const& sizes,
                                                std::span<named_pool const> pools) {
  std::vector<device_row> rows;
  for (named_pool const& each : pools) {
    device_row planned{std::string(each.name) + ", planned", {}};
    device_row measured{std::string(each.name) + ", measured", {}};
    for (int device = 0; device < ran.over.extents.devices; ++device) {
      auto const use = slot_use_of(work, ran, sizes, device, each.of);
      planned.numbers.push_back(use.planned);
      measured.numbers.push_back(use.measured);
    }
    rows.insert(rows.end(), {planned, measured});
  }
  return rows;
}

inline constexpr named_pool gathered_pools[] = {{"weights", pp::slot_class::weights},
                                                {"gradients", pp::slot_class::full_gradients}};

//! Shards of the weights of a stage, where the schedule gathers them.
inline constexpr std::int64_t weight_shard_count = 2;

//! Whether the weights of a stage are gathered. Those of others stay.
[[nodiscard]] inline bool gathers_weights_of(pp::timetable_view table, int stage) {
  return std::any_of(table.passes, table.passes + table.size(), [&](pp::pass const& what) {
    return what.stage == stage &&
           (*table.over.declared)[what.kind].calls == pp::stage_call::gather_weights;
  });
}

//! Bytes of the slots with whole weights, with what else passes read, and gradients of a stage.
struct gathered_bytes {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
};
//! Those of layers on the host.
[[nodiscard]] inline gathered_bytes gathered_on_host(model_size const& size,
                                                     layer_range const& held) {
  gathered_bytes all;
  for (tensor_part const& part : parts_of(size, held)) {
    auto const count = part.count() * static_cast<std::int64_t>(sizeof(float));
    all.weights += part.start.decays ? 2 * count : count; // with transposed matrices
    all.gradients += count;
  }
  return all;
}
//! The same by stage; empty where weights are not in shards.
//! @param bytes_of what a stage with these layers has: `bytes_of(layers)`
template <class BytesOf>
[[nodiscard]] std::vector<gathered_bytes>
gathered_by_stage(model_size const& size, pp::timetable_view table, BytesOf bytes_of) {
  std::vector<gathered_bytes> all;
  if (table.over.declared->scatters)
    for (layer_range const& held : cut_model(size, table.over.extents))
      all.push_back(gathers_weights_of(table, static_cast<int>(all.size())) ? bytes_of(held)
                                                                            : gathered_bytes());
  return all;
}

//! Bytes of the slots of stages, and of weights and gradients where they are gathered and
//! scattered.
template <class Machine>
struct stage_slot_sizes {
  model_size size;
  step_cut cut;
  std::vector<layer_range> stages;        //!< what each holds
  model_size own = size;                  //!< the shard's share of heads and hidden numbers
  bool moved = false;                     //!< activations wait on the host; else they stay
  std::vector<gathered_bytes> gathered{}; //!< with transposed matrices
  //! Numbers of the gradients of every stage; empty: the plan moves none of copies.
  std::vector<std::int64_t> copied{};

  //! What reports tell of: where the library moves activations, or gathers weights.
  [[nodiscard]] std::span<named_pool const> shown() const {
    static constexpr named_pool moving[] = {{"on the device", pp::slot_class::activation},
                                            {"on the host", pp::slot_class::host_activation}};
    return moved ? moving : gathered.empty() ? std::span<named_pool const>() : gathered_pools;
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    std::size_t const stage = maker.stage;
    if (of == pp::slot_class::weights)
      return gathered[stage].weights;
    if (of == pp::slot_class::full_gradients)
      return gathered[stage].gradients;
    if (of == pp::slot_class::copied_gradient)
      return copied.empty() ? 0 : copied[stage] * static_cast<std::int64_t>(sizeof(float));
    return stage_bytes<Machine>(size, own, stages[stage], cut, of, {maker.microbatch, maker.chunk});
  }
};

//! The same on the host.
struct slot_sizes : stage_slot_sizes<host_machine<float>> {
  slot_sizes(model_size const& of, step_cut how, pp::timetable_view table)
      : stage_slot_sizes{of, std::move(how), cut_model(of, table.over.extents)} {
    moved = std::any_of(table.passes, table.passes + table.size(), [](pp::pass const& what) {
      return what.kind == pp::pass_kind::offloaded_forward;
    });
    gathered = gathered_by_stage(
      size, table, [this](layer_range const& held) { return gathered_on_host(size, held); });
  }
};

//! Bytes that a device keeps between passes at the peak of a timetable: what forward passes keep,
//! what waits for the gradients of weights, and, of sequences in chunks, keys and values with their
//! gradients.
//! @param sizes of the plan: `bytes(pool, pass)`
template <class Sizes>
[[nodiscard]] std::int64_t kept_at_peak(pp::timetable_view table, int device, Sizes const& sizes) {
  using enum pp::slot_class;
  auto const& declared = *table.over.declared;
  pp::slot_class const pools[] = {activation, weight_input, logits};
  auto const change = [&](pp::pass const& what, bool ends) {
    std::int64_t more = 0;
    for (auto const pool : pools)
      if (auto const slots = pp::detail::pool_effect(declared, pool).change(table.over, what, ends))
        more += slots * sizes.bytes(pool, what);
    int const chunks = table.over.chunks_of(what.microbatch);
    auto const calls = declared[what.kind].calls;
    bool const back = calls == pp::stage_call::backward || calls == pp::stage_call::backward_input;
    if (chunks == 1 || (!back && calls != pp::stage_call::forward))
      return more;
    if (!ends && (back ? what.chunk + 1 == chunks : what.chunk == 0))
      more += sizes.bytes(back ? sequence_gradient : sequence, what);
    if (ends && back && what.chunk == 0)
      more -= sizes.bytes(sequence_gradient, what) + sizes.bytes(sequence, what);
    return more;
  };
  return pp::detail::peak_by<std::int64_t>(table, device, change);
}

//! The same of every device.
template <class Sizes>
[[nodiscard]] std::vector<std::size_t> peaks_of(pp::timetable_view table, Sizes const& sizes) {
  std::vector<std::size_t> peaks;
  for (int device = 0; device < table.over.extents.devices; ++device)
    peaks.push_back(static_cast<std::size_t>(kept_at_peak(table, device, sizes)));
  return peaks;
}

//! Tokens of the sequence of each microbatch: the longest have all, the others as many as their
//! chunks.
[[nodiscard]] inline std::vector<std::int64_t> lengths_of(model_size const& size,
                                                          pp::timetable_view table) {
  auto const whole = cut_sequence(size.sequence, table.over.extents.chunks);
  std::vector<std::int64_t> lengths;
  for (int m = 0; m < table.over.extents.microbatches; ++m) {
    auto const chunks = static_cast<std::size_t>(table.over.chunks_of(m));
    lengths.push_back(whole[chunks - 1].end);
  }
  return lengths;
}

//! The same where all sequences are whole.
[[nodiscard]] inline std::vector<std::int64_t> whole_lengths(model_size const& size,
                                                             pp::timetable_view table) {
  return std::vector(static_cast<std::size_t>(table.over.extents.microbatches), size.sequence);
}

//! Whether stages add gradients up from the last microbatch to the first, as schedules may that run
//! all forward passes first.
[[nodiscard]] inline bool adds_from_last(pp::timetable_view table) {
  auto const* const back =
    std::find_if(table.passes, table.passes + table.size(), [&table](pp::pass const& what) {
      return what.stage == 0 && table.over.declared->adds_gradients(what.kind);
    });
  return table.over.extents.where != pp::placement::bidirectional &&
         back != table.passes + table.size() && back->microbatch > 0;
}

//! How one device without chunks cuts sequences of these lengths.
[[nodiscard]] inline step_cut cut_whole(std::vector<std::int64_t> const& lengths) {
  std::vector<std::vector<chunk_range>> chunks;
  for (auto const length : lengths)
    chunks.push_back(cut_sequence(length, 1));
  return step_cut(std::move(chunks));
}

//! How a timetable cuts the work of a step.
[[nodiscard]] inline step_cut cut_for(pp::timetable_view table,
                                      std::vector<std::int64_t> const& lengths) {
  std::vector<std::vector<chunk_range>> chunks;
  for (int m = 0; m < table.over.extents.microbatches; ++m)
    chunks.push_back(cut_sequence(lengths[static_cast<std::size_t>(m)], table.over.chunks_of(m)));
  return step_cut(std::move(chunks)).back_from_last(adds_from_last(table));
}

//! The first microbatch that takes the `way`-th way through the devices; M after the last.
[[nodiscard]] inline int first_of_way(pp::shape const& extents, std::size_t way) {
  bool const both = extents.where == pp::placement::bidirectional;
  return way == 0 ? 0 : way == 1 && both ? extents.microbatches / 2 : extents.microbatches;
}

//! The devices that have the stages, and then those of their second copies, if there are any.
[[nodiscard]] inline std::vector<int> homes_of(pp::timetable_view table) {
  auto const& extents = table.over.extents;
  std::vector<int> homes;
  for (std::size_t way = 0; way < (extents.where == pp::placement::bidirectional ? 2 : 1); ++way)
    for (int stage = 0; stage < extents.stages(); ++stage)
      homes.push_back(pp::device_of(table, stage, first_of_way(extents, way)));
  return homes;
}

//! True for stages that some microbatches have on other devices than others. They have no weights,
//! but for those of pipelines that enter at both ends.
[[nodiscard]] inline bool is_shared_out(pp::timetable_view table, int stage) {
  for (int route = 1; route < table.over.extents.routes(); ++route)
    if (table.over.extents.where == pp::placement::custom &&
        pp::device_of(table, stage, route) != pp::device_of(table, stage))
      return true;
  return false;
}

//! Whether stages add gradients up in the order of microbatches, or from the last one to the first,
//! last chunk first, as one device does: other sums would have other bits. Where there are two
//! copies of a stage, each does with its half.
//! @param weights those of weights, too; else those of inputs alone
[[nodiscard]] inline bool adds_as_one_device(pp::timetable_view table, bool weights) {
  auto const stages = static_cast<std::size_t>(table.over.extents.stages());
  // [ways, 2, S]: the unit that gets its gradients of inputs next, and of weights.
  std::vector<int> next(2 * stages, 0);
  next.resize(4 * stages, table.over.first_unit(first_of_way(table.over.extents, 1)));
  bool const from_last = adds_from_last(table);
  std::vector<bool> shared;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    shared.push_back(is_shared_out(table, stage));
  for (int i = 0; i < table.size(); ++i) {
    pp::pass const& what = table.passes[i];
    int const chunks = table.over.chunks_of(what.microbatch);
    if (shared[what.stage])
      continue;
    int const first = table.over.first_unit(what.microbatch);
    int const unit =
      from_last ? table.over.units() - 1 - first - what.chunk : first + chunks - 1 - what.chunk;
    std::size_t const way = table.over.extents.enters_at_end(what.microbatch) ? 1 : 0;
    for (std::size_t of_weights = 0; of_weights <= (weights ? 1 : 0); ++of_weights) {
      pp::pass_kind const half =
        of_weights == 1 ? pp::pass_kind::backward_weight : pp::pass_kind::backward_input;
      bool const counts = what.kind == pp::pass_kind::backward || what.kind == half;
      if (counts && next[(2 * way + of_weights) * stages + what.stage]++ != unit)
        return false;
    }
  }
  return true;
}
//! @throws std::invalid_argument for a timetable whose backward passes come in another order
inline void check_order(pp::timetable_view table, std::string const& name) {
  if (!adds_as_one_device(table, true)) {
    throw std::invalid_argument(name +
                                " adds up the gradients of microbatches in another order than one "
                                "device, with which the example compares every bit");
  }
}

} // namespace gpt
