// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Flows that keep the rules. Header for pipelining::declare.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/resolve.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

namespace detail {

//! A kind under its number.
struct numbered_kind {
  pass_kind number;  //!< its number in the flow
  kind_of_pass kind; //!< what it is and does
};

[[nodiscard]] constexpr bool is_pool(std::uint8_t number) noexcept {
  auto const of = static_cast<slot_class>(number);
  return number < slot_classes && of != slot_class::tied_gradient && of != slot_class::totals &&
         of != slot_class::copied_gradient;
}
//! Refuses what a kind does with a datum.
constexpr void require(bool holds, kind_of_pass const& kind, datum const& of, char const* rule) {
  if (!holds)
    throw std::invalid_argument(std::string("flow: kind '") + kind.word.c_str() + "' and datum '" +
                                of.word.c_str() + "': " + rule);
}
[[nodiscard]] constexpr bool ends(flow_word const& word) noexcept {
  return word.text[sizeof word.text - 1] == '\0';
}

//! True for a datum that passes of other stages read.
[[nodiscard]] constexpr bool is_read_elsewhere(flow const& declared, int of) noexcept {
  for (kind_of_pass const& kind : declared.kinds)
    for (effect const& one : kind)
      if (one.of == of && one.stage != of_stage::own)
        return true;
  return false;
}

//! True for a datum that each unit of each stage may have: no other stage reads it.
[[nodiscard]] constexpr bool is_on_all_stages(flow const& declared, int of) noexcept {
  return declared.data[of].instance == datum::per::unit && !is_read_elsewhere(declared, of);
}

//! True for a kind that uses a datum of its own stage, without freeing it, and does not run before
//! another kind that frees it.
[[nodiscard]] constexpr bool
is_late_user(flow_resolution const& work, int user, int freer, int of) noexcept {
  bool uses = false;
  for (effect const& one : work.target.kinds[user]) {
    bool const about = user != freer && one.of == of && one.stage == of_stage::own;
    if (about && one.what == does::frees)
      return false;
    uses = uses || (about && has_slot(one.what));
  }
  return uses && (work.rows_of[freer].reached & work.rows_of[user].made) == 0;
}

//! Makes the kind that frees a datum run after all its users. Where the flow does not say so, the
//! kind follows what the users make, if each unit has that.
constexpr void follow_users(flow_resolution& work, int freer) {
  flow const& declared = work.target;
  kind_of_pass& kind = work.target.kinds[freer];
  kind_rows& own = work.rows_of[freer];
  int const count = kind.effect_count;
  for (int i = 0; i < count; ++i)
    for (int user = 0; user < declared.kind_count; ++user) {
      int const of = kind.effects[i].of;
      if (kind.effects[i].what != does::frees ||
          declared.data[of].instance == datum::per::microbatch ||
          !is_late_user(work, user, freer, of) || (work.rows_of[user].reached & own.made) != 0 ||
          kind.effect_count == kind_of_pass::most_effects)
        continue;
      int made = 0;
      while (made < declared.data_count &&
             !(declared.data[made].wanted && holds(work.makers[made], user) &&
               work.makers[made] == declared.makers[declared.row_of[made]] &&
               is_on_all_stages(declared, made)))
        ++made;
      if (made == declared.data_count)
        continue; // the rules refuse it
      kind.effects[kind.effect_count++] = {does::follows, static_cast<std::uint8_t>(made)};
      own.own |= only(declared.row_of[made]);
      work.reach();
    }
}

//! True when among the sets that have `chosen` and any of the kinds from a number on, one makes all
//! rows once but is not what a unit needs.
//! @param made the rows that the chosen ones make
//! @param left how many sets are still looked at; after the last there counts as being such a set
constexpr bool has_wrong_set(flow_resolution const& work,
                             data_users const& users,
                             int kind,
                             flow_set chosen,
                             flow_set made,
                             int& left) {
  flow const& declared = work.target;
  while (kind < declared.kind_count && !declared.kinds[kind].exists())
    ++kind;
  if (--left < 0)
    return true;
  if (kind == declared.kind_count)
    return !uses_all_data(users, chosen);
  flow_set const makes = work.rows_of[kind].made;
  if ((made & makes) == 0 &&
      has_wrong_set(work, users, kind + 1, chosen | only(kind), made | makes, left))
    return true;
  for (int row = 0; row < declared.rows; ++row) // without it, a later kind makes what is wanted
    if (holds(makes & ~made, row) && declared.wanted[row] &&
        (declared.makers[row] >> static_cast<unsigned>(kind)) == 1)
      return false;
  return has_wrong_set(work, users, kind + 1, chosen, made, left);
}

//! Whether a unit may make every row once and still be wrong. After 1,024 sets of kinds without an
//! answer it counts as one that may: units are looked at then.
[[nodiscard]] constexpr bool has_choices(flow_resolution const& work) {
  flow const& declared = work.target;
  data_users const users(declared);
  for (int of = 0; of < declared.data_count; ++of)
    if (is_read_elsewhere(declared, of) && !users.fill_row(declared, of))
      return true;
  int left = 1024;
  return has_wrong_set(work, users, 0, 0, 0, left);
}

//! The rules for data and kinds by themselves. Nothing else may look at a flow before them: numbers
//! in effects and data are indices.
class flow_rules {
public:
  constexpr explicit flow_rules(flow const& of) : flow_(of) {}

