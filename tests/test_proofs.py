"""The page of proofs: its theorems are numbered, its tests exist, and those bounds that nothing else checks hold."""

import ast
import math
import re
from pathlib import Path

import pytest
import torch
from scipy.special import log_ndtr

import attnlimit as al
from attnlimit.icl import Block, LinearRegression, finite_risk

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")


def test_statements_are_numbered_in_order() -> None:
    theorems = [int(number) for number in re.findall(r"^\*\*Theorem (\d+) \(", PAGE, re.MULTILINE)]
    assert theorems == list(range(1, len(theorems) + 1))
    assert re.findall(r"^\*\*Conjecture (\w)\.\*\*", PAGE, re.MULTILINE) == list("ABCD")
    assert PAGE.count("∎") == len(theorems) + 1  # and Lemma 0


def test_every_theorem_names_a_test_and_every_test_exists() -> None:
    for statement in re.split(r"^\*\*Theorem ", PAGE, flags=re.MULTILINE)[1:]:
        assert re.search(r"Checked[^`]*`tests/", statement), statement[:60]
    for file, *names in (found.split("::") for found in re.findall(r"`(tests/[^`]+)`", PAGE)):
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        for name in names:
            here = [
                one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name
            ]
            assert here, f"{file} has no {name}"
            body = here[0].body


def capped(s: float, n: int) -> float:
    """T_n = n E min(1, w̃/n)² for w̃ = e^{sg − s²/2}: e^{s²}Φ(L/s − 3s/2)/n + nΦ(−L/s − s/2)."""
    L = math.log(n)
    return math.exp(s * s - L + log_ndtr(L / s - 1.5 * s)) + math.exp(L + log_ndtr(-L / s - s / 2))


@pytest.mark.parametrize("b", [0.1, 0.4, 0.55, 0.7, 0.9])
def test_the_size_of_the_squared_weights(b: float) -> None:
    """T_n/18 ≤ E Σp² ≤ 4T_n + a rest that is not there for b < 1 and large n; E Σp² is the exact error of values that
    do not depend on the scores. And T_n falls with the exponent f(b)."""
    head, law = al.Head([[1.0], [0.0]], [[0.0, 1.0]]), al.Gaussian(dim=2)
    sizes = [10**k for k in (2, 4, 8, 12)]
    for n in sizes:
        s = b * math.sqrt(2 * math.log(n))
        exact = float(al.exact_error(head, law, [n], [[s]]).mean_square)
        assert capped(s, n) / 18 <= exact
        assert exact <= 4 * capped(s, n) or n < 10**4
    f = 1 - 2 * b * b if b * b <= 1 / 3 else (1 - b * b) ** 2 / (4 * b * b)
    n = 10**200
    assert -math.log(capped(b * math.sqrt(2 * math.log(n)), n)) / math.log(n) == pytest.approx(f, abs=0.02)


@pytest.mark.parametrize("b", [0.6, 0.8, 0.9])
def test_one_key_alone_makes_the_error(b: float) -> None:
    """(∗) of Theorem 8 with c = 1/8, as its proof has it for the square in one dimension, at the y of the proof; and above
    it no more than L T_n."""
    head, law, tried = al.Head([[1.0]]), al.Gaussian(dim=1), 0
    for n in (10**6, 10**9, 10**12):
        L = math.log(n)
        s = b * math.sqrt(2 * L)
        exact = float(al.exact_error(head, law, [n], [[s]]).mean_square)
        assert exact <= L * capped(s, n)
        y = 2 * s if b * b <= 1 / 3 else L / s + s / 2
        beyond, near, far = torch.special.ndtr(-torch.tensor([y, y + 2, y + 3], dtype=torch.float64)).tolist()
        if n * beyond <= 0.25:
            rho = 0.2 * min(1.0, math.exp(s * y - s * s / 2 - L))
            assert exact >= n * (near - far) * rho**2 / 8
            tried += 1
    assert tried


@pytest.mark.parametrize(
    ("H", "rho", "own"), [(0.5, 0.23, True), (0.15, 0.23, False), (1.5, 0.23, True), (1.5, 0.8, False)]
)
def test_the_own_keys_weight_goes_where_it_should(H: float, rho: float, own: bool) -> None:
    """Conjecture B with n = e^{ρd}: as d doubles, and more, the mean weight of the own key rises, or falls, by five standard errors (false-alarm rate 3e-7 each). Given
    the query x the scores of the others are N(0, H²‖x‖²)."""
    g, found = torch.Generator().manual_seed(2), []
    for d in (16, 36) if rho < 0.5 else (5, 11):
        length = torch.randn(600, d, generator=g, dtype=torch.float64).square().sum(1)
        others = torch.randn(600, round(math.exp(rho * d)), generator=g)
        rest = (H * length.sqrt()[:, None] * others).logsumexp(1)
        found.append(torch.sigmoid(H * length - rest))
    change = float(found[1].mean() - found[0].mean()) * (1 if own else -1)
    assert change > 5 * float(sum(one.var() / 600 for one in found)) ** 0.5


