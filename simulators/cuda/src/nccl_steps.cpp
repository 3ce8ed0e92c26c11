// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What NCCL kernels do on the device: matching, delivery, completion.
#include <cstring>

#include "kernels.hpp"
#include "model.hpp"
#include "reduce.hpp"

namespace standin::detail {

namespace {

bool all_done(operation const& op) {
  return std::all_of(op.parts.begin(), op.parts.end(), [](part const& p) { return p.done; });
}

char const* function_of(part_kind kind) {
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

std::string size_of_part(part const& p) {
  return std::to_string(p.count) + " elements of type " + std::to_string(static_cast<int>(p.type)) +
         ", " + std::to_string(p.bytes) + " bytes";
}

// Both ends of a message must put it into the same group: all messages of a group with one peer
// meet one group there.
bool mirrored(operation const& op, operation const& other, int peer) {
  for (part const& p : op.parts)
    if (p.peer == peer && p.partner && p.partner != &other)
      return false;
  return true;
}

bool same_collective(part const& a, part const& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.reduction == b.reduction &&
         (a.peer == b.peer || (a.kind != part_kind::broadcast && a.kind != part_kind::reduce));
}

} // namespace

bool model::has_room(operation const& op) const {
  auto const used = resident.find(op.device);
  if (used == resident.end() || used->second == 0)
    return true;
  if (config.blocks_take_processors &&
      resident_blocks.at(op.device) + op.comm->blocks > config.processors)
    return false;
  return config.resident_nccl_kernels <= 0 || used->second < config.resident_nccl_kernels;
}

// What a receive leaves until its message is there.
static void spoil(model& m, char* begin, std::size_t bytes) {
  if (bytes == 0)
    return;
  std::memset(begin, 0xFF, bytes);
  m.memory.undefine(reinterpret_cast<std::uintptr_t>(begin), bytes);
  kernels::mark(begin, bytes, false);
}

// What a receive leaves whose message never comes: work that stands after it on the device runs all
// the same, and nobody uses its results. What is enqueued later is not to read it: the model knows
// which is which, the interpreter of kernels does not.
static void leave_garbage(model& m, part const& p) {
  if (p.kind != part_kind::receive || p.done || p.bytes == 0)
    return;
  m.memory.leave(reinterpret_cast<std::uintptr_t>(p.output), p.bytes, m.next_operation);
  kernels::mark(p.output, p.bytes, true);
}

static void match(model& m, connection& line, int source, int target) {
  while (!line.sends.empty() && !line.receives.empty()) {
    end_of_message send = line.sends.front(), receive = line.receives.front();
    if (send.op->by->dead || receive.op->by->dead)
      return;
    line.sends.pop_front();
    line.receives.pop_front();
    send.item().partner = receive.op.get();
    receive.item().partner = send.op.get();
    if (m.config.mirrored_groups &&
        (!mirrored(*send.op, *receive.op, target) || !mirrored(*receive.op, *send.op, source)))
      m.report_finding(finding::unmirrored_group,
                       "the group of " + *send.op->what + " and the group of " + *receive.op->what +
                         " do not contain the same messages");
    part const &s = send.item(), &r = receive.item();
    if (s.bytes != r.bytes || s.type != r.type)
      m.report_finding(finding::mismatch,
                       *send.op->what + " sends " + size_of_part(s) + ", " + *receive.op->what +
                         " expects " + size_of_part(r));
    if (s.bytes == r.bytes)
      m.messages.push_back({send, receive, {}, ++m.sent[{send.op->device, receive.op->device}]});
  }
}

void model::post(operation_ptr const& op) {
  begin(*op);
  ++resident[op->device];
  resident_blocks[op->device] += op->comm->blocks;
  communicator& comm = *op->comm;
  for (std::size_t i = 0; i < op->parts.size(); ++i) {
    part& p = op->parts[i];
    if (comm.aborted) {
      p.done = true;
    } else if (p.kind == part_kind::send || p.kind == part_kind::receive) {
      bool const sends = p.kind == part_kind::send;
      int const source = sends ? comm.rank : p.peer, target = sends ? p.peer : comm.rank;
      connection& line = comm.members->connections[{source, target}];
      if (sends) {
        if (line.buffered + p.bytes <= config.buffered_bytes) {
          p.buffered = std::make_shared<std::vector<char>>(p.input, p.input + p.bytes);
          p.done = true;
          line.buffered += p.bytes;
        }
        line.sends.push_back({op, i});
      } else {
        spoil(*this, p.output, p.bytes);
        line.receives.push_back({op, i});
      }
      match(*this, line, source, target);
    } else {
      auto const index = comm.collectives++;
      auto& ends = comm.members->collectives[index];
      ends.push_back({op, i});
      if (static_cast<int>(ends.size()) < comm.members->size)
        continue;
      bool same = true;
      for (end_of_message const& end : ends) {
        if (same_collective(end.item(), ends.front().item()))
          continue;
        same = false;
        report_finding(finding::mismatch,
                       *end.op->what + " calls " + function_of(end.item().kind) + " with " +
                         size_of_part(end.item()) + ", " + *ends.front().op->what + " calls " +
                         function_of(ends.front().item().kind) + " with " +
                         size_of_part(ends.front().item()));
      }
      if (same)
        messages.push_back({{}, {}, ends, 0});
      for (end_of_message const& end : ends)
        end.item().partner = ends.front().op.get();
      comm.members->collectives.erase(index);
    }
  }
  if (all_done(*op))
    finishable.push_back(op);
}

static nanoseconds duration(model const& m, std::size_t bytes) {
  return nanoseconds(
    static_cast<nanoseconds::rep>(static_cast<double>(bytes) / m.config.cost.bytes_per_nanosecond));
}

static void complete(model& m, end_of_message const& end) {
  end.item().done = true;
  if (all_done(*end.op))
    m.finishable.push_back(end.op);
}

// What arrives in place of what was sent, if the configuration says so.
static void corrupt(model& m, message const& item) {
  if (m.config.corrupted.empty())
    return;
  part& r = item.receive.item();
  int const from = item.send.op->device, to = item.receive.op->device;
  for (corruption const& each : m.config.corrupted) {
    if (each.from != from || each.to != to)
      continue;
    if (each.instead == item.number)
      m.kept[{from, to, item.number}].assign(r.output, r.output + r.bytes);
    if (each.message != item.number)
      continue;
    if (each.instead == 0 && each.byte < r.bytes)
      r.output[each.byte] = static_cast<char>(r.output[each.byte] ^ 4);
    auto const earlier = m.kept.find({from, to, each.instead});
    if (earlier != m.kept.end() && earlier->second.size() == r.bytes)
      std::copy(earlier->second.begin(), earlier->second.end(), r.output);
  }
}

static void deliver_message(model& m, message const& item) {
  part &s = item.send.item(), &r = item.receive.item();
  operation &from = *item.send.op, &to = *item.receive.op;
  if (s.bytes != 0)
    std::memmove(r.output, s.buffered ? s.buffered->data() : s.input, s.bytes);
  corrupt(m, item);
  to.clock.join(from.clock);
  auto const end = std::max(from.finished_at, to.finished_at) + duration(m, s.bytes);
  to.finished_at = end;
  if (s.buffered) {
    from.comm->members->connections[{from.comm->rank, to.comm->rank}].buffered -= s.bytes;
  } else {
    from.finished_at = end;
    complete(m, item.send);
  }
  m.check(to, writing(r.output, r.bytes));
  complete(m, item.receive);
}

// Data flows from the root in a broadcast, to the root in a reduce, between all in the others.
static void deliver_collective(model& m, message const& item) {
  std::vector<part const*> parts(item.collective.size());
  vector_clock all;
  nanoseconds end{};
  for (end_of_message const& e : item.collective) {
    parts[static_cast<std::size_t>(e.op->comm->rank)] = &e.item();
    all.join(e.op->clock);
    end = std::max(end, e.op->finished_at + duration(m, e.item().bytes));
  }
  part const& first = *parts.front();
  vector_clock root_clock;
  for (end_of_message const& e : item.collective)
    if (e.op->comm->rank == first.peer)
      root_clock = e.op->clock;
  std::vector<std::vector<char>> const results = reduce::results(parts);
  for (end_of_message const& e : item.collective) {
    std::vector<char> const& result = results[static_cast<std::size_t>(e.op->comm->rank)];
    bool const sends_alone = first.kind == part_kind::broadcast && e.op->comm->rank == first.peer &&
                             e.item().input == e.item().output;
    if (!result.empty() && !sends_alone) {
      e.op->clock.join(first.kind == part_kind::broadcast ? root_clock : all);
      std::memcpy(e.item().output, result.data(), result.size());
      m.check(*e.op, writing(e.item().output, result.size()));
    }
    e.op->finished_at = end;
    complete(m, e);
  }
}

void model::deliver(message const& item) {
  ++counts.messages;
  if (item.collective.empty())
    deliver_message(*this, item);
  else
    deliver_collective(*this, item);
}

// Abort: kernels of the communicator end with garbage in their buffers; the other ranks notice
// nothing.
void model::fail_communicator(communicator& comm) {
  auto ours = [&](end_of_message const& end) { return end.op && end.op->comm == &comm; };
  for (auto& [key, line] : comm.members->connections) {
    std::erase_if(line.sends, ours);
    std::erase_if(line.receives, ours);
  }
  for (auto& [index, ends] : comm.members->collectives)
    std::erase_if(ends, ours);
  std::erase_if(messages, [&](message const& item) {
    return ours(item.send) || ours(item.receive) ||
           std::any_of(item.collective.begin(), item.collective.end(), ours);
  });
  std::erase_if(jobs, [&](job const& j) { return j.comm == &comm && !j.launches; });
  for (auto const& [id, op] : live) {
    if (op->comm != &comm)
      continue;
    op->stalled = false;
    for (part& p : op->parts) {
      leave_garbage(*this, p);
      p.done = true;
    }
    bool const known = std::find(finishable.begin(), finishable.end(), op) != finishable.end();
    if (op->started && !known)
      finishable.push_back(op);
  }
  ++progress;
}

} // namespace standin::detail
