// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "kernels.hpp"
#include "model.hpp"

namespace standin::detail {

stream& model::add_stream(int device, bool blocking, int priority) {
  auto fresh = std::make_unique<stream>();
  stream& result = *fresh;
  result.device = device;
  result.id = next_stream++;
  result.agent = next_agent++;
  result.priority = priority;
  result.blocking = blocking;
  result.label = "stream " + std::to_string(result.id);
  streams.emplace(fresh.get(), std::move(fresh));
  return result;
}

stream& model::resolve(cudaStream_t handle) {
  int const device = self().current_device;
  auto make_special = [&](bool legacy) {
    auto fresh = std::make_unique<stream>();
    fresh->device = device;
    fresh->id = next_stream++;
    fresh->agent = next_agent++;
    fresh->legacy = legacy;
    fresh->label = legacy ? "legacy default stream" : "per-thread default stream";
    return fresh;
  };
  if (handle == cudaStreamPerThread) {
    auto& mine = thread_streams[&self()][device];
    if (!mine)
      mine = make_special(false);
    return *mine;
  }
  if (handle == nullptr || handle == cudaStreamLegacy) {
    auto& mine = legacy_streams[device];
    if (!mine)
      mine = make_special(true);
    return *mine;
  }
  return *reinterpret_cast<stream*>(handle);
}

operation_ptr model::make(operation_kind kind, stream& on, std::string const& what) {
  auto op = std::make_shared<operation>();
  host const& me = self();
  op->id = next_operation++;
  op->kind = kind;
  op->device = on.device;
  std::string where = me.rank >= 0 ? "rank " + std::to_string(me.rank) + ", " : std::string{};
  where += "device " + std::to_string(on.device) + ", " + on.label;
  if (!me.scopes.empty())
    where += ", in " + me.scopes.back();
  op->what = std::make_shared<std::string>(what + " (" + where + ", call " +
                                           std::to_string(total_calls) + ")");
  switch (kind) {
  case operation_kind::kernel: op->cost = config.cost.kernel; break;
  case operation_kind::copy:
  case operation_kind::fill:
  case operation_kind::nccl: op->cost = config.cost.transfer; break;
  default: break;
  }
  return op;
}

void model::depend(operation& op, operation_ptr const& on) const {
  if (on && on.get() != &op)
    op.after.push_back(on);
}

int model::device_error(int device) const {
  auto const found = broken_devices.find(device);
  return found == broken_devices.end() ? 0 : found->second;
}

// Work of the legacy stream waits for every blocking stream of its device and the other way round.
void model::enqueue(stream& on, operation_ptr const& op) {
  host& me = self();
  op->on = &on;
  op->agent = on.agent;
  depend(*op, on.last);
  if (on.legacy) {
    for (auto const& [handle, other] : streams)
      if (other->device == on.device && other->blocking)
        depend(*op, other->last);
  } else if (on.blocking) {
    auto const legacy = legacy_streams.find(on.device);
    if (legacy != legacy_streams.end())
      depend(*op, legacy->second->last);
  }
  if (config.hardware_queues > 0) {
    operation_ptr& queue = queues_[{on.device, on.id % config.hardware_queues}];
    if (queue && !queue->started)
      op->after_start = queue;
    queue = op;
  }
  on.last = op;
  submit(op, mix(static_cast<std::uint64_t>(me.id), me.issued++));
  throttle(*op);
  steps_after_enqueue();
}

void model::submit(operation_ptr const& op, std::uint64_t stable) {
  host& me = self();
  ++counts.operations;
  op->by = &me;
  op->stable = stable;
  op->issued = me.clock;
  op->issued_at = me.now;
  me.clock.advance(me.agent);
  if (me.stall_next)
    op->stalled = true;
  if (me.fail_next != 0)
    op->fails_with = me.fail_next;
  if (me.fail_comm_next && op->comm) {
    op->comm->state = ncclRemoteError;
    op->stalled = true;
  }
  if (op->kind != operation_kind::marker) {
    me.stall_next = false;
    me.fail_next = 0;
    me.fail_comm_next = false;
  }
  live.emplace(op->id, op);
  for (operation_ptr const& earlier : op->after) {
    if (earlier->done)
      continue;
    ++op->missing;
    earlier->next.push_back(op.get());
  }
  if (op->after_start && !op->after_start->started) {
    ++op->missing;
    op->after_start->next_on_start.push_back(op.get());
  }
  op->after_start = nullptr;
  if (op->missing == 0)
    ready.emplace(op->id, op);
}

// Nodes of a graph have no stream; they do not take the host's place in a launch queue either.
void model::add_graph_operation(operation_ptr const& op, std::uint64_t stable) {
  submit(op, stable);
}

long model::unfinished(int device) const {
  return std::count_if(
    live.begin(), live.end(), [&](auto const& entry) { return entry.second->device == device; });
}

// For one more launch, by a thread of NCCL.
bool model::queue_has_room(int device) const {
  return config.launch_depth <= 0 || device_error(device) != 0 ||
         unfinished(device) < config.launch_depth;
}

// A device accepts only so much unfinished work; then the host waits in the call.
void model::throttle(operation const& op) {
  if (config.launch_depth <= 0 || in_job)
    return;
  int const device = op.device;
  wait("a launch, because the queue of device " + std::to_string(device) + " is full",
       [this, device] {
         return device_error(device) != 0 || unfinished(device) <= config.launch_depth;
       });
}

void model::steps_after_enqueue() {
  if (config.execution == order::eager) {
    while (step()) {
    }
  } else if (config.execution == order::random) {
    while (random() % 3 == 0 && step()) {
    }
  }
}

void model::check(operation& op, memory_access const& range) {
  memory.touch(
    range, {op.agent, &op.clock, op.what, op.id, op.by->rank}, config.report_uninitialised);
  if (range.write)
    kernels::mark(reinterpret_cast<void*>(range.begin), range.end - range.begin, true);
}

void model::check_host(memory_access const& range, std::string const& doing) {
  host& me = self();
  if (in_callback) {
    check(*in_callback, range);
    return;
  }
  auto who = std::make_shared<std::string>(describe(me) + " " + doing);
  accessor const by{.agent = me.agent, .clock = &me.clock, .who = who, .rank = me.rank};
  memory.touch(range, by, config.report_uninitialised);
  me.clock.advance(me.agent);
}

} // namespace standin::detail
