// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "simulate.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <queue>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cache.hpp"

namespace whole_gpu {

constants::constants(std::string const& path) {
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    std::int64_t value = 0;
    if (words >> name && !(words >> value)) {
      throw std::runtime_error(path + " has no number after " + name);
    }
    values_[name] = value;
  }
}

std::int64_t constants::at(std::string const& name) const {
  auto const found = values_.find(name);
  if (found == values_.end()) {
    throw std::runtime_error("there is no constant " + name);
  }
  return found->second;
}

namespace {

constexpr std::int64_t unknown = -1;

//! Bytes that pass one after the other.
struct channel {
  std::int64_t rate;
  std::int64_t free_at = 0;
  //! When bytes that were asked for at a time are there.
  std::int64_t pass(std::int64_t asked, std::int64_t bytes) {
    if (bytes == 0) {
      return asked;
    }
    return free_at = std::max(free_at, asked) + bytes * 1'000'000 / rate;
  }
};

//! A block that runs, or none.
struct slot {
  int block = -1;
  int piece = -1;
  std::int64_t position = 0; // the next visit
  std::int64_t begun = 0;    // when the piece was asked for
  std::int64_t pending = 0;  // when a visit or piece would be over that waits for another
  std::int64_t visits = 0;   // of all blocks
  bool has_own = false;      // what the piece reads once was asked for
};

//! The dQ of a step of queries, which visits add to.
struct sums_of_step {
  std::int64_t cleared = unknown; // when the first visit had cleared it
  std::vector<int> waiters{};     // slots that wait for that
  int left = 0;                   // visits that have not added
  int rounds = -1;                // the slot that waits for them
  int latest = -1;                // the slot that added last
  std::int64_t added = 0;         // when it did
  std::int64_t others_added = 0;  // when the last of the others did

  //! A slot adds. Whether it was the last one that does.
  bool add(int slot, std::int64_t done) {
    if (slot == latest) {
      added = std::max(added, done);
    } else if (done >= added) {
      others_added = std::exchange(added, done);
      latest = slot;
    } else {
      others_added = std::max(others_added, done);
    }
    return --left == 0;
  }
  //! When a slot knows that all have added.
  [[nodiscard]] std::int64_t complete_for(int slot, std::int64_t hand_on) const {
    return slot == latest ? std::max(added, others_added + (others_added > 0 ? hand_on : 0))
                          : added + hand_on;
  }
};

class machine {
public:
  machine(work const& of, int slots, speeds const& s)
      : w_(of), s_(s), memory_{s.memory_rate}, cache_channel_{s.cache_rate},
        cache_(
          s.cache_bytes,
          static_cast<std::size_t>(2 * of.visited_objects + of.own_objects + of.result_objects)),
        slots_(static_cast<std::size_t>(slots)), done_(of.visits.size(), unknown),
        waiter_(of.visits.size(), -1), part_waiter_(of.pieces.size(), -1),
        summed_(static_cast<std::size_t>(of.visited_objects)),
        handed_on_(of.pieces.size() * static_cast<std::size_t>(of.result_slices), unknown) {
    for (auto const& v : of.visits) {
      ++summed_[static_cast<std::size_t>(v.object)].left;
    }
  }

  outcome run() {
    for (int n = 0; n < static_cast<int>(slots_.size()); ++n) {
      start_block(n, 0);
    }
    while (!events_.empty()) {
      auto const [now, n] = events_.top();
      events_.pop();
      auto& at = slots_[static_cast<std::size_t>(n)];
      if (!at.has_own) {
        begin_piece(n, now);
      } else if (at.position < piece_of(at).end) {
        begin_visit(n, now);
      } else {
        end_piece(n, now);
      }
    }
    for (auto const& each : slots_) {
      out_.busiest = std::max(out_.busiest, each.visits);
    }
    return out_;
  }

private:
  piece const& piece_of(slot const& at) const {
    return w_.pieces[static_cast<std::size_t>(at.piece)];
  }

