/* What is chosen on the page, and the heads' ready numbers and words for it. */
function makeView(run) {
  const heads = run.heads, pooled = run.pooled;
  const state = { level: run.own, policy: pooled ? "sampled" : "best", chosen: heads[0] };

  const error = () => run.levels[state.level];
  const epsilon = () => `${words.number(100 * error(), 4)} %`;
  /* Keys that a query of this head reads, as the run worked them out for this level. */
  function needed(one, policy = state.policy, level = state.level) {
    const { keys, n, text } = one.needed[policy];
    return { keys: keys[level], n: n[level], text: text[level], all: n[level] === null };
  }

  const name = (one) => `Layer ${one.layer}, head ${one.head}${one.cross ? ", of another sequence" : ""}`;
  const counted = (need) => (need.all ? "all" : words.count(need.keys));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, key) => values[key]);
  const phase = (one) => fill(run.phases[one.kinds[state.level]], { error: epsilon(), keys: needed(one, "sampled").text, visible: one.visible });

  function describe(need, one) {
    if (need.all) return pooled ? "more than the pool holds" : "read all keys";
    const text = need.text.endsWith("+") ? `keep ${words.count(one.kept)}, draw ${words.count(need.n)} more` : `draw ${words.count(need.n)}`;
    return `${text}: ${words.percent(need.keys / one.visible_keys)} of the keys`;
  }

  return {
    run, heads, pooled, state, error, epsilon, needed, name, counted, phase, describe,
    layers: 1 + Math.max(...heads.map((one) => one.layer)),
    most: Math.max(2, ...heads.map((one) => one.visible_keys)),
    full: heads.reduce((sum, one) => sum + one.visible_keys, 0),
    choose: null,
  };
}

/* What a tooltip says of a head. */
function about(view, one) {
  const { needed, counted } = view;
  return [
    view.name(one),
    `${view.describe(needed(one), one)}`,
    `random keys only: ${counted(needed(one, "sampled"))}; keep and draw: ${counted(needed(one, "kept"))}`,
    `effective keys ${words.number(one.effective_keys[1])} of ${words.count(one.visible_keys)}, horizon ${words.number(one.horizon)}`,
    view.phase(one),
  ];
}

/* When the page becomes wider or narrower; on phones its height changes with every scroll. */
function onWidth(work) {
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    work();
  });
}

/* A tooltip on hover and focus, something else on click. */
function hoverable(node, lines, click) {
  const tip = document.getElementById("tip");
  const show = () => {
    tip.textContent = lines().join("\n");
    tip.hidden = false;
    const box = node.getBoundingClientRect(), size = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(innerWidth - size.width - 6, box.left + box.width / 2 - size.width / 2))}px`;
    tip.style.top = `${box.top - size.height - 8 > 0 ? box.top - size.height - 8 : box.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const kind of ["mouseenter", "focus"]) node.addEventListener(kind, show);
  for (const kind of ["mouseleave", "blur"]) node.addEventListener(kind, hide);
  node.addEventListener("click", click);
}