  constexpr void check_parts() const {
    for (int of = 0; of < flow_.data_count; ++of) {
      datum const& one = flow_.data[of];
      check_datum(one);
      for (int other = 0; other < of; ++other)
        require(one.pool != flow_.data[other].pool || one.lives == flow_.data[other].lives ||
                  !lies_in_slots(one) || !lies_in_slots(flow_.data[other]),
                one,
                "is on the host in a pool of the device, or the other way round; give it a pool of "
                "its own");
    }
    for (int number = 0; number < flow_.kind_count; ++number)
      if (flow_.kinds[number].exists()) {
        check_kind(flow_.kinds[number]);
        check_names(number);
      }
  }

  constexpr void check_uses(flow_resolution const& work) const {
    for (int of = 0; of < flow_.data_count; ++of)
      if (is_read_elsewhere(flow_, of))
        check_sent(of, work.makers[of]);
      else
        require(flow_.data[of].instance != datum::per::reader,
                flow_.data[of],
                "is there for each reader, but no other stage reads it; make it one per unit");
    for (int kind = 0; kind < flow_.kind_count; ++kind)
      if (flow_.kinds[kind].exists()) {
        kind_of_pass const& declared = flow_.kinds[kind];
        check_slots(static_cast<pass_kind>(kind));
        if (is_copy(declared))
          check_copy(declared);
        for (effect const& one : declared)
          if (one.what == does::adds_to)
            check_sum(kind, one);
      }
  }

  //! Checks that no kind gives back a slot that another kind of the unit still reads.
  constexpr void check_ends(flow_resolution const& work) const {
    for (int freer = 0; freer < flow_.kind_count; ++freer)
      for (effect const& one : flow_.kinds[freer])
        if (one.what == does::frees)
          for (int user = 0; user < flow_.kind_count; ++user)
            check_end(work, freer, user, one.of);
  }

private:
  static constexpr void check_datum(datum const& of) {
    require(ends(of.word), of, "has a word without an end; a word has at most 27 letters");
    require(of.lives <= residence::nowhere && of.instance <= datum::per::reader,
            of,
            "has a residence or a `per` that is none; use the enumerators");
    require(is_pool(of.pool) && is_pool(of.arrives_in),
            of,
            "names a pool that flows do not have; pools are the numbers of slot_class, without "
            "tied_gradient, copied_gradient and totals");
    require(of.instance != datum::per::microbatch ||
              (of.lives == residence::device &&
               member_of(static_cast<slot_class>(of.pool)) != slot_place::none),
            of,
            "is there once per microbatch, which only slots that stay can be: let it lie on the "
            "device in the pool activation, weight_input, sequence, sequence_gradient or logits");
    require(!of.only_chunked || of.instance == datum::per::microbatch,
            of,
            "is there only where sequences are cut, but not once per microbatch; make it "
            "per::microbatch, or leave only_chunked out");
  }

