// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Options of the verbs of the timetable tool: one list says how they are read, which verbs
//! have them, what --help says of them, and which values a shell offers.

#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace examples {

namespace pp = pipelining;
using namespace pp::registry; // schedules by name, of which all verbs speak

//! Verbs as bits.
enum class verbs : unsigned {
  timetable = 1, //!< no word: the name of a schedule stands in its place
  csv = 2,
  compare = 4,
  search = 8,
  gaps = 16,
  choose = 32,
  systems = 64,
  blocks = 128,
  reproduce = 256,
  completion = 512
};

[[nodiscard]] constexpr verbs operator|(verbs a, verbs b) {
  return static_cast<verbs>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr bool has(verbs all, verbs one) {
  return (static_cast<unsigned>(all) & static_cast<unsigned>(one)) != 0;
}

//! The word on the command line; "timetable" for none.
[[nodiscard]] std::string_view name_of(verbs one);

//! A command line that cannot be followed: one line for the user.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! What `read()` gives, or what is wrong with it, after some words.
//! @throws usage_error
template <class Error>
auto read_or_say(std::string const& words, auto const& read) {
  try {
    return read();
  } catch (Error const& error) {
    throw usage_error(words + error.what());
  }
}

//! Words that a user may write in a place.
using word_list = std::vector<std::string_view>;

//! An option, and the verbs that have it.
struct option_name {
  std::string_view spelling; //!< as --help shows it: "--devices P", "--all"
  verbs of;
};

//! An option that is read into a Command.
template <class Command>
struct option_reader {
  option_name what;
  std::string_view help;
  void (*read)(Command&, std::string_view option, std::string_view word);
  word_list (*among)(verbs) = nullptr; //!< the values, where they can be listed
};

//! An option as users see it.
struct offered_option {
  std::string_view spelling; //!< see `option_name`
  std::string_view help;
  word_list among; //!< the values, where they can be listed
};

//! The name of an option: "--devices".
[[nodiscard]] constexpr std::string_view name_in(std::string_view spelling) {
  return spelling.substr(0, spelling.find(' '));
}
//! True where a word follows the name.
[[nodiscard]] constexpr bool takes_value(std::string_view spelling) {
  return name_in(spelling) != spelling;
}

//! The options of a verb.
template <class Command>
[[nodiscard]] std::vector<offered_option> offered(std::span<option_reader<Command> const> all,
                                                  verbs one) {
  std::vector<offered_option> result;
  for (option_reader<Command> const& each : all)
    if (has(each.what.of, one))
      result.push_back({each.what.spelling, each.help, each.among ? each.among(one) : word_list{}});
  return result;
}

//! A word as it is.
[[nodiscard]] inline std::string as_it_is(std::string_view, std::string_view word) {
  return std::string(word);
}

//! Reads a word by `Read` into a member of a command, or into a member of that, and so on.
template <auto Read, auto... Members>
constexpr auto set = [](auto& into, std::string_view option, std::string_view word) {
  (into.*....*Members) = Read(option, word);
};

//! Notes that an option without a value was given.
template <auto... Members>
constexpr auto flag =
  [](auto& into, std::string_view, std::string_view) { (into.*....*Members) = true; };

//! The number that a whole word is; nothing where it is none, or out of range.
template <class Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view word) {
  Number value{};
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  bool const whole = error == std::errc() && end == word.data() + word.size();
  return whole ? std::optional(value) : std::nullopt;
}

//! A whole number from 1 to `Most`.
//! @throws usage_error
template <int Most = (1 << 20)>
[[nodiscard]] int count_of(std::string_view option, std::string_view word) {
  std::optional<int> const value = number_in<int>(word);
  if (!value || *value < 1 || *value > Most)
    throw usage_error(std::string(option) + " wants a whole number from 1 to " +
                      std::to_string(Most) + ", not " + quoted(word));
  return *value;
}

//! A number from 0 to `Most`.
//! @throws usage_error
template <int Most>
[[nodiscard]] double share_of(std::string_view option, std::string_view word) {
  std::optional<double> const value = number_in<double>(word);
  if (!value || !(*value >= 0) || *value > Most)
    throw usage_error(std::string(option) + " wants a number between 0 and " +
                      std::to_string(Most) + ", not " + quoted(word));
  return *value;
}

