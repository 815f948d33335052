"""Training on finite prompts: many lengths and seeds in one batched computation, kept on disk along the way."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError, NotKnown
from attnlimit.files.tensors import read_tensors, write_tensors
from attnlimit.icl.batches import (
    EVALUATION,
    START,
    TRAINING,
    Batch,
    ahead,
    draw,
    finite_losses,
    finite_pull,
    infinite_pull,
    stream,
)
from attnlimit.icl.flow import TOO_FAR, Diverged, WeightPath, flow, no_limit
from attnlimit.icl.infinite import Theta, as_theta, balanced, has_exact_risk, infinite_risk
from attnlimit.icl.methods import Attention, Evaluation, Optimizer, Saving, Start, State
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.training import Training
from attnlimit.inputs import Seeded, as_counts, as_generator

SCHEMA = "attnlimit.icl/5"


def write_checkpoint(path: Path, plan: dict[str, Any], step: int, tensors: dict[str, Tensor]) -> None:
    write_tensors(path, tensors, {"schema": SCHEMA, "plan": json.dumps(plan), "step": str(step)})


def read_checkpoint(path: Path, plan: dict[str, Any]) -> tuple[int, dict[str, Tensor]]:
    """(step, tensors) of the file, if the same plan wrote it."""
    try:
        tensors, header = read_tensors(path)
        before, step = json.loads(header["plan"]), int(header["step"])
    except (InputError, KeyError, ValueError) as problem:
        raise InputError(
            f"{path} is not a checkpoint of icl.train: {problem} Delete it to start anew."
        ) from problem
    if header.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {header.get('schema')!r}, but this version reads {SCHEMA!r}.")
    now = json.loads(json.dumps(plan))
    for name in sorted(now.keys() | before.keys()):
        if now.get(name) != before.get(name):
            raise InputError(
                f"{path} belongs to another run: its {name} is {before.get(name)!r}, now {now.get(name)!r}. "
                "Give the same settings, or another checkpoint file."
            )
    return step, tensors


PARTS, AT_ONCE = 16, 2**23
"""Evaluation prompts come in parts, whose spread gives standard errors: at least so many, of at most so many numbers."""

Thetas = Float[Tensor, "2 S M D D"]


class Measured(NamedTuple):
    """Numbers of every model at one step."""

    theta: Float[Tensor, "2 S M D D"]
    risk: Float[Tensor, "S M"]
    """At the model's own prompt length."""
    risk_error: Float[Tensor, "S M"]
    """Its standard error."""
    infinite_risk: Float[Tensor, "S M"]
    gradient_gap: Float[Tensor, "S M"]
    """‖∇R_L − ∇R_∞‖_F at these weights, both in U and V."""
    test_risk: Float[Tensor, "S M T"]


