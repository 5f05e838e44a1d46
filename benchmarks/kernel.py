"""python -m benchmarks.kernel CHECKPOINT --data DATA: what a trained kernel does that a scale and a bias would not.

For each sense the best affine function of the inner product h·w is fitted to its kernel values, on the first half of
the validation tokens, weighted by the probability of the sense. On the other half, perplexities per token with the
kernel, with these functions in its place (a dot product with scaled vectors and other biases), and with θ = 0.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.words import word_log_probs
from kerbs_fairseq.runs.errors import UserError, console

LEAST = 1e-5  # weight of a token for a sense that is not probable there, so that every sense has a function
ROWS = 1000  # tokens at a time


def affine_fits(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return slopes and intercepts (senses,) of the weighted least squares of each column of ``y`` (tokens, senses)."""
    x, y, weights = x.double(), y.double(), weights.double()
    total = weights.sum(0)
    mean_x, mean_y = (weights * x).sum(0) / total, (weights * y).sum(0) / total
    slope = (weights * (x - mean_x) * (y - mean_y)).sum(0) / (weights * (x - mean_x) ** 2).sum(0).clamp_min(1e-12)
    return slope, mean_y - slope * mean_x


@torch.no_grad()
def collect(checkpoint: Path, data: Path, split: str, most: int) -> tuple[Any, Tensor, Tensor]:
    """Return the output layer, and features (tokens, d) and targets (tokens,) of about ``most`` tokens."""
    from kerbs_fairseq.inspection.contexts import Reader
    from kerbs_fairseq.plugin.decoders import features_of

    reader = Reader(checkpoint, data, split)
    head = getattr(reader.model.decoder, "head", None)
    if getattr(getattr(head, "senses", None), "kernel", "dot") == "dot":
        raise UserError(f"{checkpoint} has no kernel: give a model that was trained with --kerbs-kernel paper")
    features, targets = [], []
    for batch in reader.batches():
        with features_of(reader.model.decoder):
            rows = reader.model(**batch["net_input"])[0]
        mask = batch["target"] != reader.dictionary.pad()
        features.append(rows[mask])
        targets.append(batch["target"][mask])
        if sum(map(len, targets)) >= most:
            break
    return head, torch.cat(features), torch.cat(targets)


@torch.no_grad()
def perplexities(head: Any, features: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the perplexity of the second half of ``targets`` (tokens,) with each kind of scores."""
    senses = head.senses.senses()
    bias = senses.bias if senses.bias is not None else features.new_zeros(len(senses.vectors))
    first, second = features[: len(features) // 2], features[len(features) // 2 :]

    def scores(rows: Tensor, kernel: str) -> Tensor:
        theta = None if kernel == "dot" else senses.theta
        return sense_scores(rows, senses.vectors, theta, kernel, bias)

    kernel_values = torch.cat([scores(rows, senses.kernel) for rows in first.split(ROWS)])
    weights = kernel_values.softmax(1) + LEAST
    slope, intercept = (x.to(bias) for x in affine_fits(scores(first, "dot") - bias, kernel_values - bias, weights))
    kinds = {
        "the kernel": lambda rows: scores(rows, senses.kernel),
        "its best affine function per sense": lambda rows: (scores(rows, "dot") - bias) * slope + intercept + bias,
        "θ = 0": lambda rows: scores(rows, "dot"),
    }
    after = targets[len(first) :]
    losses = dict.fromkeys(kinds, 0.0)
    for name, of_rows in kinds.items():
        for rows, words in zip(second.split(ROWS), after.split(ROWS)):
            log_probs = word_log_probs(of_rows(rows), senses.index)
            losses[name] -= float(log_probs.gather(1, words[:, None]).double().sum())
    return {name: math.exp(loss / len(after)) for name, loss in losses.items()}


@console("benchmarks.kernel")
def main() -> None:
    """Print the perplexities."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of fairseq-preprocess")
    parser.add_argument("--split", default="valid", help="part of the data (valid)")
    parser.add_argument("--tokens", type=int, default=12000, help="number of tokens, about (12000)")
    args = parser.parse_args()
    head, features, targets = collect(args.checkpoint, args.data, args.split, args.tokens)
    low, middle, high = head.senses.theta.float().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
    size = f"{len(targets):,} tokens, {len(head.senses.theta):,} senses"
    print(f"{size}; θ {low:.2f}, {middle:.2f}, {high:.2f} (5, 50, 95 %)")
    for name, ppl in perplexities(head, features, targets).items():
        print(f"perplexity with {name}: {ppl:.2f}")


if __name__ == "__main__":
    main()