  //! Kinds are known by their words and letters in files and pictures.
  constexpr void check_names(int number) const {
    kind_of_pass const& kind = flow_.kinds[number];
    for (int other = 0; other < number; ++other) {
      require(kind.letter == '\0' || kind.letter != flow_.kinds[other].letter,
              kind,
              "has the letter of another kind; give each kind one of its own, or none");
      require(!(kind.word == flow_.kinds[other].word),
              kind,
              "has the word of another kind; give each kind one of its own");
    }
  }

  constexpr void check_kind(kind_of_pass const& kind) const {
    require(ends(kind.word), kind, "has a word without an end; a word has at most 27 letters");
    require(static_cast<int>(kind.on) < flow::engine_count && kind.calls <= stage_call::perform &&
              kind.is <= role::communicate,
            kind,
            "has an engine, a call or a role that is none; use the enumerators");
    require(kind.effect_count >= 0 && kind.effect_count <= kind_of_pass::most_effects,
            kind,
            "has more than 10 effects; split it into two kinds");
    for (int i = 0; i < kind.effect_count; ++i) {
      effect const& one = kind.effects[i];
      require(one.of < flow_.data_count,
              kind,
              "has an effect on a datum that does not exist; data are numbered from 0 on in the "
              "order in which they are declared");
      require(one.what <= does::follows && one.stage <= of_stage::group &&
                one.order <= effect::chunk_order::descending,
              kind,
              "has an effect with a number that is none; use the enumerators");
      check_effect(kind, one);
      for (int k = 0; k < i; ++k)
        check_twice(kind, kind.effects[k], one);
    }
  }
  constexpr void check_effect(kind_of_pass const& kind, effect const& one) const {
    datum const& of = flow_.data[one.of];
    require(one.stage == of_stage::own || one.what == does::reads,
            kind,
            of,
            "a pass does nothing but read data of other stages; let a kind of that stage do it");
    require(one.stage != of_stage::group || kind.in_groups,
            kind,
            of,
            "only kinds that run in groups read data of their group; set in_groups");
    require(one.what != does::needs ||
              (of.lives == residence::nowhere && kind.on == engine::compute),
            kind,
            of,
            "only passes of the engine compute need a datum, one that lies nowhere; let the pass "
            "read it");
    require(one.what != does::follows ||
              (one.stage == of_stage::own && is_on_all_stages(flow_, one.of)),
            kind,
            of,
            "a pass follows whoever made a datum of its own unit that each stage has; declare one "
            "that lies nowhere, and follow it");
    require(one.what != does::makes || of.instance != datum::per::microbatch,
            kind,
            of,
            "the chunks of a microbatch add to a datum of the microbatch; write adds_to for makes");
    require(one.what != does::adds_to || of.instance == datum::per::microbatch,
            kind,
            of,
            "only a datum that is there once per microbatch is added to; write makes, or make the "
            "datum per::microbatch");
  }
  constexpr void
  check_twice(kind_of_pass const& kind, effect const& one, effect const& other) const {
    bool const works_in = brings(one) && other.what == does::frees;
    require(one.of != other.of || one.stage != other.stage || works_in,
            kind,
            flow_.data[one.of],
            "two effects on one datum are only for memory to work in, which a kind makes or adds "
            "to, and then frees; leave one of them out, or change their order");
    require(one.stage == of_stage::own || other.stage == of_stage::own,
            kind,
            flow_.data[other.of],
            "a pass reads one datum of other stages; let a second kind read the other one");
    require(one.what != does::adds_to || other.what != does::adds_to || one.order == other.order,
            kind,
            flow_.data[other.of],
            "a pass follows the chunk before it or the one after it, but adds in both orders; use "
            "one");
  }

