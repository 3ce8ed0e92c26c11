// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Statements to instructions. Each family of opcodes decodes its own.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine.hpp"

namespace ptx {

//! @brief Names in scope and the kernel under construction.
class decoder {
public:
  decoder(program& code, kernel& out) : code_(code), out_(out) {}
  void run(function_text const& f);

  //! @brief Appends a register, immediate, special or symbol operand that is read as type t.
  void operand(std::string const& text, type t);
  //! @brief Appends a register that is written; "_" gets a register nobody reads.
  void destination(std::string const& text, type t);
  //! @brief Appends a predicate operand; returns true if it is negated.
  bool predicate(std::string const& text);
  //! @brief Appends [base+offset] as the next address operand.
  void address(std::string const& text);
  //! @brief Appends all elements of {a, b, ...}, or the one operand.
  unsigned list(std::string const& text, type t, bool destinations);
  //! @brief Appends `offset` as it is.
  void raw(s32 offset) { out_.operands.push_back(offset); }
  s32 last_operand() const { return out_.operands.back(); }
  //! @brief Register with a 32-bit value that is the same in all lanes.
  s32 constant(u64 value, bool wide);
  type register_type(std::string const& name) const;

  //! @brief State space of the symbol that the last operand named; generic if it was no symbol.
  space last_symbol() const { return last_symbol_; }
  statement const& at() const { return *statement_; }
  instruction& now() { return *instruction_; }
  kernel& target() { return out_; }
  //! @brief Throws unsupported with the statement and the reason.
  [[noreturn]] void refuse(std::string const& why) const;

private:
  struct named_register {
    s32 offset = 0;
    type t = type::none;
  };
  struct symbol {
    space where = space::generic;
    u64 value = 0;
  };
  struct scope {
    u32 id = 0;
    std::map<std::string, named_register> registers;
  };

  void declare(declaration const& d);
  void declare_memory(function_text const& f);
  void call(statement const& s);
  void inline_function(function_text const& f, statement const& s);
  void bind(std::vector<declaration> const& formal, std::string const& actual);
  void one(statement const& s);
  void branch(statement const& s);
  void resolve_labels();
  s32 allocate(type t);
  s32 value(std::string const& text, type t);
  named_register const* find(std::string const& name) const;
  bool literal(std::string const& text, type t, u64& value) const;
  s32 special(std::string const& name, bool& known);
  s32 parameter_address(u64 offset);
  s32 symbol_address(std::string const& name, type t, bool& known);

  struct jump {
    std::size_t instruction;
    std::string label;
    std::vector<u32> scopes;
  };

  program& code_;
  kernel& out_;
  statement const* statement_ = nullptr;
  instruction* instruction_ = nullptr;
  unsigned addresses_ = 0;
  space last_symbol_ = space::generic;
  // Device functions are expanded where they are called; reports name the call.
  std::vector<function_text const*> inlined_;
  u32 call_statement_ = 0;
  std::vector<std::size_t> returns_;
  std::vector<scope> scopes_;
  u32 next_scope_ = 0;
  std::map<std::pair<u32, std::string>, s32> labels_;
  std::vector<jump> jumps_;
  std::map<std::string, symbol> symbols_;
  std::map<std::pair<u64, bool>, s32> constants_;
  std::map<std::string, s32> specials_;
  std::vector<std::size_t> first_operand_;
};

//! @name Families. Each returns false if the opcode is not its own.
//! @{
bool decode_integer(decoder& d);
bool decode_float(decoder& d);
bool decode_logic(decoder& d);
bool decode_convert(decoder& d);
bool decode_access(decoder& d);
bool decode_atomic(decoder& d);
bool decode_warp(decoder& d);
bool decode_barrier(decoder& d);
bool decode_matrix(decoder& d);
bool decode_copy(decoder& d);
bool decode_mbarrier(decoder& d);
bool decode_bulk(decoder& d);
bool decode_wgmma(decoder& d);
//! @}

//! @brief Values of special registers in special_slot::which.
enum special_register : u16 {
  special_tid_x,
  special_tid_y,
  special_tid_z,
  special_ctaid_x,
  special_ctaid_y,
  special_ctaid_z,
  special_ntid_x,
  special_ntid_y,
  special_ntid_z,
  special_nctaid_x,
  special_nctaid_y,
  special_nctaid_z,
  special_laneid,
  special_warpid,
  special_nwarpid,
  special_zero,
  special_one,
  special_lanemask_eq,
  special_lanemask_le,
  special_lanemask_lt,
  special_lanemask_ge,
  special_lanemask_gt,
  special_dynamic_shared,
  special_total_shared,
  special_parameter
};

} // namespace ptx
