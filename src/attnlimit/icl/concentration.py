"""How fast outputs and gradients over L tokens approach those of an infinite prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.attention.linear import LinearHead
from attnlimit.errors import InputError
from attnlimit.icl.concentration_result import Concentration
from attnlimit.icl.exact_outputs import exact_outputs
from attnlimit.icl.jacobians import Jacobians, Loss, jacobians
from attnlimit.inputs import as_count, as_counts, as_generator
from attnlimit.measures import Empirical, Measure
from attnlimit.sampling import Convergence

LENGTHS = tuple(2**k for k in range(4, 13))
Target: TypeAlias = Callable[[Tensor], Tensor]
"""Queries (m, d_query) ↦ targets, (m,) for the last output coordinate or (m, d_out) for all of them."""


def concentration(
    head: Head,
    prompt_law: Measure,
    lengths: Sequence[int] = LENGTHS,
    *,
    queries: Measure | None = None,
    query_count: int = 64,
    replicates: int = 64,
    loss: str | None = None,
    target: Target | None = None,
    exact: bool = True,
    generator: torch.Generator | int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Concentration:
    """Errors between prompts of L tokens and the infinite prompt, averaged over queries x ~ ν, for every replicate and L:

        output  ‖Γ_L(x) − Γ(x)‖
        A       ‖∂Γ_L/∂A − ∂Γ/∂A‖_F = ‖V(C_p − ∇²Λ(Ax))‖_F ‖x‖
        V       ‖∂Γ_L/∂V − ∂Γ/∂V‖_F = √d_out ‖ȳ_p − ∇Λ(Ax)‖
        loss_A, loss_V  the same of the gradients of a loss through attention, Cᵀr xᵀ and r yᵀ with r = ∂loss/∂Γ

    where ȳ_p and C_p are mean and covariance of the tokens under the softmax weights. Tokens of shorter prompts are the
    first of longer ones.

    queries
        ν, the law of the queries (the prompt law unless given); `query_count` fresh ones in each replicate.
    loss, target
        "squared" or "logistic" (targets ±1), with a function from queries to targets.
    exact
        Whether the exact mean square error of the outputs is computed beside the Monte Carlo one.

    >>> from attnlimit import Box, Head
    >>> found = concentration(Head([[0.5]]), Box(1), [16, 64, 256], replicates=50, generator=0)
    >>> found.fit("A")
    PowerFit(exponent 0.4795, 95 % interval 0.4076 to 0.5555)
    """
    sizes = checked_lengths(lengths)
    source = prompt_law if queries is None else queries
    _check(head, prompt_law, source, loss, target)
    count, m = as_count(replicates, "replicates"), as_count(query_count, "query_count")
    if count < 2:
        raise InputError(f"replicates must be at least 2, got {count}: standard errors are their spread.")
    chosen = None if loss is None or target is None else (Loss.named(loss), target)
    generator = as_generator(generator, prompt_law.device)
    rows = []
    for done in range(1, count + 1):
        rows.append(_replicate(head, prompt_law, source, sizes, m, chosen, generator))
        if progress is not None:
            progress(done, count)
    method = (
        f"Monte Carlo, {count} replicates, nested prompts, {m} fresh queries of law {source!r} a replicate"
    )
    errors = {name: _gathered(sizes, name, [row[name] for row in rows], method) for name in rows[0]}
    beside = exact_outputs(head, prompt_law, sizes, queries) if exact else None
    return Concentration(sizes, errors, beside, repr(prompt_law), repr(source))


def checked_lengths(lengths: object, name: str = "lengths") -> tuple[int, ...]:
    """Prompt lengths, at least 1 and increasing."""
    sizes = as_counts(lengths, name)
    for before, after in pairwise(sizes):
        if after <= before:
            raise InputError(f"{name} must be strictly increasing, got {before} before {after}.")
    return tuple(sizes)


def _check(head: Head, law: Measure, source: Measure, loss: str | None, target: Target | None) -> None:
    if head.heads:
        raise InputError(f"concentration takes one head at a time, got {head!r}: use head.each().")
    if isinstance(head, LinearHead):
        raise InputError(
            "concentration is about softmax attention; a linear head is its own limit's average."
        )
    if isinstance(law, Empirical):
        raise InputError(f"The prompt law must be a law to draw prompts from, got the tokens {law!r}.")
    head.check_fits(law)
    if source.dim != head.query_dim:
        raise InputError(f"Queries of law {source!r} do not fit {head.query_dim}-dimensional queries.")
    if (loss is None) != (target is None):
        raise InputError(f"loss= and target= go together, got loss={loss!r} and target={target!r}.")
    if loss is not None:
        Loss.named(loss)


def _replicate(
    head: Head,
    law: Measure,
    source: Measure,
    sizes: tuple[int, ...],
    m: int,
    chosen: tuple[Loss, Target] | None,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "lengths m"]]:
    """Errors at every length and query, by name."""
    tokens = law.sample(sizes[-1], generator=generator).tokens
    x = head.checked(source.sample(m, generator=generator).tokens)
    infinite = jacobians(head, law, x)
    found: dict[str, list[Tensor]] = {}
    for size in sizes:
        finite = jacobians(head, Empirical(tokens[:size]), x)
        for name, error in _errors(finite, infinite, chosen).items():
            found.setdefault(name, []).append(error.double())
    return {name: torch.stack(errors) for name, errors in found.items()}


def _errors(
    finite: Jacobians, infinite: Jacobians, chosen: tuple[Loss, Target] | None
) -> dict[str, Float[Tensor, " m"]]:
    x = infinite.x
    errors = {
        "output": (finite.output - infinite.output).norm(dim=-1),
        "A": torch.linalg.matrix_norm(finite.C - infinite.C) * x.norm(dim=-1),
        "V": (finite.y - infinite.y).norm(dim=-1) * infinite.output.shape[-1] ** 0.5,
    }
    if chosen is not None:
        loss, target = chosen
        wanted = target(x)
        here, there = (side.loss_gradients(loss, wanted) for side in (finite, infinite))
        for name, one, other in zip(("loss_A", "loss_V"), here, there, strict=True):
            errors[name] = torch.linalg.matrix_norm(one - other)
    return errors


def _gathered(sizes: tuple[int, ...], name: str, rows: list[Tensor], method: str) -> Convergence:
    errors = torch.stack(rows)
    return Convergence(
        n=sizes,
        statistic=name,
        squares=errors.square().mean(-1),
        norms=errors.mean(-1),
        method=method,
        reference="infinite prompt: gradient and Hessian of the cumulant generating function",
    )
