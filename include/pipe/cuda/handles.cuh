// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Streams, events, memory and graphs that free themselves. Header for the handles of
//! pipelining::cuda.
//!
//! Every type owns one object, moves, does not copy, and checks every call but the calls of its
//! destructor.

#include <pipe/cuda/error.cuh>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

namespace pipelining::inline v0_3::cuda {

namespace detail {

//! True when this process has used a device, so that making it current costs no memory.
[[nodiscard]] inline bool is_in_use(int device) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(
        "cuDevicePrimaryCtxGetState", &found, 7000, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess || found == nullptr)
    return true;
  unsigned flags = 0;
  int active = 0;
  auto const ask = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(found);
  return ask(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

//! A handle of CUDA, which is a pointer, or memory. Freed by a call whose result nobody hears.
template <auto Free>
struct freed_by {
  template <class Handle>
  void operator()(Handle* handle) const noexcept {
    (void)Free(handle);
  }
};
template <class Handle, auto Free>
using owned_handle = std::unique_ptr<std::remove_pointer_t<Handle>, freed_by<Free>>;

} // namespace detail

//! @brief Makes a device current for the calling thread until the end of the scope.
//!
//! A thread begins on device 0 without using it, and to make a device current that nobody has used
//! takes some hundred megabytes of it. So a thread that came here from such a device stays on the
//! new one.
class current_device {
public:
  //! Remembers the device that is current and makes another one so.
  explicit current_device(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    now_ = before_;
    change_to(device);
  }
  current_device(current_device const&) = delete;
  current_device& operator=(current_device const&) = delete;
  ~current_device() {
    if (now_ != before_ && detail::is_in_use(before_))
      (void)cudaSetDevice(before_);
  }
  //! @brief Another device until the end of the scope. @pre nobody else has changed it.
  void change_to(int device) {
    if (device == now_)
      return;
    check(cudaSetDevice(device), "cudaSetDevice");
    now_ = device;
  }

private:
  int before_ = 0;
  int now_ = 0;
};

//! @brief A stream that does not synchronise with the legacy default stream.
class stream {
public:
  //! @param priority lower numbers run first; 0 is the default.
  explicit stream(int priority = 0) {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
    handle_.reset(made);
  }
  [[nodiscard]] cudaStream_t get() const noexcept { return handle_.get(); }

private:
  detail::owned_handle<cudaStream_t, cudaStreamDestroy> handle_;
};

namespace detail {

//! An event, without timing and only for ordering unless told otherwise.
class event {
public:
  event() : event(cudaEventDisableTiming) {}
  //! @param flags cudaEventDefault for an event with a time.
  explicit event(unsigned flags) {
    cudaEvent_t made = nullptr;
    check(cudaEventCreateWithFlags(&made, flags), "cudaEventCreateWithFlags");
    handle_.reset(made);
  }
  [[nodiscard]] cudaEvent_t get() const noexcept { return handle_.get(); }

  //! The event happens when what is on the stream now has completed.
  void record(cudaStream_t on) { check(cudaEventRecord(get(), on), "cudaEventRecord"); }
  //! In a capture: the event is recorded anew by every launch of the graph, and the host can
  //! ask for it.
  void record_in_graph(cudaStream_t on) {
    check(cudaEventRecordWithFlags(get(), on, cudaEventRecordExternal), "cudaEventRecordWithFlags");
  }
  //! True when the event has happened; never waits.
  //! @throws error when the device reports one.
  [[nodiscard]] bool happened() const {
    cudaError_t const code = cudaEventQuery(get());
    if (code != cudaErrorNotReady) {
      check(code, "cudaEventQuery");
      return true;
    }
    // The runtime keeps "not ready" as its last error, and a stage that asks for that after a
    // launch would find it.
    (void)cudaGetLastError();
    return false;
  }
  //! The time from another event of the same GPU to this one, to half a microsecond.
  //! @pre both have times, and have happened.
  [[nodiscard]] double seconds_since(event const& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.get(), get()), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }
  //! Lets all later work on the stream wait for the event.
  void block(cudaStream_t waiting) const {
    check(cudaStreamWaitEvent(waiting, get(), 0), "cudaStreamWaitEvent");
  }

private:
  owned_handle<cudaEvent_t, cudaEventDestroy> handle_;
};

} // namespace detail

//! @brief Memory of the current device, zeroed once.
class device_memory {
public:
  //! Takes `bytes` of the current device.
  explicit device_memory(std::int64_t bytes) {
    if (bytes == 0)
      return;
    void* memory = nullptr;
    check(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
    data_.reset(static_cast<std::byte*>(memory));
    check(cudaMemset(memory, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
    // A fill of device memory returns before it is done, and other streams do not wait for it.
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  //! The first byte, an address of the device.
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

private:
  detail::owned_handle<std::byte*, cudaFree> data_;
};

//! @brief Memory of the host that devices copy to and from without the host, zeroed once.
class pinned_memory {
public:
  //! Takes `bytes` of the host.
  explicit pinned_memory(std::int64_t bytes) {
    if (bytes == 0)
      return;
    void* memory = nullptr;
    check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "cudaMallocHost");
    data_.reset(static_cast<std::byte*>(memory));
    std::memset(memory, 0, static_cast<std::size_t>(bytes));
  }
  //! The first byte, an address of the host.
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

private:
  detail::owned_handle<std::byte*, cudaFreeHost> data_;
};

//! @brief A graph that can be launched.
class graph {
public:
  graph() = default;
  //! @brief Instantiates the captured graph, and frees the capture.
  explicit graph(cudaGraph_t captured) {
    cudaGraphExec_t handle = nullptr;
    cudaError_t const made =
      cudaGraphInstantiate(&handle, captured, cudaGraphInstantiateFlagUseNodePriority);
    cudaError_t const freed = cudaGraphDestroy(captured);
    check(made, "cudaGraphInstantiate");
    handle_.reset(handle);
    check(freed, "cudaGraphDestroy"); // communicators wait for the capture as for the graph
  }
  //! True when there is a graph to launch.
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
  //! @brief Destroys the graph now, checked: communicators wait for the graphs that use them.
  //! @throws error
  void destroy() {
    if (handle_ != nullptr)
      check(cudaGraphExecDestroy(handle_.release()), "cudaGraphExecDestroy");
  }
  //! Enqueues the whole graph.
  void launch(cudaStream_t on) const {
    check(cudaGraphLaunch(handle_.get(), on), "cudaGraphLaunch");
  }

private:
  detail::owned_handle<cudaGraphExec_t, cudaGraphExecDestroy> handle_;
};

namespace detail {

//! The graph of all that `enqueue` enqueues from a stream on. @throws what it throws.
template <class Enqueue>
[[nodiscard]] graph captured(cudaStream_t origin, Enqueue enqueue) {
  check(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t made = nullptr;
  try {
    enqueue();
  } catch (...) {
    // Ends the capture whatever state it is in; the streams are usable again afterwards.
    if (cudaStreamEndCapture(origin, &made) == cudaSuccess)
      (void)cudaGraphDestroy(made);
    (void)cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(origin, &made), "cudaStreamEndCapture");
  return graph(made);
}

} // namespace detail

} // namespace pipelining::inline v0_3::cuda
