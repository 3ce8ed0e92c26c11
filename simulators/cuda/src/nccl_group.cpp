// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Groups, messages and collectives of NCCL, up to the moment their kernel is enqueued.
#include "nccl_group.hpp"

using namespace standin;
using namespace standin::detail;

namespace standin::detail {

nccl_group& current_group(model& m) {
  thread_local nccl_group mine;
  if (mine.epoch != m.epoch) {
    mine = {};
    mine.epoch = m.epoch;
  }
  return mine;
}

char const* part_function(part_kind kind) {
  switch (kind) {
  case part_kind::send: return "ncclSend";
  case part_kind::receive: return "ncclRecv";
  case part_kind::all_reduce: return "ncclAllReduce";
  case part_kind::broadcast: return "ncclBroadcast";
  case part_kind::reduce: return "ncclReduce";
  case part_kind::all_gather: return "ncclAllGather";
  case part_kind::reduce_scatter: return "ncclReduceScatter";
  }
  return "?";
}

std::string part_name(part const& p) {
  std::string text = part_function(p.kind);
  if (p.kind == part_kind::send)
    text += " to " + std::to_string(p.peer);
  if (p.kind == part_kind::receive)
    text += " from " + std::to_string(p.peer);
  return text;
}

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
  case ncclInt8:
  case ncclUint8:
  case ncclFloat8e4m3:
  case ncclFloat8e5m2: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64: return 8;
  default: return 4;
  }
}

