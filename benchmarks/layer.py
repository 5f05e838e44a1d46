"""python -m benchmarks.layer: time of output layers, forward and backward, as ratios to a softmax over the words.

Word frequencies follow Zipf's law (the i-th word has a share proportional to 1/i), and senses are allocated by them.
--checkpoint samples the norms of vectors, θ and biases from a trained KerBS model; directions are random, and
features have the norm 13, as in a trained model. --grow varies one size after the other.
"""

import argparse
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import timing
from kerbs_fairseq.functional.backends import dispatch
from kerbs_fairseq.functional.backends.base import products_table
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.initialization import InitialAllocation, initial_senses, map_of
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex
from kerbs_fairseq.modules import MixtureOfSoftmaxes
from kerbs_fairseq.runs import checkpoint as schema

SIZES = ((4096, 512, 10000), (2048, 256, 30000))
SOFTMAX = "softmax over words"
Arm = Callable[[], Any]


class Case(NamedTuple):
    """Sizes, the senses per word, and the most senses that one word has."""

    tokens: int
    features: int
    words: int
    ratio: float = 1.5
    most: int = 16


def zipf(words: int) -> Tensor:
    """Return the count of each word (words,), by Zipf's law."""
    return 1e7 / torch.arange(1.0, words + 1)


def senses_of(case: Case, checkpoint: Optional[str] = None) -> tuple[Senses, float]:
    """Return (senses, norm of features): newly initialized, or with the norms, θ and biases of a trained model."""
    allocation = InitialAllocation(case.ratio, max_senses=max(case.most, round(case.ratio)), how="frequency")
    words = map_of(initial_senses(case.words, allocation, zipf(case.words)))
    vectors = torch.randn(len(words), case.features) * case.features**-0.5
    theta, bias, norm = torch.full((len(words),), 1e-8), torch.zeros(len(words)), case.features**0.5
    if checkpoint is not None:
        head = schema.load(Path(checkpoint)).head
        norms = head[schema.VECTORS].float().norm(dim=1)
        taken = torch.randint(0, len(norms), (len(words),))
        vectors = functional.normalize(vectors) * norms[taken].unsqueeze(1)
        theta, bias = (torch.zeros(len(words)) if x is None else x[taken] for x in schema.theta_and_bias(head))
        norm = 13.0
    for x in (vectors, theta, bias):
        x.requires_grad_()
    return Senses(vectors, theta, bias, SenseIndex(words, case.words)), norm


