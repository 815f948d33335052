"""Finite prompts against the infinite one: Jacobians, rates, the exact curve, exact risks, transfer."""

import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, LimitDoesNotExist
from attnlimit.icl import Loss, Trials, ar1, concentration
from attnlimit.icl.concentration import jacobians

LAWS = {
    "gaussian": al.Gaussian(cov=ar1(3, 0.4)),
    "rademacher": al.Rademacher(3),
    "box": al.Box(3, half_width=1.5),
    "mixture": al.Mixture(
        [0.3, 0.7], [al.Gaussian([1.0, 0.0, 0.0], 0.5), al.Gaussian([-0.5, 1.0, 0.0], 0.5)]
    ),
}
A = 0.25 * torch.tensor([[1.0, 0.3, -0.2], [-0.5, 0.8, 0.4], [0.2, -0.6, 1.1]], dtype=torch.float64)
V = torch.tensor([[1.0, -0.5, 0.2], [0.3, 0.7, -1.0]], dtype=torch.float64)


def loss_of(name: str, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    prediction = output if target.shape == output.shape else output[..., -1]
    if name == "squared":
        return (prediction - target).square().sum() / 2
    return torch.log1p(torch.exp(-target * prediction)).sum()


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("finite", [True, False], ids=["tokens", "law"])
def test_jacobians_are_autograds(law: al.Measure, finite: bool, generator: torch.Generator) -> None:
    """Closed forms (C_p, ȳ_p for tokens; ∇²Λ, ∇Λ for laws) against autograd through the map itself."""
    measure = law.sample(7, generator=generator) if finite else law
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    found = jacobians(al.Head(A, V), measure, x)

    def output(A: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return measure.tilted_mean(x @ A.T) @ V.T

    in_A, in_V = torch.autograd.functional.jacobian(output, (A, V))
    assert torch.allclose(found.output, output(A, V))
    assert torch.allclose(in_A, torch.einsum("mik,ml->mikl", found.C, x))
    assert torch.allclose(in_V, torch.einsum("ij,mk->mijk", torch.eye(2, dtype=torch.float64), found.y))


@pytest.mark.parametrize("finite", [True, False], ids=["tokens", "law"])
@pytest.mark.parametrize(("name", "shape"), [("squared", (4,)), ("squared", (4, 2)), ("logistic", (4,))])
def test_loss_gradients_are_autograds(
    name: str, shape: tuple[int, ...], finite: bool, generator: torch.Generator
) -> None:
    law = LAWS["mixture"]
    measure = law.sample(7, generator=generator) if finite else law
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    target = torch.randn(shape, generator=generator, dtype=torch.float64).sign()
    in_A, in_V = jacobians(al.Head(A, V), measure, x).loss_gradients(Loss(name, lambda _: target))
    for i in range(4):  # autograd of one query's loss at a time
        a, v = A.clone().requires_grad_(True), V.clone().requires_grad_(True)
        output = measure.tilted_mean(x[i : i + 1] @ a.T) @ v.T
        expected = torch.autograd.grad(loss_of(name, output, target[i : i + 1]), (a, v))
        assert torch.allclose(in_A[i], expected[0])
        assert torch.allclose(in_V[i], expected[1])


@pytest.mark.parametrize("name", LAWS)
def test_rates_and_exact_curve(name: str) -> None:
    """All laws here have small scores, where every error falls like L^{−1/2}. Intervals at 99.9 %, five quantities and four
    laws: a false alarm in about 2 % of seeds. The exact curve is within 5 standard errors."""
    found = concentration(
        al.Head(A, V),
        LAWS[name],
        [64, 128, 256, 512, 1024],
        trials=Trials(replicates=60, queries=32),
        loss=Loss("logistic", lambda x: x[:, 0].sign()),
        generator=3,
    )
    for quantity in ("output", "A", "V", "loss_A", "loss_V"):
        low, high = found.fit(quantity, level=0.999).interval
        assert low < 0.5 < high
        assert low > 0.25  # a control: half the rate is refused
    outputs = found.errors["output"]
    assert found.exact is not None
    noise = found.exact.standard_error
    spread = outputs.rms_standard_error.hypot(torch.zeros(()).double() if noise is None else noise)
    assert bool(((outputs.rms - found.exact.error).abs() <= 5 * spread).all())
    assert ("population" in found.exact.method) == (name == "box")


def test_queries_of_another_law() -> None:
    """Errors grow with the queries' spread, and the exact curve is that of these queries."""
    wide, narrow = (
        concentration(
            al.Head(A, V),
            LAWS["gaussian"],
            [50, 100, 200],
            trials=Trials(replicates=80, query_law=al.Gaussian(cov=size, dim=3)),
            generator=0,
        )
        for size in (2.0, 0.01)
    )
    for found in (wide, narrow):
        assert found.exact is not None
        outputs = found.errors["output"]
        spread = torch.hypot(outputs.rms_standard_error, found.exact.standard_error)
        assert bool(((outputs.rms - found.exact.error).abs() <= 5 * spread).all())
    assert bool((wide.errors["A"].rms > 2 * narrow.errors["A"].rms).all())
    plain = (V @ LAWS["gaussian"].covariance @ V.T).trace() / torch.tensor(narrow.lengths)
    assert torch.allclose(narrow.exact.error, plain.sqrt(), rtol=0.02)  # no scores: the error of a plain mean


def test_errors_by_hand() -> None:
    """One token of a Rademacher law in one dimension: output ±1, C_p = 0; the limit is tanh(ax) and 1 − tanh²(ax)."""
    law, a = al.Rademacher(1), 0.7
    found = concentration(
        al.Head([[a]], [[2.0]]), law, [1], trials=Trials(replicates=3, queries=5), generator=0, exact=False
    )
    t = torch.tanh(torch.tensor(a, dtype=torch.float64))  # queries are ±1 too
    assert torch.allclose(found.errors["A"].norms, (2 * (1 - t**2)).expand(3, 1))
    possible = {round(2 * float(1 - t), 9), round(2 * float(1 + t), 9)}
    one = concentration(
        al.Head([[a]], [[2.0]]), law, [1], trials=Trials(replicates=20, queries=1), generator=0, exact=False
    )
    assert {round(v, 9) for v in one.errors["output"].norms.flatten().tolist()} == possible
    assert torch.allclose(one.errors["V"].norms, one.errors["output"].norms / 2)
    assert found.exact is None


def test_result_as_data_and_figure() -> None:
    seen = []
    found = concentration(
        al.Head(A),
        LAWS["gaussian"],
        [8, 16, 32],
        trials=Trials(replicates=6),
        generator=0,
        progress=lambda *p: seen.append(p),
    )
    assert seen[-1] == (6, 6)
    plain = found.to_dict()
    assert plain["lengths"] == [8, 16, 32]
    assert set(plain["fits"]) == {"output", "A", "V"}
    assert len(found.rows()) == 3 * 6 * 3
    assert set(found.rows()[0]) == {"quantity", "replicate", "length", "error", "square"}
    assert repr(found).startswith(
        "Concentration(Gaussian(dim=3, full covariance), L = 8 … 32; rms at the end: output "
    )
    axes = found.plot().axes[0]
    assert axes.get_xlabel() == "prompt length L (tokens)"
    assert "output, exact" in axes.get_legend_handles_labels()[1]
    with pytest.raises(InputError, match="No error named 'U': there are output, A, V"):
        found.fit("U")
    with pytest.raises(InputError, match="at least 3 lengths, got 2 of 10 or more tokens"):
        found.fit(from_length=10)


def test_same_seed_same_rows() -> None:
    one, other = (
        concentration(al.Head(A), LAWS["box"], [4, 8], trials=Trials(replicates=3), generator=5, exact=False)
        for _ in "ab"
    )
    assert one.rows() == other.rows()


@pytest.mark.usefixtures("as_users_run")
def test_bad_input() -> None:
    head, law = al.Head(A, V), LAWS["gaussian"]
    with pytest.raises(InputError, match="lengths must be a whole number of at least 1, got 0"):
        concentration(head, law, [0, 5], generator=0)
    with pytest.raises(InputError, match="lengths must be strictly increasing, got 5 before 5"):
        concentration(head, law, [5, 5], generator=0)
    with pytest.raises(
        InputError, match="replicates must be a whole number of at least 2, got 1: their spread"
    ):
        Trials(replicates=1)
    with pytest.raises(InputError, match="kind must be one of squared, logistic, got 'hinge'"):
        Loss("hinge", lambda x: x[:, 0])
    with pytest.raises(
        InputError, match=r"target must give shape \(64,\) or \(64, 2\) for 64 queries, got \(64, 3\)"
    ):
        concentration(head, law, [5], loss=Loss("squared", lambda x: x), generator=0)
    with pytest.raises(InputError, match="takes one head at a time"):
        concentration(al.Head(torch.stack([A, A])), law, [5], generator=0)
    with pytest.raises(InputError, match="about softmax attention"):
        concentration(head.linear(), law, [5], generator=0)
    with pytest.raises(InputError, match="must be a law to draw prompts from"):
        concentration(head, law.sample(4, generator=0), [5], generator=0)
    with pytest.raises(InputError, match="do not fit 3-dimensional queries"):
        concentration(head, law, [5], trials=Trials(query_law=al.Rademacher(2)), generator=0)
    with pytest.raises(LimitDoesNotExist, match="No limit: StudentT"):
        concentration(head, al.StudentT(3, df=4.0), [5], generator=0)
