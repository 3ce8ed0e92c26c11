// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Lane loops for instructions that map registers to registers, and their choice by type.

#include "decode.hpp"
#include "machine.hpp"

namespace ptx {

//! @brief d = F(a) with D and A possibly of different types.
template <class D, class A, class F>
void unary(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<D>(i.op[0]);
  auto const* a = w.lanes<A>(i.op[1]);
  for_lanes(mask, [&](int l) { d[l] = put<D>(F{}(get<A>(a[l]))); });
}

//! @brief d = F(a, b).
template <class D, class A, class B, class F>
void binary(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<D>(i.op[0]);
  auto const* a = w.lanes<A>(i.op[1]);
  auto const* b = w.lanes<B>(i.op[2]);
  for_lanes(mask, [&](int l) { d[l] = put<D>(F{}(get<A>(a[l]), get<B>(b[l]))); });
}

//! @brief d = F(a, b, c).
template <class D, class A, class C, class F>
void ternary(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<D>(i.op[0]);
  auto const* a = w.lanes<A>(i.op[1]);
  auto const* b = w.lanes<A>(i.op[2]);
  auto const* c = w.lanes<C>(i.op[3]);
  for_lanes(mask, [&](int l) { d[l] = put<D>(F{}(get<A>(a[l]), get<A>(b[l]), get<C>(c[l]))); });
}

//! @brief Handlers of one operation for all integer types, by width and sign.
template <template <class> class Handler>
handler integer_handler(type t) {
  switch (t) {
  case type::uint16:
  case type::b16: return Handler<u16>::run;
  case type::int16: return Handler<s16>::run;
  case type::uint32:
  case type::b32: return Handler<u32>::run;
  case type::int32: return Handler<s32>::run;
  case type::uint64:
  case type::b64: return Handler<u64>::run;
  case type::int64: return Handler<s64>::run;
  default: return nullptr;
  }
}

//! @brief Destination of type `to`, then sources of type `from`, as many as the statement has.
inline void plain_operands(decoder& d, type to, type from) {
  d.destination(d.at().operands.at(0), to);
  for (std::size_t k = 1; k < d.at().operands.size(); ++k) {
    d.operand(d.at().operands[k], from);
  }
}

//! @brief Sets the handler or refuses the type.
inline bool finish(decoder& d, handler run) {
  if (run == nullptr) {
    d.refuse("the operation is not known for this type");
  }
  d.now().run = run;
  return true;
}

} // namespace ptx
