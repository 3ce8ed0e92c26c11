// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "command_line.hpp"

#include <charconv>
#include <initializer_list>
#include <iterator>
#include <system_error>

#include "files.hpp"

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

template <class Number = int>
Number read_extent(std::string_view option, std::string_view word) {
  auto const value = read_number<Number>(option, word, "a whole number");
  if (value < 1)
    throw usage_error(std::string(option) + " must be at least 1, not " + quoted(word));
  return value;
}

double read_time(std::string_view option, std::string_view word) {
  double const value = read_number<double>(option, word, "a number");
  if (!pp::detail::time_range.contains(value))
    throw usage_error(std::string(option) + ": a time must be " + pp::detail::time_range.words +
                      ", not " + quoted(word));
  return value;
}

//! Reads times into places: into all of them, or only the first ones.
//! @param wanted what the option wants, for people
void read_times(std::string_view option,
                std::string_view word,
                char const* wanted,
                std::size_t least,
                std::initializer_list<double*> places) {
  std::vector<std::string_view> const parts = split_at_commas(word);
  if (parts.size() != least && parts.size() != places.size())
    throw usage_error(std::string(option) + " wants " + wanted + ", not " + quoted(word));
  for (std::size_t i = 0; i < parts.size(); ++i)
    *places.begin()[i] = read_time(option, parts[i]);
}

adapter read_adapter(std::string_view option, std::string_view word) {
  std::string const name = one_of(option, word, names_in(named_adapter::all()));
  auto const all = named_adapter::all();
  return std::find_if(
           all.begin(), all.end(), [&name](named_adapter const& each) { return each.name == name; })
    ->which;
}

std::string read_schedule(std::string_view, std::string_view word) {
  return std::string(find_schedule(word).name);
}

//! Bytes of a message and, as far as given, of an activation, a weight input, the state of a
//! sequence and its gradient, the gradient of a tied weight and a row of totals.
pp::uniform_sizes read_sizes(std::string_view option, std::string_view word) {
  std::int64_t values[7]{};
  std::vector<std::string_view> const parts = split_at_commas(word);
  if (parts.size() > std::size(values))
    throw usage_error(std::string(option) + " wants at most 7 numbers, not " + quoted(word));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    values[i] = read_number<std::int64_t>(option, parts[i], "numbers of bytes");
    if (!pp::detail::byte_range.contains(static_cast<double>(values[i])))
      throw usage_error(std::string(option) + ": a size must be " + pp::detail::byte_range.words +
                        ", not " + quoted(parts[i]));
  }
  return {values[0], values[1], values[2], values[3], values[4], values[5], values[6]};
}

//! The chunks of microbatches: 1,1,4.
std::vector<int> read_counts(std::string_view option, std::string_view word) {
  std::vector<int> counts;
  for (std::string_view const part : split_at_commas(word))
    counts.push_back(read_extent(option, part));
  return counts;
}

std::uint64_t read_seed(std::string_view option, std::string_view word) {
  return read_number<std::uint64_t>(option, word, "a whole number");
}

//! A number above 0 and at most 10 to the power of `Most`.
template <int Most>
double read_amount(std::string_view option, std::string_view word) {
  double const value = read_number<double>(option, word, "a number");
  if (!(value > 0) || value > std::pow(10, Most))
    throw usage_error(std::string(option) + " must be above 0 and at most 1e" +
                      std::to_string(Most) + ", not " + quoted(word));
  return value;
}

template <auto Member>
constexpr auto extent = set<read_extent<>, &command::choice, Member>;
template <auto Member>
constexpr auto time_of = set<read_time, &command::cost, Member>;

//! Those that are told the size of a pipeline.
constexpr verbs sized = verbs::timetable | verbs::compare | verbs::search | verbs::gaps;
//! Those that make schedules by their names.
constexpr verbs named = verbs::timetable | verbs::compare;
//! Those that put a schedule into an adapter.
constexpr verbs adapting = verbs::timetable | verbs::csv;
//! Those that print one timetable.
constexpr verbs printed = verbs::timetable | verbs::csv | verbs::search;

