"""A trained softmax as senses, and senses as a softmax: rows of one table become rows of the other.

With b the bias of a word's row w, n senses of vector w and bias b − log n give the word the probability that it had:
log Σ_j e^(h·w + b − log n) = h·w + b. Shares p_j that sum to 1 do the same with b + log p_j.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.initialization import NOISE, initial_vectors

LLOYD_STEPS = 5
SAME = 1e-6  # vectors, biases and θ that differ by less are the same


class Weights(NamedTuple):
    """``vectors`` (n, d) and ``bias`` (n,), of senses or of words."""

    vectors: Tensor
    bias: Tensor


def senses_of(weight: Tensor, bias: Optional[Tensor], sense_to_word: Tensor, share: Optional[Tensor] = None) -> Weights:
    """Senses (S,) that predict what the softmax ``weight`` (V, d), ``bias`` (V,) does; ``share`` (S,) of its word."""
    n = torch.bincount(sense_to_word, minlength=len(weight)).to(torch.float32)
    share = 1 / n[sense_to_word] if share is None else share
    of_words = torch.zeros_like(n) if bias is None else bias.float()
    return Weights(weight[sense_to_word], (of_words[sense_to_word] + share.log()).to(weight.dtype))


def noise(weight: Tensor, sense_to_word: Tensor, seed: int) -> Tensor:
    """Directions (S, d) in which the senses of a word part, of one standard deviation of ``weight`` (V, d).

    Those of a word sum to zero; its only sense has none.
    """
    return (initial_vectors(weight, sense_to_word, "near", seed) - weight[sense_to_word]) / NOISE["near"]


class Parts(NamedTuple):
    """How senses part: ``directions`` (S, d) as in :func:`noise`, and the ``share`` (S,) of each in its word."""

    directions: Tensor
    share: Tensor


def along_contexts(weight: Tensor, sense_to_word: Tensor, features: Tensor, words: Tensor, seed: int) -> Parts:
    """Part the senses of a word towards clusters of its contexts: ``features`` (N, d) at which ``words`` (N,) stood.

    A few steps of k-means for each word, from random contexts. A word with fewer contexts than senses gets noise.
    """
    directions = noise(weight, sense_to_word, seed).float()
    n = torch.bincount(sense_to_word, minlength=len(weight))
    share = 1 / n[sense_to_word].float()
    length = float(weight.float().std()) * weight.size(1) ** 0.5  # of a direction, as that of noise is
    order = torch.argsort(words, stable=True)
    counts = torch.bincount(words, minlength=len(weight))
    ends = counts.cumsum(0)
    by_word = torch.argsort(sense_to_word, stable=True).split(n.tolist())
    generator = torch.Generator().manual_seed(seed)
    for word in ((n > 1) & (counts >= n)).nonzero().flatten().tolist():
        own = features[order[ends[word] - counts[word] : ends[word]]].float()
        means, sizes = clusters(own, int(n[word]), generator)
        apart = means - own.mean(0)
        scale = apart.square().sum(1).mean().sqrt()
        if float(scale) > SAME:
            directions[by_word[word]] = apart * (length / scale)
            share[by_word[word]] = (sizes + 1) / (sizes + 1).sum()
    return Parts(directions.to(weight.dtype), share)


def clusters(points: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """k-means of ``points`` (N, d), N ≥ k: means (k, d) and sizes (k,); an empty cluster stays at its last mean."""
    start = torch.randperm(len(points), generator=generator)[:k].to(points.device)
    means = points[start]
    sizes = torch.zeros(k, device=points.device)
    for _ in range(LLOYD_STEPS):
        nearest = torch.cdist(points, means).argmin(1)
        sizes = torch.bincount(nearest, minlength=k).to(points.dtype)
        sums = torch.zeros_like(means).index_add_(0, nearest, points)
        means = torch.where(sizes.unsqueeze(1) > 0, sums / sizes.clamp_min(1).unsqueeze(1), means)
    return means, sizes


def parted(vectors: Tensor, sense_to_word: Tensor, n_words: int) -> Tensor:
    """Which words (V,) have senses with different ``vectors`` (S, d)."""
    first = torch.zeros_like(vectors[:1]).repeat(n_words, 1)
    first[sense_to_word] = vectors  # of a word's senses, one of them
    apart = (vectors - first[sense_to_word]).abs().amax(1) > SAME
    return torch.bincount(sense_to_word[apart], minlength=n_words) > 0


def inexact(vectors: Tensor, theta: Optional[Tensor], sense_to_word: Tensor, n_words: int) -> Optional[str]:
    """Why no softmax predicts what senses of these ``vectors`` (S, d) and ``theta`` (S,) do, or None."""
    if theta is not None and float(theta.abs().max()) > SAME:
        return f"{int((theta.abs() > SAME).sum())} of {len(theta)} senses have a θ other than 0"
    apart = int(parted(vectors, sense_to_word, n_words).sum())
    return f"{apart} of {n_words} words have senses with different vectors" if apart else None


def softmax_of(senses: Weights, sense_to_word: Tensor, n_words: int, usage: Tensor) -> Weights:
    """The softmax (V, d), (V,) of senses (S,), exact where all senses of a word have one vector and θ is 0.

    Elsewhere it is a lower bound of what a word's senses give, tight where they have the shares u of their ``usage``
    (S,): log Σ e^s_j ≥ Σ u_j (s_j − log u_j). The kernel counts as the inner product, which has the same mean over
    cosines from 0 to 1.
    """

    def per_word(values: Tensor) -> Tensor:
        return values.new_zeros(n_words, *values.shape[1:]).index_add_(0, sense_to_word, values)

    vectors, bias, usage = senses.vectors.double(), senses.bias.double(), usage.double()
    by_usage = parted(senses.vectors, sense_to_word, n_words) & (per_word(usage) > 0)
    weight = torch.where(by_usage[sense_to_word], usage, bias.exp())  # equal senses have the shares of their biases
    u = weight / per_word(weight)[sense_to_word]
    lower = u * (bias - u.clamp_min(1e-30).log())
    return Weights(per_word(u.unsqueeze(1) * vectors).to(senses.vectors.dtype), per_word(lower).to(senses.bias.dtype))
