// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From data and kinds of passes to who waits for whom. Header for
//! pipelining::detail::flow_resolution.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace pipelining::inline v0_3::detail {

//! A set of rows or of kinds.
using flow_set = std::uint64_t;

[[nodiscard]] constexpr flow_set only(int member) noexcept {
  return flow_set{1} << static_cast<unsigned>(member);
}
[[nodiscard]] constexpr bool holds(flow_set set, int member) noexcept {
  return (set >> static_cast<unsigned>(member) & 1u) != 0;
}

//! Refuses a flow with a datum or a kind that breaks a rule. The rule is a literal in each call, so
//! that compilers print it where a flow is a constant.
template <class Part>
constexpr void require(bool holds, Part const& part, char const* rule) {
  if (!holds)
    throw std::invalid_argument(
      std::string(std::is_same_v<Part, datum> ? "flow: datum '" : "flow: kind '") +
      part.word.c_str() + "' " + rule);
}

[[nodiscard]] constexpr bool lies_in_slots(datum const& of) noexcept {
  return of.lives != residence::nowhere;
}
//! The rows of a kind, before implied waits are left out.
struct kind_rows {
  flow_set made = 0;
  flow_set own = 0;     //!< of its own stage, that it reads
  flow_set reached = 0; //!< of its own stage, that it has waited for or makes
  int input = kind_links::none;
  int input_step = 0;
};

//! The kinds that make, read and free each datum of a unit.
struct data_users {
  struct users {
    flow_set makers = 0;
    flow_set readers = 0;
    flow_set freers = 0;
  };
  users of[flow::most_data]{};
  int count;

  constexpr explicit data_users(flow const& declared) : count(declared.data_count) {
    for (int kind = 0; kind < declared.kind_count; ++kind)
      for (effect const& one : declared.kinds[kind]) {
        if (one.stage != of_stage::own || declared.data[one.of].instance == datum::per::microbatch)
          continue;
        users& known = of[one.of];
        known.makers |= one.what == does::makes ? only(kind) : 0;
        known.readers |= one.what == does::reads || one.what == does::follows ? only(kind) : 0;
        known.freers |= one.what == does::frees ? only(kind) : 0;
      }
  }
  //! True when whoever makes the row of a datum makes the datum.
  [[nodiscard]] constexpr bool fill_row(flow const& declared, int datum) const noexcept {
    return of[datum].makers == declared.makers[declared.row_of[datum]];
  }
};

//! True when among these kinds every datum of a unit that one reads is made by one, and every datum
//! that is made is freed once, if anybody ever frees it.
[[nodiscard]] constexpr bool uses_all_data(data_users const& declared, flow_set kinds) noexcept {
  for (int i = 0; i < declared.count; ++i) {
    data_users::users const& of = declared.of[i];
    flow_set const freers = of.freers & kinds;
    if ((of.makers & kinds) == 0 ? ((of.readers | of.freers) & kinds) != 0
                                 : of.freers != 0 && (freers == 0 || (freers & (freers - 1)) != 0))
      return false;
  }
  return true;
}

//! Works out the links of a flow whose data and kinds are in place.
struct flow_resolution {
  flow& target;
  kind_rows rows_of[flow::most_kinds]{};
  flow_set makers[flow::most_data]{}; //!< by datum: the kinds that make it or add to it

  //! Finds out what every kind makes and waits for.
  //! @throws std::invalid_argument with a sentence, where there is no such flow.
  constexpr explicit flow_resolution(flow& of) : target(of) {
    number_engines();
    number_rows();
    find_readers();
    for (int kind = 0; kind < target.kind_count; ++kind)
      if (target.kinds[kind].exists()) {
        read_effects(kind);
        place_slots(static_cast<pass_kind>(kind));
      }
    reach();
  }
  //! Writes the links, without waits that others imply.
  //! @throws std::invalid_argument with a sentence, where a pass would have too many.
  constexpr void link() {
    for (int kind = 0; kind < target.kind_count; ++kind)
      if (target.kinds[kind].exists())
        for (int after = 0; after < 2; ++after)
          link(kind, after == 1);
  }

  constexpr void number_engines() {
    for (int on = 1; on < flow::engine_count; ++on)
      for (kind_of_pass const& kind : target.kinds)
        if (kind.exists() && static_cast<int>(kind.on) == on && target.engine_row[on] < 0)
          target.engine_row[on] = target.engines++;
  }

