// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "work.hpp"

namespace standin::detail {

namespace {

bool legacy_is_blocked(model& m, int device) {
  for (auto const& open : m.captures) {
    for (stream* s : open->streams) {
      if (s->device == device && s->blocking) {
        open->invalid = true;
        return true;
      }
    }
  }
  return false;
}

bool known(model& m, cudaStream_t handle) {
  return handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread ||
         m.streams.contains(handle);
}

} // namespace

target work_stream(model& m, cudaStream_t handle) {
  if (!known(m, handle)) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " uses a stream that does not exist or is destroyed");
    return {nullptr, cudaErrorInvalidResourceHandle};
  }
  stream& on = m.resolve(handle);
  if (int const broken = m.device_error(on.device))
    return {nullptr, static_cast<cudaError_t>(broken)};
  if (m.deadlocked)
    return {nullptr, cudaErrorLaunchTimeout};
  if (on.legacy && legacy_is_blocked(m, on.device)) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) +
                       " uses the legacy default stream while a blocking stream is captured");
    return {nullptr, cudaErrorStreamCaptureImplicit};
  }
  if (on.capturing && on.capturing->invalid)
    return {nullptr, cudaErrorStreamCaptureInvalidated};
  return {&on, cudaSuccess};
}

graph_node* add_node(stream& on, operation_ptr const& op) {
  graph& into = *on.capturing->into;
  auto node = std::make_unique<graph_node>();
  op->device = on.device;
  node->prototype = op;
  node->after = on.tail;
  node->index = into.nodes.size();
  if (op->comm)
    ++op->comm->graph_references;
  on.tail = {node.get()};
  into.nodes.push_back(std::move(node));
  return into.nodes.back().get();
}

void submit_work(model& m, stream& on, operation_ptr const& op) {
  if (on.capturing)
    add_node(on, op);
  else
    m.enqueue(on, op);
}

cudaError_t forbid_in_capture(stream& on) {
  if (!on.capturing)
    return cudaSuccess;
  on.capturing->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t unsafe_in_capture(model& m) {
  host const& me = m.self();
  if (me.capture_mode == cudaStreamCaptureModeRelaxed)
    return cudaSuccess;
  for (auto const& open : m.captures) {
    bool const mine = open->by == &me && open->mode != cudaStreamCaptureModeRelaxed;
    bool const any =
      open->mode == cudaStreamCaptureModeGlobal && me.capture_mode == cudaStreamCaptureModeGlobal;
    if (!mine && !any)
      continue;
    open->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

void observe(model& m, operation const& op) {
  host& me = m.self();
  me.clock.join(op.clock);
  me.now = std::max(me.now, op.finished_at);
}

cudaError_t after_wait(model& m, int device, bool reached) {
  if (int const broken = m.device_error(device))
    return static_cast<cudaError_t>(broken);
  return reached ? cudaSuccess : cudaErrorLaunchTimeout;
}

cudaError_t wait_for_device(model& m, int device, char const* function) {
  auto busy = [&m, device] {
    return std::any_of(
      m.live.begin(), m.live.end(), [&](auto const& e) { return e.second->device == device; });
  };
  bool const reached = m.wait(std::string(function) + " of device " + std::to_string(device),
                              [&] { return m.device_error(device) != 0 || !busy(); });
  cudaError_t const code = after_wait(m, device, reached);
  if (code != cudaSuccess)
    return code;
  auto join = [&](stream const& s) {
    if (s.device == device && s.last)
      observe(m, *s.last);
  };
  for (auto const& [handle, s] : m.streams)
    join(*s);
  for (auto const& s : m.retired_streams)
    join(*s);
  for (auto const& [d, s] : m.legacy_streams)
    join(*s);
  for (auto const& [thread, mine] : m.thread_streams)
    for (auto const& [d, s] : mine)
      join(*s);
  return cudaSuccess;
}

bool inside(model& m, void const* begin, std::size_t bytes, std::string const& function) {
  allocation const* a = m.find_allocation(begin);
  auto const at = reinterpret_cast<std::uintptr_t>(begin);
  if (!a || at + bytes <= a->begin + a->bytes)
    return true;
  m.report_finding(finding::out_of_bounds,
                   m.describe(m.self()) + " calls " + function + " with " + std::to_string(bytes) +
                     " bytes at " + m.memory_name(at) + ", " +
                     std::to_string(at + bytes - a->begin - a->bytes) + " past its end");
  return false;
}

} // namespace standin::detail
