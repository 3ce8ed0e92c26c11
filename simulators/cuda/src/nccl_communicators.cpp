// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Life of NCCL communicators.
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nccl_group.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

constexpr unsigned config_magic = 0xcafebeef;

// NCCL takes what the environment says in place of the program's choice, if it is 0 or 1.
bool is_blocking(ncclConfig_t const* how) {
  if (char const* const forced = std::getenv("NCCL_COMM_BLOCKING"); forced && *forced) {
    long long const value = std::strtoll(forced, nullptr, 0);
    if (value == 0 || value == 1)
      return value == 1;
  }
  return !how || how->blocking == NCCL_CONFIG_UNDEF_INT || how->blocking;
}

// NCCL rounds the cap up to a power of two, and takes what the environment says in its place, if
// that is above 0.
int most_blocks(ncclConfig_t const* how) {
  constexpr int channels = 64;
  int cap = how && how->maxCTAs != NCCL_CONFIG_UNDEF_INT ? how->maxCTAs : channels;
  if (char const* const text = std::getenv("NCCL_MAX_CTAS"))
    if (int const forced = std::atoi(text); forced > 0)
      cap = forced;
  int blocks = 1;
  while (blocks < std::min(cap, channels))
    blocks *= 2;
  return blocks;
}

communicator& add_communicator(model& m,
                               std::shared_ptr<clique> const& members,
                               int rank,
                               ncclConfig_t const* how) {
  auto fresh = std::make_unique<communicator>();
  communicator& made = *fresh;
  made.members = members;
  made.rank = rank;
  made.device = m.self().current_device;
  made.blocking = is_blocking(how);
  made.blocks = most_blocks(how);
  made.by = &m.self();
  made.label = how && how->commName ? how->commName : members->label;
  m.communicators.emplace(fresh.get(), std::move(fresh));
  return made;
}

bool complete(clique const& members) {
  return std::all_of(
    members.ranks.begin(), members.ranks.end(), [](communicator* c) { return c != nullptr; });
}

std::string absent(clique const& members) {
  std::string text;
  for (std::size_t r = 0; r < members.ranks.size(); ++r)
    if (!members.ranks[r])
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
  return text;
}

bool duplicate_device(model& m, clique const& members, int device) {
  if (m.config.allow_shared_device)
    return false;
  for (communicator* other : members.ranks)
    if (other && other->device == device)
      return true;
  return false;
}

ncclResult_t join(model& m,
                  ncclComm_t* out,
                  std::shared_ptr<clique> const& members,
                  int rank,
                  ncclConfig_t const* how,
                  std::string const& function) {
  if (members->ranks[static_cast<std::size_t>(rank)]) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " joins " + members->label + " as rank " +
                       std::to_string(rank) + ", which another one is already");
    return ncclInvalidUsage;
  }
  if (duplicate_device(m, *members, m.self().current_device)) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " joins " + members->label + " with device " +
                       std::to_string(m.self().current_device) +
                       ", which another rank of it uses: duplicate GPU");
    return ncclInvalidUsage;
  }
  m.setting_up(function);
  communicator& made = add_communicator(m, members, rank, how);
  members->ranks[static_cast<std::size_t>(rank)] = &made;
  *out = reinterpret_cast<ncclComm_t>(&made);
  job j;
  j.what = m.describe(m.self()) + " in " + function + " of " + made.label;
  j.comm = &made;
  j.ready = [members] { return complete(*members); };
  j.act = [&made] { made.state = ncclSuccess; };
  j.waits_for = [members] { return absent(*members); };
  m.jobs.push_back(std::move(j));
  nccl_group& group = current_group(m);
  group.starting.push_back(&made);
  return group.depth > 0 ? ncclSuccess : end_group(m);
}

