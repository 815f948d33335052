"""The coordinator is killed with SIGKILL at fifty random moments: what was committed is there, once, and the store is sound."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

from attnlimit.studies import open_run, run_study, study_from

KILLS, TASKS = 50, 400


def looked_at(folder: Path) -> dict[bytes, bytes]:
    """What the store holds after a kill, once SQLite has found it sound."""
    connection = sqlite3.connect(folder / "store.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'results'").fetchall():
            return {}  # killed before the tables were made
        found = connection.execute("SELECT id, result FROM results").fetchall()
        assert len(found) == len(dict(found))  # no row is doubled
        planned = connection.execute("SELECT count(*) FROM tasks").fetchone()[0]
        assert planned in (0, TASKS)  # a plan is there as a whole or not at all
        return dict(found)
    finally:
        connection.close()


def first_claim(study, folder: Path, forked) -> float:
    """Seconds until a run has its first result, so that kills come before and after that on any machine."""
    begin = time.monotonic()
    process, heard = forked(lambda say: run_study(study, folder, report=lambda now: say(now.done)))
    while heard.recv() == 0:
        pass
    process.kill()
    return time.monotonic() - begin


def test_killed_at_fifty_random_moments(tmp_path, forked):
    study = study_from(
        {"name": "p", "kind": "probe", "what": {"seconds": 0.01}, "grid": {"value": list(range(TASKS))}}
    )
    moments, folder = random.Random(5), tmp_path / "run"
    start = first_claim(study, tmp_path / "other", forked)
    known: dict[bytes, bytes] = {}
    grew = waited = 0
    for _ in range(KILLS):
        process, heard = forked(lambda say: run_study(study, folder, report=lambda now: say(now.done)))
        time.sleep(moments.uniform(0, 2.5 * start))
        process.kill()
        process.join()
        claimed = 0
        while heard.poll():
            try:
                claimed = heard.recv()
            except EOFError:
                break
        if not (folder / "store.sqlite").exists():
            continue
        found = looked_at(folder)
        assert known.items() <= found.items()  # nothing that was there is gone or changed
        assert claimed <= len(found)  # nothing was claimed that is not there
        grew += len(found) > len(known)
        waited += claimed == 0
        known = found
    assert grew >= 10  # kills came while results were being written
    assert waited >= 3  # and before
    finished = run_study(study, folder)
    assert (finished.reused, finished.done, finished.total) == (len(known), TASKS, TASKS)
    with open_run(folder) as run:
        values = sorted(result.value for *_, result in run.results())
    assert values == list(range(TASKS))