@dataclass(frozen=True, eq=False)
class Trial:
    """One model for each of S seeds and M prompt lengths."""

    task: InContextTask
    lengths: tuple[int, ...]
    attention: Attention
    optimizer: Optimizer
    evaluation: Evaluation
    base: int
    """The number that all random streams are made from."""
    starts: Float[Tensor, "S 2 D D"]
    """(U, V) that each seed's models start from."""

    @classmethod
    def of(
        cls,
        task: InContextTask,
        lengths: int | Sequence[int],
        attention: Attention,
        optimizer: Optimizer,
        evaluation: Evaluation,
        start: Start,
        generator: Seeded,
    ) -> Trial:
        """What the objects cannot check by themselves: that they fit each other."""
        if optimizer.variance_reduction == "control" and not has_exact_risk(task):
            raise NotKnown(
                f"variance_reduction='control' needs the exact infinite-prompt gradient, and {task!r} has none: leave it out."
            )
        if attention == "opposite" and not hasattr(task, "prompt_root"):
            raise NotKnown(
                f"Two opposite heads have the infinite-prompt model of one where prompts are centred Gaussian, and those of {task!r} "
                "are not: take attention='softmax', or LinearRegression."
            )
        evaluation.steps(optimizer.steps)
        _in_range(task, optimizer)
        base = int(torch.randint(2**62, (), generator=as_generator(generator)))
        starts = torch.stack([_start(task, start.init, base, seed) for seed in range(start.seeds)])
        sizes = tuple(as_counts(lengths, "lengths"))
        return cls(task, sizes, attention, optimizer, evaluation, base, starts)

    @property
    def seeds(self) -> int:
        return len(self.starts)

    @property
    def reports(self) -> tuple[int, ...]:
        return self.evaluation.steps(self.optimizer.steps)

    def fingerprint(self) -> dict[str, Any]:
        """Plain values that tell two trials apart; a checkpoint is only continued by the trial that wrote it."""
        values = {name: value for name, value in vars(self.task).items() if not name.startswith("_")}
        return {
            **{name: value for name, value in asdict(self.optimizer).items() if name != "device"},
            **asdict(self.evaluation),
            "lengths": self.lengths,
            "attention": self.attention,
            "seeds": self.seeds,
            "base": self.base,
            "start": _digest(self.starts),
            "task": repr(self.task),
            "task values": _digest(*(values[name] for name in sorted(values))),
        }

    def drawn(self, purpose: int, step: int, lengths: tuple[int, ...], count: int) -> Batch:
        """`count` prompts for each seed."""
        how = self.optimizer
        generators = [stream(self.base, purpose, seed, step, how.device) for seed in range(self.seeds)]
        return draw(self.task, self.attention, lengths, count, generators, how.torch_dtype)

    def batch(self, step: int) -> Batch:
        """The prompts of a training step."""
        return self.drawn(TRAINING, step, self.lengths, self.optimizer.batch)

    def gradient(self, theta: Thetas, batch: Batch, workers: int = 1) -> Thetas:
        U, V = theta.to(self.optimizer.torch_dtype)
        finite = finite_pull(self.task, U, V, batch, self.lengths, workers)
        gradient = torch.stack([finite.U, finite.V]).double()
        if self.optimizer.variance_reduction is None:
            return gradient
        limit = infinite_pull(self.task, U, V, batch)
        with torch.enable_grad():
            free = theta.detach().requires_grad_()
            (exact,) = torch.autograd.grad(infinite_risk(self.task, *free).sum(), free)
        return gradient - torch.stack([limit.U, limit.V]).double() + exact

    def measured(self, theta: Thetas, workers: int = 1) -> Measured:
        """On prompts of their own stream, the same at every step and for all models of a seed.

        The risk is R_∞ + mean(loss_L − loss_∞) with R_∞ exact and loss_∞ the loss that the same task vector and query have
        with an infinite prompt: where both models are close the noise cancels. Squared gaps are freed of the noise's own
        square, and are zero where that is all there is.
        """
        task, (U, V) = self.task, theta.to(self.optimizer.torch_dtype)
        lengths, tested = self.lengths, self.evaluation.test_lengths
        numbers = self.seeds * self.evaluation.prompts * max(lengths + tested) * task.token_dim
        parts = max(PARTS, min(self.evaluation.prompts, -(-numbers // AT_ONCE)))
        size = -(-self.evaluation.prompts // parts)
        known = has_exact_risk(task)
        losses, tests, gradients = [], [], []
        for batch in ahead(
            lambda part: self.drawn(EVALUATION, part, lengths + tested, size), range(parts), workers
        ):
            finite = finite_pull(task, U, V, batch, lengths, workers)
            limit = infinite_pull(task, U, V, batch)
            far = limit.loss if known else torch.zeros_like(limit.loss)
            losses.append((finite.loss - far).double())
            gradients.append(torch.stack([finite.U - limit.U, finite.V - limit.V]).double())
            if tested:
                tests.append(finite_losses(task, U, V, batch, tested).double() - far[..., None])
        exact = infinite_risk(task, *theta)
        offset = exact if known else torch.zeros_like(exact)
        loss, gradient = torch.stack(losses), torch.stack(gradients)
        noise = gradient.var(0).sum((0, -2, -1)) / parts
        square = gradient.mean(0).square().sum((0, -2, -1)) - noise
        test = torch.stack(tests).mean(0) + offset[..., None] if tests else exact.new_empty(*exact.shape, 0)
        risk, error = offset + loss.mean(0), loss.std(0) / parts**0.5
        return Measured(theta.clone(), risk, error, exact, square.clamp_min(0).sqrt(), test)


def _in_range(task: InContextTask, optimizer: Optimizer) -> None:
    """One short prompt tells: the squares of its numbers are needed."""
    drawn = task.draw(1, 1, 0, optimizer.torch_dtype)
    if not all(bool(part.square().isfinite().all()) for part in drawn):
        raise InputError(
            f"The prompts of {task!r} leave the range of {optimizer.dtype}: give it moderate variances, or the optimizer dtype='float64'."
        )


def _start(task: InContextTask, init: Theta | float | int, base: int, seed: int) -> Float[Tensor, "2 D D"]:
    if not isinstance(init, float | int):
        return torch.stack(as_theta(task, init).embed())
    generator = stream(base, START, seed, 0)
    if isinstance(task, LinearRegression):
        return torch.stack(balanced(task, init, generator).embed())
    D = task.token_dim
    return init / math.sqrt(D) * torch.randn(2, D, D, generator=generator, dtype=torch.float64)


def _digest(*values: object) -> str:
    total = hashlib.sha256()
    for value in values:
        plain = value.tolist() if isinstance(value, Tensor) else value
        total.update(repr(plain).encode())
    return total.hexdigest()[:16]


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
    generator: Seeded = 0,
    saving: Saving = Saving(),  # noqa: B008
) -> Training:
    """θ_{k+1} = θ_k − lr·ĝ(θ_k), ĝ the gradient of the mean loss of fresh prompts, for one model per length and seed.

    All lengths of a seed see the same prompts, each model its first L tokens, so that each by itself is trained on
    independent batches while differences between lengths carry less noise; seeds share nothing. `attention` is "softmax",
    "opposite": half of it at U, less half of it at −U, or "linear": (1/L) Σ V z_i z_iᵀ U query.

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
        how.rule.step(theta, trial.gradient(theta, batch, workers), state, how.rate(step), step)
        _check(trial, theta, bound, step)
        report = step in reports
        if report:
            made.append(_reported(trial, theta, workers, step))
        if saving.path is not None and (report or monotonic() - saved > SAVE_EVERY):
            tensors = {"theta": theta, **{f"state.{name}": value for name, value in state.items()}}
            stacked = {f"report.{name}": value for name, value in _stacked(made).items()}
            write_checkpoint(saving.path, trial.fingerprint(), step, tensors | stacked)
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
    step, tensors = read_checkpoint(saving.path, trial.fingerprint())
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
    """Half of torch's threads compute while as many as there are draw the next prompts, or share compiled passes; yields that number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
