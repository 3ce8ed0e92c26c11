// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Devices, peers and errors of the CUDA runtime.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "kernels.hpp"
#include "work.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

constexpr int shared_default = 48 << 10;

bool valid(model& m, int device) {
  return device >= 0 && device < m.config.devices;
}

int attribute(model& m, cudaDeviceAttr which) {
  switch (which) {
  case cudaDevAttrComputeCapabilityMajor: return m.config.compute_major;
  case cudaDevAttrComputeCapabilityMinor: return m.config.compute_minor;
  case cudaDevAttrMultiProcessorCount: return m.config.processors;
  case cudaDevAttrMaxSharedMemoryPerBlock: return shared_default;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: return m.shared_opt_in();
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return m.shared_opt_in() + (1 << 10);
  case cudaDevAttrReservedSharedMemoryPerBlock: return 1 << 10;
  case cudaDevAttrMaxThreadsPerBlock: return 1024;
  case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
  case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
  case cudaDevAttrMaxBlockDimX:
  case cudaDevAttrMaxBlockDimY: return 1024;
  case cudaDevAttrMaxBlockDimZ: return 64;
  case cudaDevAttrMaxGridDimX: return 2147483647;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ: return 65535;
  case cudaDevAttrWarpSize: return 32;
  case cudaDevAttrMaxRegistersPerBlock:
  case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
  case cudaDevAttrL2CacheSize: return 50 << 20;
  case cudaDevAttrMemoryPoolsSupported:
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrConcurrentKernels:
  case cudaDevAttrCooperativeLaunch:
  case cudaDevAttrStreamPrioritiesSupported: return 1;
  default: return 0;
  }
}

