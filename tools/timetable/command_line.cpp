// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "command_line.hpp"

#include <pipe/flow/limits.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

#include "command_checks.hpp"
#include "files.hpp"

namespace examples {
namespace {

constexpr std::string_view formats[] = {"text",
                                        "csv",
                                        "json",
                                        "svg",
                                        "html",
                                        "trace",
                                        "pytorch",
                                        "pytorch-comms",
                                        "calls",
                                        "memory",
                                        "header"};

constexpr std::string_view torch_versions[] = {"2.10", "2.11", "2.12", "2.13", "2.14", "2.15"};

template <class Number>
Number read_number(std::string_view option, std::string_view word, char const* wanted) {
  Number value{};
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  bool const too_large = error == std::errc::result_out_of_range;
  if ((error != std::errc() && !too_large) || end != word.data() + word.size())
    throw usage_error(std::string(option) + " wants " + wanted + ", not " + quoted(word));
  if (too_large)
    throw usage_error(std::string(option) + ": the number " + quoted(word) + " is out of range");
  return value;
}

int read_extent(std::string_view option, std::string_view word) {
  int const value = read_number<int>(option, word, "a whole number");
  if (value < 1)
    throw usage_error(std::string(option) + " must be at least 1, not " + quoted(word));
  return value;
}

double read_time(std::string_view option, std::string_view word) {
  double const value = read_number<double>(option, word, "a number");
  if (!pipelining::time_range.contains(value))
    throw usage_error(std::string(option) + ": a time must be " + pipelining::time_range.words +
                      ", not " + quoted(word));
  return value;
}

pipelining::uniform_cost read_cost(std::string_view option, std::string_view word) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = word; parts.size() < 6;) {
    std::size_t const comma = rest.find(',');
    parts.push_back(rest.substr(0, comma));
    if (comma == std::string_view::npos)
      break;
    rest.remove_prefix(comma + 1);
  }
  if (parts.size() != 3 && parts.size() != 4)
    throw usage_error(std::string(option) + " wants 3 or 4 times, F,I,W or F,I,W,COMM, not " +
                      quoted(word));
  pipelining::uniform_cost cost;
  cost.forward = read_time(option, parts[0]);
  cost.backward_input = read_time(option, parts[1]);
  cost.backward_weight = read_time(option, parts[2]);
  cost.communication = parts.size() == 4 ? read_time(option, parts[3]) : 0;
  if (cost.forward + cost.backward_input + cost.backward_weight <= 0)
    throw usage_error(std::string(option) + ": at least one of F, I and W must be above 0");
  return cost;
}

std::string read_format(std::string_view option, std::string_view word) {
  if (std::find(std::begin(formats), std::end(formats), word) == std::end(formats)) {
    std::string all;
    for (std::string_view const each : formats)
      all += (all.empty() ? "" : each == std::end(formats)[-1] ? " or " : ", ") + std::string(each);
    throw usage_error(std::string(option) + " wants " + all + ", not " + quoted(word));
  }
  return std::string(word);
}

adapter read_adapter(std::string_view option, std::string_view word) {
  std::string all;
  for (named_adapter const& each : named_adapters) {
    if (each.name == word)
      return each.which;
    all += (all.empty()                             ? ""
            : &each == std::end(named_adapters) - 1 ? " or "
                                                    : ", ") +
           std::string(each.name);
  }
  throw usage_error(std::string(option) + " wants " + all + ", not " + quoted(word));
}

//! Times of the passes of shards and, as far as given, of a broadcast and a reduce.
void read_vocabulary_cost(pipelining::uniform_cost& cost,
                          std::string_view option,
                          std::string_view word) {
  double* const times[] = {&cost.embed,
                           &cost.logits,
                           &cost.logits_gradient,
                           &cost.embed_gradient,
                           &cost.broadcast,
                           &cost.reduce};
  std::string_view rest = word;
  std::size_t count = 0;
  for (; count < std::size(times); ++count) {
    std::size_t const comma = rest.find(',');
    *times[count] = read_time(option, rest.substr(0, comma));
    if (comma == std::string_view::npos)
      break;
    rest.remove_prefix(comma + 1);
  }
  if (count != 3 && count != 5)
    throw usage_error(std::string(option) +
                      " wants 4 or 6 times, E,S,T,G or E,S,T,G,BROADCAST,REDUCE, not " +
                      quoted(word));
}

std::string read_policy(std::string_view option, std::string_view word) {
  if (word != "pipeline" && word != "pair" && word != "edge" && word != "exchange")
    throw usage_error(std::string(option) + " wants pipeline, pair, edge or exchange, not " +
                      quoted(word));
  return std::string(word);
}

