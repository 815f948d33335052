"""Tasks draw what their laws say, and their floors are the risks of their Bayes predictors."""

import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, NotKnown
from attnlimit.icl import (
    Classification,
    Floor,
    InContextTask,
    LinearRegression,
    MixtureDenoising,
    Prompts,
    ar1,
)

TASKS = [
    LinearRegression(3, cov=ar1(3, 0.5), noise=0.3, query_cov=[1.0, 2.0, 0.5], vector_cov=ar1(3, -0.3)),
    Classification(3, cov=ar1(3, 0.5), vector_cov=0.7),
    Classification(2, loss="squared"),
    MixtureDenoising(3, components=4, spread=0.1),
]
FALSE_ALARM = 5.0  # standard errors: about 6e-7 for a normal statistic


def within(estimates: torch.Tensor, truth: torch.Tensor | float) -> None:
    """Means over the first axis agree with the truth to FALSE_ALARM standard errors, entry by entry."""
    error = (estimates.mean(0) - truth).abs()
    assert bool((error <= FALSE_ALARM * estimates.std(0) / len(estimates) ** 0.5 + 1e-12).all())


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_shapes_and_dtype(task: InContextTask) -> None:
    prompts = task.draw(7, 4, 0, torch.float32)
    assert prompts.tokens.shape == (7, 4, task.token_dim)
    assert prompts.query.shape == (7, task.token_dim)
    assert {part.dtype for part in prompts} == {torch.float32}
    assert task.risk(task.read(prompts.query), prompts.target).shape == (7,)


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_draws_repeat_from_a_seed(task: InContextTask) -> None:
    for one, other in zip(task.draw(3, 5, 1), task.draw(3, 5, 1), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_tokens_have_the_prompt_law(task: InContextTask) -> None:
    """Mean and second moment of the tokens of a few long prompts, against the law given the task vector."""
    prompts = task.draw(4, 40_000, 2)
    for tokens, vector in zip(prompts.tokens, prompts.vector, strict=True):
        law = task.prompt_law(vector)
        within(tokens, law.mean)
        within(tokens[:, :, None] * tokens[:, None, :], law.second_moment())


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_batched_tilted_mean_is_the_laws(task: InContextTask, generator: torch.Generator) -> None:
    prompts = task.draw(5, 1, generator)
    a = torch.randn(2, 5, task.token_dim, generator=generator, dtype=torch.float64)
    assert torch.allclose(
        task.tilted_mean(prompts.vector, a), InContextTask.tilted_mean(task, prompts.vector, a)
    )


@pytest.mark.parametrize("task", [t for t in TASKS if hasattr(t, "bayes")], ids=repr)
@pytest.mark.parametrize("length", [1, 2, 20])
def test_floor_is_the_risk_of_the_bayes_predictor(task: InContextTask, length: int) -> None:
    prompts = task.draw(30_000, length, 3)
    risks = task.risk(task.bayes(prompts), prompts.target)  # type: ignore[attr-defined]
    floor = task.floor(length)
    spread = (float(risks.var()) / len(risks) + floor.standard_error**2) ** 0.5
    assert abs(float(risks.mean()) - float(floor)) <= FALSE_ALARM * spread


@pytest.mark.parametrize("length", [1, 2, 3, 10])
def test_noiseless_ridge(length: int) -> None:
    """Without noise what is left is the part of w outside the span of the tokens: ½(1 − L/d) tr I/d when isotropic."""
    task = LinearRegression(4, noise=0)
    floor = task.floor(length)
    exact = 0.5 * max(0.0, 1 - length / 4)
    assert abs(floor.value - exact) <= FALSE_ALARM * floor.standard_error + 1e-12
    prompts = task.draw(4000, length, 4)
    within(task.risk(task.bayes(prompts), prompts.target), exact)


def test_scalar_ridge_floor_against_quadrature() -> None:
    """d = 1, L = 2: XᵀX is exponential, so ½ E 1/(1 + XᵀX/noise) is a one-dimensional integral."""
    t = (torch.arange(400_000, dtype=torch.float64) + 0.5) * 1e-4
    exact = float((0.5 * torch.exp(-t / 2) / (1 + t / 0.3)).sum() * 1e-4) / 2
    floor = LinearRegression(1, noise=0.3).floor(2)
    assert abs(floor.value - exact) <= FALSE_ALARM * floor.standard_error


def test_denoising_floor_bounds_every_denoiser() -> None:
    task = MixtureDenoising(3, spread=0.05)
    prompts = task.draw(20_000, 1, 5)
    floor = task.floor(10)
    for share in (0.2, 0.5, 0.9):
        shrunk = task.risk(share * prompts.query, prompts.target)
        assert float(shrunk.mean()) > floor.value
    assert "lower bound" in floor.kind


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_classification_head_is_affine_plus_sigmoid(loss: str, generator: torch.Generator) -> None:
    task = Classification(3, cov=ar1(3, 0.6), loss=loss)
    U, V = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)
    m = torch.randn(3, generator=generator, dtype=torch.float64)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    head = al.Head(U, V)(task.prompt_law(m))(torch.nn.functional.pad(x, (0, 1)))
    slope, height, gate = task.affine_plus_sigmoid(U, V, m)
    assert torch.allclose(task.read(head), x @ slope + height * (2 * torch.sigmoid(x @ gate) - 1))


