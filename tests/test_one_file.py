"""A law is one file, and so are a bound and a way of drawing: a copy of the package with three new files, and nothing else
changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnlimit

LAW = '''
"""Tokens with triangular coordinates."""

import math

import numpy as np
import torch

from attnlimit.measures.product import Product
from attnlimit.measures.spec import DIM, SIZE, Spec
from attnlimit.numerics.bessel import sphere_cgf


class Triangular(Product):
    """Coordinates of density (1 − |ξ|): sums of two uniforms, ℓ(t) = 2 log(sinh(t/2)/(t/2))."""

    spec = Spec("triangular", dim=DIM, half_width=SIZE)
    scale_name = "half_width"
    narrows = True

    def __init__(self, dim, half_width=1.0, **kind):
        super().__init__(dim, half_width, **kind)
        self.radius = self.scale * math.sqrt(dim)
        self.variance_proxy = self.scale**2 / 6

    def _coordinate(self, t):
        at = sphere_cgf(t.abs() / 2, 3)
        return 2 * at.cgf, at.ratio_over_r * t / 2, at.derivative / 2

    def _nodes(self, reach, like, finer):
        x, w = (torch.as_tensor(part).to(like) for part in np.polynomial.legendre.leggauss(40 + int(8 * reach)))
        xi, mass = (1 + x) / 2, (w / 2) * (1 - x) / 2
        return torch.cat([-xi, xi]), torch.cat([mass, mass]).log()

    def _top(self, a):
        return self.scale * a.sign()

    def _draw(self, n, generator):
        u, v = (self._uniform(n, self.dim, generator=generator) for _ in range(2))
        return self.scale * (u + v - 1)
'''

BOUND = '''
"""What holds without any hypothesis but compact support."""

from attnlimit.bounds.hypotheses import COMPACT, check_compact, check_head, token_counts
from attnlimit.bounds.result import Bound


def diameter(head, law, n):
    """‖Γ_n − Γ‖ ≤ 2R_V, whatever n."""
    check_head(head, law)
    check_compact(law, "diameter")
    sizes, _ = token_counts(n, head.factors.right)
    value = 2 * law.value_radius(head.factors.V) + 0 * sizes
    return Bound("diameter", value, "always", "‖Γ_n − Γ‖ ≤ 2 R_V", (COMPACT,), {})
'''

DRAW = '''
"""Every so many keys, from a random start."""

from dataclasses import dataclass

import torch

from attnlimit.designs.draw import Draw, uniform


@dataclass(frozen=True)
class Regular(Draw):
    """n keys at equal distances, round the end of the text."""

    name, words, nested = "regular", "keys at equal distances", False

    def places(self, population, n, generator):
        start = float(uniform(1, generator)) * population
        return [(start + population * torch.arange(k) / k).long() % population for k in n]
'''

STUDY = """\
name: own
kind: {kind}
what:
  law: {{name: triangular, dim: 1, half_width: 2}}
  head: {{name: identity, horizon: 0.7}}
  n: [20, 80, 320]
{more}"""

USE = """
import json, torch
import attnlimit as al
from attnlimit.measures import laws
from typer.testing import CliRunner
from attnlimit.cli import app

law = laws()["triangular"](1, half_width=2.0)
A = torch.tensor([[1.5]], dtype=torch.float64)
head, x = al.Head(A), torch.tensor([[0.4], [1.0], [-1.3]], dtype=torch.float64)

# the limit, against the quadrature of its definition
y = torch.linspace(-2, 2, 200_001, dtype=torch.float64)
weight = (2 - y.abs()) * (x @ A.T * y).exp()
torch.testing.assert_close(head(law)(x)[:, 0], (weight @ y) / weight.sum(-1), rtol=1e-8, atol=1e-8)
assert abs(law.covariance.item() - 4 / 6) < 1e-12

# the exact error, against Monte Carlo with 4,000 replicates (false alarm < 1e-5)
exact = al.exact_error(head, law, n=[10, 100], queries=x).mean_square.mean(0)
drawn = al.measure_convergence(head, law, n=[10, 100], queries=x, replicates=4000, generator=0)
measured, error = drawn.rms.square(), 2 * drawn.rms * drawn.rms_standard_error
assert bool(((measured - exact).abs() < 5 * error).all()), (measured, exact, error)

assert bool((al.bounds.mean_square(head, law, x, [10, 100]).value.mean(0) > exact).all())
assert al.rates(head, law).bounded
assert abs(al.horizon(head, law) - 1.0) < 1e-12
assert float(head.hardmax(law)(x[1])) == 2.0
assert al.phase_diagram(law, [1.0], [10, 1000]).relative_rms.isfinite().all()

def run(*words):
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())

assert "triangular" in CliRunner().invoke(app, ["curve", "--measure", "none", "--horizon", "1"]).stderr
found = json.loads(run("curve", "--measure", "triangular", "--scale", "2", "--horizon", "1", "--n", "10,100", "--json"))
assert found["n"] == [10, 100] and found["rates"]["bounded"]
table = json.loads(run("bound", "--measure", "triangular", "--dim", "2", "--horizon", "1", "--n", "10", "--json"))
assert "diameter" in [one["name"] for one in table["bounds"]], table
for kind in ("convergence", "exact"):
    shown = run("sweep", f"{kind}.yaml", "--workers", "1")
    assert f"Run: attnlimit-out/own-{kind}" in shown and "horizon 0.7" in shown, shown

# the way of drawing: a sampling by its name, Monte Carlo, its record, and what is not known of it
keys = law.sample(60, generator=1)
plan = al.Sampling.from_dict({"draw": "regular", "kept": {"sinks": 2}})
assert str(plan) == "keys at equal distances, keeping 2 sinks" and plan.to_dict()["draw"] == "regular"
for sampling in (plan, al.Sampling(draw=plan.draw)):
    found = al.measure_convergence(head, keys, [5, 30], sampling=sampling, queries=8, replicates=8)
    assert float(found.rms[1]) < float(found.rms[0])
everything = al.measure_convergence(head, keys, [60], sampling=al.Sampling(draw=plan.draw), replicates=2)
assert float(everything.rms[0]) < 1e-12
try:
    al.exact_error(head, keys, 5, x, sampling=plan)
except al.NotKnown as refusal:
    assert "keys at equal distances is not known exactly" in str(refusal)
print("all of it")
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    source = Path(attnlimit.__file__).parent
    shutil.copytree(source, tmp_path / "attnlimit", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_a_law_a_bound_and_a_draw_in_one_file_each(copy: Path) -> None:
    (copy / "attnlimit/measures/triangular.py").write_text(LAW, encoding="utf-8")
    (copy / "attnlimit/bounds/diameter.py").write_text(BOUND, encoding="utf-8")
    (copy / "attnlimit/designs/regular.py").write_text(DRAW, encoding="utf-8")
    rest = {"convergence": "replicates: 10\nchunk: 5\n", "exact": ""}
    for kind, more in rest.items():
        Path(f"{kind}.yaml").write_text(STUDY.format(kind=kind, more=more).replace("own", f"own-{kind}"))
    done = subprocess.run(
        [sys.executable, "-c", USE],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(copy)},
        timeout=300,
    )
    assert done.stdout.endswith("all of it\n"), done.stdout + done.stderr
