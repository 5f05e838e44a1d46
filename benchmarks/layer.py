"""``python -m benchmarks.layer``: time of output layers, forward and backward, as ratios to a softmax over the words.

The arms take turns within one run, and the medians are compared: what disturbs the machine disturbs all of them.
"""

import argparse
import statistics
import time
from typing import Callable

import torch
from torch.nn import functional

from kerbs_fairseq.functional.fused import fused_loss
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.functional.words import slots_of

SENSES = 3


def arms(tokens: int, features: int, words: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Each arm computes a loss, summed over the tokens."""
    torch.manual_seed(0)
    sense_to_word = torch.arange(words).repeat_interleave(SENSES)
    slots = slots_of(sense_to_word, words, SENSES + 1)
    h = torch.randn(tokens, features, requires_grad=True)
    w = torch.randn(words, features).mul_(features**-0.5).requires_grad_()
    s = torch.randn(words * SENSES, features).mul_(features**-0.5).requires_grad_()
    theta = torch.randn(words * SENSES).mul_(0.5).requires_grad_()
    target = torch.randint(0, words, (tokens,))
    return {
        "softmax over words": lambda: functional.cross_entropy(h @ w.t(), target, reduction="sum"),
        "softmax over senses": lambda: functional.cross_entropy(h @ s.t(), target * SENSES, reduction="sum"),
        "KerBS, dot": lambda: fused_loss(h, s, None, slots, target, kernel="dot")[0],
        "KerBS": lambda: fused_loss(h, s, theta, slots, target)[0],
        "KerBS, reference": lambda: reference_loss(h, s, theta, slots, target)[0],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer", description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--words", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    running = arms(args.tokens, args.features, args.words)
    times: dict[str, list[float]] = {name: [] for name in running}
    for number in range(args.rounds + 1):
        for name, loss in running.items():
            began = time.perf_counter()
            loss().backward()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    print(f"{args.tokens} tokens, d {args.features}, {args.words} words, {SENSES} senses a word, {args.rounds} rounds,")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    unit = statistics.median(times["softmax over words"])
    for name, taken in times.items():
        low, middle, high = min(taken) / unit, statistics.median(taken) / unit, max(taken) / unit
        print(f"{name:<22}{middle:7.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
