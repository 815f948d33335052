"""sweep, runs and export as people run them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnlimit.cli.common import time_of
from attnlimit.studies import Cost

SPEC = """\
name: tiny
kind: convergence
what:
  law: {name: gaussian, dim: 2}
  head: {name: identity, horizon: 1}
  n: [50, 100, 200]
grid:
  head.horizon: [0.3, 0.6, 1.2]
replicates: 10
chunk: 5
"""
PROBES = "name: probes\nkind: probe\ngrid:\n  value: [1, 2, 3]\n"


def written(text: str, name: str = "study.yaml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_sweep_from_start_to_export(run):
    shown = run("sweep", written(SPEC), "--workers", "1")
    assert "tiny: 6 of 6 tasks" in shown.stdout
    header, first, *_ = shown.stdout.splitlines()[1:]
    assert re.split(r"  +", header.strip()) == [
        "horizon",
        "rms at largest n",
        "exponent",
        "95 % from",
        "95 % to",
        "published",
        "n → ∞",
    ]
    numbers = r" *0\.3 +0\.\d+ +0\.\d+ +-?0\.\d+ +\d\.\d+ +0\.4587 +0\.5 *"
    assert re.fullmatch(numbers, first), first
    assert "On every line: statistic map, replicates 10, largest n 200." in shown.stdout
    folder = Path("attnlimit-out/tiny")
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "study.yaml",
        "machine.json",
        "store.sqlite",
        "summary.json",
        "results.parquet",
        "figures/curves.png",
        "figures/slopes.png",
    } <= made
    summary = json.loads((folder / "summary.json").read_text())
    assert [point["varies"]["head.horizon"] for point in summary["points"]] == [0.3, 0.6, 1.2]
    assert (summary["done"], summary["total"]) == (6, 6)

    for derived in ("summary.json", "results.parquet", "figures/curves.png"):
        (folder / derived).unlink()
    assert "results.csv" in run("export", str(folder), "--format", "all").stdout
    assert json.loads((folder / "summary.json").read_text()) == summary  # rebuilt from the store alone
    assert (folder / "figures/curves.png").is_file()
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 3 * 10 * 3
    run("export", str(folder), "--out", "table.parquet")
    run("export", str(folder), "--format", "json", "--out", "s.json")
    assert json.loads(Path("s.json").read_text()) == summary

    again = json.loads(run("sweep", str(folder), "--resume", "--workers", "1", "--json").stdout)
    assert again["points"] == summary["points"]
    assert len(again["sessions"]) == 2

    listed = json.loads(run("runs", "--json").stdout)["runs"]
    assert [(one["study"], one["state"], one["done"], one["total"]) for one in listed] == [
        ("tiny", "finished", 6, 6)
    ]
    assert "finished" in run("runs").stdout


def test_quick_is_another_run(run):
    record = json.loads(run("sweep", written(SPEC), "--quick", "--workers", "1", "--json").stdout)
    assert record["study"]["name"] == "tiny-quick"
    assert record["points"][0]["replicates"] == 8
    assert Path("attnlimit-out/tiny-quick").is_dir()


def test_failures_are_told_by_the_exit_code(run):
    spec = written(PROBES + "cases: [{}, {fail: raise}]\nretries: 0\n")
    failed = run("sweep", spec, "--workers", "1", "--out", "here", code=1)
    assert "3 tasks failed; the last raised: RuntimeError: a probe that fails, value 3" in failed.stderr
    assert "attnlimit sweep here --resume" in failed.stderr
    assert "Traceback" not in failed.stderr
    record = json.loads(Path("here/summary.json").read_text())
    assert "Traceback" in record["failures"][0]["message"]
    assert (record["done"], record["failed"]) == (3, 3)
    state = json.loads(run("runs", "here", "--json").stdout)["runs"][0]
    assert (state["state"], state["failed"]) == ("failed", 3)


def test_a_dry_run_says_what_it_would_cost(run, monkeypatch):

    found = Cost(3, 6, 12, 2, 2, 40.0, 600.0, 7300.0, 310.0, "3 tasks of 2 replicates, this machine")
    monkeypatch.setattr("attnlimit.cli.studies.estimate", lambda study, workers, folder: found)
    shown = run("sweep", written(SPEC), "--dry-run", "--workers", "2")
    words = " ".join(shown.stdout.split())
    assert "points 3" in words
    assert "tasks 6 to 12" in words
    assert "already there 2" in words
    assert "time on 2 processes about 10 min, at most 2.0 h" in words
    assert "memory of each 310 MB" in words
    assert not Path("attnlimit-out").exists()
    record = json.loads(run("sweep", "study.yaml", "--dry-run", "--json").stdout)
    assert (record["tasks"], record["seconds"]) == (6, 40.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "nothing.yaml"], "There is no file nothing.yaml"),
        (["sweep", "."], "is no run of a study"),
        (["sweep", "study.yaml", "--resume"], "There is no run to resume in attnlimit-out/tiny"),
        (["sweep", "study.yaml", "--dask", "here"], "--dask must be local, an address such as"),
        (["sweep", "gpu.yaml"], "asks for workers with .*GPU.*: they are Dask's, use --dask"),
        (["runs", "nowhere"], "There is no folder nowhere"),
        (["runs", "."], "There is no run of a study in ."),
        (["export", "."], "is no run of a study"),
    ],
)
def test_bad_input_is_one_clear_message(run, arguments, message):
    written(SPEC)
    written(PROBES + "resources: {GPU: 1}\n", "gpu.yaml")
    result = run(*arguments, code=2)
    assert re.search(message, " ".join(result.stderr.split())), result.stderr
    assert "Traceback" not in result.stderr


def test_options_that_do_not_go_with_a_run(run):
    run("sweep", written(PROBES), "--workers", "1", "--out", "here")
    for options in (["--quick"], ["--out", "there"]):
        assert "is a run, with its study and place" in run("sweep", "here", *options, code=2).stderr
    wrong = run("export", "here", "--format", "xlsx", code=2).stderr
    assert "--format must be one of parquet, csv, json, figures or all" in wrong
    assert "leave it out" in run("export", "here", "--format", "all", "--out", "x", code=2).stderr


def test_a_run_that_cannot_be_read_is_listed_apart(run):
    run("sweep", written(PROBES), "--workers", "1", "--out", "runs/good")
    Path("runs/bad").mkdir()
    Path("runs/bad/store.sqlite").write_bytes(b"no database" * 400)
    record = json.loads(run("runs", "runs", "--json").stdout)
    assert [one["folder"] for one in record["runs"]] == ["runs/good"]
    assert "damaged" in record["unreadable"][0]["problem"]
    assert "runs/bad" in run("runs", "runs").stderr


def test_interrupted_and_resumed(run):
    """The command itself, stopped from outside in the middle of a task."""
    spec = written(PROBES + "cases: [{}, {seconds: 300}]\n")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from attnlimit.cli import app; app()",
            "sweep",
            spec,
            "--workers",
            "1",
            "--out",
            "here",
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not Path("here/machine.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert "Stopped with 3 of 6 tasks done, all kept. Go on: attnlimit sweep here --resume" in error
    assert output == ""
    assert "incomplete" in run("runs", "here").stdout
    written(PROBES)
    shown = run("sweep", "study.yaml", "--out", "here", "--resume", "--workers", "1").stdout
    assert "probes: 3 of 3 tasks" in " ".join(shown.split())


def test_times_in_words():
    def cost(seconds, likely, most, longer=False):
        return Cost(1, 1, 1, 0, 1, seconds, likely, most, None, "", longer)

    assert time_of(cost(30.0, 30.0, 30.0)) == "30 s"
    assert time_of(cost(15.0, 600.0, 1800.0)) == "about 10 min, at most 30 min"
    assert time_of(cost(30.0, 30.0, 30.0, longer=True)) == "more than 30 s"
    assert time_of(cost(None, None, None)) == "not known, a task takes longer than was waited for"
