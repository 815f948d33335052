"""Softmax attention at κ against the hardmax limit: another route, Monte Carlo, rates, and the best κ."""

import json
import math

import pytest
import torch

import attnlimit as al
from attnlimit.exact import Schedule, best_kappa, hardmax_error, hardmax_gap
from attnlimit.exact.prepare import prepare
from attnlimit.rates import choose

DOUBLE = torch.float64
SIZES = [10**k for k in range(3, 13)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def axis(dim: int) -> torch.Tensor:
    return torch.eye(1, dim, dtype=DOUBLE)


def identity(dim: int, V: torch.Tensor | None = None) -> al.Head:
    return al.Head(torch.eye(dim, dtype=DOUBLE), V)


# --- schedules ------------------------------------------------------------------------------------


def test_schedules() -> None:
    assert Schedule.constant(3)(1) == Schedule.constant(3)(10**6) == 3
    assert Schedule.log(2.0)(100) == pytest.approx(2 * math.log(100))
    assert Schedule.root_log(2.0)(100) == pytest.approx(2 * math.sqrt(math.log(100)))
    assert Schedule.hardmax(5)(10**6) == pytest.approx(10**3)
    words = [
        str(s)
        for s in (Schedule.constant(3), Schedule.log(0.5), Schedule.root_log(), Schedule.hardmax(5, 2.0))
    ]
    assert words == ["3", "0.5 log n", "1 √(log n)", "2 n^0.5"]
    assert str(Schedule(1.0, log_power=2)) == "1 (log n)^2"


def test_schedules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(al.InputError, match=r"κ = 1 log n is 0 at n = 1"):
        Schedule.log()(1)
    with pytest.raises(al.InputError, match="gamma must be a finite number above 0"):
        Schedule.log(0.0)
    with pytest.raises(al.InputError, match="needs dimension 2 or more, got 1"):
        Schedule.hardmax(1)


# --- the gap --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.3, 8.0, 70.0])  # scores above 50 are set around the top
@pytest.mark.parametrize(
    "law",
    [
        al.Sphere(2),
        al.Sphere(3, radius=2.0),
        al.Ball(4),
        al.Sphere(200),
        al.Rademacher(3),
        al.Empirical(random(40, 3, seed=5), random(40, 2, seed=6)),
    ],
)
def test_gap_against_its_parts(law: al.Measure, kappa: float) -> None:
    """E‖Γ_n − Γ‖² + 2⟨E Γ_n − Γ, Γ − V y*⟩ + ‖Γ − V y*‖² from exact errors around Γ, another grid and centre."""
    values = law.values.shape[1] if isinstance(law, al.Empirical) else law.dim
    head = al.Head(torch.eye(law.dim, dtype=DOUBLE), random(2, values))
    x = torch.nn.functional.normalize(random(2, law.dim, seed=1), dim=-1)
    sizes = [1, 2, 50, 10**6, 10**12]
    square, bias = prepare(head.scaled(kappa), law, x, max(sizes)).moments(
        torch.tensor([sizes], dtype=DOUBLE)
    )
    off = (head.scaled(kappa)(law)(x) - head.hardmax(law)(x))[:, None]
    found = hardmax_gap(head, law, kappa, sizes, x)
    torch.testing.assert_close(
        found.mean_square, square + 2 * (bias * off).sum(-1) + off.square().sum(-1), rtol=1e-6, atol=1e-14
    )
    torch.testing.assert_close(found.bias_square, (bias + off).square().sum(-1), rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize(("law", "kappa"), [(al.Sphere(3), 300.0), (al.Ball(2), 4.0), (al.Sphere(6), 80.0)])
def test_gap_against_monte_carlo(law: al.Measure, kappa: float) -> None:
    """Means of 30,000 samples of 20 keys within 5 standard errors: two comparisons a law, false alarm 1e-6."""
    n, count = 20, 30_000
    head, x = (
        identity(law.dim, random(2, law.dim)),
        axis(law.dim).repeat(2, 1) * torch.tensor([[1.0], [0.5]]).double(),
    )
    keys = law.sample(n * count, generator=3).tokens.reshape(count, n, law.dim)
    weights = torch.softmax(kappa * keys @ x.T, 1)
    errors = head.read(torch.einsum("rnq,rnd->rqd", weights, keys)) - head.hardmax(law)(x)
    each = errors.square().sum(-1)
    gap = (each.mean(0) - hardmax_gap(head, law, kappa, n, x).mean_square[:, 0]).abs()
    assert bool((gap <= 5 * each.std(0) / count**0.5).all())


@pytest.mark.parametrize(
    ("law", "n", "kappa"), [(al.Sphere(3), 10**4, 4e5), (al.Sphere(5), 100, 2e3), (al.Ball(3), 100, 2e3)]
)
def test_very_sharp_softmax_is_hardmax(law: al.Measure, n: int, kappa: float) -> None:
    head, x = identity(law.dim), axis(law.dim)
    hard = hardmax_error(head, law, n, x)
    off = [1 - float(hardmax_gap(head, law, k, n, x).rms / hard.rms) for k in (kappa / 10, kappa)]
    assert 0 < off[1] < off[0] / 5
    assert off[1] < 0.02


def test_finite_support_keeps_its_exponential_tail() -> None:
    """Errors of (1 − p)ⁿ, down to 1e-90: nothing that samples could still be led by is left out."""
    keys = al.Empirical([[0.0], [1.0], [2.0]], weights=[0.5, 0.4, 0.1])
    sizes = [10, 100, 1000, 2000]
    found = hardmax_gap(al.Head([[1.0]]), keys, 400.0, sizes, [[1.0]])
    expected = hardmax_error(al.Head([[1.0]]), keys, sizes, [[1.0]])
    assert float(expected.mean_square[0, -1]) < 1e-90
    torch.testing.assert_close(found.mean_square, expected.mean_square, rtol=1e-6, atol=0)


def test_kappa_in_every_form() -> None:
    head, law, x = identity(3), al.Sphere(3), axis(3)
    listed = hardmax_gap(head, law, [2.0, 5.0, 2.0], [10, 100, 1000], x)
    for k, (kappa, n) in enumerate(zip(listed.kappa, listed.n, strict=True)):
        torch.testing.assert_close(
            hardmax_gap(head, law, kappa, n, x).mean_square[:, 0], listed.mean_square[:, k]
        )
    assert hardmax_gap(head, law, Schedule.log(), [10, 100], x).kappa == pytest.approx(
        [math.log(10), math.log(100)]
    )
    assert repr(listed) == "HardmaxGap(1 queries, n = 10 … 1000, κ = 2 … 2)"
    data = json.loads(json.dumps(listed.to_dict()))
    assert data["kappa"] == [2.0, 5.0, 2.0]
    assert data["mean_square"] == listed.mean_square.tolist()


def test_queries_that_come_again_have_the_same_gap() -> None:
    x, again = torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64), [1, 0, 1]
    found = hardmax_gap(identity(2), al.Sphere(2), 3.0, [10, 100], x[again])
    one = hardmax_gap(identity(2), al.Sphere(2), 3.0, [10, 100], x)
    assert torch.equal(found.mean_square, one.mean_square[again])
    assert torch.equal(found.bias_square, one.bias_square[again])


def test_gap_refusals() -> None:
    head, x = identity(3), axis(3)
    with pytest.raises(al.InputError, match=r"one for each of the 3 n, got shape \(2,\)"):
        hardmax_gap(head, al.Sphere(3), [1.0, 2.0], [1, 2, 3], x)
    with pytest.raises(al.InputError, match="kappa must be a finite number above 0"):
        hardmax_gap(head, al.Sphere(3), -1.0, 10, x)
    with pytest.raises(
        al.InputError, match=r"κ spreads the scores that matter to n = 10 keys over .* Use hardmax_error"
    ):
        hardmax_gap(head, al.Sphere(3), 1e7, 10, x)
    with pytest.raises(al.InputError, match="softmax is nearly hardmax there"):
        hardmax_gap(head, al.Empirical(random(5, 3)), 1e5, 10, x)
    with pytest.raises(al.LimitDoesNotExist, match="No hardmax limit"):
        hardmax_gap(head, al.Gaussian(dim=3), 1.0, 10, x)


# --- rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [3, 5])
def test_a_logarithmic_schedule_gives_the_logarithmic_law(dim: int) -> None:
    """The bias (d − 1)/(2κ) is all that is left: rms ≈ ((d − 1)/2γ)/log n, and no power of n."""
    found = hardmax_gap(identity(dim), al.Sphere(dim), Schedule.log(2.0), SIZES, axis(dim))
    choice = choose(SIZES, found.rms[0])
    assert choice.best == "log"
    assert choice.delta_aic < -10
    assert choice.log.scale == pytest.approx((dim - 1) / 4, rel=0.02)


@pytest.mark.parametrize(("output", "exponent"), [("height", 2 / 3), ("all", 1 / 3)])
def test_the_hardmax_schedule_gives_a_power_law(output: str, exponent: float) -> None:
    """κ = n^{2/(d−1)}: the height is off by n^{−2/(d−1)}, and the whole key by its root, n^{−1/(d−1)}; d = 4."""
    head = identity(4, axis(4) if output == "height" else None)
    choice = choose(SIZES, hardmax_gap(head, al.Sphere(4), Schedule.hardmax(4), SIZES, axis(4)).rms[0])
    assert choice.best == "power"
    assert choice.delta_aic > 50
    assert choice.power.exponent == pytest.approx(exponent, rel=0.01)


@pytest.mark.parametrize(("dim", "sizes"), [(5, SIZES[::2]), (9, SIZES[1::2])])
def test_the_best_kappa_gives_a_power_law_better_than_hardmax(dim: int, sizes: list[int]) -> None:
    """Bias 1/κ against variance κ^{(d−1)/2}/(nκ): κ and 1/rms grow like n^{2/(d+1)}. The logarithmic rate is the
    worst case's, not the sphere's."""
    head, law = identity(dim), al.Sphere(dim)
    found = best_kappa(head, law, sizes, axis(dim))
    choice = choose(sizes, found.rms[0])
    assert choice.best == "power"
    assert choice.delta_aic > 20
    assert choice.power.exponent == pytest.approx(2 / (dim + 1), rel=0.03)
    assert choose(sizes, torch.tensor(found.kappa)).power.exponent == pytest.approx(-2 / (dim + 1), rel=0.05)
    assert bool((found.rms < 0.8 * hardmax_error(head, law, sizes, axis(dim)).rms).all())
    assert bool((found.rms[0] < hardmax_gap(head, law, Schedule.log(2.0), sizes, axis(dim)).rms[0]).all())


# --- the best κ -----------------------------------------------------------------------------------


def test_no_kappa_is_better_than_the_best() -> None:
    head, law, x = identity(4), al.Ball(4), random(2, 4)
    found = best_kappa(head, law, [50], x)
    least = float(found.mean_square.mean())
    grid = [found.kappa[0] * 1.3**k for k in range(-12, 13)]
    others = [float(hardmax_gap(head, law, kappa, 50, x).mean_square.mean()) for kappa in grid]
    assert min(others) >= least * (1 - 1e-6)
    assert min(others) == pytest.approx(least, rel=1e-3)  # κ itself is on the grid
    torch.testing.assert_close(hardmax_gap(head, law, found.kappa, [50], x).mean_square, found.mean_square)


@pytest.mark.parametrize("law", [al.Empirical([[0.0], [1.0]]), al.Sphere(1)])
def test_hardmax_is_the_best_for_two_keys(law: al.Measure) -> None:
    found = best_kappa(al.Head([[1.0]]), law, [2, 6], [[1.0]])
    assert found.kappa == (math.inf, math.inf)
    torch.testing.assert_close(
        found.mean_square, hardmax_error(al.Head([[1.0]]), law, [2, 6], [[1.0]]).mean_square
    )
    assert json.loads(json.dumps(found.to_dict()))["kappa"] == [None, None]


def test_the_best_kappa_of_an_n_asked_for_twice_is_searched_once_and_given_twice() -> None:
    head, law, x = identity(3), al.Sphere(3), axis(3)
    once, asked = best_kappa(head, law, [10, 40], x), best_kappa(head, law, [40, 10, 40], x)
    assert asked.n == (40, 10, 40)
    assert asked.kappa == tuple(once.kappa[k] for k in (1, 0, 1))
    torch.testing.assert_close(asked.mean_square, once.mean_square[:, [1, 0, 1]])


def test_best_kappa_refusals() -> None:
    with pytest.raises(al.InputError, match="One key is attended to alike at every κ"):
        best_kappa(identity(3), al.Sphere(3), [1, 10], axis(3))
    with pytest.raises(al.InputError, match="All scores are equal"):
        best_kappa(identity(3), al.Sphere(3), 10, torch.zeros(1, 3, dtype=DOUBLE))
    with pytest.raises(al.LimitDoesNotExist, match="gaussian_maximum"):
        best_kappa(identity(3), al.Gaussian(dim=3), 10, axis(3))
