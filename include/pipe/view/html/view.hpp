// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the interactive page that is seen: style, drawing, mouse and keys. Used by
//! <pipe/view/html.hpp>.

#include <pipe/config.hpp>

#include <string_view>

namespace pipelining::inline v0_3::detail {

//! The page up to its data.
inline constexpr std::string_view html_head =
  R"html(<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  :root { color-scheme: light dark; --ink: #222222; --soft: #555555; --paper: #ffffff; --lane: #ececec;
          --well: #f6f6f6; --edge: #000000; --path: #cc0000; --panel: #f3f3f3; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #dddddd; --soft: #aaaaaa; --paper: #181a1b; --lane: #2a2d2f; --well: #212425;
            --edge: #ffffff; --path: #ff6666; --panel: #2a2d2f; }
  }
  body { font: 14px/1.4 Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif;
         color: var(--ink); background: var(--paper); margin: 16px 20px; }
  h1 { font-size: 18px; margin: 0 0 8px; }
  #controls { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; margin: 0 0 6px; }
  #controls label { white-space: nowrap; }
  #controls input[type=number] { width: 5.5em; }
  #controls input[type=range] { width: 110px; vertical-align: middle; }
  section { margin: 14px 0 0; }
  h2 { font-size: 15px; margin: 0 0 2px; }
  .figures { margin: 0 0 4px; }
  canvas { display: block; width: 100%; cursor: grab; touch-action: pan-y; }
  #legend { margin: 10px 0 0; color: var(--soft); font-size: 13px; }
  #legend i { display: inline-block; width: 14px; height: 14px; margin: 0 5px 0 14px;
              vertical-align: -2px; }
  #tip, #pin { position: fixed; background: var(--panel); color: var(--ink); padding: 6px 9px;
               border: 1px solid var(--soft); border-radius: 4px; font-size: 12.5px; max-width: 420px;
               white-space: pre-line; z-index: 2; }
  #tip { display: none; pointer-events: none; }
  #pin { right: 8px; bottom: 8px; max-height: 45vh; overflow: auto; }
  #pin button { display: block; }
  @media (max-width: 560px) { body { margin: 10px 8px; } #pin { left: 8px; } }
  @media (pointer: coarse) { button, select, input { min-height: 32px; } }
</style>
</head>
<body>
<main>
<h1 id="title"></h1>
<div id="controls" role="toolbar" aria-label="what is shown, and times of passes"></div>
<div id="charts"></div>
<div id="legend"></div>
</main>
<div id="tip" role="tooltip"></div>
<aside id="pin" role="region" aria-label="the pass that was clicked" aria-live="polite" hidden></aside>
<noscript>This page draws itself with a script, which this browser does not run.</noscript>
)html";

//! Colours, then one drawing of a schedule on its canvas.
inline constexpr std::string_view html_view = R"js(
const CLASS_COLOURS = ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee8866", "#aa3377", "#999933",
                       "#882255", "#bbbbbb", "#777777", "#77aadd", "#ddaa33", "#44aa99", "#88ccaa",
                       "#cc6677", "#ddccee", "#555555"];
// Margins left and right of the passes; a phone has little room for words.
const is_narrow = view => view.width < 560;
const left_of = view => is_narrow(view) ? 30 : 84;
const right_of = view => is_narrow(view) ? 52 : 104;

const mix = (a, b, part) => a.map((v, k) => Math.round(v + (b[k] - v) * part));
const css = c => `rgb(${c.join(",")})`;
// As a number of four bytes, as pixels have it.
const packed = c => (255 << 24 | c[2] << 16 | c[1] << 8 | c[0]) >>> 0;
const from_hex = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
// Colours of the style, read anew where the reader's light changes.
const INKS = {};
function read_inks() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "lane", "well", "edge", "path"])
    INKS[name] = style.getPropertyValue("--" + name).trim();
}

