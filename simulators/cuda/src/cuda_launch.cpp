// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Kernels: what nvcc's host code registers, and launches.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <cxxabi.h>

#include "kernels.hpp"
#include "work.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

struct kernel_name {
  std::string mangled{};
  std::string plain{}; //!< without return type and parameters
};

// nvcc's objects register before main.
std::map<void const*, kernel_name>& kernel_names() {
  static auto* const names = new std::map<void const*, kernel_name>;
  return *names;
}
std::map<void const*, std::string>& variable_names() {
  static auto* const names = new std::map<void const*, std::string>;
  return *names;
}
std::map<std::string, std::function<standin::detail::bound_kernel(void**)>>& binders() {
  static auto* const all =
    new std::map<std::string, std::function<standin::detail::bound_kernel(void**)>>;
  return *all;
}

std::string plain_name(char const* mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = text ? text : mangled;
  std::free(text);
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<')
      ++depth;
    if (name[i] == '>')
      --depth;
    if (name[i] == '(' && depth == 0 && name.compare(i, 11, "(anonymous ") != 0) {
      name.resize(i);
      break;
    }
  }
  if (name.starts_with("void "))
    name.erase(0, 5);
  return name;
}

// Layout of the container that fatbinary writes; it is undocumented, the magic number guards
// against a change.
struct fat_wrapper {
  int magic;
  int version;
  char const* data;
  void* unused;
};
constexpr std::uint32_t container_magic = 0xBA55ED50;
constexpr std::uint16_t ptx_entry = 1;