  //! Checks a datum that other stages read: messages carry it whole, from the maker of its row.
  constexpr void check_sent(int of, flow_set makers) const {
    datum const& sent = flow_.data[of];
    require(sent.lives == residence::device && sent.instance != datum::per::microbatch,
            sent,
            "is read by other stages, so it lies on the device, once per unit or reader");
    for (int other = 0; other < flow_.data_count; ++other) {
      datum const& beside_it = flow_.data[other];
      require(beside_it.lives != residence::host || beside_it.pool != sent.arrives_in,
              sent,
              "arrives in a pool of the host; let it arrive in one of the device");
      require(sent.instance != datum::per::reader || other == of || beside_it.pool != sent.pool ||
                !is_read_elsewhere(flow_, other),
              sent,
              "is there for each reader, in a pool with another datum that other stages read; give "
              "it a pool of its own");
    }
    bool read[4]{};
    for (kind_of_pass const& kind : flow_.kinds)
      for (effect const& one : kind)
        if (one.of == of) {
          require(one.stage != of_stage::own || one.what == does::makes ||
                    one.what == does::follows,
                  kind,
                  sent,
                  "its slot is given back when the last of the other stages has read it; let the "
                  "kind read a datum of its own");
          read[static_cast<int>(one.stage)] =
            read[static_cast<int>(one.stage)] || one.stage != of_stage::own;
        }
    require(read[1] + read[2] + read[3] < 2,
            sent,
            "is read by stages before, after or of the group, but by more than one of these; "
            "declare a datum for each");
    require(read[3] || makers == flow_.makers[flow_.row_of[of]],
            sent,
            "is read by other stages, but a kind that makes what it is made with does not make it; "
            "let all of them make it");
  }

  constexpr void check_slots(pass_kind number) const {
    kind_of_pass const& kind = flow_[number];
    int sent = 0;
    for (int i = 0; i < kind.effect_count; ++i) {
      effect const& one = kind.effects[i];
      sent += one.what == does::makes && is_read_elsewhere(flow_, one.of) ? 1 : 0;
      require(sent < 2 || kind.in_groups,
              kind,
              flow_.data[one.of],
              "a pass makes one datum for other stages; let a second kind make the other one");
      slot_place const place = flow_.places[index_of(number)][i];
      require(kind.calls != stage_call::copy || is_copy(kind) || place == slot_place::none ||
                !brings(one),
              kind,
              flow_.data[one.of],
              "it calls no stage, so that nobody fills what it makes; give it another call, or an "
              "engine that copies");
      require(one.what != does::adds_to ||
                (place != slot_place::inputs && place != slot_place::outputs),
              kind,
              flow_.data[one.of],
              "a pass adds to one datum of a pool; put this one into another of the pools "
              "activation, weight_input, sequence and sequence_gradient");
    }
  }

  //! The library moves one slot to another, on an engine that works next to the compute engine.
  constexpr void check_copy(kind_of_pass const& kind) const {
    int made = 0;
    int freed = 0;
    for (effect const& one : kind) {
      datum const& of = flow_.data[one.of];
      if (!lies_in_slots(of))
        continue;
      made += one.what == does::makes ? 1 : 0;
      freed += one.what == does::frees ? 1 : 0;
      require(
        (one.what == does::makes || one.what == does::frees) && of.instance == datum::per::unit &&
          (one.what == does::makes || !brings(kind, one.of)),
        kind,
        of,
        "a copy frees one datum of its unit and makes another; let it call a stage, which may "
        "read, free and make any number");
    }
    require(
      made == 1 && freed == 1,
      kind,
      "copies, but does not free one datum and make another; give it both effects, or another "
      "call");
  }

  //! The first chunk makes a sum, whichever kind that chunk is of.
  constexpr void check_sum(int adder, effect const& sum) const {
    kind_of_pass const& kind = flow_.kinds[adder];
    int const row = flow_.links[adder][0].made[0];
    for (int other = 0; other < flow_.kind_count; ++other) {
      if (!flow_.kinds[other].exists() || flow_.kinds[other].in_groups != kind.in_groups ||
          flow_.links[other][0].made[0] != row)
        continue;
      bool adds = false;
      for (effect const& one : flow_.kinds[other])
        adds = adds || (one.of == sum.of && one.what == does::adds_to && one.order == sum.order);
      require(adds,
              kind,
              flow_.data[sum.of],
              "another kind that may run in its place does not add to it, in the same order; let "
              "both add, or neither");
    }
  }

