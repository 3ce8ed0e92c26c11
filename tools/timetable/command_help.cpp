// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/layout.hpp>
#include <pipe/view/append.hpp>

#include <string>

#include "command_line.hpp"

namespace examples {

std::string describe_setting(command const& asked) {
  // A time as it was given; means have more digits than anybody reads.
  auto const time = [&asked](double value) {
    std::string text;
    if (asked.measured)
      pipelining::append_significant(text, value, 4);
    else
      pipelining::append(text, value);
    return text;
  };
  std::string text;
  pipelining::append(
    text, asked.choice.devices, " devices, ", asked.choice.microbatches, " microbatches; ");
  if (!asked.layout.text.empty())
    pipelining::append(text, "layout ", pipelining::write_layout(asked.layout.stages));
  if (asked.measured)
    pipelining::append(
      text, asked.layout.text.empty() ? "costs from " + asked.cost_file : "", ", in the mean ");
  pipelining::append(
    text, "a device's share of the model takes forward ", time(asked.cost.forward));
  pipelining::append(text, ", backward_input ", time(asked.cost.backward_input));
  pipelining::append(text, ", backward_weight ", time(asked.cost.backward_weight));
  pipelining::append(text, "; a message takes ", time(asked.cost.communication), "\n");
  return text;
}

} // namespace examples
