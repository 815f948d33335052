"""The second moment and the covariance of outputs at fresh queries: Monte Carlo with queries of its own, one key, the limit in closed form."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact.second_moment import Plane, second_moment_error
from attnlimit.sampling.output_covariance import by_the_mean

F64 = {"dtype": torch.float64}
S = torch.tensor([[0.6, 0.2, 0.0], [0.0, 0.5, 0.1], [-0.1, 0.0, 0.3]], **F64)
V = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.7, -0.4]], **F64)


def sampled(
    S: torch.Tensor, V: torch.Tensor, n: int, centred: bool, replicates: int = 8000
) -> tuple[float, float]:
    """Mean and standard error of ⟨P̂ − P, P̂′ − P⟩ for two sets of 24 queries at the same standard normal keys, or of covariances in place of
    second moments: without bias."""
    generator = torch.Generator().manual_seed(n)
    products, truth = [], V @ S @ S.T @ V.T
    for _ in range(replicates // 500):
        keys = torch.randn(500, n, len(S), generator=generator, **F64)
        gaps = []
        for _ in range(2):
            scores = torch.randn(500, 24, len(S), generator=generator, **F64) @ S.T
            outputs = (scores @ keys.mT).softmax(-1) @ keys @ V.T
            if centred:
                outputs = (outputs - outputs.mean(1, keepdim=True)) * (24 / 23) ** 0.5
            gaps.append(outputs.mT @ outputs / 24 - truth)
        products.append((gaps[0] * gaps[1]).sum((1, 2)))
    found = torch.cat(products)
    return float(found.mean()), float(found.std()) / replicates**0.5


def gap(curve: al.ErrorCurve, S: torch.Tensor, V: torch.Tensor, at: int, centred: bool = False) -> float:
    """In standard errors of both."""
    assert curve.standard_error is not None
    mean, noise = sampled(S, V, curve.n[at], centred)
    square, own = float(curve.error[at]) ** 2, 2 * float(curve.error[at] * curve.standard_error[at])
    return abs(mean - square) / (noise**2 + own**2) ** 0.5


@pytest.mark.parametrize(("S", "V"), [(torch.tensor([[0.7]], **F64), torch.eye(1, **F64)), (S, V)])
def test_against_monte_carlo(S: torch.Tensor, V: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 6 standard errors, of which the curve's own comes from 8 sets (false alarms: 5e-4 if it were all of it, 1e-8 if none);
    without the fourth order it is not."""
    curve = second_moment_error(al.Head(S, V), al.Gaussian(dim=len(S)), [5, 50])
    assert gap(curve, S, V, 0) < 6
    assert gap(curve, S, V, 1) < 6
    monkeypatch.setattr(Plane, "fourth", lambda self: [])
    assert gap(second_moment_error(al.Head(S, V), al.Gaussian(dim=len(S)), [5]), S, V, 0) > 6


@pytest.mark.parametrize(("S", "V"), [(torch.tensor([[0.7]], **F64), torch.eye(1, **F64)), (S, V)])
def test_covariance_against_monte_carlo(S: torch.Tensor, V: torch.Tensor) -> None:
    """As above; the second moment is not the covariance."""
    head, law = al.Head(S, V), al.Gaussian(dim=len(S))
    curve = al.output_covariance_error(head, law, [5, 50])
    assert gap(curve, S, V, 0, centred=True) < 6
    assert gap(curve, S, V, 1, centred=True) < 6
    assert gap(second_moment_error(head, law, [5]), S, V, 0, centred=True) > 6


def test_what_the_mean_takes_off_has_no_bias() -> None:
    """All choices of different queries one by one, for outputs and limits without any structure."""
    generator = torch.Generator().manual_seed(0)
    y, g = torch.randn(2, 6, 3, generator=generator, **F64)
    e = y - g
    second = [torch.outer(one, one) - torch.outer(other, other) for one, other in zip(y, g, strict=True)]
    four = [(e[i] @ e[j]) * (e[k] @ e[h]) for i, j, k, h in permutations(range(6), 4)]
    three = [e[i] @ second[j] @ e[k] for i, j, k in permutations(range(6), 3)]
    expected = torch.stack(four).mean() - 2 * torch.stack(three).mean()
    assert by_the_mean(y, g) == pytest.approx(float(expected), rel=1e-12)


def test_covariance_of_too_many_keys_is_refused() -> None:
    with pytest.raises(InputError, match=r"takes n ≤ 100,000, got 200,000.*second_moment_error"):
        al.output_covariance_error(al.Head(S), al.Gaussian(dim=3), [10, 200_000])


def test_one_key_and_very_many() -> None:
    """One key gives all queries its value: E‖vvᵀ − P‖² = (tr Σ)² + 2 tr Σ² − 2 tr ΣP + ‖P‖² for Σ = VVᵀ. As n → ∞ with a = Sx and V = I,
    n E‖P_n − P‖² → E e^{a·a′}[2(a·a′)(d + 1 + a·a′) + 2‖a‖²‖a′‖²], Gaussian moments; both within 6 standard errors (false alarms: 1e-3)."""
    eye = torch.eye(3, **F64)
    curve = second_moment_error(al.Head(S), al.Gaussian(dim=3), [1, 10**8])
    assert curve.standard_error is not None
    assert curve.rows is not None
    torch.testing.assert_close(curve.rows.square().mean(0).sqrt(), curve.error)
    P = S @ S.T
    assert curve.scale == pytest.approx(float(P.norm()))
    first = 9 + 2 * 3 - 2 * P.trace() + P.square().sum()
    own = torch.linalg.inv(eye - P @ P) @ P  # covariances of a and a′ under the tilt
    cross = P @ own
    mean, both = cross.trace(), own.trace() ** 2 + 2 * cross.square().sum()
    square = mean**2 + own.square().sum() + cross.square().sum()
    last = torch.linalg.det(eye - P @ P) ** -0.5 * (2 * 4 * mean + 2 * square + 2 * both)
    for at, expected in ((0, first), (1, last / 10**8)):
        assert float(curve.standard_error[at]) < 0.02 * float(curve.error[at])
        assert abs(float(curve.error[at]) - float(expected) ** 0.5) < 6 * float(curve.standard_error[at])


@pytest.mark.parametrize(
    ("head", "law", "error", "message"),
    [
        (al.Head(S), al.Sphere(3), NotKnown, "second moment of outputs of fresh queries .* a Gaussian law of mean 0"),
        (al.Head([[1.0]]), al.Gaussian([1.0], 1.0), NotKnown, "scores are centred"),
        (al.Head([[1.0]]), al.Empirical([[1.0], [2.0]]), InputError, "no law to draw queries from: use measure_convergence"),
        (al.Head([[1.0, 0.0]]), al.Gaussian(dim=1), InputError, "do not fit 2-dimensional queries"),
        (al.Head([[[1.0]], [[2.0]]]), al.Gaussian(dim=1), InputError, "one head at a time.*head.each"),
    ],
)  # fmt: skip
def test_what_is_refused(head: al.Head, law: al.Measure, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        second_moment_error(head, law, 3)
