"""A head: the linear maps around a softmax. Applied to a measure it is a map from queries to outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.maps import AttentionMap, HardmaxMap, LimitMap, LinearMap, TokenMap
from attnlimit.errors import InputError
from attnlimit.inputs import Array, Positive, as_float, as_points, as_positive, as_vector
from attnlimit.measures.base import Measure


@dataclass(frozen=True, eq=False)
class Factors:
    """The parts of a head: q = R x + b_q, k = Lᵀy + b_k, v = V y + b_v; L or V None is the identity.

    The leading axes of all are the heads, which `Head` checks.
    """

    right: Float[Tensor, "... r dq"]
    left: Float[Tensor, "... dk r"] | None = None
    V: Float[Tensor, "... dv d"] | None = None
    query_bias: Float[Tensor, "... r"] | None = None
    key_bias: Float[Tensor, "... r"] | None = None
    value_bias: Float[Tensor, "... dv"] | None = None


class Head:
    """Softmax attention with score yᵀA x of key y for query x, and value V y (V None: the identity):

        head(μ)(x) = ∫ e^{yᵀAx} V y dμ(y) / ∫ e^{yᵀAx} dμ(y).

    A is (d_key, d_query) and V is (d_out, d); leading axes are several heads at once, and come first in every
    output. `Head.from_projections` keeps A in factored form.

    >>> head = Head([[2.0, 0.0], [0.0, 2.0]])
    >>> from attnlimit import Gaussian
    >>> head(Gaussian(cov=0.5, dim=2))([1.0, -1.0])
    tensor([ 1., -1.], dtype=torch.float64)
    """

    made_by = "Head(A, V) is one, of a score matrix A and, unless it is the identity, a value matrix V."

    def __init__(self, A: Array, V: Array | None = None) -> None:
        right = _matrix(A, "A")
        self.factors = Factors(right, V=None if V is None else _matrix(V, "V", like=right))
        self._check_heads()

    @classmethod
    def from_projections(
        cls,
        Wq: Array,
        Wk: Array,
        Wv: Array | None = None,
        *,
        bq: Array | None = None,
        bk: Array | None = None,
        bv: Array | None = None,
        scale: float | None = None,
    ) -> Head:
        """A head from its projections, A = scale·WkᵀWq, never formed: Wq (*heads, d_h, d_query),
        Wk (*heads, d_h, d_key), Wv (*heads, d_out, d); scale is 1/√d_h unless given. Biases are (*heads, d_h)
        or (*heads, d_out); bk shifts all scores of a query alike, so only linear attention sees it.
        """
        right = _matrix(Wq, "Wq")
        left = _matrix(Wk, "Wk", like=right)
        if left.shape[-2] != right.shape[-2]:
            raise InputError(
                f"Wq and Wk must project to the same head dimension, got {right.shape[-2]} and {left.shape[-2]} rows."
            )
        scale = right.shape[-2] ** -0.5 if scale is None else as_positive(scale, "scale")
        V = None if Wv is None else _matrix(Wv, "Wv", like=right)
        if V is None and bv is not None:
            raise InputError("bv was given without Wv: pass the identity as Wv if that is meant.")
        query_bias = None if bq is None else scale * as_points(bq, right.shape[-2], "bq", like=right)
        key_bias = None if bk is None else as_points(bk, right.shape[-2], "bk", like=right)
        value_bias = None if bv is None or V is None else as_points(bv, V.shape[-2], "bv", like=right)
        return cls._of(Factors(scale * right, left.mT, V, query_bias, key_bias, value_bias))

    @classmethod
    def _of(cls, factors: Factors) -> Head:
        head = cls.__new__(cls)
        head.factors = factors
        head._check_heads()
        return head

    def _check_heads(self) -> None:
        f = self.factors
        for name, factor in (("Wk", f.left), ("V", f.V)):
            if factor is not None and factor.shape[:-2] != self.heads:
                raise InputError(
                    f"{name} is for heads {tuple(factor.shape[:-2])}, A or Wq for heads {tuple(self.heads)}: they must agree."
                )
        for name, bias in (("bq", f.query_bias), ("bk", f.key_bias), ("bv", f.value_bias)):
            if bias is not None and bias.shape[:-1] != self.heads:
                raise InputError(
                    f"{name} is for heads {tuple(bias.shape[:-1])}, the rest for {tuple(self.heads)}."
                )

    # --- what it is -------------------------------------------------------------------------------

    @property
    def heads(self) -> torch.Size:
        """Leading shape: () for one head."""
        return self.factors.right.shape[:-2]

    @property
    def query_dim(self) -> int:
        return self.factors.right.shape[-1]

    @property
    def key_dim(self) -> int:
        return self.factors.right.shape[-2] if self.factors.left is None else self.factors.left.shape[-2]

    @property
    def letters(self) -> dict[str, tuple[int, str]]:
        """What the letters in the shapes of its methods stand for."""
        V = self.factors.V
        values = {} if V is None else {"d": (V.shape[-1], "V")}
        return {"dq": (self.query_dim, "A"), "dk": (self.key_dim, "A"), **values}

    @property
    def A(self) -> Float[Tensor, "*heads dk dq"]:
        """The score matrix, formed on request."""
        f = self.factors
        return f.right if f.left is None else f.left @ f.right

    @property
    def V(self) -> Float[Tensor, "*heads dv d"]:
        """The value matrix, formed on request when it is the identity."""
        return (
            torch.eye(self.key_dim, dtype=self.factors.right.dtype, device=self.factors.right.device)
            if self.factors.V is None
            else self.factors.V
        )

    def __repr__(self) -> str:
        f = self.factors
        count = f"{self.heads.numel()} heads, " if self.heads else ""
        rank = "" if f.left is None else f", rank {f.right.shape[-2]}"
        out = "identity values" if f.V is None else f"{f.V.shape[-2]}-d values"
        return f"{type(self).__name__}({count}{self.query_dim}-d queries, {self.key_dim}-d keys{rank}, {out})"

    def scaled(self, kappa: Positive) -> Head:
        """The head with all scores multiplied by κ; κ → ∞ is hardmax."""
        f = self.factors
        bias = None if f.query_bias is None else kappa * f.query_bias
        return self._of(replace(f, right=kappa * f.right, query_bias=bias))

    def along(self, direction: Array) -> Head:
        """The head whose one output is gᵀ(V y + b_v), for a direction g: what its outputs are along g, and their errors."""
        f = self.factors
        g = as_vector(direction, None if f.V is None else f.V.shape[-2], "direction", like=f.right)
        row = g.expand(*self.heads, 1, -1) if f.V is None else (g @ f.V)[..., None, :]
        bias = None if f.value_bias is None else (f.value_bias @ g)[..., None]
        return self._of(replace(f, V=row, value_bias=bias))

    def linear(self) -> Head:
        """Linear attention with the same matrices: x ↦ ∫ V y (yᵀA x) dμ(y), no softmax."""
        return LinearHead._of(self.factors)

    def each(self) -> list[Head]:
        """The heads one by one."""
        if not self.heads:
            return [self]
        last = len(self.heads) - 1
        flat = {name: t.flatten(0, last) for name, t in vars(self.factors).items() if t is not None}
        return [
            self._of(Factors(**{name: t[i] for name, t in flat.items()})) for i in range(self.heads.numel())
        ]

    @property
    def reads_first(self) -> bool:
        """Whether V is better applied before the softmax, since that makes the values smaller."""
        V = self.factors.V
        return V is not None and V.shape[-2] < V.shape[-1]

    # --- applied to a measure ---------------------------------------------------------------------

    def __call__(self, measure: Measure) -> AttentionMap:
        self.check_fits(measure)
        return LimitMap(self, measure) if measure.population is None else TokenMap(self, measure.population)

    def hardmax(self, measure: Measure) -> HardmaxMap:
        """The κ → ∞ map: V times the key of largest score, ties averaged."""
        self.check_fits(measure)
        return HardmaxMap(self, measure)

    def check_fits(self, measure: Measure) -> None:
        """Dimension, dtype and device must agree with the measure's."""
        if measure.dim != self.key_dim:
            raise InputError(
                f"The head reads {self.key_dim}-dimensional keys, but {measure!r} has dimension {measure.dim}."
            )
        if self.factors.V is not None and self.factors.V.shape[-1] != measure.value_dim:
            raise InputError(
                f"V has {self.factors.V.shape[-1]} columns, but the values of {measure!r} have dimension {measure.value_dim}."
            )
        self.check_kind(measure)

    def check_kind(self, measure: Measure) -> None:
        """Dtype and device must agree with the measure's."""
        right = self.factors.right
        if measure.dtype != right.dtype or measure.device != right.device:
            raise InputError(
                f"The head is {right.dtype} on {right.device}, {measure!r} is {measure.dtype} on {measure.device}: "
                f"convert one of them, mixing would lose precision or fail. For the head A.to({measure.dtype}), for a law "
                f"dtype={right.dtype} (a Gaussian: tensors of it for mean or cov)."
            )

    # --- pieces -----------------------------------------------------------------------------------

    def checked(self, x: Array) -> Tensor:
        """Queries as a tensor of shape (*batch, d_query)."""
        return as_points(x, self.query_dim, "queries", like=self.factors.right)

    def rows(self, x: Array) -> Tensor:
        """At least one query, as a tensor of shape (m, d_query)."""
        rows = self.checked(x).reshape(-1, self.query_dim)
        if not len(rows):
            raise InputError("queries are empty: give at least one, errors are averages over them.")
        return rows

    def query(self, x: Float[Tensor, "*batch dq"]) -> Float[Tensor, "*all r"]:
        """q = R x + b_q, shape (*heads, *batch, r)."""
        f = self.factors
        q = x.reshape(-1, self.query_dim) @ f.right.mT
        if f.query_bias is not None:
            q = q + f.query_bias[..., None, :]
        return q.reshape(*self.heads, *x.shape[:-1], q.shape[-1])

    def keys(self, y: Float[Tensor, "n dk"]) -> Float[Tensor, "*heads n r"]:
        """Lᵀy, shape (*heads, n, r); without b_k, which softmax does not see."""
        return y.expand(*self.heads, *y.shape) if self.factors.left is None else y @ self.factors.left

    def score_vector(self, x: Float[Tensor, "*batch dq"]) -> Float[Tensor, "*all dk"]:
        """a = L q, so that the score of key y is aᵀy; shape (*heads, *batch, d_key)."""
        q, left = self.query(x), self.factors.left
        if left is None:
            return q
        flat = q.reshape(*self.heads, -1, q.shape[-1])
        return (flat @ left.mT).reshape(*q.shape[:-1], self.key_dim)

    def read(self, mean: Float[Tensor, "*all d"]) -> Float[Tensor, "*all dv"]:
        """V y + b_v for y of shape (*heads, *batch, d)."""
        return self.shifted(self.read_linear(mean))

    def shifted(self, out: Float[Tensor, "*all dv"]) -> Float[Tensor, "*all dv"]:
        """V y + b_v from V y."""
        bias = self.factors.value_bias
        if bias is None:
            return out
        return out + bias.reshape(*self.heads, *[1] * (out.ndim - len(self.heads) - 1), -1)

    def read_linear(self, y: Float[Tensor, "*all d"]) -> Float[Tensor, "*all dv"]:
        """V y for y of shape (*heads, *batch, d)."""
        if self.factors.V is None:
            return y
        flat = y.reshape(*self.heads, -1, y.shape[-1])
        return (flat @ self.factors.V.mT).reshape(*y.shape[:-1], self.factors.V.shape[-2])


class LinearHead(Head):
    """x ↦ ∫ v (kᵀq) dμ: equals the softmax limit for centred Gaussian tokens [boursier2026softmax]."""

    def __call__(self, measure: Measure) -> LinearMap:
        self.check_fits(measure)
        return LinearMap(self, measure)


def _matrix(value: Array, name: str, like: Tensor | None = None) -> Tensor:
    matrix = as_float(value, name, dtype=getattr(like, "dtype", None), device=getattr(like, "device", None))
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise InputError(
            f"{name} must be a matrix, (*heads, rows, columns), got shape {tuple(matrix.shape)}."
        )
    return matrix
