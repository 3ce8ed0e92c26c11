// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The edges of happens-before that instructions make.
#include <algorithm>

#include "access.hpp"

namespace ptx {

namespace {

thread_clock& clock_of(warp& w, int lane) {
  return w.clocks[static_cast<std::size_t>(lane)];
}

u32 index_of(warp const& w, int lane) {
  return w.index * 32 + static_cast<u32>(lane);
}

// Lanes often share one clock; the same pair of clocks is joined once.
class join_memo {
public:
  clock_pointer operator()(clock_pointer const& a, clock_pointer const& b) {
    if (a != a_ || b != b_ || result_ == nullptr) {
      a_ = a;
      b_ = b;
      result_ = joined(a, b);
    }
    return result_;
  }

private:
  clock_pointer a_, b_, result_;
};

} // namespace

void release(warp& w, u32 mask, clock_pointer& into) {
  run_state& run = *w.home->launch;
  if (!run.how.races || mask == 0) {
    return;
  }
  clock_pointer last;
  for_lanes(mask, [&](int l) {
    if (clock_of(w, l).known != last) {
      last = clock_of(w, l).known;
      into = joined(last, into);
    }
  });
  auto out = std::make_shared<vector_clock>(*into);
  for_lanes(mask, [&](int l) {
    out->seen[index_of(w, l)] = run.clock;
    if (!out->fenced.empty()) {
      auto& fenced = out->fenced[index_of(w, l)];
      fenced = std::max(fenced, clock_of(w, l).fenced);
    }
  });
  into = std::move(out);
  ++run.clock;
}

void acquire(warp& w, u32 mask, clock_pointer const& from) {
  if (from == nullptr || !w.home->launch->how.races) {
    return;
  }
  join_memo join;
  for_lanes(mask, [&](int l) { clock_of(w, l).known = join(clock_of(w, l).known, from); });
}

void acquire_actor(warp& w, u32 mask, u32 actor, u32 clock) {
  if (!w.home->launch->how.races || mask == 0) {
    return;
  }
  auto one = std::make_shared<vector_clock>();
  auto const& like = clock_of(w, std::countr_zero(mask)).known;
  one->seen.resize(like->seen.size());
  one->seen[actor] = clock;
  acquire(w, mask, one);
}

clock_pointer common_knowledge(warp& w, u32 mask) {
  clock_pointer out;
  vector_clock const* last = nullptr;
  for_lanes(mask, [&](int l) {
    auto const& known = clock_of(w, l).known;
    if (known.get() != last) { // lanes often share one clock
      out = out == nullptr ? known : common(out, known);
      last = known.get();
    }
  });
  return out;
}

void proxy_fence(warp& w, u32 mask) {
  run_state& run = *w.home->launch;
  if (!run.how.races) {
    return;
  }
  clock_pointer last, fenced;
  for_lanes(mask, [&](int l) {
    thread_clock& t = clock_of(w, l);
    if (t.known != last) {
      last = t.known;
      auto all = std::make_shared<vector_clock>(*last);
      all->fenced = all->seen;
      fenced = std::move(all);
    }
    t.known = fenced;
    t.fenced = run.clock;
  });
  ++run.clock;
}

void memory_fence(warp& w, u32 mask) {
  run_state& run = *w.home->launch;
  if (!run.how.races) {
    return;
  }
  for_lanes(mask, [&](int l) {
    thread_clock& t = clock_of(w, l);
    t.known = joined(t.known, t.gathered);
    t.gathered = nullptr;
    t.released = t.known;
    t.released_at = run.clock;
  });
  ++run.clock;
}

void strong_access(warp& w, int lane, u64 address, touch how, bool acquires, bool releases) {
  run_state& run = *w.home->launch;
  if (!run.how.races) {
    return;
  }
  thread_clock& t = clock_of(w, lane);
  block& b = *w.home;
  if (releases) {
    memory_fence(w, 1U << lane);
  }
  auto& place = run.published[address];
  if (how.read && !place.by_block.empty()) {
    auto learned = std::make_shared<vector_clock>();
    learned->seen.resize(t.known->seen.size());
    learned->fenced.resize(t.known->fenced.size());
    clock_pointer all = learned;
    for (auto const& [serial, published] : place.by_block) {
      if (serial == b.serial) {
        all = joined(all, published.second);
      } else {
        auto other = std::make_shared<vector_clock>();
        other->elsewhere = published.second->elsewhere;
        other->elsewhere[serial] = published.first;
        all = joined(all, other);
      }
    }
    (acquires ? t.known : t.gathered) = joined(acquires ? t.known : t.gathered, all);
  }
  if (how.write && !how.read) {
    place.by_block.clear(); // a plain strong store starts a new release sequence
  }
  if (how.write && t.released != nullptr) {
    auto own = std::make_shared<vector_clock>(*t.released);
    own->seen[index_of(w, lane)] = t.released_at;
    auto& mine = place.by_block[b.serial];
    mine.second = joined(clock_pointer(std::move(own)), mine.second);
    mine.first = std::make_shared<std::vector<u32> const>(mine.second->seen);
  }
}

} // namespace ptx
