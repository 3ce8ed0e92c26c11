// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the interactive page that its reader acts on: switches, sliders, mouse and
//! keys. Used by <pipe/view/html.hpp>.

#include <pipe/config.hpp>

#include <string_view>

namespace pipelining::inline v0_3::detail {

//! Everything that happens, and the start. Tests drive the page by `window.timeline`.
inline constexpr std::string_view html_control = R"js(
const page = JSON.parse(document.getElementById("data").textContent);
page.cost = Object.fromEntries(page.sliders.map(each => [each.key, each.value]));
const views = page.schedules.map(raw => ({t: build(raw), hover: -1, pinned: -1, found: null}));
const state = {cost: {...page.cost}, measured: false, arrows: false, path: false,
               memory: page.bytes ? "all" : "activation", from: 0, to: 1, whole: false};
const by_id = id => document.getElementById(id);
const spaced = word => word.replaceAll("_", " ");

// Without sizes there is one measure of all schedules: what is kept of microbatches, as a share of
// what a device of 1F1B keeps at most.
const KEPT = ["activation", "weight_input", "host_activation"];
const share_of_slot = (t, entry) => t.devices / t.locals.length /
  Math.min(t.devices, t.microbatches) * (t.shares ? t.shares[t.chunk[entry]] : 1 / t.chunks);

// The classes whose curves are shown: those on the device, those on the host, or one.
const is_shown = of => state.memory == "all" ? !page.classes[of][1]
  : state.memory == "host" ? page.classes[of][1] : page.classes[of][0] == state.memory;

// Times, figures and curves of every schedule for the costs and switches of now.
function compute() {
  for (const view of views) {
    const t = view.t, sizes = t.slot_sizes ?? [];
    view.times = state.measured && t.measured
      ? {start: t.measured.starts, end: t.measured.ends} : simulate(t, state.cost);
    view.changes = slot_changes(t, view.times);
    view.figures = figures(t, view.times, view.changes);
    view.path = critical_path(t, view.times);
    view.on_path = new Set(view.path);
    view.curves = view.changes.map(classes => stack(classes, (of, entry) => !is_shown(of) ? 0
      : page.bytes ? sizes[of] ?? 0 : share_of_slot(t, entry)));
  }
}

function show_figures(view) {
  const f = view.figures, t = view.t, most = list => Math.max(...list);
  const share = t.stages_per_device;
  const of = peak => `<b>${number(peak)}</b>` +
    (share > 1 ? ` (${number(peak / share)} of all stages of a device)` : "");
  view.words.innerHTML =
    `makespan <b>${number(f.makespan, 7)}</b>, span <b>${number(f.span, 7)}</b>; bubble ` +
    `<b>${(100 * f.bubble_rate).toFixed(1)} %</b> of the span, ` +
    `<b>${(100 * f.makespan_bubble_rate).toFixed(1)} %</b> of the makespan; at most, in ` +
    `microbatches of one stage: activations ${of(most(f.peak_activations))}, ` +
    `weight inputs ${of(most(f.peak_weight_inputs))}` +
    (state.memory == "none" ? "" : page.bytes ? "; curves: bytes in use"
      : `; curves: ${spaced(state.memory)}, in shares of what 1F1B keeps at most`);
}

function refresh(times = true) {
  if (times) {
    compute();
    views.forEach(show_figures);
  }
  views.forEach(draw);
}

// The time axis is one for all schedules; each starts at its own first pass.
const bounds = () => {
  const first = Math.min(...views.map(v => v.figures.first));
  return [first, Math.max(...views.map(v => v.figures.first + v.figures.makespan), first + 1e-9)];
};

// Shows these times, as far as there are passes.
function show(from, to) {
  const [first, last] = bounds(), whole = last - first;
  const wide = Math.min(Math.max(to - from, whole / 1e5), whole);
  state.from = Math.min(Math.max(from, first), last - wide);
  state.to = state.from + wide;
  refresh(false);
}

const fit = () => show(...bounds());
const zoom = (factor, at = (state.from + state.to) / 2) =>
  show(at - (at - state.from) * factor, at + (state.to - at) * factor);
const pan = by => show(state.from + by, state.to + by);

const time_at = (view, x) => state.from + (x - left_of(view)) /
  (view.width - left_of(view) - right_of(view)) * (state.to - state.from);

// The entry under a point of the canvas, or -1.
function entry_at(view, x, y) {
  const {t, times} = view, h = heights(t), d = Math.floor((y - h.top) / h.row);
  const inside = y - h.top - d * h.row, time = time_at(view, x);
  if (d < 0 || d >= t.devices || inside > h.all || x < left_of(view) || x > view.width - right_of(view))
    return -1;
  const row = d + t.devices * h.tops.findLastIndex((top, k) => h.rows[k] > 0 && top <= inside);
  for (let i = t.offsets[row]; i < t.offsets[row + 1]; ++i)
    if (times.start[i] <= time && time < times.end[i])
      return t.pair(i) && inside > h.passes / 2 ? i + 1 : i;
  return -1;
}

const named = (t, i, j) => name_of(t, j) + (t.device[j] == t.device[i] ? "" : ` on device ${t.device[j]}`);

function about(view, i) {
  const {t, times} = view;
  return `${name_of(t, i)}\ndevice ${t.device[i]}, ${number(times.start[i], 7)} to ` +
    number(times.end[i], 7) + (t.overlapped[i] || t.pair(i) ? ", one half of a pair" : "");
}

const describe = (view, i) => [about(view, i),
  ...view.t.needs[i].map(([j]) => "waits for " + named(view.t, i, j)),
  ...view.t.users[i].map(j => "needed by " + named(view.t, i, j))].join("\n");

function hover(view, event) {
  const box = view.canvas.getBoundingClientRect(), tip = by_id("tip");
  const i = entry_at(view, event.clientX - box.left, event.clientY - box.top);
  if (i != view.hover) {
    view.hover = i;
    draw(view);
  }
  tip.style.display = i < 0 ? "none" : "block";
  if (i < 0)
    return;
  tip.textContent = describe(view, i);
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
}

// Keeps a pass in sight, with what it waits for and what needs it, each a button that goes there.
function pin(view, i) {
  const panel = by_id("pin");
  views.forEach(each => each.pinned = each == view ? i : -1);
  panel.hidden = i < 0;
  panel.textContent = i < 0 ? "" : about(view, i);
  const link = (word, j) => element("button", panel, {textContent: `${word} ${named(view.t, i, j)}`,
    onclick: () => go(view, j)});
  if (i >= 0) {
    view.t.needs[i].forEach(([j]) => link("waits for", j));
    view.t.users[i].forEach(j => link("needed by", j));
    element("button", panel, {textContent: "close", onclick: () => pin(view, -1)});
  }
  refresh(false);
}

// Pins a pass and moves the page to it.
function go(view, i) {
  const middle = (view.times.start[i] + view.times.end[i]) / 2, half = (state.to - state.from) / 2;
  if (view.times.start[i] < state.from || view.times.end[i] > state.to)
    show(middle - half, middle + half);
  const y = view.canvas.getBoundingClientRect().top + place_of(view.t, i, heights(view.t)).y;
  if (y < 0 || y > innerHeight - 60)
    scrollBy(0, y - innerHeight / 2);
  pin(view, i);
}

// Passes whose name has all these words; a number belongs to the word before it.
function find(text) {
  const words = (text.toLowerCase().match(/[a-z_]+( \d+)?|\d+/g) ?? [])
    .map(word => new RegExp("\\b" + word + (/\d$/.test(word) ? "\\b" : "")));
  for (const view of views)
    view.found = words.length == 0 ? null : new Set(view.t.kind.keys().filter(i => {
      const name = `${name_of(view.t, i)}, device ${view.t.device[i]}`;
      return words.every(word => word.test(name));
    }));
  const count = views.reduce((sum, view) => sum + (view.found?.size ?? 0), 0);
  by_id("found").textContent = words.length == 0 ? "" : count == 1 ? "1 pass" : `${count} passes`;
  refresh(false);
}

// The next pass that was found, in the order of schedules and devices.
function find_next() {
  const all = views.flatMap(view => [...view.found ?? []].map(i => [view, i]));
  const at = all.findIndex(([view, i]) => view.pinned == i);
  if (all.length)
    go(...all[(at + 1) % all.length]);
}

function listen(view) {
  const held = new Map(); // pointers that are down, by number: where they are
  let travelled = 0;
  const x_of = event => event.clientX - view.canvas.getBoundingClientRect().left;
  view.canvas.addEventListener("wheel", event => {
    const lines = event.deltaMode == 1 ? 16 : event.deltaMode == 2 ? 400 : 1;
    const aside = event.deltaX || (event.shiftKey ? event.deltaY : 0);
    if (event.ctrlKey || event.metaKey) // a pinch on a touchpad says so, too
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines / 300))), time_at(view, x_of(event)));
    else if (Math.abs(aside) > Math.abs(event.shiftKey ? 0 : event.deltaY))
      pan(time_at(view, aside * lines) - time_at(view, 0));
    else
      return; // the page scrolls
    event.preventDefault();
  }, {passive: false});
  view.canvas.addEventListener("pointerdown", event => {
    held.set(event.pointerId, x_of(event));
    travelled = held.size > 1 ? Infinity : 0;
    view.canvas.setPointerCapture(event.pointerId);
  });
  for (const ending of ["pointerup", "pointercancel"])
    view.canvas.addEventListener(ending, event => {
      if (ending == "pointerup" && travelled < 5 && held.size == 1) {
        const box = view.canvas.getBoundingClientRect();
        pin(view, entry_at(view, x_of(event), event.clientY - box.top));
      }
      held.delete(event.pointerId);
    });
  view.canvas.addEventListener("pointermove", event => {
    if (!held.has(event.pointerId))
      return event.pointerType == "touch" || hover(view, event);
    const before = held.get(event.pointerId), now = x_of(event);
    const other = [...held].find(([id]) => id != event.pointerId)?.[1];
    held.set(event.pointerId, now);
    travelled += Math.abs(now - before);
    if (other === undefined)
      pan(time_at(view, before) - time_at(view, now));
    else if (Math.abs(now - other) > 10) // two fingers: the times under them stay there
      zoom(Math.abs(before - other) / Math.abs(now - other), time_at(view, other));
  });
  view.canvas.addEventListener("pointerleave", () => {
    view.hover = -1;
    by_id("tip").style.display = "none";
    draw(view);
  });
}

