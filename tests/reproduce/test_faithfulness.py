"""Verdicts of faithfulness from changes that are known."""

import torch

from attnlimit.models.judge.faithful import CURVES, ORDERS
from attnlimit.reproduce.faithfulness import RESULTS, figure, table, verdicts
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.faithfulness import Faithful


def point(better: float) -> Point:
    """Ours changes the answer `better` times as much as the others when alone read, and the inverse when left out."""
    noise = torch.rand(
        6, len(ORDERS), len(CURVES), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    changes = 0.1 * (1 + 0.05 * noise)
    changes[:, 0, 0] *= better
    changes[:, 0, 1] /= better
    return Point(0, {}, None, Faithful("small", "Weights: small.", "nats", 64, (0.1, 0.2), changes))


def test_verdicts_follow_the_changes():
    assert {one.outcome.value for one in verdicts([point(0.5)])} == {"agrees"}
    assert {one.outcome.value for one in verdicts([point(2.0)])} == {"differs"}
    assert "cannot tell" in {one.outcome.value for one in verdicts([point(1.0)])}
    assert len(verdicts([point(1.0)])) == len(CURVES) * (len(ORDERS) - 1)


def test_table_figure_and_record():
    one = point(0.5)
    assert len(table([one])) == 4
    assert len(figure([one]).axes) == 2
    again = Faithful.from_dict(one.result.to_dict())
    assert torch.equal(again.changes, one.result.changes)
    assert RESULTS[0].name == "faithfulness"
