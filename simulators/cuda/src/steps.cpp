// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model.hpp"

namespace standin::detail {

std::uint64_t model::random() {
  coin_ ^= coin_ << 13;
  coin_ ^= coin_ >> 7;
  coin_ ^= coin_ << 17;
  return coin_ >> 11;
}

// A choice of 1 among 1 is none. In scripted order the choices taken and their widths are kept for
// the search; a state seen before is not searched again, the run just ends with the first choices.
std::uint64_t model::choose(std::uint64_t among) {
  if (among <= 1)
    return 0;
  std::uint64_t chosen = 0;
  if (config.execution == order::random)
    chosen = random() % among;
  if (config.execution == order::scripted && !pruned) {
    std::size_t const position = taken.size();
    if (position < config.script.size()) {
      chosen = static_cast<std::uint64_t>(config.script[position]);
    } else if (visited && visited(state_hash_)) {
      pruned = true;
      return 0;
    }
    taken.push_back(chosen);
    width.push_back(among);
  }
  choices_hash = mix(choices_hash, mix(chosen, among));
  return chosen;
}

bool model::run_jobs() {
  for (auto at = jobs.begin(); at != jobs.end(); ++at) {
    if (!at->ready())
      continue;
    auto act = std::move(at->act);
    jobs.erase(at);
    act();
    ++progress;
    return true;
  }
  return false;
}

std::vector<model::candidate> model::candidates() {
  std::vector<candidate> all;
  for (std::size_t i = 0; i < messages.size(); ++i)
    all.push_back({candidate::step_kind::deliver, i, nullptr});
  for (std::size_t i = 0; i < finishable.size(); ++i)
    all.push_back({candidate::step_kind::finish, i, finishable[i]});
  for (auto const& [id, op] : ready) {
    if (op->stalled || op->by->dead || device_error(op->device) != 0)
      continue;
    if (op->comm && !has_room(*op))
      continue;
    all.push_back({candidate::step_kind::start, 0, op});
  }
  return all;
}

// Steps that commute with everything else need no choice: orders that differ in them end alike.
bool model::urgent(candidate const& c) const {
  if (c.kind != candidate::step_kind::start)
    return true;
  switch (c.op->kind) {
  case operation_kind::record:
  case operation_kind::wait:
  case operation_kind::marker: return true;
  case operation_kind::nccl: return config.reduce && config.resident_nccl_kernels <= 0;
  case operation_kind::host_function: return false;
  default: return config.reduce;
  }
}

namespace {

// What must finish before the operation can, apart from the other ends of messages.
std::unordered_set<std::uint64_t> needed_by(operation const& wanted) {
  std::unordered_set<std::uint64_t> needed{wanted.id};
  std::vector<operation const*> open{&wanted};
  while (!open.empty()) {
    operation const& op = *open.back();
    open.pop_back();
    for (operation_ptr const& earlier : op.after)
      if (!earlier->done && needed.insert(earlier->id).second)
        open.push_back(earlier.get());
  }
  return needed;
}

} // namespace

model::candidate model::pick(std::vector<candidate> const& all) {
  if (config.execution == order::eager)
    return all.front();
  if (config.execution == order::random)
    return all[static_cast<std::size_t>(choose(all.size()))];
  if (config.execution == order::scripted) {
    for (candidate const& c : all)
      if (urgent(c))
        return c;
    return all[static_cast<std::size_t>(choose(all.size()))];
  }
  if (turn && turn->target) {
    if (turn->needed_for != turn->target->id) {
      turn->needed_for = turn->target->id;
      turn->needed = needed_by(*turn->target);
    }
    for (candidate const& c : all)
      if (c.op && turn->needed.contains(c.op->id))
        return c;
  }
  return all.front();
}

bool model::step() {
  if (run_jobs())
    return true;
  std::vector<candidate> const all = candidates();
  if (all.empty())
    return false;
  candidate const chosen = pick(all);
  ++counts.steps;
  ++progress;
  switch (chosen.kind) {
  case candidate::step_kind::deliver: {
    message const item = messages[chosen.index];
    messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(chosen.index));
    deliver(item);
    break;
  }
  case candidate::step_kind::finish: {
    finishable.erase(finishable.begin() + static_cast<std::ptrdiff_t>(chosen.index));
    finish(chosen.op);
    break;
  }
  case candidate::step_kind::start: start(chosen.op); break;
  }
  return true;
}

