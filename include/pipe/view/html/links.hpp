// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the entries of a timetable wait for, and from which entry to which memory is held,
//! as the flow declares it: what stays when other costs move the times. Used by
//! <pipe/view/html.hpp>.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! An entry that another waits for.
struct entry_need {
  int entry;
  //! Which of `group_times` lies between them; null: the time of a message.
  double group_times::*between;
};

//! A slot of a pool, from the start of an entry to the last end of others; what arrives is held
//! from the end of its maker on, on the device of those that read it.
struct slot_hold {
  int pool;
  int from;
  bool arrives;
  std::vector<int> until; //!< of each row one; empty: to the end of the iteration
};

//! Walks over the entries of a timetable by what its flow declares.
class table_links {
public:
  //! @pre `verify` accepts the timetable
  explicit table_links(timetable_view const& table)
      : table_(table), over_(table.over), flow_(*table.over.declared),
        makers_(static_cast<std::size_t>(pass_indices(over_)), -1) {
    for (int row = 0; row < table.rows(); ++row)
      for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i) {
        rows_.push_back(row);
        for (int const made : links_of(over_, table.passes[i]).made)
          if (made != kind_links::none)
            makers_[static_cast<std::size_t>(line_index(made, table.passes[i]))] = i;
      }
  }

  //! What each entry waits for. @complexity O(n) for n entries, O(n P) with groups
  [[nodiscard]] std::vector<std::vector<entry_need>> needs() const {
    std::vector<std::vector<entry_need>> result;
    for (int i = 0; i < table_.size(); ++i) {
      pass const& what = table_.passes[i];
      dependency_list const list = dependencies(over_, what);
      result.emplace_back();
      for (int k = 0; k < list.count; ++k) {
        int const maker = makers_[static_cast<std::size_t>(list.index(k))];
        if (maker != -1)
          result.back().push_back({maker, between(list.stage(k), what.stage)});
      }
    }
    return result;
  }

  //! Which memory is held. The rules are those by which plans take and give back slots; a slot that
  //! is sent stays taken through the next pass of its row. @complexity as above
  [[nodiscard]] std::vector<slot_hold> holds() const {
    std::vector<slot_hold> result;
    std::vector<instance> all(static_cast<std::size_t>(flow_.data_count) * instances_of_datum());
    for (int i = 0; i < table_.size(); ++i)
      for (int e = 0; e < kind_of(i).effect_count; ++e)
        enter(i, kind_of(i).effects[e], all);
    for (std::size_t at = 0; at < all.size(); ++at)
      if (all[at].maker != -1)
        append_holds(flow_.data[at / instances_of_datum()], all[at], result);
    return result;
  }

