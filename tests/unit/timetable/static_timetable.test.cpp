// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <span>

namespace pp = pipelining;

namespace {

constexpr auto seq1f1b = pp::timetable<pp::Seq1F1B<4>, 8, 32>;
static_assert(pp::verify(seq1f1b));
static_assert(pp::peak_activations(seq1f1b) == pp::ratio{11, 4});
static_assert(!pp::verify<10>(seq1f1b));
static_assert(pp::verify<10>(seq1f1b).broken == pp::report::rule::over_memory);
static_assert(pp::verify<11>(seq1f1b));

struct measured {
  static constexpr pp::uniform_cost value{10, 12, 8, 1};
};
static_assert(pp::verify(pp::timetable<pp::OneFOneB, 8, 32, measured>));

//! Messages that take other times between other devices.
struct far_neighbours {
  static constexpr double times[9] = {0, 1, 9, 2, 0, 5, 9, 0.5, 0};

  [[nodiscard]] constexpr double duration(pp::pass const& what) const {
    return pp::uniform_cost{4, 5, 3}.duration(what);
  }
  [[nodiscard]] constexpr double latency() const { return 1000; } // of no link
  [[nodiscard]] constexpr std::span<double const> links() const { return times; }
};
struct unequal_links {
  static constexpr far_neighbours value{};
};
static_assert(pp::verify(pp::timetable<pp::OneFOneB, 3, 7, unequal_links>));

void check_same(pp::timetable_view made, pp::timetable_view constant) {
  REQUIRE(made.size() == constant.size());
  CHECK(std::equal(made.passes, made.passes + made.size(), constant.passes));
  CHECK(std::equal(made.starts, made.starts + made.size(), constant.starts));
  CHECK(std::equal(made.ends, made.ends + made.size(), constant.ends));
}

} // namespace

TEST_CASE("the compiler and the program make the same timetables") {
  check_same(pp::make_timetable<pp::Seq1F1B<4>>({8, 32}), seq1f1b);
  check_same(pp::make_timetable<pp::GPipe>({4, 8}), pp::timetable<pp::GPipe, 4, 8>);
  check_same(pp::make_timetable<pp::OneFOneB>({8, 32}, measured::value),
             pp::timetable<pp::OneFOneB, 8, 32, measured>);
  check_same(pp::make_timetable<pp::OneFOneB>({3, 7}, unequal_links::value),
             pp::timetable<pp::OneFOneB, 3, 7, unequal_links>);
  pp::timetable_view const linked = pp::timetable<pp::OneFOneB, 3, 7, unequal_links>;
  CHECK(pp::makespan(linked) < 1000);
  CHECK(pp::verify(linked));
}

TEST_CASE("a timetable of 2,048 passes is within the default limits of compilers") {
  check_same(pp::make_timetable<pp::OneFOneB>({16, 64}), pp::timetable<pp::OneFOneB, 16, 64>);
  static_assert(pp::verify(pp::timetable<pp::OneFOneB, 16, 64>));
}
