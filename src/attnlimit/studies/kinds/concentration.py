"""Outputs and gradients over prompts of L tokens against the infinite prompt, as `attnlimit.icl.concentration` has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt

from attnlimit.errors import AttnlimitError
from attnlimit.icl.concentration import Trials, concentration, exact_outputs
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.sampling import Convergence
from attnlimit.studies.kind import Array, Cell, Column, Kind, Result, Row
from attnlimit.studies.setting import Limit, Setting, told

QUANTITIES = ("output", "A", "V")


class Concentration(Setting):
    """A head on the law of prompts, at prompt lengths n; queries follow the same law."""

    queries: PositiveInt = 64


@dataclass(frozen=True, eq=False)
class Concentrated(Result):
    """Errors of outputs and of their derivatives in A and V, averaged over queries."""

    columns: ClassVar[Mapping[str, Column]] = {
        "replicate": "int",
        "quantity": "text",
        "n": "int",
        "error": "float",
        "square": "float",
    }

    what: Concentration
    squares: dict[str, Array]
    """By quantity, (replicates, n)."""
    norms: dict[str, Array]

    def rows(self) -> Iterator[Sequence[Cell]]:
        for name, curve in self.curves.items():
            for replicate, (errors, squares) in enumerate(
                zip(curve.errors.tolist(), curve.squares.tolist(), strict=True)
            ):
                for n, error, square in zip(self.n, errors, squares, strict=True):
                    yield replicate, name, n, error, square  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Concentrated]) -> Concentrated:
        squares, norms = (
            {name: torch.cat([getattr(one, kept)[name] for one in parts]) for name in parts[0].squares}
            for kept in ("squares", "norms")
        )
        return cls(parts[0].what, squares, norms)

    @property
    def n(self) -> tuple[int, ...]:
        return tuple(self.what.n)

    @cached_property
    def limit(self) -> Limit | None:
        return self.what.limit()

    @cached_property
    def curves(self) -> dict[str, Convergence]:
        """By quantity."""
        count = len(next(iter(self.squares.values())))
        method = f"Monte Carlo, {count} replicates"
        return {
            name: Convergence(self.n, name, squares, self.norms[name], method, "infinite prompt")
            for name, squares in sorted(self.squares.items(), key=lambda one: QUANTITIES.index(one[0]))
        }

    @cached_property
    def fits(self) -> dict[str, PowerFit]:
        """Of the rms error of every quantity."""
        return {name: curve.fit("rms") for name, curve in self.curves.items()}

    @cached_property
    def exact(self) -> ErrorCurve | None:
        """The exact error of the outputs, where it is known."""
        try:
            head, law = self.what.build()
            return exact_outputs(head, law, self.n)
        except AttnlimitError:
            return None

    def summary(self) -> dict[str, Any]:
        """Curves and fits of every quantity, and the exact rms error of the outputs."""
        record: dict[str, Any] = {"n": list(self.n), **told(self.limit)}
        for name, curve in self.curves.items():
            record[name] = {
                "rms": curve.rms.tolist(),
                "rms_standard_error": curve.rms_standard_error.tolist(),
                "fit": self.fits[name].to_dict(),
            }
            record["replicates"] = curve.replicates
        record["exact_output_rms"] = None if self.exact is None else self.exact.error.tolist()
        return record

    def shown(self) -> list[Row]:
        """A line for each quantity."""
        found: list[Row] = []
        for name, curve in self.curves.items():
            low, high = self.fits[name].interval
            row: dict[str, Cell] = {
                "quantity": name,
                "horizon": None if self.limit is None else self.limit.horizon,
            }
            row |= {"largest n": self.n[-1], "rms there": float(curve.rms[-1])}
            found.append({**row, "exponent": self.fits[name].exponent, "95 % from": low, "95 % to": high})
        return found

    def methods(self) -> Row:
        return {"Method": next(iter(self.curves.values())).method, "Compared with": "infinite prompt"}


def run(what: Concentration, replicates: int, seed: int, place: Path | None) -> Concentrated:
    head, law = what.build()
    trials = Trials(replicates=replicates, queries=what.queries)
    found = concentration(head, law, what.n, trials=trials, exact=False, generator=seed)
    squares = {name: one.squares.double() for name, one in found.errors.items()}
    return Concentrated(what, squares, {name: one.errors.double() for name, one in found.errors.items()})


KIND = Kind(
    name="concentration",
    title="outputs and gradients against prompt length",
    what=Concentration,
    result=Concentrated,
    run=run,
    check=Concentration.build,
    together=True,
    least=2,
)
