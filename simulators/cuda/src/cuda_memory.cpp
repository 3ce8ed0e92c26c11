// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Allocation, copies and fills of the CUDA runtime.
#include <cstring>

#include "kernels.hpp"
#include "work.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

constexpr std::size_t device_memory = std::size_t{80} << 30;

cudaError_t
allocate_now(model& m, void** out, std::size_t bytes, memory_kind kind, char const* function) {
  if (!out)
    return cudaErrorInvalidValue;
  if (cudaError_t const code = unsafe_in_capture(m))
    return code;
  int const device = m.self().current_device;
  if (int const broken = m.device_error(device))
    return static_cast<cudaError_t>(broken);
  m.setting_up(function);
  *out = bytes == 0 ? nullptr : m.allocate(bytes, device, kind);
  return cudaSuccess;
}

cudaError_t reject_free(model& m, void const* pointer, char const* function) {
  allocation const* const a = m.find_allocation(pointer);
  std::string const who = m.describe(m.self()) + " calls " + function;
  auto const at = reinterpret_cast<std::uintptr_t>(pointer);
  if (a && a->freed && a->begin == at) {
    m.report_finding(finding::double_free,
                     who + " on " + m.memory_name(at) + ", which is freed already");
  } else {
    m.report_finding(finding::misuse,
                     who + " on " + m.memory_name(at) + ", which is no allocation of its kind");
  }
  return cudaErrorInvalidValue;
}

allocation* freeable(model& m, void const* pointer, bool pinned) {
  allocation* const a = m.find_allocation(pointer);
  bool const ok = a && !a->freed && a->begin == reinterpret_cast<std::uintptr_t>(pointer) &&
                  (a->kind == memory_kind::pinned) == pinned;
  return ok ? a : nullptr;
}

// cudaFree waits for the device the memory lives on; users on other devices are checked like any
// other access.
cudaError_t free_now(model& m, void* pointer, bool pinned, char const* function) {
  if (!pointer)
    return cudaSuccess;
  if (cudaError_t const code = unsafe_in_capture(m))
    return code;
  allocation* const a = freeable(m, pointer, pinned);
  if (!a)
    return reject_free(m, pointer, function);
  m.setting_up(function);
  if (cudaError_t const code = wait_for_device(m, a->device, function))
    return code;
  host& me = m.self();
  auto who = std::make_shared<std::string>(m.describe(me) + " in " + function);
  m.memory.stop(a->begin, a->bytes, {me.agent, &me.clock, who});
  me.clock.advance(me.agent);
  kernels::remove_memory(pointer);
  a->freed = true;
  return cudaSuccess;
}

cudaError_t allocate_on_stream(model& m, void** out, std::size_t bytes, cudaStream_t handle) {
  if (!out)
    return cudaErrorInvalidValue;
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  if (s->capturing) {
    m.report_finding(finding::misuse, m.describe(m.self()) + " allocates inside a capture");
    return forbid_in_capture(*s);
  }
  m.setting_up("cudaMallocAsync");
  *out = bytes == 0 ? nullptr : m.allocate(bytes, s->device, memory_kind::device);
  if (bytes == 0)
    return cudaSuccess;
  auto op = m.make(operation_kind::allocate, *s, "cudaMallocAsync");
  op->run = [&m, pointer = *out, bytes](operation& self) {
    m.check(self, writing(pointer, bytes));
    m.memory.undefine(reinterpret_cast<std::uintptr_t>(pointer), bytes);
    kernels::mark(pointer, bytes, false);
    return std::vector<memory_access>{};
  };
  m.enqueue(*s, op);
  return cudaSuccess;
}

