// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A model whose network works on threads of its own while passes of compute run.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <tests/support/beginning_stage.hpp>
#include <tests/support/flow_interpreter.hpp>
#include <vector>

namespace support {

inline bool on_other_engine(pipelining::plan const& work, pipelining::item const& step) {
  return step.what == pipelining::operation::run &&
         step.about == pipelining::detail::subject::pass &&
         work.over.declared[step.work.kind].on != pipelining::engine::compute;
}

//! @brief The passes of compute between each pass of another engine and the first item that has to
//! come after it: one that waits for it, or the next one of its engine.
inline std::map<std::array<int, 4>, int> passes_meanwhile(pipelining::plan const& work) {
  std::map<std::array<int, 4>, int> result;
  for (int device = 0; device < work.over.extents.devices; ++device) {
    auto const steps = work.program_of(device);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!on_other_engine(work, steps[i]))
        continue;
      int& between = result[key_of(steps[i].work)];
      for (std::size_t k = i + 1; k < steps.size(); ++k) {
        auto const waits = work.waits_of(steps[k]);
        if (std::ranges::find(waits, static_cast<int>(i)) != waits.end() ||
            steps[k].stream() == steps[i].stream())
          break;
        if (steps[k].what == pipelining::operation::run && !on_other_engine(work, steps[k]))
          ++between;
      }
    }
  }
  return result;
}

//! @brief Passes of compute that a partner on another thread waits for, device by device.
struct progress {
  std::mutex lock{};
  std::condition_variable moved{};
  std::map<int, int> passes{}; // of compute, by device

  void note(int device) {
    std::scoped_lock const held(lock);
    ++passes[device];
    moved.notify_all();
  }
  int now(int device) {
    std::scoped_lock const held(lock);
    return passes[device];
  }
  bool wait_beyond(int device, int count) {
    std::unique_lock held(lock);
    return moved.wait_for(held, std::chrono::seconds(20), [&] { return passes[device] > count; });
  }
};

//! @brief A model whose passes on other engines are done by a thread next to the device, and not
//! before the next pass of compute has begun, where the plan has one meanwhile.
struct partnered_model {
  std::vector<beginning_stage> stages;
  std::map<std::array<int, 4>, int> meanwhile;
  progress compute{};
  std::mutex lock{};
  std::map<std::array<int, 4>, int> begun_at{};
  std::atomic<int> late = 0; // partners that no pass of compute came by

  explicit partnered_model(pipelining::plan const& work)
      : stages(static_cast<std::size_t>(work.over.extents.stages())),
        meanwhile(passes_meanwhile(work)) {
    for (beginning_stage& stage : stages) {
      stage.over = work.over;
      stage.how = [this](pipelining::pass const& what) { return begin(what); };
      stage.at_work = [this](pipelining::pass const& what) { work_on(what); };
    }
  }
  [[nodiscard]] int overlapping() const {
    return static_cast<int>(
      std::ranges::count_if(meanwhile, [](auto const& each) { return each.second > 0; }));
  }

  //! The trace of a run has each pass of another engine from its begin to its finish: the passes of
  //! compute between them lie inside, and no other one does.
  //! @param only the device whose passes are looked at, or -1
  [[nodiscard]] bool fits(pipelining::dynamic_timetable const& trace, int only = -1) const {
    auto const device_at = [&](std::size_t i) {
      return pipelining::device_of(trace.over, trace.passes[i].stage);
    };
    bool good = true;
    for (std::size_t i = 0; i < trace.passes.size(); ++i) {
      auto const found = meanwhile.find(key_of(trace.passes[i]));
      if (found == meanwhile.end() || (only >= 0 && device_at(i) != only))
        continue;
      int inside = 0;
      for (std::size_t k = 0; k < trace.passes.size(); ++k)
        if (!meanwhile.contains(key_of(trace.passes[k])) && device_at(k) == device_at(i))
          inside += trace.starts[k] >= trace.starts[i] && trace.ends[k] <= trace.ends[i] ? 1 : 0;
      good = good && inside == found->second;
    }
    for (std::size_t row = 0; row + 1 < trace.offsets.size(); ++row)
      for (auto i = static_cast<std::size_t>(trace.offsets[row]) + 1;
           i < static_cast<std::size_t>(trace.offsets[row + 1]);
           ++i)
        good = good && trace.starts[i] >= trace.ends[i - 1];
    return good;
  }

private:
  [[nodiscard]] int device_of(pipelining::pass const& what) const {
    return pipelining::device_of(stages.front().over, what.stage, what.microbatch);
  }
  begun_work begin(pipelining::pass const& what) {
    std::scoped_lock const held(lock);
    begun_at[key_of(what)] = compute.now(device_of(what));
    return begun_work::elsewhere;
  }
  void work_on(pipelining::pass const& what) {
    auto const key = key_of(what);
    auto const found = meanwhile.find(key);
    if (found == meanwhile.end())
      return compute.note(device_of(what));
    if (found->second == 0)
      return;
    int const before = [&] {
      std::scoped_lock const held(lock);
      return begun_at[key];
    }();
    if (!compute.wait_beyond(device_of(what), before))
      ++late;
  }
};

} // namespace support
