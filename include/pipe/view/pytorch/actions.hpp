// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The actions of the schedule files of torch.distributed.pipelining, and how they are
//! written.
//!
//! One line per device ("rank"), cells separated by commas, in the order in which the device acts:
//! `2F5` is the forward pass of stage 2 for microbatch 5; B, I and W are as in pipelining::letter;
//! `(0F1;3B0)OVERLAP_F_B` is an overlapped pair; an empty cell is an idle slot of the grid of
//! PyTorch, which has no effect. Files with messages have `2SEND_F5`, `3RECV_F5`, `3SEND_B5` and
//! `2RECV_B5` as well; of torch 2.15 on also `2WAIT_SEND_F5` and `2WAIT_SEND_B5`, at which the
//! buffer of what was sent is free again. `2UNSHARD`, `2RESHARD`, `2REDUCE_GRAD` and
//! `2WAIT_REDUCE_GRAD` are about the parameters of a stage; they are counted and skipped, since
//! timetables know passes and messages alone.
//! @source the texts that torch.distributed.pipelining prints for its actions, versions 2.10
//! to 2.15.
#include <pipe/flow/quote.hpp>
#include <pipe/view/append.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! What an action does. The first four are passes, in the order of `pass_kind`.
enum class pytorch_verb : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
  wait_send_forward,
  wait_send_backward,
  skipped
};

//! One action and where it stands.
struct pytorch_action {
  pytorch_verb verb = pytorch_verb::skipped;
  bool overlapped = false;
  std::uint16_t stage = 0;
  std::uint16_t microbatch = 0;
  int line = 0; //!< counted from 1, the device and one
  int cell = 0; //!< counted from 1
};

[[nodiscard]] constexpr bool is_pass(pytorch_action const& action) noexcept {
  return action.verb <= pytorch_verb::backward_weight;
}
[[nodiscard]] constexpr bool is_message(pytorch_action const& action) noexcept {
  return action.verb >= pytorch_verb::send_forward && action.verb <= pytorch_verb::receive_backward;
}

//! "line 3, cell 12".
[[nodiscard]] inline std::string place_of(int line, int cell) {
  std::string text;
  append(text, "line ", line, ", cell ", cell);
  return text;
}

[[noreturn]] inline void reject(int line, int cell, std::string const& reason) {
  throw std::invalid_argument("PyTorch CSV, " + place_of(line, cell) + ": " + reason);
}

[[nodiscard]] inline std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

