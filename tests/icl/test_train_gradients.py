"""Moments, losses and gradients of many models at once, against plain autograd, and the law of the shortcut."""

import math

import pytest
import torch
from scipy import stats

from attnlimit.icl import (
    Classification,
    InContextTask,
    LinearRegression,
    MixtureDenoising,
    ar1,
    infinite_risk,
    moments,
)
from attnlimit.icl.batches import Batch, ahead, draw, finite_losses, finite_pull, infinite_pull, stream
from attnlimit.icl.moments import White, Wishart, linear_moments, softmax_moments, white_tokens
from attnlimit.numerics import normals
from attnlimit.numerics.compiled import has_numba

LENGTHS = (7, 3, 12)
TASKS = [
    LinearRegression(3, ar1(3, 0.5)),
    Classification(2),
    Classification(2, loss="squared"),
    MixtureDenoising(3),
]


def models(task: InContextTask, seeds: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    U, V = 0.5 * torch.randn(
        2, seeds, count, task.token_dim, task.token_dim, generator=g, dtype=torch.float64
    )
    return U, V


def prompts_of(batch: Batch, seed: int) -> torch.Tensor:
    """The tokens themselves, (B, L, D)."""
    tokens = batch.seen.unflatten(0, batch.query.shape[:2])[seed]
    return tokens if batch.root is None else tokens @ batch.root[seed].mT


def plain_loss(
    task: InContextTask,
    U: torch.Tensor,
    V: torch.Tensor,
    tokens: torch.Tensor,
    batch: Batch,
    seed: int,
    attention: str,
) -> torch.Tensor:
    """One model, written as one would."""
    scores = (tokens @ (batch.query[seed] @ U.T)[..., None])[..., 0]
    weights = scores / tokens.shape[1] if attention == "linear" else scores.softmax(-1)
    if attention == "opposite":  # a second head, with its own matrices −U and −V, half of each
        other = (tokens @ (batch.query[seed] @ -U.T)[..., None])[..., 0].softmax(-1)
        pair = [(one[:, None] @ tokens)[:, 0] @ W.T for one, W in ((weights, V / 2), (other, -V / 2))]
        return task.risk(task.read(pair[0] + pair[1]), batch.target[seed]).mean()
    output = (weights[:, None] @ tokens)[:, 0] @ V.T
    return task.risk(task.read(output), batch.target[seed]).mean()


@pytest.mark.parametrize("attention", ["softmax", "opposite", "linear"])
@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_closed_form_gradients_equal_autograd(task: InContextTask, attention: str) -> None:
    U, V = models(task, 2, len(LENGTHS))
    generators = [stream(0, 0, seed, 5) for seed in range(2)]
    batch = draw(
        task, "softmax" if attention == "linear" else attention, LENGTHS, 16, generators, torch.float64
    )
    tokens = [prompts_of(batch, seed) for seed in range(2)]
    if attention == "linear":  # the same prompts, as linear attention sees them
        seen = linear_moments(batch.seen, LENGTHS)
        batch = Batch(batch.query, batch.target, batch.vector, batch.root, seen, LENGTHS, "linear")
    pull = finite_pull(task, U, V, batch, LENGTHS)
    others = finite_losses(task, U, V, batch, (12, 3))
    for seed in range(2):
        for m, length in enumerate(LENGTHS):
            u, v = U[seed, m].clone().requires_grad_(), V[seed, m].clone().requires_grad_()
            loss = plain_loss(task, u, v, tokens[seed][:, :length], batch, seed, attention)
            gradients = torch.autograd.grad(loss, (u, v))
            torch.testing.assert_close(pull.loss[seed, m], loss.detach(), rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(pull.U[seed, m], gradients[0], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(pull.V[seed, m], gradients[1], rtol=1e-10, atol=1e-12)
            for t, other in enumerate((12, 3)):
                expected = plain_loss(task, u, v, tokens[seed][:, :other], batch, seed, attention)
                torch.testing.assert_close(others[seed, m, t], expected.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_infinite_gradients_equal_autograd_of_the_infinite_model(task: InContextTask) -> None:
    U, V = models(task, 1, 2)
    batch = draw(task, "softmax", (2,), 32, [stream(0, 0, 0, 0)], torch.float64)
    pull = infinite_pull(task, U, V, batch)
    for m in range(2):
        u, v = U[0, m].clone().requires_grad_(), V[0, m].clone().requires_grad_()
        output = task.tilted_mean(batch.vector[0], batch.query[0] @ u.T) @ v.T
        loss = task.risk(task.read(output), batch.target[0]).mean()
        gradients = torch.autograd.grad(loss, (u, v))
        torch.testing.assert_close(pull.loss[0, m], loss.detach(), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(pull.U[0, m], gradients[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(pull.V[0, m], gradients[1], rtol=1e-10, atol=1e-12)


def test_the_control_variate_has_the_exact_gradient_as_its_mean() -> None:
    """z scores of 72 gradient entries over 400 batches: |z| > 4.5 has a false-alarm rate of 72 × 7e-6 = 5e-4."""
    task = LinearRegression(2, ar1(2, 0.5))
    U, V = models(task, 1, 4)
    pulls = []
    for step in range(400):
        batch = draw(task, "linear", (1,), 64, [stream(3, 0, 0, step)], torch.float64)
        pulls.append(torch.stack(infinite_pull(task, U, V, batch)[1:]))
    free = torch.stack([U, V]).requires_grad_()
    (exact,) = torch.autograd.grad(infinite_risk(task, *free).sum(), free)
    sample = torch.stack(pulls)
    noise = sample.std(0) / 20
    z = ((sample.mean(0) - exact).abs() / noise)[noise > 1e-12]
    assert z.numel() >= 30
    assert float(z.max()) < 4.5
    unused = noise <= 1e-12  # entries the prediction does not depend on
    torch.testing.assert_close(sample.mean(0)[unused], exact[unused], rtol=0, atol=1e-12)


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@pytest.mark.parametrize(
    ("length", "dim", "scale"),
    [(1, 4, 1.0), (257, 3, 1.0), (300, 5, 0.0), (600, 1, 30.0), (70, 6, 1.0), (90, 13, 1.0)],
)
def test_compiled_moments_equal_the_plain_ones(length: int, dim: int, scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    tokens = torch.randn(5, length, dim, generator=g)
    a, along = scale * torch.randn(5, 3, dim, generator=g), torch.randn(5, 3, dim, generator=g)
    lengths = (length, max(1, length // 3), 1)
    mean, push = softmax_moments(tokens, a, along, lengths)
    exact_mean, exact_push = softmax_moments(tokens.double(), a.double(), along.double(), lengths)
    # float32 scores of size s carry errors of about s·6e-8
    bound = 2e-6 * (1 + scale)
    torch.testing.assert_close(mean.double(), exact_mean, rtol=0, atol=bound)
    torch.testing.assert_close(push.double(), exact_push, rtol=0, atol=5 * bound)


@pytest.mark.parametrize("shift", [0.0, 50.0, 70.0, 150.0, -300.0])
def test_scores_beyond_the_range_of_exp_are_no_trouble(shift: float) -> None:
    """Scores around ±shift: the same weights, whatever is added to all."""
    tokens = torch.tensor([[[1.0, 0.5], [1.0, -1.5], [1.0, 1.0], [1.0, 0.2]]])
    a, along = torch.tensor([[[shift, 2.0], [-shift, 2.0]]]), torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    mean, push = softmax_moments(tokens, a, along, (4, 3))
    for m, length in enumerate((4, 3)):
        y = tokens[0, :length, 1].double()
        p = (2 * y).softmax(0)
        torch.testing.assert_close(mean[0, m, 1].double(), p @ y, rtol=0, atol=1e-4)
        torch.testing.assert_close(push[0, m, 1].double(), p @ y.square() - (p @ y) ** 2, rtol=0, atol=1e-4)


def test_one_score_far_above_all_others_takes_all() -> None:
    tokens = torch.tensor([[[1.0], [3.0], [2.0]]])
    a = torch.tensor([[[1000.0], [-1000.0]]])
    mean, push = softmax_moments(tokens, a, torch.ones_like(a), (3, 3))
    torch.testing.assert_close(mean[0, :, 0], torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(push[0, :, 0], torch.zeros(2), rtol=0, atol=1e-5)


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@pytest.mark.parametrize("lengths", [(10, 20, 120), (20, 2, 9)])
def test_compiled_and_plain_draws_are_the_same(
    lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        tokens = white_tokens(4, 11, 3, generators, torch.float32)
        assert isinstance(tokens, White)
        return tokens.tensor(), Wishart.draw(5, lengths, 3, generators, torch.float32).tensor(lengths)

    compiled = drawn()
    monkeypatch.setattr(moments, "has_numba", lambda: False)
    monkeypatch.setattr(normals, "has_numba", lambda: False)
    for one, other in zip(compiled, drawn(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize(
    ("dim", "lengths", "scale"),
    [(1, (1,), 1.0), (5, (70, 3, 300, 3), 1.0), (8, (20, 65), 1.0), (3, (9, 40), 300.0)],
)
def test_prompts_drawn_in_the_compiled_pass_pull_as_the_same_prompts_that_are_there(
    attention: str, dim: int, lengths: tuple[int, ...], scale: float
) -> None:
    """In float64 and step by step, of the numbers that `seen` holds."""
    task = LinearRegression(dim, ar1(dim, 0.5))
    U, V = models(task, 2, len(lengths))
    U = scale * U
    generators = [stream(0, 0, seed, 5) for seed in range(2)]
    batch = draw(task, attention, (*lengths, 99), 9, generators, torch.float32)  # 99: a length to test at
    assert not isinstance(batch.drawn, torch.Tensor)
    there = [part.double() for part in (batch.query, batch.target, batch.vector, batch.root, batch.seen)]
    plain = finite_pull(task, U, V, Batch(*there, batch.lengths, attention), lengths)
    pulled = finite_pull(task, U.float(), V.float(), batch, lengths)
    for one, other in zip(pulled, plain, strict=True):
        size = max(1.0, float(other.abs().max()))  # derivatives are a second moment less a square
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5 * (1 + 0.1 * scale) * size)


def test_linear_moments_are_prefix_means() -> None:
    tokens = torch.randn(3, 9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for m, length in enumerate((9, 4, 4, 1)):
        part = tokens[:, :length]
        expected = part.mT @ part / length
        torch.testing.assert_close(linear_moments(tokens, (9, 4, 4, 1))[:, m], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [(20, 5), (8, 2), (2, 1)])
def test_the_shortcut_of_linear_attention_has_the_law_of_tokens(
    lengths: tuple[int, int], dtype: torch.dtype
) -> None:
    """Kolmogorov-Smirnov tests of five functionals of both matrices at p < 1e-5: false-alarm rate below 4e-4."""
    g = torch.Generator().manual_seed(0)
    rows, dim = 10_000, 3
    short = Wishart.draw(rows, lengths, dim, [g], dtype).tensor(lengths).double()
    white = torch.randn(rows, max(lengths), dim, generator=g, dtype=torch.float64)
    long = linear_moments(white, lengths)
    direction = torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64)
    functionals = [
        lambda S: S[:, 0, 0, 0],
        lambda S: S[:, 1, 2, 0],
        lambda S: torch.linalg.det(S[:, 0] + 0.1 * torch.eye(dim).double()),
        lambda S: (S[:, 0] @ S[:, 1]).diagonal(dim1=1, dim2=2).sum(-1),  # the two lengths together
        lambda S: (S[:, 1] @ direction).square().sum(-1),
    ]
    for functional in functionals:
        result = stats.ks_2samp(functional(short).numpy(), functional(long).numpy())
        assert result.pvalue > 1e-5
    wrong = stats.ks_2samp((short[:, 0, 0, 0] * 1.2).numpy(), long[:, 0, 0, 0].numpy())
    assert wrong.pvalue < 1e-5  # a scale 20 % off would be noticed


def test_linear_batches_have_the_second_moments_of_the_prompt_law() -> None:
    """(1/L) Σ z zᵀ over 20,000 prompts has mean Γ_w: largest of 16 z scores below 5, false-alarm rate 1e-5."""
    task = LinearRegression(3, ar1(3, 0.5))
    batch = draw(task, "linear", (6,), 20_000, [stream(0, 0, 0, 0)], torch.float64)
    F = batch.root[0]
    error = F @ batch.seen[:, 0] @ F.mT - task.prompt_cov(batch.vector[0])
    z = error.mean(0) / error.std(0) * math.sqrt(20_000)
    assert float(z.abs().max()) < 5


def test_streams_differ_by_seed_step_and_purpose_and_repeat() -> None:
    def first(*address: int) -> float:
        return float(torch.rand((), generator=stream(*address), dtype=torch.float64))

    addresses = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    assert len({first(*address) for address in addresses}) == len(addresses)
    assert first(5, 0, 2, 7) == first(5, 0, 2, 7)


@pytest.mark.parametrize("workers", [1, 3])
def test_work_ahead_keeps_the_order_and_passes_errors_on(workers: int) -> None:
    assert list(ahead(lambda k: k * k, range(20), workers)) == [k * k for k in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda k: 1 // (5 - k), range(20), workers))
