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

//! What NVTX has been told. Texts and names of domains stay: their addresses are NVTX's handles.
struct record {
  std::mutex lock;
  std::set<std::string> texts;
  std::vector<nvtx_range> ranges;
  int open = 0;

  static record& of_process() {
    static auto* const kept = new record;
    return *kept;
  }
  std::string* keep(char const* text) {
    std::lock_guard held(lock);
    return const_cast<std::string*>(&*texts.emplace(text).first);
  }
};

int push(nvtxDomainHandle_t domain, std::string text, unsigned argb) {
  if (current_configuration().record_ranges) {
    record& all = record::of_process();
    std::lock_guard held(all.lock);
    all.ranges.push_back(
      {domain ? *reinterpret_cast<std::string const*>(domain) : std::string(), text, argb});
    ++all.open;
  }
  push_scope(std::move(text));
  return 0;
}

unsigned colour_of(nvtxEventAttributes_t const& attributes) {
  return attributes.colorType == NVTX_COLOR_ARGB ? attributes.color : 0;
}
int push_text(char const* text) {
  return push(nullptr, text ? text : "", 0);
}
int push_event(nvtxEventAttributes_t const* attributes) {
  return push(nullptr, message_of(*attributes), colour_of(*attributes));
}
int push_in_domain(nvtxDomainHandle_t domain, nvtxEventAttributes_t const* attributes) {
  return push(domain, message_of(*attributes), colour_of(*attributes));
}
int pop() {
  if (current_configuration().record_ranges) {
    record& all = record::of_process();
    std::lock_guard held(all.lock);
    --all.open;
  }
  pop_scope();
  return 0;
}
int pop_in_domain(nvtxDomainHandle_t) {
  return pop();
}

nvtxDomainHandle_t create_domain(char const* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(record::of_process().keep(name));
}
nvtxStringHandle_t register_text(nvtxDomainHandle_t, char const* text) {
  return reinterpret_cast<nvtxStringHandle_t>(record::of_process().keep(text));
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
    replace(table, entries, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  }
  return 1;
}

} // namespace

// The linker takes a file from a library only if somebody wants something of it.
void connect_nvtx() {}

void forget_nvtx_ranges() {
  record& all = record::of_process();
  std::lock_guard held(all.lock);
  all.ranges.clear();
  all.open = 0;
}

} // namespace standin::detail

namespace standin {

std::vector<nvtx_range> nvtx_ranges() {
  auto& all = detail::record::of_process();
  std::lock_guard held(all.lock);
  return all.ranges;
}
int open_nvtx_ranges() {
  auto& all = detail::record::of_process();
  std::lock_guard held(all.lock);
  return all.open;
}

} // namespace standin

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = standin::detail::initialise;
}
