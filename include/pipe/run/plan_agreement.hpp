// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief That all ranks of a run have the same plan. Header for pipelining::agree_on_plan.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_1 {

//! @brief What must be equal on all ranks, one property per line, with a digest of the program of
//! each device. Equal for plans that exchange the same messages in the same order.
[[nodiscard]] inline std::string outline_of(plan_view const& work) {
  std::string text;
  auto const line = [&](std::string const& name, std::string const& value) {
    text += name + ' ' + value + '\n';
  };
  line("devices", std::to_string(work.extents.devices));
  line("microbatches", std::to_string(work.extents.microbatches));
  line("chunks", std::to_string(work.extents.chunks));
  line("stages per device", std::to_string(work.extents.stages_per_device));
  line("communication policy", work.policy);
  line("purpose", work.evaluates ? "evaluation" : "training");
  for (int device = 0; device < work.extents.devices; ++device) {
    auto const steps = work.program_of(device);
    std::uint64_t digest = 0xcbf29ce484222325U; // FNV-1a
    auto const add = [&](std::int64_t number) {
      for (int byte = 0; byte < 8; ++byte) {
        digest ^= static_cast<std::uint64_t>(number) >> (8 * byte) & 0xffU;
        digest *= 0x100000001b3U;
      }
    };
    for (item const& step : steps) {
      add(static_cast<int>(step.what));
      add(static_cast<int>(step.work.kind));
      add(step.work.stage);
      add(step.work.microbatch);
      add(step.work.chunk);
      add(step.peer);
      add(step.group);
      add(step.in_bytes);
      add(step.out_bytes);
    }
    line("program of device " + std::to_string(device) + ':',
         std::to_string(steps.size()) + " items, digest " + std::to_string(digest));
  }
  return text;
}

//! @brief Compares the plan of this rank with that of rank 0, through the store.
//! @param name tells the comparisons of one store apart.
//! @throws std::runtime_error that names the first difference, or as basic_store::get does.
template <class Clock>
void agree_on_plan(basic_store<Clock>& line,
                   plan_view const& work,
                   int rank,
                   std::string const& name,
                   std::chrono::nanoseconds deadline) {
  std::string const mine = outline_of(work);
  if (rank == 0) {
    line.set(name + "/plan", mine);
    return;
  }
  std::string const first = line.get(name + "/plan", deadline);
  if (mine == first)
    return;
  auto const line_at = [](std::string const& text, std::size_t begin) {
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  std::size_t at = 0;
  while (at < mine.size() && at < first.size() && line_at(mine, at) == line_at(first, at))
    at = mine.find('\n', at) + 1;
  throw std::runtime_error("its plan has '" + line_at(mine, at) + "', that of rank 0 has '" +
                           line_at(first, at) +
                           "'; start all ranks with the same program, options and sizes");
}

} // namespace pipelining::inline v0_1
