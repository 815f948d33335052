"""What the page shows of an analysis of a model."""

from __future__ import annotations

from typing import Any

from attnlimit.models.analyse.heads import POLICIES, SCORE_BINS, HeadReport
from attnlimit.models.analyse.run import Run
from attnlimit.numerics.words import counted

SHARES = {"own": "the own token", "sinks": "the first 4 keys", "window": "the last 16 keys"}


def analysis(run: Run, folder: str = "RUN") -> dict[str, Any]:
    """The data of `page` for this run; `folder` is named in the commands it suggests."""
    facts = run.facts
    layers, heads = run.shape
    pooled = (
        facts["population"] == "corpus"
    )  # keys of many passages have no order: only the top ones are kept
    return {
        "title": f"{facts['model']}: keys per head, attnlimit",
        "eyebrow": "attnlimit analyze",
        "heading": "How many keys does each head need?",
        "chips": [
            facts["model"],
            f"{len(run.heads):,} heads: {layers} layers of {heads}",
            f"{counted(facts['passages'], 'passage')} of {facts['tokens']:,} tokens",
            f"{facts['queries']} queries per head",
        ],
        "summary": [_lead(run)],
        "heads": {
            "facts": {name: facts[name] for name in ("model", "population", "tokens", "rel_error")},
            "folder": folder,
            "score_bins": SCORE_BINS,
            "share_words": SHARES,
            "kept_words": _kept_words(pooled),
            "heads": [_head(one) for one in run.heads],
        },
        "methods": _methods(run),
    }


def _lead(run: Run) -> str:
    facts = run.facts
    visible = max(one.visible_keys for one in run.heads)
    where = (
        f"here the {visible:,.0f} keys of {counted(facts['passages'], 'passage')}, pooled"
        if facts["population"] == "corpus"
        else f"here up to {visible:,.0f} of them"
    )
    return (
        f"An attention head answers a query by averaging over keys: the tokens that it may look at, {where}. "
        "How many of them are enough, if its output may change by no more than the error that you choose? Move the slider."
    )


def _head(one: HeadReport) -> dict[str, Any]:
    """What the page needs of a head."""
    for_one_error = ("n_median", "n_p90", "phase")  # the page works them out for every error
    return {name: value for name, value in vars(one).items() if name not in for_one_error}


def _kept_words(pooled: bool) -> str:
    kept = POLICIES["kept"]
    if pooled:
        return f"keep the {kept.top} of largest score"
    return f"keep the last {kept.window}, first {kept.sinks}, top {kept.top}"


def _methods(run: Run) -> list[tuple[str, object]]:
    facts = run.facts
    keys = (
        "those a query sees in its passage" if facts["population"] == "context" else "of all passages, pooled"
    )
    return [
        ("Model", f"{facts['model']} ({facts['kind']}{', causal' if facts['causal'] else ''})"),
        ("Text", f"{counted(facts['passages'], 'passage')} of {facts['tokens']:,} tokens, {facts['queries']} random queries per head"),
        ("Keys", keys),
        ("Error", "(E‖Γₙ − Γ‖² / mean‖Γ‖²)^½: root mean square change of the head's output over the draws of keys, relative to the size of its outputs"),
        ("Method", facts["method"]),
        ("n(ε)", "least number of keys with error at most ε; between the stored points of a curve its square is a + b/n. 90 % and half of the queries: from the curves of these quantiles"),
        ("Slope", "of log error against log n for random keys, by least squares; without replacement n of R keys count as n/(1 − n/R) independent ones"),
        ("Keys read", "for each head the least that brings its rms error over queries to ε; keys always kept are counted"),
        ("Seed", facts["seed"]),
        ("Versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())),
    ]  # fmt: skip
