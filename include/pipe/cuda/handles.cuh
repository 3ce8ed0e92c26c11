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
#include <utility>

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
    check(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
  }
  stream(stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  stream(stream const&) = delete;
  stream& operator=(stream const&) = delete;
  stream& operator=(stream&&) = delete;
  ~stream() {
    if (handle_ != nullptr)
      (void)cudaStreamDestroy(handle_);
  }
  [[nodiscard]] cudaStream_t get() const noexcept { return handle_; }

private:
  cudaStream_t handle_ = nullptr;
};

namespace detail {

//! An event, without timing and only for ordering unless told otherwise.
class event {
public:
  event() : event(cudaEventDisableTiming) {}
  //! @param flags cudaEventDefault for an event with a time.
  explicit event(unsigned flags) {
    check(cudaEventCreateWithFlags(&handle_, flags), "cudaEventCreateWithFlags");
  }
  event(event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  event(event const&) = delete;
  event& operator=(event const&) = delete;
  event& operator=(event&&) = delete;
  ~event() {
    if (handle_ != nullptr)
      (void)cudaEventDestroy(handle_);
  }
  [[nodiscard]] cudaEvent_t get() const noexcept { return handle_; }

  //! The event happens when what is on the stream now has completed.
  void record(cudaStream_t on) { check(cudaEventRecord(handle_, on), "cudaEventRecord"); }
  //! In a capture: the event is recorded anew by every launch of the graph, and the host can
  //! ask for it.
  void record_in_graph(cudaStream_t on) {
    check(cudaEventRecordWithFlags(handle_, on, cudaEventRecordExternal),
          "cudaEventRecordWithFlags");
  }
  //! True when the event has happened; never waits.
  //! @throws error when the device reports one.
  [[nodiscard]] bool happened() const {
    cudaError_t const code = cudaEventQuery(handle_);
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
    check(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }
  //! Lets all later work on the stream wait for the event.
  void block(cudaStream_t waiting) const {
    check(cudaStreamWaitEvent(waiting, handle_, 0), "cudaStreamWaitEvent");
  }

private:
  cudaEvent_t handle_ = nullptr;
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
    data_ = static_cast<std::byte*>(memory);
    check(cudaMemset(data_, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
    // A fill of device memory returns before it is done, and other streams do not wait for it.
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  device_memory(device_memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  device_memory(device_memory const&) = delete;
  device_memory& operator=(device_memory const&) = delete;
  device_memory& operator=(device_memory&&) = delete;
  ~device_memory() {
    if (data_ != nullptr)
      (void)cudaFree(data_);
  }
  //! The first byte, an address of the device.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

private:
  std::byte* data_ = nullptr;
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
    data_ = static_cast<std::byte*>(memory);
    std::memset(data_, 0, static_cast<std::size_t>(bytes));
  }
  pinned_memory(pinned_memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  pinned_memory(pinned_memory const&) = delete;
  pinned_memory& operator=(pinned_memory const&) = delete;
  pinned_memory& operator=(pinned_memory&&) = delete;
  ~pinned_memory() {
    if (data_ != nullptr)
      (void)cudaFreeHost(data_);
  }
  //! The first byte, an address of the host.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

private:
  std::byte* data_ = nullptr;
};

//! @brief A graph that can be launched.
class graph {
public:
  graph() = default;
  //! @brief Instantiates the captured graph, and frees the capture.
  explicit graph(cudaGraph_t captured) {
    cudaError_t const made =
      cudaGraphInstantiate(&handle_, captured, cudaGraphInstantiateFlagUseNodePriority);
    cudaError_t const freed = cudaGraphDestroy(captured);
    check(made, "cudaGraphInstantiate");
    // Communicators wait for the capture as for the graph.
    if (freed != cudaSuccess)
      (void)cudaGraphExecDestroy(handle_);
    check(freed, "cudaGraphDestroy");
  }
  graph(graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  graph& operator=(graph&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  graph(graph const&) = delete;
  graph& operator=(graph const&) = delete;
  ~graph() {
    if (handle_ != nullptr)
      (void)cudaGraphExecDestroy(handle_);
  }
  //! True when there is a graph to launch.
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
  //! @brief Destroys the graph now, checked: communicators wait for the graphs that use them.
  //! @throws error
  void destroy() {
    if (handle_ != nullptr)
      check(cudaGraphExecDestroy(std::exchange(handle_, nullptr)), "cudaGraphExecDestroy");
  }
  //! Enqueues the whole graph.
  void launch(cudaStream_t on) const { check(cudaGraphLaunch(handle_, on), "cudaGraphLaunch"); }

private:
  cudaGraphExec_t handle_ = nullptr;
};

} // namespace pipelining::inline v0_3::cuda
