// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The canonical text of a plan: messages, memory and dependence. See canonical_text.hpp.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <tests/support/canonical_text.hpp>
#include <utility>
#include <vector>

namespace support {
namespace detail {

[[nodiscard]] inline label name_of(pipelining::detail::subject about) {
  switch (about) {
  case pipelining::detail::subject::pass: return "pass";
  case pipelining::detail::subject::tied_gradient: return "tied_gradient";
  case pipelining::detail::subject::add_tied: return "add_tied";
  case pipelining::detail::subject::contribution: return "contribution";
  case pipelining::detail::subject::gather: return "gather";
  case pipelining::detail::subject::spread: return "spread";
  case pipelining::detail::subject::update: return "update";
  case pipelining::detail::subject::early_update: return "early_update";
  case pipelining::detail::subject::validation: return "validation";
  case pipelining::detail::subject::copied_gradient: return "copied_gradient";
  case pipelining::detail::subject::add_copies: return "add_copies";
  }
  return "unknown";
}

//! One device of a plan.
struct device_text {
  pipelining::plan const& work;
  flow_labels const& labels;
  int device;

  [[nodiscard]] std::span<pipelining::item const> steps() const { return work.program_of(device); }

  //! What an item is: a pass by its kind, a message by its datum and by the stage that reads it.
  template <class Sink>
  void write_name(Sink& sink, pipelining::item const& step) const {
    bool const message = step.what != pipelining::operation::run;
    if (message) {
      if (step.what == pipelining::operation::send)
        sink.word("send");
      else
        sink.word("receive");
      sink.number(work.message_of(step).peer);
    }
    pipelining::pass const& what = step.work;
    if (step.about != pipelining::detail::subject::pass) {
      sink.word(name_of(step.about));
      sink.number(what.stage);
    } else if (message) {
      int const number = work.message_of(step).number;
      auto const reader = pipelining::detail::reader_of(work.over, what, number);
      sink.word(labels.data[static_cast<std::size_t>(reader.product)]);
      for (int const place : {int{what.stage}, int{what.microbatch}, int{what.chunk}})
        sink.number(place);
      sink.word("for");
      sink.number(reader.stage);
    } else {
      write_pass(sink, labels, what);
    }
  }