namespace {

bool is_message(part const& p) {
  return p.kind == part_kind::send || p.kind == part_kind::receive;
}

void add_accesses(operation& op, part const& p, int ranks) {
  std::size_t const all = p.bytes * static_cast<std::size_t>(ranks);
  switch (p.kind) {
  case part_kind::send: op.accesses.push_back(reading(p.input, p.bytes)); break;
  case part_kind::receive: op.accesses.push_back(writing(p.output, p.bytes)); break;
  case part_kind::all_gather:
    op.accesses.push_back(reading(p.input, p.bytes));
    op.accesses.push_back(writing(p.output, all));
    break;
  case part_kind::reduce_scatter:
    op.accesses.push_back(reading(p.input, all));
    op.accesses.push_back(writing(p.output, p.bytes));
    break;
  case part_kind::broadcast:
    if (p.peer == op.comm->rank)
      op.accesses.push_back(reading(p.input, p.bytes));
    if (p.peer != op.comm->rank || p.input != p.output) // in place the root sends alone
      op.accesses.push_back(writing(p.output, p.bytes));
    break;
  case part_kind::reduce:
    op.accesses.push_back(reading(p.input, p.bytes));
    if (p.peer == op.comm->rank)
      op.accesses.push_back(writing(p.output, p.bytes));
    break;
  case part_kind::all_reduce:
    op.accesses.push_back(reading(p.input, p.bytes));
    op.accesses.push_back(writing(p.output, p.bytes));
    break;
  }
}

// Messages of one group progress independently, so none may touch what another one receives.
void check_group_overlap(model& m, operation const& op) {
  for (part const& a : op.parts) {
    if (a.kind != part_kind::receive)
      continue;
    for (part const& b : op.parts) {
      if (&a == &b || !is_message(b))
        continue;
      char const* const other = b.kind == part_kind::send ? b.input : b.output;
      bool const overlap = a.output < other + b.bytes && other < a.output + a.bytes;
      if (overlap)
        m.report_finding(
          b.kind == part_kind::send ? finding::overwrite_in_use : finding::write_conflict,
          part_name(a) + " and " + part_name(b) + " of one group share memory: " + *op.what);
    }
  }
}

operation_ptr make_kernel(model& m, communicator& comm, std::vector<grouped_call> const& calls) {
  std::string text;
  for (grouped_call const& c : calls)
    text += (text.empty() ? "" : " + ") + part_name(c.item);
  operation_ptr op = m.make(operation_kind::nccl, *calls.front().on, text + " on " + comm.label);
  op->comm = &comm;
  op->device = comm.device;
  for (grouped_call const& c : calls) {
    op->parts.push_back(c.item);
    add_accesses(*op, c.item, comm.members->size);
  }
  check_group_overlap(m, *op);
  return op;
}

std::vector<stream*> streams_of(std::vector<grouped_call> const& calls) {
  std::vector<stream*> all;
  for (grouped_call const& c : calls)
    if (std::find(all.begin(), all.end(), c.on) == all.end())
      all.push_back(c.on);
  return all;
}

// In a graph, what stands in for a stream of NCCL's own begins with a wait for what that stream did
// before the launch, once for each capture.
graph_node*& own_stream(model& m, stream& on, std::shared_ptr<operation_ptr> const& which) {
  graph_node*& last = on.capturing->own_streams[which];
  if (last)
    return last;
  auto const wait = m.make(operation_kind::wait, on, "a wait of NCCL for its own work");
  wait->own_stream = which;
  std::vector<graph_node*> const before = std::move(on.tail);
  on.tail.clear();
  last = add_node(on, wait);
  on.tail = before;
  return last;
}

// After each use an event is recorded there: the next use waits for it, the captured stream does
// not.
void record_own(model& m, stream& on, std::shared_ptr<operation_ptr> const& which) {
  auto const record = m.make(operation_kind::record, on, "an event of NCCL's own");
  record->own_stream = which;
  std::vector<graph_node*> const before = on.tail;
  on.capturing->own_streams[which] = add_node(on, record);
  on.tail = before;
}

// A node of the host, after the last one of the communicator and before its kernel.
void add_proxy(model& m, stream& on, communicator const& comm) {
  auto const proxy = m.make(operation_kind::host_function, on, "the proxy of " + comm.label);
  proxy->run = [&m](operation&) {
    ++m.counts.host_functions;
    return std::vector<memory_access>{};
  };
  graph_node* const last = own_stream(m, on, comm.proxy);
  std::vector<graph_node*> before = std::move(on.tail);
  on.tail = {last};
  before.push_back(add_node(on, proxy));
  record_own(m, on, comm.proxy);
  on.tail = std::move(before);
}

// One kernel per communicator and group. It waits for all streams of the group and for the
// communicator's previous kernel, and all streams of the group wait for it.
void launch_captured(model& m, operation_ptr const& op, std::vector<stream*> const& on) {
  stream& first = *on.front();
  for (std::size_t i = 1; i < on.size(); ++i)
    first.tail.insert(first.tail.end(), on[i]->tail.begin(), on[i]->tail.end());
  first.tail.push_back(own_stream(m, first, op->comm->lane));
  if (m.config.network)
    add_proxy(m, first, *op->comm);
  add_node(first, op);
  record_own(m, first, op->comm->lane);
  for (std::size_t i = 1; i < on.size(); ++i)
    on[i]->tail = first.tail;
}

void launch_now(model& m,
                communicator& comm,
                operation_ptr const& op,
                std::vector<stream*> const& on) {
  ++m.counts.nccl_kernels;
  for (std::size_t i = 1; i < on.size(); ++i)
    m.depend(*op, on[i]->last);
  m.depend(*op, *comm.lane);
  *comm.lane = op;
  m.enqueue(*on.front(), op);
  for (std::size_t i = 1; i < on.size(); ++i) {
    auto join = m.make(operation_kind::marker, *on[i], "end of an NCCL group");
    m.depend(*join, op);
    m.enqueue(*on[i], join);
  }
}

ncclResult_t launch(model& m, communicator& comm, std::vector<grouped_call> const& calls) {
  operation_ptr const op = make_kernel(m, comm, calls);
  std::vector<stream*> const on = streams_of(calls);
  if (on.front()->capturing)
    launch_captured(m, op, on);
  else
    launch_now(m, comm, op, on);
  return ncclSuccess;
}

using use_of_peer = std::tuple<int, int, bool>;

std::vector<use_of_peer> new_peers(communicator const& comm,
                                   std::vector<grouped_call> const& calls) {
  std::vector<use_of_peer> uses;
  for (grouped_call const& c : calls) {
    if (!is_message(c.item) || c.item.peer == comm.rank)
      continue;
    bool const sends = c.item.kind == part_kind::send;
    if (!comm.members->wanted.contains({comm.rank, c.item.peer, sends}) ||
        !comm.members->wanted.contains({c.item.peer, comm.rank, !sends}))
      uses.push_back({comm.rank, c.item.peer, sends});
  }
  return uses;
}

bool connected(communicator const& comm, std::vector<use_of_peer> const& uses) {
  for (auto const& [rank, peer, sends] : uses)
    if (!comm.members->wanted.contains({peer, rank, !sends}))
      return false;
  return true;
}

// What a call in progress is to do to the first operation that it enqueues.
struct injected_deed {
  bool stalls = false;
  int fails = 0;
  bool fails_comm = false;
};
injected_deed take_deed(host& from) {
  injected_deed const taken{from.stall_next, from.fail_next, from.fail_comm_next};
  from.stall_next = from.fail_comm_next = false;
  from.fail_next = 0;
  return taken;
}

// A launch that a thread of NCCL makes for the host that has ended the group.
std::function<void()>
launch_for(model& m, communicator& comm, std::vector<grouped_call> const& calls) {
  host* const by = &m.self();
  return [&m, &comm, calls, by, deed = take_deed(*by)] {
    thread_place& here = place();
    host* const caller = here.who;
    here.who = by;
    injected_deed const own = take_deed(*by);
    by->stall_next = deed.stalls, by->fail_next = deed.fails, by->fail_comm_next = deed.fails_comm;
    m.in_job = true;
    launch(m, comm, calls);
    m.in_job = false;
    by->stall_next = own.stalls, by->fail_next = own.fails, by->fail_comm_next = own.fails_comm;
    here.who = caller;
    if (comm.state == ncclInProgress)
      comm.state = ncclSuccess;
  };
}

// Without blocking, a group is launched later, by a thread of NCCL that waits for room in the
// device's queue; until then its calls are in progress.
void launch_later(model& m, communicator& comm, bool captured, std::function<void()> act) {
  comm.state = ncclInProgress;
  job j;
  j.what = "a thread of NCCL, in the launch of a group on " + comm.label;
  j.comm = &comm;
  j.launches = true;
  j.ready = [&m, &comm, captured] { return captured || m.queue_has_room(comm.device); };
  j.act = std::move(act);
  j.waits_for = [&comm] { return "room in the queue of device " + std::to_string(comm.device); };
  m.jobs.push_back(std::move(j));
}

// The first use of a peer is a handshake of the two hosts.
void connect(model& m,
             communicator& comm,
             std::vector<use_of_peer> const& uses,
             std::function<void()> then) {
  for (use_of_peer const& use : uses)
    comm.members->wanted.insert(use);
  m.setting_up("the first use of a peer on " + comm.label);
  job j;
  j.what = m.describe(m.self()) + " in the first use of a peer on " + comm.label;
  j.comm = &comm;
  j.ready = [&comm, uses] { return connected(comm, uses); };
  j.act = std::move(then);
  j.waits_for = [&comm, uses] {
    std::string text;
    for (auto const& [rank, peer, sends] : uses)
      if (!comm.members->wanted.contains({peer, rank, !sends}))
        text += (text.empty() ? "rank " : ", rank ") + std::to_string(peer) +
                (sends ? " to receive" : " to send");
    return text;
  };
  m.jobs.push_back(std::move(j));
}

ncclResult_t check_group(model& m, std::vector<grouped_call> const& calls) {
  std::size_t captured = 0;
  for (grouped_call const& c : calls)
    captured += c.on->capturing ? 1 : 0;
  if (captured != 0 && captured != calls.size()) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " groups NCCL calls of captured and of other streams");
    return ncclInvalidUsage;
  }
  for (grouped_call const& c : calls) {
    if (!is_message(c.item) || c.item.peer != c.comm->rank)
      continue;
    auto const halves = [&](part_kind kind) {
      return std::count_if(calls.begin(), calls.end(), [&](grouped_call const& o) {
        return o.comm == c.comm && o.item.kind == kind && o.item.peer == c.comm->rank;
      });
    };
    if (halves(part_kind::send) != halves(part_kind::receive)) {
      m.report_finding(finding::misuse,
                       m.describe(m.self()) +
                         " sends to itself without the matching receive in the same group");
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

} // namespace

ncclResult_t usable(model& m, ncclComm_t handle, communicator*& out) {
  if (!handle)
    return ncclInvalidArgument;
  out = find_object<communicator>(m, m.communicators, handle, "a communicator");
  if (!out)
    return ncclInvalidArgument;
  if (out->destroyed) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " uses " + out->label + " after its end");
    return ncclInvalidArgument;
  }
  if (out->revoked || out->finalized)
    return ncclInvalidUsage;
  if (m.deadlocked)
    return ncclSystemError;
  if (out->state == ncclInProgress) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " uses " + out->label +
                       " before its previous call has returned ncclSuccess");
    return ncclInvalidArgument;
  }
  return out->state;
}

