// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "call.hpp"

namespace standin::detail {

bool& running_callback() {
  thread_local bool value = false;
  return value;
}

namespace {

bool matches(fault const& f, std::string const& function, host const& me) {
  return (f.function.empty() || f.function == function) && (f.rank < 0 || f.rank == me.rank);
}

} // namespace

call::call(char const* function) {
  model& m = model::instance();
  if (running_callback()) {
    m.report_finding(finding::misuse,
                     std::string(function) +
                       " is called from a host function, which must not call it");
    forbidden_ = true;
    return;
  }
  held_ = std::unique_lock(m.lock);
  m.enter(held_);
  host& me = m.self();
  m.park_if_dead();
  if (me.dead) {
    fault_ = injected{cudaErrorDevicesUnavailable, ncclSystemError};
    return;
  }
  ++m.calls[function];
  ++m.total_calls;
  ++me.calls;
  me.now += m.config.cost.call;
  for (std::size_t i = 0; i < m.config.faults.size(); ++i) {
    standin::fault const& f = m.config.faults[i];
    if (!matches(f, function, me) || ++m.fault_seen[i] != f.call)
      continue;
    switch (f.action) {
    case fault_action::error: fault_ = injected{f.cuda_code, f.nccl_code}; break;
    case fault_action::stall: me.stall_next = true; break;
    case fault_action::asynchronous_error:
      me.fail_next = f.cuda_code;
      me.fail_comm_next = true;
      break;
    case fault_action::death:
      m.kill(me);
      m.park_if_dead();
      fault_ = injected{cudaErrorDevicesUnavailable, ncclSystemError};
      break;
    }
  }
}

call::~call() {
  if (forbidden_)
    return;
  model& m = model::instance();
  m.self().fail_next = 0;
  m.self().fail_comm_next = false;
  m.leave();
}

bool call::never_returns() const {
  return model::instance().self().stall_next;
}

void call::park() {
  model::instance().self().stall_next = false;
  model::instance().park();
}

void push_scope(std::string text) {
  model& m = model::instance();
  std::lock_guard held(m.lock);
  thread_place const& here = place();
  if (here.who && here.epoch == m.epoch)
    here.who->scopes.push_back(std::move(text));
}

void pop_scope() {
  model& m = model::instance();
  std::lock_guard held(m.lock);
  thread_place const& here = place();
  if (here.who && here.epoch == m.epoch && !here.who->scopes.empty())
    here.who->scopes.pop_back();
}

} // namespace standin::detail

namespace standin {

using namespace detail;

namespace {

//! @brief Takes the turn for a function of the control interface, unless a host function calls it.
class control {
public:
  control() : m(model::instance()) {
    if (running_callback())
      return;
    held_ = std::unique_lock(m.lock);
    m.enter(held_);
  }
  ~control() {
    if (held_.owns_lock())
      m.leave();
  }
  control(control const&) = delete;
  control& operator=(control const&) = delete;
  model& m;

private:
  std::unique_lock<std::mutex> held_{};
};

} // namespace

void name(void const* handle, std::string given) {
  control here;
  model& m = here.m;
  m.names[handle] = given;
  if (auto at = m.streams.find(handle); at != m.streams.end())
    at->second->label = given;
  if (auto at = m.events.find(handle); at != m.events.end())
    at->second->label = given;
  if (auto at = m.graphs.find(handle); at != m.graphs.end())
    at->second->label = given;
  if (auto at = m.communicators.find(handle); at != m.communicators.end())
    at->second->label = given;
  if (allocation* a = m.find_allocation(handle))
    a->label = given;
}

scope::scope(std::string text) {
  control here;
  here.m.self().scopes.push_back(std::move(text));
}

scope::~scope() {
  control here;
  if (!here.m.self().scopes.empty())
    here.m.self().scopes.pop_back();
}

void host_read(void const* begin, std::size_t bytes) {
  control here;
  here.m.check_host(reading(begin, bytes), "on the host");
}

void host_write(void const* begin, std::size_t bytes) {
  control here;
  here.m.check_host(writing(begin, bytes), "on the host");
}

} // namespace standin
