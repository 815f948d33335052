"""What a Monte Carlo experiment found: one row a replicate, and the curve with its standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.errors import NotKnown, RateNotResolved
from attnlimit.rates import PowerFit, fit_power

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_ROWS = 5


@dataclass(frozen=True, eq=False, repr=False)
class Convergence:
    """Errors of n tokens against the limit, for every replicate and n.

    Replicates are independent; the sizes within a replicate are not, since smaller sets of keys lie in
    larger ones. Fits must therefore resample whole replicates, as `.fit()` does.
    """

    n: tuple[int, ...]
    statistic: str
    squares: Float[Tensor, "replicates n"]
    """Squared errors, averaged over queries (map) or unbiased and so possibly negative (moments)."""
    norms: Float[Tensor, "replicates n"] | None
    """Errors, averaged over queries; None where only their squares can be estimated without bias."""
    method: str
    reference: str
    agreed: Int[Tensor, "replicates n"] | None = None
    """For the supremum: how many starts ended at the value reported."""

    @property
    def errors(self) -> Float[Tensor, "replicates n"]:
        """The rows: norms where known, else unbiased squares (`errors_are` says which)."""
        return self.squares if self.norms is None else self.norms

    @property
    def errors_are(self) -> str:
        return "unbiased squares" if self.norms is None else "norms"

    @property
    def replicates(self) -> int:
        return len(self.squares)

    @property
    def mean(self) -> Float[Tensor, " n"]:
        """Average error over the replicates."""
        return self._known_norms().mean(0)

    @property
    def mean_standard_error(self) -> Float[Tensor, " n"]:
        return self._known_norms().std(0) / self.replicates**0.5

    @property
    def rms(self) -> Float[Tensor, " n"]:
        """Root of the average squared error (0 where the unbiased average is not above 0)."""
        return self.squares.mean(0).clamp_min(0).sqrt()

    @property
    def rms_standard_error(self) -> Float[Tensor, " n"]:
        """By the delta method; infinite where the average square is not above 0."""
        return self.squares.std(0) / self.replicates**0.5 / (2 * self.rms)

    def fit(self, statistic: Literal["mean", "rms"] | None = None, **options: Any) -> PowerFit:
        """C n^{−exponent} through the curve `statistic` ("mean"; "rms" where norms are not known), with an
        interval from resampling whole replicates: `options` are those of `attnlimit.rates.fit_power`.

        Unbiased squares may be negative, and a curve of logarithms cannot be resampled through them: the rows
        resampled are then averages of as few replicates as make them all positive.
        """
        statistic = statistic or ("rms" if self.norms is None else "mean")
        if statistic == "mean":
            rows = self._known_norms()
        else:
            rows = (_positive_averages(self.squares) if self.norms is None else self.squares).sqrt()
        return fit_power(self.n, rows, statistic=statistic, **options)

    def rows(self) -> list[dict[str, int | float]]:
        """One record for every replicate and n: replicate, n, error (a norm or an unbiased square)."""
        return [
            {"replicate": r, "n": n, "error": error}
            for r, row in enumerate(self.errors.tolist())
            for n, error in zip(self.n, row, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        curve: dict[str, Any] = {
            "rms": self.rms.tolist(),
            "rms_standard_error": self.rms_standard_error.tolist(),
        }
        if self.norms is not None:
            curve |= {"mean": self.mean.tolist(), "mean_standard_error": self.mean_standard_error.tolist()}
        if self.agreed is not None:
            curve["agreed"] = self.agreed.tolist()
        return {
            "n": list(self.n),
            "statistic": self.statistic,
            **curve,
            "replicates": self.replicates,
            "errors": self.errors.tolist(),
            "errors_are": self.errors_are,
            "method": self.method,
            "reference": self.reference,
        }

    def plot(self) -> Figure:
        """The curve with its standard errors, on logarithmic axes."""
        return import_module("attnlimit.report.figures.convergence").convergence_figure(self)  # a layer above

    def __repr__(self) -> str:
        return (
            f"Convergence({self.statistic}, n = {self.n[0]} … {self.n[-1]}, "
            f"rms {float(self.rms[0]):.3g} … {float(self.rms[-1]):.3g}; {self.method})"
        )

    def _known_norms(self) -> Tensor:
        if self.norms is None:
            raise NotKnown(
                f"The mean of the {self.statistic} error is not known: from some of the queries only the squared "
                "error has no bias. Use .rms, or evaluate all of them (queries at least as many as n)."
            )
        return self.norms


def _positive_averages(squares: Float[Tensor, "replicates n"]) -> Float[Tensor, "rows n"]:
    """The rows, averaged in groups as small as make every entry positive, at least five groups."""
    for size in range(1, len(squares) // _LEAST_ROWS + 1):
        groups = squares.tensor_split(len(squares) // size)
        rows = torch.stack([group.mean(0) for group in groups])
        if bool((rows > 0).all()):
            return rows
    raise RateNotResolved(
        f"No rate can be fitted: averages of {len(squares)} unbiased squared errors, taken in {_LEAST_ROWS} groups, are not "
        "all above 0, so the noise of the queries left out exceeds the error. Use more queries or replicates."
    )
