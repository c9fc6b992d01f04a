"use strict";
// Curves, maps and sorting. Numbers come from the block "numbers"; what people named enters the page as text or as the
// value of an attribute, never as markup.

const numbers = JSON.parse(document.getElementById("numbers").textContent);
const SVG = "http://www.w3.org/2000/svg";
const BELOW = 34; // pixels for the labels of an axis
const STEPS = 100; // positions of the read-out on an axis that has no natural ones
const TABLE_ROWS = 200; // a longer table shows one position of every so many
const LEVELS = 8; // shades of a map
const MISSING = "–";

function draw(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

function add(parent, name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return parent.appendChild(made);
}

function picture(place, width, height) {
  place.replaceChildren();
  return draw(place, "svg", { width, height, "aria-hidden": "true" });
}

function onResize(element, action) {
  let before = -1;
  new ResizeObserver(() => {
    if (element.clientWidth !== before) {
      before = element.clientWidth;
      action();
    }
  }).observe(element);
}

// Which arrow key, if it is one and no shortcut of the browser's.
function moveOf(event, moves) {
  if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return null;
  event.preventDefault();
  return moves[event.key];
}

// As the tables print it.
function shown(value) {
  if (!Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  return value === 0 || (size >= 0.001 && size < 1000) ? value.toFixed(4) : value.toPrecision(4);
}

function brief(value) {
  return String(Number(value.toPrecision(4)));
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function minmax(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

// Statistics

const real = (value) => (value === null ? NaN : value);

// Over the last `window` values up to each, over fewer at the start; NaN where one of them is.
function runningMean(values, window) {
  let sum = 0, missing = 0;
  return values.map((value, place) => {
    const gone = place >= window ? values[place - window] : 0;
    missing += Number.isNaN(value) - Number.isNaN(gone);
    sum += (value || 0) - (gone || 0);
    return missing ? NaN : sum / Math.min(place + 1, window);
  });
}

function meanAndDeviation(runs, count) {
  const mean = [], deviation = [];
  for (let place = 0; place < runs[0].length; place++) {
    const values = runs.map((run) => run[place]);
    const middle = values.reduce((sum, value) => sum + value, 0) / values.length;
    const squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
    mean.push(middle);
    // Several seeds that are told once are all alike.
    deviation.push(values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : count > 1 ? 0 : NaN);
  }
  return { mean, deviation };
}

// One row's curve: where its points are, mean and deviation there, and each seed; null if it has none.
function curveOf(row, column, axis, window) {
  const found = row.y[column], spent = row.x[axis];
  if (!found || (axis !== "rounds" && !spent)) return null;
  if (found.mean) return { x: spent, mean: found.mean.map(real), deviation: found.deviation.map(real), runs: [] };
  const rounds = found.at || found.runs[0].map((_, place) => place + 1);
  const runs = found.runs.map((run) => runningMean(run.map(real), window));
  const x = axis === "rounds" ? rounds : rounds.map((round) => real(spent[round - 1]));
  return { x, runs, ...meanAndDeviation(runs, found.n) };
}

// Scales and lines

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)) * power;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: clamp(last - first + 1, 0, 100) }, (_, n) => (first + n) * step);
}

