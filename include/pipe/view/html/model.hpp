// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the interactive page that computes: it times an order, and finds figures,
//! buffers in use and the critical path. Used by <pipe/view/html.hpp>.

#include <pipe/config.hpp>

#include <string_view>

namespace pipelining::inline v0_3::detail {

//! ECMAScript without any library. `build` makes a table from the data of the page; everything else
//! takes that table and times, so that planned and measured times are looked at in the same way.
inline constexpr std::string_view html_model = R"js(
// Flat arrays over all passes, row after row: those of the compute engines of all devices, then
// those of further engines. Kinds, times, needs and holds come with the data.
function build(raw) {
  const t = {...raw, offsets: [0], kind: [], overlapped: [], stage: [], microbatch: [], chunk: [],
             time: [], row: []};
  raw.rows.forEach((row, number) => {
    for (let i = 0; i < row.length; i += 5) {
      t.overlapped.push(row[i] < 0);
      t.kind.push(row[i] < 0 ? ~row[i] : row[i]);
      t.stage.push(row[i + 1]);
      t.microbatch.push(row[i + 2]);
      t.chunk.push(row[i + 3]);
      t.time.push(row[i + 4]);
      t.row.push(number);
    }
    t.offsets.push(t.kind.length);
  });
  t.size = t.kind.length;
  t.device = t.row.map(row => row % t.devices);
  t.engine = t.row.map(row => Math.floor(row / t.devices));
  // A number waits for a message, [number, "reduce"] for what lies between groups of stages.
  t.needs = raw.needs.map(all => all.map(need => [need].flat()));
  t.users = Array.from({length: t.size}, () => []);
  t.needs.forEach((all, i) => all.forEach(need => t.users[need[0]].push(i)));
  t.pair = i => i + 1 < t.offsets[t.row[i] + 1] && t.overlapped[i + 1];
  // The first entry of the composite pass that an entry belongs to.
  t.head = i => t.overlapped[i] ? i - 1 : i;
  return t;
}

const value_of = (cost, parts) =>
  Object.entries(parts ?? {}).reduce((sum, [key, share]) => sum + share * cost[key], 0);

// A time: what a pass computes, and its exchanges as far as it does not hide them itself.
function parts_of(time, cost) {
  const computes = time.always + value_of(cost, time.takes);
  const exchanges = (time.exchanges ?? 0) * (cost.all_reduce ?? 0);
  const hides = value_of(cost, time.hides);
  return time.hides ? {computes: computes - hides + Math.max(hides, exchanges), exchanges: 0}
                    : {computes, exchanges};
}

// Of two passes that overlap, one computes while the other exchanges.
function duration(t, i, parts, cost) {
  const a = parts[t.time[i]];
  if (!t.pair(i))
    return a.computes + a.exchanges;
  if (cost.pair !== undefined)
    return cost.pair * t.between.pair;
  const b = parts[t.time[i + 1]];
  return Math.max(a.computes + b.computes, a.exchanges + b.exchanges, a.computes + a.exchanges,
                  b.computes + b.exchanges);
}

// From the end of what an entry waits for to its start; without costs, as where times have been
// measured, nothing.
function delay(t, i, [from, between], cost) {
  if (!cost)
    return 0;
  if (between)
    return cost[between] * t.between[between];
  const [a, b] = [t.device[from], t.device[i]], latency = cost.latency * t.between.latency;
  return a == b ? 0 : !t.links ? latency
    : t.links[a * t.devices + b] * (page.cost.latency > 0 ? cost.latency / page.cost.latency : 1);
}

// Every pass as early as its engine, its dependencies and the messages allow.
function simulate(t, cost) {
  const start = new Float64Array(t.size).fill(-1), end = new Float64Array(t.size).fill(-1);
  const rows = t.offsets.length - 1, next = t.offsets.slice(0, rows), free = new Float64Array(rows);
  const parts = t.times.map(time => parts_of(time, cost));
  const ready = (i, from) => {
    let at = from;
    for (const need of t.needs[i]) {
      if (end[need[0]] < 0)
        return -1;
      at = Math.max(at, end[need[0]] + delay(t, i, need, cost));
    }
    return at;
  };
  for (let moved = true; moved;) {
    moved = false;
    for (let r = 0; r < rows; ++r) {
      while (next[r] < t.offsets[r + 1]) {
        const i = next[r], behind = i + (t.pair(i) ? 2 : 1);
        let at = free[r];
        for (let k = i; k < behind && at >= 0; ++k)
          at = ready(k, at);
        if (at < 0)
          break;
        const time = duration(t, i, parts, cost);
        for (let k = i; k < behind; ++k) {
          start[k] = at;
          end[k] = at + time;
        }
        free[r] = at + time;
        next[r] = behind;
        moved = true;
      }
    }
  }
  return {start, end, cost};
}

// Changes of the number of slots in use: for every device and class a list of
// [time, +1 or -1, entry, order]. At one time, what is given back comes first; but plans go by the
// ends of passes, so one that takes no time comes before what another engine has ended.
function slot_changes(t, times) {
  const changes = Array.from({length: t.devices}, () => page.classes.map(() => []));
  const last = times.end.reduce((a, b) => Math.max(a, b), 0);
  for (const hold of t.holds) { // a class, who makes it, and who ends it, as many entries later
    const maker = hold[1] < 0 ? ~hold[1] : hold[1], ends = times.end[maker];
    const from = hold[1] < 0 ? ends : times.start[maker];
    let to = hold.length > 2 ? 0 : last, beside = 0;
    for (let k = 2; k < hold.length; ++k) {
      to = Math.max(to, times.end[maker + hold[k]]);
      beside ||= t.engine[maker + hold[k]] > 0 ? 2 : 0;
    }
    if (to > from)
      changes[t.device[maker + (hold[2] ?? 0)]][hold[0]].push(
        [from, 1, maker, ends > from ? 3 : 1], [to, -1, maker, beside]);
  }
  for (const classes of changes)
    classes.forEach(list => list.sort((a, b) => a[0] - b[0] || a[3] - b[3]));
  return changes;
}

// The most of a class in use at once, by device. weight(entry) is that of one slot.
const class_peaks = (changes, of, weight) => changes.map(classes => {
  let live = 0, peak = 0;
  for (const [, by, entry] of classes[of])
    peak = Math.max(peak, live += by * weight(entry));
  return peak;
});

// The most slots of each class in use at once, by device.
function slot_peaks(changes) {
  const by_class = page.classes.map((_, of) => class_peaks(changes, of, () => 1));
  return changes.map((_, device) => by_class.map(peaks => peaks[device]));
}

// One curve per device: [time, weight of each class], and its peak. weight(class, entry) is that of
// one slot.
function stack(changes, weight) {
  const shown = changes.map((list, of) => [list, of])
    .filter(([list, of]) => list.length && weight(of, list[0][2]) > 0);
  const all = shown.flatMap(([list, of]) => list.map(c => [c[0], c[1] * weight(of, c[2]), of, c[3]]));
  if (shown.length > 1)
    all.sort((a, b) => a[0] - b[0] || a[3] - b[3]);
  const steps = [], live = changes.map(() => 0);
  let peak = 0, total = 0;
  for (let k = 0; k < all.length; ++k) {
    live[all[k][2]] += all[k][1];
    peak = Math.max(peak, total += all[k][1]);
    if (k + 1 == all.length || all[k + 1][0] > all[k][0])
      steps.push([all[k][0], live.slice()]);
  }
  return {steps, peak};
}

// What is kept of a class, in whole microbatches: a chunk counts its share of the tokens.
function share_peaks(t, changes, word) {
  const of = page.classes.findIndex(each => each[0] == word);
  return t.shares ? class_peaks(changes, of, entry => t.shares[t.chunk[entry]])
    : class_peaks(changes, of, () => 1).map(peak => peak / t.chunks);
}

// A device is busy where its compute engine is.
function figures(t, times, changes) {
  const {start, end} = times;
  let first = Infinity, last = -Infinity, span = 0, busy = 0;
  for (let d = 0; d < t.devices; ++d) {
    const a = t.offsets[d], b = t.offsets[d + 1];
    if (b == a)
      continue;
    let ended = 0;
    for (let r = d; r + 1 < t.offsets.length; r += t.devices)
      if (t.offsets[r + 1] > t.offsets[r])
        ended = Math.max(ended, end[t.offsets[r + 1] - 1]);
    first = Math.min(first, start[a]);
    last = Math.max(last, ended);
    span = Math.max(span, ended - start[a]);
    for (let i = a; i < b; ++i)
      busy += t.overlapped[i] ? 0 : end[i] - start[i];
  }
  const makespan = last - first, mean = busy / t.devices;
  return {first, makespan, span, bubble_rate: span > 0 ? 1 - mean / span : 0,
          makespan_bubble_rate: makespan > 0 ? 1 - mean / makespan : 0,
          peak_activations: share_peaks(t, changes, "activation"),
          peak_weight_inputs: share_peaks(t, changes, "weight_input")};
}

// The passes that decide when the last one ends: from it back, always to what ended last.
function critical_path(t, times) {
  let at = 0;
  for (let i = 0; i < t.size; ++i)
    if (times.end[i] > times.end[at])
      at = i;
  const path = [];
  for (let left = t.size; at >= 0 && left > 0; --left) {
    path.push(at);
    const head = t.head(at);
    let best = -1, latest = -Infinity;
    const offer = (j, when) => {
      if (when > latest)
        [best, latest] = [j, when];
    };
    for (let k = head; k <= head + (t.pair(head) ? 1 : 0); ++k)
      for (const need of t.needs[k])
        offer(need[0], times.end[need[0]] + delay(t, k, need, times.cost));
    if (head > t.offsets[t.row[head]])
      offer(head - 1, times.end[head - 1]);
    at = best;
  }
  return path.reverse();
}
)js";

} // namespace pipelining::inline v0_3::detail