cudaError_t free_on_stream(model& m, void* pointer, cudaStream_t handle) {
  if (!pointer)
    return cudaSuccess;
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  if (cudaError_t const wrong = forbid_in_capture(*s))
    return wrong;
  allocation* const a = freeable(m, pointer, false);
  if (!a)
    return reject_free(m, pointer, "cudaFreeAsync");
  m.setting_up("cudaFreeAsync");
  a->freed = true;
  auto op = m.make(operation_kind::release, *s, "cudaFreeAsync");
  op->run = [&m, begin = a->begin, bytes = a->bytes](operation& self) {
    m.memory.stop(begin, bytes, {self.agent, &self.clock, self.what});
    kernels::remove_memory(reinterpret_cast<void*>(begin));
    return std::vector<memory_access>{};
  };
  m.enqueue(*s, op);
  return cudaSuccess;
}

bool on_device(model& m, void const* p) {
  allocation const* const a = m.find_allocation(p);
  return a && a->kind != memory_kind::pinned;
}
bool pageable(model& m, void const* p) {
  return m.find_allocation(p) == nullptr;
}

bool kind_fits(model& m, void const* to, void const* from, cudaMemcpyKind kind) {
  bool fits = true;
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)
    fits = fits && on_device(m, to);
  if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)
    fits = fits && on_device(m, from);
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost) {
    allocation const* const a = m.find_allocation(from);
    fits = fits && (!a || a->kind != memory_kind::device);
  }
  if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost) {
    allocation const* const a = m.find_allocation(to);
    fits = fits && (!a || a->kind != memory_kind::device);
  }
  return fits;
}

bool staged_by_host(model& m, void const* to, void const* from) {
  allocation const *const a = m.find_allocation(to), *const b = m.find_allocation(from);
  if (!a || !b || a->kind != memory_kind::device || b->kind != memory_kind::device)
    return false;
  return a->device != b->device && !m.peers.contains({a->device, b->device}) &&
         !m.peers.contains({b->device, a->device});
}

struct copy_shape {
  void* to = nullptr;
  void const* from = nullptr;
  std::size_t to_pitch = 0, from_pitch = 0, width = 0, height = 1;
};

operation_ptr make_copy(model& m, stream& on, copy_shape const& c, std::string const& function) {
  auto op = m.make(operation_kind::copy, on, function);
  auto const bytes = static_cast<double>(c.width * c.height);
  op->cost +=
    nanoseconds(static_cast<nanoseconds::rep>(bytes / m.config.cost.bytes_per_nanosecond));
  for (std::size_t row = 0; row < c.height; ++row) {
    op->accesses.push_back(reading(static_cast<char const*>(c.from) + row * c.from_pitch, c.width));
    op->accesses.push_back(writing(static_cast<char*>(c.to) + row * c.to_pitch, c.width));
  }
  op->run = [c](operation&) {
    for (std::size_t row = 0; row < c.height; ++row)
      std::memmove(static_cast<char*>(c.to) + row * c.to_pitch,
                   static_cast<char const*>(c.from) + row * c.from_pitch,
                   c.width);
    return std::vector<memory_access>{};
  };
  return op;
}

// Copies to or from pageable memory are staged: the call returns when the memory may be used again,
// which a late stream can delay. In a graph each launch stages them anew, and may wait.
// Synchronous copies return when they are done.
cudaError_t copy(model& m,
                 copy_shape const& c,
                 cudaMemcpyKind kind,
                 cudaStream_t handle,
                 bool block,
                 std::string const& function) {
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  if (block) {
    if (cudaError_t const wrong = forbid_in_capture(*s))
      return wrong;
    if (cudaError_t const wrong = unsafe_in_capture(m))
      return wrong;
  }
  if (c.width == 0 || c.height == 0)
    return cudaSuccess;
  if (!c.to || !c.from)
    return cudaErrorInvalidValue;
  std::size_t const to_bytes = c.to_pitch * (c.height - 1) + c.width;
  std::size_t const from_bytes = c.from_pitch * (c.height - 1) + c.width;
  if (!inside(m, c.to, to_bytes, function) || !inside(m, c.from, from_bytes, function))
    return cudaErrorInvalidValue;
  if (!kind_fits(m, c.to, c.from, kind)) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " calls " + function +
                       " with a kind that does not fit its pointers");
    return cudaErrorInvalidValue;
  }
  ++m.counts.copies;
  if (staged_by_host(m, c.to, c.from))
    ++m.counts.staged_copies;
  auto op = make_copy(m, *s, c, function);
  bool const has_pageable = pageable(m, c.to) || pageable(m, c.from);
  if (has_pageable && s->capturing)
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " calls " + function +
                       " with pageable memory inside a capture, which every launch would stage");
  bool const staged = !s->capturing && has_pageable;
  submit_work(m, *s, op);
  if (!block && !staged)
    return cudaSuccess;
  m.counts.waiting_copies += block ? 0 : 1;
  if (op->stalled) { // then the call itself never returns
    m.self().stall_next = true;
    return cudaSuccess;
  }
  int const device = s->device;
  bool const ok = m.wait(
    function, [&] { return op->done || m.device_error(device) != 0; }, op);
  if (op->done)
    observe(m, *op);
  return after_wait(m, s->device, ok);
}

