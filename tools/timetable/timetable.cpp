// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints the timetable of a schedule as text, picture, page or file. `timetable --help` says how.
#include <pipe/flow/flow.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/iterations.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/plan_tables.hpp>
#include <pipe/view/pytorch/write_csv.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/text.hpp>
#include <pipe/view/timetable_caption.hpp>
#include <pipe/view/trace.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

#include "blocks.hpp"
#include "choose.hpp"
#include "command_line.hpp"
#include "compare.hpp"
#include "gaps.hpp"
#include "make.hpp"
#include "progress_line.hpp"
#include "reproduce.hpp"
#include "search.hpp"
#include "systems.hpp"
#include "tools/support/named_schedules.hpp"

namespace pp = pipelining;

namespace {

//! What the writers of the library append to.
struct standard_output {
  void append(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }
};

pp::text_options terminal(int width) {
  pp::text_options options;
  bool const terminal = isatty(STDOUT_FILENO) != 0;
  winsize size{};
  if (width > 0)
    options.width = width;
  else if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  options.colour = terminal && std::getenv("NO_COLOR") == nullptr;
  return options;
}

pp::plan lower(examples::command const& asked, pp::timetable_view table) {
  if (asked.policy == "pipeline")
    return pp::lower<pp::one_communicator>(table, asked.sizes);
  if (asked.policy == "exchange")
    return pp::lower<pp::exchanges_at_once>(table, asked.sizes);
  if (asked.policy == "edge")
    return pp::lower<pp::communicator_per_edge>(table, asked.sizes);
  return pp::lower<pp::communicator_per_pair>(table, asked.sizes);
}

//! Sizes of the slots of a schedule whose devices have the same share of the model as those of
//! `first`, for which the sizes are given: activations shrink with stages and chunks, messages with
//! chunks, the state of a sequence with stages.
std::vector<double>
slot_sizes(pp::uniform_sizes const& sizes, pp::shape const& first, pp::shape const& here) {
  double const chunks = static_cast<double>(first.chunks) / here.chunks;
  double const pieces = examples::pieces_of_share(first) / examples::pieces_of_share(here);
  std::vector<double> result;
  for (int of = 0; of < pp::slot_classes; ++of) {
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
void write_page(examples::command const& asked, examples::made_table const& made) {
  standard_output out;
  std::vector<examples::made_table> all{made};
  if (!asked.against.empty())
    all.push_back(examples::make_like(asked, asked.against, examples::work_of_share(made)));
  std::vector<pp::html_timeline> lines;
  std::string title;
  for (examples::made_table const& each : all) {
    lines.push_back(line_of(each));
    title += (title.empty() ? "" : " and ") + each.name;
    if (asked.sizes_given)
      lines.back().slot_sizes = slot_sizes(asked.sizes, made.table.extents, each.table.extents);
    else if (lines.size() > 1)
      lines.back().slot_sizes =
        slot_sizes({1, 1, 1, 1, 1, 0, 0}, made.table.extents, each.table.extents);
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

void write(examples::command const& asked, examples::made_table const& made) {
  standard_output out;
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
    write_page(asked, made);
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

void write_list() {
  standard_output out;
  std::size_t longest = 0;
  for (examples::named_schedule const& each : examples::named_schedules())
    longest = each.name.size() > longest ? each.name.size() : longest;
  for (examples::named_schedule const& each : examples::named_schedules()) {
    std::string name(each.name);
    name.resize(longest + 2, ' ');
    std::string const options = examples::option_names(each.takes);
    pp::append(out, name, each.line, options.empty() ? "" : " (" + options + ")", "\n");
  }
}

void follow(examples::command const& asked) {
  if (asked.what == examples::command::task::help) {
    standard_output().append(examples::help_text());
    return;
  }
  if (asked.what == examples::command::task::list) {
    write_list();
    return;
  }
  if (asked.what == examples::command::task::compare) {
    standard_output().append(examples::compare(asked));
    return;
  }
  if (asked.what == examples::command::task::search) {
    examples::searched const found = examples::search(asked);
    if (asked.format == "header")
      standard_output().append(examples::search_header(found));
    else if (asked.format == "text")
      standard_output().append(found.report);
    if (asked.format != "header")
      write(asked, found.made);
    return;
  }
  examples::progress_line line(HUGE_VAL,
                               "making " + asked.choice.name + "; --limit-seconds N bounds it");
  examples::made_table const made = examples::make(asked);
  if (isatty(STDOUT_FILENO) != 0)
    line.end(); // they would write over each other
  else
    line.say("writing " + made.name + " as " + asked.format);
  write(asked, made);
}

//! Ends the program without waiting for searches that were given up.
[[noreturn]] void leave(int status) {
  std::fflush(stdout);
  std::fflush(stderr);
  std::_Exit(status);
}

} // namespace

int main(int count, char** words) {
  try {
    if (count > 1 && std::string_view(words[1]) == "choose")
      examples::choose(count - 2, words + 2);
    else if (count > 1 && std::string_view(words[1]) == "blocks")
      examples::blocks(count - 2, words + 2);
    else if (count > 1 && std::string_view(words[1]) == "gaps")
      examples::gaps(count - 2, words + 2);
    else if (count > 1 && std::string_view(words[1]) == "systems")
      examples::systems(count - 2, words + 2);
    else if (count > 1 && std::string_view(words[1]) == "reproduce")
      examples::reproduce(count - 2, words + 2);
    else
      follow(examples::read_command_line(count, words));
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
