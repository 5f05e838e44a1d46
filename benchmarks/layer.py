"""``python -m benchmarks.layer``: time of output layers, forward and backward, as ratios to a softmax over the words.

``--checkpoint`` takes the lengths of vectors, and θ, from a trained KerBS model, sampled until the vocabulary has the
wanted size; directions are random, and features have the length 13, as in a trained model. ``--grow`` varies one size
after the other.
"""

import argparse
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import timing
from kerbs_fairseq.functional.backends import dispatch as choice
from kerbs_fairseq.functional.chunked_loss import fused_loss
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.functional.words import slots_of
from kerbs_fairseq.modules import MixtureOfSoftmaxes
from kerbs_fairseq.runs import checkpoint as schema

SIZES = ((4096, 512, 10000), (2048, 256, 30000))
SOFTMAX = "softmax over words"
Arm = Callable[[], Any]


def senses(features: int, words: int, ratio: int, checkpoint: Optional[str]) -> tuple[Tensor, Tensor, float]:
    """(vectors (S, d), θ (S,), length of features): fresh, or with the lengths and θ of a trained model."""
    S = words * ratio
    vectors, theta = torch.randn(S, features) * features**-0.5, torch.full((S,), 1e-8)
    if checkpoint is None:
        return vectors, theta, features**0.5
    head = schema.load(Path(checkpoint)).head
    taken = torch.randint(0, len(head[schema.THETA]), (S,))
    lengths = head[schema.VECTORS].float().norm(dim=1)[taken]
    return functional.normalize(vectors) * lengths.unsqueeze(1), head[schema.THETA].float()[taken], 13.0


def arms(
    tokens: int, features: int, words: int, ratio: int = 3, smoothing: float = 0.0, checkpoint: Optional[str] = None
) -> dict[str, Arm]:
    """Each arm computes a loss, summed over the tokens, and its gradients."""
    torch.manual_seed(0)
    slots = slots_of(torch.arange(words).repeat_interleave(ratio), words, ratio + 1)
    vectors, theta, length = senses(features, words, ratio, checkpoint)
    h = (functional.normalize(torch.randn(tokens, features)) * length).requires_grad_()
    w = torch.randn(words, features).mul_(features**-0.5).requires_grad_()
    s, t = vectors.requires_grad_(), theta.requires_grad_()
    target = torch.randint(0, words, (tokens,))
    mos = MixtureOfSoftmaxes(features, 3)
    chunk = choice.chunk_size(s)

    def learn(loss: Tensor) -> None:
        for x in (h, w, s, t, *mos.parameters()):
            x.grad = None
        loss.backward()

    def without_native(torch_compile: bool) -> Tensor:
        is_native = mock.patch.object(choice, "is_native", return_value=False)
        compiles = mock.patch.object(choice, "compiles", return_value=torch_compile)
        with is_native, compiles:
            return fused_loss(h, s, t, slots, target, smoothing=smoothing).loss

    def products() -> None:
        by_h, by_s, room = torch.empty_like(h), torch.zeros_like(s), torch.empty(min(chunk, tokens), len(s))
        with torch.no_grad():
            for i in range(0, tokens, chunk):
                part = h[i : i + chunk]
                D = torch.mm(part, s.t(), out=room[: len(part)])
                torch.mm(D, s, out=by_h[i : i + chunk])
                by_s.addmm_(D.t(), part)

    def mixture() -> Tensor:
        log_prob = mos.log_prob(h, lambda x: x @ w.t())
        return functional.nll_loss(log_prob, target, reduction="sum")

    def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(h @ x.t(), y, reduction="sum", label_smoothing=smoothing)

    return {
        SOFTMAX: lambda: learn(cross_entropy(w, target)),
        "softmax over senses": lambda: learn(cross_entropy(s, target * ratio)),
        "three products over senses": products,
        "KerBS": lambda: learn(fused_loss(h, s, t, slots, target, smoothing=smoothing).loss),
        "KerBS, dot": lambda: learn(fused_loss(h, s, None, slots, target, kernel="dot", smoothing=smoothing).loss),
        "KerBS in plain torch": lambda: learn(without_native(torch_compile=False)),
        "KerBS by torch.compile": lambda: learn(without_native(torch_compile=True)),
        "KerBS by autograd": lambda: learn(reference_loss(h, s, t, slots, target, smoothing=smoothing).loss),
        "MoS, 3 components": lambda: learn(mixture()),
    }


class Case(NamedTuple):
    """Sizes."""

    tokens: int
    features: int
    words: int
    ratio: int = 3


def grown() -> list[Case]:
    """One size varied at a time."""
    base = Case(2048, 256, 10000)
    steps = {"tokens": (512, 1024, 4096), "features": (128, 512), "words": (3000, 30000), "ratio": (1, 2, 4)}
    return [base] + [base._replace(**{name: value}) for name, values in steps.items() for value in values]


def main() -> None:
    """Print the tables."""
    parser = timing.parser("layer", __doc__ or "")
    parser.add_argument("--sizes", type=int, nargs=3, action="append", metavar=("TOKENS", "FEATURES", "WORDS"))
    parser.add_argument("--ratio", type=int, default=3, help="senses a word (3)")
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--checkpoint", help="trained KerBS model to take lengths and θ from")
    parser.add_argument("--arms", nargs="+", help="only these (softmax over words is always there)")
    parser.add_argument("--grow", action="store_true", help="vary one size after the other")
    args = parser.parse_args()
    cases = grown() if args.grow else [Case(N, d, V, args.ratio) for N, d, V in args.sizes or SIZES]
    for case in cases:
        run(args, *case)


def run(args: argparse.Namespace, tokens: int, features: int, words: int, ratio: int) -> None:
    """One size."""
    running = arms(tokens, features, words, ratio, args.label_smoothing, args.checkpoint)
    wanted = args.arms or ([SOFTMAX, "three products over senses", "KerBS"] if args.grow else list(running))
    unknown = set(wanted) - set(running)
    if unknown:
        raise SystemExit(f"no arm {', '.join(sorted(unknown))}; there are: {', '.join(running)}")
    times = timing.race({name: arm for name, arm in running.items() if name == SOFTMAX or name in wanted}, args.rounds)
    timing.show(f"{tokens} tokens, d {features}, {words} words, {ratio} senses a word", times, SOFTMAX)
    settings = {"tokens": tokens, "features": features, "words": words, "ratio": ratio}
    settings["label_smoothing"], settings["trained"] = args.label_smoothing, args.checkpoint is not None
    timing.keep(args.results, "layer", settings, {"seconds": times})


if __name__ == "__main__":
    main()
