// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Timetables and plans of every schedule in every adapter, as they are: frozen.txt has hashes of
// their canonical texts, layer by layer. See README.md.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/policy.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tests/support/canonical_plan.hpp>
#include <tests/support/canonical_text.hpp>
#include <utility>
#include <vector>

#include "schedules.hpp"
#include "sizes.hpp"

namespace frozen {
namespace {

//! The plans that are made of one timetable. Those of more than one policy are those of the default
//! one, and only of schedules in no adapter.
constexpr std::array variants{
  "pipeline", "exchange", "pair", "edge", "hooks", "validated", "evaluation"};
constexpr std::size_t policies = 4;
constexpr std::array layers{"order", "times", "messages", "memory", "dependence"};

//! Any policy as one type, so that lowering is compiled once.
struct chosen_policy {
  static inline char const* name = "";
  static inline bool duplex_groups = true;
  static inline bool joins_exchanges = false;
  static inline pp::detail::communicator_key key_of = nullptr;
  [[nodiscard]] static std::int64_t key(int from, int to) { return key_of(from, to); }
};

template <pp::communication_policy Policy>
void choose() {
  chosen_policy::name = Policy::name;
  chosen_policy::duplex_groups = Policy::duplex_groups;
  chosen_policy::joins_exchanges = pp::detail::joins_exchanges<Policy>();
  chosen_policy::key_of = &Policy::key;
}

pp::plan lowered(pp::timetable_view const& table, std::size_t variant) {
  constexpr void (*choices[policies])() = {&choose<pp::communicators::one>,
                                           &choose<pp::communicators::exchanges_at_once>,
                                           &choose<pp::communicators::per_pair>,
                                           &choose<pp::communicators::per_edge>};
  static buffer_bytes sizes;
  pp::detail::lower_options options;
  choices[std::min<std::size_t>(variant, 2)]();
  if (variant == 3)
    choices[3]();
  sizes.tied_bytes = variant == 4 ? 1500 : 0;
  sizes.totals_bytes = variant >= 4 ? 48 : 0;
  if (variant == 5)
    options.validation = pp::step_validation::both;
  return variant == 6 ? pp::lower_evaluation<chosen_policy>(table, sizes)
                      : pp::lower<chosen_policy>(table, sizes, options);
}

//! The plan, or none where it is refused: what that says may change.
std::optional<pp::plan> lowered_or_none(pp::timetable_view const& table, std::size_t variant) {
  try {
    return lowered(table, variant);
  } catch (std::invalid_argument const&) {
    return std::nullopt;
  }
}

//! One schedule in one adapter: a section of the file.
struct section {
  pipelining::registry::named_schedule const* schedule;
  wrapping in;

