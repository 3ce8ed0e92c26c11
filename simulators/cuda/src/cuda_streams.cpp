// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams, events and host functions of the CUDA runtime.
#include "work.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

constexpr int lowest_priority = 0;
constexpr int highest_priority = -5;

cudaError_t create_stream(model& m, cudaStream_t* out, unsigned flags, int priority) {
  if (!out || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking))
    return cudaErrorInvalidValue;
  m.setting_up("cudaStreamCreate");
  int const clamped = std::max(highest_priority, std::min(lowest_priority, priority));
  stream& made = m.add_stream(m.self().current_device, flags != cudaStreamNonBlocking, clamped);
  *out = reinterpret_cast<cudaStream_t>(&made);
  return cudaSuccess;
}

cudaError_t create_event(model& m, cudaEvent_t* out, unsigned flags) {
  if (!out)
    return cudaErrorInvalidValue;
  m.setting_up("cudaEventCreate");
  auto fresh = std::make_unique<event>();
  fresh->id = m.next_event++;
  fresh->device = m.self().current_device;
  fresh->timing = (flags & cudaEventDisableTiming) == 0;
  fresh->label = "event " + std::to_string(fresh->id);
  *out = reinterpret_cast<cudaEvent_t>(fresh.get());
  m.events.emplace(fresh.get(), std::move(fresh));
  return cudaSuccess;
}

event* find_event(model& m, cudaEvent_t handle) {
  return find_object<event>(m, m.events, handle, "an event");
}

cudaError_t record(model& m, cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  event* const e = find_event(m, handle);
  if (!e)
    return cudaErrorInvalidResourceHandle;
  if (flags != cudaEventRecordDefault && flags != cudaEventRecordExternal)
    return cudaErrorInvalidValue;
  auto const [s, code] = work_stream(m, on);
  if (!s)
    return code;
  if (s->device != e->device) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " records " + e->label + " of device " +
                       std::to_string(e->device) + " on " + s->label + " of device " +
                       std::to_string(s->device));
    return cudaErrorInvalidResourceHandle;
  }
  if (s->capturing && flags == cudaEventRecordExternal) {
    auto op = m.make(operation_kind::record, *s, "record of " + e->label);
    op->records = e;
    submit_work(m, *s, op);
    return cudaSuccess;
  }
  if (s->capturing) {
    e->captured = s->capturing;
    e->nodes = s->tail;
    e->recorded = nullptr;
    return cudaSuccess;
  }
  e->captured = nullptr;
  e->nodes.clear();
  e->recorded = m.make(operation_kind::record, *s, "record of " + e->label);
  m.enqueue(*s, e->recorded);
  return cudaSuccess;
}

// A stream that waits for an event of a capture joins that capture.
cudaError_t wait_captured(stream& s, event& e) {
  if (s.capturing && s.capturing != e.captured) {
    s.capturing->invalid = e.captured->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (!s.capturing) {
    if (s.legacy)
      return cudaErrorStreamCaptureImplicit;
    s.capturing = e.captured;
    s.capturing->streams.insert(&s);
    s.tail.clear();
  }
  for (graph_node* n : e.nodes)
    if (std::find(s.tail.begin(), s.tail.end(), n) == s.tail.end())
      s.tail.push_back(n);
  return cudaSuccess;
}

bool capture_is_open(model& m, std::shared_ptr<capture> const& c) {
  return std::find(m.captures.begin(), m.captures.end(), c) != m.captures.end();
}

cudaError_t stream_wait(model& m, cudaStream_t on, cudaEvent_t handle) {
  event* const e = find_event(m, handle);
  if (!e)
    return cudaErrorInvalidResourceHandle;
  auto const [s, code] = work_stream(m, on);
  if (!s)
    return code;
  if (e->captured && capture_is_open(m, e->captured))
    return wait_captured(*s, *e);
  if (s->capturing) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " makes the captured " + s->label + " wait for " +
                       e->label + ", which was recorded outside the capture");
    s->capturing->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (!e->recorded) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " makes " + s->label + " wait for " + e->label +
                       ", which was never recorded, so nothing waits");
    return cudaSuccess;
  }
  auto op = m.make(operation_kind::wait, *s, "wait for " + e->label);
  m.depend(*op, e->recorded);
  m.enqueue(*s, op);
  return cudaSuccess;
}

cudaError_t event_query(model& m, event& e, bool block) {
  if (e.captured && capture_is_open(m, e.captured)) {
    e.captured->invalid = true;
    return cudaErrorCapturedEvent;
  }
  if (cudaError_t const code = unsafe_in_capture(m))
    return code;
  operation_ptr const op = e.recorded;
  if (!op)
    return cudaSuccess;
  auto reached = [&] { return op->done || m.device_error(op->device) != 0; };
  if (block) {
    bool const ok = m.wait("cudaEventSynchronize(" + e.label + ")", reached, op);
    if (op->done)
      observe(m, *op);
    return after_wait(m, op->device, ok);
  }
  if (m.deadlocked && !op->done)
    return cudaErrorLaunchTimeout;
  auto in_time = [&] {
    // After a deadlock no clock moves any more.
    return op->done ? m.deadlocked || op->finished_at <= m.self().now
                    : m.device_error(op->device) != 0;
  };
  if (!m.poll(in_time))
    return cudaErrorNotReady;
  if (!op->done)
    return after_wait(m, op->device, false);
  observe(m, *op);
  return cudaSuccess;
}

