"""Errors of the second moment of the outputs of fresh queries that read the same n keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.exact.two_queries import COARSE, SCRAMBLES, centred_gaussian, plane_frame
from attnlimit.measures import Measure
from attnlimit.numerics.pair_sums import Form, pair_sums
from attnlimit.numerics.quasi import normal_sets
from attnlimit.numerics.threads import side_by_side
from attnlimit.numerics.two_queries import gaussian_pair
from attnlimit.rates.error_curve import ErrorCurve

POINTS = 64
AVERAGED = (
    f"exact at each pair of queries (double Laplace quadrature, good to 4e-04), averaged over {SCRAMBLES} × {POINTS:,} quasi-random pairs "
    "and their mirror images"
)
TILT, WIDEST = 0.7, 2.0
"""Of the pairs, towards those whose errors go together (see `Pairs`): along the strongest direction, and in all, which keeps weights alike."""


def second_moment_error(head: Head, law: Measure, n: int | Sequence[int]) -> ErrorCurve:
    """(E‖P_n − P‖²_F)^{1/2} for the second moment P_n = E_x Γ_n(x)Γ_n(x)ᵀ, about the mean of the limit, of the outputs of fresh queries x ~ law,
    all of which read the same n independent tokens: with ε = Γ_n(x) − Γ(x) and independent queries x and x′

        E‖P_n − P‖² = E_{x,x′} E [2(Γ·Γ′)(ε·ε′) + 2(Γ·ε′)(ε·Γ′) + 4(Γ·ε′)(ε·ε′) + (ε·ε′)²].

    For Gaussian tokens and centred scores: exact at each pair, averaged over 8 × 64 quasi-random pairs with their mirror images, with a
    standard error, which few pairs rule where horizons are near 1 and n is very large: it is too small there.
    About the mean that the same n tokens give: `output_covariance_error`.

    >>> from attnlimit import Gaussian, Head
    >>> second_moment_error(Head([[0.5]]), Gaussian(dim=1), [100]).error
    tensor([0.0773], dtype=torch.float64)
    """
    sizes = sorted(set(as_sizes(n)))
    found, scale = second_moment_sets(head, law, sizes)
    return ErrorCurve.of_squares(sizes, found, AVERAGED, scale)


def second_moment_sets(head: Head, law: Measure, sizes: list[int]) -> tuple[Float[Tensor, "sets n"], float]:
    """E‖P_n − P‖² by each of the independent sets of pairs, and ‖P‖."""
    if head.heads:
        raise InputError(
            f"The second moment of outputs is that of one head at a time, got {head!r}: use head.each()."
        )
    head.check_fits(law)
    instead = "use measure_convergence (Monte Carlo) with statistic='covariance'."
    root, total = centred_gaussian(head, law, "second moment of outputs", instead)
    # all α = Σ^{1/2}Ax are rows of white noise times these
    basis = law.proxy_root(head.score_vector(head.checked(law.mean + law.proxy_root(torch.eye(law.dim).to(law.mean)))))  # fmt: skip
    pairs = Pairs.of(basis.double())
    outputs = pairs.basis @ root.T
    return _sets(pairs, root, total, sizes), float((outputs.T @ outputs).norm())


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of white queries z, z′ of density proportional to cosh(θ α·α′) times their own, α = Mᵀz: errors of both queries go together like
    e^{α·α′}, so that few pairs of that density would make up most of a plain average. By u = (z + z′)/√2 and v = (z − z′)/√2 it is Gaussian,
    of precisions 1 ∓ θκ along the eigenvectors of MMᵀ, whose largest eigenvalues κ have the first quasi-random coordinates."""

    basis: Float[Tensor, "d d"]
    """M."""
    strengths: Float[Tensor, " d"]
    """θκ."""
    vectors: Float[Tensor, "d d"]
    tilt: float
    """θ."""

    @classmethod
    def of(cls, basis: Float[Tensor, "d d"]) -> Pairs:
        strengths, vectors = torch.linalg.eigh(basis @ basis.T)
        tilt = min(TILT / max(float(strengths[-1]), 1e-9), WIDEST / max(float(strengths.norm()), 1e-9))
        return cls(basis, tilt * strengths.flip(0).clamp_min(0), vectors.flip(1), tilt)

    def at(self, white: Float[Tensor, "k dd"]) -> tuple[Tensor, Tensor, Float[Tensor, " k"]]:
        """α and α′ of each pair, and its weight."""
        u, v = white.reshape(len(white), -1, 2).unbind(2)
        u, v = u / (2 * (1 - self.strengths)).sqrt(), v / (2 * (1 + self.strengths)).sqrt()
        a, b = ((one @ self.vectors.T) @ self.basis for one in (u + v, u - v))
        mean = (1 - self.strengths.square()).prod() ** -0.5
        return a, b, mean / torch.cosh(self.tilt * (a * b).sum(1))

    def control(self, a: Tensor, b: Tensor, weight: Tensor, root: Tensor) -> Float[Tensor, " k"]:
        """(α·α′)(Γ·Γ′) less its mean: what the error of a pair goes with most."""
        outputs = self.basis @ root.T
        mean = (self.basis.T @ outputs).square().sum()
        return weight * (a * b).sum(1) * ((a @ root.T) * (b @ root.T)).sum(1) - mean