// Of the driver, asked for by name; makes no context.
CUresult context_state(CUdevice device, unsigned* flags, int* active) {
  cudaError_t const code = cuda_call("cuDevicePrimaryCtxGetState", [&](model& m) {
    if (!valid(m, device))
      return cudaErrorInvalidDevice;
    *flags = 0;
    *active = m.contexts.contains({m.self().rank, device}) ? 1 : 0;
    return cudaSuccess;
  });
  return code == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

void fill_properties(model& m, int device, cudaDeviceProp& out) {
  std::memset(&out, 0, sizeof out);
  std::snprintf(out.name, sizeof out.name, "stand-in device %d", device);
  out.totalGlobalMem = std::size_t{80} << 30;
  out.major = m.config.compute_major;
  out.minor = m.config.compute_minor;
  out.multiProcessorCount = m.config.processors;
  out.sharedMemPerBlock = shared_default;
  out.sharedMemPerBlockOptin = static_cast<std::size_t>(m.shared_opt_in());
  out.sharedMemPerMultiprocessor = static_cast<std::size_t>(m.shared_opt_in()) + (1 << 10);
  out.maxThreadsPerBlock = 1024;
  out.maxThreadsPerMultiProcessor = 2048;
  out.warpSize = 32;
  out.regsPerBlock = 65536;
  out.concurrentKernels = 1;
  out.unifiedAddressing = 1;
  out.pciBusID = device + 1;
}

} // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* out) {
  return cuda_call("cudaGetDeviceCount", [&](model& m) {
    *out = m.config.devices;
    return m.config.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}
cudaError_t cudaSetDevice(int device) {
  return cuda_call("cudaSetDevice", [&](model& m) {
    if (!valid(m, device))
      return cudaErrorInvalidDevice;
    m.self().current_device = device;
    m.add_context(); // since CUDA 12
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* out) {
  return cuda_call("cudaGetDevice", [&](model& m) {
    *out = m.self().current_device;
    return cudaSuccess;
  });
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return cuda_call("cudaInitDevice", [&](model& m) {
    return valid(m, device) ? cudaSuccess : cudaErrorInvalidDevice;
  });
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr which, int device) {
  return cuda_call("cudaDeviceGetAttribute", [&](model& m) {
    if (!valid(m, device))
      return cudaErrorInvalidDevice;
    *out = attribute(m, which);
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  return cuda_call("cudaGetDeviceProperties", [&](model& m) {
    if (!valid(m, device))
      return cudaErrorInvalidDevice;
    fill_properties(m, device, *out);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int length, int device) {
  return cuda_call("cudaDeviceGetPCIBusId", [&](model& m) {
    if (!valid(m, device))
      return cudaErrorInvalidDevice;
    std::snprintf(out, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
  });
}
cudaError_t cudaDriverGetVersion(int* out) {
  return cuda_call("cudaDriverGetVersion", [&](model&) {
    *out = CUDART_VERSION;
    return cudaSuccess;
  });
}
cudaError_t cudaRuntimeGetVersion(int* out) {
  return cuda_call("cudaRuntimeGetVersion", [&](model&) {
    *out = CUDART_VERSION;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return cuda_call("cudaDeviceSynchronize", [&](model& m) {
    if (cudaError_t const code = unsafe_in_capture(m))
      return code;
    return wait_for_device(m, m.self().current_device, "cudaDeviceSynchronize");
  });
}
cudaError_t cudaDeviceReset() {
  return cuda_call("cudaDeviceReset", [&](model& m) {
    return wait_for_device(m, m.self().current_device, "cudaDeviceReset");
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* out, int device, int peer) {
  return cuda_call("cudaDeviceCanAccessPeer", [&](model& m) {
    if (!valid(m, device) || !valid(m, peer))
      return cudaErrorInvalidDevice;
    *out = m.config.peer_access && device != peer;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return cuda_call("cudaDeviceEnablePeerAccess", [&](model& m) {
    int const device = m.self().current_device;
    if (flags != 0)
      return cudaErrorInvalidValue;
    if (!valid(m, peer) || peer == device)
      return cudaErrorInvalidDevice;
    if (!m.config.peer_access)
      return cudaErrorPeerAccessUnsupported;
    return m.peers.insert({device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return cuda_call("cudaDeviceDisablePeerAccess", [&](model& m) {
    return m.peers.erase({m.self().current_device, peer}) ? cudaSuccess
                                                          : cudaErrorPeerAccessNotEnabled;
  });
}

cudaError_t cudaGetLastError() {
  cudaError_t last = cudaSuccess;
  cudaError_t const code = cuda_call("cudaGetLastError", [&](model& m) {
    int const broken = m.device_error(m.self().current_device);
    last = broken != 0 ? static_cast<cudaError_t>(broken) : m.self().last_error;
    m.self().last_error = cudaSuccess;
    return cudaSuccess;
  });
  return code != cudaSuccess ? code : last;
}
cudaError_t cudaPeekAtLastError() {
  cudaError_t last = cudaSuccess;
  cudaError_t const code = cuda_call("cudaPeekAtLastError", [&](model& m) {
    int const broken = m.device_error(m.self().current_device);
    last = broken != 0 ? static_cast<cudaError_t>(broken) : m.self().last_error;
    return cudaSuccess;
  });
  return code != cudaSuccess ? code : last;
}
cudaError_t cudaGetDriverEntryPointByVersion(char const* symbol,
                                             void** out,
                                             unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return cuda_call("cudaGetDriverEntryPointByVersion", [&](model&) {
    *out = nullptr;
    if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0)
      *out = kernels::tensor_map_encoder();
    if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0)
      *out = reinterpret_cast<void*>(&context_state);
    if (found)
      *found = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
  return cuda_call("cudaDeviceGetDefaultMemPool", [&](model& m) {
    if (!valid(m, device))
      return cudaErrorInvalidDevice;
    *out = reinterpret_cast<cudaMemPool_t>(static_cast<std::uintptr_t>(device) + 1);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cuda_call("cudaMemPoolSetAttribute", [](model&) { return cudaSuccess; });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return cuda_call("cudaMemPoolTrimTo", [](model&) { return cudaSuccess; });
}

} // extern "C"
