// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes that changes by local moves, each looked at in the time of the
//! passes that it moves past.
//!
//! The order of all devices is one sequence in which no pass stands before one that it waits for,
//! so that no move can make a circle. A move takes one pass to another place. Only the passes
//! between both places start at new times as far as the rest is concerned; with the longest path
//! after every pass at hand, the new makespan follows from them only.

#include <pipe/planner/search/order_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pipelining::inline v0_3::detail {

class order_walk {
public:
  order_walk(order_graph const& graph, random_numbers random) : of_(graph), random_(random) {
    auto const count = static_cast<std::size_t>(graph.size());
    for (std::vector<double>* each : {&heads_, &tails_, &saved_})
      each->resize(count);
    for (std::vector<std::int32_t>* each : {&place_, &previous_, &next_})
      each->resize(count);
    held_.resize(count);
    marked_.resize(count);
  }

  //! Starts from rows. @return false where they wait in a circle or hold more than the limit
  [[nodiscard]] bool start(node_rows const& rows) {
    sequence_.clear();
    timed_ = false;
    steps_ += 16; // nothing is forbidden
    std::vector<std::size_t> done(rows.size());
    std::vector<std::int32_t> open(place_.size());
    for (std::size_t i = 0; i < open.size(); ++i)
      open[i] = of_.first_before[i + 1] - of_.first_before[i];
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t device = 0; device < rows.size(); ++device)
        while (done[device] < rows[device].size() &&
               open[static_cast<std::size_t>(rows[device][done[device]])] == 0) {
          graph_node const node = rows[device][done[device]++];
          sequence_.push_back(node);
          for (std::int32_t k = first_after(node); k < first_after(node + 1); ++k)
            --open[static_cast<std::size_t>(of_.after[static_cast<std::size_t>(k)].other)];
          moved = true;
        }
    }
    if (sequence_.size() != place_.size())
      return false;
    link_rows();
    time_all();
    timed_ = true;
    sort_by_time();
    for (std::size_t i = 0; i < held_.size(); ++i)
      if (held_[i] > of_.room[at(of_.holders[i])])
        return false;
    return true;
  }

  //! True when the last start had times at all: no passes wait in a circle.
  [[nodiscard]] bool timed() const noexcept { return timed_; }
  //! The start of each node.
  [[nodiscard]] std::vector<double> const& starts() const noexcept { return heads_; }
  //! The time that is to become least: the end of the last pass, or the longest span.
  [[nodiscard]] double length() const noexcept { return length_; }

  [[nodiscard]] node_rows rows() const {
    node_rows result(static_cast<std::size_t>(of_.devices));
    for (graph_node const node : sequence_)
      result[static_cast<std::size_t>(of_.holders[static_cast<std::size_t>(node)])].push_back(node);
    return result;
  }

  //! Tries one move, which may make the length grow by `patience` times a random share.
  //! @return whether it was made
  bool step(double patience) {
    graph_node const node = pick();
    double const share = random_.fraction();
    double const limit = length_ + patience * share * share * share;
    int jumps = 1;
    while (jumps < 64 && (random_.next() >> 60) < 9)
      jumps += 1 + jumps / 2;
    bool const up = (random_.next() >> 63) != 0;
    graph_node const past = up ? front_of(node, jumps) : back_of(node, jumps);
    bool const made = past != no_node && move(node, past, up, limit) <= limit;
    // Where passes stand by their times, those that may change places are neighbours.
    if (made && ++since_sorted_ > sequence_.size())
      sort_by_time();
    return made;
  }

  //! Takes a pass of a longest path to an end of its block: passes in a row on one device. Of these
  //! moves it makes the best, however long the order gets. Passes do not go back for some steps,
  //! unless that gives a path shorter than `record`.
  //! @return how many moves it looked at; 0 where there is none
  int step_in_blocks(double record) {
    constexpr double any_length = std::numeric_limits<double>::max();
    find_path();
    ++steps_;
    block_move best;
    block_move forbidden; // one of them by chance, where all are
    double least = any_length;
    int tries = 0;
    int ties = 0;
    auto const look = [&](std::size_t from, std::size_t to) {
      block_move const what{path_[from], path_[to], to < from};
      int const jumps = static_cast<int>(what.up ? from - to : to - from);
      if ((what.up ? front_of(what.node, jumps) : back_of(what.node, jumps)) != what.past)
        return;
      double const path = move(what.node, what.past, what.up, any_length, false);
      if (random_.below(++tries) == 0)
        forbidden = what;
      if (path > least || (path >= record && goes_back(what)))
        return;
      ties = path < least ? 1 : ties + 1;
      least = path;
      if (random_.below(ties) == 0)
        best = what;
    };
    for (std::size_t first = 0, last = 0; first < path_.size(); first = ++last) {
      while (last + 1 < path_.size() && next_[at(path_[last])] == path_[last + 1])
        ++last;
      // To the front of the first block or to the end of the last one no path gets shorter.
      for (std::size_t i = first; i <= last; ++i) {
        if (first > 0 && i > first)
          look(i, first);
        if (last + 1 < path_.size() && i < last)
          look(i, last);
      }
    }
    if (tries == 0)
      return 0;
    if (ties == 0)
      best = forbidden;
    forbid_return(best);
    (void)move(best.node, best.past, best.up, any_length);
    sort_by_time();
    return tries;
  }

