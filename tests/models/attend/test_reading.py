"""Compiled loops over rows of scores against the plain form."""

import pytest
import torch

from attnlimit.designs.by_query import TOPS
from attnlimit.models.attend import reading

SHAPE = (2, 6, 7, 300)


def scores(seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(SHAPE, generator=generator)
    place = torch.arange(SHAPE[-1])
    return found.masked_fill(place > torch.tensor([0, 3, 20, 100, 200, 280, 299])[:, None], -torch.inf)


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    placed = torch.rand(2, 1, 7, 300, generator=generator) < 0.05
    top = torch.tensor([0, 1, 8, 8, 32, 500])[None, :, None, None]
    n = torch.tensor([0, 4, 4, 30, 30, 9])[None, :, None, None]
    order = torch.stack([torch.randperm(300, generator=generator) for _ in range(12)]).view(2, 6, 1, 300)
    start = torch.rand(2, 6, 7, 1, generator=generator)
    rest = torch.tensor([True, True, False, True, False, True])[:, None, None]
    return placed, top, n, order, start, rest


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("own_start", [True, False])
def test_read_keys_are_those_of_the_plain_form(group, own_start):
    placed, top, n, order, start, rest = inputs()
    if group > 1:  # as budgets of a group have it
        n, rest = n[:, [0, 0, 0, 3, 3, 3]], rest[[0, 0, 0, 4, 4, 4]]
    given = (placed, top, n, order, start if own_start else None, rest, group)
    plain, number = reading._read_plainly(scores(), *given)
    found, count = reading.read_keys(scores(), *given)
    assert torch.equal(found > -torch.inf, plain > -torch.inf)
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)
    assert torch.equal(count, number)
    assert torch.equal(count, (found > -torch.inf).sum(-1))


def test_a_group_reads_the_same_keys():
    placed, top, n, order, start, rest = inputs()
    read, _ = reading.read_keys(scores(), placed, top, n[:, [0, 0, 0, 3, 3, 3]], order, start, rest, 3)
    together = (read > -torch.inf).unflatten(1, (2, 3))
    assert bool((together == together[:, :, :1]).all())
    best = scores()[:, :3].topk(8, dim=-1)
    # all that one of them keeps is read by all
    kept = torch.zeros(2, 7, 300, dtype=torch.bool)
    kept.scatter_(-1, best.indices[:, 2], best.values[:, 2] > -torch.inf)
    assert bool((together[:, 0, 0] | ~kept).all())


def test_equal_scores_fill_the_room_there_is():
    flat = torch.zeros(1, 1, 1, 40)
    order, rest = torch.arange(40).view(1, 1, 1, 40), torch.ones(1, 1, 1, dtype=torch.bool)
    top, n, placed = torch.full((1, 1, 1, 1), 7), torch.full((1, 1, 1, 1), 5), torch.zeros(1, 1, 1, 40).bool()
    read, count = reading.read_keys(flat, placed, top, n, order, None, rest)
    assert int(count) == 12 == int((read > -torch.inf).sum())
    assert sorted(read[read > -torch.inf].tolist()) == pytest.approx(
        [0.0] * 7 + [torch.tensor(33 / 5).log().item()] * 5
    )


def test_sums_over_what_is_left(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    free = (torch.rand(SHAPE, generator=generator) < 0.9) & (scores() > -torch.inf)
    part = torch.rand(SHAPE, generator=generator).square()
    found = reading.rest_sums(scores(), free, part)
    monkeypatch.setattr(reading, "has_numba", lambda: False)
    plain = reading.rest_sums(scores(), free, part)
    for one, other in zip(found, plain, strict=True):
        assert one.shape == (*SHAPE[:3], len(TOPS))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
