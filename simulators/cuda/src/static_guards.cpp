// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Static variables of functions whose initialisation calls CUDA, as CUB has them: who comes to one
// while another host thread is at it waits in the model, since the other may wait there, too. These
// take the place of what the compiler's library has, and call it.
#include <algorithm>
#include <atomic>
#include <dlfcn.h>

#include "model.hpp"

namespace {

using namespace standin::detail;

//! Guards of the variables that host threads are initialising.
class begun_guards {
public:
  void add(void const* guard) {
    std::lock_guard const held(lock_);
    all_.push_back(guard);
  }
  void remove(void const* guard) {
    std::lock_guard const held(lock_);
    all_.erase(std::remove(all_.begin(), all_.end(), guard), all_.end());
  }
  [[nodiscard]] bool contain(void const* guard) {
    std::lock_guard const held(lock_);
    return std::find(all_.begin(), all_.end(), guard) != all_.end();
  }

private:
  std::mutex lock_{};
  std::vector<void const*> all_{};
};
constinit begun_guards begun{};

//! The library's function of this name. Without static variables of its own, which need this.
template <class Function>
Function* library(std::atomic<void*>& found, char const* name) {
  void* at = found.load();
  if (at == nullptr)
    found = at = dlsym(RTLD_NEXT, name);
  return reinterpret_cast<Function*>(at);
}
constinit std::atomic<void*> acquire{}, release{}, give_up{};

} // namespace

extern "C" {

int __cxa_guard_acquire(void* guard) { // NOLINT(bugprone-reserved-identifier)
  bool const of_host = place().who != nullptr;
  if (of_host && begun.contain(guard))
    (void)standin::wait_until([guard] { return !begun.contain(guard); },
                              "the initialisation of a static variable");
  int const mine = library<int(void*)>(acquire, "__cxa_guard_acquire")(guard);
  if (mine != 0 && of_host)
    begun.add(guard);
  return mine;
}

void __cxa_guard_release(void* guard) { // NOLINT(bugprone-reserved-identifier)
  library<void(void*)>(release, "__cxa_guard_release")(guard);
  begun.remove(guard);
}

void __cxa_guard_abort(void* guard) { // NOLINT(bugprone-reserved-identifier)
  library<void(void*)>(give_up, "__cxa_guard_abort")(guard);
  begun.remove(guard);
}
}
