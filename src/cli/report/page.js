// Makes the charts of the page interactive. Texts of runs are only ever set as text, never as
// markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NUM_COLORS = 6;
  const state = { x: "step", log: false, weight: 0.9, zoom: null, hidden: new Set() };
  const charts = [];

  // ---- Elements

  const SVG = "http://www.w3.org/2000/svg";
  function svg(parent, tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }
  function html(parent, tag, text) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  // ---- Curves

  // The first index in the ascending `values` with one that is at least `value`.
  function at(values, value) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  }
  function unit() {
    if (state.x !== "time") return { title: state.x, secs: 1 };
    const longest = Math.max(...data.runs.map((run) => run.curves.steps[0].time.at(-1) || 0));
    if (longest < 180) return { title: "time (s)", secs: 1 };
    if (longest < 3 * 3600) return { title: "time (minutes)", secs: 60 };
    return { title: "time (hours)", secs: 3600 };
  }
  const bounds = (values) => (values.min ? [values.min, values.max] : [values, values]);
  const means = (values) => values.mean || values;
  const usable = (value) => value !== null && Number.isFinite(value) && (!state.log || value > 0);

  // The finest level with not many more points than columns of pixels.
  function level(levels, field, range, width) {
    for (let index = levels.length - 1; index > 0; index--) {
      const xs = levels[index][state.x];
      if (at(xs, range[1]) - at(xs, range[0]) <= 2 * width) return levels[index];
    }
    return levels[0];
  }
  function smoothed(values, rows) {
    const weight = Math.pow(state.weight, rows);
    let sum = 0, total = 0;
    return means(values).map((value) => {
      if (value === null) return null;
      sum = weight * sum + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return sum / total;
    });
  }
  // All curves that a chart shows now: where they stand, and their values.
  function curves(chart, range, width) {
    const found = [];
    data.runs.forEach((run, number) => {
      if (state.hidden.has(number)) return;
      for (const kind of ["steps", "evals"]) {
        for (const field of chart[kind]) {
          const levels = run.curves[kind];
          const from = level(levels, field, range, width);
          const values = from.series[field];
          if (!values || !from.step.length) continue;
          found.push({ run, number, kind, field, from, values, xs: from[state.x] });
        }
      }
    });
    return found;
  }
  function domain() {
    if (state.zoom) return state.zoom;
    let low = Infinity, high = -Infinity;
    data.runs.forEach((run, number) => {
      if (state.hidden.has(number)) return;
      for (const x of run.curves.steps[0][state.x]) {
        if (x === null) continue;
        if (x < low) low = x;
        if (x > high) high = x;
      }
    });
    if (low > high) return [0, 1];
    return low < high ? [Math.min(low, state.x === "step" ? 0 : low), high] : [low, low + 1];
  }

  // ---- Axes

  function ticks(low, high, count) {
    const least = (high - low) / count;
    const power = Math.pow(10, Math.floor(Math.log10(least)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
    const found = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; index++) {
      found.push(index * step);
    }
    return found;
  }
  function powers(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      const factors = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
      for (const factor of factors) {
        const tick = factor * Math.pow(10, power);
        if (tick >= low && tick <= high) found.push(tick);
      }
    }
    const stride = Math.ceil(found.length / 6);
    return found.filter((_, index) => index % stride === 0);
  }
  function label(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(+value.toPrecision(6));
  }

  // ---- Drawing

  function draw(shown) {
    const { figure, chart } = shown;
    const width = Math.max(260, Math.round(figure.clientWidth));
    const height = figure.classList.contains("wide") ? 320 : 230;
    const area = { left: 62, top: 10, right: width - 12, bottom: height - 38 };
    const range = domain();
    const found = curves(chart, range, area.right - area.left);
    const smooth = chart.smooth && state.weight > 0;
    let low = Infinity, high = -Infinity;
    for (const curve of found) {
      const [min, max] = bounds(curve.values);
      const last = at(curve.xs, range[1] + 1e-9);
      for (let index = at(curve.xs, range[0]); index <= last && index < curve.xs.length; index++) {
        for (const value of [min[index], max[index]]) {
          if (!usable(value)) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    const empty = low > high;
    if (empty) { low = state.log ? 1 : 0; high = state.log ? 10 : 1; }
    if (!state.log) {
      if (low >= 0 && low <= 0.4 * high) low = 0;
      const room = (high - low) * 0.04 || Math.abs(high) * 0.05 || 0.5;
      // A share cannot be larger than 1.
      high = low > 0 && high <= 1 && high + room > 1 ? 1 : high + room;
      if (low !== 0) low -= room;
    } else if (low === high) { low /= 2; high *= 2; }
    const scale = (value) => (state.log ? Math.log(value) : value);
    const toX = (x) => area.left + (x - range[0]) / (range[1] - range[0]) * (area.right - area.left);
    const toY = (y) => area.bottom
      - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (area.bottom - area.top);
    const made = document.createElementNS(SVG, "svg");
    made.setAttribute("viewBox", `0 0 ${width} ${height}`);
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `${chart.title} by ${state.x}; arrow keys read its values`);
    const clip = `clip-${chart.id.replace(/[^a-z0-9]/gi, "-")}-${shown.index}`;
    svg(svg(made, "clipPath", { id: clip }), "rect", {
      x: area.left - 4, y: area.top - 4,
      width: area.right - area.left + 8, height: area.bottom - area.top + 8,
    });
    for (const tick of state.log ? powers(low, high) : ticks(low, high, 5)) {
      const y = toY(tick);
      svg(made, "line", { class: "grid", x1: area.left, x2: area.right, y1: y, y2: y });
      svg(made, "text", { x: area.left - 8, y: y + 4, "text-anchor": "end" }, label(tick));
    }
    const { title, secs } = unit();
    const count = Math.max(2, Math.min(8, Math.floor(width / 80)));
    for (const tick of ticks(range[0] / secs, range[1] / secs, count)) {
      const x = toX(tick * secs);
      svg(made, "line", { class: "tick", x1: x, x2: x, y1: area.bottom, y2: area.bottom + 5 });
      svg(made, "text", { x, y: area.bottom + 18, "text-anchor": "middle" }, label(tick));
    }
    svg(made, "line", {
      class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom,
    });
    const middle = (area.left + area.right) / 2;
    svg(made, "text", { x: middle, y: height - 4, "text-anchor": "middle" }, title);
    if (empty) {
      const text = state.log ? "no value is finite and above 0" : "no value is finite";
      svg(made, "text", { x: middle, y: area.top + 60, "text-anchor": "middle" }, text);
    }
    const inside = svg(made, "g", { "clip-path": `url(#${clip})` });
    for (const curve of found) {
      const color = `c${curve.number % NUM_COLORS}`;
      const is_eval = curve.kind === "evals";
      const [min, max] = bounds(curve.values);
      const raw = path(curve.xs, min, max, range, toX, toY);
      const name = is_eval ? "thin" : smooth ? "raw" : "line";
      svg(inside, "path", { class: `${name} ${color}`, d: raw });
      if (smooth && !is_eval) {
        const mean = smoothed(curve.values, curve.from.rows_per_point);
        svg(inside, "path", { class: `line ${color}`, d: path(curve.xs, mean, mean, range, toX, toY) });
      }
      if (is_eval) {
        const first = at(curve.xs, range[0]), last = at(curve.xs, range[1] + 1e-9);
        const stride = Math.max(1, Math.ceil((last - first) / 60));
        for (let index = last - 1; index >= first; index -= stride) {
          if (!usable(max[index])) continue;
          const place = { cx: toX(curve.xs[index]), cy: toY(max[index]), r: 3.2 };
          svg(inside, "circle", { class: `dot ${color}`, ...place });
        }
      }
    }
    shown.cursor = svg(made, "line", { class: "cursor", y1: area.top, y2: area.bottom });
    shown.choice = svg(made, "rect", { class: "choice", y: area.top, height: area.bottom - area.top });
    shown.cursor.style.display = shown.choice.style.display = "none";
    Object.assign(shown, { area, range, toX, found, width });
    figure.querySelector("svg").replaceWith(made);
    shown.svg = made;
    listen(shown);
  }
  // A line through the points; where several fall into a column of pixels, through the least and
  // the largest.
  function path(xs, min, max, range, toX, toY) {
    const first = Math.max(0, at(xs, range[0]) - 1);
    const last = Math.min(xs.length, at(xs, range[1]) + 1);
    let text = "", is_down = false;
    let column = null;
    const point = (x, y) => {
      text += `${is_down ? "L" : "M"}${x.toFixed(1)} ${toY(y).toFixed(1)}`;
      is_down = true;
    };
    const flush = () => {
      if (!column) return;
      point(column.x, column.low);
      if (column.high !== column.low) point(column.x, column.high);
      column = null;
    };
    for (let index = first; index < last; index++) {
      if (!usable(min[index]) || !usable(max[index]) || xs[index] === null) {
        flush();
        if (text && is_down) text += "h0";
        is_down = false;
        continue;
      }
      const x = toX(xs[index]);
      const pixel = Math.round(x);
      if (column && column.pixel === pixel) {
        column.low = Math.min(column.low, min[index]);
        column.high = Math.max(column.high, max[index]);
      } else {
        flush();
        column = { pixel, x, low: min[index], high: max[index] };
      }
    }
    flush();
    return text && text + "h0";
  }
  const redraw = () => charts.forEach(draw);

  // ---- Reading values

  // Shows the values at the point that is nearest to `x`.
  function read(shown, x) {
    const { found, figure, toX, area } = shown;
    let best = null;
    for (const { xs } of found) {
      const index = at(xs, x);
      for (const near of [index - 1, index]) {
        const distance = Math.abs(xs[near] - x);
        if (distance >= 0 && (best === null || distance < Math.abs(best - x))) best = xs[near];
      }
    }
    if (best === null) return forget(shown);
    shown.x = best;
    const place = toX(best);
    shown.cursor.setAttribute("x1", place);
    shown.cursor.setAttribute("x2", place);
    shown.cursor.style.display = "";
    shown.hover.textContent = "";
    let head = null;
    const near = new Map();
    for (const curve of found) {
      const { xs, from, values } = curve;
      let index = at(xs, best);
      if (index === xs.length || (index > 0 && best - xs[index - 1] < xs[index] - best)) index--;
      const rows = from.rows_per_point;
      const last = from.step[index];
      const first = rows === 1 ? last : (index > 0 ? from.step[index - 1] + 1 : 0);
      // Evaluations are rare: beside a curve of steps only those of the same steps are shown.
      const beside = near.get(curve.number);
      if (curve.kind === "evals" && beside && (last < beside.first || last > beside.last)) continue;
      if (curve.kind === "steps") near.set(curve.number, { first, last });
      const steps = first === last || curve.kind === "evals" ? `step ${last}` : `steps ${first} to ${last}`;
      if (!head) {
        const time = from.time[index] === null ? "" : `, ${+from.time[index].toFixed(1)} s`;
        const examples = from.examples[index] === null ? "" : `, ${from.examples[index]} examples`;
        html(shown.hover, "div", `${steps}${examples}${time}`);
        head = steps;
      }
      const name = data.runs.length > 1 ? `${curve.run.name}: ` : "";
      const other = steps === head || rows > 1 ? "" : ` (${steps})`;
      const number = (value) => (value === null ? "not finite" : String(value));
      const value = values.min
        ? `${number(values.min[index])} to ${number(values.max[index])}, mean ${number(values.mean[index])}`
        : number(values[index]);
      const line = html(shown.hover, "div");
      html(line, "span").className = `chip c${curve.number % NUM_COLORS}`;
      html(line, "span", `${name}${curve.field} ${value}${other}`);
    }
    shown.hover.hidden = false;
    const box = figure.getBoundingClientRect();
    const share = box.width / shown.width;
    const is_right = place > (area.left + area.right) / 2;
    shown.hover.style.left = is_right ? "auto" : `${place * share + 12}px`;
    shown.hover.style.right = is_right ? `${box.width - place * share + 12}px` : "auto";
    shown.hover.style.top = "36px";
  }
  function forget(shown) {
    shown.x = null;
    shown.hover.hidden = true;
    shown.cursor.style.display = "none";
  }
  function zoom(range) {
    state.zoom = range;
    document.getElementById("reset").disabled = !range;
    redraw();
  }
  function listen(shown) {
    const { svg: drawn, area, range } = shown;
    const toData = (event) => {
      const box = drawn.getBoundingClientRect();
      const place = (event.clientX - box.left) * shown.width / box.width;
      const share = (Math.min(area.right, Math.max(area.left, place)) - area.left) / (area.right - area.left);
      return range[0] + share * (range[1] - range[0]);
    };
    let from = null;
    drawn.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType !== "touch") {
        from = toData(event);
        drawn.setPointerCapture(event.pointerId);
      }
      read(shown, toData(event));
    });
    drawn.addEventListener("pointermove", (event) => {
      const x = toData(event);
      read(shown, x);
      if (from === null) return;
      const [left, right] = [Math.min(from, x), Math.max(from, x)].map(shown.toX);
      shown.choice.setAttribute("x", left);
      shown.choice.setAttribute("width", right - left);
      shown.choice.style.display = "";
    });
    drawn.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const ends = [from, toData(event)].sort((a, b) => a - b);
      from = null;
      shown.choice.style.display = "none";
      if (shown.toX(ends[1]) - shown.toX(ends[0]) > 6) zoom(ends);
    });
    drawn.addEventListener("pointerleave", () => { if (from === null) forget(shown); });
    drawn.addEventListener("dblclick", () => zoom(null));
  }
  function key(shown, event) {
    const { range, found, area } = shown;
    const width = range[1] - range[0];
    const x = shown.x ?? (range[0] + range[1]) / 2;
    const xs = found.length ? found[0].xs : [];
    // One point, or with Shift a tenth of the chart.
    const move = (by) => {
      if (event.shiftKey) return Math.min(range[1], Math.max(range[0], x + by * width / 10));
      const index = Math.min(xs.length - 1, Math.max(0, at(xs, x) + (shown.x === null ? 0 : by)));
      return xs[index];
    };
    const around = (factor) => zoom([x - width * factor * (x - range[0]) / width,
      x + width * factor * (range[1] - x) / width]);
    switch (event.key) {
      case "ArrowLeft": read(shown, move(-1)); break;
      case "ArrowRight": read(shown, move(1)); break;
      case "Home": read(shown, range[0]); break;
      case "End": read(shown, range[1]); break;
      case "+": case "=": around(0.5); read(shown, x); break;
      case "-": if (state.zoom) { around(2); read(shown, x); } break;
      case "0": case "Escape": zoom(null); forget(shown); break;
      default: return;
    }
    event.preventDefault();
  }

  // ---- The page

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = data.charts.find((chart) => chart.id === figure.dataset.chart);
    const hover = html(figure, "div");
    hover.className = "hover";
    hover.hidden = true;
    hover.setAttribute("role", "status");
    const shown = { figure, chart, hover, x: null, index: charts.length };
    figure.tabIndex = 0;
    figure.addEventListener("keydown", (event) => key(shown, event));
    figure.addEventListener("blur", () => forget(shown));
    charts.push(shown);
  }
  const on = (id, event, act) => document.getElementById(id).addEventListener(event, act);
  on("x", "change", (event) => { state.x = event.target.value; zoom(null); });
  on("smooth", "change", (event) => { state.weight = +event.target.value; redraw(); });
  on("log", "change", (event) => { state.log = event.target.checked; redraw(); });
  on("reset", "click", () => zoom(null));
  for (const button of document.querySelectorAll("button[data-run]")) {
    button.addEventListener("click", () => {
      const number = +button.dataset.run;
      if (!state.hidden.delete(number)) state.hidden.add(number);
      button.setAttribute("aria-pressed", String(!state.hidden.has(number)));
      redraw();
    });
  }
  // The choice is kept where the browser lets pages from the disk keep something.
  const themes = ["auto", "light", "dark"];
  const store = (value) => {
    try {
      if (value) localStorage.setItem("lockstep-theme", value);
      return localStorage.getItem("lockstep-theme");
    } catch { return null; }
  };
  const button = document.getElementById("theme");
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `theme: ${theme}`;
  };
  let theme = themes.includes(store()) ? store() : "auto";
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    show(theme);
    store(theme);
  });
  for (const hidden of document.querySelectorAll("[data-script]")) hidden.hidden = false;
  // A page that is served loads itself again, and goes on with what was chosen in it.
  const kept = `lockstep-page ${location.pathname} ${data.runs.map((run) => run.name).join("\n")}`;
  const element = (id) => document.getElementById(id);
  if (document.documentElement.dataset.version) {
    try {
      const { hidden, ...chosen } = JSON.parse(sessionStorage.getItem(kept)) || { hidden: [] };
      Object.assign(state, chosen, { hidden: new Set(hidden) });
    } catch { /* Nothing is kept. */ }
    element("x").value = state.x;
    element("smooth").value = String(state.weight);
    element("log").checked = state.log;
    element("reset").disabled = !state.zoom;
    for (const button of document.querySelectorAll("button[data-run]")) {
      button.setAttribute("aria-pressed", String(!state.hidden.has(+button.dataset.run)));
    }
    addEventListener("pagehide", () => {
      try {
        sessionStorage.setItem(kept, JSON.stringify({ ...state, hidden: [...state.hidden] }));
      } catch { /* Nothing can be kept. */ }
    });
  }
  redraw();
  let width = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (width === document.documentElement.clientWidth) return;
    width = document.documentElement.clientWidth;
    redraw();
  });
})();
