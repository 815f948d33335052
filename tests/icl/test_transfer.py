"""Risks at finite prompt length, and the infinite-prompt solution in place of training."""

import math

import pytest
import torch
from scipy import integrate, optimize

import attnlimit as al
from attnlimit.errors import InputError, NotKnown
from attnlimit.icl import (
    Block,
    Classification,
    Evaluation,
    LinearRegression,
    MixtureDenoising,
    Optimizer,
    Start,
    ar1,
    endpoint,
    finite_risk,
    infinite_risk,
    long_prompt_constant,
    train,
    transfer,
    tuned,
)

GENERAL = LinearRegression(3, cov=ar1(3, 0.5), query_cov=[1.0, 2.0, 0.5], vector_cov=ar1(3, -0.3), noise=0.2)
OTHER = Block(0.4 * torch.tensor([[1.0, -2.0, 0.3], [0.5, 0.2, -1.0], [0.0, 1.0, 0.7]]).double(), 1.3)


TRAINING = {"optimizer": Optimizer(steps=400, lr=0.2, batch=64), "start": Start(init=0.3)}


@pytest.mark.parametrize("block", [endpoint(GENERAL), OTHER], ids=["solution", "any"])
def test_exact_finite_risk_against_monte_carlo(block: Block) -> None:
    """No prompt drawn against 20,000 drawn, at five lengths, to five standard errors."""
    lengths = [1, 2, 5, 20, 100]
    exact = finite_risk(GENERAL, block, lengths)
    drawn = finite_risk(GENERAL, block.embed(), lengths, prompts=20_000, generator=1)
    spread = torch.hypot(exact.standard_error, drawn.standard_error)
    assert bool(((exact.risk - drawn.risk).abs() <= 5 * spread).all())
    assert bool((exact.standard_error < 0.1 * drawn.standard_error).all())
    assert "exact over prompts" in exact.method
    assert "Monte Carlo" in drawn.method


def test_finite_risk_tends_to_the_infinite_one() -> None:
    end = finite_risk(GENERAL, OTHER, [10**12])
    truth = float(infinite_risk(GENERAL, *OTHER.embed()))
    assert float(end.risk[0]) == pytest.approx(truth, abs=5 * float(end.standard_error[0]) + 1e-4)


def test_one_token_by_hand() -> None:
    """L = 1 predicts b y, independent of the target: ½(b²(tr ΣP + noise) + tr Σ_qP)."""
    P = GENERAL.vector_cov
    total = OTHER.b**2 * (float((GENERAL.cov @ P).trace()) + GENERAL.noise)
    by_hand = 0.5 * (total + float((GENERAL.query_cov @ P).trace()))
    assert float(finite_risk(GENERAL, OTHER, 1).risk[0]) == pytest.approx(by_hand, rel=1e-3)


def test_needed_length_is_the_least() -> None:
    task = LinearRegression(3)
    found = transfer(task, rel_error=0.1)
    assert found.needed is not None
    for length, enough in ((found.needed - 1, False), (found.needed, True)):
        risk = float(finite_risk(task, endpoint(task), length).risk[0])
        assert (risk - float(task.floor(length)) <= 0.1 * 0.5) == enough
    assert found.zero_risk == pytest.approx(0.5)
    assert torch.equal(found.weights.U, endpoint(task).embed().U)
    assert found.tuned is None
    assert bool((found.excess > 0).all())


def test_tuning_beats_the_solution_and_not_the_floor() -> None:
    task = LinearRegression(3, cov=ar1(3, 0.5))
    found = transfer(task, 50)
    assert found.tuned is not None
    assert found.tuned_risk is not None
    assert float(task.floor(50)) < found.tuned_risk < 0.95 * found.at(50)
    drawn = finite_risk(task, found.tuned.embed(), 50, prompts=20_000, generator=2)
    assert abs(float(drawn.risk[0]) - found.tuned_risk) <= 5 * float(drawn.standard_error[0])


@pytest.mark.parametrize("length", [1, 7, 40])
def test_the_best_linear_head_against_prompts(length: int) -> None:
    """The closed form against 200,000 prompts to five standard errors, and least squares on them finds no better one: over
    9 coefficients it gains a fraction 9/200,000 of the risk, here allowed twenty times that."""
    block, risk = tuned(GENERAL, length, "linear")
    prompts = GENERAL.draw(200_000, length, 3)
    x, y = prompts.tokens[..., :-1], prompts.tokens[..., -1:]
    h, query = (x * y).mean(-2), prompts.query[:, :-1]
    losses = GENERAL.risk(block.b * ((h @ block.A) * query).sum(-1), prompts.target)
    assert abs(float(losses.mean()) - risk) <= 5 * float(losses.std()) / 200_000**0.5
    features = (h[:, :, None] * query[:, None, :]).flatten(1)
    fitted = torch.linalg.lstsq(features, prompts.target[:, None]).solution
    best = GENERAL.risk((features @ fitted)[:, 0], prompts.target).mean()
    assert float(losses.mean()) * (1 - 20 * 9 / 200_000) <= float(best) <= float(losses.mean())


