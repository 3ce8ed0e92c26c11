// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/shape.hpp>
#include <pipe/planner/cut/layout.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/read_shape.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "file_readers.hpp"
#include "reader.hpp"

namespace pp = pipelining;

namespace fuzz {
namespace {

//! What the reader gives for the text; nothing where it refuses it.
template <class Read>
auto result_of(Read const& read, std::string_view text) -> std::optional<decltype(read(text))> {
  std::optional<decltype(read(text))> result;
  (void)takes<std::invalid_argument>([&] { result.emplace(read(text)); });
  return result;
}

void check_number(double number) {
  check(number >= 0 && std::isfinite(number), "a number is negative or not finite");
}

//! All that `choose` asks of a model.
void check_predictions(pp::transformer const& shape, pp::gpu const& on) {
  pp::training_setup const setup{.sequence = 4096, .sequences = 2, .data = 2};
  if (!takes<std::invalid_argument>([&] { setup.check(shape); }))
    return;
  check_number(static_cast<double>(shape.parameters()));
  int const lengths[] = {2048, 2048};
  int const layers[] = {shape.layers, 1};
  std::vector<pp::stage_content> const content = pp::stage_content::of_layers(layers);
  pp::cost_table const times = pp::prediction{shape, setup, on, {1e-6, 1e-6, 1e-6}}.costs(
    {.devices = 2, .chunks = 2}, content, lengths);
  for (pp::cost_table::timed_kind const& kind : times.kinds())
    check_number(times.duration(pp::row_writer::make(kind.kind, 0, 0, 1)));
  pp::stage_bytes const bytes = pp::prediction{shape, setup}.bytes(content[0], lengths);
  check(bytes.activation > 0 && bytes.resident() > 0 && bytes.message > 0, "bytes are missing");
}

} // namespace

void read_cost_file(std::string_view text) {
  auto const costs = result_of([](std::string_view file) { return pp::read_costs(file); }, text);
  if (!costs)
    return;
  pp::shape const extents{.devices = costs->stages, .chunks = costs->chunks};
  pp::cut_costs const again =
    pp::read_costs(pp::write_costs(extents, costs->times, costs->links, costs->message_bytes));
  check(again.links == costs->links && again.stages == costs->stages &&
          again.chunks == costs->chunks && again.times.latency() == costs->times.latency(),
        "costs that were written are read as others");
  for (int stage = 0; stage < costs->stages; ++stage)
    for (int chunk = 0; chunk < costs->chunks; ++chunk)
      for (pp::cost_table::timed_kind const& kind : costs->times.kinds()) {
        pp::pass const what = pp::row_writer::make(kind.kind, stage, 0, chunk);
        check_number(costs->times.duration(what));
        check(again.times.duration(what) == costs->times.duration(what),
              "times that were written are read as others");
      }
  for (int const devices : {1, 2, 5})
    check_number(pp::makespan(pp::make_timetable(
      pp::OneFOneB{}, {devices, 3}, pp::costs_for(*costs, pp::OneFOneB{}.arrange(devices, 3)))));
}

void read_model_file(std::string_view text) {
  if (auto const model =
        result_of([](std::string_view file) { return pp::read_transformer(file); }, text))
    check_predictions(*model, pp::gpu::named("a100"));
}

void read_gpu_file(std::string_view text) {
  if (auto const card = result_of([](std::string_view file) { return pp::read_gpu(file); }, text))
    check_predictions(pp::transformer::named("gpt-7b"), *card);
}

void read_layout_text(std::string_view text) {
  auto const stages = result_of([](std::string_view word) { return pp::read_layout(word); }, text);
  if (!stages)
    return;
  check(!stages->empty(), "a layout has no stage");
  check(pp::read_layout(pp::write_layout(*stages)) == *stages,
        "a layout that was written is read as another one");
}

} // namespace fuzz
