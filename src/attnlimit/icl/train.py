"""Training on finite prompts: many lengths and seeds in one batched computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl import checkpoints
from attnlimit.icl.batches import ahead
from attnlimit.icl.flow import TOO_FAR, Diverged, WeightPath, flow, no_limit
from attnlimit.icl.methods import Attention, Evaluation, Optimizer, Saving, Start, State
from attnlimit.icl.tasks import InContextTask
from attnlimit.icl.training import Training
from attnlimit.icl.trial import Measured, Thetas, Trial

SAVE_EVERY = 30.0
"""Seconds between checkpoints, besides those at reports."""


def train(
    task: InContextTask,
    lengths: int | Sequence[int],
    *,
    attention: Attention = "softmax",
    optimizer: Optimizer = Optimizer(),  # noqa: B008  (frozen)
    evaluation: Evaluation = Evaluation(),  # noqa: B008
    start: Start = Start(),  # noqa: B008
    generator: torch.Generator | int = 0,
    saving: Saving = Saving(),  # noqa: B008
) -> Training:
    """θ_{k+1} = θ_k − lr·ĝ(θ_k), ĝ the gradient of the mean loss of fresh prompts, for one model per length and seed.

    All lengths of a seed see the same prompts, each model its first L tokens, so that each by itself is trained on
    independent batches while differences between lengths carry less noise; seeds share nothing. `attention` is "softmax", or
    "linear": (1/L) Σ V z_i z_iᵀ U query.

    Weights whose norm leaves 10⁶ times that of the start, or is not finite, stop the run with `Diverged`.

    >>> from attnlimit.icl import Evaluation, LinearRegression, Optimizer
    >>> few = Optimizer(steps=200, lr=0.05)
    >>> run = train(LinearRegression(2), [5, 50], optimizer=few, evaluation=Evaluation(reports=3, prompts=512))
    >>> bool(run.risk[-1, 0, 1] < run.risk[-1, 0, 0] < run.risk[0, 0, 0])
    True
    """
    trial = Trial.of(task, lengths, attention, optimizer, evaluation, start, generator)
    if saving.path is not None and not saving.resume:
        saving.path.unlink(missing_ok=True)
    times = _flow_times(trial)
    paths = None if times is None else _flows(trial, times[times > 0])  # first: no limit is said at once
    with _shared_threads() as workers, torch.no_grad():
        made = _run(trial, saving, workers)
    return _gathered(trial, made, times, paths)


def _run(trial: Trial, saving: Saving, workers: int) -> list[Measured]:
    """All reports: from the checkpoint as far as it goes, the rest by training."""
    done, theta, state, made = _restored(trial, saving)
    how, reports = trial.optimizer, trial.reports
    bound = TOO_FAR * (1 + float(trial.starts.flatten(1).norm(dim=1).max()))
    if not made:
        made.append(_reported(trial, theta, workers, 0))
    saved = monotonic()
    batches = ahead(trial.batch, range(done + 1, how.steps + 1), workers)
    for step, batch in enumerate(batches, done + 1):
        how.rule.step(theta, trial.gradient(theta, batch), state, how.rate(step), step)
        _check(trial, theta, bound, step)
        report = step in reports
        if report:
            made.append(_reported(trial, theta, workers, step))
        if saving.path is not None and (report or monotonic() - saved > SAVE_EVERY):
            tensors = {"theta": theta, **{f"state.{name}": value for name, value in state.items()}}
            stacked = {f"report.{name}": value for name, value in _stacked(made).items()}
            checkpoints.write(saving.path, trial.fingerprint(), step, tensors | stacked)
            saved = monotonic()
        if saving.progress is not None and (report or step % 50 == 0):
            saving.progress(step, how.steps)
    return made


def _reported(trial: Trial, theta: Thetas, workers: int, step: int) -> Measured:
    with no_limit(f"Training stops at step {step} of {trial.optimizer.steps}"):
        return trial.measured(theta, workers)


def _check(trial: Trial, theta: Thetas, bound: float, step: int) -> None:
    norms = theta.square().sum((0, -2, -1)).sqrt()
    if float(norms.max()) <= bound:  # false for nan too
        return
    seed, place = divmod(int((~(norms <= bound)).flatten().nonzero()[0]), len(trial.lengths))
    norm, how = float(norms[seed, place]), trial.optimizer
    raise Diverged(
        f"Training diverged at step {step} of {how.steps}: the weights' norm is {norm:.3g} (at the start "
        f"{float(trial.starts[seed].norm()):.3g}), for length {trial.lengths[place]}, seed {seed}, lr = {how.lr:g}. "
        f"Use a smaller lr, e.g. {how.lr / 4:.2g}.",
        step,
        norm,
    )


def _restored(trial: Trial, saving: Saving) -> tuple[int, Thetas, State, list[Measured]]:
    keeps, device = trial.optimizer.rule.keeps, trial.optimizer.device
    if saving.path is None or not saving.path.exists():
        first = trial.starts.to(device).transpose(0, 1)[:, :, None]
        theta = first.expand(-1, -1, len(trial.lengths), -1, -1).clone()
        return 0, theta, {name: torch.zeros_like(theta) for name in keeps}, []
    step, tensors = checkpoints.read(saving.path, trial.fingerprint())
    tensors = {name: value.to(device) for name, value in tensors.items()}
    parts = [tensors[f"report.{name}"].unbind() for name in Measured._fields]
    made = [Measured(*one) for one in zip(*parts, strict=True)]
    return step, tensors["theta"], {name: tensors[f"state.{name}"] for name in keeps}, made


def _stacked(made: list[Measured]) -> dict[str, Tensor]:
    """Each quantity, reports first."""
    names, parts = Measured._fields, zip(*made, strict=True)
    return {name: torch.stack(list(part)) for name, part in zip(names, parts, strict=True)}


def _gathered(
    trial: Trial, made: list[Measured], times: Float[Tensor, " R"] | None, paths: list[WeightPath] | None
) -> Training:
    parts = {name: part.cpu() for name, part in _stacked(made).items()}
    theta = parts.pop("theta")
    flow_risk = gap = None
    if paths is not None:
        followed = torch.stack([torch.stack([path.U, path.V], 1) for path in paths], 1)  # (R − 1, S, 2, D, D)
        followed = torch.cat([trial.starts[None], followed]).movedim(2, 1)[:, :, :, None]
        gap = (theta - followed).square().sum((1, -2, -1)).sqrt()
        ends = torch.stack([path.risk for path in paths], 1)
        flow_risk = torch.cat([parts["infinite_risk"][:1, :, 0], ends])
    return Training(
        task=trial.task,
        attention=trial.attention,
        lengths=trial.lengths,
        optimizer=trial.optimizer,
        evaluation=trial.evaluation,
        steps=trial.reports,
        times=times,
        U=theta[:, 0],
        V=theta[:, 1],
        flow_risk=flow_risk,
        parameter_gap=gap,
        **parts,
    )


def _flows(trial: Trial, times: Float[Tensor, " T"]) -> list[WeightPath]:
    """The infinite-prompt flow from each seed's start; equal starts share it."""
    different, place = trial.starts.unique(dim=0, return_inverse=True)
    paths = [flow(trial.task, (U, V), times=times) for U, V in different]
    return [paths[k] for k in place]


def _flow_times(trial: Trial) -> Float[Tensor, " R"] | None:
    how = trial.optimizer
    if how.rule.time_per_lr is None:
        return None
    rates = torch.tensor([0.0, *(how.rate(k) for k in range(1, how.steps + 1))], dtype=torch.float64)
    return how.rule.time_per_lr * rates.cumsum(0)[list(trial.reports)]


@contextmanager
def _shared_threads() -> Iterator[int]:
    """Half of torch's threads compute while as many as there are draw the next prompts; yields that number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