function logTicks(low, high, count) {
  for (const factors of [[1, 2, 5], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      found.push(...factors.map((factor) => factor * 10 ** power));
    const inside = found.filter((value) => value >= low && value <= high);
    if (inside.length <= count || factors.length === 1) return inside;
  }
}

function scale(low, high, start, end, logarithmic) {
  const place = logarithmic ? Math.log10 : (value) => value;
  const ratio = (end - start) / (place(high) - place(low) || 1);
  return (value) => start + (place(value) - place(low)) * ratio;
}

function path(xs, ys) {
  let text = "", pen = "M";
  for (let n = 0; n < xs.length; n++) {
    const known = Number.isFinite(xs[n]) && Number.isFinite(ys[n]);
    if (known) text += `${pen}${xs[n].toFixed(1)} ${ys[n].toFixed(1)}`;
    pen = known ? "L" : "M";
  }
  return text;
}

function box(x, y, width, height) {
  return `M${x.toFixed(1)} ${y.toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}h${(-width).toFixed(1)}z`;
}

// Stretches without a gap, as [start, end).
function spans(values) {
  const found = [];
  let start = -1;
  for (let n = 0; n <= values.length; n++) {
    const known = n < values.length && Number.isFinite(values[n]);
    if (known && start < 0) start = n;
    if (!known && start >= 0) {
      found.push([start, n]);
      start = -1;
    }
  }
  return found;
}

// Curves

class Chart {
  constructor(figure, name) {
    this.figure = figure;
    this.name = name;
    this.rows = numbers.charts[figure.dataset.rows];
    this.plot = figure.querySelector(".plot");
    this.entries = [...figure.querySelectorAll("fieldset li")];
    this.boxes = this.entries.map((entry) => entry.querySelector("input"));
    this.details = figure.querySelector("details");
    this.position = null; // of the read-out, on the axis; null is where reading begins
    this.listen();
  }

  listen() {
    for (const control of this.figure.querySelectorAll("[data-control], fieldset input"))
      control.addEventListener("change", () => this.update());
    this.control("axis").addEventListener("change", () => { this.position = null; this.update(); });
    for (const button of this.figure.querySelectorAll("[data-switch]"))
      button.addEventListener("click", () => this.switchAll(button.dataset.switch === "on"));
    this.entries.forEach((entry, place) => {
      for (const kind of ["pointerenter", "focusin"]) entry.addEventListener(kind, () => this.highlight(place));
      for (const kind of ["pointerleave", "focusout"]) entry.addEventListener(kind, () => this.highlight(null));
    });
    for (const kind of ["pointermove", "pointerdown"]) this.plot.addEventListener(kind, (event) => this.point(event));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.details.addEventListener("toggle", () => this.fillTable());
    onResize(this.plot, () => this.update());
  }

  control(name) {
    return this.figure.querySelector(`[data-control="${name}"]`);
  }

  row(place) {
    return this.rows[this.boxes[place].value];
  }

  switchAll(on) {
    for (const box of this.boxes) box.checked = on;
    this.update();
  }

  // The line of one entry of the legend, or all alike.
  highlight(place) {
    this.lines.forEach((line, other) => line.classList.toggle("faint", place !== null && other !== place));
  }

  // Everything anew: some thousand points take a few milliseconds.
  update() {
    const column = this.control("column"), window = Number(this.control("window")?.value || 1);
    this.axis = this.control("axis").selectedOptions[0];
    this.exact = this.axis.dataset.exact !== undefined;
    this.title = column.selectedOptions[0].textContent + (window > 1 ? `, mean of last ${window}` : "");
    this.figure.querySelector(".axis-title").textContent = this.title;
    this.curves = this.boxes.map((_, place) => curveOf(this.row(place), column.value, this.axis.value, window));
    this.curves.forEach((curve, place) => { this.entries[place].hidden = !curve; });
    this.visible = [...this.curves.keys()].filter((place) => this.curves[place] && this.boxes[place].checked);
    this.measureAcross();
    this.measureUp();
    this.paint();
    this.read();
    this.fillTable();
  }

  measureAcross() {
    const xs = this.curves.flatMap((curve) => (curve ? curve.x : [])).filter(Number.isFinite);
    [this.low, this.high] = xs.length ? minmax(xs) : [0, 1];
    this.logarithmic = this.axis.dataset.log !== undefined && this.low > 0;
    this.stops = this.exact || !xs.length ? [...new Set(xs)].sort((a, b) => a - b) : this.evenStops();
  }

  evenStops() {
    const along = this.logarithmic
      ? (share) => this.low * (this.high / this.low) ** share
      : (share) => this.low + (this.high - this.low) * share;
    return Array.from({ length: STEPS + 1 }, (_, n) => along(n / STEPS));
  }

  measureUp() {
    const start = this.control("zoom")?.checked ? 0.1 : 0, ys = [];
    for (const { mean, deviation } of this.visible.map((place) => this.curves[place]))
      for (let n = Math.floor(mean.length * start); n < mean.length; n++)
        if (Number.isFinite(mean[n])) ys.push(mean[n] - (deviation[n] || 0), mean[n] + (deviation[n] || 0));
    const [low, high] = ys.length ? minmax(ys) : [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high)), flat = high - low <= 1e-9 * size;
    const margin = (flat ? size || 1 : high - low) * 0.05;
    [this.bottom, this.top] = [low - margin, high + margin];
  }

  paint() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight, svg = picture(this.plot, width, height);
    const marks = ticks(this.bottom, this.top, height / 55), names = this.markNames(marks);
    const left = 14 + 7 * Math.max(2, ...names.map((name) => name.length)), right = width - 14;
    this.base = height - BELOW;
    this.x = scale(this.low, this.high, left, right, this.logarithmic);
    this.y = scale(this.bottom, this.top, this.base, 6);
    marks.forEach((value, n) => {
      draw(svg, "line", { class: "grid", x1: left, x2: right, y1: this.y(value), y2: this.y(value) });
      draw(svg, "text", { x: left - 8, y: this.y(value) + 4, "text-anchor": "end" }, names[n]);
    });
    this.paintAxis(svg, left, right);
    const clip = draw(svg, "clipPath", { id: this.name });
    draw(clip, "rect", { x: left, y: 0, width: Math.max(right - left, 0), height: this.base });
    const crowd = this.visible.length > 4 ? "many" : "few";
    const layer = draw(svg, "g", { "clip-path": `url(#${this.name})`, class: crowd });
    for (const place of this.visible) this.paintSpread(layer, place);
    this.lines = new Map(this.visible.map((place) => [place, this.paintLine(layer, place)]));
    this.cursor = draw(svg, "g", {});
  }

  markNames(marks) {
    if (Math.max(Math.abs(this.bottom), Math.abs(this.top)) >= 1e5) return marks.map((value) => value.toPrecision(3));
    const places = clamp(-Math.floor(Math.log10(marks[1] - marks[0] || 1) + 1e-9), 0, 8);
    return marks.map((value) => value.toFixed(places));
  }

  paintAxis(svg, left, right) {
    const count = clamp((right - left) / 80, 2, 12);
    let marks = this.logarithmic ? logTicks(this.low, this.high, count) : ticks(this.low, this.high, count);
    if (this.axis.value === "rounds") marks = marks.filter(Number.isInteger);
    else if (this.exact && this.stops.length <= count) marks = this.stops;
    draw(svg, "line", { class: "axis", x1: left, x2: right, y1: this.base, y2: this.base });
    for (const value of marks) {
      draw(svg, "line", { class: "axis", x1: this.x(value), x2: this.x(value), y1: this.base, y2: this.base + 4 });
      draw(svg, "text", { x: this.x(value), y: this.base + 16, "text-anchor": "middle" }, brief(value));
    }
    const name = this.axis.textContent + (this.logarithmic ? " (logarithmic)" : "");
    draw(svg, "text", { x: right, y: this.base + 31, "text-anchor": "end" }, name);
  }

  paintSpread(layer, place) {
    const how = this.control("spread")?.value || "band", curve = this.curves[place], xs = curve.x.map(this.x);
    const stroke = `var(--colour-${this.row(place).colour})`;
    const ends = (sign) => curve.mean.map((mean, n) => this.y(mean + sign * curve.deviation[n]));
    const [high, low] = [ends(1), ends(-1)];
    if (how === "seeds")
      for (const run of curve.runs) draw(layer, "path", { class: "seed", d: path(xs, run.map(this.y)), stroke });
    else if (how === "band" && !curve.runs.length)
      draw(layer, "path", { class: "seed", d: xs.map((x, n) => path([x, x], [low[n], high[n]])).join(""), stroke });
    else if (how === "band")
      for (const [start, end] of spans(low)) {
        const round = [...xs.slice(start, end), ...xs.slice(start, end).reverse()];
        const edge = path(round, [...high.slice(start, end), ...low.slice(start, end).reverse()]);
        draw(layer, "path", { class: "band", d: `${edge}Z`, fill: stroke });
      }
  }

  paintLine(layer, place) {
    const curve = this.curves[place], row = this.row(place);
    return draw(layer, "path", {
      class: "line", d: path(curve.x.map(this.x), curve.mean.map(this.y)), stroke: `var(--colour-${row.colour})`,
      "stroke-dasharray": row.dash || "none", "data-label": row.label,
    });
  }

  // The last point up to the position; on rounds and on an option's values only the one that is there.
  pointAt(curve, position) {
    let found = -1;
    for (let n = 0; n < curve.x.length && curve.x[n] <= position * (1 + 1e-9); n++) found = n;
    return this.exact && curve.x[found] !== position ? -1 : found;
  }

  valueAt(curve, position) {
    const n = this.pointAt(curve, position);
    if (n < 0) return MISSING;
    return shown(curve.mean[n]) + (curve.deviation[n] > 0 ? ` ± ${shown(curve.deviation[n])}` : "");
  }

  nearestStop(pixel) {
    const far = (n) => Math.abs(this.x(this.stops[n]) - pixel);
    let nearest = 0;
    for (let n = 1; n < this.stops.length; n++) if (far(n) < far(nearest)) nearest = n;
    return nearest;
  }

  stop() {
    if (this.position !== null) return this.nearestStop(this.x(this.position));
    return this.axis.dataset.first !== undefined ? 0 : this.stops.length - 1;
  }

  // The values at the position: in the legend, as dots on the lines, and in words.
  read() {
    const position = this.stops[this.stop()], said = [];
    const where = position === undefined ? "" : `${this.axis.textContent} ${brief(position)}`;
    this.figure.querySelector(".position").textContent = where && `At ${where}`;
    if (!where) return;
    this.cursor.replaceChildren();
    draw(this.cursor, "line", { class: "cursor", x1: this.x(position), x2: this.x(position), y1: 6, y2: this.base });
    this.entries.forEach((entry, place) => {
      const on = this.visible.includes(place), value = on ? this.valueAt(this.curves[place], position) : "";
      entry.querySelector(".value").textContent = value;
      entry.classList.toggle("off", !on);
      if (on) said.push(`${this.row(place).label} ${value}`);
      if (on) this.dot(this.curves[place], position, this.row(place).colour);
    });
    const slider = { valuemin: this.low, valuemax: this.high, valuenow: position, valuetext: where };
    for (const [key, value] of Object.entries(slider)) this.plot.setAttribute(`aria-${key}`, value);
    this.words = `${where}: ${said.join("; ") || "nothing shown"}`;
  }

  dot(curve, position, colour) {
    const n = this.pointAt(curve, position), y = n < 0 ? NaN : this.y(curve.mean[n]);
    if (!(y >= 0 && y <= this.base)) return;
    draw(this.cursor, "circle", { cx: this.x(curve.x[n]), cy: y, r: 4, fill: `var(--colour-${colour})` });
  }

  moveTo(stop) {
    this.position = this.stops[clamp(stop, 0, this.stops.length - 1)];
    this.read();
  }

  point(event) {
    this.moveTo(this.nearestStop(event.clientX - this.plot.getBoundingClientRect().left));
  }

  key(event) {
    const last = this.stops.length - 1, leap = Math.max(1, Math.round(last / 10));
    const arrows = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };
    const move = moveOf(event, { ...arrows, PageDown: -leap, PageUp: leap, Home: -last, End: last });
    if (move === null) return;
    this.moveTo(this.stop() + move);
    this.figure.querySelector("[aria-live]").textContent = this.words;
  }

  fillTable() {
    if (!this.details.open) return;
    const step = Math.ceil(this.stops.length / TABLE_ROWS), last = this.stops.length - 1;
    const rows = this.stops.filter((_, n) => (last - n) % step === 0).map((position) => [
      brief(position), ...this.visible.map((place) => this.valueAt(this.curves[place], position)),
    ]);
    const head = [this.axis.textContent, ...this.visible.map((place) => this.row(place).label)];
    const title = step > 1 ? `${this.title}; one of ${step} positions` : this.title;
    this.details.querySelector(".frame").replaceChildren(tableOf(title, head, rows));
  }
}