  [[nodiscard]] std::string name() const {
    return std::string(schedule->name) + (in.name.empty() ? "" : " with " + in.name);
  }
  //! What has no name on the command line is frozen at every third size.
  [[nodiscard]] bool has(int number) const {
    return in.also == wrapping::own::none || number % 3 == 0;
  }
  [[nodiscard]] std::size_t variant_count() const {
    return in.name.empty() ? variants.size() : policies;
  }
};

//! Orders of one schedule at one size, for all of its adapters.
using order_cache = std::map<std::pair<std::string_view, int>, pipelining::registry::made_orders>;

std::optional<pp::dynamic_timetable> table_of(section const& of, int number, order_cache& made) {
  size const& at = sizes[static_cast<std::size_t>(number) - 1];
  try {
    return make(choice_of(*of.schedule, of.in.named, at),
                of.in,
                pipelining::registry::any_cost(cost(at)),
                made[{of.schedule->name, number}]);
  } catch (std::invalid_argument const&) {
    return std::nullopt;
  }
}

std::string digits(std::uint64_t hash) {
  char text[5];
  std::snprintf(text, sizeof text, "%04x", static_cast<unsigned>(hash >> 20 & 0xffffu));
  return text;
}

//! The hashes of one layer of several plans; "=" for that of the plan before.
std::string joined(std::vector<std::string> const& hashes) {
  std::string text;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    text += i > 0 && hashes[i] == hashes[i - 1] ? "=" : hashes[i];
  return text;
}

template <class Write>
std::string hashed(Write write, support::hash_sink sink = {}) {
  write(sink);
  return digits(sink.value());
}

//! The hashes of one size: a line of the file.
std::string line_of(section const& of, pp::dynamic_timetable const& table) {
  support::flow_labels const labels(table.over.declared);
  std::vector<std::string> messages, memory, dependence;
  support::hash_sink peaks;
  write_peaks(peaks, labels, table);
  std::string const refused = digits(support::hash_of("refused"));
  for (std::size_t variant = 0; variant < of.variant_count(); ++variant) {
    std::optional<pp::plan> const plan = lowered_or_none(table, variant);
    if (!plan) {
      for (auto* const layer : {&messages, &memory, &dependence})
        layer->push_back(refused);
      continue;
    }
    pp::plan const& work = *plan;
    messages.push_back(hashed([&](auto& sink) { write_messages(sink, labels, work); }));
    memory.push_back(hashed([&](auto& sink) { write_memory(sink, labels, work); }, peaks));
    dependence.push_back(hashed([&](auto& sink) { write_dependence(sink, labels, work); }));
  }
  return hashed([&](auto& sink) { write_order(sink, labels, table); }) + ' ' +
         hashed([&](auto& sink) { write_times(sink, table); }) + ' ' + joined(messages) + ' ' +
         joined(memory) + ' ' + joined(dependence);
}

//! @param only of this schedule; empty: of all
std::vector<section> sections(std::string const& only = "") {
  std::vector<section> all;
  for (pipelining::registry::named_schedule const& schedule :
       pipelining::registry::named_schedules())
    for (wrapping const& in : wrappings())
      if (only.empty() || only == schedule.name)
        all.push_back({&schedule, in});
  return all;
}

//! The lines of a section, by size; "refused" where there is no timetable.
using lines = std::map<int, std::string>;

//! @param chosen `chosen(size)`: whether it is wanted
template <class Chosen>
lines lines_of(section const& of, order_cache& made, Chosen chosen) {
  lines all;
  for (int number = 1; number <= static_cast<int>(sizes.size()); ++number) {
    if (!chosen(number) || !of.has(number))
      continue;
    auto const table = table_of(of, number, made);
    all[number] = table ? line_of(of, *table) : "refused";
  }
  return all;
}

constexpr char const* heading =
  "# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception\n"
  "# Hashes of the canonical texts of timetables and plans: see README.md. Of every size of\n"
  "# sizes.hpp: order, times, messages, memory, dependence. The last three have the policies\n"
  "# pipeline, exchange, pair, edge; in no adapter also hooks, validated, evaluation; \"=\": as\n"
  "# before it.\n";

int write(std::string const& path) {
  std::ofstream file(path);
  file << heading;
  order_cache made;
  for (section const& of : sections()) {
    file << '[' << of.name() << "]\n";
    std::string refused;
    for (auto const& [number, line] : lines_of(of, made, [](int) { return true; }))
      if (line == "refused")
        refused += ' ' + std::to_string(number);
      else
        file << number << ' ' << line << '\n';
    if (!refused.empty())
      file << "refused" << refused << '\n';
  }
  return file.good() ? 0 : 1;
}

std::map<std::string, lines> read(std::string const& path) {
  std::ifstream file(path);
  std::map<std::string, lines> all;
  std::string name;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#')
      continue;
    if (line[0] == '[') {
      name = line.substr(1, line.size() - 2);
      continue;
    }
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first != "refused")
      all[name][std::stoi(first)] = line.substr(first.size() + 1);
    else
      for (int number = 0; words >> number;)
        all[name][number] = "refused";
  }
  return all;
}

