"""How fast outputs and gradients over L tokens approach those of an infinite prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.attention.head import LinearHead
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact import curve, exact_error
from attnlimit.files.records import record
from attnlimit.icl.tasks.base import LossKind
from attnlimit.inputs import Count, Repeats, Seeded, as_generator, shown
from attnlimit.measures import Empirical, Measure
from attnlimit.rates import ErrorCurve, PowerFit, fit_power
from attnlimit.rates.logs import checked_sizes
from attnlimit.sampling import Convergence


@dataclass(frozen=True)
class Loss:
    """ "squared": ½(prediction − target)²; "logistic": log(1 + e^{−target·prediction}), targets ±1."""

    kind: LossKind
    target: Callable[[Tensor], Tensor]
    """Queries (m, d_query) ↦ targets, (m,) for the last output coordinate or (m, d_out) for all of them."""

    def slope(self, prediction: Tensor, target: Tensor) -> Tensor:
        """∂loss/∂prediction."""
        if self.kind == "squared":
            return prediction - target
        return -target * torch.sigmoid(-target * prediction)


class Jacobians(NamedTuple):
    """At each query x: output Γ, attended token y and C = V Cov_a(y), with ∂Γ/∂A[E] = C E x and ∂Γ/∂V[E] = E y."""

    x: Float[Tensor, "m dq"]
    output: Float[Tensor, "m dv"]
    y: Float[Tensor, "m d"]
    C: Float[Tensor, "m dv dk"]

    def loss_gradients(self, loss: Loss) -> tuple[Float[Tensor, "m dk dq"], Float[Tensor, "m dv d"]]:
        """∂loss/∂A = Cᵀr xᵀ and ∂loss/∂V = r yᵀ with r = ∂loss/∂Γ at each query."""
        target = loss.target(self.x)
        if target.shape == self.output.shape:
            r = loss.slope(self.output, target)
        elif target.shape == self.output.shape[:-1]:
            r = torch.zeros_like(self.output)
            r[:, -1] = loss.slope(self.output[:, -1], target)
        else:
            m, dv = self.output.shape
            raise InputError(
                f"target must give shape ({m},) or ({m}, {dv}) for {m} queries, got {tuple(target.shape)}."
            )
        in_A = (self.C.mT @ r[..., None]) * self.x[..., None, :]
        return in_A, r[..., None] * self.y[..., None, :]


def jacobians(head: Head, measure: Measure, x: Float[Tensor, "m dq"]) -> Jacobians:
    """For tokens y and Cov_a are softmax-weighted averages (ȳ_p, C_p); for a law ∇Λ(Ax) and ∇²Λ(Ax)."""
    a = head.score_vector(x)
    y, cov = measure.tilted_mean(a), measure.tilted_cov(a)
    return Jacobians(x, head.read(y), y, head.read_linear(cov.mT.contiguous()).mT)


LENGTHS = tuple(2**k for k in range(4, 13))
POPULATION, QUERIES, SEED = 2**16, 128, 2512_11787


@dataclass(frozen=True, kw_only=True)
class Trials:
    """How often a prompt is drawn, and how many fresh queries it is asked each time, of which law."""

    replicates: Repeats = 64
    queries: Count = 64
    query_law: Measure | None = None
    """The prompt law unless given."""


@dataclass(frozen=True, eq=False, repr=False)
class Concentration(Drawn):
    """Errors against prompt length, by name: output, A, V and, with a loss, loss_A and loss_V."""

    lengths: tuple[int, ...]
    errors: Mapping[str, Convergence]
    """Rows, one a replicate, and curves with standard errors."""
    exact: ErrorCurve | None
    """The exact error of the outputs, to lay beside errors["output"].rms."""
    prompt_law: str
    query_law: str

    def __post_init__(self) -> None:
        sizes = {len(one.n) for one in self.errors.values()}
        if not self.lengths or sizes != {len(self.lengths)}:
            raise InputError(f"Concentration needs errors at each of its lengths, got {shown(self.lengths)}.")

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
        return {**record(self), "fits": fits}


def concentration(
    head: Head,
    prompt_law: Measure,
    lengths: Sequence[int] = LENGTHS,
    *,
    trials: Trials = Trials(),  # noqa: B008  (frozen)
    loss: Loss | None = None,
    exact: bool = True,
    generator: Seeded = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Concentration:
    """Errors between prompts of L tokens and the infinite prompt, averaged over queries x ~ ν, for every replicate and L:

        output  ‖Γ_L(x) − Γ(x)‖
        A       ‖∂Γ_L/∂A − ∂Γ/∂A‖_F = ‖V(C_p − ∇²Λ(Ax))‖_F ‖x‖
        V       ‖∂Γ_L/∂V − ∂Γ/∂V‖_F = √d_out ‖ȳ_p − ∇Λ(Ax)‖
        loss_A, loss_V  the same of the gradients of a loss through attention, Cᵀr xᵀ and r yᵀ with r = ∂loss/∂Γ

    where ȳ_p and C_p are mean and covariance of the tokens under the softmax weights. Tokens of shorter prompts are the
    first of longer ones.

    trials
        How many replicates, each with how many fresh queries, and their law ν, the prompt law unless given.
    exact
        Whether the exact mean square error of the outputs is computed beside the Monte Carlo one.

    >>> from attnlimit import Box, Head
    >>> found = concentration(Head([[0.5]]), Box(1), [16, 64, 256], trials=Trials(replicates=50), generator=0)
    >>> found.fit("A")
    PowerFit(exponent 0.4795, 95 % interval 0.4076 to 0.5555)
    """
    sizes = checked_sizes(lengths, name="lengths")
    source = prompt_law if trials.query_law is None else trials.query_law
    _check(head, prompt_law, source)
    generator = as_generator(generator, prompt_law.device)
    rows = []
    for done in range(1, trials.replicates + 1):
        tokens = prompt_law.sample(sizes[-1], generator=generator).tokens
        x = head.checked(source.sample(trials.queries, generator=generator).tokens)
        rows.append(_replicate(head, prompt_law, tokens, x, sizes, loss))
        if progress is not None:
            progress(done, trials.replicates)
    how = f"nested prompts, {trials.queries} fresh queries of law {source!r} a replicate"
    errors = {name: _gathered(sizes, name, [row[name] for row in rows], how) for name in rows[0]}
    beside = exact_outputs(head, prompt_law, sizes, trials.query_law) if exact else None
    return Concentration(sizes, errors, beside, repr(prompt_law), repr(source))


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


def _check(head: Head, law: Measure, source: Measure) -> None:
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


def _replicate(
    head: Head,
    law: Measure,
    tokens: Float[Tensor, "L d"],
    x: Float[Tensor, "m dq"],
    sizes: tuple[int, ...],
    loss: Loss | None,
) -> dict[str, Float[Tensor, "lengths m"]]:
    """Errors at every length and query, by name."""
    infinite = jacobians(head, law, x)
    found: dict[str, list[Tensor]] = {}
    for size in sizes:
        for name, error in _errors(jacobians(head, Empirical(tokens[:size]), x), infinite, loss).items():
            found.setdefault(name, []).append(error.double())
    return {name: torch.stack(errors) for name, errors in found.items()}


def _errors(finite: Jacobians, infinite: Jacobians, loss: Loss | None) -> dict[str, Float[Tensor, " m"]]:
    x = infinite.x
    errors = {
        "output": (finite.output - infinite.output).norm(dim=-1),
        "A": torch.linalg.matrix_norm(finite.C - infinite.C) * x.norm(dim=-1),
        "V": (finite.y - infinite.y).norm(dim=-1) * infinite.output.shape[-1] ** 0.5,
    }
    if loss is not None:
        here, there = (side.loss_gradients(loss) for side in (finite, infinite))
        for name, one, other in zip(("loss_A", "loss_V"), here, there, strict=True):
            errors[name] = torch.linalg.matrix_norm(one - other)
    return errors


def _gathered(sizes: tuple[int, ...], name: str, rows: list[Tensor], how: str) -> Convergence:
    errors = torch.stack(rows)
    return Convergence(
        n=sizes,
        statistic=name,
        squares=errors.square().mean(-1),
        norms=errors.mean(-1),
        how=how,
        reference="infinite prompt: gradient and Hessian of the cumulant generating function",
    )
