"""n different keys, drawn at once: what a budget of n keys is.

With e_j = e^{−tw_j}, and sums over all sets J of n of the R keys,

    E‖Γ_n − Γ‖² = C(R, n)⁻¹ ∫ t e^{−tW_S} Σ_J Π_{j∈J} e_j ‖U_S + Σ_{j∈J} w_j u_j‖² dt.

The sum over J is the coefficient of zⁿ of what a coin with odds z for every key would give, r_j = z e_j/(1 + z e_j),

    Π (1 + z e_j) { ‖U_S + Σ r_j w_j u_j‖² + Σ (r_j − r_j²) w_j²‖u_j‖² },

and is found in one of four ways, all of them the same number:

- up to `FEW` keys the sums grow key by key, as elementary symmetric polynomials do (R² steps at each t);
- up to n = `LOW` by power series in z, from the sums of e_j^k, w_j u_j e_j^k and w_j²‖u_j‖² e_j^k;
- beyond, the coefficient is an integral over the circle |z| = n/(R − n), on which only the stretch near the real axis counts:
  coins with odds around n/(R − n), a grid that all n share, are continued into it by polynomials of degree 15;
- where n is within `HIGH` of R, or where degree 13 gives another value, by the trapezoid rule over the whole circle.

More than 12 keys of similar score are condensed first (see `numerics.condensed`). Together good to 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from attnlimit.designs.coins import CoinSums, coin_sums
from attnlimit.designs.draw import Draw, Moments, Rest, Terms, Ways, check_enough, in_blocks, log_sets, turned
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.atoms import FINE, HEAVY, ROUGH, Precision
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.condensed import Condensed, condensed, summed
from attnlimit.numerics.fading import faded
from attnlimit.numerics.laplace import tau_grid

FEW = 64
"""Keys up to which all sets are summed over."""
LOW, HIGH, ROUGH_HIGH = 48, 12, 3
ENTRIES_AT_ONCE = 2**18
"""Of the tables on the circle."""


class Window(NamedTuple):
    """Of the grid of log odds, around an n."""

    spacing: float
    points: int
    agree: float
    """Relative difference between this and two points less above which the whole circle is taken."""
    nodes: int
    """Of the integral along the circle near the real axis."""


WINDOWS = {FINE: Window(0.25, 16, 1e-6, 13), ROUGH: Window(0.4, 8, 5e-3, 8)}


class Found(NamedTuple):
    """C(R, n)⁻¹ Σ_J Π e_j of 1, ‖Σ_J tw u‖² and Σ_J tw u, at each t and n."""

    sets: Float[Tensor, "m t k"]
    pairs: Float[Tensor, "m t k"]
    drift: Float[Tensor, "m t i p"]
    lower: Float[Tensor, "m t k i"] | None = None
    """What each drift counts for each n (None: there is one for each n)."""

    def toward(self, error: Float[Tensor, "m p"]) -> Float[Tensor, "m t k"]:
        """Σ_J tw u in a direction."""
        along = (self.drift @ error[:, None, :, None])[..., 0]
        return along if self.lower is None else (self.lower @ along[..., None])[..., 0]

    def integrated(self, phi: Float[Tensor, "m t k"]) -> Float[Tensor, "m k p"]:
        """Σ_t φ Σ_J tw u."""
        if self.lower is None:
            return (phi[..., None] * self.drift).sum(1)
        return (phi[..., None] * self.lower).transpose(1, 2).flatten(2) @ self.drift.flatten(1, 2)


@dataclass(frozen=True)
class Different(Draw):
    """A uniformly random set of n different keys."""

    name, words = "different", "different keys"

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        check_enough(population, n)
        order = torch.randperm(population, generator=generator, device=generator.device)
        return [order[:size] for size in n]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        """Zero where n ≥ R; n whole."""
        few = (rest.number <= FEW)[:, 0]
        groups = [(rows, way) for rows, way in ((few, _few), (~few, _many)) if bool(rows.any())]
        ready = [(rows, in_blocks(rest.of(rows), way)) for rows, way in groups]

        def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
            n = n.expand(len(few), -1)
            square = torch.zeros(n.shape, dtype=torch.float64, device=n.device)
            bias = square[..., None].expand(-1, -1, rest.atoms.dim).clone()
            for rows, exact in ready:
                square[rows], bias[rows] = exact(n[rows], stands_for[rows])
            return square.clamp_min(0), bias

        return moments

    def transform(self, terms: Terms, n: int, lam: Float[Tensor, " k"]) -> Complex[Tensor, " k"]:
        """C(R, n)⁻¹ [zⁿ] Π (1 + z e^{iλy_j}), by the trapezoid rule on |z| = n/(R − n): coins with odds z e^{iλy_j}."""
        p = n / terms.number
        points = min(int(terms.number) + 1, 2 * int(3.5 * (n * (1 - p)) ** 0.5 + 8) + 1)
        log_chance = float(_log_chance(*torch.tensor([terms.number, n, p], dtype=torch.float64)))
        turn = torch.arange(points, dtype=torch.float64, device=lam.device) * (2 * math.pi / points)
        many = terms.mass * terms.number
        around = _compiled_turns if has_numba() and lam.device.type == "cpu" else _plain_turns
        total = around(lam[:, None] * terms.y, turn, many.round(), p)
        return (total * torch.polar(torch.ones_like(turn), -n * turn)).sum(1) * (
            math.exp(-log_chance) / points
        )

    def ways(self, mass: Float[Tensor, " j"], number: float, n: int) -> Ways:
        many = (mass * number).round()[:, None]
        c = torch.arange(min(n, int(many.max())) + 1, dtype=mass.dtype, device=mass.device)
        log_ways = log_sets(many, c).masked_fill(c > many, -torch.inf)
        return Ways(log_ways, n, float(log_sets(*torch.tensor([number, n], dtype=torch.float64))))


def _integrated(
    rest: Rest, tau: Tensor, found: Found, n: Tensor, stands_for: Tensor
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
    """∫ over t of what was found, with the kept keys; zero where n ≥ R."""
    sets, pairs = found[:2]
    phi = torch.full_like(sets, rest.atoms.step).masked_fill((n >= rest.number)[:, None], 0.0)
    bias = n.new_zeros(*n.shape, rest.atoms.dim)
    if rest.kept is not None:
        own = tau[..., None] + rest.kept.log_weight[:, None, None] - stands_for[:, None].log()
        own, error = own.clamp_max(HEAVY).exp(), rest.kept.mean_error
        size = error.square().sum(-1)[:, None, None]
        pairs = pairs + 2 * own * found.toward(error) + own.square() * sets * size
        phi = phi * (-own).exp()
        bias = (phi * own * sets).sum(1)[..., None] * error[:, None]
    return (phi * pairs).sum(1), bias if rest.square_only else bias + found.integrated(phi)


def _few(rest: Rest) -> Moments:
    """E_n = Σ_J Π e_j, V_n the same with Σ_J w u and Q_n with ‖Σ_J w u‖²: without any cancellation, a key more makes

        E_n + e E_{n−1},   V_n + e (V_{n−1} + wu E_{n−1}),   Q_n + e (Q_{n−1} + 2 wu·V_{n−1} + ‖wu‖² E_{n−1})

    of them. Keys of equal score may come as one atom of several: each is then an atom of its own here.
    """
    atoms, kept, number = rest.key_by_key("Sets"), rest.kept, rest.number
    tau = tau_grid(atoms, int(number.max()), kept)
    many = (atoms.log_mass.exp() * number).round()
    error, square = atoms.mean - atoms.limit[:, None, :], atoms.squares()
    # the sums have e_j relative to that of the lightest key, which n keys together lack n times
    lightest = (tau + atoms.scores.masked_fill(many == 0, torch.inf).amin(1, keepdim=True)).clamp_max(HEAVY)

    def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
        most = int(n.masked_fill(n >= number, 0).max())
        sums = torch.zeros(*tau.shape, most + 1, error.shape[-1] + 2, dtype=torch.float64)
        sums[..., 0, 0] = 1.0
        grow = _compiled_sets if has_numba() and tau.device.type == "cpu" else _plain_sets
        sums = grow(tau, atoms.scores, many, error, square, sums.to(tau.device))
        size = n.clamp_max(most).long()
        found = sums.gather(2, size[:, None, :, None].expand(-1, tau.shape[1], -1, sums.shape[-1]))
        scale = -log_sets(number, n)[:, None] - n[:, None] * lightest.exp()[..., None]
        found = found * scale.exp()[..., None]
        return _integrated(rest, tau, Found(found[..., 0], found[..., 1], found[..., 2:]), n, stands_for)

    return moments


def _many(rest: Rest) -> Moments:
    """Their keys condensed once."""
    keys = condensed(rest.atoms, rest.number)
    tau = tau_grid(rest.atoms, int(rest.number.max()), rest.kept)

    def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
        low = n <= _lowest(rest.number, keys.precision)
        most = rest.number - (HIGH if keys.precision == FINE else ROUGH_HIGH)
        high, between = (n > most) & (n < rest.number), ~low & (n <= most)
        square, bias = torch.zeros_like(n), n.new_zeros(*n.shape, keys.vector.shape[-1])
        if bool(between.any()):
            columns = between.any(0)
            some = n[:, columns], stands_for[:, columns], between[:, columns]
            square[:, columns], bias[:, columns], agreed = _between(rest, keys, tau, *some)
            high[:, columns] |= ~agreed
        for column in high.any(0).nonzero()[:, 0]:
            rows = high[:, column]
            found = _circle(keys.of(rows), tau[rows], rest.number[rows], n[rows, column])
            at = n[rows, column, None], stands_for[rows, column, None]
            here, drift = _integrated(rest.of(rows), tau[rows], found, *at)
            square[rows, column], bias[rows, column] = here[:, 0], drift[:, 0]
        if bool(low.any()):
            columns = low.any(0)
            size = torch.where(low, n, 1.0)[:, columns]
            found = _series(keys, tau, rest.number, size)
            here, drift = _integrated(rest, tau, found, size, stands_for[:, columns])
            square[:, columns] = torch.where(low[:, columns], here, square[:, columns])
            bias[:, columns] = torch.where(low[:, columns, None], drift, bias[:, columns])
        return square, bias

    return moments


def _lowest(number: Tensor, precision: Precision) -> Tensor:
    """How far the power series serves: it loses e^{n²/R} to cancellation."""
    return ((20 if precision == FINE else 4) * number).sqrt().floor().clamp_max(LOW)


def _series(keys: Condensed, tau: Tensor, number: Float[Tensor, "m 1"], n: Float[Tensor, "m k"]) -> Found:
    """Σ log(1 + z e) = −Σ_k (−z)^k Σ e^k / k, Σ r wu = −Σ_k (−z)^k Σ e^k wu and Σ (r − r²) w²‖u‖² the same with k e^k, up to
    the power of z that n needs, or where n/(R − n) to that power is 1e-12 (binned keys: 1e-6). In powers of z times the largest R."""
    most = int(n.max())
    odds = float((most / (number - most)).max())
    least = 27.6 if keys.precision == FINE else 13.8
    terms = most if odds > 0.3 else min(most, math.ceil(least / -math.log(odds)))
    y, scale = keys.loads(tau), number.max()
    sign, seen = -1 / scale, (-y).exp()
    power = [-sign * seen]
    for _ in range(1, terms):
        power.append(power[-1] * seen * sign)
    powers = torch.stack(power, 1)  # −(−e/R)^k, (m or 1, k, t, j)
    k, shape = torch.arange(1, terms + 1, dtype=y.dtype, device=y.device), powers.shape[1:3]
    sums = summed(powers.flatten(1, 2), keys.number).unflatten(1, shape).mT.contiguous()
    pulled = (powers.mul_(y[:, None])).to(keys.vector).flatten(1, 2) @ keys.vector
    drift = pulled.double().unflatten(1, shape).transpose(1, 2).contiguous()
    own = k * summed(powers.mul_(y[:, None]).flatten(1, 2), keys.square).unflatten(1, shape).mT
    sets = y.new_zeros(*tau.shape, most + 1 + 2 * terms)  # the coefficients of most, most − 1, …, 0 and below
    sets[..., most] = 1.0
    for size in range(1, most + 1):
        before = sets[..., most - size + 1 : most - size + 1 + terms]
        sets[..., most - size] = (sums * before).sum(-1) / size
    pairs = y.new_zeros(*tau.shape, 2 * terms + 1)
    pairs[..., 1 : terms + 1] = own
    products = drift @ drift.mT
    for one in range(terms):
        pairs[..., one + 2 : one + terms + 2] += products[..., one, :]
    place = most - n.long()[..., None] + torch.arange(2 * terms + 1, device=n.device)
    lower = sets.gather(2, place.flatten(1)[:, None].expand(-1, tau.shape[1], -1)).unflatten(
        2, place.shape[1:]
    )
    lower = lower * (n * scale.log() - log_sets(number, n)).exp()[:, None, :, None]
    return Found(lower[..., 0], (lower @ pairs[..., None])[..., 0], drift, lower[..., 1 : terms + 1])


def _between(
    rest: Rest, keys: Condensed, tau: Tensor, n: Tensor, stands_for: Tensor, between: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """E‖Γ_n − Γ‖² and the bias from coins at log odds in steps of a window's spacing; and where they do not depend on the window."""
    spacing, points, agree, nodes = WINDOWS[keys.precision]
    number, size = rest.number, torch.where(between, n, rest.number / 2)
    middle = (size / (number - size)).log() / spacing
    place = torch.where(between, middle.floor(), torch.nan)
    along = (0, 1) if keys.alike else 1  # one grid for all
    first = place.nan_to_num(nan=torch.inf).amin(along, keepdim=True).nan_to_num(posinf=0.0) - points // 2 + 1
    last = place.nan_to_num(nan=-torch.inf).amax(along, keepdim=True) + points // 2
    grid = first + torch.arange(int((last - first).max()) + 1, dtype=n.dtype, device=n.device)
    sums = coin_sums(tau, keys, torch.sigmoid(spacing * grid), rest.kept)
    near = (middle.floor() - points // 2 + 1 - first).long()[..., None] + torch.arange(
        points, device=n.device
    )
    near = near.clamp(0, grid.shape[1] - 1)
    alone = slice(1 if bool((size == size[:1]).all() and (number == number[0]).all()) else None)
    rows = size[alone], number[alone], middle[alone]  # one may serve all
    window = partial(_continue, *rows, spacing, nodes)
    weight = window(points)
    squares, bias = _near(rest, sums, near, weight, stands_for)
    wide, narrow = (weight * squares).sum(-1), (window(points - 2) * squares[..., 1:-1]).sum(-1)
    agreed = ~between | ((wide - narrow).abs() <= agree * wide)
    return torch.where(between, wide, 0.0), torch.where(between[..., None], bias, 0.0), agreed


