"""The exact engine against enumeration, independent quadrature, published vectors and Monte Carlo."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

import attnlimit as al
from attnlimit import Kept, exact_error
from attnlimit.designs import Coins, Different, Independent, Sampling
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import prepare_seen
from attnlimit.numerics import condensed

F64 = {"dtype": torch.float64}
SIZES = [1, 2, 10, 100, 10**3, 10**4, 10**6, 10**9]
VECTORS = {
    (0.5, "orth"): [1, 0.550753, 0.123368, 0.0127839, 0.00128345, 0.000128397, 1.28402e-6, 1.28403e-9],
    (0.5, "par"): [1.25, 0.659682, 0.149713, 0.0159131, 0.00160362, 0.000160489, 1.60503e-6, 1.60503e-9],
    (2.0, "orth"): [1, 0.759988, 0.390120, 0.126262, 0.0290343, 0.00450745, 5.43149e-5, 5.45978e-8],
    (2.0, "par"): [5, 3.01684, 0.999203, 0.260357, 0.0792765, 0.0174555, 2.68528e-4, 2.72985e-7],
}


@pytest.mark.parametrize(("case", "expected"), VECTORS.items())
def test_theory_vectors(case, expected):
    s, direction = case
    V = [[0.0, 1.0]] if direction == "orth" else [[1.0, 0.0]]
    result = exact_error(al.Head(s * torch.eye(2, **F64), V), al.Gaussian(dim=2), SIZES, [[1.0, 0.0]])
    assert np.allclose(result.mean_square[0].numpy(), expected, rtol=6e-6)


@pytest.mark.parametrize("s", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_gaussian_against_adaptive_quadrature(s, n):
    """The inner expectations by a dense rule, the outer integral by scipy's adaptive one."""
    g = np.linspace(-10, 14, 40001)
    mass = np.exp(-g * g / 2) / math.sqrt(2 * math.pi) * (g[1] - g[0])
    w = np.exp(s * g)

    def integrand(tau):
        t = math.exp(tau)
        damp = mass * np.exp(-t * w)
        phi, first, second = damp.sum(), damp @ (w * (g - s)), damp @ (w * (g - s)) ** 2
        pair = n * (n - 1) * first**2 * phi ** (n - 2) if n > 1 else 0.0
        return t * t * (n * second * phi ** (n - 1) + pair)

    low, high = -math.log(n) - s * s - 14, 9 * s + 5
    edges = np.linspace(low, high, 20)
    expected = sum(
        integrate.quad(integrand, start, stop, epsabs=1e-13, epsrel=1e-9)[0]
        for start, stop in itertools.pairwise(edges)
    )
    actual = exact_error(al.Head([[s]]), al.Gaussian(dim=1), n, [[1.0]]).mean_square.item()
    assert actual == pytest.approx(expected, rel=2e-7)


# --- populations: every possible draw -----------------------------------------------------------------------------

populations = st.fixed_dictionaries(
    {
        "keys": st.integers(1, 5),
        "spread": st.sampled_from([0.0, 0.5, 3.0, 10.0, 30.0]),
        "seed": st.integers(0, 10**6),
        "kind": st.sampled_from(["plain", "heavy hitter", "duplicate keys", "constant values"]),
    }
)


def make(keys, spread, seed, kind):
    g = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(keys, generator=g, **F64)
    values = torch.randn(keys, 2, generator=g, **F64)
    if kind == "heavy hitter":
        scores[0] += 20
    if kind == "duplicate keys":
        scores[-1], values[-1] = scores[0], values[0]
    if kind == "constant values":
        values[:] = values[0]
    return al.Empirical(scores[:, None], values)


def outcome(scores, values, weights):
    """Attention over keys with these multiplicities or importance weights."""
    w = weights * torch.exp(scores - scores[weights > 0].max())
    return (w[:, None] * values).sum(0) / w.sum()


def enumerate_iid(pop, n, kept=(), scale=1.0):
    """E‖Γ_n − Γ‖² and E Γ_n − Γ over all draws of n of the keys that are not kept."""
    scores, values = pop.tokens[:, 0], pop.values
    rest = [j for j in range(len(pop)) if j not in kept]
    limit = outcome(scores, values, torch.ones(len(pop), **F64))
    errors = []
    for draw in itertools.product(rest, repeat=n):
        weights = torch.zeros(len(pop), **F64)
        weights[list(kept)] = 1.0
        for j in draw:
            weights[j] += scale
        errors.append(outcome(scores, values, weights) - limit)
    errors = torch.stack(errors)
    return errors.square().sum(1).mean().item(), errors.mean(0)


