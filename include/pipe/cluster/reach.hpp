// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Listening at an address and reaching one, IPv4 and IPv6, with a deadline. Header for
//! pipelining::listen_on and pipelining::detail::reach.

#include <pipe/cluster/socket.hpp>
#include <pipe/run/clock.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace pipelining::inline v0_3::detail {

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

//! The same with a deadline: a name is looked up by a thread that is left behind when it is late.
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
