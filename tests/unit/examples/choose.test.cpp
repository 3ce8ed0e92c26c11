// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How many orders `timetable choose` searches for.
#include <doctest/doctest.h>

#include <tools/timetable/choose/choose.hpp>
#include <vector>

namespace {

examples::choose_command command_of(std::vector<char const*> words) {
  for (char const* const word : {"--model", "gpt-7b", "--sequence", "32768", "--threads", "1"})
    words.push_back(word);
  return examples::read_choose_command(examples::verbs::choose, words);
}

} // namespace

TEST_CASE("no more orders are searched for than the text needs") {
  examples::candidates const found =
    examples::evaluate_all(command_of({"--gpu", "h100", "--devices", "8", "--microbatches", "32"}));
  CHECK(found.all.size() >= 549);
  CHECK(found.searched <= 34);
}
