// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranges that the code under test opens with NVTX name its calls in the reports. NVTX's headers
// look for a tool of this name in the program.
#include <cstdint>

#include "call.hpp"

// The headers use this name without declaring it.
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(void const* (*exports)(std::uint32_t));
}

#define NVTX_STATIC_INJECTION_IMPL
#include <nvtx3/nvToolsExt.h>

namespace standin::detail {

namespace {

std::string message_of(nvtxEventAttributes_t const& attributes) {
  std::string text;
  // Handles of registered strings are the addresses of the strings kept below.
  if (attributes.messageType == NVTX_MESSAGE_TYPE_ASCII)
    text = attributes.message.ascii;
  else if (attributes.messageType == NVTX_MESSAGE_TYPE_REGISTERED)
    text = *reinterpret_cast<std::string const*>(attributes.message.registered);
  switch (attributes.payloadType) {
  case NVTX_PAYLOAD_TYPE_INT32: return text + " " + std::to_string(attributes.payload.iValue);
  case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32:
    return text + " " + std::to_string(attributes.payload.uiValue);
  case NVTX_PAYLOAD_TYPE_INT64: return text + " " + std::to_string(attributes.payload.llValue);
  case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
    return text + " " + std::to_string(attributes.payload.ullValue);
  default: return text;
  }
}

int push(std::string text) {
  push_scope(std::move(text));
  return 0;
}

int push_text(char const* text) {
  return push(text ? text : "");
}
int push_event(nvtxEventAttributes_t const* attributes) {
  return push(message_of(*attributes));
}
int push_in_domain(nvtxDomainHandle_t, nvtxEventAttributes_t const* attributes) {
  return push(message_of(*attributes));
}
int pop() {
  pop_scope();
  return 0;
}
int pop_in_domain(nvtxDomainHandle_t) {
  return pop();
}

nvtxStringHandle_t register_text(nvtxDomainHandle_t, char const* text) {
  static std::mutex lock;
  static auto* const kept = new std::set<std::string>;
  std::lock_guard held(lock);
  return reinterpret_cast<nvtxStringHandle_t>(
    const_cast<std::string*>(&*kept->emplace(text).first));
}

template <class Function>
void replace(NvtxFunctionTable table, unsigned entries, unsigned which, Function* with) {
  if (which < entries && table[which])
    *table[which] = reinterpret_cast<NvtxFunctionPointer>(with);
}

int initialise(NvtxGetExportTableFunc_t exports) {
  auto const* const callbacks =
    static_cast<NvtxExportTableCallbacks const*>(exports(NVTX_ETID_CALLBACKS));
  if (!callbacks)
    return 0;
  NvtxFunctionTable table = nullptr;
  unsigned entries = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &entries)) {
    replace(table, entries, NVTX_CBID_CORE_RangePushA, push_text);
    replace(table, entries, NVTX_CBID_CORE_RangePushEx, push_event);
    replace(table, entries, NVTX_CBID_CORE_RangePop, pop);
  }
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &entries)) {
    replace(table, entries, NVTX_CBID_CORE2_DomainRangePushEx, push_in_domain);
    replace(table, entries, NVTX_CBID_CORE2_DomainRangePop, pop_in_domain);
    replace(table, entries, NVTX_CBID_CORE2_DomainRegisterStringA, register_text);
  }
  return 1;
}

} // namespace

// The linker takes a file from a library only if somebody wants something of it.
void connect_nvtx() {}

} // namespace standin::detail

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = standin::detail::initialise;
}