ncclResult_t init(model& m,
                  ncclComm_t* out,
                  int ranks,
                  ncclUniqueId const& id,
                  int rank,
                  ncclConfig_t const* how,
                  char const* function) {
  if (!out || ranks < 1 || rank < 0 || rank >= ranks)
    return ncclInvalidArgument;
  if (how && how->magic != config_magic)
    return ncclInvalidArgument;
  if (m.device_error(m.self().current_device) != 0) {
    ++current_group(m).depth; // which NCCL opens for itself, and does not close then
    return ncclUnhandledCudaError;
  }
  auto const at = m.cliques.find(id.internal);
  if (at == m.cliques.end()) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " calls " + function +
                       " with an id that ncclGetUniqueId did not make");
    return ncclInvalidArgument;
  }
  std::shared_ptr<clique> const members = at->second;
  if (members->ranks.empty()) {
    members->size = ranks;
    members->ranks.resize(static_cast<std::size_t>(ranks));
  }
  if (members->size != ranks) {
    m.report_finding(finding::mismatch,
                     m.describe(m.self()) + " joins " + members->label + " with " +
                       std::to_string(ranks) + " ranks, others with " +
                       std::to_string(members->size));
    return ncclInvalidArgument;
  }
  return join(m, out, members, rank, how, function);
}

// Splitting is a collective of the parent. Children keep no order with the parent or each
// other, unless they share its resources.
ncclResult_t
split(model& m, ncclComm_t handle, int color, int key, ncclComm_t* out, ncclConfig_t const* how) {
  communicator* parent = nullptr;
  if (ncclResult_t const wrong = usable(m, handle, parent))
    return wrong;
  std::uint64_t const number = parent->splits++;
  clique& all = *parent->members;
  all.splits[number][parent->rank] = {color, key};
  auto const arrived = [&all, number] {
    return static_cast<int>(all.splits[number].size()) == all.size;
  };
  if (!m.wait("ncclCommSplit of " + parent->label, arrived))
    return ncclSystemError;
  *out = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR)
    return ncclSuccess;
  std::vector<std::pair<int, int>> members;
  for (auto const& [rank, request] : all.splits[number])
    if (request.color == color)
      members.emplace_back(request.key, rank);
  std::sort(members.begin(), members.end());
  auto& child = all.children[{number, color}];
  if (!child) {
    child = std::make_shared<clique>();
    child->label =
      all.label + " split " + std::to_string(number) + " color " + std::to_string(color);
    child->size = static_cast<int>(members.size());
    child->ranks.resize(members.size());
  }
  auto const mine = std::find(members.begin(), members.end(), std::pair{key, parent->rank});
  auto const rank = static_cast<int>(mine - members.begin());
  ncclResult_t const code = join(m, out, child, rank, how, "ncclCommSplit");
  if (*out && how && how->splitShare == 1) {
    reinterpret_cast<communicator*>(*out)->lane = parent->lane;
    reinterpret_cast<communicator*>(*out)->proxy = parent->proxy;
  }
  return code;
}

bool quiet(model& m, communicator const& comm) {
  return std::none_of(
    m.live.begin(), m.live.end(), [&](auto const& e) { return e.second->comm == &comm; });
}

// The thread that would have to destroy the graph waits for that itself.
void check_graphs(model& m, communicator const& comm, std::string const& function) {
  if (comm.graph_references > 0 && !m.self().helper)
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " calls " + function + " of " + comm.label +
                       " while a graph that uses it exists; destroy graphs first");
}

// Outside of a group a communicator ends by itself, inside together with the others of the group.
ncclResult_t end_with_group(model& m, communicator& comm) {
  nccl_group& group = current_group(m);
  group.ending.push_back(&comm);
  return group.depth > 0 ? ncclSuccess : end_group(m);
}

communicator* alive(model& m, ncclComm_t handle) {
  communicator* const comm =
    find_object<communicator>(m, m.communicators, handle, "a communicator");
  if (comm && comm->destroyed) {
    m.report_finding(finding::misuse, m.describe(m.self()) + " ends " + comm->label + " twice");
    return nullptr;
  }
  return comm;
}

