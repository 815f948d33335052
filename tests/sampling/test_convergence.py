"""What the result holds, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from attnlimit import Gaussian, Head, NotKnown
from attnlimit.errors import RateNotResolved
from attnlimit.sampling import Convergence, measure_convergence

SQUARES = torch.tensor([[4.0, 1.0, 0.25], [2.0, 0.5, -0.05]], dtype=torch.float64)


def _result(
    squares: torch.Tensor, norms: torch.Tensor | None = None, n: tuple[int, ...] = (10, 40, 160)
) -> Convergence:
    return Convergence(n, "mean", squares, norms, "by hand", "nothing")


def test_curves_and_standard_errors() -> None:
    result = _result(SQUARES)
    torch.testing.assert_close(result.rms, torch.tensor([3.0, 0.75, 0.1], dtype=torch.float64).sqrt())
    expected = SQUARES.std(0) / 2**0.5 / (2 * result.rms)
    torch.testing.assert_close(result.rms_standard_error, expected)
    assert result.errors_are == "unbiased squares"
    with pytest.raises(NotKnown, match="only the squared error has no bias"):
        _ = result.mean
    known = _result(SQUARES.abs(), SQUARES.abs().sqrt())
    torch.testing.assert_close(known.mean, SQUARES.abs().sqrt().mean(0))
    torch.testing.assert_close(known.mean_standard_error, SQUARES.abs().sqrt().std(0) / 2**0.5)
    assert known.errors_are == "norms"


def test_rows_and_dict_are_plain() -> None:
    result = _result(SQUARES)
    assert result.rows()[5] == {"replicate": 1, "n": 160, "error": -0.05}
    assert json.loads(json.dumps(result.to_dict()))["errors"] == SQUARES.tolist()
    assert "mean" not in result.to_dict()
    assert "mean" in _result(SQUARES.abs(), SQUARES.abs().sqrt()).to_dict()
    assert (
        repr(result)
        == "Convergence(mean, n = 10 … 160, rms 1.73 … 0.316; Monte Carlo, 2 replicates, by hand)"
    )


def test_rms_fit_takes_negative_squares_in_groups() -> None:
    """Squares 1/n with noise of its own size: the exponent ½ lies in the 99.9 % interval."""
    n = (10, 40, 160, 640)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    squares = (1 + noise) / torch.tensor(n, dtype=torch.float64)
    assert bool((squares < 0).any())
    fit = _result(squares, n=n).fit(level=0.999)
    assert fit.interval[0] < 0.5 < fit.interval[1]
    assert fit.interval[1] - fit.interval[0] < 0.3
    expected = squares.mean(0).log()
    x = torch.tensor(n, dtype=torch.float64).log()
    slope = torch.linalg.lstsq(torch.stack([x, torch.ones_like(x)], 1), expected[:, None]).solution[0]
    assert fit.exponent == pytest.approx(-float(slope) / 2, abs=0.03)


def test_fit_refuses_noise() -> None:
    noise = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(RateNotResolved, match="noise of the queries left out exceeds the error"):
        _result(noise).fit()


def test_fits_of_a_measured_curve() -> None:
    """A single head with H = 0.5 in one dimension: the mean error falls like n^(−1/2)."""
    curve = measure_convergence(
        Head([[0.5]]),
        Gaussian(cov=1.0, dim=1),
        [1000, 2000, 4000, 8000],
        queries=64,
        replicates=60,
        generator=0,
    )
    for statistic in ("mean", "rms"):
        low, high = curve.fit(statistic, level=0.999).interval
        assert low < 0.5 < high
        assert high - low < 0.3
    assert curve.fit().exponent == curve.fit("mean").exponent
