"""Compiled loops over rows of scores against the plain form."""

from dataclasses import replace

import pytest
import torch

from attnlimit.designs.by_query import TOPS
from attnlimit.models.attend import reading
from attnlimit.models.attend.reading import Wanted, read_weights
from attnlimit.models.see.call import Call
from attnlimit.models.see.masks import RuleMask, everything

SHAPE = (2, 6, 7, 300)
ENDS = torch.tensor([0, 3, 20, 100, 200, 280, 299])


def scores(seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(SHAPE, generator=generator)
    return found.masked_fill(torch.arange(SHAPE[-1]) > ENDS[:, None], -torch.inf)


def a_call(sink=None):
    shape = (2, 6, 7, 4)
    mask = RuleMask(everything, (2, 1, 7, 300))
    return Call(0, "", *(torch.zeros(shape) for _ in range(3)), 1.0, 1, mask, sink=sink)


def a_wanted(group=1, holes=False, seed=0):
    g = torch.Generator().manual_seed(seed)
    first = torch.tensor([0, 5])[:, None].expand(2, 7).minimum(ENDS)
    count = (scores_with(holes) > -torch.inf)[:, 0].sum(-1)
    seen = torch.stack([first, (ENDS + 1).expand(2, 7), count], -1)[:, None].expand(2, 6, 7, 3)
    begin = torch.randint(0, 250, (2, 6, 7, 3), generator=g)
    placed = torch.stack([begin, begin + torch.randint(0, 9, (2, 6, 7, 3), generator=g)], -1).flatten(-2)
    top, n = torch.tensor([0, 1, 8, 8, 32, 500]), torch.tensor([0, 4, 4, 30, 30, 9])
    return Wanted(
        seen=seen,
        placed=placed,
        top=top[:, None].expand(2, 6, 7),
        n=n[:, None].expand(2, 6, 7),
        order=torch.rand(2, 6 // group, 320, generator=g).argsort(-1).int(),
        start=torch.randint(320, (2, 6, 7), generator=g),
        rest=torch.tensor([True, True, False, True, False, True]),
        group=group,
    )


def scores_with(holes):
    """The second text begins at its sixth key; with holes, some keys in between are hidden too, from all heads alike."""
    found = scores()
    found[1, :, 2:, :5] = -torch.inf
    found[1, :, 1, :3] = -torch.inf
    if holes:
        found[..., 40:60] = -torch.inf
        found[..., 111] = -torch.inf
    return found


@pytest.mark.parametrize("sink", [None, torch.linspace(-2.0, 3.0, 6)])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("group", [1, 3])
def test_weights_are_those_of_the_plain_form(group, holes, sink, monkeypatch):
    wanted, one = a_wanted(group, holes), a_call(sink)
    if group > 1:  # as budgets of a group have it
        wanted = replace(wanted, rest=wanted.rest[[0, 0, 0, 4, 4, 4]])
    found, read = read_weights(one, scores_with(holes), wanted)
    monkeypatch.setattr(reading, "has_numba", lambda: False)
    plain, also = read_weights(one, scores_with(holes), wanted)
    assert torch.equal(read, also)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(found > 0, read)


def test_a_group_reads_the_same_keys():
    _, read = read_weights(a_call(), scores(), replace(a_wanted(3), placed=torch.zeros(2, 6, 7, 6).long()))
    together = read.unflatten(1, (2, 3))
    assert bool((together == together[:, :, :1]).all())
    best = scores()[0, 2].topk(8, dim=-1)
    # all that one of them keeps is read by all
    kept = torch.zeros(7, 300, dtype=torch.bool).scatter_(-1, best.indices, best.values > -torch.inf)
    assert bool((together[0, 0, 0] | ~kept).all())


def test_equal_scores_fill_the_room_there_is():
    flat, whole = torch.zeros(1, 1, 1, 40), torch.ones(1, 1, 1, dtype=torch.long)
    wanted = Wanted(
        seen=torch.tensor([0, 40, 40]).view(1, 1, 1, 3),
        placed=torch.zeros(1, 1, 1, 6).long(),
        top=7 * whole,
        n=5 * whole,
        order=torch.arange(40).view(1, 1, 40).int(),
        start=0 * whole,
        rest=torch.ones(1, dtype=torch.bool),
    )
    weights, read = read_weights(replace(a_call(), query=torch.zeros(1, 1, 1, 4)), flat, wanted)
    assert int(read.sum()) == 12 == int((weights > 0).sum())
    each = 1 / 40
    assert sorted(weights[weights > 0].tolist()) == pytest.approx([each] * 7 + [33 / 5 * each] * 5)


@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0], ids=["equal", "some", "wide"])
def test_sums_over_what_is_left(spread, monkeypatch):
    """Also where most keys are far below the best, in one bin, and where all are equal (then, keys with equal parts)."""
    part = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)).square()
    part = part if spread else torch.ones(SHAPE)
    given = (scores_with(True) * spread).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    wanted = a_wanted(holes=True)
    if not spread:  # which of equal keys are top is open: none is placed
        wanted = replace(wanted, placed=torch.zeros_like(wanted.placed))
    found = reading.rest_sums(given, wanted, part)
    monkeypatch.setattr(reading, "has_numba", lambda: False)
    plain = reading.rest_sums(given, wanted, part)
    assert float(plain[0].max()) > 100
    for one, other in zip(found, plain, strict=True):
        assert one.shape == (*SHAPE[:3], len(TOPS))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
