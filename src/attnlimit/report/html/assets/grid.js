/* Heads by layer and number, as a grid that the arrow keys move over; Enter opens one. `dress` adds to a new cell. */
function makeGrid(place, heads, title, open, dress) {
  const { make } = draw, cells = new Map();
  const layers = 1 + Math.max(...heads.map((one) => one.layer)), width = 1 + Math.max(...heads.map((one) => one.head));

  function resize(chosen) {
    const left = 44, top = 36, room = Math.max(260, place.parentNode.clientWidth);
    const across = Math.max(13, Math.min(64, (room - left) / width)), down = Math.max(13, Math.min(36, across));
    const size = { width: left + across * width, height: top + down * layers };
    cells.clear();
    place.replaceChildren();
    const svg = make(place, "svg", { viewBox: `0 0 ${size.width} ${size.height}`, ...size, role: "grid", "aria-labelledby": title });
    const every = Math.ceil(22 / across), skip = Math.ceil(14 / down);
    make(svg, "text", { x: left + 2, y: 12 }, "head");
    make(svg, "text", { x: left - 8, y: top - 6, "text-anchor": "end" }, "layer");
    for (let head = 0; head < width; head += every) make(svg, "text", { x: left + across * (head + 0.5), y: top - 6, "text-anchor": "middle" }, head);
    const rows = Array.from({ length: layers }, (_, layer) => {
      if (layer % skip === 0) make(svg, "text", { x: left - 8, y: top + down * (layer + 0.5) + 4, "text-anchor": "end" }, layer);
      return make(svg, "g", { role: "row" });
    });
    for (const one of heads) addCell(rows[one.layer], one, left + across * one.head, top + down * one.layer, across, down);
    (cells.get(chosen) ?? cells.get(heads[0])).cell.setAttribute("tabindex", 0);
    return svg;
  }

  function addCell(row, one, x, y, across, down) {
    const cell = make(row, "g", { class: "cell", role: "gridcell", tabindex: -1, "data-place": `${one.layer}-${one.head}` });
    const box = { x: x + 1, y: y + 1, width: across - 2, height: down - 2, rx: 3 };
    const parts = { cell, rect: make(cell, "rect", box) };
    dress(parts, box, one);
    if (across >= 24) {
      parts.text = make(cell, "text", { x: x + across / 2, y: y + down / 2 + 4, "text-anchor": "middle" });
      if (across < 34) parts.text.style.fontSize = "10px";
    }
    make(cell, "rect", { ...box, class: "ring" });
    cells.set(one, parts);
    cell.addEventListener("keydown", (event) => move(event, one));
  }

  function move(event, one) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" || event.key === " ") open(one);
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

  function choose(chosen) {
    for (const [one, parts] of cells) parts.cell.classList.toggle("chosen", one === chosen);
  }

  return { cells, resize, choose };
}