@given(populations, st.integers(1, 4))
def test_iid_population_equals_enumeration(population, n):
    pop = make(**population)
    result = exact_error(al.Head([[1.0]]), pop, n, [[1.0]])
    square, bias = enumerate_iid(pop, n)
    assert result.mean_square.item() == pytest.approx(square, rel=1e-6, abs=1e-12)
    assert result.bias_square.item() == pytest.approx(bias.square().sum().item(), rel=1e-6, abs=1e-12)
    assert result.variance.item() == pytest.approx(square - bias.square().sum().item(), rel=1e-5, abs=1e-11)


@given(populations, st.integers(1, 3), st.sampled_from(["plain", "rest"]))
def test_kept_keys_equal_enumeration(population, n, weight):
    pop = make(**population)
    if len(pop) < 2:
        return
    kept = Kept(own=True)
    plan = Sampling(kept=kept, weight=weight)
    result = exact_error(al.Head([[1.0]]), pop, n, [[1.0]], sampling=plan, positions=[1])
    scale = (len(pop) - 1) / n if weight == "rest" else 1.0
    square, bias = enumerate_iid(pop, n, kept=(1,), scale=scale)
    assert result.mean_square.item() == pytest.approx(square, rel=1e-6, abs=1e-12)
    assert result.bias_square.item() == pytest.approx(bias.square().sum().item(), rel=1e-6, abs=1e-12)


@given(populations, st.integers(1, 5), st.booleans(), st.sampled_from(["plain", "rest"]))
def test_bernoulli_equals_enumeration(population, n, with_kept, weight):
    pop = make(**population)
    kept = (0,) if with_kept and len(pop) > 1 else ()
    rest = [j for j in range(len(pop)) if j not in kept]
    n = min(n, len(rest))
    p = n / len(rest)
    scores, values = pop.tokens[:, 0], pop.values
    limit = outcome(scores, values, torch.ones(len(pop), **F64))
    square, bias = 0.0, torch.zeros(values.shape[1], **F64)
    for chosen in itertools.product([0, 1], repeat=len(rest)):
        weights = torch.zeros(len(pop), **F64)
        weights[list(kept)] = 1.0
        weights[[j for j, c in zip(rest, chosen, strict=True) if c]] = 1 / p if weight == "rest" else 1.0
        if any(chosen):  # else the coins are thrown again
            chance = p ** sum(chosen) * (1 - p) ** (len(rest) - sum(chosen)) / (1 - (1 - p) ** len(rest))
            error = outcome(scores, values, weights) - limit
            square, bias = square + chance * error.square().sum().item(), bias + chance * error
    result = exact_error(
        al.Head([[1.0]]),
        pop,
        n,
        [[1.0]],
        sampling=Sampling(draw=Coins(), kept=Kept(sinks=1) if kept else Kept(), weight=weight),
    )
    assert result.mean_square.item() == pytest.approx(square, rel=1e-6, abs=1e-12)
    assert result.bias_square.item() == pytest.approx(bias.square().sum().item(), rel=1e-5, abs=1e-12)


def test_the_error_by_coins_does_not_rise_with_n():
    """Six keys: a third of the draws at n = 1 would be empty."""
    scores = torch.tensor([0.0, 0.5, -1.0, 1.0, 0.2, -0.3], **F64)
    pop = al.Empirical(scores[:, None], torch.tensor([[1.0], [-1.0], [2.0], [0.5], [0.0], [-2.0]], **F64))
    squares = exact_error(
        al.Head([[1.0]]), pop, range(1, 7), [[1.0]], sampling=Sampling(draw=Coins())
    ).mean_square
    assert bool((squares.diff() < 0).all())


def test_keeping_every_token_by_bernoulli_is_exact():
    pop = al.Gaussian(dim=3).sample(300, generator=5)
    result = exact_error(
        al.Head(torch.eye(3, **F64)), pop, 300, pop.tokens[:4], sampling=Sampling(draw=Coins())
    )
    assert float(result.mean_square.max()) < 1e-20