  //! When an object is there that was asked for at a time.
  std::int64_t bring(std::int64_t asked, std::int64_t object, std::int64_t bytes, usage how) {
    if (bytes == 0) {
      return asked;
    }
    auto const moved = cache_.touch(static_cast<std::size_t>(object), bytes, how);
    out_.memory_bytes += moved;
    return std::max(cache_channel_.pass(asked, bytes), memory_.pass(asked, moved));
  }

  void start_block(int n, std::int64_t now) {
    while (started_ < w_.blocks) {
      auto& at = slots_[static_cast<std::size_t>(n)];
      at.block = started_++;
      at.piece = -1;
      if (next_piece(n, now + s_.start, now + s_.start)) {
        return;
      }
    }
  }

  //! @param asked when what the piece reads can be
  bool next_piece(int n, std::int64_t now, std::int64_t asked) {
    auto& at = slots_[static_cast<std::size_t>(n)];
    at.piece = w_.next(at.block, at.piece);
    if (at.piece >= static_cast<int>(w_.pieces.size())) {
      return false;
    }
    at.has_own = false;
    at.begun = asked;
    events_.emplace(now, n);
    return true;
  }

  void begin_piece(int n, std::int64_t now) {
    auto& at = slots_[static_cast<std::size_t>(n)];
    at.has_own = true;
    at.position = piece_of(at).begin;
    auto const own = 2 * std::int64_t{w_.visited_objects} + piece_of(at).own;
    events_.emplace(std::max(now, bring(at.begun, own, w_.bytes.own, usage::read)), n);
  }

  void begin_visit(int n, std::int64_t now) {
    auto& at = slots_[static_cast<std::size_t>(n)];
    auto const& v = w_.visits[static_cast<std::size_t>(at.position)];
    ++at.visits;
    auto const asked = std::max(at.begun, now - w_.stages * s_.visit);
    auto const there = bring(asked, v.object, w_.bytes.visited, usage::read);
    auto const sums = v.object + w_.visited_objects;
    auto const cleared = v.clears ? bring(asked, sums, w_.bytes.summed, usage::write) : asked;
    auto const added = std::max(cleared, bring(asked, sums, w_.bytes.summed, usage::add));
    at.pending = std::max(std::max(now, there) + (v.masked ? s_.masked : s_.visit), added);
    auto& sums_at = sums_of(at.position);
    if (v.clears) {
      sums_at.cleared = cleared;
      for (int const waiter : std::exchange(sums_at.waiters, {})) {
        finish_visit(waiter, cleared + s_.hand_on);
      }
    }
    if (v.before >= 0 && done_[static_cast<std::size_t>(v.before)] == unknown) {
      waiter_[static_cast<std::size_t>(v.before)] = n;
    } else if (v.before >= 0) {
      finish_visit(n, done_[static_cast<std::size_t>(v.before)] + s_.hand_on);
    } else if (v.clears || w_.starts_at_0) {
      finish_visit(n, 0);
    } else if (sums_at.cleared == unknown) {
      sums_at.waiters.push_back(n);
    } else {
      finish_visit(n, sums_at.cleared + s_.hand_on);
    }
  }

  //! A visit is over, at the earliest when what it waits for is there, and so are those that waited
  //! for it.
  void finish_visit(int n, std::int64_t there) {
    while (n >= 0) {
      auto& at = slots_[static_cast<std::size_t>(n)];
      auto const visit = static_cast<std::size_t>(at.position++);
      auto const done = done_[visit] = std::max(at.pending, there);
      events_.emplace(done, n);
      auto& sums = sums_of(static_cast<std::int64_t>(visit));
      if (sums.add(n, done) && sums.rounds >= 0) {
        events_.emplace(done, sums.rounds);
      }
      n = waiter_[visit];
      there = done + s_.hand_on;
    }
  }

