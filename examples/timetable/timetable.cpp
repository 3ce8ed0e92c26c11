// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints the timetable of a schedule as text, CSV, JSON or SVG. `timetable --help` says how.
#include <pipe/io/csv.hpp>
#include <pipe/io/details.hpp>
#include <pipe/io/json.hpp>
#include <pipe/io/read_pytorch_csv.hpp>
#include <pipe/io/svg.hpp>
#include <pipe/io/text.hpp>
#include <pipe/io/trace.hpp>
#include <pipe/io/write_pytorch_csv.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/tables.hpp>
#include <pipe/search/sequence_partition.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

#include "../support/named_schedules.hpp"
#include "command_line.hpp"

namespace pp = pipelining;

namespace {

//! What the writers of the library append to.
struct standard_output {
  void append(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }
};

//! Timetables beyond this take more memory than a small machine has, pictures more than a viewer.
constexpr std::int64_t most_passes = std::int64_t{1} << 25;
constexpr std::int64_t most_cells = std::int64_t{1} << 19;
constexpr std::int64_t most_planned = std::int64_t{1} << 21;

void check_size(pp::shape const& extents, std::string const& format) {
  if (pp::pass_indices(extents) > most_passes)
    throw examples::usage_error("this timetable would have up to " +
                                std::to_string(pp::pass_indices(extents)) + " passes; at most " +
                                std::to_string(most_passes) + " are made here");
  bool const planned = format == "calls" || format == "memory";
  if (planned && pp::pass_indices(extents) > most_planned)
    throw examples::usage_error("a plan of up to " + std::to_string(pp::pass_indices(extents)) +
                                " passes is too large for a table; at most " +
                                std::to_string(most_planned) + " are planned here");
  if (format == "svg" && pp::pass_indices(extents) > most_cells)
    throw examples::usage_error("a picture of up to " + std::to_string(pp::pass_indices(extents)) +
                                " passes opens in no viewer; at most " +
                                std::to_string(most_cells) + " are drawn");
}

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

//! A timetable, and its chunks where their lengths matter.
struct result {
  pp::dynamic_timetable table;
  std::vector<int> chunk_lengths;
  std::vector<double> chunk_shares;
};

pp::plan lower(examples::command const& asked, pp::timetable_view table) {
  if (asked.policy == "pipeline")
    return pp::lower<pp::one_communicator>(table, asked.sizes);
  if (asked.policy == "edge")
    return pp::lower<pp::communicator_per_edge>(table, asked.sizes);
  return pp::lower<pp::communicator_per_pair>(table, asked.sizes);
}

void write(examples::command const& asked, result const& made) {
  standard_output out;
  pp::timetable_view const table = made.table;
  pp::timetable_details const about{
    asked.choice.name, asked.cost, made.chunk_shares, made.chunk_lengths};
  if (asked.format == "csv")
    pp::write_csv(out, table);
  else if (asked.format == "json")
    pp::write_json(out, table, about);
  else if (asked.format == "svg")
    pp::write_svg(out, table, about);
  else if (asked.format == "trace")
    pp::write_trace(out, table, about, {}, {.arrows = true});
  else if (asked.format == "pytorch")
    pp::write_pytorch_csv(out, table);
  else if (asked.format == "pytorch-comms")
    pp::write_pytorch_csv(out, table, pp::pytorch_content::passes_and_messages);
  else if (asked.format == "calls")
    out.append(pp::describe_calls(lower(asked, table)));
  else if (asked.format == "memory")
    out.append(pp::describe_memory(lower(asked, table)));
  else
    pp::write_text(out, table, about, terminal(asked.width));
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

//! The text of a file.
std::string read_file(std::string const& name) {
  constexpr std::size_t most = std::size_t{1} << 28;
  auto const fail = [&name](char const* reason) {
    return examples::usage_error("cannot read " + examples::quoted(name) + ": " + reason);
  };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const file(std::fopen(name.c_str(), "rb"),
                                                             &std::fclose);
  if (!file)
    throw fail(std::strerror(errno));
  std::string text;
  char part[1 << 16];
  while (std::size_t const count = std::fread(part, 1, sizeof part, file.get())) {
    text.append(part, count);
    if (text.size() > most)
      throw fail("the file is larger than 256 MiB");
  }
  if (std::ferror(file.get()) != 0)
    throw fail(std::strerror(errno));
  return text;
}

//! The chunks of a sequence, of equal work or of equal length, and the timetable with their costs.
result make_with_tokens(examples::command const& asked, pp::shape const& extents) {
  int const tokens = asked.tokens.value();
  pp::sequence_work const work = pp::work_of_attention_ratio(asked.attention_ratio.value(), tokens);
  result made;
  made.chunk_lengths = asked.even ? pp::even_partition(tokens, extents.chunks)
                                  : pp::balanced_partition(tokens, extents.chunks, work);
  made.chunk_shares = pp::token_shares(made.chunk_lengths);
  made.table = examples::make_named_timetable(
    asked.choice, pp::chunk_costs(extents, made.chunk_lengths, work, asked.cost));
  return made;
}

result make(examples::command const& asked) {
  if (asked.choice.name == "csv") {
    pp::pytorch_schedule const file = pp::read_pytorch_csv(read_file(asked.file));
    check_size(file.orders.extents, asked.format);
    return {pp::make_timetable(file, asked.cost), {}, {}};
  }
  pp::shape const extents = examples::arrange(asked.choice);
  check_size(extents, asked.format);
  if (asked.tokens)
    return make_with_tokens(asked, extents);
  return {examples::make_named_timetable(asked.choice, asked.cost), {}, {}};
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
  write(asked, make(asked));
}

} // namespace

int main(int count, char** words) {
  try {
    follow(examples::read_command_line(count, words));
  } catch (std::bad_alloc const&) {
    std::fprintf(stderr, "timetable: not enough memory for a timetable of this size\n");
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "timetable: %s\n", error.what());
    return 2;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "timetable: could not write the output\n");
    return 1;
  }
  return 0;
}
