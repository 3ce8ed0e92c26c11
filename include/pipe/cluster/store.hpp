// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A store through which the processes of a run talk outside of the pipeline: values by key,
//! and who has failed.
//!        Header for pipelining::store.

#include <pipe/cluster/store_protocol.hpp>
#include <pipe/cluster/store_server.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/polling.hpp>

#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief A wait for another rank that has lasted too long.
class deadline_error : public std::runtime_error {
public:
  //! The sentence, as `what()` gives it, and who was waited for.
  explicit deadline_error(std::string const& sentence, std::vector<int> missing = {})
      : std::runtime_error(sentence), missing_(std::move(missing)) {}

  //! @brief The ranks that were waited for, where it is known.
  [[nodiscard]] std::vector<int> const& missing() const noexcept { return missing_; }

private:
  std::vector<int> missing_;
};

//! @brief A line over which the ranks of a run talk outside of the pipeline; pipelining::store is
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

//! @brief One process's line to the store. For one thread; what another one has to say goes through
//! `if_free`.
//!
//! No call blocks beyond its deadline, not even where rank 0 no longer runs.
template <class Clock = detail::polling_clock>
class basic_store {
public:
  //! @brief Connects, and waits until the store has let this rank in.
  //! @throws std::runtime_error when rank 0 cannot be reached before the deadline, or turns this
  //! process away.
  basic_store(store_address const& address, int rank, std::chrono::nanoseconds deadline)
      : turn_(std::make_unique<std::recursive_mutex>()), rank_(rank) {
    detail::countdown<Clock> end(deadline);
    std::string problem = "nobody answers";
    for (;;) {
      std::vector<std::string> const hosts = detail::hosts_of(address);
      for (std::size_t i = 0; i < hosts.size(); ++i) {
        // With another one to try, this one gets a moment only.
        auto const greeting =
          i + 1 < hosts.size() ? std::chrono::seconds(2) : std::chrono::nanoseconds::max();
        if (open_line(hosts[i], address, greeting, end, problem))
          return;
      }
      if (end.is_over())
        throw std::runtime_error("store: rank " + std::to_string(rank) +
                                 " cannot reach rank 0 at " + address.host + ", port " +
                                 std::to_string(address.port) + ": " + problem);
      Clock::sleep_for(std::chrono::milliseconds(20));
    }
  }
  basic_store(basic_store&&) noexcept = default;
  basic_store(basic_store const&) = delete;
  basic_store& operator=(basic_store const&) = delete;
  basic_store& operator=(basic_store&&) = delete;

  //! @brief Says goodbye: this process ends on purpose. Takes up to a second where the kernel has
  //! not taken what was written before.
  ~basic_store() {
    line_.write(detail::frame('B', ""));
    detail::countdown<Clock> end(std::chrono::seconds(1));
    while (line_.pending() && !end.is_over()) {
      pause(end);
      line_.flush();
    }
  }

  //! @brief Gives a key its value.
  //! @throws std::length_error for a value beyond connection::most_bytes.
  void set(std::string_view key, std::string_view value) {
    auto const held = take_turn();
    std::string const message = detail::frame('S', key, value);
    if (message.size() > detail::connection::most_bytes)
      throw std::length_error("store: the value of '" + std::string(key) + "' has " +
                              std::to_string(value.size()) + " bytes, but " +
                              std::to_string(detail::connection::most_bytes) +
                              " with its key are the most; write it into a file");
    line_.write(message);
  }

  //! @brief Waits until some rank has given the key a value.
  //! @throws deadline_error past the deadline; std::runtime_error when a rank has failed, with its
  //! reason.
  [[nodiscard]] std::string get(std::string const& key, std::chrono::nanoseconds deadline) {
    auto const held = take_turn();
    std::optional<std::string> const value = await(key, deadline, true);
    if (value)
      return *value;
    std::string const what = "'" + key + "'";
    throw_if_failed(what);
    check_store(what);
    throw deadline_error("store: rank " + std::to_string(rank_) + " has waited for " + what +
                         " beyond its deadline; is every rank running?");
  }

  //! @brief Waits for a value also after the run has failed: what ranks tell each other of that.
  //! @return nothing when it has not come before the deadline, or rank 0 is gone.
  [[nodiscard]] std::optional<std::string> look_up(std::string const& key,
                                                   std::chrono::nanoseconds deadline) {
    auto const held = take_turn();
    return await(key, deadline, false);
  }

  //! @brief Waits until all ranks have come to the barrier of this name.
  //! @throws deadline_error past the deadline, which names the ranks that have not come;
  //! std::runtime_error when a rank has failed, with its reason.
  //! @complexity one message to the store and one back, for each rank.
  void barrier(std::string const& name, int size, std::chrono::nanoseconds deadline) {
    arrive(name, size);
    await_all(name, deadline);
  }

