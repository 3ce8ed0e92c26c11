// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Files of models, GPUs and costs in which one or two values are replaced by extreme ones: each is
// refused by a sentence, or gives finite times and bytes. Sanitizers see overflows.
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/read_shape.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr std::string_view usual_model =
  R"({"layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 8,
"head_width": 128, "vocabulary": 51200, "experts": 8, "experts_per_token": 2, "ffn": 8192,
"shared_ffn": 64, "gated": 1, "tied": 0})";
constexpr std::string_view card = R"({"peak_tflops": 312, "memory_gb": 80, "link_gb_per_s": 300,
"network_gb_per_s": 25, "host_gb_per_s": 24, "gpus_per_machine": 8})";
constexpr std::string_view costs = R"({"pipelining_costs": 1, "communication": 0.5,
"message_bytes": 4096, "links": [[0, 1, 0.25, 1e-4], [1, 0, 0.25, 1e-4]],
"forward": [[1, 2], [3, 4]], "backward_input": [[2, 3], [4, 5]],
"backward_weight": [[1, 1], [1, 1]]})";

//! The file with one of its numbers replaced.
std::string spoilt(std::string text, std::mt19937_64& random) {
  constexpr std::string_view extremes[] = {"1e308",
                                           "-1e308",
                                           "1e-290",
                                           "1e400",
                                           "0",
                                           "-1",
                                           "-0",
                                           "1",
                                           "0.5",
                                           "16777216",
                                           "16777217",
                                           "2147483647",
                                           "4294967296",
                                           "1e12",
                                           "1e-12",
                                           "1e-6",
                                           "1e9",
                                           "null",
                                           "true",
                                           "\"8\"",
                                           "[]",
                                           "{}",
                                           "9223372036854775808"};
  std::vector<std::size_t> begins;
  for (std::size_t i = 1; i < text.size(); ++i)
    if ((text[i - 1] == ' ' || text[i - 1] == '[') && text[i] >= '0' && text[i] <= '9')
      begins.push_back(i);
  std::size_t const begin = begins[random() % begins.size()];
  std::size_t const end = text.find_first_of(",]}", begin);
  return text.replace(begin, end - begin, extremes[random() % std::size(extremes)]);
}

bool is_good(double number) {
  return number >= 0 && std::isfinite(number);
}

//! All that `choose` asks of a model.
void check_predictions(pp::transformer const& shape, pp::gpu const& on) {
  pp::training_setup const setup{.sequence = 4096, .sequences = 2, .data = 2};
  try {
    setup.check(shape);
  } catch (std::invalid_argument const&) {
    return;
  }
  CHECK(shape.parameters() > 0);
  pp::shape const extents{.devices = 2, .chunks = 2};
  int const lengths[] = {2048, 2048};
  int const layers[] = {shape.layers, 1};
  std::vector<pp::stage_content> const content = pp::stage_content::of_layers(layers);
  pp::cost_table const times =
    pp::prediction{shape, setup, on, {1e-6, 1e-6, 1e-6}}.costs(extents, content, lengths);
  for (pp::cost_table::timed_kind const& kind : times.kinds())
    CHECK(is_good(times.duration(pp::row_writer::make(kind.kind, 0, 0, 1))));
  pp::stage_bytes const bytes = pp::prediction{shape, setup}.bytes(content[0], lengths);
  CHECK(bytes.activation > 0);
  CHECK(bytes.resident() > 0);
  CHECK(bytes.message > 0);
}

//! Spoils a file many times; `use` has what was read.
template <class Use>
void check_all(std::string_view file, int times, Use const& use) {
  std::mt19937_64 random(31);
  int good = 0;
  int refused = 0;
  for (int i = 0; i < times; ++i) {
    std::string text = spoilt(std::string(file), random);
    if (i % 2 == 1)
      text = spoilt(text, random);
    CAPTURE(text);
    try {
      use(text);
      ++good;
    } catch (std::invalid_argument const& error) {
      CHECK(std::string_view(error.what()).find("must be finite") == std::string_view::npos);
      ++refused;
    }
  }
  CHECK(good > times / 20);
  CHECK(refused > times / 20);
}

} // namespace

TEST_CASE("extreme numbers in the file of a model are refused or counted") {
  check_all(usual_model, 600, [](std::string const& text) {
    check_predictions(pp::read_transformer(text), pp::gpu::named("a100"));
  });
}

TEST_CASE("extreme numbers in the file of a GPU are refused or counted") {
  check_all(card, 200, [](std::string const& text) {
    check_predictions(pp::transformer::named("gpt-7b"), pp::read_gpu(text));
  });
}

TEST_CASE("extreme numbers in a file of costs are refused or simulated") {
  check_all(costs, 400, [](std::string const& text) {
    pp::cut_costs const read = pp::read_costs(text);
    pp::cut_costs const again = pp::read_costs(pp::write_costs(
      {.devices = read.stages, .chunks = read.chunks}, read.times, read.links, read.message_bytes));
    CHECK(again.links == read.links);
    for (int const devices : {1, 2, 5})
      CHECK(is_good(pp::makespan(pp::make_timetable(
        pp::OneFOneB{}, {devices, 3}, pp::costs_for(read, pp::OneFOneB{}.arrange(devices, 3))))));
  });
}
