// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the interactive page that is seen: style, drawing, mouse and keys. Used by
//! <pipe/view/html.hpp>.

#include <pipe/config.hpp>

#include <string_view>

namespace pipelining::inline v0_3::detail {

//! The page up to its data.
inline constexpr std::string_view html_head = R"html(<style>
  body { font: 14px/1.4 Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; color: #222;
         background: #fff; margin: 16px 20px; }
  h1 { font-size: 18px; margin: 0 0 8px; }
  #controls { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; margin: 0 0 6px; }
  #controls label, #controls span { white-space: nowrap; }
  #controls input[type=number] { width: 5.5em; }
  #controls input[type=range] { width: 110px; vertical-align: middle; }
  section { margin: 14px 0 0; }
  h2 { font-size: 15px; margin: 0 0 2px; }
  .figures { color: #333; margin: 0 0 4px; }
  .figures b { font-weight: 600; }
  canvas { display: block; width: 100%; cursor: grab; touch-action: none; }
  #legend { margin: 10px 0 0; color: #444; font-size: 13px; }
  #legend i { display: inline-block; width: 14px; height: 14px; margin: 0 5px 0 14px;
              vertical-align: -2px; }
  #tip { position: fixed; display: none; pointer-events: none; background: #222; color: #fff;
         padding: 6px 9px; border-radius: 4px; font-size: 12.5px; max-width: 420px;
         white-space: pre-line; z-index: 2; }
</style>
</head>
<body>
<h1 id="title"></h1>
<div id="controls"></div>
<div id="charts"></div>
<div id="legend"></div>
<div id="tip" role="status"></div>
<noscript>This page draws itself with a script, which this browser does not run.</noscript>
)html";

//! Colours, then one drawing of a schedule on its canvas.
inline constexpr std::string_view html_view = R"js(
const CLASS_COLOURS = ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee8866", "#aa3377", "#999933",
                       "#882255", "#bbbbbb", "#777777", "#77aadd", "#ddaa33", "#44aa99", "#88ccaa",
                       "#cc6677", "#ddccee", "#555555"];
const LEFT = 84, RIGHT = 104;

const mix = (a, b, part) => a.map((v, k) => Math.round(v + (b[k] - v) * part));
const css = c => `rgb(${c.join(",")})`;
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

const number = (v, digits = 4) => String(+v.toPrecision(digits));
const bytes = v => v >= 1e9 ? number(v / 1e9, 3) + " GB" : v >= 1e6 ? number(v / 1e6, 3) + " MB"
  : v >= 1e3 ? number(v / 1e3, 3) + " kB" : number(v, 3) + " B";
const amount = v => page.bytes ? bytes(v) : number(v, 3);
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

function draw_cells(g, view, x) {
  const {t, times} = view, h = heights(t);
  const on_path = new Set(state.path ? view.path : []);
  g.fillStyle = "#ececec";
  for (let d = 0; d < t.devices; ++d)
    h.rows.forEach((tall, engine) => g.fillRect(LEFT, h.top + d * h.row + h.tops[engine] +
      (engine > 0 ? 1 : 0), view.width - LEFT - RIGHT, tall - (engine > 0 ? 1 : 0)));
  for (let i = 0; i < t.size; ++i) {
    const a = x(times.start[i]), w = x(times.end[i]) - a;
    if (w <= 0 || a + w < LEFT || a > view.width - RIGHT)
      continue;
    const {y, tall} = place_of(t, i, h), fill = shade(t, i);
    const gap = w > 6 ? 0.8 : w * 0.12, above = t.engine[i] > 0 ? 1 : 0;
    g.globalAlpha = state.path && !on_path.has(i) ? 0.3 : 1;
    g.fillStyle = css(fill);
    g.fillRect(a + gap / 2, y + above, w - gap, tall - above);
    const text = t.kinds[t.kind[i]].by_stage ? t.stage[i] : t.microbatch[i];
    const digits = String((t.kinds[t.kind[i]].by_stage ? t.locals.length : t.microbatches) - 1).length;
    const size = Math.min(12.5, tall * 0.62, (w - 3) / (0.6 * digits));
    if (size >= 7) {
      g.font = `${size}px Helvetica, Arial, sans-serif`;
      g.textAlign = "center";
      g.fillStyle = light_text(fill) ? "#fff" : "#222";
      g.fillText(text, a + w / 2, y + tall / 2 + size * 0.36);
    }
    if (view.hover == i) {
      g.strokeStyle = "#000";
      g.lineWidth = 2;
      g.strokeRect(a + 1, y + 1, w - 2, tall - 2);
    }
  }
  g.globalAlpha = 1;
}

