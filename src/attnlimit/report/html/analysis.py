"""What the page shows of an analysis of a model: ready numbers for each level of its slider, and a comparison with other methods."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from attnlimit.errors import MissingExtra
from attnlimit.files.strict import to_record
from attnlimit.models.analyse.heads import PHASES, SCORE_BINS, HeadReport
from attnlimit.models.analyse.run import ANSWER_LEVELS, Run
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.budget.needed import POLICIES, cheapest, needed
from attnlimit.models.judge.compare import Comparison
from attnlimit.models.see.gradient import NATS
from attnlimit.numerics.counts import short_count
from attnlimit.numerics.words import counted
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.report.html.page import Page, Picture, Sheet

SHARES = {"own": "the own token", "sinks": "the first 4 keys", "window": "the last 16 keys"}
STEPS = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)
SAME = 0.01
"""An error of the answer, one of `ANSWER_LEVELS`, at which the model still says the same."""
FINE = 6
"""Points of a drawn curve between two of its own."""


def levels(run: Run) -> list[float]:
    """The errors that the slider knows, from 0.5 % to 100 %, and the run's own."""
    steps = [float(f"{step * ten:.6g}") for ten in (0.001, 0.01, 0.1) for step in STEPS]
    return sorted({level for level in steps if level >= 0.005} | {1.0, run.facts.rel_error})


def analysis(run: Run, folder: str = "RUN") -> Page:
    """The page of this run; `folder` is named in the commands it suggests."""
    facts, (layers, heads), known = run.facts, run.shape, levels(run)
    always = run.heads[0].chosen("kept")[0].sampling.kept
    kept = ((always.window, "last"), (always.sinks, "first"), (always.top, "top"))
    shown = [_head(one, known) for one in run.heads]
    totals = {
        policy: [sum(one["needed"][policy]["keys"][k] for one in shown) for k in range(len(known))]
        for policy in POLICIES
    }
    return Page(
        title=f"{facts.model}: keys per head, attnlimit",
        eyebrow="attnlimit analyze",
        heading="How many keys does each head need?",
        chips=[
            facts.model,
            f"{len(run.heads):,} heads: {layers} layers of {heads}",
            f"{counted(facts.passages, 'passage')} of {facts.tokens:,} tokens",
            f"{facts.queries} queries per head",
        ],
        summary=[*([] if run.answer is None else [answer_words(run)]), _lead(run)],
        tables=[] if run.answer is None else [Sheet("What the model's answer needs", *answer_table(run))],
        heads={
            "pooled": facts.population == "corpus",
            "folder": folder,
            "levels": known,
            "own": known.index(facts.rel_error),
            "totals": totals,
            "phases": PHASES,
            "score_bins": SCORE_BINS,
            "share_words": SHARES,
            "kept_words": "keep the " + ", ".join(f"{name} {count}" for count, name in kept if count),
            "heads": shown,
        },
        methods=_methods(run),
    )


def same_answer(run: Run) -> Budgets:
    """The cheapest budgets with which the model still says the same."""
    return run.answer_levels[ANSWER_LEVELS.index(SAME)]


def answer_words(run: Run) -> str:
    """How many keys the same answers take, in a sentence."""
    found = same_answer(run)
    share, nats = 100 * (found.share or 0.0), run.facts.answer == NATS
    what = f"gives the same answers (KL {SAME:g} nats{' a text' * (run.facts.kind == 'classifier')})"
    if not nats:
        what = f"gives the same embeddings (squared change {SAME:g})"
    return f"{run.facts.model} {what} with {share:.3g} % of its keys, texts of {run.facts.tokens:,} tokens."