// Who has which classes

class PartitionMap {
  constructor(figure) {
    this.figure = figure;
    this.maps = numbers.maps[figure.dataset.maps];
    this.plot = figure.querySelector(".map");
    this.details = figure.querySelector("details");
    this.choice = figure.querySelector('[data-control="partition"]');
    this.client = this.kind = 0;
    this.choice.addEventListener("change", () => this.update());
    for (const kind of ["pointermove", "pointerdown"]) this.plot.addEventListener(kind, (event) => this.point(event));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.details.addEventListener("toggle", () => this.fillTable());
    onResize(this.plot.parentNode, () => this.update());
  }

  update() {
    this.map = this.maps[this.choice.value];
    this.counts = this.map.counts;
    this.sizes = this.counts.map((counts) => counts.reduce((sum, count) => sum + count, 0));
    this.kinds = this.counts[0].map((_, kind) => this.map.classes[kind] ?? String(kind));
    this.paint();
    this.move(this.client, this.kind);
    this.fillTable();
  }

  clientName(client) {
    return this.map.clients[client] ?? `client ${client}`;
  }

  paint() {
    const letters = Math.min(14, Math.max(...this.kinds.map((name) => name.length)));
    this.left = 16 + 7 * letters;
    this.above = 40;
    this.wide = clamp((this.plot.parentNode.clientWidth - this.left - 6) / this.counts.length, 4, 44);
    this.high = clamp(300 / this.kinds.length, 5, 22);
    const width = this.left + this.wide * this.counts.length + 6;
    this.plot.style.width = `${width}px`;
    const svg = picture(this.plot, width, this.above + this.high * this.kinds.length + BELOW);
    this.paintCells(svg);
    this.paintSizes(svg);
    this.paintNames(svg, letters);
    this.chosen = draw(svg, "rect", { class: "chosen", width: this.wide, height: this.high });
  }

