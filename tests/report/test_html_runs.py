"""Reports of studies and of other runs, from their folders."""

from __future__ import annotations

import json
import pickle
import re

import pytest
import torch

from attnlimit import exponents
from attnlimit.errors import InputError
from attnlimit.rates import PowerFit
from attnlimit.report.figures.study import study_pictures
from attnlimit.report.html import page, write_report
from attnlimit.report.html.page import Page, Sheet
from attnlimit.report.html.study import study_page
from attnlimit.sampling import Convergence as Experiment
from attnlimit.studies import Findings, Serial, Study, open_run, run_study, study_from
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.convergence import Convergence, Measured
from attnlimit.studies.kinds.icl import comparisons
from attnlimit.studies.machine import Hardware, Session
from attnlimit.studies.setting import Limit

HOSTILE = "</script><script>window.hacked = 1</script>"


def point(k: int, horizon: float, exponent: float | None, **more: object) -> Point[Measured]:
    """A curve of 20 replicates whose fit is what is asked for."""
    squares = torch.tensor([[0.09, 0.01]] * 20) * torch.linspace(0.9, 1.1, 20)[:, None]
    fields = {"statistic": "map", "how": "m", "reference": "limit", **more}
    made = Experiment(n=(10, 100), squares=squares.double(), norms=None, **fields)
    found = Measured(made, Limit(horizon, exponents(horizon)))
    fit: PowerFit | str = "none"
    if exponent is not None:
        ends = (exponent - 0.02, exponent + 0.02)
        fit = PowerFit(
            exponent=exponent, interval=ends, level=0.95, intercept=0.0, residual_rms=0.0, n=(10, 100),
            replicates=20, method="fit",
        )  # fmt: skip
    vars(found)["_fitted"] = fit
    return Point(k, {"head.horizon": horizon}, SETTING, found)


WHAT = {
    "law": {"name": "gaussian", "dim": 2},
    "head": {"name": "identity", "horizon": 1.0},
    "n": [10, 100],
}
SETTING = Convergence.model_validate(WHAT)
SESSION = Session(
    "now", "here", 1, "serial", {"attnlimit": "0.1.0"}, Hardware("Linux", "x", 2, 1.0, "AVX2", ())
)


def found(*points: Point[Measured], **more: object) -> Findings:
    study = Study(name="sizes", kind="convergence", about="Why it is run.", seed=3, what=WHAT)
    counts = {"done": 4, "total": 4, "failed": 0, **more}
    return Findings(study, points=list(points), sessions=[SESSION], **counts)


def test_study_in_words():
    data = study_page(found(point(0, 0.5, 0.46), point(1, 1.0, 0.21), point(2, 2.0, None)))
    about, state, slopes = data.summary
    assert about == "Why it is run."
    assert state == "3 points, which differ in horizon (0.5 to 2). All tasks are done."
    assert "from 0.210 (95 % interval 0.190 to 0.230) at horizon 1 to 0.460" in slopes
    assert "At 1 of 2 points it is no less than the published exponent" in slopes  # 0.23 < 0.25, 0.48 > 0.4
    table = data.tables[0]
    assert table.columns[0] == "horizon"
    assert [row[table.columns.index("exponent")] for row in table.rows] == [0.46, 0.21, None]
    assert [row[table.columns.index("published")] for row in table.rows] == pytest.approx([0.4, 0.25, 0.1])
    methods = dict(data.methods)
    assert methods["Versions"] == "attnlimit 0.1.0"
    assert methods["Seed"].startswith("3;")
    assert methods["Method"] == "Monte Carlo, 20 replicates, m"
    assert methods["Fit"] == "fit"
    assert [figure.title for figure in data.figures] == [
        "Error against the number of tokens",
        "How fast it falls",
    ]
    assert all(figure.image.startswith(b"<?xml") for figure in data.figures)


def test_unfinished_study():
    data = study_page(found(done=1, total=9, failed=2))
    assert data.summary[1] == "Not all tasks are done yet; 2 failed; no point has results yet."
    assert data.tables == []
    assert page(data)


def test_hostile_study():
    data = study_page(found(point(0, 0.5, 0.4, how=HOSTILE, statistic=HOSTILE)))
    text = page(data)
    assert HOSTILE not in text
    assert text.count("<script") == 2


