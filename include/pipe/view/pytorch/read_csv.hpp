// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reads schedule files of torch.distributed.pipelining: actions, and messages, which are
//! checked. Header for pipelining::read_pytorch_csv and pytorch_schedule.
//!
//! One line per device ("rank"), cells separated by commas, in the order in which the device acts:
//! `2F5` is the forward pass of stage 2 for microbatch 5; B, I and W are as in pipelining::letter;
//! `(0F1;3B0)OVERLAP_F_B` is an overlapped pair; an empty cell is an idle slot of the grid of
//! PyTorch, which has no effect. Files with messages have `2SEND_F5`, `3RECV_F5`, `3SEND_B5` and
//! `2RECV_B5` as well; of torch 2.15 on also `2WAIT_SEND_F5` and `2WAIT_SEND_B5`, at which the
//! buffer of the message is free again. `2UNSHARD`, `2RESHARD`, `2REDUCE_GRAD` and
//! `2WAIT_REDUCE_GRAD` are about the parameters of a stage; they are counted and skipped, since
//! timetables know only passes and messages.
//! @source the texts that torch.distributed.pipelining prints for its actions, versions 2.10
//! to 2.15.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/csv.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The part of an action in a pass or a message.
enum class pytorch_act : std::uint8_t { runs, sends, receives, waits, skipped };

//! The word of an action. The first four are passes, in the order of `pass_kind`.
struct pytorch_verb {
  std::string_view name;
  pytorch_act act;
  int step = 0; //!< from the stage of the output that it is about to the one that reads it
};
inline constexpr pytorch_verb pytorch_verbs[] = {
  {"F", pytorch_act::runs, 1},
  {"B", pytorch_act::runs, -1},
  {"I", pytorch_act::runs, -1},
  {"W", pytorch_act::runs},
  {"SEND_F", pytorch_act::sends, 1},
  {"RECV_F", pytorch_act::receives, 1},
  {"SEND_B", pytorch_act::sends, -1},
  {"RECV_B", pytorch_act::receives, -1},
  {"WAIT_SEND_F", pytorch_act::waits, 1},
  {"WAIT_SEND_B", pytorch_act::waits, -1},
  {"UNSHARD", pytorch_act::skipped},
  {"RESHARD", pytorch_act::skipped},
  {"REDUCE_GRAD", pytorch_act::skipped},
  {"WAIT_REDUCE_GRAD", pytorch_act::skipped},
};

//! Where an action stands.
struct pytorch_place {
  int line = 0; //!< counted from 1, the device and one
  int cell = 0; //!< counted from 1
};

//! One action and where it stands.
struct pytorch_action {
  pytorch_verb const* verb = nullptr;
  bool overlapped = false;
  std::uint16_t stage = 0;
  std::uint16_t microbatch = 0;
  pytorch_place at{};

  [[nodiscard]] int device() const noexcept { return at.line - 1; }
};

[[nodiscard]] constexpr bool is_pass(pytorch_action const& action) noexcept {
  return action.verb->act == pytorch_act::runs;
}
//! True for a forward pass, or else for one that gives a gradient.
[[nodiscard]] constexpr bool is_pass(pytorch_action const& action, int step) noexcept {
  return is_pass(action) && action.verb->step == step;
}

