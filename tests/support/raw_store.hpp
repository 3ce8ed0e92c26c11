// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The two ends of a store's line, without the library's manners.

#include <pipe/cluster/store.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace support {

namespace pp = pipelining;

//! Longer than any honest word between two threads of this machine takes.
inline constexpr auto patience = std::chrono::seconds(20);

//! A connection to a store on this machine that has said nothing yet.
inline pp::detail::connection knock(int port) {
  std::string problem;
  pp::detail::countdown<pp::detail::polling_clock> end(patience);
  auto line = pp::detail::reach("127.0.0.1", port, end, problem);
  if (!line)
    throw std::runtime_error("nobody listens: " + problem);
  return std::move(*line);
}

//! The next frame, or nothing when the other end closes.
inline std::optional<std::string> hear(pp::detail::connection& line) {
  while (line.open()) {
    if (auto word = line.read())
      return word;
    pp::detail::wait_for_socket(line.get(), false, std::chrono::milliseconds(10));
  }
  return std::nullopt;
}

//! Lets ranks in, and then does nothing: what ranks see of a process that was stopped.
class silent_store {
public:
  explicit silent_store(int guests) {
    door_ = pp::detail::listen_on("127.0.0.1", 0, port_);
    thread_ = std::thread([this, guests] {
      for (int i = 0; i < guests && !over_;) {
        pp::detail::descriptor socket(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (socket.get() < 0) {
          pp::detail::wait_for_socket(door_.get(), false, std::chrono::milliseconds(10));
          continue;
        }
        lines_.emplace_back(std::move(socket));
        lines_.back().write(pp::detail::frame('W', pp::detail::store_magic));
        (void)hear(lines_.back());
        lines_.back().write(pp::detail::frame('W', "welcome"));
        ++i;
      }
    });
  }
  silent_store(silent_store const&) = delete;
  silent_store& operator=(silent_store const&) = delete;
  ~silent_store() {
    over_ = true;
    thread_.join();
  }
  [[nodiscard]] int port() const noexcept { return port_; }

private:
  int port_ = 0;
  pp::detail::descriptor door_;
  std::atomic<bool> over_ = false;
  std::vector<pp::detail::connection> lines_;
  std::thread thread_;
};

//! Stands between ranks and a store, and counts the messages that it passes on, both ways.
class counting_relay {
public:
  explicit counting_relay(int store_port) : store_port_(store_port) {
    door_ = pp::detail::listen_on("127.0.0.1", 0, port_);
    thread_ = std::thread([this] { serve(); });
  }
  counting_relay(counting_relay const&) = delete;
  counting_relay& operator=(counting_relay const&) = delete;
  ~counting_relay() {
    over_ = true;
    thread_.join();
  }
  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] int to_store() const noexcept { return to_store_; }
  [[nodiscard]] int to_ranks() const noexcept { return to_ranks_; }

private:
  struct line {
    pp::detail::connection rank;
    pp::detail::connection store;
  };

  void serve() {
    std::vector<pollfd> watched;
    while (!over_) {
      watched.assign(1, {door_.get(), POLLIN, 0});
      for (line const& each : lines_)
        for (pp::detail::connection const* end : {&each.rank, &each.store})
          watched.push_back({end->open() ? end->get() : -1, POLLIN, 0});
      (void)::poll(watched.data(), watched.size(), 10);
      for (std::size_t i = 0; i < lines_.size(); ++i) {
        if (watched[1 + 2 * i].revents != 0)
          pass_on(lines_[i].rank, lines_[i].store, to_store_);
        if (watched[2 + 2 * i].revents != 0)
          pass_on(lines_[i].store, lines_[i].rank, to_ranks_);
      }
      pp::detail::descriptor socket(
        ::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() >= 0)
        lines_.push_back({pp::detail::connection(std::move(socket)), knock(store_port_)});
    }
  }

  static void
  pass_on(pp::detail::connection& from, pp::detail::connection& to, std::atomic<int>& count) {
    while (auto const word = from.read()) {
      ++count; // before anybody can have heard it
      to.write(*word);
    }
  }

  int store_port_;
  int port_ = 0;
  pp::detail::descriptor door_;
  std::atomic<bool> over_ = false;
  std::atomic<int> to_store_ = 0;
  std::atomic<int> to_ranks_ = 0;
  std::vector<line> lines_;
  std::thread thread_;
};

} // namespace support
