// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The checked mode of a device whose memory is a GPU's. Header for
//! pipelining::cuda::device_guards.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/guards.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! Memory for the slots of one device with guards around them, and poison (not a number) in
//! slots that no pass has written yet.
//!
//! The poison is enqueued, also into graphs; the guards are read when a step has ended. So they
//! tell which slot was overrun, and the passes that had it, but not which pass it was. The end
//! of each output is copied away after its pass, and compared with the poison then.
class device_guards {
public:
  //! Allocates and fills the memory. @pre the device's GPU is current.
  device_guards(plan const& work, int device)
      : slots_{work, device, nullptr, nullptr, rooms::guard_bytes}, memory_(slots_.bytes()),
        outputs_(outputs_of(work, device)),
        ends_(static_cast<std::int64_t>(outputs_.size()) * end_bytes) {
    slots_.memory = memory_.data();
    if (slots_.bytes() > 0)
      check(cudaMemset(memory_.data(),
                       std::to_integer<int>(rooms::guard_byte),
                       static_cast<std::size_t>(slots_.bytes())),
            "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (int of = 0; of < rooms::slot_classes; ++of) {
      rooms::slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
      used_[static_cast<std::size_t>(of)].assign(static_cast<std::size_t>(layout.count),
                                                 layout.asked);
    }
  }

  //! The arena on the device.
  [[nodiscard]] std::byte* memory() const noexcept { return slots_.memory; }

  //! Before a pass or a receive is enqueued on the same stream: poisons the slots that it is the
  //! first to write.
  void before(item const& step, cudaStream_t on) {
    rooms::visit_opened(slots_, step, [&](use const& which, std::int64_t bytes) {
      std::byte* const start = slots_.start_of(which);
      fill(start, rooms::poison_byte, bytes, on);
      fill(start + bytes, rooms::guard_byte, slots_.layout_of(which.of).asked - bytes, on);
      used(which) = bytes;
    });
  }

  //! After a pass on the same stream: keeps the ends of its outputs for others.
  void after(int item_index, cudaStream_t on) {
    auto at = std::lower_bound(
      outputs_.begin(), outputs_.end(), item_index, [](written const& each, int wanted) {
        return each.item_index < wanted;
      });
    for (; at != outputs_.end() && at->item_index == item_index; ++at)
      check(cudaMemcpyAsync(ends_.data() + (at - outputs_.begin()) * end_bytes,
                            slots_.start_of(at->into) + at->bytes - kept(*at),
                            static_cast<std::size_t>(kept(*at)),
                            cudaMemcpyDeviceToDevice,
                            on),
            "cudaMemcpyAsync");
  }

  //! When a step has ended, and before the next one is enqueued.
  //! @throws guard_error that names the slot and the passes that had it, or the pass that has not
  //! written its output to its end.
  void check_all(cudaStream_t on) {
    check_guards(on);
    check_ends(on);
  }

private:
  static constexpr std::int64_t end_bytes = 16;

  //! An output of a pass, which another pass reads.
  struct written {
    int item_index;
    use into;
    std::int64_t bytes;
  };

  [[nodiscard]] static std::int64_t kept(written const& each) {
    return std::min(each.bytes, end_bytes);
  }

