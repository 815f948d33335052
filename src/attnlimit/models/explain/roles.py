"""What a head's attention is spent on: eight roles that share it among them.

A query with weights p over the n keys that it sees reads Σ_j min(p_j, 1/n) as a plain average would: its broad average.
What is left, Σ_j (p_j − 1/n)₊, is what it picks, and each picked key counts for the first of these that it is:

    own token        the query itself
    sink             the first key of the text, a special token, or a sink without value
    previous token   the key before the query
    same token       the query's token elsewhere
    induction        the key after another place of the query's token
    window           at most 16 places away
    content          anything else

The shares sum to 1. Their chance is what they would be if picks fell on all keys alike: a role is one if its share is more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.models.explain.result import ROLES, HeadRoles, Interval, Link
from attnlimit.models.judge.intervals import bounds, drawn_counts
from attnlimit.numerics.ranks import rank_correlation

OWN, SINK, PREVIOUS, SAME, INDUCTION, WINDOW, CONTENT, BROAD = range(len(ROLES))
NEAR = 16
"""Places that a window reaches."""
FEWEST_SEEN = 8
"""Keys that a query must see to be counted: with fewer, roles cannot be told apart."""
STRETCHES = 16
"""Of the text, which are resampled as wholes: neighbouring queries are alike."""
RESAMPLES = 1000
MADE_TEXTS, MADE_LENGTH = 4, 32
"""Random tokens that are said twice."""


def roles_of(
    ids: Int[Tensor, " tokens"], special: Bool[Tensor, " tokens"], rows: Int[Tensor, " m"]
) -> Int[Tensor, "m tokens"]:
    """The role of every key for some queries, by its number."""
    place = torch.arange(len(ids), device=ids.device)
    apart, mine = place - rows[:, None], ids[rows][:, None]
    before = torch.cat([ids.new_full((1,), -1), ids[:-1]])
    found = torch.full_like(apart, CONTENT)
    found[apart.abs() <= NEAR] = WINDOW
    found[(before == mine) & (apart != 1)] = INDUCTION  # the next key always comes after the query itself
    found[ids == mine] = SAME
    found[apart == -1] = PREVIOUS
    found[(special | (place == 0)).expand_as(found)] = SINK
    found[apart == 0] = OWN
    return found


def shares(
    weights: Float[Tensor, "heads m tokens"],
    seen: Bool[Tensor, "_ m tokens"],
    roles: Int[Tensor, "m tokens"],
) -> tuple[Float[Tensor, "heads m roles"], Float[Tensor, "heads m roles"]]:
    """The roles' shares of each query's attention, and their chance."""
    number = seen.sum(-1, keepdim=True).clamp_min(1)
    picked = (weights - seen / number).clamp_min(0)
    shape, index = (*weights.shape[:2], len(ROLES)), roles.expand_as(weights)
    found = weights.new_zeros(shape).scatter_add_(-1, index, picked)
    members = weights.new_zeros(shape).scatter_add_(-1, index, seen.to(weights).expand_as(weights))
    total = weights.sum(-1)
    chance = found.sum(-1, keepdim=True) * members / number
    broad = total - found.sum(-1)
    found[..., BROAD], chance[..., BROAD] = broad, broad
    found[..., SINK] += (1 - total).clamp_min(0)  # what a sink without value takes
    return found, chance


def counted_queries(seen: Int[Tensor, " tokens"], special: Bool[Tensor, " tokens"]) -> Int[Tensor, " m"]:
    """Queries that tell roles apart: real tokens that see enough keys (all real ones, in a text with none)."""
    enough = ~special & (seen >= FEWEST_SEEN)
    return (enough if bool(enough.any()) else ~special).nonzero()[:, 0]


def with_intervals(
    found: Float[Tensor, "heads m roles"], level: float, generator: torch.Generator
) -> Float[Tensor, "heads roles 3"]:
    """Means over queries and the percentile interval over resampled stretches of them."""
    stretches = found.double().tensor_split(min(STRETCHES, found.shape[1]), 1)
    parts = torch.stack([one.mean(1) for one in stretches])
    counts = drawn_counts(len(parts), RESAMPLES, generator)
    means = torch.einsum("bs,shr->bhr", counts / len(parts), parts)
    return torch.stack([found.double().mean(1), *bounds(means, level)], -1)


def as_intervals(found: Float[Tensor, "roles 3"]) -> tuple[Interval, ...]:
    """For the record."""
    return tuple((round(value, 6), round(low, 6), round(high, 6)) for value, low, high in found.tolist())


def made_texts(
    usable: Int[Tensor, " words"],
    before: list[int],
    after: list[int],
    most: int | None,
    generator: torch.Generator,
) -> Int[Tensor, "texts tokens"]:
    """Random words, and the same once more, between the model's special tokens."""
    length = MADE_LENGTH if most is None else min(MADE_LENGTH, (most - len(before) - len(after)) // 2)
    drawn = torch.stack(
        [torch.randperm(len(usable), generator=generator)[:length] for _ in range(MADE_TEXTS)]
    )
    words = usable[drawn]
    ends = [torch.tensor(one, dtype=torch.int64).expand(MADE_TEXTS, -1) for one in (before, after)]
    return torch.cat([ends[0], words, words, ends[1]], 1)


def links(heads: Sequence[HeadRoles]) -> tuple[Link, ...]:
    """How the roles' shares go with what is known of heads; roles and quantities that do not vary are left out."""
    columns = {
        "horizon": [one.horizon for one in heads],
        "effective keys": [one.effective_keys for one in heads],
        "keys needed": [one.keys_needed for one in heads],
        "sensitivity": [one.sensitivity for one in heads if one.sensitivity is not None],
    }
    found = []
    for k, role in enumerate(ROLES):
        share = [one.shares[k][0] for one in heads]
        for quantity, known in columns.items():
            if len(known) == len(share) and len({*known}) > 2 < len({*share}):
                value, (low, high) = rank_correlation(share, known)
                found.append(Link(role, quantity, value, low, high))
    return tuple(found)
