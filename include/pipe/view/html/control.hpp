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
const views = page.schedules.map(raw => ({t: build(raw), hover: -1}));
const state = {cost: {...page.cost}, measured: false, arrows: false, path: false, memory: "all",
               from: 0, to: 1};
const by_id = id => document.getElementById(id);

// The classes whose curves are shown: those on the device, those on the host, or one.
const is_shown = of => state.memory == "all" ? !page.classes[of][1]
  : state.memory == "host" ? page.classes[of][1] : page.classes[of][0] == state.memory;

// Times, figures and curves of every schedule for the costs and switches of now.
function compute() {
  for (const view of views) {
    view.times = state.measured && view.t.measured
      ? {start: view.t.measured.starts, end: view.t.measured.ends}
      : simulate(view.t, state.cost);
    view.changes = slot_changes(view.t, view.times);
    view.figures = figures(view.t, view.times, view.changes);
    view.path = critical_path(view.t, view.times);
    view.curves = view.changes.map(classes => stack(classes, page.classes.map((_, of) =>
      is_shown(of) ? (view.t.slot_sizes ?? [])[of] ?? 1 : 0)));
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
    (state.memory == "none" ? ""
      : `; curves: ${page.bytes ? "bytes" : "slots"} in use` +
        (page.bytes || !t.slot_sizes ? "" : ", of the sizes that the first schedule has"));
}

function refresh(times = true) {
  if (times) {
    compute();
    views.forEach(show_figures);
  }
  views.forEach(draw);
}

// The time axis is one for all schedules; each starts at its own first pass.
function fit() {
  state.from = Math.min(...views.map(v => v.figures.first));
  state.to = Math.max(...views.map(v => v.figures.first + v.figures.makespan));
  if (!(state.to > state.from))
    state.to = state.from + 1;
  refresh(false);
}

function zoom(factor, at = (state.from + state.to) / 2) {
  state.from = at - (at - state.from) * factor;
  state.to = at + (state.to - at) * factor;
  refresh(false);
}

function pan(by) {
  state.from += by;
  state.to += by;
  refresh(false);
}

const time_at = (view, x) =>
  state.from + (x - LEFT) / (view.width - LEFT - RIGHT) * (state.to - state.from);

// The entry under a point of the canvas, or -1.
function entry_at(view, x, y) {
  const {t, times} = view, h = heights(t), d = Math.floor((y - h.top) / h.row);
  const inside = y - h.top - d * h.row, time = time_at(view, x);
  if (d < 0 || d >= t.devices || inside > h.all || x < LEFT || x > view.width - RIGHT)
    return -1;
  const row = d + t.devices * h.tops.findLastIndex((top, k) => h.rows[k] > 0 && top <= inside);
  for (let i = t.offsets[row]; i < t.offsets[row + 1]; ++i)
    if (times.start[i] <= time && time < times.end[i])
      return t.pair(i) && inside > h.passes / 2 ? i + 1 : i;
  return -1;
}

function describe(view, i) {
  const {t, times} = view;
  const lines = [name_of(t, i), `device ${t.device[i]}, ${number(times.start[i], 7)} to ` +
    number(times.end[i], 7) + (t.overlapped[i] || t.pair(i) ? ", one half of a pair" : "")];
  for (const [j] of t.needs[i])
    lines.push(`waits for ${name_of(t, j)}` +
      (t.device[j] == t.device[i] ? "" : ` on device ${t.device[j]}`));
  for (const j of t.users[i])
    lines.push(`needed by ${name_of(t, j)}` +
      (t.device[j] == t.device[i] ? "" : ` on device ${t.device[j]}`));
  return lines.join("\n");
}

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
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
}

function listen(view) {
  let grabbed = null;
  view.canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const x = event.clientX - view.canvas.getBoundingClientRect().left;
    zoom(Math.exp(Math.sign(event.deltaY) * 0.2), time_at(view, x));
  }, {passive: false});
  view.canvas.addEventListener("pointerdown", event => {
    grabbed = event.clientX;
    view.canvas.setPointerCapture(event.pointerId);
  });
  view.canvas.addEventListener("pointerup", () => grabbed = null);
  view.canvas.addEventListener("pointermove", event => {
    if (grabbed === null)
      return hover(view, event);
    const moved = time_at(view, grabbed) - time_at(view, event.clientX);
    grabbed = event.clientX;
    pan(moved);
  });
  view.canvas.addEventListener("pointerleave", () => {
    view.hover = -1;
    by_id("tip").style.display = "none";
    draw(view);
  });
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
  button("+", "zoom in; also the wheel, and the key +", () => zoom(0.7));
  button("\u2212", "zoom out; also the wheel, and the key -", () => zoom(1 / 0.7));
  button("fit", "show everything; also the key 0", fit);
  if (views.some(v => v.t.measured))
    check("measured", "measured instead of planned");
  check("arrows", "messages");
  check("path", "critical path");
  const label = element("label", bar, {textContent: "memory "});
  const select = element("select", label, {id: "memory", onchange: e => {
    state.memory = e.target.value;
    add_legend();
    refresh();
  }});
  const on_host = page.classes.some((_, of) => page.classes[of][1] && is_used(of));
  for (const [value, text] of [["all", "on the device"], ...(on_host ? [["host", "on the host"]] : []),
                               ...page.classes.filter((_, of) => is_used(of)).map(c => [c[0], c[0]]),
                               ["none", "none"]])
    element("option", select, {value, textContent: text});
  for (const {key, word, title, value} of page.sliders) {
    const span = element("span", bar, {textContent: `${word} `, title: `time of ${title}`});
    const most = 3 * Math.max(...page.sliders.map(each => each.value));
    const slider = element("input", span, {type: "range", id: key, min: 0, max: most,
      step: "any", value});
    const exact = element("input", span, {type: "number", id: key + "_value", min: 0, step: "any",
      value: number(value)});
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
    entry(CLASS_COLOURS[of], each[0]));
}

function start() {
  by_id("title").textContent = page.title;
  for (const view of views) {
    const section = element("section", by_id("charts"));
    element("h2", section, {textContent: view.t.heading});
    view.words = element("p", section, {className: "figures"});
    view.canvas = element("canvas", element("div", section));
    listen(view);
  }
  compute();
  add_controls();
  add_legend();
  refresh();
  fit();
  addEventListener("resize", () => refresh(false));
  addEventListener("keydown", event => {
    const wide = state.to - state.from;
    const act = {"+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": fit,
                 ArrowLeft: () => pan(-wide / 10), ArrowRight: () => pan(wide / 10)}[event.key];
    if (act && !/INPUT|SELECT/.test(event.target.tagName))
      act();
  });
  window.timeline = {page, views, state, slot_peaks, delay};
}
start();
)js";

} // namespace pipelining::inline v0_3::detail