  sums_of_step& sums_of(std::int64_t visit) {
    auto const object = w_.visits[static_cast<std::size_t>(visit)].object;
    return summed_[static_cast<std::size_t>(object)];
  }

  //! When all have added to the sums that a piece rounds; unknown where it has to be asked again.
  std::int64_t complete_sums(int n, piece const& p, std::int64_t now) {
    auto there = now;
    for (auto at = p.end - p.rounded; at < p.end; ++at) {
      auto& sums = sums_of(at);
      if (sums.left > 0) {
        sums.rounds = n;
        return unknown;
      }
      there = std::max(there, sums.complete_for(n, s_.hand_on));
    }
    return there;
  }

  void end_piece(int n, std::int64_t now) {
    auto& at = slots_[static_cast<std::size_t>(n)];
    auto const& p = piece_of(at);
    if (p.before >= 0 && handed_on(p.before, 0) == unknown) {
      part_waiter_[static_cast<std::size_t>(p.before)] = n;
      return;
    }
    auto const complete = complete_sums(n, p, now);
    if (complete == unknown) {
      return;
    }
    auto const result = 2 * std::int64_t{w_.visited_objects} + w_.own_objects + p.result;
    bring(now, result, w_.bytes.result, w_.adds_results ? usage::add : usage::write);
    auto done = now;
    for (int slice = 0; slice < w_.result_slices; ++slice) {
      if (p.before >= 0) {
        done = std::max(done, handed_on(p.before, slice) + s_.hand_on);
      }
      done += s_.end * (slice + 1) / w_.result_slices - s_.end * slice / w_.result_slices;
      handed_on(at.piece, slice) = done;
    }
    done = std::max(done, round_sums(p, complete)) +
           (p.rounded == 0 ? 0 : s_.end * p.rounded * (w_.bytes.summed * 3 / 2) / w_.bytes.result);
    out_.picoseconds = std::max(out_.picoseconds, done);
    if (int const waiter = part_waiter_[static_cast<std::size_t>(at.piece)]; waiter >= 0) {
      events_.emplace(now, waiter);
    }
    auto const next = done + s_.between;
    if (!next_piece(n, next, w_.brings_early ? now : next)) {
      start_block(n, done);
    }
  }

  //! When the sums are there that a piece rounds, of its last visits. It reads and writes them as
  //! fast as its results leave.
  std::int64_t round_sums(piece const& p, std::int64_t now) {
    auto there = now;
    for (auto n = p.end - p.rounded; n < p.end; ++n) {
      auto const sums = w_.visits[static_cast<std::size_t>(n)].object + w_.visited_objects;
      there = std::max(there, bring(now, sums, w_.bytes.summed, usage::read));
      out_.memory_bytes += w_.bytes.summed / 2;
      memory_.pass(now, w_.bytes.summed / 2);
    }
    return there;
  }

  //! When a piece has added a slice of its result.
  std::int64_t& handed_on(int piece, int slice) {
    return handed_on_[static_cast<std::size_t>(piece) * static_cast<std::size_t>(w_.result_slices) +
                      static_cast<std::size_t>(slice)];
  }

  work const& w_;
  speeds const& s_;
  channel memory_;
  channel cache_channel_;
  cache cache_;
  std::vector<slot> slots_;
  std::vector<std::int64_t> done_;      // when visits are over
  std::vector<int> waiter_;             // the slot that waits for a visit
  std::vector<int> part_waiter_;        // the slot that waits for a piece
  std::vector<sums_of_step> summed_;    // of each visited object
  std::vector<std::int64_t> handed_on_; // when slices of pieces are added
  using event = std::pair<std::int64_t, int>;
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
  int started_ = 0;
  outcome out_;
};

} // namespace

outcome simulate(work const& of, int slots, speeds const& s) {
  return machine(of, slots, s).run();
}

} // namespace whole_gpu
