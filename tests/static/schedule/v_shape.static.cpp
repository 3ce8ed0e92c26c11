// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// V shapes that the compiler makes, reorders and checks within its default limits.
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

namespace pp = pipelining;

// bubble max(6P - 1 - 3m, 4P - 3m + 2 ceil(m / 2), 0) with unit costs, m activations
constexpr auto half = pp::timetable<pp::VHalf, 8, 16>;
static_assert(pp::verify<10>(half));
static_assert(pp::peak_activations(half) == pp::ratio{10, 1});
static_assert(pp::span_of(half) == 6 * 16 + 17);

constexpr auto least = pp::timetable<pp::VMin, 8, 16>;
static_assert(pp::verify<8>(least));
static_assert(pp::span_of(least) == 6 * 16 + 23);

constexpr auto zero = pp::timetable<pp::ZeroBubbleV, 8, 16>;
static_assert(pp::verify<16>(zero));
static_assert(pp::span_of(zero) == 6 * 16);
static_assert(pp::makespan(zero) == 6 * 16 + 7);

constexpr auto limited = pp::timetable<pp::detail::SweptVAuto<12>, 8, 16>;
static_assert(pp::verify<12>(limited));
static_assert(pp::span_of(limited) == 6 * 16 + 11);

// Four chunks per sequence: less memory than V-Half's, a fifth of its bubble.
constexpr auto chunked = pp::timetable<pp::VShape<pp::v_half_offsets, 4>, 4, 8>;
static_assert(pp::verify<12>(chunked));
static_assert(pp::peak_activations(chunked) == pp::ratio{3, 1});
static_assert(pp::span_of(chunked) <= 4 * (6 * 8 + 1));
