// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose.hpp"
#include "tools/timetable/files.hpp"
#include "tools/timetable/make.hpp"
#include "tools/timetable/progress_line.hpp"

namespace examples {
namespace {

//! About so many sequences are put onto groups for one candidate: a tenth of a second.
constexpr std::int64_t most_work = 20'000'000;
constexpr int most_gpus = 4096;

//! The sequences of a microbatch.
using sequence_numbers = std::vector<int>;

//! The measured time of every sequence over its predicted one, [sequences]; a file with one time
//! for all is of the longest sequence. Without a file 1.
std::vector<double> measured_over_predicted(choose_command const& asked) {
  std::vector<double> result(asked.lengths.size(), 1);
  if (!asked.measured)
    return result;
  pp::cut_costs const& measured = *asked.measured;
  bool const by_sequence = measured.times.microbatches() > 1;
  pp::prediction on = asked.predicted();
  pp::stage_content const whole = asked.contents(std::vector{asked.parts()}).front();
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (by_sequence) // else the setup has the longest
      on.setup.sequence = asked.lengths[i];
    double took = 0;
    double predicted = 0;
    for (pp::pass_kind const kind : pp::detail::split_kinds(pp::training)) {
      predicted += on.pass_seconds(whole, kind, {on.setup.sequence, 0});
      for (int stage = 0; stage < measured.stages; ++stage)
        for (int chunk = 0; chunk < measured.chunks; ++chunk)
          took += measured.times.duration(
            pp::row_writer::make(kind, stage, by_sequence ? static_cast<int>(i) : 0, chunk));
    }
    result[i] = took / predicted;
  }
  return result;
}

//! The cost of a microbatch's sequences on groups, which know them by numbers: larger ones are at
//! least as long.
struct sequences_on_groups {
  pp::grouped_gpus const& on;
  std::vector<int> lengths;    //!< longest first
  std::vector<double> factors; //!< measured times over predicted ones