//! An amount of memory in gigabytes: 80GB, 80GiB, 500MB or 2TB; a number alone is one of them.
//! @throws usage_error
[[nodiscard]] double read_gigabytes(std::string_view option, std::string_view word);

//! The parts of a word between commas.
[[nodiscard]] std::vector<std::string_view> split_at_commas(std::string_view word);

//! `--json`, the short form of `--format json`.
template <class Command>
[[nodiscard]] constexpr option_reader<Command> json_option(verbs of) {
  return {{"--json", of},
          "the same as --format json",
          [](Command& c, std::string_view, std::string_view) { c.format = "json"; }};
}

//! A value that has to be one of some words.
//! @throws usage_error that lists them
[[nodiscard]] std::string
one_of(std::string_view option, std::string_view word, word_list const& all);

//! Reads one of the words that `Words` gives a verb into a member.
template <auto Words, auto Member>
constexpr auto set_one_of = [](auto& into, std::string_view option, std::string_view word) {
  into.*Member = one_of(option, word, Words(into.verb));
};

//! The names of the members of a list, such as schedules.
[[nodiscard]] word_list names_in(auto const& all) {
  word_list result;
  for (auto const& each : all)
    result.push_back(each.name);
  return result;
}

//! A command line, after its options were read.
struct read_words {
  std::vector<std::string_view> names; //!< words that are no options
  std::vector<std::string_view> given; //!< names of options

  [[nodiscard]] bool has(std::string_view option) const {
    return std::find(given.begin(), given.end(), option) != given.end();
  }
};

//! Why a verb does not have an option that others have.
//! @param owners the verbs that have it
[[nodiscard]] std::string not_of(verbs one, verbs owners, std::string_view option);

//! That nobody has an option, with those of the verb that are written nearly so.
[[nodiscard]] std::string
no_option(verbs one, std::string_view word, std::vector<std::string_view> const& names);

//! A paragraph of --help.
[[nodiscard]] std::string wrapped(std::string_view text);

//! The two columns of --help for one option.
[[nodiscard]] std::string describe_option(std::string_view spelling, std::string_view help);

//! Reads the words of a verb, `--name=value` as `--name value`.
//! @throws usage_error for what the verb does not have, twice the same, and a value that is missing
template <class Command>
[[nodiscard]] read_words read_options(std::span<option_reader<Command> const> all,
                                      verbs one,
                                      Command& into,
                                      std::span<char const* const> words) {
  read_words result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string_view const word = words[i];
    if (word.empty() || word.front() != '-') {
      result.names.push_back(word);
      continue;
    }
    std::size_t const equals = word.find('=');
    std::string_view const name = word.substr(0, equals);
    auto const found = std::find_if(all.begin(), all.end(), [name](auto const& each) {
      return name_in(each.what.spelling) == name;
    });
    if (found == all.end()) {
      std::vector<std::string_view> names;
      for (option_reader<Command> const& each : all)
        if (has(each.what.of, one))
          names.push_back(name_in(each.what.spelling));
      throw usage_error(no_option(one, name, names));
    }
    auto const [spelling, owners] = found->what;
    if (!has(owners, one))
      throw usage_error(not_of(one, owners, name));
    if (result.has(name))
      throw usage_error(std::string(name) + " stands twice");
    result.given.push_back(name_in(spelling));
    std::string_view value;
    if (equals != std::string_view::npos) {
      if (!takes_value(spelling))
        throw usage_error(std::string(name) + " takes no value");
      value = word.substr(equals + 1);
    } else if (takes_value(spelling)) {
      if (i + 1 == words.size() || std::string_view(words[i + 1]).substr(0, 2) == "--")
        throw usage_error(std::string(name) + " needs a value");
      value = words[++i];
    }
    found->read(into, name_in(spelling), value);
  }
  if (result.has("--json") && result.has("--format"))
    throw usage_error("--json is --format json; leave one of them out");
  return result;
}

//! Refuses words that are no options.
//! @throws usage_error
void no_names(verbs one, read_words const& read);

//! Numbers of stages: "0-2,5".
//! @throws usage_error
[[nodiscard]] std::vector<int> read_stage_numbers(std::string_view option, std::string_view word);
//! Numbers in increasing order as `read_stage_numbers` takes them.
[[nodiscard]] std::string write_stage_numbers(std::span<int const> stages);

} // namespace examples
