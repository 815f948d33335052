"""attnlimit curve: the error of n-token attention, exact or by Monte Carlo."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, Plot, Sizes, out, print_json, progress, table, whole_numbers
from attnlimit.cli.law_options import of_law
from attnlimit.errors import AttnlimitError, InputError, LimitDoesNotExist, NotKnown
from attnlimit.report.figures.style import save

if TYPE_CHECKING:
    from attnlimit.exact import HeavyTails
    from attnlimit.rates import PowerFit

MOST_ORDER = 1_000


@of_law()
def curve(
    law: al.Measure,
    head: al.Head,
    n: Sizes = "1e1:1e9:9",
    method: Annotated[str, typer.Option(help="exact, or monte-carlo.")] = "exact",
    statistic: Annotated[
        str | None, typer.Option(help="Monte Carlo only: map (default), mean, covariance, moment or sup.")
    ] = None,
    order: Annotated[int | None, typer.Option(help="Order of the moment statistic.")] = None,
    radius: Annotated[float | None, typer.Option(help="Radius of the ball of the sup statistic.")] = None,
    replicates: Annotated[int | None, typer.Option(help="Monte Carlo replicates (default: 32).")] = None,
    queries: Annotated[int | None, typer.Option(help="Monte Carlo queries of each replicate.")] = None,
    self_attention: Annotated[
        bool, typer.Option("--self-attention", help="Queries are the tokens themselves (Monte Carlo).")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the Monte Carlo run (default: 0).")] = None,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Error of n-token attention against its infinite-token limit, for each n.

    Exact by default: (E_x E‖Γₙ − Γ‖²)^½ (rms) and E_x (E‖Γₙ − Γ‖²)^½ (mean_rms) over random queries, no Monte Carlo. Where some
    queries have no limit (Laplace tokens), a typical query of each kind: stable errors, and weights that do not vanish.
    """
    sizes = whole_numbers(n)
    drawn = {"statistic": statistic, "order": order, "radius": radius, "replicates": replicates}
    drawn |= {"queries": queries, "self_attention": self_attention or None, "seed": seed}
    given = {name: value for name, value in drawn.items() if value is not None}
    if method == "monte-carlo":
        _monte_carlo(head, law, sizes, given, as_json, plot)
    elif method != "exact":
        raise InputError(f"--method must be exact or monte-carlo, got {method!r}.")
    elif given:
        option = next(iter(given)).replace("_", "-")
        raise InputError(
            f"--{option} is for Monte Carlo, and exact errors do not know it: leave it out, or add --method monte-carlo."
        )
    else:
        _exact(head, law, sizes, as_json, plot)


def _asymptotic(head: al.Head, law: al.Measure) -> al.Rates | None:
    try:
        return al.rates(head, law)
    except AttnlimitError:
        return None  # no exponents are known for this law; the curve stands by itself


def _exact(head: al.Head, law: al.Measure, sizes: list[int], as_json: bool, plot: Path | None) -> None:
    from attnlimit.exact.curve import query_average

    try:
        with progress("exact errors"):  # a horizon of 30 takes long
            rms, mean_rms = query_average(head, law, max(sizes))(sizes)
            asymptotic = _asymptotic(head, law)
    except (LimitDoesNotExist, NotKnown):
        if not _heavy(head, law, sizes, as_json, plot):
            raise
        return
    where = None
    if plot is not None:
        from attnlimit.report.figures.curves import curve_figure

        title = f"{law!r}, horizon {al.horizon(head, law):.3g}"
        where = save(curve_figure(rms, mean_rms, rates=asymptotic, title=title), plot)
    if as_json:
        both = {one.statistic: one.to_dict() for one in (rms, mean_rms)}
        slopes = {"local_slope": rms.local_slopes().tolist()}
        print_json(
            {"n": sizes, **both, **slopes, "rates": None if asymptotic is None else asymptotic.to_dict()}
        )
        return
    rows = zip(
        (f"{size:,}" for size in sizes),
        rms.error.tolist(),
        mean_rms.error.tolist(),
        rms.local_slopes().tolist(),
        rms.relative.tolist() if rms.scale else ["–"] * len(sizes),
        strict=True,
    )
    out.print(table(f"{law!r}", ["tokens n", "rms", "mean rms", "local exponent", "rms / ‖Γ‖"], list(rows)))
    methods = dict.fromkeys((rms.method, mean_rms.method))
    out.print(f"Method: {'; mean rms '.join(methods)}.")
    _say_last(asymptotic, where)


