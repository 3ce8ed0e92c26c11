// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A small machine of threads that tries every interleaving, with store buffers: a plain
//! store becomes visible to others at any later time, in order; a sequentially consistent one, a
//! lock and an exchange wait until the buffer is empty.

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace support {

//! What a thread of the machine does next.
enum class act {
  store,     //!< memory[at] = value, some time
  store_now, //!< memory[at] = value, for all to see
  copy,      //!< memory[at] = memory[from], some time
  add,       //!< the last value = memory[at]++, for all to see
  exchange,  //!< goes to `to` unless memory[at] is `value`; else memory[at] = from
  jump_if,   //!< goes to `to` where memory[at] is `value`
  jump_last, //!< goes to `to` where the last value is `value`
  jump,      //!< goes to `to`
  lock,      //!< waits for memory[at] to be 0, which becomes 1
  unlock,
  doze,   //!< unlocks memory[at] and sleeps until somebody wakes all
  wake,   //!< wakes all that sleep
  expect, //!< memory[at] must be `value`
  end
};

struct instruction {
  act what = act::end;
  int at = 0;
  int value = 0;
  int to = 0;
  int from = 0;
};

using thread_program = std::vector<instruction>;

enum class ending { always_ends, may_hang, may_be_wrong };

//! Runs threads in all interleavings. @return the worst that can happen
class interleavings {
public:
  static constexpr int cells = 13;

  explicit interleavings(std::vector<thread_program> threads) : threads_(std::move(threads)) {}

  [[nodiscard]] ending run() {
    std::vector<state> open(1, state{{}, std::vector<one>(threads_.size())});
    std::set<std::string> seen;
    bool hangs = false;
    while (!open.empty()) {
      state const now = open.back();
      open.pop_back();
      if (!seen.insert(name(now)).second)
        continue;
      bool moved = false;
      bool all_ended = true;
      for (std::size_t t = 0; t < threads_.size(); ++t) {
        all_ended = all_ended && next(now, t).what == act::end && now.of[t].buffer.empty();
        if (!now.of[t].buffer.empty()) {
          state then = now;
          flush(then, t);
          open.push_back(std::move(then));
          moved = true;
        }
        state then = now;
        if (step(then, t)) {
          open.push_back(std::move(then));
          moved = true;
        }
        if (wrong_)
          return ending::may_be_wrong;
      }
      hangs = hangs || (!moved && !all_ended);
    }
    return hangs ? ending::may_hang : ending::always_ends;
  }

private:
  struct one {
    int at = 0;
    int last = 0;
    bool asleep = false;
    std::vector<std::pair<int, int>> buffer{};
  };
  struct state {
    std::array<int, cells> memory{};
    std::vector<one> of{};
  };

  [[nodiscard]] instruction const& next(state const& now, std::size_t thread) const {
    return threads_[thread][static_cast<std::size_t>(now.of[thread].at)];
  }
  static int read(state const& now, std::size_t thread, int at) {
    int value = now.memory[static_cast<std::size_t>(at)];
    for (auto const& [cell, stored] : now.of[thread].buffer)
      value = cell == at ? stored : value;
    return value;
  }
  static void flush(state& now, std::size_t thread) {
    auto& buffer = now.of[thread].buffer;
    now.memory[static_cast<std::size_t>(buffer.front().first)] = buffer.front().second;
    buffer.erase(buffer.begin());
  }
  static std::string name(state const& now) {
    std::string text;
    for (int const value : now.memory)
      text += std::to_string(value) + ' ';
    for (one const& each : now.of) {
      text += '|' + std::to_string(each.at) + ' ' + std::to_string(each.last) +
              (each.asleep ? " asleep" : "");
      for (auto const& [cell, value] : each.buffer)
        text += ' ' + std::to_string(cell) + '=' + std::to_string(value);
    }
    return text;
  }
  //! Whether the thread can go on; it has then.
  bool step(state& now, std::size_t thread) {
    instruction const& todo = next(now, thread);
    one& self = now.of[thread];
    int& cell = now.memory[static_cast<std::size_t>(todo.at)];
    bool const at_once = todo.what == act::store_now || todo.what == act::add ||
                         todo.what == act::exchange || todo.what == act::lock ||
                         todo.what == act::unlock || todo.what == act::doze;
    if (todo.what == act::end || self.asleep || (at_once && !self.buffer.empty()) ||
        (todo.what == act::lock && cell != 0))
      return false;
    ++self.at;
    switch (todo.what) {
    case act::store: self.buffer.emplace_back(todo.at, todo.value); break;
    case act::copy: self.buffer.emplace_back(todo.at, read(now, thread, todo.from)); break;
    case act::store_now: cell = todo.value; break;
    case act::add: self.last = cell++; break;
    case act::exchange:
      if (cell == todo.value)
        cell = todo.from;
      else
        self.at = todo.to;
      break;
    case act::jump_if:
      self.at = read(now, thread, todo.at) == todo.value ? todo.to : self.at;
      break;
    case act::jump_last: self.at = self.last == todo.value ? todo.to : self.at; break;
    case act::jump: self.at = todo.to; break;
    case act::lock: cell = 1; break;
    case act::unlock: cell = 0; break;
    case act::doze:
      cell = 0;
      self.asleep = true;
      break;
    case act::wake:
      for (one& each : now.of)
        each.asleep = false;
      break;
    case act::expect: wrong_ = wrong_ || read(now, thread, todo.at) != todo.value; break;
    case act::end: break;
    }
    return true;
  }

  std::vector<thread_program> threads_;
  bool wrong_ = false;
};

} // namespace support