//! "line 3, cell 12".
[[nodiscard]] inline std::string word_of(pytorch_place at) {
  std::string text;
  append(text, "line ", at.line, ", cell ", at.cell);
  return text;
}
[[noreturn]] inline void reject(pytorch_place at, std::string const& reason) {
  throw std::invalid_argument("PyTorch CSV, " + word_of(at) + ": " + reason);
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

//! Takes a number from 0 to 65534 off the front of `rest`.
[[nodiscard]] inline bool take_number(std::string_view& rest, std::uint16_t& number) {
  auto const [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return error == std::errc() && number < 65535;
}

//! One action without parentheses: a stage, a verb and (but for the skipped ones) a microbatch.
[[nodiscard]] inline pytorch_action parse_action(std::string_view text, pytorch_place at) {
  pytorch_action action{.at = at};
  std::string_view rest = text;
  bool const staged = take_number(rest, action.stage);
  std::size_t const letters =
    std::min(rest.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), rest.size());
  action.verb = std::ranges::find(pytorch_verbs, rest.substr(0, letters), &pytorch_verb::name);
  rest.remove_prefix(letters);
  bool const numbered = take_number(rest, action.microbatch);
  if (!staged || action.verb == std::end(pytorch_verbs) || !rest.empty() ||
      !(numbered || (action.verb->act == pytorch_act::skipped && text.back() >= 'A')))
    reject(at,
           quote(text) +
             " is not an action; an action is a stage, F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, "
             "WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, REDUCE_GRAD or WAIT_REDUCE_GRAD, and a "
             "microbatch, both numbers from 0 to 65534");
  return action;
}

//! A pair: two passes between parentheses, a forward and a backward one; the forward pass becomes
//! the first of them.
inline void
parse_pair(std::string_view text, pytorch_place at, std::vector<pytorch_action>& actions) {
  std::string_view rest = text.substr(1);
  std::string_view inside = take_until(rest, ')');
  if (rest != "OVERLAP_F_B" || std::count(inside.begin(), inside.end(), ';') != 1)
    reject(at, quote(text) + " is not a pair; a pair looks like (0F1;3B0)OVERLAP_F_B");
  pytorch_action first = parse_action(trim(take_until(inside, ';')), at);
  pytorch_action second = parse_action(trim(inside), at);
  if (is_pass(second, 1))
    std::swap(first, second);
  if (!is_pass(first, 1) || !is_pass(second, -1))
    reject(at, quote(text) + " must pair one forward pass with one B or I");
  second.overlapped = true;
  actions.push_back(first);
  actions.push_back(second);
}

//! All actions of a file, line after line.
[[nodiscard]] inline std::vector<pytorch_action> parse_pytorch_lines(std::string_view text) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") // the mark that spreadsheets put in front of UTF-8
    text.remove_prefix(3);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  if (text.empty())
    throw std::invalid_argument("PyTorch CSV: the file is empty; it needs one line per device");
  std::vector<pytorch_action> actions;
  for (int line = 1; !text.empty(); ++line) {
    std::string_view row = take_until(text, '\n');
    auto const before = static_cast<std::ptrdiff_t>(actions.size());
    int cell = 0;
    while (!row.empty()) {
      std::string_view const content = trim(take_until(row, ','));
      ++cell;
      if (!content.empty() && content.front() == '(')
        parse_pair(content, {line, cell}, actions);
      else if (!content.empty())
        actions.push_back(parse_action(content, {line, cell}));
    }
    if (std::none_of(
          actions.begin() + before, actions.end(), [](auto const& a) { return is_pass(a); }))
      reject({line, 1}, "the line has no pass; every line is one device with one stage or more");
  }
  return actions;
}

//! Checks the messages of a file against its passes: each that crosses devices is sent once, after
//! the pass that makes it, and received once, before the pass that needs it; where the file waits
//! for sends, it does so once for each, after it; and all messages can be exchanged in the order
//! of the file.
class pytorch_messages {
public:
  pytorch_messages(pipeline_view const& over, std::vector<pytorch_action> const& actions)
      : over_(over), actions_(actions),
        places_(
          static_cast<std::size_t>(kinds * over.extents.stages() * over.extents.microbatches)) {}

  void check() {
    for (pytorch_action const& action : actions_)
      if (action.verb->step != 0)
        enter(action);
    for (pytorch_action const& action : actions_)
      switch (action.verb->act) {
      case pytorch_act::runs: check_crossing(action); break;
      case pytorch_act::sends: check_waited_for(action); [[fallthrough]];
      case pytorch_act::receives: check_end(action); break;
      case pytorch_act::waits: check_wait(action); break;
      case pytorch_act::skipped: break;
      }
    prove_order();
  }

private:
  static constexpr int kinds = 8; // passes, both ends of messages and waits, each in two directions

