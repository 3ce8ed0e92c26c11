// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief TCP connections that carry frames of bytes and never block; listening at an address and
//! reaching one, IPv4 and IPv6, with a deadline. Header for pipelining::detail::connection.

#include <pipe/run/clock.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! A file descriptor that closes itself.
class descriptor {
public:
  //! Takes over an open descriptor; -1 is none.
  explicit descriptor(int number = -1) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  descriptor(descriptor const&) = delete;
  descriptor& operator=(descriptor const&) = delete;
  ~descriptor() {
    if (number_ >= 0)
      ::close(number_);
  }
  //! The number that the kernel knows it by; -1: none.
  [[nodiscard]] int get() const noexcept { return number_; }

private:
  int number_;
};

//! Names a thing that is no file, such as "a FIFO", which to open could take for ever. Empty where
//! there is a file of this name, or nothing.
[[nodiscard]] inline std::string what_is_no_file(std::string const& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode))
    return {};
  return S_ISFIFO(found.st_mode)   ? "a FIFO"
         : S_ISDIR(found.st_mode)  ? "a folder"
         : S_ISSOCK(found.st_mode) ? "a socket"
                                   : "a device";
}

inline void set_option(int socket, int level, int name, int value) noexcept {
  (void)::setsockopt(socket, level, name, &value, sizeof value);
}

//! As the kernel wants it: rounded up, and at most a second.
[[nodiscard]] inline int in_milliseconds(std::chrono::nanoseconds longest) noexcept {
  using std::chrono::milliseconds;
  auto const left = std::chrono::ceil<milliseconds>(longest);
  return static_cast<int>(
    std::clamp<milliseconds>(left, milliseconds(0), std::chrono::seconds(1)).count());
}

//! Waits in real time until a socket can be read, or written where `writes`, but not longer than
//! told.
inline void wait_for_socket(int socket, bool writes, std::chrono::nanoseconds longest) noexcept {
  pollfd watched{socket, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0};
  (void)::poll(&watched, 1, in_milliseconds(longest));
}

//! Frames over one TCP connection: each is four bytes of length, then that many bytes.
//!
//! Not for several threads. Nothing blocks: what the kernel does not take at once is kept, up to
//! `most_pending` bytes, and sent by later calls.
class connection {
public:
  //! The longest frame, in bytes; more is taken as a stranger at the door.
  static constexpr std::size_t most_bytes = std::size_t(1) << 24U;
  //! Most bytes that may wait to be sent. With more, the other end is taken for one that does not
  //! read.
  static constexpr std::size_t most_pending = std::size_t(1) << 26U;