  paintCells(svg) {
    const largest = Number(this.figure.dataset.largest), gap = this.wide > 8 && this.high > 8 ? 1 : 0;
    const levels = Array(LEVELS + 1).fill("");
    this.counts.forEach((counts, client) => counts.forEach((count, kind) => {
      const level = clamp(Math.ceil((count / this.sizes[client] / largest) * LEVELS - 1e-9), 0, LEVELS);
      const x = this.left + client * this.wide, y = this.above + kind * this.high;
      if (count) levels[Math.max(level, 1)] += box(x, y, this.wide - gap, this.high - gap);
    }));
    levels.forEach((d, level) => { if (d) draw(svg, "path", { class: `level-${level}`, d }); });
  }

  paintSizes(svg) {
    const most = Math.max(...this.sizes), gap = this.wide > 8 ? 1 : 0, foot = this.above - 8;
    const bars = this.sizes.map((size, client) => {
      const tall = ((foot - 4) * size) / most;
      return box(this.left + client * this.wide, foot - tall, this.wide - gap, tall);
    });
    draw(svg, "path", { class: "bar", d: bars.join("") });
    draw(svg, "text", { x: this.left - 8, y: 14, "text-anchor": "end" }, most);
  }

  paintNames(svg, letters) {
    const foot = this.above + this.high * this.kinds.length, every = Math.ceil(13 / this.high);
    for (let kind = 0; kind < this.kinds.length; kind += every) {
      const name = this.kinds[kind], text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
      const y = this.above + (kind + 0.5) * this.high + 4;
      draw(svg, "text", { x: this.left - 8, y, "text-anchor": "end" }, text);
    }
    const step = [1, 2, 5, 10].find((size) => size * this.wide >= 26);
    for (let client = 0; client < this.counts.length; client += step) {
      const x = this.left + (client + 0.5) * this.wide;
      draw(svg, "text", { x, y: foot + 15, "text-anchor": "middle" }, client);
    }
    const end = this.left + this.wide * this.counts.length;
    draw(svg, "text", { x: end, y: foot + 31, "text-anchor": "end" }, "client");
  }

