"""What can be asked for: one place that turns the arguments into a Plan or says what is wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from attnlimit.attention import Head, LinearHead
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count, as_counts
from attnlimit.measures import Empirical, Measure
from attnlimit.sampling.policies import NAMES
from attnlimit.sampling.replicates import Plan

STATISTICS = ("map", "mean", "covariance", "moment", "sup")
_DEFAULT_QUERIES = 256


def checked_plan(
    head: Head,
    law: Measure,
    n: object,
    statistic: str,
    queries: Array | int | None,
    policy: str,
    *,
    self_attention: bool,
    width: int | None,
    positions: Array | None,
) -> Plan:
    """The experiment's setting, every part of it checked against the others."""
    if head.heads:
        raise InputError(f"measure_convergence takes one head at a time, got {head!r}: see head.each().")
    if isinstance(head, LinearHead):
        raise InputError(
            "measure_convergence is for softmax attention; a linear head's error is that of an average."
        )
    head.check_fits(law)
    sizes = tuple(sorted(set(as_counts(n))))
    check_policy(policy, law, sizes)
    given, m = _queries(head, queries, statistic)
    if self_attention:
        _check_own_queries(given, policy, statistic)
    where, width = _window(policy, law, sizes, given, positions, width)
    if policy == "window" and statistic == "sup":
        raise InputError("statistic 'sup' needs keys that all queries share, policy 'window' has none.")
    return Plan(head, law, sizes, policy, m, self_attention, given, where, width)


def check_policy(policy: str, law: Measure, sizes: tuple[int, ...]) -> None:
    """The policy must be known, and the law a population large enough for it."""
    if policy not in NAMES:
        raise InputError(f"Unknown policy {policy!r}: use one of {', '.join(NAMES)}.")
    if policy == "iid":
        return
    if not isinstance(law, Empirical):
        raise InputError(
            f"policy {policy!r} draws from a finite population, but {law!r} is a law: use 'iid', or an Empirical."
        )
    if law.weights is not None:
        raise InputError(f"policy {policy!r} draws equally weighted keys; a weighted population takes 'iid'.")
    if sizes[-1] > len(law):
        raise InputError(
            f"n = {sizes[-1]} keys were asked for, but the population has {len(law)} and policy {policy!r} "
            "does not repeat them: use smaller n, or 'iid'."
        )


def _check_own_queries(given: Tensor | None, policy: str, statistic: str) -> None:
    reasons = {
        "but queries were given": given is not None,
        "but a window's queries are members of the population already": policy == "window",
        "but statistic 'sup' has all points of a ball, not the tokens": statistic == "sup",
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"self_attention=True makes the n tokens the queries, {reason}: leave it out.")


def _queries(head: Head, queries: Array | int | None, statistic: str) -> tuple[Tensor | None, int]:
    """The queries given, if any, and how many there are."""
    if queries is None or isinstance(queries, int):
        m = _DEFAULT_QUERIES if queries is None else as_count(queries, "queries")
        if m < 2 and statistic not in ("map", "sup"):
            raise InputError(
                f"queries must be at least 2 for statistic {statistic!r}, got {m}: their spread is taken off."
            )
        return None, m
    x = head.checked(queries)
    if x.ndim != 2 or len(x) == 0:
        raise InputError(
            f"queries must have shape (m, {head.query_dim}) or be a number, got {tuple(x.shape)}."
        )
    return x, len(x)


def _window(
    policy: str,
    law: Measure,
    sizes: tuple[int, ...],
    queries: Tensor | None,
    positions: Array | None,
    width: int | None,
) -> tuple[Tensor | None, int | None]:
    """Positions (None: to be drawn) and width of a window."""
    if policy != "window" or not isinstance(law, Empirical):
        if width is not None or positions is not None:
            raise InputError(f"window= and positions= are for policy 'window', got policy {policy!r}.")
        return None, None
    if width is None:
        raise InputError("policy 'window' needs window=, the number of keys around each query.")
    width = as_count(width, "window")
    if sizes[0] < width:
        raise InputError(f"n = {sizes[0]} is smaller than the window of {width} keys: use n ≥ {width}.")
    if (queries is None) != (positions is None):
        raise InputError(
            "policy 'window' needs to know where each query stands: give positions= with queries=, "
            "or neither, and positions are drawn."
        )
    if positions is None or queries is None:
        return None, width
    where = torch.as_tensor(positions, device=law.device)
    if where.shape != (len(queries),) or where.is_floating_point():
        raise InputError(f"positions must be {len(queries)} whole numbers, one a query, got {positions!r}.")
    if int(where.min()) < 0 or int(where.max()) >= len(law):
        raise InputError(
            f"positions must lie in 0 … {len(law) - 1}, got {int(where.min())} … {int(where.max())}."
        )
    return where.long(), width
