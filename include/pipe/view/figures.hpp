// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The figures that are printed side by side: both bubbles, and both things that passes
//! keep. Header for pipelining::timetable_figures.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/timetable_caption.hpp>

#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief The share of the makespan in which a device is idle, as a mean over devices. What a step
//! with a barrier behind it loses; on the span it is `bubble_rate`.
//! @complexity O(n) for n passes.
[[nodiscard]] constexpr double makespan_bubble_rate(timetable_view table) noexcept {
  double sum = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    sum += busy(table, device);
  double const whole = makespan(table);
  return whole > 0 ? 1 - sum / table.over.extents.devices / whole : 0;
}

//! @brief The most that a device keeps at once from `backward_input` for `backward_weight`, in
//! whole microbatches of one stage; a chunk counts its share of the tokens. 0 where backward passes
//! are fused.
//!
//! The activation is held as well until the end of `backward_weight`, so a device with split
//! backward passes needs room for both peaks.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr double
peak_weight_inputs(timetable_view table, int device, timetable_caption const& about) noexcept {
  // Equal chunks are counted whole and divided once, so that thirds add up.
  bool const equal = about.chunk_shares.empty();
  auto const share = [&](int chunk) { return equal ? 1.0 : detail::chunk_share(table, about, chunk); };
  auto const is = [&](pass const& what, role wanted) {
    kind_of_pass const& kind = (*table.over.declared)[what.kind];
    return !kind.in_groups && kind.is == wanted;
  };
  double live = 0;
  double peak = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1];) {
    int const end =
      i + 1 < table.offsets[device + 1] && table.passes[i + 1].overlapped ? i + 2 : i + 1;
    for (int k = i; k < end; ++k)
      if (is(table.passes[k], role::input))
        live += share(table.passes[k].chunk);
    peak = live > peak ? live : peak;
    for (int k = i; k < end; ++k)
      if (is(table.passes[k], role::weights))
        live -= share(table.passes[k].chunk);
    i = end;
  }
  return equal ? peak / table.over.extents.chunks : peak;
}

//! @brief What is said of a timetable in one line; peaks are those of the device that holds most.
struct timetable_figures {
  double makespan = 0;    //!< from the first start to the last end
  double span = 0;        //!< of the device that takes longest from its first start to its last end
  double bubble_rate = 0; //!< on the span
  double makespan_bubble_rate = 0; //!< on the makespan
  double peak_activations = 0;     //!< in whole microbatches of one stage
  double peak_weight_inputs = 0;   //!< in whole microbatches of one stage
};

//! @brief All figures of a timetable.
//! @complexity O(n) for n passes.
[[nodiscard]] constexpr timetable_figures figures_of(timetable_view table,
                                                     timetable_caption const& about) noexcept {
  timetable_figures result{
    makespan(table), span_of(table), bubble_rate(table), makespan_bubble_rate(table)};
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double const kept = peak_activations(table, device, about);
    double const inputs = peak_weight_inputs(table, device, about);
    result.peak_activations = kept > result.peak_activations ? kept : result.peak_activations;
    result.peak_weight_inputs =
      inputs > result.peak_weight_inputs ? inputs : result.peak_weight_inputs;
  }
  return result;
}

namespace detail {

//! True for the kinds at whose end what a plain forward pass has kept is free again.
[[nodiscard]] constexpr bool frees_kept(kind_of_pass const& kind) noexcept {
  return !kind.in_groups && (kind.is == role::backward || kind.is == role::weights);
}

//! "bubble 10.1 % of the span, 20.2 % of the makespan".
template <text_sink Sink>
void append_bubbles(Sink& out, timetable_figures const& found, int decimals) {
  append(out, "bubble ");
  append_rounded(out, 100 * found.bubble_rate, decimals);
  append(out, " % of the span, ");
  append_rounded(out, 100 * found.makespan_bubble_rate, decimals);
  append(out, " % of the makespan");
}

//! "peak activations 8 (4 of all stages of a device), weight inputs 3 (...), in microbatches
//! of one stage".
template <text_sink Sink>
void append_peaks(Sink& out,
                  timetable_view const& table,
                  timetable_figures const& found,
                  int decimals) {
  append(out, "peak activations ");
  append_rounded(out, found.peak_activations, decimals);
  append_device_share(out, table, found.peak_activations);
  append(out, ", weight inputs ");
  append_rounded(out, found.peak_weight_inputs, decimals);
  append_device_share(out, table, found.peak_weight_inputs);
  append(out, ", in microbatches of one stage");
}

//! What stands before the row of an engine beside the compute engine: "copy out", "copy in" or
//! "network".
//! @param row of a table, behind those of the devices
[[nodiscard]] inline std::string engine_row_name(timetable_view const& table, int row) {
  int const number = row / table.over.extents.devices;
  auto const is = [&](engine on) {
    return table.over.declared->engine_row[static_cast<int>(on)] == number;
  };
  return is(engine::copy_out) ? "copy out" : is(engine::copy_in) ? "copy in" : "network";
}

//! The number in a cell: the microbatch, or the stage whose weights travel.
[[nodiscard]] constexpr int number_of_cell(flow const& declared, pass const& what) noexcept {
  return declared[what.kind].on == engine::network ? what.stage : what.microbatch;
}

} // namespace detail

} // namespace pipelining::inline v0_3