function draw_memory(g, view, x) {
  const {t} = view, h = heights(t);
  if (!h.memory)
    return;
  const most = Math.max(...views.map(v => Math.max(...v.curves.map(c => c.peak))), 1e-300);
  view.curves.forEach((curve, d) => {
    const y = h.top + d * h.row + h.all + 2, tall = h.memory;
    g.fillStyle = "#f6f6f6";
    g.fillRect(LEFT, y, view.width - LEFT - RIGHT, tall);
    curve.steps.forEach(([time, live], k) => {
      const a = Math.round(x(time));
      const b = k + 1 < curve.steps.length ? Math.round(x(curve.steps[k + 1][0])) : a;
      let base = y + tall;
      live.forEach((value, of) => {
        if (value <= 0)
          return;
        g.fillStyle = CLASS_COLOURS[of];
        g.fillRect(a, base - value / most * tall, b - a, value / most * tall);
        base -= value / most * tall;
      });
    });
    if (h.row >= 14) {
      g.fillStyle = "#444";
      g.font = "11.5px Helvetica, Arial, sans-serif";
      g.textAlign = "left";
      g.fillText("peak " + amount(curve.peak), view.width - RIGHT + 8, y + tall / 2 + 4);
    }
  });
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

// Arrows of messages: all, or those of the pass under the mouse; and the critical path.
function draw_arrows(g, view, x) {
  const {t, times} = view, h = heights(t);
  const middle = i => (({y, tall}) => y + tall / 2)(place_of(t, i, h));
  const join = (j, i) => arrow(g, x(times.end[j]), middle(j), x(times.start[i]), middle(i));
  const seen = (j, i) => x(times.start[i]) > LEFT && x(times.end[j]) < view.width - RIGHT;
  g.lineWidth = 1;
  for (let i = 0; i < t.size; ++i)
    for (const [j] of t.needs[i]) {
      const own = view.hover == i || view.hover == j;
      if ((t.device[j] == t.device[i] && !own) || !(state.arrows || own) || !seen(j, i))
        continue;
      g.strokeStyle = own ? "#000" : "rgba(0,0,0,0.35)";
      g.lineWidth = own ? 1.6 : 0.8;
      join(j, i);
    }
  if (!state.path)
    return;
  g.strokeStyle = "#c00";
  g.lineWidth = 2;
  view.path.forEach((i, k) => {
    if (k > 0 && seen(view.path[k - 1], i))
      join(view.path[k - 1], i);
  });
}

function draw_labels(g, view, x) {
  const {t} = view, h = heights(t), bottom = h.top + t.devices * h.row;
  g.clearRect(0, 0, LEFT, view.height);
  g.fillStyle = "#222";
  g.textAlign = "right";
  const size = Math.max(8, Math.min(13, h.row * 0.8));
  const every = Math.max(1, Math.ceil(10 / h.row));
  g.font = `${size}px Helvetica, Arial, sans-serif`;
  for (let d = 0; d < t.devices; d += every)
    g.fillText(`device ${d}`, LEFT - 10, h.top + d * h.row + h.passes / 2 + size * 0.36);
  g.font = "10.5px Helvetica, Arial, sans-serif";
  for (let d = 0; d < t.devices && h.passes >= 20; ++d)
    h.rows.forEach((tall, engine) => engine > 0 && tall > 0 && g.fillText(t.engines[engine],
      LEFT - 10, h.top + d * h.row + h.tops[engine] + tall / 2 + 4));
  const least = 70 / (x(1) - x(0)), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= least * (1 - 1e-9));
  g.fillStyle = "#555";
  g.font = "12px Helvetica, Arial, sans-serif";
  g.fillText(page.unit ? `time, ${page.unit}` : "time", LEFT - 10, bottom + 18);
  g.textAlign = "center";
  for (let k = Math.ceil(state.from / step - 1e-9); k * step <= state.to * (1 + 1e-9); ++k) {
    g.fillRect(x(k * step) - 0.5, bottom, 1, 5);
    g.fillText(+(k * step).toPrecision(9), x(k * step), bottom + 18);
  }
}

function draw(view) {
  const h = heights(view.t), scale = window.devicePixelRatio || 1;
  view.width = view.canvas.parentElement.clientWidth;
  view.height = h.top + view.t.devices * h.row + 26;
  view.canvas.style.height = view.height + "px";
  view.canvas.width = view.width * scale;
  view.canvas.height = view.height * scale;
  const g = view.canvas.getContext("2d");
  g.scale(scale, scale);
  const wide = view.width - LEFT - RIGHT;
  const x = time => LEFT + (time - state.from) / (state.to - state.from) * wide;
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, wide, view.height - 22);
  g.clip();
  draw_cells(g, view, x);
  g.restore();
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, wide + RIGHT, view.height);
  g.clip();
  draw_memory(g, view, time => Math.min(Math.max(x(time), LEFT), LEFT + wide));
  g.restore();
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, wide, view.height - 22);
  g.clip();
  draw_arrows(g, view, x);
  g.restore();
  draw_labels(g, view, x);
}
)js";

} // namespace pipelining::inline v0_3::detail