  //! An order of the items of a device that does not look at where they stand.
  using sort_key = std::pair<std::uint64_t, std::uint64_t>;
  [[nodiscard]] sort_key key_of(pipelining::item const& step) const {
    pipelining::pass const& what = step.work;
    auto const wide = [](auto number) { return static_cast<std::uint64_t>(number); };
    bool const passes = step.about == pipelining::detail::subject::pass;
    std::uint64_t const place = passes ? wide(what.microbatch) << 32 | wide(what.chunk) << 16
                                       : wide(0xffffffff) << 16; // follows all passes
    std::uint64_t name = passes ? labels.of(what.kind).hash : name_of(step.about).hash;
    if (step.what != pipelining::operation::run) {
      pipelining::detail::message_end const& end = work.message_of(step);
      int product = 0;
      int reader = 0;
      if (passes) {
        auto const read = pipelining::detail::reader_of(work.over, what, end.number);
        product = read.product;
        reader = read.stage;
        name = labels.data[static_cast<std::size_t>(product)].hash;
      }
      name = (name ^ wide(end.peer + 1) << 24 ^ wide(reader + 1) << 8 ^ wide(step.what)) *
             0x100000001b3u;
    }
    return {place | wide(what.stage), name};
  }
};

//! The messages of a device, lane by lane, group by group.
template <class Sink>
void write_lanes(Sink& sink, device_text const& at) {
  auto const steps = at.steps();
  using direction = std::pair<int, bool>; // the peer, and whether it is sent to
  auto const direction_of = [&at](pipelining::item const& step) {
    return direction{at.work.message_of(step).peer, step.what == pipelining::operation::send};
  };
  std::vector<direction> first_of(static_cast<std::size_t>(at.work.lanes_of(at.device)),
                                  direction{1 << 20, false});
  std::vector<std::pair<int, int>> groups; // the first item, and the end
  for (int i = 0; i < static_cast<int>(steps.size());) {
    int const end = pipelining::detail::end_of_group(steps, i);
    for (; i < end && steps[static_cast<std::size_t>(i)].what != pipelining::operation::run; ++i) {
      pipelining::item const& step = steps[static_cast<std::size_t>(i)];
      direction& first = first_of[static_cast<std::size_t>(step.lane)];
      first = std::min(first, direction_of(step));
      if (groups.empty() || groups.back().second != end)
        groups.emplace_back(i, end);
    }
    i = end;
  }
  auto const item_at = [&steps](int i) -> pipelining::item const& {
    return steps[static_cast<std::size_t>(i)];
  };
  auto const lane_of = [&](std::pair<int, int> const& group) {
    return first_of[static_cast<std::size_t>(item_at(group.first).lane)];
  };
  std::stable_sort(groups.begin(), groups.end(), [&](auto const& one, auto const& other) {
    return lane_of(one) < lane_of(other);
  });
  std::vector<int> members;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto const& group = groups[g];
    if (g == 0 || lane_of(groups[g - 1]) != lane_of(group)) {
      sink.word("device");
      sink.number(at.device);
      sink.word("lane");
      sink.end_line();
    }
    members.clear();
    for (int i = group.first; i < group.second; ++i)
      members.push_back(i);
    std::stable_sort(members.begin(), members.end(), [&](int one, int other) {
      return direction_of(item_at(one)) < direction_of(item_at(other));
    });
    if (at.work.exchange_at(item_at(group.first)) == pipelining::nothing)
      sink.word("group");
    else
      sink.word("exchange");
    sink.end_line();
    for (int const i : members) {
      pipelining::item const& step = item_at(i);
      at.write_name(sink, step);
      sink.word("bytes");
      sink.number(at.work.uses_of(step)[0].bytes);
      sink.end_line();
    }
  }
}

//! What starts together: one item, the two halves of a composite pass, the messages of a group.
struct step_node {
  int first = 0;
  int end = 0;
  int lead = 0; //!< the item with the lowest name
  int stream = 0;
  int before = pipelining::nothing; //!< of another engine: what computes before it in the program
  device_text::sort_key key{};      //!< of `lead`
  int first_need = 0; //!< into the list of nodes that must be complete, without implied ones
  int need_count = 0;
};

//! The nodes of a device, with the transitive reduction of what the order of streams and the waits
//! say together.
struct node_list {
  std::vector<step_node> nodes;
  std::vector<int> needs;