function shade(t, i) {
  const plain = t.kinds[t.kind[i]].colour;
  const local = t.directions ? t.directions[t.microbatch[i]] : t.locals[t.stage[i]];
  const inside = t.chunks > 1 ? t.chunk[i] / (t.chunks - 1) : t.local_count > 1 ? 0.5 : 0.3;
  const dark = (local + 0.75 * inside) / (t.local_count - 0.25);
  return dark < 0.5 ? mix(plain, [255, 255, 255], 0.72 * (0.5 - dark) / 0.5)
                    : mix(plain, [0, 0, 0], 0.5 * (dark - 0.5) / 0.5);
}
const light_text = c =>
  (0.2126 * c[0] ** 2 + 0.7152 * c[1] ** 2 + 0.0722 * c[2] ** 2) / 255 ** 2 < 0.235;

// The look of every pass, each look once: its colour, also as a pixel and dimmed, and its text's.
function looks_of(t) {
  const lane = from_hex(INKS.lane), known = new Map();
  return Array.from({length: t.size}, (_, i) => {
    const local = t.directions ? t.directions[t.microbatch[i]] : t.locals[t.stage[i]];
    const key = (t.kind[i] * 4096 + local) * 4096 + t.chunk[i];
    if (!known.has(key)) {
      const plain = shade(t, i), dim = mix(plain, lane, 0.7);
      known.set(key, {fill: css(plain), dim_fill: css(dim), pixel: packed(plain),
                      dim_pixel: packed(dim), text: light_text(plain) ? "#fff" : "#222"});
    }
    return known.get(key);
  });
}

const number = (v, digits = 4) => String(+v.toPrecision(digits));
const bytes = v => v >= 1e9 ? number(v / 1e9, 3) + " GB" : v >= 1e6 ? number(v / 1e6, 3) + " MB"
  : v >= 1e3 ? number(v / 1e3, 3) + " kB" : number(v, 3) + " B";
const amount = v => page.bytes ? bytes(v) : number(100 * v, 3) + " %";
const name_of = (t, i) => `${t.kinds[t.kind[i]].word} of stage ${t.stage[i]}, microbatch ` +
  t.microbatch[i] + (t.chunks > 1 ? `, chunk ${t.chunk[i]}` : "");

// Heights of the rows of a device: its passes, what its further engines do, and its memory.
function heights(t) {
  const passes = t.devices <= 8 ? 30 : t.devices <= 16 ? 22 : Math.max(5, 480 / t.devices);
  const memory = state.memory == "none" ? 0 : t.devices <= 8 ? 30 : Math.max(5, passes * 0.8);
  const rows = t.engines.map((_, engine) => {
    const first = t.offsets[engine * t.devices], end = t.offsets[(engine + 1) * t.devices];
    return engine == 0 ? passes : end > first ? passes / 2 : 0;
  });
  const tops = rows.map((_, engine) => rows.slice(0, engine).reduce((a, b) => a + b, 0));
  const all = rows.reduce((a, b) => a + b, 0);
  return {passes, rows, tops, all, memory, row: all + memory + (t.devices <= 16 ? 8 : 3), top: 6};
}

// Where a cell lies; the halves of a pair lie one above the other.
function place_of(t, i, h) {
  const tall = h.rows[t.engine[i]], half = t.overlapped[i] || t.pair(i) ? tall / 2 : tall;
  const y = h.top + t.device[i] * h.row + h.tops[t.engine[i]];
  return {y: y + (t.overlapped[i] ? half : 0), tall: half};
}

// The entries of a row that are seen, in order.
function* seen_in(view, row) {
  const {t, times} = view;
  let low = t.offsets[row], high = t.offsets[row + 1];
  const end = high;
  while (low < high) { // the first that ends after the left margin
    const middle = (low + high) >> 1;
    if (times.end[middle] > state.from)
      high = middle;
    else
      low = middle + 1;
  }
  if (low > t.offsets[row] && t.overlapped[low])
    --low;
  for (let i = low; i < end && times.start[i] < state.to; ++i)
    yield i;
}

