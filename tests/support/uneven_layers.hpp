// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reads golden/search/uneven_layers.txt: layers, and their best cut under 1F1B.

#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace support {

struct uneven_layers {
  pipelining::pipeline_size size;
  std::vector<pipelining::layer_cost> layers; //!< with fused backward passes
  double makespan = 0;                        //!< the least of all cuts
  std::vector<int> cut;                       //!< that has it
};

//! @param line such as "4 8 : 1/2 1/2 ... 4/8 : 162 : 4 3 3 2".
inline uneven_layers read_uneven_layers(std::string const& line) {
  uneven_layers result;
  std::istringstream in(line);
  std::string word;
  in >> result.size.devices >> result.size.microbatches >> word;
  while (in >> word && word != ":") {
    std::size_t const slash = word.find('/');
    result.layers.push_back(
      {std::stod(word.substr(0, slash)), std::stod(word.substr(slash + 1)), 0});
  }
  in >> result.makespan >> word;
  for (int count = 0; in >> count;)
    result.cut.push_back(count);
  return result;
}

} // namespace support
