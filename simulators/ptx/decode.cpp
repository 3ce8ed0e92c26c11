// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "decode.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace ptx {

namespace {

struct special_row {
  char const* name;
  special_register which;
};
constexpr special_row special_rows[] = {
  {"%tid.x", special_tid_x},
  {"%tid.y", special_tid_y},
  {"%tid.z", special_tid_z},
  {"%ctaid.x", special_ctaid_x},
  {"%ctaid.y", special_ctaid_y},
  {"%ctaid.z", special_ctaid_z},
  {"%ntid.x", special_ntid_x},
  {"%ntid.y", special_ntid_y},
  {"%ntid.z", special_ntid_z},
  {"%nctaid.x", special_nctaid_x},
  {"%nctaid.y", special_nctaid_y},
  {"%nctaid.z", special_nctaid_z},
  {"%clusterid.x", special_ctaid_x},
  {"%clusterid.y", special_ctaid_y},
  {"%clusterid.z", special_ctaid_z},
  {"%nclusterid.x", special_nctaid_x},
  {"%nclusterid.y", special_nctaid_y},
  {"%nclusterid.z", special_nctaid_z},
  {"%laneid", special_laneid},
  {"%warpid", special_warpid},
  {"%nwarpid", special_nwarpid},
  {"%smid", special_zero},
  {"%nsmid", special_one},
  {"%gridid", special_zero},
  {"%cluster_ctarank", special_zero},
  {"%cluster_nctarank", special_one},
  {"%cluster_ctaid.x", special_zero},
  {"%cluster_ctaid.y", special_zero},
  {"%cluster_ctaid.z", special_zero},
  {"%cluster_nctaid.x", special_one},
  {"%cluster_nctaid.y", special_one},
  {"%cluster_nctaid.z", special_one},
  {"%lanemask_eq", special_lanemask_eq},
  {"%lanemask_le", special_lanemask_le},
  {"%lanemask_lt", special_lanemask_lt},
  {"%lanemask_ge", special_lanemask_ge},
  {"%lanemask_gt", special_lanemask_gt},
  {"%dynamic_smem_size", special_dynamic_shared},
  {"%total_smem_size", special_total_shared},
};

std::size_t round_up(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

} // namespace

void decoder::refuse(std::string const& why) const {
  throw unsupported("kernel " + out_.text->name + ", PTX line " + std::to_string(statement_->line) +
                    " `" + statement_->text() + "`: " + why);
}

s32 decoder::allocate(type t) {
  auto const at = static_cast<s32>(out_.register_bytes);
  std::size_t const bytes = size_of(t);
  out_.register_bytes += t == type::pred ? 8 : bytes == 16 ? 512 : bytes == 8 ? 256 : 128;
  return at;
}

void decoder::declare(declaration const& d) {
  if (d.space == "reg") {
    type const t = type_of(d.type);
    for (std::size_t i = 0; i < std::max<std::size_t>(d.count, 1); ++i) {
      std::string const name = d.count == 0 ? d.name : d.name + std::to_string(i);
      scopes_.back().registers[name] = {allocate(t), t};
    }
  } else if (d.space == "shared") {
    out_.shared_bytes = round_up(out_.shared_bytes, d.alignment);
    symbols_[d.name] = {space::shared, shared_base + out_.shared_bytes};
    out_.shared_bytes += d.bytes;
  } else if (d.space == "local" || d.space == "param") { // arguments of calls live there too
    out_.facts.local_bytes =
      round_up(out_.facts.local_bytes, std::max<std::size_t>(d.alignment, 16));
    symbols_[d.name] = {space::local, out_.facts.local_bytes};
    out_.facts.local_bytes += d.bytes;
  } else {
    refuse("variables in the state space ." + d.space + " are not known inside a function");
  }
}

// Shared and local memory must be known before the dynamic shared memory can be placed.
void decoder::declare_memory(function_text const& f) {
  for (auto const& s : f.body) {
    statement_ = &s;
    if (s.kind == statement_kind::declare && s.declared.space != "reg" &&
        s.declared.space != "param") {
      declare(s.declared);
    }
  }
}

void decoder::run(function_text const& f) {
  out_.text = &f;
  for (std::size_t i = 0; i < f.parameters.size(); ++i) {
    symbols_[f.parameters[i].name] = {space::parameter, out_.facts.parameter_offsets[i]};
  }
  for (auto const& v : code_.text.variables) {
    if (v.space == "shared" && !v.external) {
      out_.shared_bytes = round_up(out_.shared_bytes, v.alignment);
      symbols_[v.name] = {space::shared, shared_base + out_.shared_bytes};
      out_.shared_bytes += v.bytes;
    }
  }
  scopes_.push_back({next_scope_++, {}});
  declare_memory(f);
  out_.shared_bytes = round_up(out_.shared_bytes, 16);
  for (auto const& v : code_.text.variables) {
    if (v.space == "shared" && v.external) {
      out_.shared_bytes = round_up(out_.shared_bytes, v.alignment);
      symbols_[v.name] = {space::shared, shared_base + out_.shared_bytes};
    }
  }
  scopes_.back() = {next_scope_++, {}};
  for (auto const& s : f.body) {
    one(s);
  }
  instruction end;
  end.kind = flow::exit;
  end.statement = static_cast<u32>(f.body.size() - 1);
  first_operand_.push_back(out_.operands.size());
  out_.code.push_back(end);
  out_.operands.push_back(0);
  resolve_labels();
}

void decoder::one(statement const& s) {
  statement_ = &s;
  switch (s.kind) {
  case statement_kind::open: scopes_.push_back({next_scope_++, {}}); return;
  case statement_kind::close: scopes_.pop_back(); return;
  case statement_kind::label:
    labels_[{scopes_.back().id, s.name}] = static_cast<s32>(out_.code.size());
    return;
  case statement_kind::declare:
    if (s.declared.space == "reg" || s.declared.space == "param") {
      declare(s.declared);
    }
    return;
  case statement_kind::instruction: break;
  }
  instruction i;
  instruction_ = &i;
  addresses_ = 0;
  i.statement = inlined_.empty() ? static_cast<u32>(&s - out_.text->body.data()) : call_statement_;
  last_symbol_ = space::generic;
  if (s.parts[0] == "call" && s.guard.empty()) {
    call(s);
    return;
  }
  if (!s.guard.empty()) {
    auto const* r = find(s.guard);
    if (r == nullptr) {
      refuse("the predicate " + s.guard + " is not declared");
    }
    i.guard = r->offset;
    i.guard_negated = s.guard_negated;
  }
  first_operand_.push_back(out_.operands.size());
  i.t = type_of(s.parts.back());
  if (s.parts[0] == "bra") {
    branch(s);
  } else if (s.parts[0] == "ret" && !inlined_.empty()) {
    i.kind = flow::branch;
    returns_.push_back(out_.code.size());
  } else if (s.parts[0] == "ret" || s.parts[0] == "exit") {
    i.kind = flow::exit;
  } else if (!(decode_logic(*this) || decode_integer(*this) || decode_float(*this) ||
               decode_convert(*this) || decode_access(*this) || decode_atomic(*this) ||
               decode_warp(*this) || decode_barrier(*this) || decode_matrix(*this) ||
               decode_copy(*this) || decode_mbarrier(*this) || decode_bulk(*this) ||
               decode_wgmma(*this))) {
    refuse("this instruction is not known to the interpreter");
  }
  out_.code.push_back(i);
}

void decoder::branch(statement const& s) {
  instruction_->kind = flow::branch;
  jump j{out_.code.size(), s.operands.at(0), {}};
  for (auto const& open : scopes_) {
    j.scopes.push_back(open.id);
  }
  jumps_.push_back(std::move(j));
}

void decoder::resolve_labels() {
  for (std::size_t k = 0; k < out_.code.size(); ++k) {
    auto const next = k + 1 < out_.code.size() ? first_operand_[k + 1] : out_.operands.size();
    out_.code[k].op = out_.operands.data() + first_operand_[k];
    out_.code[k].operand_count = static_cast<u16>(next - first_operand_[k]);
  }
  for (auto const& j : jumps_) {
    auto& i = out_.code[j.instruction];
    for (auto const id : j.scopes) {
      if (auto const found = labels_.find({id, j.label}); found != labels_.end()) {
        i.target = found->second;
      }
    }
    if (i.target < 0) {
      statement_ = &out_.text->body[i.statement];
      refuse("the label is not defined");
    }
  }
}

decoder::named_register const* decoder::find(std::string const& name) const {
  for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
    if (auto const found = s->registers.find(name); found != s->registers.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

type decoder::register_type(std::string const& name) const {
  auto const* r = find(name);
  return r == nullptr ? type::none : r->t;
}

s32 decoder::constant(u64 value, bool wide) {
  auto const [at, fresh] = constants_.try_emplace({value, wide}, 0);
  if (fresh) {
    at->second = allocate(wide ? type::b64 : type::b32);
    out_.constants.emplace_back(at->second | (wide ? 1 << 30 : 0), value);
  }
  return at->second;
}

bool decoder::literal(std::string const& text, type t, u64& value) const {
  bool const negative = text[0] == '-';
  std::string const digits = text.substr(negative ? 1 : 0);
  if (digits == "WARP_SZ") {
    value = 32;
    return true;
  }
  if (digits.empty() || std::isdigit(static_cast<unsigned char>(digits[0])) == 0) {
    return false;
  }
  char const second = digits.size() > 1 ? digits[1] : ' ';
  if (digits[0] == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
    value = std::strtoull(digits.c_str() + 2, nullptr, 16);
    bool const single = second == 'f' || second == 'F';
    if (single && t == type::f64) {
      value = std::bit_cast<u64>(double{std::bit_cast<float>(static_cast<u32>(value))});
    }
    return true;
  }
  value = std::strtoull(digits.c_str(), nullptr, 0);
  value = negative ? 0 - value : value;
  if (t == type::pred) {
    value = value != 0 ? 0xffffffffU : 0;
  }
  return true;
}

s32 decoder::special(std::string const& name, bool& known) {
  for (auto const& row : special_rows) {
    if (name == row.name) {
      known = true;
      auto const [at, fresh] = specials_.try_emplace(name, 0);
      if (fresh) {
        at->second = allocate(type::b32);
        out_.specials.push_back({at->second, row.which, 0, false});
      }
      return at->second;
    }
  }
  return 0;
}

s32 decoder::parameter_address(u64 offset) {
  auto const [at, fresh] = specials_.try_emplace("parameter " + std::to_string(offset), 0);
  if (fresh) {
    at->second = allocate(type::b64);
    out_.specials.push_back({at->second, special_parameter, offset, true});
  }
  return at->second;
}

s32 decoder::symbol_address(std::string const& name, type t, bool& known) {
  if (auto const found = symbols_.find(name); found != symbols_.end()) {
    known = true;
    last_symbol_ = found->second.where;
    if (found->second.where == space::parameter) {
      return parameter_address(found->second.value);
    }
    return constant(found->second.value, size_of(t) == 8);
  }
  if (auto const found = code_.variables.find(name); found != code_.variables.end()) {
    known = true;
    return constant(reinterpret_cast<u64>(found->second.address), true);
  }
  return 0;
}

s32 decoder::value(std::string const& text, type t) {
  if (text.empty()) {
    refuse("an operand is missing");
  }
  if (auto const* r = find(text)) {
    return r->offset;
  }
  if (u64 v = 0; literal(text, t, v)) {
    return constant(size_of(t) == 8 ? v : v & 0xffffffffU, size_of(t) == 8);
  }
  bool known = false;
  s32 at = special(text, known);
  if (!known) {
    at = symbol_address(text, t, known);
  }
  if (!known) {
    refuse("the operand " + text + " is not known");
  }
  return at;
}

void decoder::operand(std::string const& text, type t) {
  raw(value(text, t));
}

void decoder::destination(std::string const& text, type t) {
  if (text == "_") {
    raw(allocate(t));
    return;
  }
  auto const* r = find(text);
  if (r == nullptr) {
    refuse("the register " + text + " is not declared");
  }
  raw(r->offset);
}

bool decoder::predicate(std::string const& text) {
  bool const negated = !text.empty() && text[0] == '!';
  raw(value(text.substr(negated ? 1 : 0), type::pred));
  return negated;
}

unsigned decoder::list(std::string const& text, type t, bool destinations) {
  std::vector<std::string> items{text};
  if (!text.empty() && text[0] == '{') {
    items = split(std::string_view(text).substr(1, text.size() - 2), ',');
  }
  for (auto const& item : items) {
    if (destinations) {
      destination(item, t);
    } else {
      operand(item, t);
    }
  }
  return static_cast<unsigned>(items.size());
}

void decoder::address(std::string const& text) {
  std::string inside = text;
  if (!inside.empty() && inside[0] == '[') {
    inside = trimmed(std::string_view(inside).substr(1, inside.size() - 2));
  }
  s64 offset = 0;
  std::string base = inside;
  if (auto const plus = inside.find_first_of("+-", 1); plus != std::string::npos) {
    base = trimmed(inside.substr(0, plus));
    u64 v = 0;
    std::string digits = trimmed(inside.substr(plus + 1));
    bool const negative = inside[plus] == '-' || digits[0] == '-';
    digits.erase(0, digits[0] == '-' ? 1 : 0);
    if (!literal(digits, type::b64, v)) {
      refuse("the address offset " + digits + " is not a number");
    }
    offset = negative ? -static_cast<s64>(v) : static_cast<s64>(v);
  }
  auto const* r = find(base);
  bool const wide = r == nullptr || size_of(r->t) == 8;
  instruction_->offset.at(addresses_) = offset;
  if (addresses_ == 0) {
    instruction_->address = static_cast<u8>(out_.operands.size() - first_operand_.back());
  }
  instruction_->wide = static_cast<u8>(instruction_->wide | (wide ? 1U << addresses_ : 0));
  ++addresses_;
  raw(value(base, type::b64));
}

} // namespace ptx
