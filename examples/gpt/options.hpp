// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The command line of the example.

#include <pipe/flow/quote.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/view/append.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <variant>
#include <vector>

#include "model.hpp"

namespace gpt {

namespace registry = pipelining::registry;

//! How a process tells of its progress: over and over in one line of a terminal, or line by line.
enum class telling : std::uint8_t { nothing, in_a_line, line_by_line };

//! Everything that can be chosen. The defaults make the run that `scripts/demo` shows.
struct options {
  std::string schedule{registry::names::seq1f1b};
  std::int64_t devices = 8;
  std::int64_t microbatches = 16;
  //! What the chosen schedule has of its own; its name, devices and microbatches stand above.
  registry::schedule_choice own{};
  //! Counts of chunks of further iterations, which take turns with it.
  std::vector<std::vector<int>> further_counts{};
  double clip = 0; //!< largest norm of all gradients together; 0: any
  bool post_validation = false;
  std::int64_t tensor = 0; //!< shards of every stage; 0: those that the schedule has by itself
  std::int64_t steps = 80;
  model_size size;
  std::int64_t seed = 1;
  std::string text; //!< empty: the first of default_texts that exists
  std::string output = "gpt-demo";
  std::string costs;       //!< where the measured costs go; empty: nowhere
  std::string checkpoint;  //!< a folder; empty: none
  std::int64_t every = 10; //!< steps between two checkpoints
  bool help = false;
  telling tells = telling::in_a_line; //!< of the ranks of a run, one does
  //! Tokens of the sequence of each microbatch, which follow from the schedule.
  std::vector<std::int64_t> lengths;
};

[[nodiscard]] inline std::uint64_t seed_of(options const& o) {
  return static_cast<std::uint64_t>(o.seed);
}
[[nodiscard]] inline std::string name_of(options const& o) {
  return registry::in_adapter(o.schedule, o.own.adapted);
}

//! Whether stages are cut into shards, and into how many.
[[nodiscard]] inline bool has_shards_of_stages(options const& o) {
  return o.tensor > 0 || registry::find_schedule(o.schedule).traits.any_pairs;
}
[[nodiscard]] inline std::int64_t shards_of_stages(options const& o) {
  return o.tensor > 0 ? o.tensor : has_shards_of_stages(o) ? 2 : 1;
}

[[nodiscard]] inline std::int64_t tokens_of(options const& o) {
  return std::accumulate(o.lengths.begin(), o.lengths.end(), std::int64_t{0});
}

inline constexpr char const* usage =
  "usage: gpt [OPTION [VALUE]]...\n"
  "Trains a byte-level GPT in a pipeline and compares what happens with the plan.\n\n"
  "  --backend WHERE    where devices are: threads, mpi (processes: mpirun -n P gpt --backend "
  "mpi),\n"
  "                     cuda (streams of one GPU) or nccl (GPUs, a process each); each has "
  "options\n"
  "                     of its own, which --backend WHERE --help tells (threads)\n"
  "  --schedule NAME    any that `timetable --list` names (seq1f1b)\n"
  "  --devices P        devices (8)\n"
  "  --microbatches M   microbatches of a step, one sequence each (16)\n"
  "  --chunks C         chunks of a sequence, for schedules that have chunks (seq1f1b: 4)\n"
  "  --stages-per-device V, --group N, --forwards N, --chunk-counts C,C,...,\n"
  "  --keep K, --memory-limit X, --forward-stages N, --backward-stages N, --eager, --unfused\n"
  "                     of the schedules that have these options: see `timetable --list`;\n"
  "                     --chunk-counts C,C,...:C,C,... has iterations of several sizes take turns\n"
  "  --with WHAT        the schedule in an adapter: recompute (forward passes keep their input "
  "alone),\n"
  "                     offload (activations wait on the host; a copy is planned with a quarter "
  "of\n"
  "                     the time of a forward pass), sharded-weights (weights lie in two shards "
  "and\n"
  "                     are gathered for every visit of a stage), gathered-once (they stay),\n"
  "                     weights-on-host (those of the last stage of every device are gathered "
  "once),\n"
  "                     vocabulary-1, vocabulary-2 or vocabulary-interlaced (embedding and output\n"
  "                     layer lie in a shard on every device: one barrier, two, all at once), or\n"
  "                     attention-exchange (slimpipe: devices take over attention of each other)\n"
  "  --tensor N         cuts every stage into N shards (tensor parallelism; stp: 2), each a "
  "thread;\n"
  "                     braided passes hide each other's sums over the shards\n"
  "  --clip X           clips gradients whose norm, over all stages, is above X; the optimizer is\n"
  "                     part of the plan then\n"
  "  --post-validation  with --clip: stages step before they know the norm, and the next "
  "iteration\n"
  "                     rolls steps back that were wrong; weights are the same, bit for bit\n"
  "  --steps N          steps of training (80); Ctrl-C or SIGTERM ends it early\n"
  "  --layers L         layers of the model (16)\n"
  "  --width D          width of the model (64)\n"
  "  --heads H          heads of attention (4)\n"
  "  --key-heads K      heads of keys and values; fewer than H for grouped queries (4)\n"
  "  --sequence T       bytes of a sequence (128)\n"
  "  --seed S           seed of weights and batches (1)\n"
  "  --text FILE        the text to learn (a licence of this machine, or the README)\n"
  "  --output FOLDER    where timeline.html, timetable.svg, loss.svg and trace.json go (gpt-demo)\n"
  "  --costs FILE       writes the measured times of passes and messages there, for\n"
  "                     `timetable ... --cost FILE`; give every device a core of its own\n"
  "  --checkpoint FOLDER, --every K\n"
  "                     writes a checkpoint every K steps (10), and goes on from the newest;\n"
  "                     threads and mpi read those of each other, of any number of devices\n"
  "  --help             this text\n\n"
  "PIPELINING_VECTORS=plain, x86-64-v3 or x86-64-v4 in the environment chooses the vector loops\n";

namespace detail {

//! A whole number of an option.
//! @throws std::invalid_argument with one line that names the option
[[nodiscard]] inline std::int64_t whole_number(std::string_view option,
                                               std::string_view word,
                                               std::int64_t least,
                                               std::int64_t most) {
  std::int64_t value = 0;
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value < least || value > most) {
    throw std::invalid_argument(std::string(option) + " wants a whole number from " +
                                std::to_string(least) + " to " + std::to_string(most) + ", not " +
                                pipelining::detail::quote(word));
  }
  return value;
}

//! A number above 0 of an option.
//! @throws std::invalid_argument with one line that names the option
[[nodiscard]] inline double positive_number(std::string_view option, std::string_view word) {
  std::string const text(word);
  char* end = nullptr;
  double const value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0) || !(value < 1e30)) {
    throw std::invalid_argument(std::string(option) + " wants a number above 0, not " +
                                pipelining::detail::quote(word));
  }
  return value;
}

