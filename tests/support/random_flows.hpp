// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Flows, pipelines and orders by chance, sensible ones and nonsense, for tests.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/support/flow_interpreter.hpp>
#include <utility>
#include <vector>

namespace support {

//! @brief Chance, the same on all machines.
struct dice {
  std::mt19937 engine;
  std::string_view chosen{}; //!< bytes that a fuzzer has chosen: the first numbers

  explicit dice(unsigned seed) : engine(seed) {}
  //! @brief A number from 0 to below `count`.
  int below(int count) {
    if (chosen.empty())
      return static_cast<int>(engine() % static_cast<unsigned>(count));
    auto const byte = static_cast<unsigned char>(chosen.front());
    chosen.remove_prefix(1);
    return byte % count;
  }
  bool one_in(int count) { return below(count) == 0; }
  template <class Enum>
  Enum any(int count) {
    return static_cast<Enum>(below(count));
  }
  template <class T>
  T const& pick(std::vector<T> const& of) {
    return of[static_cast<std::size_t>(below(static_cast<int>(of.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& of) {
    for (std::size_t i = of.size(); i > 1; --i)
      std::swap(of[i - 1], of[static_cast<std::size_t>(below(static_cast<int>(i)))]);
  }
};

//! @brief What `declare` is given.
struct declaration {
  std::vector<pipelining::datum> data{};
  std::vector<pipelining::detail::numbered_kind> kinds{};

  [[nodiscard]] pipelining::flow flow() const { return pipelining::declare(data, kinds); }
};

namespace random_detail {

namespace pp = pipelining;

inline std::uint8_t number(pp::slot_class of) {
  return static_cast<std::uint8_t>(of);
}

inline void add(pp::kind_of_pass& to, pp::effect const& one) {
  if (to.effect_count < pp::kind_of_pass::most_effects)
    to.effects[to.effect_count++] = one;
}

inline pp::datum datum_of(char const* word, pp::slot_class pool) {
  pp::datum result;
  result.word = pp::flow_word::of(word);
  result.pool = number(pool);
  result.arrives_in = number(pool);
  return result;
}

//! Any numbers at all, most of them in range.
inline declaration nonsense(dice& chance) {
  declaration result;
  int const data = chance.below(6) + (chance.one_in(50) ? 25 : 0);
  for (int i = 0; i < data; ++i) {
    pp::datum of;
    of.word = pp::flow_word::of(("d" + std::to_string(i)).c_str());
    of.pool =
      static_cast<std::uint8_t>(chance.below(chance.one_in(10) ? 256 : pp::detail::slot_classes));
    of.arrives_in =
      static_cast<std::uint8_t>(chance.below(chance.one_in(10) ? 256 : pp::detail::slot_classes));
    of.lives = chance.one_in(3) ? chance.any<pp::residence>(4) : pp::residence::device;
    of.instance = chance.one_in(3) ? chance.any<pp::datum::per>(4) : pp::datum::per::unit;
    of.wanted = chance.one_in(2);
    of.only_chunked = chance.one_in(8);
    result.data.push_back(of);
  }
  int const kinds = chance.below(8) + 1;
  for (int i = 0; i < kinds; ++i) {
    pp::kind_of_pass kind;
    kind.letter = chance.one_in(40) ? '\0' : static_cast<char>('a' + chance.below(26));
    kind.word = pp::flow_word::of(("k" + std::to_string(i)).c_str());
    kind.on = chance.one_in(3) ? chance.any<pp::engine>(5) : pp::engine::compute;
    kind.calls = chance.one_in(8) ? chance.any<pp::stage_call>(14) : pp::stage_call::perform;
    kind.in_groups = chance.one_in(8);
    int const effects = chance.below(5) + 1;
    for (int k = 0; k < effects; ++k)
      add(kind,
          {chance.one_in(3) ? chance.any<pp::does>(6) : chance.any<pp::does>(3),
           static_cast<std::uint8_t>(chance.below(chance.one_in(30) || data == 0 ? 40 : data)),
           chance.one_in(4) ? chance.any<pp::of_stage>(5) : pp::of_stage::own,
           chance.any<pp::effect::chunk_order>(2)});
    if (chance.one_in(60))
      kind.effect_count = chance.below(40) - 10;
    result.kinds.push_back(
      {static_cast<pp::pass_kind>(chance.one_in(20) ? chance.below(40) : i), kind});
  }
  return result;
}

//! A train of kinds on all engines: each makes something that later ones read, and reads and frees
//! what others have made. Some copy, some read or make what travels between stages.
inline declaration sensible(dice& chance) {
  declaration result;
  std::vector<pp::slot_class> const stays{pp::slot_class::activation,
                                          pp::slot_class::weight_input,
                                          pp::slot_class::sequence,
                                          pp::slot_class::sequence_gradient};
  std::vector<pp::slot_class> const pools{pp::slot_class::activation,
                                          pp::slot_class::weight_input,
                                          pp::slot_class::sequence,
                                          pp::slot_class::sequence_gradient,
                                          pp::slot_class::output,
                                          pp::slot_class::logits,
                                          pp::slot_class::weights,
                                          pp::slot_class::full_gradients,
                                          pp::slot_class::statistics};
  auto const declared = [&result](pp::datum of) {
    of.word = pp::flow_word::of((std::string("d") + std::to_string(result.data.size())).c_str());
    result.data.push_back(of);
    return static_cast<std::uint8_t>(result.data.size() - 1);
  };
  int count = chance.below(10) + 1;
  // Now and then more kinds than there are letters. Other flows are what they would be without.
  bool const many = dice(chance).one_in(29);
  count = many ? 24 + 2 * count : count;
  int const most_data = many ? pp::flow::most_data : 26;
  std::vector<std::uint8_t> open; // made, and not freed yet
  std::vector<std::uint8_t> marks;
  std::vector<pp::effect> travels; // reads of other stages
  for (int i = 0; i < count && static_cast<int>(result.data.size()) + 8 < most_data; ++i) {
    pp::kind_of_pass kind;
    kind.letter = many ? '\0' : static_cast<char>('a' + i);
    kind.word = pp::flow_word::of(("k" + std::to_string(i)).c_str());
    if (chance.one_in(2))
      kind.on = static_cast<pp::engine>(1 + chance.below(3));
    bool const copies = kind.on != pp::engine::compute && !open.empty() && chance.one_in(4);
    if (copies)
      kind.calls = pp::stage_call::copy;
    std::vector<std::uint8_t> unread = open;
    for (int reads = copies ? 1 : chance.below(4); reads > 0 && !unread.empty(); --reads) {
      auto const at = unread.begin() + chance.below(static_cast<int>(unread.size()));
      bool const frees = copies || chance.one_in(2);
      add(kind, {frees ? pp::does::frees : pp::does::reads, *at});
      if (frees)
        open.erase(std::find(open.begin(), open.end(), *at));
      unread.erase(at);
    }
    if (!marks.empty() && chance.one_in(3))
      add(kind, {chance.one_in(2) ? pp::does::reads : pp::does::follows, chance.pick(marks)});
    if (!copies && !travels.empty() && chance.one_in(4)) { // what another kind reads, too
      pp::effect const& read = chance.pick(travels);
      add(kind, read);
    } else if (!copies && chance.one_in(many ? 12 : 3)) { // something that travels
      bool const forward = chance.one_in(2);
      pp::datum sent =
        datum_of("", forward ? pp::slot_class::output : pp::slot_class::input_gradient);
      sent.arrives_in =
        number(forward ? pp::slot_class::received_input : pp::slot_class::received_gradient);
      sent.wanted = true;
      sent.instance = chance.one_in(4) && !many ? pp::datum::per::reader : pp::datum::per::unit;
      std::uint8_t const of = declared(sent);
      travels.push_back(
        {pp::does::reads, of, forward ? pp::of_stage::before : pp::of_stage::after});
      add(kind, travels.back());
      add(kind, {pp::does::makes, of});
    }
    if (!copies && chance.one_in(many ? 30 : 4)) { // a sum over the chunks
      pp::datum sum = datum_of("", chance.pick(stays));
      sum.instance = pp::datum::per::microbatch;
      sum.only_chunked = chance.one_in(2);
      add(kind,
          {pp::does::adds_to,
           declared(sum),
           pp::of_stage::own,
           chance.any<pp::effect::chunk_order>(2)});
      if (chance.one_in(2))
        add(kind, {pp::does::frees, static_cast<std::uint8_t>(result.data.size() - 1)});
    }
    if (!copies && chance.one_in(many ? 12 : 5)) { // memory to work in
      std::uint8_t const of = declared(datum_of("", chance.pick(pools)));
      add(kind, {pp::does::makes, of});
      add(kind, {pp::does::frees, of});
    }
    for (int makes = copies ? 1 : chance.below(many ? 2 : 3); makes > 0; --makes) {
      pp::datum made = datum_of("", chance.pick(many ? stays : pools));
      if (chance.one_in(5)) {
        made = datum_of("", pp::slot_class::host_activation);
        made.lives = pp::residence::host;
      }
      made.wanted = chance.one_in(2);
      open.push_back(declared(made));
      add(kind, {pp::does::makes, open.back()});
    }
    pp::datum mark;
    mark.lives = pp::residence::nowhere;
    mark.wanted = many || !chance.one_in(3);
    marks.push_back(declared(mark));
    add(kind, {pp::does::makes, marks.back()});
    result.kinds.push_back({static_cast<pp::pass_kind>(i), kind});
    if (chance.one_in(6) && i + 1 < count &&
        (many ? i < 16 : result.kinds.size() < 20)) { // another way to do the same
      kind.letter = many ? '\0' : static_cast<char>('A' + i);
      kind.word = pp::flow_word::of(("other" + std::to_string(i)).c_str());
      kind.on = copies || chance.one_in(2) ? kind.on : chance.any<pp::engine>(4);
      result.kinds.push_back({static_cast<pp::pass_kind>((many ? 63 : 20) - i), kind});
    }
  }
  return result;
}

//! A flow of the library.
inline declaration parts_of(pp::flow const& of) {
  declaration result;
  result.data.assign(of.data, of.data + of.data_count);
  for (int kind = 0; kind < pp::flow::most_kinds; ++kind)
    if (of.kinds[kind].exists())
      result.kinds.push_back({static_cast<pp::pass_kind>(kind), of.kinds[kind]});
  return result;
}

//! One thing changed, or none.
inline void change(declaration& of, dice& chance) {
  pp::kind_of_pass& kind =
    of.kinds[static_cast<std::size_t>(chance.below(static_cast<int>(of.kinds.size())))].kind;
  pp::datum& datum =
    of.data[static_cast<std::size_t>(chance.below(static_cast<int>(of.data.size())))];
  pp::effect& effect = kind.effects[kind.effect_count > 0 ? chance.below(kind.effect_count) : 0];
  switch (chance.below(9)) {
  case 0: add(kind, effect); return;
  case 1: effect.what = chance.any<pp::does>(5); return;
  case 2:
    effect.of = static_cast<std::uint8_t>(chance.below(static_cast<int>(of.data.size())));
    return;
  case 3: effect.stage = chance.any<pp::of_stage>(4); return;
  case 4: kind.on = chance.any<pp::engine>(4); return;
  case 5: datum.pool = static_cast<std::uint8_t>(chance.below(20)); return;
  case 6: datum.instance = chance.any<pp::datum::per>(3); return;
  case 7: datum.lives = chance.any<pp::residence>(3); return;
  default: kind.effect_count -= kind.effect_count > 0 ? 1 : 0; return;
  }
}

} // namespace random_detail

//! @brief A declaration: nonsense, sensible, or one thing changed in a sensible one or in `known`.
inline declaration random_declaration(dice& chance, std::vector<pipelining::flow> const& known) {
  int const way = chance.below(8);
  if (way == 0)
    return random_detail::nonsense(chance);
  declaration result =
    way < 6 ? random_detail::sensible(chance) : random_detail::parts_of(chance.pick(known));
  if (way == 5 || way == 7)
    random_detail::change(result, chance);
  return result;
}

//! @brief A schedule that says what it has been given. One at a time: its flow is static.
struct given_orders {
  inline static pipelining::flow declared; //!< the flow

  pipelining::shape extents{};
  std::vector<int> holders{}; //!< device by stage
  std::vector<std::vector<pipelining::pass>> rows{};

  [[nodiscard]] pipelining::shape arrange(int, int) const { return extents; }
  [[nodiscard]] int device_of(pipelining::shape const&, int stage, int) const {
    return holders[static_cast<std::size_t>(stage)];
  }
  template <class Cost, class Rows>
  void generate(pipelining::shape const&, Cost const&, Rows&& out) const {
    for (std::size_t row = 0; row < rows.size(); ++row)
      for (pipelining::pass const& what : rows[row])
        out[row].push(what);
  }
};

//! @brief The same with stages that are no chain.
struct given_graph : given_orders {
  std::vector<pipelining::stage_edge> edges{};
  std::vector<pipelining::stage_group> groups{};

  [[nodiscard]] std::vector<pipelining::stage_edge> const&
  edges_of(pipelining::shape const&) const {
    return edges;
  }
  [[nodiscard]] std::vector<pipelining::stage_group> const&
  groups_of(pipelining::shape const&) const {
    return groups;
  }
};

//! @brief Kinds of passes that a unit may have: makers of what is wanted, and of what they read and
//! free.
inline std::vector<int> random_kinds(dice& chance, pipelining::flow const& of, bool in_groups) {
  namespace pp = pipelining;
  std::vector<int> chosen;
  auto const has = [&chosen](int kind) {
    return std::find(chosen.begin(), chosen.end(), kind) != chosen.end();
  };
  std::uint64_t made = 0;
  auto const rows_of = [&of](int kind) {
    std::uint64_t rows = 0;
    for (int row = 0; row < of.rows; ++row)
      rows |= (of.makers[row] >> static_cast<unsigned>(kind) & 1) << static_cast<unsigned>(row);
    return rows;
  };
  auto const choose = [&](auto const& suits) {
    std::vector<int> all;
    for (int kind = 0; kind < pp::flow::most_kinds; ++kind)
      if (of.kinds[kind].exists() && of.kinds[kind].in_groups == in_groups && suits(kind)) {
        if (has(kind))
          return;
        if ((rows_of(kind) & made) == 0)
          all.push_back(kind);
      }
    if (all.empty())
      return;
    chosen.push_back(chance.pick(all));
    made |= rows_of(chosen.back());
  };
  auto const does_to = [&of](int kind, int datum, auto const& suits) {
    for (int i = 0; i < of.kinds[kind].effect_count; ++i)
      if (pp::effect const& one = of.kinds[kind].effects[i];
          one.of == datum && one.stage == pp::of_stage::own && suits(one.what))
        return true;
    return false;
  };
  auto const makes = [](pp::does what) {
    return what == pp::does::makes || what == pp::does::adds_to;
  };
  auto const frees = [](pp::does what) { return what == pp::does::frees; };
  for (int turn = 0; turn < 8; ++turn) {
    for (int row = 0; row < of.rows; ++row)
      if (of.wanted[row])
        choose([&](int kind) { return (of.makers[row] >> static_cast<unsigned>(kind) & 1U) != 0; });
    for (int datum = 0; datum < of.data_count; ++datum)
      for (int const kind : std::vector<int>(chosen)) {
        if (does_to(kind, datum, [](pp::does) { return true; }))
          choose([&](int other) { return does_to(other, datum, makes); });
        if (does_to(kind, datum, makes))
          choose([&](int other) { return does_to(other, datum, frees); });
      }
  }
  return chosen;
}

//! @brief Fills the rows of a schedule with passes in an order that lets each wait for what is
//! before it, as far as there is one.
inline void fill_rows(dice& chance,
                      pipelining::pipeline_view const& over,
                      std::vector<std::vector<pipelining::pass>>& rows) {
  namespace pp = pipelining;
  std::vector<pp::pass> left;
  for (int stage = 0; stage < over.extents.stages(); ++stage) {
    std::vector<int> const usual = random_kinds(chance, *over.declared, over.in_group(stage));
    for (int microbatch = 0; microbatch < over.extents.microbatches; ++microbatch) {
      std::vector<int> const kinds =
        chance.one_in(3) ? random_kinds(chance, *over.declared, over.in_group(stage)) : usual;
      for (int chunk = 0; chunk < over.extents.chunks; ++chunk) {
        bool const otherwise = over.extents.chunks > 1 && chance.one_in(4);
        for (int const kind :
             otherwise ? random_kinds(chance, *over.declared, over.in_group(stage)) : kinds)
          left.push_back(
            pp::row_writer::make(static_cast<pp::pass_kind>(kind), stage, microbatch, chunk));
      }
    }
  }
  chance.shuffle(left);
  std::vector<bool> made(static_cast<std::size_t>(over.pass_indices()), false);
  while (!left.empty()) {
    auto ready = std::find_if(left.begin(), left.end(), [&](pp::pass const& what) {
      pipelining::detail::dependency_list const needed(over, what);
      for (int i = 0; i < needed.count; ++i)
        if (!made[static_cast<std::size_t>(needed.index(i))])
          return false;
      return true;
    });
    ready = ready == left.end() ? left.begin() : ready;
    pp::detail::kind_links const& links = over.links_of(*ready);
    for (int const row : links.made)
      if (row >= 0)
        made[static_cast<std::size_t>((row * over.extents.stages() + ready->stage) * over.units() +
                                      over.unit_of(*ready))] = true;
    rows[static_cast<std::size_t>(over.row_of(*ready))].push_back(*ready);
    left.erase(ready);
  }
}

//! @brief Slots of one number each.
struct eight_bytes {
  [[nodiscard]] static std::int64_t bytes(pipelining::slot_class, pipelining::pass const&) {
    return 8;
  }
};

//! @brief Times from 0 to 3 that differ from kind to kind, on all engines.
struct times_by_number {
  [[nodiscard]] static double duration(pipelining::pass const& what) {
    return (pipelining::detail::index_of(what.kind) * 3 + 1) % 4;
  }
  [[nodiscard]] static double latency() { return 0; }
};

//! @brief A flow by chance on a pipeline by chance. One at a time.
class random_pipeline {
public:
  //! @param devices of it; 0: one to three, by chance
  //! @throws std::invalid_argument where `declare` refuses the flow
  explicit random_pipeline(dice& chance, int devices = 0) {
    namespace pp = pipelining;
    static std::vector<pp::flow> const known{pp::training,
                                             pp::detail::frugal_training<>,
                                             pp::detail::vocabulary_training<1>,
                                             pp::detail::vocabulary_training<2>};
    given_orders::declared = random_declaration(chance, known).flow();
    given_.extents = {.devices = devices > 0 ? devices : 1 + chance.below(3),
                      .microbatches = 1 + chance.below(3),
                      .chunks = 1 + chance.below(2),
                      .stages_per_device = 1 + chance.below(2),
                      .where = pp::placement::custom};
    if (chance.one_in(4)) // fewer or more stages than those of all devices
      given_.extents.extra_stages =
        chance.below(given_.extents.stages() + 2) - given_.extents.stages() + 1;
    int const count = given_.extents.stages();
    for (int stage = 0; stage < count; ++stage)
      given_.holders.push_back(chance.below(given_.extents.devices));
    is_chain_ = !chance.one_in(3);
    for (int to = 1; to < count && !is_chain_; ++to)
      for (int from = 0; from < to; ++from)
        if (chance.one_in(2))
          given_.edges.push_back({from, to, pp::of_unit::same});
    if (!is_chain_ && chance.one_in(3))
      given_.groups.push_back({0, std::min(count, given_.extents.devices)});
    else if (!is_chain_)
      lead_elsewhere(chance);
  }

  //! @brief Who reads of whom; empty for a chain.
  [[nodiscard]] edge_list const& edges() const noexcept { return given_.edges; }

  //! @brief Orders by chance, with times. @throws std::invalid_argument for those that cannot run
  [[nodiscard]] pipelining::dynamic_timetable timetable(dice& chance) const {
    return is_chain_ ? timetable_of(chance, given_orders(given_)) : timetable_of(chance, given_);
  }

private:
  //! Edges to other chunks, and some that lead back.
  void lead_elsewhere(dice& chance) {
    namespace pp = pipelining;
    bool const back = chance.one_in(2);
    given_.extents.chunks += chance.below(2);
    for (pp::stage_edge& edge : given_.edges)
      if (chance.one_in(2))
        edge.unit =
          static_cast<pp::of_unit>(chance.one_in(16) ? 0 : 1 + chance.below(back ? 2 : 4));
    for (int from = 0; from < given_.extents.stages() && back; ++from)
      for (int to = 0; to <= from; ++to)
        if (chance.one_in(3))
          given_.edges.push_back({from, to, pp::of_unit::previous});
  }

  template <class Schedule>
  [[nodiscard]] static pipelining::dynamic_timetable timetable_of(dice& chance, Schedule plan) {
    pipelining::pipeline over = pipelining::detail::pipeline_of(plan, plan.extents);
    over.declared = given_orders::declared;
    plan.rows.assign(static_cast<std::size_t>(over.view().row_count()), {});
    fill_rows(chance, over, plan.rows);
    return pipelining::make_timetable(
      plan, {plan.extents.devices, plan.extents.microbatches}, times_by_number{});
  }

  given_graph given_{};
  bool is_chain_ = true;
};

//! @brief A plan of a flow by chance, and what its passes read.
struct interpreted_plan {
  pipelining::plan work{};
  digests expected{};
};

//! @brief The plan of a number; none where the flow or the order is refused, as other tests look
//! at, or where stages are called for something else than `perform`.
//! @param devices as of random_pipeline
inline std::optional<interpreted_plan> interpreted_by_chance(unsigned seed, int devices = 0) {
  dice chance(seed);
  try {
    random_pipeline const made(chance, devices);
    auto const table = made.timetable(chance);
    if (!is_performed(table.over.declared))
      return std::nullopt;
    return interpreted_plan{pipelining::lower(table, eight_bytes{}),
                            interpret(table, made.edges())};
  } catch (std::invalid_argument const&) {
    return std::nullopt;
  } catch (std::length_error const&) { // more passes than the rows can have
    return std::nullopt;
  }
}

} // namespace support
