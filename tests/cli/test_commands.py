"""The commands as people run them."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import attnlimit as al
from attnlimit.cli.common import numbers, whole_numbers
from attnlimit.errors import InputError


def test_curve_json_has_the_documented_keys(run):
    command = "curve --measure gaussian --dim 1 --horizon 2 --n 1e2,1e3,1e11,1e12 --json"
    result = json.loads(run(*command.split()).stdout)
    assert {"n", "rms", "mean_rms", "local_slope", "rates"} <= set(result)
    assert result["n"] == [100, 1000, 10**11, 10**12]
    rms = result["rms"]["error"]
    assert np.log10(rms[0] / rms[1]) == pytest.approx(0.171, abs=5e-4)  # theory.md's local slopes
    assert np.log10(rms[2] / rms[3]) == pytest.approx(0.118, abs=5e-4)
    assert result["rates"]["rms"] == pytest.approx((2**0.5 - 1) / 4)


def test_curve_table_and_figure(run, tmp_path):
    result = run(
        "curve", "--dim", "2", "--horizon", "0.5", "--n", "10:1000:3", "--plot", str(tmp_path / "a" / "c.png")
    )
    assert "local exponent" in result.stdout
    assert "As n → ∞" in result.stdout
    assert (tmp_path / "a" / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_curve_from_files(run, tmp_path):
    A, V, cov = np.diag([1.0, 0.5]), np.eye(2)[:1], np.diag([1.0, 0.2])
    for name, matrix in (("A", A), ("V", V), ("cov", cov)):
        np.save(tmp_path / f"{name}.npy", matrix)
    files = [word for name in ("A", "V", "cov") for word in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    result = json.loads(run("curve", *files, "--n", "50", "--json").stdout)
    expected = al.curve(al.Head(torch.tensor(A), torch.tensor(V)), al.Gaussian(cov=torch.tensor(cov)), 50)
    assert result["rms"] == expected.to_dict()
    assert result["local_slope"] == [None]  # one n has no slope, and nan is not JSON


def test_monte_carlo_curve(run, tmp_path):
    command = "curve --dim 2 --horizon 0.5 --n 100:1000:4 --method monte-carlo --replicates 8 --seed 3"
    first = json.loads(run(*command.split(), "--json").stdout)
    again = json.loads(run(*command.split(), "--json").stdout)
    assert first == again
    assert first["fit"]["exponent"] == pytest.approx(0.5, abs=0.2)
    shown = run(*command.split(), "--plot", str(tmp_path / "m.pdf")).stdout
    assert "Monte Carlo, 8 replicates" in shown
    assert (tmp_path / "m.pdf").stat().st_size > 1000


def test_complexity(run):
    found = json.loads(run("complexity", "--horizon", "1", "--rel-error", "0.05", "--json").stdout)["results"]
    n = found[0]["n"]
    rms = al.curve(al.Head([[1.0]]), al.Gaussian(dim=1), [n - 1, n]).error
    assert rms[0] > 0.05 >= rms[1]
    beyond = json.loads(run("complexity", "--horizon", "1.5", "--abs-error", "1e-7", "--json").stdout)[
        "results"
    ]
    assert (beyond[0]["n"], beyond[0]["exceeds"]) == (None, 10**12)
    assert "tokens n(ε)" in run("complexity", "--horizon", "0.5", "--rel-error", "0.5").stdout


def test_complexity_with_a_probability(run):
    """Text and record say what `sample_complexity(delta=)` does."""
    asked = ["complexity", "--dim", "1", "--horizon", "0.5", "--abs-error", "0.3", "--delta", "0.1"]
    (found,) = json.loads(run(*asked, "--json").stdout)["results"]
    head, law = al.Head([[0.5]]), al.Gaussian(dim=1)
    expected = al.sample_complexity(head, law, abs_error=0.3, queries=[[1.0]], delta=0.1)
    assert found["n"] == expected.n
    at = [al.error_law(head, law, expected.n - less, [1.0]).exceeds(0.3) for less in (0, 1)]
    assert at[0] <= 0.1 < at[1]
    told = " ".join(run(*asked).stdout.split())
    assert f"{expected.n:,}" in told
    assert "of the first output at (1, 0, …), exceeded with probability 0.1" in told


def test_phase(run, tmp_path):
    grid = ("--kappa", "0.5:6:4", "--n", "10:1e6:4")
    diagram = json.loads(run("phase", *grid, "--json").stdout)
    assert np.shape(diagram["relative_rms"]) == (4, 4)
    assert diagram["region"][0][-1] == "averaging"
    assert diagram["region"][-1][0] == "not reached"
    shown = run("phase", *grid, "--plot", str(tmp_path / "p.svg")).stdout
    assert "the limit is not reached" in shown
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_bound(run):
    found = json.loads(
        run("bound", "--measure", "ball", "--horizon", "0.5", "--n", "100,1e6", "--json").stdout
    )
    assert [one["name"] for one in found["bounds"]] == [
        "averaged",
        "berry_esseen",
        "fixed_query",
        "mean_square",
        "observed_chi2",
        "uniform",
    ]
    assert found["refused"] == {}
    assert all(one["hypotheses"] for one in found["bounds"])
    assert "uniform" in run("bound", "--horizon", "0.5").stdout


def test_cite_and_version(run):
    assert "bohbot2026token" in run("cite").stdout
    assert run("--version").stdout.strip() == f"attnlimit {al.__version__}"
    assert "complexity" in run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curve"], "either by --horizon H or by --A FILE"),
        (["curve", "--horizon", "1", "--A", "x.npy"], "either by --horizon H or by --A FILE"),
        (["curve", "--horizon", "-1"], "--horizon must be a number of at least 0"),
        (
            ["curve", "--horizon", "1", "--measure", "cauchy"],
            "--measure must be one of ball, box, gaussian, laplace, rademacher, sphere; got 'cauchy'",
        ),
        (["curve", "--horizon", "1", "--measure", "ball", "--cov", "2"], "--cov is for gaussian tokens"),
        (["curve", "--horizon", "1", "--n", "1e9:1e3:4"], "positive numbers such as 1e3"),
        (["curve", "--horizon", "1", "--method", "guess"], "--method must be exact or monte-carlo"),
        (["curve", "--A", "missing.npy"], "There is no file missing.npy"),
        (["curve", "--horizon", "1", "--plot", "c.gif", "--n", "10"], "written as .png, .pdf or .svg"),
        (["curve", "--horizon", "0.1", "--measure", "box", "--dim", "2"], "no projected form"),
        (["complexity", "--horizon", "1", "--rel-error", "1", "--abs-error", "1"], "not both"),
        (["bound", "--measure", "laplace", "--horizon", "1"], "bounded or sub-Gaussian tokens"),
    ],
)
def test_bad_input_is_one_clear_message(run, arguments, message):
    result = run(*arguments, code=2)
    assert re.search(message, " ".join(result.stderr.split())), result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(Path.cwd().iterdir())  # nothing half-written


def test_interrupted(run, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("attnlimit.exact.curve"), "query_average", interrupt)
    assert "Interrupted" in run("curve", "--horizon", "1", code=130).stderr


@pytest.mark.parametrize("text", ["", "a", "1:2", "1:2:3:4", "0", "-1,2", "nan", "1:10:0", "1:10:1", "inf"])
def test_ranges_refuse_nonsense(text):
    with pytest.raises(InputError, match="start:stop:count"):
        numbers(text)


def test_ranges():
    assert whole_numbers("1e3") == [1000]
    assert whole_numbers("1e2,1e4,1e6,1e9") == [100, 10**4, 10**6, 10**9]
    assert len(whole_numbers("1e3:1e9:12")) == 12
    assert whole_numbers("5:5:1") == [5]
