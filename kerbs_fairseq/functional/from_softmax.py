"""Convert the weights of a trained softmax to senses, and senses to the weights of a softmax.

For a word with the row w and the bias b, n senses with the vector w and the bias b − log n give the word the same
probability: log Σ_j e^(h·w + b − log n) = h·w + b. So do biases b + log p_j for shares p_j that sum to 1.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.initialization import NOISE, initial_vectors

LLOYD_STEPS = 5
SAME = 1e-6  # elements of vectors, and θ, that differ by no more count as equal


class Weights(NamedTuple):
    """``vectors`` (n, d) and ``bias`` (n,), of senses or of words."""

    vectors: Tensor
    bias: Tensor


def senses_of(weight: Tensor, bias: Optional[Tensor], sense_to_word: Tensor, share: Optional[Tensor] = None) -> Weights:
    """Return senses that predict the same as a softmax ``weight`` (V, d), ``bias`` (V,); ``share`` (S,) in the word."""
    n = torch.bincount(sense_to_word, minlength=len(weight)).to(torch.float32)
    share = 1 / n[sense_to_word] if share is None else share
    of_words = torch.zeros_like(n) if bias is None else bias.float()
    return Weights(weight[sense_to_word], (of_words[sense_to_word] + share.log()).to(weight.dtype))


def noise(weight: Tensor, sense_to_word: Tensor, seed: int) -> Tensor:
    """Return random offsets (S, d) of senses from their word, with the standard deviation of ``weight`` (V, d).

    The offsets of a word's senses sum to zero; a word's only sense has the offset 0.
    """
    return (initial_vectors(weight, sense_to_word, "near", seed) - weight[sense_to_word]) / NOISE["near"]


class Parts(NamedTuple):
    """Offsets ``directions`` (S, d) of senses as in :func:`noise`, and the ``share`` (S,) of each sense in its word."""

    directions: Tensor
    share: Tensor


def along_contexts(weight: Tensor, sense_to_word: Tensor, features: Tensor, words: Tensor, seed: int) -> Parts:
    """Return offsets of senses towards clusters of the contexts of their word.

    The contexts of ``words`` (N,) are ``features`` (N, d). The clusters come from a few steps of k-means per word,
    started at random contexts. A word with fewer contexts than senses gets noise.
    """
    directions = noise(weight, sense_to_word, seed).float()
    n = torch.bincount(sense_to_word, minlength=len(weight))
    share = 1 / n[sense_to_word].float()
    length = float(weight.float().std()) * weight.size(1) ** 0.5  # of an offset, the same as for noise
    order = torch.argsort(words, stable=True)
    counts = torch.bincount(words, minlength=len(weight))
    ends = counts.cumsum(0)
    by_word = torch.argsort(sense_to_word, stable=True).split(n.tolist())
    generator = torch.Generator().manual_seed(seed)
    for word in ((n > 1) & (counts >= n)).nonzero().flatten().tolist():
        contexts = features[order[ends[word] - counts[word] : ends[word]]].float()
        means, sizes = clusters(contexts, int(n[word]), generator)
        apart = means - contexts.mean(0)
        scale = apart.square().sum(1).mean().sqrt()
        if float(scale) > SAME:
            directions[by_word[word]] = apart * (length / scale)
            share[by_word[word]] = (sizes + 1) / (sizes + 1).sum()
    return Parts(directions.to(weight.dtype), share)


def clusters(points: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Run k-means on ``points`` (N, d), N ≥ k → means (k, d), sizes (k,); an empty cluster keeps its last mean."""
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
    """Return a mask (V,) of the words whose senses have different ``vectors`` (S, d)."""
    first = torch.zeros_like(vectors[:1]).repeat(n_words, 1)
    first[sense_to_word] = vectors  # any one of the senses of a word
    apart = (vectors - first[sense_to_word]).abs().amax(1) > SAME
    return torch.bincount(sense_to_word[apart], minlength=n_words) > 0


def inexact(vectors: Tensor, theta: Optional[Tensor], sense_to_word: Tensor, n_words: int) -> Optional[str]:
    """Return why no softmax predicts the same as senses with ``vectors`` (S, d) and ``theta`` (S,), or None."""
    if theta is not None and float(theta.abs().max()) > SAME:
        return f"{int((theta.abs() > SAME).sum())} of {len(theta)} senses have a θ other than 0"
    apart = int(parted(vectors, sense_to_word, n_words).sum())
    return f"{apart} of {n_words} words have senses with different vectors" if apart else None


def softmax_of(senses: Weights, sense_to_word: Tensor, n_words: int, usage: Tensor) -> Weights:
    """Return the softmax weights (V, d), (V,) of ``senses``, exact if a word's senses have one vector and θ = 0.

    Otherwise the logit of a word is a lower bound of the log-sum-exp over its senses, tight where these have the shares
    u of their ``usage`` (S,): log Σ e^s_j ≥ Σ u_j (s_j − log u_j). The inner product replaces the kernel: both have the
    same mean over cosines from 0 to 1.
    """

    def per_word(values: Tensor) -> Tensor:
        return values.new_zeros(n_words, *values.shape[1:]).index_add_(0, sense_to_word, values)

    vectors, bias, usage = senses.vectors.double(), senses.bias.double(), usage.double()
    by_usage = parted(senses.vectors, sense_to_word, n_words) & (per_word(usage) > 0)
    weight = torch.where(by_usage[sense_to_word], usage, bias.exp())  # equal vectors: shares by the biases
    u = weight / per_word(weight)[sense_to_word]
    lower = u * (bias - u.clamp_min(1e-30).log())
    return Weights(per_word(u.unsqueeze(1) * vectors).to(senses.vectors.dtype), per_word(lower).to(senses.bias.dtype))
