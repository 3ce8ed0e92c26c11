// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Says which pass has touched a buffer that it has not got. Header for
//! pipelining::detail::null_explainer.

#include <pipe/flow/flow.hpp>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/run/context.hpp>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <unistd.h>

namespace pipelining::inline v0_3::detail {

inline thread_local char const* pass_in_progress = nullptr;
inline struct sigaction action_before_explaining {};

//! Only what may be called from a handler.
inline void explain_access(int, siginfo_t* info, void*) {
  constexpr std::uintptr_t near_null = std::uintptr_t(1) << 20U;
  if (pass_in_progress != nullptr && reinterpret_cast<std::uintptr_t>(info->si_addr) < near_null)
    (void)!::write(STDERR_FILENO, pass_in_progress, std::strlen(pass_in_progress));
  // The access is repeated, and ends the process as it would have done.
  (void)::sigaction(SIGSEGV, &action_before_explaining, nullptr);
}

//! Installs the handler, again where somebody else has taken its place.
inline void explain_accesses() {
  static std::mutex guard;
  std::lock_guard const lock(guard);
  struct sigaction now {};
  if (::sigaction(SIGSEGV, nullptr, &now) != 0 ||
      ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == explain_access))
    return;
  action_before_explaining = now;
  struct sigaction action {};
  action.sa_sigaction = explain_access;
  action.sa_flags = SA_SIGINFO;
  (void)::sigaction(SIGSEGV, &action, nullptr);
}

//! Lists the buffers that a pass does not have, and why.
[[nodiscard]] inline std::string
list_null_buffers(kind_of_pass const& kind, context const& where, bool has_input, bool has_output) {
  bool const forward = kind.is == role::forward;
  std::string text;
  auto const add = [&](bool missing, char const* name, char const* why) {
    if (missing)
      text += std::string("\n  ") + name + ": " + why;
  };
  if (kind.is != role::weights) {
    add(!has_output,
        "output",
        forward ? "the last stage has none, or its size is 0; slot is -1 there"
                : "the first stage has none, or its size is 0; slot is -1 there");
    add(!has_input,
        "input",
        forward ? "the first stage has none, or its size is 0; slot is -1 there"
                : "the last stage has none, or its size is 0; slot is -1 there");
  }
  add(where.activation.data == nullptr, "activation", "its size is 0");
  add(where.weight_input.data == nullptr,
      "weight_input",
      where.weight_input.slot == nothing ? "only backward_input and backward_weight have one"
                                         : "its size is 0");
  add(where.state.data == nullptr,
      "state",
      "only sequences in chunks have one, where its size is not 0");
  add(where.state_gradient.data == nullptr,
      "state_gradient",
      "only backward passes of sequences in chunks have one, where its size is not 0");
  return text;
}

//! While it lives, an access through a null pointer on this thread says on stderr which pass
//! it was in and which of its buffers are null, before it ends the process.
class null_explainer {
public:
  //! From now on. @param has_input, has_output whether the pass has them.
  null_explainer(item const& step,
                 context const& where,
                 bool has_input,
                 bool has_output,
                 pipeline_view const& over)
      : text_("run: device " + std::to_string(where.device) +
              " has touched a null pointer in the " + describe_subject(step, over) +
              "; this pass has no" +
              list_null_buffers((*over.declared)[step.work.kind], where, has_input, has_output) +
              '\n') {
    explain_accesses();
    pass_in_progress = text_.c_str();
  }
  null_explainer(null_explainer const&) = delete;
  null_explainer& operator=(null_explainer const&) = delete;
  ~null_explainer() { pass_in_progress = nullptr; }

private:
  std::string text_;
};

} // namespace pipelining::inline v0_3::detail
