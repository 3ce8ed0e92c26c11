// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Writes a timetable in all formats, with a name and words of kinds that try to be more than text.
// Usage: hostile FOLDER NAME; the name is used as a schedule's, a caption's and a page's.
#include <pipe/flow/training.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/trace.hpp>

#include <fstream>
#include <ios>
#include <iostream>
#include <string>
#include <string_view>

namespace pp = pipelining;

namespace {

//! The flow of training with other words.
pp::flow renamed() {
  pp::flow result = pp::training;
  result.kinds[pp::detail::index_of(pp::pass_kind::forward)].word = "\"><script>hacked=1</script>";
  result.kinds[pp::detail::index_of(pp::pass_kind::backward)].word = "<img src onerror=hacked=1>";
  return result;
}

template <class Write>
void write_file(std::string const& path, Write const& write) {
  std::string text;
  write(text);
  std::ofstream file(path, std::ios::binary);
  file << text;
}

} // namespace

int main(int count, char** words) {
  if (count != 3)
    return 2;
  std::string const folder = words[1];
  std::string_view const name = words[2];
  auto table = pp::make_timetable<pp::OneFOneB>({2, 3});
  table.over.declared = renamed();
  pp::timetable_caption const about{name, pp::uniform_cost{}};
  write_file(folder + "/page.html", [&](std::string& out) {
    pp::html_timeline const lines[] = {pp::make_html_timeline(table, about, pp::uniform_cost{})};
    pp::write_html(out, lines, {.title = name, .unit = name});
  });
  write_file(folder + "/picture.svg", [&](std::string& out) { pp::write_svg(out, table, about); });
  write_file(folder + "/table.json", [&](std::string& out) { pp::write_json(out, table, about); });
  write_file(folder + "/trace.json", [&](std::string& out) { pp::write_trace(out, table, about); });
  write_file(folder + "/table.csv", [&](std::string& out) { pp::write_csv(out, table); });
  return 0;
}
