"""A chance for every key and strata by score, against every set that may be drawn."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import mpmath
import pytest
import torch
from torch import Tensor

import attnlimit as al
from attnlimit import Chances, Coins, Different, Kept, Neyman, Sampling
from attnlimit.designs.chances import chances_of
from attnlimit.designs.neyman import neyman_strata
from attnlimit.errors import InputError

F64 = {"dtype": torch.float64}
SIZES = (3.0, 0.2, 1.0, 0.0, 2.0, 0.5, 0.7, 8.0)
STRATA, SPREAD = (0, 0, 1, 1, 1, 2, 0, 1), (0.5, 2.0, 1.0)


def tokens(seed: int, keys: int = 8) -> tuple[al.Head, al.Empirical]:
    g = torch.Generator().manual_seed(seed)
    keys_and_values = torch.randn(keys, 2, generator=g, **F64), torch.randn(keys, 3, generator=g, **F64)
    return al.Head([[1.5, 0.0], [0.0, 1.0]], torch.eye(3, **F64)), al.Empirical(*keys_and_values)


X = torch.tensor([[1.0, -0.7]], **F64)


def error(head: al.Head, law: al.Empirical, times: Tensor) -> Tensor:
    """‖Γ_n − Γ‖² with key j counted times_j."""
    scores = (law.tokens @ head.A @ X[0]).exp() * times
    return (scores / scores.sum() @ law.values - head(law)(X)[0]).square().sum()


def by_hand(pi: Tensor, head: al.Head, law: al.Empirical, kept: Tensor) -> float:
    """Every set of coins but the empty one."""
    total = chance = 0.0
    free = (~kept & (pi > 0)).nonzero()[:, 0].tolist()
    for coins in product([0.0, 1.0], repeat=len(free)):
        if not any(coins):
            continue
        shown = torch.tensor(coins, **F64)
        p = float(torch.where(shown > 0, pi[free], 1 - pi[free]).prod())
        times = kept.double()
        times[free] = shown / pi[free]
        total, chance = total + (p * float(error(head, law, times)) if p else 0.0), chance + p
    return total / chance


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_chances_against_all_sets(n: int, kept: int) -> None:
    head, law = tokens(1)
    here = torch.zeros(8, dtype=torch.bool)
    here[:kept] = True
    pi = chances_of(torch.tensor(SIZES, **F64) * ~here, float(n))
    assert float(pi.sum()) == pytest.approx(n)
    plan = Sampling(draw=Chances(SIZES), kept=Kept(sinks=kept), weight="rest")
    found = al.exact_error(head, law, n, X, sampling=plan).mean_square.item()
    assert found == pytest.approx(by_hand(pi, head, law, here), rel=1e-7)


def test_chances_are_capped_and_proportional() -> None:
    sizes = torch.tensor([[5.0, 1.0, 1.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]], **F64)
    assert chances_of(sizes, 2.0)[0].tolist() == pytest.approx([1, 0.4, 0.4, 0.2, 0])
    assert chances_of(sizes, 4.0)[0].tolist() == [1, 1, 1, 1, 0]
    assert chances_of(sizes, 2.0)[1].tolist() == pytest.approx([0.4] * 5)
    assert chances_of(sizes, 5.0)[1].tolist() == [1] * 5


@pytest.mark.parametrize("sinks", [0, 1])
@pytest.mark.parametrize("n", [3, 5])
def test_strata_against_all_sets(n: int, sinks: int) -> None:
    head, law = tokens(2)
    draw = Neyman(STRATA, SPREAD)
    strata = torch.tensor(STRATA)
    strata[:sinks] = -1
    number = [int((strata == h).sum()) for h in range(3)]
    shares = draw._shares(strata[sinks:], n)
    assert sum(shares) == n
    groups = [(strata == h).nonzero()[:, 0].tolist() for h in range(3)]
    errors = []
    for sets in product(*(combinations(group, many) for group, many in zip(groups, shares, strict=True))):
        times = torch.zeros(8, **F64)
        times[:sinks] = 1.0
        for h, keys in enumerate(sets):
            times[list(keys)] = number[h] / shares[h]
        errors.append(error(head, law, times))
    plan = Sampling(draw=draw, kept=Kept(sinks=sinks), weight="rest")
    found = al.exact_error(head, law, n, X, sampling=plan).mean_square.item()
    assert found == pytest.approx(float(torch.stack(errors).mean()), rel=1e-7)


def test_allocation_is_neymans() -> None:
    """100 keys a stratum, S = 1, 2, 5 and 40 keys: 5, 10 and 25; and never more than there are."""
    strata = torch.arange(300) // 100
    assert Neyman(tuple(strata.tolist()), (1.0, 2.0, 5.0))._shares(strata, 40) == [5, 10, 25]
    assert Neyman(tuple(strata.tolist()), (0.0, 0.0, 5.0))._shares(strata, 110) == [5, 5, 100]


def test_without_sizes_and_strata_they_are_different_keys_and_coins() -> None:
    head, law = tokens(3, 12)
    n = [2, 5, 11]
    plain, strata = (
        al.exact_error(head, law, n, X, sampling=Sampling(draw=draw)).mean_square
        for draw in (Different(), Neyman())
    )
    torch.testing.assert_close(plain, strata, rtol=1e-6, atol=0)
    assert Chances().weigh(12, 3, torch.tensor([0, 4])).tolist() == [1, 1]
    assert type(Coins()).name != Chances.name


@pytest.mark.parametrize("draw", [Chances(SIZES), Neyman(STRATA, SPREAD)])
def test_monte_carlo_weighs_drawn_keys_alike(draw: al.Chances | al.Neyman) -> None:
    """600 replicates within 5 standard errors (false alarms: 1e-6); drawn with equal weight they are not."""
    head, law = tokens(4)
    plan = Sampling(draw=draw)
    found = al.measure_convergence(
        head, law, [4], sampling=plan, queries=X, replicates=600, generator=5
    ).squares[:, 0]
    standard_error = float(found.std()) / 600**0.5
    exact = al.exact_error(head, law, 4, X, sampling=plan).mean_square.item()
    assert abs(float(found.mean()) - exact) < 5 * standard_error
    uniform = al.exact_error(head, law, 4, X, sampling=Sampling(draw=Different())).mean_square.item()
    assert abs(float(found.mean()) - uniform) > 5 * standard_error


def test_the_best_design_is_best_to_first_order_and_places_a_heuristic() -> None:
    """Σ (1/π − 1) p²‖u‖² is least there; at 60 of 300 keys the exact errors follow, and sizes e^{score} lie between."""
    head, law = tokens(6, 300)
    p = (law.tokens @ head.A @ X[0]).softmax(0)
    part = p * (law.values - head(law)(X)).norm(dim=-1)
    found = al.design_errors(head, law, [60], X, sizes=p)
    linear = {
        name: float(((1 / (pi := chances_of(sizes, 60.0)) - 1) * part.square()).sum())
        for name, sizes in {"best": part, "given": p, "uniform": torch.ones_like(p)}.items()
    }
    for name, first_order in linear.items():
        assert float(getattr(found, name)) == pytest.approx(first_order, rel=0.15)
    g = torch.Generator().manual_seed(7)
    for _ in range(20):
        other = part * (0.3 * torch.randn(300, generator=g, **F64)).exp()
        pi = chances_of(other, 60.0)
        assert float(((1 / pi - 1) * part.square()).sum()) > linear["best"]
    assert 0.5 < float(found.place) < 1
    assert float(found.strata) < 0.5 * float(found.uniform)
    assert found.to_dict()["n"] == [60]


def test_a_useless_heuristic_is_placed_below_uniform() -> None:
    head, law = tokens(8, 50)
    scores = law.tokens @ head.A @ X[0]
    found = al.design_errors(head, law, [10, 50], X, sizes=(-scores).exp(), kept=Kept(top=0))
    assert float(found.place[0, 0]) < 0
    assert found.best[0, 1].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chances((1.0, -1.0)), "sizes must be finite numbers of at least 0"),
        (lambda: Neyman((0, 3), (1.0, 1.0)), "spread must be a finite number of at least 0 for each stratum"),
        (lambda: Neyman(spread=(math.inf,)), "spread must be a finite number"),
        (
            lambda: Chances((1.0, 1.0)).places(3, [1], torch.Generator()),
            "sizes are of 2 keys, but 3 are drawn from",
        ),
        (
            lambda: Neyman((0, 0)).places(3, [1], torch.Generator()),
            "strata are of 2 keys, but 3 are drawn from",
        ),
        (lambda: Neyman((0, 1), (1.0, 1.0)).places(2, [1], torch.Generator()), "do not reach 2 strata"),
        (lambda: al.design_errors(*tokens(1), 9, X), "only 8 are left to draw from"),
        (lambda: al.design_errors(*tokens(1), 2, X, sizes=[1.0]), "one a key"),
        (lambda: al.design_errors(*tokens(1), 2, X, sizes=[0.0] * 8), "nothing would be read"),
        (
            lambda: al.design_errors(al.Head([[1.0]]), al.Gaussian(dim=1), 2, [[1.0]]),
            "a population of equal keys",
        ),
        (lambda: al.design_errors(*tokens(1), 2, X).place, "No design was given"),
    ],
)
def test_what_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("draw", [Chances(), Neyman()])
def test_bins_are_refused(draw: al.Chances | al.Neyman) -> None:
    head, law = tokens(1, 30)
    with pytest.raises(InputError, match="binned=False"):
        al.exact_error(head, law, 3, X, sampling=Sampling(draw=draw), binned=True)


def test_strata_of_scores_have_equal_numbers() -> None:
    scores, parts = (
        torch.randn(100, generator=torch.Generator().manual_seed(1), **F64),
        torch.ones(100, 2, **F64),
    )
    strata, spread = neyman_strata(scores, parts, 8)
    assert sorted({strata.count(h) for h in range(8)}) == [12, 13]
    assert spread == (0.0,) * 8
    assert float(scores[torch.tensor(strata) == 0].max()) <= float(scores[torch.tensor(strata) == 1].min())


@pytest.mark.parametrize(
    "sizes", [(1.0, 1.0, 1e-20), (3e-16, 1.4662e-63, 7e-113), (1.0, 0.7, 0.7, 1e-17, 1e-200)]
)
def test_chances_of_sizes_far_apart(sizes):
    """Against exact fractions: what is left after the surely drawn keys, shared out by size."""
    for n in range(1, len(sizes)):
        exact = [Fraction(size) for size in sizes]
        sure = next(k for k in range(n) if (n - k) * exact[k] <= sum(exact[k:]))
        want = [1.0] * sure + [float((n - sure) * one / sum(exact[sure:])) for one in exact[sure:]]
        got = chances_of(torch.tensor(sizes, **F64), float(n))
        torch.testing.assert_close(got, torch.tensor(want, **F64), rtol=1e-12, atol=0)
        (places,) = Chances(sizes).places(len(sizes), [n], torch.Generator().manual_seed(0))
        assert len(places) >= 1


@pytest.mark.parametrize("scale", [1.0, 10.0, 20.0])
def test_the_best_design_where_one_key_has_nearly_all_the_attention(scale):
    """It hardly differs from the limit then, and is to be read all the same: sizes w‖v − Γ‖ by 60 digits."""
    keys, values = [[1.0, 0.0], [0.3, 0.2], [-0.2, 1.0]], [[1.3, 0.7], [-0.4, 2.0], [0.5, -1.1]]
    with mpmath.workdps(60):
        w = [mpmath.e ** (scale * (mpmath.mpf(key[0]) + mpmath.mpf(key[1]) / 8)) for key in keys]
        limit = [sum(a * v[c] for a, v in zip(w, values, strict=True)) / sum(w) for c in (0, 1)]
        size = [a * mpmath.hypot(v[0] - limit[0], v[1] - limit[1]) for a, v in zip(w, values, strict=True)]
        sizes = tuple(float(one / max(size)) for one in size)
    head, law, x = al.Head(scale * torch.eye(2, **F64)), al.Empirical(keys, values), [[1.0, 0.125]]
    found = al.design_errors(head, law, [1, 2], x)
    want = al.exact_error(head, law, [1, 2], x, sampling=Sampling(draw=Chances(sizes), weight="rest"))
    torch.testing.assert_close(found.best, want.mean_square, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [300.0, 1000.0])
def test_designs_of_scores_hundreds_apart(scale):
    """Whoever reads the heaviest key has no error; beside a kept key of all the weight nothing else has any."""
    law = al.Gaussian(dim=2).sample(12, generator=3)
    head, x = al.Head(scale * torch.eye(2, **F64)), torch.tensor([[1.0, 0.5], [0.2, -0.3]], **F64)
    own = (law.tokens @ x.T).argmax(0)
    for how in ({}, {"kept": Kept(own=True), "positions": own}):
        assert bool((al.design_errors(head, law, [2, 5], x, **how).best.abs() < 1e-12).all())
    assert bool(
        (al.design_errors(al.Head(torch.eye(2, **F64), torch.zeros(1, 2, **F64)), law, 2, x).best == 0).all()
    )
