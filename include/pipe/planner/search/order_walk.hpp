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
    auto const count = at(graph.size());
    for (std::vector<double>* each : {&paths_[before], &paths_[after], &saved_})
      each->resize(count);
    for (std::vector<std::int32_t>* each : {&place_, &beside_[before], &beside_[after]})
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
    for (graph_node node = 0; node < of_.size(); ++node)
      open[at(node)] = of_.edges.before.count(node);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t device = 0; device < rows.size(); ++device)
        while (done[device] < rows[device].size() && open[at(rows[device][done[device]])] == 0) {
          graph_node const node = rows[device][done[device]++];
          sequence_.push_back(node);
          for (graph_edge const& edge : of_.edges.after.of(node))
            --open[at(edge.other)];
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
  [[nodiscard]] std::vector<double> const& starts() const noexcept { return paths_[before]; }
  //! The time that is to become least: the end of the last pass, or the longest span.
  [[nodiscard]] double length() const noexcept { return length_; }

  [[nodiscard]] node_rows rows() const {
    node_rows result(at(of_.devices));
    for (graph_node const node : sequence_)
      result[at(of_.holders[at(node)])].push_back(node);
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
    graph_node const past = farthest(node, up, jumps);
    bool const made = past != no_node && move({node, past, up}, limit) <= limit;
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
      if (farthest(what.node, what.up, jumps) != what.past)
        return;
      double const path = move(what, any_length, false);
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
      while (last + 1 < path_.size() && beside_[after][at(path_[last])] == path_[last + 1])
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
    (void)move(best, any_length);
    sort_by_time();
    return tries;
  }

private:
  //! A pass goes before another of its device that stands before it, or after one after it.
  struct block_move {
    graph_node node = no_node;
    graph_node past = no_node;
    bool up = false;
  };
  enum side : std::uint8_t { before, after };

  template <side Of>
  [[nodiscard]] graph_edges const& edges() const noexcept {
    return Of == before ? of_.edges.before : of_.edges.after;
  }
  [[nodiscard]] double wait_behind(graph_node node) const noexcept {
    return of_.waits[at(of_.holders[at(node)])];
  }
  [[nodiscard]] double start_of(graph_node node) const noexcept { return paths_[before][at(node)]; }
  [[nodiscard]] double end_of(graph_node node) const noexcept {
    return start_of(node) + of_.times[at(node)];
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

  //! The longest path to the start of a node, or from its end.
  template <side Of>
  [[nodiscard]] double path_of(graph_node node) const noexcept {
    std::vector<double> const& paths = paths_[Of];
    graph_node const next = beside_[Of][at(node)];
    double path = Of == before ? 0 : wait_behind(node);
    if (next != no_node)
      path = of_.times[at(next)] + paths[at(next)];
    for (auto const [other, lag] : edges<Of>().of(node))
      path = std::max(path,
                      Of == before ? paths[at(other)] + of_.times[at(other)] + lag
                                   : lag + of_.times[at(other)] + paths[at(other)]);
    return path;
  }

  [[nodiscard]] bool critical(graph_node node) const noexcept {
    return end_of(node) + paths_[after][at(node)] >= length_ - rounding();
  }
  //! A longest path, one of them by chance.
  void find_path() {
    int count = 0;
    auto const add = [&](graph_node node, double ready) {
      if (node != no_node && start_of(node) <= ready + rounding() && critical(node) &&
          random_.below(++count) == 0)
        path_.back() = node;
    };
    path_.assign(1, no_node);
    for (std::size_t i = 0; i < sequence_.size() && start_of(sequence_[i]) <= 0; ++i)
      add(sequence_[i], 0);
    while (count > 0) {
      graph_node const node = path_.back();
      path_.push_back(no_node);
      count = 0;
      add(beside_[after][at(node)], end_of(node));
      for (auto const [other, lag] : of_.edges.after.of(node))
        add(other, end_of(node) + lag);
    }
    path_.pop_back();
  }

  //! The step until which a pass must not go before another. Few pairs share one.
  [[nodiscard]] std::int64_t& forbidden_until(graph_node first, graph_node second) noexcept {
    return forbidden_until_[(static_cast<std::uint32_t>(first) * 0x9e3779b1U +
                             static_cast<std::uint32_t>(second) * 0x85ebca6bU) >>
                            20];
  }
  //! True where `pair(first, second)` is, for one of the pairs that a move brings into this order.
  [[nodiscard]] bool any_pair(block_move const& what, auto const& pair) const noexcept {
    std::vector<graph_node> const& beside = beside_[what.up ? after : before];
    for (graph_node other = what.past; other != what.node; other = beside[at(other)])
      if (what.up ? pair(what.node, other) : pair(other, what.node))
        return true;
    return false;
  }
  [[nodiscard]] bool goes_back(block_move const& what) noexcept {
    return any_pair(what, [&](graph_node first, graph_node second) {
      return forbidden_until(first, second) > steps_;
    });
  }
  void forbid_return(block_move const& what) noexcept {
    std::int64_t const until = steps_ + 8 + random_.below(8);
    (void)any_pair(what, [&](graph_node first, graph_node second) {
      forbidden_until(second, first) = until;
      return false;
    });
  }

  void link_rows() {
    std::vector<graph_node> last(at(of_.devices), no_node);
    std::vector<std::int64_t> held(at(of_.devices), 0);
    for (graph_node const node : sequence_) {
      std::size_t const device = at(of_.holders[at(node)]);
      join(last[device], node);
      beside_[after][at(node)] = no_node;
      last[device] = node;
      held_[at(node)] = held[device] + of_.taken[at(node)];
      held[device] = held_[at(node)] - of_.freed[at(node)];
    }
  }
  void time_all() {
    for (graph_node const node : sequence_)
      paths_[before][at(node)] = path_of<before>(node);
    for (auto node = sequence_.rbegin(); node != sequence_.rend(); ++node)
      paths_[after][at(*node)] = path_of<after>(*node);
    find_length();
  }
  void number_places() {
    for (std::size_t i = 0; i < sequence_.size(); ++i)
      place_[at(sequence_[i])] = static_cast<std::int32_t>(i);
  }
  void sort_by_time() {
    number_places(); // passes that take no time stay in their order
    std::sort(sequence_.begin(), sequence_.end(), [this](graph_node a, graph_node b) {
      return start_of(a) != start_of(b) ? start_of(a) < start_of(b) : place_[at(a)] < place_[at(b)];
    });
    number_places();
    since_sorted_ = 0;
  }

  //! The last of at most `jumps` passes on one side of it that a pass may go past.
  [[nodiscard]] graph_node farthest(graph_node node, bool up, int jumps) const noexcept {
    return up ? farthest<before>(node, jumps) : farthest<after>(node, jumps);
  }
  template <side To>
  [[nodiscard]] graph_node farthest(graph_node node, int jumps) const noexcept {
    constexpr int sign = To == before ? 1 : -1; // of places, the more the nearer
    std::int32_t barrier = To == before ? -1 : -of_.size();
    for (graph_edge const& edge : edges<To>().of(node))
      barrier = std::max(barrier, sign * place_[at(edge.other)]);
    std::int64_t const change = sign * (of_.taken[at(node)] - of_.freed[at(node)]);
    std::int64_t const room = of_.room[at(of_.holders[at(node)])];
    graph_node found = no_node;
    for (graph_node other = beside_[To][at(node)]; other != no_node && jumps > 0; --jumps) {
      if (sign * place_[at(other)] <= barrier || held_[at(other)] + change > room)
        break;
      found = other;
      other = beside_[To][at(other)];
    }
    return found;
  }

  //! Makes a move.
  //! @return the longest path through the passes that it moves past. Where that is longer than
  //! `limit`, or with `keeping` false, nothing has changed.
  double move(block_move const& what, double limit, bool keeping = true) {
    auto const [node, past, up] = what;
    graph_node const previous = beside_[before][at(node)];
    graph_node const next = beside_[after][at(node)];
    join(previous, next);
    put(up ? beside_[before][at(past)] : past, node, up ? past : beside_[after][at(past)]);
    auto const turn = [this](std::int32_t first, std::int32_t last, bool to_the_front) {
      auto const begin = sequence_.begin() + first;
      auto const end = sequence_.begin() + last + 1;
      std::rotate(begin, to_the_front ? end - 1 : begin + 1, end);
    };
    auto const [first, last] = std::minmax(place_[at(node)], place_[at(past)]);
    turn(first, last, up);
    double const path = retime(first, last, limit, keeping);
    if (path > limit || !keeping) {
      turn(first, last, !up);
      join(beside_[before][at(node)], beside_[after][at(node)]);
      put(previous, node, next);
      return path;
    }
    std::int64_t const change = of_.taken[at(node)] - of_.freed[at(node)];
    if (up) {
      held_[at(node)] = held_[at(past)] - of_.taken[at(past)] + of_.taken[at(node)];
      for (graph_node other = past; other != next; other = beside_[after][at(other)])
        held_[at(other)] += change;
    } else {
      for (graph_node other = next; other != node; other = beside_[after][at(other)])
        held_[at(other)] -= change;
      held_[at(node)] = held_[at(past)] - of_.freed[at(past)] + of_.taken[at(node)];
    }
    keep(first, last);
    return path;
  }

  //! Makes two passes neighbours on their device; either may be no pass.
  void join(graph_node first, graph_node second) noexcept {
    if (first != no_node)
      beside_[after][at(first)] = second;
    if (second != no_node)
      beside_[before][at(second)] = first;
  }
  void put(graph_node first, graph_node node, graph_node second) noexcept {
    join(first, node);
    join(node, second);
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
      saved_[at(timed)] = start_of(node);
      paths_[before][at(node)] = path_of<before>(node);
      double const end = end_of(node);
      graph_node const next = beside_[after][at(node)];
      double path = end;
      if (next == no_node)
        path += wait_behind(node);
      else if (place_[at(next)] > last)
        path += of_.times[at(next)] + paths_[after][at(next)];
      else
        path = -std::numeric_limits<double>::max();
      for (auto const [other, lag] : of_.edges.after.of(node))
        if (place_[at(other)] > last)
          path = std::max(path, end + lag + of_.times[at(other)] + paths_[after][at(other)]);
      longest = std::max(longest, path);
    }
    if (longest > limit || !keeping)
      while (--timed >= first)
        paths_[before][at(sequence_[at(timed)])] = saved_[at(timed)];
    return longest;
  }

  //! Brings places, times and paths of all others up to date.
  void keep(std::int32_t first, std::int32_t last) {
    for (std::int32_t i = first; i <= last; ++i)
      place_[at(sequence_[at(i)])] = i;
    spread<before>(first, last);
    spread<after>(last, first);
    find_length();
  }
  //! Finds the paths of the places `from` to `to`, and of all whose paths go through them.
  template <side Of>
  void spread(std::int32_t from, std::int32_t to) {
    constexpr side others = Of == before ? after : before;
    constexpr int step = Of == before ? 1 : -1;
    std::int32_t end = to;
    auto const mark = [&](graph_node other) {
      marked_[at(other)] = 1;
      end = step * std::max(step * end, step * place_[at(other)]);
    };
    for (std::int32_t i = from; step * i <= step * end; i += step) {
      graph_node const node = sequence_[at(i)];
      bool const inside = step * i <= step * to;
      if (!inside && marked_[at(node)] == 0)
        continue;
      marked_[at(node)] = 0;
      double const path = path_of<Of>(node);
      if (!inside && path == paths_[Of][at(node)])
        continue;
      paths_[Of][at(node)] = path;
      if (graph_node const next = beside_[others][at(node)]; next != no_node)
        mark(next);
      for (graph_edge const& edge : edges<others>().of(node))
        mark(edge.other);
    }
  }
  void find_length() {
    // The last passes of all devices are near the end of the sequence.
    length_ = -std::numeric_limits<double>::max();
    int left = of_.devices;
    for (auto at_end = sequence_.rbegin(); at_end != sequence_.rend() && left > 0; ++at_end)
      if (beside_[after][at(*at_end)] == no_node) {
        --left;
        length_ = std::max(length_, end_of(*at_end) + wait_behind(*at_end));
      }
  }

  order_graph const& of_;
  random_numbers random_;
  std::vector<graph_node> sequence_;
  std::vector<std::int32_t> place_;   // by node: where it is in the sequence
  std::vector<graph_node> beside_[2]; // by side and node: on its device
  std::vector<std::int64_t> held_;    // by node: what its device holds while it runs
  std::vector<double> paths_[2];      // by node: when it starts, and the longest path after its end
  std::vector<double> saved_;         // by place
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
