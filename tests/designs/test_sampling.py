"""A sampling is one object: its words, its record, what it keeps and how many keys a query reads."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlimit.designs import Coins, Different, Independent, Kept, Sampling, draws
from attnlimit.designs.kept import masks
from attnlimit.errors import InputError

samplings = st.builds(
    Sampling,
    draw=st.sampled_from([one() for one in draws().values()]),
    kept=st.builds(
        Kept, own=st.booleans(), sinks=st.integers(0, 5), window=st.integers(0, 5), top=st.integers(0, 5)
    ),
    weight=st.sampled_from(["plain", "rest"]),
)


@given(samplings)
def test_record_and_pickle_give_it_back(plan: Sampling) -> None:
    assert Sampling.from_dict(plan.to_dict()) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_the_record_says_only_what_differs() -> None:
    assert Sampling().to_dict() == {}
    plan = Sampling(draw=Different(), kept=Kept(own=True, sinks=4), weight="rest")
    assert plan.to_dict() == {"draw": "different", "kept": {"own": True, "sinks": 4}, "weight": "rest"}
    assert str(plan) == "different keys for all the rest, keeping the own token and 4 sinks"


@given(
    samplings,
    st.integers(1, 30),
    st.integers(0, 40),
    st.booleans(),
)
def test_keys_read_are_those_of_the_mask_and_never_more_than_seen(
    plan: Sampling, length: int, n: int, causal: bool
) -> None:
    """Scores fall with the place and no key is kept twice, so that `top` counts as it says."""
    kept = Kept(own=plan.kept.own, sinks=plan.kept.sinks, window=plan.kept.window)
    plan = Sampling(draw=plan.draw, kept=kept)
    position = torch.arange(length)
    seen = position + 1 if causal else torch.full_like(position, length)
    mask = kept.mask(torch.zeros(length, length), position) & (torch.arange(length) < seen[:, None])
    assert torch.equal(kept.count(position, seen), mask.sum(1))
    read = plan.keys(n, position, seen)
    assert torch.equal(read, mask.sum(1) + (seen - mask.sum(1)).clamp_max(n))
    assert bool((read <= seen).all())


def test_sinks_start_at_the_first_token_of_a_padded_text() -> None:
    first = torch.tensor([0, 3])[:, None, None]
    kept = Kept(sinks=2).by_place(6, None, first)
    assert kept.shape == (2, 1, 6)
    assert kept[1, 0].tolist() == [False, False, False, True, True, False]


def test_what_is_left_without_places_or_order() -> None:
    kept = Kept(own=True, sinks=4, window=2, around=3, top=5)
    assert kept.without(place=True) == Kept(sinks=4, top=5)
    assert kept.without(place=True, order=True) == Kept(top=5)
    assert not Kept()


def test_a_drawn_key_stands_for_the_rest() -> None:
    rest, n = torch.tensor([[10.0], [3.0]]), torch.tensor([[2.0, 5.0]])
    assert Sampling(draw=Different()).stands_for(rest, n).tolist() == [[1, 1], [1, 1]]
    assert Sampling(draw=Different(), weight="rest").stands_for(rest, n).tolist() == [[5, 2], [1.5, 1]]
    assert Sampling(draw=Independent(), weight="rest").stands_for(rest, n)[1].tolist() == pytest.approx(
        [1.5, 0.6]
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"draw": "poisson"}, "draw must be one of .*different.* got 'poisson'"),
        ({"draw": {"name": "coins", "bias": 2}}, r"The draw 'coins' takes nothing more, got {'bias': 2}"),
        ({"kept": {"sink": 4}}, "cannot be read"),
        ({"kept": {"top": -1}}, r"top must be a whole number of at least 0, got -1"),
        ({"weight": "double"}, "weight must be one of plain, rest, got 'double'"),
        ({"keep": 1}, "has the fields draw, kept and weight"),
        ([], "has the fields draw, kept and weight"),
    ],
)
def test_records_that_cannot_be_read(record: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling.from_dict(record)


def test_places_are_needed_where_they_matter() -> None:
    with pytest.raises(InputError, match="give positions="):
        Kept(own=True).mask(torch.zeros(1, 3), None)
    with pytest.raises(InputError, match="whole populations only"):
        Kept(around=2).count(torch.tensor([0]), torch.tensor([1]))
    assert Coins().name == "coins"


def test_masks_of_several_sets_are_those_of_each(generator: torch.Generator) -> None:
    scores, places = torch.randn(6, 30, generator=generator), torch.arange(6) * 5
    scores[:, 25:] = -torch.inf
    sets = [
        Kept(),
        Kept(top=4),
        Kept(own=True, sinks=2),
        Kept(own=True, sinks=2, top=7),
        Kept(window=3, top=40),
    ]
    expected = torch.stack([one.mask(scores, places) for one in sets])
    assert torch.equal(masks(sets, scores, places), expected)
