// The time line of a trace on a canvas, in place of the figure of one step: from the whole run to a microsecond.
"use strict";

const FORWARD = 0, BACKWARD = 1, WAITING = 3, MESSAGE = 4, PART = 5, OTHER = 6, MEMORY = 7;
const KINDS = ["forward", "backward", "optimizer", "waiting", "message", "part", "other", "memory"];
const PART_HEIGHT = 10, ROW = 22, MEMORY_ROW = 40, TOP = 24, SHORTEST = 8; // pixels; microseconds in view at least

// ---- the data ----

// An event is a name and kind, a begin after the begin before, a length, and perhaps bytes: pack.c.
function unpack(lane, names) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", values = new Uint8Array(128), numbers = [];
  for (let i = 0; i < 64; i++) {
    values[digits.charCodeAt(i)] = i;
  }
  for (let i = 0, number = 0, scale = 1; i < lane.events.length; i++) {
    const value = values[lane.events.charCodeAt(i)];
    number += (value & 31) * scale;
    scale *= 32;
    if (value < 32) {
      numbers.push(number);
      number = 0;
      scale = 1;
    }
  }
  const begin = [], end = [], name = [], kind = [], bytes = [];
  for (let i = 0, at = 0; i < numbers.length;) {
    const k = numbers[i] % 8;
    name.push((numbers[i] - k) / 8);
    at += numbers[i + 1];
    begin.push(at);
    end.push(at + numbers[i + 2]);
    kind.push(k);
    bytes.push(k === MESSAGE ? numbers[i + 3] : k === MEMORY ? numbers[i + 3] * 1024 : 0);
    i += k === MESSAGE || k === MEMORY ? 4 : 3;
  }
  return { rank: lane.rank, name: lane.name, names, rows: divide({ begin, end, name, kind, bytes }, names) };
}

function colourOf(kind, name) {
  return kind !== PART ? kind : name.startsWith("forward") ? FORWARD : name.startsWith("backward") ? BACKWARD : OTHER;
}

// Rows of a lane: parts of steps, the kernels below them, messages, memory. Steps are for the axis.
function divide(events, names) {
  const rows = { step: [], part: [], kernel: [], message: [], memory: [] };
  for (let i = 0; i < events.begin.length; i++) {
    const kind = events.kind[i];
    const row = kind === MESSAGE ? "message" : kind === MEMORY ? "memory" : kind !== PART ? "kernel"
      : names[events.name[i]] === "step" ? "step" : "part";
    rows[row].push(i);
  }
  for (const row of Object.keys(rows)) {
    const of = rows[row], pick = (list, type) => type.from(of, (i) => list[i]);
    rows[row] = {
      count: of.length, begin: pick(events.begin, Float64Array), end: pick(events.end, Float64Array),
      name: pick(events.name, Int32Array), bytes: pick(events.bytes, Float64Array),
      colour: Uint8Array.from(of, (i) => colourOf(events.kind[i], names[events.name[i]])),
    };
    // The latest end so far: where to begin to look for what is in view, though events nest.
    const ends = rows[row].ends = new Float64Array(of.length);
    for (let i = 0, most = 0; i < of.length; i++) {
      ends[i] = most = Math.max(most, rows[row].end[i]);
    }
  }
  return rows;
}

// The first index whose value is above x, in ascending numbers.
function above(numbers, x) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > x) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// ---- words ----

function timeText(us) {
  return us >= 1e6 ? (us / 1e6).toFixed(3) + " s" : us >= 1e3 ? (us / 1e3).toFixed(3) + " ms"
    : us >= 1 ? us.toFixed(0) + " µs" : "less than 1 µs";
}

function bytesText(bytes) {
  return bytes >= 1048576 ? (bytes / 1048576).toPrecision(3) + " MiB"
    : bytes >= 1024 ? (bytes / 1024).toPrecision(3) + " KiB" : bytes + " bytes";
}

// ---- a time line ----

