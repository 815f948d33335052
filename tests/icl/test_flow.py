"""Infinite-prompt dynamics: risk, gradients, conserved quantity, ends, stationary points, plain descent."""

import numpy as np
import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, LimitDoesNotExist
from attnlimit.icl import (
    Block,
    Classification,
    Diverged,
    InContextTask,
    LinearRegression,
    MixtureDenoising,
    Prompts,
    Weights,
    ar1,
    balanced,
    descend,
    endpoint,
    finite_risk,
    flow,
    infinite_predictions,
    infinite_risk,
    stationary_points,
)
from attnlimit.icl.infinite import problem

PLAIN = LinearRegression(3, cov=ar1(3, 0.5), vector_cov=1.0, noise=0)
"""The theory's own setting: w ~ N(0, I), queries like prompts."""
GENERAL = LinearRegression(3, cov=ar1(3, 0.5), query_cov=[1.0, 2.0, 0.5], vector_cov=ar1(3, -0.3), noise=0.3)
BOTH = pytest.mark.parametrize("task", [PLAIN, GENERAL], ids=["plain", "general"])


def random_weights(
    size: int, generator: torch.Generator, scale: float = 0.4, models: int = 1
) -> torch.Tensor:
    return scale * torch.randn(2, models, size, size, generator=generator, dtype=torch.float64)


# --- the risk and its gradient -------------------------------------------------------------------------


@BOTH
def test_exact_risk_against_monte_carlo(task: LinearRegression, generator: torch.Generator) -> None:
    """Five standard errors of 200,000 draws of (w, x_q), for three models at once."""
    U, V = random_weights(4, generator, models=3)
    prompts = task.draw(200_000, 1, generator)
    losses = task.risk(infinite_predictions(task, U, V, prompts), prompts.target)
    spread = losses.std(-1) / losses.shape[-1] ** 0.5
    assert bool(((losses.mean(-1) - infinite_risk(task, U, V)).abs() <= 5 * spread).all())


def test_exact_risk_for_two_point_vectors() -> None:
    """d = 1 by hand: prediction = ρ_w x with ρ_w = U₁(v₁ + v₂w) + u₂(v₁w + v₂(w² + noise)), Gauss–Hermite over w."""
    task = LinearRegression(1, noise=0.2, vector_cov=0.5, query_cov=3.0)
    U, V = torch.tensor([[[0.7, 9.0], [-0.4, 9.0]], [[9.0, 9.0], [0.3, 1.1]]], dtype=torch.float64)
    node, weight = (torch.as_tensor(t) for t in np.polynomial.hermite_e.hermegauss(20))
    w = node * 0.5**0.5
    rho = 0.7 * (0.3 + 1.1 * w) - 0.4 * (0.3 * w + 1.1 * (w.square() + 0.2))
    by_hand = 0.5 * 3.0 * float((weight * (rho - w).square()).sum() / weight.sum())
    assert float(infinite_risk(task, U, V)) == pytest.approx(by_hand, rel=1e-12)


@BOTH
def test_block_risk_is_theorys(task: LinearRegression, generator: torch.Generator) -> None:
    """R = ½ tr((bΣA − I) Σ_q (bΣA − I)ᵀ P), as part of the full risk; the noise does not enter."""
    A, b = torch.randn(3, 3, generator=generator, dtype=torch.float64), 0.7
    E = b * task.cov @ A - torch.eye(3)
    expected = 0.5 * (E @ task.query_cov @ E.T @ task.vector_cov).trace()
    assert torch.allclose(infinite_risk(task, *Block(A, b).embed()), expected)
    assert torch.allclose(problem(task, Block(A, b)).value_and_gradient(_flat(A, b))[0], expected)


@BOTH
def test_block_gradient_is_autograds(task: LinearRegression, generator: torch.Generator) -> None:
    A, b = torch.randn(3, 3, generator=generator, dtype=torch.float64), -0.7
    parts = problem(task, Block(A, b))
    theta = parts.start.requires_grad_(True)
    U = torch.nn.functional.pad(theta[:-1].reshape(3, 3), (0, 1, 0, 1))
    V = torch.nn.functional.pad(theta[-1:, None], (3, 0, 3, 0))
    (gradient,) = torch.autograd.grad(infinite_risk(task, U, V), theta)
    assert torch.allclose(parts.value_and_gradient(theta.detach())[1], gradient)


