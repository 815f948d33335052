"""Errors for many kept sets at once: against what is exact for one set, and against all draws."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from attnlimit.exact import nested
from attnlimit.exact.nested import nested_squares, shares
from attnlimit.exact.populations import Seen
from attnlimit.numerics.compiled import has_numba

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed")


def seen_keys(
    keys: int, spread: float, *, own: bool = False, hidden: bool = False, sink: bool = False
) -> Seen:
    """Three queries; `own`: each sees values of its own."""
    g = torch.Generator().manual_seed(keys)
    scores = spread * torch.randn(3, keys, generator=g, dtype=torch.float64)
    values = torch.randn(*([3] if own else []), keys, 2, generator=g, dtype=torch.float64)
    unseen = None
    if hidden:
        unseen = torch.arange(keys) >= torch.tensor([keys, 3 * keys // 4, keys // 2])[:, None]
    taken = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64) if sink else None
    return Seen(scores, values, unseen, taken)


def kept_sets(seen: Seen, *tops: int) -> Tensor:
    """The first two keys and the `top` of largest score."""
    scores = seen.scores if seen.hidden is None else seen.scores.masked_fill(seen.hidden, -torch.inf)
    found = []
    for top in tops:
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.argsort(1)[:, -top:], top > 0)
        kept[:, :2] |= top > 0
        found.append(kept)
    return torch.stack(found)


def one_by_one(seen: Seen, kept: Tensor, share: Tensor) -> Tensor:
    hidden = torch.zeros_like(kept[0]) if seen.hidden is None else seen.hidden
    return nested._one_by_one(seen, ~(kept | hidden), share)


@needs_numba
@pytest.mark.parametrize("options", [{}, {"own": True}, {"hidden": True}, {"sink": True, "hidden": True}])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_the_kernel_is_near_what_is_exact_for_one_set(spread, options):
    """192 keys or 96, and sets that keep some of them: the saddle point and atoms are within 0.1 % of what is exact from four keys on, where n is
    not whole as well. With fewer, the exact errors are joined by lines."""
    seen = seen_keys(192, spread, **options)
    kept = kept_sets(seen, 0, 1, 8, 20)
    share = shares(192)
    found, expected = nested_squares(seen, kept, share), one_by_one(seen, kept, share)
    assert found.shape == (3, 4, len(share))
    assert torch.equal(found.isnan(), expected.isnan())
    some = expected > 0
    assert int(some.sum()) > 70
    off = (found / expected - 1).abs().masked_fill(~some, 0.0)
    assert float(off.max()) < 0.05
    hidden = torch.zeros_like(kept[0]) if seen.hidden is None else seen.hidden
    n = share * (~(kept | hidden)).sum(2).T[..., None]
    assert float(off[n >= 8].max()) < 1e-3
    whole = (n - n.round()).abs() < 1e-9
    assert int((whole & some).sum()) >= 5
    assert float(off[whole & (n >= 3)].max()) < 1e-3


@needs_numba
@pytest.mark.parametrize("always", [0, 8])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0, 6.0])
@pytest.mark.parametrize("left", [72, 128, 1024])
def test_any_number_of_keys_of_any_spread(left, spread, always):
    """0.1 % at whole n from 4 to left/2 and at left/√2; two keys 0.2 %."""
    seen = seen_keys(left + always, spread)
    top = seen.scores.argsort(1)[None, :, left:]
    kept = torch.zeros(1, 3, left + always, dtype=torch.bool).scatter(2, top, True)
    share = shares(left)
    n = share * left
    share = share[((n - n.round()).abs() < 1e-9) | (n > left / 2)]
    off = (nested_squares(seen, kept, share) / one_by_one(seen, kept, share) - 1).abs()
    assert float(off[..., share * left >= 4].max()) < 1e-3
    assert float(off.max()) < 2e-3


@needs_numba
def test_light_draws_count():
    """A key with all the weight among 65: most draws have light keys only, and are far off."""
    seen = seen_keys(65, 4.0)
    seen.scores[:, 0] = 40.0
    share, kept = torch.tensor([0.25, 0.125], dtype=torch.float64), torch.zeros(1, 3, 65, dtype=torch.bool)
    found, expected = nested_squares(seen, kept, share), one_by_one(seen, kept, share)
    assert float((found / expected - 1).abs().max()) < 2e-3


@needs_numba
def test_sets_do_not_disturb_each_other():
    """Each as if it came alone, whatever the others and in any order."""
    seen = seen_keys(90, 1.0, hidden=True)
    kept = kept_sets(seen, 0, 3, 8, 20)
    share = shares(90)
    together = nested_squares(seen, kept, share)
    torch.testing.assert_close(
        nested_squares(seen, kept.flip(0), share).flip(1), together, equal_nan=True, rtol=1e-9, atol=0
    )
    for place in range(4):  # atoms are cut otherwise
        alone = nested_squares(seen, kept[place : place + 1], share)[:, 0]
        torch.testing.assert_close(alone, together[:, place], equal_nan=True, rtol=1e-3, atol=0)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("always", [0, 4])
@pytest.mark.parametrize("spread", [0.3, 4.0])
@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_numba), False])
def test_against_all_draws_of_sixteen_keys(compiled, spread, always, sink, monkeypatch):
    """Few keys are exact for the kernel too, on a coarser grid."""
    monkeypatch.setattr(nested, "has_numba", lambda: compiled)
    seen = seen_keys(16 + always, spread, sink=sink)
    kept = torch.zeros(1, 3, 16 + always, dtype=torch.bool)
    kept[..., [0, 5, 9, 14][:always]] = True
    share = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    found = nested_squares(seen, kept, share)[:, 0]
    expected = torch.stack([by_hand(seen, kept[0], n) for n in (8, 4, 2)], 1)
    assert float((found / expected - 1).abs().max()) < (2e-4 if compiled else 1e-6)
    if compiled:
        monkeypatch.setattr(
            nested, "FEW", 0
        )  # the negative control: the saddle point is another number for so few
        assert float((nested_squares(seen, kept, share)[:, 0] / expected - 1).abs().max()) > 2e-3


def by_hand(seen: Seen, kept: Tensor, n: int) -> Tensor:
    """The mean over all sets of n keys, query by query."""
    found = []
    sink = torch.zeros(3, dtype=torch.float64) if seen.sink is None else seen.sink.exp()
    for score, own, extra in zip(seen.scores, kept, sink, strict=True):
        weight, rest = score.exp(), (~own).nonzero()[:, 0]
        sets = rest[torch.tensor(list(combinations(range(len(rest)), n)))]
        times = own.double().expand(len(sets), -1).scatter(1, sets, len(rest) / n)
        mine = weight * times
        total = mine.sum(1, keepdim=True) + (extra if seen.sink is not None else 0)
        full = weight @ seen.values / (weight.sum() + (extra if seen.sink is not None else 0))
        found.append((mine @ seen.values / total - full).square().sum(1).mean())
    return torch.stack(found)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_numba), False])
def test_nothing_left_and_less_than_one_key(compiled, monkeypatch):
    monkeypatch.setattr(nested, "has_numba", lambda: compiled)
    seen = seen_keys(16, 1.0, hidden=True)
    kept = torch.zeros(2, 3, 16, dtype=torch.bool)
    kept[1] = True  # everything: no error
    share = shares(64)
    found = nested_squares(seen, kept, share)
    assert bool((found[:, 1] == 0).all())
    for query, left in enumerate((16, 12, 8)):
        few = share * left < 1 - 1e-9
        assert found[query, 0].isnan().tolist() == few.tolist()
        assert bool((found[query, 0][~few] > 0).all())


def test_shares():
    """Half an octave first, then octaves, down to two keys or less."""
    assert shares(64).tolist() == pytest.approx([2**-0.5, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32])
    for keys in (1, 5, 100, 1024):
        assert float(shares(keys)[-1]) * keys <= 2


@needs_numba
def test_the_error_falls_with_more_keys_and_with_less_left():
    seen = seen_keys(300, 1.5)
    found = nested_squares(seen, kept_sets(seen, 0, 4, 16, 64), shares(300))
    assert bool((found.diff(dim=2).nan_to_num(1.0) > 0).all())
    assert bool((found.diff(dim=1).nan_to_num(-1.0) < 0).all())  # the heaviest keys are kept first