  //! An action of another kind about the same output, so many stages further on.
  [[nodiscard]] static pytorch_action
  with(pytorch_action action, pytorch_act act, int step = 0) noexcept {
    action.verb = std::ranges::find_if(pytorch_verbs, [&](pytorch_verb const& each) {
      return each.act == act && each.step == action.verb->step;
    });
    action.stage = static_cast<std::uint16_t>(action.stage + step);
    return action;
  }
  [[nodiscard]] static bool sends(pytorch_action const& action) noexcept {
    return action.verb->act == pytorch_act::sends;
  }
  //! From the stage of an end of a message to the stage of its other end.
  [[nodiscard]] static int step_of(pytorch_action const& action) noexcept {
    return sends(action) ? action.verb->step : -action.verb->step;
  }
  //! The other end of a message, whether it stands in the file or not.
  [[nodiscard]] static pytorch_action other_end(pytorch_action const& action) noexcept {
    return with(
      action, sends(action) ? pytorch_act::receives : pytorch_act::sends, step_of(action));
  }
  //! Where the action of this verb, stage and microbatch stands; null where none does.
  [[nodiscard]] pytorch_action const*& find(pytorch_action const& action) {
    int const kind = 2 * static_cast<int>(action.verb->act) + (action.verb->step > 0 ? 0 : 1);
    int const line = kind * over_.extents.stages() + action.stage;
    return places_[static_cast<std::size_t>(line * over_.extents.microbatches + action.microbatch)];
  }
  [[nodiscard]] static std::size_t row_of(pytorch_action const& action) {
    return static_cast<std::size_t>(action.device());
  }
  //! As the file writes it.
  [[nodiscard]] static std::string name_of(pytorch_action const& action) {
    std::string text;
    append(text, action.stage, action.verb->name, action.microbatch);
    return text;
  }
  [[noreturn]] static void refuse(pytorch_action const& action, std::string const& reason) {
    reject(action.at, name_of(action) + reason);
  }

  void enter(pytorch_action const& action) {
    if (action.stage >= over_.extents.stages() || action.microbatch >= over_.extents.microbatches)
      refuse(action, " belongs to no pass of this file");
    any_wait_ = any_wait_ || action.verb->act == pytorch_act::waits;
    pytorch_action const*& here = find(action);
    if (here != nullptr && !is_pass(action))
      refuse(action, " stands twice, first in " + word_of(here->at));
    here = &action;
  }

  //! One end of a message stands on the device of its stage, is needed, and is on the right side
  //! of the pass that it serves.
  void check_end(pytorch_action const& action) {
    if (device_of(over_, action.stage) != action.device())
      refuse(action, " stands on a device that does not hold its stage");
    int const there = action.stage + step_of(action);
    if (there < 0 || there >= over_.extents.stages())
      refuse(action, " is not needed: there is no such neighbour");
    if (device_of(over_, there) == action.device())
      refuse(action, " is not needed: both stages are on this device");
    pytorch_action const* const served = find(with(action, pytorch_act::runs));
    if (served == nullptr || (served < find(action)) != sends(action))
      refuse(action,
             sends(action) ? " stands before the pass that makes what it sends"
                           : " stands after the pass that needs what it receives");
  }

  void check_wait(pytorch_action const& action) {
    pytorch_action const send = with(action, pytorch_act::sends);
    pytorch_action const* const sent = find(send);
    if (sent == nullptr || sent > find(action) || sent->device() != action.device())
      refuse(action, " does not stand after " + name_of(send) + " on the same device");
  }
  void check_waited_for(pytorch_action const& action) {
    pytorch_action const wait = with(action, pytorch_act::waits);
    if (any_wait_ && find(wait) == nullptr)
      refuse(action,
             " has no " + name_of(wait) +
               ", but other messages of the file have; torch 2.15 wants one for each");
  }

