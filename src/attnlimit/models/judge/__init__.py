"""What budgets do to a model's own task."""

from attnlimit.models.judge.compare import Comparison, compare
from attnlimit.models.judge.downstream import (
    DownstreamCurve,
    SplitComparison,
    compare_splits,
    downstream_curve,
    example_horizons,
)
from attnlimit.models.judge.needles import NEEDLES, Needle
from attnlimit.models.judge.trial import Trial, Tried
from attnlimit.models.judge.verify import Allowed, Verification, verify

__all__ = [
    "NEEDLES",
    "Allowed",
    "Comparison",
    "DownstreamCurve",
    "Needle",
    "SplitComparison",
    "Trial",
    "Tried",
    "Verification",
    "compare",
    "compare_splits",
    "downstream_curve",
    "example_horizons",
    "verify",
]
