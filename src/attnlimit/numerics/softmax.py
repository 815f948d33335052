"""Softmax attention over one block of keys, with its log-sum-exp, and the exact merge of two blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

SCORES_AT_ONCE = 2**22
"""The plain path never holds more scores than this (32 MiB in float64)."""


class Partial(NamedTuple):
    """Attention over some of the keys: softmax-weighted mean of the values, and log of the weights' sum."""

    mean: Float[Tensor, "*heads m dv"]
    lse: Float[Tensor, "*heads m"]


def attend(
    queries: Float[Tensor, "*heads m d"],
    keys: Float[Tensor, "*#heads n d"],
    values: Float[Tensor, "*#heads n dv"],
    log_weights: Float[Tensor, " n"] | None = None,
) -> Partial:
    """mean = Σ_j p_j v_j and lse = log Σ_j e^{s_j}, with s_j = qᵀk_j + log_weights_j and p = softmax(s).

    One fused kernel where torch has one that also returns the log-sum-exp (CPU, no gradient); otherwise
    plain products, a slice of queries at a time.
    """
    heads, (m, d), (n, dv) = queries.shape[:-2], queries.shape[-2:], values.shape[-2:]
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (queries, keys, values))
    fused = queries.device.type == "cpu" and queries.dtype in (torch.float32, torch.float64)
    if not fused or needs_grad or m == 0:
        return _attend_plain(queries, keys, values, log_weights)
    width = max(d, dv)
    count = heads.numel()
    q, k, v = (
        _widened(t, width).expand(*heads, -1, -1).reshape(1, count, -1, width)
        for t in (queries, keys, values)
    )
    mask = None if log_weights is None else log_weights.expand(1, 1, m, n)
    mean, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask, scale=1.0)
    return Partial(mean[..., :dv].reshape(*heads, m, dv), lse.reshape(*heads, m))


def _widened(tensor: Tensor, width: int) -> Tensor:
    """Zero columns up to `width`; none to add, no copy (torch's pad makes one)."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def _attend_plain(queries: Tensor, keys: Tensor, values: Tensor, log_weights: Tensor | None) -> Partial:
    step = max(1, SCORES_AT_ONCE // (keys.shape[-2] * max(1, queries.shape[:-2].numel())))
    means, sums = [], []
    for block in queries.split(step, dim=-2):
        scores = block @ keys.mT
        if log_weights is not None:
            scores = scores + log_weights
        lse = scores.logsumexp(-1)
        means.append((scores - lse[..., None]).exp() @ values)
        sums.append(lse)
    return Partial(torch.cat(means, -2), torch.cat(sums, -1))


def merge(first: Partial, second: Partial) -> Partial:
    """Attention over the union of two disjoint sets of keys, exactly."""
    lse = torch.logaddexp(first.lse, second.lse)
    share = (second.lse - lse).exp()[..., None]
    return Partial(torch.lerp(first.mean, second.mean, share), lse)


def tilted_covariance(
    queries: Float[Tensor, "*heads m d"],
    keys: Float[Tensor, "*#heads n d"],
    left: Float[Tensor, "*#heads n l"],
    right: Float[Tensor, "*#heads n r"],
    log_weights: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "*heads m l r"]:
    """Σ_j p_j (l_j − l̄)(r_j − r̄)ᵀ under the softmax weights p of each query, with full relative accuracy."""
    heads, n, width = max(1, queries.shape[:-2].numel()), keys.shape[-2], max(left.shape[-1], right.shape[-1])
    covs = []
    for block in queries.split(max(1, SCORES_AT_ONCE // (heads * n * width)), dim=-2):
        scores = block @ keys.mT
        p = (scores if log_weights is None else scores + log_weights).softmax(-1)
        from_left = _centred(left, p)
        from_right = from_left if right is left else _centred(right, p)
        covs.append((p[..., None] * from_left).mT @ from_right)
    return torch.cat(covs, -3)


def _centred(points: Float[Tensor, "*#heads n l"], p: Float[Tensor, "*heads m n"]) -> Tensor:
    """y_j − ȳ for each query, measured from the key of largest weight: ȳ may be closer to it than rounding."""
    points = points.expand(*p.shape[:-2], *points.shape[-2:])
    top = p.argmax(-1, keepdim=True).expand(*p.shape[:-1], points.shape[-1])
    away = points[..., None, :, :] - points.gather(-2, top)[..., None, :]
    return away - p[..., None, :] @ away


def log_mean_exp(
    scores: Float[Tensor, "*batch n"], log_weights: Float[Tensor, "*#batch n"]
) -> Float[Tensor, "*batch"]:
    """log Σ_j w_j e^{s_j} for weights of sum one, with full relative accuracy also when all scores are tiny."""
    small = scores.clamp(-1, 1)
    near_zero = torch.log1p((log_weights.exp() * torch.expm1(small)).sum(-1))
    return torch.where((small == scores).all(-1), near_zero, (scores + log_weights).logsumexp(-1))