  move(client, kind) {
    this.client = clamp(client, 0, this.counts.length - 1);
    this.kind = clamp(kind, 0, this.kinds.length - 1);
    this.chosen.setAttribute("x", this.left + this.client * this.wide);
    this.chosen.setAttribute("y", this.above + this.kind * this.high);
    const count = this.counts[this.client][this.kind], size = this.sizes[this.client];
    const share = `${count} of ${size} samples (${((100 * count) / size).toFixed(0)}%)`;
    const where = `${this.clientName(this.client)}, class ${this.kinds[this.kind]}`;
    this.figure.querySelector(".readout").textContent = `${where}: ${share}`;
  }

  point(event) {
    const corner = this.plot.getBoundingClientRect();
    const across = (event.clientX - corner.left - this.left) / this.wide;
    this.move(Math.floor(across), Math.floor((event.clientY - corner.top - this.above) / this.high));
  }

  key(event) {
    const move = moveOf(event, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] });
    if (move) this.move(this.client + move[0], this.kind + move[1]);
  }

  fillTable() {
    if (!this.details.open) return;
    const rows = this.counts.map((counts, client) => [this.clientName(client), ...counts, this.sizes[client]]);
    const made = tableOf("Samples", ["client", ...this.kinds, "all"], rows);
    this.details.querySelector(".frame").replaceChildren(made);
  }
}

