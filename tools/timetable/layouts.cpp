// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "layouts.hpp"

#include <pipe/flow/pass.hpp>
#include <pipe/planner/cut/layout.hpp>

#include <stdexcept>

namespace pp = pipelining;

namespace examples {

std::vector<std::string> read_stages(std::string_view option, std::string_view word) {
  try {
    return pp::read_layout(word);
  } catch (std::invalid_argument const& error) {
    throw usage_error(std::string(option) + ": " + error.what());
  }
}

pp::cut_costs costs_of_layout(stage_layout const& layout) {
  int const count = static_cast<int>(layout.stages.size());
  pp::cut_costs result{
    count, 1, pp::cost_table({.devices = count}, {0, 0, 0, layout.layer.communication})};
  for (int stage = 0; stage < count; ++stage) {
    double layers = 0;
    for (char const part : layout.stages[static_cast<std::size_t>(stage)])
      layers += part == 'E'   ? layout.embedding
                : part == 'm' ? layout.module
                : part == 'L' ? layout.output
                              : 1;
    for (pp::timed_kind const& timed : result.times.kinds())
      result.times.set(timed.kind,
                       stage,
                       0,
                       layers * layout.layer.duration(pp::row_writer::make(timed.kind, 0, 0)));
  }
  return result;
}

pp::cost_table costs_of_stages(command const& asked, pp::shape const& extents) {
  int const here = pp::stages(extents);
  int const there = asked.measured->stages;
  if (!asked.layout.text.empty() && here != there)
    throw std::invalid_argument("this pipeline has " + std::to_string(here) +
                                " stages, the layout has " + std::to_string(there));
  return pp::costs_for(*asked.measured, extents);
}

} // namespace examples
