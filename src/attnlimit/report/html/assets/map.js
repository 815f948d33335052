/* Keys by layer and head, as a map that the arrow keys move over. */
function makeMap(view) {
  const { make } = draw, { heads, layers, width, most, state } = view;
  const place = document.getElementById("map"), cells = new Map();
  // colours over what occurs at the run's own error, the same for every error, so that the slider is seen to act
  const low = Math.max(1, Math.min(most / 4, ...heads.map((one) => view.needed(one, "best", view.run.own).keys)) / 2);
  const shade = (count) => Math.log(Math.max(count, low) / low) / Math.log(most / low);

  function hatch(svg) {
    const pattern = make(make(svg, "defs"), "pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    make(pattern, "line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 6 });
  }

  function resize() {
    const left = 44, top = 36, room = Math.max(260, place.parentNode.clientWidth);
    const across = Math.max(13, Math.min(64, (room - left) / width)), down = Math.max(13, Math.min(36, across));
    const size = { width: left + across * width, height: top + down * layers };
    cells.clear();
    place.replaceChildren();
    const svg = make(place, "svg", { viewBox: `0 0 ${size.width} ${size.height}`, ...size, role: "grid", "aria-labelledby": "map-title" });
    hatch(svg);
    const every = Math.ceil(22 / across), skip = Math.ceil(14 / down);
    make(svg, "text", { x: left + 2, y: 12 }, "head");
    make(svg, "text", { x: left - 8, y: top - 6, "text-anchor": "end" }, "layer");
    for (let head = 0; head < width; head += every) make(svg, "text", { x: left + across * (head + 0.5), y: top - 6, "text-anchor": "middle" }, head);
    const rows = Array.from({ length: layers }, (_, layer) => {
      if (layer % skip === 0) make(svg, "text", { x: left - 8, y: top + down * (layer + 0.5) + 4, "text-anchor": "end" }, layer);
      return make(svg, "g", { role: "row" });
    });
    for (const one of heads) addCell(rows[one.layer], one, left + across * one.head, top + down * one.layer, across, down);
    (cells.get(state.chosen) ?? cells.get(heads[0])).cell.setAttribute("tabindex", 0);
    scale();
  }

  function addCell(row, one, x, y, across, down) {
    const cell = make(row, "g", { class: "cell", role: "gridcell", tabindex: -1, "data-place": `${one.layer}-${one.head}` });
    const box = { x: x + 1, y: y + 1, width: across - 2, height: down - 2, rx: 3 };
    const parts = { cell, rect: make(cell, "rect", box), hatch: make(cell, "rect", { ...box, fill: "url(#hatch)" }) };
    if (across >= 24) {
      parts.text = make(cell, "text", { x: x + across / 2, y: y + down / 2 + 4, "text-anchor": "middle" });
      if (across < 34) parts.text.style.fontSize = "10px";
    }
    make(cell, "rect", { ...box, class: "ring" });
    cells.set(one, parts);
    hoverable(view, cell, one);
    cell.addEventListener("keydown", (event) => move(event, one));
  }

  function move(event, one) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" || event.key === " ") view.choose(one, true);
    else if (!step) return;
    else {
      const next = heads.find((other) => other.layer === one.layer + step[0] && other.head === one.head + step[1]);
      if (next) {
        cells.get(one).cell.setAttribute("tabindex", -1);
        cells.get(next).cell.setAttribute("tabindex", 0);
        cells.get(next).cell.focus();
      }
    }
    event.preventDefault();
  }

  function scale() {
    const parent = document.getElementById("scale"), room = Math.min(480, parent.parentNode.clientWidth - 28), end = room * 0.58;
    const svg = draw.canvas(parent, room, 44, "Colour scale: keys, logarithmic; hatched: all keys");
    const at = draw.log(low, most, 2, end);
    for (let x = 2; x < end; x += 2) make(svg, "rect", { x, y: 8, width: 2.5, height: 10, fill: draw.colour((x - 2) / (end - 2)) });
    const ticks = draw.logTicks(low, most);
    for (const tick of ticks) make(svg, "text", { x: at(tick), y: 34, "text-anchor": at(tick) < 12 ? "start" : "middle" }, words.tick(tick));
    make(svg, "text", { x: end + 8, y: 17 }, "keys");
    const x = end + 52;
    make(svg, "rect", { x, y: 6, width: 22, height: 14, rx: 3, fill: draw.colour(1) });
    make(svg, "rect", { x, y: 6, width: 22, height: 14, rx: 3, fill: "url(#hatch)" });
    make(svg, "text", { x: x + 28, y: 17 }, view.pooled ? "more than pooled" : "all it sees");
  }

  function choose() {
    for (const [one, parts] of cells) parts.cell.classList.toggle("chosen", one === state.chosen);
  }

  function update() {
    document.getElementById("map-title").textContent = `Keys each head needs for ${view.epsilon()} error`;
    for (const [one, parts] of cells) {
      const need = view.needed(one), share = shade(need.keys);
      parts.rect.setAttribute("fill", draw.colour(share));
      parts.hatch.setAttribute("visibility", need.all ? "visible" : "hidden");
      parts.cell.setAttribute("aria-label", `${view.name(one)}: ${need.text} keys`);
      if (!parts.text) continue;
      parts.text.textContent = need.text;
      parts.text.setAttribute("class", share > 0.5 ? "on-light" : "on-dark");
    }
    choose();
  }

  return { resize, update, choose };
}
