// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "command_line.hpp"

#include <pipe/io/append.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

#include "files.hpp"

namespace pp = pipelining;

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
  if (value != 0 && !(value >= 1e-12 && value <= 1e12))
    throw usage_error(std::string(option) + ": a time must be 0 or between 1e-12 and 1e12, not " +
                      quoted(word));
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
    all += (all.empty() ? "" : &each == std::end(named_adapters) - 1 ? " or " : ", ") +
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
    if (values[i] < 0 || values[i] > std::int64_t{1} << 40)
      throw usage_error(std::string(option) + ": sizes are between 0 and 2^40, not " +
                        quoted(rest.substr(0, comma)));
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

//! What a schedule from a file cannot be told, since the file says it.
void check_file_options(std::vector<std::string_view> const& given) {
  for (std::string_view const name : given)
    if (name != "--cost" && name != "--pair-cost" && name != "--all-reduce" && name != "--format" &&
        name != "--width" && name != "--iterations" && name != "--policy" && name != "--bytes" &&
        name != "--torch")
      throw usage_error("csv does not have the option " + std::string(name) +
                        ": the file says all but the costs");
}

//! An option that only some formats have.
struct format_option {
  std::string_view option;
  char const* formats;
  bool (*fits)(std::string const& format);
};

constexpr format_option format_options[] = {
  {"--width", "format text", [](std::string const& f) { return f == "text"; }},
  {"--iterations", "format text", [](std::string const& f) { return f == "text"; }},
  {"--policy",
   "formats calls and memory",
   [](std::string const& f) { return f == "calls" || f == "memory"; }},
  {"--bytes",
   "formats calls, memory and html",
   [](std::string const& f) { return f == "calls" || f == "memory" || f == "html"; }},
  {"--against", "format html", [](std::string const& f) { return f == "html"; }},
  {"--torch", "format pytorch-comms", [](std::string const& f) { return f == "pytorch-comms"; }},
};

void check_tokens(command const& result) {
  if (result.tokens.has_value() != result.attention_ratio.has_value() ||
      (result.even && !result.tokens))
    throw usage_error("--tokens and --attention-ratio belong together, and --even to both");
}

//! What costs of a file do not go with, and their means.
void check_measured(command& result) {
  if (!result.measured)
    return;
  if (result.tokens || result.attention_ratio)
    throw usage_error("--tokens and --attention-ratio do not go with a file of costs, which says "
                      "what every chunk takes");
  if (result.cost.overlapped_pair >= 0)
    throw usage_error("--pair-cost does not go with a file of costs, which has no times of pairs; "
                      "give --cost F,I,W");
  if (result.cost.all_reduce > 0)
    throw usage_error("--all-reduce does not go with a file of costs, whose times have it already");
  pp::shape const share{.devices = result.choice.devices};
  result.cost = mean_of(pp::costs_for(*result.measured, share), share);
}

//! What a search cannot be told.
void check_search(command& result, std::vector<std::string_view> const& given) {
  constexpr std::string_view known[] = {"--devices",
                                        "--microbatches",
                                        "--chunks",
                                        "--stages-per-device",
                                        "--cost",
                                        "--format",
                                        "--width",
                                        "--iterations",
                                        "--policy",
                                        "--bytes",
                                        "--torch",
                                        "--memory",
                                        "--seconds",
                                        "--moves",
                                        "--seed",
                                        "--goal",
                                        "--whole-backward",
                                        "--like"};
  for (std::string_view const name : given)
    if (std::find(std::begin(known), std::end(known), name) == std::end(known))
      throw usage_error("search does not have the option " + std::string(name));
  if (result.search.memory == 0)
    throw usage_error("--memory is missing: what a device may hold, in microbatches of its share "
                      "of the model; 1f1b holds as many as there are devices");
}

