// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The messages that share a communicator. Header for the communication policies.
//!
//! A lane is a communicator as one device sees it: its messages complete in the order in which
//! they were posted. A policy is a type with `key(from, to)`: messages with equal keys share a
//! lane. It also says whether a group may hold messages of both directions.

#include <concepts>
#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief Policies of `lower`: which messages share a communicator.
struct communicators {
  //! @brief One communicator for the whole pipeline: the least memory; all messages of a device
  //! wait in one line.
  struct one {
    static constexpr char const* name = "pipeline"; //!< as in reports and options
    static constexpr bool duplex_groups = true;     //!< one group may have both directions
    //! Messages with the same key share a communicator.
    [[nodiscard]] static constexpr std::int64_t key(int, int) noexcept { return 0; }
  };

  //! @brief One communicator for every two devices that talk: the default.
  struct per_pair {
    static constexpr char const* name = "pair"; //!< as in reports and options
    static constexpr bool duplex_groups = true; //!< one group may have both directions
    //! Messages with the same key share a communicator.
    [[nodiscard]] static constexpr std::int64_t key(int from, int to) noexcept {
      return from < to ? std::int64_t{from} * 65536 + to : std::int64_t{to} * 65536 + from;
    }
  };

  //! @brief One communicator for every direction between two devices: neither waits for the other.
  struct per_edge {
    static constexpr char const* name = "edge";  //!< as in reports and options
    static constexpr bool duplex_groups = false; //!< directions are apart
    //! Messages with the same key share a communicator.
    [[nodiscard]] static constexpr std::int64_t key(int from, int to) noexcept {
      return std::int64_t{from} * 65536 + to;
    }
  };

  //! @brief One communicator for the whole pipeline, in which all messages of an exchange of a
  //! group of stages (see `exchange_of`) are one step, which every device takes part in at one
  //! place of its program. Elsewhere like `one`.
  struct exchanges_at_once {
    static constexpr char const* name = "exchange"; //!< as in reports and options
    static constexpr bool duplex_groups = true;     //!< one group may have both directions
    static constexpr bool joins_exchanges = true;   //!< which wants one key for all messages
    //! Messages with the same key share a communicator.
    [[nodiscard]] static constexpr std::int64_t key(int, int) noexcept { return 0; }
  };
};

namespace detail {

//! True when a policy makes one step of an exchange of a group of stages. It need not say.
template <class Policy>
[[nodiscard]] constexpr bool joins_exchanges() noexcept {
  if constexpr (requires { Policy::joins_exchanges; })
    return Policy::joins_exchanges;
  else
    return false;
}

} // namespace detail

//! @brief Any type that says which messages share a communicator.
template <class Policy>
concept communication_policy = requires(int from, int to) {
  { Policy::key(from, to) } -> std::same_as<std::int64_t>;
  { Policy::duplex_groups } -> std::convertible_to<bool>;
  { Policy::name } -> std::convertible_to<char const*>;
};

} // namespace pipelining::inline v0_3