def arms(case: Case, smoothing: float = 0.0, checkpoint: Optional[str] = None) -> dict[str, Arm]:
    """Return the arms. Each computes a loss, summed over the tokens, and its gradients, or only the products."""
    torch.manual_seed(0)
    kerbs, norm = senses_of(case, checkpoint)
    dot = Senses(kerbs.vectors, None, kerbs.bias, kerbs.index, "dot")
    unbiased = Senses(kerbs.vectors, kerbs.theta, None, kerbs.index)
    few, _ = senses_of(case._replace(ratio=1.125, most=32))
    at_most_4, at_most_64 = (senses_of(case._replace(most=most))[0] for most in (4, 64))  # equally many senses in total
    one, _ = senses_of(case._replace(ratio=1.0))
    h = (functional.normalize(torch.randn(case.tokens, case.features)) * norm).requires_grad_()
    w = torch.randn(case.words, case.features).mul_(case.features**-0.5).requires_grad_()
    target = torch.multinomial(zipf(case.words), case.tokens, replacement=True)
    mos = MixtureOfSoftmaxes(case.features, 3)
    S, chunk = len(kerbs.vectors), dispatch.chunk_size(kerbs.vectors, dispatch.backend_of(kerbs.vectors))

    def learn(loss: Tensor) -> None:
        leaves = [x for s in (kerbs, few, at_most_4, at_most_64, one) for x in (s.vectors, s.theta, s.bias)]
        for x in (h, w, *leaves, *mos.parameters()):
            if x is not None:
                x.grad = None
        loss.backward()

    def layer(senses: Senses) -> Arm:
        return lambda: learn(chunked_loss(h, senses, target, None, smoothing).loss)

    def plain_torch() -> None:
        learn(chunked_loss(h, kerbs, target, None, smoothing, backend="torch").loss)

    def products() -> None:
        vectors = kerbs.vectors
        by_h, by_s, workspace = (
            torch.empty_like(h),
            torch.zeros_like(vectors),
            products_table(min(chunk, case.tokens), S, h),
        )
        with torch.no_grad():
            for i in range(0, case.tokens, chunk):
                part = h[i : i + chunk]
                D = torch.mm(part, vectors.t(), out=workspace[: len(part)])
                torch.mm(D, vectors, out=by_h[i : i + chunk])
                by_s.addmm_(D.t(), part)

    def mixture() -> Tensor:
        log_prob = mos.log_prob(h, lambda x: x @ w.t())
        return functional.nll_loss(log_prob, target, reduction="sum")

    def cross_entropy(x: Tensor) -> Tensor:
        return functional.cross_entropy(h @ x.t(), target, reduction="sum", label_smoothing=smoothing)

    return {
        SOFTMAX: lambda: learn(cross_entropy(w)),
        "softmax over senses": lambda: learn(cross_entropy(kerbs.vectors)),
        "three products over senses": products,
        "KerBS": layer(kerbs),
        "KerBS, 1.125 senses per word": layer(few),
        "KerBS, 1 sense per word": layer(one),
        "KerBS, at most 4 senses of a word": layer(at_most_4),
        "KerBS, at most 64 senses of a word": layer(at_most_64),
        "KerBS, dot": layer(dot),
        "KerBS, no bias": layer(unbiased),
        "KerBS in plain torch": plain_torch,
        "KerBS by autograd": lambda: learn(reference_loss(h, kerbs, target, None, smoothing).loss),
        "MoS, 3 components": lambda: learn(mixture()),
    }


def grown() -> list[Case]:
    """Return cases in which one size is varied at a time."""
    base = Case(2048, 256, 10000)
    steps: dict[str, tuple[Any, ...]] = {
        "tokens": (512, 1024, 4096), "features": (128, 512), "words": (3000, 30000), "ratio": (1, 1.125, 2, 3)
    }  # fmt: skip
    return [base] + [base._replace(**{name: value}) for name, values in steps.items() for value in values]


def main() -> None:
    """Print the tables."""
    parser = timing.parser("layer", __doc__ or "")
    parser.add_argument("--sizes", type=int, nargs=3, action="append", metavar=("TOKENS", "FEATURES", "WORDS"))
    parser.add_argument("--ratio", type=float, default=1.5, help="senses per word (1.5)")
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--checkpoint", help="trained KerBS model to take norms, θ and biases from")
    parser.add_argument("--arms", nargs="+", help="only these (softmax over words is always there)")
    parser.add_argument("--grow", action="store_true", help="vary one size after the other")
    args = parser.parse_args()
    cases = grown() if args.grow else [Case(N, d, V, args.ratio) for N, d, V in args.sizes or SIZES]
    for case in cases:
        run(args, case)


def run(args: argparse.Namespace, case: Case) -> None:
    """Measure one case."""
    running = arms(case, args.label_smoothing, args.checkpoint)
    wanted = args.arms or ([SOFTMAX, "three products over senses", "KerBS"] if args.grow else list(running))
    unknown = set(wanted) - set(running)
    if unknown:
        raise SystemExit(f"no arm {', '.join(sorted(unknown))}; there are: {', '.join(running)}")
    times = timing.race({name: arm for name, arm in running.items() if name == SOFTMAX or name in wanted}, args.rounds)
    title = f"{case.tokens} tokens, d {case.features}, {case.words} words, {case.ratio:g} senses per word"
    timing.show(title, times, SOFTMAX)
    settings = {**case._asdict(), "label_smoothing": args.label_smoothing, "trained": args.checkpoint is not None}
    timing.keep(args.results, "layer", settings, {"seconds": times})


if __name__ == "__main__":
    main()
