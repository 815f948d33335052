"""The infinite-prompt solution in place of training: how good it is at finite length, and from which length on."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.files.records import Recorded, record
from attnlimit.icl.flow import flow
from attnlimit.icl.infinite import Block, Theta, Weights, as_theta, infinite_risk, regression
from attnlimit.icl.methods import Evaluation, Optimizer, Saving, Start
from attnlimit.icl.solutions import FiniteRisk, endpoint, finite_risk, sampled_losses, tuned
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.tasks.base import floors
from attnlimit.icl.train import train
from attnlimit.inputs import Count, Positive, Seeded, Steps, as_generator
from attnlimit.sampling.convergence import Progress

SAMPLED_LENGTHS = tuple(2**k for k in range(2, 13))
EXACT_LENGTHS = tuple(2**k for k in range(25))
CHECKED_ON, CHECK_SEED = 20_000, 2512_11788


@dataclass(frozen=True)
class TrainedCheck(Recorded):
    """Risks on the same fresh prompts, for models trained from several seeds."""

    also = ("holds",)

    length: int
    transferred: float
    trained: tuple[float, ...]
    """One a seed."""
    gap: float
    """(transferred − best trained)/risk of predicting 0: what training gained; negative where it lost."""
    gap_error: float
    """Standard error of the gap, from the differences on the same prompts."""
    rel_error: float
    method: str

    @property
    def holds(self) -> bool:
        """Whether training gained no more than rel_error, within two standard errors."""
        return self.gap <= self.rel_error + 2 * self.gap_error


@dataclass(frozen=True, eq=False, repr=False)
class Transfer(Drawn):
    """The infinite-prompt solution θ_∞ on prompts of finite length."""

    task: InContextTask
    weights: Weights
    """θ_∞, to start training from or to use in its place."""
    curve: FiniteRisk
    """R_L(θ_∞) against L."""
    floor: Float[Tensor, " lengths"]
    """What no trained model is below: the larger of the task's floor at L and the infinite-prompt risk of θ_∞."""
    floor_kind: str
    zero_risk: float
    """The risk of predicting 0, the unit of `rel_error`."""
    rel_error: float
    needed: int | None
    """Least length with R_L(θ_∞) − floor ≤ rel_error · zero_risk: there training gains no more than that. None: beyond the
    lengths looked at."""
    length: int | None
    """The length asked for."""
    tuned: Block | None
    """For that length, the best of the closed-form family of `attnlimit.icl.tuned`; None for tasks without one."""
    tuned_risk: float | None

    @property
    def excess(self) -> Float[Tensor, " lengths"]:
        """(R_L(θ_∞) − floor)/zero_risk: at most so much, in units of the zero predictor's risk, can training gain."""
        return (self.curve.risk - self.floor) / self.zero_risk

    def at(self, length: int) -> float:
        """R_L(θ_∞) at a length of the curve."""
        if length not in self.curve.lengths:
            raise InputError(
                f"The curve has no length {length}: it has {', '.join(map(str, self.curve.lengths))}."
            )
        return float(self.curve.risk[self.curve.lengths.index(length)])

    def __repr__(self) -> str:
        needed = f"more than {self.curve.lengths[-1]:,}" if self.needed is None else f"{self.needed:,}"
        words = f"Transfer({self.task!r}: within {self.rel_error:g} of any trained model from L = {needed} on"
        if self.length is not None:
            words += f"; risk {self.at(self.length):.4g} at L = {self.length:,}"
        if self.tuned_risk is not None:
            words += f", {self.tuned_risk:.4g} tuned"
        return words + f"; {self.curve.method})"

    def to_dict(self) -> dict[str, Any]:
        fields = record(self)
        return {**fields.pop("weights"), **fields}

    def check(
        self,
        length: Steps | None = None,
        *,
        optimizer: Optimizer = Optimizer(),  # noqa: B008  (frozen)
        start: Start = Start(),  # noqa: B008
        generator: Seeded = 0,
        progress: Progress | None = None,
    ) -> TrainedCheck:
        """Train at `length` (the one asked for, else the one needed) with `attnlimit.icl.train`, from its own start, and
        compare both models on 20,000 common prompts of that length. `progress` is called with steps done and steps in all."""
        chosen = next((one for one in (length, self.length, self.needed) if one is not None), None)
        if chosen is None:
            raise InputError("No length is enough here, so none is chosen to train at: give check(length=…).")
        run = train(
            self.task,
            chosen,
            optimizer=optimizer,
            evaluation=Evaluation(reports=1, prompts=1),  # risks are taken below
            start=start,
            generator=generator,
            saving=Saving(progress=progress),
        )
        ours = self._losses(self.weights, chosen)
        theirs = [self._losses(run.weights(chosen, seed), chosen) for seed in range(run.seeds)]
        best = min(theirs, key=lambda row: float(row.mean()))
        difference = (ours - best) / self.zero_risk
        return TrainedCheck(
            chosen,
            float(ours.mean()),
            tuple(float(row.mean()) for row in theirs),
            float(difference.mean()),
            float(difference.std()) / CHECKED_ON**0.5,
            self.rel_error,
            f"{optimizer}; {CHECKED_ON:,} common prompts",
        )

    def _losses(self, model: Weights, length: int) -> Float[Tensor, " prompts"]:
        model = Weights(*(matrix.double().cpu() for matrix in model))
        generator = as_generator(CHECK_SEED)
        return sampled_losses(self.task, model, (length,), CHECKED_ON, generator)[:, 0]


