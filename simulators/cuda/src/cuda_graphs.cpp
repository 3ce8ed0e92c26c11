// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stream capture and graphs of the CUDA runtime.
#include "work.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

void release_graph(graph* g) {
  for (auto const& node : g->nodes)
    if (node->prototype->comm)
      --node->prototype->comm->graph_references;
  delete g;
}

void close_capture(model& m, std::shared_ptr<capture> const& open) {
  for (stream* s : open->streams) {
    s->capturing = nullptr;
    s->tail.clear();
  }
  std::erase(m.captures, open);
}

cudaError_t begin_capture(model& m, cudaStream_t handle, cudaStreamCaptureMode mode) {
  auto const [s, code] = work_stream(m, handle);
  if (!s)
    return code;
  if (s->legacy)
    return cudaErrorStreamCaptureUnsupported;
  if (s->capturing)
    return forbid_in_capture(*s);
  auto fresh = std::make_shared<capture>();
  fresh->into = std::shared_ptr<graph>(new graph, release_graph);
  fresh->into->label = "graph " + std::to_string(m.next_graph++);
  fresh->origin = s;
  fresh->by = &m.self();
  fresh->mode = mode;
  fresh->id = ++m.next_capture;
  fresh->streams.insert(s);
  s->capturing = fresh;
  s->tail.clear();
  m.captures.push_back(fresh);
  return cudaSuccess;
}

bool everything_joined(capture const& open) {
  std::set<graph_node const*> reached;
  std::vector<graph_node const*> todo(open.origin->tail.begin(), open.origin->tail.end());
  while (!todo.empty()) {
    graph_node const* const node = todo.back();
    todo.pop_back();
    if (!reached.insert(node).second)
      continue;
    todo.insert(todo.end(), node->after.begin(), node->after.end());
  }
  // What NCCL records for itself is joined to nothing, and CUDA does not ask for it.
  return std::all_of(open.into->nodes.begin(), open.into->nodes.end(), [&](auto const& node) {
    return node->prototype->own_stream || reached.contains(node.get());
  });
}

