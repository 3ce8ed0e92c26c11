// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Who reads what a pass makes, and what a pass waits for. Header for
//! pipelining::detail::dependency_list.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>

namespace pipelining::inline v0_3::detail {

//! How many stages read what a pass makes for other stages: in training, none reads the last
//! stage's forward, the first stage's gradient and weight gradients. A stage that reads two data
//! counts twice.
[[nodiscard]] constexpr int readers(pipeline_view const& over, pass const& maker) noexcept {
  kind_links const& links = over.links_of(maker);
  int count = 0;
  for (int const product : links.products)
    if (product != kind_links::none)
      count += neighbours(over, maker, to_readers(over.edges, over.declared->reader_step[product]));
  return count;
}

//! A stage that reads what a pass makes.
struct product_reader {
  int product = kind_links::none; //!< the datum; none where there are not so many readers
  int stage = kind_links::none;   //!< that reads it
  int number = 0;                 //!< among the readers of this datum
};
//! One of them, those of the first datum first.
[[nodiscard]] constexpr product_reader
reader_of(pipeline_view const& over, pass const& maker, int number = 0) noexcept {
  for (int const product : over.links_of(maker).products) {
    if (product == kind_links::none)
      break;
    int const step = to_readers(over.edges, over.declared->reader_step[product]);
    int const count = neighbours(over, maker, step);
    if (number < count)
      return {product, neighbour(over, maker, step, number).stage, number};
    number -= count;
  }
  return {};
}

//! The device that the message for a reader of `maker` goes to, or `kind_links::none` where
//! there is no such reader, or it has what it reads already: on its device it is made, or another
//! reader there gets the same.
[[nodiscard]] constexpr int
receiver(pipeline_view const& over, pass const& maker, int number = 0) noexcept {
  product_reader const reader = reader_of(over, maker, number);
  if (reader.stage == kind_links::none)
    return kind_links::none;
  int const to = device_of(over, reader.stage, maker.microbatch);
  bool goes = to != device_of(over, maker);
  bool const same = over.declared->data[reader.product].instance != datum::per::reader;
  for (int before = number - reader.number; goes && same && before < number; ++before)
    goes = device_of(over, reader_of(over, maker, before).stage, maker.microbatch) != to;
  return goes ? to : kind_links::none;
}

//! True where nothing leaves the device of `maker`.
[[nodiscard]] constexpr bool stays_on_device(pipeline_view const& over,
                                             pass const& maker) noexcept {
  for (int number = 0; number < readers(over, maker); ++number)
    if (receiver(over, maker, number) != kind_links::none)
      return false;
  return true;
}

//! A line that a pass waits for, and the unit.
struct dependency {
  int line = 0;
  int stage = 0; //!< of the line
  int unit = 0;
  bool own = false; //!< made by the stage itself, and not by a group that it belongs to
};

//! The passes that a pass waits for: makers of what it reads, on other stages and on its own, and
//! the pass of the chunk before or after it.
//!
//! In training: a forward pass waits for the stages before it and for the chunk before it (whose
//! keys and values it reads). The gradient of the input waits for the stage after it (on the last
//! stage: for its own forward) and for the chunk after it (whose gradients of keys and values it
//! takes over). The gradient of the weights waits for the gradient of the input of the same unit.
class dependency_list {
public:
  //! @pre contains(over, what); the tables of the pipeline outlive this. @complexity O(1)
  constexpr dependency_list(pipeline_view const& over, pass const& what) noexcept
      : over_(over), what_(what), links_(over.links_of(what)), unit_(over.unit_of(what)),
        stage_count_(over.extents.stages()),
        way_(over.extents.route_of(what.microbatch) * over.declared->rows) {
    inputs_ = links_.input == kind_links::none ? 0 : neighbours(over, what, links_.input_step);
    while (own_ < kind_links::most_own && links_.own[own_] != kind_links::none)
      ++own_;
    int const chunk = what.chunk + links_.chunk_step;
    count = inputs_ + own_;
    if (links_.chunk_step != 0 && chunk >= 0 && chunk < over.chunks_of(what.microbatch))
      ++count;
  }
  //! One of them. @pre 0 <= number < count
  [[nodiscard]] constexpr dependency operator[](int number) const noexcept {
    int const behind = number - inputs_;
    if (behind < 0) {
      stage_neighbour const from = neighbour(over_, what_, links_.input_step, number);
      return at(links_.input, from.stage, unit_ + from.chunk - what_.chunk);
    }
    dependency from = behind < own_ ? at(links_.own[behind], what_.stage, unit_)
                                    : at(links_.made[0], what_.stage, unit_ + links_.chunk_step);
    from.own = true;
    return from;
  }
  //! The `pass_index` of one of them. @pre 0 <= number < count
  [[nodiscard]] constexpr int index(int number) const noexcept {
    dependency const found = (*this)[number];
    return (found.line - way_ * stage_count_) * over_.units() + found.unit;
  }
  //! The stage of one of them. @pre 0 <= number < count
  [[nodiscard]] constexpr int stage(int number) const noexcept { return (*this)[number].stage; }

  int count; //!< how many there are

private:
  [[nodiscard]] constexpr dependency at(int row, int stage, int unit) const noexcept {
    return {(way_ + row) * stage_count_ + stage, stage, unit};
  }

  pipeline_view over_;
  pass what_;
  kind_links const& links_;
  int unit_;
  int stage_count_;
  int way_; // the first row of its route
  int inputs_ = 0;
  int own_ = 0;
};

//! The data in place for passes that need them, as the passes of one compute engine go by in order.
class needed_data {
public:
  constexpr explicit needed_data(pipeline_view const& over)
      : flow_(*over.declared), stages_(over.extents.stages()), held_(slot_classes * stages_, 0) {}

  //! The next pass. @return whether all that it needs is there
  constexpr bool enter(pass const& what) noexcept {
    for (effect const& one : flow_[what.kind]) {
      datum const& of = flow_.data[one.of];
      int& held = held_[of.pool * stages_ + what.stage];
      if (one.what == does::needs && held <= 0)
        return false;
      if (of.lives == residence::nowhere && one.stage == of_stage::own)
        held += one.what == does::makes ? 1 : one.what == does::frees ? -1 : 0;
    }
    return true;
  }

private:
  flow const& flow_;
  int stages_;
  owned<int> held_; // [pools][S], data that lie nowhere
};

} // namespace pipelining::inline v0_3::detail