ncclResult_t finalize(model& m, ncclComm_t handle) {
  if (!handle)
    return ncclSuccess;
  communicator* const comm = alive(m, handle);
  if (!comm)
    return ncclInvalidArgument;
  if (comm->finalized || comm->revoked)
    return ncclInvalidUsage;
  if (comm->state != ncclSuccess)
    return comm->state;
  comm->finalized = true;
  auto const flushed = [&m, comm] { return quiet(m, *comm); };
  if (comm->blocking)
    return m.wait("ncclCommFinalize of " + comm->label, flushed) ? ncclSuccess : ncclSystemError;
  comm->state = ncclInProgress;
  job j;
  j.what = m.describe(m.self()) + " in ncclCommFinalize of " + comm->label;
  j.comm = comm;
  j.ready = flushed;
  j.act = [comm] { comm->state = ncclSuccess; };
  j.waits_for = [comm] { return "what " + comm->label + " still has on its device"; };
  m.jobs.push_back(std::move(j));
  return ncclInProgress;
}

// What a kernel has sent may lie in buffers of its own communicator until the other end takes it.
void check_buffers(model& m, communicator const& comm) {
  for (auto const& [ends, line] : comm.members->connections) {
    if (ends.first != comm.rank || line.buffered == 0)
      continue;
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " destroys " + comm.label + " before rank " +
                       std::to_string(ends.second) + " has received " +
                       std::to_string(line.buffered) + " bytes that it has sent");
  }
}

ncclResult_t destroy(model& m, ncclComm_t handle) {
  if (!handle)
    return ncclSuccess;
  communicator* const comm = alive(m, handle);
  if (!comm)
    return ncclInvalidArgument;
  check_graphs(m, *comm, "ncclCommDestroy");
  return end_with_group(m, *comm);
}

// Kernels read a flag that is set at once. What else the communicator had in progress is joined
// before: a launch that waits for room in a queue cannot be taken back.
ncclResult_t abort_now(model& m, ncclComm_t handle) {
  if (!handle)
    return ncclSuccess;
  communicator* const comm = alive(m, handle);
  if (!comm)
    return ncclInvalidArgument;
  comm->aborted = true;
  m.fail_communicator(*comm);
  auto const launched = [&m, comm] {
    return std::none_of(m.jobs.begin(), m.jobs.end(), [&](job const& j) { return j.comm == comm; });
  };
  if (!m.wait("ncclCommAbort of " + comm->label + ", which joins the launch of a group", launched))
    return ncclSystemError;
  m.fail_communicator(*comm);
  check_graphs(m, *comm, "ncclCommAbort");
  return end_with_group(m, *comm);
}

ncclResult_t asynchronous_error(model& m, ncclComm_t handle, ncclResult_t* out) {
  communicator* const comm =
    find_object<communicator>(m, m.communicators, handle, "a communicator");
  if (!comm || !out)
    return ncclInvalidArgument;
  if (comm->state == ncclInProgress && !m.deadlocked)
    m.poll([&] { return comm->state != ncclInProgress; });
  *out = m.deadlocked && comm->state <= ncclSuccess ? ncclSystemError : comm->state;
  return ncclSuccess;
}

} // namespace

// Each waits for its own stream, which is after its last kernel, and so after all that stood
// before that kernel; then for the graphs that use it.
ncclResult_t standin::detail::end_together(model& m, std::vector<communicator*> const& comms) {
  auto const idle = [&m](communicator* comm) {
    return m.device_error(comm->device) != 0 || (quiet(m, *comm) && comm->graph_references == 0);
  };
  auto const busy = std::find_if_not(comms.begin(), comms.end(), idle);
  if (busy != comms.end() &&
      !m.wait(
        "the end of " + (*busy)->label + ", after its last kernel and its graphs",
        [&] { return std::all_of(comms.begin(), comms.end(), idle); },
        *(*busy)->lane))
    return ncclSystemError;
  for (communicator* comm : comms) {
    if (!comm->aborted && m.device_error(comm->device) == 0)
      check_buffers(m, *comm);
    comm->destroyed = true;
  }
  return ncclSuccess;
}