def transfer(
    task: InContextTask,
    length: Count | None = None,
    *,
    rel_error: Positive = 0.05,
    theta0: Theta | None = None,
    generator: Seeded = 0,
) -> Transfer:
    """The infinite-prompt solution θ_∞, its risk R_L(θ_∞) at every prompt length, and the length from which it is within
    `rel_error` of whatever training on prompts of that length can reach (relative to the risk of predicting 0):

        needed = min {L : R_L(θ_∞) − floor(L) ≤ rel_error · R(0)}.

    No trained model is below the task's floor (the Bayes risk), so this holds for every optimiser and number of steps; nothing
    is trained. For regression θ_∞ is the closed-form end of the flow on the leaf of theta0 (balanced unless given), R_L is exact
    (`finite_risk`), and with `length` a tuned solution for that length is added. For other tasks θ_∞ is the end of the flow from
    theta0 = (U, V) (‖∇R‖ ≤ 10⁻⁴), R_L is Monte Carlo on 4,096 prompts and `needed` one of the powers of 2 up to 4,096; where the
    head cannot reach the floor even with an infinite prompt, its risk there takes the floor's place, which assumes that training
    on finite prompts does not reach lower. `Transfer.check` trains and compares.

    >>> from attnlimit.icl import LinearRegression
    >>> transfer(LinearRegression(5)).needed
    733
    """
    theta = _solution(task, theta0)
    weights = theta.embed()
    zero = float(infinite_risk(task, *(torch.zeros_like(w) for w in weights)))
    reach = float(infinite_risk(task, *weights))
    exact = isinstance(theta, Block)
    lengths = sorted({*(EXACT_LENGTHS if exact else SAMPLED_LENGTHS), *([] if length is None else [length])})
    curve = finite_risk(task, theta, lengths, generator=generator)
    floor, kind = _floor(task, lengths, reach)

    def enough(L: int) -> bool:
        risk = float(finite_risk(task, theta, [L]).risk[0])
        return risk - float(_floor(task, [L], reach)[0]) <= rel_error * zero

    good = (curve.risk - floor <= rel_error * zero).tolist()
    first = next((i for i in range(len(lengths)) if all(good[i:])), None)
    needed = None if first is None else lengths[first]
    if exact and needed is not None and first:
        between = range(lengths[first - 1] + 1, needed)  # the excess falls with L
        needed = between.start + bisect_left(between, True, key=enough)
    tune = isinstance(task, LinearRegression)
    best, risk = tuned(task, length) if tune and length is not None else (None, None)
    return Transfer(task, weights, curve, floor, kind, zero, rel_error, needed, length, best, risk)


def _solution(task: InContextTask, theta0: Theta | None) -> Weights | Block:
    if theta0 is None:
        return endpoint(regression(task, "transfer without theta0"))
    theta = as_theta(task, theta0)
    if isinstance(theta, Block) and isinstance(task, LinearRegression):
        return endpoint(task, theta.conserved)
    return flow(task, theta, gradient_norm=1e-4, rtol=1e-6, atol=1e-8).end


def _floor(task: InContextTask, lengths: list[int], reach: float) -> tuple[Tensor, str]:
    """The task's floor where it is known, but not below what an infinite prompt reaches."""
    known = floors(task, tuple(lengths))
    if known is None:
        words = "infinite-prompt risk (no floor known)"
        return torch.full((len(lengths),), reach, dtype=torch.float64), words
    values = torch.tensor([floor.value for floor in known], dtype=torch.float64)
    kind = known[0].kind
    if bool((values < reach - 1e-12).any()):
        kind += ", or the infinite-prompt risk where that is larger"
    return values.clamp_min(reach), kind