def test_theorys_flow_equations(generator: torch.Generator) -> None:
    """For w ~ N(0, I) and Σ_q = Σ: Ȧ = bΣ² − b²Σ²AΣ, ḃ = tr(AᵀΣ²) − b tr(AᵀΣ²AΣ)."""
    A, b, S = torch.randn(3, 3, generator=generator, dtype=torch.float64), 0.7, PLAIN.cov
    velocity = -problem(PLAIN, Block(A, b)).value_and_gradient(_flat(A, b))[1]
    assert torch.allclose(velocity[:-1].reshape(3, 3), b * S @ S - b**2 * S @ S @ A @ S)
    assert torch.allclose(velocity[-1], (A.T @ S @ S).trace() - b * (A.T @ S @ S @ A @ S).trace())


@pytest.mark.parametrize("task", [Classification(2), MixtureDenoising(2)], ids=repr)
def test_sampled_risk_is_the_average_over_laws(task: InContextTask, generator: torch.Generator) -> None:
    """Against one head and one law at a time, on the first of the fixed draws."""
    U, V = random_weights(task.token_dim, generator)[:, 0]
    prompts = al.icl.infinite.fixed_draws(task, torch.float64, torch.device("cpu"))
    few = Prompts(*(part[:20] for part in prompts))
    outputs = [al.Head(U, V)(task.prompt_law(w))(x) for w, x in zip(few.vector, few.query, strict=True)]
    assert torch.allclose(infinite_predictions(task, U, V, few), task.read(torch.stack(outputs)))
    everything = task.risk(infinite_predictions(task, U, V, prompts), prompts.target).mean()
    assert torch.allclose(infinite_risk(task, U, V), everything)


# --- the flow ------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", [None, 1])
def test_balanced_flow_reaches_the_closed_form_end(task: LinearRegression, seed: int | None) -> None:
    start = balanced(task, 0.2, seed)
    path = flow(task, start)
    inverse = torch.linalg.inv(task.cov)
    b = float(inverse.square().sum()) ** 0.25  # tr(Σ⁻²)^{1/4}
    assert start.conserved == pytest.approx(0, abs=1e-15)
    assert path.stopped == "‖∇R‖ ≤ 1e-07"
    assert float(path.b[-1]) == pytest.approx(b, rel=1e-6)
    assert torch.allclose(path.A[-1], inverse / b, atol=1e-5)
    assert float(path.risk[-1]) < 1e-11
    assert path.drift is not None
    assert path.drift < 1e-6
    assert bool((path.risk.diff() <= 0).all())


def test_unbalanced_flow_ends_on_its_leaf() -> None:
    start = Block(0.8 * torch.eye(3, dtype=torch.float64), 0.1)
    path = flow(GENERAL, start)
    end = endpoint(GENERAL, start.conserved)
    assert end.conserved == pytest.approx(start.conserved, rel=1e-12)
    assert float(path.b[-1]) == pytest.approx(end.b, rel=1e-6)
    assert torch.allclose(path.A[-1], end.A, atol=1e-5)


def test_drift_tells_of_loose_tolerances() -> None:
    loose = flow(PLAIN, balanced(PLAIN), rtol=1e-3, atol=1e-3, gradient_norm=1e-2).drift
    assert loose is not None
    assert loose > 1e-5


def test_full_flow_from_a_block_is_the_block_flow() -> None:
    start, times = balanced(GENERAL, 0.3, 2), [0.5, 2.0, 8.0]
    block, full = flow(GENERAL, start, times=times), flow(GENERAL, start.embed(), times=times)
    assert (block.form, full.form) == ("block (A, b)", "full (U, V)")
    assert torch.allclose(block.U, full.U, atol=1e-7)
    assert torch.allclose(block.V, full.V, atol=1e-7)


def test_full_flow_keeps_its_quantity(generator: torch.Generator) -> None:
    U, V = random_weights(4, generator)[:, 0]
    path = flow(GENERAL, (U, V), times=[0.5, 1.0, 4.0])
    assert path.drift is not None
    assert path.drift < 1e-7
    assert torch.equal(path.U[:, :, -1], U[:, -1].expand(3, -1))  # the query's last coordinate is 0