//! In the order of --help.
constexpr option_reader<command> all_options[] = {
  {{"--devices P", sized}, "devices of the pipeline", extent<&schedule_choice::devices>},
  {{"--microbatches M", sized}, "microbatches of one step", extent<&schedule_choice::microbatches>},
  {{"--cost F,I,W[,COMM]|FILE", sized | verbs::csv},
   "times of one forward, one backward for the input and one for the weights of one stage (of one "
   "chunk where there are chunks), and of one message; a fused backward takes I + W; default "
   "1,1,1,0. Or a file of times that were measured, of every stage and chunk: see "
   "docs/how_to/measure_and_plan_again.md",
   [](command& c, std::string_view option, std::string_view word) {
     if (names_cost_file(word)) {
       c.cost_file = std::string(word);
       c.measured = read_cost_file(option, word);
       return;
     }
     pp::uniform_cost& to = c.cost;
     read_times(option,
                word,
                "3 or 4 times, F,I,W or F,I,W,COMM",
                3,
                {&to.forward, &to.backward_input, &to.backward_weight, &to.communication});
     if (to.forward + to.backward_input + to.backward_weight <= 0)
       throw usage_error(std::string(option) + ": at least one of F, I and W must be above 0");
   }},
  {{"--layout LAYOUT", named | verbs::csv | verbs::search},
   "the parts of every stage as Megatron-LM writes them, Et*3|(tt|)*29,m|L: --cost has the times "
   "of a layer t; only pipelines with as many stages",
   [](command& c, std::string_view option, std::string_view word) {
     c.layout.text = std::string(word);
     c.layout.stages = read_stages(option, word);
   }},
  {{"--parts E,m,L", named | verbs::csv | verbs::search},
   "of --layout: times of an embedding, of a module for further tokens and of an output layer, in "
   "those of a layer; default 0,1,1",
   [](command& c, std::string_view option, std::string_view word) {
     stage_layout& to = c.layout;
     read_times(option, word, "3 numbers, E,m,L", 3, {&to.embedding, &to.module, &to.output});
   }},
  {{"--format FORMAT", sized | verbs::csv},
   "text (default), csv (one line per pass), json, svg, html (a page to zoom into, with sliders "
   "for the times), trace (for ui.perfetto.dev and chrome://tracing), pytorch or pytorch-comms (a "
   "FILE without and with messages), calls (of CUDA and NCCL), or memory (slots and where they "
   "lie); compare has text, csv and json, gaps text and json; search also has header, the order as "
   "a C++ type",
   set_one_of<formats, &command::format>,
   formats},
  json_option<command>(sized | verbs::csv),
  {{"--output FILE", printed},
   "where it is written, in place of standard output; of what is refused no file is left",
   set<as_it_is, &command::output>},
  {{"--against NAME", verbs::timetable},
   "of html: a second schedule below, with the same work",
   set<read_schedule, &command::against>,
   schedule_names},
  {{"--torch VERSION", printed},
   "of pytorch-comms: the version that reads the file, 2.10 to 2.15 (default)",
   set_one_of<torch_versions, &command::torch>,
   torch_versions},
  {{"--policy POLICY", printed},
   "of calls and memory: pipeline (one communicator), pair (default, one for each pair of "
   "devices), edge (one for each directed edge), or exchange (one, in which shards of a vocabulary "
   "exchange at once)",
   set_one_of<policies, &command::policy>,
   policies},
  {{"--bytes M[,A,W,S,G,T,R]", printed},
   "of calls, memory and html: sizes of a message, an activation, what is kept for the weights, "
   "the state of a sequence and its gradient, the gradient of a tied weight, a row of totals",
   [](command& c, std::string_view option, std::string_view word) {
     c.sizes = read_sizes(option, word);
     c.sizes_given = true;
   }},
  {{"--with WHAT", adapting},
   "the schedule in an adapter: recompute, recompute-first (only the first stage of every device), "
   "offload, offload-half, offload-chunks (what hides in the passes of the next chunk), "
   "vocabulary-1 or vocabulary-2 (embedding and output layer in a shard per device, one or two "
   "barriers), vocabulary-interlaced (all devices do it at once), sharded-weights (gathered for "
   "every visit of a stage), gathered-once, weights-on-host (of the last stage of every device), "
   "or, of slimpipe, attention-exchange (devices take over attention of each other, with --tokens "
   "and --attention-ratio)",
   set<read_adapter, &command::choice, &schedule_choice::adapted>,
   [](verbs) { return names_in(named_adapter::all()); }},
  {{"--frozen N", verbs::timetable},
   "the first N stages have nothing to train: they only go forward",
   extent<&schedule_choice::frozen>},
  {{"--gather T", adapting},
   "of weights in shards or on the host: time of a gather of a stage's weights, or of a load; "
   "default 0",
   time_of<&pp::uniform_cost::gather>},
  {{"--scatter T", adapting},
   "of the same: time of a scatter of a stage's gradients; default 0",
   time_of<&pp::uniform_cost::scatter>},
  {{"--resident K", adapting},
   "of sharded-weights: the weights of a stage stay while it is among the next K of its device; "
   "default 2",
   extent<&schedule_choice::resident>},
  {{"--prefetch N", adapting},
   "of sharded-weights: stages ahead whose weights are gathered; default 1",
   extent<&schedule_choice::prefetch>},
  {{"--recompute-cost T", adapting},
   "of recompute: time of a recompute; default: as a forward pass",
   time_of<&pp::uniform_cost::recompute>},
  {{"--copy-cost T", adapting},
   "of offload: time of a copy to the host, or back",
   [](command& c, std::string_view option, std::string_view word) {
     c.cost.copy_out = c.cost.copy_in = read_time(option, word);
   }},
  {{"--offloaded-stages K", adapting},
   "of offload: only activations of the first K stages of a device",
   extent<&schedule_choice::offloaded_stages>},
  {{"--on-stages S,S-S,...", adapting},
   "of recompute, offload and offload-half: only activations of these stages, from 0 on",
   set<read_stage_numbers, &command::choice, &schedule_choice::adapted_stages>},
  {{"--vocabulary-cost E,S,T,G[,BROADCAST,REDUCE]", adapting},
   "times of the passes of shards (default 1 each) and of their exchanges (default: as messages)",
   [](command& c, std::string_view option, std::string_view word) {
     pp::uniform_cost& to = c.cost;
     read_times(
       option,
       word,
       "4 or 6 times, E,S,T,G or E,S,T,G,BROADCAST,REDUCE",
       4,
       {&to.embed, &to.logits, &to.logits_gradient, &to.embed_gradient, &to.broadcast, &to.reduce});
   }},
  {{"--limit-seconds N", named},
   "give a search up after this time",
   set<read_amount<6>, &command::limit_seconds>},
  {{"--width N", printed},
   "columns of text; default: those of the terminal, else 100",
   set<count_of<10000>, &command::width>},
  {{"--iterations N", printed},
   "say how long N iterations take in a row, with a barrier at the optimizer's step and with its "
   "validation in the next iteration",
   set<read_extent<>, &command::iterations>},
  {{"--memory X", verbs::search | verbs::timetable},
   "of search: what a device may hold, in microbatches of its share of the model; of it and of "
   "schedules with --memory-limit 80GB or 80GB,40GB,..., for all devices or for each, with a file "
   "of costs that has bytes",
   [](command& c, std::string_view option, std::string_view word) {
     if (word.find_first_of("Bb,") == word.npos) {
       c.search.memory = read_amount<6>(option, word);
       return;
     }
     c.search.room_text = std::string(word);
     for (std::string_view const part : split_at_commas(word))
       c.search.room.push_back(read_gigabytes(option, part) * 1e9);
   }},
  {{"--seconds N", verbs::search},
   "the time it may take; default 10",
   set<read_amount<6>, &command::search, &search_command::seconds>},
  {{"--moves N", verbs::search},
   "the changes that it may try, for the same result on any machine",
   set<read_extent<std::int64_t>, &command::search, &search_command::moves>},
  {{"--seed N", verbs::search},
   "other numbers give other orders; default 1",
   set<read_seed, &command::search, &search_command::seed>},
  {{"--goal GOAL", verbs::search},
   "makespan (default) or span, the papers' denominator",
   [](command& c, std::string_view option, std::string_view word) {
     c.search.goal = one_of(option, word, goals(c.verb)) == "span" ? pp::search_goal::span
                                                                   : pp::search_goal::makespan;
   },
   goals},
  {{"--whole-backward", verbs::search},
   "backward passes in one piece",
   flag<&command::search, &search_command::whole_backward>},
  {{"--like NAME", verbs::search},
   "only on the placement of this schedule",
   set<read_schedule, &command::search, &search_command::like>,
   schedule_names},
  {{"--chunks C", verbs::timetable | verbs::compare | verbs::search},
   "chunks of a sequence",
   extent<&schedule_choice::chunks>},
  {{"--tokens S", named},
   "tokens of a sequence; chunks get equal work, --cost is the mean over them (by default 1 for a "
   "forward pass, and what the work takes for the others), and their lengths are printed",
   set<read_extent<>, &command::tokens>},
  {{"--attention-ratio A", named},
   "with --tokens: forward work of attention over that of all else, for S tokens",
   set<share_of<1'000'000>, &command::attention_ratio>},
  {{"--even", named}, "with --tokens: chunks of equal length instead", flag<&command::even>},
  {{"--stages-per-device V", verbs::timetable | verbs::compare | verbs::search},
   "stages of the model on each device",
   extent<&schedule_choice::stages_per_device>},
  {{"--group N", named}, "microbatches that travel together", extent<&schedule_choice::group>},
  {{"--forwards N", named},
   "forward passes of a device before its first backward pass, at most",
   extent<&schedule_choice::forwards>},
  {{"--forward-stages N", named},
   "stages that go forward, in equal shares all layers but the last",
   extent<&schedule_choice::forward_stages>},
  {{"--backward-stages N", named},
   "stages that go back, of a layer each, whose time --cost is",
   extent<&schedule_choice::backward_stages>},
  {{"--chunk-counts C,C,...", named},
   "chunks of the microbatches in turn; after the last, from the first again",
   set<read_counts, &command::choice, &schedule_choice::chunk_counts>},
  {{"--keep K", named},
   "chunks of a microbatch whose activations are kept, at most",
   extent<&schedule_choice::keep>},
  {{"--memory-limit X", named},
   "activations of a device, in microbatches of one stage",
   set<read_amount<9>, &command::choice, &schedule_choice::memory_limit>},
  {{"--eager", named},
   "forward passes as early as possible, to hide messages",
   flag<&command::choice, &schedule_choice::eager>},
  {{"--unfused", named},
   "overlapped pairs as two passes",
   flag<&command::choice, &schedule_choice::unfused>},
  {{"--pair-cost T", named | verbs::csv},
   "time of an overlapped pair; default: the sum of both passes",
   time_of<&pp::uniform_cost::overlapped_pair>},
  {{"--all-reduce T", named | verbs::csv},
   "how long a forward pass or backward_input that runs by itself waits for its tensor parallel "
   "group; hidden in a pair and in a whole backward",
   time_of<&pp::uniform_cost::all_reduce>},
};

} // namespace

std::vector<offered_option> command_options(verbs one) {
  return offered<command>(all_options, one);
}

command read_command_line(verbs verb, std::span<char const* const> words) {
  command result;
  result.verb = verb;
  read_words const read = read_options<command>(all_options, verb, result, words);
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