cudaError_t stream_query(model& m, cudaStream_t handle, bool block) {
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  if (cudaError_t const wrong = forbid_in_capture(*s))
    return wrong;
  if (cudaError_t const wrong = unsafe_in_capture(m))
    return wrong;
  operation_ptr const last = s->last;
  if (!last)
    return cudaSuccess;
  int const device = s->device;
  auto reached = [&] { return last->done || m.device_error(device) != 0; };
  if (block) {
    bool const ok = m.wait("cudaStreamSynchronize(" + s->label + ")", reached, last);
    if (last->done)
      observe(m, *last);
    return after_wait(m, s->device, ok);
  }
  auto in_time = [&] {
    return last->done ? m.deadlocked || last->finished_at <= m.self().now
                      : m.device_error(device) != 0;
  };
  if (!m.poll(in_time))
    return cudaErrorNotReady;
  if (!last->done)
    return after_wait(m, s->device, false);
  observe(m, *last);
  return cudaSuccess;
}

cudaError_t launch_host_function(model& m, cudaStream_t handle, std::function<void()> body) {
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  auto op = m.make(operation_kind::host_function, *s, "host function");
  op->run = [&m, body](operation& self) {
    ++m.counts.host_functions;
    m.in_callback = &self;
    running_callback() = true;
    body();
    running_callback() = false;
    m.in_callback = nullptr;
    return std::vector<memory_access>{};
  };
  submit_work(m, *s, op);
  return cudaSuccess;
}

template <class Value, class Get>
cudaError_t stream_property(model& m, cudaStream_t handle, Value* out, Get get) {
  if (!out)
    return cudaErrorInvalidValue;
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  *out = get(*s);
  return cudaSuccess;
}

} // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* out) {
  return cuda_call("cudaStreamCreate",
                   [&](model& m) { return create_stream(m, out, cudaStreamDefault, 0); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cuda_call("cudaStreamCreateWithFlags",
                   [&](model& m) { return create_stream(m, out, flags, 0); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  return cuda_call("cudaStreamCreateWithPriority",
                   [&](model& m) { return create_stream(m, out, flags, priority); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return cuda_call("cudaDeviceGetStreamPriorityRange", [&](model&) {
    if (least)
      *least = lowest_priority;
    if (greatest)
      *greatest = highest_priority;
    return cudaSuccess;
  });
}
// Destroying a busy stream is allowed: its work goes on.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return cuda_call("cudaStreamDestroy", [&](model& m) {
    stream* const s = find_object<stream>(m, m.streams, handle, "a stream");
    if (!s)
      return cudaErrorInvalidResourceHandle;
    if (cudaError_t const code = forbid_in_capture(*s))
      return code;
    m.retired_streams.push_back(std::move(m.streams.at(handle)));
    m.streams.erase(handle);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* out) {
  return cuda_call("cudaStreamGetPriority", [&](model& m) {
    return stream_property(m, handle, out, [](stream const& s) { return s.priority; });
  });
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* out) {
  return cuda_call("cudaStreamGetFlags", [&](model& m) {
    return stream_property(m, handle, out, [](stream const& s) {
      return s.blocking ? unsigned{cudaStreamDefault} : unsigned{cudaStreamNonBlocking};
    });
  });
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* out) {
  return cuda_call("cudaStreamGetDevice", [&](model& m) {
    return stream_property(m, handle, out, [](stream const& s) { return s.device; });
  });
}
cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* out) {
  return cuda_call("cudaStreamGetId", [&](model& m) {
    return stream_property(
      m, handle, out, [](stream const& s) { return static_cast<unsigned long long>(s.id); });
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return cuda_call("cudaStreamSynchronize",
                   [&](model& m) { return stream_query(m, handle, true); });
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return cuda_call("cudaStreamQuery", [&](model& m) { return stream_query(m, handle, false); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned flags) {
  return cuda_call("cudaStreamWaitEvent", [&](model& m) {
    return flags == cudaEventWaitDefault ? stream_wait(m, handle, e) : cudaErrorNotSupported;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* out) {
  return cuda_call("cudaEventCreate",
                   [&](model& m) { return create_event(m, out, cudaEventDefault); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  return cuda_call("cudaEventCreateWithFlags",
                   [&](model& m) { return create_event(m, out, flags); });
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return cuda_call("cudaEventDestroy", [&](model& m) {
    if (!find_event(m, handle))
      return cudaErrorInvalidResourceHandle;
    m.retired_events.push_back(std::move(m.events.at(handle)));
    m.events.erase(handle);
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  return cuda_call("cudaEventRecord", [&](model& m) { return record(m, handle, on, 0); });
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  return cuda_call("cudaEventRecordWithFlags",
                   [&](model& m) { return record(m, handle, on, flags); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return cuda_call("cudaEventSynchronize", [&](model& m) {
    event* const e = find_event(m, handle);
    return e ? event_query(m, *e, true) : cudaErrorInvalidResourceHandle;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return cuda_call("cudaEventQuery", [&](model& m) {
    event* const e = find_event(m, handle);
    return e ? event_query(m, *e, false) : cudaErrorInvalidResourceHandle;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return cuda_call("cudaEventElapsedTime", [&](model& m) {
    event *const a = find_event(m, from), *const b = find_event(m, to);
    if (!a || !b || !a->timing || !b->timing || !a->recorded || !b->recorded)
      return cudaErrorInvalidResourceHandle;
    if (!a->recorded->done || !b->recorded->done)
      return cudaErrorNotReady;
    std::chrono::duration<float, std::milli> const span =
      b->recorded->finished_at - a->recorded->finished_at;
    *milliseconds = span.count();
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return cuda_call("cudaLaunchHostFunc", [&](model& m) {
    return launch_host_function(m, handle, [function, data] { function(data); });
  });
}
cudaError_t
cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  return cuda_call("cudaStreamAddCallback", [&](model& m) {
    return launch_host_function(m, handle, [=] { function(handle, cudaSuccess, data); });
  });
}

} // extern "C"