class TimeLine {
  constructor(place, data) {
    this.names = data.names;
    this.lanes = data.lanes.map((lane) => unpack(lane, data.names));
    this.end = 1;
    this.mostMemory = 1;
    for (const lane of this.lanes) {
      for (const row of Object.values(lane.rows)) {
        this.end = Math.max(this.end, row.count ? row.ends[row.count - 1] : 0);
      }
      this.mostMemory = lane.rows.memory.bytes.reduce((a, b) => Math.max(a, b), this.mostMemory);
    }
    const first = this.lanes.find((lane) => lane.rows.step.count > 0);
    this.steps = first ? first.rows.step : null;
    this.chosen = null;
    this.frames = 0;
    this.layOut();
    this.makeElements(place);
    this.showStep(Math.max(data.typical, 0));
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resize());
  }

  // The rows from above to below, with the events that each one has.
  layOut() {
    this.rows = [];
    let y = TOP;
    for (const lane of this.lanes) {
      const add = (row, height, label) => {
        if (lane.rows[row].count > 0) {
          this.rows.push({ lane, row, events: lane.rows[row], y, height, label });
          y += height;
        }
      };
      const single = lane.rows.kernel.count > 0 ? "" : lane.name;
      add("part", PART_HEIGHT, "");
      add("kernel", ROW, lane.name);
      add("message", ROW, single || "messages");
      add("memory", MEMORY_ROW, "memory");
      y += lane.rows.memory.count > 0 ? 8 : 0;
    }
    this.height = y + 6;
  }

  makeElements(place) {
    const make = (tag, properties, parent) => parent.appendChild(Object.assign(document.createElement(tag), properties));
    place.textContent = "";
    const tools = make("div", { className: "tools" }, place);
    const button = (text, act) => { make("button", { type: "button", textContent: text }, tools).onclick = act; };
    button("Whole run", () => this.view(0, this.end));
    if (this.steps) {
      button("Previous step", () => this.nextStep(-1));
      button("Next step", () => this.nextStep(1));
    }
    button("Zoom in", () => this.zoom(0.5));
    button("Zoom out", () => this.zoom(2));
    this.canvas = make("canvas", { tabIndex: 0 }, place);
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "Time line. Arrow keys left and right move it, plus and minus zoom, N and P go to " +
      "the next and previous step, Home shows the whole run, period and comma choose the next and previous event, " +
      "arrow keys up and down change the row, Enter zooms to the chosen event.");
    this.canvas.style.height = this.height + "px";
    this.canvas.timeLine = this;
    this.said = make("div", { className: "chosen" }, place);
    this.said.setAttribute("aria-live", "polite");
    make("p", { className: "hint", textContent: "Drag to move; Ctrl and wheel, or two fingers, to zoom (after a click the wheel " +
      "alone, too). Keys: \u2190 \u2192 move, + \u2212 zoom, N P next and previous step, Home whole run, . , next and previous " +
      "event, \u2191 \u2193 row, Enter zooms to the event." }, place);
    this.listen();
  }

  // ---- what is in view ----

  view(from, to) {
    const length = Math.min(Math.max(to - from, SHORTEST), this.end);
    this.from = Math.min(Math.max(from + (to - from - length) / 2, 0), this.end - length);
    this.to = this.from + length;
    this.redraw();
  }

  zoom(by, at = (this.from + this.to) / 2) {
    const length = Math.min(Math.max((this.to - this.from) * by, SHORTEST), this.end), part = (at - this.from) / (this.to - this.from);
    this.view(at - part * length, at + (1 - part) * length);
  }

  move(by) {
    this.view(this.from + by, this.to + by);
  }

  stepAt(time) {
    return this.steps ? Math.max(above(this.steps.begin, time) - 1, 0) : 0;
  }

  showStep(step) {
    if (!this.steps) {
      this.view(0, this.end);
      return;
    }
    const i = Math.min(Math.max(step, 0), this.steps.count - 1), length = this.steps.end[i] - this.steps.begin[i];
    this.view(this.steps.begin[i] - 0.03 * length, this.steps.end[i] + 0.03 * length);
  }

  nextStep(by) {
    this.showStep(this.stepAt((this.from + this.to) / 2) + by);
  }

  // ---- events ----

  choose(row, index) {
    if (row === undefined || index < 0 || index >= this.rows[row].events.count) {
      return;
    }
    this.chosen = { row, index };
    const { lane, events } = this.rows[row];
    const begin = events.begin[index], length = events.end[index] - begin, step = this.stepAt(begin);
    let text = `rank ${lane.rank}, ${this.rows[row].label || lane.name}: ${this.names[events.name[index]]}, `;
    text += this.rows[row].row === "memory" ? `${bytesText(events.bytes[index])} in use` : `${timeText(length)}`;
    if (this.rows[row].row === "message") {
      text += `, ${bytesText(events.bytes[index])}, ${(events.bytes[index] / Math.max(length, 1) / 1e3).toPrecision(3)} GB/s`;
    } else if (this.rows[row].row === "kernel") {
      text += `, ${KINDS[events.colour[index]]}`;
    }
    if (this.steps && begin >= this.steps.begin[step] && begin <= this.steps.end[step]) {
      text += `; begins ${timeText(begin - this.steps.begin[step])} into step ${step + 1}`;
    }
    this.said.textContent = text;
    if (begin > this.to || events.end[index] < this.from) {
      this.move(begin - (this.from + this.to) / 2);
    }
    this.redraw();
  }

  // The event of a row at a time, or the one before it.
  chooseAt(row, time) {
    const events = this.rows[row].events;
    let i = Math.max(above(events.begin, time) - 1, 0);
    while (i > 0 && events.end[i] < time && events.ends[i - 1] >= time) {
      i--; // events nest
    }
    this.choose(row, Math.min(i, events.count - 1));
  }

  nextEvent(by) {
    if (this.chosen) {
      this.choose(this.chosen.row, this.chosen.index + by);
    } else {
      this.chooseAt(0, this.from);
    }
  }

  nextRow(by) {
    const row = this.chosen ? Math.min(Math.max(this.chosen.row + by, 0), this.rows.length - 1) : 0;
    const time = this.chosen ? this.rows[this.chosen.row].events.begin[this.chosen.index] : this.from;
    this.chooseAt(row, time);
  }

  zoomToChosen() {
    if (this.chosen) {
      const { begin, end } = this.rows[this.chosen.row].events, i = this.chosen.index, length = Math.max(end[i] - begin[i], SHORTEST / 4);
      this.view(begin[i] - length / 2, end[i] + length / 2);
    }
  }

  // ---- mouse, fingers, keys ----

  listen() {
    const canvas = this.canvas, pointers = new Map();
    const timeAt = (x) => this.from + (x - this.left) / (this.width - this.left) * (this.to - this.from);
    const place = (event) => ({ x: event.offsetX, y: event.offsetY });
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId), now = place(event);
      if (!before) {
        return;
      }
      pointers.set(event.pointerId, now);
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      if (others.length > 0) { // two fingers: what is below them stays there
        const old = Math.max(Math.abs(before.x - others[0].x), 10), wide = Math.max(Math.abs(now.x - others[0].x), 10);
        this.zoom(old / wide, timeAt(others[0].x));
      } else {
        this.move(timeAt(before.x) - timeAt(now.x));
      }
    });
    const up = (event) => {
      const at = pointers.get(event.pointerId);
      pointers.delete(event.pointerId);
      if (at && moved < 5 && event.type === "pointerup") {
        const row = this.rows.findIndex((r) => at.y >= r.y && at.y < r.y + r.height);
        if (row >= 0) {
          this.chooseAt(row, timeAt(at.x));
        }
      }
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("dblclick", (event) => this.zoom(0.25, timeAt(event.offsetX)));
    canvas.addEventListener("wheel", (event) => {
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.move(event.deltaX / (this.width - this.left) * (this.to - this.from));
      } else if (event.ctrlKey || event.metaKey || document.activeElement === canvas) {
        this.zoom(Math.exp(event.deltaY / 300), timeAt(event.offsetX));
      } else {
        return; // the page scrolls
      }
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const keys = {
        ArrowLeft: () => this.move(-0.2 * (this.to - this.from)), ArrowRight: () => this.move(0.2 * (this.to - this.from)),
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), Home: () => this.view(0, this.end),
        n: () => this.nextStep(1), p: () => this.nextStep(-1), ".": () => this.nextEvent(1), ",": () => this.nextEvent(-1),
        ArrowDown: () => this.nextRow(1), ArrowUp: () => this.nextRow(-1), Enter: () => this.zoomToChosen(),
      };
      const act = keys[event.key] || keys[event.key.toLowerCase()];
      if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
        act();
        event.preventDefault();
      }
    });
  }

  // ---- drawing ----

  resize() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.left = this.width < 600 ? 74 : 116;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue("--" + name).trim();
    this.colours = KINDS.map((kind) => colour(kind));
    [this.text, this.soft, this.grid, this.page, this.inside, this.accent] =
      ["text", "soft", "line", "page", "in", "accent"].map(colour);
    this.redraw();
  }

  redraw() {
    if (this.context && !this.waits) {
      this.waits = true;
      requestAnimationFrame(() => {
        this.waits = false;
        this.draw();
      });
    }
  }

  draw() {
    const c = this.context;
    c.clearRect(0, 0, this.width, this.height);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    this.scale = (this.width - this.left) / (this.to - this.from);
    this.drawAxis();
    c.save();
    c.beginPath();
    c.rect(this.left, TOP, this.width - this.left, this.height);
    c.clip();
    for (const row of this.rows) {
      if (row.row === "memory") {
        this.drawMemory(row);
      } else {
        this.drawRow(row);
      }
    }
    this.drawChosen();
    c.restore();
    this.drawLabels();
    this.frames++;
  }

  x(time) {
    return this.left + (time - this.from) * this.scale;
  }

  drawLabels() {
    const c = this.context, narrow = this.left < 100;
    let rank = -1;
    c.textAlign = "left";
    for (const row of this.rows) {
      if (row.row === "part" && row.lane.rank !== rank) {
        continue; // the rank stands beside its kernels
      }
      c.fillStyle = row.lane.rank !== rank ? this.text : this.soft;
      const label = row.label === "communication" ? "messages" : row.label;
      c.fillText((row.lane.rank !== rank ? (narrow ? row.lane.rank + " " : "rank " + row.lane.rank + " ") : "") + label, 4, row.y + 10, this.left - 8);
      rank = row.lane.rank;
      if (row.row === "memory" && !narrow) {
        c.fillStyle = this.soft;
        c.fillText("up to " + bytesText(this.mostMemory), 4, row.y + 26, this.left - 8);
      }
    }
  }

  // Ticks count from the begin of the step in view, or of the run.
  drawAxis() {
    const c = this.context, range = this.to - this.from, step = this.stepAt(this.from + 0.1 * range);
    const zero = this.steps && range < 3 * (this.steps.end[step] - this.steps.begin[step]) ? this.steps.begin[step] : 0;
    const power = 10 ** Math.floor(Math.log10(range / 6)), times = range / 6 / power;
    const tick = Math.max(power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10), 1);
    const unit = tick >= 1e6 ? 1e6 : tick >= 1e3 ? 1e3 : 1;
    c.textAlign = "left";
    c.fillStyle = this.soft;
    c.fillText((zero ? `step ${step + 1}, ` : "run, ") + (unit === 1e6 ? "s" : unit === 1e3 ? "ms" : "µs"), 4, 10, this.left - 6);
    c.textAlign = "center";
    for (let n = Math.ceil((this.from - zero) / tick); zero + n * tick <= this.to; n++) {
      const x = this.x(zero + n * tick), text = String(+(n * tick / unit).toPrecision(12));
      if (x >= this.left) {
        c.fillStyle = this.grid;
        c.fillRect(x, 18, 1, this.height);
        c.fillStyle = this.soft;
        c.fillText(text, Math.min(Math.max(x, this.left + 8), this.width - 4 * text.length - 2), 10);
      }
    }
    for (let i = this.steps ? above(this.steps.end, this.from) : 0; this.steps && i < this.steps.count && this.steps.begin[i] < this.to; i++) {
      if ((this.steps.end[i] - this.steps.begin[i]) * this.scale > 4) { // steps begin at a darker line
        c.fillStyle = this.soft;
        c.fillRect(this.x(this.steps.begin[i]), 18, 1.5, this.height);
      }
    }
  }

  // What is shorter than a pixel adds up: a pixel gets the colour that fills most of it.
  drawRow({ row, events, y, height }) {
    const c = this.context, fills = [0, 0, 0, 0, 0, 0, 0, 0], tall = height - (row === "part" ? 3 : 4);
    let pixel = -1;
    const flush = () => {
      let most = -1;
      for (let k = 0; k < 8; k++) {
        most = fills[k] > 0 && (most < 0 || fills[k] > fills[most]) ? k : most;
        if (fills[k] > 0 && most !== k) {
          fills[k] = 0;
        }
      }
      if (most >= 0) {
        c.globalAlpha = Math.min(0.25 + fills[most], 1);
        c.fillStyle = this.colours[most];
        c.fillRect(pixel, y, 1, tall);
        c.globalAlpha = 1;
      }
      fills.fill(0);
    };
    for (let i = above(events.ends, this.from); i < events.count && events.begin[i] < this.to; i++) {
      const x = this.x(events.begin[i]), to = this.x(events.end[i]);
      if (to - x < 1) {
        if (Math.floor(x) !== pixel) {
          flush();
          pixel = Math.floor(x);
        }
        fills[events.colour[i]] += Math.max(to - x, 0.02);
        continue;
      }
      flush();
      c.fillStyle = this.colours[events.colour[i]];
      c.fillRect(x, y, Math.max(to - x - (to - x > 4 ? 0.7 : 0), 0.7), tall);
      if (events.colour[i] === WAITING && to - x > 6) {
        this.hatch(x, y, to - x, tall);
      }
      if (to - x > 34 && row !== "part") {
        this.drawName(row, events, i, x, to, y + tall / 2);
      }
    }
    flush();
  }

  hatch(x, y, width, height) {
    const c = this.context, from = Math.max(x, this.left), to = Math.min(x + width, this.width);
    c.save();
    c.beginPath();
    c.rect(from, y, to - from, height);
    c.clip();
    c.strokeStyle = this.page;
    c.globalAlpha = 0.55;
    c.beginPath();
    for (let at = from - height - ((from - height) % 7); at < to; at += 7) {
      c.moveTo(at, y + height);
      c.lineTo(at + height, y);
    }
    c.stroke();
    c.restore();
  }

  drawName(row, events, i, x, to, y) {
    const c = this.context, from = Math.max(x, this.left) + 3, room = Math.min(to, this.width) - from - 3;
    let text = this.names[events.name[i]];
    if (row === "message") { // bytes first: a name may have them, too
      text = bytesText(events.bytes[i]) + "  " + text.replace(/ \([0-9.]+ MiB\)$/, "");
    }
    const fits = Math.floor(room / 7.2);
    if (fits >= 4) {
      c.fillStyle = this.inside;
      c.textAlign = "left";
      c.fillText(text.length <= fits ? text : text.slice(0, fits - 1) + "\u2026", from, y);
    }
  }

  // A pixel shows the most of what is in it.
  drawMemory({ events, y, height }) {
    const c = this.context, bottom = y + height, tall = height - 4;
    let i = Math.max(above(events.begin, this.from) - 1, 0), most = events.bytes[i] || 0, pixel = this.left;
    c.fillStyle = this.colours[MEMORY];
    c.globalAlpha = 0.6;
    for (i++; ; i++) {
      const x = i < events.count ? Math.min(this.x(events.begin[i]), this.width) : this.width;
      if (Math.floor(x) > pixel) {
        const up = tall * most / this.mostMemory;
        c.fillRect(pixel, bottom - up, Math.floor(x) - pixel, up);
        pixel = Math.floor(x);
        most = 0;
      }
      if (i >= events.count || x >= this.width) {
        break;
      }
      most = Math.max(most, events.bytes[i]);
    }
    c.globalAlpha = 1;
  }

  drawChosen() {
    if (this.chosen) {
      const { events, y, height, row } = this.rows[this.chosen.row], i = this.chosen.index, x = this.x(events.begin[i]);
      this.context.strokeStyle = this.text;
      this.context.lineWidth = 2;
      this.context.strokeRect(x, y - 1, Math.max(this.x(events.end[i]) - x, 2), height - (row === "part" ? 1 : 2));
    }
  }
}

const places = document.querySelectorAll(".timeline");
JSON.parse(document.getElementById("traces").textContent).forEach((data, i) => {
  places[i].previousElementSibling.textContent = "Time line";
  new TimeLine(places[i], data);
});
