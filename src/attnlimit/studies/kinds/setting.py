"""What tasks about a head on a law share."""

from __future__ import annotations

from typing import Any, Literal

from attnlimit.attention import Head
from attnlimit.errors import AttnlimitError
from attnlimit.measures import Measure
from attnlimit.rates import horizon, rates
from attnlimit.studies.fields import Fields, Sizes
from attnlimit.studies.heads import HeadSpec
from attnlimit.studies.laws import Dtype, Law, like


class Setting(Fields):
    """A head on a law, at sizes n."""

    law: Law
    head: HeadSpec
    n: Sizes
    dtype: Dtype = "float64"
    device: Literal["cpu", "cuda"] = "cpu"

    def build(self) -> tuple[Head, Measure]:
        kind = like(self.dtype, self.device)
        law = self.law.build(kind)
        return self.head.build(law, kind), law

    def predicted(self) -> dict[str, Any]:
        """The horizon and the exponents as n → ∞, where they are known."""
        try:
            head, law = self.build()
            found = {"horizon": float(horizon(head, law)), "rates": rates(head, law).to_dict()}
        except AttnlimitError:
            return {
                "horizon": None,
                "rates": None,
            }  # no limit or no known rate; the numbers stand by themselves
        return found
