// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A store for ranks that are threads of the stand-in, in virtual time.

#include <pipe/cluster/store.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <string>

//! @brief What all ranks share. Only one host thread of the stand-in runs at any moment.
struct memory_board {
  std::map<std::string, std::string> values{};
  std::string failure{};
};

//! @brief One rank's line to it, with the interface of pipelining::store.
struct memory_store {
  memory_board& board;
  int rank;
  std::string unfit{}; //!< a key that begins so is refused with a std::logic_error

  void set(std::string const& key, std::string const& value) const {
    if (!unfit.empty() && key.find(unfit) == 0)
      throw std::logic_error("store: no such key");
    board.values[key] = value;
  }
  [[nodiscard]] std::string get(std::string const& key, std::chrono::nanoseconds deadline) const {
    auto const value = await(key, deadline, true);
    if (value)
      return *value;
    if (!board.failure.empty())
      throw std::runtime_error("store: " + board.failure);
    throw pipelining::deadline_error("store: rank " + std::to_string(rank) + " has waited for '" +
                                     key + "' beyond its deadline");
  }
  [[nodiscard]] std::optional<std::string> look_up(std::string const& key,
                                                   std::chrono::nanoseconds deadline) const {
    return await(key, deadline, false);
  }
  void barrier(std::string const& name, int size, std::chrono::nanoseconds deadline) const {
    set(name + '/' + std::to_string(rank), "here");
    for (int other = 0; other < size; ++other)
      (void)get(name + '/' + std::to_string(other), deadline);
  }
  void abort(std::string const& reason) const {
    if (board.failure.empty())
      board.failure = reason;
  }
  [[nodiscard]] std::optional<std::string> failure() const {
    return board.failure.empty() ? std::nullopt : std::optional(board.failure);
  }

private:
  [[nodiscard]] std::optional<std::string>
  await(std::string const& key, std::chrono::nanoseconds deadline, bool failure_ends) const {
    auto const end = standin::clock::now() + deadline;
    for (;;) {
      if (failure_ends && !board.failure.empty())
        return std::nullopt;
      if (auto const found = board.values.find(key); found != board.values.end())
        return found->second;
      if (standin::clock::now() >= end)
        return std::nullopt;
      standin::clock::sleep_for(std::chrono::microseconds(200));
    }
  }
};
