// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which device takes over how much attention of which other. Header for
//! pipelining::attention_exchange.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/slim_pipe.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

namespace detail {

//! The attention that a pass takes over from another device, or gives away.
struct exchanged_keys {
  int peer = 0;   //!< the other device; the own one where nothing is exchanged
  int chunks = 0; //!< oldest key chunks taken over, negative: given away

  friend constexpr bool operator==(exchanged_keys const&, exchanged_keys const&) = default;
};

} // namespace detail

//! @brief The plan by which the devices of SlimPipe even out the attention of passes that run at
//! the same time: those of later chunks of a sequence have more keys.
//!
//! When device r runs unit u of its CV units of a microbatch, device i runs unit u + r - i. Of the
//! P passes the one with the k-th fewest whole key chunks is paired with that of the k-th most. If
//! their numbers differ by n, the shorter takes over the attention of the longer one's queries on
//! its oldest n / 2 key chunks, rounded down: a device never has more than one key chunk more than
//! its peer. Backward passes of the same chunks are paired likewise.
//!
//! A value; entries follow from the extents, so every device knows the plan of all others.
//!
//! @source Li et al., "SlimPipe", 2025 (arXiv:2504.14519), and its repository, kwai/Megatron-Kwai.
struct attention_exchange {
  int most = 0; //!< key chunks that a pass takes over or gives away; 0 stands for no limit

  //! @brief What a pass exchanges wherever devices that run at the same time can: also in units
  //! whose peer has no pass at that time, at both ends of a step.
  //! @pre extents are those of SlimPipe. @complexity O(P^2)
  [[nodiscard]] constexpr detail::exchanged_keys steady(shape const& extents,
                                                        pass const& what) const {
    int const own = what.stage % extents.devices;
    auto const keys_of = [&](int device) {
      return chunk_of(extents, unit_of(extents, what) + own - device);
    };
    int shorter = 0; // passes with fewer keys
    for (int device = 0; device < extents.devices; ++device)
      shorter += keys_of(device) < what.chunk ? 1 : 0;
    for (int peer = 0; peer < extents.devices; ++peer) {
      int longer = 0; // passes with more keys than the peer's
      for (int device = 0; device < extents.devices; ++device)
        longer += keys_of(device) > keys_of(peer) ? 1 : 0;
      if (longer == shorter) {
        int const half = (keys_of(peer) - what.chunk) / 2;
        int const limit = most > 0 ? most : extents.chunks;
        int const chunks = half > limit ? limit : half < -limit ? -limit : half;
        return chunks == 0 ? detail::exchanged_keys{own, 0} : detail::exchanged_keys{peer, chunks};
      }
    }
    throw std::invalid_argument("attention_exchange: the extents are not those of SlimPipe");
  }

  //! @brief What a forward pass or a backward pass exchanges: nothing in units during which some
  //! device has no pass of that kind to run.
  //! @pre extents are those of SlimPipe. @complexity O(P^2)
  [[nodiscard]] constexpr detail::exchanged_keys of(shape const& extents, pass const& what) const {
    int const at = turn_of(extents, what);
    int const all = extents.microbatches * extents.stages_per_device * extents.chunks;
    return at >= extents.devices - 1 && at < all
             ? steady(extents, what)
             : detail::exchanged_keys{what.stage % extents.devices, 0};
  }

  //! @brief The pass that a device runs as its `number`-th of a kind: forward passes are numbered
  //! from the first on, and so are backward passes. Numbers of no pass, below 0 and behind the
  //! last, give stage and chunk of one, and microbatch 0: `steady` does not look at it.
  //! @pre extents are those of SlimPipe. @complexity O(C)
  [[nodiscard]] static constexpr pass
  numbered(shape const& extents, pass_kind kind, int device, int number) noexcept {
    int const all = extents.stages_per_device * extents.chunks;
    int const unit = kind == pass_kind::forward ? number : -1 - number;
    int const local = (unit % all + all) % all / SlimPipe<>::chunk_group(extents);
    bool const exists = number >= 0 && number / all < extents.microbatches;
    return row_writer::make(kind,
                            local % extents.stages_per_device * extents.devices + device,
                            exists ? number / all : 0,
                            chunk_of(extents, unit));
  }
  //! @brief The number of the pass that one device runs while another runs its `number`-th.
  [[nodiscard]] static constexpr int
  beside(pass_kind kind, int number, int device, int other) noexcept {
    return kind == pass_kind::forward ? number + device - other : number + other - device;
  }

private:
  //! How many passes of its kind the first device to run that kind has behind it when a device runs
  //! `what`: that is the same for all that run at the same time.
  [[nodiscard]] static constexpr int turn_of(shape const& extents, pass const& what) noexcept {
    int const own = what.stage % extents.devices;
    int const all = extents.stages_per_device * extents.chunks;
    int const unit = unit_of(extents, what);
    return what.microbatch * all + (what.kind == pass_kind::forward
                                      ? unit + own
                                      : all - 1 - unit + extents.devices - 1 - own);
  }
  //! The number of a unit, in the order of forward passes of a device.
  [[nodiscard]] static constexpr int unit_of(shape const& extents, pass const& what) noexcept {
    int const size = SlimPipe<>::chunk_group(extents);
    int const local = what.stage / extents.devices;
    return (what.chunk / size * extents.stages_per_device + local) * size + what.chunk % size;
  }
  //! Its chunk; units of the microbatches before and after have the same.
  [[nodiscard]] static constexpr int chunk_of(shape const& extents, int unit) noexcept {
    int const size = SlimPipe<>::chunk_group(extents);
    int const all = extents.stages_per_device * extents.chunks;
    int const within = (unit % all + all) % all;
    return within / (extents.stages_per_device * size) * size + within % size;
  }
};

} // namespace pipelining::inline v0_3