// Tables

function tableOf(title, head, rows) {
  const table = document.createElement("table");
  add(table, "caption", title);
  const first = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  for (const name of head) add(first, "th", name, { scope: "col" });
  for (const cells of rows) {
    const line = add(body, "tr");
    cells.forEach((cell, n) => (n ? add(line, "td", cell) : add(line, "th", cell, { scope: "row" })));
  }
  return table;
}

// The number a cell begins with: "0.81 ± 0.02" is 0.81, "1,000" a thousand, "3 of 3 seeds" three.
function leading(row, column) {
  return parseFloat(row.cells[column].textContent.replaceAll(",", ""));
}

// A header's button sorts up, then down, then as it was.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], original = [...body.rows];
  heads.forEach((head, column) => {
    if (head.dataset.length !== undefined) lengths(original, column);
    head.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", next);
      body.append(...(next === "none" ? original : sorted(original, column, next === "descending" ? -1 : 1)));
    });
  });
}

// By number where there are any, but the first column by name; what has no value comes last in either direction.
function sorted(rows, column, sign) {
  const numeric = column > 0 && rows.some((row) => !Number.isNaN(leading(row, column)));
  const text = (row) => row.cells[column].textContent;
  const absent = (row) => (numeric ? Number.isNaN(leading(row, column)) : text(row) === MISSING);
  const by = numeric
    ? (a, b) => leading(a, column) - leading(b, column)
    : (a, b) => text(a).localeCompare(text(b), "en", { numeric: true });
  return [...rows].sort((a, b) => absent(a) - absent(b) || (absent(a) ? 0 : sign * by(a, b)));
}

// Costs as lengths under their numbers, shares of the column's largest.
function lengths(rows, column) {
  const values = rows.map((row) => leading(row, column)), most = Math.max(...values.filter(Number.isFinite));
  rows.forEach((row, n) => {
    if (values[n] > 0) row.cells[column].style.setProperty("--share", (values[n] / most).toFixed(4));
  });
}

// Files: every table as CSV, every picture as SVG or PNG

const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font",
  "paint-order", "transform"];

function download(name, kind, content) {
  const link = document.createElement("a");
  link.href = content instanceof Blob ? URL.createObjectURL(content) : content;
  link.download = `${name}.${kind}`;
  link.click();
}

// A name for a file, from the heading above and the title of what is saved.
function fileName(element, title) {
  const heading = element.closest("section").querySelector("h2, h3").textContent;
  return `${heading} ${title}`.toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80);
}

