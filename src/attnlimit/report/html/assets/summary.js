/* What the chosen error costs: in words, by kind of head, and by policy. */
function makeSummary(view, changed) {
  const { make } = draw, { run, heads, pooled, state, most, full, epsilon, needed } = view;
  const get = (id) => document.getElementById(id);
  const KINDS = [
    ["fast", "average widely: a quarter of their keys, or less, is enough"],
    ["slow", "average slowly: more than a quarter, but not all"],
    ["all", pooled ? "need more keys than the pool holds" : "need all their keys, if drawn at random"],
    ["few", "pick one to three keys: keep the top ones, do not sample"],
  ];
  const POLICIES = [
    ["best", "Cheaper way", "of the two below, head by head"],
    ["kept", "Keep and draw", run.kept_words],
    ["sampled", "Random keys only", "none kept"],
  ];

  const bars = {};
  for (const [policy, title, text] of POLICIES) {
    const label = make(get("policies"), "label", { class: "policy" });
    const input = make(label, "input", { type: "radio", name: "policy", value: policy });
    input.checked = policy === state.policy;
    input.addEventListener("change", () => { state.policy = policy; changed(); });
    const names = make(label, "span", {}, `${title} `);
    make(names, "span", { class: "note" }, text);
    const value = make(label, "b"), bar = make(make(label, "span", { class: "bar" }), "i");
    bars[policy] = { value, bar };
    get("cost-note").before(label);
  }

  const total = (policy) => run.totals[policy][state.level];

  function answer() {
    const few = heads.filter((one) => !needed(one, "sampled").all).length, node = get("answer");
    node.replaceChildren();
    make(node, "b", {}, `For ${epsilon()} error, `);
    if (pooled) {
      const middle = heads.map((one) => (needed(one, "sampled").all ? Infinity : needed(one, "sampled").keys)).sort((a, b) => a - b)[Math.floor(heads.length / 2)];
      node.append(Number.isFinite(middle) ? `half of the heads need at most ${words.count(middle)} keys drawn at random` : `more than half of the heads need over ${words.count(most)} keys`);
      node.append(`; ${words.count(few)} of ${words.count(heads.length)} need fewer than the ${words.count(most)} keys pooled.`);
      return;
    }
    const [sampled, best] = ["sampled", "best"].map((policy) => total(policy) / full);
    node.append("a query must read ");
    make(node, "b", {}, `${words.percent(best)} of its keys`);
    node.append(` if each head does what is cheaper for it, and ${words.percent(sampled)} if all keys are drawn at random. `);
    node.append(`Drawing at random, ${words.count(few)} of ${words.count(heads.length)} heads get by with fewer keys than they see:`);
  }

  function kinds() {
    const counts = Object.fromEntries(KINDS.map(([kind]) => [kind, 0])), parts = get("kinds");
    for (const one of heads) counts[one.kinds[state.level].replace("one", "few")] += 1;
    parts.replaceChildren();
    const stack = make(parts, "div", { class: "stack", "aria-hidden": "true" }), list = make(parts, "ul", { class: "kinds" });
    for (const [kind, text] of KINDS) {
      make(stack, "i", { class: `kind-${kind}` }).style.flexGrow = counts[kind];
      const item = make(list, "li");
      make(item, "span", { class: `swatch kind-${kind}` });
      make(item, "b", {}, counts[kind]);
      make(item, "span", {}, text);
    }
  }

  function costs() {
    for (const [policy, { value, bar }] of Object.entries(bars)) {
      const share = total(policy) / full;
      value.textContent = `${words.count(total(policy) / heads.length)} keys · ${words.percent(share)}`;
      bar.style.width = `${100 * share}%`;
    }
    const note = get("cost-note");
    if (pooled) {
      note.textContent = `Mean over heads, and share of the ${words.count(most)} keys pooled. For a budget to run the model with, analyse with --population context.`;
      return;
    }
    note.replaceChildren(`Mean over heads, and share of full attention. Total cost of the way chosen: ${words.count(total(state.policy))} of ${words.count(full)} keys for each query, all heads together. Save it as a budget: `);
    make(note, "code", {}, `attnlimit budget ${run.folder} --rel-error ${view.error()} --policy ${state.policy}`);
  }

  return { update() { answer(); kinds(); costs(); } };
}