def test_classification_head_can_be_the_linear_discriminant(generator: torch.Generator) -> None:
    """U = diag(Σ⁻¹, 0), V = diag(0, 1) gives E[y | x] = 2σ(2mᵀΣ⁻¹x) − 1, from the densities of the two classes."""
    task = Classification(3, cov=ar1(3, 0.6), loss="squared")
    m = torch.randn(3, generator=generator, dtype=torch.float64)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    classes = [torch.distributions.MultivariateNormal(sign * m, task.cov).log_prob(x) for sign in (1, -1)]
    posterior = torch.stack(classes).softmax(0)
    head = al.Head(*task.discriminant())(task.prompt_law(m))
    assert torch.allclose(task.read(head(torch.nn.functional.pad(x, (0, 1)))), posterior[0] - posterior[1])
    floor = al.icl.infinite_risk(task, *task.discriminant())
    prompts = al.icl.infinite.fixed_draws(task, torch.float64, torch.device("cpu"))
    losses = task.risk(al.icl.infinite_predictions(task, *task.discriminant(), prompts), prompts.target)
    spread = float(losses.std()) / len(losses) ** 0.5
    assert abs(float(floor) - task.floor(10**9).value) <= FALSE_ALARM * spread


def test_denoising_head_is_best_for_vanishing_spread(generator: torch.Generator) -> None:
    task = MixtureDenoising(3, spread=1e-9, noise=0.3)
    prompts = task.draw(20, 1, generator)
    eye = torch.eye(3, dtype=torch.float64)
    head = al.icl.infinite_predictions(task, eye / (task.spread + task.noise), eye, prompts)
    assert torch.allclose(head, task.best(prompts.vector, prompts.query), atol=1e-7)


def test_losses() -> None:
    """Squared is ½(p − t)²; logistic log(1 + e^{−tp})."""
    squared, logistic = LinearRegression(2), Classification(2)
    p, t = torch.tensor([0.5, -2.0]), torch.tensor([1.0, -1.0])
    assert torch.allclose(squared.risk(p, t), torch.tensor([0.125, 0.5]))
    assert torch.allclose(logistic.risk(p, t), torch.log(1 + torch.exp(-t * p)))


def test_ar1() -> None:
    cov = ar1(4, -0.5)
    assert torch.equal(cov[0], torch.tensor([1.0, -0.5, 0.25, -0.125], dtype=torch.float64))
    with pytest.raises(InputError, match="strictly between −1 and 1, got 1"):
        ar1(3, 1)


