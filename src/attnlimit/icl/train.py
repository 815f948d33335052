"""Training on finite prompts: many lengths and seeds in one batched computation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import LimitDoesNotExist
from attnlimit.icl import checkpoints
from attnlimit.icl.batches import TRAINING, Batch, ahead, draw, stream
from attnlimit.icl.descent import TOO_FAR, Diverged
from attnlimit.icl.evaluation import Report, evaluate
from attnlimit.icl.flow import flow
from attnlimit.icl.infinite import infinite_risk
from attnlimit.icl.optimizers import State, named, rate
from attnlimit.icl.path import Path as FlowPath
from attnlimit.icl.plan import Plan, checked_plan
from attnlimit.icl.pulls import finite_pull, infinite_pull
from attnlimit.icl.tasks import Task
from attnlimit.icl.training import Training
from attnlimit.icl.weights import Theta

SAVE_EVERY = 30.0
"""Seconds between checkpoints, besides those at reports."""

Thetas = Float[Tensor, "2 S M D D"]
Progress = Callable[[int, int], None]


def train(
    task: Task,
    lengths: int | Sequence[int],
    *,
    attention: str = "softmax",
    optimizer: str = "sgd",
    lr: float | int = 1e-3,
    schedule: str = "constant",
    variance_reduction: str | None = None,
    batch: int = 128,
    steps: int = 300_000,
    seeds: int = 1,
    init: Theta | float | int = 0.1,
    reports: int | Sequence[int] = 24,
    test_lengths: Sequence[int] = (),
    evaluation: int = 4096,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    generator: torch.Generator | int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | None = None,
) -> Training:
    """θ_{k+1} = θ_k − lr·ĝ(θ_k), ĝ the gradient of the mean loss of `batch` fresh prompts, for one model per length and seed.

    All lengths of a seed see the same prompts, each model its first L tokens, so that each by itself is trained on
    independent batches while differences between lengths carry less noise; seeds share nothing. Weights are kept in
    float64, prompts and gradients in `dtype`.

    attention
        "softmax", or "linear": (1/L) Σ V z_i z_iᵀ U query.
    optimizer, lr, schedule
        "sgd", "momentum" (0.9) or "adam"; the step size is "constant" or falls to 0 along a "cosine".
    variance_reduction
        "control": ĝ − ĝ_∞ + ∇R_∞ with ĝ_∞ the gradient that the same task vectors and queries have with infinite prompts
        and ∇R_∞ its exact mean. Unbiased; removes the noise of tasks and queries, not that of prompts.
    init
        The start of all lengths: (U, V), (A, b), or the scale of a start drawn for each seed, for regression
        balanced (`icl.balanced`), so that the infinite-prompt flow from it reaches zero risk.
    reports, test_lengths, evaluation
        Steps to report at, or how many log-spaced ones; other prompt lengths to test at; fresh prompts per report.
    checkpoint, resume
        A file written at every report and every 30 seconds. If it exists the run goes on from it and ends with the
        same numbers, bit for bit, as one that was never stopped; with resume=False it starts anew.

    Weights whose norm leaves 10⁶ times that of the start, or is not finite, stop the run with `Diverged`.

    >>> from attnlimit.icl import LinearRegression
    >>> run = train(LinearRegression(2), [5, 50], steps=200, lr=0.05, reports=3, evaluation=512)
    >>> bool(run.risk[-1, 0, 1] < run.risk[-1, 0, 0] < run.risk[0, 0, 0])
    True
    """
    plan = checked_plan(
        task,
        lengths,
        attention=attention,
        optimizer=optimizer,
        schedule=schedule,
        variance_reduction=variance_reduction,
        lr=lr,
        batch=batch,
        steps=steps,
        seeds=seeds,
        init=init,
        reports=reports,
        test_lengths=test_lengths,
        evaluation=evaluation,
        dtype=dtype,
        device=device,
        generator=generator,
    )
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not resume:
        path.unlink(missing_ok=True)
    times = _flow_times(plan)
    paths = (
        None if times is None else _flows(plan, times[times > 0])
    )  # first: what has no limit is refused at once
    with _shared_threads() as workers, torch.no_grad():
        made = _run(plan, path, workers, progress)
    return _gathered(plan, made, times, paths)


def _run(plan: Plan, path: Path | None, workers: int, progress: Progress | None) -> list[Report]:
    """All reports: from the checkpoint as far as it goes, the rest by training."""
    done, theta, state, made = _restored(plan, path)
    optimizer, bound = named(plan.optimizer), _bound(plan)
    if not made:
        made.append(_reported(plan, theta, workers, 0))
    saved = monotonic()
    batches = ahead(lambda step: _batch(plan, step), range(done + 1, plan.steps + 1), workers)
    for step, batch in enumerate(batches, done + 1):
        gradient = _gradient(plan, theta, batch)
        optimizer.step(theta, gradient, state, rate(plan.schedule, plan.lr, step, plan.steps), step)
        _check(plan, theta, bound, step)
        report = step in plan.reports
        if report:
            made.append(_reported(plan, theta, workers, step))
        if path is not None and (report or monotonic() - saved > SAVE_EVERY):
            _save(path, plan, step, theta, state, made)
            saved = monotonic()
        if progress is not None and (report or step % 50 == 0):
            progress(step, plan.steps)
    return made


def _reported(plan: Plan, theta: Thetas, workers: int, step: int) -> Report:
    try:
        return evaluate(plan, theta, workers)
    except LimitDoesNotExist as reason:
        raise LimitDoesNotExist(f"Training stops at step {step} of {plan.steps}: {reason}") from reason


def _batch(plan: Plan, step: int) -> Batch:
    generators = [stream(plan.base, TRAINING, seed, step, plan.device) for seed in range(plan.seeds)]
    return draw(plan.task, plan.attention, plan.lengths, plan.batch, generators, plan.dtype)


def _gradient(plan: Plan, theta: Thetas, batch: Batch) -> Thetas:
    U, V = theta.to(plan.dtype)
    finite = finite_pull(plan.task, U, V, batch, plan.lengths)
    gradient = torch.stack([finite.U, finite.V]).double()
    if plan.variance_reduction is None:
        return gradient
    limit = infinite_pull(plan.task, U, V, batch)
    with torch.enable_grad():
        free = theta.detach().requires_grad_()
        (exact,) = torch.autograd.grad(infinite_risk(plan.task, *free).sum(), free)
    return gradient - torch.stack([limit.U, limit.V]).double() + exact


def _bound(plan: Plan) -> float:
    return TOO_FAR * (1 + float(plan.starts.flatten(1).norm(dim=1).max()))


def _check(plan: Plan, theta: Thetas, bound: float, step: int) -> None:
    norms = theta.square().sum((0, -2, -1)).sqrt()
    if float(norms.max()) <= bound:  # false for nan too
        return
    seed, place = divmod(int((~(norms <= bound)).flatten().nonzero()[0]), len(plan.lengths))
    norm = float(norms[seed, place])
    raise Diverged(
        f"Training diverged at step {step} of {plan.steps}: the weights' norm is {norm:.3g} (at the start "
        f"{float(plan.starts[seed].norm()):.3g}), for length {plan.lengths[place]}, seed {seed}, lr = {plan.lr:g}. "
        f"Use a smaller lr, e.g. {plan.lr / 4:.2g}.",
        step,
        norm,
    )


def _restored(plan: Plan, path: Path | None) -> tuple[int, Thetas, State, list[Report]]:
    start = plan.starts.to(plan.device).transpose(0, 1)[:, :, None]
    theta = start.expand(-1, -1, len(plan.lengths), -1, -1).clone()
    optimizer = named(plan.optimizer)
    if path is None or not path.exists():
        return 0, theta, optimizer.start(theta), []
    step, tensors = checkpoints.read(path, plan.fingerprint())
    tensors = {name: value.to(plan.device) for name, value in tensors.items()}
    parts = [tensors[f"report.{name}"].unbind() for name in Report._fields]
    made = [Report(*one) for one in zip(*parts, strict=True)]
    return step, tensors["theta"], {name: tensors[f"state.{name}"] for name in optimizer.keeps}, made


def _save(path: Path, plan: Plan, step: int, theta: Thetas, state: State, made: list[Report]) -> None:
    stacked = {
        f"report.{name}": torch.stack(list(v))
        for name, v in zip(Report._fields, zip(*made, strict=True), strict=True)
    }
    kept = {f"state.{name}": value for name, value in state.items()}
    checkpoints.write(path, plan.fingerprint(), step, {"theta": theta, **kept, **stacked})


def _gathered(
    plan: Plan, made: list[Report], times: Float[Tensor, " R"] | None, paths: list[FlowPath] | None
) -> Training:
    parts = {
        name: torch.stack(list(v)).cpu()
        for name, v in zip(Report._fields, zip(*made, strict=True), strict=True)
    }
    theta = parts.pop("theta")
    flow_risk = gap = None
    if paths is not None:
        followed = torch.stack([torch.stack([path.U, path.V], 1) for path in paths], 1)  # (R − 1, S, 2, D, D)
        followed = torch.cat([plan.starts[None], followed]).movedim(2, 1)[:, :, :, None]
        gap = (theta - followed).square().sum((1, -2, -1)).sqrt()
        flow_risk = torch.cat(
            [parts["infinite_risk"][:1, :, 0], torch.stack([path.risk for path in paths], 1)]
        )
    words = (
        f"{plan.optimizer}, lr {plan.lr:g} {plan.schedule}, batch {plan.batch}, {plan.seeds} seeds, "
        f"variance reduction {plan.variance_reduction or 'none'}, risks on {plan.evaluation} fresh prompts a seed"
    )
    return Training(
        task=plan.task,
        attention=plan.attention,
        lengths=plan.lengths,
        steps=plan.reports,
        times=times,
        U=theta[:, 0],
        V=theta[:, 1],
        flow_risk=flow_risk,
        parameter_gap=gap,
        test_lengths=plan.test_lengths,
        method=words,
        **parts,
    )


def _flows(plan: Plan, times: Float[Tensor, " T"]) -> list[FlowPath]:
    """The infinite-prompt flow from each seed's start; equal starts share it."""
    known: list[tuple[Tensor, FlowPath]] = []
    paths = []
    for start in plan.starts:
        path = next((path for other, path in known if torch.equal(other, start)), None)
        if path is None:
            path = flow(plan.task, (start[0], start[1]), times=times)
            known.append((start, path))
        paths.append(path)
    return paths


def _flow_times(plan: Plan) -> Float[Tensor, " R"] | None:
    pace = named(plan.optimizer).time_per_lr
    if pace is None:
        return None
    rates = [rate(plan.schedule, plan.lr, k, plan.steps) for k in range(1, plan.steps + 1)]
    total = torch.cat(
        [torch.zeros(1, dtype=torch.float64), torch.tensor(rates, dtype=torch.float64).cumsum(0)]
    )
    return pace * total[list(plan.reports)]


@contextmanager
def _shared_threads() -> Iterator[int]:
    """Half of torch's threads compute while as many as there are draw the next prompts; yields that number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
