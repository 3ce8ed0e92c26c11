// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief The host side of tensor copies: what a stand-in of cuTensorMapEncodeTiled writes.

#include <cstdint>
#include <string>

namespace ptx {

//! @brief A tiled tensor map, kept in the 128 opaque bytes of a CUtensorMap.
struct tensor_map {
  std::uint64_t base = 0;         //!< global address
  std::uint64_t stride[5] = {};   //!< bytes per step of each dimension; [0] = element size
  std::uint32_t size[5] = {};     //!< elements of each dimension
  std::uint16_t box[5] = {};      //!< elements of the box in each dimension
  std::uint8_t rank = 0;          //!< 1 ... 5
  std::uint8_t element_bytes = 0; //!< 1, 2, 4, 8
  std::uint8_t swizzle_bytes = 0; //!< 0 (none), 32, 64, 128
  std::uint8_t float_kind = 0;    //!< numbers for reductions: ptx::number
  std::uint8_t nan_fill = 0;      //!< 1: outside the tensor reads give NaN, not zero
  std::uint32_t mark = 0;         //!< tensor_map_mark if encoded
};
inline constexpr std::uint32_t tensor_map_mark = 0x50414d54;
static_assert(sizeof(tensor_map) <= 128);

//! @brief What the elements of a tensor are, as far as reductions and NaN fill care.
enum class number : std::uint8_t { unsigned_integer, signed_integer, f16, bf16, f32, f64 };

//! @brief Arguments of encode_tiled; strides are in bytes and start with dimension 1.
struct tile_shape {
  unsigned rank = 0;
  unsigned element_bytes = 0;
  number elements = number::unsigned_integer;
  void* base = nullptr;
  std::uint64_t const* size = nullptr;
  std::uint64_t const* stride = nullptr;
  std::uint32_t const* box = nullptr;
  std::uint32_t const* element_stride = nullptr; //!< nullptr: all 1; other steps are refused
  unsigned swizzle_bytes = 0;
  bool nan_fill = false;
};

//! @brief Fills a tensor map after the checks of cuTensorMapEncodeTiled.
//! @return empty, or the sentence that says which rule the arguments break
std::string encode_tiled(tensor_map& out, tile_shape const& in);

} // namespace ptx