def _heavy(head: al.Head, law: al.Measure, sizes: list[int], as_json: bool, plot: Path | None) -> bool:
    """Of random queries, shares by the tail of their weights, and what happens at the middle one of each kind; False where the law
    does not know its tails."""
    import torch

    from attnlimit.exact.curve import QUERIES, QUERY_SEED
    from attnlimit.report.figures.heavy_tails import heavy_tails_figure

    x = law.sample(QUERIES, generator=QUERY_SEED).tokens
    tails = [law.tail(a) for a in head.score_vector(head.checked(x))]
    index = torch.tensor([math.nan if tail is None else tail.index for tail in tails], dtype=torch.float64)
    if bool(index.isnan().any()):
        return False
    kinds = {"central limit": index > 2, "stable error": (index > 1) & (index <= 2), "no limit": index <= 1}
    shares = {name: float(those.double().mean()) for name, those in kinds.items()}
    found: list[HeavyTails] = []
    with progress("queries") as step:
        for those in (those for those in kinds.values() if bool(those.any())):
            middle = those.nonzero()[:, 0][index[those].argsort()[int(those.sum()) // 2]]
            found.append(al.heavy_tails(head, law, x[middle], sizes))
            step(len(found), len(kinds))
    where = None if plot is None else save(heavy_tails_figure(*found), plot)
    if as_json:
        print_json({"n": sizes, "shares": shares, "queries": [one.to_dict() for one in found]})
        return True
    told = ", ".join(f"{share:.0%} {name}" for name, share in shares.items())
    out.print(
        f"{law!r}: weights e^score have heavy tails, P(w > t) ~ t^−α. Of {QUERIES} random queries: {told}."
    )
    for one in found:
        out.print(f"\n{one.words}")
        columns, rows = _heavy_rows(one)
        if len(columns) > 1:
            out.print(table("", columns, rows))
    out.print(f"One query of each kind, that of middle α. Method: {found[0].method}.")
    if found[0].sum_squares is None:
        out.print("Exact curves are known for queries along an axis, as in one dimension.")
    _say_last(None, where)
    return True


def _heavy_rows(one: HeavyTails) -> tuple[list[str], list[tuple[Any, ...]]]:
    curves = {"E Σp²": one.sum_squares, "largest p": one.largest}
    if one.limit_exists:
        curves |= {"typical error": one.typical, "rms": one.rms, "stable law": one.stable}
    else:
        curves |= {"mean output": one.output, "as n → ∞": one.output_far}
    shown: dict[str, list[Any]] = {
        name: values.tolist() for name, values in curves.items() if values is not None
    }
    if one.interval is not None:
        shown["9 of 10 errors"] = [f"{low:.2g} to {high:.2g}" for low, high in one.interval.T.tolist()]
    rows = zip((f"{size:,}" for size in one.n), *shown.values(), strict=True)
    return ["tokens n", *shown], list(rows)


def _monte_carlo(
    head: al.Head, law: al.Measure, sizes: list[int], given: dict[str, Any], as_json: bool, plot: Path | None
) -> None:
    order = given.get("order", 1)
    if order > MOST_ORDER:
        raise InputError(
            f"--order must be at most {MOST_ORDER:,}, got {order}: it is that many multiplications."
        )
    asked = {"name": given.pop("statistic", "map")}
    asked |= {name: given.pop(name) for name in ("order", "radius") if name in given}
    if given.pop("self_attention", False):
        given["queries"] = al.Own(given["queries"]) if "queries" in given else al.Own()
    with progress("replicates") as step:
        result = al.measure_convergence(
            head,
            law,
            sizes,
            statistic=al.sampling.convergence.as_statistic(asked),
            generator=given.pop("seed", 0),
            progress=step,
            **given,
        )
        asymptotic = _asymptotic(head, law)
    _say_drawn(result, asymptotic, as_json, plot)


def _say_drawn(result: al.Convergence, asymptotic: al.Rates | None, as_json: bool, plot: Path | None) -> None:
    where = None
    if plot is not None:
        from attnlimit.report.figures.curves import convergence_figure

        where = save(convergence_figure(result, asymptotic), plot)
    fit = _fit(result)
    if as_json:
        exponents = None if asymptotic is None else asymptotic.to_dict()
        print_json({**result.to_dict(), "fit": None if fit is None else fit.to_dict(), "rates": exponents})
        return
    rows = [
        (f"{size:,}", value, f"± {1.96 * spread:.2g}" if math.isfinite(spread) else None)
        for size, value, spread in zip(
            result.n, result.rms.tolist(), result.rms_standard_error.tolist(), strict=True
        )
    ]
    out.print(table(f"{result.statistic} error", ["tokens n", "rms", "95 %"], rows))
    out.print(f"Method: {result.method}. Reference: {result.reference}.")
    if fit is not None:
        out.print(f"Fitted over these n: {fit!r}")
    _say_last(asymptotic, where)


def _say_last(asymptotic: al.Rates | None, figure: Path | None) -> None:
    if asymptotic is not None:
        out.print(f"As n → ∞: {asymptotic!r}")
    if figure is not None:
        out.print(f"Figure: {figure}")


def _fit(result: al.Convergence) -> PowerFit | None:
    try:
        return result.fit()
    except AttnlimitError:
        return None  # too few sizes or replicates for an interval
