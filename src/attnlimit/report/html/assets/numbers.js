"use strict";
/* The numbers of the page, from the stored curves; the same formulas as attnlimit.models.heads and .run. */
const numbers = (() => {
  /* Least n whose error is at most epsilon, null beyond the curve; the squared error is a + b/n between points. */
  function leastN(n, errors, epsilon) {
    const first = errors.findIndex((error) => error <= epsilon);
    if (first < 0) return null;
    const before = Math.max(first - 1, 0);
    const high = errors[before] ** 2, low = errors[first] ** 2;
    const share = Math.min(Math.max((high - epsilon ** 2) / Math.max(high - low, 1e-300), 0), 1);
    return Math.ceil(1 / (1 / n[before] + share * (1 / n[first] - 1 / n[before])) - 1e-9);
  }

  /* The curve at any n, in the same way. */
  function errorAt(n, errors, at) {
    const last = n.length - 1;
    if (at <= n[0]) return errors[0];
    if (at >= n[last]) return errors[last];
    const right = n.findIndex((value) => value >= at), left = right - 1;
    const share = (1 / n[left] - 1 / at) / (1 / n[left] - 1 / n[right]);
    return Math.sqrt(errors[left] ** 2 + share * (errors[right] ** 2 - errors[left] ** 2));
  }

  /* Keys that a query of this head reads with one policy: those always kept and those drawn; full: all it sees. */
  function oneBudget(head, policy, statistic, epsilon) {
    const sampled = leastN(head.n, head.curves[policy][statistic], epsilon);
    const full = { policy, sampled: null, keys: head.visible_keys, full: true };
    if (sampled === null) return full;
    const always = Math.min(head.visible_keys, head.kept_keys[policy]);
    const keys = always + Math.min(head.visible_keys - always, sampled);
    return keys >= head.visible_keys - 0.5 ? full : { policy, sampled, keys, full: false };
  }

  /* The same; "best" is the cheaper policy for this head. */
  function budget(head, policy, statistic, epsilon) {
    if (policy !== "best") return oneBudget(head, policy, statistic, epsilon);
    return Object.keys(head.curves)
      .map((name) => oneBudget(head, name, statistic, epsilon))
      .reduce((best, one) => (one.keys < best.keys ? one : best));
  }

  /* All heads: keys a query reads, and the share of full attention. */
  function cost(heads, policy, epsilon) {
    const keys = heads.reduce((sum, head) => sum + budget(head, policy, "rms", epsilon).keys, 0);
    const full = heads.reduce((sum, head) => sum + head.visible_keys, 0);
    return { keys, full, share: keys / full };
  }

  /* What kind of head it is, from the keys that 90 % of its queries need. */
  function kind(head, epsilon) {
    const n = leastN(head.n, head.curves.sampled.p90, epsilon);
    if (head.effective_keys[1] < 3) return "few";
    if (n === null || n >= head.visible_keys) return "all";
    return n <= head.visible_keys / 4 ? "fast" : "slow";
  }

  return { leastN, errorAt, budget, cost, kind };
})();
