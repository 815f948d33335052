"""Rank correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Spearman's, with a 95 % interval from resampled pairs of ranks.

    >>> round(rank_correlation([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 9.0])[0], 9)
    1.0
    """
    from scipy import stats  # slow to import

    ranks = np.stack([stats.rankdata(x), stats.rankdata(y)])
    drawn = np.random.default_rng(0).integers(ranks.shape[1], size=(RESAMPLES, ranks.shape[1]))
    some = ranks[:, drawn]
    centred = some - some.mean(2, keepdims=True)
    spread = np.sqrt(np.square(centred).sum(2).prod(0))
    found = (centred[0] * centred[1]).sum(1)[spread > 0] / spread[spread > 0]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(stats.spearmanr(x, y).statistic), (float(low), float(high))