  explicit node_list(device_text const& at) {
    auto const steps = at.steps();
    auto const streams = static_cast<std::size_t>(at.work.streams(at.device));
    std::vector<int> node_of(steps.size());
    std::vector<int> tail(streams, pipelining::nothing);
    std::vector<int> clocks; // [nodes][streams], the last node of each stream that is complete
    std::vector<int> known;
    int computed = pipelining::nothing;
    clocks.reserve(steps.size() * streams);
    for (int first = 0; first < static_cast<int>(steps.size());) {
      int const number = static_cast<int>(nodes.size());
      step_node& made = nodes.emplace_back();
      made.first = made.lead = first;
      made.end = first = pipelining::detail::end_of_group(steps, first);
      made.stream = steps[static_cast<std::size_t>(made.first)].stream();
      made.before = made.stream == 0 ? pipelining::nothing : computed;
      computed = made.stream == 0 ? number : computed;
      known.clear();
      if (int const last = tail[static_cast<std::size_t>(made.stream)]; last != pipelining::nothing)
        known.push_back(last);
      for (int i = made.first; i < made.end; ++i) {
        pipelining::item const& step = steps[static_cast<std::size_t>(i)];
        if (auto const key = at.key_of(step); i == made.first || key < made.key) {
          made.key = key;
          made.lead = i;
        }
        node_of[static_cast<std::size_t>(i)] = number;
        for (int const wait : at.work.waits_of(step))
          known.push_back(node_of[static_cast<std::size_t>(wait)]);
      }
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      made.first_need = static_cast<int>(needs.size());
      clocks.resize(clocks.size() + streams, pipelining::nothing);
      int* const mine = clocks.data() + static_cast<std::size_t>(number) * streams;
      for (int const one : known) {
        auto const stream = static_cast<std::size_t>(nodes[static_cast<std::size_t>(one)].stream);
        bool const implied = std::any_of(known.begin(), known.end(), [&](int other) {
          return other != one && clocks[static_cast<std::size_t>(other) * streams + stream] >= one;
        });
        if (!implied)
          needs.push_back(one);
        int const* const theirs = clocks.data() + static_cast<std::size_t>(one) * streams;
        for (std::size_t s = 0; s < streams; ++s)
          mine[s] = std::max(mine[s], theirs[s]);
        mine[stream] = std::max(mine[stream], one);
      }
      made.need_count = static_cast<int>(needs.size()) - made.first_need;
      tail[static_cast<std::size_t>(made.stream)] = number;
    }
  }
  [[nodiscard]] step_node const& operator[](int number) const {
    return nodes[static_cast<std::size_t>(number)];
  }
  [[nodiscard]] std::span<int> needs_of(step_node const& of) {
    return {needs.data() + of.first_need, static_cast<std::size_t>(of.need_count)};
  }
};

//! Nodes in a topological order: of several that may follow, the one with the lowest name.
[[nodiscard]] inline std::vector<int> canonical_order(node_list& list) {
  auto const count = list.nodes.size();
  std::vector<int> open(count);
  std::vector<int> readers(list.needs.size());
  std::vector<int> ends(count + 1); // of the readers of each node
  for (int const needed : list.needs)
    ++ends[static_cast<std::size_t>(needed)];
  for (std::size_t i = 0, sum = 0; i <= count; ++i) {
    sum += static_cast<std::size_t>(ends[i]);
    ends[i] = static_cast<int>(sum);
  }
  std::vector<int> begins = ends;
  using ready_node = std::pair<device_text::sort_key, int>;
  std::priority_queue<ready_node, std::vector<ready_node>, std::greater<>> ready;
  for (int number = 0; step_node const& node : list.nodes) {
    open[static_cast<std::size_t>(number)] = node.need_count;
    for (int const needed : list.needs_of(node))
      readers[static_cast<std::size_t>(--begins[static_cast<std::size_t>(needed)])] = number;
    if (node.need_count == 0)
      ready.emplace(node.key, number);
    ++number;
  }
  std::vector<int> order;
  while (!ready.empty()) {
    auto const number = static_cast<std::size_t>(ready.top().second);
    ready.pop();
    order.push_back(static_cast<int>(number));
    for (int i = begins[number]; i < ends[number]; ++i) {
      int const reader = readers[static_cast<std::size_t>(i)];
      if (--open[static_cast<std::size_t>(reader)] == 0)
        ready.emplace(list[reader].key, reader);
    }
  }
  return order;
}

//! Slots under new names, by first use in the text.
class slot_names {
public:
  int of(int pool, int index) {
    auto& names = names_[static_cast<std::size_t>(pool)];
    if (static_cast<std::size_t>(index) >= names.size())
      names.resize(static_cast<std::size_t>(index) + 1, pipelining::nothing);
    int& name = names[static_cast<std::size_t>(index)];
    if (name == pipelining::nothing)
      name = counts_[static_cast<std::size_t>(pool)]++;
    return name;
  }

private:
  std::array<std::vector<int>, pipelining::detail::slot_classes> names_{};
  std::array<int, pipelining::detail::slot_classes> counts_{};
};

//! The slots of an item: what it reads and makes in the order of its neighbours, then what it
//! keeps. Those of totals and tied gradients are given by stage and have their own numbers.
template <class Sink>
void write_slots(Sink& sink,
                 device_text const& at,
                 pipelining::item const& step,
                 slot_names& names) {
  auto const write = [&](label const& word, pipelining::detail::slot_place place) {
    for (pipelining::use const& one : at.work.uses_of(step)) {
      if (one.at != place)
        continue;
      int const pool = static_cast<int>(one.of);
      sink.word(word);
      sink.word(at.labels.of_pool(pool));
      sink.number(step.about == pipelining::detail::subject::pass ? names.of(pool, one.index)
                                                                  : one.index);
    }
  };
  using enum pipelining::detail::slot_place;
  write("in", inputs);
  write("out", outputs);
  for (auto const kept : {activation, state, state_gradient, weight_input})
    write("keep", kept);
  if (int const rows = pipelining::detail::rows_of(at.work, step); rows > 0) {
    sink.word("rows");
    sink.number(rows);
  }
  if (step.completes_stage)
    sink.word("completes_gradients");
}

//! The items of a device in that order.
template <class Sink>
void write_dependence(Sink& sink, device_text const& at) {
  auto const steps = at.steps();
  auto const item_at = [&steps](int i) -> pipelining::item const& {
    return steps[static_cast<std::size_t>(i)];
  };
  node_list list(at);
  sink.word("device");
  sink.number(at.device);
  sink.end_line();
  slot_names names;
  std::vector<int> members;
  for (int const number : canonical_order(list)) {
    step_node const& next = list[number];
    members.clear();
    for (int i = next.first; i < next.end; ++i)
      members.push_back(i);
    if (item_at(next.first).what != pipelining::operation::run) // halves of a pass have an order
      std::sort(members.begin(), members.end(), [&](int one, int other) {
        return at.key_of(item_at(one)) < at.key_of(item_at(other));
      });
    for (int const i : members) {
      if (i != members.front())
        sink.word("with");
      at.write_name(sink, item_at(i));
      write_slots(sink, at, item_at(i), names);
    }
    auto const needs = list.needs_of(next);
    std::sort(needs.begin(), needs.end(), [&list](int one, int other) {
      return list[one].key < list[other].key;
    });
    for (int const needed : needs) {
      sink.word("after");
      at.write_name(sink, item_at(list[needed].lead));
    }
    if (next.before != pipelining::nothing) {
      sink.word("posted behind");
      at.write_name(sink, item_at(list[next.before].lead));
    }
    sink.end_line();
  }
}

} // namespace detail

