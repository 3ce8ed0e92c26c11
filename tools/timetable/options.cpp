// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <bit>

#include "library.hpp"

namespace examples {
namespace {

//! In the order of the bits of `verbs`.
constexpr std::string_view verb_names[] = {"timetable",
                                           "csv",
                                           "compare",
                                           "search",
                                           "gaps",
                                           "choose",
                                           "systems",
                                           "blocks",
                                           "reproduce",
                                           "completion"};

constexpr std::size_t first_column = 25;
constexpr std::size_t last_column = 90;

//! Appends lines that begin in this column, where the first one is already.
void append_wrapped(std::string& to, std::string_view text, std::size_t first) {
  std::size_t column = first;
  while (!text.empty()) {
    std::size_t const size = std::min(text.find(' '), text.size());
    bool const begins = column == first;
    bool const fits = column + 1 + size <= last_column;
    to += begins ? "" : fits ? " " : "\n" + std::string(first, ' ');
    to += text.substr(0, size);
    column = (begins ? column : fits ? column + 1 : first) + size;
    text.remove_prefix(std::min(size + 1, text.size()));
  }
  to += '\n';
}

} // namespace

std::string_view name_of(verbs one) {
  return verb_names[std::countr_zero(static_cast<unsigned>(one))];
}

std::string not_of(verbs one, verbs owners, std::string_view option) {
  if (std::has_single_bit(static_cast<unsigned>(owners)) && owners != verbs::timetable)
    return "only " + std::string(name_of(owners)) + " has the option " + std::string(option);
  return std::string(name_of(one)) + " does not have the option " + std::string(option) +
         (one == verbs::csv ? ": the file says all but the costs and the adapter" : "");
}

std::string
no_option(verbs one, std::string_view word, std::vector<std::string_view> const& names) {
  std::string const near = near_names(word, names);
  std::string const verb = one == verbs::timetable ? "" : std::string(name_of(one)) + " ";
  return "there is no option " + quoted(word) +
         (near.empty() ? "; see " + verb + "--help" : "; did you mean " + near + "?");
}

std::string one_of(std::string_view option, std::string_view word, word_list const& all) {
  if (std::find(all.begin(), all.end(), word) != all.end())
    return std::string(word);
  std::string known;
  for (std::size_t i = 0; i < all.size(); ++i)
    known.append(i == 0 ? "" : i + 1 == all.size() ? " or " : ", ").append(all[i]);
  throw usage_error(std::string(option) + " wants " + known + ", not " + quoted(word));
}

std::vector<std::string_view> split_at_commas(std::string_view word) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0, comma = 0; comma != word.npos; begin = comma + 1) {
    comma = word.find(',', begin);
    parts.push_back(word.substr(begin, comma == word.npos ? comma : comma - begin));
  }
  return parts;
}

std::string wrapped(std::string_view text) {
  std::string result;
  append_wrapped(result, text, 0);
  return result;
}

std::string describe_option(std::string_view spelling, std::string_view help) {
  std::string text = "  " + std::string(spelling);
  if (text.size() + 1 > first_column)
    text += "\n" + std::string(first_column, ' ');
  else
    text.resize(first_column, ' ');
  append_wrapped(text, help, first_column);
  return text;
}

void no_names(verbs one, read_words const& read) {
  if (!read.names.empty())
    throw usage_error(std::string(name_of(one)) + " takes options and no word like " +
                      quoted(read.names.front()) + "; see " + std::string(name_of(one)) +
                      " --help");
}

double read_gigabytes(std::string_view option, std::string_view word) {
  std::string_view digits = word;
  double unit = 1;
  for (auto const& [suffix, factor] : {std::pair<std::string_view, double>{"GiB", 1.073741824},
                                       {"GB", 1.0},
                                       {"MB", 1e-3},
                                       {"TB", 1e3}})
    if (word.size() > suffix.size() && word.substr(word.size() - suffix.size()) == suffix) {
      digits.remove_suffix(suffix.size());
      unit = factor;
      break;
    }
  std::optional<double> const value = number_in<double>(digits);
  if (!value || !pp::detail::gpu_range.contains(unit * *value))
    throw usage_error(std::string(option) + " wants an amount " + pp::detail::gpu_range.words +
                      " GB, such as 80GB, 80GiB, 500MB or 2TB, not " + quoted(word));
  return unit * *value;
}

std::vector<int> read_stage_numbers(std::string_view option, std::string_view word) {
  std::vector<int> result;
  for (std::string_view const part : split_at_commas(word)) {
    std::size_t const dash = part.find('-');
    std::optional<int> const first = number_in<int>(part.substr(0, dash));
    std::optional<int> const last =
      dash == part.npos ? first : number_in<int>(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= (1 << 16) ||
        (!result.empty() && *first <= result.back()))
      throw usage_error(std::string(option) +
                        " wants numbers of stages from 0 on, the least first, such as 0-2,5, not " +
                        quoted(word));
    for (int stage = *first; stage <= *last; ++stage)
      result.push_back(stage);
  }
  return result;
}

std::string write_stage_numbers(std::span<int const> stages) {
  std::string out;
  for (std::size_t i = 0, next = 0; i < stages.size(); i = next) {
    for (next = i + 1; next < stages.size() && stages[next] == stages[next - 1] + 1;)
      ++next;
    out += (out.empty() ? "" : ",") + std::to_string(stages[i]);
    if (next - i > 1)
      out += "-" + std::to_string(stages[next - 1]);
  }
  return out;
}

} // namespace examples
