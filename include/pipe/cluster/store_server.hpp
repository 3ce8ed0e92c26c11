// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The server of the store, which rank 0 runs. Header for pipelining::store_server.

#include <pipe/cluster/store_protocol.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/polling.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <sys/eventfd.h>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Serves the store from a thread of rank 0. Knows a process that ends without a goodbye by
//! its connection, which the kernel closes however the process ended, and tells all others.
//!
//! A stranger to the run is turned away, costs a bounded amount of memory, and does not disturb the
//! run: see SECURITY.md.
class store_server {
public:
  //! @brief Listens from now on.
  //! @throws std::runtime_error when the port is taken or the address is not this machine's.
  explicit store_server(store_address address) : address_(std::move(address)) {
    door_ = detail::listen_on(detail::place_to_listen(address_), address_.port, port_);
    bell_ = detail::descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] { serve(); });
  }
  store_server(store_server const&) = delete;
  store_server& operator=(store_server const&) = delete;

  //! @brief Waits up to two seconds for the others' goodbyes, then ends.
  ~store_server() {
    closing_ = true;
    (void)::eventfd_write(bell_.get(), 1);
    thread_.join();
  }

  //! @brief The port that it listens on.
  [[nodiscard]] int port() const noexcept { return port_; }

private:
  using clock = detail::polling_clock;
  //! Time for a valid hello; without one, a stranger is sent away then.
  static constexpr std::chrono::seconds hello_time{5};
  //! At most so many wait at the door; one more, and the one that has waited longest must go.
  static constexpr std::size_t most_strangers = 128;
  //! At most so many messages of one guest, or newcomers, before the next guest's turn.
  static constexpr int most_per_turn = 64;

  struct guest {
    detail::connection line;
    detail::countdown<clock> patience{hello_time}; //!< with a stranger
    int rank = -1;                                 //!< -1: a stranger
    bool refused = false; //!< was told so; the line stays until the other end has read it
    bool ready = true;    //!< something may have arrived
    [[nodiscard]] bool stranger() const noexcept { return rank < 0; }
  };
  struct meeting {
    int size = 0;
    std::set<int> here{};
  };

  void serve() noexcept {
    try {
      std::vector<pollfd> watched; // kept, so that a server that waits allocates nothing
      while (!over()) {
        wait(watched);
        if ((watched[1].revents & POLLIN) != 0)
          admit();
        // Others may come and go meanwhile; those come later in the list.
        for (std::size_t i = 0; i < guests_.size(); ++i)
          attend(*guests_[i]);
        sweep();
      }
    } catch (std::exception const&) { // out of memory: all lines close, which all ranks notice
    }
    guests_.clear();
    door_ = detail::descriptor();
  }

  [[nodiscard]] bool over() {
    if (closing_ && !end_)
      end_.emplace(std::chrono::seconds(2));
    return end_ && (ranks_.empty() || end_->is_over());
  }

  void wait(std::vector<pollfd>& watched) {
    watched.clear();
    // Watched until over() has seen it: a bell that rings after that look must end this wait.
    watched.push_back({bell_.get(), static_cast<short>(end_ ? 0 : POLLIN), 0});
    watched.push_back({door_.get(), static_cast<short>(crowded_ ? 0 : POLLIN), 0});
    int longest = -1;
    for (auto const& each : guests_) {
      short const events = each->line.pending() ? POLLIN | POLLOUT : POLLIN;
      watched.push_back({each->line.get(), events, 0});
      if (each->ready)
        longest = 0;
      else if (each->stranger() && longest < 0)
        longest = 100;
    }
    if ((crowded_ || end_) && longest < 0)
      longest = 100;
    crowded_ = false;
    if (::poll(watched.data(), watched.size(), longest) < 0)
      for (pollfd& each : watched)
        each.revents = 0;
    for (std::size_t i = 0; i < guests_.size(); ++i)
      guests_[i]->ready = guests_[i]->ready || watched[i + 2].revents != 0;
  }

  void admit() {
    for (int turn = 0; turn < most_per_turn; ++turn) {
      detail::descriptor socket(
        ::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) {
        // Without descriptors the door would wake this thread for ever.
        crowded_ = errno == EMFILE || errno == ENFILE;
        if (crowded_)
          drop_oldest_stranger();
        return;
      }
      if (strangers() >= most_strangers)
        drop_oldest_stranger();
      guests_.push_back(std::make_unique<guest>());
      guests_.back()->line = detail::connection(std::move(socket));
      guests_.back()->line.write(detail::frame('W', detail::store_magic));
    }
  }

  [[nodiscard]] std::size_t strangers() const {
    return static_cast<std::size_t>(std::count_if(
      guests_.begin(), guests_.end(), [](auto const& each) { return each->stranger(); }));
  }
  void drop_oldest_stranger() {
    auto const oldest = std::find_if(
      guests_.begin(), guests_.end(), [](auto const& each) { return each->stranger(); });
    if (oldest != guests_.end())
      guests_.erase(oldest);
  }

  void attend(guest& visitor) {
    if (!visitor.ready)
      return;
    visitor.line.flush();
    visitor.ready = false;
    std::size_t const longest =
      visitor.stranger() ? detail::most_hello_bytes : detail::connection::most_bytes;
    for (int turn = 0; turn < most_per_turn; ++turn) {
      std::optional<std::string> const message = visitor.line.read(longest);
      if (!message)
        return;
      if (!visitor.refused)
        handle(visitor, *message);
    }
    visitor.ready = true;
  }

  //! Closes the lines of those who have left.
  void sweep() {
    std::vector<std::string> lost;
    auto const gone = [&](std::unique_ptr<guest> const& each) {
      bool const late = each->stranger() && each->patience.is_over();
      if (each->line.open() && !late)
        return false;
      if (!each->stranger()) {
        ranks_.erase(each->rank);
        lost.push_back(
          detail::store_saw + std::to_string(each->rank) +
          (each->line.stuffed() ? " does not read what the store tells it" : " has ended"));
      }
      return true;
    };
    guests_.erase(std::remove_if(guests_.begin(), guests_.end(), gone), guests_.end());
    for (std::string const& reason : lost)
      announce(reason);
  }

  void handle(guest& visitor, std::string const& message) {
    char const letter = message.empty() ? '\0' : message[0];
    if (visitor.stranger())
      return letter == 'H' ? welcome(visitor, message) : close(visitor);
    auto [first, second] = detail::fields(message.empty() ? std::string_view(" ") : message);
    switch (letter) {
    case 'S': return set(first, std::move(second));
    case 'G': return get(visitor, first);
    case 'J': return join(visitor, first, second);
    case 'Q': return say_who_is_missing(visitor, first);
    case 'P': visitor.line.write(detail::frame('P', first)); return; // is anybody there?
    case 'A': return announce(first);                                // abort
    case 'B':                                                        // goodbye
      ranks_.erase(visitor.rank);
      visitor.rank = -1;
      return close(visitor);
    default:
      announce("rank " + std::to_string(visitor.rank) +
               " has told the store what no rank says; are all ranks of one version?");
      return close(visitor);
    }
  }

  static void close(guest& visitor) { visitor.line = detail::connection(); }

  void welcome(guest& visitor, std::string const& message) {
    detail::hello_fields const said = detail::read_hello(message);
    auto const refuse = [&](std::string const& reason) {
      visitor.line.write(detail::frame('R', reason));
      visitor.refused = true;
    };
    if (said.magic != detail::store_magic)
      return refuse("this store is of another version of the library");
    if (said.job != address_.job || !detail::same_secret(said.secret, address_.secret))
      return refuse("this store serves another job");
    std::optional<int> const rank = detail::read_number(said.rank);
    if (!rank || (address_.ranks > 0 && *rank >= address_.ranks))
      return refuse("the run has no rank " + said.rank +
                    (address_.ranks > 0 ? ": it has " + std::to_string(address_.ranks) + " ranks"
                                        : std::string()));
    if (!ranks_.emplace(*rank, &visitor).second)
      return refuse("rank " + said.rank + " is here already; has each process a rank of its own?");
    visitor.rank = *rank;
    visitor.line.write(detail::frame('W', "welcome"));
    if (!failure_.empty())
      visitor.line.write(detail::frame('F', failure_));
  }

  void set(std::string const& key, std::string value) {
    auto const& stored = values_[key] = std::move(value);
    auto const waiting = wanted_.find(key);
    if (waiting == wanted_.end())
      return;
    for (int const rank : waiting->second)
      tell(rank, detail::frame('V', key, stored));
    wanted_.erase(waiting);
  }

  //! Answered as soon as the value exists.
  void get(guest& visitor, std::string const& key) {
    if (auto const value = values_.find(key); value != values_.end())
      visitor.line.write(detail::frame('V', key, value->second));
    else
      wanted_[key].insert(visitor.rank);
  }

  void join(guest& visitor, std::string const& name, std::string const& size) {
    meeting& point = meetings_[name];
    int const ranks = detail::read_number(size).value_or(0);
    if (point.here.empty())
      point.size = ranks;
    else if (ranks != point.size)
      return announce("ranks disagree on who comes to '" + name + "': rank " +
                      std::to_string(visitor.rank) + " waits for " + std::to_string(ranks) +
                      " ranks, and rank " + std::to_string(*point.here.begin()) + " for " +
                      std::to_string(point.size));
    point.here.insert(visitor.rank);
    if (point.here.size() < static_cast<std::size_t>(point.size))
      return;
    for (int const rank : point.here)
      tell(rank, detail::frame('D', name));
    meetings_.erase(name);
  }

  void say_who_is_missing(guest& visitor, std::string const& name) {
    std::string missing;
    if (auto const point = meetings_.find(name); point != meetings_.end())
      for (int rank = 0; rank < point->second.size; ++rank)
        if (!point->second.here.contains(rank))
          missing += std::to_string(rank) + ',';
    visitor.line.write(detail::frame('M', name, missing));
  }

  void tell(int rank, std::string const& message) {
    if (auto const found = ranks_.find(rank); found != ranks_.end())
      found->second->line.write(message);
  }

  //! The first failure goes to everybody; later ones are its consequences.
  void announce(std::string const& reason) {
    if (!failure_.empty())
      return;
    failure_ = reason;
    for (auto const& [rank, visitor] : ranks_)
      visitor->line.write(detail::frame('F', failure_));
  }

  store_address address_;
  int port_ = 0;
  detail::descriptor door_;
  detail::descriptor bell_;
  std::atomic<bool> closing_ = false;
  bool crowded_ = false;
  std::optional<detail::countdown<clock>> end_;
  std::vector<std::unique_ptr<guest>> guests_; // strangers in the order in which they came
  std::map<int, guest*> ranks_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::set<int>> wanted_;
  std::map<std::string, meeting> meetings_;
  std::string failure_;
  std::thread thread_;
};

} // namespace pipelining::inline v0_3
