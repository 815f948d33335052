"""One fit call of every public callable: what strangers' arguments are put into."""

from __future__ import annotations

import inspect
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import attnlimit as al
from attnlimit import bounds, icl, studies


@dataclass(frozen=True)
class Call:
    """`make(**arguments)` is fit; `free` are arguments that may be anything, such as words to be shown."""

    name: str
    make: Callable[..., Any]
    arguments: dict[str, Any]
    free: tuple[str, ...] = ()
    slow: bool = False
    record: bool = False
    """Whether it keeps the numbers it is given, nan included."""
    refused: bool = False
    """Whether what it needs is not here."""
    infinite: bool = False
    """Whether its answer may be infinite, as its docstring says."""


eye = [[1.0, 0.0], [0.0, 1.0]]
head, law = al.Head([[0.5, 0.0], [0.0, 0.5]]), al.Gaussian(dim=2)
sphere, tokens = al.Sphere(2), law.sample(40, generator=0)
x = [[1.0, 0.5], [0.2, -0.3]]
n = [4, 16]
plan = al.Sampling(draw=al.Different(), kept=al.Kept(own=True, sinks=1), weight="rest")
basic: dict[str, Any] = {"head": head, "measure": tokens, "n": n, "queries": x}


def fields(made: Any) -> dict[str, Any]:
    """What a dataclass is made of."""
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def laws() -> Iterator[Call]:
    kinds: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    yield Call("Ball", al.Ball, {"dim": 2, "radius": 1.0, **kinds})
    yield Call("Box", al.Box, {"dim": 2, "half_width": 1.0, **kinds})
    yield Call("Laplace", al.Laplace, {"dim": 2, "scale": 1.0, **kinds})
    yield Call("Rademacher", al.Rademacher, {"dim": 2, **kinds})
    yield Call("Sphere", al.Sphere, {"dim": 2, "radius": 1.0, **kinds})
    yield Call("StudentT", al.StudentT, {"dim": 2, "df": 5, **kinds})
    yield Call("Gaussian", al.Gaussian, {"mean": [0.0, 0.0], "cov": eye, "dim": 2})
    yield Call("Empirical", al.Empirical, {"tokens": x, "values": x, "weights": [0.5, 0.5]})
    yield Call("Mixture", al.Mixture, {"weights": [0.5, 0.5], "parts": [law, law]})
    yield Call(
        "FromSampler",
        al.FromSampler,
        {"transform": torch.square, "dim": 2, "uniforms": 2, "points": 64, "scrambles": 2, **kinds},
    )
    for method in ("cgf", "tilted_mean", "tilted_cov", "tilted_value_cov", "in_domain", "top"):
        yield Call(f"Sphere.{method}", getattr(sphere, method), {"a": x})
    yield Call("Gaussian.sample", law.sample, {"n": 4, "generator": 0})
    yield Call("Empirical.sample", tokens.sample, {"n": 4, "generator": 0})


def heads() -> Iterator[Call]:
    yield Call("Head", al.Head, {"A": eye, "V": eye})
    yield Call(
        "Head.from_projections",
        al.Head.from_projections,
        {"Wq": eye, "Wk": eye, "Wv": eye, "bq": x[0], "bk": x[0], "bv": x[0], "scale": 1.0},
    )
    yield Call("Head.scaled", head.scaled, {"kappa": 2.0})
    yield Call("Head.along", head.along, {"direction": x[0]})
    yield Call("Head.__call__", head.__call__, {"measure": law})
    yield Call("Head.hardmax", head.hardmax, {"measure": sphere})
    yield Call("Head.check_fits", head.check_fits, {"measure": law})
    yield Call("Head.checked", head.checked, {"x": x})
    yield Call("Map.__call__", head(law).__call__, {"x": x})
    yield Call("Map.jacobian", head(law).jacobian, {"x": x})
    yield Call("Map.derivative_A", head(law).derivative_A, {"x": x, "E": eye})
    yield Call("Map.pushforward", head(law).pushforward, {"source": law})
    yield Call("HardmaxMap.__call__", head.hardmax(sphere).__call__, {"x": x})
    yield Call("clt", al.clt, {"head": head, "measure": law, "x": x})
    yield Call("stream", al.stream, {"head": head, "tokens": tokens.tokens, "queries": x, "block": 8})
    yield Call("prefixes", lambda **given: list(al.prefixes(**given)), {"head": head, "tokens": tokens.tokens, "n": [1, 2], "queries": x, "block": 8})  # fmt: skip


