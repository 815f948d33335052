"""Fits of error curves: known exponents are covered, wrong ones rejected, and the undecidable refused."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from attnlimit.errors import InputError, RateNotResolved
from attnlimit.rates import bootstrap, choose, fit_log, fit_power, local_slopes

N = [100, 200, 400, 800, 1600, 3200]


def rows(
    rng: np.random.Generator,
    truth: np.ndarray,
    replicates: int,
    spread: float = 0.4,
    correlation: float = 0.8,
) -> np.ndarray:
    """Log-normal errors around `truth`, correlated between neighbouring sizes as nested samples are."""
    k = len(truth)
    cov = correlation ** np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    noise = rng.standard_normal((replicates, k)) @ np.linalg.cholesky(cov).T
    return truth * np.exp(spread * noise)


def power(exponent: float, n: list[int] = N) -> np.ndarray:
    return np.array(n, dtype=float) ** -exponent


@pytest.mark.parametrize("statistic", ["mean", "rms"])
def test_interval_covers_and_rejects(statistic: str) -> None:
    """300 experiments of 40 replicates: the 95 % interval covers the truth as often as binomial chance allows
    (false alarm 1e-3 at exactly 95 %), and an exponent off by 0.2 is rejected in at least 9 of 10."""
    rng = np.random.default_rng(0)
    fits = [
        fit_power(N, rows(rng, power(0.3), 40), statistic=statistic, resamples=1000, generator=seed)
        for seed in range(300)
    ]
    covered = sum(fit.interval[0] <= 0.3 <= fit.interval[1] for fit in fits)
    low, high = stats.binom.interval(0.999, 300, 0.95)
    assert low <= covered <= high
    assert sum(fit.interval[0] <= 0.5 <= fit.interval[1] for fit in fits) <= 30
    errors = np.array([fit.exponent for fit in fits]) - 0.3
    assert (
        abs(errors.mean()) < 4 * errors.std() / math.sqrt(300) + 0.01
    )  # weights make a bias of order 1/replicates


def test_ignoring_correlation_would_not_cover() -> None:
    """Negative control: standard errors that take nested sizes as independent cover far less than 95 %."""
    rng = np.random.default_rng(1)
    n = [100 * 2**i for i in range(12)]
    covered = 0
    for _ in range(300):
        data = rows(rng, power(0.3, n), 40, correlation=0.9)
        wrong = data.std(0, ddof=1) / math.sqrt(40)
        low, high = fit_power(n, data.mean(0), standard_errors=wrong).interval
        covered += low <= 0.3 <= high
    assert covered < stats.binom.ppf(1e-6, 300, 0.95)


def test_independent_standard_errors_cover() -> None:
    """The normal interval, when sizes are independent and their errors known (false alarm 1e-3)."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(400):
        curve = power(0.4) * (1 + 0.02 * rng.standard_normal(6))
        low, high = fit_power(N, curve, standard_errors=0.02 * power(0.4)).interval
        covered += low <= 0.4 <= high
    low, high = stats.binom.interval(0.999, 400, 0.95)
    assert low <= covered <= high


def test_curve_alone_is_ordinary_regression() -> None:
    rng = np.random.default_rng(3)
    curve = power(0.4) * np.exp(0.05 * rng.standard_normal(6))
    fit, known = fit_power(N, curve, level=0.9), stats.linregress(np.log(N), np.log(curve))
    assert fit.exponent == pytest.approx(-known.slope, rel=1e-12)
    assert fit.intercept == pytest.approx(known.intercept, rel=1e-12)
    half = stats.t.ppf(0.95, 4) * known.stderr
    assert fit.interval == pytest.approx((-known.slope - half, -known.slope + half), rel=1e-10)
    assert "4 degrees of freedom" in fit.method


def test_weights_and_statistics_of_rows() -> None:
    """The rows' fit against numpy's weighted fit of the log of their mean, and of their root mean square."""
    data = rows(np.random.default_rng(4), power(0.25) * 1e-200, 30)
    for statistic, p in (("mean", 1), ("rms", 2)):
        powers = (data * 1e200) ** p
        mean = powers.mean(0)
        deviation = powers.std(0, ddof=1) / math.sqrt(30) / mean / p
        slope, intercept = np.polyfit(np.log(N), np.log(mean) / p, 1, w=1 / deviation)
        fit = fit_power(N, data, statistic=statistic)
        assert fit.exponent == pytest.approx(-slope, rel=1e-9)
        assert fit.intercept == pytest.approx(intercept - 200 * math.log(10), rel=1e-9)


def test_result_and_determinism() -> None:
    data = torch.as_tensor(rows(np.random.default_rng(5), power(0.3), 20))
    fit = fit_power(N, data, generator=7)
    assert fit.interval == fit_power(N, data, generator=torch.Generator().manual_seed(7)).interval
    assert fit.interval != fit_power(N, data, generator=8).interval
    assert fit.interval[0] < fit.exponent < fit.interval[1]
    assert (fit.n, fit.replicates, fit.level) == (tuple(N), 20, 0.95)
    assert fit.method == "weighted least squares in log-log; bootstrap-t, 2000 resamples of 20 whole rows"
    assert fit.predict(N).log().numpy() == pytest.approx(np.log(data.numpy().mean(0)), abs=0.5)
    assert repr(fit).startswith("PowerFit(exponent 0.3")
    assert fit.to_dict()["scale"] == pytest.approx(math.exp(fit.intercept))
    plain = fit_power(N, 3 * power(0.5))
    assert plain.scale == pytest.approx(3)
    assert plain.residual_rms < 1e-14


