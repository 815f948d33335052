"use strict";
/* Small drawing: elements without innerHTML, scales, axes, colours. */
const draw = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  // cividis: even in lightness, and the same to colour-blind eyes
  const STOPS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"]
    .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

  function make(parent, tag, attributes = {}, text) {
    const node = parent instanceof SVGElement || tag === "svg" ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function canvas(parent, width, height, label) {
    parent.replaceChildren();
    return make(parent, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  }

  function colour(share) {
    const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
    const left = Math.min(Math.floor(place), STOPS.length - 2);
    const mixed = STOPS[left].map((value, k) => Math.round(value + (place - left) * (STOPS[left + 1][k] - value)));
    return `rgb(${mixed.join(" ")})`;
  }

  const linear = (from, to, start, end) => (value) => start + ((value - from) / (to - from)) * (end - start);
  const log = (from, to, start, end) => (value) => linear(Math.log(from), Math.log(to), start, end)(Math.log(value));

  /* 1, 2, 5, 10, … between two positive numbers; only powers of ten where there are many. */
  function logTicks(from, to) {
    const ticks = [];
    const steps = Math.log10(to / from) > 2.6 ? [1] : [1, 2, 5];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power += 1)
      for (const step of steps) {
        const tick = step * 10 ** power;
        if (tick >= from * 0.999 && tick <= to * 1.001) ticks.push(tick);
      }
    return ticks;
  }

  function ticks(from, to, count = 5) {
    const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
    const found = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + 1e-9 * step; k += 1) found.push(k * step);
    return found;
  }

  /* Grid lines, numbers and titles along the left and the bottom of a box. */
  function axes(svg, box, x, y) {
    for (const tick of y.ticks) {
      const at = y.scale(tick);
      make(svg, "line", { class: "gridline", x1: box.left, x2: box.right, y1: at, y2: at });
      make(svg, "text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, y.format(tick));
    }
    for (const tick of x.ticks) {
      const at = x.scale(tick);
      make(svg, "line", { class: "gridline", x1: at, x2: at, y1: box.top, y2: box.bottom });
      make(svg, "text", { x: at, y: box.bottom + 16, "text-anchor": "middle" }, x.format(tick));
    }
    make(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
    make(svg, "text", { x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" }, x.title);
    make(svg, "text", { x: box.left - 34, y: box.top - 10 }, y.title);
  }

  const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  return { make, canvas, colour, linear, log, logTicks, ticks, axes, path };
})();

const words = (() => {
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const count = (value) => whole.format(value);
  function short(value) {
    for (const [size, unit] of [[1e6, "M"], [1e3, "k"]])
      if (value >= size) return `${(value / size).toFixed(value < 10 * size ? 1 : 0)}${unit}`;
    return value.toFixed(0);
  }
  const tick = (value) => short(value).replace(".0", "");
  function number(value, digits = 3) {
    if (!Number.isFinite(value)) return "–";
    return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(digits)));
  }
  const percent = (share) => `${number(100 * share, share < 0.9995 && share > 0.99 ? 3 : 2)}\u00a0%`;
  return { count, short, tick, number, percent };
})();
