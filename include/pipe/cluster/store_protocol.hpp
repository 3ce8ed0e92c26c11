// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages between the processes of a run and its store. Header for
//! pipelining::store_address.

#include <pipe/cluster/socket.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <netdb.h>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The address of the store of a run, and the words that let a process in.
struct store_address {
  //! Where rank 0 is: a name, an IPv4 or an IPv6 address; or several with commas between them,
  //! which are tried in turn.
  std::string host = "127.0.0.1";
  int port = 0;                   //!< rank 0 may choose: see store_server::port
  std::string job = "pipelining"; //!< processes of another job are turned away
  //! Known to the processes of the run alone, such as one from make_secret; whoever has another one
  //! is turned away. Empty: the name of the job is all that a process must know.
  std::string secret{};
  //! The address of its machine on which rank 0 listens. Empty: all of them, but the loopback
  //! interface alone where `host` is on it.
  std::string listen{};
  int ranks = 0; //!< of the run; a rank beyond is turned away. 0: not said
};

//! @brief 128 bits that nobody can guess, as 32 hexadecimal digits.
[[nodiscard]] inline std::string make_secret() {
  constexpr char digits[] = "0123456789abcdef";
  std::random_device entropy; // the kernel's
  std::string secret;
  for (int word = 0; word < 4; ++word) {
    unsigned bits = entropy();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4U)
      secret += digits[bits & 15U];
  }
  return secret;
}

namespace detail {

inline constexpr char const* store_magic = "pipelining store 2";

//! How a failure begins that the store itself has seen, and no rank reported.
inline constexpr char const* store_saw = "the process of rank ";

//! The longest message [bytes] of a process before it is known; more is taken as a stranger's.
inline constexpr std::size_t most_hello_bytes = 1024;

// A frame is one letter and its fields, which are separated by a zero byte. Only the last field may
// hold zero bytes.
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

//! The first word of a process: which library, job and rank it is, and the secret.
[[nodiscard]] inline std::string hello(store_address const& address, int rank) {
  std::string text = frame('H', store_magic, address.job);
  text += '\0';
  text += std::to_string(rank);
  text += '\0';
  text += address.secret;
  return text;
}

struct hello_fields {
  std::string magic{}, job{}, rank{}, secret{};
};
[[nodiscard]] inline hello_fields read_hello(std::string const& message) {
  hello_fields found;
  std::string rest;
  std::tie(found.magic, rest) = fields(message);
  std::tie(found.job, rest) = fields(' ' + rest);
  std::tie(found.rank, found.secret) = fields(' ' + rest);
  return found;
}

//! A number that is not negative and fills the whole text, and nothing else.
template <class Number = int>
[[nodiscard]] std::optional<Number> read_number(std::string_view text) noexcept {
  Number value = 0;
  auto const [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || value < 0)
    return std::nullopt;
  return value;
}

//! Equal, in a time that does not tell how much of it is.
[[nodiscard]] inline bool same_secret(std::string_view a, std::string_view b) noexcept {
  unsigned different = a.size() == b.size() ? 0U : 1U;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    different |= static_cast<unsigned>(static_cast<unsigned char>(a[i])) ^
                 static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  return different == 0;
}

//! "rank 3", "ranks 3, 5 and 7 more".
[[nodiscard]] inline std::string name_ranks(std::vector<int> const& ranks) {
  constexpr std::size_t most = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > most)
    text += " and " + std::to_string(ranks.size() - most) + " more";
  return text;
}

//! The hosts of an address. "localhost" needs no name server.
[[nodiscard]] inline std::vector<std::string> hosts_of(store_address const& address) {
  std::vector<std::string> hosts;
  std::string_view rest = address.host;
  for (;;) {
    std::size_t const comma = rest.find(',');
    std::string_view const host = rest.substr(0, comma);
    hosts.emplace_back(host == "localhost" ? "127.0.0.1" : host);
    if (comma == std::string_view::npos)
      return hosts;
    rest.remove_prefix(comma + 1);
  }
}

//! Where rank 0 listens; empty: on all addresses of its machine.
[[nodiscard]] inline std::string place_to_listen(store_address const& address) {
  if (!address.listen.empty())
    return address.listen == "localhost" ? "127.0.0.1" : address.listen;
  std::vector<std::string> const hosts = hosts_of(address);
  std::vector<endpoint> found;
  bool const local = hosts.size() == 1 && look_up_host(hosts[0], 0, AI_NUMERICHOST, found) == 0 &&
                     !found.empty() && is_loopback(found[0]);
  return local ? hosts[0] : std::string();
}

} // namespace detail

} // namespace pipelining::inline v0_3