//! The layers of two lines that differ, "order messages[pair edge]".
std::string difference(std::string const& frozen, std::string const& now) {
  if (frozen.empty() || frozen == "refused" || now == "refused")
    return frozen.empty() ? "is not in the file" : now == "refused" ? "is refused" : "is accepted";
  std::istringstream was(frozen), is(now);
  auto const split = [](std::string const& text) {
    std::vector<std::string> hashes;
    for (std::size_t at = 0; at < text.size();) {
      bool const same = text[at] == '=';
      hashes.push_back(same ? hashes.back() : text.substr(at, 4));
      at += same ? 1 : 4;
    }
    return hashes;
  };
  std::string text;
  for (char const* const layer : layers) {
    std::string one, other;
    was >> one;
    is >> other;
    if (one == other)
      continue;
    text += (text.empty() ? "" : ", ") + std::string(layer);
    auto const ones = split(one);
    auto const others = split(other);
    std::string which;
    for (std::size_t i = 0; i < ones.size() && i < others.size() && others.size() > 1; ++i)
      if (ones[i] != others[i])
        which += (which.empty() ? "" : " ") + std::string(variants[i]);
    text += which.empty() ? "" : " of " + which;
  }
  return text;
}

int check(std::string const& path, std::string const& only) {
  bool const everything = std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
  auto frozen = read(path);
  order_cache made;
  int accepted = 0;
  int refused = 0;
  int wrong = 0;
  std::size_t sections_seen = 0;
  for (section const& of : sections(only)) {
    lines const& known = frozen[of.name()];
    ++sections_seen;
    // Of thirty sizes six, in adapters three of these: orders that are searched for are made once.
    int const turn = static_cast<int>(of.schedule - pipelining::registry::named_schedules().data());
    int const step = of.in.name.empty() ? 5 : 10;
    for (auto const& [at, now] :
         lines_of(of, made, [&](int each) { return everything || each % step == turn % step; })) {
      ++(now == "refused" ? refused : accepted);
      auto const found = known.find(at);
      std::string const was = found == known.end() ? "" : found->second;
      if (was == now)
        continue;
      if (++wrong <= 40)
        std::cout << '"' << of.name() << "\" " << at << ": " << difference(was, now) << '\n';
    }
  }
  if (only.empty() && frozen.size() != sections_seen) {
    std::cout << path << " has a schedule or an adapter that there is no more\n";
    ++wrong;
  }
  std::cout << accepted << " timetables with their plans, " << refused << " refusals, " << wrong
            << " differences\n";
  return wrong == 0 && accepted > 0 ? 0 : 1;
}

//! Prints the texts of one size.
int print(std::string const& name, int number, std::string const& variant) {
  for (section const& of : sections()) {
    if (of.name() != name)
      continue;
    order_cache made;
    auto const table = table_of(of, number, made);
    support::text_sink sink;
    support::flow_labels const labels(table ? table->over.declared : pp::training);
    auto const head = [&sink](char const* layer) {
      sink.word("==");
      sink.word(support::label::of(layer));
      sink.end_line();
    };
    if (!table) {
      std::cout << "refused\n";
      return 0;
    }
    head("order");
    write_order(sink, labels, *table);
    head("times");
    write_times(sink, *table);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      if (variant != variants[i])
        continue;
      auto const plan = lowered_or_none(*table, i);
      if (!plan) {
        std::cout << sink.text() << "refused\n";
        return 0;
      }
      head("messages");
      write_messages(sink, labels, *plan);
      head("memory");
      write_peaks(sink, labels, *table);
      write_memory(sink, labels, *plan);
      head("dependence");
      write_dependence(sink, labels, *plan);
    }
    std::cout << sink.text();
    return 0;
  }
  std::cout << "there is no " << name << '\n';
  return 1;
}

} // namespace
} // namespace frozen

int main(int count, char** words) {
  std::vector<std::string> const given(words + 1, words + count);
  try {
    if (given.size() >= 2 && given.size() <= 3 && given[0] == "check")
      return frozen::check(given[1], given.size() == 3 ? given[2] : "");
    if (given.size() == 2 && given[0] == "write")
      return frozen::write(given[1]);
    if (given.size() >= 3 && given.size() <= 4 && given[0] == "print")
      return frozen::print(given[1], std::stoi(given[2]), given.size() == 4 ? given[3] : "pair");
  } catch (std::exception const& error) {
    std::cout << error.what() << '\n';
    return 1;
  }
  std::cout << "usage: frozen check FILE [SCHEDULE]\n"
               "       frozen write FILE\n"
               "       frozen print \"SCHEDULE [with ADAPTER]\" SIZE [POLICY]\n";
  return 2;
}