# --- laws against Monte Carlo -------------------------------------------------------------------------------------

HEAD = al.Head(
    torch.tensor([[1.2, 0.3, 0.0], [0.0, -0.8, 0.4], [0.2, 0.0, 1.0]], **F64),
    [[1.0, 0.5, 0.0], [0.0, 1.0, -2.0]],
)
AXIS = al.Head(1.5 * torch.eye(3, **F64), [[1.0, 0.5, 0.0], [0.0, 1.0, -2.0]])
LAWS = {
    "gaussian": (
        HEAD,
        al.Gaussian(
            mean=[0.3, -0.2, 0.1], cov=torch.tensor([[1.0, 0.4, 0], [0.4, 0.8, 0], [0, 0, 0]], **F64)
        ),
    ),
    "sphere": (HEAD, al.Sphere(3, 1.7)),
    "ball": (HEAD, al.Ball(3, 2.0)),
    "box": (AXIS, al.Box(3, 1.4)),
    "rademacher": (HEAD, al.Rademacher(3)),
    "mixture": (
        HEAD,
        al.Mixture(
            [0.3, 0.7],
            [al.Gaussian(mean=[2.0, 0.0, 0.0], cov=0.2), al.Gaussian(mean=[-1.0, 1.0, 0.0], cov=0.7)],
        ),
    ),
    "mixed kinds": (HEAD, al.Mixture([0.5, 0.5], [al.Sphere(3, 2.0), al.Gaussian(cov=0.5, dim=3)])),
}


@pytest.mark.parametrize("name", LAWS)
def test_laws_against_monte_carlo(name):
    """Each of 12 comparisons beyond 4 standard errors has probability 6e-5: a false alarm once in 1,400 runs."""
    head, law = LAWS[name]
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, -1.5, 0.0]], **F64)
    sizes, replicates = [1, 2, 8, 60], 6000
    result = exact_error(head, law, sizes, x)
    limit = head(law)(x)
    g = torch.Generator().manual_seed(7)
    for k, n in enumerate(sizes):
        tokens = law.sample(n * replicates, generator=g).tokens.reshape(replicates, n, 3)
        scores = torch.einsum("rnd,md->rmn", tokens, head.score_vector(x))
        outputs = head.read_linear(scores.softmax(-1) @ tokens)
        squares = (outputs - limit).square().sum(-1)
        error = squares.std(0) / replicates**0.5
        z = (squares.mean(0) - result.mean_square[:, k]) / error
        assert float(z.abs().max()) < 4, (n, z)


def test_self_attention_on_a_law_against_monte_carlo():
    """The query's own key is kept: 3 comparisons at 4 standard errors, a false alarm once in 5,000 runs."""
    head, law = LAWS["gaussian"]
    x = law.sample(3, generator=3).tokens
    result = exact_error(head, law, 6, x, sampling=Sampling(kept=Kept(own=True)))
    tokens = law.sample(6 * 20000, generator=4).tokens.reshape(20000, 1, 6, 3).expand(-1, 3, -1, -1)
    tokens = torch.cat([tokens, x[None, :, None, :].expand(20000, -1, -1, -1)], 2)
    scores = torch.einsum("rmnd,md->rmn", tokens, head.score_vector(x))
    outputs = head.read_linear((scores.softmax(-1)[..., None] * tokens).sum(2))
    squares = (outputs - head(law)(x)).square().sum(-1)
    z = (squares.mean(0) - result.mean_square[:, 0]) / (squares.std(0) / 20000**0.5)
    assert float(z.abs().max()) < 4


@pytest.mark.parametrize("dim", [1, 2, 3, 50])
def test_single_key_error_is_the_spread_of_values(dim):
    """n = 1: E‖V y − Γ‖² = tr Cov + ‖mean − Γ‖², whatever the scores."""
    for law in (al.Sphere(dim, 2.0), al.Ball(dim, 2.0), al.Gaussian(cov=0.7, dim=dim)):
        head = al.Head(3 * torch.eye(dim, **F64))
        x = torch.ones(1, dim, **F64)
        expected = law.covariance.trace() + head(law)(x).square().sum()
        assert exact_error(head, law, 1, x).mean_square.item() == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_large_n_is_the_central_limit_theorem(dim):
    for law in (al.Sphere(dim), al.Gaussian(cov=0.5, dim=dim), al.Ball(dim, 2.0)):
        head = al.Head(torch.eye(dim, **F64))
        x = torch.ones(1, dim, **F64)
        limit = al.clt(head, law, x)
        result = exact_error(head, law, 10**12, x)
        assert result.mean_square.item() == pytest.approx(
            float(limit.covariance.diagonal(dim1=-2, dim2=-1).sum()) / 1e12, rel=1e-6
        )
        assert result.bias_square.item() == pytest.approx(float(limit.bias.square().sum()) / 1e24, rel=1e-4)