  connection() = default;
  //! Takes over a connected socket.
  explicit connection(descriptor socket) : socket_(std::move(socket)) {
    set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    // A machine that vanishes closes nothing; the kernel asks after it, and gives up after 25
    // seconds.
    set_option(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  }

  //! The number of its descriptor.
  [[nodiscard]] int get() const noexcept { return socket_.get(); }
  //! True while the other end has not closed it.
  [[nodiscard]] bool open() const noexcept { return socket_.get() >= 0 && !ended_; }
  //! True while something that was written waits for the kernel to take it.
  [[nodiscard]] bool pending() const noexcept { return open() && sent_ < outgoing_.size(); }
  //! True when the connection was ended because the other end does not read.
  [[nodiscard]] bool stuffed() const noexcept { return stuffed_; }

  //! Sends one frame, now or by later calls of `write` and `flush`.
  //! @return false when the other end is gone or does not read.
  bool write(std::string_view frame) {
    if (!open())
      return false;
    std::uint32_t const wire = htonl(static_cast<std::uint32_t>(frame.size()));
    outgoing_.append(reinterpret_cast<char const*>(&wire), sizeof wire);
    outgoing_.append(frame);
    flush();
    stuffed_ = open() && outgoing_.size() - sent_ > most_pending;
    ended_ = ended_ || stuffed_;
    return open();
  }

  //! Sends as much waiting text as the kernel takes.
  void flush() {
    while (pending()) {
      ssize_t const count = ::send(socket_.get(),
                                   outgoing_.data() + sent_,
                                   outgoing_.size() - sent_,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0)
        sent_ += static_cast<std::size_t>(count);
      else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
      else if (count < 0 && errno != EINTR)
        ended_ = true;
    }
    outgoing_.clear();
    sent_ = 0;
  }

  //! Takes the next whole frame that has arrived, if there is one. Notes the end of the
  //! connection. Takes a bounded number of bytes from the kernel: ask until there is nothing.
  //! @param longest a frame with more bytes ends the connection.
  [[nodiscard]] std::optional<std::string> read(std::size_t longest = most_bytes) {
    if (std::optional<std::string> ready = take(longest))
      return ready;
    receive();
    return take(longest);
  }

private:
  std::optional<std::string> take(std::size_t longest) {
    std::uint32_t wire = 0;
    std::size_t const arrived = incoming_.size() - taken_;
    if (arrived < sizeof wire)
      return std::nullopt;
    std::memcpy(&wire, incoming_.data() + taken_, sizeof wire);
    std::size_t const length = ntohl(wire);
    if (length > longest)
      ended_ = true;
    if (length > longest || arrived < sizeof wire + length)
      return std::nullopt;
    std::string frame = incoming_.substr(taken_ + sizeof wire, length);
    taken_ += sizeof wire + length;
    return frame;
  }

  void receive() {
    incoming_.erase(0, taken_);
    taken_ = 0;
    char bytes[4096];
    for (int turn = 0; turn < 64 && open(); ++turn) {
      ssize_t const count = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count > 0)
        incoming_.append(bytes, static_cast<std::size_t>(count));
      else if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        ended_ = true;
      else if (errno != EINTR)
        return;
    }
  }

  descriptor socket_;
  std::string incoming_;
  std::size_t taken_ = 0; // bytes of incoming_ that are frames of the past
  std::string outgoing_;
  std::size_t sent_ = 0; // bytes of outgoing_ that the kernel has
  bool ended_ = false;
  bool stuffed_ = false;
};

struct endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
  [[nodiscard]] sockaddr const* get() const noexcept {
    return reinterpret_cast<sockaddr const*>(&address);
  }
};

//! Looks up the addresses of a host and a port. May block for as long as the name server likes,
//! unless `flags` has AI_NUMERICHOST.
//! @return 0, or the code of getaddrinfo.
inline int
look_up_host(std::string const& host, int port, int flags, std::vector<endpoint>& found) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  int const code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0)
    return code;
  for (addrinfo const* each = list; each != nullptr; each = each->ai_next) {
    found.emplace_back();
    found.back().length = each->ai_addrlen;
    std::memcpy(&found.back().address, each->ai_addr, each->ai_addrlen);
  }
  ::freeaddrinfo(list);
  return 0;
}

//! The same with a deadline: a name is looked up by a thread that is abandoned when it is late.
template <class Clock>
[[nodiscard]] std::vector<endpoint>
resolve(std::string const& host, int port, countdown<Clock>& end, std::string& problem) {
  struct question {
    std::vector<endpoint> found{};
    int code = 0;
    std::atomic<bool> answered = false;
  };
  auto const asked = std::make_shared<question>();
  if (look_up_host(host, port, AI_NUMERICHOST, asked->found) == 0)
    return asked->found;
  std::thread([asked, host, port] {
    asked->code = look_up_host(host, port, 0, asked->found);
    asked->answered = true;
  }).detach();
  while (!asked->answered && !end.is_over())
    Clock::sleep_for(std::chrono::milliseconds(1));
  if (!asked->answered) {
    problem = "the name server does not answer";
    return {};
  }
  if (asked->code != 0)
    problem = ::gai_strerror(asked->code);
  return asked->found;
}

[[nodiscard]] inline bool is_loopback(endpoint const& where) noexcept {
  if (where.address.ss_family == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, &where.address, sizeof address);
    return ntohl(address.sin_addr.s_addr) >> 24U == 127;
  }
  sockaddr_in6 address{};
  std::memcpy(&address, &where.address, sizeof address);
  return IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) != 0;
}