def _near(
    rest: Rest, sums: CoinSums, near: Int[Tensor, "m k i"], weight: Tensor, stands_for: Tensor
) -> tuple[Float[Tensor, "m k i"], Float[Tensor, "m k p"]]:
    """Squares at the points of the grid around each n, and the bias."""
    phi, pairs = rest.atoms.step * faded(sums.log_phi), sums.pairs() + sums.noise
    if rest.kept is None:
        squares = (phi * pairs).sum(-1).gather(1, near.flatten(1)).unflatten(1, near.shape[1:])
        if rest.square_only:
            return squares, squares.new_zeros(*near.shape[:2], rest.atoms.dim)
        share = squares.new_zeros(*near.shape[:2], phi.shape[1]).scatter_(2, near, weight.expand_as(squares))
        return squares, sums.averaged(share[..., None] * phi[:, None])
    error = rest.kept.mean_error
    rows = near.flatten(1)[..., None].expand(-1, -1, phi.shape[2])
    here, phi, pairs, cross = (
        one.gather(1, rows).unflatten(1, near.shape[1:]) for one in (sums.tau, phi, pairs, sums.toward(error))
    )
    own = here + (rest.kept.log_weight[:, None] - stands_for.log())[..., None, None]
    own = own.clamp_max(HEAVY).exp()  # (m, k, i, t)
    damped = phi * (-own).exp()
    size = error.square().sum(-1)[:, None, None, None]
    squares = (damped * (pairs + 2 * own * cross + own.square() * size)).sum(-1)
    if rest.square_only:
        return squares, squares.new_zeros(*near.shape[:2], rest.atoms.dim)
    share = weight[..., None] * damped
    full = share.new_zeros(*near.shape[:2], *sums.log_phi.shape[1:])
    full.scatter_(2, near[..., None].expand_as(share), share)
    return squares, sums.averaged(full) + (share * own).sum((-1, -2))[..., None] * error[:, None]