def test_tuned_weights_are_what_training_finds() -> None:
    """Both attentions trained from a small random start, against exact risks found without a prompt."""
    task, lengths = LinearRegression(2, noise=0.1), [5, 20]
    for attention in ("softmax", "linear"):
        run = train(
            task,
            lengths,
            attention=attention,
            optimizer=Optimizer(
                steps=1500, lr=0.2, schedule="cosine", variance_reduction="control", batch=64
            ),
            evaluation=Evaluation(reports=1, prompts=100_000),
            start=Start(init=0.3),
        )
        for m, length in enumerate(lengths):
            exact = tuned(task, length, attention)[1]
            assert (
                abs(float(run.risk[-1, 0, m]) / exact - 1)
                < 0.01 + 4 * float(run.risk_error[-1, 0, m]) / exact
            )


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    "find", [lambda name: tuned(GENERAL, 5, name), lambda name: long_prompt_constant(GENERAL, name)]
)
def test_unknown_attention_is_not_tuned(find) -> None:
    with pytest.raises(InputError, match="attention must be one of softmax, opposite, linear, got 'relu'"):
        find("relu")


def test_long_prompts_have_the_constant_of_the_exact_risk() -> None:
    for task in (LinearRegression(5), LinearRegression(5, ar1(5, 0.5), noise=0.4)):
        found = 10**6 * tuned(task, 10**6)[1]
        assert found == pytest.approx(long_prompt_constant(task), rel=2e-3)
    found = 10**9 * tuned(GENERAL, 10**9, "linear")[1]
    assert found == pytest.approx(long_prompt_constant(GENERAL, "linear"), rel=1e-6)


def test_the_long_prompt_constant_by_quadrature() -> None:
    """E e^{x²/(Σb²)}[τb² + Px²] by scipy in one dimension, its least value over b by scipy too."""
    cov, query, P, noise = 2.0, 0.7, 1.5, 0.3
    tau = cov * P + noise

    def risk(b: float) -> float:
        def at(x: float) -> float:
            return math.exp(x**2 / cov / b**2 - x**2 / (2 * query)) * (tau * b**2 + P * x**2)

        return integrate.quad(at, -60, 60, limit=500)[0] / math.sqrt(2 * math.pi * query) / 2

    least = optimize.minimize_scalar(risk, bounds=(0.9, 6.0), method="bounded", options={"xatol": 1e-8})
    task = LinearRegression(1, cov, query_cov=query, vector_cov=P, noise=noise)
    assert long_prompt_constant(task) == pytest.approx(least.fun, rel=1e-7)


@pytest.mark.parametrize("dim", [1, 5, 60])
def test_the_price_of_one_head_where_noise_outweighs_the_signal(dim: int) -> None:
    task = LinearRegression(dim, ar1(dim, 0.3), vector_cov=1e-9, noise=1.0)
    price = long_prompt_constant(task) / long_prompt_constant(task, "linear")
    assert price == pytest.approx((1 + 2 / dim) ** (dim / 2 + 1), rel=1e-6)


def test_unbalanced_start() -> None:
    task = LinearRegression(2)
    start = Block(torch.eye(2, dtype=torch.float64), 0.1)
    found = transfer(task, theta0=start, rel_error=0.2)
    assert torch.allclose(found.weights.V, endpoint(task, start.conserved).embed().V)


def test_checked_by_training() -> None:
    """At the length needed, SGD from a balanced start gains no more than rel_error, and stays above the floor."""
    task = LinearRegression(2)
    found = transfer(task, rel_error=0.1)
    check = found.check(**TRAINING)
    assert check.length == found.needed
    assert check.holds
    assert check.gap < 0.1
    assert min(check.trained) < 0.3 * found.zero_risk  # it did train
    assert min(check.trained) > 0.5 * float(task.floor(check.length))
    assert set(check.to_dict()) >= {"gap", "gap_error", "holds", "transferred", "trained"}


