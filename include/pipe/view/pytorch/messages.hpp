// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checks the messages of a schedule file of torch.distributed.pipelining.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/pytorch/actions.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Checks the messages of a file against its passes: each that crosses devices is sent once, behind
//! the pass that makes it, and received once, before the pass that needs it; where the file waits
//! for sends, it does so once for each, behind it; and all messages can be exchanged in the order
//! of the file.
class pytorch_messages {
public:
  pytorch_messages(pipeline_view const& over, std::vector<pytorch_action> const& actions)
      : over_(over), extents_(over.extents), actions_(actions),
        places_(static_cast<std::size_t>(kinds * stages(extents_) * extents_.microbatches), -1) {}

  void check() {
    for (std::size_t i = 0; i < actions_.size(); ++i)
      enter(static_cast<int>(i));
    for (pytorch_action const& action : actions_) {
      if (action.verb == pytorch_verb::send_forward || action.verb == pytorch_verb::send_backward)
        check_send(action);
      if (action.verb == pytorch_verb::receive_forward ||
          action.verb == pytorch_verb::receive_backward)
        check_receive(action);
      if (action.verb == pytorch_verb::forward && action.stage + 1 < stages(extents_))
        check_crossing(action, action.stage + 1, pytorch_verb::send_forward);
      if (gives_gradient(action) && action.stage > 0)
        check_crossing(action, action.stage - 1, pytorch_verb::send_backward);
      if (is_wait(action))
        check_wait(action);
    }
    prove_order();
  }

private:
  static constexpr int kinds = 8; // forward, gradient, the four ends of messages, and two waits

  [[nodiscard]] static bool is_wait(pytorch_action const& action) {
    return action.verb == pytorch_verb::wait_send_forward ||
           action.verb == pytorch_verb::wait_send_backward;
  }

  [[nodiscard]] static bool gives_gradient(pytorch_action const& action) {
    return action.verb == pytorch_verb::backward || action.verb == pytorch_verb::backward_input;
  }

  [[nodiscard]] int& place(pytorch_verb verb, int stage, int microbatch) {
    int const kind = verb == pytorch_verb::forward       ? 0
                     : verb < pytorch_verb::send_forward ? 1
                                                         : static_cast<int>(verb) - 2;
    return places_[static_cast<std::size_t>(
      (kind * stages(extents_) + stage) * extents_.microbatches + microbatch)];
  }

  [[nodiscard]] static std::string name_of(pytorch_verb verb, int stage, int microbatch) {
    std::string text;
    append(text, stage, pytorch_verb_names[static_cast<std::size_t>(verb)].name, microbatch);
    return text;
  }

  void enter(int index) {
    pytorch_action const& action = actions_[static_cast<std::size_t>(index)];
    if (action.verb == pytorch_verb::skipped || action.verb == pytorch_verb::backward_weight)
      return;
    std::string const name = name_of(action.verb, action.stage, action.microbatch);
    if (action.stage >= stages(extents_) || action.microbatch >= extents_.microbatches)
      reject(action.line, action.cell, name + " belongs to no pass of this file");
    any_wait_ = any_wait_ || is_wait(action);
    int& here = place(action.verb, action.stage, action.microbatch);
    if (here >= 0 && !is_pass(action)) {
      pytorch_action const& first = actions_[static_cast<std::size_t>(here)];
      reject(action.line,
             action.cell,
             name + " stands twice, first in " + place_of(first.line, first.cell));
    }
    here = index;
  }

  //! The device at the other end of a message, or -1 where there is none.
  [[nodiscard]] int partner(pytorch_action const& action) const {
    bool const up =
      action.verb == pytorch_verb::send_forward || action.verb == pytorch_verb::receive_backward;
    int const other = action.stage + (up ? 1 : -1);
    return other < 0 || other >= stages(extents_) ? -1 : device_of(over_, other);
  }

  //! Both ends: the message is needed, on this device, and the pass it serves stands where it must.
  void check_end(pytorch_action const& action, pytorch_verb pass_verb, bool pass_first) {
    std::string const name = name_of(action.verb, action.stage, action.microbatch);
    int const device = action.line - 1;
    if (device_of(over_, action.stage) != device)
      reject(action.line, action.cell, name + " stands on a device that does not hold its stage");
    int const other = partner(action);
    if (other < 0 || other == device)
      reject(action.line,
             action.cell,
             name + " is not needed: " +
               (other < 0 ? "there is no such neighbour" : "both stages are on this device"));
    int const served = place(pass_verb, action.stage, action.microbatch);
    int const own = place(action.verb, action.stage, action.microbatch);
    if (served < 0 || (served < own) != pass_first)
      reject(action.line,
             action.cell,
             name + (pass_first ? " stands before the pass that makes what it sends"
                                : " stands behind the pass that needs what it receives"));
  }
  void check_wait(pytorch_action const& action) {
    bool const forward = action.verb == pytorch_verb::wait_send_forward;
    auto const send = forward ? pytorch_verb::send_forward : pytorch_verb::send_backward;
    int const sent = place(send, action.stage, action.microbatch);
    int const own = place(action.verb, action.stage, action.microbatch);
    if (sent < 0 || sent > own || actions_[static_cast<std::size_t>(sent)].line != action.line)
      reject(action.line,
             action.cell,
             name_of(action.verb, action.stage, action.microbatch) + " does not stand behind " +
               name_of(send, action.stage, action.microbatch) + " on the same device");
  }
  void check_send(pytorch_action const& action) {
    bool const forward = action.verb == pytorch_verb::send_forward;
    auto const wait = forward ? pytorch_verb::wait_send_forward : pytorch_verb::wait_send_backward;
    if (any_wait_ && place(wait, action.stage, action.microbatch) < 0)
      reject(action.line,
             action.cell,
             name_of(action.verb, action.stage, action.microbatch) + " has no " +
               name_of(wait, action.stage, action.microbatch) +
               ", but other messages of the file have; torch 2.15 wants one for each");
    check_end(action, forward ? pytorch_verb::forward : pytorch_verb::backward, true);
  }
  void check_receive(pytorch_action const& action) {
    bool const forward = action.verb == pytorch_verb::receive_forward;
    check_end(action, forward ? pytorch_verb::forward : pytorch_verb::backward, false);
  }