function press(event) {
  const wide = state.to - state.from, of = event.target, own = of.type == "range" ? /^Arrow/ : /./;
  if (event.ctrlKey || event.metaKey || event.altKey ||
      (/^(range|number|search|select-one)$/.test(of.type) && own.test(event.key)))
    return;
  const act = {"+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": fit,
               w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => pan(-wide / 10),
               d: () => pan(wide / 10), ArrowLeft: () => pan(-wide / 10),
               ArrowRight: () => pan(wide / 10), Escape: () => pin(views[0], -1),
               "/": () => by_id("find").focus()}[event.key.length == 1 ? event.key.toLowerCase() : event.key];
  if (!act)
    return;
  event.preventDefault();
  act();
}

function element(tag, parent, fields = {}) {
  return parent.appendChild(Object.assign(document.createElement(tag), fields));
}

const is_used = of => views.some(v => v.changes.some(c => c[of].length));

function add_controls() {
  const bar = by_id("controls");
  const button = (text, title, act) =>
    element("button", bar, {textContent: text, title, id: text, onclick: act});
  const check = (id, text) => {
    const label = element("label", bar);
    element("input", label, {type: "checkbox", id, onchange: e => {
      state[id] = e.target.checked;
      refresh();
      if (id == "measured") {
        add_legend();
        bar.querySelectorAll("input[type=range], input[type=number]").forEach(input =>
          input.disabled = state.measured);
        fit();
      }
    }});
    label.append(" " + text);
  };
  button("+", "zoom in: also Ctrl and the wheel, two fingers, the keys + and W", () => zoom(0.7));
  button("\u2212", "zoom out: also Ctrl and the wheel, two fingers, the keys - and S", () => zoom(1 / 0.7));
  button("fit", "show everything: also the key 0", fit);
  const search = element("label", bar, {textContent: "find "});
  element("input", search, {type: "search", id: "find", placeholder: "backward stage 3",
    title: "passes by name: Enter goes to the next one", oninput: e => find(e.target.value),
    onkeydown: e => void (e.key == "Enter" && find_next())});
  element("output", bar, {id: "found"});
  if (views.some(v => v.t.measured))
    check("measured", "measured instead of planned");
  check("arrows", "messages");
  check("path", "critical path");
  const label = element("label", bar, {textContent: "memory "});
  const select = element("select", label, {id: "memory", onchange: e => {
    state.memory = e.target.value;
    e.target.blur(); // so that keys are the page's again
    add_legend();
    refresh();
  }});
  const used = page.classes.filter((each, of) => is_used(of) && (page.bytes || KEPT.includes(each[0])));
  const whole = !page.bytes ? [] : [["all", "on the device"],
    ...(used.some(each => each[1]) ? [["host", "on the host"]] : [])];
  for (const [value, textContent] of [...whole, ...used.map(each => [each[0], spaced(each[0])]),
                                      ["none", "none"]])
    element("option", select, {value, textContent});
  select.value = state.memory;
  for (const {key, word, title, value} of page.sliders) {
    const label = element("label", bar, {textContent: `${word} `, title: `time of ${title}`});
    const most = 3 * Math.max(...page.sliders.map(each => each.value));
    const slider = element("input", label, {type: "range", id: key, min: 0, max: most,
      step: "any", value, ariaLabel: `time of ${title}`});
    const exact = element("input", label, {type: "number", id: key + "_value", min: 0, step: "any",
      value: number(value), ariaLabel: `time of ${title}, exactly`});
    const set = value => {
      if (!(value >= 0))
        return;
      state.cost[key] = value;
      refresh();
    };
    slider.oninput = () => {
      exact.value = number(+slider.value, 4);
      set(+exact.value);
    };
    exact.oninput = () => {
      slider.value = exact.value;
      set(+exact.value);
    };
  }
  button("reset", "the times that the order was made for", () => {
    for (const {key, value} of page.sliders) {
      by_id(key).value = state.cost[key] = value;
      by_id(key + "_value").value = number(value);
    }
    refresh();
  });
}

