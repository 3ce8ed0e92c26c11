// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the processes of a run tell each other outside of the pipeline: values by key, and
//! who has failed.
//!        Header for pipelining::store.

#include <pipe/run/clock.hpp>
#include <pipe/run/socket.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief A wait for another rank that has lasted too long.
class deadline_error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

//! @brief What the ranks of a run tell each other outside of the pipeline; pipelining::store is
//! one.
template <class Store>
concept run_store =
  requires(Store& line, std::string const& text, int size, std::chrono::nanoseconds deadline) {
  line.set(text, text);
  { line.get(text, deadline) } -> std::convertible_to<std::string>;
  { line.look_up(text, deadline) } -> std::convertible_to<std::optional<std::string>>;
  line.barrier(text, size, deadline);
  line.abort(text);
  { line.failure() } -> std::convertible_to<std::optional<std::string>>;
};

//! @brief How to reach the store of a run.
struct store_address {
  std::string host = "127.0.0.1"; //!< of rank 0
  int port = 0;                   //!< rank 0 may choose: see store_server::port
  std::string job = "pipelining"; //!< processes of another job are turned away
};

namespace detail {

// A frame is one letter and its fields, which are separated by a zero byte.
[[nodiscard]] inline std::string
frame(char letter, std::string_view first, std::string_view second = {}) {
  std::string text(1, letter);
  text += first;
  text += '\0';
  text += second;
  return text;
}
[[nodiscard]] inline std::pair<std::string, std::string> fields(std::string_view text) {
  std::size_t const zero = text.find('\0');
  if (zero == std::string_view::npos)
    return {std::string(text.substr(1)), {}};
  return {std::string(text.substr(1, zero - 1)), std::string(text.substr(zero + 1))};
}

inline constexpr char const* store_magic = "pipelining store 1";

} // namespace detail

//! @brief Serves the store from a thread of rank 0. Knows a process that ends without a goodbye by
//! its connection, which
//!        the kernel closes however the process ended, and tells all others.
class store_server {
public:
  //! @throws std::runtime_error when the port is taken.
  explicit store_server(store_address address) : job_(std::move(address.job)) {
    door_ = listen_on(address.port, port_);
    thread_ = std::thread([this] { serve(); });
  }
  store_server(store_server const&) = delete;
  store_server& operator=(store_server const&) = delete;

  //! @brief Waits a moment for the others' goodbyes, then ends.
  ~store_server() {
    closing_ = true;
    thread_.join();
  }

  [[nodiscard]] int port() const noexcept { return port_; }

private:
  struct guest {
    connection line;
    int rank = -1;
    bool left = false; // said goodbye
    std::vector<std::string> wanted{};
  };

  void serve() {
    auto const poll_time = std::chrono::milliseconds(10);
    std::optional<polling_clock::time_point> end;
    std::vector<pollfd> watched; // kept, so that a server that waits allocates nothing
    for (;;) {
      if (closing_ && !end)
        end = polling_clock::now() + std::chrono::seconds(2);
      bool gone = true;
      for (auto const& visitor : guests_)
        gone = gone && !visitor->line.open();
      if (end && (gone || polling_clock::now() >= *end))
        return;
      watched.clear();
      watched.push_back({door_.get(), POLLIN, 0});
      for (auto const& visitor : guests_)
        if (visitor->line.open())
          watched.push_back({visitor->line.get(), POLLIN, 0});
      if (::poll(watched.data(), watched.size(), static_cast<int>(poll_time.count())) <= 0)
        continue;
      if ((watched[0].revents & POLLIN) != 0) {
        descriptor socket(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (socket.get() >= 0) {
          guests_.push_back(std::make_unique<guest>());
          guests_.back()->line = connection(std::move(socket));
        }
      }
      for (std::size_t i = 0; i < guests_.size(); ++i)
        attend(*guests_[i]);
    }
  }

  void attend(guest& visitor) {
    if (!visitor.line.open())
      return;
    while (auto const message = visitor.line.read())
      handle(visitor, *message);
    if (!visitor.line.open() && !visitor.left && visitor.rank >= 0)
      announce("the process of rank " + std::to_string(visitor.rank) + " has ended");
  }

  void handle(guest& visitor, std::string const& message) {
    if (message.empty())
      return;
    auto [first, second] = detail::fields(message);
    switch (message[0]) {
    case 'H': // hello: magic and job, rank
      if (first != detail::store_magic + ('/' + job_)) {
        visitor.line.write(detail::frame('F', "this store serves another job"));
        visitor.line = connection();
        return;
      }
      visitor.rank = std::stoi(second);
      if (!failure_.empty())
        visitor.line.write(detail::frame('F', failure_));
      return;
    case 'S': // set
      values_[first] = second;
      for (auto const& other : guests_)
        for (std::string& key : other->wanted)
          if (key == first) {
            other->line.write(detail::frame('V', key, second));
            key.clear();
          }
      return;
    case 'G': // get, answered as soon as the value exists
      if (auto const value = values_.find(first); value != values_.end())
        visitor.line.write(detail::frame('V', first, value->second));
      else
        visitor.wanted.push_back(first);
      return;
    case 'A': announce(first); return;     // abort
    case 'B': visitor.left = true; return; // goodbye
    default: visitor.line = connection(); return;
    }
  }

  //! The first failure goes to everybody; later ones are its consequences.
  void announce(std::string const& reason) {
    if (!failure_.empty())
      return;
    failure_ = reason;
    for (auto const& visitor : guests_)
      if (visitor->line.open())
        visitor->line.write(detail::frame('F', failure_));
  }

  std::string job_;
  int port_ = 0;
  descriptor door_;
  std::atomic<bool> closing_ = false;
  std::vector<std::unique_ptr<guest>> guests_;
  std::map<std::string, std::string> values_;
  std::string failure_;
  std::thread thread_;
};

//! @brief One process's line to the store. Not for several threads.
template <class Clock = polling_clock>
class basic_store {
public:
  //! @throws std::runtime_error when rank 0 does not answer before the deadline.
  basic_store(store_address const& address, int rank, std::chrono::nanoseconds deadline)
      : rank_(rank), line_(connect_to<Clock>(address.host, address.port, deadline)) {
    line_.write(
      detail::frame('H', detail::store_magic + ('/' + address.job), std::to_string(rank)));
  }
  basic_store(basic_store&&) noexcept = default;
  basic_store(basic_store const&) = delete;
  basic_store& operator=(basic_store const&) = delete;
  basic_store& operator=(basic_store&&) = delete;

