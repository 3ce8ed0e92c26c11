// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What every function of the two interfaces does around its own work.

#include "model.hpp"

namespace standin::detail {

//! @brief Codes an injected fault makes a call return.
struct injected {
  int cuda = 0;
  int nccl = 0;
};

//! @brief One call: takes the turn, counts, injects faults, gives the turn back.
class call {
public:
  explicit call(char const* function);
  ~call();
  call(call const&) = delete;
  call& operator=(call const&) = delete;

  //! @brief True in a host function, where no call is allowed.
  [[nodiscard]] bool forbidden() const { return forbidden_; }
  [[nodiscard]] std::optional<injected> const& fault() const { return fault_; }
  //! @brief True if an injected stall met a call that enqueued nothing.
  [[nodiscard]] bool never_returns() const;
  void park();

private:
  std::unique_lock<std::mutex> held_{};
  bool forbidden_ = false;
  std::optional<injected> fault_{};
};

//! @brief Opens and closes a range of calls that reports name; threads outside the model have none.
void push_scope(std::string text);
void pop_scope();
//! @brief Makes ranges of NVTX such ranges.
void connect_nvtx();
void forget_nvtx_ranges();

//! @brief True while the calling thread runs a host function of a stream.
bool& running_callback();

template <class Body>
cudaError_t cuda_call(char const* function, Body body) {
  call here(function);
  if (here.forbidden())
    return cudaErrorNotPermitted;
  model& m = model::instance();
  cudaError_t code = here.fault() ? static_cast<cudaError_t>(here.fault()->cuda) : body(m);
  if (here.never_returns()) {
    here.park();
    code = cudaErrorLaunchTimeout;
  }
  if (code != cudaSuccess)
    m.self().last_error = code;
  return code;
}

template <class Body>
ncclResult_t nccl_call(char const* function, Body body) {
  call here(function);
  if (here.forbidden())
    return ncclInvalidUsage;
  model& m = model::instance();
  ncclResult_t code = here.fault() ? static_cast<ncclResult_t>(here.fault()->nccl) : body(m);
  if (here.never_returns()) {
    here.park();
    code = ncclSystemError;
  }
  return code;
}

//! @brief Finds an object by its handle; reports a handle that never was or no longer is one.
template <class Object, class Map>
Object* find_object(model& m, Map& objects, void const* handle, char const* kind) {
  auto const at = objects.find(handle);
  if (at != objects.end())
    return at->second.get();
  m.report_finding(finding::misuse,
                   m.describe(m.self()) + " uses " + kind + " that does not exist or is destroyed");
  return nullptr;
}

} // namespace standin::detail
