"""Reports of studies and of other runs, from their folders."""

from __future__ import annotations

import json
import re

import pytest

from attnlimit.errors import InputError
from attnlimit.report.html import page, write_report
from attnlimit.report.html.study import study_page

HOSTILE = "</script><script>window.hacked = 1</script>"


def point(k: int, horizon: float, exponent: float | None, **more: object) -> dict[str, object]:
    fit = None
    if exponent is not None:
        fit = {
            "exponent": exponent,
            "interval": [exponent - 0.02, exponent + 0.02],
            "level": 0.95,
            "method": "fit",
        }
    curve = {"n": [10, 100], "rms": [0.3, 0.1], "rms_standard_error": [0.01, 0.01]}
    rates = {"paper": 1 / (2 * (1 + horizon**2))}
    return {
        "point": k, "varies": {"head.horizon": horizon}, **curve, "replicates": 20, "horizon": horizon, "fit": fit,
        "rates": rates, "method": "Monte Carlo", **more,
    }  # fmt: skip


def record_of(*points: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "study": {"name": "sizes", "kind": "convergence", "about": "Why it is run.", "seed": 3},
        "done": 4, "total": 4, "failed": 0, "points": list(points), "failures": [],
        "sessions": [{"versions": {"attnlimit": "0.1.0"}, "hardware": {"processor": "x", "cores": 2}, "executor": "serial"}],
        **more,
    }  # fmt: skip


def test_study_in_words():
    data = study_page(record_of(point(0, 0.5, 0.46), point(1, 1.0, 0.21), point(2, 2.0, None)))
    about, state, slopes = data.summary
    assert about == "Why it is run."
    assert state == "3 points, which differ in horizon (0.5 to 2). All tasks are done."
    assert "from 0.210 (95 % interval 0.190 to 0.230) at horizon 1 to 0.460" in slopes
    assert "At 1 of 2 points it is no less than the published exponent" in slopes  # 0.23 < 0.25, 0.48 > 0.4
    table = data.tables[0]
    assert table.columns[0] == "horizon"
    assert [row[table.columns.index("exponent")] for row in table.rows] == [0.46, 0.21, None]
    assert dict(data.methods)["Versions"] == "attnlimit 0.1.0"
    assert dict(data.methods)["Seed"].startswith("3;")
    assert [figure.title for figure in data.figures] == ["Error against the number of tokens", "How fast it falls"]  # fmt: skip
    assert all(figure.image.startswith(b"<?xml") for figure in data.figures)


def test_trained_models_have_a_row_for_each_length():
    trained = {
        "point": 0, "varies": {"lr": 0.1}, "task": "regression", "attention": "softmax", "lengths": [10, 1000],
        "risk": [0.8, 0.25], "risk_interval": [[0.7, 0.2], [0.9, 0.3]], "infinite_risk": [0.5, 0.24], "replicates": 2,
        "method": "SGD",
    }  # fmt: skip
    data = study_page(record_of(trained))
    assert data.summary[-1] == (
        "Trained on prompts of 10 tokens, softmax attention ends with risk 0.8; on 1,000 tokens, with 0.25 "
        "(the same weights on infinite prompts: 0.24)."
    )
    table = data.tables[0]
    columns = [table.columns.index(name) for name in ("prompt length", "risk", "95 % from", "infinite risk")]
    assert [[row[k] for k in columns] for row in table.rows] == [
        [10, 0.8, 0.7, 0.5],
        [1000, 0.25, 0.2, 0.24],
    ]


def test_unfinished_study():
    data = study_page(record_of(done=1, total=9, failed=2))
    assert data.summary[1] == "Not all tasks are done yet; 2 failed; no point has results yet."
    assert data.tables == []
    assert page(data)


def test_hostile_study():
    data = study_page(record_of(point(0, 0.5, 0.4, method=HOSTILE, statistic=HOSTILE)))
    text = page(data)
    assert HOSTILE not in text
    assert text.count("<script") == 2


def test_study_from_its_folder(tmp_path):
    from attnlimit.studies import Serial, run_study, study_from

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


def test_any_other_run(tmp_path):
    rows = [{"length": 10 * k, "risk": 1 / (k + 1), "weights": [1, 2]} for k in range(3)]
    record = {
        "schema": "attnlimit.icl/1", "title": "Risk against length", "summary": "It falls.", "seed": 4, "reports": rows,
        "versions": {"attnlimit": "0.1.0"}, "U": [[1.0]],
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "risk_curve.png").write_bytes(b"png")
    (tmp_path / "figures" / "risk_curve.svg").write_bytes(b"<svg/>")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<h1>Risk against length</h1>" in text
    assert '<p class="eyebrow">attnlimit icl</p>' in text
    assert "It falls." in text
    assert text.count("<figure>") == 1
    assert "data:image/svg+xml;base64," in text
    assert "<h2>Risk curve</h2>" in text
    assert '<td data-value="0.5">0.5</td>' in text
    assert "weights" not in re.search(r"<thead>.*?</thead>", text)[0]
    assert "<dt>Seed</dt><dd>4</dd>" in text


def test_in_context_training(tmp_path):
    def row(length: int, risk: float) -> dict[str, object]:
        return {"task": "A", "length": length, "softmax": risk, "softmax_low": 0.9 * risk, "softmax_high": 1.1 * risk,
                "softmax_predicted": 0.25, "floor": 0.01, "solution": 0.5}  # fmt: skip

    record = {
        "name": "icl-risk", "title": "Risk <b>", "risks": [row(10, 0.8), row(300, 0.2)],
        "rates": [{"task": "A", "attention": "softmax", "quantity": "risk", "exponent": 0.6, "low": None, "high": None, "lengths": [10, 300]}],
        "long_prompt_constants": {"A": {"softmax": 7.0}}, "tasks": {"A": "regression"}, "methods": {"A": {"softmax": "sgd"}},
        "floors": {"A": "Bayes risk"}, "seed": 11,
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(record))
    for name in ("lengths-softmax-0", "risk-0"):
        (tmp_path / f"{name}.png").write_bytes(b"png")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<h1>Risk &lt;b&gt;</h1>" in text
    assert (
        "A: trained on prompts of 300 tokens, softmax attention ends with risk 0.2 (0.18 to 0.22), predicted 0.25 without training."
        in text
    )
    assert "No method can do better than 0.01 there (Bayes risk)." in text
    titles = re.findall(r"<h2>(.*?)</h2><figure>", text)
    assert titles == ["Risk against prompt length: A", "On other prompt lengths, softmax: A"]
    assert "<dt>Seed</dt><dd>11</dd>" in text
    assert text.count("<tr>") == 5


def test_long_tables_are_cut(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"rows": [{"k": k} for k in range(2500)]}))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "the first 2,000 of 2,500 rows" in text
    assert text.count("<tr>") == 2001


@pytest.mark.parametrize(("name", "text", "match"), [
    ("run.json", "{", "is damaged"),
    ("summary.json", "{", "is damaged"),
    ("summary.json", "[]", "must be a JSON object"),
    ("notes.txt", "", "is no run"),
])  # fmt: skip
def test_folders_that_are_no_runs(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=match):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
