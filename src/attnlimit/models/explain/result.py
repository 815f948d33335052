"""An explanation as an object, and its record.

The record is a JSON object, made so that 1,000 tokens of a model with 270 heads take under 6 MB. It has the fields of
`Explanation`, schema, and roles (the eight names, in the order of every list of shares). The arrays of the map, for every
head and token, are {"dtype", "shape", "data": base64, little-endian}:

    keys      u2 (heads, tokens, 4)  the keys of largest weight, largest first
    weights   u1 (heads, tokens, 4)  their attention weights times 255; 0: no such key
    certainty u1 (heads, tokens)     times 255
    matters   u1 (heads, tokens)     10^((q − 1)/16 − 12), q = 0 for nothing; null if the answer was not looked at
    seen      u2 (layers, tokens)    how many keys a query sees
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from jaxtyping import Float, UInt8, UInt16
from pydantic import Field, NonNegativeFloat, PositiveFloat

from attnlimit.errors import InputError
from attnlimit.files.records import write_json
from attnlimit.files.strict import OwnRecord, Seed, from_record, read_record, record, to_record
from attnlimit.models.see.fields import Counted, Some, Whole

SCHEMA = "attnlimit.explain/1"
REMEDY = "`attnlimit explain MODEL --out DIR` makes one."
ROLES = (
    "own token",
    "sink",
    "previous token",
    "same token",
    "induction",
    "window",
    "content",
    "broad average",
)
"""A partition of a head's attention: see attnlimit.models.explain.roles."""
NAMED = 4
"""Keys that the map names for every token and head."""
KINDS = {"keys": "u2", "weights": "u1", "certainty": "u1", "matters": "u1", "seen": "u2"}
"""The arrays of the map."""
DECADES, STEPS = 12, 16
"""`matters` is kept on a logarithmic scale from 10^−12 on, so many steps a factor of ten."""

P = TypeVar("P", "HeadRoles", "HeadRead")
Interval = tuple[float, float, float]
"""A number, and both ends of its interval."""
T = TypeVar("T")
ByRole = Annotated[tuple[T, ...], Field(min_length=len(ROLES), max_length=len(ROLES))]


@record
class HeadRoles:
    """One head over all tokens of the text."""

    layer: Whole
    head: Whole
    shares: ByRole[Interval]
    """Of its attention, by role; they sum to 1. Intervals by resampling stretches of the text."""
    chance: ByRole[NonNegativeFloat]
    """The same, if what it reads beyond a plain average fell on keys regardless of their role."""
    made: ByRole[Interval] | None
    """Shares on random tokens that are repeated once, at the second time; None: not looked at."""
    made_chance: ByRole[NonNegativeFloat] | None
    horizon: NonNegativeFloat
    effective_keys: NonNegativeFloat
    """1/Σp², the median over queries."""
    keys_needed: NonNegativeFloat
    """n(ε): keys that a query reads so that the head's rms error is at most rel_error (`attnlimit analyze`)."""
    needs_all: bool
    visible_keys: PositiveFloat
    sensitivity: NonNegativeFloat | None
    """What the answer loses, to second order, if its queries read the plain average of what they see: nats a token (a
    classifier: a text; an encoder: the squared change of its embedding)."""

    def share(self, role: str) -> Interval:
        """Of its attention, on the text."""
        return self.shares[_number(role)]

    def plays(self, role: str) -> bool:
        """Whether a role has more of the attention than chance, by the whole interval; and the broad average, if half."""
        k = _number(role)
        return self.shares[k][1] > (self.chance[k] if k < len(ROLES) - 1 else 0.5)

    @property
    def leading(self) -> str:
        """The role with the largest share among those that it plays, else the broad average."""
        played = [role for role in ROLES if self.plays(role)]
        return max(played, key=lambda role: self.share(role)[0], default=ROLES[-1])


@record
class Link:
    """Spearman's rank correlation of a role's share and a quantity, over heads, with its interval."""

    role: str
    quantity: str
    value: float
    low: float
    high: float


@record
class Lost:
    """What became of the answer, summed over the text, when only this was read: the named keys with their weights and the
    average of the others for the rest; and as many random keys with theirs and the average of the others."""

    named: NonNegativeFloat
    random: NonNegativeFloat
    """Mean over random sets."""


