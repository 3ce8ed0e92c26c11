// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The instances of the data of a flow: one per unit of a stage, or one per microbatch. What
//! the colouring of slots and their proof share.

#include <pipe/core/flow.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/plan/item.hpp>

#include <cstdint>

namespace pipelining::inline v0_2 {
namespace detail {

//! Where an instance of a datum is on a device.
struct held_datum {
  int slot = nothing;
  int pool = 0;
  int maker = nothing; //!< the item that made it, or that received it
  int reads = 0;       //!< reads that are still to come, of what other stages read
};

//! The maker of what has none yet, but whose readers have been counted.
inline constexpr int made_by_reader = -2;

//! The stage whose datum an effect is about; it may not exist.
[[nodiscard]] constexpr int stage_of_effect(effect const& one, pass const& work) noexcept {
  return work.stage + (one.stage == of_stage::before ? -1 : one.stage == of_stage::after ? 1 : 0);
}

//! True for the chunk that comes first in an order.
[[nodiscard]] constexpr bool
opens(pipeline const& over, chunk_order order, pass const& work) noexcept {
  return work.chunk == (order == chunk_order::ascending ? 0 : chunks_of(over, work.microbatch) - 1);
}

//! True when a kind frees what it makes: memory to work in.
[[nodiscard]] constexpr bool frees_itself(kind_of_pass const& kind, int of) noexcept {
  bool makes = false;
  bool frees = false;
  for (int e = 0; e < kind.effect_count; ++e) {
    makes = makes || (kind.effects[e].of == of && kind.effects[e].what == does::makes);
    frees = frees || (kind.effects[e].of == of && kind.effects[e].what == does::frees);
  }
  return makes && frees;
}

//! One effect of a kind on a pipeline, worked out for walks over many passes.
struct data_use {
  std::uint8_t of = 0;     //!< the datum
  std::uint8_t pool = 0;   //!< where it lies
  std::int8_t stage = 0;   //!< that of the pass, or the one before or after it
  std::int8_t reader = 0;  //!< it is there where the stage so far from its own exists
  bool lies = false;       //!< in a slot, in this pipeline
  bool nowhere = false;    //!< lies where the library has no slots
  bool whole = false;      //!< one per unit
  bool makes = false;      //!< brings it to life
  bool adds = false;       //!< brings it to life where its chunk comes first
  bool frees = false;      //!< uses it last
  bool works_in = false;   //!< the kind frees what it makes itself
  bool left_alone = false; //!< used last where no kind that would free it runs
  chunk_order order = chunk_order::ascending; //!< where it adds
};

//! What the kinds of a pipeline do with data.
struct data_uses {
  struct list {
    data_use uses[most_effects]{};
    int count = 0;
    int last_chunk =
      0; //!< which chunk ends its kind in a microbatch: -1 the first, 1 the last, 0 any

    [[nodiscard]] constexpr data_use const* begin() const noexcept { return uses; }
    [[nodiscard]] constexpr data_use const* end() const noexcept { return uses + count; }
  };

  pipeline over;
  int stage_count;
  int unit_count;
  list of[most_kinds]{};

  constexpr explicit data_uses(pipeline const& whose)
      : over(whose), stage_count(stages(whose.extents)), unit_count(units(whose)) {
    flow const& declared = *over.declared;
    for (int number = 0; number < most_kinds; ++number) {
      kind_of_pass const& kind = declared.kinds[number];
      list& result = of[number];
      for (int e = 0; e < kind.effect_count; ++e)
        result.uses[result.count++] = use_of(kind, kind.effects[e], result.last_chunk);
    }
  }

  [[nodiscard]] constexpr list const& operator[](pass_kind kind) const noexcept {
    return of[index_of(kind)];
  }
  //! The number of the instance that a use is about.
  [[nodiscard]] constexpr int
  index(data_use const& use, pass const& work, int unit) const noexcept {
    return (use.of * stage_count + work.stage + use.stage) * unit_count +
           (use.whole ? unit : work.microbatch);
  }
  //! The number of the instance that a pass makes for other stages.
  //! @pre it makes one
  [[nodiscard]] constexpr int product(pass const& maker) const noexcept {
    return (links_of(over, maker).product * stage_count + maker.stage) * unit_count +
           unit_of(over, maker);
  }
  //! How many instances there are.
  [[nodiscard]] constexpr int instances() const noexcept {
    return over.declared->data_count * stage_count * unit_count;
  }
  //! Whether that instance has a slot.
  [[nodiscard]] constexpr bool is_there(data_use const& use, pass const& work) const noexcept {
    int const owner = work.stage + use.stage;
    int const reader = owner + use.reader;
    return use.lies && owner >= 0 && owner < stage_count && reader >= 0 && reader < stage_count;
  }
  //! Whether a pass brings it to life.
  [[nodiscard]] constexpr bool brings(data_use const& use, pass const& work) const noexcept {
    return use.makes || (use.adds && opens(over, use.order, work));
  }
  //! Whether a pass is the last of its kind in its microbatch.
  [[nodiscard]] constexpr bool ends_kind(pass const& work) const noexcept {
    int const last = (*this)[work.kind].last_chunk;
    return last == 0 || work.chunk == (last < 0 ? 0 : chunks_of(over, work.microbatch) - 1);
  }

private:
  [[nodiscard]] constexpr data_use
  use_of(kind_of_pass const& kind, effect const& one, int& last_chunk) const noexcept {
    flow const& declared = *over.declared;
    datum const& datum_of = declared.data[one.of];
    data_use use;
    use.of = one.of;
    use.pool = datum_of.pool;
    use.stage = static_cast<std::int8_t>(one.stage == of_stage::before  ? -1
                                         : one.stage == of_stage::after ? 1
                                                                        : 0);
    use.reader = static_cast<std::int8_t>(declared.reader_step[one.of]);
    use.nowhere = datum_of.lives == residence::nowhere;
    use.lies = !use.nowhere && (!datum_of.only_chunked || over.extents.chunks > 1);
    use.whole = datum_of.instance == per::unit;
    use.makes = one.what == does::makes;
    use.adds = one.what == does::adds_to;
    use.frees = one.what == does::frees;
    use.works_in = frees_itself(kind, one.of);
    use.left_alone = declared.freed[one.of] && one.what != does::reads && !use.works_in;
    use.order = one.order;
    if (use.adds)
      last_chunk = one.order == chunk_order::ascending ? 1 : -1;
    return use;
  }
};

} // namespace detail
} // namespace pipelining::inline v0_2