template <class T>
T read_at(char const* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void load_container(char const* data) {
  if (read_at<std::uint32_t>(data) != container_magic)
    return;
  char const* at = data + read_at<std::uint16_t>(data + 6);
  char const* const end = at + read_at<std::uint64_t>(data + 8);
  while (at < end) {
    auto const kind = read_at<std::uint16_t>(at);
    auto const header = read_at<std::uint32_t>(at + 4);
    auto const bytes = read_at<std::uint64_t>(at + 8);
    if (kind == ptx_entry) {
      std::string text(at + header, strnlen(at + header, bytes));
      if (text.find(".version") != std::string::npos)
        kernels::load(std::move(text));
    }
    at += header + bytes;
  }
}

struct launch_request {
  void const* function = nullptr;
  dim3 grid{}, block{};
  std::size_t shared = 0;
  cudaStream_t on = nullptr;
};

thread_local launch_request pushed;

bool configuration_fits(model& m,
                        launch_request const& r,
                        std::optional<kernels::facts> const& facts) {
  std::uint64_t const threads = std::uint64_t{r.block.x} * r.block.y * r.block.z;
  if (threads == 0 || threads > 1024 || r.grid.x == 0 || r.grid.y == 0 || r.grid.z == 0)
    return false;
  if (r.block.z > 64 || r.grid.y > 65535 || r.grid.z > 65535 || r.grid.x > 2147483647u)
    return false;
  if (facts && threads > facts->max_threads)
    return false;
  std::size_t const fixed = facts ? facts->static_shared_bytes : 0;
  auto const opted = m.shared_limits.find(r.function);
  std::size_t const limit = opted == m.shared_limits.end()
                              ? std::size_t{48} << 10
                              : static_cast<std::size_t>(opted->second) + fixed;
  return fixed + r.shared <= limit;
}

void check_peer_access(model& m, operation const& op, std::vector<memory_access> const& touched) {
  for (memory_access const& range : touched) {
    allocation const* const a = m.find_allocation(reinterpret_cast<void*>(range.begin));
    if (!a || a->kind != memory_kind::device || a->device == op.device)
      continue;
    if (!m.peers.contains({op.device, a->device}))
      m.report_finding(finding::misuse,
                       *op.what + " touches " + m.memory_name(range.begin) +
                         " without access of its device to the peer");
  }
}

std::function<std::vector<memory_access>(operation&)> host_body(launch_request const& r,
                                                                bound_kernel body) {
  return [r, body](operation&) {
    kernel_launch launch;
    launch.grid[0] = r.grid.x, launch.grid[1] = r.grid.y, launch.grid[2] = r.grid.z;
    launch.block[0] = r.block.x, launch.block[1] = r.block.y, launch.block[2] = r.block.z;
    launch.shared_bytes = r.shared;
    body(launch);
    std::vector<memory_access> touched;
    for (auto const& t : launch.touched) {
      auto const begin = reinterpret_cast<std::uintptr_t>(t.begin);
      touched.push_back({begin, begin + t.bytes, t.write});
    }
    return touched;
  };
}

// The interpreter knows addresses and mangled names; the model knows what they are called.
std::string readable(model& m, std::string text, std::string const& mangled) {
  std::string const prefix = "kernel " + mangled + ", ";
  if (text.starts_with(prefix))
    text.erase(0, prefix.size());
  std::string const marker = "global address 0x";
  auto const at = text.find(marker);
  if (at == std::string::npos)
    return text;
  std::size_t const digits = at + marker.size();
  std::size_t const end = std::min(text.find_first_not_of("0123456789abcdef", digits), text.size());
  auto const address = std::stoull(text.substr(digits, end - digits), nullptr, 16);
  if (m.find_allocation(reinterpret_cast<void*>(address)))
    text.replace(at, end - at, m.memory_name(address));
  return text;
}

std::function<std::vector<memory_access>(operation&)> ptx_body(model& m,
                                                               launch_request const& r,
                                                               std::string mangled,
                                                               kernels::facts const& facts,
                                                               void** values) {
  std::vector<std::vector<char>> arguments;
  for (std::size_t i = 0; i < facts.parameter_bytes.size(); ++i) {
    char const* const from = static_cast<char const*>(values[i]);
    arguments.emplace_back(from, from + facts.parameter_bytes[i]);
  }
  kernels::shape how;
  how.grid[0] = r.grid.x, how.grid[1] = r.grid.y, how.grid[2] = r.grid.z;
  how.block[0] = r.block.x, how.block[1] = r.block.y, how.block[2] = r.block.z;
  how.shared_bytes = r.shared;
  return [&m, mangled, how, arguments](operation& op) {
    nanoseconds const start = op.finished_at - op.cost;
    kernels::outcome seen =
      kernels::run(mangled, how, arguments, static_cast<std::uint64_t>(start.count()));
    // A kernel that looks at the time takes what it has seen pass.
    op.finished_at = std::max(op.finished_at,
                              start + nanoseconds(static_cast<nanoseconds::rep>(seen.nanoseconds)));
    if (seen.trapped)
      op.fails_with = cudaErrorLaunchFailure;
    for (std::string const& problem : seen.problems)
      m.report_finding(finding::kernel_error, *op.what + ": " + readable(m, problem, mangled));
    return std::move(seen.touched);
  };
}

cudaError_t launch(model& m, launch_request const& r, void** values) {
  auto const known = kernel_names().find(r.function);
  if (known == kernel_names().end())
    return cudaErrorInvalidDeviceFunction;
  kernel_name const& name = known->second;
  auto const [s, code] = work_stream(m, r.on);
  if (!s)
    return code;
  if (s->device != m.self().current_device) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " launches " + name.plain + " on " + s->label +
                       " of device " + std::to_string(s->device) + " while device " +
                       std::to_string(m.self().current_device) + " is current");
    return cudaErrorInvalidResourceHandle;
  }
  auto const binder = binders().find(name.plain);
  auto const facts = kernels::find(name.mangled);
  if (!configuration_fits(m, r, facts))
    return cudaErrorInvalidConfiguration;
  if (binder == binders().end() && !facts) {
    std::string const why = kernels::load_problems();
    m.report_finding(finding::misuse,
                     "nothing can run kernel " + name.plain + ": " +
                       (why.empty()
                          ? "no PTX of it for this device is in the program (build with "
                            "--no-compress and code=compute_XX) and register_kernel() was "
                            "not called for it"
                          : why));
    return cudaErrorInvalidDeviceFunction;
  }
  ++m.counts.kernels;
  auto op = m.make(operation_kind::kernel, *s, "kernel " + name.plain);
  auto body = binder != binders().end() ? host_body(r, binder->second(values))
                                        : ptx_body(m, r, name.mangled, *facts, values);
  op->run = [&m, body](operation& self) {
    auto touched = body(self);
    check_peer_access(m, self, touched);
    return touched;
  };
  submit_work(m, *s, op);
  return cudaSuccess;
}

} // namespace

