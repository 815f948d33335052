"""Running a reproduction: files, resuming, interruption, failure, and the command."""

import csv
import json
import os
import signal
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from attnlimit.cli import app
from attnlimit.errors import InputError
from attnlimit.report.figures.style import axes
from attnlimit.reproduce import (
    Interrupted,
    Outcome,
    Prepared,
    Reproduction,
    Verdict,
    names,
    prepare,
    run,
)
from attnlimit.reproduce.run import TasksFailed, load_spec
from attnlimit.reproduce.write import words, write_report
from attnlimit.studies import study_from

MODELS = ("bert", "bigbird-iid", "bigbird-window", "downstream", "downstream-by-horizon", "token-cloud")


def figure(points):
    made, ax = axes()
    ax.plot([point.result.mean for point in points])
    return made


def verdicts(points):
    mean = points[0].result.mean
    return [
        Verdict.equals("uniform draws have mean ½ <b>", 0.5, mean, (mean - 0.2, mean + 0.2), note="a note")
    ]


RESULT = Reproduction(
    name="tiny",
    title="A tiny result",
    claim="Uniform draws have mean ½.",
    source="attnlimit",
    figure=figure,
    verdicts=verdicts,
    notes=("As published, but tiny.",),
    more=lambda points: [f"There were {len(points)} points."],
)


def tiny(tmp_path, **fields):
    study = {
        "name": "tiny",
        "kind": "probe",
        "grid": {"value": [1.0, 2.0]},
        "replicates": 40,
        "chunk": 10,
        **fields,
    }
    return Prepared(RESULT, tmp_path / "tiny", study_from(study), quick=True, workers=1)


