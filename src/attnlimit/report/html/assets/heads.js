/* The heads of a model: every part of the page follows the error, the policy and the statistic chosen. */
function showHeads(run) {
  const view = makeView(run), { state, heads, need, pooled } = view;
  const get = (id) => document.getElementById(id);
  const COLUMNS = [
    ["Layer", (one) => [one.layer]],
    ["Head", (one) => [one.head]],
    ["n(ε), half of queries", (one) => counted(need(one, "median"), one)],
    ["n(ε), 90 % of queries", (one) => counted(need(one, "p90"), one)],
    ["Keys read (rms)", (one) => [Math.round(numbers.budget(one, state.policy, "rms", state.epsilon).keys)]],
    ["Keys seen", (one) => [Math.round(one.visible_keys)]],
    ["Effective keys", (one) => [one.effective_keys[1], words.number(one.effective_keys[1])]],
    ["Spread s", (one) => [one.score_spread[1], words.number(one.score_spread[1])]],
    ["Horizon H", (one) => [one.horizon, words.number(one.horizon)]],
    ["Slope", (one) => [-one.local_exponent, `−${words.number(one.local_exponent)}`]],
    ["In words", (one) => [view.phase(one)]],
  ];
  const counted = (n, one) => [n ?? 2 * one.visible_keys, view.counted(n, one).replace("more than ", ">")];

  /* --- table ------------------------------------------------------------------------------------ */
  const rows = new Map();
  function makeTable() {
    const { make } = draw, node = get("table"), top = make(make(node, "thead"), "tr"), body = make(node, "tbody");
    const kind = (k) => (k === COLUMNS.length - 1 ? { class: "text" } : {});
    COLUMNS.forEach(([title], k) => make(top, "th", { scope: "col", ...kind(k) }, title));
    for (const one of heads) {
      const row = make(body, "tr");
      COLUMNS.forEach((_, k) => make(row, "td", kind(k)));
      row.addEventListener("click", () => view.choose(one, true));
      rows.set(one, row);
    }
    table.sortable(node);
  }

  function fillTable() {
    for (const [one, row] of rows)
      COLUMNS.forEach(([, read], k) => {
        const [value, text = typeof value === "number" ? words.count(value) : value] = read(one), cell = row.cells[k];
        if (cell.dataset.value === String(value)) return;
        cell.dataset.value = value;
        cell.textContent = text;
      });
    table.resort(get("table"));
  }

  /* --- parts that follow -------------------------------------------------------------------------- */
  const map = makeMap(view), head = makeHead(view), phase = makePhase(view), summary = makeSummary(view, () => soon(update));

  view.choose = (one, reveal) => {
    state.chosen = one;
    map.choose();
    phase.choose();
    head.update();
    for (const [other, row] of rows) row.classList.toggle("chosen", other === one);
    const box = get("head").getBoundingClientRect();
    if (reveal && (box.top > innerHeight - 160 || box.bottom < 160)) get("head").scrollIntoView({ block: "start", behavior: "smooth" });
  };

  function update() {
    for (const part of [summary, map, phase]) part.update();
    fillTable();
    view.choose(state.chosen, false);
  }

  let waiting = null;
  function soon(work) {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(work);
  }

  /* --- the slider: round levels, and the run's own ------------------------------------------------- */
  const STEPS = [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9];
  const LEVELS = [...new Set([0.1, 1, 10].flatMap((ten) => STEPS.map((step) => step * ten)).concat(100, 100 * run.facts.rel_error).map((level) => Number(level.toPrecision(6))))]
    .filter((level) => level >= 0.5 || level === 100 * run.facts.rel_error).sort((a, b) => a - b);

  function setEpsilon(percent) {
    const far = (level) => Math.abs(Math.log(level / percent));
    state.epsilon = percent / 100;
    get("epsilon").value = LEVELS.reduce((best, level, k) => (far(level) < far(LEVELS[best]) ? k : best), 0);
    get("epsilon").setAttribute("aria-valuetext", view.epsilon());
  }

  get("epsilon").max = LEVELS.length - 1;
  get("epsilon").addEventListener("input", (event) => {
    setEpsilon(LEVELS[event.target.value]);
    get("percent").value = words.number(100 * state.epsilon, 4);
    soon(update);
  });
  get("percent").addEventListener("input", (event) => {
    const percent = Number(event.target.value);
    if (!(percent >= 0.01 && percent <= 1000)) return;
    setEpsilon(percent);
    soon(update);
  });
  get("statistic").addEventListener("change", (event) => { state.statistic = event.target.value; soon(update); });
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    soon(() => { map.resize(); update(); });
  });

  /* --- start: with a head that is neither the cheapest nor the dearest ------------------------------ */
  setEpsilon(100 * run.facts.rel_error);
  state.epsilon = run.facts.rel_error;
  get("percent").value = words.number(100 * state.epsilon, 4);
  state.chosen = [...heads].sort((a, b) => numbers.budget(a, "best", "rms", state.epsilon).keys - numbers.budget(b, "best", "rms", state.epsilon).keys)[Math.floor(heads.length / 2)];
  makeTable();
  map.resize();
  update();
}
