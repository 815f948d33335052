/* Heads on the plane of score spread and keys, with the lines s² = ½ log n and s² = 2 log n of Gaussian scores. */
function makePhase(view) {
  const { make } = draw, { heads, layers, most, state } = view;
  const place = document.getElementById("phase"), dots = new Map();
  const spreads = heads.flatMap((one) => [one.score_spread[0], one.score_spread[2]]).filter((s) => s > 0);
  const narrow = Math.max(0.05, Math.min(0.5, ...spreads) / 1.15), wide = 1.15 * Math.max(3, ...spreads), high = 1.6 * most;

  /* s² = factor · log n, up to the edge of the box that it meets first. */
  function edge(factor, x, y) {
    const end = Math.min(wide, Math.sqrt(factor * Math.log(high)));
    return Array.from({ length: 161 }, (_, k) => narrow * (end / narrow) ** (k / 160)).map((s) => [x(s), y(Math.exp(s * s / factor))]);
  }

  function update() {
    const room = place.clientWidth, height = Math.max(290, Math.min(400, room * 0.52));
    const box = { left: 46, right: room - 8, top: 30, bottom: height - 40 };
    const svg = draw.canvas(place, room, height, "Phase diagram: spread of scores against keys needed, with the two lines of Gaussian scores");
    const x = draw.log(narrow, wide, box.left, box.right), y = draw.log(1, high, box.bottom, box.top);
    const clt = edge(0.5, x, y), one = edge(2, x, y);
    for (const points of [clt, one]) {
      const corners = points.at(-1)[1] > box.top + 1 ? [] : [[box.right, box.top]];
      make(svg, "path", { class: "region", d: `${draw.path([...points, ...corners, [box.right, box.bottom], [points[0][0], box.bottom]])}Z` });
    }
    draw.axes(svg, box,
      { scale: x, ticks: draw.logTicks(narrow, wide), format: (tick) => words.number(tick), title: room > 480 ? "s: standard deviation of a query's scores (nats)" : "s: spread of a query's scores (nats)" },
      { scale: y, ticks: draw.logTicks(1, high), format: words.tick, title: `keys for ${view.epsilon()} error` });
    make(svg, "path", { class: "line-clt", d: draw.path(clt) });
    make(svg, "path", { class: "line-one", d: draw.path(one) });
    dots.clear();
    for (const head of heads) addDot(svg, head, x, y);
    names(svg, box, clt.at(-1)[0], one.at(-1)[0]);
  }

  function addDot(svg, one, x, y) {
    const at = y(Math.max(1, view.needed(one).keys)), spread = one.score_spread.map((s) => x(Math.max(s, narrow)));
    if (heads.length <= 200) make(svg, "line", { class: "whisker", x1: spread[0], x2: spread[2], y1: at, y2: at });
    const dot = make(svg, "circle", { class: "dot", cx: spread[1], cy: at, r: heads.length > 400 ? 3.5 : 5, fill: draw.colour(layers > 1 ? one.layer / (layers - 1) : 0.5) });
    hoverable(dot, () => about(view, one), () => view.choose(one, true));
    dots.set(one, dot);
  }

  function names(svg, box, clt, one) {
    const label = (x, y, anchor, ...lines) => lines.forEach((text, k) => make(svg, "text", { class: "region-name halo", x, y: y + 15 * k, "text-anchor": anchor }, text));
    const low = box.bottom - 44, middle = (box.top + box.bottom) / 2 - 10;
    label(box.left + 8, middle, "start", "averages", "s² < ½ log n");
    if (one - clt > 60) label((clt + one) / 2 - 14, box.top + 60, "middle", ...(one - clt > 120 ? ["a few keys", "carry the answer"] : ["few", "keys"]));
    label(box.right - 8, low, "end", "not enough keys", "s² > 2 log n");
    const size = Math.min(110, (box.right - box.left) / 4), left = box.right - size;
    for (let k = 0; k < 40; k += 1) make(svg, "rect", { x: left + (size * k) / 40, y: 6, width: size / 40 + 0.5, height: 8, fill: draw.colour(k / 39) });
    make(svg, "text", { x: left - 6, y: 14, "text-anchor": "end" }, layers > 1 ? `layer 0 to ${layers - 1}` : "layer 0");
  }

  function choose() {
    for (const [one, dot] of dots) dot.classList.toggle("chosen", one === state.chosen);
    const dot = dots.get(state.chosen);
    dot.parentNode.append(dot);
  }

  return { update() { update(); choose(); }, choose };
}
