"""The store: whole transactions, versions, readers beside the writer, disks that refuse, and who may write."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import re
import resource
import signal
import sqlite3
import time
import zlib
from contextlib import closing
from pathlib import Path

import pytest

import attnlimit.studies
from attnlimit.errors import InputError
from attnlimit.files.lock import holder, locked
from attnlimit.studies import RunLocked, StoreError, export, find_runs, open_run, run_study, study_from
from attnlimit.studies.store import TABLES, Store, in_words
from attnlimit.studies.view import columns, replacing, rows, summary


def probes(count: int = 5, **fields):
    return study_from({"name": "p", "kind": "probe", "grid": {"value": list(range(count))}, **fields})


def contents(folder: str | Path) -> dict[bytes, bytes]:
    with open_run(folder) as run:
        return dict(run.rows("SELECT id, result FROM results"))


def test_a_folder_that_is_moved_while_it_is_written_is_told_and_goes_on_there(tmp_path):
    run, moved = tmp_path / "run", tmp_path / "moved"

    def move(progress):
        if progress.done == 2 and run.exists():
            run.rename(moved)

    study = probes(12, what={"seconds": 0.3})
    with pytest.raises(
        StoreError, match=r"run was removed or moved while the run wrote to it\. If it was moved, go on there"
    ):
        run_study(study, run, report=move)
    again = run_study(study, moved)
    assert again.done == 12
    assert again.reused >= 2


# --- versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (99, r"newer attnlimit \(store version 99, this one knows 4\): upgrade"),
        (
            3,
            r"older attnlimit, whose results have another form .*run its study\.yaml again with --out and a new folder",
        ),
    ],
)
def test_a_store_of_another_version_is_refused_and_left_alone(tmp_path, number, words):
    run_study(probes(), tmp_path)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    connection.close()
    for act in (lambda: run_study(probes(), tmp_path), lambda: contents(tmp_path)):
        with pytest.raises(StoreError, match=words):
            act()
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (number,)
        assert connection.execute("SELECT count(*) FROM results").fetchone() == (5,)
    connection.close()


def test_a_store_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("attnlimit.studies.store.TABLES", f"{TABLES} CREATE TABLE about (x);")
    with pytest.raises(StoreError, match="already exists"):
        Store(tmp_path)
    monkeypatch.undo()
    run_study(probes(), tmp_path)
    assert len(contents(tmp_path)) == 5


# --- transactions -------------------------------------------------------------------------------------


def test_a_result_is_kept_once_and_never_replaced(tmp_path):
    store = Store(tmp_path)
    store.record(b"a" * 32, b"first", 1.0)
    store.record(b"a" * 32, b"second", 1.0)
    assert store.rows("SELECT result FROM results") == [(b"first",)]
    store.close()


def test_a_plan_is_made_whole_or_not_at_all(tmp_path):
    run_study(probes(), tmp_path)
    store = Store(tmp_path)
    with pytest.raises(InputError, match="Two points of the study are the same"):
        run_study_plan(store, probes(3, cases=[{"seconds": 0}, {"seconds": 0.0}]))
    assert store.counts() == (5, 5)
    store.close()


def run_study_plan(store: Store, study) -> None:
    from attnlimit.studies.coordinator import _plan

    _plan(study, store)


def test_committed_results_are_flushed_before_they_are_claimed(tmp_path, monkeypatch):
    """Progress tells of a task only when the log was flushed after its commit."""
    flushed: list[int] = []
    real, counted = os.fsync, []

    def fsync(descriptor: int) -> None:
        real(descriptor)
        with sqlite3.connect(tmp_path / "store.sqlite") as connection:
            flushed.append(connection.execute("SELECT count(*) FROM results").fetchone()[0])
        connection.close()

    monkeypatch.setattr("attnlimit.studies.store.os.fsync", fsync)
    monkeypatch.setattr("attnlimit.studies.store.SYNC_SECONDS", 0.005)
    run_study(
        probes(300), tmp_path, report=lambda now: counted.append((now.done, flushed[-1] if flushed else 0))
    )
    assert counted[-1] == (300, 300)
    assert len(counted) > 5
    assert all(done <= safe for done, safe in counted)


# --- readers ------------------------------------------------------------------------------------------


def test_a_run_is_readable_while_it_is_written(tmp_path):
    seen: list[tuple[int, str, int]] = []

    def look(now) -> None:
        with open_run(tmp_path) as run:
            exported = export(run, tmp_path / "now.csv")
            state = run.state
            lines = len(exported.read_text().splitlines()) - 1
        assert lines == state.done >= now.done
        seen.append((state.done, state.state, state.total))

    run_study(probes(25, what={"seconds": 0.001}), tmp_path, report=look)
    assert {state for _, state, _ in seen} == {"running"}
    assert len({done for done, _, _ in seen}) > 2  # it grew while it was read
    assert seen[-1] == (25, "running", 25)
    with open_run(tmp_path) as run:
        assert run.state.state == "finished"
        assert run.state.writer is None


def test_a_reader_sees_one_moment(tmp_path):
    run_study(probes(3), tmp_path)
    with open_run(tmp_path) as run:
        assert run.state.done == 3
        run_study(probes(6), tmp_path)
        assert run.state.done == 3
        assert run.state.total == 3
    with open_run(tmp_path) as run:
        assert run.state.done == 6


def test_tables_say_what_varies(tmp_path):
    study = probes(2, grid={"value": [1, 2.5], "fail": ["no"]}, replicates=3, chunk=2)
    run_study(study, tmp_path)
    with open_run(tmp_path) as run:
        assert columns(run) == {
            "point": "int",
            "value": "float",
            "fail": "text",
            "replicate": "int",
            "draw": "float",
        }
        found = list(rows(run))
        pq = pytest.importorskip("pyarrow.parquet")
        table = pq.read_table(export(run, tmp_path / "t.parquet"))
        text = export(run, tmp_path / "t.csv").read_text().splitlines()
        with pytest.raises(InputError, match=r"written as \.parquet or \.csv"):
            export(run, tmp_path / "t.xlsx")
    assert [row[:4] for row in found] == [[0, 1.0, "no", k] for k in range(3)] + [
        [1, 2.5, "no", k] for k in range(3)
    ]
    assert table.num_rows == 6
    assert [list(row.values()) for row in table.to_pylist()] == found
    assert [float(line.split(",")[-1]) for line in text[1:]] == [row[-1] for row in found]


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("a", "b/c"):
        run_study(probes(2), tmp_path / name)
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b" / "c"]
    with pytest.raises(InputError, match="There is no folder"):
        find_runs(tmp_path / "nothing")
    with pytest.raises(InputError, match="is no run of a study"), open_run(tmp_path):
        pass


def test_a_run_that_never_started_is_told_apart(tmp_path):
    sqlite3.connect(tmp_path / "store.sqlite").close()
    (tmp_path / "store.sqlite").touch()
    with pytest.raises(InputError, match="holds a run that never started"), open_run(tmp_path):
        pass
    Store(tmp_path).close()  # tables, and nothing in them
    with pytest.raises(InputError, match="holds a run that never started"), open_run(tmp_path):
        pass


# --- disks that refuse --------------------------------------------------------------------------------


def test_a_full_disk_stops_the_run_and_the_store_still_opens(tmp_path, monkeypatch):
    """SQLite's own limit on pages gives the error that a full disk gives."""
    prepare = Store._prepare

    def small(self, folder):
        prepare(self, folder)
        self.connection.execute("PRAGMA max_page_count = 24")

    with monkeypatch.context() as limited:
        limited.setattr(Store, "_prepare", small)
        with pytest.raises(
            StoreError, match=r"the disk is full. Free some space; what was committed is kept"
        ):
            run_study(probes(300, replicates=20, chunk=20), tmp_path)
    with open_run(tmp_path) as run:
        before = run.state
        assert run.rows("PRAGMA integrity_check") == [("ok",)]
    assert 0 < before.done < 300
    finished = run_study(probes(300, replicates=20, chunk=20), tmp_path)
    assert (finished.reused, finished.done) == (before.done, 300)


