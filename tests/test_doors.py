"""What is public takes what its annotations say: the right result, or an InputError that says what is wrong."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnlimit as al
from attnlimit import bounds, icl, studies
from attnlimit.doors import checks_of
from attnlimit.errors import TooLarge

TABLE = Path(__file__).parent / "doors" / "table.py"
HEAD, LAW, X = al.Head([[0.5, 0.0], [0.0, 0.5]]), al.Gaussian(dim=2), [[1.0, 0.5]]
TOKENS = LAW.sample(40, generator=0)
OWN = al.Sampling(kept=al.Kept(own=True))


class Lengthless(list[int]):
    def __len__(self) -> int:
        raise OSError("no length")


def public() -> dict[str, Any]:
    found = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (al, icl, studies, bounds)
        for name in module.__all__
    }
    return {name: one for name, one in found.items() if not inspect.ismodule(one) and not (isinstance(one, type) and issubclass(one, Exception))}  # fmt: skip


def test_every_public_callable_has_a_door():
    """Of itself, or of what makes it; pydantic's have their own."""
    for name, one in public().items():
        made = [vars(one).get(name) for name in ("__init__", "__new__")] if isinstance(one, type) else [one]
        own = [part for part in made if part is not None and not hasattr(one, "model_fields")]
        assert not own or any(hasattr(getattr(part, "__func__", part), "has_door") for part in own), (
            f"{name} has no door"
        )


def test_every_annotation_at_a_door_is_known():
    """A name that only type checkers know would be no check."""
    for name, one in public().items():
        if hasattr(one, "model_fields") or name == "attnlimit.bounds.all_bounds":
            continue
        parameters = inspect.signature(one).parameters.values()
        homes = reversed(one.__mro__) if isinstance(one, type) else [one]
        names = {name: value for home in homes for name, value in vars(sys.modules[home.__module__]).items()}
        checks = checks_of(parameters, names)
        several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        typed = {
            p.name for p in parameters if p.annotation not in ("Any", "object") and p.kind not in several
        }
        assert typed <= {*checks}, name


def test_every_public_callable_is_called():
    calls = (TABLE.parent / "calls.py").read_text()
    abstract = {"attnlimit.Measure", "attnlimit.icl.InContextTask", "attnlimit.Map", "attnlimit.Mean"}
    for name in {*public()} - abstract:
        assert re.search(rf"\b{name.removeprefix('attnlimit').removeprefix('.').split('.')[-1]}\b", calls), (
            name
        )


