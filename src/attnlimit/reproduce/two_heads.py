"""Ours: what one softmax head pays against linear attention in in-context regression, and two opposite heads do not."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from attnlimit.icl import Block, InContextTask, finite_risk, long_prompt_constant, tuned
from attnlimit.icl.infinite import regression
from attnlimit.icl.methods import Attention
from attnlimit.icl.training import Comparison
from attnlimit.report.figures.icl import price_figure
from attnlimit.reproduce.compare import at_most, equals
from attnlimit.reproduce.icl import over, table
from attnlimit.reproduce.result import Points, Reproduction, Verdict
from attnlimit.studies.kinds.icl import comparisons

LONG = 10**5
LEFT, QUADRATURE = 0.01, 0.002
"""What is left at LONG of the price at infinity, which is near 3; and the error of averages over quasi-random queries, relative."""


@cache
def _long(task: InContextTask, length: int, attention: Attention) -> float:
    """L·risk of the best weights."""
    return length * tuned(task, length, attention)[1]


def verdicts(points: Points) -> list[Verdict]:
    (one,) = comparisons(points)
    constants = {name: long_prompt_constant(one.task, name) for name in ("softmax", "opposite", "linear")}
    price = constants["softmax"] / constants["linear"]
    last = one.lengths[-1]
    soft, two, linear = (one.runs[name].risk[-1][:, -1] for name in ("softmax", "opposite", "linear"))
    return [
        equals(f"price of one head, L·risk over that of linear attention, exact at L = {LONG:,}",
               price, _long(one.task, LONG, "softmax") / constants["linear"], slack=LEFT),
        equals(f"two opposite heads pay none, L·risk over that of linear attention, exact at L = {LONG:,}",
               1.0, _long(one.task, LONG, "opposite") / constants["linear"], slack=QUADRATURE),
        equals("opposite heads: measured over exact risk of the trained weights, mean over lengths",
               1.0, *over((one.runs["opposite"].risk[-1] / _exact(one)).mean(1)), slack=QUADRATURE, resolution=0.1),
        at_most(f"trained on {last} tokens, two opposite heads pay a quarter of what one head pays above linear attention, or less",
                0.25, *over((two - linear) / (soft - linear)), note=DRIFT),
    ]  # fmt: skip


def _exact(one: Comparison) -> Tensor:
    """Risk of the trained blocks at the lengths they were trained on, (replicates, lengths)."""
    run, task = one.runs["opposite"], regression(one.task, "two-heads")
    d = task.dim
    blocks = [
        [Block(U[:d, :d], float(V[d, d])) for U, V in zip(*pair, strict=True)]
        for pair in zip(run.U[-1], run.V[-1], strict=True)
    ]
    risks = [
        [
            float(finite_risk(task, block, L, attention="opposite").risk[0])
            for block, L in zip(row, run.lengths, strict=True)
        ]
        for row in blocks
    ]
    return torch.tensor(risks, dtype=torch.float64)


DRIFT = (
    "Training reaches bΣA = I soon and then drifts along it to larger b, where the two heads become linear attention: ever more slowly, "
    "as what is left to gain is of order 1/(L b⁴). One head has its best b within reach."
)
RESULTS = (
    Reproduction(
        name="two-heads",
        title="In-context regression: the price of one softmax head, and two opposite heads that do not pay it",
        claim="One softmax head needs a constant factor more tokens than linear attention; two heads of opposite scores and values do not.",
        source="attnlimit",
        figure=lambda points: price_figure(comparisons(points)[0]),
        verdicts=verdicts,
        table=table,
        notes=(
            "Half the sum of two heads (A, b) and (−A, −b), which have the infinite-prompt model of one head (A, b).",
        ),
    ),
)
