// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/text.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pp = pipelining;

namespace {

//! All activations leave at once and come back at once.
struct away_at_once {
  void operator()(int, std::vector<pp::offload::idle_activation>& all) const {
    for (pp::offload::idle_activation& one : all) {
      one.moves = true;
      one.leaves = one.made;
      one.returns = one.made + one.copy_out;
    }
  }
};

std::string written(pp::timetable_view table, pp::text_options options = {}) {
  std::string text;
  pp::write_text(text, table, {"name", {}, {}, {}}, options);
  return text;
}

} // namespace

TEST_CASE("figures, one row per device, legend") {
  CHECK(written(pp::make_timetable<pp::OneFOneB>({2, 3})) ==
        "name: devices 2, stages 2, microbatches 3, chunks 1\n"
        "cost: forward 1, backward_input 1, backward_weight 1, communication 0\n"
        "makespan 12, span 12, bubble 25 % of the span, 25 % of the makespan\n"
        "peak activations 2, weight inputs 0, in microbatches of one stage\n"
        "\n"
        "                                               peak\n"
        "device 0 |F0 F1 ......B0--- F2 B1--- ...B2--- | 2\n"
        "device 1 |...F0 B0--- F1 B1--- F2 B2--- ......| 1\n"
        "\n"
        "F forward, B backward, . idle, - goes on\n"
        "numbers: microbatch\n");
}

TEST_CASE("where backward passes are split, peaks say what waits for the second half") {
  // Device 1 runs F0 I0 F1 I1 W0 W1: both units wait at once.
  std::string const text = written(pp::make_timetable<pp::ZeroBubbleH1>({2, 2}));
  CHECK(text.find("\npeak activations 2, weight inputs 2, in microbatches of one stage\n") !=
        text.npos);
  CHECK(text.find(" peak + weight inputs\n") != text.npos);
  CHECK(text.find("| 2 + 1\n") != text.npos);
  CHECK(text.find("| 2 + 2\n") != text.npos);
}

TEST_CASE("the gap to known bounds is one more line") {
  std::string text;
  pp::timetable_caption about{"name", {}};
  about.least_makespan = 10;
  about.least_span = 9.5;
  pp::write_text(text, pp::make_timetable<pp::OneFOneB>({2, 3}), about);
  CHECK(
    text.find("\nno order of this placement and memory beats makespan 10 (gap 20 %) or span 9.5 "
              "(gap 26.32 %)\n\n") != text.npos);
}

TEST_CASE("chunks have a number of their own") {
  std::string const text = written(pp::make_timetable<pp::Seq1F1B<2>>({1, 2}));
  CHECK(text.find("|F0.0 F0.1 B0.1----- F1.0 B0.0----- F1.1 B1.1----- B1.0----- | 1") != text.npos);
}

TEST_CASE("a grid whose names need more room goes on below") {
  // 9 passes of 3 columns each: 7 would fit in 22 columns.
  std::string const text = written(pp::make_timetable<pp::OneFOneB>({2, 3}), {.width = 42});
  CHECK(text.find("          time 0\n"
                  "device 0 |F0 F1 ......B0--- |\n"
                  "device 1 |...F0 B0--- F1 B1-|\n"
                  "\n"
                  "          time 6             peak\n"
                  "device 0 |F2 B1--- ...B2--- | 2\n"
                  "device 1 |-- F2 B2--- ......| 1\n"
                  "\n"
                  "F forward, B backward, . idle, - goes on\n"
                  "numbers: microbatch\n") != text.npos);
}