ncclResult_t end_group(model& m) {
  nccl_group group = std::move(current_group(m));
  current_group(m) = {};
  current_group(m).epoch = m.epoch;
  if (!group.ending.empty())
    if (ncclResult_t const stuck = end_together(m, group.ending))
      return stuck;
  if (group.error != ncclSuccess)
    return group.error;
  if (ncclResult_t const wrong = check_group(m, group.calls))
    return wrong;

  std::vector<communicator*> order = group.starting;
  std::vector<communicator*> used;
  for (grouped_call const& c : group.calls)
    if (std::find(used.begin(), used.end(), c.comm) == used.end())
      used.push_back(c.comm);
  std::vector<communicator*> waiting = group.starting;
  bool all_blocking = true;
  for (communicator* comm : group.starting)
    all_blocking = all_blocking && comm->blocking;
  for (communicator* comm : used) {
    std::vector<grouped_call> mine;
    for (grouped_call const& c : group.calls)
      if (c.comm == comm)
        mine.push_back(c);
    auto const uses = m.config.lazy_connect ? new_peers(*comm, mine) : std::vector<use_of_peer>{};
    all_blocking = all_blocking && comm->blocking;
    bool const captured = mine.front().on->capturing != nullptr;
    if (uses.empty() && comm->blocking) {
      launch(m, *comm, mine);
      continue;
    }
    waiting.push_back(comm);
    if (uses.empty()) {
      launch_later(m, *comm, captured, launch_for(m, *comm, mine));
      continue;
    }
    comm->state = ncclInProgress;
    if (comm->blocking) {
      connect(m, *comm, uses, [comm] { comm->state = ncclSuccess; });
      if (!m.wait("ncclGroupEnd, connecting " + comm->label,
                  [comm] { return comm->state != ncclInProgress || comm->aborted; }))
        return ncclSystemError;
      if (comm->state != ncclSuccess)
        return comm->state;
      launch(m, *comm, mine);
    } else {
      connect(m, *comm, uses, [&m, comm, captured, act = launch_for(m, *comm, mine)] {
        launch_later(m, *comm, captured, act);
      });
    }
  }
  if (all_blocking) {
    auto const settled = [&] {
      return std::all_of(waiting.begin(), waiting.end(), [](communicator* comm) {
        return comm->state != ncclInProgress;
      });
    };
    if (!m.wait("the creation of a communicator", settled))
      return ncclSystemError;
    for (communicator* comm : waiting)
      if (comm->state != ncclSuccess)
        return comm->state;
    return ncclSuccess;
  }
  return waiting.empty() ? ncclSuccess : ncclInProgress;
}

} // namespace standin::detail