@pytest.mark.usefixtures("as_users_run")
def test_a_check_of_no_tokens_is_refused_and_progress_is_told() -> None:
    found, told = transfer(LinearRegression(2), 20), []
    with pytest.raises(InputError, match="length must be a whole number of at least 1, got 0"):
        found.check(length=0)
    check = found.check(optimizer=Optimizer(steps=60, batch=4), progress=lambda *now: told.append(now))
    assert check.length == 20
    assert told[-1] == (60, 60)


def test_training_gains_more_where_prompts_are_short() -> None:
    """The control: well below the length needed, training does gain more than rel_error."""
    task = LinearRegression(2)
    check = transfer(task, rel_error=0.1).check(3, **TRAINING)
    assert not check.holds


def test_another_task() -> None:
    task = MixtureDenoising(2, components=2)
    eye = torch.eye(2, dtype=torch.float64)
    found = transfer(task, theta0=(3.5 * eye, eye))
    assert found.needed in found.curve.lengths
    assert "known centres" in found.floor_kind
    assert found.tuned is None
    assert float(found.curve.risk[-1]) == pytest.approx(float(infinite_risk(task, *found.weights)), rel=0.1)


def test_as_data_and_figure() -> None:
    found = transfer(LinearRegression(2), 20)
    plain = found.to_dict()
    assert plain["needed"] == found.needed
    assert plain["tuned"]["b"] > 0
    assert repr(found).startswith(
        "Transfer(LinearRegression(d = 2, noise variance 0.1): within 0.05 of any trained model"
    )
    axes = found.plot().axes[0]
    assert axes.get_xlabel() == "prompt length L (tokens)"
    assert "predicting 0" in axes.get_legend_handles_labels()[1]


def test_bad_input() -> None:
    task = LinearRegression(2)
    with pytest.raises(InputError, match="length must be a whole number of at least 1, got 0"):
        transfer(task, 0)
    with pytest.raises(InputError, match="rel_error must be a finite number above 0"):
        transfer(task, rel_error=0)
    with pytest.raises(InputError, match="transfer without theta0 is for LinearRegression"):
        transfer(Classification(2))
    with pytest.raises(InputError, match="lengths must be a whole number of at least 1, got 0"):
        finite_risk(task, endpoint(task), [0])
    with pytest.raises(InputError, match="tuned is for LinearRegression"):
        tuned(Classification(2), 10)
    assert al.icl.transfer is transfer


# --- two opposite heads -------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["opposite", "linear"])
def test_exact_risk_equals_that_of_drawn_prompts(attention: str) -> None:
    """Six comparisons, each beyond 5 standard errors with probability 6e-7; one head has another risk, at the same weights."""
    lengths = [3, 10, 40]
    for block in (endpoint(GENERAL), Block(endpoint(GENERAL).A / 3, 3 * endpoint(GENERAL).b)):
        exact = finite_risk(GENERAL, block, lengths, attention=attention)
        drawn = finite_risk(GENERAL, block.embed(), lengths, attention=attention, prompts=20_000, generator=5)
        assert bool(((exact.risk - drawn.risk).abs() <= 5 * drawn.standard_error).all())
        one_head = finite_risk(GENERAL, block, lengths)
        assert bool(((one_head.risk - drawn.risk).abs() > 5 * drawn.standard_error).any())


def test_opposite_heads_of_small_scores_are_linear_attention_with_one_token_less() -> None:
    """b → ∞ with bA fixed: (1/L) Σ y_i(x_i − x̄)ᵀbA x_q, and L−1 centred Gaussian tokens are L−1 independent ones."""
    for length in (2, 5, 300):
        best, least = tuned(GENERAL, length - 1, "linear") if length > 2 else (endpoint(GENERAL), None)
        flat = Block(best.A * length / (length - 1) / 1e4, best.b * 1e4)
        found = float(finite_risk(GENERAL, flat, length, attention="opposite").risk[0])
        exact = finite_risk(GENERAL, best, length - 1, attention="linear").risk[0]
        assert found == pytest.approx(float(exact), rel=2e-3)  # quasi-random queries
        assert least is None or least == pytest.approx(float(exact), rel=1e-12)


def test_two_opposite_heads_pay_no_price() -> None:
    constant = long_prompt_constant(GENERAL, "opposite")
    assert constant == long_prompt_constant(GENERAL, "linear") < long_prompt_constant(GENERAL) / 2
    assert 10**5 * tuned(GENERAL, 10**5, "opposite")[1] == pytest.approx(constant, rel=2e-3)


def test_opposite_heads_need_centred_prompts() -> None:
    with pytest.raises(
        NotKnown, match="Two opposite heads have the infinite-prompt model of one where prompts are centred"
    ):
        train(MixtureDenoising(3), 5, attention="opposite")
