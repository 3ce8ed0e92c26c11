// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <cstring>

#include "bulk.hpp"

namespace ptx {

namespace {

template <class T>
void combine(std::byte* global, std::byte const* shared, u32 bytes, reduction how) {
  for (u32 k = 0; k < bytes; k += sizeof(T)) {
    T a{}, b{};
    std::memcpy(static_cast<void*>(&a), global + k, sizeof(T));
    std::memcpy(static_cast<void*>(&b), shared + k, sizeof(T));
    if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat>) {
      double const x = to_float(a);
      double const y = to_float(b);
      double const r = how == reduction::add       ? add_to_odd(x, y)
                       : how == reduction::minimum ? std::fmin(x, y)
                                                   : std::fmax(x, y);
      if constexpr (std::is_same_v<T, half>) {
        a = to_half(r);
      } else {
        a = to_bfloat(r);
      }
    } else {
      a = how == reduction::add       ? static_cast<T>(a + b)
          : how == reduction::minimum ? std::min(a, b)
                                      : std::max(a, b);
    }
    std::memcpy(global + k, static_cast<void const*>(&a), sizeof(T));
  }
}

} // namespace

void reduce_bytes(bulk_copy const& c, std::byte* global, std::byte const* shared, u32 bytes) {
  auto const how = static_cast<reduction>(c.by->mode);
  if (how >= reduction::bit_and) {
    for (u32 k = 0; k < bytes; ++k) {
      global[k] = how == reduction::bit_and  ? global[k] & shared[k]
                  : how == reduction::bit_or ? global[k] | shared[k]
                                             : global[k] ^ shared[k];
    }
    return;
  }
  type t = c.by->t;
  if (c.tensor) {
    bool const wide = c.map.element_bytes == 8;
    switch (static_cast<number>(c.map.float_kind)) {
    case number::f16: t = type::f16; break;
    case number::bf16: t = type::bf16; break;
    case number::f32: t = type::f32; break;
    case number::f64: t = type::f64; break;
    case number::signed_integer: t = wide ? type::int64 : type::int32; break;
    default: t = wide ? type::uint64 : type::uint32;
    }
  }
  switch (t) {
  case type::f16: return combine<half>(global, shared, bytes, how);
  case type::bf16: return combine<bfloat>(global, shared, bytes, how);
  case type::f32: return combine<float>(global, shared, bytes, how);
  case type::f64: return combine<double>(global, shared, bytes, how);
  case type::int32: return combine<s32>(global, shared, bytes, how);
  case type::int64: return combine<s64>(global, shared, bytes, how);
  case type::uint64: return combine<u64>(global, shared, bytes, how);
  default: return combine<u32>(global, shared, bytes, how);
  }
}

} // namespace ptx