//! @brief The layer *messages*: on every device what it sends and receives, with its bytes, in the
//! order of each communicator and in groups that are posted together. A message is named by its
//! datum, by stage, microbatch and chunk of its maker, and by the stage that reads it.
template <class Sink>
void write_messages(Sink& sink, flow_labels const& labels, pipelining::plan const& work) {
  for (int device = 0; device < work.over.extents.devices; ++device)
    detail::write_lanes(sink, {work, labels, device});
}

//! @brief The part of the layer *memory* that a plan has: the slots of every pool and their bytes,
//! what passes and messages put through them, and the arenas of every device. Not where pools lie.
template <class Sink>
void write_memory(Sink& sink, flow_labels const& labels, pipelining::plan const& work) {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    sink.word("device");
    sink.number(device);
    sink.word("arena");
    sink.number(work.arena_bytes_of(device));
    sink.word("host");
    sink.number(work.host_bytes_of(device));
    sink.end_line();
    std::array<std::int64_t, pipelining::detail::slot_classes> through{};
    for (pipelining::item const& step : work.program_of(device))
      for (pipelining::use const& one : work.uses_of(step))
        if (one.at == pipelining::detail::slot_place::inputs ||
            one.at == pipelining::detail::slot_place::outputs)
          through[static_cast<std::size_t>(one.of)] += one.bytes;
    for (int const pool : labels.sorted) {
      auto const& layout = work.layout(device, static_cast<pipelining::slot_class>(pool));
      if (layout.count == 0)
        continue;
      sink.word(labels.of_pool(pool));
      sink.word("slots");
      sink.number(layout.count);
      sink.word("bytes");
      sink.number(layout.bytes);
      sink.word("through");
      sink.number(through[static_cast<std::size_t>(pool)]);
      sink.end_line();
    }
  }
}

//! @brief The layer *dependence*: the items of every device, each with its slots, with the items
//! that it waits for, and with the pass before which it stands in the program.
//!
//! Waits are the transitive reduction of the order of streams and of the plan's waits, which is the
//! same for all plans with the same closure. Items stand in a topological order of it, of several
//! the one with the lowest name first, and slots have names in the order of their first use there.
//! Messages of a group and halves of a composite pass are one item: they start together.
template <class Sink>
void write_dependence(Sink& sink, flow_labels const& labels, pipelining::plan const& work) {
  for (int device = 0; device < work.over.extents.devices; ++device)
    detail::write_dependence(sink, {work, labels, device});
}

} // namespace support