@record
class HeadRead:
    """What a head reads at one token: some keys by weight, and the average of the others."""

    layer: Whole
    head: Whole
    needed: Whole
    """Keys by weight until the output is explained: ‖Σ_S p v + (1 − P_S) v̄ − Γ‖ ≤ ε‖Γ‖, v̄ the plain average of the others."""
    needed_for_answer: Whole | None
    """The same for the answer: E(gᵀ(…))² ≤ ε² E(gᵀΓ)²."""
    keys: tuple[Whole, ...]
    """The needed ones, the first 16 of them if there are more."""
    weights: tuple[NonNegativeFloat, ...]
    others: Whole
    """How many keys are left when the needed ones are named."""
    others_weight: NonNegativeFloat
    certainty: NonNegativeFloat
    """1 − ‖Γ̂ − Γ‖²/‖v̄ − Γ‖² of the first four keys: the part of what the head picks, beyond the average of all it sees,
    that they account for."""
    weight_interval: tuple[float, float]
    """Of the weight of all needed keys, if of the others only a random half is seen."""
    matters: NonNegativeFloat | None
    """What the answer loses, to second order, if this query reads the plain average of what it sees."""
    agreement: NonNegativeFloat | None
    """Share of the four keys that matter most to the answer which two halves of the labels drawn from it have in common."""
    predicted: Lost | None
    """To second order."""
    measured: Lost | None
    """Tried out; None: not for this head."""


@record
class TokenRead:
    """A token, and what every head reads there."""

    token: Whole
    reads: Some[HeadRead]
    measured: Lost | None
    """All heads together."""

    def read(self, layer: int, head: int) -> HeadRead:
        """What one head reads there."""
        return _of(self.reads, layer, head)


@record
class Tokens:
    """Word pieces and where they stand in the text: text[start:end], start = end for those that the tokenizer added."""

    pieces: Some[str]
    start: tuple[Whole, ...]
    end: tuple[Whole, ...]
    special: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len({*map(len, (self.pieces, self.start, self.end, self.special))}) > 1:
            raise InputError("pieces, start, end and special of tokens must be as many.")

    def __len__(self) -> int:
        return len(self.pieces)


