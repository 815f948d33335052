"""Pieces of work side by side."""

from pathlib import Path

import pytest
import torch

from attnlimit.numerics.threads import free_threads, one_thread, side_by_side

TASKS = Path("/proc/self/task")


@pytest.fixture
def two():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_each_in_its_place_with_one_thread_inside(two):
    found = side_by_side(lambda item: (item, free_threads()), range(5))
    assert found == [(item, 1) for item in range(5)]
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 / item, range(2))
    assert torch.get_num_threads() == 2
    with one_thread():
        assert torch.get_num_threads() == 1
        assert side_by_side(lambda item: torch.get_num_threads(), [0]) == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not TASKS.exists(), reason="threads are counted as Linux does")
def test_products_of_matrices_start_no_threads_of_their_own(two):
    """Two pieces at once are two threads more, also when the first thing they do is a large product."""
    table = torch.ones(600, 600)

    def grown(item: int) -> int:
        before = len(list(TASKS.iterdir()))
        for _ in range(20):
            table @ table
        return len(list(TASKS.iterdir())) - before

    assert max(side_by_side(grown, range(2))) <= 1  # the other piece may start in between
