"""How many keys each head of a model attends to: made by an analysis, used by sampled attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError
from attnlimit.files.records import write_json
from attnlimit.inputs import Array, as_count, as_counts
from attnlimit.models.budget import budgets_file

MEASURED = ("predicted_error", "effective_keys", "visible_keys")


@dataclass(frozen=True)
class HeadBudget:
    """What one head attends to: the `kept` keys, and `sampled` more drawn from the others that the query sees."""

    layer: int
    head: int
    kept: Kept = field(default_factory=Kept)
    sampled: int | None = None
    """0: only the kept keys; None: full attention."""
    predicted_error: float | None = None
    """Relative rms error of the head's output."""
    effective_keys: float | None = None
    """Distinct keys really attended to, mean over the analysed queries."""
    visible_keys: float | None = None
    """Keys that full attention would attend to, mean over the same queries."""

    def __post_init__(self) -> None:
        where = _check_numbers(vars(self))
        if self.sampled == 0 and self.kept == Kept():
            raise InputError(
                f"{where} keeps no key and samples none, so there is nothing to attend to: sample at least one."
            )

    def distinct(self, length: int, causal: bool) -> float:
        """Keys per query, mean over the queries of a text of `length` tokens.

        A query that sees s keys keeps k of them and draws from the other R = s − k, so it reads k + min(n, R). Keys
        kept for their score are counted as if none were kept for another reason too.
        """
        position = np.arange(length)
        seen = position + 1 if causal else np.full(length, length)
        if self.sampled is None:
            return float(seen.mean())
        window = max(self.kept.window, int(self.kept.own))
        sinks = np.minimum(self.kept.sinks, seen)
        first = np.maximum(position - window + 1, 0)
        both = np.clip(np.minimum(sinks, position + 1) - first, 0, None) if window else 0
        near = np.minimum(window, position + 1)
        kept = np.minimum(sinks + near - both + self.kept.top, seen)
        rest = np.maximum(seen - kept, 0)
        return float((kept + np.minimum(self.sampled, rest)).mean())


