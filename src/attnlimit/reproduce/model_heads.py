"""Published: heads of BERT and BigBird with n of their keys converge at a rate that falls with the horizon."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlimit.designs import Different, Sampling
from attnlimit.drawing import Figure
from attnlimit.numerics.words import counted
from attnlimit.report.figures.models import model_heads_figure
from attnlimit.reproduce import heads
from attnlimit.reproduce.compare import equals, mean_with_interval
from attnlimit.reproduce.result import Points, Reproduction, Verdict, only
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.model_convergence import HeadsConverged, HeadSlope

INDEPENDENT, DIFFERENT = Sampling(), Sampling(draw=Different())


def window_of(found: HeadsConverged) -> tuple[list[HeadSlope], list[HeadSlope]]:
    """The heads with keys around the query: random keys plain, and standing for all the rest."""
    ways = {one.sampling for one in found.slopes if one.sampling.kept.around}
    by_weight = {one.weight: heads.chosen(found, one) for one in ways}
    return by_weight["plain"], by_weight["rest"]


def _figure(found: HeadsConverged, shown: heads.Heads, words: str, other: heads.Heads = ()) -> Figure:
    model = {"packaged-bert": "packaged BERT (MiniLM-L6)"}.get(found.model, found.model)
    model += ": random weights" if found.random else ""
    some = counted(found.passages, "passage")
    foot = f"{found.weights} {some} × {found.queries} queries, {found.replicates} replicates."
    return model_heads_figure(shown, f"{model}, {found.tokens} tokens,\n{words}", foot, other)


def iid_figure(points: Points) -> Figure:
    """Independent keys, and beside them different ones where there are some."""
    found = only(points, HeadsConverged)
    shown, other = (heads.chosen(found, one) for one in (INDEPENDENT, DIFFERENT))
    return _figure(found, shown, "independent keys", other)


def window_figure(points: Points) -> Figure:
    found = only(points, HeadsConverged)
    plain, rest = window_of(found)
    words = f"{plain[0].sampling.kept.around} keys around the query, the rest random"
    return _figure(found, plain, words, rest)


def bert_verdicts(points: Points) -> list[Verdict]:
    found = only(points, HeadsConverged)
    shown = heads.chosen(found, INDEPENDENT)
    return [
        *_published(found, shown, heads.margin, heads.every_head, heads.falls_with_horizon),
        heads.nearer(shown),
        heads.closed_form(shown),
        _finite_population(heads.chosen(found, DIFFERENT), shown),
    ]


def iid_verdicts(points: Points) -> list[Verdict]:
    found = only(points, HeadsConverged)
    shown = heads.chosen(found, INDEPENDENT)
    about = _published(found, shown, heads.margin, heads.every_head, heads.falls_with_horizon)
    return [*about, heads.closed_form(shown)]


def window_verdicts(points: Points) -> list[Verdict]:
    found = only(points, HeadsConverged)
    plain, rest = window_of(found)
    return [
        *_published(found, plain, heads.margin, heads.falls_with_horizon),
        _standing_for_the_rest(plain, rest),
        heads.closed_form(plain, "plain random keys"),
        heads.closed_form(rest, "random keys that stand for all others"),
    ]


def _published(
    found: HeadsConverged, shown: heads.Heads, *claims: Callable[[heads.Heads], Verdict]
) -> list[Verdict]:
    about = [claim(shown) for claim in claims]
    return heads.without_weights(about) if found.random else about


def _finite_population(different: heads.Heads, independent: heads.Heads) -> Verdict:
    """Different keys of a finite context: how much steeper that makes the slopes, and whether theory says so too."""
    measured = heads.fitted(different) - heads.fitted(independent)
    closed = [
        np.array([one.closed_exponent for one in some], dtype=float) for some in (different, independent)
    ]
    expected = closed[0] - closed[1]
    error, (low, high) = mean_with_interval(measured - expected)
    mean = float(expected.mean())
    claim = "ours: different keys of one passage, as published, steepen slopes: gain in exponent, predicted in closed form"
    return equals(claim, mean, mean + error, (mean + low, mean + high), slack=heads.SLACK)


def _standing_for_the_rest(plain: heads.Heads, rest: heads.Heads) -> Verdict:
    """Ours: what it gives at the least n that random keys stand for all others, beside plain ones."""
    pairs = list(zip(plain, rest, strict=True))
    expected = float(np.mean([float((b.closed.error[0] / a.closed.error[0]).log()) for a, b in pairs]))
    off = np.array([heads.over_closed_form(b)[0] - heads.over_closed_form(a)[0] for a, b in pairs])
    error, ends = mean_with_interval(off)
    claim = "ours: random keys that stand for all others, over plain ones: ratio of errors at the least n, in closed form"
    measured, low, high = (float(np.exp(expected + one)) for one in (error, *ends))
    return equals(claim, float(np.exp(expected)), measured, (low, high), slack=heads.SLACK)


def bert_said(points: Points) -> list[str]:
    found = only(points, HeadsConverged)
    text, everything = heads.chosen(found, INDEPENDENT), heads.chosen(found, INDEPENDENT, "all")
    told, exceptions = HeadsConverged.words(points), heads.slower(text)
    if exceptions:
        named = ", ".join(f"layer {one.layer} head {one.head}" for one in exceptions[:6])
        told.append(f"Slower than published: {named}{' and others' if len(exceptions) > 6 else ''}.")
    if everything:
        told.append(
            f"With the special tokens among the keys, {len(heads.slower(everything))} of {len(everything)} heads are "
            f"slower than published, against {len(exceptions)} of {len(text)} without: [CLS] and [SEP] are rare keys "
            "that many heads rest on, and a subsample often lacks them."
        )
    return told


def table(points: Points) -> list[Row]:
    """One row for every head, way of drawing and n."""
    found = only(points, HeadsConverged)
    facts: Row = {"model": found.model, "replicates": found.replicates}
    return [{**facts, **one.facts(), **row} for one in found.slopes for row in one.curve()]


NOTES = (
    "BigBird is run with full attention in place of its random blocks, and keys are drawn for each head by itself.",
    "Weights of google/bigbird-roberta-base are used where they can be had. With random weights the query weights are "
    "scaled so that horizons spread.",
)
RESULTS = (
    Reproduction(
        name="bert",
        title="BERT on Wikipedia: slope of each head's error against its horizon",
        claim="In BERT the error of attention with n keys falls like a power of n, more slowly the larger the horizon H, "
        "no slower than n^(−1/(2(1+H²))).",
        source="bohbot2026token",
        figure=iid_figure,
        verdicts=bert_verdicts,
        table=table,
        notes=(
            "Horizons have the factor 1/√d_h of the scores and are per head; published ones leave it out and merge heads.",
            "The statistic is the rms error of a head's output over queries and replicates, against attention to all keys "
            "of the passage. Published replicates draw different keys; independent ones, shown here, have no bias from the "
            "finite passage.",
        ),
        more=bert_said,
    ),
    Reproduction(
        name="bigbird-iid",
        title="BigBird on long articles, independent keys: slope against horizon",
        claim="The same as for BERT holds in BigBird on texts of thousands of tokens.",
        source="bohbot2026token",
        figure=iid_figure,
        verdicts=iid_verdicts,
        table=table,
        notes=NOTES,
        more=HeadsConverged.words,
    ),
    Reproduction(
        name="bigbird-window",
        title="BigBird on long articles, a window and random keys: slope against horizon",
        claim="With a window around the query and r random keys the error still falls with n at a rate that depends on "
        "the horizon.",
        source="bohbot2026token",
        figure=window_figure,
        verdicts=window_verdicts,
        table=table,
        notes=NOTES,
        more=HeadsConverged.words,
    ),
)