def designs() -> Iterator[Call]:
    yield Call("Kept", al.Kept, {"own": True, "sinks": 1, "window": 1, "around": 0, "top": 1})
    yield Call("Kept.without", al.Kept(own=True).without, {"place": True, "order": True})
    yield Call("Sampling", al.Sampling, {"draw": al.Different(), "kept": al.Kept(), "weight": "rest"})
    yield Call("Sampling.from_dict", al.Sampling.from_dict, {"given": {"draw": "different"}})
    yield Call("Chances", al.Chances, {"sizes": (1.0, 2.0)})
    yield Call("Neyman", al.Neyman, {"strata": (0, 1), "spread": (1.0, 2.0)})
    for draw in (al.Independent, al.Different, al.Coins, al.Prefix, al.Block, al.Strata):
        given = {"population": 40, "n": n, "generator": torch.Generator()}
        yield Call(f"{draw.__name__}.places", draw().places, given)


def exact() -> Iterator[Call]:
    how: dict[str, Any] = {"sampling": plan, "positions": [3, 5], "binned": False}
    yield Call("exact_error of tokens", al.exact_error, {**basic, **how})
    yield Call("exact_error of a law", al.exact_error, {**basic, "measure": law})
    yield Call("error_covariance", al.error_covariance, {**basic, **how})
    one: dict[str, Any] = {"head": head, "measure": tokens, "n": 4, "query": x[0], "direction": x[1]}
    yield Call("error_law of tokens", al.error_law, {**one, "sampling": plan, "positions": 3})
    yield Call("error_law of a law", al.error_law, {**one, "measure": sphere})
    found = al.error_law(head, tokens, 4, x[0], x[1], sampling=plan, positions=3)
    yield Call("ErrorLaw", al.ErrorLaw, fields(found), ("method",), record=True)
    for method, value in {
        "cdf": 0.1,
        "cdf_error": 0.1,
        "exceeds": [0.1],
        "quantile": 0.5,
        "interval": 0.9,
    }.items():
        given = {next(iter(inspect.signature(getattr(found, method)).parameters)): value}
        yield Call(f"ErrorLaw.{method}", getattr(found, method), given)
    laplace: dict[str, Any] = {"head": al.Head([[1.0]]), "law": al.Laplace(1), "x": [0.7], "n": [10, 100], "progress": lambda *_: None}  # fmt: skip
    yield Call("heavy_tails", al.heavy_tails, laplace, infinite=True)
    yield Call("design_errors", al.design_errors, {**basic, "sizes": [1.0] * 40, "strata": 2, "kept": al.Kept(), "positions": [3, 5]})  # fmt: skip
    yield Call("gradient_error", al.gradient_error, {**basic, "measure": law})
    yield Call("curve", al.curve, {"head": head, "law": law, "n": n, "statistic": "rms"})
    yield Call("gaussian_maximum", al.gaussian_maximum, {"n": n})


def hardmax_and_complexity() -> Iterator[Call]:
    of_law: dict[str, Any] = {"head": head, "law": sphere, "n": n, "queries": x}
    yield Call("hardmax_error", al.hardmax_error, of_law)
    yield Call("hardmax_gap", al.hardmax_gap, {**of_law, "kappa": [1.0, 2.0]})
    yield Call("best_kappa", al.best_kappa, of_law, infinite=True)
    yield Call("Schedule", al.Schedule, {"gamma": 1.0, "log_power": 0.5, "power": 0.1})
    yield Call("Schedule.__call__", al.Schedule(gamma=1.0, power=0.1).__call__, {"n": 10})
    yield Call("Schedule.constant", al.Schedule.constant, {"kappa": 1.0})
    yield Call("Schedule.log", al.Schedule.log, {"gamma": 1.0})
    yield Call("Schedule.root_log", al.Schedule.root_log, {"gamma": 1.0})
    yield Call("Schedule.hardmax", al.Schedule.hardmax, {"dim": 2, "gamma": 1.0})
    yield Call("mean_output_error", al.mean_output_error, {**basic, "measure": law})
    yield Call("second_moment_error", al.second_moment_error, {"head": al.Head([[0.5]]), "law": al.Gaussian(dim=1), "n": n})  # fmt: skip
    yield Call("output_covariance_error", al.output_covariance_error, {"head": al.Head([[0.5]]), "law": al.Gaussian(dim=1), "n": n})  # fmt: skip
    yield Call("two_query_covariance", al.two_query_covariance, {"head": head, "measure": law, "n": n, "x": x[0], "other": x[1]})  # fmt: skip
    yield Call(
        "phase_diagram", al.phase_diagram, {"law": sphere, "kappa": [1.0, 2.0], "n": n, "direction": x[0]}
    )
    yield Call(
        "sample_complexity",
        al.sample_complexity,
        {"head": head, "measure": law, "rel_error": 0.1, "queries": x},
    )
    yield Call(
        "sample_complexity, absolute", al.sample_complexity, {"head": head, "measure": law, "abs_error": 0.1}
    )
    sure: dict[str, Any] = {"measure": tokens, "rel_error": 0.5, "queries": [x[0]], "delta": 0.1}
    yield Call(
        "sample_complexity with delta",
        al.sample_complexity,
        {"head": al.Head(eye, [[1.0, 0.0]]), **sure, "sampling": plan, "positions": [3]},
    )


