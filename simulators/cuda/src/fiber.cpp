// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "fiber.hpp"

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) &&                 \
  !defined(__SANITIZE_THREAD__)
#include <sys/auxv.h>

extern "C" {
//! Leaves the caller's registers on its stack, tells where, and goes on with those of another one.
void standin_fiber_switch(std::atomic<void*>* from, void* to);
//! Leaves them there, too, and sleeps for good. Returns in the thread that switches to them.
void standin_fiber_lend(std::atomic<void*>* from);
}
static_assert(sizeof(std::atomic<void*>) == sizeof(void*));

// The base of the thread-local storage is one of the registers. 34 is the number of pause(), which
// is called without libc, as from the store on the stack is somebody else's.
asm(R"(
.text
.macro standin_fiber_save
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  rdfsbase %rax
  pushq %rax
  movq %rsp, (%rdi)
.endm

.globl standin_fiber_switch
.hidden standin_fiber_switch
.type standin_fiber_switch, @function
standin_fiber_switch:
  standin_fiber_save
  movq %rsi, %rsp
  popq %rax
  wrfsbase %rax
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size standin_fiber_switch, . - standin_fiber_switch

.globl standin_fiber_lend
.hidden standin_fiber_lend
.type standin_fiber_lend, @function
standin_fiber_lend:
  standin_fiber_save
1:
  movl $34, %eax
  syscall
  jmp 1b
.size standin_fiber_lend, . - standin_fiber_lend
)");

namespace {

bool machine_can_switch() {
  constexpr unsigned long fsgsbase = 2;
  return (getauxval(AT_HWCAP2) & fsgsbase) != 0;
}

} // namespace
#else
namespace {

bool machine_can_switch() {
  return false;
}
void standin_fiber_switch(std::atomic<void*>*, void*) {}
void standin_fiber_lend(std::atomic<void*>*) {}

} // namespace
#endif

namespace standin::detail {

namespace {

//! Fibers whose bodies have ended.
struct ended_fibers {
  std::mutex lock{};
  std::vector<fiber*> all{};

  static ended_fibers& of_process() {
    static auto* const kept = new ended_fibers;
    return *kept;
  }
};

thread_local fiber* resumed = nullptr;

} // namespace

bool fiber::switch_without_kernel() {
  static bool const can = [] {
    char const* const wish = std::getenv("STANDIN_FIBERS");
    return machine_can_switch() && (wish == nullptr || std::string_view(wish) != "kernel");
  }();
  return can;
}

fiber& fiber::current() {
  thread_local fiber own;
  return resumed != nullptr ? *resumed : own;
}

void fiber::run(fiber& self) noexcept {
  resumed = &self;
  if (switch_without_kernel())
    standin_fiber_lend(&self.stack_);
  else
    self.resumed_.acquire();
  for (;;) {
    fiber* next = nullptr;
    {
      auto const body = std::move(self.body_);
      self.body_ = nullptr;
      next = &body();
    }
    self.ended_ = true;
    next->resume();
  }
}

fiber& fiber::make(std::function<fiber&()> body) {
  ended_fibers& ended = ended_fibers::of_process();
  fiber* made = nullptr;
  {
    std::lock_guard const held(ended.lock);
    if (!ended.all.empty()) {
      made = ended.all.back();
      ended.all.pop_back();
    }
  }
  if (made != nullptr) {
    made->body_ = std::move(body);
    made->ended_ = false;
    return *made;
  }
  made = new fiber; // never deleted, as its thread does not end
  made->body_ = std::move(body);
  // A signal's handler would run on the stack that the thread has lent.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([made] { run(*made); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  while (switch_without_kernel() && made->stack_.load() == nullptr)
    std::this_thread::yield();
  return *made;
}

void fiber::end(fiber* ended) {
  if (!ended->ended_)
    return;
  ended_fibers& kept = ended_fibers::of_process();
  std::lock_guard const held(kept.lock);
  kept.all.push_back(ended);
}

void fiber::resume() {
  fiber& me = current();
  if (switch_without_kernel()) {
    standin_fiber_switch(&me.stack_, stack_.load());
    return;
  }
  resumed_.release();
  me.resumed_.acquire();
}

} // namespace standin::detail
