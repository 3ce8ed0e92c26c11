// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/plan_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

using pairs = std::vector<pp::detail::device_pair>;

int rounds_of(pairs const& edges) {
  int rounds = 0;
  for (pp::detail::device_pair const& edge : edges)
    rounds = std::max(rounds, edge.round + 1);
  return rounds;
}

void check_rounds(pairs const& edges, pairs const& coloured, int devices) {
  CHECK(edges.size() == coloured.size());
  for (int round = 0; round < rounds_of(coloured); ++round) {
    std::vector<int> busy(static_cast<std::size_t>(devices));
    for (pp::detail::device_pair const& edge : coloured)
      if (edge.round == round) {
        CHECK(++busy[static_cast<std::size_t>(edge.one)] == 1);
        CHECK(++busy[static_cast<std::size_t>(edge.other)] == 1);
      }
  }
}

//! The fewest rounds, by trying all assignments of rounds to pairs.
bool colourable(pairs const& edges, std::vector<int>& rounds_given, int rounds) {
  std::size_t const at = rounds_given.size();
  if (at == edges.size())
    return true;
  for (int round = 0; round < rounds; ++round) {
    bool free = true;
    for (std::size_t i = 0; i < at; ++i)
      free = free && (rounds_given[i] != round ||
                      (edges[i].one != edges[at].one && edges[i].one != edges[at].other &&
                       edges[i].other != edges[at].one && edges[i].other != edges[at].other));
    if (!free)
      continue;
    rounds_given.push_back(round);
    if (colourable(edges, rounds_given, rounds))
      return true;
    rounds_given.pop_back();
  }
  return false;
}

int optimum(pairs const& edges) {
  int rounds = 0;
  for (std::vector<int> given; !colourable(edges, given, rounds); given.clear())
    ++rounds;
  return rounds;
}

} // namespace

TEST_CASE("every graph of up to five devices connects in the fewest rounds") {
  pairs all;
  for (int one = 0; one < 5; ++one)
    for (int other = one + 1; other < 5; ++other)
      all.push_back({one, other, true, true});
  for (unsigned chosen = 0; chosen < 1u << all.size(); ++chosen) {
    pairs edges;
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((chosen >> i & 1u) != 0)
        edges.push_back(all[i]);
    pairs const coloured = pp::detail::connect_rounds(edges, 5);
    check_rounds(edges, coloured, 5);
    CHECK(rounds_of(coloured) == optimum(edges));
  }
}

TEST_CASE("paths take two rounds, rings of odd length three") {
  for (int const devices : {2, 3, 4, 5, 64, 1001}) {
    pairs edges;
    for (int device = 0; device + 1 < devices; ++device)
      edges.push_back({device, device + 1, true, true});
    CHECK(rounds_of(pp::detail::connect_rounds(edges, devices)) == (devices == 2 ? 1 : 2));
    if (devices < 3)
      continue;
    edges.push_back({0, devices - 1, true, false});
    CHECK(rounds_of(pp::detail::connect_rounds(edges, devices)) == 2 + devices % 2);
  }
}

TEST_CASE("a search that is given no steps still connects everything") {
  pairs edges;
  for (int one = 0; one < 9; ++one)
    for (int other = one + 1; other < 9; ++other)
      edges.push_back({one, other, true, true});
  pairs const coloured = pp::detail::connect_rounds(edges, 9, 0);
  check_rounds(edges, coloured, 9);
  CHECK(rounds_of(coloured) <= 16);
}

TEST_CASE("copies to the host are calls on streams of their own") {
  pp::uniform_cost const cost{.copy_out = 0.1, .copy_in = 0.1};
  auto const work = pp::lower(pp::make_timetable(pp::with_offload<pp::GPipe>{}, {1, 4}, cost));
  auto const copies = std::count_if(work.items.begin(), work.items.end(), pp::detail::runs_beside);
  pp::detail::call_count const calls = pp::detail::count_calls(work);
  REQUIRE(copies > 0);
  CHECK(calls.copies == copies);
  CHECK(calls.passes == 8); // requests launch nothing
  CHECK(calls.waits == static_cast<int>(work.waits.size()));
  CHECK(calls.joins == 1 + 3 * 2);
  CHECK(calls.total() == calls.waits + calls.records + calls.joins + calls.copies);
}

TEST_CASE("the bill of 1F1B by hand") {
  // Two devices, one microbatch: one activation, one gradient.
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 1});
  pp::detail::bill const pair = pp::detail::make_bill(pp::lower(table));
  CHECK(pair.communicators == 1);
  CHECK(pair.connect_rounds == 1);
  CHECK(pair.messages == 2);
  // Device 0: run, send (waits for it), receive, run (waits for it). Device 1: receive, run
  // (waits), run, send (waits). Each wait has its record; one lane has four calls around the
  // iteration.
  pp::detail::call_count const first = pp::detail::count_calls(pp::lower(table), 0);
  CHECK(first == pp::detail::call_count{2, 2, 2, 2, 0, 4});
  CHECK(pp::detail::count_calls(pp::lower(table), 1) == pp::detail::call_count{2, 2, 2, 2, 0, 4});
  CHECK(pair.calls.per_pass() == 5);
  CHECK(pp::describe(pair) == "policy pair: 1 communicator, at most 1 on a device, connected in 1 "
                              "round; 2 messages, 0 mirrored groups; 20 calls for 4 passes");
  CHECK(pp::detail::make_bill(pp::lower<pp::communicators::per_edge>(table)).communicators == 2);
  CHECK(pp::detail::make_bill(
          pp::lower<pp::communicators::one>(pp::make_timetable<pp::OneFOneB>({5, 3})))
          .communicators == 1);
}