[[nodiscard]] inline std::vector<int> whole_numbers(std::string_view option,
                                                    std::string_view word,
                                                    std::int64_t least,
                                                    std::int64_t most) {
  std::vector<int> numbers;
  for (;;) {
    auto const comma = word.find(',');
    numbers.push_back(static_cast<int>(whole_number(option, word.substr(0, comma), least, most)));
    if (comma == std::string_view::npos)
      return numbers;
    word.remove_prefix(comma + 1);
  }
}

//! @throws std::invalid_argument with one line that names the option
[[nodiscard]] inline registry::adapter adapter_of(std::string_view option, std::string_view word) {
  using enum registry::adapter;
  auto const of_others = recompute_first | offload_half | offload_chunks;
  std::string names;
  for (registry::named_adapter const& each : registry::named_adapter::all()) {
    if (has(of_others, each.which))
      continue;
    if (each.name == word)
      return each.which;
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument(std::string(option) + " wants one of " + names + ", not " +
                              pipelining::detail::quote(word));
}

//! Refuses what a small machine cannot train: too many parameters, too much to keep, or steps that
//! take longer than anyone watches.
//! @throws std::invalid_argument with one line for the user
inline void check_effort(model_size const& size, std::int64_t microbatches) {
  auto const width = static_cast<double>(size.width);
  auto const layers = static_cast<double>(size.layers);
  auto const tokens = static_cast<double>(size.sequence * microbatches);
  double const parameters = 12 * width * width * layers + 2.0 * vocabulary * width;
  // Forward and backward, per token: every parameter, and half of the sequence in attention.
  double const work =
    3 * tokens * (parameters + layers * width * static_cast<double>(size.sequence));
  double const kept = tokens * layers * 12 * width * sizeof(float); // under GPipe
  auto const refuse_above =
    [](double most, std::string reason, double value, char const* unit, char const* remedy) {
      if (value <= most)
        return;
      pipelining::append_general(reason, value, 3);
      reason += std::string(unit) + " is too much for this example, which takes ";
      pipelining::append_general(reason, most, 1);
      throw std::invalid_argument(reason + " at most; choose " + remedy);
    };
  char const* const less = "a shorter --sequence, fewer --microbatches or a smaller model";
  refuse_above(1e8, "a model of ", parameters, " parameters", "fewer --layers or less --width");
  refuse_above(1e13, "a step of ", work, " multiplications", less);
  refuse_above(8e9, "a step that keeps ", kept, " bytes", less);
}

//! Where an option goes, and the most that a number may be.
struct known_option {
  std::string_view name{};
  std::variant<bool*,
               std::string*,
               std::int64_t*,
               std::optional<int>*,
               std::optional<double>*,
               std::chrono::seconds*>
    value{};
  std::int64_t most = 0;
};
//! The option of a word, but for those whose values have a form of their own; none has no name.
//! @param more that a backend has
inline known_option
option_of(options& of, std::span<known_option const> more, std::string_view name) {
  auto& own = of.own;
  known_option const usual[] = {{"--help", &of.help},
                                {"-h", &of.help},
                                {"--eager", &own.eager},
                                {"--unfused", &own.unfused},
                                {"--post-validation", &of.post_validation},
                                {"--schedule", &of.schedule},
                                {"--text", &of.text},
                                {"--output", &of.output},
                                {"--costs", &of.costs},
                                {"--checkpoint", &of.checkpoint},
                                {"--devices", &of.devices, 64},
                                {"--every", &of.every, 1000000},
                                {"--microbatches", &of.microbatches, 4096},
                                {"--chunks", &own.chunks, 1024},
                                {"--stages-per-device", &own.stages_per_device, 64},
                                {"--group", &own.group, 4096},
                                {"--forwards", &own.forwards, 1000000},
                                {"--keep", &own.keep, 1024},
                                {"--forward-stages", &own.forward_stages, 65535},
                                {"--backward-stages", &own.backward_stages, 65535},
                                {"--memory-limit", &own.memory_limit, 1000000},
                                {"--tensor", &of.tensor, 64},
                                {"--steps", &of.steps, 1000000},
                                {"--layers", &of.size.layers, 1024},
                                {"--width", &of.size.width, 4096},
                                {"--heads", &of.size.heads, 256},
                                {"--key-heads", &of.size.key_heads, 256},
                                {"--sequence", &of.size.sequence, 65536},
                                {"--seed", &of.seed, 1000000000}};
  for (auto const options_of : {more, std::span<known_option const>(usual)})
    for (known_option const& each : options_of)
      if (each.name == name)
        return each;
  return {};
}

//! Reads counts of chunks, of iterations that take turns: "1,2:2,2".
inline void read_chunk_counts(options& of, std::string_view name, std::string_view rest) {
  auto const next = [&] {
    auto const end = std::min(rest.find(':'), rest.size());
    auto const counts = whole_numbers(name, rest.substr(0, end), 1, 1024);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return counts;
  };
  of.own.chunk_counts = next();
  while (!rest.empty())
    of.further_counts.push_back(next());
}

//! Reads an option that has a value.
//! @throws std::invalid_argument for one that is not known, or whose value is none
inline void read_value(options& of,
                       known_option const& known,
                       std::string_view name,
                       std::string_view const* word) {
  bool const other = name == "--with" || name == "--chunk-counts" || name == "--clip";
  if (known.name.empty() && !other) {
    throw std::invalid_argument("no such option: " + pipelining::detail::quote(name) +
                                "; --help names them all");
  }
  if (word == nullptr)
    throw std::invalid_argument(std::string(name) + " wants a value");
  if (name == "--with")
    of.own.adapted = adapter_of(name, *word);
  else if (name == "--clip")
    of.clip = positive_number(name, *word);
  else if (other)
    read_chunk_counts(of, name, *word);
  else
    std::visit(
      [&](auto* to) {
        using value = std::remove_pointer_t<decltype(to)>;
        if constexpr (std::is_same_v<value, std::string>)
          *to = *word;
        else // flags do not come here
          *to = static_cast<value>(static_cast<int>(whole_number(name, *word, 1, known.most)));
      },
      known.value);
}

} // namespace detail