def test_the_table_of_unfit_calls():
    """In a process of its own: beartype, which checks types in this one, must not help."""
    words = f"{TABLE} --rooms core,bounds,icl,studies --examples 3 --share 0.12 --seconds 12".split()
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " 0 raw, 0 nan, 0 hang, 0 words" in done.stdout


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: al.exact_error(HEAD, torch.ones(4, 2).double(), 4, X), r"measure must be a Measure, got a tensor of shape \(4, 2\), torch.float64. Laws are .* tokens of your own are Empirical"),
        (lambda: al.horizon([[1.0]], LAW), r"head must be a Head, got \[\[1.0\]\]. Head\(A, V\) is one"),
        (lambda: al.design_errors(HEAD, TOKENS, 4, X, kept=[0, 5]), r"kept must be a Kept, got \[0, 5\]. Make one with Kept"),
        (lambda: al.Mixture([1.0], ["a"]), r"parts\[0\] must be a Measure, got 'a'"),
        (lambda: al.Kept(own="yes"), "own must be True or False, got 'yes'"),
        (lambda: al.Kept(sinks=1.5), "sinks must be a whole number of at least 0, got 1.5"),
        (lambda: al.Sampling(draw=al.Different), "draw must be .*Draw, got the class Different, not one of it"),
        (lambda: al.exact_error(HEAD, LAW, 4, torch.ones(0, 2).double()), "queries are empty: give at least one"),
        (lambda: al.exact_error(HEAD, TOKENS, 4, X, sampling=OWN, positions=[40]), r"positions must lie in 0 … 39, got 40"),
        (lambda: al.exact_error(HEAD, TOKENS, 4, X, sampling=OWN, positions=[-1]), r"positions must lie in 0 … 39, got -1"),
        (lambda: al.exact_error(HEAD, TOKENS, 4, X, sampling=OWN, positions=[0.5]), r"positions\[0\] must be a whole number, got 0.5"),
        (lambda: al.exact_error(HEAD, TOKENS, 4, X, sampling=OWN, positions=[1, 2]), "positions must be 1 whole numbers, one a query"),
        (lambda: al.measure_convergence(HEAD, LAW, 4, queries=al.Given(X, [0])), "positions are places among the keys of a population"),
        (lambda: al.FromSampler(lambda u: [1.0], dim=1), r"transform must give a tensor of shape \(4096, 1\), it gave \[1.0\]"),
        (lambda: al.Sphere(2, dtype="int"), "dtype must be a floating dtype of torch, got 'int'"),
        (lambda: al.Sphere(2, dtype="doubly"), "dtype must be a floating dtype of torch, got 'doubly'. Such are torch.float64"),
        (lambda: al.Sphere(2, device="cuda:99"), "device must be a device of this machine, such as cpu or cuda, got 'cuda:99'"),
        (lambda: al.Sphere(2, radius=10**400), "radius must be a finite number above 0, got inf"),
        (lambda: LAW.sample(3, generator="a"), r"generator must be a torch.Generator or a seed \(int\), got 'a'"),
        (lambda: LAW.sample(10**15, generator=0), "sample needs more memory than there is .* use fewer numbers at once"),
        (lambda: al.Different().places(9, [3, 2], torch.Generator()), r"n must increase, got \[3, 2\]"),
        (lambda: al.stream(HEAD, np.zeros(3), X), r"tokens must be an \(n, d\) matrix, got shape \(3,\)"),
        (lambda: al.analyze(None), r"model must be a path, a Loaded or a word or text, got None. load\(name\) gives one"),
        (lambda: al.Budgets.uniform([4], 4).check_fits("abc"), "model must be a model .* got 'abc'"),
        (lambda: icl.finite_risk(icl.MixtureDenoising(2), (torch.eye(2).double(),) * 2, 4, prompts=1), "prompts must be a whole number of at least 2, got 1: their spread tells the error"),
        (lambda: icl.Weights(torch.eye(2), torch.eye(3)), "V has 3 entries along 'D', but U has 2: they must agree"),
        (lambda: al.ExactError((), *[torch.ones(2, 2)] * 2, torch.ones(2), ""), "mean_square has 2 entries along 'n', but n has 0"),
        (lambda: icl.transfer(icl.LinearRegression(2), 64).at(3), "The curve has no length 3: it has"),
        (lambda: studies.estimate(1, 1), "study must be a Study, got 1"),
        (lambda: studies.Study(name="s", kind="exact", grid=3), "Study: grid: input should be a valid dictionary, got 3."),
    ],
)  # fmt: skip
def test_refusals_say_what_got_why_and_what_to_do(call, message):
    with pytest.raises(al.AttnlimitError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: al.two_query_covariance(HEAD, LAW, 4, X[0], [1e300, 1e300]), r"two_query_covariance leaves the range of floating point \(.*\): some argument is too large"),
        (lambda: al.fit_log([4, 16, 64], [5e299, 2.6e299, 1.2e299], standard_errors=[0.001] * 3), r"fit_log leaves the range of floating point \(nan\)"),
        (lambda: icl.LinearRegression(2, noise=1e-300).floor(1), r"floor leaves the range of floating point \(linalg.cholesky: .*\): some argument is too large or too small"),
        (lambda: icl.LinearRegression(2).exact_risk(torch.eye(3).double(), 1e300 * torch.eye(3).double()), "The risk leaves the range of floating point: U or V"),
        (lambda: icl.LinearRegression(2).exact_risk(1e300 * torch.eye(3).double(), torch.eye(3).double()), "The risk leaves the range of floating point: U or V"),
        (lambda: icl.LinearRegression(2).risk(torch.ones(2), torch.ones(3)), r"prediction and target must have shapes that fit each other, got \(2,\) and \(3,\)"),
        (lambda: al.measure_convergence(HEAD, LAW, [10, 20], statistic=al.Moment(400)), "The moment 400 error leaves the range of floating point"),
        (lambda: icl.LinearRegression(2).draw(2, 4, 0, dtype=torch.int64), "dtype must be a floating dtype of torch, got torch.int64"),
        (lambda: al.Given(X, float("nan")), "positions must be several, each a whole number, a tensor or None, got nan"),
        (lambda: al.Given(X, [torch.zeros(2)]), r"positions\[0\] must be a whole number, got a tensor of shape \(2,\)"),
        (lambda: al.exact_error(HEAD, LAW, [10**30], X), r"n\[0\] must be a whole number of 64 bits, from −2⁶³ to 2⁶³ − 1, got 10{30}"),
        (lambda: al.fit_log([4, 16], [1.0, 0.5], resamples=10**12), "resamples must be a whole number of at most 999,999"),
        (lambda: bounds.berry_esseen(HEAD, al.Sphere(2), X[0], [100], direction=X), r"direction must be one vector, or one for each query, \(2,\), got \(1, 2\)"),
        (lambda: bounds.berry_esseen(HEAD, al.Sphere(2), torch.ones(0, 2).double(), [100]), "queries are empty: give at least one"),
        (lambda: icl.Concentration((4, 8), {}, None, "", ""), "Concentration needs errors at each of its lengths"),
        (lambda: al.Empirical(np.ma.masked_array([[1.0, 999.0]], mask=[[False, True]])), "tokens has 1 masked entries: fill or drop them first"),
        (lambda: al.Empirical(torch.eye(2).to_sparse()), "tokens must be a dense tensor, got a sparse_coo tensor, torch.float32: make it one, e.g. x.to_dense"),
        (lambda: al.Kept(sinks=torch.tensor(1).to_sparse()), "sinks must be a whole number of at least 0, got a sparse_coo tensor"),
        (lambda: al.exact_error(HEAD, LAW, Lengthless([4]), X), "n must be .*, got Lengthless, which cannot be read: no length"),
        (lambda: al.FromSampler(lambda u: u @ torch.eye(3), dim=2), r"transform fails on uniform numbers of shape \(4096, 2\), torch.float64: RuntimeError"),
        (lambda: HEAD.query(torch.ones(3).double()), "x has 3 entries along 'dq', but A has 2: they must agree"),
        (lambda: HEAD.query(torch.ones(2)), "query was given numbers of several dtypes .*: convert them to one"),
        (lambda: al.Head(np.eye(2), np.eye(2)).read(torch.ones(3).double()), "mean has 3 entries along 'd', but V has 2"),
        (lambda: LAW.apply_cov(torch.ones(3).double()), "a has 3 entries along 'd', but the law has 2"),
        (lambda: TOKENS.select(torch.tensor([40])), "index must lie in 0 … 39, got 40 … 40"),
        (lambda: al.error_covariance(HEAD, TOKENS, 4, X).along(X), r"direction must be one vector with 2 entries, one for each output, got shape \(1, 2\)"),
        (lambda: al.mean_output_error(HEAD, LAW, 4, LAW.sample(65, generator=0).tokens), "takes at most 64 different queries, got 65: all pairs"),
        (lambda: al.heavy_tails(al.Head([[1.0]]), al.Laplace(1), [7e299], [10]), "Laplace.tail needs more memory than there is"),
        (lambda: al.exact_error(HEAD, LAW, b"ab", X), "n must be .*, got b'ab'"),
        (lambda: al.stream(HEAD, torch.eye(2).to_sparse(), X), "tokens must be a dense tensor, got a sparse_coo tensor"),
        (lambda: al.stream(HEAD, [torch.eye(2).to_sparse()], X), "A block must be a dense tensor, got a sparse_coo tensor"),
        (lambda: al.error_law(HEAD, TOKENS, 5, X[0], X[0], positions=torch.eye(2).to_sparse()), "positions must be a dense tensor, got a sparse_coo tensor"),
        (lambda: al.exponents(torch.eye(2).to_sparse()), "The horizon must be a number of at least 0, got a sparse_coo tensor"),
        (lambda: al.error_law(HEAD, LAW, 5, [1e308, 1e308], X[0]), "The scores of a query spread by inf standard deviations"),
        (lambda: al.two_query_covariance(HEAD, TOKENS, 4, [1e308, 1e308], X[0]), "The scores of a query spread over inf, and the grids of two queries are made up to 4,000"),
        (lambda: al.two_query_covariance(HEAD.scaled(1e5), TOKENS, 4, X[0], X[0]), "The scores of a query spread over .*, and the grids of two queries"),
        (lambda: bounds.mean_square(HEAD, al.Empirical([[1e200, 0.0], [-1e200, 0.0]]), X, 9), r"mean_square leaves the range of floating point \(.*\): some argument"),
        (lambda: al.ErrorCurve((4, 8), torch.ones(2).double(), scale=float("nan")), "scale of a curve must be finite and at least 0, got nan"),
        (lambda: al.ErrorCurve((4, 8), torch.ones(2).double(), rows=torch.full((3, 2), torch.nan)), "rows of a curve must be finite and at least 0"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_beyond_the_range_are_refused(call, message):
    with pytest.raises(al.AttnlimitError, match=message):
        call()


def test_curves_of_heads_that_are_trained_are_those_of_others():
    A = torch.eye(2).double()
    want, got = (
        al.curve(al.Head(one), al.Sphere(2), [4, 8]).error for one in (A, A.clone().requires_grad_())
    )
    assert torch.equal(got, want)


def test_sizes_of_zero_have_a_uniform_bound():
    """Tokens or values that are all alike have no error, which any bound is above."""
    for head, law in ((HEAD, al.Gaussian(cov=0.0, dim=2)), (al.Head(HEAD.A, [[0.0, 0.0]]), LAW)):
        bound = bounds.uniform(head, law, 1.0, [100], 0.1).value
        assert bool((bound >= 0).all() and (bound < 1e-9).all())


def test_nan_that_means_something_is_given_back():
    """Too few keys for the stable law, whose size is not known there."""
    found = al.heavy_tails(al.Head([[1.0]]), al.Laplace(1), [0.7], [2])
    assert found.stable is not None
    assert bool(found.stable.isnan().all())


def test_sampled_attention_needs_a_model():
    with (
        pytest.raises(al.InputError, match=r"budgets must be a Budgets, got 'path'"),
        al.sampled_attention(torch.nn.Identity(), "path"),
    ):
        pass


def test_forms_of_one_thing_are_the_same():
    want = al.exact_error(HEAD, TOKENS, [4, 8], X, sampling=OWN, positions=[3])
    numbers = ((4, 8), np.array([4, 8]), torch.tensor([4, 8]), [4.0, 8.0], range(4, 9, 4))
    rows = (
        np.array(X),
        torch.tensor(X, dtype=torch.float64),
        tuple(map(tuple, X)),
        X,
        np.array(X)[::-1][::-1],
    )
    places = ((3,), np.array([3]), torch.tensor([3]), [np.int32(3)], [3.0])
    for n, x, where in zip(numbers, rows, places, strict=True):
        got = al.exact_error(HEAD, TOKENS, n, x, sampling=OWN, positions=where)
        assert torch.equal(got.mean_square, want.mean_square)
    assert al.Sphere(np.int64(3), radius=np.float32(0.5), dtype="float32").dtype == torch.float32
    assert al.Chances([1, 2.0]).sizes == (1.0, 2.0)
    assert al.Kept(own=np.bool_(True), sinks=4.0) == al.Kept(own=True, sinks=4)


def test_numbers_of_tokens_come_back_as_they_were_asked_for():
    asked = [100, 10, 10]
    got = al.measure_convergence(HEAD, LAW, asked, replicates=5, queries=8)
    once = al.measure_convergence(HEAD, LAW, [10, 100], replicates=5, queries=8)
    assert got.n == al.exact_error(HEAD, LAW, asked, X).n == tuple(asked)
    assert torch.equal(got.squares, once.squares[:, [1, 0, 0]])
    assert got.curve().n == (10, 100)
    assert torch.equal(got.curve("rms").error, once.curve("rms").error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_and_says_so(dtype):
    """A thousandth of precision in the scores is ten times the error of 10⁹ tokens."""
    A, x = torch.eye(3).double(), torch.tensor([[1.0, 0.5, 0.25]]).double()
    law = al.Sphere(3, dtype=dtype)
    got = al.exact_error(al.Head(A.to(dtype)), law, 10**9, x.to(dtype))
    want = al.exact_error(al.Head(A), al.Sphere(3), 10**9, x)
    assert law.dtype == torch.float32
    assert got.method == "exact (Laplace quadrature, scores in float32)"
    torch.testing.assert_close(got.rms, want.rms, rtol=1e-5, atol=0)
    assert al.Head(A.to(dtype))(law)(x.to(dtype)).dtype == torch.float32


def test_arrays_of_another_byte_order_are_read():
    assert torch.equal(al.Empirical(np.eye(2, dtype=">f8")).tokens, torch.eye(2).double())


def test_settings_of_torch_are_not_felt():
    """Neither half precision by autocast nor a default device without numbers."""
    head, tokens, x = al.Head(torch.eye(2)), al.Empirical(torch.eye(2)), torch.tensor([1.0, 0.3])
    want, error = head(tokens)(x), al.exact_error(HEAD, LAW, [4, 8], X).rms
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(tokens)(x), want)
    with torch.device("meta"):
        assert torch.equal(al.exact_error(HEAD, LAW, [4, 8], X).rms, error)
        assert al.horizon(HEAD, LAW) == pytest.approx(0.5)
    with (
        torch.inference_mode(),
        pytest.raises(
            al.InputError, match=r"needs derivatives, which inference mode forbids .*: use torch.no_grad"
        ),
    ):
        al.measure_convergence(HEAD, LAW, [4, 8], statistic=al.Sup(1.0), replicates=3)


def test_results_may_be_infinite_where_arguments_may_not():
    """Softmax with as few keys as four is best as hardmax: κ = inf."""
    few = al.Empirical([[1.0, 0.0], [0.0, 1.0]])
    assert torch.tensor(al.best_kappa(HEAD, few, 4, X).kappa).isinf().all()
    with pytest.raises(al.InputError, match="power must be a finite number, got nan"):
        al.Schedule(1.0, power=float("nan"))


def test_a_door_leaves_names_signatures_and_pickles_alone():
    assert str(inspect.signature(al.Sphere)).startswith("(dim: 'int', radius: 'float' = 1.0")
    assert al.exact_error.__doc__.startswith("E‖Γ_n")
    assert pickle.loads(pickle.dumps(al.exact_error)) is al.exact_error
    assert pickle.loads(pickle.dumps(OWN)) == OWN
    assert pickle.loads(pickle.dumps(icl.Block(torch.eye(2).double(), 1.0))).b == 1.0
    assert issubclass(TooLarge, MemoryError)
