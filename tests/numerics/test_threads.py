"""Pieces of work side by side."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from attnlimit.numerics import compiled, threads
from attnlimit.numerics.threads import Waiting, free_threads, one_thread, side_by_side, torch_openmp

TASKS = Path("/proc/self/task")


@pytest.fixture
def two():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch's threads", "Python's"])
def either(request, monkeypatch, two):
    """Where torch brings GNU's OpenMP, and where it does not."""
    if request.param == "Python's":
        monkeypatch.setattr(threads, "_loaded", lambda: None)
    elif torch_openmp() is None:
        pytest.skip("torch's threads are not those of GNU's OpenMP")


def test_each_in_its_place_with_one_thread_inside(either):
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


def test_pieces_wait_for_others(either):
    done, waiting = [], Waiting()
    waiting.add(lambda k=k: done.append(k) for k in range(15))
    assert done == []
    waiting.add(lambda k=k: done.append(k) for k in range(15, 18))
    assert sorted(done) == list(range(18))
    waiting.add([lambda: done.append(18)])
    waiting.finish()
    waiting.finish()
    assert sorted(done) == list(range(19))


def _weighted(start, stop, rows, factor, whole, out):
    room = np.zeros(rows.shape[1])
    for i in range(start, stop):
        for j in range(rows.shape[1]):
            room[j] = rows[i, j] * factor[0]
            out[i] += room[j] + whole[i]


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("kind", ["tensors", "arrays", "not in one piece"])
def test_compiled_loops_are_shared_out(either, count, kind):
    """Every row once, by whoever does it."""
    pytest.importorskip("numba")
    rows = torch.arange(3.0 * count).view(count, 3)
    if kind == "not in one piece":
        rows = torch.arange(3.0 * count).view(3, count).T
    given = [rows, torch.tensor([0.5], dtype=torch.float64), torch.arange(count)]
    out = torch.zeros(count, dtype=torch.float64)
    compiled.run_compiled(_weighted, count, *(x.numpy() if kind == "arrays" else x for x in given), out)
    assert torch.equal(out, 0.5 * rows.double().sum(1) + 3 * torch.arange(count))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(two):
    """OpenMP's do not come along, and would be waited for without end."""
    side_by_side(lambda item: item, range(4))
    child = os.fork()
    if child == 0:
        os._exit(0 if side_by_side(lambda item: item, range(4)) == [0, 1, 2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
