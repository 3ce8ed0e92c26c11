// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/flow.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/version.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/plan_tables.hpp>
#include <pipe/view/pytorch/write_csv.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/text.hpp>
#include <pipe/view/trace.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

#include "choose.hpp"
#include "command_line.hpp"
#include "completion.hpp"
#include "make.hpp"
#include "options.hpp"
#include "progress_line.hpp"
#include "search.hpp"
#include "tools/support/file_doors.hpp"
#include "tools/support/termination.hpp"
#include "verbs.hpp"

namespace pp = pipelining;

namespace {

//! What the writers of the library append to. A file is made with the first of it, so that none is
//! left of what was refused.
struct standard_output {
  std::string file = ""; //!< empty: standard output

  void append(std::string_view text) {
    if (!file.empty())
      open();
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  //! Before the first text alone: a look at a name is a call of the system.
  void open() {
    std::string const why = example::why_not_opened(file);
    if (!why.empty() || std::freopen(file.c_str(), "w", stdout) == nullptr)
      throw examples::usage_error("--output: cannot write " + pp::registry::quoted(file) + ": " +
                                  (why.empty() ? std::strerror(errno) : why));
    file.clear();
  }
};

pp::text_options terminal(int width) {
  pp::text_options options;
  bool const terminal = isatty(STDOUT_FILENO) != 0;
  winsize size{};
  if (width > 0)
    options.width = width;
  else if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  char const* const declined = std::getenv("NO_COLOR"); // empty says nothing, by no-color.org
  options.colour =
    terminal && (declined == nullptr || *declined == '\0') && !examples::is_dumb_terminal();
  return options;
}

pp::plan lower(examples::command const& asked, pp::timetable_view table) {
  if (asked.policy == "pipeline")
    return pp::lower<pp::communicators::one>(table, asked.sizes);
  if (asked.policy == "exchange")
    return pp::lower<pp::communicators::exchanges_at_once>(table, asked.sizes);
  if (asked.policy == "edge")
    return pp::lower<pp::communicators::per_edge>(table, asked.sizes);
  return pp::lower<pp::communicators::per_pair>(table, asked.sizes);
}

//! Sizes of the slots of a schedule whose devices have the same share of the model as those of
//! `first`, for which the sizes are given: activations shrink with stages and chunks, messages with
//! chunks, the state of a sequence with stages.
std::vector<double>
slot_sizes(pp::uniform_sizes const& sizes, pp::shape const& first, pp::shape const& here) {
  double const chunks = static_cast<double>(first.chunks) / here.chunks;
  double const pieces = examples::pieces_of_share(first) / examples::pieces_of_share(here);
  std::vector<double> result;
  for (int of = 0; of < pp::detail::slot_classes; ++of) {
    auto const which = static_cast<pp::slot_class>(of);
    bool const kept = which == pp::slot_class::activation || which == pp::slot_class::weight_input;
    bool const state =
      which == pp::slot_class::sequence || which == pp::slot_class::sequence_gradient;
    result.push_back(static_cast<double>(sizes.bytes(which, pp::pass{})) * (kept ? pieces
                                                                            : state
                                                                              ? pieces / chunks
                                                                              : chunks));
  }
  return result;
}

//! A schedule of a page. Where weights travel, what runs is shown as its groups of layers.
pp::html_timeline line_of(examples::made_table const& made) {
  pp::timetable_view const table = made.to_run();
  pp::html_timeline line = made.model_of
                             ? pp::make_html_timeline(table, made.about(), made.model_of)
                             : pp::make_html_timeline(table, made.about(), made.model);
  line.shown = made.table;
  return line;
}

//! The page, with the second schedule where one is asked for.
void write_page(standard_output& out,
                examples::command const& asked,
                examples::made_table const& made) {
  std::vector<examples::made_table> all{made};
  if (!asked.against.empty())
    all.push_back(examples::make_like(asked, asked.against, examples::work_of_share(made)));
  std::vector<pp::html_timeline> lines;
  std::string title;
  for (examples::made_table const& each : all) {
    lines.push_back(line_of(each));
    title += (title.empty() ? "" : " and ") + each.name;
    if (asked.sizes_given)
      lines.back().slot_sizes =
        slot_sizes(asked.sizes, made.table.over.extents, each.table.over.extents);
  }
  pp::write_html(out, lines, {title, "", asked.sizes_given});
}

pp::pytorch_release torch_of(std::string const& version) {
  return version == "2.15" ? pp::pytorch_release::v2_15 : pp::pytorch_release::v2_10;
}

//! What iterations in a row take, and what they save without a barrier.
void write_iterations(standard_output& out, pp::timetable_view table, int iterations) {
  double const makespan = pp::makespan(table);
  double const with_barrier = iterations * makespan;
  double const without = (iterations - 1) * pp::post_validated_period(table) + makespan;
  pp::append(out, "\n", iterations, " iterations: ");
  pp::append_rounded(out, with_barrier, 2);
  pp::append(out, " with a barrier at the optimizer's step, ");
  pp::append_rounded(out, without, 2);
  pp::append(out, " where the next iteration validates it (");
  pp::append_rounded(out, with_barrier > 0 ? 100 * (1 - without / with_barrier) : 0, 2);
  pp::append(out, " % less)\n");
}

void write(standard_output& out, examples::command const& asked, examples::made_table const& made) {
  pp::timetable_view const table = made.table;
  pp::timetable_caption about = made.about();
  if (asked.format == "text" || asked.format == "json") {
    pp::time_bounds const least = examples::bounds_of(made);
    about.least_makespan = least.makespan.least();
    about.least_span = least.span.least();
  }
  if (asked.format == "csv")
    pp::write_csv(out, table);
  else if (asked.format == "json")
    pp::write_json(out, table, about);
  else if (asked.format == "svg")
    pp::write_svg(out, table, about);
  else if (asked.format == "html")
    write_page(out, asked, made);
  else if (asked.format == "trace")
    pp::write_trace(out, table, about, {}, {.arrows = !made.travelling, .memory = true});
  else if (asked.format == "pytorch")
    pp::write_pytorch_csv(out, table);
  else if (asked.format == "pytorch-comms")
    pp::write_pytorch_csv(
      out, table, pp::pytorch_content::passes_and_messages, torch_of(asked.torch));
  else if (asked.format == "calls")
    out.append(pp::describe_calls(lower(asked, made.to_run())));
  else if (asked.format == "memory")
    out.append(pp::describe_memory(lower(asked, made.to_run())));
  else
    pp::write_text(out, table, about, terminal(asked.width));
  if (asked.iterations > 0)
    write_iterations(out, table, asked.iterations);
}

//! Every schedule with its options, and every adapter.
void write_list() {
  standard_output out;
  auto const write_line = [&out](std::string_view name, auto const&... parts) {
    constexpr std::size_t column = 24; // wider than every name
    pp::append(out, name, std::string(column - std::min(name.size(), column - 1), ' '), parts...);
    pp::append(out, "\n");
  };
  for (pp::registry::named_schedule const& each : pp::registry::named_schedules()) {
    std::string const options = pp::registry::named_option::list(each.takes);
    write_line(each.name, each.line, options.empty() ? "" : " (" + options + ")");
  }
  pp::append(out, "\nAdapters of a schedule, or of a FILE (--with NAME):\n\n");
  for (pp::registry::named_adapter const& each : pp::registry::named_adapter::all())
    write_line(each.name, each.line);
}

void print(std::string const& text) {
  standard_output().append(text);
}

//! A schedule by its name, or from a file.
template <examples::verbs Verb>
void print_timetable(std::span<char const* const> words) {
  examples::command const asked = examples::read_command_line(Verb, words);
  examples::progress_line line(HUGE_VAL,
                               "making " + asked.choice.name + "; --limit-seconds N bounds it");
  examples::made_table const made = examples::make(asked);
  if (isatty(STDOUT_FILENO) != 0)
    line.end(); // they would write over each other
  else
    line.say("writing " + made.name + " as " + asked.format);
  standard_output out{asked.output};
  write(out, asked, made);
}

void compare(std::span<char const* const> words) {
  print(examples::compare(examples::read_command_line(examples::verbs::compare, words)));
}

void search(std::span<char const* const> words) {
  examples::command const asked = examples::read_command_line(examples::verbs::search, words);
  examples::searched const found = examples::search(asked);
  standard_output out{asked.output};
  if (asked.format == "header")
    return out.append(examples::search_header(found));
  if (asked.format == "text")
    out.append(found.report);
  write(out, asked, found.made);
}

//! What the tool can be asked to do.
struct verb {
  examples::verbs which;
  std::string_view wants; //!< the words after it, of the usage
  std::string_view does;
  std::vector<examples::offered_option> (*options)(examples::verbs);
  void (*follow)(std::span<char const* const> words);
  std::string_view named = "";              //!< how `wants` calls a word of a few
  examples::word_list (*names)() = nullptr; //!< these words
};

using examples::verbs;

void complete(std::span<char const* const> words);

constexpr verb all_verbs[] = {
  {verbs::timetable,
   "NAME --devices P --microbatches M [option ...]",
   "Prints the timetable of a pipeline schedule: which device runs which pass when. --list says "
   "which options each schedule has.",
   examples::command_options,
   print_timetable<verbs::timetable>},
  {verbs::csv,
   "FILE [option ...]",
   "Prints the timetable of a schedule in the format of torch.distributed.pipelining, with or "
   "without messages.",
   examples::command_options,
   print_timetable<verbs::csv>},
  {verbs::compare,
   "--devices P --microbatches M [option ...]",
   "Prints one line of figures for every schedule. Costs, limits and peaks are those of a device's "
   "share of the model for a whole microbatch, so that all do the same work.",
   examples::command_options,
   compare},
  {verbs::search,
   "--devices P --microbatches M --memory X [option ...]",
   "Makes a better order of its own. Costs and the limit are those of a device's share of the "
   "model.",
   examples::command_options,
   search},
  {verbs::gaps,
   "--devices P --microbatches M [option ...]",
   "Prints how far every schedule is from the best order of a small pipeline.",
   examples::command_options,
   examples::gaps},
  {verbs::choose,
   "--model NAME --gpu NAME --sequence S --devices P --microbatches M ...",
   "Simulates every schedule for a model and prints what fits, what it takes, and the pick.",
   examples::choose_options,
   examples::choose},
  {verbs::systems,
   "--model NAME --gpu NAME --sequence S --devices P --microbatches M ...",
   "Prints a table of all schedules for one model: time, memory and messages.",
   examples::choose_options,
   examples::systems},
  {verbs::blocks,
   "[option ...]",
   "Prints the least bubble that building blocks give for their memory.",
   examples::blocks_options,
   examples::blocks},
  {verbs::reproduce,
   "TABLE",
   "Prints figures of papers beside those of this library.",
   examples::reproduce_options,
   examples::reproduce,
   "TABLE",
   examples::published_tables},
  {verbs::completion,
   "bash|zsh|fish",
   "Prints what a shell needs to complete words of this tool, for example: source "
   "<(scripts/timetable completion bash)",
   [](verbs) { return std::vector<examples::offered_option>{}; },
   complete,
   "the shell",
   examples::shells},
};

//! The verb of a word, or null.
verb const* find_verb(std::string_view word) {
  for (verb const& each : all_verbs)
    if (each.which != verbs::timetable && examples::name_of(each.which) == word)
      return &each;
  return nullptr;
}

std::string usage_of(verb const& one) {
  std::string const name =
    one.which == verbs::timetable ? "" : std::string(examples::name_of(one.which)) + " ";
  return "timetable " + name + std::string(one.wants) + "\n";
}

std::string options_of(verb const& one) {
  std::string text;
  for (examples::offered_option const& each : one.options(one.which))
    text += examples::describe_option(each.spelling, each.help);
  return text;
}

//! The text of --help of a verb.
std::string help_of(verb const& one) {
  std::string text = "usage: " + usage_of(one) + "\n" + examples::wrapped(one.does);
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
  for (verb const& each : all_verbs) {
    usage += (&each == all_verbs ? "" : "       ") + usage_of(each);
    if (each.which != verbs::timetable)
      does += examples::describe_option(examples::name_of(each.which), each.does);
  }
  usage += "       timetable [VERB] --help | --list | --version\n";
  verb const& timetable = all_verbs[0];
  return usage + "\n" + examples::wrapped(timetable.does) + "\nVerbs, each with a --help:\n\n" +
         does + "\nOptions of a timetable:\n\n" + options_of(timetable);
}

//! `help`, `help VERB`, `help NAME`.
std::string help_about(std::span<char const* const> words) {
  if (words.empty())
    return help_of_all();
  if (words.size() > 1)
    throw examples::usage_error("help wants one word, a verb or the name of a schedule");
  if (verb const* const one = find_verb(words[0]))
    return help_of(*one);
  (void)pp::registry::find_schedule(words[0]);
  return help_of(all_verbs[0]);
}

std::string version() {
  std::string text;
  pp::append(text, "timetable of pipelining ", PIPELINING_VERSION_MAJOR, ".");
  pp::append(text, PIPELINING_VERSION_MINOR, ".", PIPELINING_VERSION_PATCH, "\n");
  return text;
}

//! `completion SHELL`.
void complete(std::span<char const* const> words) {
  std::vector<examples::verb_words> all;
  for (verb const& each : all_verbs) {
    bool const nameless = each.which == verbs::timetable;
    all.push_back({nameless ? "" : examples::name_of(each.which),
                   each.does,
                   each.names ? each.names() : examples::word_list{},
                   each.options(each.which)});
    if (nameless)
      all.back().names = examples::names_in(pp::registry::named_schedules());
  }
  std::string none; // it has no options
  std::vector<std::string_view> const names =
    examples::read_options<std::string>({}, verbs::completion, none, words).names;
  if (names.size() != 1)
    throw examples::usage_error("completion wants the name of a shell: bash, zsh or fish");
  print(examples::completion_for(names[0], all));
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
                                       : help_of(all_verbs[0]));
    if ((word == "--list" || word == "--version") && words.size() > 1)
      throw examples::usage_error(std::string(word) + " stands by itself");
  }
  if (first == "--list")
    return write_list();
  if (first == "--version")
    return print(version());
  if (found != nullptr)
    return found->follow(words.subspan(1));
  all_verbs[0].follow(words);
}

//! Ends the program without waiting for searches that were given up.
[[noreturn]] void leave(int status) {
  std::fflush(stdout);
  std::fflush(stderr);
  std::_Exit(status);
}

} // namespace

int examples::timetable(std::span<char const* const> words) {
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