@dataclass(frozen=True, eq=False)
class Map:
    """The keys of largest weight of every token and head, and how far they can be trusted."""

    keys: UInt16[np.ndarray, "heads tokens named"]
    weights: UInt8[np.ndarray, "heads tokens named"]
    certainty: UInt8[np.ndarray, "heads tokens"]
    matters: UInt8[np.ndarray, "heads tokens"] | None
    seen: UInt16[np.ndarray, "layers tokens"]

    def matter(self) -> Float[np.ndarray, "heads tokens"] | None:
        """What the answer loses if a head reads the plain average at a token, to a step of 15 %."""
        if self.matters is None:
            return None
        return np.where(self.matters > 0, 10.0 ** ((self.matters - 1.0) / STEPS - DECADES), 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {name: None if one is None else packed(one) for name, one in vars(self).items()}

    @classmethod
    def from_dict(cls, given: object) -> Map:
        if not isinstance(given, dict) or sorted(given) != sorted(KINDS):
            raise InputError(f"map must have the arrays {', '.join(KINDS)}.")
        parts = {
            name: unpacked(given[name], name, kind)
            for name, kind in KINDS.items()
            if name != "matters" or given[name] is not None
        }
        heads, tokens = parts["keys"].shape[:2]
        layers = parts["seen"].shape[0]
        wanted = {"keys": (heads, tokens, NAMED), "weights": (heads, tokens, NAMED), "seen": (layers, tokens)}
        if any(one.shape != wanted.get(name, (heads, tokens)) for name, one in parts.items()):
            shapes = {name: one.shape for name, one in parts.items()}
            raise InputError(f"the map's arrays do not fit together: their shapes are {shapes}.")
        if int(parts["keys"].max(initial=0)) >= tokens:
            raise InputError(f"the map names key {parts['keys'].max()}, but there are {tokens} tokens.")
        return cls(matters=parts.pop("matters", None), **parts)


@record
class Explanation:
    """What every head of a model reads on a text: what was explained and how, and then what was found."""

    model: str
    kind: str
    title: str
    text: str
    """As far as it was read."""
    cut: bool
    """Whether more text follows that was not read."""
    rel_error: PositiveFloat
    level: PositiveFloat
    """Of intervals."""
    seed: Seed
    draws: Whole
    """Labels drawn from the model's own answer; 0: it was not looked at."""
    trials: Counted
    """Random sets of keys that are tried."""
    unit: str | None
    """What the answer's loss is counted in."""
    method: str
    tokens: Tokens
    heads: Some[HeadRoles]
    links: tuple[Link, ...]
    map: Annotated[Map, OwnRecord]
    chosen: tuple[TokenRead, ...]

    def __post_init__(self) -> None:
        heads, tokens = self.map.keys.shape[:2]
        if (heads, tokens) != (len(self.heads), len(self.tokens)):
            raise InputError(
                f"The map is of {heads} heads and {tokens} tokens, but there are {len(self.heads)} heads and "
                f"{len(self.tokens)} tokens."
            )
        reads = [read for one in self.chosen for read in one.reads]
        named = [one.token for one in self.chosen] + [key for read in reads for key in read.keys]
        if max(named, default=0) >= tokens or any(len(read.keys) != len(read.weights) for read in reads):
            raise InputError(
                f"What is read at chosen tokens must be keys of the {tokens} tokens, with a weight for each."
            )

    def __repr__(self) -> str:
        return f"Explanation({self.model}, {len(self.heads)} heads, {len(self.tokens)} tokens)"

    def head(self, layer: int, head: int) -> HeadRoles:
        """One head over the whole text."""
        return _of(self.heads, layer, head)

    def words(self, read: HeadRead, most: int = NAMED) -> str:
        """What a head reads at a token: keys with their weights, and the average of the others."""
        shown = [
            f"{self.tokens.pieces[key].strip()} ({key}) {weight:.2f}"
            for key, weight in zip(read.keys[:most], read.weights[:most], strict=True)
        ]
        hidden = read.needed - len(shown)
        if hidden:
            weight = max(0.0, 1.0 - read.others_weight - sum(read.weights[:most]))
            shown.append(f"{hidden} more {weight:.2f}")
        if read.others:
            shown.append(f"average of {read.others} others {read.others_weight:.2f}")
        return ", ".join(shown)

    def to_dict(self) -> dict[str, Any]:
        """See the top of this file."""
        return {"schema": SCHEMA, "roles": list(ROLES), **to_record(self)}

    def save(self, path: str | Path) -> Path:
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """Read a file that `save` wrote, strictly."""
        return read_record(Path(path), SCHEMA, cls._read, "explanation", REMEDY)

    @classmethod
    def _read(cls, given: dict[str, Any]) -> Explanation:
        if given.pop("roles", None) != list(ROLES):
            raise InputError(f"roles must be {', '.join(ROLES)}.")
        parts = {"heads": HeadRoles, "links": Link, "chosen": TokenRead}
        named = {name: (kind, f"{name}, number") for name, kind in parts.items()}
        return from_record(cls, given, "the explanation", **named)


def _of(parts: Sequence[P], layer: int, head: int) -> P:
    for one in parts:
        if (one.layer, one.head) == (layer, head):
            return one
    last = parts[-1]
    raise InputError(
        f"There is no head {head} of layer {layer}: the last one is head {last.head} of layer {last.layer}."
    )


def _number(role: str) -> int:
    if role not in ROLES:
        raise InputError(f"A role is one of {', '.join(ROLES)}; got {role!r}.")
    return ROLES.index(role)


def packed(array: np.ndarray) -> dict[str, Any]:
    """An array of u1 or u2 as JSON knows it.

    >>> packed(np.array([[1, 2]], np.uint16))
    {'dtype': 'u2', 'shape': [1, 2], 'data': 'AQACAA=='}
    """
    kind = f"u{array.dtype.itemsize}"
    data = base64.b64encode(array.astype(f"<{kind}").tobytes()).decode()
    return {"dtype": kind, "shape": list(array.shape), "data": data}


def unpacked(given: Any, name: str, kind: str) -> np.ndarray:
    """What `packed` was made of; `kind` is u1 or u2."""
    try:
        if given["dtype"] != kind or len(given["shape"]) < 2:
            raise ValueError(f"dtype {given['dtype']!r:.20}, shape {given['shape']!r:.40}")
        data = base64.b64decode(given["data"], validate=True)
        return np.frombuffer(data, f"<{kind}").reshape(given["shape"]).astype(kind)
    except (KeyError, TypeError, ValueError) as problem:
        raise InputError(f"map: {name} is not an array of {kind} ({problem}).") from problem