def test_flow_by_small_steps() -> None:
    """Independent of the solver: Euler steps of 1e-4 come within their own error of the flow."""
    start = balanced(GENERAL, 0.3)
    euler = descend(GENERAL, start, step_size=1e-4, steps=10_000, record_every=10_000)
    path = flow(GENERAL, start, times=[1.0])
    assert float((euler.U[-1] - path.U[-1]).abs().max()) < 2e-4


def test_valley_at_infinity() -> None:
    """Along v₂ → 0 with u₂ = v₁/(v₁ᵀΣv₁) and U₁ = Σ⁻¹(I − Σv₁u₂ᵀ)/v₂ the full risk falls like v₂², to 0."""
    S, v1 = GENERAL.cov, torch.tensor([0.3, -0.5, 0.7], dtype=torch.float64)
    u2, ratios = v1 / (v1 @ S @ v1), []
    for v2 in (1e-1, 1e-2, 1e-3):
        U, V = torch.zeros(2, 4, 4, dtype=torch.float64)
        U[:3, :3] = torch.linalg.inv(S) @ (torch.eye(3) - torch.outer(S @ v1, u2)) / v2
        U[3, :3], V[3, :3], V[3, 3] = u2, v1, v2
        ratios.append(float(infinite_risk(GENERAL, U, V)) / v2**2)
    assert ratios[1:] == pytest.approx(ratios[:-1], rel=1e-6)


def test_flow_of_a_sampled_task_goes_down() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    path = flow(Classification(2), (0.1 * eye, 0.1 * eye), times=[0.0, 1.0, 10.0])
    assert bool((path.risk.diff() < 0).all())
    assert path.conserved is None
    assert path.drift is None
    assert "4,096 fixed draws" in path.method


# --- stationary points ---------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("conserved", [0.0, 0.3, -0.3])
def test_stationary_points(task: LinearRegression, conserved: float) -> None:
    points = stationary_points(task, conserved)
    assert len(points) == (2 if conserved < 0 else 3)
    for point in points:
        gradient = problem(task, point.block).value_and_gradient(_flat(*point.block))[1]
        assert float(gradient.norm()) < 1e-12
        assert point.block.conserved == pytest.approx(conserved, abs=1e-12)
        if point.kind == "minimum":
            assert point.risk < 1e-25
            assert point.least_curvature > -1e-10  # flat along (A/c, cb)
        else:
            assert point.risk == pytest.approx(0.5 * float((task.query_cov @ task.vector_cov).trace()))
            assert point.least_curvature < -0.1


def test_endpoint_without_cancellation() -> None:
    task = LinearRegression(4)
    for c in (-1e8, 1e8):
        end = endpoint(task, c)
        assert float(torch.linalg.matrix_norm(end.A)) * end.b == pytest.approx(2.0, rel=1e-12)
        assert end.conserved == pytest.approx(c, rel=1e-12)
    assert set(stationary_points(task)[0].to_dict()) == {"A", "b", "risk", "kind", "least_curvature"}


# --- plain descent -------------------------------------------------------------------------------------


def test_descent_ends_near_the_flow_and_records_what_is_asked() -> None:
    path = descend(PLAIN, balanced(PLAIN), step_size=0.02, steps=1001, record_every=100)
    assert path.times.tolist() == pytest.approx([0.02 * k for k in (*range(0, 1001, 100), 1001)])
    assert float(path.risk[-1]) < 1e-4
    assert path.stopped == "1001 steps were made"


def test_descent_by_hand() -> None:
    """One step: θ − step ∇R."""
    start = balanced(GENERAL, 0.3)
    path = descend(GENERAL, start, step_size=0.1, steps=1)
    gradient = problem(GENERAL, start).value_and_gradient(_flat(*start))[1]
    assert torch.allclose(path.A[-1], start.A - 0.1 * gradient[:-1].reshape(3, 3))
    assert float(path.b[-1]) == pytest.approx(start.b - 0.1 * float(gradient[-1]))


def test_divergence_names_the_step_and_the_norm() -> None:
    task = LinearRegression(3)
    with pytest.raises(
        Diverged, match=r"diverged at step 3 of 1000: the weights' norm is 9.93e\+08"
    ) as caught:
        descend(task, balanced(task), step_size=50, steps=1000)
    assert caught.value.step == 3
    assert caught.value.norm > 1e6