namespace standin::detail {

void register_binder(std::string name, std::function<bound_kernel(void**)> bind) {
  binders()[std::move(name)] = std::move(bind);
}

} // namespace standin::detail

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  load_container(static_cast<fat_wrapper*>(wrapper)->data);
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 1;
}
void __cudaRegisterFunction(
  void**, char const* function, char*, char const* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  kernel_names()[function] = {name, plain_name(name)};
}
void __cudaRegisterVar(
  void**, char* host_variable, char*, char const* name, int, size_t, int, int) {
  variable_names()[host_variable] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* on) {
  pushed = {nullptr, grid, block, shared, on};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* on) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  std::memcpy(on, &pushed.on, sizeof pushed.on);
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* out, void const* function) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(
  cudaKernel_t kernel, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t on) {
  return cuda_call("cudaLaunchKernel", [&](model& m) {
    return launch(m, {kernel, grid, block, shared, on}, values);
  });
}
cudaError_t cudaLaunchKernel(
  void const* function, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t on) {
  return cuda_call("cudaLaunchKernel", [&](model& m) {
    return launch(m, {function, grid, block, shared, on}, values);
  });
}
cudaError_t
cudaLaunchKernelExC(cudaLaunchConfig_t const* how, void const* function, void** values) {
  return cuda_call("cudaLaunchKernelExC", [&](model& m) {
    return launch(
      m, {function, how->gridDim, how->blockDim, how->dynamicSmemBytes, how->stream}, values);
  });
}
cudaError_t cudaFuncSetAttribute(void const* function, cudaFuncAttribute which, int value) {
  return cuda_call("cudaFuncSetAttribute", [&](model& m) {
    if (!kernel_names().contains(function))
      return cudaErrorInvalidDeviceFunction;
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize)
      return cudaSuccess;
    if (value < 0 || value > m.shared_opt_in())
      return cudaErrorInvalidValue;
    m.shared_limits[function] = value;
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, void const* function) {
  return cuda_call("cudaFuncGetAttributes", [&](model& m) {
    auto const known = kernel_names().find(function);
    if (known == kernel_names().end())
      return cudaErrorInvalidDeviceFunction;
    std::memset(out, 0, sizeof *out);
    auto const facts = kernels::find(known->second.mangled);
    out->maxThreadsPerBlock =
      facts && m.config.reports_launch_bounds ? static_cast<int>(facts->max_threads) : 1024;
    out->sharedSizeBytes = facts ? facts->static_shared_bytes : 0;
    out->localSizeBytes = facts ? facts->local_bytes : 0;
    // As many as the launch bounds allow, which is what kernels with setmaxnreg get.
    out->numRegs = std::min(m.config.registers_per_thread,
                            65536 / (facts ? static_cast<int>(facts->max_threads) : 1024) / 8 * 8);
    out->binaryVersion = m.config.compute_major * 10 + m.config.compute_minor;
    out->ptxVersion = facts ? facts->target : out->binaryVersion;
    auto const opted = m.shared_limits.find(function);
    out->maxDynamicSharedSizeBytes = opted == m.shared_limits.end() ? 48 << 10 : opted->second;
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetName(char const** out, void const* function) {
  return cuda_call("cudaFuncGetName", [&](model&) {
    auto const known = kernel_names().find(function);
    if (known == kernel_names().end())
      return cudaErrorInvalidDeviceFunction;
    *out = known->second.mangled.c_str();
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
  int* out, void const* function, int block, size_t shared, unsigned) {
  return cuda_call("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", [&](model& m) {
    auto const known = kernel_names().find(function);
    if (known == kernel_names().end())
      return cudaErrorInvalidDeviceFunction;
    auto const facts = kernels::find(known->second.mangled);
    std::size_t const used = shared + (facts ? facts->static_shared_bytes : 0) + 1024;
    int const fit = static_cast<int>((static_cast<std::size_t>(m.shared_opt_in()) + 1024) / used);
    *out = std::max(0, std::min({32, 2048 / std::max(1, block), fit}));
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out,
                                                          void const* function,
                                                          int block,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, block, shared, 0);
}
cudaError_t cudaGetSymbolAddress(void** out, void const* symbol) {
  return cuda_call("cudaGetSymbolAddress", [&](model&) {
    auto const known = variable_names().find(symbol);
    *out = known == variable_names().end() ? nullptr : kernels::variable(known->second);
    return *out ? cudaSuccess : cudaErrorInvalidSymbol;
  });
}

} // extern "C"
