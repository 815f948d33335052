/* A text, what its tokens read in each head, and how certain that is. */
function showText(data) {
  const { make } = draw, get = (id) => document.getElementById(id);
  const { heads, tokens } = data, count = tokens.pieces.length, letters = Array.from(data.text);
  const map = Object.fromEntries(Object.entries(data.map).map(([name, array]) => [name, array && unpack(array)]));
  const named = data.map.keys.shape[2], layers = [...new Set(heads.map((one) => one.layer))];
  const tried = new Map(data.chosen.map((one) => [one.token, one]));
  const state = { token: data.chosen.length ? data.chosen[0].token : count - 1, layer: null, head: null };
  const spans = [];

  function unpack({ dtype, data: text }) {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    return dtype === "u2" ? new Uint16Array(bytes.buffer) : bytes;
  }

  const piece = (token) => tokens.pieces[token].trim() || "\u23ce";
  const matter = (k, token) => {
    const found = map.matters ? map.matters[k * count + token] : 0;
    return found ? 10 ** ((found - 1) / 16 - 12) : 0;
  };
  const certain = (k, token) => map.certainty[k * count + token] / 255;
  const inView = () => heads.flatMap((one, k) => ((state.layer === null || one.layer === state.layer) && (state.head === null || one.head === state.head) ? [k] : []));
  const single = () => (state.layer !== null && state.head !== null ? heads.findIndex((one) => one.layer === state.layer && one.head === state.head) : -1);
  const small = (value) => (value && value < 1e-3 ? value.toExponential(1).replace("e-", "\u00b710\u207b").replace(/\d+$/, (digits) => [...digits].map((one) => "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[one]).join("")) : words.number(value, 2));
  const unit = data.unit === "nats" ? "nats" : "squared change";

  /* What the heads in view read at a token, weighed by what they matter there; alike where nothing is known of that. */
  function reading(token) {
    const shown = inView(), total = shown.reduce((sum, k) => sum + matter(k, token), 0);
    const keys = new Map();
    let sure = 0, rest = 1;
    for (const k of shown) {
      const part = total > 0 ? matter(k, token) / total : 1 / shown.length;
      sure += part * certain(k, token);
      for (let i = (k * count + token) * named, end = i + named; i < end; i += 1) {
        const weight = (part * map.weights[i]) / 255;
        if (!weight) continue;
        const before = keys.get(map.keys[i]) ?? { weight: 0, sure: 0 };
        keys.set(map.keys[i], { weight: before.weight + weight, sure: before.sure + weight * certain(k, token) });
        rest -= weight;
      }
    }
    const listed = [...keys].map(([key, one]) => ({ key, weight: one.weight, sure: one.sure / one.weight }));
    return { keys: listed.sort((a, b) => b.weight - a.weight), rest: Math.max(0, rest), sure };
  }

  /* --- the text ------------------------------------------------------------------------------------- */
  function makeText() {
    const place = get("text");
    make(place, "svg", { id: "lines", width: 1, height: 1, "aria-hidden": "true" });
    let at = 0;
    for (let token = 0; token < count; token += 1) {
      const [start, end] = [Math.max(at, tokens.start[token]), Math.max(at, tokens.end[token])];
      if (start > at) place.append(letters.slice(at, start).join(""));
      const text = tokens.special[token] ? ` ${tokens.pieces[token]} ` : letters.slice(start, end).join("");
      const [, before, word, after] = /^(\s*)([^]*?)(\s*)$/.exec(text);
      place.append(before);
      const kind = `token${tokens.special[token] ? " special" : ""}${tried.has(token) ? " tried" : ""}`;
      const span = make(place, "span", { class: kind, role: "button", tabindex: -1 }, word || (before + after ? "\u23ce" : "\u25aa"));
      place.append(after);
      span.addEventListener("click", () => choose(token));
      span.addEventListener("keydown", (event) => move(event, token));
      spans.push(span);
      at = Math.max(at, end);
    }
    if (data.cut) place.append(" …");
  }

  function move(event, token) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count, ArrowUp: -10, ArrowDown: 10 }[event.key];
    if (event.key === "Enter" || event.key === " ") choose(token);
    else if (!step) return;
    else {
      const next = Math.min(count - 1, Math.max(0, token + step));
      spans[token].setAttribute("tabindex", -1);
      spans[next].setAttribute("tabindex", 0);
      spans[next].focus();
    }
    event.preventDefault();
  }

  function drawText(found) {
    const most = Math.max(1e-9, ...found.keys.filter((one) => one.key !== state.token).map((one) => one.weight));
    spans.forEach((span, token) => {
      span.classList.toggle("chosen", token === state.token);
      span.setAttribute("aria-pressed", token === state.token);
      span.setAttribute("tabindex", token === state.token ? 0 : -1);
      span.style.removeProperty("--read");
    });
    for (const { key, weight, sure } of found.keys) spans[key].style.setProperty("--read", (0.55 * Math.min(1, weight / most) * (0.35 + 0.65 * sure)).toFixed(3));
    drawLines(found, most);
  }

  function drawLines(found, most) {
    const svg = get("lines"), place = get("text"), box = place.getBoundingClientRect();
    svg.replaceChildren();
    const middle = (token) => {
      const one = spans[token].getClientRects()[0];
      return [one.left + one.width / 2 - box.left + place.scrollLeft, one.top - box.top + place.scrollTop + 2];
    };
    const [x, y] = middle(state.token);
    for (const { key, weight, sure } of found.keys.slice(0, 24)) {
      const [a, b] = middle(key), lift = 10 + Math.min(46, Math.abs(a - x) / 6);
      const d = key === state.token ? `M${x - 5} ${y}C${x - 16} ${y - 20} ${x + 16} ${y - 20} ${x + 5} ${y}` : `M${x} ${y}C${x} ${y - lift} ${a} ${b - lift} ${a} ${b}`;
      make(svg, "path", { d, "stroke-width": (1 + 5 * Math.min(1, weight / most)).toFixed(1), "stroke-opacity": (0.12 + 0.78 * sure * Math.min(1, weight / most)).toFixed(2), "data-key": key });
    }
  }

  /* --- the panel: keys, the average of the others, and the head ---------------------------------------- */
  function bar(list, text, value, sure, look = {}) {
    const row = make(list, "li", look.row ? { class: look.row } : {});
    const label = make(row, look.open ? "button" : "span", { class: "what", ...(look.open ? { type: "button" } : {}) }, text);
    if (look.open) label.addEventListener("click", look.open);
    const line = make(row, "span", { class: "bar" }), fill = make(line, "i", look.role === undefined ? {} : { class: "role" });
    if (look.role !== undefined) line.classList.add(`role-${look.role}`);
    fill.style.width = `${100 * Math.min(1, value)}%`;
    fill.style.setProperty("--sure", 0.25 + 0.75 * sure);
    if (look.interval) {
      const mark = make(line, "s");
      mark.style.left = `${100 * look.interval[0]}%`;
      mark.style.width = `${100 * Math.max(0, look.interval[1] - look.interval[0])}%`;
    }
    make(row, "b", {}, look.text ?? words.percent(value));
  }

  function drawReads(found) {
    const place = get("reads"), k = single(), token = state.token;
    place.replaceChildren();
    make(place, "h2", {}, `\u201c${piece(token)}\u201d reads`);
    make(place, "p", { class: "note" }, inWords());
    const detailed = k >= 0 ? tried.get(token)?.reads[k] : undefined;
    const list = make(place, "ul", { class: "reads", id: "keys" });
    const keys = detailed ? detailed.keys.map((key, i) => ({ key, weight: detailed.weights[i], sure: detailed.certainty })) : found.keys.slice(0, 12);
    for (const { key, weight, sure } of keys) bar(list, `${piece(key)} · ${key}`, weight, sure, { open: () => choose(key) });
    const left = Math.max(0, 1 - keys.reduce((sum, one) => sum + one.weight, 0));
    if (left > 0.002) bar(list, k >= 0 ? `average of ${others(k, token, keys.length)} others` : "all other keys", left, 1, { row: "rest" });
    make(place, "p", { class: "note" }, sureWords(found.sure));
    if (k >= 0) drawHead(place, k, detailed);
    else drawStrongest(place, token);
    const all = tried.get(token)?.measured;
    if (k < 0 && state.layer === null && all) make(place, "p", { class: "note" }, `Tried out: with only these keys in every head the answer loses ${small(all.named)} ${unit}; with as many random keys ${small(all.random)}.`);
  }

  const others = (k, token, shown) => words.count(Math.max(0, map.seen[heads[k].layer * count + token] - shown));
  const how = () => (map.matters ? "weighed by what they matter to the answer" : "all alike");
  function inWords() {
    if (single() >= 0) return `in layer ${state.layer}, head ${state.head}`;
    if (state.layer !== null) return `in layer ${state.layer}, heads ${how()}`;
    return state.head === null ? `in all heads, ${how()}` : `in head ${state.head} of every layer, ${how()}`;
  }
  const sureWords = (sure) => `Certainty ${words.percent(sure)}: the part of what is picked, beyond a plain average, that the named keys account for.${sure < 0.5 ? " Below a half, a list of keys is no explanation: most of it is an average." : ""}`;

  function drawStrongest(place, token) {
    if (!map.matters) return;
    const shown = inView().map((k) => ({ k, value: matter(k, token) })).sort((a, b) => b.value - a.value).slice(0, 6);
    if (!shown.length || !shown[0].value) return;
    make(place, "h3", {}, "Heads that matter most here");
    const list = make(place, "ul", { class: "reads", id: "strongest" });
    for (const { k, value } of shown) bar(list, `layer ${heads[k].layer}, head ${heads[k].head}`, value / shown[0].value, certain(k, token), { open: () => view(heads[k]), text: small(value) });
    make(place, "p", { class: "note" }, `What the answer loses if the head reads a plain average at this token, to second order, ${unit}.`);
  }

  function drawHead(place, k, detailed) {
    const one = heads[k];
    make(place, "h3", {}, "What this head does on the text");
    const list = make(place, "ul", { class: "reads", id: "shares" });
    data.roles.forEach((role, r) => {
      const [value, low, high] = one.shares[r];
      bar(list, role, value, 1, { role: r, interval: [low, high] });
    });
    make(place, "p", { class: "note" }, `Shares of its attention, with ${words.percent(data.level)} intervals; they sum to 1.`);
    const facts = make(place, "dl", { class: "facts" });
    const say = (term, text) => { make(facts, "dt", {}, term); make(facts, "dd", {}, text); };
    say("Effective keys", `${words.number(one.effective_keys)} of ${words.number(one.visible_keys)}`);
    say("Keys needed", one.needs_all ? "all" : `${words.number(one.keys_needed)} for ${words.percent(data.rel_error)} error`);
    say("Horizon", words.number(one.horizon));
    if (one.sensitivity !== null) say("Matters, whole text", `${small(one.sensitivity)} ${unit}`);
    if (map.matters) say("Matters here", `${small(matter(k, state.token))} ${unit}`);
    if (!detailed) return;
    say("Explained by", `${words.count(detailed.needed)} keys (output)${detailed.needed_for_answer === null ? "" : `, ${words.count(detailed.needed_for_answer)} (answer)`}, to ${words.percent(data.rel_error)}`);
    if (detailed.agreement !== null) say("Agreement", `${words.percent(detailed.agreement)} of the four keys between halves of the draws`);
    for (const [term, lost] of [["Lost, predicted", detailed.predicted], ["Lost, tried", detailed.measured]])
      if (lost) say(term, `${small(lost.named)} with these keys, ${small(lost.random)} with random ones`);
  }

  /* --- maps ------------------------------------------------------------------------------------------- */
  const leading = heads.map((one) => {
    const plays = one.shares.map(([value, low], r) => (low > (r < one.shares.length - 1 ? one.chance[r] : 0.5) ? value : -1));
    const best = plays.indexOf(Math.max(...plays));
    return plays[best] < 0 ? one.shares.length - 1 : best;
  });
  const open = (one) => view(single() === heads.indexOf(one) ? null : one);
  const told = (one) => [`Layer ${one.layer}, head ${one.head}`, ...one.shares.map(([value], r) => [value, data.roles[r]]).sort((a, b) => b[0] - a[0]).slice(0, 3).map(([value, role]) => `${role} ${words.percent(value)}`)];
  const roles = makeGrid(get("roles"), heads, "roles-title", open, (parts, box, one) => hoverable(parts.cell, () => told(one), () => open(one)));
  const heat = makeGrid(get("heat"), heads, "heat-title", open, (parts, box, one) => hoverable(parts.cell, () => [`Layer ${one.layer}, head ${one.head}`, `${shown().name}: ${small(shown().of(one, heads.indexOf(one)))}`], () => open(one)));
  const HEATS = [
    ...(map.matters ? [{ name: "what it matters at this token", of: (one, k) => matter(k, state.token), log: true, note: `What the answer loses if the head reads a plain average at this token, ${unit}; logarithmic over the upper four decades.` }] : []),
    { name: "certainty at this token", of: (one, k) => certain(k, state.token), note: "The part of what the head picks at this token that its four first keys account for." },
    ...(heads.some((one) => one.sensitivity !== null) ? [{ name: "what it matters to the text", of: (one) => one.sensitivity ?? 0, log: true, note: `The same over the whole text, ${unit}; logarithmic over the upper four decades.` }] : []),
    { name: "effective keys", of: (one) => one.effective_keys, log: true, note: "1/Σp², median over tokens; logarithmic." },
    { name: "keys needed", of: (one) => one.keys_needed, log: true, note: `Keys that a query reads for ${words.percent(data.rel_error)} error; logarithmic.` },
  ];
  const shown = () => HEATS[Number(get("heat-of").value) || 0];

  function drawRoles() {
    heads.forEach((one, k) => {
      const { rect, cell, text } = roles.cells.get(one), r = leading[k], value = one.shares[r][0];
      rect.setAttribute("class", "tinted");
      cell.setAttribute("class", `cell role-${r}`);
      rect.setAttribute("fill-opacity", (0.3 + 0.7 * value).toFixed(2));
      cell.setAttribute("aria-label", `Layer ${one.layer}, head ${one.head}: ${data.roles[r]} ${words.percent(value)}`);
      if (text) text.textContent = Math.round(100 * value);
      text?.setAttribute("class", "strong");
    });
  }

  function drawHeat() {
    const { of, log, note, name } = shown(), values = heads.map(of), most = Math.max(...values, 1e-300);
    const least = log ? Math.max(most / 1e4, Math.min(...values.filter((one) => one > 0), most)) : 0;
    const shade = (value) => (log ? (least < most ? Math.log(Math.max(value, least) / least) / Math.log(most / least) : 1) : value / most);
    get("heat-note").textContent = note;
    heads.forEach((one, k) => {
      const { rect, cell } = heat.cells.get(one);
      rect.setAttribute("fill", draw.colour(shade(values[k])));
      cell.setAttribute("aria-label", `Layer ${one.layer}, head ${one.head}: ${name} ${small(values[k])}`);
    });
  }

  /* --- what is chosen ------------------------------------------------------------------------------------ */
  function options(node, listed, all) {
    node.replaceChildren();
    make(node, "option", { value: "" }, all);
    for (const value of listed) make(node, "option", { value }, value);
  }

  function view(one) {
    state.layer = one ? one.layer : null;
    state.head = one ? one.head : null;
    update();
  }

  function choose(token) {
    state.token = token;
    update();
    spans[token].focus({ preventScroll: true });
  }

  function update() {
    const found = reading(state.token), k = single();
    get("layer").value = state.layer ?? "";
    get("number").value = state.head ?? "";
    get("text-title").textContent = `What \u201c${piece(state.token)}\u201d reads ${inWords()}`;
    drawText(found);
    drawReads(found);
    drawHeat();
    for (const grid of [roles, heat]) grid.choose(k < 0 ? null : heads[k]);
  }

  function resize() {
    for (const grid of [roles, heat]) grid.resize(heads[Math.max(0, single())]);
    drawRoles();
    update();
  }

  options(get("layer"), layers, "all");
  options(get("number"), [...new Set(heads.map((one) => one.head))].sort((a, b) => a - b), "all");
  for (const [id, name] of [["layer", "layer"], ["number", "head"]])
    get(id).addEventListener("change", (event) => { state[name] = event.target.value === "" ? null : Number(event.target.value); update(); });
  HEATS.forEach(({ name }, k) => make(get("heat-of"), "option", { value: k }, name));
  get("heat-of").addEventListener("change", drawHeat);
  data.roles.forEach((role, r) => {
    if (!leading.includes(r)) return;
    const item = make(get("role-keys"), "li", { class: `role-${r}` });
    make(item, "i");
    item.append(role);
  });
  makeText();
  resize();
  onWidth(resize);
}
