"""Training on finite prompts: the same as a plain loop, resumable to the bit, and close to the infinite-prompt flow."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnlimit.errors import InputError, LimitDoesNotExist, NotKnown
from attnlimit.icl import (
    Classification,
    Diverged,
    Evaluation,
    InContextTask,
    LinearRegression,
    MixtureDenoising,
    Optimizer,
    Prompts,
    Saving,
    Start,
    Training,
    ar1,
    train,
)
from attnlimit.icl.batches import TRAINING, draw, stream
from attnlimit.icl.methods import RULES
from attnlimit.icl.training import over_seeds
from attnlimit.measures import Laplace
from attnlimit.report.figures.icl import lengths_figure, trajectory_figure

FEW = Optimizer(steps=30, lr=0.05, batch=16)
TWICE = Evaluation(reports=(10, 20), prompts=64)
SMALL = {"optimizer": FEW, "evaluation": TWICE, "generator": 3}


def base_of(seed: int) -> int:
    """The number that the streams of a run with this generator are made from."""
    return int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))


def torch_optimizer(name: str, parameters: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if name == "momentum" else 0.0)


@pytest.mark.parametrize("optimizer", list(RULES))
def test_batched_training_equals_the_plain_loop_on_the_same_prompts(optimizer: str) -> None:
    """One model at a time, plain attention, torch's own autograd and optimisers."""
    task, lengths, steps = LinearRegression(3, ar1(3, 0.5)), (4, 11), 12
    run = train(
        task,
        lengths,
        optimizer=Optimizer(kind=optimizer, lr=0.05, batch=8, steps=steps, dtype="float64"),
        evaluation=Evaluation(reports=tuple(range(steps + 1)), prompts=16),
        start=Start(seeds=2),
        generator=5,
    )
    for seed in range(2):
        for m, length in enumerate(lengths):
            U, V = (W[0, seed, m].clone().requires_grad_() for W in (run.U, run.V))
            steps_of = torch_optimizer(optimizer, [U, V], 0.05)
            for step in range(1, steps + 1):
                batch = draw(
                    task, "softmax", lengths, 8, [stream(base_of(5), TRAINING, seed, step)], torch.float64
                )
                tokens = (batch.seen @ batch.root[0].mT)[:, :length]
                weights = (tokens @ (batch.query[0] @ U.T)[..., None]).softmax(1)
                output = (weights * tokens).sum(1) @ V.T
                loss = (output[:, -1] - batch.target[0]).square().mean() / 2
                steps_of.zero_grad()
                loss.backward()
                steps_of.step()
                torch.testing.assert_close(run.U[step, seed, m], U.detach(), rtol=1e-9, atol=1e-12)
                torch.testing.assert_close(run.V[step, seed, m], V.detach(), rtol=1e-9, atol=1e-12)


def same(one: Training, other: Training) -> bool:
    names = ("U", "V", "risk", "risk_error", "infinite_risk", "gradient_gap", "parameter_gap", "test_risk")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(a is b or torch.equal(a, b) for a, b in pairs) and one.steps == other.steps


class Stop(Exception):
    pass


@pytest.mark.parametrize(("attention", "optimizer"), [("softmax", "adam"), ("linear", "momentum")])
def test_a_stopped_run_goes_on_bit_for_bit(attention: str, optimizer: str) -> None:
    options = SMALL | {
        "attention": attention,
        "optimizer": replace(FEW, kind=optimizer),
        "start": Start(seeds=2),
    }
    options["evaluation"] = replace(TWICE, test_lengths=(5,))
    task = LinearRegression(2)
    whole = train(task, (3, 9), **options)

    def stop(done: int, total: int) -> None:
        if done >= 20:
            raise Stop

    with pytest.raises(Stop):
        train(task, (3, 9), saving=Saving(checkpoint="run.safetensors", progress=stop), **options)
    assert [path.name for path in Path().iterdir()] == ["run.safetensors"]  # no partial file is left
    seen = []
    saving = Saving(checkpoint="run.safetensors", progress=lambda done, _: seen.append(done))
    rest = train(task, (3, 9), saving=saving, **options)
    assert seen == [30]  # from step 20 on
    assert same(whole, rest)
    assert same(whole, train(task, (3, 9), saving=saving, **options))
    assert seen == [30]  # finished: nothing to do
    anew = train(task, (3, 9), saving=replace(saving, resume=False), **options)
    assert seen == [30, 10, 20, 30]
    assert same(whole, anew)


def test_two_threads_give_the_numbers_of_one() -> None:
    task = LinearRegression(2)
    alone = train(task, (3, 300), start=Start(seeds=2), **SMALL)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        both = train(task, (3, 300), start=Start(seeds=2), **SMALL)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)
    assert same(alone, both)


