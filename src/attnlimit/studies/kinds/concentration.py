"""Outputs and gradients over prompts of L tokens against the infinite prompt, as `attnlimit.icl.concentration` has it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import PositiveInt

from attnlimit.errors import AttnlimitError
from attnlimit.icl.concentration import Trials, concentration, exact_outputs
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.sampling import Convergence
from attnlimit.studies.kind import Cell, Cells, Folder, Result, Row, crossed, table
from attnlimit.studies.setting import Limit, Setting, limit_record

QUANTITIES = ("output", "A", "V")


@dataclass(frozen=True, eq=False)
class Concentrated(Result):
    """Errors of outputs and of their derivatives in A and V, averaged over queries."""

    columns = table("replicate:int quantity:text n:int error square")
    by_replicate = ("errors",)

    what: Concentration
    errors: dict[str, Convergence]
    """By quantity."""

    def rows(self) -> Cells:
        for name, curve in self.curves.items():
            yield from crossed([range(curve.replicates), [name], self.n], curve.errors, curve.squares)

    @property
    def n(self) -> tuple[int, ...]:
        return tuple(self.what.n)

    @cached_property
    def limit(self) -> Limit | None:
        return self.what.limit()

    @cached_property
    def curves(self) -> dict[str, Convergence]:
        """By quantity, in order: a record has lost it."""
        return {name: self.errors[name] for name in QUANTITIES if name in self.errors}

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

    def summary(self) -> dict[str, object]:
        """Curves and fits of every quantity, and the exact rms error of the outputs."""
        record: dict[str, Any] = {"n": list(self.n), **limit_record(self.limit)}
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
            row |= {"largest n": self.n[-1], "rms at largest n": float(curve.rms[-1])}
            found.append({**row, "exponent": self.fits[name].exponent, "95 % from": low, "95 % to": high})
        return found

    def methods(self) -> Row:
        first = next(iter(self.curves.values()))
        return {"Method": first.method, "Compared with": first.reference}


class Concentration(Setting):
    """A head on the law of prompts, at prompt lengths n; queries follow the same law."""

    title = "outputs and gradients against prompt length"
    result = Concentrated
    together = True
    least = 2

    queries: PositiveInt = 64

    def run(self, replicates: int, seed: int, place: Folder) -> Concentrated:
        head, law = self.build()
        trials = Trials(replicates=replicates, queries=self.queries)
        found = concentration(head, law, self.n, trials=trials, exact=False, generator=seed)
        return Concentrated(self, dict(found.errors))