private:
  struct instance {
    int maker = -1;
    std::vector<int> users{}; // the last of them gives it back
  };

  [[nodiscard]] kind_of_pass const& kind_of(int entry) const {
    return flow_[table_.passes[entry].kind];
  }
  [[nodiscard]] int line_index(int row, pass const& what) const {
    return (row * stages(over_.extents) + what.stage) * units(over_) + unit_of(over_, what);
  }
  [[nodiscard]] double group_times::*between(int from, int to) const {
    if (in_group(over_, from))
      return table_.groups.reduce >= 0 ? &group_times::reduce : nullptr;
    return in_group(over_, to) && table_.groups.broadcast >= 0 ? &group_times::broadcast : nullptr;
  }
  [[nodiscard]] std::size_t instances_of_datum() const {
    return static_cast<std::size_t>(stages(over_.extents)) *
           static_cast<std::size_t>(graph_width(over_)) * static_cast<std::size_t>(units(over_));
  }
  //! The number of an instance, of a stage and for its reader of a number.
  [[nodiscard]] std::size_t index(int of, int stage, int reader, pass const& what) const {
    datum const& one = flow_.data[of];
    int const unit = one.instance == per::microbatch ? what.microbatch : unit_of(over_, what);
    int const number = one.instance == per::reader ? reader : 0;
    auto const line = static_cast<std::size_t>(stage * graph_width(over_) + number);
    return static_cast<std::size_t>(of) * instances_of_datum() +
           line * static_cast<std::size_t>(units(over_)) + static_cast<std::size_t>(unit);
  }

  //! True for the chunk with which a kind ends in a microbatch, where chunks add to one datum.
  [[nodiscard]] bool ends_microbatch(int entry) const {
    pass const& what = table_.passes[entry];
    bool ends = true;
    for (int e = 0; e < kind_of(entry).effect_count; ++e)
      if (kind_of(entry).effects[e].what == does::adds_to)
        ends = what.chunk == edge_chunk(what, kind_of(entry).effects[e].order, true);
    return ends;
  }
  //! The first or the last chunk of a microbatch in an order.
  [[nodiscard]] int edge_chunk(pass const& what, chunk_order order, bool last) const {
    return (order == chunk_order::ascending) == last ? chunks_of(over_, what.microbatch) - 1 : 0;
  }

  void enter(int entry, effect const& one, std::vector<instance>& all) const {
    pass const& what = table_.passes[entry];
    datum const& of = flow_.data[one.of];
    if (!has_slot(one.what) || of.lives == residence::nowhere ||
        (of.only_chunked && over_.extents.chunks == 1))
      return;
    if (one.stage != of_stage::own) {
      int const step = one.stage == of_stage::before  ? -1
                       : one.stage == of_stage::after ? 1
                                                      : beside;
      for (int k = 0; k < neighbours(over_, what, step); ++k) {
        stage_neighbour const owner = neighbour(over_, what, step, k);
        pass maker = what;
        maker.chunk = static_cast<std::uint16_t>(owner.chunk);
        all[index(one.of, owner.stage, owner.number, maker)].users.push_back(entry);
      }
      return;
    }
    int const step = to_readers(over_.edges, flow_.reader_step[one.of]);
    int const readers = step == 0 ? 1 : neighbours(over_, what, step);
    int const count = of.instance == per::reader ? readers : std::min(readers, 1);
    for (int k = 0; k < count; ++k) {
      instance& here = all[index(one.of, what.stage, k, what)];
      if (one.what == does::makes ||
          (one.what == does::adds_to && what.chunk == edge_chunk(what, one.order, false)))
        here.maker = entry;
      else if (one.what == does::frees &&
               (of.instance != per::microbatch || ends_microbatch(entry)))
        here.users.push_back(entry);
    }
  }

  [[nodiscard]] int device_of_entry(int entry) const {
    return rows_[static_cast<std::size_t>(entry)] % over_.extents.devices;
  }
  //! What runs behind an entry and its other half, or the entry where it is the last of its row.
  [[nodiscard]] int next(int entry) const {
    int const end = table_.offsets[rows_[static_cast<std::size_t>(entry)] + 1];
    int behind = entry + 1;
    while (behind < end && table_.passes[behind].overlapped)
      ++behind;
    return behind < end ? behind : entry;
  }

  //! Of one row, the last ends last.
  void hold_until(slot_hold& hold, int user) const {
    for (int& other : hold.until)
      if (rows_[static_cast<std::size_t>(other)] == rows_[static_cast<std::size_t>(user)]) {
        other = std::max(other, user);
        return;
      }
    hold.until.push_back(user);
  }
  void append_holds(datum const& of, instance const& made, std::vector<slot_hold>& out) const {
    int const here = device_of_entry(made.maker);
    std::size_t const own = out.size();
    out.push_back({of.pool, made.maker, false, {}});
    for (int const user : made.users) {
      std::size_t at = own;
      if (int const device = device_of_entry(user); device != here) {
        for (++at; at < out.size() && device_of_entry(out[at].until[0]) != device;)
          ++at;
        if (at == out.size())
          out.push_back({of.arrives_in, made.maker, true, {}});
      }
      hold_until(out[at], user);
    }
    if (out.size() > own + 1)
      hold_until(out[own], next(made.maker));
  }

  timetable_view table_;
  pipeline_view over_;
  flow const& flow_;
  std::vector<int> makers_; // by pass_index
  std::vector<int> rows_;   // of each entry
};

} // namespace pipelining::inline v0_3::detail