def test_a_file_system_that_refuses_more_bytes(tmp_path, forked):
    """A limit on the size of files, set by the system, in a process of its own."""
    study = probes(400, replicates=20, chunk=20)

    def limited(say) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
        try:
            run_study(study, tmp_path)
        except StoreError as problem:
            say(str(problem))

    process, heard = forked(limited)
    process.join()
    assert "what was committed is kept, and the run can be resumed" in heard.recv()
    with open_run(tmp_path) as run:
        assert run.rows("PRAGMA integrity_check") == [("ok",)]
        before = run.state.done
    assert 0 < before < 400
    assert run_study(study, tmp_path).reused == before


def test_a_directory_that_cannot_be_written():
    with pytest.raises(StoreError, match="what was committed is kept"):
        run_study(probes(), "/proc/attnlimit-run")  # refused to everyone, root too
    Path("file").write_text("")
    with pytest.raises(StoreError, match="what was committed is kept"):
        run_study(probes(), "file/run")


def test_a_store_that_became_read_only(tmp_path):
    run_study(probes(), tmp_path)
    store = Store(tmp_path)
    store.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match="the run directory cannot be written"):
        store.record(b"a" * 32, b"", 0.0)
    store.close()
    assert len(contents(tmp_path)) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(tmp_path):
    run_study(probes(), tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert len(contents(tmp_path)) == 5
        with pytest.raises(StoreError, match="the run directory cannot be written"):
            run_study(probes(7), tmp_path)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, None])