@dataclass(frozen=True)
class Cost:
    """Keys attended to per query, against full attention, on texts of given lengths."""

    keys: float
    """Distinct keys per query, summed over the heads."""
    full: float
    """The same for full attention."""
    per_head: tuple[float, ...]
    """In the order of the budgets' entries."""

    @property
    def share(self) -> float:
        return self.keys / self.full

    def to_dict(self) -> dict[str, Any]:
        return {"keys": self.keys, "full": self.full, "share": self.share, "per_head": list(self.per_head)}


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """A budget for every layer and head of one model.

    >>> from attnlimit.designs.kept import Kept
    >>> budgets = Budgets.uniform([4, 4], 32, Kept(own=True), tokens=128)
    >>> budgets
    Budgets(2 layers × 4 heads, 32 sampled keys each, 33 keys per query and head, 25.8 % of full attention)
    >>> round(budgets.cost([16, 64], causal=False).share, 3)  # 16 keys at most on the short one
    0.544
    """

    model: str
    layers: int
    heads: int
    entries: tuple[HeadBudget, ...]
    """Sorted by layer, then head."""
    rel_error: float | None = None
    policy: str = ""
    scheme: str = budgets_file.SCHEME
    """How the sampled keys are drawn, which is what the errors are predicted for."""
    tokens: int | None = None
    """Context length the budgets were made for."""
    causal: bool = False
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_header(vars(self))
        entries = tuple(sorted(self.entries, key=lambda one: (one.layer, one.head)))
        _check_grid(entries, self.layers, self.heads)
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "versions", dict(self.versions))

    @classmethod
    def uniform(
        cls,
        infos: Iterable[Any],
        n: int | None,
        kept: Kept | None = None,
        *,
        model: str = "",
        tokens: int | None = None,
        causal: bool = False,
    ) -> Budgets:
        """The same for every head: n sampled keys (None: full attention) besides those kept. `infos` are the model's
        layers, as attention_layers(model) gives them (or just their numbers of heads). With `tokens` the effective
        keys are those expected for one text of that length."""
        counts = _heads(infos)
        if len(set(counts)) != 1 or counts[0] < 1:
            raise InputError(
                f"Budgets need the same number of heads, at least 1, in every layer, got {counts}."
            )
        one = HeadBudget(0, 0, Kept() if kept is None else kept, n)
        keys = None if tokens is None else one.distinct(as_count(tokens, "tokens"), causal)
        full = None if tokens is None else HeadBudget(0, 0).distinct(tokens, causal)
        entries = tuple(
            HeadBudget(layer, head, one.kept, n, None, keys, full)
            for layer in range(len(counts))
            for head in range(counts[0])
        )
        policy = "uniform: the same number of sampled keys for every head"
        return cls(
            model=model,
            layers=len(counts),
            heads=counts[0],
            entries=entries,
            policy=policy,
            tokens=tokens,
            causal=causal,
        )

    def layer(self, index: int) -> tuple[HeadBudget, ...]:
        """The budgets of one layer, by head."""
        return self.entries[index * self.heads : (index + 1) * self.heads]

    @property
    def total(self) -> float | None:
        """Distinct keys per query, summed over heads, on the analysed text (None: not measured)."""
        keys = [one.effective_keys for one in self.entries if one.effective_keys is not None]
        return sum(keys) if len(keys) == len(self.entries) else None

    @property
    def share(self) -> float | None:
        """`total` over the same sum for full attention on the analysed text (None: not measured)."""
        full = [one.visible_keys for one in self.entries if one.visible_keys is not None]
        return None if self.total is None or len(full) < len(self.entries) else self.total / sum(full)

    def cost(self, lengths: Array, causal: bool | None = None) -> Cost:
        """Expected keys attended to on texts of the given lengths (tokens), whatever length the budgets were made for:
        a query attends to no key that it does not see. Every query is taken to see its whole text (up to itself, if
        causal): sliding windows of the model are not counted."""
        causal = self.causal if causal is None else causal
        sizes, times = np.unique(as_counts(lengths, "lengths"), return_counts=True)
        share = sizes * times / (sizes * times).sum()

        def mean(one: HeadBudget) -> float:
            return float(share @ [one.distinct(int(size), causal) for size in sizes])

        kinds = {(one.kept, one.sampled): one for one in self.entries}
        known = {kind: mean(one) for kind, one in kinds.items()}
        each = tuple(known[one.kept, one.sampled] for one in self.entries)
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
        header = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "entries"}
        header["versions"] = dict(self.versions)
        entries = [asdict(one) for one in self.entries]
        return {
            "schema": budgets_file.SCHEMA,
            **header,
            "total": self.total,
            "share": self.share,
            "entries": entries,
        }

    def save(self, path: str | Path) -> Path:
        """Write the JSON file (schema in attnlimit.models.budget.budgets_file) whole or not at all."""
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Budgets:
        """Read a file that `save` wrote; anything missing, unknown or out of range is refused."""
        return budgets_file.read(path, cls.from_dict)

    @classmethod
    def from_dict(cls, record: object) -> Budgets:
        """From what `to_dict` gives, checked strictly."""
        names = [one.name for one in fields(cls)]
        header = budgets_file.checked(record, [*names, "total", "share"])
        _check_header(header)
        entries = tuple(_entry(one) for one in header["entries"])
        budgets = cls(**{**{name: header[name] for name in names}, "entries": entries})
        for name in ("total", "share"):
            stored, derived = header[name], getattr(budgets, name)
            if not _agree(stored, derived):
                raise InputError(
                    f"{name} is {stored!r}, but the entries make {derived!r}: the file was edited."
                )
        return budgets

    def __repr__(self) -> str:
        kinds = {one.sampled for one in self.entries}
        drawn = "full attention" if kinds == {None} else f"{_range(kinds)} sampled keys each"
        text = f"Budgets({self.layers} layers × {self.heads} heads, {drawn}"
        if self.total is not None:
            text += f", {self.total / len(self.entries):.3g} keys per query and head"
        if self.share is not None:
            text += f", {100 * self.share:.3g} % of full attention"
        return text + ")"


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < float("inf")