//! Bytes of a message and, as far as given, of an activation, a weight input, the state of a
//! sequence and its gradient, the gradient of a tied weight and a row of totals.
pipelining::uniform_sizes read_sizes(std::string_view option, std::string_view word) {
  std::int64_t values[7]{};
  std::string_view rest = word;
  for (std::size_t i = 0;; ++i) {
    if (i == std::size(values))
      throw usage_error(std::string(option) + " wants at most 7 numbers, not " + quoted(word));
    std::size_t const comma = rest.find(',');
    values[i] = read_number<std::int64_t>(option, rest.substr(0, comma), "numbers of bytes");
    if (!pipelining::byte_range.contains(static_cast<double>(values[i])))
      throw usage_error(std::string(option) + ": a size must be " + pipelining::byte_range.words +
                        ", not " + quoted(rest.substr(0, comma)));
    if (comma == std::string_view::npos)
      break;
    rest.remove_prefix(comma + 1);
  }
  return {values[0], values[1], values[2], values[3], values[4], values[5], values[6]};
}

//! The chunks of microbatches: 1,1,4.
std::vector<int> read_counts(std::string_view option, std::string_view word) {
  std::vector<int> counts;
  for (std::string_view rest = word;;) {
    std::size_t const comma = rest.find(',');
    counts.push_back(read_extent(option, rest.substr(0, comma)));
    if (comma == std::string_view::npos)
      return counts;
    rest.remove_prefix(comma + 1);
  }
}

//! One option: its name, whether a value follows, and what it does.
struct option_reader {
  std::string_view name;
  bool has_value;
  void (*read)(command&, std::string_view option, std::string_view word);
};

constexpr option_reader options[] = {
  {"--devices",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.devices = read_extent(option, word);
   }},
  {"--microbatches",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.microbatches = read_extent(option, word);
   }},
  {"--chunks",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.chunks = read_extent(option, word);
   }},
  {"--stages-per-device",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.stages_per_device = read_extent(option, word);
   }},
  {"--group",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.group = read_extent(option, word);
   }},
  {"--forwards",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.forwards = read_extent(option, word);
   }},
  {"--forward-stages",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.forward_stages = read_extent(option, word);
   }},
  {"--backward-stages",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.backward_stages = read_extent(option, word);
   }},
  {"--chunk-counts",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.chunk_counts = read_counts(option, word);
   }},
  {"--keep",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.keep = read_extent(option, word);
   }},
  {"--memory-limit",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     double const limit = read_number<double>(option, word, "a number");
     if (!(limit > 0) || limit > 1e9)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e9, not " +
                         quoted(word));
     c.choice.memory_limit = limit;
   }},
  {"--eager", false, [](command& c, std::string_view, std::string_view) { c.choice.eager = true; }},
  {"--unfused",
   false,
   [](command& c, std::string_view, std::string_view) { c.choice.unfused = true; }},
  {"--pair-cost",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.overlapped_pair = read_time(option, word);
   }},
  {"--all-reduce",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.all_reduce = read_time(option, word);
   }},
  {"--cost",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost_given = true;
     if (names_cost_file(word)) {
       c.cost_file = std::string(word);
       c.measured = read_cost_file(option, word);
       return;
     }
     pipelining::uniform_cost const given = read_cost(option, word);
     c.cost.forward = given.forward;
     c.cost.backward_input = given.backward_input;
     c.cost.backward_weight = given.backward_weight;
     c.cost.communication = given.communication;
   }},
  {"--with",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.adapted = read_adapter(option, word);
   }},
  {"--copy-cost",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.copy_out = c.cost.copy_in = read_time(option, word);
   }},
  {"--gather",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.gather = read_time(option, word);
   }},
  {"--scatter",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.scatter = read_time(option, word);
   }},
  {"--recompute-cost",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.recompute = read_time(option, word);
   }},
  {"--offloaded-stages",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.offloaded_stages = read_extent(option, word);
   }},
  {"--vocabulary-cost",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     read_vocabulary_cost(c.cost, option, word);
   }},
  {"--tokens",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.tokens = read_extent(option, word);
   }},
  {"--attention-ratio",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     double const ratio = read_number<double>(option, word, "a number");
     if (!(ratio >= 0) || ratio > 1e6)
       throw usage_error(std::string(option) + " must be between 0 and 1e6, not " + quoted(word));
     c.attention_ratio = ratio;
   }},
  {"--even", false, [](command& c, std::string_view, std::string_view) { c.even = true; }},
  {"--format",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.format = read_format(option, word);
   }},
  {"--against",
   true,
   [](command& c, std::string_view, std::string_view word) {
     c.against = find_schedule(word).name;
   }},
  {"--torch",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     if (std::find(std::begin(torch_versions), std::end(torch_versions), word) ==
         std::end(torch_versions))
       throw usage_error(std::string(option) + " wants a version from 2.10 to 2.15, not " +
                         quoted(word));
     c.torch = word;
   }},
  {"--limit-seconds",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     double const seconds = read_number<double>(option, word, "a number");
     if (!(seconds > 0) || seconds > 1e6)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e6, not " +
                         quoted(word));
     c.limit_seconds = seconds;
   }},
  {"--policy",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.policy = read_policy(option, word);
   }},
  {"--bytes",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.sizes = read_sizes(option, word);
     c.sizes_given = true;
   }},
  {"--memory",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.search.memory = read_number<double>(option, word, "a number");
     if (!(c.search.memory > 0) || c.search.memory > 1e6)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e6, not " +
                         quoted(word));
   }},
  {"--seconds",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.search.seconds = read_number<double>(option, word, "a number");
     if (!(c.search.seconds > 0) || c.search.seconds > 1e6)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e6, not " +
                         quoted(word));
   }},
  {"--moves",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.search.moves = read_number<std::int64_t>(option, word, "a whole number");
     if (c.search.moves < 1)
       throw usage_error(std::string(option) + " must be at least 1, not " + quoted(word));
   }},
  {"--seed",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.search.seed = read_number<std::uint64_t>(option, word, "a whole number");
   }},
  {"--goal",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     if (word != "makespan" && word != "span")
       throw usage_error(std::string(option) + " wants makespan or span, not " + quoted(word));
     c.search.goal =
       word == "span" ? pipelining::search_goal::span : pipelining::search_goal::makespan;
   }},
  {"--whole-backward",
   false,
   [](command& c, std::string_view, std::string_view) { c.search.split_backward = false; }},
  {"--like",
   true,
   [](command& c, std::string_view, std::string_view word) {
     c.search.like = find_schedule(word).name;
   }},
  {"--width",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.width = read_extent(option, word);
     if (c.width > 10000)
       throw usage_error(std::string(option) + " must be at most 10000, not " + quoted(word));
   }},
  {"--iterations",
   true,
   [](command& c, std::string_view option, std::string_view word) {
     c.iterations = read_extent(option, word);
   }},
};

