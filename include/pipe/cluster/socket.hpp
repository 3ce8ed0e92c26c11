// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief TCP connections that carry frames of bytes and never block. Header for
//! pipelining::detail::connection.

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

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

} // namespace pipelining::inline v0_3::detail
