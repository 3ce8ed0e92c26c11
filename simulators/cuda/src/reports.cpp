// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cstdio>
#include <cstdlib>

#include "call.hpp"
#include "model.hpp"

namespace standin::detail {

void model::report_finding(finding kind, std::string text, std::vector<std::string> waits) {
  constexpr std::size_t most = 200;
  if (reports.size() >= most)
    return;
  for (report const& known : reports)
    if (known.kind == kind && known.text == text)
      return;
  reports.push_back({kind, std::move(text), std::move(waits)});
}

void model::setting_up(std::string const& what) {
  add_context();
  if (frozen)
    report_finding(finding::late_setup, describe(self()) + " calls " + what + " after freeze()");
}

std::string model::describe(host const& who) const {
  std::string text =
    who.rank >= 0 ? "rank " + std::to_string(who.rank) : "host thread " + std::to_string(who.id);
  if (!who.scopes.empty())
    text += " in " + who.scopes.back();
  return text;
}

std::string model::memory_name(std::uintptr_t address) const {
  auto next = allocations.upper_bound(address);
  if (next != allocations.begin()) {
    allocation const& a = std::prev(next)->second;
    if (address < a.begin + a.bytes) {
      std::string text = a.label;
      if (text.empty())
        text = (a.kind == memory_kind::pinned ? "pinned allocation " : "allocation ") +
               std::to_string(a.id) +
               (a.kind == memory_kind::pinned ? "" : " of device " + std::to_string(a.device));
      if (address > a.begin)
        text += " + " + std::to_string(address - a.begin);
      return text;
    }
  }
  char text[40];
  std::snprintf(text, sizeof text, "host memory at %#zx", static_cast<std::size_t>(address));
  return text;
}

namespace {

bool is_message(part const& p) {
  return p.kind == part_kind::send || p.kind == part_kind::receive;
}

operation const* first_unfinished(operation const& op) {
  operation const* at = &op;
  for (;;) {
    operation const* earlier = nullptr;
    for (operation_ptr const& candidate : at->after)
      if (!candidate->done)
        earlier = candidate.get();
    if (!earlier)
      return at;
    at = earlier;
  }
}

bool answers(part const& mine, part const& theirs, int my_rank) {
  return theirs.peer == my_rank && is_message(theirs) && theirs.kind != mine.kind && !theirs.done &&
         !theirs.partner;
}

} // namespace

// One line per operation that could go on as far as its own stream is concerned, and does not.
void model::why_waits(operation const& op, std::vector<std::string>& lines) {
  if (op.stalled) {
    lines.push_back(*op.what + " is stalled by an injected fault");
    return;
  }
  if (op.by->dead && !op.started) {
    lines.push_back(*op.what + " belongs to a rank that died by an injected fault");
    return;
  }
  if (device_error(op.device) != 0) {
    lines.push_back(*op.what + " waits for ever on device " + std::to_string(op.device) +
                    ", which is in error");
    return;
  }
  if (!op.comm)
    return;
  if (!op.started) {
    std::string line =
      *op.what + " waits for room on device " + std::to_string(op.device) + ", taken by";
    for (auto const& [id, other] : live)
      if (other->comm && other->started && other->device == op.device)
        line += " " + *other->what;
    lines.push_back(line);
    return;
  }
  for (part const& p : op.parts) {
    if (p.done)
      continue;
    if (p.partner) {
      lines.push_back(*op.what + " waits for a call that does not match it");
      continue;
    }
    if (!is_message(p)) {
      std::string missing;
      for (int r = 0; r < op.comm->members->size; ++r) {
        bool came = false;
        for (auto const& [index, ends] : op.comm->members->collectives)
          for (end_of_message const& end : ends)
            came = came || end.op->comm->rank == r;
        if (!came)
          missing += (missing.empty() ? " " : ", ") + std::to_string(r);
      }
      lines.push_back(*op.what + " waits for rank" + missing + " of its communicator");
      continue;
    }
    std::string const peer = "rank " + std::to_string(p.peer);
    std::string const wanted = p.kind == part_kind::send ? "ncclRecv" : "ncclSend";
    operation const* answer = nullptr;
    for (auto const& [id, other] : live) {
      if (answer || !other->comm || other->comm->members != op.comm->members ||
          other->comm->rank != p.peer)
        continue;
      for (part const& theirs : other->parts)
        if (answers(p, theirs, op.comm->rank))
          answer = other.get();
    }
    if (!answer) {
      lines.push_back(*op.what + " waits for a " + wanted + " that " + peer + " has not called");
      continue;
    }
    operation const* before = first_unfinished(*answer);
    std::string line = *op.what + " waits for " + *answer->what;
    if (before != answer)
      line += ", which stands after " + *before->what;
    lines.push_back(line);
  }
}

std::vector<std::string> model::who_waits() {
  std::vector<std::string> lines;
  for (auto const& h : hosts) {
    bool const asleep = h->helper && h->state == host_state::sleeping;
    if (h->state == host_state::ended || h->joining || asleep)
      continue;
    if (h->dead) {
      lines.push_back(describe(*h) + " has died by an injected fault");
    } else if (h->state == host_state::parked) {
      lines.push_back(describe(*h) + " is stalled by an injected fault");
    } else {
      std::string line = describe(*h) + " waits in " + h->why;
      if (h->target && !h->target->done)
        line += " for " + *h->target->what;
      lines.push_back(line);
    }
  }
  for (job const& j : jobs)
    lines.push_back(j.what + " waits for " + j.waits_for());
  for (auto const& [id, op] : live)
    if (op->missing == 0 || op->started)
      why_waits(*op, lines);
  return lines;
}

void model::declare_deadlock() {
  if (deadlocked) {
    std::fputs("standin: no thread can go on although a deadlock was declared before\n", stderr);
    std::abort();
  }
  deadlocked = true;
  std::vector<std::string> lines = who_waits();
  std::string text = "nothing can go on";
  for (std::string const& line : lines)
    text += "; " + line;
  report_finding(finding::deadlock, text, std::move(lines));
}

} // namespace standin::detail