def rates() -> Iterator[Call]:
    yield Call("horizon", al.horizon, {"head": head, "law": law, "kind": "two-sided", "queries": law})
    yield Call("rates", al.rates, {"head": head, "law": law, "queries": law})
    yield Call("exponents", al.exponents, {"H": 0.5}, infinite=True)
    errors = [0.5, 0.26, 0.12, 0.06]
    fitted: dict[str, Any] = {"n": [4, 16, 64, 256], "errors": errors, "standard_errors": [0.001] * 4, "statistic": "mean", "level": 0.9, "resamples": 1000, "generator": 0}  # fmt: skip
    yield Call("fit_power", al.fit_power, {**fitted, "max_width": 1.0})
    yield Call(
        "fit_power of rows",
        al.fit_power,
        {
            **fitted,
            "errors": [[e * (1 + k / 50 + k * e / 9) for e in errors] for k in range(8)],
            "standard_errors": None,
        },
    )
    yield Call("fit_log", al.fit_log, fitted)
    yield Call("choose", al.choose, {**fitted, "max_width": 1.0})
    yield Call("local_slopes", al.local_slopes, {"n": [4, 16, 64], "errors": [0.5, 0.26, 0.12]})
    curve = al.ErrorCurve((1, 16), torch.tensor([1.0, 0.25]))
    one = torch.tensor([1.0, 0.25], dtype=torch.float64)
    yield Call("ErrorCurve", al.ErrorCurve, {"n": (1, 16), "error": one, "standard_error": one, "statistic": "rms", "method": "exact", "keys": one, "full": 20, "scale": 1.0, "rows": one[None]}, ("statistic", "method"), record=True)  # fmt: skip
    yield Call("ErrorCurve.at", curve.at, {"n": 4})
    yield Call("ErrorCurve.keys_at", curve.keys_at, {"n": 4})
    yield Call("ErrorCurve.least", curve.least, {"error": 0.5})
    yield Call("ErrorCurve.from_dict", al.ErrorCurve.from_dict, {"record": curve.to_dict()})


def monte_carlo() -> Iterator[Call]:
    square = torch.ones(2, 2, dtype=torch.float64)
    yield Call("ExactError", al.ExactError, {"n": (1, 2), "mean_square": square, "bias_square": square, "limit_square": square[0], "method": "exact", "bin_error": 0.1}, ("method",), record=True)  # fmt: skip
    yield Call("Convergence", al.Convergence, {"n": (1, 2), "statistic": "map", "squares": square, "norms": square, "how": "so", "reference": "law", "agreed": None}, ("statistic", "how", "reference"), record=True)  # fmt: skip
    measured = al.measure_convergence(head, law, n, replicates=5, queries=4)
    yield Call("Convergence.curve", measured.curve, {"statistic": "rms"})
    yield Call("Convergence.joined", al.Convergence.joined, {"parts": [measured, measured]})
    yield Call("Rates", al.Rates, {"horizon": 0.5, "paper": 0.5, "bound": 0.5, "mean": 0.5, "mean_rms": 0.5, "rms": 0.5, "note": "", "bounded": False}, ("note",), infinite=True)  # fmt: skip
    yield Call("Fresh", al.Fresh, {"count": 4})
    yield Call("Own", al.Own, {"count": 4})
    yield Call("Given", al.Given, {"x": x, "positions": [0, 1]})
    yield Call("Moment", al.Moment, {"order": 3})
    yield Call("Sup", al.Sup, {"radius": 1.0, "restarts": 2})
    mc: dict[str, Any] = {
        "head": head,
        "law": law,
        "n": n,
        "replicates": 3,
        "generator": 0,
        "progress": lambda *_: None,
    }
    for statistic in ("map", "mean", al.Covariance(), al.Moment(3), al.Sup(1.0, restarts=2)):
        own = {} if isinstance(statistic, al.Sup) else {"queries": 4}
        yield Call(
            f"measure_convergence of {statistic}",
            al.measure_convergence,
            {**mc, "statistic": statistic, **own},
        )
    places = {"queries": al.Given(x, [3, 5]), "sampling": plan}
    yield Call("measure_convergence of tokens", al.measure_convergence, {**mc, "law": tokens, **places})