# --- bins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 30.0])
def test_bins_agree_with_every_token_on_its_own(dtype, spread):
    g = torch.Generator().manual_seed(1)
    keys, values = torch.randn(6000, 4, generator=g, **F64), torch.randn(6000, 5, generator=g, **F64)
    pop = al.Empirical(keys.to(dtype), values.to(dtype))
    head = al.Head((spread / 2 * torch.eye(4, **F64)).to(dtype))
    sizes = [1, 4, 32, 500, 6000]
    binned = exact_error(head, pop, sizes, pop.tokens[:3], binned=True)
    every = exact_error(head, pop, sizes, pop.tokens[:3], binned=False)
    difference = (binned.mean_square / every.mean_square - 1).abs().max().item()
    assert difference < 5e-3
    assert binned.bin_error < 2e-2
    assert exact_error(head, pop, sizes, pop.tokens[:3]).bin_error is not None  # bins by default at this size


def test_kept_sets_with_bins():
    g = torch.Generator().manual_seed(1)
    pop = al.Empirical(torch.randn(5000, 4, generator=g, **F64), torch.randn(5000, 5, generator=g, **F64))
    head = al.Head(torch.eye(4, **F64))
    kept = Kept(own=True, sinks=4, window=16, top=8)
    for draw in (Independent(), Coins()):
        plan = Sampling(draw=draw, kept=kept, weight="rest")
        binned, every = (
            exact_error(
                head,
                pop,
                [8, 64, 512],
                pop.tokens[[100, 2000]],
                sampling=plan,
                positions=[100, 2000],
                binned=bins,
            )
            for bins in (True, False)
        )
        assert (binned.mean_square / every.mean_square - 1).abs().max().item() < 5e-3


@pytest.mark.parametrize("threads", [1, 2])
def test_many_queries_as_each_by_itself(threads):
    """Some are taken at a time and side by side, in whatever order; places go with their queries."""
    g = torch.Generator().manual_seed(3)
    pop = al.Empirical(torch.randn(300, 2, generator=g, **F64))
    x, where = 3 * torch.rand(70, 1, generator=g, **F64) * torch.randn(70, 2, generator=g, **F64), range(70)
    how = {"sampling": Sampling(kept=Kept(own=True)), "binned": True}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    together = exact_error(al.Head(torch.eye(2, **F64)), pop, [3, 90], x, positions=where, **how)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    for i in (0, 31, 32, 69):
        alone = exact_error(al.Head(torch.eye(2, **F64)), pop, [3, 90], x[i : i + 1], positions=[i], **how)
        for name in ("mean_square", "bias_square", "limit_square"):
            torch.testing.assert_close(
                getattr(together, name)[i : i + 1], getattr(alone, name), rtol=2e-3, atol=1e-6
            )


@pytest.mark.parametrize("fast", [True, False], ids=["numba", "torch"])
@pytest.mark.parametrize("kept", [Kept(), Kept(sinks=2, top=4)], ids=["none kept", "some kept"])
def test_different_keys_with_bins_up_to_the_last_ones(fast, kept, monkeypatch):
    """Also of a head that looks at one key, where most keys are drawn: log(1 − p + p e^{−tw}) is then least smooth."""
    if fast:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(condensed, "has_numba", lambda: False)
    g = torch.Generator().manual_seed(1)
    scores = torch.tensor([[1.0], [4.0], [4.0]]) * torch.randn(3, 300, generator=g)
    scores[2, 7] = scores.max() + 6
    seen = Seen(scores, torch.randn(300, 6, generator=g))
    n = torch.tensor([[1.0, 30.0, 150.0, 240.0, 288.0]], **F64)
    plan = Sampling(draw=Different(), kept=kept, weight="rest" if kept else "plain")
    binned, every = (prepare_seen(seen, 288, plan, binned=bins).moments(n)[0] for bins in (True, False))
    assert (binned / every - 1).abs().max().item() < 4e-3