def _sets(pairs: Pairs, root: Tensor, total: Tensor, sizes: list[int]) -> Float[Tensor, "sets n"]:
    """E‖P_n − P‖² by each of the independent sets of pairs."""
    found, controls = [], []
    for white in normal_sets(2 * len(pairs.basis), POINTS, SCRAMBLES):
        a, b, weight = pairs.at(white)
        # with both α′ and −α′ what is odd, and has mean 0, is gone
        here = [*zip(a, b, strict=True), *zip(a, -b, strict=True)]
        both = side_by_side(lambda pair: _at_pair(root, total, *pair, sizes), here)
        found.append(torch.stack(both).unflatten(0, (2, -1)).mean(0) * weight[:, None])
        controls.append(pairs.control(a, b, weight, root))
    values, known = torch.stack(found), torch.stack(controls)
    away = known - known.mean()
    fit = torch.einsum("sk,skn->n", away, values) / away.square().sum().clamp_min(1e-300)
    return values.mean(1) - known.mean(1, keepdim=True) * fit


def _at_pair(root: Tensor, total: Tensor, a: Tensor, b: Tensor, sizes: list[int]) -> Float[Tensor, " n"]:
    """E[2(Γ·Γ′)(ε·ε′) + 2(Γ·ε′)(ε·Γ′) + 4(Γ·ε′)(ε·ε′) + (ε·ε′)²] at the queries of α and α′."""
    s, s2, cosine, frame = plane_frame(a, b)
    plane, c, c2 = Plane.of(root @ frame, total), frame.T @ a, frame.T @ b
    forms = [*plane.second(c, c2), *plane.third(c), *plane.fourth()]
    return pair_sums(gaussian_pair(s, s2, cosine, max(sizes), COARSE), forms, sizes, COARSE)


@dataclass(frozen=True, eq=False)
class Plane:
    """Values v = L(g, h) + o of keys whose coordinates in the plane of both score vectors are (g, h), with o independent of these and of
    covariance K: given all (g, h), ε = (Lp + Σ wo)/W and ε′ = (Lq + Σ w′o)/W′, with Gaussian second parts of covariances ΣwwK, Σww′K and
    Σw′w′K. Γ = Lc and Γ′ = Lc′."""

    gram: Float[Tensor, "2 2"]
    """LᵀL."""
    seen: Float[Tensor, "2 2"]
    """LᵀKL."""
    trace: Float[Tensor, ""]
    """tr K."""
    square: Float[Tensor, ""]
    """tr K²."""

    @classmethod
    def of(cls, L: Float[Tensor, "dv 2"], total: Float[Tensor, "dv dv"]) -> Plane:
        gram, inside = L.T @ L, L.T @ total @ L
        square = total.square().sum() - 2 * inside.trace() + gram.square().sum()
        return cls(gram, inside - gram @ gram, total.trace() - gram.trace(), square)

    def second(self, c: Float[Tensor, " 2"], c2: Float[Tensor, " 2"]) -> list[Form]:
        """2(Γ·Γ′)(ε·ε′) + 2(Γ·ε′)(ε·Γ′)."""
        one, other = self.gram @ c, self.gram @ c2
        return [
            (2 * (one @ c2 * self.gram + torch.outer(other, one)), "pq", ""),
            (2 * (one @ c2 * self.trace + c @ self.seen @ c2), "", "X"),
        ]

    def third(self, c: Float[Tensor, " 2"]) -> list[Form]:
        """4(Γ·ε′)(ε·ε′)."""
        one, across = self.gram @ c, self.seen @ c
        return [
            (4 * torch.einsum("i,jk->ijk", one, self.gram), "qpq", ""),
            (4 * (self.trace * one + across), "q", "X"),
            (4 * across, "p", "Q"),
        ]

    def fourth(self) -> list[Form]:
        """(ε·ε′)²."""
        return [
            (torch.einsum("ij,kl->ijkl", self.gram, self.gram), "pqpq", ""),
            (2 * (self.trace * self.gram + self.seen), "pq", "X"),
            (self.seen, "pp", "Q"),
            (self.seen, "qq", "P"),
            (self.square, "", "PQ"),
            (self.trace.square() + self.square, "", "XX"),
        ]