def test_a_damaged_store_is_named(tmp_path, damage):
    run_study(probes(50), tmp_path)
    path = tmp_path / "store.sqlite"
    if damage is None:
        data = bytearray(path.read_bytes())
        data[4096:12288] = b"\xff" * 8192
        damage = bytes(data)
    path.write_bytes(damage)
    with pytest.raises(StoreError, match="damaged"):
        run_study(probes(50), tmp_path)


def test_a_damaged_result_is_named(tmp_path):
    run_study(probes(3), tmp_path)
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute("UPDATE results SET result = x'00ff'")
    with pytest.raises(StoreError, match=r"cannot be read.*damaged") as told, open_run(tmp_path) as run:
        run.findings()
    assert "can be resumed" not in str(told.value)
    with open_run(tmp_path) as run, pytest.raises(StoreError, match="cannot be read") as exported:
        export(run, tmp_path / "a.csv")
    assert str(exported.value) == str(told.value)  # one piece of advice, whoever asks


@pytest.mark.parametrize(
    "change",
    [
        "about SET value = '{}'",
        "about SET value = x'ff00'",
        "points SET what = '[/]'",
        "points SET what = '{\"value\": []}'",
        "points SET what = CAST(x'ff' AS TEXT)",
        "tasks SET first = '[/]'",
        "sessions SET about = 'null'",
    ],
)
def test_what_is_not_as_it_was_put_there_is_damaged(tmp_path, change):
    run_study(probes(3), tmp_path)
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute(f"UPDATE {change}")
    with pytest.raises(StoreError, match=r"store\.sqlite is damaged"), open_run(tmp_path) as run:
        run.findings()


def test_a_task_of_no_point_is_damage(tmp_path):
    run_study(probes(3), tmp_path)
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute("UPDATE tasks SET point = point + 100")
    with pytest.raises(StoreError, match=r"store\.sqlite is damaged"), open_run(tmp_path) as run:
        export(run, tmp_path / "a.csv")


def test_what_sqlite_quotes_may_be_no_text(tmp_path):
    run_study(probes(3), tmp_path)
    path = tmp_path / "store.sqlite"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE points", b"\xab\xabEATE TABLE points"))
    with pytest.raises(StoreError, match=r"store\.sqlite is damaged"), open_run(tmp_path) as run:
        run.findings()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("about SET value = replace(value, '\"seed\": 0', '\"seed\": 1')", "the study is not the one that was run"),
        ("points SET what = replace(what, '2', '3')", "a task is not the one that was planned"),
        ("tasks SET first = 7", "a task is not the one that was planned"),
        ("points SET what = '{' WHERE point = 2", r"if another attnlimit wrote it, read it with that one"),
        ("sessions SET about = '{}'", r"if another attnlimit wrote it, read it with that one"),
    ],
)  # fmt: skip
def test_what_was_planned_is_what_is_read(tmp_path, change, words):
    """A store without a seal, as before there were any, is read as it is."""
    run_study(probes(3), tmp_path)
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute(f"UPDATE {change}")
    with pytest.raises(StoreError, match=rf"store\.sqlite is damaged.*{words}"), open_run(tmp_path) as run:
        run.findings()
    if "not the one" in words:
        with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
            connection.execute("DELETE FROM about WHERE key != 'study'")
        with open_run(tmp_path) as run:
            assert run.findings().done == 3


