"""What a concentration experiment found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from attnlimit.errors import InputError
from attnlimit.rates import ErrorCurve, PowerFit, fit_power
from attnlimit.sampling import Convergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Concentration:
    """Errors against prompt length, by name: output, A, V and, with a loss, loss_A and loss_V."""

    lengths: tuple[int, ...]
    errors: Mapping[str, Convergence]
    """Rows, one a replicate, and curves with standard errors."""
    exact: ErrorCurve | None
    """The exact error of the outputs, to lay beside errors["output"].rms."""
    prompt_law: str
    query_law: str

    def fit(
        self,
        name: str = "output",
        statistic: Literal["mean", "rms"] = "rms",
        *,
        from_length: int = 1,
        **options: Any,
    ) -> PowerFit:
        """error = C L^{−exponent} through the curve of that name, from `from_length` on, with an interval from resampling
        whole replicates; `options` are those of `attnlimit.rates.fit_power`."""
        if name not in self.errors:
            raise InputError(f"No error named {name!r}: there are {', '.join(self.errors)}.")
        keep = [i for i, length in enumerate(self.lengths) if length >= from_length]
        if len(keep) < 3:
            raise InputError(
                f"A rate needs at least 3 lengths, got {len(keep)} of {from_length} or more tokens: measure more of them."
            )
        found = self.errors[name]
        rows = found.errors if statistic == "mean" else found.squares.sqrt()
        return fit_power([self.lengths[i] for i in keep], rows[:, keep], statistic=statistic, **options)

    def rows(self) -> list[dict[str, Any]]:
        """One record for every quantity, replicate and length: quantity, replicate, length, error and square."""
        return [
            {"quantity": name, "replicate": r, "length": length, "error": error, "square": square}
            for name, found in self.errors.items()
            for r, (norms, squares) in enumerate(
                zip(found.errors.tolist(), found.squares.tolist(), strict=True)
            )
            for length, error, square in zip(self.lengths, norms, squares, strict=True)
        ]

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {float(found.rms[-1]):.3g}" for name, found in self.errors.items())
        return (
            f"Concentration({self.prompt_law}, L = {self.lengths[0]} … {self.lengths[-1]}; rms at the end: {last}; "
            f"{next(iter(self.errors.values())).method})"
        )

    def to_dict(self) -> dict[str, Any]:
        fits = {}
        if len(self.lengths) >= 3:
            fits = {name: self.fit(name).to_dict() for name in self.errors}
        return {
            "lengths": list(self.lengths),
            "prompt_law": self.prompt_law,
            "query_law": self.query_law,
            "errors": {name: found.to_dict() for name, found in self.errors.items()},
            "fits": fits,
            "exact": None if self.exact is None else self.exact.to_dict(),
        }

    def plot(self) -> Figure:
        """Each error against length with 95 % intervals, its fitted rate, and the exact curve of the outputs."""
        return import_module("attnlimit.report.figures.concentration").concentration_figure(self)