@pytest.mark.parametrize("kind", [LinearRegression, Classification])
def test_bad_covariances(kind: type[InContextTask]) -> None:
    with pytest.raises(InputError, match=r"cov is not positive definite: its least eigenvalue is -1"):
        kind(cov=[[1.0, 2.0], [2.0, 1.0]])
    for far in (1e60, 1e300, 1e-300, 0.0):  # the flow hung there, and the tuned head ended raw
        with pytest.raises(
            InputError, match=r"cov has variances up to .*choose units in which they lie between"
        ):
            kind(2, cov=far)
    with pytest.raises(InputError, match=r"vector_cov is not positive definite: its least eigenvalue is 0"):
        kind(2, vector_cov=[1.0, 0.0])
    with pytest.raises(InputError, match="cov is not symmetric"):
        kind(cov=[[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(InputError, match="cov is a number, which tells no dimension"):
        kind()
    with pytest.raises(
        InputError, match=r"cov must be a number, a vector of length 3 or a 3×3 matrix, got shape \(2,\)"
    ):
        kind(3, cov=[1.0, 1.0])


@pytest.mark.usefixtures("as_users_run")
def test_other_bad_input() -> None:
    task = LinearRegression(2)
    with pytest.raises(InputError, match="length must be a whole number of at least 1, got 0"):
        task.draw(3, 0, 0)
    with pytest.raises(InputError, match="length must be a whole number of at least 1, got 0"):
        task.floor(0)
    with pytest.raises(InputError, match="batch must be a whole number"):
        task.draw(0, 3, 0)
    with pytest.raises(InputError, match="noise is a variance, a finite number of at least 0, got -1"):
        LinearRegression(2, noise=-1)
    with pytest.raises(InputError, match="loss must be one of squared, logistic, got 'hinge'"):
        Classification(2, loss="hinge")
    with pytest.raises(InputError, match="spread must be a finite number above 0"):
        MixtureDenoising(2, spread=0)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_sizes_and_dtypes_that_do_not_fit_are_named(task: InContextTask) -> None:
    """Of whatever takes task vectors, points or weights."""
    prompts, D = task.draw(5, 4, 0), task.token_dim
    other = LinearRegression(7).draw(5, 4, 0)
    one = torch.eye(D, dtype=torch.float64)
    large = torch.eye(9, dtype=torch.float64)
    takes = [getattr(task, name) for name in ("tilted_mean", "best") if hasattr(task, name)]
    for take in takes:
        with pytest.raises(
            InputError, match=r"vectors must have shape \(…, \d+\), got \(5, 1\): the last axis is"
        ):
            take(prompts.vector[:, :1], prompts.query)
        with pytest.raises(
            InputError, match=rf"(a|query) must have shape \(…, {D}\), got \(5, 1\): the last axis"
        ):
            take(prompts.vector, prompts.query[:, :1])
        with pytest.raises(
            InputError, match=r"is torch.float32 on cpu, but the rest is torch.float64 on cpu: conv"
        ):
            take(prompts.vector, prompts.query.float())
    with pytest.raises(InputError, match=rf"U must have shape \(…, {D}\), got \(9, 9\)"):
        al.icl.infinite_predictions(task, large, large, prompts)
    with pytest.raises(InputError, match=rf"query must have shape \(…, {D}\), got \(5, 8\)"):
        al.icl.infinite_predictions(task, one, one, other)
    if hasattr(task, "bayes"):
        with pytest.raises(InputError, match=rf"tokens must have shape \(…, {D}\), got \(5, 4, 8\)"):
            task.bayes(other)
    if isinstance(task, LinearRegression):
        with pytest.raises(InputError, match=r"V is torch.float32 on cpu, but the rest is torch.float64"):
            task.exact_risk(one, one.float())
        for takes_vectors in (task.prompt_root, task.prompt_cov):
            with pytest.raises(InputError, match=r"vectors must have shape \(…, 3\), got \(5, 8\)"):
                takes_vectors(other.query)
    if isinstance(task, Classification):
        with pytest.raises(InputError, match=rf"U must have shape \(…, {D}\), got \(9, 9\)"):
            task.affine_plus_sigmoid(large, large, prompts.vector[0])


def test_a_task_of_ones_own() -> None:
    """Two methods are enough; what is not given is said."""

    class Mean(InContextTask):
        token_dim = 1

        def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts:
            m = torch.randn(batch, 1, generator=generator, dtype=dtype)
            tokens = m[:, None] + torch.randn(batch, length, 1, generator=generator, dtype=dtype)
            return Prompts(tokens, torch.zeros_like(m), m[:, 0], m)

        def prompt_law(self, vector: torch.Tensor) -> al.Gaussian:
            return al.Gaussian(mean=vector, cov=1.0)

    task = Mean()
    prompts = task.draw(6, 2, 0)
    one = torch.ones(1, 1, dtype=torch.float64)
    assert torch.allclose(al.icl.infinite_predictions(task, one, one, prompts), prompts.target)
    with pytest.raises(NotKnown, match=r"Mean\(1-d tokens, squared loss\) has no floor"):
        task.floor(3)
    task.loss = "cubic"
    with pytest.raises(InputError, match=r"Mean.loss must be one of squared, logistic, got 'cubic'"):
        task.risk(prompts.target, prompts.target)
    assert float(Floor(0.5, 0.0, "exact")) == 0.5