const is_dim = (view, i) =>
  view.found ? !view.found.has(i) : state.path && !view.on_path.has(i);

// Pixels of the part of a canvas that is seen. Cells too narrow for the canvas, and memory, are
// written into them: a hundred thousand rectangles take a canvas a second.
function draw_pixels(g, view, x, scale, band) {
  const {t, times} = view, h = heights(t);
  const wide = view.canvas.width, image = g.createImageData(wide, band.tall);
  const all = new Uint32Array(image.data.buffer);
  const at = v => Math.round(v * scale);
  const begin = at(left_of(view)), stop = at(view.width - right_of(view));
  // Rows of pixels [from, to) from a line of them.
  const copy = (line, from, to) => {
    for (let y = Math.max(at(from) - band.top, 0); y < Math.min(at(to) - band.top, band.tall); ++y)
      all.set(line.subarray(begin, stop), y * wide + begin);
  };
  const lane = packed(from_hex(INKS.lane)), well = packed(from_hex(INKS.well));
  const colours = CLASS_COLOURS.map(each => packed(from_hex(each)));
  const most = Math.max(...views.map(v => Math.max(...v.curves.map(c => c.peak))), 1e-300);
  const upper = new Uint32Array(wide), lower = new Uint32Array(wide);
  view.broad = [];
  for (const d of band.devices) {
    h.rows.forEach((tall, engine) => {
      if (!tall)
        return;
      upper.fill(lane);
      lower.fill(lane);
      let last = -1;
      for (const i of seen_in(view, d + engine * t.devices)) {
        if (times.end[i] <= times.start[i])
          continue;
        const a = Math.max(x(times.start[i]) * scale, begin), b = Math.min(x(times.end[i]) * scale, stop);
        if (b - a >= 6) {
          view.broad.push(i);
          continue;
        }
        const from = Math.round(a), to = Math.max(Math.round(b) - (b - a > 3 ? 1 : 0), from + 1);
        const first = t.overlapped[i];
        if (to <= last && !first && !is_on(view, i))
          continue; // its pixel has been written
        last = to;
        const look = view.looks[i], pixel = is_dim(view, i) ? look.dim_pixel : look.pixel;
        if (!first)
          upper.fill(pixel, from, to);
        if (first || !t.pair(i))
          lower.fill(pixel, from, to);
      }
      const y = h.top + d * h.row + h.tops[engine] + (engine > 0 ? 1 : 0), end = y + tall - (engine > 0 ? 1 : 0);
      copy(upper, y, (y + end) / 2);
      copy(lower, (y + end) / 2, end);
    });
    if (!h.memory)
      continue;
    const y = h.top + d * h.row + h.all + 2, steps = view.curves[d].steps;
    upper.fill(well);
    copy(upper, y, y + h.memory);
    const column = (from, to, live) => { // bars of the classes, one on the other
      let base = at(y + h.memory) - band.top, sum = 0;
      live.forEach((value, of) => {
        sum += value;
        const top = at(y + h.memory - sum / most * h.memory) - band.top;
        for (let k = Math.max(top, 0); k < Math.min(base, band.tall); ++k)
          all.fill(colours[of], k * wide + from, k * wide + to);
        base = top;
      });
    };
    const total = live => live.reduce((a, b) => a + b, 0);
    let kept = null; // the most of those that share a pixel
    steps.forEach(([time, live], k) => {
      const from = Math.max(at(x(time)), begin);
      const to = Math.min(k + 1 < steps.length ? Math.max(at(x(steps[k + 1][0])), begin) : from, stop);
      if (!kept || total(live) > total(kept))
        kept = live;
      if (to <= from)
        return;
      column(from, from + 1, kept);
      if (to > from + 1)
        column(from + 1, to, live);
      kept = null;
    });
  }
  g.putImageData(image, 0, band.top);
}

