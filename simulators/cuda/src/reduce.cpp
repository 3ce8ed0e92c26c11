// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "reduce.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

namespace standin::detail::reduce {

namespace {

template <class T>
struct plain {
  using stored = T;
  using computed = T;
  static computed load(stored value) { return value; }
  static stored store(computed value) { return value; }
};
struct half {
  using stored = __half;
  using computed = float;
  static computed load(stored value) { return __half2float(value); }
  static stored store(computed value) { return __float2half_rn(value); }
};
struct brain {
  using stored = __nv_bfloat16;
  using computed = float;
  static computed load(stored value) { return __bfloat162float(value); }
  static stored store(computed value) { return __float2bfloat16_rn(value); }
};

template <class T>
T combine(T a, T b, ncclRedOp_t how) {
  switch (how) {
  case ncclProd: return static_cast<T>(a * b);
  case ncclMax: return std::max(a, b);
  case ncclMin: return std::min(a, b);
  default: return static_cast<T>(a + b);
  }
}

template <class Number>
std::vector<char>
fold(std::vector<part const*> const& parts, std::size_t first, std::size_t count) {
  using stored = typename Number::stored;
  using computed = typename Number::computed;
  std::vector<char> out(count * sizeof(stored));
  for (std::size_t i = 0; i < count; ++i) {
    computed sum{};
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      stored value;
      std::memcpy(&value, parts[rank]->input + (first + i) * sizeof(stored), sizeof value);
      computed const next = Number::load(value);
      sum = rank == 0 ? next
                      : Number::load(Number::store(combine(sum, next, parts.front()->reduction)));
    }
    if (parts.front()->reduction == ncclAvg)
      sum = static_cast<computed>(sum / static_cast<computed>(parts.size()));
    stored const result = Number::store(sum);
    std::memcpy(out.data() + i * sizeof(stored), &result, sizeof result);
  }
  return out;
}

std::vector<char>
fold(std::vector<part const*> const& parts, std::size_t first, std::size_t count) {
  switch (parts.front()->type) {
  case ncclInt8: return fold<plain<std::int8_t>>(parts, first, count);
  case ncclUint8: return fold<plain<std::uint8_t>>(parts, first, count);
  case ncclInt32: return fold<plain<std::int32_t>>(parts, first, count);
  case ncclUint32: return fold<plain<std::uint32_t>>(parts, first, count);
  case ncclInt64: return fold<plain<std::int64_t>>(parts, first, count);
  case ncclUint64: return fold<plain<std::uint64_t>>(parts, first, count);
  case ncclFloat16: return fold<half>(parts, first, count);
  case ncclBfloat16: return fold<brain>(parts, first, count);
  case ncclFloat64: return fold<plain<double>>(parts, first, count);
  default: return fold<plain<float>>(parts, first, count);
  }
}

std::vector<char> bytes_of(part const& p) {
  return {p.input, p.input + p.bytes};
}

} // namespace

std::vector<std::vector<char>> results(std::vector<part const*> const& parts) {
  part const& first = *parts.front();
  std::vector<std::vector<char>> all(parts.size());
  std::vector<char> gathered;
  if (first.kind == part_kind::all_gather)
    for (part const* p : parts)
      gathered.insert(gathered.end(), p->input, p->input + p->bytes);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    switch (first.kind) {
    case part_kind::all_reduce: all[rank] = fold(parts, 0, first.count); break;
    case part_kind::reduce_scatter: all[rank] = fold(parts, rank * first.count, first.count); break;
    case part_kind::broadcast:
      all[rank] = bytes_of(*parts[static_cast<std::size_t>(first.peer)]);
      break;
    case part_kind::reduce:
      if (static_cast<int>(rank) == first.peer)
        all[rank] = fold(parts, 0, first.count);
      break;
    case part_kind::all_gather: all[rank] = gathered; break;
    default: break;
    }
  }
  return all;
}

} // namespace standin::detail::reduce