def of_bounds() -> Iterator[Call]:
    head, law, x = al.Head([[0.5, 0.0], [0.0, 0.5]]), al.Sphere(2), [1.0, 0.5]
    basic: dict[str, Any] = {"head": head, "law": law, "x": x, "n": [100, 1000]}
    yield Call("bounds.averaged", bounds.averaged, {"head": head, "law": law, "n": [100], "queries": law, "method": None, "generator": 0, "samples": 64, "delta": 0.1}, infinite=True)  # fmt: skip
    yield Call("bounds.all_bounds", bounds.all_bounds, {})
    yield Call("bounds.berry_esseen", bounds.berry_esseen, {**basic, "direction": [1.0, 0.0]}, infinite=True)
    tokens = law.sample(500, generator=0)
    yield Call("bounds.empirical", bounds.empirical, {"head": head, "tokens": tokens, "x": x, "delta": 0.1, "population": law}, infinite=True)  # fmt: skip
    yield Call("bounds.fixed_query", bounds.fixed_query, {**basic, "delta": 0.1}, infinite=True)
    yield Call("bounds.mean_square", bounds.mean_square, basic, infinite=True)
    yield Call("bounds.observed_chi2", bounds.observed_chi2, {**basic, "delta": 0.1}, infinite=True)
    yield Call("bounds.uniform", bounds.uniform, {"head": head, "law": law, "radius": 1.0, "n": [10**6], "delta": 0.1, "method": None}, infinite=True)  # fmt: skip
    yield Call("bounds.Bound", bounds.Bound, {"name": "b", "value": torch.ones(2), "kind": "k", "formula": "f", "hypotheses": ("h",), "inputs": {"n": 2}, "confidence": 0.9, "constant": torch.ones(2), "exponent": 0.5}, ("name", "kind", "formula", "inputs", "hypotheses"), record=True)  # fmt: skip