def test_few_rows_are_wider_and_blocks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows give a wide but finite interval; resampling in small blocks is as good as at once."""
    data = rows(np.random.default_rng(6), power(0.3), 100)
    few, many = fit_power(N, data[:5]), fit_power(N, data)
    assert all(math.isfinite(end) for end in few.interval)
    assert few.interval[1] - few.interval[0] > many.interval[1] - many.interval[0]
    monkeypatch.setattr(bootstrap, "COUNTS_AT_ONCE", 2_000)
    assert fit_power(N, data).interval == pytest.approx(many.interval, abs=0.01)


def test_log_fit() -> None:
    truth = 2.5 / np.log(N)
    exact = fit_log(N, truth)
    assert exact.scale == pytest.approx(2.5, rel=1e-12)
    assert exact.predict(N).numpy() == pytest.approx(truth, rel=1e-12)
    rng = np.random.default_rng(7)
    factor = math.exp(0.4**2 / 2)  # mean of the log-normal noise
    covered = 0
    for seed in range(100):
        low, high = fit_log(N, rows(rng, truth / factor, 40), resamples=1000, generator=seed).interval
        covered += low <= 2.5 <= high
    low, high = stats.binom.interval(0.999, 100, 0.95)
    assert low <= covered <= high
    assert repr(exact).startswith("LogFit(2.5/log n")


WIDE = [10**i for i in range(2, 8)]


@pytest.mark.parametrize(("truth", "best"), [(power(0.3, WIDE), "power"), (1 / np.log(WIDE), "log")])
def test_choice_finds_the_right_law(truth: np.ndarray, best: str) -> None:
    """Rows, standard errors, a noisy curve and an exact one all find the law that made them."""
    rng = np.random.default_rng(8)
    found = [choose(WIDE, rows(rng, truth, 100)), choose(WIDE, truth)]
    noisy = truth * (1 + 0.01 * rng.standard_normal(6))
    found += [choose(WIDE, noisy, standard_errors=0.01 * truth), choose(WIDE, noisy)]
    for choice in found:
        assert choice.best == best
        assert choice.fit is getattr(choice, best)
        assert (choice.delta_aic > 0) == (best == "power")
    assert found[0].support is not None
    assert found[0].support > 0.99
    assert found[2].misfit is not None
    assert found[2].misfit < stats.chi2.ppf(0.9999, 4) / 4
    assert found[0].to_dict()["best"] == best
    assert repr(found[0]).startswith(f"Choice({best}, ΔAIC")
    assert found[3].method == "AICc, Gaussian in log error, one unknown variance"


def test_aic_by_hand() -> None:
    """ΔAIC with known variances is Δχ² minus twice the extra parameter, from numpy's fits."""
    errors, sigma = 1 / np.log(N) * np.array([1.01, 0.97, 1.0, 1.02, 0.99, 1.01]), 0.01
    y = np.log(errors)
    line = np.polyval(np.polyfit(np.log(N), y, 1), np.log(N))
    z = y + np.log(np.log(N))
    delta = (((z - z.mean()) ** 2).sum() - ((y - line) ** 2).sum()) / sigma**2 - 2
    found = choose(N, errors, standard_errors=sigma * errors)
    assert found.best == "log"
    assert found.delta_aic == pytest.approx(delta, rel=1e-9)
    assert found.misfit == pytest.approx(((z - z.mean()) ** 2).sum() / sigma**2 / 5, rel=1e-9)


def test_undecidable_data_are_refused() -> None:
    """n over one octave and a half: 1/log n looks like a power law with a little noise."""
    n = [1000, 1400, 2000, 2800]
    truth = 1 / np.log(n)
    data = rows(np.random.default_rng(9), truth, 20)
    with pytest.raises(RateNotResolved, match="cannot be told apart: their AIC differ by") as refusal:
        choose(n, data)
    fit = fit_power(n, data)
    assert refusal.value.estimate == fit.exponent
    assert refusal.value.interval == fit.interval
    assert [type(one).__name__ for one in refusal.value.fits] == ["PowerFit", "LogFit"]
    again = pickle.loads(pickle.dumps(refusal.value))
    assert (again.estimate, again.interval, str(again)) == (fit.exponent, fit.interval, str(refusal.value))


