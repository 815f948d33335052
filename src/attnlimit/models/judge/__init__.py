"""What budgets do to a model's own task."""

from attnlimit.models.judge.compare import Comparison, compare
from attnlimit.models.judge.downstream import DownstreamCurve, downstream_curve, example_horizons
from attnlimit.models.judge.needles import NEEDLES, Needle, NeedleResult
from attnlimit.models.judge.splits import SplitComparison, compare_splits
from attnlimit.models.judge.trial import Trial
from attnlimit.models.judge.verify import Allowed, Verification, verify

__all__ = [
    "NEEDLES",
    "Allowed",
    "Comparison",
    "DownstreamCurve",
    "Needle",
    "NeedleResult",
    "SplitComparison",
    "Trial",
    "Verification",
    "compare",
    "compare_splits",
    "downstream_curve",
    "example_horizons",
    "verify",
]
