// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "shadow.hpp"

namespace standin::detail {

bool shadow::happened_before(segment const& seg, epoch const& earlier, accessor const& by) {
  return earlier.agent < 0 || earlier.agent == by.agent ||
         (seg.pageable && earlier.rank != by.rank) || by.clock->at(earlier.agent) >= earlier.tick;
}

void shadow::split(std::uintptr_t at) {
  auto next = segments_.upper_bound(at);
  if (next == segments_.begin())
    return;
  auto here = std::prev(next);
  if (here->first < at && at < here->second.end) {
    segment tail = here->second;
    here->second.end = at;
    segments_.emplace_hint(next, at, std::move(tail));
  }
}

// Afterwards the range consists of whole segments; host memory nobody has seen becomes one that is
// defined.
void shadow::cover(std::uintptr_t begin, std::uintptr_t end) {
  split(begin);
  split(end);
  std::uintptr_t at = begin;
  while (at < end) {
    auto here = segments_.lower_bound(at);
    if (here != segments_.end() && here->first == at) {
      at = here->second.end;
      continue;
    }
    std::uintptr_t const stop = here == segments_.end() ? end : std::min(end, here->first);
    segment fresh;
    fresh.end = stop;
    fresh.pageable = true;
    segments_.emplace_hint(here, at, std::move(fresh));
    at = stop;
  }
}

void shadow::merge(std::uintptr_t begin, std::uintptr_t end) {
  auto here = segments_.lower_bound(begin);
  if (here != segments_.begin())
    --here;
  while (here != segments_.end() && here->first < end) {
    auto next = std::next(here);
    if (next == segments_.end() || next->first > end)
      return;
    if (here->second.end == next->first && here->second.same_as(next->second)) {
      here->second.end = next->second.end;
      segments_.erase(next);
    } else {
      here = next;
    }
  }
}

void shadow::forget(std::uintptr_t begin, std::size_t bytes) {
  split(begin);
  split(begin + bytes);
  segments_.erase(segments_.lower_bound(begin), segments_.lower_bound(begin + bytes));
}

void shadow::start(std::uintptr_t begin, std::size_t bytes, bool initialised) {
  if (bytes == 0)
    return;
  forget(begin, bytes);
  segment fresh;
  fresh.end = begin + bytes;
  fresh.initialised = initialised;
  segments_.emplace(begin, std::move(fresh));
}

void shadow::stop(std::uintptr_t begin, std::size_t bytes, accessor const& by) {
  if (bytes == 0)
    return;
  touch({begin, begin + bytes, true}, by, false);
  for (auto at = segments_.lower_bound(begin); at != segments_.end() && at->first < begin + bytes;
       ++at)
    at->second.freed = true;
}

void shadow::undefine(std::uintptr_t begin, std::size_t bytes) {
  cover(begin, begin + bytes);
  for (auto at = segments_.lower_bound(begin); at != segments_.end() && at->first < begin + bytes;
       ++at)
    at->second.initialised = false, at->second.left_to = 0;
}

void shadow::leave(std::uintptr_t begin, std::size_t bytes, std::uint64_t operation) {
  cover(begin, begin + bytes);
  for (auto at = segments_.lower_bound(begin); at != segments_.end() && at->first < begin + bytes;
       ++at)
    at->second.left_to = operation;
}

void shadow::touch(memory_access const& range, accessor const& by, bool check_initialised) {
  if (range.begin >= range.end)
    return;
  cover(range.begin, range.end);
  auto at = segments_.lower_bound(range.begin);
  for (; at != segments_.end() && at->first < range.end; ++at) {
    check(at, range, by, check_initialised);
    remember(at->second, range.write, by);
  }
  merge(range.begin, range.end);
}

void shadow::check(segment_map::iterator at,
                   memory_access const& range,
                   accessor const& by,
                   bool check_initialised) {
  segment const& seg = at->second;
  std::string const where = std::to_string(seg.end - at->first) + " bytes of " + name_(at->first);
  std::string const what = *by.who + (range.write ? " writes " : " reads ") + where;
  if (seg.freed) {
    report_(finding::use_after_free,
            what + ", which " + (seg.writer.who ? *seg.writer.who : "an earlier call") +
              " has freed");
    return;
  }
  if (!range.write && check_initialised && !seg.initialised && by.operation >= seg.left_to)
    report_(finding::uninitialised_read, what + ", which nobody has written");
  if (!happened_before(seg, seg.writer, by)) {
    report_(range.write ? finding::write_conflict : finding::use_before_ready,
            what + ", written by " + *seg.writer.who + ", without waiting for it");
  }
  if (!range.write)
    return;
  for (epoch const& reader : seg.readers)
    if (!happened_before(seg, reader, by))
      report_(finding::overwrite_in_use,
              what + ", read by " + *reader.who + ", without waiting for it");
}

void shadow::remember(segment& seg, bool write, accessor const& by) {
  epoch now{by.agent, by.rank, by.clock->at(by.agent), by.who};
  if (write) {
    seg.readers.clear();
    seg.writer = std::move(now);
    seg.initialised = true;
    return;
  }
  for (epoch& reader : seg.readers) {
    if (reader.agent == by.agent) {
      reader = std::move(now);
      return;
    }
  }
  seg.readers.push_back(std::move(now));
}

} // namespace standin::detail
