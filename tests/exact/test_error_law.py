"""The law of the error against all outcomes, closed forms, sampled errors and its own moments."""

import math
import pickle
import sys
from dataclasses import replace
from itertools import combinations, pairwise, product
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import lambertw

import attnlimit as al
from attnlimit.designs import different, independent
from attnlimit.designs.draw import Terms
from attnlimit.errors import InputError, NotKnown

E = torch.tensor([0.6, -0.8], dtype=torch.float64)
X = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
SAMPLINGS = [
    {},
    {"kept": al.Kept(own=True, top=1), "weight": "rest"},
    {"kept": al.Kept(own=True)},
    {"weight": "rest"},
]


def population(keys, scale=1.5):
    g = torch.Generator().manual_seed(keys)
    tokens, values = (torch.randn(keys, d, generator=g, dtype=torch.float64) for d in (3, 2))
    return al.Empirical(tokens, values), al.Head(
        scale * torch.eye(3, dtype=torch.float64), torch.eye(2).double()
    )


def all_outcomes(head, tokens, draw, n, kept, weight):
    """Errors and probabilities, by going through them; the query is key 2."""
    w = (head.query(X) @ head.keys(tokens.tokens).T).exp().numpy()
    v = (tokens.values @ E).numpy()
    always = set() if not kept else {2} | ({int(w.argmax())} if kept.top else set())
    rest = [j for j in range(len(w)) if j not in always]
    R = len(rest)
    if isinstance(draw, al.Independent):
        drawn = [(some, R**-n) for some in product(rest, repeat=n)]
    elif isinstance(draw, al.Different):
        drawn = [(some, 1 / math.comb(R, n)) for some in combinations(rest, n)]
    else:
        p = n / R
        drawn = [(some, p**k * (1 - p) ** (R - k)) for k in range(1, R + 1) for some in combinations(rest, k)]
        drawn = [(some, chance / (1 - (1 - p) ** R)) for some, chance in drawn]
    c, limit, errors = R / n if weight == "rest" else 1.0, (w @ v) / w.sum(), []
    for some, chance in drawn:
        weights = np.array([w[j] for j in always] + [c * w[j] for j in some])
        errors.append((weights @ v[[*always, *some]] / weights.sum() - limit, chance))
    return np.array(sorted(errors)).T


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("draw", [al.Independent(), al.Different(), al.Coins()])
def test_all_outcomes_one_by_one(draw, how):
    tokens, head = population(7)
    sampling = al.Sampling(draw=draw, **how)
    law = al.error_law(head, tokens, 3, X, E, sampling=sampling, positions=2)
    errors, chances = all_outcomes(head, tokens, draw, 3, sampling.kept, sampling.weight)
    assert "outcomes" in law.method
    for q in (0.01, 0.3, 0.77, 0.99):
        at = errors[np.searchsorted(chances.cumsum(), q)]
        assert law.quantile(q) == pytest.approx(at, abs=1e-12)
        assert law.cdf(at) == pytest.approx(
            chances[errors <= at + 1e-12].sum(), abs=1e-12
        )  # the jump at t counts
    assert law.mean_abs == pytest.approx(np.abs(errors) @ chances, rel=1e-12)
    assert law.rms == pytest.approx(math.sqrt(errors**2 @ chances), rel=1e-8)
    assert law.bias == pytest.approx(errors @ chances, abs=1e-8)
    square = al.exact_error(head.along(E), tokens, 3, X[None], sampling=sampling, positions=[2]).mean_square
    assert law.rms**2 == pytest.approx(square.item(), rel=1e-12)
    assert law.exceeds(abs(errors[5])) == pytest.approx(
        chances[np.abs(errors) > abs(errors[5]) + 1e-12].sum()
    )


@pytest.mark.parametrize("draw", [al.Different(), al.Coins()])
def test_all_keys_have_no_error(draw):
    tokens, head = population(7)
    law = al.error_law(head, tokens, 7, X, E, sampling=al.Sampling(draw=draw))
    assert (law.cdf(-1e-9), law.cdf(1e-9)) == (0.0, pytest.approx(1.0))
    assert law.mean_abs == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("how", SAMPLINGS[:2])
