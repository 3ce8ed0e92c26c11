// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "files.hpp"

#include "tools/support/file_doors.hpp"

namespace examples {

std::string read_file(std::string const& name) {
  constexpr std::size_t most = std::size_t{1} << 28;
  auto const refuse = [&name](std::string const& reason) {
    throw usage_error("cannot read " + quoted(name) + ": " + reason);
  };
  return example::bytes_of_file(name, most, "the file is larger than 256 MiB", refuse);
}

bool names_cost_file(std::string_view word) {
  return word.find('/') != word.npos || word.find(',') == word.npos;
}

pp::cut_costs read_cost_file(std::string_view option, std::string_view name, pp::flow const& of) {
  std::string const text = read_or_say<usage_error>(
    std::string(option) + " wants 3 or 4 times, F,I,W or F,I,W,COMM, or a file of costs; ",
    [&] { return read_file(std::string(name)); });
  return read_or_say<std::invalid_argument>(std::string(option) + ": cannot read " + quoted(name) +
                                              ": ",
                                            [&] { return pp::read_costs(text, of); });
}

pp::uniform_cost mean_of(pp::cost_table const& costs, pp::shape const& extents) {
  auto const of = [&](pp::pass_kind kind) {
    double sum = 0;
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int i = 0; i < costs.microbatches(); ++i)
        for (int chunk = 0; chunk < extents.chunks; ++chunk)
          sum += costs.duration(pp::row_writer::make(kind, stage, i, chunk));
    return sum / (double{1} * extents.stages() * costs.microbatches() * extents.chunks);
  };
  return {of(pp::pass_kind::forward),
          of(pp::pass_kind::backward_input),
          of(pp::pass_kind::backward_weight),
          costs.latency()};
}

std::vector<std::string> read_stages(std::string_view option, std::string_view word) {
  return read_or_say<std::invalid_argument>(std::string(option) + ": ",
                                            [&] { return pp::read_layout(word); });
}

pp::cut_costs costs_of_layout(stage_layout const& layout) {
  pp::shape const extents{.devices = static_cast<int>(layout.stages.size())};
  pp::cost_table const none(extents, pp::uniform_cost{});
  auto const time = [&layout](pp::pass const& what) {
    double layers = 0;
    for (char const part : layout.stages[what.stage])
      layers += part == 'E'   ? layout.embedding
                : part == 'm' ? layout.module
                : part == 'L' ? layout.output
                              : 1;
    return layers * layout.layer.duration(pp::row_writer::make(what.kind, 0, 0));
  };
  return {extents.devices, 1, none.reshaped(extents, layout.layer.communication, time)};
}

pp::cost_table costs_of_stages(command const& asked, pp::shape const& extents) {
  int const here = extents.stages();
  int const there = asked.measured->stages;
  if (!asked.layout.text.empty() && here != there)
    throw std::invalid_argument("this pipeline has " + std::to_string(here) +
                                " stages, the layout has " + std::to_string(there));
  return pp::costs_for(*asked.measured, extents);
}

} // namespace examples
