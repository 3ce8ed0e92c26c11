// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A second opinion on timetables. Header for support::sound.
//!
//! Shares nothing with the library but the types: no dense numbers, no tables of ends, no lists of
//! dependencies. Every question is asked of all passes, so it takes quadratic time.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cmath>
#include <vector>

namespace support {

//! @brief Looks at a timetable the slow way.
class slow_checker {
public:
  slow_checker(pipelining::timetable_view table, int memory_limit)
      : table_(table), limit_(memory_limit) {
    for (int device = 0; device < table.over.extents.devices; ++device)
      for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
        all_.push_back({table.passes[i], device, i, table.starts[i], table.ends[i]});
  }

  [[nodiscard]] bool sound() const {
    for (seen const& one : all_)
      if (!exists(one) || !in_place(one) || !timed(one) || !follows(one) || !fed(one) || !fits(one))
        return false;
    return complete();
  }

private:
  using kind = pipelining::pass_kind;
  struct seen {
    pipelining::pass what;
    int device;
    int place;
    double start;
    double end;
  };

  [[nodiscard]] int last_stage() const {
    auto const& extents = table_.over.extents;
    return extents.where == pipelining::placement::bidirectional
             ? extents.devices - 1
             : extents.devices * extents.stages_per_device - 1;
  }
  [[nodiscard]] bool exists(seen const& one) const {
    return one.what.stage <= last_stage() &&
           one.what.microbatch < table_.over.extents.microbatches &&
           one.what.chunk < table_.over.extents.chunks;
  }
  // Walks over the devices, stage by stage, instead of computing the place.
  [[nodiscard]] int home(int stage, int microbatch) const {
    auto const& extents = table_.over.extents;
    bool const backwards = extents.where == pipelining::placement::bidirectional &&
                           microbatch >= extents.microbatches / 2;
    int device = backwards ? extents.devices - 1 : 0;
    int step = backwards ? -1 : 1;
    for (int walked = 0; walked < stage; ++walked) {
      bool const at_end = device + step < 0 || device + step >= extents.devices;
      if (!at_end)
        device += step;
      else if (extents.where == pipelining::placement::wave)
        step = -step; // stays on the device and turns
      else
        device = 0;
    }
    return device;
  }
  [[nodiscard]] bool in_place(seen const& one) const {
    return home(one.what.stage, one.what.microbatch) == one.device;
  }
  [[nodiscard]] static bool timed(seen const& one) {
    return std::isfinite(one.start) && std::isfinite(one.end) && one.start >= 0 &&
           one.start <= one.end;
  }
  [[nodiscard]] static bool is_gradient(kind k) {
    return k == kind::backward || k == kind::backward_input;
  }
  [[nodiscard]] bool may_pair(seen const& one, seen const& second) const {
    return one.device == second.device && one.place + 1 == second.place && !one.what.overlapped &&
           second.what.overlapped && one.start == second.start && one.end == second.end &&
           ((one.what.kind == kind::forward && is_gradient(second.what.kind)) ||
            (second.what.kind == kind::forward && is_gradient(one.what.kind)));
  }
  // Against all others of the device: not at the same time, unless they are a composite pass.
  [[nodiscard]] bool follows(seen const& one) const {
    bool paired = !one.what.overlapped;
    for (seen const& other : all_) {
      if (other.device != one.device || other.place == one.place)
        continue;
      if (may_pair(other, one))
        paired = true;
      else if (may_pair(one, other))
        continue;
      else if (other.place < one.place ? other.end > one.start : one.end > other.start)
        return false;
    }
    return paired;
  }
  // Some pass that does what `done_by` asks for has ended, and arrived, when `one` starts.
  template <class Predicate>
  [[nodiscard]] bool after(seen const& one, Predicate done_by) const {
    for (seen const& other : all_)
      if (done_by(other.what) &&
          other.end + (other.device == one.device ? 0 : table_.latency) <= one.start)
        return true;
    return false;
  }
  [[nodiscard]] bool fed(seen const& one) const {
    auto const of = [&](int stage, int chunk, bool forward) {
      return after(one, [&](pipelining::pass const& p) {
        return p.stage == stage && p.microbatch == one.what.microbatch && p.chunk == chunk &&
               (forward ? p.kind == kind::forward : is_gradient(p.kind));
      });
    };
    int const stage = one.what.stage;
    int const chunk = one.what.chunk;
    if (one.what.kind == kind::forward)
      return (stage == 0 || of(stage - 1, chunk, true)) &&
             (chunk == 0 || of(stage, chunk - 1, true));
    if (one.what.kind == kind::backward_weight)
      return of(stage, chunk, false);
    return of(stage, chunk, true) && (stage == last_stage() || of(stage + 1, chunk, false)) &&
           (chunk + 1 == table_.over.extents.chunks || of(stage, chunk + 1, false));
  }
  // The activations held while `one` runs, if it is a forward pass.
  [[nodiscard]] bool fits(seen const& one) const {
    if (one.what.kind != kind::forward)
      return true;
    int held = 0;
    for (seen const& other : all_) {
      if (other.device != one.device)
        continue;
      if (other.what.kind == kind::forward && other.place <= one.place)
        ++held;
      bool const frees =
        other.what.kind == kind::backward || other.what.kind == kind::backward_weight;
      if (frees && other.place < one.place && !may_pair(other, one))
        --held;
    }
    return held <= limit_;
  }
  [[nodiscard]] bool complete() const {
    for (int stage = 0; stage <= last_stage(); ++stage)
      for (int microbatch = 0; microbatch < table_.over.extents.microbatches; ++microbatch)
        for (int chunk = 0; chunk < table_.over.extents.chunks; ++chunk) {
          int count[4] = {0, 0, 0, 0};
          for (seen const& one : all_)
            if (one.what.stage == stage && one.what.microbatch == microbatch &&
                one.what.chunk == chunk)
              ++count[static_cast<int>(one.what.kind)];
          bool const whole = count[1] == 1 && count[2] == 0 && count[3] == 0;
          bool const split = count[1] == 0 && count[2] == 1 && count[3] == 1;
          if (count[0] != 1 || (!whole && !split))
            return false;
        }
    return true;
  }

  pipelining::timetable_view table_;
  int limit_;
  std::vector<seen> all_;
};

//! @brief True when a timetable keeps every rule and no device holds more chunks of activations
//! than `memory_limit`.
inline bool sound(pipelining::timetable_view table, int memory_limit) {
  return slow_checker(table, memory_limit).sound();
}

} // namespace support