def test_a_run_leaves_its_files(tmp_path):
    done = run(tiny(tmp_path))
    made = ["figure.png", "figure.pdf", "table.parquet", "table.csv", "verdict.json", "report.html"]
    assert [path.name for path in done.files] == made
    assert all(path.stat().st_size > 20 for path in done.files)
    assert [one.outcome for one in done.verdicts] == [Outcome.AGREES]
    record = json.loads((done.folder / "verdict.json").read_text())
    assert record == json.loads(json.dumps(done.record.to_dict()))
    assert record["size"] == "quick"
    assert record["verdicts"][0]["outcome"] == "agrees"
    assert "There were 2 points." in record["summary"]
    assert "As published, but tiny." in record["summary"]
    with open(done.folder / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(done.folder / "table.parquet").to_pylist()
    assert [float(row["draw"]) for row in rows] == [row["draw"] for row in table]
    assert [row["value"] for row in table] == [1.0] * 40 + [2.0] * 40
    mean = sum(row["draw"] for row in table[:40]) / 40
    assert record["verdicts"][0]["measured"] == pytest.approx(mean)
    page = (done.folder / "report.html").read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.partition("<main")[2].partition("</main")[0]


def test_a_second_run_computes_nothing_and_says_the_same(tmp_path):
    first, seen = run(tiny(tmp_path)), []
    second = run(tiny(tmp_path), progress=lambda now: seen.append((now.done, now.total)))
    assert set(seen) == {(8, 8)}
    assert first.record == second.record


def test_the_report_is_written_again_and_an_older_record_refused(tmp_path):
    folder = run(tiny(tmp_path)).folder
    before = (folder / "report.html").read_text()
    assert write_report(folder).read_text() == before
    record = (folder / "verdict.json").read_text()
    (folder / "verdict.json").write_text(record.replace("reproduce/2", "reproduce/1"))
    with pytest.raises(InputError, match=r"its schema is 'attnlimit.reproduce/1', .*Run it again"):
        write_report(folder)


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    whole = run(tiny(tmp_path / "whole"))

    def stop(now):
        if now.done == 0:
            os.kill(os.getpid(), signal.SIGINT)

    slow = {"what": {"seconds": 0.01}}
    with pytest.raises(Interrupted, match=r"Stopped with \d of 8 tasks done, all kept"):
        run(tiny(tmp_path / "parts", **slow), progress=stop)
    assert not (tmp_path / "parts" / "tiny" / "verdict.json").exists()
    done = run(tiny(tmp_path / "parts", **slow))
    again = run(tiny(tmp_path / "again", **slow))
    assert done.record == again.record
    assert whole.record.verdicts != again.record.verdicts  # other tasks, other draws


def test_tasks_that_fail_are_said(tmp_path):
    with pytest.raises(
        TasksFailed, match=r"8 of 8 tasks of .* failed; the last: RuntimeError: a probe that fails"
    ):
        run(tiny(tmp_path, what={"fail": "raise"}, retries=0))


def test_costs_are_estimated_before(tmp_path):
    ready = tiny(tmp_path).estimated()
    assert ready.cost.tasks == 8
    assert ready.cost.seconds < 5


def test_verdicts_in_words():
    made = [Verdict("a", 1.0, 1.0, None, outcome) for outcome in Outcome]
    assert words(made) == "Of 3 comparisons, 1 agrees, 1 differs, 1 cannot be told."
    assert words([]) == "Nothing was compared."
    told = Verdict.at_most("a", 1.0, 0.5, (0.4, 0.6)).record()
    assert (told.predicted, told.low, told.high) == ("at most 1", 0.4, 0.6)


def test_the_results_of_the_papers_in_order():
    papers = [
        "gaussian",
        "sphere",
        "bert",
        "bigbird-iid",
        "bigbird-window",
        "downstream",
        "downstream-by-horizon",
    ]
    papers += ["token-cloud", "icl-risk", "icl-trajectory", "gradient-concentration"]
    ours = ["sharp-rates", "phase-diagram", "uniform-constant", "moment-constant", "hardmax-log-rate"]
    ours += ["gaussian-exact", "exact-law", "different-keys", "two-heads", "faithfulness"]
    assert list(names()) == papers + ours


@pytest.mark.parametrize("name", [name for name in names() if name not in MODELS])
def test_specifications_load_in_both_sizes_and_quick_is_less(name):
    full, quick = load_spec(name), load_spec(name, quick=True)
    assert quick.precision is None
    assert quick.name == f"{name}-quick"
    assert full.model_dump(exclude={"name", "quick"}) != quick.model_dump(exclude={"name", "quick"})


def test_unknown_names_are_refused():
    with pytest.raises(
        InputError, match=r"There is no result 'gauss' to reproduce: use all, or one of gaussian, "
    ):
        prepare("gauss")
    with pytest.raises(InputError, match="workers"):
        prepare("sharp-rates", workers=0)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_lists_results():
    shown = CliRunner().invoke(app, ["reproduce", "--list"])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in names())
    told = json.loads(CliRunner().invoke(app, ["reproduce", "--list", "--json"]).stdout)
    assert [one["name"] for one in told["results"]] == list(names())


def test_the_command_refuses_what_it_does_not_know():
    shown = CliRunner().invoke(app, ["reproduce", "nothing"])
    assert shown.exit_code == 2
    assert "There is no result 'nothing'" in shown.stderr.replace("\n", " ")


def test_the_command_runs_a_result(tmp_path):
    """End to end, the exact curves of sharp-rates at quick size: twice, the second time from what is there."""
    call = ["reproduce", "sharp-rates", "--quick", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 0, shown.output
    assert "Estimated time: under a minute" in shown.stderr
    assert "sharp exponent of the rms error, H = 0.5" in shown.stdout.replace("\n", " ")
    assert "Of 9 comparisons, 9 agree." in shown.stdout
    told = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert [one["outcome"] for one in told["verdicts"]] == ["agrees"] * 9
    assert (tmp_path / "sharp-rates-quick" / "figure.pdf").is_file()


def test_the_command_estimates_paper_size_and_stops_with_130(tmp_path, monkeypatch):
    monkeypatch.setattr("attnlimit.reproduce.prepare", lambda name, **_: replace(tiny(tmp_path), quick=False))
    monkeypatch.setattr("attnlimit.reproduce.run", _stopped)
    shown = CliRunner().invoke(app, ["reproduce", "sharp-rates"])
    assert shown.exit_code == 130
    assert "Estimated time on 1 core: 1 s (2 points, 8 tasks)." in shown.stderr
    assert "The same command goes on from there." in shown.stderr.replace("\n", " ")


def _stopped(*_, **__):
    raise Interrupted("Stopped with 3 of 8 tasks done, all kept.")