namespace {

template <class Body>
ncclResult_t with(char const* function, ncclComm_t handle, Body body) {
  return nccl_call(function, [&](model& m) {
    communicator* const comm =
      find_object<communicator>(m, m.communicators, handle, "a communicator");
    return comm ? body(m, *comm) : ncclInvalidArgument;
  });
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* out) {
  return nccl_call("ncclGetVersion", [&](model&) {
    *out = NCCL_VERSION_CODE;
    return ncclSuccess;
  });
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
  return nccl_call("ncclGetUniqueId", [&](model& m) {
    std::memset(out, 0, sizeof *out);
    std::snprintf(out->internal,
                  sizeof out->internal,
                  "stand-in id %llu",
                  static_cast<unsigned long long>(m.next_unique_id));
    auto fresh = std::make_shared<clique>();
    fresh->label = "communicator " + std::to_string(m.next_unique_id++);
    m.cliques[out->internal] = std::move(fresh);
    return ncclSuccess;
  });
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId id, int rank) {
  return nccl_call("ncclCommInitRank", [&](model& m) {
    return init(m, out, ranks, id, rank, nullptr, "ncclCommInitRank");
  });
}
ncclResult_t
ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* how) {
  return nccl_call("ncclCommInitRankConfig", [&](model& m) {
    return init(m, out, ranks, id, rank, how, "ncclCommInitRankConfig");
  });
}
ncclResult_t ncclCommInitAll(ncclComm_t* out, int count, int const* devices) {
  return nccl_call("ncclCommInitAll", [&](model& m) {
    auto members = std::make_shared<clique>();
    members->label = "communicator " + std::to_string(m.next_unique_id++);
    members->size = count;
    members->ranks.resize(static_cast<std::size_t>(count));
    m.cliques[members->label] = members;
    int const before = m.self().current_device;
    ++current_group(m).depth;
    ncclResult_t code = ncclSuccess;
    for (int rank = 0; rank < count && code == ncclSuccess; ++rank) {
      m.self().current_device = devices ? devices[rank] : rank;
      code = join(m, &out[rank], members, rank, nullptr, "ncclCommInitAll");
    }
    m.self().current_device = before;
    --current_group(m).depth;
    if (code != ncclSuccess)
      current_group(m).error = code;
    return current_group(m).depth > 0 ? code : end_group(m);
  });
}
ncclResult_t
ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t* how) {
  return nccl_call("ncclCommSplit", [&](model& m) { return split(m, comm, color, key, out, how); });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return nccl_call("ncclCommFinalize", [&](model& m) { return finalize(m, comm); });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return nccl_call("ncclCommDestroy", [&](model& m) { return destroy(m, comm); });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return nccl_call("ncclCommAbort", [&](model& m) { return abort_now(m, comm); });
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* out) {
  return nccl_call("ncclCommGetAsyncError",
                   [&](model& m) { return asynchronous_error(m, comm, out); });
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* out) {
  return with("ncclCommCount", comm, [&](model&, communicator& c) {
    *out = c.members->size;
    return ncclSuccess;
  });
}
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* out) {
  return with("ncclCommCuDevice", comm, [&](model&, communicator& c) {
    *out = c.device;
    return ncclSuccess;
  });
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* out) {
  return with("ncclCommUserRank", comm, [&](model&, communicator& c) {
    *out = c.rank;
    return ncclSuccess;
  });
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void* begin, size_t, void** out) {
  return with("ncclCommRegister", comm, [&](model&, communicator&) {
    *out = begin;
    return ncclSuccess;
  });
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) {
  return with("ncclCommDeregister", comm, [](model&, communicator&) { return ncclSuccess; });
}
ncclResult_t ncclMemAlloc(void** out, size_t bytes) {
  return nccl_call("ncclMemAlloc", [&](model& m) {
    m.setting_up("ncclMemAlloc");
    *out = m.allocate(bytes, m.self().current_device, memory_kind::device);
    return ncclSuccess;
  });
}
ncclResult_t ncclMemFree(void* pointer) {
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
char const* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
  case ncclSuccess: return "no error";
  case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
  case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
  case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
  case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
  case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  case ncclRemoteError: return "remote process exited or there was a network error";
  case ncclInProgress: return "NCCL operation in progress";
  default: return "unknown result code";
  }
}
char const* ncclGetLastError(ncclComm_t) {
  return "";
}

} // extern "C"
