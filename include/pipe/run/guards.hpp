// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Finds stages that write where they may not, read what nobody wrote, leave a message
//! unwritten, or touch a buffer that they have not got. Header for pipelining::detail::slot_guards.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/execute.hpp>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace pipelining::inline v0_3 {

//! @brief A stage has broken the rules of its memory.
class guard_error : public std::logic_error {
public:
  using std::logic_error::logic_error;
};

namespace detail {

//! The bytes of a guard. A write that jumps over it is not found.
inline constexpr std::int64_t guard_bytes = slot_alignment;

inline constexpr std::byte guard_byte{0xA7};
//! As floats of any size it is not a number.
inline constexpr std::byte poison_byte{0xFF};

//! True for a place of what a pass keeps: it is handed the whole slot.
[[nodiscard]] constexpr bool is_kept(slot_place at) noexcept {
  return at != slot_place::inputs && at != slot_place::outputs;
}

//! True when a pass is the first to write what it keeps in a place.
[[nodiscard]] constexpr bool
opens_kept(pipeline_view const& over, pass const& work, slot_place at) {
  flow const& declared = *over.declared;
  kind_of_pass const& kind = declared[work.kind];
  for (int i = 0; i < kind.effect_count; ++i) {
    effect const& one = kind.effects[i];
    if (declared.place_of(work.kind, i) == at && brings(over, one.what, one.order, work))
      return true;
  }
  return false;
}

//! Calls `visit(use, bytes)` for every slot that a pass is the first to write, with the bytes that
//! it is to fill.
template <class Visit>
void visit_opened(plan const& work, int device, item const& step, Visit visit) {
  for (use const& one : work.uses_of(step))
    if (is_kept(one.at)) {
      if (opens_kept(work.over, step.work, one.at))
        visit(one, work.layout(device, one.of).asked);
    } else if (one.at == slot_place::outputs && !relays(step)) {
      visit(one, one.bytes);
    }
}

//! Calls `visit(use, bytes)` for every slot that a pass has been handed.
template <class Visit>
void visit_handed(plan const& work, int device, item const& step, Visit visit) {
  if (step.about == subject::pass || step.about == subject::contribution ||
      step.about == subject::tied_gradient || step.about == subject::copied_gradient)
    for (use const& one : work.uses_of(step))
      visit(one, is_kept(one.at) ? work.layout(device, one.of).asked : one.bytes);
}

//! The name of a slot, as stages know it.
[[nodiscard]] inline std::string name_of(use const& which, plan const& work, item const& step) {
  bool const first = work.use_at(which.at, step) == which;
  switch (which.at) {
  case slot_place::outputs: return first ? "output" : "outputs";
  case slot_place::inputs: return first ? "input" : "inputs";
  case slot_place::activation: return "activation";
  case slot_place::state: return "state";
  case slot_place::state_gradient: return "state_gradient";
  default: return word(which.of);
  }
}

//! Says that a guard has changed. @param byte the first that has, counted from the slot's start.
[[nodiscard]] inline std::string
describe_overrun(std::string const& name, std::int64_t bytes, std::int64_t byte) {
  std::string const size = std::to_string(bytes) + " bytes of its " + name;
  return byte < 0
           ? "the stage has written " + std::to_string(-byte) + " bytes in front of the " + size
           : "the stage has written beyond the " + size + ", first at byte " +
               std::to_string(byte) + "; data, bytes and as<T>() say where it ends";
}

//! The checked mode of one device in host memory: guards around its slots, and poison in
//! slots that no pass has written yet.
//!
//! Without a guard in the arena it does nothing.
class slot_guards {
public:
  //! Fills the memory. @param memory of the device; must outlive this.
  explicit slot_guards(arena const& memory) : memory_(memory) {
    if (!on() || memory_.memory == nullptr)
      return;
    std::memset(
      memory_.memory, std::to_integer<int>(guard_byte), static_cast<std::size_t>(memory_.bytes()));
  }

  [[nodiscard]] arena const& memory() const noexcept { return memory_; }

  //! True in the checked mode.
  [[nodiscard]] bool on() const noexcept { return memory_.guard != 0; }

  //! Before a pass runs or a receive is posted: poisons the slots that it is the first to write.
  void before(item const& step) {
    if (!on())
      return;
    visit_opened(memory_.work, memory_.device, step, [&](use const& which, std::int64_t bytes) {
      slot_layout const& layout = memory_.work.layout(memory_.device, which.of);
      if (!memory_.guards(which.of))
        return;
      std::byte* const start = memory_.memory + memory_.place(which);
      std::fill_n(start, bytes, poison_byte);
      std::fill(start + bytes, start + layout.asked, guard_byte);
    });
  }

  //! After a pass.
  //! @throws guard_error when it has written outside its slots, or not written all of its output.
  void after(item const& step) const {
    if (!on())
      return;
    visit_handed(memory_.work, memory_.device, step, [&](use const& which, std::int64_t bytes) {
      std::int64_t const byte = first_change(which, bytes);
      if (byte != unchanged)
        throw guard_error(
          describe_overrun(detail::name_of(which, memory_.work, step), bytes, byte));
    });
    stage_call const call = memory_.work.over.declared[step.work.kind].calls;
    if (step.about != subject::pass || call == stage_call::recompute)
      return;
    // Weights that are released and gradients that are scattered are not read any more.
    use const read = memory_.work.use_at(slot_place::inputs, step);
    if (bool const ends = call == stage_call::copy || call == stage_call::scatter_gradients;
        ends && read.index != nothing && memory_.guards(read.of))
      std::fill_n(memory_.memory + memory_.place(read), read.bytes, poison_byte);
    for (use const& one : memory_.work.uses_of(step))
      if (one.at == slot_place::outputs)
        check_filled(memory_.at(one));
  }

