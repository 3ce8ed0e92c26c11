// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is printed of a timetable, in every format.
#include <pipe/run/thread_workers.hpp>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/ioctl.h>
#include <unistd.h>

#include "make.hpp"
#include "progress_line.hpp"
#include "tools/support/file_doors.hpp"

namespace examples {

void standard_output::append(std::string_view text) {
  if (!file.empty()) { // before the first text only: a look at a name is a call of the system
    std::string const why = example::why_not_opened(file);
    if (!why.empty() || std::freopen(file.c_str(), "w", stdout) == nullptr)
      throw usage_error("--output: cannot write " + quoted(file) + ": " +
                        (why.empty() ? std::strerror(errno) : why));
    file.clear();
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

namespace {

pp::text_options terminal(int width) {
  pp::text_options options;
  bool const terminal = isatty(STDOUT_FILENO) != 0;
  winsize size{};
  if (width > 0)
    options.width = width;
  else if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  char const* const declined = std::getenv("NO_COLOR"); // empty says nothing, by no-color.org
  options.colour = terminal && (declined == nullptr || *declined == '\0') && !is_dumb_terminal();
  return options;
}

pp::plan lower(command const& asked, pp::timetable_view table) {
  auto const by = [&]<class Policy>(Policy) {
    return pp::lower<Policy>(table, asked.sizes, {}, pp::thread_workers());
  };
  return asked.policy == "pipeline"   ? by(pp::communicators::one{})
         : asked.policy == "exchange" ? by(pp::communicators::exchanges_at_once{})
         : asked.policy == "edge"     ? by(pp::communicators::per_edge{})
                                      : by(pp::communicators::per_pair{});
}

//! Sizes of the slots of a schedule whose devices have the same share of the model as those of
//! `first`, for which the sizes are given: activations shrink with stages and chunks, messages with
//! chunks, the state of a sequence with stages.
std::vector<double>
slot_sizes(pp::uniform_sizes const& sizes, pp::shape const& first, pp::shape const& here) {
  double const chunks = static_cast<double>(first.chunks) / here.chunks;
  double const pieces = pieces_of_share(first) / pieces_of_share(here);
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
pp::html_timeline line_of(made_table const& made) {
  pp::timetable_view const table = made.to_run();
  pp::html_timeline line = made.model_of
                             ? pp::make_html_timeline(table, made.about(), made.model_of)
                             : pp::make_html_timeline(table, made.about(), made.model);
  line.shown = made.table;
  return line;
}

//! The page, with the second schedule where one is asked for.
void write_page(standard_output& out, command const& asked, made_table const& made) {
  std::vector<made_table> all{made};
  if (!asked.against.empty())
    all.push_back(make_like(asked, asked.against, work_of_share(made)));
  std::vector<pp::html_timeline> lines;
  std::string title;
  for (made_table const& each : all) {
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
  double const saved = with_barrier > 0 ? 100 * (1 - without / with_barrier) : 0;
  pp::append(out, "\n", iterations, " iterations: ", rounded(with_barrier, 2));
  pp::append(out, " with a barrier at the optimizer's step, ", rounded(without, 2));
  pp::append(out, " where the next iteration validates it (", rounded(saved, 2), " % less)\n");
}

} // namespace

void write(standard_output& out, command const& asked, made_table const& made) {
  pp::timetable_view const table = made.table;
  pp::timetable_caption about = made.about();
  if (asked.format == "text" || asked.format == "json") {
    pp::time_bounds const least = bounds_of(made);
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

} // namespace examples