cudaError_t fill(model& m,
                 void* to,
                 int value,
                 std::size_t bytes,
                 cudaStream_t handle,
                 bool block,
                 std::string const& function) {
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  if (block)
    if (cudaError_t const wrong = forbid_in_capture(*s))
      return wrong;
  if (bytes == 0)
    return cudaSuccess;
  if (!on_device(m, to) && pageable(m, to))
    return cudaErrorInvalidValue;
  if (!inside(m, to, bytes, function))
    return cudaErrorInvalidValue;
  auto op = m.make(operation_kind::fill, *s, function);
  op->accesses.push_back(writing(to, bytes));
  op->run = [=](operation&) {
    std::memset(to, value, bytes);
    return std::vector<memory_access>{};
  };
  submit_work(m, *s, op);
  return cudaSuccess;
}

} // namespace

extern "C" {

cudaError_t cudaMalloc(void** out, size_t bytes) {
  return cuda_call("cudaMalloc", [&](model& m) {
    return allocate_now(m, out, bytes, memory_kind::device, "cudaMalloc");
  });
}
cudaError_t cudaMallocManaged(void** out, size_t bytes, unsigned) {
  return cuda_call("cudaMallocManaged", [&](model& m) {
    return allocate_now(m, out, bytes, memory_kind::managed, "cudaMallocManaged");
  });
}
cudaError_t cudaMallocHost(void** out, size_t bytes) {
  return cuda_call("cudaMallocHost", [&](model& m) {
    return allocate_now(m, out, bytes, memory_kind::pinned, "cudaMallocHost");
  });
}
cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  return cuda_call("cudaHostAlloc", [&](model& m) {
    return allocate_now(m, out, bytes, memory_kind::pinned, "cudaHostAlloc");
  });
}
cudaError_t cudaFree(void* pointer) {
  return cuda_call("cudaFree", [&](model& m) { return free_now(m, pointer, false, "cudaFree"); });
}
cudaError_t cudaFreeHost(void* pointer) {
  return cuda_call("cudaFreeHost",
                   [&](model& m) { return free_now(m, pointer, true, "cudaFreeHost"); });
}
cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t on) {
  return cuda_call("cudaMallocAsync",
                   [&](model& m) { return allocate_on_stream(m, out, bytes, on); });
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t on) {
  return cuda_call("cudaFreeAsync", [&](model& m) { return free_on_stream(m, pointer, on); });
}
// Registered memory behaves like pinned memory that somebody else owns.
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return cuda_call("cudaHostRegister", [&](model& m) {
    if (!pointer || bytes == 0)
      return cudaErrorInvalidValue;
    if (m.find_allocation(pointer))
      return cudaErrorHostMemoryAlreadyRegistered;
    m.setting_up("cudaHostRegister");
    m.adopt_host_memory(pointer, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaHostUnregister(void* pointer) {
  return cuda_call("cudaHostUnregister", [&](model& m) {
    allocation* const a = freeable(m, pointer, true);
    if (!a || a->storage)
      return cudaErrorHostMemoryNotRegistered;
    host& me = m.self();
    auto who = std::make_shared<std::string>(m.describe(me) + " in cudaHostUnregister");
    m.memory.touch(writing(pointer, a->bytes), {me.agent, &me.clock, who}, false);
    m.memory.forget(a->begin, a->bytes);
    me.clock.advance(me.agent);
    kernels::remove_memory(pointer);
    m.allocations.erase(a->begin);
    return cudaSuccess;
  });
}
cudaError_t cudaHostGetDevicePointer(void** out, void* pointer, unsigned) {
  return cuda_call("cudaHostGetDevicePointer", [&](model& m) {
    *out = m.find_allocation(pointer) ? pointer : nullptr;
    return *out ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  return cuda_call("cudaMemGetInfo", [&](model& m) {
    std::size_t used = 0;
    for (auto const& [begin, a] : m.allocations)
      if (!a.freed && a.device == m.self().current_device && a.kind != memory_kind::pinned)
        used += a.bytes;
    if (available)
      *available = device_memory - used;
    if (total)
      *total = device_memory;
    return cudaSuccess;
  });
}

cudaError_t
cudaMemcpyAsync(void* to, void const* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t on) {
  return cuda_call("cudaMemcpyAsync", [&](model& m) {
    return copy(m, {to, from, bytes, bytes, bytes, 1}, kind, on, false, "cudaMemcpyAsync");
  });
}
cudaError_t
cudaMemcpyPeerAsync(void* to, int, void const* from, int, size_t bytes, cudaStream_t on) {
  return cuda_call("cudaMemcpyPeerAsync", [&](model& m) {
    return copy(m,
                {to, from, bytes, bytes, bytes, 1},
                cudaMemcpyDeviceToDevice,
                on,
                false,
                "cudaMemcpyPeerAsync");
  });
}
cudaError_t cudaMemcpy(void* to, void const* from, size_t bytes, cudaMemcpyKind kind) {
  return cuda_call("cudaMemcpy", [&](model& m) {
    return copy(m, {to, from, bytes, bytes, bytes, 1}, kind, nullptr, true, "cudaMemcpy");
  });
}
cudaError_t cudaMemcpy2DAsync(void* to,
                              size_t to_pitch,
                              void const* from,
                              size_t from_pitch,
                              size_t width,
                              size_t height,
                              cudaMemcpyKind kind,
                              cudaStream_t on) {
  return cuda_call("cudaMemcpy2DAsync", [&](model& m) {
    if (width > to_pitch || width > from_pitch)
      return cudaErrorInvalidPitchValue;
    return copy(
      m, {to, from, to_pitch, from_pitch, width, height}, kind, on, false, "cudaMemcpy2DAsync");
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t on) {
  return cuda_call("cudaMemsetAsync", [&](model& m) {
    return fill(m, to, value, bytes, on, false, "cudaMemsetAsync");
  });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cuda_call(
    "cudaMemset", [&](model& m) { return fill(m, to, value, bytes, nullptr, true, "cudaMemset"); });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, void const* pointer) {
  return cuda_call("cudaPointerGetAttributes", [&](model& m) {
    if (!out)
      return cudaErrorInvalidValue;
    *out = {};
    out->type = cudaMemoryTypeUnregistered;
    out->device = -2;
    allocation const* const a = m.find_allocation(pointer);
    if (!a || a->freed)
      return cudaSuccess;
    out->type = a->kind == memory_kind::device   ? cudaMemoryTypeDevice
                : a->kind == memory_kind::pinned ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeManaged;
    out->device = a->device;
    out->devicePointer = const_cast<void*>(pointer);
    out->hostPointer = a->kind == memory_kind::device ? nullptr : const_cast<void*>(pointer);
    return cudaSuccess;
  });
}

} // extern "C"