  //! At the end of a step: also guards of slots that no pass had in its hands.
  //! @throws guard_error
  void check_all() const {
    if (!on())
      return;
    for (int of = 0; of < slot_classes; ++of) {
      slot_layout const& layout = memory_.work.layout(memory_.device, static_cast<slot_class>(of));
      bool const guarded = memory_.guards(static_cast<slot_class>(of));
      for (int index = 0; guarded && index < layout.count; ++index) {
        use const which{.of = static_cast<slot_class>(of), .index = index};
        if (first_change(which, layout.asked) != unchanged)
          throw guard_error("the guard of slot " + std::to_string(index) + " of class " +
                            word(which.of) +
                            " has changed, and by no pass that had this slot; a pointer into the "
                            "arena was kept, or an index is wrong");
      }
    }
  }

private:
  static constexpr std::int64_t unchanged = INT64_MAX;

  //! The first byte of the guards of a slot that has changed, counted from its start.
  [[nodiscard]] std::int64_t first_change(use const& which, std::int64_t bytes) const {
    slot_layout const& layout = memory_.work.layout(memory_.device, which.of);
    if (!memory_.guards(which.of))
      return unchanged;
    std::byte const* const start = memory_.memory + memory_.place(which);
    bool const rows = which.of == slot_class::totals;
    auto const is_guard = [](std::byte each) { return each == guard_byte; };
    auto const search = [&](std::int64_t from, std::int64_t to) {
      std::byte const* const found = std::find_if_not(start + from, start + to, is_guard);
      return found == start + to ? unchanged : found - start;
    };
    bool const first = !rows || which.index == 0;
    bool const last = !rows || which.index + 1 == layout.count;
    if (std::int64_t const byte = first ? search(-memory_.guard, 0) : unchanged; byte != unchanged)
      return byte;
    return search(bytes, last ? layout.bytes + memory_.guard : layout.bytes);
  }

  //! Poison at the end of an output has been there before the pass.
  static void check_filled(buffer const& out) {
    if (out.data == nullptr || out.bytes == 0)
      return;
    std::byte const* end = out.data + out.bytes;
    while (end != out.data && *(end - 1) == poison_byte)
      --end;
    std::int64_t const missing = out.bytes - (end - out.data);
    if (missing >= std::min<std::int64_t>(out.bytes, 16))
      throw guard_error("the stage has written " +
                        (end == out.data
                           ? std::string("nothing into")
                           : "only the first " + std::to_string(end - out.data) + " bytes of") +
                        " its output of " + std::to_string(out.bytes) +
                        " bytes, all of which the next stage reads");
  }

  arena memory_;
};

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
[[nodiscard]] inline std::string list_null_buffers(kind_of_pass const& kind, handed const& given) {
  bool const forward = kind.is == role::forward;
  context const& where = given.where();
  std::string text;
  auto const add = [&](bool missing, char const* name, char const* why) {
    if (missing)
      text += std::string("\n  ") + name + ": " + why;
  };
  if (kind.is != role::weights) {
    add(given.out().data == nullptr,
        "output",
        forward ? "the last stage has none, or its size is 0; slot is -1 there"
                : "the first stage has none, or its size is 0; slot is -1 there");
    add(given.in().data == nullptr,
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
  //! From now on.
  null_explainer(arena const& memory, item const& step)
      : text_("run: device " + std::to_string(memory.device) +
              " has touched a null pointer in the " + describe_subject(step, memory.work.over) +
              "; this pass has no" +
              list_null_buffers(memory.work.over.declared[step.work.kind],
                                handed(memory, step, nullptr)) +
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

//! Calls a stage for an item; in the checked mode, an access through null says which pass it was
//! in.
template <class Call>
auto call_explained(slot_guards const& guards, item const& step, Call call) {
  if (!guards.on())
    return call();
  null_explainer const explained(guards.memory(), step);
  return call();
}

//! Runs the pass of an item as run_item does, and looks after its memory where guards are
//! on.
//! @return as run_item. @throws guard_error, and what the stage throws.
template <class Stages>
bool run_guarded(Stages& stages, arena const& memory, slot_guards& guards, item const& step) {
  if (!guards.on() || is_copy(memory.work.over.declared, step))
    return run_item(stages, memory, step);
  guards.before(step);
  bool const goes_on = call_explained(guards, step, [&] { return run_item(stages, memory, step); });
  guards.after(step);
  return goes_on;
}

//! Runs a composite pass as run_composite does, where its stages can, and looks after its
//! memory where guards are on.
//! @return false where they cannot: nothing has run then. @throws guard_error, and what the stage
//! throws.
template <class Stages>
bool run_guarded(Stages& stages,
                 arena const& memory,
                 slot_guards& guards,
                 std::span<item const> pair) {
  if (!runs_as_one(stages, memory.work, pair))
    return false;
  for (item const& step : pair)
    guards.before(step);
  run_composite(stages, memory, pair, {}, [] {});
  for (item const& step : pair)
    guards.after(step);
  return true;
}

} // namespace detail

} // namespace pipelining::inline v0_3