  [[nodiscard]] std::vector<int> numbers() const {
    std::vector<int> result(lengths.size());
    std::iota(result.rbegin(), result.rend(), 1);
    return result;
  }
  [[nodiscard]] std::size_t at(int number) const {
    return lengths.size() - static_cast<std::size_t>(number);
  }
  [[nodiscard]] double time(int number, int size) const {
    int const tokens = lengths[at(number)];
    return factors[at(number)] * on.work_time(tokens, size) + on.exchange_time(tokens, size);
  }
  [[nodiscard]] double bytes(int number, int size) const {
    return on.bytes(lengths[at(number)], size);
  }
};

pp::sequence_groups best_groups(sequences_on_groups const& cost, double room, int parts) {
  std::vector<int> const numbers = cost.numbers();
  std::int64_t const each = std::int64_t{cost.on.gpus} * static_cast<std::int64_t>(numbers.size());
  std::int64_t const steps = std::max<std::int64_t>(most_work / parts / each, 16);
  auto const best = [&](double memory) {
    return pp::sequence_groups::best(numbers, cost.on.gpus, cost, memory, steps);
  };
  pp::sequence_groups const within = best(room);
  return within.group_of.empty() ? best(std::numeric_limits<double>::max()) : within;
}

//! How the report calls it.
std::string groups_label(std::size_t microbatches) {
  return "sequence groups, " + std::to_string(microbatches) +
         (microbatches == 1 ? " microbatch" : " microbatches");
}

//! Ways to make microbatches of sequences of like length: of all with so many microbatches those
//! whose largest has the fewest tokens.
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

//! FlexSP: for each microbatch the groups of GPUs whose slowest is fastest. Within the memory where
//! that can be, else as fast as can be.
//! @throws std::invalid_argument where the model or the GPUs cannot have it.
candidate evaluate_groups(choose_command const& asked,
                          std::vector<sequence_numbers> const& microbatches) {
  std::int64_t const gpus = std::int64_t{asked.devices} * asked.setup.tensor;
  if (asked.gpus.size() > 1)
    throw std::invalid_argument("its times are of GPUs of one kind");
  if (asked.jitter > 0 || asked.frozen > 0 || !asked.layout.empty())
    throw std::invalid_argument("it has no stages, so no layout, no frozen ones and no passes that "
                                "vary");
  if (asked.setup.expert > 1)
    throw std::invalid_argument(
      "its GPUs take whole layers one after the other, so that no experts "
      "are spread over them");
  if (gpus > most_gpus)
    throw std::invalid_argument("more than " + std::to_string(most_gpus) +
                                " GPUs have too many groups to look at");
  pp::grouped_gpus const on{asked.model,
                            asked.gpu(0),
                            asked.reached,
                            static_cast<int>(gpus),
                            asked.setup.data,
                            asked.setup.pictures};
  std::vector<double> const factors = measured_over_predicted(asked);
  candidate one;
  one.label = groups_label(microbatches.size());
  one.layers = {asked.parts()};
  one.chunk_lengths = {static_cast<int>(asked.setup.sequence)};
  double busy = 0; // GPUs times seconds
  double most = 0;
  for (sequence_numbers const& sequences : microbatches) {
    sequences_on_groups cost{on, {}, {}};
    for (int const sequence : sequences) {
      cost.lengths.push_back(asked.lengths[static_cast<std::size_t>(sequence)]);
      cost.factors.push_back(factors[static_cast<std::size_t>(sequence)]);
    }
    pp::sequence_groups const best = best_groups(
      cost, asked.memory_gb * 1e9 - on.resident_bytes(), static_cast<int>(microbatches.size()));
    std::vector<gpu_group>& groups = one.groups.emplace_back();
    std::vector<double> bytes(best.sizes.size());
    for (int const size : best.sizes)
      groups.push_back({size, {}});
    for (int const number : cost.numbers()) {
      std::size_t const i = cost.at(number);
      auto const group = static_cast<std::size_t>(best.group_of[i]);
      groups[group].sequences.push_back(sequences[i]);
      bytes[group] += cost.bytes(number, best.sizes[group]);
      busy += best.sizes[group] * cost.time(number, best.sizes[group]);
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

} // namespace

void add_groups(choose_command const& asked, progress_line& line, candidates& found) {
  for (std::vector<sequence_numbers> const& microbatches : like_microbatches(asked.lengths)) {
    std::string const label = groups_label(microbatches.size());
    line.say(label);
    try {
      found.all.push_back(evaluate_groups(asked, microbatches));
    } catch (std::invalid_argument const& error) {
      found.refused.push_back(label + ": " + error.what());
    }
  }
}

std::vector<trial> trials_of_lengths(choose_command const& asked) {
  std::vector<int> const& lengths = asked.lengths;
  int const longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<trial> trials;
  auto const add = [&](schedule_choice choice,
                       std::shared_ptr<packed_sequences const> const& sequences) {
    choice.devices = asked.devices;
    choice.microbatches = static_cast<int>(sequences->whole.size());
    trials.push_back({std::move(choice), sequences});
  };
  auto const named = [](packing whole, std::string how) {
    return std::make_shared<packed_sequences const>(
      packed_sequences{std::move(whole), std::move(how)});
  };
  packing all;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    all.push_back({{{static_cast<int>(i), 0, longest}}});
  auto const padded = named(std::move(all), "padded to " + std::to_string(longest));
  auto const packed =
    named(pp::chunk_sequences(lengths, longest), "packed to " + std::to_string(longest));
  for (named_schedule const& schedule : named_schedules())
    for (schedule_choice const& call : calls_of(schedule, asked)) {
      if (call.adapted != adapter::none && call.adapted != adapter::recompute &&
          call.adapted != adapter::offload)
        continue;
      add(call, padded);
      if (packed->whole.size() < padded->whole.size())
        add(call, packed);
    }
  for (int parts = 1; parts <= 64 && longest / parts >= 64; parts *= 2) {
    int const size = (longest + parts - 1) / parts;
    packing const chunks = pp::chunk_sequences(lengths, size);
    schedule_choice choice;
    choice.chunk_counts = pp::counts_of(chunks);
    std::string const how = "chunks of " + std::to_string(size);
    for (named_schedule const& schedule : named_schedules()) {
      if (!has(schedule.takes, option::chunk_counts) || !is_wanted(schedule, asked))
        continue;
      choice.name = std::string(schedule.name);
      choice.keep.reset();
      if (!has(schedule.takes, option::keep))
        add(choice, named(chunks, how));
      else
        for (int keep = 1; keep <= parts; keep *= 2) {
          choice.keep = keep;
          add(choice, named(chunks, how + ", " + std::to_string(keep) + " kept"));
        }
    }
  }
  return trials;
}

} // namespace examples