  //! Data whose makers make another datum too share its row.
  constexpr void number_rows() {
    for (int of = 0; of < target.data_count; ++of) {
      flow_set& made_by = makers[of];
      for (int kind = 0; kind < target.kind_count; ++kind)
        if (brings(target.kinds[kind], of))
          made_by |= only(kind);
      require(made_by != 0, target.data[of], "is made by no kind; let one make it");
      int row = 0;
      while (row < target.rows && (made_by & ~target.makers[row]) != 0)
        ++row;
      if (row == target.rows) {
        target.makers[row] = made_by;
        ++target.rows;
      }
      target.row_of[of] = static_cast<std::int8_t>(row);
      target.wanted[row] = target.wanted[row] || target.data[of].wanted;
    }
  }

  //! Finds the readers of data of other stages, and the data that some kind frees. Memory to work
  //! in exists where the datum of the same pool does.
  constexpr void find_readers() {
    int pool_step[slot_classes]{};
    bool both_ways[slot_classes]{};
    for (kind_of_pass const& kind : target.kinds) {
      target.scatters =
        target.scatters || (kind.exists() && kind.calls == stage_call::scatter_gradients);
      for (effect const& one : kind) {
        target.freed[one.of] = target.freed[one.of] || one.what == does::frees;
        target.has_needs = target.has_needs || one.what == does::needs;
        if (one.stage == of_stage::own)
          continue;
        target.reader_step[one.of] = static_cast<std::int8_t>(step_back(one.stage));
        target.reads_in_groups = target.reads_in_groups || one.stage == of_stage::group;
        target.reads_beside = target.reads_beside || kind.on != engine::compute;
        int& step = pool_step[target.data[one.of].pool];
        bool& both = both_ways[target.data[one.of].pool];
        both = both || (step != 0 && step != target.reader_step[one.of]);
        step = target.reader_step[one.of];
      }
    }
    for (int of = 0; of < target.data_count; ++of) {
      int const pool = target.data[of].pool;
      if (target.reader_step[of] != 0 || !lies_in_slots(target.data[of]) || both_ways[pool])
        continue;
      bool const follows = is_worked_in(of) && target.data[of].instance != datum::per::microbatch;
      target.reader_step[of] = static_cast<std::int8_t>(follows ? pool_step[pool] : 0);
      require(pool_step[pool] == 0 || target.freed[of],
              target.data[of],
              "lies in a pool of what other stages read, but they do not read it and nobody frees "
              "it; let a kind free it, or put it into another pool");
    }
  }

  //! True where every kind that has to do with a datum makes it and frees it.
  [[nodiscard]] constexpr bool is_worked_in(int of) const noexcept {
    for (kind_of_pass const& kind : target.kinds) {
      auto const is_of = [of](effect const& one) { return one.of == of; };
      if (std::count_if(kind.begin(), kind.end(), is_of) == 1)
        return false;
    }
    return true;
  }

  constexpr void read_effects(int kind) {
    kind_of_pass const& declared = target.kinds[kind];
    kind_rows& reads = rows_of[kind];
    for (effect const& one : declared) {
      if (one.what == does::needs)
        continue;
      int const row = target.row_of[one.of];
      if (brings(one)) {
        reads.made |= only(row);
      } else if (one.stage == of_stage::own) {
        reads.own |= only(row);
      } else {
        reads.input = row;
        reads.input_step = step_to(one.stage);
      }
    }
    require(reads.made != 0,
            declared,
            "makes nothing, so nobody can tell that it has run; let it make a datum that lies "
            "nowhere");
    reads.own &= ~reads.made;
  }

  //! Where a pass has the slots of its effects, see `flow::places`.
  constexpr void place_slots(pass_kind number) {
    kind_of_pass const& kind = target[number];
    slot_place* const places = target.places[index_of(number)];
    for (int i = 0; i < kind.effect_count; ++i) {
      effect const& one = kind.effects[i];
      if (!lies_in_slots(target.data[one.of]) || !has_slot(one.what))
        continue;
      if (int const first = first_on_datum(kind, i); first != i) {
        places[i] = places[first];
        continue;
      }
      auto const pool = static_cast<slot_class>(target.data[one.of].pool);
      slot_place const member = member_of(pool);
      bool stays = one.stage == of_stage::own && member != slot_place::none && !is_copy(kind) &&
                   (member != slot_place::activation || pool == activation_class(target, number));
      for (int k = 0; k < i; ++k)
        stays = stays && places[k] != member;
      places[i] = stays ? member : brings(one) ? slot_place::outputs : slot_place::inputs;
    }
  }