def _continue(
    n: Tensor, number: Tensor, middle: Tensor, spacing: float, nodes: int, window: int
) -> Float[Tensor, "m k i"]:
    """What the values at `window` points of the grid count in the integral over the circle, P(N = n)⁻¹ (2π)⁻¹ ∫ (1 − p + p e^{iθ})^R
    e^{−inθ} L(log odds + iθ) dθ, L the polynomial through the points around the log odds, `middle` in units of the spacing."""
    p = n / number
    place = middle.floor() - window // 2 + 1
    steps = torch.arange(nodes, dtype=n.dtype, device=n.device) + 0.5
    theta = (7.8 / nodes / (n * (1 - p)).sqrt())[..., None] * steps
    kernel = (
        number[..., None] * torch.log1p(p[..., None] * torch.expm1(1j * theta)) - 1j * n[..., None] * theta
    )
    kernel = kernel.exp()
    k = torch.arange(window, dtype=n.dtype, device=n.device)
    away = (1j * theta)[..., None] / spacing - (place[..., None] + k - middle[..., None])[:, :, None]
    basis = ((kernel * away.prod(-1))[..., None] / away).real.sum(2)
    scale = (-torch.lgamma(k + 1) - torch.lgamma(window - k)).exp() * (-1.0) ** (window - 1 - k)
    return basis * scale / kernel.real.sum(2, keepdim=True)


