/* Keys by layer and head, as a map that the arrow keys move over. */
function makeMap(view) {
  const { make } = draw, { heads, most, state } = view;
  const place = document.getElementById("map");
  // colours over what occurs at the run's own error, the same for every error, so that the slider is seen to act
  const low = Math.max(1, Math.min(most / 4, ...heads.map((one) => view.needed(one, "best", view.run.own).keys)) / 2);
  const shade = (count) => Math.log(Math.max(count, low) / low) / Math.log(most / low);

  function hatch(svg) {
    const pattern = make(make(svg, "defs"), "pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    make(pattern, "line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 6 });
  }

  const grid = makeGrid(place, heads, "map-title", (one) => view.choose(one, true), (parts, box, one) => {
    parts.hatch = make(parts.cell, "rect", { ...box, fill: "url(#hatch)" });
    hoverable(parts.cell, () => about(view, one), () => view.choose(one, true));
  });

  function resize() {
    hatch(grid.resize(state.chosen));
    scale();
  }

  function scale() {
    const parent = document.getElementById("scale"), room = Math.min(480, parent.parentNode.clientWidth - 28);
    const end = Math.min(room * 0.58, room - (view.pooled ? 200 : 155));
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

  const choose = () => grid.choose(state.chosen);

  function update() {
    document.getElementById("map-title").textContent = `Keys each head needs for ${view.epsilon()} error`;
    for (const [one, parts] of grid.cells) {
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
