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

//! True when a pass is the first to write what it keeps in a place.
[[nodiscard]] constexpr bool
opens_kept(pipeline_view const& over, pass const& work, slot_place at) {
  flow const& declared = *over.declared;
  kind_of_pass const& kind = declared[work.kind];
  for (int i = 0; i < kind.effect_count; ++i)
    if (effect const& one = kind.effects[i];
        declared.places[index_of(work.kind)][i] == at && brings(over, one.what, one.order, work))
      return true;
  return false;
}

//! Calls `visit(use, bytes)` for every slot with guards that a pass is the first to write, with the
//! bytes that it is to fill.
template <class Visit>
void visit_opened(arena const& memory, item const& step, Visit visit) {
  for (use const& one : memory.work.uses_of(step))
    if (memory.guards(one.of) && (is_kept(one.at) ? opens_kept(memory.over, step.work, one.at)
                                                  : one.at == slot_place::outputs && !relays(step)))
      visit(one, memory.bytes_of(one));
}

//! Calls `visit(use, bytes)` for every slot with guards that a pass has been handed.
template <class Visit>
void visit_handed(arena const& memory, item const& step, Visit visit) {
  if (step.about == subject::pass || hands_over(step.about))
    for (use const& one : memory.work.uses_of(step))
      if (memory.guards(one.of))
        visit(one, memory.bytes_of(one));
}

//! The name of a slot, as stages know it.
[[nodiscard]] inline std::string name_of(use const& which, plan const& work, item const& step) {
  if (is_kept(which.at))
    return member_of(which.at).name;
  std::string const list = which.at == slot_place::outputs ? "outputs" : "inputs";
  return work.use_at(which.at, step) == which ? list.substr(0, list.size() - 1) : list;
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
    if (on() && memory_.memory != nullptr)
      std::fill_n(memory_.memory, memory_.bytes(), guard_byte);
  }

  [[nodiscard]] arena const& memory() const noexcept { return memory_; }

  //! True in the checked mode.
  [[nodiscard]] bool on() const noexcept { return memory_.guard != 0; }

  //! Before a pass runs or a receive is posted: poisons the slots that it is the first to write.
  void before(item const& step) {
    if (!on())
      return;
    visit_opened(memory_, step, [&](use const& which, std::int64_t bytes) {
      std::byte* const start = memory_.start_of(which);
      std::fill_n(start, bytes, poison_byte);
      std::fill(start + bytes, start + memory_.layout_of(which.of).asked, guard_byte);
    });
  }

  //! After a pass.
  //! @throws guard_error when it has written outside its slots, or not written all of its output.
  void after(item const& step) const {
    if (!on())
      return;
    visit_handed(memory_, step, [&](use const& which, std::int64_t bytes) {
      if (std::int64_t const byte = first_change(which, bytes); byte != unchanged)
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
      std::fill_n(memory_.start_of(read), read.bytes, poison_byte);
    for (use const& one : memory_.work.uses_of(step))
      if (one.at == slot_place::outputs)
        check_filled(memory_.at(one));
  }

  //! At the end of a step: also guards of slots that no pass had in its hands.
  //! @throws guard_error
  void check_all() const {
    if (!on())
      return;
    for (int number = 0; number < slot_classes; ++number) {
      auto const of = static_cast<slot_class>(number);
      slot_layout const& layout = memory_.layout_of(of);
      for (int index = 0; memory_.guards(of) && index < layout.count; ++index) {
        use const which{.of = of, .index = index};
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
    slot_layout const& layout = memory_.layout_of(which.of);
    std::byte const* const start = memory_.start_of(which);
    bool const rows = which.of == slot_class::totals;
    std::int64_t const first = rows && which.index > 0 ? 0 : -memory_.guard;
    std::int64_t const end =
      rows && which.index + 1 < layout.count ? layout.bytes : layout.bytes + memory_.guard;
    for (std::int64_t at = first == 0 ? bytes : first; at < end; at = at == -1 ? bytes : at + 1)
      if (start[at] != guard_byte)
        return at;
    return unchanged;
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

//! Says that a pass has touched a null pointer, and lists the buffers that it does not have, with
//! why.
[[nodiscard]] inline std::string describe_null_access(arena const& memory, item const& step) {
  handed const given(memory, step, nullptr);
  kind_of_pass const& kind = memory.work.over.declared[step.work.kind];
  std::string text = "run: device " + std::to_string(memory.device) +
                     " has touched a null pointer in the " + describe_subject(step, memory.work) +
                     "; this pass has no";
  auto const add = [&](void const* data, char const* name, std::string const& why) {
    if (data == nullptr)
      text += std::string("\n  ") + name + ": " + why;
  };
  if (kind.is != role::weights) {
    std::string const ends[] = {"the first stage", "the last stage"};
    std::string const none = " has none, or its size is 0; slot is -1 there";
    bool const forward = kind.is == role::forward;
    add(given.out().data, "output", ends[forward ? 1 : 0] + none);
    add(given.in().data, "input", ends[forward ? 0 : 1] + none);
  }
  std::string const have_one[] = {"passes that keep one",
                                  "backward_input and backward_weight",
                                  "sequences in chunks",
                                  "backward passes of sequences in chunks"};
  for (int i = 0; i < std::ssize(kept_members); ++i) {
    buffer const& its = given.where.*kept_members[i].of;
    add(its.data,
        kept_members[i].name,
        its.slot == nothing ? "only " + have_one[i] + " have one" : "its size is 0");
  }
  return text + '\n';
}

//! Calls a stage for an item. In the checked mode, an access through a null pointer on this thread
//! says on stderr which pass it was in and which of its buffers are null, before it ends the
//! process.
template <class Call>
auto call_explained(slot_guards const& guards, item const& step, Call call) {
  if (!guards.on())
    return call();
  std::string const text = describe_null_access(guards.memory(), step);
  struct explained {
    ~explained() { pass_in_progress = nullptr; }
  } const until_it_returns;
  explain_accesses();
  pass_in_progress = text.c_str();
  return call();
}

//! Runs the pass of an item as run_item does, and looks after its memory where guards are
//! on.
//! @return as run_item. @throws guard_error, and what the stage throws.
template <class Stages>
bool run_guarded(Stages& stages, slot_guards& guards, item const& step) {
  arena const& memory = guards.memory();
  if (!guards.on() || is_copy(memory.work.over.declared, step))
    return run_item(stages, memory, step);
  guards.before(step);
  bool const goes_on = call_explained(guards, step, [&] { return run_item(stages, memory, step); });
  guards.after(step);
  return goes_on;
}

} // namespace detail

} // namespace pipelining::inline v0_3
