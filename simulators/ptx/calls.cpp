// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Calls of device functions, expanded where they stand.
#include <algorithm>
#include <utility>

#include "access.hpp"
#include "decode.hpp"

namespace ptx {

void decoder::bind(std::vector<declaration> const& formal, std::string const& actual) {
  auto const names = split(std::string_view(actual).substr(1, actual.size() - 2), ',');
  if (names.size() != formal.size()) {
    refuse("the number of arguments does not fit the function");
  }
  for (std::size_t k = 0; k < names.size(); ++k) {
    symbols_[formal[k].name] = symbols_.at(names[k]);
  }
}

void decoder::inline_function(function_text const& f, statement const& s) {
  auto const outer_returns = std::exchange(returns_, {});
  auto const outer_call = call_statement_;
  if (inlined_.empty()) {
    call_statement_ = static_cast<u32>(&s - out_.text->body.data());
  }
  bool const has_result = s.operands[0][0] == '(';
  if (has_result) {
    bind(f.returns, s.operands[0]);
  }
  bind(f.parameters, s.operands.size() > (has_result ? 2U : 1U) ? s.operands.back() : "()");
  inlined_.push_back(&f);
  declare_memory(f);
  scopes_.push_back({next_scope_++, {}});
  for (auto const& one_of : f.body) {
    one(one_of);
  }
  scopes_.pop_back();
  inlined_.pop_back();
  for (auto const at : returns_) {
    out_.code[at].target = static_cast<s32>(out_.code.size());
  }
  returns_ = outer_returns;
  call_statement_ = outer_call;
}

void decoder::call(statement const& s) {
  std::string const name = s.operands.at(s.operands[0][0] == '(' ? 1 : 0);
  auto const found = code_.functions.find(name);
  if (found != code_.functions.end()) {
    auto const* f = found->second;
    if (std::find(inlined_.begin(), inlined_.end(), f) != inlined_.end()) {
      refuse("recursive functions are not known");
    }
    inline_function(*f, s);
    return;
  }
  first_operand_.push_back(out_.operands.size());
  if (name == "vprintf") { // prints nothing and says so
    address("[" + trimmed(std::string_view(s.operands[0]).substr(1, s.operands[0].size() - 2)) +
            "]");
    instruction_->run = [](warp& w, instruction const& i, u32 mask) {
      for_lanes(mask, [&](int l) {
        region const r = locate(w, i, l, space::local, address_of(w, i, 0, l), 4, 4, true);
        note(w, i, l, r, 4, {.write = true});
        std::fill_n(r.data, 4, std::byte{0});
      });
    };
    out_.code.push_back(*instruction_);
    return;
  }
  if (name != "__assertfail") {
    refuse("the function has no body here");
  }
  instruction_->run = [](warp& w, instruction const& i, u32 mask) {
    fail(w, i, std::countr_zero(mask), fault::trap, "an assertion of the kernel does not hold");
  };
  out_.code.push_back(*instruction_);
}

} // namespace ptx
