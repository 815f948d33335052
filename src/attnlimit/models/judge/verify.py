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
from attnlimit.files.records import Recorded
from attnlimit.files.strict import to_record
from attnlimit.inputs import Count
from attnlimit.models.budget.budgets import Budgets, Predicted
from attnlimit.models.judge.intervals import Uncertain, averaged
from attnlimit.models.judge.probe import Probe, probe
from attnlimit.models.judge.tasks import Task
from attnlimit.models.judge.trial import SOLVED, Trial, Tried
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
class Allowed(Recorded):
    """What still counts as holding."""

    slack: float = 0.1
    """A head is above its prediction when the whole interval of its error is above (1 + slack)·predicted."""
    heads: float = 0.05
    """Share of heads that may be above."""
    drop: float = 0.02
    """Loss of the task's metric: accuracy lost, or relative growth of perplexity."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < torch.inf:
                raise InputError(f"{name} must be a finite number of at least 0, got {value!r}.")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Verification(Tried):
    """Full against sampled: errors of heads, layers and logits, the model's task, and whether the budgets hold."""

    also = ("holds", "verdict", "failures")
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
    sampled_value: Uncertain
    drop: Uncertain
    needles: tuple[Tried, ...] = ()
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
        most = torch.inf if predicted is None else (1 + self.allowed.slack) * max(predicted.high, ROUNDING)
        if predicted is not None and self.answer.low > most:
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
        if self.answer_predicted is not None:
            text += "the answer's error is as predicted, " if not known else "so is the answer's, "
        text += f"{self.full.name} loses {self.drop.value:.2%} (at most {self.allowed.drop:.2%} allowed)."
        if self.drop.high > self.allowed.drop:
            text += f" The interval reaches {self.drop.high:.2%}: more texts or seeds would settle it."
        if not self.judged:
            text += " Heads were not judged: one window with one seed gives no intervals."
        elif not known:
            single = "" if self.answer_predicted is None else " of single heads"
            text += f" They carry no predicted errors{single} to compare with."
        return text

    def to_dict(self) -> dict[str, Any]:
        """Fields and findings; heads, answer and task are objects of their own."""
        found = super().to_dict()
        grids = [found.pop(name) for name in ("predicted", "measured", "measured_low", "measured_high")]
        columns = dict(zip(("predicted", "measured", "low", "high"), grids, strict=True))
        columns["above"] = self.above.tolist()
        layers, heads = self.predicted.shape
        found["heads"] = [
            {"layer": layer, "head": head} | {name: grid[layer][head] for name, grid in columns.items()}
            for layer in range(layers)
            for head in range(heads)
        ]
        predicted = self.answer_predicted
        found["answer"] |= {"predicted": found.pop("answer_predicted") and to_record(predicted)}
        found["task"] = {name: found.pop(name) for name in ("full", "sampled", "sampled_value", "drop")}
        return found

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
    windows: Count = 8,
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
    found = token_windows(loaded.need_tokenizer(), given, trial.length(loaded), most=windows)
    seen = probe(loaded, budgets, found, seeds, per_query=trial.per_query, progress=steps.next())
    errors = [torch.nan if one.predicted_error is None else one.predicted_error for one in budgets.entries]
    task = trial.tried(loaded, budgets, given, steps)
    return Verification(
        model=loaded.name,
        seeds=seeds,
        tokens=trial.length(loaded),
        windows=len(found),
        level=level,
        allowed=allowed,
        predicted=torch.tensor(errors, dtype=torch.float64).view(budgets.layers, budgets.heads),
        answer_predicted=budgets.predicted if budgets.tokens == trial.length(loaded) else None,
        **_errors(seen, level),
        keys=seen.attended_keys,
        share=seen.attended_share,
        key_head_share=seen.key_head_share,
        **vars(task),
        needles=tuple(one.tried(loaded, budgets, given, steps, SOLVED) for one in more),
    )


def _errors(seen: Probe, level: float) -> dict[str, Any]:
    """Relative errors (Σ ‖sampled − full‖² / Σ ‖full‖²)^½ of heads and states, and the answer's, with their intervals."""
    generator = torch.Generator().manual_seed(0)

    def relative(error: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        both = torch.stack([error, square.expand_as(error)], -1)
        return averaged(both, level, lambda sums: (sums[..., 0] / sums[..., 1]).sqrt(), generator)

    heads = relative(seen.head_error, seen.head_square)
    states = torch.stack(relative(seen.hidden_error, seen.hidden_square), 1)
    found: dict[str, Any] = dict(zip(("measured", "measured_low", "measured_high"), heads, strict=True))
    found["hidden"] = tuple(Uncertain(*ends) for ends in states.tolist())
    for name in ("answer", "agreement"):
        cells = getattr(seen, name)
        found[name] = (
            cells if cells is None else Uncertain(*map(float, averaged(cells, level, generator=generator)))
        )
    return found