namespace standin {

using namespace detail;

namespace {

configuration& kept() {
  static configuration value;
  return value;
}

} // namespace

void configure(configuration chosen) {
  kept() = chosen;
  forget_nvtx_ranges();
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.configure(std::move(chosen));
}

void reset() {
  configure(configuration(kept()));
}

configuration const& current_configuration() {
  return model::instance().config;
}

char const* name_of(finding kind) {
  switch (kind) {
  case finding::use_before_ready: return "use before ready";
  case finding::overwrite_in_use: return "overwrite in use";
  case finding::write_conflict: return "write conflict";
  case finding::use_after_free: return "use after free";
  case finding::double_free: return "double free";
  case finding::uninitialised_read: return "uninitialised read";
  case finding::out_of_bounds: return "out of bounds";
  case finding::mismatch: return "mismatch";
  case finding::unmirrored_group: return "unmirrored group";
  case finding::deadlock: return "deadlock";
  case finding::misuse: return "misuse";
  case finding::kernel_error: return "kernel error";
  case finding::late_setup: return "late set-up";
  case finding::leak: return "leak";
  }
  return "?";
}

std::vector<report> const& reports() {
  return model::instance().reports;
}

bool found(finding kind) {
  for (report const& r : reports())
    if (r.kind == kind)
      return true;
  return false;
}

std::string summary() {
  std::string text;
  for (report const& r : reports()) {
    text += std::string(name_of(r.kind)) + ": ";
    if (r.waits.empty())
      text += r.text;
    for (std::string const& line : r.waits)
      text += "\n    " + line;
    text += "\n";
  }
  return text;
}

void report_leaks() {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  std::vector<std::string> left;
  for (auto const& [handle, s] : m.streams)
    left.push_back(s->label + " was never destroyed");
  for (auto const& [handle, e] : m.events)
    left.push_back(e->label + " was never destroyed");
  for (auto const& [handle, g] : m.graphs)
    left.push_back(g->label + " was never destroyed");
  for (auto const& [handle, x] : m.graph_execs)
    left.push_back(x->label + " was never destroyed");
  for (auto const& [handle, c] : m.communicators)
    if (!c->destroyed)
      left.push_back("rank " + std::to_string(c->rank) + " of " + c->label +
                     " was never destroyed");
  for (auto const& [begin, a] : m.allocations)
    if (!a.freed)
      left.push_back(m.memory_name(begin) + " was never freed");
  std::sort(left.begin(), left.end()); // handles have no order of their own
  for (std::string& text : left)
    m.report_finding(finding::leak, std::move(text));
}

void freeze() {
  model::instance().frozen = true;
}

std::map<std::string, std::uint64_t> const& calls() {
  return model::instance().calls;
}

std::uint64_t calls_of(std::string const& function) {
  auto const& all = calls();
  auto const at = all.find(function);
  return at == all.end() ? 0 : at->second;
}

std::uint64_t total_calls() {
  return model::instance().total_calls;
}
std::uint64_t calls_of_rank(int rank) {
  std::uint64_t sum = 0;
  for (auto const& each : model::instance().hosts)
    sum += each->rank == rank ? each->calls : 0;
  return sum;
}
bool has_died(int rank) {
  auto const& hosts = model::instance().hosts;
  return std::any_of(
    hosts.begin(), hosts.end(), [&](auto const& each) { return each->rank == rank && each->dead; });
}
std::vector<int> contexts_of_rank(int rank) {
  std::vector<int> devices;
  for (auto const& [who, device] : model::instance().contexts)
    if (who == rank)
      devices.push_back(device);
  return devices;
}
totals const& counters() {
  return model::instance().counts;
}
std::uint64_t order_hash() {
  return model::instance().choices_hash;
}

} // namespace standin
