"""Token laws and tokens: one type of object, a measure that knows its cumulant generating function.

A law is one file here: all that the library asks of it are methods of `Measure`, and its `spec` puts it into study
files and the command line.
"""

from attnlimit.discover import subclasses
from attnlimit.doors import doors
from attnlimit.measures.ball import Ball
from attnlimit.measures.base import Measure
from attnlimit.measures.box import Box
from attnlimit.measures.empirical import Empirical
from attnlimit.measures.from_sampler import FromSampler
from attnlimit.measures.gaussian import Gaussian
from attnlimit.measures.laplace import Laplace
from attnlimit.measures.mixture import Mixture
from attnlimit.measures.rademacher import Rademacher
from attnlimit.measures.sphere import Sphere
from attnlimit.measures.student_t import StudentT

__all__ = [
    "Ball",
    "Box",
    "Empirical",
    "FromSampler",
    "Gaussian",
    "Laplace",
    "Measure",
    "Mixture",
    "Rademacher",
    "Sphere",
    "StudentT",
    "laws",
]


def laws() -> dict[str, type[Measure]]:
    """Every law with a written form, by its name."""
    found: list[type[Measure]] = subclasses(__name__, Measure)  # type: ignore[type-abstract]
    return {law.spec.name: law for law in found if "spec" in vars(law)}


doors(__name__)