TEST_CASE("every pass has its name, its numbers and its place in the bands") {
  auto const table = pp::make_timetable<pp::VHalf>({4, 8});
  std::string const text = written(table);
  CHECK(text.find("lower case: the second stage of a device\n") != text.npos);
  std::vector<std::string> rows(4); // of all bands, one after the other
  for (std::size_t at = text.find("device "); at != text.npos; at = text.find("device ", at + 1))
    if (std::size_t const from = text.find('|', at); from < text.find('\n', at))
      rows[static_cast<std::size_t>(text[at + 7] - '0')] +=
        text.substr(from + 1, text.find('|', from + 1) - from - 1);
  pp::timetable_view const view = table;
  for (int device = 0; device < 4; ++device)
    for (int i = view.offsets[device]; i < view.offsets[device + 1]; ++i) {
      pp::pass const& what = view.passes[i];
      std::string name(1, view.over.declared->letter(what.kind));
      if (what.stage >= 4) // the V comes back
        name[0] = static_cast<char>(name[0] - 'A' + 'a');
      name += std::to_string(what.microbatch) + " ";
      CHECK(rows[static_cast<std::size_t>(device)].substr(
              static_cast<std::size_t>(3 * view.starts[i]), name.size()) == name);
    }
  for (std::size_t from = 0; from < text.size(); from = text.find('\n', from) + 1)
    CHECK(text.find('\n', from) - from <= 100);
}

TEST_CASE("where columns are few, each shows the kind that runs at its middle") {
  std::string const text = written(pp::make_timetable<pp::GPipe>({1, 40}), {.width = 40});
  CHECK(text.find("device 0 |FFFFFFFBBBBBBBBBBBBB| 40") != text.npos);
  CHECK(text.find("\na letter for the pass at the middle of its column") != text.npos);
  // Forward passes end at 40 of 70, which is 11.43 of 20 columns.
  std::string const other =
    written(pp::make_timetable<pp::GPipe>({1, 40}, pp::uniform_cost{1, 0.5, 0.25}), {.width = 40});
  CHECK(other.find("device 0 |FFFFFFFFFFFBBBBBBBBB| 40") != other.npos);
}

TEST_CASE("engines that copy have a row each") {
  pp::uniform_cost const cost{.copy_out = 1, .copy_in = 1};
  CHECK(written(pp::make_timetable<pp::with_offload<pp::GPipe, away_at_once>>({1, 2}, cost)) ==
        "name: devices 1, stages 1, microbatches 2, chunks 1\n"
        "cost: forward 1, backward_input 1, backward_weight 1, communication 0\n"
        "makespan 8, span 8, bubble 25 % of the span, 25 % of the makespan\n"
        "peak activations 2, weight inputs 0, in microbatches of one stage\n"
        "\n"
        "                                   peak\n"
        "device 0 |H0 H1 ...B0--- ...B1--- | 2\n"
        "copy out |...O0 O1 ...............|\n"
        "copy in  |......L0 ......L1 ......|\n"
        "\n"
        "B backward, H offloaded_forward, O copy_out, L copy_in, . idle, - goes on\n"
        "numbers: microbatch\n");
}

TEST_CASE("kinds that do the same have the same colour") {
  pp::uniform_cost const cost{.copy_out = 1, .copy_in = 1};
  std::string const text = written(
    pp::make_timetable<pp::with_offload<pp::GPipe, away_at_once>>({1, 2}, cost), {.colour = true});
  CHECK(text.find("48;5;117mH0") != text.npos);
  CHECK(text.find("48;5;216mB0") != text.npos);
  CHECK(text.find("48;5;250mO0") != text.npos);
  CHECK(text.find("48;5;250mL0") != text.npos);
}

TEST_CASE("colour marks the same cells") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 3});
  std::string text = written(table, {.colour = true});
  CHECK(text.find("\x1b[38;5;16;48;5;117mF0\x1b[0m ") != text.npos);
  for (std::size_t at = text.find('\x1b'); at != text.npos; at = text.find('\x1b'))
    text.erase(at, text.find('m', at) + 1 - at);
  CHECK(text == written(table));
}

TEST_CASE("times that vanish are drawn as none") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 2}, pp::uniform_cost{0, 0, 1e-320});
  std::string const text = written(table);
  CHECK(text.find("inf") == text.npos);
  CHECK(text.find("nan") == text.npos);
}
