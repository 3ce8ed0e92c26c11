// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What flows through which devices: extents, flow, placement, chunks and stage graph of one
//! pipeline.
//! Header for pipelining::pipeline.

#include <pipe/core/flow.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/core/stage_graph.hpp>
#include <pipe/core/training.hpp>

#include <cstdint>

namespace pipelining::inline v0_2 {

//! @brief What functions on timetables and plans ask about a pipeline. Owns nothing: tables and
//! plans do.
struct pipeline {
  shape extents;                    //!< P, M, C, V and the placement
  flow const* declared = &training; //!< what passes do
  //! For a custom placement: the device of every stage, route after route, [routes][S].
  std::uint16_t const* holders = nullptr;
  //! For microbatches of unequal numbers of chunks: the first unit of each, [M + 1].
  int const* first_units = nullptr;
  //! For stages that are no chain: the table of their edges.
  int const* edges = nullptr;
};

//! @brief Times from pass to pass where one of the two stages is of a group; negative: those of
//! messages.
struct group_times {
  double broadcast = -1; //!< from the end of a pass to each stage of a group
  double reduce = -1;    //!< from the end of the last stage of a group to who reads them

  friend constexpr bool operator==(group_times const&, group_times const&) = default;
};

//! @brief How many stages are before (step -1), after (step +1) or `beside` a stage.
[[nodiscard]] constexpr int neighbours(pipeline const& over, int stage, int step) noexcept {
  return neighbours(over.edges, stages(over.extents), stage, step);
}

//! @brief One of them. @pre 0 <= number < neighbours(over, stage, step)
[[nodiscard]] constexpr stage_neighbour
neighbour(pipeline const& over, int stage, int step, int number) noexcept {
  return neighbour(over.edges, stages(over.extents), stage, step, number);
}

//! @brief The most stages that read what one stage makes: 1 for a chain.
[[nodiscard]] constexpr int graph_width(pipeline const& over) noexcept {
  return over.edges == nullptr ? 1 : over.edges[0];
}

//! @brief The device that holds `stage` for `microbatch`.
[[nodiscard]] constexpr int
device_of(pipeline const& over, int stage, int microbatch = 0) noexcept {
  if (over.holders == nullptr)
    return device_of(over.extents, stage, microbatch);
  return over.holders[route_of(over.extents, microbatch) * stages(over.extents) + stage];
}

//! @brief The device that runs `what`.
[[nodiscard]] constexpr int device_of(pipeline const& over, pass const& what) noexcept {
  return device_of(over, what.stage, what.microbatch);
}

//! @brief Units that flow through the pipeline: chunks of microbatches.
[[nodiscard]] constexpr int units(pipeline const& over) noexcept {
  return over.first_units == nullptr ? over.extents.microbatches * over.extents.chunks
                                     : over.first_units[over.extents.microbatches];
}

//! @brief The first unit of a microbatch; that of M is the number of units.
[[nodiscard]] constexpr int first_unit(pipeline const& over, int microbatch) noexcept {
  return over.first_units == nullptr ? microbatch * over.extents.chunks
                                     : over.first_units[microbatch];
}

//! @brief The chunks of a microbatch.
[[nodiscard]] constexpr int chunks_of(pipeline const& over, int microbatch) noexcept {
  return over.first_units == nullptr
           ? over.extents.chunks
           : over.first_units[microbatch + 1] - over.first_units[microbatch];
}

//! @brief The number of the unit of a pass.
[[nodiscard]] constexpr int unit_of(pipeline const& over, pass const& what) noexcept {
  return first_unit(over, what.microbatch) + what.chunk;
}

//! @brief True for a stage of a group, such as a shard of a vocabulary.
[[nodiscard]] constexpr bool in_group(pipeline const& over, int stage) noexcept {
  return over.edges != nullptr && neighbours(over, stage, beside) > 0;
}

//! @brief True when kind, stage, microbatch and chunk of a pass exist, and its kind runs on such
//! stages.
[[nodiscard]] constexpr bool contains(pipeline const& over, pass const& what) noexcept {
  return index_of(what.kind) < most_kinds && (*over.declared)[what.kind].exists() &&
         what.stage < stages(over.extents) && what.microbatch < over.extents.microbatches &&
         what.chunk < chunks_of(over, what.microbatch) &&
         (*over.declared)[what.kind].in_groups == in_group(over, what.stage);
}

//! @brief The time from the end of a pass of one stage to the start of one of another that reads
//! what it made.
//! @param latency of a message @param apart whether they are on different devices
[[nodiscard]] constexpr double transfer_time(pipeline const& over,
                                             group_times const& groups,
                                             double latency,
                                             int from,
                                             int to,
                                             bool apart) noexcept {
  double const together = in_group(over, from) ? groups.reduce
                          : in_group(over, to) ? groups.broadcast
                                               : -1;
  return together >= 0 ? together : apart ? latency : 0;
}

namespace detail {
//! Whether a stage of a graph is before another. By itself, so that what chains do stays small enough
//! to be inlined.
[[nodiscard]] constexpr bool is_read(pipeline const& over, int stage) noexcept {
  return neighbours(over, stage, 1) > 0;
}
} // namespace detail

//! @brief What a pass waits for and makes.
[[nodiscard]] constexpr kind_links const& links_of(pipeline const& over,
                                                   pass const& what) noexcept {
  bool const has_after = over.edges == nullptr ? what.stage + 1 < stages(over.extents)
                                               : detail::is_read(over, what.stage);
  return over.declared->links[index_of(what.kind)][has_after ? 1 : 0];
}

//! @brief Lines: rows of the flow, by stages, by routes.
[[nodiscard]] constexpr int lines(pipeline const& over) noexcept {
  return over.declared->rows * stages(over.extents) * routes(over.extents);
}

//! @brief The device of a line.
[[nodiscard]] constexpr int holder_of(pipeline const& over, int line) noexcept {
  int const stage_count = stages(over.extents);
  int const route = line / (over.declared->rows * stage_count);
  if (over.holders != nullptr)
    return over.holders[route * stage_count + line % stage_count];
  return device_of(
    over.extents, line % stage_count, route == 0 ? 0 : over.extents.microbatches - 1);
}

//! @brief The number of values of `pass_index`.
[[nodiscard]] constexpr int pass_indices(pipeline const& over) noexcept {
  return over.declared->rows * stages(over.extents) * units(over);
}

//! @brief A dense number for what a pass makes: kinds that make the same row (`backward` and
//! `backward_input`) share one, since a unit has one of them.
[[nodiscard]] constexpr int pass_index(pipeline const& over, pass const& what) noexcept {
  int const row = links_of(over, what).made[0];
  return (row * stages(over.extents) + what.stage) * units(over) + unit_of(over, what);
}

//! @brief The kind that a row is named after.
[[nodiscard]] constexpr pass_kind namer_of(flow const& declared, int row) noexcept {
  for (int kind = 0; kind < most_kinds; ++kind)
    if (declared.kinds[kind].exists() && declared.links[kind][0].made[0] == row)
      return static_cast<pass_kind>(kind);
  return pass_kind{};
}

//! @brief The pass of a number; the row of input gradients gives `backward`.
//! @pre 0 <= index < pass_indices(over)
[[nodiscard]] constexpr pass pass_at(pipeline const& over, int index) noexcept {
  int const unit = index % units(over);
  int const row_and_stage = index / units(over);
  int const stage_count = stages(over.extents);
  int microbatch = over.first_units == nullptr ? unit / over.extents.chunks : 0;
  while (unit >= first_unit(over, microbatch + 1))
    ++microbatch;
  return {namer_of(*over.declared, row_and_stage / stage_count),
          false,
          static_cast<std::uint16_t>(row_and_stage % stage_count),
          static_cast<std::uint16_t>(microbatch),
          static_cast<std::uint16_t>(unit - first_unit(over, microbatch))};
}

//! @brief Rows of passes of all devices: one per device for each engine of the flow, engine after
//! engine.
[[nodiscard]] constexpr int row_count(pipeline const& over) noexcept {
  return over.extents.devices * over.declared->engines;
}

//! @brief The row that a pass stands in.
[[nodiscard]] constexpr int row_of(pipeline const& over, pass const& what) noexcept {
  int const on = static_cast<int>((*over.declared)[what.kind].on);
  return over.declared->engine_row[on] * over.extents.devices + device_of(over, what);
}

//! @brief The most passes that one row can have.
[[nodiscard]] constexpr int row_capacity(pipeline const& over) noexcept {
  shape const& extents = over.extents;
  int most = extents.where == placement::bidirectional ? 2 : extents.stages_per_device;
  if (over.holders != nullptr) {
    most = 0;
    int const count = stages(extents) * routes(extents);
    for (int device = 0; device < extents.devices; ++device) {
      int held = 0;
      for (int i = 0; i < count; ++i)
        held += over.holders[i] == device ? 1 : 0;
      most = held > most ? held : most;
    }
  }
  return over.declared->rows * most * units(over);
}

//! @brief The most passes that one device of a training pipeline with a named placement can have.
[[nodiscard]] constexpr int row_capacity(shape const& extents) noexcept {
  return row_capacity(pipeline{extents});
}

//! @brief How many stages read what a pass makes for other stages: in training, none reads the last
//! stage's forward, the first stage's gradient and weight gradients. A stage that reads two data
//! counts twice.
[[nodiscard]] constexpr int readers(pipeline const& over, pass const& maker) noexcept {
  kind_links const& links = links_of(over, maker);
  int count = 0;
  for (int const product : links.products)
    if (product != kind_links::none)
      count += neighbours(over, maker.stage, over.declared->reader_step[product]);
  return count;
}

//! @brief A stage that reads what a pass makes.
struct product_reader {
  int product = kind_links::none; //!< the datum; none where there are not so many readers
  int stage = kind_links::none;   //!< that reads it
  int number = 0;                 //!< among the readers of this datum
};

namespace detail {
//! `reader_of` in a graph. By itself, so that what chains do stays small enough to be inlined.
[[nodiscard]] constexpr product_reader
reader_in_graph(pipeline const& over, pass const& maker, int number) noexcept {
  for (int const product : links_of(over, maker).products) {
    if (product == kind_links::none)
      break;
    int const step = over.declared->reader_step[product];
    int const count = neighbours(over, maker.stage, step);
    if (number < count)
      return {product, neighbour(over, maker.stage, step, number).stage, number};
    number -= count;
  }
  return {};
}
//! The stage that reads in a chain, or `kind_links::none`.
[[nodiscard]] constexpr int reader_in_chain(pipeline const& over, pass const& maker) noexcept {
  int const product = links_of(over, maker).products[0];
  if (product == kind_links::none)
    return kind_links::none;
  int const reader = maker.stage + over.declared->reader_step[product];
  return reader >= 0 && reader < stages(over.extents) ? reader : kind_links::none;
}
} // namespace detail

//! @brief One of them, those of the first datum first.
[[nodiscard]] constexpr product_reader
reader_of(pipeline const& over, pass const& maker, int number = 0) noexcept {
  if (over.edges != nullptr)
    return detail::reader_in_graph(over, maker, number);
  int const reader = number == 0 ? detail::reader_in_chain(over, maker) : kind_links::none;
  return reader == kind_links::none ? product_reader{}
                                    : product_reader{links_of(over, maker).products[0], reader, 0};
}

//! @brief Its stage, or `kind_links::none`.
[[nodiscard]] constexpr int
reader_stage(pipeline const& over, pass const& maker, int number = 0) noexcept {
  if (over.edges != nullptr)
    return detail::reader_in_graph(over, maker, number).stage;
  return number == 0 ? detail::reader_in_chain(over, maker) : kind_links::none;
}

namespace detail {

//! True where another reader before the `number`-th gets the same on the same device.
[[nodiscard]] constexpr bool
is_sent_before(pipeline const& over, pass const& maker, int number, int to) noexcept {
  product_reader const reader = reader_of(over, maker, number);
  if (over.declared->data[reader.product].instance == per::reader)
    return false;
  for (int before = number - reader.number; before < number; ++before)
    if (device_of(over, reader_stage(over, maker, before), maker.microbatch) == to)
      return true;
  return false;
}

} // namespace detail

//! @brief The device that the message for a reader of `maker` goes to, or `kind_links::none` where
//! there is no such reader, or it has what it reads already: on its device it is made, or another
//! reader there gets the same.
[[nodiscard]] constexpr int
receiver(pipeline const& over, pass const& maker, int number = 0) noexcept {
  int const reader = reader_stage(over, maker, number);
  if (reader == kind_links::none)
    return kind_links::none;
  int const to = device_of(over, reader, maker.microbatch);
  return to == device_of(over, maker) ||
             (number > 0 && detail::is_sent_before(over, maker, number, to))
           ? kind_links::none
           : to;
}

//! @brief True where nothing leaves the device of `maker`.
[[nodiscard]] constexpr bool stays_on_device(pipeline const& over, pass const& maker) noexcept {
  for (int number = 0; number < readers(over, maker); ++number)
    if (receiver(over, maker, number) != kind_links::none)
      return false;
  return true;
}

//! @brief What a pass waits for: who made what it reads on other stages and on its own, and the
//! pass of the chunk before or after it.
//!
//! In training: a forward pass waits for the stages before it and for the chunk before it (whose
//! keys and values it reads). The gradient of the input waits for the stage after it (on the last
//! stage: for its own forward) and for the chunk after it (whose gradients of keys and values it
//! takes over). The gradient of the weights waits for the gradient of the input of the same unit.
class dependency_list {
public:
  //! @pre contains(over, what); the tables of the pipeline outlive this. @complexity O(1)
  constexpr dependency_list(pipeline const& over, pass const& what) noexcept
      : over_(over), what_(what), links_(links_of(over, what)), unit_(unit_of(over, what)),
        unit_count_(units(over)), stage_count_(stages(over.extents)) {
    inputs_ =
      links_.input == kind_links::none ? 0 : neighbours(over, what.stage, links_.input_step);
    own_ = (links_.own[0] == kind_links::none ? 0 : 1) + (links_.own[1] == kind_links::none ? 0 : 1);
    int const chunk = what.chunk + links_.chunk_step;
    count = inputs_ + own_;
    if (links_.chunk_step != 0 && chunk >= 0 && chunk < chunks_of(over, what.microbatch))
      ++count;
  }
  //! The `pass_index` of one of them. @pre 0 <= number < count
  [[nodiscard]] constexpr int index(int number) const noexcept {
    int const behind = number - inputs_;
    if (behind < 0)
      return at(links_.input, stage(number)) + unit_;
    return behind < own_ ? at(links_.own[behind], what_.stage) + unit_
                         : at(links_.made[0], what_.stage) + unit_ + links_.chunk_step;
  }
  //! The stage of one of them. @pre 0 <= number < count
  [[nodiscard]] constexpr int stage(int number) const noexcept {
    return number < inputs_ ? neighbour(over_, what_.stage, links_.input_step, number).stage
                            : what_.stage;
  }

  int count; //!< how many there are

private:
  [[nodiscard]] constexpr int at(int row, int stage) const noexcept {
    return (row * stage_count_ + stage) * unit_count_;
  }

  pipeline over_;
  pass what_;
  kind_links const& links_;
  int unit_;
  int unit_count_;
  int stage_count_;
  int inputs_ = 0;
  int own_ = 0;
};

//! @brief What `what` waits for. @pre contains(over, what) @complexity O(1)
[[nodiscard]] constexpr dependency_list dependencies(pipeline const& over,
                                                     pass const& what) noexcept {
  return {over, what};
}

} // namespace pipelining::inline v0_2