@pytest.mark.parametrize("many", [[1], [0, 2]], ids=["one", "two"])
def test_queries_with_few_keys_beside_others_that_are_binned(many):
    """Sets of few keys are summed over key by key; each query has its own errors and limit, in its place."""
    g = torch.Generator().manual_seed(1)
    scores, values = torch.randn(3, 300, generator=g, **F64), torch.randn(300, 4, generator=g, **F64)
    hidden = torch.arange(300).expand(3, -1) >= 40
    hidden = torch.where(torch.tensor([[k in many] for k in range(3)]), torch.zeros_like(hidden), hidden)
    n, plan = torch.tensor([[1.0, 8.0, 30.0]], **F64), Sampling(draw=Different())
    binned, every = (
        prepare_seen(Seen(scores, values, hidden), 30, plan, binned=bins) for bins in (True, False)
    )
    square, bias, difference = binned.with_check(n)
    torch.testing.assert_close(square, every.moments(n)[0], rtol=4e-3, atol=0)
    assert ((bias - every.moments(n)[1]).norm(dim=-1) / square.sqrt()).max() < 4e-3
    torch.testing.assert_close(binned.limit, every.limit)
    torch.testing.assert_close(binned.moments(n.expand(3, -1))[0], square)
    assert len(binned.checked) == len(many)
    assert 0 < difference < 2e-2


def test_hidden_keys_and_a_sink_from_scores():
    """Hidden keys are as good as absent, a sink is a kept key of value zero."""
    g = torch.Generator().manual_seed(4)
    scores, values = 2 * torch.randn(1, 12, generator=g, **F64), torch.randn(12, 2, generator=g, **F64) + 1
    hidden = torch.zeros(1, 12, dtype=torch.bool)
    hidden[0, 7:] = True
    n = torch.tensor([[1.0, 5.0, 40.0]], **F64)
    for binned in (True, False):
        for draw in (Independent(), Coins()):
            sizes = n if draw.repeats else n[:, :2]

            def moments(seen, draw=draw, binned=binned, sizes=sizes):
                return prepare_seen(seen, 7, Sampling(draw=draw), binned=binned).moments(sizes)

            with_hidden = moments(Seen(scores, values, hidden=hidden))
            without = moments(Seen(scores[:, :7], values[:7]))
            assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(with_hidden, without, strict=True))
            sink = moments(Seen(scores, values, sink=torch.tensor([1.5], **F64)))
            longer = (
                torch.cat([scores, torch.tensor([[1.5]], **F64)], 1),
                torch.cat([values, torch.zeros(1, 2, **F64)]),
            )
            kept = torch.zeros(1, 13, dtype=torch.bool)
            kept[0, -1] = True
            explicit = moments(Seen(*longer, kept=kept), binned=False)
            rtol = 5e-2 if binned else 1e-9
            assert all(torch.allclose(a, b, rtol=rtol) for a, b in zip(sink, explicit, strict=True))


@pytest.mark.parametrize("binned", [True, False])
def test_queries_may_see_values_of_their_own(binned):
    """The same as each query alone with its values."""
    g = torch.Generator().manual_seed(7)
    scores, values = torch.randn(3, 40, generator=g, **F64), torch.randn(3, 40, 2, generator=g, **F64)
    plan, n = (
        Sampling(draw=Coins(), kept=Kept(sinks=2, top=3), weight="rest"),
        torch.tensor([[2.0, 20.0]], **F64),
    )
    sink = torch.tensor([0.1, 0.2, 0.3], **F64)
    together = prepare_seen(Seen(scores, values, sink=sink), 20, plan, binned=binned).moments(n)
    for i in range(3):
        one = Seen(scores[i : i + 1], values[i], sink=sink[i : i + 1])
        alone = prepare_seen(one, 20, plan, binned=binned).moments(n)
        rtol = 1e-2 if binned else 1e-9  # the number of bins is that of the widest query
        torch.testing.assert_close(together[0][i : i + 1], alone[0], rtol=rtol, atol=0)
        torch.testing.assert_close(
            together[1][i : i + 1], alone[1], rtol=rtol, atol=1e-3 if binned else 1e-12
        )