  //! The rows of its own stage that every maker of `row` has waited for.
  [[nodiscard]] constexpr flow_set reached_by_all_makers(int row) const noexcept {
    flow_set result = ~flow_set{0};
    for (flow_set left = target.makers[row]; left != 0; left &= left - 1)
      result &= rows_of[std::countr_zero(left)].reached;
    return result;
  }
  [[nodiscard]] constexpr bool all_makers_read(int row, int input, int step) const noexcept {
    for (flow_set left = target.makers[row]; left != 0; left &= left - 1)
      if (kind_rows const& reads = rows_of[std::countr_zero(left)];
          reads.input != input || reads.input_step != step)
        return false;
    return true;
  }

  constexpr void reach() {
    for (int kind = 0; kind < target.kind_count; ++kind)
      rows_of[kind].reached = rows_of[kind].own | rows_of[kind].made;
    for (bool changed = true; changed;) {
      changed = false;
      for (int kind = 0; kind < target.kind_count; ++kind) {
        flow_set& reached = rows_of[kind].reached;
        flow_set const before = reached;
        for (flow_set left = rows_of[kind].own; left != 0; left &= left - 1)
          reached |= reached_by_all_makers(std::countr_zero(left));
        changed = changed || reached != before;
      }
    }
  }

  //! True when the other reads of `kind` imply a wait for `row`: the maker of another row of its
  //! stage has waited for it; or the pass that it reads of the stage after has waited for `row` of
  //! its own stage, whose maker reads of this stage.
  [[nodiscard]] constexpr bool
  is_implied(int kind, flow_set own, int row, bool has_after) const noexcept {
    for (flow_set others = own & ~only(row); others != 0; others &= others - 1)
      if (holds(reached_by_all_makers(std::countr_zero(others)), row))
        return true;
    kind_rows const& reads = rows_of[kind];
    return has_after && reads.input != kind_links::none && reads.input_step == 1 &&
           holds(reached_by_all_makers(reads.input), row) && all_makers_read(row, row, -1);
  }

  //! Lists rows. @throws std::invalid_argument where there are more than a kind may have.
  template <std::size_t Most>
  constexpr void
  list(int kind, flow_set rows, kind_links::number (&into)[Most], char const* rule) const {
    require(std::cmp_less_equal(std::popcount(rows), Most), target.kinds[kind], rule);
    for (kind_links::number* next = into; rows != 0; rows &= rows - 1)
      *next++ = static_cast<kind_links::number>(std::countr_zero(rows));
  }
  constexpr void link(int kind, bool has_after) {
    kind_links& result = target.links[kind][has_after ? 1 : 0];
    kind_rows const& reads = rows_of[kind];
    list(kind,
         reads.made,
         result.made,
         "makes more than three rows of data; let the same kinds make what belongs together");
    for (int const row : result.made)
      if (row != kind_links::none && target.wanted[row])
        ++result.wanted;
    flow_set own = reads.own;
    for (flow_set left = own; left != 0; left &= left - 1)
      if (int const row = std::countr_zero(left); is_implied(kind, own, row, has_after))
        own &= ~only(row);
    list(kind,
         own,
         result.own,
         "waits for more than four rows of its own stage; let one of them wait for another");
    bool implied = reads.input == kind_links::none;
    for (int row = 0; row < target.rows && !implied; ++row)
      implied = holds(reads.own, row) && all_makers_read(row, reads.input, reads.input_step);
    if (!implied) {
      result.input = static_cast<kind_links::number>(reads.input);
      result.input_step = static_cast<kind_links::number>(reads.input_step);
    }
    int products = 0;
    for (effect const& one : target.kinds[kind]) {
      if (one.what == does::adds_to)
        result.chunk_step = one.order == effect::chunk_order::ascending ? -1 : 1;
      if (one.what == does::makes && target.reader_step[one.of] != 0 && !target.freed[one.of]) {
        require(products < 3,
                target.kinds[kind],
                "makes more than three data for other stages; let a second kind make the others");
        result.products[products++] = static_cast<kind_links::number>(one.of);
      }
    }
  }
};

//! A flow whose data and kinds are in place, and are known to keep the rules of `declare`: nothing
//! that a kind frees is used later, and a unit has no other choice than who makes its rows.
[[nodiscard]] constexpr flow resolved(flow of) {
  flow_resolution(of).link();
  return of;
}

} // namespace pipelining::inline v0_3::detail
