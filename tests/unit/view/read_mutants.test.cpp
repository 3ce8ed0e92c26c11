// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Files that the library has written, with cells and lines dropped, doubled, swapped and renamed:
// each is read or refused by a sentence. Sanitizers see what is read outside of its array.
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using cells = std::vector<std::string>;
using grid = std::vector<cells>;

cells split(std::string_view text, char separator) {
  cells result(1);
  for (char const letter : text)
    if (letter == separator)
      result.emplace_back();
    else
      result.back() += letter;
  return result;
}

grid cells_of(std::string const& file) {
  grid result;
  for (std::string const& line : split(file, '\n'))
    if (!line.empty())
      result.push_back(split(line, ','));
  return result;
}

std::string text_of(grid const& lines) {
  std::string text;
  for (cells const& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      text += (i == 0 ? "" : ",") + line[i];
    text += '\n';
  }
  return text;
}

void append_files(std::vector<grid>& files, pp::dynamic_timetable const& table) {
  for (auto const& [content, release] :
       {std::pair{pp::pytorch_content::passes, pp::pytorch_release::v2_10},
        std::pair{pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_10},
        std::pair{pp::pytorch_content::passes_and_messages, pp::pytorch_release::v2_15}}) {
    std::string text;
    pp::write_pytorch_csv(text, table, content, release);
    files.push_back(cells_of(text));
  }
}

template <class Schedule>
void append_files(std::vector<grid>& files, Schedule const& schedule, int devices) {
  append_files(files, pp::make_timetable(schedule, {devices, 4}));
}

std::vector<grid> valid_files() {
  std::vector<grid> files;
  append_files(files, pp::GPipe{}, 2);
  append_files(files, pp::OneFOneB{}, 3);
  append_files(files, pp::Interleaved<2>{}, 2);
  append_files(files, pp::ZeroBubbleH1{}, 2);
  append_files(files, pp::VHalf{}, 2);
  append_files(files,
               pp::make_timetable(pp::read_pytorch_csv("0F0,3F0,0F1,3B0,0B0,3F1,3B1,0B1\n"
                                                       "1F0,1F1,1B0,1B1\n"
                                                       "2F0,2F1,2B0,2B1\n")));
  return files;
}

//! One damage: to a cell, to two, or to a line.
void spoil(grid& lines, std::mt19937_64& random) {
  auto const below = [&random](std::size_t count) { return random() % count; };
  cells& line = lines[below(lines.size())];
  cells& other = lines[below(lines.size())];
  if (line.empty() || other.empty())
    return;
  std::size_t const at = below(line.size());
  std::size_t const there = below(other.size());
  switch (below(9)) {
  case 0: line.erase(line.begin() + static_cast<std::ptrdiff_t>(at)); break;
  case 1: line.insert(line.begin() + static_cast<std::ptrdiff_t>(at), std::string(line[at])); break;
  case 2: std::swap(line[at], other[there]); break;
  case 3: line[at] = other[there]; break;
  case 4: std::swap(line, other); break;
  case 5: lines.push_back(cells(line)); break;
  case 6:
    if (lines.size() > 1)
      lines.pop_back();
    break;
  case 7: // another stage or microbatch
    for (char& letter : line[at])
      if (letter >= '0' && letter <= '9' && below(2) == 0)
        letter = static_cast<char>('0' + below(10));
    break;
  default: // another verb, at the same stage and microbatch
    constexpr std::string_view verbs[] = {
      "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B"};
    std::size_t const begin = line[at].find_first_not_of("0123456789");
    std::size_t const end = line[at].find_last_not_of("0123456789");
    if (begin != std::string::npos)
      line[at].replace(begin, end + 1 - begin, verbs[below(std::size(verbs))]);
  }
}

} // namespace

TEST_CASE("a message whose other end is missing is refused where it stands") {
  auto const refusal = [](std::string_view text) -> std::string {
    try {
      (void)pp::make_timetable(pp::read_pytorch_csv(text));
      return "";
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
  };
  CHECK(refusal("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0\n") ==
        "PyTorch CSV, line 1, cell 3: 0RECV_B0 waits for ever, since 1SEND_B0 is missing");
  CHECK(refusal("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1W0,1SEND_B0\n") ==
        "PyTorch CSV, line 2, cell 4: 1SEND_B0 stands before the pass that makes what it sends");
}

TEST_CASE("spoilt files of every schedule are read or refused by a sentence") {
  std::vector<grid> const files = valid_files();
  for (grid const& file : files)
    CHECK_NOTHROW((void)pp::make_timetable(pp::read_pytorch_csv(text_of(file))));
  std::mt19937_64 random(29);
  int good = 0;
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    grid lines = files[static_cast<std::size_t>(i) % files.size()];
    for (std::uint64_t damages = 1 + random() % 3; damages > 0; --damages)
      spoil(lines, random);
    std::string const text = text_of(lines);
    CAPTURE(text);
    try {
      pp::dynamic_timetable const table = pp::make_timetable(pp::read_pytorch_csv(text));
      CHECK(pp::verify(table));
      ++good;
      std::string again;
      pp::write_pytorch_csv(again, table);
      CHECK(pp::read_pytorch_csv(again).orders.passes == table.passes);
    } catch (std::invalid_argument const& error) {
      std::string_view const reason = error.what();
      CHECK((reason.starts_with("PyTorch CSV") || reason.starts_with("shape: ")));
      ++refused;
    }
  }
  CHECK(good > 30);
  CHECK(refused > 700);
}