const is_on = (view, i) => view.hover == i || view.pinned == i || view.found?.has(i);

// What is wide enough for edges and words.
function draw_cells(g, view, x) {
  const {t, times} = view, h = heights(t);
  const outline = i => {
    const a = x(times.start[i]), {y, tall} = place_of(t, i, h);
    g.strokeRect(a + 1, y + 1, Math.max(x(times.end[i]) - a - 2, 1), tall - 2);
  };
  g.textAlign = "center";
  for (const i of view.broad) {
    const a = x(times.start[i]), w = x(times.end[i]) - a;
    const {y, tall} = place_of(t, i, h), above = t.engine[i] > 0 ? 1 : 0;
    const dim = is_dim(view, i);
    g.fillStyle = dim ? view.looks[i].dim_fill : view.looks[i].fill;
    g.fillRect(a + 0.4, y + above, w - 0.8, tall - above);
    const by_stage = t.kinds[t.kind[i]].by_stage;
    const digits = String((by_stage ? t.locals.length : t.microbatches) - 1).length;
    const size = Math.min(12.5, tall * 0.62, (w - 3) / (0.6 * digits));
    if (size < 7)
      continue;
    g.font = `${size}px Helvetica, Arial, sans-serif`;
    g.fillStyle = dim ? INKS.soft : view.looks[i].text;
    g.fillText(by_stage ? t.stage[i] : t.microbatch[i], a + w / 2, y + tall / 2 + size * 0.36);
  }
  g.strokeStyle = INKS.edge;
  g.lineWidth = 2;
  for (const i of [view.hover, view.pinned])
    if (i >= 0)
      outline(i);
}

function arrow(g, x1, y1, x2, y2) {
  const angle = Math.atan2(y2 - y1, x2 - x1);
  g.beginPath();
  g.moveTo(x1, y1);
  g.lineTo(x2, y2);
  for (const side of [-0.45, 0.45]) {
    g.moveTo(x2, y2);
    g.lineTo(x2 - 6 * Math.cos(angle + side), y2 - 6 * Math.sin(angle + side));
  }
  g.stroke();
}

// Arrows of messages: all, or those of the pass under the mouse and of the one that was clicked; and
// the critical path.
function draw_arrows(g, view, x) {
  const {t, times} = view, h = heights(t);
  const middle = i => (({y, tall}) => y + tall / 2)(place_of(t, i, h));
  const join = (j, i) => arrow(g, x(times.end[j]), middle(j), x(times.start[i]), middle(i));
  const seen = (j, i) => times.start[i] > state.from && times.end[j] < state.to;
  const style = (colour, width) => {
    g.strokeStyle = INKS[colour];
    g.lineWidth = width;
  };
  style("soft", 0.8);
  for (let i = 0; state.arrows && i < t.size; ++i)
    for (const [j] of t.needs[i])
      if (t.device[j] != t.device[i] && seen(j, i))
        join(j, i);
  style("edge", 1.6);
  for (const i of new Set([view.hover, view.pinned].filter(i => i >= 0))) {
    t.needs[i].forEach(([j]) => seen(j, i) && join(j, i));
    t.users[i].forEach(j => seen(i, j) && join(i, j));
  }
  if (!state.path)
    return;
  style("path", 2);
  view.path.forEach((i, k) => {
    if (k > 0 && seen(view.path[k - 1], i))
      join(view.path[k - 1], i);
  });
}