//! A port of this machine, or -1 with errno set.
[[nodiscard]] inline descriptor bind_to(endpoint const& where, bool both_families) {
  descriptor door(::socket(where.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  set_option(door.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.address.ss_family == AF_INET6)
    set_option(door.get(), IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  if (door.get() < 0 || ::bind(door.get(), where.get(), where.length) != 0 ||
      ::listen(door.get(), SOMAXCONN) != 0)
    return descriptor();
  return door;
}

//! A connection that the kernel has made with itself, which happens when nobody listens at a port
//! that it hands out.
[[nodiscard]] inline bool is_own_echo(int socket) noexcept {
  endpoint here;
  endpoint there;
  here.length = there.length = sizeof here.address;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&here.address), &here.length) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&there.address), &there.length) == 0 &&
         here.length == there.length &&
         std::memcmp(&here.address, &there.address, here.length) == 0;
}

//! One attempt, which takes up to a second.
template <class Clock>
[[nodiscard]] descriptor knock(endpoint const& where, countdown<Clock>& end, std::string& problem) {
  descriptor socket(
    ::socket(where.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int code = socket.get() < 0 ? errno : 0;
  if (code == 0 && ::connect(socket.get(), where.get(), where.length) != 0)
    code = errno;
  if (code == EINPROGRESS) {
    pollfd watched{socket.get(), POLLOUT, 0};
    socklen_t length = sizeof code;
    int answers = 0;
    countdown<Clock> attempt(std::chrono::seconds(1));
    do
      answers = ::poll(&watched, 1, in_milliseconds(std::min(attempt.slice(), end.slice())));
    while (answers == 0 && !attempt.is_over() && !end.is_over());
    if (answers <= 0)
      code = ETIMEDOUT;
    else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0)
      code = errno;
  }
  if (code == 0 && is_own_echo(socket.get()))
    code = ECONNREFUSED;
  if (code == 0)
    return socket;
  problem = std::strerror(code);
  return descriptor();
}

inline void check_port(int port) {
  if (port < 0 || port > 65535)
    throw std::runtime_error("store: there is no port " + std::to_string(port) +
                             "; ports are 1 to 65535, and 0 takes any free one");
}

//! A socket that listens.
//! @param where an address or a name of this machine; empty for all its addresses, IPv4 and IPv6.
//! @param port 0 for any free one. @param chosen receives the port.
//! @throws std::runtime_error
[[nodiscard]] inline descriptor listen_on(std::string const& where, int port, int& chosen) {
  check_port(port);
  std::vector<endpoint> places;
  int code = 0;
  if (where.empty()) { // one socket for both families; one for IPv4 where the machine has no IPv6
    for (char const* any : {"::", "0.0.0.0"})
      (void)look_up_host(any, port, AI_NUMERICHOST, places);
  } else {
    code = look_up_host(where, port, 0, places);
  }
  std::string problem = code == 0 ? "" : ::gai_strerror(code);
  for (endpoint const& place : places) {
    descriptor door = bind_to(place, where.empty());
    endpoint bound;
    bound.length = sizeof bound.address;
    if (door.get() >= 0 &&
        ::getsockname(door.get(), reinterpret_cast<sockaddr*>(&bound.address), &bound.length) ==
          0) {
      sockaddr_in with_port{}; // the port lies at the same place in both families
      std::memcpy(&with_port, &bound.address, sizeof with_port);
      chosen = ntohs(with_port.sin_port);
      return door;
    }
    problem = std::strerror(errno);
    if (errno == EADDRINUSE)
      problem += "; another process, perhaps another run, listens there";
    if (errno == EADDRINUSE || errno == EACCES)
      break;
  }
  throw std::runtime_error("store: cannot listen on port " + std::to_string(port) +
                           (where.empty() ? "" : " of " + where) + ": " + problem);
}

//! One round of attempts to connect to a host: each of its addresses once.
//! @param problem receives why it has failed.
//! @return nothing where none of them answers before the end.
template <class Clock>
[[nodiscard]] std::optional<connection>
reach(std::string const& host, int port, countdown<Clock>& end, std::string& problem) {
  for (auto const& place : resolve(host, port, end, problem))
    if (descriptor socket = knock(place, end, problem); socket.get() >= 0)
      return connection(std::move(socket));
  return std::nullopt;
}

} // namespace pipelining::inline v0_3::detail