//! Takes the text before the first separator off `rest`.
[[nodiscard]] inline std::string_view take_until(std::string_view& rest, char separator) {
  std::size_t const end = std::min(rest.find(separator), rest.size());
  std::string_view const part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

//! Takes a number of 16 bits off the front of `rest`.
[[nodiscard]] inline bool take_number(std::string_view& rest, std::uint16_t& number) {
  auto const [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return error == std::errc();
}

struct pytorch_verb_name {
  std::string_view name;
  pytorch_verb verb;
};

inline constexpr pytorch_verb_name pytorch_verb_names[] = {
  {"F", pytorch_verb::forward},
  {"B", pytorch_verb::backward},
  {"I", pytorch_verb::backward_input},
  {"W", pytorch_verb::backward_weight},
  {"SEND_F", pytorch_verb::send_forward},
  {"RECV_F", pytorch_verb::receive_forward},
  {"SEND_B", pytorch_verb::send_backward},
  {"RECV_B", pytorch_verb::receive_backward},
  {"WAIT_SEND_F", pytorch_verb::wait_send_forward},
  {"WAIT_SEND_B", pytorch_verb::wait_send_backward},
  {"UNSHARD", pytorch_verb::skipped},
  {"RESHARD", pytorch_verb::skipped},
  {"REDUCE_GRAD", pytorch_verb::skipped},
  {"WAIT_REDUCE_GRAD", pytorch_verb::skipped},
};

//! One action without parentheses: a stage, a verb and (but for the skipped ones) a microbatch.
[[nodiscard]] inline pytorch_action parse_action(std::string_view text, int line, int cell) {
  constexpr char const* wanted =
    "; an action is a stage, F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B, "
    "UNSHARD, RESHARD, REDUCE_GRAD or WAIT_REDUCE_GRAD, and a microbatch, both numbers from 0 to "
    "65534";
  pytorch_action action;
  action.line = line;
  action.cell = cell;
  std::string_view rest = text;
  bool good = take_number(rest, action.stage) && action.stage < 65535;
  std::size_t const letters =
    std::min(rest.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), rest.size());
  pytorch_verb_name const* const found = std::find_if(
    std::begin(pytorch_verb_names),
    std::end(pytorch_verb_names),
    [&](pytorch_verb_name const& each) { return each.name == rest.substr(0, letters); });
  rest.remove_prefix(letters);
  if (!good || found == std::end(pytorch_verb_names))
    reject(line, cell, quote(text) + " is not an action" + wanted);
  action.verb = found->verb;
  bool const numbered = take_number(rest, action.microbatch) && action.microbatch < 65535;
  good = rest.empty() && (numbered || (action.verb == pytorch_verb::skipped && text.back() >= 'A'));
  if (!good)
    reject(line, cell, quote(text) + " is not an action" + wanted);
  return action;
}

//! A pair: two passes between parentheses, a forward and a backward one; the forward pass becomes
//! the first of them.
inline void
parse_pair(std::string_view text, int line, int cell, std::vector<pytorch_action>& actions) {
  std::string_view rest = text.substr(1);
  std::string_view inside = take_until(rest, ')');
  if (rest != "OVERLAP_F_B" || std::count(inside.begin(), inside.end(), ';') != 1)
    reject(line, cell, quote(text) + " is not a pair; a pair looks like (0F1;3B0)OVERLAP_F_B");
  pytorch_action first = parse_action(trim(take_until(inside, ';')), line, cell);
  pytorch_action second = parse_action(trim(inside), line, cell);
  auto const gives_gradient = [](pytorch_action const& action) {
    return action.verb == pytorch_verb::backward || action.verb == pytorch_verb::backward_input;
  };
  bool const forward_first = first.verb == pytorch_verb::forward && gives_gradient(second);
  bool const forward_second = second.verb == pytorch_verb::forward && gives_gradient(first);
  if (!forward_first && !forward_second)
    reject(line, cell, quote(text) + " must pair one forward pass with one B or I");
  if (forward_second)
    std::swap(first, second);
  second.overlapped = true;
  actions.push_back(first);
  actions.push_back(second);
}

//! All actions of a file, line after line; `line_count` becomes the number of devices.
[[nodiscard]] inline std::vector<pytorch_action> parse_pytorch_lines(std::string_view text,
                                                                     int& line_count) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") // the mark that spreadsheets put in front of UTF-8
    text.remove_prefix(3);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  if (text.empty())
    throw std::invalid_argument("PyTorch CSV: the file is empty; it needs one line per device");
  std::vector<pytorch_action> actions;
  line_count = 0;
  while (!text.empty()) {
    std::string_view row = take_until(text, '\n');
    ++line_count;
    auto const before = static_cast<std::ptrdiff_t>(actions.size());
    int cell = 0;
    while (!row.empty()) {
      std::string_view const content = trim(take_until(row, ','));
      ++cell;
      if (!content.empty() && content.front() == '(')
        parse_pair(content, line_count, cell, actions);
      else if (!content.empty())
        actions.push_back(parse_action(content, line_count, cell));
    }
    if (std::none_of(actions.begin() + before, actions.end(), is_pass))
      reject(
        line_count, 1, "the line has no pass; every line is one device with one stage or more");
  }
  return actions;
}

} // namespace pipelining::inline v0_3::detail
