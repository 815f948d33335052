"""Compiled loops over rows of scores against the plain form."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from attnlimit.designs.by_query import TOPS
from attnlimit.models.attend import loops, reading
from attnlimit.models.attend.reading import Wanted, read_keys
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


def weights_read(one, given, wanted, key_heads=2):
    """The weights that keys get, and what was read: values that name their key."""
    values = torch.eye(given.shape[-1]).expand(len(given), key_heads, -1, -1)
    read = read_keys(one, given, values, wanted)
    return read.output.transpose(1, 2), read


@pytest.mark.parametrize("sink", [None, torch.linspace(-2.0, 3.0, 6)])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("group", "key_heads"), [(1, 2), (3, 2), (1, 6), (1, 1), (3, 1)])
def test_weights_are_those_of_the_plain_form(group, key_heads, holes, sink, monkeypatch):
    wanted, one = a_wanted(group, holes), a_call(sink)
    if group > 1:  # as budgets of a group have it
        wanted = replace(wanted, rest=wanted.rest[[0, 0, 0, 4, 4, 4]])
    found, read = weights_read(one, scores_with(holes), wanted, key_heads)
    monkeypatch.setattr(reading, "has_numba", lambda: False)
    plain, also = weights_read(one, scores_with(holes), wanted, key_heads)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(found > 0, plain > 0)
    for name in ("seen", "distinct", "together"):
        assert torch.equal(getattr(read, name), getattr(also, name))
    assert torch.equal(read.distinct, (found > 0).sum(-1))
    assert torch.equal(read.together, (found > 0).unflatten(1, (key_heads, -1)).any(2).sum(-1))


def test_a_group_reads_the_same_keys():
    wanted = replace(a_wanted(3), placed=torch.zeros(2, 6, 7, 6).long())
    weights, _ = weights_read(a_call(), scores(), wanted)
    together = (weights > 0).unflatten(1, (2, 3))
    assert bool((together == together[:, :, :1]).all())
    best = scores()[0, 2].topk(8, dim=-1)
    # all that one of them keeps is read by all
    kept = torch.zeros(7, 300, dtype=torch.bool).scatter_(-1, best.indices, best.values > -torch.inf)
    assert bool((together[0, 0, 0] | ~kept).all())


@pytest.mark.parametrize("keys", [40, 700])
@pytest.mark.parametrize("better", [0, 3])
def test_equal_scores_fill_the_room_there_is(keys, better):
    """Also where three are better, and where columns of many keys are told apart by their best."""
    flat, whole = torch.zeros(1, 1, 1, keys), torch.ones(1, 1, 1, dtype=torch.long)
    flat[..., 5 : 5 + better] = 1.0
    wanted = Wanted(
        seen=torch.tensor([0, keys, keys]).view(1, 1, 1, 3),
        placed=torch.zeros(1, 1, 1, 6).long(),
        top=7 * whole,
        n=5 * whole,
        order=torch.arange(keys).view(1, 1, keys).int(),
        start=0 * whole,
        rest=torch.ones(1, dtype=torch.bool),
    )
    weights, read = weights_read(replace(a_call(), query=torch.zeros(1, 1, 1, 4)), flat, wanted, 1)
    assert int(read.distinct) == 12 == int((weights > 0).sum())
    each = 1 / (keys - better + better * math.e)
    expected = [each] * (7 - better) + [each * math.e] * better + [(keys - 7) / 5 * each] * 5
    assert sorted(weights[weights > 0].tolist()) == pytest.approx(sorted(expected), rel=1e-5)


@pytest.mark.parametrize("how", ["plain", "outlier", "hidden", "steep", "few"])
def test_top_keys_are_the_very_best(how):
    """Whatever the scores look like."""
    g = torch.Generator().manual_seed(3)
    given = torch.randn(9, 17 if how == "few" else 3000, generator=g)
    if how == "outlier":
        given[..., 7] = 1e6
    if how == "hidden":
        given[torch.rand(given.shape, generator=g) < 0.6] = -torch.inf
    if how == "steep":
        given = given.exp() ** 8
    work, found, others = np.empty(3000, np.float32), np.empty(3001, np.int32), np.empty(3001, np.int32)
    for row, wanted in product(range(9), (1, 20, 150, 2900)):
        scores = given[row : row + 1].numpy()
        number = loops.candidates(scores, 0, 0, scores.shape[1], wanted, work, found)
        number = loops.split(scores, 0, wanted, work, found, others, number)
        seen = int((given[row] > -torch.inf).sum())
        best = given[row].topk(min(wanted, seen)).indices
        assert sorted(found[:number]) == sorted(best.tolist())


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
