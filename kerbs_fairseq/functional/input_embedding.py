"""The input vector of a word, Eqs. 6 and 7: the mean of its sense vectors, weighted by the probability of each sense.

Only the senses of the given words are read. Shapes: ``tokens`` (...) are words; ``own`` (..., k) are their senses, −1
where there is none; weights are (..., k), zero where there is no sense, and sum to 1.
"""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional

from kerbs_fairseq.functional.kernel import TINY, at_least_float32, curvature, full_precision


def own_vectors(vectors: Tensor, own: Tensor, padding: Optional[int] = None) -> Tensor:
    """Gather the ``vectors`` (senses, d) of ``own`` (..., k) → (..., k, d); the sense ``padding`` gets no gradient."""
    return functional.embedding(own.clamp_min(0), vectors, padding)


def usage_weights(usage: Tensor, own: Tensor) -> Tensor:
    """Compute U_i^j / Σ_j U_i^j, and equal weights for a word that was never seen: ``usage`` (senses,) → (..., k)."""
    there = own >= 0
    used = usage[own.clamp_min(0)] * there
    # the usage of a word that has not been seen for long may be close to underflow: divide by its maximum first
    used = used / used.amax(-1, keepdim=True).clamp_min(torch.finfo(used.dtype).tiny)
    total = used.sum(-1, keepdim=True)
    equal = there / there.sum(-1, keepdim=True)
    return torch.where(total > 0, used / torch.where(total > 0, total, 1.0), equal)


def own_scores(features: Tensor, own_w: Tensor, theta: Optional[Tensor], bias: Optional[Tensor], kernel: str) -> Tensor:
    """Compute K(h, w; θ) + b, Eq. 9, for k senses per context: (..., d), (..., k, d), (..., k), (..., k) → (..., k)."""
    with full_precision(features.device):
        features, own_w = at_least_float32(features), at_least_float32(own_w)
        scores = product = (own_w @ features.unsqueeze(-1)).squeeze(-1)
        if kernel != "dot" and theta is not None:
            h_norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min(TINY)
            w_norm = torch.linalg.vector_norm(own_w, dim=-1).clamp_min(TINY)
            scores = product * curvature(product / (h_norm * w_norm), at_least_float32(theta), kernel)
        return scores if bias is None else scores + at_least_float32(bias)


def posterior_weights(
    features: Tensor,
    own_w: Tensor,
    own_theta: Optional[Tensor],
    own_bias: Optional[Tensor],
    own: Tensor,
    kernel: str = "paper",
) -> Tensor:
    """Compute P(sense | word, context), Eq. 7, a softmax over a word's senses: (..., d), (..., k, d) → (..., k).

    ``features`` are the contexts from which the words were predicted.
    """
    scores = own_scores(features, own_w, own_theta, own_bias, kernel)
    return torch.softmax(scores.masked_fill(own < 0, -torch.inf), -1)


def weighted(weights: Tensor, own_w: Tensor) -> Tensor:
    """Compute Σ_j weight_j w_j, Eq. 6: (..., k), (..., k, d) → (..., d)."""
    return (weights.to(own_w.dtype).unsqueeze(-2) @ own_w).squeeze(-2)
