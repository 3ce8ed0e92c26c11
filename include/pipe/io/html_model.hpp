// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the interactive page that computes: it times an order, and finds figures,
//! buffers in use and the critical path. Used by <pipe/io/html.hpp>.

#include <pipe/config.hpp>

#include <string_view>

namespace pipelining::inline v0_2 {

namespace detail {

//! ECMAScript without any library. `build` makes a table from the data of the page; everything else
//! takes that table and times, so that planned and measured times are looked at in the same way.
inline constexpr std::string_view html_model = R"js(
const F = 0, B = 1, I = 2, W = 3;
const WORDS = ["forward", "backward", "backward_input", "backward_weight"];
const CLASSES = ["activation", "received_input", "output", "received_gradient", "input_gradient",
                 "weight_input", "sequence", "sequence_gradient"];

// Flat arrays over all passes, device after device, and what each pass waits for.
function build(raw) {
  const t = {...raw, offsets: [0], kind: [], overlapped: [], stage: [], microbatch: [], chunk: [],
             device: []};
  raw.rows.forEach((row, device) => {
    for (let i = 0; i < row.length; i += 4) {
      t.kind.push(row[i] & 3);
      t.overlapped.push(row[i] > 3);
      t.stage.push(row[i + 1]);
      t.microbatch.push(row[i + 2]);
      t.chunk.push(row[i + 3]);
      t.device.push(device);
    }
    t.offsets.push(t.kind.length);
  });
  t.size = t.kind.length;
  t.place = new Map();
  const line = k => k == F ? 0 : k == W ? 2 : 1;
  t.key = (l, s, m, c) => ((l * t.stages + s) * t.microbatches + m) * t.chunks + c;
  for (let i = 0; i < t.size; ++i) {
    t.place.set(t.key(line(t.kind[i]), t.stage[i], t.microbatch[i], t.chunk[i]), i);
    if (t.kind[i] == B)
      t.place.set(t.key(2, t.stage[i], t.microbatch[i], t.chunk[i]), i);
  }
  t.find = (l, s, m, c) =>
    s < 0 || s >= t.stages || c < 0 || c >= t.chunks ? -1 : t.place.get(t.key(l, s, m, c)) ?? -1;
  const stages = [...Array(t.stages).keys()];
  t.before = stages.map(s => t.edges ? t.edges.filter(e => e[1] == s).map(e => e[0]) : [s - 1]);
  t.after = stages.map(s => t.edges ? t.edges.filter(e => e[0] == s).map(e => e[1])
                                    : s + 1 < t.stages ? [s + 1] : []);
  t.needs = [];
  t.users = Array.from({length: t.size}, () => []);
  for (let i = 0; i < t.size; ++i) {
    const [s, m, c] = [t.stage[i], t.microbatch[i], t.chunk[i]];
    const gradients = t.after[s].length > 0 ? t.after[s].map(u => t.find(1, u, m, c))
      : [t.find(0, s, m, c)];
    const all = t.kind[i] == F ? [...t.before[s].map(u => t.find(0, u, m, c)), t.find(0, s, m, c - 1)]
      : t.kind[i] == W ? [t.find(1, s, m, c)]
      : [...gradients, t.find(1, s, m, c + 1)];
    t.needs.push(all.filter(j => j >= 0));
    t.needs[i].forEach(j => t.users[j].push(i));
  }
  t.pair = i => i + 1 < t.offsets[t.device[i] + 1] && t.overlapped[i + 1];
  // The first entry of the composite pass that an entry belongs to.
  t.head = i => t.overlapped[i] ? i - 1 : i;
  return t;
}

// A factor of a stage and chunk: one number for all, or a list [S C].
const factor = (of, t, i) =>
  typeof of == "number" ? of : of[t.stage[i] * t.chunks + t.chunk[i]];

function duration(t, i, cost) {
  const f = t.factors;
  if (t.kind[i] == F)
    return cost.F * factor(f.F, t, i);
  const input = cost.I * factor(f.I, t, i), weight = cost.W * factor(f.W, t, i);
  return t.kind[i] == I ? input : t.kind[i] == W ? weight : input + weight;
}

// Every pass as early as its device, its dependencies and the messages allow.
function simulate(t, cost) {
  const start = new Float64Array(t.size).fill(-1), end = new Float64Array(t.size).fill(-1);
  const next = t.offsets.slice(0, t.devices), free = new Float64Array(t.devices);
  const ready = (i, from) => {
    let at = from;
    for (const j of t.needs[i]) {
      if (end[j] < 0)
        return -1;
      at = Math.max(at, end[j] + (t.device[j] == t.device[i] ? 0 : cost.latency));
    }
    return at;
  };
  for (let moved = true; moved;) {
    moved = false;
    for (let d = 0; d < t.devices; ++d) {
      while (next[d] < t.offsets[d + 1]) {
        const i = next[d], pair = t.pair(i);
        let at = ready(i, free[d]);
        if (at >= 0 && pair)
          at = ready(i + 1, at);
        if (at < 0)
          break;
        let time = duration(t, i, cost);
        if (pair)
          time = t.pair_time < 0 ? time + duration(t, i + 1, cost) : t.pair_time;
        for (let k = i; k < i + (pair ? 2 : 1); ++k) {
          start[k] = at;
          end[k] = at + time;
        }
        free[d] = at + time;
        next[d] += pair ? 2 : 1;
        moved = true;
      }
    }
  }
  return {start, end, latency: cost.latency};
}

// Changes of the number of slots in use: for every device and class a list of [time, +1 or -1].
// The rules are those by which plans take and give back slots; a slot that is sent stays taken
// through the next pass of its device.
function slot_changes(t, times) {
  const {start, end} = times;
  const changes = Array.from({length: t.devices}, () => CLASSES.map(() => []));
  const hold = (device, of, from, to) => {
    if (to > from)
      changes[device][of].push([from, 1], [to, -1]);
  };
  const next_end = i => {
    let j = t.head(i);
    j += t.pair(j) ? 2 : 1;
    return j < t.offsets[t.device[i] + 1] ? end[j] : end[i];
  };
  for (let i = 0; i < t.size; ++i) {
    const [s, m, c, d] = [t.stage[i], t.microbatch[i], t.chunk[i], t.device[i]];
    const forward = t.kind[i] == F;
    if (t.kind[i] == W) {
      hold(d, 5, start[t.find(1, s, m, c)], end[i]);
      continue;
    }
    const readers = (forward ? t.after[s].map(u => t.find(0, u, m, c))
      : t.before[s].map(u => t.find(1, u, m, c))).filter(j => j >= 0);
    // An output for all that read it, a gradient for each.
    for (const those of !forward ? readers.map(j => [j]) : readers.length > 0 ? [readers] : []) {
      const last = to => Math.max(...those.filter(j => t.device[j] == to).map(j => end[j]));
      const away = new Set(those.map(j => t.device[j]).filter(to => to != d));
      hold(d, forward ? 2 : 4, start[i], Math.max(last(d), away.size > 0 ? next_end(i) : 0));
      away.forEach(to => hold(to, forward ? 1 : 3, end[i], last(to)));
    }
    if (forward)
      hold(d, 0, start[i], end[t.find(2, s, m, c)]);
    if (t.chunks > 1 && c == 0 && forward)
      hold(d, 6, start[i], end[t.find(1, s, m, 0)]);
    if (t.chunks > 1 && t.find(0, s, m, c + 1) < 0 && !forward)
      hold(d, 7, start[i], end[t.find(1, s, m, 0)]);
  }
  for (const classes of changes)
    classes.forEach(list => list.sort((a, b) => a[0] - b[0] || a[1] - b[1]));
  return changes;
}

// The most slots of each class in use at once, by device.
function slot_peaks(changes) {
  return changes.map(classes => classes.map(list => {
    let live = 0, peak = 0;
    for (const change of list)
      peak = Math.max(peak, live += change[1]);
    return peak;
  }));
}

// One curve per device: [time, total weight], and its peak. weight[class] is that of one slot.
function stack(changes, weights) {
  const all = [];
  changes.forEach((list, of) => weights[of] > 0 && list.forEach(c => all.push([c[0], c[1], of])));
  all.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const steps = [], live = CLASSES.map(() => 0);
  let peak = 0;
  for (let k = 0; k < all.length; ++k) {
    live[all[k][2]] += all[k][1] * weights[all[k][2]];
    if (k + 1 == all.length || all[k + 1][0] > all[k][0])
      steps.push([all[k][0], live.slice()]);
    peak = Math.max(peak, live.reduce((a, b) => a + b, 0));
  }
  return {steps, peak};
}

// What a share of the tokens of a sequence keeps, at its peak on each device.
function share_peaks(t, takes, gives, from_input) {
  const peaks = [];
  for (let d = 0; d < t.devices; ++d) {
    let live = 0, peak = 0;
    for (let i = t.offsets[d]; i < t.offsets[d + 1];) {
      const end = i + (t.pair(i) ? 2 : 1);
      for (let k = i; k < end; ++k)
        live += t.kind[k] == takes ? t.shares[t.chunk[k]] : 0;
      peak = Math.max(peak, live);
      for (let k = i; k < end; ++k)
        live -= gives.includes(t.kind[k]) ? t.shares[t.chunk[k]] : 0;
      i = end;
    }
    peaks.push(peak);
  }
  return peaks;
}

function figures(t, times) {
  const {start, end} = times;
  let first = Infinity, last = -Infinity, span = 0, busy = 0;
  for (let d = 0; d < t.devices; ++d) {
    const a = t.offsets[d], b = t.offsets[d + 1] - 1;
    if (b < a)
      continue;
    first = Math.min(first, start[a]);
    last = Math.max(last, end[b]);
    span = Math.max(span, end[b] - start[a]);
    for (let i = a; i <= b; ++i)
      busy += t.overlapped[i] ? 0 : end[i] - start[i];
  }
  const makespan = last - first, mean = busy / t.devices;
  return {first, makespan, span, bubble_rate: span > 0 ? 1 - mean / span : 0,
          makespan_bubble_rate: makespan > 0 ? 1 - mean / makespan : 0,
          peak_activations: share_peaks(t, F, [B, W]),
          peak_weight_inputs: share_peaks(t, I, [W])};
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
      for (const j of t.needs[k])
        offer(j, times.end[j] + (t.device[j] == t.device[k] ? 0 : times.latency));
    if (head > t.offsets[t.device[head]])
      offer(head - 1, times.end[head - 1]);
    at = best;
  }
  return path.reverse();
}
)js";

} // namespace detail

} // namespace pipelining::inline v0_2