@pytest.mark.parametrize(
    ("kind", "what", "figures", "rows"),
    [
        (
            "phase",
            {"law": {"name": "gaussian", "dim": 1}, "kappa": [1.0, 3.0], "n": [1, 100]},
            ["phase-0"],
            2,
        ),
        ("hardmax", {"dim": 3, "kappa": "best", "n": [10, 100, 1000]}, ["hardmax"], 1),
        ("output_moments", {**WHAT, "n": [20, 80, 320], "queries": 16}, ["slopes"], 2),
        ("exact", WHAT, ["curves"], 1),
        ("probe", {}, [], 1),
    ],
)
def test_every_kind_about_laws_has_its_table_and_figures(tmp_path, kind, what, figures, rows):
    """And its record form gives the same back."""
    several = {"replicates": 10, "chunk": 5} if kind == "output_moments" else {}
    run_study(study_from({"name": "one", "kind": kind, "what": what, **several}), tmp_path)
    with open_run(tmp_path) as run:
        (only,) = run.found()
        data = study_page(run.findings())
    assert [one.name for one in study_pictures("one", [only])] == figures
    assert len(data.tables[0].rows) == rows
    again = type(only.result).from_dict(only.result.to_dict())
    assert again.to_dict() == only.result.to_dict()
    assert pickle.loads(pickle.dumps(only.result)).to_dict() == only.result.to_dict()
    assert all(len(row) == len(only.result.columns) for row in only.result.rows())


def test_study_from_its_folder(tmp_path):
    spec = study_from(
        {
            "name": "exact",
            "kind": "exact",
            "what": {
                "law": {"name": "gaussian", "dim": 2},
                "head": {"name": "identity", "horizon": 1.0},
                "n": [10, 100],
            },
            "grid": {"head.horizon": [0.5, 1.0]},
        }
    )
    run_study(spec, tmp_path / "run", Serial)
    text = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "2 points, which differ in horizon (0.5 to 1). All tasks are done." in text
    assert "data:image/svg+xml;base64," in text
    assert len(re.findall("<tr>", text)) == 3


def test_in_context_training(tmp_path):
    what = {
        "task": {"name": "A <b>", "dim": 2}, "lengths": [10, 30, 90], "optimizer": {"steps": 6, "lr": 0.1, "batch": 8},
        "evaluation": {"reports": 2, "prompts": 64, "test_lengths": [5, 50]},
    }  # fmt: skip
    study = study_from({"name": "i", "kind": "icl", "what": what, "grid": {"attention": ["softmax", "linear"]}, "replicates": 2, "seed": 11})  # fmt: skip
    run_study(study, tmp_path, Serial)
    with open_run(tmp_path) as run:
        (found,) = comparisons(run.findings().points)
    mean, low, high = (float(values[-1]) for values in found.ending("softmax"))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    told = f"A &lt;b&gt;: trained on prompts of 90 tokens, softmax attention ends with risk {mean:.3g} ({low:.3g} to {high:.3g})"
    assert f"{told}, predicted {float(found.predicted['softmax'][-1]):.3g} without training;" in text
    assert f"No method can do better than {found.floors[-1].value:.3g} there (Bayes risk" in text
    titles = re.findall(r"<h2>(.*?)</h2><figure>", text)
    assert titles == [
        "Risk against prompt length",
        "Along training: A &lt;b&gt;",
        "On other prompt lengths: A &lt;b&gt;",
    ]
    assert "<dt>Seed</dt><dd>11;" in text
    assert len(re.findall("<tr>", text)) == 1 + 2 * 3


def test_in_context_runs_of_before_are_refused(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"risks": [], "rates": [], "methods": {}}))
    with pytest.raises(InputError, match="In-context runs of before are not read; run them again as a study"):
        write_report(tmp_path)


def test_long_tables_are_cut():
    text = page(Page(heading="x", tables=[Sheet("t", ["k"], [[k] for k in range(2500)])]))
    assert "the first 2,000 of 2,500 rows" in text
    assert text.count("<tr>") == 2001


@pytest.mark.parametrize(("name", "text", "match"), [
    ("run.json", "{", "is damaged"),
    ("summary.json", "{", "is no run of a study"),
    ("notes.txt", "", "is no run"),
])  # fmt: skip
def test_folders_that_are_no_runs(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=match):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
