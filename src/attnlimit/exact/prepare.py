"""Everything about a head, a measure and queries that all n share, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs import Independent, Kept, Sampling
from attnlimit.designs.different import FEW, Different
from attnlimit.designs.draw import Moments, Rest
from attnlimit.designs.sampling import PLAIN
from attnlimit.errors import InputError
from attnlimit.exact.populations import Seen
from attnlimit.inputs import as_places
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.atoms import Atoms, KeptSet
from attnlimit.numerics.condensed import APART, CLOSE, Condensed
from attnlimit.numerics.threads import one_thread

OfN: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""n (1 or m, k) ↦ E‖Γ_n − Γ‖² (m, k) and E Γ_n − Γ (m, k, p)."""

MOST_TOKENS = 10**12
"""The quadrature is tested up to here."""
MOST_SPREAD = 1000
"""Of scores: above it grids would be large, and there is nothing to see."""
BIN_ABOVE = 2048
"""Smaller populations take every token as an atom of its own."""
MODELS_BIN_ABOVE = 256
"""Contexts of models are binned earlier: four times as fast for 512 keys, eight for 1,024, and at most 0.2 % off."""
QUERIES_AT_ONCE, BLOCK = 16, 32
"""Of a law or a model; and of a population, so that their scores fit a processor's caches."""
CHECKED = slice(2)
"""Queries of which bins are merged to see what that does."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """The moments of Γ_n − Γ as functions of n."""

    every: OfN
    """Of all queries, and after them once more of those that are `checked`, with half the bins."""
    method: str
    limit: Float[Tensor, "m p"] | None = None
    """Γ, without what a head adds to every output (None: of a law)."""
    checked: Int[Tensor, " c"] | None = None
    """None: no bins."""

    def moments(self, n: Float[Tensor, "#m k"]) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
        """E‖Γ_n − Γ‖² and E Γ_n − Γ."""
        return self.with_check(n)[:2]

    def with_check(self, n: Float[Tensor, "#m k"]) -> tuple[Tensor, Tensor, float | None]:
        """And the largest relative effect on the mean square of halving the number of bins (None: no bins)."""
        if self.checked is None or not len(self.checked):
            return *self.every(n), None
        square, bias = self.every(n if len(n) == 1 else torch.cat([n, n[self.checked]]))
        m, few = len(square) - len(self.checked), square[self.checked]
        return square[:m], bias[:m], float(((square[m:] - few).abs() / few.clamp_min(1e-300)).max())


def prepare(
    head: Head,
    measure: Measure,
    x: Float[Tensor, "m dq"],
    n_max: int,
    sampling: Sampling = PLAIN,
    *,
    positions: Sequence[int] | Tensor | None = None,
    binned: bool | None = None,
) -> Prepared:
    """For one head, queries x (m, d_query) and every n from 1 to n_max; the options are those of `exact_error`."""
    if measure.population is not None:
        where = _where(positions, x, measure.population)
        seen = _enough(_sight(head, measure.population, sampling)(x), n_max, sampling, where)
        return prepare_seen(seen, n_max, sampling, positions=where, binned=binned)
    _check_endless(measure, sampling)
    return Prepared(_of_law(head, measure, x, n_max, sampling), f"exact (Laplace quadrature{precision(x)})")


def prepare_in_blocks(
    head: Head,
    measure: Measure,
    x: Float[Tensor, "m dq"],
    n_max: int,
    sampling: Sampling = PLAIN,
    *,
    positions: Sequence[int] | Tensor | None = None,
    binned: bool | None = None,
) -> list[tuple[Int[Tensor, " k"], Callable[[], Prepared]]]:
    """The same for some queries each, those whose scores spread most first, to be called side by side. What they share is
    computed here, and bins are checked for the last ones alone, which have least to do."""
    if measure.population is None:
        rows = torch.arange(len(x), device=x.device)
        return [(rows, partial(prepare, head, measure, x, n_max, sampling))]
    where, sight = _where(positions, x, measure.population), _sight(head, measure.population, sampling)

    def ready(rows: Tensor, check: bool) -> Prepared:
        own = None if where is None else where[rows]
        seen = _enough(sight(x[rows]), n_max, sampling, own)
        return prepare_seen(seen, n_max, sampling, positions=own, binned=binned, check=check)

    with one_thread():  # those that are called side by side need the others
        groups = head.query(x).norm(dim=-1).argsort(descending=True, stable=True).split(BLOCK)
    return [(rows, partial(ready, rows, check=rows is groups[-1])) for rows in groups]


def precision(x: Tensor) -> str:
    """What scores are computed in, where that is not float64."""
    return "" if x.dtype == torch.float64 else f", scores in {str(x.dtype).removeprefix('torch.')}"


def _enough(seen: Seen, n_max: int, sampling: Sampling, positions: Tensor | None) -> Seen:
    """Those that have n_max keys to draw from, or where keys may repeat."""
    if sampling.draw.repeats:
        return seen
    least = int(_left(seen, _kept(seen, sampling.kept, positions)).min())
    if n_max > least:
        raise InputError(
            f"n = {n_max} keys were asked for, but only {least} are left to draw from, and {sampling.draw.words} do not "
            "repeat: use smaller n, or independent keys."
        )
    return seen


def _check_endless(law: Measure, sampling: Sampling) -> None:
    if not isinstance(sampling.draw, Independent) or sampling.weight != "plain":
        raise InputError(
            f"{law!r} is a law with infinitely many keys, which are drawn independently and weigh alike: {sampling} "
            "is for populations."
        )


def _of_law(head: Head, law: Measure, x: Tensor, n_max: int, sampling: Sampling) -> OfN:
    """Queries of similar score spread go together, since the spread sets the size of the grids."""
    a = moderate(head.score_vector(x), law)
    order = a.norm(dim=-1).argsort()
    groups = order.split(QUERIES_AT_ONCE)
    ready = [sampling.draw.exact(_law_rest(head, law, x[rows], sampling.kept), n_max) for rows in groups]
    return _joined([partial(_alike, one) for one in ready], list(groups))


def moderate(a: Tensor, law: Measure, most: int = MOST_SPREAD) -> Tensor:
    """Score vectors whose scores do not spread too widely for a grid."""
    spread = float((a @ law.covariance * a).sum(-1).max().sqrt())
    if not spread <= most:
        raise InputError(
            f"The scores of a query spread by {spread:.3g} standard deviations, and grids are made up to {most:,}: even "
            f"of {MOST_TOKENS:.0e} keys one takes all the weight. Use a smaller A or κ, or hardmax_error for the limit."
        )
    return a


def _alike(exact: Moments, n: Tensor) -> tuple[Tensor, Tensor]:
    return exact(n, torch.ones_like(n))


def _law_rest(head: Head, law: Measure, x: Tensor, kept: Kept, finer: float = 1.0) -> Rest:
    """Score atoms of a law at queries x, and the own token when it is kept (self-attention)."""
    a = head.score_vector(x)
    atoms = law.project(a, head.factors.V, finer).double()
    endless = torch.full((1, 1), torch.inf, dtype=torch.float64, device=x.device)
    if not kept:
        return Rest(atoms, None, endless)
    if kept != Kept(own=True):
        raise InputError(f"A law has no order: only the own token can be kept, Kept(own=True), got {kept}.")
    if head.query_dim != law.dim:
        raise InputError("Keeping the own token needs queries that are tokens, of the keys' dimension.")
    own = KeptSet((a * x).sum(-1).double(), head.read_linear(x).double() - atoms.limit)
    return Rest(atoms, own, endless)


def _sight(head: Head, tokens: Empirical, sampling: Sampling) -> Callable[[Tensor], Seen]:
    """What queries see of a population; keys and values are computed once."""
    if tokens.weights is not None and sampling != PLAIN:
        raise InputError(f"A weighted population takes independent plain keys, none kept; got {sampling}.")
    keys, mass = head.keys(tokens.tokens), None if tokens.weights is None else tokens.probabilities
    nobody = Seen(keys.new_empty(0, len(keys)), head.read_linear(tokens.values), mass=mass)
    nobody = nobody.scored(nobody.scores)  # values are centred now, not by each of those side by side
    return lambda x: nobody.scored(head.query(x) @ keys.T)


def _where(positions: Sequence[int] | Tensor | None, x: Tensor, tokens: Empirical) -> Tensor | None:
    return None if positions is None else as_places(positions, len(x), len(tokens), x.device)


def rest_of(
    head: Head,
    measure: Measure,
    x: Float[Tensor, "m dq"],
    sampling: Sampling,
    positions: Sequence[int] | Tensor | None = None,
    *,
    finer: float = 1.0,
) -> Rest:
    """What queries draw from beside what they keep: key by key, or of a law nodes that are that much `finer`."""
    if measure.population is None:
        _check_endless(measure, sampling)
        moderate(head.score_vector(x), measure)
        return _law_rest(head, measure, x, sampling.kept, finer)
    where = _where(positions, x, measure.population)
    seen = _sight(head, measure.population, sampling)(x)
    kept = _kept(seen, sampling.kept, where)
    return Rest(*seen.atoms(kept), _left(seen, kept))


def prepare_seen(
    seen: Seen,
    n_max: int,
    sampling: Sampling = PLAIN,
    *,
    positions: Tensor | None = None,
    binned: bool | None = None,
    square_only: bool = False,
    check: bool = True,
) -> Prepared:
    """The same from what queries see. Where fewer keys are left than n, all of them are drawn, unless keys may repeat.
    `square_only`: the bias is not asked for; `check`: what bins do is."""
    keys = seen.scores.shape[1]
    binned = keys > BIN_ABOVE if binned is None else binned
    kept = _kept(seen, sampling.kept, positions)
    rest = _left(seen, kept)
    if not bool((rest > 0).all()):
        raise InputError("Some query keeps every key that it sees: nothing is left to sample.")

    by_sets = binned and isinstance(sampling.draw, Different)
    few = rest[:, 0] <= (FEW if by_sets else 0)  # all their sets are summed over, key by key
    groups = [rows.nonzero()[:, 0] for rows in (~few, few) if bool(rows.any())]
    some = CHECKED if check and binned and not (square_only or bool(few.all())) else slice(0)

    def ready(rows: Tensor | slice, binned: bool) -> tuple[OfN, Tensor]:
        here, count, inside = seen[rows], rest[rows], None if kept is None else kept[rows]
        atoms: Atoms | Condensed
        if binned:
            again = count[some]
            atoms, own, limit = here.binned(inside, APART if sampling.draw.repeats else CLOSE, len(again))
            count = torch.cat([count, again])
        else:
            atoms, own = here.atoms(inside)
            limit = atoms.limit
        moments = sampling.draw.exact(Rest(atoms, own, count, square_only), n_max)
        return lambda n: moments(n, sampling.stands_for(count, n)), limit + here.centre

    if len(groups) == 1:
        every, limit = ready(slice(None), binned and not bool(few[0]))
    else:
        many, other = ready(groups[0], True), ready(groups[1], False)
        again = len(rest) + torch.arange(len(groups[0][some]), device=rest.device)
        every = _joined([many[0], other[0]], [torch.cat([groups[0], again]), groups[1]])
        limit = torch.cat([many[1], other[1]])[torch.cat(groups).argsort()]
    method = f"exact (Laplace quadrature{precision(seen.scores)}), {sampling} of {keys}{', binned by score' if binned else ''}"
    return Prepared(every, method, limit, groups[0][some])


def squares(
    seen: Seen,
    n: Sequence[int],
    sampling: Sampling,
    positions: Tensor | None = None,
    *,
    binned: bool | None = None,
) -> Float[Tensor, "m k"]:
    """E‖Γ_n − Γ‖² for each query and n, some queries at a time; zero where a query keeps all that it sees."""
    many = torch.tensor([list(n)], dtype=torch.float64, device=seen.scores.device)
    found = torch.zeros(len(seen), len(n), dtype=torch.float64, device=seen.scores.device)
    some = (_left(seen, _kept(seen, sampling.kept, positions))[:, 0] > 0).nonzero()[:, 0]
    for rows in some.split(QUERIES_AT_ONCE) if len(some) else ():
        here = None if positions is None else positions[rows]
        ready = prepare_seen(seen[rows], max(n), sampling, positions=here, binned=binned, square_only=True)
        found[rows] = ready.moments(many)[0]
    return found


def _kept(seen: Seen, kept: Kept, positions: Tensor | None) -> Bool[Tensor, "m n"] | None:
    """Keys that are kept among those seen."""
    scores = seen.scores if seen.hidden is None else seen.scores.masked_fill(seen.hidden, -torch.inf)
    masks = [kept.mask(scores, positions)] if kept else []
    masks += [] if seen.kept is None else [seen.kept]
    if not masks:
        return None
    found = masks[0] if len(masks) == 1 else masks[0] | masks[1]
    return found if seen.hidden is None else found & ~seen.hidden


def _left(seen: Seen, kept: Bool[Tensor, "m n"] | None) -> Float[Tensor, "m 1"]:
    """How many keys are left to draw from."""
    gone = kept if seen.hidden is None else seen.hidden if kept is None else seen.hidden | kept
    m, n = seen.scores.shape
    every = torch.full((m, 1), float(n), dtype=torch.float64, device=seen.scores.device)
    return every if gone is None else every - gone.sum(1, keepdim=True)


def _joined(each: Sequence[OfN], groups: Sequence[Tensor]) -> OfN:
    """Moments of groups of queries as those of all, in the queries' order."""
    back = torch.cat(list(groups)).argsort()

    def moments(n: Tensor) -> tuple[Tensor, Tensor]:
        found = [one(n if len(n) == 1 else n[rows]) for one, rows in zip(each, groups, strict=True)]
        square, bias = (torch.cat(part)[back] for part in zip(*found, strict=True))
        return square, bias

    return moments