// As the library writes CSV: a cell that a spreadsheet would compute begins with an apostrophe.
function csvCell(text) {
  const safe = /^[=+@\t\r]|^-(?![0-9.])/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf(table) {
  const cells = (row) => [...row.cells].map((cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll(".unseen").forEach((hidden) => hidden.remove());
    return csvCell(copy.textContent.trim());
  });
  return [...table.rows].map((row) => cells(row).join(",")).join("\r\n") + "\r\n";
}

// The picture as it looks, styles written into it, with the legend of a chart below.
function svgOf(svg, legend) {
  const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, n) => {
    const style = getComputedStyle(from[n]);
    for (const name of ["fill", "stroke"]) element.removeAttribute(name); // colours of the page's own names
    element.setAttribute("style", DRAWN.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  const page = getComputedStyle(document.documentElement), width = svg.clientWidth, height = svg.clientHeight;
  legend.forEach(({ label, line }, n) => {
    const y = height + 20 * n + 12, style = getComputedStyle(line);
    const dash = { "stroke-dasharray": style.strokeDasharray, "stroke-width": 2 };
    draw(copy, "line", { x1: 14, x2: 46, y1: y - 4, y2: y - 4, stroke: style.stroke, ...dash });
    draw(copy, "text", { x: 54, y, style: `font:12px sans-serif;fill:${page.color}` }, label);
  });
  const total = height + 20 * legend.length + (legend.length ? 8 : 0);
  const size = { xmlns: SVG, width, height: total, viewBox: `0 0 ${width} ${total}` };
  for (const [key, value] of Object.entries(size)) copy.setAttribute(key, value);
  const paper = draw(copy, "rect", { width, height: total, fill: page.backgroundColor });
  copy.prepend(paper);
  return { text: new XMLSerializer().serializeToString(copy), width, height: total };
}

function savePng(name, { text, width, height }) {
  const image = new Image(), canvas = document.createElement("canvas"), scale = 2; // sharp in print
  image.addEventListener("load", () => {
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(name, "png", blob));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function fileButtons(after, what, kinds) {
  const place = document.createElement("p");
  place.className = "downloads";
  for (const [kind, save] of Object.entries(kinds))
    add(place, "button", kind, { type: "button", "aria-label": `Save ${what} as ${kind}` }).addEventListener("click", save);
  after.after(place);
}

function tableButtons(table) {
  const title = table.caption.textContent;
  const save = () => download(fileName(table, title), "csv", new Blob([csvOf(table)], { type: "text/csv" }));
  fileButtons(table.closest(".frame"), title, { CSV: save });
}

function pictureButtons(figure) {
  const find = () => figure.querySelector(".plot svg, .map svg, .frame > svg, :scope > svg");
  const drawn = () => svgOf(find(), [...figure.querySelectorAll(".line")].map((line) => ({ label: line.dataset.label, line })));
  const title = () => figure.querySelector(".axis-title")?.textContent || "picture";
  const saveSvg = () => download(fileName(figure, title()), "svg", new Blob([drawn().text], { type: "image/svg+xml" }));
  fileButtons(figure.querySelector("figcaption") || figure.lastElementChild, "the picture", {
    SVG: saveSvg, PNG: () => savePng(fileName(figure, title()), drawn()),
  });
}

// A page that is written again while runs go on comes back as the reader left it.

const KEPT = "fedwmsam-page";

function readerState() {
  const boxes = [...document.querySelectorAll('input[type="checkbox"]')].map((box) => box.checked);
  const values = [...document.querySelectorAll("select")].map((field) => field.value);
  const open = [...document.querySelectorAll("details")].map((detail) => detail.open);
  return { boxes, values, open, scroll: scrollY };
}

function restoreReader() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
  sessionStorage.removeItem(KEPT);
  if (!kept) return;
  const change = (field) => field.dispatchEvent(new Event("change"));
  document.querySelectorAll("select").forEach((field, n) => {
    if ([...field.options].some((option) => option.value === kept.values[n])) field.value = kept.values[n];
    change(field);
  });
  document.querySelectorAll('input[type="checkbox"]').forEach((field, n) => {
    if (kept.boxes[n] !== undefined) field.checked = kept.boxes[n];
    change(field);
  });
  document.querySelectorAll("details").forEach((detail, n) => { detail.open = kept.open[n] ?? detail.open; });
  scrollTo(0, kept.scroll);
}

function watchPage(seconds) {
  setTimeout(() => {
    sessionStorage.setItem(KEPT, JSON.stringify(readerState()));
    location.reload();
  }, seconds * 1000);
}

// The rest

function copyButton(button) {
  const code = button.parentNode.querySelector("code");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code); // for a browser that lets no page write to the clipboard
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
}

// A frame takes the focus only while there is something to scroll.
const frames = new ResizeObserver((entries) => {
  for (const { target } of entries)
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
});

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll("figure.chart").forEach((figure, n) => new Chart(figure, `clip-${n}`));
document.querySelectorAll("figure.partition").forEach((figure) => new PartitionMap(figure));
document.querySelectorAll("main table").forEach(tableButtons);
document.querySelectorAll("figure.chart, figure.partition, figure.forest, .multiples .pictures > div").forEach(pictureButtons);
document.querySelectorAll("button.copy").forEach(copyButton);
document.querySelectorAll(".frame").forEach((frame) => frames.observe(frame));
restoreReader();
if (document.documentElement.dataset.watch) watchPage(Number(document.documentElement.dataset.watch));
