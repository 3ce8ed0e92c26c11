// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The two ends of a store's line, without the library's manners.

#include <pipe/run/store.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace support {

namespace pp = pipelining;

//! A connection to a store on this machine that has said nothing yet.
inline pp::connection knock(int port) {
  std::string problem;
  auto line = pp::reach<pp::polling_clock>(
    "127.0.0.1", port, pp::polling_clock::now() + std::chrono::seconds(20), problem);
  if (!line)
    throw std::runtime_error("nobody listens: " + problem);
  return std::move(*line);
}

//! The next frame, or nothing when the other end closes.
inline std::optional<std::string> hear(pp::connection& line) {
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
    door_ = pp::listen_on("127.0.0.1", 0, port_);
    thread_ = std::thread([this, guests] {
      for (int i = 0; i < guests && !over_;) {
        pp::descriptor socket(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
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
  pp::descriptor door_;
  std::atomic<bool> over_ = false;
  std::vector<pp::connection> lines_;
  std::thread thread_;
};

} // namespace support