def test_seeds_are_independent_and_lengths_share_start_and_prompts() -> None:
    task = LinearRegression(2)
    run = train(task, (5, 8), start=Start(seeds=2), **SMALL)
    alone = train(task, 8, **SMALL)
    assert not torch.equal(run.U[0, 0], run.U[0, 1])
    assert torch.equal(run.U[0, :, 0], run.U[0, :, 1])
    torch.testing.assert_close(run.U[:, 0, 1], alone.U[:, 0, 0])  # whatever other lengths are there
    assert not torch.equal(
        run.U[-1], train(task, (5, 8), start=Start(seeds=2), **SMALL | {"generator": 4}).U[-1]
    )


def test_parameters_and_gradients_approach_the_infinite_flow_as_prompts_grow() -> None:
    """Lengths 16 times apart: if gaps fall as 1/L they shrink 16-fold, if as 1/√L 4-fold; asked for is 3-fold. For
    long prompts the risk along training is that of the flow, up to the error of steps of 0.02."""
    task, lengths = LinearRegression(2, ar1(2, 0.5)), (8, 128, 2048)
    run = train(
        task,
        lengths,
        attention="linear",
        optimizer=Optimizer(lr=0.02, steps=600, variance_reduction="control"),
        evaluation=Evaluation(reports=6, prompts=2**15),
        start=Start(seeds=2),
    )
    assert run.parameter_gap is not None
    assert run.flow_risk is not None
    largest, gradients = run.parameter_gap.amax(0).mean(0), run.gradient_gap[1:].mean((0, 1))
    for gap in (largest, gradients):
        assert float(gap[0]) > 3 * float(gap[1])
        assert float(gap[1]) > 3 * float(gap[2])
    assert float(run.parameter_gap[0].abs().max()) < 1e-12
    torch.testing.assert_close(run.risk[:, :, 2].mean(1), run.flow_risk.mean(1), rtol=0.05, atol=5e-3)


def test_softmax_and_linear_attention_agree_for_long_prompts() -> None:
    task = LinearRegression(2, noise=0.1)
    options = {
        "optimizer": Optimizer(lr=0.1, steps=150, batch=64, schedule="cosine"),
        "evaluation": Evaluation(reports=2, prompts=2048),
    }
    soft = train(task, (8, 1024), **options)
    flat = train(task, (8, 1024), attention="linear", **options)
    apart = (soft.risk[-1] - flat.risk[-1]).abs().mean(0)
    assert float(apart[1]) < 0.3 * float(apart[0])
    assert float(apart[1]) < 0.03