SIGMA = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)


def risk(weights: torch.Tensor, length: float) -> torch.Tensor:
    """½E(hᵀbAx − wᵀx)² of linear attention, h = ⟨y x⟩ over `length` tokens, noise 0.1: weights are A (4 numbers) and b."""
    M = weights[4] * weights[:4].reshape(2, 2)
    square = (1 + 1 / length) * SIGMA @ SIGMA + (SIGMA.trace() + 0.1) / length * SIGMA
    return 0.5 * ((M.T @ square @ M - 2 * M.T @ SIGMA + torch.eye(2).to(M)) @ SIGMA).trace()


def test_flows_stay_together_for_the_time_of_the_theorem() -> None:
    """Grönwall's bound with ε and K from points around the path; a twentieth of it fails. Both fall like 1/L here."""
    step, time = 0.01, 0.5
    start = torch.tensor([0.3, 0.0, 0.0, 0.3, 0.42], dtype=torch.float64)
    slope = torch.func.grad(risk)

    def path(length: float) -> torch.Tensor:
        points = [start]
        for _ in range(round(time / step)):
            points.append(points[-1] - step * slope(points[-1], length))
        return torch.stack(points)

    limit = path(math.inf)
    g = torch.Generator().manual_seed(0)
    near = limit[::5].repeat(20, 1)
    near = near + 0.03 * torch.randn(near.shape, generator=g, dtype=torch.float64)
    hessians = torch.func.vmap(torch.func.jacrev(slope), in_dims=(0, None))(near, math.inf)
    K = float(torch.linalg.matrix_norm(hessians, 2).max())
    last = math.inf
    for length in (300, 3000):
        both = [torch.func.vmap(slope, in_dims=(0, None))(near, n) for n in (length, math.inf)]
        bound = float((both[0] - both[1]).norm(dim=-1).max()) * math.expm1(K * time) / K
        apart = float((path(length) - limit).norm(dim=-1).max())
        assert apart <= bound
        assert apart > bound / 20
        assert apart < last / 5
        last = apart


def test_softmax_flows_stay_together_for_the_theorems_time() -> None:
    """Two dimensions, A = αI: exact R_L of softmax attention in (√2α, b), a flow by Euler's steps, for which Grönwall's bound holds too, with ε_L, K and G
    along both paths, up to T_L = log(1 + K/ε_L)/K, where it is 1. A seventh of the bound fails, and ten times as many tokens gain time of order log L. And
    300 tokens are enough for the transfer of R(θ(T)) = η to 2η at T = 3 steps, 30 are not."""
    step, start = 0.35, torch.tensor([0.57, 0.57], dtype=torch.float64)
    times = [step * (k + 1) for k in range(7)]
    infinite = torch.func.grad_and_value(lambda x: (x.prod() / math.sqrt(2) - 1) ** 2 / 2)
    last, enough = 0.0, []
    for length in (30, 300):
        here, there, apart, gaps, points = start, start, [], [], [start]
        for _ in times:
            slope = softmax_slope(here, length)
            gaps.append(float((slope - infinite(here)[0]).norm()))
            here, there = here - step * slope, there - step * infinite(there)[0]
            points += [here, there]
            apart.append(float((here - there).norm()))
        hessians = [torch.func.jacrev(lambda x: infinite(x)[0])(x) for x in points]
        K = max(float(torch.linalg.matrix_norm(one, 2)) for one in hessians)
        bound = [max(gaps) * math.expm1(K * t) / K for t in times]
        together = math.log1p(K / max(gaps)) / K
        inside = [gap / most for gap, most, t in zip(apart, bound, times, strict=True) if t <= together]
        assert len(inside) >= 5
        assert 1 / 7 < max(inside) <= 1
        assert together > last + 0.2 * math.log(10) / K
        last = together
        G = max(float(infinite(x)[0].norm()) for x in points)
        reached, known = (float(infinite(x)[1]) for x in points[5:7])
        assert reached <= known + G * bound[2]
        enough.append(max(gaps) <= min(1, known / G) * K / (2 * math.expm1(K * times[2])))
        assert reached <= 2 * known or not enough[-1]
    assert enough == [False, True]


def softmax_slope(x: torch.Tensor, length: int) -> torch.Tensor:
    """∇R_L in (√2α, b), by differences of exact risks."""
    task, eye = LinearRegression(2, noise=0.1), torch.eye(2, dtype=torch.float64)

    def risk(x: torch.Tensor) -> float:
        return float(finite_risk(task, Block(x[0] / math.sqrt(2) * eye, float(x[1])), length).risk[0])

    return torch.tensor([(risk(x + 1e-4 * e) - risk(x - 1e-4 * e)) / 2e-4 for e in eye], dtype=torch.float64)