  constexpr void check_end(flow_resolution const& work, int freer, int user, int of) const {
    kind_of_pass const& kind = flow_.kinds[freer];
    datum const& freed = flow_.data[of];
    require(
      std::any_of(
        kind.begin(), kind.end(), [](effect const& one) { return one.what == does::adds_to; }) ||
        freed.instance != datum::per::microbatch,
      kind,
      freed,
      "the last chunk frees what a microbatch has once, but the chunks of this kind follow no "
      "order; let it add to a datum, too");
    bool const frees = user != freer && has_effect(flow_.kinds[user], does::frees, of);
    require(!frees || freed.instance != datum::per::microbatch ||
              (work.rows_of[freer].made & work.rows_of[user].made) != 0,
            kind,
            freed,
            "another kind frees it for the same microbatch; let one of them read it");
    require(frees || !is_late_user(work, user, freer, of),
            kind,
            freed,
            "it frees what another kind of the unit may read later, and nothing that each unit has "
            "made says when; let that kind make a wanted datum that lies nowhere, and this one "
            "follow it");
  }

  flow const& flow_;
};

//! Works out what follows from the data and kinds of a flow.
//! @throws std::invalid_argument with the sentence of the first rule that is broken.
constexpr void resolve(flow& of) {
  flow_rules const rules(of);
  rules.check_parts();
  flow_resolution work(of);
  for (int kind = 0; kind < of.kind_count; ++kind)
    follow_users(work, kind);
  work.link();
  rules.check_uses(work);
  rules.check_ends(work);
  of.has_choices = has_choices(work);
}

//! The flow of kinds, with data.
[[nodiscard]] constexpr flow declared_with(flow result, auto const& data) {
  if (result.kind_count == 0)
    throw std::invalid_argument("flow: there is no kind of pass; declare one");
  for (datum const& one : data) {
    require(
      result.data_count < flow::most_data, one, "is one too many; a flow has at most 64 data");
    result.data[result.data_count++] = one;
  }
  resolve(result);
  return result;
}

//! The flow of kinds under their numbers, with data.
[[nodiscard]] constexpr flow declared_as(auto const& data, auto const& kinds) {
  flow result;
  for (numbered_kind const& one : kinds) {
    require(index_of(one.number) < flow::most_kinds && !result[one.number].exists(),
            one.kind,
            "has a number of 64 or more, or that of another kind; use another pass_kind");
    require(one.kind.exists(), one.kind, "has no word; give it one");
    result.kinds[index_of(one.number)] = one.kind;
    result.kind_count = std::max(result.kind_count, index_of(one.number) + 1);
  }
  return declared_with(result, data);
}

} // namespace detail

//! @brief Declares a flow: its data, numbered from 0 on, and its kinds of passes under their
//! numbers.
//!
//! Works out who waits for whom. What a pass waits for is who made what it reads; reads that others
//! imply are left out, so a pass waits for at most one row of another stage and four of its own.
//!
//! @throws std::invalid_argument (in the compiler: no constant, and the same sentence) for what
//! `flow_rules` refuse: numbers that are none, a kind that makes nothing or uses more slots than a
//! pass has, data that nobody makes, or that one kind frees and another may still read.
//! @complexity O(k^2 e + r^3) for k kinds of e effects and r rows, and at most 1,024 sets of kinds.
[[nodiscard]] constexpr flow declare(std::span<datum const> data,
                                     std::span<detail::numbered_kind const> kinds) {
  return detail::declared_as(data, kinds);
}

//! @brief The same of lists.
[[nodiscard]] constexpr flow declare(std::initializer_list<datum> data,
                                     std::initializer_list<detail::numbered_kind> kinds) {
  return detail::declared_as(data, kinds);
}

//! @brief The same of kinds that are numbered from 0 on; `kind_named` finds them by their words.
[[nodiscard]] constexpr flow declare(std::span<datum const> data,
                                     std::span<kind_of_pass const> kinds) {
  flow result;
  for (kind_of_pass const& one : kinds) {
    detail::require(
      result.kind_count < flow::most_kinds, one, "is one too many; a flow has at most 64 kinds");
    detail::require(one.exists(), one, "has no word; give it one");
    result.kinds[result.kind_count++] = one;
  }
  return detail::declared_with(result, data);
}

} // namespace pipelining::inline v0_3