  //! Where the consumer of a pass is on another device, the file has both ends of the message.
  void check_crossing(pytorch_action const& action) {
    int const consumer = action.stage + action.verb->step;
    if (consumer < 0 || consumer >= over_.extents.stages() ||
        device_of(over_, consumer) == action.device())
      return;
    pytorch_action const sent = with(action, pytorch_act::sends);
    for (pytorch_action const& end : {sent, other_end(sent)})
      if (find(end) == nullptr)
        reject(action.at,
               "the output of " + name_of(action) + " goes to another device, but " + name_of(end) +
                 " is missing");
  }

  //! Every device goes through its messages in the order of its line, and each message needs both
  //! of its ends at once: if all come to their end so, no executor with buffers, streams or
  //! communicators of any number can come to a stop.
  void prove_order() {
    std::vector<std::vector<pytorch_action const*>> rows(
      static_cast<std::size_t>(over_.extents.devices));
    for (pytorch_action const& action : actions_)
      if (sends(action) || action.verb->act == pytorch_act::receives) {
        if (find(other_end(action)) == nullptr) // even where the pass that makes it does not stand
          refuse(action, " waits for ever, since " + name_of(other_end(action)) + " is missing");
        rows[row_of(action)].push_back(&action);
      }
    std::vector<std::size_t> next(rows.size());
    std::vector<std::size_t> ready(rows.size());
    std::iota(ready.begin(), ready.end(), std::size_t{0});
    while (!ready.empty()) {
      std::size_t const row = ready.back();
      ready.pop_back();
      while (next[row] < rows[row].size()) {
        pytorch_action const* const other = find(other_end(*rows[row][next[row]]));
        std::size_t const peer = row_of(*other);
        if (next[peer] == rows[peer].size() || rows[peer][next[peer]] != other)
          break;
        ++next[row];
        ++next[peer];
        ready.push_back(peer);
      }
    }
    auto const name = [](pytorch_action const& action) {
      return name_of(action) + " (" + word_of(action.at) + ")";
    };
    for (std::size_t row = 0; row < rows.size(); ++row)
      if (next[row] < rows[row].size()) {
        pytorch_action const& other = *find(other_end(*rows[row][next[row]]));
        refuse(*rows[row][next[row]],
               " waits for ever for " + name(other) + ", before which " +
                 name(*rows[row_of(other)][next[row_of(other)]]) +
                 " waits as well; the devices must be able to exchange their messages one by one, "
                 "in the order of the file");
      }
  }

  pipeline_view over_;
  std::vector<pytorch_action> const& actions_;
  std::vector<pytorch_action const*> places_; // [kinds S M]
  bool any_wait_ = false;
};

} // namespace detail

//! @brief The contents of a file.
struct pytorch_schedule {
  device_orders orders;      //!< the passes of every device
  std::vector<int> cells;    //!< [n] the cell of every pass in its line, counted from 1
  bool has_messages = false; //!< SEND and RECV stand in the file, and have been checked
  int skipped = 0;           //!< UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD actions
};