def _check_numbers(facts: Mapping[str, Any]) -> str:
    where = f"Budget of layer {facts['layer']!r}, head {facts['head']!r}"
    for name in ("layer", "head", "sampled"):
        value = facts[name]
        if value is None and name == "sampled":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{where}: {name} must be a whole number of at least 0, got {value!r}.")
    for name in MEASURED:
        if facts[name] is not None and not _is_number(facts[name]):
            raise InputError(
                f"{where}: {name} must be a finite number of at least 0 or None, got {facts[name]!r}."
            )
    return where


def _check_header(facts: Mapping[str, Any]) -> None:
    as_count(facts["layers"], "layers")
    as_count(facts["heads"], "heads")
    for name, kind in (
        ("model", str),
        ("policy", str),
        ("scheme", str),
        ("causal", bool),
        ("versions", Mapping),
    ):
        if not isinstance(facts[name], kind):
            raise InputError(f"{name} must be {kind.__name__}, got {facts[name]!r}.")
    if not all(isinstance(part, str) for pair in facts["versions"].items() for part in pair):
        raise InputError(f"versions must map package names to texts, got {facts['versions']!r}.")
    if facts["scheme"] != budgets_file.SCHEME:
        raise InputError(
            f"scheme must be {budgets_file.SCHEME!r}, the only way in which keys are drawn here, got {facts['scheme']!r}."
        )
    if facts["tokens"] is not None:
        as_count(facts["tokens"], "tokens")
    if facts["seed"] is not None and (isinstance(facts["seed"], bool) or not isinstance(facts["seed"], int)):
        raise InputError(f"seed must be a whole number or None, got {facts['seed']!r}.")
    if facts["rel_error"] is not None and not (_is_number(facts["rel_error"]) and facts["rel_error"] > 0):
        raise InputError(f"rel_error must be a finite number above 0 or None, got {facts['rel_error']!r}.")


def _check_grid(entries: tuple[HeadBudget, ...], layers: int, heads: int) -> None:
    places = [(one.layer, one.head) for one in entries]
    wanted = {(layer, head) for layer in range(layers) for head in range(heads)}
    if len(set(places)) < len(places):
        twice = next(place for place, after in pairwise(places) if place == after)
        raise InputError(f"Layer {twice[0]}, head {twice[1]} has two budgets: there must be one per head.")
    missing, foreign = sorted(wanted - set(places)), sorted(set(places) - wanted)
    if missing or foreign:
        what, (layer, head) = ("no budget for", missing[0]) if missing else ("a budget for", foreign[0])
        raise InputError(
            f"There is {what} layer {layer}, head {head}, but there are {layers} layers of {heads} heads "
            f"(counted from 0): {len(missing)} missing, {len(foreign)} too many."
        )


def _heads(model: Any) -> list[int]:
    """Heads of each layer, from numbers, layer infos or a model; 0 where only a call of the layer will tell."""
    if not isinstance(model, Iterable):
        from attnlimit.models.see.interface import attention_layers

        model = attention_layers(model)
    counts = [one if isinstance(one, int) else one.heads for one in model]
    if not counts:
        raise InputError("There are no attention layers to give budgets to.")
    return counts


def _shape(counts: list[int]) -> str:
    return f"{len(counts)} layers of {' or '.join(str(one) for one in sorted(set(counts)))} heads"


def _range(kinds: set[int | None]) -> str:
    numbers = sorted(one for one in kinds if one is not None)
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} … {numbers[-1]}"
    return text + (" (or all)" if None in kinds else "")


def _entry(record: Any) -> HeadBudget:
    names = [one.name for one in fields(HeadBudget)]
    budgets_file.same_fields(record, names, "an entry")
    where = f"layer {record['layer']!r}, head {record['head']!r}: kept"
    budgets_file.same_fields(record["kept"], [one.name for one in fields(Kept)], where)
    if not isinstance(record["kept"]["own"], bool):
        raise InputError(f"{where}.own must be true or false, got {record['kept']['own']!r}.")
    _check_numbers(record)
    measured = {name: None if record[name] is None else float(record[name]) for name in MEASURED}
    return HeadBudget(**{**record, **measured, "kept": Kept(**record["kept"])})


def _agree(stored: object, derived: float | None) -> bool:
    if stored is None or derived is None:
        return stored is derived
    return _is_number(stored) and abs(stored - derived) <= 1e-9 * derived  # type: ignore[operator]
