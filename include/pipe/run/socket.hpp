// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief TCP connections that carry frames of bytes. Header for pipelining::connection.

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace pipelining::inline v0_1 {

//! @brief A file descriptor that closes itself.
class descriptor {
public:
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
  [[nodiscard]] int get() const noexcept { return number_; }

private:
  int number_;
};

//! @brief Frames over one TCP connection: each is four bytes of length, then that many bytes.
//!
//! Not for several threads. Reading never blocks; writing blocks until the kernel has taken the
//! bytes.
class connection {
public:
  //! The longest frame; more is taken as a stranger at the door.
  static constexpr std::uint32_t most_bytes = 1U << 24U;

  connection() = default;
  explicit connection(descriptor socket) : socket_(std::move(socket)) {
    int const yes = 1;
    (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }

  [[nodiscard]] int get() const noexcept { return socket_.get(); }
  [[nodiscard]] bool open() const noexcept { return socket_.get() >= 0 && !ended_; }

  //! @brief Sends one frame.
  //! @return false when the other end is gone.
  bool write(std::string_view frame) {
    auto const length = static_cast<std::uint32_t>(frame.size());
    std::uint32_t const wire = htonl(length);
    std::string bytes(reinterpret_cast<char const*>(&wire), sizeof wire);
    bytes += frame;
    std::size_t sent = 0;
    while (open() && sent < bytes.size()) {
      ssize_t const count =
        ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count > 0)
        sent += static_cast<std::size_t>(count);
      else if (count < 0 && errno != EINTR)
        ended_ = true;
    }
    return open();
  }

  //! @brief Takes the next whole frame that has arrived, if there is one. Notes the end of the
  //! connection.
  [[nodiscard]] std::optional<std::string> read() {
    receive();
    std::uint32_t wire = 0;
    if (buffer_.size() < sizeof wire)
      return std::nullopt;
    std::memcpy(&wire, buffer_.data(), sizeof wire);
    std::size_t const length = ntohl(wire);
    if (length > most_bytes) {
      ended_ = true;
      return std::nullopt;
    }
    if (buffer_.size() < sizeof wire + length)
      return std::nullopt;
    std::string frame = buffer_.substr(sizeof wire, length);
    buffer_.erase(0, sizeof wire + length);
    return frame;
  }

private:
  void receive() {
    char bytes[4096];
    while (open()) {
      ssize_t const count = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count > 0)
        buffer_.append(bytes, static_cast<std::size_t>(count));
      else if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        ended_ = true;
      else if (errno != EINTR)
        return;
    }
  }

  descriptor socket_;
  std::string buffer_;
  bool ended_ = false;
};

//! @brief A socket that listens on all addresses of this machine.
//! @param port 0 for any free one. @param chosen receives the port.
//! @throws std::runtime_error
[[nodiscard]] inline descriptor listen_on(int port, int& chosen) {
  descriptor door(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int const yes = 1;
  (void)::setsockopt(door.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof address;
  if (door.get() < 0 ||
      ::bind(door.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(door.get(), SOMAXCONN) != 0 ||
      ::getsockname(door.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("store: cannot listen on port " + std::to_string(port) + ": " +
                             std::strerror(errno));
  chosen = ntohs(address.sin_port);
  return door;
}

//! @brief Connects to a host, again and again until it answers.
//! @throws std::runtime_error past the deadline.
template <class Clock>
[[nodiscard]] connection
connect_to(std::string const& host, int port, std::chrono::nanoseconds deadline) {
  auto const end = Clock::now() + deadline;
  std::string const service = std::to_string(port);
  std::string problem = "no answer";
  for (;;) {
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    int const code = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
    if (code != 0) {
      problem = ::gai_strerror(code);
    } else {
      descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      bool const reached = ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0;
      if (!reached)
        problem = std::strerror(errno);
      ::freeaddrinfo(found);
      if (reached)
        return connection(std::move(socket));
    }
    if (Clock::now() >= end)
      throw std::runtime_error("store: cannot reach rank 0 at " + host + ":" + service + ": " +
                               problem);
    Clock::sleep_for(std::chrono::milliseconds(20));
  }
}

} // namespace pipelining::inline v0_1