  //! Where the consumer of a pass is on another device, the file has both ends of the message.
  void check_crossing(pytorch_action const& action, int consumer, pytorch_verb send) {
    if (device_of(over_, consumer) == action.line - 1)
      return;
    auto const receive = static_cast<pytorch_verb>(static_cast<int>(send) + 1);
    std::string const what = name_of(action.verb, action.stage, action.microbatch);
    if (place(send, action.stage, action.microbatch) < 0)
      reject(action.line,
             action.cell,
             "the output of " + what + " goes to another device, but " +
               name_of(send, action.stage, action.microbatch) + " is missing");
    if (place(receive, consumer, action.microbatch) < 0)
      reject(action.line,
             action.cell,
             "the output of " + what + " goes to another device, but " +
               name_of(receive, consumer, action.microbatch) + " is missing");
  }

  //! Both ends of a message stand in the file, even where the pass that makes it does not.
  void check_other_end(pytorch_action const& action) {
    if (other_end(action) >= 0)
      return;
    auto const verb = static_cast<int>(action.verb);
    bool const sends =
      action.verb == pytorch_verb::send_forward || action.verb == pytorch_verb::send_backward;
    bool const up =
      action.verb == pytorch_verb::send_forward || action.verb == pytorch_verb::receive_backward;
    reject(action.line,
           action.cell,
           name_of(action.verb, action.stage, action.microbatch) + " waits for ever, since " +
             name_of(static_cast<pytorch_verb>(sends ? verb + 1 : verb - 1),
                     action.stage + (up ? 1 : -1),
                     action.microbatch) +
             " is missing");
  }

  //! The action at the other end of a message, or -1 where that is missing.
  [[nodiscard]] int other_end(pytorch_action const& action) {
    switch (action.verb) {
    case pytorch_verb::send_forward:
      return place(pytorch_verb::receive_forward, action.stage + 1, action.microbatch);
    case pytorch_verb::receive_forward:
      return place(pytorch_verb::send_forward, action.stage - 1, action.microbatch);
    case pytorch_verb::send_backward:
      return place(pytorch_verb::receive_backward, action.stage - 1, action.microbatch);
    default: return place(pytorch_verb::send_backward, action.stage + 1, action.microbatch);
    }
  }

  //! Every device goes through its messages in the order of its line, and each message needs both
  //! of its ends at once: if all come to their end so, no executor with buffers, streams or
  //! communicators of any number can come to a stop.
  void prove_order() {
    std::vector<std::vector<int>> lines(static_cast<std::size_t>(extents_.devices));
    for (std::size_t i = 0; i < actions_.size(); ++i)
      if (is_message(actions_[i])) {
        check_other_end(actions_[i]);
        lines[static_cast<std::size_t>(actions_[i].line - 1)].push_back(static_cast<int>(i));
      }
    std::vector<std::size_t> next(lines.size());
    std::vector<std::size_t> ready;
    for (std::size_t line = 0; line < lines.size(); ++line)
      ready.push_back(line);
    while (!ready.empty()) {
      std::size_t const line = ready.back();
      ready.pop_back();
      while (next[line] < lines[line].size()) {
        int const other = other_end(actions_[static_cast<std::size_t>(lines[line][next[line]])]);
        auto const peer =
          static_cast<std::size_t>(actions_[static_cast<std::size_t>(other)].line - 1);
        if (next[peer] == lines[peer].size() || lines[peer][next[peer]] != other)
          break;
        ++next[line];
        ++next[peer];
        ready.push_back(peer);
      }
    }
    for (std::size_t line = 0; line < lines.size(); ++line)
      if (next[line] < lines[line].size())
        reject_order(lines[line][next[line]], lines, next);
  }

  [[noreturn]] void reject_order(int index,
                                 std::vector<std::vector<int>> const& lines,
                                 std::vector<std::size_t> const& next) {
    auto const name = [this](int i) {
      pytorch_action const& action = actions_[static_cast<std::size_t>(i)];
      return name_of(action.verb, action.stage, action.microbatch) + " (" +
             place_of(action.line, action.cell) + ")";
    };
    pytorch_action const& action = actions_[static_cast<std::size_t>(index)];
    int const other = other_end(action);
    auto const peer = static_cast<std::size_t>(actions_[static_cast<std::size_t>(other)].line - 1);
    reject(action.line,
           action.cell,
           name_of(action.verb, action.stage, action.microbatch) + " waits for ever for " +
             name(other) + ", before which " + name(lines[peer][next[peer]]) +
             " waits as well; the devices must be able to exchange their messages one by one, in "
             "the order of the file");
  }

  pipeline_view over_;
  shape extents_;
  std::vector<pytorch_action> const& actions_;
  std::vector<int> places_; // [kinds S M], the index of the action or -1
  bool any_wait_ = false;
};

} // namespace pipelining::inline v0_3::detail