function draw_labels(g, view, x, band) {
  const {t} = view, h = heights(t), bottom = h.top + t.devices * h.row, left = left_of(view) - 8;
  const narrow = is_narrow(view);
  g.textAlign = "right";
  const size = Math.max(8, Math.min(13, h.row * 0.8));
  const every = Math.max(1, Math.ceil(10 / h.row));
  for (const d of band.devices) {
    const top = h.top + d * h.row;
    g.fillStyle = INKS.ink;
    g.font = `${size}px Helvetica, Arial, sans-serif`;
    if (d % every == 0)
      g.fillText(narrow ? d : `device ${d}`, left, top + h.passes / 2 + size * 0.36);
    g.font = "10.5px Helvetica, Arial, sans-serif";
    h.rows.forEach((tall, engine) => engine > 0 && tall > 0 && h.passes >= 20 && !narrow &&
      g.fillText(t.engines[engine], left, top + h.tops[engine] + tall / 2 + 4));
    if (!h.memory || h.row < 14)
      continue;
    g.fillStyle = INKS.soft;
    g.font = "11.5px Helvetica, Arial, sans-serif";
    g.textAlign = "left";
    g.fillText((narrow ? "" : "peak ") + amount(view.curves[d].peak), view.width - right_of(view) + 6,
               top + h.all + h.memory / 2 + 6);
    g.textAlign = "right";
  }
  const least = 70 / (x(1) - x(0)), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= least * (1 - 1e-9));
  g.fillStyle = INKS.soft;
  g.font = "12px Helvetica, Arial, sans-serif";
  g.fillText(narrow ? "" : page.unit ? `time, ${page.unit}` : "time", left, bottom + 18);
  g.textAlign = "center";
  for (let k = Math.ceil(state.from / step - 1e-9); k * step <= state.to * (1 + 1e-9); ++k) {
    g.fillRect(x(k * step) - 0.5, bottom, 1, 5);
    g.fillText(+(k * step).toPrecision(9), x(k * step), bottom + 18);
  }
}

// What is drawn of a canvas, in its pixels, and the devices there: what is seen of a large one, all
// of it where it is printed.
function band_of(view, h, scale) {
  const above = view.canvas.getBoundingClientRect().top;
  const whole = state.whole || view.canvas.width * view.canvas.height < 1e6;
  const top = whole ? 0 : Math.min(Math.max(0, -above), view.height);
  const end = whole ? view.height : Math.max(Math.min(view.height, innerHeight - above), top);
  const first = Math.max(0, Math.floor((top - h.top) / h.row));
  const behind = Math.min(view.t.devices, Math.ceil((end - h.top) / h.row));
  return {top: Math.floor(top * scale), tall: Math.ceil((end - Math.floor(top)) * scale),
          devices: Array.from({length: Math.max(0, behind - first)}, (_, k) => first + k)};
}

function draw(view) {
  const h = heights(view.t), scale = window.devicePixelRatio || 1;
  view.width = view.canvas.parentElement.clientWidth;
  view.height = h.top + view.t.devices * h.row + 26;
  if (view.canvas.style.height != view.height + "px")
    view.canvas.style.height = view.height + "px";
  const [wide, tall] = [Math.round(view.width * scale), Math.round(view.height * scale)];
  if (view.canvas.width != wide || view.canvas.height != tall)
    Object.assign(view.canvas, {width: wide, height: tall});
  const band = band_of(view, h, scale), g = view.canvas.getContext("2d");
  if (band.tall == 0)
    return;
  const left = left_of(view), inner = view.width - left - right_of(view);
  const x = time => left + (time - state.from) / (state.to - state.from) * inner;
  const clipped = (from, to, inside) => {
    g.save();
    g.beginPath();
    g.rect(from, band.top / scale, to - from, band.tall / scale);
    g.clip();
    inside();
    g.restore();
  };
  g.setTransform(1, 0, 0, 1, 0, 0);
  draw_pixels(g, view, x, scale, band); // which takes away what was there
  g.scale(scale, scale);
  clipped(left, left + inner, () => {
    draw_cells(g, view, x);
    draw_arrows(g, view, x);
  });
  clipped(0, view.width, () => draw_labels(g, view, x, band));
}
)js";

} // namespace pipelining::inline v0_3::detail