cudaError_t end_capture(model& m, cudaStream_t handle, cudaGraph_t* out) {
  *out = nullptr;
  if (!m.streams.contains(handle))
    return cudaErrorInvalidResourceHandle;
  stream& s = *m.streams.at(handle);
  std::shared_ptr<capture> const open = s.capturing;
  if (!open)
    return cudaErrorIllegalState;
  if (open->origin != &s) {
    open->invalid = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  if (open->by != &m.self() && open->mode != cudaStreamCaptureModeRelaxed) {
    open->invalid = true;
    return cudaErrorStreamCaptureWrongThread;
  }
  bool const joined = everything_joined(*open);
  close_capture(m, open);
  std::shared_ptr<graph> const made = std::move(open->into); // events remember the capture
  if (open->invalid)
    return cudaErrorStreamCaptureInvalidated;
  if (!joined) {
    m.report_finding(finding::misuse,
                     m.describe(m.self()) + " ends the capture of " + s.label +
                       " while work of another captured stream is not joined to it");
    return cudaErrorStreamCaptureUnjoined;
  }
  *out = reinterpret_cast<cudaGraph_t>(made.get());
  m.graphs.emplace(made.get(), made);
  return cudaSuccess;
}

// Nodes that follow each other share an agent, so that clocks stay as short as the graph is wide.
std::vector<int> assign_agents(model& m, graph const& g) {
  std::vector<int> agents;
  std::set<int> open;
  for (auto const& node : g.nodes) {
    int mine = -1;
    for (graph_node const* before : node->after)
      if (mine < 0 && open.contains(agents[before->index]))
        mine = agents[before->index];
    if (mine >= 0) {
      // Taken over only from the last node of its chain.
      for (std::size_t i = agents.size(); i-- > 0;) {
        if (agents[i] != mine)
          continue;
        bool follows = false;
        for (graph_node const* before : node->after)
          follows = follows || before->index == i;
        if (!follows)
          mine = -1;
        break;
      }
    }
    if (mine < 0)
      open.insert(mine = m.next_agent++);
    agents.push_back(mine);
  }
  return agents;
}

cudaError_t instantiate(model& m, cudaGraphExec_t* out, cudaGraph_t handle) {
  if (!m.graphs.contains(handle))
    return cudaErrorInvalidValue;
  if (cudaError_t const code = unsafe_in_capture(m))
    return code;
  m.setting_up("cudaGraphInstantiate");
  auto fresh = std::make_unique<graph_exec>();
  fresh->from = m.graphs.at(handle);
  fresh->agents = assign_agents(m, *fresh->from);
  fresh->label = "executable of " + fresh->from->label;
  *out = reinterpret_cast<cudaGraphExec_t>(fresh.get());
  m.graph_execs.emplace(fresh.get(), std::move(fresh));
  return cudaSuccess;
}

operation_ptr copy_node(model& m, graph_node const& node, int agent, host const& by) {
  auto op = std::make_shared<operation>(*node.prototype);
  op->id = m.next_operation++;
  op->agent = agent;
  std::string const launched =
    by.rank >= 0 ? ", launched by rank " + std::to_string(by.rank) : std::string{};
  op->what = std::make_shared<std::string>(*node.prototype->what + " in a graph" + launched);
  return op;
}

// From the launch on, whoever asks for the event asks for this launch.
void record_event(model& m, operation_ptr const& op) {
  event* const e = find_object<event>(m, m.events, op->records, "an event of a graph");
  if (!e)
    return;
  e->captured = nullptr;
  e->nodes.clear();
  e->recorded = op;
}

cudaError_t launch(model& m, cudaGraphExec_t handle, cudaStream_t on) {
  graph_exec* const exec = find_object<graph_exec>(m, m.graph_execs, handle, "an executable graph");
  if (!exec)
    return cudaErrorInvalidValue;
  auto const [s, code] = work_stream(m, on);
  if (!s)
    return code;
  if (cudaError_t const wrong = forbid_in_capture(*s))
    return wrong;
  host& me = m.self();
  ++exec->launches;
  ++m.counts.graph_launches;
  auto head = m.make(operation_kind::marker, *s, "start of " + exec->label);
  m.depend(*head, exec->last);
  std::uint64_t const stable = mix(static_cast<std::uint64_t>(me.id), 0x67726170) + me.issued;
  m.enqueue(*s, head);
  auto tail = m.make(operation_kind::marker, *s, "end of " + exec->label);
  std::vector<operation_ptr> ops;
  for (auto const& node : exec->from->nodes) {
    operation_ptr op = copy_node(m, *node, exec->agents[node->index], me);
    m.depend(*op, head);
    for (graph_node const* before : node->after)
      m.depend(*op, ops[before->index]);
    if (auto const own = std::exchange(op->own_stream, nullptr)) { // of the node, not of its copy
      if (op->kind == operation_kind::wait)
        m.depend(*op, *own);
      else
        *own = op;
    }
    if (op->comm)
      ++m.counts.nccl_kernels;
    if (op->kind == operation_kind::kernel)
      ++m.counts.kernels;
    if (op->records)
      record_event(m, op);
    ops.push_back(op);
    m.add_graph_operation(op, mix(stable, node->index));
    m.depend(*tail, op);
  }
  exec->last = tail;
  m.enqueue(*s, tail);
  --exec->launches;
  return cudaSuccess;
}

bool same_shape(graph const& a, graph const& b) {
  if (a.nodes.size() != b.nodes.size())
    return false;
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    graph_node const &x = *a.nodes[i], &y = *b.nodes[i];
    if (x.prototype->kind != y.prototype->kind || x.after.size() != y.after.size())
      return false;
    for (std::size_t k = 0; k < x.after.size(); ++k)
      if (x.after[k]->index != y.after[k]->index)
        return false;
  }
  return true;
}

cudaError_t update(model& m,
                   cudaGraphExec_t exec_handle,
                   cudaGraph_t handle,
                   cudaGraphExecUpdateResultInfo* info) {
  graph_exec* const exec =
    find_object<graph_exec>(m, m.graph_execs, exec_handle, "an executable graph");
  if (!exec || !m.graphs.contains(handle))
    return cudaErrorInvalidValue;
  bool const fits = same_shape(*exec->from, *m.graphs.at(handle));
  if (info) {
    *info = {};
    info->result = fits ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  }
  if (!fits)
    return cudaErrorGraphExecUpdateFailure;
  exec->from = m.graphs.at(handle);
  return cudaSuccess;
}

cudaGraphNodeType type_of(operation const& op) {
  switch (op.kind) {
  case operation_kind::copy: return cudaGraphNodeTypeMemcpy;
  case operation_kind::fill: return cudaGraphNodeTypeMemset;
  case operation_kind::host_function: return cudaGraphNodeTypeHost;
  case operation_kind::record: return cudaGraphNodeTypeEventRecord;
  case operation_kind::wait: return cudaGraphNodeTypeWaitEvent;
  case operation_kind::kernel:
  case operation_kind::nccl: return cudaGraphNodeTypeKernel;
  default: return cudaGraphNodeTypeEmpty;
  }
}