namespace {

struct request {
  part_kind kind;
  void const* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t reduction = ncclSum;
  int peer = -1;
};

ncclResult_t
check_request(model& m, communicator const& comm, request const& r, std::size_t bytes) {
  bool const needs_peer = r.kind == part_kind::send || r.kind == part_kind::receive ||
                          r.kind == part_kind::broadcast || r.kind == part_kind::reduce;
  if (needs_peer && (r.peer < 0 || r.peer >= comm.members->size))
    return ncclInvalidArgument;
  if (r.type < 0 || r.type >= ncclNumTypes || r.reduction < 0 || r.reduction >= ncclNumOps)
    return ncclInvalidArgument;
  bool const reads = r.kind != part_kind::receive;
  bool const writes = r.kind != part_kind::send;
  if (bytes && ((reads && !r.input) || (writes && !r.output)))
    return ncclInvalidArgument;
  std::size_t const all = bytes * static_cast<std::size_t>(comm.members->size);
  std::string const function = part_function(r.kind);
  bool ok = true;
  if (r.input && bytes)
    ok = inside(m, r.input, r.kind == part_kind::reduce_scatter ? all : bytes, function);
  if (r.output && bytes)
    ok = inside(m, r.output, r.kind == part_kind::all_gather ? all : bytes, function) && ok;
  if (!ok)
    return ncclInvalidArgument;
  bool const pinned_or_device =
    (!r.input || m.find_allocation(r.input)) && (!r.output || m.find_allocation(r.output));
  if (bytes && !pinned_or_device) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " calls " + function +
                       " on memory no device can reach");
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclResult_t add(model& m, ncclComm_t handle, cudaStream_t on, request const& r) {
  nccl_group& group = current_group(m);
  auto fail = [&](ncclResult_t code) {
    if (group.depth > 0)
      group.error = code;
    return code;
  };
  communicator* comm = nullptr;
  if (ncclResult_t const wrong = usable(m, handle, comm))
    return fail(wrong);
  std::size_t const bytes = r.count * size_of(r.type);
  if (ncclResult_t const wrong = check_request(m, *comm, r, bytes))
    return fail(wrong);
  auto const [s, code] = work_stream(m, on);
  if (!s)
    return fail(ncclUnhandledCudaError);
  if (s->device != comm->device) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " calls " + part_function(r.kind) + " on " + s->label +
                       " of device " + std::to_string(s->device) + " for " + comm->label +
                       " of device " + std::to_string(comm->device));
    return fail(ncclInvalidArgument);
  }
  part item;
  item.kind = r.kind;
  item.input = static_cast<char const*>(r.input);
  item.output = static_cast<char*>(r.output);
  item.count = r.count;
  item.bytes = bytes;
  item.type = r.type;
  item.reduction = r.reduction;
  item.peer = r.peer;
  group.calls.push_back({comm, s, item});
  return group.depth > 0 ? ncclSuccess : end_group(m);
}

} // namespace

