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
  int first_reader = 0; // of readers
};

//! The walks over the programs of devices, one after the other, each in the memory of the one
//! before.
struct slot_check {
  plan const& work;
  data_uses const& uses;
  stream_clocks clock{};
  owned<slot_history> histories{}; // of all classes, one after the other
  owned<int> read_by{};            // [slots][most readers], the readers of each history
  owned<unsigned char> progress{}; // [S], how far the gradients of each stage are
  owned<int> makers{};             // [instances], where there are several engines
  int device = 0;
  item const* items = nullptr; // of the device
  proof verdict{};
  int const* known = nullptr; // by what starts now
  int last_scatter = nothing; // that has completed the gradients of a stage
  std::span<slot_history> of_class[slot_classes]{};

  void begin(int number) {
    device = number;
    auto const steps = work.program_of(device);
    items = steps.data();
    verdict = {};
    last_scatter = nothing;
    clock.reset(static_cast<int>(steps.size()), work.streams(device));
    int slots = 0;
    for (int of = 0; of < slot_classes; ++of)
      slots += work.layout(device, static_cast<slot_class>(of)).count;
    histories.get(slots, {});
    read_by.get(slots * uses.most_readers);
    progress.get(has_hooks(work) ? uses.over.extents.stages() : 0, 0);
    makers.get(uses.over.declared->engines > 1 ? uses.instances() : 0, nothing);
    for (int of = 0, first = 0; of < slot_classes; ++of) {
      int const count = work.layout(device, static_cast<slot_class>(of)).count;
      of_class[of] = {histories + first, static_cast<std::size_t>(count)};
      first += count;
    }
    for (int slot = 0; slot < slots; ++slot)
      histories[slot].first_reader = slot * uses.most_readers;
    // The rows of the plan before are where they are complete.
    if (validates(work.validation) && device + 1 == uses.over.extents.devices)
      for (int row = 0; row < uses.over.extents.stages(); ++row)
        if (slot_history* const past = history(slot_class::totals, row); past != nullptr)
          past->content = row;
  }
  [[nodiscard]] slot_history* history(slot_class of, int index) noexcept {
    std::span<slot_history> const all = of_class[static_cast<int>(of)];
    auto const at = static_cast<std::size_t>(index); // a negative number becomes one too large
    return at < all.size() ? all.data() + at : nullptr;
  }
  [[nodiscard]] int* readers_of(slot_history const* past) noexcept {
    return read_by + past->first_reader;
  }
  [[nodiscard]] bool knows(int earlier) const noexcept {
    if (earlier == nothing)
      return true;
    return known[items[earlier].stream()] >= earlier;
  }
  void fail(proof::rule broken, int item_index, int other) noexcept {
    if (verdict)
      verdict = {broken, device, item_index, device, other};
  }
  //! `item_index` writes `content` into a slot: its writer and readers so far must be complete.
  void write(int item_index, slot_class of, int index, int content) noexcept {
    slot_history* const past = history(of, index);
    if (past == nullptr)
      return fail(proof::rule::wrong_content, item_index, nothing);
    if (!knows(past->writer))
      return fail(proof::rule::unordered, item_index, past->writer);
    int const* const before = readers_of(past);
    for (int k = 0; k < past->reader_count; ++k)
      if (!knows(before[k]))
        return fail(proof::rule::unordered, item_index, before[k]);
    past->writer = item_index;
    past->content = content;
    past->reader_count = 0;
  }
  //! `item_index` adds to the content that a slot must hold.
  void add(int item_index, slot_class of, int index, int content) noexcept {
    slot_history const* const past = history(of, index);
    if (past == nullptr || past->content != content)
      return fail(proof::rule::wrong_content, item_index, past == nullptr ? nothing : past->writer);
    write(item_index, of, index, content);
  }
  //! `item_index` reads a slot that must hold `content`, written by an item that is complete.
  void read(int item_index, slot_class of, int index, int content) noexcept {
    slot_history* const past = history(of, index);
    if (past == nullptr || past->content != content)
      return fail(proof::rule::wrong_content, item_index, past == nullptr ? nothing : past->writer);
    if (past->writer == item_index)
      return; // a pass may use what it has made
    if (!knows(past->writer))
      return fail(proof::rule::unordered, item_index, past->writer);
    int* const others = readers_of(past);
    int at = 0;
    while (at < past->reader_count && !knows(others[at]) && others[at] != item_index)
      ++at;
    if (at >= uses.most_readers)
      return fail(proof::rule::unordered, item_index, others[0]);
    others[at] = item_index;
    past->reader_count = at == past->reader_count ? at + 1 : past->reader_count;
  }
  //! Checks a step that is not about a pass: its slots, and the gradients that it needs.
  void other(int i, item const& step) noexcept {
    slot_class const of = class_of(step.about);
    use const& used = work.uses_of(step)[0];
    use const given = given_use(uses.over, step, used.count);
    if (used.of != of || used.at != given.at || used.index != given.index ||
        used.count != given.count)
      return fail(proof::rule::wrong_content, i, nothing);
    // Slots of copies serve stage after stage.
    bool const copied = of == slot_class::copied_gradient;
    int const shift = copied ? step.work.stage * most_copies(uses.over.extents) : 0;
    for (int index = used.index; index < used.index + used.count; ++index)
      if (used.at == slot_place::outputs)
        write(i, of, index, index + shift);
      else if (step.about != subject::early_update || device_of(work, index) <= device)
        read(i, of, index, index + shift);
    if (step.what == operation::run)
      follow(i, step);
  }
  //! Gradients are complete after the pass that says so. Copied and tied gradients are complete
  //! once they are added.
  void follow(int i, item const& step) noexcept {
    constexpr unsigned char gathered = 1; // the gradients of one of several copies
    constexpr unsigned char complete = 2;
    constexpr unsigned char added = 3;
    unsigned char& at = progress[step.work.stage];
    bool const tied = work.tied_bytes > 0 && holds_tied(uses.over.extents, step.work.stage);
    if (step.about != subject::pass && !knows(last_scatter))
      return fail(proof::rule::unordered, i, last_scatter);
    switch (step.about) {
    case subject::pass:
      if (completes_gradients(*uses.over.declared, step.work.kind) && at != 0)
        return fail(proof::rule::incomplete, i, nothing);
      if (step.completes_stage)
        at = copies_of(uses.over, step.work.stage) > 1 ? gathered : complete;
      last_scatter = step.completes_stage && runs_beside(step) ? i : last_scatter;
      return;
    case subject::copied_gradient:
    case subject::add_copies:
      if (at != gathered)
        return fail(proof::rule::incomplete, i, nothing);
      at = step.about == subject::add_copies ? complete : at;
      return;
    case subject::contribution:
      if (!work.evaluates && !goes_forward_only(uses.over, step.work.stage) &&
          at != (tied ? added : complete))
        return fail(proof::rule::incomplete, i, nothing);
      return;
    case subject::tied_gradient:
    case subject::add_tied:
      if (at != complete)
        return fail(proof::rule::incomplete, i, nothing);
      at = step.about == subject::add_tied ? added : at;
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
          return fail(proof::rule::wrong_content, i, nothing);
        if (use.stage == 0 && uses.brings(use, what))
          write(i, at->of, at->index, content);
        else if (use.what == does::adds_to)
          add(i, at->of, at->index, content);
        else
          read(i, at->of, at->index, content);
      }
    }
    if (at != end)
      fail(proof::rule::wrong_content, i, nothing);
  }
  //! A message reads what its maker has made, or brings it.
  void carry(int i, item const& step) noexcept {
    use const& carried = work.uses_of(step)[0];
    int const content = uses.product(step.work, step.work.stage, work.message_of(step).number);
    bool const sends = step.what == operation::send;
    if (carried.at != (sends ? slot_place::inputs : slot_place::outputs) || carried.count != 1 ||
        content == nothing)
      fail(proof::rule::wrong_content, i, nothing);
    else if (sends)
      read(i, carried.of, carried.index, content);
    else
      write(i, carried.of, carried.index, content);
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

//! The classes lie one after the other in the arena.
inline proof check_layout(plan const& work, int device) noexcept {
  std::int64_t ends[2]{}; // on the device, on the host
  for (int of = 0; of < slot_classes; ++of) {
    slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
    std::int64_t& end = ends[lies_on_host(work.over.declared, of) ? 1 : 0];
    if (layout.offset < end || layout.bytes < 0 || layout.count < 0)
      return {proof::rule::slots_overlap, device, layout.peak_item};
    end = plus(layout.offset, times(layout.bytes, layout.count));
  }
  if (work.arena_bytes_of(device) < ends[0] || work.host_bytes_of(device) < ends[1])
    return {proof::rule::slots_overlap, device};
  return {};
}

//! True when every slot that a step uses has room for its content.
//! @param layouts of its device
[[nodiscard]] inline bool
has_room(plan const& work, slot_layout const* layouts, item const& step) noexcept {
  for (use const& used : work.uses_of(step)) {
    std::int64_t const room = layouts[static_cast<int>(used.of)].bytes;
    if (used.bytes < 0 ||
        used.bytes > (used.of == slot_class::totals ? times(room, used.count) : room))
      return false;
  }
  return true;
}

} // namespace pipelining::inline v0_3::detail
