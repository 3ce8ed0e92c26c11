// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tensor_map.hpp"

namespace ptx {

namespace {

std::string dimension_error(tile_shape const& in, unsigned d) {
  std::string const where = " of dimension " + std::to_string(d) + " ";
  if (in.size[d] == 0 || in.size[d] > (std::uint64_t{1} << 32)) {
    return "the size" + where + "must be 1 ... 2^32";
  }
  if (in.box[d] == 0 || in.box[d] > 256) {
    return "the box size" + where + "must be 1 ... 256";
  }
  if (in.element_stride != nullptr && in.element_stride[d] != 1) {
    return "the element stride" + where + "must be 1 in this implementation";
  }
  if (d > 0 && (in.stride[d - 1] % 16 != 0 || in.stride[d - 1] >= (std::uint64_t{1} << 40))) {
    return "the stride" + where + "must be a multiple of 16 bytes below 2^40";
  }
  return {};
}

} // namespace

std::string encode_tiled(tensor_map& out, tile_shape const& in) {
  if (in.rank == 0 || in.rank > 5) {
    return "the rank must be 1 ... 5";
  }
  if (reinterpret_cast<std::uintptr_t>(in.base) % 16 != 0) {
    return "the global address must be a multiple of 16";
  }
  for (unsigned d = 0; d < in.rank; ++d) {
    if (auto error = dimension_error(in, d); !error.empty()) {
      return error;
    }
  }
  std::uint64_t const inner = std::uint64_t{in.box[0]} * in.element_bytes;
  if (inner % 16 != 0) {
    return "the inner box size must be a multiple of 16 bytes";
  }
  if (in.swizzle_bytes != 0 && inner > in.swizzle_bytes) {
    return "the inner box size must not exceed the swizzle span";
  }
  out = tensor_map{};
  out.base = reinterpret_cast<std::uintptr_t>(in.base);
  out.rank = static_cast<std::uint8_t>(in.rank);
  out.element_bytes = static_cast<std::uint8_t>(in.element_bytes);
  out.swizzle_bytes = static_cast<std::uint8_t>(in.swizzle_bytes);
  out.float_kind = static_cast<std::uint8_t>(in.elements);
  out.nan_fill = in.nan_fill ? 1 : 0;
  out.mark = tensor_map_mark;
  out.stride[0] = in.element_bytes;
  for (unsigned d = 0; d < 5; ++d) {
    out.size[d] = d < in.rank ? static_cast<std::uint32_t>(in.size[d]) : 1;
    out.box[d] = static_cast<std::uint16_t>(d < in.rank ? in.box[d] : 1);
    if (d > 0 && d < in.rank) {
      out.stride[d] = in.stride[d - 1];
    }
  }
  return {};
}

} // namespace ptx