cudaStreamCaptureStatus status_of(stream const& s) {
  if (!s.capturing)
    return cudaStreamCaptureStatusNone;
  return s.capturing->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

stream* capturable(model& m, cudaStream_t handle) {
  auto const at = m.streams.find(handle);
  return at == m.streams.end() ? nullptr : at->second.get();
}

} // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode mode) {
  return cuda_call("cudaStreamBeginCapture", [&](model& m) { return begin_capture(m, on, mode); });
}
cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t* out) {
  return cuda_call("cudaStreamEndCapture", [&](model& m) { return end_capture(m, on, out); });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t on, cudaStreamCaptureStatus* out) {
  return cuda_call("cudaStreamIsCapturing", [&](model& m) {
    stream const* const s = capturable(m, on);
    *out = s ? status_of(*s) : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t on,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id,
                                     cudaGraph_t* into,
                                     cudaGraphNode_t const** dependencies,
                                     cudaGraphEdgeData const** edges,
                                     size_t* count) {
  return cuda_call("cudaStreamGetCaptureInfo", [&](model& m) {
    stream const* const s = capturable(m, on);
    *status = s ? status_of(*s) : cudaStreamCaptureStatusNone;
    if (*status != cudaStreamCaptureStatusActive)
      return cudaSuccess;
    if (id)
      *id = s->capturing->id;
    if (into)
      *into = reinterpret_cast<cudaGraph_t>(s->capturing->into.get());
    if (dependencies)
      *dependencies = reinterpret_cast<cudaGraphNode_t const*>(s->tail.data());
    if (edges)
      *edges = nullptr;
    if (count)
      *count = s->tail.size();
    return cudaSuccess;
  });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return cuda_call("cudaThreadExchangeStreamCaptureMode", [&](model& m) {
    std::swap(*mode, m.self().capture_mode);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t from, unsigned long long) {
  return cuda_call("cudaGraphInstantiate", [&](model& m) { return instantiate(m, out, from); });
}
cudaError_t
cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t from, unsigned long long) {
  return cuda_call("cudaGraphInstantiateWithFlags",
                   [&](model& m) { return instantiate(m, out, from); });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t on) {
  return cuda_call("cudaGraphUpload", [&](model& m) {
    if (!m.graph_execs.contains(exec))
      return cudaErrorInvalidValue;
    return work_stream(m, on).code;
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t on) {
  return cuda_call("cudaGraphLaunch", [&](model& m) { return launch(m, exec, on); });
}
cudaError_t
cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t from, cudaGraphExecUpdateResultInfo* info) {
  return cuda_call("cudaGraphExecUpdate", [&](model& m) { return update(m, exec, from, info); });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t from, cudaGraphNode_t* nodes, size_t* count) {
  return cuda_call("cudaGraphGetNodes", [&](model& m) {
    if (!m.graphs.contains(from))
      return cudaErrorInvalidValue;
    graph const& g = *m.graphs.at(from);
    if (nodes)
      for (std::size_t i = 0; i < std::min(*count, g.nodes.size()); ++i)
        nodes[i] = reinterpret_cast<cudaGraphNode_t>(g.nodes[i].get());
    *count = nodes ? std::min(*count, g.nodes.size()) : g.nodes.size();
    return cudaSuccess;
  });
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* out) {
  return cuda_call("cudaGraphNodeGetType", [&](model&) {
    *out = type_of(*reinterpret_cast<graph_node*>(node)->prototype);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return cuda_call("cudaGraphDestroy", [&](model& m) {
    if (!find_object<graph>(m, m.graphs, handle, "a graph"))
      return cudaErrorInvalidValue;
    m.graphs.erase(handle);
    return cudaSuccess;
  });
}
// A graph that still runs is freed when it ends; what it holds of a communicator is held until
// then.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return cuda_call("cudaGraphExecDestroy", [&](model& m) {
    graph_exec* const exec =
      find_object<graph_exec>(m, m.graph_execs, handle, "an executable graph");
    if (!exec)
      return cudaErrorInvalidValue;
    if (exec->launches > 0) {
      m.report_finding(finding::misuse,
                       m.describe(m.self()) + " frees the " + exec->label +
                         " while another thread launches it");
      return cudaErrorInvalidValue;
    }
    m.graph_execs.erase(handle);
    return cudaSuccess;
  });
}

} // extern "C"
