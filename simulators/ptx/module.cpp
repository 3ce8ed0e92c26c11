// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Loading: variables get memory, kernels get decoded when first used.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "decode.hpp"

namespace ptx {

namespace {

kernel_facts facts_of(function_text const& f) {
  kernel_facts out;
  std::size_t at = 0;
  for (auto const& p : f.parameters) {
    at = (at + p.alignment - 1) / p.alignment * p.alignment;
    out.parameter_offsets.push_back(at);
    out.parameter_bytes.push_back(p.bytes);
    at += p.bytes;
  }
  auto const numbers = [&](char const* directive, unsigned(&v)[3]) {
    auto const found = f.directives.find(directive);
    if (found == std::string::npos) {
      return false;
    }
    char const* text = f.directives.c_str() + found + std::strlen(directive);
    for (unsigned k = 0; k < 3; ++k) {
      char* end = nullptr;
      v[k] = static_cast<unsigned>(std::strtoul(text, &end, 10));
      v[k] = end == text ? 1 : v[k];
      text = *end == ',' ? end + 1 : "";
    }
    return true;
  };
  unsigned v[3] = {1, 1, 1};
  if (numbers(".maxntid", v) || numbers(".reqntid", v)) {
    out.max_threads = v[0] * v[1] * v[2];
  }
  if (numbers(".reqnctapercluster", v)) {
    out.cluster = {v[0], v[1], v[2]};
  }
  return out;
}

u64 initial_value(program const& code, std::string text) {
  if (text.starts_with("generic(")) {
    text = text.substr(8, text.find(')') - 8);
  }
  auto const plus = text.find('+');
  if (auto const v = code.variables.find(trimmed(text.substr(0, plus)));
      v != code.variables.end()) {
    u64 const extra = plus == std::string::npos ? 0 : std::strtoull(&text[plus + 1], nullptr, 0);
    return reinterpret_cast<u64>(v->second.address) + extra;
  }
  if (text.size() > 2 && text[0] == '0' && std::strchr("fFdD", text[1]) != nullptr) {
    return std::strtoull(text.c_str() + 2, nullptr, 16);
  }
  if (text.empty() || (text[0] != '-' && std::isdigit(static_cast<unsigned char>(text[0])) == 0)) {
    throw unsupported("the initial value '" + text + "' is not known");
  }
  return text[0] == '-' ? 0 - std::strtoull(text.c_str() + 1, nullptr, 0)
                        : std::strtoull(text.c_str(), nullptr, 0);
}

void allocate(program& code, declaration const& d) {
  std::size_t const alignment = std::max<std::size_t>(d.alignment, 16);
  code.storage.push_back(std::make_unique<std::byte[]>(d.bytes + alignment));
  auto const raw = reinterpret_cast<std::uintptr_t>(code.storage.back().get());
  auto* const place = reinterpret_cast<std::byte*>((raw + alignment - 1) / alignment * alignment);
  std::memset(place, 0, d.bytes);
  code.where->add(place, d.bytes, true, d.name, d.space != "const");
  code.variables[d.name] = {place, d.bytes};
}

void initialise(program& code, declaration const& d) {
  auto* at = static_cast<std::byte*>(code.variables.at(d.name).address);
  for (auto const& text : d.initial) {
    u64 const v = initial_value(code, text);
    std::memcpy(at, &v, d.element_bytes);
    at += d.element_bytes;
  }
}

} // namespace

module::module(std::string_view text, memory& where) :program_(std::make_unique<program>()) {
  program_->where = &where;
  program_->text = parse(text);
  for (auto const& f : program_->text.functions) {
    program_->functions[f.name] = &f;
    if (f.entry) {
      program_->facts[f.name] = facts_of(f);
      for (auto const& s : f.body) {
        if (s.kind == statement_kind::declare && s.declared.space == "shared") {
          program_->facts[f.name].static_shared_bytes += s.declared.bytes;
        }
      }
    }
  }
  for (auto const& d : program_->text.variables) {
    if ((d.space == "global" || d.space == "const") && d.bytes != 0) {
      allocate(*program_, d);
    }
  }
  for (auto const& d : program_->text.variables) {
    if (program_->variables.contains(d.name)) {
      initialise(*program_, d);
    }
  }
}

module::~module() {
  if (program_ != nullptr) {
    for (auto const& [name, v] : program_->variables) {
      program_->where->remove(v.address);
    }
  }
}
module::module(module&&) noexcept = default;
module& module::operator=(module&& other) noexcept {
  std::swap(program_, other.program_);
  return *this;
}

std::vector<std::string> module::kernels() const {
  std::vector<std::string> out;
  for (auto const& [name, facts] : program_->facts) {
    out.push_back(name);
  }
  return out;
}

bool module::has_kernel(std::string_view mangled) const {
  return program_->facts.find(mangled) != program_->facts.end();
}

kernel_facts const& module::facts(std::string_view mangled) const {
  auto const found = program_->facts.find(mangled);
  if (found == program_->facts.end()) {
    throw unsupported("the module has no kernel named " + std::string(mangled));
  }
  return found->second;
}

variable module::find_variable(std::string_view mangled) const {
  auto const found = program_->variables.find(mangled);
  return found == program_->variables.end() ? variable{} : found->second;
}

kernel const& program::ready(std::string_view name) {
  auto const known = facts.find(name);
  if (known == facts.end()) {
    throw unsupported("the module has no kernel named " + std::string(name));
  }
  auto& slot = decoded[std::string(name)];
  if (slot == nullptr) {
    auto fresh = std::make_unique<kernel>();
    fresh->facts = known->second;
    decoder(*this, *fresh).run(*functions.find(name)->second);
    slot = std::move(fresh);
  }
  return *slot;
}

} // namespace ptx
