/* One head: its exact curve, its scores, and what they add up to. */
function makeHead(view) {
  const { make } = draw, { run, state, needed, counted } = view;
  const panel = document.getElementById("head");

  function update() {
    const one = state.chosen, style = getComputedStyle(panel);
    const room = Math.max(240, panel.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    panel.replaceChildren();
    make(panel, "h2", {}, view.name(one));
    make(panel, "p", { class: "words" }, `Random keys: ${view.phase(one)}. Cheapest: ${view.describe(needed(one, "best"), one)}.`);
    make(panel, "h3", {}, "Exact error against keys drawn");
    curve(make(panel, "div", { id: "curve" }), one, room);
    legend(one);
    make(panel, "h3", {}, "Scores of its keys");
    histogram(make(panel, "div", { id: "histogram" }), one, room);
    facts(one);
  }

  function legend(one) {
    const parent = make(panel, "p", { class: "legend" });
    const limit = `slope −${words.number(one.asymptotic_exponent)}: Gaussian tokens as n → ∞`;
    for (const [key, text] of [["rms", "random keys, rms over queries"], ["band", "half to 90 % of queries"], ["other", "besides kept keys, rms"], ["level", "ε"], ["guide", limit]])
      make(parent, "span", { class: `key-${key}` }, text);
  }

  function curve(parent, one, room) {
    const height = 250, box = { left: 54, right: room - 6, top: 26, bottom: height - 40 };
    const svg = draw.canvas(parent, room, height, `Error of ${view.name(one)} against the number of keys, logarithmic axes`);
    const { sampled, kept, median, p90 } = one.curves, epsilon = view.error(), { n } = needed(one, "sampled");
    // where all keys are drawn the error is zero, which a logarithm cannot show
    const [, floor] = [...sampled].reverse().find(([, error]) => error > 1e-3 * sampled[0][1]) ?? [0, epsilon];
    const [first] = sampled[0], [last] = sampled.at(-1);
    const high = 1.25 * Math.max(...[...p90, ...sampled].map(([, error]) => error), epsilon), low = Math.min(epsilon, floor) / 2;
    const x = draw.log(first, last * 1.12, box.left, box.right), y = draw.log(low, high, box.bottom, box.top);
    draw.axes(svg, box,
      { scale: x, ticks: draw.logTicks(first, last * 1.12), format: words.tick, title: "keys drawn, n" },
      { scale: y, ticks: draw.logTicks(low, high), format: (tick) => `${words.number(100 * tick)} %`, title: "error, relative to the head's output" });
    make(make(make(svg, "defs"), "clipPath", { id: "clip" }), "rect", { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 4 });
    const inside = make(svg, "g", { "clip-path": "url(#clip)" });
    const points = (curve) => curve.map(([at, error]) => [x(at), y(Math.max(error, low / 1000))]);
    make(inside, "path", { class: "band", d: `${draw.path([...points(median), ...points(p90).reverse()])}Z` });
    const anchor = sampled[Math.floor(sampled.length / 2)], guide = (at) => y(anchor[1] * (at / anchor[0]) ** -one.asymptotic_exponent);
    make(inside, "line", { class: "guide", x1: x(first), x2: x(last), y1: guide(first), y2: guide(last) });
    make(inside, "path", { class: "other", d: draw.path(points(kept)) });
    make(inside, "path", { class: "rms", d: draw.path(points(sampled)) });
    make(inside, "line", { class: "level", x1: box.left, x2: box.right, y1: y(epsilon), y2: y(epsilon) });
    if (n === null) return;
    const right = x(n) > (box.left + box.right) / 2;
    make(inside, "circle", { class: "mark", cx: x(n), cy: y(epsilon), r: 4.5 });
    make(svg, "text", { class: "strong halo", x: x(n) + (right ? -10 : 10), y: y(epsilon) + (right ? 16 : -8), "text-anchor": right ? "end" : "start" }, `n = ${words.count(n)}`);
  }

  function histogram(parent, one, room) {
    const [from, to, bins] = run.score_bins, step = (to - from) / bins, counts = one.score_counts;
    const total = counts.reduce((sum, count) => sum + count, 0) || 1, used = counts.map((count, k) => (count ? k : -1)).filter((k) => k >= 0);
    const span = used.at(-1) - used[0] + 1, merge = Math.max(1, Math.ceil(span / 48)), first = Math.max(0, used[0] - merge);
    const shares = [];
    for (let k = first; k < Math.min(bins, used.at(-1) + 1 + merge); k += merge) shares.push(counts.slice(k, k + merge).reduce((sum, count) => sum + count, 0) / total);
    const height = 140, box = { left: 54, right: room - 6, top: 26, bottom: height - 40 };
    const svg = draw.canvas(parent, room, height, `Histogram of the scores of ${view.name(one)}`);
    const top = Math.max(...shares) * 1.05, ends = [from + first * step, from + (first + shares.length * merge) * step];
    const x = draw.linear(...ends, box.left, box.right), y = draw.linear(0, top, box.bottom, box.top);
    draw.axes(svg, box,
      { scale: x, ticks: draw.ticks(...ends, room > 380 ? 8 : 5), format: (tick) => words.number(tick).replace("-", "−"), title: "score less its query's mean (log weight, nats)" },
      { scale: y, ticks: draw.ticks(0, top, 3), format: (tick) => `${words.number(100 * tick)} %`, title: "share of keys" });
    const group = make(svg, "g", { class: "bars" }), across = (box.right - box.left) / shares.length;
    shares.forEach((share, k) => make(group, "rect", { x: box.left + across * k + 0.5, width: Math.max(1, across - 1), y: y(share), height: box.bottom - y(share) }));
  }

  function facts(one) {
    const list = make(panel, "dl", { class: "facts" }), shares = Object.entries(one.shares);
    const ends = (values, write) => values.map((value) => write(value)).join(" to ");
    const range = (values) => `${words.number(values[1])} (${words.number(values[0])} to ${words.number(values[2])})`;
    const rows = [
      ["Keys needed", `${counted(needed(one, "best"))} of ${words.count(one.visible_keys)}; random keys only ${counted(needed(one, "sampled"))}, keep and draw ${counted(needed(one, "kept"))}`],
      ["Effective keys", `${range(one.effective_keys)} of ${words.count(one.visible_keys)}${one.effective_interval ? `; about 95 % interval of the median, were the keys others of the same law: ${ends(one.effective_interval, words.number)}` : ""}`],
      ["Spread of scores s", range(one.score_spread)],
      ["Horizon H", words.number(one.horizon)],
      ["Slope, n from " + ends(one.exponent_range, words.count), `−${words.number(one.local_exponent)}`],
      ["Slope as n → ∞", `−${words.number(one.asymptotic_exponent)} for Gaussian tokens of this H; published bound −${words.number(one.published_exponent)}`],
      ...(shares.length ? [["Weight on", shares.map(([key, share]) => `${run.share_words[key] ?? key} ${words.percent(share)}`).join(", ")]] : []),
      ...(Number.isFinite(one.output_share) ? [["Share of its layer", `${words.percent(one.output_share)} of the squared output`]] : []),
      ["Module", one.name],
    ];
    for (const [term, text] of rows) {
      make(list, "dt", {}, term);
      make(list, "dd", {}, text);
    }
    make(panel, "p", { class: "note" }, "In brackets: from 10 % to 90 % of the queries.");
  }

  return { update };
}
