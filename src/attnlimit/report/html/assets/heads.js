/* The heads of a model: every part of the page follows the error and the policy chosen. */
function showHeads(run) {
  const view = makeView(run), { state, heads, needed } = view;
  const get = (id) => document.getElementById(id);
  const COLUMNS = [
    ["Layer", (one) => [one.layer]],
    ["Head", (one) => [one.head]],
    ["Keys needed", (one) => counted(one, state.policy)],
    ["Random keys only", (one) => counted(one, "sampled")],
    ["Keep and draw", (one) => counted(one, "kept")],
    ["Keys seen", (one) => [Math.round(one.visible_keys)]],
    ["Effective keys", (one) => [one.effective_keys[1], words.number(one.effective_keys[1])]],
    ["Spread s", (one) => [one.score_spread[1], words.number(one.score_spread[1])]],
    ["Horizon H", (one) => [one.horizon, words.number(one.horizon)]],
    ["Slope", (one) => (one.local_exponent === null ? ["", "–"] : [-one.local_exponent, `−${words.number(one.local_exponent)}`])],
    ["In words", (one) => [view.phase(one)]],
  ];
  const counted = (one, policy) => [needed(one, policy).keys, view.counted(needed(one, policy))];

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
        if (cell.dataset.value === String(value) && cell.textContent === String(text)) return;
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

  /* --- the slider: the levels that the run was worked out for; a number typed goes to the nearest ---- */
  function setLevel(level) {
    state.level = level;
    get("epsilon").value = level;
    get("epsilon").setAttribute("aria-valuetext", view.epsilon());
    get("percent").value = words.number(100 * view.error(), 4);
  }

  get("epsilon").max = run.levels.length - 1;
  get("epsilon").addEventListener("input", (event) => {
    setLevel(Number(event.target.value));
    soon(update);
  });
  get("percent").addEventListener("change", (event) => {
    const wanted = Number(event.target.value) / 100, far = (level) => Math.abs(Math.log(level / wanted));
    setLevel(wanted > 0 ? run.levels.reduce((best, level, k) => (far(level) < far(run.levels[best]) ? k : best), 0) : state.level);
    soon(update);
  });
  onWidth(() => soon(() => { map.resize(); update(); }));

  /* --- start: with a head that is neither the cheapest nor the dearest ------------------------------ */
  setLevel(run.own);
  state.chosen = [...heads].sort((a, b) => needed(a, "best").keys - needed(b, "best").keys)[Math.floor(heads.length / 2)];
  makeTable();
  map.resize();
  update();
}
