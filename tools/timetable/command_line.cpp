// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "command_line.hpp"

#include <pipe/flow/limits.hpp>
#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

#include "command_checks.hpp"
#include "files.hpp"
#include "layouts.hpp"

namespace examples {
namespace {

//! The values of --format. `check` says which of them are for other verbs.
word_list formats(verbs one) {
  if (one == verbs::compare)
    return {"text", "csv", "json"};
  if (one == verbs::gaps)
    return {"text", "json"};
  word_list all{
    "text", "csv", "json", "svg", "html", "trace", "pytorch", "pytorch-comms", "calls", "memory"};
  if (one == verbs::search)
    all.push_back("header");
  return all;
}

word_list torch_versions(verbs) {
  return {"2.10", "2.11", "2.12", "2.13", "2.14", "2.15"};
}

word_list policies(verbs) {
  return {"pipeline", "pair", "edge", "exchange"};
}

word_list goals(verbs) {
  return {"makespan", "span"};
}

word_list schedule_names(verbs) {
  return names_in(named_schedules());
}

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

void read_parts(stage_layout& layout, std::string_view option, std::string_view word) {
  std::string_view rest = word;
  for (double* const part : {&layout.embedding, &layout.module, &layout.output}) {
    std::size_t const comma = rest.find(',');
    if ((comma == rest.npos) != (part == &layout.output))
      throw usage_error(std::string(option) + " wants 3 numbers, E,m,L, not " + quoted(word));
    *part = read_time(option, rest.substr(0, comma));
    rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
  }
}

adapter read_adapter(std::string_view option, std::string_view word) {
  std::string const name = one_of(option, word, names_in(named_adapters));
  return std::find_if(std::begin(named_adapters),
                      std::end(named_adapters),
                      [&name](named_adapter const& each) { return each.name == name; })
    ->which;
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

//! Those that are told the size of a pipeline.
constexpr verbs sized = verbs::timetable | verbs::compare | verbs::search | verbs::gaps;
//! Those that make schedules by their names.
constexpr verbs named = verbs::timetable | verbs::compare;
//! Those that put a schedule into an adapter.
constexpr verbs adapting = verbs::timetable | verbs::csv;
//! Those that print one timetable.
constexpr verbs printed = verbs::timetable | verbs::csv | verbs::search;

//! In the order of --help.
constexpr option_reader<command> options[] = {
  {"--devices",
   "P",
   sized,
   "devices of the pipeline",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.devices = read_extent(option, word);
   }},
  {"--microbatches",
   "M",
   sized,
   "microbatches of one step",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.microbatches = read_extent(option, word);
   }},
  {"--cost",
   "F,I,W[,COMM]|FILE",
   sized | verbs::csv,
   "times of one forward, one backward for the input and one for the weights of one stage (of one "
   "chunk where there are chunks), and of one message; a fused backward takes I + W; default "
   "1,1,1,0. Or a file of times that were measured, of every stage and chunk: see "
   "docs/how_to/measure_and_plan_again.md",
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
  {"--layout",
   "LAYOUT",
   named | verbs::csv | verbs::search,
   "the parts of every stage as Megatron-LM writes them, Et*3|(tt|)*29,m|L: --cost has the times "
   "of "
   "a layer t; only pipelines with as many stages",
   [](command& c, std::string_view option, std::string_view word) {
     c.layout.text = std::string(word);
     c.layout.stages = read_stages(option, word);
   }},
  {"--parts",
   "E,m,L",
   named | verbs::csv | verbs::search,
   "of --layout: times of an embedding, of a module for further tokens and of an output layer, in "
   "those of a layer; default 0,1,1",
   [](command& c, std::string_view option, std::string_view word) {
     read_parts(c.layout, option, word);
   }},
  {"--format",
   "FORMAT",
   sized | verbs::csv,
   "text (default), csv (one line per pass), json, svg, html (a page to zoom into, with sliders "
   "for the times), trace (for ui.perfetto.dev and chrome://tracing), pytorch or pytorch-comms (a "
   "FILE without and with messages), calls (of CUDA and NCCL), or memory (slots and where they "
   "lie); compare has text, csv and json, gaps text and json; search also has header, the order as "
   "a "
   "C++ type",
   [](command& c, std::string_view option, std::string_view word) {
     c.format = one_of(option, word, formats(c.verb));
   },
   formats},
  json_option<command>(sized | verbs::csv),
  {"--output",
   "FILE",
   printed,
   "where it is written, in place of standard output; of what is refused no file is left",
   [](command& c, std::string_view, std::string_view word) { c.output = std::string(word); }},
  {"--against",
   "NAME",
   verbs::timetable,
   "of html: a second schedule below, with the same work",
   [](command& c, std::string_view, std::string_view word) {
     c.against = find_schedule(word).name;
   },
   schedule_names},
  {"--torch",
   "VERSION",
   printed,
   "of pytorch-comms: the version that reads the file, 2.10 to 2.15 (default)",
   [](command& c, std::string_view option, std::string_view word) {
     c.torch = one_of(option, word, torch_versions(c.verb));
   },
   torch_versions},
  {"--policy",
   "POLICY",
   printed,
   "of calls and memory: pipeline (one communicator), pair (default, one for each pair of "
   "devices), edge (one for each directed edge), or exchange (one, in which shards of a vocabulary "
   "exchange at once)",
   [](command& c, std::string_view option, std::string_view word) {
     c.policy = one_of(option, word, policies(c.verb));
   },
   policies},
  {"--bytes",
   "M[,A,W,S,G,T,R]",
   printed,
   "of calls, memory and html: sizes of a message, an activation, what is kept for the weights, "
   "the state of a sequence and its gradient, the gradient of a tied weight, a row of totals",
   [](command& c, std::string_view option, std::string_view word) {
     c.sizes = read_sizes(option, word);
     c.sizes_given = true;
   }},
  {"--with",
   "WHAT",
   adapting,
   "the schedule in an adapter: recompute, recompute-first (only the first stage of every device), "
   "offload, offload-half, offload-chunks (what hides in the passes of the next chunk), "
   "vocabulary-1 or vocabulary-2 (embedding and output layer in a shard per device, one or two "
   "barriers), vocabulary-interlaced (all devices do it at once), sharded-weights (gathered for "
   "every visit of a stage), gathered-once, weights-on-host (of the last stage of every device), "
   "or, of slimpipe, attention-exchange (devices take over attention of each other, with --tokens "
   "and --attention-ratio)",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.adapted = read_adapter(option, word);
   },
   [](verbs) { return names_in(named_adapters); }},
  {"--frozen",
   "N",
   verbs::timetable,
   "the first N stages have nothing to train: they only go forward",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.frozen = read_extent(option, word);
   }},
  {"--gather",
   "T",
   adapting,
   "of weights in shards or on the host: time of a gather of a stage's weights, or of a load; "
   "default 0",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.gather = read_time(option, word);
   }},
  {"--scatter",
   "T",
   adapting,
   "of the same: time of a scatter of a stage's gradients; default 0",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.scatter = read_time(option, word);
   }},
  {"--resident",
   "K",
   adapting,
   "of sharded-weights: the weights of a stage stay while it is among the next K of its device; "
   "default 2",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.resident = read_extent(option, word);
   }},
  {"--prefetch",
   "N",
   adapting,
   "of sharded-weights: stages ahead whose weights are gathered; default 1",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.prefetch = read_extent(option, word);
   }},
  {"--recompute-cost",
   "T",
   adapting,
   "of recompute: time of a recompute; default: as a forward pass",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.recompute = read_time(option, word);
   }},
  {"--copy-cost",
   "T",
   adapting,
   "of offload: time of a copy to the host, or back",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.copy_out = c.cost.copy_in = read_time(option, word);
   }},
  {"--offloaded-stages",
   "K",
   adapting,
   "of offload: only activations of the first K stages of a device",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.offloaded_stages = read_extent(option, word);
   }},
  {"--vocabulary-cost",
   "E,S,T,G[,BROADCAST,REDUCE]",
   adapting,
   "times of the passes of shards (default 1 each) and of their exchanges (default: as messages)",
   [](command& c, std::string_view option, std::string_view word) {
     read_vocabulary_cost(c.cost, option, word);
   }},
  {"--limit-seconds",
   "N",
   named,
   "give a search up after this time",
   [](command& c, std::string_view option, std::string_view word) {
     double const seconds = read_number<double>(option, word, "a number");
     if (!(seconds > 0) || seconds > 1e6)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e6, not " +
                         quoted(word));
     c.limit_seconds = seconds;
   }},
  {"--width",
   "N",
   printed,
   "columns of text; default: those of the terminal, else 100",
   [](command& c, std::string_view option, std::string_view word) {
     c.width = read_extent(option, word);
     if (c.width > 10000)
       throw usage_error(std::string(option) + " must be at most 10000, not " + quoted(word));
   }},
  {"--iterations",
   "N",
   printed,
   "say how long N iterations take in a row, with a barrier at the optimizer's step and with its "
   "validation in the next iteration",
   [](command& c, std::string_view option, std::string_view word) {
     c.iterations = read_extent(option, word);
   }},
  {"--memory",
   "X",
   verbs::search,
   "what a device may hold, in microbatches of its share of the model",
   [](command& c, std::string_view option, std::string_view word) {
     c.search.memory = read_number<double>(option, word, "a number");
     if (!(c.search.memory > 0) || c.search.memory > 1e6)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e6, not " +
                         quoted(word));
   }},
  {"--seconds",
   "N",
   verbs::search,
   "the time it may take; default 10",
   [](command& c, std::string_view option, std::string_view word) {
     c.search.seconds = read_number<double>(option, word, "a number");
     if (!(c.search.seconds > 0) || c.search.seconds > 1e6)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e6, not " +
                         quoted(word));
   }},
  {"--moves",
   "N",
   verbs::search,
   "the changes that it may try, for the same result on any machine",
   [](command& c, std::string_view option, std::string_view word) {
     c.search.moves = read_number<std::int64_t>(option, word, "a whole number");
     if (c.search.moves < 1)
       throw usage_error(std::string(option) + " must be at least 1, not " + quoted(word));
   }},
  {"--seed",
   "N",
   verbs::search,
   "other numbers give other orders; default 1",
   [](command& c, std::string_view option, std::string_view word) {
     c.search.seed = read_number<std::uint64_t>(option, word, "a whole number");
   }},
  {"--goal",
   "GOAL",
   verbs::search,
   "makespan (default) or span, the papers' denominator",
   [](command& c, std::string_view option, std::string_view word) {
     c.search.goal = one_of(option, word, goals(c.verb)) == "span"
                       ? pipelining::search_goal::span
                       : pipelining::search_goal::makespan;
   },
   goals},
  {"--whole-backward",
   "",
   verbs::search,
   "backward passes in one piece",
   [](command& c, std::string_view, std::string_view) { c.search.split_backward = false; }},
  {"--like",
   "NAME",
   verbs::search,
   "only on the placement of this schedule",
   [](command& c, std::string_view, std::string_view word) {
     c.search.like = find_schedule(word).name;
   },
   schedule_names},
  {"--chunks",
   "C",
   verbs::timetable | verbs::compare | verbs::search,
   "chunks of a sequence",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.chunks = read_extent(option, word);
   }},
  {"--tokens",
   "S",
   named,
   "tokens of a sequence; chunks get equal work, --cost is the mean over them (by default 1 for a "
   "forward pass, and what the work takes for the others), and their lengths are printed",
   [](command& c, std::string_view option, std::string_view word) {
     c.tokens = read_extent(option, word);
   }},
  {"--attention-ratio",
   "A",
   named,
   "with --tokens: forward work of attention over that of all else, for S tokens",
   [](command& c, std::string_view option, std::string_view word) {
     double const ratio = read_number<double>(option, word, "a number");
     if (!(ratio >= 0) || ratio > 1e6)
       throw usage_error(std::string(option) + " must be between 0 and 1e6, not " + quoted(word));
     c.attention_ratio = ratio;
   }},
  {"--even",
   "",
   named,
   "with --tokens: chunks of equal length instead",
   [](command& c, std::string_view, std::string_view) { c.even = true; }},
  {"--stages-per-device",
   "V",
   verbs::timetable | verbs::compare | verbs::search,
   "stages of the model on each device",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.stages_per_device = read_extent(option, word);
   }},
  {"--group",
   "N",
   named,
   "microbatches that travel together",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.group = read_extent(option, word);
   }},
  {"--forwards",
   "N",
   named,
   "forward passes of a device before its first backward pass, at most",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.forwards = read_extent(option, word);
   }},
  {"--forward-stages",
   "N",
   named,
   "stages that go forward, in equal shares all layers but the last",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.forward_stages = read_extent(option, word);
   }},
  {"--backward-stages",
   "N",
   named,
   "stages that go back, of a layer each, whose time --cost is",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.backward_stages = read_extent(option, word);
   }},
  {"--chunk-counts",
   "C,C,...",
   named,
   "chunks of the microbatches in turn; after the last, from the first again",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.chunk_counts = read_counts(option, word);
   }},
  {"--keep",
   "K",
   named,
   "chunks of a microbatch whose activations are kept, at most",
   [](command& c, std::string_view option, std::string_view word) {
     c.choice.keep = read_extent(option, word);
   }},
  {"--memory-limit",
   "X",
   named,
   "activations of a device, in microbatches of one stage",
   [](command& c, std::string_view option, std::string_view word) {
     double const limit = read_number<double>(option, word, "a number");
     if (!(limit > 0) || limit > 1e9)
       throw usage_error(std::string(option) + " must be above 0 and at most 1e9, not " +
                         quoted(word));
     c.choice.memory_limit = limit;
   }},
  {"--eager",
   "",
   named,
   "forward passes as early as possible, to hide messages",
   [](command& c, std::string_view, std::string_view) { c.choice.eager = true; }},
  {"--unfused",
   "",
   named,
   "overlapped pairs as two passes",
   [](command& c, std::string_view, std::string_view) { c.choice.unfused = true; }},
  {"--pair-cost",
   "T",
   named | verbs::csv,
   "time of an overlapped pair; default: the sum of both passes",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.overlapped_pair = read_time(option, word);
   }},
  {"--all-reduce",
   "T",
   named | verbs::csv,
   "how long a forward pass or backward_input that runs by itself waits for its tensor parallel "
   "group; hidden in a pair and in a whole backward",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.all_reduce = read_time(option, word);
   }},
};

} // namespace

std::vector<offered_option> command_options(verbs one) {
  return offered<command>(options, one);
}

command read_command_line(verbs verb, std::span<char const* const> words) {
  command result;
  result.verb = verb;
  read_words const read = read_options<command>(options, verb, result, words);
  if (verb == verbs::timetable || verb == verbs::csv) {
    if (read.names.empty())
      throw usage_error(verb == verbs::csv
                          ? "csv needs the name of a file"
                          : "the name of a schedule is missing; --list shows all, --help the "
                            "options");
    if (read.names.size() > 1)
      throw usage_error("more than the name of a " +
                        std::string(verb == verbs::csv ? "file: " : "schedule: ") +
                        quoted(read.names[1]));
    (verb == verbs::csv ? result.file : result.choice.name) = std::string(read.names[0]);
  } else {
    no_names(verb, read);
  }
  if (verb != verbs::timetable)
    result.choice.name = std::string(name_of(verb));
  check(result, read);
  return result;
}

} // namespace examples