two, three = torch.eye(2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
task, block = icl.LinearRegression(2), icl.Block(two, 1.0)
full = block.embed()


def tasks() -> Iterator[Call]:
    yield Call("icl.LinearRegression", icl.LinearRegression, {"dim": 2, "cov": [1.0, 2.0], "noise": 0.1, "vector_cov": 1.0, "query_cov": 1.0})  # fmt: skip
    yield Call(
        "icl.Classification",
        icl.Classification,
        {"dim": 2, "cov": 1.0, "vector_cov": 1.0, "loss": "logistic"},
    )
    yield Call("icl.MixtureDenoising", icl.MixtureDenoising, {"dim": 2, "components": 2, "radius": 1.0, "spread": 0.01, "noise": 0.1})  # fmt: skip
    yield Call("icl.ar1", icl.ar1, {"dim": 2, "rho": 0.5})
    yield Call("icl.Block", icl.Block, {"A": two, "b": 1.0}, record=True)
    yield Call("icl.Weights", icl.Weights, {"U": two, "V": two})
    yield Call("icl.Prompts", icl.Prompts, {"tokens": torch.zeros(3, 4, 2), "query": three.float(), "target": three[:, 0].float(), "vector": three.float()}, record=True)  # fmt: skip
    yield Call(
        "icl.Floor", icl.Floor, {"value": 0.1, "standard_error": 0.1, "kind": "bayes"}, ("kind",), record=True
    )
    yield Call(
        "icl.LinearRegression.draw",
        task.draw,
        {"batch": 2, "length": 4, "generator": 0, "dtype": torch.float64},
    )
    yield Call("icl.LinearRegression.floor", task.floor, {"length": 8})
    yield Call("icl.LinearRegression.prompt_law", task.prompt_law, {"vector": three[0]})
    yield Call("icl.LinearRegression.exact_risk", task.exact_risk, {"U": full.U, "V": full.V})


def risks_and_flows() -> Iterator[Call]:
    yield Call("icl.balanced", icl.balanced, {"task": task, "scale": 0.1, "generator": 0})
    yield Call("icl.endpoint", icl.endpoint, {"task": task, "conserved": 0.0})
    yield Call("icl.stationary_points", icl.stationary_points, {"task": task, "conserved": 0.0})
    yield Call("icl.StationaryPoint", icl.StationaryPoint, {"block": block, "risk": 0.1, "kind": "minimum", "least_curvature": 0.1}, ("kind",), record=True)  # fmt: skip
    yield Call("icl.long_prompt_constant", icl.long_prompt_constant, {"task": task, "attention": "softmax"})
    yield Call("icl.tuned", icl.tuned, {"task": task, "length": 16, "attention": "opposite"})
    yield Call("icl.infinite_risk", icl.infinite_risk, {"task": task, "U": full.U, "V": full.V})
    prompts = task.draw(3, 4, 0)
    yield Call("icl.infinite_predictions", icl.infinite_predictions, {"task": task, "U": full.U, "V": full.V, "prompts": prompts})  # fmt: skip
    yield Call("icl.finite_risk", icl.finite_risk, {"task": task, "theta": full, "lengths": [4, 8], "prompts": 16, "generator": 0, "progress": lambda *_: None})  # fmt: skip
    yield Call(
        "icl.finite_risk of a block", icl.finite_risk, {"task": task, "theta": block, "lengths": [4, 8]}
    )
    yield Call("icl.FiniteRisk", icl.FiniteRisk, {"lengths": (1, 2), "risk": three[:2, 0], "standard_error": three[:2, 0], "method": "m"}, ("method",), record=True)  # fmt: skip
    yield Call("icl.flow", icl.flow, {"task": task, "theta0": block, "times": [0.0, 1.0], "gradient_norm": 1e-3, "rtol": 1e-6, "atol": 1e-8, "solver": "LSODA"})  # fmt: skip
    yield Call("icl.descend", icl.descend, {"task": task, "theta0": block, "step_size": 0.1, "steps": 4, "record_every": 2})  # fmt: skip
    yield Call("icl.transfer", icl.transfer, {"task": task, "length": 64, "rel_error": 0.1, "theta0": block, "generator": 0})  # fmt: skip
    yield Call("icl.Transfer.at", icl.transfer(task, 64).at, {"length": 32})
    few = icl.Optimizer(steps=4, batch=4)
    yield Call("icl.Transfer.check", icl.transfer(task, 64).check, {"length": 4, "optimizer": few, "start": icl.Start(), "generator": 0, "progress": lambda *_: None})  # fmt: skip


def trainings() -> Iterator[Call]:
    fast = icl.Optimizer(steps=4, batch=4)
    yield Call("icl.Optimizer", icl.Optimizer, {"kind": "sgd", "lr": 0.1, "schedule": "cosine", "variance_reduction": "control", "batch": 4, "steps": 4, "dtype": "float32", "device": "cpu"})  # fmt: skip
    yield Call("icl.Optimizer.rate", fast.rate, {"number": 2})
    yield Call("icl.Evaluation", icl.Evaluation, {"reports": 2, "test_lengths": (4,), "prompts": 8})
    yield Call("icl.Evaluation.steps", icl.Evaluation(reports=2).steps, {"last": 4})
    yield Call("icl.Start", icl.Start, {"init": 0.1, "seeds": 1})
    yield Call("icl.Saving", icl.Saving, {"checkpoint": None, "resume": True, "progress": lambda *_: None})
    some = icl.Evaluation(reports=2, prompts=8)
    trained: dict[str, Any] = {"task": task, "lengths": [4], "attention": "softmax", "optimizer": fast, "evaluation": some, "start": icl.Start(), "generator": 0, "saving": icl.Saving()}  # fmt: skip
    yield Call("icl.train", icl.train, trained)
    done = icl.train(**trained)
    yield Call("icl.Training.weights", done.weights, {"length": 4, "seed": 0})
    yield Call(
        "icl.Training",
        icl.Training,
        fields(done),
        record=True,
    )


def icl_results() -> Iterator[Call]:
    path = icl.descend(task, block, step_size=0.1, steps=4)
    yield Call("icl.WeightPath", icl.WeightPath, fields(path), ("form", "method", "stopped"), record=True)  # fmt: skip
    moved = icl.transfer(task, 64)
    yield Call("icl.Transfer", icl.Transfer, fields(moved), ("floor_kind",), record=True)  # fmt: skip
    yield Call("icl.TrainedCheck", icl.TrainedCheck, {"length": 4, "transferred": 0.1, "trained": (0.1,), "gap": 0.1, "gap_error": 0.1, "rel_error": 0.1, "method": ""}, ("method",), record=True)  # fmt: skip
    yield Call("icl.Loss", icl.Loss, {"kind": "squared", "target": lambda x: x})
    yield Call("icl.Trials", icl.Trials, {"replicates": 2, "queries": 4, "query_law": None})
    given = {"head": al.Head([[0.5]]), "prompt_law": al.Gaussian(dim=1), "lengths": [4, 8, 16], "trials": icl.Trials(replicates=5, queries=4), "loss": None, "exact": False, "generator": 0, "progress": lambda *_: None}  # fmt: skip
    yield Call("icl.concentration", icl.concentration, given)
    seen = icl.concentration(**given)
    yield Call("icl.Concentration.fit", seen.fit, {"name": "output", "statistic": "rms", "from_length": 1})
    yield Call("icl.Concentration", icl.Concentration, fields(seen), ("prompt_law", "query_law"), record=True)  # fmt: skip


def of_studies() -> Iterator[Call]:
    """Specifications, runs and what is read of them, in the folder that is current."""
    study = studies.study_from(STUDY)
    finished = studies.run_study(study, "run")
    Path("s.yaml").write_text(SPEC)
    yield Call("studies.study_from", studies.study_from, {"data": STUDY})
    yield Call("studies.load_study", studies.load_study, {"path": "s.yaml", "quick": False})
    yield Call(
        "studies.Precision",
        studies.Precision,
        {"of": "slope", "half_width": 0.1, "max_replicates": 10, "level": 0.9},
    )
    yield Call("studies.Study", studies.Study, STUDY, ("about",))
    yield Call("studies.estimate", studies.estimate, {"study": study, "workers": 1, "folder": None})
    yield Call("studies.run_study", studies.run_study, {"study": study, "folder": "run", "executor": None, "report": lambda *_: None, "stop": studies.Stop()})  # fmt: skip
    yield Call("studies.find_runs", studies.find_runs, {"folder": "."})
    yield Call("studies.open_run", _opened, {"folder": "run"})
    with studies.open_run("run") as run:
        found = studies.derive(run)
        yield Call("studies.derive", studies.derive, {"run": run})
        yield Call("studies.export", studies.export, {"run": run, "path": Path("table.csv")})
        yield Call("studies.StudyRun.results", lambda **given: list(run.results(**given)), {"point": 0})
    yield Call("studies.summary", studies.summary, {"found": found})
    yield Call("studies.Serial", studies.Serial, {"stop": None})
    yield Call("studies.Processes", _processes, {"workers": 1, "threads": 1}, slow=True)
    yield Call(
        "studies.connect",
        studies.connect,
        {"where": "nonsense", "workers": 1, "threads": 1, "resources": None},
        refused=True,
    )
    yield Call("studies.Dask", studies.Dask, {"client": None}, refused=True)
    with studies.open_run("run") as run:
        state = run.state
    yield Call("studies.State", studies.State, fields(state), record=True)  # fmt: skip
    yield Call("studies.Stop", studies.Stop, {})
    yield Call("studies.Progress", studies.Progress, {"done": 1, "total": 2, "failed": 0})
    yield Call("studies.Finished", studies.Finished, finished._asdict())
    made = studies.estimate(study, 1)
    yield Call("studies.Cost", studies.Cost, fields(made), ("calibration",), record=True)  # fmt: skip
    yield Call(
        "studies.Findings",
        studies.Findings,
        fields(found),
    )


STUDY: dict[str, Any] = {
    "name": "s",
    "kind": "exact",
    "what": {"law": {"name": "gaussian", "dim": 2}, "head": {"name": "identity"}, "n": [4, 8]},
    "grid": {"head.horizon": [0.5, 1.0]},
}
SPEC = """
name: s
kind: exact
what: {law: {name: gaussian, dim: 2}, head: {name: identity, horizon: 1.0}, n: [4, 8]}
"""


def _opened(folder: Any) -> None:
    with studies.open_run(folder):
        pass


def _processes(**given: Any) -> None:
    studies.Processes(**given).close()


def of_models() -> Iterator[Call]:
    """A small BERT of letters, in the folder that is current."""
    import transformers

    from attnlimit.models.judge.verify import Trial

    folder = Path("small")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=64, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    texts = [" ".join(random.Random(0).choices(string.ascii_lowercase, k=300))]
    loaded = al.load("small")
    reading = al.Reading(tokens=24, passages=2, queries=4, answer=1)
    yield Call("load", al.load, {"name_or_path": "small", "device": "cpu", "dtype": "float32", "device_map": None, "task": None, "note": lambda *_: None})  # fmt: skip
    yield Call("Reading", al.Reading, {"tokens": 24, "passages": 2, "queries": 4, "population": "context", "answer": 0, "grouped": False, "seed": 0})  # fmt: skip
    yield Call("analyze", al.analyze, {"model": loaded, "texts_or_documents": texts, "rel_error": 0.1, "reading": reading, "progress": lambda *_: None, "before": lambda *_: None})  # fmt: skip
    run = al.analyze(loaded, texts, reading=reading)
    yield Call("Run.budgets", run.budgets, {"rel_error": 0.2})
    yield Call("Run.budgets by keys", run.budgets, {"keys": 0.5})
    yield Call("Run.budgets by total", run.budgets, {"total": 600})
    budgets = run.budgets(keys=0.5)
    yield Call("Budgets", al.Budgets, fields(budgets))
    yield Call("Budgets.from_dict", al.Budgets.from_dict, {"given": budgets.to_dict()})
    yield Call("Budgets.save", budgets.save, {"path": "b.json"})
    budgets.save("b.json")
    yield Call("Budgets.load", al.Budgets.load, {"path": "b.json"})
    yield Call("Budgets.cost", al.Budgets.uniform([4, 4], 8).cost, {"lengths": [24], "causal": False})
    yield Call("Budgets.layer", budgets.layer, {"index": 0})
    yield Call("Budgets.check_fits", budgets.check_fits, {"model": loaded.model})
    inputs = {"input_ids": torch.arange(5, 29)[None]}

    def attended(**given: Any) -> object:
        with al.sampled_attention(**given):
            return loaded.model(**inputs).logits

    yield Call("sampled_attention", attended, {"model": loaded.model, "budgets": budgets, "generator": 0, "per_query": True, "sizes": None})  # fmt: skip
    yield Call("explain", al.explain, {"model": loaded, "text": texts[0], "token": 3, "which": None, "rel_error": 0.1, "reading": al.Reading(tokens=24, passages=1, queries=2), "progress": None, "before": None})  # fmt: skip
    yield Call("documents", al.documents, {"sources": ["b.json"]})
    run.save(Path("analysed"))
    yield Call("write_report", al.write_report, {"folder": "analysed", "file": None})
    allowed = al.Allowed()
    yield Call("Allowed", al.Allowed, fields(allowed), record=True)  # fmt: skip
    yield Call("Trial", al.Trial, fields(Trial()), record=True)  # fmt: skip
    yield Call("Run", al.Run, fields(run), record=True)  # fmt: skip
    yield Call("verify", al.verify, {"loaded": loaded, "budgets": budgets, "texts": texts, "windows": 1, "trial": Trial(), "allowed": None, "needles": (), "progress": None})  # fmt: skip
    yield Call("compare", al.compare, {"loaded": loaded, "run": run, "texts": texts, "keys": [0.5], "windows": 1, "seeds": (0,), "level": 0.9, "progress": None})  # fmt: skip


ROOMS: dict[str, Callable[[], Iterator[Call]]] = {
    "core": lambda: _all(laws, heads, designs, exact, hardmax_and_complexity, rates, monte_carlo),
    "bounds": of_bounds,
    "icl": lambda: _all(tasks, risks_and_flows, trainings, icl_results),
    "studies": of_studies,
    "models": of_models,
}


def _all(*parts: Callable[[], Iterator[Call]]) -> Iterator[Call]:
    for part in parts:
        yield from part()
