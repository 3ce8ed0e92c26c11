// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! The slots of a block of ChronosPipe's strides.
template <int Legs>
struct laid_out {
  std::vector<int> slots;
  pp::building_block block;

  explicit laid_out(int devices)
      : slots(static_cast<std::size_t>(3 * Legs * devices)),
        block{.extents = {.devices = devices, .stages_per_device = Legs}, .slots = slots.data()} {
    pp::strides<Legs> own{.fused = true};
    for (int leg = 0; leg < Legs; ++leg) {
      own.stride[leg] = pp::detail::chronos_strides.stride[0];
      own.stride[Legs + leg] = pp::detail::chronos_strides.stride[2];
    }
    own.lay_out(block);
  }
  laid_out(laid_out const&) = delete;
};

template <int Legs>
void check_block(std::istringstream& line, int devices) {
  laid_out<Legs> const own(devices);
  int peak = 0;
  int period = 0;
  line >> peak >> period;
  CHECK(pp::detail::peak_of(own.block) == peak);
  CHECK(own.block.interval == period);
  for (int leg = 0; leg < Legs; ++leg) {
    int slot = 0;
    line >> slot;
    CHECK(own.block.forward(leg * devices) == slot);
  }
  for (int leg = Legs; leg-- > 0;) {
    int slot = 0;
    line >> slot;
    CHECK(own.block.backward(leg * devices + devices - 1) == slot);
  }
  CHECK(line);
}

int most_held(pp::timetable_view table) {
  int most = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    most = std::max(most, pp::peak_activation_chunks(table, device));
  return most;
}

int law_of_peak(int devices) {
  return (3 * devices + 2) / 2 + (devices % 6 == 5 ? 1 : 0);
}

bool is_backward(pp::pass const& what) {
  return what.kind == pp::pass_kind::backward;
}

double bubble(pp::timetable_view table) {
  return pp::makespan(table) - pp::busy(table, 0);
}

} // namespace

TEST_CASE("ChronosPipe's block is that of the golden file") {
  for (std::string const& text : support::golden_lines("golden/families/chronos_block.txt")) {
    CAPTURE(text);
    std::istringstream line(text);
    int devices = 0;
    int legs = 0;
    line >> devices >> legs;
    if (legs == 1)
      check_block<1>(line, devices);
    else
      check_block<2>(line, devices);
  }
}

TEST_CASE("ChronosPipe's block follows its laws up to 64 devices") {
  for (int devices = 2; devices <= 64; ++devices) {
    laid_out<2> const own(devices);
    CAPTURE(devices);
    CHECK((own.block.forward(devices) - own.block.forward(0)) % 6 == 3);
    CHECK(pp::detail::peak_of(own.block) == law_of_peak(devices));
  }
}

namespace {

template <class Schedule>
void check_laws(int devices) {
  for (int const microbatches : {1, devices, 2 * devices + 1, 4 * devices})
    for (pp::uniform_cost const& cost :
         {pp::uniform_cost{}, pp::uniform_cost{10, 12, 8, 1}, pp::uniform_cost{1, 0.5, 0.5}}) {
      pp::pipeline_size const size{devices, microbatches};
      auto const table = pp::make_timetable(Schedule{}, size, cost); // verified
      CAPTURE(devices);
      CAPTURE(microbatches);
      CHECK(most_held(table) <= law_of_peak(devices));
      if (cost.forward > 1 || cost.backward_input < 1 || microbatches < devices)
        continue;
      CHECK(bubble(table) >= bubble(pp::make_timetable(pp::Interleaved<2>{}, size)));
      CHECK(bubble(table) <= 2 * bubble(pp::make_timetable(pp::OneFOneB{}, size)));
    }
}

} // namespace

TEST_CASE("ChronosPipe holds what its block does, at any costs, for a bubble within its bounds") {
  for (int devices = 1; devices <= 16; ++devices)
    check_laws<pp::detail::SweptChronosPipe>(devices);
  for (int const devices : {2, 5, 16})
    check_laws<pp::ChronosPipe>(devices);
}

TEST_CASE("recomputing the first stages alone leaves ChronosPipe the activations of the second") {
  using recomputed = pp::with_recompute<pp::ChronosPipe, pp::recompute::first_stages>;
  for (int devices = 2; devices <= 12; ++devices) {
    pp::pipeline_size const size{devices, 3 * devices};
    auto const plain = pp::make_timetable(pp::ChronosPipe{}, size);
    auto const table = pp::make_timetable(recomputed{}, size);
    CAPTURE(devices);
    int second = 0; // of the stages P to 2P - 1 alone
    for (int device = 0; device < devices; ++device) {
      int held = 0;
      for (pp::pass const& what : pp::timetable_view(plain).row(device))
        if (what.stage >= devices)
          second = std::max(second, held += what.kind == pp::pass_kind::forward ? 1 : -1);
    }
    CHECK(most_held(table) <= second + 1);
    CHECK(bubble(table) <= bubble(plain));
    CHECK(pp::prove(pp::lower(table)));
    for (pp::pass const& what : table.passes)
      CHECK((what.kind == pp::pass_kind::checkpointed_forward) ==
            (what.stage < devices && !is_backward(what) && what.kind != pp::pass_kind::recompute));
  }
}
