// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <tests/support/slow_checker.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

struct entry {
  pp::pass what;
  double start;
  double end;
};
using rows = std::vector<std::vector<entry>>;

rows split(pp::timetable_view table) {
  rows result(static_cast<std::size_t>(table.over.extents.devices));
  for (std::size_t device = 0; device < result.size(); ++device)
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
      result[device].push_back({table.passes[i], table.starts[i], table.ends[i]});
  return result;
}

pp::dynamic_timetable join(rows const& from, pp::timetable_view like) {
  pp::dynamic_timetable table{.over = like.over.copy(), .latency = like.latency, .offsets = {0}};
  for (auto const& row : from) {
    for (entry const& one : row) {
      table.passes.push_back(one.what);
      table.starts.push_back(one.start);
      table.ends.push_back(one.end);
    }
    table.offsets.push_back(static_cast<int>(table.passes.size()));
  }
  return table;
}

class mutator {
public:
  explicit mutator(unsigned seed) : random_(seed) {}

  void change(rows& table) {
    switch (below(9)) {
    case 0: swap(table); break;
    case 1: drop(any_row(table)); break;
    case 2: duplicate(table); break;
    case 3: move_device(table); break;
    case 4: shift(any_entry(table)); break;
    case 5: stretch(any_entry(table)); break;
    case 6: rename(any_entry(table).what); break;
    case 7: reorder(any_row(table)); break;
    default: break_time(any_entry(table)); break;
    }
  }

private:
  std::size_t below(std::size_t count) { return random_() % count; }
  std::vector<entry>& any_row(rows& table) { return table[below(table.size())]; }
  entry& any_entry(rows& table) {
    auto& row = any_row(table);
    return row[below(row.size())];
  }
  auto place(std::vector<entry>& row) {
    return row.begin() + static_cast<std::ptrdiff_t>(below(row.size()));
  }

  // Two entries change their passes, their times, or both.
  void swap(rows& table) {
    auto& row = any_row(table);
    entry& one = *place(row);
    entry& other = below(4) == 0 ? any_entry(table) : *place(row);
    std::size_t const what = below(3);
    if (what != 0)
      std::swap(one.what, other.what);
    if (what == 1)
      return;
    std::swap(one.start, other.start);
    std::swap(one.end, other.end);
  }
  // Neighbours change places and keep the time that the first began and the last ended.
  void reorder(std::vector<entry>& row) {
    std::size_t const at = below(row.size() - 1);
    entry& one = row[at];
    entry& other = row[at + 1];
    double const first = one.end - one.start;
    double const end = other.end;
    double const begin = one.start;
    std::swap(one.what, other.what);
    if (begin == other.start)
      return; // the halves of a composite pass
    one.end = begin + (end - other.start);
    one.start = begin;
    other.start = end - first;
  }
  void drop(std::vector<entry>& row) { row.erase(place(row)); }
  void duplicate(rows& table) {
    entry const copy = any_entry(table);
    auto& row = any_row(table);
    row.insert(place(row), copy);
  }
  void move_device(rows& table) {
    auto& from = any_row(table);
    auto const at = place(from);
    entry const moved = *at;
    from.erase(at);
    auto& to = any_row(table);
    auto where = to.begin();
    while (where != to.end() && where->start < moved.start)
      ++where;
    to.insert(where, moved);
  }
  double amount() {
    double const steps[] = {0.125, 0.5, 1, 3, 20};
    return steps[below(5)] * (below(2) == 0 ? 1 : -1);
  }
  void shift(entry& one) {
    double const by = amount();
    one.start += by;
    one.end += by;
  }
  void stretch(entry& one) { (below(2) == 0 ? one.start : one.end) += amount(); }
  void rename(pp::pass& what) {
    switch (below(5)) {
    case 0: what.kind = static_cast<pp::pass_kind>(below(4)); break;
    case 1: what.stage = changed(what.stage); break;
    case 2: what.microbatch = changed(what.microbatch); break;
    case 3: what.chunk = changed(what.chunk); break;
    default: what.overlapped = !what.overlapped; break;
    }
  }
  std::uint16_t changed(std::uint16_t number) {
    return static_cast<std::uint16_t>(number + (below(2) == 0 ? 1 : -1));
  }
  void break_time(entry& one) {
    double const broken[] = {pp::detail::never,
                             std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()};
    double const time = broken[below(3)];
    std::size_t const which = below(3);
    if (which != 0)
      one.start = time;
    if (which != 1)
      one.end = time;
  }

  std::mt19937 random_;
};

std::vector<pp::dynamic_timetable> sound_timetables() {
  std::vector<pp::dynamic_timetable> tables;
  pp::uniform_cost const costs[] = {{}, {2, 3, 1, 0.5}, {1, 2, 1, 0, 2.5}};
  for (pp::uniform_cost const& cost : costs)
    for (int const devices : {1, 2, 3})
      for (int const microbatches : {2, 5}) {
        pp::pipeline_size const size{devices, microbatches};
        tables.push_back(pp::make_timetable<pp::GPipe>(size, cost));
        tables.push_back(pp::make_timetable<pp::OneFOneB>(size, cost));
        tables.push_back(pp::make_timetable<pp::Seq1F1B<2>>(size, cost));
        tables.push_back(pp::make_timetable<pp::ZeroBubbleH1>(size, cost));
        tables.push_back(pp::make_timetable<pp::ZeroBubbleH2>(size, cost));
        tables.push_back(pp::make_timetable<pp::ZeroBubbleAuto<1>>(size, cost));
        tables.push_back(pp::make_timetable<pp::ZeroBubbleInterleaved<2>>(size, cost));
        tables.push_back(pp::make_timetable<pp::DualPipeV<>>(size, cost));
        tables.push_back(pp::make_timetable<pp::Interleaved<2>>(size, cost));
        if (devices == 2)
          tables.push_back(pp::make_timetable<pp::DualPipe<>>(size, cost));
      }
  return tables;
}

int peak_chunks(pp::timetable_view table) {
  int peak = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    peak = std::max(peak, pp::peak_activation_chunks(table, device));
  return peak;
}

} // namespace

TEST_CASE("verify judges changed timetables as a slow checker does") {
  auto const tables = sound_timetables();
  mutator mutate(20261);
  int wrong = 0;
  int still_sound = 0;
  constexpr int changes = 100'000;
  for (int i = 0; i < changes; ++i) {
    auto const& table = tables[static_cast<std::size_t>(i) % tables.size()];
    rows changed = split(table);
    mutate.change(changed);
    auto const result = join(changed, table);
    int const limit = peak_chunks(table) - (i % 7 == 0 ? 1 : 0);
    bool const expected = support::sound(result, limit);
    still_sound += expected ? 1 : 0;
    if (static_cast<bool>(pp::verify(result, limit)) == expected)
      continue;
    ++wrong;
    CAPTURE(i);
    CHECK_MESSAGE(
      wrong > 5, pp::describe(pp::verify(result, limit), result.over), " -- expected ", expected);
  }
  CHECK(wrong == 0);
  CHECK(still_sound > changes / 20);
  CHECK(still_sound < changes / 2);
}

TEST_CASE("the slow checker and verify agree on timetables that nobody changed") {
  for (auto const& table : sound_timetables()) {
    int const peak = peak_chunks(table);
    CHECK(support::sound(table, peak));
    CHECK_FALSE(support::sound(table, peak - 1));
    CHECK(pp::verify(table, peak));
    CHECK(pp::verify(table, peak - 1).broken == pp::report::rule::over_memory);
  }
}