function add_legend() {
  const legend = by_id("legend");
  legend.textContent = "";
  const entry = (colour, text) => {
    element("i", legend).style.background = colour;
    legend.append(text);
  };
  // Of kinds that take time, each once.
  const seen = new Map();
  for (const {t, times} of views)
    t.kind.forEach((k, i) => times.end[i] > times.start[i] &&
      seen.set(t.kinds[k].legend, t.kinds[k].colour));
  seen.forEach((colour, text) => entry(css(colour), text));
  element("br", legend);
  page.classes.forEach((each, of) => is_used(of) && is_shown(of) &&
    entry(CLASS_COLOURS[of], spaced(each[0])));
  if (views.some(v => v.t.local_count > 1))
    element("div", legend, {textContent: "darker: later stages of a device, or the other direction"});
  if (views.some(v => v.t.chunks > 1))
    element("div", legend, {textContent: "from light to dark: chunks of a sequence"});
}

const paint = () => {
  read_inks();
  views.forEach(view => view.looks = looks_of(view.t));
  refresh(false);
};

function start() {
  by_id("title").textContent = page.title;
  for (const view of views) {
    const section = element("section", by_id("charts"));
    element("h2", section, {textContent: view.t.heading});
    view.words = element("p", section, {className: "figures"});
    view.canvas = element("canvas", element("div", section), {tabIndex: 0, role: "img",
      ariaLabel: `timeline of ${view.t.heading}: a row of passes for each of ${view.t.devices} devices`});
    listen(view);
  }
  compute();
  add_controls();
  add_legend();
  views.forEach(show_figures);
  [state.from, state.to] = bounds();
  paint();
  addEventListener("resize", () => refresh(false));
  addEventListener("scroll", () => refresh(false), {passive: true});
  const printing = whole => () => {
    state.whole = whole;
    refresh(false);
  };
  addEventListener("beforeprint", printing(true));
  addEventListener("afterprint", printing(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  addEventListener("keydown", press);
  window.timeline = {page, views, state, slot_peaks, delay};
}
start();
)js";

} // namespace pipelining::inline v0_3::detail
