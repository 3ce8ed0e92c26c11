// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The command line of the example.

#include <charconv>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "model.hpp"

namespace gpt {

//! Everything that can be chosen. The defaults make the run that `scripts/demo` shows.
struct options {
  std::string schedule = "seq1f1b";
  std::int64_t devices = 8;
  std::int64_t microbatches = 16;
  std::int64_t chunks = 0; //!< of the chosen schedule; 0: as many as it has by itself
  std::int64_t steps = 80;
  model_size size;
  std::int64_t seed = 1;
  std::string text; //!< empty: the first of default_texts that exists
  std::string output = "gpt-demo";
  bool help = false;
};

inline constexpr char const* usage =
  "usage: gpt [OPTION VALUE]...\n"
  "Trains a byte-level GPT in a pipeline of threads and compares what happens with the plan.\n\n"
  "  --schedule NAME    gpipe 1f1b seq1f1b v-min v-half v-zb, or any that `timetable --list` "
  "names\n"
  "                     (seq1f1b)\n"
  "  --devices P        devices, each a thread (8)\n"
  "  --microbatches M   microbatches of a step, one sequence each (16)\n"
  "  --chunks C         chunks of a sequence, for schedules that have chunks (seq1f1b: 4)\n"
  "  --steps N          steps of training (80)\n"
  "  --layers L         layers of the model (16)\n"
  "  --width D          width of the model (64)\n"
  "  --heads H          heads of attention (4)\n"
  "  --key-heads K      heads of keys and values; fewer than H for grouped queries (4)\n"
  "  --sequence T       bytes of a sequence (128)\n"
  "  --seed S           seed of weights and batches (1)\n"
  "  --text FILE        the text to learn (a licence of this machine, or the README)\n"
  "  --output FOLDER    where timetable.svg, loss.svg and trace.json go (gpt-demo)\n"
  "  --help             this text\n";

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
                                std::to_string(least) + " to " + std::to_string(most) + ", not '" +
                                std::string(word.substr(0, 40)) + "'");
  }
  return value;
}

} // namespace detail

//! Reads the command line.
//! @throws std::invalid_argument with one line for the user
[[nodiscard]] inline options read_options(std::vector<std::string_view> const& words) {
  struct number_option {
    std::string_view name;
    std::int64_t* value;
    std::int64_t most;
  };
  options chosen;
  number_option const numbers[] = {{"--devices", &chosen.devices, 64},
                                   {"--microbatches", &chosen.microbatches, 4096},
                                   {"--chunks", &chosen.chunks, 1024},
                                   {"--steps", &chosen.steps, 1000000},
                                   {"--layers", &chosen.size.layers, 1024},
                                   {"--width", &chosen.size.width, 4096},
                                   {"--heads", &chosen.size.heads, 256},
                                   {"--key-heads", &chosen.size.key_heads, 256},
                                   {"--sequence", &chosen.size.sequence, 65536},
                                   {"--seed", &chosen.seed, 1000000000}};
  struct text_option {
    std::string_view name;
    std::string* value;
  };
  text_option const texts[] = {
    {"--schedule", &chosen.schedule}, {"--text", &chosen.text}, {"--output", &chosen.output}};
  bool key_heads_given = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto const name = words[i];
    if (name == "--help" || name == "-h") {
      chosen.help = true;
      continue;
    }
    number_option const* number = nullptr;
    for (auto const& each : numbers) {
      number = each.name == name ? &each : number;
    }
    text_option const* text = nullptr;
    for (auto const& each : texts) {
      text = each.name == name ? &each : text;
    }
    if (number == nullptr && text == nullptr) {
      throw std::invalid_argument("no such option: '" + std::string(name.substr(0, 40)) +
                                  "'; --help names them all");
    }
    if (i + 1 == words.size()) {
      throw std::invalid_argument(std::string(name) + " wants a value");
    }
    auto const word = words[++i];
    if (number != nullptr) {
      *number->value = detail::whole_number(name, word, 1, number->most);
      key_heads_given = key_heads_given || name == "--key-heads";
    } else {
      *text->value = word;
    }
  }
  if (!key_heads_given) {
    chosen.size.key_heads = chosen.size.heads;
  }
  check(chosen.size);
  return chosen;
}

} // namespace gpt
