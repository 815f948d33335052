"""Training on finite prompts: all lengths at once against one plain loop per model, and how few steps are needed."""

from __future__ import annotations

import math
from time import perf_counter

import torch
from torch import Tensor

from attnlimit.icl import Evaluation, LinearRegression, Optimizer, Saving, Start, Training, ar1, train
from benchmarks._figures import figure
from benchmarks._timing import Ratio

LENGTHS = [*range(10, 101, 10), *range(200, 1001, 100)]
DIM, NOISE, BATCH, LR, STEPS = 5, 0.1, 128, 1e-3, 300_000
COVARIANCES = [torch.eye(DIM, dtype=torch.float64), ar1(DIM, 0.5)]
ATTENTIONS = ("softmax", "linear")
EVALUATION = Evaluation(reports=(0,), prompts=2**16)


def plain_steps(cov: Tensor, length: int, attention: str, steps: int) -> None:
    """What one would write: one model, one length, fresh prompts each step, torch's autograd and SGD."""
    g = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(cov).float()
    U, V = (torch.nn.Parameter(0.1 * torch.randn(DIM + 1, DIM + 1, generator=g)) for _ in range(2))
    optimizer = torch.optim.SGD([U, V], lr=LR)
    for _ in range(steps):
        w = torch.randn(BATCH, DIM, generator=g) / math.sqrt(DIM)
        x = torch.randn(BATCH, length, DIM, generator=g) @ root.T
        y = (x @ w[:, :, None])[..., 0] + math.sqrt(NOISE) * torch.randn(BATCH, length, generator=g)
        tokens = torch.cat([x, y[..., None]], -1)
        asked = torch.randn(BATCH, DIM, generator=g) @ root.T
        query, target = torch.nn.functional.pad(asked, (0, 1)), (asked * w).sum(-1)
        scores = (tokens @ (query @ U.T)[:, :, None])[..., 0]
        weights = scores.softmax(-1) if attention == "softmax" else scores / length
        output = (weights[:, None] @ tokens)[:, 0] @ V.T
        loss = (output[:, -1] - target).square().mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain_seconds(attention: str, steps: int) -> float:
    """Per step of all models of one attention, both covariances; with one of torch's threads or all, whichever is faster."""
    threads, found = torch.get_num_threads(), []
    for count in {1, threads}:
        torch.set_num_threads(count)
        start = perf_counter()
        for cov in COVARIANCES:
            for length in LENGTHS:
                plain_steps(cov, length, attention, steps)
        found.append((perf_counter() - start) / steps)
    torch.set_num_threads(threads)
    return min(found)


def together_seconds(attention: str, steps: int) -> float:
    """The same in `train`, from its step 50 to 50 before its end, so that start, reports and flow are left out."""
    total = 0.0
    for cov in COVARIANCES:
        marks: dict[int, float] = {}
        train(
            LinearRegression(DIM, cov, noise=NOISE),
            LENGTHS,
            attention=attention,
            optimizer=Optimizer(lr=LR, batch=BATCH, steps=steps),
            evaluation=Evaluation(reports=(0,), prompts=16),
            saving=Saving(progress=lambda done, _, marks=marks: marks.setdefault(done, perf_counter())),  # type: ignore[misc]
        )
        total += (marks[steps - 50] - marks[50]) / (steps - 100)
    return total


def speed(quick: bool) -> list[dict[str, object]]:
    seconds: dict[str, list[float]] = {f"{who} {a}": [] for who in ("plain", "together") for a in ATTENTIONS}
    for turn in range(2 if quick else 7):
        for attention in ATTENTIONS[:: -1 if turn % 2 else 1]:
            seconds[f"plain {attention}"].append(plain_seconds(attention, 2 if quick else 15))
            seconds[f"together {attention}"].append(together_seconds(attention, 200 if quick else 500))
    softmax, linear = (Ratio(seconds[f"plain {a}"], seconds[f"together {a}"]) for a in ATTENTIONS)
    both = Ratio(*([sum(p) for p in zip(*pair, strict=True)] for pair in zip(
        (softmax.seconds, softmax.base), (linear.seconds, linear.base), strict=True)))  # fmt: skip
    models = len(LENGTHS) * len(COVARIANCES) * len(ATTENTIONS)
    return [
        figure(
            "steps per second of the sweep, plain loop = 1", both.median, "×", at_least=30, **both.details()
        ),
        figure("softmax alone", softmax.median, "×", at_least=20, **softmax.details()),
        figure("linear alone", linear.median, "×", **linear.details()),
        figure("one step of all models", 1e3 * min(both.base), "ms", models=models),
        figure("the same in plain loops", 1e3 * min(both.seconds), "ms", models=models),
    ]


def few_steps(quick: bool) -> list[dict[str, object]]:
    """Final risks of the published SGD and of the variance-reduced mode, on the same evaluation prompts."""
    cov, lengths = (COVARIANCES[0], [10, 30]) if quick else (COVARIANCES[1], [10, 30])
    task = LinearRegression(DIM, cov, noise=NOISE)
    many = Optimizer(lr=0.01, steps=10_000) if quick else Optimizer(lr=LR, steps=STEPS)
    few = Optimizer(
        lr=0.1 if quick else 0.05,
        steps=many.steps // 20,
        schedule="cosine",
        variance_reduction="control",
        batch=BATCH,
    )
    worst, details = 0.0, {}
    for attention in ATTENTIONS:
        slow, fast = (
            train(task, lengths, attention=attention, optimizer=how, evaluation=EVALUATION)
            for how in (many, few)
        )
        details[attention] = {"reference": slow.risk[-1, 0].tolist(), "few steps": fast.risk[-1, 0].tolist()}
        worst = max(worst, _difference(fast, slow))
    share = few.steps / many.steps
    stays = _stays(few, [100] if quick else [300], 500 if quick else 10_000, cov)
    return [
        figure("final risk, few steps against the reference", worst, "relative", at_most=0.01, lengths=lengths,
               share=share, reference=str(many), few=str(few), **details),
        figure("share of the reference's steps", share, "", at_most=1 / 20),
        figure("risk moved when the reference goes on", stays, "relative", at_most=0.01,
               how="longer prompts: few steps, then more of the published SGD from there"),
    ]  # fmt: skip


def _stays(few: Optimizer, lengths: list[int], more: int, cov: Tensor) -> float:
    """The largest relative change of risk when plain SGD at the published step size goes on from few steps' weights."""
    task, worst = LinearRegression(DIM, cov, noise=NOISE), 0.0
    on_and_on = Optimizer(lr=LR, steps=more, batch=BATCH)
    for attention in ATTENTIONS:
        for length in lengths:
            fast = train(task, length, attention=attention, optimizer=few, evaluation=EVALUATION)
            start = Start(init=fast.weights(length))
            on = train(
                task, length, attention=attention, optimizer=on_and_on, start=start, evaluation=EVALUATION
            )
            worst = max(worst, _difference(on, fast))
    return worst


def _difference(one: Training, other: Training) -> float:
    return float((one.risk[-1] / other.risk[-1] - 1).abs().max())


def run(quick: bool) -> dict[str, object]:
    return {
        "setting": f"regression, d = {DIM}, {len(LENGTHS)} lengths 10 … 1,000, softmax and linear, batch {BATCH}, SGD {LR}, "
        f"Σ = I and 0.5^|i−j|, noise {NOISE}, w ~ N(0, I/d)",
        "figures": speed(quick) + few_steps(quick),
    }