@pytest.mark.parametrize("draw", [al.Independent(), al.Different(), al.Coins()])
def test_inversion_gives_what_all_outcomes_give(draw, how):
    """Between the errors that are farthest apart; the error told is about the one made."""
    tokens, head = population(16, 1.0)
    law = al.error_law(head, tokens, 7, X, E, sampling=al.Sampling(draw=draw, **how), positions=2)
    errors = law.outcomes[0]
    middle = errors[len(errors) // 4 : -len(errors) // 4]
    widest = int(middle.diff().argmax())
    t = float(middle[widest : widest + 2].mean())
    found = law.keys.below(t)
    assert abs(found.chance - law.cdf(t)) <= min(1e-3, 5 * found.error)


def uniform(t):
    return min(1.0, max(0.0, (1 + t) / 2))


LAWS = [
    (al.Sphere(3), [0, 1, 0], uniform),  # Archimedes: heights are uniform
    (al.Sphere(3), [1, 0, 0], uniform),
    (al.Ball(1), [1], uniform),
    (al.Box(2), [0, 1], uniform),
    (al.Sphere(2), [0, 1], lambda t: 0.5 + math.asin(t) / math.pi),
    (al.Gaussian(dim=2), [0, 1], NormalDist().cdf),
    (al.Laplace(2), [0, 1], lambda t: 1 - math.exp(-t) / 2),
    (
        al.Mixture([0.25, 0.75], [al.Gaussian(dim=2), al.Gaussian(mean=[1.0, -1.0], cov=4.0)]),
        [0, 1],
        lambda t: 0.25 * NormalDist().cdf(t) + 0.75 * NormalDist(-1, 2).cdf(t),
    ),
]


@pytest.mark.parametrize(("law", "direction", "cdf"), LAWS)
def test_one_key_has_the_law_of_the_values(law, direction, cdf):
    """Whatever its score."""
    query = 0.9 * torch.eye(law.dim, dtype=torch.float64)[0]
    found = al.error_law(
        al.Head(torch.eye(law.dim, dtype=torch.float64)), law, 1, query, [float(e) for e in direction]
    )
    value = 0.3
    at = value - found.limit
    assert found.cdf(at) == pytest.approx(cdf(value), abs=1e-6)


@pytest.mark.parametrize(("law", "direction"), [one[:2] for one in LAWS])
def test_seven_keys_of_every_law_against_draws(law, direction):
    """20,000 draws, at five standard errors: 24 comparisons, false-alarm rate 1e-5 in all."""
    count, head = 20_000, al.Head(torch.eye(law.dim, dtype=torch.float64))
    query = 0.9 * torch.eye(law.dim, dtype=torch.float64)[0]
    e = torch.tensor(direction, dtype=torch.float64)
    found = al.error_law(head, law, 7, query, e)
    tokens = law.sample(count * 7, generator=torch.Generator().manual_seed(0)).tokens.reshape(count, 7, -1)
    weights = (tokens @ query).softmax(1)
    errors = torch.einsum("kn,knd,d->k", weights, tokens, e) - found.limit
    for t in (-found.rms, 0.1 * found.rms, found.rms):
        share = found.cdf(t)
        assert abs(float((errors <= t).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / count)


def below_of_two(s, c, cdf, density, ends):
    """P(Γ_2 ≤ c) of two tokens in one dimension: f(z₁) + f(z₂) ≤ 0, f(z) = e^{sz}(z − c), which falls and then rises."""

    def given(z):
        k = -math.exp(s * (z - c)) * (z - c) * s
        if k < -math.exp(-1):
            return 0.0
        low = -math.inf if k >= 0 else c + lambertw(k, -1).real / s
        return (cdf(c + lambertw(k, 0).real / s) - cdf(low)) * density(z)

    turns = [c, c + lambertw(math.exp(-1)).real / s, *(c - k / s for k in (1, 3, 10))]
    edges = sorted({*ends, *(z for z in turns if ends[0] < z < ends[1])})
    return sum(quad(given, *part, epsabs=1e-10, limit=200)[0] for part in pairwise(edges))


@pytest.mark.parametrize("s", [0.5, 4.0])
@pytest.mark.parametrize(
    ("law", "points", "known"),
    [
        (al.Gaussian(dim=1), (-1.5, 0.3, 2.5), (NormalDist().cdf, NormalDist().pdf, (-9.0, 9.0))),
        (al.Box(1), (-0.8, 0.5, math.tanh(0.5), 0.97), (uniform, lambda z: 0.5, (-1.0, 1.0))),
    ],
)
def test_two_keys_of_wide_scores_by_quadrature(law, points, known, s):
    """Weights e^{sz} of all sizes, and a density that has edges: at tanh(s) the outputs of a key at each edge average to the limit
    asked for, and the distribution function has a kink."""
    found = al.error_law(al.Head([[s]]), law, 2, [1.0])
    for c in points:
        t = c - found.limit
        assert abs(found.cdf(t) - below_of_two(s, c, *known)) <= found.cdf_error(t) <= 2e-6


@pytest.mark.parametrize("near", [0.0, 1e-7])
def test_the_steps_of_a_lattice_are_in_the_error_told(near):
    """1,500 keys of weight 1, up to `near`, and value −1, 0 or 2: more than 2^20 outcomes, on a lattice. Just beside a step the
    smooth law is off by half of it."""
    n, values = 1500, torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64).repeat(1000)
    tokens = near * torch.randn(3000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    law = al.error_law(al.Head([[1.0]], [[1.0]]), al.Empirical(tokens, values[:, None]), n, [1.0])
    assert "inversion" in law.method
    chances = np.ones(1)
    for _ in range(n):
        chances = np.convolve(chances, [1 / 3, 1 / 3, 0.0, 1 / 3])
    t = 500 / n - 1 / 3 + 1e-6
    exact = chances[: n + 500 + 1].sum()
    assert 0.003 < abs(law.cdf(t) - exact) < 1.1 * law.cdf_error(t) < 0.005


def test_twenty_keys_nearly_on_a_lattice():
    """Values 0 to 9: beside a step the smooth law is off by half of it, and says so."""
    tokens = 1e-6 * torch.randn(40, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.arange(40, dtype=torch.float64)[:, None] % 10
    law = al.error_law(al.Head([[1.0]], [[1.0]]), al.Empirical(tokens, values), 20, [1.0])
    chances = np.ones(1)
    for _ in range(20):
        chances = np.convolve(chances, np.full(10, 0.1))
    found = law.keys.below(1e-4)  # the sum is at most 90
    off = abs(found.chance - chances[:91].sum())
    assert 0.01 < off < found.error < 0.02


@pytest.mark.parametrize("kept", [0, 4])
@pytest.mark.parametrize("draw", [al.Independent(), al.Different(), al.Coins()])
def test_twelve_of_forty_keys_against_draws(draw, kept):
    """Transforms that fall slowly do not come back: nothing is refused. Five standard errors of 20,000 draws, 18 comparisons: false-alarm rate 1e-5."""
    g, count, sampling = (
        torch.Generator().manual_seed(1),
        20_000,
        al.Sampling(draw=draw, kept=al.Kept(sinks=kept)),
    )
    tokens = al.Empirical(*(torch.randn(40, 1, generator=g, dtype=torch.float64) for _ in range(2)))
    law = al.error_law(al.Head([[1.2]], [[1.0]]), tokens, 12, [1.0], sampling=sampling)
    weight, value = (1.2 * tokens.tokens[:, 0]).exp(), tokens.values[:, 0]
    rest = torch.zeros(count, 40 - kept, dtype=torch.float64)
    if draw.repeats:
        rest.scatter_add_(
            1, torch.randint(40 - kept, (count, 12), generator=g), torch.ones(count, 12).double()
        )
    elif draw.name == "different":
        rest.scatter_(1, torch.rand(count, 40 - kept, generator=g).argsort(1)[:, :12], 1.0)
    else:
        rest = (torch.rand(count, 40 - kept, generator=g) < 12 / (40 - kept)).double()
    read = torch.cat([torch.ones(count, kept).double(), rest], 1) * weight
    errors = (read @ value / read.sum(1))[read.sum(1) > 0] - (weight @ value) / weight.sum()
    for t in (-law.rms, 0.1 * law.rms, law.rms):
        share = law.cdf(t)
        assert abs(float((errors <= t).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / count)
        assert law.cdf_error(t) < 1e-3


def test_values_of_any_size_have_finite_outcomes():
    """Weights up to e^540 times values of 1e100: all in units of 1e100."""
    tokens, values = [[-53.0], [0.0], [-500.0], [40.0]], torch.tensor([[-2.5], [0.9], [0.3], [0.8]]).double()
    small, large = (
        al.error_law(al.Head([[1.0]]), al.Empirical(torch.tensor(tokens).double(), scale * values), 2, [1.0])
        for scale in (1.0, 1e100)
    )
    torch.testing.assert_close(large.outcomes[0], 1e100 * small.outcomes[0], rtol=1e-9, atol=1e85)
    assert large.mean_abs == pytest.approx(1e100 * small.mean_abs)
    assert large.quantile(0.01) == pytest.approx(-3.3e100)


def test_kept_keys_that_outweigh_all_others_by_far_are_refused():
    """Before, e^600 stood for e^540 beside e^−645, and an error of 1e-3 came out where there is none."""
    sampling = al.Sampling(draw=al.Different(), kept=al.Kept(top=2))
    tokens = al.Empirical([[-53.0], [0.0], [-645.0], [540.0]], [[-2.5], [0.9], [0.3], [0.8]])
    with pytest.raises(
        al.InputError, match="spread over 1185, and the law of the error is computed up to 600"
    ):
        al.error_law(al.Head([[1.0]]), tokens, 1, [1.0], sampling=sampling)


@pytest.mark.parametrize("draw", [al.Independent(), al.Coins()])
def test_a_kept_key_beside_its_only_other_has_no_negative_square(draw):
    """The one other key is drawn as often as it stands for: there is no error, but for rounding."""
    tokens, sampling = (
        al.Empirical([[0.0], [1.0]]),
        al.Sampling(draw=draw, kept=al.Kept(sinks=1), weight="rest"),
    )
    sizes = [1, 2, 3, 5, 9] if draw.repeats else [1]
    found = al.exact_error(al.Head([[1.0]]), tokens, sizes, [[1.0]], sampling=sampling)
    assert bool((found.rms < 1e-7).all())
    assert al.error_law(al.Head([[1.0]]), tokens, sizes[-1], [1.0], sampling=sampling).rms < 1e-7


@pytest.mark.parametrize(
    ("law", "n", "within"),
    [
        (al.Gaussian(dim=3), 10, 1e-5),
        (al.Gaussian(dim=3, cov=9.0), 10, 1e-5),
        (al.Gaussian(dim=3, cov=1e3), 5, 1e-4),  # its far end is lost in what the inversion leaves
        (al.Sphere(3), 4, 1e-4),
    ],
)
def test_mean_size_of_errors_against_draws(law, n, within):
    """10⁶ draws, five standard errors (rate 6e-7 each), which are a thousandth; few keys of a sphere have a density with kinks."""
    head, x, e = al.Head(0.5 * torch.eye(3).double()), torch.tensor([1.0, 0.5, 0.2]).double(), [1.0, 0.0, 0.0]
    keys = law.sample(n * 10**6, generator=5).tokens.reshape(-1, n, 3)
    sizes = (((keys @ (0.5 * x)).softmax(1) * keys[..., 0]).sum(1) - head(law)(x)[0]).abs()
    found = al.error_law(head, law, n, x, e)
    assert abs(found.mean_abs - float(sizes.mean())) < within * found.mean_abs + 5e-3 * float(sizes.std())


def test_signs_have_outcomes():
    """n fair signs with equal weights: binomial."""
    law = al.error_law(al.Head([[0.0]]), al.Rademacher(1), 10, [1.0])
    assert len(law.outcomes[0]) == 11
    assert law.cdf(0.0) == pytest.approx(0.5 + math.comb(10, 5) / 2**11, abs=1e-12)


@pytest.mark.parametrize("n", [10**6, 10**12])
@pytest.mark.parametrize("law", [al.Gaussian(dim=2), al.Sphere(4)])
def test_many_keys_are_normal(law, n):
    head, x = (
        al.Head(0.5 * torch.eye(law.dim, dtype=torch.float64)),
        torch.eye(law.dim, dtype=torch.float64)[0],
    )
    e = torch.ones(law.dim, dtype=torch.float64)
    found = al.error_law(head, law, n, x, e)
    std = math.sqrt(float(e @ al.clt(head, law, x).covariance @ e) / n)
    for z in (-1.5, 0.7):
        assert found.cdf(z * std) == pytest.approx(
            NormalDist().cdf(z), abs=1.5e-3 * (n / 10**6) ** -0.5 + 1e-6
        )


def sampled(s, n, count):
    g = torch.randn(count, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return ((s * g).softmax(1) * g).sum(1) - s


@pytest.mark.parametrize(("s", "n"), [(0.5, 3), (2.0, 20)])
def test_sampled_errors_have_that_law(s, n):
    """Dvoretzky, Kiefer and Wolfowitz: a false alarm once in a million. The normal law is the negative control."""
    law, errors = al.error_law(al.Head([[s]]), al.Gaussian(dim=1), n, [1.0]), sampled(s, n, 40_000)
    most = math.sqrt(math.log(2e6) / (2 * len(errors)))
    at = errors.quantile(torch.tensor([0.02, 0.3, 0.9], dtype=torch.float64)).tolist()
    share = [float((errors <= t).double().mean()) for t in at]
    assert max(abs(law.cdf(t) - p) for t, p in zip(at, share, strict=True)) < most
    normal = NormalDist(0, math.sqrt(al.clt(al.Head([[s]]), al.Gaussian(dim=1), [1.0]).covariance.item() / n))
    assert max(abs(normal.cdf(t) - p) for t, p in zip(at, share, strict=True)) > most


def test_the_law_has_the_exact_mean_square():
    """∫ 2t P(|error| > t) dt, of a law that is inverted."""
    law = al.error_law(al.Head(torch.eye(2, dtype=torch.float64)), al.Sphere(2), 40, [2.0, 0.0], [1.0, 1.0])
    x, w = np.polynomial.legendre.leggauss(24)
    t = 3.5 * law.rms * (1 + x)
    square = 3.5 * law.rms * float((w * 2 * t) @ law.exceeds(t).numpy())
    assert square == pytest.approx(law.rms**2, rel=1e-5)


def test_quantiles_and_what_is_told_of_a_law(tmp_path):
    law = al.error_law(al.Head([[1.0]]), al.Gaussian(dim=1), 50, [1.0])
    low, high = law.interval(0.8)
    assert (law.cdf(low), law.cdf(high)) == (pytest.approx(0.1, abs=1e-6), pytest.approx(0.9, abs=1e-6))
    assert law.std < law.rms < 1.5 * law.mean_abs
    again = pickle.loads(pickle.dumps(law))
    assert again.cdf(torch.tensor([0.1], dtype=torch.float64)).tolist() == [law.cdf(0.1)]
    few = al.error_law(*reversed(population(6)), 2, X, E)
    assert few.exceeds(0.999 * few.median_abs) > 0.5 >= few.exceeds(few.median_abs)
    assert set(few.to_dict()) == {"n", "limit", "bias", "rms", "std", "mean_abs", "method", "quantiles"}
    assert len(few.plot().axes) == 2
    assert repr(few).startswith("ErrorLaw(n = 2, bias")


def terms(keys):
    g = torch.Generator().manual_seed(2)
    y = torch.randn(keys, generator=g, dtype=torch.float64)
    return Terms(y, 0 * y, torch.full_like(y, 1 / keys), float(keys), None, 0 * y)


def test_compiled_loops_give_what_torch_gives():
    lam = torch.tensor([1e-6, 0.3, 5.0, 40.0], dtype=torch.float64)
    t = terms(30)
    turn = torch.linspace(0, 6, 9, dtype=torch.float64)
    many = torch.ones_like(t.y)
    a, b = (
        f(lam[:, None] * t.y, turn, many, 0.3) for f in (different._compiled_turns, different._plain_turns)
    )
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
    gap, beside = t.y.abs() / 10, torch.expm1(-(lam[:, None] * t.y).square() / 8)
    for more in (beside, torch.zeros(1, 1, dtype=torch.float64)):
        a, b = (f(lam, t.y, gap, t.mass, more) for f in (independent._compiled_keys, independent._plain_keys))
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_the_contour_is_the_sum_over_sets():
    t, lam = terms(9), torch.tensor([0.7, 3.0], dtype=torch.float64)
    sums = t.y[torch.tensor(list(combinations(range(9), 4)))].sum(1)
    expected = torch.polar(torch.ones(2, len(sums)).double(), lam[:, None] * sums).mean(1)
    torch.testing.assert_close(al.Different().transform(t, 4, lam), expected, rtol=1e-12, atol=1e-12)


def test_refusals(monkeypatch):
    tokens, head = population(6)
    with pytest.raises(NotKnown, match="law of the error of first keys is not known"):
        al.Prefix().transform(terms(3), 2, torch.ones(1).double())
    with pytest.raises(NotKnown, match="error of first keys is not known"):
        al.error_law(head, tokens, 2, X, E, sampling=al.Sampling(draw=al.Prefix()))
    with pytest.raises(InputError, match="there are 2: give direction="):
        al.error_law(head, tokens, 2, X)
    with pytest.raises(InputError, match="error_law takes one query"):
        al.error_law(head, tokens, 2, torch.stack([X, X]), E)
    with pytest.raises(InputError, match="error_law takes one head at a time"):
        al.error_law(al.Head(torch.ones(2, 1, 1).double()), al.Gaussian(dim=1), 2, [1.0])
    with pytest.raises(InputError, match="only 6 are left to draw from"):
        al.error_law(head, tokens, 7, X, E, sampling=al.Sampling(draw=al.Different()))
    with pytest.raises(InputError, match="law with infinitely many keys"):
        al.error_law(
            al.Head([[1.0]]), al.Gaussian(dim=1), 2, [1.0], sampling=al.Sampling(draw=al.Different())
        )
    with pytest.raises(InputError, match=r"q must be a probability between 0 and 1, got 1\.0"):
        al.error_law(head, tokens, 2, X, E).quantile(1.0)
    found = al.error_law(al.Head([[1.0]]), al.Gaussian(dim=1), 2, [1.0])
    monkeypatch.setattr(sys.modules["attnlimit.exact.error_law"], "COARSE", 0.0)
    with pytest.raises(NotKnown, match=r"P\(error ≤ 0\.3\) of 2 keys is found to ±1e-06 only"):
        found.cdf(0.3)
    spread = found.keys.atoms._replace(around=None, spread=torch.ones_like(found.keys.atoms.spread))
    unknown = replace(found.keys, rest=found.keys.rest._replace(atoms=spread))
    with pytest.raises(NotKnown, match="How values spread around their mean given the score is not known"):
        unknown.below(0.3)
    with pytest.raises(InputError, match="scores of this query spread over"):
        al.error_law(al.Head([[200.0]]), al.Gaussian(dim=1), 2, [1.0])


def test_quantiles_beyond_what_an_inversion_tells_are_refused():
    law = al.error_law(al.Head([[1.2]]), al.Gaussian(dim=1), 1, [1.0])
    assert law.quantile(1e-6) == pytest.approx(NormalDist().inv_cdf(1e-6) - 1.2, rel=1e-6)  # one key: y − Γ
    for q in (1e-12, 1e-308, 1 - 1e-12):
        with pytest.raises(
            NotKnown, match=r"Probabilities are found by inversion to about 1e-08, and the quantile at q = "
        ):
            law.quantile(q)
    for ask in (law.cdf, law.exceeds, law.quantile):
        with pytest.raises(InputError, match="values has 1 entries that are nan or infinite"):
            ask(math.nan)
