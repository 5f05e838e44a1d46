"""The input vector of a word, Eqs. 6 and 7: the mean of its sense vectors, weighted by the probability of each sense.

Only the senses of the given words are read. Shapes: ``senses`` (..., k) are those of words (...), −1 where there is
none, and ``vectors`` (..., k, d) their vectors; weights are (..., k), zero where there is no sense, and sum to 1.
"""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional

from kerbs_fairseq.functional.kernel import TINY, at_least_float32, curvature, full_precision


def sense_vectors(vectors: Tensor, senses: Tensor, padding: Optional[int] = None) -> Tensor:
    """Gather from ``vectors`` (S, d) those of ``senses`` → (..., k, d); the sense ``padding`` gets no gradient."""
    return functional.embedding(senses.clamp_min(0), vectors, padding)


def usage_weights(usage: Tensor, senses: Tensor) -> Tensor:
    """Compute U_i^j / Σ_j U_i^j, and equal weights for a word that was never seen: ``usage`` (senses,) → (..., k)."""
    mask = senses >= 0
    used = usage[senses.clamp_min(0)] * mask
    # the usage of a word that has not been seen for long may be close to underflow: divide by its maximum first
    used = used / used.amax(-1, keepdim=True).clamp_min(torch.finfo(used.dtype).tiny)
    total = used.sum(-1, keepdim=True)
    equal = mask / mask.sum(-1, keepdim=True)
    return torch.where(total > 0, used / torch.where(total > 0, total, 1.0), equal)


def scores_of_senses(
    features: Tensor, vectors: Tensor, theta: Optional[Tensor], bias: Optional[Tensor], kernel: str
) -> Tensor:
    """Compute K(h, w; θ) + b, Eq. 9, for k senses per context: (..., d), (..., k, d), (..., k), (..., k) → (..., k)."""
    with full_precision(features.device):
        features, vectors = at_least_float32(features), at_least_float32(vectors)
        scores = product = (vectors @ features.unsqueeze(-1)).squeeze(-1)
        if kernel != "dot" and theta is not None:
            h_norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min(TINY)
            w_norm = torch.linalg.vector_norm(vectors, dim=-1).clamp_min(TINY)
            scores = product * curvature(product / (h_norm * w_norm), at_least_float32(theta), kernel)
        return scores if bias is None else scores + at_least_float32(bias)


def posterior_weights(
    features: Tensor,
    vectors: Tensor,
    theta: Optional[Tensor],
    bias: Optional[Tensor],
    senses: Tensor,
    kernel: str = "paper",
) -> Tensor:
    """Compute P(sense | word, context), Eq. 7, a softmax over a word's senses: (..., d), (..., k, d) → (..., k).

    ``features`` are the contexts from which the words were predicted.
    """
    scores = scores_of_senses(features, vectors, theta, bias, kernel)
    return torch.softmax(scores.masked_fill(senses < 0, -torch.inf), -1)


def weighted(weights: Tensor, vectors: Tensor) -> Tensor:
    """Compute Σ_j weight_j w_j, Eq. 6: (..., k), (..., k, d) → (..., d)."""
    return (weights.to(vectors.dtype).unsqueeze(-2) @ vectors).squeeze(-2)
