// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checks the messages of a schedule file of torch.distributed.pipelining.

#include <pipe/core/shape.hpp>
#include <pipe/io/append.hpp>
#include <pipe/io/pytorch_actions.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pipelining::inline v0_1 {

namespace detail {

//! Checks the messages of a file against its passes: each that crosses devices is sent once, behind
//! the pass that makes it, and received once, before the pass that needs it.
class pytorch_messages {
public:
  pytorch_messages(shape const& extents, std::vector<pytorch_action> const& actions)
      : extents_(extents), actions_(actions),
        places_(static_cast<std::size_t>(kinds * stages(extents) * extents.microbatches), -1) {}

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
    }
  }

private:
  static constexpr int kinds = 6; // forward, gradient, and the four ends of messages

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
    return other < 0 || other >= stages(extents_) ? -1 : device_of(extents_, other);
  }

  //! Both ends: the message is needed, on this device, and the pass it serves stands where it must.
  void check_end(pytorch_action const& action, pytorch_verb pass_verb, bool pass_first) {
    std::string const name = name_of(action.verb, action.stage, action.microbatch);
    int const device = action.line - 1;
    if (device_of(extents_, action.stage) != device)
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
  void check_send(pytorch_action const& action) {
    bool const forward = action.verb == pytorch_verb::send_forward;
    check_end(action, forward ? pytorch_verb::forward : pytorch_verb::backward, true);
  }
  void check_receive(pytorch_action const& action) {
    bool const forward = action.verb == pytorch_verb::receive_forward;
    check_end(action, forward ? pytorch_verb::forward : pytorch_verb::backward, false);
  }

  //! Where the consumer of a pass is on another device, the file has both ends of the message.
  void check_crossing(pytorch_action const& action, int consumer, pytorch_verb send) {
    if (device_of(extents_, consumer) == action.line - 1)
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

  shape extents_;
  std::vector<pytorch_action> const& actions_;
  std::vector<int> places_; // [kinds S M], the index of the action or -1
};

} // namespace detail

} // namespace pipelining::inline v0_1
