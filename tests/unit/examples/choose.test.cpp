// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What `timetable choose` does not simulate fits or not as it says, and is no faster.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tools/timetable/choose/choose.hpp>
#include <vector>

namespace {

examples::choose_command command_of(std::vector<char const*> words) {
  for (char const* const word : {"--model", "gpt-7b", "--sequence", "32768", "--threads", "1"})
    words.push_back(word);
  return examples::read_choose_command(examples::verbs::choose, words);
}

} // namespace

TEST_CASE("candidates that are not judged fit or are too large as they say, and bounds hold") {
  for (std::vector<char const*> const& words : std::vector<std::vector<char const*>>{
         {"--gpu", "h100", "--devices", "4", "--microbatches", "8"},
         {"--gpu", "a100", "--devices", "6", "--microbatches", "12", "--memory", "90GB"},
         {"--gpu", "h100,a100", "--devices", "2", "--microbatches", "6", "--memory", "150GB"},
         {"--gpu", "h100", "--devices", "12", "--microbatches", "24", "--memory", "200GB"}}) {
    examples::choose_command const asked = command_of(words);
    examples::candidates found = examples::evaluate_all(asked);
    int judged = 0;
    int too_large = 0;
    int fit = 0;
    for (examples::candidate const& each : found.all) {
      bool const fits = each.gigabytes <= asked.memory_gb;
      ++(each.judged ? judged : fits ? fit : too_large);
      if (each.judged)
        continue;
      CAPTURE(each.label);
      examples::candidate const simulated =
        examples::evaluate_swept(asked, {each.choice}, *found.orders).what;
      CHECK(fits == (simulated.gigabytes <= asked.memory_gb));
      CHECK(simulated.gigabytes >= each.gigabytes);
      CHECK(simulated.seconds >= each.bound);
      CHECK((fits || simulated.bound >= each.bound));
    }
    CHECK(judged > 100);
    CHECK(too_large > 30);
    // Exchanges between shards take long where devices are in two machines.
    CHECK(fit >= (asked.devices > 8 ? 30 : 0));
  }
}

TEST_CASE("no more candidates are simulated than the text needs") {
  examples::candidates const found =
    examples::evaluate_all(command_of({"--gpu", "h100", "--devices", "8", "--microbatches", "32"}));
  CHECK(found.all.size() >= 549);
  CHECK(found.simulated <= 388);
  CHECK(found.searched <= 34);
}
