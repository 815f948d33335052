"""The exact error of the outputs, averaged over queries of any law."""

from __future__ import annotations

from dataclasses import replace

from attnlimit.attention import Head
from attnlimit.errors import NotKnown
from attnlimit.exact import curve, exact_error
from attnlimit.measures import Measure
from attnlimit.rates import ErrorCurve

POPULATION, QUERIES, SEED = 2**16, 128, 2512_11787


def exact_outputs(
    head: Head, law: Measure, lengths: tuple[int, ...], queries: Measure | None = None
) -> ErrorCurve:
    """(E_x E‖Γ_L − Γ‖²)^{1/2} without sampled prompts. Queries of the prompt law are averaged as in `curve`, others over 128
    of them. Laws without a projected form (Box and Rademacher off the axes) are stood for by 65,536 of their tokens."""
    try:
        if queries is None:
            return curve(head, law, lengths)
        return _averaged(head, law, lengths, queries, "")
    except NotKnown:
        population = law.sample(POPULATION, generator=SEED)
        words = f" for a population of {POPULATION:,} tokens of the law"
        return _averaged(head, population, lengths, law if queries is None else queries, words)


def _averaged(head: Head, law: Measure, lengths: tuple[int, ...], queries: Measure, words: str) -> ErrorCurve:
    x = queries.sample(QUERIES, generator=SEED + 1).tokens
    result = exact_error(head, law, lengths, x)
    found = result.curve()
    error = result.mean_square.std(0) / (2 * found.error) / QUERIES**0.5
    method = f"{result.method}{words}, averaged over {QUERIES} random queries"
    return replace(found, standard_error=error, method=method)
