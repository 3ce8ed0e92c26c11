// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief ld, st and their vectors.
#include <cstring>

#include "access.hpp"
#include "operations.hpp"

namespace ptx {

namespace {

enum : u8 { wide_register = 1, sign_extends = 2, strong = 4, orders = 8 };

template <class Bits>
u64 bits_at(std::byte const* from) {
  Bits v = 0;
  std::memcpy(&v, from, sizeof v);
  return v;
}

u64 element(std::byte const* from, std::size_t bytes, bool with_sign) {
  u64 v = bytes == 4   ? bits_at<u32>(from)
          : bytes == 2 ? bits_at<u16>(from)
          : bytes == 1 ? bits_at<u8>(from)
                       : bits_at<u64>(from);
  if (with_sign && bytes < 8) {
    unsigned const shift = static_cast<unsigned>(64 - 8 * bytes);
    v = static_cast<u64>(static_cast<s64>(v << shift) >> shift);
  }
  return v;
}

void load_elements(warp& w, instruction const& i, int lane, std::byte const* from) {
  std::size_t const bytes = size_of(i.t);
  for (unsigned k = 0; k < i.count; ++k) {
    u64 const v = element(from + k * bytes, bytes, (i.flags & sign_extends) != 0);
    if ((i.flags & wide_register) != 0) {
      w.lanes<u64>(i.op[k])[lane] = v;
    } else {
      w.lanes<u32>(i.op[k])[lane] = static_cast<u32>(v);
    }
  }
}

// Lanes that look again and again at places, while nobody changes anything, wait for others: they
// rest, as after a look at an mbarrier that has not turned over.
void rest_from_looking(warp& w, instruction const& i, u32 mask, u64 addresses) {
  constexpr u32 patience = 16;
  lookout const now{&i, mask, addresses, w.home->launch->progress};
  lookout& last = w.looked;
  bool const again = last.by == now.by && last.lanes == now.lanes &&
                     last.addresses == now.addresses && last.progress == now.progress;
  u32 const times = again ? last.times + 1 : 0;
  last = now;
  last.times = times;
  if (times >= patience) {
    w.rest(mask);
  }
}

void load(warp& w, instruction const& i, u32 mask) {
  u32 const bytes = static_cast<u32>(size_of(i.t) * i.count);
  touch const how{.read = true, .strong = (i.flags & strong) != 0};
  u64 addresses = 0;
  for_lanes(mask, [&](int l) {
    u64 const address = address_of(w, i, 0, l);
    addresses += address;
    region const r = locate(w, i, l, i.where, address, bytes, bytes, false);
    if (how.strong) {
      strong_access(w, l, address, how, (i.flags & orders) != 0, false);
    }
    note(w, i, l, r, bytes, how);
    load_elements(w, i, l, r.data);
  });
  if (how.strong) {
    rest_from_looking(w, i, mask, addresses);
  }
}

// Parameters are the launch's own bytes; offsets are fixed in the text.
void load_parameter(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    load_elements(w, i, l, reinterpret_cast<std::byte const*>(address_of(w, i, 0, l)));
  });
}

void store(warp& w, instruction const& i, u32 mask) {
  std::size_t const size = size_of(i.t);
  u32 const bytes = static_cast<u32>(size * i.count);
  touch const how{.write = true, .strong = (i.flags & strong) != 0};
  for_lanes(mask, [&](int l) {
    u64 const address = address_of(w, i, 0, l);
    region const r = locate(w, i, l, i.where, address, bytes, bytes, true);
    if (how.strong) {
      strong_access(w, l, address, how, false, (i.flags & orders) != 0);
    }
    note(w, i, l, r, bytes, how);
    for (unsigned k = 0; k < i.count; ++k) {
      s32 const at = i.op[1 + k];
      u64 const v = (i.flags & wide_register) != 0 ? w.lanes<u64>(at)[l] : u64{w.lanes<u32>(at)[l]};
      std::memcpy(r.data + k * size, &v, size);
    }
  });
}

} // namespace

space space_of(statement const& s);
space space_of(statement const& s) {
  return s.has("shared") || s.has("shared::cta") || s.has("shared::cluster") ? space::shared
         : s.has("global")                                                   ? space::global
         : s.has("const")                                                    ? space::constant
         : s.has("local")                                                    ? space::local
         : s.has("param") || s.has("param::entry")                           ? space::parameter
                                                                             : space::generic;
}

bool decode_access(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  instruction& i = d.now();
  bool const loads = name == "ld" || name == "ldu";
  if (!loads && name != "st") {
    if (name == "prefetch" || name == "prefetchu" || name == "applypriority" || name == "discard") {
      return finish(d, [](warp&, instruction const&, u32) {});
    }
    return false;
  }
  if (size_of(i.t) > 8 || i.t == type::none) {
    return false;
  }
  auto const& value = s.operands.at(loads ? 0 : 1);
  auto const& address = s.operands.at(loads ? 1 : 0);
  auto const first = split(std::string_view(value).substr(value[0] == '{' ? 1 : 0), ',').at(0);
  type const in_register = d.register_type(first.substr(0, first.find('}')));
  bool const wide = size_of(in_register == type::none ? i.t : in_register) == 8;
  bool const order = s.has("acquire") || s.has("release");
  bool const is_strong = order || s.has("relaxed") || s.has("volatile") || s.has("mmio");
  i.flags = static_cast<u8>((wide ? wide_register : 0) | (is_signed(i.t) ? sign_extends : 0) |
                            (is_strong ? strong : 0) | (order ? orders : 0));
  i.where = space_of(s);
  if (loads) {
    i.count = static_cast<u8>(d.list(value, wide ? type::b64 : type::b32, true));
    d.address(address);
    if (i.where == space::parameter && d.last_symbol() == space::local) {
      i.where = space::local;
    }
    return finish(d, i.where == space::parameter ? load_parameter : load);
  }
  d.address(address);
  if (i.where == space::parameter && d.last_symbol() == space::local) {
    i.where = space::local;
  }
  i.count = static_cast<u8>(d.list(value, i.t, false));
  return i.where == space::parameter ? false : finish(d, store);
}

} // namespace ptx
