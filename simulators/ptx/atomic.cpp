// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief atom and red on global and shared memory, memory fences.
#include <cstring>

#include "access.hpp"
#include "operations.hpp"

namespace ptx {

space space_of(statement const& s);

namespace {

enum class atomic : u8 {
  add,
  minimum,
  maximum,
  bit_and,
  bit_or,
  bit_xor,
  exchange,
  compare,
  increment,
  decrement
};
enum : u8 { acquires = 1, releases = 2, returns = 4 };

template <class T>
T integer_result(atomic what, T old, T b, T c) {
  using U = std::make_unsigned_t<T>;
  auto const x = static_cast<U>(old);
  auto const y = static_cast<U>(b);
  switch (what) {
  case atomic::add: return static_cast<T>(x + y);
  case atomic::minimum: return old < b ? old : b;
  case atomic::maximum: return old < b ? b : old;
  case atomic::bit_and: return static_cast<T>(x & y);
  case atomic::bit_or: return static_cast<T>(x | y);
  case atomic::bit_xor: return static_cast<T>(x ^ y);
  case atomic::exchange: return b;
  case atomic::compare: return old == b ? c : old;
  case atomic::increment: return static_cast<T>(x >= y ? 0 : x + 1);
  default: return static_cast<T>(x == 0 || x > y ? y : x - 1);
  }
}

template <class T>
T result(atomic what, T old, T b, T c) {
  if constexpr (std::is_integral_v<T>) {
    return integer_result(what, old, b, c);
  } else if constexpr (std::is_floating_point_v<T>) {
    return what == atomic::add       ? old + b
           : what == atomic::minimum ? std::fmin(old, b)
                                     : std::fmax(old, b);
  } else {
    double const x = to_float(old);
    double const y = to_float(b);
    double const r = what == atomic::add       ? add_to_odd(x, y)
                     : what == atomic::minimum ? std::fmin(x, y)
                                               : std::fmax(x, y);
    if constexpr (std::is_same_v<T, half>) {
      return to_half(r);
    } else {
      return to_bfloat(r);
    }
  }
}

// op: destinations, address, operands (b, or b and c for cas); `count` elements, Parts per slot
template <class T, int Parts>
void run_atomic(warp& w, instruction const& i, u32 mask) {
  u32 const size = sizeof(T) * Parts;
  u32 const bytes = size * i.count;
  auto const what = static_cast<atomic>(i.mode);
  touch const how{.read = true, .write = true, .strong = true};
  s32 const* const operand = i.op + i.address + 1;
  using slot = std::conditional_t<sizeof(T) == 8, double, float>; // only its width matters
  for_lanes(mask, [&](int l) {
    u64 const address = address_of(w, i, 0, l);
    region const r = locate(w, i, l, i.where, address, bytes, bytes, true);
    strong_access(w, l, address, how, (i.flags & acquires) != 0, (i.flags & releases) != 0);
    note(w, i, l, r, bytes, how);
    for (unsigned k = 0; k < i.count; ++k) {
      std::array<T, Parts> old{}, b{}, c{}, fresh{};
      std::memcpy(old.data(), r.data + k * size, size);
      auto const bits = w.lanes<slot>(operand[k])[l];
      std::memcpy(b.data(), &bits, size);
      if (what == atomic::compare) {
        auto const other = w.lanes<slot>(operand[1])[l];
        std::memcpy(c.data(), &other, size);
      }
      if ((i.flags & returns) != 0) {
        slot_of<slot> before = 0;
        std::memcpy(&before, old.data(), size);
        w.lanes<slot>(i.op[k])[l] = before;
      }
      for (int p = 0; p < Parts; ++p) {
        fresh[p] = result(what, old[p], b[p], c[p]);
      }
      // An atomic that changes nothing is a poll, not progress.
      w.home->launch->progress += std::memcmp(fresh.data(), old.data(), size) != 0 ? 1 : 0;
      std::memcpy(r.data + k * size, fresh.data(), size);
    }
  });
}

handler atomic_handler(type t, atomic what) {
  bool const bits = what >= atomic::bit_and && what <= atomic::compare;
  switch (t) {
  case type::b16:
  case type::uint16: return bits ? run_atomic<u16, 1> : nullptr;
  case type::b32: return bits ? run_atomic<u32, 1> : nullptr;
  case type::b64: return bits ? run_atomic<u64, 1> : nullptr;
  case type::uint32: return run_atomic<u32, 1>;
  case type::int32: return run_atomic<s32, 1>;
  case type::uint64: return run_atomic<u64, 1>;
  case type::int64: return run_atomic<s64, 1>;
  case type::f32: return run_atomic<float, 1>;
  case type::f64: return run_atomic<double, 1>;
  case type::f16: return run_atomic<half, 1>;
  case type::bf16: return run_atomic<bfloat, 1>;
  case type::f16x2: return run_atomic<half, 2>;
  case type::bf16x2: return run_atomic<bfloat, 2>;
  default: return nullptr;
  }
}

bool decode_fence(decoder& d) {
  auto const& s = d.at();
  if (s.has("proxy")) {
    // fence.proxy.async orders generic against asynchronous accesses; the tensormap and alias
    // proxies do not exist here.
    bool const async =
      s.has("async") || s.has("async::generic") || s.name.find("async") != s.name.npos;
    d.target().uses_async_proxy = d.target().uses_async_proxy || async;
    return finish(
      d,
      async ? [](warp& w, instruction const&, u32 m) { proxy_fence(w, m); }
            : [](warp& w, instruction const&, u32 m) { memory_fence(w, m); });
  }
  return finish(d, [](warp& w, instruction const&, u32 m) { memory_fence(w, m); });
}

} // namespace

bool decode_atomic(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  if (name == "membar" || name == "fence") {
    return decode_fence(d);
  }
  if ((name != "atom" && name != "red") || s.has("async")) {
    return false;
  }
  static constexpr char const* names[] = {
    "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"};
  instruction& i = d.now();
  i.mode = 255;
  for (u8 k = 0; k < 10; ++k) {
    i.mode = s.has(names[k]) ? k : i.mode;
  }
  if (i.mode == 255) {
    return false;
  }
  bool const both = s.has("acq_rel");
  std::size_t k = 0;
  i.flags =
    static_cast<u8>((both || s.has("acquire") ? acquires : 0) |
                    (both || s.has("release") ? releases : 0) | (name == "atom" ? returns : 0));
  i.where = space_of(s);
  if (name == "atom") {
    i.count = static_cast<u8>(d.list(s.operands.at(k++), i.t, true));
  }
  d.address(s.operands.at(k++));
  i.count = static_cast<u8>(d.list(s.operands.at(k++), i.t, false));
  if (static_cast<atomic>(i.mode) == atomic::compare) {
    d.operand(s.operands.at(k++), i.t);
  }
  return finish(d, atomic_handler(i.t, static_cast<atomic>(i.mode)));
}

} // namespace ptx