namespace detail {

//! Every stage has passes, all on one device.
inline void check_stages(std::vector<pytorch_action> const& actions) {
  std::vector<pytorch_action const*> owner;
  for (pytorch_action const& action : actions) {
    if (!is_pass(action))
      continue;
    owner.resize(std::max(owner.size(), std::size_t{action.stage} + 1));
    pytorch_action const*& first = owner[action.stage];
    if (first == nullptr)
      first = &action;
    if (first->at.line == action.at.line)
      continue;
    std::string reason;
    append(reason, "stage ", action.stage, " is on this device, but also on that of ");
    reject(action.at, reason + word_of(first->at));
  }
  auto const missing = std::find(owner.begin(), owner.end(), nullptr);
  if (missing == owner.end())
    return;
  std::string reason = "PyTorch CSV: stage ";
  append(reason, missing - owner.begin(), " has no passes, but stage ", owner.size() - 1, " has");
  throw std::invalid_argument(reason);
}

//! Every microbatch has its forward pass on every stage; what else may be missing, `verify` finds.
//! Needs no more memory than the file has passes, however large the numbers in it are.
inline void find_missing_forward(std::vector<pytorch_action> const& actions) {
  int last_stage = 0;
  int last_microbatch = 0;
  std::vector<std::pair<int, int>> found;
  for (pytorch_action const& action : actions) {
    if (!is_pass(action))
      continue;
    last_stage = std::max<int>(last_stage, action.stage);
    last_microbatch = std::max<int>(last_microbatch, action.microbatch);
    if (is_pass(action, 1))
      found.emplace_back(action.stage, action.microbatch);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  auto at = found.begin();
  for (int stage = 0; stage <= last_stage; ++stage)
    for (int microbatch = 0; microbatch <= last_microbatch; ++microbatch) {
      if (at != found.end() && *at++ == std::pair(stage, microbatch))
        continue;
      std::string reason = "PyTorch CSV: the forward pass of stage ";
      append(reason, stage, ", microbatch ", microbatch, " is missing; the file has stages 0 to ");
      append(reason, last_stage, " and microbatches 0 to ", last_microbatch);
      throw std::invalid_argument(reason);
    }
}

} // namespace detail

//! @brief Reads a schedule from the text of a file, with or without messages.
//!
//! The number of lines is P; the largest stage and microbatch give S and M; the placement is
//! inferred: looped, wave, else custom, for any map of stages to devices. Messages, where there are
//! any, must be complete, stand on the right side of the passes they serve, and be exchangeable one
//! by one in the order of the file, each with both of its ends at once. That order is proven, not
//! kept: timetables have passes only, and a plan places messages anew. Whether the passes are
//! complete and their order works, `make_timetable` says.
//!
//! @throws std::invalid_argument with line, cell and reason.
//! @complexity O(n log n) for n actions.
[[nodiscard]] inline pytorch_schedule read_pytorch_csv(std::string_view text) {
  std::vector<detail::pytorch_action> const actions = detail::parse_pytorch_lines(text);
  detail::check_stages(actions);
  detail::find_missing_forward(actions);
  pytorch_schedule result;
  std::vector<detail::csv_pass> placed;
  std::vector<pass>& passes = result.orders.passes;
  for (detail::pytorch_action const& action : actions) {
    result.orders.offsets.resize(static_cast<std::size_t>(action.at.line),
                                 static_cast<int>(passes.size()));
    if (detail::is_pass(action)) {
      auto const kind = static_cast<pass_kind>(action.verb - detail::pytorch_verbs);
      passes.push_back({kind, action.overlapped, action.stage, action.microbatch, 0});
      placed.push_back({passes.back(), action.device()});
      result.cells.push_back(action.at.cell);
    } else if (action.verb->act == detail::pytorch_act::skipped) {
      ++result.skipped;
    } else {
      result.has_messages = true;
    }
  }
  result.orders.offsets.push_back(static_cast<int>(passes.size()));
  result.orders.over = detail::pipeline_of_passes(placed, training);
  if (result.has_messages)
    detail::pytorch_messages(result.orders.over.view(), actions).check();
  return result;
}

//! @brief The verified timetable of a file.
//! @throws std::invalid_argument with the sentence of the first broken rule, and line and cell of
//! the pass that breaks it.
template <cost_model Cost = uniform_cost>
[[nodiscard]] dynamic_timetable make_timetable(pytorch_schedule const& file,
                                               Cost const& cost = {}) {
  dynamic_timetable table = simulate(file.orders, cost);
  report const verdict = verify(table);
  if (verdict)
    return table;
  std::string reason = describe(verdict, table);
  if (verdict.broken == report::rule::missing_pass)
    throw std::invalid_argument("PyTorch CSV: " + reason);
  auto const entry = static_cast<std::size_t>(
    file.orders.offsets[static_cast<std::size_t>(verdict.device)] + verdict.entry);
  detail::reject({verdict.device + 1, file.cells[entry]}, reason);
}

} // namespace pipelining::inline v0_3
