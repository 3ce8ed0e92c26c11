// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "file_readers.hpp"
#include "reader.hpp"

namespace pp = pipelining;

namespace fuzz {

void read_csv(std::string_view text) {
  pp::pytorch_schedule file;
  pp::dynamic_timetable table;
  if (!takes<std::invalid_argument>([&] {
        file = pp::read_pytorch_csv(text);
        table = pp::make_timetable(file);
      }))
    return;
  check(static_cast<bool>(pp::verify(table)), "a timetable breaks a rule");
  for (auto const& [content, release] :
       {std::pair{pp::pytorch_content::passes, pp::pytorch_release::v2_10},
        std::pair{pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_10},
        std::pair{pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_15}}) {
    std::string out;
    pp::write_pytorch_csv(out, table, content, release);
    auto const again = pp::make_timetable(pp::read_pytorch_csv(out));
    check(again.passes == table.passes && again.offsets == table.offsets,
          "a file that was written is read as another one");
  }
  check(static_cast<bool>(pp::prove(pp::lower(table))), "a plan is not proven");
}

void read_timetable(std::string_view text) {
  pp::dynamic_timetable table;
  bool const json = text.starts_with('{');
  if (!takes<std::invalid_argument>(
        [&] { table = json ? pp::read_json(text) : pp::read_csv(text); }))
    return;
  std::string out;
  pp::write_csv(out, table);
  auto const again = pp::read_csv(out);
  check(again.passes == table.passes && again.offsets == table.offsets &&
          again.starts == table.starts && again.ends == table.ends &&
          again.over.holders == table.over.holders && again.over.extents == table.over.extents,
        "a timetable that was written is read as another one");
  (void)pp::verify(table);
}

} // namespace fuzz