void check(command& result, std::vector<std::string_view> const& given) {
  auto const has_option = [&given](std::string_view name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  for (format_option const& each : format_options)
    if (has_option(each.option) && !each.fits(result.format))
      throw usage_error(std::string(each.option) + " is for the " + each.formats + " only");
  check_measured(result);
  if (result.choice.name == "csv")
    return check_file_options(given);
  for (std::string_view const name : {"--devices", "--microbatches"})
    if (!has_option(name))
      throw usage_error(std::string(name) + " is missing; see --help");
  bool const compares = result.what == command::task::compare;
  bool const searches = result.what == command::task::search;
  for (std::string_view const name :
       {"--memory", "--seconds", "--moves", "--seed", "--goal", "--whole-backward", "--like"})
    if (has_option(name) && !searches)
      throw usage_error("only search has the option " + std::string(name));
  if (searches)
    return check_search(result, given);
  if (result.format == "header")
    throw usage_error("only search has the format header; others have types of their own");
  if (compares && has_option("--with"))
    throw usage_error("compare does not have the option --with");
  bool const offloads = moves_activations(result.choice.adapted);
  if (has_option("--copy-cost") && !offloads)
    throw usage_error("--copy-cost is for --with offload, offload-half and offload-chunks only");
  if (has_option("--offloaded-stages") &&
      (!offloads || result.choice.adapted == adapter::offload_chunks))
    throw usage_error("--offloaded-stages is for --with offload and offload-half only");
  bool const recomputes = result.choice.adapted == adapter::recompute ||
                          result.choice.adapted == adapter::recompute_first;
  if (has_option("--recompute-cost") && (!recomputes || result.measured))
    throw usage_error("--recompute-cost is for --with recompute and recompute-first only, and not "
                      "for costs of a file");
  if (offloads && !(result.cost.copy_out > 0) && !result.measured)
    throw usage_error("--with offload needs --copy-cost T above 0: the time of a copy of an "
                      "activation to the host, or back");
  for (std::string_view const name : {"--gather", "--scatter"})
    if (has_option(name) && (!gathers_weights(result.choice.adapted) || result.measured))
      throw usage_error(std::string(name) +
                        " is for --with sharded-weights, gathered-once and weights-on-host "
                        "only, and not for costs of a file");
  if (has_option("--vocabulary-cost") && !has_shards(result.choice.adapted))
    throw usage_error(
      "--vocabulary-cost is for a vocabulary in shards only, such as --with vocabulary-2");
  bool const exchanges = result.choice.adapted == adapter::attention_exchange;
  if (has_shards(result.choice.adapted) && (result.measured || result.tokens))
    throw usage_error("a vocabulary in shards wants --cost F,I,W and --vocabulary-cost, not costs "
                      "of a file or of tokens, which say nothing of shards");
  if (exchanges && (!has_option("--tokens") || !has_option("--attention-ratio")))
    throw usage_error("--with attention-exchange needs --tokens and --attention-ratio: how much of "
                      "the work is attention; chunks are of equal length");
  if (compares && result.format != "text" && result.format != "csv" && result.format != "json")
    throw usage_error("compare has the formats text, csv and json");
  if (compares && has_option("--width"))
    throw usage_error("compare does not have the option --width");
  if (compares && has_option("--iterations"))
    throw usage_error("compare does not have the option --iterations");
  if (!compares) {
    named_schedule const& schedule = find_schedule(result.choice.name);
    for (std::string_view const name : {"--tokens", "--attention-ratio", "--even"})
      if (has_option(name) && !has(schedule.takes, option::chunks))
        throw usage_error(std::string(schedule.name) +
                          " has no chunks, so it does not have the option " + std::string(name));
    if (has_option("--pair-cost") && !has(schedule.takes, option::pair_cost) &&
        result.against.empty())
      throw usage_error(std::string(schedule.name) + " does not have the option --pair-cost");
  }
  check_tokens(result);
  if (result.tokens && !result.cost_given) {
    // The times that the work itself has, for a forward pass of 1.
    double const ratio = result.attention_ratio.value();
    result.cost.backward_input = (1 + 2.5 * ratio) / (1 + ratio);
    result.cost.backward_weight = 1 / (1 + ratio);
  }
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

std::string describe_setting(command const& asked) {
  // A time as it was given; means have more digits than anybody reads.
  auto const time = [&asked](double value) {
    std::string text;
    if (asked.measured)
      pipelining::append_significant(text, value, 4);
    else
      pipelining::append(text, value);
    return text;
  };
  std::string text;
  pipelining::append(
    text, asked.choice.devices, " devices, ", asked.choice.microbatches, " microbatches; ");
  if (asked.measured)
    pipelining::append(text, "costs from ", asked.cost_file, ", in the mean ");
  pipelining::append(
    text, "a device's share of the model takes forward ", time(asked.cost.forward));
  pipelining::append(text, ", backward_input ", time(asked.cost.backward_input));
  pipelining::append(text, ", backward_weight ", time(asked.cost.backward_weight));
  pipelining::append(text, "; a message takes ", time(asked.cost.communication), "\n");
  return text;
}

std::string help_text() {
  return "usage: timetable NAME --devices P --microbatches M [option ...]\n"
         "       timetable csv FILE [option ...]\n"
         "       timetable compare --devices P --microbatches M [option ...]\n"
         "       timetable search --devices P --microbatches M --memory X [option ...]\n"
         "       timetable choose --help\n"
         "       timetable systems OPTIONS OF CHOOSE\n"
         "       timetable blocks [--devices P] [--legs N] [--chunks C,...] [--format "
         "text|svg|cpp]\n"
         "       timetable gaps --devices P --microbatches M [--cost F,I,W[,COMM]]\n"
         "       timetable reproduce TABLE\n"
         "       timetable --list\n"
         "\n"
         "Prints the timetable of a pipeline schedule: which device runs which pass when. FILE is\n"
         "a schedule in the format of torch.distributed.pipelining, with or without messages.\n"
         "compare prints one line of figures for every schedule; its costs, limits and peaks are\n"
         "those of a device's share of the model for a whole microbatch, so that all do the same\n"
         "work. systems prints a table of all of them for one model, as choose takes it: time,\n"
         "memory and messages. blocks prints the least bubble that building blocks give for their\n"
         "memory. search makes better orders of its own; its costs and its limit are those of a\n"
         "share, too.\n"
         "\n"
         "  --devices P            devices of the pipeline\n"
         "  --microbatches M       microbatches of one step\n"
         "  --cost F,I,W[,COMM]    times of one forward, one backward for the input and one\n"
         "                         for the weights of one stage (of one chunk where there are\n"
         "                         chunks), and of one message; a fused backward takes I + W;\n"
         "                         default 1,1,1,0\n"
         "  --cost FILE            times that were measured, of every stage and chunk; see\n"
         "                         docs/how_to/measure_and_plan_again.md\n"
         "  --format FORMAT        text (default), csv (one line per pass), json, svg,\n"
         "                         html (a page to zoom into, with sliders for the times),\n"
         "                         trace (for ui.perfetto.dev and chrome://tracing), pytorch or\n"
         "                         pytorch-comms (a FILE without and with messages), calls (of\n"
         "                         CUDA and NCCL), or memory (slots and where they lie)\n"
         "  --against NAME         of html: a second schedule below, with the same work\n"
         "  --torch VERSION        of pytorch-comms: the version that reads the file, 2.10 to\n"
         "                         2.15 (default)\n"
         "  --policy POLICY        of calls and memory: one communicator for the pipeline, for\n"
         "                         each pair of devices (default) or for each directed edge; or\n"
         "                         exchange: one, in which shards of a vocabulary exchange at "
         "once\n"
         "  --bytes M[,A,W,S,G,T,R] of calls, memory and html: sizes of a message, an activation,\n"
         "                         what is kept for the weights, the state of a sequence and its\n"
         "                         gradient, the gradient of a tied weight, a row of totals\n"
         "  --with WHAT            the schedule in an adapter: recompute, recompute-first (the\n"
         "                         first stage of every device alone), offload, offload-half,\n"
         "                         offload-chunks (what hides behind the next chunk),\n"
         "                         vocabulary-1 or vocabulary-2 (embedding and output layer in a\n"
         "                         shard per device, one or two barriers), vocabulary-interlaced\n"
         "                         (all devices do it at once), sharded-weights\n"
         "                         (gathered for every visit of a stage), gathered-once,\n"
         "                         weights-on-host (of the last stage of every device), or of\n"
         "                         slimpipe attention-exchange (devices take over attention of\n"
         "                         each other, with --tokens and --attention-ratio)\n"
         "  --gather T, --scatter T\n"
         "                         of such weights: time of a gather of a stage's weights (or of\n"
         "                         a load), and of a scatter of its gradients; default 0\n"
         "  --recompute-cost T     of recompute: time of a recompute; default: as a forward pass\n"
         "  --copy-cost T          of offload: time of a copy to the host, or back\n"
         "  --offloaded-stages K   of offload: only activations of the first K stages of a device\n"
         "  --vocabulary-cost E,S,T,G[,BROADCAST,REDUCE]\n"
         "                         times of the passes of shards (default 1 each) and of their\n"
         "                         exchanges (default: as messages)\n"
         "  --limit-seconds N      give a search up after this time\n"
         "  --width N              columns of text; default: those of the terminal, else 100\n"
         "  --iterations N         say how long N iterations take in a row, with a barrier at the\n"
         "                         optimizer's step and with its validation in the next iteration\n"
         "\n"
         "Options of search:\n"
         "\n"
         "  --memory X             what a device may hold, in microbatches of its share of the "
         "model\n"
         "  --seconds N            the time it may take; default 10\n"
         "  --moves N              the changes that it may try, for the same result on any "
         "machine\n"
         "  --seed N               other numbers give other orders; default 1\n"
         "  --goal GOAL            makespan (default) or span, the papers' denominator\n"
         "  --whole-backward       backward passes in one piece\n"
         "  --like NAME            only on the placement of this schedule\n"
         "  --format header        the order as a C++ type\n"
         "\n"
         "Options of some schedules (--list says which and what the default is):\n"
         "\n"
         "  --chunks C             chunks of a sequence\n"
         "  --tokens S             tokens of a sequence; chunks get equal work, --cost is the\n"
         "                         mean over them (by default 1 for a forward pass, and what\n"
         "                         the work takes for the others), and their lengths are\n"
         "                         printed; with\n"
         "  --attention-ratio A    forward work of attention over that of all else, for S tokens\n"
         "  --even                 chunks of equal length instead\n"
         "  --stages-per-device V  stages of the model on each device\n"
         "  --group N              microbatches that travel together\n"
         "  --forwards N           forward passes of a device before its first backward pass, at "
         "most\n"
         "  --forward-stages N     stages that go forward, in equal shares all layers but the "
         "last\n"
         "  --backward-stages N    stages that go back, of a layer each, whose time --cost is\n"
         "  --chunk-counts C,C,... chunks of the microbatches in turn, from the first again behind "
         "the "
         "last\n"
         "  --keep K               chunks of a microbatch whose activations are kept, at most\n"
         "  --memory-limit X       activations of a device, in microbatches of one stage\n"
         "  --eager                forward passes as early as possible, to hide messages\n"
         "  --unfused              overlapped pairs as two passes\n"
         "  --pair-cost T          time of an overlapped pair; default: the sum of both passes\n"
         "  --all-reduce T         what a forward pass or backward_input that runs alone waits "
         "for\n"
         "                         its tensor parallel group; hidden in a pair and a whole "
         "backward\n";
}

} // namespace examples