def test_winner_must_survive_resampling() -> None:
    """A power law that resembles 1/log n on these sizes: plain AIC with |ΔAIC| ≥ 2 names the wrong law in about a
    quarter of such experiments; resampling leaves at most 5 % (false alarm 1e-3 at exactly 5 %)."""
    rng = np.random.default_rng(10)
    wrong, refusals = 0, []
    for seed in range(100):
        try:
            data = rows(rng, power(0.16), 40, spread=0.2, correlation=0.0)
            wrong += choose(N, data, resamples=1000, generator=seed).best == "log"
        except RateNotResolved as refusal:
            refusals.append(str(refusal))
    assert wrong <= stats.binom.ppf(0.999, 100, 0.05)
    assert sum("% of the resamples only, less than 95 %" in one for one in refusals) > 10


def test_wide_intervals_are_refused() -> None:
    data = rows(np.random.default_rng(11), power(0.3), 20)
    assert fit_power(N, data, max_width=1.0).exponent == fit_power(N, data).exponent
    with pytest.raises(RateNotResolved, match=r"wide, and at most 0\.001 was asked for") as refusal:
        fit_power(N, data, max_width=0.001)
    assert refusal.value.interval == fit_power(N, data).interval
    data = rows(np.random.default_rng(12), power(0.3, WIDE), 50)
    with pytest.raises(RateNotResolved, match="exponent is not resolved"):
        choose(WIDE, data, max_width=0.001)
    assert choose(WIDE, data, max_width=1.0).best == "power"


def test_local_slopes() -> None:
    """Exact for a parabola in log-log on uneven sizes, inside; one-sided at the ends; any leading shape."""
    n = [10, 20, 100, 1000, 5000]
    x = np.log(n)
    parabola = np.exp(-0.3 * x - 0.02 * x**2)
    found = local_slopes(n, np.stack([parabola, power(0.7, n)])[None])
    assert found.shape == (1, 2, 5)
    assert found[0, 0, 1:-1].numpy() == pytest.approx(0.3 + 0.04 * x[1:-1], rel=1e-10)
    assert found[0, 0, 0] == pytest.approx(0.3 + 0.02 * (x[0] + x[1]), rel=1e-10)
    assert found[0, 1].numpy() == pytest.approx(0.7, rel=1e-10)
    assert local_slopes([10, 1000], [1.0, 0.01]).tolist() == pytest.approx([1.0, 1.0])


GOOD = power(0.3)


@pytest.mark.parametrize(
    ("n", "errors", "options", "message"),
    [
        ([10, 20], [1.0, 0.5], {}, "At least 3 sizes n are needed, got 2"),
        ([10, 30, 20], [1.0, 0.5, 0.4], {}, "strictly increasing, got 30 before 20"),
        ([10, 10, 20], [1.0, 0.5, 0.4], {}, "strictly increasing, got 10 before 10"),
        ([10, 20.5, 30], [1.0, 0.5, 0.4], {}, "whole number of at least 1, got 20.5"),
        ([10, 20, 30], [1.0, 0.0, 0.4], {}, "errors must be positive, got 1 that are not"),
        ([10, 20, 30], [1.0, -0.5, 0.4], {}, r"the least is -0\.5"),
        ([10, 20, 30], [1.0, math.nan, 0.4], {}, "1 entries that are nan or infinite"),
        (
            [10, 20, 30],
            [1.0, 0.4],
            {},
            r"one entry for each of the 3 sizes n on the last axis, got shape \(2,\)",
        ),
        ([10, 20, 30], np.ones((2, 2, 3)), {}, r"or \(replicates, 3\), got \(2, 2, 3\)"),
        (N, np.stack([GOOD, 2 * GOOD]), {}, "from 5 rows on, got 2"),
        (N, np.stack([GOOD] * 6), {}, "All replicates are equal at n = 100"),
        (N, np.stack([GOOD] * 6), {"standard_errors": GOOD}, "given with replicate rows"),
        (N, GOOD, {"standard_errors": -GOOD}, "standard_errors must be positive"),
        (N, GOOD, {"standard_errors": GOOD[None]}, r"must have the shape of errors, \(6,\), got \(1, 6\)"),
        (N, GOOD, {"statistic": "median"}, "statistic must be 'mean' or 'rms', got 'median'"),
        (N, GOOD, {"level": 95.0}, "level must be a number between 0 and 1"),
        (N, GOOD, {"resamples": 10}, "resamples must be a whole number of at least 1000, got 10"),
    ],
)
def test_bad_input(n: object, errors: object, options: dict[str, object], message: str) -> None:
    for fit in (fit_power, fit_log, choose):
        with pytest.raises(InputError, match=message):
            fit(n, errors, **options)  # type: ignore[operator]


def test_more_bad_input() -> None:
    with pytest.raises(InputError, match="infinite at n = 1"):
        fit_log([1, 2, 3], [1.0, 0.5, 0.4])
    with pytest.raises(InputError, match="max_width must be a finite number above 0"):
        fit_power(N, GOOD, max_width=-1.0)
    with pytest.raises(InputError, match="from 5 sizes on, got 4"):
        choose(N[:4], GOOD[:4])
    with pytest.raises(InputError, match="At least 2 sizes"):
        local_slopes([10], [1.0])
    with pytest.raises(InputError, match="errors must be positive"):
        local_slopes([10, 20], [1.0, 0.0])
