// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief NVTX ranges around what a device enqueues, for profilers. Header for
//! pipelining::cuda::item_ranges.

#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#if PIPELINING_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! The name of an item in a profile: "F s3 m7 c1", "send F s3 m7 c1 to 2", "optimizer s3".
[[nodiscard]] inline std::string range_name(item const& step, plan const& work) {
  pipeline_view const over = work.over;
  auto const number = [](char const* letter, int value) {
    return std::string(letter) + std::to_string(value);
  };
  std::string const stage = number(" s", step.work.stage);
  std::string name;
  switch (step.about) {
  case rooms::subject::pass:
    name = rooms::sign(*over.declared, step.work.kind).c_str() + stage +
           number(" m", step.work.microbatch);
    name += over.extents.chunks > 1 ? number(" c", step.work.chunk) : "";
    break;
  case rooms::subject::copied_gradient: name = "copied" + stage; break;
  case rooms::subject::add_copies: name = "add copies" + stage; break;
  case rooms::subject::tied_gradient: name = "tied" + stage; break;
  case rooms::subject::add_tied: name = "add tied" + stage; break;
  case rooms::subject::contribution: name = "totals" + stage; break;
  case rooms::subject::gather:
  case rooms::subject::spread:
    name = "totals" + stage + number("-", step.work.stage + rooms::rows_of(work, step) - 1);
    break;
  case rooms::subject::update:
  case rooms::subject::early_update: name = "optimizer" + stage; break;
  case rooms::subject::validation: name = "validation" + stage; break;
  }
  if (step.what == operation::run)
    return name;
  bool const sends = step.what == operation::send;
  return (sends ? "send " : "receive ") + name +
         number(sends ? " to " : " from ", work.message_of(step).peer);
}

//! The colour of an item in a profile: the colour of its pass in pictures; grey for hooks after
//! complete gradients.
[[nodiscard]] constexpr rooms::colour range_colour(plan const& work, int device, item const& step) {
  if (step.about != rooms::subject::pass)
    return {128, 128, 128};
  // A message belongs to the device of the pass that makes it.
  int const home = step.what == operation::receive ? work.message_of(step).peer : device;
  int local = 0;
  int count = 0;
  for (int stage = 0; stage < work.over.extents.stages(); ++stage)
    if (device_of(work, stage, step.work.microbatch) == home) {
      local += stage < step.work.stage ? 1 : 0;
      ++count;
    }
  return rooms::shade(
    work.over.declared[step.work.kind], local, count, step.work.chunk, work.over.extents.chunks);
}

#if PIPELINING_HAS_NVTX

//! One range, open while the object lives; none for a null pointer.
class open_range {
public:
  open_range(nvtxDomainHandle_t domain, nvtxEventAttributes_t const* what) noexcept
      : domain_(what != nullptr ? domain : nullptr) {
    if (domain_ != nullptr)
      (void)nvtxDomainRangePushEx(domain_, what);
  }
  open_range(open_range const&) = delete;
  open_range& operator=(open_range const&) = delete;
  ~open_range() {
    if (domain_ != nullptr)
      (void)nvtxDomainRangePop(domain_);
  }

private:
  nvtxDomainHandle_t domain_;
};

//! A range of the domain "pipelining" for every pass, group of messages and hook of a
//! device, made once.
//!
//! A range covers the calls of the host that enqueue an item; profilers show it on the GPU around
//! what these calls have enqueued. Of a graph there are ranges while it is captured. Without a
//! profiler nothing is made, and opening a range is a test of a pointer.
class item_ranges {
public:
  item_ranges() = default;
  item_ranges(plan const& work, int device) : domain_(domain()) {
    if (domain_ == nullptr) // no profiler
      return;
    auto const steps = work.program_of(device);
    ranges_.resize(steps.size());
    for (int first = 0; first < static_cast<int>(steps.size());) {
      item const& head = steps[static_cast<std::size_t>(first)];
      int const end = head.what == operation::run ? first + 1 : rooms::end_of_group(steps, first);
      std::string name;
      for (int i = first; i < end; ++i)
        name += (i > first ? ", " : "") + range_name(steps[static_cast<std::size_t>(i)], work);
      ranges_[static_cast<std::size_t>(first)] = attributes(name, range_colour(work, device, head));
      first = end;
    }
  }

  //! Opens the range of a pass, a hook, or the group of messages that starts here.
  [[nodiscard]] open_range open(int item_index) const noexcept {
    return {domain_,
            ranges_.empty() ? nullptr : ranges_.data() + static_cast<std::size_t>(item_index)};
  }

private:
  //! Of the whole process: profilers take two domains of one name for two.
  static nvtxDomainHandle_t domain() {
    static nvtxDomainHandle_t const made = nvtxDomainCreateA("pipelining");
    return made;
  }

  [[nodiscard]] nvtxEventAttributes_t attributes(std::string const& name, rooms::colour c) const {
    nvtxEventAttributes_t result{};
    result.version = NVTX_VERSION;
    result.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    result.colorType = NVTX_COLOR_ARGB;
    result.color = 0xff000000U | static_cast<std::uint32_t>(c.red) << 16U |
                   static_cast<std::uint32_t>(c.green) << 8U | static_cast<std::uint32_t>(c.blue);
    result.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    result.message.registered = nvtxDomainRegisterStringA(domain_, name.c_str());
    return result;
  }

  nvtxDomainHandle_t domain_ = nullptr;
  std::vector<nvtxEventAttributes_t> ranges_; // [items]; of a group, the first
};

#else

//! Nothing: this toolkit has no NVTX.
struct open_range {
  ~open_range() {} // not trivial, so that an object for its scope alone is no unused variable
};
//! The ranges of the items of one device: none, since this toolkit has no NVTX.
class item_ranges {
public:
  item_ranges() = default;
  //! Nothing to name.
  item_ranges(plan const&, int) {}
  //! Nothing to open.
  [[nodiscard]] open_range open(int) const noexcept { return {}; }
};

#endif

} // namespace pipelining::inline v0_3::cuda::detail
