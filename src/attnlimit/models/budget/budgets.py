"""How many keys each head of a model attends to: made by an analysis, used by sampled attention.

The file is JSON, schema "attnlimit.budgets/3": every field of `Budgets` is there (`weights` not in older files) and no
others, numbers are finite, null only where None may be; `total` and `share` are there for readers, and must be what the entries make.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat

from attnlimit.designs import Different, Sampling
from attnlimit.designs.by_query import FEWEST
from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.files.records import write_json
from attnlimit.files.strict import OwnRecord, Seed, from_record, read_record, record, to_record, with_schema
from attnlimit.inputs import Array, as_count, as_counts, shown
from attnlimit.models.budget.needed import RANDOM
from attnlimit.models.see.fields import MOST, Counted, Whole
from attnlimit.models.see.gradient import NATS
from attnlimit.models.see.layers import attention_layers

SCHEMA = "attnlimit.budgets/3"
REMEDY = "Make budgets with attnlimit budget."


@record
class Predicted:
    """What sampling does to the model's answer, before it is tried, with its interval over texts, queries and labels."""

    value: NonNegativeFloat
    low: NonNegativeFloat
    high: NonNegativeFloat
    unit: str
    """nats of KL a token (a classifier: a text), or the squared change of an encoder's embedding."""

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.2g}, {self.high:.2g}] {self.unit}"


@record
class HeadBudget:
    """A sampling with an n: what one head attends to. With `by_query` its queries keep as many top keys and draw as many
    as suits each (attnlimit.designs.by_query)."""

    layer: Whole
    head: Whole
    sampling: Annotated[Sampling, OwnRecord] = RANDOM
    n: Whole | None = None
    """Keys drawn besides the kept ones; 0: only those; None: full attention."""
    predicted_error: NonNegativeFloat | None = None
    """Relative rms error of the head's output."""
    keys: NonNegativeFloat | None = None
    """Keys that a query reads, kept and drawn, mean over the analysed queries."""
    visible_keys: NonNegativeFloat | None = None
    """Keys that full attention would read, mean over the same queries."""
    by_query: NonNegativeFloat | None = None
    """Keys drawn per unit of a query's spread, but at least n; None: n for every query."""
    answer: NonNegativeFloat | None = None
    """What the head adds to the predicted error of the model's answer."""

    def __post_init__(self) -> None:
        where = f"Budget of layer {self.layer}, head {self.head}"
        if not isinstance(self.sampling.draw, Different):
            raise InputError(
                f"{where} draws {self.sampling.draw.words}, but models draw different keys: use draw=Different()."
            )
        if max(astuple(self.sampling.kept)) > MOST:
            raise InputError(f"{where} keeps {self.sampling.kept}: numbers of keys are at most {MOST:,}.")
        if self.by_query is not None and (self.n != FEWEST or self.sampling.weight != "rest"):
            raise InputError(
                f"{where} follows its queries, so n must be {FEWEST}, the fewest keys drawn, and weigh for all the rest; got "
                f"n = {self.n}, weight {self.sampling.weight!r}."
            )
        if self.n == 0 and not self.sampling.kept:
            raise InputError(
                f"{where} keeps no key and samples none, so there is nothing to attend to: sample at least one."
            )

    def read(self, length: int, causal: bool) -> float:
        """Keys that a query reads, mean over those of a text of `length` tokens."""
        if self.by_query is not None:
            raise InputError(
                f"Layer {self.layer}, head {self.head} reads as many keys as each query needs, which only the text tells: "
                "run it inside sampled_attention, or make budgets by head (by_query=False)."
            )
        position = torch.arange(length)
        seen = position + 1 if causal else torch.full((length,), length)
        keys = seen if self.n is None else self.sampling.keys(self.n, position, seen)
        return float(keys.double().mean())


@dataclass(frozen=True)
class Cost:
    """Keys attended to per query, against full attention, on texts of given lengths."""

    keys: float
    """Keys per query, summed over the heads."""
    full: float
    """The same for full attention."""
    per_head: tuple[float, ...]
    """In the order of the budgets' entries."""

    @property
    def share(self) -> float:
        return self.keys / self.full

    def to_dict(self) -> dict[str, object]:
        return {"keys": self.keys, "full": self.full, "share": self.share, "per_head": list(self.per_head)}


