// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/layout.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

//! The stages by the text replacements of Megatron-Core: commas go, then parentheses, then single
//! characters are repeated.
std::vector<std::string> by_replacement(std::string text) {
  std::erase(text, ',');
  for (char const* pattern : {R"(\(([^)]+)\)\*(\d+))", R"((.)\*(\d+))"}) {
    std::regex const repeated(pattern);
    for (std::smatch found; std::regex_search(text, found, repeated);) {
      std::string all;
      for (int i = 0; i < std::stoi(found[2]); ++i)
        all += found[1];
      text = std::string(found.prefix()) + all + std::string(found.suffix());
    }
  }
  std::vector<std::string> stages(1);
  for (char const letter : text)
    letter == '|' ? stages.emplace_back() : stages.back() += letter;
  return stages;
}

std::string refusal(std::string const& text) {
  try {
    (void)pp::read_layout(text);
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("layouts are read as Megatron-Core reads them") {
  CHECK(pp::read_layout("Et*3|(tt|)*2,m|L") ==
        std::vector<std::string>{"Ettt", "tt", "tt", "m", "L"});
  CHECK(pp::read_layout("") == std::vector<std::string>{""});
  CHECK(pp::read_layout("E||t|L").size() == 4);
  CHECK(pp::read_layout("Et|*3L").size() == 4);
  for (char const* text : {"Et*3|(tt|)*29,m|L",
                           "E|t|t|L",
                           "E||t|L",
                           "Et|tt|tt|t|t|tm|t|L",
                           "Ett|(ttt|)*6tmL",
                           "E|(t|)*10m|m|m|LL|LL",
                           "Et,t|(t*12|)*3,t*1,0|(m|)*2L*2|"})
    CHECK(pp::read_layout(text) == by_replacement(text));
}

TEST_CASE("layers of an encoder stand between the embedding and the layers") {
  CHECK(pp::read_layout("Ee*3|e,t|(tt|)*2m|L") ==
        std::vector<std::string>{"Eeee", "et", "tt", "tt", "m", "L"});
  std::vector<std::string> const stages{"Eeeee", "eet", "ttt", "tmm", "L"};
  CHECK(pp::read_layout(pp::write_layout(stages)) == stages);
  CHECK(refusal("Ete|L") ==
        "layout, character 3: 'e' stands too late; E is the first part, an encoder's e come next");
}

TEST_CASE("a layout that was written is read back") {
  std::mt19937 random(11);
  std::size_t shortened = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stages(1 + random() % 40);
    std::size_t period = 1 + random() % 5;
    bool const whole = random() % 4 != 0;
    for (std::size_t i = 0; i < stages.size(); ++i)
      stages[i] =
        i >= period && random() % 8 != 0 ? stages[i - period] : std::string(random() % 14 % 5, 't');
    if (whole) {
      stages.front() = "E" + stages.front();
      if (stages.size() > 2 && random() % 2 == 0)
        stages[stages.size() - 2] += "m";
      if (stages.back().find('t') == std::string::npos || stages.size() < 3 ||
          stages[stages.size() - 2].find('m') == std::string::npos)
        stages.back() += "L";
      else
        stages.back() = "mLL";
    }
    std::string const text = pp::write_layout(stages);
    CAPTURE(text);
    REQUIRE(pp::read_layout(text) == stages);
    REQUIRE(by_replacement(text) == stages);
    std::size_t plain = stages.size() - 1;
    for (std::string const& each : stages)
      plain += each.size();
    CHECK(text.size() <= plain);
    shortened += text.size() < plain ? 1 : 0;
  }
  CHECK(shortened > 1000);
  CHECK(pp::write_layout(pp::read_layout("Ettt|tt|tt|tt|m|L")) == "Et*3|(tt|)*3m|L");
}

TEST_CASE("what is no layout is refused with the place of the character") {
  CHECK(refusal("Et|x|L") ==
        "layout, character 4: E, e, t, m, L, a bar, parentheses and *N after one "
        "of them are known, not 'x'");
  CHECK(refusal("Et|(tt|") ==
        "layout, character 4: this parenthesis is not closed before the next one, or at all");
  CHECK(refusal("Et|(t(t|)*2)*2").starts_with("layout, character 4: this parenthesis"));
  CHECK(refusal("Et|(tt|)L") == "layout, character 4: say after the parentheses how often it "
                                "stands there: (tt|)*4");
  CHECK(refusal("Et|()*3L") == "layout, character 4: there is nothing between the parentheses");
  CHECK(refusal("E,t*|L") ==
        "layout, character 4: a number from 1 must follow, for at most 65536 letters "
        "and bars in all");
  CHECK(refusal("Et*0|L").starts_with("layout, character 3: a number from 1"));
  CHECK(refusal("Et*70000|L").starts_with("layout, character 3: a number from 1"));
  CHECK(refusal("E(t*60000)*60000L").starts_with("layout, character 11: a number from 1"));
  CHECK(refusal("Et*99999999999999999999|L").starts_with("layout, character 3: a number from 1"));
  CHECK(refusal("t*65536") == "");
  CHECK(refusal("t*65536,t") == "layout, character 9: a layout has at most 65536 letters and bars");
  CHECK(refusal("t,t*65536").starts_with("layout, character 4: a number from 1"));
  CHECK(refusal("t|\xe2") ==
        "layout, character 3: E, e, t, m, L, a bar, parentheses and *N after one "
        "of them are known, not '?'");
  CHECK(refusal("*3").starts_with("layout, character 1: E, e, t"));
  CHECK(refusal("Et)L").starts_with("layout, character 3: E, e, t"));
  CHECK(refusal("E t|L").starts_with("layout, character 2: E, e, t"));
  CHECK(refusal("t|EtL") ==
        "layout, character 3: 'E' stands too late; E is the first part, L the last");
  CHECK(refusal("E|E").starts_with("layout, character 3: 'E' stands too late"));
  CHECK(refusal("|EtL").starts_with("layout, character 2: 'E' stands too late"));
  CHECK(refusal("Et|L|t").starts_with("layout, character 6: 't' stands too late"));
  CHECK(refusal("E*2tL").starts_with("layout, character 1: 'E' stands too late"));
}