private:
  struct block_move {
    graph_node node = no_node;
    graph_node past = no_node;
    bool up = false;
  };

  static constexpr std::size_t at(std::int32_t index) noexcept {
    return static_cast<std::size_t>(index);
  }
  [[nodiscard]] std::int32_t first_after(graph_node node) const {
    return of_.first_after[at(node)];
  }
  [[nodiscard]] std::int32_t first_before(graph_node node) const {
    return of_.first_before[at(node)];
  }
  [[nodiscard]] double wait_behind(graph_node node) const {
    return of_.waits[at(of_.holders[at(node)])];
  }

  //! A pass, more often one of a longest path.
  [[nodiscard]] graph_node pick() noexcept {
    int const count = of_.size();
    graph_node node = random_.below(count);
    if ((random_.next() >> 62) == 0)
      return node;
    for (int tries = 0; tries < 12; ++tries) {
      if (critical(node))
        return node;
      node = random_.below(count);
    }
    return node;
  }
  [[nodiscard]] double rounding() const noexcept {
    return 1e-12 * (length_ < 0 ? -length_ : length_);
  }

  [[nodiscard]] double head_of(graph_node node) const noexcept {
    graph_node const previous = previous_[at(node)];
    double head = previous == no_node ? 0 : heads_[at(previous)] + of_.times[at(previous)];
    for (std::int32_t k = first_before(node); k < first_before(node + 1); ++k) {
      graph_edge const edge = of_.before[at(k)];
      head = std::max(head, heads_[at(edge.other)] + of_.times[at(edge.other)] + edge.lag);
    }
    return head;
  }
  [[nodiscard]] double tail_of(graph_node node) const noexcept {
    graph_node const next = next_[at(node)];
    double tail = next == no_node ? wait_behind(node) : of_.times[at(next)] + tails_[at(next)];
    for (std::int32_t k = first_after(node); k < first_after(node + 1); ++k) {
      graph_edge const edge = of_.after[at(k)];
      tail = std::max(tail, edge.lag + of_.times[at(edge.other)] + tails_[at(edge.other)]);
    }
    return tail;
  }

  [[nodiscard]] bool critical(graph_node node) const noexcept {
    return heads_[at(node)] + of_.times[at(node)] + tails_[at(node)] >= length_ - rounding();
  }
  //! A longest path, one of them by chance.
  void find_path() {
    int count = 0;
    auto const add = [&](graph_node node, double ready) {
      if (node != no_node && heads_[at(node)] <= ready + rounding() && critical(node) &&
          random_.below(++count) == 0)
        path_.back() = node;
    };
    path_.assign(1, no_node);
    for (std::size_t i = 0; i < sequence_.size() && heads_[at(sequence_[i])] <= 0; ++i)
      add(sequence_[i], 0);
    while (count > 0) {
      graph_node const node = path_.back();
      double const end = heads_[at(node)] + of_.times[at(node)];
      path_.push_back(no_node);
      count = 0;
      add(next_[at(node)], end);
      for (std::int32_t k = first_after(node); k < first_after(node + 1); ++k)
        add(of_.after[at(k)].other, end + of_.after[at(k)].lag);
    }
    path_.pop_back();
  }

  //! The step until which a pass must not go before another. Few pairs share one.
  [[nodiscard]] std::int64_t& forbidden_until(graph_node first, graph_node second) noexcept {
    return forbidden_until_[(static_cast<std::uint32_t>(first) * 0x9e3779b1U +
                             static_cast<std::uint32_t>(second) * 0x85ebca6bU) >>
                            20];
  }
  [[nodiscard]] bool goes_back(block_move const& what) noexcept {
    for (graph_node other = what.past; other != what.node;
         other = what.up ? next_[at(other)] : previous_[at(other)])
      if ((what.up ? forbidden_until(what.node, other) : forbidden_until(other, what.node)) >
          steps_)
        return true;
    return false;
  }
  void forbid_return(block_move const& what) noexcept {
    std::int64_t const until = steps_ + 8 + random_.below(8);
    for (graph_node other = what.past; other != what.node;
         other = what.up ? next_[at(other)] : previous_[at(other)])
      (what.up ? forbidden_until(other, what.node) : forbidden_until(what.node, other)) = until;
  }

  void link_rows() {
    std::vector<graph_node> last(at(of_.devices), no_node);
    std::vector<std::int64_t> held(at(of_.devices), 0);
    for (std::size_t i = 0; i < sequence_.size(); ++i) {
      graph_node const node = sequence_[i];
      place_[at(node)] = static_cast<std::int32_t>(i);
      std::size_t const device = at(of_.holders[at(node)]);
      previous_[at(node)] = last[device];
      next_[at(node)] = no_node;
      if (last[device] != no_node)
        next_[at(last[device])] = node;
      last[device] = node;
      held_[at(node)] = held[device] + of_.taken[at(node)];
      held[device] = held_[at(node)] - of_.freed[at(node)];
    }
  }
  void time_all() {
    for (graph_node const node : sequence_)
      heads_[at(node)] = head_of(node);
    for (auto node = sequence_.rbegin(); node != sequence_.rend(); ++node)
      tails_[at(*node)] = tail_of(*node);
    find_length();
  }
  void number_places() {
    for (std::size_t i = 0; i < sequence_.size(); ++i)
      place_[at(sequence_[i])] = static_cast<std::int32_t>(i);
  }
  void sort_by_time() {
    number_places(); // passes that take no time stay in their order
    std::sort(sequence_.begin(), sequence_.end(), [this](graph_node a, graph_node b) {
      return heads_[at(a)] != heads_[at(b)] ? heads_[at(a)] < heads_[at(b)]
                                            : place_[at(a)] < place_[at(b)];
    });
    number_places();
    since_sorted_ = 0;
  }

  //! The first of at most `jumps` passes before it on its device that a pass may go before.
  [[nodiscard]] graph_node front_of(graph_node node, int jumps) const noexcept {
    std::int32_t lowest = -1;
    for (std::int32_t k = first_before(node); k < first_before(node + 1); ++k)
      lowest = std::max(lowest, place_[at(of_.before[at(k)].other)]);
    std::int64_t const change = of_.taken[at(node)] - of_.freed[at(node)];
    std::int64_t const room = of_.room[at(of_.holders[at(node)])];
    graph_node front = no_node;
    for (graph_node other = previous_[at(node)]; other != no_node && jumps > 0; --jumps) {
      if (place_[at(other)] <= lowest || held_[at(other)] + change > room)
        break;
      front = other;
      other = previous_[at(other)];
    }
    return front;
  }
  //! The last of at most `jumps` passes after it on its device that a pass may go after.
  [[nodiscard]] graph_node back_of(graph_node node, int jumps) const noexcept {
    std::int32_t highest = of_.size();
    for (std::int32_t k = first_after(node); k < first_after(node + 1); ++k)
      highest = std::min(highest, place_[at(of_.after[at(k)].other)]);
    std::int64_t const change = of_.taken[at(node)] - of_.freed[at(node)];
    std::int64_t const room = of_.room[at(of_.holders[at(node)])];
    graph_node back = no_node;
    for (graph_node other = next_[at(node)]; other != no_node && jumps > 0; --jumps) {
      if (place_[at(other)] >= highest || held_[at(other)] - change > room)
        break;
      back = other;
      other = next_[at(other)];
    }
    return back;
  }

  //! Takes a pass before another of its device that stands before it, or after one that stands
  //! after it.
  //! @return the longest path through the passes that it moves past. Where that is longer than
  //! `limit`, or with `keeping` false, nothing has changed.
  double move(graph_node node, graph_node past, bool up, double limit, bool keeping = true) {
    std::int32_t const from = place_[at(node)];
    std::int32_t const to = place_[at(past)];
    graph_node const previous = previous_[at(node)];
    graph_node const next = next_[at(node)];
    unlink(node);
    if (up)
      link_before(node, past);
    else
      link_behind(node, past);
    auto const turn = [this](std::int32_t first, std::int32_t last, bool to_the_front) {
      auto const begin = sequence_.begin() + first;
      auto const end = sequence_.begin() + last + 1;
      std::rotate(begin, to_the_front ? end - 1 : begin + 1, end);
    };
    auto const [first, last] = std::minmax(from, to);
    turn(first, last, up);
    double const path = retime(first, last, limit, keeping);
    if (path > limit || !keeping) {
      turn(first, last, !up);
      unlink(node);
      if (up)
        link_behind(node, previous);
      else
        link_before(node, next);
      return path;
    }
    std::int64_t const change = of_.taken[at(node)] - of_.freed[at(node)];
    if (up) {
      held_[at(node)] = held_[at(past)] - of_.taken[at(past)] + of_.taken[at(node)];
      for (graph_node other = next_[at(node)]; other != next; other = next_[at(other)])
        held_[at(other)] += change;
    } else {
      for (graph_node other = next; other != node; other = next_[at(other)])
        held_[at(other)] -= change;
      held_[at(node)] = held_[at(past)] - of_.freed[at(past)] + of_.taken[at(node)];
    }
    keep(first, last);
    return path;
  }

  void unlink(graph_node node) noexcept {
    graph_node const before = previous_[at(node)];
    graph_node const behind = next_[at(node)];
    if (before != no_node)
      next_[at(before)] = behind;
    if (behind != no_node)
      previous_[at(behind)] = before;
  }
  void link_before(graph_node node, graph_node behind) noexcept {
    graph_node const before = previous_[at(behind)];
    previous_[at(node)] = before;
    next_[at(node)] = behind;
    previous_[at(behind)] = node;
    if (before != no_node)
      next_[at(before)] = node;
  }
  void link_behind(graph_node node, graph_node before) noexcept {
    graph_node const behind = next_[at(before)];
    previous_[at(node)] = before;
    next_[at(node)] = behind;
    next_[at(before)] = node;
    if (behind != no_node)
      previous_[at(behind)] = node;
  }

  //! Times the places `first` to `last` anew, up to a path longer than `limit`. With that, or with
  //! `keeping` false, puts the old times back.
  //! @return the longest path through them
  double retime(std::int32_t first, std::int32_t last, double limit, bool keeping) {
    double longest = -std::numeric_limits<double>::max();
    std::int32_t timed = first;
    // The places are still those from before the move: after `last` they hold.
    for (; timed <= last && longest <= limit; ++timed) {
      graph_node const node = sequence_[at(timed)];
      saved_[at(timed)] = heads_[at(node)];
      double const head = head_of(node);
      heads_[at(node)] = head;
      double const end = head + of_.times[at(node)];
      graph_node const next = next_[at(node)];
      double path = end;
      if (next == no_node)
        path += wait_behind(node);
      else if (place_[at(next)] > last)
        path += of_.times[at(next)] + tails_[at(next)];
      else
        path = -std::numeric_limits<double>::max();
      for (std::int32_t k = first_after(node); k < first_after(node + 1); ++k) {
        graph_edge const edge = of_.after[at(k)];
        if (place_[at(edge.other)] > last)
          path =
            std::max(path, end + edge.lag + of_.times[at(edge.other)] + tails_[at(edge.other)]);
      }
      longest = std::max(longest, path);
    }
    if (longest > limit || !keeping)
      while (--timed >= first)
        heads_[at(sequence_[at(timed)])] = saved_[at(timed)];
    return longest;
  }

  //! Brings places, times and paths of all others up to date.
  void keep(std::int32_t first, std::int32_t last) {
    std::int32_t reach = last;
    for (std::int32_t i = first; i <= last; ++i)
      place_[at(sequence_[at(i)])] = i;
    auto const mark_after = [&](graph_node node) {
      auto const mark = [&](graph_node other) {
        marked_[at(other)] = 1;
        reach = std::max(reach, place_[at(other)]);
      };
      if (next_[at(node)] != no_node)
        mark(next_[at(node)]);
      for (std::int32_t k = first_after(node); k < first_after(node + 1); ++k)
        mark(of_.after[at(k)].other);
    };
    for (std::int32_t i = first; i <= last; ++i)
      mark_after(sequence_[at(i)]);
    for (std::int32_t i = first; i <= reach; ++i) {
      graph_node const node = sequence_[at(i)];
      if (marked_[at(node)] == 0)
        continue;
      marked_[at(node)] = 0;
      double const head = head_of(node);
      if (i > last && head != heads_[at(node)]) {
        heads_[at(node)] = head;
        mark_after(node);
      }
    }
    std::int32_t least = first;
    auto const mark_before = [&](graph_node node) {
      auto const mark = [&](graph_node other) {
        marked_[at(other)] = 1;
        least = std::min(least, place_[at(other)]);
      };
      if (previous_[at(node)] != no_node)
        mark(previous_[at(node)]);
      for (std::int32_t k = first_before(node); k < first_before(node + 1); ++k)
        mark(of_.before[at(k)].other);
    };
    for (std::int32_t i = last; i >= first; --i) {
      graph_node const node = sequence_[at(i)];
      marked_[at(node)] = 0;
      tails_[at(node)] = tail_of(node);
      mark_before(node);
    }
    for (std::int32_t i = first - 1; i >= least; --i) {
      graph_node const node = sequence_[at(i)];
      if (marked_[at(node)] == 0)
        continue;
      marked_[at(node)] = 0;
      double const tail = tail_of(node);
      if (tail != tails_[at(node)]) {
        tails_[at(node)] = tail;
        mark_before(node);
      }
    }
    find_length();
  }
  void find_length() {
    // The last passes of all devices are near the end of the sequence.
    length_ = -std::numeric_limits<double>::max();
    int left = of_.devices;
    for (auto at_end = sequence_.rbegin(); at_end != sequence_.rend() && left > 0; ++at_end)
      if (next_[at(*at_end)] == no_node) {
        --left;
        length_ =
          std::max(length_, heads_[at(*at_end)] + of_.times[at(*at_end)] + wait_behind(*at_end));
      }
  }

  order_graph const& of_;
  random_numbers random_;
  std::vector<graph_node> sequence_;
  std::vector<std::int32_t> place_;    // by node: where it is in the sequence
  std::vector<std::int32_t> previous_; // by node: on its device
  std::vector<std::int32_t> next_;
  std::vector<std::int64_t> held_; // by node: what its device holds while it runs
  std::vector<double> heads_;      // by node: when it starts
  std::vector<double> tails_;      // by node: the longest path after its end
  std::vector<double> saved_;      // by place
  std::vector<std::uint8_t> marked_;
  std::vector<graph_node> path_;               // a longest one
  std::vector<std::int64_t> forbidden_until_ = // by pair, see there
    std::vector<std::int64_t>(1 << 12);
  std::int64_t steps_ = 0; // in blocks
  std::size_t since_sorted_ = 0;
  double length_ = 0;
  bool timed_ = false;
};

} // namespace pipelining::inline v0_3::detail