def test_no_bit_of_a_store_can_change_unseen(tmp_path):
    """One bit of a store in 120 places, drawn once: those who read it find what is there, or less of it, or are told, and a resumed run ends
    as the first did, or is told."""
    study, kept, chance = probes(6, replicates=4, chunk=2), tmp_path / "kept", random.Random(3)
    run_study(study, kept)

    def told(folder: Path) -> dict[str, object]:
        with open_run(folder) as run:
            return {**summary(run.findings()), "sessions": None}

    whole, data, refused = told(kept), (kept / "store.sqlite").read_bytes(), 0
    for turn in range(120):
        place, folder = chance.randrange(len(data)), tmp_path / str(turn)
        folder.mkdir()
        flipped = data[place] ^ 1 << chance.randrange(8)
        (folder / "store.sqlite").write_bytes(data[:place] + bytes([flipped]) + data[place + 1 :])
        with contextlib.suppress(StoreError):
            found = told(folder)
            assert found == whole or found["done"] < whole["done"], place
        try:
            run_study(study, folder)
            assert told(folder) == whole, place
        except StoreError:
            refused += 1
    assert 0 < refused < 60


def test_other_words_of_the_disk(tmp_path):
    for text, words in (
        ("No space left on device", "the disk is full"),
        ("Read-only file system", "cannot be written"),
        ("database is locked", "in use by another program"),
        ("something else", "Look at the disk"),
    ):
        with pytest.raises(StoreError, match=words), in_words(tmp_path):
            raise OSError(text)


def test_a_file_takes_its_place_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half() -> None:
        with replacing(path) as new:
            new.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


# --- one writer ---------------------------------------------------------------------------------------


def test_a_second_coordinator_is_refused_by_name(tmp_path, forked):
    def hold(say) -> None:
        run_study(probes(what={"seconds": 60}), tmp_path, report=lambda now: say("running"))

    first, heard = forked(hold)
    assert heard.recv() == "running"
    with pytest.raises(RunLocked, match=rf"is being written by process {first.pid} on \S+ \(since 20"):
        run_study(probes(), tmp_path)
    assert holder(tmp_path).pid == first.pid
    with open_run(tmp_path) as run:
        assert run.state.state == "running"
        assert run.state.writer.startswith(f"process {first.pid} on ")
    first.kill()
    first.join()
    assert holder(tmp_path) is None
    with open_run(tmp_path) as run:
        assert run.state.state == "incomplete"
    assert run_study(probes(), tmp_path).done == 5  # a dead holder holds nothing


def test_one_process_cannot_write_twice_either(tmp_path):
    with locked(tmp_path), pytest.raises(RunLocked, match=f"process {os.getpid()} on"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


# --- what is on disk ----------------------------------------------------------------------------------


def test_nothing_on_disk_is_pickled(tmp_path):
    run_study(probes(), tmp_path)
    for result in contents(tmp_path).values():
        assert isinstance(json.loads(zlib.decompress(result)), dict)

    class Trap:
        def __reduce__(self):
            return (Path("pwned").touch, ())

    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE results SET result = ?", [pickle.dumps(Trap())])
    connection.close()
    with open_run(tmp_path) as run, pytest.raises(StoreError, match="damaged"):
        list(run.results())
    assert not Path("pwned").exists()
    folder = Path(attnlimit.studies.__file__).parent
    for source in folder.rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        assert not re.search(r"\b(import|from) (pickle|cloudpickle|dill|marshal|shelve|joblib)\b", text), (
            source
        )
        assert not re.search(r"torch\.load|yaml\.(unsafe_|full_)?load\b|allow_pickle", text), source


def test_a_run_directory_holds_study_versions_and_hardware(tmp_path):
    study = probes(2)
    run_study(study, tmp_path)
    run_study(study, tmp_path)
    from attnlimit.studies import load_study

    assert load_study(tmp_path / "study.yaml") == study
    sessions = json.loads((tmp_path / "machine.json").read_text())["sessions"]
    assert len(sessions) == 2
    assert {"attnlimit", "torch", "python"} <= set(sessions[0]["versions"])
    assert sessions[0]["hardware"]["cores"] >= 1
    assert sessions[0]["pid"] == os.getpid()
    assert (
        abs(time.time() - time.mktime(time.strptime(sessions[0]["started"][:19], "%Y-%m-%dT%H:%M:%S"))) < 3600
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "lock",
        "machine.json",
        "store.sqlite",
        "study.yaml",
    }
