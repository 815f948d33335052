"""Full disks, interrupted writes, two runs in one folder, clocks that go back: a message, and a state that goes on."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlimit.cli import app
from attnlimit.files import records, tensors
from attnlimit.files.lock import locked
from attnlimit.models.analyse import answer
from attnlimit.models.analyse.heads import Measured
from attnlimit.numerics import threads

transformers = pytest.importorskip("transformers")
READ = ["--text", "t.txt", "--tokens", "24", "--passages", "3", "--queries", "4"]


@pytest.fixture(autouse=True)
def no_figures(monkeypatch) -> None:
    """They take longer than the work, and other tests look at them."""
    monkeypatch.setattr("attnlimit.cli.analyze._figures", lambda run, folder: [])


def analysed(model: Path, folder: str, *options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["analyze", str(model), *READ, *options, "--out", folder])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stderr


def numbers(folder: str) -> dict[str, object]:
    return json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))


def test_an_analysis_goes_on_after_a_full_disk(model, monkeypatch) -> None:
    """The disk fills up after the second passage; with room again, only the third is measured, and the run is the same."""
    analysed(model, "whole")
    assert not Path("whole/unfinished.safetensors").exists()
    real, written = tensors.write_tensors, []

    def full(path, *rest):
        if len(written) == 2:
            with records.replacing(path) as new:
                new.write_bytes(b"half of it")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        real(path, *rest)

    with monkeypatch.context() as limited:
        limited.setattr("attnlimit.models.analyse.unfinished.write_tensors", full)
        told = analysed(model, "parts", code=2)
    assert "unfinished.safetensors cannot be written: No space left on device" in told
    assert "make room there" in told
    assert not list(Path("parts").glob(".*"))  # no half of a file
    read = []
    count = answer.answer_gradients
    monkeypatch.setattr(answer, "answer_gradients", lambda *a, **k: (read.append(1), count(*a, **k))[1])
    assert "Going on after passage 2 of 3, which are there from before." in analysed(model, "parts")
    assert len(read) == 1
    assert numbers("parts") == numbers("whole")
    assert not list(Path("parts").glob("unfinished*"))


def test_an_analysis_goes_on_among_its_trials(model, monkeypatch) -> None:
    """Stopped after the fifth pass of the sampled model: the others are made, and no passage is read again."""
    made, read = [], []
    sampled, gradients = answer.sampled_attention, answer.answer_gradients
    monkeypatch.setattr(answer, "sampled_attention", lambda *a, **k: (made.append(1), sampled(*a, **k))[1])
    monkeypatch.setattr(answer, "answer_gradients", lambda *a, **k: (read.append(1), gradients(*a, **k))[1])
    analysed(model, "whole")
    passes = len(made)
    made.clear(), read.clear()
    with monkeypatch.context() as stopped:

        def until_the_sixth(*given, **named):
            if len(made) == 5:
                raise KeyboardInterrupt
            return sampled(*given, **named)

        stopped.setattr(
            answer, "sampled_attention", lambda *a, **k: (until_the_sixth(*a, **k), made.append(1))[0]
        )
        analysed(model, "parts", code=130)
    assert len(made) == 5
    assert len(read) == 3
    analysed(model, "parts")
    assert len(made) == passes
    assert len(read) == 3
    assert numbers("parts") == numbers("whole")
    assert not list(Path("parts").glob("unfinished*"))


def test_an_analysis_of_pooled_passages_goes_on_after_a_layer(model, monkeypatch) -> None:
    """Stopped at a head of the second of two layers: the first is not measured again, and the run is the same."""
    monkeypatch.setattr(threads, "ENOUGH", 0)  # no head waits for those of the next layer
    pooled, measured = ["--population", "corpus"], []
    real = Measured.add

    def add(*given, **named):
        measured.append(1)
        if len(measured) == stop:
            raise KeyboardInterrupt
        real(*given, **named)

    monkeypatch.setattr(Measured, "add", add)
    stop = None
    analysed(model, "whole", *pooled)
    assert len(measured) == 8
    measured.clear()
    stop = 6
    analysed(model, "parts", *pooled, code=130)
    measured.clear()
    stop = None
    assert "Going on after layer 1 of 2, which are there from before." in analysed(model, "parts", *pooled)
    assert len(measured) == 4
    assert numbers("parts") == numbers("whole")
    assert not list(Path("parts").glob("unfinished*"))


def test_another_analysis_does_not_go_on_from_it(model, monkeypatch) -> None:
    """Other weights, another text or another seed: nothing of the old state is taken."""
    analysed(model, "a")
    with monkeypatch.context() as kept:
        kept.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        analysed(model, "left")
    assert Path("left/unfinished.safetensors").exists()
    other = CliRunner().invoke(app, ["analyze", str(model), *READ, "--seed", "1", "--out", "left"])
    assert other.exit_code == 0
    assert "Going on" not in other.stderr
    assert numbers("left")["seed"] == 1
    Path("left/unfinished.safetensors").write_bytes(b"damaged")
    assert "Going on" not in analysed(model, "left")
    assert numbers("left") == numbers("a")


def test_a_run_inside_the_model_s_folder_goes_on(model, tmp_path, monkeypatch) -> None:
    """What it writes there does not make another model of it."""
    inside = shutil.copytree(model, tmp_path / "model") / "run"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as limited:
        limited.setattr("attnlimit.models.analyse.run.write_table", full)
        analysed(inside.parent, str(inside), code=2)
    assert "Going on" in analysed(inside.parent, str(inside))


def test_two_analyses_of_one_folder(model) -> None:
    Path("out").mkdir()
    Path("out/.run.json.1.partial").write_text("half", encoding="utf-8")
    with locked(Path("out")):
        told = analysed(model, "out", code=2)
    assert f"out is being written by process {os.getpid()} on " in told
    assert "wait until it ends, or stop it first" in told
    assert not Path("out/.run.json.1.partial").exists()  # what a killed writer left


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch) -> None:
    """Every look at the clock finds an earlier time, in both sessions: the same results, once."""
    from attnlimit.studies import open_run, run_study, study_from

    study = study_from({"name": "p", "kind": "probe", "grid": {"value": list(range(6))}})
    first = study.model_copy(update={"grid": {"value": [0, 1, 2]}})
    run_study(study, tmp_path / "steady")
    back = itertools.count(2e9, -1e5)
    monkeypatch.setattr("attnlimit.studies.store.time.time", lambda: next(back))
    run_study(first, tmp_path / "back")
    finished = run_study(study, tmp_path / "back")
    assert (finished.reused, finished.done) == (3, 6)
    stored = []
    for name in ("steady", "back"):
        with open_run(tmp_path / name) as run:
            stored.append(sorted(run.rows("SELECT id, result FROM results")))
            assert run.state.state == "finished"
    assert stored[0] == stored[1]


def test_what_a_disk_that_is_full_at_the_end_does_not_take_is_on_the_screen(model, monkeypatch) -> None:
    analysed(model, "a")
    Path("u.txt").write_text(Path("t.txt").read_text(encoding="utf-8")[::-1], encoding="utf-8")
    real = os.replace

    def full(new, place):
        if Path(place).name in ("explain.json", "downstream.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(new, place)

    monkeypatch.setattr(os, "replace", full)
    task = ["--text", "u.txt", "--run", "a", "--keys", "4", "--seeds", "1"]
    for command, words, shown in (
        ("explain", [], "Roles: how the attention"),
        ("downstream", task, "Optimal split (output)"),
    ):
        read = ["--text", "t.txt", "--tokens", "24", *words, "--out", "a"]
        done = CliRunner().invoke(app, [command, str(model), *read])
        assert done.exit_code == 2, done.output
        assert f"a/{command}.json cannot be written: No space left on device" in done.stderr
        assert shown in done.stdout
        as_json = CliRunner().invoke(app, [command, str(model), *read, "--json"])
        assert (as_json.exit_code, bool(json.loads(as_json.stdout))) == (2, True)
