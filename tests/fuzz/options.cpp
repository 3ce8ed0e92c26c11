// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Command lines: the first line of an input says whose, each further one is a word.
#include "examples/gpt/options.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/support/temporary_folder.hpp>
#include <vector>

#include "reader.hpp"
#include "tools/timetable/choose/choose.hpp"
#include "tools/timetable/command_line.hpp"
#include "tools/timetable/options.hpp"

namespace fuzz {
namespace {

//! Goes where only these files are, which options may name.
void enter_folder() {
  static support::temporary_folder const folder("pipelining-fuzz");
  if (std::filesystem::current_path() == folder.path())
    return;
  std::filesystem::current_path(folder.path());
  std::ofstream("costs.json") << R"({"pipelining_costs": 1, "communication": 1,
"forward": [[1], [2]], "backward_input": [[1], [2]], "backward_weight": [[1], [2]]})";
  std::ofstream("model.json") << R"({"layers": 8, "hidden": 512, "heads": 8, "vocabulary": 1000})";
  std::ofstream("gpu.json") << R"({"peak_tflops": 312, "memory_gb": 80, "link_gb_per_s": 300,
"network_gb_per_s": 25, "host_gb_per_s": 24})";
}

//! The lines of a text, of which none leads out of the folder.
std::vector<std::string> words_of(std::string_view text) {
  constexpr std::size_t most = 64;
  std::vector<std::string> words(1);
  for (char const letter : text)
    if (letter != '\n' && letter != '\0')
      words.back() += letter == '/' ? '_' : letter;
    else if (words.size() < most)
      words.emplace_back();
    else
      break;
  return words;
}

//! Calls a reader of command lines, which refuses by one of two errors.
template <class Read>
void read_words(Read const& read) {
  (void)takes<examples::usage_error>([&] { (void)takes<std::invalid_argument>(read); });
}

void check_number(double number) {
  check(std::isfinite(number), "an option gives a number that is not finite");
}

void read_command(examples::verbs verb, std::span<char const* const> words) {
  read_words([&] {
    examples::command const read = examples::read_command_line(verb, words);
    check(read.choice.devices >= 1 && read.choice.microbatches >= 1, "an extent is below 1");
    for (double const each : {read.cost.forward,
                              read.cost.backward_input,
                              read.cost.backward_weight,
                              read.cost.communication,
                              read.search.memory,
                              read.search.seconds,
                              read.limit_seconds})
      check_number(each);
  });
}

void read_choice(examples::verbs verb, std::span<char const* const> words) {
  read_words([&] {
    examples::choose_command const read = examples::read_choose_command(verb, words);
    check(read.devices >= 1 && read.microbatches >= 1 && !read.gpus.empty(),
          "an extent is below 1");
    check_number(read.tokens());
    check_number(read.memory_gb);
    check_number(read.seconds);
  });
}

void read_options(std::string_view text) {
  using enum examples::verbs;
  enter_folder();
  std::vector<std::string> const all = words_of(text);
  std::vector<char const*> words;
  for (std::size_t i = 1; i < all.size(); ++i)
    words.push_back(all[i].c_str());
  for (examples::verbs const verb : {timetable, csv, compare, search, gaps})
    if (all[0] == examples::name_of(verb))
      read_command(verb, words);
  for (examples::verbs const verb : {choose, systems})
    if (all[0] == examples::name_of(verb))
      read_choice(verb, words);
  if (all[0] == "gpt")
    read_words([&] { (void)gpt::read_options({words.begin(), words.end()}); });
}

} // namespace

std::span<reader const> readers() {
  static constexpr reader all[] = {{"options", &read_options}};
  return all;
}

} // namespace fuzz
