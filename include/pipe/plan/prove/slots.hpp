// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at buffers: a step reads the data that it needs, and
//! they are complete by then.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pipelining::inline v0_3::detail {

//! Every pass runs while the data that it needs of its stage are there.
inline proof check_needs(plan const& work, int device) {
  if (!work.over.declared.has_needs)
    return {};
  needed_data there(work.over);
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (item const& step = steps[i]; step.what == operation::run && !runs_beside(step) &&
                                     step.about == subject::pass && !there.enter(step.work))
      return {proof::rule::not_there, device, static_cast<int>(i)};
  return {};
}

//! The history of a slot: its content, the item that wrote it, and the items that read it. Of
//! readers that know of each other the last stands for all.
struct slot_history {
  int writer = nothing;
  int content = nothing;
  int reader_count = 0;
};

//! The walks over the programs of devices, one after the other, each in the memory of the one
//! before.
struct slot_check {
  plan const& work;
  data_uses const& uses;
  stream_clocks clock{};
  owned<slot_history> histories{}; // [slots], of all classes, one after the other
  owned<int> read_by{};            // [slots][most readers]
  owned<unsigned char> progress{}; // [S], how far the gradients of each stage are
  owned<int> makers{};             // [instances], where there are several engines
  int device = 0;
  item const* items = nullptr; // of the device
  proof verdict{};
  int const* known = nullptr;       // by what starts now
  int last_scatter = nothing;       // that has completed the gradients of a stage
  int first_of[slot_classes + 1]{}; // slots of each class, and after the last