  //! @brief Says goodbye: this process ends on purpose.
  ~basic_store() {
    if (line_.open())
      line_.write(detail::frame('B', ""));
  }

  //! @brief Gives a key its value.
  void set(std::string_view key, std::string_view value) {
    line_.write(detail::frame('S', key, value));
  }

  //! @brief Waits until some rank has given the key a value.
  //! @throws deadline_error past the deadline; std::runtime_error when a rank has failed, with its
  //! reason.
  [[nodiscard]] std::string get(std::string const& key, std::chrono::nanoseconds deadline) {
    std::optional<std::string> const value = await(key, deadline, true);
    if (value)
      return *value;
    if (failure_)
      throw std::runtime_error("store: while rank " + std::to_string(rank_) + " waited for '" +
                               key + "': " + *failure_);
    throw deadline_error("store: rank " + std::to_string(rank_) + " has waited for '" + key +
                         "' beyond its deadline; is every rank running?");
  }

  //! @brief Waits for a value also after the run has failed: what ranks tell each other of that.
  //! @return nothing when it has not come before the deadline, or rank 0 is gone.
  [[nodiscard]] std::optional<std::string> look_up(std::string const& key,
                                                   std::chrono::nanoseconds deadline) {
    return await(key, deadline, false);
  }

  //! @brief Waits until all ranks have come to the barrier of this name. A name serves once.
  void barrier(std::string const& name, int size, std::chrono::nanoseconds deadline) {
    set(name + '/' + std::to_string(rank_), "here");
    for (int other = 0; other < size; ++other)
      (void)get(name + '/' + std::to_string(other), deadline);
  }

  //! @brief Tells all ranks that this one has failed, and why. Only the first failure of a run is
  //! passed on.
  void abort(std::string_view reason) {
    if (line_.open())
      line_.write(detail::frame('A', reason));
  }

  //! @brief The reason of the run's failure, once there is one: another rank's, or that rank 0 is
  //! gone.
  [[nodiscard]] std::optional<std::string> failure() {
    while (auto const message = line_.read()) {
      auto [first, second] = detail::fields(*message);
      if (message->front() == 'F' && !failure_)
        failure_ = first;
      if (message->front() == 'V')
        arrived_[first] = second;
    }
    if (!line_.open() && !failure_)
      failure_ = "the process of rank 0 has ended";
    return failure_;
  }

private:
  std::optional<std::string>
  await(std::string const& key, std::chrono::nanoseconds deadline, bool failure_ends) {
    line_.write(detail::frame('G', key));
    auto const end = Clock::now() + deadline;
    for (;;) {
      if (failure() && (failure_ends || !line_.open()))
        return std::nullopt;
      if (auto const value = arrived_.find(key); value != arrived_.end()) {
        std::string result = std::move(value->second);
        arrived_.erase(value);
        return result;
      }
      if (Clock::now() >= end)
        return std::nullopt;
      Clock::sleep_for(std::chrono::microseconds(200));
    }
  }

  int rank_;
  connection line_;
  std::map<std::string, std::string> arrived_;
  std::optional<std::string> failure_;
};

using store = basic_store<>;

} // namespace pipelining::inline v0_1
