"""The exact error of n-token attention, averaged over queries: no replicates, no noise where the law allows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnlimit.exact.curve import query_average
from attnlimit.rates import ErrorCurve
from attnlimit.studies.kind import Cells, Folder, Row, table
from attnlimit.studies.setting import CurveResult, Limit, Setting, limit_record


@dataclass(frozen=True, eq=False)
class ExactCurves(CurveResult):
    """Both averages over queries of the error."""

    columns = table("n:int rms rms_standard_error mean_rms mean_rms_standard_error")

    rms: ErrorCurve
    mean_rms: ErrorCurve
    limit: Limit | None

    @property
    def curve(self) -> ErrorCurve:
        return self.rms

    @property
    def sharp(self) -> float | None:
        return None if self.limit is None else float(self.limit.rates.rms)

    def rows(self) -> Cells:
        both = [part.tolist() for one in (self.rms, self.mean_rms) for part in (one.error, _noise(one))]
        yield from zip(self.rms.n, *both, strict=True)

    def summary(self) -> dict[str, object]:
        return {
            "n": list(self.rms.n),
            "rms": self.rms.error.tolist(),
            "mean_rms": self.mean_rms.error.tolist(),
            "local_slope": self.rms.local_slopes().tolist(),
            "scale": self.rms.scale,
            "standard_error": {"rms": _noise(self.rms).tolist(), "mean_rms": _noise(self.mean_rms).tolist()},
            "method": self.rms.method,
            **limit_record(self.limit),
        }

    def methods(self) -> Row:
        return {"Method": self.rms.method}


def _noise(curve: ErrorCurve) -> Tensor:
    return curve.error * 0 if curve.standard_error is None else curve.standard_error


class Exact(Setting):
    """A head on a law, at sizes n up to 10^12."""

    title = "exact error curves"
    result = ExactCurves
    noise = False

    def run(self, replicates: int, seed: int, place: Folder) -> ExactCurves:
        head, law = self.build()
        return ExactCurves(*query_average(head, law, max(self.n))(self.n), self.limit())
