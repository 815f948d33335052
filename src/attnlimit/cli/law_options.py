"""What the commands about token laws share: the options that describe a law, and a head on it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

import attnlimit as al
from attnlimit.errors import InputError

MeasureName = Annotated[
    str, typer.Option("--measure", help="Token law: ball, box, gaussian, laplace, rademacher or sphere.")
]
Dim = Annotated[int, typer.Option("--dim", help="Dimension of the tokens.")]
Cov = Annotated[
    str | None, typer.Option("--cov", help="Gaussian covariance: a number, or a .npy/.safetensors matrix.")
]
Scale = Annotated[
    float | None,
    typer.Option("--scale", help="Radius of the sphere or ball, half-width, Laplace scale (default: 1)."),
]
Horizon = Annotated[
    float | None, typer.Option("--horizon", help="Horizon H of the head: A is the multiple of I that has it.")
]
MatrixA = Annotated[str | None, typer.Option("--A", help="Score matrix A as a .npy/.safetensors file.")]
MatrixV = Annotated[str | None, typer.Option("--V", help="Value matrix V as a file (default: identity).")]


def law_of(measure: MeasureName, dim: Dim, cov: Cov = None, scale: Scale = None) -> al.Measure:
    """The token law that the options describe."""
    import torch

    from attnlimit.measures.spec import SIZE
    from attnlimit.rates.horizon import MOST_DIM

    if dim > MOST_DIM:
        raise InputError(
            f"--dim must be at most {MOST_DIM:,}, got {dim}: the eigenvalues of matrices of that size are needed."
        )
    laws = sized_laws()
    if measure not in laws:
        raise InputError(f"--measure must be one of {', '.join(laws)}; got {measure!r}.")
    law = laws[measure]
    for option, given, field in (("--cov", cov, "cov"), ("--scale", scale, SIZE)):
        takers = [
            name for name, one in laws.items() if field in (*one.spec.fields, *one.spec.fields.values())
        ]
        if given is not None and measure not in takers:
            raise InputError(f"{option} is for {', '.join(takers)} tokens, not for {measure}: leave it out.")
    size = 1.0 if scale is None else scale
    if cov is None:
        return law.sized(dim, size)
    value = torch.tensor(float(cov), dtype=torch.float64) if _is_number(cov) else _matrix(cov)
    fields = law.spec.filled(dim if _is_number(cov) else None, size)
    return law.from_spec(torch.empty(0, dtype=torch.float64), **fields | {"cov": value})


def sized_laws() -> dict[str, type[al.Measure]]:
    """The laws that a dimension and a size make."""
    return {name: law for name, law in al.measures.laws().items() if law.spec.on_command_line}


def head_of(law: al.Measure, horizon: Horizon = None, A: MatrixA = None, V: MatrixV = None) -> al.Head:
    """The head that the options describe: A from a file, or the multiple of the identity with that horizon."""
    import torch

    from attnlimit.rates.horizon import largest

    if (horizon is None) == (A is None):
        raise InputError("Give the head either by --horizon H or by --A FILE.")
    values = None if V is None else _matrix(V)
    if A is not None:
        return al.Head(_matrix(A), values)
    if horizon is None or not 0 <= horizon < math.inf:
        raise InputError(f"--horizon must be a number of at least 0, got {horizon}.")
    top = float(largest(law.covariance.double()))
    if not 1e-150 < top < 1e150:
        option = "--cov" if "cov" in law.spec.fields else "--scale"
        raise InputError(
            f"The tokens of {law!r} do not vary, or by numbers whose squares leave the range of floating point (variance {top:.3g}), "
            f"so no head has a horizon on them: give {option} nearer 1."
        )
    return al.Head(horizon / top * torch.eye(law.dim, dtype=torch.float64), values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _matrix(path: str) -> Any:
    from attnlimit.files.arrays import open_rows

    file = open_rows(path)
    return file.rows(0, file.shape[0]).double()


def of_law(measure: str = "gaussian", dim: int = 1) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command that takes a `law`, or a `law` and a `head`: in their place it has the options of `law_of` and
    `head_of`, with these defaults."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own, law_options = _options(command), _options(law_of)
        for name, default in {"measure": measure, "dim": dim}.items():
            law_options[name] = law_options[name].replace(default=default)
        head_options = _options(head_of) if "head" in signature(command).parameters else {}

        @wraps(command)
        def run(**given: Any) -> None:
            law = law_of(**{name: given.pop(name) for name in law_options})
            if head_options:
                given["head"] = head_of(law, **{name: given.pop(name) for name in head_options})
            command(law=law, **given)

        options = {**law_options, **head_options, **own}
        run.__signature__ = Signature([*options.values()])  # type: ignore[attr-defined]
        run.__annotations__ = {name: one.annotation for name, one in options.items()}
        return run

    return with_options


def _options(function: Callable[..., object]) -> dict[str, Parameter]:
    """Its parameters but the law and the head, whose types are not looked up: that would import torch."""
    shared = vars(sys.modules[function.__module__])
    return {
        name: one.replace(annotation=eval(one.annotation, shared))
        for name, one in signature(function).parameters.items()
        if name not in ("law", "head")
    }
