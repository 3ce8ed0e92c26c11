// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Names and sentences of the errors that the stand-in can return.
#include <cuda_runtime_api.h>

#include <iterator>

namespace {

struct error_text {
  cudaError_t code;
  char const* name;
  char const* sentence;
};

constexpr error_text texts[] = {
  {cudaSuccess, "cudaSuccess", "no error"},
  {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
  {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
  {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
  {cudaErrorInvalidConfiguration,
   "cudaErrorInvalidConfiguration",
   "invalid configuration argument"},
  {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
  {cudaErrorDevicesUnavailable,
   "cudaErrorDevicesUnavailable",
   "CUDA-capable device(s) is/are busy or unavailable"},
  {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
  {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
  {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
  {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
  {cudaErrorHostMemoryAlreadyRegistered,
   "cudaErrorHostMemoryAlreadyRegistered",
   "part or all of the requested memory range is already mapped"},
  {cudaErrorHostMemoryNotRegistered,
   "cudaErrorHostMemoryNotRegistered",
   "pointer does not correspond to a registered memory region"},
  {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
  {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
  {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
  {cudaErrorPeerAccessAlreadyEnabled,
   "cudaErrorPeerAccessAlreadyEnabled",
   "peer access is already enabled"},
  {cudaErrorPeerAccessNotEnabled,
   "cudaErrorPeerAccessNotEnabled",
   "peer access has not been enabled"},
  {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
  {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
  {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
  {cudaErrorStreamCaptureUnsupported,
   "cudaErrorStreamCaptureUnsupported",
   "operation not permitted when stream is capturing"},
  {cudaErrorStreamCaptureInvalidated,
   "cudaErrorStreamCaptureInvalidated",
   "operation failed due to a previous error during capture"},
  {cudaErrorStreamCaptureMerge,
   "cudaErrorStreamCaptureMerge",
   "operation would result in a merge of separate capture sequences"},
  {cudaErrorStreamCaptureUnmatched,
   "cudaErrorStreamCaptureUnmatched",
   "capture was not ended in the same stream as it began"},
  {cudaErrorStreamCaptureUnjoined,
   "cudaErrorStreamCaptureUnjoined",
   "capturing stream has unjoined work"},
  {cudaErrorStreamCaptureIsolation,
   "cudaErrorStreamCaptureIsolation",
   "dependency created on uncaptured work in another stream"},
  {cudaErrorStreamCaptureImplicit,
   "cudaErrorStreamCaptureImplicit",
   "operation would make the legacy stream depend on a capturing blocking stream"},
  {cudaErrorCapturedEvent,
   "cudaErrorCapturedEvent",
   "operation not permitted on an event last recorded in a capturing stream"},
  {cudaErrorStreamCaptureWrongThread,
   "cudaErrorStreamCaptureWrongThread",
   "attempt to terminate a thread-local capture sequence from another thread"},
  {cudaErrorGraphExecUpdateFailure,
   "cudaErrorGraphExecUpdateFailure",
   "the graph update was not performed because it included changes which violated constraints"},
  {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

error_text const& text_of(cudaError_t code) {
  for (error_text const& t : texts)
    if (t.code == code)
      return t;
  return *std::prev(std::end(texts));
}

} // namespace

extern "C" {

char const* cudaGetErrorName(cudaError_t code) {
  return text_of(code).name;
}
char const* cudaGetErrorString(cudaError_t code) {
  return text_of(code).sentence;
}

} // extern "C"