def test_the_reported_risk_is_the_risk() -> None:
    """Against 200,000 prompts by plain attention: the difference within 4.5 joint standard errors (false alarms: 7e-6
    a model, here two)."""
    task, lengths = LinearRegression(2), (4, 16)
    many = Evaluation(reports=(10, 20), prompts=8192, test_lengths=lengths[::-1])
    run = train(task, lengths, **SMALL | {"optimizer": replace(FEW, lr=0.5), "evaluation": many})
    for m, length in enumerate(lengths):
        prompts = task.draw(200_000, length, 11)
        U, V = run.weights(length)
        weights = (prompts.tokens @ (prompts.query @ U.T)[..., None]).softmax(1)
        losses = task.risk(task.read((weights * prompts.tokens).sum(1) @ V.T), prompts.target)
        error = (losses.var() / len(losses) + run.risk_error[-1, 0, m] ** 2).sqrt()
        assert abs(float(run.risk[-1, 0, m] - losses.mean())) < 4.5 * float(error)
        torch.testing.assert_close(run.test_risk[-1, 0, m, 1 - m], run.risk[-1, 0, m], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", [Classification(2), MixtureDenoising(2)], ids=repr)
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_other_tasks_are_trained_too(task: InContextTask, attention: str) -> None:
    how = Optimizer(kind="momentum", lr=0.1, steps=100)
    run = train(
        task, (4, 40), attention=attention, optimizer=how, evaluation=Evaluation(reports=2, prompts=512)
    )
    assert bool((run.risk[-1] < run.risk[0]).all())
    if attention == "softmax":  # linear attention tends to another model here
        few, many = run.gradient_gap[-1, 0].tolist()
        assert many < few / 2
    assert run.parameter_gap is not None
    assert bool(run.parameter_gap.isfinite().all())


def test_control_variates_leave_the_mean_and_lower_the_noise_of_gradients() -> None:
    """From one start, one step of 30 seeds: means agree within 5 standard errors (false alarms: 7e-6 for a t with 50 degrees
    of freedom, 7e-5 for nine entries)."""
    task = LinearRegression(2)
    start = Start(init=(torch.eye(2, dtype=torch.float64), 0.5), seeds=30)
    options = {"start": start, "evaluation": Evaluation(reports=2, prompts=16)}
    how = Optimizer(steps=1, lr=1.0)
    plain = train(task, 100, optimizer=how, **options)
    less = train(task, 100, optimizer=replace(how, variance_reduction="control"), **options)
    moved, still = (torch.stack([r.U[1, :, 0], r.V[1, :, 0]], 1).flatten(1) for r in (plain, less))
    assert float(still.var(0).sum()) < 0.6 * float(moved.var(0).sum())
    noise = ((moved.var(0) + still.var(0)) / 30).sqrt()
    z = (moved.mean(0) - still.mean(0)).abs()[noise > 1e-9] / noise[noise > 1e-9]
    assert z.numel() == 9
    assert float(z.max()) < 5


def test_adam_follows_no_flow() -> None:
    run = train(LinearRegression(2), 4, **SMALL | {"optimizer": replace(FEW, kind="adam")})
    assert run.parameter_gap is None
    assert run.excess is None
    assert all(row["parameter_gap"] is None for row in run.rows())
    assert [ax.get_xlabel() for ax in run.plot().axes] == ["training step"] * 2


def test_flow_time_is_the_sum_of_step_sizes() -> None:
    task = LinearRegression(2)
    constant = train(task, 4, **SMALL)
    torch.testing.assert_close(constant.times, torch.tensor([0, 0.5, 1.0, 1.5], dtype=torch.float64))
    cosine = train(task, 4, **SMALL | {"optimizer": replace(FEW, schedule="cosine")})
    assert float(cosine.times[-1]) == pytest.approx(0.05 * (30 / 2 + 0.5), rel=0.01)
    quick = train(task, 4, **SMALL | {"optimizer": replace(FEW, kind="momentum")})
    torch.testing.assert_close(quick.times, 10 * constant.times)


def test_a_run_is_plain_data() -> None:
    options = SMALL | {"evaluation": replace(TWICE, test_lengths=(9,))}
    run = train(LinearRegression(2), (4, 6), start=Start(seeds=2), **options)
    rows = list(run.rows())
    assert len(rows) == 4 * 2 * 2
    assert rows[-1]["length"] == 6
    assert rows[-1]["risk_at_9"] == float(run.test_risk[-1, 1, 1, 0])
    assert json.loads(json.dumps(run.to_dict()))["reports"] == rows
    assert repr(run).startswith("Training(softmax, 30 steps; risk L = 4: ")
    assert [ax.get_xlabel() for ax in run.plot().axes] == ["flow time = Σ step sizes"] * 3


def test_figures_without_data_are_refused() -> None:
    with pytest.raises(InputError, match="There is no training to draw"):
        trajectory_figure({})
    with pytest.raises(InputError, match="No other prompt lengths were tested"):
        lengths_figure({"softmax": train(LinearRegression(2), 4, **SMALL)})


def test_intervals_over_seeds() -> None:
    """Mean 2, standard deviation 1, t quantile 4.303 for three seeds."""
    mean, low, high = over_seeds(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
    assert [float(v) for v in (mean, low, high)] == pytest.approx(
        [2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5], abs=1e-4
    )
    assert over_seeds(torch.ones(2, 1))[1].isnan().all()


def test_diverging_steps_are_stopped_with_step_and_norm() -> None:
    with pytest.raises(
        Diverged, match=r"diverged at step \d+ of 500: the weights' norm is .* lr = 40\. Use a smaller"
    ) as stop:
        train(LinearRegression(2), (4, 8), optimizer=Optimizer(kind="momentum", lr=40, steps=500, batch=16))
    assert 1 <= stop.value.step < 500
    assert not stop.value.norm <= 1e6


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (Optimizer, {"kind": "lion"}, "kind must be one of sgd, momentum, adam, got 'lion'"),
        (Optimizer, {"schedule": "step"}, "schedule must be one of constant, cosine, got 'step'"),
        (Optimizer, {"variance_reduction": "svrg"}, "variance_reduction must be one of None, control, got 'svrg'"),
        (Optimizer, {"dtype": "float16"}, "dtype must be one of float32, float64"),
        (Optimizer, {"device": "abacus"}, "device must be one of torch's, such as cpu or cuda, got 'abacus'"),
        (Optimizer, {"lr": 0}, "lr must be a finite number above 0"),
        (Optimizer, {"steps": 0}, "steps must be a whole number"),
        (Optimizer, {"batch": 0}, "batch must be a whole number"),
        (Evaluation, {"prompts": 0}, "prompts must be a whole number"),
        (Evaluation, {"prompts": 10**12}, "prompts must be a whole number of at most 999,999, got 1000000000000"),
        (Evaluation, {"reports": 0}, "reports must be a whole number"),
        (Evaluation, {"test_lengths": [0]}, "test_lengths must be a whole number"),
        (Start, {"seeds": 0}, "seeds must be a whole number"),
        (Start, {"init": -1}, "init must be a finite number above 0"),
    ],
)  # fmt: skip
def test_methods_cannot_be_built_badly(method: type, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        method(**options)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task": "regression"},
            "task must be an InContextTask, got .regression.. Such are .*LinearRegression",
        ),
        ({"lengths": 0}, "lengths must be a whole number of at least 1, got 0"),
        ({"lengths": [10, 2.5]}, r"lengths\[1\] must be a whole number, got 2.5"),
        ({"lengths": []}, "lengths is empty"),
        ({"attention": "cosine"}, "attention must be one of softmax, opposite, linear, got 'cosine'"),
        ({"start": Start(init=(torch.eye(2), torch.eye(3)))}, "U must be 3×3"),
        ({"evaluation": Evaluation(reports=(31,))}, "reports must be steps from 0 to 30"),
        ({"generator": "x"}, r"generator must be a torch\.Generator or a seed"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(**{"task": LinearRegression(2), "lengths": 4, **SMALL} | options)


def test_no_more_parts_than_prompts() -> None:
    """Linear attention needs no tokens: a prompt of any length takes the same time."""
    few = Evaluation(reports=1, prompts=16)
    found = train(LinearRegression(2), 10**10, attention="linear", optimizer=Optimizer(steps=2, batch=4), evaluation=few)  # fmt: skip
    assert bool(found.risk.isfinite().all())


def test_control_variates_need_an_exact_risk() -> None:
    with pytest.raises(NotKnown, match="needs the exact infinite-prompt gradient"):
        train(Classification(2), 4, optimizer=Optimizer(variance_reduction="control"))


def test_checkpoints_of_other_runs_and_other_files_are_refused() -> None:
    task = LinearRegression(2)
    kept = Saving(checkpoint="run.safetensors")
    train(task, 4, saving=kept, **SMALL)
    with pytest.raises(InputError, match=r"belongs to another run: its lr is 0\.05, now 0\.01"):
        train(task, 4, saving=kept, **SMALL | {"optimizer": replace(FEW, lr=0.01)})
    with pytest.raises(InputError, match="belongs to another run: its task values"):
        train(LinearRegression(2, 2.0), 4, saving=kept, **SMALL)
    Path("other.safetensors").write_text("nothing")
    with pytest.raises(InputError, match=r"other\.safetensors is not a checkpoint of icl\.train"):
        train(task, 4, saving=Saving(checkpoint="other.safetensors"), **SMALL)
    with pytest.raises(InputError, match=r"other\.safetensors/run\.safetensors cannot be written"):
        train(task, 4, saving=Saving(checkpoint="other.safetensors/run.safetensors"), **SMALL)


class LaplaceMean(InContextTask):
    """Laplace tokens around a task vector: their CGF ends at |a| = 1."""

    token_dim = 2

    def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts:
        signed = torch.rand(batch, length, 2, generator=generator, dtype=dtype) - 0.5
        tokens = -signed.sign() * (1 - 2 * signed.abs()).log()
        query = torch.ones(batch, 2, dtype=dtype)
        return Prompts(tokens, query, query[:, 0], query)

    def prompt_law(self, vector: torch.Tensor) -> Laplace:
        return Laplace(2, 1.0)


def test_a_path_that_leaves_the_domain_of_the_limit_is_stopped_with_its_step() -> None:
    evaluation = Evaluation(reports=(1,), prompts=16)
    eye = torch.eye(2).double()
    adam, sgd = Optimizer(kind="adam", lr=0.2, steps=2, batch=8), Optimizer(lr=0.1, steps=2, batch=8)
    with pytest.raises(LimitDoesNotExist, match=r"Training stops at step 1 of 2: No limit"):
        train(LaplaceMean(), 5, start=Start(init=(0.9 * eye, eye)), optimizer=adam, evaluation=evaluation)
    with pytest.raises(LimitDoesNotExist, match="at time t = 0: No limit"):
        train(LaplaceMean(), 5, start=Start(init=(eye, eye)), optimizer=sgd, evaluation=evaluation)


def test_models_that_were_not_trained_are_not_given() -> None:
    run = train(LinearRegression(2), (4, 6), **SMALL)
    with pytest.raises(
        InputError, match="No model was trained for length 5, seed 0: there are lengths 4, 6 and seeds 0 to 0"
    ):
        run.weights(5)