def _circle(keys: Condensed, tau: Tensor, number: Float[Tensor, "m 1"], n: Float[Tensor, " m"]) -> Found:
    """The trapezoid rule on |z| = n/(R − n), for one n."""
    p = n[:, None] / number
    points = 2 * int(3.5 * (n * (1 - p[:, 0])).sqrt().max() + 8) + 1
    y = keys.loads(tau)
    seen = p[..., None] * (-y).exp()
    angles = torch.arange(points // 2 + 1, dtype=y.dtype, device=y.device)[:, None, None, None] * (
        2 * math.pi / points
    )
    log_chance = _log_chance(number, n[:, None], p)[..., None]
    total = torch.zeros(())
    for angle in angles.split(max(1, ENTRIES_AT_ONCE // seen.numel())):
        log_phi, pairs, drift = _turned_coins(keys, y, seen, p[..., None], angle)
        phi = (log_phi - log_chance - 1j * angle * n[:, None, None]).exp()
        part = (phi * torch.cat([torch.ones_like(pairs), pairs, drift], -1)).real
        total = total + (part * torch.where(angle == 0, 1, 2)).sum(0) / points
    return Found(total[..., :1], total[..., 1:2], total[..., None, 2:])


def _turned_coins(
    keys: Condensed, y: Tensor, seen: Tensor, p: Tensor, angle: Float[Tensor, "k 1 1 1"]
) -> tuple[Tensor, Tensor, Tensor]:
    """log Π q, ‖Σ r wu‖² + Σ (r − r²) w²‖u‖² and Σ r wu for q = 1 − p + p z e^{−y}, r = p z e^{−y}/q and |z| = 1, in real parts:
    complex logarithms are slow."""
    vector, square, many = keys.vector, keys.square.double()[..., None], keys.number[..., None]
    along, across = angle.cos() * seen, angle.sin() * seen
    q = 1 - p + along
    size = q.square() + across.square()
    r, s = (along * q + across.square()) / size, (1 - p) * across / size
    log_phi = torch.complex(0.5 * size.log() @ many, torch.atan2(across, q) @ many)
    drift = torch.complex(*(((one * y).to(vector) @ vector).double() for one in (r, s)))
    noise = (r * (1 - r) + s.square()) * y.square() @ square, s * (1 - 2 * r) * y.square() @ square
    return log_phi, drift.square().sum(-1, keepdim=True) + torch.complex(*noise), drift


def _log_chance(number: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """log P(N = n) of R coins with probability p = n/R."""
    return log_sets(number, n) + n * p.log() + (number - n) * torch.log1p(-p)


def _compiled_turns(
    phase: Float[Tensor, "k j"], turn: Float[Tensor, " s"], many: Float[Tensor, " j"], p: float
) -> Complex[Tensor, "k s"]:
    """Π (1 − p + p e^{i(θ + φ_j)}) for each θ."""
    out = torch.zeros(len(phase), len(turn), 2, dtype=torch.float64)
    inputs = (part.contiguous() for part in (phase, turn, many, torch.tensor([p], dtype=torch.float64)))
    run_compiled(_turn_all, len(phase), *inputs, out)
    return torch.view_as_complex(out)


def _turn_all(start: int, stop: int, phase: Any, turn: Any, many: Any, chance: Any, out: Any) -> None:
    p, keys = chance[0], phase.shape[1]
    for i in range(start, stop):
        cosine, sine = np.cos(phase[i]), np.sin(phase[i])
        for s in range(len(turn)):
            c, d = p * math.cos(turn[s]), p * math.sin(turn[s])
            x, y = 1.0, 0.0
            for j in range(keys):
                a = 1.0 - p + c * cosine[j] - d * sine[j]
                b = c * sine[j] + d * cosine[j]
                for _ in range(int(many[j])):
                    x, y = x * a - y * b, x * b + y * a
                if x * x + y * y < 1e-40:  # no factor is above 1
                    x, y = 0.0, 0.0
                    break
            out[i, s, 0], out[i, s, 1] = x, y


def _plain_turns(phase: Tensor, turn: Tensor, many: Tensor, p: float) -> Tensor:
    """The same in torch, a θ at a time."""
    each = [(torch.log1p(p * turned(phase + theta)) @ many.to(torch.complex128)).exp() for theta in turn]
    return torch.stack(each, 1)


def _compiled_sets(
    tau: Tensor, scores: Tensor, many: Tensor, error: Tensor, square: Tensor, sums: Tensor
) -> Tensor:
    """E_n, Q_n and V_n, (m, t, n, ·)."""
    inputs = (part.contiguous() for part in (tau, scores, many, error, square))
    run_compiled(_accumulate, len(tau), *inputs, sums)
    return sums


def _accumulate(
    start: int, stop: int, tau: Any, scores: Any, many: Any, error: Any, square: Any, out: Any
) -> None:
    most, p = out.shape[2] - 1, error.shape[2]
    for i in range(start, stop):
        low = math.inf
        for j in range(scores.shape[1]):
            if many[i, j] > 0:
                low = min(low, scores[i, j])
        for t in range(tau.shape[1]):
            lightest, seen = math.exp(min(tau[i, t] + low, 6.5)), 0
            for j in range(scores.shape[1]):
                if many[i, j] == 0:
                    continue
                y = math.exp(min(tau[i, t] + scores[i, j], 6.5))
                e = math.exp(lightest - y)
                for _ in range(int(many[i, j])):
                    seen += 1
                    for k in range(min(most, seen), 0, -1):
                        sets, cross = e * out[i, t, k - 1, 0], 0.0
                        out[i, t, k, 0] += sets
                        for c in range(p):
                            value = y * error[i, j, c]
                            cross += value * out[i, t, k - 1, 2 + c]
                            out[i, t, k, 2 + c] += e * out[i, t, k - 1, 2 + c] + value * sets
                        own = y * y * square[i, j] * sets
                        out[i, t, k, 1] += e * (out[i, t, k - 1, 1] + 2.0 * cross) + own


def _plain_sets(
    tau: Tensor, scores: Tensor, many: Tensor, error: Tensor, square: Tensor, sums: Tensor
) -> Tensor:
    """The same in torch, a key at a time."""
    low = scores.masked_fill(many == 0, torch.inf).amin(1, keepdim=True)
    lightest = (tau + low).clamp_max(HEAVY).exp()
    for j in range(scores.shape[1]):
        y = (tau + scores[:, j : j + 1]).clamp_max(HEAVY).exp()
        e = torch.where(many[:, j : j + 1] > 0, (lightest - y).exp(), 0.0)[..., None]
        value = y[..., None] * error[:, None, j]
        for _ in range(int(many[:, j].max())):
            before = sums[:, :, :-1]
            sets = e * before[..., 0]
            drift = before[..., 2:]
            cross = (drift * value[:, :, None]).sum(-1)
            own = (y.square() * square[:, j : j + 1])[..., None] * sets
            pairs = e * (before[..., 1] + 2 * cross) + own
            vectors = e[..., None] * drift + value[:, :, None] * sets[..., None]
            more = torch.cat([sets[..., None], pairs[..., None], vectors], -1)
            sums = torch.cat([sums[:, :, :1], sums[:, :, 1:] + more], 2)
    return sums
