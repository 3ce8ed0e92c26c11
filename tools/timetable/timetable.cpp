// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the tool can be asked to do: its verbs, and their help.
#include <cstdlib>
#include <new>
#include <unistd.h>

#include "choose/choose.hpp"
#include "make.hpp"
#include "progress_line.hpp"
#include "tools/support/termination.hpp"
#include "verbs.hpp"

namespace examples {
namespace {

//! Every schedule with its options, and every adapter.
void write_list() {
  standard_output out;
  auto const write_line = [&out](std::string_view name, auto const&... parts) {
    constexpr std::size_t column = 24; // wider than every name
    pp::append(out, name, std::string(column - std::min(name.size(), column - 1), ' '), parts...);
    pp::append(out, "\n");
  };
  for (named_schedule const& each : named_schedules()) {
    std::string const options = named_option::list(each.takes);
    write_line(each.name, each.line, options.empty() ? "" : " (" + options + ")");
  }
  pp::append(out, "\nAdapters of a schedule, or of a FILE (--with NAME):\n\n");
  for (named_adapter const& each : named_adapter::all())
    write_line(each.name, each.line);
}

void print(std::string const& text) {
  standard_output().append(text);
}

//! A schedule by its name, or from a file.
template <verbs Verb>
void print_timetable(std::span<char const* const> words) {
  command const asked = read_command_line(Verb, words);
  progress_line line(HUGE_VAL, "making " + asked.choice.name + "; --limit-seconds N bounds it");
  made_table const made = make(asked);
  if (isatty(STDOUT_FILENO) != 0)
    line.end(); // they would write over each other
  else
    line.say("writing " + made.name + " as " + asked.format);
  standard_output out{asked.output};
  write(out, asked, made);
}

constexpr verb verb_table[] = {
  {verbs::timetable,
   "NAME --devices P --microbatches M [option ...]",
   "Prints the timetable of a pipeline schedule: which device runs which pass when. --list says "
   "which options each schedule has.",
   command_options,
   print_timetable<verbs::timetable>},
  {verbs::csv,
   "FILE [option ...]",
   "Prints the timetable of a schedule in the format of torch.distributed.pipelining, with or "
   "without messages.",
   command_options,
   print_timetable<verbs::csv>},
  {verbs::compare,
   "--devices P --microbatches M [option ...]",
   "Prints one line of figures for every schedule. Costs, limits and peaks are those of a device's "
   "share of the model for a whole microbatch, so that all do the same work.",
   command_options,
   compare},
  {verbs::search,
   "--devices P --microbatches M --memory X [option ...]",
   "Makes a better order of its own. Costs and the limit are those of a device's share of the "
   "model.",
   command_options,
   search},
  {verbs::gaps,
   "--devices P --microbatches M [option ...]",
   "Prints how far every schedule is from the best order of a small pipeline.",
   command_options,
   gaps},
  {verbs::choose,
   "--model NAME --gpu NAME --sequence S --devices P --microbatches M ...",
   "Simulates every schedule for a model and prints what fits, what it takes, and the pick.",
   choose_options,
   choose},
  {verbs::systems,
   "--model NAME --gpu NAME --sequence S --devices P --microbatches M ...",
   "Prints a table of all schedules for one model: time, memory and messages.",
   choose_options,
   systems},
  {verbs::blocks,
   "[option ...]",
   "Prints the least bubble that building blocks give for their memory.",
   blocks_options,
   blocks},
  {verbs::reproduce,
   "TABLE",
   "Prints figures of papers next to those of this library.",
   reproduce_options,
   reproduce,
   "TABLE",
   published_tables},
  {verbs::completion,
   "bash|zsh|fish",
   "Prints what a shell needs to complete words of this tool, for example: source "
   "<(scripts/timetable completion bash)",
   [](verbs) { return std::vector<offered_option>{}; },
   completion,
   "the shell",
   shells},
};

//! The verb of a word, or null.
verb const* find_verb(std::string_view word) {
  for (verb const& each : verb_table)
    if (!word.empty() && each.word() == word)
      return &each;
  return nullptr;
}

std::string usage_of(verb const& one) {
  return text_of("timetable ", one.word(), one.word().empty() ? "" : " ", one.wants, "\n");
}

std::string options_of(verb const& one) {
  std::string text;
  for (offered_option const& each : one.options(one.which))
    text += describe_option(each.spelling, each.help);
  return text;
}

//! The text of --help of a verb.
std::string help_of(verb const& one) {
  std::string text = "usage: " + usage_of(one) + "\n" + wrapped(one.does);
  if (std::string const options = options_of(one); !options.empty())
    text += "\n" + options;
  if (one.names) {
    text += "\n" + std::string(one.named) + " is one of these:\n\n";
    for (std::string_view const each : one.names())
      text.append("  ").append(each).append("\n");
  }
  return text;
}

//! The text of --help of the tool: its verbs, and the options of a timetable.
std::string help_of_all() {
  std::string usage = "usage: ";
  std::string does;
  for (verb const& each : verb_table) {
    usage += (&each == verb_table ? "" : "       ") + usage_of(each);
    if (!each.word().empty())
      does += describe_option(each.word(), each.does);
  }
  usage += "       timetable [VERB] --help | --list | --version\n";
  verb const& timetable = verb_table[0];
  return usage + "\n" + wrapped(timetable.does) + "\nVerbs, each with a --help:\n\n" + does +
         "\nOptions of a timetable:\n\n" + options_of(timetable);
}

//! `help`, `help VERB`, `help NAME`.
std::string help_about(std::span<char const* const> words) {
  if (words.empty())
    return help_of_all();
  if (words.size() > 1)
    throw usage_error("help wants one word, a verb or the name of a schedule");
  if (verb const* const one = find_verb(words[0]))
    return help_of(*one);
  (void)find_schedule(words[0]);
  return help_of(verb_table[0]);
}

std::string version() {
  return text_of("timetable of pipelining ", PIPELINING_VERSION_MAJOR, ".") +
         text_of(PIPELINING_VERSION_MINOR, ".", PIPELINING_VERSION_PATCH, "\n");
}

void follow(std::span<char const* const> words) {
  std::string_view const first = words.empty() ? std::string_view() : words[0];
  verb const* const found = find_verb(first);
  if (first == "help")
    return print(help_about(words.subspan(1)));
  for (std::string_view const word : words) {
    if (word == "--help" || word == "-h")
      return print(found != nullptr    ? help_of(*found)
                   : words.size() == 1 ? help_of_all()
                                       : help_of(verb_table[0]));
    if ((word == "--list" || word == "--version") && words.size() > 1)
      throw usage_error(std::string(word) + " stands by itself");
  }
  if (first == "--list")
    return write_list();
  if (first == "--version")
    return print(version());
  if (found != nullptr)
    return found->follow(words.subspan(1));
  verb_table[0].follow(words);
}

//! Ends the program without waiting for searches that were given up.
[[noreturn]] void leave(int status) {
  std::fflush(stdout);
  std::fflush(stderr);
  std::_Exit(status);
}

} // namespace

std::span<verb const> all_verbs() {
  return verb_table;
}

int timetable(std::span<char const* const> words) {
  example::report_files_beyond_limits();
  try {
    follow(words);
  } catch (std::bad_alloc const&) {
    std::fprintf(stderr, "timetable: not enough memory for a timetable of this size\n");
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "timetable: %s\n", error.what());
    leave(2);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "timetable: could not write the output\n");
    leave(1);
  }
  leave(0);
}

} // namespace examples
