// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Device code is executed by the PTX interpreter.
#include <cuda.h>

#include <cstring>
#include <simulators/ptx/launch.hpp>
#include <simulators/ptx/memory.hpp>
#include <simulators/ptx/tensor_map.hpp>

#include "call.hpp"
#include "kernels.hpp"
#include "model.hpp"

namespace standin::detail::kernels {

namespace {

struct source {
  std::string text{};
  int target = 0;     //!< 80 of sm_80
  bool exact = false; //!< sm_90a runs on 9.0 only
  std::unique_ptr<ptx::module> parsed{};
  std::string problem{};
};

struct engine {
  ptx::memory memory{};
  std::vector<source> sources{};
  std::map<std::string, std::pair<source*, ptx::kernel_facts const*>> kernels{};
  int indexed_for = -1; //!< compute capability the index was made for
};

// Fat binaries register before main, so this is made on first use and never destroyed.
engine& the_engine() {
  static auto* const only = new engine;
  return *only;
}

void parse_target(source& from) {
  auto const at = from.text.find(".target sm_");
  if (at == std::string::npos)
    return;
  std::size_t digit = at + 11;
  for (; digit < from.text.size() && std::isdigit(static_cast<unsigned char>(from.text[digit]));
       ++digit)
    from.target = from.target * 10 + (from.text[digit] - '0');
  from.exact = digit < from.text.size() && from.text[digit] == 'a';
}

// Of several architectures in one program the highest that the device can run is taken.
void index_for(engine& e, int capability) {
  if (e.indexed_for == capability)
    return;
  e.indexed_for = capability;
  e.kernels.clear();
  std::map<std::string, int> best;
  for (source& s : e.sources) {
    if (s.exact ? s.target != capability : s.target > capability)
      continue;
    if (!s.parsed && s.problem.empty()) {
      try {
        s.parsed = std::make_unique<ptx::module>(s.text, e.memory);
      } catch (std::exception const& wrong) {
        s.problem = wrong.what();
      }
    }
    if (!s.parsed)
      continue;
    for (std::string const& name : s.parsed->kernels()) {
      int const rank = 2 * s.target + (s.exact ? 1 : 0);
      if (best.contains(name) && best[name] >= rank)
        continue;
      best[name] = rank;
      e.kernels[name] = {&s, &s.parsed->facts(name)};
    }
  }
}

engine& indexed() {
  engine& e = the_engine();
  configuration const& how = model::instance().config;
  index_for(e, how.compute_major * 10 + how.compute_minor);
  return e;
}

} // namespace

void load(std::string ptx) {
  engine& e = the_engine();
  source fresh;
  fresh.text = std::move(ptx);
  parse_target(fresh);
  e.sources.push_back(std::move(fresh));
  e.indexed_for = -1;
}

std::optional<facts> find(std::string const& mangled) {
  engine& e = indexed();
  auto const at = e.kernels.find(mangled);
  if (at == e.kernels.end())
    return std::nullopt;
  ptx::kernel_facts const& known = *at->second.second;
  return facts{known.parameter_bytes,
               known.static_shared_bytes,
               known.local_bytes,
               known.max_threads,
               at->second.first->target};
}

std::string load_problems() {
  std::string text;
  for (source const& s : the_engine().sources)
    if (!s.problem.empty())
      text += (text.empty() ? "" : "; ") + s.problem;
  return text;
}

outcome run(std::string const& mangled,
            shape const& how,
            std::vector<std::vector<char>> const& arguments,
            std::uint64_t global_time) {
  engine& e = indexed();
  outcome seen;
  std::vector<std::vector<char>> copies = arguments;
  std::vector<void*> pointers;
  for (std::vector<char>& value : copies)
    pointers.push_back(value.data());
  pointers.push_back(nullptr);
  try {
    ptx::result const result = ptx::launch(*e.kernels.at(mangled).first->parsed,
                                           mangled,
                                           {how.grid[0], how.grid[1], how.grid[2]},
                                           {how.block[0], how.block[1], how.block[2]},
                                           how.shared_bytes,
                                           pointers.data(),
                                           {.global_time = global_time});
    for (ptx::report const& r : result.reports) {
      seen.problems.push_back(r.text);
      seen.trapped = seen.trapped || r.kind == ptx::fault::trap;
    }
    seen.nanoseconds = result.counts.nanoseconds;
    for (ptx::range const& r : result.reads)
      seen.touched.push_back({r.begin, r.end, false});
    for (ptx::range const& r : result.writes)
      seen.touched.push_back({r.begin, r.end, true});
  } catch (std::exception const& wrong) {
    seen.problems.push_back(wrong.what());
  }
  return seen;
}

void* variable(std::string const& mangled) {
  for (source const& s : indexed().sources)
    if (s.parsed)
      if (void* const address = s.parsed->find_variable(mangled).address)
        return address;
  return nullptr;
}

void add_memory(void const* begin, std::size_t bytes, bool initialised) {
  if (bytes != 0)
    the_engine().memory.add(begin, bytes, initialised);
}

void remove_memory(void const* begin) {
  if (the_engine().memory.find(reinterpret_cast<std::uintptr_t>(begin)))
    the_engine().memory.remove(begin);
}

void mark(void const* begin, std::size_t bytes, bool initialised) {
  the_engine().memory.mark(begin, bytes, initialised);
}

namespace {

struct element {
  unsigned bytes;
  ptx::number kind;
};

element element_of(CUtensorMapDataType type) {
  switch (type) {
  case CU_TENSOR_MAP_DATA_TYPE_UINT8: return {1, ptx::number::unsigned_integer};
  case CU_TENSOR_MAP_DATA_TYPE_UINT16: return {2, ptx::number::unsigned_integer};
  case CU_TENSOR_MAP_DATA_TYPE_UINT32: return {4, ptx::number::unsigned_integer};
  case CU_TENSOR_MAP_DATA_TYPE_INT32: return {4, ptx::number::signed_integer};
  case CU_TENSOR_MAP_DATA_TYPE_UINT64: return {8, ptx::number::unsigned_integer};
  case CU_TENSOR_MAP_DATA_TYPE_INT64: return {8, ptx::number::signed_integer};
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return {2, ptx::number::f16};
  case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return {2, ptx::number::bf16};
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return {4, ptx::number::f32};
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return {8, ptx::number::f64};
  default: return {0, ptx::number::unsigned_integer};
  }
}

unsigned swizzle_bytes(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
  case CU_TENSOR_MAP_SWIZZLE_32B: return 32;
  case CU_TENSOR_MAP_SWIZZLE_64B: return 64;
  case CU_TENSOR_MAP_SWIZZLE_128B: return 128;
  default: return 0;
  }
}

CUresult encode(CUtensorMap* out,
                CUtensorMapDataType type,
                cuuint32_t rank,
                void* base,
                cuuint64_t const* size,
                cuuint64_t const* stride,
                cuuint32_t const* box,
                cuuint32_t const* element_stride,
                CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill fill) {
  call const counted("cuTensorMapEncodeTiled");
  element const each = element_of(type);
  if (each.bytes == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  ptx::tile_shape shape;
  shape.rank = rank;
  shape.element_bytes = each.bytes;
  shape.elements = each.kind;
  shape.base = base;
  std::vector<std::uint64_t> const sizes(size, size + rank);
  std::vector<std::uint64_t> const strides(stride, stride + (rank > 0 ? rank - 1 : 0));
  shape.size = sizes.data();
  shape.stride = strides.data();
  shape.box = box;
  shape.element_stride = element_stride;
  shape.swizzle_bytes = swizzle_bytes(swizzle);
  shape.nan_fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  ptx::tensor_map map;
  std::string const problem = ptx::encode_tiled(map, shape);
  if (!problem.empty()) {
    model::instance().report_finding(finding::misuse, "cuTensorMapEncodeTiled: " + problem);
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

} // namespace

void* tensor_map_encoder() {
  return reinterpret_cast<void*>(&encode);
}

} // namespace standin::detail::kernels
