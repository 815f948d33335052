"""Specifications: what they expand to, and what is said about bad ones."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlimit.errors import InputError
from attnlimit.measures import laws
from attnlimit.studies import load_study, study_from
from attnlimit.studies.spec import Task, canonical, points, tasks

GOOD = """\
name: gaussian
kind: convergence
what:
  law: {name: gaussian, dim: 2, cov: 0.5}
  head: {name: random, horizon: 1}
  n: {start: 100, stop: 1000, count: 3}
grid:
  head.horizon: [0.5, 1.0, 2]
  statistic: [map, mean]
replicates: 20
chunk: 10
"""


def written(text: str, name: str = "study.yaml") -> Path:
    Path(name).write_text(text, encoding="utf-8")
    return Path(name)


def all_tasks(study) -> list[Task]:
    return [task for what in points(study) for task in tasks(study, what, 0, study.replicates)]


def test_a_grid_expands_to_all_combinations_in_chunks():
    found = all_tasks(load_study(written(GOOD)))
    assert len(found) == 3 * 2 * 2
    assert {(task.what["head"]["horizon"], task.what["statistic"]) for task in found} == {
        (h, s) for h in (0.5, 1.0, 2.0) for s in ("map", "mean")
    }
    assert [(task.first, task.count) for task in found[:2]] == [(0, 10), (10, 10)]
    assert found[0].what["n"] == [100, 316, 1000]


@pytest.mark.parametrize("name", [name for name, law in laws().items() if law.spec.on_command_line])
def test_every_law_that_has_a_written_form_can_be_studied(name):
    text = GOOD.replace("{name: gaussian, dim: 2, cov: 0.5}", f"{{name: {name}, dim: 2}}")
    what = next(points(load_study(written(text))))
    fields = laws()[name].spec.fields
    assert list(what["law"]) == ["name", *fields]
    assert what["law"] == {"name": name, **{key: field.default for key, field in fields.items()}, "dim": 2}


def test_cases_go_with_the_whole_grid():
    text = GOOD + "cases:\n  - {queries: 16}\n  - {queries: 64, self_attention: true}\n"
    found = list(points(load_study(written(text))))
    assert len(found) == 12
    assert {(one["queries"], one["self_attention"]) for one in found} == {(16, False), (64, True)}


def test_identities_are_those_of_the_resolved_task():
    study = load_study(written(GOOD))
    ids = [task.id for task in all_tasks(study)]
    assert len(set(ids)) == len(ids)
    # a default written out, a whole number as a float, another order of keys, another name: the same tasks
    same = GOOD.replace("cov: 0.5", "cov: 5e-1, mean: null").replace("horizon: 1}", "horizon: 3}")
    same = same.replace("name: gaussian\n", "name: other\nabout: the same\n", 1)
    assert [task.id for task in all_tasks(load_study(written(same)))] == ids
    for change in (
        ("cov: 0.5", "cov: 0.51"),
        ("replicates", "seed: 1\nreplicates"),
        ("chunk: 10", "chunk: 5"),
    ):
        other = {task.id for task in all_tasks(load_study(written(GOOD.replace(*change))))}
        assert not other & set(ids), change


def test_more_replicates_and_more_points_keep_the_tasks_there_were():
    before = {task.id for task in all_tasks(load_study(written(GOOD)))}
    more = GOOD.replace("replicates: 20", "replicates: 40").replace("[0.5, 1.0, 2]", "[0.5, 0.75, 1.0, 2]")
    assert before < {task.id for task in all_tasks(load_study(written(more)))}


def test_seeds_come_from_the_identity():
    found = all_tasks(load_study(written(GOOD)))
    assert len({task.stream for task in found}) == len(found)
    assert all(0 <= task.stream < 2**63 for task in found)
    assert found[0].stream == int.from_bytes(found[0].id[:8], "big") >> 1
    assert Task.from_bytes(found[0].to_bytes()) == found[0]


def test_canonical_json_keeps_every_bit():
    values = [0.1, 1e-300, 2**0.5, -0.0, float("inf"), 5e-324]
    assert [v.hex() for v in json.loads(canonical(values))] == [v.hex() for v in values]
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})


def test_quick_has_few_points_and_replicates():
    study = load_study(written(GOOD.replace("[0.5, 1.0, 2]", "[0.5, 0.75, 1.0, 1.5, 2]")), quick=True)
    assert study.name == "gaussian-quick"
    assert study.grid["head.horizon"] == [0.5, 1.0, 2]
    assert study.replicates == 8


def test_quick_takes_what_the_study_says():
    text = GOOD + "quick:\n  what.n: [10, 20, 40]\n  grid.head.horizon: [1.5]\n  replicates: 4\n"
    study = load_study(written(text), quick=True)
    assert (study.what["n"], study.grid["head.horizon"], study.replicates) == ([10, 20, 40], [1.5], 4)
    assert study.grid["statistic"] == ["map", "mean"]
    assert load_study(written(text)).replicates == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("kind: convergence", "kind: guess"),
            r"study.yaml: line 2, kind: must be one of analyze, .*convergence, .*exact, .*; got 'guess'",
        ),
        (("replicates: 20", "replicate: 20"), r"line 10, replicate: there is no such field"),
        (("cov: 0.5", "covariance: 0.5"), r"line 4, law.gaussian.covariance: there is no such field"),
        (("dim: 2", "dim: 0"), r"line 4, law.gaussian.dim: .*greater than 0"),
        (("[map, mean]", "[map, median]"), r"line 9, statistic: .*map, moment, mean"),
        (("[0.5, 1.0, 2]", "[0.5, -1.0]"), r"line 8, head.random.horizon: .*greater than or equal to 0"),
        (("start: 100", "start: 2000"), r"line 6, n: a range needs start below stop"),
        (("{start: 100, stop: 1000, count: 3}", "[10, 10]"), r"line 6, n: sizes must increase"),
        (("{start: 100, stop: 1000, count: 3}", "[1.5]"), r"line 6, n.*valid integer"),
        (("name: gaussian\n", "name: a/b\n"), r"line 1, name: .*pattern"),
        (("chunk: 10", "chunk: 19"), r"20 replicates by 19 leave a task of 1"),
        (("replicates: 20", "replicates: 1"), r"replicates and chunk must be at least 2"),
        (("chunk: 10", "chunk: .inf"), r"line 11, chunk"),
        (
            ("chunk: 10", "precision: {of: slope, half_width: 0.1, max_replicates: 5}"),
            r"max_replicates is less than replicates",
        ),
        (
            ("[map, mean]", "[moment]"),
            r"statistic: The statistic 'moment' takes order, got nothing of it",
        ),
        (
            ("statistic: [map, mean]", "sampling.draw: [block]"),
            r"the point head.horizon = 0.5, sampling.draw = block cannot be run: .*population",
        ),
        (
            ("statistic: [map, mean]", "sampling.draw: [urn]"),
            r"sampling: draw must be one of .*; got 'urn'",
        ),
        (("law: {name: gaussian", "law: {name: cauchy"), r"line 4, law: .*'gaussian'"),
        (
            ("count: 3}", "count: 100_000_000}"),
            r"line 6, n: a range has a count of at most 10,000, got 100,000,000",
        ),
        (("dim: 2", "dim: 20_000"), r"dim must be at most 2,048 for a head of a given horizon, got 20,000"),
        (
            ("replicates: 20", "cases: [{head.horizon: 2.0}]\nreplicates: 20"),
            r"head.horizon and head.horizon say the same field in grid and cases: keep one of them",
        ),
        (
            ("replicates: 20", "cases: [{law: {name: sphere, dim: 2}, law.radius: 2.0}]\nreplicates: 20"),
            r"law and law.radius say the same field",
        ),
        (
            ("head.horizon: [0.5", "n.start.x: [0.5"),
            r"line 8, n.start.x cannot be set: start is not a mapping",
        ),
        (
            ("head.horizon: [0.5, 1.0, 2]", f"seed: {[*range(1000)]}\n  queries: {[*range(1, 600)]}"),
            r"grid and cases make 1,198,000 points, of which a study has at most 1,000,000: give fewer values",
        ),
        (
            ("replicates: 20", "replicates: 1000000000000000000000000"),
            r"make 6\d\d,.*,000 tasks, of which a study has at most 100,000,000: ask for fewer replicates",
        ),
        (
            ("chunk: 10", "precision: {of: slope, half_width: 0.1, max_replicates: 1000000000000}"),
            r"make 240,000,000,000 tasks",
        ),
        (
            ("replicates: 20", "replicates: 20\nreplicates: 30"),
            r"line 11: 'replicates' was given before, in line 10",
        ),
    ],
)
def test_bad_specifications_name_the_line_and_the_field(change, message):
    assert change[0] in GOOD
    with pytest.raises(InputError) as caught:
        load_study(written(GOOD.replace(change[0], change[1], 1)))
    assert re.search(message, str(caught.value)), caught.value


def test_quick_fields_that_cannot_be_set_are_named_with_their_line():
    with pytest.raises(
        InputError, match=r"study.yaml: line 13, what.n.start.x cannot be set: start is not a"
    ):
        load_study(written(GOOD + "quick:\n  what.n.start.x: 3\n"), quick=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf"), [0.5, float("nan")]])
@pytest.mark.parametrize(
    ("field", "where"),
    [("grid", r"grid.law.cov.1"), ("cases", r"cases.0.law.cov"), ("what", r"what.law"), ("quick", r"quick.law.cov")],
)  # fmt: skip
def test_numbers_that_are_not_finite_are_no_fields_left_out(value, field, where):
    law = {"name": "gaussian", "dim": 2, "cov": value}
    data = {"grid": {"law.cov": [1.0, value]}, "cases": [{"law.cov": value}], "what": {"law": law}, "quick": {"law.cov": value}}  # fmt: skip
    with pytest.raises(InputError, match=rf"the study: {where}: numbers must be finite, got .*(nan|inf)"):
        study_from({"name": "a", "kind": "exact", field: data[field]})


def test_precision_is_for_what_has_an_interval():
    exact = {"name": "a", "kind": "exact", "what": {"law": {"name": "sphere", "dim": 3}, "n": [10]}}
    exact["what"]["head"] = {"name": "identity", "horizon": 1}
    study_from(exact)
    with pytest.raises(InputError, match="kind exact is exact and has no noise"):
        study_from({**exact, "replicates": 3})
    with pytest.raises(InputError, match="precision is for kinds such as convergence"):
        study_from({**exact, "precision": {"of": "slope", "half_width": 0.1, "max_replicates": 9}})


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch pwned']",
        "a: !!python/name:os.system ''",
        "- !!python/object/new:subprocess.Popen [['touch', 'pwned']]",
    ],
)
def test_yaml_builds_no_objects(text):
    with pytest.raises(InputError, match="not valid YAML"):
        load_study(written(text))
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "name", ["../up", "/tmp/x", "a/../../b", "..", ".hidden", "a\\b", "", "x" * 65, "a b"]
)
def test_no_name_leads_out_of_the_run_directory(name):
    with pytest.raises(InputError, match="line 1, name"):
        load_study(written(GOOD.replace("name: gaussian", f"name: {json.dumps(name)}", 1)))


def test_files_count_by_their_content_and_not_by_their_place():
    text = GOOD.replace("cov: 0.5", "cov: {file: data/cov.npy}").replace(", dim: 2", "")
    ids = []
    for folder in ("one", "two"):
        Path(folder, "data").mkdir(parents=True)
        np.save(Path(folder, "data", "cov.npy"), np.diag([1.0, 0.5]))
        ids.append([task.id for task in all_tasks(load_study(written(text, f"{folder}/study.yaml")))])
    assert ids[0] == ids[1]
    np.save("two/data/cov.npy", np.diag([1.0, 0.6]))
    assert not set(ids[0]) & {task.id for task in all_tasks(load_study("two/study.yaml"))}


def test_a_file_that_changed_is_noticed():
    from attnlimit.studies.work import work

    np.save("cov.npy", np.eye(2))
    text = GOOD.replace("cov: 0.5", "cov: {file: cov.npy}").replace(", dim: 2", "")
    task = all_tasks(load_study(written(text)))[0]
    assert work(0, task.to_bytes()).how == "done"
    np.save("cov.npy", np.eye(2) * 2)
    outcome = work(0, task.to_bytes())
    assert outcome.how == "raised"
    assert b"cov.npy has changed since the study was made" in outcome.body
    with pytest.raises(InputError, match=r"There is no file .*missing.npy"):
        load_study(written(text.replace("cov.npy", "missing.npy")))


def test_a_kind_that_ends_the_process_ends_its_task(monkeypatch):
    from attnlimit.studies.kinds.probe import Probe
    from attnlimit.studies.work import work

    monkeypatch.setattr(Probe, "run", lambda *given: sys.exit("enough"))
    task = all_tasks(study_from({"name": "p", "kind": "probe"}))[0]
    outcome = work(0, task.to_bytes())
    assert outcome.how == "raised"
    assert b"SystemExit: enough" in outcome.body