//! Reads the command line.
//! @param chosen what is not given. @param more options that a backend has
//! @param ranks of a run: as many devices with all their shards, unless told otherwise; 0: none
//! @throws std::invalid_argument with one line for the user
[[nodiscard]] inline options read_options(std::vector<std::string_view> const& words,
                                          options chosen = {},
                                          std::span<detail::known_option const> more = {},
                                          int ranks = 0) {
  bool key_heads_given = false;
  if (ranks > 0)
    chosen.devices = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto const known = detail::option_of(chosen, more, words[i]);
    if (auto* const* const flag = std::get_if<bool*>(&known.value); flag && *flag) {
      **flag = true;
      continue;
    }
    key_heads_given = key_heads_given || words[i] == "--key-heads";
    detail::read_value(chosen, known, words[i], i + 1 < words.size() ? &words[i + 1] : nullptr);
    ++i;
  }
  if (!key_heads_given)
    chosen.size.key_heads = chosen.size.heads;
  if (chosen.devices == 0)
    chosen.devices = std::max(ranks / shards_of_stages(chosen), std::int64_t{1});
  check(chosen.size);
  if (chosen.post_validation && chosen.clip == 0) {
    throw std::invalid_argument(
      "--post-validation validates the norm that --clip gives; give both");
  }
  if (!chosen.help)
    detail::check_effort(chosen.size, chosen.microbatches);
  return chosen;
}

} // namespace gpt
