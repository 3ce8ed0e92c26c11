// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/sequence_groups.hpp>
#include <pipe/planner/model/predict.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "choose.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! About so many sequences are put onto groups for one candidate: a tenth of a second.
constexpr std::int64_t most_work = 20'000'000;
constexpr int most_gpus = 4096;

pp::sequence_groups
best_groups(std::vector<int> const& lengths, pp::grouped_gpus const& on, double room, int parts) {
  std::int64_t const each = std::int64_t{on.gpus} * static_cast<std::int64_t>(lengths.size());
  std::int64_t const steps = std::max<std::int64_t>(most_work / parts / each, 16);
  pp::sequence_groups const best = pp::best_sequence_groups(lengths, on.gpus, on, room, steps);
  return best.group_of.empty() ? pp::best_sequence_groups(
                                   lengths, on.gpus, on, std::numeric_limits<double>::max(), steps)
                               : best;
}

} // namespace

std::string groups_label(std::size_t microbatches) {
  return "sequence groups, " + std::to_string(microbatches) +
         (microbatches == 1 ? " microbatch" : " microbatches");
}

std::vector<std::vector<sequence_numbers>> like_microbatches(std::vector<int> const& lengths) {
  auto const length = [&](int i) { return lengths[static_cast<std::size_t>(i)]; };
  std::vector<int> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return length(a) > length(b); });
  auto const cut = [&](std::int64_t most) {
    std::vector<sequence_numbers> microbatches;
    std::int64_t tokens = most;
    for (int const sequence : order) {
      tokens += length(sequence);
      if (tokens > most) {
        microbatches.emplace_back();
        tokens = length(sequence);
      }
      microbatches.back().push_back(sequence);
    }
    return microbatches;
  };
  std::vector<std::vector<sequence_numbers>> result;
  for (std::size_t const count : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    std::int64_t least = length(order.front());
    std::int64_t enough = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    while (least < enough) {
      std::int64_t const middle = least + (enough - least) / 2;
      if (cut(middle).size() <= count)
        enough = middle;
      else
        least = middle + 1;
    }
    std::vector<sequence_numbers> microbatches = cut(enough);
    if (result.empty() || result.back().size() != microbatches.size())
      result.push_back(std::move(microbatches));
  }
  return result;
}

candidate evaluate_groups(choose_command const& asked,
                          std::vector<sequence_numbers> const& microbatches) {
  std::int64_t const gpus = std::int64_t{asked.devices} * asked.setup.tensor;
  if (asked.gpus.size() > 1)
    throw std::invalid_argument("its times are of GPUs of one kind");
  if (asked.setup.expert > 1)
    throw std::invalid_argument(
      "its GPUs take whole layers one after the other, so that no experts "
      "are spread over them");
  if (gpus > most_gpus)
    throw std::invalid_argument("more than " + std::to_string(most_gpus) +
                                " GPUs have too many groups to look at");
  pp::grouped_gpus const on{
    asked.model, asked.gpu(0), asked.reached, static_cast<int>(gpus), asked.setup.data};
  candidate one;
  one.label = groups_label(microbatches.size());
  one.layers = {asked.model.layers};
  one.chunk_lengths = {static_cast<int>(asked.setup.sequence)};
  double busy = 0; // GPUs times seconds
  double most = 0;
  for (sequence_numbers const& sequences : microbatches) {
    std::vector<int> lengths;
    for (int const sequence : sequences)
      lengths.push_back(asked.lengths[static_cast<std::size_t>(sequence)]);
    pp::sequence_groups const best = best_groups(lengths,
                                                 on,
                                                 asked.memory_gb * 1e9 - on.resident_bytes(),
                                                 static_cast<int>(microbatches.size()));
    std::vector<gpu_group>& groups = one.groups.emplace_back();
    std::vector<double> bytes(best.sizes.size());
    for (int const size : best.sizes)
      groups.push_back({size, {}});
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      auto const group = static_cast<std::size_t>(best.group_of[i]);
      groups[group].sequences.push_back(sequences[i]);
      bytes[group] += on.bytes(lengths[i], best.sizes[group]);
      busy += best.sizes[group] * on.time(lengths[i], best.sizes[group]);
    }
    most = std::max(most, *std::max_element(bytes.begin(), bytes.end()));
    one.seconds += std::max(best.time, on.gather_seconds());
    one.bound += std::max(best.bound, on.gather_seconds());
  }
  one.ranked = one.seconds;
  one.bubble = std::max(0.0, 1 - busy / (static_cast<double>(gpus) * one.seconds));
  one.gigabytes = (on.resident_bytes() + most) / 1e9;
  return one;
}

} // namespace examples
