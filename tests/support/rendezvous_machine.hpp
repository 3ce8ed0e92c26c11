// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A second opinion on plans: a small machine that tries every order in which messages can
//! happen. Slow, and written without a look at the proof: it knows no passes, waits or slots, only
//! posts, peers and tags.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace support {

//! One end of a message. The tag is not on the wire: it tells which message the program meant.
struct post {
  bool sends;
  int peer;
  int tag;
};

//! Posts that start together; the next batch starts when all of them are done.
using batch = std::vector<post>;

//! What every device posts, in order.
using machine_program = std::vector<std::vector<batch>>;

enum class outcome { drains, hangs, mixes_up };

//! Runs a program in all orders. Posts of one direction between two devices match in order; a post
//! of a batch waits for earlier posts of the batch of the same direction and peer only.
class rendezvous_machine {
public:
  //! @param eager messages that an edge holds before its receiver has posted.
  explicit rendezvous_machine(machine_program work, std::size_t eager = 0)
      : work_(std::move(work)), eager_(eager) {}

  //! The worst that can happen.
  [[nodiscard]] outcome run() {
    state start;
    start.at.resize(work_.size());
    start.done.resize(work_.size());
    start.wire.resize(work_.size() * work_.size());
    for (std::size_t device = 0; device < work_.size(); ++device)
      open(start, device);
    std::vector<state> open_states{start};
    std::set<std::string> seen{name(start)};
    bool hangs = false;
    while (!open_states.empty()) {
      state const now = open_states.back();
      open_states.pop_back();
      std::vector<state> const next = moves(now);
      if (mixed_up_)
        return outcome::mixes_up;
      if (next.empty())
        hangs = hangs || !ended(now);
      for (state const& one : next)
        if (seen.insert(name(one)).second)
          open_states.push_back(one);
    }
    return hangs ? outcome::hangs : outcome::drains;
  }

private:
  struct state {
    std::vector<std::size_t> at;         // by device: its batch
    std::vector<std::vector<bool>> done; // by device: posts of that batch
    std::vector<std::vector<int>> wire;  // by from * P + to: tags under way
  };

  void open(state& now, std::size_t device) const {
    if (now.at[device] < work_[device].size())
      now.done[device].assign(work_[device][now.at[device]].size(), false);
  }
  [[nodiscard]] bool ended(state const& now) const {
    for (std::size_t device = 0; device < work_.size(); ++device)
      if (now.at[device] < work_[device].size())
        return false;
    return true;
  }
  [[nodiscard]] static std::string name(state const& now) {
    std::string text;
    for (std::size_t device = 0; device < now.at.size(); ++device) {
      text += std::to_string(now.at[device]) + ":";
      for (bool const one : now.done[device])
        text += one ? '1' : '0';
    }
    for (auto const& edge : now.wire) {
      text += '/';
      for (int const tag : edge)
        text += std::to_string(tag) + ",";
    }
    return text;
  }
  //! The next post of a device towards `peer`, or the size of the batch.
  [[nodiscard]] std::size_t
  find(state const& now, std::size_t device, std::size_t peer, bool sends) const {
    if (now.at[device] >= work_[device].size())
      return npos;
    batch const& posts = work_[device][now.at[device]];
    for (std::size_t i = 0; i < posts.size(); ++i)
      if (posts[i].sends == sends && static_cast<std::size_t>(posts[i].peer) == peer &&
          !now.done[device][i])
        return i;
    return npos;
  }
  void complete(state& now, std::size_t device, std::size_t index) const {
    now.done[device][index] = true;
    auto const& done = now.done[device];
    if (std::find(done.begin(), done.end(), false) != done.end())
      return;
    ++now.at[device];
    now.done[device].clear();
    open(now, device);
  }
  [[nodiscard]] int tag(state const& now, std::size_t device, std::size_t index) const {
    return work_[device][now.at[device]][index].tag;
  }
  [[nodiscard]] std::vector<state> moves(state const& now) {
    std::vector<state> result;
    std::size_t const devices = work_.size();
    for (std::size_t from = 0; from < devices; ++from)
      for (std::size_t to = 0; to < devices; ++to) {
        std::size_t const sent = find(now, from, to, true);
        std::size_t const received = find(now, to, from, false);
        auto const& wire = now.wire[from * devices + to];
        if (sent != npos && received != npos && wire.empty()) {
          mixed_up_ = mixed_up_ || tag(now, from, sent) != tag(now, to, received);
          state next = now;
          complete(next, from, sent);
          complete(next, to, received);
          result.push_back(next);
        }
        if (sent != npos && wire.size() < eager_) {
          state next = now;
          next.wire[from * devices + to].push_back(tag(now, from, sent));
          complete(next, from, sent);
          result.push_back(next);
        }
        if (received != npos && !wire.empty()) {
          mixed_up_ = mixed_up_ || wire.front() != tag(now, to, received);
          state next = now;
          auto& left = next.wire[from * devices + to];
          left.erase(left.begin());
          complete(next, to, received);
          result.push_back(next);
        }
      }
    return result;
  }

  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  machine_program work_;
  std::size_t eager_;
  bool mixed_up_ = false;
};

//! True when every batch is for one peer, which posts the same batch from its side.
[[nodiscard]] inline bool mirrored(machine_program const& work) {
  auto const ends = [](batch const& posts, bool turned) {
    std::multiset<std::pair<int, bool>> result;
    for (post const& one : posts)
      result.insert({one.tag, one.sends != turned});
    return result;
  };
  for (std::size_t device = 0; device < work.size(); ++device)
    for (batch const& posts : work[device]) {
      auto const& theirs = work[static_cast<std::size_t>(posts.front().peer)];
      bool found = false;
      for (batch const& other : theirs)
        found = found || (other.front().peer == static_cast<int>(device) &&
                          ends(other, true) == ends(posts, false));
      for (post const& one : posts)
        found = found && one.peer == posts.front().peer;
      if (!found)
        return false;
    }
  return true;
}

//! The messages of a plan; its passes never wait, so they are left out.
[[nodiscard]] inline machine_program messages_of(pipelining::plan const& work) {
  machine_program result(static_cast<std::size_t>(work.over.extents.devices));
  for (int device = 0; device < work.over.extents.devices; ++device) {
    bool after_pass = true;
    for (pipelining::item const& step : work.program_of(device)) {
      bool const runs = step.what == pipelining::operation::run;
      auto& batches = result[static_cast<std::size_t>(device)];
      if (!runs && (after_pass || !step.joins))
        batches.emplace_back();
      after_pass = runs;
      if (runs)
        continue;
      batches.back().push_back({step.what == pipelining::operation::send,
                                work.message_of(step).peer,
                                pipelining::detail::message_index(work, work.over, step)});
    }
  }
  return result;
}

} // namespace support
