// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sums over a few threads that go on with other work while they are made.

#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace gpt {

//! The sum of the parts of all members, in their order, so that its bits do not depend on who comes
//! first.
//! @param part of each, as long as the sum
template <class Parts>
void add_parts(Parts const& parts, std::vector<float>& sum) {
  sum.assign(parts.front().begin(), parts.front().end());
  for (std::size_t member = 1; member < parts.size(); ++member) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += parts[member][i];
    }
  }
}

//! Members that make the same sums in the same order, each on a thread. A sum has two ends, like
//! one on a network: between them a member does something else.
class all_reduce_group {
public:
  explicit all_reduce_group(std::size_t members) : next_(members, 0) {
    for (round& each : rounds_) {
      each.parts.resize(members);
    }
  }

  //! Hands in a member's part of its next sum. At most two sums of a member are under way.
  //! @return which sum it is
  std::size_t begin(std::size_t member, std::vector<float> const& part) {
    std::unique_lock lock(mutex_);
    std::size_t const number = next_[member]++;
    round& here = rounds_[number % rounds_.size()];
    wait(lock, [&] { return here.number == number; }); // all have left what was here before
    here.parts[member] = part;
    ++here.come;
    changed_.notify_all();
    return number;
  }

  //! Waits for the parts of all members and writes their sum.
  void end(std::size_t number, std::vector<float>& sum) {
    std::unique_lock lock(mutex_);
    round& here = rounds_[number % rounds_.size()];
    wait(lock, [&] { return here.come == here.parts.size(); });
    add_parts(here.parts, sum);
    if (++here.left == here.parts.size()) {
      here.come = here.left = 0;
      here.number += rounds_.size();
      changed_.notify_all();
    }
  }

  //! A member is gone: whoever waits, or will wait, throws.
  void abort() {
    std::scoped_lock const lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

private:
  struct round {
    std::size_t number = 0; // of the sum that is here or comes next
    std::vector<std::vector<float>> parts{};
    std::size_t come = 0;
    std::size_t left = 0;
  };

  template <class Until>
  void wait(std::unique_lock<std::mutex>& lock, Until until) {
    changed_.wait(lock, [&] { return aborted_ || until(); });
    if (aborted_) {
      throw std::runtime_error("another shard of the stage has failed");
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  std::vector<std::size_t> next_; // by member
  std::array<round, 4> rounds_ = numbered();

  static std::array<round, 4> numbered() {
    std::array<round, 4> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].number = i;
    }
    return all;
  }
};

//! A member of such a group.
struct group_member {
  all_reduce_group* group = nullptr;
  std::size_t number = 0;

  std::size_t begin(std::vector<float> const& part) { return group->begin(number, part); }
  void end(std::size_t which, std::vector<float>& sum) { group->end(which, sum); }
};

} // namespace gpt