@door
@record
class Budgets:
    """A budget for every layer and head of one model.

    >>> from attnlimit.designs import Different, Kept, Sampling
    >>> own = Sampling(draw=Different(), kept=Kept(own=True), weight="rest")
    >>> budgets = Budgets.uniform([4, 4], 32, own, tokens=128)
    >>> budgets
    Budgets(2 layers × 4 heads, 32 sampled keys each, 33 keys per query and head, 25.8 % of full attention)
    >>> round(budgets.cost([16, 64], causal=False).share, 3)  # 16 keys at most on the short one
    0.544
    """

    model: str
    layers: Counted
    heads: Counted
    entries: tuple[HeadBudget, ...]
    """Sorted by layer, then head."""
    rel_error: PositiveFloat | None = None
    """Error asked for in every head."""
    policy: str = ""
    """In words, how the budgets were chosen."""
    tokens: Counted | None = None
    """Context length they were made for."""
    causal: bool = False
    """Whether a query sees only keys up to its own position."""
    seed: Seed | None = None
    """Of the analysis."""
    predicted: Predicted | None = None
    """The answer's error, on texts of `tokens` tokens."""
    text: str = ""
    """Which text they were made on, and how much of it."""
    space: str = ""
    """What they were chosen from."""
    group: Counted = 1
    """Neighbouring heads that read the same keys: all that one of them keeps, and the same drawn ones."""
    versions: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    """What the model's weights are known by; nothing in older files."""

    def __post_init__(self) -> None:
        entries = tuple(sorted(self.entries, key=lambda one: (one.layer, one.head)))
        _check_grid(entries, self.layers, self.heads)
        object.__setattr__(self, "entries", entries)
        if self.heads % self.group:
            raise InputError(
                f"{self.heads} heads cannot be put in groups of {self.group}: group must divide them."
            )
        for one, first in ((one, entries[place - place % self.group]) for place, one in enumerate(entries)):
            if (one.by_query is not None and self.group > 1) or (one.sampling, one.n) != (
                first.sampling,
                first.n,
            ):
                raise InputError(
                    f"Layer {one.layer}: heads {first.head} and {one.head} read the same keys, so they need the same budget, "
                    "by head and not by query."
                )

    @classmethod
    def uniform(
        cls,
        infos: Iterable[Any],
        n: int | None,
        sampling: Sampling = RANDOM,
        *,
        model: str = "",
        tokens: int | None = None,
        causal: bool = False,
    ) -> Budgets:
        """The same for every head: n keys drawn (None: full attention) besides those kept. `infos` are the model's
        layers, as attention_layers(model) gives them (or just their numbers of heads). With `tokens` the keys are those
        of one text of that length."""
        counts = _heads(infos)
        if len(set(counts)) != 1 or counts[0] < 1:
            raise InputError(
                f"Budgets need the same number of heads, at least 1, in every layer, got {counts}."
            )
        known = None if tokens is None else as_count(tokens, "tokens")
        keys, full = (
            None if known is None else HeadBudget(0, 0, sampling, m).read(known, causal) for m in (n, None)
        )
        return cls(
            model=model,
            layers=len(counts),
            heads=counts[0],
            entries=tuple(
                HeadBudget(layer, head, sampling, n, None, keys, full)
                for layer in range(len(counts))
                for head in range(counts[0])
            ),
            policy="uniform: the same number of sampled keys for every head",
            tokens=known,
            causal=causal,
        )

    def layer(self, index: int) -> tuple[HeadBudget, ...]:
        """The budgets of one layer, by head."""
        return self.entries[index * self.heads : (index + 1) * self.heads]

    @property
    def total(self) -> float | None:
        """Keys that a query reads, summed over heads, on the analysed text (None: not measured)."""
        return _sum(one.keys for one in self.entries)

    @property
    def share(self) -> float | None:
        """`total` over the same sum for full attention on the analysed text (None: not measured)."""
        full = _sum(one.visible_keys for one in self.entries)
        return None if self.total is None or full is None else self.total / full

    @property
    def predicted_kl(self) -> float | None:
        """Nats a token that the sampled model is expected to lose (None: not known)."""
        known = self.predicted is not None and self.predicted.unit == NATS
        return self.predicted.value if known and self.predicted is not None else None

    def cost(self, lengths: Array, causal: bool | None = None) -> Cost:
        """Expected keys attended to on texts of the given lengths (tokens), whatever length the budgets were made for:
        a query attends to no key that it does not see. Every query is taken to see its whole text (up to itself, if
        causal): sliding windows of the model are not counted."""
        causal = self.causal if causal is None else causal
        sizes, times = np.unique(as_counts(lengths, "lengths"), return_counts=True)
        share = sizes * times / (sizes * times).sum()

        def mean(one: HeadBudget) -> float:
            return float(share @ [one.read(int(size), causal) for size in sizes])

        kinds = {(one.sampling, one.n, one.by_query): one for one in self.entries}
        known = {kind: mean(one) for kind, one in kinds.items()}
        each = tuple(known[one.sampling, one.n, one.by_query] for one in self.entries)
        return Cost(sum(each), mean(HeadBudget(0, 0)) * len(each), each)

    def check_fits(self, model: Any) -> None:
        """Refuse a model (or its list of layers) with another number of layers or heads."""
        counts = _heads(model)
        if len(counts) != self.layers or any(count not in (0, self.heads) for count in counts):
            raise InputError(
                f"These budgets, made for {self.model or 'an unnamed model'}, are for {_shape([self.heads] * self.layers)}, "
                f"but the model has {_shape(counts)}: budgets hold for the model they were made for. "
                "Analyse this one."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and text: what the file holds."""
        return {"schema": SCHEMA, **to_record(self), "total": self.total, "share": self.share}

    def save(self, path: str | Path) -> Path:
        """Write the JSON file whole or not at all."""
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Budgets:
        """Read a file that `save` wrote; anything missing, unknown, out of range or edited is refused."""
        return read_record(Path(path), SCHEMA, cls._read, "budgets file", REMEDY)

    @classmethod
    def from_dict(cls, given: object) -> Budgets:
        """From what `to_dict` gives, checked strictly."""
        return cls._read(with_schema(given, SCHEMA, REMEDY))

    @classmethod
    def _read(cls, given: dict[str, Any]) -> Budgets:
        derived = {name: given.pop(name) for name in ("total", "share") if name in given}
        budgets = from_record(cls, {"weights": "", **given}, "the file", entries=(HeadBudget, "entry"))
        for name in ("total", "share"):
            if (stored := derived.get(name, "missing")) != getattr(budgets, name):
                raise InputError(
                    f"{name} is {stored!r}, but the entries make {getattr(budgets, name)!r}: the file was edited."
                )
        return budgets

    def __repr__(self) -> str:
        kinds = {one.n for one in self.entries if one.by_query is None}
        drawn = "full attention" if kinds == {None} else f"{_range(kinds)} sampled keys each" if kinds else ""
        if following := sum(one.by_query is not None for one in self.entries):
            drawn += f"{', ' * bool(drawn)}{following} heads by query"
        text = f"Budgets({self.layers} layers × {self.heads} heads, {drawn}"
        if self.total is not None:
            text += f", {self.total / len(self.entries):.3g} keys per query and head"
        if self.share is not None:
            text += f", {100 * self.share:.3g} % of full attention"
        if self.predicted is not None:
            text += f", predicted {self.predicted}"
        return text + ")"


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None


def _check_grid(entries: tuple[HeadBudget, ...], layers: int, heads: int) -> None:
    places = [(one.layer, one.head) for one in entries]
    for (layer, head), same in groupby(places):
        if len(list(same)) > 1:
            raise InputError(f"Layer {layer}, head {head} has two budgets: there must be one per head.")
    foreign = [place for place in places if place[0] >= layers or place[1] >= heads]
    lacking = layers * heads - len(places) + len(foreign)
    if lacking or foreign:
        known = set(places)
        missing = ((k, h) for k in range(layers) for h in range(heads) if (k, h) not in known)
        what, (layer, head) = ("no budget for", next(missing)) if lacking else ("a budget for", foreign[0])
        raise InputError(
            f"There is {what} layer {layer}, head {head}, but there are {layers} layers of {heads} heads "
            f"(counted from 0): {lacking} missing, {len(foreign)} too many."
        )


def _heads(model: Any) -> list[int]:
    """Heads of each layer, from numbers, layer infos or a model; 0 where only a call of the layer will tell."""
    layers = (
        model
        if isinstance(model, Iterable) and not isinstance(model, str | torch.Tensor | np.ndarray)
        else None
    )
    if layers is None:
        if not hasattr(model, "named_modules"):
            raise InputError(
                f"model must be a model (load(name).model) or the heads of its layers, got {shown(model)}."
            )
        layers = attention_layers(model)
    counts: list[Any] = [one if isinstance(one, int) else getattr(one, "heads", None) for one in layers]
    if not all(isinstance(one, int) for one in counts):
        raise InputError(f"model must be a model, or a number of heads for each layer, got {shown(model)}.")
    if not counts:
        raise InputError("There are no attention layers to give budgets to.")
    return counts


def _shape(counts: list[int]) -> str:
    return f"{len(counts)} layers of {' or '.join(str(one) for one in sorted(set(counts)))} heads"


def _range(kinds: set[int | None]) -> str:
    numbers = sorted(one for one in kinds if one is not None)
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} … {numbers[-1]}"
    return text + (" (or all)" if None in kinds else "")
