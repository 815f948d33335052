/* What is chosen on the page, and the heads' numbers and words for it. */
function makeView(run) {
  const heads = run.heads, pooled = run.facts.population === "corpus";
  const state = { epsilon: run.facts.rel_error, policy: pooled ? "sampled" : "best", statistic: "p90", chosen: heads[0] };

  const epsilon = () => `${words.number(100 * state.epsilon, 4)} %`;
  /* Keys read under the chosen policy and statistic. */
  const found = (one) => numbers.budget(one, state.policy, state.statistic, state.epsilon);
  /* n(ε): random keys only. */
  const need = (one, statistic) => numbers.leastN(one.n, one.curves.sampled[statistic], state.epsilon);
  const enough = (n, one) => n !== null && n < one.visible_keys;

  const name = (one) => `Layer ${one.layer}, head ${one.head}${one.cross ? ", of another sequence" : ""}`;
  const short = (budget) => (budget.full ? (pooled ? `>${words.short(budget.keys)}` : "all") : words.short(budget.keys));
  function counted(n, one) {
    if (pooled) return n === null ? `more than ${words.count(one.visible_keys)}` : words.count(n);
    return enough(n, one) ? words.count(n) : "all";
  }

  function phase(one) {
    const n = need(one, "p90"), effective = one.effective_keys[1];
    if (effective < 3) return `picks ${effective < 1.5 ? "one key" : "a few keys"}: do not sample`;
    if (!enough(n, one)) return `needs all its keys for ${epsilon()}`;
    if (n <= one.visible_keys / 4) return `averages: ${n} keys are enough`;
    return `averages slowly: ${n} of ${one.visible_keys.toFixed(0)} keys`;
  }

  function describe(budget, one) {
    if (budget.full) return pooled ? "more than the pool holds" : "read all keys";
    const text = budget.policy === "sampled" ? `draw ${words.count(budget.sampled)}` : `keep ${words.count(one.kept_keys.kept)}, draw ${words.count(budget.sampled)} more`;
    return `${text}: ${words.percent(budget.keys / one.visible_keys)} of the keys`;
  }

  return {
    run, heads, pooled, state, epsilon, found, need, enough, name, short, counted, phase, describe,
    layers: 1 + Math.max(...heads.map((one) => one.layer)),
    width: 1 + Math.max(...heads.map((one) => one.head)),
    most: Math.max(2, ...heads.map((one) => one.visible_keys)),
    choose: null,
  };
}

/* A tooltip on hover and focus, the head's panel on click. */
function hoverable(view, node, one) {
  const tip = document.getElementById("tip");
  const show = () => {
    const { need, counted } = view;
    tip.textContent = [
      view.name(one),
      `${view.describe(view.found(one), one)}`,
      `random keys only: ${counted(need(one, "p90"), one)} for 90 % of queries, ${counted(need(one, "median"), one)} for half`,
      `effective keys ${words.number(one.effective_keys[1])} of ${words.count(one.visible_keys)}, horizon ${words.number(one.horizon)}`,
      view.phase(one),
    ].join("\n");
    tip.hidden = false;
    const box = node.getBoundingClientRect(), size = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(innerWidth - size.width - 6, box.left + box.width / 2 - size.width / 2))}px`;
    tip.style.top = `${box.top - size.height - 8 > 0 ? box.top - size.height - 8 : box.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const kind of ["mouseenter", "focus"]) node.addEventListener(kind, show);
  for (const kind of ["mouseleave", "blur"]) node.addEventListener(kind, hide);
  node.addEventListener("click", () => view.choose(one, true));
}