  //! @brief The first half of a barrier: says that this rank has come, and does not wait.
  void arrive(std::string const& name, int size) {
    auto const held = take_turn();
    line_.write(detail::frame('J', name, std::to_string(size)));
  }
  //! @brief The second half: waits for the others.
  //! @throws as barrier.
  void await_all(std::string const& name, std::chrono::nanoseconds deadline) {
    auto const held = take_turn();
    if (until(deadline, true, [&] { return passed_.erase(name) != 0; }))
      return;
    throw_if_failed("all ranks at '" + name + "'");
    std::vector<int> const missing = who_is_missing(name);
    throw deadline_error("store: rank " + std::to_string(rank_) + " has waited for " +
                           (missing.empty() ? "all ranks" : detail::name_ranks(missing)) + " at '" +
                           name + "' beyond its deadline; is every rank running?",
                         missing);
  }

  //! @brief Asks the store whether it is there.
  //! @return false where it has not answered in time: the process of rank 0 hangs, or is gone.
  [[nodiscard]] bool answers(std::chrono::nanoseconds patience) {
    auto const held = take_turn();
    std::string const question = std::to_string(++questions_);
    line_.write(detail::frame('P', question));
    return until(patience, false, [&] { return answered_ >= questions_; });
  }

  //! @brief Tells all ranks that this one has failed, and why. Only the first failure of a run is
  //! passed on.
  void abort(std::string_view reason) {
    auto const held = take_turn();
    line_.write(detail::frame('A', reason.substr(0, detail::connection::most_bytes / 2)));
  }

  //! @brief The reason of the run's failure, once there is one: another rank's, or that rank 0 is
  //! gone.
  [[nodiscard]] std::optional<std::string> failure() {
    auto const held = take_turn();
    line_.flush();
    while (auto const message = line_.read())
      if (!message->empty())
        hear(*message);
    if (!line_.open() && !failure_)
      failure_ =
        detail::store_saw +
        std::string(line_.stuffed() ? "0, which serves the store, reads nothing" : "0 has ended");
    return failure_;
  }

  //! @brief Lets another thread speak, such as a watchdog for a thread that hangs.
  //! @param speak may call this line.
  //! @return false where the line's own thread is in a call of it; then nothing was said.
  template <class Speak>
  bool if_free(Speak speak) {
    std::unique_lock const held(*turn_, std::try_to_lock);
    if (held)
      speak();
    return held.owns_lock();
  }

private:
  [[nodiscard]] std::unique_lock<std::recursive_mutex> take_turn() const {
    return std::unique_lock(*turn_);
  }

  //! How long the store may take to answer what it knows at once.
  static constexpr std::chrono::seconds courtesy{1};

  //! One attempt at one host.
  bool open_line(std::string const& host,
                 store_address const& address,
                 std::chrono::nanoseconds greeting,
                 detail::countdown<Clock>& end,
                 std::string& problem) {
    auto reached = detail::reach(host, address.port, end, problem);
    if (!reached)
      return false;
    line_ = std::move(*reached);
    // The store speaks first, so that nothing of this run is told to somebody else.
    std::optional<std::string> word = next_word(end, greeting);
    if (!word || *word != detail::frame('W', detail::store_magic)) {
      problem = word ? "what answers there is no store of this version" : "it does not answer";
      line_ = detail::connection();
      return false;
    }
    line_.write(detail::hello(address, rank_));
    word = next_word(end);
    if (word && word->front() == 'W')
      return true;
    line_ = detail::connection();
    if (word && word->front() == 'R')
      throw std::runtime_error("store: rank " + std::to_string(rank_) + " was turned away at " +
                               host + ", port " + std::to_string(address.port) + ": " +
                               detail::fields(*word).first);
    problem = "it does not answer";
    return false;
  }

  std::optional<std::string>
  next_word(detail::countdown<Clock>& end,
            std::chrono::nanoseconds longest = std::chrono::nanoseconds::max()) {
    for (detail::countdown<Clock> word_end(longest);;) {
      if (auto word = line_.read(); word && !word->empty())
        return word;
      if (!line_.open() || end.is_over() || word_end.is_over())
        return std::nullopt;
      pause(end);
    }
  }

  void hear(std::string const& message) {
    auto [first, second] = detail::fields(message);
    switch (message.front()) {
    case 'F': failure_ = failure_.value_or(first); return;
    case 'V': arrived_[first] = std::move(second); return;
    case 'D': passed_.insert(std::move(first)); return;
    case 'M': missing_[first] = std::move(second); return;
    case 'P': answered_ = detail::read_number(first).value_or(answered_); return;
    default: return;
    }
  }

  //! Sleeps until something may have come.
  void pause(detail::countdown<Clock> const& end) {
    if constexpr (std::derived_from<Clock, std::chrono::steady_clock>)
      detail::wait_for_socket(line_.get(), line_.pending(), end.slice());
    else
      Clock::sleep_for(std::chrono::microseconds(200));
  }