def answer_table(run: Run) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the error of the answer, its interval, and the keys that it takes."""
    columns = [
        "error of the answer",
        "interval",
        "keys",
        "keys per query and head",
        "heads by query",
        "full heads",
    ]
    rows = [
        (
            f"{one.predicted.value:.3g}",
            f"{one.predicted.low:.2g} … {one.predicted.high:.2g}",
            f"{100 * (one.share or 0):.3g} %",
            f"{one.total / len(one.entries):.3g}",
            str(sum(head.by_query is not None for head in one.entries)),
            str(sum(head.n is None for head in one.entries)),
        )
        for one in run.answer_levels
        if one.predicted is not None and one.total is not None
    ]
    # levels that the fewest keys reach are one
    return columns, [list(row) for row in dict.fromkeys(rows)]


def _lead(run: Run) -> str:
    facts = run.facts
    visible = max(one.visible_keys for one in run.heads)
    where = (
        f"here the {visible:,.0f} keys of {counted(facts.passages, 'passage')}, pooled"
        if facts.population == "corpus"
        else f"here up to {visible:,.0f} of them{', in the mean over queries' if facts.causal else ''}"
    )
    return (
        f"An attention head answers a query by averaging over keys: the tokens that it may look at, {where}. "
        "How many of them are enough, if its output may change by no more than the error that you choose? Move the slider."
    )


def _head(one: HeadReport, known: list[float]) -> dict[str, Any]:
    """What the page needs of a head: its facts, what it needs at each level, and its curves to draw."""
    facts = {name: value for name, value in to_record(one).items() if name not in ("ways", "band")}
    random, keeping = one.ways
    ways = [[needed([way], one.visible_keys, level) for level in known] for way in one.ways]
    by_policy = dict(
        zip(POLICIES, ([cheapest(both) for both in zip(*ways, strict=True)], *ways), strict=True)
    )
    curves = {"sampled": random.curve, "kept": keeping.curve, "median": one.band[0], "p90": one.band[1]}
    return facts | {
        "visible": short_count(one.visible_keys),
        "kept": keeping.kept,
        "kinds": [one.kind(need) for need in ways[0]],
        "needed": {
            policy: {
                "keys": [need.keys for need in found],
                "n": [need.n for need in found],
                "text": [str(need) for need in found],
            }
            for policy, found in by_policy.items()
        },
        "curves": {name: _points(curve) for name, curve in curves.items()},
    }


def _points(curve: ErrorCurve) -> list[tuple[int, float]]:
    """The curve as it is read, between its own points too."""
    grid = [float(n) for n in curve.n]
    between = [left * (right / left) ** (k / FINE) for left, right in pairwise(grid) for k in range(FINE)]
    fine = sorted({round(n) for n in between} | set(curve.n))
    return [(n, float(f"{curve.at(n):.4g}")) for n in fine]


def _methods(run: Run) -> list[tuple[str, object]]:
    facts = run.facts
    keys = "those a query sees in its passage" if facts.population == "context" else "of all passages, pooled"
    return [
        ("Model", f"{facts.model} ({facts.kind}, {facts.dtype}{', causal' if facts.causal else ''})"),
        ("Text", f"{counted(facts.passages, 'passage')} of {facts.tokens:,} tokens, {facts.queries} random queries per head"),
        ("Keys", keys),
        ("Error", "(mean over queries of E‖Γₙ − Γ‖² / mean‖Γ‖²)^½: root mean square change of the head's output over queries and draws of keys, relative to the size of its outputs"),
        ("Method", facts.method),
        ("Answer", "KL between the full model's predictions and the sampled one's, to second order: ½ Σ over heads of the mean over queries of E(gᵀδ)², g the gradient of the model's own answer (labels drawn from it), δ the head's exact error; for an encoder the squared change of its embedding. Intervals: 95 %, over passages, queries and labels"),
        ("Keys needed", "the least number of keys, kept and drawn together, that a query reads (mean over queries) so that this error is at most ε; never more than it sees, and then all; between the stored points of a curve its square is a + b/n"),
        ("Slope", "of log error against log n for random keys, by least squares; without replacement n of R keys count as n/(1 − n/R) independent ones"),
        ("Seed", facts.seed),
        ("Versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
    ]  # fmt: skip


TITLE = "What people would use instead"
COLUMNS = (
    "method",
    "asked, %",
    "read, %",
    "by key head, %",
    "change",
    "low",
    "high",
    "predicted",
    "from",
    "to",
)


def with_comparison(page: Page, found: Comparison) -> Page:
    """The page with figure and table, and where ours is not below other methods."""
    rows: list[list[object]] = []
    for name, point, measured in found.rows():
        shares = [None if one is None else 100 * one for one in (point.asked, point.read, point.by_key_head)]
        known = point.predicted
        predicted = [None] * 3 if known is None else [known.value, known.low, known.high]
        rows.append([name, *shares, measured.value, measured.low, measured.high, *predicted])
    return replace(
        page,
        figures=[*page.figures, *_drawn(found)],
        tables=[*page.tables, Sheet(f"{TITLE}: change of the answer", COLUMNS, rows)],
        methods=[*page.methods, (TITLE, f"Change of the answer: {found.words}. {found.verdict}")],
    )


def _drawn(found: Comparison) -> list[Picture]:
    """Its figure as SVG; none without matplotlib."""
    try:
        drawn = found.plot()
    except MissingExtra:
        return []
    return [Picture.drawn(TITLE, drawn, f"{found.verdict} Change of the answer: {found.words}.")]