class LaplaceTask(InContextTask):
    """Tokens whose cumulant generating function is finite for scores below 1 alone."""

    token_dim = 1
    law = al.Laplace(1)

    def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts:
        tokens = self.law.sample(batch * length, generator=generator).tokens.reshape(batch, length, 1)
        query = torch.rand(batch, 1, generator=generator, dtype=dtype)
        return Prompts(tokens, query, 10 * query[:, 0], query)

    def prompt_law(self, vector: torch.Tensor) -> al.Measure:
        return self.law

    def tilted_mean(self, vectors: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return self.law.tilted_mean(a)


def test_no_infinite_prompt_on_the_path() -> None:
    start = ([[0.9]], [[0.1]])
    with pytest.raises(LimitDoesNotExist, match=r"Descent stops at step \d+ of 100: No limit: Laplace"):
        descend(LaplaceTask(), start, step_size=0.5, steps=100)
    with pytest.raises(
        LimitDoesNotExist, match=r"leaves the set of .* at time t = [\d.e-]+: No limit: Laplace"
    ):
        flow(LaplaceTask(), ([[1.5]], [[0.1]]))


# --- what people pass and get --------------------------------------------------------------------------


@pytest.mark.usefixtures("as_users_run")
def test_bad_input() -> None:
    start, one = balanced(PLAIN), torch.eye(4, dtype=torch.float64)
    with pytest.raises(InputError, match="theta0 must be a pair"):
        flow(PLAIN, (one, one, one))
    with pytest.raises(InputError, match=r"A must be 3×3 .* got shape \(2, 2\)"):
        flow(PLAIN, (torch.eye(2), 1.0))
    with pytest.raises(InputError, match=r"V must be 4×4 .* got shape \(3, 3\)"):
        flow(PLAIN, (one, torch.eye(3)))
    with pytest.raises(InputError, match=r"block form \(A, b\) is for LinearRegression, got Classification"):
        flow(Classification(3), start)
    with pytest.raises(InputError, match="A balanced start is for LinearRegression"):
        flow(Classification(3))
    with pytest.raises(InputError, match="times must increase"):
        flow(PLAIN, start, times=[2.0, 1.0])
    with pytest.raises(InputError, match="solver must be one of LSODA, DOP853, BDF, Radau, got 'Euler'"):
        flow(PLAIN, start, solver="Euler")
    with pytest.raises(InputError, match="rtol must be a finite number above 0"):
        flow(PLAIN, start, rtol=0)
    with pytest.raises(InputError, match="step_size must be a finite number above 0"):
        descend(PLAIN, start, step_size=-1, steps=3)
    with pytest.raises(InputError, match=r"U must have shape \(\*models, 4, 4\)"):
        infinite_risk(PLAIN, torch.eye(3), torch.eye(3))
    with pytest.raises(InputError, match="conserved must be a finite number"):
        endpoint(PLAIN, float("nan"))
    with pytest.raises(InputError, match="endpoint is for LinearRegression"):
        endpoint(Classification(3))  # type: ignore[arg-type]


def test_path_as_data_and_figure() -> None:
    path = flow(PLAIN, balanced(PLAIN))
    plain = path.to_dict()
    assert plain["drift"] == path.drift
    assert len(plain["times"]) == len(plain["risk"]) == len(plain["U"])
    assert repr(path).startswith("WeightPath(block (A, b), t = 0 … ")
    assert isinstance(path.end, Weights)
    assert path.end_block.b == float(path.b[-1])
    labels = path.plot().axes[0].get_legend_handles_labels()[1]
    assert "distance of (A, b) to the closed-form end" in labels
    assert path.plot().axes[0].get_xlabel() == "training time (step size × steps)"


def _flat(A: torch.Tensor, b: float) -> torch.Tensor:
    return torch.cat([A.flatten(), torch.tensor([b], dtype=torch.float64)])


def test_long_prompts_tell_how_far_they_are_and_nan_is_refused() -> None:
    task, eye, told = LinearRegression(1), torch.eye(2, dtype=torch.float64), []
    finite_risk(task, Weights(eye, eye), [10, 2**20], prompts=3, progress=lambda *done: told.append(done))
    assert told[-1] == (3, 3)
    assert len(told) > 1
    with pytest.raises(InputError, match="Weights would hold nan: clean or drop"):
        Weights(eye * torch.nan, eye)
    with pytest.raises(InputError, match=r"as \(T,\) numbers, got a tensor of shape \(2, 2, 2\)"):
        flow(task, endpoint(task), times=torch.zeros(2, 2, 2))
