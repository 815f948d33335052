"""Which n keys a query reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs.draw import Draw
from attnlimit.designs.independent import Independent
from attnlimit.designs.kept import Kept
from attnlimit.discover import built, record, subclasses
from attnlimit.errors import InputError
from attnlimit.inputs import shown


def draws() -> dict[str, type[Draw]]:
    """All ways of drawing, by name."""
    found: list[type[Draw]] = subclasses("attnlimit.designs", Draw)  # type: ignore[type-abstract]
    return {one.name: one for one in found}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What a query always keeps, how it draws n of the others, and what a drawn key weighs: as it is ("plain"), or for
    all the rest that it was drawn from, R/n times ("rest").

    >>> from attnlimit.designs import Different
    >>> Sampling(draw=Different(), kept=Kept(own=True, sinks=4), weight="rest")
    Sampling(different keys for all the rest, keeping the own token and 4 sinks)
    """

    draw: Draw = field(default_factory=Independent)
    kept: Kept = field(default_factory=Kept)
    weight: Literal["plain", "rest"] = "plain"

    def stands_for(self, rest: Float[Tensor, "m 1"], n: Float[Tensor, "#m k"]) -> Float[Tensor, "m k"]:
        """How many keys of the rest each drawn one weighs for: R/min(n, R), or 1."""
        if self.weight == "plain":
            return (n * 0 + 1).expand(len(rest), -1)
        return rest / (n if self.draw.repeats else n.minimum(rest.clamp_min(1)))

    def keys(self, n: int, position: Int[Tensor, " m"], seen: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        """Keys that queries at these positions of a text read, kept and drawn, of the first `seen`: never more."""
        kept = self.kept.count(position, seen)
        return kept + (seen - kept).clamp_max(n)

    def __repr__(self) -> str:
        return f"Sampling({self})"

    def __str__(self) -> str:
        """In words."""
        kept = [
            "the own token" * self.kept.own,
            *(
                f"{count} {what}"
                for count, what in (
                    (self.kept.sinks, "sinks"),
                    (self.kept.window, "before"),
                    (self.kept.around, "around"),
                    (self.kept.top, "of largest score"),
                )
                if count
            ),
        ]
        drawn = self.draw.words + (" for all the rest" if self.weight == "rest" else "")
        named = [one for one in kept if one]
        return drawn + (f", keeping {' and '.join(named)}" if named else "")

    def to_dict(self) -> dict[str, object]:
        """What differs from the default: {"draw": "different", "kept": {"sinks": 4}, "weight": "rest"}."""
        plain = asdict(Kept())
        kept = {name: value for name, value in asdict(self.kept).items() if value != plain[name]}
        found = {"draw": record(self.draw.name, self.draw), "kept": kept, "weight": self.weight}
        return {name: value for name, value in found.items() if value not in ("independent", {}, "plain")}

    @classmethod
    def from_dict(cls, given: object) -> Sampling:
        """From what `to_dict` gives, checked."""
        if not isinstance(given, Mapping) or not set(given) <= {"draw", "kept", "weight"}:
            raise InputError(f"A sampling has the fields draw, kept and weight, got {shown(given)}.")
        draw = built(draws(), given.get("draw", "independent"), "draw")
        try:
            return cls(draw=draw, kept=Kept(**given.get("kept", {})), weight=given.get("weight", "plain"))
        except TypeError as problem:
            raise InputError(f"A sampling cannot be read from {shown(given)}: {problem}.") from problem


PLAIN = Sampling()
"""Independent keys, none kept, each as it is: how the tokens of a law are drawn."""
