"""Do budgets hold? The model with all its keys against the model with its budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.files.strict import to_record
from attnlimit.inputs import as_count
from attnlimit.models.budget.budgets import Budgets, Predicted
from attnlimit.models.judge.intervals import Uncertain, bounds, compared, crossed_means, uncertain
from attnlimit.models.judge.needles import NeedleResult, needle_result
from attnlimit.models.judge.probe import Probe, probe
from attnlimit.models.judge.tasks import Task, TaskResult
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.gradient import CHANGE, NATS
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document, as_documents, token_windows

ROUNDING = 1e-6
"""An answer's error below this is rounding."""
FLOOR = 1e-3
"""Relative errors below this are rounding, whatever was predicted."""


@door
@dataclass(frozen=True)
class Allowed:
    """What still counts as holding."""

    slack: float = 0.1
    """A head is above its prediction when the whole interval of its error is above (1 + slack)·predicted."""
    heads: float = 0.05
    """Share of heads that may be above."""
    drop: float = 0.02
    """Loss of the task's metric: accuracy lost, or relative growth of perplexity."""

    def __post_init__(self) -> None:
        for name in ("slack", "heads", "drop"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(f"{name} must be a finite number of at least 0, got {value!r}.")


@dataclass(frozen=True, eq=False, repr=False)
class Verification:
    """Full against sampled: errors of heads, layers and logits, the model's task, and whether the budgets hold."""

    unknown: ClassVar[str] = "predicted is nan where budgets do not say"

    model: str
    seeds: tuple[int, ...]
    tokens: int
    windows: int
    level: float
    allowed: Allowed
    predicted: Float[Tensor, "layers heads"]
    """Relative rms error of each head's output as the budgets have it; nan where they do not say."""
    measured: Float[Tensor, "layers heads"]
    """The same, measured from the full model's own q, k and v."""
    measured_low: Float[Tensor, "layers heads"]
    measured_high: Float[Tensor, "layers heads"]
    hidden: tuple[Uncertain, ...]
    """Relative rms error of the hidden states behind each layer, errors of earlier layers included."""
    answer: Uncertain
    """KL(full ‖ sampled), nats per position; for an encoder the squared change of its embedding."""
    answer_predicted: Predicted | None
    """The same as the budgets have it; None: they do not say, or say it for another length."""
    agreement: Uncertain | None
    keys: float
    """Distinct keys per query and head in the sampled runs."""
    share: float
    """The same over those of full attention."""
    key_head_share: float
    """The share of its keys that a key head gives, all query heads of its group together: what memory sees."""
    full: TaskResult
    sampled: tuple[TaskResult, ...]
    """One a seed."""
    sampled_value: Uncertain
    drop: Uncertain
    """What is lost of the metric: full − sampled, or sampled/full − 1 for perplexity."""
    needles: tuple[NeedleResult, ...] = ()
    """Needle tasks, if asked for; they do not enter the verdict."""

    @property
    def judged(self) -> bool:
        """Whether heads have intervals: one window with one seed gives none."""
        return self.windows * len(self.seeds) > 1

    @property
    def above(self) -> Tensor:
        """(layers, heads): True where the measured error is surely above the predicted one; nowhere without intervals."""
        surely = self.measured_low > (1 + self.allowed.slack) * self.predicted.clamp_min(FLOOR)
        return surely if self.judged else torch.zeros_like(surely)

    @property
    def ratio(self) -> Tensor:
        """(layers, heads): measured over predicted error, both at least what rounding makes."""
        return self.measured.clamp_min(FLOOR) / self.predicted.clamp_min(FLOOR)

    @property
    def unit(self) -> str:
        """Of the answer's error."""
        return CHANGE if self.agreement is None else f"{NATS} per position"

    @property
    def failures(self) -> list[str]:
        """Why the budgets fail, in sentences; empty when they hold."""
        found, known, above = [], int((~self.predicted.isnan()).sum()), int(self.above.sum())
        if above > self.allowed.heads * known:
            ratio = self.ratio.masked_fill(~self.above, -1.0)
            layer, head = divmod(int(ratio.argmax()), ratio.shape[1])
            found.append(
                f"{above} of {known} heads have an error more than {self.allowed.slack:.0%} above the predicted one "
                f"({self.allowed.heads:.0%} may); worst is layer {layer}, head {head}: "
                f"{self.measured[layer, head]:.3g} measured, {self.predicted[layer, head]:.3g} predicted."
            )
        predicted = self.answer_predicted
        if predicted is not None and self.answer.low > (1 + self.allowed.slack) * max(
            predicted.high, ROUNDING
        ):
            found.append(f"The answer's error is {self.answer!r} {predicted.unit}, predicted {predicted}.")
        if not self.drop.value <= self.allowed.drop:
            found.append(
                f"{self.full.name} goes from {self.full.value:.4g} to {self.sampled_value.value:.4g}: a loss of "
                f"{self.drop.value:.2%}, more than the {self.allowed.drop:.2%} allowed."
            )
        return found

    @property
    def holds(self) -> bool:
        return not self.failures

    @property
    def verdict(self) -> str:
        """Whether the budgets hold, in words."""
        if not self.holds:
            return "The budgets FAIL. " + " ".join(self.failures)
        known = bool((~self.predicted.isnan()).any()) and self.judged
        text = "The budgets hold: " + ("head errors are as predicted and " if known else "")
        text += f"{self.full.name} loses {self.drop.value:.2%} (at most {self.allowed.drop:.2%} allowed)."
        if self.drop.high > self.allowed.drop:
            text += f" The interval reaches {self.drop.high:.2%}: more texts or seeds would settle it."
        if not self.judged:
            text += " Heads were not judged: one window with one seed gives no intervals."
        elif not known:
            text += " They carry no predicted errors to compare with."
        return text

    def to_dict(self) -> dict[str, Any]:
        layers, heads = self.predicted.shape
        per_head = [
            {"layer": layer, "head": head, "predicted": float(self.predicted[layer, head])}
            | {"measured": float(self.measured[layer, head]), "low": float(self.measured_low[layer, head])}
            | {"high": float(self.measured_high[layer, head]), "above": bool(self.above[layer, head])}
            for layer in range(layers)
            for head in range(heads)
        ]
        return {
            "model": self.model,
            "holds": self.holds,
            "verdict": self.verdict,
            "failures": self.failures,
            "allowed": {"slack": self.allowed.slack, "heads": self.allowed.heads, "drop": self.allowed.drop},
            "seeds": list(self.seeds),
            "tokens": self.tokens,
            "windows": self.windows,
            "level": self.level,
            "keys": self.keys,
            "share": self.share,
            "key_head_share": self.key_head_share,
            "heads": per_head,
            "hidden": [one.to_dict() for one in self.hidden],
            "answer": {
                **self.answer.to_dict(),
                "predicted": None if self.answer_predicted is None else to_record(self.answer_predicted),
            },
            "agreement": None if self.agreement is None else self.agreement.to_dict(),
            "task": {
                "full": self.full.to_dict(),
                "sampled": [one.to_dict() for one in self.sampled],
                "sampled_value": self.sampled_value.to_dict(),
                "drop": self.drop.to_dict(),
            },
            "needles": [one.to_dict() for one in self.needles],
        }

    def __repr__(self) -> str:
        return (
            f"Verification({'holds' if self.holds else 'FAILS'}: {self.full.name} {self.full.value:.4g} → "
            f"{self.sampled_value!r} with {100 * self.share:.3g} % of the keys)"
        )


@door
def verify(
    loaded: Loaded,
    budgets: Budgets,
    texts: Sequence[str | Document],
    *,
    windows: int = 8,
    trial: Trial | None = None,
    allowed: Allowed | None = None,
    needles: Sequence[Task] = (),
    progress: Progress | None = None,
) -> Verification:
    """Compare the model with itself under budgets, on `windows` windows of text and on the examples of a trial, by
    default as long as the budgets were made for.

    Heads are compared on the full model's own q, k, v, over the kind of queries that an analysis draws, so that the
    measured error is the predicted one's counterpart; hidden states, logits and task in whole sampled runs, once for
    each seed. Intervals come from resampling seeds and examples together. `needles` are further tasks, tried with the
    budgets where the full model solves them.
    """
    budgets.check_fits(loaded.model)
    trial, allowed = trial or Trial(), allowed or Allowed()
    trial = replace(trial, tokens=budgets.tokens) if trial.tokens is None else trial
    given, seeds, level = as_documents(texts), tuple(trial.seeds), trial.level
    more = [replace(trial, task=one) for one in needles]
    for one in more:  # what cannot be made is refused before the long work
        one.task_of(loaded).rows(one.run(loaded, given))
    steps = Steps(progress, 1 + (1 + len(more)) * (1 + len(seeds)))
    most = as_count(windows, "windows")
    found = token_windows(loaded.need_tokenizer(), given, trial.length(loaded), most=most)
    seen = probe(loaded, budgets, found, seeds, per_query=trial.per_query, progress=steps.next())
    full = trial.evaluate(loaded, given, steps.next())
    sampled = trial.sampled(loaded, budgets, given, steps)
    value, drop = compared(full, sampled, level)
    return Verification(
        model=loaded.name,
        seeds=seeds,
        tokens=trial.length(loaded),
        windows=len(found),
        level=level,
        allowed=allowed,
        predicted=_predicted(budgets),
        answer_predicted=budgets.predicted if budgets.tokens == trial.length(loaded) else None,
        **_errors(seen, level),
        keys=seen.attended_keys,
        share=seen.attended_share,
        key_head_share=seen.key_head_share,
        full=full,
        sampled=sampled,
        sampled_value=value,
        drop=drop,
        needles=tuple(needle_result(loaded, budgets, given, one, steps) for one in more),
    )


def _predicted(budgets: Budgets) -> Tensor:
    errors = [one.predicted_error for one in budgets.entries]
    flat = [torch.nan if error is None else error for error in errors]
    return torch.tensor(flat, dtype=torch.float64).view(budgets.layers, budgets.heads)


def _errors(seen: Probe, level: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    head, low, high = _relative(seen.head_error, seen.head_square, level, generator)
    states = [
        tensor.tolist() for tensor in _relative(seen.hidden_error, seen.hidden_square, level, generator)
    ]
    found: dict[str, Any] = {"measured": head, "measured_low": low, "measured_high": high}
    found["hidden"] = tuple(Uncertain(*ends) for ends in zip(*states, strict=True))
    for name in ("answer", "agreement"):
        cells = getattr(seen, name)
        known = cells is not None
        found[name] = uncertain(cells.mean(), crossed_means(cells, generator), level) if known else None
    return found


def _relative(
    error: Tensor, square: Tensor, level: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """(Σ ‖sampled − full‖² / Σ ‖full‖²)^½ over windows and seeds, and its interval."""
    both = torch.stack([error, square.expand_as(error)], -1)
    resampled, means = crossed_means(both, generator), both.mean((0, 1))
    low, high = bounds((resampled[..., 0] / resampled[..., 1]).sqrt(), level)
    return (means[..., 0] / means[..., 1]).sqrt(), low, high