void model::begin(operation& op) {
  op.clock = op.issued;
  op.finished_at = op.issued_at;
  for (operation_ptr const& earlier : op.after) {
    op.clock.join(earlier->clock);
    op.finished_at = std::max(op.finished_at, earlier->finished_at);
  }
  op.finished_at += op.cost;
  op.after.clear();
  op.clock.advance(op.agent);
  op.started = true;
  for (memory_access const& range : op.accesses)
    check(op, range);
  for (operation* waiting : op.next_on_start)
    if (--waiting->missing == 0)
      ready.emplace(waiting->id, live_operation(waiting));
  op.next_on_start.clear();
}

void model::start(operation_ptr const& op) {
  ready.erase(op->id);
  if (op->comm) {
    remember(mix(op->stable, 1));
    post(op);
    return;
  }
  if (op->fails_with != 0) {
    broken_devices[op->device] = op->fails_with;
    return;
  }
  begin(*op);
  if (op->run)
    for (memory_access const& range : op->run(*op))
      check(*op, range);
  if (op->fails_with != 0) {
    broken_devices[op->device] = op->fails_with;
    return;
  }
  finish(op);
}

operation_ptr model::live_operation(operation const* op) const {
  return live.at(op->id);
}

void model::finish(operation_ptr const& op) {
  remember(mix(op->stable, 2));
  op->done = true;
  op->run = nullptr;
  for (operation* waiting : op->next)
    if (--waiting->missing == 0)
      ready.emplace(waiting->id, live_operation(waiting));
  op->next.clear();
  if (op->comm) {
    --resident[op->device];
    resident_blocks[op->device] -= op->comm->blocks;
  }
  live.erase(op->id);
}

} // namespace standin::detail

namespace standin {

using namespace detail;

exploration
explore(configuration chosen, std::function<void()> const& program, std::uint64_t most_runs) {
  exploration result;
  std::unordered_set<std::uint64_t> seen;
  std::vector<int> prefix;
  chosen.execution = order::scripted;
  model& m = model::instance();
  while (result.runs < most_runs) {
    chosen.script = prefix;
    configure(chosen);
    m.visited = [&](std::uint64_t state) { return !seen.insert(state).second; };
    program();
    ++result.runs;
    if (!reports().empty()) {
      ++result.faulty;
      if (result.first.empty())
        result.first = reports();
    }
    if (found(finding::deadlock))
      ++result.deadlocks;
    std::vector<std::uint64_t> const taken = m.taken, width = m.width;
    std::size_t depth = taken.size();
    while (depth > 0 && taken[depth - 1] + 1 >= width[depth - 1])
      --depth;
    if (depth == 0) {
      result.complete = true;
      break;
    }
    prefix.clear();
    for (std::size_t i = 0; i + 1 < depth; ++i)
      prefix.push_back(static_cast<int>(taken[i]));
    prefix.push_back(static_cast<int>(taken[depth - 1] + 1));
  }
  result.states = seen.size();
  m.visited = nullptr;
  return result;
}

void for_each_machine(configuration base,
                      int seeds,
                      std::function<void(configuration const&, std::string const&)> const& check) {
  for (bool const buffered : {false, true}) {
    for (int const resident : {0, 1}) {
      base.buffered_bytes = buffered ? std::size_t{1} << 20 : 0;
      base.resident_nccl_kernels = resident;
      std::string const machine =
        std::string(buffered ? "buffered, " : "rendezvous, ") +
        (resident ? "one resident NCCL kernel, " : "unlimited NCCL kernels, ");
      base.execution = order::lazy;
      check(base, machine + "lazy");
      base.execution = order::eager;
      check(base, machine + "eager");
      base.execution = order::random;
      for (int seed = 1; seed <= seeds; ++seed) {
        base.seed = static_cast<std::uint64_t>(seed);
        check(base, machine + "seed " + std::to_string(seed));
      }
    }
  }
}

} // namespace standin