  void begin(int number) {
    device = number;
    auto const steps = work.program_of(device);
    items = steps.data();
    verdict = {};
    last_scatter = nothing;
    clock.reset(static_cast<int>(steps.size()), work.streams(device));
    for (int of = 0; of < slot_classes; ++of)
      first_of[of + 1] = first_of[of] + work.layout(device, static_cast<slot_class>(of)).count;
    histories.get(first_of[slot_classes], {});
    read_by.get(first_of[slot_classes] * uses.most_readers);
    progress.get(has_hooks(work) ? uses.over.extents.stages() : 0, 0);
    makers.get(uses.over.declared->engines > 1 ? uses.instances() : 0, nothing);
    // The rows of the plan before are where they are complete.
    if (validates(work.validation) && device + 1 == uses.over.extents.devices)
      for (int row = 0; row < uses.over.extents.stages(); ++row)
        if (int const slot = slot_of({.of = slot_class::totals, .index = row}); slot != nothing)
          histories[slot].content = row;
  }
  //! The number of a slot among the histories; `nothing` where there is none.
  [[nodiscard]] int slot_of(use const& used) const noexcept {
    int const* const first = first_of + static_cast<int>(used.of);
    bool const exists =
      static_cast<unsigned>(used.index) < static_cast<unsigned>(first[1] - *first);
    return exists ? *first + used.index : nothing; // a negative number is one too large
  }
  [[nodiscard]] bool knows(int earlier) const noexcept {
    return earlier == nothing || known[items[earlier].stream()] >= earlier;
  }
  void fail(proof::rule broken, int item_index, int other = nothing) noexcept {
    if (verdict)
      verdict = {broken, device, item_index, device, other};
  }
  //! `item_index` writes `content` into a slot: its writer and readers so far must be complete.
  void write(int item_index, use const& used, int content) noexcept {
    int const slot = slot_of(used);
    if (slot == nothing)
      return fail(proof::rule::wrong_content, item_index);
    slot_history& past = histories[slot];
    if (!knows(past.writer))
      return fail(proof::rule::unordered, item_index, past.writer);
    int const* const before = read_by + slot * uses.most_readers;
    for (int k = 0; k < past.reader_count; ++k)
      if (!knows(before[k]))
        return fail(proof::rule::unordered, item_index, before[k]);
    past = {item_index, content, 0};
  }
  //! True when a slot holds the content that it must hold for `item_index`.
  [[nodiscard]] bool has(int item_index, int slot, int content) noexcept {
    bool const right = slot != nothing && histories[slot].content == content;
    if (!right)
      fail(
        proof::rule::wrong_content, item_index, slot == nothing ? nothing : histories[slot].writer);
    return right;
  }
  //! `item_index` adds to the content that a slot must hold.
  void add(int item_index, use const& used, int content) noexcept {
    if (has(item_index, slot_of(used), content))
      write(item_index, used, content);
  }
  //! `item_index` reads a slot that must hold `content`, written by an item that is complete.
  void read(int item_index, use const& used, int content) noexcept {
    int const slot = slot_of(used);
    if (!has(item_index, slot, content))
      return;
    slot_history& past = histories[slot];
    if (past.writer == item_index)
      return; // a pass may use what it has made
    if (!knows(past.writer))
      return fail(proof::rule::unordered, item_index, past.writer);
    int* const others = read_by + slot * uses.most_readers;
    int at = 0;
    while (at < past.reader_count && !knows(others[at]) && others[at] != item_index)
      ++at;
    if (at >= uses.most_readers)
      return fail(proof::rule::unordered, item_index, others[0]);
    others[at] = item_index;
    past.reader_count = at == past.reader_count ? at + 1 : past.reader_count;
  }
  //! Checks a step that is not about a pass: its slots, and the gradients that it needs.
  void other(int i, item const& step) noexcept {
    use used = work.uses_of(step)[0];
    use given = given_use(uses.over, step, used.count);
    given.bytes = used.bytes;
    if (used != given)
      return fail(proof::rule::wrong_content, i);
    // Slots of copies serve stage after stage.
    bool const copied = used.of == slot_class::copied_gradient;
    int const shift = copied ? step.work.stage * most_copies(uses.over.extents) : 0;
    for (int k = 0; k < used.count; ++k, ++used.index)
      if (used.at == slot_place::outputs)
        write(i, used, used.index + shift);
      else if (step.about != subject::early_update || device_of(work, used.index) <= device)
        read(i, used, used.index + shift);
    if (step.what == operation::run)
      follow(i, step);
  }
  //! Gradients are complete after the pass that says so. Copied and tied gradients are complete
  //! once they are added.
  void follow(int i, item const& step) noexcept {
    enum : unsigned char { begun, gathered, complete, added }; // gathered: of one of several copies
    int const stage = step.work.stage;
    unsigned char& at = progress[stage];
    auto const go_on = [&](unsigned char from, unsigned char to) {
      if (at != from)
        return fail(proof::rule::incomplete, i);
      at = to;
    };
    if (step.about != subject::pass && !knows(last_scatter))
      return fail(proof::rule::unordered, i, last_scatter);
    switch (step.about) {
    case subject::pass:
      if (completes_gradients(*uses.over.declared, step.work.kind) && at != begun)
        return fail(proof::rule::incomplete, i);
      if (step.completes_stage)
        at = copies_of(uses.over, stage) > 1 ? gathered : complete;
      last_scatter = step.completes_stage && runs_beside(step) ? i : last_scatter;
      return;
    case subject::copied_gradient: return go_on(gathered, gathered);
    case subject::add_copies: return go_on(gathered, complete);
    case subject::tied_gradient: return go_on(complete, complete);
    case subject::add_tied: return go_on(complete, added);
    case subject::contribution:
      if (bool const tied = work.tied_bytes > 0 && holds_tied(uses.over.extents, stage);
          !work.evaluates && !goes_forward_only(uses.over, stage))
        go_on(tied ? added : complete, at);
      return;
    default: return; // the totals say that all have contributed
    }
  }
  //! A pass that needs a datum without a slot comes after its maker, or is its maker.
  void follow_maker(int i, int instance) noexcept {
    if (makers[instance] != i && (makers[instance] == nothing || !knows(makers[instance])))
      fail(proof::rule::unordered, i, makers[instance]);
  }
  void run(int i, item const& step) noexcept {
    if (has_hooks(work))
      follow(i, step);
    pass const& what = step.work;
    pass_place const place = uses.place_of(what);
    bool const engines = uses.over.declared->engines > 1;
    auto at = work.uses_of(step).data();
    auto const end = at + step.use_count;
    for (data_use const& use : uses[what]) {
      if (engines && use.stage == 0 && use.what == does::makes)
        makers[uses.index(use, what, place)] = i;
      else if (engines && use.orders)
        follow_maker(i, uses.index(use, what, place));
      int const count = uses.slots(use, what);
      for (int number = 0; number < count; ++number, ++at) {
        int const content = uses.index(use, what, place, number);
        if (at == end || at->at != use.at || at->count != 1 ||
            (use.stage == 0 && at->of != slot_class{use.pool}))
          return fail(proof::rule::wrong_content, i);
        if (use.stage == 0 && uses.brings(use, what))
          write(i, *at, content);
        else if (use.what == does::adds_to)
          add(i, *at, content);
        else
          read(i, *at, content);
      }
    }
    if (at != end)
      fail(proof::rule::wrong_content, i);
  }
  //! A message reads what its maker has made, or brings it.
  void carry(int i, item const& step) noexcept {
    use const& carried = work.uses_of(step)[0];
    int const content = uses.product(step.work, step.work.stage, work.message_of(step).number);
    bool const sends = step.what == operation::send;
    if (carried.at != (sends ? slot_place::inputs : slot_place::outputs) || carried.count != 1 ||
        content == nothing)
      fail(proof::rule::wrong_content, i);
    else if (sends)
      read(i, carried, content);
    else
      write(i, carried, content);
  }

  //! Checks the slots of one device. Items that start together do not know of one another.
  proof check(int number) {
    if (proof const found = check_needs(work, number); !found)
      return found;
    begin(number);
    auto const steps = work.program_of(device);
    int const count = static_cast<int>(steps.size());
    int const* const waits = work.waits.data(); // not looked up again for each item
    for (int first = 0; first < count && verdict;) {
      int const end = end_of_group(steps, first);
      int const stream = items[first].stream();
      clock.begin(stream, first);
      bool learned = false;
      for (int i = first; i < end; ++i)
        for (int const wait : std::span(waits + items[i].first_wait, items[i].wait_count))
          clock.learn(stream, wait, items[wait].stream(), std::exchange(learned, true));
      clock.end(first, end, stream);
      known = clock.known(stream);
      for (int i = first; i < end; ++i) {
        if (items[i].about != subject::pass)
          other(i, items[i]);
        else if (items[i].what == operation::run)
          run(i, items[i]);
        else
          carry(i, items[i]);
      }
      first = end;
    }
    return verdict;
  }
};

} // namespace pipelining::inline v0_3::detail