  //! Waits for what a message brings.
  //! @return false when it has taken longer than told, when the line is closed, or, where
  //! `failure_ends`, when the run has failed.
  template <class Condition>
  bool until(std::chrono::nanoseconds longest, bool failure_ends, Condition has_come) {
    for (detail::countdown<Clock> end(longest);;) {
      bool const failed = failure().has_value();
      if (has_come())
        return true;
      if ((failed && (failure_ends || !line_.open())) || end.is_over())
        return false;
      pause(end);
    }
  }

  std::optional<std::string>
  await(std::string const& key, std::chrono::nanoseconds deadline, bool failure_ends) {
    line_.write(detail::frame('G', key));
    auto found = arrived_.end();
    if (!until(deadline, failure_ends, [&] {
          found = arrived_.find(key);
          return found != arrived_.end();
        }))
      return std::nullopt;
    std::string result = std::move(found->second);
    arrived_.erase(found);
    return result;
  }

  void throw_if_failed(std::string const& what) const {
    if (failure_)
      throw std::runtime_error("store: while rank " + std::to_string(rank_) + " waited for " +
                               what + ": " + *failure_);
  }

  //! A wait that has lasted too long may be rank 0's fault, whoever was waited for.
  void check_store(std::string const& what) {
    if (!answers(courtesy))
      throw deadline_error("store: rank " + std::to_string(rank_) + " has waited for " + what +
                             " beyond its deadline; rank 0, whose process serves the store, does "
                             "not answer",
                           {0});
  }

  std::vector<int> who_is_missing(std::string const& name) {
    check_store("all ranks at '" + name + "'");
    line_.write(detail::frame('Q', name));
    std::vector<int> missing;
    if (!until(courtesy, false, [&] { return missing_.contains(name); }))
      return missing;
    std::string_view left = missing_[name];
    for (std::size_t comma = 0; (comma = left.find(',')) != left.npos;
         left.remove_prefix(comma + 1))
      missing.push_back(detail::read_number(left.substr(0, comma)).value_or(0));
    return missing;
  }

  std::unique_ptr<std::recursive_mutex> turn_; // one thread at a time; the line itself can move
  int rank_;
  detail::connection line_;
  int questions_ = 0;
  int answered_ = 0;
  std::map<std::string, std::string> arrived_;
  std::map<std::string, std::string> missing_;
  std::set<std::string> passed_;
  std::optional<std::string> failure_;
};

using store = basic_store<>; //!< The store of a run, with the clock of the machine.

//! @brief Rank 0 says where its store is, and its secret. The file appears whole or not at all, and
//! can be read by its owner alone.
//! @param address its job must be one that no earlier run had, such as the batch system's job
//! number: a file that was abandoned is known by it. Names and secret are one line each.
//! @throws std::runtime_error when the file cannot be written.
inline void write_store_file(std::string const& path, store_address const& address) {
  std::string const draft = path + ".draft";
  std::string const text = std::string(detail::store_magic) + '\n' + address.job + '\n' +
                           address.host + '\n' + std::to_string(address.port) + '\n' +
                           std::to_string(address.ranks) + '\n' + address.secret + "\n";
  (void)::unlink(draft.c_str()); // one that was abandoned may have other rights
  detail::descriptor const file(
    ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("store: cannot write " + draft + ": " + std::strerror(errno));
  if (std::rename(draft.c_str(), path.c_str()) != 0)
    throw std::runtime_error("store: cannot rename " + draft + " to " + path);
}

//! @brief The other ranks wait until the file of this job is there.
//! @throws std::runtime_error past the deadline, and where something else than a file is there.
template <class Clock = detail::polling_clock>
[[nodiscard]] store_address read_store_file(std::string const& path,
                                            std::string const& job,
                                            std::chrono::nanoseconds deadline) {
  for (detail::countdown<Clock> left(deadline);;) {
    if (std::string const other = detail::what_is_no_file(path); !other.empty())
      throw std::runtime_error("store: " + path + " is " + other +
                               ", not the file of a store; remove it, or name another file");
    std::ifstream file(path);
    std::string magic;
    std::string port;
    std::string ranks;
    store_address found;
    for (std::string* line : {&magic, &found.job, &found.host, &port, &ranks, &found.secret})
      std::getline(file, *line);
    auto const port_number = detail::read_number(port);
    auto const rank_count = detail::read_number(ranks);
    if (file && magic == detail::store_magic && found.job == job && port_number &&
        *port_number <= 65535 && rank_count) {
      found.port = *port_number;
      found.ranks = *rank_count;
      return found;
    }
    if (left.is_over())
      throw std::runtime_error("store: rank 0 of job '" + job + "' has not written " + path +
                               " before the deadline; do all ranks see that folder?");
    Clock::sleep_for(std::chrono::milliseconds(20));
  }
}

} // namespace pipelining::inline v0_3