extern "C" {

ncclResult_t ncclGroupStart() {
  return nccl_call("ncclGroupStart", [](model& m) {
    ++current_group(m).depth;
    return ncclSuccess;
  });
}
ncclResult_t ncclGroupEnd() {
  return nccl_call("ncclGroupEnd", [](model& m) {
    nccl_group& group = current_group(m);
    if (group.depth == 0) {
      m.report_finding(finding::misuse,
                       m.describe(m.self()) + " calls ncclGroupEnd without ncclGroupStart");
      return ncclInvalidUsage;
    }
    if (--group.depth > 0)
      return ncclSuccess;
    return end_group(m);
  });
}
ncclResult_t ncclSend(
  void const* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t on) {
  return nccl_call("ncclSend", [&](model& m) {
    return add(m, comm, on, {part_kind::send, from, nullptr, count, type, ncclSum, peer});
  });
}
ncclResult_t
ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t on) {
  return nccl_call("ncclRecv", [&](model& m) {
    return add(m, comm, on, {part_kind::receive, nullptr, to, count, type, ncclSum, peer});
  });
}
ncclResult_t ncclAllReduce(void const* from,
                           void* to,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t how,
                           ncclComm_t comm,
                           cudaStream_t on) {
  return nccl_call("ncclAllReduce", [&](model& m) {
    return add(m, comm, on, {part_kind::all_reduce, from, to, count, type, how, -1});
  });
}
ncclResult_t ncclBroadcast(void const* from,
                           void* to,
                           size_t count,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t on) {
  return nccl_call("ncclBroadcast", [&](model& m) {
    return add(m, comm, on, {part_kind::broadcast, from, to, count, type, ncclSum, root});
  });
}
ncclResult_t ncclReduce(void const* from,
                        void* to,
                        size_t count,
                        ncclDataType_t type,
                        ncclRedOp_t how,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t on) {
  return nccl_call("ncclReduce", [&](model& m) {
    return add(m, comm, on, {part_kind::reduce, from, to, count, type, how, root});
  });
}
ncclResult_t ncclAllGather(
  void const* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t on) {
  return nccl_call("ncclAllGather", [&](model& m) {
    return add(m, comm, on, {part_kind::all_gather, from, to, count, type, ncclSum, -1});
  });
}
ncclResult_t ncclReduceScatter(void const* from,
                               void* to,
                               size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t how,
                               ncclComm_t comm,
                               cudaStream_t on) {
  return nccl_call("ncclReduceScatter", [&](model& m) {
    return add(m, comm, on, {part_kind::reduce_scatter, from, to, count, type, how, -1});
  });
}

} // extern "C"