option_reader const& find_option(std::string_view word) {
  std::vector<std::string_view> names;
  for (option_reader const& each : options) {
    if (each.name == word)
      return each;
    names.push_back(each.name);
  }
  std::string const near = near_names(word, names);
  throw usage_error("there is no option " + quoted(word) +
                    (near.empty() ? "; see --help" : "; did you mean " + near + "?"));
}

} // namespace

command read_command_line(int count, char const* const* words) {
  command result;
  std::vector<std::string_view> names;
  std::vector<std::string_view> given;
  for (int i = 1; i < count; ++i) {
    std::string_view word = words[i];
    if (word == "--help" || word == "-h" || word == "--list") {
      if (count > 2)
        throw usage_error(quoted(word) + " stands alone");
      result.what = word == "--list" ? command::task::list : command::task::help;
      return result;
    }
    if (word.empty() || word.front() != '-') {
      names.push_back(word);
      continue;
    }
    std::size_t const equals = word.find('=');
    option_reader const& reader = find_option(word.substr(0, equals));
    if (std::find(given.begin(), given.end(), reader.name) != given.end())
      throw usage_error(std::string(reader.name) + " stands twice");
    given.push_back(reader.name);
    std::string_view value;
    if (equals != std::string_view::npos) {
      if (!reader.has_value)
        throw usage_error(std::string(reader.name) + " takes no value");
      value = word.substr(equals + 1);
    } else if (reader.has_value) {
      if (i + 1 == count || std::string_view(words[i + 1]).substr(0, 2) == "--")
        throw usage_error(std::string(reader.name) + " needs a value");
      value = words[++i];
    }
    reader.read(result, reader.name, value);
  }
  if (names.empty())
    throw usage_error("the name of a schedule is missing; --list shows all, --help the options");
  result.choice.name = std::string(names[0]);
  if (names[0] == "compare")
    result.what = command::task::compare;
  if (names[0] == "search")
    result.what = command::task::search;
  std::size_t const wanted = names[0] == "csv" ? 2 : 1;
  if (names.size() < wanted)
    throw usage_error("csv needs the name of a file");
  if (names.size() > wanted)
    throw usage_error("more than the name of a schedule: " + quoted(names[wanted]));
  if (wanted == 2)
    result.file = std::string(names[1]);
  check(result, given);
  return result;
}

} // namespace examples