  //! In the order of the program. Poison is in slots with guards only, and a pass that runs again
  //! need not write what has been sent.
  [[nodiscard]] static std::vector<written> outputs_of(plan const& work, int device) {
    rooms::arena const slots{work, device, nullptr, nullptr, rooms::guard_bytes};
    std::vector<written> all;
    auto const steps = work.program_of(device);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      item const& step = steps[i];
      if (step.what != operation::run || step.about != rooms::subject::pass ||
          rooms::is_copy(work.over.declared, step) ||
          work.over.declared[step.work.kind].calls == stage_call::recompute)
        continue;
      for (use const& into : work.uses_of(step))
        if (into.at == rooms::slot_place::outputs && into.bytes > 0 && slots.guards(into.of))
          all.push_back({static_cast<int>(i), into, into.bytes});
    }
    return all;
  }

  void check_ends(cudaStream_t on) {
    std::vector<std::byte> found(outputs_.size() * static_cast<std::size_t>(end_bytes));
    if (found.empty())
      return;
    check(cudaMemcpyAsync(found.data(), ends_.data(), found.size(), cudaMemcpyDeviceToHost, on),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      written const& each = outputs_[i];
      auto const first = found.begin() + static_cast<std::int64_t>(i) * end_bytes;
      if (std::any_of(
            first, first + kept(each), [](std::byte value) { return value != rooms::poison_byte; }))
        continue;
      item const& step =
        slots_.work.program_of(slots_.device)[static_cast<std::size_t>(each.item_index)];
      throw guard_error("the " + rooms::describe_subject(step, slots_.work) + " on device " +
                        std::to_string(slots_.device) + " has left the last " +
                        std::to_string(kept(each)) + " bytes of its output of " +
                        std::to_string(each.bytes) +
                        " bytes unwritten, all of which the next stage reads");
    }
  }

  void check_guards(cudaStream_t on) {
    for (int of = 0; of < rooms::slot_classes; ++of) {
      auto const kind = static_cast<slot_class>(of);
      rooms::slot_layout const& layout = slots_.work.layout(slots_.device, kind);
      for (int index = 0; slots_.guards(kind) && index < layout.count; ++index) {
        use const which{.of = kind, .index = index};
        std::int64_t const start = slots_.place(which);
        std::int64_t const end = start + layout.bytes;
        // Two slots share the guard between them: each byte is the nearer one's.
        std::int64_t const half = slots_.guard / 2;
        bool const row = kind == slot_class::totals;
        std::int64_t const front = row && index > 0 ? 0 : start == slots_.guard ? start : half;
        std::int64_t const behind = row && index + 1 < layout.count        ? 0
                                    : end + slots_.guard == slots_.bytes() ? slots_.guard
                                                                           : half;
        check_guard(which, -front, 0, on);
        check_guard(which, used(which), layout.bytes + behind, on);
      }
    }
  }
  //! @param from, to counted from the start of the slot.
  void check_guard(use const& which, std::int64_t from, std::int64_t to, cudaStream_t on) const {
    if (from == to)
      return;
    std::vector<std::byte> found(static_cast<std::size_t>(to - from));
    check(cudaMemcpyAsync(
            found.data(), slots_.start_of(which) + from, found.size(), cudaMemcpyDeviceToHost, on),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
    auto const changed = std::find_if(
      found.begin(), found.end(), [](std::byte value) { return value != rooms::guard_byte; });
    if (changed != found.end())
      throw guard_error(in_words(which, from + (changed - found.begin())));
  }

  static void fill(std::byte* start, std::byte value, std::int64_t bytes, cudaStream_t on) {
    if (bytes > 0)
      check(
        cudaMemsetAsync(start, std::to_integer<int>(value), static_cast<std::size_t>(bytes), on),
        "cudaMemsetAsync");
  }

  [[nodiscard]] std::int64_t& used(use const& which) {
    return used_[static_cast<std::size_t>(which.of)][static_cast<std::size_t>(which.index)];
  }

  [[nodiscard]] std::string in_words(use const& which, std::int64_t byte) const {
    std::string text = "a pass of device " + std::to_string(slots_.device) + " has written " +
                       (byte < 0 ? "in front of" : "beyond") + " slot " +
                       std::to_string(which.index) + " of class " + rooms::word(which.of) +
                       ", first at byte " + std::to_string(byte) + "; these had it:";
    int named = 0;
    for (item const& step : slots_.work.program_of(slots_.device)) {
      bool has = false;
      if (step.what == operation::run)
        rooms::visit_handed(slots_, step, [&](use const& each, std::int64_t) {
          has = has || (each.of == which.of && each.index == which.index);
        });
      if (has && ++named <= 4)
        text += (named == 1 ? " the " : ", the ") + rooms::describe_subject(step, slots_.work);
    }
    return text + (named > 4 ? " and " + std::to_string(named - 4) + " more" : "");
  }

  rooms::arena slots_;
  device_memory memory_;
  std::vector<written> outputs_;
  device_memory ends_; // of each of these
  std::vector<std::int64_t>
    used_[rooms::slot_classes]; // bytes of each slot that its last pass may write
};

} // namespace pipelining::inline v0_3::cuda::detail