def test_several_heads_are_stacked():
    g = torch.Generator().manual_seed(2)
    A = torch.randn(2, 3, 4, 4, generator=g, **F64)
    head, law = al.Head(A, torch.randn(2, 3, 2, 4, generator=g, **F64)), al.Gaussian(cov=0.2, dim=4)
    x = torch.randn(5, 4, generator=g, **F64)
    together = exact_error(head, law, [3, 30], x)
    assert together.mean_square.shape == (2, 3, 5, 2)
    alone = exact_error(head.each()[4], law, [3, 30], x)
    assert torch.equal(together.mean_square[1, 1], alone.mean_square)


# --- bad input ----------------------------------------------------------------------------------------------------


def test_bad_input():
    head, law, pop = al.Head([[1.0]]), al.Gaussian(dim=1), al.Empirical([[0.0], [1.0]])
    with pytest.raises(InputError, match="is beyond 10"):
        exact_error(head, law, 10**13, [[1.0]])
    for draw in (Coins(), Different()):
        with pytest.raises(InputError, match="infinitely many keys"):
            exact_error(head, law, 1, [[1.0]], sampling=Sampling(draw=draw))
        with pytest.raises(InputError, match="only 2 are left to draw from"):
            exact_error(head, pop, 3, [[1.0]], sampling=Sampling(draw=draw))
    with pytest.raises(NotKnown, match="neighbouring keys is not known exactly"):
        exact_error(head, pop, 1, [[1.0]], sampling=Sampling(draw=al.Block()))
    with pytest.raises(InputError, match="only the own token can be kept"):
        exact_error(head, law, 1, [[1.0]], sampling=Sampling(kept=Kept(sinks=2)))
    with pytest.raises(InputError, match="give positions="):
        exact_error(head, pop, 1, [[1.0]], sampling=Sampling(kept=Kept(window=1)))
    with pytest.raises(InputError, match="nothing is left to sample"):
        exact_error(head, pop, 1, [[1.0]], sampling=Sampling(kept=Kept(sinks=2)))
    weighted = al.Empirical([[0.0], [1.0]], weights=[0.2, 0.8])
    with pytest.raises(InputError, match="weighted population takes independent plain keys"):
        exact_error(head, weighted, 1, [[1.0]], sampling=Sampling(kept=Kept(sinks=1)))
    with pytest.raises(NotKnown, match="no projected form"):
        exact_error(al.Head(torch.ones(2, 2, **F64)), al.Box(2), 1, [[1.0, 1.0]])
    with pytest.raises(NotKnown, match="measure_convergence"):
        exact_error(al.Head(torch.ones(2, 2, **F64)), al.Laplace(2, 0.1), 1, [[1.0, 1.0]])


@pytest.mark.parametrize("scale", [1.0, 20.0, 30.0, 60.0])
def test_one_key_has_nearly_all_the_attention(scale):
    """Against all counts of three keys in 60 digits: values that differ from Γ by less than rounding still count."""
    keys, values, n = [[1.0, 0.0], [0.3, 0.2], [-0.2, 1.0]], [[1.3, 0.7], [-0.4, 2.0], [0.5, -1.1]], 150
    with mpmath.workdps(60):
        w = [mpmath.e ** (scale * (mpmath.mpf(key[0]) + mpmath.mpf(key[1]) / 8)) for key in keys]
        u = [[v[c] - mpmath.fdot(w, [v[c] for v in values]) / sum(w) for c in (0, 1)] for v in values]
        want = mpmath.mpf(0)
        for i, j in itertools.product(range(n + 1), repeat=2):
            counts = (i, j, n - i - j)
            if min(counts) >= 0:
                drawn = [count * weight for count, weight in zip(counts, w, strict=True)]
                square = sum(mpmath.fdot(drawn, [one[c] for one in u]) ** 2 for c in (0, 1)) / sum(drawn) ** 2
                want += mpmath.binomial(n, i) * mpmath.binomial(n - i, j) * square / mpmath.mpf(3) ** n
    head = al.Head(scale * torch.eye(2, **F64))
    found = exact_error(head, al.Empirical(keys, values), n, [[1.0, 0.125]]).mean_square
    assert float(found) == pytest.approx(float(want), rel=1e-6)
