"""Experiments on the paper's claims about the kernel: ``python -m kerbs_fairseq.demo.lemmas``.

Contexts are synthetic: points on a sphere, with a cluster for every meaning. The output layer alone is trained to
predict the word of each context. Lemma 1: the senses of a word spread over its clusters. Lemma 2: a wider cluster gets
a larger θ. Section 4.1.2: outliers determine the width of a Gaussian, but not θ.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional

from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

FEATURES = 16
LENGTH = 4.0  # of a context
CONTEXTS = 200  # of a cluster
NARROW, WIDE = 0.2, 1.2
OUTLIERS = 0.1


def clusters(spreads: Sequence[float], seed: int, outliers: float = 0.0) -> Tensor:
    """Return a cluster for each spread around random directions, (clusters, contexts, d), with a share of outliers."""
    generator = torch.Generator().manual_seed(seed)
    centers = functional.normalize(torch.randn(len(spreads), 1, FEATURES, generator=generator), dim=2)
    noise = torch.randn(len(spreads), CONTEXTS, FEATURES, generator=generator) / FEATURES**0.5
    points = centers + noise * torch.tensor(spreads).view(-1, 1, 1)
    anywhere = torch.rand(len(spreads), CONTEXTS, 1, generator=generator) < outliers
    points = torch.where(anywhere, torch.randn(points.shape, generator=generator), points)
    return functional.normalize(points, dim=2) * LENGTH


def train(layer: KernelizedBayesianSoftmax, contexts: Tensor, words: Tensor, updates: int) -> None:
    """Train the layer on contexts (n, d) of words (n,)."""
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    for _ in range(updates):
        optimizer.zero_grad()
        layer(contexts, words).loss.backward()
        optimizer.step()


class TwoClusters(NamedTuple):
    """A word with two clusters and two senses, after training."""

    contexts: Tensor  # (2, contexts, d)
    senses: Tensor  # (2, contexts): the likely sense of each context, 0 or 1
    vectors: Tensor  # (2, d)


def two_clusters(seed: int, start: str = "near", updates: int = 400) -> TwoClusters:
    """Train a word with two clusters and two senses, among four words with one cluster each."""
    contexts = clusters([0.6] * 6, seed)
    words = torch.tensor([0, 0, 1, 2, 3, 4]).repeat_interleave(CONTEXTS)
    layer = KernelizedBayesianSoftmax(
        FEATURES, 5, 2, max_senses=2, init="uniform", init_vectors=start, bias="none", seed=seed
    )
    train(layer, contexts.flatten(0, 1), words, updates)
    table = layer.senses
    with torch.no_grad():
        own = table.index.rows(torch.tensor(0))
        scores = sense_scores(contexts[:2].flatten(0, 1), table.vectors, table.theta)[:, own]
    return TwoClusters(contexts[:2], scores.argmax(1).view(2, CONTEXTS), table.vectors.detach()[own])


def lemma_1(seed: int, start: str = "near", updates: int = 400) -> float:
    """Return 1 if each sense of a word with two clusters has its own cluster, 0 if both have the same one."""
    second = two_clusters(seed, start, updates).senses.float().mean(1)  # share of the second sense in each cluster
    return abs(float(second[0] - second[1]))


def lemma_2(seed: int, outliers: float = 0.0, updates: int = 600) -> tuple[Tensor, Tensor]:
    """Train words with one sense each; return θ of three with narrow clusters (3,) and of two with wide ones (2,)."""
    contexts = clusters([NARROW] * 3 + [WIDE] * 2, seed, outliers)
    layer = KernelizedBayesianSoftmax(FEATURES, 5, senses=1, bias="none", seed=seed)
    train(layer, contexts.flatten(0, 1), torch.arange(5).repeat_interleave(CONTEXTS), updates)
    theta = layer.senses.theta
    assert theta is not None
    return theta[:3].detach(), theta[3:].detach()


def gaussian_width(true_width: float, outliers: float, seed: int, d: int = 512, d_true: int = 8) -> float:
    """Return σ of the isotropic Gaussian that fits best, as in section 4.1.2.

    Points have the width ``true_width`` in ``d_true`` of ``d`` dimensions; outliers fill a cube with edge 1.
    """
    generator = torch.Generator().manual_seed(seed)
    points = torch.zeros(4000, d)
    points[:, :d_true] = torch.randn(4000, d_true, generator=generator) * true_width
    odd = int(4000 * outliers)
    points[:odd] = torch.rand(odd, d, generator=generator) - 0.5
    return float(points.square().mean().sqrt())


def main(argv: Optional[list[str]] = None) -> None:
    """Run the experiments and print the results, or draw the plots."""
    parser = argparse.ArgumentParser(prog="python -m kerbs_fairseq.demo.lemmas", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="sets of contexts (5)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="only draw the plots of docs/lemmas.md")
    args = parser.parse_args(argv)
    if args.plots is not None:
        from kerbs_fairseq.demo.lemma_plots import write

        print(*write(args.plots, args.seeds), sep="\n")
        return
    seeds = range(args.seeds)
    print("Lemma 1: do a word's two senses share its two clusters? (1: one each, 0: both go to one)")
    for seed in seeds:
        print(f"  {seed}: {lemma_1(seed):.2f}", flush=True)
    for outliers in (0.0, OUTLIERS):
        print(f"Lemma 2: θ of words with narrow and with wide clusters, {outliers:.0%} outliers")
        for seed in seeds:
            narrow, wide = lemma_2(seed, outliers)
            row = " ".join(f"{t:6.2f}" for t in narrow.tolist()) + "  |" + " ".join(f"{t:6.2f}" for t in wide.tolist())
            print(f"  {seed}: {row}", flush=True)
    print("Section 4.1.2: σ of the best Gaussian in 512 dimensions, by the true width in 8 of them")
    for outliers in (0.0, OUTLIERS):
        widths = ", ".join(f"{true}: {gaussian_width(true, outliers, 0):.3f}" for true in (0.05, 0.1, 0.2))
        print(f"  {outliers:.0%} outliers: {widths}")


if __name__ == "__main__":
    main()
